# make demo      the main job on data that ships in a dependency, about a minute after installation
# make test      formatting, lints, types and the fast tests: what CI runs
# make test-all  the same and the slow tests
# make check     formatting, lints, types, and that pages are as they were made from runs
# make format    let ruff put things in order
# make gpu       rounds and the contract on CUDA, nine minutes at a time; DEVICE=cuda:1 is another one; RECORD=
#                another folder than benchmarks/records/DATE_gpu;
#                without a package index: make gpu WHEELS=wheels PYTHON=python3, one with torch and scikit-learn
# make gpu-cell  a published number at its own scale on CUDA, eight minutes at a time (it needs CIFAR-10)
# make wheels    WHEELS, for Python 3.12 on Linux (PYTHON_OF_WHEELS=3.13: for another), where there is an index
# make bench     the speed claims, each with its command
# make bench-peers  rounds of fedloom, of loops by hand and of other systems, each in an environment of its own, in turn
# make site      the pages as a site, build/site/index.html; a link that leads nowhere is an error
# make evidence  the tables of docs/results/plan.toml, from a frozen checkout: make evidence TAG=evidence-3 HOURS=8
# make lock      requirements/lock.txt after a change of pyproject.toml; remove it first to renew all
#
# What is done less often is a session of noxfile.py: .venv/bin/nox -l lists them.
#
# Everything is installed into VENV, in the versions of requirements/lock.txt. TORCH says which PyTorch:
#   TORCH=auto  the default: as cpu, or as cuda if no such build can be reached
#   TORCH=cpu   without CUDA, 0.2 GB to fetch and 0.8 GB on disk, or nothing
#   TORCH=cuda  what the package index has: on Linux with CUDA, 2.7 GB to fetch and 4.7 GB on disk
# make test PYTHON=python3.13 VENV=.venv-3.13 uses another Python, in an environment of its own.
VENV ?= .venv
PYTHON ?= python3
TORCH ?= auto
RUN = $(VENV)/bin
LOCK = requirements/lock.txt
INSTALLED = $(VENV)/installed-$(TORCH)
CODE = src packages tests examples benchmarks docs requirements site noxfile.py conftest.py
DEVICE ?= cuda
PYTHON_OF_WHEELS ?= 3.12
HOURS ?= 8
JOBS ?= 2

# Dozens of processes import fedloom in a test run: the first compiles it for all of them.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test test-all check format gpu gpu-cell gpu-installed wheels bench bench-peers site evidence lock

# PyTorch first, which chooses its build; then what builds fedloom, so that nothing is fetched unlocked.
# Python compiles what is imported: pip would take 50 s for 11,000 files, of which few are used.
$(INSTALLED): pyproject.toml $(wildcard packages/*/pyproject.toml) $(LOCK) requirements/get_torch.py
	test -x $(RUN)/python || $(PYTHON) -m venv $(VENV)
	rm -f $(VENV)/installed*
	$(RUN)/python requirements/get_torch.py $(TORCH)
	$(RUN)/pip install --quiet --no-compile -c $(LOCK) hatchling editables
	$(RUN)/pip install --quiet --no-compile -c $(LOCK) --no-build-isolation -e ".[dev]" -e packages/fedloom-papers
	$(RUN)/pip install --quiet --no-compile --no-deps -c $(LOCK) --no-build-isolation -e packages/fedloom-flower
	touch $@

demo: $(INSTALLED)
	$(RUN)/fedloom demo

check: $(INSTALLED)
	$(RUN)/ruff format --check $(CODE)
	$(RUN)/ruff check $(CODE)
	$(RUN)/mypy
	$(RUN)/python -m fedloom_papers.results.made --check

format: $(INSTALLED)
	$(RUN)/ruff format $(CODE)
	$(RUN)/ruff check --fix $(CODE)

test: check
	$(RUN)/pytest -n 2 --dist worksteal -m "not slow" --durations=10

test-all: check
	$(RUN)/pytest

ifdef WHEELS
ON_GPU = PYTHONPATH=$(CURDIR)/build/gpu $(PYTHON)
HERE = $(ON_GPU) -m pip install --quiet --no-index --no-deps --upgrade --target build/gpu
gpu-installed:
	rm -rf build/gpu
	$(HERE) $(WHEELS)/*.whl
	$(HERE) --no-build-isolation . packages/fedloom-papers
else
ON_GPU = $(RUN)/python
gpu-installed: $(INSTALLED)
endif

gpu: gpu-installed
	$(ON_GPU) benchmarks/gpu.py --device $(DEVICE) $(if $(RECORD),--out $(RECORD))

gpu-cell: gpu-installed
	$(ON_GPU) -m fedloom paper run benchmarks/gpu_cell.toml --hours 0.14 --out build/gpu-cell

# what fedloom, its tests and its installation need beside torch and numpy
wheels: WHEELS ?= wheels
wheels: $(INSTALLED)
	$(RUN)/pip download --quiet --only-binary=:all: --python-version $(PYTHON_OF_WHEELS) \
		--platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
		-c $(LOCK) -d $(WHEELS) pydantic loky tomli-w pooch click rich safetensors \
		hatchling pytest pytest-xdist hypothesis

bench: $(INSTALLED)
	for name in overhead rounds methods codecs submodels imports; do \
		$(RUN)/python benchmarks/$$name.py || exit 1; \
	done

bench-peers: $(INSTALLED)
	TORCH=$(TORCH) $(RUN)/nox -s peer peers

site: $(INSTALLED)
	TORCH=$(TORCH) $(RUN)/nox -s site

# Lines of a table come from one commit: TAG, checked out beside the working tree.
evidence:
	test -n "$(TAG)" || { echo "give a tag or commit: make evidence TAG=evidence-3"; exit 2; }
	test -d .evidence/$(TAG) || git worktree add --detach .evidence/$(TAG) $(TAG)
	$(MAKE) -C .evidence/$(TAG) .venv/installed-$(TORCH) TORCH=$(TORCH)
	.evidence/$(TAG)/.venv/bin/fedloom $$(test -d .evidence/$(TAG)/packages && echo paper || echo papers) run --hours $(HOURS) --jobs $(JOBS)

# One set of versions for every Python and machine; no hashes, as a build of PyTorch without CUDA
# that an index or a machine has of its own has another one.
COMPILE = .venv-lock/bin/uv pip compile --quiet --python-version 3.11 --no-emit-index-url \
	--no-emit-find-links --custom-compile-command "make lock" --output-file
ADAPTERS = packages/fedloom-conformance/adapters
FEWEST = --universal --fork-strategy fewest --strip-extras requirements/held.in pyproject.toml
lock:
	test -x .venv-lock/bin/uv || { $(PYTHON) -m venv .venv-lock && .venv-lock/bin/pip install --quiet uv; }
	$(COMPILE) $(LOCK) $(FEWEST) --extra dev
	$(COMPILE) requirements/lowest.txt --python-platform linux --resolution lowest-direct --strip-extras --extra dev pyproject.toml
	$(COMPILE) $(ADAPTERS)/fedloom/requirements.txt $(FEWEST) --extra privacy
	$(COMPILE) requirements/flower.txt $(FEWEST) --extra digits --extra tables --no-emit-package fedloom \
		packages/fedloom-flower/pyproject.toml requirements/flower.in
	for name in requirements/site requirements/wheel $(ADAPTERS)/pfl/requirements \
		$(ADAPTERS)/flwr/requirements $(ADAPTERS)/fluke/requirements; do \
		$(COMPILE) $$name.txt --universal $$name.in || exit 1; \
	done

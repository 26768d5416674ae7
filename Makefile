# make demo          the main job on data that ships in a dependency, about a minute after installation
# make test          formatting, lints, types and the fast tests: what CI runs
# make test-all      the same and the slow tests
# make test-brief    the same with a minute of the fast tests
# make test-pythons  make test with every Python at hand of those that pyproject.toml names
# make test-lowest   make test-brief's tests with the lowest versions that it allows, on the oldest Python
# make gpu           the contract and the rounds on CUDA, nine minutes at a time; DEVICE=cuda:1 is another one
# make test-trackers the tests of trackers and of searches by Optuna, with those libraries
# make test-flower   a federation over TLS on this machine, with its failures (half an hour)
# make soak          random kills and hostile messages without end: make soak KILLS=1000 MESSAGES=10000000
# make faults        federations and run folders under faults that seeds decide, in virtual time: make faults SEEDS=10000
# make mutants       a mutation run: how many of 500 seeded mistakes the tests notice (about an hour)
# make test-newest   make test with the newest versions of everything that pyproject.toml allows
# make wheel         build the package, check it, and run the demo from it in an environment of its own
# make conformance   Flower, pfl, fluke and fedloom beside the papers' recurrences, each in an environment of its own
# make site          the pages as a site, build/site/index.html; a link that leads nowhere is an error
# make check         formatting, lints, types, and that pages are as they were made from runs
# make format        let ruff put things in order
# make bench         the speed claims, each with its command
# make docs          the pages that are made from the code: algorithms, settings, what goes with what
# make results       the pages that are made from committed runs and records, README too, and their pictures (minutes)
# make evidence      the tables of docs/results/plan.toml, from a frozen checkout: make evidence TAG=evidence-2 HOURS=8
# make lock          requirements/lock.txt after a change of pyproject.toml; remove it first to renew all
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
NEWEST = .venv-newest
LOWEST = .venv-lowest
LOWEST_LOCK = requirements/lowest.txt
TRACKERS = .venv-trackers
FLOWER = .venv-flower
FLOWER_LOCK = requirements/flower.txt
CODE = src packages tests examples benchmarks docs requirements site conformance
PAPERS = packages/fedloom-papers

DEVICE ?= cuda
KILLS ?= 100
MESSAGES ?= 1000000
MUTANTS ?= 500
SEEDS ?= 1000

# Dozens of processes import fedloom in a test run: the first compiles it for all of them.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test test-all test-brief test-pythons test-newest test-lowest gpu test-trackers test-flower conformance soak faults mutants wheel site check format bench docs results evidence lock clean

# PyTorch first, which chooses its build; then what builds fedloom, so that nothing is fetched unlocked.
# Python compiles what is imported: pip would take 50 s for 11,000 files, of which few are used.
$(INSTALLED): pyproject.toml $(wildcard packages/*/pyproject.toml) $(LOCK) requirements/get_torch.py
	test -x $(RUN)/python || $(PYTHON) -m venv $(VENV)
	rm -f $(VENV)/installed*
	$(RUN)/python requirements/get_torch.py $(TORCH)
	$(RUN)/pip install --quiet --no-compile -c $(LOCK) hatchling editables
	$(RUN)/pip install --quiet --no-compile -c $(LOCK) --no-build-isolation -e ".[dev]" -e $(PAPERS)
	$(RUN)/pip install --quiet --no-compile --no-deps -c $(LOCK) --no-build-isolation -e packages/fedloom-flower
	touch $@

demo: $(INSTALLED)
	$(RUN)/fedloom demo

# The demo runs in a folder of its own, so that the checkout's fedloom is not found.
WHEEL = .venv-wheel
wheel:
	rm -rf dist $(WHEEL)-build build/wheel
	$(PYTHON) -m venv $(WHEEL)-build
	$(WHEEL)-build/bin/pip install --quiet -r requirements/wheel.txt
	$(WHEEL)-build/bin/python -m build --no-isolation
	$(WHEEL)-build/bin/twine check --strict dist/*
	$(PYTHON) -m venv --clear $(WHEEL)
	$(WHEEL)/bin/python requirements/get_torch.py $(TORCH)
	$(WHEEL)/bin/pip install --quiet -c $(LOCK) "$$(echo dist/*.whl)[all]"
	mkdir -p build/wheel
	cd build/wheel && ../../$(WHEEL)/bin/fedloom --version && ../../$(WHEEL)/bin/fedloom demo

SITE = .venv-site
site: docs
	test -x $(SITE)/bin/mkdocs || { $(PYTHON) -m venv --clear $(SITE) && \
		$(SITE)/bin/pip install --quiet -r requirements/site.txt; }
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/python site/build.py

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

# The bits of runs, the data, imports, and pages: what another Python or library changes first.
BRIEF = tests/golden tests/unit/test_imports.py tests/unit/test_config.py tests/unit/test_storage_wire.py \
	$(wildcard tests/unit/test_data_*.py tests/unit/test_partition*.py tests/unit/test_report_*.py) \
	tests/system/test_install.py $(wildcard $(PAPERS)/tests/test_results*.py)
test-brief: check
	$(RUN)/pytest -n 2 --dist worksteal -m "not slow" $(BRIEF)

test-pythons:
	@failed=; pythons=$$($(PYTHON) requirements/pythons.py) || exit 1; for python in $$pythons; do \
		version=$$($$python -c "import sys; print('%d.%d' % sys.version_info[:2])"); \
		echo "Python $$version: $$python"; \
		$(MAKE) test PYTHON=$$python VENV=.venv-$$version || failed="$$failed $$version"; \
	done; test -z "$$failed" || { echo "failed with Python$$failed"; exit 1; }

test-newest:
	$(PYTHON) -m venv --clear $(NEWEST)
	$(NEWEST)/bin/python requirements/get_torch.py $(TORCH) --newest
	$(NEWEST)/bin/pip install --quiet -e ".[dev]" -e $(PAPERS)
	touch $(NEWEST)/installed-$(TORCH)
	$(MAKE) test VENV=$(NEWEST)

# As old a PyTorch mostly has no build without CUDA in an index at hand: TORCH=auto then fetches the other.
test-lowest:
	$$($(PYTHON) requirements/pythons.py | head -n 1) -m venv --clear $(LOWEST)
	$(LOWEST)/bin/python requirements/get_torch.py $(TORCH) --lock $(LOWEST_LOCK)
	$(LOWEST)/bin/pip install --quiet -c $(LOCK) hatchling editables
	$(LOWEST)/bin/pip install --quiet -c $(LOWEST_LOCK) --no-build-isolation -e ".[dev]" -e $(PAPERS)
	$(LOWEST)/bin/pytest -n 2 --dist worksteal -m "not slow" -W ignore::DeprecationWarning $(BRIEF)

gpu: $(INSTALLED)
	$(RUN)/python benchmarks/gpu.py --device $(DEVICE)

# They bring their own versions of much, so that they have an environment of their own.
test-trackers:
	$(MAKE) VENV=$(TRACKERS) $(TRACKERS)/installed-$(TORCH)
	$(TRACKERS)/bin/pip install --quiet --no-build-isolation -e ".[tensorboard,wandb,mlflow,optuna]"
	$(TRACKERS)/bin/pytest tests/unit/test_trackers.py tests/unit/test_search.py

# In an environment of its own: Flower holds back rich, packaging and others.
$(FLOWER)/installed: pyproject.toml $(FLOWER_LOCK) requirements/get_torch.py
	test -x $(FLOWER)/bin/python || $(PYTHON) -m venv $(FLOWER)
	$(FLOWER)/bin/python requirements/get_torch.py $(TORCH)
	$(FLOWER)/bin/pip install --quiet -c $(FLOWER_LOCK) hatchling editables
	$(FLOWER)/bin/pip install --quiet -c $(FLOWER_LOCK) --no-build-isolation -e ".[digits]" -e packages/fedloom-flower pytest hypothesis
	touch $@

test-flower: $(FLOWER)/installed
	$(FLOWER)/bin/python -m pytest packages/fedloom-flower/tests/flower

# Each framework has an environment of its own, where the build of PyTorch comes first.
FRAMEWORKS = pfl flwr fluke
.venv-conformance-fedloom/installed: conformance/adapters/fedloom/requirements.txt pyproject.toml requirements/get_torch.py
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python requirements/get_torch.py $(TORCH) --lock $<
	$(@D)/bin/pip install --quiet --no-compile -c $< hatchling editables
	$(@D)/bin/pip install --quiet --no-compile -c $< --no-build-isolation -e ".[privacy]"
	touch $@
.venv-conformance-%/installed: conformance/adapters/%/requirements.txt requirements/get_torch.py
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	! grep -q ^torch== $< || $(@D)/bin/python requirements/get_torch.py $(TORCH) --lock $<
	$(@D)/bin/pip install --quiet --no-compile -c $< -r $(<:.txt=.in)
	touch $@

conformance: $(patsubst %,.venv-conformance-%/installed,fedloom $(FRAMEWORKS))
	mkdir -p build conformance/results && rm -f conformance/results/*.json
	for name in fedloom $(FRAMEWORKS); do \
		PYTHONPATH=conformance .venv-conformance-$$name/bin/python -m fedloom_conformance conformance/adapters/$$name/adapter.py \
			--out conformance/results/$$name.json 2> build/conformance-$$name.log \
			|| test -s conformance/results/$$name.json || exit 1; \
	done
	PYTHONPATH=conformance .venv-conformance-fedloom/bin/python -m fedloom_conformance.page --words docs/results/words/conformance.md \
		--out docs/results/conformance.md $(patsubst %,conformance/results/%.json,fedloom $(FRAMEWORKS))

soak: $(INSTALLED)
	$(RUN)/python benchmarks/soak.py --kills $(KILLS) --messages $(MESSAGES) --record soak.json

faults: $(INSTALLED)
	$(RUN)/pytest tests/system/test_crash_points.py packages/fedloom-flower/tests/test_faults.py
	$(RUN)/python benchmarks/faults.py --seeds $(SEEDS)

mutants: $(INSTALLED)
	$(RUN)/pip install --quiet -c $(LOCK) cosmic-ray==8.7.0 pytest-cov==7.1.0
	$(RUN)/python benchmarks/mutants.py --mutants $(MUTANTS)

bench: $(INSTALLED)
	$(RUN)/python benchmarks/overhead.py
	$(RUN)/python benchmarks/rounds.py
	$(RUN)/python benchmarks/default.py
	$(RUN)/python benchmarks/methods.py
	$(RUN)/python benchmarks/codecs.py
	$(RUN)/python benchmarks/submodels.py
	$(RUN)/python benchmarks/imports.py

docs: $(INSTALLED)
	$(RUN)/python docs/pages.py

results: $(INSTALLED)
	$(RUN)/python -m fedloom_papers.results

# Lines of a table come from one commit: TAG, checked out beside the working tree.
HOURS ?= 8
JOBS ?= 2
evidence:
	test -n "$(TAG)" || { echo "give a tag or commit: make evidence TAG=evidence-2"; exit 2; }
	test -d .evidence/$(TAG) || git worktree add --detach .evidence/$(TAG) $(TAG)
	$(MAKE) -C .evidence/$(TAG) .venv/installed-$(TORCH) TORCH=$(TORCH)
	.evidence/$(TAG)/.venv/bin/fedloom $$(test -d .evidence/$(TAG)/packages && echo paper || echo papers) run --hours $(HOURS) --jobs $(JOBS)

# One set of versions for every Python and machine; no hashes, as a build of PyTorch without CUDA
# that an index or a machine has of its own has another one.
lock:
	test -x .venv-lock/bin/uv || { $(PYTHON) -m venv .venv-lock && .venv-lock/bin/pip install --quiet uv; }
	.venv-lock/bin/uv pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest \
		--strip-extras --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
		--extra dev --output-file $(LOCK) pyproject.toml requirements/held.in
	.venv-lock/bin/uv pip compile --quiet --python-version 3.11 --python-platform linux --resolution lowest-direct \
		--strip-extras --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
		--extra dev --output-file $(LOWEST_LOCK) pyproject.toml
	.venv-lock/bin/uv pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest \
		--strip-extras --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
		--extra privacy --output-file conformance/adapters/fedloom/requirements.txt pyproject.toml requirements/held.in
	for name in $(FRAMEWORKS); do .venv-lock/bin/uv pip compile --quiet --universal --python-version 3.11 \
		--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
		--output-file conformance/adapters/$$name/requirements.txt conformance/adapters/$$name/requirements.in; done
	for name in site wheel; do .venv-lock/bin/uv pip compile --quiet --universal --python-version 3.11 \
		--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
		--output-file requirements/$$name.txt requirements/$$name.in; done
	.venv-lock/bin/uv pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest \
		--strip-extras --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
		--extra digits --no-emit-package fedloom --output-file $(FLOWER_LOCK) \
		pyproject.toml packages/fedloom-flower/pyproject.toml requirements/held.in requirements/flower.in

clean:
	rm -rf $(VENV) .venv-* .mypy_cache .ruff_cache .pytest_cache

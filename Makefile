# make demo      the main job on data that ships in a dependency, about a minute after installation
# make test      formatting, lints, types and the fast tests: what CI runs
# make test-all  the same and the slow tests
# make check     formatting, lints, types
# make format    let ruff put things in order
# make bench     the speed claims, each with its command
# make docs      the pages that are made from the code: algorithms, compatibility
# make results   the pages that are made from the committed runs, and their pictures
VENV ?= .venv
PYTHON ?= python3
RUN = $(VENV)/bin

.PHONY: demo test test-all check format bench docs results clean

# CPU torch first: a bare "torch" would fetch gigabytes of CUDA libraries.
$(VENV)/installed: pyproject.toml
	test -x $(RUN)/python || $(PYTHON) -m venv $(VENV)
	$(RUN)/python -c "import torch" 2>/dev/null || $(RUN)/pip install --quiet torch==2.13.0
	$(RUN)/pip install --quiet -e ".[dev]"
	touch $@

demo: $(VENV)/installed
	$(RUN)/fedloom demo

check: $(VENV)/installed
	$(RUN)/ruff format --check src tests examples benchmarks docs
	$(RUN)/ruff check src tests examples benchmarks docs
	$(RUN)/mypy

format: $(VENV)/installed
	$(RUN)/ruff format src tests examples benchmarks docs
	$(RUN)/ruff check --fix src tests examples benchmarks docs

test: check
	$(RUN)/pytest -n 2 --dist loadfile -m "not slow"

test-all: check
	$(RUN)/pytest

bench: $(VENV)/installed
	$(RUN)/python benchmarks/overhead.py
	$(RUN)/python benchmarks/workers.py
	$(RUN)/python benchmarks/vectorised.py
	$(RUN)/python benchmarks/auto.py
	$(RUN)/python benchmarks/methods.py
	$(RUN)/python benchmarks/codecs.py
	$(RUN)/python benchmarks/submodels.py
	$(RUN)/python benchmarks/imports.py

docs: $(VENV)/installed
	$(RUN)/python docs/pages.py

results: $(VENV)/installed
	$(RUN)/python docs/results/pages.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache

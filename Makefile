# Each target sets up .venv by itself when that is missing or out of date.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

unexport PYTHONDONTWRITEBYTECODE  # the tests start a hundred processes

.PHONY: quickstart test heavy fuzz slow lint format docs bench clean

quickstart: $(READY)  ## train an induction head; the page is runs/quickstart/report.html
	rm -rf runs/quickstart
	$(BIN)/toytf run quickstart --out runs/quickstart

test: $(READY)  ## the tests, on two cores
	$(BIN)/pytest -n 2 --dist worksteal

heavy: $(READY)  ## the tests of processes, packages, pages in a browser, Ray, and of all configs and documents
	$(BIN)/pytest -n 2 --dist worksteal -m 'heavy and not slow'

fuzz: $(READY)  ## 20,000 hostile configs, overrides, tables and run directories, on two cores
	$(BIN)/python -m tests.hostile

slow: $(READY)  ## the long reproductions, and a quick check of every claim
	$(BIN)/pytest -m slow

lint: $(READY)  ## format, style, types, and the direction of dependencies
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(READY)  ## write docs/metrics.md, results.md and performance.md from the code and what was measured last
	$(BIN)/python -m docs.generate

bench: $(READY)  ## speed, as ratios within one run
	$(BIN)/toytf bench

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .benchmarks

$(READY): pyproject.toml setup.py constraints.txt
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "toytf needs Python 3.11 or newer"'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

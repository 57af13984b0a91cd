# Each target makes what it needs in .venv: nothing but Python 3.10+ and a package index is assumed.
#   make test PYTHON=python3.12    uses another interpreter (after `make clean`)

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PYTEST_ARGS ?=
DEMO_ARGS ?=
BENCH_ARGS ?=

.PHONY: help demo test test-slow coverage lint bench bench-peers compat clean

help:
	@echo "make demo    capture a real time-lapse into one file while a second process watches"
	@echo "make test    run the tests, flake8 and mypy"
	@echo "make test-slow    run the long tests (MMAPDICT_SLOW_BUDGET=0.1 makes them shorter)"
	@echo "make coverage  run the tests and print what of the package they did not reach (at least 95 % of the lines)"
	@echo "make lint    flake8 and mypy alone"
	@echo "make compat  write files with one numpy, read them with another, for all pairs"
	@echo "make bench   measure, against the floors in the same run"
	@echo "make bench-peers  measure beside other libraries: half an hour (BENCH_ARGS=--quick: some minutes)"
	@echo "make clean   remove the virtual environments and caches"

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit("mmapdict needs Python 3.10 or newer, this is " + sys.version if sys.version_info < (3, 10) else 0)'
	@echo "setting up $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: setup.cfg pyproject.toml | $(VENV)/bin/python
	@$(PIP_INSTALL) -e .
	@touch $@

$(VENV)/.installed-demo: setup.cfg pyproject.toml | $(VENV)/bin/python
	@$(PIP_INSTALL) -e '.[demo]'
	@touch $@

$(VENV)/.installed-test: setup.cfg pyproject.toml | $(VENV)/bin/python
	@$(PIP_INSTALL) -e '.[test]'
	@touch $@

$(VENV)/.installed-bench: setup.cfg pyproject.toml | $(VENV)/bin/python
	@$(PIP_INSTALL) -e '.[bench]'
	@touch $@

demo: $(VENV)/.installed-demo
	$(BIN)/python -m mmapdict demo $(DEMO_ARGS)

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n auto --dist worksteal $(PYTEST_ARGS)
	@$(MAKE) --no-print-directory lint

test-slow: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n auto --dist worksteal -m slow --timeout=3600 $(PYTEST_ARGS)

# With the extra of the demo, so that the tests of its pictures run.
coverage: $(VENV)/.installed-demo $(VENV)/.installed-test
	$(BIN)/python -m coverage erase
	$(BIN)/python -m coverage run -m pytest -n auto --dist worksteal --timeout=600 $(PYTEST_ARGS)
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report
	$(BIN)/python tests/check_raises.py .coverage

lint: $(VENV)/.installed-test
	$(BIN)/python -m flake8
	$(BIN)/python -m mypy

bench: $(VENV)/.installed
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

# BENCH_ARGS="--plots docs/benchmarks --markdown docs/benchmarks.md" writes the page of the documentation.
bench-peers: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks peers $(BENCH_ARGS)

compat: | $(VENV)/bin/python
	$(BIN)/python tests/compat/run.py

clean:
	rm -rf $(VENV) .venv-compat-* .coverage* .hypothesis .mypy_cache .pytest_cache build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Everything runs from .venv, which `make install` creates; PYTHON picks the interpreter it is made with.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.installed-docs
BENCH_STAMP := $(VENV)/.installed-bench

.PHONY: install demo test test-slow test-dear test-all lint docs bench clean

install: $(STAMP)

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	@touch $@

$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	@touch $@

$(BENCH_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	@touch $@

demo: $(STAMP)
	$(BIN)/thalweg demo

# A file stays with one worker, which compiles its programs once.
PYTEST := $(BIN)/python -m pytest --numprocesses 2 --dist loadfile

test: $(STAMP)
	$(PYTEST)

test-slow: $(STAMP)
	$(PYTEST) -m slow

# What `make test` leaves out for its time alone (tests/dear_cases.txt); CI runs it.
test-dear: $(STAMP)
	$(PYTEST) -m dear

test-all: test test-slow

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(DOCS_STAMP)
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html

bench: $(BENCH_STAMP)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) docs/_build docs/gallery docs/api .pytest_cache .mypy_cache .ruff_cache .hypothesis

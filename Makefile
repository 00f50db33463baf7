# Everything runs from .venv; PYTHON picks the interpreter it is made with. Each target installs what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
VENV_STAMP := $(VENV)/.created
STAMP := $(VENV)/.installed
REPORT_STAMP := $(VENV)/.installed-report
DATA_STAMP := $(VENV)/.installed-data
DOCS_STAMP := $(VENV)/.installed-docs
BENCH_STAMP := $(VENV)/.installed-bench

.PHONY: install demo papers test test-slow test-all lint docs bench clean

install: $(STAMP)

$(VENV_STAMP):
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	@touch $@

$(STAMP): pyproject.toml | $(VENV_STAMP)
	$(BIN)/python -m pip install --quiet --editable '.[test]'  # with report and data
	@touch $@ $(REPORT_STAMP) $(DATA_STAMP)

$(REPORT_STAMP): pyproject.toml | $(VENV_STAMP)
	$(BIN)/python -m pip install --quiet --editable '.[report]'
	@touch $@

$(DATA_STAMP): $(REPORT_STAMP)
	$(BIN)/python -m pip install --quiet --editable '.[data]'
	@touch $@

$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	@touch $@

$(BENCH_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	@touch $@

demo: $(REPORT_STAMP)
	$(BIN)/thalweg demo

# Every figure and table of the papers at quick size; `make papers PAPER=dsg-figure1` runs one of them.
PAPER ?= all
papers: $(DATA_STAMP)
	$(BIN)/python -m papers $(PAPER)

# A file stays with one worker, which compiles its programs once.
PYTEST := $(BIN)/python -m pytest --numprocesses 2 --dist loadfile

test: $(STAMP)
	$(PYTEST)

test-slow: $(STAMP)
	$(PYTEST) -m slow

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

# One virtual environment, filled in two steps: what the tool needs (demo) and what its tests need.
# Each step leaves a stamp, so that it runs again only when what it installs has changed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: help venv demo test lint types soak bench census drafts reference docs clean

help:
	@echo "make demo    audit the small trained checkpoint in fixtures/"
	@echo "make test    the test suite          make lint    ruff: format and rules"
	@echo "make types   pyright, strict         make soak    long property and fuzz runs"
	@echo "make bench   measure speed           make venv    the environment for all of these"
	@echo "make docs    the site of docs/, into build/site"
	@echo "make reference  write the pages of docs/ that come from code, schemas and manifests"
	@echo "make drafts  draft manifests of model types from their executed graphs"
	@echo "make census  read the graph of every text model type of transformers into docs/census.md"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable .
	@$(BIN)/python -m compileall -q blockaudit
	@touch $@

$(VENV)/.stamp: pyproject.toml constraints.txt | $(VENV)/.base.stamp
	$(PIP) --editable '.[torch,dev]'
	@touch $@

venv: $(VENV)/.stamp

demo: $(VENV)/.base.stamp
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh fixtures/demo.sh

# A file's tests stay in one process, which builds their models once; each process takes some GB.
test: $(VENV)/.stamp
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile

lint: $(VENV)/.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.stamp
	$(BIN)/pyright

soak: $(VENV)/.stamp
	$(PIP) --editable '.[torch,dev,soak]'
	$(BIN)/python -m pytest -m soak --timeout 3600
	$(MAKE) census

# Reads the graph of every text model type of the installed transformers (about ten minutes).
census: $(VENV)/.stamp
	$(BIN)/python -m blockaudit.graph.census --output docs/census.md

# Drafts a manifest of every model type that has none made by hand, and keeps those that hold (an hour).
drafts: $(VENV)/.stamp
	$(BIN)/python -m blockaudit.zoo --table docs/drafted.md

# Pages of docs/ that come from code, schemas and manifests. A test holds them current.
reference: $(VENV)/.stamp
	$(BIN)/python -m docs.generate

docs: $(VENV)/.stamp
	$(PIP) --editable '.[docs]'
	$(BIN)/python -m sphinx -q -W --keep-going -d build/doctrees docs build/site

bench: $(VENV)/.stamp
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

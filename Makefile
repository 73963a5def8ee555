# Everything happens in .venv, which the first target to need it creates.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo reproduce-quick test test-deploy fuzz lint bench docs wheel clean

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedbridge needs Python 3.11 or newer: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,docs,export,vision,flower-sim,mlflow,parquet,privacy,tensorboard,wandb]'
	touch $@

demo: $(READY)  ## a federation on embedded data: all methods, a table, a report
	$(BIN)/fedbridge demo

reproduce-quick: $(READY)  ## the paper's tables and figures in small, as far as their data are on disk
	$(BIN)/fedbridge reproduce all --quick

test: lint  ## lint, types and the whole test suite, on all cores
	$(BIN)/python -m pytest -n auto --dist loadfile

test-deploy: $(READY)  ## the long tests: real links and nodes are killed and restarted
	$(BIN)/python -m pytest -m "deploy"

fuzz: $(READY)  ## hostile input of all kinds for some minutes; FUZZ="--seed 7 --kind arrays" for others
	cd tests && ../$(BIN)/python -m fuzz $(FUZZ)

lint: $(READY)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)  ## speed and memory, as ratios to bare passes over the same data
	$(BIN)/fedbridge bench

docs: $(READY)  ## the documents and the API reference as a site, in site/; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "open site/index.html"

wheel: $(READY)  ## the package as one file, in dist/
	$(BIN)/python -m build --wheel --no-isolation

clean:  ## remove the environment, all caches and what was built; runs/ stays
	rm -rf $(VENV) build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

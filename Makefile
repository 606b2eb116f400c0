# Everything here sets itself up; needs python3 (3.10+) with venv, and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The version everything here was tried with; any recent one will do.
TORCH ?= torch==2.13.0
PYTEST_ARGS ?=

.PHONY: dev test lint demo docs golden torch launchers clean

## dev: an environment with ringup and its development tools
dev: $(VENV)/.dev

$(VENV)/.dev: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing ringup and its development tools into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

## demo: a real two-node training run on this one machine (gets a CPU torch if there is none)
demo:
	@PYTHON=$(PYTHON) VENV=$(VENV) TORCH=$(TORCH) sh tools/demo.sh

## torch: a torch for the development environment, so that the tests that train can run
torch: dev
	@PYTHON=$(BIN)/python TORCH=$(TORCH) sh tools/get-torch.sh

## launchers: accelerate, DeepSpeed, JAX, ... so that the tests that start them can run
launchers: torch
	@sh tools/get-launchers.sh

## test: the test suite; what cannot run here is listed with its reason
test: dev
	@$(BIN)/python -m pytest -q $(PYTEST_ARGS)

## lint: style and types
lint: dev
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

## docs: the generated pages (a test fails when they are stale)
docs: dev
	@$(BIN)/python tools/docs.py

## golden: rewrite the expected output files; read the difference before you commit it
golden: dev
	@RINGUP_GOLDEN=write $(BIN)/python -m pytest -q -k golden

clean:
	rm -rf $(VENV) .venv-demo .venv-launchers build dist .pytest_cache .mypy_cache .ruff_cache

# Everything here sets itself up; needs python3 (3.10+) with venv, and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The version everything here was tried with; any recent one will do.
TORCH ?= torch==2.13.0
EXTRAS ?= dev
PYTEST_ARGS ?=
PYTEST = $(BIN)/python -m pytest -q
# A lab test that fails is tried again; reruns are listed by name (R).
LAB_ARGS = -raR --reruns 2
# Outcomes and durations; RESUME=1 goes on with a run that was cut, FOR=600 cuts one after so many seconds.
RECORD_ARGS = -p tests.record --record build/record/$@.jsonl $(if $(RESUME),--resume) $(if $(FOR),--for $(FOR))
# Hundreds of short processes are started: each would compile ringup anew.
unexport PYTHONDONTWRITEBYTECODE
# Files with such tests: to read all takes each process seconds, and so does it to find each of a list anew.
files = ONLY_FILES="$$(grep -lE 'mark\.($(1))\b' "$(CURDIR)"/tests/test_*.py)"
# Whoever is free takes the next test.
SPREAD = --dist loadscope -p tests.spread

.PHONY: dev test test-slow smoke lab mutation lint demo docs site golden torch launchers clean

## dev: an environment with ringup and its development tools
dev: $(VENV)/.dev

$(VENV)/.dev: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing ringup and its development tools into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRAS)]'
	@touch $@

$(VENV)/.mutation: $(VENV)/.dev
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[mutation]'
	@touch $@

$(VENV)/.docs: $(VENV)/.dev
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

## demo: a real two-node training run on this one machine (gets a CPU torch if there is none)
demo:
	@PYTHON=$(PYTHON) VENV=$(VENV) TORCH=$(TORCH) sh tools/demo.sh

## torch: a torch for the development environment, so that the tests that train can run
torch: dev
	@PYTHON=$(BIN)/python TORCH=$(TORCH) sh tools/get-torch.sh
	@cp tools/light-torch.pth $$(echo $(VENV)/lib/python*/site-packages)

## launchers: accelerate, DeepSpeed, JAX, ... so that the tests that start them can run
launchers: torch
	@sh tools/get-launchers.sh
	@cp tools/light-torch.pth $$(echo .venv-launchers/lib/python*/site-packages)

## test: the fast tests, in parallel, for any user; skipped tests are listed with the reason
test: dev
	@$(PYTEST) -n auto --dist worksteal -m "not lab and not slow" $(PYTEST_ARGS)

## test-slow: the tests outside the lab that start processes and wait for them (those that train need `make torch`)
test-slow: dev
	@$(call files,slow|torch|alike) $(PYTEST) -n 8 $(SPREAD) -m "slow and not lab" $(RECORD_ARGS) $(PYTEST_ARGS)

## smoke: about 30 lab tests, one for each promise; needs root
smoke: torch
	@$(call files,smoke) sh tools/lab-alone.sh $(PYTEST) -n 2 $(SPREAD) $(LAB_ARGS) -m smoke $(PYTEST_ARGS)

## lab: all tests on clusters played on this machine; needs root
lab: launchers
	@$(call files,lab) sh tools/lab-alone.sh $(PYTEST) -n 5 $(SPREAD) $(LAB_ARGS) -m lab $(RECORD_ARGS) $(PYTEST_ARGS)

## mutation: plant 200 small faults in the pure code and see whether the fast tests notice
mutation: $(VENV)/.mutation
	@$(BIN)/python tools/mutation.py $(MUTATION_ARGS)

## lint: style and types
lint: dev
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

## docs: write the JSON Schemas and the README's picture; run the commands that the pages show, rewrite stale outputs; build the site into build/site
docs: dev
	@$(BIN)/python tools/json_schemas.py
	@$(BIN)/python tools/picture.py
	@RINGUP_DOCS=write $(BIN)/python -m pytest -q tests/test_docs_console.py
	@$(MAKE) --no-print-directory site

## site: the documentation site by two builders; a dead link, a missing anchor or page fails
site: $(VENV)/.docs
	@$(BIN)/python tools/docs.py --twice

## golden: rewrite the expected output files; read the difference before you commit it
golden: dev
	@RINGUP_GOLDEN=write $(BIN)/python -m pytest -q -k golden

clean:
	rm -rf $(VENV) .venv-demo .venv-launchers build dist .pytest_cache .mypy_cache .ruff_cache

# Everything runs from a virtual environment in .venv, which each target makes for itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# the demo and the tests train small models; users of the installed tool need no torch beside it
TORCH := torch==2.13.0
RUN := demo/run
TRACES ?= ../shared/traces

.DEFAULT_GOAL := help
.PHONY: help demo test test-all check lint bench model docs golden

help:  ## what can be made
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "tracelens needs Python 3.11 or newer; run: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (the first time this takes a few minutes)"
	@$(BIN)/python -m pip install -qq '$(TORCH)'
	@$(BIN)/python -m pip install -qq -e '.[dev]'
	@touch $@

demo: $(READY)  ## record a deliberately slow training run on this machine and report it
	@mkdir -p demo
	@rm -rf $(RUN)
	$(BIN)/tracelens record --out $(RUN) -- $(BIN)/python examples/slow_loader.py
	$(BIN)/tracelens report $(RUN)
	@echo "open $(CURDIR)/$(RUN)/report.html"

test: $(READY)  ## run the tests, but for the long live ones
	$(BIN)/python -m pytest -n auto -m "not zoo"

test-all: $(READY)  ## run every test, those that record many real training runs too
	$(BIN)/python -m pytest -n auto

lint: $(READY)  ## style, types and layers, no tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/make_rules.py --check || { echo "docs/rules.md is stale: make docs" >&2; exit 1; }

check: lint test  ## lint and test: what a change must pass

bench: $(READY)  ## run every benchmark; each prints a table (TRACES=FOLDER for labelled traces)
	@for script in benchmarks/*.py; do \
	  echo "== $$script"; \
	  case $$script in \
	    benchmarks/accuracy.py) $(BIN)/python $$script $(wildcard $(TRACES)) --simulated 40 || exit 1;; \
	    *) $(BIN)/python $$script || exit 1;; \
	  esac; \
	done

model: $(READY)  ## fit the reference model again on simulated runs and print how good it is
	$(BIN)/python scripts/fit_model.py

docs: $(READY)  ## write docs/rules.md from the rule files
	$(BIN)/python docs/make_rules.py

golden: $(READY)  ## rewrite the golden results of the tests; read the difference before committing it
	$(BIN)/python -m tests.data.golden

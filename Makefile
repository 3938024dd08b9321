# Needs python3 (>= 3.10, or PYTHON=...) and make. Everything is installed into .venv; stamp files there make the second call quick.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help demo test lint bench clean

help:  ## show the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort | expand -t 10

demo: $(VENV)/.demo  ## run the example, without torch
	$(BIN)/python examples/demo.py

test: lint $(VENV)/.system  ## format, lint, types, tests
	$(BIN)/python -m pytest -n 2

lint: $(VENV)/.test  ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy src

bench: $(VENV)/.test  ## run the benchmarks
	$(BIN)/python -m benchmarks

clean:  ## remove .venv, caches and builds; results in out/ stay
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "safebo needs Python 3.10 or newer: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml | $(BIN)/python
	$(PIP) -e '.[demo]'
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -c constraints.txt torch
	$(PIP) -c constraints.txt -e '.[test,dev,rl]'
	@touch $@

# PostgreSQL, strace and Chromium for the tests of durable runs and of the live page. Without them these tests are skipped and say
# so; with CI set they fail.
SYSTEM := postgresql strace chromium curl
$(VENV)/.system: | $(BIN)/python
	@if ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 && command -v strace >/dev/null && command -v chromium >/dev/null && command -v curl >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $(SYSTEM) >/dev/null; \
	else echo "For all tests install $(SYSTEM), for example with apt-get."; fi
	@touch $@

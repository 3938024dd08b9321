# Needs python3 (>= 3.10, or PYTHON=...) and make. Everything is installed into .venv; stamp files there make the second call quick.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help demo test lint bench chromium clean

help:  ## show the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort | expand -t 10

demo: $(VENV)/.demo  ## run the example, without torch
	$(BIN)/python examples/demo.py

test: lint chromium  ## format, lint, types, tests
	$(BIN)/python -m pytest -n 2

lint: $(VENV)/.test  ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy src

chromium: $(VENV)/.chromium  ## the browser that the live page is tested with

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

# The tests of the live page are left out where there is no Chromium, except on CI, where they fail.
$(VENV)/.chromium: | $(BIN)/python
	@command -v chromium chromium-browser google-chrome >/dev/null \
	|| { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } \
	|| echo "Chromium is missing: install it to test the live page (Debian: apt-get install chromium)."
	@if command -v chromium chromium-browser google-chrome >/dev/null; then touch $@; fi

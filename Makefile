# Each target makes the virtual environment that it needs, and uses it again the next time.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test test-gpu soak check types style layers pages docs bench bench-strategy clean

help:  ## show this list
	@awk -F ':.*  ## ' '/^[a-z-]+:.*  ## /{printf "  make %-14s %s\n", $$1, $$2}' Makefile
	@echo "  PYTHON=$(PYTHON) makes the environment: 3.11 or newer"

demo: $(READY)  ## decode with the bundled model, with and without speculation
	$(BIN)/python -m speculate.cli.demo

test: $(READY)  ## run the tests, without the long ones
	$(BIN)/python -m pytest -q -n auto -m "not soak and not types"

test-gpu: $(READY)  ## run the tests that need a GPU, in full float32 and as MLX multiplies by default
	MLX_ENABLE_TF32=0 $(BIN)/python -m pytest -q tests/gpu
	$(BIN)/python -m pytest -q tests/gpu

soak: $(READY)  ## run the long randomised tests
	$(BIN)/python -m pytest -m soak

check: types style layers pages  ## types, style, layers, the code in the docs, and the docs themselves

types: $(READY)
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/typing

style: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

layers: $(READY)
	$(BIN)/lint-imports --no-cache --no-logo

pages: $(READY)
	$(BIN)/python tools/typecheck_docs.py
	$(BIN)/zensical build --strict --clean

docs: $(READY)  ## build the documentation into site/
	$(BIN)/zensical build --clean

bench: $(READY)  ## run the benchmarks of docs/performance.md
	$(BIN)/python -m benchmarks

bench-strategy: $(READY)  ## time over the best fixed choice, on recorded traces and on a grown model
	$(BIN)/python -m benchmarks.strategy --simulate
	$(BIN)/python -m benchmarks.strategy

clean:  ## remove everything that these targets made
	rm -rf $(VENV) build dist site .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A Debian without python3-venv cannot put pip into a new environment; its own pip can.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "speculate needs Python 3.11 or newer, and '$(PYTHON)' is: $$($(PYTHON) --version 2>&1)"; \
	  echo "Name another one: make PYTHON=python3.12 ..."; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || { \
	  $(PYTHON) -m venv --without-pip $(VENV) && \
	  $(PYTHON) -m pip --python $(BIN)/python install -q -c constraints.txt pip; }
	$(BIN)/python -m pip install -q --upgrade -c constraints.txt pip
	$(BIN)/python -m pip install -q -c constraints.txt --group dev -e '.[cpu,testing,docs,plots]'
	@touch $@

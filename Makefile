# Every verb does its own set-up. `make` alone prints this list.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3.11
LOOPS ?= 500
KILLS ?= 40
FUZZ ?= 1000000
BIN := .venv/bin
PATH_FAULTS := tests/faults/test_pipelines.py
TEST_ARGS ?=

help: ## print this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/ready ## make .venv with everything pinned and hashed

.venv/ready: requirements.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "Tailrace needs Python 3.11 or newer: make PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

demo: setup ## embedded Postgres and NATS with live traffic, streamed and shown
	$(BIN)/tailrace demo $(DEMO_ARGS)

test: setup ## the whole test suite, servers included
	$(BIN)/python -m pytest -n 2 --dist loadfile $(TEST_ARGS)

check: setup ## format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## rewrite the code in house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup ## all benchmarks, with their references, one after another
	$(BIN)/python -m benchmarks all

soak: setup ## long random runs: make soak LOOPS=500 KILLS=40 FUZZ=1000000
	TAILRACE_LOOPS=$(LOOPS) $(BIN)/python -m pytest -m soak -s --timeout=0 tests/faults --ignore=$(PATH_FAULTS)
	TAILRACE_LOOPS=$(KILLS) $(BIN)/python -m pytest -m soak -s --timeout=0 $(PATH_FAULTS)
	TAILRACE_FUZZ=$(FUZZ) $(BIN)/python -m pytest -s tests/fuzz

docs: setup ## write the reference pages that come from code
	$(BIN)/python -m docs.generate

lock: setup ## resolve and pin the dependencies again
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  --no-emit-index-url --no-emit-find-links --group dev --extra embedded pyproject.toml -o requirements.lock

clean: ## remove .venv and caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist

.PHONY: help setup demo test check format bench soak docs lock clean

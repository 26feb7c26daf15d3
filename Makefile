# Every verb does its own set-up. `make` alone prints this list.
.DEFAULT_GOAL := help
SHELL := /bin/bash
LOOPS ?= 500
FUZZ ?= 1000000
BIN := .venv/bin
# Faults of one process, without Spark; the others are of the whole path.
PART_FAULTS := $(addprefix tests/faults/test_,kill.py broker.py failover.py)
TAKEOVERS := tests/integration/replica/test_random_takeovers.py
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
# Most tests wait for a server now and then, so three keep two cores busy. Long ones run whole systems.
WORKERS = 3
test-long: WORKERS = 2
SOAK = TAILRACE_LOOPS=$(LOOPS) $(BIN)/python -m pytest -m soak -s --timeout=0
TEST_ARGS ?=
# Disks of small machines stall for seconds, which tests of timeouts notice: tests use memory if
# there is enough. Benchmarks and long random runs use the disk.
SHM_KB = $(shell df --output=avail /dev/shm 2>/dev/null | tail -1)
test test-long: export TMPDIR ?= $(shell [ "0$(strip $(SHM_KB))" -gt 8000000 ] && echo /dev/shm || echo /tmp)
# The tests start hundreds of processes; compiling the package for each costs minutes.
unexport PYTHONDONTWRITEBYTECODE

help: ## print this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/ready ## create .venv with everything pinned and hashed

.venv/ready: requirements.lock pyproject.toml
	@python=$$(PYTHON="$(PYTHON)" .ci/requirements) && echo "Python: $$python" && "$$python" -m venv .venv
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

# Spark's JVM, which the tests start a hundred times, starts twice as fast with it.
.venv/archive: .venv/ready
	$(BIN)/python -m tailrace.pipeline.archive
	@touch $@

# Building the tests' server of Pub/Sub for the first time may take longer than a test may.
.venv/pubsub: .venv/ready $(wildcard tests/pubsub_server/*)
	$(BIN)/python -m tests.pubsub
	@touch $@

demo: setup ## embedded Postgres and NATS with live traffic, streamed and shown
	$(BIN)/tailrace demo $(DEMO_ARGS)

quick: setup ## unit tests only, without Spark: one to two minutes
	$(PYTEST) -m "not (spark or long or soak)" tests/unit $(TEST_ARGS)

test: .venv/archive .venv/pubsub ## all tests but the long ones, servers included
	$(PYTEST) -m "not (long or soak)" --durations=20 $(TEST_ARGS)

test-long: .venv/archive .venv/pubsub ## the long tests, and random tests with twice the examples
	$(PYTEST) -m "(long or hypothesis or fuzz) and not soak" --hypothesis-profile=long --durations=20 $(TEST_ARGS)

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

soak: soak-parts soak-path soak-fuzz ## random runs of hours: make -j2 soak LOOPS=500 FUZZ=1000000

soak-parts: setup
	$(SOAK) $(PART_FAULTS)

soak-path: setup
	$(SOAK) tests/faults $(TAKEOVERS) $(addprefix --ignore=,$(PART_FAULTS))

soak-fuzz: setup
	TAILRACE_FUZZ=$(FUZZ) $(BIN)/python -m pytest -m "not soak" -s tests/fuzz

docs: setup ## write the reference pages that come from code
	$(BIN)/python -m docs.generate

site: setup ## the documentation as HTML, in build/site
	$(BIN)/python -m docs.site

lock: setup ## resolve and pin the dependencies again
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  --no-emit-index-url --no-emit-find-links --group dev --extra embedded pyproject.toml -o requirements.lock

clean: ## remove .venv and caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist

.PHONY: help setup demo quick test test-long check format bench soak soak-parts soak-path soak-fuzz docs site lock clean

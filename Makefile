# What people and CI run. Every target sets up what it needs: a virtual environment with the locked dependencies, and
# Java 17 or 21 for Spark.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup java demo test faults check format bench lock clean

BIN   := .venv/bin
READY := .venv/.ready

# Arguments for the command behind demo, bench and test, e.g. make demo ARGS="--kill" or ARGS=join
ARGS  ?=

# Two processes (tests/conftest.py). One that dies is not replaced: pytest-xdist can wait for ever after that (its #1378).
PYTEST = $(BIN)/python -m pytest -n 2 --max-worker-restart=0

# Runs in front of a command that starts Spark: its JVM, and the Python of its workers.
SPARK = JAVA_HOME="$$(scripts/java.sh)"; export JAVA_HOME PYSPARK_PYTHON="$(CURDIR)/$(BIN)/python";

help: ## show this list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) java ## make .venv, install the locked dependencies, find or install Java

$(READY): requirements.lock pyproject.toml scripts/setup.sh
	@PYTHON="$(PYTHON)" scripts/setup.sh
	@touch $@

java:
	@scripts/java.sh >/dev/null

demo: setup ## run a shop from the till to the warehouse, and prove that no order was lost or doubled
	@$(SPARK) $(BIN)/millstream demo $(ARGS)

test: check java ## check, then all tests but the slow ones
	@$(SPARK) $(PYTEST) -m "not slow" $(ARGS)

faults: setup ## everything that is killed, cut, damaged or filled up, the slow ones too
	@$(SPARK) $(PYTEST) tests/faults tests/spark/test_flow.py tests/spark/test_flow_killed.py \
		tests/spark/test_flow_faults.py tests/spark/test_demo.py \
		tests/docs/test_examples.py::test_from_nothing_to_a_fresh_table $(ARGS)

check: $(READY) ## formatter, linter, type checker and import layers
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(READY) ## format the code and apply safe fixes
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

bench: setup ## measure: operators, Spark, size of the master, memory, build
	@$(SPARK) $(BIN)/millstream bench $(ARGS)

lock: ## resolve the dependencies of pyproject.toml anew (needs uv)
	uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links --no-header --no-annotate --quiet --upgrade -o requirements.lock

clean: ## remove .venv, caches and build results
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache \
		spark-warehouse metastore_db derby.log artifacts src/*.egg-info
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

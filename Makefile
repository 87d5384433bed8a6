# Every target sets up what it needs; a machine with Python 3.11 to 3.13, git and make is enough.

PYTHON ?= $(firstword $(foreach name,python3 python3.13 python3.12 python3.11 python,$(if $(shell $(name) -c $(SUPPORTED) 2>/dev/null && echo yes),$(name))) python3)
PYTEST_FLAGS ?= -n 2 --dist loadfile
TRAIN_FLAGS ?=

SUPPORTED := 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 14))'
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
RUN_DIR = runs/cartpole-$(shell date +%Y%m%d-%H%M%S)

.DEFAULT_GOAL := help
.PHONY: help train test test-all test-chaos check format proto lock clean

help:  ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

train: $(STAMP)  ## train CartPole and evaluate it (TRAIN_FLAGS="--seed 1")
	@set -e; run_dir=$(RUN_DIR); \
	$(BIN)/zerocopy-seed train configs/vtrace_cartpole.toml --run-dir $$run_dir $(TRAIN_FLAGS); \
	$(BIN)/zerocopy-seed evaluate $$run_dir

test: $(STAMP)  ## run the tests, but for the slow ones
	$(BIN)/python -m pytest -q -m "not slow" $(PYTEST_FLAGS)

test-all: $(STAMP)  ## run all tests
	$(BIN)/python -m pytest -q $(PYTEST_FLAGS)

test-chaos: $(STAMP)  ## kill, freeze and starve real processes, half an hour of it
	$(BIN)/python -m pytest -q -s tests/chaos

check: $(STAMP)  ## lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --project pyproject.toml

format: $(STAMP)  ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: $(STAMP)  ## generate zerocopy_seed/remote/bridge_pb2*.py* from bridge.proto
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. zerocopy_seed/remote/bridge.proto

lock: $(STAMP)  ## resolve requirements.lock anew
	$(BIN)/python -m pip install --quiet uv
	UV_CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/uv pip compile pyproject.toml --extra learner --extra dev \
	  --universal --python-version 3.11 --generate-hashes --no-emit-index-url --upgrade --quiet -o requirements.lock

clean:  ## remove the virtual environment and caches; keeps runs/
	rm -rf $(VENV) .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp comes last, so an interrupted set-up starts over.
$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c $(SUPPORTED) 2>/dev/null || { echo "make: Python 3.11, 3.12 or 3.13 (with venv) is needed," \
	  "found $$($(PYTHON) --version 2>/dev/null || echo no $(PYTHON)); name one with PYTHON=/path/to/python" >&2; exit 1; }
	@echo "setting up $(VENV) (1.5 GB, once) ..."
	@rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

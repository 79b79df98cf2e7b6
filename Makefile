# make: everything that a change must pass. make run: the daemon on the shipped config.yaml. make test: all tests.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: all bench run test unit lint types format clean

all: format lint types unit

run: .venv/ready
	$(BIN)/heartbeatd run

# Many tests wait for a process or a socket, so there are more workers than cores.
test: .venv/ready
	$(BIN)/python -m pytest -n 4 --dist worksteal

unit: .venv/ready
	$(BIN)/python -m pytest -n 4 --dist worksteal -m "not process"

lint: .venv/ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check

format: .venv/ready
	$(BIN)/ruff format

types: .venv/ready
	$(BIN)/mypy

.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache dist

bench: .venv/ready
	$(BIN)/python -m bench.config
	$(BIN)/python -m bench.commands
	$(BIN)/python -m bench.dispatch
	$(BIN)/python -m bench.month
	$(BIN)/python -m bench.kills 20
	$(BIN)/python -m bench.jumps
	$(BIN)/python -m bench.beats 1000

# make: everything that a change must pass. make run: the daemon on the shipped config.yaml. make test: all tests.
# make man: the man page, after a change of a command or an option.

PYTHON ?= python3
BIN := .venv/bin

# If this variable is set, each process of a test run compiles the code and rewrites the asserts of all tests again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: all simulate bench cluster-cutoffs cluster-kills faults quiet-month run test test-postgresql unit lint types format man clean

all: format lint types unit

# Only what the daemon needs. The tools of developers are in .venv/ready.
run: .venv/runtime
	@echo 'The daemon starts with config.yaml, and needs no key: the agent host watches this machine. In another shell:'
	@echo '  $(BIN)/heartbeatd status            shows what is due and what ran'
	@echo '  $(BIN)/heartbeatd wake host --wait  runs the agent now. Its messages are the lines "said" in the log below'
	@echo '  $(BIN)/heartbeatd logs --follow     shows what happens'
	@echo '  $(BIN)/heartbeatd init DIR          creates a config for your own agents'
	@echo '  $(BIN)/heartbeatd docs getting-started'
	@echo 'Ctrl-C stops the daemon.'
	$(BIN)/heartbeatd run

TESTS := $(sort $(dir $(wildcard tests/*/test_*.py tests/extras/*/test_*.py)))
# Most tests in these folders wait for a process or a socket, so they have two workers per core. All tests of a file run on one worker, which
# starts the servers of the file once.
WAITING := $(foreach folder,channels daemon docs extras/cluster extras/mcp extras/traces monitoring page runners web,tests/$(folder) tests/$(folder)/%)
CORES := $(shell nproc)
waiting-tests = $(filter $(WAITING),$(TESTS:/=))
other-tests = $(filter-out $(WAITING),$(TESTS:/=))

# All tests, or some: make test TESTS="tests/store tests/daemon/test_lanes.py". Tests that wait run beside those that compute, which have a
# lower priority and use the time that is left. The output of those that wait comes last. Without `env`, the shell would let them ignore Ctrl-C.
test: .venv/ready
	$(if $(and $(waiting-tests),$(other-tests)),output=$$(mktemp) && trap 'rm -f "$$output"' EXIT && trap 'wait; exit 1' INT && { \
	  env --default-signal=INT $(wait-for-tests) >"$$output" 2>&1 & trap 'kill -INT $$!; wait; exit 1' TERM; failed=0; nice -n 5 $(compute-tests) || failed=1; \
	  wait $$! || failed=1; cat "$$output"; exit $$failed; },$(if $(waiting-tests),$(wait-for-tests),$(compute-tests)))

wait-for-tests = $(BIN)/python -m pytest -n $$((2 * $(CORES))) --dist loadfile $(waiting-tests)
compute-tests = $(BIN)/python -m pytest -n $(CORES) --dist worksteal $(other-tests)

unit: .venv/ready
	$(BIN)/python -m pytest -n $(CORES) --dist worksteal -m "not process"

# The story tests and those of crashes once more, in PostgreSQL: each with the first of its parameter sets, and without the few that
# take long. The summary names the tests that are left out. With ALL=1, only tests of the SQLite file itself are left out, and
# tests/stories/test_expected_runs.py is run as well. CI does not use ALL=1: it takes about twice as long.
test-postgresql: .venv/ready
	HEARTBEATD_TEST_STORE=postgresql HEARTBEATD_TEST_ALL=$(ALL) $(BIN)/python -m pytest -n 3 --dist worksteal \
	  tests/*/test_story_*.py tests/extras/*/test_story_*.py tests/stories/test_atomicity.py $(if $(ALL),tests/stories/test_expected_runs.py)

# Runs the simulations of `make test` with more steps and new seeds, and three simulations that `make test` leaves out. Takes about half an
# hour. To repeat a failed test, use the printed seed: make simulate SEED=1793 TESTS=tests/daemon
# A million random messages, and then 100,000 over PostgreSQL. The name of a failed test ends with its seed:
# make simulate TESTS=tests/stories/test_story_random_messages.py && HEARTBEATD_TEST_STORE=postgresql make simulate TESTS=...
SEED := $(or $(SEED),$(shell date +%s))
simulate: .venv/ready
	@echo 'SEED=$(SEED)'
	HEARTBEATD_TEST_SIMULATE=$(SEED) $(BIN)/python -m pytest -n 2 --dist worksteal --timeout 3600 --hypothesis-seed=$(SEED) \
	  -m "simulation or long_simulation" $(TESTS)

lint: .venv/ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check

format: .venv/ready
	$(BIN)/ruff format

types: .venv/ready
	$(BIN)/mypy

man: .venv/ready
	$(BIN)/python packaging/manual.py > packaging/heartbeatd.1

.venv/runtime: pyproject.toml
	@echo 'Installing heartbeatd into .venv. This takes about 20 seconds.'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --editable .
	@touch $@

.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --editable '.[dev]'
	touch .venv/runtime $@

# Every fault of the alert rules, in real daemons under a real Prometheus. Takes two minutes.
faults: .venv/ready
	$(BIN)/python -m bench.faults

# The alert rules over 30 days of normal operation. Takes some minutes.
quiet-month: .venv/ready
	$(BIN)/python -m bench.quiet_month

# Kills the scheduler, the workers and the database of a cluster for ten minutes, and compares what was recorded.
cluster-kills: .venv/ready
	$(BIN)/python -m bench.cluster_kills 600

# Cuts the leader of two schedulers off from PostgreSQL 200 times, in network namespaces, and compares what was recorded. As root.
cluster-cutoffs: .venv/ready
	$(BIN)/python -m bench.cluster_cutoffs 200

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache dist

bench: .venv/ready
	$(BIN)/python -m bench.config
	$(BIN)/python -m bench.starts
	$(BIN)/python -m bench.commands
	$(BIN)/python -m bench.dispatch
	$(BIN)/python -m bench.month
	$(BIN)/python -m bench.kills 20
	$(BIN)/python -m bench.jumps
	$(BIN)/python -m bench.scrapes
	$(BIN)/python -m bench.pages
	$(BIN)/python -m bench.page
	$(BIN)/python -m bench.beats 1000

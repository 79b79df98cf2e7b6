# make: everything that a change must pass. make run: the daemon on the shipped config.yaml. make test: all tests.
# make man: the man page, after a change of a command or an option. make reference: docs/reference.md, after a change of a config key.

PYTHON ?= python3
BIN := .venv/bin

# If this variable is set, each process of a test run compiles the code and rewrites the asserts of all tests again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: all simulate mutants bench cluster-cutoffs cluster-kills faults quiet-month run test test-postgresql unit lint types format man reference clean

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

CORES := $(shell nproc)

# All tests, or some: make test TESTS="tests/store tests/daemon/test_lanes.py". Many tests wait for a process or a socket while others need
# the CPU, so there are two workers per core. All tests of a file run on one worker, which starts the servers of the file once.
# tests/conftest.py puts the longest files first.
test: .venv/ready
	$(BIN)/python -m pytest -n $$((2 * $(CORES))) --dist loadfile --no-loadscope-reorder $(TESTS)

unit: .venv/ready
	$(BIN)/python -m pytest -n $(CORES) --dist worksteal -m "not process"

# Stories and crashes once more, in PostgreSQL: each test with the first of its parameter sets, and without the few that take long. The
# summary names the tests that are left out. The rules do not depend on the database, but the statements do: these files together send
# the statements of all stories, most of them from two files. A story whose statements none of them sends is added here.
# With ALL=1, all stories are run and tests/stories/test_expected_runs.py, and only tests of the SQLite file itself are left out. CI does
# not use ALL=1: it takes several times as long.
IN_POSTGRESQL := $(foreach story,answers async_results breakers budgets cancel checklists_and_prechecks clock_changes costs daemon_problems \
  deliver_last internal_errors job_after_job jobs_and_problems lanes models monthly_budgets mutes one_time_jobs outbox \
  paused_entries quiet_nights random_messages reminders simulator wakes,tests/stories/test_story_$(story).py) \
  tests/extras/chat/test_story_buttons.py tests/extras/chat/test_story_questions.py tests/extras/chat/test_story_replies.py tests/extras/cluster/test_story_workers.py
ALL_IN_POSTGRESQL := tests/*/test_story_*.py tests/extras/*/test_story_*.py tests/stories/test_expected_runs.py
test-postgresql: .venv/ready
	HEARTBEATD_TEST_STORE=postgresql HEARTBEATD_TEST_ALL=$(ALL) $(BIN)/python -m pytest -n 3 --dist worksteal \
	  $(if $(ALL),$(ALL_IN_POSTGRESQL),$(IN_POSTGRESQL)) tests/stories/test_atomicity.py

# Runs the simulations of `make test` with more steps and new seeds, and three simulations that `make test` leaves out. Takes about half an
# hour. To repeat a failed test, use the printed seed: make simulate SEED=1793 TESTS=tests/daemon
# A million random messages, and then 100,000 over PostgreSQL. The name of a failed test ends with its seed:
# make simulate TESTS=tests/stories/test_story_random_messages.py && HEARTBEATD_TEST_STORE=postgresql make simulate TESTS=...
# With STEPS, only one seed of the simulator is played: make simulate SEED=7 STEPS=200
SEED := $(or $(SEED),$(shell date +%s))
SIMULATED := $(if $(STEPS),'tests/stories/test_story_simulator.py::test_every_promise_holds_after_any_steps[$(SEED)]',$(TESTS))
simulate: .venv/ready
	@echo 'SEED=$(SEED)'
	HEARTBEATD_TEST_SIMULATE=$(SEED) HEARTBEATD_TEST_STEPS=$(STEPS) $(BIN)/python -m pytest -n 2 --dist worksteal --timeout 3600 \
	  --hypothesis-seed=$(SEED) -m "simulation or long_simulation" $(SIMULATED)

# Plants small slips, one at a time, and lists those that no fast test notices: make mutants PACKAGE=scheduler/engine SEED=1 SAMPLE=40
# With CHANGED=1, in the lines that differ from origin/main, or else in those of the last commit, in less than five minutes.
mutants: .venv/ready
	$(BIN)/python -m bench.mutants --sample $(or $(SAMPLE),40) --seed $(SEED) $(if $(CHANGED),--changed --seconds 240,$(PACKAGE))

lint: .venv/ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check

format: .venv/ready
	$(BIN)/ruff format

types: .venv/ready
	$(BIN)/mypy

reference: .venv/ready
	$(BIN)/python packaging/reference.py > docs/reference.md

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
	$(BIN)/python -m bench.money --days 3
	$(BIN)/python -m bench.kills 20
	$(BIN)/python -m bench.jumps
	$(BIN)/python -m bench.scrapes
	$(BIN)/python -m bench.pages
	$(BIN)/python -m bench.page
	$(BIN)/python -m bench.beats 1000

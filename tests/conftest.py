"""Configures all tests: time zone data from the tzdata package, fixtures, and a summary of missing programs at the end."""

from __future__ import annotations

import inspect
import os
import re
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import required_programs
from hypothesis import settings
from servers.discord import Discord
from servers.postgres import EmptyDatabases, PostgresServer
from servers.telegram import Telegram
from world import MakeWorld, World

STORE_VARIABLE = "HEARTBEATD_TEST_STORE"

settings.register_profile("steady", deadline=None)  # the duration of an example depends on the load of the machine
settings.load_profile("steady")

# A shell starts `make test &` with SIGINT ignored. Daemons that tests interrupt would inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def no_open_files() -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """`with no_open_files():` prevents this process from opening more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    @contextmanager
    def begin() -> Iterator[None]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    yield begin


@pytest.fixture
def make_world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[MakeWorld]:
    """`make_world(yaml, **fields)` returns a World. Its database is closed after the test.

    With the environment variable HEARTBEATD_TEST_STORE=postgresql the world is in PostgreSQL.
    """
    worlds: list[World] = []
    databases = request.getfixturevalue("empty_databases") if os.environ.get(STORE_VARIABLE) == "postgresql" else None

    def begin(yaml: str, **more: Any) -> World:
        server = {"server": databases.borrow(tmp_path)} if databases else {}
        worlds.append(World(tmp_path, yaml, **server, **more))
        return worlds[-1]

    yield begin
    for world in worlds:
        world.store.close()
    if databases:
        databases.take_back()


# What only a database in a file has: its path, its other connections, its trace of statements, its query plans.
OF_A_FILE = re.compile(
    r"world\.state\b|[sS]crape|metrics|_downgrade|type\(world\.store\)|without_a_config|first_release|sqlite3\.|set_trace_callback"
    r"|lock_database|iterdump|query plan|\bseries\(|Store\.open|FailingCommit"
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In PostgreSQL, leave out tests about the file, and run each test with the first of its parameter sets."""
    if os.environ.get(STORE_VARIABLE) != "postgresql":
        return
    seen: set[str] = set()
    kept = []
    for item in items:
        function = getattr(item, "function", None)
        name = item.nodeid.partition("[")[0]
        if function is not None and name not in seen and not OF_A_FILE.search(inspect.getsource(function)):
            seen.add(name)
            kept.append(item)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


@pytest.fixture(scope="session")
def empty_databases(postgres: PostgresServer) -> EmptyDatabases:
    """Databases with all tables and without rows, for one test after the other."""
    return EmptyDatabases(postgres)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A running PostgreSQL server for all tests of this process; `postgres.database()` creates an empty database."""
    required_programs.need("initdb")
    server = PostgresServer()
    try:
        yield server.start()
    finally:
        server.close()


@pytest.fixture
def phone() -> Iterator[Telegram]:
    """A stand-in for the API of Telegram."""
    with Telegram() as server:
        yield server


@pytest.fixture
def guild() -> Iterator[Discord]:
    """A stand-in for the webhooks of Discord."""
    with Discord() as server:
        yield server


@pytest.hookimpl(wrapper=True, tryfirst=True)  # around the reporter's own, so that it comes last
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Print which tests were skipped because a program is missing, and where to get it."""
    yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter and not required_programs.is_worker():
        skipped = [(report.nodeid, report.longrepr[2]) for report in reporter.stats.get("skipped", ())]  # path, line, reason
        for line in required_programs.summarize_skipped(skipped):
            reporter.write_line(line)

"""The fixtures that tests of several folders use."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import required_programs
from daemon_process import Begin, daemons_in
from hypothesis import settings
from servers.discord import Discord
from servers.postgres import EmptyDatabases, PostgresServer
from servers.telegram import Telegram
from world import ON_SERVER, DatabaseOf, MakeWorld, World, open_store, utc

from scheduler.store.locations import open_for_writing
from scheduler.store.transaction import Transaction

settings.register_profile("steady", deadline=None)  # the duration of an example depends on the load of the machine
settings.load_profile("steady")


@pytest.fixture(autouse=True)
def same_environment() -> Iterator[None]:
    """Fails a test that leaves a variable of heartbeatd set: tests that run later in the same process would read it."""
    before = own_variables()
    yield
    assert own_variables() == before


def own_variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("HEARTBEATD_")}


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
def database_of(request: pytest.FixtureRequest) -> Iterator[DatabaseOf]:
    """`database_of(folder)` is the field `server` of the worlds in a folder: None, so that their database is a file there.

    With HEARTBEATD_TEST_STORE=postgresql it is the address of a PostgreSQL database, which is empty for the first of them.
    """
    if not ON_SERVER:
        yield lambda _: None
        return
    databases = request.getfixturevalue("empty_databases")
    yield databases.borrow
    databases.take_back()


@pytest.fixture
def make_world(tmp_path: Path, database_of: DatabaseOf) -> Iterator[MakeWorld]:
    """`make_world(yaml, **fields)` returns a World, in the folder of the test. Its database is closed after the test."""
    worlds: list[World] = []

    def begin(yaml: str, folder: Path = tmp_path, **more: Any) -> World:
        worlds.append(World(folder, yaml, **{"server": database_of(folder)} | more))
        return worlds[-1]

    yield begin
    for world in worlds:
        world.store.close()


@pytest.fixture
def tx(tmp_path: Path, database_of: DatabaseOf) -> Iterator[Transaction]:
    """A transaction in an empty database, at 08:00. A test may change its time."""
    server = database_of(tmp_path)
    store = open_for_writing(server) if server else open_store(tmp_path / "heartbeatd.db")
    with closing(store), store.transaction() as db:
        yield Transaction(db, utc("2026-03-02 08:00"), "boot")


@pytest.fixture(scope="session")
def empty_databases(postgres: PostgresServer) -> EmptyDatabases:
    """Databases with all tables and without rows, for one test after the other."""
    return EmptyDatabases(postgres)


@pytest.fixture
def address(empty_databases: EmptyDatabases, tmp_path: Path) -> Iterator[str]:
    """The address of a database that is empty, and in which no daemon leads."""
    yield empty_databases.borrow(tmp_path)
    empty_databases.take_back()


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
def daemon(tmp_path: Path) -> Iterator[Begin]:
    """`daemon(yaml)` starts a real daemon in the folder of the test."""
    with daemons_in(tmp_path) as start:
        yield start


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

"""Configures all tests: time zone data from the tzdata package, fixtures, and a summary of missing programs at the end."""

from __future__ import annotations

import os
import resource
import signal
import tomllib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
import required_programs
import simulation
from checkout import HOME
from daemon_process import Begin, daemons_in
from hypothesis import settings
from servers.discord import Discord
from servers.postgres import EmptyDatabases, PostgresServer
from servers.telegram import Telegram
from world import ON_SERVER, DatabaseOf, MakeWorld, World

settings.register_profile("steady", deadline=None)  # the duration of an example depends on the load of the machine
settings.load_profile("steady")

# A shell starts `make test &` with SIGINT ignored. Daemons that tests interrupt would inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure() -> None:
    """Stop at once if the entry points in pyproject.toml are not those that are installed: commands would be missing."""
    groups = tomllib.loads((HOME / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]
    written = {(group, name, place) for group, found in groups.items() for name, place in found.items()}
    installed = {(each.group, each.name, each.value) for each in distribution("heartbeatd").entry_points}
    if written != {each for each in installed if each[0] in groups}:
        pytest.exit("the entry points in pyproject.toml have changed; run `make .venv/ready`", 2)


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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run tests with the mark `long_simulation` only in `make simulate`, and those with `ci` only with HEARTBEATD_TEST_CI=1.

    In PostgreSQL, run only tests that have a database, each with the first of its parameter sets; in `make simulate` with all.
    Tests with the marks `sqlite_file` and `long_on_server` are skipped, and the summary names their reasons. With
    HEARTBEATD_TEST_ALL=1 tests with the mark `long_on_server` are run, and all parameter sets are run.
    """
    if not simulation.IS_LONG:
        _deselect(config, items, lambda item: item.get_closest_marker("long_simulation") is not None)
    if not os.environ.get("HEARTBEATD_TEST_CI"):
        _deselect(config, items, lambda item: item.get_closest_marker("ci") is not None)
    if not (HOME / "scheduler" / "extras").is_dir():
        _deselect(config, items, lambda item: item.get_closest_marker("extras") is not None)
    if not ON_SERVER:
        return
    run_all = bool(os.environ.get("HEARTBEATD_TEST_ALL"))
    seen: set[str] = set()
    kept: set[pytest.Item] = set()
    for item in items:
        name = item.nodeid.partition("[")[0]
        if (name in seen and not (run_all or simulation.IS_LONG)) or "database_of" not in getattr(item, "fixturenames", ()):
            continue
        seen.add(name)
        kept.add(item)
        if mark := item.get_closest_marker("sqlite_file"):
            item.add_marker(pytest.mark.skip(reason=f"not with PostgreSQL: {mark.args[0]}"))
        elif (mark := item.get_closest_marker("long_on_server")) and not run_all:
            item.add_marker(pytest.mark.skip(reason=f"with PostgreSQL only by `make test-postgresql ALL=1`: {mark.args[0]}"))
    _deselect(config, items, lambda item: item not in kept)


def _deselect(config: pytest.Config, items: list[pytest.Item], is_out: Callable[[pytest.Item], bool]) -> None:
    config.hook.pytest_deselected(items=[item for item in items if is_out(item)])
    items[:] = [item for item in items if not is_out(item)]


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


@pytest.hookimpl(wrapper=True, tryfirst=True)  # around the reporter's own, so that it comes last
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Print which tests were skipped because a program is missing, and where to get it."""
    yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter and not required_programs.is_worker():
        skipped = [(report.nodeid, report.longrepr[2]) for report in reporter.stats.get("skipped", ())]  # path, line, reason
        for line in required_programs.summarize_skipped(skipped):
            reporter.write_line(line)

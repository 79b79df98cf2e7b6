"""Tests the PostgreSQL server that other tests use: it keeps what was committed when it is killed and started again."""

from __future__ import annotations

from contextlib import ExitStack, closing, suppress
from pathlib import Path

import psycopg
import pytest
import required_programs
from servers.postgres import PostgresServer

pytestmark = required_programs.needs("initdb")


def test_a_database_is_empty_and_survives_a_kill_of_the_server() -> None:
    with ExitStack() as stack:
        server = PostgresServer()
        stack.callback(server.close)
        dsn = server.start().database()
        assert server.query(dsn, "select count(*) from pg_tables where schemaname = 'public'") == "0"
        server.query(dsn, "create table kept as select 7 as number")
        for _ in range(20):
            stack.enter_context(closing(psycopg.connect(dsn)))
        assert len(processes_in(server.folder)) > 20
        server.kill()
        assert processes_in(server.folder) == []
        with pytest.raises(AssertionError):
            server.query(dsn, "select 1")
        server.start()
        assert server.query(dsn, "select number from kept") == "7"


def processes_in(folder: Path) -> list[str]:
    """The processes whose working directory is below a folder, as that of each process of a PostgreSQL server is its data."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or belongs to another user
            if (process / "cwd").readlink().is_relative_to(folder):
                found.append(process.name)
    return found

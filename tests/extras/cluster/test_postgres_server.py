"""Tests the PostgreSQL server that other tests use: it keeps what was committed when it is killed and started again."""

from __future__ import annotations

import pytest
import required_programs
from servers.postgres import PostgresServer

pytestmark = required_programs.needs("initdb")


def test_a_database_is_empty_and_survives_a_kill_of_the_server() -> None:
    server = PostgresServer()
    try:
        dsn = server.start().database()
        assert server.query(dsn, "select count(*) from pg_tables where schemaname = 'public'") == "0"
        server.query(dsn, "create table kept as select 7 as number")
        server.kill()
        with pytest.raises(AssertionError):
            server.query(dsn, "select 1")
        server.start()
        assert server.query(dsn, "select number from kept") == "7"
    finally:
        server.close()

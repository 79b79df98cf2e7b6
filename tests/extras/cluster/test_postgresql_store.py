"""The tables on a PostgreSQL server are those of SQLite, and the store reports what goes wrong there as it does for a file."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import required_programs
from patience import PATIENCE
from servers.postgres import ONE_BOOT, PostgresServer

import scheduler.store
from scheduler.extras.cluster.postgresql import (
    READER_SETTINGS,
    WRITER_SETTINGS,
    ServerConnection,
    ServerError,
    _translate,
    apply_schema,
)
from scheduler.model.state_address import address_problem, clear_text_host, describe_server, schema_of, server_of_path
from scheduler.store import boots
from scheduler.store.database import DatabaseUnavailable, Store, StoreError, open_empty_database
from scheduler.store.locations import open_for_writing, open_read_only
from scheduler.store.migrations import Migrations, migrations

pytestmark = required_programs.needs("initdb")

TYPES = {"bigint": "INTEGER", "double precision": "REAL", "text": "TEXT", "bytea": "BLOB"}


@pytest.fixture
def store(address: str) -> Iterator[Store]:
    with closing(open_for_writing(address)) as opened:
        yield opened


def columns_of_file(db: sqlite3.Connection) -> set[tuple[Any, ...]]:
    tables = [row[0] for row in db.execute("select name from sqlite_master where type = 'table' and sql like '%strict%'")]
    return {
        (table, name, kind, bool(required or key), default)
        for table in tables
        for _, name, kind, required, default, key in db.execute(f"pragma table_info({table})")
    }


def columns_of_server(db: sqlite3.Connection) -> set[tuple[Any, ...]]:
    rows = db.execute(
        "select table_name, column_name, data_type, is_nullable, column_default from information_schema.columns"
        " where table_schema = 'heartbeatd' and left(table_name, 1) <> '_'"
    )
    return {
        (table, name, TYPES[kind], nullable == "NO", default and default.removesuffix("::text"))
        for table, name, kind, nullable, default in rows
    }


def indexes_of_file(db: sqlite3.Connection) -> set[tuple[str, bool, tuple[str, ...], bool]]:
    tables = [row[0] for row in db.execute("select name from sqlite_master where type = 'table' and sql like '%strict%'")]
    found = set()
    for table in tables:
        keys = sorted((row[5], row[1]) for row in db.execute(f"pragma table_info({table})") if row[5])
        found.add((table, True, tuple(name for _, name in keys), False))
        for _, index, unique, origin, partial in db.execute(f"pragma index_list({table})"):
            if origin != "pk":
                names = tuple(row[2] for row in db.execute(f"pragma index_info({index})"))
                found.add((table, bool(unique), names, bool(partial)))
    return found


def indexes_of_server(db: sqlite3.Connection) -> set[tuple[str, bool, tuple[str, ...], bool]]:
    rows = db.execute(
        "select owner.relname, indisunique, indpred is not null, (select string_agg(attname, ',' order by place) from"
        " unnest(indkey::int[]) with ordinality as used (number, place)"
        " join pg_attribute on attrelid = owner.oid and attnum = number)"
        " from pg_index join pg_class as owner on owner.oid = indrelid join pg_namespace as space on space.oid = relnamespace"
        " where nspname = 'heartbeatd' and left(owner.relname, 1) <> '_'"
    )
    return {(table, bool(unique), tuple(names.split(",")), bool(partial)) for table, unique, partial, names in rows}


def test_both_databases_have_the_same_columns_keys_and_indexes(store: Store) -> None:
    with closing(open_empty_database()) as file:
        assert columns_of_server(store.connection) == columns_of_file(file)
        assert indexes_of_server(store.connection) == indexes_of_file(file)


def test_the_conditions_of_partial_indexes_are_kept(store: Store) -> None:
    with pytest.raises(ServerError, match="run_open"), store.transaction() as db:
        for slot in (1, 2):
            db.execute("insert into run (kind, name, slot, trigger, state) values ('cron', 'a', ?, 'api', 'waiting')", (slot,))
    with store.transaction() as db:
        for slot in (1, 2):
            db.execute("insert into run (kind, name, slot, trigger, state) values ('cron', 'a', ?, 'api', 'closed')", (slot,))


def test_a_server_of_an_earlier_version_gets_the_missing_migrations(postgres: PostgresServer) -> None:
    steps = Migrations("heartbeatd")

    @steps
    def m001_first(db: Any) -> None:
        db.conn.execute("create table entry (id integer primary key, name text not null, seen integer) strict")
        db.conn.execute("create index entry_name on entry (name)")

    with closing(ServerConnection(postgres.database(), WRITER_SETTINGS)) as server:
        db: Any = server
        apply_schema(db, steps)
        db.execute("insert into entry (name, seen) values ('ops', 5)")

        @steps
        def m002_later(db: Any) -> None:
            db.execute("alter table entry add column failures integer not null default 3")
            db.conn.execute("create table note (name text primary key, at integer not null) strict, without rowid")
            db.conn.execute("alter table note add column text text not null default 'text text'")  # named like its type
            db.conn.execute("insert into note (name, at) select name, seen from entry")
            db.conn.execute("drop index entry_name")
            db.conn.execute("create unique index entry_name on entry (name, failures) where seen > 1")

        apply_schema(db, steps)
        apply_schema(db, steps)
        assert tuple(db.execute("select * from entry").fetchone()) == (1, "ops", 5, 3)
        assert tuple(db.execute("select * from note").fetchone()) == ("ops", 5, "text text")
        assert ("entry", True, ("name", "failures"), True) in indexes_of_server(db)
        with pytest.raises(StoreError, match=r"newer heartbeatd \(schema m002_later, this version supports m001_first\)"):
            older = Migrations("heartbeatd")
            older(m001_first)
            apply_schema(db, older)


def test_a_migration_may_take_longer_than_other_statements(postgres: PostgresServer) -> None:
    steps = Migrations("heartbeatd")

    @steps
    def m001_slow(db: Any) -> None:
        db.conn.execute("create table entry (id integer primary key) strict")

    @steps
    def m002_slow(db: Any) -> None:
        numbers = "with recursive numbers (x) as (select 1 union all select x + 1 from numbers where x < 1000000)"
        db.conn.execute(f"insert into entry (id) {numbers} select count(*) from numbers")

    first = Migrations("heartbeatd")
    first(m001_slow)
    limits = {"statement_timeout": 100, "idle_in_transaction_session_timeout": 100}
    with closing(ServerConnection(postgres.database(), WRITER_SETTINGS | limits)) as server:
        db: Any = server
        apply_schema(db, first)
        apply_schema(db, steps)
        assert db.execute("select max(id) from entry").fetchone()[0] == 1_000_000
        assert db.execute("show statement_timeout").fetchone()[0] == "100ms"


def test_every_migration_from_now_on_also_works_on_a_server(postgres: PostgresServer) -> None:
    """From the oldest version that is upgraded, step by step, with the migrations themselves."""
    first = Migrations("heartbeatd")
    first(next(iter(migrations.all.values())))
    with closing(ServerConnection(postgres.database(), WRITER_SETTINGS)) as server, closing(open_empty_database()) as file:
        db: Any = server
        apply_schema(db, first)
        apply_schema(db, migrations)
        assert columns_of_server(db) == columns_of_file(file)
        assert indexes_of_server(db) == indexes_of_file(file)


def test_a_schema_of_another_program_is_refused(postgres: PostgresServer) -> None:
    address = postgres.database()
    postgres.query(address, "create schema heartbeatd; create table heartbeatd.theirs (x int)")
    with pytest.raises(StoreError, match="tables of another program"):
        open_for_writing(address)


def test_two_installations_share_a_database_in_schemas_of_their_own(postgres: PostgresServer) -> None:
    address = postgres.database()
    for name in ("one", "two"):
        with closing(open_for_writing(f"{address}&options=-csearch_path%3D{name}")) as store, store.transaction() as db:
            db.execute(ONE_BOOT)
    assert postgres.query(address, "select (select count(*) from one.boot), (select count(*) from two.boot)") == "1|1"


def test_rows_are_read_by_name_and_position_and_the_types_are_those_of_sqlite(store: Store) -> None:
    with store.transaction() as db:
        db.execute(ONE_BOOT)
        db.execute("insert into budget values ('k', ?, 'UTC', 1.5, null, ?, null, '[]')", ("n\0x", True))
    row = store.connection.execute(
        "select kind, name, usd_per_day, tokens_per_day, runs_per_day, runs_per_day = 1 as is_one, sum(runs_per_day) over () as runs,"
        " max(runs_per_day, 4) as larger, min(runs_per_day, null) as nothing from budget"
    ).fetchone()
    assert dict(row) == {
        "kind": "k", "name": "n\ufffdx", "usd_per_day": 1.5, "tokens_per_day": None, "runs_per_day": 1, "is_one": 1, "runs": 1,
        "larger": 4, "nothing": None,
    }  # fmt: skip
    assert [type(value) for value in row] == [str, str, float, type(None), int, int, int, int, type(None)]
    assert (row[0], row["kind"], [*row][:2]) == ("k", "k", ["k", "n\ufffdx"])
    with pytest.raises(IndexError):
        row["nowhere"]


def test_placeholders_are_translated_outside_of_texts_and_comments() -> None:
    assert _translate("select '?', \":a\", x::int -- ?\n where a = ? and b = ?") == (
        "select '?', \":a\", x::int -- ?\n where a = $1 and b = $2",
        (),
    )
    assert _translate("select ? is null, :a is null") == ("select $1::text is null, $1::text is null", ("a",))
    assert _translate("select :one, :two, :one") == ("select $1, $2, $1", ("one", "two"))


def statements_of(module: Any) -> Iterator[str]:
    """The statements of a module: those that its functions have as one literal, and those in its constants."""
    tree = ast.parse(Path(module.__file__).read_text("utf-8"))
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr | ast.BinOp) for part in ast.walk(node)}
    found = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in parts]
    for value in vars(module).values():
        found += value.values() if isinstance(value, dict) else [value]
    for text in found:
        if isinstance(text, str) and text.strip().startswith(("select ", "insert ", "update ", "delete ", "with ")):
            yield text


@pytest.mark.parametrize("name", [each.name for each in pkgutil.iter_modules(scheduler.store.__path__)])
def test_every_statement_is_understood_by_the_server(name: str, store: Store) -> None:
    if name in ("database", "migrations"):
        return
    for statement in set(statements_of(importlib.import_module(f"scheduler.store.{name}"))):
        store.connection._raw.execute(f"prepare checked as {_translate(statement)[0]}")  # type: ignore[attr-defined]
        store.connection.execute("deallocate checked")


def test_a_transaction_that_fails_leaves_nothing(store: Store) -> None:
    with pytest.raises(KeyError), store.transaction() as db:
        db.execute(ONE_BOOT)
        raise KeyError("surprise")
    with store.transaction() as db:
        db.execute(ONE_BOOT)
        assert store.connection.total_changes == 2
    assert len(boots.all_boots(store.connection)) == 1


def test_an_integer_that_is_too_large_concerns_only_its_statement(store: Store) -> None:
    with store.transaction() as db:
        with pytest.raises(OverflowError):
            db.execute("select 1 from outbox where id = ?", (2**70,))
        db.execute(ONE_BOOT)
    assert len(boots.all_boots(store.connection)) == 1


def test_a_wrong_statement_is_a_bug(store: Store) -> None:
    with pytest.raises(sqlite3.OperationalError, match="nowhere"), store.transaction() as db:
        db.execute("select * from nowhere")
    with store.transaction() as db:
        db.execute(ONE_BOOT)


def test_a_server_that_is_down_full_of_connections_or_read_only_is_unavailable(tmp_path: Path) -> None:
    with closing(PostgresServer(max_connections="5", superuser_reserved_connections="0").start()) as server:
        address = server.database()
        with closing(open_for_writing(address)) as store:
            others = [ServerConnection(address, READER_SETTINGS) for _ in range(4)]
            with pytest.raises(StoreError, match="too many"):
                open_read_only(address)
            with pytest.raises(DatabaseUnavailable, match="too many"):
                open_for_writing(address)
            for other in others:
                other.close()
            server.kill()
            for _ in range(2):
                with pytest.raises(DatabaseUnavailable), store.transaction() as db:
                    db.execute(ONE_BOOT)
            with pytest.raises(DatabaseUnavailable, match="cannot connect to postgresql://heartbeatd@/test1"):
                open_for_writing(address)
            server.start()
            with store.transaction() as db:
                db.execute(ONE_BOOT)
            server.query(address, "alter database test1 set default_transaction_read_only = on")
            fresh = open_for_writing(address)
            with closing(fresh), pytest.raises(DatabaseUnavailable, match="read-only"), fresh.transaction() as db:
                db.execute(ONE_BOOT)
        assert server.query(address, "select count(*) from heartbeatd.boot") == "1"


def test_a_wrong_database_or_user_is_a_mistake_that_is_named_without_a_password(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", "hunter2hunter2")
    for wrong in (address.replace("@/", "@/no"), address.replace("heartbeatd@", "nobody@")):
        for use in (lambda url: open_for_writing(url, is_patient=True), open_read_only):
            with pytest.raises(StoreError, match="does not exist") as refused:
                use(wrong)
            assert "hunter2" not in str(refused.value)


def test_a_reader_cannot_write_and_waits_no_longer_than_its_timeout(store: Store, address: str) -> None:
    with closing(open_read_only(address)) as reader:
        with pytest.raises(sqlite3.OperationalError, match="read-only"):
            reader.execute("delete from boot")
        assert reader.execute("show statement_timeout").fetchone()[0] == "15s"


def test_a_locked_row_is_unavailable_after_a_while(store: Store, address: str) -> None:
    store.connection.execute("set lock_timeout = 50")
    with store.transaction() as db:
        db.execute(ONE_BOOT)
    with closing(open_for_writing(address)) as other, other.transaction() as db:
        db.execute("update boot set pid = 2")
        with pytest.raises(DatabaseUnavailable, match="lock timeout"), store.transaction() as held:
            held.execute("update boot set pid = 3")


def test_opening_for_reading_never_creates_tables(postgres: PostgresServer) -> None:
    address = postgres.database()
    with pytest.raises(StoreError, match="has no tables of heartbeatd in the schema heartbeatd yet; heartbeatd run creates them"):
        open_read_only(address)
    assert postgres.query(address, "select count(*) from pg_namespace where nspname = 'heartbeatd'") == "0"


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("postgresql://bot:secretpass@db/x", "password must not be in the address"),
        ("postgresql://db/x?password=secretpass", "password must not be in the address"),
        ("postgresql://db:port/x", "no address"),
        ("postgresql://db1:5432,db2:port/x", "no address"),
    ],
)
def test_an_address_with_a_password_is_refused_without_showing_it(address: str, problem: str) -> None:
    found = address_problem(address)
    assert found is not None
    assert problem in found
    assert "secretpass" not in found


def test_an_address_is_shown_without_its_parameters() -> None:
    assert describe_server("postgresql://bot@db.example:5433/beats?sslmode=require") == "postgresql://bot@db.example:5433/beats"
    assert server_of_path(Path("postgresql://bot@db/beats")) == "postgresql://bot@db/beats"
    assert server_of_path(Path("state/x.db")) is None
    assert schema_of("postgresql://db/x") == "heartbeatd"


@pytest.mark.parametrize(("address", "host"), [
    ("postgresql:///beats", None), ("postgresql:///beats?host=/run/postgresql", None), ("postgresql://bot@localhost/beats", None),
    ("postgresql://127.0.0.1:5433/beats", None), ("postgresql://[::1]:5433/beats", None), ("postgresql://db/beats", "db"),
    ("postgresql://bot@db.example:5433/beats?sslmode=prefer", "db.example"), ("postgresql:///beats?host=10.0.0.7", "10.0.0.7"),
    ("postgresql://localhost,db2/beats", "db2"), ("postgresql://db/beats?sslmode=verify-full", None),
    ("postgresql://localhost:5432,db2:5433/beats", "db2"), ("postgresql://bot@db1:5432,db2:5433/beats", "db1"),
    ("postgresql://[::1]:5432,db2/beats?sslmode=verify-full", None), ("postgresql:///beats?host=::1", None), ("postgresql:///beats?hostaddr=2001:db8::5", "2001:db8::5"),
])  # fmt: skip
def test_an_address_of_another_machine_without_encryption_is_noticed(address: str, host: str | None) -> None:
    """An address may name several servers, each with its port."""
    assert (clear_text_host(address), address_problem(address)) == (host, None)


def test_without_a_server_and_workers_nothing_of_the_extra_is_imported(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; import scheduler.app, scheduler.cli.main, scheduler.cli.run\n"
        "from scheduler.store.locations import open_for_writing\n"
        f"open_for_writing(Path({str(tmp_path / 'a.db')!r})).close()\n"
        "print([each for each in sys.modules if each.split('.')[0] in ('psycopg', 'psycopg_pool', 'procrastinate')])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert found.stdout == "[]\n"

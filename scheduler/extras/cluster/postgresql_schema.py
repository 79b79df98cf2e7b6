"""Creates and upgrades the tables in PostgreSQL. They follow from those of SQLite, so that both always have the same."""

from __future__ import annotations

import logging
import re
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from scheduler.store.database import DatabaseUnavailable, StoreError
from scheduler.store.migrations import Migrations, migrations
from scheduler.system.log import log_event

TYPES = {"INTEGER": "bigint", "REAL": "double precision", "TEXT": 'text collate "C"', "BLOB": "bytea"}
"""Texts are compared by their bytes, as in SQLite. All times are integers, in milliseconds."""

APPLIED = "select name from _migration order by name"
UPGRADE_LOCK = 0x48425444  # of all heartbeatds that create or upgrade tables
# ServerStore.transaction relies on it: only a change of a column with a unique index conflicts with `for key share`.
LEADER_EPOCH = "create unique index leader_epoch on _leader (epoch)"

# Functions of SQLite that PostgreSQL does not have, or has with another meaning. There is no form of them that both understand
# (`count(*) filter` is one), so each use would have to be written twice: a list in one parameter (`json_each`), JSON in a column
# of text, and `min` and `max` of two values, which are null if one is.
FUNCTIONS = """
create function min(bigint, bigint) returns bigint language sql immutable parallel safe as
  'select case when $1 is null or $2 is null then null when $1 < $2 then $1 else $2 end';
create function max(bigint, bigint) returns bigint language sql immutable parallel safe as
  'select case when $1 is null or $2 is null then null when $1 > $2 then $1 else $2 end';
create function max(double precision, double precision) returns double precision language sql immutable parallel safe as
  'select case when $1 is null or $2 is null then null when $1 > $2 then $1 else $2 end';
create function json_each(document text, out key text, out value text) returns setof record
  language sql immutable parallel safe rows 10 as $$
  select (number - 1)::text, item from json_array_elements_text(
    case when json_typeof(document::json) = 'array' then document::json else '[]' end) with ordinality as listed (item, number)
  union all
  select label, item from json_each_text(
    case when json_typeof(document::json) = 'object' then document::json else '{}' end) as named (label, item) $$;
create function json_extract(document text, path text) returns numeric language sql immutable parallel safe as
  'select (document::json ->> substr(path, 3))::numeric';
create function json_item(document text, number integer) returns text language sql immutable parallel safe as
  'select document::json ->> number';
create function json_member(document text, name text) returns text language sql immutable parallel safe as
  'select document::json ->> name';
create operator ->> (leftarg = text, rightarg = integer, function = json_item);
create operator ->> (leftarg = text, rightarg = text, function = json_member);
create function json_valid(document text) returns boolean language plpgsql immutable parallel safe as $$
begin
  perform document::json;
  return document is not null;
exception when others then
  return false;
end $$;
create function numbers_as_json(bigint[]) returns text language sql immutable parallel safe as 'select array_to_json($1)::text';
create aggregate json_group_array(bigint) (sfunc = array_append, stype = bigint[], finalfunc = numbers_as_json, initcond = '{}')
"""


@dataclass(frozen=True, slots=True)
class Table:
    """A table: its columns with their definition in PostgreSQL, and the rest of its definition (keys, checks)."""

    columns: Mapping[str, str]
    constraints: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Schema:
    """All tables by name, and the statements that create the indexes, by name."""

    tables: Mapping[str, Table]
    indexes: Mapping[str, str]


def read_schema(db: sqlite3.Connection) -> Schema:
    """The tables and indexes of an SQLite database, as PostgreSQL is to have them."""
    rows = db.execute("select type, name, sql from sqlite_master where sql is not null and name not like 'sqlite_%'").fetchall()
    tables = {name: _read_table(db, name, sql) for kind, name, sql in rows if kind == "table" and not name.startswith("_")}
    return Schema(tables, {name: sql for kind, name, sql in rows if kind == "index" and "_sqlite_migrations" not in sql})


def _read_table(db: sqlite3.Connection, table: str, sql: str) -> Table:
    columns, keys = {}, []
    checks = re.findall(r"\bcheck \(([^()]*)\)", sql)
    info = db.execute(f"pragma table_info({table})").fetchall()
    for _, name, kind, required, default, key_place in info:
        if key_place:
            keys.append((key_place, f'"{name}"'))
        identity = key_place and kind == "INTEGER" and sum(bool(each[5]) for each in info) == 1 and not checks
        columns[name] = (
            TYPES[kind]
            + (" not null" if required or key_place else "")
            + (" generated by default as identity" if identity else "")
            + (f" default {default}" if default is not None else "")
        )
    constraints = [f"primary key ({', '.join(name for _, name in sorted(keys))})"] if keys else []
    for _, index, _, origin, _ in db.execute(f"pragma index_list({table})").fetchall():
        if origin == "u":
            names = ", ".join(f'"{row[2]}"' for row in db.execute(f"pragma index_info({index})").fetchall())
            constraints.append(f"unique ({names})")
    constraints += [f"check ({found})" for found in checks]
    return Table(columns, tuple(constraints))


def creation(schema: Schema, before: Schema) -> list[str]:
    """The statements that add to PostgreSQL the tables and columns that `schema` has beyond `before`."""
    statements = []
    for name, table in schema.tables.items():
        if name not in before.tables:
            parts = [f'"{column}" {kind}' for column, kind in table.columns.items()]
            statements.append(f'create table "{name}" (\n  ' + ",\n  ".join([*parts, *table.constraints]) + "\n)")
            continue
        new = [column for column in table.columns if column not in before.tables[name].columns]
        statements += [f'alter table "{name}" add column "{column}" {table.columns[column]}' for column in new]
    return statements


def completion(schema: Schema, before: Schema) -> list[str]:
    """The statements that then remove what only `before` has, and create the indexes that are new or changed."""
    statements = [f'drop index if exists "{name}"' for name, sql in before.indexes.items() if schema.indexes.get(name) != sql]
    for name, table in before.tables.items():
        if name not in schema.tables:
            statements.append(f'drop table "{name}"')
            continue
        gone = [column for column in table.columns if column not in schema.tables[name].columns]
        statements += [f'alter table "{name}" drop column "{column}"' for column in gone]
    return statements + [sql for name, sql in schema.indexes.items() if before.indexes.get(name) != sql]


def apply_schema(db: sqlite3.Connection, schema: str, server: str, steps: Migrations = migrations) -> None:
    """Create the tables, or apply missing migrations, in one transaction. Raises StoreError if a newer version has been there."""
    unknown, missing = unknown_migrations(db, schema, server, steps)
    if not missing:
        return
    db.execute("begin")
    try:
        db.execute("set local statement_timeout = 0")  # a large table may take minutes
        # The migrations are first applied to a schema in SQLite, which takes a slow machine seconds. A daemon that freezes here
        # keeps the others waiting for this long.
        db.execute("set local idle_in_transaction_session_timeout = '60s'")
        db.execute("select pg_advisory_xact_lock(?)", (UPGRADE_LOCK,))  # several daemons may start at the same time
        unknown, missing = unknown_migrations(db, schema, server, steps)
        if unknown is None:
            _create_all(db, schema, steps)
        elif missing:
            leader = db.execute("select host from _leader where until_at > clock_timestamp() for update").fetchone()
            if leader:
                raise DatabaseUnavailable(
                    f"an older heartbeatd leads on {leader['host']}; stop it, so that this one can upgrade the tables"
                )
            _migrate(db, missing, steps)
        db.execute("commit")
        if unknown is not None and missing:
            log_event(logging.INFO, "migrated", database=server, migrations=",".join(missing))
    except BaseException:
        if db.in_transaction:
            db.execute("rollback")
        raise


def unknown_migrations(
    db: sqlite3.Connection, schema: str, server: str, steps: Migrations = migrations
) -> tuple[list[str] | None, list[str]]:
    """The applied migrations (None: there are no tables yet), and those that are missing.

    Raises StoreError if a newer heartbeatd has applied others, or if the schema belongs to another program.
    """
    known = [each.name for each in steps.all]
    found = db.execute(
        "select count(*) as tables, count(*) filter (where tablename = '_migration') as ours from pg_tables where schemaname = ?",
        (schema,),
    ).fetchone()
    if not found["ours"]:
        if found["tables"]:
            raise StoreError(
                f"the schema {schema} of {server} has tables of another program; create an empty database for heartbeatd"
            )
        return None, known
    applied = [row["name"] for row in db.execute(APPLIED)]
    if obstacle := steps.obstacle(applied):
        raise StoreError(f"{server} {obstacle}")
    return applied, [name for name in known if name not in applied]


def _twin(steps: Migrations, before: str | None = None) -> sqlite3.Connection:
    """An empty SQLite database with the migrations before this one (None: with all)."""
    twin = sqlite3.connect(":memory:", isolation_level=None)
    steps.apply(twin, stop_before=before)
    return twin


def _create_all(db: sqlite3.Connection, schema: str, steps: Migrations) -> None:
    db.execute(f'create schema if not exists "{schema}"')
    db.execute(FUNCTIONS)
    with closing(_twin(steps)) as twin:
        wanted = read_schema(twin)
    nothing = Schema({}, {})
    for statement in (*creation(wanted, nothing), *completion(wanted, nothing)):
        db.execute(statement)
    db.execute(
        "create table _leader (one boolean primary key default true check (one), epoch bigint not null default 0, holder text,"
        " host text, until_at timestamptz not null default '-infinity', since_at timestamptz, former_host text)"
    )
    db.execute("insert into _leader default values")
    db.execute(LEADER_EPOCH)
    db.execute("create table _migration (name text not null primary key, applied_at timestamptz not null default now())")
    db.executemany("insert into _migration (name) values (?)", [(each.name,) for each in steps.all])


class _Recorder:
    """Stands in for the database of a migration: it changes the twin, and keeps the statements that change rows."""

    def __init__(self, twin: sqlite3.Connection) -> None:
        self._twin = twin
        self.conn = self
        self.changes: list[str] = []

    def execute(self, statement: str, values: Any = ()) -> sqlite3.Cursor:
        if re.match(r"\s*(insert|update|delete)\b", statement, re.IGNORECASE):
            self.changes.append(statement)
        return self._twin.execute(statement, values)


def _migrate(db: sqlite3.Connection, missing: list[str], steps: Migrations) -> None:
    """Apply these migrations. New tables and columns come first, then changes of rows; then what the migration removes."""
    with closing(_twin(steps, missing[0])) as twin:
        for step in steps.pending(twin):
            before, recorder = read_schema(twin), _Recorder(twin)
            step.fn(recorder)
            after = read_schema(twin)
            for statement in (*creation(after, before), *recorder.changes, *completion(after, before)):
                db.execute(statement)
            db.execute("insert into _migration (name) values (?)", (step.name,))

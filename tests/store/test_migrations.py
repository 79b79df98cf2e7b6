"""Migrations keep all rows, and ids of runs, wakes and messages are never used again."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from test_story_slots import OPS
from world import MakeWorld, World

from scheduler.store.database import APPLICATION_ID, Store
from scheduler.store.migrations import migrations

FIRST_VERSION = ("m001_first_schema",)
NEXT_IDS = {
    "run": "insert into run (kind, name, slot, trigger, state) values ('heartbeat', 'new', 1, 'interval', 'closed') returning id",
    "wake": "insert into wake (name, kind, source, sender, text, created_at, updated_at, state)"
    " values ('new', 'heartbeat', 'api', 'bot', '', 1, 1, 'ended') returning id",
    "outbox": "insert into outbox (key, channel, run_id, kind, name, trigger, slot, part, parts, title, text, state, not_before,"
    " created_at) values ('new', 'log', 1, 'heartbeat', 'ops', 'interval', 1, 1, 1, '', '', 'pending', 1, 1) returning id",
}


def first_version_database(path: Path) -> None:
    """A database as the first version created it, with rows in the tables that a migration rebuilds."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"pragma application_id = {APPLICATION_ID}")
        later = next(each.name for each in migrations.all if each.name not in FIRST_VERSION)
        migrations.apply(connection, stop_before=later)
        connection.execute(
            "insert into run (id, kind, name, slot, trigger, state, outcome, text, tokens, cost_usd, finished_at)"
            " values (41, 'heartbeat', 'ops', 7, 'interval', 'closed', 'alert', 'the disk is full', '{}', 0.25, 1772438400000)"
        )
        connection.execute(
            "insert into run (id, kind, name, slot, trigger, state, started_at) values (42, 'cron', 'b', 7, 'at', 'running', 7)"
        )
        connection.execute(
            "insert into entry (kind, name, state, pace, first_seen_at, anchor, settled_until)"
            " values ('cron', 'b', 'active', '{}', 1, 1, 1)"
        )
        connection.execute(
            "insert into wake (id, name, kind, source, sender, text, created_at, updated_at, state, run_id)"
            " values (5, 'ops', 'heartbeat', 'api', 'bot', 'look', 1, 1, 'ended', 60)"
        )
        connection.execute(
            "insert into outbox (id, key, channel, run_id, kind, name, trigger, slot, part, parts, title, text, state, not_before,"
            " created_at) values (9, 'k', 'log', 41, 'heartbeat', 'ops', 'interval', 7, 1, 1, 'ops', 'full', 'delivered', 1, 1)"
        )
        connection.execute("insert into digest values ('heartbeat', 'ops', 'log', '', 'h', 12, 1, 1)")


def created_by(connection: sqlite3.Connection, kind: str) -> dict[str, str]:
    """The SQL text of each rebuilt table or its indexes, without `autoincrement`."""
    rows = connection.execute(
        "select name, sql from sqlite_master where type = ? and sql is not null and tbl_name in ('run', 'wake', 'outbox')",
        (kind,),
    )
    return {name: " ".join(sql.lower().replace('"', "").split()).replace(" autoincrement", "") for name, sql in rows}


def test_a_first_version_database_keeps_its_rows_indexes_and_references(tmp_path: Path) -> None:
    path = tmp_path / "state" / "heartbeatd.db"
    first_version_database(path)
    tables = ("run", "wake", "outbox", "digest")
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        rows = {table: [dict(row) for row in connection.execute(f"select * from {table}")] for table in tables}
        migrations.apply(connection, stop_before="m005_ids_never_repeat")
        indexes = created_by(connection, "index")
    store = Store.open(path)
    try:
        after = {table: [dict(row) for row in store.connection.execute(f"select * from {table}")] for table in tables}
        for table in tables:
            assert [old.items() <= new.items() for old, new in zip(rows[table], after[table], strict=True)] == [True] * len(
                rows[table]
            )
        assert indexes.items() <= created_by(store.connection, "index").items()
        assert all("strict" in text.rsplit(")", 1)[1] for text in created_by(store.connection, "table").values())
        with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):  # one open run per entry
            store.connection.execute(
                "insert into run (kind, name, slot, trigger, state) values ('cron', 'b', 8, 'at', 'waiting')"
            )
    finally:
        store.close()


@pytest.mark.parametrize(("table", "following"), [("run", 61), ("wake", 6), ("outbox", 13)])
def test_an_id_that_other_rows_refer_to_is_not_used_again(tmp_path: Path, table: str, following: int) -> None:
    path = tmp_path / "state" / "heartbeatd.db"
    first_version_database(path)
    store = Store.open(path)
    try:
        assert store.connection.execute(NEXT_IDS[table]).fetchone()[0] == following
    finally:
        store.close()


@pytest.mark.parametrize("table", NEXT_IDS)
@pytest.mark.parametrize("earlier", [False, True], ids=["new", "of the first version"])
def test_an_id_is_not_used_again_after_its_row_was_deleted(tmp_path: Path, table: str, *, earlier: bool) -> None:
    path = tmp_path / "heartbeatd.db"
    if earlier:
        first_version_database(path)
    store = Store.open(path)
    try:
        first = store.connection.execute(NEXT_IDS[table]).fetchone()[0]
        store.connection.execute(f"delete from {table}")
        assert store.connection.execute(NEXT_IDS[table]).fetchone()[0] == first + 1
    finally:
        store.close()


def test_the_daemon_continues_with_a_first_version_database(tmp_path: Path) -> None:
    first_version_database(tmp_path / "state" / "heartbeatd.db")
    world = World(tmp_path, OPS)
    world.run(minutes=31)
    assert [row["id"] for row in world.records("ops")] == [41, 61, 62]
    world.store.close()


def test_run_ids_continue_after_the_whole_history_was_deleted(make_world: MakeWorld) -> None:
    world = make_world(OPS + "history: {keep: 1h}\n")
    world.run(minutes=31)
    world.pause(None)
    world.run(hours=5)
    assert world.records() == []
    world.resume(None)
    world.run(minutes=31)
    assert min(row["id"] for row in world.records()) > 2

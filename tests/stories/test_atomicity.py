"""Transactions are atomic: the daemon can die after any SQL statement, and two daemons cannot claim the same slot."""

from __future__ import annotations

import multiprocessing
import random
import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from simulation import size
from test_story_slots import agent
from world import DatabaseOf, World, add_entry_row, run_until_crash, utc

from scheduler.config.settings.load import load_config
from scheduler.engine.claim import claim_due
from scheduler.engine.tick_items import Tick
from scheduler.model.outcome import Kind
from scheduler.store import entries
from scheduler.store.database import Store
from scheduler.store.locations import open_for_writing, open_read_only
from scheduler.store.transaction import Transaction
from scheduler.work import plan

ALARM = "ALERT: the disk is full"
HOOK = 'channels: {hook: {kind: webhook, url: "http://127.0.0.1:1/x", allow_private: true}}\n'
WAKER = 'cron:\n  backup: {schedule: "0 9 * * *", command: b, wake_heartbeat: ops}\n'
CONFIG = agent(interval="1d", deliver="hook") + HOOK + WAKER


def die_at(folder: Path, server: str | None, statement: int) -> int:
    """Simulate two hours in a child process that exits after this many SQL statements. Returns its exit code."""
    return run_until_crash(
        lambda: World(folder, CONFIG, scripts={"ops": lambda call: ALARM}, server=server),
        lambda world: world.run(hours=2), statement,
    )  # fmt: skip


@pytest.mark.simulation
@pytest.mark.parametrize("step", range(size(1, 6)))
def test_a_crash_after_any_statement_leaves_whole_transactions_and_the_next_boot_continues(
    tmp_path: Path, database_of: DatabaseOf, step: int
) -> None:
    codes = set()
    server = database_of(tmp_path)
    for statement in range(20 + step, 180, size(10, 6)):
        codes.add(die_at(tmp_path, server, statement))
        with closing(open_read_only(server or tmp_path / "state" / "heartbeatd.db")) as db:
            if server is None:
                assert db.execute("pragma integrity_check").fetchone()[0] == "ok"
            alerts = db.execute("select count(*) from outbox join run on run.id = run_id where run.state <> 'closed'").fetchone()[
                0
            ]
            untold = db.execute(
                "select count(*) from run where outcome = 'alert' and suppression is null and id not in (select run_id from outbox)"
            ).fetchone()[0]
            lost = db.execute(
                "select count(*) from run where kind = 'cron' and outcome = 'ok' and not exists (select 1 from wake)"
            ).fetchone()[0]
        assert (alerts, untold, lost) == (0, 0, 0)
        world = World(tmp_path, CONFIG, start="2026-03-02 10:00", server=server)
        world.scripts["ops"] = lambda call: ALARM
        world.run(hours=23)
        rows = world.records("ops")
        assert sum(row["planned_runs"] for row in rows if row["trigger"] == "interval") == 2
        assert {row["planned_at"] for row in world.records("backup")} >= {"2026-03-02T09:00:00Z"}
        world.store.close()
        world.delete_database()
    assert 9 in codes


def test_two_daemons_on_one_database_would_claim_each_slot_once(tmp_path: Path) -> None:
    """The state lock prevents this. The claims are safe without it, too."""
    names = [f"agent{number}" for number in range(100)]
    beat = '{runner: {kind: command, argv: [a]}, heartbeat: {interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: log}}'
    world = World(tmp_path, "agents:\n" + "".join(f"  {name}: {beat}\n" for name in names))
    world.store.close()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        claimed = pool.starmap(_claim_all, [(tmp_path, f"owner{number}") for number in range(2)])
    assert sorted(name for names in claimed for name in names) == sorted(names)
    with closing(sqlite3.connect(world.state)) as db:
        assert db.execute("select count(*), count(distinct name) from run").fetchone() == (100, 100)


def _claim_all(folder: Path, owner: str) -> list[str]:
    store = Store.open(folder / "state" / "heartbeatd.db")
    store.connection.execute("pragma busy_timeout = 20000")
    settings = load_config(folder / "config.yaml", {}).settings
    claimed: list[str] = []
    while True:
        with store.transaction() as db:
            now = utc("2026-03-02 08:00")
            tick = Tick(Transaction(db, now, owner), plan.make_plan(settings), now, random.Random(1))
            due = [row for row, _ in entries.due_entries(db, tick.now + timedelta(seconds=1), 5, 5)]
            for entry_row in due:
                claim = claim_due(tick, entry_row, None)
                claimed += [claim.entry.name] if claim else []
        if not due:
            store.close()
            return claimed


NOON = utc("2026-03-02 12:00")


def test_a_changed_row_is_visible_to_every_query_and_written_once_by_the_fields_that_changed(
    tmp_path: Path, database_of: DatabaseOf
) -> None:
    """Two changes that start from the same row are both kept, as when a run ends and wakes its own agent."""
    with closing(open_for_writing(database_of(tmp_path) or tmp_path / "h.db")) as store, store.transaction() as db:
        tx = Transaction(db, NOON, "me")
        row = add_entry_row(tx, Kind.HEARTBEAT, "ops")
        before = store.connection.total_changes
        entries.change_entry(tx, row, row._replace(failures=1))
        entries.change_entry(tx, row, row._replace(quiet=2))
        db.count_slots(row.id, good=1)
        db.execute("select 1 from run").fetchall()
        assert store.connection.total_changes == before  # this query cannot see the row
        assert entries.get_entry(tx, Kind.HEARTBEAT, "ops") == row._replace(failures=1, quiet=2)
        assert entries.find_entry(db, Kind.HEARTBEAT, "ops") == row._replace(failures=1, quiet=2)
        assert db.execute("select count(*) from entry where failures = 1 and good_slots = 1").fetchone()[0] == 1
        assert store.connection.total_changes == before + 1


def test_the_row_of_an_entry_with_a_run_in_progress_is_read_once_and_again_after_a_rollback(tmp_path: Path) -> None:
    key = (Kind.HEARTBEAT, "ops")
    with closing(Store.open(tmp_path / "h.db")) as store:
        with store.transaction() as db:
            tx = Transaction(db, NOON, "me")
            row = add_entry_row(tx, *key)
            running = row._replace(due_at=None, last_slot=NOON)
            entries.change_entry(tx, row, running)
        reads: list[str] = []
        store.connection.set_trace_callback(lambda statement: reads.append(statement) if "from entry" in statement else None)
        with store.transaction() as db:
            entries.read_entries(Transaction(db, NOON, "me"), [key])
            assert entries.get_entry(Transaction(db, NOON, "me"), *key) == running
        assert reads == []
        with pytest.raises(ZeroDivisionError), store.transaction() as db:
            entries.change_entry(Transaction(db, NOON, "me"), running, running._replace(failures=1))
            raise ZeroDivisionError
        with store.transaction() as db:
            assert entries.get_entry(Transaction(db, NOON, "me"), *key) == running
        assert len(reads) == 1


def test_a_row_that_was_changed_in_a_failed_part_stays_as_it_was_before_the_part(tmp_path: Path, database_of: DatabaseOf) -> None:
    with closing(open_for_writing(database_of(tmp_path) or tmp_path / "h.db")) as store:
        with store.transaction() as db:
            tx = Transaction(db, NOON, "me")
            row = add_entry_row(tx, Kind.HEARTBEAT, "ops")
            before = row._replace(quiet=2)
            entries.change_entry(tx, row, before)

            def fail() -> Exception | None:
                entries.change_entry(tx, before, before._replace(failures=1))
                db.count_slots(row.id, bad=1)
                assert entries.find_entry(db, Kind.HEARTBEAT, "ops") == before._replace(failures=1)  # this writes both changes
                raise ZeroDivisionError

            assert isinstance(tx.run_part(fail, lambda error: error), ZeroDivisionError)
            assert entries.get_entry(tx, Kind.HEARTBEAT, "ops") == before
        assert entries.find_entry(store.connection, Kind.HEARTBEAT, "ops") == before
        assert store.connection.execute("select bad_slots from entry").fetchone()[0] == 0


def test_a_failed_part_within_or_after_another_part_undoes_only_itself(tmp_path: Path, database_of: DatabaseOf) -> None:
    with closing(open_for_writing(database_of(tmp_path) or tmp_path / "h.db")) as store, store.transaction() as db:
        tx = Transaction(db, NOON, "me")

        def fail() -> Exception | None:
            add_entry_row(tx, Kind.CRON, "undone")
            raise ZeroDivisionError

        def succeed() -> None:
            assert isinstance(tx.run_part(fail, lambda error: error), ZeroDivisionError)
            add_entry_row(tx, Kind.HEARTBEAT, "ops")
            tx.run_part(lambda: add_entry_row(tx, Kind.HEARTBEAT, "kept"), pytest.fail)

        tx.run_part(succeed, pytest.fail)
        tx.run_part(fail, str)  # after a part that has written
        assert [row.name for row in entries.all_entries(db)] == ["kept", "ops"]

"""A daemon takes over a database that the previous version wrote, and continues its runs, wakes and messages.

data/database_2026_11.sql is what heartbeatd of 24 November 2026 left behind when it was killed on 2 March 2026 at 12:33 UTC in a
test like these, as the version of 30 November has upgraded it: there are rows in every table. Older databases are refused. When a
version is released, add a dump of its schema; this one can go when the migrations up to that version become one.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest
from checkout import DATA
from simulation import size
from world import World, utc

from scheduler.model.problem import PROVIDER
from scheduler.store import problems, spend
from scheduler.store.database import APPLICATION_ID, Store, StoreError, open_read_only_any_version
from scheduler.store.migrations import migrations

DUMP = DATA / "database_2026_11.sql"
CONFIG = """
limits: {budget: {usd_per_day: 5}}
channels:
  ops-room: {kind: webhook, url: "https://chat.example.org/hook"}
  dead-room: {kind: webhook, url: "https://dead.example.org/hook"}
  chat: {kind: telegram, url: "tgram://123:ABC/{target}"}
agents:
  ops:
    runner: {kind: command, argv: [agent]}
    heartbeat:
      interval: 45m
      stagger: 0s
      checklist: "- look at the disk\\n- [every 4h] read the mail\\n"
      budget: {runs_per_day: 40, usd_per_try: 0.01}
      deliver: [ops-room, last]
  slow:
    runner: {kind: command, argv: [agent]}
    heartbeat: {interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: dead-room, timeout: 5h, budget: {usd_per_try: 0.02}}
cron:
  retried: {command: sync, schedule: "*/20 * * * *", retries: 3, deliver: dead-room, problems: {after: 1, deliver: ops-room}}
  later: {command: report, at: "2026-03-05 09:00"}
"""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The database of the previous version, at the place where a World looks for it."""
    return previous_database(tmp_path / "state")


def previous_database(folder: Path) -> Path:
    """A database of the previous version in a new folder."""
    path = folder / "heartbeatd.db"
    folder.mkdir(mode=0o700)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(DUMP.read_text("utf-8"))
        connection.execute(f"pragma application_id = {APPLICATION_ID}")
    path.chmod(0o600)
    return path


@pytest.fixture
def world(state: Path, tmp_path: Path) -> World:
    """A daemon of this version, started two minutes after the earlier one was killed."""
    return World(tmp_path, CONFIG, start="2026-03-02 12:35")


NEXT_IDS = {
    "run": "insert into run (kind, name, slot, trigger, state) values ('heartbeat', 'new', 1, 'interval', 'closed') returning id",
    "wake": "insert into wake (name, kind, source, sender, text, created_at, updated_at, state)"
    " values ('new', 'heartbeat', 'api', 'bot', '', 1, 1, 'ended') returning id",
    "outbox": "insert into outbox (key, channel, run_id, kind, name, trigger, slot, part, parts, title, text, state, not_before,"
    " created_at) values ('new', 'log', 1, 'heartbeat', 'ops', 'interval', 1, 1, 1, '', '', 'pending', 1, 1) returning id",
    "problem": "insert into problem (kind, name, part, key, severity, text, reason, fault, count, since, last_seen_at, openings)"
    " values ('cron', 'new', '', 'k', 'info', '', '', '', 1, 1, 1, '[]') returning id",
}


def schema(connection: sqlite3.Connection) -> dict[str, object]:
    """The columns of each table with their types and defaults, the kinds of the tables, and the indexes."""
    tables = connection.execute("select name, sql from sqlite_master where type = 'table'").fetchall()
    indexes = connection.execute("select name, sql from sqlite_master where type = 'index' and sql is not null").fetchall()
    found: dict[str, object] = {name: " ".join(sql.split()) for name, sql in indexes}
    for name, sql in tables:
        columns = [tuple(row)[1:] for row in connection.execute(f"pragma table_info({name})")]
        found[name] = ("autoincrement" in sql, sql.rsplit(")")[-1].split(), sorted(columns))
    return found


def row_counts(connection: sqlite3.Connection) -> dict[str, int]:
    tables = [row[0] for row in connection.execute("select name from sqlite_master where type = 'table'")]
    return {table: connection.execute(f"select count(*) from {table}").fetchone()[0] for table in tables}


def test_the_dump_has_rows_in_every_table(state: Path) -> None:
    with closing(sqlite3.connect(state)) as connection:
        assert [table for table, rows in row_counts(connection).items() if rows == 0] == []


def test_an_interrupted_run_is_attempted_again(world: World) -> None:
    world.settle()
    (run,) = [row for row in world.records("slow") if row["planned_at"] == "2026-03-02T12:30:00Z"]
    assert (run["id"], run["tries"], run["result"]) == (29, 2, "ok")


def test_waiting_wakes_are_delivered(world: World) -> None:
    world.run(hours=1)
    woken = {call.name: call for call in world.calls if "You were woken" in call.stdin}
    assert "By api pager:" in woken["ops"].stdin
    assert woken["ops"].at == utc("2026-03-02 13:02")  # a gateway held the lane until then
    assert "By api queue:" in woken["slow"].stdin


def test_queued_messages_are_delivered(world: World) -> None:
    world.run(hours=12)
    assert [text for _, name, text in world.delivered if name == "slow" and "disk:/var" not in text] == [
        "Nothing new, but a word."
    ]


def test_a_later_alert_goes_to_the_known_target(world: World) -> None:
    world.scripts["ops"] = lambda call: "The disk is full."
    world.run(hours=1)
    sent = world.store.connection.execute("select channel, whom from outbox where text = 'The disk is full.' order by id")
    assert [tuple(row) for row in sent] == [("ops-room", ""), ("chat", "4711")]


def test_every_slot_still_has_exactly_one_run_record(world: World) -> None:
    world.run(hours=2)
    slots = [(row["name"], row["trigger"], row["planned_at"]) for row in world.records()]
    assert len(slots) == len(set(slots))
    on_the_grid = [row["planned_at"][11:16] for row in world.records("ops") if row["trigger"] == "interval"]
    assert on_the_grid[-4:] == ["12:15", "13:00", "13:45", "14:30"]


def test_an_open_problem_ends_with_its_message(world: World) -> None:
    world.run(hours=1)
    assert [text for _, name, text in world.delivered if name == "retried"] == [
        "over     cron/retried failed: after 5h   p2\nIt was: exit"
    ]


def test_the_problem_of_a_provider_is_known_to_its_recipients(state: Path) -> None:
    with closing(Store.open(state)) as store:
        (problem,) = problems.unsettled_problems(store.connection, PROVIDER)
    assert (str(problem.subject), problem.key, problem.found.severity) == ("provider anthropic", "refused", "critical")
    assert {(target.channel, last.kind) for target, last in problem.notices.items()} == {("ops-room", "open")}


def test_a_one_time_job_that_was_seen_before_still_runs_at_its_time(world: World) -> None:
    world.run_until("2026-03-05 09:01")
    assert world.history("later") == ["03-05 09:00 at ok"]


def test_what_an_agent_has_reported_stays_open_and_is_not_sent_again(world: World) -> None:
    world.scripts["slow"] = lambda call: "[disk:/var] 94 % full"
    world.run(hours=1)
    problem = world.problem("disk:/var", "slow")
    assert (problem.is_open, problem.found.text) == (True, "94 % full")
    assert [text for _, _, text in world.delivered if "disk:/var" in text] == []


def test_an_upgraded_database_has_the_tables_of_a_new_one(state: Path, tmp_path: Path) -> None:
    with closing(Store.open(state)) as upgraded, closing(Store.open(tmp_path / "new.db")) as new:
        assert schema(upgraded.connection) == schema(new.connection)


def test_an_upgrade_that_is_killed_leaves_whole_migrations_and_the_next_start_carries_on(tmp_path: Path) -> None:
    left: list[int] = []
    for statement in count(1, size(8, 1)):
        path, twin = (previous_database(tmp_path / f"{statement}-{name}") for name in ("killed", "twin"))
        code = die_in_upgrade(path, statement)
        with closing(sqlite3.connect(path)) as killed, closing(sqlite3.connect(twin)) as whole:
            pending = migrations.pending(killed)
            if len(pending) < len(migrations.pending(whole)):
                migrations.apply(whole, stop_before=pending[0] if pending else None)
            assert (migrations.applied(killed), schema(killed)) == (migrations.applied(whole), schema(whole))
        assert code in (9, 0)
        left.append(len(pending))
        Store.open(path).close()
        with closing(sqlite3.connect(path)) as upgraded:
            assert (migrations.pending(upgraded), upgraded.execute("pragma integrity_check").fetchone()[0]) == ([], "ok")
        if code == 0:
            break
    assert left == sorted(left, reverse=True)
    assert len(set(left)) == left[0] + 1  # it was killed between all migrations


def die_in_upgrade(path: Path, statement: int) -> int:
    """Upgrade a database in a child process that exits after this many SQL statements. Returns its exit code: 9, or 0."""
    child = os.fork()
    if child == 0:
        code = 2
        try:
            numbers, connection = count(1), sqlite3.connect(path, isolation_level=None)
            connection.set_trace_callback(lambda _: os._exit(9) if next(numbers) == statement else None)
            migrations.apply(connection)
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_ids_of_deleted_rows_are_not_used_again(state: Path) -> None:
    with closing(Store.open(state)) as store:
        for table in ("run", "wake", "outbox", "problem"):
            last = store.connection.execute(f"select seq from sqlite_sequence where name = '{table}'").fetchone()[0]
            store.connection.execute(f"delete from {table}")
            assert store.connection.execute(NEXT_IDS[table]).fetchone()[0] == last + 1


def test_a_database_of_an_older_version_is_refused_and_kept(state: Path) -> None:
    with closing(sqlite3.connect(state)) as db, db:
        db.execute("delete from _sqlite_migrations where name > 'm008'")
        db.execute("insert into _sqlite_migrations (migration_set, name) values ('heartbeatd', 'm008_request_id')")
    content = state.read_bytes()
    for use in (Store.open, open_read_only_any_version):
        with pytest.raises(
            StoreError, match=r"written by an older heartbeatd \(schema m008_request_id, .* m046_budgets_are_recorded_once and"
        ):
            use(state)
    assert state.read_bytes() == content


def test_spending_of_the_day_is_kept(state: Path) -> None:
    with closing(sqlite3.connect(state)) as before:
        spent = before.execute("select sum(nanos), sum(runs) from spend").fetchone()
    with closing(open_read_only_any_version(state)) as db:
        assert tuple(db.execute("select sum(nanos), sum(runs) from spend").fetchone()) == spent


def test_the_database_of_a_former_shard_is_used_like_any_other(state: Path, tmp_path: Path) -> None:
    """The ids of shard 1 began at a million million."""
    with closing(sqlite3.connect(state, isolation_level=None)) as connection:
        connection.execute("update sqlite_sequence set seq = 1000000000000")
    world = World(tmp_path, CONFIG, start="2026-03-02 12:35")
    world.run(minutes=60)
    numbers = [row["id"] for row in world.store.connection.execute("select id from run order by id")]
    assert numbers[0] < 1_000_000_000_000 < numbers[-1]
    world.stop()


def test_the_report_reads_runs_that_the_previous_version_wrote(world: World) -> None:
    world.settle()
    run = world.records("ops")[0]
    assert (run["woken_by"], run["models"], run["worker"]) == (None, [], None)
    assert set(spend.budgets_in_force(world.store.connection)) == {("", ""), ("heartbeat", "ops")}
    assert {part["name"]: part["tokens"] for part in run["prompt_parts"]} == {
        "instructions": 144,
        "time": 18,
        "last run": 8,
        "checklist": 15,
    }

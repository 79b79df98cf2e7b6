"""Incidents, outages and conditions of an earlier version become problems, and no message about them is repeated."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from test_story_mutes import answers
from world import MakeWorld, World

from heartbeat.runners import ProcessResult
from scheduler.store.migrations import migrations

CONFIG = """\
channels:
  phone: {kind: webhook, url: "http://127.0.0.1:9/phone", allow_private: true}
  room: {kind: webhook, url: "http://127.0.0.1:9/room", allow_private: true}
agents:
  ops:
    runner: {kind: command, argv: [agent]}
    heartbeat: {interval: 1h, stagger: 0s, checklist: "- look\\n", deliver: phone, retries: 0, problems: {after: 1, remind: 2d}}
"""
AT = 1772438400000  # 2026-03-02 08:00 UTC
"""The time at which the earlier version has found and reported everything."""

FAULT = "956bfd9f43302b7ce74d783aa69ad3b26d70ef79fd1eebd3b12db5fe34650fbe"  # of `exit code 1`


def of_earlier_version(state: Path, *statements: str) -> None:
    """Put the database of a stopped daemon back to the tables of the earlier version, with these rows."""
    with sqlite3.connect(state, isolation_level=None) as after, sqlite3.connect(":memory:", isolation_level=None) as before:
        migrations.apply(before, stop_before="m024_problems")
        after.execute("drop table problem")
        after.execute("drop table problem_notice")
        for table in ("incident", "outage", "outage_notice", "change", "condition", "condition_report"):
            after.execute(before.execute("select sql from sqlite_master where name = ?", (table,)).fetchone()[0])
        after.execute("alter table entry add column flapping integer not null default 0")
        for column in ("config_problem text", "config_refused_at integer", "workers_problem text"):
            after.execute(f"alter table boot add column {column}")
        after.execute("delete from _sqlite_migrations where name between 'm024_problems' and 'm028_daemon_problems'")
        for statement in statements:
            after.execute(statement)


def incident(kind: str, name: str, told_at: int | None, flapping_at: int | None = None) -> str:
    """The row of a failing agent or channel."""
    told, flaps = ("null" if each is None else str(each) for each in (told_at, flapping_at))
    return f"insert into incident values ('{kind}', '{name}', '', {AT}, '[\"{FAULT}\"]', 'exit', {told}, null, null, {flaps})"


def message(kind: str, name: str, notice: str, channel: str, state: str = "delivered") -> str:
    """The row of a message about it."""
    return (
        "insert into outbox (key, channel, run_id, kind, name, trigger, slot, part, parts, title, text, state, not_before,"
        f" created_at, notice, finished_at) values ('{notice}', '{channel}', 1, '{kind}', '{name}', 'interval', {AT}, 1, 1,"
        f" '{name}', 'It failed.', '{state}', {AT}, {AT}, '{notice}', {AT})"
    )


FAILS = "update entry set troubles = 1, failures = 1 where name = 'ops'"
REPORTED = (incident("heartbeat", "ops", AT), message("heartbeat", "ops", "failing", "phone"), FAILS)
OVER = ["over     ops failed: after 2h   p1"]
FAILED = "warning  ops failed: exit: exit code 1 (2 times in a row since 2026-03-02 08:00 UTC)   p1"

CASES: dict[str, tuple[tuple[str, ...], list[str]]] = {
    "reported": (REPORTED, OVER),
    "not reported yet": ((incident("heartbeat", "ops", None), FAILS), [FAILED, *OVER]),
    "reported, and not delivered": (
        (incident("heartbeat", "ops", AT), message("heartbeat", "ops", "failing", "phone", "dead"), FAILS), [FAILED, *OVER],
    ),
    "flapping": ((incident("heartbeat", "ops", AT, AT), message("heartbeat", "ops", "flapping", "phone"), FAILS), []),
    "a channel that takes messages again": (
        (incident("channel", "phone", AT), message("heartbeat", "ops", "undelivered phone", "room")),
        ["warning  ops failed: exit: exit code 1 (since 2026-03-02 09:00 UTC)   p2", "over     ops failed: after 1h   p2"],
    ),
}  # fmt: skip


def failing_once(call: Any) -> Any:
    """Fails at 09:00, and works from then on."""
    return ProcessResult(1, b"", b"", False, False, None, None) if f"{call.at:%H}" == "09" else "HEARTBEAT_OK"


@pytest.mark.sqlite_file("the tables of an earlier version are written into the file")
def test_what_an_earlier_version_has_reported_is_not_repeated(make_world: MakeWorld, tmp_path: Path) -> None:
    for number, (case, (rows, expected)) in enumerate(CASES.items()):
        (folder := tmp_path / str(number)).mkdir()
        world = make_world(CONFIG, folder, scripts={"ops": answers("HEARTBEAT_OK")})
        world.run(minutes=30)
        world.stop()
        of_earlier_version(world.state, *rows)
        later = World(folder, CONFIG, start="2026-03-02 08:30")
        later.scripts["ops"] = failing_once
        later.run_until("2026-03-02 10:30")
        lines = [text.splitlines()[0] for _, name, text in later.delivered if name == "ops"]
        assert [line for line in lines if "channel" not in line] == expected, case
        later.stop()


def condition(state: str = "open", openings: int = 1, closed_at: int | None = None, ended_by: str | None = None) -> str:
    """The row of what the agent had reported."""
    closed, ended = "null" if closed_at is None else str(closed_at), "null" if ended_by is None else f"'{ended_by}'"
    return (
        f"insert into condition values (1, 'ops', 'disk:/var', 'Disk:/var', 'warning', '92 % full', '{state}', {AT}, {AT},"
        f" {closed}, {ended}, 0, 0, '{[AT] * openings}', '[]', '[]', 1, 1, '[]', null, null, '')"
    )


def report(kind: str) -> str:
    """What the phone had got about it."""
    return f"insert into condition_report values (1, 'phone', '', '{kind}', 'warning', {AT}, (select max(id) from outbox))"


SENT = message("heartbeat", "ops", "own", "phone").replace(", 'own', ", ", null, ")
OPENS = "warning  ops Disk:/var: 93 % full (since 2026-03-02 08:00 UTC)   p1"
CONDITIONS: dict[str, tuple[tuple[str, ...], list[str]]] = {
    "reported": ((condition(), SENT, report("open")), ["over     ops Disk:/var: after 3h   p1"]),
    "not reported yet": ((condition(),), [OPENS, "over     ops Disk:/var: after 3h   p1"]),
    "flapping": ((condition(openings=3), SENT, report("flapping")), []),
    "closed, and reported": (
        (condition("closed", 1, AT, "resolved"), SENT, report("ended")),
        ["warning  ops Disk:/var: 93 % full (since 2026-03-02 09:00 UTC)   p1", "over     ops Disk:/var: after 2h   p1"],
    ),
}  # fmt: skip


@pytest.mark.sqlite_file("the tables of an earlier version are written into the file")
def test_what_an_agent_has_reported_to_an_earlier_version_is_not_repeated(make_world: MakeWorld, tmp_path: Path) -> None:
    for number, (case, (rows, expected)) in enumerate(CONDITIONS.items()):
        (folder := tmp_path / str(number)).mkdir()
        world = make_world(CONFIG, folder, scripts={"ops": answers("HEARTBEAT_OK")})
        world.run(minutes=30)
        world.stop()
        of_earlier_version(world.state, *rows, "update entry set conditions = 1 where name = 'ops'")
        later = World(folder, CONFIG, start="2026-03-02 08:30")
        later.scripts["ops"] = answers("[disk:/var] 93 % full", "[disk:/var] 93 % full", "[disk:/var] resolved")
        later.run_until("2026-03-02 11:30")
        assert [text.splitlines()[0] for _, name, text in later.delivered if name == "ops"] == expected, case
        later.stop()


def test_what_had_arrived_before_the_last_message_keeps_its_severity() -> None:
    with sqlite3.connect(":memory:", isolation_level=None) as db:
        migrations.apply(db, stop_before="m027_severity_before")
        for channel, known in (("phone", 1), ("room", 0)):
            db.execute(
                "insert into problem_notice (problem_id, channel, whom, kind, severity, told_at, faults, known)"
                f" values (1, '{channel}', '', 'open', 'warning', {AT}, '[]', {known})"
            )
        migrations.apply(db)
        rows = db.execute("select channel, severity_before from problem_notice order by channel").fetchall()
        assert rows == [("phone", "warning"), ("room", None)]


def test_a_pause_after_failures_is_known_after_an_upgrade() -> None:
    """An earlier version had only the text of who has paused it."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        migrations.apply(db, stop_before="m037_paused_after_failures")
        for name, by, failures in (("ops", "10 failures", 10), ("web", "1,000 failures", 1000), ("mail", "anna on phone", 3)):
            db.execute(
                "insert into entry (kind, name, state, pace, first_seen_at, anchor, settled_until, paused_by, failures_for_pause)"
                " values ('heartbeat', ?, 'active', '{}', 0, 0, 0, ?, ?)",
                (name, by, failures),
            )
        migrations.apply(db)
        found = db.execute("select name, paused_by, paused_after_failures from entry order by id").fetchall()
    assert found == [("ops", "10 failures", 10), ("web", "1,000 failures", 1000), ("mail", "anna on phone", 0)]

"""History limits end to end: which run records are deleted, and when."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, timedelta
from pathlib import Path

import pytest
from simulation import size
from test_story_slots import OPS, agent, job
from world import QUIET, Delayed, MakeWorld, World, count_steps

from scheduler.insight import status_data
from scheduler.model.message import DeliveryResult
from scheduler.store.locations import open_read_only

ALARM = "ALERT: the disk is full"
HOOK = 'channels: {hook: {kind: webhook, url: "http://127.0.0.1:1/x", allow_private: true}}\n'


@pytest.mark.parametrize(("runs", "most"), [(50, 60), (250, 280)])
def test_an_entry_that_runs_every_second_hardly_exceeds_its_history_limit(make_world: MakeWorld, runs: int, most: int) -> None:
    world = make_world(job(every="1s") + f"history: {{keep: 30d, runs: {runs}}}\n")
    rows = []
    for _ in range(2 * runs):
        world.run(seconds=1)
        rows.append(world.store.connection.execute("select count(*) from run").fetchone()[0])
    assert runs <= max(rows) <= most


def test_the_database_and_its_log_stay_small_while_a_page_is_polled(tmp_path: Path) -> None:
    """Each run writes about 20 KiB to the log. A reader that begins before a checkpoint and ends after it delays the log's reuse."""
    world = World(tmp_path, job(every="1s") + "history: {keep: 30d, runs: 50}\n")
    log, sizes = world.state.with_name(f"{world.state.name}-wal"), []
    with closing(open_read_only(world.state)) as reader:
        for _ in range(size(12, 2000)):
            reader.execute("begin")
            status_data.read_entries(reader, world.clock.now, UTC)
            world.run(seconds=50)
            reader.execute("rollback")
            world.run(seconds=5)
            sizes.append((world.state.stat().st_size, log.stat().st_size))
    world.stop()
    half = len(sizes) // 2
    assert max(size for size, _ in sizes[half:]) <= 1.1 * max(size for size, _ in sizes[:half])
    assert max(size for _, size in sizes) <= 4 * 1024 * 1024


def test_old_records_are_deleted_in_small_batches(make_world: MakeWorld) -> None:
    count = 10
    beat = '{runner: {kind: command, argv: [a]}, heartbeat: {interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: log}}'
    world = make_world("history: {keep: 30d, runs: 10}\nagents:\n" + "".join(f"  a{number}: {beat}\n" for number in range(count)))
    with world.store.transaction() as db:
        db.executemany(
            "insert into run (kind, name, slot, trigger, state, outcome, finished_at) values ('heartbeat', ?, ?, 'interval', 'closed', 'ok', ?)",
            [(f"a{n}", i, 1772438400000) for n in range(count) for i in range(600)],
        )
    world.engine.stopping = True
    before = len(world.records())
    world.engine.tick(world.clock.read())
    assert before - len(world.records()) == 500
    for _ in range(30):
        world.clock.advance(timedelta(minutes=1))
        world.engine.tick(world.clock.read())
    assert len(world.records()) == count * 10


def test_maintenance_asks_the_database_as_often_for_many_entries_as_for_few(make_world: MakeWorld) -> None:
    """On a server, each statement takes the time of a round trip, and the engine does nothing else for so long."""
    counted = []
    for count in (2, 60):
        world = make_world("cron:\n" + "".join(f"  job{number}: {{every: 1d, command: b}}\n" for number in range(count)))
        world.run(seconds=1)
        with world.traced_statements() as statements:
            for _ in range(3):
                world.clock.advance(timedelta(minutes=1))
                world.engine.tick(world.clock.read())
        assert sum(text.startswith("delete from hold") for text in statements) == 3  # maintenance ran
        counted.append(len(statements))
        world.kill()
        world.delete_database()
    assert counted[0] == counted[1]


@pytest.mark.sqlite_file("the steps of SQLite are counted")
def test_maintenance_does_not_read_the_whole_history(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="30m", deliver="hook") + HOOK)
    world.scripts["ops"] = lambda call: ALARM
    world.run(minutes=1)
    db, steps = world.store.connection, []
    runs = "insert into run (kind, name, slot, trigger, state, finished_at) values ('cron', 'gone', ?, 'cron', 'closed', ?)"
    messages = (
        "insert into outbox (key, channel, run_id, kind, name, trigger, slot, part, parts, title, text, state, not_before,"
        " created_at, finished_at) select ?, channel, run_id, kind, name, trigger, slot, part, parts, title, text, state,"
        " not_before, created_at, finished_at from outbox where id = 1"
    )
    for count in (0, 500):
        with world.store.transaction():
            now = int(world.clock.now.timestamp() * 1000)
            db.executemany(runs, [(number, now) for number in range(count)])
            db.executemany(messages, [(str(number),) for number in range(count)])
        world.clock.advance(timedelta(minutes=1))
        steps.append(count_steps(db, lambda: world.engine.tick(world.clock.read())))
    assert steps[1] < steps[0] + 500


def test_a_run_whose_message_is_not_sent_yet_is_not_deleted_from_the_history(make_world: MakeWorld) -> None:
    world = make_world("history: {runs: 10}\n" + agent(interval="5m", deliver="hook") + HOOK)
    world.scripts["ops"] = lambda call: ALARM if len(world.calls) == 1 else QUIET
    away = [True]
    world.send = lambda _: DeliveryResult("retry", "503") if away[0] else DeliveryResult("delivered")
    world.run(hours=8)
    rows = world.records("ops")
    assert len(rows) < 97
    assert rows[0]["planned_at"] == "2026-03-02T08:00:00Z"
    assert rows[1]["planned_at"] > "2026-03-02T12:00:00Z"  # other records of its age are deleted
    away[0] = False
    world.run(hours=3)
    assert [text for _, _, text in world.delivered if "channel hook undelivered" not in text] == [ALARM]


@pytest.mark.parametrize("state", ["delivered", "dead"])
def test_a_run_outlives_the_tick_in_which_its_message_arrives_or_is_given_up(make_world: MakeWorld, state: str) -> None:
    """The state of its channel is found out after old runs are deleted."""
    world = make_world("history: {runs: 1}\n" + agent(interval="1m", deliver="hook") + HOOK)
    world.scripts["ops"] = lambda call: ALARM if len(world.calls) == 1 else QUIET
    world.send = lambda _: Delayed(DeliveryResult(state), timedelta(minutes=2))
    world.run(minutes=2)
    assert world.records("ops")[0]["planned_at"] == "2026-03-02T08:00:00Z"
    world.run(minutes=5)
    assert not any(world.engine.health.internal_errors.values())
    assert world.records("ops")[0]["planned_at"] > "2026-03-02T08:00:00Z"


def test_run_ids_continue_after_the_whole_history_was_deleted(make_world: MakeWorld) -> None:
    world = make_world(OPS + "history: {keep: 1h}\n")
    world.run(minutes=31)
    world.pause(None)
    world.run(hours=5)
    assert world.records() == []
    world.resume(None)
    world.run(minutes=31)
    assert min(row["id"] for row in world.records()) > 2

"""Edge cases end to end: clocks that are set back, pauses during runs, calls that do not end, broken entries, large databases."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from test_story_slots import OPS, agent, job
from world import QUIET, Delayed, MakeWorld, World, utc

from scheduler.channels.message import DeliveryResult
from scheduler.engine.inbox import Refused
from scheduler.engine.loop import MAX_ENTRIES_PER_TICK, ClockReading
from scheduler.engine.pending_runs import CancelRun
from scheduler.engine.requests import RunJob, WakeAgent
from scheduler.engine.tick import Tick
from scheduler.model.wake import Wake
from scheduler.store import wakes
from scheduler.store.database import DatabaseUnavailable, Store

HOUR = timedelta(hours=1)
ALARM = "ALERT: the disk is full"
HOOK = 'channels: {hook: {kind: webhook, url: "http://127.0.0.1:1/x", allow_private: true}}\n'


def lock_database(world: World) -> sqlite3.Connection:
    other = sqlite3.connect(world.state, isolation_level=None)
    other.execute("begin immediate")
    world.store.connection.execute("pragma busy_timeout = 1")
    return other


# --- system clock changes ---------------------------------------------------------------------------------------------


def test_setting_the_clock_back_while_the_database_is_locked_does_not_stop_an_agent(make_world) -> None:
    world = make_world(OPS)
    world.run(minutes=70)
    other = lock_database(world)
    world.clock.now -= 2 * HOUR
    world.engine.tick(world.clock.read())
    other.execute("rollback")
    other.close()
    before = len(world.calls)
    world.run(minutes=35)
    assert len(world.calls) > before


def test_setting_the_clock_back_does_not_delay_a_retry(make_world) -> None:
    world = make_world(agent(retries="2"))
    world.scripts["ops"] = lambda call: 1 if len(world.calls) == 1 else QUIET
    world.engine.tick(world.clock.read())
    world.settle()
    world.clock.now -= timedelta(days=3)
    world.run(minutes=65)
    assert len(world.calls) >= 3


def test_setting_the_clock_back_after_a_woken_run_does_not_supersede_every_slot(make_world) -> None:
    world = make_world(OPS)
    world.run(minutes=5)
    world.wake("ops", "look")
    world.run(minutes=5)
    world.clock.now -= timedelta(days=1)
    before = len(world.calls)
    world.run(minutes=65)
    assert len(world.calls) - before >= 2


def test_setting_the_clock_back_does_not_delay_a_wake(make_world) -> None:
    world = make_world(agent(interval="1d"))
    world.run(minutes=5)
    world.wake("ops", "look")
    world.run(minutes=5)
    world.clock.now -= timedelta(days=1)
    world.run(minutes=1)
    before = len(world.calls)
    world.wake("ops", "look again")
    world.run(minutes=2)
    assert len(world.calls) == before + 1


def test_setting_the_clock_back_does_not_delay_a_message(make_world) -> None:
    world = make_world(agent(interval="1d", deliver="hook") + HOOK)
    world.scripts["ops"] = lambda call: ALARM
    down = [True]
    world.send = lambda _: DeliveryResult("retry", "down") if down[0] else DeliveryResult("delivered")
    world.run(minutes=1)
    world.clock.now -= timedelta(days=3)
    down[0] = False
    world.run(hours=3)
    assert [text for _, _, text in world.delivered] == [ALARM]


def test_setting_the_clock_back_does_not_delay_the_reminder_of_a_failure(make_world) -> None:
    world = make_world(agent(retries="0"))
    world.scripts["ops"] = lambda call: 1
    world.run(hours=1)
    world.clock.now -= timedelta(days=365)
    world.run(hours=7)
    assert [text.split(":")[0] for _, _, text in world.delivered][1:] == ["Agent ops still has the same problem"]


def test_setting_the_clock_back_does_not_keep_a_held_message_forever(make_world) -> None:
    world = make_world(agent(interval="7d", deliver="hook") + HOOK.replace("true}", "true, uncertain: hold}"))
    world.scripts["ops"] = lambda call: ALARM
    world.send = lambda _: DeliveryResult("uncertain", "no answer")
    world.run(minutes=1)
    world.clock.now -= timedelta(days=365)
    world.run(hours=25)
    assert world.records()[0]["delivery"]["state"] == "dead"


def test_a_cron_job_keeps_running_after_the_clock_was_ten_years_ahead_for_a_minute(make_world) -> None:
    world = make_world(job(schedule='"0 * * * *"', misfire="{grace: 1m}"), start="2026-03-02 08:30")
    world.run(minutes=40)
    world.clock.now += timedelta(days=3650)
    world.run(minutes=1)
    world.clock.now -= timedelta(days=3650)
    world.run(hours=3)
    assert len(world.calls) >= 3


def test_the_timeout_of_a_run_is_measured_by_the_monotonic_clock(make_world) -> None:
    world = make_world(job(every="1h", timeout="10m"))
    world.scripts["measure"] = lambda call: Delayed("never", timedelta(days=9))
    world.run(minutes=61)
    world.clock.now -= timedelta(hours=5)
    world.run(minutes=15)
    assert world.history()[0].endswith("timeout timeout")


def test_a_suspend_does_not_count_against_the_timeout_of_a_run(make_world) -> None:
    world = make_world(agent(interval="12h", timeout="5m", retries="0"))
    world.scripts["ops"] = lambda call: Delayed(QUIET, timedelta(hours=8, seconds=20))  # 20 s without the suspend
    world.run(seconds=10)
    world.clock.now += timedelta(hours=8)
    world.run(minutes=1)
    assert world.history()[0] == "03-02 08:00 interval ok heartbeat_ok"


# --- pause, disable, remove -------------------------------------------------------------------------------------------


def test_pausing_everything_records_nothing_for_disabled_agents(make_world) -> None:
    world = make_world(OPS)
    world.run(minutes=1)
    world.reload(agent(enabled="false"))
    world.run(hours=3)
    world.pause(None)
    world.run(hours=3)
    world.resume(None)
    assert world.history() == ["03-02 08:00 interval ok heartbeat_ok"]


def test_a_paused_job_is_not_retried(make_world) -> None:
    world = make_world(job(every="1h", retries="3"))
    world.scripts["measure"] = lambda call: 1
    world.run(minutes=60)
    world.settle()
    assert len(world.calls) == 1
    world.pause(None)
    world.run(minutes=5)
    assert len(world.calls) == 1


def test_a_failed_run_that_is_paused_before_its_retry_ends_failed_and_not_skipped(make_world) -> None:
    world = make_world(agent(retries="3"))
    world.scripts["ops"] = lambda call: 1
    world.engine.tick(world.clock.read())
    world.settle()
    world.pause(None)
    world.run(minutes=5)
    assert world.history() == ["03-02 08:00 interval failed no_time_left"]


def test_a_paused_reboot_job_does_not_run_at_boot(make_world) -> None:
    world = make_world(job(schedule='"@reboot"'))
    world.run(minutes=1)
    world.pause(None)
    world.downtime(seconds=5)
    world.run(minutes=1)
    assert len(world.calls) == 1


def test_slots_during_a_run_are_already_running_again_after_a_pause_has_ended(make_world) -> None:
    world = make_world(job(every="10m", timeout="5h", misfire="{grace: 1m}"))
    world.scripts["measure"] = lambda call: Delayed("", timedelta(minutes=115))
    world.run(minutes=11)
    world.pause(None, utc("2026-03-02 09:00"))
    world.run_until("2026-03-02 10:06")
    assert world.history() == [
        "03-02 08:10 every ok",
        "03-02 08:20 every skipped paused x5",
        "03-02 09:10 every skipped already_running x6",
    ]


def test_the_wakes_of_a_removed_agent_end_even_if_its_run_fails_later(make_world) -> None:
    other = "  other: {runner: {kind: command, argv: [a]}, heartbeat: {interval: 1d, deliver: log}}\n"
    world = make_world(agent(interval="1d", retries="0") + other)
    world.run(minutes=1)
    world.scripts["ops"] = lambda call: Delayed(1, timedelta(minutes=2))
    world.wake("ops", "look")
    world.run(seconds=5)
    world.reload("agents:\n" + other)
    world.run(minutes=5)
    states = [row[0] for row in world.store.connection.execute("select state from wake")]
    assert states == ["ended"]


def test_the_interrupted_run_of_a_removed_agent_is_closed(make_world) -> None:
    other = "  other: {runner: {kind: command, argv: [a]}, heartbeat: {interval: 1d, deliver: log}}\n"
    world = make_world(OPS + other)
    world.scripts["ops"] = lambda call: Delayed(QUIET, timedelta(minutes=2))
    world.run(seconds=5)
    world.reload("agents:\n" + other)
    world.engine.stopping = True
    world.engine.end_all_runs(world.clock.read())
    world.engine.tick(world.clock.read())
    world.stop()
    world.boot()
    world.run(hours=5)
    assert [row["state"] for row in world.records("ops")] == ["closed"]


# --- runs whose retry never starts ------------------------------------------------------------------------------------

LOUD = job(every="10m", retries="2", deliver="log", wake_heartbeat="ops", wake_on="failure") + agent(interval="1d")


def fail_without_retry(world: World) -> None:
    world.scripts["measure"] = lambda call: 1
    world.run(minutes=10)
    world.settle()
    assert len([call for call in world.calls if call.name == "measure"]) == 1
    world.downtime(minutes=15)
    world.scripts["measure"] = lambda call: ""
    world.run(seconds=5)
    assert "03-02 08:10 every failed no_time_left" in world.history("measure")


def test_a_failed_job_whose_retry_never_started_causes_a_notification(make_world) -> None:
    world = make_world(LOUD)
    fail_without_retry(world)
    assert [text for _, name, text in world.delivered if name == "measure"]


def test_a_failed_job_whose_retry_never_started_wakes_its_agent(make_world) -> None:
    world = make_world(LOUD)
    fail_without_retry(world)
    world.run(minutes=1)
    assert [line for line in world.history("ops") if "cron" in line]


def test_a_run_whose_retry_never_started_counts_as_a_failure(make_world) -> None:
    world = make_world(agent(retries="2"))
    world.scripts["ops"] = lambda call: 1
    world.engine.tick(world.clock.read())
    world.settle()
    world.downtime(minutes=35)
    world.scripts["ops"] = lambda call: Delayed(QUIET, timedelta(minutes=1))
    world.run(seconds=5)
    assert world.history()[0] == "03-02 08:00 interval failed no_time_left"
    assert world.store.connection.execute("select failures from entry").fetchone()[0] == 1


# --- calls that do not end --------------------------------------------------------------------------------------------


def test_an_attempt_that_cannot_be_cancelled_is_not_retried_while_it_runs(make_world) -> None:
    world = make_world(agent(timeout="1m", retries="2"))
    world.scripts["ops"] = lambda call: Delayed("never", timedelta(days=1))
    world.runs.cancel = lambda number, why: None  # type: ignore[method-assign]  # cancelling has no effect
    world.run(minutes=10)
    assert len(world.calls) == 1


def test_an_attempt_after_a_timeout_has_a_timeout_of_its_own(make_world) -> None:
    world = make_world(agent(timeout="1m", retries="1"))
    answers = iter([Delayed("never", timedelta(days=1)), Delayed(QUIET, timedelta(seconds=30))])
    world.scripts["ops"] = lambda call: next(answers)
    world.run(minutes=5)
    assert (len(world.calls), world.history()) == (2, ["03-02 08:00 interval ok heartbeat_ok"])


def test_a_cancelled_run_that_does_not_end_is_given_up_after_seconds(make_world) -> None:
    world = make_world(agent(timeout="1h"))
    world.scripts["ops"] = lambda call: Delayed("never", timedelta(days=1))
    world.run(minutes=1)
    world.runs.cancel = lambda number, why: None  # type: ignore[method-assign]
    world.request(CancelRun(world.records()[0]["id"]))
    world.run(seconds=9)
    assert world.records()[0]["state"] == "running"
    world.run(seconds=3)
    assert world.history() == ["03-02 08:00 interval abandoned cancelled"]


def test_a_run_is_ended_at_its_timeout_even_if_the_database_is_locked(make_world) -> None:
    world = make_world(job(every="1h", timeout="1m"))
    world.scripts["measure"] = lambda call: Delayed("never", timedelta(days=1))
    world.run(minutes=60, seconds=30)
    other = lock_database(world)
    for _ in range(60):
        world.clock.advance(timedelta(seconds=1))
        world.engine.tick(world.clock.read())
    ended = not world.runs.inflight()
    other.execute("rollback")
    other.close()
    assert ended


# --- jobs with a stagger ----------------------------------------------------------------------------------------------


def test_a_changed_stagger_does_not_lose_the_slot_it_delays(make_world) -> None:
    world = make_world(job(schedule='"0 3 * * *"', stagger="4h"), start="2026-03-02 00:00")
    due = world.store.connection.execute("select due_at from entry").fetchone()[0] / 1000
    assert due > utc("2026-03-02 03:10").timestamp()
    world.run_until("2026-03-02 03:05")
    world.reload(job(schedule='"0 3 * * *"', stagger="0s"))
    world.run_until("2026-03-03 00:00")
    assert sum(row["slots"] for row in world.records()) == 1


# --- wakes ------------------------------------------------------------------------------------------------------------


def test_a_schedule_change_between_a_slot_and_its_staggered_start_does_not_lose_the_slot(make_world) -> None:
    world = make_world(job(schedule='"0 8 * * *"', stagger="2m"), start="2026-03-02 07:30")
    world.run_until("2026-03-02 08:00:05")  # the stagger of this job is 10 s
    world.reload(job(schedule='"0 8,20 * * *"', stagger="2m"))
    world.run_until("2026-03-02 20:01")
    assert world.history() == ["03-02 08:00 schedule ok", "03-02 20:00 schedule ok"]


def test_a_job_added_or_enabled_between_a_slot_and_its_staggered_start_runs_that_slot(make_world) -> None:
    staggered = job(schedule='"0 8,9 * * *"', stagger="2m")  # 10 s
    world = make_world(staggered, start="2026-03-02 08:00:05")
    world.run_until("2026-03-02 08:30")
    world.reload(job(schedule='"0 8,9 * * *"', stagger="2m", enabled="false"))
    world.run_until("2026-03-02 09:00:05")
    world.reload(staggered)
    world.run_until("2026-03-02 10:00")
    assert world.history() == ["03-02 08:00 schedule ok", "03-02 09:00 schedule ok"]


def test_a_schedule_change_after_a_slot_has_run_does_not_repeat_the_slot(make_world) -> None:
    world = make_world(job(schedule='"0 8 * * *"', stagger="2m"), start="2026-03-02 07:30")
    world.run_until("2026-03-02 08:00:12")
    world.reload(job(schedule='"0 8,20 * * *"', stagger="5m"))
    world.run_until("2026-03-02 20:05")
    assert world.history() == ["03-02 08:00 schedule ok", "03-02 20:00 schedule ok"]


def test_a_wake_expires_by_the_time_it_was_last_merged_and_not_first_sent(make_world) -> None:
    world = make_world(agent(interval="1h"))
    world.run(minutes=1)
    world.pause(("heartbeat", "ops"))
    for hour in range(24):
        world.wake("ops", f"message {hour}")
        world.run(hours=1)
    world.wake("ops", "the house is on fire")
    world.run(minutes=5)
    world.resume(("heartbeat", "ops"))
    world.run(hours=1)
    assert "the house is on fire" in world.calls[-1].stdin


def test_runs_of_a_job_are_not_counted_as_wakes_of_the_agent_with_its_name(make_world) -> None:
    world = make_world(agent(interval="1d") + "cron:\n  ops: {every: 1h, command: x}\n")
    world.run(minutes=1)
    world.request(RunJob("ops", "manual"))
    world.run(minutes=1)
    assert [
        event
        for event in world.events
        if type(event).__name__ == "WakeMoved" and getattr(event, "kind", "heartbeat") == "heartbeat"
    ] == []


def test_a_wake_starts_a_run_even_if_twenty_others_wait(make_world) -> None:
    world = make_world("limits: {wake_flood: 100 per 1s}\n" + agent(interval="1d"))
    world.run(minutes=1)
    world.pause(("heartbeat", "ops"))
    for number in range(20):
        world.wake("ops", f"message {number}", sender=f"sender{number}")
        world.run(seconds=2)
    world.resume(("heartbeat", "ops"))
    before = len(world.calls)
    world.wake("ops", "look", sender="another")
    world.run(minutes=2)
    assert len(world.calls) == before + 1


# --- run --once -------------------------------------------------------------------------------------------------------


def test_run_once_before_the_first_daemon_does_not_disable_the_stagger(tmp_path: Path) -> None:

    names = [f"agent{number}" for number in range(8)]
    beat = '{runner: {kind: command, argv: [a]}, heartbeat: {interval: 30m, stagger: 50%, checklist: "- look\\n", deliver: log}}'
    world = World(tmp_path, "x-a: 1\nagents:\n" + "".join(f"  {name}: {beat}\n" for name in names))
    world.store.close()
    world.state.unlink()
    for rest in world.state.parent.glob("*-*"):
        rest.unlink()
    world.boot(at_once=True)
    anchors = {row[0] for row in world.store.connection.execute("select anchor from entry")}
    world.store.close()
    assert len(anchors) > 1


def world_after_run_once(make_world: MakeWorld, yaml: str, start: str = "2026-03-02 08:00:00.400") -> World:
    """A world in which a `run --once` sees these entries for the first time."""
    world = make_world("x-nothing: 1\ncron: {other: {every: 1d, command: nothing, enabled: false}}\n", start=start)
    world.kill()
    world.config.write_text(yaml, "utf-8")
    world.boot(at_once=True)
    return world


@pytest.mark.parametrize("takes", [0, 3])
def test_run_once_runs_a_new_agent_once_however_long_it_takes(make_world: MakeWorld, takes: int) -> None:
    world = world_after_run_once(make_world, agent(stagger="0s"))
    world.durations["ops"] = timedelta(seconds=takes)
    world.run(minutes=1)
    assert world.engine.is_idle(world.clock.now)
    assert world.history() == ["03-02 08:00 interval ok heartbeat_ok"]


def test_the_daemon_runs_an_agent_once_per_interval_after_run_once(make_world: MakeWorld) -> None:
    world = world_after_run_once(make_world, agent(stagger="50%"))
    world.run(minutes=1)
    world.downtime(minutes=1)
    world.run(minutes=119)
    starts = [call.at for call in world.calls]
    assert len(starts) == 4
    assert timedelta(minutes=30) <= starts[1] - starts[0] <= timedelta(minutes=45)
    assert [later - earlier for earlier, later in pairwise(starts[1:])] == [timedelta(minutes=30)] * 2
    assert sum(row["slots"] for row in world.records()) == 4


def test_run_once_outside_active_hours_is_recorded_and_the_daemon_runs_at_the_first_opening(
    make_world: MakeWorld,
) -> None:
    world = world_after_run_once(make_world, agent(interval="7d", active_hours='"08:00-22:00"'), start="2026-03-02 23:00")
    world.run(minutes=1)
    world.downtime(minutes=1)
    world.run(days=8)
    assert world.history() == [
        "03-02 23:00 interval skipped active_hours",
        "03-03 08:00 interval ok heartbeat_ok",
        "03-10 08:00 interval ok heartbeat_ok",
    ]


def test_an_agent_run_by_run_once_before_closing_does_not_run_again_at_the_next_opening(make_world: MakeWorld) -> None:
    keys = {"interval": "7d", "stagger": "10%", "active_hours": '"08:00-22:00"'}
    world = world_after_run_once(make_world, agent(**keys), start="2026-03-02 21:59")
    world.run(days=6)
    assert world.history() == ["03-02 21:59 interval ok heartbeat_ok"]


def test_run_once_runs_a_reboot_job_once(make_world: MakeWorld) -> None:
    world = world_after_run_once(make_world, job(schedule='"@reboot"'))
    world.run(minutes=1)
    assert len(world.calls) == 1


def test_the_quiet_counter_counts_successes_without_a_message(make_world) -> None:
    world = make_world(agent(show_alerts="false", show_ok="true"))
    world.scripts["ops"] = lambda call: ALARM
    world.run(hours=1)
    assert world.store.connection.execute("select quiet from entry").fetchone()[0] == 3


# --- broken entries ---------------------------------------------------------------------------------------------------


def test_an_entry_whose_stored_schedule_is_unreadable_does_not_keep_the_daemon_from_starting(make_world) -> None:
    world = make_world(agent() + job(every="10m"))
    world.run(minutes=1)
    with world.store.transaction() as db:
        db.execute('update entry set pace = \'{"schedule": "rubbish", "zone": "UTC", "offset": 0}\' where name = \'measure\'')
    world.downtime(seconds=5)
    world.run(minutes=31)
    assert len(world.records("ops")) == 2


def test_a_run_with_a_broken_entry_is_abandoned_and_does_not_affect_a_run_that_ends_in_the_same_tick(make_world) -> None:
    world = make_world(agent(interval="30m") + job(every="30m"))
    world.run(minutes=20)
    world.scripts["ops"] = lambda call: Delayed(QUIET, timedelta(minutes=1))
    world.scripts["measure"] = lambda call: Delayed("", timedelta(minutes=1))
    world.run(minutes=10, seconds=30)
    assert len(world.runs.inflight()) == 2
    with world.store.transaction() as db:
        db.execute('update entry set pace = \'{"schedule": "rubbish", "zone": "UTC", "offset": 0}\' where name = \'measure\'')
    world.run(minutes=5)
    assert (world.history("ops")[-1][6:11], world.records("ops")[-1]["outcome"]) == ("08:30", "ok")
    assert (world.records("measure")[0]["outcome"], "could not be recorded" in world.records("measure")[0]["error"]) == (
        "abandoned",
        True,
    )


# --- size -------------------------------------------------------------------------------------------------------------


def test_one_tick_handles_a_limited_number_of_due_entries(tmp_path: Path) -> None:
    count = 5_000
    beat = '{runner: {kind: command, argv: [a]}, heartbeat: {interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: log}}'
    world = World(tmp_path, "agents:\n" + "".join(f"  a{number}: {beat}\n" for number in range(count)))
    world.clock.advance(timedelta(hours=5, minutes=15))  # all missed, older than their grace
    world.engine.tick(world.clock.read())
    assert len(world.records()) == MAX_ENTRIES_PER_TICK < count
    world.settle()
    assert len(world.records()) == count
    world.store.close()


@pytest.mark.parametrize(("runs", "most"), [(50, 60), (500, 560)])
def test_an_entry_that_runs_every_second_hardly_exceeds_its_history_limit(make_world, runs: int, most: int) -> None:
    world = make_world(job(every="1s") + f"history: {{keep: 30d, runs: {runs}}}\n")
    rows = []
    for _ in range(2 * runs):
        world.run(seconds=1)
        rows.append(world.store.connection.execute("select count(*) from run").fetchone()[0])
    assert runs <= max(rows) <= most


def test_no_run_record_is_later_than_the_last_tick_of_its_boot(make_world) -> None:
    world = make_world(job(every="1s"))
    for _ in range(20):
        world.run(seconds=1)
        latest = "select last_tick_at, (select max(max(started_at), max(finished_at)) from run) from boot"
        seen, written = world.store.connection.execute(latest).fetchone()
        assert written is None or written <= seen


def test_old_records_are_deleted_in_small_batches(tmp_path: Path) -> None:
    count = 10
    beat = '{runner: {kind: command, argv: [a]}, heartbeat: {interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: log}}'
    world = World(
        tmp_path, "history: {keep: 30d, runs: 10}\nagents:\n" + "".join(f"  a{number}: {beat}\n" for number in range(count))
    )
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
    world.store.close()


def test_a_run_whose_message_is_not_sent_yet_is_not_deleted_from_the_history(make_world) -> None:
    world = make_world("history: {runs: 10}\n" + agent(interval="5m", deliver="hook") + HOOK)
    world.scripts["ops"] = lambda call: ALARM if len(world.calls) == 1 else QUIET
    away = [True]
    world.send = lambda _: DeliveryResult("retry", "503") if away[0] else DeliveryResult("delivered")
    world.run(hours=8)
    rows = world.records("ops")
    assert len(rows) < 97
    assert rows[0]["slot"] == "2026-03-02T08:00:00Z"
    assert rows[1]["slot"] > "2026-03-02T12:00:00Z"  # other records of its age are deleted
    away[0] = False
    world.run(hours=3)
    assert [text for _, _, text in world.delivered] == [ALARM]


# --- further ----------------------------------------------------------------------------------------------------------


def test_setting_the_clock_back_twice_by_an_interval_in_total_does_not_stop_an_agent(make_world) -> None:
    world = make_world(OPS)
    world.run(minutes=70)
    world.clock.now -= HOUR
    world.run(minutes=5)
    before = len(world.calls)
    world.clock.now -= timedelta(minutes=29, seconds=59)
    world.run(minutes=65)
    assert len(world.calls) - before >= 2


def test_a_run_interrupted_by_a_crash_during_a_pause_is_abandoned_and_not_skipped(make_world) -> None:
    world = make_world(OPS)
    world.scripts["ops"] = lambda call: Delayed(QUIET, timedelta(minutes=2))
    world.run(seconds=5)
    world.pause(None)
    world.downtime(seconds=5)
    world.run(minutes=1)
    assert world.history()[0].startswith("03-02 08:00 interval abandoned")


def test_an_interrupted_run_that_another_daemon_has_claimed_is_not_put_back(make_world) -> None:
    world = make_world(OPS)
    world.scripts["ops"] = lambda call: Delayed(QUIET, timedelta(minutes=2))
    world.run(seconds=5)
    with world.store.transaction() as db:
        db.execute("update run set fence = fence + 1, owner = 'another'")
    world.engine.stopping = True
    world.engine.end_all_runs(world.clock.read())
    world.engine.tick(world.clock.read())
    assert world.records()[0]["state"] == "running"


def test_an_error_text_that_is_not_valid_unicode_does_not_stop_the_daemon(make_world, caplog) -> None:
    caplog.set_level(logging.CRITICAL, logger="heartbeatd")  # a test worker cannot report a text that cannot be encoded
    world = make_world(OPS)
    world.scripts["ops"] = lambda call: OSError("no such file: caf\udce9")
    world.run(minutes=1)
    assert world.history()[0].startswith("03-02 08:00 interval failed")


def test_an_entry_that_breaks_during_its_run_does_not_stop_other_entries(make_world) -> None:
    world = make_world(agent() + job(every="10m"))
    world.scripts["measure"] = lambda call: Delayed("", timedelta(minutes=1))
    world.run(minutes=10, seconds=5)
    with world.store.transaction() as db:
        db.execute('update entry set pace = \'{"schedule": "rubbish", "zone": "UTC", "offset": 0}\' where name = \'measure\'')
    world.run(minutes=25)
    assert len(world.records("ops")) == 2


def test_the_rerun_of_an_interrupted_reboot_job_counts_as_its_run_at_boot(make_world) -> None:
    world = make_world(job(schedule='"@reboot"', rerun_after_crash="true"))
    world.scripts["measure"] = lambda call: Delayed("", timedelta(minutes=1))
    world.run(seconds=5)
    world.downtime(seconds=5)
    world.run(minutes=5)
    assert len(world.calls) == 2


def test_a_disabled_job_interrupted_by_a_stop_does_not_run_again(make_world) -> None:
    text = job(every="1h", rerun_after_crash="true")
    world = make_world(text)
    world.scripts["measure"] = lambda call: Delayed("", timedelta(minutes=5))
    world.run(minutes=61)
    world.reload(job(every="1h", rerun_after_crash="true", enabled="false"))
    world.engine.stopping = True
    world.engine.end_all_runs(world.clock.read())
    world.engine.tick(world.clock.read())
    world.stop()
    world.boot()
    world.run(minutes=1)
    assert len(world.calls) == 1


def test_a_run_whose_process_outlived_the_daemon_is_not_repeated(make_world) -> None:
    world = make_world(OPS)
    world.scripts["ops"] = lambda call: Delayed(QUIET, timedelta(minutes=1))
    world.run(seconds=5)
    run_id = world.records()[0]["id"]
    world.kill()
    world.boot(survivors={f"boot1/{run_id}": True})
    world.run(minutes=2)
    assert len(world.calls) == 1
    assert world.history()[0] == "03-02 08:00 interval abandoned child_may_still_run"


class FaultyRequest:
    """A request that raises an unexpected error after it has written a wake."""

    def apply(self, tick: Tick) -> int:
        WakeAgent(Wake("ops", source="api", sender="odd")).apply(tick)
        raise ValueError("half a character")


def test_an_unexpected_error_in_a_request_is_reported_and_rolled_back_and_the_daemon_goes_on(make_world) -> None:
    world = make_world(OPS)
    world.run(seconds=5)
    with pytest.raises(Refused, match="the daemon failed to do this; see its log") as refused:
        world.request(FaultyRequest())
    assert refused.value.code == "broken"
    assert wakes.count_waiting_by_agent(world.store.connection) == []
    world.wake("ops", "look")
    world.run(seconds=5)
    assert world.history() == ["03-02 08:00 interval ok heartbeat_ok", "03-02 08:00 api ok heartbeat_ok"]


class FailingCommit(Store):
    """A store whose transactions fail at the commit while `fails` is set."""

    fails = True

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        with super().transaction() as db:
            yield db
            if self.fails:
                raise DatabaseUnavailable("the disk is gone")


def test_a_tick_whose_commit_fails_emits_no_event_and_sends_nothing(make_world) -> None:
    world = make_world(agent(deliver="hook") + HOOK)
    world.scripts["ops"] = lambda call: ALARM
    world.run(minutes=10)
    before = (list(world.events), len(world.delivered), len(world.calls))
    world.store.close()
    world.store = world.engine.store = store = FailingCommit.open(world.state)
    world.run(hours=1)
    assert (world.events, len(world.delivered), len(world.calls)) == before
    assert world.engine.health.problem == "the disk is gone"
    store.fails = False
    world.run(minutes=1)
    closed = [event.slot for event in world.events[len(before[0]) :] if type(event).__name__ == "RunClosed"]
    assert len(closed) == len(set(closed)) > 0
    assert world.engine.health.problem is None


def test_a_deadline_within_a_rounding_error_does_not_make_the_engine_spin(make_world) -> None:
    world = make_world(
        agent(interval="1d", timeout="5m"), scripts={"ops": lambda call: Delayed("HEARTBEAT_OK", timedelta(hours=1))}
    )
    world.engine.tick(world.clock.read())
    now = world.clock.now + timedelta(minutes=5)
    almost = world.clock.monotonic + 300 - 5e-10
    assert world.engine.tick(ClockReading(now, almost)) > now

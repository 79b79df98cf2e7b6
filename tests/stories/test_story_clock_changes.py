"""System clock changes end to end: a clock that is ahead or behind for a few seconds, set back, or possibly wrong."""

from __future__ import annotations

import random
import re
from contextlib import closing
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from test_story_explain import explain_day_of, stretch_lines
from test_story_slots import OPS, agent, job
from world import QUIET, Delayed, MakeWorld, World, utc

from scheduler.config.keys.value_types import parse_positive_duration
from scheduler.engine import plan_sync
from scheduler.engine.tick_items import Tick
from scheduler.model.events import RunClosed, SkipsRevoked
from scheduler.model.message import DeliveryResult
from scheduler.model.outcome import Kind
from scheduler.store import boots, entries, wakes
from scheduler.store.transaction import Transaction

A_YEAR = timedelta(days=365)
HOUR = timedelta(hours=1)
ALARM = "ALERT: the disk is full"
HOOK = 'channels: {hook: {kind: webhook, url: "http://127.0.0.1:1/x", allow_private: true}}\n'
PARTY = 'cron: {party: {at: "2026-03-05T18:00", command: party}}\n'


def set_clock_ahead_and_right(world: World, by: timedelta = A_YEAR, **lasts: float) -> None:
    """Set the clock ahead, let time pass (5 s by default), and set it right again."""
    world.clock.now += by
    world.run(**(lasts or {"seconds": 5}))
    world.clock.now -= by
    world.settle()


def set_clock_back_and_right(world: World, by: timedelta = A_YEAR, **lasts: float) -> None:
    """Set the clock back, let time pass, and set it right again."""
    world.clock.now -= by
    world.run(**(lasts or {"seconds": 5}))
    world.clock.now += by
    world.settle()


def count_slots(world: World, name: str) -> int:
    """The number of slots of an entry that the run records account for."""
    return sum(row["planned_runs"] for row in world.records(name))


def start_times(world: World, name: str) -> list[float]:
    """The start times of an entry, in seconds of the monotonic clock."""
    return [call.monotonic for call in world.calls if call.name == name]


# --- ahead for a few seconds ------------------------------------------------------------------------------------------


def test_a_one_time_job_runs_at_its_time_after_the_clock_was_ahead_for_a_few_seconds(make_world: MakeWorld) -> None:
    world = make_world(PARTY)
    world.run(minutes=10)
    set_clock_ahead_and_right(world)
    world.run_until("2026-03-06 00:00")
    assert world.history("party") == ["03-05 18:00 at ok"]
    assert [call.at for call in world.calls] == [utc("2026-03-05 18:00")]


def test_slots_run_at_their_times_after_the_clock_was_ahead_for_a_few_seconds(make_world: MakeWorld) -> None:
    world = make_world(job(schedule='"0 * * * *"', misfire="{grace: 1m}"), start="2026-03-02 08:10")
    world.run(minutes=5)
    set_clock_ahead_and_right(world)
    world.run_until("2026-03-02 12:30")
    assert world.history() == [f"03-02 {hour:02}:00 schedule ok" for hour in (9, 10, 11, 12)]


def test_slots_that_have_passed_stay_missed_if_the_clock_is_set_back_by_less_than_it_was_ahead(make_world: MakeWorld) -> None:
    world = make_world(job(schedule='"0 * * * *"', misfire="{grace: 1m}"), start="2026-03-02 08:10")
    world.run(minutes=5)
    world.clock.now += A_YEAR
    world.run(seconds=5)
    world.clock.now -= A_YEAR - timedelta(hours=3)
    world.run_until("2026-03-02 13:30")
    assert world.history() == ["03-02 09:00 schedule skipped missed x3", "03-02 12:00 schedule ok", "03-02 13:00 schedule ok"]


def test_skips_recorded_for_future_slots_are_taken_back_with_an_event(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1h", active_hours='"06:00-22:00"') + job(schedule='"0 * * * *"'), start="2026-03-02 08:10")
    world.run(minutes=5)
    set_clock_ahead_and_right(world)
    assert all(row["result"] != "skipped" for row in world.records())
    taken = [event for event in world.events if isinstance(event, SkipsRevoked)]
    assert {(event.name, event.reason) for event in taken} == {("ops", "missed"), ("ops", "active_hours"), ("measure", "missed")}


def test_a_daemon_started_while_the_clock_was_ahead_takes_its_skips_back_too(make_world: MakeWorld) -> None:
    world = make_world(job(schedule='"0 * * * *"', misfire="{grace: 1m}") + PARTY.replace("cron: {", "  ").replace("}}", "}"))
    world.run_until("2026-03-02 08:10")
    world.kill()
    world.clock.advance(timedelta(minutes=2))
    world.clock.now += A_YEAR
    world.boot()
    world.run(seconds=5)
    world.clock.now -= A_YEAR
    world.run_until("2026-03-05 19:00")
    assert world.history("party") == ["03-05 18:00 at ok"]
    assert count_slots(world, "measure") == len(world.records("measure")) == 16 + 24 + 24 + 20


def test_a_clock_that_was_ahead_before_a_crash_and_right_after_it_loses_no_slot(make_world: MakeWorld) -> None:
    world = make_world(job(schedule='"0 * * * *"', misfire="{grace: 1m}"), start="2026-03-02 08:10")
    world.run(minutes=5)
    world.clock.now += A_YEAR
    world.run(seconds=5)
    world.kill()
    world.clock.now -= A_YEAR
    world.boot()
    world.run_until("2026-03-02 10:30")
    assert world.history() == ["03-02 09:00 schedule ok", "03-02 10:00 schedule ok"]
    assert all(down.until is None or down.since <= down.until for down in boots.latest_downtimes(world.store.connection))


def test_a_run_that_a_crash_interrupts_while_the_clock_is_ahead_does_not_end_in_the_future(make_world: MakeWorld) -> None:
    world = make_world(job(schedule='"0 * * * *"', retries="0"), start="2026-03-02 08:59")
    world.durations["measure"] = timedelta(minutes=30)
    world.run(minutes=3)
    world.clock.now += timedelta(minutes=10)
    world.run(seconds=5)
    world.kill()
    world.clock.now -= timedelta(minutes=10)
    world.boot(survivors={})
    world.run(minutes=1)
    [row] = world.records("measure")
    assert (row["result"], row["finished_at"][:16]) == ("abandoned", "2026-03-02T09:02")


def test_interval_slots_do_not_move_after_the_clock_was_ahead_for_a_few_seconds(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="30m"))
    world.run(minutes=10)
    set_clock_ahead_and_right(world, timedelta(minutes=7, seconds=13))
    world.run(hours=1)
    assert world.history() == [f"03-02 {time} interval ok heartbeat_ok" for time in ("08:00", "08:30", "09:00")]


def test_a_changed_interval_works_even_if_the_last_run_was_under_a_clock_that_was_ahead(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="30m"))
    world.run(minutes=29, seconds=55)
    set_clock_ahead_and_right(world, A_YEAR, seconds=20)
    world.run(minutes=1)
    world.reload(agent(interval="20m"))
    before = len(world.calls)
    world.run(hours=1)
    assert len(world.calls) - before >= 2


def test_an_agent_added_while_the_clock_was_ahead_runs(make_world: MakeWorld) -> None:
    world = make_world(job(every="1d"))
    world.run(minutes=5)
    world.clock.now += A_YEAR
    world.run(seconds=5)
    world.reload(job(every="1d") + OPS)
    world.run(seconds=5)
    world.clock.now -= A_YEAR
    before = len(world.calls)
    world.run(hours=2)
    assert len(world.calls) - before >= 3


def test_a_job_added_while_the_clock_was_ahead_still_runs_the_slot_that_its_stagger_delays(make_world: MakeWorld) -> None:
    world = make_world(job(every="1d"), start="2026-03-02 09:00:30")
    world.clock.now += A_YEAR
    world.run(seconds=5)
    world.reload(job(every="1d") + "  tidy: {schedule: '0 * * * *', stagger: 30m, command: tidy}\n")
    world.run(seconds=5)
    world.clock.now -= A_YEAR
    world.run(minutes=95)
    assert [line.partition(" schedule")[0] for line in world.history("tidy")][-2:] == ["03-02 09:00", "03-02 10:00"]


def test_an_agent_first_stored_by_a_command_while_the_clock_was_ahead_runs(make_world: MakeWorld) -> None:
    world = make_world(job(every="1d"))
    world.run(minutes=5)
    world.stop()
    world.clock.now += A_YEAR
    world.write_config(job(every="1d") + OPS)
    with closing(world.open_store()) as store, store.transaction() as db:
        tick = Tick(Transaction(db, world.clock.now, "a command"), world.plan(), world.clock.now, random.Random(1))
        plan_sync.sync_entries(tick, {})
    world.clock.now -= A_YEAR
    world.boot()
    world.run(hours=2)
    assert len(world.calls) >= 3


def test_woken_runs_under_a_clock_that_was_ahead_do_not_count_against_the_rate_limit_later(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1d") + "limits: {wake_gap: 1s, wake_flood: 2 per 10m}\n")
    world.run(minutes=5)
    world.clock.now += A_YEAR
    for _ in range(2):
        world.wake("ops", "look")
        world.run(seconds=5)
    world.clock.now -= A_YEAR
    world.run(minutes=15)
    before = len(world.calls)
    world.wake("ops", "look again")
    world.run(minutes=1)
    assert len(world.calls) == before + 1


# --- nothing is deleted, expired or given up --------------------------------------------------------------------------


def executed_slots(world: World) -> list[str]:
    return [row["planned_at"] for row in world.records() if row["result"] != "skipped"]


@pytest.mark.parametrize("way", ["jump", "start"])
def test_no_history_is_deleted_within_an_hour_of_a_clock_change(make_world: MakeWorld, way: str) -> None:
    world = make_world(OPS)
    world.run(hours=2)
    before = executed_slots(world)
    _far_ahead(world, way)
    world.run(minutes=58)
    assert executed_slots(world)[: len(before)] == before
    world.run(minutes=5)
    assert not set(executed_slots(world)) & set(before)


def test_each_clock_change_restarts_the_hour_and_a_restart_does_not_end_it(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    world.run(hours=2)
    before = executed_slots(world)
    world.clock.now += A_YEAR
    world.run(minutes=50)
    world.clock.now += timedelta(seconds=30)
    world.run(minutes=20)
    world.downtime(seconds=5)
    world.run(minutes=30)
    assert executed_slots(world)[: len(before)] == before


def test_a_short_restart_does_not_count_as_a_clock_change(make_world: MakeWorld) -> None:
    world = make_world(OPS + "history: {keep: 1h}\n")
    world.run(hours=2)
    first = executed_slots(world)[0]
    world.downtime(seconds=30)
    world.run(minutes=31)
    assert first not in executed_slots(world)


@pytest.mark.parametrize("way", ["jump", "start"])
def test_no_wake_expires_within_an_hour_of_a_clock_change(make_world: MakeWorld, way: str) -> None:
    world = make_world(
        agent(interval="30d", active_hours='"09:00-10:00"') + "limits: {wake_keep: 2h}\n", start="2026-03-02 12:00"
    )
    world.run(minutes=5)
    world.wake("ops", "look")
    _far_ahead(world, way)
    world.run(minutes=58)
    assert wakes.count_waiting_wakes(world.store.connection, Kind.HEARTBEAT, "ops") == 1
    world.run(minutes=5)
    assert wakes.count_waiting_wakes(world.store.connection, Kind.HEARTBEAT, "ops") == 0


@pytest.mark.parametrize("way", ["jump", "start"])
@pytest.mark.parametrize("sent", ["retry", "uncertain"])
def test_no_message_is_given_up_within_an_hour_of_a_clock_change(make_world: MakeWorld, way: str, sent: Any) -> None:
    world = make_world(agent(interval="30d", deliver="hook") + HOOK.replace("true}", "true, uncertain: hold}"))
    world.scripts["ops"] = lambda call: ALARM
    world.send = lambda _: DeliveryResult(sent, "down")
    world.run(minutes=2)
    _far_ahead(world, way)
    world.run(minutes=58)
    assert _messages(world) in ({"pending"}, {"held"})
    world.run(minutes=10 if sent == "uncertain" else 130)
    assert _messages(world) <= {"dead"}


def test_daily_costs_and_lane_holds_survive_a_clock_that_was_ahead(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    with world.store.transaction() as db:
        db.execute("insert into spend values ('2026-03-02', '', '', 5, 0, 0, 1)")
        db.execute("insert into hold values ('ops', 'a gateway', ?)", (1772440200000,))  # until 08:30
    world.run(minutes=5)
    set_clock_ahead_and_right(world)
    tables = {name: world.store.connection.execute(f"select count(*) from {name}").fetchone()[0] for name in ("spend", "hold")}
    assert tables == {"spend": 1, "hold": 1}


def _messages(world: World) -> set[str]:
    """The states of all messages that are not failure notifications."""
    return {row[0] for row in world.store.connection.execute("select state from outbox where notice is null")}


def _far_ahead(world: World, way: str) -> None:
    if way == "jump":
        world.clock.now += A_YEAR
        return
    world.kill()
    world.clock.now += A_YEAR
    world.boot()


# --- behind for a few seconds -----------------------------------------------------------------------------------------


def test_a_clock_that_is_far_behind_for_a_few_seconds_causes_no_missed_slot(make_world: MakeWorld) -> None:
    world = make_world(OPS + job(schedule='"0 * * * *"'), start="2026-03-02 08:10")
    world.run(hours=2)
    before = len(world.records())
    set_clock_back_and_right(world)
    world.run(minutes=50)
    assert [row for row in world.records() if row["result"] == "skipped"] == []
    assert world.history("measure")[-1] == "03-02 11:00 schedule ok"
    assert len(world.records()) - before == 2


def test_booting_with_a_wrong_clock_that_is_corrected_later_misses_only_the_slots_of_the_downtime(
    make_world: MakeWorld,
) -> None:
    world = make_world(OPS + job(schedule='"0 * * * *"', misfire="{grace: 1m}"), start="2026-03-02 08:10")
    world.run(hours=2)
    world.kill()
    world.clock.advance(timedelta(hours=1, minutes=5))
    right = world.clock.now
    world.clock.now = utc("2024-01-01 00:00:00")
    world.boot()
    world.run(seconds=20)
    world.clock.now = right + timedelta(seconds=20)
    world.run(minutes=50)
    assert world.history("measure") == [
        "03-02 09:00 schedule ok",
        "03-02 10:00 schedule ok",
        "03-02 11:00 schedule skipped missed",
        "03-02 12:00 schedule ok",
    ]
    missed = [row["planned_runs"] for row in world.records("ops") if row["result"] == "skipped"]
    assert sum(missed) in (1, 2, 3)


# --- set back by whole intervals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 2, 12])
@pytest.mark.parametrize("hours", [1, 24])
@pytest.mark.parametrize("down", [False, True], ids=["running", "down"])
def test_setting_the_clock_back_by_whole_intervals_leaves_no_gap_longer_than_one_interval(
    make_world: MakeWorld, times: int, hours: int, *, down: bool
) -> None:
    world = make_world(OPS)
    world.run(minutes=95)
    for _ in range(times):
        if down:
            world.kill()
        world.clock.now -= timedelta(hours=hours)
        if down:
            world.boot()
        world.run(minutes=95)
    begun = start_times(world, "ops")
    assert max(after - before for before, after in pairwise(begun)) <= 30 * 60 + 1


@pytest.mark.parametrize("down", [False, True], ids=["running", "down"])
def test_setting_the_clock_back_by_a_part_of_an_interval_leaves_no_longer_gap(make_world: MakeWorld, *, down: bool) -> None:
    """From 08:50 to 08:20. At 09:00 the last run is 90 minutes ago. Another agent has run at 08:45."""
    ops = agent(interval="60m")
    both = ops + ops.partition("agents:\n")[2].replace("ops:", "web:")
    world = make_world(ops)
    world.run(minutes=45)
    world.reload(both)
    world.run(minutes=5)
    if down:
        world.kill()
    world.clock.now -= timedelta(minutes=30)
    if down:
        world.boot()
    world.run(minutes=75)
    for name in ("ops", "web"):
        first, second = start_times(world, name)[:2]
        assert 0 < second - first <= 60 * 60 + 1, name


def test_slots_outside_of_active_hours_are_recorded_although_the_clock_was_set_back_before(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="60m", active_hours='"12:00-20:00"'))
    world.run(hours=2, minutes=50)
    world.clock.now -= timedelta(minutes=20)
    world.run(hours=2)
    assert [(row["planned_runs"], row["why"]) for row in world.records("ops")] == [(4, "active_hours"), (1, "heartbeat_ok")]


def test_a_daily_run_at_opening_still_happens_every_day_after_the_clock_was_set_back_by_a_day(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1d", active_hours='"08:00-10:00"'), start="2026-03-02 12:00")
    world.run(days=3)
    world.clock.now -= timedelta(days=1)
    world.run(days=3)
    begun = start_times(world, "ops")
    assert max(after - before for before, after in pairwise(begun)) <= 24 * 3600 + 1


def test_a_schedule_runs_each_slot_once_after_clock_changes_and_downtime(make_world: MakeWorld) -> None:
    world = make_world(job(schedule='"0 * * * *"'), start="2026-03-02 00:30")
    world.run(hours=6)
    world.clock.now -= timedelta(hours=3)
    world.run(hours=1)
    world.downtime(hours=4)
    world.run_until("2026-03-02 12:30")
    assert count_slots(world, "measure") == 12
    assert [call.at for call in world.calls] == sorted({call.at for call in world.calls})


def test_a_one_time_job_that_ran_has_no_next_slot_after_the_clock_was_set_back(make_world: MakeWorld) -> None:
    world = make_world(PARTY, start="2026-03-05 17:30")
    world.run(hours=1)
    world.clock.now -= HOUR
    world.settle()
    entry_row = entries.find_entry(world.store.connection, Kind.CRON, "party")
    assert entry_row is not None
    assert entry_row.slot is None


# --- what explain, events and records show ----------------------------------------------------------------------------


def test_explain_does_not_attribute_a_missed_slot_to_a_clock_change_that_was_undone(make_world: MakeWorld) -> None:
    world = make_world(job(schedule='"0 * * * *"', misfire="{grace: 1m}"), start="2026-03-02 00:10")
    world.run(minutes=5)
    set_clock_ahead_and_right(world)
    world.run(minutes=35)
    world.clock.advance(timedelta(minutes=30))  # the daemon is frozen over 01:00
    world.run_until("2026-03-02 02:30")
    assert stretch_lines(explain_day_of(world, "measure"))[:2] == ["00:00-00:00 0 not_declared", "01:00-01:00 1 frozen"]


def test_a_run_during_which_the_clock_is_set_back_has_no_negative_duration(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    world.scripts["ops"] = lambda call: Delayed(QUIET, timedelta(minutes=2))
    world.clock.now += A_YEAR
    world.run(seconds=5)
    world.clock.now -= A_YEAR
    ((number, (done, _)),) = world.runs._tasks.items()
    world.runs._tasks[number] = (done, world.clock.now + timedelta(minutes=2))
    world.run(minutes=10)
    closed = [event for event in world.events if isinstance(event, RunClosed) and event.started_at is not None]
    assert [event.started_at <= event.finished_at for event in closed if event.started_at] == [True]
    assert [row["started_at"] <= row["finished_at"] for row in world.records("ops") if row["started_at"]] == [True]


# --- retries, wakes, messages and timeouts ----------------------------------------------------------------------------


def test_setting_the_clock_back_while_the_database_is_locked_does_not_stop_an_agent(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    world.run(minutes=70)
    with world.locked_database():
        world.clock.now -= 2 * HOUR
        world.engine.tick(world.clock.read())
    before = len(world.calls)
    world.run(minutes=35)
    assert len(world.calls) > before


def test_setting_the_clock_back_twice_by_an_interval_in_total_does_not_stop_an_agent(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    world.run(minutes=70)
    world.clock.now -= HOUR
    world.run(minutes=5)
    before = len(world.calls)
    world.clock.now -= timedelta(minutes=29, seconds=59)
    world.run(minutes=65)
    assert len(world.calls) - before >= 2


def test_setting_the_clock_back_does_not_delay_a_retry(make_world: MakeWorld) -> None:
    world = make_world(agent(retries="2"))
    world.scripts["ops"] = lambda call: 1 if len(world.calls) == 1 else QUIET
    world.engine.tick(world.clock.read())
    world.settle()
    world.clock.now -= timedelta(days=3)
    world.run(minutes=65)
    assert len(world.calls) >= 3


def test_setting_the_clock_back_after_a_woken_run_does_not_supersede_every_slot(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    world.run(minutes=5)
    world.wake("ops", "look")
    world.run(minutes=5)
    world.clock.now -= timedelta(days=1)
    before = len(world.calls)
    world.run(minutes=65)
    assert len(world.calls) - before >= 2


def test_setting_the_clock_back_does_not_delay_a_wake(make_world: MakeWorld) -> None:
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


def test_setting_the_clock_back_does_not_delay_a_message(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1d", deliver="hook") + HOOK)
    world.scripts["ops"] = lambda call: ALARM
    down = [True]
    world.send = lambda _: DeliveryResult("retry", "down") if down[0] else DeliveryResult("delivered")
    world.run(minutes=1)
    world.clock.now -= timedelta(days=3)
    down[0] = False
    world.run(hours=3)
    assert [text for _, _, text in world.delivered] == [ALARM]


def test_setting_the_clock_back_does_not_delay_the_reminder_of_a_failure(make_world: MakeWorld) -> None:
    world = make_world(agent(retries="0", problems="{remind: 6h}"))
    world.scripts["ops"] = lambda call: 1
    world.run(hours=1)
    world.clock.now -= timedelta(days=365)
    world.run(hours=7)
    assert ["(reminder, " in text for _, _, text in world.delivered] == [False, True]


def test_setting_the_clock_back_does_not_keep_a_held_message_forever(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="7d", deliver="hook") + HOOK.replace("true}", "true, uncertain: hold}"))
    world.scripts["ops"] = lambda call: ALARM
    world.send = lambda _: DeliveryResult("uncertain", "no answer")
    world.run(minutes=1)
    world.clock.now -= timedelta(days=365)
    world.run(hours=25)
    assert world.records()[0]["delivery"]["state"] == "dead"


def test_a_cron_job_keeps_running_after_the_clock_was_ten_years_ahead_for_a_minute(make_world: MakeWorld) -> None:
    world = make_world(job(schedule='"0 * * * *"', misfire="{grace: 1m}"), start="2026-03-02 08:30")
    world.run(minutes=40)
    world.clock.now += timedelta(days=3650)
    world.run(minutes=1)
    world.clock.now -= timedelta(days=3650)
    world.run(hours=3)
    assert len(world.calls) >= 3


def test_the_timeout_of_a_run_is_measured_by_the_monotonic_clock(make_world: MakeWorld) -> None:
    world = make_world(job(every="1h", timeout="10m"))
    world.scripts["measure"] = lambda call: Delayed("never", timedelta(days=9))
    world.run(minutes=61)
    world.clock.now -= timedelta(hours=5)
    world.run(minutes=15)
    assert world.history()[0].endswith("timeout timeout")


def test_a_suspend_does_not_count_against_the_timeout_of_a_run(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="12h", timeout="5m", retries="0"))
    world.scripts["ops"] = lambda call: Delayed(QUIET, timedelta(hours=8, seconds=20))  # 20 s without the suspend
    world.run(seconds=10)
    world.clock.now += timedelta(hours=8)
    world.run(minutes=1)
    assert world.history()[0] == "03-02 08:00 interval ok heartbeat_ok"


def test_no_run_record_is_later_than_the_last_tick_of_its_boot(make_world: MakeWorld) -> None:
    world = make_world(job(every="1s"))
    for _ in range(20):
        world.run(seconds=1)
        latest = "select last_tick_at, (select max(max(started_at), max(finished_at)) from run) from boot"
        seen, written = world.store.connection.execute(latest).fetchone()
        assert written is None or written <= seen


def test_durations_in_messages_are_true_whatever_the_clock_showed_meanwhile(make_world: MakeWorld, tmp_path: Path) -> None:
    """A condition, and a failure: each begins, the clock is changed before or after that, and 11 minutes later it ends."""
    for number, (before, after) in enumerate([([], [2, -2]), ([], [-2, 2]), ([2], [-2]), ([-2], [2]), ([], [2]), ([], [-2])]):
        folder = tmp_path / str(number)
        folder.mkdir()
        config = agent(interval="none", problems="{after: 1}") + "limits: {wake_gap: 0s}\n"
        world = make_world(config, folder=folder, scripts={"ops": lambda call: "[disk] full"})
        answers: list[str | int] = ["[disk] full", 3, "[disk] resolved: empty"]

        def give_next_answer(world: World = world, answers: list[str | int] = answers) -> None:
            answer = answers.pop(0)
            world.scripts["ops"] = lambda call: answer
            world.wake("ops")
            world.run(seconds=30)

        _move_clock(world, before)
        give_next_answer()
        give_next_answer()
        _move_clock(world, after)
        world.run(minutes=10)
        give_next_answer()
        said = "\n".join(text for _, _, text in world.delivered)
        spans = [parse_positive_duration(span) for span in re.findall(r"over +ops \w+: after (\S+)", said)]
        assert [round(span / timedelta(minutes=1)) for span in spans] == [11, 11], (before, after, said)


def _move_clock(world: World, moves: list[int]) -> None:
    for hours in moves:
        world.clock.now += timedelta(hours=hours)
        world.run(seconds=10)

"""Heartbeats with a `schedule`, and heartbeats with backoff, end to end."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from world import AgentCall, MakeWorld, utc


def agent(**keys: str) -> str:
    words = {"stagger": "0s", "retries": "0", "checklist": '"- look\\n"', "deliver": "log"} | keys
    heartbeat = ", ".join(f"{key}: {value}" for key, value in words.items())
    return f"agents:\n  ops:\n    runner: {{kind: command, argv: [agent]}}\n    heartbeat: {{{heartbeat}}}\n"


TIMED = agent(schedule='"0 9,21 * * *"', timezone="Europe/Berlin")
BACKING_OFF = agent(interval="10m", backoff_on_failure="true")


def broken_until(text: str) -> Callable[[AgentCall], Any]:
    return lambda call: 1 if call.at < utc(text) else "HEARTBEAT_OK"


def test_a_heartbeat_runs_by_its_schedule_in_its_own_time_zone(make_world: MakeWorld) -> None:
    # Berlin's clocks go ahead on 29 March 2026.
    world = make_world(TIMED, start="2026-03-28 12:00")
    world.run(days=2)
    assert world.history() == [
        "03-28 20:00 schedule ok heartbeat_ok",
        "03-29 07:00 schedule ok heartbeat_ok",
        "03-29 19:00 schedule ok heartbeat_ok",
        "03-30 07:00 schedule ok heartbeat_ok",
    ]


def test_scheduled_slots_outside_active_hours_share_one_record(make_world: MakeWorld) -> None:
    world = make_world(agent(schedule='"0 * * * *"', active_hours='"08:00-22:00"'))
    world.run_until("2026-03-03 08:30")
    assert world.history()[:2] == ["03-02 08:00 schedule ok heartbeat_ok", "03-02 09:00 schedule ok heartbeat_ok"]
    assert world.history()[-2:] == ["03-02 22:00 schedule skipped active_hours x10", "03-03 08:00 schedule ok heartbeat_ok"]
    assert sum(row["planned_runs"] for row in world.records()) == 25


def test_a_stagger_delays_a_scheduled_slot_and_does_not_change_it(make_world: MakeWorld) -> None:
    world = make_world(agent(schedule='"0 9 * * *"', stagger="20m"))
    world.run_until("2026-03-02 09:00")
    assert world.history() == []
    world.run(minutes=20)
    assert world.history() == ["03-02 09:00 schedule ok heartbeat_ok"]
    assert world.calls[0].at > utc("2026-03-02 09:00")


def test_after_downtime_only_the_latest_scheduled_slot_runs(make_world: MakeWorld) -> None:
    world = make_world(agent(schedule='"*/30 * * * *"'), start="2026-03-02 08:10")
    world.downtime(hours=3, minutes=25)
    world.run(seconds=1)
    assert world.history() == ["03-02 08:30 schedule skipped missed x6", "03-02 11:30 schedule ok heartbeat_ok"]


def test_a_reload_from_interval_to_schedule_and_back_records_every_slot_once(make_world: MakeWorld) -> None:
    by_interval = agent(interval="30m")
    world = make_world(by_interval)
    world.run(minutes=31)
    world.reload(agent(schedule='"45 * * * *"'))
    world.run(minutes=20)
    world.reload(by_interval)
    world.run(minutes=25)
    assert world.history() == [
        "03-02 08:00 interval ok heartbeat_ok",
        "03-02 08:30 interval ok heartbeat_ok",
        "03-02 08:45 schedule ok heartbeat_ok",
        "03-02 09:15 interval ok heartbeat_ok",
    ]


def test_a_wake_starts_a_run_of_a_heartbeat_with_a_schedule(make_world: MakeWorld) -> None:
    world = make_world(TIMED, start="2026-03-02 08:30")
    world.wake("ops", "look")
    world.run(minutes=1)
    assert world.history() == ["03-02 08:30 api ok heartbeat_ok"]


def test_setting_the_clock_back_does_not_repeat_a_scheduled_slot(make_world: MakeWorld) -> None:
    world = make_world(agent(schedule='"0 * * * *"'), start="2026-03-02 08:30")
    world.run_until("2026-03-02 09:10")
    world.clock.now -= timedelta(hours=1)
    world.run_until("2026-03-02 10:10")
    assert world.history() == ["03-02 09:00 schedule ok heartbeat_ok", "03-02 10:00 schedule ok heartbeat_ok"]


def test_each_failure_doubles_the_interval_up_to_eightfold_and_a_success_resets_it(make_world: MakeWorld) -> None:
    world = make_world(BACKING_OFF, scripts={"ops": broken_until("2026-03-02 12:00")})
    world.run_until("2026-03-02 13:55")
    assert world.history() == [
        "03-02 08:00 interval failed exit",
        "03-02 08:10 interval skipped superseded",
        "03-02 08:20 interval failed exit",
        "03-02 08:30 interval skipped superseded x3",
        "03-02 09:00 interval failed exit",
        "03-02 09:10 interval skipped superseded x7",
        "03-02 10:20 interval failed exit",
        "03-02 10:30 interval skipped superseded x7",
        "03-02 11:40 interval failed exit",
        "03-02 11:50 interval skipped superseded x7",
        "03-02 13:00 interval ok heartbeat_ok",
        *(f"03-02 13:{minute} interval ok heartbeat_ok" for minute in (10, 20, 30, 40, 50)),
    ]
    assert sum(row["planned_runs"] for row in world.records()) == 36


def test_without_backoff_a_failing_agent_keeps_its_interval(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="10m"), scripts={"ops": lambda call: 1})
    world.run(minutes=35)
    assert world.history() == [f"03-02 08:{minute}0 interval failed exit" for minute in range(4)]


def test_a_successful_woken_run_ends_the_backoff(make_world: MakeWorld) -> None:
    world = make_world(BACKING_OFF, scripts={"ops": broken_until("2026-03-02 09:05")})
    world.run_until("2026-03-02 09:16")
    world.wake("ops", "it works again")
    world.run_until("2026-03-02 09:35")
    assert world.history()[-4:] == [
        "03-02 09:10 interval skipped superseded",
        "03-02 09:16 api ok heartbeat_ok",
        "03-02 09:20 interval ok heartbeat_ok",
        "03-02 09:30 interval ok heartbeat_ok",
    ]


def test_backoff_survives_a_restart_and_its_slots_are_not_missed(make_world: MakeWorld) -> None:
    world = make_world(BACKING_OFF, scripts={"ops": broken_until("2026-03-02 09:05")})
    world.run_until("2026-03-02 09:05")
    world.downtime(minutes=30)
    world.run_until("2026-03-02 10:25")
    assert world.history()[-2:] == ["03-02 09:10 interval skipped superseded x7", "03-02 10:20 interval ok heartbeat_ok"]


def test_slots_skipped_by_backoff_are_recorded_before_a_pause_or_reload(make_world: MakeWorld) -> None:
    world = make_world(BACKING_OFF, scripts={"ops": lambda call: 1})
    world.run_until("2026-03-02 08:45")
    world.pause(None)
    world.run(minutes=10)
    world.resume(None)
    world.run_until("2026-03-02 08:57")
    world.reload(agent(interval="10m"))
    world.run_until("2026-03-02 09:05")
    assert world.history()[-4:] == [
        "03-02 08:20 interval failed exit",
        "03-02 08:30 interval skipped superseded x2",
        "03-02 08:50 interval skipped paused",
        "03-02 09:00 interval failed exit",
    ]


@pytest.mark.parametrize("hours", [1, 24])
def test_setting_the_clock_back_does_not_prolong_the_backoff(make_world: MakeWorld, hours: int) -> None:
    world = make_world(BACKING_OFF, scripts={"ops": lambda call: 1})
    world.run_until("2026-03-02 10:25")
    world.clock.now -= timedelta(hours=hours)
    calls_before = len(world.calls)
    world.run(minutes=11)
    assert len(world.calls) == calls_before + 1

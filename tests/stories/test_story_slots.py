"""Slots end to end: when runs start, how skipped slots are recorded, and that each slot is recorded exactly once."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from world import DatabaseOf, Delayed, MakeWorld, World, add_entry_row, utc

from scheduler.engine.tick import MAX_ENTRIES_PER_TICK, MAX_RESULTS_PER_TICK
from scheduler.insight import status_data
from scheduler.insight.forecast import forecast_entries
from scheduler.model.outcome import Kind
from scheduler.model.timestamps import to_millis
from scheduler.store import entries
from scheduler.store.locations import open_for_writing
from scheduler.store.transaction import Transaction

OPS = """
agents:
  ops:
    runner: {kind: command, argv: [agent]}
    heartbeat: {interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: log}
"""


def agent(**keys: str) -> str:
    """The config of one agent `ops` with these heartbeat keys."""
    words = {"interval": "30m", "stagger": "0s", "checklist": '"- look\\n"', "deliver": "log"} | keys
    heartbeat = ", ".join(f"{key}: {value}" for key, value in words.items())
    return f"agents:\n  ops:\n    runner: {{kind: command, argv: [agent]}}\n    heartbeat: {{{heartbeat}}}\n"


def job(**keys: str) -> str:
    words = {"command": "measure"} | keys
    return "cron:\n  measure: {" + ", ".join(f"{key}: {value}" for key, value in words.items()) + "}\n"


def test_a_new_agent_runs_at_once_and_then_at_its_interval(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    world.run(minutes=65)
    assert world.history() == [
        "03-02 08:00 interval ok heartbeat_ok",
        "03-02 08:30 interval ok heartbeat_ok",
        "03-02 09:00 interval ok heartbeat_ok",
    ]


def test_a_stagger_shifts_every_slot_and_stays_the_same_after_a_restart(make_world: MakeWorld) -> None:
    world = make_world(agent(stagger="50%"))
    world.run(hours=2)
    first = world.records()[0]["planned_at"]
    world.downtime(seconds=5)
    world.run(hours=2)
    slots = [row["planned_at"] for row in world.records()]
    assert "2026-03-02T08:00:00Z" < first < "2026-03-02T08:15:00Z"
    assert [slot[14:] for slot in slots] == [first[14:], f"{int(first[14:16]) + 30}{first[16:]}"] * 4


def test_reloading_every_five_minutes_delays_no_run(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    for _ in range(24):
        world.run(minutes=5)
        world.reload(OPS)
    assert len(world.history()) == 5


def test_active_hours_past_midnight_belong_to_the_day_they_start_on(make_world: MakeWorld) -> None:
    hours = '{start: "22:00", end: "06:00", days: fri, timezone: UTC}'
    world = make_world(agent(interval="1h", active_hours=hours), start="2026-03-06 20:00")  # a Friday
    world.run(hours=36)
    ran = [row["planned_at"][5:16] for row in world.records() if row["result"] == "ok"]
    assert ran == [f"03-06T{hour}:00" for hour in ("22", "23")] + [f"03-07T0{hour}:00" for hour in range(6)]


def test_the_slots_of_a_night_outside_active_hours_share_one_record(make_world: MakeWorld) -> None:
    world = make_world(agent(active_hours='"08:00-22:00"'))
    world.run(hours=25)
    assert [line for line in world.history() if "skipped" in line] == ["03-02 22:00 interval skipped active_hours x20"]


def test_a_daily_heartbeat_whose_slots_fall_at_night_runs_every_morning(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1d", active_hours='"08:00-22:00"'), start="2026-03-02 23:00")
    world.run(days=5)
    assert [line for line in world.history() if " ok " in line] == [
        f"03-0{day} 08:00 interval ok heartbeat_ok" for day in range(3, 8)
    ]


def test_a_half_hourly_heartbeat_runs_50_times_on_the_25_hour_day(make_world: MakeWorld) -> None:
    # Berlin's clocks go back on 25 October 2026; that local day lasts 25 hours.
    world = make_world(agent(timezone="Europe/Berlin"), start="2026-10-24 22:00")
    world.run_until("2026-10-25 22:59")
    assert len(world.history()) == 50


def test_a_two_second_restart_over_a_daily_slot_does_not_lose_it(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1d"))
    world.run_until("2026-03-03 07:59:59")
    world.downtime(seconds=2)
    world.run(minutes=1)
    assert world.history() == ["03-02 08:00 interval ok heartbeat_ok", "03-03 08:00 interval ok heartbeat_ok"]


def test_after_downtime_only_the_latest_slot_runs_and_the_others_share_one_record(make_world: MakeWorld) -> None:
    world = make_world(job(schedule='"*/1 * * * *"', misfire="{grace: 2m}"), start="2026-03-02 08:00:30")
    world.run(minutes=1)
    world.downtime(minutes=112)
    world.run(seconds=20)
    assert world.history() == [
        "03-02 08:01 schedule ok",
        "03-02 08:02 schedule skipped missed x111",
        "03-02 09:53 schedule ok",
    ]


def test_a_slot_older_than_the_grace_is_recorded_as_missed(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    world.run(minutes=1)
    world.downtime(hours=1, minutes=15)
    world.run(seconds=1)
    assert world.history()[1:] == ["03-02 08:30 interval skipped missed x2"]


def test_after_nine_hours_of_downtime_each_of_twenty_jobs_runs_once(make_world: MakeWorld) -> None:
    jobs = "".join(f'  job{number}: {{schedule: "*/5 * * * *", command: x}}\n' for number in range(20))
    world = make_world("cron:\n" + jobs, start="2026-03-02 08:00:01")
    world.run(minutes=6)
    world.downtime(hours=9)
    before = len(world.records())
    world.run(seconds=1)
    after = world.records()[before:]
    assert Counter(row["result"] for row in after) == {"skipped": 20, "ok": 20}
    assert {row["planned_runs"] for row in after if row["result"] == "skipped"} == {107}


def test_a_job_with_misfire_skip_does_not_run_after_downtime(make_world: MakeWorld) -> None:
    world = make_world(job(schedule='"*/5 * * * *"', misfire="{policy: skip}"), start="2026-03-02 08:00:01")
    world.run(minutes=6)
    world.downtime(hours=9)
    world.run(seconds=1)
    assert world.history()[1:] == ["03-02 08:10 schedule skipped missed x108"]


def test_a_stagger_delays_a_job_by_a_constant_time_and_does_not_change_its_slot(make_world: MakeWorld) -> None:
    spread = "".join(f'  job{number}: {{schedule: "0 * * * *", command: x, stagger: 20m}}\n' for number in range(8))
    world = make_world("cron:\n" + spread, start="2026-03-02 08:30")
    world.run(hours=2)
    world.downtime(minutes=5)
    world.run(hours=2)
    delays: dict[str, set[timedelta]] = {}
    for call in world.calls:
        delays.setdefault(call.name, set()).add(call.at - call.at.replace(minute=0, second=0))
    assert {len(found) for found in delays.values()} == {1}
    assert len({min(found) for found in delays.values()}) > 4
    assert all(timedelta() <= min(found) <= timedelta(minutes=20) for found in delays.values())
    assert {line[6:] for line in world.history("job0")} == {f"{hour:02}:00 schedule ok" for hour in (9, 10, 11, 12)}


def test_a_changed_stagger_moves_the_start_and_not_the_slots(make_world: MakeWorld) -> None:
    hourly = job(schedule='"0 * * * *"')
    world = make_world(hourly, start="2026-03-02 08:30")
    world.run(hours=1)
    world.reload(hourly.replace("{", "{stagger: 50%, "))
    world.run(hours=1)
    assert world.history() == ["03-02 09:00 schedule ok", "03-02 10:00 schedule ok"]
    assert world.calls[0].at == utc("2026-03-02 09:00") < utc("2026-03-02 10:00") < world.calls[1].at


def test_a_changed_stagger_of_an_interval_moves_its_slots_by_the_difference(make_world: MakeWorld) -> None:
    world = make_world(agent(stagger="50%"))
    before = world.clock.now
    world.run(minutes=35)
    first = world.calls[0].at
    world.reload(agent(stagger="25%"))
    world.run(hours=1)
    assert first > before
    assert (world.calls[-1].at - (before + (first - before) / 2)) % timedelta(minutes=30) <= timedelta(seconds=1)


def test_a_changed_stagger_does_not_lose_the_slot_it_delays(make_world: MakeWorld) -> None:
    world = make_world(job(schedule='"0 3 * * *"', stagger="4h"), start="2026-03-02 00:00")
    due = world.store.connection.execute("select due_at from entry").fetchone()[0] / 1000
    assert due > utc("2026-03-02 03:10").timestamp()
    world.run_until("2026-03-02 03:05")
    without_stagger = job(schedule='"0 3 * * *"', stagger="0s")
    world.write_config(without_stagger)
    (foreseen,) = forecast_entries(world.store.connection, world.plan(), world.clock.now)
    assert foreseen.count(utc("2026-03-02 03:00"), utc("2026-03-03 00:00")) == 1
    world.reload(without_stagger)
    world.run_until("2026-03-03 00:00")
    assert sum(row["planned_runs"] for row in world.records()) == 1


def test_a_schedule_change_between_a_slot_and_its_staggered_start_does_not_lose_the_slot(make_world: MakeWorld) -> None:
    world = make_world(job(schedule='"0 8 * * *"', stagger="2m"), start="2026-03-02 07:30")
    world.run_until("2026-03-02 08:00:05")  # the stagger of this job is 10 s
    world.reload(job(schedule='"0 8,20 * * *"', stagger="2m"))
    world.run_until("2026-03-02 20:01")
    assert world.history() == ["03-02 08:00 schedule ok", "03-02 20:00 schedule ok"]


def test_a_forecast_of_a_new_schedule_has_no_slot_that_passed_under_the_old_one(make_world: MakeWorld) -> None:
    world = make_world(job(schedule='"0 20 * * *"'), start="2026-03-02 07:30")
    world.run_until("2026-03-02 08:00:05")
    staggered = job(schedule='"0 8,19 * * *"', stagger="2m")  # 10 s
    world.write_config(staggered)
    (foreseen,) = forecast_entries(world.store.connection, world.plan(), world.clock.now)
    assert list(foreseen.times(world.clock.now, utc("2026-03-03 00:00"))) == [utc("2026-03-02 19:00:10")]
    world.reload(staggered)
    world.run_until("2026-03-03 00:00")
    assert world.history() == ["03-02 19:00 schedule ok"]


def test_a_job_added_or_enabled_between_a_slot_and_its_staggered_start_runs_that_slot(make_world: MakeWorld) -> None:
    staggered = job(schedule='"0 8,9 * * *"', stagger="2m")  # 10 s
    world = make_world(staggered, start="2026-03-02 08:00:05")
    world.run_until("2026-03-02 08:30")
    world.reload(job(schedule='"0 8,9 * * *"', stagger="2m", enabled="false"))
    world.run_until("2026-03-02 09:00:05")
    world.reload(staggered)
    world.run_until("2026-03-02 10:00")
    assert world.history() == ["03-02 08:00 schedule ok", "03-02 09:00 schedule ok"]


def test_a_schedule_change_after_a_slot_has_run_does_not_repeat_the_slot(make_world: MakeWorld) -> None:
    world = make_world(job(schedule='"0 8 * * *"', stagger="2m"), start="2026-03-02 07:30")
    world.run_until("2026-03-02 08:00:12")
    world.reload(job(schedule='"0 8,20 * * *"', stagger="5m"))
    world.run_until("2026-03-02 20:05")
    assert world.history() == ["03-02 08:00 schedule ok", "03-02 20:00 schedule ok"]


def test_a_changed_schedule_applies_from_now_on(make_world: MakeWorld) -> None:
    world = make_world(job(schedule='"0 * * * *"'), start="2026-03-02 08:30")
    world.run_until("2026-03-02 09:10")
    world.reload(job(schedule='"5 * * * *"'))
    world.run_until("2026-03-02 10:10")
    assert world.history() == ["03-02 09:00 schedule ok", "03-02 10:05 schedule ok"]


def test_another_time_zone_moves_the_slots_to_come_and_no_slot_of_the_past(make_world: MakeWorld) -> None:
    world = make_world("timezone: UTC\n" + job(schedule='"0 9 * * *"') + agent(interval="1d"), start="2026-03-02 08:30")
    world.run_until("2026-03-02 12:00")
    world.reload("timezone: Asia/Tokyo\n" + job(schedule='"0 9 * * *"') + agent(interval="1d"))  # nine hours ahead of UTC
    world.run_until("2026-03-04 12:00")
    assert world.history("measure") == [
        "03-02 09:00 schedule ok",
        "03-03 00:00 schedule ok",
        "03-04 00:00 schedule ok",
    ]
    assert [line[:11] for line in world.history("ops")] == [
        "03-02 08:30",
        "03-03 08:30",
        "03-04 08:30",
    ]  # an interval is not local


def test_a_reboot_job_does_not_run_on_a_reload(make_world: MakeWorld) -> None:
    boots = job(schedule='"@reboot"')
    world = make_world(boots)
    world.run(minutes=1)
    world.reload(boots.replace("command: measure", "command: other") + '  more: {schedule: "@reboot", command: x}\n')
    world.run(hours=1)
    assert [call.name for call in world.calls] == ["measure"]
    world.downtime(minutes=1)
    world.run(minutes=1)
    assert [call.name for call in world.calls] == ["measure", "measure", "more"]


@pytest.mark.parametrize(("tzdata", "minute"), [("0", 30), ("1", 0)])
def test_planned_slots_are_recomputed_when_the_time_zone_data_has_changed(
    make_world: MakeWorld, tzdata: str, minute: int
) -> None:
    world = make_world(job(schedule='"0 3 * * *"'), start="2026-03-02 08:30")
    by_old_rules = int(utc("2026-03-03 03:30").timestamp() * 1000)
    with world.store.transaction() as db:
        db.execute("update entry set slot = ?, due_at = ?", (by_old_rules, by_old_rules))
    world.stop()
    world.boot(tzdata=tzdata)
    world.run_until("2026-03-03 06:00")
    assert [call.at.minute for call in world.calls] == [minute]


def test_ten_years_of_downtime_need_only_a_few_records(make_world: MakeWorld) -> None:
    world = make_world(OPS.replace("deliver: log", 'deliver: log, active_hours: "08:00-22:00"') + job(schedule='"* * * * *"'))
    world.run(minutes=1)
    world.downtime(days=3650)
    world.run(seconds=1)
    assert sum(row["planned_runs"] for row in world.records()) > 5_000_000
    assert len(world.records()) < 10


def test_slots_during_a_run_share_one_record_with_a_count(make_world: MakeWorld) -> None:
    world = make_world(job(every="10m", timeout="2h"))
    world.scripts["measure"] = lambda call: Delayed("", timedelta(minutes=35))
    world.run(minutes=90)
    assert world.history()[:3] == [
        "03-02 08:10 every ok",
        "03-02 08:20 every skipped already_running x3",
        "03-02 08:50 every ok",
    ]


def test_a_slow_agent_does_not_delay_other_agents(make_world: MakeWorld) -> None:
    names = [f"agent{number}" for number in range(6)]
    beat = 'runner: {kind: command, argv: [a]}, heartbeat: {interval: 10m, stagger: 0s, checklist: "- look\\n", deliver: log}'
    world = make_world("agents:\n" + "".join(f"  {name}: {{{beat}}}\n" for name in names))
    world.scripts["agent0"] = lambda call: Delayed("HEARTBEAT_OK", timedelta(minutes=4))
    world.run(minutes=41)
    starts = [call.at for call in world.calls if call.name != "agent0"]
    assert set(starts) == {utc("2026-03-02 08:00") + timedelta(minutes=10 * count) for count in range(5)}
    assert len(starts) == 25


def test_agents_over_the_concurrency_limit_start_late_within_their_grace(make_world: MakeWorld) -> None:
    beat = 'runner: {kind: command, argv: [a]}, heartbeat: {interval: 1h, stagger: 0s, checklist: "- look\\n", deliver: log}'
    world = make_world("limits: {concurrency: 1}\nagents:\n" + "".join(f"  {name}: {{{beat}}}\n" for name in "abc"))
    for name in "abc":
        world.scripts[name] = lambda call: Delayed("HEARTBEAT_OK", timedelta(minutes=2))
    world.run(minutes=30)
    assert [(call.name, call.at.minute) for call in world.calls] == [("a", 0), ("b", 2), ("c", 4)]


def competing_agents(
    make_world: MakeWorld, number: int, *, interval: str, limits: str = "concurrency: 1", more: str = ""
) -> World:
    """Agents that compete for few concurrent runs."""
    beat = f'stagger: 10%, checklist: "- look\\n", deliver: log, timeout: 2h, retries: 0, interval: {interval}{more}'
    agents = "".join(f"  a{each}: {{runner: {{kind: command, argv: [a]}}, heartbeat: {{{beat}}}}}\n" for each in range(number))
    return make_world(f"limits: {{{limits}}}\nagents:\n{agents}")


def test_agents_at_the_concurrency_limit_take_turns(make_world: MakeWorld) -> None:
    world = competing_agents(make_world, 8, interval="5m")
    for each in range(8):
        world.durations[f"a{each}"] = timedelta(minutes=4)
    world.run(minutes=130)
    ran = Counter(call.name for call in world.calls)
    assert len(ran) == 8
    assert max(ran.values()) - min(ran.values()) <= 1
    assert sum(ran.values()) >= 32  # there is always a run in progress


def test_an_agent_with_a_slow_precheck_does_not_starve_the_others(make_world: MakeWorld) -> None:
    world = competing_agents(make_world, 6, interval="5m", more=", precheck: {command: x, on_error: skip, timeout: 4m}")
    for each in range(6):
        code = 1 if each < 3 else 0
        world.prechecks[f"a{each}"] = lambda call, code=code: code or "news"
        world.durations[f"a{each}"] = timedelta(minutes=4)
    world.run(minutes=100)
    precheck_counts = Counter(call.name for call in world.precheck_calls)
    assert len(precheck_counts) == 6
    assert max(precheck_counts.values()) - min(precheck_counts.values()) <= 2


def test_the_agent_that_ran_last_starts_last_when_all_are_due(make_world: MakeWorld) -> None:
    world = competing_agents(make_world, 3, interval="1h")
    world.run(minutes=30)
    world.wake("a1", "look at this")
    world.run(minutes=10)
    world.wake("a0", "and at this")
    world.run_until("2026-03-02 08:59:59")
    before = len(world.calls)
    for each in range(3):
        world.durations[f"a{each}"] = timedelta(minutes=8)
    world.durations["a2"] = timedelta(minutes=30)  # the first agent runs until all others are due
    world.wake("a2", "and first at this")
    world.run(hours=1)
    assert [call.name for call in world.calls[before:]] == ["a2", "a1", "a0"]


def test_a_slot_without_a_free_place_names_two_runs_and_the_number_of_the_others(make_world: MakeWorld) -> None:
    world = competing_agents(make_world, 5, interval="1h", limits="concurrency: 4")
    for each in range(5):
        world.durations[f"a{each}"] = timedelta(minutes=90)
    world.run(hours=2)
    (error, *_) = [row["error"] for row in world.records() if row["why"] == "missed"]
    assert re.fullmatch(r"limits.concurrency \(4\) was reached by agent/a. \(run \d\), agent/a. \(run \d\) and 2 more", error)


def test_a_slot_that_waits_for_capacity_may_start_until_the_next_slot(make_world: MakeWorld) -> None:
    world = competing_agents(make_world, 2, interval="1h")
    world.durations["a0"] = world.durations["a1"] = timedelta(minutes=40)  # the grace is 10 minutes
    world.run(hours=6)
    assert [call.name for call in world.calls] == ["a0", "a1"] * 4
    assert {row["why"] for row in world.records() if row["result"] == "skipped"} == {"already_running"}  # by its own run


def test_downtime_before_the_wait_for_capacity_counts_against_the_grace(make_world: MakeWorld) -> None:
    world = competing_agents(make_world, 2, interval="1h")
    world.run(minutes=10)
    world.kill()
    world.clock.advance(timedelta(minutes=70))  # both slots are 20 minutes old and more
    world.boot()
    world.durations["a0"] = world.durations["a1"] = timedelta(minutes=5)
    world.run(minutes=20)
    assert [row["why"] for row in world.records() if row["planned_runs"] == 1 and row["result"] == "skipped"] == [
        "missed",
        "missed",
    ]


def test_a_changed_interval_counts_from_the_last_run_and_affects_no_other_agent(make_world: MakeWorld) -> None:
    two = OPS + OPS.replace("agents:\n", "").replace("ops:", "other:")
    world = make_world(two)
    world.run(minutes=40)
    world.reload(two.replace("interval: 30m", "interval: 20m", 1))
    world.run(minutes=31)
    assert world.history("ops")[2:] == ["03-02 08:50 interval ok heartbeat_ok", "03-02 09:10 interval ok heartbeat_ok"]
    assert world.history("other")[2:] == ["03-02 09:00 interval ok heartbeat_ok"]


def test_a_changed_interval_of_a_job_counts_from_its_last_run(make_world: MakeWorld) -> None:
    world = make_world(job(every="30m"))
    world.run(minutes=40)
    world.reload(job(every="20m"))
    world.run(minutes=31)
    assert world.history() == ["03-02 08:30 every ok", "03-02 08:50 every ok", "03-02 09:10 every ok"]


def test_slots_missed_under_the_old_config_during_downtime_are_recorded(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    world.run(minutes=10)
    world.kill()
    world.clock.advance(timedelta(hours=2))
    world.write_config(agent(interval="1d"))
    world.boot()
    world.run(minutes=1)
    assert world.history()[1:] == ["03-02 08:30 interval skipped missed x4"]


@pytest.mark.parametrize("hours", [1, 24 * 3650])
def test_setting_the_clock_ahead_causes_no_burst_of_runs(make_world: MakeWorld, hours: int) -> None:
    world = make_world(OPS)
    world.run(minutes=10)
    world.clock.now += timedelta(hours=hours)
    world.run(minutes=10)
    assert len(world.calls) <= 2
    assert world.engine.health.clock_changes == {"forward": 1, "backward": 0}


@pytest.mark.parametrize("back", [timedelta(hours=1), timedelta(minutes=47, seconds=13), timedelta(days=3)])
def test_setting_the_clock_back_repeats_and_delays_no_slot(make_world: MakeWorld, back: timedelta) -> None:
    world = make_world(OPS + job(schedule='"0 * * * *"'))
    world.run(minutes=70)
    world.clock.now -= back
    begun = world.clock.monotonic
    world.run(minutes=31)
    runs = [call for call in world.calls if call.name == "ops"]
    assert len(runs) in (4, 5)
    assert world.clock.monotonic - begun == 31 * 60
    slots = [(row["name"], row["planned_at"]) for row in world.records()]
    assert len(slots) == len(set(slots))
    assert len([call for call in world.calls if call.name == "measure"]) == 2


def test_setting_the_clock_back_during_downtime_does_not_stop_an_agent(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    world.run(minutes=70)
    world.kill()
    world.clock.now -= timedelta(days=2)
    world.boot()
    world.run(minutes=31)
    assert len(world.calls) == 4


@pytest.mark.parametrize("slept", [False, True], ids=["clock set", "suspended"])
def test_a_job_with_misfire_skip_does_not_run_after_the_clock_was_set_ahead(make_world: MakeWorld, slept: bool) -> None:
    """The monotonic clock stands still during a suspend, so both cases look the same: only the wall clock moves."""
    keys = {"misfire": "{policy: skip, grace: 1d}"} | ({"every": "1h"} if slept else {"schedule": '"0 * * * *"'})
    world = make_world(job(**keys), start="2026-03-02 07:30")
    world.run_until("2026-03-02 08:45")
    ran = len(world.calls)
    world.clock.now += timedelta(hours=9)
    world.run(minutes=1)
    assert len(world.calls) == ran
    world.run(hours=1)
    assert len(world.calls) == ran + 1


def test_a_job_with_every_runs_within_one_interval_after_the_clock_was_set_back(make_world: MakeWorld) -> None:
    world = make_world(job(every="30m"))
    world.run(hours=6, minutes=10)
    ran = len(world.calls)
    world.clock.now -= timedelta(hours=5)
    world.run(minutes=31)
    assert len(world.calls) == ran + 1


def test_an_agent_runs_soon_after_the_machine_was_suspended(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    world.run(minutes=10)
    world.clock.now += timedelta(hours=8)  # the monotonic clock stands still during a suspend
    world.run(minutes=25)
    assert world.history()[1:] == [
        "03-02 08:30 interval skipped missed x15",
        "03-02 16:00 interval ok heartbeat_ok",
        "03-02 16:30 interval ok heartbeat_ok",
    ]


def test_at_most_one_statement_per_tick_looks_up_the_open_runs_of_all_due_entries(make_world: MakeWorld) -> None:
    beat = (
        '{runner: {kind: command, argv: [agent]}, heartbeat: {interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: log}}'
    )
    world = make_world("agents:\n" + "".join(f"  {name}: {beat}\n" for name in ("ada", "bob", "cyd")))
    with world.traced_statements() as statements:
        world.run(minutes=40)
    turns = " ".join(statements).split("begin immediate")
    assert len(world.records()) == 6
    assert max(turn.count("from entry join run") for turn in turns) <= 1


@pytest.mark.long_on_server("1,000 entries")
def test_one_tick_handles_a_limited_number_of_due_entries(make_world: MakeWorld) -> None:
    count = 1_000
    beat = '{runner: {kind: command, argv: [a]}, heartbeat: {interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: log}}'
    world = make_world("agents:\n" + "".join(f"  a{number}: {beat}\n" for number in range(count)))
    world.clock.advance(timedelta(hours=5, minutes=15))  # all missed, older than their grace
    world.engine.tick(world.clock.read())
    assert len(world.records()) == MAX_ENTRIES_PER_TICK < count
    world.settle()
    assert len(world.records()) == count


def test_one_tick_records_a_limited_number_of_results(make_world: MakeWorld) -> None:
    """As when workers have ended many runs while the daemon was down."""
    count = MAX_RESULTS_PER_TICK + 30
    jobs = "".join(f"  a{number}: {{every: 1h, command: a}}\n" for number in range(count))
    world = make_world(f"limits: {{concurrency: {count}}}\ncron:\n{jobs}")
    world.durations = {f"a{number}": timedelta(minutes=5) for number in range(count)}
    world.clock.advance(timedelta(hours=1))
    while len(world.runs.inflight()) < count:
        world.engine.tick(world.clock.read())
    world.clock.advance(timedelta(minutes=5))
    with world.traced_statements() as statements:
        assert world.engine.tick(world.clock.read()) == world.clock.now
        assert len(world.runs.results()) == count - MAX_RESULTS_PER_TICK
        world.engine.tick(world.clock.read())
    assert statements.count("begin immediate") == 2
    assert [row["result"] for row in world.records()] == ["ok"] * count


def test_every_slot_is_recorded_exactly_once_whatever_happens(make_world: MakeWorld) -> None:
    """Pauses, downtime, slow runs and wakes within twelve hours: the records account for every slot once."""
    world = make_world(agent(interval="10m", active_hours='"09:00-17:00"'))
    world.run(minutes=75)
    world.pause(None)
    world.run(minutes=42)
    world.resume(None)
    world.downtime(minutes=97)
    world.scripts["ops"] = lambda call: Delayed("ALERT: slow", timedelta(minutes=4))
    world.run(minutes=47)
    world.wake("ops", "look")
    world.downtime(minutes=3)
    world.run_until("2026-03-02 20:05")
    world.pause(None)
    world.resume(None)
    counted = sum(row["planned_runs"] for row in world.records() if row["trigger"] == "interval")
    assert counted == 12 * 6 + 1


def call_times(world: World) -> list[str]:
    return [f"{call.at:%m-%d %H:%M}" for call in world.calls]


def test_a_weekly_heartbeat_with_daily_active_hours_runs_once_a_week(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="7d", active_hours='"08:00-22:00"'), start="2026-03-02 23:00")
    world.run(days=25)
    assert call_times(world) == ["03-03 08:00", "03-10 08:00", "03-17 08:00", "03-24 08:00"]
    assert world.history() == [f"{when} interval ok heartbeat_ok" for when in call_times(world)]


def test_a_daily_heartbeat_added_at_night_has_one_record_a_day(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1d", active_hours='"08:00-22:00"'), start="2026-03-02 23:00")
    world.run(days=5)
    assert world.history() == [f"03-{day:02} 08:00 interval ok heartbeat_ok" for day in range(3, 8)]


def test_a_daily_heartbeat_runs_once_in_the_night_of_the_change_from_summer_time(make_world: MakeWorld) -> None:
    # In Berlin, 02:00 to 03:00 occurs twice on 25 October 2026, so these active hours open twice.
    hours = '{start: "02:15", end: "02:45", timezone: Europe/Berlin}'
    world = make_world(agent(interval="1d", active_hours=hours), start="2026-10-23 12:00")
    world.run(days=4)
    assert call_times(world) == ["10-24 00:15", "10-25 00:15", "10-26 01:15", "10-27 01:15"]


def test_an_hourly_heartbeat_with_three_short_windows_runs_once_per_slot(make_world: MakeWorld) -> None:
    hours = '["08:00-08:05", "08:10-08:15", "08:20-08:25"]'
    world = make_world(agent(interval="1h", active_hours=hours), start="2026-03-02 06:30")
    world.run(days=2)
    assert call_times(world) == ["03-02 08:00", "03-03 08:00"]
    assert sum(row["planned_runs"] for row in world.records()) == 26  # the slots from 06:30 to 07:30 of the next day


def test_slots_that_move_to_the_same_opening_are_one_run_and_the_others_are_recorded(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="4h", active_hours='"12:00-13:00"'), start="2026-03-02 14:00")
    world.run(days=2)
    assert world.history() == [
        "03-02 14:00 interval skipped active_hours x5",  # the sixth slot, 10:00, moved to the opening
        "03-03 12:00 interval ok heartbeat_ok",
        "03-03 14:00 interval skipped active_hours x5",
        "03-04 12:00 interval ok heartbeat_ok",
    ]


def test_a_weekly_slot_on_a_skipped_day_moves_to_the_next_allowed_day(make_world: MakeWorld) -> None:
    calendar = "calendars: {weekend: {days: sat-sun}}\n"
    keys = agent(interval="7d", active_hours='"08:00-22:00"', skip_on="weekend")
    world = make_world(calendar + keys, start="2026-03-07 12:00")  # a Saturday
    world.run(days=15)
    assert world.history() == ["03-09 08:00 interval ok heartbeat_ok", "03-16 08:00 interval ok heartbeat_ok"]


def test_slots_planned_by_an_earlier_version_are_recomputed_and_nothing_runs_twice(make_world: MakeWorld) -> None:
    """In an earlier version every opening was a slot, so the row of this weekly heartbeat has tomorrow as its next slot."""
    world = make_world(agent(interval="7d", active_hours='"08:00-22:00"'), start="2026-03-02 09:00")
    world.run(hours=1)
    world.kill()
    tomorrow = utc("2026-03-03 08:00")
    with closing(world.open_store()) as store, store.transaction() as db:
        db.execute("update entry set slot = ?, due_at = ?", (to_millis(tomorrow), to_millis(tomorrow)))
        db.execute("update boot set version = 'of another day'")
    world.clock.advance(timedelta(hours=1))
    world.boot()
    (entry,) = status_data.read_entries(world.store.connection, world.clock.now, kind=Kind.HEARTBEAT, name="ops")
    assert entry.next_planned_at == utc("2026-03-09 09:00")
    world.run(days=14)
    assert world.history() == [f"03-{day:02} 09:00 interval ok heartbeat_ok" for day in (2, 9, 16)]


@pytest.mark.parametrize(("places", "most", "taken"), [(2, 9, "cd"), (3, 2, "cd"), (4, 2, "ab")])
def test_the_longest_waiting_come_first_if_more_are_due_than_there_are_places_also_near_the_limit_of_a_tick(
    tmp_path: Path, database_of: DatabaseOf, places: int, most: int, taken: str
) -> None:
    with closing(open_for_writing(database_of(tmp_path) or tmp_path / "h.db")) as store, store.transaction() as db:
        tx = Transaction(db, utc("2026-03-02 08:00"), "me")
        for minutes, name in enumerate("abcd"):
            row = add_entry_row(tx, Kind.HEARTBEAT, name)
            due_at = tx.now + timedelta(minutes=minutes)
            entries.change_entry(tx, row, row._replace(due_at=due_at, last_ended_at=tx.now - timedelta(hours=minutes)))
        due = entries.due_entries(db, tx.now + timedelta(hours=1), places, most)
        assert "".join(sorted(row.name for row, _ in due)) == taken

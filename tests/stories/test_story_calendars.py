"""Calendars end to end: how slots, wakes and retries are handled on days that a calendar excludes."""

from __future__ import annotations

from datetime import timedelta

import pytest
from world import MakeWorld, utc

from scheduler.config.file.diagnostics import ConfigError
from scheduler.insight import status_data
from scheduler.model.outcome import Kind

HOLIDAYS = (
    "calendars:\n  holidays: {dates: [2026-03-04]}\n  weekend: {days: sat-sun}\n  launch: {dates: [2026-03-05..2026-03-06]}\n"
)


def agent(**keys: str) -> str:
    words = {"interval": "6h", "stagger": "0s", "checklist": '"- look\\n"', "deliver": "log", "retries": "0"} | keys
    heartbeat = ", ".join(f"{key}: {value}" for key, value in words.items())
    return f"{HOLIDAYS}agents:\n  ops:\n    runner: {{kind: command, argv: [agent]}}\n    heartbeat: {{{heartbeat}}}\n"


def job(**keys: str) -> str:
    words = {"command": "measure"} | keys
    return HOLIDAYS + "cron:\n  measure: {" + ", ".join(f"{key}: {value}" for key, value in words.items()) + "}\n"


def test_the_slots_of_a_holiday_share_one_record(make_world: MakeWorld) -> None:
    world = make_world(agent(skip_on="holidays"), start="2026-03-03 18:00")  # a Tuesday
    world.run_until("2026-03-05 00:30")
    assert world.history() == [
        "03-03 18:00 interval ok heartbeat_ok",
        "03-04 00:00 interval skipped calendar x4",
        "03-05 00:00 interval ok heartbeat_ok",
    ]


def test_the_slots_of_consecutive_days_off_share_one_record(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="12h", skip_on="[weekend, holidays]"), start="2026-03-03 21:00")
    world.run_until("2026-03-09 10:00")
    assert world.history() == [
        "03-03 21:00 interval ok heartbeat_ok",
        "03-04 09:00 interval skipped calendar x2",
        *(f"03-0{day} {hour}:00 interval ok heartbeat_ok" for day in (5, 6) for hour in ("09", "21")),
        "03-07 09:00 interval skipped calendar x4",
        "03-09 09:00 interval ok heartbeat_ok",
    ]


def test_an_agent_with_only_on_runs_only_on_those_days(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="12h", only_on="launch"), start="2026-03-02 09:00")
    world.run_until("2026-03-07 12:00")
    assert [line for line in world.history() if " ok " in line] == [
        f"03-0{day} {hour}:00 interval ok heartbeat_ok" for day in (5, 6) for hour in ("09", "21")
    ]
    assert world.history()[0] == "03-02 09:00 interval skipped calendar x6"


def test_days_off_are_recorded_even_if_no_allowed_day_follows(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="12h", only_on="launch"), start="2026-03-05 09:00")
    while world.clock.now < utc("2026-03-10 12:00"):
        world.run(hours=1)  # the longest sleep of the main loop
    assert [line for line in world.history() if " ok " not in line] == [
        f"03-{day} 09:00 interval skipped calendar x2" for day in ("07", "08", "09")
    ]


def test_a_one_time_job_on_a_day_off_is_recorded_as_skipped(make_world: MakeWorld) -> None:
    world = make_world(job(at='"2026-03-07T18:00"', skip_on="weekend"), start="2026-03-05 12:00")  # 7 March is a Saturday

    def state() -> str:
        (entry,) = status_data.read_entries(world.store.connection, world.clock.now, kind=Kind.CRON, name="measure")
        return entry.state

    world.run(minutes=1)
    assert (world.history(), state()) == ([], "active")
    world.run_until("2026-03-08 18:00")
    assert (world.history(), state()) == (["03-07 18:00 at skipped calendar"], "done")


def test_a_paused_agent_without_an_allowed_day_left_is_recorded_when_it_is_resumed(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="12h", only_on="launch"), start="2026-03-06 21:00")
    world.run(minutes=1)
    world.pause(None)
    world.run_until("2026-03-10 12:00")
    world.resume(None)
    assert world.history()[1:] == ["03-07 09:00 interval skipped paused x7"]


def test_a_calendar_day_is_a_day_in_the_agents_time_zone(make_world: MakeWorld) -> None:
    # In Tokyo, nine hours ahead, 4 March lasts from 15:00 on the 3rd to 15:00 on the 4th.
    world = make_world(agent(interval="1h", skip_on="holidays", timezone="Asia/Tokyo"), start="2026-03-03 14:00")
    world.run_until("2026-03-04 15:30")
    assert world.history() == [
        "03-03 14:00 interval ok heartbeat_ok",
        "03-03 15:00 interval skipped calendar x24",
        "03-04 15:00 interval ok heartbeat_ok",
    ]


def test_a_skip_outside_calendar_and_hours_names_the_calendar(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1h", skip_on="holidays", active_hours='"08:00-22:00"'), start="2026-03-03 21:00")
    world.run_until("2026-03-05 08:30")
    assert world.history() == [
        "03-03 21:00 interval ok heartbeat_ok",
        "03-04 00:00 interval skipped calendar x24",
        "03-03 22:00 interval skipped active_hours x10",
        "03-05 08:00 interval ok heartbeat_ok",
    ]
    assert sum(row["planned_runs"] for row in world.records()) == 36


def test_a_heartbeat_with_a_schedule_obeys_hours_and_calendars(make_world: MakeWorld) -> None:
    keys = {"schedule": '"0 */6 * * *"', "skip_on": "holidays", "active_hours": '"08:00-22:00"'}
    world = make_world(agent(**keys).replace("interval: 6h, ", ""), start="2026-03-03 17:00")
    world.run_until("2026-03-05 12:30")
    assert world.history() == [
        "03-03 18:00 schedule ok heartbeat_ok",
        "03-04 00:00 schedule skipped calendar x4",
        "03-05 00:00 schedule skipped active_hours x2",
        "03-05 12:00 schedule ok heartbeat_ok",
    ]


def test_a_wake_on_a_day_off_is_recorded_once_and_delivered_by_the_next_run(make_world: MakeWorld) -> None:
    world = make_world(agent(skip_on="holidays"), start="2026-03-03 18:00")
    world.run_until("2026-03-04 09:00")
    world.wake("ops", "the disk is full")
    world.run_until("2026-03-05 00:30")
    assert world.history() == [
        "03-03 18:00 interval ok heartbeat_ok",
        "03-04 00:00 interval skipped calendar x2",
        "03-04 09:00 api skipped calendar",
        "03-04 12:00 interval skipped calendar x2",
        "03-05 00:00 interval ok heartbeat_ok",
    ]
    assert "the disk is full" in world.calls[-1].stdin


def test_a_retry_does_not_run_on_a_day_off(make_world: MakeWorld) -> None:
    world = make_world(agent(skip_on="holidays", retries="5", interval="1d"), start="2026-03-03 23:59:57")
    world.scripts["ops"] = lambda call: 1
    world.run_until("2026-03-04 01:00")
    assert world.history() == ["03-03 23:59 interval failed no_time_left"]
    assert world.records()[0]["finished_at"] < "2026-03-04T00:00:00Z"


def test_a_slot_that_could_only_start_late_on_a_day_off_is_missed(make_world: MakeWorld) -> None:
    world = make_world(
        agent(schedule='"55 23 * * *"', skip_on="holidays").replace("interval: 6h, ", ""), start="2026-03-03 23:50"
    )
    world.downtime(minutes=11)
    world.run(hours=1)
    assert world.history("ops")[-1] == "03-03 23:55 schedule skipped missed"


def test_a_job_does_not_run_on_a_holiday(make_world: MakeWorld) -> None:
    world = make_world(job(schedule='"0 3 * * *"', skip_on="holidays"), start="2026-03-02 12:00")
    world.run_until("2026-03-05 03:30")
    assert world.history() == ["03-03 03:00 schedule ok", "03-04 03:00 schedule skipped calendar", "03-05 03:00 schedule ok"]


def test_a_job_that_was_due_before_midnight_may_start_late_on_the_holiday(make_world: MakeWorld) -> None:
    world = make_world(job(schedule='"50 23 * * *"', skip_on="holidays"), start="2026-03-03 23:00")
    world.downtime(minutes=65)
    world.run(minutes=1)
    assert world.history() == ["03-03 23:50 schedule ok"]


def test_a_manual_run_of_a_job_ignores_the_calendar(make_world: MakeWorld) -> None:
    world = make_world(job(schedule='"0 3 * * *"', skip_on="holidays"), start="2026-03-04 12:00")
    world.run_job("measure")
    world.run(minutes=1)
    assert world.history() == ["03-04 12:00 manual ok"]


@pytest.mark.parametrize(("day", "story"), [("04", "03-04 12:00 reboot skipped calendar"), ("05", "03-05 12:00 reboot ok")])
def test_a_reboot_job_does_not_run_on_a_holiday(make_world: MakeWorld, day: str, story: str) -> None:
    world = make_world(job(schedule='"@reboot"', skip_on="holidays"), start=f"2026-03-{day} 12:00")
    world.run(minutes=1)
    assert world.history() == [story]


def test_a_holiday_during_downtime_is_not_recorded_as_missed(make_world: MakeWorld) -> None:
    world = make_world(job(every="6h", skip_on="holidays"), start="2026-03-03 09:00")
    world.downtime(days=2)
    world.run(minutes=1)
    assert world.history() == [
        "03-04 03:00 every skipped calendar x4",
        "03-03 15:00 every skipped missed x3",
        "03-05 09:00 every ok",
    ]


def test_a_changed_calendar_affects_only_future_slots(make_world: MakeWorld) -> None:
    daily = job(schedule='"0 3 * * *"', skip_on="holidays")
    world = make_world(daily, start="2026-03-03 12:00")
    world.run_until("2026-03-04 12:00")
    world.reload(daily.replace("2026-03-04", "2026-03-05"))
    world.run_until("2026-03-06 03:30")
    assert world.history() == [
        "03-04 03:00 schedule skipped calendar",
        "03-05 03:00 schedule skipped calendar",
        "03-06 03:00 schedule ok",
    ]


def test_a_pause_over_workdays_and_days_off_is_one_record(make_world: MakeWorld) -> None:
    world = make_world(agent(skip_on="holidays"), start="2026-03-03 17:00")
    world.run(minutes=1)
    world.pause(None)
    world.run_until("2026-03-05 12:00")
    world.resume(None)
    assert world.history()[1:] == ["03-03 23:00 interval skipped paused x7"]


NEVER = "the calendars leave no time to run within two years; change skip_on, only_on or the calendars"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (agent(only_on="launch"), "agents.ops.heartbeat.only_on"),
        (agent(skip_on="launch", only_on="launch"), "agents.ops.heartbeat.only_on"),
        (agent(skip_on="weekend", active_hours='{start: "08:00", end: "09:00", days: sat}'), "agents.ops.heartbeat.skip_on"),
        (job(schedule='"0 3 * * 6"', skip_on="weekend"), "cron.measure.skip_on"),
        (job(every="7d", only_on="holidays"), "cron.measure.only_on"),
        (job(at='"2026-12-26T18:00"', skip_on="weekend"), "cron.measure.skip_on"),  # a Saturday
        (agent(interval="none", only_on="launch"), "agents.ops.heartbeat.only_on"),
        (
            agent(interval="none", skip_on="weekend", active_hours='{start: "08:00", end: "09:00", days: sat}'),
            "agents.ops.heartbeat.skip_on",
        ),
        (job(schedule='"@reboot"', only_on="launch"), "cron.measure.only_on"),
        (
            agent(only_on="weekend") + agent(only_on="launch").partition("agents:\n")[2].replace("ops", "web"),
            "agents.web.heartbeat.only_on",
        ),
        (  # of two agents with the same calendar, only one has hours on its days
            agent(only_on="weekend")
            + agent(only_on="weekend", active_hours='{start: "08:00", end: "09:00", days: mon}')
            .partition("agents:\n")[2]
            .replace("ops", "web"),
            "agents.web.heartbeat.only_on",
        ),
    ],
)
def test_an_entry_that_can_never_run_again_is_rejected_by_a_reload_and_warned_about_at_start(
    make_world: MakeWorld, text: str, key: str
) -> None:
    world = make_world(job(every="1h"), start="2026-03-07 12:00")  # the launch is over
    with pytest.raises(ConfigError, match="leave no time") as caught:
        world.reload(text)
    assert [(fault.path, fault.message) for fault in caught.value.errors] == [(key, NEVER)]
    world.downtime(minutes=1)


@pytest.mark.parametrize(
    "text",
    [
        agent(only_on="weekend", interval="30d"),
        agent(skip_on="weekend"),
        job(schedule='"0 3 29 2 *"', skip_on="holidays"),  # in two years, as without calendars
        job(at='"2030-01-01T00:00"', skip_on="weekend"),
        agent(interval="none", only_on="weekend"),
        job(schedule='"@reboot"', only_on="weekend"),
    ],
)
def test_an_entry_that_can_run_some_day_is_accepted(make_world: MakeWorld, text: str) -> None:
    world = make_world(job(every="1h"), start="2026-03-07 12:00")
    world.reload(text)


def test_ten_years_of_days_off_are_computed_quickly(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="5m", skip_on="weekend"), start="2026-03-07 12:00")
    world.run(minutes=1)
    world.kill()
    world.clock.advance(timedelta(days=3650))
    world.boot()
    world.run(minutes=1)
    rows = world.records()
    assert len(rows) <= 4
    assert {row["why"] for row in rows} >= {"calendar", "missed"}
    assert world.clock.now > utc("2036-01-01 00:00")

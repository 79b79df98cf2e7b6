"""`explain` end to end: for days with a known cause of silence it names the cause and accounts for every slot."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from servers import gateway
from servers.scripted import Server
from simulation import size
from test_story_async_results import http_agent
from test_story_lanes import lane_locked
from test_story_slots import agent, job
from world import QUIET, DatabaseOf, Delayed, MakeWorld, World, utc

from heartbeatd.verbs import HoldLock, ReportResult
from scheduler.cli.main import main
from scheduler.config.settings.load import load_config
from scheduler.engine.effects import VerbRequest
from scheduler.insight import explanation
from scheduler.insight.daemon_state import read_daemon_state
from scheduler.insight.entry_day import explain_day
from scheduler.insight.periods import Period
from scheduler.insight.records import ExplainedEntry, Records
from scheduler.model import local_days
from scheduler.model.outcome import Kind
from scheduler.model.timestamps import to_millis
from scheduler.store import overviews
from scheduler.system import lanes
from scheduler.work import plan

DAY = "2026-03-02"


def records_of(world: World, *, running: bool = True, agents: frozenset[str] | None = None) -> Records:
    """What is on record about today, for a reader who may see these agents."""
    made = plan.make_plan(load_config(world.config, world.environ).settings)
    db, now = world.store.connection, world.clock.now
    daemon = read_daemon_state(db, now, running=running)
    return Records(db, made, Period.today(made.settings.zone, now), now, daemon, lanes.lanes_beside(world.state), agents)


def explained_entry(world: World, name: str = "ops", *, running: bool = True) -> ExplainedEntry:
    """The explain query for one entry of a world."""
    records = records_of(world, running=running)
    assert records.plan is not None
    keys = [(Kind.HEARTBEAT, name), (Kind.CRON, name)]
    found = explanation.find_entry(records, next((key for key in keys if key in records.plan.entries), keys[0]))
    assert found is not None
    return found


def fact_of(found: dict[str, Any], label: str) -> dict[str, Any]:
    """The fact with this label: {} without one."""
    return next((fact for fact in found["facts"] if fact["label"] == label), {})


def events_of(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The facts of a day that happened at a time."""
    return [fact for fact in found["facts"] if "at" in fact]


def explain_day_of(world: World, name: str = "ops", on: str = DAY, *, running: bool = True) -> dict[str, Any]:
    explained = explained_entry(world, name, running=running)
    return explanation.explain(explained, Period.of_day(date.fromisoformat(on), explained.zone, explained.now)).as_data()


def stretch_lines(found: dict[str, Any]) -> list[str]:
    """One line per stretch of slots: `08:30-09:30 3 paused`."""
    return [_stretch_line(stretch) for stretch in found["stretches"]]


def _stretch_line(stretch: dict[str, Any]) -> str:
    results = " + ".join(" ".join(filter(None, [each["result"], each["why"]])) for each in stretch["results"])
    return f"{stretch['from'][11:16]}-{stretch['to'][11:16]} {stretch['planned_runs']} {results}".replace("skipped ", "")


def cause_of(counted: dict[str, Any]) -> str:
    """Why slots were skipped, or else their result."""
    return str(counted["why"] if counted["result"] == "skipped" else counted["result"])


# --- causes of silence ------------------------------------------------------------------------------------------------


def test_an_entry_removed_from_the_config_is_explained_as_not_declared(make_world: MakeWorld) -> None:
    world = make_world(agent() + job(every="1h"))
    world.run(minutes=5)
    world.write_config(job(every="1h"))
    now = explanation.explain_now(explained_entry(world)).as_data()["now"]
    assert (now["would_run"], now["why"], now["complete"]) == (False, "removed", False)


def test_the_same_alert_all_day_is_explained_as_duplicates(make_world: MakeWorld) -> None:
    world = make_world(agent(), start="2026-03-02 00:00", scripts={"ops": lambda call: "the disk is full"})
    world.run(hours=24)
    assert stretch_lines(explain_day_of(world)) == ["00:00-00:00 1 alert", "00:30-23:30 47 alert duplicate"]


def test_an_alert_to_two_channels_is_one_text_that_would_be_a_duplicate(make_world: MakeWorld) -> None:
    hook = 'channels: {hook: {kind: webhook, url: "http://127.0.0.1:1/x", allow_private: true}}\n'
    alerts = iter(["the disk is full", "the mail stands still"])
    world = make_world(agent(deliver="[log, hook]") + hook, scripts={"ops": lambda call: next(alerts)})
    world.run(minutes=35)
    sent = fact_of(explanation.explain_now(explained_entry(world)).as_data(), "sent")
    assert (sent["says"], len(world.delivered)) == ("2 alerts that would be a duplicate now", 4)


def test_a_night_outside_active_hours_is_explained(make_world: MakeWorld) -> None:
    world = make_world(agent(active_hours='"08:00-22:00"'), start="2026-03-02 00:00")
    world.run(hours=24)
    assert stretch_lines(explain_day_of(world)) == [
        "00:00-07:30 16 active_hours", "08:00-21:30 28 ok heartbeat_ok", "22:00-23:30 4 active_hours",
    ]  # fmt: skip


def test_a_pause_is_explained_during_and_after_it(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1h"), start="2026-03-02 00:00")
    world.run(hours=9, minutes=30)
    world.pause((Kind.HEARTBEAT, "ops"))
    world.run(hours=4)
    expected = ["00:00-09:00 10 ok heartbeat_ok", "10:00-23:00 14 paused"]
    assert stretch_lines(explain_day_of(world)) == expected
    world.resume((Kind.HEARTBEAT, "ops"))
    world.run(hours=12)
    assert stretch_lines(explain_day_of(world)) == [*expected[:1], "10:00-13:00 4 paused", "14:00-23:00 10 ok heartbeat_ok"]


@pytest.mark.long_on_server("a thousand retries")
def test_a_locked_lane_is_explained(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="2h"), start="2026-03-02 00:00")
    world.run(hours=5)
    with lane_locked(world):
        world.run(hours=6)
        assert explanation.explain_now(explained_entry(world)).as_data()["now"]["why"] == "busy"
        assert stretch_lines(explain_day_of(world))[1] == "06:00-08:00 2 busy"
    world.run(hours=13)
    assert stretch_lines(explain_day_of(world)) == [
        "00:00-04:00 3 ok heartbeat_ok",
        "06:00-08:00 2 busy",
        "10:00-22:00 7 ok heartbeat_ok",
    ]


def test_an_open_circuit_breaker_is_explained(make_world: MakeWorld) -> None:
    model = agent(interval="1h", retries="0").replace("kind: command, argv: [agent]", "kind: anthropic")
    world = make_world(model + "providers: {anthropic: {api_key: k}}\n", start="2026-03-02 00:00")
    with world.store.transaction() as db:
        probe = to_millis(utc("2026-03-03 00:00"))
        db.execute("insert into breaker values ('anthropic', '*', 'auth', 'HTTP 401', 0, ?, ?, null, '[]')", (probe, probe))
    world.run(hours=23, minutes=30)
    assert stretch_lines(explain_day_of(world)) == ["00:00-23:00 24 breaker_open"]
    now = explanation.explain_now(explained_entry(world)).as_data()["now"]
    assert (now["why"], now["detail"]) == (
        "breaker_open",
        "provider anthropic: HTTP 401; next trial call at 2026-03-03 00:00:00 UTC",
    )


def test_downtime_is_explained_from_the_first_to_the_last_slot(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1h"), start="2026-03-02 00:00")
    world.run(hours=9, minutes=30)
    world.downtime(hours=5)
    world.run(hours=12)
    found = explain_day_of(world)
    assert stretch_lines(found) == [
        "00:00-09:00 10 ok heartbeat_ok",
        "10:00-14:00 5 daemon_down",
        "15:00-23:00 9 ok heartbeat_ok",
    ]
    assert [(event["at"][11:16], event["code"]) for event in events_of(found)] == [
        ("00:00", "daemon_started"), ("09:30", "daemon_lost"), ("14:30", "daemon_started"),
    ]  # fmt: skip


def test_current_downtime_is_explained_before_it_is_recorded(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1h", active_hours='"06:00-20:00"'), start="2026-03-02 00:00")
    world.run(hours=9, minutes=30)
    world.stop()
    world.clock.advance(timedelta(days=2))
    world.store = world.open_store()
    assert stretch_lines(explain_day_of(world, running=False)) == [
        "00:00-05:00 6 active_hours", "06:00-09:00 4 ok heartbeat_ok", "10:00-19:00 10 daemon_down", "20:00-23:00 4 active_hours",
    ]  # fmt: skip
    assert stretch_lines(explain_day_of(world, on="2026-03-03", running=False))[1] == "06:00-19:00 14 daemon_down"


def test_a_frozen_daemon_is_explained(make_world: MakeWorld, caplog: pytest.LogCaptureFixture) -> None:
    world = make_world(job(schedule='"*/10 * * * *"', misfire="{grace: 1m}"), start="2026-03-02 00:00")
    world.run(hours=6, minutes=5)
    world.clock.advance(timedelta(minutes=42, seconds=30))
    world.run(hours=12)
    found = explain_day_of(world, "measure")
    assert stretch_lines(found)[:3] == ["00:00-06:00 37 ok", "06:10-06:40 4 frozen", "06:50-18:40 72 ok"]
    says = "the daemon had been frozen for 0:37:30: its process got no CPU time or disk access, or was stopped"
    assert [event["says"] for event in events_of(found)][1:] == [says]
    assert "frozen" in caplog.text


def test_a_slightly_late_tick_is_no_freeze(make_world: MakeWorld) -> None:
    world = make_world(job(schedule='"*/10 * * * *"'), start="2026-03-02 00:00")
    world.run(minutes=5)
    world.clock.advance(timedelta(minutes=5, seconds=19))
    world.run(hours=1)
    assert [event["code"] for event in events_of(explain_day_of(world, "measure"))] == ["daemon_started"]


def test_a_system_clock_change_is_explained(make_world: MakeWorld) -> None:
    world = make_world(job(schedule='"0 * * * *"', misfire="{grace: 1m}"), start="2026-03-02 00:00")
    world.run(hours=6, minutes=30)
    world.clock.now += timedelta(hours=4)
    world.run(hours=13, minutes=29)
    found = explain_day_of(world, "measure")
    assert stretch_lines(found) == ["00:00-06:00 7 ok", "07:00-10:00 4 clock_jumped", "11:00-23:00 13 ok"]
    assert [event["says"] for event in events_of(found)[1:]] == [
        "the system clock jumped 4:00:00 forward, or the machine was suspended"
    ]


def test_a_clock_set_back_is_recorded_and_every_run_is_counted_once(make_world: MakeWorld) -> None:
    world = make_world(job(schedule='"0 * * * *"'), start="2026-03-02 00:30")
    world.run(hours=6)
    world.clock.now -= timedelta(hours=3)
    world.run(hours=20, minutes=29)
    found = explain_day_of(world, "measure")
    assert stretch_lines(found) == ["00:00-00:00 0 not_declared", "01:00-23:00 23 ok"]
    assert [event["says"] for event in events_of(found)[1:]] == ["the system clock jumped 3:00:00 back"]


def test_a_clock_set_back_during_downtime_is_recorded(make_world: MakeWorld) -> None:
    world = make_world(job(schedule='"0 * * * *"'), start="2026-03-02 00:30")
    world.run(hours=6)
    world.kill()
    world.clock.now -= timedelta(hours=3)
    world.boot()
    world.run(minutes=1)
    assert "the system clock jumped 3:00:00 back" in [event["says"] for event in events_of(explain_day_of(world, "measure"))]


def test_a_day_excluded_by_a_calendar_is_explained_inside_and_outside_the_hours(make_world: MakeWorld) -> None:
    config = agent(interval="1h", skip_on="holidays", active_hours='"08:00-22:00"') + job(
        schedule='"0 * * * *"', skip_on="holidays"
    )
    world = make_world(config + "calendars: {holidays: {dates: [2026-03-03]}}\n", start="2026-03-02 00:00")
    world.run(hours=36)
    assert stretch_lines(explain_day_of(world, on="2026-03-03")) == ["00:00-23:00 24 calendar"]
    assert explanation.explain_now(explained_entry(world)).as_data()["now"]["why"] == "calendar"
    world.run(hours=24)
    for name in ("ops", "measure"):
        assert stretch_lines(explain_day_of(world, name, on="2026-03-03")) == ["00:00-23:00 24 calendar"]
    assert stretch_lines(explain_day_of(world))[1] == "08:00-21:00 14 ok heartbeat_ok"


def test_slots_missed_because_of_a_long_run_are_explained(make_world: MakeWorld) -> None:
    world = make_world(job(schedule='"0 * * * *"', timeout="4h"), start="2026-03-02 00:30")
    world.scripts["measure"] = lambda call: Delayed("", timedelta(hours=2, minutes=30) if call.at.hour == 5 else timedelta())
    world.run(hours=5, minutes=45)
    assert stretch_lines(explain_day_of(world, "measure"))[1:4] == [
        "01:00-04:00 4 ok",
        "05:00-05:00 1 running",
        "06:00-06:00 1 already_running",
    ]
    world.run(hours=17, minutes=44)
    assert stretch_lines(explain_day_of(world, "measure"))[1:] == [
        "01:00-05:00 5 ok",
        "06:00-07:00 2 already_running",
        "08:00-23:00 16 ok",
    ]


def test_a_disabled_or_removed_agent_has_no_slots_with_the_reason(make_world: MakeWorld) -> None:
    config = agent(interval="1h") + job(every="1d")
    world = make_world(config, start="2026-03-02 00:00")
    world.run(hours=5, minutes=30)
    world.reload(config.replace("interval: 1h", "interval: 1h, enabled: false"))
    world.run(hours=4)
    world.reload(job(every="1d"))
    world.run(hours=3)
    world.reload(config)
    world.run(hours=11, minutes=29)
    found = explain_day_of(world)
    assert stretch_lines(found) == [
        "00:00-05:00 6 ok heartbeat_ok", "05:30-05:30 0 disabled", "09:30-09:30 0 removed", "13:00-23:00 11 ok heartbeat_ok",
    ]  # fmt: skip
    assert found["planned_runs"] == 17


# --- every slot of a day ----------------------------------------------------------------------------------------------


def test_after_a_changed_interval_each_hour_is_explained_with_its_own_slots(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1h"), start="2026-03-02 00:00")
    world.run(hours=6, minutes=10)
    world.reload(agent(interval="10m"))
    world.run(hours=1)
    world.downtime(hours=10, minutes=5)
    world.run(hours=6, minutes=44)
    found = explain_day_of(world)
    assert stretch_lines(found) == [
        "00:00-07:10 13 ok heartbeat_ok",
        "07:20-17:00 59 daemon_down",
        "17:10-23:50 41 ok heartbeat_ok",
    ]


def test_a_day_of_frequent_slots_with_many_changes_takes_about_a_dozen_lines(make_world: MakeWorld) -> None:
    world = make_world(
        job(schedule='"*/5 * * * *"') + "history: {runs: 5000}\n",
        start="2026-03-01 23:59:30",
        scripts={"measure": lambda call: call.at.minute // 5 % 2},
    )
    world.run(hours=5)
    world.downtime(hours=2)
    world.run(hours=4)
    world.pause(None)
    world.run(hours=3)
    world.resume(None)
    world.run(hours=10, minutes=29)
    found = explain_day_of(world, "measure")
    assert found["planned_runs"] == 288
    assert len(found["stretches"]) <= 12
    assert {each["why"]: each["count"] for each in found["totals"] if each["why"] in ("daemon_down", "paused")} == {
        "daemon_down": 24, "paused": 36,
    }  # fmt: skip
    assert [stretch["results"][0]["why"] for stretch in found["stretches"] if len(stretch["results"]) == 1] == [
        "daemon_down", "paused",
    ]  # fmt: skip


# Days with a change to or from summer time, and their number of half hours.
ZONES = [
    ("Europe/Berlin", "2027-03-28", 46),
    ("Europe/Berlin", "2027-10-31", 50),
    ("Australia/Lord_Howe", "2027-04-04", 49),
    ("Australia/Lord_Howe", "2027-10-03", 47),
    ("America/Santiago", "2026-09-06", 46),
    ("America/New_York", "2027-11-07", 50),
    ("Asia/Kathmandu", "2027-01-01", 48),
]


@pytest.mark.parametrize(("zone", "on", "halves"), ZONES)
def test_every_slot_of_a_day_is_explained_exactly_once(make_world: MakeWorld, zone: str, on: str, halves: int) -> None:
    """The slots of two days up to a clock change are as many as the half hours, match the records, and have one cause each."""
    begins = local_days.whole_day(date.fromisoformat(on) - timedelta(days=1), ZoneInfo(zone)).begins
    config = f"timezone: {zone}\n" + agent(active_hours='"08:00-23:00"') + job(schedule='"*/30 * * * *"')
    world = make_world(config, start=f"{begins:%Y-%m-%d %H:%M}")
    world.scripts["ops"] = lambda call: "ALERT: same" if call.at.hour % 3 else QUIET
    for hours in (9, 5, 3):
        world.run(hours=hours, minutes=7)
        world.downtime(hours=3, minutes=11)
        world.run(hours=2)
        world.pause(None)
        world.run(hours=4, minutes=31)
        world.resume(None)
    world.run(seconds=(local_days.whole_day(date.fromisoformat(on), ZoneInfo(zone)).ends - world.clock.now).total_seconds() - 1)
    world.pause(None)  # records the slots that have passed
    for name in ("ops", "measure"):
        found = [explain_day_of(world, name, str(date.fromisoformat(on) + timedelta(days=number))) for number in (-1, 0)]
        assert found[1]["planned_runs"] == halves
        for each in found:
            hours = datetime.fromisoformat(each["until"]) - datetime.fromisoformat(each["from"])
            assert each["planned_runs"] == hours / timedelta(minutes=30)
            assert sum(count["count"] for count in each["totals"]) == each["planned_runs"]
            assert not {"not_kept", "missed"} & {cause_of(count) for count in each["totals"]}
        by_cause: Counter[str] = Counter()
        for count in (count for each in found for count in each["totals"]):
            by_cause[cause_of(count)] += count["count"]
        assert _slots_by_cause(world, name) == by_cause


def _slots_by_cause(world: World, name: str) -> Counter[str]:
    """The slots by cause according to the run records. All missed slots here are due to downtime."""
    counted: Counter[str] = Counter()
    for row in world.records(name):
        cause = row["why"] if row["result"] == "skipped" else row["result"]
        counted["daemon_down" if cause == "missed" else cause] += row["planned_runs"]
    return counted


def test_slots_that_a_backing_off_agent_will_skip_are_explained_in_advance(make_world: MakeWorld) -> None:
    backing_off = agent(interval="1h", retries="0", backoff_on_failure="true")
    world = make_world(backing_off, start="2026-03-02 00:00", scripts={"ops": lambda call: 1})
    world.run(hours=3, minutes=30)
    expected = ["00:00-00:00 1 failed exit", "01:00-01:00 1 superseded", "02:00-02:00 1 failed exit", "03:00-05:00 3 superseded"]
    assert stretch_lines(explain_day_of(world))[:4] == expected
    world.run(hours=2, minutes=35)
    assert stretch_lines(explain_day_of(world))[:4] == expected


TUESDAY = "calendars: {tuesdays: {dates: [2026-03-03]}}\n"
CONFIGS = [
    agent(interval="30m", skip_on="tuesdays", active_hours='"07:00-21:00"') + TUESDAY,
    agent(interval="30m"),
    agent(interval="20m", active_hours='"08:00-22:00"'),
    agent(interval="20m", active_hours='"06:00-23:00"', stagger="10m"),
    agent(interval="5h", active_hours='["08:00-09:00", "09:30-10:00"]', stagger="10m"),
    agent(interval="10h", active_hours='"07:00-15:00"', skip_on="tuesdays") + TUESDAY,
    agent(interval="30m", enabled="false"),
    job(every="1d"),
]
STEPS = st.one_of(
    st.tuples(st.just("run"), st.integers(1, 2000)),
    st.tuples(st.just("off"), st.integers(1, 2000)),
    st.tuples(st.just("jump"), st.integers(1, 300)),
    st.tuples(st.just("config"), st.integers(0, len(CONFIGS) - 1)),
    st.tuples(st.sampled_from(["pause", "resume"]), st.just(0)),
)
MISSED = {"daemon_down": "missed", "clock_jumped": "missed", "frozen": "missed"}


@pytest.mark.simulation
@pytest.mark.long_on_server("histories of days")
@settings(max_examples=size(12, 200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, min_size=2, max_size=10))
def test_in_random_histories_the_days_explain_as_many_slots_as_the_records(
    tmp_path_factory: pytest.TempPathFactory, database_of: DatabaseOf, steps: list[tuple[str, int]]
) -> None:
    folder = tmp_path_factory.mktemp("days")
    world = World(folder, CONFIGS[1], start="2026-03-02 00:00", server=database_of(folder))
    for action, number in steps:
        _step(world, action, number)
    world.reload(CONFIGS[1])
    world.resume(None)
    world.pause(None)  # records the slots that have passed
    accounted: Counter[str] = Counter()
    for passed in range((world.clock.now - utc("2026-03-02 00:00")).days + 1):
        for each in explain_day_of(world, on=str(date(2026, 3, 2) + timedelta(days=passed)))["totals"]:
            accounted[MISSED.get(cause_of(each), cause_of(each))] += each["count"]
    by_rows: Counter[str] = Counter()
    for row in world.records("ops"):
        by_rows[row["why"] if row["result"] == "skipped" else row["result"]] += row["planned_runs"]
    # The rest of the last day is paused and not recorded yet.
    accounted["paused"] -= sum(
        fate.at > world.clock.now for fate in explained_entry(world).slot_results(world.clock.now, _midnight(world))
    )
    assert +accounted == by_rows
    world.store.close()


def _midnight(world: World) -> datetime:
    return datetime.combine(world.clock.now.date() + timedelta(days=1), time.min, UTC)


def _step(world: World, action: str, number: int) -> None:
    if action == "run":
        world.run(minutes=number)
    elif action == "off":
        world.downtime(minutes=number)
    elif action == "jump":
        world.clock.now += timedelta(minutes=number)
        world.run(minutes=1)
    elif action == "config":
        world.reload(CONFIGS[number])
    elif action == "pause":
        world.pause(None)
    else:
        world.resume(None)


def test_slots_whose_records_were_deleted_are_reported_as_such(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1h") + "history: {runs: 10, keep: 30d}\n", start="2026-03-02 00:00")
    world.run(hours=24)
    assert stretch_lines(explain_day_of(world)) == ["00:00-13:00 14 not_kept", "14:00-23:00 10 ok heartbeat_ok"]


def test_old_settings_and_clock_changes_are_kept_as_long_as_the_history(make_world: MakeWorld) -> None:
    short = "history: {keep: 1d}\n"
    world = make_world(agent(interval="1h") + short, start="2026-03-02 00:00")
    world.run(hours=1)
    world.reload(agent(interval="2h") + short)
    world.clock.now += timedelta(hours=1)
    world.run(hours=1)
    counts = "select (select count(*) from former), (select count(*) from jump)"
    assert tuple(world.store.connection.execute(counts).fetchone()) == (1, 1)
    world.run(hours=30)
    assert tuple(world.store.connection.execute(counts).fetchone()) == (0, 0)


def test_the_remaining_slots_of_today_are_counted(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1h", active_hours='"00:00-20:00"'), start="2026-03-02 00:00")
    world.run(hours=10, minutes=30)
    assert stretch_lines(explain_day_of(world)) == [
        "00:00-10:00 11 ok heartbeat_ok",
        "11:00-19:00 9 to_come",
        "20:00-23:00 4 active_hours",
    ]
    assert stretch_lines(explain_day_of(world, on="2026-03-05")) == ["00:00-19:00 20 to_come", "20:00-23:00 4 active_hours"]


def test_woken_runs_are_listed_beside_the_slots(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="6h"), start="2026-03-02 00:00")
    world.run(hours=2)
    world.wake("ops", "look")
    world.run(hours=21)
    found = explain_day_of(world)
    assert (found["planned_runs"], [(each["result"], each["count"]) for each in found["beside"]]) == (4, [("ok", 1)])


@pytest.mark.parametrize(
    ("result", "expected", "says"),
    [
        ({"text": "ALERT: found it"}, "quiet", "ran 2 times, 2 messages delivered, only to the log"),
        ({"error": "it broke"}, "failed", "all 2 runs failed: it broke"),
    ],
)
def test_a_run_and_its_late_result_count_once(make_world: MakeWorld, result: dict[str, str], expected: str, says: str) -> None:
    with Server([gateway.async_answer()]) as server:
        world = make_world(http_agent(server.url, dedup="{window: 0s}"))
        for _ in range(2):
            world.run(minutes=1)
            world.request(VerbRequest(ReportResult(**result), server.requests[-1].json["run"]))
            world.run(minutes=28)
    found = explanation.explain_now(explained_entry(world)).overview
    assert (found.result, found.says, found.ran) == (expected, says, 2)
    outcome = "alert" if expected == "quiet" else "failed exit"
    (_, first, *_), beside = stretch_lines(day := explain_day_of(world)), day["beside"]
    assert (first, beside) == (f"08:00-08:30 2 {outcome}", [])
    shown = overviews.latest_slots(world.store.connection, "ops", 48)
    assert [row["outcome"] for row in shown] == [outcome.partition(" ")[0]] * 2


def test_a_failed_run_that_a_wake_started_counts_among_the_failed_runs(make_world: MakeWorld) -> None:
    answers = iter([QUIET, 1, QUIET, QUIET])
    world = make_world(agent(retries="0"), scripts={"ops": lambda call: next(answers)})
    world.run(minutes=5)
    world.wake("ops", "look")
    world.run(minutes=35)
    assert explanation.explain_now(explained_entry(world)).overview.says == "1 of 4 runs failed: exit code 1"


@pytest.mark.parametrize(
    ("wakes", "interval", "slots", "beside"),
    [(1, "24h", "1 planned run", "1 run: 1 ran, quiet"), (2, "12h", "2 planned runs", "2 runs: 2 ran, quiet")],
)
def test_counts_are_in_the_singular_or_plural(
    wakes: int, interval: str, slots: str, beside: str, make_world: MakeWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    world = make_world(agent(interval=interval), start="2026-03-02 00:00")
    for _ in range(wakes):
        world.run(hours=2)
        world.wake("ops", "look")
    world.run(hours=20)
    lines = printed(capsys, world, "ops", "--on", DAY)
    assert lines[1] == f"Mon 2026-03-02, {slots}"
    assert {f"in all     {slots}: {slots[0]} ran, quiet", f"unplanned  {beside}"} <= set(lines)


# --- one point in time, and now ---------------------------------------------------------------------------------------


def test_a_point_in_time_is_explained_by_the_slot_before_it(make_world: MakeWorld) -> None:
    world = make_world(agent(active_hours='"08:00-22:00"'), start="2026-03-02 06:00")
    world.run(hours=4)
    world.downtime(hours=2)
    world.run(minutes=1)

    def at_instant(text: str) -> tuple[Any, ...]:
        found = explanation.explain_moment(explained_entry(world), utc(text)).as_data()
        slot, following, daemon = (fact_of(found, label) for label in ("planned", "following", "daemon"))
        return slot.get("at"), slot["code"], following.get("at"), daemon["code"]

    assert at_instant("2026-03-02 07:10") == ("2026-03-02T07:00:00Z", "active_hours", "2026-03-02T07:30:00Z", "up")
    assert at_instant("2026-03-02 09:59") == ("2026-03-02T09:30:00Z", "ok", "2026-03-02T10:00:00Z", "up")
    assert at_instant("2026-03-02 11:00") == ("2026-03-02T11:00:00Z", "daemon_down", "2026-03-02T11:30:00Z", "down")
    assert at_instant("2026-03-02 14:40") == ("2026-03-02T14:30:00Z", "to_come", "2026-03-02T15:00:00Z", "up")
    assert at_instant("2026-03-02 05:00")[:2] == (None, "not_declared")


def test_explain_now_shows_the_last_slot_each_check_and_the_next_slot(make_world: MakeWorld) -> None:
    world = make_world(agent(checklist="HEARTBEAT.md", active_hours='"08:00-22:00"'), start="2026-03-02 08:00")
    file = world.write("ops/HEARTBEAT.md", "- look\n")
    world.run(minutes=10)
    file.unlink()
    world.run(minutes=65)
    found = explanation.explain_now(explained_entry(world)).as_data()
    last_slot, last_run = fact_of(found, "planned"), fact_of(found, "last run")
    assert (last_slot["at"], last_slot["code"], last_slot["run"]) == ("2026-03-02T09:00:00Z", "checklist_missing", 3)
    assert (last_run["at"], last_run["run"]) == ("2026-03-02T08:00:00Z", 1)
    assert {"label": "since then", "code": "slot", "says": "2 planned runs: 2 no checklist"} in found["facts"]
    assert (found["now"]["would_run"], found["now"]["why"]) == (False, "checklist_missing")
    assert fact_of(found, "next")["at"] == "2026-03-02T09:30:00Z"
    assert [gate["gate"] for gate in found["now"]["gates"]][:4] == ["disabled", "paused", "calendar", "active_hours"]


def test_a_daemon_that_ended_at_this_moment_is_down(make_world: MakeWorld) -> None:
    world = make_world(agent(), start="2026-03-02 08:00")
    world.run(minutes=10)
    up, down = (explanation.explain_now(explained_entry(world, running=running)).as_data() for running in (True, False))
    assert [fact_of(found, "daemon")["code"] for found in (up, down)] == ["up", "down"]
    assert [fact_of(found, "now")["says"] for found in (up, down)] == [
        "nothing blocks it",
        "nothing blocks it; the daemon is not running",
    ]


def hold_lock(world: World, holder: str, minutes: int) -> None:
    world.request(VerbRequest(HoldLock(id=holder, for_=timedelta(minutes=minutes)), (Kind.HEARTBEAT, "ops")))


def test_the_holder_of_a_lane_is_shown_with_the_end_of_the_hold(make_world: MakeWorld) -> None:
    yaml = "timezone: Europe/Berlin\n" + agent() + 'cron:\n  digest: {every: 1h, prompt: "sum up", agent: ops}\n'
    world = make_world(yaml, start="2026-03-02 08:00")
    world.run(minutes=5)
    hold_lock(world, "chat", minutes=30)
    detail = "chat holds it over HTTP until 2026-03-02 09:35:00 Europe/Berlin"
    for name in ("ops", "digest"):
        now = explanation.explain_now(explained_entry(world, name)).as_data()["now"]
        assert (now["why"], now["detail"]) == ("busy", detail)
    hold_lock(world, "mail", minutes=10)
    assert (
        explanation.explain_now(explained_entry(world)).as_data()["now"]["detail"] == f"{detail}, and 1 other for a shorter time"
    )


def test_a_run_that_waits_for_its_lane_is_shown_as_waiting(make_world: MakeWorld) -> None:
    world = make_world(agent(), start="2026-03-02 08:00")
    world.run(minutes=29)
    hold_lock(world, "chat", minutes=30)
    world.run(minutes=5)
    last = fact_of(explanation.explain_now(explained_entry(world)).as_data(), "planned")
    assert last["code"] == "waiting"
    assert "waiting until the agent's lock is free (run " in last["says"]


def test_a_hold_in_force_is_described_in_the_present_tense(make_world: MakeWorld, capsys: pytest.CaptureFixture[str]) -> None:
    world = make_world(agent(), start=f"{datetime.now(UTC):%Y-%m-%d %H:%M}")
    world.run(minutes=1)
    hold_lock(world, "chat", minutes=30)
    lines = " ".join(" ".join(printed(capsys, world, "ops")).split())
    assert "now it would not run: busy: the agent is locked: chat holds it over HTTP until 2" in lines


def test_a_job_with_a_prompt_has_the_checks_of_its_agent(make_world: MakeWorld) -> None:
    world = make_world(agent() + 'cron:\n  digest: {every: 1h, prompt: "sum up", agent: ops}\n')
    world.run(minutes=5)
    with lane_locked(world):
        now = explanation.explain_now(explained_entry(world, "digest")).as_data()["now"]
    assert now["why"] == "busy"
    assert [gate["gate"] for gate in now["gates"]] == [
        "disabled", "paused", "calendar", "already_running", "busy", "budget", "breaker_open", "prompt_too_large",
    ]  # fmt: skip


def test_explain_changes_nothing_in_the_database(make_world: MakeWorld) -> None:
    world = make_world(agent() + job(schedule='"*/5 * * * *"'), start="2026-03-02 08:00")
    world.run(hours=3)
    before = world.all_rows()
    explanation.explain_now(explained_entry(world)).as_data()
    explanation.explain_moment(explained_entry(world, "measure"), world.clock.now).as_data()
    explain_day_of(world)
    assert world.all_rows() == before


@pytest.mark.sqlite_file("query plans of SQLite")
def test_one_entry_is_explained_without_reading_the_runs_of_all_others(make_world: MakeWorld) -> None:
    world = make_world(agent())
    world.run(hours=1)
    db, explained = world.store.connection, explained_entry(world)
    statements: list[str] = []
    db.set_trace_callback(statements.append)
    explain_day(explained.records, explained.row)
    db.set_trace_callback(None)
    plans = [row["detail"] for each in statements for row in db.execute(f"explain query plan {each}")]
    of_runs = [plan for plan in plans if " run " in f"{plan} "]
    assert len(of_runs) > 3
    limited = ("kind=? AND name=?", "INDEX run_awaited", "INTEGER PRIMARY KEY")
    assert [plan for plan in of_runs if not any(words in plan for words in limited)] == []


def test_slots_moved_to_an_opening_are_explained_there_and_the_others_as_outside_the_hours(make_world: MakeWorld) -> None:
    calendars = "calendars: {off: {dates: 2026-03-04}}\n"
    world = make_world(calendars + agent(interval="4h", active_hours='"12:00-13:00"', skip_on="off"), start="2026-03-01 14:00")
    world.run(days=5)
    assert stretch_lines(explain_day_of(world)) == [
        "02:00-06:00 2 active_hours", "12:00-12:00 1 ok heartbeat_ok", "14:00-22:00 3 active_hours"
    ]  # fmt: skip
    # The slot moved past the opening of the excluded day to the next opening.
    assert stretch_lines(explain_day_of(world, on="2026-03-04")) == ["02:00-22:00 6 calendar"]
    assert stretch_lines(explain_day_of(world, on="2026-03-05"))[:2] == [
        "02:00-06:00 2 active_hours",
        "12:00-12:00 1 ok heartbeat_ok",
    ]
    assert sum(row["planned_runs"] for row in world.records()) == 5 * 6  # from 14:00 on 1 March to 10:00 on 6 March


# --- the command ------------------------------------------------------------------------------------------------------


def printed(capsys: pytest.CaptureFixture[str], world: World, *arguments: str) -> list[str]:
    assert main(["explain", "-c", str(world.config), *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def test_explain_prints_a_table_in_the_entrys_time_zone_within_80_columns(
    make_world: MakeWorld, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    world = make_world("timezone: Europe/Berlin\n" + agent(active_hours='"08:00-22:00"'), start="2026-10-24 22:00")
    world.run(hours=25)
    lines = printed(capsys, world, "ops", "--on", "2026-10-25")
    assert lines[0] == "agent/ops: active, every 30m (Europe/Berlin)"
    assert lines[1] == "Sun 2026-10-25, 25 hours, 50 planned runs"
    assert [" ".join(line.split()) for line in lines[2:6]] == [
        "FROM TO TIMES WHY",
        "00:00 CEST 07:30 CET 18 outside active hours (run 1)",
        "08:00 CET 21:30 CET 28 ran, quiet (runs 2 to 29)",
        "22:00 CET 23:30 CET 4 outside active hours",
    ]
    assert lines[-1] == "02:00:00   Europe/Berlin: 03:00 CEST was 02:00 CET"
    assert max(map(len, [*lines, *printed(capsys, world, "ops"), *printed(capsys, world, "ops", "--at", "2026-10-25")])) <= 80


def test_explain_now_prints_lines_and_a_table_of_checks(make_world: MakeWorld, capsys: pytest.CaptureFixture[str]) -> None:
    world = make_world(agent(active_hours='"08:00-22:00"', show_alerts="false"), start="2026-03-02 08:00")
    world.run(minutes=40)
    lines = [" ".join(line.split()) for line in printed(capsys, world, "ops")]
    assert lines[0] == "agent/ops: active, every 30m (UTC)"
    assert "daemon down from Mon 2026-03-02 08:40 on, ended unexpectedly" in lines
    assert "CHECK BLOCKS" in lines
    assert "not_shown yes" in lines
    assert "prompt_too_large not known before a run" in lines


def test_explain_works_without_a_config(make_world: MakeWorld, capsys: pytest.CaptureFixture[str]) -> None:
    world = make_world(agent(active_hours='{start: "08:00", end: "22:00", timezone: Asia/Tokyo}'), start="2026-03-01 15:00")
    world.run(hours=24)
    whole = printed(capsys, world, "ops", "--on", DAY, "--format", "json")
    world.write_config("agents: [")
    broken = printed(capsys, world, "ops", "--on", DAY, "--format", "json")
    assert [line for line in broken if "asked_at" not in line] == [line for line in whole if "asked_at" not in line]
    now = json.loads("\n".join(printed(capsys, world, "ops", "--format", "json")))["now"]
    assert (now["complete"], [gate["gate"] for gate in now["gates"]][:2]) == (False, ["disabled", "paused"])


def test_explain_of_an_agent_unknown_to_the_daemon_uses_the_config(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(agent(), "utf-8")
    assert main(["explain", "-c", str(config), "ops", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (fact_of(found, "daemon")["code"], fact_of(found, "last run"), found["now"]["would_run"]) == ("never", {}, True)
    assert datetime.fromisoformat(fact_of(found, "next")["at"]) <= datetime.now(UTC) + timedelta(seconds=1)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["nobody"], "no agent or cron job 'nobody'; `heartbeatd status` lists them"),
        (["opps"], "no agent or cron job 'opps'; did you mean ops?"),
        (["ops", "--on", "today", "--at", "2h"], "--at, --on and --since exclude each other"),
        (["ops", "--on", "Fridays"], "--on: 'Fridays' is not a day; write 2026-11-20, today, yesterday or monday"),
        (["ops", "--on", "0001-01-01"], "--on: write a time from 2000 on that is at most 400 days ahead"),
        (["ops", "--at", "9999-12-31"], "--at: write a time from 2000 on that is at most 400 days ahead"),
        (["--since", "0001-01-02"], "--since: write a time from 2000 on that is at most 400 days ahead"),
        (["ops", "--at", "soon"], "--at: 'soon' is not a time; write 2026-11-20T03:00, 2026-11-20T03:00:00Z, today, yesterday, or 2h for two hours ago"),
    ],
)  # fmt: skip
def test_invalid_arguments_of_explain_are_reported_in_one_line(
    tmp_path: Any, arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(agent(), "utf-8")
    assert main(["explain", "-c", str(config), *arguments]) == 2
    assert capsys.readouterr().err == f"heartbeatd: {error}\n"


def test_an_alert_without_a_target_is_counted_although_a_notification_is_about_its_run(make_world: MakeWorld) -> None:
    yaml = agent(deliver="none", precheck="look", problems="{deliver: log, after: 1}")
    world = make_world(yaml, scripts={"ops": lambda _: "The disk is full."}, prechecks={"ops": lambda _: 3})
    world.run(minutes=1)
    assert ["precheck" in text for _, _, text in world.delivered] == [True]
    assert "1 alert sent to no one" in explain_day(explained_entry(world).records, explained_entry(world).row).says

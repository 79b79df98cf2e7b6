"""One-time jobs (`at:`) end to end: they run at their time, never twice, and a time that has passed is handled."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from test_story_explain import explained_entry
from world import Delayed, MakeWorld, World, utc

from scheduler.cli.main import main
from scheduler.config.file.diagnostics import ConfigError
from scheduler.config.settings.load import load_config
from scheduler.config.settings.time_checks import TimeCheck
from scheduler.insight import explanation, forecast, status_data
from scheduler.model.outcome import Kind
from scheduler.store import entries
from scheduler.telemetry import gauges
from scheduler.telemetry.catalog import Reading

PASSED = "this time is in the past, and the daemon never saw this job; write a future time, or remove the job"


def job(**keys: str) -> str:
    words = {"command": "party", "timezone": "Europe/Berlin"} | keys
    other = "  other: {every: 1d, command: nothing, enabled: false}\n"
    return "cron:\n" + other + "  party: {" + ", ".join(f"{key}: {value}" for key, value in words.items()) + "}\n"


WITHOUT = "cron:\n  other: {every: 1d, command: nothing, enabled: false}\n"
AT_SIX = job(at='"2026-03-02T18:00"')  # 17:00 in UTC


def party_gauge(world: World, name: str) -> list[str]:
    """The series of the job party in the gauge heartbeatd_`name`, as lines of the metrics page."""
    wanted = {("cron", "party"): 'kind="cron",name="party"'}
    reading = Reading()
    gauges.read_entries(reading, world.store.connection, world.engine.plan.settings, wanted, world.clock.now)
    return list(reading[f"heartbeatd_{name}"].exposition_lines())[1:]


def test_a_one_time_job_runs_once_at_its_local_time(make_world: MakeWorld) -> None:
    world = make_world(AT_SIX)
    world.run(days=1)
    assert world.history() == ["03-02 17:00 at ok"]
    world.run(days=400)
    assert len(world.calls) == 1
    (entry,) = status_data.read_entries(world.store.connection, world.clock.now, kind=Kind.CRON, name="party")
    assert (entry.state, entry.next_planned_at, entry.next_due) == ("done", None, None)
    assert entry.done_at == utc("2026-03-02 17:00")
    assert party_gauge(world, "next_due_timestamp_seconds") == []


@pytest.mark.parametrize(
    ("written", "started"),
    [
        ("2026-03-02 18:00", "2026-03-02 17:00"),
        ("2026-03-02T18:00:30", "2026-03-02 17:00:30"),
        ("2026-03-02T18:00Z", "2026-03-02 18:00"),
        ("2026-03-02T18:00-05:00", "2026-03-02 23:00"),
        ("2026-03-29T02:30", "2026-03-29 01:00"),  # skipped by Berlin's clocks: right after the gap
        ("2026-10-25T02:30", "2026-10-25 00:30"),  # occurs twice: the first occurrence
    ],
)
def test_a_time_without_an_offset_is_local_time(make_world: MakeWorld, written: str, started: str) -> None:
    world = make_world(job(at=f'"{written}"'))
    world.run(days=300)
    assert [call.at for call in world.calls] == [utc(started)]


@pytest.mark.parametrize("answer", [0, 1])
def test_a_finished_one_time_job_does_not_run_again_after_a_restart_reload_or_readding(
    make_world: MakeWorld, answer: int
) -> None:
    world = make_world(AT_SIX)
    world.scripts["party"] = lambda call: answer or "done"
    world.run(days=1)
    world.downtime(hours=1)
    world.reload(AT_SIX)
    world.reload(WITHOUT)
    world.run(hours=1)
    world.reload(AT_SIX)
    world.run(days=1)
    assert len(world.calls) == 1
    assert len(world.history()) == 1


def test_a_changed_time_runs_again_and_the_old_time_stays_done(make_world: MakeWorld) -> None:
    world = make_world(AT_SIX)
    world.run(days=1)
    world.reload(job(at='"2026-03-04T18:00"'))
    world.run(days=2)
    world.reload(AT_SIX)
    world.run(days=2)
    assert world.history() == ["03-02 17:00 at ok", "03-04 17:00 at ok"]


def test_changing_other_keys_does_not_run_the_job_again(make_world: MakeWorld) -> None:
    world = make_world(AT_SIX)
    world.run(days=1)
    world.reload(job(at='"2026-03-02 18:00:00"', retries="3", stagger="5m"))
    world.run(days=1)
    assert world.history() == ["03-02 17:00 at ok"]


def test_setting_the_clock_back_does_not_run_the_job_again(make_world: MakeWorld) -> None:
    world = make_world(AT_SIX)
    world.run_until("2026-03-02 17:10")
    world.clock.now -= timedelta(hours=1)
    world.run(hours=3)
    assert len(world.calls) == 1


@pytest.mark.parametrize(
    ("more", "story"),
    [
        ({}, "03-02 17:00 at ok"),
        ({"misfire": "{grace: 20m}"}, "03-02 17:00 at skipped missed"),
        ({"misfire": "{policy: skip}"}, "03-02 17:00 at skipped missed"),
    ],
)
def test_a_time_during_downtime_runs_within_its_grace(make_world: MakeWorld, more: dict[str, str], story: str) -> None:
    world = make_world(job(at='"2026-03-02T18:00"', **more), start="2026-03-02 16:30")
    world.downtime(hours=1)
    world.run(minutes=1)
    assert world.history() == [story]


def test_a_time_that_had_passed_before_the_job_was_added_is_recorded_as_missed(make_world: MakeWorld) -> None:
    world = make_world(AT_SIX, start="2026-03-02 17:05")
    world.run(days=1)
    assert world.history() == ["03-02 17:00 at skipped missed"]
    world.downtime(hours=1)
    world.reload(AT_SIX)
    world.run(days=1)
    assert world.history() == ["03-02 17:00 at skipped missed"]


def test_a_reload_rejects_a_new_job_whose_time_has_passed(make_world: MakeWorld) -> None:
    world = make_world(WITHOUT, start="2026-03-02 17:05")
    with pytest.raises(ConfigError) as caught:
        world.reload(AT_SIX)
    assert str(caught.value) == f"{world.config}:3:56: cron.party.at: {PASSED}"


def test_the_time_of_a_disabled_job_may_have_passed(make_world: MakeWorld) -> None:
    world = make_world(WITHOUT, start="2026-03-02 17:05")
    world.reload(job(at='"2026-03-02T18:00"', enabled="false"))
    world.run(days=1)
    assert world.history() == []


def test_run_once_does_not_run_a_one_time_job_before_its_time(make_world: MakeWorld) -> None:
    world = make_world(WITHOUT)
    world.kill()
    world.write_config(AT_SIX)
    world.boot(at_once=True)
    world.run(minutes=1)
    assert world.history() == []
    world.run(days=1)
    assert world.history() == ["03-02 17:00 at ok"]


def test_a_pause_over_the_time_of_a_job_is_recorded(make_world: MakeWorld) -> None:
    world = make_world(AT_SIX)
    world.pause(None, utc("2026-03-02 18:30"))
    world.run(days=1)
    assert world.history() == ["03-02 17:00 at skipped paused"]


def test_a_one_time_job_is_retried_and_wakes_its_agent_like_any_job(make_world: MakeWorld) -> None:
    agents = (
        'agents: {ops: {runner: {kind: command, argv: [x]}, heartbeat: {interval: none, checklist: "- a\\n", deliver: log}}}\n'
    )
    world = make_world(agents + job(at='"2026-03-02T18:00"', retries="1", wake_heartbeat="ops"))
    world.scripts["party"] = lambda call: 1 if len(world.calls) < 2 else "the cake is here"
    world.run(days=1)
    assert world.history() == ["03-02 17:00 at ok", "03-02 17:00 cron ok heartbeat_ok"]
    assert "the cake is here" in world.calls[-1].stdin


def test_a_stagger_delays_the_start_and_does_not_change_the_slot(make_world: MakeWorld) -> None:
    world = make_world(job(at='"2026-03-02T18:00"', stagger="20m"))
    world.run(days=1)
    assert world.history() == ["03-02 17:00 at ok"]
    assert utc("2026-03-02 17:00") < world.calls[0].at <= utc("2026-03-02 17:20")


def test_a_past_time_is_an_error_without_a_database_and_not_with_an_unreadable_one(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(AT_SIX, "utf-8")
    today = TimeCheck(utc("2026-03-03 00:00"), entries.has_seen_one_time_job)
    with pytest.raises(ConfigError):
        load_config(config, {}, time_check=today)
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "heartbeatd.db").write_bytes(b"no database" * 1000)
    assert load_config(config, {}, time_check=today).warnings == ()


def test_a_start_warns_about_a_new_job_whose_time_has_passed(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(AT_SIX, "utf-8")
    (warning,) = load_config(
        config, {}, time_check=TimeCheck(utc("2026-03-03 00:00"), entries.has_seen_one_time_job, strict=False)
    ).warnings
    assert (warning.path, warning.message) == ("cron.party.at", PASSED)


def test_a_finished_one_time_job_is_shown_as_done_everywhere(make_world: MakeWorld, capsys: pytest.CaptureFixture[str]) -> None:
    world = make_world(AT_SIX)

    def says(command: str, *arguments: str) -> str:
        assert main([command, *arguments, "-c", str(world.config), "--state", str(world.database)]) == 0
        return capsys.readouterr().out

    def states() -> list[str | None]:
        found = explained_entry(world, "party")
        now = explanation.explain_now(found).as_data()
        (entry,) = status_data.read_entries(world.store.connection, world.clock.now, kind=Kind.CRON, name="party")
        (seen,) = (
            each
            for each in forecast.forecast_entries(world.store.connection, found.records.plan, world.clock.now)
            if each.course.name == "party"
        )
        (metric,) = (line.split('state="')[1].split('"')[0] for line in party_gauge(world, "entry_state"))
        return [entry.state, now["state"], metric, seen.state, entry.done_at]

    world.run(hours=2)
    assert states() == ["active", "active", "active", "active", None]
    world.scripts["party"] = lambda call: Delayed("done", timedelta(minutes=5))
    world.run_until("2026-03-02 17:02")
    assert states() == ["active", "active", "active", "done", None]  # no next slot, but it still runs
    world.run(hours=1)
    assert states() == ["done", "done", "done", "done", utc("2026-03-02 17:00")]
    assert not explanation.explain_now(explained_entry(world, "party")).as_data()["now"]["would_run"]
    assert "cron/party  done" in says("status")
    output = says("explain", "party")
    assert output.startswith("cron/party: done at Mon 2026-03-02 18:00 (UTC+01:00), once, at")
    assert "now        done: a one-time job that has already run" in output
    assert "nothing blocks it" not in output
    assert "done: cron/party" in says("plan")

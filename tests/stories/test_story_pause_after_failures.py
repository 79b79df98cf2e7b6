"""Agents and jobs that are paused after failures (`problems: {pause_after: 10}`), and jobs that back off, end to end."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

from config_file import complaints
from servers import gateway
from servers.messages import Models
from servers.scripted import Server, reply
from test_story_breakers import KEY, NO_KEY, fleet
from test_story_explain import explained_entry, records_of
from test_story_slots import agent, job
from world import QUIET, Delayed, MakeWorld, World

from heartbeatd.verbs import Mute, Pause, ReportResult, Wake
from scheduler.engine.effects import Sender, VerbRequest
from scheduler.insight.explanation import explain_all, explain_now
from scheduler.insight.status_data import read_status
from scheduler.model.events import PauseChanged
from scheduler.model.outcome import Kind

OPS = (Kind.HEARTBEAT, "ops")
TEN = agent(interval="30m", retries="0", problems="{pause_after: 10}")


def first_lines(world: World) -> list[str]:
    """The time and first line of each message."""
    return [f"{when:%m-%d %H:%M} {text.splitlines()[0]}" for when, _, text in world.delivered]


def test_a_day_of_an_agent_that_fails_until_somebody_repairs_it(make_world: MakeWorld) -> None:
    world = make_world(TEN, start="2026-03-02 06:00", scripts={"ops": lambda call: 1})
    world.run(hours=6)
    assert len(world.calls) == 10
    assert first_lines(world) == [
        "03-02 06:30 warning  ops failed: exit code 1 (2 times in a row since 2026-03-02 06:00 UTC)   p1",
        (
            "03-02 10:30 warning  ops paused: no run starts after 10 failures in a row until it is resumed: exit code 1"
            " (since 2026-03-02 10:30 UTC)   p2"
        ),
    ]
    assert "Resume: heartbeatd resume agent/ops" in world.delivered[-1][2]
    [overview] = explain_all(records_of(world)).entries
    assert overview.says == "paused after 10 failures since 10:30 until someone resumes it"
    assert (overview.result, overview.why, overview.command) == ("silent", "paused", "heartbeatd resume agent/ops")
    assert explain_now(explained_entry(world)).says == overview.says
    [status] = [
        each for each in read_status(world.store.connection, world.clock.now).as_data()["entries"] if each["name"] == "ops"
    ]
    assert (status["failing"]["times"], status["failing"]["since"], status["paused_by"]) == (
        10,
        "2026-03-02T06:00:00Z",
        "10 failures",
    )
    world.scripts["ops"] = lambda call: QUIET
    assert world.resume(OPS) == ["agent/ops"]
    world.run_until("2026-03-03 06:00")
    assert first_lines(world)[2:] == [
        "03-02 12:00 over     ops paused: after 1h30m   p2",
        "03-02 12:30 over     ops failed: after 6h30m   p1",
    ]
    assert world.history()[9:12] == [
        "03-02 10:30 interval failed exit",
        "03-02 11:00 interval skipped paused x3",
        "03-02 12:30 interval ok heartbeat_ok",
    ]
    assert [(each.paused, each.by) for each in world.events_of(PauseChanged)] == [(True, "10 failures"), (False, "command")]
    world.pause(None)
    assert explain_now(explained_entry(world)).says == "paused since 06:00 by command until someone resumes it"


def test_failures_before_a_resume_or_a_success_do_not_count(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1h", retries="0", problems="{pause_after: 3}"), scripts={"ops": lambda call: 1})
    world.run(hours=1, minutes=30)
    world.pause(OPS)
    world.resume(OPS)
    world.run(hours=2)
    assert len(world.calls) == 4
    world.scripts["ops"] = lambda call: 1 if len(world.calls) != 5 else QUIET
    world.run(hours=3)
    assert len(world.calls) == 7
    world.run(hours=5)
    assert [call.at.hour for call in world.calls] == [8, 9, 10, 11, 12, 13, 14, 15]


def test_a_pause_of_all_leaves_a_pause_after_failures_as_it_is(make_world: MakeWorld) -> None:
    """When the pause of all ends, only the others run again. A pause of the agent itself replaces the one after failures."""
    text = agent(interval="1h", retries="0", problems="{pause_after: 2}") + job(every="1h", deliver="none")
    world = make_world(text, start="2026-03-02 08:00", scripts={"ops": lambda call: 1})
    world.run(hours=2)
    answer = world.request(VerbRequest(Pause.of(for_=timedelta(hours=1)), None))
    assert answer.says.endswith("; agent/ops stays paused after 2 failures, until resumed")
    assert sorted(answer.paused) == ["agent/ops", "cron/measure"]
    world.run(hours=4)
    assert len([call for call in world.calls if call.name == "ops"]) == 2
    assert len([call for call in world.calls if call.name == "measure"]) == 5
    assert explain_now(explained_entry(world)).says == "paused after 2 failures since 09:00 until someone resumes it"
    world.pause(OPS, until=world.clock.now + timedelta(minutes=30))
    by_command = r"paused since \d\d:\d\d by command until \d\d:\d\d"
    assert re.fullmatch(by_command, explain_now(explained_entry(world)).says)
    world.run(hours=1)
    assert len([call for call in world.calls if call.name == "ops"]) == 3
    world.pause(None, until=world.clock.now + timedelta(minutes=30))
    assert re.fullmatch(by_command, explain_now(explained_entry(world)).says)


def test_a_person_with_the_name_of_a_number_of_failures_is_a_person(make_world: MakeWorld) -> None:
    world = make_world(TEN, start="2026-03-02 06:00")
    world.run(minutes=1)
    world.request(VerbRequest(Pause.of(), OPS, Sender("10 failures")))
    assert explain_now(explained_entry(world)).says == "paused since 06:01 by 10 failures until someone resumes it"
    world.pause(None, until=world.clock.now + timedelta(hours=1))
    world.run(hours=2)
    assert world.calls


def test_the_failures_of_a_provider_pause_nobody(make_world: MakeWorld) -> None:
    """The circuit breaker stops the calls already, and ends by itself."""
    with Models(lambda request: NO_KEY) as server:
        yaml = fleet(server.url, "a", a="problems: {after: 1, pause_after: 2}")
        world = make_world(yaml, environ={"KEY": KEY})
        world.run(hours=12)
    assert sum(each["result"] == "failed" for each in world.records("a")) > 2
    assert not world.events_of(PauseChanged)


def test_a_paused_job_is_reported_although_a_woken_agent_reports_its_failure(make_world: MakeWorld) -> None:
    text = agent(interval="none") + job(every="1h", wake_heartbeat="ops", deliver="log", problems="{pause_after: 2}")
    world = make_world(text, scripts={"measure": lambda call: 1, "ops": lambda call: "[job:measure] it fails"})
    world.run(hours=6)
    assert [line[6:] for line in first_lines(world)] == [
        "09:00 warning  ops job:measure: it fails (since 2026-03-02 09:00 UTC)   p2",
        (
            "10:00 warning  cron/measure paused: no run starts after 2 failures in a row until it is resumed: exit code 1"
            " (since 2026-03-02 10:00 UTC)   p3"
        ),
    ]


def test_a_pause_that_begins_while_muted_is_reported_after_the_mute_and_then_reminded_of(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1h", retries="0", problems="{pause_after: 2}"), scripts={"ops": lambda call: 1})
    world.request(VerbRequest(Mute.of(for_=timedelta(hours=4)), OPS))
    world.run(hours=3)
    assert not world.delivered
    for _ in range(24):
        world.run(hours=2)  # a daemon ticks more often
    assert [line[:24] for line in first_lines(world)] == ["03-02 15:00 warning  ops", "03-03 15:00 warning  ops"]
    assert "(reminder, since" in first_lines(world)[1]


def test_the_end_of_a_pause_is_sent_after_the_mute_in_which_a_person_has_resumed_the_agent(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1h", retries="0", problems="{pause_after: 2}"), scripts={"ops": lambda call: 1})
    world.run(hours=2)
    world.request(VerbRequest(Mute.of(for_=timedelta(hours=2)), OPS))
    world.scripts["ops"] = lambda call: QUIET
    world.resume(OPS)
    world.run(hours=3)
    assert [line[:31] for line in first_lines(world)] == ["03-02 09:00 warning  ops paused", "03-02 12:00 over     ops paused"]


def test_the_first_failure_may_pause_with_one_message(make_world: MakeWorld) -> None:
    world = make_world(job(every="1h", deliver="log", problems="{pause_after: 1}"), scripts={"measure": lambda call: 1})
    world.run(hours=3)
    assert len(world.calls) == len(world.delivered) == 1


def test_answers_that_never_come_pause_with_one_message(make_world: MakeWorld) -> None:
    with Server([gateway.async_answer()]) as server:
        yaml = agent(async_timeout="10m", problems="{pause_after: 2}").replace(
            "{kind: command, argv: [agent]}", f'{{kind: http, url: "{server.url}"}}'
        )
        world = make_world(yaml)
        world.run(hours=2)
    assert [line.partition(":")[2][3:24] for line in first_lines(world)] == ["warning  ops paused: "]


def test_a_late_success_does_not_end_the_pause(make_world: MakeWorld) -> None:
    answers = iter([gateway.async_answer(), reply({"error": "no"}, 500)])
    with Server([next(answers), next(answers)]) as server:
        text = TEN.replace("{kind: command, argv: [agent]}", f'{{kind: http, url: "{server.url}"}}').replace(
            "pause_after: 10", "pause_after: 1"
        )
        world = make_world(text)
        world.run(minutes=31)
    assert [row["result"] for row in world.records("ops")] == ["async", "failed"]
    world.request(VerbRequest(ReportResult(text=QUIET), world.records("ops")[0]["id"]))
    world.run(hours=1)
    assert world.problem("paused").over_at is None
    assert explain_now(explained_entry(world)).says.startswith("paused after 1 failure since")


def test_slots_that_pass_during_the_last_failing_run_are_not_paused(make_world: MakeWorld) -> None:
    world = make_world(job(every="10m", timeout="1h", problems="{pause_after: 1}"))
    world.scripts["measure"] = lambda call: Delayed(1, timedelta(minutes=25))
    world.run(minutes=61)
    world.resume(None)
    assert world.history() == [
        "03-02 08:10 every failed exit",
        "03-02 08:20 every skipped already_running x2",
        "03-02 08:40 every skipped paused x3",
    ]


def test_a_run_that_a_crash_interrupted_counts_as_a_failure(make_world: MakeWorld) -> None:
    world = make_world(job(every="1h", timeout="50m", problems="{pause_after: 1}"))
    world.scripts["measure"] = lambda call: Delayed("", timedelta(minutes=30))
    world.run(minutes=61)
    world.downtime(minutes=5)
    world.run(hours=3)
    assert [each.by for each in world.events_of(PauseChanged)] == ["1 failure"]


def test_a_paused_agent_that_is_disabled_and_enabled_begins_anew(make_world: MakeWorld) -> None:
    text = agent(interval="1h", retries="0", problems="{pause_after: 2}")
    world = make_world(text, scripts={"ops": lambda call: 1})
    world.run(hours=2)
    world.reload(text.replace("interval", "enabled: false, interval"))
    world.reload(text)
    world.run(hours=1)
    assert len(world.calls) == 3


def test_the_problem_ends_with_the_pause_that_a_person_has_set_instead(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="30m", retries="0", problems="{pause_after: 2}"), scripts={"ops": lambda call: 1})
    world.run(hours=1)
    world.pause(OPS, world.clock.now + timedelta(hours=2))
    world.scripts["ops"] = lambda call: QUIET
    world.run(hours=4)
    assert first_lines(world)[1:] == ["03-02 11:00 over     ops paused: after 2h30m   p2"]


def test_a_resumed_agent_begins_with_its_own_interval(make_world: MakeWorld) -> None:
    text = agent(interval="1h", retries="0", backoff_on_failure="true", problems="{pause_after: 3}")
    world = make_world(text, scripts={"ops": lambda call: 1})
    world.run(hours=7)  # at 8, 10 and 14: then it would back off for eight hours
    world.resume(OPS)
    world.run(hours=3, minutes=30)
    assert [call.at.hour for call in world.calls] == [8, 10, 14, 16, 18]


def test_a_job_with_an_interval_backs_off(make_world: MakeWorld) -> None:
    world = make_world(job(every="10m", backoff_on_failure="true"), scripts={"measure": lambda call: 1})
    world.run(minutes=151)
    assert [f"{call.at:%H:%M}" for call in world.calls] == ["08:10", "08:30", "09:10", "10:30"]
    world.scripts["measure"] = lambda call: ""
    world.run(minutes=100)
    assert [f"{call.at:%H:%M}" for call in world.calls[4:]] == ["11:50", "12:00", "12:10"]


def test_a_job_without_an_interval_cannot_back_off(tmp_path: Path) -> None:
    [complaint] = complaints(tmp_path, job(schedule='"0 3 * * *"', backoff_on_failure="true"))
    assert complaint.endswith("there is no interval to double; remove backoff_on_failure, or write every: 1h")


def test_the_wake_of_the_last_failing_run_waits_for_the_resume(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="none", retries="0", problems="{pause_after: 1}"), scripts={"ops": lambda call: 1})
    world.request(VerbRequest(Wake(text="look at the disk"), OPS))
    world.run(hours=2)
    assert [row["result"] for row in world.records("ops")] == ["failed"]
    world.scripts["ops"] = lambda call: QUIET
    world.resume(OPS)
    world.run(minutes=1)
    assert "look at the disk" in world.calls[-1].stdin
    assert len(world.calls) == 2

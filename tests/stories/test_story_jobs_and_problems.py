"""A failing cron job wakes an agent: the failure is one message, by the agent or else by the job, and its end is one message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from brief import brief
from servers import gateway
from servers.messages import Models, error_answer
from servers.scripted import Server
from simulation import size
from world import AgentCall, DatabaseOf, Delayed, MakeWorld, World, run_until_crash, utc

from heartbeat.runners import ProcessResult
from heartbeatd.verbs import HoldLock, Mute, NoteActivity, Pause, ReportResult
from scheduler.cli.main import main
from scheduler.engine.delivery import Delivery
from scheduler.engine.effects import VerbRequest
from scheduler.insight.status_data import read_status
from scheduler.model.events import MessageMoved
from scheduler.model.message import DeliveryResult
from scheduler.model.outcome import Kind
from scheduler.model.problem import Subject
from scheduler.store import outbox, problems

FAILED = 1
OPS = (Kind.HEARTBEAT, "ops")
CHANNELS = """
channels:
  phone: {kind: webhook, url: "http://127.0.0.1:9/x", allow_private: true}
  room: {kind: webhook, url: "http://127.0.0.1:9/y", allow_private: true}
"""


def config(heartbeat: str = "", job: str = "", *, agent: str = "", more: str = "", channels: str = CHANNELS) -> str:
    """The example of the README, with further keys of its agent and job. `agent` and `more` are another agent and another job."""
    hours = "" if "active_hours" in heartbeat else 'active_hours: "08:00-22:00", '
    deliver = "" if "deliver" in heartbeat else "deliver: phone, "
    return f"""
limits: {{wake_gap: 1m}}
{channels}
agents:
  ops:
    runner: {{kind: command, argv: [agent]}}
    heartbeat: {{interval: 30m, stagger: 0s, checklist: "- look\\n", {hours}{deliver}{heartbeat}}}
{agent}
cron:
  nightly-backup:
    {{schedule: "0 3 * * *", command: backup, wake_heartbeat: ops, wake_on: failure, problems: {{deliver: phone}}, {job}}}
{more}
"""


def in_turn(*results: Any) -> Callable[[AgentCall], Any]:
    """A script that gives these results, one per run, and the last one from then on."""
    left: Iterator[Any] = iter(results)
    return lambda _: next(left, results[-1])


def by_wake(answer: Any, otherwise: Any = "HEARTBEAT_OK") -> Callable[[AgentCall], Any]:
    """A script of an agent that gives this answer, or what this script answers, if the prompt has the wake of a failed job."""
    answered = answer if callable(answer) else in_turn(answer)
    return lambda call: answered(call) if "ended: failed" in call.stdin else otherwise


def sent(world: World) -> list[str]:
    """The first line of each message with its time, without the daily reminders of problems."""
    lines = [f"{at:%m-%d %H:%M} {brief(text).splitlines()[0]}" for at, _, text in world.delivered]
    return [line for line in lines if "] reminder" not in line]


def held_back(world: World) -> list[dict[str, Any]]:
    """What the run records of the job say about notifications that were delayed."""
    return [each for row in world.records("nightly-backup") for each in row["notices"] if "held_back" in each]


REPORT = "[job:nightly-backup] The backup failed: no space left."
NIGHT = "2026-03-02 00:00"
FAILURE = "warning  cron/nightly-backup failed: exit code 1 (since 2026-03-02 03:00 UTC)   p1"


def test_the_example_of_the_readme_is_one_message_at_the_start_of_the_active_hours(make_world: MakeWorld) -> None:
    world = make_world(config(), start=NIGHT, scripts={"nightly-backup": in_turn(FAILED), "ops": by_wake(REPORT, REPORT)})
    world.run_until("2026-03-02 07:00")
    assert sent(world) == []
    (held,) = held_back(world)
    assert (held["notice"], held["state"]) == ("opened p1", "pending")
    assert held["held_back"]["agents"] == ["ops"]
    assert utc("2026-03-02 08:15") <= utc(held["held_back"]["until"][:16].replace("T", " ")) <= utc("2026-03-02 10:00")
    world.run_until("2026-03-02 20:00")
    assert sent(world) == [f"03-02 08:00 {REPORT}"]
    (held,) = held_back(world)
    run = next(row["id"] for row in world.records("ops") if row["result"] == "alert")
    assert held["state"] == "dropped"
    assert held["held_back"] == {"agents": [], "until": None, "note": f"agent ops has reported it (run {run})"}


def test_an_agent_that_is_awake_reports_at_once_and_the_job_says_nothing(make_world: MakeWorld) -> None:
    world = make_world(
        config('active_hours: "00:00-24:00"'),
        start=NIGHT,
        scripts={"nightly-backup": in_turn(FAILED), "ops": by_wake(REPORT)},
    )
    world.run_until("2026-03-02 12:00")
    assert sent(world) == [f"03-02 03:00 {REPORT}"]


def test_a_wake_that_waits_for_the_next_slot_holds_the_notification_back_until_then(make_world: MakeWorld) -> None:
    text = config("interval: 4h", "wake_mode: next").replace("interval: 30m, ", "")
    world = make_world(text, start=NIGHT, scripts={"nightly-backup": in_turn(FAILED), "ops": by_wake(REPORT)})
    world.run_until("2026-03-02 12:30")
    assert sent(world) == [f"03-02 08:00 {REPORT}"]


@pytest.mark.parametrize(
    "answer",
    [
        "HEARTBEAT_OK",
        "[disk:/var] 92 % full",
        "[web] the job queue of nginx failed",
        "[nightly-backup] resolved",
        "ALERT the mail stands still\n\n[disk:/var] 92 % full",
    ],
)
def test_an_agent_that_does_not_report_the_failure_releases_the_notification(make_world: MakeWorld, answer: str) -> None:
    world = make_world(config(), start=NIGHT, scripts={"nightly-backup": in_turn(FAILED), "ops": by_wake(answer)})
    world.run_until("2026-03-02 08:20")
    assert f"03-02 08:00 {FAILURE}" in sent(world)
    (held,) = held_back(world)
    assert held["state"] == "delivered"
    assert held["held_back"]["note"].startswith("agent ops did not report it (run ")


@pytest.mark.parametrize(("answer", "released"), [(REPORT, "03:45"), ("[web] The site is slow.", "03:00")])
def test_a_report_that_is_not_sent_because_there_are_too_many_is_awaited_until_the_time_limit(
    make_world: MakeWorld, answer: str, released: str
) -> None:
    """A new problem that is not about the job is no report of it."""

    def ops(call: AgentCall) -> str:
        others = "[disk] 92 %\n[mail] 40 wait" if call.at >= utc("2026-03-02 02:30") else "HEARTBEAT_OK"
        return answer if "ended: failed" in call.stdin else others

    text = config('active_hours: "00:00-24:00"').replace("wake_gap: 1m", "wake_gap: 1m, new_problems: 2")
    world = make_world(text, start=NIGHT, scripts={"nightly-backup": in_turn(FAILED), "ops": ops})
    world.run_until("2026-03-02 04:00")
    assert [line[6:11] for line in sent(world) if "cron/nightly-backup failed" in line] == [released]


def test_a_problem_that_came_with_the_wake_of_a_job_is_over_like_others_once_the_job_works_again(make_world: MakeWorld) -> None:
    """It is not about the job. While the job fails, only an answer to its wakes can leave the problem out."""
    answers = by_wake("[disk:/var] 92 % full")
    at_once = config('active_hours: "00:00-24:00"').replace('"0 3 * * *"', '"0 3,6 * * *"')
    world = make_world(at_once, start=NIGHT, scripts={"nightly-backup": in_turn(FAILED, ""), "ops": answers})
    world.run_until("2026-03-02 03:50")
    assert world.problem("disk:/var").is_open
    world.run_until("2026-03-02 06:10")
    assert world.problem("disk:/var").is_open, "the job works since 06:00"
    world.run_until("2026-03-02 08:00")
    assert not world.problem("disk:/var").is_open


def test_a_problem_about_two_jobs_is_over_when_both_work_again(make_world: MakeWorld) -> None:
    other = "  mirror: {schedule: '0 4,5 * * *', command: mirror, wake_heartbeat: ops, wake_on: failure, deliver: phone}"
    world = make_world(
        config('active_hours: "00:00-24:00", problems: {clear_after: 100}', more=other), start=NIGHT,
        scripts={
            "nightly-backup": in_turn(FAILED, ""), "mirror": in_turn(FAILED, ""),
            "ops": lambda call: (
                "[backups] failed: " + ", ".join(job for job in ("nightly-backup", "mirror") if f"cron {job}, result failed" in call.stdin)
            ),
        },
    )  # fmt: skip
    world.run_until("2026-03-03 02:00")  # the mirror works since 05:00, and nightly-backup does not
    assert [line for line in sent(world) if "] over" in line] == []
    world.run_until("2026-03-03 04:00")
    assert [line[:30] for line in sent(world) if "] over" in line] == ["03-03 03:00 [backups] over aft"]


def test_a_problem_that_the_agent_mentions_again_is_no_report_of_another_failure(make_world: MakeWorld) -> None:
    world = make_world(
        config(), start="2026-03-01 12:00",
        scripts={"nightly-backup": in_turn(FAILED), "ops": lambda _: "[disk:/var] 92 % full"},
    )  # fmt: skip
    world.run_until("2026-03-02 09:00")
    assert sent(world) == ["03-01 12:00 [disk:/var] 92 % full", f"03-02 08:00 {FAILURE}".replace("p1", "p2")]


def test_a_notification_that_was_held_back_is_tried_for_a_day_from_its_release(make_world: MakeWorld) -> None:
    world = make_world(config(), start=NIGHT, scripts={"nightly-backup": in_turn(FAILED, ""), "ops": by_wake("HEARTBEAT_OK")})
    works_from = utc("2026-03-03 06:00")  # 27 hours after the failure, 22 hours after the release
    world.send = lambda _: DeliveryResult("retry", "503") if world.clock.now < works_from else DeliveryResult("delivered")
    world.run_until("2026-03-03 12:00")
    assert FAILURE in [text.splitlines()[0] for _, name, text in world.delivered if name == "nightly-backup"]
    query = "select id from outbox where name = 'nightly-backup' and notice = 'opened p1'"
    (failure,) = world.store.connection.execute(query).fetchone()
    moves = [event for event in world.events_of(MessageMoved) if event.state == "delivered" and event.outbox_id == failure]
    assert timedelta(hours=22) <= moves[0].age < timedelta(hours=26)


def test_the_interval_of_reminders_begins_when_a_notification_that_was_held_back_is_sent(make_world: MakeWorld) -> None:
    text = config(job="remind: 6h").replace("deliver: phone}, remind: 6h", "deliver: phone, remind: 6h}")
    world = make_world(text, start=NIGHT, scripts={"nightly-backup": in_turn(FAILED), "ops": by_wake("HEARTBEAT_OK")})
    world.run_until("2026-03-02 09:30")
    world.run_job("nightly-backup")
    world.run_until("2026-03-02 12:00")
    assert sent(world) == [f"03-02 08:00 {FAILURE}"]
    world.run_until("2026-03-02 14:30")
    world.run_job("nightly-backup")
    world.run_until("2026-03-02 16:00")
    assert ["(reminder, " in line for line in sent(world)] == [False, True]


def test_the_release_of_a_notification_does_not_postpone_the_reminders_of_a_recipient_that_had_it_before(
    make_world: MakeWorld,
) -> None:
    text = config(job="remind: 6h").replace("deliver: phone}, remind: 6h", "deliver: [phone, room], remind: 6h}")
    world = make_world(text, start=NIGHT, scripts={"nightly-backup": in_turn(FAILED), "ops": by_wake("HEARTBEAT_OK")})
    messages: list[tuple[str, str, bool]] = []

    def send(outgoing: Delivery) -> DeliveryResult:
        is_reminder = "(reminder, " in brief(outgoing.message.text)
        messages.append((f"{world.clock.now:%H:%M}", outgoing.channel.name, is_reminder))
        return DeliveryResult("delivered")

    world.send = send
    world.run_until("2026-03-02 09:30")
    world.run_job("nightly-backup")
    world.run_until("2026-03-02 12:00")
    assert messages == [("03:00", "room", False), ("08:00", "phone", False), ("09:30", "room", True)]


def test_an_agent_that_fails_twice_releases_the_notification(make_world: MakeWorld) -> None:
    world = make_world(
        config("retries: 0, problems: {after: none}"),
        start=NIGHT,
        scripts={"nightly-backup": in_turn(FAILED), "ops": lambda _: FAILED},
    )
    world.run_until("2026-03-02 08:00")
    world.run(seconds=30)
    assert sent(world) == []
    world.run(minutes=2)
    assert sent(world) == [f"03-02 08:01 {FAILURE}"]


def test_an_agent_whose_runs_are_skipped_twice_releases_the_notification(make_world: MakeWorld) -> None:
    world = make_world(
        config("max_input_tokens: 1, problems: {after: none}"), start=NIGHT, scripts={"nightly-backup": in_turn(FAILED)}
    )
    world.run_until("2026-03-02 12:00")
    assert [line[12:] for line in sent(world)] == [FAILURE]
    assert held_back(world)[0]["held_back"]["note"].startswith("2 runs of agent ops could not report it (the last is run ")


def test_an_agent_that_fails_once_and_then_reports_is_one_message(make_world: MakeWorld) -> None:
    world = make_world(
        config("retries: 0, problems: {after: none}"), start=NIGHT,
        scripts={"nightly-backup": in_turn(FAILED), "ops": in_turn(FAILED, REPORT)},
    )  # fmt: skip
    world.run_until("2026-03-02 10:00")
    assert sent(world) == [f"03-02 08:01 {REPORT}"]


@pytest.mark.parametrize("verb", [Pause(), Mute()])
def test_a_paused_or_muted_agent_cannot_report_so_the_notification_is_sent_at_once(make_world: MakeWorld, verb: Any) -> None:
    world = make_world(config(), start=NIGHT, scripts={"nightly-backup": in_turn(FAILED)})
    world.request(VerbRequest(verb, OPS))
    world.run_until("2026-03-02 03:01")
    assert sent(world) == [f"03-02 03:00 {FAILURE}"]


def test_a_pause_releases_a_notification_that_is_held_back(make_world: MakeWorld) -> None:
    world = make_world(config(), start=NIGHT, scripts={"nightly-backup": in_turn(FAILED)})
    world.run_until("2026-03-02 05:00")
    world.pause(OPS)
    world.run(minutes=1)
    assert sent(world) == [f"03-02 05:00 {FAILURE}"]
    assert held_back(world)[0]["held_back"] == {"agents": [], "until": None, "note": "agent ops is paused"}


@pytest.mark.parametrize(
    (Kind.HEARTBEAT, "note"),
    [
        ("enabled: false", "the wake of agent ops ended without a run"),
        ("deliver: room", "agent ops does not report there"),
        ("show_alerts: false", "agent ops does not report there"),
    ],
)
def test_a_change_of_the_config_releases_a_notification(make_world: MakeWorld, heartbeat: str, note: str) -> None:
    world = make_world(config(), start=NIGHT, scripts={"nightly-backup": in_turn(FAILED)})
    world.run_until("2026-03-02 05:00")
    world.reload(config(heartbeat))
    world.run(minutes=1)
    assert sent(world) == [f"03-02 05:00 {FAILURE}"]
    assert held_back(world)[0]["held_back"]["note"] == note


@pytest.mark.parametrize(
    "heartbeat",
    [
        "enabled: false",
        "deliver: none",
        "show_alerts: false",
        "deliver: room",
        "active_hours: {start: '08:00', end: '22:00', days: fri}",
    ],
)
def test_an_agent_that_cannot_report_there_soon_does_not_hold_the_notification_back(
    make_world: MakeWorld, heartbeat: str
) -> None:
    world = make_world(config(heartbeat), start=NIGHT, scripts={"nightly-backup": in_turn(FAILED)})
    world.run_until("2026-03-02 03:01")
    assert sent(world) == [f"03-02 03:00 {FAILURE}"]


def test_an_agent_that_has_failed_twice_does_not_hold_the_notification_back(make_world: MakeWorld) -> None:
    keys = 'active_hours: "00:00-24:00", retries: 0, problems: {after: none}, interval: 100m'
    scripts = {"nightly-backup": in_turn(FAILED), "ops": lambda _: FAILED}
    world = make_world(config(keys).replace("interval: 30m, ", ""), start=NIGHT, scripts=scripts)
    world.run_until("2026-03-02 03:01")
    assert sent(world) == [f"03-02 03:00 {FAILURE}"]
    assert held_back(world) == []


def test_a_used_up_budget_does_not_hold_the_notification_back(make_world: MakeWorld) -> None:
    world = make_world(
        config('active_hours: "00:00-24:00", budget: {runs_per_day: 2}'), start=NIGHT, scripts={"nightly-backup": in_turn(FAILED)}
    )
    world.run_until("2026-03-02 03:01")
    assert f"03-02 03:00 {FAILURE}".replace("p1", "p2") in sent(world)


OTHER_AGENT = """
  web:
    runner: {kind: command, argv: [agent]}
    heartbeat: {interval: 30m, stagger: 0s, active_hours: "10:00-22:00", checklist: "- look\\n", deliver: phone}
"""


def two_agents(**fields: Any) -> dict[str, Any]:
    return {
        "yaml": config(agent=OTHER_AGENT).replace("wake_heartbeat: ops", "wake_heartbeat: [ops, web]"),
        "start": NIGHT,
        **fields,
    }


def test_of_two_agents_one_that_reports_is_enough(make_world: MakeWorld) -> None:
    scripts = {"nightly-backup": in_turn(FAILED), "ops": by_wake("HEARTBEAT_OK"), "web": by_wake(REPORT, REPORT)}
    world = make_world(**two_agents(scripts=scripts))
    world.run_until("2026-03-02 09:00")
    assert sent(world) == []
    assert held_back(world)[0]["held_back"]["agents"] == ["web"]
    world.run_until("2026-03-02 14:00")
    assert sent(world) == [f"03-02 10:00 {REPORT}"]


def test_the_report_of_one_agent_replaces_the_notification_only_on_its_own_channel(make_world: MakeWorld) -> None:
    text = config(agent=OTHER_AGENT.replace("deliver: phone", "deliver: room"))
    text = text.replace("wake_heartbeat: ops", "wake_heartbeat: [ops, web]").replace("deliver: phone}", "deliver: [phone, room]}")
    channels: list[tuple[str, str]] = []
    world = make_world(text, start=NIGHT, scripts={"nightly-backup": in_turn(FAILED), "ops": by_wake(REPORT, REPORT)})
    deliver = world.send
    world.send = lambda outgoing: (
        channels.append((outgoing.channel.name, brief(outgoing.message.text).splitlines()[0])) or deliver(outgoing)
    )
    world.run_until("2026-03-02 03:30")
    until = {each["channel"]: each["held_back"]["until"][11:16] for each in held_back(world)}
    assert until["phone"] < "10:00" < until["room"], "ops begins at 08:00, and web at 10:00"
    world.run_until("2026-03-02 12:00")
    assert channels == [("phone", REPORT), ("room", FAILURE)]


def test_an_agent_that_did_not_report_is_not_awaited_although_the_result_of_another_one_is(make_world: MakeWorld) -> None:
    with Server([gateway.async_answer()]) as server:
        other = OTHER_AGENT.replace("{kind: command, argv: [agent]}", f'{{kind: http, url: "{server.url}"}}')
        other = other.replace("10:00-22:00", "00:00-24:00").replace("deliver: phone", "deliver: phone, async_timeout: 12h")
        text = config(agent=other).replace("wake_heartbeat: ops", "wake_heartbeat: [ops, web]")
        world = make_world(text, start=NIGHT, scripts={"nightly-backup": in_turn(FAILED)})
        world.run_until("2026-03-02 08:10")
    assert held_back(world)[0]["held_back"]["agents"] == ["web"]


def test_an_agent_that_answers_within_an_hour_does_not_shorten_the_wait_for_another_one(make_world: MakeWorld) -> None:
    with Server([gateway.async_answer()]) as server:
        other = OTHER_AGENT.replace("{kind: command, argv: [agent]}", f'{{kind: http, url: "{server.url}"}}')
        other = other.replace("10:00-22:00", "00:00-24:00").replace("30m", "12h").replace("phone", "phone, async_timeout: 1h")
        text = config(agent=other).replace("wake_heartbeat: ops", "wake_heartbeat: [ops, web]")
        world = make_world(text, start=NIGHT, scripts={"nightly-backup": in_turn(FAILED), "ops": by_wake(REPORT)})
        world.run_until("2026-03-02 08:30")
    assert [line for line in sent(world) if "backup" in line] == [f"03-02 08:00 {REPORT}"]


def test_two_agents_that_do_not_report_release_the_notification_after_the_second(make_world: MakeWorld) -> None:
    world = make_world(**two_agents(scripts={"nightly-backup": in_turn(FAILED)}))
    world.run_until("2026-03-02 14:00")
    assert sent(world) == [f"03-02 10:00 {FAILURE}"]
    note = held_back(world)[0]["held_back"]["note"]
    assert [each.partition(" (run ")[0] for each in note.split("; ")] == [
        f"agent {name} did not report it" for name in ("ops", "web")
    ]


def test_an_agent_reports_a_failure_although_the_job_wakes_another_agent_since(make_world: MakeWorld) -> None:
    other = ProcessResult(2, b"", b"no route to host")
    scripts = {"nightly-backup": in_turn(FAILED, other), "ops": by_wake(REPORT, REPORT)}
    world = make_world(config(agent=OTHER_AGENT), start=NIGHT, scripts=scripts)
    world.run_until("2026-03-02 04:00")
    world.reload(config(agent=OTHER_AGENT).replace("wake_heartbeat: ops", "wake_heartbeat: web"))
    world.run_job("nightly-backup")
    world.run_until("2026-03-02 14:00")
    assert sent(world) == [f"03-02 08:00 {REPORT}"]


def test_an_agent_that_only_the_second_failure_has_woken_is_awaited_too(make_world: MakeWorld) -> None:
    other = ProcessResult(2, b"", b"no route to host")
    scripts = {"nightly-backup": in_turn(FAILED, other), "ops": by_wake("HEARTBEAT_OK"), "web": by_wake(REPORT)}
    text = config(agent=OTHER_AGENT.replace("10:00", "08:30"))
    world = make_world(text, start=NIGHT, scripts=scripts)
    world.run_until("2026-03-02 04:00")
    world.reload(text.replace("wake_heartbeat: ops", "wake_heartbeat: web"))
    world.run_job("nightly-backup")
    world.run_until("2026-03-02 14:00")
    assert sent(world) == [f"03-02 08:30 {REPORT}"]


def by_channel(world: World) -> list[tuple[str, str]]:
    """The channel and the first line of each message that is sent from now on."""
    messages: list[tuple[str, str]] = []

    def send(outgoing: Delivery) -> DeliveryResult:
        messages.append((outgoing.channel.name, brief(outgoing.message.text).splitlines()[0]))
        return DeliveryResult("delivered")

    world.send = send
    return messages


END = "[job:nightly-backup] over after {}, the job works again"


def test_each_recipient_gets_one_end_from_the_agent_that_has_reported_to_it_or_else_from_the_job(make_world: MakeWorld) -> None:
    """The agents report to two of three channels."""
    pager = CHANNELS + "  pager: {kind: webhook, url: 'http://127.0.0.1:9/z', allow_private: true}\n"
    agent = OTHER_AGENT.replace("deliver: phone", "deliver: room").replace("10:00-22:00", "08:00-22:00")
    text = config(agent=agent, channels=pager).replace("wake_heartbeat: ops", "wake_heartbeat: [ops, web]")
    scripts = {"nightly-backup": in_turn(FAILED, ""), "ops": by_wake(REPORT), "web": by_wake(REPORT)}
    world = make_world(text.replace("{deliver: phone}", "{deliver: [phone, room, pager]}"), start=NIGHT, scripts=scripts)
    world.run_until("2026-03-03 02:00")
    messages = by_channel(world)
    world.run_until("2026-03-03 12:00")
    assert sorted(messages) == [
        ("pager", "over     cron/nightly-backup failed: after 1d   p1"),
        ("phone", END.format("19h")), ("room", END.format("19h")),
    ]  # fmt: skip


def test_a_muted_agent_sends_an_end_after_its_mute_where_the_job_has_sent_none(make_world: MakeWorld) -> None:
    text = config('active_hours: "00:00-24:00", deliver: [phone, room]')
    world = make_world(text, start=NIGHT, scripts={"nightly-backup": in_turn(FAILED, ""), "ops": by_wake(REPORT)})
    world.run_until("2026-03-03 02:00")
    world.request(VerbRequest(Mute(for_=timedelta(hours=4)), OPS))
    messages = by_channel(world)
    world.run_until("2026-03-03 08:00")
    assert messages == [("phone", "over     cron/nightly-backup failed: after 1d   p1"), ("room", END.format("1d"))]


def test_an_agent_whose_circuit_breaker_is_open_does_not_hold_the_notification_back(make_world: MakeWorld) -> None:
    with Models(lambda _: error_answer(401, "authentication_error", "invalid x-api-key")) as server:
        keys = config('active_hours: "00:00-24:00", problems: {after: none}, retries: 0').replace("30m", "12h")
        text = keys.replace("runner: {kind: command, argv: [agent]}", "model: claude-haiku-5-5")
        provider = (
            f'providers: {{anthropic: {{api_key: x, base_url: "{server.url}"}}}}\ndefaults: {{runner: {{kind: anthropic}}}}\n'
        )
        world = make_world(provider + text, start=NIGHT, scripts={"nightly-backup": in_turn(FAILED)})
        world.run_until("2026-03-02 03:01")
    assert (sent(world), held_back(world)) == ([f"03-02 03:00 {FAILURE}"], [])


def test_a_job_is_reminded_of_although_the_agent_has_a_problem_that_came_with_its_wake(make_world: MakeWorld) -> None:
    """That problem is not about the job."""
    text = config().replace("problems: {deliver: phone}", "problems: {deliver: phone, remind: 12h}")
    world = make_world(text, start=NIGHT, scripts={"nightly-backup": in_turn(FAILED), "ops": by_wake("[disk:/var] 92 % full")})
    world.run_until("2026-03-02 23:00")
    assert world.problem("disk:/var").is_open
    world.reload(text.replace("wake_heartbeat: ops, wake_on: failure, ", ""))
    world.run_until("2026-03-03 04:00")
    assert [f"{at:%H:%M}" for at, _, text in world.delivered if "nightly-backup failed: exit code 1 (reminder" in text] == [
        "03:00"
    ]


@pytest.mark.parametrize("later", ["", "deliver: [phone, room]"])
def test_each_recipient_is_notified_by_the_agent_or_at_once(make_world: MakeWorld, later: str) -> None:
    """Also if the agent reports to both by then: the room has had the message of the job."""
    text = config().replace("problems: {deliver: phone}", "problems: {deliver: [phone, room]}")
    channels: list[tuple[str, str]] = []
    world = make_world(text, start=NIGHT, scripts={"nightly-backup": in_turn(FAILED), "ops": by_wake(REPORT, REPORT)})
    deliver = world.send
    world.send = lambda outgoing: (
        channels.append((outgoing.channel.name, brief(outgoing.message.text).splitlines()[0])) or deliver(outgoing)
    )
    world.run_until("2026-03-02 03:30")
    assert channels == [("room", FAILURE)]
    job = read_status(world.store.connection, world.clock.now).as_data()["entries"][-1]["failing"]
    assert (job["told_at"], job["held_back_for"]) == ("2026-03-02T03:00:00Z", ["ops"])
    world.reload(text.replace("deliver: phone, }", later + "}") if later else text)
    world.run_until("2026-03-02 12:00")
    assert channels == [("room", FAILURE), ("phone", REPORT)]


OTHER_JOB = '  nightly-certs: {schedule: "0 3 * * *", command: certs, wake_heartbeat: ops, wake_on: failure, problems: {deliver: phone}}\n'


@pytest.mark.parametrize("answer", ["[backup:nightly] The backup failed.", "The nightly-backup failed."])
def test_of_two_failed_jobs_the_one_that_the_agent_leaves_out_is_notified(make_world: MakeWorld, answer: str) -> None:
    scripts = {"nightly-backup": in_turn(FAILED), "nightly-certs": in_turn(FAILED), "ops": by_wake(answer)}
    world = make_world(config(more=OTHER_JOB), start=NIGHT, scripts=scripts)
    world.run_until("2026-03-02 08:20")
    assert sorted(sent(world)) == [
        f"03-02 08:00 {answer}",
        "03-02 08:00 warning  cron/nightly-certs failed: exit code 1 (since 2026-03-02 03:00 UTC)   p2",
    ]


@pytest.mark.parametrize(
    ("answer", "notified"), [("The nas is full.", ["db-copy"]), ("The db is full.", ["db-copy", "nas-copy"])]
)
def test_a_word_of_two_letters_in_the_name_of_a_failed_job_is_no_report_of_it(
    make_world: MakeWorld, answer: str, notified: list[str]
) -> None:
    text = config(more=OTHER_JOB).replace("nightly-backup:", "nas-copy:").replace("nightly-certs:", "db-copy:")
    scripts = {"nas-copy": in_turn(FAILED), "db-copy": in_turn(FAILED), "ops": by_wake(answer)}
    world = make_world(text, start=NIGHT, scripts=scripts)
    world.run_until("2026-03-02 08:20")
    assert sorted(name for _, name, _ in world.delivered) == [*notified, "ops"]


def test_an_answer_without_keys_is_a_report_too(make_world: MakeWorld) -> None:
    """Also beside the wake of a job that works."""
    mirror = '  mirror: {schedule: "0 3 * * *", command: mirror, wake_heartbeat: ops}\n'
    scripts = {"nightly-backup": in_turn(FAILED), "mirror": in_turn(""), "ops": by_wake("Die Sicherung schlug fehl.")}
    world = make_world(config(more=mirror), start=NIGHT, scripts=scripts)
    world.run_until("2026-03-02 12:00")
    assert sent(world) == ["03-02 08:00 Die Sicherung schlug fehl."]


def test_a_second_failure_with_the_same_answer_without_keys_is_notified(make_world: MakeWorld) -> None:
    world = make_world(
        config('active_hours: "00:00-24:00"'), start=NIGHT,
        scripts={"nightly-backup": in_turn(FAILED, "", FAILED), "ops": by_wake("The backup failed.")},
    )  # fmt: skip
    world.clock.advance(timedelta(hours=1))
    for _ in range(3):
        world.run_job("nightly-backup")
        world.run(minutes=20)
    first, recovery, second = [text for _, _, text in world.delivered]
    assert first == "The backup failed."
    assert recovery.startswith("over     cron/nightly-backup failed: after 20m   p1")
    assert second.startswith("warning  cron/nightly-backup failed: exit code 1 (since 2026-03-02 01:40 UTC)   p1")


@pytest.mark.parametrize("severity", ["", "!"])
def test_a_failure_that_the_job_has_sent_is_sent_again_only_if_the_agent_calls_it_worse(
    make_world: MakeWorld, severity: str
) -> None:
    report = REPORT.replace("]", f"{severity}]")
    scripts = {"nightly-backup": in_turn(FAILED, FAILED, ""), "ops": by_wake(in_turn("HEARTBEAT_OK", report))}
    world = make_world(config('active_hours: "00:00-24:00"'), start=NIGHT, scripts=scripts)
    world.run_until("2026-03-04 04:00")
    worse = [f"03-03 03:00 {report.replace('!]', '] CRITICAL:')}"] if severity else []
    end = "[job:nightly-backup] over after 1d, the job works again"
    assert [line for line in sent(world) if "reminder" not in line] == [f"03-02 03:00 {FAILURE}", *worse, f"03-04 03:00 {end}"]


def test_an_agent_that_sends_no_ends_leaves_that_of_a_failure_to_its_job(make_world: MakeWorld) -> None:
    """Both have sent the failure."""
    answers = by_wake(in_turn("HEARTBEAT_OK", REPORT.replace("]", "!]")))
    scripts = {"nightly-backup": in_turn(FAILED, FAILED, ""), "ops": answers}
    world = make_world(config('active_hours: "00:00-24:00", show_resolved: false'), start=NIGHT, scripts=scripts)
    world.run_until("2026-03-04 04:00")
    assert [line[12:] for line in sent(world) if "over" in line] == ["over     cron/nightly-backup failed: after 2d   p1"]


def test_a_failure_that_is_queued_and_not_sent_is_reported_by_the_agent(make_world: MakeWorld) -> None:
    scripts = {"nightly-backup": in_turn(FAILED), "ops": by_wake(in_turn("HEARTBEAT_OK", REPORT))}
    world = make_world(config('active_hours: "00:00-24:00"'), start=NIGHT, scripts=scripts)
    world.send = lambda _: DeliveryResult("delivered" if world.clock.now >= utc("2026-03-02 03:30") else "retry")
    world.run_until("2026-03-02 03:10")
    world.run_job("nightly-backup")
    world.run_until("2026-03-02 05:00")
    assert sorted(line[12:] for line in sent(world)) == [REPORT, FAILURE]


def test_a_word_that_contains_a_part_of_a_jobs_name_is_no_report_of_its_failure(make_world: MakeWorld) -> None:
    text = config().replace("nightly-backup:", "log-rotate:")
    answer = "[web:login] The catalog is slow."
    world = make_world(text, start=NIGHT, scripts={"log-rotate": in_turn(FAILED), "ops": by_wake(answer)})
    world.run_until("2026-03-02 08:20")
    assert sorted(sent(world)) == [
        f"03-02 08:00 {answer}",
        "03-02 08:00 warning  cron/log-rotate failed: exit code 1 (since 2026-03-02 03:00 UTC)   p1",
    ]


def test_a_line_that_shares_a_word_with_a_failed_job_is_no_report_of_it_and_does_not_end_with_it(make_world: MakeWorld) -> None:
    world = make_world(
        config("precheck: {command: ./backups.sh}"), start=NIGHT,
        prechecks={"ops": lambda _: "backup wiki: last good copy 30 h old"},
        scripts={"nightly-backup": in_turn("", FAILED, ""), "ops": lambda _: "[backup:wiki] The backup of wiki is old."},
    )  # fmt: skip
    world.run_until("2026-03-04 12:00")
    assert sent(world) == [
        "03-02 08:00 [backup:wiki] The backup of wiki is old.",
        "03-03 08:00 warning  cron/nightly-backup failed: exit code 1 (since 2026-03-03 03:00 UTC)   p2",
        "03-04 03:00 over     cron/nightly-backup failed: after 1d   p2",
    ]


def world_with_a_backup_that_was_old(make_world: MakeWorld, report: str, report_of_failure: str) -> World:
    """A world in which the lines of what the agent has reported are gone before the job fails."""
    world = make_world(
        config("precheck: {command: ./backups.sh}"), start=NIGHT,
        prechecks={"ops": lambda call: "backup wiki: 30 h old" if call.at < utc("2026-03-02 18:00") else "NO_WORK"},
        scripts={"nightly-backup": in_turn("", FAILED, ""), "ops": by_wake(report_of_failure, report)},
    )  # fmt: skip
    world.run_until("2026-03-04 12:00")
    return world


def test_a_problem_whose_lines_are_gone_is_no_report_of_a_failed_job_that_shares_a_word_with_it(make_world: MakeWorld) -> None:
    report = "[backup:wiki] The backup of wiki is old."
    world = world_with_a_backup_that_was_old(make_world, report, report)
    assert sent(world) == [
        f"03-02 08:00 {report}",
        "03-02 18:30 [backup:wiki] over after 10h30m, its lines are gone",
        "03-03 08:00 warning  cron/nightly-backup failed: exit code 1 (since 2026-03-03 03:00 UTC)   p2",
        "03-04 03:00 over     cron/nightly-backup failed: after 1d   p2",
    ]


def test_a_finding_with_the_name_of_a_failed_job_is_its_report_although_it_has_the_key_of_a_former_problem(
    make_world: MakeWorld,
) -> None:
    report = "[backup:wiki] nightly-backup has no copy of wiki."
    world = world_with_a_backup_that_was_old(make_world, "[backup:wiki] The backup of wiki is old.", report)
    assert sent(world)[2:] == [f"03-03 08:00 {report}", "03-04 03:00 [backup:wiki] over after 19h, the job works again"]


def test_a_job_that_fails_in_three_nights_is_one_problem(make_world: MakeWorld) -> None:
    world = make_world(
        config(), start=NIGHT,
        scripts={"nightly-backup": in_turn(FAILED, 2, 3, ""), "ops": by_wake(REPORT, REPORT)},
    )  # fmt: skip
    world.run_until("2026-03-05 02:00")
    assert sent(world) == [f"03-02 08:00 {REPORT}"]
    world.scripts["ops"] = lambda _: "HEARTBEAT_OK"
    world.run_until("2026-03-06 12:00")
    assert sent(world)[1:] == ["03-05 03:00 [job:nightly-backup] over after 2d19h, the job works again"]


def test_an_agent_that_is_silent_about_a_job_that_still_fails_does_not_end_the_problem(make_world: MakeWorld) -> None:
    world = make_world(
        config(), start=NIGHT,
        scripts={"nightly-backup": in_turn(FAILED), "ops": in_turn(REPORT, REPORT, "HEARTBEAT_OK")},
    )  # fmt: skip
    world.run_until("2026-03-04 22:00")
    assert sent(world) == [f"03-02 08:00 {REPORT}"]


def test_the_end_of_a_failure_is_not_sent_to_who_knows_that_its_report_is_unstable(make_world: MakeWorld) -> None:
    """The job itself has notified them too, because the agent is paused when it fails twice in a row."""
    text = (
        config('active_hours: "00:00-24:00"')
        .replace("0 3 * * *", "0 * * * *")
        .replace("{deliver: phone}", "{deliver: phone, after: 2}")
    )
    scripts = {"nightly-backup": in_turn(FAILED, "", FAILED, "", FAILED, FAILED, ""), "ops": by_wake(REPORT)}
    world = make_world(text, start="2026-03-01 23:30", scripts=scripts)
    world.run_until("2026-03-02 04:30")
    world.pause(OPS)
    world.run_until("2026-03-02 20:00")
    *_, unstable, failed = sent(world)
    assert unstable == "03-02 04:00 [job:nightly-backup] unstable: The backup failed: no space left."
    assert failed.startswith("03-02 05:00 warning  cron/nightly-backup failed: ")


def test_an_agent_cannot_close_the_problem_of_a_job_that_still_fails(make_world: MakeWorld) -> None:
    answers = in_turn(REPORT, "[job:nightly-backup] resolved", "HEARTBEAT_OK")
    world = make_world(config(), start=NIGHT, scripts={"nightly-backup": in_turn(FAILED), "ops": answers})
    world.run_until("2026-03-03 07:50")
    assert [line[:11] for line in sent(world)] == ["03-02 08:00"]


def test_reminders_of_the_reported_problem_replace_those_of_the_failure(make_world: MakeWorld) -> None:
    text = config().replace('schedule: "0 3 * * *"', 'schedule: "0 */2 * * *"').replace(
        "problems: {deliver: phone}", "problems: {deliver: phone, remind: 1h}"
    )  # fmt: skip
    world = make_world(text, start=NIGHT, scripts={"nightly-backup": in_turn(FAILED), "ops": lambda _: REPORT})
    world.run_until("2026-03-03 12:00")
    assert sent(world) == [f"03-02 08:00 {REPORT}"]
    assert [f"{at:%m-%d %H:%M}" for at, _, text in world.delivered if "reminder" in text] == ["03-03 08:00"]


def test_a_job_that_no_longer_wakes_the_agent_is_reminded_of_where_nobody_is_reminded_of_the_problem(
    make_world: MakeWorld,
) -> None:
    """The agent writes to the room too since the first night, but has not run since. In the second one it is paused."""
    text = config().replace("problems: {deliver: phone}", "problems: {deliver: [phone, room]}")
    world = make_world(text, start=NIGHT, scripts={"nightly-backup": in_turn(FAILED), "ops": lambda _: REPORT})
    reminders: list[str] = []
    deliver = world.send

    def send(outgoing: Delivery) -> Any:
        if "nightly-backup failed: exit code 1 (reminder, " in outgoing.message.text:
            reminders.append(outgoing.channel.name)
        return deliver(outgoing)

    world.send = send
    world.run_until("2026-03-02 23:00")
    world.reload(
        text.replace("deliver: phone, }", "deliver: [phone, room]}").replace("wake_heartbeat: ops, wake_on: failure, ", "")
    )
    world.run_until("2026-03-03 07:00")
    assert reminders == ["room"]
    world.pause(OPS)
    world.run_until("2026-03-04 07:00")
    assert reminders == ["room", "phone", "room"]


def test_a_reminder_that_the_agent_fails_to_report_is_sent_although_the_recipient_knows_its_report(make_world: MakeWorld) -> None:
    text = config('active_hours: "00:00-24:00", retries: 0, problems: {after: none, remind: 7d}')
    text = text.replace("problems: {deliver: phone}", "problems: {deliver: phone, remind: 12h}")
    scripts = {"nightly-backup": in_turn(FAILED), "ops": by_wake(in_turn(REPORT, FAILED))}
    world = make_world(text, start=NIGHT, scripts=scripts)
    world.run_until("2026-03-03 05:00")
    assert [f"{at:%m-%d %H:%M}" for at, _, text in world.delivered if "(reminder, " in text] == ["03-03 03:01"]


def test_the_failed_precheck_of_a_job_that_works_again_is_notified_beside_the_end_of_its_failure(make_world: MakeWorld) -> None:
    text = config('active_hours: "00:00-24:00"', "precheck: ./check.sh").replace("command: backup", "prompt: back up, agent: ops")
    scripts = {"nightly-backup": in_turn(FAILED, "done"), "ops": by_wake(REPORT)}
    world = make_world(text, start=NIGHT, scripts=scripts, prechecks={"nightly-backup": in_turn("a tape", FAILED)})
    world.run_until("2026-03-03 04:00")
    assert [line.partition(":")[0] for line in sent(world)] == ["03-02 03", "03-03 03", "03-03 03"]
    assert [line for line in sent(world) if "precheck" in line]


def test_with_wake_on_always_the_end_is_one_message_too(make_world: MakeWorld) -> None:
    def ops(call: AgentCall) -> str:
        if "ended: ok" in call.stdin:
            return "[job:nightly-backup] resolved: it works again"
        return REPORT if "ended: failed" in call.stdin else "HEARTBEAT_OK"

    world = make_world(
        config().replace("wake_on: failure", "wake_on: always"), start=NIGHT,
        scripts={"nightly-backup": in_turn(FAILED, ""), "ops": ops},
    )  # fmt: skip
    world.run_until("2026-03-04 12:00")
    assert [line[:32] for line in sent(world)] == [f"03-02 08:00 {REPORT}"[:32], "03-03 03:00 [job:nightly-backup]"]
    assert "works again" in sent(world)[1]


def test_the_end_after_a_report_without_keys_is_the_recovery_of_the_job(make_world: MakeWorld) -> None:
    world = make_world(
        config(), start=NIGHT,
        scripts={"nightly-backup": in_turn(FAILED, ""), "ops": by_wake("The backup failed.")},
    )  # fmt: skip
    world.run_until("2026-03-04 12:00")
    assert [line[:45] for line in sent(world)] == [
        "03-02 08:00 The backup failed.",
        "03-03 03:00 over     cron/nightly-backup fail",
    ]


def test_a_job_that_works_again_before_the_agent_looks_is_one_message(make_world: MakeWorld) -> None:
    world = make_world(config(), start=NIGHT, scripts={"nightly-backup": in_turn(FAILED, "")})
    world.run_until("2026-03-02 04:00")
    world.run_job("nightly-backup")
    world.run_until("2026-03-02 09:00")
    ((at, _, text),) = world.delivered
    assert f"{at:%H:%M}" == "08:00"
    assert text.startswith(FAILURE)
    assert "over     cron/nightly-backup failed: after 1h   p1" in text


def test_a_report_about_a_job_that_works_again_already_is_followed_by_its_end(make_world: MakeWorld) -> None:
    world = make_world(config(), start=NIGHT, scripts={"nightly-backup": in_turn(FAILED, ""), "ops": by_wake(REPORT)})
    world.run_until("2026-03-02 04:00")
    world.run_job("nightly-backup")
    world.run_until("2026-03-03 12:00")
    over = "[job:nightly-backup] over after 0s, the job works again"
    assert [line[: len(over) + 12] for line in sent(world)] == [f"03-02 08:00 {REPORT}", f"03-02 08:00 {over}"]
    assert not problems.has_unsettled(world.store.connection, Subject.of_reports("ops"))


def test_a_report_about_a_failed_job_that_was_disabled_since_is_not_over(make_world: MakeWorld) -> None:
    world = make_world(config(), start=NIGHT, scripts={"nightly-backup": in_turn(FAILED), "ops": by_wake(REPORT)})
    world.run_until("2026-03-02 04:00")
    world.reload(config(job="enabled: false"))
    world.run_until("2026-03-02 08:10")
    assert sent(world) == [f"03-02 08:00 {REPORT}"]


SYNC = (
    '  nightly-sync: {schedule: "0 3 * * *", command: sync, wake_heartbeat: ops, wake_on: failure, problems: {deliver: phone}}\n'
)


def test_a_problem_about_two_jobs_ends_when_both_work_again(make_world: MakeWorld) -> None:
    both = "[nightly] nightly-backup and nightly-sync failed."
    scripts = {"nightly-backup": in_turn(FAILED, ""), "nightly-sync": in_turn(FAILED, FAILED, ""), "ops": by_wake(both)}
    world = make_world(config(more=SYNC), start=NIGHT, scripts=scripts)
    world.run_until("2026-03-03 20:00")
    assert [line.partition(".")[0] for line in sent(world)] == [
        "03-02 08:00 [nightly] nightly-backup and nightly-sync failed",
        "03-03 03:00 over     cron/nightly-backup failed: after 1d   p1",
    ]
    world.run_until("2026-03-04 04:00")
    assert [line[:40] for line in sent(world)[2:]] == ["03-04 03:00 [nightly] over after 1d19h, t"[:40]]
    assert not problems.has_unsettled(world.store.connection, Subject.of_reports("ops"))


def test_a_problem_about_two_jobs_does_not_wait_for_one_that_was_disabled(make_world: MakeWorld) -> None:
    both = "[nightly] nightly-backup and nightly-sync failed."
    scripts = {"nightly-backup": in_turn(FAILED, ""), "nightly-sync": in_turn(FAILED), "ops": by_wake(both)}
    world = make_world(config(more=SYNC), start=NIGHT, scripts=scripts)
    world.run_until("2026-03-02 04:00")
    world.reload(config(more=SYNC.replace("problems:", "enabled: false, problems:")))
    world.run_until("2026-03-03 04:00")
    assert "03-03 03:00 [nightly] over after 19h, the job works again" in sent(world)


def test_a_word_in_the_names_of_two_failed_jobs_is_no_report_of_either(make_world: MakeWorld) -> None:
    scripts = {
        "nightly-backup": in_turn(FAILED),
        "nightly-sync": in_turn(FAILED),
        "ops": by_wake("[backup] The nightly backup failed."),
    }
    world = make_world(config(more=SYNC), start=NIGHT, scripts=scripts)
    world.run_until("2026-03-02 12:00")
    assert sorted(sent(world)) == [
        "03-02 08:00 [backup] The nightly backup failed.",
        "03-02 08:00 warning  cron/nightly-sync failed: exit code 1 (since 2026-03-02 03:00 UTC)   p2",
    ]


def test_a_report_of_a_failure_after_which_the_job_woke_the_agent_again_is_one_message_and_its_end(make_world: MakeWorld) -> None:
    scripts = {"nightly-backup": in_turn(FAILED, ""), "ops": lambda call: REPORT if "By cron" in call.stdin else "HEARTBEAT_OK"}
    world = make_world(config().replace("wake_on: failure", "wake_on: always"), start=NIGHT, scripts=scripts)
    world.run_until("2026-03-02 04:00")
    world.run_job("nightly-backup")
    world.run_until("2026-03-02 12:00")
    assert [line[:50] for line in sent(world)] == [
        f"03-02 08:00 {REPORT}"[:50],
        "03-02 08:00 [job:nightly-backup] over after 0s, the job works again"[:50],
    ]


def test_a_restart_forgets_neither_the_notification_nor_the_problem(make_world: MakeWorld) -> None:
    world = make_world(
        config(), start=NIGHT, scripts={"nightly-backup": in_turn(FAILED, ""), "ops": by_wake(REPORT, "HEARTBEAT_OK")}
    )
    world.run_until("2026-03-02 04:00")
    world.downtime(hours=1)
    world.run_until("2026-03-02 20:00")
    assert sent(world) == [f"03-02 08:00 {REPORT}"]
    world.downtime(hours=1)
    world.run_until("2026-03-03 12:00")
    assert len(sent(world)) == 2


def test_a_restart_after_the_time_limit_sends_the_notification(make_world: MakeWorld) -> None:
    world = make_world(config(), start=NIGHT, scripts={"nightly-backup": in_turn(FAILED)})
    world.run_until("2026-03-02 04:00")
    world.kill()
    world.clock.advance(timedelta(days=3))
    world.boot()
    world.run(minutes=5)
    assert any(line.endswith(FAILURE) for line in sent(world))


def test_a_user_who_keeps_the_agent_busy_beyond_the_time_limit_releases_the_notification(make_world: MakeWorld) -> None:
    world = make_world(config("timeout: 1m, retries: 1"), start=NIGHT, scripts={"nightly-backup": in_turn(FAILED)})
    world.run_until("2026-03-02 07:00")
    world.request(VerbRequest(HoldLock(id="chat", for_=timedelta(hours=12)), (Kind.HEARTBEAT, "ops")))
    world.run_until("2026-03-02 09:00")
    assert sent(world) == [f"03-02 08:19 {FAILURE}"]
    assert held_back(world)[0]["held_back"]["note"] == "agent ops did not report it in time"


def test_a_second_failure_while_the_agent_is_busy_does_not_postpone_the_notification(make_world: MakeWorld) -> None:
    other = ProcessResult(2, b"", b"no route to host")
    scripts = {"nightly-backup": in_turn(FAILED, other)}
    world = make_world(config("timeout: 1m, retries: 0"), start=NIGHT, scripts=scripts)
    world.run_until("2026-03-02 07:00")
    world.request(VerbRequest(HoldLock(id="chat", for_=timedelta(hours=12)), (Kind.HEARTBEAT, "ops")))
    world.run_until("2026-03-02 08:05")
    world.run_job("nightly-backup")
    world.run_until("2026-03-02 10:00")
    assert [line.partition(":")[0] for line in sent(world)] == ["03-02 08"]
    assert "no route to host" in world.delivered[0][2]
    assert f"{world.delivered[0][0]:%H:%M}" == "08:17"


def test_a_pause_does_not_release_a_notification_that_a_run_in_progress_can_report(make_world: MakeWorld) -> None:
    """Although the job has failed again since, and its second wake waits."""
    scripts = {"nightly-backup": in_turn(FAILED), "ops": by_wake(Delayed(REPORT, timedelta(minutes=4)))}
    world = make_world(config('active_hours: "00:00-24:00"'), start=NIGHT, scripts=scripts)
    world.run_until("2026-03-02 03:02")
    world.run_job("nightly-backup")
    world.run(minutes=1)
    world.pause(OPS)
    world.run_until("2026-03-02 04:00")
    assert sent(world) == [f"03-02 03:04 {REPORT}"]


def test_an_expired_wake_releases_the_notification(make_world: MakeWorld) -> None:
    text = config().replace("limits: {wake_gap: 1m}", "limits: {wake_gap: 1m, wake_keep: 6h}")
    world = make_world(text, start=NIGHT, scripts={"nightly-backup": in_turn(FAILED)})
    world.run_until("2026-03-02 04:00")
    world.reload(text.replace("wake_keep: 6h", "wake_keep: 2h"))
    world.run_until("2026-03-02 05:30")
    assert sent(world) == [f"03-02 05:30 {FAILURE}"]


def test_an_expired_wake_of_another_job_is_reported_beside_the_notification(make_world: MakeWorld) -> None:
    """That job works, so it has no notification of its own."""
    other = "  mirror: {schedule: '30 3 * * *', command: mirror, wake_heartbeat: ops}\n"
    text = config(more=other).replace("limits: {wake_gap: 1m}", "limits: {wake_gap: 1m, wake_keep: 6h}")
    world = make_world(text, start=NIGHT, scripts={"nightly-backup": in_turn(FAILED), "mirror": in_turn("done")})
    world.run_until("2026-03-02 04:00")
    world.reload(text.replace("wake_keep: 6h", "wake_keep: 2h"))
    world.run_until("2026-03-02 07:00")
    (expired,) = [text.splitlines()[:2] for _, _, text in world.delivered if "expired" in text]
    assert (expired[0].partition(":")[0], expired[1].partition(" (")[0]) == ("1 wake of agent ops expired", "- by cron mirror")
    assert [line for line in sent(world) if FAILURE in line]


def test_an_expired_wake_of_a_second_agent_is_reported_beside_the_notification_that_waits_for_the_first(
    make_world: MakeWorld,
) -> None:
    """The second agent reports to another channel, so nothing waits for it."""
    agent = OTHER_AGENT.replace("deliver: phone", "deliver: room")
    text = config(agent=agent).replace("wake_heartbeat: ops", "wake_heartbeat: [ops, web]")
    text = text.replace("limits: {wake_gap: 1m}", "limits: {wake_gap: 1m, wake_keep: 12h}")
    world = make_world(text, start=NIGHT, scripts={"nightly-backup": in_turn(FAILED)})
    world.run_until("2026-03-02 04:00")
    world.reload(text.replace("wake_keep: 12h", "wake_keep: 2h"))
    world.run_until("2026-03-02 07:00")
    assert [text.partition(":")[0] for _, _, text in world.delivered if "expired" in text] == ["1 wake of agent web expired"]


def test_the_end_of_what_a_muted_agent_has_reported_is_that_of_the_job_and_is_not_sent_again_after_the_mute(
    make_world: MakeWorld,
) -> None:
    scripts = {"nightly-backup": in_turn(FAILED, ""), "ops": by_wake(REPORT)}
    world = make_world(config('active_hours: "00:00-24:00"'), start=NIGHT, scripts=scripts)
    world.run_until("2026-03-03 02:00")
    world.request(VerbRequest(Mute(for_=timedelta(hours=4)), OPS))
    world.run_until("2026-03-03 08:00")
    assert sent(world) == [
        f"03-02 03:00 {REPORT}",
        "03-03 03:00 over     cron/nightly-backup failed: after 1d   p1",
    ]


def test_a_muted_agent_sends_the_end_of_what_it_has_reported_after_its_mute_if_the_job_sends_none(make_world: MakeWorld) -> None:
    scripts = {"nightly-backup": in_turn(FAILED, ""), "ops": by_wake(REPORT)}
    quiet = config('active_hours: "00:00-24:00"').replace("problems: {deliver: phone}", "problems: {after: none}")
    world = make_world(quiet, start=NIGHT, scripts=scripts)
    world.run_until("2026-03-03 02:00")
    world.request(VerbRequest(Mute(for_=timedelta(hours=4)), OPS))
    world.run_until("2026-03-03 08:00")
    assert sent(world) == [f"03-02 03:00 {REPORT}", "03-03 06:00 [job:nightly-backup] over after 1d, the job works again"]


def test_without_failure_notifications_the_agent_alone_reports_and_the_end_is_one_message(make_world: MakeWorld) -> None:
    world = make_world(
        config().replace("problems: {deliver: phone}", "problems: {after: none}"), start=NIGHT,
        scripts={"nightly-backup": in_turn(FAILED, ""), "ops": by_wake(REPORT)},
    )  # fmt: skip
    world.run_until("2026-03-03 12:00")
    assert [line[:11] for line in sent(world)] == ["03-02 08:00", "03-03 03:00"]


def test_a_removed_agent_releases_the_notification(make_world: MakeWorld) -> None:
    world = make_world(config(agent=OTHER_AGENT), start=NIGHT, scripts={"nightly-backup": in_turn(FAILED)})
    world.run_until("2026-03-02 05:00")
    world.reload(config().replace("  ops:", "  web:").replace("wake_heartbeat: ops", "wake_heartbeat: web"))
    world.run(minutes=1)
    assert sent(world) == [f"03-02 05:00 {FAILURE}"]


def test_a_removed_job_leaves_a_problem_that_the_agent_can_end(make_world: MakeWorld) -> None:
    world = make_world(config(), start=NIGHT, scripts={"nightly-backup": in_turn(FAILED), "ops": by_wake(REPORT)})
    world.run_until("2026-03-02 09:00")
    world.reload(config(more='  other: {schedule: "0 5 * * *", command: other}').replace("nightly-backup:", "weekly-backup:"))
    world.run_until("2026-03-02 12:00")
    assert [line[:11] for line in sent(world)] == ["03-02 08:00", "03-02 10:00"]


def test_the_agent_reads_the_key_of_the_job_in_its_prompt(make_world: MakeWorld) -> None:
    world = make_world(config(), start=NIGHT, scripts={"nightly-backup": in_turn(FAILED)})
    world.run_until("2026-03-02 09:00")
    woken, later = [call.stdin for call in world.calls if call.name == "ops"][:2]
    assert "Report a failed cron job under its own key (job:nightly-backup)" in woken
    assert "job:nightly-backup" not in later


@pytest.mark.parametrize(("answer", "last"), [(REPORT, REPORT), ("HEARTBEAT_OK", FAILURE)])
def test_an_agent_that_answers_later_is_awaited(make_world: MakeWorld, answer: str, last: str) -> None:
    """Although it is paused, and the job has failed again since."""
    with Server([gateway.async_answer()]) as server:
        text = config("async_timeout: 6h").replace("{kind: command, argv: [agent]}", f'{{kind: http, url: "{server.url}"}}')
        world = make_world(text, start=NIGHT, scripts={"nightly-backup": in_turn(FAILED)})
        world.run_until("2026-03-02 08:10")
        run_id = server.requests[0].json["run"]
        world.pause(OPS)
        world.run_job("nightly-backup")
        world.run_until("2026-03-02 12:10")
        assert sent(world) == []
        world.request(VerbRequest(ReportResult(text=answer), run_id))
        world.run(minutes=1)
    assert sent(world) == [f"03-02 12:10 {last}"]


def test_an_agent_that_answers_later_about_one_job_does_not_delay_the_message_about_another_one(make_world: MakeWorld) -> None:
    """The other job fails while the agent is called for the first one."""
    with Server([gateway.async_answer()]) as server:
        text = config('active_hours: "00:00-24:00", async_timeout: 12h', more=OTHER_JOB.replace("0 3", "2 3"))
        text = text.replace("{kind: command, argv: [agent]}", f'{{kind: http, url: "{server.url}"}}').replace("30m", "12h")
        scripts = {"nightly-backup": in_turn(FAILED), "nightly-certs": in_turn(FAILED)}
        world = make_world(text, start=NIGHT, scripts=scripts, durations={"ops": timedelta(minutes=4)})
        world.run_until("2026-03-02 03:05")
    until = {name: world.records(name)[0]["notices"][0]["held_back"]["until"] for name in ("nightly-backup", "nightly-certs")}
    assert until["nightly-certs"] < "2026-03-02T05:00" < "2026-03-02T15:00" < until["nightly-backup"]


@pytest.mark.parametrize("talks_to", ["4711", "4712"])
def test_deliver_last_holds_back_only_what_the_agent_says_in_the_same_conversation(make_world: MakeWorld, talks_to: str) -> None:
    chat = CHANNELS + '  chat: {kind: webhook, url: "http://127.0.0.1:9/to/{target}", allow_private: true}\n'
    text = config("deliver: last", channels=chat).replace("command: backup", "prompt: back up, agent: ops")
    text = text.replace("problems: {deliver: phone}", "problems: {deliver: last}")
    world = make_world(text, start=NIGHT, scripts={"nightly-backup": in_turn(FAILED), "ops": by_wake(REPORT)})
    world.request(VerbRequest(NoteActivity(channel="chat", target="4711"), (Kind.HEARTBEAT, "ops")))
    world.run_until("2026-03-02 06:00")
    assert sent(world) == []
    world.request(VerbRequest(NoteActivity(channel="chat", target=talks_to), (Kind.HEARTBEAT, "ops")))
    world.run_until("2026-03-02 12:00")
    moved = [f"03-02 06:00 {FAILURE}"] if talks_to != "4711" else []
    assert sent(world) == [*moved, f"03-02 08:00 {REPORT}"]


def printed(capsys: pytest.CaptureFixture[str], world: World, *arguments: str) -> str:
    """What a command prints, with single spaces."""
    assert main([*arguments, "-c", str(world.config)]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_explain_show_and_status_say_who_reports_the_failure(make_world: MakeWorld, capsys: pytest.CaptureFixture[str]) -> None:
    scripts = {"nightly-backup": in_turn(FAILED), "ops": by_wake(REPORT, REPORT)}
    world = make_world("timezone: UTC\n" + config(), start=NIGHT, scripts=scripts)
    world.run_until("2026-03-02 05:00")
    job_run, until = str(world.records("nightly-backup")[-1]["id"]), "Mon 2026-03-02 08:45"
    awaited = "opened p1: phone pending; delayed, because agent ops is to report it, until"
    assert f"notice {awaited} {until} at most" in printed(capsys, world, "explain", "nightly-backup")
    assert f"notice {awaited}" in printed(capsys, world, "show", job_run)
    assert "(since 03-02 03:00, delayed, because agent ops is to report it)" in printed(capsys, world, "status")
    assert "delayed, because agent ops is to report it" in printed(capsys, world, "outbox")
    assert "pending since" not in printed(capsys, world, "status")
    world.run_until("2026-03-02 12:00")
    report_run = next(row["id"] for row in world.records("ops") if row["result"] == "alert")
    explained = printed(capsys, world, "explain", "nightly-backup")
    assert f"notice opened p1: phone dropped; agent ops has reported it (run {report_run})" in explained
    text = "known agent ops reports it as p2 job:nightly-backup (warning) since Mon 2026-03-02 08:00, delivered to phone"
    assert text in explained
    assert f"notice opened p1: phone dropped; agent ops has reported it (run {report_run})" in printed(
        capsys, world, "show", job_run
    )


def outbox_of_a_crash(folder: Path, server: str | None, statement: int, answer: str) -> int:
    """Simulate a failing job and the run of its agent in a child process that exits after this many SQL statements."""
    return run_until_crash(
        lambda: World(folder, config(), start="2026-03-02 02:59", scripts=failing_backup(answer), server=server),
        lambda world: world.run_until("2026-03-02 08:40"), statement,
    )  # fmt: skip


def failing_backup(answer: str) -> dict[str, Any]:
    return {"nightly-backup": in_turn(FAILED), "ops": by_wake(answer)}


def test_many_notifications_that_are_held_back_are_looked_at_with_a_few_statements(make_world: MakeWorld) -> None:
    keys = 'schedule: "0 3 * * *", stagger: 0s, command: b, wake_heartbeat: ops, problems: {deliver: phone}'
    names = [f"job{number}" for number in range(40)]
    more = "".join(f"  {name}: {{{keys}}}\n" for name in names)
    world = make_world(config(more=more), start=NIGHT, scripts=dict.fromkeys(names, lambda _: FAILED))
    world.run_until("2026-03-02 03:30")
    assert len(outbox.held_notices(world.store.connection)) == 40
    with world.traced_statements() as statements:
        world.engine.tick(world.clock.read())
    assert len(statements) < 40


@pytest.mark.simulation
@pytest.mark.parametrize("answer", [REPORT, "HEARTBEAT_OK"])
def test_a_crash_after_any_statement_neither_loses_nor_doubles_the_report(
    tmp_path: Path, database_of: DatabaseOf, answer: str
) -> None:
    codes = set()
    server = database_of(tmp_path)
    for statement in range(3, 240, size(29, 7 if server else 2)):
        codes.add(outbox_of_a_crash(tmp_path, server, statement, answer))
        world = World(tmp_path, config(), start="2026-03-02 08:41", scripts=failing_backup(answer), server=server)
        world.run_until("2026-03-02 20:00")
        rows = world.store.connection.execute("select name, text from outbox where state = 'delivered'").fetchall()
        reports = [f"{row['name']}: {row['text'].splitlines()[0]}" for row in rows]
        if world.records("nightly-backup")[-1]["result"] in ("failed", "abandoned"):
            assert len(reports) == 1, (statement, reports)
        world.store.close()
        world.delete_database()
    assert 9 in codes

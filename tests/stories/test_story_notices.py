"""Problems of agents, jobs and channels end to end: sent once, with reminders, on a new error, and when they are over."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from config_file import complaints, read
from metrics_page import Page
from servers import discord, gateway, telegram
from servers.discord import Discord
from servers.scripted import Server, page, reset
from servers.telegram import Telegram, refusal
from test_story_slots import agent, job
from world import Delayed, MakeWorld, World, count_steps, send_by_transport, utc

from heartbeat.runners import ProcessResult
from heartbeatd.verbs import CloseProblem, ReportResult, Retry
from scheduler.config.settings.effective_values import list_effective_values
from scheduler.engine.delivery import Delivery
from scheduler.engine.effects import VerbRequest
from scheduler.insight.status_data import read_status
from scheduler.model.message import DeliveryResult
from scheduler.model.outcome import Kind
from scheduler.store import overviews, problems
from scheduler.telemetry.event_log import EventLog

HOOKS = """\
channels:
  hook: {kind: webhook, url: "http://127.0.0.1:1/x", allow_private: true}
  other: {kind: webhook, url: "http://127.0.0.1:1/y", allow_private: true}
"""
REFUSED = DeliveryResult("dead", "127.0.0.1 answered 400 Bad Request")
TAKEN = DeliveryResult("delivered")
BUSY = DeliveryResult("retry", "busy")
LOST = (
    "other",
    "CRITICAL channel hook undelivered: 127.0.0.1 answered 400 Bad Request (since 2026-03-02 08:00 UTC)   p1",
)


def process_result(code: int, errors: str = "", output: str = "") -> ProcessResult:
    return ProcessResult(
        code, output.encode(), errors.encode()
    )  # fmt: skip


def message_lines(world: World, name: str = "ops") -> list[str]:
    """The time and first line of each message about an entry."""
    return [f"{when:%m-%d %H:%M} {text.splitlines()[0]}" for when, who, text in world.delivered if who == name]


def notices(world: World) -> list[tuple[str, str, str]]:
    """The kind, channel and state of each failure notification, oldest first."""
    rows = world.store.connection.execute("select notice, channel, state from outbox where notice is not null order by id")
    return [tuple(row) for row in rows]


def notice_texts(world: World) -> list[str]:
    """The lines of all failure notifications, oldest first."""
    rows = world.store.connection.execute("select text from outbox where notice is not null order by id")
    return [line for row in rows for line in row["text"].splitlines()]


def fail_until(world: World, text: str, error: Callable[[int], str] | None) -> None:
    """Let time pass while each run fails with the error for its number; None: runs succeed."""
    world.scripts["ops"] = lambda call: process_result(1, error(len(world.calls))) if error else "HEARTBEAT_OK"
    world.run_until(text)


def test_the_same_failure_with_changing_numbers_is_reported_once_with_reminders(make_world: MakeWorld) -> None:
    world = make_world(agent(retries="0", problems="{remind: 6h}"))
    fail_until(world, "2026-03-03 07:59", lambda count: f"disk {count * 3 % 100} % full, {count} errors at 0x{count}")
    fail_until(world, "2026-03-03 12:00", None)
    assert sum(row["result"] == "failed" for row in world.records()) == 48

    def numbers(count: int) -> str:
        return f"exit code 1: disk {count * 3 % 100} % full, {count} errors at 0x{count}"

    assert message_lines(world) == [
        f"03-02 08:30 warning  ops failed: {numbers(2)} (2 times in a row since 2026-03-02 08:00 UTC)   p1",
        f"03-02 14:30 warning  ops failed: {numbers(14)} (reminder, 14 times in a row since 2026-03-02 08:00 UTC)   p1",
        f"03-02 20:30 warning  ops failed: {numbers(26)} (reminder, 26 times in a row since 2026-03-02 08:00 UTC)   p1",
        f"03-03 02:30 warning  ops failed: {numbers(38)} (reminder, 38 times in a row since 2026-03-02 08:00 UTC)   p1",
        "03-03 08:00 over     ops failed: after 1d   p1",
    ]


def test_a_notification_has_the_error_and_the_command_for_details(make_world: MakeWorld) -> None:
    world = make_world(agent(retries="0"))
    fail_until(world, "2026-03-02 08:31", lambda count: "no space left on device")
    assert world.delivered[0][2].splitlines() == [
        "warning  ops failed: exit code 1: no space left on device (2 times in a row since 2026-03-02 08:00 UTC)   p1",
        "More: heartbeatd show 2",
    ]


def test_a_single_failure_of_a_heartbeat_is_not_reported(make_world: MakeWorld) -> None:
    world = make_world(agent(retries="0"))
    fail_until(world, "2026-03-02 08:29", lambda count: "no")
    fail_until(world, "2026-03-02 12:00", None)
    assert (message_lines(world), len(world.records())) == ([], 9)


def test_a_different_error_is_reported_at_once_and_only_once(make_world: MakeWorld) -> None:
    world = make_world(agent(retries="0"))
    fail_until(world, "2026-03-02 12:00", lambda count: "no network" if count < 4 or count % 2 else "no space left")
    assert message_lines(world) == [
        "03-02 08:30 warning  ops failed: exit code 1: no network (2 times in a row since 2026-03-02 08:00 UTC)   p1",
        (
            "03-02 09:30 warning  ops failed: exit code 1: no space left"
            " (another error, 4 times in a row since 2026-03-02 08:00 UTC)   p1"
        ),
    ]


def test_an_error_that_was_reported_is_still_known_if_the_message_about_a_later_one_was_lost(make_world: MakeWorld) -> None:
    also_sent = job(schedule='"20 * * * *"', deliver="hook")  # so that the channel has taken a message since
    world = make_world(HOOKS + agent(deliver="hook", retries="0") + also_sent, scripts={"measure": lambda _: "42"})
    fail_until(world, "2026-03-02 08:45", lambda count: "no network")
    world.send = lambda _: REFUSED
    fail_until(world, "2026-03-02 09:15", lambda count: "no space left")
    world.send = lambda _: TAKEN
    fail_until(world, "2026-03-02 09:45", lambda count: "no space left")
    fail_until(world, "2026-03-02 12:00", lambda count: "no network")
    sent = world.store.connection.execute("select text, state from outbox where text like '%ops failed%' order by id")
    assert [(re.sub(r"(?s).*code 1: | \(.*", "", row["text"]), row["state"]) for row in sent] == [
        ("no network", "delivered"),
        ("no space left", "dead"),
        ("no space left", "delivered"),
    ]


def test_errors_that_always_differ_are_reported_five_times_and_then_by_reminders(make_world: MakeWorld) -> None:
    world = make_world(agent(retries="0"))
    fail_until(world, "2026-03-03 11:00", lambda count: "".join(chr(97 + int(digit)) for digit in str(count)))
    assert ["reminder" in line for line in message_lines(world)] == [False] * 5 + [True]


def test_a_recovery_resets_the_failure_count(make_world: MakeWorld) -> None:
    world = make_world(agent(retries="0", problems="{after: 3}"))
    fail_until(world, "2026-03-02 08:59", lambda count: "no")
    fail_until(world, "2026-03-02 09:29", None)
    fail_until(world, "2026-03-02 10:29", lambda count: "no")
    assert message_lines(world) == []
    fail_until(world, "2026-03-02 10:31", lambda count: "no")
    assert message_lines(world) == [
        "03-02 10:30 warning  ops failed: exit code 1: no (3 times in a row since 2026-03-02 09:30 UTC)   p2"
    ]


def test_a_problem_survives_a_restart(make_world: MakeWorld) -> None:
    world = make_world(agent(retries="0"))
    fail_until(world, "2026-03-02 08:45", lambda count: "no")
    world.downtime(minutes=5)
    fail_until(world, "2026-03-02 09:15", lambda count: "no")
    world.downtime(minutes=5)
    fail_until(world, "2026-03-02 10:00", None)
    assert [line[12:31] for line in message_lines(world)] == ["warning  ops failed", "over     ops failed"]


def test_disabling_an_agent_ends_its_problem(make_world: MakeWorld) -> None:
    world = make_world(agent(retries="0"))
    fail_until(world, "2026-03-02 08:45", lambda count: "no")
    world.reload(agent(retries="0", enabled="false"))
    assert read_status(world.store.connection, world.clock.now).as_data()["entries"][0]["failing"] is None
    world.reload(agent(retries="0"))
    fail_until(world, "2026-03-02 10:15", lambda count: "no")
    assert [line[12:31] for line in message_lines(world)] == ["warning  ops failed"] * 2


def test_after_none_sends_no_notifications(make_world: MakeWorld) -> None:
    world = make_world(agent(retries="0", problems="{after: none}"))
    fail_until(world, "2026-03-02 20:00", lambda count: "no")
    fail_until(world, "2026-03-02 21:00", None)
    assert (message_lines(world), notices(world)) == ([], [])


@pytest.mark.sqlite_file("queries are seen with their values")
def test_a_successful_run_needs_no_query_of_problems(make_world: MakeWorld) -> None:
    world = make_world(agent())
    with world.traced_statements() as statements:
        world.run(hours=3)
    assert len(world.records()) == 7
    read = [statement for statement in statements if statement.startswith("select * from problem")]
    once_a_minute = ("'daemon'", "'channel'")
    assert [statement for statement in read if not any(kind in statement for kind in once_a_minute)] == []


def test_a_failed_job_is_reported_once_with_its_output(make_world: MakeWorld) -> None:
    world = make_world(HOOKS + job(every="30m", deliver="hook"))
    world.scripts["measure"] = lambda call: (
        process_result(2, "tape 1 torn", "wrote 17 files\n") if utc("2026-03-02 09:45") > call.at else "well"
    )
    world.run_until("2026-03-02 10:05")
    assert [(f"{when:%H:%M}", text) for when, _, text in world.delivered] == [
        (
            "08:30",
            (
                "warning  cron/measure failed: exit code 2: tape 1 torn (since 2026-03-02 08:30 UTC)   p1\n"
                "Output: wrote 17 files\nMore: heartbeatd show 1"
            ),
        ),
        ("10:00", "well"),
        ("10:00", "over     cron/measure failed: after 1h30m   p1\nIt was: exit code 2: tape 1 torn"),
    ]


def test_a_job_without_notifications_still_delivers_its_output(make_world: MakeWorld) -> None:
    world = make_world(job(every="30m", deliver="log", problems="{after: none}", postcheck="{file: out.txt}"))
    world.scripts["measure"] = lambda call: process_result(2, "torn") if world.clock.now < utc("2026-03-02 09:15") else "done"
    world.run(minutes=95)
    torn, unproved = "measure ended failed: exit code 2: torn", "measure ended failed: out.txt is missing\ndone"
    assert [text for *_, text in world.delivered] == [torn, torn, unproved]


@pytest.mark.parametrize(
    ("channels", "keys", "told_on"),
    [
        (HOOKS, {"deliver": "none"}, ["log"]),
        (HOOKS.partition("  other")[0], {}, ["hook"]),
        (HOOKS, {"deliver": "other"}, ["other"]),
        (HOOKS, {"deliver": "other", "problems": "{deliver: [hook, log]}"}, ["hook", "log"]),
        ("", {}, ["log"]),
    ],
)
def test_a_failed_job_is_reported_on_some_channel(
    make_world: MakeWorld, channels: str, keys: dict[str, str], told_on: list[str]
) -> None:
    world = make_world(channels + job(every="30m", **keys))
    world.scripts["measure"] = lambda call: 1
    world.run(minutes=31)
    assert notices(world) == [("opened p1", channel, "delivered") for channel in told_on]


def test_lost_skips_are_reported_and_are_over_when_the_check_passes(make_world: MakeWorld) -> None:
    world = make_world(agent(precheck="{command: look, on_error: skip}"))
    broken = process_result(3, "look: not found")
    world.prechecks["ops"] = lambda call: broken if call.at < utc("2026-03-02 09:15") else process_result(0, output="NO_WORK")
    world.run(hours=2)
    assert [line[12:] for line in world.history()] == ["interval skipped precheck_failed"] * 3 + ["interval skipped precheck"] * 2
    assert message_lines(world) == [
        (
            "03-02 08:30 warning  ops stopped: precheck_failed: the precheck failed: exit code 3: look: not found"
            " (2 times in a row since 2026-03-02 08:00 UTC)   p1"
        ),
        "03-02 09:30 over     ops stopped: after 1h30m   p1",
    ]


def test_a_failure_is_not_over_because_a_check_passes_again(make_world: MakeWorld) -> None:
    world = make_world(agent(retries="0", checklist="HEARTBEAT.md", precheck="look"))
    file = world.write("ops/HEARTBEAT.md", "- look\n")
    world.prechecks["ops"] = lambda call: "NO_WORK" if call.at >= utc("2026-03-02 10:15") else "mail"
    fail_until(world, "2026-03-02 08:59", lambda count: "no")
    file.rename(file.with_suffix(".old"))
    file.mkdir()
    world.run_until("2026-03-02 09:59")
    file.rmdir()
    file.with_suffix(".old").rename(file)
    fail_until(world, "2026-03-02 10:59", lambda count: "no")
    assert [line[12:] for line in world.history()] == [
        *["interval failed exit"] * 2, *["interval skipped checklist_unreadable"] * 2,
        "interval failed exit", "interval skipped precheck",
    ]  # fmt: skip
    assert [line for line in message_lines(world) if "over     ops failed" in line] == []


def test_an_unreadable_checklist_is_reported(make_world: MakeWorld) -> None:
    world = make_world(agent(checklist="HEARTBEAT.md"))
    world.write("ops/HEARTBEAT.md/x", "a folder where a file should be")
    world.run(minutes=31)
    assert message_lines(world)[0].startswith("03-02 08:30 warning  ops stopped: checklist_unreadable: the checklist cannot")


def test_the_notification_of_a_failed_program_has_what_it_printed(make_world: MakeWorld) -> None:
    world = make_world(
        agent(retries="0"), scripts={"ops": lambda _: process_result(1, "warning\n" * 300, "session limit, resets 3pm\n")}
    )
    world.run(minutes=31)
    text = world.delivered[0][2]
    assert "exit code 1: " in text
    assert "standard output: session limit, resets 3pm" in text


def test_the_reason_of_an_unreadable_checklist_is_in_the_notification_and_the_run(make_world: MakeWorld, tmp_path: Path) -> None:
    def of_a_file(agents: Path) -> None:
        agents.mkdir()
        (agents / "ops").write_text("this should be a folder")

    def of_a_link(agents: Path) -> None:
        (agents / "ops").mkdir(parents=True)
        (agents / "ops/HEARTBEAT.md").symlink_to("/etc/hosts")

    def of_a_folder(agents: Path) -> None:
        (agents / "ops/HEARTBEAT.md").mkdir(parents=True)

    for make, why in (
        (of_a_file, "agents/ops is a file"),
        (of_a_link, "it is a symbolic link"),
        (of_a_folder, "no regular file"),
    ):
        (folder := tmp_path / make.__name__).mkdir()
        make(folder / "agents")
        world = make_world(agent(checklist="HEARTBEAT.md"), folder)
        world.run(minutes=31)
        row = world.records()[0]
        assert row["why"] == "checklist_unreadable"
        assert why in row["error"]
        assert why in world.delivered[0][2]


def test_normal_skips_neither_open_nor_end_a_problem(make_world: MakeWorld) -> None:
    world = make_world(agent(retries="0", active_hours='"08:00-09:00"'))
    fail_until(world, "2026-03-03 07:00", lambda count: "no")
    assert len(message_lines(world)) == 1
    fail_until(world, "2026-03-03 08:05", None)
    assert len(message_lines(world)) == 2


def test_status_shows_when_the_last_of_two_recipients_was_notified(make_world: MakeWorld) -> None:
    world = make_world(HOOKS + agent(retries="0", deliver="[hook, other]"))
    world.send = lambda each: TAKEN if each.channel.name == "hook" or world.clock.now >= utc("2026-03-02 08:40") else BUSY
    fail_until(world, "2026-03-02 09:35", lambda count: "no")
    told_at = read_status(world.store.connection, world.clock.now).as_data()["entries"][0]["failing"]["told_at"]
    assert "2026-03-02T08:40" <= told_at <= "2026-03-02T09:35"


def test_status_shows_the_problem_its_count_and_when_it_was_reported(make_world: MakeWorld) -> None:
    world = make_world(agent(retries="0"))
    fail_until(world, "2026-03-02 08:05", lambda count: "no")
    db = world.store.connection
    assert read_status(db, world.clock.now).as_data()["entries"][0]["failing"] == {
        "times": 1,
        "why": "exit",
        "since": "2026-03-02T08:00:00Z",
        "told_at": None,
    }
    fail_until(world, "2026-03-02 09:05", lambda count: "no")
    told_at = "2026-03-02T08:30:00Z"
    assert read_status(db, world.clock.now).as_data()["entries"][0]["failing"] == {
        "times": 3,
        "why": "exit",
        "since": "2026-03-02T08:00:00Z",
        "told_at": told_at,
    }
    world.clock.now += timedelta(hours=2)
    world.run(seconds=10)
    assert read_status(db, world.clock.now).as_data()["entries"][0]["failing"]["told_at"] == told_at
    fail_until(world, "2026-03-02 11:35", None)
    assert read_status(db, world.clock.now).as_data()["entries"][0]["failing"] is None


@pytest.mark.sqlite_file("the steps of SQLite are counted")
def test_status_does_not_read_the_messages_of_agents_that_work(make_world: MakeWorld) -> None:
    world = make_world(agent())
    world.run(minutes=1)
    db, steps = world.store.connection, list[int]()
    for _ in range(2):
        steps.append(count_steps(db, lambda: overviews.entry_overviews(db, None, None)))
        world.scripts["ops"] = lambda call: f"news {len(world.calls)}"
        world.run(hours=24)
    assert len(world.delivered) > 40
    assert steps[0] == steps[1]


# --- messages that a channel does not accept --------------------------------------------------------------------------


def alert_in_every_run(world: World) -> None:
    """Let each run of the agent end with a different alert."""
    world.scripts["ops"] = lambda call: f"ALERT: number {len(world.calls)}"


def channels_answering(answers: dict[str, DeliveryResult], sent: list[tuple[str, str]]) -> Callable[[Delivery], DeliveryResult]:
    """Channels with these answers; accepted messages are appended to the list."""

    def send(delivery: Delivery) -> DeliveryResult:
        result = answers.get(delivery.channel.name, TAKEN)
        if result is TAKEN:
            sent.append((delivery.channel.name, delivery.message.text.splitlines()[0]))
        return result

    return send


def test_the_notification_of_a_lost_message_names_its_job(make_world: MakeWorld) -> None:
    world = make_world(HOOKS + "cron: {sick: {every: 1h, command: look, deliver: hook}}\n", scripts={"sick": lambda call: 1})
    sent: list[Any] = []
    world.send = channels_answering({"hook": REFUSED}, sent)
    world.run(hours=1, minutes=5)
    assert [channel for channel, _ in sent] == ["other"]
    assert "A message from cron job sick was given up." in notice_texts(world)


def test_a_channel_that_refuses_messages_is_reported_on_another_one_until_it_takes_a_message(make_world: MakeWorld) -> None:
    world = make_world(HOOKS + agent(deliver="hook"))
    alert_in_every_run(world)
    answers, sent = {"hook": REFUSED}, []
    world.send = channels_answering(answers, sent)
    world.run_until("2026-03-02 09:45")
    assert sent == [LOST]
    del answers["hook"]
    world.run_until("2026-03-02 10:15")
    answers["hook"] = REFUSED
    world.run_until("2026-03-02 11:15")
    again = ("other", LOST[1].replace("08:00", "10:30"))
    assert sent == [LOST, ("hook", "ALERT: number 5"), ("other", "over     channel hook undelivered: after 2h   p1"), again]


@pytest.mark.parametrize("repair", ["restart", "reload"])
def test_a_channel_that_refused_messages_is_tried_again_after_a_restart_or_a_reload(make_world: MakeWorld, repair: str) -> None:
    hook = HOOKS.replace(HOOKS.splitlines(keepends=True)[-1], "")
    world = make_world(hook + agent(deliver="hook", retries="0"))
    answers, sent = {"hook": REFUSED}, list[Any]()
    world.send = channels_answering(answers, sent)
    fail_until(world, "2026-03-02 09:45", lambda count: "no")
    assert [(channel, state) for _, channel, state in notices(world) if channel == "hook"] == [("hook", "dead")]
    del answers["hook"]
    if repair == "restart":
        world.stop()
        world.boot()
    else:
        world.reload(hook.replace("/x", "/y") + agent(deliver="hook", retries="0"))
    fail_until(world, "2026-03-02 10:45", lambda count: "no")
    assert [text.partition(": ")[0] for channel, text in sent if channel == "hook"] == ["warning  ops failed"]


def test_a_channel_that_refuses_the_same_message_again_is_reported_again_and_then_once_for_all_messages(
    make_world: MakeWorld,
) -> None:
    """A user has retried the message after the channel took another one."""
    world = make_world(HOOKS + agent(deliver="hook"))
    alert_in_every_run(world)
    answers, sent = {"hook": REFUSED}, []
    world.send = channels_answering(answers, sent)
    world.run(minutes=5)
    del answers["hook"]
    world.run(minutes=30)
    answers["hook"] = REFUSED
    world.request(VerbRequest(Retry(), 1))
    world.run(minutes=30)
    assert [(row["id"], len(row["notices"])) for row in world.records()] == [(1, 2), (2, 1), (3, 0)]


def test_the_notification_of_a_dead_letter_has_its_error_and_id_but_not_its_text(make_world: MakeWorld) -> None:
    world = make_world(HOOKS + agent(deliver="hook"))
    alert_in_every_run(world)
    world.send = channels_answering({"hook": REFUSED}, [])
    world.run(minutes=5)
    row = world.records()[0]
    assert (row["delivery"]["state"], row["text"]) == ("dead", "ALERT: number 1")
    assert row["notices"][0] | {"text": ""} == {
        "notice": "opened p1",
        "channel": "other",
        "state": "delivered",
        "text": "",
    }
    assert row["notices"][0]["text"].splitlines()[1:3] == [
        "A message from agent ops was given up.",
        "Its text: heartbeatd show 1",
    ]
    assert "number 1" not in row["notices"][0]["text"]


def test_a_dead_letter_is_logged_if_every_channel_is_dead(make_world: MakeWorld) -> None:
    world = make_world(HOOKS + agent(deliver="hook"))
    alert_in_every_run(world)
    world.send = channels_answering({"hook": REFUSED, "other": REFUSED}, [])
    world.run(minutes=5)
    assert notices(world) == [("opened p1", "other", "dead"), ("opened p2", "log", "delivered")]


def test_failures_are_not_reported_on_a_dead_channel(make_world: MakeWorld) -> None:
    world = make_world(HOOKS + agent(deliver="hook", retries="0"))
    sent: list[tuple[str, str]] = []
    world.send = channels_answering({"hook": REFUSED}, sent)
    world.scripts["ops"] = lambda call: "ALERT: now" if len(world.calls) == 1 else 1
    world.run_until("2026-03-02 09:05")
    failed = "warning  ops failed: exit code 1 (2 times in a row since 2026-03-02 08:30 UTC)   p2"
    assert sent[1:] == [("other", failed)]


def test_a_failure_whose_message_was_not_delivered_is_sent_again_when_its_channel_works(make_world: MakeWorld) -> None:
    other_agent = agent(interval="1h", deliver="hook").partition("agents:\n")[2].replace("ops:", "web:", 1)
    world = make_world(HOOKS + agent(deliver="[hook, other]", retries="0", problems="{after: 1}") + other_agent)
    world.scripts |= {"ops": lambda call: 1 if call.at < utc("2026-03-02 10:15") else "HEARTBEAT_OK"}
    world.scripts |= {"web": lambda call: f"ALERT: {call.at:%H:%M}"}
    answers, sent = {"hook": REFUSED}, list[tuple[str, str]]()
    world.send = channels_answering(answers, sent)
    world.run_until("2026-03-02 08:45")
    assert [channel for channel, text in sent if "ops failed" in text] == ["other"]
    del answers["hook"]
    world.run_until("2026-03-02 11:00")
    about_ops = [(channel, text[:8].strip()) for channel, text in sent if "ops failed" in text]
    assert about_ops == [("other", "warning"), ("hook", "warning"), ("hook", "over"), ("other", "over")]


@pytest.mark.parametrize(
    ("answer", "opens", "end"),
    [(1, "warning  ops failed", "over     ops failed"), ("[disk] 92 %", "warning  ops disk", "over     ops disk")],
)
def test_an_end_whose_message_was_not_delivered_is_sent_again(make_world: MakeWorld, answer: Any, opens: str, end: str) -> None:
    world = make_world(HOOKS + agent(deliver="hook", retries="0", problems="{after: 1, clear_after: 1}"))
    world.scripts["ops"] = lambda call: answer if call.at < utc("2026-03-02 08:30") else "HEARTBEAT_OK"
    answers, sent = dict[str, DeliveryResult](), list[tuple[str, str]]()
    world.send = channels_answering(answers, sent)
    world.run_until("2026-03-02 08:15")
    answers["hook"] = REFUSED
    world.run_until("2026-03-02 08:45")
    answers.clear()
    world.run_until("2026-03-02 12:00")
    about_ops = [text.partition(":")[0] for _, text in sent if text.startswith((opens, end))]
    assert about_ops == [opens, end]


def test_an_end_is_sent_again_after_a_user_has_retried_it_in_vain(make_world: MakeWorld) -> None:
    """A run that ends meanwhile finds nothing to do."""
    world = make_world(HOOKS + agent(deliver="hook", retries="0", problems="{after: 1}"))
    world.scripts["ops"] = lambda call: 1 if call.at < utc("2026-03-02 08:30") else "HEARTBEAT_OK"
    answers, sent = dict[str, DeliveryResult](), list[tuple[str, str]]()
    send = channels_answering(answers, sent)
    world.send = send
    world.run_until("2026-03-02 08:15")
    answers["hook"] = REFUSED
    world.run_until("2026-03-02 08:45")
    (end,) = world.store.connection.execute("select id from outbox where text like 'over %' and state = 'dead'").fetchall()
    world.send = lambda each: Delayed(REFUSED, timedelta(minutes=40)) if each.message.id == end["id"] else send(each)
    world.request(VerbRequest(Retry(), end["id"]))
    answers.clear()
    world.run_until("2026-03-02 12:00")
    assert [text.partition(":")[0] for _, text in sent if " ops failed" in text] == ["warning  ops failed", "over     ops failed"]


def test_an_info_that_was_not_delivered_is_sent_when_it_comes_back(make_world: MakeWorld) -> None:
    world = make_world(
        HOOKS + agent(deliver="hook", interval="30m", precheck="{command: ./check.sh, unchanged: skip}"),
        scripts={"ops": lambda _: "[load] info"},
    )
    printed = ["info: load is high", "NO_WORK", "NO_WORK", "info: load is high"]
    world.prechecks["ops"] = lambda _: printed.pop(0) if len(printed) > 1 else printed[0]
    answers, sent = {"hook": REFUSED}, list[tuple[str, str]]()
    world.send = channels_answering(answers, sent)
    world.run_until("2026-03-02 09:15")
    answers.clear()
    world.run_until("2026-03-02 09:45")
    assert [text.partition(":")[0] for _, text in sent if " ops load" in text] == ["info     ops load"]


@pytest.mark.parametrize(("last", "messages", "why"), [(17, 1, "duplicate"), (18, 2, None)])
def test_an_info_that_comes_back_within_a_day_is_sent_again_only_with_other_figures(
    make_world: MakeWorld, last: int, messages: int, why: str | None
) -> None:
    world = make_world(
        HOOKS + agent(deliver="hook", interval="30m", precheck="{command: ./check.sh, unchanged: skip}"),
        scripts={"ops": lambda _: "[load] info"},
    )
    printed = ["info: load is 17", "NO_WORK", "NO_WORK", f"info: load is {last}"]
    world.prechecks["ops"] = lambda _: printed.pop(0)
    world.run_until("2026-03-02 09:45")
    assert [text.partition(":")[0] for _, _, text in world.delivered] == ["info     ops load"] * messages
    assert [row["why"] for row in world.records("ops")] == [None, "precheck", "precheck", why]


def test_an_info_that_a_user_has_closed_is_sent_again_if_it_is_reported_again(make_world: MakeWorld) -> None:
    yaml = HOOKS + agent(deliver="hook", interval="30m", precheck="{command: ./check.sh}")
    world = make_world(yaml, scripts={"ops": lambda _: "[load] info"}, prechecks={"ops": lambda _: "info: load is 17"})
    world.run(minutes=10)
    world.request(VerbRequest(CloseProblem(), world.problem("load").id))
    world.run(minutes=30)
    assert [text.partition(":")[0] for _, _, text in world.delivered] == ["info     ops load"] * 2


def test_a_dead_channel_is_reported_once_over_a_restart(make_world: MakeWorld) -> None:
    world = make_world(HOOKS + agent(deliver="hook"))
    alert_in_every_run(world)
    world.send = channels_answering({"hook": REFUSED}, [])
    world.run_until("2026-03-02 08:45")
    world.downtime(minutes=1)
    world.run_until("2026-03-02 09:45")
    assert notices(world) == [("opened p1", "other", "delivered")]


def test_a_channel_that_works_for_a_while_and_refuses_a_message_of_the_same_run_again_is_reported_again(
    make_world: MakeWorld,
) -> None:
    hooks = HOOKS + '  third: {kind: webhook, url: "http://127.0.0.1:1/z", allow_private: true}\n'
    jobs = """\
agents:
  ops: {runner: {kind: command, argv: [agent]}, heartbeat: {interval: none, checklist: "- look\\n", deliver: hook, problems: {deliver: other}}}
  web: {runner: {kind: command, argv: [agent]}, heartbeat: {interval: none, checklist: "- look\\n", deliver: hook, problems: {deliver: third}}}
"""
    texts = iter(["disk full", "disk worn out"])
    world = make_world(hooks + jobs, scripts={"ops": lambda _: next(texts), "web": lambda _: "site down"})
    answers, sent = {"hook": REFUSED}, list[tuple[str, str]]()
    world.send = channels_answering(answers, sent)
    world.wake("ops")
    world.run(hours=48)
    answers["hook"] = DeliveryResult("retry", "busy")
    world.wake("web")
    world.run(hours=3)
    del answers["hook"]
    world.wake("ops")
    world.run(minutes=1)
    answers["hook"] = REFUSED
    world.run(hours=4)
    assert [(channel, text.split()[0]) for channel, text in sent if "channel hook" in text] == [
        ("other", "CRITICAL"),
        ("third", "CRITICAL"),
        ("other", "over"),
        ("third", "over"),
        ("third", "CRITICAL"),
    ]


def test_nothing_is_sent_to_a_channel_that_refuses_the_message_about_another_one_at_the_same_time(make_world: MakeWorld) -> None:
    """So many messages wait that some of them are refused only together with the message about the first refusals."""
    names = [f"ops{number}" for number in range(12)]
    ops = '  %s: {runner: {kind: command, argv: [agent]}, heartbeat: {interval: none, checklist: "- look\\n", deliver: hook}}\n'
    world = make_world(
        HOOKS + "agents:\n" + "".join(ops % name for name in names), scripts=dict.fromkeys(names, lambda _: "ALERT: disk full")
    )
    world.send = channels_answering({"hook": DeliveryResult("retry", "busy"), "other": REFUSED}, [])
    for name in names:
        world.wake(name)
    world.run(hours=3)
    assert [(channel, state) for _, channel, state in notices(world)] == [("other", "dead"), ("log", "delivered")]


def test_a_refusal_is_notified_again_once_the_channel_that_lost_its_notification_takes_a_message(make_world: MakeWorld) -> None:
    """All at the same time: other refuses the notification about hook, takes the next message, and then hook refuses again."""
    ops = '  %s: {runner: {kind: command, argv: [agent]}, heartbeat: {interval: none, checklist: "- look\\n", deliver: %s}}\n'
    names = {"first": "hook", "web": "other", "second": "hook"}
    world = make_world(
        HOOKS + "agents:\n" + "".join(ops % each for each in names.items()),
        scripts={name: lambda call: f"ALERT: {call.name}" for name in names},
    )
    world.send = channels_answering({"hook": REFUSED, "other": DeliveryResult("retry", "busy")}, [])
    world.wake("first")
    world.run(minutes=1)
    world.send = lambda _: DeliveryResult("retry", "busy")
    world.wake("web")
    world.wake("second")
    world.run(minutes=1)
    answers = {2: REFUSED, 3: TAKEN, 4: REFUSED}
    world.send = lambda each: answers.get(each.message.id, TAKEN)
    for message in answers:
        world.inbox.submit(VerbRequest(Retry(), message))
    world.run(minutes=1)
    sent = [(channel, state) for notice, channel, state in notices(world) if notice.startswith("opened p1")]
    assert sent == [("other", "dead"), ("other", "delivered")]


def test_recipients_whose_channels_fail_get_the_end_once_in_the_log(make_world: MakeWorld) -> None:
    """Both had been sent the failure. The message to one of them is given up when the end is in the log already."""
    jobs = """\
cron:
  sick: {schedule: "0 8-16 * * *", command: look, deliver: [hook, other]}
  ops: {schedule: "30 8 * * *", command: look, deliver: hook}
  web: {schedule: "30 8 * * *", command: look, deliver: other}
"""
    results = iter([1])
    world = make_world(HOOKS + jobs, scripts={"sick": lambda _: next(results, ""), "ops": lambda _: 1, "web": lambda _: 1})
    late = DeliveryResult("retry", "busy")
    world.send = lambda each: TAKEN if each.channel.name == "hook" else late
    world.run_until("2026-03-02 08:29")
    world.send = lambda each: late if each.message.name == "sick" else REFUSED
    world.run_until("2026-03-02 09:30")
    world.send = lambda _: REFUSED
    world.run_until("2026-03-02 16:30")
    sent = [text.split()[0] for text in notice_texts(world) if "cron/sick" in text]
    assert sent == ["warning", "warning", "over"], notices(world)


def test_a_message_to_a_removed_channel_is_reported_on_another_channel(make_world: MakeWorld) -> None:
    world = make_world(HOOKS + agent(deliver="hook"))
    alert_in_every_run(world)
    world.send = lambda _: DeliveryResult("retry", "down")
    world.run(minutes=3)
    world.send = lambda _: TAKEN
    world.reload(HOOKS.replace("  hook:", "  hook2:") + agent(deliver="other"))
    world.run(minutes=10)
    assert "A message from agent ops was given up." in notice_texts(world)
    assert not any("until hook takes a message" in text for text in notice_texts(world))  # it takes none any more
    assert read_status(world.store.connection, world.clock.now).problems == []  # nothing can end it any more


TELEGRAM = '{{url: "${{TG}}", base_url: "{url}", allow_private: true, prefix: none}}'
DISCORD = '{{url: "${{DC}}", base_url: "{url}", allow_private: true, prefix: none}}'


def world_with_real_channels(make_world: MakeWorld, phone: Telegram, guild: Discord, **keys: str) -> World:
    """A world with local servers for Telegram and Discord behind the real transports."""
    channels = f"channels:\n  phone: {TELEGRAM.format(url=phone.url)}\n  guild: {DISCORD.format(url=guild.url)}\n"
    environ = {"TG": telegram.URL, "DC": discord.URL}
    return make_world(channels + agent(interval="1d", **keys), environ=environ, send=send_by_transport)


def test_after_45_minutes_without_its_channel_an_alert_is_delivered_once(
    make_world: MakeWorld, phone: Telegram, guild: Discord
) -> None:
    world = world_with_real_channels(make_world, phone, guild, deliver="[phone, guild]")
    world.scripts["ops"] = lambda call: "ALERT: the disk is full"
    phone.script = guild.script = [page(502)] * 50
    world.run(minutes=45)
    assert len(phone.requests + guild.requests) < 12
    assert (phone.texts, guild.texts) == ([], [])
    phone.script.clear()
    world.run(hours=3)
    assert (phone.texts, guild.texts) == (["ALERT: the disk is full"], ["ALERT: the disk is full"])
    assert (len(world.calls), notices(world)) == (1, [])


def test_a_permanently_refused_message_is_dead_reported_on_another_channel_and_still_readable(
    make_world: MakeWorld, phone: Telegram, guild: Discord
) -> None:
    world = world_with_real_channels(make_world, phone, guild, deliver="phone")
    world.scripts["ops"] = lambda call: "ALERT: the disk is full"
    phone.script = [refusal(400, "Bad Request: chat not found", status=200)] * 3
    world.run(hours=1)
    row = world.records()[0]
    assert (row["delivery"]["state"], row["text"], len(phone.requests)) == ("dead", "ALERT: the disk is full", 1)
    assert len(guild.texts) == 1
    assert "chat not found" in guild.texts[0]


def test_a_channel_that_takes_no_message_for_an_hour_is_reported_on_another_one_with_reminders(
    make_world: MakeWorld, phone: Telegram, guild: Discord
) -> None:
    world = world_with_real_channels(make_world, phone, guild, deliver="phone")
    world.scripts["ops"] = lambda call: "ALERT: the disk is full"
    phone.script = [page(502)] * 50
    world.run(hours=22)
    states = ["since", "reminder", "reminder", "reminder"]
    assert [re.findall(r"\((since|reminder)", text) for text in guild.texts] == [[state] for state in states]
    assert world.records()[0]["delivery"]["state"] == "pending"
    world.run(hours=1, minutes=59)
    assert world.records()[0]["delivery"]["state"] == "dead"
    assert len(world.calls) == 1


def test_a_message_that_waits_is_reported_although_its_channel_has_taken_another_one_more_than_an_hour_ago(
    make_world: MakeWorld,
) -> None:
    world = make_world(HOOKS + agent(deliver="hook"), send=lambda each: BUSY if each.message.text == "first" else TAKEN)
    world.scripts["ops"] = lambda call: {1: "first", 2: "second"}.get(len(world.calls), "HEARTBEAT_OK")
    world.run(hours=3)
    reported = [f"{at:%H:%M} {text.partition(' (')[0]}" for at, _, text in world.delivered if "undelivered" in text]
    assert reported == ["10:36 CRITICAL channel hook undelivered: busy"]


def test_a_message_does_not_wait_for_longer_because_the_clock_was_set_ahead(make_world: MakeWorld) -> None:
    world = make_world(HOOKS + agent(deliver="hook"), send=lambda each: BUSY if each.message.text == "first" else TAKEN)
    world.scripts["ops"] = lambda call: "first" if len(world.calls) == 1 else "HEARTBEAT_OK"
    world.run(minutes=20)
    world.clock.now += timedelta(hours=3)
    world.run(minutes=50)
    assert not [text for *_, text in world.delivered if "undelivered" in text]
    world.run(hours=2)
    assert len([text for *_, text in world.delivered if "undelivered" in text]) == 1


def test_a_pending_notification_does_not_delay_a_message_on_the_same_channel(make_world: MakeWorld) -> None:
    channels = "channels: {guild: {url: 'discord://42/abc', prefix: none}}\n"
    world = make_world(channels + agent(deliver="guild", retries="0", problems="{after: 1}"))
    world.send = lambda delivery: DeliveryResult("retry", "down") if delivery.message.notice else TAKEN
    world.scripts["ops"] = lambda call: 1 if len(world.calls) == 1 else "x" * 5000
    world.run(minutes=31)
    assert [len(text) for *_, text in world.delivered] == [2000, 2000, 1000]


@pytest.mark.parametrize("trouble", [reset(), page(500), page(429)], ids=["breaks off", "500", "429"])
def test_a_notification_is_retried_like_any_message(make_world: MakeWorld, phone: Telegram, guild: Discord, trouble: Any) -> None:
    world = world_with_real_channels(make_world, phone, guild, deliver="phone", problems="{after: 1}", retries="0")
    world.scripts["ops"] = lambda call: 1
    phone.script = [trouble]
    world.run(hours=2)
    assert [text.splitlines()[0] for text in phone.texts] == [
        "warning  ops failed: exit code 1 (since 2026-03-02 08:00 UTC)   p1"
    ]


def test_an_answer_of_100_kb_is_a_failure_that_is_reported(make_world: MakeWorld, phone: Telegram, guild: Discord) -> None:
    world = world_with_real_channels(make_world, phone, guild, deliver="phone", problems="{after: 1}", retries="0")
    world.scripts["ops"] = lambda call: "ALERT " * 17_000
    world.run(minutes=5)
    assert [text.splitlines()[0] for text in phone.texts] == [
        "warning  ops failed: bad_answer: the answer is larger than 65536 bytes (since 2026-03-02 08:00 UTC)   p1"
    ]


def test_an_error_of_100_kb_is_shortened_in_the_notification(make_world: MakeWorld, phone: Telegram, guild: Discord) -> None:
    world = world_with_real_channels(make_world, phone, guild, deliver="guild", problems="{after: 1}", retries="0")
    world.scripts["ops"] = lambda call: process_result(1, "ä" * 100_000)
    world.run(minutes=5)
    assert [len(text) < 800 for text in guild.texts] == [True]


# --- the settings of problems ------------------------------------------------------------------------------------------

BASE = "channels: {hook: {kind: webhook, url: 'https://example.org/x'}, other: {kind: webhook, url: 'https://example.org/y'}}\n"
OPS = "agents: {ops: {runner: {kind: command, argv: [cat]}, heartbeat: {interval: 30m, %s}}}\n"
JOB = "cron: {nightly: {every: 6h, command: x, %s}}\n"


def test_the_settings_of_problems_are_inherited_merged_and_reset(tmp_path: Path) -> None:
    text = "defaults: {heartbeat: {problems: {remind: 1h, deliver: other}}, cron: {problems: {after: 4}}}\n" + BASE + OPS + JOB
    beat, work = read_both(tmp_path, text % ("deliver: hook, problems: {after: 3}", "deliver: hook"))
    assert (beat.spec.problems_after, beat.spec.problems_remind, beat.problems_deliver) == (3, timedelta(hours=1), ("other",))
    assert (work.spec.problems_after, work.spec.problems_remind, work.problems_deliver) == (4, timedelta(hours=24), ("hook",))
    beat, work = read_both(tmp_path, text % ("problems: {after: none}", "problems: {after: none}"))
    assert (beat.spec.problems_after, work.spec.problems_after) == (0, 0)


def read_both(folder: Path, text: str) -> tuple[Any, Any]:
    from scheduler.work import plan

    return tuple(plan.make_plan(read(folder, text).settings).entries.values())


def test_check_shows_the_effective_settings_of_problems(tmp_path: Path) -> None:
    read(tmp_path, BASE + OPS % "deliver: hook" + JOB % "problems: {after: none}")
    rows = {
        row.key: row.value
        for key in ((Kind.HEARTBEAT, "ops"), (Kind.CRON, "nightly"))
        for row in list_effective_values(tmp_path / "config.yaml", {}, key)
    }
    assert {key: value for key, value in rows.items() if "problems." in key} == {
        "heartbeat.problems.after": "2",
        "heartbeat.problems.remind": "24h",
        "heartbeat.problems.deliver": "[hook]",
        "heartbeat.problems.clear_after": "2",
        "heartbeat.problems.pause_after": "none",
        "problems.after": "none",
        "problems.remind": "24h",
        "problems.deliver": "none",
        "problems.clear_after": "2",
        "problems.pause_after": "none",
    }


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("{after: 0}", "problems.after: 0 is not a number from 1 to 1,000; write 2 or none"),
        ("{remind: 6}", "problems.remind: 6 has no unit; write 90s, 30m or 1h30m"),
        ("{remind: 0s}", "problems.remind: '0s' is zero; write 90s, 30m or 1h30m"),
        ("{deliver: hok}", "problems.deliver: 'hok' is not a declared channel; did you mean hook?"),
        (
            "{deliver: none}",
            "problems.deliver: failures would not be sent to anyone; write after: none if that is intended",
        ),
        ("{delivr: hook}", "problems.delivr: unknown key; did you mean deliver?"),
        ("never", "problems: this must be a map of keys with values; write {after: "),
    ],
)
def test_invalid_settings_of_problems_are_reported(tmp_path: Path, written: str, complaint: str) -> None:
    (beat,) = complaints(tmp_path, BASE + OPS % f"problems: {written}")
    (work,) = complaints(tmp_path, BASE + JOB % f"problems: {written}")
    assert beat.partition("agents.ops.heartbeat.")[2].startswith(complaint)
    assert work.partition("cron.nightly.")[2].startswith(complaint)


def test_a_channel_used_only_for_notifications_needs_its_secret(tmp_path: Path) -> None:
    text = BASE.replace("https://example.org/y", "${HOOK}") + OPS % "deliver: hook, problems: {deliver: other}"
    assert [line.partition(": ")[2] for line in complaints(tmp_path, text)] == [
        "channels.other.url: HOOK is not set; export it before heartbeatd starts, or write it into the env_file"
    ]


# --- failed prechecks of runs that continue ---------------------------------------------------------------------------


def precheck_results(*outputs: object) -> Callable[[object], object]:
    """A precheck with these results in turn that repeats the last one."""
    left = list(outputs)
    return lambda call: left.pop(0) if len(left) > 1 else left[0]


def test_a_precheck_that_always_fails_is_reported_even_if_the_runs_succeed(make_world: MakeWorld) -> None:
    broken = process_result(3, "look: not found")
    world = make_world(agent(precheck="./look.sh"), prechecks={"ops": precheck_results(broken, broken, broken, "2 mails")})
    metrics = Page(world)
    world.run(minutes=95)
    assert [line[12:] for line in world.history()] == ["interval ok heartbeat_ok"] * 4
    assert message_lines(world) == [
        (
            "03-02 08:30 warning  ops precheck: precheck_failed: the precheck failed: exit code 3: look: not found"
            " (2 times in a row since 2026-03-02 08:00 UTC)   p1"
        ),
        "03-02 09:30 over     ops precheck: after 1h30m   p1",
    ]
    assert [row["precheck"]["error"] for row in world.records()] == ["exit code 3: look: not found"] * 3 + [None]
    assert metrics.series("precheck_failures_total") == {"precheck_failures_total{heartbeat,ops}": 3}
    assert world.store.connection.execute("select failures from entry").fetchone()[:] == (0,)
    assert problems.unsettled_problems(world.store.connection) == []


def test_a_failed_precheck_is_logged_with_its_reason(make_world: MakeWorld, caplog: pytest.LogCaptureFixture) -> None:
    world = make_world(agent(precheck="./look.sh"), prechecks={"ops": precheck_results(process_result(3, "look: not found"))})
    world.run(minutes=1)
    journal = EventLog()
    for happened in world.events:
        journal.log_event(happened)
    [line] = [record for record in caplog.records if record.message == "run"]
    assert (line.levelname, vars(line)["fields"]["precheck_problem"]) == ("WARNING", "exit code 3: look: not found")


def test_a_precheck_that_starts_failing_when_the_agent_recovers_is_a_new_problem(make_world: MakeWorld) -> None:
    world = make_world(agent(precheck="./look.sh", retries="0"), prechecks={"ops": precheck_results("1", "1", process_result(3))})
    world.scripts["ops"] = lambda call: process_result(1, "boom") if len(world.calls) < 3 else "HEARTBEAT_OK"
    world.run(minutes=95)
    assert message_lines(world) == [
        "03-02 08:30 warning  ops failed: exit code 1: boom (2 times in a row since 2026-03-02 08:00 UTC)   p1",
        "03-02 09:00 over     ops failed: after 1h   p1",
        (
            "03-02 09:30 warning  ops precheck: precheck_failed: the precheck failed: exit code 3"
            " (2 times in a row since 2026-03-02 09:00 UTC)   p2"
        ),
    ]


def test_a_failed_run_after_a_failed_precheck_is_reported_with_its_own_error(make_world: MakeWorld) -> None:
    world = make_world(agent(precheck="./look.sh", retries="0"), prechecks={"ops": precheck_results(process_result(3))})
    metrics = Page(world)
    world.scripts["ops"] = lambda call: process_result(1, "boom")
    world.run(minutes=31)
    assert message_lines(world) == [
        "03-02 08:30 warning  ops failed: exit code 1: boom (2 times in a row since 2026-03-02 08:00 UTC)   p1"
    ]
    assert metrics.series("precheck_failures_total") == {"precheck_failures_total{heartbeat,ops}": 2}


def test_a_precheck_that_fails_before_an_async_answer_counts_when_it_arrives(make_world: MakeWorld) -> None:
    with Server([gateway.async_answer()] * 4) as server:
        world = make_world(
            f"""
agents:
  ops:
    runner: {{kind: http, url: "{server.url}"}}
    heartbeat: {{interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: log, precheck: ./look.sh}}
""",
            prechecks={"ops": precheck_results(process_result(3, "look: not found"))},
        )
        metrics = Page(world)
        for _ in range(2):
            world.run(minutes=10)
            world.request(VerbRequest(ReportResult(text="HEARTBEAT_OK"), server.requests[-1].json["run"]))
            world.run(minutes=20)
    assert message_lines(world) == [
        (
            "03-02 08:40 warning  ops precheck: precheck_failed: the precheck failed: exit code 3: look: not found"
            " (2 times in a row since 2026-03-02 08:10 UTC)   p1"
        )
    ]
    assert metrics.series("precheck_failures_total") == {"precheck_failures_total{heartbeat,ops}": 3}


def test_the_end_is_sent_if_any_message_about_the_problem_has_arrived(make_world: MakeWorld, tmp_path: Path) -> None:
    """The agent fails from 08:00 on and works at 12:00. Reminders are due every three hours."""
    opened, again, end = "03-02 08:00 warning", "03-02 09:00 warning", "03-02 12:00 over   "
    reminder = "03-02 11:00 warning"
    table = [((), [opened, reminder, end]), ((11,), [opened, end]), ((8,), [again, end])]
    for number, (refused, expected) in enumerate(table):
        (folder := tmp_path / str(number)).mkdir()
        world = make_world(HOOKS + agent(retries="0", interval="1h", deliver="hook", problems="{after: 1, remind: 3h}"), folder)
        world.send = lambda sent, world=world, refused=refused: REFUSED if world.clock.now.hour in refused else TAKEN
        fail_until(world, "2026-03-02 11:59", lambda count: "no")
        fail_until(world, "2026-03-02 13:00", None)
        assert [line[:19] for line in message_lines(world) if "ops failed" in line] == expected, refused

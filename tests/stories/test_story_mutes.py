"""A mute suppresses messages, but not runs. An acknowledged condition causes no message until it gets worse."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from brief import brief
from servers.messages import Models, message, text
from servers.scripted import reply
from test_story_breakers import KEY, fleet
from test_story_notices import process_result
from world import Delayed, MakeWorld, Script, World

from heartbeatd.verbs import Ack, Mute, Unack, Unmute
from scheduler.engine.effects import Sender, VerbRequest
from scheduler.engine.tick_items import Refused
from scheduler.insight.problem_list import list_problems
from scheduler.insight.status_data import read_status
from scheduler.model.events import MuteChanged, ProblemChanged, StaleResultDropped
from scheduler.model.outcome import Kind

OPS = (Kind.HEARTBEAT, "ops")
CONFIG = """\
channels:
  phone: {kind: webhook, url: "http://127.0.0.1:9/phone", allow_private: true}
agents:
  ops:
    runner: {kind: command, argv: [agent]}
    heartbeat: {interval: 1h, stagger: 0s, checklist: "- look\\n", deliver: phone, retries: 0, problems: {after: 1, remind: 6h}}
cron:
  backup: {every: 1h, command: backup, deliver: phone, retries: 0, problems: {after: 1}}
"""


def answers(*texts: Any) -> Script:
    """Gives these answers, one per call, and the last one from then on."""
    given: Iterator[Any] = iter(texts)
    return lambda _: next(given, texts[-1])


def begin(make_world: MakeWorld, *texts: Any) -> World:
    """A world in which the agent has given its first answer."""
    world = make_world(CONFIG.partition("cron:")[0], scripts={"ops": answers(*texts)})
    world.run(minutes=30)
    return world


def mute(world: World, hours: float | None = None, *, until_changed: bool = False, key: Any = OPS) -> None:
    until = None if hours is None else world.clock.now + timedelta(hours=hours)
    world.request(VerbRequest(Mute.of(until=until, until_changed=until_changed), key))


def sent(world: World) -> list[str]:
    return [brief(text) for _, _, text in world.delivered]


def shown(world: World, name: str = "ops") -> Any:
    """The mute of an entry as `status` shows it."""
    entries = read_status(world.store.connection, world.clock.now).as_data()["entries"]
    return next(each["muted"] for each in entries if each["name"] == name)


# --- mute ---------------------------------------------------------------------------------------------------------------


def test_a_mute_holds_back_messages_and_not_runs(make_world: MakeWorld) -> None:
    world = begin(make_world, "HEARTBEAT_OK", "[disk] 92 %", "[disk] 93 %", "[disk] 94 %", "[disk] 95 %")
    mute(world, hours=2.75)
    world.run(hours=3)
    assert (sent(world), len(world.calls)) == ([], 4)
    assert [line[12:] for line in world.history()] == [
        "interval ok heartbeat_ok",
        "interval alert muted",
        "interval alert muted",
        "interval alert muted",
    ]


def test_a_problem_that_is_still_open_is_reported_with_the_first_run_after_the_mute(make_world: MakeWorld) -> None:
    world = begin(make_world, "HEARTBEAT_OK", "[disk] 92 %", "[disk] 93 %")
    mute(world, hours=1.75)
    world.run(hours=3)
    assert sent(world) == ["[disk] 93 %"]


def test_a_problem_that_was_over_before_the_end_of_the_mute_is_never_reported(make_world: MakeWorld) -> None:
    world = begin(make_world, "HEARTBEAT_OK", "[disk] 92 %", "[disk] resolved", "HEARTBEAT_OK")
    mute(world, hours=2.75)
    world.run(hours=6)
    assert sent(world) == []


def test_the_end_of_a_reported_problem_is_reported_after_the_mute(make_world: MakeWorld) -> None:
    world = begin(make_world, "[disk] 92 %", "[disk] resolved: 80 %", "HEARTBEAT_OK")
    mute(world, hours=2.75)
    world.run(hours=6)
    assert sent(world) == ["[disk] 92 %", "[disk] over after 1h: 80 %"]


def test_the_end_of_a_reported_problem_that_became_unstable_within_the_mute_is_reported(make_world: MakeWorld) -> None:
    changes = ["[link] down", "[link] resolved: up"] * 3
    world = begin(make_world, *changes, "HEARTBEAT_OK")
    mute(world, hours=5.75)
    world.run(hours=40)
    assert sent(world) == ["[link] down", "[link] over after 1h: up"]


def test_a_plain_alert_within_the_mute_is_on_record_and_is_not_sent_later(make_world: MakeWorld) -> None:
    world = begin(make_world, "HEARTBEAT_OK", "The disk is full.", "HEARTBEAT_OK")
    mute(world, hours=1)
    world.run(hours=4)
    assert (sent(world), world.records("ops")[1]["text"]) == ([], "The disk is full.")


def test_the_same_plain_alert_after_the_mute_is_sent(make_world: MakeWorld) -> None:
    world = begin(make_world, "HEARTBEAT_OK", "The disk is full.")
    mute(world, hours=1)
    world.run(hours=4)
    assert sent(world) == ["The disk is full."]


def test_a_failed_run_shows_its_error_as_why_and_that_it_is_muted_as_the_state_of_its_messages(make_world: MakeWorld) -> None:
    answer = {"findings": [{"key": "disk", "text": "92 %"}], "failed": "no network"}
    world = begin(make_world, "HEARTBEAT_OK", json.dumps(answer), "[disk] 92 %")
    mute(world, hours=3)
    world.run(hours=2)
    assert [(row["result"], row["why"], row["delivery"]["state"]) for row in world.records()[1:]] == [
        ("failed", "reported_failure", "muted"),
        ("alert", "muted", "muted"),
    ]
    assert [row["id"] for word in ("reported_failure", "muted") for row in world.records(why=word)] == [2, 3]


def test_unmute_ends_a_mute_and_answers_how_much_was_held_back(make_world: MakeWorld) -> None:
    world = begin(make_world, "[disk] 92 %", "[disk] 93 %", "[mail] 4 letters")
    mute(world)
    world.run(hours=3)
    assert world.request(VerbRequest(Unmute(), OPS)).held == 2
    assert not world.request(VerbRequest(Unmute(), OPS)).was_muted
    mute(world)
    assert world.request(VerbRequest(Unmute(), OPS)).held == 0, "another mute counts anew"
    world.run(hours=1)
    over = "[disk] over after 3h, no longer mentioned"
    assert [sorted(text.splitlines()) for text in sent(world)] == [["[disk] 92 %"], [over, "[mail] 4 letters"]]


def test_a_recovery_within_a_mute_is_not_counted_as_a_suppressed_message(make_world: MakeWorld) -> None:
    world = begin(make_world, 3, "HEARTBEAT_OK")
    mute(world)
    world.run(hours=2)
    assert world.request(VerbRequest(Unmute(), OPS)).held == 0


def test_a_mute_until_something_changes_lasts_while_a_text_that_is_never_a_duplicate_comes_again(make_world: MakeWorld) -> None:
    world = make_world(
        CONFIG.partition("cron:")[0].replace("retries: 0,", "retries: 0, dedup: {window: 0s},"),
        scripts={"ops": answers("The disk is full.")},
    )
    world.run(minutes=90)
    mute(world, until_changed=True)
    world.run(hours=3)
    assert sent(world) == ["The disk is full."] * 2


def test_a_mute_until_something_changes_knows_all_texts_of_late(make_world: MakeWorld) -> None:
    disk, mail = "The disk is full.", "The mail is late."
    world = begin(make_world, disk, mail, "The cert ends.", mail, disk, "The zone is old.")
    world.run(hours=2)
    mute(world, until_changed=True)
    world.run(hours=2)
    assert shown(world) is not None
    world.run(hours=1)
    assert (shown(world), sent(world)[-1]) == (None, "The zone is old.")


def test_a_second_mute_counts_on_from_the_runs_of_the_first(make_world: MakeWorld) -> None:
    world = begin(make_world, "[disk] 92 %", "[mail] 4 letters", "[mail] 5 letters", "[cert] ends")
    mute(world, hours=10)
    world.run(hours=1)
    mute(world)
    world.run(hours=2)
    assert world.request(VerbRequest(Unmute(), OPS)).held == 3
    mute(world, hours=0.25)
    world.run(minutes=20)
    mute(world)
    assert world.request(VerbRequest(Unmute(), OPS)).held == 0, "the one before was over"


def test_a_mute_survives_a_restart(make_world: MakeWorld) -> None:
    world = begin(make_world, "HEARTBEAT_OK", "[disk] 92 %")
    mute(world, hours=8)
    world.downtime(minutes=5)
    world.run(hours=3)
    assert sent(world) == []


def test_status_shows_a_mute_until_it_is_over(make_world: MakeWorld) -> None:
    world = begin(make_world, "HEARTBEAT_OK", "[disk] 92 %", "[mail] 4 letters")
    assert shown(world) is None
    mute(world, hours=2.75)
    world.run(hours=2)
    expected = {
        "since": "2026-03-02T08:30:00Z",
        "by": "command",
        "until": "2026-03-02T11:15:00Z",
        "until_changed": False,
        "held": 2,
    }
    assert shown(world) == expected | {"says": "muted by command until 11:15"}
    world.run(minutes=50)
    assert shown(world) is None


def test_the_log_has_who_muted_and_until_when(make_world: MakeWorld) -> None:
    world = begin(make_world, "HEARTBEAT_OK")
    until = world.clock.now + timedelta(hours=1)
    mute(world, hours=1)
    world.request(VerbRequest(Unmute(), OPS, Sender("bot")))
    assert world.events_of(MuteChanged) == [
        MuteChanged(Kind.HEARTBEAT, "ops", True, "command", until),
        MuteChanged(Kind.HEARTBEAT, "ops", False, "bot", None),
    ]


# --- failures -----------------------------------------------------------------------------------------------------------


def test_a_failure_within_the_mute_is_reported_after_it_if_it_lasts(make_world: MakeWorld) -> None:
    world = begin(make_world, "HEARTBEAT_OK", 3)
    mute(world, hours=1.75)
    world.run(hours=1, minutes=45)
    assert sent(world) == []
    world.run(hours=1)
    assert [text.splitlines()[0] for text in sent(world)] == [
        "warning  ops failed: exit code 3 (3 times in a row since 2026-03-02 09:00 UTC)   p1"
    ]


def test_a_failure_that_is_over_before_the_end_of_the_mute_is_never_reported(make_world: MakeWorld) -> None:
    world = begin(make_world, "HEARTBEAT_OK", 3, "HEARTBEAT_OK")
    mute(world, hours=3)
    world.run(hours=6)
    assert sent(world) == []


def test_the_recovery_from_a_reported_failure_is_reported_after_the_mute(make_world: MakeWorld) -> None:
    world = begin(make_world, 3, "HEARTBEAT_OK")
    mute(world, hours=2)
    world.run(hours=4)
    assert [text.splitlines()[0] for text in sent(world)] == [
        "warning  ops failed: exit code 3 (since 2026-03-02 08:00 UTC)   p1",
        "over     ops failed: after 1h   p1",
    ]


def test_the_recovery_is_reported_after_a_second_mute_that_replaced_the_first(make_world: MakeWorld) -> None:
    world = begin(make_world, 3, "HEARTBEAT_OK")
    mute(world, hours=2)
    world.run(hours=1)
    mute(world, hours=3)
    world.run(hours=5)
    assert sent(world)[1:] == ["over     ops failed: after 1h   p1\nIt was: exit code 3"]


def test_the_output_and_the_failures_of_a_muted_job_are_held_back(make_world: MakeWorld) -> None:
    world = make_world(CONFIG, scripts={"backup": answers("done", 3, "done")})
    mute(world, hours=4, key=(Kind.CRON, "backup"))
    world.run(hours=3)
    assert (sent(world), len([call for call in world.calls if call.name == "backup"])) == ([], 3)
    assert [row["why"] for row in world.records("backup")] == ["muted", "exit", "muted"]


# --- a job and the agent that it wakes -----------------------------------------------------------------------------------

JOB = """\
cron:
  backup: {every: 1h, command: backup, deliver: phone, retries: 0, problems: {after: 1}, wake_heartbeat: ops, wake_on: failure}
"""


def test_a_job_reports_its_own_failure_while_the_agent_that_would_report_it_is_muted(make_world: MakeWorld) -> None:
    scripts = {"ops": answers("HEARTBEAT_OK", "[job:backup] the backup failed"), "backup": answers(3)}
    world = make_world(CONFIG.partition("cron:")[0] + JOB, scripts=scripts)
    world.run(minutes=30)
    mute(world, hours=2)
    world.run(hours=1)
    assert [text.splitlines()[0] for text in sent(world)] == [
        "warning  cron/backup failed: exit code 3 (since 2026-03-02 09:00 UTC)   p2"
    ]


def test_the_end_of_a_job_is_sent_once_while_the_agent_that_reported_it_is_muted(make_world: MakeWorld) -> None:
    scripts = {"ops": answers("HEARTBEAT_OK", "[job:backup] the backup failed"), "backup": answers(3, "done", "done")}
    world = make_world(CONFIG.partition("cron:")[0] + JOB, scripts=scripts)
    world.run(hours=1, minutes=30)
    assert sent(world) == ["[job:backup] the backup failed"]
    scripts["ops"] = answers("HEARTBEAT_OK")
    mute(world, hours=1)
    world.run(hours=2)
    assert [text for text in sent(world)[1:] if text != "done"] == [
        "over     cron/backup failed: after 1h   p2\nIt was: exit code 3"
    ]


# --- until something changes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "same", "other"),
    [
        ("[disk] 92 %", "[disk] 93 %", "[disk] 94 %\n[mail] 4 letters"),
        ("[disk] 92 %", "[disk] 93 %", "[disk!] 97 %"),
        ("[disk] 92 %", "[disk] 93 %", "[disk] resolved"),
        ("The disk is full.", "The disk is full.", "The mail is full."),
        ("HEARTBEAT_OK", "HEARTBEAT_OK", 3),
        (3, 3, "HEARTBEAT_OK"),
    ],
)
def test_a_mute_until_something_changes_ends_at_the_first_change(
    make_world: MakeWorld, first: Any, same: Any, other: Any
) -> None:
    world = begin(make_world, first, same, same, other)
    before = len(sent(world))
    mute(world, until_changed=True)
    world.run(hours=2)
    assert (len(sent(world)), shown(world)["until_changed"]) == (before, True)
    world.run(hours=1)
    assert (len(sent(world)), shown(world)) == (before + 1, None)


OK, NO_WORK, TIMED_OUT = "HEARTBEAT_OK", "NO_WORK", replace(process_result(1), ended_by="timeout")
FAILING_SKIPS = [  # more keys, the results of the precheck and of the agent, and at each hour whether the mute lasts
    ("precheck: {command: look, on_error: skip}", ["mail", "mail", 3], [OK], [True, False]),
    ("precheck: {command: look, on_error: run}", ["mail", "mail", 3], [OK], [True, False]),
    ("precheck: {command: look, on_error: skip}", [3, 3, NO_WORK], [OK], [True, False]),
    ("precheck: {command: look, on_error: run}", [3, 3, "mail"], [OK], [True, False]),
    ("precheck: {command: look, on_error: run}", [3, 3, NO_WORK], [OK], [True, False]),
    ("budget: {runs_per_day: 2}", [], [OK], [True, False]),
    ("budget: {runs_per_day: 2}", [], [3], [True, False]),
    ("problems: {after: 2}", [], [OK, 3, OK, 3, 3], [True, True, True, False]),
    ("problems: {after: 3}", [], [3, TIMED_OUT, OK], [True, False]),
    ("problems: {after: none}", [], [OK, 3, OK, 3, "new"], [True, True, True, False]),
    ("problems: {after: none}, budget: {runs_per_day: 2}", [], [OK], [True, True, True]),
    ("problems: {after: none}, precheck: {command: look, on_error: run}", ["mail", 3], [OK], [True, True]),
]


def test_a_mute_until_something_changes_ends_by_every_failure_that_is_reported(make_world: MakeWorld, tmp_path: Path) -> None:
    for number, (keys, checked, said, lasts) in enumerate(FAILING_SKIPS):
        before = "problems: {after: 1, remind: 6h}"
        own = keys if "problems" in keys else f"{before}, {keys}"
        (folder := tmp_path / str(number)).mkdir()
        world = make_world(CONFIG.partition("cron:")[0].replace(before, own), folder, scripts={"ops": answers(*said)})
        world.prechecks["ops"] = answers(*checked or [OK])
        world.run(minutes=30)
        mute(world, until_changed=True)
        found = []
        for _ in lasts:
            world.run(hours=1)
            found.append(shown(world) is not None)
        assert found == lasts, (keys, world.history())


def test_a_failure_that_was_over_when_the_mute_began_is_news_when_it_comes_back(make_world: MakeWorld) -> None:
    """Another problem is open during the mute: the precheck fails all the time."""
    yaml = CONFIG.partition("cron:")[0].replace("retries: 0", "retries: 0, precheck: {command: look, on_error: run}")
    world = make_world(yaml, scripts={"ops": answers(3, OK, 3)}, prechecks={"ops": answers(3)})
    world.run(hours=1, minutes=30)
    mute(world, until_changed=True)
    world.run(hours=1)
    assert shown(world) is None
    assert sent(world)[-1].startswith("warning  ops failed")


def test_a_result_of_a_lost_claim_does_not_end_a_mute(make_world: MakeWorld) -> None:
    world = begin(make_world, "HEARTBEAT_OK", Delayed("[disk] 92 %", timedelta(seconds=10)))
    mute(world, until_changed=True)
    world.run(minutes=30, seconds=5)
    with world.store.transaction() as db:
        db.execute("update run set fence = fence + 1")
    world.run(minutes=1)
    assert world.events_of(StaleResultDropped)
    assert [event.muted for event in world.events_of(MuteChanged)] == [True]
    assert shown(world)


def test_reminders_do_not_end_a_mute_until_something_changes(make_world: MakeWorld) -> None:
    world = begin(make_world, "[disk!] 97 %")
    mute(world, until_changed=True)
    world.run(hours=30)
    assert len(sent(world)) == 1


# --- acknowledge --------------------------------------------------------------------------------------------------------


def test_an_acknowledged_problem_gets_no_reminder(make_world: MakeWorld) -> None:
    world = begin(make_world, "[disk!] 97 %", "[disk!] 98 %")
    assert world.request(VerbRequest(Ack(), world.problem("disk").id)).key == "disk"
    world.run(hours=30)
    assert sent(world) == ["[disk] CRITICAL: 97 %"]
    assert world.events_of(ProblemChanged) == [ProblemChanged("p1", "agent/ops", "disk", "acknowledged", "command")]


def test_an_acknowledged_problem_that_gets_worse_is_reported(make_world: MakeWorld) -> None:
    world = begin(make_world, "[disk] 92 %", "[disk] 93 %", "[disk!] 97 %")
    world.request(VerbRequest(Ack(), world.problem("disk").id))
    world.run(hours=10)
    assert sent(world)[:2] == ["[disk] 92 %", "[disk] CRITICAL, was warning: 97 %"]
    assert sent(world)[2].startswith("[disk] CRITICAL, reminder")


def test_the_end_of_an_acknowledged_problem_is_reported_and_a_new_opening_too(make_world: MakeWorld) -> None:
    world = begin(make_world, "[disk] 92 %", "[disk] resolved: 80 %", "[disk] 92 %")
    world.request(VerbRequest(Ack(), world.problem("disk").id))
    world.run(hours=3)
    assert sent(world) == ["[disk] 92 %", "[disk] over after 1h: 80 %", "[disk] 92 %"]


def test_a_problem_gets_reminders_again_when_its_acknowledgement_is_taken_back(make_world: MakeWorld) -> None:
    world = begin(make_world, "[disk!] 97 %", "[disk!] 98 %")
    world.request(VerbRequest(Ack(), world.problem("disk").id))
    world.run(hours=30)
    assert world.request(VerbRequest(Unack(), world.problem("disk").id)).key == "disk"
    with pytest.raises(Refused, match="problem p1 was not acknowledged"):
        world.request(VerbRequest(Unack(), 1))
    world.run(hours=1)
    assert len(sent(world)) == 2
    assert sent(world)[1].startswith("[disk] CRITICAL, reminder")
    assert [event.change for event in world.events_of(ProblemChanged)] == ["acknowledged", "unacknowledged"]


def test_only_open_problems_can_be_acknowledged(make_world: MakeWorld) -> None:
    world = begin(make_world, "[disk] 92 %", "[disk] resolved")
    with pytest.raises(Refused, match="no problem p7"):
        world.request(VerbRequest(Ack(), 7))
    world.run(hours=1)
    with pytest.raises(Refused, match="is over already"):
        world.request(VerbRequest(Ack(), 1))


def test_an_acknowledged_failure_gets_no_reminder(make_world: MakeWorld) -> None:
    replies = iter([1] * 200)
    world = begin(make_world, "HEARTBEAT_OK")
    world.scripts["ops"] = lambda _: next(replies, "HEARTBEAT_OK")
    world.run(hours=3)
    world.request(VerbRequest(Ack(), world.problem("failed").id))
    world.run(hours=40)
    assert [text.partition(" (")[0] for text in sent(world)] == ["warning  ops failed: exit code 1"]


def test_a_mute_until_something_changes_lasts_while_two_problems_do_and_ends_when_one_of_them_is_over(
    make_world: MakeWorld,
) -> None:
    cut = reply(message(text("HEARTBEAT_OK and more"), stop_reason="max_tokens"))
    with Models(lambda request: cut) as server:
        yaml = fleet(server.url, "ops", ops="precheck: {command: look, on_error: run}, problems: {after: 1}")
        world = make_world(yaml, environ={"KEY": KEY}, prechecks={"ops": lambda call: 1})
        world.run(minutes=10)
        mute(world, until_changed=True)
        world.run(hours=2)
        assert [event.muted for event in world.events_of(MuteChanged)] == [True]
        world.prechecks["ops"] = lambda call: "a mail"
        world.run(hours=1)
    assert [event.muted for event in world.events_of(MuteChanged)] == [True, False]


def test_problems_that_compare_equal_stay_in_the_order_of_their_numbers(make_world: MakeWorld) -> None:
    world = begin(make_world, "[disk:/var] 92 %\n[mail] late\n[zone] old")
    world.request(VerbRequest(Ack(), 1))
    assert [each.number for each in list_problems(world.store.connection, world.clock.now)] == ["p1", "p2", "p3"]

"""An agent reports problems with keys: each is sent once when it opens, gets worse, lasts long, or is over."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import timedelta
from itertools import islice, product
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import pytest
from brief import brief
from servers.scripted import Server
from test_story_explain import explained_entry
from test_story_models import decides
from world import AgentCall, MakeWorld, Script, World

from heartbeat.findings import Severity
from scheduler.engine.delivery import Delivery
from scheduler.model.message import DeliveryResult
from scheduler.store import problems


def config(channels: str = "phone", jobs: str = "", **keys: str) -> str:
    """An agent that runs every 15 minutes and reports to these channels."""
    beat = {"interval": "15m", "stagger": "0s", "checklist": '"- look\\n"', "deliver": f"[{channels}]", **keys}
    urls = "".join(
        f'  {name}: {{kind: webhook, url: "http://127.0.0.1:9/{name}", allow_private: true}}\n' for name in ("phone", "pager")
    )
    lines = ", ".join(f"{key}: {value}" for key, value in beat.items())
    return f"channels:\n{urls}agents:\n  ops:\n    runner: {{kind: command, argv: [agent]}}\n    heartbeat: {{{lines}}}\n{jobs}"


def answers(*texts: str) -> dict[str, Script]:
    """An agent that gives these answers, one per call, and the last one from then on."""
    given: Iterator[str] = iter(texts)
    return {"ops": lambda _: next(given, texts[-1])}


def outputs(*texts: str) -> dict[str, Script]:
    """A precheck with these outputs, one per run, and the last one from then on."""
    return answers(*texts)


def sent(world: World) -> list[str]:
    return [brief(text) for _, _, text in world.delivered]


def effects(world: World) -> list[list[str]]:
    """What happened to the findings of each run."""
    return [[f"{found['key']} {found['effect']}" for found in run["findings"]] for run in world.records("ops")]


PRECHECK = "{command: ./check.sh, unchanged: skip}"
CUT = json.dumps({"text": "[disk] the disk /var is nea", "truncated": True})


# --- open, worse, over --------------------------------------------------------------------------------------------------


def test_a_problem_with_changing_words_and_figures_is_sent_once(make_world: MakeWorld) -> None:
    world = make_world(config(), scripts=answers("[disk:/var] 92 % full", "[disk:/var] 93 % full", "[Disk: /VAR] it is 94 % now"))
    world.run(hours=2)
    assert sent(world) == ["[disk:/var] 92 % full"]
    assert {line.partition("alert ")[2] for line in world.history()[1:]} == {"duplicate"}


def test_a_rise_of_the_severity_and_the_end_are_sent(make_world: MakeWorld) -> None:
    world = make_world(
        config(),
        scripts=answers("[disk] 92 %", "[disk] 93 %", "[disk] 94 %", "[disk!] 97 %", "[disk] resolved: 80 %", "HEARTBEAT_OK"),
    )
    world.run(hours=3)
    assert sent(world) == ["[disk] 92 %", "[disk] CRITICAL, was warning: 97 %", "[disk] over after 1h: 80 %"]


def test_a_fall_of_the_severity_and_a_second_rise_are_no_news(make_world: MakeWorld) -> None:
    world = make_world(config(), scripts=answers("[disk!] 97 %", "[disk] 92 %", "[disk!] 98 %"))
    world.run(minutes=20)
    assert world.problem("disk").found.severity is Severity.WARNING
    world.run(minutes=40)
    assert sent(world) == ["[disk] CRITICAL: 97 %"]


def test_a_rise_is_sent_again_after_an_end(make_world: MakeWorld) -> None:
    """What a recipient knew of before the end does not count."""
    world = make_world(config(), scripts=answers("[disk!] 97 %", "[disk] resolved", "[disk] 92 %", "[disk!] 98 %"))
    world.run(minutes=50)
    assert [line.split(":")[0] for line in sent(world)] == [
        "[disk] CRITICAL", "[disk] over after 15m", "[disk] 92 %", "[disk] CRITICAL, was warning",
    ]  # fmt: skip


def test_a_finding_without_a_text_leaves_the_text_of_its_problem(make_world: MakeWorld) -> None:
    world = make_world(config(), scripts=answers("[disk] 92 %", "[disk]", "HEARTBEAT_OK"))
    world.run(hours=1)
    assert [text.splitlines()[-1] for _, _, text in world.delivered][1:] == ["It was: 92 %"]


def test_only_answers_to_wakes_of_the_same_sender_end_what_came_with_a_wake(make_world: MakeWorld) -> None:
    found = iter(["[queue] 40 wait"])
    world = make_world(config(interval="1d"), scripts={"ops": lambda _: next(found, "HEARTBEAT_OK")})
    for sender, is_open in (("shop", True), ("bank", True), ("bank", True), ("bank", True), ("shop", True), ("shop", False)):
        world.wake("ops", "look at the queue", sender=sender)
        world.run(minutes=30)
        assert world.problem("queue").is_open is is_open, sender
    assert len(world.calls) == 6


def test_a_problem_that_the_last_answer_does_not_mention_gets_no_reminder(make_world: MakeWorld) -> None:
    """It would be due at 09:00."""
    keys = {"problems": "{remind: 1h, clear_after: 3}", "interval": "30m"}
    world = make_world(config(**keys), scripts=answers("[disk] 92 %", "[disk] 93 %", "HEARTBEAT_OK"))
    world.run(hours=2, minutes=10)
    assert [line.split(":")[0] for line in sent(world)] == ["[disk] 92 %", "[disk] over after 2h, no longer mentioned"]


def test_a_problem_that_two_answers_do_not_mention_is_over(make_world: MakeWorld) -> None:
    world = make_world(config(), scripts=answers("[disk] 92 %", "HEARTBEAT_OK", "[disk] 92 %", "HEARTBEAT_OK"))
    world.run(hours=2)
    assert sent(world) == ["[disk] 92 %", "[disk] over after 1h, no longer mentioned"]


def test_a_failed_run_does_not_count_as_an_answer_without_the_problem(make_world: MakeWorld) -> None:
    replies: Iterator[Any] = iter(["[disk] 92 %", "HEARTBEAT_OK", 1, 1, 1, 1, "[disk] 92 %"])
    world = make_world(config(retries="0", problems="{after: none}"), scripts={"ops": lambda _: next(replies, "[disk] 92 %")})
    world.run(hours=3)
    assert sent(world) == ["[disk] 92 %"]


@pytest.mark.parametrize("answer", ["HEARTBEAT_OK", ""])
def test_a_quiet_answer_that_ends_a_problem_is_not_recorded_as_suppressed(make_world: MakeWorld, answer: str) -> None:
    world = make_world(config(problems="{clear_after: 1}"), scripts=answers("[disk] 92 %", answer))
    world.run(minutes=40)
    assert len(sent(world)) == 2
    assert world.history()[1] == "03-02 08:15 interval ok"


def test_a_second_finding_beside_an_open_problem_is_sent_alone(make_world: MakeWorld) -> None:
    world = make_world(config(), scripts=answers("[disk] 92 %", "[disk] 93 %\n[mail] 40 wait"))
    world.run(hours=1)
    assert sent(world) == ["[disk] 92 %", "[mail] 40 wait"]


def test_a_duplicate_repeats_the_messages_about_what_it_mentions_and_no_others(make_world: MakeWorld) -> None:
    world = make_world(config(), scripts=answers("[disk] 92 %", "[disk] 92 %\n[load] 17", "[disk] 93 %"))
    world.run(minutes=45)
    first, second, third = world.records()[:3]
    assert [row["repeats"] for row in (first, second, third)] == [[], [], [first["id"]]]


def test_a_duplicate_repeats_the_messages_to_each_of_its_recipients(make_world: MakeWorld) -> None:
    world = make_world(config("phone"), scripts=answers("[disk] 92 %"))
    world.run(minutes=10)
    world.reload(config("phone, pager"))
    world.run(minutes=25)
    first, second, third = world.records()
    assert sorted(third["repeats"]) == [first["id"], second["id"]]


@pytest.mark.parametrize(("key", "news"), [(10, 0), (9, 1)])
def test_an_agent_that_changes_its_keys_again_and_again_is_known_by_the_latest_ones(
    make_world: MakeWorld, key: int, news: int
) -> None:
    """The last answer has one of them and another text. 20 keys are remembered besides the first one."""
    found = [f"[disk{'x' * number}] the volume /var fills up quickly" for number in range(30)]
    world = make_world(config(), scripts=answers(*found, f"[disk{'x' * key}] 97 %"))
    world.run(minutes=30 * 15 + 5)
    assert sent(world) == ["[disk] the volume /var fills up quickly", f"[disk{'x' * key}] 97 %"][: 1 + news]


def test_a_problem_without_a_line_is_over_after_prechecks_without_work(make_world: MakeWorld) -> None:
    found = iter(["the mail has arrived"])
    world = make_world(
        config(precheck=PRECHECK), scripts=answers("[disk] 92 %"), prechecks={"ops": lambda _: next(found, "NO_WORK")}
    )
    world.run(minutes=25)
    assert world.problem("disk").is_open
    world.run(minutes=15)
    assert not world.problem("disk").is_open


def test_an_answer_that_was_cut_does_not_end_what_it_does_not_mention(make_world: MakeWorld) -> None:
    cut = json.dumps({"text": "HEARTBEAT_OK, the mail", "truncated": True})
    world = make_world(config(retries="0", problems="{clear_after: 1}"), scripts=answers("[disk] 92 %", cut, cut, "HEARTBEAT_OK"))
    world.run(minutes=40)
    assert world.problem("disk").is_open
    world.run(minutes=15)
    assert not world.problem("disk").is_open


@pytest.mark.parametrize(("others", "is_open"), [(199, False), (200, True)])
def test_a_line_that_may_be_behind_the_last_compared_one_is_not_gone(make_world: MakeWorld, others: int, is_open: bool) -> None:
    more = "\n".join(f"host{chr(97 + number % 26)}{number // 26} is well" for number in range(others))
    found = iter(["the disk is full"])
    world = make_world(
        config(precheck="{command: ./check.sh}"), scripts=answers("[disk] the disk is full", "HEARTBEAT_OK"),
        prechecks={"ops": lambda _: next(found, more)},
    )  # fmt: skip
    world.run(minutes=40)
    assert world.problem("disk").is_open is is_open


def test_several_findings_are_one_message_with_the_worst_first(make_world: MakeWorld) -> None:
    world = make_world(config(), scripts=answers("[load] 9\n[disk!] 97 %"))
    world.run(minutes=20)
    assert sent(world) == ["[disk] CRITICAL: 97 %\n[load] 9"]


def test_of_two_ends_in_one_message_that_of_the_problem_that_was_worse_is_the_first(make_world: MakeWorld) -> None:
    agent = answers("[cpu] hot\n[disk!] 97 %", "[cpu] hot\n[disk] 92 %", "[cpu] resolved\n[disk] resolved", "HEARTBEAT_OK")
    world = make_world(config(), scripts=agent)
    world.run(minutes=50)
    assert sent(world)[1:] == ["[disk] over after 30m\n[cpu] over after 30m"]


def test_a_problem_that_opens_again_later_is_sent_again(make_world: MakeWorld) -> None:
    """The message about the end has the old text, because the answer gives none, and says so."""
    world = make_world(config(), scripts=answers("[disk] 92 %", "[disk] resolved", "HEARTBEAT_OK", "[disk] 95 %"))
    world.run(hours=2)
    assert sent(world) == ["[disk] 92 %", "[disk] over after 15m", "[disk] 95 %"]


def test_nothing_is_sent_without_show_alerts_and_all_open_problems_once_it_is_set(make_world: MakeWorld) -> None:
    hidden = config(show_alerts="false", show_ok="true")
    world = make_world(hidden, scripts=answers("[disk] 92 %"))
    world.run(minutes=40)
    assert sent(world) == []
    world.reload(config())
    world.run(minutes=20)
    assert sent(world) == ["[disk] 92 %"]
    world.reload(hidden)
    world.scripts = answers("HEARTBEAT_OK")
    world.run(hours=1)
    assert not world.problem("disk").is_open
    assert [line for line in sent(world) if "disk" in line] == ["[disk] 92 %"]


def test_text_around_the_findings_is_sent_only_with_news(make_world: MakeWorld) -> None:
    world = make_world(config(), scripts=answers("I looked.\n\n[disk] 92 %", "I looked twice.\n\n[disk] 93 %"))
    world.run(hours=1)
    assert sent(world) == ["I looked.\n[disk] 92 %"]


def test_text_that_begins_with_an_alarm_is_sent_beside_known_problems(make_world: MakeWorld) -> None:
    world = make_world(config(), scripts=answers("[disk] 92 %", "ALERT the site is down\n\n[disk] 93 %"))
    world.run(hours=1)
    assert sent(world) == ["[disk] 92 %", "ALERT the site is down"]
    first, second, third, *_ = world.records()
    assert sorted(third["repeats"]) == [first["id"], second["id"]]


def test_an_answer_as_json_has_findings(make_world: MakeWorld) -> None:
    finding = {"key": "disk", "text": "92 %", "severity": "critical", "resolved": False}
    world = make_world(config(), scripts=answers(json.dumps({"findings": [finding]})))
    world.run(hours=1)
    assert sent(world) == ["[disk] CRITICAL: 92 %"]


# --- reminders ----------------------------------------------------------------------------------------------------------


def test_an_open_problem_is_sent_again_after_a_day_and_a_critical_one_after_six_hours(make_world: MakeWorld) -> None:
    world = make_world(config(), scripts=answers("[load] 9\n[disk!] 97 %"))
    world.run(hours=25)
    reminders = sent(world)[1:]
    assert [text.count("reminder") for text in reminders] == [1, 1, 1, 2]
    assert reminders[0] == "[disk] CRITICAL, reminder: 97 %"


def test_a_reminder_needs_no_agent_call(make_world: MakeWorld) -> None:
    world = make_world(config(precheck=PRECHECK), scripts=answers("[disk] 92 %"), prechecks=outputs("disk /var is full"))
    world.run(hours=25)
    assert len(world.calls) == 1
    assert sent(world) == ["[disk] 92 %", "[disk] reminder: 92 %"]


def test_no_reminder_is_queued_while_the_first_message_is_pending(make_world: MakeWorld) -> None:
    world = make_world(config(), scripts=answers("[disk!] 97 %"), send=lambda _: DeliveryResult("retry", error="HTTP 500"))
    world.run(hours=13)
    assert world.store.connection.execute("select count(*) from outbox where notice is null").fetchone()[0] == 1


def test_no_reminder_is_queued_beside_a_report_that_waits_for_a_decision_of_a_user(make_world: MakeWorld) -> None:
    yaml = config().replace("allow_private: true", "allow_private: true, uncertain: hold")
    world = make_world(yaml, scripts=answers("[disk!] 97 %"), send=lambda _: DeliveryResult("uncertain", "no answer"))
    world.run(hours=13)
    assert [row["state"] for row in world.store.connection.execute("select state from outbox")] == ["held"]


def test_no_reminder_of_a_failure_is_queued_beside_a_message_that_waits_for_a_decision_of_a_user(make_world: MakeWorld) -> None:
    yaml = config(retries="0", problems="{after: 1, remind: 2h}").replace("true}", "true, uncertain: hold}")
    world = make_world(yaml, scripts={"ops": lambda _: 3}, send=lambda _: DeliveryResult("uncertain", "no answer"))
    world.run(hours=13)
    assert [row["state"] for row in world.store.connection.execute("select state from outbox")] == ["held"]


def test_no_reminder_is_sent_of_a_problem_that_the_last_answer_does_not_mention(make_world: MakeWorld) -> None:
    agent = answers(*["[disk] 92 %"] * 3, "HEARTBEAT_OK")
    world = make_world(config(interval="8h"), scripts=agent)
    world.run(hours=33)
    assert [text.partition(",")[0] for text in sent(world)] == ["[disk] 92 %", "[disk] over after 1d8h"]


# --- who knows what -----------------------------------------------------------------------------------------------------


def test_a_restart_forgets_nothing_and_the_prompt_lists_what_is_open(make_world: MakeWorld) -> None:
    world = make_world(config(), scripts={"ops": lambda call: f"[disk:/var] {len(world.calls)} % full"})
    world.run(minutes=20)
    world.downtime(minutes=10)
    world.run(minutes=30)
    assert sent(world) == ["[disk:/var] 1 % full"]
    assert "since" not in world.calls[0].stdin
    assert "[disk:/var] warning, since 2026-03-02 08:00, reported 2026-03-02 08:00: 1 % full" in world.calls[1].stdin


def test_two_channels_know_separately_what_they_were_sent(make_world: MakeWorld) -> None:
    delivered: list[tuple[str, str]] = []

    def send(outgoing: Delivery) -> DeliveryResult:
        delivered.append((outgoing.channel.name, brief(outgoing.message.text)))
        return DeliveryResult("delivered")

    world = make_world(config(), scripts=answers("[disk] 92 %", "[disk] 93 %", "[disk] 94 %\n[mail] 40 wait"), send=send)
    world.run(minutes=10)
    world.reload(config(channels="phone, pager"))
    world.run(minutes=10)
    assert delivered == [("phone", "[disk] 92 %"), ("pager", "[disk] 93 %")]
    world.run(minutes=15)
    assert sorted(delivered[2:]) == [("pager", "[mail] 40 wait"), ("phone", "[mail] 40 wait")]


def test_a_recipient_that_was_removed_gets_no_end(make_world: MakeWorld) -> None:
    world = make_world(config("phone, pager"), scripts=answers("[disk] 92 %", "[disk] 92 %", "[disk] resolved"))
    channels: list[str] = []
    world.run(minutes=20)
    world.send = lambda each: channels.append(each.channel.name) or DeliveryResult("delivered")
    world.reload(config("phone"))
    world.run(minutes=20)
    assert channels == ["phone"]


def test_a_reload_that_renames_the_checklist_keeps_the_problems(make_world: MakeWorld) -> None:
    world = make_world(config(), scripts=answers("[disk] 92 %"))
    world.write("ops/OTHER.md", "- look at the disks\n")
    world.run(minutes=20)
    world.reload(config(checklist="OTHER.md"))
    world.run(hours=1)
    assert sent(world) == ["[disk] 92 %"]


# --- flapping, wrong ends, bad input ------------------------------------------------------------------------------------


@pytest.mark.long_on_server("days of simulated time")
def test_a_problem_that_opens_and_ends_at_every_run_is_reported_as_unstable_once(make_world: MakeWorld) -> None:
    texts = ["[link] down", "[link] resolved"] * 100
    world = make_world(config(), scripts=answers(*texts, "HEARTBEAT_OK"))
    world.run(hours=48)
    flapping = [text for text in sent(world) if "unstable" in text]
    assert len(flapping) == 1
    assert len(sent(world)) == 5
    world.run(hours=28)
    assert sent(world)[5:] == ["[link] over after 15m"]


def test_a_problem_that_was_wrongly_taken_as_over_needs_a_longer_silence(make_world: MakeWorld) -> None:
    quiet = ["HEARTBEAT_OK"]
    world = make_world(config(), scripts=answers("[disk] 92 %", *quiet * 2, "[disk] 92 %", *quiet * 3, "[disk] 92 %"))
    world.run(hours=3)
    assert [text.partition(",")[0] for text in sent(world)] == ["[disk] 92 %", "[disk] over after 30m", "[disk] 92 %"]


def test_each_wrong_end_doubles_the_silence_that_a_problem_needs_up_to_eight_times(make_world: MakeWorld) -> None:
    answer, silences = ["[disk] 92 %"], list[int]()
    world = make_world(config(problems="{clear_after: 1}"), scripts={"ops": lambda _: answer[0]})
    for _ in range(6):
        answer[0] = "[disk] 92 %"
        world.run(minutes=15)
        answer[0] = "HEARTBEAT_OK"
        silences.append(0)
        while world.problem("disk").is_open:
            world.run(minutes=15)
            silences[-1] += 1
    assert silences == [1, 2, 4, 8, 8, 8]


def test_an_end_that_the_agent_itself_reports_makes_no_later_silence_longer(make_world: MakeWorld) -> None:
    world = make_world(config(), scripts=answers("[disk] 92 %", "[disk] resolved", "[disk] 92 %", "HEARTBEAT_OK"))
    world.run(minutes=70)
    assert not world.problem("disk").is_open


@pytest.mark.parametrize(("hours", "silence"), [(18, 2), (24, 1)])
def test_an_end_counts_as_wrong_if_the_problem_is_mentioned_again_within_a_day(
    make_world: MakeWorld, hours: int, silence: int
) -> None:
    agent = answers("[disk] 92 %", *["HEARTBEAT_OK"] * (hours // 6), "[disk] 92 %", "HEARTBEAT_OK")
    world = make_world(config(interval="6h", problems="{clear_after: 1}"), scripts=agent)
    world.run(hours=6 + hours)
    assert world.problem("disk").is_open
    world.run(hours=6 * silence - 3)
    assert world.problem("disk").is_open
    world.run(hours=6)
    assert not world.problem("disk").is_open


def test_a_problem_that_was_wrongly_taken_as_over_after_days_needs_a_longer_silence_too(make_world: MakeWorld) -> None:
    agent = answers(*["[disk] 92 %"] * 9, *["HEARTBEAT_OK"] * 2, "[disk] 92 %", *["HEARTBEAT_OK"] * 3, "[disk] 92 %")
    world = make_world(config(interval="6h", problems="{remind: 30d}"), scripts=agent)
    world.run(hours=6 * 16)
    assert [text.partition(",")[0] for text in sent(world)] == ["[disk] 92 %", "[disk] over after 2d12h", "[disk] 92 %"]


def test_thousands_of_findings_are_one_message_and_a_bounded_number_of_problems(make_world: MakeWorld) -> None:
    numbers = iter(range(1000))

    def agent(call: AgentCall) -> str:
        run = next(numbers)
        return json.dumps({"findings": [{"key": f"k{run}-{number}", "text": "x"} for number in range(1500)]})

    world = make_world(config(problems="{clear_after: 100}"), scripts={"ops": agent})
    world.run(hours=3)
    reported = world.store.connection.execute("select count(*) from problem where part = 'reported'").fetchone()[0]
    assert (
        reported == 251
    )  # with those of the first run, which are over. One of them stands for all that could not be tracked, and one for those that were not sent
    assert [len(text.splitlines()) for text in sent(world)] == [51, 51]
    assert max(len(row["findings"]) for row in world.records()) <= 200


@pytest.mark.parametrize(
    "answer",
    [
        '{"findings": [{"key": "", "text": "no key"}]}',
        '{"findings": [{"key": "a\\u0000b\\n[c]", "text": "\\ud800", "severity": 7, "resolved": "maybe", "extra": {}}]}',
        '{"findings": [{"key": "gone", "resolved": true}]}',
        '{"findings": {"key": "no list"}}',
        '{"findings": [null]}',
        "[" * 5000,
        "[] empty",
        "[a!!] text",
    ],
)
def test_strange_answers_end_as_ok_or_alert_and_are_not_repeated(make_world: MakeWorld, answer: str) -> None:
    world = make_world(config(), scripts=answers(answer))
    world.run(hours=3)
    assert {row["result"] for row in world.records()} <= {"ok", "alert"}
    assert len(sent(world)) <= 1


def test_the_problem_of_untracked_findings_ends_while_the_lines_that_came_with_it_are_still_printed(
    make_world: MakeWorld,
) -> None:
    many = json.dumps({"findings": [{"key": f"k-{number}", "text": "x"} for number in range(60)]})
    check = "{command: ./check.sh, unchanged: skip, confirm: 0}"
    printed = outputs("disk is full", *(f"disk is full\n{name} waits" for name in ("mail", "print", "backup")))
    world = make_world(config(precheck=check, problems="{clear_after: 2}"), scripts=answers(many, "[k-1] x"), prechecks=printed)
    world.run(minutes=40)
    first, last = (line for text in sent(world) for line in text.splitlines() if "too-many-findings" in line)
    assert first.startswith("[heartbeatd:too-many-findings] 10 findings of the agent could not be tracked")
    assert last.startswith("[heartbeatd:too-many-findings] over after 30m")


def test_an_agent_cannot_end_the_problem_of_too_many_findings(make_world: MakeWorld) -> None:
    many = json.dumps({"findings": [{"key": f"k-{number}", "text": "x"} for number in range(60)]})
    key = "heartbeatd:too-many-findings"
    world = make_world(config(), scripts=answers(many, f"[{key}] resolved", many))
    world.run(minutes=20)
    assert world.problem(key).is_open
    assert [each for each in effects(world)[1] if key in each] == [f"{key} ignored"]


def test_too_many_findings_open_a_problem_again_after_it_was_over(make_world: MakeWorld) -> None:
    many, few = (json.dumps({"findings": [{"key": f"k-{each}", "text": "x"} for each in range(most)]}) for most in (60, 5))
    limits = "limits: {new_problems: 1000}\n"
    world = make_world(limits + config(problems="{clear_after: 1}"), scripts=answers(many, few, many, many))
    world.run(minutes=50)
    key = "heartbeatd:too-many-findings"
    assert [[each for each in run if key in each] for run in effects(world)] == [
        [f"{key} opened"],
        [f"{key} cleared"],
        [f"{key} opened"],
        [f"{key} known"],
    ]


# --- what an answer has seen --------------------------------------------------------------------------------------------


def test_silence_does_not_end_a_problem_whose_precheck_line_is_still_printed(make_world: MakeWorld) -> None:
    lines = (
        "disk is at 92 %",
        "disk is at 93 %\nmail waits",
        "disk is at 94 %",
        "disk is at 95 %\nmail waits",
        "disk is at 96 %",
    )
    agent = answers("[disk] 92 %", "[mail] 40 wait", "[mail] resolved", "[mail] 50 wait", "[mail] resolved", "HEARTBEAT_OK")
    world = make_world(config(precheck=PRECHECK), scripts=agent, prechecks=outputs(*lines))
    world.run(hours=2)
    assert not [line for text in sent(world) for line in text.splitlines() if line.startswith("[disk] over")]


def test_a_problem_whose_precheck_lines_are_gone_in_two_prechecks_is_over(make_world: MakeWorld) -> None:
    agent = answers("[disk] 92 %", "[mail] 40 wait", "[mail] 41 wait")
    world = make_world(config(precheck=PRECHECK), scripts=agent, prechecks=outputs("disk is full", "mail waits"))
    world.run(minutes=20)
    assert sent(world) == ["[disk] 92 %", "[mail] 40 wait"]
    world.run(minutes=15)
    assert sent(world)[2:] == ["[disk] over after 30m, its lines are gone"]


def test_an_agent_cannot_end_a_problem_whose_line_is_missing_in_one_precheck(make_world: MakeWorld) -> None:
    agent = answers("[disk] 92 %", "[disk] resolved", "[disk] 92 %", "[disk] resolved")
    printed = outputs("disk is full", "mail waits", "disk is full", "mail waits")
    world = make_world(config(precheck=PRECHECK), scripts=agent, prechecks=printed)
    world.run(minutes=50)
    assert sent(world) == ["[disk] 92 %"]
    assert effects(world)[1] == ["disk ignored"]
    world.run(minutes=15)
    assert sent(world)[1:] == ["[disk] over after 1h, its lines are gone"]


@pytest.mark.parametrize(("hours", "key"), [(18, "disk"), (24, "storage")])
def test_a_problem_whose_line_comes_back_within_a_day_is_the_same_one_under_another_key(
    make_world: MakeWorld, hours: int, key: str
) -> None:
    """It is over at 20:00."""
    printed = outputs("disk is full", *["NO_WORK"] * (1 + hours // 6), "disk is full")
    world = make_world(
        config(precheck=PRECHECK, interval="6h"), scripts=answers("[disk] 92 %", "[storage] disk 92 %"), prechecks=printed
    )
    world.run(hours=13 + hours)
    assert sent(world) == ["[disk] 92 %", "[disk] over after 12h, its lines are gone", f"[{key}] disk 92 %"]


@pytest.mark.parametrize("answer", ["[disk] 92 %", "[disk!] 99 %"], ids=["warning", "critical"])
def test_a_problem_whose_lines_are_gone_opens_without_a_line_once_a_second_run_mentions_it(
    make_world: MakeWorld, answer: str
) -> None:
    agent = answers("[disk] 92 %\n[mail] waits", "[mail] waits", answer)
    printed = outputs("disk is full\nmail 1 waits", "mail 1 waits", "mail 1 waits", "mail 2 waits")
    world = make_world(config(precheck=PRECHECK), scripts=agent, prechecks=printed)
    world.run(minutes=50)
    assert sent(world) == ["[disk] 92 %\n[mail] waits", "[disk] over after 30m, its lines are gone"]
    assert ["disk unconfirmed"] in effects(world)
    world.run(minutes=15)
    assert sent(world)[2:] == [f"[disk] {'CRITICAL: 99' if '!' in answer else '92'} %"]


@pytest.mark.parametrize(
    ("line", "wake", "quiet"),
    [("disk is slow", None, 0), ("mail 3 waits", "the disk is slow", 0), ("mail 3 waits", None, 96)],
    ids=["line", "wake", "a day later"],
)
def test_a_problem_whose_lines_are_gone_opens_at_once_with_another_line_or_with_a_wake_or_a_day_later(
    make_world: MakeWorld, line: str, wake: str | None, quiet: int
) -> None:
    printed = outputs("disk is full", "mail 1 waits", "mail 2 waits", *["NO_WORK"] * quiet, line)
    agent = answers("[disk] 92 %", "HEARTBEAT_OK", "HEARTBEAT_OK", "[disk] slow")
    world = make_world(config(precheck=PRECHECK), scripts=agent, prechecks=printed)
    world.run(minutes=40)
    if wake:
        world.wake("ops", wake, sender="monitor")
    world.run(minutes=10 + quiet * 15)
    assert sent(world) == ["[disk] 92 %", "[disk] over after 30m, its lines are gone", "[disk] slow"]
    assert ["disk unconfirmed"] not in effects(world)


@pytest.mark.parametrize("noise", ["job {} is slow\n", "x" * 3000 + " {}\n"], ids=["too many lines", "too many bytes"])
def test_an_output_that_is_too_long_to_be_compared_does_not_prove_that_a_line_is_gone(make_world: MakeWorld, noise: str) -> None:
    names = ("".join(pair) for pair in product(ascii_lowercase, repeat=2))
    long = "".join(noise.format(name) for name in islice(names, 250)) + "disk is full"
    agent = answers("[disk] 92 %", "HEARTBEAT_OK", "HEARTBEAT_OK", "HEARTBEAT_OK")
    world = make_world(config(precheck=PRECHECK), scripts=agent, prechecks=outputs("disk is full", long))
    world.run(minutes=20)
    assert (len(world.calls), sent(world)) == (2, ["[disk] 92 %"])


def test_a_precheck_without_work_ends_a_problem_without_an_agent_call(make_world: MakeWorld) -> None:
    world = make_world(config(precheck=PRECHECK), scripts=answers("[disk] 92 %"), prechecks=outputs("disk is full", "NO_WORK"))
    world.run(hours=1)
    assert len(world.calls) == 1
    assert sent(world) == ["[disk] 92 %", "[disk] over after 30m, its lines are gone"]


def test_output_that_returns_after_a_precheck_without_work_starts_an_agent_call(make_world: MakeWorld) -> None:
    outs = outputs("disk is full", "NO_WORK", "NO_WORK", "disk is full")
    world = make_world(config(precheck=PRECHECK), scripts=answers("[disk] 92 %"), prechecks=outs)
    world.run(minutes=50)
    assert len(world.calls) == 2
    assert [text.partition(",")[0] for text in sent(world)] == ["[disk] 92 %", "[disk] over after 30m", "[disk] 92 %"]


def test_silence_without_the_wake_that_brought_a_problem_does_not_end_it(make_world: MakeWorld) -> None:
    world = make_world(config(interval="1h"), scripts=answers("HEARTBEAT_OK", "[site] down", "HEARTBEAT_OK"))
    world.run(minutes=5)
    world.wake("ops", "the site is down", sender="monitor")
    world.run(hours=6)
    for _ in range(2):
        world.wake("ops", "a release is out", sender="deployer")
        world.run(minutes=5)
    assert sent(world) == ["[site] down"]
    for _ in range(2):
        world.wake("ops", "the site is up", sender="monitor")
        world.run(minutes=5)
    assert len(sent(world)) == 2
    assert sent(world)[1].startswith("[site] over")


def test_an_answer_that_was_cut_is_retried(make_world: MakeWorld) -> None:
    world = make_world(config(), scripts=answers(CUT, "[disk] the disk /var is nearly full"))
    world.run(minutes=1)
    assert (len(world.calls), sent(world)) == (2, ["[disk] the disk /var is nearly full"])


def test_an_answer_that_is_cut_in_each_attempt_counts_as_it_is(make_world: MakeWorld) -> None:
    world = make_world(config(retries="1"), scripts=answers(CUT))
    world.run(minutes=1)
    assert len(world.calls) == 2
    assert [text.splitlines()[0] for text in sent(world)] == ["[disk] the disk /var is nea"]
    world.run(minutes=20)
    assert [text.splitlines()[0] for text in sent(world)[1:]] == [
        "warning  ops truncated: each answer is cut at the limit of its tokens (2 times in a row since 2026-03-02 08:00 UTC)   p2"
    ]


def test_answers_that_are_always_cut_are_paid_in_two_runs_for_one_output(make_world: MakeWorld) -> None:
    world = make_world(config(precheck=PRECHECK), scripts=answers(CUT), prechecks=outputs("disk is full"))
    world.run(hours=3)
    assert len(world.calls) == 2 * (1 + 2)


def test_an_answer_to_two_new_lines_with_one_finding_is_confirmed(make_world: MakeWorld) -> None:
    agent = answers("[disk] 92 %", "[disk] 92 %\n[mail] 40 wait", "HEARTBEAT_OK")
    world = make_world(config(precheck=PRECHECK), scripts=agent, prechecks=outputs("disk is full\nmail waits"))
    world.run(hours=2)
    assert len(world.calls) == 2
    assert sent(world) == ["[disk] 92 %", "[mail] 40 wait"]


def test_each_new_output_is_confirmed_on_its_own(make_world: MakeWorld) -> None:
    """The first one is gone before the answer to it is confirmed."""
    check = "{command: ./check.sh, unchanged: skip, confirm: 1}"
    outputs_in_turn = outputs("disk is full", "mail stands still")
    world = make_world(config(precheck=check), scripts=answers("HEARTBEAT_OK"), prechecks=outputs_in_turn)
    world.run(hours=2)
    assert ["mail" in call.stdin for call in world.calls] == [False, True, True]


def test_confirm_can_be_switched_off(make_world: MakeWorld) -> None:
    check = "{command: ./check.sh, unchanged: skip, confirm: 0}"
    world = make_world(config(precheck=check), scripts=answers("HEARTBEAT_OK"), prechecks=outputs("disk is full"))
    world.run(hours=2)
    assert len(world.calls) == 1


def test_unchanged_output_is_looked_at_again_after_its_maximum_age(make_world: MakeWorld) -> None:
    check = "{command: ./check.sh, unchanged: {skip: true, max_age: 6h}, confirm: 0}"
    world = make_world(config(precheck=check), scripts=answers("HEARTBEAT_OK"), prechecks=outputs("disk is full"))
    world.run(hours=19)
    assert [call.at.hour for call in world.calls] == [8, 14, 20, 2]


# --- what was lost or damaged -------------------------------------------------------------------------------------------


def test_a_problem_whose_message_was_refused_is_sent_again_with_the_next_run(make_world: MakeWorld) -> None:
    results = iter([DeliveryResult("dead", "400"), DeliveryResult("delivered")])
    world = make_world(
        config(), scripts=answers("[disk] full"),
        send=lambda delivery: next(results, DeliveryResult("delivered")) if delivery.message.notice is None else DeliveryResult("delivered"),
    )  # fmt: skip
    world.run(hours=3)
    assert [text for text in sent(world) if text.startswith("[disk]")] == ["[disk] full"]


@pytest.mark.parametrize("damage", ["{", "", "7", "null", '["x", []]', "[7, null]"])
def test_damaged_lists_of_a_problem_stop_neither_its_agent_nor_a_job(make_world: MakeWorld, damage: str) -> None:
    job = "cron:\n  sync: {schedule: '*/10 * * * *', command: sync, wake_heartbeat: ops, wake_on: failure}\n"
    world = make_world(config(jobs=job), scripts=answers("[disk] full", "[disk] full", "[disk] resolved"))
    world.run(minutes=10)
    world.store.connection.execute(
        "update problem set openings = :bad, lines = :bad, senders = :bad, jobs = :bad", {"bad": damage}
    )
    world.run(hours=1)
    assert [text.partition(",")[0] for text in sent(world)] == ["[disk] full", "[disk] over after 30m"]
    world.clock.now -= timedelta(days=1)
    world.run(hours=1)
    assert {row["result"] for row in world.records("sync")} == {"ok"}


# --- the clock ----------------------------------------------------------------------------------------------------------


@pytest.mark.long_on_server("days of simulated time")
def test_a_clock_that_is_set_back_stops_neither_reminders_nor_resets(make_world: MakeWorld) -> None:
    said = iter(["[disk] full", "[disk] resolved"] * 4)
    world = make_world(config(), scripts={"ops": lambda _: next(said, "[disk] full")})
    world.run(hours=3)
    assert "unstable" in sent(world)[-1]
    world.clock.now -= timedelta(days=10)
    world.run(hours=80)
    reminders = [text for text in sent(world) if "reminder" in text]
    assert len(reminders) >= 2


def test_problems_of_the_same_rank_are_listed_by_their_keys(make_world: MakeWorld) -> None:
    """A database returns rows in any order, unless the statement names one. Messages and prompts must not depend on that."""
    world = make_world(config("phone, pager"), scripts=answers("[site] down\n[disk] full\n[mail] waits"))
    world.run(minutes=1)
    world.return_unordered_rows_differently()
    found = problems.open_reports_of(world.store.connection, "ops")
    assert [each.key for each in found] == ["disk", "mail", "site"]
    assert [[target.channel for target in each.notices] for each in found] == [["pager", "phone"]] * 3


# --- at random ----------------------------------------------------------------------------------------------------------


def random_answers(chance: random.Random, runs: int) -> list[str]:
    """Answers with random findings about three things, some of them resolved, critical, cut or quiet."""
    given = []
    for _ in range(runs):
        lines = [
            f"[{key}{chance.choice(['', '', '!'])}] {chance.choice(['resolved', f'value {chance.randrange(100)}', 'bad'])}"
            for key in ("disk", "mail", "site")
            if chance.random() < 0.5
        ]
        text = "\n".join(lines) or "HEARTBEAT_OK"
        given.append(json.dumps({"text": text, "truncated": True}) if chance.random() < 0.1 else text)
    return given


@pytest.mark.parametrize("seed", range(6))
def test_restarts_change_no_message_and_no_run_sends_two(make_world: MakeWorld, tmp_path: Path, seed: int) -> None:
    def play(folder: Path, *, restarts: bool) -> tuple[list[str], int]:
        folder.mkdir()
        chance, kills = random.Random(seed), random.Random(seed)
        world = make_world(config(retries="0"), folder, scripts=answers(*random_answers(chance, 40)))
        for _ in range(40):
            world.run(minutes=10)
            if restarts and kills.random() < 0.3:
                world.downtime(minutes=1)
                world.run(minutes=4)
            else:
                world.run(minutes=5)
        messages = world.store.connection.execute(
            "select count(*), count(distinct run_id) from outbox where notice is null"
        ).fetchone()
        assert messages[0] == messages[1]
        return sent(world), len(world.calls)

    assert play(tmp_path / "a", restarts=False) == play(tmp_path / "b", restarts=True)


def test_a_decision_to_skip_a_changed_output_is_made_once_more(make_world: MakeWorld) -> None:
    with Server([decides("skip")]) as provider:
        yaml = f"providers: {{local: {{kind: anthropic, api_key: x, base_url: '{provider.url}'}}}}\n" + config(
            precheck=PRECHECK, decide="{model: claude-haiku-5-5, provider: local}"
        )
        world = make_world(yaml, prechecks=outputs("disk is full"))
        world.run(hours=2)
        assert len(provider.requests) == 2
    assert [row["why"] for row in world.records()][:3] == [
        "decided_skip",
        "decided_skip",
        "precheck_unchanged",
    ]


def test_a_problem_is_known_once_each_recipient_has_it_and_the_first_one_is_reminded_first(make_world: MakeWorld) -> None:
    def known() -> list[str]:
        return [each.says for each in explained_entry(world).quiet_reasons if each.code == "known"]

    world = make_world(config("phone"), scripts=answers("[disk] 92 %"))
    world.run(hours=3)
    world.send = lambda each: DeliveryResult("delivered" if each.channel.name == "phone" else "retry", "busy")
    world.reload(config("phone, pager"))
    world.run(minutes=20)
    assert known() == []
    world.send = lambda _: DeliveryResult("delivered", "")
    world.run(hours=3)
    assert known() == ["disk: known since 08:00, next reminder Tue 2026-03-03 08:00"]

"""An agent's own reminders: a day with them, and what limits, cancels, moves and delays them."""

from __future__ import annotations

import json
import re
from datetime import timedelta

import pytest
from test_story_explain import explained_entry
from test_story_slots import agent
from world import MakeWorld, World, utc

from heartbeatd.answers import Reminder
from heartbeatd.verbs import CancelWake, Wake
from scheduler.engine.effects import Sender, VerbRequest
from scheduler.engine.tick_items import Refused
from scheduler.insight.explanation import explain_now
from scheduler.insight.forecast import forecast_entries, forecast_runs
from scheduler.model.outcome import Kind
from scheduler.store import wakes

LAZY = agent(interval="1d")
OPS = (Kind.HEARTBEAT, "ops")


def asks_for(*reminders: dict[str, object]) -> str:
    """An answer without a problem that asks for reminders."""
    return json.dumps({"findings": [], "remind": list(reminders)})


def reminders(world: World) -> list[Reminder]:
    return wakes.list_reminders(world.store.connection, "ops")


def remind(world: World, text: str = "look", **when: object) -> int:
    """Set a reminder as a program with a token does."""
    wake = Wake.of(text=text, **when)
    return world.request(VerbRequest(wake, OPS, Sender("scripts", "token", token="scripts"))).wake


def cancel(world: World, wake: int) -> str:
    return world.request(VerbRequest(CancelWake(), wake)).says


def rejected(world: World) -> list[tuple[str, str]]:
    found = wakes.rejected_wakes_between(world.store.connection, utc("2026-01-01 00:00"), utc("2027-01-01 00:00"))
    return [(each.sender, each.why.value) for each in found]


def runs_of(world: World) -> list[str]:
    """When the agent was called, and the reminders in its prompt."""
    shown = re.compile(r"^By reminder (.*):\n<data.*>\n(.*)$", re.MULTILINE)
    return [" ".join([f"{call.at:%H:%M}", *(": ".join(found) for found in shown.findall(call.stdin))]) for call in world.calls]


def test_a_day_with_reminders(make_world: MakeWorld) -> None:
    """The agent starts a long backup at 08:00, and looks after it three times. Then it wants to be reminded of the evening."""
    world = make_world(LAZY)
    answers = [
        asks_for({"text": "the backup: is it done?", "in": "30m"}),
        asks_for({"text": "the backup: is it done?", "in": "1h"}, {"text": "the report is due", "at": "2026-03-02 18:00"}),
    ]
    world.scripts["ops"] = lambda _: answers[len(world.calls) - 1] if len(world.calls) <= len(answers) else "HEARTBEAT_OK"
    world.run_until("2026-03-02 09:00")
    assert [(f"{each.at:%H:%M}", each.by, each.text) for each in reminders(world)] == [
        ("09:30", "agent/ops", "the backup: is it done?"),
        ("18:00", "agent/ops", "the report is due"),
    ]
    world.downtime(minutes=1)
    world.reload(world.yaml + "# another comment\n")
    world.run_until("2026-03-02 20:00")
    assert runs_of(world) == [
        "08:00",
        "08:30 agent/ops: the backup: is it done?",
        "09:30 agent/ops: the backup: is it done?",
        "18:00 agent/ops: the report is due",
    ]
    assert [line.split()[2] for line in world.history("ops")] == ["interval", "reminder", "reminder", "reminder"]
    assert reminders(world) == []


def test_the_same_text_moves_its_reminder(make_world: MakeWorld) -> None:
    world = make_world(LAZY)
    world.run(minutes=1)
    first, second, other = remind(world, at="2026-03-02T12:00:00Z"), remind(world, in_="2h"), remind(world, "mail", in_="2h")
    assert (first, other != first) == (second, True)
    assert [f"{each.at:%H:%M} {each.text}" for each in reminders(world)] == ["10:01 look", "10:01 mail"]
    world.clock.now += timedelta(minutes=30)
    world.run(seconds=1)
    assert [f"{each.at:%H:%M}" for each in reminders(world)] == ["10:31", "10:31"], "each is a span now"


def test_the_same_text_of_another_sender_is_another_reminder(make_world: MakeWorld) -> None:
    world = make_world(LAZY)
    remind(world, in_="2h")
    other = Sender("other", "token", token="other")
    world.request(VerbRequest(Wake.of(text="look", in_="3h"), OPS, other))
    assert [f"{each.at:%H:%M} {each.by}" for each in reminders(world)] == ["10:00 scripts", "11:00 other"]


def test_a_job_sets_reminders_for_its_agent(make_world: MakeWorld) -> None:
    world = make_world(f'{LAZY}cron:\n  ask: {{schedule: "0 9 * * *", prompt: Look., agent: ops}}\n')
    world.scripts["ask"] = lambda _: json.dumps({"result": "done", "remind": [{"text": "and now?", "in": "30m"}]})
    world.run(minutes=61)
    assert [(f"{each.at:%H:%M}", each.by) for each in reminders(world)] == [("09:30", "cron/ask")]


def test_two_reminders_for_one_time_start_one_run_with_both_texts(make_world: MakeWorld) -> None:
    world = make_world(LAZY)
    world.run(minutes=1)
    remind(world, "mail", in_="2h")
    remind(world, "disk", in_="2h")
    world.run(hours=3)
    assert len(world.calls) == 2
    assert "mail" in world.calls[1].stdin
    assert "disk" in world.calls[1].stdin


@pytest.mark.parametrize(
    ("when", "problem"),
    [
        ({"at": "2026-03-02T08:01:00Z"}, "at: write a time from now on, at most 90d ahead"),
        ({"at": "2026-05-31T08:02:00Z"}, "at: write a time from now on, at most 90d ahead"),
        ({"in_": "91d"}, "in: write a time from now on, at most 90d ahead"),
        ({"in_": "1h", "at": "2026-03-03T08:00:00Z"}, "write either at or in"),
        ({"in_": "1h", "urgent": False}, "urgent: leave it out"),
    ],
)
def test_a_time_that_cannot_be_is_refused(make_world: MakeWorld, when: dict[str, object], problem: str) -> None:
    world = make_world(LAZY)
    world.run(minutes=1)
    with pytest.raises((Refused, ValueError), match=problem):
        remind(world, **when)
    assert remind(world, in_="90d")


def test_the_21st_reminder_is_refused_by_name(make_world: MakeWorld) -> None:
    world = make_world(LAZY)
    world.run(minutes=1)
    for number in range(20):
        remind(world, f"look {number}", in_="2h")
    with pytest.raises(Refused, match="has 20 reminders already") as refused:
        remind(world, "one more", in_="2h")
    assert refused.value.code == "too_many_reminders"
    assert remind(world, "look 7", in_="3h")  # moved
    world.run(hours=4)
    assert remind(world, "one more", in_="2h")
    assert rejected(world) == [("scripts", "too_many_reminders")]


def test_each_agent_has_its_own_reminders_in_its_own_zone(make_world: MakeWorld) -> None:
    """Riga is two hours ahead of UTC. An answer that asks for more than 20 is recorded once."""
    more = LAZY.removeprefix("agents:\n").replace("ops:", "riga:").replace("{interval", "{timezone: Europe/Riga, interval")
    world = make_world(LAZY + more)
    world.scripts["ops"] = lambda _: asks_for(*({"text": f"look {number}", "in": "2h"} for number in range(22)))
    world.scripts["riga"] = lambda _: asks_for(
        {"text": "the report is due", "at": "2026-03-02 18:00"}, {"text": "the backup has ended", "at": "2026-03-02T18:00+00:00"}
    )
    world.run(minutes=1)
    found = wakes.list_reminders(world.store.connection, "riga")
    assert [(f"{each.at:%H:%M}", each.text) for each in found] == [
        ("16:00", "the report is due"),
        ("18:00", "the backup has ended"),
    ]
    assert len(reminders(world)) == 20
    assert rejected(world) == [("agent/ops", "too_many_reminders")]


def test_what_an_answer_asks_for_in_vain_is_recorded(make_world: MakeWorld) -> None:
    world = make_world(LAZY)
    wishes: list[dict[str, object]] = [
        {"text": "no time"},
        {"text": "soon", "in": "soon"},
        {"text": "past", "at": "2026-03-01 08:00"},
    ]
    world.scripts["ops"] = lambda _: asks_for(*wishes, {"text": "", "in": "1h"})
    world.run(minutes=1)
    assert [each.text for each in reminders(world)] == [""]
    assert rejected(world) == [("agent/ops", "bad_reminder")]


def test_a_failed_run_sets_no_reminder(make_world: MakeWorld) -> None:
    world = make_world(LAZY)
    world.scripts["ops"] = lambda _: 1
    world.run(minutes=5)
    assert reminders(world) == []


@pytest.mark.parametrize("failed", ["postcheck", "reported_failure"])
def test_an_agent_that_could_not_do_its_work_may_still_be_reminded(make_world: MakeWorld, failed: str) -> None:
    proof = "{file: report.md}" if failed == "postcheck" else "none"
    world = make_world(agent(interval="1d", retries="0", postcheck=proof))
    reason = {"failed": "the mailbox does not answer"} if failed == "reported_failure" else {}
    world.scripts["ops"] = lambda _: json.dumps({"findings": [], "remind": [{"text": "try again", "in": "30m"}], **reason})
    world.run(minutes=5)
    assert [each["why"] for each in world.records("ops")] == [failed]
    assert [each.text for each in reminders(world)] == ["try again"]


def test_a_cancelled_reminder_starts_no_run(make_world: MakeWorld) -> None:
    world = make_world(LAZY)
    world.run(minutes=1)
    wake = remind(world, in_="2h")
    assert cancel(world, wake) == f"wake {wake} for agent/ops is cancelled"
    with pytest.raises(Refused, match="has ended"):
        cancel(world, wake)
    world.run(hours=3)
    assert len(world.calls) == 1
    assert rejected(world) == [("scripts", "cancelled")]


def test_a_wake_that_waits_for_active_hours_can_be_cancelled(make_world: MakeWorld) -> None:
    world = make_world(agent(active_hours='"09:00-17:00"'))
    world.run(minutes=1)
    cancel(world, world.wake("ops", "the mail queue"))
    world.run_until("2026-03-02 09:20")
    assert ["mail" in call.stdin for call in world.calls] == [False]


def test_a_reminder_outside_of_active_hours_waits_until_they_begin(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1d", active_hours='"08:00-17:00"'))
    world.run(minutes=1)
    remind(world, at="2026-03-02T23:00:00Z")
    world.run_until("2026-03-03 08:30")
    assert world.history("ops")[1:] == ["03-02 23:00 reminder skipped active_hours", "03-03 08:00 interval ok heartbeat_ok"]
    assert "By reminder scripts" in world.calls[-1].stdin


def test_a_reminder_of_a_paused_agent_waits_for_the_end_of_the_pause(make_world: MakeWorld) -> None:
    world = make_world(LAZY)
    world.run(minutes=1)
    remind(world, in_="1h")
    world.pause(OPS)
    world.run(hours=3)
    assert len(world.calls) == 1
    world.resume(OPS)
    world.run(minutes=1)
    assert "By reminder scripts" in world.calls[-1].stdin


def test_a_reminder_of_a_removed_agent_is_rejected_when_its_time_comes(make_world: MakeWorld) -> None:
    """An agent that is declared again before that time still gets it."""
    world = make_world(LAZY)
    world.run(minutes=1)
    remind(world, "first", in_="1h")
    remind(world, "second", in_="3h")
    other = LAZY.replace("ops", "web")
    world.reload(other)
    world.run(hours=2)
    world.reload(LAZY)
    world.run(hours=2)
    assert rejected(world) == [("scripts", "removed")]
    assert "second" in world.calls[-1].stdin


def test_a_reminder_whose_time_came_while_the_daemon_was_down_comes_at_its_start(make_world: MakeWorld) -> None:
    world = make_world(LAZY)
    world.run(minutes=1)
    remind(world, in_="1h")
    world.downtime(hours=5)
    world.run(minutes=1)
    assert runs_of(world) == ["08:00", "13:01 scripts: look"]


@pytest.mark.parametrize("by", [timedelta(hours=2), -timedelta(hours=2)])
def test_a_changed_clock_moves_what_was_to_come_after_a_span(make_world: MakeWorld, by: timedelta) -> None:
    """A time was chosen by the clock on the wall, so it stays. After 30 minutes means after 30 minutes, also in an answer."""
    world = make_world(LAZY, scripts={"ops": lambda _: json.dumps({"findings": [], "remind": [{"text": "own", "in": "30m"}]})})
    world.run(minutes=1)
    remind(world, "span", in_="30m")
    remind(world, "time", at="2026-03-02T12:00:00Z")
    world.clock.now += by
    world.run(seconds=1)
    moved = {each.text: f"{each.at - by:%H:%M}" for each in reminders(world) if each.text != "time"}
    assert moved == {"span": "08:31", "own": "08:30"}
    assert [f"{each.at:%H:%M}" for each in reminders(world) if each.text == "time"] == ["12:00"]


def test_reminders_that_an_agent_sets_again_and_again_are_limited_like_other_wakes(make_world: MakeWorld) -> None:
    """An agent that asks for a reminder in each run does not run more often than limits.wake_flood allows."""
    world = make_world(LAZY)
    world.scripts["ops"] = lambda call: asks_for({"text": "again", "in": "1s"})
    world.run(minutes=60)
    assert len(world.calls) <= 1 + 5 * 6 + 1


def test_explain_lists_the_reminders_of_an_agent(make_world: MakeWorld) -> None:
    world = make_world(LAZY)
    world.run(minutes=1)
    wake = remind(world, "has the backup ended?", in_="1h")
    facts = [fact.says for fact in explain_now(explained_entry(world)).facts if fact.label == "reminder"]
    assert facts == [f"at 09:01 by scripts (wake {wake}): has the backup ended?"]


def test_plan_lists_the_reminders_of_its_time(make_world: MakeWorld) -> None:
    world = make_world(LAZY)
    world.run(minutes=1)
    remind(world, "soon", in_="1h")
    remind(world, "later", in_="2d")
    db, now = world.store.connection, world.clock.now
    for text, begin in (("soon", now), ("later", now + timedelta(days=1, hours=12))):
        planned = forecast_runs(forecast_entries(db, world.engine.plan, now), begin, begin + timedelta(days=1))
        assert [each.text for entry in planned.entries for each in entry.reminders] == [text]

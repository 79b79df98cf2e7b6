"""The outbox end to end: messages that a person sends again or drops, dead letters, and delivery under load."""

from __future__ import annotations

import errno
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from world import Takes, World

from scheduler.channels.message import DeliveryResult
from scheduler.engine.delivery import Delivery
from scheduler.engine.inbox import Refused
from scheduler.engine.loop import LOOKS_AT_ONCE
from scheduler.engine.requests import DropMessage, ResendMessage
from scheduler.store import outbox

Play = Callable[..., World]

CONFIG = """
channels: {hook: {kind: webhook, url: "http://127.0.0.1:1/x", allow_private: true, uncertain: hold}}
agents:
  ops:
    runner: {kind: command, argv: [agent]}
    heartbeat: {interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: hook}
"""
ALARM = {"ops": lambda asked: "The disk is full."}
DOUBT, REFUSED, LATER, FINE = (
    DeliveryResult("uncertain", "no answer"),
    DeliveryResult("dead", "400"),
    DeliveryResult("retry", "503"),
    None,
)


class Channel:
    """A channel with these answers in turn, the last one repeated, that records the message keys."""

    def __init__(self, *answers: DeliveryResult | None) -> None:
        self.answers = list(answers)
        self.keys: list[str] = []

    def __call__(self, delivery: Delivery) -> DeliveryResult:
        self.keys.append(delivery.message.key)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return answer or DeliveryResult("delivered")


def told(world: World) -> list[tuple[Any, ...]]:
    return [(each["id"], each["state"], each["attempts"], each["error"]) for each in outbox.list_messages(world.store.connection)]


def delivery(world: World) -> str:
    return str(world.rows()[0]["delivery"]["state"])


def test_a_tick_without_messages_writes_nothing_to_the_outbox(play: Play) -> None:
    world = play(CONFIG)
    asked: list[str] = []
    world.store.connection.set_trace_callback(asked.append)
    world.run(minutes=31)
    assert len(world.rows()) == 2
    assert [statement for statement in asked if "update outbox" in statement] == []


@pytest.mark.parametrize(("first", "stood"), [(DOUBT, "held"), (REFUSED, "dead"), (LATER, "pending")])
def test_a_resent_message_goes_out_at_once_with_its_old_key(play: Play, first: DeliveryResult, stood: str) -> None:
    channel = Channel(first, FINE)
    world = play(CONFIG, scripts=ALARM, sends=channel)
    world.run(seconds=10)
    assert told(world) == [(1, stood, 1, first.error)]
    assert world.ask(ResendMessage(1)) == "hook"
    world.settle()
    assert told(world) == []
    assert len(channel.keys) == 2
    assert len(set(channel.keys)) == 1
    assert delivery(world) == "delivered"


def test_an_old_message_that_is_resent_gets_one_more_attempt(play: Play) -> None:
    world = play(CONFIG, scripts={"ops": lambda asked: f"Alarm {asked.at:%d %H:%M}"}, sends=Channel(REFUSED, LATER))
    world.run(hours=25)
    world.ask(ResendMessage(1))
    world.settle()
    assert (1, "dead", 2, "503") in told(world)


@pytest.mark.parametrize("window", ["1h", "6h"])
def test_the_duplicate_window_of_a_resent_message_starts_when_it_is_delivered(play: Play, window: str) -> None:
    yaml = CONFIG.replace("deliver: hook", f"deliver: hook, dedup: {{window: {window}}}")
    world = play(yaml, scripts={"ops": lambda asked: "The disk is full." if len(world.asked) != 2 else "HEARTBEAT_OK"})
    world.sends = Channel(REFUSED, FINE)
    world.run(minutes=50)
    world.ask(ResendMessage(1))
    world.until("2026-03-02 09:45")
    assert [row["suppression"] for row in world.rows()] == [None, "heartbeat_ok", "duplicate", "duplicate"]
    world.until("2026-03-02 16:00")
    assert [f"{when:%H:%M}" for when, _, text in world.said if "disk" in text][:2] == {
        "1h": ["08:50", "10:00"],
        "6h": ["08:50", "15:00"],
    }[window]


def test_a_long_message_counts_as_a_duplicate_once_its_dead_part_was_resent(play: Play) -> None:
    yaml = CONFIG.replace("interval: 30m", "interval: 4h").replace(
        '{kind: webhook, url: "http://127.0.0.1:1/x", allow_private: true, uncertain: hold}', '"discord://42/abc"'
    )
    world = play(yaml, scripts={"ops": lambda asked: "x" * 5000})
    world.sends = Channel(FINE, REFUSED, FINE)
    world.run(minutes=10)
    world.ask(ResendMessage(2))
    world.run(hours=5)
    assert [row["suppression"] for row in world.rows()] == [None, "duplicate"]


def test_a_text_refused_after_every_run_is_in_the_outbox_once(play: Play) -> None:
    world = play(CONFIG, scripts=ALARM, sends=Channel(REFUSED))
    world.run(minutes=70)
    assert [each[1:] for each in told(world)] == [("dead", 1, "400")]
    assert [row["delivery"]["state"] for row in world.rows()] == ["dropped", "dropped", "dead"]
    with pytest.raises(Refused, match=r"message 1 has been dropped \(400; said again by run 2\)"):
        world.ask(ResendMessage(1))


def test_a_text_that_died_repeatedly_is_delivered_once_its_channel_works(play: Play) -> None:
    world = play(CONFIG, scripts=ALARM, sends=Channel(REFUSED, REFUSED, REFUSED, FINE))
    world.run(hours=6)
    assert told(world) == []
    assert [f"{when:%H:%M}" for when, _, text in world.said if "disk" in text] == ["09:30"]
    assert [row["suppression"] for row in world.rows()[:5]] == [None, None, None, None, "duplicate"]


def test_a_text_that_died_repeatedly_and_was_resent_is_a_duplicate_afterwards(play: Play) -> None:
    world = play(CONFIG, scripts=ALARM, sends=Channel(REFUSED, REFUSED, REFUSED, FINE))
    world.run(minutes=50)
    for each in told(world):
        world.ask(ResendMessage(each[0]))
    world.run(hours=3)
    assert [text for _, _, text in world.said if "disk" in text] == ["The disk is full."]


def test_the_dead_part_of_a_long_message_is_dropped_once_the_whole_text_is_delivered(play: Play) -> None:
    yaml = CONFIG.replace(
        '{kind: webhook, url: "http://127.0.0.1:1/x", allow_private: true, uncertain: hold}', '"discord://42/abc"'
    )
    world = play(yaml, scripts={"ops": lambda asked: "x" * 5000}, sends=Channel(FINE, REFUSED, FINE))
    world.run(minutes=40)
    assert told(world) == []
    assert [row["delivery"]["state"] for row in world.rows()] == ["partial", "delivered"]


@pytest.mark.parametrize("first", [DOUBT, REFUSED, LATER])
def test_a_dropped_message_is_never_sent_and_stays_recorded(play: Play, first: DeliveryResult) -> None:
    channel = Channel(first, FINE)
    world = play(CONFIG, scripts=ALARM, sends=channel)
    world.run(seconds=10)
    assert world.ask(DropMessage(1)) == "hook"
    world.run(minutes=20)
    assert len(channel.keys) == 1
    (row,) = world.rows()
    assert row["text"] == "The disk is full."
    assert row["delivery"] == {"state": "dropped", "targets": [{"channel": "hook", "state": "dropped", "error": first.error}]}


def test_a_dropped_text_can_be_sent_by_a_later_run(play: Play) -> None:
    world = play(CONFIG, scripts=ALARM, sends=Channel(LATER, FINE))
    world.run(seconds=10)
    world.ask(DropMessage(1))
    world.run(minutes=30)
    assert [text for _, _, text in world.said] == ["The disk is full."]


def test_a_part_behind_a_held_part_is_sent_once_that_is_dropped(play: Play) -> None:
    yaml = CONFIG.replace('{kind: webhook, url: "http://127.0.0.1:1/x"', '{kind: telegram, url: "tgram://1/2"').replace(
        ", allow_private: true", ""
    )
    world = play(yaml, scripts={"ops": lambda asked: "word " * 1000}, sends=Channel(DOUBT, FINE))
    world.run(seconds=10)
    assert [state for _, state, *_ in told(world)] == ["pending", "held"]
    world.ask(DropMessage(1))
    world.settle()
    assert (told(world), delivery(world)) == ([], "partial")


@pytest.mark.parametrize("request_of", [ResendMessage, DropMessage])
def test_resending_or_dropping_an_unsuitable_message_is_refused_in_one_line(play: Play, request_of: Any) -> None:
    world = play(CONFIG, scripts=ALARM, sends=Channel(REFUSED, FINE))
    world.run(seconds=10)
    world.store.connection.execute("update outbox set state = 'sending'")
    with pytest.raises(Refused, match="message 1 is under way; once it is known how that went"):
        world.ask(request_of(1))
    world.store.connection.execute("update outbox set state = 'dead'")
    world.ask(DropMessage(1))
    with pytest.raises(Refused, match="message 1 has been dropped"):
        world.ask(request_of(1))
    with pytest.raises(Refused, match="no message 7; `heartbeatd outbox` lists them"):
        world.ask(request_of(7))


def test_a_message_is_listed_with_its_run_and_its_next_attempt(play: Play) -> None:
    world = play(CONFIG, scripts=ALARM, sends=Channel(LATER))
    world.run(seconds=10)
    (listed,) = outbox.list_messages(world.store.connection)
    assert listed == {
        "id": 1, "run": 1, "kind": "heartbeat", "name": "ops", "channel": "hook", "state": "pending", "part": 1, "parts": 1,
        "attempts": 1, "created_at": "2026-03-02T08:00:00Z", "next_try_at": "2026-03-02T08:01:00Z", "doubted": False,
        "error": "503", "notice": None, "begins": "The disk is full.",
    }  # fmt: skip


def test_dead_messages_are_listed_after_pending_ones(play: Play) -> None:
    world = play(CONFIG, scripts={"ops": lambda asked: f"Alarm {asked.at:%H:%M}"}, sends=Channel(LATER, REFUSED))
    world.run(minutes=31)
    world.engine.tick(world.clock.read())
    assert [each["begins"] for each in outbox.list_messages(world.store.connection)] == ["Alarm 08:30", "Alarm 08:00"]
    world.store.connection.execute("update outbox set state = 'pending' where id = 1")
    assert [each["begins"] for each in outbox.list_messages(world.store.connection)] == ["Alarm 08:00", "Alarm 08:30"]


def test_a_message_is_listed_with_the_beginning_of_its_text(play: Play) -> None:
    world = play(CONFIG, scripts={"ops": lambda asked: "x" * 5000}, sends=Channel(LATER))
    world.run(minutes=1)
    assert [len(each["begins"]) for each in outbox.list_messages(world.store.connection)] == [200]


def test_the_same_text_from_two_agents_is_sent_twice(play: Play) -> None:
    ops = CONFIG[CONFIG.index("  ops:") :]
    world = play(CONFIG + ops.replace("  ops:", "  web:"))
    world.scripts = ALARM | {"web": ALARM["ops"]}
    world.run(minutes=31)
    assert [(name, text) for _, name, text in world.said] == [("ops", "The disk is full."), ("web", "The disk is full.")]


def test_two_runs_of_a_job_in_the_same_slot_by_different_triggers_have_different_keys(play: Play) -> None:
    """With equal keys, a receiver would discard the second message."""
    job = "cron:\n  measure: {every: 30m, command: measure, deliver: hook}\n"
    keys: list[str] = []

    def sends(delivery: Delivery) -> DeliveryResult:
        keys.append(delivery.message.key)
        return DeliveryResult("delivered")

    world = play(CONFIG[: CONFIG.index("agents:")] + job, sends=sends)
    world.scripts["measure"] = lambda asked: "91 %"
    world.run(minutes=30)
    world.run_job("measure")
    world.run(minutes=1)
    rows = world.rows("measure")
    assert [row["slot"] for row in rows[:2]] == ["2026-03-02T08:30:00Z"] * 2
    assert [row["trigger"] for row in rows[:2]] == ["every", "manual"]
    assert (len(keys), len(set(keys))) == (2, 2)
    assert [text for _, _, text in world.said] == ["91 %", "91 %"]


TWELVE = """
limits: {concurrency: %s}
channels: {hook: {kind: webhook, url: "http://127.0.0.1:1/x", allow_private: true, uncertain: hold}}
cron:
""" + "".join(
    f'  job{number}: {{schedule: "0 8 * * *", command: measure, deliver: hook, misfire: {{grace: 1h}}}}\n' for number in range(12)
)


@pytest.mark.parametrize(
    ("concurrency", "run_takes", "sending_takes"),
    [(20, timedelta(), timedelta(minutes=1)), (1, timedelta(minutes=1), timedelta())],
    ids=["a channel", "runs"],
)
def test_runs_and_messages_that_wait_for_capacity_are_not_stalls(
    play: Play, caplog: pytest.LogCaptureFixture, concurrency: int, run_takes: timedelta, sending_takes: timedelta
) -> None:
    """Twelve jobs at once, limited by a channel that sends four messages at a time, or by `concurrency: 1`."""
    world = play(
        TWELVE % concurrency,
        start="2026-03-02 07:59",
        scripts={f"job{number}": lambda asked: Takes("measured", run_takes) for number in range(12)},
        sends=lambda _: Takes(DeliveryResult("delivered"), sending_takes),
    )
    world.run(minutes=30)
    assert len(world.said) == 12
    assert "stalled" not in caplog.text
    assert world.store.connection.execute("select count(*) from stall").fetchone()[0] == 0


def test_more_due_entries_than_one_tick_handles_are_one_stall(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    jobs = "".join(f'  job{number}: {{schedule: "0 8 * * *", command: measure}}\n' for number in range(2 * LOOKS_AT_ONCE + 1))
    world = play("limits: {concurrency: 1000}\ncron:\n" + jobs, start="2026-03-02 07:59")
    world.settle()
    world.clock.forward(timedelta(minutes=1, seconds=30))
    world.run(minutes=1)
    assert len(world.rows(outcome="ok")) == 2 * LOOKS_AT_ONCE + 1
    assert caplog.text.count("stalled") == 1


def test_a_message_that_could_not_be_sent_for_lack_of_open_files_is_retried(play: Play) -> None:
    answers: list[Any] = [OSError(errno.EMFILE, "Too many open files"), DeliveryResult("delivered")]
    world = play(CONFIG, scripts=ALARM, sends=lambda _: answers.pop(0))
    world.run(minutes=5)
    assert delivery(world) == "delivered"
    assert answers == []

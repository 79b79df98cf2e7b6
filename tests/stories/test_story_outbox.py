"""The outbox end to end: messages that a person sends again or drops, dead letters, and delivery under load."""

from __future__ import annotations

import errno
from datetime import timedelta
from typing import Any

import pytest
from world import Delayed, MakeWorld, World, utc

from heartbeatd.verbs import Drop, Retry
from scheduler.engine.delivery import Delivery
from scheduler.engine.effects import VerbRequest
from scheduler.engine.tick import MAX_ENTRIES_PER_TICK
from scheduler.engine.tick_items import Refused
from scheduler.model.message import DeliveryResult
from scheduler.model.settings import Target
from scheduler.model.timestamps import to_millis
from scheduler.store import outbox, problems

CONFIG = """
channels: {hook: {kind: webhook, url: "http://127.0.0.1:1/x", allow_private: true, uncertain: hold}}
agents:
  ops:
    runner: {kind: command, argv: [agent]}
    heartbeat: {interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: hook}
"""
ALARM = {"ops": lambda call: "The disk is full."}
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


def listed_messages(world: World) -> list[tuple[Any, ...]]:
    return [(each.id, each.state, each.tries, each.error) for each in outbox.list_messages(world.store.connection)]


def delivery_state(world: World) -> str:
    return str(world.records()[0]["delivery"]["state"])


FAILING = CONFIG.replace("deliver: hook}", "deliver: hook, retries: 0, problems: {after: 1}}")


def fails_then_alerts(channel: Channel) -> dict[str, Any]:
    """A world whose agent fails in its first run, and then always answers with the same text."""
    results = [1, "The disk is full."]
    return {"scripts": {"ops": lambda call: results.pop(0) if len(results) > 1 else results[0]}, "send": channel}


def test_a_failure_notification_that_was_refused_stays_undelivered_although_an_answer_arrives_later(
    make_world: MakeWorld,
) -> None:
    world = make_world(FAILING, **fails_then_alerts(Channel(REFUSED, FINE)))
    world.run(minutes=31)
    assert "The disk is full." in [text for _, _, text in world.delivered]
    (messages,) = outbox.undelivered_by_entry(world.store.connection, world.clock.now).values()
    assert (messages.state, messages.count) == ("dead", 1)


def test_an_answer_that_is_replaced_by_a_later_copy_leaves_the_notifications_of_its_run(make_world: MakeWorld) -> None:
    world = make_world(FAILING, **fails_then_alerts(Channel(FINE, REFUSED)))
    world.run(minutes=61)
    states = [(each.begins.partition(" ")[0], each.notice, each.state) for each in outbox.list_messages(world.store.connection)]
    assert sorted(states) == [("The", None, "dead"), ("over", "over p1", "dead")]


def test_a_tick_without_messages_writes_nothing_to_the_outbox(make_world: MakeWorld) -> None:
    world = make_world(CONFIG)
    with world.traced_statements() as statements:
        world.run(minutes=31)
    assert len(world.records()) == 2
    assert [statement for statement in statements if "update outbox" in statement] == []


@pytest.mark.parametrize(("first", "stood"), [(DOUBT, "held"), (REFUSED, "dead"), (LATER, "pending")])
def test_a_resent_message_is_sent_at_once_with_its_old_key(make_world: MakeWorld, first: DeliveryResult, stood: str) -> None:
    channel = Channel(first, FINE)
    world = make_world(CONFIG, scripts=ALARM, send=channel)
    world.run(seconds=10)
    assert listed_messages(world) == [(1, stood, 1, first.error)]
    assert world.request(VerbRequest(Retry(), 1)).channel == "hook"
    world.settle()
    assert listed_messages(world) == []
    assert len(channel.keys) == 2
    assert len(set(channel.keys)) == 1
    assert delivery_state(world) == "delivered"


def test_an_old_message_that_is_resent_gets_one_more_attempt(make_world: MakeWorld) -> None:
    world = make_world(CONFIG, scripts={"ops": lambda call: f"Alarm {call.at:%d %H:%M}"}, send=Channel(REFUSED, LATER))
    world.run(hours=25)
    world.request(VerbRequest(Retry(), 1))
    world.settle()
    assert (1, "dead", 2, "503") in listed_messages(world)


@pytest.mark.parametrize("window", ["1h", "6h"])
def test_the_duplicate_window_of_a_resent_message_starts_when_it_is_delivered(make_world: MakeWorld, window: str) -> None:
    yaml = CONFIG.replace("deliver: hook", f"deliver: hook, dedup: {{window: {window}}}")
    world = make_world(yaml, scripts={"ops": lambda call: "The disk is full." if len(world.calls) != 2 else "HEARTBEAT_OK"})
    world.send = Channel(REFUSED, FINE)
    world.run(minutes=50)
    world.request(VerbRequest(Retry(), 1))
    world.run_until("2026-03-02 09:45")
    assert [row["why"] for row in world.records()] == [None, "heartbeat_ok", "duplicate", "duplicate"]
    world.run_until("2026-03-02 16:00")
    assert [f"{when:%H:%M}" for when, _, text in world.delivered if "disk" in text][:2] == {
        "1h": ["08:50", "10:00"],
        "6h": ["08:50", "15:00"],
    }[window]


def test_a_long_message_counts_as_a_duplicate_once_its_dead_part_was_resent(make_world: MakeWorld) -> None:
    yaml = CONFIG.replace("interval: 30m", "interval: 4h").replace(
        '{kind: webhook, url: "http://127.0.0.1:1/x", allow_private: true, uncertain: hold}', '"discord://42/abc"'
    )
    world = make_world(yaml, scripts={"ops": lambda call: "x" * 5000})
    world.send = Channel(FINE, REFUSED, FINE)
    world.run(minutes=10)
    world.request(VerbRequest(Retry(), 2))
    world.run(hours=5)
    assert [row["why"] for row in world.records()] == [None, "duplicate"]


def test_a_text_refused_after_every_run_is_in_the_outbox_once(make_world: MakeWorld) -> None:
    world = make_world(CONFIG, scripts=ALARM, send=Channel(REFUSED))
    world.run(minutes=70)
    assert [each[1:] for each in listed_messages(world)] == [("dead", 1, "400")]
    assert [row["delivery"]["state"] for row in world.records()] == ["dropped", "dropped", "dead"]
    with pytest.raises(Refused, match=r"message 1 has been dropped \(400; replaced by the same text of run 2\)"):
        world.request(VerbRequest(Retry(), 1))


def test_a_text_that_died_repeatedly_is_delivered_once_its_channel_works(make_world: MakeWorld) -> None:
    world = make_world(CONFIG, scripts=ALARM, send=Channel(REFUSED, REFUSED, REFUSED, FINE))
    world.run(hours=6)
    assert listed_messages(world) == []
    assert [f"{when:%H:%M}" for when, _, text in world.delivered if "disk" in text] == ["09:30"]
    assert [row["why"] for row in world.records()[:5]] == [None, None, None, None, "duplicate"]


def test_a_text_that_died_repeatedly_and_was_resent_is_a_duplicate_afterwards(make_world: MakeWorld) -> None:
    world = make_world(CONFIG, scripts=ALARM, send=Channel(REFUSED, REFUSED, REFUSED, FINE))
    world.run(minutes=50)
    for each in listed_messages(world):
        world.request(VerbRequest(Retry(), each[0]))
    world.run(hours=3)
    assert [text for _, _, text in world.delivered if "disk" in text] == ["The disk is full."]


def test_the_dead_part_of_a_long_message_is_dropped_once_the_whole_text_is_delivered(make_world: MakeWorld) -> None:
    yaml = CONFIG.replace(
        '{kind: webhook, url: "http://127.0.0.1:1/x", allow_private: true, uncertain: hold}', '"discord://42/abc"'
    )
    world = make_world(yaml, scripts={"ops": lambda call: "x" * 5000}, send=Channel(FINE, REFUSED, FINE))
    world.run(minutes=40)
    assert listed_messages(world) == []
    assert [row["delivery"]["state"] for row in world.records()] == ["partial", "delivered"]


@pytest.mark.parametrize("first", [DOUBT, REFUSED, LATER])
def test_a_dropped_message_is_never_sent_and_stays_recorded(make_world: MakeWorld, first: DeliveryResult) -> None:
    channel = Channel(first, FINE)
    world = make_world(CONFIG, scripts=ALARM, send=channel)
    world.run(seconds=10)
    assert world.request(VerbRequest(Drop(), 1)).channel == "hook"
    world.run(minutes=20)
    assert len(channel.keys) == 1
    (row,) = world.records()
    assert row["text"] == "The disk is full."
    (sent,) = row["delivery"]["targets"]
    assert (row["delivery"]["state"], sent["channel"], sent["state"], sent["error"]) == (
        "dropped",
        "hook",
        "dropped",
        first.error,
    )


def test_a_dropped_message_does_not_hide_that_its_channel_takes_nothing(make_world: MakeWorld) -> None:
    texts = iter(["The disk is full.", "The mail stands still."])
    world = make_world(CONFIG, scripts={"ops": lambda call: next(texts, "HEARTBEAT_OK")}, send=Channel(LATER))
    world.run_until("2026-03-02 10:20")
    world.request(VerbRequest(Drop(), 1))
    world.run_until("2026-03-02 11:10")  # the second message is tried again at 11:06
    assert problems.failing_targets(world.store.connection) == {Target("hook")}


def test_a_dropped_text_can_be_sent_by_a_later_run(make_world: MakeWorld) -> None:
    world = make_world(CONFIG, scripts=ALARM, send=Channel(LATER, FINE))
    world.run(seconds=10)
    world.request(VerbRequest(Drop(), 1))
    world.run(minutes=30)
    assert [text for _, _, text in world.delivered] == ["The disk is full."]


def test_a_part_behind_a_held_part_is_sent_once_that_is_dropped(make_world: MakeWorld) -> None:
    yaml = CONFIG.replace('{kind: webhook, url: "http://127.0.0.1:1/x"', '{kind: telegram, url: "tgram://1/2"').replace(
        ", allow_private: true", ""
    )
    world = make_world(yaml, scripts={"ops": lambda call: "word " * 1000}, send=Channel(DOUBT, FINE))
    world.run(seconds=10)
    assert [state for _, state, *_ in listed_messages(world)] == ["pending", "held"]
    world.request(VerbRequest(Drop(), 1))
    world.settle()
    assert (listed_messages(world), delivery_state(world)) == ([], "partial")


def test_all_parts_of_a_long_message_reach_a_channel_while_another_one_takes_none(make_world: MakeWorld) -> None:
    agents = CONFIG.partition("agents:")[2].replace("deliver: hook", "deliver: [down, guild]")
    world = make_world(
        f'channels: {{down: "discord://41/abc", guild: "discord://42/abc"}}\nagents:{agents}',
        scripts={"ops": lambda call: "word " * 1000},
        send=lambda sent: LATER if sent.channel.name == "down" else DeliveryResult("delivered"),
    )
    world.run(minutes=5)
    assert {(each.channel, each.state) for each in outbox.list_messages(world.store.connection)} == {("down", "pending")}


def test_a_message_that_waits_for_a_decision_stays_when_another_channel_gets_the_same_text_again(make_world: MakeWorld) -> None:
    other = 'other: {kind: webhook, url: "http://127.0.0.1:2/x", allow_private: true}'
    config = CONFIG.replace("channels: {", f"channels: {{{other}, ").replace("deliver: hook", "deliver: [hook, other]")
    other_channel = Channel(REFUSED, FINE)
    world = make_world(config, scripts=ALARM, send=lambda sent: DOUBT if sent.channel.name == "hook" else other_channel(sent))
    world.run(minutes=35)
    messages = [each for each in outbox.list_messages(world.store.connection) if each.notice is None]
    assert [(each.run, each.channel, each.state) for each in messages] == [(1, "hook", "held")]


@pytest.mark.parametrize("verb", [Retry(), Drop()])
def test_resending_or_dropping_an_unsuitable_message_is_refused_in_one_line(make_world: MakeWorld, verb: Any) -> None:
    world = make_world(CONFIG, scripts=ALARM, send=Channel(REFUSED, FINE))
    world.run(seconds=10)
    world.store.connection.execute("update outbox set state = 'sending'")
    with pytest.raises(Refused, match="message 1 is being sent; wait for the result"):
        world.request(VerbRequest(verb, 1))
    world.store.connection.execute("update outbox set state = 'dead'")
    world.request(VerbRequest(Drop(), 1))
    with pytest.raises(Refused, match="message 1 has been dropped"):
        world.request(VerbRequest(verb, 1))
    with pytest.raises(Refused, match="no message 7; `heartbeatd outbox` lists them"):
        world.request(VerbRequest(verb, 7))


def test_a_message_is_listed_with_its_run_and_its_next_attempt(make_world: MakeWorld) -> None:
    world = make_world(CONFIG, scripts=ALARM, send=Channel(LATER))
    world.run(seconds=10)
    (listed,) = outbox.list_messages(world.store.connection)
    assert listed.as_data() == {
        "id": 1, "run": 1, "kind": "heartbeat", "name": "ops", "channel": "hook", "state": "pending", "part": 1, "parts": 1,
        "tries": 1, "created_at": "2026-03-02T08:00:00Z", "next_try_at": "2026-03-02T08:01:00Z", "doubted": False,
        "error": "503", "notice": None, "begins": "The disk is full.",
    }  # fmt: skip


def test_dead_messages_are_listed_after_pending_ones(make_world: MakeWorld) -> None:
    world = make_world(CONFIG, scripts={"ops": lambda call: f"Alarm {call.at:%H:%M}"}, send=Channel(LATER, REFUSED))
    world.run(minutes=31)
    world.engine.tick(world.clock.read())
    assert [each.begins for each in outbox.list_messages(world.store.connection)] == [
        "Alarm 08:30",
        "Alarm 08:00",
    ]
    world.store.connection.execute("update outbox set state = 'pending' where id = 1")
    assert [each.begins for each in outbox.list_messages(world.store.connection)] == [
        "Alarm 08:00",
        "Alarm 08:30",
    ]


def test_a_message_is_listed_with_the_beginning_of_its_text(make_world: MakeWorld) -> None:
    world = make_world(CONFIG, scripts={"ops": lambda call: "x" * 5000}, send=Channel(LATER))
    world.run(minutes=1)
    assert [len(each.begins) for each in outbox.list_messages(world.store.connection)] == [200]


def test_the_same_text_from_two_agents_is_sent_twice(make_world: MakeWorld) -> None:
    ops = CONFIG[CONFIG.index("  ops:") :]
    world = make_world(CONFIG + ops.replace("  ops:", "  web:"))
    world.scripts = ALARM | {"web": ALARM["ops"]}
    world.run(minutes=31)
    assert [(name, text) for _, name, text in world.delivered] == [("ops", "The disk is full."), ("web", "The disk is full.")]


def test_two_runs_of_a_job_in_the_same_slot_by_different_triggers_have_different_keys(make_world: MakeWorld) -> None:
    """With equal keys, a receiver would discard the second message."""
    job = "cron:\n  measure: {every: 30m, command: measure, deliver: hook}\n"
    keys: list[str] = []

    def sends(delivery: Delivery) -> DeliveryResult:
        keys.append(delivery.message.key)
        return DeliveryResult("delivered")

    world = make_world(CONFIG[: CONFIG.index("agents:")] + job, send=sends)
    world.scripts["measure"] = lambda call: "91 %"
    world.run(minutes=30)
    world.run_job("measure")
    world.run(minutes=1)
    rows = world.records("measure")
    assert [row["planned_at"] for row in rows[:2]] == ["2026-03-02T08:30:00Z"] * 2
    assert [row["trigger"] for row in rows[:2]] == ["every", "manual"]
    assert (len(keys), len(set(keys))) == (2, 2)
    assert [text for _, _, text in world.delivered] == ["91 %", "91 %"]


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
def test_runs_and_messages_that_wait_for_capacity_are_not_freezes(
    make_world: MakeWorld, caplog: pytest.LogCaptureFixture, concurrency: int, run_takes: timedelta, sending_takes: timedelta
) -> None:
    """Twelve jobs at once, limited by a channel that sends four messages at a time, or by `concurrency: 1`."""
    world = make_world(
        TWELVE % concurrency,
        start="2026-03-02 07:59",
        scripts={f"job{number}": lambda call: Delayed("measured", run_takes) for number in range(12)},
        send=lambda _: Delayed(DeliveryResult("delivered"), sending_takes),
    )
    world.run(minutes=30)
    assert len(world.delivered) == 12
    assert "frozen" not in caplog.text
    assert world.store.connection.execute("select count(*) from stall").fetchone()[0] == 0


def test_more_due_entries_than_one_tick_handles_are_one_freeze(make_world: MakeWorld, caplog: pytest.LogCaptureFixture) -> None:
    jobs = "".join(
        f'  job{number}: {{schedule: "0 8 * * *", command: measure}}\n' for number in range(2 * MAX_ENTRIES_PER_TICK + 1)
    )
    world = make_world("limits: {concurrency: 1000}\ncron:\n" + jobs, start="2026-03-02 07:59")
    world.settle()
    world.clock.advance(timedelta(minutes=1, seconds=30))
    world.run(minutes=1)
    assert len(world.records(result="ok")) == 2 * MAX_ENTRIES_PER_TICK + 1
    assert caplog.text.count("frozen") == 1


def test_a_message_that_could_not_be_sent_for_lack_of_open_files_is_retried(make_world: MakeWorld) -> None:
    answers: list[Any] = [OSError(errno.EMFILE, "Too many open files"), DeliveryResult("delivered")]
    world = make_world(CONFIG, scripts=ALARM, send=lambda _: answers.pop(0))
    world.run(minutes=5)
    assert delivery_state(world) == "delivered"
    assert answers == []


TELEGRAM = """
channels: {phone: "tgram://12345:abcdefghijklmnopqrstuvwxyz0123456789/99"}
agents:
  ops:
    runner: {kind: command, argv: [agent]}
    heartbeat: {interval: 12h, stagger: 0s, checklist: "- look\\n", deliver: phone}
"""


def test_an_alert_is_sent_again_after_its_window_even_if_an_older_message_is_held(make_world: MakeWorld) -> None:
    channel = Channel(DOUBT)
    world = make_world(TELEGRAM, scripts=ALARM, send=channel)
    world.run(hours=1)
    assert delivery_state(world) == "held"
    channel.answers = [FINE]
    world.run(days=5)
    assert world.delivered[0][2] == "The disk is full."


def test_a_channel_that_asks_for_a_wait_of_hours_gets_the_message_after_a_quarter_of_an_hour(make_world: MakeWorld) -> None:
    tried: list[str] = []

    def send(delivery: Delivery) -> DeliveryResult:
        tried.append(f"{world.clock.now:%H:%M}")
        return DeliveryResult("retry", "busy", timedelta(hours=5))

    world = make_world(CONFIG, send=send, scripts=ALARM)
    world.run(minutes=29)
    assert tried == ["08:00", "08:15"]


def test_message_parts_behind_a_held_part_expire(make_world: MakeWorld) -> None:
    def send(delivery: Delivery) -> DeliveryResult:
        return DeliveryResult("uncertain", "no answer") if delivery.message.part == 1 else DeliveryResult("delivered")

    world = make_world(TELEGRAM, scripts={"ops": lambda call: "ALERT " + "word " * 2000}, send=send)
    world.run(days=40)
    old = "select state from outbox where created_at < ? and state in ('held', 'pending')"
    assert not world.store.connection.execute(old, (to_millis(world.clock.now - timedelta(days=2)),)).fetchall()


def agents_with_alerts(count: int, last_channel: str = "hook") -> str:
    """The config of agents `a0`, `a1` and so on that use the channel `hook`. The last agent uses another channel."""
    beat = 'interval: 1h, stagger: 0s, checklist: "- look\\n"'
    agents = [
        f"  a{number}: {{runner: {{kind: command, argv: [agent]}}, heartbeat: {{{beat}, deliver: {channel}}}}}\n"
        for number, channel in enumerate(["hook"] * (count - 1) + [last_channel])
    ]
    return 'channels: {hook: {kind: webhook, url: "http://127.0.0.1:1/x", allow_private: true}}\nagents:\n' + "".join(agents)


def test_a_hanging_channel_does_not_delay_other_channels(make_world: MakeWorld) -> None:
    scripts = {f"a{number}": ALARM["ops"] for number in range(9)}
    send = Delayed(DeliveryResult("delivered"), timedelta(seconds=30))
    world = make_world(agents_with_alerts(9, "log"), scripts=scripts, send=lambda _: send)
    for _ in range(4):
        world.engine.tick(world.clock.read())
    assert "a8" in [name for _, name, _ in world.delivered]


def test_more_messages_than_can_be_sent_at_once_do_not_make_the_engine_spin(make_world: MakeWorld) -> None:
    scripts = {f"a{number}": ALARM["ops"] for number in range(12)}
    send = Delayed(DeliveryResult("delivered"), timedelta(seconds=20))
    world = make_world(agents_with_alerts(12), scripts=scripts, send=lambda _: send)
    for _ in range(5):
        next_tick_at = world.engine.tick(world.clock.read())
    assert len(world.deliveries.inflight()) == 4  # the concurrency limit of one channel
    assert next_tick_at > world.clock.now


def test_at_most_four_messages_of_each_of_three_channels_and_eight_in_all_are_sent_at_once(make_world: MakeWorld) -> None:
    """Each channel gets its messages in the order in which they were queued."""
    names = [f"{channel}{number}" for channel in "abc" for number in range(5)]
    channels = ", ".join(f'{each}: {{kind: webhook, url: "http://127.0.0.1:1/{each}", allow_private: true}}' for each in "abc")
    beat = 'interval: 1h, stagger: 0s, checklist: "- look\\n"'
    agents = "".join(
        f"  {name}: {{runner: {{kind: command, argv: [agent]}}, heartbeat: {{{beat}, deliver: {name[0]}}}}}\n" for name in names
    )
    begun: list[str] = []
    world = make_world(f"channels: {{{channels}}}\nagents:\n{agents}", scripts=dict.fromkeys(names, ALARM["ops"]))
    world.send = lambda sent: begun.append(sent.message.name) or Delayed(DeliveryResult("delivered"), timedelta(seconds=20))
    for _ in range(6):
        next_tick_at = world.engine.tick(world.clock.read())
    assert (begun, next_tick_at > world.clock.now) == (["a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3"], True)
    world.run(seconds=19)
    assert len(begun) == 8
    world.run(minutes=1)
    assert [name for name in begun if name[0] == "c"] == ["c0", "c1", "c2", "c3", "c4"]


def test_the_parts_of_a_message_are_summed_up(make_world: MakeWorld) -> None:
    """It has arrived when its last part has, as many tries as the part with most, and any part may have arrived before."""
    answers = {1: [DOUBT, FINE], 2: [LATER, LATER, FINE], 3: [FINE]}
    yaml = CONFIG.replace(
        '{kind: webhook, url: "http://127.0.0.1:1/x", allow_private: true, uncertain: hold}', '"discord://42/abc"'
    )
    world = make_world(yaml, scripts={"ops": lambda call: "x" * 5000})
    world.send = lambda sent: answers[sent.message.part].pop(0) or DeliveryResult("delivered")
    world.run(minutes=3)
    (halfway,) = outbox.deliveries_of_runs(world.store.connection, [1])[1]
    assert halfway.text == "accepted for hook, only a part was delivered (2 tries, 503)"
    world.run(minutes=10)
    (whole,) = outbox.deliveries_of_runs(world.store.connection, [1])[1]
    assert (whole.text, whole.tries, whole.doubted) == ("delivered to hook", 3, True)
    assert whole.delivered_at == utc("2026-03-02 08:07")


def test_of_several_undelivered_messages_the_one_that_was_given_up_is_shown(make_world: MakeWorld) -> None:
    """Although an earlier one has arrived there, and a later one waits for another channel."""
    other = 'other: {kind: webhook, url: "http://127.0.0.1:2/x", allow_private: true}'
    config = CONFIG.replace("channels: {", f"channels: {{{other}, ").replace("deliver: hook", "deliver: [hook, other]")
    answers = {"hook": Channel(FINE, REFUSED), "other": Channel(FINE, LATER)}
    world = make_world(config, scripts={"ops": lambda call: f"Alarm {call.at:%H:%M}"})
    world.send = lambda sent: answers[sent.channel.name](sent)
    world.run(minutes=31)
    (found,) = outbox.undelivered_by_entry(world.store.connection, world.clock.now).values()
    assert found.says == "1 message accepted for hook, not delivered (given up after 1 try, 400)"


@pytest.mark.parametrize(("text", "first"), [("The disk is full.", DOUBT), ("x" * 3000, REFUSED)])
def test_a_text_that_comes_again_replaces_all_that_could_still_be_sent_of_its_earlier_message(
    make_world: MakeWorld, text: str, first: DeliveryResult
) -> None:
    yaml = CONFIG.replace("interval: 30m", "interval: 2h, dedup: {window: 1h}").replace(
        '{kind: webhook, url: "http://127.0.0.1:1/x", allow_private: true, ', '{url: "discord://42/abc", '
    )
    world = make_world(yaml, scripts={"ops": lambda call: text}, send=lambda sent: LATER if sent.message.run_id == 2 else first)
    world.run(hours=2, minutes=1)
    left = {(each.run, each.state) for each in outbox.list_messages(world.store.connection) if each.notice is None}
    assert left == {(2, "pending")}


def test_a_message_whose_channel_was_removed_while_it_was_being_sent_is_given_up(make_world: MakeWorld) -> None:
    world = make_world(CONFIG, scripts=ALARM, send=lambda _: Delayed(DeliveryResult("delivered"), timedelta(minutes=1)))
    world.run(seconds=10)
    world.kill()
    world.write_config(CONFIG.replace("hook:", "other:").replace("deliver: hook", "deliver: other"))
    world.boot()
    world.settle()
    assert listed_messages(world)[-1] == (1, "dead", 1, "channels.hook is no longer declared")


def test_messages_are_listed_and_counted_by_state_and_agent_page_by_page(make_world: MakeWorld) -> None:
    channel = Channel(REFUSED, FINE)
    two_agents = (
        CONFIG
        + '  web:\n    runner: {kind: command, argv: [agent]}\n    heartbeat: {interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: hook}\n'
    )
    answers = {name: (lambda call: f"{call.name} at {call.at}") for name in ("ops", "web")}
    world = make_world(two_agents, scripts=answers, send=channel)
    world.run(hours=2)
    db = world.store.connection
    counts = outbox.count_messages_by_state(db)
    assert counts == {"dead": 1, "delivered": 11}
    assert outbox.count_messages_by_state(db, {"web"}) == {"delivered": 6}
    assert [each.name for each in outbox.list_messages_of_states(db, {"dead"}, 10)] == ["ops"]
    first = outbox.list_messages_of_states(db, {"dead", "delivered"}, 4)
    rest = outbox.list_messages_of_states(db, {"dead", "delivered"}, 4, before=first[-1].id)
    assert [each.id for each in (*first, *rest)] == [12, 11, 10, 9, 8, 7, 6, 5]
    assert {each.name for each in outbox.list_messages_of_states(db, {"delivered"}, 10, agents={"web"})} == {"web"}


def test_a_token_for_an_agent_does_not_see_the_messages_of_a_job_with_the_same_name(make_world: MakeWorld) -> None:
    job = "cron: {ops: {every: 30m, command: look, deliver: hook}}\n"
    world = make_world(CONFIG + job, scripts=ALARM)
    world.run(minutes=31)
    db = world.store.connection
    assert outbox.count_messages_by_state(db) == {"delivered": 2}
    assert outbox.count_messages_by_state(db, {"ops"}) == {"delivered": 1}
    found = outbox.list_messages_of_states(db, {"delivered"}, 10, agents={"ops"})
    assert [(each.kind, each.name) for each in found] == [("heartbeat", "ops")]


def test_a_message_is_shown_with_its_whole_text(make_world: MakeWorld) -> None:
    world = make_world(CONFIG, scripts={"ops": lambda call: "x" * 1000}, send=Channel(DOUBT))
    world.run(minutes=31)
    shown = outbox.get_message_with_text(world.store.connection, 1)
    assert shown is not None
    assert (shown.state, len(shown.text), len(shown.begins), shown.title) == ("held", 1000, 200, "ops")
    assert outbox.get_message_with_text(world.store.connection, 99) is None


@pytest.mark.sqlite_file("a query plan of SQLite")
def test_the_messages_of_a_state_are_found_in_the_index(make_world: MakeWorld) -> None:
    db = make_world(CONFIG).store.connection
    values = {"states": "[]", "before": 1, "limit": 1, "begins": 1}
    plan = [row["detail"] for row in db.execute("explain query plan " + outbox.OF_STATES, values)]
    assert [detail for detail in plan if "outbox_channel" in detail], plan

"""Messages wait for the hours of their recipient: a night of an agent and a job, and the one message in the morning."""

from __future__ import annotations

import sqlite3
from datetime import timedelta
from random import Random

import pytest
from test_story_explain import explained_entry, fact_of
from world import QUIET, Delayed, MakeWorld, World, utc

from heartbeat.findings import Severity
from heartbeatd.verbs import Ack, CloseProblem, Drop, Mute, NoteActivity, Retry, Unmute
from scheduler.engine import notices
from scheduler.engine.delivery import Delivery
from scheduler.engine.effects import VerbRequest
from scheduler.engine.problem_rules import after_symptom
from scheduler.engine.tick_items import Refused, Tick
from scheduler.insight.entry_day import explain_day
from scheduler.insight.explanation import explain_now
from scheduler.insight.status_data import read_status
from scheduler.model.message import DeliveryResult
from scheduler.model.outcome import Kind
from scheduler.model.problem import PROVIDER, Subject, Symptom
from scheduler.model.settings import Target
from scheduler.store import problems
from scheduler.store.outbox import (
    NO_RUN,
    Origin,
    get_message_with_text,
    list_messages,
    list_messages_of_states,
    movable_messages,
    queue_notice,
    said_by,
)
from scheduler.store.transaction import Transaction

CHANNELS = 'host: web1\nchannels:\n  phone: {url: "tgram://1:a/2", prefix: none}\n  mail: {url: "tgram://1:a/3", prefix: none}\n'
NIGHT = '{to: phone, hours: "07:00-22:00"}'


def config(deliver: str = NIGHT, **more: str) -> str:
    """Two agents and a job that deliver to the phone. An agent reports a problem as soon as its script does."""
    keys = f"deliver: {deliver}, " + "".join(f"{key}: {value}, " for key, value in more.items())
    beat = f'{{interval: 1h, stagger: 0s, checklist: "- look\\n", {keys}retries: 0, ask_again: 0, problems: {{after: 1}}}}'
    agents = "".join(
        f"  {name}:\n    runner: {{kind: command, argv: [agent]}}\n    heartbeat: {beat}\n" for name in ("ops", "web")
    )
    job = f'  backup: {{schedule: "0 2 * * *", command: backup, deliver: {deliver}, retries: 0, problems: {{after: 1}}}}\n'
    return f"{CHANNELS}agents:\n{agents}cron:\n{job}"


def sent(world: World) -> list[str]:
    """What arrived, with its time. Numbers of problems are left out."""
    return [f"{at:%d %H:%M} {text}" for at, _, text in world.delivered]


def first_line(world: World, name: str) -> str:
    return explain_day(explained_entry(world, name).records, explained_entry(world, name).row).says


def at_night(world: World, **answers: str) -> None:
    """Let `ops` answer with these texts at these hours of the night (h01=...)."""
    hours = {int(hour[1:]): text for hour, text in answers.items()}
    world.scripts["ops"] = lambda call: hours.get(call.at.hour, "HEARTBEAT_OK")


def test_a_day_and_a_night(make_world: MakeWorld) -> None:
    """Checks go on at night. What is still news comes in one message in the morning, and what is critical at once."""
    world = make_world(config(), start="2026-03-02 20:00")
    at_night(world, h21="The evening is calm.", h23="[disk:/var] 92 %", h00="[disk:/var] 93 %", h03="[raid!] one disk is gone")
    world.scripts["web"] = lambda call: "Someone has logged in." if call.at.hour == 1 else "HEARTBEAT_OK"
    world.scripts["backup"] = lambda _: 1
    world.run_until("2026-03-03 06:30")
    assert sent(world) == [
        "02 21:00 The evening is calm.",
        "03 03:00 CRITICAL ops raid: one disk is gone (since 2026-03-03 03:00 UTC)   p3",
        "03 05:00 over     ops raid: after 2h, no longer mentioned   p3\nIt was: one disk is gone",
    ]
    assert len([call for call in world.calls if call.name == "ops"]) == 11
    db, now = world.store.connection, world.clock.now
    assert {each.state for each in list_messages(db)} == {"pending"}
    assert {each.error for each in list_messages(db)} == {
        "waits until 2026-03-03 07:00:00, when the hours of the recipient begin"
    }
    assert {each.error for each in list_messages_of_states(db, ["pending"], 10)} == {each.error for each in list_messages(db)}
    status = read_status(db, now, world.engine.plan.settings.zone)
    assert status.outbox == []  # nothing is late
    assert [each.undelivered for each in status.entries] == [None] * 3
    assert [(each.channel, each.count, each.next_at) for each in status.held] == [("phone", 4, utc("2026-03-03 07:00"))]
    assert first_line(world, "ops") == (
        "2 messages accepted for phone, not delivered (waits until 2026-03-03 07:00:00, when the hours of the recipient begin)"
    )
    world.run_until("2026-03-03 07:30")
    morning = world.delivered[3:]
    assert [f"{at:%H:%M}" for at, _, _ in morning] == ["07:00"]
    assert morning[0][2].splitlines() == [
        "3 messages since 01:00:",
        "",
        "01:00 web: Someone has logged in.",
        "",
        "02:00 over     ops disk:/var: after 3h, no longer mentioned   p1",
        "It was: 93 %",
        "",
        "02:00 warning  cron/backup failed: exit code 1 (since 2026-03-03 02:00 UTC)   p2",
        "More: heartbeatd show 15",
    ]
    assert not list(list_messages(db))


def test_a_text_that_came_with_others_in_the_morning_is_known_for_a_day_from_then(make_world: MakeWorld) -> None:
    world = make_world(config(), start="2026-03-02 22:00")
    known = {(3, 1), (4, 2)}  # the second time is 25 hours after the first one, and 19 hours after its delivery
    world.scripts["ops"] = lambda call: "Somebody has logged in." if (call.at.day, call.at.hour) in known else QUIET
    world.scripts["web"] = lambda call: "The disk is full." if (call.at.day, call.at.hour) == (3, 1) else QUIET
    world.run_until("2026-03-04 08:30")
    assert [line[:8] for line in sent(world)] == ["03 07:00"]


def test_a_message_that_was_tried_before_the_night_is_tried_again_at_night(make_world: MakeWorld) -> None:
    world = make_world(config(NIGHT.replace("22:00", "21:02")), start="2026-03-02 21:00")
    world.send = lambda _: DeliveryResult("retry" if world.clock.now < utc("2026-03-02 21:03") else "delivered", "busy")
    at_night(world, h21="The evening is calm.")
    world.run_until("2026-03-03 07:30")
    assert sent(world) == ["02 21:06 The evening is calm."]


def test_each_message_of_a_night_names_the_one_with_which_it_was_sent(make_world: MakeWorld) -> None:
    world = make_world(config(), start="2026-03-02 22:00")
    at_night(world, h01="Somebody has logged in.", h02="The disk is full.")
    world.run_until("2026-03-03 08:30")
    db = world.store.connection
    merged = db.execute("select id, merged_into from outbox where merged_into is not null").fetchall()
    notes = [(found := get_message_with_text(db, each)) and found.hold_note for each, _ in merged]
    assert notes == [f"sent together with others as message {into}" for _, into in merged]
    assert len(notes) == 2


def test_a_single_message_of_a_night_is_sent_as_it_is(make_world: MakeWorld) -> None:
    world = make_world(config(), start="2026-03-02 22:00")
    at_night(world, h01="Somebody has logged in.")
    world.run_until("2026-03-03 03:30")
    (target,) = next(row["delivery"]["targets"] for row in world.records("ops") if row["result"] == "alert")
    assert "waits until 2026-03-03 07:00:00" in target["says"]
    is_busy = lambda: world.clock.now < utc("2026-03-03 07:01")  # noqa: E731
    world.send = lambda _: Delayed(DeliveryResult("retry" if is_busy() else "delivered", "busy"), timedelta(seconds=20))
    for time, why in (("07:00:10", "yet"), ("07:00:30", "(1 try, busy)")):  # it waits no more
        world.run_until(f"2026-03-03 {time}")
        fact = fact_of(explain_now(explained_entry(world)).as_data(), "messages")
        assert fact["says"] == f"1 message accepted for phone, not delivered {why}, since 07:00"
    world.run_until("2026-03-03 08:30")
    assert sent(world) == ["03 07:01 Somebody has logged in."]


def test_the_record_of_a_failure_keeps_that_its_message_has_waited_for_the_morning(make_world: MakeWorld) -> None:
    world = make_world(config(), start="2026-03-02 22:00", scripts={"backup": lambda _: 1})
    world.run_until("2026-03-03 07:01")
    (notice,) = world.records("backup")[0]["notices"]
    assert (notice["state"], notice["held_back"]["note"][:18]) == ("delivered", "waits until 2026-0")


@pytest.mark.parametrize(
    ("mute", "unmuted_at", "comes"),
    [
        (Mute.of(until=utc("2026-03-03 05:00")), None, "03 07:00"),
        (Mute.of(until=utc("2026-03-03 10:30")), None, "03 10:30"),
        (Mute.of(until=utc("2026-03-03 23:30")), None, "04 07:00"),
        (Mute.of(until=utc("2026-03-03 10:30")), "2026-03-03 09:10", "03 09:10"),
        (Mute.of(), "2026-03-04 08:10", "04 08:10"),
        (Mute(until_changed=True), None, "03 07:00"),
    ],
)
def test_what_waits_for_the_morning_waits_for_the_end_of_a_mute_too(
    make_world: MakeWorld, mute: Mute, unmuted_at: str | None, comes: str
) -> None:
    world = make_world(config(), start="2026-03-02 22:00")
    world.scripts["ops"] = lambda call: "[disk:/var] 92 %" if call.at >= utc("2026-03-02 23:00") else QUIET
    world.run_until("2026-03-03 01:10")
    world.request(VerbRequest(mute, (Kind.HEARTBEAT, "ops")))
    if unmuted_at:
        world.run_until(unmuted_at)
        world.request(VerbRequest(Unmute(), (Kind.HEARTBEAT, "ops")))
    world.run_until(f"2026-03-{comes}")
    world.run(hours=20)
    assert [line.partition(" (")[0] for line in sent(world)] == [f"{comes} warning  ops disk:/var: 92 %"], "no reminder yet"


def test_what_waits_for_the_end_of_a_mute_waits_for_that_of_a_second_one_that_is_shorter(make_world: MakeWorld) -> None:
    world = make_world(config(), start="2026-03-02 22:00")
    world.scripts["ops"] = lambda call: "[disk:/var] 92 %" if call.at >= utc("2026-03-02 23:00") else QUIET
    for now, end in (("01:10", "12:30"), ("09:10", "10:30")):
        world.run_until(f"2026-03-03 {now}")
        world.request(VerbRequest(Mute.of(until=utc(f"2026-03-03 {end}")), (Kind.HEARTBEAT, "ops")))
    world.run_until("2026-03-03 20:00")
    assert [line.partition(" (")[0] for line in sent(world)] == ["03 10:30 warning  ops disk:/var: 92 %"]


@pytest.mark.parametrize("verb", [Ack, CloseProblem])
def test_what_a_person_has_acknowledged_or_closed_in_the_night_is_not_sent(make_world: MakeWorld, verb: type) -> None:
    world = make_world(config(), start="2026-03-02 22:00")
    world.scripts["ops"] = lambda call: "[disk] 92 %" if call.at.day == 2 or verb is Ack else "HEARTBEAT_OK"
    world.run_until("2026-03-03 00:30")
    world.request(VerbRequest(verb(), world.problem("disk").id))
    world.run_until("2026-03-03 08:30")
    assert sent(world) == []
    assert not list(list_messages(world.store.connection))


def test_with_hold_critical_problems_wait_too(make_world: MakeWorld) -> None:
    world = make_world(config('{to: phone, hours: "07:00-22:00", critical: hold}'), start="2026-03-02 22:00")
    world.scripts["ops"] = lambda call: "[disk] 99 %" if call.at.hour in (22, 23) else "[disk!] 99 %"
    world.run_until("2026-03-03 07:30")
    assert sent(world) == ["03 07:00 CRITICAL ops disk: 99 % (was warning, since 2026-03-02 22:00 UTC)   p1"]


def test_of_two_problems_in_one_message_the_acknowledged_one_is_left_out(make_world: MakeWorld) -> None:
    """Each of two recipients gets it once."""
    world = make_world(config(f"[{NIGHT}, {NIGHT.replace('phone', 'mail')}]"), start="2026-03-02 22:00")
    world.scripts["ops"] = lambda call: "[disk] 92 %\n[load] 17"
    world.run_until("2026-03-03 00:30")
    world.request(VerbRequest(Ack(), world.problem("disk").id))
    world.run_until("2026-03-03 07:30")
    morning = ["03 07:00 1 message since 22:00:", "", "22:00 warning  ops load: 17 (since 2026-03-02 22:00 UTC)   p2"]
    assert [text.splitlines() for text in sent(world)] == [morning] * 2


def test_a_text_without_a_key_is_sent_although_the_problem_beside_it_is_no_news_any_more(make_world: MakeWorld) -> None:
    """The end of the problem came with the text, and the problem is open again in the morning."""
    world = make_world(config(), start="2026-03-02 20:00")
    at_night(world, h20="[disk] 92 %", h22="The mail stands still.", h23="[disk] 93 %", h00="[disk] 93 %", h01="[disk] 93 %")
    world.run_until("2026-03-03 07:00")
    world.run(minutes=1)
    assert sent(world)[-1].splitlines()[:3] == ["03 07:00 2 messages since 22:00:", "", "22:00 ops: The mail stands still."]


def test_each_recipient_has_its_own_hours(make_world: MakeWorld) -> None:
    """One over midnight, and one that gets messages at any time."""
    hours = '[{to: phone, hours: "22:00-01:30"}, mail]'
    world = make_world(config(hours), start="2026-03-02 20:00")
    channels: list[str] = []
    world.send = lambda outgoing: (
        channels.append(f"{world.clock.now:%d %H:%M} {outgoing.channel.name}") or DeliveryResult("delivered")
    )
    at_night(world, h21="one", h01="two", h02="three", h03="four")
    world.run_until("2026-03-04 00:30")
    assert sorted(channels) == [
        "02 21:00 mail", "02 22:00 phone", "03 01:00 mail", "03 01:00 phone", "03 02:00 mail", "03 03:00 mail", "03 21:00 mail",
        "03 22:00 phone",
    ]  # fmt: skip


@pytest.mark.parametrize("by", ["reload", "restart"])
@pytest.mark.parametrize(("deliver", "comes"), [("phone", "23:15"), ('{to: phone, hours: "06:00-22:00"}', "06:00")])
def test_a_held_message_follows_a_change_of_the_hours(make_world: MakeWorld, deliver: str, comes: str, by: str) -> None:
    world = make_world(config(), start="2026-03-02 22:30")
    world.scripts["ops"] = lambda _: "[disk:/var] 92 %"
    world.run_until("2026-03-02 23:15")
    if by == "reload":
        world.reload(config(deliver))
    else:
        world.write_config(config(deliver))
        world.downtime()
    world.run_until("2026-03-03 12:00")
    assert [f"{at:%H:%M}" for at, _, text in world.delivered if "disk" in text][:1] == [comes]


def test_the_hours_of_last_hold_messages_to_the_last_conversation(make_world: MakeWorld) -> None:
    """The agent has two in the night. Each gets the messages that were for it."""
    chat = 'channels:\n  chat: {kind: webhook, url: "http://127.0.0.1:9/{target}", allow_private: true}\n'
    agents = config('{to: last, hours: "07:00-22:00"}').partition("cron:")[0]
    world = make_world(agents.replace("channels:\n", chat), start="2026-03-02 22:30")
    arrived: list[tuple[str, list[str]]] = []

    def send(delivery: Delivery) -> DeliveryResult:
        arrived.append((delivery.message.recipient, [line for line in delivery.message.text.splitlines() if line]))
        return DeliveryResult("delivered")

    world.send = send
    at_night(world, h23="one", h00="two", h01="three", h02="four")
    for target, until in (("4711", "2026-03-03 01:00"), ("4712", "2026-03-03 07:30")):
        world.request(VerbRequest(NoteActivity(channel="chat", target=target), (Kind.HEARTBEAT, "ops")))
        world.run_until(until)
    assert arrived == [
        ("4711", ["2 messages since 23:30:", "23:30 ops: one", "00:30 ops: two"]),
        ("4712", ["2 messages since 01:30:", "01:30 ops: three", "02:30 ops: four"]),
    ]


def test_the_answer_of_a_run_and_the_end_of_a_failure_that_it_shows_are_two_messages(make_world: MakeWorld) -> None:
    world = make_world(config(), start="2026-03-02 21:00")
    hours = {21: 1, 22: "Somebody has logged in."}
    world.scripts["ops"] = lambda call: hours.get(call.at.hour, QUIET)
    world.run_until("2026-03-03 07:30")
    assert sent(world)[-1].splitlines()[:5] == [
        "03 07:00 2 messages since 22:00:", "", "22:00 ops: Somebody has logged in.", "",
        "22:00 over     ops failed: after 1h   p1",
    ]  # fmt: skip


def test_two_recipients_may_share_their_hours(make_world: MakeWorld) -> None:
    world = make_world(config('{to: [phone, mail], hours: "22:00-01:30"}'), start="2026-03-02 20:00")
    at_night(world, h21="one")
    world.run_until("2026-03-02 23:30")
    assert [f"{at:%H:%M}" for at, _, _ in world.delivered] == ["22:00", "22:00"]


@pytest.mark.parametrize(
    ("deliver", "problems", "times"),
    [
        ("phone", '{to: phone, hours: "09:00-22:00"}', {"answer": "01:00", "failure": "09:00"}),
        ('{to: phone, hours: "07:00-22:00"}', "phone", {"answer": "07:00", "failure": "02:00"}),
        ('{to: phone, hours: "07:00-22:00"}', '{to: phone, hours: "09:00-22:00"}', {"answer": "07:00", "failure": "09:00"}),
    ],
)
def test_messages_about_failures_have_hours_of_their_own(
    make_world: MakeWorld, deliver: str, problems: str, times: dict[str, str]
) -> None:
    rule = f"{{after: 1, deliver: {problems}}}"
    world = make_world(config(deliver).replace("problems: {after: 1}", f"problems: {rule}"), start="2026-03-02 22:00")
    world.scripts["ops"] = lambda call: {1: "Somebody has logged in.", 2: 1}.get(call.at.hour, 1 if call.at.hour < 10 else QUIET)
    world.run_until("2026-03-03 09:30")
    arrived = {
        "failure" if "failed" in text else "answer": f"{at:%H:%M}"
        for at, _, text in world.delivered
        if "ops" in text or "logged" in text
    }
    assert arrived == times


def test_the_messages_of_a_night_are_not_held_again(make_world: MakeWorld) -> None:
    """They come as one message, which is no message about failures."""
    rule = '{after: 1, deliver: {to: phone, hours: "09:00-22:00"}}'
    world = make_world(config().replace("problems: {after: 1}", f"problems: {rule}"), start="2026-03-02 22:00")
    at_night(world, h01="one", h03="two")
    world.run_until("2026-03-03 07:30")
    assert [text.splitlines()[0] for text in sent(world)] == ["03 07:00 2 messages since 01:00:"]


def test_after_the_clock_was_set_back_a_held_message_waits_for_the_next_hours(make_world: MakeWorld) -> None:
    """Not for the time that was left, which would end at 06:05 in the night."""
    world = make_world(config(), start="2026-03-04 22:00")
    world.scripts["ops"] = lambda call: "Somebody has logged in." if f"{call.at:%d %H}" == "04 23" else QUIET
    world.run_until("2026-03-05 06:30")
    world.clock.now -= timedelta(days=2, hours=8, minutes=25)
    world.run_until("2026-03-03 08:30")
    assert sent(world) == ["03 07:00 Somebody has logged in."]


def test_a_message_whose_hours_have_passed_during_a_suspension_waits_for_the_next_ones(make_world: MakeWorld) -> None:
    world = make_world(config(), start="2026-03-02 22:00")
    at_night(world, h01="one")
    world.run_until("2026-03-03 03:30")
    world.sleep(hours=20)
    world.run_until("2026-03-04 08:30")
    assert sent(world) == ["04 07:00 one"]


def test_a_held_message_survives_a_restart_and_is_sent_once(make_world: MakeWorld) -> None:
    world = make_world(config(), start="2026-03-02 22:00")
    at_night(world, h23="one", h01="two")
    world.run_until("2026-03-03 03:30")
    world.downtime(hours=1)
    world.run_until("2026-03-03 06:59")
    assert sent(world) == []
    world.kill()
    world.clock.advance(timedelta(hours=1))
    world.boot()
    world.run_until("2026-03-03 09:30")
    assert [each.splitlines()[0] for each in sent(world)] == ["03 07:59 2 messages since 23:00:"]


def test_a_person_sends_a_held_message_at_night(make_world: MakeWorld) -> None:
    world = make_world(config(), start="2026-03-02 22:00")
    at_night(world, h23="one", h01="two")
    world.run_until("2026-03-03 03:30")
    first = min(each.id for each in list_messages(world.store.connection))
    world.request(VerbRequest(Retry(), first))
    world.run_until("2026-03-03 08:30")
    assert sent(world) == ["03 03:30 one", "03 07:00 two"]


def test_a_message_of_a_night_that_is_refused_in_the_morning_is_given_up_for_all_its_texts(make_world: MakeWorld) -> None:
    world = make_world(config(), start="2026-03-02 22:00")
    world.send = lambda _: DeliveryResult("dead", "chat not found")
    at_night(world, h23="one", h01="two")
    world.run_until("2026-03-03 07:30")
    states = [(each.state, each.error) for each in list_messages(world.store.connection) if each.channel == "phone"]
    assert states == [("dead", "chat not found")] * 3
    *_, common = ids = sorted(each.id for each in list_messages(world.store.connection) if each.channel == "phone")
    assert {*ids} & {*movable_messages(world.store.connection)} == {common}, "with `outbox retry --all`, nobody gets a text twice"
    first = ids[0]
    world.send = lambda _: DeliveryResult("delivered")
    world.delivered.clear()
    world.request(VerbRequest(Retry(), first))
    world.run(minutes=1)
    assert sent(world) == ["03 07:30 one"], "a person can send one of them alone"


def test_a_text_that_comes_again_does_not_drop_the_texts_of_others_that_were_given_up_with_it(make_world: MakeWorld) -> None:
    world = make_world(config(), start="2026-03-02 22:00")
    world.send = lambda _: DeliveryResult("dead" if world.clock.now < utc("2026-03-03 07:30") else "delivered", "chat not found")
    at_night(world, h23="one", h08="one")
    world.scripts["web"] = lambda call: "two" if call.at.hour == 1 else QUIET
    world.run_until("2026-03-03 08:30")
    assert sent(world)[-1] == "03 08:00 one"
    given_up = [each for each in list_messages(world.store.connection) if each.name == "web" and each.channel == "phone"]
    assert [each.state for each in given_up] == ["dead"], "a person can still send it"


def test_each_agent_of_a_common_message_is_shown_as_undelivered_while_it_is_retried(make_world: MakeWorld) -> None:
    world = make_world(config(), start="2026-03-02 22:00")
    world.send = lambda _: DeliveryResult("retry", "the network is down")
    at_night(world, h23="one")
    world.scripts["web"] = lambda call: "two" if call.at.hour == 1 else QUIET
    world.run_until("2026-03-03 06:59")

    def undelivered() -> dict[str, str | None]:
        status = read_status(world.store.connection, world.clock.now, world.engine.plan.settings.zone)
        return {each.name: each.undelivered and each.undelivered.says for each in status.entries}

    assert undelivered() == {"ops": None, "web": None, "backup": None}
    world.run_until("2026-03-03 07:20")
    late = "1 message accepted for phone, not delivered (3 tries, the network is down)"
    assert undelivered() == {"ops": late, "web": late, "backup": None}
    assert read_status(world.store.connection, world.clock.now, world.engine.plan.settings.zone).held == []
    (common,) = movable_messages(world.store.connection)
    for verb in (Retry(), Drop()):  # else the text would come twice, or although it was dropped
        with pytest.raises(Refused, match=f"is sent together with others as message {common}"):
            world.request(VerbRequest(verb, common - 1))
    assert first_line(world, "web") == f"{late}, since 07:00"


def test_the_messages_of_a_weekend_come_with_their_days(make_world: MakeWorld) -> None:
    deliver = '{to: phone, hours: {start: "07:00", end: "22:00", days: mon-fri}}'
    world = make_world(config(deliver), start="2026-03-06 21:30")  # a Friday
    said = iter(["one", *[QUIET] * 50, "two"])
    world.scripts["ops"] = lambda call: next(said, QUIET) if call.at.hour >= 22 or call.at.day > 6 else QUIET
    world.run_until("2026-03-09 07:30")
    (message,) = sent(world)
    assert message == "09 07:00 2 messages since 2026-03-06 22:30:\n\n2026-03-06 22:30 ops: one\n\n2026-03-09 01:30 ops: two"


def test_each_agent_of_a_common_message_has_said_its_own_texts(make_world: MakeWorld) -> None:
    world = make_world(config(), start="2026-03-02 22:00")
    at_night(world, h23="one", h05="three")
    world.run_until("2026-03-03 07:30")
    at_night(world, h23="four")
    world.scripts["web"] = lambda call: "two" if call.at.hour == 1 else QUIET
    world.run_until("2026-03-04 07:30")
    said = {name: [each.text for each in said_by(world.store.connection, name, "phone", 9)] for name in ("ops", "web")}
    assert said == {"ops": ["four", "2 messages since 23:00:\n\n23:00 ops: one\n\n05:00 ops: three"], "web": ["two"]}


def test_the_hours_of_the_person_who_wrote_last_are_not_those_of_another_target(make_world: MakeWorld) -> None:
    hours = '[{to: last, hours: "07:00-22:00"}, mail]'
    text = config().replace(f"deliver: {NIGHT}", f"deliver: {hours}", 2)
    text = text.replace("channels:\n", 'channels:\n  chat: {url: "tgram://1:a/{target}", prefix: none}\n')
    world = make_world(text, start="2026-03-02 22:00")
    at_night(world, h23="one")
    world.run_until("2026-03-03 07:30")
    assert sent(world) == ["02 23:00 one"]


def test_a_text_of_an_agent_that_looks_like_a_problem_is_kept(make_world: MakeWorld) -> None:
    world = make_world(config(), start="2026-03-02 22:00")
    at_night(world, h23="[disk] 92 %", h01="Some lines:\nthe pool   p1", h02="again")
    world.run_until("2026-03-03 07:30")
    assert "the pool   p1" in sent(world)[0]


@pytest.mark.parametrize(
    ("of_web", "arrives"), [(NIGHT, ["03 07:00"]), ("phone", ["02 23:00"]), (NIGHT.replace("07", "06"), ["03 06:00"])]
)
def test_a_message_about_a_provider_waits_if_all_its_recipients_have_hours(
    make_world: MakeWorld, of_web: str, arrives: list[str]
) -> None:
    config_of_web = (
        config().replace(f"deliver: {NIGHT}", f"deliver: {of_web}", 2).replace(f"deliver: {of_web}", f"deliver: {NIGHT}", 1)
    )
    world = make_world(config_of_web, start="2026-03-02 23:00")
    with world.store.transaction() as db:
        tx = Transaction(db, world.clock.now, "boot1", None)
        about = Origin(NO_RUN, "provider", "anthropic", "manual", world.clock.now)
        queue_notice(
            tx,
            world.engine.plan.settings.channels,
            about,
            "open p1",
            "it refuses the key",
            (Target("phone"),),
            "provider anthropic",
        )
    world.run_until("2026-03-03 08:30")
    assert [line[:8] for line in sent(world)] == arrives


@pytest.mark.parametrize(("deliver", "arrives"), [("mail", "03 09:00"), ("[mail, phone]", "02 23:00")])
def test_a_message_about_a_provider_waits_for_the_hours_of_problems_too(
    make_world: MakeWorld, deliver: str, arrives: str
) -> None:
    """It goes to a recipient of the problems of its agents, which may also get their answers, at any time."""
    rule = 'problems: {after: 1, deliver: {to: phone, hours: "09:00-22:00"}}'
    world = make_world(config(deliver).replace("problems: {after: 1}", rule), start="2026-03-02 23:00")
    report_provider(world, Severity.WARNING)
    world.run_until("2026-03-03 09:30")
    assert [line[:8] for line in sent(world)] == [arrives]


HELD = NIGHT.replace("}", ", critical: hold}")


@pytest.mark.parametrize(("of_web", "arrives"), [(NIGHT, "02 23:00"), (HELD, "03 07:00")])
def test_a_critical_problem_of_a_provider_is_sent_at_night_if_one_of_its_agents_wants_that(
    make_world: MakeWorld, of_web: str, arrives: str
) -> None:
    before, between, after = config(HELD).split(HELD, 2)
    world = make_world(f"{before}{HELD}{between}{of_web}{after}", start="2026-03-02 23:00")
    report_provider(world, Severity.CRITICAL)
    world.run_until("2026-03-03 07:30")
    assert [line[:8] for line in sent(world)] == [arrives]


def report_provider(world: World, severity: Severity) -> None:
    """Report a problem of a provider to the phone."""
    subject, found = Subject(PROVIDER, "anthropic"), Symptom("refused", severity, "it refuses the key", "auth", "auth")
    with world.store.transaction() as db:
        tx = Transaction(db, world.clock.now, "boot1", None)
        problem = problems.save_problem(tx, after_symptom(None, subject, found, tx.now))
        about = Origin(NO_RUN, *subject[:2], "manual", tx.now)
        notices.send_news(Tick(tx, world.engine.plan, tx.now, Random(7)), problem, [Target("phone")], about)


def test_all_parts_of_a_long_message_wait_and_come_together_with_the_others(make_world: MakeWorld) -> None:
    world = make_world(config(), start="2026-03-02 22:30")
    long = "\n".join(f"line {number} of the log" for number in range(300))
    at_night(world, h23=long, h00=long.replace("log", "journal"), h01="The night is calm.")
    world.run_until("2026-03-03 06:00")
    held = read_status(world.store.connection, world.clock.now, world.engine.plan.settings.zone).held
    assert [each.count for each in held] == [3]
    world.run_until("2026-03-03 07:01")
    texts = [text for _, _, text in world.delivered]
    assert len(texts) == 4
    assert texts[0].startswith("3 messages since 23:30:\n\n23:30 ops: line 0 of the log")
    assert "line 299 of the journal" in texts[3] and texts[3].endswith("01:30 ops: The night is calm.")


@pytest.mark.sqlite_file("it counts the rows of this connection")
@pytest.mark.parametrize("deliver", [NIGHT, "phone"])
def test_a_tick_looks_only_at_the_messages_that_are_next(make_world: MakeWorld, deliver: str) -> None:
    """A channel that is slow for long has thousands of messages that are due. They do not make each tick slower."""
    world = make_world(config(deliver), start="2026-03-02 12:00")
    world.send = lambda _: Delayed(DeliveryResult("delivered"), timedelta(seconds=1))
    queue_texts(world, "web", 1_000)
    read = 0

    def count(cursor: sqlite3.Cursor, values: tuple[object, ...]) -> sqlite3.Row:
        nonlocal read
        read += 1
        return sqlite3.Row(cursor, values)

    world.store.connection.row_factory = count
    world.run(seconds=5)
    assert len(world.delivered) == 24
    assert read < 2_000


def test_a_message_behind_many_that_are_held_is_sent_at_once(make_world: MakeWorld) -> None:
    world = make_world(config().replace(f"deliver: {NIGHT}", "deliver: mail", 1), start="2026-03-02 23:00")
    queue_texts(world, "web", 200)
    queue_texts(world, "ops", 1, "mail")
    assert sent(world) == ["02 23:00 text 0 of ops"]
    assert {each.state for each in list_messages(world.store.connection)} == {"pending"}


@pytest.mark.parametrize("deliver", [NIGHT, "phone"])
def test_a_message_behind_many_of_a_slow_channel_is_sent_at_once(make_world: MakeWorld, deliver: str) -> None:
    world = make_world(config(deliver), start="2026-03-02 12:00")
    world.send = lambda sent: Delayed(
        DeliveryResult("delivered"), timedelta(hours=1) if sent.channel.name == "phone" else timedelta()
    )
    queue_texts(world, "web", 200)
    queue_texts(world, "ops", 1, "mail")
    assert [line for line in sent(world) if "of ops" in line] == ["02 12:00 text 0 of ops"]


def queue_texts(world: World, name: str, count: int, channel: str = "phone") -> None:
    """Queue messages about runs of an agent, and tick until nothing more happens at this time."""

    def queue(tick: Tick) -> None:
        for number in range(count):
            about = Origin(10_000 + number, "heartbeat", name, "interval", tick.now - timedelta(seconds=number))
            queue_notice(tick.tx, tick.plan.settings.channels, about, "open p1", f"text {number} of {name}", (Target(channel),))

    world.request(queue)
    world.settle()

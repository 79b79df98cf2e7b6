"""`deliver: last` end to end: messages go to the target that last talked to the agent, and to no other."""

from __future__ import annotations

import json
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from config_file import complaints, read
from loops import loop_over
from servers import telegram
from servers.telegram import Telegram, refusal
from world import MakeWorld, World, send_by_transport

from heartbeatd.verbs import NoteActivity
from scheduler.config.settings.load import load_config
from scheduler.engine.delivery import Delivery
from scheduler.engine.effects import VerbRequest
from scheduler.engine.tick_items import Refused
from scheduler.insight.status_data import read_status
from scheduler.model.events import TargetUnknown
from scheduler.model.message import DeliveryResult
from scheduler.model.outcome import Kind
from scheduler.store.agent_memory import MAX_TARGETS, known_targets

TOKEN = telegram.TOKEN


def config(deliver: str = "last", more: str = "", url: str = "https://chat.example.org/to/{target}?x=1") -> str:
    return f"""\
channels:
  chat: {{kind: webhook, url: "{url}"}}
{more}agents:
  ops: {{runner: {{kind: command, argv: [agent]}}, heartbeat: {{interval: 30m, stagger: 0, checklist: "- look\\n", deliver: {deliver}}}}}
"""


@pytest.fixture
def sent() -> list[tuple[str, str]]:
    """The URL and text of each message sent."""
    return []


@pytest.fixture
def world(make_world: MakeWorld, sent: list[tuple[str, str]]) -> World:
    world = make_world(config(), scripts={"ops": lambda call: "Disk full"})

    def send(delivery: Delivery) -> DeliveryResult:
        assert delivery.channel.url
        sent.append((delivery.channel.url.reveal(), delivery.message.text))
        return DeliveryResult("delivered")

    world.send = send
    return world


def report_activity(world: World, *recipients: str, channel: str = "chat") -> None:
    """Report user activity at these targets, to be applied in the next tick."""
    for each in recipients:
        world.inbox.submit(VerbRequest(NoteActivity(channel=channel, target=each), (Kind.HEARTBEAT, "ops")))


def report_target(world: World, recipient: str, channel: str = "chat", title: str | None = None, queue: int | None = None) -> Any:
    """Report user activity at one target and return the answer."""
    return world.request(
        VerbRequest(NoteActivity.of(channel=channel, target=recipient, title=title, queue=queue), (Kind.HEARTBEAT, "ops"))
    )


def delivery_states(world: World) -> list[str]:
    return [row["delivery"]["state"] for row in world.records()]


def test_a_message_goes_to_the_last_target(world: World, sent: list[tuple[str, str]]) -> None:
    report_activity(world, "7", "8")
    world.run(minutes=1)
    assert sent == [("https://chat.example.org/to/8?x=1", "Disk full")]
    (sent,) = world.records()[0]["delivery"]["targets"]
    assert (sent["channel"], sent["target"], sent["says"]) == ("chat", "8", "delivered to chat:8")


def test_a_target_that_is_active_again_is_the_last_one_again(world: World, sent: list[tuple[str, str]]) -> None:
    report_activity(world, "7", "8", "7")
    world.run(minutes=1)
    assert [url for url, _ in sent] == ["https://chat.example.org/to/7?x=1"]


def test_without_a_target_the_text_is_recorded_and_logged_as_not_sent(world: World, sent: list[tuple[str, str]]) -> None:
    world.run(minutes=1)
    (row,) = world.records()
    assert (row["result"], row["why"], row["text"], row["delivery"]["state"]) == (
        "alert",
        None,
        "Disk full",
        "no_target",
    )
    assert [event for event in world.events if isinstance(event, TargetUnknown)] == [TargetUnknown(row["id"], row["kind"], "ops")]
    report_activity(world, "7")
    world.run(minutes=30)
    assert (delivery_states(world), [text for _, text in sent]) == (["no_target", "delivered"], ["Disk full"])


@pytest.mark.parametrize("answer", ["Disk full", "[disk] full"])
def test_an_unknown_last_target_is_logged_even_if_another_channel_gets_the_message(world: World, answer: str) -> None:
    world.scripts = {"ops": lambda call: answer}
    world.reload(config("[last, log]"))
    world.run(minutes=1)
    assert [each["channel"] for each in world.records()[0]["delivery"]["targets"]] == ["log"]
    assert any(isinstance(event, TargetUnknown) for event in world.events)


def test_the_last_target_survives_a_restart(world: World, sent: list[tuple[str, str]]) -> None:
    report_target(world, "7")
    world.downtime(minutes=35)
    world.run(minutes=60)
    assert [url for url, _ in sent] == ["https://chat.example.org/to/7?x=1"]


def test_a_pending_message_keeps_its_target(world: World, sent: list[tuple[str, str]]) -> None:
    send, world.send = world.send, lambda _: DeliveryResult("retry", "down")
    report_activity(world, "7")
    world.run(seconds=5)
    report_activity(world, "8")
    world.send = send
    world.downtime(minutes=1)
    world.run(minutes=10)
    assert sent == [("https://chat.example.org/to/7?x=1", "Disk full")]


def test_a_target_that_refused_a_message_and_is_the_last_one_no_more_has_no_problem(make_world: MakeWorld) -> None:
    """No message is sent there again, so nothing else could end its problem."""
    answers = iter(["Disk full"])
    other = '  other: {kind: webhook, url: "https://other.example.org"}\n'
    world = make_world(config(more=other), scripts={"ops": lambda _: next(answers, "HEARTBEAT_OK")})

    def send(delivery: Delivery) -> DeliveryResult:
        return DeliveryResult("dead", "410 Gone") if "to/7" in delivery.channel.url.reveal() else DeliveryResult("delivered")

    def problems_of_channels() -> list[str]:
        return [each.subject for each in read_status(world.store.connection, world.clock.now).problems]

    world.send = send
    report_activity(world, "7")
    world.run(hours=25)
    assert problems_of_channels() == ["channel/chat/7"]
    report_activity(world, "8")
    world.run(minutes=2)
    assert problems_of_channels() == []


def test_a_duplicate_alert_is_sent_once_to_each_target(world: World, sent: list[tuple[str, str]]) -> None:
    report_activity(world, "7")
    world.run(minutes=29)
    for recipient in ("7", "8", "7", "8"):
        report_activity(world, recipient)
        world.run(minutes=30)
    assert [url[-5] for url, _ in sent] == ["7", "8"]
    assert [row["why"] for row in world.records()] == [None, "duplicate", None, "duplicate", "duplicate"]


def test_two_channels_with_the_same_url_get_one_message(world: World, sent: list[tuple[str, str]]) -> None:
    fixed = "".join(
        f'  {name}: {{kind: webhook, url: "https://chat.example.org/to/{to}?x=1"}}\n' for name, to in (("aide", 5), ("boss", 7))
    )
    report_activity(world, "7")
    world.reload(config("[last, aide, boss]", fixed))
    world.run(minutes=1)
    assert [each["channel"] for each in world.records()[0]["delivery"]["targets"]] == ["aide", "boss"]
    report_activity(world, "8")
    world.run(minutes=30)
    assert [url[-5] for url, _ in sent] == ["5", "7", "8"]


def test_the_same_chat_on_two_servers_gets_the_message_on_both(make_world: MakeWorld) -> None:
    chats = "\n".join(
        f'  {name}: {{url: "tgram://${{TOKEN}}/{chat}", base_url: "https://{name}.example.org"}}'
        for name, chat in (("one", "{target}"), ("two", "7"))
    )
    agents = config("[last, two]").partition("agents:")[2]
    world = make_world(
        f"channels:\n{chats}\nagents:{agents}", environ={"TOKEN": TOKEN}, scripts={"ops": lambda call: "Disk full"}
    )
    report_activity(world, "7", channel="one")
    world.run(minutes=1)
    assert [each["channel"] for each in world.records()[0]["delivery"]["targets"]] == ["two", "one"]


def test_a_last_target_on_a_removed_channel_gets_no_replacement(world: World) -> None:
    two = '  old: {kind: webhook, url: "https://old.example.org/{target}"}\n'
    world.reload(config(more=two))
    report_activity(world, "7")
    report_activity(world, "8", channel="old")
    world.request(VerbRequest(NoteActivity(queue=1), (Kind.HEARTBEAT, "ops")))
    world.reload(config())
    world.run(minutes=1)
    assert delivery_states(world) == ["no_target"]


@pytest.mark.parametrize("recipient", ["7", "@news", "42:5"])
def test_a_target_that_is_also_a_named_channel_gets_a_message_once(
    world: World, sent: list[tuple[str, str]], recipient: str
) -> None:
    room = f'  room: {{kind: webhook, url: "https://chat.example.org/to/{recipient}?x=1"}}\n'
    report_activity(world, recipient)
    world.reload(config("[room, last]", more=room))
    world.run(minutes=1)
    assert [text for _, text in sent] == ["Disk full"]


@pytest.mark.parametrize("url", ["https://chat.example.org/to/all", None])
def test_a_pending_message_is_not_sent_to_another_place_when_its_channel_changes(
    world: World, sent: list[Any], url: str | None
) -> None:
    send, world.send = world.send, lambda _: DeliveryResult("retry", "down")
    report_activity(world, "7")
    world.run(seconds=5)
    world.send = send
    world.reload(config("log", url=url) if url else config("log").replace("chat:", "talk:"))
    world.run(minutes=5)
    (error,) = [each["error"] for each in world.records()[0]["delivery"]["targets"]]
    assert sent == []
    assert error == (
        "the URL of channels.chat no longer has {target}, so the message would reach a different recipient"
        if url
        else "channels.chat is no longer declared"
    )


def test_the_number_of_known_targets_is_limited_and_they_keep_their_titles(world: World) -> None:
    report_target(world, "first", title="Family")
    report_activity(world, *(f"chat{number}" for number in range(MAX_TARGETS + 5)))
    report_target(world, "chat7", title="Work")
    last = report_target(world, "chat7").last
    assert last is not None
    assert (last.target, last.title) == ("chat7", "Work")
    assert world.store.connection.execute("select count(*), count(*) filter (where title = 'Family') from target").fetchone()[
        :
    ] == (MAX_TARGETS, 0)


def test_the_known_targets_of_one_agent_do_not_limit_those_of_another(world: World) -> None:
    world.reload(f"{config()}  web: {{runner: {{kind: command, argv: [agent]}}, heartbeat: {{interval: 30m, deliver: last}}}}\n")
    report_target(world, "family", title="Family")
    for number in range(MAX_TARGETS):
        world.inbox.submit(VerbRequest(NoteActivity(channel="chat", target=f"web{number}"), (Kind.HEARTBEAT, "web")))
    report_target(world, "work")
    assert [each.target for each in known_targets(world.store.connection, "ops")] == ["work", "family"]


HOSTILE = [
    "../../admin",
    "..",
    ".",
    "",
    "a/b",
    "a b",
    "a\nHost: x",
    "7?admin=1",
    "7&to=8",
    "7%2F..",
    "a,b",
    "x\\y",
    "ünï",
    "7" * 10_240,
]


@pytest.mark.parametrize("recipient", HOSTILE, ids=range(len(HOSTILE)))
def test_an_invalid_target_is_refused(world: World, recipient: str) -> None:
    with pytest.raises((Refused, ValueError), match="target: write "):
        report_target(world, recipient)


@pytest.mark.parametrize(
    "recipient", ["@everyone", "#general", "a@example.org", "+49301234", "!room:example.org", "a=b", "~x", "a..b"]
)
def test_special_characters_of_a_target_are_encoded_in_the_url(world: World, sent: list[tuple[str, str]], recipient: str) -> None:
    report_activity(world, recipient)
    world.run(minutes=1)
    slot = sent[0][0].removeprefix("https://chat.example.org/to/").removesuffix("?x=1")
    assert not set(slot) & set("/?#&@:=+!")
    assert len(slot) >= len(recipient)


@pytest.mark.parametrize(
    ("channel", "error"),
    [
        ("cli", "channel: cli is internal and has no users"),
        ("Heartbeat", "channel: Heartbeat is internal"),
        ("tgram://1:canary/7", "channel: this is a URL; declare it under channels:"),
        ("log", "channel: give the name of a channel whose URL in the config contains {target}: chat"),
        ("canary", "channel: give the name of a channel"),
        ("fixed", "channel: give the name of a channel"),
    ],
)
def test_only_a_declared_channel_with_a_target_placeholder_is_accepted(world: World, channel: str, error: str) -> None:
    world.reload(config(more='  fixed: {kind: webhook, url: "https://example.org/x"}\n'))
    with pytest.raises(Refused) as refused:
        report_target(world, "7", channel, queue=9)
    assert str(refused.value).startswith(error)
    assert "canary" not in str(refused.value)
    assert world.store.connection.execute("select queue from entry").fetchone()[0] is None


def chat(server: Telegram, url: str = "tgram://${TOKEN}/{target}") -> str:
    return config(url="x").replace('kind: webhook, url: "x"', f'url: "{url}", base_url: "{server.url}", allow_private: true')


@pytest.mark.parametrize(
    ("recipient", "chat_id", "topic"), [("-1007", "-1007", None), ("@news", "@news", None), ("42:5", "42", 5)]
)
def test_a_telegram_message_goes_to_the_last_chat(
    make_world: MakeWorld, phone: Telegram, recipient: str, chat_id: str, topic: int | None
) -> None:
    world = make_world(chat(phone), environ={"TOKEN": TOKEN}, send=send_by_transport, scripts={"ops": lambda call: "Disk full"})
    report_activity(world, recipient)
    world.run(minutes=1)
    (request,) = phone.requests
    assert request.path == f"/bot{TOKEN}/sendMessage"
    assert (str(request.json["chat_id"]), request.json.get("message_thread_id")) == (chat_id, topic)


def test_a_target_that_is_no_telegram_chat_is_refused(make_world: MakeWorld, phone: Telegram) -> None:
    world = make_world(chat(phone), environ={"TOKEN": TOKEN})
    with pytest.raises(Refused, match="target: write the number or @name of a Telegram chat") as refused:
        report_target(world, "a@example.org")
    assert TOKEN not in str(refused.value)


def test_no_secret_of_a_channel_with_a_placeholder_is_shown_or_stored(
    make_world: MakeWorld, phone: Telegram, tmp_path: Path
) -> None:
    phone.script = [refusal(500, f"bad {TOKEN}")]
    world = make_world(chat(phone), environ={"TOKEN": TOKEN}, send=send_by_transport, scripts={"ops": lambda call: "Disk full"})
    report_activity(world, "7")
    world.run(hours=1)
    shown = f"{load_config(world.config, world.environ).settings!r} {world.events} {world.records()}"
    state = b"".join(file.read_bytes() for file in world.state.parent.rglob("*") if file.is_file())
    assert len(phone.requests) > 1
    assert "canary" not in shown
    assert b"canary" not in state


def test_the_queue_and_pending_approvals_are_in_the_next_prompt(world: World) -> None:
    world.run(minutes=1)
    world.request(VerbRequest(NoteActivity(queue=3, pending_approvals=1), (Kind.HEARTBEAT, "ops")))
    world.run(minutes=30)
    world.request(VerbRequest(NoteActivity(queue=0), (Kind.HEARTBEAT, "ops")))
    world.run(minutes=30)
    metas = [json.loads(str(call.env["HEARTBEATD_META"])) for call in world.calls]
    assert [(meta["queue"], meta["pending_approvals"]) for meta in metas] == [(None, None), (3, 1), (0, 1)]
    recorded = world.request(VerbRequest(NoteActivity(pending_approvals=2), (Kind.HEARTBEAT, "ops")))
    assert (recorded.queue, recorded.pending_approvals) == (0, 2)
    assert metas[1]["last_activity"] == "2026-03-02T08:01:00Z"
    assert "Reported 29m ago: 3 in your queue, 1 waiting for the user's approval." in world.calls[1].stdin
    assert "in your queue" not in world.calls[0].stdin + world.calls[2].stdin


def test_a_channel_with_a_placeholder_can_be_the_only_channel(tmp_path: Path) -> None:
    loaded = read(tmp_path, config().replace(", deliver: last", ""))
    assert loaded.settings.heartbeats["ops"].deliver == ("last",)
    assert loaded.warnings == ()


@loop_over(
    ("deliver", "url", "line"),
    [
        ("chat", "https://x.org/{target}", "agents.ops.heartbeat.deliver: the URL of chat holds {target}, and names no recipient; write last, or a recipient in the URL"),
        ("last", "https://x.org/", 'agents.ops.heartbeat.deliver: last needs a channel whose URL contains {target} in place of the recipient; write channels: {chat: "tgram://${TOKEN}/{target}"}'),
        ("lst", "https://x.org/{target}", "agents.ops.heartbeat.deliver: 'lst' is not a declared channel; did you mean last?"),
        ("last", "https://{target}/x", "channels.chat.url: {target} cannot be the host or a login; write it after them, as in tgram://TOKEN/{target}"),
        ("last", "https://u:{target}@x.org/", "channels.chat.url: {target} cannot be the host or a login; write it after them, as in tgram://TOKEN/{target}"),
        ("last", "https://x.org{target}", "channels.chat.url: {target} cannot be the host or a login; write it after them, as in tgram://TOKEN/{target}"),
        ("last", "https://x.org/{target}/{target}", "channels.chat.url: {target} may occur only once in a URL"),
        ("last", "https://x.org/#{target}", "channels.chat.url: the part after # is never sent; write {target} before it"),
        ("last", "https://x.org/${SLOT}/{target}", "channels.chat.url: {target} must be in this file and not in a referenced value; write it here"),
        ("last", "https://x.org/${NOPE}/{target}", "channels.chat.url: NOPE is not set; export it before heartbeatd starts, or write it into the env_file"),
        ("log", "https://x.org/${SLOT}", "channels.chat.url: {target} must be in this file and not in a referenced value; write it here"),
    ],
)  # fmt: skip
def test_a_config_with_an_unusable_last_or_target_is_refused(tmp_path: Path, deliver: str, url: str, line: str) -> None:
    found = complaints(tmp_path, config(deliver, url=url), {"SLOT": "{target}"})
    assert [each.split(": ", 1)[1] for each in found] == [line]


@loop_over(
    ("url", "kind", "faults"),
    [
        ("tgram://1:abc/{target}", "telegram", 0),
        ("tgram://1:abc/-100:{target}", "telegram", 0),
        ("tgram://{target}/7", "telegram", 1),
        ("tgram://1:abc/7/{target}", "telegram", 1),
        ("discord://42/abc?thread={target}", "discord", 0),
        ("discord://42/{target}", "discord", 1),
        ("ntfys://ntfy.example.org/{target}", "apprise", 0),
        ("ntfy://{target}", "apprise", 1),
        ("mailtos://me:secret@example.org?to={target}", "apprise", 0),
        ("carrier://x/{target}", "apprise", 1),
    ],
)
def test_the_url_of_every_kind_of_channel_can_have_a_placeholder(tmp_path: Path, url: str, kind: str, faults: int) -> None:
    text = config(url=url).replace("kind: webhook, ", "")
    assert len(complaints(tmp_path, text)) == faults
    if not faults:
        channel = read(tmp_path, text).settings.channels["chat"]
        assert (channel.kind, channel.needs_target) == (kind, True)


def test_a_job_cannot_deliver_to_last(tmp_path: Path) -> None:
    text = config() + "cron: {tick: {every: 6h, command: x, deliver: last}}\n"
    assert complaints(tmp_path, text) == [
        "config.yaml:5:47: cron.tick.deliver: last is the recipient who wrote to an agent last, and this job calls no agent; write the name of a channel"
    ]


def test_a_job_with_a_prompt_delivers_to_the_last_target_of_its_agent(world: World, sent: list[tuple[str, str]]) -> None:
    world.scripts["tick"] = lambda call: "Done"
    world.reload(config("log") + "cron: {tick: {every: 6h, prompt: Look., agent: ops, deliver: last}}\n")
    world.request(VerbRequest(NoteActivity(channel="chat", target="7", queue=3, pending_approvals=1), (Kind.HEARTBEAT, "ops")))
    world.run(hours=7)
    assert sent == [("https://chat.example.org/to/7?x=1", "Done")]
    meta = json.loads(str(next(call.env for call in world.calls if call.name == "tick")["HEARTBEATD_META"]))
    assert (meta["queue"], meta["pending_approvals"]) == (3, 1)


def failing(world: World, **more: str) -> None:
    world.scripts["ops"] = lambda call: 1
    world.reload(config(more["deliver"], more.get("channels", "")).replace("interval: 30m", "interval: 30m, retries: 0"))


def test_failure_notifications_can_go_to_the_last_target(world: World, sent: list[tuple[str, str]]) -> None:
    report_activity(world, "7")
    failing(world, deliver="last")
    world.run(minutes=31)
    assert [(url, text.splitlines()[0][:19]) for url, text in sent] == [
        ("https://chat.example.org/to/7?x=1", "warning  ops failed")
    ]


def test_failure_notifications_without_a_last_target_go_to_another_channel(world: World, sent: list[tuple[str, str]]) -> None:
    failing(world, deliver="last", channels='  boss: {kind: webhook, url: "https://boss.example.org/"}\n')
    world.run(minutes=31)
    assert [url for url, _ in sent] == ["https://boss.example.org/"]


def test_a_channel_that_fails_for_one_target_still_works_for_others(world: World, sent: list[tuple[str, str]]) -> None:
    boss = '  boss: {kind: webhook, url: "https://boss.example.org/"}\n'
    failing(world, deliver="last", channels=boss)
    takes = world.send

    def send(delivery: Delivery) -> DeliveryResult:
        return DeliveryResult("dead", "blocked") if "to/7" in delivery.channel.url.reveal() else takes(delivery)

    world.send = send
    report_activity(world, "7")
    world.run(minutes=31)
    report_activity(world, "8")
    world.run(hours=6)
    report_activity(world, "7")
    world.run(hours=6)
    assert [(url, text.splitlines()[0][:48]) for url, text in sent] == [
        ("https://boss.example.org/", "CRITICAL channel chat:7 undelivered: blocked (si"),
        ("https://chat.example.org/to/8?x=1", "warning  ops failed: exit code 1 (3 times in a r"),
        ("https://boss.example.org/", "warning  ops failed: exit code 1 (15 times in a "),
    ]


def test_a_message_that_a_recipient_never_got_is_shown_although_another_one_got_a_later_message(world: World) -> None:
    takes = world.send
    world.send = lambda each: DeliveryResult("dead", "blocked") if "to/7" in each.channel.url.reveal() else takes(each)
    report_activity(world, "7")
    world.run(minutes=1)
    world.scripts["ops"] = lambda call: "The disk is full again"
    report_activity(world, "8")
    world.run(minutes=30)
    (ops,) = read_status(world.store.connection, world.clock.now).entries
    assert (
        ops.undelivered and ops.undelivered.says == "1 message accepted for chat, not delivered (given up after 1 try, blocked)"
    )


def test_a_recipient_that_takes_nothing_for_an_hour_is_reported_while_another_one_on_its_channel_takes_messages(
    world: World, sent: list[tuple[str, str]]
) -> None:
    takes, words = world.send, count()
    world.scripts = {"ops": lambda call: f"The disk is full{next(words) * '!'}"}
    world.send = lambda each: DeliveryResult("retry", "busy") if "to/7" in each.channel.url.reveal() else takes(each)
    report_activity(world, "7")
    world.reload(config(more='  boss: {kind: webhook, url: "https://boss.example.org/"}\n'))
    world.run(minutes=1)
    report_activity(world, "8")
    world.run(hours=3)
    reported = [text.splitlines()[0] for url, text in sent if "boss" in url]
    assert [text.partition(": ")[0] for text in reported] == ["CRITICAL channel chat:7 undelivered"]


def test_failure_notifications_of_a_job_without_an_agent_cannot_go_to_last(tmp_path: Path) -> None:
    loaded = read(tmp_path, config() + "cron: {tick: {every: 6h, command: x}}\n")
    assert loaded.settings.jobs["tick"].problems_deliver == ("log",)


def test_an_unused_channel_causes_a_warning(tmp_path: Path) -> None:
    (warning,) = read(tmp_path, config("log")).warnings
    assert "only `deliver: last` uses it" in str(warning)


def test_the_order_of_targets_does_not_depend_on_the_clock(world: World, sent: list[tuple[str, str]]) -> None:
    report_activity(world, "7")
    world.run(minutes=1)
    world.clock.now -= timedelta(hours=1)
    report_activity(world, "8")
    world.run(minutes=91)
    assert [url[-5] for url, _ in sent] == ["7", "8"]

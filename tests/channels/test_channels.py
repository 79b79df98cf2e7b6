"""Tests channels in simulated runs: parts, retries, uncertain deliveries, `ping`, and secrets."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from config_file import complaints, read, write
from loops import loop_over
from servers import discord, telegram
from servers.discord import Discord
from servers.scripted import hang_up, page
from servers.telegram import Telegram, refusal
from world import MakeWorld, World, send_by_transport

from heartbeatd.secret import Secret
from scheduler.cli.main import main
from scheduler.config.keys.models import config_schema
from scheduler.config.settings.effective_values import list_effective_values
from scheduler.config.settings.load import load_config
from scheduler.engine.delivery import Delivery, action_if_uncertain
from scheduler.model.message import DeliveryResult
from scheduler.model.outcome import Kind
from scheduler.model.settings import Channel
from scheduler.store.outbox import message_parts

ENVIRON = {"TG": telegram.URL, "DC": discord.URL}
LONG = "\n".join(f"{number:04} " + "x" * 40 for number in range(100))[:4500]


def config(server: Telegram | Discord, *, more: str = "", deliver: str = "phone", kind: str = "TG") -> str:
    return f"""\
channels:
  phone: {{url: "${{{kind}}}", base_url: "{server.url}", allow_private: true, prefix: none{more}}}
agents:
  ops: {{runner: {{kind: command, argv: [agent]}}, heartbeat: {{interval: 1d, stagger: 0, deliver: {deliver}}}}}
"""


def job(server: Telegram, more: str = "") -> str:
    agents = config(server, more=more).partition("agents:")[0]
    return agents + "cron: {backup: {schedule: '@reboot', command: backup, deliver: phone}}\n"


def begin(make_world: MakeWorld, yaml: str, says: str = LONG) -> World:
    """A world in which everybody says the same, by the real transports."""
    world = make_world(yaml, environ=dict(ENVIRON), send=send_by_transport)
    world.write("ops/HEARTBEAT.md", "- look\n")
    world.scripts |= {"ops": lambda call: says, "backup": lambda call: says}
    return world


def outbox(world: World) -> list[tuple[Any, ...]]:
    rows = world.store.connection.execute("select part, parts, state from outbox where notice is null order by id")
    return [tuple(row) for row in rows]


def test_one_alert_arrives_once(make_world: MakeWorld, phone: Telegram) -> None:
    world = begin(make_world, config(phone), "The disk is full.")
    world.run(hours=3)
    assert phone.texts == ["The disk is full."]
    assert world.records()[0]["delivery"]["state"] == "delivered"


def test_a_long_text_arrives_in_parts_and_in_order(make_world: MakeWorld, phone: Telegram) -> None:
    world = begin(make_world, config(phone))
    world.run(minutes=1)
    assert [len(text) <= 4096 for text in phone.texts] == [True, True]
    assert "\n".join(phone.texts) == LONG
    assert outbox(world) == [(1, 2, "delivered"), (2, 2, "delivered")]


def test_discord_gets_shorter_parts(make_world: MakeWorld) -> None:
    with Discord() as server:
        begin(make_world, config(server, kind="DC")).run(minutes=1)
    assert [len(text) <= 2000 for text in server.texts] == [True, True, True]
    assert "\n".join(server.texts) == LONG


HUGE = "\n".join(f"{number:05} {'x' * 43}" for number in range(1300))  # 65 kB, the longest possible answer
ENDINGS = {  # of the last part of HUGE, by the kind of channel and `server:`
    ("telegram", ""): "\n... 53 kB more: heartbeatd show 1",
    ("telegram", "https://beat.example"): "\n... 53 kB more: heartbeatd show 1, https://beat.example/page/runs/1",
    ("discord", ""): "\n... 59 kB more: heartbeatd show 1",
    ("discord", "https://beat.example"): "\n... 59 kB more: heartbeatd show 1, https://beat.example/page/runs/1",
}


def test_a_huge_text_arrives_in_three_parts_and_says_where_the_rest_is(
    make_world: MakeWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, ((kind, url), ending) in enumerate(ENDINGS.items()):
        (folder := tmp_path / str(number)).mkdir()
        with Telegram() if kind == "telegram" else Discord() as server:
            server.script = [page(502)]  # in between the channel fails
            yaml = config(server, kind="TG" if kind == "telegram" else "DC") + (
                f'server: {{public_url: "{url}"}}\n' if url else ""
            )
            world = make_world(yaml, folder, environ=dict(ENVIRON), send=send_by_transport, scripts={"ops": lambda call: HUGE})
            world.write("ops/HEARTBEAT.md", "- look\n")
            world.run(hours=1)
        texts = server.texts
        assert len(texts) == 3, kind
        assert all(len(text) <= (4096 if kind == "telegram" else 2000) for text in texts)
        assert texts[2].endswith(ending), texts[2][-120:]
        assert HUGE.startswith("\n".join(texts).removesuffix(ending))
        assert outbox(world) == [(part, 3, "delivered") for part in (1, 2, 3)]
        if world.server is None:  # the advice, when followed, shows the rest
            assert main(["-c", str(world.config), "show", "1", "--state", str(world.state)]) == 0
            assert HUGE in capsys.readouterr().out


def test_tiny_messages_without_room_for_the_place_of_the_rest_are_not_cut() -> None:
    words = [f"word{number:03}" for number in range(200)]
    assert len(message_parts(" ".join(words), 40, "heartbeatd show 1")) > 3
    assert " ".join(message_parts(" ".join(words), 40, "heartbeatd show 1")).split() == words


def test_the_last_part_of_a_text_that_is_a_little_too_long_fits_too() -> None:
    """What is left out, such as 999 bytes, may be a longer text than the size of the whole."""
    for more in (1, 500, 940, 999):
        parts = message_parts("x" * (3 * 4096 + more), 4096, "heartbeatd show 1")
        assert [len(part) <= 4096 for part in parts] == [True, True, True], parts[2][-60:]


def test_characters_beyond_the_basic_plane_count_twice(make_world: MakeWorld, phone: Telegram) -> None:
    begin(make_world, config(phone), "🔥" * 4500).run(minutes=1)
    assert [len(text) for text in phone.texts] == [2048, 2048, 404]


def test_a_later_part_waits_for_the_earlier_one(make_world: MakeWorld, phone: Telegram) -> None:
    phone.script = [refusal(429, "slow", retry_after=20), page(502)]
    world = begin(make_world, config(phone))
    world.run(seconds=15)
    assert (len(phone.requests), outbox(world)) == (1, [(1, 2, "pending"), (2, 2, "pending")])
    world.run(hours=1)
    assert [request.json["text"][:4] for request in phone.requests[:3]] == ["0000", "0000", "0000"]
    assert "\n".join(phone.texts) == LONG


def test_a_part_that_waits_for_another_does_not_keep_the_engine_busy(make_world: MakeWorld, phone: Telegram) -> None:
    phone.script = [page(502)]
    world = begin(make_world, config(phone))
    world.run(seconds=5)
    assert world.engine.tick(world.clock.read()) - world.clock.now > timedelta(seconds=1)
    assert world.engine.is_idle(world.clock.now)


def test_two_messages_do_not_wait_for_each_other(make_world: MakeWorld, phone: Telegram) -> None:
    phone.script = [page(502)]
    world = begin(make_world, config(phone) + "cron: {tick: {schedule: '@reboot', command: tick, deliver: phone}}\n")
    world.scripts["tick"] = lambda call: "tock"
    world.run(seconds=10)
    assert sorted(outbox(world)) == [(1, 1, "delivered"), (1, 2, "pending"), (2, 2, "pending")]


def test_each_part_has_its_own_key_which_a_crash_does_not_change(make_world: MakeWorld, phone: Telegram) -> None:
    deliveries: list[Delivery] = []

    def send(delivery: Delivery) -> DeliveryResult:
        deliveries.append(delivery)
        return DeliveryResult("retry", "down")

    world = begin(make_world, config(phone))
    world.send = send
    world.run(minutes=3)
    world.downtime(minutes=5)
    world.send = lambda delivery: (deliveries.append(delivery), DeliveryResult("delivered"))[1]
    world.run(hours=1)
    keys = [(delivery.message.part, delivery.message.key) for delivery in deliveries]
    assert sorted(part for part, _ in set(keys)) == [1, 2]
    assert len({key for _, key in keys}) == 2
    assert keys[-1][0] == 2


def test_a_message_that_telegram_rejects_is_dead_and_the_same_text_may_be_sent_later(
    make_world: MakeWorld, phone: Telegram
) -> None:
    phone.script = [refusal(403, "Forbidden: bot was kicked")]
    world = begin(make_world, config(phone))
    world.run(days=1, minutes=1)
    assert outbox(world) == [(1, 2, "dropped"), (2, 2, "delivered"), (1, 2, "delivered"), (2, 2, "delivered")]


@loop_over(
    ("kind", "declared", "of", "policy"),
    [
        ("log", None, "heartbeat", "resend"),
        ("log", None, "cron", "resend"),
        ("webhook", None, "heartbeat", "resend"),
        ("webhook", None, "cron", "resend"),
        ("webhook", "hold", "heartbeat", "hold"),
        ("telegram", None, "heartbeat", "resend"),
        ("telegram", None, "cron", "hold"),
        ("telegram", "resend", "cron", "resend"),
        ("telegram", "hold", "heartbeat", "hold"),
        ("discord", None, "cron", "hold"),
        ("discord", None, "daemon", "resend"),
        ("apprise", None, "heartbeat", "resend"),
        ("apprise", None, "cron", "hold"),
    ],
)
def test_an_uncertain_message_is_sent_again_or_held(kind: Any, declared: Any, of: str, policy: str) -> None:
    channel = Channel("c", kind, Secret("x"), allow_private=False, uncertain=declared)
    assert action_if_uncertain(channel, of) == policy


def test_an_uncertain_alert_is_sent_once_more_and_then_held(make_world: MakeWorld, phone: Telegram) -> None:
    phone.script = [hang_up(), page(502), hang_up()]
    world = begin(make_world, config(phone), "The disk is full.")
    world.run(hours=20)
    assert (len(phone.requests), outbox(world)) == (3, [(1, 1, "held")])


def test_an_uncertain_alert_arrives_by_the_second_attempt(make_world: MakeWorld, phone: Telegram) -> None:
    phone.script = [hang_up()]
    world = begin(make_world, config(phone), "The disk is full.")
    world.run(minutes=2)
    assert (len(phone.requests), phone.texts) == (2, ["The disk is full."])


@pytest.mark.parametrize(("more", "requests", "state"), [("", 1, "held"), (", uncertain: resend", 2, "delivered")])
def test_uncertain_output_of_a_job_is_held_unless_configured_otherwise(
    make_world: MakeWorld, phone: Telegram, more: str, requests: int, state: str
) -> None:
    phone.script = [hang_up()]
    world = begin(make_world, job(phone, more), "backed up")
    world.run(hours=20)
    assert (len(phone.requests), outbox(world)) == (requests, [(1, 1, state)])


def test_a_channel_without_its_secret_keeps_its_messages(make_world: MakeWorld, phone: Telegram) -> None:
    phone.script = [page(502)]
    world = begin(make_world, config(phone), "The disk is full.")
    world.run(seconds=5)
    world.environ.clear()
    world.reload(config(phone, deliver="log"))
    world.run(minutes=2)
    assert outbox(world)[0][2] == "pending"
    error = world.store.connection.execute("select error from outbox").fetchone()[0]
    assert error == "a secret of channels.phone is not set; export it before heartbeatd starts, or write it into the env_file"


PING = """\
channels:
  phone: {{url: "${{TG}}", base_url: "{telegram}", allow_private: true}}
  guild: {{url: "${{DC}}", base_url: "{discord}", allow_private: true}}
  mail: "json://127.0.0.1:{port}/canary"
agents: {{ops: {{runner: {{kind: command, argv: [cat]}}, heartbeat: {{interval: 30m, deliver: phone}}}}}}
"""


@pytest.fixture
def ping(tmp_path: Path, phone: Telegram, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Any]:
    """`ping(*arguments)` gives the exit code and what was printed; the daemon's log is put back as it was."""
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)
    handlers = logging.getLogger().handlers
    with Discord([discord.refusal(404, f"Unknown Webhook {discord.TOKEN}")]) as guild, Telegram([page(200)]) as mail:
        file = write(tmp_path, PING.format(telegram=phone.url, discord=guild.url, port=mail.port))

        def run(*arguments: str) -> tuple[int, str, str]:
            code = main(["-c", str(file), "ping", *arguments])
            return code, *capsys.readouterr()

        yield run
    logging.getLogger().handlers = handlers


def test_ping_tests_every_channel_and_reports_the_results(ping: Any, phone: Telegram) -> None:
    code, out, _ = ping()
    assert (code, out.splitlines()) == (
        1,
        [
            "phone: delivered",
            "guild: not delivered: 127.0.0.1 answered 404 Not Found: Unknown Webhook ***",
            "mail: delivered",
        ],
    )
    assert len(phone.texts) == 1


def test_ping_tests_the_channel_that_is_named(ping: Any, phone: Telegram) -> None:
    assert ping("phone") == (0, "phone: delivered\n", "")
    code, out, log = ping("log")
    assert (code, out) == (0, "log: delivered\n")
    assert "said kind=ping" in log


def test_ping_needs_a_target_if_the_url_has_a_placeholder(ping: Any, phone: Telegram, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    more = f'  chat: {{url: "{telegram.URL.rpartition("/")[0]}/{{target}}", base_url: "{phone.url}", allow_private: true}}\n'
    file.write_text(file.read_text().replace("agents:", more + "agents:", 1))
    assert ping(f"chat:{telegram.CHAT}") == (0, "chat: delivered\n", "")
    assert "chat: not tested; its URL contains {target}: run `heartbeatd ping chat:TARGET`\n" in ping()[1]
    assert ping("chat")[2] == "heartbeatd: channel: the URL of chat contains {target}; write chat:TARGET\n"
    assert ping("phone:7")[2] == "heartbeatd: channel: phone takes no target; write phone\n"
    assert ping("chat:a@b")[2].startswith("heartbeatd: target: write the number or @name of a Telegram chat")


def test_ping_rejects_unknown_names(ping: Any) -> None:
    code, out, error = ping("phne")
    assert (code, out) == (2, "")
    assert error.endswith("'phne' is not a channel; did you mean phone?\n")
    assert ping("tgram://canary")[2] == "heartbeatd: this is a URL; add it under `channels:` and use its name here\n"


def test_a_channel_of_every_kind_is_declared_in_one_line(tmp_path: Path) -> None:
    text = """\
channels:
  phone: "tgram://${TOKEN}/${CHAT}"
  guild: discord://42/abc
  native: {kind: discord, url: "https://discord.com/api/webhooks/42/abc"}
  topic: ntfy://some-topic
  hook: {kind: webhook, url: "https://example.org/x", uncertain: hold}
agents: {ops: {runner: {kind: command, argv: [cat]}, heartbeat: {interval: 30m, deliver: [phone, guild, native, topic, hook]}}}
"""
    channels = read(tmp_path, text, {"TOKEN": telegram.TOKEN, "CHAT": "7"}).settings.channels
    assert [(name, channel.kind, channel.uncertain, channel.limit) for name, channel in channels.items()] == [
        ("log", "log", "resend", None),
        ("phone", "telegram", None, 4096),
        ("guild", "discord", None, 2000),
        ("native", "discord", None, 2000),
        ("topic", "apprise", None, 7800),
        ("hook", "webhook", "hold", None),
    ]
    sealed = load_config(tmp_path / "config.yaml", {}, resolve_secrets=False).settings.channels
    assert [channel.kind for channel in sealed.values()] == ["log", "telegram", "discord", "discord", "apprise", "webhook"]


def test_the_schema_accepts_a_channel_as_text_or_map() -> None:
    one = config_schema()["properties"]["channels"]["additionalProperties"]
    assert one == {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/Channel"}]}
    assert config_schema()["$defs"]["Channel"].get("required", []) == []


@pytest.mark.parametrize(
    "wrong",
    [
        "tgram://%s",
        "discord://%s",
        "https://%s",
        "carrier://%s/x",
        "slack://%s",
        "%s",
        "{url: 'tgram://%s'}",
        "{kind: telegram, url: '%s'}",
        "{url: 'tgram://1/2', base_url: '%s'}",
        "{kind: apprise, url: 'json://%s', base_url: 'http://%s'}",
        "[%s]",
        "{url: [%s]}",
        "{urls: 'tgram://%s/1'}",
    ],
)
@pytest.mark.parametrize("by", ["written", "environment"])
def test_no_error_about_a_channel_shows_its_url(tmp_path: Path, wrong: str, by: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        text = wrong.replace("%s", "canary" if by == "written" else "'${C}'" if wrong[0] == "[" else "${C}")
        agents = "agents: {ops: {runner: {kind: command, argv: [cat]}, heartbeat: {interval: 30m, deliver: hook}}}\n"
        lines = complaints(tmp_path, f"channels:\n  hook: {text}\n{agents}", {"C": "canary"})
    assert lines
    assert "canary" not in f"{lines} {caplog.text}"


def test_no_token_is_in_the_settings_the_effective_values_or_the_database(
    make_world: MakeWorld, phone: Telegram, tmp_path: Path
) -> None:
    phone.script = [refusal(400, f"bad {telegram.TOKEN}")]
    world = begin(make_world, config(phone))
    world.run(hours=1)
    settings = load_config(world.config, ENVIRON).settings
    rows = list_effective_values(world.config, ENVIRON, (Kind.HEARTBEAT, "ops"))
    everything = f"{settings!r} {rows} {world.events} {world.records()}"
    state = b"".join(file.read_bytes() for file in world.state.parent.rglob("*") if file.is_file())
    assert len(phone.requests) == 2
    assert "canary" not in everything
    assert b"canary" not in state

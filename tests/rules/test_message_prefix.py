"""Tests that each message names its agent and its host, in the way of each kind of channel."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from config_file import complaints, read
from loops import loop_over
from run_async import NOW, send_message
from servers import discord, telegram
from servers.discord import Discord
from servers.messages import error_answer
from servers.scripted import Server, raw
from servers.telegram import Telegram, refusal
from world import MakeWorld, World, send_by_transport

from scheduler.channels import apprise
from scheduler.model.message import Message
from scheduler.model.settings import Channel, utf16_length

ENVIRON = {"TG": telegram.URL, "DC": discord.URL, "MAIL": "json://127.0.0.1:9/x"}
CONFIG = """\
host: web1
channels:
  {name}: {{{keys}}}
agents:
  ops: {{runner: {{kind: command, argv: [agent]}}, heartbeat: {{interval: 1h, stagger: 0, deliver: {name}, problems: {{after: 1}}}}}}
"""
TELL = 'url: "${{TG}}", base_url: "{url}", allow_private: true'
GUILD = 'url: "${{DC}}", base_url: "{url}", allow_private: true'


def begin(make_world: MakeWorld, keys: str, answer: object = "The disk is full.") -> World:
    world = make_world(CONFIG.format(name="out", keys=keys), environ=dict(ENVIRON), send=send_by_transport)
    world.write("ops/HEARTBEAT.md", "- look\n")
    world.scripts["ops"] = lambda call: answer
    return world


def test_an_alert_names_its_agent_and_its_host(make_world: MakeWorld, phone: Telegram) -> None:
    world = begin(make_world, TELL.format(url=phone.url))
    world.run(minutes=1)
    assert phone.texts == ["[ops@web1] The disk is full."]
    assert world.delivered[0][2] == world.records()[0]["text"] == "The disk is full."


@pytest.mark.parametrize(
    ("prefix", "begins"),
    [
        ("", "[ops@web1] warning  failed: "),
        (", prefix: '{host}:'", "web1: warning  ops failed: "),
        (", prefix: none", "warning  ops failed: "),
    ],
)
def test_a_failure_notification_names_its_agent_once(make_world: MakeWorld, phone: Telegram, prefix: str, begins: str) -> None:
    world = begin(make_world, TELL.format(url=phone.url) + prefix, 3)
    world.run(minutes=5)
    assert phone.texts[0].startswith(begins)
    assert world.delivered[0][2].startswith("warning  ops failed: ")


def test_the_words_of_an_agent_keep_its_name(make_world: MakeWorld, phone: Telegram) -> None:
    text = "CRITICAL ops is full: see below\nwarning  ops failed: twice   p\nover     ops is idle   p1"
    begin(make_world, TELL.format(url=phone.url), text).run(minutes=1)
    assert phone.texts == [f"[ops@web1] {text}"]


def test_a_notification_about_a_provider_names_the_provider_and_not_one_of_its_agents(
    make_world: MakeWorld, phone: Telegram
) -> None:
    with Server([error_answer(401, "authentication_error", "no")] * 9) as server:
        yaml = CONFIG.format(name="out", keys=TELL.format(url=phone.url) + ', prefix: "[{kind} {agent}@{host}]"')
        yaml = yaml.replace("{kind: command, argv: [agent]}", "{kind: anthropic}, model: claude-haiku-5-5")
        yaml += f'providers: {{anthropic: {{api_key: k, base_url: "{server.url}"}}}}\n'
        world = make_world(yaml, environ=dict(ENVIRON), send=send_by_transport)
        world.write("ops/HEARTBEAT.md", "- look\n")
        world.run(minutes=1)
    assert [text.splitlines()[0][:63] for text in phone.texts] == [
        "[provider anthropic@web1] CRITICAL provider anthropic refused: "
    ]


def test_the_prefix_is_a_template(make_world: MakeWorld, phone: Telegram) -> None:
    begin(make_world, TELL.format(url=phone.url) + ', prefix: "{kind} {agent} on {host}:"').run(minutes=1)
    assert phone.texts == ["agent ops on web1: The disk is full."]


def test_each_part_of_a_long_message_has_the_prefix_and_fits(make_world: MakeWorld, phone: Telegram) -> None:
    text = "\n".join(f"{number:04} \N{FIRE} " + "x" * 40 for number in range(200))
    begin(make_world, TELL.format(url=phone.url), text).run(minutes=1)
    assert [part[:11] for part in phone.texts] == ["[ops@web1] "] * 3
    assert max(map(utf16_length, phone.texts)) <= 4096
    assert "\n".join(part[11:] for part in phone.texts) == text


def test_a_prefix_that_became_longer_while_a_message_waited_is_left_out_rather_than_too_long(
    make_world: MakeWorld, phone: Telegram
) -> None:
    phone.script = [refusal(429, "slow", retry_after=60)]
    text = "\N{FIRE}" * 2042 + "x"  # 4,085 UTF-16 units
    world = begin(make_world, TELL.format(url=phone.url), text)
    world.run(seconds=30)
    world.reload(world.yaml.replace("host: web1", "host: a-much-longer-name"))
    world.run(minutes=5)
    assert phone.texts == [text]


def test_the_same_text_is_recognised_whatever_the_prefix(make_world: MakeWorld, phone: Telegram) -> None:
    world = begin(make_world, TELL.format(url=phone.url))
    world.run(minutes=1)
    world.reload(world.yaml.replace("host: web1", "host: web2"))
    world.run(hours=2)
    assert (phone.texts, len(world.calls)) == (["[ops@web1] The disk is full."], 3)


def test_discord_shows_the_agent_as_the_sender(make_world: MakeWorld, guild: Discord) -> None:
    begin(make_world, GUILD.format(url=guild.url)).run(minutes=1)
    assert [(each["username"], each["content"]) for each in guild.messages] == [("ops on web1", "The disk is full.")]


@pytest.mark.parametrize(
    "prefix", ["{agent} in discord", "{agent}: {host}", "Clyde {agent}", "```{agent}", "#{agent}", "x" * 81, "here", "Everyone"]
)
def test_a_name_that_discord_would_reject_begins_the_text(make_world: MakeWorld, guild: Discord, prefix: str) -> None:
    begin(make_world, GUILD.format(url=guild.url) + f', prefix: "{prefix}"').run(minutes=1)
    shown = prefix.replace("{agent}", "ops").replace("{host}", "web1")
    assert [("username" in each, each["content"]) for each in guild.messages] == [(False, f"{shown} The disk is full.")]


def test_apprise_shows_the_prefix_as_the_title() -> None:
    message = Message("k", "heartbeat", "ops", "interval", NOW, 1, 1, "The disk is full.", "ops")
    with Server([raw(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")] * 2) as server:
        url = f"json://127.0.0.1:{server.port}/x"
        send_message(apprise.send, url, message, prefix="[{agent}@{host}]", host="web1")
        assert (server.requests[0].json["title"], server.requests[0].json["message"]) == ("[ops@web1]", "The disk is full.")
        url = f"synology://127.0.0.1:{server.port}/token"  # has no titles
        send_message(apprise.send, url, message, prefix="[{agent}@{host}]", host="web1")
        assert json.loads(parse_qs(server.requests[1].body.decode())["payload"][0])["text"] == "[ops@web1] The disk is full."


def test_a_webhook_gets_fields_and_a_prefix_only_if_one_is_set(tmp_path: Path) -> None:
    yaml = CONFIG.format(name="hook", keys='kind: webhook, url: "https://example.org"')
    channels = read(tmp_path, yaml).settings.channels
    assert (channels["hook"].prefix_for("heartbeat", "ops", "ops"), channels["hook"].host) == ("", "web1")
    channels = read(tmp_path, yaml.replace("webhook,", 'webhook, prefix: "{agent}",')).settings.channels
    assert (channels["hook"].prefix_for("heartbeat", "ops", "ops"), channels["log"].prefix_for("heartbeat", "ops", "ops")) == (
        "ops",
        "",
    )


def test_a_prefix_never_takes_more_than_half_of_a_message() -> None:
    channel = Channel("c", "apprise", None, allow_private=False, uncertain=None, limit=20, prefix="[{agent}@{host}]", host="web1")
    assert (channel.prefix_for("cron", "job", "job"), channel.limit_for("cron", "job", "job")) == ("[job@web1]", 9)
    assert (channel.prefix_for("cron", "backup", "backup"), channel.limit_for("cron", "backup", "backup")) == ("", 20)


def test_without_a_host_the_short_host_name_is_used(tmp_path: Path) -> None:
    host = read(tmp_path, CONFIG.replace("host: web1\n", "").format(name="hook", keys='kind: webhook, url: "https://a.b"'))
    assert host.settings.host
    assert "." not in host.settings.host


@loop_over(
    ("keys", "problem"),
    [
        ('prefix: "{agnt}"', "{agnt} is not a placeholder; write {agent}, {host} or {kind}"),
        (f'prefix: "{"x" * 101}"', "a prefix is one line of at most 100 characters"),
        ('prefix: "a\\nb"', "a prefix is one line of at most 100 characters"),
        ('prefix: ""', "the string is empty"),
        ("secret: short", "this secret is shorter than 16 characters; make one with: openssl rand -hex 32"),
        ('secret: "${NOWHERE}"', "NOWHERE"),
        ("signature_header: Content-Type", "the daemon sets Content-Type itself"),
        ('signature_header: "a b"', "is not the name of a header"),
    ],
)
def test_a_wrong_value_is_an_error_that_says_what_to_write(tmp_path: Path, keys: str, problem: str) -> None:
    (line,) = complaints(tmp_path, CONFIG.format(name="hook", keys=f'kind: webhook, url: "https://example.org", {keys}'))
    assert problem in line


def test_only_webhooks_are_signed(tmp_path: Path) -> None:
    yaml = CONFIG.format(name="out", keys='url: "discord://42/abc", secret: "0123456789abcdef"')
    (line,) = complaints(tmp_path, yaml)
    assert "channels.out.secret: only webhook can be signed; remove secret" in line


def test_a_host_is_a_plain_name(tmp_path: Path) -> None:
    (line,) = complaints(
        tmp_path, CONFIG.replace("web1", '"web 1"').format(name="hook", keys='kind: webhook, url: "https://a.b"')
    )
    assert line.startswith("config.yaml:1:7: host: 'web 1' is not a name")

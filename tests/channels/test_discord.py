"""Tests the Discord channel: how a webhook is executed, and what each answer means."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import timedelta

import pytest
from loops import loop_over
from run_async import send_message
from servers.discord import TOKEN, URL, Discord, refusal, slow_down
from servers.scripted import Act, Request, hang_up, page, reply, reset, silence
from test_telegram import MESSAGE

from scheduler.channels import discord as discord_channel
from scheduler.channels.discord import send
from scheduler.model.message import DeliveryOutcome, DeliveryResult


def delivery_result(*acts: Act, total: float = 30) -> DeliveryResult:
    with Discord(list(acts)) as discord:
        return send_message(send, URL, MESSAGE, total=total, base=discord.url)


def test_an_alert_arrives_once_and_unchanged() -> None:
    with Discord() as discord:
        assert send_message(send, URL, MESSAGE, base=discord.url) == DeliveryResult("delivered")
    assert discord.texts == ["The disk is full."]


def test_a_message_mentions_no_one_and_has_no_previews() -> None:
    text = "@everyone @here <@1> <@&1> https://example.org"
    with Discord() as discord:
        send_message(send, URL, replace(MESSAGE, text=text), base=discord.url)
    assert discord.messages == [{"content": text, "allowed_mentions": {"parse": []}, "flags": 4}]
    assert discord.pinged == []


def test_the_local_server_notices_a_mention() -> None:
    """Without allowed_mentions, the local server records the mentioned people."""
    request = Request("POST", f"/api/v10/webhooks/42/{TOKEN}", {}, b'{"content": "@everyone"}')
    with Discord() as discord:
        discord._answer(request)
    assert discord.pinged == ["@everyone"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[your bank](https://evil.example) (fine)", "[your bank]\\(https://evil.example) (fine)"),
        ("[x](tg://user?id=1)", "[x]\\(tg://user?id=1)"),
        ("[a](https://a.example) [b](https://b.example)", "[a]\\(https://a.example) [b]\\(https://b.example)"),
        ("[1] (2) a[0](b)", "[1] (2) a[0]\\(b)"),
        ("x" * 1998 + "](", "x" * 1998 + "]\N{FULLWIDTH LEFT PARENTHESIS}"),
    ],
)
def test_a_link_cannot_hide_behind_words(text: str, shown: str) -> None:
    with Discord() as discord:
        send_message(send, URL, replace(MESSAGE, text=text), base=discord.url)
    assert discord.texts == [shown]


@pytest.mark.parametrize(
    ("url", "base", "thread"),
    [
        ("discord://42/a-B_c", None, None),
        ("discord://42/a/?thread=7", None, "7"),
        ("https://discord.com/api/webhooks/42/a", "https://discord.com", None),
        ("https://ptb.discord.com/api/v10/webhooks/42/a?thread_id=7", "https://ptb.discord.com", "7"),
    ],
)
def test_both_forms_of_the_url_are_accepted(url: str, base: str | None, thread: str | None) -> None:
    hook = discord_channel.parse_webhook_url(url)
    assert (hook.server, hook.id, hook.thread) == (base, "42", thread)


def test_a_message_is_sent_to_its_thread_on_the_server_of_the_webhook() -> None:
    with Discord() as discord:
        sent = send_message(send, f"{discord.url}/api/webhooks/42/{TOKEN}?thread_id=7", MESSAGE)
    assert sent.state == "delivered"
    assert discord.requests[0].path == f"/api/v10/webhooks/42/{TOKEN}?wait=true&thread_id=7"


def test_the_server_of_the_config_is_used_in_place_of_that_of_the_webhook_and_no_error_shows_it() -> None:
    with Discord() as discord:
        discord.script = [refusal(404, f"no route {discord.url}/canary")]
        hook = f"http://127.0.0.1:9/api/webhooks/42/{TOKEN}"
        sent = send_message(send, hook, MESSAGE, base=f"{discord.url}/canary")
    assert sent == DeliveryResult("dead", "127.0.0.1 answered 404 Not Found: no route ***")


@pytest.mark.parametrize(
    "url", ["discord://42", "discord://x/canary", "https://discord.com/canary", "discord://42/a?b=c", "ftp://x", ""]
)
def test_a_url_that_is_not_of_a_webhook_is_dead_and_not_shown(url: str) -> None:
    assert send_message(send, url, MESSAGE) == DeliveryResult("dead", discord_channel.BAD_URL)


@loop_over(
    ("act", "state", "error", "wait"),
    [
        (refusal(400, "Cannot send", 50006), "dead", "127.0.0.1 answered 400 Bad Request: Cannot send", None),
        (refusal(401, "Invalid Webhook Token"), "dead", "127.0.0.1 answered 401 Unauthorized: Invalid Webhook Token", None),
        (refusal(403, "Forbidden"), "dead", "127.0.0.1 answered 403 Forbidden: Forbidden", None),
        (refusal(404, "Unknown Webhook"), "dead", "127.0.0.1 answered 404 Not Found: Unknown Webhook", None),
        (slow_down(0.65), "retry", "127.0.0.1 answered 429 Too Many Requests: You are being rate limited.", 0.65),
        (reply(b"banned", 429, retry_after="60"), "retry", "127.0.0.1 answered 429 Too Many Requests", 60),
        (reply(b'{"retry_after": NaN}', 429), "retry", "127.0.0.1 answered 429 Too Many Requests", None),
        (page(503), "retry", "127.0.0.1 answered 503 Service Unavailable", None),
        (page(200), "uncertain", "127.0.0.1 answered 200 without the message that it created", None),
        (reply({"message": "x", "code": 1}), "uncertain", "127.0.0.1 answered 200 without the message that it created", None),
        (reply(b"", 204), "delivered", "", None),
        (hang_up(), "uncertain", "127.0.0.1: it closed the connection before its answer was complete", None),
        (reset(), "uncertain", "127.0.0.1: it broke the connection", None),
    ],
)
def test_each_answer_has_its_meaning(act: Act, state: DeliveryOutcome, error: str, wait: float | None) -> None:
    assert delivery_result(act) == DeliveryResult(state, error, None if wait is None else timedelta(seconds=wait))


def test_without_an_answer_the_delivery_is_uncertain() -> None:
    assert delivery_result(silence(), total=0.3) == DeliveryResult("uncertain", "127.0.0.1: no answer within 0.3 s")


def test_a_private_address_is_refused_unless_it_is_allowed() -> None:
    with Discord() as discord:
        sent = send_message(send, URL, MESSAGE, allow_private=False, base=discord.url)
    assert (sent.state, discord.requests) == ("dead", [])


@pytest.mark.parametrize("act", [refusal(401, f"token {TOKEN}"), reply(TOKEN.encode(), 500), hang_up(), silence()])
def test_no_error_and_no_log_line_contains_the_token(act: Act, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        sent = delivery_result(act, total=0.3)
    assert sent.state != "delivered"
    assert "canary" not in f"{sent} {caplog.text} {discord_channel.parse_webhook_url(URL)!r}"

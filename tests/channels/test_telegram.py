"""Tests of the Telegram channel: the requests to the Bot API, and the result of each answer."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from loops import loop_over
from run_async import send_message
from servers.scripted import Act, drip, half, hang_up, page, reply, reset, silence
from servers.telegram import CHAT, TOKEN, URL, Telegram, refusal

from heartbeat.runners.call_errors import MAX_RETRY_AFTER
from scheduler.channels import telegram as telegram_channel
from scheduler.channels.telegram import send
from scheduler.model.message import DeliveryOutcome, DeliveryResult, Message

MESSAGE = Message(
    key="k",
    kind="heartbeat",
    name="ops",
    trigger="interval",
    planned_at=datetime(2026, 11, 20, 16, 30, tzinfo=UTC),
    part=1,
    parts=1,
    text="The disk is full.",
    title="ops",
)


def delivery_result(*acts: Act, total: float = 30) -> DeliveryResult:
    with Telegram(list(acts)) as telegram:
        return send_message(send, URL, MESSAGE, total=total, base=telegram.url)


def test_an_alert_arrives_once_and_unchanged() -> None:
    with Telegram() as telegram:
        assert send_message(send, URL, MESSAGE, base=telegram.url) == DeliveryResult("delivered", receipt="1")
    assert telegram.texts == ["The disk is full."]


def test_the_text_is_sent_without_markup_and_without_previews() -> None:
    text = "@everyone [x](tg://user?id=1) <b>bold</b> https://example.org *stars* <@&1>"
    with Telegram() as telegram:
        send_message(send, URL, replace(MESSAGE, text=text), base=telegram.url)
    assert telegram.messages == [{"chat_id": CHAT, "text": text, "link_preview_options": {"is_disabled": True}}]


@pytest.mark.parametrize(
    ("url", "chat", "topic"),
    [
        ("tgram://1:a-B_c/-1001", "-1001", None),
        ("tgram://bot1:a/77", "77", None),
        ("tgram://1:a/77/", "77", None),
        ("tgram://1%3Aa/77", "77", None),
        ("tgram://1:a/@news_of_ours", "@news_of_ours", None),
        ("tgram://1:a/news_of_ours", "@news_of_ours", None),
        ("tgram://1:a/-1001:12", "-1001", 12),
    ],
)
def test_the_url_names_the_chat_and_its_topic(url: str, chat: str, topic: int | None) -> None:
    bot = telegram_channel.parse_chat_url(url)
    assert (bot.chat, bot.topic) == (chat, topic)


def test_a_message_is_sent_to_its_topic() -> None:
    with Telegram() as telegram:
        send_message(send, f"{URL}:12", MESSAGE, base=f"{telegram.url}/")
    assert telegram.messages[0]["message_thread_id"] == 12


@loop_over(
    "url",
    ["tgram://1:a", "tgram://1:a/", "tgram://1:a/1/2", "tgram://1:a/1?x=y", "tgram:///1", "tgram://a b/1", "http://1:a/1", ""],
)
def test_a_url_that_is_not_of_a_chat_is_dead_and_not_shown(url: str) -> None:
    sent = send_message(send, url, MESSAGE)
    assert sent == DeliveryResult("dead", telegram_channel.BAD_URL)


SECOND = timedelta(seconds=1)
LOST = "127.0.0.1 answered 200 without saying whether it accepted the message"


@loop_over(
    ("act", "state", "error", "wait"),
    [
        (refusal(400, "Bad Request: chat not found"), "dead", "127.0.0.1 answered 400 Bad Request: Bad Request: chat not found", None),
        (refusal(401, "Unauthorized"), "dead", "127.0.0.1 answered 401 Unauthorized: Unauthorized", None),
        (refusal(403, "Forbidden: bot was blocked"), "dead", "127.0.0.1 answered 403 Forbidden: Forbidden: bot was blocked", None),
        (refusal(404, "Not Found"), "dead", "127.0.0.1 answered 404 Not Found: Not Found", None),
        (refusal(429, "retry", retry_after=7), "retry", "127.0.0.1 answered 429 Too Many Requests: retry", 7 * SECOND),
        (reply(b"", 429, retry_after="9"), "retry", "127.0.0.1 answered 429 Too Many Requests", 9 * SECOND),
        (refusal(429, "x", retry_after=-1), "retry", "127.0.0.1 answered 429 Too Many Requests: x", None),
        (reply({"ok": False, "parameters": {"retry_after": 0}}, 429, retry_after="9"), "retry", "127.0.0.1 answered 429 Too Many Requests", 0 * SECOND),
        (refusal(429, "x", retry_after=10**20), "retry", "127.0.0.1 answered 429 Too Many Requests: x", MAX_RETRY_AFTER * SECOND),
        (page(502), "retry", "127.0.0.1 answered 502 Bad Gateway", None),
        (refusal(400, "no such chat", status=200), "dead", "127.0.0.1 answered 400 Bad Request: no such chat", None),
        (refusal(429, "x", status=200, retry_after=3), "retry", "127.0.0.1 answered 429 Too Many Requests: x", 3 * SECOND),
        (reply({"ok": False}), "retry", "127.0.0.1 answered 500 Internal Server Error", None),
        (page(200), "uncertain", LOST, None),
        (reply([]), "uncertain", LOST, None),
        (reply({"ok": "yes"}), "uncertain", LOST, None),
        (reply(b"[" * 60_000), "uncertain", LOST, None),
        (half({"ok": True, "result": {}}), "uncertain", LOST, None),
        (hang_up(), "uncertain", "127.0.0.1: it closed the connection before its answer was complete", None),
        (reset(), "uncertain", "127.0.0.1: it broke the connection", None),
        (reply(b"", 302, Location="http://169.254.169.254/"), "dead",
         "127.0.0.1 answered 302 Found: redirects are not followed; write the URL it leads to", None),
    ],
)  # fmt: skip
def test_each_answer_has_its_meaning(act: Act, state: DeliveryOutcome, error: str, wait: timedelta | None) -> None:
    assert delivery_result(act) == DeliveryResult(state, error, wait)


@pytest.mark.parametrize("act", [silence(), drip()])
def test_with_an_answer_that_never_ends_the_delivery_is_uncertain(act: Act) -> None:
    assert delivery_result(act, total=0.3).state == "uncertain"


def test_a_private_address_is_refused_unless_it_is_allowed() -> None:
    with Telegram() as telegram:
        sent = send_message(send, URL, MESSAGE, allow_private=False, base=telegram.url)
    assert (sent.state, telegram.requests) == ("dead", [])


@pytest.mark.parametrize(
    "act",
    [
        refusal(401, f"no bot {TOKEN} here"),
        refusal(400, f"/bot{TOKEN}/sendMessage"),
        refusal(400, f"/bot{TOKEN.replace(':', '%3A')}/sendMessage"),
        refusal(429, TOKEN),
        reply(TOKEN.encode(), 500),
        hang_up(),
        silence(),
    ],
)
def test_no_error_and_no_log_line_contains_the_token(act: Act, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        sent = delivery_result(act, total=0.3)
    assert sent.state != "delivered"
    assert "canary" not in f"{sent} {caplog.text}"


def test_no_error_contains_a_secret_of_the_server_that_is_used_in_place_of_telegram() -> None:
    with Telegram() as telegram:
        telegram.script = [refusal(404, f"no route {telegram.url}/canary")]
        error = send_message(send, URL, MESSAGE, base=f"{telegram.url}/canary").error
    assert ("canary" in error, error[:46]) == (False, "127.0.0.1 answered 404 Not Found: no route ***")


def test_the_reason_that_telegram_gives_is_shortened_to_one_line() -> None:
    error = delivery_result(refusal(400, "a\n\x1b[31mb " + "x" * 5000)).error
    assert error.startswith("127.0.0.1 answered 400 Bad Request: a [31mb xxx")
    assert len(error) < 300
    assert error.isprintable()


def test_the_token_is_not_in_the_representation() -> None:
    assert "canary" not in repr(telegram_channel.parse_chat_url(URL))

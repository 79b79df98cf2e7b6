"""Tests the Apprise channel: success, failure and timeout, without any part of the URL in errors and logs."""

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import replace

import pytest
import requests
from run_async import NOW, new_http_client, send_message
from servers.scripted import Act, Server, after, hang_up, page, reply, silence
from test_telegram import MESSAGE

from heartbeatd.secret import Secret
from scheduler.channels import apprise
from scheduler.channels.channel_kind import SendContext
from scheduler.model.message import DeliveryOutcome, DeliveryResult, Message
from scheduler.model.settings import Channel
from scheduler.net.http_client import MAX_BODY
from scheduler.net.library_requests import limited_answers
from scheduler.system.process import Children


def send(url: str, message: Message = MESSAGE, *, total: float = 30.0) -> DeliveryResult:
    return send_message(apprise.send, url, message, total=total)


def url(server: Server) -> str:
    return f"json://user:canary@127.0.0.1:{server.port}/canary"


def delivery_result(act: Act, total: float = 10) -> DeliveryResult:
    with Server([act]) as server:
        return send(url(server), total=total)


def test_an_alert_arrives_once_as_plain_text() -> None:
    text = "Disk **full** <b>now</b> \\n :fire: {{x}} @everyone"
    with Server([reply()]) as server:
        assert send(url(server), replace(MESSAGE, text=text)) == DeliveryResult("delivered")
    (request,) = server.requests
    body = request.json
    assert (body["message"], body["title"], body["type"], body["attachments"]) == (text, "ops", "info", [])


@pytest.mark.parametrize(
    ("act", "state"),
    [
        (reply(b"", 204), "delivered"),
        (reply(b"", 400), "retry"),
        (reply(b"", 401), "retry"),
        (reply(b"", 429), "retry"),
        (page(503), "retry"),
        (hang_up(), "retry"),
        (reply(b"", 302, Location="http://127.0.0.1:1/"), "retry"),
    ],
)
def test_every_failure_is_retried_without_a_reason(act: Act, state: DeliveryOutcome) -> None:
    error = "" if state == "delivered" else "JSON did not accept the message"
    assert delivery_result(act) == DeliveryResult(state, error)


def test_a_message_that_is_not_sent_in_time_is_uncertain() -> None:
    assert delivery_result(silence(), total=0.3) == DeliveryResult("uncertain", "JSON did not answer in time")


def test_no_further_message_is_sent_while_16_hang() -> None:
    async def crowd(there: str) -> tuple[list[DeliveryResult], DeliveryResult, DeliveryResult]:
        channel = Channel("test", "apprise", Secret(there), allow_private=False, uncertain=None)
        http, start = new_http_client(), Children("test").start
        at_once, patiently = SendContext(http, start, NOW, 0.0), SendContext(http, start, NOW)
        hanging = [await apprise.send(channel, MESSAGE, at_once) for _ in range(apprise.MAX_HANGING)]
        refused = await apprise.send(channel, MESSAGE, at_once)
        for thread in [thread for thread in threading.enumerate() if thread.name == "_notify"]:
            await asyncio.to_thread(thread.join, 10)
        await asyncio.sleep(0)
        return hanging, refused, await apprise.send(channel, MESSAGE, patiently)

    with Server([after(0.6, reply())]) as server:
        hanging, refused, later = asyncio.run(crowd(url(server)))
    assert {sent.state for sent in hanging} == {"uncertain"}
    assert refused == DeliveryResult("retry", "16 earlier messages to services of Apprise still hang")
    assert later.state == "delivered"


@pytest.mark.parametrize("wrong", ["carrier://canary", "slack://canary", "json://", "", "canary", "mailto://canary", "://"])
def test_a_url_that_apprise_does_not_know_is_dead_and_not_shown(wrong: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        sent = send(wrong)
        with pytest.raises(ValueError, match="not a URL of a service that Apprise supports") as refused:
            apprise.KIND.check_url(wrong)
    assert sent == DeliveryResult("dead", "Apprise does not support the service of this URL")
    assert "canary" not in f"{refused.value} {caplog.text}"


@pytest.mark.parametrize("act", [reply(), reply(b"canary", 400), hang_up(), silence()])
def test_no_error_and_no_log_line_contains_a_part_of_the_url(act: Act, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        sent = delivery_result(act, total=0.3)
    assert "canary" not in f"{sent} {caplog.text}"


def test_only_the_first_mebibyte_of_an_answer_is_read_and_other_code_reads_it_all() -> None:
    with Server([reply(b"x" * 3 * MAX_BODY)] * 2) as server:
        with limited_answers():
            first = requests.get(server.url, timeout=30).content
        whole = requests.get(server.url, timeout=30).content
    assert MAX_BODY <= len(first) < 2 * MAX_BODY
    assert len(whole) == 3 * MAX_BODY


def test_each_service_has_its_own_maximum_length() -> None:
    assert (apprise.KIND.check_url("ntfy://topic"), apprise.KIND.check_url("json://host")) == (7800, 32768)

"""Tests proxies and private certificate authorities, for each kind of request."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from run_async import call_agent, post_with_client, send_message
from servers import completions, gateway, messages
from servers.discord import URL as DISCORD_URL
from servers.proxy import Proxy
from servers.scripted import CERTIFICATE, Act, Server, kept_open, reply, with_end_of_tls
from servers.telegram import URL as TELEGRAM_URL
from test_telegram import MESSAGE

from heartbeat.runners import AgentRequest, Failure
from heartbeat.runners.call_errors import CallError
from heartbeat.spec import HttpRunner, ModelRunner, Provider
from heartbeatd.secret import Secret
from scheduler.channels import apprise, discord, telegram, webhook
from scheduler.model.message import DeliveryResult
from scheduler.model.settings import Network
from scheduler.net import proxies
from scheduler.net.http_client import HttpClient

RUN = AgentRequest("ops", "How is it?", "small", Path("agents/ops"), timedelta(seconds=20), lambda: {"run": 7})
ENVIRONMENT = Network(ca_file=CERTIFICATE)
NAMES = ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy")

Ask = Callable[[str, Network], str]


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def by_runner(runner: Callable[[str], Any]) -> Ask:
    return lambda url, network: call_agent(RUN, runner(url), network=network).text


def by_channel(send: Callable[..., Any], where: str | None, **more: Any) -> Ask:
    def ask(url: str, network: Network) -> str:
        based = {"base": url} if where else {}
        sent: DeliveryResult = send_message(send, where or url, MESSAGE, network=network, **based)
        return sent.state

    return ask


WAYS: dict[str, tuple[Ask, Act, str]] = {
    "anthropic": (
        by_runner(lambda url: ModelRunner(Provider("a", "anthropic", "key", url), 10)),
        messages.text_answer("hi"),
        "hi",
    ),
    "openai": (by_runner(lambda url: ModelRunner(Provider("o", "openai", "key", url), 10)), completions.text_answer("hi"), "hi"),
    "http": (by_runner(lambda url: HttpRunner(url, {})), gateway.text_answer("hi"), "hi"),
    "webhook": (by_channel(webhook.send, None), reply({}), "delivered"),
    "telegram": (by_channel(telegram.send, TELEGRAM_URL), reply({"ok": True}), "delivered"),
    "discord": (by_channel(discord.send, DISCORD_URL), reply({"id": "1"}), "delivered"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_request_uses_the_proxy_of_the_environment(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ask, act, expected = WAYS[way]
    with Proxy() as proxy, Server([act], tls=True) as server:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        assert ask(server.url, ENVIRONMENT) == expected
    assert proxy.request_lines == [f"CONNECT localhost:{server.port} HTTP/1.1"]
    assert len(server.requests) == 1


def test_a_client_closes_its_connections_although_the_server_does_not_answer_the_end_of_tls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for by_proxy in (False, True):
        for way, (ask, act, expected) in WAYS.items():
            with Proxy() as proxy, Server([kept_open(act)], tls=True) as server:
                monkeypatch.setenv("HTTPS_PROXY", proxy.url if by_proxy else "")
                with warnings.catch_warnings(record=True, action="always") as found:
                    assert ask(server.url, ENVIRONMENT) == expected
                    gc.collect()
            assert [(way, by_proxy, str(each.message)) for each in found] == []


def test_a_client_closes_its_connections_after_the_server_has_ended_tls() -> None:
    with Server([with_end_of_tls(reply({"ok": True}))], tls=True) as server:
        assert send_message(telegram.send, TELEGRAM_URL, MESSAGE, network=ENVIRONMENT, base=server.url).state == "delivered"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("past", ["no_proxy", "none"])
def test_a_request_bypasses_the_proxy_if_configured(way: str, past: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ask, act, expected = WAYS[way]
    with Proxy() as proxy, Server([act], tls=True) as server:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        if past == "no_proxy":
            monkeypatch.setenv("NO_PROXY", "localhost")
        network = Network(proxy="none", ca_file=CERTIFICATE) if past == "none" else ENVIRONMENT
        assert ask(server.url, network) == expected
    assert proxy.request_lines == []


def test_a_proxy_in_the_config_replaces_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    with Proxy("ada:canary") as proxy, Server([reply({})], tls=True) as server:
        network = Network(proxy=Secret(proxy.url), ca_file=CERTIFICATE)
        assert post_with_client(server.url, {}, b"{}", 20.0, network=network).status == 200
    assert len(proxy.request_lines) == 1


def test_a_proxy_that_a_reload_removes_is_used_no_longer_although_apprise_has_used_it() -> None:
    networks = [Network(proxy=Secret("http://127.0.0.1:9")), Network()]

    async def post_twice() -> int:
        async with HttpClient(lambda: networks[0]) as http:
            with pytest.raises(CallError, match="no connection to the proxy"):
                await http.post(server.url, {}, b"{}", 20.0)
            proxies.set_proxies_for_libraries(http.network)
            networks.pop(0)
            return (await http.post(server.url, {}, b"{}", 20.0)).status

    with Server([reply({})]) as server:
        assert asyncio.run(post_twice()) == 200


def test_a_plain_http_request_is_sent_to_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with Proxy() as proxy, Server([reply({})]) as server:
        monkeypatch.setenv("http_proxy", proxy.url)
        assert post_with_client(f"{server.url}/x", {}, b"{}", 20.0, network=Network()).status == 200
    assert proxy.request_lines == [f"POST {server.url}/x HTTP/1.1"]


@pytest.mark.parametrize(("but_not_for", "proxied"), [("localhost:PORT", 0), ("localhost:9", 1)])
def test_a_proxy_without_a_scheme_is_bypassed_for_one_port(
    but_not_for: str, proxied: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Proxy() as proxy, Server([reply({})], tls=True) as server:
        monkeypatch.setenv("HTTPS_PROXY", f"127.0.0.1:{proxy.port}")
        monkeypatch.setenv("NO_PROXY", but_not_for.replace("PORT", str(server.port)))
        assert post_with_client(server.url, {}, b"{}", 20.0, network=ENVIRONMENT).status == 200
    assert len(proxy.request_lines) == proxied


@pytest.mark.parametrize(
    ("scheme", "line"), [("json", "POST http://localhost:PORT/ HTTP/1.1"), ("jsons", "CONNECT localhost:PORT HTTP/1.0")]
)
def test_apprise_uses_the_proxy_of_the_config_and_after_a_reload_none(scheme: str, line: str) -> None:
    with Proxy() as proxy, Server([reply({})] * 2, tls=scheme == "jsons") as server:
        for network in (Network(proxy=Secret(proxy.url)), Network(proxy="none")):
            send_message(apprise.send, f"{scheme}://localhost:{server.port}/", MESSAGE, network=network)
    assert proxy.request_lines == [line.replace("PORT", str(server.port))]


def refused(network: Network, url: str = "https://localhost:9/") -> CallError:
    with pytest.raises(CallError) as caught:
        post_with_client(url, {}, b"{}", 20.0, network=network)
    return caught.value


def test_with_a_proxy_that_is_down_the_request_was_not_sent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    answer = refused(Network(proxy=Secret(f"http://ada:canary@127.0.0.1:{port}"))).answer
    assert (answer.failure, answer.transient, answer.not_sent) == (Failure.CONNECT, True, True)
    assert answer.error == f"no connection to the proxy 127.0.0.1:{port}: Connection refused"


def test_the_error_of_a_proxy_that_requires_a_login_names_the_setting() -> None:
    with Proxy("ada:canary") as proxy:
        answer = refused(Network(proxy=Secret(f"http://ada:wrong@127.0.0.1:{proxy.port}"))).answer
    assert (answer.failure, answer.transient, answer.not_sent) == (Failure.CONNECT, False, True)
    assert answer.error == (
        f"the proxy 127.0.0.1:{proxy.port} requires a login (407); write it in its URL, in network.proxy or HTTPS_PROXY,"
        " as http://USER:PASSWORD@HOST:PORT"
    )


@pytest.mark.parametrize(("status", "retried"), [(502, True), (500, True), (429, True), (403, False)])
def test_a_request_is_retried_if_the_proxy_is_down_or_busy(status: int, retried: bool) -> None:
    with Proxy(answers=status) as proxy:
        answer = refused(Network(proxy=Secret(f"http://ada:canary@127.0.0.1:{proxy.port}"))).answer
    assert (answer.failure, answer.transient, answer.not_sent) == (Failure.CONNECT, retried, True)
    assert answer.error == f"the proxy 127.0.0.1:{proxy.port} answered {status}"


def test_a_private_authority_is_trusted_only_by_ca_file() -> None:
    with Server([reply({})], tls=True) as server:
        assert post_with_client(server.url, {}, b"{}", 20.0, network=Network(proxy="none", ca_file=CERTIFICATE)).status == 200
        answer = refused(Network(proxy="none"), server.url).answer
    assert answer.failure is Failure.TLS
    assert answer.error.endswith("if your own authority signed it, write network: {ca_file: PATH}")


def test_a_literal_private_address_is_refused_behind_a_proxy_as_well() -> None:
    with Proxy() as proxy:
        network = Network(proxy=Secret(proxy.url))
        for host in ("10.0.0.1", "2130706433", "0177.0.0.1", "[fec0::1]"):
            sent = send_message(webhook.send, f"http://{host}/hook", MESSAGE, network=network, allow_private=False)
            assert (sent.state, proxy.request_lines) == ("dead", [])


@pytest.mark.parametrize(
    ("environ", "network", "description"),
    [
        ({}, Network(), "no proxy (the environment sets none)"),
        (
            {"HTTPS_PROXY": "http://ada:canary@proxy.example:3128"},
            Network(),
            "https through proxy.example:3128 (from the environment)",
        ),
        (
            {"https_proxy": "proxy.example:3128", "no_proxy": "localhost"},
            Network(),
            "https through proxy.example:3128 (from the environment), but not for localhost",
        ),
        ({"HTTPS_PROXY": "http://proxy.example:3128"}, Network(proxy="none"), "no proxy (network.proxy: none)"),
        (
            {},
            Network(proxy=Secret("http://ada:canary@proxy.example:3128")),
            "through the proxy proxy.example:3128 (network.proxy)",
        ),
    ],
)
def test_the_proxies_are_described_without_their_logins(
    environ: dict[str, str], network: Network, description: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert proxies.describe_proxies(network) == description

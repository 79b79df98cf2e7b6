"""Tests of the runner for agents at a URL: the request, and the result of each response."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from loops import loop_over
from run_async import call_agent as ask
from servers.gateway import async_answer, plain_text_answer, text_answer
from servers.scripted import Act, Server, drip, hang_up, page, reply, silence

from heartbeat.findings import Finding, Report
from heartbeat.runners import MAX_ANSWER, AgentRequest, Answer, Failure, Tokens
from heartbeat.spec import HttpRunner

META = {"run": 7, "failures": 2, "zone": "Zürich"}
DISK = {"key": "disk:/var", "text": "92 % full"}
DISK_FOUND = Finding("disk:/var", "92 % full")
UNREADABLE = "answered with findings that cannot be read"
RUN = AgentRequest("ops", "How is it?\n", "small", Path("agents/ops"), timedelta(seconds=5), lambda: META)


class Opaque:
    """A secret as it is passed by the config."""

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value


def answer_to(act: Act, run: AgentRequest = RUN, path: str = "/hook") -> Answer:
    with Server([act]) as server:
        answer = ask(run, HttpRunner(server.url + path, {}))
    assert server.connections == 1, "one request an attempt"
    return answer


def test_the_run_is_posted_with_its_number_and_the_headers() -> None:
    with Server([text_answer("fine")]) as server:
        ask(RUN, HttpRunner(Opaque(f"{server.url}/hook?a=b"), {"Authorization": Opaque("Bearer t"), "X-Plain": "yes"}))
    request = server.requests[0]
    assert (request.method, request.path) == ("POST", "/hook?a=b")
    assert (request.headers["authorization"], request.headers["x-plain"]) == ("Bearer t", "yes")
    assert request.headers["content-type"] == "application/json"
    assert request.json == {
        "agent": "ops",
        "prompt": "How is it?\n",
        "model": "small",
        "timeout": 5.0,
        "meta": META,
        "run": 7,
    }


def test_only_our_own_content_length_header_is_sent() -> None:
    own = {"Content-Length": "3", "content-length": "4", "Transfer-Encoding": "chunked"}
    with Server([reply({"text": "fine"})]) as server:
        assert ask(RUN, HttpRunner(server.url, own)).text == "fine"
    request = server.requests[0]
    assert request.headers["content-length"] == str(len(request.body))
    assert "transfer-encoding" not in request.headers


def test_kept_messages_are_sent_along() -> None:
    with Server([text_answer("fine")]) as server:
        ask(replace(RUN, messages=(("user", "Before?"),)), HttpRunner(server.url, {}))
    assert server.requests[0].json["messages"] == [{"role": "user", "content": "Before?"}]


@loop_over(
    ("act", "answer"),
    [
        (text_answer("All is well."), Answer(text="All is well.")),
        (plain_text_answer("All is well – 東京"), Answer(text="All is well – 東京")),
        (reply({"text": None}), Answer()),
        (reply({"text": "a\0b"}), Answer(text="ab")),
        (reply({"text": "hi", "error": None}), Answer(text="hi")),
        (
            text_answer("hi", model="big", tokens={"input": 5, "output": 6}, cost_usd=0.01),
            Answer(text="hi", model_used="big", tokens=Tokens(5, 6), cost_usd=0.01),
        ),
        (text_answer("hi", model=7, tokens="many", cost_usd="free"), Answer(text="hi")),
        (text_answer("hi", cost_usd=-1), Answer(text="hi")),
        (text_answer("hi", cost_usd=10**400), Answer(text="hi")),
        (text_answer("hi", cost_usd=True), Answer(text="hi")),
        (async_answer(), Answer(later=True)),
        (reply({"later": True}), Answer(later=True)),
        (reply({"findings": [DISK]}), Answer("[disk:/var] 92 % full", report=Report((DISK_FOUND,)))),
        (reply({"findings": []}), Answer("HEARTBEAT_OK", report=Report(()))),
        (reply({"findings": [], "truncated": True}), Answer("", truncated=True, report=Report(()))),
        (reply({"findings": None, "text": "hi"}), Answer("hi")),
        (
            reply({"findings": [DISK], "text": "The week.", "model": "big", "truncated": True}),
            Answer(
                "The week.\n[disk:/var] 92 % full", model_used="big", truncated=True, report=Report((DISK_FOUND,), "The week.")
            ),
        ),
    ],
)
def test_an_answer_is_read(act: Act, answer: Answer) -> None:
    assert answer_to(act) == answer


@loop_over(
    ("act", "failure", "error", "transient"),
    [
        (reply({"error": "no brain"}), Failure.SERVER, "the agent failed: no brain", True),
        (reply({"text": "hi", "error": {"message": "no brain"}}), Failure.SERVER, "the agent failed: no brain", True),
        (reply({"error": 7}), Failure.SERVER, "the agent failed: no reason given", True),
        (reply({}), Failure.BAD_ANSWER, "answered without text; return text, findings, error or later", False),
        (reply({"text": 7}), Failure.BAD_ANSWER, "answered without text; return text, findings, error or later", False),
        (reply({"findings": [DISK], "error": "no brain"}), Failure.SERVER, "the agent failed: no brain", True),
        (reply({"findings": "none", "text": "hi"}), Failure.BAD_ANSWER, f"{UNREADABLE}: they are not valid JSON", False),
        (reply({"findings": {}}), Failure.BAD_ANSWER, f"{UNREADABLE}: there is no list of findings", False),
        (reply({"findings": [{}]}), Failure.BAD_ANSWER, f"{UNREADABLE}: none of the findings has a key or a text", False),
        (reply({"findings": [], "text": "x" * 70_000}), Failure.BAD_ANSWER, "the answer is larger than 65536 bytes", False),
        (reply(["hi"]), Failure.BAD_ANSWER, "answered with a JSON list where an object was expected", False),
        (reply(b"hi"), Failure.BAD_ANSWER, "answered with broken JSON", False),
        (
            reply(b'{"text": "hi", "cost_usd": NaN}'),
            Failure.BAD_ANSWER,
            "answered with broken JSON",
            False,
        ),
        (page(), Failure.BAD_ANSWER, "answered with text/html; an answer is application/json or text/plain", False),
        (reply(status=204), Failure.BAD_ANSWER, "HTTP 204 No Content", False),
        (text_answer("x" * (MAX_ANSWER + 1)), Failure.BAD_ANSWER, "the answer is larger than 65536 bytes", False),
        (plain_text_answer("x" * 10_000_000), Failure.BAD_ANSWER, "its answer is larger than 1024 KiB", False),
        (reply({"error": "who?"}, 401), Failure.AUTH, "HTTP 401 Unauthorized: who?", False),
        (reply({"message": "where?"}, 404), Failure.NOT_FOUND, "HTTP 404 Not Found: where?", False),
        (reply(b"boom", 500, "text/plain"), Failure.SERVER, "HTTP 500 Internal Server Error: boom", True),
        (page(503), Failure.OVERLOADED, "HTTP 503 Service Unavailable", True),
        (hang_up(), Failure.CONNECT, "it closed the connection before its answer was complete", True),
    ],
)
def test_every_other_response_is_a_failure_of_its_class(act: Act, failure: Failure, error: str, transient: bool) -> None:
    answer = answer_to(act)
    assert (answer.failure, answer.error, answer.transient, answer.text) == (failure, error, transient, "")


@pytest.mark.parametrize("act", [drip(), silence()])
def test_a_slow_or_silent_server_cannot_exceed_the_timeout(act: Act) -> None:
    answer = answer_to(act, replace(RUN, timeout=timedelta(seconds=0.3)))
    assert (answer.failure, answer.transient) == (Failure.TIMEOUT, True)


def test_the_retry_after_of_a_busy_agent_is_kept() -> None:
    assert answer_to(reply({"error": "busy"}, 429, Retry_After="30")).retry_after == timedelta(seconds=30)


def test_a_redirect_is_not_followed() -> None:
    with Server([text_answer("gotcha")]) as elsewhere:
        answer = answer_to(reply(status=302, Location=elsewhere.url))
    assert (answer.failure, elsewhere.requests) == (Failure.BAD_ANSWER, [])


CANARY = "canary-0123456789"


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        (f"/hook/{CANARY}", {}),
        (f"/hook?token={CANARY}", {}),
        ("/hook", {"X-Token": Opaque(CANARY)}),
        ("/hook", {"Authorization": Opaque(f"Bearer {CANARY}")}),
    ],
)
def test_a_secret_that_the_server_repeats_is_redacted(path: str, headers: dict[str, object]) -> None:
    with Server([reply({"error": f"no {path} with {CANARY} here"}, 404)]) as server:
        answer = ask(RUN, HttpRunner(Opaque(server.url + path), headers))
    assert answer.failure is Failure.NOT_FOUND
    assert "***" in answer.error
    assert CANARY not in answer.error


@pytest.mark.parametrize("value", [f"{CANARY}\r\nX-More: 1", f"{CANARY}\n", f"{CANARY}é", f"{CANARY}\0"])
def test_an_invalid_header_is_named_but_not_shown(value: str) -> None:
    with Server([text_answer("hi")]) as server:
        answer = ask(RUN, HttpRunner(server.url, {"X-Token": Opaque(value)}))
    assert (answer.failure, server.requests) == (Failure.BAD_REQUEST, [])
    assert "'x-token'" in answer.error
    assert CANARY not in answer.error


@pytest.mark.parametrize("url", [f"{CANARY}", f"file:///{CANARY}", f"http://[{CANARY}/", f"http://x:{CANARY}/"])
def test_an_invalid_address_is_a_failure_and_not_shown(url: str) -> None:
    answer = ask(RUN, HttpRunner(Opaque(url), {}))
    assert (answer.failure, answer.transient) == (Failure.BAD_REQUEST, False)
    assert CANARY not in answer.error

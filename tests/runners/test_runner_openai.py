"""The runner for models with OpenAI's chat completions API, on any server."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from loops import loop_over
from run_async import call_agent as ask
from run_async import call_decider as decide
from servers.completions import USAGE, completion, error_answer, text_answer, tool
from servers.scripted import Act, Server, drip, hang_up, page, reply, silence

from heartbeat.findings import TOOL_SCHEMA, Finding, Report, Severity
from heartbeat.runners import MAX_ANSWER, Action, AgentRequest, Answer, Decision, Failure, Tokens
from heartbeat.spec import ModelRunner, Provider

KEY = "sk-canary-0123456789"
RUN = AgentRequest("ops", "How is it?\n", "llama-9", Path("agents/ops"), timedelta(seconds=5), lambda: {"run": 7})
TOKENS = Tokens(input=120, output=30, cache_read=7)


def at(url: str, key: str | None = None, bound: int = 2000) -> ModelRunner:
    return ModelRunner(Provider("local", "openai", key, f"{url}/v1"), bound)


def answer_to(act: Act, run: AgentRequest = RUN, key: str | None = None) -> Answer:
    with Server([act]) as server:
        answer = ask(run, at(server.url, key))
    assert server.connections == 1, "one request an attempt"
    return answer


def test_the_first_choice_is_the_answer() -> None:
    assert answer_to(text_answer("All is well.")) == Answer(text="All is well.", model_used="llama-9", tokens=TOKENS)


def test_one_turn_is_requested_without_tools_and_with_a_token_limit() -> None:
    with Server([text_answer("fine")]) as server:
        ask(replace(RUN, messages=(("user", "Before?"), ("assistant", "Calm."))), at(server.url, bound=321))
    request = server.requests[0]
    assert (request.method, request.path) == ("POST", "/v1/chat/completions")
    assert request.json == {
        "model": "llama-9",
        "max_tokens": 321,
        "stream": False,
        "messages": [
            {"role": "user", "content": "Before?"},
            {"role": "assistant", "content": "Calm."},
            {"role": "user", "content": "How is it?\n"},
        ],
    }


def test_the_effort_is_sent_as_this_api_names_it() -> None:
    with Server([text_answer("fine")]) as server:
        ask(replace(RUN, effort="low"), at(server.url))
    assert server.requests[0].json["reasoning_effort"] == "low"


@pytest.mark.parametrize(("key", "header"), [(None, None), ("", None), (KEY, f"Bearer {KEY}")])
def test_the_key_is_optional(key: str | None, header: str | None) -> None:
    with Server([text_answer("fine")]) as server:
        assert ask(RUN, at(server.url, key)).text == "fine"
    assert server.requests[0].headers.get("authorization") == header


def test_a_login_in_the_address_becomes_a_header() -> None:
    with Server([text_answer("fine")]) as server:
        assert ask(RUN, at(server.url.replace("://", "://user:p%40ss@"))).text == "fine"
    assert server.requests[0].headers["authorization"] == "Basic dXNlcjpwQHNz"


def test_the_environment_adds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with Server([text_answer("trap")]) as trap, Server([text_answer("fine")]) as server:
        for name in ("OPENAI_BASE_URL", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, trap.url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-env")
        assert ask(RUN, at(server.url)).text == "fine"
    assert trap.connections == 0
    assert "authorization" not in server.requests[0].headers


def test_a_server_with_a_single_model_needs_no_model_name() -> None:
    with Server([text_answer("fine")]) as server:
        ask(replace(RUN, model=None), at(server.url))
    assert "model" not in server.requests[0].json


@loop_over(
    ("act", "failure", "transient"),
    [
        (error_answer(401, "bad"), Failure.AUTH, False),
        (error_answer(429, "bad"), Failure.RATE, True),
        (error_answer(429, "bad", "insufficient_quota"), Failure.PAYMENT, False),
        (reply({"error": {"message": "bad", "code": 429}}), Failure.RATE, True),
        (reply({"error": {"message": "bad", "code": "boom"}}), Failure.BAD_ANSWER, False),
        (reply({"error": "bad"}), Failure.BAD_ANSWER, False),
        (reply({"detail": "bad"}, 422), Failure.BAD_REQUEST, False),
        (reply({"error": "bad"}, 404), Failure.NOT_FOUND, False),
        (reply(b"bad", 500, "text/plain"), Failure.SERVER, True),
    ],
)
def test_each_error_status_has_its_class_and_its_message(act: Act, failure: Failure, transient: bool) -> None:
    answer = answer_to(act)
    assert (answer.failure, answer.transient) == (failure, transient)
    assert answer.error.startswith("provider 'local': ")
    assert answer.error.endswith(": bad")


@loop_over(
    ("act", "failure", "error"),
    [
        (page(), Failure.BAD_ANSWER, "answered with an HTML page"),
        (reply({}), Failure.BAD_ANSWER, "answered without a choice"),
        (reply({"choices": []}), Failure.BAD_ANSWER, "answered without a choice"),
        (reply({"choices": [{"message": "hi"}]}), Failure.BAD_ANSWER, "answered without a choice"),
        (reply(completion(7)), Failure.BAD_ANSWER, "answered with content that is not text"),
        (reply(completion("x", calls=[1])), Failure.BAD_ANSWER, "answered with malformed tool calls"),
        (hang_up(), Failure.CONNECT, "it closed the connection before its answer was complete"),
        (reply(b"", 204), Failure.BAD_ANSWER, "HTTP 204 No Content"),
    ],
)
def test_an_error_of_the_server_is_a_failure_of_its_class(act: Act, failure: Failure, error: str) -> None:
    answer = answer_to(act)
    assert (answer.failure, answer.error) == (failure, f"provider 'local': {error}")


@pytest.mark.parametrize("act", [drip(), silence()])
def test_a_slow_or_silent_server_cannot_exceed_the_timeout(act: Act) -> None:
    answer = answer_to(act, replace(RUN, timeout=timedelta(seconds=0.3)))
    assert (answer.failure, answer.transient) == (Failure.TIMEOUT, True)


@pytest.mark.parametrize(
    ("body", "failure"),
    [
        (completion("x" * (MAX_ANSWER + 1)), Failure.BAD_ANSWER),
        (completion("", "length"), Failure.BAD_ANSWER),
        (completion("", "content_filter"), Failure.BAD_ANSWER),
        (completion(None, "tool_calls", calls=[tool("exec", {})]), Failure.TOOL_USE),
    ],
)
def test_an_invalid_response_still_costs_its_tokens(body: object, failure: Failure) -> None:
    answer = answer_to(reply(body))
    assert (answer.failure, answer.tokens, answer.text) == (failure, TOKENS, "")


def test_content_in_several_parts_is_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "text", "text": "b"}]
    assert answer_to(reply(completion(parts))).text == "a\nb"


def test_a_completion_without_usage_has_no_tokens() -> None:
    assert answer_to(reply(completion("hi", usage=None))).tokens is None


@loop_over(
    ("more", "tokens"),
    [
        ({"total_tokens": 251, "completion_tokens_details": {"reasoning_tokens": 94}}, Tokens(127, 124)),  # as of Grok and Gemini
        ({"total_tokens": 157, "completion_tokens_details": {"reasoning_tokens": 20}}, Tokens(127, 30)),  # as of OpenAI
        ({"total_tokens": 30}, Tokens(127, 30)),
        ({"total_tokens": "many"}, None),
    ],
)
def test_thinking_that_a_server_counts_only_in_the_total_is_output(more: dict[str, object], tokens: Tokens | None) -> None:
    usage = {"prompt_tokens": 127, "completion_tokens": 30, **more}
    assert answer_to(reply(completion("hi", usage=usage))).tokens == tokens


def test_tokens_from_a_cache_that_a_gateway_reports_under_two_names_count_once() -> None:
    usage = USAGE | {"cache_read_input_tokens": 7}
    assert answer_to(reply(completion("hi", usage=usage))).tokens == TOKENS


@pytest.mark.parametrize("text", [KEY, "Bearer " + KEY, "c2stY2FuYXJ5LTAxMjM0NTY3ODk="])
def test_a_key_that_the_server_repeats_is_redacted(text: str) -> None:
    answer = answer_to(error_answer(401, f"no such key: {text}"), key=KEY)
    assert answer.error.endswith("***")
    assert text not in answer.error


TASKS = {"action": "run", "tasks": "Look at the disk."}


def decision_of(body: object) -> Answer:
    with Server([reply(body)]) as server:
        return decide(RUN, at(server.url))


def test_a_decision_is_forced_and_read() -> None:
    with Server([reply(completion(None, "tool_calls", calls=[tool("decide", TASKS)]))]) as server:
        decided = decide(RUN, at(server.url))
    assert decided == Answer(model_used="llama-9", tokens=TOKENS, decision=Decision(Action.RUN, "Look at the disk."))
    assert server.requests[0].json["tool_choice"] == {"type": "function", "function": {"name": "decide"}}


def test_arguments_that_are_an_object_are_read_too() -> None:
    call = {"type": "function", "function": {"name": "decide", "arguments": TASKS}}
    assert decision_of(completion(None, calls=[call])).decision == Decision(Action.RUN, "Look at the disk.")


@loop_over(
    "body",
    [
        completion(None, "length", calls=[tool("decide", TASKS)]),
        completion(None, calls=[{"function": {"name": "decide", "arguments": '{"action": "run", "tas'}}]),
        completion(None, calls=[{"function": {"name": "decide", "arguments": "[" * 5000}}]),
        completion(None, calls=[{"function": None}]),
    ],
)
def test_a_broken_or_missing_decision_is_a_failure_that_cost_its_tokens(body: object) -> None:
    decided = decision_of(body)
    assert (decided.failure, decided.decision, decided.tokens) == (Failure.BAD_ANSWER, None, TOKENS)


FINDINGS_RUN = replace(RUN, form="findings")
DISK = {"key": "disk:/var", "text": "92 % full", "severity": "critical", "resolved": False}
DISK_FOUND = Report((Finding("disk:/var", "92 % full", Severity.CRITICAL),))


def findings_of(*arguments: object, content: object = None, finish: str = "tool_calls") -> Answer:
    calls = [{"type": "function", "function": {"name": "report_findings", "arguments": each}} for each in arguments]
    return answer_to(reply(completion(content, finish, calls=calls)), FINDINGS_RUN)


def test_findings_are_requested_by_a_forced_tool_with_a_schema() -> None:
    with Server([reply(completion(None, calls=[tool("report_findings", {"findings": [DISK]})]))]) as server:
        answer = ask(FINDINGS_RUN, at(server.url))
    assert answer == Answer("[disk:/var!] 92 % full", model_used="llama-9", tokens=TOKENS, report=DISK_FOUND)
    request = server.requests[0].json
    assert request["tool_choice"] == {"type": "function", "function": {"name": "report_findings"}}
    assert [tool["function"]["name"] for tool in request["tools"]] == ["report_findings"]
    assert request["tools"][0]["function"]["parameters"] == TOOL_SCHEMA


def test_findings_may_be_an_object_or_json_in_json() -> None:
    given = {"findings": [DISK]}
    for arguments in (given, json.dumps(json.dumps(given)), {"findings": json.dumps([DISK])}):
        assert findings_of(arguments).report == DISK_FOUND


def test_a_server_that_ignores_the_tool_answers_with_text() -> None:
    answer = answer_to(text_answer("All is well."), FINDINGS_RUN)
    assert (answer.text, answer.report, answer.failure) == ("All is well.", None, None)
    assert findings_of(content="All is well.").text == "All is well.", "with an empty list of calls"


def test_text_beside_the_tool_is_kept_and_two_calls_are_one_answer() -> None:
    swap = {"findings": [{"key": "swap", "text": "full"}]}
    answer = findings_of(json.dumps({"findings": [DISK]}), json.dumps(swap), content="I looked.")
    assert answer.text == "I looked.\n[disk:/var!] 92 % full\n[swap] full"
    assert answer.report is not None
    assert answer.report.loose == "I looked."


def test_of_an_answer_that_was_cut_the_complete_findings_are_kept() -> None:
    whole = json.dumps({"findings": [DISK, DISK | {"key": "swap"}]})
    for cut in range(whole.index("}") + 1, len(whole) - 3):
        answer = findings_of(whole[:cut], finish="length")
        assert (answer.report, answer.truncated, answer.failure) == (DISK_FOUND, True, None)

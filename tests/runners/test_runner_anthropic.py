"""The runner for Anthropic's models: the real SDK against a local server with the Messages API."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from loops import loop_over
from run_async import call_agent as ask
from run_async import call_decider as decide
from servers import messages
from servers.messages import error_answer, message, text, text_answer, tool
from servers.scripted import Act, Server, drip, half, hang_up, page, raw, reply, reset, silence

from heartbeat.findings import TOOL_SCHEMA, Finding, Report, Severity
from heartbeat.runners import MAX_ANSWER, Action, AgentRequest, Answer, Decision, Failure, Tokens
from heartbeat.runners.anthropic import import_sdk
from heartbeat.spec import ModelRunner, Provider

KEY = "sk-ant-canary-0123456789"
RUN = AgentRequest("ops", "How is it?\n", "claude-haiku-5-5", Path("agents/ops"), timedelta(seconds=5), lambda: {"run": 7})
TOKENS = Tokens(input=120, output=30, cache_read=7, cache_write=2)
CA = "if your own authority signed it, write network: {ca_file: PATH}"
LINE = "provider 'anthropic': it has no API key; write providers: {anthropic: {api_key: \"${ANTHROPIC_API_KEY}\"}}"


class Opaque:
    """A secret as it is passed by the config."""

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "***"


def at(url: str, key: str | None = KEY, bound: int = 2000) -> ModelRunner:
    return ModelRunner(Provider("anthropic", "anthropic", Opaque(key) if key is not None else None, url), bound)


def answer_to(act: Act, run: AgentRequest = RUN) -> Answer:
    with Server([act]) as server:
        answer = ask(run, at(server.url))
    assert server.connections == 1, "one request an attempt"
    return answer


def test_the_text_blocks_are_the_answer_and_the_tokens_are_counted_by_kind() -> None:
    answer = answer_to(reply(message(text("All is"), {"type": "thinking", "thinking": "hm"}, text("well."))))
    assert answer == Answer(text="All is\nwell.", model_used="claude-haiku-5-5", tokens=TOKENS)


def test_one_turn_is_requested_without_tools_and_with_a_token_limit() -> None:
    with Server([text_answer("fine")]) as server:
        ask(RUN, at(server.url, bound=321))
    request = server.requests[0]
    assert (request.method, request.path) == ("POST", "/v1/messages")
    assert request.json == {
        "model": "claude-haiku-5-5",
        "max_tokens": 321,
        "messages": [{"role": "user", "content": "How is it?\n"}],
    }
    assert KEY in request.headers.get("authorization", "") + request.headers.get("x-api-key", "")


def test_the_effort_is_sent_as_the_sdk_names_it() -> None:
    with Server([text_answer("fine")]) as server:
        ask(replace(RUN, effort="xhigh"), at(server.url))
    assert server.requests[0].json["output_config"] == {"effort": "xhigh"}


def test_the_request_id_is_kept_whether_it_succeeds_or_not() -> None:
    fine = answer_to(reply(message(text("fine")), request_id="req_011"))
    busy = answer_to(reply({"error": {"message": "busy"}}, 529, request_id="req_012"))
    odd = answer_to(reply(message(text("fine")), request_id="<b>no id</b>"))
    assert (fine.request_id, busy.request_id, odd.request_id) == ("req_011", "req_012", None)


def test_kept_messages_come_before_the_prompt() -> None:
    with Server([text_answer("fine")]) as server:
        ask(replace(RUN, messages=(("user", "Before?"), ("assistant", "Calm."))), at(server.url))
    assert [turn["content"] for turn in server.requests[0].json["messages"]] == ["Before?", "Calm.", "How is it?\n"]


def test_the_name_of_the_model_that_answered_is_kept() -> None:
    assert answer_to(reply(message(text("hi"), model="claude-other"))).model_used == "claude-other"


def test_a_lone_surrogate_in_prompt_or_answer_is_replaced() -> None:
    answer = answer_to(raw_message('{"type": "text", "text": "a\\ud800b\\u0000"}'), replace(RUN, prompt="x\ud800"))
    assert answer.text == "a?b"


def raw_message(block: str) -> Act:
    return reply(b'{"type": "message", "content": [' + block.encode() + b"]}")


@loop_over(
    ("status", "kind", "failure", "transient"),
    [
        (400, "invalid_request_error", Failure.BAD_REQUEST, False),
        (401, "authentication_error", Failure.AUTH, False),
        (402, "billing_error", Failure.PAYMENT, False),
        (403, "permission_error", Failure.AUTH, False),
        (404, "not_found_error", Failure.NOT_FOUND, False),
        (405, "invalid_request_error", Failure.BAD_REQUEST, False),
        (408, "timeout_error", Failure.SERVER, True),
        (409, "conflict_error", Failure.SERVER, True),
        (413, "request_too_large", Failure.TOO_LARGE, False),
        (422, "invalid_request_error", Failure.BAD_REQUEST, False),
        (429, "rate_limit_error", Failure.RATE, True),
        (500, "api_error", Failure.SERVER, True),
        (502, "api_error", Failure.SERVER, True),
        (503, "overloaded_error", Failure.OVERLOADED, True),
        (504, "timeout_error", Failure.SERVER, True),
        (529, "overloaded_error", Failure.OVERLOADED, True),
    ],
)
def test_each_status_has_its_class(status: int, kind: str, failure: Failure, transient: bool) -> None:
    answer = answer_to(error_answer(status, kind, "model: claude-none is unknown"))
    assert (answer.failure, answer.transient, answer.text) == (failure, transient, "")
    assert answer.error.startswith(f"provider 'anthropic': HTTP {status}")
    assert answer.error.endswith(": model: claude-none is unknown")


def test_the_sdk_does_not_retry_even_if_a_header_requests_it() -> None:
    answer_to(error_answer(503, "overloaded_error", "busy", x_should_retry="true", retry_after="0"))


def test_a_redirect_is_not_followed() -> None:
    with Server([text_answer("gotcha")]) as elsewhere:
        answer = answer_to(reply(status=307, Location=f"{elsewhere.url}/v1/messages"))
    assert (answer.failure, elsewhere.requests) == (Failure.BAD_ANSWER, [])
    assert "redirects are not followed" in answer.error


@loop_over(
    ("headers", "wait"),
    [
        ({}, None),
        ({"retry_after": "7"}, timedelta(seconds=7)),
        ({"retry_after": "soon"}, None),
        (
            {"retry_after": "Fri, 20 Nov 2026 10:05:00 GMT", "Date": "Fri, 20 Nov 2026 10:00:00 GMT"},
            timedelta(minutes=5),
        ),
    ],
)
def test_retry_after_is_read_and_garbage_ignored(headers: dict[str, str], wait: timedelta | None) -> None:
    assert answer_to(error_answer(429, "rate_limit_error", "slow down", **headers)).retry_after == wait


@loop_over(
    ("act", "failure", "error", "transient"),
    [
        (page(), Failure.BAD_ANSWER, "answered with an HTML page", False),
        (page(502), Failure.SERVER, "HTTP 502 Bad Gateway", True),
        (reply(b'{"content": [}'), Failure.BAD_ANSWER, "answered with broken JSON", False),
        (reply(b'{"content": [' + b"[" * 100_000), Failure.BAD_ANSWER, "answered with broken JSON", False),
        (reply(b""), Failure.BAD_ANSWER, "answered with broken JSON", False),
        (reply([1]), Failure.BAD_ANSWER, "answered with a JSON list where an object was expected", False),
        (reply({}), Failure.BAD_ANSWER, "answered without a list of content blocks", False),
        (reply({"content": ["x"]}), Failure.BAD_ANSWER, "answered without a list of content blocks", False),
        (half(message(text("x" * 500))), Failure.CONNECT, "it closed the connection before its answer was complete", True),
        (hang_up(), Failure.CONNECT, "it closed the connection before its answer was complete", True),
        (reset(), Failure.CONNECT, "it broke the connection", True),
        (raw(b"220 mail.example ESMTP\r\n\r\n"), Failure.BAD_ANSWER, "its answer was not valid HTTP", False),
        (
            reply(b"x" * 10, Content_Encoding="gzip"),
            Failure.BAD_ANSWER,
            "its answer is compressed, although the request did not allow that",
            False,
        ),
        (reply(b" " * 10_000_000), Failure.BAD_ANSWER, "its answer is larger than 1024 KiB", False),
    ],
)
def test_an_error_of_the_server_is_a_failure_of_its_class(act: Act, failure: Failure, error: str, transient: bool) -> None:
    answer = answer_to(act)
    assert (answer.failure, answer.error, answer.transient) == (failure, f"provider 'anthropic': {error}", transient)


@pytest.mark.parametrize("act", [drip(), silence()])
def test_a_slow_or_silent_server_cannot_exceed_the_timeout(act: Act) -> None:
    answer = answer_to(act, replace(RUN, timeout=timedelta(seconds=0.3)))
    assert answer == Answer(failure=Failure.TIMEOUT, error="provider 'anthropic': no answer within 0.3 s", transient=True)


def test_a_slow_error_response_is_reported_by_its_status() -> None:
    assert answer_to(drip(401), replace(RUN, timeout=timedelta(seconds=0.3))).failure is Failure.AUTH


def test_a_closed_port_is_a_connection_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    answer = ask(RUN, at(f"http://127.0.0.1:{port}"))
    assert (answer.failure, answer.transient) == (Failure.CONNECT, True)
    assert answer.error == "provider 'anthropic': no connection: Connection refused"


def test_an_untrusted_certificate_is_rejected() -> None:
    with Server([text_answer("gotcha")], tls=True) as server:
        answer = ask(RUN, at(server.url))
    assert (answer.failure, answer.transient, server.requests) == (Failure.TLS, False, [])
    assert answer.error == "provider 'anthropic': its certificate is not trusted (self-signed certificate); " + CA


def test_a_text_larger_than_an_answer_may_be_is_a_failure_that_cost_its_tokens() -> None:
    answer = answer_to(text_answer("é" * MAX_ANSWER))
    assert (answer.failure, answer.text, answer.tokens) == (Failure.BAD_ANSWER, "", TOKENS)
    assert answer_to(text_answer("x" * MAX_ANSWER)).text == "x" * MAX_ANSWER


def test_a_message_without_usage_has_no_tokens() -> None:
    answer = answer_to(reply(message(text("hi"), usage=None)))
    assert (answer.text, answer.tokens) == ("hi", None)


@pytest.mark.parametrize("number", ["-1", '"many"', "true", "1e400", "1.5", "null", "9" * 30])
def test_a_usage_with_an_invalid_number_is_unknown(number: str) -> None:
    body = '{"content": [], "usage": {"input_tokens": NUMBER, "output_tokens": 3}}'.replace("NUMBER", number)
    assert answer_to(reply(body.encode())).tokens is None


def test_a_tool_beside_a_text_is_ignored_and_counted() -> None:
    answer = answer_to(reply(message(text("hi"), tool("exec", {"cmd": "rm -rf /"}))))
    assert (answer.text, answer.failure, answer.tools_ignored) == ("hi", None, 1)


@pytest.mark.parametrize(
    ("body", "failure", "error"),
    [
        (message(tool("exec", {})), Failure.TOOL_USE, "tried to use a tool"),
        (message(stop_reason="refusal"), Failure.BAD_ANSWER, "the model refused to answer"),
        (message(text("I"), stop_reason="refusal"), Failure.BAD_ANSWER, "the model refused to answer"),
        (message(stop_reason="max_tokens"), Failure.BAD_ANSWER, "reached max_output_tokens"),
    ],
)
def test_an_invalid_response_is_not_a_quiet_answer(body: object, failure: Failure, error: str) -> None:
    answer = answer_to(reply(body))
    assert (answer.failure, answer.tokens) == (failure, TOKENS)
    assert error in answer.error


def test_an_empty_text_is_an_answer() -> None:
    assert answer_to(reply(message())) == Answer(model_used="claude-haiku-5-5", tokens=TOKENS)


HOSTILE = {
    "ANTHROPIC_API_KEY": "sk-env",
    "ANTHROPIC_AUTH_TOKEN": "token-env",
    "ANTHROPIC_CUSTOM_HEADERS": "X-Env: 1\nAuthorization: Bearer sk-env\nX-Api-Key: sk-env\nanthropic-beta: env",
    "ANTHROPIC_WEBHOOK_SIGNING_KEY": "whsec_env",
    "ANTHROPIC_OPEN_TELEMETRY_TRACES_CONTENT_MODE": "content",
    "ANTHROPIC_LOG": "debug",
}


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """An environment and a home full of keys and addresses, all of which lead to `url`."""

    def make(url: str) -> None:
        for name, value in HOSTILE.items():
            monkeypatch.setenv(name, value)
        for name in ("ANTHROPIC_BASE_URL", "HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        profile(tmp_path / ".config" / "anthropic", url)
        monkeypatch.setenv("HOME", str(tmp_path))
        (tmp_path / ".netrc").write_text("machine 127.0.0.1 login env password env-netrc\n")

    return make


def profile(folder: Path, url: str) -> None:
    """A profile as the SDK keeps it on disk, with a token that is still good."""
    (folder / "configs").mkdir(parents=True)
    (folder / "credentials").mkdir()
    (folder / "active_config").write_text("default")
    login = {"type": "oauth_token", "access_token": "sk-profile", "expires_at": 4_000_000_000, "version": "1.0"}
    config = {"authentication": {"type": "user_oauth"}, "base_url": url, "version": "1.0"}
    (folder / "configs" / "default.json").write_text(json.dumps(config))
    (folder / "credentials" / "default.json").write_text(json.dumps(login))
    for file in folder.rglob("*.json"):
        file.chmod(0o600)


def test_the_environment_adds_nothing_to_a_request(hostile: Callable[[str], None]) -> None:
    with Server([text_answer("trap")]) as trap, Server([text_answer("fine")]) as server:
        hostile(trap.url)
        answer = ask(RUN, at(server.url))
    assert (answer.text, trap.connections) == ("fine", 0)
    sent = " ".join(f"{name}: {value}" for name, value in server.requests[0].headers.items()).lower()
    assert KEY in sent
    assert not [word for word in ("env", "profile", "anthropic-beta") if word in sent]


@pytest.mark.parametrize("key", [None, ""])
def test_without_a_key_no_request_is_sent_whatever_the_environment_has(hostile: Callable[[str], None], key: str | None) -> None:
    with Server([text_answer("trap")]) as trap:
        hostile(trap.url)
        answer = ask(RUN, at(trap.url, key))
    assert answer == Answer(failure=Failure.AUTH, error=LINE)
    assert trap.connections == 0


def test_the_same_profile_would_have_let_the_sdk_call(hostile: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """That the two tests above can fail: left to itself the SDK finds the key, the address and the profile."""
    import anthropic

    hostile("http://127.0.0.1:9")
    assert anthropic.Anthropic().api_key == "sk-env"
    for name in HOSTILE:
        monkeypatch.delenv(name)
    client = anthropic.Anthropic()
    assert client.credentials is not None
    assert client.credentials().token == "sk-profile"


@pytest.mark.parametrize("key", ["sk ant", "sk-ant\n", "sk-änt", "sk\x00"])
def test_a_key_that_no_header_can_hold_is_reported_but_not_shown(key: str) -> None:
    answer = ask(RUN, at("http://127.0.0.1:9", key))
    assert answer.failure is Failure.AUTH
    assert (
        answer.error == "provider 'anthropic': its api_key contains a character that no key can contain (a space, a line break?)"
    )


@pytest.mark.parametrize(
    "url", ["localhost:11434", "ftp://127.0.0.1/canary", "http://", "http://127.0.0.1:port/", "http://[::1", "http://a..b/"]
)
def test_an_invalid_address_is_a_failure_and_not_shown(url: str) -> None:
    answer = ask(RUN, at(url))
    assert (answer.failure, answer.transient) == (Failure.BAD_REQUEST, False)
    assert "canary" not in answer.error


def test_a_login_in_the_address_together_with_a_key_is_rejected() -> None:
    with Server([text_answer("hi")]) as server:
        answer = ask(RUN, at(server.url.replace("://", "://user:canary-pass@")))
    assert (answer.failure, server.requests) == (Failure.BAD_REQUEST, [])
    assert "canary" not in answer.error


def test_without_a_model_no_request_is_sent() -> None:
    answer = ask(replace(RUN, model=None), at("http://127.0.0.1:9"))
    assert answer.failure is Failure.BAD_REQUEST
    assert "write a model: for the agent ops" in answer.error


def test_a_key_that_the_server_repeats_is_redacted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    answer = answer_to(error_answer(401, "authentication_error", f"invalid key: {KEY} for Bearer {KEY}"))
    assert answer.error == "provider 'anthropic': HTTP 401 Unauthorized: invalid key: *** for Bearer ***"
    assert KEY not in caplog.text


@loop_over(
    "act",
    [
        reply(b"\x1f\x8b\x08", 500, Content_Encoding="gzip"),
        reply(b"boom", 500, "text/plain; charset=zlib"),
        reply(b"\xff\xfe\x00", 500, "text/plain; charset=nothing"),
        reply(b"[" * 60_000, 500),
        reply({"error": {"message": {"error": ["x"]}, "details": [[{}]], "type": 7}}, 500),
        reply({"error": "x"}, 500),
        reply([{}], 500),
        reply(b"", 500),
    ],
)
def test_an_error_with_a_hostile_body_is_reported_by_its_status(act: Act) -> None:
    answer = answer_to(act)
    assert (answer.failure, answer.transient) == (Failure.SERVER, True)
    assert answer.error.isprintable()


def test_a_long_error_message_is_cut_and_stays_on_one_line() -> None:
    answer = answer_to(error_answer(400, "invalid_request_error", "no\n\x1b[31m" * 1000))
    assert len(answer.error) < 600
    assert answer.error.isprintable()


def test_the_sdk_can_be_imported_in_advance() -> None:
    import_sdk()


TASKS = {"action": "run", "tasks": "Look at the disk."}


def decision_of(body: object) -> Answer:
    with Server([reply(body)]) as server:
        return decide(RUN, at(server.url))


def test_a_decision_is_forced_and_read() -> None:
    with Server([reply(message(tool("decide", TASKS), stop_reason="tool_use"))]) as server:
        decided = decide(RUN, at(server.url))
    assert decided == Answer(model_used="claude-haiku-5-5", tokens=TOKENS, decision=Decision(Action.RUN, "Look at the disk."))
    request = server.requests[0].json
    assert request["tool_choice"] == {"type": "tool", "name": "decide"}
    assert [tool["name"] for tool in request["tools"]] == ["decide"]
    assert request["tools"][0]["input_schema"]["properties"]["action"]["enum"] == ["skip", "run"]


def test_a_decision_to_skip_skips() -> None:
    decided = decision_of(message(text("Nothing."), tool("decide", {"action": "skip", "tasks": ""})))
    assert decided.decision == Decision(Action.SKIP, "")


@loop_over(
    "body",
    [
        message(text("run all")),
        message(),
        message(tool("exec", TASKS)),
        message(tool("decide", TASKS), tool("decide", {"action": "skip", "tasks": ""})),
        message(tool("decide", TASKS), tool("exec", {})),
        message(tool("decide", TASKS), stop_reason="max_tokens"),
        message(tool("decide", "run")),
        message(tool("decide", {"action": "Run", "tasks": "x"})),
        message(tool("decide", None)),
    ],
)
def test_a_broken_or_missing_decision_is_a_failure_that_cost_its_tokens(body: object) -> None:
    decided = decision_of(body)
    assert (decided.failure, decided.tokens, decided.transient) == (Failure.BAD_ANSWER, TOKENS, False)


def test_a_decision_fails_as_an_answer_does() -> None:
    with Server([messages.error_answer(529, "overloaded_error", "busy")]) as server:
        decided = decide(RUN, at(server.url))
    assert (decided.failure, decided.transient) == (Failure.OVERLOADED, True)


FINDINGS_RUN = replace(RUN, form="findings")
DISK = {"key": "disk:/var", "text": "92 % full", "severity": "critical", "resolved": False}
DISK_FOUND = Report((Finding("disk:/var", "92 % full", Severity.CRITICAL),))


def findings_of(*content: object, **more: object) -> Answer:
    return answer_to(reply(message(*content, **more)), FINDINGS_RUN)


def test_findings_are_requested_by_a_forced_tool_with_a_schema() -> None:
    with Server([reply(message(tool("report_findings", {"findings": [DISK]}), stop_reason="tool_use"))]) as server:
        answer = ask(FINDINGS_RUN, at(server.url))
    assert answer == Answer("[disk:/var!] 92 % full", model_used="claude-haiku-5-5", tokens=TOKENS, report=DISK_FOUND)
    request = server.requests[0].json
    assert request["tool_choice"] == {"type": "tool", "name": "report_findings"}
    assert [tool["name"] for tool in request["tools"]] == ["report_findings"]
    assert request["tools"][0]["input_schema"] == TOOL_SCHEMA
    assert request["tools"][0]["input_schema"]["properties"]["findings"]["items"]["required"] == list(DISK)


def test_an_empty_list_of_findings_is_the_quiet_token() -> None:
    answer = findings_of(tool("report_findings", {"findings": []}))
    assert (answer.text, answer.report, answer.failure) == ("HEARTBEAT_OK", Report(()), None)


def test_a_server_that_ignores_the_tool_answers_with_text() -> None:
    answer = findings_of(text("[disk:/var!] 92 % full"))
    assert (answer.text, answer.report, answer.failure) == ("[disk:/var!] 92 % full", None, None)


def test_text_beside_the_tool_is_kept_and_other_tools_are_counted() -> None:
    answer = findings_of(text("I looked."), tool("report_findings", {"findings": [DISK]}), tool("exec", {}))
    assert (answer.report, answer.tools_ignored) == (replace(DISK_FOUND, loose="I looked."), 1)
    assert answer.text == "I looked.\n[disk:/var!] 92 % full"


def test_two_calls_of_the_tool_are_one_answer() -> None:
    swap = {"key": "swap", "text": "full", "severity": "info", "resolved": False}
    answer = findings_of(tool("report_findings", {"findings": [DISK]}), tool("report_findings", {"findings": [swap, DISK]}))
    assert answer.text == "[disk:/var!] 92 % full\n[swap] full\n[disk:/var!] 92 % full"


@loop_over(
    "given", [{}, {"findings": None}, {"findings": "the disk"}, {"findings": {}}, {"text": "x"}, "disk", None, 5, [None], "{"]
)
def test_arguments_without_findings_are_a_failure_that_is_retried(given: object) -> None:
    answer = findings_of(tool("report_findings", given))
    assert (answer.failure, answer.transient, answer.text, answer.tokens) == (Failure.BAD_ANSWER, True, "", TOKENS)
    assert answer.error.startswith("the model called report_findings with arguments that cannot be read: ")


def test_of_an_answer_that_was_cut_the_complete_findings_are_kept() -> None:
    half = {"key": "swap:/de", "text": "fu"}
    answer = findings_of(tool("report_findings", {"findings": [DISK, half]}), stop_reason="max_tokens")
    assert (answer.report, answer.truncated, answer.failure) == (DISK_FOUND, True, None)
    two = findings_of(tool("report_findings", {"findings": [DISK]}), tool("report_findings", {}), stop_reason="max_tokens")
    assert (two.report, two.truncated) == (DISK_FOUND, True)


@pytest.mark.parametrize("given", [{}, {"findings": []}, {"findings": [{"key": "disk", "text": "92"}]}, {"findings": "["}])
def test_an_answer_that_was_cut_before_its_first_finding_is_a_failure(given: object) -> None:
    answer = findings_of(text("I look"), tool("report_findings", given), stop_reason="max_tokens")
    assert (answer.failure, answer.transient, answer.truncated) == (Failure.BAD_ANSWER, False, True)
    assert answer.error == "the model reached max_output_tokens before its first finding"


def test_a_refusal_with_the_tool_is_a_refusal() -> None:
    answer = findings_of(tool("report_findings", {"findings": []}), stop_reason="refusal")
    assert (answer.failure, answer.error) == (Failure.BAD_ANSWER, "the model refused to answer")


def test_another_tool_alone_is_still_a_failure() -> None:
    assert findings_of(tool("exec", {"cmd": "ls"})).failure is Failure.TOOL_USE
    unasked = answer_to(reply(message(tool("report_findings", {"findings": [DISK]}))))
    assert unasked.failure is Failure.TOOL_USE, "the tool was not offered"


def test_findings_larger_than_an_answer_may_be_are_a_failure_or_dropped() -> None:
    assert findings_of(tool("report_findings", {"findings": [], "text": "x" * MAX_ANSWER + "y"})).failure is Failure.BAD_ANSWER
    many = [DISK | {"key": f"disk:{number}", "text": "é" * 2000} for number in range(60)]
    report = findings_of(tool("report_findings", {"findings": many})).report
    assert report is not None
    assert len(report.findings) + report.dropped == 60
    assert len(str(report).encode()) <= MAX_ANSWER


def test_a_server_that_rejects_the_tool_leads_to_a_hint() -> None:
    hint = "; if the model cannot use tools, write answer: text in the agent's heartbeat"
    reject = error_answer(400, "invalid_request_error", "this model does not support tools")
    assert answer_to(reject, FINDINGS_RUN).error.endswith(f": this model does not support tools{hint}")
    assert answer_to(reject).error.endswith(": this model does not support tools")
    assert hint not in answer_to(error_answer(400, "invalid_request_error", "bad"), FINDINGS_RUN).error

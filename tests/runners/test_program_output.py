"""The output of programs: an agent's report is parsed, and everything else is plain text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from loops import loop_over
from test_runner_command import RUN, Ended, Program, answer, ask

from heartbeat.findings import Finding, Report
from heartbeat.runners import MAX_ANSWER, Answer, Failure, Tokens, ToolCall
from heartbeat.runners.command import parse_report
from heartbeat.runners.redaction import Redactor
from heartbeat.spec import CommandRunner


def read(output: str) -> Answer:
    found = parse_report(output, Redactor(()))
    return Answer(text=output) if found is None else found


CLAUDE = {
    "type": "result",
    "subtype": "success",
    "is_error": False,
    "result": "HEARTBEAT_OK",
    "session_id": "b2",
    "total_cost_usd": 0.0123,
    "usage": {"input_tokens": 3, "cache_creation_input_tokens": 40, "cache_read_input_tokens": 500, "output_tokens": 6},
    "modelUsage": {"claude-haiku-5-5": {"inputTokens": 3}},
}
SPENT = {"model_used": "claude-haiku-5-5", "tokens": Tokens(3, 6, 500, 40), "cost_usd": 0.0123}


def failed(error: str, **spent: Any) -> Answer:
    return Answer(failure=Failure.EXIT, error=f"the agent failed: {error}", transient=True, **spent)


REPORTS = [
    (CLAUDE, Answer(text="HEARTBEAT_OK", **SPENT)),
    (CLAUDE | {"is_error": True, "result": "Credit balance is too low"}, failed("Credit balance is too low", **SPENT)),
    ({"type": "result", "subtype": "error_during_execution", "is_error": True}, failed("error during execution")),
    ({"is_error": True}, failed("no reason given")),
    ({"response": "Disk is full.", "stats": {}}, Answer(text="Disk is full.")),
    ({"response": "", "error": {"type": "ApiError", "message": "quota", "code": 429}}, failed("quota")),
    ({"text": "x", "error": "no network\nat all"}, failed("no network at all")),
    ({"text": "x", "error": None, "is_error": False}, Answer(text="x")),
    ({"output": "x", "model": "m", "usage": {"prompt_tokens": 7, "completion_tokens": 2}}, Answer(text="x", model_used="m", tokens=Tokens(7, 2))),
    ({"result": "x", "usage": {"input_tokens": 90, "cached_input_tokens": 60, "output_tokens": 1}}, Answer(text="x", tokens=Tokens(30, 1, 60))),
    ({"result": "x", "usage": {"prompt_tokens": 90, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 60}}}, Answer(text="x", tokens=Tokens(30, 1, 60))),
    ({"text": "x", "tokens": {"input": 1, "output": 2, "cache_read": 3, "cache_write": 4}, "cost_usd": 1}, Answer(text="x", tokens=Tokens(1, 2, 3, 4), cost_usd=1.0)),
    ({"text": "x", "total_cost_usd": None, "cost_usd": 1, "usage": {"input_tokens": None, "prompt_tokens": 7, "completion_tokens": 2}}, Answer(text="x", tokens=Tokens(7, 2), cost_usd=1.0)),
    ({"result": "first", "text": "second"}, Answer(text="first")),
    ({"result": {"rows": 3}, "text": "told"}, Answer(text="told")),
    ({"result": ""}, Answer()),
    ({"result": "a\0b \ud800"}, Answer(text="ab ?")),
    ({"result": "x", "total_cost_usd": -1, "usage": {"input_tokens": True, "output_tokens": "9"}, "model": 5}, Answer(text="x")),
    ({"text": "x", "log": "looked at 3 hosts\0", "tool_calls": [{"name": "ssh", "duration_ms": 1250.7}, {"name": "ls", "count": 3}, {"name": ""}, 5]}, Answer(text="x", log="looked at 3 hosts", tool_calls=(ToolCall("ssh", 1, 1250), ToolCall("ls", 3)))),
    ({"text": "x", "error": "boom", "tool_calls": [{"name": "ssh", "duration_ms": -1}]}, failed("boom", tool_calls=(ToolCall("ssh"),))),
    ({"text": "x", "tool_calls": "ssh", "log": 5}, Answer(text="x")),
    ({"text": "x", "tool_calls": [{"name": "n" * 999}] * 999, "log": "l" * 99_999}, Answer(text="x", log="l" * 16_384, tool_calls=(ToolCall("n" * 200),) * 100)),
    ({"response": "x", "stats": {"tools": {"byName": {"shell": {"count": 2, "durationMs": 840}, "read": {"count": 1}, "odd": 3}}}}, Answer(text="x", tool_calls=(ToolCall("shell", 2, 840), ToolCall("read")))),
    ({"result": "x" * (MAX_ANSWER + 1), "total_cost_usd": 2}, Answer(failure=Failure.BAD_ANSWER, error="the answer is larger than 65536 bytes", cost_usd=2.0)),
    ({"result": "x", "total_cost_usd": "0.1", "usage": [], "modelUsage": {"a": {}, "b": {}}}, Answer(text="x")),
    ({"findings": [{"key": "swap", "text": "full"}], "total_cost_usd": 2}, Answer("[swap] full", cost_usd=2.0, report=Report((Finding("swap", "full"),)))),
    ({"findings": [], "result": ""}, Answer("HEARTBEAT_OK", report=Report(()))),
    ({"findings": [{"key": "swap", "resolved": True}], "result": "The week."}, Answer("The week.\n[swap] resolved", report=Report((Finding("swap", "", resolved=True),), "The week."))),
    ({"findings": 3, "text": "x"}, Answer(text="x")),
    ({"findings": [{}], "text": "x"}, Answer(text="x")),
    ({"findings": [{"key": "swap"}], "is_error": True}, failed("no reason given")),
]  # fmt: skip


@loop_over(("report", "expected"), REPORTS)
def test_a_report_has_its_text_its_error_and_its_usage(report: dict[str, Any], expected: Answer) -> None:
    assert read(json.dumps(report)) == expected
    assert read(f"\n{json.dumps(report, indent=2)}\n") == expected


def used(name: str, ident: str, time: str | None = None) -> dict[str, Any]:
    block = {"type": "tool_use", "id": ident, "name": name, "input": {}}
    return {"type": "assistant", "message": {"content": [{"type": "text", "text": "hm"}, block]}, "timestamp": time}


def tool_result(ident: str, time: str | None = None) -> dict[str, Any]:
    return {
        "type": "user",
        "message": {"content": [{"type": "tool_result", "tool_use_id": ident, "content": "ok"}]},
        "timestamp": time,
    }


STREAM = [
    {"type": "system", "subtype": "init", "tools": ["Bash", "Read"]},
    used("Bash", "t1", "2026-03-02T08:00:00.250Z"),
    tool_result("t1", "2026-03-02T08:00:02Z"),
    used("Read", "t2"),
    tool_result("t2"),
    used("Bash", "t3", "soon"),
    {"type": "assistant", "message": "odd"},
    CLAUDE,
]
TOOLS = (ToolCall("Bash", 1, 1750), ToolCall("Read"), ToolCall("Bash"))


def lines(events: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(event) + "\n" for event in events)


def test_the_events_before_a_report_show_which_tools_were_used_and_how_long() -> None:
    expected = Answer(text="HEARTBEAT_OK", tool_calls=TOOLS, **SPENT)
    assert read(lines(STREAM)) == expected
    assert read(json.dumps(STREAM)) == expected


def test_only_the_end_of_a_long_stream_is_read() -> None:
    noise = {"type": "user", "message": {"content": "x" * (MAX_ANSWER + 1)}}
    whole = lines([noise, *STREAM]).encode()
    assert answer(Ended(output=whole)).tool_calls == TOOLS
    cut = whole[100:]  # the first line is broken
    assert answer(Ended(output=cut, truncated=True)) == Answer(text="HEARTBEAT_OK", tool_calls=TOOLS, **SPENT)
    assert answer(Ended(output=lines([noise]).encode())).failure is Failure.BAD_ANSWER
    assert answer(Ended(output=cut, truncated=True, problem="wrote too much")).failure is Failure.BAD_ANSWER


def test_a_program_may_print_more_than_the_size_of_an_answer() -> None:
    program = Program(Ended(output=b"fine"))
    ask(RUN, CommandRunner(("agent",), {}), program)
    assert program.keep > MAX_ANSWER


@loop_over(
    "text",
    [
        "",
        "HEARTBEAT_OK",
        "{curly} is not JSON",
        '"a string in quotes"',
        "[1, 2]",
        '[{"result": "x"}]',
        '{"error": "disk full on host3"}',  # an answer about an error is no failure of the agent
        '{"disk": 97, "host": "b"}',
        '{"result": null}',
        '{"result": 5}',
        '{"is_error": "yes"}',
        '{"result": "x"} and more',
        '{"result": "x"}\n{"result": "y"}',
        "ALERT: " + '{"result": "x"}',
        lines(STREAM[:-1]),
        lines([*STREAM, {"type": "system"}]),
        json.dumps([{"type": "note"}, {"type": "note", "text": "x"}]),
        '{"a":' * 100_000,
        '{"result": "x", "cost_usd": ' + "9" * 5000 + "}",
    ],
)
def test_any_other_output_is_plain_text(text: str) -> None:
    assert read(text) == Answer(text=text)


def test_a_program_that_fails_keeps_its_report_beside_its_exit_code() -> None:
    output = json.dumps(CLAUDE | {"is_error": True, "result": "API Error: 529"}).encode()
    result = answer(Ended(1, output))
    assert (result.failure, result.error) == (Failure.EXIT, "exit code 1: the agent failed: API Error: 529")
    assert (result.cost_usd, result.tokens, result.transient) == (0.0123, Tokens(3, 6, 500, 40), True)
    assert answer(Ended(1, b"partial", b"boom")).error == "exit code 1: boom\nstandard output: partial"
    assert answer(Ended(ended_by="timeout", output=output)).failure is Failure.TIMEOUT


def test_a_report_in_a_program_s_output_is_its_answer() -> None:
    assert answer(Ended(output=json.dumps(CLAUDE).encode())) == Answer(text="HEARTBEAT_OK", **SPENT)
    assert answer(Ended(output=b"x" * (MAX_ANSWER + 1))).failure is Failure.BAD_ANSWER


def test_secrets_in_findings_are_redacted_before_anything_is_cut() -> None:
    secret = "canary-0123456789"
    found = [
        {"key": secret, "text": "x" * 1990 + secret, "severity": "critical"},
        {"title": {secret: [secret]}, "deep": [[[[[secret]]]]]},
        f"[mail] {secret}",
        3,
    ]
    answer = parse_report(json.dumps({"findings": found, "text": secret}), Redactor([secret]))
    assert answer is not None
    assert answer.report is not None
    assert [finding.label for finding in answer.report.findings] == ["mail"]
    assert "canar" not in repr(answer)
    assert "***" in answer.text
    assert '"title"' in answer.text


@pytest.mark.parametrize(
    "output", ['{"findings": {}}', '{"findings": [null]}', '{"findings": "none"}', '[{"key": "swap"}]', '{"key": "swap"}', "[]"]
)
def test_json_without_a_list_of_findings_is_text(output: str) -> None:
    assert read(output) == Answer(text=output)


def test_the_findings_of_an_event_stream_are_in_its_last_event() -> None:
    events = [used("ssh", "t1"), {"type": "result", "findings": [{"key": "swap", "text": "full"}]}]
    answer = read("\n".join(map(json.dumps, events)))
    assert (answer.text, answer.tool_calls) == ("[swap] full", (ToolCall("ssh"),))

"""What programs print: an agent's report is understood, and whatever is none stays a text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from test_command_runner import Ended, answer

from heartbeat.runners import MAX_ANSWER, Answer, Failure, Tokens
from heartbeat.runners.printed import read

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


def failed(said: str, **spent: Any) -> Answer:
    return Answer(failure=Failure.EXIT, error=f"the agent failed: {said}", transient=True, **spent)


REPORTS = [
    (CLAUDE, Answer(text="HEARTBEAT_OK", **SPENT)),
    (CLAUDE | {"is_error": True, "result": "Credit balance is too low"}, failed("Credit balance is too low", **SPENT)),
    ({"type": "result", "subtype": "error_max_turns", "is_error": True}, failed("error_max_turns")),
    ({"is_error": True}, failed("it does not say why")),
    ({"response": "Disk is full.", "stats": {}}, Answer(text="Disk is full.")),
    ({"response": "", "error": {"type": "ApiError", "message": "quota", "code": 429}}, failed("quota")),
    ({"text": "x", "error": "no network\nat all"}, failed("no network at all")),
    ({"text": "x", "error": None, "is_error": False}, Answer(text="x")),
    ({"output": "x", "model": "m", "usage": {"prompt_tokens": 7, "completion_tokens": 2}}, Answer(text="x", model_used="m", tokens=Tokens(7, 2))),
    ({"result": "x", "usage": {"input_tokens": 90, "cached_input_tokens": 60, "output_tokens": 1}}, Answer(text="x", tokens=Tokens(30, 1, 60))),
    ({"text": "x", "tokens": {"input": 1, "output": 2, "cache_read": 3, "cache_write": 4}, "cost_usd": 1}, Answer(text="x", tokens=Tokens(1, 2, 3, 4), cost_usd=1.0)),
    ({"result": "first", "text": "second"}, Answer(text="first")),
    ({"result": {"rows": 3}, "text": "told"}, Answer(text="told")),
    ({"result": ""}, Answer()),
    ({"result": "a\0b \ud800"}, Answer(text="ab ?")),
    ({"result": "x", "total_cost_usd": -1, "usage": {"input_tokens": True, "output_tokens": "9"}, "model": 5}, Answer(text="x", tokens=Tokens())),
    ({"result": "x", "total_cost_usd": "0.1", "usage": [], "modelUsage": {"a": {}, "b": {}}}, Answer(text="x")),
]  # fmt: skip


@pytest.mark.parametrize(("report", "expected"), REPORTS, ids=[str(number) for number in range(len(REPORTS))])
def test_a_report_gives_its_text_its_error_and_what_it_took(report: dict[str, Any], expected: Answer) -> None:
    assert read(json.dumps(report)) == expected
    assert read(f"\n{json.dumps(report, indent=2)}\n") == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "HEARTBEAT_OK",
        "{curly} is not JSON",
        '"a text in quotes"',
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
        '{"a":' * 100_000,
        '{"result": "x", "cost_usd": ' + "9" * 5000 + "}",
    ],
)
def test_anything_else_stays_the_text_that_it_is(text: str) -> None:
    assert read(text) == Answer(text=text)


def test_a_program_that_fails_keeps_its_report_beside_its_exit_code() -> None:
    output = json.dumps(CLAUDE | {"is_error": True, "result": "API Error: 529"}).encode()
    told = answer(Ended(1, output))
    assert (told.failure, told.error) == (Failure.EXIT, "exit code 1: the agent failed: API Error: 529")
    assert (told.cost_usd, told.tokens, told.transient) == (0.0123, Tokens(3, 6, 500, 40), True)
    assert answer(Ended(1, b"partial", b"boom")).error == "exit code 1: boom"
    assert answer(Ended(timed_out=True, output=output)).failure is Failure.TIMEOUT


def test_a_report_in_a_program_s_output_is_its_answer() -> None:
    assert answer(Ended(output=json.dumps(CLAUDE).encode())) == Answer(text="HEARTBEAT_OK", **SPENT)
    assert answer(Ended(output=b"x" * (MAX_ANSWER + 1))).failure is Failure.BAD_ANSWER

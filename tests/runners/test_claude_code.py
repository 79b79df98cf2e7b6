"""Claude Code: how it is called, and what its reports mean. Public issues and the sources of its SDK show these reports."""

from __future__ import annotations

import json

import pytest
from test_runner_command import RUN, Ended, Program, ask

from heartbeat.runners import Answer, Failure
from heartbeat.spec import CommandRunner

TURNS = "Reached maximum number of turns (1)"
COST = {"total_cost_usd": 0.0321, "usage": {"input_tokens": 7, "output_tokens": 5}}


def printed(exit_code: int = 0, **report: object) -> Ended:
    """What `claude -p --output-format json` prints."""
    return Ended(exit_code=exit_code, output=json.dumps({"type": "result", **report}).encode())


def answer(ended: Ended) -> Answer:
    return ask(RUN, CommandRunner(("claude", "-p", "--output-format", "json"), {}), Program(ended))


@pytest.mark.parametrize("exit_code", [0, 1])
@pytest.mark.parametrize("is_error", [True, False, None])
@pytest.mark.parametrize("text", [{}, {"result": ""}, {"result": None}])
@pytest.mark.parametrize("subtype", ["error_max_turns", "error_during_execution", "error_max_budget_usd", "error_of_tomorrow"])
def test_a_report_with_the_subtype_of_an_error_is_a_failure_with_its_words_and_cost(
    exit_code: int, is_error: bool | None, text: dict[str, object], subtype: str
) -> None:
    failed = answer(printed(exit_code, subtype=subtype, is_error=is_error, errors=["Reached it", "and more"], **text, **COST))
    begin = "exit code 1: " if exit_code else ""
    assert (failed.failure, failed.error) == (Failure.EXIT, f"{begin}the agent failed: Reached it; and more")
    assert (failed.text, failed.cost_usd, failed.tokens and failed.tokens.output) == ("", 0.0321, 5)
    would_cost_the_same_again = subtype in ("error_max_turns", "error_max_budget_usd")
    assert failed.transient is not would_cost_the_same_again


@pytest.mark.parametrize(
    ("report", "words"),
    [
        ({"errors": [TURNS]}, TURNS),
        ({"errors": [TURNS], "error": "out of luck", "result": "I stop here."}, "out of luck"),
        ({"errors": [TURNS], "result": "I stop here."}, TURNS),
        ({"errors": [], "result": "I stop here."}, "I stop here."),
        ({"errors": [{"message": TURNS}, 5]}, TURNS),
        ({"errors": "none", "result": ""}, "error max turns"),
        ({}, "error max turns"),
    ],
)
def test_the_words_of_a_failed_report_are_its_errors_or_its_text_or_its_subtype(report: dict[str, object], words: str) -> None:
    assert answer(printed(subtype="error_max_turns", **report)).error == f"the agent failed: {words}"


def test_a_stream_of_events_ends_with_such_a_report_too() -> None:
    events = [{"type": "system"}, {"type": "result", "subtype": "error_max_turns", "is_error": False, "errors": [TURNS], **COST}]
    failed = answer(Ended(output="\n".join(map(json.dumps, events)).encode()))
    assert (failed.error, failed.cost_usd) == (f"the agent failed: {TURNS}", 0.0321)


def test_only_a_report_that_says_so_has_failed() -> None:
    assert answer(printed(subtype="success", is_error=False, result="HEARTBEAT_OK", errors=[])).text == "HEARTBEAT_OK"
    other = b'{"type": "event", "subtype": "error_rate", "count": 7}'  # JSON of another program
    assert answer(Ended(output=other)).text == other.decode()


def test_a_failure_of_the_process_with_a_successful_report_is_retried_as_before() -> None:
    failed = answer(printed(1, subtype="success", is_error=False, result="HEARTBEAT_OK", **COST))
    assert (failed.failure, failed.error, failed.transient, failed.cost_usd) == (Failure.EXIT, "exit code 1", True, 0.0321)

"""The runner for programs: what a program receives, and what each way to end means."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from run_async import run_synchronously

from heartbeat.runners import MAX_ANSWER, AgentRequest, Answer, Failure, ProcessResult, command
from heartbeat.runners.call_errors import MAX_STDERR
from heartbeat.spec import CommandRunner
from heartbeatd.secret import Secret

ask = run_synchronously(command.call_agent)

RUN = AgentRequest(
    "ops", "How is it?\n", "small", Path("agents/ops"), timedelta(minutes=5), lambda: {"failures": 2, "zone": "Zürich"}
)


@dataclass(frozen=True, slots=True)
class Ended(ProcessResult):
    """The result of a program that succeeded without output, with the given changes."""

    exit_code: int | None = 0


@dataclass
class Program:
    """A starter of programs that returns a given result and records its arguments."""

    ended: Ended
    argv: Sequence[str] = ()
    stdin: bytes = b""
    env: Mapping[str, object] = field(default_factory=dict)
    cwd: Path = Path()
    keep: int = 0

    async def __call__(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes,
        env: Mapping[str, object],
        cwd: Path,
        keep: int = 0,
        keep_tail: bool = False,
        timeout: timedelta | None = None,
    ) -> Ended:
        self.argv, self.stdin, self.env, self.cwd, self.keep = argv, stdin, env, cwd, keep
        return self.ended


class Opaque:
    """A value that only the process started may see."""


def answer(ended: Ended, run: AgentRequest = RUN) -> Answer:
    return ask(run, CommandRunner(("agent", "-p"), {}), Program(ended))


def test_the_program_gets_the_prompt_the_facts_and_its_own_environment() -> None:
    program, key = Program(Ended(output=b"fine")), Opaque()
    ask(RUN, CommandRunner(("agent", "-p"), {"KEY": key}), program)
    assert program.argv == ("agent", "-p")
    assert program.stdin == b"How is it?\n"
    assert program.cwd == Path("agents/ops")
    assert program.env["KEY"] is key
    assert program.env["HEARTBEATD_AGENT"] == "ops"
    assert program.env["HEARTBEATD_MODEL"] == "small"
    assert json.loads(str(program.env["HEARTBEATD_META"])) == {"failures": 2, "zone": "Zürich"}


def test_the_program_gets_the_effort_if_there_is_one() -> None:
    program = Program(Ended(output=b"fine"))
    ask(replace(RUN, effort="high"), CommandRunner(("agent", "-p"), {}), program)
    assert program.env["HEARTBEATD_EFFORT"] == "high"


def test_without_a_model_there_is_no_model_variable() -> None:
    program = Program(Ended())
    ask(replace(RUN, model=None), CommandRunner(("agent",), {}), program)
    assert set(program.env) == {"HEARTBEATD_AGENT", "HEARTBEATD_META"}


def test_text_that_utf_8_cannot_encode_is_replaced_in_the_input() -> None:
    program = Program(Ended())
    ask(replace(RUN, prompt="a\ud800b", meta=lambda: {"x": "\ud800"}), CommandRunner(("agent",), {}), program)
    assert program.stdin == b"a?b"
    assert program.env["HEARTBEATD_META"] == '{"x": "?"}'


@pytest.mark.parametrize(
    ("output", "text"),
    [
        (b"", ""),
        (b" All is well.\n", " All is well.\n"),
        ("grün ✓".encode(), "grün ✓"),
        (b"The disk is nearly f\xfcll", "The disk is nearly f\ufffdll"),
        (b"The disk is full\0", "The disk is full"),
        (b"x" * MAX_ANSWER, "x" * MAX_ANSWER),
    ],
)
def test_exit_0_means_that_the_output_is_the_answer(output: bytes, text: str) -> None:
    assert answer(Ended(output=output, errors=b"a warning")) == Answer(text=text)


def test_another_exit_code_is_a_failure_with_the_programs_message() -> None:
    failed = answer(Ended(exit_code=3, output=b"HEARTBEAT_OK", errors=b"no\0 disk\n"))
    assert failed == Answer(failure=Failure.EXIT, error="exit code 3: no disk\nstandard output: HEARTBEAT_OK", transient=True)


def test_a_failing_program_without_a_message() -> None:
    assert answer(Ended(exit_code=1)).error == "exit code 1"


def test_the_error_of_a_program_has_the_last_lines_of_both_streams() -> None:
    output = b"\n".join([b"line %d" % number for number in range(20)]) + b"\n\nsession limit, resets \x1b[1m3pm\n"
    last = "standard output: line 16\nline 17\nline 18\nline 19\nsession limit, resets [1m3pm"
    for ended, error in (
        (Ended(exit_code=1, output=b"session limit, resets 3pm\n"), "exit code 1\nstandard output: session limit, resets 3pm"),
        (Ended(exit_code=1, output=output, errors=b"no more\n"), f"exit code 1: no more\n{last}"),
        (Ended(exit_code=None, output=b"working\n"), "ended by a signal\nstandard output: working"),
        (Ended(exit_code=-9, ended_by="timeout", output=b"step 3\n"), f"no answer within {RUN.timeout}\nstandard output: step 3"),
        (Ended(exit_code=1, output=b'{"result": "limit", "is_error": true}'), "exit code 1: the agent failed: limit"),
    ):
        assert answer(ended).error == error


def test_only_the_end_of_a_long_error_message_is_kept() -> None:
    error = answer(Ended(exit_code=1, errors=b"x" * 10_000 + b"the end")).error
    assert len(error) == len("exit code 1: ") + MAX_STDERR
    assert error.endswith("the end")


def test_a_program_ended_by_a_signal_failed() -> None:
    assert answer(Ended(exit_code=None, output=b"HEARTBEAT_OK")) == Answer(
        failure=Failure.EXIT, error="ended by a signal\nstandard output: HEARTBEAT_OK", transient=True
    )


def test_a_program_that_cannot_be_started_is_not_retried() -> None:
    failed = answer(Ended(exit_code=None, problem="no such file: agent"))
    assert failed == Answer(failure=Failure.EXIT, error="could not start: no such file: agent", not_sent=True)


def test_a_program_that_hangs_is_a_timeout_whatever_else_it_did() -> None:
    failed = answer(Ended(exit_code=None, output=b"HEARTBEAT_OK", ended_by="timeout", truncated=True))
    assert failed == Answer(
        failure=Failure.TIMEOUT, error="no answer within 0:05:00\nstandard output: HEARTBEAT_OK", transient=True
    )


@pytest.mark.parametrize(
    "ended",
    [
        Ended(output=b"x" * MAX_ANSWER, truncated=True),
        Ended(exit_code=None, output=b"x" * MAX_ANSWER, truncated=True),
        Ended(output=b"x" * (MAX_ANSWER + 1)),
    ],
)
def test_too_much_output_is_not_an_answer(ended: Ended) -> None:
    assert answer(ended) == Answer(failure=Failure.BAD_ANSWER, error="the answer is larger than 65536 bytes")


@pytest.mark.parametrize("output", [bytes(range(256)) * 4, b"\0" * 100, "HEARTBEAT_OK".encode("utf-16"), b"\xff"])
def test_binary_output_is_not_an_answer_and_its_size_is_reported(output: bytes) -> None:
    failed = answer(Ended(output=output))
    assert failed == Answer(failure=Failure.BAD_ANSWER, error=f"the answer is not text: {len(output)} bytes of binary output")


def test_the_failure_classes_are_those_of_the_metrics() -> None:
    assert " ".join(Failure) == (
        "auth payment not_found bad_request too_large rate overloaded server connect dns tls timeout bad_answer tool_use exit"
        " limited"
    )


def test_a_secret_in_its_environment_is_redacted_in_errors_answers_and_reports() -> None:
    env = {"KEY": Secret("canary-0123"), "REGION": "north"}

    def result(**ended: object) -> Answer:
        return ask(RUN, CommandRunner(("agent",), env), Program(replace(Ended(), **ended)))  # type: ignore[arg-type]

    assert result(exit_code=1, errors=b"no such key: canary-0123 in north").error == "exit code 1: no such key: *** in north"
    assert result(ended_by="timeout", errors=b"canary-0123").error.endswith(": ***")
    assert result(exit_code=1, output=b"no such key: canary-0123").error == "exit code 1\nstandard output: no such key: ***"
    assert result(exit_code=1, output=b"0123 is cut", truncated=True).error == "exit code 1\nstandard output: *** is cut"
    assert result(output=b"I know canary-0123").text == "I know ***"
    report = result(output=b'{"result": "canary-0123", "is_error": true, "log": "sent canary-0123"}')
    assert (report.error, report.log) == ("the agent failed: ***", "sent ***")
    cut = result(exit_code=1, errors=b"canary-0123" + b"x" * (MAX_STDERR - 4)).error
    assert "0123" not in cut


@pytest.mark.parametrize(("says", "until"), [("resets 7pm", "19:00"), ("try again in 2 hours", "12:20")])
def test_a_usage_limit_is_measured_from_the_end_of_the_call(says: str, until: str) -> None:
    """The program works for 20 minutes before it reaches the limit."""
    time = datetime(2026, 3, 2, 10, 0, tzinfo=UTC)

    async def start(*_: object, **__: object) -> Ended:
        nonlocal time
        time += timedelta(minutes=20)
        return Ended(1, errors=f"You've hit your usage limit. {says}".encode())

    found = ask(replace(RUN, clock=lambda: time), CommandRunner(("codex",), {}), start)
    assert (found.failure, f"{time + (found.retry_after or timedelta()):%H:%M}") == (Failure.LIMITED, until)
    assert f"until 2026-03-02 {until}: " in found.error

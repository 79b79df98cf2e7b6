"""Calls an agent by running a program: the prompt goes to its standard input, the answer comes from its standard output."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

from heartbeat.runners import MAX_ANSWER, AgentRequest, Answer, Failure, ProcessResult, StartProcess, program_output
from heartbeat.runners.agent_json import clean_text
from heartbeat.runners.errors import add_last_lines, add_stderr
from heartbeat.runners.redaction import Redactor, redactor_for_env
from heartbeat.spec import CommandRunner

MAX_OUTPUT = 1024 * 1024  # bytes of output that are kept, from its end; a report may be larger than its answer


async def call_agent(run: AgentRequest, runner: CommandRunner, start: StartProcess) -> Answer:
    """Run the agent's program in its workspace and read its answer.

    The program gets the runner's own `env`, HEARTBEATD_AGENT, HEARTBEATD_META (JSON) and, if a model is set, HEARTBEATD_MODEL.
    Only with exit code 0 is its output the answer, which `program_output` reads. Any other end is a failure without a text. The
    usage counts in every case if the output reports it. Secrets in the runner's `env` are redacted in everything that the
    program prints.
    """
    env = {**runner.env, **_agent_variables(run)}
    stdin = run.prompt.encode(errors="replace")
    ended = await start(runner.argv, stdin=stdin, env=env, cwd=run.workspace, keep=MAX_OUTPUT, keep_tail=True)
    redactor = redactor_for_env(runner.env)
    failed = _failure_of(ended, run, redactor)
    if failed is None:
        return _parse_output(ended, redactor)
    return _add_report(failed, ended, redactor) if failed.failure is Failure.EXIT else failed


def _agent_variables(run: AgentRequest) -> dict[str, str]:
    meta = json.dumps(run.meta(), ensure_ascii=False).encode(errors="replace").decode()
    facts = {"HEARTBEATD_AGENT": run.agent, "HEARTBEATD_META": meta}
    return {**facts, "HEARTBEATD_MODEL": run.model} if run.model else facts


def _failure_of(ended: ProcessResult, run: AgentRequest, redactor: Redactor) -> Answer | None:
    # A report gives the error in its own words (`_add_report`).
    is_report = program_output.parse_report(_output_text(ended), redactor) is not None
    describe = partial(add_stderr if is_report else add_last_lines, ended=ended, redactor=redactor)
    if ended.problem is not None and not ended.truncated:
        return Answer(failure=Failure.EXIT, error=f"could not start: {ended.problem}", not_sent=True)
    if ended.timed_out:
        return Answer(failure=Failure.TIMEOUT, error=describe(f"no answer within {run.timeout}"), transient=True)
    if ended.problem is not None or (ended.truncated and ended.exit_code is None):
        return _too_large_answer(ended, redactor)
    if ended.exit_code is None:
        return Answer(failure=Failure.EXIT, error=describe("ended by a signal"), transient=True)
    if ended.exit_code != 0:
        return Answer(failure=Failure.EXIT, error=describe(f"exit code {ended.exit_code}"), transient=True)
    return None


def _too_large_answer(ended: ProcessResult, redactor: Redactor) -> Answer:
    return Answer(failure=Failure.BAD_ANSWER, error=add_stderr(f"the answer is larger than {MAX_ANSWER} bytes", ended, redactor))


def _parse_output(ended: ProcessResult, redactor: Redactor) -> Answer:
    report = program_output.parse_report(_output_text(ended), redactor)
    if report is not None:
        return report
    if ended.truncated or len(ended.output) > MAX_ANSWER:
        return _too_large_answer(ended, redactor)
    text = _output_text(ended)
    unreadable = text.count("\ufffd") + text.count("\0")
    if unreadable * 10 > len(text):
        return Answer(failure=Failure.BAD_ANSWER, error=f"the answer is not text: {len(ended.output)} bytes of binary output")
    return Answer(text=clean_text(redactor.redact(text)))


def _output_text(ended: ProcessResult) -> str:
    """The output. If its beginning was cut off, only whole lines: a stream of events has its report in the last line."""
    text = ended.output.decode(errors="replace")
    return text.partition("\n")[2] if ended.truncated else text


def _add_report(failed: Answer, ended: ProcessResult, redactor: Redactor) -> Answer:
    """Add the program's own report to the failure: programs that report an error also exit with an error code."""
    report = program_output.parse_report(_output_text(ended), redactor)
    if report is None:
        return failed
    error = f"{failed.error}: {report.error}" if report.failure else failed.error
    return replace(report, text="", failure=failed.failure, error=error, transient=failed.transient)

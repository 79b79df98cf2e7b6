"""Calls an agent by running a program: the prompt goes to its standard input, the answer comes from its standard output."""

from __future__ import annotations

import json
from dataclasses import replace

from heartbeat.runners import MAX_ANSWER, AgentRequest, Answer, Failure, ProcessResult, StartProcess, program_output
from heartbeat.runners.agent_json import clean_text
from heartbeat.runners.errors import error_of_process, too_large_error
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
    redactor, text = redactor_for_env(runner.env), _output_text(ended)
    report = program_output.parse_report(text, redactor)
    error = error_of_process(ended, run.timeout, redactor, with_output=report is None)
    if error is None:
        return report or _plain_answer(ended, text, redactor)
    # Programs that report an error also exit with an error code. The report has the error in the program's own words.
    failed = error.answer
    if report is None or failed.failure is not Failure.EXIT:
        return failed
    words = f"{failed.error}: {report.error}" if report.failure else failed.error
    return replace(report, text="", failure=failed.failure, error=words, transient=failed.transient)


def _agent_variables(run: AgentRequest) -> dict[str, str]:
    meta = json.dumps(run.meta(), ensure_ascii=False).encode(errors="replace").decode()
    facts = {"HEARTBEATD_AGENT": run.agent, "HEARTBEATD_META": meta}
    return {**facts, "HEARTBEATD_MODEL": run.model} if run.model else facts


def _plain_answer(ended: ProcessResult, text: str, redactor: Redactor) -> Answer:
    if ended.truncated or len(ended.output) > MAX_ANSWER:
        return too_large_error(ended, redactor).answer
    unreadable = text.count("\ufffd") + text.count("\0")
    if unreadable * 10 > len(text):
        return Answer(failure=Failure.BAD_ANSWER, error=f"the answer is not text: {len(ended.output)} bytes of binary output")
    return Answer(text=clean_text(redactor.redact(text)))


def _output_text(ended: ProcessResult) -> str:
    """The output. If its beginning was cut off, only whole lines: a stream of events has its report in the last line."""
    text = ended.output.decode(errors="replace")
    return text.partition("\n")[2] if ended.truncated else text

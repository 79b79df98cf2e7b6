"""Ask an agent that is a Python callable, in a child process or in the daemon's own.

The callable gets the run as one dict (`agent prompt model timeout meta run workspace`, `messages` if there are any; the
timeout in seconds) and returns its text, None for nothing to say, or a dict of `text`, `error` or `later` with `model`,
`tokens` and `cost_usd` beside them.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from heartbeat.runners import (
    MAX_ANSWER,
    AgentRequest,
    Answer,
    Failure,
    HttpReply,
    ProcessResult,
    StartProcess,
    agent_json,
    python_child,
)
from heartbeat.runners.command import MAX_ERROR
from heartbeat.runners.errors import CallError, parse_json_object, redacted_line
from heartbeat.runners.redaction import Redactor
from heartbeat.spec import PythonRunner
from heartbeat.threads import finish_despite_cancellation, in_daemon_thread

_NO_SECRETS = Redactor(())


async def call_agent(run: AgentRequest, runner: PythonRunner, start: StartProcess) -> Answer:
    """Call it and read what it returns.

    In a child process it can be ended, and imports from the agent's workspace first. With `in_process` it runs in a daemon
    thread and imports what the daemon can: it starts at once, but cannot be ended when its time is over (it goes on, and keeps
    its agent's lane), shares memory and standard output with the daemon, and takes it along if it crashes.
    """
    try:
        if not runner.in_process:
            return _parse_child_output(run, await _run_child(run, runner, start))
        return await finish_despite_cancellation(asyncio.ensure_future(in_daemon_thread(_call_in_process, run, runner)))
    except CallError as error:
        return error.answer


async def _run_child(run: AgentRequest, runner: PythonRunner, start: StartProcess) -> ProcessResult:
    # -P keeps the script's own folder, in which http.py lies beside it, off the path.
    argv = (sys.executable, "-P", str(Path(python_child.__file__).resolve()), runner.call)
    return await start(argv, stdin=json.dumps(_request_data(run)).encode(), env={"PYTHONUTF8": "1"}, cwd=run.workspace)


def _request_data(run: AgentRequest) -> dict[str, object]:
    return agent_json.request_data(run) | {"workspace": str(run.workspace)}


def _parse_child_output(run: AgentRequest, ended: ProcessResult) -> Answer:
    _raise_on_failure(run, ended)
    if not ended.output:
        raise CallError(Failure.EXIT, _with_stderr("it ended the process instead of returning", ended), transient=True)
    given = parse_json_object(HttpReply(200, {}, ended.output))
    if "missing" in given:
        raise CallError(Failure.NOT_FOUND, redacted_line(f"cannot be called: {given['missing']}", _NO_SECRETS))
    if "answer" not in given:
        raise _wrong_type_error(str(given.get("returned")))
    return agent_json.parse_answer(given["answer"], failed=Failure.EXIT, redactor=_NO_SECRETS)


def _raise_on_failure(run: AgentRequest, ended: ProcessResult) -> None:
    """CallError unless the child ended well."""
    if ended.problem is not None:
        raise CallError(Failure.EXIT, f"could not start: {ended.problem}", not_sent=True)
    if ended.timed_out:
        raise CallError(Failure.TIMEOUT, _with_stderr(f"no answer within {run.timeout}", ended), transient=True)
    if ended.truncated:
        raise CallError(Failure.BAD_ANSWER, f"the answer is larger than {MAX_ANSWER} bytes")
    if ended.exit_code is None or ended.exit_code < 0:
        raise CallError(Failure.EXIT, _with_stderr("ended by a signal", ended), transient=True)
    if ended.exit_code != 0:
        raise CallError(Failure.EXIT, _with_stderr(f"exit code {ended.exit_code}", ended), transient=True)


def _with_stderr(what: str, ended: ProcessResult) -> str:
    """What happened, with the end of what was printed, where the traceback is."""
    said = ended.errors.decode(errors="replace").replace("\0", "").strip()
    return f"{what}: {said[-MAX_ERROR:]}" if said else what


def _call_in_process(run: AgentRequest, runner: PythonRunner) -> Answer:
    try:
        function = python_child.load_callable(runner.call)
    except (ImportError, AttributeError, TypeError) as error:
        raise CallError(Failure.NOT_FOUND, f"cannot be called: {_describe_exception(error)}") from error
    value = _call_function(function, _request_data(run))
    if not (value is None or isinstance(value, str | dict)):
        raise _wrong_type_error(type(value).__name__)
    return agent_json.parse_answer(value, failed=Failure.EXIT, redactor=_NO_SECRETS)


def _call_function(function: Any, run: dict[str, object]) -> object:
    # Whatever a foreign callable raises, SystemExit too, is the failure of its run, as it would be in a child process.
    try:
        return function(run)
    except BaseException as error:
        raise CallError(Failure.EXIT, f"it raised {_describe_exception(error)}", transient=True) from error


def _describe_exception(error: BaseException) -> str:
    return redacted_line(f"{type(error).__name__}: {error}", _NO_SECRETS)


def _wrong_type_error(kind: str) -> CallError:
    return CallError(Failure.BAD_ANSWER, f"it returned {kind}; return a text, None or a dict")

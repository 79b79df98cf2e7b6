"""Calls an agent that is a Python callable, in a child process or in the daemon's own process.

The callable gets one dict (`agent prompt model timeout meta run workspace`, and `messages` if there are any; the timeout in
seconds). It returns its text, None if it has nothing to report, or a dict with `text`, `error` or `later` and optionally
`model`, `tokens` and `cost_usd`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from heartbeat.runners import (
    MAX_REPORT,
    AgentRequest,
    Answer,
    Failure,
    HttpReply,
    ProcessResult,
    StartProcess,
    agent_json,
    python_child,
)
from heartbeat.runners.call_errors import (
    CallError,
    add_stderr,
    error_of_process,
    parse_json_object,
    redacted_line,
    too_large_error,
)
from heartbeat.runners.redaction import NO_SECRETS
from heartbeat.spec import PythonRunner
from heartbeat.threads import finish_despite_cancellation, in_daemon_thread


async def call_agent(run: AgentRequest, runner: PythonRunner, start: StartProcess) -> Answer:
    """Call the callable and read what it returns.

    In a child process the callable can be stopped, and modules in the agent's workspace are imported first. With `in_process`
    it runs in a daemon thread of the daemon and imports what the daemon can import. It starts at once, but it cannot be
    stopped: after its timeout it goes on and keeps its agent's lock. It shares memory and standard output with the daemon, and
    a crash ends the daemon too. Raises CallError.
    """
    if not runner.in_process:
        # -P keeps the script's folder off the path, because it has an http.py that would hide the standard library's.
        argv = (sys.executable, "-P", str(Path(python_child.__file__).resolve()), runner.call)
        stdin, own_end = json.dumps(_request_data(run)).encode(), run.timeout if run.ends_itself else None
        env = {"PYTHONUTF8": "1"}
        ended = await start(argv, stdin=stdin, env=env, cwd=run.workspace, keep=MAX_REPORT, timeout=own_end)
        return _parse_child_output(run, ended)
    return await finish_despite_cancellation(asyncio.ensure_future(in_daemon_thread(_call_in_process, run, runner)))


def _request_data(run: AgentRequest) -> dict[str, object]:
    return agent_json.request_data(run) | {"workspace": str(run.workspace)}


def _parse_child_output(run: AgentRequest, ended: ProcessResult) -> Answer:
    if error := error_of_process(ended, run.timeout, NO_SECRETS):
        raise error
    if ended.truncated:
        raise too_large_error(ended, NO_SECRETS)
    if not ended.output:
        raise CallError(Failure.EXIT, add_stderr("it ended the process instead of returning", ended, NO_SECRETS), transient=True)
    given = parse_json_object(HttpReply(200, {}, ended.output))
    if "missing" in given:
        raise CallError(Failure.NOT_FOUND, redacted_line(f"cannot be called: {given['missing']}", NO_SECRETS))
    if "answer" not in given:
        raise _wrong_type_error(str(given.get("returned")))
    return agent_json.parse_answer(given["answer"], failed=Failure.EXIT, redactor=NO_SECRETS)


def _call_in_process(run: AgentRequest, runner: PythonRunner) -> Answer:
    try:
        function = python_child.load_callable(runner.call)
    except (ImportError, AttributeError, TypeError) as error:
        raise CallError(Failure.NOT_FOUND, f"cannot be called: {_describe_exception(error)}") from error
    value = _call_function(function, _request_data(run))
    if not (value is None or isinstance(value, str | dict)):
        raise _wrong_type_error(type(value).__name__)
    return agent_json.parse_answer(value, failed=Failure.EXIT, redactor=NO_SECRETS)


def _call_function(function: Any, run: dict[str, object]) -> object:
    # Every exception of the callable, even SystemExit, fails only its run, as it would in a child process.
    try:
        return function(run)
    except BaseException as error:
        raise CallError(Failure.EXIT, f"it raised {_describe_exception(error)}", transient=True) from error


def _describe_exception(error: BaseException) -> str:
    return redacted_line(f"{type(error).__name__}: {error}", NO_SECRETS)


def _wrong_type_error(kind: str) -> CallError:
    return CallError(Failure.BAD_ANSWER, f"it returned {kind}; return a string, None or a dict")

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

from heartbeat.runners import MAX_ANSWER, Answer, Ended, Failure, Reply, Run, Start, agent_json, python_child
from heartbeat.runners.command import MAX_ERROR
from heartbeat.runners.errors import Trouble, json_object, one_line
from heartbeat.runners.redaction import Veil
from heartbeat.spec import PythonRunner
from heartbeat.threads import in_daemon_thread, wait_to_the_end

_NO_SECRETS = Veil(())


async def ask(run: Run, runner: PythonRunner, start: Start) -> Answer:
    """Call it and read what it returns.

    In a child process it can be ended, and imports from the agent's workspace first. With `in_process` it runs in a daemon
    thread and imports what the daemon can: it starts at once, but cannot be ended when its time is over (it goes on, and keeps
    its agent's lane), shares memory and standard output with the daemon, and takes it along if it crashes.
    """
    try:
        if not runner.in_process:
            return _read(run, await _started(run, runner, start))
        return await wait_to_the_end(asyncio.ensure_future(in_daemon_thread(_called, run, runner)))
    except Trouble as trouble:
        return trouble.answer


async def _started(run: Run, runner: PythonRunner, start: Start) -> Ended:
    # -P keeps the script's own folder, in which http.py lies beside it, off the path.
    argv = (sys.executable, "-P", str(Path(python_child.__file__).resolve()), runner.call)
    return await start(argv, stdin=json.dumps(_plain(run)).encode(), env={"PYTHONUTF8": "1"}, cwd=run.workspace)


def _plain(run: Run) -> dict[str, object]:
    return agent_json.of(run) | {"workspace": str(run.workspace)}


def _read(run: Run, ended: Ended) -> Answer:
    _check(run, ended)
    if not ended.output:
        raise Trouble(Failure.EXIT, _told("it ended the process instead of returning", ended), transient=True)
    given = json_object(Reply(200, {}, ended.output))
    if "missing" in given:
        raise Trouble(Failure.NOT_FOUND, one_line(f"cannot be called: {given['missing']}", _NO_SECRETS))
    if "answer" not in given:
        raise _no_text(str(given.get("returned")))
    return agent_json.read(given["answer"], failed=Failure.EXIT, veil=_NO_SECRETS)


def _check(run: Run, ended: Ended) -> None:
    """Trouble unless the child ended well."""
    if ended.problem is not None:
        raise Trouble(Failure.EXIT, f"could not start: {ended.problem}", unheard=True)
    if ended.timed_out:
        raise Trouble(Failure.TIMEOUT, _told(f"no answer within {run.timeout}", ended), transient=True)
    if ended.truncated:
        raise Trouble(Failure.BAD_ANSWER, f"the answer is larger than {MAX_ANSWER} bytes")
    if ended.exit_code is None or ended.exit_code < 0:
        raise Trouble(Failure.EXIT, _told("ended by a signal", ended), transient=True)
    if ended.exit_code != 0:
        raise Trouble(Failure.EXIT, _told(f"exit code {ended.exit_code}", ended), transient=True)


def _told(what: str, ended: Ended) -> str:
    """What happened, with the end of what was printed, where the traceback is."""
    said = ended.errors.decode(errors="replace").replace("\0", "").strip()
    return f"{what}: {said[-MAX_ERROR:]}" if said else what


def _called(run: Run, runner: PythonRunner) -> Answer:
    try:
        function = python_child.load(runner.call)
    except (ImportError, AttributeError, TypeError) as error:
        raise Trouble(Failure.NOT_FOUND, f"cannot be called: {_named(error)}") from error
    value = _returned(function, _plain(run))
    if not (value is None or isinstance(value, str | dict)):
        raise _no_text(type(value).__name__)
    return agent_json.read(value, failed=Failure.EXIT, veil=_NO_SECRETS)


def _returned(function: Any, run: dict[str, object]) -> object:
    # Whatever a foreign callable raises, SystemExit too, is the failure of its run, as it would be in a child process.
    try:
        return function(run)
    except BaseException as error:
        raise Trouble(Failure.EXIT, f"it raised {_named(error)}", transient=True) from error


def _named(error: BaseException) -> str:
    return one_line(f"{type(error).__name__}: {error}", _NO_SECRETS)


def _no_text(kind: str) -> Trouble:
    return Trouble(Failure.BAD_ANSWER, f"it returned {kind}; return a text, None or a dict")

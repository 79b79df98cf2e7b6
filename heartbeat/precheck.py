"""Makes the precheck: a command, or a look at a source, finds out whether there is any work before an agent is called."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from hashlib import sha256

from heartbeat.runners import Failure, LookAtSource, Resources, StartProcess
from heartbeat.runners.call_errors import CallError, describe_failure
from heartbeat.runners.redaction import NO_SECRETS
from heartbeat.spec import Agent, Precheck, Source

MAX_OUTPUT_BYTES = 64 * 1024  # bytes of output that are kept; longer output always counts as changed
MAX_PROMPT_OUTPUT = 16 * 1024  # characters of output in the prompt
NO_WORK = "NO_WORK"


class PrecheckStatus(StrEnum):
    """The result: there is work, there is none, the output is unchanged, the command failed, or it was interrupted."""

    WORK = "work"
    NOTHING = "nothing"
    UNCHANGED = "unchanged"
    FAILED = "failed"
    INTERRUPTED = "cut"


@dataclass(frozen=True, slots=True)
class PrecheckResult:
    """How a precheck ended. `digest` identifies its output, None if the next output must not be compared with it.

    `state` is what the next look at its source needs once an agent has seen the output; None: a command was run, or it failed.
    `events` are the names of the events that the lines of the output are about.
    """

    status: PrecheckStatus
    exit_code: int | None = None
    output: str = ""
    error: str = ""
    digest: str | None = None
    state: str | None = None
    events: tuple[str, ...] = ()

    @property
    def looked_at_source(self) -> bool:
        """Whether the output is what a source has new, so that a line that is missing in the next one says nothing."""
        return self.state is not None

    @property
    def source_has_news(self) -> bool:
        """Whether a source has anything new."""
        return self.looked_at_source and self.status is PrecheckStatus.WORK


async def make_precheck(
    agent: Agent, precheck: Precheck, last: str | None, state: str | None, now: datetime, resources: Resources
) -> PrecheckResult:
    """Make the precheck and read its result. `last` is the digest of the output at the last completed run, and `state` is that
    of the source, as far as an agent has seen its news.
    """
    if precheck.source is None:
        return await run_command(agent, precheck, last, resources.start)
    if resources.look is None:
        raise TypeError("an attempt without resources has a precheck with a source")
    return await look_at_source(agent, precheck, precheck.source, state, now, resources.look)


async def look_at_source(
    agent: Agent, precheck: Precheck, source: Source, state: str | None, now: datetime, look: LookAtSource
) -> PrecheckResult:
    """Look at the source of a precheck."""
    from asyncio import CancelledError  # a command that only reads the config does not need asyncio

    try:
        sight = await look(source, state, workspace=agent.workspace, now=now, zone=agent.zone, timeout=precheck.timeout)
    except CallError as error:
        interrupted = error.answer.failure is Failure.EXIT
        status = PrecheckStatus.INTERRUPTED if interrupted else PrecheckStatus.FAILED
        return PrecheckResult(status, error=f"{source.title}: {error}")
    except CancelledError:  # the task ends anyway, with this result
        return PrecheckResult(PrecheckStatus.INTERRUPTED, error="was interrupted")
    status = PrecheckStatus.WORK if sight.has_news else PrecheckStatus.NOTHING
    digest = sha256(sight.text.encode(errors="replace")).hexdigest()
    return PrecheckResult(status, output=sight.text, digest=digest, state=sight.state, events=sight.events)


async def run_command(agent: Agent, precheck: Precheck, last: str | None, start: StartProcess) -> PrecheckResult:
    """Run the command of a precheck in the workspace and read its result.

    The command gets PATH, HOME, LANG, HEARTBEATD_AGENT and HEARTBEATD_RUN, and an empty standard input.
    """
    argv = ("/bin/sh", "-c", precheck.command)
    env = {"HEARTBEATD_AGENT": agent.name}
    process = await start(argv, stdin=b"", env=env, cwd=agent.workspace, keep=MAX_OUTPUT_BYTES, timeout=precheck.timeout)
    output = process.output_text
    if process.ended_by not in (None, "timeout"):
        return PrecheckResult(PrecheckStatus.INTERRUPTED, process.exit_code, output, "was interrupted")
    error = describe_failure(process, NO_SECRETS, f"did not end within {precheck.timeout}", shell_folder=agent.workspace)
    if error is not None:
        return PrecheckResult(PrecheckStatus.FAILED, process.exit_code, output, error)
    if _says_no_work(output, process.last_line):
        return PrecheckResult(PrecheckStatus.NOTHING, 0, output)
    digest = None if process.truncated else sha256(precheck.command.encode(errors="replace") + b"\0" + process.output).hexdigest()
    same = digest is not None and digest == last
    return PrecheckResult(PrecheckStatus.UNCHANGED if same else PrecheckStatus.WORK, 0, output, digest=digest)


def _says_no_work(output: str, last_line: str) -> bool:
    """Whether the output is NO_WORK, or JSON (all of it or its last line) that says not to wake the agent."""
    stripped = output.strip()
    return stripped == NO_WORK or any(_is_wake_agent_false(text) for text in {stripped, last_line})


def _is_wake_agent_false(text: str) -> bool:
    if not text.startswith("{"):
        return False
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and value.get("wakeAgent") is False

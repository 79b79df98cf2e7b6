"""The precheck: a command that looks whether there is anything to ask about, before an agent is asked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256

from heartbeat.runners import ProcessResult, StartProcess
from heartbeat.spec import Heartbeat, Precheck

MAX_OUTPUT_BYTES = 64 * 1024  # bytes of output that are read; what is longer is never taken for the same as before
MAX_PROMPT_OUTPUT = 16 * 1024  # characters of it that go into the prompt
MAX_ERROR = 2000
NO_WORK = "NO_WORK"
NOT_FOUND = 127  # the exit code of a shell that found no such program


class PrecheckStatus(StrEnum):
    """What a precheck says: there is work, there is none, nothing has changed, it could not say, or it was not let finish."""

    WORK = "work"
    NOTHING = "nothing"
    UNCHANGED = "unchanged"
    FAILED = "failed"
    INTERRUPTED = "cut"


@dataclass(frozen=True, slots=True)
class PrecheckResult:
    """How a precheck ended. `digest` names its output, None where the next one is not to be compared with it."""

    status: PrecheckStatus
    exit_code: int | None = None
    output: str = ""
    error: str = ""
    digest: str | None = None


async def run_precheck(heartbeat: Heartbeat, precheck: Precheck, last: str | None, start: StartProcess) -> PrecheckResult:
    """Run the precheck in the workspace and read what it says; `last` is the digest of the output that was last dealt with.

    It gets PATH, HOME, LANG and HEARTBEATD_AGENT, and nothing on its standard input.
    """
    argv = ("/bin/sh", "-c", precheck.command)
    env = {"HEARTBEATD_AGENT": heartbeat.name}
    ended = await start(argv, stdin=b"", env=env, cwd=heartbeat.workspace, keep=MAX_OUTPUT_BYTES, timeout=precheck.timeout)
    output = ended.output.decode(errors="replace").replace("\0", "")
    if ended.ended_by not in (None, "timeout"):
        return PrecheckResult(PrecheckStatus.INTERRUPTED, ended.exit_code, output, "was interrupted")
    error = _describe_failure(heartbeat, precheck, ended)
    if error is not None:
        return PrecheckResult(PrecheckStatus.FAILED, ended.exit_code, output, error)
    if _says_no_work(output):
        return PrecheckResult(PrecheckStatus.NOTHING, 0, output)
    digest = None if ended.truncated else sha256(precheck.command.encode(errors="replace") + b"\0" + ended.output).hexdigest()
    same = digest is not None and digest == last
    return PrecheckResult(PrecheckStatus.UNCHANGED if same else PrecheckStatus.WORK, 0, output, digest=digest)


def _describe_failure(heartbeat: Heartbeat, precheck: Precheck, ended: ProcessResult) -> str | None:
    """What went wrong, with the end of what the command said about it; None when nothing did."""
    what = ended.problem or (None if ended.exit_code == 0 else f"exit code {ended.exit_code}")
    if ended.exit_code == NOT_FOUND:
        what = f"{what} (the shell found no such program, in {heartbeat.workspace})"
    if ended.timed_out:
        what = f"did not end within {precheck.timeout}"
    said = ended.errors.decode(errors="replace").replace("\0", "").strip()
    return f"{what}: {said[-MAX_ERROR:]}" if what and said else what


def _says_no_work(output: str) -> bool:
    """Whether the output is NO_WORK, or its JSON, whole or the last line, says that the agent is not to be woken."""
    said = output.strip()
    return said == NO_WORK or any(_is_wake_agent_false(text) for text in {said, said[said.rfind("\n") + 1 :]})


def _is_wake_agent_false(text: str) -> bool:
    if not text.startswith("{"):
        return False
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and value.get("wakeAgent") is False

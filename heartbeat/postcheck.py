"""Checks after a run whether its work was done: a file must be there, or a command must succeed."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from heartbeat.result import ANSWERED, AttemptResult, Reason
from heartbeat.runners import Resources
from heartbeat.runners.call_errors import describe_failure
from heartbeat.runners.dispatch import offload
from heartbeat.runners.redaction import NO_SECRETS, Redactor
from heartbeat.spec import Postcheck
from heartbeat.verdict import Suppression
from heartbeat.words import abbreviate_duration

MAX_OUTPUT = 4 * 1024  # bytes of the command's output that are read, from its end


@dataclass(frozen=True, slots=True)
class WorkPlace:
    """Where a run has worked: its folder, the variables of its programs with a redactor for the secrets in them, and the time."""

    folder: Path
    env: Mapping[str, object]
    now: datetime
    redactor: Redactor = NO_SECRETS


async def verify(result: AttemptResult, check: Postcheck, place: WorkPlace, resources: Resources) -> AttemptResult:
    """The result of an attempt, which has failed if the check shows that its work was not done.

    Only a run with an answer is checked. What an agent has found stays news. The command reads the answer from standard input.
    """
    if result.outcome not in ANSWERED or result.suppression is Suppression.DECIDED_SKIP:
        return result
    fault = None
    if check.file is not None:
        fault = await offload(resources, partial(_file_fault, check, place))
    if fault is None and check.command is not None:
        fault = await _command_fault(check.command, check.timeout, result.text or "", place, resources)
    return result if fault is None else result.as_failure(Reason.POSTCHECK, fault, transient=check.retry)


def _file_fault(check: Postcheck, place: WorkPlace) -> str | None:
    """What is wrong with the file; None if it is as it should be. It may lie on a network folder that hangs."""
    assert check.file is not None
    try:
        found = (place.folder / Path(check.file).expanduser()).stat()
    except FileNotFoundError:
        return f"{check.file} is missing"
    except (OSError, ValueError, RuntimeError) as error:
        return f"{check.file} cannot be read: {getattr(error, 'strerror', None) or error}"
    if not stat.S_ISREG(found.st_mode):
        return f"{check.file} is not a file"
    if check.not_empty and not found.st_size:
        return f"{check.file} is empty"
    age = place.now - datetime.fromtimestamp(found.st_mtime, UTC)
    if check.fresher_than is not None and age >= check.fresher_than:
        return (
            f"{check.file} was last changed {abbreviate_duration(age)} ago, not within {abbreviate_duration(check.fresher_than)}"
        )
    return None


async def _command_fault(command: str, timeout: timedelta, answer: str, place: WorkPlace, resources: Resources) -> str | None:
    """Why the command failed, with the end of what it printed; None if its exit code is 0."""
    process = await resources.start(
        ("/bin/sh", "-c", command),
        stdin=answer.encode(errors="replace"),
        env=place.env,
        cwd=place.folder,
        keep=MAX_OUTPUT,
        keep_tail=True,
        timeout=timeout,
    )
    if process.ended_by not in (None, "timeout"):
        return "the run was ended during its postcheck"
    timed_out = f"the postcheck did not end within {abbreviate_duration(timeout)}"
    return describe_failure(process, place.redactor, timed_out, shell_folder=place.folder, with_output=True)

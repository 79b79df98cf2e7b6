"""Checklists over HTTP: an agent's list as it stands, and written back if it still stands so."""

from __future__ import annotations

import os
import re
from typing import Any

from starlette.concurrency import run_in_threadpool

from heartbeat import checklist_file
from heartbeat.checklist import has_work
from heartbeat.checklist_file import MAX_BYTES, CannotWrite, ChecklistVersion, FileProblem, NotUtf8, VersionChanged
from heartbeat.spec import Heartbeat
from scheduler.config.build.effective_values import list_effective_values
from scheduler.config.file.diagnostics import ConfigError
from scheduler.model.outcome import Kind
from scheduler.web.api_request import Call
from scheduler.web.http_errors import Problem, bad, not_found
from scheduler.web.queries import check_reach
from scheduler.web.request_bodies import ChecklistBody

_TAG = re.compile(r'"?([0-9a-f]{64})"?')
HOW = "GET it, and send its hash as `If-Match` or as hash; for a list that is not there yet, send `If-None-Match: *`"


def read(call: Call) -> dict[str, Any]:
    """The checklist, with the hash by which this version is known; `file` is None where it stands in the config."""
    call.only()
    beat = _beat(call)
    if _is_text(beat):
        return {"file": None, "text": beat.checklist, "hash": None, "has_work": has_work(beat.checklist)}
    found = checklist_file.read_checklist(beat.workspace, beat.checklist)
    if isinstance(found, NotUtf8):
        raise Problem(409, "checklist_not_utf8", f"{beat.checklist} of {beat.name} cannot be shown: {found}")
    if isinstance(found, FileProblem):
        raise _refused(beat, found)
    return _told(beat, found)


async def write(call: Call, body: ChecklistBody) -> dict[str, Any]:
    """Put a text in the place of the version that is named; nothing changes where another one stands."""
    beat = _beat(call)
    if _is_text(beat):
        raise Problem(409, "in_config", await run_in_threadpool(_where, call, beat))
    text, expected = _checked(body.text), _expected(call, body.hash)
    return _told(beat, await run_in_threadpool(_write, beat, text, expected))


def _write(beat: Heartbeat, text: str, expected: str | None) -> ChecklistVersion:
    try:
        beat.workspace.mkdir(parents=True, exist_ok=True)
        return checklist_file.write_checklist(beat.workspace, beat.checklist, text, expected)
    except VersionChanged:
        raise Problem(
            412, "changed", f"{beat.checklist} of {beat.name} is not the one that you name any more; GET it again"
        ) from None
    except (CannotWrite, OSError) as error:
        raise Problem(409, "unwritable", f"{beat.checklist} of {beat.name} cannot be written: {error}") from None


def _beat(call: Call) -> Heartbeat:
    name = call.path["name"]
    check_reach(call, Kind.HEARTBEAT, name)
    beat = call.reach.settings().heartbeats.get(name)
    if beat is None:
        raise not_found(f"agent {name!r}")
    return beat


def _is_text(beat: Heartbeat) -> bool:
    return "\n" in beat.checklist


def _told(beat: Heartbeat, found: ChecklistVersion) -> dict[str, Any]:
    return {"file": beat.checklist, "text": found.text, "hash": found.hash, "has_work": found.has_work}


def _refused(beat: Heartbeat, refusal: FileProblem) -> Problem:
    if refusal is FileProblem.MISSING:
        return not_found(f"{beat.checklist} in the workspace of {beat.name}")
    why = f"larger than {MAX_BYTES // 1024} KiB" if refusal is FileProblem.TOO_LARGE else "not a file that may be read"
    return Problem(409, f"checklist_{refusal.value}", f"{beat.checklist} of {beat.name} is {why}")


def _checked(text: str) -> str:
    """A text that a file can hold."""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise bad("text: it holds half a character, which no file can") from None
    if "\0" in text:
        raise bad("text: it holds the character U+0000")
    if len(data) > MAX_BYTES:
        raise Problem(413, "too_large", f"text: a checklist holds {MAX_BYTES // 1024} KiB at most")
    return text


def _expected(call: Call, hash_sent: str | None) -> str | None:
    """The version that is to be replaced, by its hash; None: there is to be none."""
    named, none = call.headers.get("if-match", hash_sent), call.headers.get("if-none-match")
    if named is None and none == "*":
        return None
    if named is None or none is not None:
        raise Problem(428, "version_wanted", HOW)
    if named is not None and (found := _TAG.fullmatch(named)):
        return found[1]
    raise bad(f"hash: this is none; {HOW}")


def _where(call: Call, beat: Heartbeat) -> str:
    """The place in the config where the list stands, as a person would look for it."""
    path = call.reach.settings().path
    key, place = f"agents.{beat.name}.heartbeat.checklist", path.name
    try:
        rows = list_effective_values(path, os.environ, f"agent/{beat.name}")
        place = next((row.origin for row in rows if row.key == "heartbeat.checklist"), place)
    except (ConfigError, LookupError):
        pass
    return f"the checklist of {beat.name} is text in the config: edit {key} at {place}, or write `checklist: HEARTBEAT.md` there"

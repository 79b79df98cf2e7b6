"""Reads an agent's checklist over HTTP, and replaces it if it has not changed since."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePath

from heartbeat import checklist_file
from heartbeat.checklist import parse_checklist
from heartbeat.checklist_file import MAX_BYTES, CannotWrite, ChecklistVersion, FileProblem, NotUtf8, VersionChanged
from heartbeat.spec import Heartbeat
from heartbeat.words import format_count
from heartbeatd.answers import Checklist
from heartbeatd.questions import GetChecklist
from heartbeatd.state_folder import config_folder
from heartbeatd.verbs import NO_VERSION, SetChecklist
from scheduler.config.file.diagnostics import ConfigError
from scheduler.config.file.marked_yaml import dotted_path, texts_in
from scheduler.config.settings.effective_values import list_effective_values
from scheduler.model.config_changes import ConfigDiff, ConfigEvent, KeyChange, Undo
from scheduler.model.outcome import Kind
from scheduler.model.settings import Settings
from scheduler.store import config_history
from scheduler.web.api_request import ApiRequest
from scheduler.web.config_editing import read_config
from scheduler.web.http_errors import HttpError, bad_request, not_found
from scheduler.web.perform import handles, parse_hash, sender_of

_WORDS = re.compile(r"[\s'\"=:,;|&<>(){}$`]+")  # what stands between the words of a command, of ${file:PATH} and of an option
HOW_TO_SEND_THE_VERSION = (
    "GET the checklist, and send its hash as `If-Match` or as hash; if there is no checklist yet, send `If-None-Match: *`"
)


@handles(GetChecklist)
def get_checklist(request: ApiRequest, _: GetChecklist) -> Checklist:
    beat = _find_heartbeat(request)
    if _is_in_config(beat):
        return Checklist(file=None, text=beat.checklist, hash=None, has_work=parse_checklist(beat.checklist).has_work)
    found = checklist_file.read_checklist(beat.workspace, beat.checklist)
    if isinstance(found, NotUtf8):
        raise HttpError(409, "checklist_not_utf8", f"{beat.checklist} of {beat.name} cannot be shown: {found}")
    if isinstance(found, FileProblem):
        raise _refusal_error(beat, found)
    return _checklist_data(beat, found)


@handles(SetChecklist)
def put_checklist(request: ApiRequest, verb: SetChecklist) -> Checklist:
    """Replace the checklist. Raises HttpError, and changes nothing, if its hash is not the one that was sent."""
    beat = _find_heartbeat(request)
    if _is_in_config(beat):
        raise HttpError(409, "in_config", _in_config_message(request, beat))
    text, expected = _check_text(verb.text), None if verb.hash == NO_VERSION else parse_hash(verb.hash, HOW_TO_SEND_THE_VERSION)
    return _checklist_data(beat, _replace_file(request, beat, text, expected))


def _replace_file(request: ApiRequest, beat: Heartbeat, text: str, expected: str | None) -> ChecklistVersion:
    try:
        steps = _find_other_use(request, beat)
    except ConfigError:
        message = f"{beat.checklist} of {beat.name} cannot be written while the config file is not valid YAML"
        raise HttpError(409, "unwritable", f"{message}, because something else may name the file; correct the config") from None
    if steps is not None:
        is_shown = request.caller.agents is None or steps[:2] == ("agents", beat.name)
        place = dotted_path(steps) if is_shown else "another part of the config"
        message = f"{beat.checklist} of {beat.name} is also used by {place}; edit it on the machine of the daemon"
        raise HttpError(409, "used_elsewhere", message)
    before = checklist_file.read_checklist(beat.workspace, beat.checklist)  # that of `expected`, or nothing is written
    old = before.text if isinstance(before, ChecklistVersion) else ""
    try:
        beat.workspace.mkdir(parents=True, exist_ok=True)
        written = checklist_file.write_checklist(beat.workspace, beat.checklist, text, expected)
    except VersionChanged:
        raise HttpError(412, "changed", f"{beat.checklist} of {beat.name} has changed since you read it; GET it again") from None
    except (CannotWrite, OSError) as error:
        raise HttpError(409, "unwritable", f"{beat.checklist} of {beat.name} cannot be written: {error}") from None
    if old != text:
        had, has = (format_count(len(each.splitlines()), "line") for each in (old, text))
        diff = ConfigDiff(changes=(KeyChange(beat.checklist, had, has, (Kind.HEARTBEAT.label_of(beat.name),)),))
        event = ConfigEvent("checklist", sender_of(request).by, diff, undo=Undo(beat.name, checklist=old))
        request.app_state.submit_request(lambda tick: config_history.record_config_event(tick.tx, event))
    return written


def _find_other_use(request: ApiRequest, beat: Heartbeat) -> tuple[str, ...] | None:
    """The place that names the file as something else than a checklist, such as a program or a context file; None without one.

    Whoever may change a checklist could otherwise change a program that the next run starts. Names are read in the config file
    and in the commands of jobs, which may come from a crontab.
    """
    settings = request.app_state.settings()
    folder = config_folder(settings.path)
    target = (beat.workspace / beat.checklist).resolve()
    _, root = read_config(request)
    named = [(steps, text) for steps, text in texts_in(root) if steps[-1] not in ("checklist", "prompt")]
    named += [(("cron", name), word) for name, job in settings.jobs.items() for _, word in texts_in(job.command)]
    for steps, text in named:
        for word in filter(None, (text, *_WORDS.split(text))):
            if PurePath(word).name != target.name:
                continue
            is_own = steps[:2] == ("agents", beat.name) or steps[0] == "defaults"
            if is_own or any((base / word).resolve() == target for base in (folder, _folder_of(settings, steps))):
                return steps
    return None


def _folder_of(settings: Settings, steps: tuple[str, ...]) -> Path:
    """The folder in which an agent or a job runs; that of the config for other keys."""
    if steps[0] == "agents" and steps[1] in settings.heartbeats:
        return settings.heartbeats[steps[1]].workspace
    if steps[0] == "cron" and steps[1] in settings.jobs:
        return settings.jobs[steps[1]].workdir
    return config_folder(settings.path)


def _find_heartbeat(request: ApiRequest) -> Heartbeat:
    _, name = request.key
    beat = request.app_state.settings().heartbeats.get(name)
    if beat is None:
        raise not_found(f"agent {name!r}")
    return beat


def _is_in_config(beat: Heartbeat) -> bool:
    return "\n" in beat.checklist


def _checklist_data(beat: Heartbeat, found: ChecklistVersion) -> Checklist:
    return Checklist(file=beat.checklist, text=found.text, hash=found.hash, has_work=found.has_work)


def _refusal_error(beat: Heartbeat, refusal: FileProblem) -> HttpError:
    if refusal is FileProblem.MISSING:
        return not_found(f"{beat.checklist} in the workspace of {beat.name}")
    why = f"larger than {MAX_BYTES // 1024} KiB" if refusal is FileProblem.TOO_LARGE else "not a file that may be read"
    return HttpError(409, f"checklist_{refusal.value}", f"{beat.checklist} of {beat.name} is {why}")


def _check_text(text: str) -> str:
    """The text, if a file can hold it. Raises HttpError."""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise bad_request("text: it contains half of a surrogate pair, which UTF-8 cannot encode") from None
    if "\0" in text:
        raise bad_request("text: it contains the character U+0000")
    if len(data) > MAX_BYTES:
        raise HttpError(413, "too_large", f"text: a checklist may have at most {MAX_BYTES // 1024} KiB")
    return text


def _in_config_message(request: ApiRequest, beat: Heartbeat) -> str:
    """Returns the place in the config where the checklist is written, as file, line and column."""
    path = request.app_state.settings().path
    key, place = f"agents.{beat.name}.heartbeat.checklist", path.name
    try:
        rows = list_effective_values(path, os.environ, (Kind.HEARTBEAT, beat.name))
        place = next((row.origin for row in rows if row.key == "heartbeat.checklist"), place)
    except (ConfigError, LookupError):
        pass
    return f"the checklist of {beat.name} is text in the config: edit {key} at {place}, or write `checklist: HEARTBEAT.md` there"

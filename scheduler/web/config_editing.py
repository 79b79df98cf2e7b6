"""Shows the config over HTTP, and changes values in its file if the file has not changed since.

Over HTTP, no token permits a change of a key that starts a program, reads a file, names a secret or an address, or grants a
permission. A token can be stolen, and with such keys it would be as powerful as a login on this machine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from heartbeatd.answers import ConfigEdited, ConfigFile, ConfigSuggestion, EntryConfig
from heartbeatd.questions import GetConfig, GetEntryConfig
from heartbeatd.secret import MASK
from heartbeatd.verbs import SetConfig
from scheduler.config.file import marked_yaml, text_editing
from scheduler.config.file.diagnostics import ConfigError, Diagnostics
from scheduler.config.file.marked_yaml import MarkedMap, dotted_path, value_at
from scheduler.config.file.text_editing import EditRefused
from scheduler.config.keys.models import Config, keys_on_path
from scheduler.config.keys.validation import find_unknown_key
from scheduler.config.settings.config_snapshot import mask_quoted_secrets, mask_secrets
from scheduler.config.settings.effective_values import list_effective_values
from scheduler.engine.config_reload import MAX_LINES, NOTHING_CHANGED, EditedConfig, hash_of_bytes
from scheduler.model.config_changes import StoredConfig, Undo
from scheduler.model.outcome import Kind
from scheduler.system.files import FileChanged, read_file
from scheduler.web.access import concerns
from scheduler.web.api_request import ApiRequest, Caller
from scheduler.web.http_errors import HttpError, bad_request, not_found
from scheduler.web.perform import handles, parse_hash, sender_of

Changes = Mapping[str, object]

TEXT_ONLY = (
    "over HTTP only a text with a line break can be set; write the name of a file in the config file, because such a file could"
    " be run as a program or hold secrets"
)
HOW_TO_SEND_THE_VERSION = "GET the config, and send its hash as `If-Match` or as hash"


@handles(GetConfig)
def get_config(request: ApiRequest, _: GetConfig) -> ConfigFile:
    content, declared = _read_declared(request)
    return ConfigFile(path=str(request.app_state.settings().path), hash=hash_of_bytes(content), declared=declared)


@handles(GetEntryConfig)
def get_entry_config(request: ApiRequest, _: GetEntryConfig) -> EntryConfig:
    kind, name = request.key
    _check_entry(request, kind, name)
    content, declared = _read_declared(request)
    found = declared.get(kind.section)
    try:
        rows = list_effective_values(request.app_state.settings().path, os.environ, request.key)
    except LookupError:
        rows = []  # the file has changed and is not applied yet
    except ConfigError as error:
        if request.caller.agents is None or any(concerns(each, request.caller) for each in error.errors):
            raise
        rows = []  # somebody else's entry is wrong, so that no values can be computed
    return EntryConfig(
        name=name,
        hash=hash_of_bytes(content),
        declared=found.get(name) if isinstance(found, dict) else None,
        values=[row.model_copy(update={"value": mask_quoted_secrets(row.value)}) for row in rows],
    )


@handles(SetConfig)
def patch_config(request: ApiRequest, verb: SetConfig) -> ConfigEdited | ConfigSuggestion:
    """Change values of the entry in the path, or anywhere in the config."""
    changes: Changes = verb.changes
    if request.subject is not None:
        kind, name = request.key
        _check_entry(request, kind, name)
        changes = {kind.section: {name: verb.changes}}
    try:
        found = _edit(request, verb, changes)
    except RecursionError:
        raise bad_request("changes: these are nested too deeply") from None
    return found if isinstance(found, ConfigSuggestion) else _edited_data(found, request.caller, written=not verb.dry_run)


def stored_with_changes(request: ApiRequest, name: str, verb: SetConfig) -> StoredConfig | None:
    """The copy of the config with changes of an agent, which are not written; None if the caller may not write them.

    Raises as `patch_config` does.
    """
    changes = {Kind.HEARTBEAT.section: {name: verb.changes}}
    found = _edit(request, verb.model_copy(update={"dry_run": True}), changes)
    return None if isinstance(found, ConfigSuggestion) else found.stored


def _edit(request: ApiRequest, body: SetConfig, changes: Changes) -> EditedConfig | ConfigSuggestion:
    """Write the changes, or return the lines to write if the caller may not write them."""
    if not body.changes:
        raise bad_request("changes: write keys with their new values, as in {heartbeat: {interval: 1h}}; null removes a key")
    reason = why_not_permitted(request, changes) or _why_not_removable(request, changes)
    if reason is not None:
        _refuse_unknown_key(changes)
        return ConfigSuggestion(written=False, reason=reason, yaml=lines_to_write(changes))
    expected = parse_hash(body.hash, HOW_TO_SEND_THE_VERSION)

    def change(text: str) -> str:
        own = () if request.caller.agents is None else ("agents", request.path["name"])
        return text_editing.apply_patch(text, changes, own)

    # Only a token that may reload applies what others have written into the file.
    alone = request.caller.agents is not None or "operate" not in request.caller.may
    try:
        by, undo = sender_of(request).by, None if body.dry_run else _undo_of(request, changes)
        return request.app_state.reloader.edit(change, expected, by=by, dry=body.dry_run, alone=alone, undo=undo)
    except FileChanged as error:
        raise HttpError(412, "changed", f"{error}; GET it again") from None
    except EditRefused as error:
        raise HttpError(409, "edit_refused", error.located_in(request.app_state.settings().path.name)) from None
    except OSError as error:
        raise HttpError(409, "unwritable", f"the config file cannot be written: {error.strerror or error}") from None


def _undo_of(request: ApiRequest, changes: Changes) -> Undo | None:
    """What undoes changes of one agent, from the file as it is now; None for other changes, and if it would contain a secret."""
    if request.subject is None or request.key[0] is not Kind.HEARTBEAT:
        return None
    (_, name), (_, declared) = request.key, _read_declared(request)
    undo = _reverse(changes, declared)["agents"]
    return None if MASK in json.dumps(undo) or undo[name] is None else Undo(name, undo[name])


def _reverse(changes: Changes, declared: Mapping[str, object]) -> dict[str, Any]:
    """The merge patch that leads back from the changes to what is declared."""
    found: dict[str, Any] = {}
    for key, value in changes.items():
        old = declared.get(key)
        found[key] = _reverse(value, old) if isinstance(value, Mapping) and isinstance(old, Mapping) else old
    return found


def _edited_data(edited: EditedConfig, caller: Caller, *, written: bool) -> ConfigEdited:
    """What the edit has changed; for a limited token only what concerns its agents."""
    lines, warnings = edited.reloaded.lines, list(edited.reloaded.warnings)
    if caller.agents is not None:
        lines = edited.reloaded.diff.of_agents(caller.agents).lines(MAX_LINES) or [NOTHING_CHANGED]
        warnings = [str(each) for each in edited.problems if concerns(each, caller)]
    return ConfigEdited(
        written=written and bool(edited.diff), hash=edited.hash, diff=list(edited.diff), lines=lines, warnings=warnings
    )


def lines_to_write(changes: Changes) -> str:
    """The changes as YAML, for a person to write. Raises HttpError if YAML cannot express them."""
    try:
        return text_editing.apply_patch("", changes)
    except EditRefused as error:
        raise bad_request(f"changes: {error.path} cannot be written as a key or value of the config") from None


def _refuse_unknown_key(changes: Changes) -> None:
    """Raises HttpError if the changes set a key that the config does not have: no permission would help."""
    root = marked_yaml.parse_yaml(lines_to_write(changes), Diagnostics("changes"))
    found = find_unknown_key(root) if isinstance(root, MarkedMap) else None
    if found is not None:
        raise bad_request(f"changes: {dotted_path(found[0])}: {found[1]}")


def why_not_permitted(request: ApiRequest, changes: Changes) -> str | None:
    """Why the caller may not make these changes; None if it may."""
    caller = request.caller
    if "edit" not in caller.may:
        return f"the token {caller.name!r} may not edit; add edit to server.tokens.{caller.name}.may, or write the lines yourself"
    for steps in changed_keys((), changes):
        if _is_file_only(steps):
            problem = "cannot be changed over HTTP, because it can run programs, read files or send data"
            return f"{dotted_path(steps)} {problem}; write the lines in the config file"
        if "checklist" in steps[2:] and not _is_checklist_text(steps, changes):
            return f"{dotted_path(steps)}: {TEXT_ONLY}"
        if caller.agents is not None and not _is_own_key(steps):
            return f"{dotted_path(steps)}: the token {caller.name!r} is limited to some agents and may not change this key"
    return None


def _is_checklist_text(steps: tuple[str, ...], changes: Changes) -> bool:
    """Whether the checklist is removed, or set to a text. A name of a file would permit to read that file, and to replace it."""
    found = value_at(changes, steps)
    return found is None or (isinstance(found, str) and "\n" in found)


def _why_not_removable(request: ApiRequest, changes: Changes) -> str | None:
    """Why the caller may not remove or replace these values, which contain protected keys; None if it may.

    An agent or a job may be removed as a whole, because it does not run without its protected keys then.
    """
    _, declared = read_config(request)
    for steps in changed_keys((), changes):
        found = value_at(declared, steps)
        if isinstance(found, Mapping) and not (steps[0] in ("agents", "cron") and len(steps) <= 2):
            inner = next(filter(_is_file_only, changed_keys(steps, found)), None)
            if inner is not None:
                return f"{dotted_path(steps)}: this would remove {dotted_path(inner)}, which cannot be changed over HTTP"
    return None


def _is_file_only(steps: tuple[str, ...]) -> bool:
    return steps[0] not in Config.model_fields or any("x-file-only" in form for form in keys_on_path(steps))


def _is_own_key(steps: tuple[str, ...]) -> bool:
    """Whether a token for certain agents may change this key."""
    return steps[0] == "agents" and any("x-own" in form for form in keys_on_path(steps))


def changed_keys(path: tuple[str, ...], changes: Changes) -> Iterator[tuple[str, ...]]:
    """The paths of all values that are set or removed, each beginning with `path`."""
    for key, value in changes.items():
        if isinstance(value, Mapping) and value:
            yield from changed_keys((*path, key), value)
        else:
            yield (*path, key)


def _check_entry(request: ApiRequest, kind: Kind, name: str) -> None:
    """Raises HttpError if the active config has no such entry."""
    settings = request.app_state.settings()
    known: Mapping[str, object] = settings.heartbeats if kind is Kind.HEARTBEAT else settings.jobs
    if name not in known:
        raise not_found(f"{'agent' if kind is Kind.HEARTBEAT else 'job'} {name!r}")


def _read_declared(request: ApiRequest) -> tuple[bytes, dict[str, object]]:
    """The file, and the data that it declares, with secrets masked. Raises as `read_config` does."""
    content, root = read_config(request)
    return content, mask_secrets(root)


def read_config(request: ApiRequest) -> tuple[bytes, MarkedMap]:
    """The config file as it is now, and its data. Raises HttpError, or ConfigError if it is not YAML."""
    path = request.app_state.settings().path
    try:
        content = read_file(path)
    except OSError as error:
        raise HttpError(409, "unreadable", f"the config file cannot be read: {error.strerror or error}") from None
    diagnostics = Diagnostics(str(path))
    try:
        root = marked_yaml.parse_yaml(content.decode("utf-8-sig", "replace"), diagnostics)
    except marked_yaml.UnreadableYaml:
        diagnostics.raise_errors()
        raise
    return content, root if isinstance(root, MarkedMap) else MarkedMap()

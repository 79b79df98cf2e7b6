"""Shows the config of one agent as a form in five sections, and turns the sent form into changes of the config file.

A field of the form holds a value as the file declares it, and is empty if the file does not declare it. The form also holds the
value that its reader saw. Only fields that differ from it are changed, so an older form never reverts another user's change.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import get_args

from anyio import from_thread
from starlette.concurrency import run_in_threadpool

from heartbeat.words import format_count
from heartbeatd.answers import ConfigEdited, ConfigSuggestion, ConfigValue, EntryConfig
from heartbeatd.questions import GetEntryConfig
from heartbeatd.verbs import SetConfig
from scheduler.config.file import marked_yaml
from scheduler.config.file.diagnostics import ConfigError, Diagnostic, Diagnostics
from scheduler.config.file.marked_yaml import dotted_path
from scheduler.config.file.message_parts import as_yaml
from scheduler.config.file.text_editing import nest_value
from scheduler.config.keys.models import Section, config_schema, describe_form, keys_on_path, model_of_form
from scheduler.engine.tick_items import Refused
from scheduler.foresight.own_process import NotPlayed
from scheduler.foresight.replay import Replay, verdict_text
from scheduler.web import config_editing
from scheduler.web.api_request import ApiRequest
from scheduler.web.http_errors import HttpError, as_http_error
from scheduler.web.page.daemon_views import find_undo
from scheduler.web.page.foresight_view import MAX_REPLAYED, REPLAYED_DAYS, replay_week
from scheduler.web.page.rendering import Page
from scheduler.web.page.views import FormRequest, PageRequest, Redirect
from scheduler.web.perform import ask, perform

Keys = tuple[str, ...]
Form = Mapping[str, str]  # the fields of a sent form by name

SEEN = "seen:"  # the prefix of the hidden fields with the values that the reader saw

LONG_TEXTS = frozenset(("heartbeat.prompt", "heartbeat.checklist"))

_CODE = re.compile("`([^`]*)`")
_LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")  # to a page of the documentation, which the form does not have
_NUMBER = re.compile(r"-?\d+|-?\d*\.\d+")


@dataclass(frozen=True, slots=True)
class KeyForm:
    """What the form must know of a key. Every second part of `description` is code."""

    description: tuple[str, ...]
    form: str
    choices: tuple[str, ...] = ()
    is_number: bool = False
    is_list: bool = False
    is_map: bool = False


@dataclass(frozen=True, slots=True)
class ConfigField:
    """One field of the form.

    `text` is in the field, and `seen` is the value of the file when its reader saw it. `in_file` is the value in the file now if
    it is another one. `effective` and `origin` are the value in effect and where it comes from. `protected` says why the value
    cannot be written here; it is empty if it can.
    """

    key: str
    label: str
    text: str
    seen: str
    form: KeyForm
    effective: str = ""
    origin: str = ""
    protected: str = ""
    in_file: str | None = None
    errors: tuple[str, ...] = ()

    @property
    def is_long(self) -> bool:
        """Whether the field has several lines."""
        return self.key in LONG_TEXTS

    @property
    def is_changed(self) -> bool:
        return self.text != self.seen


@dataclass(frozen=True, slots=True)
class ConfigSection:
    """One of the five sections. It is open if its reader has changed something there, or must correct it."""

    title: str
    fields: tuple[ConfigField, ...]

    @property
    def anchor(self) -> str:
        return self.title.lower().replace(" ", "-")

    @property
    def is_open(self) -> bool:
        return any(each.is_changed or each.errors or each.in_file is not None for each in self.fields)


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a change was not written, and what to do. `lines` is the YAML to write, empty if there is none to write."""

    message: str
    lines: str = ""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The result of a sent form. `edited` has the changes, which were written or are to be confirmed; None if there are none.

    `replayed` is the last week with the changes, or `not_replayed` says why there is none.
    """

    problems: tuple[Problem, ...] = ()
    errors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    edited: ConfigEdited | None = None
    replayed: Replay | None = None
    not_replayed: str = ""
    status: int = 200


def show_config(request: PageRequest) -> Page:
    """The form with the values of the file, or a check of the values from before an edit that is to be undone."""
    undo = find_undo(request)
    if undo is None:
        return _build_page(request.api, {}, _Outcome())
    changes = undo.changes or {}
    if not _has_fields(changes):
        message = "This edit cannot be undone here, because the form has no fields for some of its values."
        lines = _lines_or_nothing({"agents": {undo.agent: changes}})
        problem = Problem(f"{message} Edit the file yourself, for example with these lines.", lines)
        return _build_page(request.api, {}, _Outcome((problem,), status=409))
    sent = _form_of_undo(request.api, changes)
    return _build_page(request.api, sent, from_thread.run(partial(_try_changes, request.api, sent, write=False)))


def _has_fields(changes: Mapping[str, object]) -> bool:
    """Whether the form can set or remove each of these values. A map without a field of its own can only be removed."""
    for steps in config_editing.changed_keys((), changes):
        path, is_removed = ".".join(steps), marked_yaml.value_at(changes, steps) is None
        if not any(f"{path}.".startswith(f"{key}.") or (is_removed and key.startswith(f"{path}.")) for key in all_keys()):
            return False
    return True


def _form_of_undo(request: ApiRequest, changes: Mapping[str, object]) -> Form:
    """The form that somebody would send who writes the old values into the file as it is now. Raises HttpError."""
    try:
        found = ask(request, "get_agent_config", GetEntryConfig())
    except ConfigError as error:
        raise HttpError(409, "edit_refused", f"the config file has errors: {error.errors[0]}") from None
    declared, after = found.declared or {}, copy.deepcopy(found.declared or {})
    _merge_change(after, changes)
    sent = {"hash": found.hash}
    for key in all_keys():
        path = key.split(".")
        sent[key], sent[SEEN + key] = (field_text(marked_yaml.value_at(each, path)) for each in (after, declared))
    return sent


async def send_config(form: FormRequest) -> Page | Redirect:
    """Check the changes of a sent form, and show what they change in the file; or write them, after the user has seen that.

    Whatever is refused, the form still holds everything that was sent.
    """
    step = form.fields.get("step", "check")
    if form.problem:
        outcome = _Outcome((Problem(form.problem),), status=403)
    elif step == "edit":
        outcome = _Outcome()
    else:
        outcome = await _try_changes(form.api, form.fields, write=step == "write")
        if step == "write" and outcome.edited:
            return Redirect("", f"Written and applied. {'; '.join(outcome.edited.lines) or 'nothing changed'}")
        if step == "replay" and outcome.edited:
            outcome = await _add_replay(form, outcome)
    return await run_in_threadpool(_build_page, form.api, form.fields, outcome)


async def _add_replay(form: FormRequest, outcome: _Outcome) -> _Outcome:
    """The outcome with the last week as it would have been with the changes."""
    verb = SetConfig(changes=changes_of_form(form.fields), hash=form.fields.get("hash", ""))
    try:
        config = await run_in_threadpool(config_editing.stored_with_changes, form.api, form.api.path["name"], verb)
        return outcome if config is None else replace(outcome, replayed=await replay_week(form, config))
    except NotPlayed as error:
        return replace(outcome, not_replayed=str(error))
    except (ConfigError, HttpError, Refused) as error:  # the file has changed just now
        return replace(outcome, not_replayed=as_http_error(error).message)


async def _try_changes(request: ApiRequest, sent: Form, *, write: bool) -> _Outcome:
    changes = changes_of_form(sent)
    if not changes:
        return _Outcome((Problem("Nothing is changed: all fields have the values that the file had."),))
    name = request.path["name"]
    whole = {"agents": {name: changes}}
    try:
        found = await perform(
            request, "patch_agent_config", SetConfig(changes=changes, hash=sent.get("hash", ""), dry_run=not write)
        )
    except ConfigError as error:
        return _error_outcome(name, error)
    except HttpError as error:
        if error.status == 412:
            message = (
                "The config file has changed since you opened this form, so nothing was written. Your values are kept below."
            )
            return _Outcome((Problem(f"{message} Compare the marked fields, and check the changes again."),), status=412)
        if error.code == "edit_refused":
            message = f"This change cannot be made here: {error.message}. Edit the file yourself, for example with these lines."
            return _Outcome((Problem(message, _lines_or_nothing(whole)),), status=409)
        return _Outcome((Problem(error.message),), status=error.status)
    except Refused as error:
        return _Outcome((Problem(str(error)),), status=as_http_error(error).status)
    if isinstance(found, ConfigSuggestion):
        message = f"Nothing was written: {found.reason}. These are the lines to write in the config file."
        return _Outcome((Problem(message, found.yaml),), status=409)
    if not (write or found.diff):
        return _Outcome((Problem("Nothing is changed: the file already contains these values."),))
    return _Outcome(edited=found)


def _lines_or_nothing(changes: Mapping[str, object]) -> str:
    try:
        return config_editing.lines_to_write(changes)
    except HttpError:  # the message of the refusal is enough
        return ""


def changes_of_form(sent: Form) -> dict[str, object]:
    """The changed fields as a JSON merge patch of the agent. None removes a key."""
    changes: dict[str, object] = {}
    for key in all_keys():
        text, seen = _sent_text(sent, key), _sent_text(sent, SEEN + key)
        if key in sent and text != seen:
            patch = _patch_between(parse_field(key, seen), parse_field(key, text))
            _merge_change(changes, nest_value(key.split("."), patch))
    return changes


def _patch_between(old: object, new: object) -> object:
    """The JSON merge patch from one value to another. Keys of a map that are left out are removed."""
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
        return new
    return {key: _patch_between(old.get(key), new.get(key)) for key in {**old, **new}}


def _merge_change(changes: dict[str, object], more: Mapping[str, object]) -> None:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(inner := changes.get(key), dict):
            _merge_change(inner, value)
        else:
            changes[key] = value


def _sent_text(sent: Form, name: str) -> str:
    """The text of a sent field. Browsers send the line breaks of a text as CR LF."""
    text = sent.get(name, "").replace("\r\n", "\n")
    return text if "\n" in text else text.strip()


def parse_field(key: str, text: str) -> object:
    """The value that the text of a field stands for; None for an empty field. The loader reports a wrong text."""
    form = form_of_key(key)
    if not text:
        return None
    if form.choices == ("true", "false"):
        return {"true": True, "false": False}.get(text, text)
    if form.is_number and _NUMBER.fullmatch(text):
        return float(text) if "." in text else int(text)
    if (form.is_list or form.is_map) and text[0] in "[{":
        return _parse_yaml(text)
    if form.is_list:
        names = [each.strip() for each in text.split(",") if each.strip()]
        return names if len(names) > 1 else "".join(names) or text
    return text


def _parse_yaml(text: str) -> object:
    try:
        found = marked_yaml.parse_yaml(text, diagnostics := Diagnostics(""))
    except marked_yaml.UnreadableYaml:
        return text
    return text if diagnostics.has_errors else _plain_data(found)


def _plain_data(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _plain_data(inner) for key, inner in value.items()}
    return [_plain_data(inner) for inner in value] if isinstance(value, list) else value


def field_text(value: object) -> str:
    """A value of the file as a field shows it. `parse_field` reads it back."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value.replace("\r\n", "\n")
    if isinstance(value, list) and value and all(isinstance(each, str) and "," not in each for each in value):
        return ", ".join(value)
    return as_yaml(value)


@cache
def sections_of_form() -> Mapping[str, tuple[str, ...]]:
    """The sections of the form, each with its keys inside the agent: those of its heartbeat come first."""
    definitions = config_schema()["$defs"]
    found: dict[str, list[str]] = {title: [] for title in get_args(Section)}
    for prefix, model in (("heartbeat.", "Heartbeat"), ("", "Agent")):
        for name, form in definitions[model]["properties"].items():
            if title := form.get("x-section"):
                found[title] += _fields_of_key(f"{prefix}{name}", form)
    return {title: tuple(keys) for title, keys in found.items()}


def _fields_of_key(key: str, form: Mapping[str, object]) -> list[str]:
    """The key, or the keys of its map if none of them is required: the form has a field for each of them.

    A map that can only be changed in the file has one field.
    """
    inner = model_of_form(form)
    return (
        [key]
        if inner is None or "required" in inner or form.get("x-file-only")
        else [f"{key}.{name}" for name in inner["properties"]]
    )


@cache
def all_keys() -> tuple[str, ...]:
    """The keys of all fields."""
    return tuple(key for keys in sections_of_form().values() for key in keys)


@cache
def form_of_key(key: str) -> KeyForm:
    """The form of a key inside an agent, from the model of the config."""
    *_, found = keys_on_path(key.split("."), "Agent")
    kinds = [found, *found.get("anyOf", ())]
    types = {kind.get("type") for kind in kinds}
    is_map = "object" in types or "discriminator" in found or any("$ref" in kind for kind in kinds)
    return KeyForm(
        tuple(_CODE.split(_LINK.sub(r"\1", str(found["description"])))),
        (describe_form(found) or "map").replace("\\|", "|").replace("`", ""),
        ("true", "false") if "boolean" in types else tuple(map(str, found.get("enum", ()))),
        is_number=bool(types & {"integer", "number"}),
        is_list="array" in types,
        is_map=is_map,
    )


def _error_outcome(name: str, error: ConfigError) -> _Outcome:
    """Each error at its field, and the others above the form."""
    at_field: dict[str, tuple[str, ...]] = {}
    elsewhere = []
    for each in error.errors:
        key = _field_of_error(name, each)
        if key is None:
            elsewhere.append(Problem(str(each)))
        else:
            at_field[key] = (*at_field.get(key, ()), each.message)
    summary = Problem(f"Nothing was written: the config would have {format_count(len(error.errors), 'error')}.")
    return _Outcome((summary, *elsewhere), at_field, status=422)


def _field_of_error(name: str, error: Diagnostic) -> str | None:
    """The field to which an error belongs; None for an error in another part of the config."""
    prefix = f"{dotted_path(('agents', name))}."
    if not error.path.startswith(prefix):
        return None
    path = error.path.removeprefix(prefix)
    around = [key for key in all_keys() if path == key or path.startswith((f"{key}.", f"{key}["))]
    inside = [key for key in all_keys() if key.startswith(f"{path}.")]
    return max(around, key=len) if around else next(iter(inside), None)


def _build_page(request: ApiRequest, sent: Form, outcome: _Outcome) -> Page:
    name = request.path["name"]
    unknown = EntryConfig(name=name, declared={}, hash=sent.get("hash", ""), values=[])
    try:
        found = ask(request, "get_agent_config", GetEntryConfig())
    except ConfigError as error:  # another user has written a faulty file
        broken = Problem(f"The config file has errors. Correct them in the file first: {error.errors[0]}")
        found, outcome = unknown, _Outcome((*outcome.problems, broken), status=409)
    except HttpError:  # another user has removed the agent
        if not sent:
            raise
        found = unknown
    declared = found.declared or {}
    values = {row.key: row for row in found.values}
    sections = tuple(
        ConfigSection(title, tuple(_build_field(request, key, declared, values.get(key), sent, outcome) for key in keys))
        for title, keys in sections_of_form().items()
    )
    warnings, prefix = outcome.edited.warnings if outcome.edited else [], dotted_path(("agents", name))
    context = {
        "name": name,
        "file": request.app_state.settings().path.name,
        # After a conflict, the form is one of the new version of the file. With changes to confirm, it keeps the old one.
        "hash": found.hash if outcome.edited is None else sent["hash"],
        "sections": sections,
        "may_write": "edit" in request.caller.may,
        "outcome": outcome,
        "own_warnings": [each for each in warnings if prefix in each],
        "other_warnings": [each for each in warnings if prefix not in each],
        "replayed_days": REPLAYED_DAYS,
        "most_replayed": MAX_REPLAYED,
        "verdict_text": verdict_text,
        "has_config": True,
        "seen": SEEN,
    }
    return Page("agent_config.html", context, outcome.status)


def _build_field(
    request: ApiRequest, key: str, declared: Mapping[str, object], value: ConfigValue | None, sent: Form, outcome: _Outcome
) -> ConfigField:
    in_file = field_text(marked_yaml.value_at(declared, key.split(".")))
    text, seen = (_sent_text(sent, key), _sent_text(sent, SEEN + key)) if key in sent else (in_file, in_file)
    is_moved = key in sent and seen != in_file
    if is_moved and text == seen:  # the reader has not touched this field
        text = in_file
    nested = {"agents": {request.path["name"]: nest_value(key.split("."), "\n")}}
    protected = config_editing.why_not_permitted(request, nested) if "edit" in request.caller.may else None
    return ConfigField(
        key,
        _label_of_key(key),
        text,
        in_file,
        form_of_key(key),
        value.value if value else "",
        value.origin if value else "",
        protected or "",
        in_file if is_moved else None,
        outcome.errors.get(key, ()),
    )


def _label_of_key(key: str) -> str:
    """The key without `heartbeat.`, unless the agent itself has a key of this name."""
    short = key.removeprefix("heartbeat.")
    return key if short in all_keys() else short

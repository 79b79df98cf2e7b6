"""Checks all values of a config against the models, and words the errors that pydantic finds."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from scheduler.config.file import marked_yaml
from scheduler.config.file.diagnostics import NO_POSITION, Diagnostics, Position
from scheduler.config.file.marked_yaml import MarkedMap
from scheduler.config.file.message_parts import INSTEAD_OF_SHARDS, as_yaml, describe_type, find_closest, join_with_or, quote_value
from scheduler.config.keys import models
from scheduler.config.keys.models import Form, definition, kinds_of_model, models_at, models_of_form

Steps = tuple[str | int, ...]

MOST_LISTED = 8  # keys of a map that a message lists

_A_MAP = "this must be a map of keys with values; write {map}"

# What to say for each type of error: https://docs.pydantic.dev/latest/errors/validation_errors/. `example` is the default of the
# key, or a value that it may have. The other names are the limits that pydantic gives.
SENTENCES: Mapping[str, str] = {
    "bool_type": "{value} is not true or false; write true or false",
    "int_type": "{value} is not a whole number; write a number such as {example}",
    "float_type": "{value} is not a number; write a number such as {example}",
    "finite_number": "{value} is not a number; write a number such as {example}",
    "greater_than_equal": "{value} is out of range; write {ge} or more",
    "less_than_equal": "{value} is out of range; write {le} or less",
    "multiple_of": "{value} is not a multiple of {multiple_of}; write a number such as {example}",
    "too_long": "there are more than {max_length}; remove some",
    "list_type": "this must be a list, not {type}; write [{map}]",
    "dict_type": "this must be a map of names with values; write {{NAME: VALUE}}",
    "model_type": _A_MAP,
    "model_attributes_type": _A_MAP,
    "missing": "is missing; write {key}: {example}",
    "union_tag_not_found": "is missing; write kind: {words}",
    "union_tag_invalid": "{word} is not allowed here; {choice}",
    "literal_error": "{value} is not allowed here; {choice}",
}
_MISSING = ("missing", "union_tag_not_found")


# What to say for a key that does not exist any more, by the title of its model.
REMOVED = {
    ("Defaults", "agent"): "this key no longer exists; write its keys one level up, such as defaults.runner and defaults.model",
    ("Problems", "remind_critical"): "this key no longer exists; remove it; `remind` applies to critical problems too, up to 6h",
    (models.TITLE, "shard"): f"shards no longer exist; remove this key; {INSTEAD_OF_SHARDS}",
    (
        "Channel",
        "links",
    ): "links no longer exist; remove this key; messages in Telegram can have buttons, and the HTTP API does the same",
}


def check_values(root: MarkedMap, diagnostics: Diagnostics) -> models.Config:
    """The config whose agents and jobs have their defaults. Raises ConfigError with the errors of all values."""
    defaults, shared = root.get("defaults"), models.Defaults()
    try:
        shared = models.Defaults.model_validate(defaults)
    except ValidationError as error:
        _add_errors(error, "Defaults", defaults, ("defaults",), root.marks["defaults"][0], diagnostics)
    try:
        config = _validate_config(root)
    except ValidationError as error:
        _add_errors(error, "Config", root, (), NO_POSITION, diagnostics)
    diagnostics.raise_errors()
    return config.model_copy(update={"defaults": shared})


def find_unknown_key(root: MarkedMap) -> tuple[Steps, str] | None:
    """The first unknown key in a config, or in a part of one: the steps to it, and its error."""
    try:
        _validate_config(root)
    except ValidationError as error:
        for found in error.errors(include_url=False):
            if found["type"] == "extra_forbidden":
                return found["loc"], _explain_error(found, "Config")
    return None


def _validate_config(root: MarkedMap) -> models.Config:
    """The config without its defaults, which need not be complete, and without keys for anchors."""
    return models.Config.model_validate({k: value for k, value in root.items() if k != "defaults" and not k.startswith("x-")})


def _add_errors(
    error: ValidationError, model: str, node: object, steps: Steps, place: Position, diagnostics: Diagnostics
) -> None:
    """Report each error once. A key that is missing in `defaults`, or beside a misspelt one, is no error of its own."""
    errors = error.errors(include_url=False)
    misspelt = {found["loc"][:-1] for found in errors if found["type"] == "extra_forbidden"}
    missing = defaultdict[tuple[str | int, ...], list[str]](list)
    for found in errors:
        if found["type"] == "missing":
            missing[found["loc"][:-1]].append(str(found["loc"][-1]))
    for found in errors:
        is_missing = found["type"] in _MISSING
        if is_missing and (model == "Defaults" or found["loc"][:-1] in misspelt):
            continue
        tag = ("kind",) if found["type"].startswith("union_tag") else ()
        is_key = found["loc"][-1:] == ("[key]",)
        at, known = marked_yaml.locate_value(node, (*found["loc"][: -1 if is_key else None], *tag), place)
        if is_key or found["type"] == "extra_forbidden":
            at = _key_position(node, known, at)
        path = marked_yaml.dotted_path([*steps, *known])
        lacked = missing[found["loc"][:-1]] if found["type"] == "extra_forbidden" and model != "Defaults" else []
        required = lacked.pop(0) if lacked else ""  # each wrong key is paired with one missing key
        diagnostics.add_error(at, path, _explain_error(found, model, required), missing=str(known[-1]) if is_missing else "")


def _key_position(node: object, steps: Sequence[str | int], place: Position) -> Position:
    above = marked_yaml.value_at(node, steps[:-1])
    return above.marks[str(steps[-1])][0] if isinstance(above, MarkedMap) and steps[-1:] and steps[-1] in above else place


def _explain_error(found: ErrorDetails, model: str, required: str = "") -> str:
    """What is wrong in a value of this model, and what to write. `required` is a key that its map lacks."""
    kind, value, limits = found["type"], found["input"], found.get("ctx", {})
    if kind == "value_error":
        return str(limits["error"])
    parts = models_at(found["loc"], model)
    name = next((str(step) for step in reversed(found["loc"]) if isinstance(step, str)), "")
    if kind == "extra_forbidden":
        # `defaults` is checked by itself, so its errors have places relative to it.
        steps = ("defaults", *found["loc"]) if model == "Defaults" else found["loc"]
        return _explain_unknown_key(name, value, models_at(steps[:-1])[0], steps, required)
    words = re.findall(r"'([^']*)'", str(limits.get("expected", limits.get("expected_tags", ""))))
    if kind == "union_tag_not_found":
        words = [word for part in parts for word in kinds_of_model(part)]
    word = str(limits.get("tag", value))
    longer = [each for each in words if each.startswith(f"{word}-")]  # claude is short for claude-code
    close = find_closest(word, words) or "".join(longer[:1]) if isinstance(value, str) or "tag" in limits else ""
    return SENTENCES.get(kind, found["msg"].replace("{", "{{")).format(
        **{limit: _format_limit(limits[limit]) for limit in ("ge", "le", "multiple_of", "max_length") if limit in limits},
        key=name,
        value=quote_value(value),
        type=describe_type(value),
        example=_example(models_at(found["loc"][:-1], model)[0], name),
        map=_example_map(parts[0]),
        words=join_with_or(words) if words else "",
        word=quote_value(word),
        choice=f"did you mean {close}?" if close else f"write {join_with_or(words)}" if words else "",
    )


def _format_limit(limit: float) -> str:
    return f"{limit:g}" if limit < 1 else f"{limit:.0f}"


def _example_map(model: Form) -> str:
    """A map with the first key of a model that has an example, or else a default."""
    forms = model["properties"]
    name = next((name for mark in ("examples", "default") for name, form in forms.items() if mark in form), next(iter(forms)))
    return f"{{{name}: {_example(model, name)}}}"


def _example(model: Form, name: str) -> str:
    """A value that may be written for a key, such as its default."""
    form = model["properties"].get(name, {})
    return as_yaml(form.get("examples", [form.get("default", 1)])[0])


def _explain_unknown_key(name: str, value: object, model: Form, steps: Steps, required: str) -> str:
    """The error for an unknown key: with the closest key of its map or the one that it lacks, else with the maps that have it."""
    if removed := REMOVED.get((model["title"], name)):
        return removed
    if present := models.present_names(model["title"]).get(name):
        return f"this key is called {present} now; {_advise_present_name(name, value, present, model)}"
    known = tuple(model["properties"])
    if close := find_closest(name, known):
        return f"unknown key; did you mean {close}?"
    kinds = [word for part in models_at(steps[:-2]) for word in kinds_of_model(part) if name in part["properties"]]
    if kinds:
        return f"unknown key here; {name} is for kind: {join_with_or(kinds)}"
    at_top = definition("")["properties"].get(name)
    if len(steps) > 1 and at_top and (isinstance(value, MarkedMap) or "additionalProperties" not in at_top):
        return "unknown key here; it belongs at the top of the file"
    if required:
        return f"unknown key; did you mean {required}?"
    if homes := _maps_with_key(name, steps):
        return f"unknown key here; it belongs under {join_with_or(homes)}"
    listed = f"write {join_with_or(known)}" if len(known) <= MOST_LISTED else "`heartbeatd docs reference` lists all keys"
    return f"unknown key; {listed}"


def _advise_present_name(former: str, value: object, present: str, model: Form) -> str:
    """What to write in place of a former key. Keys of its map that the present one does not have are left out."""
    part = models.model_of_form(model["properties"][present])
    if part is None:
        return f"write {present}: {_example(model, present)}"
    if former == "on_failure" and value == "none":
        return f"write {present}: {{after: none}}"
    if not isinstance(value, MarkedMap):
        return f"write {present}: {_example_map(part)}"
    keys = {key: inner for key, inner in value.items() if key in part["properties"]}
    return f"move its keys there: {present}: {as_yaml(keys)}"  # which may be there already, with other keys


def _maps_with_key(name: str, steps: Steps) -> list[str]:
    """The maps that have this key: the shallowest of the section at `steps`, else of each section but `defaults`."""
    every = _maps_by_key()[name]
    sections = [home.split(".")[0] for home in every]
    if near := [home for home in every if home.split(".")[0] == steps[0]]:
        shallowest = [home for home in near if home.count(".") == near[0].count(".")]
        return [home.replace(f"{steps[0]}.NAME", f"{steps[0]}.{steps[1]}") for home in shallowest]
    return [home for index, home in enumerate(every) if sections[index] not in ("defaults", *sections[:index])]


@cache
def _maps_by_key() -> Mapping[str, list[str]]:
    """The paths of the maps that have a key, by the key, the shallowest first."""
    found = defaultdict[str, list[str]](list)
    level: list[tuple[str, Form]] = [("", definition(""))]
    while level:
        below = []
        for path, model in level:
            for name, form in model["properties"].items():
                if path and path not in found[name]:
                    found[name].append(path)
                inside = f"{path}.{name}".removeprefix(".") + (".NAME" if "additionalProperties" in form else "")
                below += [(inside, definition(part)) for part in models_of_form(form)]
        level = below
    return found

"""Makes the data of a config: the file with overrides applied and defaults merged. Each value keeps its source position."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, get_args

from heartbeat.spec import SourceKind
from heartbeatd.state_folder import DEFAULT_STATE, OVERRIDE_PREFIX, find_line_value
from scheduler.config.file import marked_yaml
from scheduler.config.file.config_text import parse_content, read_content
from scheduler.config.file.diagnostics import NO_POSITION, Diagnostics, ExternalPosition, Position
from scheduler.config.file.marked_yaml import MarkedList, MarkedMap
from scheduler.config.file.message_parts import describe_type, undeclared_name
from scheduler.config.keys import models

# Alternatives: an entry that sets one of these keys does not inherit the others.
JOB_SCHEDULE_KEYS = ("schedule", "every", "at", "after")
_JOB_ACTION_KEYS = ("command", "prompt")
HEARTBEAT_SCHEDULE_KEYS = ("schedule", "interval")
PRECHECK_KINDS = ("command", *get_args(SourceKind))
# The parts of these values belong together: the zone or days of one window must not be merged into another window, nor the
# provider of one fallback into another fallback.
_REPLACED_WHOLE = ("active_hours", "hours", "fallbacks")


@dataclass(frozen=True, slots=True)
class ConfigData:
    """The file as data with overrides applied, before validation: the whole, and the defaults of agents and of jobs.

    `file` is its data without the overrides. In `merged`, each agent and each job has its defaults.
    """

    file: MarkedMap
    root: MarkedMap
    agent: MarkedMap
    job: MarkedMap
    merged: MarkedMap
    hash: str
    default_paths: Mapping[tuple[int, int], str]  # of the values under `defaults`, by their position


def read_config_data(
    path: Path, environ: Mapping[str, str], diagnostics: Diagnostics, content: bytes | None = None, *, may_be_empty: bool = False
) -> ConfigData:
    """Read the file, or this content of it, and apply the overrides. Raises ConfigError."""
    content = read_content(path, diagnostics) if content is None else content
    document = parse_content(content, diagnostics)
    root = document.node
    if root is None and may_be_empty:
        root = MarkedMap()
    elif root is None:
        diagnostics.add_error(NO_POSITION, "", "the file holds no keys; `heartbeatd init DIR` writes one to begin with")
    elif not isinstance(root, MarkedMap):
        message = f"this must be keys with values, not {describe_type(root)}; `heartbeatd init DIR` writes a config to begin with"
        diagnostics.add_error(document.position, "", message)
    if not isinstance(root, MarkedMap):
        diagnostics.raise_errors()
        root = MarkedMap()
    _check_line_of_state(root, content, diagnostics)
    # An override may set a value inside a runner of which only the kind is written, or be such a kind itself.
    file, root = root, expand_runners(apply_overrides(expand_runners(root), environ, diagnostics))
    paths = list(_find_default_paths(root.get("defaults"), ("defaults",), set()))
    diagnostics.default_paths = first_paths = dict(reversed(paths))  # the first path of a position counts
    agent, job = agent_defaults(root), map_at(root, "defaults", "cron")
    merged = _merge_entries(_merge_entries(root, "agents", agent, _merge_agent), "cron", job, _merge_job)
    return ConfigData(file, root, agent, job, merged, _hash_config(content, root, environ), first_paths)


def _check_line_of_state(root: MarkedMap, content: bytes, diagnostics: Diagnostics) -> None:
    """Report a `state` that `lenient_reading` would read in another way: commands would use another database than the daemon."""
    state = root.get("state")
    if (
        isinstance(state, str | None)
        and "\0" not in (state or "")
        and find_line_value(content.decode("utf-8-sig"), "state") != state
    ):
        place = root.marks["state"][0] if "state" in root else NO_POSITION
        message = f"write it on one line that begins with state:, as in state: {DEFAULT_STATE}"
        diagnostics.add_error(place, "state", f"commands cannot find this value in a config with errors; {message}")


def find_overrides(environ: Mapping[str, str]) -> dict[str, str]:
    """The overrides in the environment, by variable, sorted."""
    return {variable: environ[variable] for variable in sorted(environ) if variable.startswith(OVERRIDE_PREFIX)}


def override_steps(variable: str) -> list[str]:
    """The keys on the way to the value that an override sets."""
    return variable.removeprefix(OVERRIDE_PREFIX).split("__")


def apply_overrides(root: MarkedMap, environ: Mapping[str, str], diagnostics: Diagnostics) -> MarkedMap:
    """The config with the overrides on top: HEARTBEATD_SET__agents__ops__model=x sets agents.ops.model.

    Values are parsed as YAML. Missing maps on the path are created, except an agent or a job. Where a map is shared by an alias,
    only this path changes.
    """
    for variable, text in find_overrides(environ).items():
        steps = override_steps(variable)
        place = ExternalPosition(variable)
        if not all(steps):
            diagnostics.add_error(place, "", f"this is not a path; write {OVERRIDE_PREFIX}defaults__heartbeat__interval")
            continue
        noun = {"agents": "agent", "cron": "job"}.get(steps[0])
        if noun and len(steps) > 2 and steps[1] not in (known := map_at(root, steps[0])):  # rather misspelt than new
            diagnostics.add_error(place, marked_yaml.dotted_path(steps[:2]), undeclared_name(steps[1], noun, known))
            continue
        try:
            value = marked_yaml.parse_yaml(text, diagnostics, place)
        except marked_yaml.UnreadableYaml:
            continue
        root = _set_value(root, steps, value, place, diagnostics)
    return root


def _set_value(node: MarkedMap, steps: list[str], value: object, place: ExternalPosition, diagnostics: Diagnostics) -> MarkedMap:
    first, *rest = steps
    if rest:
        below = node.get(first)
        if not isinstance(below, MarkedMap | None):
            diagnostics.add_error(place, first, "is not a map, so nothing inside it can be set")
            return node
        value = _set_value(below or MarkedMap(), rest, value, place, diagnostics)
    marks = {**node.marks, first: node.marks[first] if rest and first in node.marks else (place, place)}
    return MarkedMap({**node, first: value}, marks)


def expand_runners(root: MarkedMap) -> Any:
    """The config with a map in place of each runner of which only the kind is written, so that defaults can be merged."""
    for path in (("defaults",), ("agents", "*")):
        root = _change_maps(root, path, lambda agent: _with_kind(agent, ("runner",)))
    return _change_maps(root, ("runners",), lambda runners: _with_kind(runners, runners))


def _with_kind(part: MarkedMap, names: Iterable[str]) -> MarkedMap:
    texts = {name: part.marks[name][1] for name in names if isinstance(part.get(name), str)}
    maps = {name: MarkedMap({"kind": part[name]}, {"kind": (place, place)}) for name, place in texts.items()}
    return MarkedMap({**part, **maps}, part.marks) if maps else part


def _change_maps(node: Any, path: tuple[str, ...], change: Callable[[MarkedMap], MarkedMap]) -> Any:
    """The node with changed maps at the end of this path, where `*` stands for all names."""
    if not isinstance(node, MarkedMap):
        return node
    if not path:
        return change(node)
    names = node if path[0] == "*" else [name for name in path[:1] if name in node]
    made = {name: _change_maps(node[name], path[1:], change) for name in names}
    changed = {name: new for name, new in made.items() if new is not node[name]}
    return MarkedMap({**node, **changed}, node.marks) if changed else node


def agent_defaults(root: MarkedMap) -> MarkedMap:
    """The values that agents inherit: `defaults` without `cron`, and without unknown keys, which its own check reports."""
    shared = map_at(root, "defaults")
    return MarkedMap({key: value for key, value in shared.items() if key in models.Agent.model_fields}, shared.marks)


def _merge_entries(
    root: MarkedMap, section: str, defaults: MarkedMap, merge: Callable[[MarkedMap, MarkedMap], MarkedMap]
) -> MarkedMap:
    """The config in which each entry of a section that is a map has its defaults."""
    entries = root.get(section, MarkedMap())
    if not isinstance(entries, MarkedMap | None):
        return root
    found = {
        name: merge(defaults, entry or MarkedMap()) if isinstance(entry, MarkedMap | None) else entry
        for name, entry in (entries or MarkedMap()).items()
    }
    return MarkedMap({**root, section: MarkedMap(found, (entries or MarkedMap()).marks)}, root.marks)


def _merge_maps(base: MarkedMap, over: MarkedMap) -> MarkedMap:
    """`over` on top of `base`. Maps are merged key by key at every depth; other values and _REPLACED_WHOLE are replaced. An
    empty value in place of a map keeps the inherited map.

    A map of another `kind`, or a precheck of another one, replaces the inherited map, because their keys differ.
    """
    if not over:
        return base
    merged = MarkedMap({**base, **over}, {**base.marks, **over.marks})
    for key in base.keys() & over.keys():
        below, above = base[key], over[key]
        if (
            isinstance(below, MarkedMap)
            and (key not in _REPLACED_WHOLE or above is None)
            and (above is None or (isinstance(above, MarkedMap) and _have_same_kind(key, below, above)))
        ):
            merged[key] = _merge_maps(below, above or MarkedMap())
    return merged


def _merge_job(base: MarkedMap, over: MarkedMap) -> MarkedMap:
    """`_merge_maps` for a job: one of its own JOB_SCHEDULE_KEYS replaces an inherited one, as do `command` and `prompt`."""
    for either in (JOB_SCHEDULE_KEYS, _JOB_ACTION_KEYS):
        base = _without_alternatives(base, over, either)
    return _merge_maps(base, over)


def _merge_agent(base: MarkedMap, over: MarkedMap) -> MarkedMap:
    """`_merge_maps` for an agent: its own `schedule` replaces an inherited `interval`, and the other way round."""
    below, above = base.get("heartbeat"), over.get("heartbeat")
    if isinstance(below, MarkedMap) and isinstance(above, MarkedMap):
        base = MarkedMap({**base, "heartbeat": _without_alternatives(below, above, HEARTBEAT_SCHEDULE_KEYS)}, base.marks)
    return _merge_maps(base, over)


def _without_alternatives(base: MarkedMap, over: MarkedMap, either: tuple[str, ...]) -> MarkedMap:
    if not any(key in base for key in either) or not any(key in over for key in either):
        return base
    return MarkedMap({key: value for key, value in base.items() if key not in either}, base.marks)


def _have_same_kind(name: str, below: MarkedMap, above: MarkedMap) -> bool:
    if name == "precheck":
        kinds = [{kind for kind in PRECHECK_KINDS if kind in each} for each in (below, above)]
        return not all(kinds) or kinds[0] == kinds[1]
    return "kind" not in below or "kind" not in above or below["kind"] == above["kind"]


def map_at(node: object, *steps: str) -> MarkedMap:
    """The map at these keys; an empty map if there is none."""
    found = marked_yaml.value_at(node, steps)
    return found if isinstance(found, MarkedMap) else MarkedMap()


def _find_default_paths(node: object, steps: marked_yaml.Steps, seen: set[int]) -> Iterator[tuple[tuple[int, int], str]]:
    """The paths of the values below `steps`, by the positions of keys and values. What aliases share has its first path."""
    if id(node) in seen:
        return
    seen.add(id(node))
    children: list[tuple[str | int, tuple[Position, ...], object]] = []
    if isinstance(node, MarkedMap):
        children = [(key, node.marks[key], value) for key, value in node.items()]
    elif isinstance(node, MarkedList):
        children = [(index, (mark,), value) for index, (mark, value) in enumerate(zip(node.marks, node, strict=True))]
    for step, marks, value in children:
        for mark in marks[:-1] if isinstance(value, MarkedMap) else marks:  # a map has the position of its first key
            yield (mark.line, mark.column), marked_yaml.dotted_path((*steps, step))
        yield from _find_default_paths(value, (*steps, step), seen)


def _hash_config(content: bytes, root: MarkedMap, environ: Mapping[str, str]) -> str:
    """SHA-256 (hex) of the file and of the values that overrides set, however these are written."""
    digest = sha256(content)
    for variable in find_overrides(environ):
        value = json.dumps(marked_yaml.value_at(root, override_steps(variable)))
        digest.update(f"\0{variable}\0{value}".encode(errors="surrogateescape"))
    return digest.hexdigest()

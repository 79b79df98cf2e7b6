"""Compares two versions of a config by the values in effect: per agent and job, with defaults merged, and secrets masked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from heartbeatd.secret import MASK
from scheduler.config.file import inheritance, marked_yaml
from scheduler.config.file.diagnostics import ConfigError
from scheduler.config.file.marked_yaml import MarkedMap
from scheduler.config.keys.models import config_schema
from scheduler.config.settings.config_data import agent_defaults, map_at
from scheduler.config.settings.config_snapshot import ConfigSnapshot, hide_placeholders, load_snapshot, read_snapshot
from scheduler.config.settings.effective_values import computed_agent_values, computed_job_values, format_value, nested_model
from scheduler.model.config_changes import NOT_SET, OTHER_SECRET, ConfigDiff, KeyChange, StoredConfig, fold_changes
from scheduler.model.outcome import Kind
from scheduler.model.settings import Settings

SECTIONS = {"agent": ("agents", "Agent"), "cron": ("cron", "Job")}
SEPARATE = frozenset({"agents", "cron", "defaults"})  # top-level keys whose values are compared per agent and job
SAME_AS_OTHERS = frozenset({"heartbeat.active_hours.timezone"})  # computed values that only repeat another key
SHARED = ("providers.", "prices.", "channels.", "calendars.", "limits.", "timezone", "env_file")  # keys that change many entries


@dataclass(frozen=True, slots=True)
class ConfigVersion:
    """A valid config: its settings, and its data with secrets masked."""

    settings: Settings
    snapshot: ConfigSnapshot


@dataclass(frozen=True, slots=True)
class ConfigComparison:
    """What a version of the config changes, and the settings before and after, without secrets."""

    diff: ConfigDiff
    old: Settings
    new: Settings


@dataclass(frozen=True, slots=True)
class _Entry:
    """An agent or job of one version: its keys with defaults merged, and its settings."""

    merged: MarkedMap
    settings: tuple[Any, ...]


def compare_stored(old: StoredConfig, new: StoredConfig) -> ConfigComparison | None:
    """Compare two stored configs with the same salt.

    None if the old one cannot be used: it was too large to be stored, or this version of the program rejects it.
    """
    found = [read_snapshot(stored) for stored in (old, new)]
    if found[0] is None or found[1] is None:
        return None
    try:
        before, after = (load_snapshot(stored, each).settings for stored, each in zip((old, new), found, strict=True) if each)
    except ConfigError:
        return None
    diff = compare_configs(ConfigVersion(before, found[0]), ConfigVersion(after, found[1]))
    return ConfigComparison(diff, before, after)


def compare_configs(old: ConfigVersion, new: ConfigVersion) -> ConfigDiff:
    """Everything that `new` changes. Both snapshots need the same salt, and both settings must be loaded in the same way.

    A value that is only written in another way (30m, 1800s) is no change.
    """
    added, removed, renamed = [], [], []
    changes = [*_top_level_changes(old.snapshot.root, new.snapshot.root), *_override_changes(old.snapshot, new.snapshot)]
    shared = any(change.key.startswith(SHARED) for change in changes)
    for kind in SECTIONS:
        before, after = _entries(kind, old), _entries(kind, new)
        gone = {name: before[name] for name in sorted(before.keys() - after.keys())}
        come = {name: after[name] for name in sorted(after.keys() - before.keys())}
        pairs = _find_renamed(gone, come)
        renamed += [(f"{kind}/{was}", f"{kind}/{now}") for was, now in pairs.items()]
        removed += [f"{kind}/{name}" for name in gone if name not in pairs]
        added += [f"{kind}/{name}" for name in come if name not in pairs.values()]
        for name in sorted(before.keys() & after.keys()):
            changes += _entry_changes(kind, name, old, new, (before[name], after[name]), shared=shared)
    return ConfigDiff(tuple(added), tuple(removed), tuple(renamed), fold_changes(changes))


def _entries(kind: str, version: ConfigVersion) -> dict[str, _Entry]:
    root, settings = version.snapshot.root, version.settings
    section = map_at(root, SECTIONS[kind][0])
    if kind == "agent":
        defaults = agent_defaults(root)
        return {
            name: _Entry(
                inheritance.merge_agent(defaults, section.get(name) or MarkedMap()),
                (beat, settings.allowances.get((Kind.HEARTBEAT, name))),
            )
            for name, beat in settings.heartbeats.items()
        }
    defaults = map_at(root, "defaults", "cron")
    return {
        name: _Entry(
            inheritance.merge_job(defaults, section.get(name) or MarkedMap()),
            (job, settings.job_agents.get(name), settings.allowances.get((Kind.CRON, name))),
        )
        for name, job in settings.jobs.items()
    }


def _find_renamed(gone: Mapping[str, _Entry], come: Mapping[str, _Entry]) -> dict[str, str]:
    """The new names of entries that are gone while exactly one entry with the same settings was added."""
    named: dict[str, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for side, found in enumerate((gone, come)):
        for name, entry in found.items():
            named[format_value(_sorted_keys(entry.merged))][side].append(name)
    return {was[0]: now[0] for was, now in named.values() if len(was) == len(now) == 1}


def _sorted_keys(value: Any) -> Any:
    return {key: _sorted_keys(value[key]) for key in sorted(value)} if isinstance(value, dict) else value


def _entry_changes(
    kind: str, name: str, old: ConfigVersion, new: ConfigVersion, entries: tuple[_Entry, _Entry], *, shared: bool
) -> Iterator[KeyChange]:
    """The changed keys of one entry. `shared`: a key changed on which the settings of many entries depend."""
    before, after = entries
    same = before.settings == after.settings
    if same and before.merged == after.merged:
        return
    label, model = f"{kind}/{name}", SECTIONS[kind][1]
    computed = [
        computed_agent_values(version.settings, name, entry.merged)
        if kind == "agent"
        else computed_job_values(version.settings, name)
        for version, entry in zip((old, new), entries, strict=True)
    ]
    found = before.merged != after.merged
    for key, was, now in _changed_values(before.merged, after.merged, model, computed, ""):
        if not same or MASK in now:
            yield KeyChange(label, key, was, now)
    for key in sorted(computed[0].keys() & computed[1].keys() - SAME_AS_OTHERS):
        is_written = _is_written(before.merged, key) or _is_written(after.merged, key)
        if computed[0][key] != computed[1][key] and not is_written:
            found = True
            yield KeyChange(label, key, computed[0][key], computed[1][key])
    if not found and not shared:  # the file is the same here, so a secret to which it refers has another value
        yield KeyChange(label, "secrets", MASK, OTHER_SECRET)


def _is_written(node: Any, path: str) -> bool:
    for step in path.split("."):
        if not isinstance(node, dict) or step not in node:
            return False
        node = node[step]
    return True


def _changed_values(
    old: Any, new: Any, model: str, computed: list[dict[str, str]], prefix: str
) -> Iterator[tuple[str, str, str]]:
    """The keys under which two maps differ, each with its old and its new value."""
    for key in {**old, **new}:
        was, now = old.get(key), new.get(key)
        if key in old and key in new and was == now:
            continue
        path = f"{prefix}{marked_yaml.printable_key(key)}"
        either = now if now is not None else was
        if key != "active_hours" and all(isinstance(value, dict | None) for value in (was, now)) and either:
            yield from _changed_values(was or {}, now or {}, model, computed, f"{path}.")
            continue
        texts = [
            _format_setting(key, node[key]) if key in node else values.get(path) or _default_of(model, path)
            for node, values in ((old, computed[0]), (new, computed[1]))
        ]
        if texts[0] != texts[1]:
            shown = [hide_placeholders(text) for text in texts]
            yield path, shown[0], shown[1] if shown[0] != shown[1] else OTHER_SECRET


@cache
def _default_of(model: str, path: str) -> str:
    """The default of a key in a model, as it is written; NOT_SET if it has none."""
    schema = config_schema()
    models = schema["$defs"]
    form: Any = schema if model == "Config" else models[model]
    for step in path.split("."):
        form = (form or {}).get("properties", {}).get(step)
        if form is None:
            return NOT_SET
        default = form.get("default")
        form = nested_model(form, models, MarkedMap()) if "discriminator" not in form else None
    return NOT_SET if default is None or default == {} else _format_setting(path.rpartition(".")[2], default)


def _format_setting(key: str, value: Any) -> str:
    if key == "active_hours":
        windows = value if isinstance(value, list) else [value]
        return ", ".join(map(_format_window, windows)) or "always"
    return format_value(value)


def _format_window(window: Any) -> str:
    """08:00-22:00 mon-fri Europe/Berlin"""
    if not isinstance(window, dict):
        return format_value(window)
    others = [format_value(window[key]) for key in ("days", "timezone") if window.get(key) is not None]
    return " ".join([f"{window.get('start')}-{window.get('end')}", *others])


def _top_level_changes(old: MarkedMap, new: MarkedMap) -> Iterator[KeyChange]:
    plain = [{key: value for key, value in root.items() if key not in SEPARATE} for root in (old, new)]
    for key, was, now in _changed_values(plain[0], plain[1], "Config", [{}, {}], ""):
        yield KeyChange("", key, was, now)


def _override_changes(old: ConfigSnapshot, new: ConfigSnapshot) -> Iterator[KeyChange]:
    for variable in sorted(old.overrides.keys() | new.overrides.keys()):
        was, now = (hide_placeholders(each.overrides.get(variable, NOT_SET)) for each in (old, new))
        if old.overrides.get(variable) != new.overrides.get(variable):
            yield KeyChange("", variable, was, now if was != now else OTHER_SECRET)

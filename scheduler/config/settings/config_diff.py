"""Compares two versions of a config: which agents and jobs, and which of their keys, with defaults merged and secrets masked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain

from cron.job import Job
from heartbeat.spec import Heartbeat
from heartbeatd.secret import MASK
from scheduler.config.file.diagnostics import ConfigError
from scheduler.config.file.marked_yaml import MarkedMap, dotted_path
from scheduler.config.keys.models import keys_on_path
from scheduler.config.settings.config_data import map_at
from scheduler.config.settings.config_snapshot import SecretMasker, hide_placeholders, load_stored
from scheduler.config.settings.effective_values import SECTIONS, format_value
from scheduler.config.settings.load import LoadedConfig
from scheduler.model.config_changes import (
    MAX_STORED_VALUE,
    NOT_SET,
    OTHER_SECRET,
    ConfigDiff,
    KeyChange,
    StoredConfig,
    shorten_values,
)
from scheduler.model.outcome import Kind
from scheduler.model.settings import Settings

SEPARATE = frozenset({"agents", "cron", "defaults"})  # top-level keys whose values are compared per agent and job


@dataclass(frozen=True, slots=True)
class ConfigComparison:
    """What a version of the config changes, and the settings before and after, without secrets."""

    diff: ConfigDiff
    old: Settings
    new: Settings


def compare_stored(old: StoredConfig, new: StoredConfig) -> ConfigComparison | None:
    """Compare two stored configs. Their secrets are the same text, so that another secret is no change.

    None if one of them cannot be used: it is damaged, or this version of the program rejects it.
    """
    try:
        before, after = load_stored(old), load_stored(new)
    except ConfigError:
        return None
    return ConfigComparison(compare_configs(before, after), before.settings, after.settings)


def compare_configs(old: LoadedConfig, new: LoadedConfig) -> ConfigDiff:
    """Everything that `new` changes. A value that is only written in another way (30m, 1800s) is no change.

    Keys are compared rather than lines of the file: a line may belong to two agents, and a comment may quote a secret.
    Values are compared with their secrets, and shown without them. Only the running daemon has the secrets of both versions;
    so it notices another secret at a reload, and nothing about a secret needs to be stored.
    """
    before, after = _entries(old.settings), _entries(new.settings)
    versions = _Version(old), _Version(new)
    found: dict[tuple[str, KeyChange], list[str]] = defaultdict(list)
    for label in ("", *sorted(before.keys() & after.keys())):
        same = label and before[label] == after[label] and _others(old.settings, label) == _others(new.settings, label)
        for change in () if same else _changed_keys(label, *versions):
            found[label.partition("/")[0], change].append(label)
    changes = [KeyChange(each.key, each.old, each.new, tuple(filter(None, labels))) for (_, each), labels in found.items()]
    added, removed = sorted(after.keys() - before.keys()), sorted(before.keys() - after.keys())
    if all(each.entries for each in changes):
        changes += _changed_secrets(old.settings, new.settings, changes, is_all=not (changes or added or removed))
    changes.sort(key=lambda each: (bool(each.entries), -len(each.entries), each.entries[:1], each.key))
    return ConfigDiff(tuple(added), tuple(removed), tuple(changes))


class _Version:
    """The values of a config by their keys."""

    def __init__(self, loaded: LoadedConfig) -> None:
        self._data = loaded.data.merged
        self._masker = SecretMasker(loaded.data.root)

    def values(self, label: str) -> dict[str, tuple[object, str]]:
        """The values of an agent or job, or (empty label) of all other keys: each with its text without secrets."""
        if not label:
            node = MarkedMap({key: value for key, value in self._data.items() if key not in SEPARATE})
            return self._leaves(node, ())
        kind, _, name = label.partition("/")
        path = SECTIONS[kind][0], name
        zone = self._data.get("timezone")
        inherited = {"heartbeat.timezone" if kind == "agent" else "timezone": (zone, str(zone))} if zone else {}
        return inherited | self._leaves(map_at(self._data, *path), path)

    def _leaves(self, node: MarkedMap, path: tuple[str, ...]) -> dict[str, tuple[object, str]]:
        masked = dict(_iterate_leaves(self._masker.mask_map(node, path), ()))
        raw = dict(_iterate_leaves(node, ()))
        return {key: (raw[key], hide_placeholders(format_value(value))) for key, value in masked.items()}


def _iterate_leaves(node: object, path: tuple[str, ...]) -> Iterator[tuple[str, object]]:
    """Each value that is no map, with its path."""
    if not isinstance(node, MarkedMap):
        yield dotted_path(path), node
        return
    for key, value in node.items():
        yield from _iterate_leaves(value, (*path, key))


def _changed_keys(label: str, old: _Version, new: _Version) -> Iterator[KeyChange]:
    """The keys of an entry, or (empty label) those outside agents and jobs, that have another value."""
    model = SECTIONS[label.partition("/")[0]][1] if label else "Config"
    before, after = old.values(label), new.values(label)
    for key in {**before, **after}:
        default = None, _default_of(model, key)
        (was, old_text), (now, new_text) = before.get(key, default), after.get(key, default)
        if was != now and (old_text != new_text or MASK in new_text):
            texts = shorten_values(old_text, new_text, MAX_STORED_VALUE)
            yield KeyChange(key, texts[0], texts[1] if old_text != new_text else OTHER_SECRET)


def _changed_secrets(old: Settings, new: Settings, changes: list[KeyChange], *, is_all: bool) -> Iterator[KeyChange]:
    """Secrets to which the file refers: they have other values if settings differ, and no key that could be the reason.

    `is_all`: there are no other changes, so that those of channels and of the server are not caused by them.
    """
    explained = {name for each in changes for name in each.entries}
    before, after = _entries(old), _entries(new)
    entries = sorted(name for name in before.keys() & after.keys() - explained if before[name] != after[name])
    if entries:
        yield KeyChange("secrets", MASK, OTHER_SECRET, tuple(entries))
    if is_all:
        whole = {part: (getattr(old, part), getattr(new, part)) for part in ("server", "deadman", "network")}
        whole |= {f"channels.{name}": (old.channels[name], new.channels.get(name)) for name in old.channels}
        yield from (KeyChange(key, MASK, OTHER_SECRET) for key, (was, now) in whole.items() if was != now)


@cache
def _default_of(model: str, path: str) -> str:
    """The default of a key in a model, as it is written; NOT_SET if it has none."""
    steps = path.split(".")
    forms = list(keys_on_path(steps, model))
    default = forms[-1].get("default") if len(forms) == len(steps) else None
    return format_value(default) if default else NOT_SET


def _entries(settings: Settings) -> dict[str, Heartbeat | Job]:
    agents = ((f"agent/{name}", beat) for name, beat in settings.heartbeats.items())
    jobs = ((f"cron/{name}", job) for name, job in settings.jobs.items())
    return dict(chain(agents, jobs))


def _others(settings: Settings, label: str) -> tuple[object, ...]:
    """The settings of an entry beside its own: its budget, and the agent of a job."""
    kind, _, name = label.partition("/")
    if kind == "agent":
        return (settings.allowances.get((Kind.HEARTBEAT, name)),)
    return settings.allowances.get((Kind.CRON, name)), settings.job_agents.get(name)

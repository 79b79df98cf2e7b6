"""Compares two versions of the config: changed values by key, combined for many entries, as lines and as JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from heartbeatd.secret import MASK
from scheduler.model.outcome import Kind

NOT_SET = "none"
OTHER_SECRET = f"{MASK} (another value)"  # the new value of a secret that changed: neither value is shown
MAX_VALUE = 60  # characters of a value in a line
MAX_STORED_VALUE = 200  # characters of a value in the database and in JSON
MAX_STORED_NAMES = 20_000  # names of entries in one recorded reload
NAMES_WIDTH = 30  # characters for the names of several entries in a line
KEPT_PREFIX = 12  # characters of a common beginning that are shown before the part that differs
NOUNS = {"agent": "agents", "cron": "jobs"}


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A key with another value. `entry` is agent/NAME or cron/NAME; empty for a key outside agents and jobs.

    The values are printable texts without secrets; NOT_SET if there is no value.
    """

    entry: str
    key: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class FoldedChange:
    """The same change in all of these entries, which are of one kind. No entries: a key outside agents and jobs."""

    key: str
    old: str
    new: str
    entries: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ConfigDiff:
    """Everything that a version of the config changes. Entries are agent/NAME or cron/NAME.

    `renamed` has the old and the new name of entries that are gone while one with the same settings was added.
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    changes: tuple[FoldedChange, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything changes."""
        return bool(self.added or self.removed or self.renamed or self.changes)

    def of_entry(self, label: str) -> ConfigDiff:
        """Only what changes for this entry."""
        return ConfigDiff(
            tuple(name for name in self.added if name == label),
            tuple(name for name in self.removed if name == label),
            tuple(pair for pair in self.renamed if label in pair),
            tuple(replace(each, entries=(label,)) for each in self.changes if label in each.entries),
        )

    def of_agents(self, agents: frozenset[str]) -> ConfigDiff:
        """What a reader may see who is limited to these agents.

        Keys outside agents are left out, because they may concern others. So is a rename if one of its names is another agent.
        """
        labels = {Kind.HEARTBEAT.label_of(name) for name in agents}
        changes = (replace(each, entries=tuple(name for name in each.entries if name in labels)) for each in self.changes)
        return ConfigDiff(
            tuple(name for name in self.added if name in labels),
            tuple(name for name in self.removed if name in labels),
            tuple((old, new) for old, new in self.renamed if old in labels and new in labels),
            tuple(each for each in changes if each.entries),
        )

    def lines(self, limit: int = 8) -> list[str]:
        """At most about `limit` lines for people; none if nothing changes.

        If there are more changes, those of one key share a line. The rest is only counted.
        """
        changes = list(map(_change_line, self.changes))
        if len(changes) > limit:
            changes = _fold_by_key(self.changes)
        if len(changes) > limit:
            changes = [*changes[: limit - 1], f"and {len(changes) - limit + 1} more keys"]
        renamed = [f"renamed {old} -> {new}" for old, new in self.renamed]
        if len(renamed) > 2:
            renamed = [f"renamed {len(renamed)} entries: {renamed[0].removeprefix('renamed ')} and {len(renamed) - 1} more"]
        return [*_name_lines("added", self.added), *_name_lines("removed", self.removed), *renamed, *changes]

    def as_data(self, names: int = MAX_STORED_NAMES) -> dict[str, Any]:
        """JSON data with at most so many names of entries. `more` counts the changed entries that are left out."""
        room = _Room(names)
        data: dict[str, Any] = {
            "added": room.take(self.added),
            "removed": room.take(self.removed),
            "renamed": [list(pair) for pair in self.renamed[:names]],
            "changes": [
                {"key": each.key, "old": each.old, "new": each.new, "entries": taken, "count": len(each.entries)}
                for each in self.changes
                if (taken := room.take(each.entries)) or not each.entries
            ],
        }
        return data | {"more": room.left_out}


class _Room:
    """Counts the names that still fit."""

    def __init__(self, names: int) -> None:
        self._free = names
        self.left_out = 0

    def take(self, names: Sequence[str]) -> list[str]:
        found = list(names[: self._free])
        self._free -= len(found)
        self.left_out += len(names) - len(found)
        return found


def diff_from_data(data: Mapping[str, Any]) -> ConfigDiff:
    """The diff from its JSON data. Raises KeyError or TypeError for other data."""
    return ConfigDiff(
        tuple(data["added"]),
        tuple(data["removed"]),
        tuple((old, new) for old, new in data["renamed"]),
        tuple(FoldedChange(each["key"], each["old"], each["new"], tuple(each["entries"])) for each in data["changes"]),
    )


def fold_changes(changes: Iterable[KeyChange]) -> tuple[FoldedChange, ...]:
    """Changes with the same key, old and new value become one. Keys outside entries come first, then the most frequent ones."""
    found: dict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    for each in changes:
        found[each.entry.partition("/")[0], each.key, each.old, each.new].append(each.entry)
    folded = [
        FoldedChange(key, *_shorten_values(old, new, MAX_STORED_VALUE), tuple(names) if kind else ())
        for (kind, key, old, new), names in found.items()
    ]
    return tuple(sorted(folded, key=lambda each: (bool(each.entries), -len(each.entries), each.entries[:1], each.key)))


def _change_line(change: FoldedChange) -> str:
    value = f"{change.key} {_format_values(change.old, change.new)}"
    if not change.entries:
        return value
    if len(change.entries) == 1:
        return f"{change.entries[0]}: {value}"
    return f"{_count(change.entries)}: {value} ({shorten_names(change.entries)})"


def _fold_by_key(changes: Iterable[FoldedChange]) -> list[str]:
    """One line for each key of a kind of entry. It shows the most frequent change."""
    ordered = sorted(changes, key=_kind_and_key)
    groups = [list(group) for _, group in groupby(ordered, key=_kind_and_key)]
    groups.sort(key=lambda group: (bool(group[0].entries), -sum(len(each.entries) for each in group)))
    return [_key_line(group) for group in groups]


def _kind_and_key(change: FoldedChange) -> tuple[str, str]:
    return change.entries[0].partition("/")[0] if change.entries else "", change.key


def _key_line(group: list[FoldedChange]) -> str:
    if len(group) == 1:
        return _change_line(group[0])
    names = [name for each in group for name in each.entries]
    first = max(group, key=lambda each: len(each.entries))
    example = f"{_format_values(first.old, first.new)} ({shorten_names(first.entries)})"
    return f"{_count(names)}: {first.key}, {len(group)} different changes, such as {example}"


def _name_lines(verb: str, names: Sequence[str]) -> Iterator[str]:
    for _, group in groupby(sorted(names), key=lambda name: name.partition("/")[0]):
        found = list(group)
        yield f"{verb} {found[0]}" if len(found) == 1 else f"{verb} {_count(found)}: {shorten_names(found)}"


def _count(names: Sequence[str]) -> str:
    return f"{len(names):,} {NOUNS[names[0].partition('/')[0]]}"


def shorten_names(names: Sequence[str]) -> str:
    """The first names without their kind, as many as fit into NAMES_WIDTH, and the number of the others."""
    bare = [name.partition("/")[2] for name in names]
    shown = bare[:1]
    for name in bare[1:]:
        if len(", ".join([*shown, name])) > NAMES_WIDTH:
            break
        shown.append(name)
    left = len(bare) - len(shown)
    return ", ".join(shown) + (f" and {left:,} more" if left else "")


def _format_values(old: str, new: str) -> str:
    return " -> ".join(_shorten_values(old, new, MAX_VALUE))


def _shorten_values(old: str, new: str, length: int) -> tuple[str, str]:
    """Both values with at most `length` characters. Of long texts with the same beginning, the part that differs is shown."""
    if max(len(old), len(new)) > length:
        same = next((place for place, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
        if same > KEPT_PREFIX:
            old, new = (f"...{text[same - KEPT_PREFIX :]}" for text in (old, new))
    return _cut(old, length), _cut(new, length)


def shorten_value(text: str) -> str:
    """A value as the database keeps it."""
    return _cut(text, MAX_STORED_VALUE)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 3]}..."


@dataclass(frozen=True, slots=True)
class Override:
    """An environment variable that sets a value of the config: the path of its key, and both values as JSON without secrets.

    `in_file` is NOT_SET if the file has no such key.
    """

    variable: str
    key: str
    in_file: str
    value: str

    def concerns(self, label: str) -> bool:
        """Whether it may change this entry (agent/NAME or cron/NAME): it sets one of its keys, or a default."""
        kind, _, name = label.partition("/")
        section = "agents" if kind == "agent" else "cron"
        defaults = ("defaults.agent.", "defaults.heartbeat.") if kind == "agent" else ("defaults.cron.",)
        return self.key.startswith((f"{section}.{name}.", *defaults))


@dataclass(frozen=True, slots=True)
class StoredConfig:
    """A config as the database keeps it: `snapshot` is its compressed data with all secrets masked.

    `mode` is the value of `reload`. `overrides` are the environment variables that changed it. `zone` is the name of the
    top-level time zone.
    """

    path: Path
    hash: str
    mode: str
    overrides: tuple[Override, ...]
    snapshot: bytes
    zone: str | None = None


@dataclass(frozen=True, slots=True)
class ConfigEvent:
    """A config that was applied, refused, or found changed at the start of the daemon.

    `result` is applied, refused or started. `by` is who requested it: file watch, SIGHUP, command, start, or token NAME.
    `problem` has the errors of a refused config, one per line.
    """

    result: str
    by: str
    diff: ConfigDiff = ConfigDiff()
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class RecordedConfigEvent:
    """A config event as it was recorded. `left_out`: so many changed entries were not stored, because there were too many."""

    id: int
    at: datetime
    event: ConfigEvent
    config_hash: str
    left_out: int

    def of_agents(self, agents: frozenset[str] | None) -> RecordedConfigEvent | None:
        """What a reader may see who is limited to these agents (None: all); None if nothing of it concerns them."""
        if agents is None:
            return self
        diff = self.event.diff.of_agents(agents)
        return replace(self, event=replace(self.event, diff=diff, problem=None), left_out=0) if diff else None

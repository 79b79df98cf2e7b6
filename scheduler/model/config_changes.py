"""What a version of the config changes, as lines and as JSON, and the records of reloads."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from heartbeat.words import list_names
from heartbeatd.secret import MASK
from scheduler.model.outcome import Kind

NOT_SET = "none"
OTHER_SECRET = f"{MASK} (another value)"  # the new value of a secret that changed: neither value is shown
MAX_VALUE = 60  # characters of a value in a line
MAX_STORED_VALUE = 200  # characters of a value in the database and in JSON
NAMES_WIDTH = 30  # characters for the names of several entries in a line
KEPT_PREFIX = 12  # characters of a common beginning that are shown before the part that differs
NOUNS = {"agent": "agents", "cron": "jobs"}


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A key with another value in all of these entries (agent/NAME or cron/NAME), which are of one kind.

    No entries: a key outside agents and jobs. The values are printable texts without secrets; NOT_SET if there is no value.
    """

    key: str
    old: str
    new: str
    entries: tuple[str, ...] = ()

    @property
    def says(self) -> str:
        """The key and both values."""
        return f"{self.key} {self.old} -> {self.new}"

    def __str__(self) -> str:
        values = " -> ".join(shorten_values(self.old, self.new, MAX_VALUE))
        if len(self.entries) < 2:
            return f"{': '.join((*self.entries, self.key))} {values}"
        return f"{_count(self.entries)}: {self.key} {values} ({shorten_names(self.entries)})"


@dataclass(frozen=True, slots=True)
class ConfigDiff:
    """Everything that a version of the config changes. Entries are agent/NAME or cron/NAME."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changes: tuple[KeyChange, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything changes."""
        return bool(self.added or self.removed or self.changes)

    def of_entries(self, labels: Collection[str]) -> ConfigDiff:
        """Only what changes for these entries."""
        changes = (replace(each, entries=tuple(name for name in each.entries if name in labels)) for each in self.changes)
        return ConfigDiff(
            tuple(name for name in self.added if name in labels),
            tuple(name for name in self.removed if name in labels),
            tuple(each for each in changes if each.entries),
        )

    def of_agents(self, agents: Collection[str]) -> ConfigDiff:
        """What a reader may see who is limited to these agents: no keys outside agents, because they may concern others."""
        return self.of_entries({Kind.HEARTBEAT.label_of(name) for name in agents})

    def lines(self, limit: int = 8) -> list[str]:
        """Lines for people, at most `limit` about keys; none if nothing changes. The other keys are only counted."""
        changes = list(map(str, self.changes))
        if len(changes) > limit:
            changes = [*changes[: limit - 1], f"and {len(changes) - limit + 1:,} more keys"]
        return [*_name_lines("added", self.added), *_name_lines("removed", self.removed), *changes]

    def as_data(self) -> dict[str, object]:
        """JSON data."""
        changes = [asdict(each) | {"count": len(each.entries)} for each in self.changes]
        return {"added": self.added, "removed": self.removed, "changes": changes}


def diff_from_data(data: Mapping[str, Any]) -> ConfigDiff:
    """The diff from its JSON data. Records of older versions have renamed entries, which are shown as removed and added."""
    renamed = data.get("renamed", ())
    return ConfigDiff(
        (*data["added"], *(new for _, new in renamed)),
        (*data["removed"], *(old for old, _ in renamed)),
        tuple(KeyChange(each["key"], each["old"], each["new"], tuple(each["entries"])) for each in data["changes"]),
    )


def _name_lines(verb: str, names: Sequence[str]) -> Iterator[str]:
    for _, group in groupby(sorted(names), key=lambda name: name.partition("/")[0]):
        found = list(group)
        yield f"{verb} {found[0]}" if len(found) == 1 else f"{verb} {_count(found)}: {shorten_names(found)}"


def _count(names: Sequence[str]) -> str:
    return f"{len(names):,} {NOUNS[names[0].partition('/')[0]]}"


def shorten_names(names: Sequence[str]) -> str:
    """The first names without their kind, as many as fit into NAMES_WIDTH, and the number of the others."""
    return list_names([name.partition("/")[2] for name in names], width=NAMES_WIDTH)


def shorten_values(old: str, new: str, length: int) -> tuple[str, str]:
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
        """Whether it may change this entry (agent/NAME or cron/NAME): it sets one of its keys, a default, or a map with them."""
        kind, _, name = label.partition("/")
        section = "agents" if kind == "agent" else "cron"
        key, own = f"{self.key}.", f"{section}.{name}."
        is_default = key.startswith("defaults.") and key.startswith("defaults.cron.") == (section == "cron")
        return is_default or key.startswith(own) or own.startswith(key) or key == "defaults."


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
class Undo:
    """What an edit of an agent has replaced: values of its config as a JSON merge patch, or else its whole checklist."""

    agent: str
    changes: Mapping[str, object] | None = None
    checklist: str | None = None


@dataclass(frozen=True, slots=True)
class ConfigEvent:
    """A config that was applied, refused, or found changed at the start of the daemon.

    `result` is applied, refused or started, or `checklist` for an edited checklist. `by` is who requested it: file watch, SIGHUP,
    command, start, or token NAME.
    `problem` has the errors of a refused config, one per line. `undo` is what an edit of an agent has replaced.
    """

    result: str
    by: str
    diff: ConfigDiff = ConfigDiff()
    problem: str | None = None
    undo: Undo | None = None


@dataclass(frozen=True, slots=True)
class RecordedConfigEvent:
    """A config event as it was recorded."""

    id: int
    at: datetime
    event: ConfigEvent
    config_hash: str

    def of_agents(self, agents: frozenset[str] | None) -> RecordedConfigEvent | None:
        """What a reader may see who is limited to these agents (None: all); None if nothing of it concerns them."""
        if agents is None:
            return self
        diff, undo = self.event.diff.of_agents(agents), self.event.undo
        undo = undo if undo and undo.agent in agents else None
        return replace(self, event=replace(self.event, diff=diff, problem=None, undo=undo)) if diff else None

"""Defines a mute: the messages of an agent or job are suppressed, for a time or until something changes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime

from scheduler.model.entry_row import EntryRow
from scheduler.model.timestamps import from_millis, to_millis


@dataclass(frozen=True, slots=True)
class KnownState:
    """What was known of an entry when it was muted until something changes.

    `problems` are the open ones that an agent reports, by key, with the rank of their severity. `texts` are digests of recent
    messages. `failing` has the reasons of the problems that the daemon observes, separated by blanks; it is empty if it works.
    """

    problems: Mapping[str, int] = field(default_factory=dict)
    texts: tuple[str, ...] = ()
    failing: str = ""


@dataclass(frozen=True, slots=True)
class Mute:
    """A mute that began at `since`, by a person or a program (`by`).

    `held` counts the runs whose messages were suppressed. With `known`, the mute ends when something changes.
    """

    since: datetime
    by: str
    held: int = 0
    known: KnownState | None = None

    def to_text(self) -> str:
        """The mute as the row of its entry stores it."""
        return json.dumps(asdict(self) | {"since": to_millis(self.since)})


def parse_mute(text: str) -> Mute:
    """The mute of an entry's row."""
    data = json.loads(text)
    known = data["known"]
    state = None if known is None else KnownState(known["problems"], tuple(known["texts"]), known["failing"] or "")
    return Mute(from_millis(data["since"]), data["by"], data["held"], state)


def known_state(entry_row: EntryRow, now: datetime) -> KnownState | None:
    """What was known of an entry that is muted until something changes; None if it is not."""
    return parse_mute(entry_row.mute).known if entry_row.mute and entry_row.is_muted(now) else None


def count_held(entry_row: EntryRow) -> EntryRow:
    """The row of a muted entry after a run whose message was suppressed."""
    assert entry_row.mute is not None
    mute = parse_mute(entry_row.mute)
    return entry_row._replace(mute=replace(mute, held=mute.held + 1).to_text())

"""The stored state of one entry: its schedule, its next slot, how its last runs went, and its mute."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from scheduler.model import entry_schedule
from scheduler.model.entry_schedule import EntrySchedule
from scheduler.model.outcome import Key, Kind
from scheduler.model.timestamps import MILLISECOND, from_millis, to_millis

UNTIL_RESUMED = datetime(9999, 1, 1, tzinfo=UTC)  # the end of a pause until `resume`, and of a mute until `unmute`


class _Columns(NamedTuple):
    """The fields of an `EntryRow`.

    They make a tuple, because one run makes seven rows, and a tuple takes a tenth of the time of a dataclass. The `_replace` of
    named tuples takes three times as long as that of `EntryRow`.
    """

    id: int
    kind: Kind
    name: str

    # Its schedule
    state: Literal["active", "disabled", "removed"]
    schedule_text: str  # the column `pace`
    first_seen_at: datetime
    anchor: datetime  # a point of the grid of an interval
    settled_until: datetime  # every slot up to it has its run record
    slot: datetime | None  # the next one
    due_at: datetime | None  # when the engine looks at the entry; None: not before its run ends

    # Its pause
    paused_until: datetime | None = None
    paused_at: datetime | None = None
    paused_by: str | None = None  # command, token NAME, the name of a person, or a number of failures in words
    paused_after_failures: int = 0  # the number of failures in a row that have paused it; 0: a person has

    # Its runs
    last_slot: datetime | None = None
    last_ended_at: datetime | None = None
    last_woken_at: datetime | None = None
    last_success_at: datetime | None = None
    failures: int = 0  # in a row
    failures_for_backoff: int = 0  # of these, since it was last resumed
    failures_for_pause: int = 0  # of these, those that no provider has caused
    quiet: int = 0  # successful runs in a row without a message
    alerting: int = 0  # whether the last successful run was an alert

    # The first slot that is still to be answered
    expected_at: datetime | None = None  # when it comes due; None: none is expected
    expected_before: datetime | None = None  # when the slot after it comes due

    # What the agent has seen of its precheck
    precheck: str | None = None  # the digest of the output at the last complete answer
    unconfirmed: str | None = None  # the digest of a newer output
    unconfirmed_answers: int = 0  # that were given to it and are not final
    looked_at: datetime | None = None  # the time of the last complete answer
    looked_lines: str | None = None  # the digests of lines that the agent has left out on purpose
    source_state: str | None = None  # what it has seen of a source, as JSON of scheduler/work/sources.py

    # What a gateway has last reported about the agent
    active_at: datetime | None = None
    queue: int | None = None
    approvals: int | None = None

    # Its mute
    muted_until: datetime | None = None
    mute: str | None = None  # as the text of a `Mute`


_PLACES = {field: place for place, field in enumerate(_Columns._fields)}


class EntryRow(_Columns):
    """The row of an entry. Functions return a changed row, and `store/transaction` writes it once."""

    __slots__ = ()

    def _replace(self, **changes: Any) -> EntryRow:
        values = [*self]
        for name, value in changes.items():
            values[_PLACES[name]] = value
        return tuple.__new__(EntryRow, values)  # `_make` takes twice as long

    @property
    def key(self) -> Key:
        """Its kind and name."""
        return self.kind, self.name

    @property
    def label(self) -> str:
        """Its name with its kind: agent/NAME or cron/NAME."""
        return self.kind.label_of(self.name)

    @property
    def schedule(self) -> EntrySchedule:
        """When its slots come. It depends on the row alone, so slots that passed under an older config are still known."""
        return entry_schedule.parse_schedule(self.schedule_text, self.anchor)

    @property
    def backs_off_until(self) -> datetime | None:
        """Before this time no slot of an interval runs, because earlier runs failed; None if the entry does not back off.

        A last slot later than `settled_until` was run before the clock was set back, and is ignored.
        """
        failures = self.failures_for_backoff
        if not failures or self.last_slot is None or self.last_slot > self.settled_until:
            return None
        pause = entry_schedule.backoff_pause(self.schedule_text, failures)
        return None if pause is None else self.last_slot + pause

    @property
    def slot_due_at(self) -> datetime | None:
        """When its next slot comes due; None without one."""
        return self.slot and self.slot + self.schedule.offset

    def next_slot_after(self, after: datetime) -> datetime | None:
        """The next slot that may run: later than this time, and not before the entry has backed off."""
        backs_off_until = self.backs_off_until
        return self.schedule.next(max(after, backs_off_until - MILLISECOND) if backs_off_until else after)

    @property
    def looked_line_digests(self) -> frozenset[str]:
        """The digests in `looked_lines`; none if the column is empty or damaged."""
        if not self.looked_lines:
            return frozenset()
        try:
            found = json.loads(self.looked_lines)
        except ValueError:
            return frozenset()
        return frozenset(map(str, found)) if isinstance(found, list) else frozenset()

    @property
    def paused(self) -> bool:
        """Whether the entry is paused, or its pause is over and no tick has ended it. Readers ask `is_paused_at`."""
        return self.paused_until is not None

    def is_paused_at(self, now: datetime) -> bool:
        """Whether it is still paused. A pause that is over stays in the row until the entry is looked at."""
        return self.paused_until is not None and self.paused_until > now

    @property
    def pause_says(self) -> str:
        """That it is paused, and by whom or after how many failures."""
        if self.is_paused_by_failures:
            return f"paused after {self.paused_by}"
        return f"paused by {self.paused_by}" if self.paused_by else "paused"

    @property
    def is_paused_by_failures(self) -> bool:
        """Whether the daemon itself has paused it."""
        return self.paused_after_failures > 0

    def is_muted(self, now: datetime) -> bool:
        """Whether its messages are suppressed."""
        return self.muted_until is not None and self.muted_until > now

    def state_at(self, now: datetime) -> Literal["active", "paused", "disabled", "removed"]:
        """Its state in the config, or `paused`."""
        return "paused" if self.state == "active" and self.is_paused_at(now) else self.state

    def done_at(self, now: datetime, *, is_open: bool) -> datetime | None:
        """Its slot if it ran once and is done; None for any other entry. `is_open`: it has a run that has not ended."""
        return entry_schedule.done_at(self.state_at(now), self.schedule_text, self.settled_until, is_open=is_open)

    @property
    def runs_when_first_seen(self) -> bool:
        """Whether its first slot was set to the time when it was first seen, and has not run yet."""
        return self.last_slot is None and self.slot == self.first_seen_at

    @property
    def pause_ends(self) -> datetime | None:
        """When the pause ends by itself; None without a pause, and for a pause until `resume`."""
        return None if self.paused_until == UNTIL_RESUMED else self.paused_until


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


def count_held(entry_row: EntryRow) -> EntryRow:
    """The row of a muted entry after a run whose message was suppressed."""
    assert entry_row.mute is not None
    mute = parse_mute(entry_row.mute)
    return entry_row._replace(mute=replace(mute, held=mute.held + 1).to_text())

"""The stored state of one entry: its schedule, its next slot, and how its last runs went."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from scheduler.model import entry_schedule
from scheduler.model.entry_schedule import EntrySchedule
from scheduler.model.outcome import Kind

UNTIL_RESUMED = datetime(9999, 1, 1, tzinfo=UTC)  # the end of a pause until `resume`, and of a mute until `unmute`


class _Columns(NamedTuple):
    """The fields of an `EntryRow`.

    They make a tuple, because one run makes seven rows, and a tuple takes a tenth of the time of a dataclass. The `_replace` of
    named tuples takes three times as long as that of `EntryRow`.
    """

    id: int
    kind: Kind
    name: str
    state: Literal["active", "disabled", "removed"]
    schedule_text: str
    first_seen_at: datetime
    anchor: datetime
    settled_until: datetime
    slot: datetime | None
    due_at: datetime | None
    paused_until: datetime | None = None
    last_slot: datetime | None = None
    last_ended_at: datetime | None = None
    last_woken_at: datetime | None = None
    last_success_at: datetime | None = None
    failures: int = 0
    quiet: int = 0
    alerting: int = 0
    troubles: int = 0
    precheck: str | None = None
    queue: int | None = None
    approvals: int | None = None
    active_at: datetime | None = None
    reported: int = 0
    unconfirmed: str | None = None
    unconfirmed_answers: int = 0
    looked_at: datetime | None = None
    looked_lines: str | None = None
    muted_until: datetime | None = None
    mute: str | None = None
    paused_at: datetime | None = None
    paused_by: str | None = None
    expected_at: datetime | None = None
    expected_before: datetime | None = None


_PLACES = {field: place for place, field in enumerate(_Columns._fields)}


class EntryRow(_Columns):
    """The row of an entry. Every slot up to `settled_until` has its run record or was skipped; `slot` is the next one.

    `schedule_text` is the column `pace`.

    `troubles` is the number of its problems that are not over, or whose end is yet to be sent, and `reported` the same for those
    that an agent reports itself (the column `conditions`). `precheck` is the digest of the precheck's output at the last complete
    answer, `looked_at` the time of that answer, and `looked_lines` are the digests of lines that the agent has left out on
    purpose. `unconfirmed` is the digest of a newer output, to which so many `unconfirmed_answers` were given that are not final.
    `paused_by` is who paused it: command, or token NAME. `mute` is the mute until `muted_until`, as text (`model/mute`).
    `expected_at` is when the first slot comes due that is still to be answered, None if none is expected. `expected_before` is
    when the slot after it comes due.

    Functions return a changed row, and `store/transaction` writes it once.
    """

    __slots__ = ()

    def _replace(self, **changes: Any) -> EntryRow:
        values = [*self]
        for field, value in changes.items():
            values[_PLACES[field]] = value
        return tuple.__new__(EntryRow, values)  # `_make` takes twice as long

    @property
    def schedule(self) -> EntrySchedule:
        """When its slots come. It depends on the row alone, so slots that passed under an older config are still known."""
        return entry_schedule.parse_schedule(self.schedule_text, self.anchor)

    @property
    def backs_off_until(self) -> datetime | None:
        """Before this time no slot of an interval runs, because earlier runs failed; None if the entry does not back off.

        A last slot later than `settled_until` was run before the clock was set back, and is ignored.
        """
        pause = entry_schedule.backoff_pause(self.schedule_text, self.failures)
        if pause is None or self.last_slot is None or self.last_slot > self.settled_until:
            return None
        return self.last_slot + pause

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
        """Whether the entry is paused."""
        return self.paused_until is not None

    def is_muted(self, now: datetime) -> bool:
        """Whether its messages are suppressed."""
        return self.muted_until is not None and self.muted_until > now

    @property
    def present_state(self) -> Literal["active", "paused", "disabled", "removed"]:
        """Its state in the config, or `paused`."""
        return "paused" if self.state == "active" and self.paused else self.state

    def done_at(self, *, is_open: bool) -> datetime | None:
        """Its slot if it ran once and is done; None for any other entry. `is_open`: it has a run that has not ended."""
        return entry_schedule.done_at(self.present_state, self.schedule_text, self.settled_until, is_open=is_open)

    @property
    def runs_when_first_seen(self) -> bool:
        """Whether its first slot was set to the time when it was first seen, and has not run yet."""
        return self.last_slot is None and self.slot == self.first_seen_at

    @property
    def pause_ends(self) -> datetime | None:
        """When the pause ends by itself; None without a pause, and for a pause until `resume`."""
        return None if self.paused_until == UNTIL_RESUMED else self.paused_until

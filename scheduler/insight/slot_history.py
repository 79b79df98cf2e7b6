"""Account: the slots of a time and what became of each, by their rows, and where there is none by what else is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from scheduler.insight import reason_texts
from scheduler.insight.reason_texts import Cause
from scheduler.model import schedule
from scheduler.model.outcome import Outcome, Skip
from scheduler.model.schedule import Pace
from scheduler.model.trigger_times import TICK, slots
from scheduler.store.boots import Down
from scheduler.store.clock_changes import Jump
from scheduler.store.stalls import Stall


@dataclass(frozen=True, slots=True)
class Stand:
    """What decided an entry's slots in (since, until], by the time at which they come due; `until` None: it still does."""

    state: str
    pace_text: str
    anchor: datetime
    since: datetime
    until: datetime | None

    @property
    def pace(self) -> Pace:
        return schedule.pace(self.pace_text, self.anchor)

    def holds(self, slot: datetime) -> bool:
        """Whether a slot came due while it stood so."""
        due = slot + self.pace.offset
        return self.since < due and (self.until is None or due <= self.until)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the history: one slot, or `slots` of them from `slot` on; `cause` is what it says of them."""

    id: int
    slot: datetime
    slots: int
    cause: Cause


@dataclass(frozen=True, slots=True)
class Record:
    """All that is known of an entry's slots; `rows` are those that speak of slots, and not of wakes, in the time asked for.

    `paused_until` None: it is not paused. `in_the_way` is the reason that an open run is, `rests_until` ends its backing off.
    """

    stands: Sequence[Stand]
    rows: Sequence[Row]
    downs: Sequence[Down]
    jumps: Sequence[Jump]
    stalls: Sequence[Stall]
    now: datetime
    settled_until: datetime
    paused_until: datetime | None = None
    in_the_way: Skip | None = None
    rests_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of the slot at `at`, and the row that says so; of no slot, where `count` is 0, until the next fate."""

    at: datetime
    cause: Cause
    run: int | None = None
    count: int = 1


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot of a pace; `closed` is the reason for which it may not run by its pace alone, None for one that may."""

    at: datetime
    stand: Stand
    closed: Skip | None

    @property
    def due(self) -> datetime:
        return self.at + self.stand.pace.offset


def fates(record: Record, begin: datetime, end: datetime) -> list[Fate]:
    """What became of each slot in [begin, end), and from when on there were none and why; in the order of time."""
    named = [slot for stand in record.stands if stand.state == "active" for slot in _slots(stand, begin, end)]
    told = _told(record, named, begin, end)
    silent = (Fate(slot.at, _unwritten(record, slot)) for slot in named if slot.at not in told)
    spans = [span for stand in record.stands if (span := _without_slots(stand, begin, end))]
    by_time = {fate.at: fate for fate in silent} | told
    return sorted([*spans, *by_time.values()], key=lambda fate: (fate.at, fate.count))


def _slots(stand: Stand, begin: datetime, end: datetime) -> Iterator[Slot]:
    """The slots of one stand that lie in [begin, end), those outside its hours and on days off too.

    A point of the grid that moved to the next opening is the slot there, and none where it was.
    """
    pace, offset = stand.pace, stand.pace.offset
    after = max(begin - TICK, stand.since - offset)
    until = end - TICK if stand.until is None else min(end - TICK, stand.until - offset)
    may_run = set(slots(pace, after, until))
    wider = (slots(schedule.pace(text, stand.anchor), after, until) for text in schedule.wider(stand.pace_text))
    for at in sorted(may_run.union(*wider)):
        closed = None if at in may_run else _closed(pace, at)
        if closed is not None or at in may_run:
            yield Slot(at, stand, closed)


def _closed(pace: Pace, slot: datetime) -> Skip | None:
    return next((reason for reason, _ in pace.closed(slot - TICK, slot)), None)


def _told(record: Record, named: list[Slot], begin: datetime, end: datetime) -> dict[datetime, Fate]:
    """What the rows say, by slot. A row of its own says more than one that stands for several."""
    told: dict[datetime, Fate] = {}
    for row in (row for row in record.rows if row.slots > 1):
        for slot in _meant(record, row, named, begin):
            told.setdefault(slot.at, Fate(slot.at, _refined(record, row.cause, slot.due), row.id))
    offsets = {slot.at: slot.due for slot in named}
    for row in (row for row in record.rows if row.slots == 1 and begin <= row.slot < end):
        told[row.slot] = Fate(row.slot, _refined(record, row.cause, offsets.get(row.slot, row.slot)), row.id)
    return told


def _meant(record: Record, row: Row, named: list[Slot], begin: datetime) -> Iterator[Slot]:
    """The slots of this time for which a row of several stands."""
    stand = next((stand for stand in record.stands if stand.state == "active" and stand.holds(row.slot)), None)
    if stand is None:
        return iter(())
    before = 0 if row.slot >= begin else sum(_counts(stand.pace, row, begin))
    first = row.slot.replace(microsecond=0)  # it may have been moved by milliseconds, and slots lie on whole seconds
    meant = (slot for slot in named if slot.at >= first and _is_of(row, slot.closed))
    return islice(meant, max(0, row.slots - before))


def _counts(pace: Pace, row: Row, until: datetime) -> Iterator[int]:
    """How many of the row's slots lie before a time: those that may run, and those that may not, by their reasons."""
    after, until = row.slot - TICK, until - TICK
    for closed, passed in ((None, pace.slots(after, until)), *pace.closed(after, until)):
        if passed and _is_of(row, closed):
            yield passed.count


CLOSED = frozenset({Skip.ACTIVE_HOURS, Skip.CALENDAR})


def _is_of(row: Row, closed: Skip | None) -> bool:
    """Whether a row of several speaks of slots that are closed for this reason, or (None) may run: that of a pause of all."""
    reason = next((reason for reason in CLOSED if row.cause.word == reason), None)
    return row.cause.word == Skip.PAUSED or closed == reason


def _refined(record: Record, cause: Cause, due: datetime) -> Cause:
    """Why a slot was missed, if that is on record."""
    if cause.word != Skip.MISSED:
        return cause
    if _is_down(record, due):
        return Cause(reason_texts.DAEMON_DOWN)
    if _was_jumped_over(record, due):
        return Cause(reason_texts.CLOCK_JUMPED)
    if any(stall.since <= due <= stall.until for stall in record.stalls):
        return Cause(reason_texts.STOOD_STILL)
    return cause


def _was_jumped_over(record: Record, due: datetime) -> bool:
    """Whether the clock jumped ahead over a time, and was not set back to before it later."""
    found = False
    for jump in record.jumps:
        if jump.at - jump.by < due <= jump.at:
            found = True
        elif jump.at < due <= jump.at - jump.by:
            found = False
    return found


def _is_down(record: Record, due: datetime) -> bool:
    return any(down.since < due and (down.until is None or due <= down.until) for down in record.downs)


def _unwritten(record: Record, slot: Slot) -> Cause:
    """What becomes of a slot that has no row: it is to come, or what keeps it is still going on, or its row went."""
    if record.paused_until is not None and record.settled_until < slot.at and slot.due <= record.paused_until:
        return Cause(Skip.PAUSED)
    if slot.closed and (slot.due > record.now or slot.at > record.settled_until):
        return Cause(slot.closed)
    if record.rests_until is not None and record.settled_until < slot.at < record.rests_until:
        return Cause(Skip.SUPERSEDED)
    if slot.due > record.now:
        return Cause(reason_texts.TO_COME)
    if slot.at <= record.settled_until:
        return Cause(reason_texts.NOT_KEPT)
    if record.in_the_way is not None:
        return Cause(record.in_the_way)
    return Cause(reason_texts.DAEMON_DOWN if _is_down(record, slot.due) else reason_texts.DUE)


UNKNOWN = "unknown"  # what an entry is before it is first seen

NONE_WHILE = {
    "disabled": Cause(Skip.DISABLED),
    "removed": Cause(Skip.REMOVED),
    UNKNOWN: Cause(reason_texts.NOT_DECLARED),
}


def _without_slots(stand: Stand, begin: datetime, end: datetime) -> Fate | None:
    """A time in which an entry had no slots, because it was disabled or not there."""
    if stand.state == "active" or stand.since >= end or (stand.until is not None and stand.until < begin):
        return None
    return Fate(max(begin, stand.since), NONE_WHILE[stand.state], count=0)


def cause_of(state: str, outcome: str | None, reason: str | None, suppression: str | None) -> Cause:
    """What a row of the history says."""
    if state != "closed":
        return Cause(reason_texts.RUNNING if state == "running" else reason_texts.WAITING, reason)
    if outcome == Outcome.SKIPPED:
        return Cause(reason or outcome)
    return Cause(outcome or state, suppression or reason)

"""Account: the slots of a time and what became of each, by their rows, and where there is none by what else is known."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import islice

from scheduler.engine import planning
from scheduler.insight import reason_texts
from scheduler.insight.reason_texts import Cause
from scheduler.model import schedule
from scheduler.model.outcome import WOKEN, Outcome, Skip, Trigger
from scheduler.model.schedule import Pace
from scheduler.model.timestamps import EPOCH, MILLISECOND, moment
from scheduler.model.trigger_times import TICK, slots
from scheduler.store import boots, clock_changes, entries, entry_history, runs_view, stalls
from scheduler.store.boots import Down
from scheduler.store.clock_changes import Jump
from scheduler.store.entries import Standing
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


BESIDE = WOKEN | {Trigger.REBOOT, Trigger.RESULT}  # what is started by no slot


@dataclass(frozen=True, slots=True)
class Found:
    """The record of a time, and what ran in it that no slot started."""

    record: Record
    beside: tuple[Cause, ...]


def load(db: sqlite3.Connection, standing: Standing, begin: datetime, end: datetime, now: datetime, *, running: bool) -> Found:
    """What is known of an entry in [begin, end); `running` says that a daemon runs now."""
    rows = runs_view.speaking_of(db, standing.kind, standing.name, begin, end)
    open_run = entries.open_run(db, standing.kind, standing.name)
    record = Record(
        stands=tuple(_stands(db, standing)),
        rows=tuple(Row(row["id"], moment(row["slot"]), row["slots"], _cause(row)) for row in rows if _is_own(row)),
        downs=boots.gaps(boots.lives(db), running=running),
        jumps=clock_changes.between(db, begin, end),
        stalls=stalls.between(db, begin, end),
        now=now,
        settled_until=standing.settled_until,
        paused_until=standing.paused_until if standing.state == "active" else None,
        rests_until=standing.backs_off_until,
        in_the_way=planning.in_the_way(open_run) if open_run else None,
    )
    return Found(record, tuple(_cause(row) for row in rows if not _is_own(row)))


def _is_own(row: sqlite3.Row) -> bool:
    return row["trigger"] not in BESIDE


def _cause(row: sqlite3.Row) -> Cause:
    return cause_of(row["state"], row["outcome"], row["reason"], row["suppression"])


def _stands(db: sqlite3.Connection, standing: Standing) -> Iterator[Stand]:
    """How it has stood, one after the other; before it was first seen it was not known."""
    since = standing.first_seen_at - MILLISECOND
    yield Stand(UNKNOWN, "{}", since, EPOCH, since)
    for before in entry_history.of(db, standing.kind, standing.name):
        yield Stand(before.state, before.pace_text, before.anchor, since, before.until)
        since = before.until
    yield Stand(standing.state, standing.pace_text, standing.anchor, since, None)


MOST = 12


@dataclass(frozen=True, slots=True)
class Stretch:
    """Slots in a row, from the first to the last: how many for each cause, the most frequent first, and the row if it is one."""

    first: datetime
    last: datetime
    counts: tuple[tuple[Cause, int], ...]
    run: int | None

    @property
    def slots(self) -> int:
        """How many slots it stands for; 0: a time without any."""
        return sum(count for _, count in self.counts)


def fold(fates: Iterable[Fate], most: int = MOST) -> list[Stretch]:
    """About `most` stretches. Fates in a row with one cause are one; if there are too many, short neighbours become mixed ones.

    Those that ran are mixed with each other first, so that a silence stands by itself as long as it may; a time without slots
    is never mixed.
    """
    stretches = _joined([Stretch(fate.at, fate.at, ((fate.cause, fate.count),), fate.run) for fate in fates], _have_one_cause)
    slots = sum(stretch.slots for stretch in stretches)
    for mixed in (_ran, _has_slots):
        size = 2
        while len(stretches) > most and size <= slots:
            stretches = _joined(stretches, partial(_are_short, size, mixed))
            size += 1
    return stretches


def total(stretches: Iterable[Stretch]) -> list[tuple[Cause, int]]:
    """How many slots there were for each cause, the most frequent first."""
    return _sum(count for stretch in stretches for count in stretch.counts)


def _are_short(size: int, mixed: Callable[[Stretch], bool], before: Stretch, after: Stretch) -> bool:
    return mixed(before) and mixed(after) and before.slots + after.slots <= size


def _ran(stretch: Stretch) -> bool:
    return all(cause.ran for cause, _ in stretch.counts)


def _has_slots(stretch: Stretch) -> bool:
    return stretch.slots > 0


def _have_one_cause(before: Stretch, after: Stretch) -> bool:
    return [cause for cause, _ in before.counts] == [cause for cause, _ in after.counts]


def _joined(stretches: Sequence[Stretch], may: Callable[[Stretch, Stretch], bool]) -> list[Stretch]:
    """Each stretch joined to the one before it where it may be."""
    joined: list[Stretch] = []
    for stretch in stretches:
        if joined and may(joined[-1], stretch):
            joined[-1] = _together(joined[-1], stretch)
        else:
            joined.append(stretch)
    return joined


def _together(before: Stretch, after: Stretch) -> Stretch:
    run = before.run if before.run == after.run else None
    return Stretch(before.first, after.last, tuple(_sum([*before.counts, *after.counts])), run)


def _sum(counts: Iterable[tuple[Cause, int]]) -> list[tuple[Cause, int]]:
    sums: Counter[Cause] = Counter()
    for cause, count in counts:
        sums[cause] += count
    return sums.most_common()

"""Finds what happened to each slot of an entry, from run records, downtime, clock changes and pauses, and groups the results."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import islice

from heartbeatd.answers import Downtime, FrozenTime
from scheduler.engine import planning
from scheduler.insight import reason_texts
from scheduler.insight.reason_texts import SlotCause
from scheduler.model import entry_schedule
from scheduler.model.entry_row import EntryRow
from scheduler.model.entry_schedule import MICROSECOND, EntrySchedule, slots_between
from scheduler.model.levels import Level
from scheduler.model.outcome import ANSWERED, SCHEDULE_SKIPS, WITHOUT_SLOT, DeliveryState, Outcome, Skip, Trigger
from scheduler.model.timestamps import EPOCH, MILLISECOND, from_millis
from scheduler.store import boots, clock_changes, entries, run_history, runs
from scheduler.store.clock_changes import ClockChange
from scheduler.store.outbox import TargetDelivery


@dataclass(frozen=True, slots=True)
class SchedulePeriod:
    """A period (since, until] with one schedule, for the slots that come due in it; `until` None: it is the current one."""

    state: str
    schedule_text: str
    anchor: datetime
    since: datetime
    until: datetime | None

    @property
    def schedule(self) -> EntrySchedule:
        return entry_schedule.parse_schedule(self.schedule_text, self.anchor)

    def covers_slot(self, slot: datetime) -> bool:
        """Whether a slot came due in this period."""
        due = slot + self.schedule.offset
        return self.since < due and (self.until is None or due <= self.until)


@dataclass(frozen=True, slots=True)
class SlotResult:
    """What happened to the slot at `at`, or to `count` slots from there on that share a run record.

    `count` 0: from `at` until the next result there were no slots. If no slot started the run, `at` is the time of its start.
    """

    at: datetime
    cause: SlotCause
    run_id: int | None = None
    count: int = 1


@dataclass(frozen=True, slots=True)
class MissedRecords:
    """What is on record about times at which the daemon could start nothing."""

    downs: Sequence[Downtime]
    jumps: Sequence[ClockChange]
    freezes: Sequence[FrozenTime]

    def cause(self, due: datetime) -> SlotCause:
        """The reason why a slot that came due at this time was missed."""
        if self.was_daemon_down(due):
            return SlotCause(reason_texts.DAEMON_DOWN)
        if self._was_skipped_by_clock(due):
            is_sleep = any(each.is_sleep and each.at - each.by < due <= each.at for each in self.jumps)
            return SlotCause(reason_texts.CLOCK_JUMPED, reason_texts.SLEPT if is_sleep else None)
        freeze = next((each for each in self.freezes if each.since <= due <= each.until), None)
        if freeze is not None:
            return SlotCause(reason_texts.FROZEN, freeze.cause)
        return SlotCause(Skip.MISSED)

    def was_daemon_down(self, due: datetime) -> bool:
        """Whether no daemon ran at this time."""
        return any(down.since < due and (down.until is None or due <= down.until) for down in self.downs)

    def _was_skipped_by_clock(self, due: datetime) -> bool:
        """Whether the system clock jumped ahead over a time and was not set back to before it later."""
        found = False
        for jump in self.jumps:
            if jump.at - jump.by < due <= jump.at:
                found = True
            elif jump.at < due <= jump.at - jump.by:
                found = False
        return found


@dataclass(frozen=True, slots=True)
class EntryRecord:
    """All that is on record about an entry in a period. `rows` stand for slots, and `other_runs` were not started by slots.

    `paused_until` None: the entry is not paused. `blocked_by` is the skip reason that an open run causes. `backs_off_until` is
    the end of backing off after failures.
    """

    periods: Sequence[SchedulePeriod]
    rows: Sequence[SlotResult]
    missed: MissedRecords
    now: datetime
    settled_until: datetime
    other_runs: Sequence[SlotResult] = ()
    paused_until: datetime | None = None
    blocked_by: Skip | None = None
    backs_off_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class ScheduledSlot:
    """A slot of a schedule; `closed_by` is the reason if the schedule itself excludes it, None if it may run."""

    at: datetime
    period: SchedulePeriod
    closed_by: Skip | None

    @property
    def due_at(self) -> datetime:
        return self.at + self.period.schedule.offset


def slot_results(record: EntryRecord, begin: datetime, end: datetime) -> list[SlotResult]:
    """What happened to each slot in [begin, end), and why there were no slots at some times; sorted by time."""
    named = [slot for period in record.periods if period.state == "active" for slot in _slots_of_period(period, begin, end)]
    recorded = _recorded_results(record, named, begin, end)
    silent = (SlotResult(slot.at, _cause_without_row(record, slot)) for slot in named if slot.at not in recorded)
    spans = [span for period in record.periods if (span := _time_without_slots(period, begin, end))]
    by_time = {result.at: result for result in silent} | recorded
    return sorted([*spans, *by_time.values()], key=lambda result: (result.at, result.count))


def _slots_of_period(period: SchedulePeriod, begin: datetime, end: datetime) -> Iterator[ScheduledSlot]:
    """The slots of one period in [begin, end), including those outside its active hours and on days off.

    A slot that moved to the next opening is listed at its new time only.
    """
    schedule, offset = period.schedule, period.schedule.offset
    after = max(begin - MICROSECOND, period.since - offset)
    until = end - MICROSECOND if period.until is None else min(end - MICROSECOND, period.until - offset)
    may_run = set(slots_between(schedule, after, until))
    wider = (
        slots_between(entry_schedule.parse_schedule(text, period.anchor), after, until)
        for text in entry_schedule.less_restricted(period.schedule_text)
    )
    for at in sorted(may_run.union(*wider)):
        closed = next((reason for reason, _ in schedule.closed_slots(at - MICROSECOND, at)), None)
        if at in may_run or closed is not None:
            yield ScheduledSlot(at, period, None if at in may_run else closed)


def _recorded_results(
    record: EntryRecord, named: list[ScheduledSlot], begin: datetime, end: datetime
) -> dict[datetime, SlotResult]:
    """The result of each slot that has a run record. A record of one slot takes precedence over one of several slots."""
    recorded: dict[datetime, SlotResult] = {}
    for row in (row for row in record.rows if row.count > 1):
        for slot in _slots_of_row(record, row, named, begin):
            recorded.setdefault(slot.at, SlotResult(slot.at, _refine_missed(record, row.cause, slot.due_at), row.run_id))
    offsets = {slot.at: slot.due_at for slot in named}
    for row in (row for row in record.rows if row.count == 1 and begin <= row.at < end):
        recorded[row.at] = replace(row, cause=_refine_missed(record, row.cause, offsets.get(row.at, row.at)))
    return recorded


def _slots_of_row(record: EntryRecord, row: SlotResult, named: list[ScheduledSlot], begin: datetime) -> Iterator[ScheduledSlot]:
    """The slots after `begin` that a record of several slots stands for."""
    period = next((period for period in record.periods if period.state == "active" and period.covers_slot(row.at)), None)
    if period is None:
        return iter(())
    before = 0 if row.at >= begin else sum(_slot_counts_before(period.schedule, row, begin))
    first = row.at.replace(microsecond=0)  # it may have been moved by milliseconds; slots are on whole seconds
    meant = (slot for slot in named if slot.at >= first and _row_includes(row, slot.closed_by))
    return islice(meant, max(0, row.count - before))


def _slot_counts_before(schedule: EntrySchedule, row: SlotResult, until: datetime) -> Iterator[int]:
    """The numbers of the record's slots before a time: slots that may run, and excluded slots for each reason."""
    after, until = row.at - MICROSECOND, until - MICROSECOND
    for closed, passed in ((None, schedule.slots(after, until)), *schedule.closed_slots(after, until)):
        if passed and _row_includes(row, closed):
            yield passed.count


def _row_includes(row: SlotResult, closed: Skip | None) -> bool:
    """Whether a record of several slots includes those excluded for this reason, or (None) those that may run.

    The record of a pause includes all of them.
    """
    code = row.cause.code
    return code == Skip.PAUSED or closed == (code if code in SCHEDULE_SKIPS else None)


def _refine_missed(record: EntryRecord, cause: SlotCause, due: datetime) -> SlotCause:
    """The reason why a slot was missed, if one is on record."""
    found = record.missed.cause(due) if cause.code == Skip.MISSED else cause
    return cause if found.code == Skip.MISSED else found


def _cause_without_row(record: EntryRecord, slot: ScheduledSlot) -> SlotCause:
    """What happens to a slot without a run record: it is to come, or something still prevents it, or its record was deleted."""
    if record.paused_until is not None and record.settled_until < slot.at and slot.due_at <= record.paused_until:
        return SlotCause(Skip.PAUSED)
    if slot.closed_by and (slot.due_at > record.now or slot.at > record.settled_until):
        return SlotCause(slot.closed_by)
    if record.backs_off_until is not None and record.settled_until < slot.at < record.backs_off_until:
        return SlotCause(Skip.SUPERSEDED)
    if slot.due_at > record.now:
        return SlotCause(reason_texts.TO_COME)
    if slot.at <= record.settled_until:
        return SlotCause(reason_texts.NOT_KEPT)
    if record.blocked_by is not None:
        return SlotCause(record.blocked_by)
    return SlotCause(reason_texts.DAEMON_DOWN if record.missed.was_daemon_down(slot.due_at) else reason_texts.DUE)


UNKNOWN_STATE = "unknown"  # the state of an entry before it is first seen

CAUSES_WITHOUT_SLOTS = {
    "disabled": SlotCause(Skip.DISABLED),
    "removed": SlotCause(Skip.REMOVED),
    UNKNOWN_STATE: SlotCause(reason_texts.NOT_DECLARED),
}


def _time_without_slots(period: SchedulePeriod, begin: datetime, end: datetime) -> SlotResult | None:
    """A period without slots, because the entry was disabled or did not exist; None for a period with slots."""
    if period.state == "active" or period.since >= end or (period.until is not None and period.until < begin):
        return None
    return SlotResult(max(begin, period.since), CAUSES_WITHOUT_SLOTS[period.state], count=0)


def cause_of_run(state: str, result: str | None, why: str | None, delivery: str) -> SlotCause:
    """What a run record says about its slot. If its message has not arrived, the detail is the state of the `delivery`."""
    if state != "closed":
        return SlotCause(reason_texts.RUNNING if state == "running" else reason_texts.WAITING, why)
    if result == Outcome.SKIPPED:
        return SlotCause(why or result)
    if result in ANSWERED and delivery not in (DeliveryState.NONE, DeliveryState.DELIVERED):
        return SlotCause(result, delivery)
    return SlotCause(result or state, why)


def load_record(
    db: sqlite3.Connection,
    entry_row: EntryRow,
    begin: datetime,
    end: datetime,
    now: datetime,
    *,
    running: bool,
    is_limited: bool = False,
) -> EntryRecord:
    """Read the record of an entry in [begin, end); `running`: a daemon runs now. `is_limited`: without names of other entries."""
    rows = run_history.runs_covering(db, *entry_row.key, begin, end)
    results = results_of_rows(db, rows, is_limited=is_limited)
    woken = {row["slot"] for row in rows if row["trigger"] in WITHOUT_SLOT}
    # A late result says what happened to its slot. Its record comes after the one of the run that answers later.
    of_slots = (
        row["slot"] not in woken if row["trigger"] == Trigger.RESULT else row["trigger"] not in WITHOUT_SLOT for row in rows
    )
    found = list(zip(of_slots, results, strict=True))
    open_run = runs.find_open_run(db, *entry_row.key)
    return EntryRecord(
        periods=tuple(_schedule_periods(db, entry_row)),
        rows=tuple(each for is_slot, each in found if is_slot),
        other_runs=tuple(each for is_slot, each in found if not is_slot),
        missed=missed_records(db, begin, end, running=running),
        now=now,
        settled_until=entry_row.settled_until,
        paused_until=entry_row.paused_until if entry_row.state == "active" else None,
        backs_off_until=entry_row.backs_off_until,
        blocked_by=planning.reason_of_open_run(open_run) if open_run else None,
    )


def missed_records(db: sqlite3.Connection, begin: datetime, end: datetime, *, running: bool) -> MissedRecords:
    """The times in [begin, end) at which the daemon could start nothing; `running`: a daemon runs now."""
    return MissedRecords(
        boots.downtimes_between(boots.all_boots(db), running=running),
        clock_changes.clock_changes_between(db, begin, end),
        boots.freezes_between(db, begin, end),
    )


def results_of_rows(db: sqlite3.Connection, rows: Sequence[sqlite3.Row], *, is_limited: bool = False) -> list[SlotResult]:
    """What these run records say about their slots. `is_limited`: without names of other entries."""
    deliveries = run_history.deliveries_of_runs(db, {row["id"]: row["repeats"] for row in rows if row["outcome"] in ANSWERED})
    return [_result_of_row(row, deliveries, is_limited=is_limited) for row in rows]


def _result_of_row(row: sqlite3.Row, deliveries: Mapping[int, Sequence[TargetDelivery]], *, is_limited: bool) -> SlotResult:
    """What a run record says about its slot."""
    if row["why"] == Skip.MISSED:  # the error names the runs that were in progress
        cause = SlotCause(Skip.MISSED, None if is_limited else row["error"])
    else:
        sent = run_history.delivery_state(row["kind"], row["outcome"], row["suppression"], deliveries.get(row["id"], ()))
        cause = cause_of_run(row["state"], row["outcome"], row["why"], sent)
    return SlotResult(from_millis(row["slot"]), cause, row["id"], row["slots"])


def _schedule_periods(db: sqlite3.Connection, entry_row: EntryRow) -> Iterator[SchedulePeriod]:
    """The periods of the entry, one after the other; the first one ends when the entry was first seen."""
    since = entry_row.first_seen_at - MILLISECOND
    yield SchedulePeriod(UNKNOWN_STATE, "{}", since, EPOCH, since)
    for before in entries.past_states(db, *entry_row.key):
        yield SchedulePeriod(before.state, before.schedule_text, before.anchor, since, before.until)
        since = before.until
    yield SchedulePeriod(entry_row.state, entry_row.schedule_text, entry_row.anchor, since, None)


MAX_GROUPS = 12
MAX_MARKS = 300  # more slots than this are drawn as groups
LEVELS_BY_WEIGHT = tuple(Level[name] for name in ("BAD", "LOST", "ALERT", "UNKNOWN", "WAITING", "GOOD", "PLANNED", "TO_COME"))


@dataclass(frozen=True, slots=True)
class SlotGroup:
    """Consecutive slots: how many for each cause, the most frequent first, and the run record if they share one.

    `run_ids` are the lowest and the highest ID of their run records, None without any. `is_slot` False: a wake, a start of the
    daemon or a late result started this one run.
    """

    first: datetime
    last: datetime
    cause_counts: tuple[tuple[SlotCause, int], ...]
    run_id: int | None
    run_ids: tuple[int, int] | None = None
    is_slot: bool = True

    @classmethod
    def of(cls, result: SlotResult, *, is_slot: bool = True) -> SlotGroup:
        """One slot alone, or one run that no slot started."""
        ids = None if result.run_id is None else (result.run_id, result.run_id)
        return cls(result.at, result.at, ((result.cause, result.count),), result.run_id, ids, is_slot)

    @property
    def slot_count(self) -> int:
        """The number of slots; 0 for a period without slots."""
        return sum(count for _, count in self.cause_counts)

    @property
    def worst(self) -> SlotCause:
        """The worst of its causes."""
        return min((cause for cause, _ in self.cause_counts), key=lambda cause: LEVELS_BY_WEIGHT.index(cause.level))


def group_results(results: Iterable[SlotResult], max_groups: int = MAX_GROUPS) -> list[SlotGroup]:
    """About `max_groups` groups. Neighbours with the same cause are one group. If there are too many, short neighbours are mixed.

    Slots that ran are mixed with each other first, so that skipped slots stay visible as long as possible. A period without
    slots is never mixed.
    """
    stretches = _join_neighbours(list(map(SlotGroup.of, results)), _have_one_cause)
    slots = sum(stretch.slot_count for stretch in stretches)
    for mixed in (_all_have_run, _has_slots):
        size = 2
        while len(stretches) > max_groups and size <= slots:
            stretches = _join_neighbours(stretches, partial(_are_short_enough, size, mixed))
            size += 1
    return stretches


def count_causes(stretches: Iterable[SlotGroup]) -> list[tuple[SlotCause, int]]:
    """The number of slots for each cause, the most frequent first."""
    return _sum_by_cause(count for stretch in stretches for count in stretch.cause_counts)


def _are_short_enough(size: int, mixed: Callable[[SlotGroup], bool], before: SlotGroup, after: SlotGroup) -> bool:
    return mixed(before) and mixed(after) and before.slot_count + after.slot_count <= size


def _all_have_run(stretch: SlotGroup) -> bool:
    return all(cause.has_run for cause, _ in stretch.cause_counts)


def _has_slots(stretch: SlotGroup) -> bool:
    return stretch.slot_count > 0


def _have_one_cause(before: SlotGroup, after: SlotGroup) -> bool:
    return [cause for cause, _ in before.cause_counts] == [cause for cause, _ in after.cause_counts]


def _join_neighbours(stretches: Sequence[SlotGroup], may: Callable[[SlotGroup, SlotGroup], bool]) -> list[SlotGroup]:
    """The groups, each merged into the one before it if `may` allows it."""
    joined: list[SlotGroup] = []
    for stretch in stretches:
        if joined and may(joined[-1], stretch):
            joined[-1] = _merge_groups(joined[-1], stretch)
        else:
            joined.append(stretch)
    return joined


def _merge_groups(before: SlotGroup, after: SlotGroup) -> SlotGroup:
    run = before.run_id if before.run_id == after.run_id else None
    ids = [number for each in (before, after) for number in each.run_ids or ()]
    counts = tuple(_sum_by_cause([*before.cause_counts, *after.cause_counts]))
    return SlotGroup(before.first, after.last, counts, run, (min(ids), max(ids)) if ids else None)


def _sum_by_cause(counts: Iterable[tuple[SlotCause, int]]) -> list[tuple[SlotCause, int]]:
    sums: Counter[SlotCause] = Counter()
    for cause, count in counts:
        sums[cause] += count
    return sums.most_common()

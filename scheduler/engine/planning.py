"""Decides which slot of an entry to run, records the skipped ones, and plans when the entry is due next."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from itertools import islice

from heartbeat.slots import AnySlotRange
from heartbeat.words import format_count
from scheduler.engine import notices
from scheduler.engine.tick_items import Tick
from scheduler.model import entry_schedule
from scheduler.model.entry import Entry, OpenRun
from scheduler.model.entry_row import UNTIL_RESUMED, EntryRow
from scheduler.model.entry_schedule import EntrySchedule
from scheduler.model.events import PauseChanged, SlotsMissed
from scheduler.model.outcome import (
    ANSWERED,
    EXCUSED_SKIPS,
    FAILURES,
    LOST_SKIPS,
    AttemptResult,
    Kind,
    Outcome,
    Reason,
    Skip,
    Trigger,
)
from scheduler.model.problem import PAUSED
from scheduler.model.timestamps import MILLISECOND
from scheduler.store import clock_changes, entries, runs, slot_records, wakes
from scheduler.store.transaction import Transaction

MAX_SLOTS_MEASURED = 100  # slots of one skip record whose lateness is measured

WAITING_RUN_RECHECK = timedelta(seconds=30)

NEAR_SLOT = timedelta(hours=1)  # a slot that comes within it replaces the retry of a refused wake

REPEATED_SLOT_GRACE = timedelta(minutes=1)


def slot_to_start(tick: Tick, entry: Entry, entry_row: EntryRow) -> tuple[EntryRow, datetime | None]:
    """The slot to run now, or None. All other slots that have passed are recorded as skipped.

    1. Only the latest slot can run. Slots within the backoff after failures are recorded as superseded.
    2. The slot runs within its grace, not counting the time in which the concurrency limit was reached, if the active hours are
       open. With `misfire: skip`, it does not run if it came due while the daemon was down or the machine asleep.
    3. A slot of a heartbeat is superseded if a wake started a run less than `wake_gap` before it.
    4. If no slot has passed, it may be one that the clock repeats, because it was set back.
    """
    entry_row = _skip_backed_off_slots(tick, entry_row)
    schedule, trigger = entry_row.schedule, entry_row.schedule.trigger
    horizon = tick.now - schedule.offset
    *earlier, (after, before) = _spans_without_records(tick.tx, entry_row, horizon)
    for begin, end in earlier:
        _record_span(tick, entry_row, begin, end, Skip.MISSED)
    passed = _record_span(tick, entry_row, after, before, None)
    settled = _settled_until(entry_row, horizon)
    if passed is None:
        return settled, _slot_of_repeated_time(tick.tx, entry_row, horizon)
    slot, due_at = passed.latest, passed.latest + schedule.offset
    is_late = (tick.no_capacity_since or tick.now) - due_at > entry.spec.grace
    if is_late or not entry.is_open_at(tick.now) or not (entry.catch_up or due_at >= tick.awake_since):
        _record_skipped(tick, entry_row, Skip.MISSED, passed)
        return settled, None
    if passed.count > 1:
        _record_skipped(tick, entry_row, Skip.MISSED, passed, passed.count - 1)
    woken_at = entry_row.last_woken_at if entry_row.kind is Kind.HEARTBEAT else None
    if woken_at is not None and slot < woken_at + tick.limits.wake_gap:
        slot_records.record_skip(tick.tx, entry_row, trigger, Skip.SUPERSEDED, slot)
        return expect_slot_after(settled, slot), None
    return settled, slot


def _skip_backed_off_slots(tick: Tick, entry_row: EntryRow) -> EntryRow:
    """Record the slots that the longer interval after failures leaves out."""
    backed_off_until = entry_row.backs_off_until
    if backed_off_until is None or backed_off_until <= entry_row.settled_until:
        return entry_row
    return skip_passed_slots(tick, entry_row, min(tick.now, backed_off_until - MILLISECOND), Skip.SUPERSEDED)


def _settled_until(entry_row: EntryRow, horizon: datetime) -> EntryRow:
    """The row after all slots up to `horizon` have records. A clock that was set back does not undo what has them already."""
    return entry_row._replace(settled_until=max(horizon, entry_row.settled_until))


def _slot_of_repeated_time(tx: Transaction, entry_row: EntryRow, horizon: datetime) -> datetime | None:
    """The slot of a fixed interval that comes due for the second time, because the clock was set back over it.

    A slot that the clock only jumped over is not run again.
    """
    if not entry_schedule.grid_period(entry_row.schedule_text) or not clock_changes.was_shown_before(tx, entry_row.settled_until):
        return None
    passed = entry_row.schedule.slots(max(entry_row.settled_until, horizon - REPEATED_SLOT_GRACE), horizon)
    return passed.latest if passed else None


def skip_passed_slots(tick: Tick, entry_row: EntryRow, until: datetime, reason: Skip) -> EntryRow:
    """Record every slot that came due up to `until` as skipped: by calendar or active hours if they exclude it, else `reason`."""
    schedule = entry_row.schedule
    horizon = until - schedule.offset
    for after, before in _spans_without_records(tick.tx, entry_row, horizon):
        _record_span(tick, entry_row, after, before, reason)
    if reason in EXCUSED_SKIPS:
        entry_row = expect_slot_after(entry_row, horizon)
    return _settled_until(entry_row, horizon)


def record_passed_slots(tick: Tick, entry_row: EntryRow, reason: Skip) -> EntryRow:
    """Record the passed slots before an entry changes: as paused, by its open run, or else by `reason`."""
    if entry_row.state != "active":
        return entry_row
    if entry_row.paused:
        return skip_paused_slots(tick.tx, entry_row, tick.now)
    run = runs.find_open_run(tick.tx.db, *entry_row.key)
    if run is not None:
        return skip_passed_slots(tick, entry_row, tick.now, reason_of_open_run(run))
    return skip_passed_slots(tick, _skip_backed_off_slots(tick, entry_row), tick.now, reason)


def reason_of_open_run(run: OpenRun) -> Skip:
    """Why an open run keeps a slot from running: if it has not started, what it waits for itself."""
    return run.waits_for if run.has_not_begun and run.state == "waiting" else Skip.ALREADY_RUNNING


def record_unplanned_slots(tick: Tick, entry_row: EntryRow) -> None:
    """Record the passed slots of an entry that is never due, because calendars exclude all of its slots."""
    if entry_schedule.allowed_days(entry_row.schedule_text) is not None:
        save_with_next_due(tick.tx, entry_row, record_passed_slots(tick, entry_row, Skip.MISSED))


def _spans_without_records(tx: Transaction, entry_row: EntryRow, horizon: datetime) -> list[tuple[datetime, datetime]]:
    """The time spans of (settled, horizon] whose slots have no records: all of it, unless the clock was set back over it."""
    after = entry_row.settled_until
    if not clock_changes.was_shown_before(tx, after):
        return [(after, horizon)]
    spans = []
    for first, last in slot_records.recorded_stretches(tx, entry_row, entry_row.schedule, after, horizon):
        if after < first - MILLISECOND:
            spans.append((after, first - MILLISECOND))
        after = max(after, last)
    return [*spans, (after, max(after, horizon))]


def _record_span(tick: Tick, entry_row: EntryRow, after: datetime, until: datetime, reason: Skip | None) -> AnySlotRange | None:
    """Record the slots in (after, until] that calendars or active hours exclude, and with a `reason` the others too.

    Returns those that they do not exclude.
    """
    schedule = entry_row.schedule
    for excluded_by, slots in schedule.closed_slots(after, until):
        _record_skipped(tick, entry_row, excluded_by, slots)
    passed = schedule.slots(after, until)
    if passed is not None and reason is not None:
        _record_skipped(tick, entry_row, reason, passed)
    return passed


def _record_skipped(tick: Tick, entry_row: EntryRow, reason: Skip, slots: AnySlotRange, first: int | None = None) -> None:
    """Record slots as skipped: all of them, or the `first` ones."""
    count, why = first or slots.count, None
    if reason is Skip.MISSED:
        _report_unstarted(tick, entry_row, slots.first, count)
        why = _why_missed(tick, slots.latest + entry_row.schedule.offset)
    slot_records.record_skip(tick.tx, entry_row, entry_row.schedule.trigger, reason, slots.first, count, why)


def _why_missed(tick: Tick, due_at: datetime) -> str | None:
    """Who had reached the concurrency limit when a missed slot came due; None if another run could have started."""
    is_full = tick.no_capacity_since is not None and tick.no_capacity_since <= due_at
    return tick.no_capacity_why() if is_full else None


def _report_unstarted(tick: Tick, entry_row: EntryRow, first: datetime, count: int) -> None:
    """Report for the metrics how late slots are that came due while the daemon was running and could not start."""
    offset = entry_row.schedule.offset
    if first + offset < tick.awake_since:
        return
    passed = entry_schedule.slots_between(entry_row.schedule, first - entry_schedule.MICROSECOND, tick.now - offset)
    missed = islice(passed, min(count, MAX_SLOTS_MEASURED))
    late = tuple((tick.now - slot - offset).total_seconds() for slot in missed)
    tick.tx.report(SlotsMissed(*entry_row.key, late))


def skip_paused_slots(tx: Transaction, entry_row: EntryRow, until: datetime) -> EntryRow:
    """Record all slots of a pause as one skip with a count, even slots outside the active hours."""
    schedule = entry_row.schedule
    horizon = until - schedule.offset
    for after, before in _spans_without_records(tx, entry_row, horizon):
        closed = [slots for _, slots in schedule.closed_slots(after, before)]
        parts = [part for part in (*closed, schedule.slots(after, before)) if part]
        if parts:
            first = min(part.first for part in parts)
            count = sum(part.count for part in parts)
            detail = entry_row.pause_says if entry_row.paused_by else None
            slot_records.record_skip(tx, entry_row, schedule.trigger, Skip.PAUSED, first, count, detail)
    return _settled_until(entry_row, horizon)


def end_pause_if_over(tick: Tick, entry_row: EntryRow) -> EntryRow:
    """End the pause of an entry if its time is over."""
    ends_at = entry_row.paused_until
    return entry_row if ends_at is None or ends_at > tick.now else end_pause(tick, entry_row, ends_at)


NO_PAUSE: Mapping[str, object] = {
    "paused_until": None,
    "paused_at": None,
    "paused_by": None,
    "paused_after_failures": 0,
    "failures_for_backoff": 0,
    "failures_for_pause": 0,
}
"""What ends a pause in a row."""


def end_pause(tick: Tick, entry_row: EntryRow, at: datetime) -> EntryRow:
    """End a pause at `at`. Its slots get one record, and its wakes start a run unless a slot comes soon.

    Earlier failures count no more: neither for a longer interval, nor for another pause.
    """
    if entry_row.state == "active":
        entry_row = skip_paused_slots(tick.tx, entry_row, at)
    notices.end_problem(tick, entry_row, PAUSED)  # also if a person has paused it for another time since
    resumed = entry_row._replace(**NO_PAUSE)
    if not slot_comes_by(tick, resumed, tick.now + NEAR_SLOT):
        has_slots = entry_row.schedule is not entry_schedule.NO_SCHEDULE
        wakes.start_waiting_wakes(tick.tx, *entry_row.key, tick.now, refused_only=has_slots)
    return resumed


def is_to_be_paused(entry: Entry, entry_row: EntryRow, result: AttemptResult) -> bool:
    """Whether this failure of an entry pauses it."""
    most = entry.spec.pause_after
    if result.outcome not in FAILURES or result.reason is Reason.CANCELLED:
        return False
    return 0 < most <= entry_row.failures_for_pause and entry_row.state == "active" and not entry_row.paused


def pause_after_failures(tick: Tick, entry_row: EntryRow, passed: Skip) -> EntryRow:
    """Pause an entry until it is resumed. The slots that have passed are recorded as `passed`."""
    settled = record_passed_slots(tick, entry_row, passed)
    number = settled.failures_for_pause
    by = format_count(number, "failure")
    tick.tx.report(PauseChanged(settled.kind, settled.name, True, by, None))
    return settled._replace(paused_until=UNTIL_RESUMED, paused_at=tick.now, paused_by=by, paused_after_failures=number)


def slot_comes_by(tick: Tick, entry_row: EntryRow, by: datetime) -> bool:
    """Whether a slot will start a run by then. A slot that a woken run replaces does not count."""
    slot = entry_row.next_slot_after(max(entry_row.settled_until, tick.now + tick.limits.wake_gap - MILLISECOND))
    return slot is not None and slot + entry_row.schedule.offset <= by


def with_next_due(tx: Transaction, entry_row: EntryRow) -> EntryRow:
    """The row of an entry without an open run. It is due at its next slot, a wake's start, or the end of its pause."""
    planned = with_due_at(entry_row, entry_row.pause_ends)
    times = (planned.slot_due_at, planned.due_at, wakes.next_start_at(tx, *entry_row.key))
    return planned._replace(due_at=min(filter(None, times), default=None))


def with_due_at(entry_row: EntryRow, due_at: datetime | None) -> EntryRow:
    """The row with its next slot, due at `due_at`: with an open run when its next attempt may start, None if it must end first.

    Its expected slot is the next one that must get an answer. There is none while the entry is paused or not active.
    """
    if entry_row.paused_until is not None or entry_row.state != "active":
        return entry_row._replace(slot=None, due_at=due_at, expected_at=None, expected_before=None)
    slot = entry_row.next_slot_after(entry_row.settled_until)
    planned = entry_row._replace(slot=slot, due_at=due_at)
    return _expect_slot(planned, planned.schedule, slot) if planned.expected_at is None else planned


def _expect_slot(entry_row: EntryRow, schedule: EntrySchedule, slot: datetime | None) -> EntryRow:
    if slot is None:
        return entry_row._replace(expected_at=None, expected_before=None)
    following = schedule.next(slot)
    return entry_row._replace(
        expected_at=slot + schedule.offset, expected_before=None if following is None else following + schedule.offset
    )


def expect_slot_after(entry_row: EntryRow, slot: datetime) -> EntryRow:
    """The row after a slot, or a wake at that time, was answered: the slot after it is expected, or a later one as before."""
    schedule, expected_at = entry_row.schedule, entry_row.expected_at
    following = schedule.next(slot)
    if following is not None and expected_at is not None and following + schedule.offset <= expected_at:
        return entry_row
    return _expect_slot(entry_row, schedule, following)


def count_slots(entry_row: EntryRow, slot: datetime, trigger: Trigger, result: AttemptResult) -> tuple[int, int]:
    """How many slots this result of a run answers and loses. Neither, if a wake has started the run.

    An asynchronous run counts when its result arrives, if a slot started the run. A run that a person cancelled counts as
    neither. An answer that was cut counts as lost, because of what it leaves out.
    """
    is_good = result.outcome in ANSWERED and not result.truncated
    is_cut = result.outcome in ANSWERED and result.truncated
    went_wrong = is_cut or result.outcome in FAILURES or (result.outcome is Outcome.SKIPPED and result.reason in LOST_SKIPS)
    is_bad = went_wrong and result.reason is not Reason.CANCELLED
    if not is_good and not is_bad:
        return 0, 0
    schedule = entry_row.schedule
    if trigger is Trigger.RESULT:
        is_slot = schedule.slots(slot - MILLISECOND, slot) is not None
    else:
        is_slot = trigger is schedule.trigger and schedule is not entry_schedule.NO_SCHEDULE
    return (int(is_good), int(is_bad)) if is_slot else (0, 0)


def expect_slot_after_result(entry_row: EntryRow, slot: datetime, result: AttemptResult) -> EntryRow:
    """The row after a run, with the slot that is to be answered next.

    After a failure only the next slot is expected, because failures have metrics of their own, and so after an answer that was
    cut. A result that never arrived is still expected.
    """
    has_ended = result.outcome in ANSWERED or (result.outcome in FAILURES and result.reason is not Reason.NO_RESULT)
    if has_ended or (result.outcome is Outcome.SKIPPED and result.reason in EXCUSED_SKIPS):
        return expect_slot_after(entry_row, slot)
    return entry_row


def excuse_slots(tx: Transaction, since: datetime, until: datetime) -> None:
    """Expect none of the slots in (since, until]: the daemon was being restarted, or the machine was suspended.

    An entry that should have answered earlier is still expected to do so.
    """
    for entry_row in entries.entries_expected_between(tx, since, until):
        entries.change_entry(tx, entry_row, expect_slot_after(entry_row, until - entry_row.schedule.offset))


def save_with_next_due(tx: Transaction, before: EntryRow, after: EntryRow) -> None:
    """Save an entry row with its next due time, whether or not it has an open run."""
    run = runs.find_open_run(tx.db, *after.key)
    entries.change_entry(tx, before, with_due_at(after, run.not_before) if run else with_next_due(tx, after))


def next_due_after(entry_row: EntryRow, slot: datetime) -> datetime | None:
    """When the first slot after `slot` without a record comes due."""
    schedule = entry_row.schedule
    following = schedule.next(max(slot, entry_row.settled_until))
    return following and following + schedule.offset


def retry_waiting_run(tx: Transaction, entry_row: EntryRow, reason: Skip) -> None:
    """Let a waiting run try to start now, if it waits for `reason`."""
    if runs.retry_waiting_run_now(tx, entry_row, reason):
        save_with_next_due(tx, entry_row, entry_row)


def next_look_at_waiting_run(
    tx: Transaction, entry: Entry, entry_row: EntryRow, slot: datetime, wait: timedelta | None = None
) -> datetime:
    """When to check again whether a waiting run may start: in 30 s, or after `wait`, or earlier if its time is over."""
    ends = (tx.now + (wait or WAITING_RUN_RECHECK), next_due_after(entry_row, slot), entry.closes_at(tx.now))
    return min(end for end in ends if end is not None)


def may_still_run(tx: Transaction, entry: Entry, entry_row: EntryRow, slot: datetime, at: datetime | None = None) -> bool:
    """Whether a run may start now, or `at` a later time: not paused, before the next slot, and before the present hours end."""
    following, closes = next_due_after(entry_row, slot), entry.closes_at(tx.now) if at else None
    is_in_time = all(end is None or end > (at or tx.now) for end in (following, closes))
    return is_in_time and not entry_row.paused and entry.is_open_at(tx.now)

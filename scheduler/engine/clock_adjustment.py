"""Detects changes of the system clock, and adjusts slots, waiting times and fixed intervals to them.

There are three cases (`store/clock_changes`): the clock was ahead and is corrected, it was behind and is corrected, or it is set
back for good. Run records are deleted only in the first case, and only those of slots that were never claimed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from scheduler.engine import planning
from scheduler.model import entry_schedule
from scheduler.model.daemon_health import EngineHealth
from scheduler.model.entry_row import EntryRow
from scheduler.model.outcome import Key, Kind
from scheduler.store import boots, clock_changes, entries, slot_records
from scheduler.store.clock_changes import ClockSetBack
from scheduler.store.transaction import Transaction
from scheduler.system.log import log_event

SECOND = timedelta(seconds=1)
CLOCK_CHANGE_THRESHOLD = timedelta(seconds=5)  # system and monotonic clock may drift apart by less without a clock change
# A tick that starts later is logged: the process was stopped, or the machine is overloaded.
FREEZE_THRESHOLD = timedelta(seconds=20)
RESTART_TIME = timedelta(minutes=1)  # a stop of the daemon that is no longer is no hint of a clock change

NOT_SUSPENDED = timedelta()


@dataclass(frozen=True, slots=True)
class ClockReading:
    """Both clocks at one instant: the system time (aware, UTC), and the seconds of the monotonic clock.

    `slept` is for how many seconds the machine was suspended since it was started: the monotonic clock does not count them.
    """

    now: datetime
    monotonic: float
    slept: float = 0.0


@dataclass(frozen=True, slots=True)
class ClockNews:
    """What has happened to the clocks and is not recorded yet.

    `change` is that of the system clock, `slept` how long the machine was suspended, as part of it. `freeze` is how late ticks
    have started, `was_stopped` whether a signal had stopped the process.
    """

    change: timedelta
    slept: timedelta
    freeze: timedelta
    was_stopped: bool


class ClockWatch:
    """Compares the system clock and the monotonic clock at each tick.

    `awake_since` is when the daemon was started, or its machine last woke up.
    """

    awake_since: datetime

    def __init__(self, health: EngineHealth) -> None:
        self.was_stopped = False  # by a signal, since the last tick
        self._health = health
        self._change = self._slept = self._freeze = timedelta()
        self._last: ClockReading | None = None
        self._next_tick_at: float | None = None
        self._starts: dict[Key, float] = {}  # when each entry's last slot was started, by the monotonic clock

    def start(self, reading: ClockReading) -> None:
        """The daemon starts now."""
        self._last, self.awake_since = reading, reading.now

    def see(self, reading: ClockReading) -> bool:
        """A tick starts. Returns whether the system clock has changed since the last one: it differs from the monotonic clock."""
        last, self._last = self._last or reading, reading
        change = (reading.now - last.now) - timedelta(seconds=reading.monotonic - last.monotonic)
        has_changed = abs(change) >= CLOCK_CHANGE_THRESHOLD
        if has_changed:
            self._note_change(change, timedelta(seconds=max(0.0, reading.slept - last.slept)))
        # By the monotonic clock, which stands still while the machine is suspended.
        late = timedelta() if self._next_tick_at is None else timedelta(seconds=reading.monotonic - self._next_tick_at)
        if late >= FREEZE_THRESHOLD:
            log_event(logging.WARNING, "frozen", late=late, cause=boots.STOPPED if self.was_stopped else None)
            self._freeze += late
        return has_changed

    def _note_change(self, change: timedelta, slept: timedelta) -> None:
        direction = "forward" if change > timedelta() else "backward"
        self._health.clock_changes[direction] += 1
        log_event(logging.WARNING, "clock_jumped", direction=direction, by=change, slept=slept or None)
        self._change += change
        self._slept += slept
        if change > timedelta() and self._last is not None:
            self.awake_since = self._last.now

    def expect_tick(self, reading: ClockReading, at: datetime) -> None:
        """The next tick is due at `at`. If that is in the past, it waits for the concurrency limit, and is not late."""
        self._next_tick_at = reading.monotonic + max((at - reading.now).total_seconds(), 0.0)

    @property
    def news(self) -> ClockNews:
        """What the next tick is to record."""
        return ClockNews(self._change, self._slept, self._freeze, self.was_stopped)

    def forget(self, news: ClockNews) -> None:
        """This is recorded."""
        self._change, self._slept = self._change - news.change, self._slept - news.slept
        self._freeze -= news.freeze
        self.was_stopped = self.was_stopped and bool(self._freeze)

    def note_start(self, key: Key, reading: ClockReading) -> None:
        """A slot of this entry is started now."""
        self._starts[key] = reading.monotonic

    def time_since_start(self, kind: Kind, name: str) -> timedelta | None:
        """The elapsed time since an entry's last slot was started; None if unknown."""
        started = self._starts.get((kind, name))
        return None if started is None or self._last is None else timedelta(seconds=self._last.monotonic - started)


SinceStart = Callable[[Kind, str], timedelta | None]
"""The elapsed time since an entry's last slot was started; None if unknown."""


def follow_clock_change(tx: Transaction, by: timedelta, since_start: SinceStart, *, slept: timedelta = NOT_SUSPENDED) -> None:
    """Adjust everything to a clock that was changed by `by`. `slept` is for how long of it the machine was suspended."""
    clock_changes.record_clock_change(tx, by, slept=slept)
    clock_changes.move_beginnings(tx, by - slept)
    if by < timedelta():
        _follow_set_back(tx, -by, since_start)
    else:
        _skip_to_former_time(tx)
        planning.excuse_slots(tx, tx.now - by, tx.now)


def follow_clock_while_down(tx: Transaction, last_seen: datetime | None) -> None:
    """Adjust everything to a clock change while the daemon was down. `last_seen` is its last tick; None on the first start.

    A command may have added entries since then.
    """
    seen = max((instant for instant in (last_seen, entries.newest_first_seen_at(tx.db)) if instant is not None), default=None)
    if seen is None:
        return
    by = tx.now - seen
    if by <= -CLOCK_CHANGE_THRESHOLD:
        follow_clock_change(tx, by, lambda *_: None)  # no entry was started since the daemon started
    elif by > RESTART_TIME:
        clock_changes.record_clock_change(tx, by, down=True)
        _skip_to_former_time(tx)


def _skip_to_former_time(tx: Transaction) -> None:
    """A clock that was behind is right again. All slots before its former time have records already, so they are settled."""
    behind = clock_changes.read_clock_history(tx.db).returned
    if behind is None:
        return
    for entry_row in entries.all_entries(tx.db):
        if entry_row.settled_until < behind.undone_to:
            back = entry_row._replace(anchor=_anchor_before_change(tx, entry_row, behind), settled_until=behind.undone_to)
            planning.save_with_next_due(tx, entry_row, back)


def _anchor_before_change(tx: Transaction, entry_row: EntryRow, behind: ClockSetBack) -> datetime:
    """The anchor of an entry before it was moved because the clock was set back."""
    before = entries.latest_past_state(tx.db, *entry_row.key)
    moved = before is not None and (before.state, before.schedule_text, before.until) == (
        entry_row.state,
        entry_row.schedule_text,
        behind.at,
    )
    return before.anchor if before is not None and moved else entry_row.anchor


def _follow_set_back(tx: Transaction, by: timedelta, since_start: SinceStart) -> None:
    meaning = clock_changes.read_clock_history(tx.db).set_back
    assert meaning is not None
    clock_changes.limit_future_times(tx, never_was=bool(meaning.undone))
    for entry_row in entries.all_entries(tx.db):
        after = _restore_skipped_slots(tx, entry_row, meaning) if meaning.undone else entry_row
        after = (
            _move_fixed_schedule(tx, after, by, since_start)
            if entry_schedule.grid_period(entry_row.schedule_text)
            else _keep_local_schedule(tx, after)
        )
        seen = min(entry_row.first_seen_at, tx.now)
        planning.save_with_next_due(tx, entry_row, after._replace(first_seen_at=seen, expected_at=None, expected_before=None))


def _restore_skipped_slots(tx: Transaction, entry_row: EntryRow, meaning: ClockSetBack) -> EntryRow:
    """Delete skips of slots that have not come yet by the corrected clock, so that these slots can run."""
    if entry_row.schedule is entry_schedule.NO_SCHEDULE:
        return entry_row
    since = meaning.never_been - entry_row.schedule.offset
    first = slot_records.delete_future_skips(tx, entry_row, entry_row.schedule, since)
    return entry_row if first is None else entry_row._replace(settled_until=min(first, entry_row.settled_until))


def _keep_local_schedule(tx: Transaction, entry_row: EntryRow) -> EntryRow:
    """A cron schedule follows local time. Slots of a repeated time do not run again if the entry existed before."""
    if tx.now >= entry_row.first_seen_at:
        return entry_row
    return entry_row._replace(settled_until=min(entry_row.settled_until, tx.now - entry_row.schedule.offset))


def _move_fixed_schedule(tx: Transaction, entry_row: EntryRow, by: timedelta, since_start: SinceStart) -> EntryRow:
    """A fixed interval keeps its anchor if its next slot is still in time; otherwise the anchor moves with the clock."""
    back = timedelta() if _next_slot_is_in_time(tx, entry_row, since_start) else -(-by // SECOND) * SECOND  # whole seconds
    settled = min(entry_row.settled_until - back, tx.now - entry_row.schedule.offset)
    return entry_row._replace(anchor=entry_row.anchor - back, settled_until=settled)


def _next_slot_is_in_time(tx: Transaction, entry_row: EntryRow, since_start: SinceStart) -> bool:
    """Whether an entry with its present anchor runs within one interval of elapsed time, or only later because of its hours."""
    period, now = entry_schedule.grid_period(entry_row.schedule_text), tx.now - entry_row.schedule.offset
    if period is None or entry_row.anchor > now:
        return False
    following = entry_row.schedule.next(now)
    if entry_row.state != "active" or following is None or following - now > period:
        return True
    since = since_start(*entry_row.key)
    return since is not None and since + (following - now) <= period + SECOND

"""Records changes of the system clock, and decides whether the latest one is a correction or permanent.

A change is a difference between the system clock and the monotonic clock. The changes on record are replayed in order: a clock
that was ahead and is set right is treated differently from one that is set behind the true time.

At the end stands what a change does to the times on record, column by column, in both kinds of database. Why the other columns
stay as they are is in tests/store/test_recorded_times.py.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from scheduler.model.outcome import LONGEST_RETRY_DELAY
from scheduler.model.timestamps import MILLISECOND, from_millis, to_millis
from scheduler.store.breakers import PROBE_EVERY
from scheduler.store.lane_holds import MAX_HOLD
from scheduler.store.rows import insert_row
from scheduler.store.transaction import Transaction, first_time, recall

NOT_SUSPENDED = timedelta()
SLEEP_TOLERANCE = timedelta(seconds=30)  # a clock may be corrected by so much right after the machine has resumed
SETTLES = timedelta(hours=1)
"""For so long after a change nothing is given up: the clock may yet be set right. Also how far off that correction may be."""


@dataclass(frozen=True, slots=True)
class ClockChange:
    """A change of the system clock: `at` is what it showed right after, `by` how far it moved (negative: back).

    `slept` is for how long of it the machine was suspended. If the system does not report that, a machine that was suspended
    looks the same as a clock that was set ahead.
    """

    at: datetime
    by: timedelta
    slept: timedelta = timedelta()

    @property
    def is_sleep(self) -> bool:
        """Whether the clock is right, and the machine was suspended: that explains nearly all of the change."""
        return timedelta() < self.by <= self.slept + SLEEP_TOLERANCE and self.slept > timedelta()


@dataclass(frozen=True, slots=True)
class ClockSetBack:
    """A clock that was set back to `at`.

    `undone` is how much of an earlier change ahead that takes back; it goes `beyond` by the rest.

    `been_until`: up to this time the times that are taken back had really been, before the change ahead; None: none had.
    """

    at: datetime
    undone: timedelta
    beyond: timedelta
    been_until: datetime | None = None

    @property
    def undone_to(self) -> datetime:
        """Where the clock stood after it took back the change ahead, and before it went further back."""
        return self.at + self.beyond

    @property
    def never_been(self) -> datetime:
        """From this time on nothing has really happened yet: only a clock that was ahead showed these times."""
        return self.undone_to if self.been_until is None else max(self.undone_to, self.been_until)


def record_clock_change(tx: Transaction, by: timedelta, *, down: bool = False, slept: timedelta = NOT_SUSPENDED) -> None:
    """Record that the system clock has just changed. `down`: no daemon ran for so long, so the change is only possible."""
    values = {"at": tx.now, "by_ms": by // MILLISECOND, "down": int(down), "slept_ms": slept // MILLISECOND}
    insert_row(tx.db, "jump", values)


def changed_recently(tx: Transaction) -> bool:
    """Whether the clock changed within the last hour, or a daemon started that cannot know whether it did."""
    until = settles_at(tx)
    return until is not None and tx.now < until


def settles_at(tx: Transaction) -> datetime | None:
    """Until when nothing is given up by the clock because of the latest change, or of such a start; None if there was none."""
    last = recall(tx.db, "select at from jump where id = (select max(id) from jump)", lambda rows: rows and first_time(rows))
    return last + SETTLES if last else None


@dataclass(slots=True)
class _SetAhead:
    """A change ahead. `returned` is the set-back from which the clock returned by it."""

    by: timedelta
    returned: ClockSetBack | None


@dataclass(slots=True)
class ClockHistory:
    """All changes so far: those ahead that were not taken back, and the set-backs from which the clock has not returned.

    `set_back` is what the last change means if it set the clock back. `returned` is the earlier set-back from which the clock has
    returned by it: it shows the time at which it was set back, or a later one.
    """

    ahead: list[_SetAhead]
    behind: list[ClockSetBack]
    set_back: ClockSetBack | None = None
    returned: ClockSetBack | None = None

    def go_ahead(self, at: datetime, by: timedelta) -> None:
        """Apply a change ahead to `at`."""
        reached = [each for each in self.behind if at - by < each.undone_to <= at]
        self.returned = max(reached, key=lambda each: each.undone_to, default=None)
        self.set_back = None
        self.behind = [each for each in self.behind if each.undone_to > at]
        self.ahead.append(_SetAhead(by, self.returned))

    def go_back(self, at: datetime, by: timedelta) -> None:
        """Apply a change back to `at`. It takes back the latest changes ahead, unless they explain less than half of it.

        In that case they are unrelated: the machine was asleep or off, and its clock is wrong now.
        """
        found = _set_back_value(at, by, sum((each.by for each in self.ahead), timedelta()))
        again = self._undo(found.undone, found.undone_to) if found.undone else []
        if not found.undone:
            self.ahead = []
        else:
            self.behind = [each for each in self.behind if each.undone_to <= found.undone_to] + again
        self.returned = None
        self.set_back = replace(found, been_until=max((each.undone_to for each in again), default=None))
        if found.beyond:
            self.behind.append(self.set_back)

    def _undo(self, by: timedelta, to: datetime) -> list[ClockSetBack]:
        """Take back the latest changes ahead; returns the set-backs that count again because of that."""
        again = []
        while self.ahead and by > timedelta():
            last = self.ahead[-1]
            part = min(last.by, by)
            by, last.by = by - part, last.by - part
            if last.returned and to < last.returned.undone_to:
                again.append(last.returned)
                last.returned = None
            if not last.by:
                self.ahead.pop()
        return again


def read_clock_history(db: sqlite3.Connection) -> ClockHistory:
    """All changes on record, applied in their order."""
    course = ClockHistory([], [])
    for row in db.execute("select at, by_ms from jump order by id"):
        at, by = from_millis(row["at"]), timedelta(milliseconds=row["by_ms"])
        if by > timedelta():
            course.go_ahead(at, by)
        else:
            course.go_back(at, -by)
    return course


def _set_back_value(at: datetime, by: timedelta, ahead: timedelta) -> ClockSetBack:
    if by > 2 * ahead:
        return ClockSetBack(at, timedelta(), by)
    beyond = by - ahead if by > ahead + SETTLES else timedelta()
    return ClockSetBack(at, by - beyond, beyond)


def was_shown_before(tx: Transaction, instant: datetime) -> bool:
    """Whether the clock has shown this instant before, so that there may be rows of it."""
    ahead_until = recall(tx.db, "select max(at - by_ms) from jump where by_ms < 0", first_time)
    return ahead_until is not None and instant <= ahead_until


def clock_changes_between(db: sqlite3.Connection, since: datetime, until: datetime) -> list[ClockChange]:
    """The changes that overlap a time: they began or ended in it."""
    rows = db.execute(
        "select at, by_ms, slept_ms from jump"
        " where down = 0 and max(at, at - by_ms) >= ? and min(at, at - by_ms) < ? order by id",
        (to_millis(since), to_millis(until)),
    )
    return [
        ClockChange(from_millis(row["at"]), timedelta(milliseconds=row["by_ms"]), timedelta(milliseconds=row["slept_ms"]))
        for row in rows
    ]


LONGEST_ASYNC = timedelta(hours=24)  # no async_timeout is longer

MOVED: Mapping[str, str] = {
    "problem": "update problem set since = since + :by where over_at is null",
    "question": "update question set asked_at = asked_at + :by, waits_since = waits_since + :by, ends_at = ends_at + :by"
    " where state = 'open'",
    "wake": "update wake set due_at = due_at + :by where state = 'planned' and timer = 1",
}
"""At each change: what is wrong has lasted for as long as before, and what was to come in 30 minutes comes then."""

SET_BACK: Mapping[str, str] = {
    "breaker": "update breaker set opened_at = min(opened_at, :now), probe_at = min(probe_at, :probe),"
    " half_open_at = min(half_open_at, :probe)",
    "digest": 'update digest set until_at = min(until_at, :now + "window")',
    "entry": "update entry set last_woken_at = min(last_woken_at, :now), last_ended_at = min(last_ended_at, :now),"
    " last_success_at = min(last_success_at, :now), looked_at = min(looked_at, :now)",
    "former": "update former set until_at = min(until_at, :now)",
    # A hold of a command is by the clock of the database server.
    "hold": "update hold set until_at = min(until_at, :hold) where holder not like 'heartbeatd busy%'",
    # A message that was held back waits no longer than was planned. One that failed is tried again now. For one that waits for
    # the hours of its recipient ('[]'), the next hours are found anew. A message that a person wants again
    # ("again 7 after reply 8") keeps its time, which was chosen by the clock on the wall.
    "outbox": "update outbox set not_before = min(not_before, case when coalesce(awaits, '[]') = '[]' then :now"
    " else :now + max(0, not_before - created_at) end), created_at = min(created_at, :now),"
    " awaits = nullif(awaits, '[]')"
    " where state in ('pending', 'sending', 'uncertain', 'held')"
    " and not (coalesce(awaits, '') = '[]' and coalesce(notice, '') like 'again %')",
    "problem": "update problem set since = min(since, :now), last_seen_at = min(last_seen_at, :now),"
    " opened_at = min(opened_at, :now), over_at = min(over_at, :now), acked_at = min(acked_at, :now),"
    " openings = (select json_group_array(min(cast(value as bigint), :now))"
    " from json_each(case when json_valid(openings) then openings else '[]' end))",
    "problem_notice": "update problem_notice set told_at = min(told_at, :now)",
    "rejected_wake": "update rejected_wake set first_at = min(first_at, :now), at = min(at, :now) where at > :now",
    "run": "update run set started_at = min(started_at, :now),"
    " not_before = case state when 'waiting' then min(not_before, :retry) else not_before end"
    " where state in ('running', 'waiting')",
    "run with an awaited result": "update run set result_due_at = min(result_due_at, :result) where result_due_at is not null",
    # The time of a reminder was chosen by the clock on the wall, or has been moved already.
    "wake": "update wake set due_at = case when state = 'planned' then due_at else min(due_at, :now) end,"
    " held_until = min(held_until, :now), updated_at = min(updated_at, :now)",
}
"""After the clock was set back: nothing has happened in the future, and nothing waits for longer than it usually does."""

NEVER_WAS: Mapping[str, str] = {
    "boot": "update boot set started_at = min(started_at, :now), last_tick_at = min(last_tick_at, :now),"
    " ended_at = min(ended_at, :now)",
    "config_event": "update config_event set at = min(at, :now)",
    "config_in_force": "update config_in_force set at = min(at, :now)",
}
"""Only if it was set back from a time that never was. Otherwise the daemon did run at these times."""


def move_beginnings(tx: Transaction, by: timedelta) -> None:
    """After the system clock was changed: what is wrong has lasted for as long as before."""
    for statement in MOVED.values():
        tx.db.execute(statement, {"by": by // MILLISECOND})


def limit_future_times(tx: Transaction, *, never_was: bool) -> None:
    """After the system clock was set back: move times in the future to now, and shorten waits to their usual length.

    `never_was`: the clock was ahead before, so that the times after now have never been.
    """
    latest = {"now": timedelta(), "retry": LONGEST_RETRY_DELAY, "result": LONGEST_ASYNC, "hold": MAX_HOLD, "probe": PROBE_EVERY}
    values = {name: to_millis(tx.now + ahead) for name, ahead in latest.items()}
    for statement in (*SET_BACK.values(), *(NEVER_WAS.values() if never_was else ())):
        tx.db.execute(statement, values)

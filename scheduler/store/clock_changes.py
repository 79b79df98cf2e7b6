"""Jumps of the wall clock: when it moved beside the steady one, how far, and what that says of the times before and after."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from scheduler.model.timestamps import EPOCH, MILLISECOND, from_millis, to_millis
from scheduler.store.transaction import Transaction

SETTLES = timedelta(hours=1)
"""How long after a jump nothing is given up by the clock, which may yet be set right, and how far off that may be."""


@dataclass(frozen=True, slots=True)
class ClockChange:
    """`at` is what the clock showed right after it, `by` how far it had moved; back is negative.

    A machine that was suspended looks the same as a clock that was put forward.
    """

    at: datetime
    by: timedelta


@dataclass(frozen=True, slots=True)
class ClockSetBack:
    """A clock that was set back to `at`: by `undone` it takes back what it had jumped ahead, and by `beyond` it goes behind that.

    `been_until` is up to where the time that it takes back had really been before the jump ahead; None where it had not.
    """

    at: datetime
    undone: timedelta
    beyond: timedelta
    been_until: datetime | None = None

    @property
    def undone_to(self) -> datetime:
        """The time to which the clock goes back by what it takes back; from there it goes behind."""
        return self.at + self.beyond

    @property
    def never_been(self) -> datetime:
        """The time from which on nothing has really been yet; it was only shown by a clock that was ahead."""
        return self.undone_to if self.been_until is None else max(self.undone_to, self.been_until)


def record_clock_change(tx: Transaction, by: timedelta, *, down: bool = False) -> None:
    """Remember that the clock has just jumped; `down`: that no daemon ran for so long, so that nobody knows whether it did."""
    tx.db.execute("insert into jump (at, by_ms, down) values (?, ?, ?)", (to_millis(tx.now), by // MILLISECOND, int(down)))
    tx.clock_was_ahead_until = None


def changed_recently(tx: Transaction) -> bool:
    """Whether the clock jumped within the last hour, or a daemon began that cannot know whether it did."""
    until = settles_at(tx)
    return until is not None and tx.now < until


def settles_at(tx: Transaction) -> datetime | None:
    """Until when nothing is given up because of the latest jump, or of a start of that kind; None where there was none."""
    row = tx.db.execute("select at from jump order by id desc limit 1").fetchone()
    return from_millis(row["at"]) + SETTLES if row else None


def latest_set_back(db: sqlite3.Connection) -> ClockSetBack | None:
    """What the latest jump means, if it went back."""
    last = _read_clock_history(db)
    return last.set_back if last else None


def latest_return(db: sqlite3.Connection) -> ClockSetBack | None:
    """The clock that was set back, and by the latest jump has come to, or past, where it had been; None where none has."""
    last = _read_clock_history(db)
    return last.returned if last else None


@dataclass(slots=True)
class _SetAhead:
    """A jump ahead; `returned` is the clock that had been set back and by this jump has come to where it had been."""

    by: timedelta
    returned: ClockSetBack | None


@dataclass(slots=True)
class _ClockHistory:
    """What the jumps so far come to: those ahead that nothing has undone, and the times that the clock was set back from.

    `set_back` and `returned` are what the last of them was.
    """

    ahead: list[_SetAhead]
    behind: list[ClockSetBack]
    set_back: ClockSetBack | None = None
    returned: ClockSetBack | None = None

    def go_ahead(self, at: datetime, by: timedelta) -> None:
        """A jump ahead to `at`."""
        reached = [each for each in self.behind if at - by < each.undone_to <= at]
        self.returned = max(reached, key=lambda each: each.undone_to, default=None)
        self.set_back = None
        self.behind = [each for each in self.behind if each.undone_to > at]
        self.ahead.append(_SetAhead(by, self.returned))

    def go_back(self, at: datetime, by: timedelta) -> None:
        """A jump back to `at`: it undoes the latest jumps ahead, unless these explain less than half of it.

        Then they have nothing to do with it: the machine slept, or was off, and now its clock is wrong.
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
        """Take the latest jumps ahead back; gives the clocks that are behind again by that."""
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


def _read_clock_history(db: sqlite3.Connection) -> _ClockHistory | None:
    course = None
    for row in db.execute("select at, by_ms from jump order by id"):
        course = course or _ClockHistory([], [])
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
    """Whether the clock has shown this instant before, so that it may have rows. One question a turn answers it for all."""
    if tx.clock_was_ahead_until is None:
        row = tx.db.execute("select max(at - by_ms) from jump where by_ms < 0").fetchone()
        tx.clock_was_ahead_until = EPOCH if row[0] is None else from_millis(row[0])
    return instant <= tx.clock_was_ahead_until


def clock_changes_between(db: sqlite3.Connection, since: datetime, until: datetime) -> list[ClockChange]:
    """The jumps that touch a time: that began, or ended, in it."""
    rows = db.execute(
        "select at, by_ms from jump where not down and max(at, at - by_ms) >= ? and min(at, at - by_ms) < ? order by id",
        (to_millis(since), to_millis(until)),
    )
    return [ClockChange(from_millis(row["at"]), timedelta(milliseconds=row["by_ms"])) for row in rows]


def delete_old_clock_changes(tx: Transaction, keep: timedelta) -> None:
    """They are remembered no longer than the history, of times to come too."""
    tx.db.execute("delete from jump where max(at, at - by_ms) < ?", (to_millis(tx.now - keep),))

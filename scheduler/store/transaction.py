"""One write transaction on the database: its connection, its time, its owner, and the events to publish after the commit.

The connection writes each changed row of an entry once, before the next query that can see it.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from itertools import compress, islice
from operator import ne
from typing import TYPE_CHECKING, Any, TypeVar

from scheduler.model.budget import Amount, BudgetDay, Scope, Spent
from scheduler.model.entry_row import EntryRow
from scheduler.model.events import Event
from scheduler.model.outcome import Key
from scheduler.model.timestamps import EPOCH, MILLISECOND, from_optional_millis

T = TypeVar("T")


@dataclass(slots=True)
class Transaction:
    """Everything that a function of the store needs in order to write.

    Rows carry `now`, the daemon process that writes them (`owner`, its instance id) and the active config (`config_hash`).
    The other fields keep what is queried once for all entries.
    """

    db: UnitOfWork
    now: datetime
    owner: str
    config_hash: str = ""
    events: list[Event] = field(default_factory=list)
    checked_items: dict[str, dict[str, datetime]] = field(default_factory=dict)  # of the agents whose runs are claimed next
    unknown_usd: dict[tuple[str, BudgetDay], tuple[Spent, float]] = field(default_factory=dict)  # by limit: spend.unknown_usd
    month_shares: dict[Scope, Amount] | None = None  # see spend.largest_shares

    @classmethod
    def for_reading(cls, db: sqlite3.Connection, now: datetime) -> Transaction:
        """For functions that read the same as in a tick, from a connection outside of any transaction."""
        return cls(UnitOfWork(db), now, "")

    def report(self, event: Event) -> None:
        """Record an event. It is published only if the transaction commits."""
        self.events.append(event)

    def run_part(self, act: Callable[[], T], on_error: Callable[[Exception], T]) -> T:
        """Run a part of the transaction. If it raises, its rows and its events are undone, and `on_error` gets the exception.

        Errors of SQLite are raised, because the whole transaction will be rolled back. A part that writes nothing takes no
        statement. Otherwise its savepoint takes 2 µs, and a beat about 100.
        """
        db, reported = self.db, len(self.events)
        before = db.changed.copy(), db.slot_counts.copy()  # a rollback also undoes the writing of rows that were changed before
        db.parts += 1
        try:
            done = act()
        except sqlite3.Error:
            raise
        except Exception as error:  # noqa: BLE001 (any error; the other parts are not affected)
            db.undo_part()
            db.changed, db.slot_counts = before
            del self.events[reported:]
            return on_error(error)
        if db.begun == db.parts:
            db.release_savepoint()
        db.parts -= 1
        return done


# Some columns have older names than their fields. Columns are read by position: names would take three times as long.
FORMER_NAMES = {"schedule_text": "pace"}
COLUMNS = tuple(FORMER_NAMES.get(field, field) for field in EntryRow._fields)

MAX_KEPT_ROWS = 2000  # of entries with a run in progress, from one transaction to the next

SLOT_COUNTS = ("good_slots", "bad_slots")  # only the metrics show these columns, so they are no fields of a row


if TYPE_CHECKING:  # functions that only read take this, or a connection outside of any transaction
    Connection = sqlite3.Connection
else:
    Connection = object


class UnitOfWork(Connection):
    """Executes statements like the connection that it is made of.

    A run reads and changes its entry's row in several steps of one transaction, and a tick changes hundreds of rows in the same
    columns. So a changed row stays here until a statement names the table `entry`, or the transaction ends. Then all changed rows
    are written, those with the same columns by one `executemany`.

    What is rare, such as a waiting wake, is queried for each run. So such an answer stays here until a statement writes to one of
    the tables that the query names.
    """

    def __init__(self, connection: sqlite3.Connection, last: UnitOfWork | None = None) -> None:
        """`last` is the last transaction, if it was committed, and nobody has written since."""
        self._connection = connection
        self._changes_before = connection.total_changes
        # As stored, also of the rows that were read in this transaction.
        self._known: dict[Key, EntryRow] = last.rows_in_progress() if last else {}
        self.recalled: dict[str, Any] = last.recalled if last else {}  # by query
        self._recalled_of: dict[str, set[str]] = last._recalled_of if last else {}  # these queries, by the tables that they name
        self.changed: dict[Key, tuple[EntryRow, EntryRow]] = {}  # as stored, and as it is now
        self.slot_counts: dict[int, tuple[int, int]] = {}  # to add to the numbers of answered and lost slots, by id
        self.parts = 0  # that have begun, and can be undone
        self.begun = 0  # of these, the outermost ones, those for which the database has a savepoint

    def execute(self, statement: str, values: Any = ()) -> sqlite3.Cursor:
        """Execute a statement. It sees every changed row."""
        effect = _effect_of(statement)
        if effect.writes or (effect.names_entries and (self.changed or self.slot_counts)):
            self._prepare_for(effect)
        return self._connection.execute(statement, values)

    def executemany(self, statement: str, values: Iterable[Any]) -> sqlite3.Cursor:
        """Execute a statement once for each of these values."""
        self._prepare_for(_effect_of(statement))
        return self._connection.executemany(statement, values)

    def read_to_recall(self, query: str) -> list[sqlite3.Row]:
        """The rows of a query whose answer is kept until a statement writes to one of its tables."""
        effect = _effect_of(query)
        self._prepare_for(effect)
        for table in effect.tables:
            self._recalled_of.setdefault(table, set()).add(query)
        return self._connection.execute(query).fetchall()

    def _prepare_for(self, effect: _Effect) -> None:
        if effect.names_entries:
            self.write_changes()
        if not effect.writes:
            return
        if self.begun < self.parts:
            self._begin_savepoints()
        if not effect.tables:
            self.recalled.clear()  # it is not known which table it writes
        else:
            self._forget(effect.tables[0])
        if effect.names_entries:
            self._known.clear()

    def _forget(self, table: str) -> None:
        """Forget what was recalled of a table that a statement is about to write."""
        for query in self._recalled_of.pop(table, ()):
            self.recalled.pop(query, None)

    @property
    def has_written(self) -> bool:
        """Whether this transaction has changed anything."""
        self.write_changes()
        return self._connection.total_changes > self._changes_before

    def know_entry(self, row: EntryRow) -> None:
        """Keep a row that was just read, so that it is read once."""
        self._known[row.key] = row

    def known_entry(self, key: Key) -> EntryRow | None:
        """The row of an entry with its changes, if this transaction has read or changed it."""
        changed = self.changed.get(key)
        return changed[1] if changed else self._known.get(key)

    def change_entry(self, before: EntryRow, after: EntryRow) -> None:
        """Change a row, by the fields in which `after` differs from `before`. Other changes since `before` are kept."""
        key = before.key
        self._forget("entry")
        if (pending := self.changed.get(key)) is None:
            self.changed[key] = (before, after)
            return
        first, current = pending
        if current is not before:
            after = EntryRow._make(value if now == was else now for value, was, now in zip(current, before, after, strict=True))
        self.changed[key] = (first, after)

    def rows_in_progress(self) -> dict[Key, EntryRow]:
        """Of the first MAX_KEPT_ROWS known rows, those that are not due before their run ends, for the next transactions."""
        known = islice(self._known.items(), MAX_KEPT_ROWS)
        return {key: row for key, row in known if row.due_at is None and row.state == "active"}

    def count_slots(self, entry_id: int, good: int = 0, bad: int = 0) -> None:
        """Add to the numbers of answered and of lost slots of an entry. They never decrease."""
        self._forget("entry")
        good_before, bad_before = self.slot_counts.get(entry_id, (0, 0))
        self.slot_counts[entry_id] = good_before + good, bad_before + bad

    def write_changes(self) -> None:
        """Write all changed rows."""
        if not self.changed and not self.slot_counts:
            return
        self._begin_savepoints()
        alike: dict[tuple[str, ...], list[list[Any]]] = {}
        for key, (before, after) in self.changed.items():
            differs = [*map(ne, before, after)]
            columns = tuple(compress(COLUMNS, differs))
            changed = compress(after, differs)
            values = [(value - EPOCH) // MILLISECOND if isinstance(value, datetime) else value for value in changed]
            if counts := self.slot_counts.pop(before.id, None):
                columns, values = columns + SLOT_COUNTS, [*values, *counts]
            if columns:
                alike.setdefault(columns, []).append([*values, before.id])
            self._known[key] = after
        for entry_id, counts in self.slot_counts.items():
            alike.setdefault(SLOT_COUNTS, []).append([*counts, entry_id])
        self.changed, self.slot_counts = {}, {}
        for columns, rows in alike.items():
            self._connection.executemany(_update_statement(columns), rows)

    def undo_part(self) -> None:
        """End a part of the transaction, and undo what it has written."""
        if self.begun == self.parts:
            self._connection.execute("rollback to part")
            self.release_savepoint()
        self.parts -= 1
        self._known.clear()
        self.recalled.clear()

    def release_savepoint(self) -> None:
        """End the innermost savepoint. What was written since belongs to what is around it."""
        self._connection.execute("release part")
        self.begun -= 1

    def _begin_savepoints(self) -> None:
        while self.begun < self.parts:
            self._connection.execute("savepoint part")
            self.begun += 1


def recall(db: sqlite3.Connection, query: str, make: Callable[[list[sqlite3.Row]], T]) -> T:
    """What `make` makes of the rows of this query, which has no parameters. Nobody may change it.

    In a transaction, it may be known already.
    """
    if not isinstance(db, UnitOfWork):
        return make(db.execute(query).fetchall())
    try:
        found: T = db.recalled[query]
    except KeyError:
        found = db.recalled[query] = make(db.read_to_recall(query))
    return found


def first_time(rows: list[sqlite3.Row]) -> datetime | None:
    """The time that is the only value of the only row."""
    return from_optional_millis(rows[0][0])


def is_file(db: sqlite3.Connection) -> bool:
    """Whether the database is an SQLite file, and not on a server."""
    connection = db._connection if isinstance(db, UnitOfWork) else db
    return isinstance(connection, sqlite3.Connection)


@dataclass(frozen=True, slots=True)
class _Effect:
    """Whether a statement writes, and the tables that it names. The first one is the one that it writes."""

    writes: bool
    names_entries: bool
    tables: tuple[str, ...]


@lru_cache(maxsize=1024)
def _effect_of(statement: str) -> _Effect:
    writes = not statement.lstrip().startswith(("select", "with"))
    names_entries = re.search(r"\bentry\b", statement) is not None
    return _Effect(writes, names_entries, tuple(re.findall(r"\b(?:from|join|into|update)\s+(\w+)", statement)))


@lru_cache(maxsize=256)  # runs nearly always change the same sets of columns
def _update_statement(columns: tuple[str, ...]) -> str:
    """The statement for these columns. Their names come from EntryRow, never from a user."""
    assignments = ", ".join(f"{column} = {column} + ?" if column in SLOT_COUNTS else f"{column} = ?" for column in columns)
    return f"update entry set {assignments} where id = ?"  # noqa: S608

"""Sums what each entry with a budget, and all entries together, have spent on each day."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

from scheduler.model import local_days
from scheduler.model.budget import ALL_ENTRIES, Amount, Budget, BudgetDay, Scope
from scheduler.model.timestamps import from_millis, to_millis
from scheduler.store.transaction import Transaction

EARLIEST_ZONE = timedelta(hours=14)  # before UTC, where a day begins first


def spent_on_day(db: sqlite3.Connection, budget_day: BudgetDay) -> Amount:
    """What was spent on a day so far, including reservations."""
    row = db.execute("select nanos, tokens, runs from spend where day = ? and kind = ? and name = ?", budget_day.key).fetchone()
    return Amount(*row) if row else Amount()


UNKNOWN_USD = """
select kind, name, sum(max(0, coalesce(charged_nanos, 0) / 1e9 - coalesce(cost_usd, 0))) from run
where state in ('running', 'waiting') or state = 'closed' and finished_at >= ? group by kind, name
"""


def unknown_usd(tx: Transaction, budget_day: BudgetDay, budget: Budget, spent: Amount) -> float:
    """The part of `spent` on a day that is reserved for runs whose cost is not known, or not known yet.

    All runs of the day are read, so the result is kept until `spent` changes: many agents may have the same used-up budget.
    """
    known = tx.unknown_usd.get(budget_day.key)
    if known is None or known[0] != spent:
        found = UnknownCosts(tx.db).of_day(budget_day, budget)
        known = tx.unknown_usd[budget_day.key] = spent, found
    return known[1]


class UnknownCosts:
    """What is reserved for runs whose cost is not known, for readers that ask for many budgets: each day is read once."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._by_begin: dict[datetime, dict[Scope, float]] = {}

    def of_day(self, budget_day: BudgetDay, budget: Budget) -> float:
        """The dollars of a budget on a day."""
        begins = local_days.whole_day(budget_day.day, budget.zone).begins
        if begins not in self._by_begin:
            rows = self._db.execute(UNKNOWN_USD, (to_millis(begins),))
            self._by_begin[begins] = {(kind, name): usd for kind, name, usd in rows}
        counted = shares_of_day(self._db, budget_day.day) if budget_day.scope == ALL_ENTRIES else (budget_day.scope,)
        return sum((self._by_begin[begins].get(scope, 0.0) for scope in counted), 0.0)


def reserve_amount(tx: Transaction, budget_day: BudgetDay, budget: Budget, amount: Amount) -> None:
    """Add a reservation to a day. The row keeps the present budget for readers that have no config."""
    tx.db.execute(
        "insert into spend (day, kind, name, nanos, tokens, runs, ends_at, usd_per_day, tokens_per_day, runs_per_day)"
        " values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) on conflict (day, kind, name) do update set nanos = spend.nanos + excluded.nanos,"
        " tokens = spend.tokens + excluded.tokens, runs = spend.runs + excluded.runs,"
        " ends_at = max(spend.ends_at, excluded.ends_at), usd_per_day = excluded.usd_per_day,"
        " tokens_per_day = excluded.tokens_per_day, runs_per_day = excluded.runs_per_day",
        (
            *budget_day.key, amount.nanos, amount.tokens, amount.runs, to_millis(budget.day_end(budget_day.day)),
            budget.usd_per_day, budget.tokens_per_day, budget.runs_per_day,
        ),
    )  # fmt: skip


def adjust_reservation(tx: Transaction, budget_days: Iterable[BudgetDay], by: Amount) -> None:
    """Replace what was reserved by the actual usage: add the difference to each day."""
    tx.db.executemany(
        "update spend set nanos = nanos + ?, tokens = tokens + ?, runs = runs + ? where day = ? and kind = ? and name = ?",
        [(by.nanos, by.tokens, by.runs, *budget_day.key) for budget_day in budget_days],
    )


def add_to_share(tx: Transaction, budget_days: Iterable[BudgetDay], scope: Scope, by: Amount) -> None:
    """Add to what an entry has used of the budget of all entries, if that budget is among these days."""
    for budget_day in budget_days:
        if budget_day.scope == ALL_ENTRIES:
            tx.db.execute(
                "insert into budget_share (day, kind, name, nanos, tokens, runs) values (?, ?, ?, ?, ?, ?)"
                " on conflict (day, kind, name) do update set nanos = budget_share.nanos + excluded.nanos,"
                " tokens = budget_share.tokens + excluded.tokens, runs = budget_share.runs + excluded.runs",
                (budget_day.day.isoformat(), *scope, by.nanos, by.tokens, by.runs),
            )


def shares_of_day(db: sqlite3.Connection, day: date) -> dict[Scope, Amount]:
    """What each entry has used of the budget of all entries on a day, including reservations."""
    rows = db.execute("select kind, name, nanos, tokens, runs from budget_share where day = ?", (day.isoformat(),))
    return {(kind, name): Amount(*amount) for kind, name, *amount in rows}


LARGEST_SHARES = {
    key: f"select kind, name, nanos, tokens, runs from budget_share where day = ? and {column} > 0"  # noqa: S608 (literals)
    f" order by {column} desc, kind desc, name limit ?"
    for key, column in {"usd_per_day": "nanos", "tokens_per_day": "tokens", "runs_per_day": "runs"}.items()
}


def largest_shares(db: sqlite3.Connection, day: date, key: str, limit: int) -> list[tuple[Scope, Amount]]:
    """The entries that have used most of one limit of the budget of all entries on a day, the largest share first."""
    rows = db.execute(LARGEST_SHARES[key], (day.isoformat(), limit))
    return [((kind, name), Amount(*amount)) for kind, name, *amount in rows]


def record_budgets_in_force(tx: Transaction, budgets: Iterable[tuple[Scope, Budget, list[Scope]]]) -> None:
    """Replace the record of the budgets of the config, each with the entries that it counts."""
    tx.db.execute("delete from budget")
    tx.db.executemany(
        "insert into budget (kind, name, zone, usd_per_day, tokens_per_day, runs_per_day, counted) values (?, ?, ?, ?, ?, ?, ?)",
        [
            (*scope, each.zone.key, each.usd_per_day, each.tokens_per_day, each.runs_per_day, json.dumps(counted))
            for scope, each, counted in budgets
        ],
    )


def budgets_in_force(db: sqlite3.Connection) -> dict[Scope, tuple[Budget, list[Scope]]]:
    """The budgets of the config that the daemon applied last, each with the entries that it counts."""
    return {
        (row["kind"], row["name"]): (
            Budget(ZoneInfo(row["zone"]), row["usd_per_day"], row["tokens_per_day"], row["runs_per_day"]),
            [(kind, name) for kind, name in json.loads(row["counted"])],
        )
        for row in db.execute("select * from budget order by kind <> '', kind desc, name")
    }


def record_charge(tx: Transaction, run_id: int, by: Amount) -> None:
    """Add to what the run is charged to its budgets."""
    tx.db.execute(
        "update run set charged_nanos = coalesce(charged_nanos, 0) + ?, charged_tokens = coalesce(charged_tokens, 0) + ?"
        " where id = ?",
        (by.nanos, by.tokens, run_id),
    )


@dataclass(frozen=True, slots=True)
class SpentDay:
    """A day of a budget, when it ends, what was spent so far, and the budget, as last recorded or as in the config."""

    day: date
    ends_at: datetime
    amount: Amount
    budget: Budget


def days_in_progress(db: sqlite3.Connection, now: datetime) -> dict[Scope, SpentDay]:
    """The days that have begun and are not over, by scope."""
    rows = db.execute(
        "select * from spend where day >= ? and day <= ? and ends_at > ? order by day desc",
        (_yesterday(now), _latest_today(now), to_millis(now)),
    )
    return {
        (row["kind"], row["name"]): SpentDay(
            date.fromisoformat(row["day"]),
            from_millis(row["ends_at"]),
            Amount(row["nanos"], row["tokens"], row["runs"]),
            Budget(ZoneInfo("UTC"), row["usd_per_day"], row["tokens_per_day"], row["runs_per_day"]),
        )
        for row in rows
    }


def spent_today(db: sqlite3.Connection, now: datetime, budgets: Mapping[Scope, Budget]) -> dict[Scope, SpentDay]:
    """The present day of each of these budgets, whether anything was spent on it or not. See `open_budget_day`."""
    rows = db.execute("select day, kind, name, nanos, tokens, runs from spend where day >= ?", (_yesterday(now),))
    spent = {(day, kind, name): Amount(*amount) for day, kind, name, *amount in rows}
    begun, found = days_in_progress(db, now), {}
    for scope, budget in budgets.items():
        day = begun[scope].day if scope in begun else budget.local_day(now)
        ends_at = begun[scope].ends_at if scope in begun else budget.day_end(day)
        found[scope] = SpentDay(day, ends_at, spent.get((day.isoformat(), *scope), Amount()), budget)
    return found


def open_budget_day(db: sqlite3.Connection, scope: Scope, budget: Budget, now: datetime) -> tuple[date, datetime]:
    """The day to which an attempt is charged that begins now, and when this day ends.

    A day that has begun stays open until its end, even if the zone of the budget has changed since. A change of zone therefore
    never opens another day before the old one ends.
    """
    row = db.execute(
        # Each day by itself, because the index begins with the day: a range of days has the rows of all entries.
        "select day, ends_at from spend where day in (?, ?, ?) and kind = ? and name = ? and ends_at > ? order by day limit 1",
        (_yesterday(now), now.date().isoformat(), _latest_today(now), *scope, to_millis(now)),
    ).fetchone()
    if row is not None:
        return date.fromisoformat(row["day"]), from_millis(row["ends_at"])
    day = budget.local_day(now)
    return day, budget.day_end(day)


def days_near_today(db: sqlite3.Connection, now: datetime) -> list[BudgetDay]:
    """The recorded days that may be today in some zone, and later days, which a clock that was set back will reach."""
    rows = db.execute("select day, kind, name from spend where day >= ?", (_yesterday(now),)).fetchall()
    return [BudgetDay(date.fromisoformat(row["day"]), (row["kind"], row["name"])) for row in rows]


def record_budget(tx: Transaction, budget_day: BudgetDay, budget: Budget) -> None:
    """Record the budget of a day, for readers that have no config."""
    tx.db.execute(
        "update spend set ends_at = max(ends_at, ?), usd_per_day = ?, tokens_per_day = ?, runs_per_day = ?"
        " where day = ? and kind = ? and name = ?",
        (
            to_millis(budget.day_end(budget_day.day)), budget.usd_per_day, budget.tokens_per_day, budget.runs_per_day,
            *budget_day.key,
        ),
    )  # fmt: skip


def end_budget_day(tx: Transaction, budget_day: BudgetDay) -> None:
    """Remove the limits of a day that is not over, because it no longer has a budget. With a new budget, the same day goes on."""
    query = (
        "update spend set usd_per_day = null, tokens_per_day = null, runs_per_day = null"
        " where day = ? and kind = ? and name = ? and ends_at > ?"
    )
    tx.db.execute(query, (*budget_day.key, to_millis(tx.now)))


def _yesterday(now: datetime) -> str:
    """A date that every zone has left, or has just left."""
    return (now - timedelta(days=1)).date().isoformat()


def _latest_today(now: datetime) -> str:
    """The latest date that it is now in any zone."""
    return (now + EARLIEST_ZONE).date().isoformat()

"""Sums what each entry with a budget, and all entries together, have spent on each day. A month is the sum of its days."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

from scheduler.model.budget import ALL_ENTRIES, LIMITS, MONTH_LIMIT, NO_USAGE, Amount, Budget, BudgetDay, Scope, Spent
from scheduler.model.timestamps import from_millis, to_millis
from scheduler.store.transaction import Transaction

EARLIEST_ZONE = timedelta(hours=14)  # before UTC, where a day begins first


# Each day by itself, because the index begins with the day: a range of days has the rows of all entries.
SPENT_ON_DAYS = f"""
select day, nanos, tokens, runs from spend where day in ({", ".join("?" * 31)}) and kind = ? and name = ?
"""  # noqa: S608 (literals)


def _spent_so_far(db: sqlite3.Connection, budget_day: BudgetDay, budget: Budget) -> Spent:
    """What was spent on a day so far, and in its month if the budget limits that, including reservations."""
    if budget.usd_per_month is None:
        row = db.execute(
            "select nanos, tokens, runs from spend where day = ? and kind = ? and name = ?", budget_day.key
        ).fetchone()
        return Spent(Amount(*row) if row else NO_USAGE)
    day, *scope = budget_day.key
    by_day = {row[0]: Amount(*row[1:]) for row in db.execute(SPENT_ON_DAYS, (*_days_of_month(budget_day.day), *scope))}
    return Spent(by_day.get(day, NO_USAGE), sum(by_day.values(), NO_USAGE))


def _days_of_month(day: date) -> list[str]:
    """The keys of the days of a month. In a short one, the last are days that do not exist, and have no rows."""
    return [f"{day:%Y-%m}-{number:02}" for number in range(1, 32)]


UNKNOWN_USD = """
select kind, name, sum(max(0, coalesce(charged_nanos, 0) / 1e9 - coalesce(cost_usd, 0))) from run
where state in ('running', 'waiting') or state = 'closed' and finished_at >= ? group by kind, name
"""


def unknown_usd(tx: Transaction, budget_day: BudgetDay, budget: Budget, spent: Spent, key: str) -> float:
    """The part of `spent` in the period of a limit that is reserved for runs whose cost is not known, or not known yet.

    All runs of the period are read, so the result is kept until `spent` changes: many agents may have the same used-up budget.
    """
    known = tx.unknown_usd.get((key, budget_day))
    if known is None or known[0] != spent:
        found = UnknownCosts(tx.db).of_period(budget_day, budget, key)
        known = tx.unknown_usd[key, budget_day] = spent, found
    return known[1]


class UnknownCosts:
    """What is reserved for runs whose cost is not known, for readers that ask for many budgets: each day is read once."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._by_begin: dict[datetime, dict[Scope, float]] = {}

    def of_period(self, budget_day: BudgetDay, budget: Budget, key: str) -> float:
        """The dollars of a budget on a day, or in its month: in the period of the limit `key`."""
        begins = budget.period(key, budget_day.day).begins
        if begins not in self._by_begin:
            rows = self._db.execute(UNKNOWN_USD, (to_millis(begins),))
            self._by_begin[begins] = {(kind, name): usd for kind, name, usd in rows}
        is_shared = budget_day.scope == ALL_ENTRIES
        counted = shares_of_period(self._db, budget_day.day, key) if is_shared else (budget_day.scope,)
        return sum((self._by_begin[begins].get(scope, 0.0) for scope in counted), 0.0)


def reserve_amount(tx: Transaction, budget_days: Iterable[tuple[BudgetDay, Budget]], amount: Amount) -> None:
    """Add a reservation to each day."""
    tx.db.executemany(
        "insert into spend (day, kind, name, nanos, tokens, runs, ends_at) values (?, ?, ?, ?, ?, ?, ?)"
        " on conflict (day, kind, name) do update set"
        " nanos = spend.nanos + excluded.nanos, tokens = spend.tokens + excluded.tokens, runs = spend.runs + excluded.runs,"
        " ends_at = max(spend.ends_at, excluded.ends_at)",
        [
            (*each.key, amount.nanos, amount.tokens, amount.runs, to_millis(budget.day_end(each.day)))
            for each, budget in budget_days
        ],
    )


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


def shares_of_period(db: sqlite3.Connection, day: date, key: str) -> dict[Scope, Amount]:
    """What each entry has used of the budget of all entries on a day, or in its month, including reservations."""
    days = _days_of_month(day) if key == MONTH_LIMIT else [day.isoformat()]
    rows = db.execute("select kind, name, nanos, tokens, runs from budget_share where day between ? and ?", (days[0], days[-1]))
    found: dict[Scope, Amount] = {}
    for kind, name, *amount in rows:
        found[kind, name] = found.get((kind, name), NO_USAGE) + Amount(*amount)
    return found


LARGEST_SHARES = {
    key: f"select kind, name, nanos, tokens, runs from budget_share where day = ? and {column} > 0"  # noqa: S608 (literals)
    f" order by {column} desc, kind desc, name limit ?"
    for key, column in {"usd_per_day": "nanos", "tokens_per_day": "tokens", "runs_per_day": "runs"}.items()
}


def largest_shares(tx: Transaction, day: date, key: str, limit: int) -> list[tuple[Scope, Amount]]:
    """The entries that have used most of one limit of the budget of all entries, the largest share first.

    Those of a month are read once in a transaction, because every agent may ask for them when the budget is used up.
    """
    if key != MONTH_LIMIT:
        rows = tx.db.execute(LARGEST_SHARES[key], (day.isoformat(), limit))
        return [((kind, name), Amount(*amount)) for kind, name, *amount in rows]
    if tx.month_shares is None:
        tx.month_shares = shares_of_period(tx.db, day, key)
    used = [each for each in tx.month_shares.items() if each[1].nanos > 0]
    return sorted(used, key=lambda each: (-each[1].nanos, each[0]))[:limit]


def record_budgets_in_force(tx: Transaction, budgets: Collection[tuple[Scope, Budget, list[Scope]]]) -> None:
    """Replace the record of the budgets of the config, each with the entries that it counts.

    A day that has begun lasts until it ends in the present zone of its budget, too.
    """
    tx.db.execute("delete from budget")
    tx.db.executemany(
        "insert into budget (kind, name, zone, usd_per_day, tokens_per_day, runs_per_day, usd_per_month, counted)"
        " values (?, ?, ?, ?, ?, ?, ?, ?)",
        [(*scope, each.zone.key, *each.limits, json.dumps(counted)) for scope, each, counted in budgets],
    )
    today = spent_today(tx.db, tx.now, {scope: each for scope, each, _ in budgets})
    tx.db.executemany(
        "update spend set ends_at = max(ends_at, ?) where day = ? and kind = ? and name = ?",
        [
            (to_millis(each.budget.day_end(each.day)), each.day.isoformat(), *scope)
            for scope, each in today.items()
            if each.has_begun
        ],
    )


def budgets_in_force(db: sqlite3.Connection) -> dict[Scope, tuple[Budget, list[Scope]]]:
    """The budgets of the config that the daemon applied last, each with the entries that it counts."""
    return {
        (row["kind"], row["name"]): (
            Budget(ZoneInfo(row["zone"]), *(row[key] for key in LIMITS)),
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


def is_charged(tx: Transaction, run_id: int) -> bool:
    """Whether an attempt of the run has been charged to a budget."""
    query = "select charged_nanos is not null from run where id = ?"
    return bool(tx.db.execute(query, (run_id,)).fetchone()[0])


@dataclass(frozen=True, slots=True)
class SpentDay:
    """The present day of a budget, when it ends, what was spent so far, and the budget. `has_begun`: a try was charged to it."""

    day: date
    ends_at: datetime
    spent: Spent
    budget: Budget
    has_begun: bool


class _Months:
    """What was spent in the months that may be the present one in some zone, for readers of many budgets."""

    def __init__(self, db: sqlite3.Connection, now: datetime) -> None:
        rows = db.execute("select day, kind, name, nanos, tokens, runs from spend where day >= ?", (f"{_yesterday(now)[:7]}-01",))
        self._spent: dict[tuple[str, Scope], Amount] = {}
        for day, kind, name, *amount in rows:
            key = day[:7], (kind, name)
            self._spent[key] = self._spent.get(key, NO_USAGE) + Amount(*amount)

    def of(self, day: date, scope: Scope) -> Amount:
        """What was spent in the month of this day."""
        return self._spent.get((day.isoformat()[:7], scope), NO_USAGE)


def spent_today(db: sqlite3.Connection, now: datetime, budgets: Mapping[Scope, Budget]) -> dict[Scope, SpentDay]:
    """The present day of each of these budgets, whether anything was spent on it or not. See `open_budget_day`."""
    rows = db.execute("select * from spend where day >= ? order by day desc", (_yesterday(now),)).fetchall()
    spent = {(row["day"], row["kind"], row["name"]): Amount(row["nanos"], row["tokens"], row["runs"]) for row in rows}
    latest, instant = _latest_today(now), to_millis(now)
    open_days = {
        (row["kind"], row["name"]): (date.fromisoformat(row["day"]), from_millis(row["ends_at"]))
        for row in rows
        if row["day"] <= latest and row["ends_at"] > instant
    }
    months = _Months(db, now) if any(budget.usd_per_month is not None for budget in budgets.values()) else None
    found = {}
    for scope, budget in budgets.items():
        local_day = budget.local_day(now)
        day, ends_at = open_days.get(scope) or (local_day, budget.day_end(local_day))
        of_day = spent.get((day.isoformat(), *scope))
        of_month = months.of(day, scope) if months and budget.usd_per_month is not None else NO_USAGE
        found[scope] = SpentDay(day, ends_at, Spent(of_day or NO_USAGE, of_month), budget, has_begun=of_day is not None)
    return found


def budgets_in_use(db: sqlite3.Connection, now: datetime) -> dict[Scope, SpentDay]:
    """Today of each budget of the config that has been used today or, if it limits that, in this month."""
    budgets = {scope: budget for scope, (budget, _) in budgets_in_force(db).items()}
    today = spent_today(db, now, budgets)
    return {scope: each for scope, each in today.items() if each.has_begun or each.spent.month.runs}


def open_budget_day(db: sqlite3.Connection, scope: Scope, budget: Budget, now: datetime) -> tuple[date, datetime, Spent]:
    """The day to which an attempt is charged that begins now, when this day ends, and what was spent so far.

    A day that has begun stays open until its end, even if the zone of the budget has changed since. A change of zone therefore
    never opens another day before the old one ends.
    """
    row = db.execute(
        # Each day by itself, because the index begins with the day: a range of days has the rows of all entries.
        "select day, ends_at, nanos, tokens, runs from spend"
        " where day in (?, ?, ?) and kind = ? and name = ? and ends_at > ? order by day limit 1",
        (_yesterday(now), now.date().isoformat(), _latest_today(now), *scope, to_millis(now)),
    ).fetchone()
    day = date.fromisoformat(row["day"]) if row else budget.local_day(now)
    ends_at = from_millis(row["ends_at"]) if row else budget.day_end(day)
    if row and budget.usd_per_month is None:
        return day, ends_at, Spent(Amount(row["nanos"], row["tokens"], row["runs"]))
    return day, ends_at, _spent_so_far(db, BudgetDay(day, scope), budget)


def _yesterday(now: datetime) -> str:
    """A date that every zone has left, or has just left."""
    return (now - timedelta(days=1)).date().isoformat()


def _latest_today(now: datetime) -> str:
    """The latest date that it is now in any zone."""
    return (now + EARLIEST_ZONE).date().isoformat()

"""Sums what each entry with a budget, and all entries together, have spent on each day."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from scheduler.model.budget import Amount, Budget, BudgetDay, Scope
from scheduler.model.timestamps import to_millis
from scheduler.store.transaction import Transaction

KEPT = timedelta(days=100)  # if the clock is set back by less than this, the day's sum is still there


def spent_on_day(db: sqlite3.Connection, budget_day: BudgetDay) -> Amount:
    """What was spent on a day so far, including reservations."""
    row = db.execute("select nanos, tokens, runs from spend where day = ? and kind = ? and name = ?", budget_day.key).fetchone()
    return Amount(*row) if row else Amount()


def reserve_amount(tx: Transaction, budget_day: BudgetDay, budget: Budget, amount: Amount) -> None:
    """Add a reservation to a day. The row keeps the present budget for readers that have no config."""
    tx.db.execute(
        "insert into spend (day, kind, name, nanos, tokens, runs, ends_at, usd_per_day, tokens_per_day, runs_per_day)"
        " values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) on conflict (day, kind, name) do update set nanos = nanos + excluded.nanos,"
        " tokens = tokens + excluded.tokens, runs = runs + excluded.runs, ends_at = excluded.ends_at,"
        " usd_per_day = excluded.usd_per_day, tokens_per_day = excluded.tokens_per_day, runs_per_day = excluded.runs_per_day",
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


def record_charge(tx: Transaction, run_id: int, by: Amount) -> None:
    """Add to what the run is charged to its budgets."""
    tx.db.execute(
        "update run set charged_nanos = coalesce(charged_nanos, 0) + ?, charged_tokens = coalesce(charged_tokens, 0) + ?"
        " where id = ?",
        (by.nanos, by.tokens, run_id),
    )


def spent_by_day(db: sqlite3.Connection, now: datetime) -> dict[tuple[str, str, str], Amount]:
    """What was spent on each day that may be today in some zone, by day, kind and name."""
    rows = db.execute("select day, kind, name, nanos, tokens, runs from spend where day >= ?", (_yesterday(now),))
    return {(day, kind, name): Amount(*amount) for day, kind, name, *amount in rows}


def budget_rows_today(db: sqlite3.Connection, now: datetime) -> dict[Scope, sqlite3.Row]:
    """The rows of the days that have begun and are not over, by scope, with the budgets last recorded."""
    rows = db.execute("select * from spend where day >= ? and ends_at > ? order by day desc", (_yesterday(now), to_millis(now)))
    return {(row["kind"], row["name"]): row for row in rows}


def budget_rows_near_today(db: sqlite3.Connection, now: datetime) -> list[sqlite3.Row]:
    """The rows of days that may be today in some zone, and of later days, which a clock that was set back will reach."""
    return db.execute("select day, kind, name from spend where day >= ?", (_yesterday(now),)).fetchall()


def record_budget(tx: Transaction, budget_day: BudgetDay, budget: Budget) -> None:
    """Record the budget of a day, for readers that have no config."""
    tx.db.execute(
        "update spend set ends_at = ?, usd_per_day = ?, tokens_per_day = ?, runs_per_day = ?"
        " where day = ? and kind = ? and name = ?",
        (
            to_millis(budget.day_end(budget_day.day)), budget.usd_per_day, budget.tokens_per_day, budget.runs_per_day,
            *budget_day.key,
        ),
    )  # fmt: skip


def end_budget_day(tx: Transaction, budget_day: BudgetDay) -> None:
    """End a day, because it no longer has a budget."""
    query = "update spend set ends_at = min(ends_at, ?) where day = ? and kind = ? and name = ?"
    tx.db.execute(query, (to_millis(tx.now), *budget_day.key))


def amount_of_row(row: sqlite3.Row) -> Amount:
    """The amount that a row holds."""
    return Amount(row["nanos"], row["tokens"], row["runs"])


def budget_of_row(row: sqlite3.Row) -> Budget:
    """The budget as last recorded in a row; its zone is that of the row's times."""
    return Budget(ZoneInfo("UTC"), row["usd_per_day"], row["tokens_per_day"], row["runs_per_day"])


def _yesterday(now: datetime) -> str:
    """A date that every zone has left, or has just left."""
    return (now - timedelta(days=1)).date().isoformat()


def delete_old_days(tx: Transaction) -> None:
    """Delete days that no clock will show again, a few at a time."""
    tx.db.execute(
        "delete from spend where (day, kind, name) in (select day, kind, name from spend where day < ? order by day limit 500)",
        ((tx.now - KEPT).date().isoformat(),),
    )

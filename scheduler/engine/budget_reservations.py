"""Reserves an attempt's maximum cost in its budgets before it starts, and settles the actual usage when it ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime
from math import ceil

from heartbeat.runners import credible_usage
from heartbeat.words import format_duration
from scheduler.engine.tick_items import Tick
from scheduler.model.budget import (
    ALL_ENTRIES,
    MONTH_LIMIT,
    NO_USAGE,
    PER_TOKEN,
    Allowance,
    Amount,
    Budget,
    BudgetDay,
    Price,
    Reservation,
    Scope,
    Spent,
    call_cost,
    exceeded_text,
    find_price,
    format_amount,
    highest_input_price,
    usd_to_nanos,
)
from scheduler.model.entry import Claim, Entry
from scheduler.model.outcome import AttemptResult, Call, Kind, Outcome, Skip
from scheduler.model.settings import Settings
from scheduler.store import runs, spend
from scheduler.store.transaction import Transaction

MAX_SHARES = 3  # entries that an exceeded budget names


def reserve_budget(tx: Transaction, settings: Settings, claim: Claim, *, first: bool) -> Claim:
    """Reserve the maximum usage of an attempt in every budget of its entry. The returned claim may be marked as over budget.

    `first`: this attempt starts the run, so it counts as a run. So does one after a crash before the run was counted. An entry
    without a budget needs no database access.
    """
    allowance = settings.allowances.get(claim.entry.key)
    if allowance is None:
        return claim
    most = replace(allowance.max_usage, runs=int(first or not spend.is_charged(tx, claim.run.id)))
    budget_days = _budget_days(tx, claim.entry, allowance)
    lacking = _first_shortage(tx, budget_days, most)
    if lacking is not None:
        return claim.blocked_by(Skip.BUDGET, lacking.description)
    days = tuple(budget_day for budget_day, _, _ in budget_days)
    spend.reserve_amount(tx, [(budget_day, budget) for budget_day, budget, _ in budget_days], most)
    spend.add_to_share(tx, days, claim.entry.key, most)
    spend.record_charge(tx, claim.run.id, most)
    return replace(claim, facts=replace(claim.facts, reserved=Reservation(days, most, allowance.input_tokens, allowance.turns)))


@dataclass(frozen=True, slots=True)
class Shortage:
    """The budget limits that an attempt would exceed, in words, and when the budget's day or month ends."""

    description: str
    ends_at: datetime


def find_shortage(tick: Tick, entry: Entry, *, first: bool) -> Shortage | None:
    """The shortage that a further attempt of a run, or the `first` of a new one, would meet; None if it fits into all budgets.

    Of several, the one that lasts longest. Of the accounts of the agent and its fallbacks, one with room is enough.
    """
    allowance = tick.plan.settings.allowances.get(entry.key)
    of_accounts = account_shortages(tick, entry) if first else ()
    lacking = [shortage for shortage in of_accounts if shortage is not None]
    found = [min(lacking, key=lambda each: each.ends_at)] if lacking and len(lacking) == len(of_accounts) else []
    if allowance is not None:
        most = replace(allowance.max_usage, runs=int(first))
        shortage = _first_shortage(tick.tx, _budget_days(tick.tx, entry, allowance), most)
        found += [shortage] if shortage is not None else []
    return max(found, key=lambda each: each.ends_at, default=None)


def account_shortages(tick: Tick, entry: Entry, run_id: int = 0) -> tuple[Shortage | None, ...]:
    """The limits of accounts that a new run, which may have this id already, would exceed: without a fallback, and with each.

    What one entry sets for an account applies to all that use it. Empty if no entry sets any.
    """
    if not tick.plan.account_limits:
        return ()
    accounts = [program.account if program else None for program in entry.programs]
    limited = {each for each in accounts if each is not None and each in tick.plan.account_limits}
    found = {each: _account_shortage(tick, entry, each, run_id) for each in limited}
    return tuple(found.get(each) if each is not None else None for each in accounts)


def _account_shortage(tick: Tick, entry: Entry, account: str, run_id: int) -> Shortage | None:
    found: list[Shortage] = []
    for most, within in tick.plan.account_limits[account]:
        began = [at for each, at in runs.starts_with_account(tick.tx, account, within) if each != run_id]
        if len(began) >= most:
            ends = sorted(began)[-most] + within
            text = f"account {account}: {most} of {most} runs in {format_duration(within)} have begun"
            found.append(Shortage(f"{text}; until {ends.astimezone(entry.zone):%Y-%m-%d %H:%M} {entry.zone.key}", ends))
    return max(found, key=lambda each: each.ends_at, default=None)


def record_first_account(tx: Transaction, claim: Claim) -> None:
    """Record the account of the program that an attempt calls first. Those of fallbacks are known from its result."""
    programs = claim.entry.programs
    unavailable = claim.facts.unavailable or (None,) * len(programs)
    first = next(program for program, why in zip(programs, unavailable, strict=True) if why is None)
    if first is not None and first.account is not None:
        runs.record_accounts(tx, claim.run.id, {first.account})


def record_budgets(tx: Transaction, settings: Settings) -> None:
    """Record the budgets of the config, for readers without a config."""
    spend.record_budgets_in_force(tx, [*_budgets_in_force(settings)])


def _budgets_in_force(settings: Settings) -> Iterator[tuple[Scope, Budget, list[Scope]]]:
    """Each budget of the config, and the entries that it counts."""
    if settings.limits.budget is not None:
        yield ALL_ENTRIES, settings.limits.budget, [*settings.allowances]
    for key, allowance in settings.allowances.items():
        if allowance.own is not None:
            yield key, allowance.own, [key]


def charge_of(prices: Mapping[str, Price], reserved: Reservation, result: AttemptResult, day: date) -> Amount:
    """By how much the usage of an attempt exceeds its reservation, usually less than nothing.

    Nothing if the usage is unknown: then the reservation stays charged.
    """
    most = reserved.amount
    if not result.calls:  # unless no call was made, the daemon has made this result, and the usage is unknown
        return NO_USAGE - most if result.outcome is Outcome.SKIPPED or result.precheck is not None else NO_USAGE
    parts = [_amount_of_call(prices, most, call, day) for call in result.calls]
    used = sum((part for part in parts if part is not None), Amount(runs=most.runs))
    if None in parts or result.outcome is Outcome.ASYNC:  # an asynchronous run is still using tokens
        used = Amount(max(used.nanos, most.nanos), max(used.tokens, most.tokens), most.runs)
    return used - most


def settle_reservation(tx: Transaction, entry: Entry, reserved: Reservation, charge: Amount) -> None:
    """Replace the reservation of an attempt by its actual usage, in all its budgets. `charge` is that of `charge_of`."""
    spend.adjust_reservation(tx, reserved.days, charge)
    spend.add_to_share(tx, reserved.days, entry.key, charge)


def _budget_days(tx: Transaction, entry: Entry, allowance: Allowance) -> list[tuple[BudgetDay, Budget, Spent]]:
    """The present day of each budget of an entry, and what was spent of it."""
    found = []
    for scope, budget in allowance.budgets(*entry.key):
        day, _, spent = spend.open_budget_day(tx.db, scope, budget, tx.now)
        found.append((BudgetDay(day, scope), budget, spent))
    return found


def _first_shortage(tx: Transaction, budget_days: list[tuple[BudgetDay, Budget, Spent]], most: Amount) -> Shortage | None:
    """The shortage that lasts longest; None if the attempt fits."""
    short = [
        _describe_shortage(tx, budget_day, budget, used, most, lacks)
        for budget_day, budget, used in budget_days
        if (lacks := budget.exceeded_limits(used, most))
    ]
    return max(short, key=lambda each: each.ends_at, default=None)


def _describe_shortage(
    tx: Transaction, budget_day: BudgetDay, budget: Budget, used: Spent, most: Amount, lacks: list[str]
) -> Shortage:
    """The limits that are exceeded and, for the budget of all entries, the entries that have used most of it.

    It lasts until the end of the month if that of the month is among them.
    """
    _, ends, _ = spend.open_budget_day(tx.db, budget_day.scope, budget, tx.now)
    longest = MONTH_LIMIT if MONTH_LIMIT in lacks else lacks[0]
    if longest == MONTH_LIMIT:
        ends = max(ends, budget.period(MONTH_LIMIT, budget_day.day).ends)
    shared = budget_day.scope == ALL_ENTRIES
    bounds = {key: bound for key, _, bound in budget.usage_by_limit(used)}
    texts = (
        exceeded_text(
            key, used.of_limit(key), bounds[key], most.of_limit(key), spend.unknown_usd(tx, budget_day, budget, used, key)
        )
        for key in lacks
    )
    text = ", ".join(f"limits.budget.{each}" if shared else each for each in texts)
    text = f"{text}; until {ends.astimezone(budget.zone):%Y-%m-%d %H:%M} {budget.zone.key}"
    largest = _largest_shares(tx, budget_day, longest, used) if shared else ""
    return Shortage(f"{text}; {largest}" if largest else text, ends)


def _largest_shares(tx: Transaction, budget_day: BudgetDay, key: str, used: Spent) -> str:
    """The entries that have used most of the budget of all entries, with their parts of the limit `key`; empty if not known."""
    largest = spend.largest_shares(tx, budget_day.day, key, MAX_SHARES)
    if not largest:
        return ""
    named = [f"{Kind(kind).label_of(name)} {format_amount(amount.of_limit(key))}" for (kind, name), amount in largest]
    rest = used.of_limit(key) - sum(amount.of_limit(key) for _, amount in largest)
    return f"used by {', '.join(named)}" + (f", others {format_amount(rest)}" if len(largest) == MAX_SHARES and rest > 0 else "")


def _amount_of_call(prices: Mapping[str, Price], most: Amount, call: Call, day: date) -> Amount | None:
    """The usage of a call, or the most that it can have used if it was not reported; None if that is unknown too."""
    tokens = credible_usage(call.tokens)
    if tokens is None and call.cost_usd is None:
        return NO_USAGE if call.is_free and call.tokens is None else _maximum_of_call(prices, most, call)
    usd = call_cost(prices, call, day)
    if most.nanos and usd is None:
        return _maximum_of_call(prices, most, call)
    return Amount(usd_to_nanos(usd or 0.0), tokens.total if tokens else 0)


def _maximum_of_call(prices: Mapping[str, Price], most: Amount, call: Call) -> Amount | None:
    """The most that a call can have used, at the highest prices; None if its size or price is not known."""
    listed = find_price(prices, call.provider, call.model)
    if call.most is None or (listed is None and most.nanos):
        return None
    price = listed and listed.highest(call.most.input)
    cost = 0.0 if price is None else call.most.input * highest_input_price(price) + call.most.output * price.output
    return Amount(ceil(cost * PER_TOKEN), call.most.total)

"""Budgets: an attempt begins only if the most that it can take still fits into the day, and pays what it took when it ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime

from heartbeat.runners import agent_json
from scheduler.engine.tick import Tick
from scheduler.model.budget import ALL_ENTRIES, NO_USAGE, Allowance, Amount, Budget, BudgetDay, Reservation, Scope, usd_to_nanos
from scheduler.model.entry import Claim, Entry
from scheduler.model.outcome import AttemptResult, Call, Failure, Kind, Outcome
from scheduler.model.settings import Price
from scheduler.store import spend
from scheduler.store.transaction import Transaction

# Who answers so has not taken the question up, and takes no money for it.
UNCHARGED_FAILURES = frozenset(
    {
        Failure.AUTH,
        Failure.PAYMENT,
        Failure.NOT_FOUND,
        Failure.BAD_REQUEST,
        Failure.TOO_LARGE,
        Failure.RATE,
        Failure.OVERLOADED,
    }
)

TOKENS_PER_PRICE = 1_000_000


def reserve_budget(tick: Tick, claim: Claim, *, first: bool) -> Claim:
    """The claim with the most that it can take reserved in every budget of its entry, or marked as over one of them.

    `first`: this attempt begins the run, and counts as one. An entry without a budget costs no statement.
    """
    allowance = _allowance_of(tick, claim.entry)
    if allowance is None:
        return claim
    most = replace(allowance.max_usage, runs=int(first))
    accounts = _budget_days(tick.tx, claim.entry, allowance)
    lacking = _first_shortage(tick.tx, accounts, most)
    if lacking is not None:
        return replace(claim, over_budget=lacking.description)
    for account, budget in accounts:
        spend.reserve_amount(tick.tx, account, budget, most)
    spend.record_charge(tick.tx, claim.run_id, most)
    return replace(claim, reserved=Reservation(tuple(account for account, _ in accounts), most, allowance.input_tokens))


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why an attempt has no room in a budget, in words, and when the day of that is over."""

    description: str
    ends_at: datetime


def find_shortage(tick: Tick, entry: Entry, *, first: bool) -> Shortage | None:
    """Why a further attempt of a run, or the `first` of a new one, would be over one of its budgets; None if it would not."""
    allowance = _allowance_of(tick, entry)
    if allowance is None:
        return None
    return _first_shortage(tick.tx, _budget_days(tick.tx, entry, allowance), replace(allowance.max_usage, runs=int(first)))


def adopt_budgets(tick: Tick) -> None:
    """Let the days of today show the budgets in force, for whoever reads them without a config; all others are over."""
    for row in spend.budget_rows_near_today(tick.tx.db, tick.now):
        account = BudgetDay(date.fromisoformat(row["day"]), (row["kind"], row["name"]))
        budget = _budget_in_force(tick, account.scope)
        if budget is not None and budget.local_day(tick.now) == account.day:
            spend.record_budget(tick.tx, account, budget)
        else:
            spend.end_budget_day(tick.tx, account)


def _budget_in_force(tick: Tick, scope: Scope) -> Budget | None:
    if scope == ALL_ENTRIES:
        return tick.limits.budget
    found = tick.plan.settings.allowances.get((Kind(scope[0]), scope[1]))
    return found.own if found else None


def settle_reservation(tick: Tick, claim: Claim, result: AttemptResult) -> None:
    """Put what an attempt took in the place of what was reserved for it; what nobody knows stays reserved."""
    if claim.reserved is None:
        return
    difference = _amount_used(tick, claim.reserved.amount, result) - claim.reserved.amount
    if difference == NO_USAGE:
        return
    spend.adjust_reservation(tick.tx, claim.reserved.days, difference)
    spend.record_charge(tick.tx, claim.run_id, difference)


def _allowance_of(tick: Tick, entry: Entry) -> Allowance | None:
    return tick.plan.settings.allowances.get((entry.kind, entry.name))


def _budget_days(tx: Transaction, entry: Entry, allowance: Allowance) -> list[tuple[BudgetDay, Budget]]:
    budgets = allowance.budgets(entry.kind, entry.name)
    return [(BudgetDay(budget.local_day(tx.now), scope), budget) for scope, budget in budgets]


def _first_shortage(tx: Transaction, accounts: list[tuple[BudgetDay, Budget]], most: Amount) -> Shortage | None:
    """Of several, the one that lasts longest."""
    spent = [(account, budget, spend.spent_on_day(tx.db, account)) for account, budget in accounts]
    short = [_describe_shortage(account, budget, used, most) for account, budget, used in spent if not budget.allows(used + most)]
    return max(short, key=lambda each: each.ends_at, default=None)


def _describe_shortage(account: BudgetDay, budget: Budget, used: Amount, most: Amount) -> Shortage:
    ends = budget.day_end(account.day)
    prefix = "limits.budget." if account.scope == ALL_ENTRIES else ""
    lacks = ", ".join(prefix + lack for lack in budget.exceeded_limits(used, most))
    return Shortage(f"{lacks}; until {ends.astimezone(budget.zone):%Y-%m-%d %H:%M} {budget.zone.key}", ends)


def _amount_used(tick: Tick, most: Amount, result: AttemptResult) -> Amount:
    if not result.calls:
        return NO_USAGE if _called_no_model(result) else most
    parts = [_amount_of_call(tick, most, call) for call in result.calls]
    known = sum((part for part in parts if part is not None), Amount(runs=most.runs))
    if None not in parts and result.outcome is not Outcome.ASYNC:  # what answers later has not taken all yet
        return known
    return Amount(max(known.nanos, most.nanos), max(known.tokens, most.tokens), most.runs)


def _called_no_model(result: AttemptResult) -> bool:
    """Whether the agent was not asked; an ending without calls that does not say so is one that we made up."""
    return result.outcome is Outcome.SKIPPED or result.precheck is not None


def _amount_of_call(tick: Tick, most: Amount, call: Call) -> Amount | None:
    """What a call took; None where nobody said it, or said what cannot be: that a model read and wrote nothing."""
    if call.tokens is None and call.cost_usd is None:
        return NO_USAGE if call.not_sent or call.failure in UNCHARGED_FAILURES else None
    tokens = call.tokens.total if call.tokens else 0
    usd = call_cost(tick.plan.settings.prices, call)
    says_nothing = call.cost_usd is None and not tokens and bool(most.tokens or most.nanos)
    if says_nothing or (most.nanos and usd is None):
        return None
    return Amount(usd_to_nanos(usd or 0.0), tokens)


def call_cost(prices: Mapping[str, Price], call: Call) -> float | None:
    """What a call cost in USD: what the other side said, else tokens by price; None where there is no price, or it cannot be."""
    if call.cost_usd is not None:
        return call.cost_usd
    price = prices.get(call.model or "")
    if price is None or call.tokens is None:
        return None
    tokens = call.tokens
    parts = (
        tokens.input * price.input,
        tokens.output * price.output,
        tokens.cache_read * price.cache_read,
        tokens.cache_write * price.cache_write,
    )
    return agent_json.parse_cost(sum(parts) / TOKENS_PER_PRICE)

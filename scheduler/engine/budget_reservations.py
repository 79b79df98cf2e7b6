"""Budgets: an attempt begins only if the most that it can take still fits into the day, and pays what it took when it ends."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date, datetime

from scheduler.engine import money
from scheduler.engine.turn import Turn
from scheduler.model.budget import ALL, NOTHING, Account, Allowance, Amount, Budget, Reserved, Scope, nanos
from scheduler.model.entry import Claim, Entry
from scheduler.model.outcome import Call, Ending, Failure, Kind, Outcome
from scheduler.store import spend

# Who answers so has not taken the question up, and takes no money for it.
REFUSED = frozenset(
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


def admit(turn: Turn, claim: Claim, *, first: bool) -> Claim:
    """The claim with the most that it can take reserved in every budget of its entry, or marked as over one of them.

    `first`: this attempt begins the run, and counts as one. An entry without a budget costs no statement.
    """
    allowance = _allowance(turn, claim.entry)
    if allowance is None:
        return claim
    most = replace(allowance.most, runs=int(first))
    accounts = _accounts(turn, claim.entry, allowance)
    lacking = _shortage(turn, accounts, most)
    if lacking is not None:
        return replace(claim, over_budget=lacking.said)
    for account, budget in accounts:
        spend.reserve(turn, account, budget, most)
    spend.charge(turn, claim.run_id, most)
    return replace(claim, reserved=Reserved(tuple(account for account, _ in accounts), most, allowance.input_tokens))


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why an attempt has no room in a budget, in words, and when the day of that is over."""

    said: str
    ends: datetime


def shortage(turn: Turn, entry: Entry, *, first: bool) -> Shortage | None:
    """Why a further attempt of a run, or the `first` of a new one, would be over one of its budgets; None if it would not."""
    allowance = _allowance(turn, entry)
    if allowance is None:
        return None
    return _shortage(turn, _accounts(turn, entry, allowance), replace(allowance.most, runs=int(first)))


def follow(turn: Turn) -> None:
    """Let the days of today show the budgets in force, for whoever reads them without a config; all others are over."""
    for row in spend.near(turn.db, turn.now):
        account = Account(date.fromisoformat(row["day"]), (row["kind"], row["name"]))
        budget = _in_force(turn, account.scope)
        if budget is not None and budget.day(turn.now) == account.day:
            spend.bound(turn, account, budget)
        else:
            spend.end(turn, account)


def _in_force(turn: Turn, scope: Scope) -> Budget | None:
    if scope == ALL:
        return turn.limits.budget
    found = turn.plan.settings.allowances.get((Kind(scope[0]), scope[1]))
    return found.own if found else None


def settle(turn: Turn, claim: Claim, ending: Ending) -> None:
    """Put what an attempt took in the place of what was reserved for it; what nobody knows stays reserved."""
    if claim.reserved is None:
        return
    difference = _taken(turn, claim.reserved.most, ending) - claim.reserved.most
    if difference == NOTHING:
        return
    spend.change(turn, claim.reserved.accounts, difference)
    spend.charge(turn, claim.run_id, difference)


def _allowance(turn: Turn, entry: Entry) -> Allowance | None:
    return turn.plan.settings.allowances.get((entry.kind, entry.name))


def _accounts(turn: Turn, entry: Entry, allowance: Allowance) -> list[tuple[Account, Budget]]:
    budgets = allowance.budgets(entry.kind, entry.name)
    return [(Account(budget.day(turn.now), scope), budget) for scope, budget in budgets]


def _shortage(turn: Turn, accounts: list[tuple[Account, Budget]], most: Amount) -> Shortage | None:
    """Of several, the one that lasts longest."""
    spent = [(account, budget, spend.spent(turn.db, account)) for account, budget in accounts]
    short = [_told(account, budget, used, most) for account, budget, used in spent if not budget.allows(used + most)]
    return max(short, key=lambda each: each.ends, default=None)


def _told(account: Account, budget: Budget, used: Amount, most: Amount) -> Shortage:
    ends = budget.ends(account.day)
    prefix = "limits.budget." if account.scope == ALL else ""
    lacks = ", ".join(prefix + lack for lack in budget.lacks(used, most))
    return Shortage(f"{lacks}; until {ends.astimezone(budget.zone):%Y-%m-%d %H:%M} {budget.zone.key}", ends)


def _taken(turn: Turn, most: Amount, ending: Ending) -> Amount:
    if not ending.calls:
        return NOTHING if _asked_nobody(ending) else most
    parts = [_of(turn, most, call) for call in ending.calls]
    known = sum((part for part in parts if part is not None), Amount(runs=most.runs))
    if None not in parts and ending.outcome is not Outcome.ASYNC:  # what answers later has not taken all yet
        return known
    return Amount(max(known.nanos, most.nanos), max(known.tokens, most.tokens), most.runs)


def _asked_nobody(ending: Ending) -> bool:
    """Whether the agent was not asked; an ending without calls that does not say so is one that we made up."""
    return ending.outcome is Outcome.SKIPPED or ending.precheck is not None


def _of(turn: Turn, most: Amount, call: Call) -> Amount | None:
    """What a call took; None where nobody said it, or said what cannot be: that a model read and wrote nothing."""
    if call.tokens is None and call.cost_usd is None:
        return NOTHING if call.unheard or call.failure in REFUSED else None
    tokens = call.tokens.total if call.tokens else 0
    usd = money.cost(turn.plan.settings.prices, call)
    says_nothing = call.cost_usd is None and not tokens and bool(most.tokens or most.nanos)
    if says_nothing or (most.nanos and usd is None):
        return None
    return Amount(nanos(usd or 0.0), tokens)

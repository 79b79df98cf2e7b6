"""Records the model calls of an attempt: usage and cost, budgets, circuit breakers and problems of providers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from heartbeat.runners import Tokens
from scheduler.engine import budget_reservations, provider_problems, wake_starts
from scheduler.engine.tick_items import Tick
from scheduler.model.budget import Price, call_cost
from scheduler.model.circuit import is_answered
from scheduler.model.entry import Claim
from scheduler.model.events import CallCharged, ModelMismatched, ProviderCalled, ProviderFailed
from scheduler.model.outcome import ANSWERED, LONGEST_RETRY_AFTER, AttemptResult, Call, Failure
from scheduler.store import breakers, runs
from scheduler.store.transaction import Transaction

NO_WAIT = timedelta()


def record_calls(tick: Tick, claim: Claim, result: AttemptResult) -> None:
    """Record all calls of a finished attempt. Nothing is recorded if the run no longer belongs to the claim.

    1. The usage is added to the run, and replaces the reservation in the budgets.
    2. Each call is reported as events, for log and metrics.
    3. Circuit breakers open and close by the calls, and problems of providers end.
    4. Probes that the attempt was allowed to make and did not make are returned.
    5. If a breaker closed or a probe was returned, waiting runs and wakes are reconsidered.
    """
    if not (result.calls or claim.facts.probes or claim.facts.reserved):
        return
    prices = tick.plan.settings.prices
    if not record_usage(tick.tx, prices, claim, result):
        return
    budget_reservations.settle_reservation(tick.tx, prices, claim, result)
    for call in result.calls:
        _report_call(tick.tx, claim, call)
    # A call by an older config says nothing about the provider as it is declared now, which may have a new key.
    is_current = tick.plan.entries.get(claim.entry.key) == claim.entry
    relevant = [call for call in result.calls if call.provider and is_current and not _was_cancelled_by_us(call)]
    closed = [
        circuit
        for call in relevant
        for circuit in breakers.record_call(tick.tx, claim, call, provider_problems.refusal_text(call.provider, result))
    ]
    for circuit in closed:
        provider_problems.record_closed_breaker(tick, claim, circuit)
    for call in relevant:
        if is_answered(call) and result.outcome in ANSWERED:
            provider_problems.record_answer(tick, claim, call)
    wait = min(max((call.retry_after or NO_WAIT for call in relevant), default=NO_WAIT), LONGEST_RETRY_AFTER)
    given_back = bool(claim.facts.probes) and breakers.return_probes(tick.tx, claim, called=bool(result.calls), wait=wait)
    if closed or given_back:
        wake_starts.retry_blocked_runs_and_wakes(tick)


def _report_call(tx: Transaction, claim: Claim, call: Call) -> None:
    entry = claim.entry
    if call.provider is not None and not _was_cancelled_by_us(call):
        problem = call.failure or (Failure.TOOL_USE if call.tools_ignored else None)
        tx.report(ProviderCalled(claim.run.id, call.provider, call.model or "", problem or "ok", call.took))
        if call.failure is not None:
            tx.report(ProviderFailed(call.provider, call.failure))
    if call.provider is not None and call.tools_ignored:
        tx.report(ProviderFailed(call.provider, Failure.TOOL_USE))
    if call.model and call.model_used and not _is_requested_model(call.model, call.model_used):
        tx.report(ModelMismatched(entry.kind, entry.name, call.model, call.model_used))


def _was_cancelled_by_us(call: Call) -> bool:
    """Whether the daemon cancelled the call, which says nothing about the provider. No other call fails with `exit`."""
    return call.failure is Failure.EXIT


def _is_requested_model(requested: str, used: str) -> bool:
    """Whether the model that answered is the requested one. A provider may append the date of its version."""
    return used == requested or used.startswith(f"{requested}-2")


def record_usage(tx: Transaction, prices: Mapping[str, Price], claim: Claim, result: AttemptResult) -> bool:
    """Add the usage of an attempt's calls to its run. False, and nothing is written, if the run no longer belongs to the claim.

    Calls without usage are not counted.
    """
    charged = [call for call in result.calls if call.tokens is not None or call.cost_usd is not None]
    paid = [(call, call_cost(prices, call)) for call in charged]
    if not paid:
        return runs.owns_run(tx, claim)
    costs = [usd for _, usd in paid if usd is not None]
    tokens = sum((call.tokens for call, _ in paid if call.tokens is not None), start=Tokens())
    by_model = [(call.model or call.model_used or "", call.tokens or Tokens(), usd) for call, usd in paid]
    if not runs.add_usage(tx, claim, tokens, sum(costs) if len(costs) == len(paid) else None, by_model):
        return False
    for call, usd in paid:
        tx.report(CallCharged(claim.entry.kind, claim.entry.name, call.model, call.tokens, usd, result.outcome))
    return True

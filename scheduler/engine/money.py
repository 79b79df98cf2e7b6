"""Money: what a call cost by the prices of the config, and that every token is booked to the run that took it."""

from __future__ import annotations

from collections.abc import Mapping

from heartbeat.runners import Tokens, agent_json
from scheduler.engine.tick import Tick
from scheduler.model.entry import Claim
from scheduler.model.events import CallCharged
from scheduler.model.outcome import AttemptResult, Call
from scheduler.model.settings import Price
from scheduler.store import runs

MILLION = 1_000_000


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
    return agent_json.parse_cost(sum(parts) / MILLION)


def record_usage(tick: Tick, claim: Claim, result: AttemptResult) -> bool:
    """Add what the calls of an attempt took to its run's row; False, and nothing booked, when that is no longer the claim's.

    A call that took nothing leaves no trace.
    """
    prices = tick.plan.settings.prices
    paid = [(call, call_cost(prices, call)) for call in result.calls if call.tokens is not None or call.cost_usd is not None]
    if not paid:
        return runs.owns_run(tick.tx, claim)
    costs = [usd for _, usd in paid if usd is not None]
    tokens = sum((call.tokens for call, _ in paid if call.tokens is not None), start=Tokens())
    if not runs.add_usage(tick.tx, claim, tokens, sum(costs) if len(costs) == len(paid) else None):
        return False
    for call, usd in paid:
        tick.tx.report(CallCharged(claim.entry.kind, claim.entry.name, call.model, call.tokens, usd, result.outcome))
    return True

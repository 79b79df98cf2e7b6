"""Money: what a call cost by the prices of the config, and that every token is booked to the run that took it."""

from __future__ import annotations

from collections.abc import Mapping

from heartbeat.runners import Tokens, data
from scheduler.events import Paid
from scheduler.outcome import Call, Ending
from scheduler.settings import Price
from scheduler.tables import history
from scheduler.tables.history import Taken
from scheduler.turn import Turn
from scheduler.work.entry import Claim

MILLION = 1_000_000


def cost(prices: Mapping[str, Price], call: Call) -> float | None:
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
    return data.cost(sum(parts) / MILLION)


def book(turn: Turn, claim: Claim, before: Taken, ending: Ending) -> None:
    """Add what the calls of an attempt took to its run's row; one that took nothing leaves no trace.

    Once a call has no price, the run's cost is unknown for good: a part is not the whole.
    """
    after = before
    for call in ending.calls:
        if call.tokens is None and call.cost_usd is None:
            continue
        paid = cost(turn.plan.settings.prices, call)
        after = _sum(after, call.tokens or Tokens(), paid)
        turn.tell(Paid(claim.entry.kind, claim.entry.name, call.model, call.tokens, paid, ending.outcome))
    if after is not before:
        history.note_taken(turn, claim.run_id, after)


def _sum(before: Taken, tokens: Tokens, paid: float | None) -> Taken:
    total = {kind: before.tokens.get(kind, 0) + count for kind, count in tokens.by_kind().items()}
    return Taken(total, before.cost_usd + paid if before.cost_usd is not None and paid is not None else None)

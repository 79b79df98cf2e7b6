"""Money: what a call cost by the prices of the config, and that every token is booked to the run that took it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict

from heartbeat.runners import Tokens, data
from scheduler.events import Paid
from scheduler.outcome import Call, Outcome
from scheduler.settings import Price
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


def book(turn: Turn, claim: Claim, call: Call, outcome: Outcome) -> None:
    """Add what a call took to its run's row, beside what earlier calls took; one that took nothing leaves no trace.

    Once a call has no price, the run's cost is unknown for good: a part is not the whole.
    """
    if call.tokens is None and call.cost_usd is None:
        return
    paid = cost(turn.plan.settings.prices, call)
    _add(turn, claim.run_id, call.tokens or Tokens(), paid)
    turn.tell(Paid(claim.entry.kind, claim.entry.name, call.model, call.tokens, paid, outcome))


def _add(turn: Turn, run_id: int, tokens: Tokens, paid: float | None) -> None:
    row = turn.db.execute("select tokens, cost_usd from run where id = ?", (run_id,)).fetchone()
    before = json.loads(row["tokens"]) if row["tokens"] else None
    total = {kind: (before or {}).get(kind, 0) + count for kind, count in asdict(tokens).items()}
    known = before is None or row["cost_usd"] is not None
    sum_usd = (row["cost_usd"] or 0.0) + paid if known and paid is not None else None
    turn.db.execute("update run set tokens = ?, cost_usd = ? where id = ?", (json.dumps(total), sum_usd, run_id))

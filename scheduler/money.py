"""Money: what a call cost by the prices of the config, and that every token is booked to the run that took it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict

from heartbeat.runners import Tokens
from scheduler.entry import Claim
from scheduler.events import Paid
from scheduler.outcome import Ending, Spent
from scheduler.settings import Price
from scheduler.turn import Turn

MILLION = 1_000_000


def cost(prices: Mapping[str, Price], spent: Spent) -> float | None:
    """What a call cost in USD: what the other side said, else tokens by price; None where there is no price."""
    if spent.cost_usd is not None:
        return spent.cost_usd
    price = prices.get(spent.model or "")
    if price is None or spent.tokens is None:
        return None
    tokens = spent.tokens
    parts = (
        tokens.input * price.input,
        tokens.output * price.output,
        tokens.cache_read * price.cache_read,
        tokens.cache_write * price.cache_write,
    )
    return sum(parts) / MILLION


def book(turn: Turn, claim: Claim, ending: Ending) -> None:
    """Add what an attempt took to its run's row, beside what earlier attempts took."""
    for spent in ending.spent:
        paid = cost(turn.plan.settings.prices, spent)
        _add(turn, claim.run_id, spent.tokens or Tokens(), paid)
        turn.tell(Paid(claim.entry.kind, claim.entry.name, spent.model, spent.tokens, paid, ending.outcome))


def _add(turn: Turn, run_id: int, tokens: Tokens, paid: float | None) -> None:
    row = turn.db.execute("select tokens from run where id = ?", (run_id,)).fetchone()
    before = json.loads(row["tokens"]) if row["tokens"] else {}
    total = {kind: before.get(kind, 0) + count for kind, count in asdict(tokens).items()}
    turn.db.execute(
        "update run set tokens = ?, cost_usd = case when ? is null then cost_usd else coalesce(cost_usd, 0) + ? end where id = ?",
        (json.dumps(total), paid, paid, run_id),
    )

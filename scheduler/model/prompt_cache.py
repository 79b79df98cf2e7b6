"""Decides whether a provider is asked to keep the part of an agent's prompt that is the same in each run, and for how long.

Writing to the cache costs more than input (1.25 times for five minutes, twice for an hour), reading from it a tenth. So it pays
only if the next call comes in time. The last calls show how likely that is; before there are any, the interval does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from heartbeat.runners import CachePlan, CacheTtl
from scheduler.model.budget import Price, highest_input_price

LIFETIMES: dict[CacheTtl, timedelta] = {"5m": timedelta(minutes=4, seconds=40), "1h": timedelta(minutes=57)}
"""How long after the start of a call the next one still finds its part, with some time for a late start and a slow answer."""
LOOKS_KEPT = 8  # the last calls that decide
TRUST = 2  # the interval counts as much as this many calls
MOST_HITS = 50.0  # in a row, if every call was in time
MISSES = 2  # in a row, after which a provider is not asked
REST = timedelta(days=1)  # for so long
SURE = 1.2  # the expected saving must be this many times the price of writing
USUAL = Price(1.0, 5.0, 0.1, 1.25, 2.0)  # the ratios of a model without a price


@dataclass(frozen=True, slots=True)
class CacheLook:
    """What is known of the prompt of an earlier run: when it began, what was the same, and what the provider kept and used."""

    at: datetime
    digest: str
    ttl: CacheTtl | None
    read: int  # tokens
    written: int
    calls: int  # of models: its turns with tools


def plan_cache(
    looks: Sequence[CacheLook], asked: Sequence[CacheLook], now: datetime, expected: timedelta | None, price: Price | None
) -> CachePlan:
    """What the next call does.

    `looks` are the last runs and `asked` the last of those that asked the provider to keep the part, the latest first. `expected`
    is when a call usually follows another.

    1. If the provider did not have the part twice when it should have, it is not asked for a day.
    2. A part that was written in time is used again, because reading costs least.
    3. Otherwise it is written for the time that saves most, if the calls after it are likely to save more than that costs.
    """
    price = price or USUAL
    turns = round(sum(look.calls for look in looks) / len(looks)) if looks else 1
    ttl = None if _is_refused(asked, now) else _warm_ttl(looks, now) or _best_ttl(looks, expected, price)
    if ttl is None:
        return CachePlan(turns=turns)
    reserved = highest_input_price(price)
    return CachePlan(ttl, _write_price(price, ttl) / reserved if reserved else 1.0, turns)


def why_not_kept(looks: Sequence[CacheLook], asked: Sequence[CacheLook], now: datetime) -> str:
    """Why the part of the last prompt was not kept. `looks` and `asked` are as in `plan_cache`; there is at least one look."""
    if _is_refused(asked, now):
        return f"because the provider did not have it {MISSES} times in a row; it is asked again after a day"
    if len(looks) > 1 and looks[0].digest != looks[1].digest:
        return "because it changes from run to run"
    if len(looks) > 1 and looks[0].at - looks[1].at > LIFETIMES["1h"]:
        return "because the next call comes too late to use it"
    return "because too few calls use it in time, or its price for writing does not fit into what a budget has reserved"


def _is_refused(asked: Sequence[CacheLook], now: datetime) -> bool:
    """Whether the provider did not have the part when it should have, as often as counts, and lately."""
    return len(asked) > MISSES and now - asked[0].at < REST and not any(map(_was_found, asked, asked[1:]))


def _was_found(later: CacheLook, earlier: CacheLook) -> bool:
    """Whether the provider still had what it was asked to keep, or need not have had it any more."""
    assert earlier.ttl is not None
    in_time = later.at - earlier.at <= LIFETIMES[earlier.ttl] and later.digest == earlier.digest
    return bool(later.read) or not later.written or not in_time


def _warm_ttl(looks: Sequence[CacheLook], now: datetime) -> CacheTtl | None:
    """For how long the provider still has the part of the last call; None if it does not have it."""
    last = looks[0] if looks else None
    if last is None or last.ttl is None or not (last.read or last.written):
        return None
    return last.ttl if now - last.at <= LIFETIMES[last.ttl] and _changes_rarely(looks) else None


def _changes_rarely(looks: Sequence[CacheLook]) -> bool:
    """Whether the part of the last call was that of the call before; otherwise it will probably change again."""
    return len(looks) < 2 or looks[0].digest == looks[1].digest


def _best_ttl(looks: Sequence[CacheLook], expected: timedelta | None, price: Price) -> CacheTtl | None:
    gains = {ttl: _expected_gain(ttl, looks, expected, price) for ttl in LIFETIMES}
    best = max(gains, key=lambda ttl: gains[ttl])
    return best if gains[best] > 0 else None


def _expected_gain(ttl: CacheTtl, looks: Sequence[CacheLook], expected: timedelta | None, price: Price) -> float:
    """What writing a token of the part now is expected to save until the provider drops it; below 0: it costs more."""
    likely = TRUST if expected is not None and expected <= LIFETIMES[ttl] else 0
    pairs = list(pairwise(looks))
    hits = sum(_was_hit(ttl, later, earlier) for later, earlier in pairs)
    share = (likely + hits) / (TRUST + len(pairs))
    in_a_row = min(share / (1 - share), MOST_HITS) if share < 1 else MOST_HITS
    return in_a_row * (price.input - price.cache_read) - SURE * (_write_price(price, ttl) - price.input)


def _was_hit(ttl: CacheTtl, later: CacheLook, earlier: CacheLook) -> bool:
    """Whether a call could use the part of the call before."""
    return later.at - earlier.at <= LIFETIMES[ttl] and later.digest == earlier.digest


def _write_price(price: Price, ttl: CacheTtl) -> float:
    return price.cache_write_1h if ttl == "1h" else price.cache_write

"""Finds the price of a model in the list of the library genai-prices, for models without an entry in `prices`.

This is the only module that imports the library. The import takes a third of a second, so it happens when the first such model is
looked up. The list is the one in the installed version: the library's download of newer prices is never started.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from functools import cache
from typing import Any

from scheduler.model.budget import Price, PriceVariant

CACHE_WRITE = 1.25  # times the price of input: what a cache that lives for five minutes costs
CACHE_WRITE_1H = 2.0  # the same for a cache that lives for an hour


@cache
def find_listed_price(model: str, provider: str, url: str | None) -> Price | None:
    """The price of a model at `provider` (the kind of API) or, if it is set, at the address `url`. None if it is not listed."""
    try:
        _, found = _list().find_provider_model(model, None, None if url else provider, url)
    except LookupError:  # also an address that belongs to no provider of the list, such as that of a local server
        return None
    variants = [each for each in _variants(found.prices) if each is not None]
    return replace(variants[0].price, variants=tuple(variants[1:]), listed=True) if variants else None


def describe_list(today: date) -> tuple[str, date]:
    """The version of the library, and the latest day up to `today` on which one of its prices began."""
    from importlib.metadata import version

    dates = {
        each.constraint.start_date
        for provider in _list().providers
        for model in provider.models
        for each in (model.prices if isinstance(model.prices, list) else ())
        if hasattr(each.constraint, "start_date")
    }
    return version("genai-prices"), max((each for each in dates if each <= today), default=date.min)


@cache
def _list() -> Any:
    from genai_prices import data_snapshot

    return data_snapshot.get_snapshot()


def _variants(prices: object) -> list[PriceVariant]:
    """The prices, the later ones before the earlier ones in force: by the day from which they apply, and the size of the request.

    A price for some hours of the day counts at any hour, if it is the higher one.
    """
    found: list[PriceVariant] = []
    for each in prices if isinstance(prices, list) else [None]:
        listed, constraint = (prices, None) if each is None else (each.prices, each.constraint)
        is_hourly = constraint is not None and not hasattr(constraint, "start_date")
        thresholds = {tier.start for value in vars(listed).values() for tier in getattr(value, "tiers", ())}
        for above in sorted({0, *thresholds}):
            price = _flat_price(listed, above)
            if price is None or (is_hourly and found and price.input <= found[0].price.input):
                continue
            found.append(PriceVariant(price, above, getattr(constraint, "start_date", None)))
    return found


def _flat_price(listed: object, above: int) -> Price | None:
    """The prices of a request with more than `above` input tokens; None if the model is not sold by tokens of text."""
    given = {key: _value_above(value, above) for key, value in vars(listed).items() if value is not None}
    own, output = given.get("input_mtok"), given.get("output_mtok")
    if own is None or output is None:
        return None
    write = given.get("cache_write_mtok", given.get("cache_write_5m_mtok", own * CACHE_WRITE))
    hour = given.get("cache_write_1h_mtok", own * CACHE_WRITE_1H)
    return Price(own, output, given.get("cache_read_mtok", own), write, hour)


def _value_above(value: Any, above: int) -> float:
    tiers = [tier.price for tier in getattr(value, "tiers", ()) if tier.start <= above and above]
    return float(tiers[-1] if tiers else getattr(value, "base", value))

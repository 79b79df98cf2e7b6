"""What models cost, as the config says it, and which of those that are asked have no price there."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping

from scheduler.config.build.config_node import ConfigNode
from scheduler.config.file.marked_yaml import printable_key
from scheduler.config.keys import models
from scheduler.model.settings import Price

CACHE_WRITE = 1.25  # times the price of input: what a cache that lives for five minutes costs

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9._/-]*")


class Prices:
    """The prices by model; a model without one is told once, where it is first asked.

    `written` are the models for which the file writes a price; one that is not among `parts` is `mispriced`, a fault of its own.
    """

    def __init__(self, parts: Mapping[str, models.Price], written: Collection[str]) -> None:
        self.by_model = {model: _build_price(part) for model, part in parts.items()}
        self.mispriced = set(written) - self.by_model.keys()
        self._reported: set[str] = set()

    def check_price(self, model: str, node: ConfigNode, *inside: str) -> None:
        """Warn at `inside` if nobody knows what this model costs, unless prices have faults: one of them may be meant for it."""
        if self.mispriced or model in self.by_model or model in self._reported:
            return
        self._reported.add(model)
        told = f"no price is known for it, so that its cost is not counted; write {price_line(model)}, in USD per million tokens"
        node.add_warning(told, *inside)


def price_line(model: str) -> str:
    """The line of the file that gives a model its price; figures to be replaced."""
    return f"prices: {{{_format_key(model)}: {{input: 1.0, output: 5.0}}}}"


def _format_key(model: str) -> str:
    """The name as it is written before a colon."""
    return model if _PLAIN.fullmatch(model) else json.dumps(printable_key(model), ensure_ascii=False)


def _build_price(part: models.Price) -> Price:
    return Price(
        input=part.input,
        output=part.output,
        cache_read=part.input if part.cache_read is None else part.cache_read,
        cache_write=part.input * CACHE_WRITE if part.cache_write is None else part.cache_write,
    )

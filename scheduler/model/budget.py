"""Allowances: what may be spent in a day, and the most that one attempt of an entry can take of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from math import ceil
from typing import Protocol
from zoneinfo import ZoneInfo

from heartbeat.spec import Agent, Heartbeat, ModelRunner
from scheduler.model import local_days
from scheduler.model.outcome import Kind

NANO = 1_000_000_000  # of them make one USD: sums of whole numbers do not drift
PER_TOKEN = NANO // 1_000_000  # nanos a token, for one USD per million


Scope = tuple[str, str]  # kind and name of an entry
ALL_ENTRIES: Scope = ("", "")


@dataclass(frozen=True, slots=True)
class Amount:
    """Money in billionths of a USD, tokens of all kinds together, and runs."""

    nanos: int = 0
    tokens: int = 0
    runs: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.nanos + other.nanos, self.tokens + other.tokens, self.runs + other.runs)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.nanos - other.nanos, self.tokens - other.tokens, self.runs - other.runs)

    @property
    def usd(self) -> float:
        return self.nanos / NANO


NO_USAGE = Amount()


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be spent in one day of `zone`; None is no bound of that sort."""

    zone: ZoneInfo
    usd_per_day: float | None = None
    tokens_per_day: int | None = None
    runs_per_day: int | None = None

    def allows(self, spent: Amount) -> bool:
        """Whether a day may come to this."""
        return all(used <= ceiling for _, used, ceiling in self.usage_by_limit(spent))

    def usage_by_limit(self, spent: Amount) -> Iterator[tuple[str, float, float]]:
        """Each bound that there is by its key, with what is used of it and the bound itself; money in USD."""
        found = (
            ("usd_per_day", spent.usd, self.usd_per_day),
            ("tokens_per_day", spent.tokens, self.tokens_per_day),
            ("runs_per_day", spent.runs, self.runs_per_day),
        )
        return ((key, used, ceiling) for key, used, ceiling in found if ceiling is not None)

    def exceeded_limits(self, spent: Amount, most: Amount) -> list[str]:
        """Each bound that leaves no room for `most` beside what is spent, in words."""
        asked = zip(self.usage_by_limit(spent), self.usage_by_limit(most), self.usage_by_limit(spent + most), strict=True)
        return [_exceeded_text(*used, takes) for used, (_, takes, _), (_, both, bound) in asked if both > bound]

    def local_day(self, now: datetime) -> date:
        """The local day that an attempt counts for which begins at `now`."""
        return now.astimezone(self.zone).date()

    def day_end(self, day: date) -> datetime:
        """When that day is over: the first instant of the next one."""
        return local_days.whole_day(day, self.zone).ends


def _exceeded_text(key: str, used: float, bound: float, takes: float) -> str:
    unit = {"usd_per_day": " USD", "tokens_per_day": " tokens"}.get(key, "")
    more = f", and one run may take {_format_amount(takes)}" if unit else ""
    return f"{key}: {_format_amount(used)} of {_format_amount(bound)}{unit} are used{more}"


def _format_amount(amount: float) -> str:
    return f"{amount:,}" if isinstance(amount, int) else f"{amount:,.6f}".rstrip("0").rstrip(".")


@dataclass(frozen=True, slots=True)
class BudgetDay:
    """One day of one entry, or of all of them."""

    day: date
    scope: Scope

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.day.isoformat(), *self.scope)


@dataclass(frozen=True, slots=True)
class Reservation:
    """What an attempt has reserved for itself, and where; `input_tokens` is how long its prompts may be for that to be enough."""

    days: tuple[BudgetDay, ...]
    amount: Amount
    input_tokens: int | None


@dataclass(frozen=True, slots=True)
class ModelCallLimit:
    """One call of a model that an attempt may make: USD per million tokens at their dearest, and how much may be answered."""

    model: str
    output_tokens: int
    input_price: float | None
    output_price: float | None

    @property
    def priced(self) -> bool:
        return self.input_price is not None


@dataclass(frozen=True, slots=True)
class AttemptUsage:
    """What one attempt asks: models, each within bounds, and where `blind` an agent of which nobody knows what it takes.

    `input_tokens` is how long each prompt may be; `usd_per_run` what the blind agent takes by its owner's word.
    """

    model_calls: tuple[ModelCallLimit, ...]
    has_unknown_usage: bool
    input_tokens: int
    usd_per_run: float | None = None

    @property
    def priced(self) -> bool:
        """Whether every model that it asks has a price."""
        return all(question.priced for question in self.model_calls)

    @property
    def max_usage(self) -> Amount:
        """The most that it can take; what nobody knows counts nothing here."""
        own = usd_to_nanos(self.usd_per_run or 0.0) if self.has_unknown_usage else 0
        tokens = sum(self.input_tokens + question.output_tokens for question in self.model_calls)
        return Amount(own + sum(map(self._max_cost, self.model_calls)), tokens, 1)

    def _max_cost(self, question: ModelCallLimit) -> int:
        asked = self.input_tokens * (question.input_price or 0.0)
        answered = question.output_tokens * (question.output_price or 0.0)
        return ceil(round((asked + answered) * PER_TOKEN, 3))

    def input_tokens_within(self, usd: float) -> int | None:
        """How long each prompt may be for the models to take no more than this; None: as long as it likes."""
        price = sum(question.input_price or 0.0 for question in self.model_calls)
        answers = sum(question.output_tokens * (question.output_price or 0.0) for question in self.model_calls)
        return int((usd_to_nanos(usd) / PER_TOKEN - answers) / price) if price else None


class TokenPrices(Protocol):
    """What a model costs, in USD per million tokens."""

    @property
    def input(self) -> float: ...
    @property
    def output(self) -> float: ...
    @property
    def cache_read(self) -> float: ...
    @property
    def cache_write(self) -> float: ...


def heartbeat_usage(beat: Heartbeat, prices: Mapping[str, TokenPrices], usd_per_run: float | None) -> AttemptUsage:
    """What one attempt of a heartbeat asks: whoever decides first, then the agent."""
    asked = [(beat.decide.model, beat.decide.runner)] if beat.decide else []
    if isinstance(beat.runner, ModelRunner):
        asked.append((beat.model or "", beat.runner))
    questions = tuple(_model_call_limit(model, runner, prices.get(model)) for model, runner in asked)
    return AttemptUsage(questions, not isinstance(beat.runner, ModelRunner), beat.max_input_tokens, usd_per_run)


def agent_usage(agent: Agent, prices: Mapping[str, TokenPrices], usd_per_run: float | None) -> AttemptUsage:
    """What one attempt of a job's prompt asks."""
    asked = [(agent.model or "", agent.runner)] if isinstance(agent.runner, ModelRunner) else []
    questions = tuple(_model_call_limit(model, runner, prices.get(model)) for model, runner in asked)
    return AttemptUsage(questions, not questions, agent.max_input_tokens, usd_per_run)


def _model_call_limit(model: str, runner: ModelRunner, price: TokenPrices | None) -> ModelCallLimit:
    """What is asked counts at its dearest: a gateway may put it into its cache, though we do not ask for that."""
    if price is None:
        return ModelCallLimit(model, runner.max_output_tokens, None, None)
    dearest = max(price.input, price.cache_read, price.cache_write)
    return ModelCallLimit(model, runner.max_output_tokens, dearest, price.output)


@dataclass(frozen=True, slots=True)
class Allowance:
    """What one entry may spend: within its own budget, within that for all, and `most` in one attempt.

    `input_tokens` is how long its prompts may be at one token a byte, so that `most` is the most; None where no model is asked.
    """

    own: Budget | None
    shared: Budget | None
    max_usage: Amount
    input_tokens: int | None
    usd_per_run: float | None = None

    def budgets(self, kind: Kind, name: str) -> Iterator[tuple[Scope, Budget]]:
        """Each budget that binds the entry, and whose spending it bounds."""
        if self.own is not None:
            yield (kind.value, name), self.own
        if self.shared is not None:
            yield ALL_ENTRIES, self.shared


Allowances = Mapping[tuple[Kind, str], Allowance]


def usd_to_nanos(usd: float) -> int:
    """USD as it is added up."""
    return round(usd * NANO)

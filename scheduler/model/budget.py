"""Works out budgets: what may be spent in a day or a month, and the maximum that one attempt of an entry can use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime
from math import ceil
from zoneinfo import ZoneInfo

from heartbeat.runners import TurnBudget, agent_json
from heartbeat.spec import Agent, Called, ModelRunner
from scheduler.model import local_days
from scheduler.model.local_days import LocalDay
from scheduler.model.outcome import Call, Key, Kind

NANO = 1_000_000_000  # nanos per USD: sums of whole numbers have no rounding error
TOKENS_PER_PRICE = 1_000_000  # prices are USD per million tokens
PER_TOKEN = NANO // 1_000_000  # nanos per token at one USD per million tokens


LEAST_UNKNOWN = 0.000001  # USD; less is the difference of two sums

LIMITS = ("usd_per_day", "tokens_per_day", "runs_per_day", "usd_per_month")
"""The config key of each limit of a budget."""
MONTH_LIMIT = "usd_per_month"
USD_LIMITS = ("usd_per_day", MONTH_LIMIT)


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

    def of_limit(self, key: str) -> float:
        """The part of this amount that a limit counts, by its config key."""
        return self.usd if key in USD_LIMITS else {"tokens_per_day": self.tokens, "runs_per_day": self.runs}[key]


NO_USAGE = Amount()


@dataclass(frozen=True, slots=True)
class Spent:
    """What was spent on a day, and in its month. The month is only known to readers of a budget that limits it."""

    day: Amount = NO_USAGE
    month: Amount = NO_USAGE

    def __add__(self, more: Amount) -> Spent:
        return Spent(self.day + more, self.month + more)

    def of_limit(self, key: str) -> float:
        """What a limit counts of it, by its config key."""
        return (self.month if key == MONTH_LIMIT else self.day).of_limit(key)


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be spent in one local day, and in one local month, of `zone`. None means no limit of that kind."""

    zone: ZoneInfo
    usd_per_day: float | None = None
    tokens_per_day: int | None = None
    runs_per_day: int | None = None
    usd_per_month: float | None = None

    @property
    def limits(self) -> tuple[float | None, ...]:
        """The value of each of LIMITS, in their order."""
        return self.usd_per_day, self.tokens_per_day, self.runs_per_day, self.usd_per_month

    def usage_by_limit(self, spent: Spent) -> Iterator[tuple[str, float, float]]:
        """Each limit that is set, by its config key, with the usage and the limit itself; money in USD."""
        found = zip(LIMITS, self.limits, strict=True)
        return ((key, spent.of_limit(key), ceiling) for key, ceiling in found if ceiling is not None)

    def exceeded_limits(self, spent: Spent, most: Amount) -> list[str]:
        """The config key of each limit that `most` on top of `spent` would exceed."""
        return [key for key, both, bound in self.usage_by_limit(spent + most) if both > bound]

    def local_day(self, now: datetime) -> date:
        """The local day to which an attempt is charged that begins at `now`."""
        return now.astimezone(self.zone).date()

    def day_end(self, day: date) -> datetime:
        """When that day ends: the first instant of the next day."""
        return local_days.whole_day(day, self.zone).ends

    def period(self, key: str, day: date) -> LocalDay:
        """What a limit counts together: the day, or its month."""
        return (local_days.whole_month if key == MONTH_LIMIT else local_days.whole_day)(day, self.zone)


def exceeded_text(key: str, used: float, bound: float, takes: float, unknown_usd: float) -> str:
    """Says that a limit leaves no room for an attempt that may take so much. `unknown_usd` is the reserved part of `used`."""
    unit = " USD" if key in USD_LIMITS else {"tokens_per_day": " tokens"}.get(key, "")
    verb = "cost" if key in USD_LIMITS else "use"
    more = f", and one try may {verb} {format_amount(takes)}" if unit else ""
    unknown = describe_unknown(unknown_usd) if key in USD_LIMITS else ""
    return f"{key}: {format_amount(used)} of {format_amount(bound)}{unit} are used{unknown}{more}"


def describe_unknown(usd: float) -> str:
    """How much of an amount is reserved and not known to be spent, to follow the amount; empty if nothing is."""
    return f" ({format_amount(usd)} of it is reserved for runs of unknown cost)" if usd >= LEAST_UNKNOWN else ""


def format_amount(amount: float) -> str:
    """Tokens or runs as a whole number, money without zeros at the end."""
    return f"{amount:,}" if isinstance(amount, int) else f"{amount:,.6f}".rstrip("0").rstrip(".")


@dataclass(frozen=True, slots=True)
class BudgetDay:
    """One day of one entry, or of all entries together."""

    day: date
    scope: Scope

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.day.isoformat(), *self.scope)


@dataclass(frozen=True, slots=True)
class Reservation:
    """What an attempt has reserved, and on which days. The amount is an upper bound for prompts of at most `input_tokens`.

    `turns` is the part of it for the agent's model, and for the model of each fallback, at their prices.
    """

    days: tuple[BudgetDay, ...]
    amount: Amount
    input_tokens: int | None
    turns: tuple[TurnBudget | None, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelCallLimit:
    """The limits of one model call of an attempt: the highest prices in USD per million tokens, and the most output tokens.

    A model with tools is called in up to `turns` turns.
    """

    model: str
    output_tokens: int
    input_price: float | None
    output_price: float | None
    turns: int = 1

    @property
    def priced(self) -> bool:
        return self.input_price is not None


@dataclass(frozen=True, slots=True)
class AttemptUsage:
    """The maximum usage of one attempt: its model calls, and `programs`, agents that report no usage.

    `input_tokens` is the longest prompt. `usd_per_try` is what the config says that an agent of unknown usage costs. For models,
    it and `tokens_per_try` limit all calls of the attempt together. `fallbacks` has the model calls with each fallback in place
    of the agent, None for a program.
    """

    model_calls: tuple[ModelCallLimit, ...]
    programs: int
    input_tokens: int
    usd_per_try: float | None = None
    tokens_per_try: int | None = None
    fallbacks: tuple[tuple[ModelCallLimit, ...] | None, ...] = ()

    @property
    def has_unknown_usage(self) -> bool:
        """Whether it may call an agent that reports no usage."""
        return self.programs > 0

    @property
    def alternatives(self) -> tuple[AttemptUsage, ...]:
        """The usage without a fallback, and with each model that is one. Programs are not in it."""
        own = replace(self, programs=0, fallbacks=())
        return (own, *(replace(own, model_calls=calls) for calls in self.fallbacks if calls is not None))

    @property
    def all_models(self) -> tuple[ModelCallLimit, ...]:
        """All models that it may call."""
        return tuple(dict.fromkeys(question for each in self.alternatives for question in each.model_calls))

    @property
    def priced(self) -> bool:
        """Whether all its models have a price."""
        return all(question.priced for question in self.all_models)

    @property
    def max_usage(self) -> Amount:
        """The most that it can use. Unknown usage counts as nothing. A model with tools is stopped at the limits of a run.

        A fallback is only called if what the failed calls may have used leaves enough, so the most expensive model decides.
        """
        own = usd_to_nanos(self.usd_per_try or 0.0) * self.programs
        amounts = [each._max_of_models for each in self.alternatives]
        return Amount(own + max(each.nanos for each in amounts), max(each.tokens for each in amounts), 1)

    @property
    def _max_of_models(self) -> Amount:
        one_turn = self._of_turns(all_turns=False)
        most = self._of_turns(all_turns=True)
        nanos, tokens = most.nanos, most.tokens
        if self.usd_per_try is not None and self.priced:
            nanos = min(nanos, max(usd_to_nanos(self.usd_per_try), one_turn.nanos))
        if self.tokens_per_try is not None:
            tokens = min(tokens, max(self.tokens_per_try, one_turn.tokens))
        return Amount(nanos, tokens)

    @property
    def turn_budgets(self) -> tuple[TurnBudget | None, ...]:
        """What all requests to the agent's model may use, and to the model of each fallback; None for what is no model."""
        most = self.max_usage
        return tuple(self._turn_budget(calls, most) for calls in (self.model_calls, *self.fallbacks))

    def _turn_budget(self, calls: tuple[ModelCallLimit, ...] | None, most: Amount) -> TurnBudget | None:
        """A model that decides first, and programs, have their own part of the maximum."""
        *first, last = calls or (None,)
        if last is None:
            return None
        before = replace(self, model_calls=tuple(first), usd_per_try=None)._of_turns(all_turns=True)
        before += Amount(usd_to_nanos(self.usd_per_try or 0.0) * self.programs)
        usd = (most.nanos - before.nanos) / NANO if self.priced else None
        return TurnBudget(usd, most.tokens - before.tokens, last.input_price or 0.0, last.output_price or 0.0)

    def _of_turns(self, *, all_turns: bool) -> Amount:
        turns = [(question, question.turns if all_turns else 1) for question in self.model_calls]
        tokens = sum((self.input_tokens + question.output_tokens) * number for question, number in turns)
        return Amount(sum(self._max_cost(question) * number for question, number in turns), tokens)

    def _max_cost(self, question: ModelCallLimit) -> int:
        input_cost = self.input_tokens * (question.input_price or 0.0)
        output_cost = question.output_tokens * (question.output_price or 0.0)
        return ceil(round((input_cost + output_cost) * PER_TOKEN, 3))

    def input_tokens_within(self, usd: float) -> int | None:
        """The longest prompt for which its models cost at most this; None: any length."""
        found = []
        for each in self.alternatives:
            price = sum(question.input_price or 0.0 for question in each.model_calls)
            answers = sum(question.output_tokens * (question.output_price or 0.0) for question in each.model_calls)
            found += [int((usd_to_nanos(usd) / PER_TOKEN - answers) / price)] if price else []
        return min(found, default=None)

    @property
    def input_tokens_within_run(self) -> int | None:
        """The longest prompt for which one turn of each model uses at most `tokens_per_try`; None: any length."""
        if self.tokens_per_try is None:
            return None
        answers = ([question.output_tokens for question in each.model_calls] for each in self.alternatives)
        return min(((self.tokens_per_try - sum(each)) // len(each) for each in answers if each), default=None)


@dataclass(frozen=True, slots=True)
class Price:
    """What a model costs, in USD per million tokens. `cache_write_1h` is for a cache that lives for an hour.

    `variants` are other prices of the same model, of which the last that applies counts. `listed`: from the list of the library.
    """

    input: float
    output: float
    cache_read: float
    cache_write: float
    cache_write_1h: float
    variants: tuple[PriceVariant, ...] = ()
    listed: bool = False

    def of_request(self, input_tokens: int, day: date) -> Price:
        """The price of a request with so many input tokens of all kinds on a day in UTC."""
        applying = [each.price for each in self.variants if each.applies(input_tokens, day)] if self.variants else ()
        return applying[-1] if applying else self

    def highest(self, input_tokens: int) -> Price:
        """The highest prices of a request with at most so many input tokens, on whichever day it is sent."""
        every = (self, *(each.price for each in self.variants if each.above < input_tokens))
        return Price(*(max(getattr(each, key) for each in every) for key in PRICE_KEYS))


@dataclass(frozen=True, slots=True)
class PriceVariant:
    """A price for requests with more than `above` input tokens, from the day `since` on; None: always."""

    price: Price
    above: int = 0
    since: date | None = None

    def applies(self, input_tokens: int, day: date) -> bool:
        return (not self.above or input_tokens > self.above) and (self.since is None or day >= self.since)


PRICE_KEYS = ("input", "output", "cache_read", "cache_write", "cache_write_1h")


def price_key(provider: str | None, model: str | None) -> str:
    """The key of the price of a model at one provider."""
    return f"{provider}/{model}"


def find_price(prices: Mapping[str, Price], provider: str | None, model: str | None) -> Price | None:
    """The price of a model at a provider, otherwise that of this model at every provider. Without a provider, only the latter.

    A listed price is only that of its provider: a router may have a model whose name begins with the name of another provider.
    """
    everywhere = prices.get(model or "")
    return prices.get(price_key(provider, model)) or (None if everywhere and everywhere.listed else everywhere)


def highest_input_price(price: Price) -> float:
    """The highest price of input: a gateway may write it to a cache, though we do not request that."""
    return max(price.input, price.cache_read, price.cache_write)


def attempt_usage(
    agent: Agent, prices: Mapping[str, Price], usd_per_try: float | None, tokens_per_try: int | None
) -> AttemptUsage:
    """The maximum usage of one attempt of a heartbeat or of a job's prompt: of the agent, its fallbacks, and the decision.

    A fallback may be called after a decision, whose cost then counts too.
    """
    own, *others = agent.alternatives
    tokens = agent.prompt_limit.own
    calls = _limits_of_models(own, prices, tokens)
    decision = _limits_of_models(own[:-1], prices, tokens)
    fallbacks = tuple(
        (*decision, *_limits_of_models(each, prices, tokens)) if isinstance(each[-1][0], ModelRunner) else None for each in others
    )
    programs = sum(not isinstance(each[-1][0], ModelRunner) for each in agent.alternatives)
    return AttemptUsage(calls, programs, tokens, usd_per_try, tokens_per_try, fallbacks)


def _limits_of_models(called: Iterable[Called], prices: Mapping[str, Price], input_tokens: int) -> tuple[ModelCallLimit, ...]:
    models = [(model or "", runner) for runner, model in called if isinstance(runner, ModelRunner)]
    return tuple(
        _model_call_limit(model, runner, find_price(prices, runner.provider.name, model), input_tokens)
        for model, runner in models
    )


def _model_call_limit(model: str, runner: ModelRunner, listed: Price | None, input_tokens: int) -> ModelCallLimit:
    """The limits of one call."""
    price = listed and listed.highest(input_tokens)
    if price is None:
        return ModelCallLimit(model, runner.max_output_tokens, None, None, runner.max_turns)
    return ModelCallLimit(model, runner.max_output_tokens, highest_input_price(price), price.output, runner.max_turns)


@dataclass(frozen=True, slots=True)
class Allowance:
    """What an entry may spend: its own budget, the budget shared by all entries, and the maximum usage of one attempt.

    `input_tokens` is the longest prompt, at one token per byte, for which `max_usage` holds; None if no model is called. `turns`
    is the part of `max_usage` for the agent's model and for those of its fallbacks.
    """

    own: Budget | None
    shared: Budget | None
    max_usage: Amount
    input_tokens: int | None
    usd_per_try: float | None = None
    tokens_per_try: int | None = None
    turns: tuple[TurnBudget | None, ...] = ()

    def budgets(self, kind: Kind, name: str) -> Iterator[tuple[Scope, Budget]]:
        """Each budget that limits the entry, and whose spending it sums."""
        if self.own is not None:
            yield (kind.value, name), self.own
        if self.shared is not None:
            yield ALL_ENTRIES, self.shared


Allowances = Mapping[Key, Allowance]


def usd_to_nanos(usd: float) -> int:
    """USD in billionths, the unit in which sums are kept."""
    return round(usd * NANO)


def call_cost(prices: Mapping[str, Price], call: Call, day: date) -> float | None:
    """The cost of a call in USD on a day in UTC: as reported, otherwise tokens times price.

    None without a price, or if the sum is absurd.
    """
    if call.cost_usd is not None:
        return call.cost_usd
    listed = find_price(prices, call.provider, call.model)
    if listed is None or call.tokens is None:
        return None
    tokens = call.tokens
    price = listed.of_request(tokens.total - tokens.output, day)
    hour = tokens.cache_write_1h
    parts = (
        tokens.input * price.input,
        tokens.output * price.output,
        tokens.cache_read * price.cache_read,
        (tokens.cache_write - hour) * price.cache_write,
        hour * price.cache_write_1h,
    )
    return agent_json.parse_cost(sum(parts) / TOKENS_PER_PRICE)


def cache_saving(prices: Mapping[str, Price], call: Call, day: date) -> float:
    """What the cache of the provider has saved in a call, in USD; below 0: it cost more than plain input would have."""
    tokens = call.tokens
    if tokens is None or not (tokens.cache_read or tokens.cache_write):
        return 0.0
    listed = find_price(prices, call.provider, call.model)
    if listed is None:
        return 0.0
    price, hour = listed.of_request(tokens.total - tokens.output, day), tokens.cache_write_1h
    parts = (
        tokens.cache_read * (price.input - price.cache_read),
        (tokens.cache_write - hour) * (price.input - price.cache_write),
        hour * (price.input - price.cache_write_1h),
    )
    return sum(parts) / TOKENS_PER_PRICE

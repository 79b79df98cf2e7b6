"""Computes the budget of each entry, and checks that one run fits into it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from zoneinfo import ZoneInfo

from heartbeat.spec import Agent
from heartbeat.words import round_usd_up
from scheduler.config.keys import models
from scheduler.config.settings.config_node import ConfigNode, build_spec
from scheduler.config.settings.providers import Prices, price_line
from scheduler.config.settings.runners import NO_RUNNER
from scheduler.model import budget
from scheduler.model.budget import LIMITS, USD_LIMITS, Allowance, AttemptUsage, Budget
from scheduler.model.outcome import Key, Kind

LEAST_PROMPT = 2000  # tokens, one per byte: the built-in instructions, the time and a short checklist

Problems = Iterator[tuple[str, str]]
"""Each error with the key of the budget that it is about; an empty key is the budget as a whole."""


class Budgets:
    """The allowances of all entries. `unlimited` are the enabled entries of each kind that call a model without a budget.
    `unknown` are the kinds with an entry whose usage is unknown, and that would reject a limit in USD in `defaults`.
    """

    def __init__(self, shared: Budget | None, prices: Prices) -> None:
        """`shared` is the budget of all entries."""
        self.allowances: dict[Key, Allowance] = {}
        self.unlimited: defaultdict[Kind, list[str]] = defaultdict(list)
        self.unknown: set[Kind] = set()
        self._shared = shared
        self._prices = prices

    def add_entry(
        self, kind: Kind, name: str, agent: Agent, zone: ZoneInfo, part: models.Budget | None, node: ConfigNode
    ) -> None:
        """Add the budget of an enabled entry for days of `zone`; without `part` it is unlimited.

        `agent` is the heartbeat, or the agent that a job calls. `node` is the budget in the file.
        """
        if agent.runner is NO_RUNNER:
            return
        usd, tokens = (part.usd_per_try, part.tokens_per_try) if part else (None, None)
        attempt = budget.attempt_usage(agent, self._prices.by_model, usd, tokens)
        own = budget_of_days(part, zone) if part else None
        bounds = EntryLimits(own, self._shared, attempt, kind.label_of(name))
        has_day_limit = own is not None or self._shared is not None
        if attempt.has_unknown_usage and part and usd is None:
            self.unknown.add(kind)
        if attempt.all_models and part and not has_day_limit:
            self.unlimited[kind].append(name)
        if not (has_day_limit or bounds.has_run_limit):
            return  # as for most entries: of a large config, the checks would take a tenth of the time
        bounds = replace(bounds, attempt=limit_prompt(attempt))
        for message, at in (*check_run_budget(attempt), *bounds.find_errors()):
            node.add_error(message, *filter(None, [at]))
        for message, at in bounds.find_unreachable_limits():
            node.add_warning(message, at)
        self.allowances[kind, name] = bounds.build_allowance()


def budget_of_days(part: models.DayBudget, zone: ZoneInfo) -> Budget | None:
    """The limits of a day and of a month in `zone`; None if the part sets none."""
    found = build_spec(part, Budget, zone=zone)
    return found if any(limit is not None for limit in found.limits) else None


def limit_prompt(attempt: AttemptUsage) -> AttemptUsage:
    """The attempt with its prompt limited by the limits of a run, if the daemon itself calls the model."""
    rooms = [room for room in (_longest_prompt(attempt), attempt.input_tokens_within_run) if room is not None]
    room = min(rooms, default=None)
    return attempt if room is None or room < LEAST_PROMPT else replace(attempt, input_tokens=min(room, attempt.input_tokens))


def check_run_budget(attempt: AttemptUsage) -> Problems:
    """Check that `usd_per_try` and `tokens_per_try` leave room for a prompt."""
    short = replace(attempt, input_tokens=LEAST_PROMPT, usd_per_try=0.0, tokens_per_try=0).max_usage  # of one turn
    for key, room, least in (
        ("tokens_per_try", attempt.input_tokens_within_run, str(short.tokens)),
        ("usd_per_try", _longest_prompt(attempt), format_least_usd(short.usd)),
    ):
        if room is not None and room < LEAST_PROMPT:
            yield f"the answers alone may use all of it; write {least} or more, or a smaller max_output_tokens", key


def _longest_prompt(attempt: AttemptUsage) -> int | None:
    """The longest prompt that `usd_per_try` allows, in tokens; None if it does not limit prompts."""
    if attempt.usd_per_try is None or attempt.has_unknown_usage or not attempt.priced:
        return None
    return attempt.input_tokens_within(attempt.usd_per_try)


@dataclass(frozen=True, slots=True)
class EntryLimits:
    """The budgets that apply to the entry `label`, and the usage of one attempt. `shared` is the budget of all entries."""

    own: Budget | None
    shared: Budget | None
    attempt: AttemptUsage
    label: str

    @property
    def has_run_limit(self) -> bool:
        """Whether a budget limits a single run."""
        return self.attempt.usd_per_try is not None or self.attempt.tokens_per_try is not None

    def build_allowance(self) -> Allowance:
        attempt = self.attempt
        counted = any(True for _ in self._limits(*USD_LIMITS, "tokens_per_day")) or self.has_run_limit
        room = attempt.input_tokens if counted and attempt.all_models else None
        turns = attempt.turn_budgets if counted else ()
        return Allowance(self.own, self.shared, attempt.max_usage, room, attempt.usd_per_try, attempt.tokens_per_try, turns)

    def find_errors(self) -> Problems:
        """Limits that cannot be enforced: without a price, without known usage, or too low for a single run."""
        usd_by = [f"{prefix}{key}" for prefix, key, _ in self._limits(*USD_LIMITS)]
        name = usd_by[0] if usd_by else "usd_per_try" if self.attempt.usd_per_try is not None else ""
        for question in self.attempt.all_models if name else ():
            if not question.priced:
                problem = f"{name} cannot be enforced, because {json.dumps(question.model)} has no price"
                yield f"{problem}; write {price_line(question.model)}", ""
        yield from self._check_known_usage(usd_by)
        yield from self._check_day_size()

    def find_unreachable_limits(self) -> Problems:
        """Limits of the entry that can never be reached, because a limit for all entries is lower."""
        for key in LIMITS if self.own and self.shared else ():
            own, shared = getattr(self.own, key), getattr(self.shared, key)
            if own is not None and shared is not None and own > shared:
                yield f"limits.budget.{key} is {format_limit(shared)} and is reached first; write that or less", key
        if self.own and self.own.usd_per_day and self.own.usd_per_month and self.own.usd_per_day > self.own.usd_per_month:
            yield (
                f"usd_per_month is {format_limit(self.own.usd_per_month)} and is reached first; write that or less",
                "usd_per_day",
            )

    def _limits(self, *keys: str) -> Iterator[tuple[str, str, float]]:
        """The path of the budget as a prefix, the key and the value of each of these limits that is set."""
        for shares, prefix in ((self.own, ""), (self.shared, "limits.budget.")):
            values = ((key, getattr(shares, key, None)) for key in keys)
            yield from ((prefix, key, value) for key, value in values if value is not None)

    def _check_known_usage(self, usd_by: list[str]) -> Problems:
        attempt = self.attempt
        if not attempt.has_unknown_usage or attempt.usd_per_try == 0:
            return
        if usd_by and attempt.usd_per_try is None:
            write = "write budget: {usd_per_try: 0.10}, the maximum cost of one try, or 0 if it costs nothing"
            yield f"{usd_by[0]} cannot be enforced, because the usage of its runner is unknown; {write}", ""
        if attempt.tokens_per_try is not None:
            write = "write usd_per_try instead, the maximum cost of one try"
            yield f"tokens_per_try cannot be enforced, because the usage of its runner is unknown; {write}", "tokens_per_try"
        for prefix, _, _ in self._limits("tokens_per_day"):
            write = "write usd_per_day and usd_per_try instead, or usd_per_try: 0 if it costs nothing"
            yield f"{prefix}tokens_per_day cannot be enforced, because the usage of its runner is unknown; {write}", ""

    def _check_day_size(self) -> Problems:
        most = self.attempt.max_usage
        for prefix, key, bound in self._limits(*USD_LIMITS) if self.attempt.priced else ():
            if most.usd > bound:
                takes = f"{self._attempt_text} may cost {format_least_usd(most.usd)} USD{self._explain_tokens()}"
                yield from _day_too_small(prefix, key, takes, format_least_usd(most.usd), "usd_per_try")
        for prefix, key, bound in self._limits("tokens_per_day"):
            if most.tokens > bound:
                needed = f"{self._attempt_text} may use {most.tokens:,} tokens{self._explain_tokens()}"
                lower = "tokens_per_try" if self._turns > 1 else "max_input_tokens"
                yield from _day_too_small(prefix, key, needed, str(most.tokens), lower)

    @property
    def _attempt_text(self) -> str:
        """One attempt, with its entry and its models: the limit may be written for many entries."""
        models = " and ".join(dict.fromkeys(json.dumps(question.model) for question in self.attempt.all_models))
        return f"one try of {self.label}{f' with {models}' if models else ''}"

    @property
    def _turns(self) -> int:
        """How often an attempt can call the agent's model, because it uses tools."""
        last = (each.model_calls[-1].turns for each in self.attempt.alternatives if each.model_calls)
        return max(last, default=0)

    def _explain_tokens(self) -> str:
        most = self.attempt.max_usage.tokens
        calls = next(each.model_calls for each in self.attempt.alternatives if each.max_usage.tokens == most)
        answers = " and ".join(f"{question.output_tokens:,}" for question in calls)
        turns = f", in each of up to {self._turns} turns with tools" if self._turns > 1 else ""
        return f" ({self.attempt.input_tokens:,} tokens in, {answers} out{turns})" if answers else ""


def _day_too_small(prefix: str, key: str, takes: str, enough: str, lower: str) -> Problems:
    if prefix:
        yield f"{takes}, more than {prefix}{key} allows; write a smaller {lower}, or raise the limit to {enough}", ""
    else:
        yield f"{takes}; write {enough} or more, or a smaller {lower}", key


def format_limit(value: float) -> str:
    """A limit as messages show it."""
    return str(value) if isinstance(value, int) else format_least_usd(value)


def format_least_usd(usd: float) -> str:
    """An amount in USD, rounded up, so that it is enough if it is written as the limit."""
    places = 4 if usd >= 0.001 or not usd else 9
    return f"{round_usd_up(usd, places):.{places}f}".rstrip("0").rstrip(".")

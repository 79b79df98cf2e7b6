"""Sums up the runs, costs, skips and deliveries of a period for `report`."""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from heartbeat.words import format_count, format_usd
from heartbeatd.answers import BudgetStatus, Downtime, EntryName, EntryPart, ResponseBody, RunCosts, Shared, Time
from scheduler.config.keys.time_zones import UTC_ZONE
from scheduler.insight import status_data
from scheduler.model import local_days
from scheduler.model.budget import MONTH_LIMIT
from scheduler.model.outcome import NOTHING_TO_DO, WOKEN, Key, Kind, Suppression, Trigger
from scheduler.model.problem import Effect
from scheduler.store import boots, cost_history, run_history
from scheduler.store.cost_history import CauseCost, ModelUsage, PromptPartSize, QuarterCount
from scheduler.store.run_history import MessageCount, RunCount

LONGEST_BY_HOUR = timedelta(days=2)  # a longer period is divided into days,
LONGEST_BY_DAY = timedelta(days=92)  # and a still longer one into weeks

Share = TypeVar("Share", RunCount, ModelUsage, CauseCost, PromptPartSize)  # numbers that belong to one entry
Group = TypeVar("Group", bound=Hashable)
Total = TypeVar("Total", bound=ResponseBody)

# The fields of an answer that are sums of fields with other names. Any other number is the sum of the field with its name.
SUMS: dict[str, Callable[[Sequence[Any]], object]] = {
    "cost_usd": lambda rows: sum_costs(each.cost_usd for each in rows),
    "runs_without_price": lambda rows: sum(each.unpriced for each in rows),
    "untold_usd": lambda rows: round(sum(each.untold_usd for each in rows), 6),
    "tokens": lambda rows: TokenSums(input=sum(each.tokens_in for each in rows), output=sum(each.tokens_out for each in rows)),
    "cache": lambda rows: CacheSums(read=sum(each.cache_read for each in rows), write=sum(each.cache_write for each in rows)),
    "dearest_run": lambda rows: _most_expensive_run(rows),
}


class TokenSums(EntryPart):
    """`input` includes the tokens that were read from and written to a cache."""

    input: int
    output: int


class CacheSums(EntryPart):
    read: int
    write: int


class SavedCosts(EntryPart):
    """What the period would have cost without the cache of providers and without checks, by its own figures.

    `cache_usd` is what the cache saved; below 0: it cost more. `checked_runs` were skipped because a check found nothing to do,
    and would have cost `checks_usd` at the mean cost of the runs of their agent or job. Those of agents without a known cost are
    not counted. `cost_usd_without` is the cost with both added; null if no cost is known.
    """

    cache_usd: float
    checked_runs: int
    checks_usd: float
    cost_usd_without: float | None

    @property
    def sentence(self) -> str:
        """The same in words; empty if nothing was saved."""
        parts = []
        if self.checks_usd:
            parts.append(f"checks skipped {format_count(self.checked_runs, 'run')} ({format_usd(self.checks_usd)})")
        if self.cache_usd > 0:
            parts.append(f"the cache saved {format_usd(self.cache_usd)}")
        if not parts or self.cost_usd_without is None:
            return ""
        return f"Without checks and the cache it would have cost {format_usd(self.cost_usd_without)}: {', and '.join(parts)}."


class ExpensiveRun(EntryPart):
    id: int
    cost_usd: float


class ReportTotals(RunCosts):
    said: int
    failed: int
    skipped: int
    missed: int
    tokens: TokenSums
    cache: CacheSums
    dearest_run: ExpensiveRun | None


class EntryTotals(ReportTotals, EntryName):
    previous_cost_usd: float | None


class ModelTotals(ReportTotals):
    """The runs of a model. Tokens and costs are those of its own `calls`."""

    model: str | None
    calls: int


class ModelCalls(ResponseBody):
    """What the calls of a model used."""

    calls: int
    tokens: TokenSums
    cache: CacheSums
    cost_usd: float | None
    runs_without_price: int


class AgentModelTotals(ModelCalls, EntryName):
    model: str | None


class RunsOfCause(EntryName):
    runs: int
    cost_usd: float | None


class CauseTotals(RunCosts):
    """What started runs: the schedule, late results, or a sender of wakes."""

    source: str
    sender: str | None
    tokens: TokenSums
    entries: Shared[list[RunsOfCause]]


class PromptOfEntry(EntryName):
    runs: int
    tokens: int


class PromptPartTotals(ResponseBody):
    part: str
    runs: int
    tokens: int
    share: float
    entries: Shared[list[PromptOfEntry]]


class TimeStepTotals(ResponseBody):
    since: Time
    until: Time
    runs: int
    alerts: int
    failed: int
    cost_usd: float | None


class CountOfEntry(EntryName):
    count: int


class WordCount(ResponseBody):
    """How many runs or slots had a result for this reason."""

    why: str | None
    count: int
    entries: Shared[list[CountOfEntry]]


class ProblemTotals(EntryName):
    """`duplicates` are the answers without news."""

    opened: int
    resolved: int
    reminders: int
    duplicates: int


class ChannelTotals(ResponseBody):
    """The messages of a channel by state. `uncertain` of them may have arrived twice, or not at all."""

    channel: str
    delivered: int
    held: int
    dead: int
    dropped: int
    pending: int
    uncertain: int


class PreviousPeriod(ResponseBody):
    """The totals of the period of the same length before. They are too low if records of `incomplete` entries were deleted.

    `comparable`: the run records of the whole period are there. `first_record_at` is when the first run on record ended.
    """

    since: Shared[Time]
    until: Shared[Time]
    first_record_at: Time | None
    totals: ReportTotals
    incomplete: Shared[list[EntryName]]
    comparable: bool


class Report(ResponseBody):
    """The runs, skips, costs and deliveries of a period. The most expensive and the most frequent come first.

    `monthly` are the budgets that limit the month of `until`.
    """

    since: Shared[Time]
    until: Shared[Time]
    totals: ReportTotals
    saved: SavedCosts
    monthly: Shared[list[BudgetStatus]]
    previous: Shared[PreviousPeriod]
    entries: Shared[list[EntryTotals]]
    models: list[ModelTotals]
    agent_models: Shared[list[AgentModelTotals]]
    causes: Shared[list[CauseTotals]]
    prompt: Shared[list[PromptPartTotals]]
    by_time: list[TimeStepTotals]
    skipped: Shared[list[WordCount]]
    suppressed: Shared[list[WordCount]]
    failed: Shared[list[WordCount]]
    problems: Shared[list[ProblemTotals]]
    deliveries: list[ChannelTotals]
    downs: Shared[list[Downtime]]


def _sum(model: type[Total], rows: Sequence[Any], /, **more: object) -> Total:
    """An answer whose numbers are sums over `rows`, except for the fields in `more`."""
    names = [name for name in model.model_fields if name not in more]
    return model(
        **{name: SUMS[name](rows) if name in SUMS else sum(getattr(each, name) for each in rows) for name in names}, **more
    )


def _most_expensive_run(rows: Iterable[RunCount]) -> ExpensiveRun | None:
    cost_usd, run = max(((each.most_expensive_usd or 0.0, each.most_expensive_run or 0) for each in rows), default=(0.0, 0))
    return ExpensiveRun(id=run, cost_usd=cost_usd) if cost_usd else None


def _dearest(each: Any) -> float:
    """For sorting: the most expensive first, those without a known cost last."""
    return -float(each.cost_usd or 0.0)


def build_report(
    db: sqlite3.Connection,
    since: datetime,
    until: datetime,
    *,
    running: bool,
    zone: ZoneInfo = UTC_ZONE,
    agents: Collection[str] | None = None,
) -> Report:
    """The runs, skips, costs and deliveries from `since` until before `until`; `running`: a daemon runs now.

    `zone` is that of the days in `by_time`. With `agents`, only the heartbeats of these agents count.
    """

    def is_wanted(kind: str | None, name: str | None) -> bool:
        return agents is None or (kind == Kind.HEARTBEAT and name in agents)

    def choose(records: list[Share]) -> list[Share]:
        return [each for each in records if is_wanted(each.kind, each.name)]

    tallies, posts = choose(run_history.count_runs(db, since, until)), run_history.count_messages(db, since, until, agents)
    before = choose(run_history.count_runs(db, since - (until - since), since))
    usage = choose(cost_history.usage_by_model(db, since, until))
    effects = run_history.count_effects(db, since, until)
    ran = _grouped([each for each in tallies if each.runs], lambda each: each.model)
    return Report(
        since=since,
        until=until,
        totals=_sum(ReportTotals, tallies),
        saved=_saved_costs(tallies),
        monthly=[
            each
            for each in status_data.budgets_in_force(db, until)
            if MONTH_LIMIT in each.limits and is_wanted(each.kind, each.name)
        ],
        previous=_previous_period(db, since - (until - since), since, before, is_wanted),
        entries=_entry_totals(tallies, before),
        models=_model_totals(dict(ran), usage),
        agent_models=_agent_models(usage),
        causes=_cause_totals(choose(cost_history.cost_by_cause(db, since, until))),
        prompt=_prompt_totals(choose(cost_history.prompt_sizes(db, since, until))),
        by_time=_time_totals(cost_history.count_by_quarter(db, since, until, agents), since, until, zone),
        skipped=_count_words(tallies, lambda each: each.skipped),
        suppressed=_count_words(tallies, lambda each: each.suppressed),
        failed=_count_words(tallies, lambda each: each.failed),
        problems=_problem_totals(tallies, {key: each for key, each in effects.items() if is_wanted(*key)}),
        deliveries=[_channel_totals(channel, posts) for channel in sorted({post.channel for post in posts})],
        downs=_downtimes(db, since, until, running=running),
    )


def _saved_costs(tallies: list[RunCount]) -> SavedCosts:
    """What the cache of providers and the checks have saved, by the recorded costs."""
    checked, by_checks = 0, 0.0
    for _, rows in _grouped(tallies, lambda each: (each.kind, each.name)):
        paid = [each for each in rows if each.runs and each.cost_usd is not None]
        runs = sum(each.runs for each in paid)
        if runs:
            skipped = sum(each.skipped for each in rows if each.why in NOTHING_TO_DO)
            mean = sum((each.cost_usd or 0.0) + each.cache_saved for each in paid) / runs
            checked, by_checks = checked + skipped, by_checks + skipped * mean
    by_cache, cost = sum(each.cache_saved for each in tallies), sum_costs(each.cost_usd for each in tallies)
    return SavedCosts(
        cache_usd=round(by_cache, 6),
        checked_runs=checked,
        checks_usd=round(by_checks, 6),
        cost_usd_without=None if cost is None else round(cost + by_cache + by_checks, 6),
    )


def _previous_period(
    db: sqlite3.Connection, since: datetime, until: datetime, tallies: list[RunCount], is_wanted: Callable[[str, str], bool]
) -> PreviousPeriod:
    deleted = cost_history.entries_with_deleted_records(db, since)
    incomplete = [EntryName(kind=kind.value, name=name) for kind, name in deleted if is_wanted(kind, name)]
    first = cost_history.first_record_at(db)
    return PreviousPeriod(
        since=since,
        until=until,
        first_record_at=first,
        totals=_sum(ReportTotals, tallies),
        incomplete=incomplete,
        comparable=not incomplete and (first or since) <= since,
    )


def _entry_totals(tallies: list[RunCount], before: list[RunCount]) -> list[EntryTotals]:
    """The entries, each with its cost in the previous period; None if it is not known or the entry had no runs."""
    costs = {key: sum_costs(each.cost_usd for each in group) for key, group in _grouped(before, _entry_key)}
    found = [
        _sum(EntryTotals, group, kind=key[0].value, name=key[1], previous_cost_usd=costs.get(key))
        for key, group in _grouped(tallies, _entry_key)
    ]
    return sorted(found, key=lambda each: (_dearest(each), -each.said, -each.runs))


def _entry_key(each: RunCount | CauseCost) -> Key:
    return each.kind, each.name


def _count_words(tallies: list[RunCount], count: Callable[[RunCount], int]) -> list[WordCount]:
    """The number of runs for each `why`, in all and by entry."""
    counted = [each for each in tallies if count(each)]
    counts = [
        WordCount(why=why, count=sum(map(count, group)), entries=_count_by_entry(group, count))
        for why, group in _grouped(counted, lambda each: each.why)
    ]
    return sorted(counts, key=lambda each: -each.count)


def _count_by_entry(tallies: list[RunCount], count: Callable[[RunCount], int]) -> list[CountOfEntry]:
    shares = [
        CountOfEntry(kind=kind.value, name=name, count=sum(map(count, group)))
        for (kind, name), group in _grouped(tallies, _entry_key)
    ]
    return sorted(shares, key=lambda each: -each.count)


def _problem_totals(tallies: Iterable[RunCount], effects: Mapping[Key, Mapping[str, int]]) -> list[ProblemTotals]:
    """By entry: problems that opened and that ended, reminders, and answers without news. Those with most come first."""
    duplicates: Counter[Key] = Counter()
    for each in tallies:
        if each.why == Suppression.DUPLICATE:
            duplicates[each.kind, each.name] += each.count
    found = [
        ProblemTotals(
            kind=kind.value,
            name=name,
            opened=counts.get(Effect.OPENED, 0),
            resolved=counts.get(Effect.RESOLVED, 0) + counts.get(Effect.CLEARED, 0),
            reminders=counts.get(Effect.REMINDED, 0),
            duplicates=duplicates[kind, name],
        )
        for (kind, name), counts in sorted(effects.items())
    ]
    return sorted(found, key=lambda each: -each.opened)


def _channel_totals(channel: str, posts: list[MessageCount]) -> ChannelTotals:
    own = [post for post in posts if post.channel == channel]
    states = Counter({post.state: post.messages for post in own})
    return ChannelTotals(
        channel=channel,
        delivered=states["delivered"],
        held=states["held"],
        dead=states["dead"],
        dropped=states["dropped"],
        pending=states["pending"] + states["sending"] + states["uncertain"],
        uncertain=sum(post.doubted for post in own),
    )


def _downtimes(db: sqlite3.Connection, since: datetime, until: datetime, *, running: bool) -> list[Downtime]:
    return [
        Downtime(since=max(down.since, since), until=min(down.until or until, until), clean=down.clean)
        for down in boots.downtimes_between(boots.all_boots(db), running=running)
        if down.since < until and (down.until is None or down.until > since)
    ]


def _model_totals(ran: dict[str | None, list[RunCount]], usage: list[ModelUsage]) -> list[ModelTotals]:
    """The runs of each model, with the tokens and costs of its own calls. A run may have called several models."""
    used = dict(_grouped(usage, lambda each: each.model or None))
    found = []
    for model in {**ran, **used}:
        calls = used.get(model, [])
        own = dict(_sum(ModelCalls, calls)) if calls else {"calls": 0}
        found.append(_sum(ModelTotals, ran.get(model, []), model=model, **own))
    return sorted(found, key=lambda each: (_dearest(each), -each.calls, -each.runs))


def _agent_models(usage: list[ModelUsage]) -> list[AgentModelTotals]:
    """The usage of each entry by model, the most expensive first."""
    rows = [_sum(AgentModelTotals, [each], kind=each.kind.value, name=each.name, model=each.model or None) for each in usage]
    return sorted(rows, key=lambda each: (_dearest(each), -each.tokens.input))


def _cause_totals(costs: list[CauseCost]) -> list[CauseTotals]:
    """What started the runs and what these cost, the most expensive first: the schedule, or a sender of wakes."""
    rows = [
        _sum(CauseTotals, group, source=source, sender=sender, entries=_runs_of_cause(group))
        for (source, sender), group in _grouped(costs, _cause_of)
    ]
    return sorted(rows, key=lambda each: (_dearest(each), -each.runs))


def _cause_of(cost: CauseCost) -> tuple[str, str | None]:
    """The source of a run, and the sender of its wake. A slot has the source `schedule`, and a late result `result`."""
    if cost.trigger in WOKEN:
        return cost.trigger.value, cost.sender or None
    return ("result" if cost.trigger is Trigger.RESULT else "schedule"), None


def _runs_of_cause(group: list[CauseCost]) -> list[RunsOfCause]:
    rows = [_sum(RunsOfCause, shares, kind=kind.value, name=name) for (kind, name), shares in _grouped(group, _entry_key)]
    return sorted(rows, key=lambda each: (_dearest(each), -each.runs))


def _prompt_totals(sizes: list[PromptPartSize]) -> list[PromptPartTotals]:
    """Each part of the prompts with its tokens and its share of all of them, the largest first."""
    whole = sum(each.tokens for each in sizes)
    rows = [
        _sum(
            PromptPartTotals,
            group,
            part=run_history.PROMPT_PARTS.get(part, part),
            tokens=sum(each.tokens for each in group),
            share=round(sum(each.tokens for each in group) / whole, 4) if whole else 0.0,
            entries=[
                PromptOfEntry(kind=each.kind.value, name=each.name, runs=each.runs, tokens=each.tokens)
                for each in sorted(group, key=lambda each: -each.tokens)
            ],
        )
        for part, group in _grouped(sizes, lambda each: each.part)
    ]
    return sorted(rows, key=lambda each: -each.tokens)


def _time_totals(counts: list[QuarterCount], since: datetime, until: datetime, zone: ZoneInfo) -> list[TimeStepTotals]:
    """The runs and costs by hour, local day or week, according to the length of the period."""
    quarters = [each.begins for each in counts]
    return [
        _sum(TimeStepTotals, group, since=max(begins, since), until=min(ends, until))
        for begins, ends in _time_steps(since, until, zone)
        for group in [counts[bisect_left(quarters, begins) : bisect_left(quarters, ends)]]
    ]


def _time_steps(since: datetime, until: datetime, zone: ZoneInfo) -> Iterator[tuple[datetime, datetime]]:
    """The hours, days or weeks of a period. The first and the last one may reach beyond it."""
    if until - since <= LONGEST_BY_HOUR:
        begins = since.astimezone(zone).replace(minute=0, second=0, microsecond=0).astimezone(UTC)
        while begins < until:
            yield begins, begins + timedelta(hours=1)
            begins += timedelta(hours=1)
        return
    length = 1 if until - since <= LONGEST_BY_DAY else 7
    first: date = since.astimezone(zone).date()
    while (begins := local_days.whole_day(first, zone).begins) < until:
        yield begins, local_days.whole_day(first + timedelta(days=length - 1), zone).ends
        first += timedelta(days=length)


def sum_costs(costs: Iterable[float | None]) -> float | None:
    """The sum of the known costs; None if none is known."""
    known = [each for each in costs if each is not None]
    return sum(known) if known else None


def _grouped(shares: Iterable[Share], key: Callable[[Share], Group]) -> list[tuple[Group, list[Share]]]:
    """The shares that have equal keys together."""
    groups: dict[Group, list[Share]] = {}
    for each in shares:
        groups.setdefault(key(each), []).append(each)
    return list(groups.items())

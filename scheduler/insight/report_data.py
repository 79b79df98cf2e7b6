"""Sums up the runs, costs, skips and deliveries of a period for `report`."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from scheduler.insight import cost_breakdown
from scheduler.insight.cost_breakdown import Share
from scheduler.model.condition import Effect
from scheduler.model.outcome import Kind, Suppression
from scheduler.model.timestamps import iso_utc
from scheduler.store import boots, cost_history, run_history
from scheduler.store.run_history import MessageCount, RunCount

ReportTotals = dict[str, Any]


UTC_ZONE = ZoneInfo("UTC")


def build_report(
    db: sqlite3.Connection,
    since: datetime,
    until: datetime,
    *,
    running: bool,
    zone: ZoneInfo = UTC_ZONE,
    agents: Collection[str] | None = None,
) -> dict[str, Any]:
    """The runs, skips, costs and deliveries from `since` until before `until`, as JSON data; `running`: a daemon runs now.

    Times are in UTC with Z. The most expensive entries and models and the most frequent reasons come first. A cost is None if it
    is unknown. `previous` has the totals of the period of the same length before. `zone` is that of the days in `by_time`.
    With `agents`, only the heartbeats of these agents count.
    """

    def choose(records: list[Share]) -> list[Share]:
        return [each for each in records if agents is None or (each.kind is Kind.HEARTBEAT and each.name in agents)]

    tallies, posts = choose(run_history.count_runs(db, since, until)), run_history.count_messages(db, since, until, agents)
    before = choose(run_history.count_runs(db, since - (until - since), since))
    usage = choose(cost_history.usage_by_model(db, since, until))
    effects = run_history.count_effects(db, since, until)
    models = _totals_by_key([each for each in tallies if each.ran], _model_key)
    return {
        "since": iso_utc(since),
        "until": iso_utc(until),
        "totals": _sum_totals(tallies),
        "previous": _previous_data(db, since - (until - since), since, before, agents),
        "entries": _with_previous_cost(_totals_by_key(tallies, _entry_key), before),
        "models": cost_breakdown.with_usage(models, usage, {"model": None} | _sum_totals([])),
        "agent_models": cost_breakdown.agent_model_data(usage),
        "causes": cost_breakdown.cause_data(choose(cost_history.cost_by_cause(db, since, until))),
        "prompt": cost_breakdown.prompt_data(choose(cost_history.prompt_sizes(db, since, until))),
        "by_time": cost_breakdown.time_data(cost_history.count_by_quarter(db, since, until, agents), since, until, zone),
        "skipped": _counts_by_word(tallies, "reason", lambda each: each.skipped),
        "suppressed": _counts_by_word([each for each in tallies if each.suppression], "suppression", lambda each: each.count),
        "failed": _counts_by_word(tallies, "reason", lambda each: each.failed),
        "conditions": _condition_data(
            tallies, {name: each for name, each in effects.items() if agents is None or name in agents}
        ),
        "deliveries": [_channel_data(channel, posts) for channel in sorted({post.channel for post in posts})],
        "downs": _downtime_data(db, since, until, running=running),
    }


def is_comparable(report: Mapping[str, Any]) -> bool:
    """Whether there are run records of the whole previous period."""
    previous = report["previous"]
    return not previous["incomplete"] and (previous["first_record_at"] or previous["since"]) <= previous["since"]


def _entry_key(each: RunCount) -> dict[str, Any]:
    return {"kind": each.kind.value, "name": each.name}


def _model_key(each: RunCount) -> dict[str, Any]:
    return {"model": each.model}


def _previous_data(
    db: sqlite3.Connection, since: datetime, until: datetime, tallies: list[RunCount], agents: Collection[str] | None
) -> dict[str, Any]:
    """The totals of the previous period. They are too low if run records of some entries were deleted (`incomplete`).

    `first_record_at` is when the first run that is on record ended.
    """
    deleted = cost_history.entries_with_deleted_records(db, since)
    return {
        "since": iso_utc(since),
        "until": iso_utc(until),
        "first_record_at": iso_utc(cost_history.first_record_at(db)),
        "totals": _sum_totals(tallies),
        "incomplete": [
            {"kind": kind.value, "name": name}
            for kind, name in deleted
            if agents is None or (kind is Kind.HEARTBEAT and name in agents)
        ],
    }


def _with_previous_cost(entries: list[ReportTotals], before: list[RunCount]) -> list[ReportTotals]:
    """The entries, each with its cost in the previous period; None if it is not known or the entry had no runs."""
    costs = {(each["kind"], each["name"]): each["cost_usd"] for each in _totals_by_key(before, _entry_key)}
    return [each | {"previous_cost_usd": costs.get((each["kind"], each["name"]))} for each in entries]


def _sum_totals(tallies: Iterable[RunCount]) -> ReportTotals:
    tallies = list(tallies)
    return {
        "runs": sum(each.ran for each in tallies),
        "said": sum(each.said for each in tallies),
        "failed": sum(each.failed for each in tallies),
        "skipped": sum(each.skipped for each in tallies),
        "missed": sum(each.missed for each in tallies),
        "cost_usd": run_history.total_cost(tallies),
        "runs_without_price": sum(each.unpriced for each in tallies),
        "untold_usd": round(sum(each.untold_usd for each in tallies), 6),
        "tokens": {"input": sum(each.tokens_in for each in tallies), "output": sum(each.tokens_out for each in tallies)},
        "cache": {"read": sum(each.cache_read for each in tallies), "write": sum(each.cache_write for each in tallies)},
        "dearest_run": _most_expensive_run(tallies),
    }


def _most_expensive_run(tallies: list[RunCount]) -> dict[str, Any] | None:
    cost_usd, run = max(((each.most_expensive_usd or 0.0, each.most_expensive_run) for each in tallies), default=(0.0, 0))
    return {"id": run, "cost_usd": cost_usd} if cost_usd else None


def _group_counts(
    tallies: Iterable[RunCount], key: Callable[[RunCount], dict[str, Any]]
) -> list[tuple[dict[str, Any], list[RunCount]]]:
    groups: dict[tuple[Any, ...], list[RunCount]] = {}
    for each in tallies:
        groups.setdefault(tuple(key(each).values()), []).append(each)
    return [(key(group[0]), group) for group in groups.values()]


def _totals_by_key(tallies: list[RunCount], key: Callable[[RunCount], dict[str, Any]]) -> list[ReportTotals]:
    totals = [named | _sum_totals(group) for named, group in _group_counts(tallies, key)]
    return sorted(totals, key=lambda each: (-(each["cost_usd"] or 0.0), -each["said"], -each["runs"]))


def _counts_by_word(tallies: Iterable[RunCount], word: str, count: Callable[[RunCount], int]) -> list[dict[str, Any]]:
    """The number of runs for each reason or suppression, in all and by entry."""
    counted = [each for each in tallies if count(each)]
    counts = [
        {word: getattr(group[0], word), "count": sum(map(count, group)), "entries": _counts_by_entry(group, count)}
        for _, group in _group_counts(counted, lambda each: {word: getattr(each, word)})
    ]
    return sorted(counts, key=lambda each: -each["count"])


def _counts_by_entry(tallies: list[RunCount], count: Callable[[RunCount], int]) -> list[dict[str, Any]]:
    groups = _group_counts(tallies, lambda each: {"kind": each.kind.value, "name": each.name})
    shares = [named | {"count": sum(map(count, group))} for named, group in groups]
    return sorted(shares, key=lambda each: -each["count"])


def _condition_data(tallies: Iterable[RunCount], effects: Mapping[str, Mapping[str, int]]) -> list[dict[str, Any]]:
    """By agent: conditions that were opened and that ended, reminders, and answers without news. Most opened come first."""
    duplicates: Counter[str] = Counter()
    for each in tallies:
        if each.kind is Kind.HEARTBEAT and each.suppression == Suppression.DUPLICATE:
            duplicates[each.name] += each.count
    found = [
        {
            "name": name,
            "opened": counts.get(Effect.OPENED, 0),
            "resolved": counts.get(Effect.RESOLVED, 0) + counts.get(Effect.CLEARED, 0),
            "reminders": counts.get(Effect.REMINDED, 0),
            "duplicates": duplicates[name],
        }
        for name, counts in sorted(effects.items())
    ]
    return sorted(found, key=lambda each: -each["opened"])


def _channel_data(channel: str, posts: list[MessageCount]) -> dict[str, Any]:
    """The messages of a channel by state; `uncertain` of them may have arrived twice, or not at all."""
    own = [post for post in posts if post.channel == channel]
    states = {post.state: post.messages for post in own}
    waiting = sum(states.get(state, 0) for state in ("pending", "sending", "uncertain"))
    counted = {state: states.get(state, 0) for state in ("delivered", "held", "dead", "dropped")}
    return {"channel": channel, **counted, "pending": waiting, "uncertain": sum(post.doubted for post in own)}


def _downtime_data(db: sqlite3.Connection, since: datetime, until: datetime, *, running: bool) -> list[dict[str, Any]]:
    downs = [down for down in boots.downtimes_since(db, since) if down.since < until and not (running and down.until is None)]
    return [
        {"since": iso_utc(down.since), "until": iso_utc(min(down.until or until, until)), "clean": down.clean} for down in downs
    ]

"""Breaks the costs of a report down: by agent and model, by what started the runs, by part of the prompt, and by time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any, Protocol, TypeVar
from zoneinfo import ZoneInfo

from scheduler.model import local_days
from scheduler.model.outcome import WOKEN, Kind, Trigger
from scheduler.model.timestamps import iso_utc
from scheduler.store.cost_history import CauseCost, ModelUsage, PromptPartSize, QuarterCount

LONGEST_BY_HOUR = timedelta(days=2)  # a longer period is divided into days,
LONGEST_BY_DAY = timedelta(days=92)  # and a still longer one into weeks

Data = dict[str, Any]


class EntryShare(Protocol):
    """A number that belongs to one entry."""

    @property
    def kind(self) -> Kind: ...
    @property
    def name(self) -> str: ...


Share = TypeVar("Share", bound=EntryShare)


def with_usage(models: list[Data], usage: list[ModelUsage], empty: Data) -> list[Data]:
    """The totals of each model, with the tokens and costs of its own calls. A run may have called several models.

    `empty` has the totals of a model that only decided about runs.
    """
    known = {each["model"]: each for each in models}
    groups = dict(_grouped(usage, lambda each: each.model or None))
    used = {model: _usage_data(group) for model, group in groups.items()}
    merged = [known.get(model, empty) | {"model": model, "calls": 0} | used.get(model, {}) for model in {**known, **used}]
    return sorted(merged, key=lambda each: (-(each["cost_usd"] or 0.0), -each["calls"], -each["runs"]))


def agent_model_data(usage: list[ModelUsage]) -> list[Data]:
    """The usage of each entry by model, the most expensive first."""
    rows = [{"kind": each.kind.value, "name": each.name, "model": each.model or None} | _usage_data([each]) for each in usage]
    return sorted(rows, key=lambda each: (-(each["cost_usd"] or 0.0), -each["tokens"]["input"]))


def _usage_data(usage: list[ModelUsage]) -> Data:
    read, write = sum(each.cache_read for each in usage), sum(each.cache_write for each in usage)
    return {
        "calls": sum(each.calls for each in usage),
        "tokens": {"input": sum(each.tokens_in for each in usage), "output": sum(each.tokens_out for each in usage)},
        "cache": {"read": read, "write": write},
        "cost_usd": sum_costs(each.cost_usd for each in usage),
        "runs_without_price": sum(each.unpriced for each in usage),
    }


def cause_data(costs: list[CauseCost]) -> list[Data]:
    """What started the runs and what these cost, the most expensive first: the schedule, or a sender of wakes."""
    rows = [
        {
            "source": source,
            "sender": sender,
            "runs": sum(each.runs for each in group),
            "cost_usd": sum_costs(each.cost_usd for each in group),
            "runs_without_price": sum(each.unpriced for each in group),
            "untold_usd": round(sum(each.untold_usd for each in group), 6),
            "tokens": {"input": sum(each.tokens_in for each in group), "output": sum(each.tokens_out for each in group)},
            "entries": _cause_entries(group),
        }
        for (source, sender), group in _grouped(costs, _cause_of)
    ]
    return sorted(rows, key=lambda each: (-(each["cost_usd"] or 0.0), -each["runs"]))


def _cause_of(cost: CauseCost) -> tuple[str, str | None]:
    """The source of a run, and the sender of its wake. A slot has the source `schedule`, and a late result `result`."""
    if cost.trigger in WOKEN:
        return cost.trigger.value, cost.sender or None
    return ("result" if cost.trigger is Trigger.RESULT else "schedule"), None


def _cause_entries(group: list[CauseCost]) -> list[Data]:
    rows = [
        _entry_data(shares[0])
        | {"runs": sum(each.runs for each in shares), "cost_usd": sum_costs(each.cost_usd for each in shares)}
        for _, shares in _grouped(group, _entry_of)
    ]
    return sorted(rows, key=lambda each: (-(each["cost_usd"] or 0.0), -each["runs"]))


def prompt_data(sizes: list[PromptPartSize]) -> list[Data]:
    """Each part of the prompts with its characters and its share of all of them, the largest first."""
    whole = sum(each.chars for each in sizes)
    rows = [
        {
            "part": part,
            "runs": sum(each.runs for each in group),
            "chars": (chars := sum(each.chars for each in group)),
            "share": round(chars / whole, 4) if whole else 0.0,
            "entries": sorted(
                (_entry_data(each) | {"runs": each.runs, "chars": each.chars} for each in group), key=lambda each: -each["chars"]
            ),
        }
        for part, group in _grouped(sizes, lambda each: each.part)
    ]
    return sorted(rows, key=lambda each: -each["chars"])


def time_data(counts: list[QuarterCount], since: datetime, until: datetime, zone: ZoneInfo) -> list[Data]:
    """The runs and costs by hour, local day or week, according to the length of the period."""
    quarters = [each.begins for each in counts]
    return [
        {
            "since": iso_utc(max(begins, since)),
            "until": iso_utc(min(ends, until)),
            "runs": sum(each.runs for each in group),
            "alerts": sum(each.alerts for each in group),
            "failed": sum(each.failed for each in group),
            "cost_usd": sum_costs(each.cost_usd for each in group),
        }
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


def _entry_of(share: EntryShare) -> tuple[str, str]:
    return share.kind.value, share.name


def _entry_data(share: EntryShare) -> Data:
    return {"kind": share.kind.value, "name": share.name}


def _grouped(shares: Iterable[Share], key: Callable[[Share], Hashable]) -> list[tuple[Any, list[Share]]]:
    groups: dict[Hashable, list[Share]] = {}
    for each in shares:
        groups.setdefault(key(each), []).append(each)
    return list(groups.items())

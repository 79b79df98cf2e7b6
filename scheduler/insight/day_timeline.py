"""Lists the slots and the other runs of one day of an agent or a job, so that they can be drawn on a time axis."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime

from scheduler.insight import slot_history
from scheduler.insight.reason_texts import Level, SlotCause
from scheduler.insight.records import ExplainedEntry
from scheduler.insight.slot_history import SlotGroup, SlotResult
from scheduler.model import local_days
from scheduler.model.local_days import LocalDay

MAX_MARKS = 300  # more slots than this are drawn as groups
LEVELS_BY_WEIGHT = tuple(Level[name] for name in ("BAD", "LOST", "ALERT", "UNKNOWN", "WAITING", "GOOD", "PLANNED", "TO_COME"))


@dataclass(frozen=True, slots=True)
class DayMark:
    """One slot, a group of slots, or another run. `count` 0: there were no slots from `at` to `until`.

    `cause` is the worst of a group. `is_slot` False: a wake, a start of the daemon or a late result started this run.
    """

    at: datetime
    until: datetime
    cause: SlotCause
    count: int = 1
    run_id: int | None = None
    is_slot: bool = True


@dataclass(frozen=True, slots=True)
class DayTimeline:
    """The marks of a day, sorted by time, and the time now if it is in the day."""

    day: LocalDay
    marks: tuple[DayMark, ...]
    now: datetime | None


def read_day_timeline(explained: ExplainedEntry, day: date) -> DayTimeline:
    """What happened, or will happen, on a local day of the entry."""
    span = local_days.whole_day(day, explained.zone)
    found = explained.load_history(span.begins, span.ends)
    results = slot_history.slot_results(found.record, span.begins, span.ends)
    others = [DayMark(row.slot, row.slot, row.cause, 1, row.id, is_slot=False) for row in found.other_runs]
    marks = [*_slot_marks(results, span), *(mark for mark in others if span.begins <= mark.at < span.ends)]
    is_today = span.begins <= explained.now < span.ends
    return DayTimeline(span, tuple(sorted(marks, key=lambda mark: mark.at)), explained.now if is_today else None)


def _slot_marks(results: Sequence[SlotResult], span: LocalDay) -> Iterator[DayMark]:
    if len(results) > MAX_MARKS:
        yield from (_group_mark(group) for group in slot_history.group_results(results, MAX_MARKS))
        return
    following = [result.at for result in results[1:]] + [span.ends]
    for result, next_at in zip(results, following, strict=True):
        yield DayMark(result.at, result.at if result.count else next_at, result.cause, result.count, result.run_id)


def _group_mark(group: SlotGroup) -> DayMark:
    return DayMark(
        group.first, group.last, _worst_cause(cause for cause, _ in group.cause_counts), group.slot_count, group.run_id
    )


def _worst_cause(causes: Iterable[SlotCause]) -> SlotCause:
    return min(causes, key=lambda cause: LEVELS_BY_WEIGHT.index(cause.level))

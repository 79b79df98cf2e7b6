"""Tests of what happened to each slot of an entry; a slot belongs to the time at which it comes due, after its stagger."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

import pytest
from world import utc

from heartbeatd.answers import Downtime
from scheduler.insight import reason_texts
from scheduler.insight.slot_history import (
    EntryRecord,
    MissedRecords,
    SchedulePeriod,
    SlotResult,
    cause_of_run,
    slot_results,
)
from scheduler.model.outcome import Skip

EIGHT = utc("2026-03-02 08:00")
CHANGE = utc("2026-03-02 08:00:30")
NOON = utc("2026-03-02 12:00")


def hourly_period(since: datetime, until: datetime | None, offset: float = 60, minute: int = 0) -> SchedulePeriod:
    """A schedule period of an hourly job with a stagger of `offset` seconds."""
    text = json.dumps({"schedule": f"{minute} * * * *", "zone": "UTC", "offset": offset})
    return SchedulePeriod("active", text, since, since, until)


def results_around_eight(
    *periods: SchedulePeriod, rows: tuple[SlotResult, ...] = (), downs: tuple[Downtime, ...] = ()
) -> list[SlotResult]:
    record = EntryRecord(periods, rows, MissedRecords(downs, (), ()), NOON, NOON)
    return slot_results(record, EIGHT - timedelta(minutes=30), EIGHT + timedelta(minutes=30))


@pytest.mark.parametrize(("offset", "belongs_to_later"), [(60, True), (31, True), (30, False), (0, False)])
def test_a_slot_belongs_to_the_schedule_period_in_which_it_comes_due(offset: float, belongs_to_later: bool) -> None:
    earlier, later = hourly_period(EIGHT - timedelta(days=1), CHANGE, offset), hourly_period(CHANGE, None, offset)
    assert (earlier.covers_slot(EIGHT), later.covers_slot(EIGHT)) == (not belongs_to_later, belongs_to_later)


def test_a_slot_whose_stagger_ends_after_a_change_belongs_to_the_new_schedule_and_counts_once() -> None:
    earlier, later = hourly_period(EIGHT - timedelta(days=1), CHANGE), hourly_period(CHANGE, None)
    assert [result.at for result in results_around_eight(earlier, later)] == [EIGHT]
    # The new schedule has no slot at 08:00, and no slot of the old one came due before the change.
    assert [result.at for result in results_around_eight(earlier, hourly_period(CHANGE, None, minute=59))] == []


def test_a_slot_that_came_due_after_a_short_downtime_was_not_missed_because_of_it() -> None:
    missed = SlotResult(EIGHT, cause_of_run("closed", "skipped", Skip.MISSED, "none"), 7)
    down = Downtime(since=EIGHT - timedelta(minutes=5), until=CHANGE, clean=True)
    (result,) = results_around_eight(hourly_period(EIGHT - timedelta(days=1), None), rows=(missed,), downs=(down,))
    assert (result.run_id, result.cause.code) == (7, Skip.MISSED)
    (result,) = results_around_eight(hourly_period(EIGHT - timedelta(days=1), None, offset=20), rows=(missed,), downs=(down,))
    assert (result.run_id, result.cause.code) == (7, reason_texts.DAEMON_DOWN)

"""Tests of what happened to each slot of an entry; a slot belongs to the time at which it comes due, after its stagger."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

import pytest
from world import utc

from scheduler.insight import reason_texts
from scheduler.insight.slot_history import EntryRecord, SchedulePeriod, SlotResult, SlotRow, cause_of_run, slot_results
from scheduler.model.outcome import Skip
from scheduler.store.boots import Downtime

EIGHT = utc("2026-03-02 08:00")
CHANGE = utc("2026-03-02 08:00:30")
NOON = utc("2026-03-02 12:00")


def stand(since: datetime, until: datetime | None, offset: float = 60, minute: int = 0) -> SchedulePeriod:
    """A job of each hour, staggered by so many seconds."""
    text = json.dumps({"schedule": f"{minute} * * * *", "zone": "UTC", "offset": offset})
    return SchedulePeriod("active", text, since, since, until)


def account(*stands: SchedulePeriod, rows: tuple[SlotRow, ...] = (), downs: tuple[Downtime, ...] = ()) -> list[SlotResult]:
    record = EntryRecord(stands, rows, downs, (), (), NOON, NOON)
    return slot_results(record, EIGHT - timedelta(minutes=30), EIGHT + timedelta(minutes=30))


@pytest.mark.parametrize(("offset", "later_life"), [(60, True), (31, True), (30, False), (0, False)])
def test_a_slot_belongs_to_the_life_in_which_it_comes_due(offset: float, later_life: bool) -> None:
    earlier, later = stand(EIGHT - timedelta(days=1), CHANGE, offset), stand(CHANGE, None, offset)
    assert (earlier.covers_slot(EIGHT), later.covers_slot(EIGHT)) == (not later_life, later_life)


def test_a_slot_whose_stagger_ends_after_a_change_is_one_of_the_new_pace_and_counted_once() -> None:
    earlier, later = stand(EIGHT - timedelta(days=1), CHANGE), stand(CHANGE, None)
    assert [fate.at for fate in account(earlier, later)] == [EIGHT]
    # By the new pace there is no slot at 08:00, and by the old one none came due before the change.
    assert [fate.at for fate in account(earlier, stand(CHANGE, None, minute=59))] == []


def test_a_slot_that_came_due_after_a_short_downtime_was_not_missed_because_of_it() -> None:
    missed = SlotRow(7, EIGHT, 1, cause_of_run("closed", "skipped", Skip.MISSED, None))
    down = Downtime(EIGHT - timedelta(minutes=5), CHANGE, clean=True)
    (fate,) = account(stand(EIGHT - timedelta(days=1), None), rows=(missed,), downs=(down,))
    assert (fate.run_id, fate.cause.code) == (7, Skip.MISSED)
    (fate,) = account(stand(EIGHT - timedelta(days=1), None, offset=20), rows=(missed,), downs=(down,))
    assert (fate.run_id, fate.cause.code) == (7, reason_texts.DAEMON_DOWN)

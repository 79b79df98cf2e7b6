"""The schedule of a job with a fixed interval of elapsed time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from heartbeat.slots import SlotRange
from scheduler.model import entry_schedule

ANCHOR = datetime(2025, 10, 25, 22, 7, 30, tzinfo=UTC)
HOUR = timedelta(hours=1)
EVERY_HOUR = entry_schedule.parse_schedule('{"every": 3600}', ANCHOR)


@pytest.mark.parametrize(
    ("after", "slot"),
    [
        (ANCHOR - timedelta(days=30), ANCHOR + HOUR),
        (ANCHOR, ANCHOR + HOUR),
        (ANCHOR + HOUR - timedelta.resolution, ANCHOR + HOUR),
        (ANCHOR + HOUR, ANCHOR + 2 * HOUR),
        (ANCHOR + 90_000.5 * HOUR, ANCHOR + 90_001 * HOUR),
    ],
)
def test_the_first_slot_is_one_period_after_the_anchor_and_next_is_strictly_later(after: datetime, slot: datetime) -> None:
    assert EVERY_HOUR.next(after) == slot


def test_slots_are_counted_after_the_first_instant_and_up_to_the_second() -> None:
    assert EVERY_HOUR.slots(ANCHOR, ANCHOR + 3 * HOUR) == SlotRange(ANCHOR + HOUR, ANCHOR + 3 * HOUR, 3)
    assert EVERY_HOUR.slots(ANCHOR + HOUR, ANCHOR + 3.9 * HOUR) == SlotRange(ANCHOR + 2 * HOUR, ANCHOR + 3 * HOUR, 2)
    assert EVERY_HOUR.slots(ANCHOR - 5 * HOUR, ANCHOR + HOUR) == SlotRange(ANCHOR + HOUR, ANCHOR + HOUR, 1)


@pytest.mark.parametrize("until", [ANCHOR + HOUR, ANCHOR + 1.99 * HOUR, ANCHOR, ANCHOR - 5 * HOUR])
def test_there_are_no_slots_before_the_next_one(until: datetime) -> None:
    assert EVERY_HOUR.slots(ANCHOR + HOUR, until) is None

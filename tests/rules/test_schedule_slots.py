"""The slots of a schedule within active hours: each slot is either open or closed, never both."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from world import utc

from cron.job_schedules import parse_schedule
from heartbeat.hours import EVERY_DAY, Hours, window
from heartbeat.slots import ScheduleSlots

UTC_ZONE, BERLIN = ZoneInfo("UTC"), ZoneInfo("Europe/Berlin")
DAYTIME = Hours((window(8 * 60, 22 * 60, EVERY_DAY, UTC_ZONE),))


def timed(text: str, hours: Hours = DAYTIME, offset: timedelta = timedelta(), zone: ZoneInfo = UTC_ZONE) -> ScheduleSlots:
    return ScheduleSlots(parse_schedule(text, zone), hours, offset)


@pytest.mark.parametrize(
    ("text", "after", "following"),
    [
        ("0 * * * *", "2026-03-02 08:00", "2026-03-02 09:00"),
        ("0 * * * *", "2026-03-02 21:00", "2026-03-03 08:00"),  # 22:00 is the closing, which is outside
        ("0 * * * *", "2026-03-02 07:59", "2026-03-02 08:00"),  # 08:00 is the opening, which is inside
        ("30 7,9 * * *", "2026-03-02 09:30", "2026-03-03 09:30"),
        ("0 9 29 2 *", "2026-03-02 08:00", "2028-02-29 09:00"),
    ],
)
def test_the_next_slot_is_the_first_firing_inside_the_hours(text: str, after: str, following: str) -> None:
    assert timed(text).next(utc(after)) == utc(following)


def test_a_schedule_that_never_meets_its_hours_has_no_slot() -> None:
    assert timed("0 3 * * *").next(utc("2026-03-02 08:00")) is None


def test_active_hours_apply_to_the_due_time_and_not_to_the_slot() -> None:
    late = timed("0 * * * *", offset=timedelta(minutes=10))
    assert late.next(utc("2026-03-02 20:30")) == utc("2026-03-02 21:00")  # due at 21:10
    assert timed("55 * * * *", offset=timedelta(minutes=10)).next(utc("2026-03-02 06:00")) == utc("2026-03-02 07:55")  # at 08:05


def test_a_year_of_minutes_is_counted_without_walking_them() -> None:
    minutes = timed("* * * * *")
    after, until = utc("2026-01-01 00:00"), utc("2027-01-01 00:00")
    opened, closed = minutes.slots(after, until), minutes.closed_slots(after, until)
    assert opened is not None
    assert closed is not None
    assert (opened.count, closed.count) == (365 * 14 * 60, 365 * 10 * 60)


@dataclass(frozen=True, slots=True)
class Case:
    hours: Hours
    text: str
    offset: timedelta


cases = st.builds(
    Case,
    st.sampled_from([
        Hours(),
        DAYTIME,
        Hours((window(22 * 60, 6 * 60, frozenset({4}), BERLIN),)),
        Hours((window(2 * 60, 3 * 60, EVERY_DAY, BERLIN), window(12 * 60, 1440, EVERY_DAY, UTC_ZONE))),
    ]),
    st.sampled_from(["*/7 * * * *", "0 * * * *", "30 2 * * *", "0 8,22 * * *"]),
    st.sampled_from([timedelta(), timedelta(minutes=25)]),
)  # fmt: skip


# Berlin's clocks go ahead on 28 March 2027 and back on 31 October 2027.
@given(cases, st.integers(0, 4000), st.integers(0, 4000), st.sampled_from(["2027-03-27 00:00", "2027-10-30 00:00"]))
def test_every_firing_is_either_open_or_closed_and_counted_once(case: Case, first: int, length: int, start: str) -> None:
    schedule = parse_schedule(case.text, BERLIN)
    seen = ScheduleSlots(schedule, case.hours, case.offset)
    after = utc(start) + timedelta(minutes=first)
    until = after + timedelta(minutes=length)
    walked: list[datetime] = []
    while (following := schedule.next(walked[-1] if walked else after)) is not None and following <= until:
        walked.append(following)
    sides = {True: [], False: []}
    for firing in walked:
        sides[case.hours.open_at(firing + case.offset)].append(firing)
    for side, found in ((True, seen.slots(after, until)), (False, seen.closed_slots(after, until))):
        expected = (sides[side][0], sides[side][-1], len(sides[side])) if sides[side] else None
        assert (found and (found.first, found.latest, found.count)) == expected
    following = seen.next(after)
    assert following is None or (following > after and case.hours.open_at(following + case.offset))
    if sides[True]:
        assert following == sides[True][0]
    assert after.tzinfo is UTC

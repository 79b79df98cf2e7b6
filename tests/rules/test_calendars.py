"""Calendars: which days they include, and when those days begin and end in a time zone."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from world import utc

from heartbeat.hours import ALL_DAYS, EMPTY_CALENDAR, AllowedDays, Calendar, first_closed, make_calendar, parse_dates, read_days
from heartbeat.slots import AnySlotRange
from scheduler.model import entry_schedule

BERLIN = ZoneInfo("Europe/Berlin")
WEEKEND = Calendar(weekdays=frozenset({5, 6}))
DAY = timedelta(days=1)


def dates(*texts: str) -> Calendar:
    return make_calendar(tuple(parse_dates(text) for text in texts))


@pytest.mark.parametrize(
    ("texts", "written"),
    [
        (["2026-12-25"], "2026-12-25..2026-12-25"),
        (["2026-12-26", "2026-12-25"], "2026-12-25..2026-12-26"),
        (["2026-12-25..9999-12-31", "9999-12-31"], "2026-12-25..9999-12-31"),
        (["2026-12-24..2026-12-31", "2026-12-26", "2027-01-01"], "2026-12-24..2027-01-01"),
        (["2027-01-02", "2026-12-24..2026-12-31"], "2026-12-24..2026-12-31,2027-01-02..2027-01-02"),
    ],
)
def test_dates_that_touch_or_overlap_are_one_stretch(texts: list[str], written: str) -> None:
    assert str(dates(*texts)) == written


@pytest.mark.parametrize(
    ("day", "held"),
    [("2026-12-23", False), ("2026-12-24", True), ("2026-12-31", True), ("2027-01-01", False), ("2027-06-05", True)],
)
def test_a_calendar_holds_both_ends_of_a_range_and_its_weekdays(day: str, held: bool) -> None:
    holidays = dates("2026-12-24..2026-12-31", "2025-01-01") | WEEKEND
    assert holidays.contains(date.fromisoformat(day)) is held


def test_two_calendars_together_hold_the_days_of_both() -> None:
    both = WEEKEND | dates("2026-12-25") | Calendar(weekdays=frozenset({0}))
    assert [day for day in range(20, 30) if both.contains(date(2026, 12, day))] == [20, 21, 25, 26, 27, 28]


def test_without_calendars_every_day_is_allowed() -> None:
    assert ALL_DAYS.always
    assert AllowedDays(BERLIN, EMPTY_CALENDAR).always
    assert not AllowedDays(BERLIN, only=EMPTY_CALENDAR).always
    assert not AllowedDays(BERLIN, WEEKEND).always


# Berlin's clocks go ahead on 29 March 2026; Santiago's on 6 September 2026 at midnight, so that Sunday begins at 01:00.
@pytest.mark.parametrize(
    ("zone", "day", "opens", "closes"),
    [
        ("UTC", "2026-03-04", "2026-03-04 00:00", "2026-03-05 00:00"),
        ("Europe/Berlin", "2026-03-29", "2026-03-28 23:00", "2026-03-29 22:00"),
        ("Europe/Berlin", "2026-10-25", "2026-10-24 22:00", "2026-10-25 23:00"),
        ("America/Santiago", "2026-09-06", "2026-09-06 04:00", "2026-09-07 03:00"),
        ("Pacific/Kiritimati", "2026-03-04", "2026-03-03 10:00", "2026-03-04 10:00"),
        ("Etc/GMT+12", "2026-03-04", "2026-03-04 12:00", "2026-03-05 12:00"),
    ],
)
def test_a_day_is_a_local_day_of_any_length(zone: str, day: str, opens: str, closes: str) -> None:
    only = AllowedDays(ZoneInfo(zone), only=dates(day))
    assert list(only.openings(utc(opens) - 5 * DAY, utc(closes) + 5 * DAY)) == [(utc(opens), utc(closes))]
    assert (only.open_at(utc(opens)), only.open_at(utc(closes))) == (True, False)
    assert first_closed(only, utc(opens)) == utc(closes)
    assert first_closed(AllowedDays(ZoneInfo(zone), skip=dates(day)), utc(opens) - DAY) == utc(opens)


def test_a_date_that_the_zone_skipped_has_no_opening() -> None:
    apia = AllowedDays(ZoneInfo("Pacific/Apia"), only=dates("2011-12-30"))
    assert list(apia.openings(utc("2011-12-20 00:00"), utc("2012-01-10 00:00"))) == []


def test_days_that_stay_open_for_two_years_have_no_next_closing() -> None:
    assert first_closed(AllowedDays(BERLIN, dates("2030-01-01")), utc("2026-03-02 12:00")) is None
    assert first_closed(ALL_DAYS, utc("2026-03-02 12:00")) is None


SOME_DAY = st.dates(date(2026, 3, 20), date(2026, 4, 10))
CALENDARS = st.builds(
    lambda days, weekdays: make_calendar(tuple((day, day) for day in days), weekdays),
    st.lists(SOME_DAY, max_size=6),
    st.frozensets(st.integers(0, 6), max_size=3),
)
ALL_SORTS = st.builds(
    AllowedDays,
    st.sampled_from([ZoneInfo("UTC"), BERLIN, ZoneInfo("Pacific/Apia"), ZoneInfo("America/St_Johns")]),
    CALENDARS,
    st.none() | CALENDARS,
)


@given(ALL_SORTS, st.integers(0, 500), st.integers(0, 500))
def test_openings_agree_with_open_at(days: AllowedDays, first: int, length: int) -> None:
    after = datetime(2026, 3, 20, tzinfo=UTC) + timedelta(hours=first)
    until = after + timedelta(hours=length)
    spans = [(after, after + DAY)] if days.always else list(days.openings(after, until))
    assert all(opens < closes for opens, closes in spans)
    assert all(earlier[1] < later[0] for earlier, later in pairwise(spans))
    for hours in range(length + 1):
        instant = after + timedelta(hours=hours, minutes=30)
        if instant <= until:
            assert days.open_at(instant) is (days.always or any(opens <= instant < closes for opens, closes in spans))


@given(ALL_SORTS)
def test_a_key_is_read_back_as_the_same_days(days: AllowedDays) -> None:
    assert read_days(days.key()) == days


HOURS = [[480, 1320, [0, 1, 2, 3, 4, 5, 6], "Europe/Berlin"]]
PACES = st.sampled_from([
    {"interval": 5400.0, "stagger": 60.0, "hours": []},
    {"interval": 86400.0, "stagger": 600.0, "hours": HOURS},
    {"every": 10800.0, "offset": 600.0},
    {"schedule": "*/20 * * * *", "zone": "Europe/Berlin", "offset": 0.0, "hours": HOURS},
    {"schedule": "30 2 * * *", "zone": "Europe/Berlin", "offset": 900.0},
])  # fmt: skip
ANCHOR = utc("2026-03-20 02:07")


def count(slots: AnySlotRange | None) -> int:
    return slots.count if slots else 0


# Berlin's clocks go ahead on 29 March 2026.
@given(PACES, ALL_SORTS, st.integers(0, 20_000), st.integers(0, 5000), st.integers(0, 5000))
def test_every_slot_is_open_or_closed_by_its_days_or_its_hours(
    keys: dict[str, Any], days: AllowedDays, first: int, length: int, more: int
) -> None:
    plain, schedule = (entry_schedule.parse_schedule(json.dumps(keys | extra), ANCHOR) for extra in ({}, {"days": days.key()}))
    after = utc("2026-03-20 00:00") + timedelta(minutes=first)
    between, until = after + timedelta(minutes=length), after + timedelta(minutes=length + more)
    for find in (schedule.slots, schedule.closed_by_hours, schedule.closed_by_days):
        assert count(find(after, until)) == count(find(after, between)) + count(find(between, until))
    found = [count(find(after, until)) for find in (schedule.slots, schedule.closed_by_hours, schedule.closed_by_days)]
    walked = list(entry_schedule.slots_between(schedule, after, until))
    assert len(walked) == found[0]
    assert all(days.open_at(slot + schedule.offset) for slot in walked)
    if "interval" in keys:
        points = entry_schedule.parse_schedule(json.dumps(keys | {"hours": []}), ANCHOR).slots(after, until)
        assert abs(sum(found) - count(points)) <= 1  # one may have moved into this time, or out of it
        by_days, by_hours = schedule.closed_by_days(after, until), schedule.closed_by_hours(after, until)
        assert not any(days.open_at(point) for point in ((by_days.first, by_days.latest) if by_days else ()))
        assert all(days.open_at(point) for point in ((by_hours.first, by_hours.latest) if by_hours else ()))
        return
    assert sum(found) == count(plain.slots(after, until)) + count(plain.closed_by_hours(after, until))
    left_out = [slot for slot in entry_schedule.slots_between(plain, after, until) if not days.open_at(slot + schedule.offset)]
    assert len(walked) + len(left_out) == count(plain.slots(after, until))

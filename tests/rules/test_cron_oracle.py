"""Schedules against an oracle: a walk over the minutes as Debian cron does it, with what each job matches written by hand."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from io import BytesIO
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import loop_over
from simulation import IS_LONG, size

from cron.job_schedules import CronSchedule, parse_schedule

MINUTE = timedelta(minutes=1)
DAY, WEEK = timedelta(days=1), timedelta(days=7)
AROUND = timedelta(hours=30)


@dataclass(frozen=True)
class Case:
    """An expression, what it matches spelled out, and whether Debian calls it a wildcard job."""

    text: str
    wildcard: bool
    minutes: frozenset[int]
    hours: frozenset[int]
    day: Callable[[datetime], bool] = lambda _: True


def case(text: str, wildcard: bool, minutes: set[int], hours: set[int], day: Callable[[datetime], bool] = lambda _: True) -> Case:
    return Case(text, wildcard, frozenset(minutes), frozenset(hours), day)


ALL_MINUTES, ALL_HOURS = set(range(60)), set(range(24))

CASES = [
    case("* * * * *", True, ALL_MINUTES, ALL_HOURS),
    case("0-59 0-23 * * *", False, ALL_MINUTES, ALL_HOURS),
    case("*/15 * * * *", True, {0, 15, 30, 45}, ALL_HOURS),
    case("*/20 2 * * *", True, {0, 20, 40}, {2}),
    case("@hourly", True, {0}, ALL_HOURS),
    case("17 0-23 * * *", False, {17}, ALL_HOURS),
    case("30 */2 * * *", True, {30}, {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22}),
    case("30 2 * * *", False, {30}, {2}),
    case("0,30 1-3 * * *", False, {0, 30}, {1, 2, 3}),
    case("5,55 0,23 * * *", False, {5, 55}, {0, 23}),
    case("@daily", False, {0}, {0}),
    case("59 1 * * *", False, {59}, {1}),
    case("15 2,3 * * sun", False, {15}, {2, 3}, lambda day: day.isoweekday() == 7),
    case("45 0 24-31 * 0", False, {45}, {0}, lambda day: day.day >= 24 or day.isoweekday() == 7),
    case("10 2 */2 * 7", False, {10}, {2}, lambda day: day.day % 2 == 1 and day.isoweekday() == 7),
    case("*/30 1-3 * * *", True, {0, 30}, {1, 2, 3}),
    case("0 0 */2 * 1", False, {0}, {0}, lambda day: day.day % 2 == 1 and day.isoweekday() == 1),
    case("30 0-3 * * sunL", False, {30}, {0, 1, 2, 3}, lambda day: day.isoweekday() == 7 and (day + WEEK).month != day.month),
    case("0,59 2 * * sun#2", False, {0, 59}, {2}, lambda day: day.isoweekday() == 7 and 8 <= day.day <= 14),
    case("@weekly", False, {0}, {0}, lambda day: day.isoweekday() == 7),
]

# The first instant at which the clock showed something else, from the tz database; all of it past, so that it stays.
CHANGES = [
    ("Europe/Berlin", "2025-03-30T01:00", 60),
    ("Europe/Berlin", "2025-10-26T01:00", -60),
    ("Europe/Riga", "2025-03-30T01:00", 60),
    ("Europe/Riga", "2025-10-26T01:00", -60),
    ("America/New_York", "2025-03-09T07:00", 60),
    ("America/New_York", "2025-11-02T06:00", -60),
    ("America/Santiago", "2024-04-07T03:00", -60),  # at midnight, back into Saturday
    ("America/Santiago", "2024-09-08T04:00", 60),  # Sunday begins at 01:00
    ("Atlantic/Azores", "2025-03-30T01:00", 60),
    ("Atlantic/Azores", "2025-10-26T01:00", -60),
    ("Africa/Cairo", "2024-04-25T22:00", 60),
    ("Africa/Cairo", "2024-10-31T21:00", -60),
    ("Africa/Casablanca", "2025-02-23T02:00", -60),  # summer time is the rule there, and Ramadan the exception
    ("Africa/Casablanca", "2025-04-06T02:00", 60),
    ("Australia/Lord_Howe", "2025-04-05T15:00", -30),
    ("Australia/Lord_Howe", "2025-10-04T15:30", 30),
    ("Antarctica/Troll", "2025-03-30T01:00", 120),
    ("Antarctica/Troll", "2025-10-26T01:00", -120),
    ("Pacific/Chatham", "2025-04-05T14:00", -60),
    ("Pacific/Chatham", "2025-09-27T14:00", 60),
    ("America/Caracas", "2016-05-01T07:00", 30),
    ("Asia/Pyongyang", "2015-08-14T15:00", -30),
    ("Antarctica/Casey", "2018-03-10T17:00", -180),  # as far back as a fixed-time job rides over
    ("Antarctica/Casey", "2020-10-03T16:01", 180),  # three hours forward: a correction
    ("Pacific/Apia", "2011-12-30T10:00", 1440),  # Friday the 30th did not take place
    ("Asia/Kathmandu", "2025-06-01T00:00", 0),
]


def local_minutes(zone: ZoneInfo, since: datetime, until: datetime) -> Iterator[tuple[datetime, int]]:
    """Each minute's instant, and the reading of the local clock in minutes."""
    instant = since
    while instant <= until:
        offset = instant.astimezone(zone).utcoffset()
        assert offset is not None
        yield instant, (int(instant.timestamp()) + int(offset.total_seconds())) // 60
        instant += MINUTE


def debian(case: Case, minutes: list[tuple[datetime, int]]) -> list[datetime]:
    """The instants, after the first of these minutes, at which Debian cron starts the job."""

    @cache
    def matching_day(number: int) -> bool:
        return case.day(datetime.fromtimestamp(number * 86_400, UTC))

    def matches(reading: int) -> bool:
        day, minute = divmod(reading, 1440)
        return minute % 60 in case.minutes and minute // 60 in case.hours and matching_day(day)

    started = []
    virtual = minutes[0][1]
    for instant, clock in minutes[1:]:
        ahead = clock - virtual
        if ahead == 1 or ahead > 180 or ahead <= -180:
            due, virtual = matches(clock), clock
        elif ahead > 0:
            due = matches(clock) if case.wildcard else any(matches(reading) for reading in range(virtual + 1, clock + 1))
            virtual = clock
        else:
            due = case.wildcard and matches(clock)
        if due:
            started.append(instant)
    return started


def walked(case: Case, zone: ZoneInfo, since: datetime, until: datetime) -> list[datetime]:
    schedule, found = parse_schedule(case.text, zone), []
    instant = schedule.next(since)
    while instant and instant <= until:
        found.append(instant)
        instant = schedule.next(instant)
    return found


@pytest.mark.parametrize(("name", "at", "minutes"), CHANGES, ids=[f"{name}-{at}" for name, at, _ in CHANGES])
def test_jobs_fire_as_under_debian_cron_when_the_clock_changes(name: str, at: str, minutes: int) -> None:
    zone, change = ZoneInfo(name), datetime.fromisoformat(at).replace(tzinfo=UTC)
    before, after = ((instant.astimezone(zone).utcoffset() or timedelta()) for instant in (change - MINUTE, change))
    assert after - before == timedelta(minutes=minutes)
    clock = list(local_minutes(zone, change - AROUND, change + AROUND))
    for case in CASES:
        expected = debian(case, clock)
        assert walked(case, zone, change - AROUND, change + AROUND) == expected, case.text
        slots = parse_schedule(case.text, zone).slots(change - AROUND, change + AROUND)
        assert (slots and (slots.first, slots.latest, slots.count)) == (
            (expected[0], expected[-1], len(expected)) if expected else None
        ), case.text


@loop_over("start", [-61, -60, -31, -1, 0, 1, 29, 30, 59, 60, 61])
@loop_over(("name", "at", "minutes"), CHANGES[:2] + CHANGES[14:18])
def test_the_starting_point_around_a_clock_change_does_not_matter(name: str, at: str, minutes: int, start: int) -> None:
    zone, change = ZoneInfo(name), datetime.fromisoformat(at).replace(tzinfo=UTC)
    begin = change + start * MINUTE
    clock = list(local_minutes(zone, change - AROUND, change + AROUND))
    for case in CASES:
        coming = [instant for instant in debian(case, clock) if instant > begin]
        schedule = parse_schedule(case.text, zone)
        if coming:
            assert schedule.next(begin) == coming[0], case.text
        slots = schedule.slots(begin, change + AROUND)
        assert (slots.count if slots else 0) == len(coming), case.text


YEARS_WALKED = size(1, 7)
YEARS = {
    "Europe/Berlin": (2024, 2024 + YEARS_WALKED),
    "Europe/Dublin": (2024, 2024 + YEARS_WALKED),  # summer is standard time there, and winter an hour less
    "Africa/Casablanca": (2024, 2024 + YEARS_WALKED),  # and there an hour less is Ramadan
    "Africa/Cairo": (2024, 2024 + YEARS_WALKED),  # at midnight
    "America/Santiago": (2024, 2024 + YEARS_WALKED),  # at midnight
    "America/New_York": (2024, 2024 + YEARS_WALKED),
    "America/St_Johns": (2024, 2024 + YEARS_WALKED),  # three hours and a half from UTC
    "Atlantic/Azores": (2024, 2024 + YEARS_WALKED),
    "Antarctica/Troll": (2024, 2024 + YEARS_WALKED),  # by two hours
    "Asia/Beirut": (2024, 2024 + YEARS_WALKED),
    "Australia/Lord_Howe": (2024, 2024 + YEARS_WALKED),  # by half an hour
    "Pacific/Chatham": (2024, 2024 + YEARS_WALKED),  # 12:45 from UTC
    "Pacific/Apia": (2011, 2012 + YEARS_WALKED),  # 30 December 2011 did not take place
}
NEAR = timedelta(hours=14)
STARTS = [-NEAR, -20 * MINUTE, 10 * MINUTE]  # from the change of the clock
WALKED = 30  # firings; those beyond are counted


@cache
def changes(name: str) -> list[datetime]:
    """Every instant in the years of a zone, to the minute, at which its clock was set; found by looking."""
    zone = ZoneInfo(name)

    def offset(instant: datetime) -> timedelta | None:
        return instant.astimezone(zone).utcoffset()

    found = []
    day = datetime(YEARS[name][0], 1, 1, tzinfo=UTC)
    while day.year < YEARS[name][1]:
        if offset(day) != offset(day + DAY):
            found.append(next(at for minute in range(1441) if offset(at := day + minute * MINUTE) != offset(day)))
        day += DAY
    return found


def test_the_oracle_covers_thousands_of_cases() -> None:
    assert len(YEARS) >= 12
    assert len(CASES) >= 20
    assert all(changes(name) for name in YEARS)
    assert sum(len(changes(name)) for name in YEARS) * len(CASES) * len(STARTS) > size(
        1_500, 10_000
    )  # at each change, each case, each start
    assert datetime(2011, 12, 30, 10, tzinfo=UTC) in changes("Pacific/Apia")


@pytest.mark.simulation
@pytest.mark.parametrize("name", YEARS)
def test_every_job_fires_as_under_debian_cron_at_every_change_of_a_clock(name: str) -> None:
    zone, apart = ZoneInfo(name), []
    for change in changes(name):
        clock = list(local_minutes(zone, change - NEAR, change + NEAR))
        for case in CASES:
            schedule, started = parse_schedule(case.text, zone), debian(case, clock)
            for start in STARTS:
                begin = change + start
                expected = [instant for instant in started if instant > begin]
                slots = schedule.slots(begin, change + NEAR)
                counted = (slots.first, slots.latest, slots.count) if slots else None
                if counted != ((expected[0], expected[-1], len(expected)) if expected else None):
                    apart.append((case.text, begin, "slots"))
                if first(schedule, begin, change + NEAR) != expected[:WALKED]:
                    apart.append((case.text, begin, "next"))
    assert apart == []


def first(schedule: CronSchedule, begin: datetime, until: datetime) -> list[datetime]:
    """The first firings, each found from the one before."""
    found = []
    instant = schedule.next(begin)
    while instant and instant <= until and len(found) < WALKED:
        found.append(instant)
        instant = schedule.next(instant)
    return found


def made_up_zone(change: datetime, before: int, after: int) -> ZoneInfo:
    """A zone (TZif, version 1) whose clock is set once; the offsets are minutes."""
    header = b"TZif" + bytes(16) + struct.pack(">6L", 0, 0, 0, 1, 2, 4)
    types = struct.pack(">lBB", before * 60, 0, 0) + struct.pack(">lBB", after * 60, 0, 0)
    body = struct.pack(">l", int(change.timestamp())) + b"\x01" + types + b"UTC\0"
    return ZoneInfo.from_file(BytesIO(header + body), key="Made/Up")


@pytest.mark.parametrize("by", [179, 180, 181, -179, -180, -181, 1440, -1440])
def test_the_border_between_summer_time_and_a_correction_is_three_hours(by: int) -> None:
    change = datetime(2025, 6, 15, 1, tzinfo=UTC)
    zone = made_up_zone(change, -(by // 2), by - by // 2)
    clock = list(local_minutes(zone, change - AROUND, change + AROUND))
    for case in CASES:
        assert walked(case, zone, change - AROUND, change + AROUND) == debian(case, clock), case.text


# Debian runs the jobs of a jump of up to five minutes late, even wildcard jobs. No zone has such a change.
JUMPS = st.integers(-300, 300).filter(lambda minutes: not 0 < minutes < 6)


@pytest.mark.simulation
@settings(deadline=None, max_examples=size(30, 2000), derandomize=not IS_LONG)
@given(by=JUMPS, at=st.integers(0, 1439), base=st.integers(-720, 720), begin=st.integers(-400, 400), case=st.sampled_from(CASES))
def test_any_change_of_any_clock_is_treated_as_debian_does(by: int, at: int, base: int, begin: int, case: Case) -> None:
    change = datetime(2025, 6, 14, tzinfo=UTC) + at * MINUTE
    zone = made_up_zone(change, base, base + by)
    since, until = change + begin * MINUTE, change + timedelta(hours=12)
    expected = [at for at in debian(case, list(local_minutes(zone, change - timedelta(hours=12), until))) if at > since]
    assert walked(case, zone, since, until) == expected
    slots = parse_schedule(case.text, zone).slots(since, until)
    assert (slots.count if slots else 0) == len(expected)

"""The slots of a heartbeat with an interval."""

from __future__ import annotations

import time
from bisect import bisect_left
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import loop_over

from heartbeat.hours import (
    EVERY_DAY,
    AllowedDays,
    Calendar,
    Hours,
    HoursAndDays,
    Window,
    make_calendar,
    parse_days,
    parse_span,
    window,
)
from heartbeat.slots import IntervalSlots, SlotRange, first_anchor, stable_fraction, stagger_for

BERLIN = ZoneInfo("Europe/Berlin")
NONE = timedelta()
SECOND = timedelta(seconds=1)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def hours(span: str, days: str = "mon-sun", zone: ZoneInfo | None = None) -> Hours:
    return Hours((window(*parse_span(span), parse_days(days), zone or ZoneInfo("UTC")),))


def walk(cadence: IntervalSlots, after: datetime, until: datetime) -> list[datetime]:
    found: list[datetime] = []
    slot = cadence.next(after)
    while slot is not None and slot <= until:
        found.append(slot)
        slot = cadence.next(slot)
    return found


def test_the_anchor_is_the_first_slot_of_the_fixed_schedule() -> None:
    cadence = IntervalSlots(at("2026-11-20T10:00"), timedelta(minutes=30), NONE, Hours())
    assert cadence.next(at("2020-01-01")) == at("2026-11-20T10:00")
    assert cadence.next(at("2026-11-20T10:00")) == at("2026-11-20T10:30")
    assert cadence.next(at("2026-11-20T10:29:59.999999")) == at("2026-11-20T10:30")


def test_a_range_excludes_its_start_and_includes_its_end() -> None:
    cadence = IntervalSlots(at("2026-11-20T10:00"), timedelta(minutes=30), NONE, Hours())
    assert cadence.slots(at("2026-11-20T10:00"), at("2026-11-20T11:00")) == SlotRange(
        at("2026-11-20T10:30"), at("2026-11-20T11:00"), 2
    )
    assert cadence.slots(at("2026-11-20T10:00"), at("2026-11-20T10:29")) is None
    assert cadence.closed_slots(at("2026-11-20T10:00"), at("2026-11-21T10:00")) is None


def test_slots_outside_the_window_are_counted_as_closed() -> None:
    cadence = IntervalSlots(at("2026-11-20T00:00"), timedelta(hours=1), NONE, hours("08:00-22:00"))
    whole = (at("2026-11-20T00:00"), at("2026-11-21T00:00"))
    assert cadence.slots(*whole) == SlotRange(at("2026-11-20T08:00"), at("2026-11-20T21:00"), 14)
    assert cadence.closed_slots(*whole) == SlotRange(at("2026-11-20T01:00"), at("2026-11-21T00:00"), 10)


def test_a_daily_heartbeat_anchored_at_23_runs_every_day_between_8_and_22() -> None:
    cadence = IntervalSlots(at("2026-11-20T23:00"), timedelta(days=1), timedelta(minutes=7), hours("08:00-22:00"))
    found = walk(cadence, at("2026-11-20T12:00"), at("2026-12-20T23:59"))
    assert found == [at("2026-11-21T08:07") + timedelta(days=day) for day in range(30)]
    assert cadence.closed_slots(at("2026-11-20T12:00"), at("2026-12-20T12:00")) is None  # each of them has moved


def test_an_opening_with_a_point_of_the_grid_gets_no_slot_of_its_own() -> None:
    cadence = IntervalSlots(at("2026-11-20T21:59"), timedelta(days=1), timedelta(minutes=7), hours("08:00-22:00"))
    assert walk(cadence, at("2026-11-20T22:00"), at("2026-11-22T22:00")) == [at("2026-11-21T21:59"), at("2026-11-22T21:59")]


def test_the_slot_of_an_opening_is_kept_inside_it() -> None:
    cadence = IntervalSlots(at("2026-11-20T23:00"), timedelta(days=1), timedelta(hours=2), hours("08:00-08:30"))
    assert cadence.next(at("2026-11-21T00:00")) == at("2026-11-21T08:29:59")
    assert cadence.next(at("2026-11-21T08:29:59")) == at("2026-11-22T08:29:59")


def test_the_first_point_opens_the_next_window_and_none_before_it() -> None:
    cadence = IntervalSlots(at("2026-11-20T23:00"), timedelta(days=1), NONE, hours("08:00-22:00"))
    assert cadence.next(at("2026-11-19T00:00")) == at("2026-11-21T08:00")


TWICE_A_DAY = Hours((*hours("08:00-10:00").windows, *hours("14:00-16:00").windows))
SHORT = Hours(tuple(window(*parse_span(span), EVERY_DAY, BERLIN) for span in ("08:00-08:05", "08:10-08:15", "08:20-08:25")))
AUTUMN_NIGHT = hours("02:15-02:45", zone=BERLIN)  # open twice on 31 October 2027


@loop_over(
    ("interval", "open_times", "anchor", "days", "count"),
    [
        (timedelta(days=7), hours("08:00-22:00"), "2027-10-20T12:00", 70, 10),
        (timedelta(days=7), hours("08:00-22:00"), "2027-10-20T23:30", 70, 10),
        (timedelta(days=30), hours("08:00-22:00"), "2027-10-20T23:30", 60, 2),
        (timedelta(days=30), hours("08:00-22:00"), "2027-10-20T12:00", 60, 2),
        (timedelta(days=1), TWICE_A_DAY, "2027-10-20T12:00", 30, 30),
        (timedelta(days=1), TWICE_A_DAY, "2027-10-20T09:00", 30, 30),
        (timedelta(days=1), AUTUMN_NIGHT, "2027-10-20T12:00", 30, 30),
        (timedelta(hours=1), SHORT, "2027-10-20T12:30", 10, 10),  # 06:30 in UTC is the last point before 08:00 in Berlin
        (timedelta(hours=1), SHORT, "2027-10-20T12:07", 10, 20),  # 06:07 or 07:07 moves to 08:10, and the one before it to 08:00
        (timedelta(hours=6), hours("08:00-12:00"), "2027-10-20T01:00", 10, 10),
    ],
)
def test_two_slots_are_never_closer_than_the_interval(
    interval: timedelta, open_times: Hours, anchor: str, days: int, count: int
) -> None:
    cadence = IntervalSlots(at(anchor), interval, timedelta(minutes=1), open_times)
    found = cadence.slots(at(anchor) - SECOND, at(anchor) + timedelta(days=days) - SECOND)
    later = cadence.slots(at(anchor) - SECOND, at(anchor) + timedelta(days=days, hours=22))
    assert found is not None
    assert later is not None
    assert found.count <= count <= later.count <= count + max(1, timedelta(days=1) // interval)


def test_a_point_on_an_excluded_day_moves_to_the_next_opening_on_an_allowed_day() -> None:
    weekend = AllowedDays(ZoneInfo("UTC"), Calendar(weekdays=frozenset({5, 6})))
    weekly = IntervalSlots(
        at("2026-11-21T12:00"), timedelta(days=7), timedelta(minutes=5), HoursAndDays(hours("08:00-22:00"), weekend)
    )
    assert walk(weekly, at("2026-11-20"), at("2026-12-06")) == [at("2026-11-23T08:05"), at("2026-11-30T08:05")]
    daily = IntervalSlots(
        at("2026-11-20T12:00"), timedelta(days=1), timedelta(minutes=5), HoursAndDays(hours("08:00-22:00"), weekend)
    )
    # Saturday and Sunday would move to Monday, which has a point of its own.
    assert walk(daily, at("2026-11-20"), at("2026-11-24")) == [at("2026-11-20T12:00"), at("2026-11-23T12:00")]
    assert daily.closed_slots(at("2026-11-20"), at("2026-11-24")) == SlotRange(at("2026-11-21T12:00"), at("2026-11-22T12:00"), 2)


def test_the_next_slot_of_an_interval_of_years_is_found_at_once() -> None:
    cadence = IntervalSlots(at("2027-01-01T03:00"), timedelta(days=3650), NONE, hours("08:00-22:00", zone=BERLIN))
    begun = time.process_time()
    for day in range(300):
        assert cadence.next(at("2028-01-01") + timedelta(days=day)) == at("2036-12-29T07:00")
    assert time.process_time() - begun < 0.5


def test_an_interval_of_thirty_minutes_has_fifty_slots_on_a_day_of_25_hours() -> None:
    # Berlin's clocks go back on 31 October 2027.
    cadence = IntervalSlots(at("2027-01-01"), timedelta(minutes=30), NONE, Hours())
    midnight, next_midnight = datetime(2027, 10, 31, tzinfo=BERLIN), datetime(2027, 11, 1, tzinfo=BERLIN)
    found = cadence.slots(midnight.astimezone(UTC) - SECOND, next_midnight.astimezone(UTC) - SECOND)
    assert found is not None
    assert found.count == 50


def test_nothing_opens_within_two_years() -> None:
    never = Hours((Window(480, 1320, frozenset(), BERLIN),))
    cadence = IntervalSlots(at("2026-11-20"), timedelta(minutes=30), NONE, never)
    assert cadence.next(at("2026-11-20")) is None
    assert cadence.slots(at("2026-11-20"), at("2027-11-20")) is None


def test_an_interval_beyond_the_end_of_the_calendar_has_no_next() -> None:
    cadence = IntervalSlots(at("2026-11-20"), timedelta(days=3_650_000), NONE, Hours())
    assert cadence.next(at("2026-11-20")) is None


def test_ten_years_of_minutes_are_counted_by_arithmetic() -> None:
    cadence = IntervalSlots(at("2027-01-01"), timedelta(minutes=1), NONE, hours("08:00-22:00", zone=BERLIN))
    decade = (at("2027-01-01"), at("2037-01-01"))
    begun = time.process_time()
    inside, outside = cadence.slots(*decade), cadence.closed_slots(*decade)
    assert time.process_time() - begun < 2
    assert inside is not None
    assert outside is not None
    assert inside.count + outside.count == 3653 * 1440
    assert inside.count == 3653 * 14 * 60


def test_the_next_slot_is_found_in_microseconds() -> None:
    cadence = IntervalSlots(at("2027-01-01"), timedelta(minutes=30), NONE, hours("08:00-22:00", "mon-fri", BERLIN))
    begun = time.process_time()
    for minute in range(1000):
        cadence.next(at("2027-06-01") + timedelta(minutes=minute))
    assert time.process_time() - begun < 1


zones = st.sampled_from(["UTC", "Europe/Berlin", "America/Havana", "Australia/Lord_Howe"]).map(ZoneInfo)
windows = st.builds(Window, st.integers(0, 1439), st.integers(1, 1440), st.frozensets(st.integers(0, 6), min_size=1), zones)
some_hours = st.lists(windows.filter(lambda w: w.start != w.end), max_size=3).map(lambda found: Hours(tuple(found)))
weekdays = st.frozensets(st.integers(0, 6), max_size=3)
dates = st.lists(st.integers(-6, 20).map(lambda day: date(2027, 10, 25) + timedelta(days=day)), max_size=4)
calendars = st.builds(lambda found, days: make_calendar(tuple((day, day) for day in found), days), dates, weekdays)
some_days = st.builds(AllowedDays, zones, calendars, st.none() | calendars)
open_times = some_hours | st.builds(HoursAndDays, some_hours, some_days)
# From twenty minutes to a week; the clocks of three of the zones change between 3 and 31 October or on 7 November 2027.
intervals = st.one_of(st.integers(20, 600), st.integers(600, 4000), st.sampled_from([720, 1440, 2880, 10080])).map(
    lambda minutes: timedelta(minutes=minutes)
)
cadences = st.builds(
    IntervalSlots,
    st.integers(-40_000, 16_000).map(lambda minutes: at("2027-10-31") + timedelta(minutes=minutes)),
    intervals,
    st.integers(0, 1200).map(lambda seconds: timedelta(seconds=seconds)),
    open_times,
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(some_hours, some_days, st.integers(-20_000, 20_000), st.integers(0, 10_000))
def test_an_agent_is_open_only_if_both_hours_and_days_allow_it(
    of_hours: Hours, of_days: AllowedDays, begin: int, length: int
) -> None:
    both = HoursAndDays(of_hours, of_days)
    after = at("2027-10-31") + timedelta(minutes=begin)
    until = after + timedelta(minutes=length)
    spans = list(both.openings(after, until))
    assert all(opens < closes and closes > after and opens <= until for opens, closes in spans)
    assert all(earlier[1] < later[0] for earlier, later in pairwise(spans))
    for minute in range(0, length + 1, 7):
        instant = after + timedelta(minutes=minute)
        is_open = of_hours.open_at(instant) and of_days.open_at(instant)
        assert is_open is both.open_at(instant) is any(opens <= instant < closes for opens, closes in spans)
    for opens, closes in spans:  # those of years may be cut
        assert closes > until + timedelta(days=700) or not both.open_at(closes)
        assert opens < after - timedelta(days=700) or not both.open_at(opens - SECOND)


def brute(cadence: IntervalSlots, after: datetime, until: datetime) -> tuple[list[datetime], list[datetime]]:
    """The slots in (after, until], and the points in it that give none: each point by itself, the latest first."""
    horizon = until + timedelta(days=60)
    grid = [cadence.anchor + k * cadence.interval for k in range((horizon - cadence.anchor) // cadence.interval + 1)]
    openings = list(cadence.hours.openings(cadence.anchor - SECOND, horizon))
    slots: set[datetime] = set()
    without: set[datetime] = set()
    for point in reversed(grid):
        opens, closes = next((opening for opening in openings if opening[1] > point), (None, horizon))
        if opens is not None and opens <= point:
            slots.add(point)
        elif opens is None or bisect_left(grid, opens) < bisect_left(grid, closes):
            without.add(point)  # it has nowhere to go, or the opening has a point of its own
        elif (slot := min(opens + cadence.stagger, closes - SECOND)) in slots:
            without.add(point)  # a later one has moved there
        else:
            slots.add(slot)
    return sorted(slot for slot in slots if after < slot <= until), sorted(point for point in without if after < point <= until)


def slot_range(points: list[datetime]) -> SlotRange | None:
    return SlotRange(points[0], points[-1], len(points)) if points else None


@settings(max_examples=60, deadline=None, derandomize=True)
@given(cadences, st.integers(-3000, 3000), st.integers(0, 6000))
def test_each_point_gives_at_most_one_slot_and_every_opening_gets_one(cadence: IntervalSlots, begin: int, length: int) -> None:
    after = at("2027-10-31") + timedelta(minutes=begin)
    until = after + timedelta(minutes=length)
    slots, without = brute(cadence, after, until)
    assert walk(cadence, after, until) == slots
    assert cadence.slots(after, until) == slot_range(slots)
    assert cadence.closed_slots(after, until) == slot_range(without)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(cadences, st.integers(0, 40_000))
def test_there_are_never_more_slots_than_points(cadence: IntervalSlots, length: int) -> None:
    first, until = cadence.anchor - SECOND, cadence.anchor + timedelta(minutes=length)
    slots, without = cadence.slots(first, until), cadence.closed_slots(first, until)
    points = timedelta(minutes=length) // cadence.interval + 1
    moving = points - (slots.count if slots else 0) - (without.count if without else 0)
    assert moving in (0, 1)  # one may have moved to an opening that is still to come


@settings(max_examples=80, deadline=None, derandomize=True)
@given(cadences, st.integers(-3000, 3000), st.integers(0, 3000), st.integers(0, 3000))
def test_two_adjacent_ranges_have_the_same_slots_as_one(cadence: IntervalSlots, begin: int, one: int, other: int) -> None:
    a = at("2027-10-31") + timedelta(minutes=begin)
    b, c = a + timedelta(minutes=one), a + timedelta(minutes=one + other)
    for count in (cadence.slots, cadence.closed_slots):
        parts = [part.count for part in (count(a, b), count(b, c)) if part]
        whole = count(a, c)
        assert sum(parts) == (whole.count if whole else 0)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(cadences, st.integers(-3000, 3000), st.integers(1, 240))
def test_short_ranges_have_the_slots_that_follow_each_other(cadence: IntervalSlots, begin: int, length: int) -> None:
    times = [at("2027-10-31") + timedelta(minutes=begin + length * number) for number in range(40)]
    for after, until in pairwise(times):
        slots, found = walk(cadence, after, until), cadence.slots(after, until)
        assert found == (SlotRange(slots[0], slots[-1], len(slots)) if slots else None)


def test_a_fraction_is_stable_and_below_one() -> None:
    assert stable_fraction("ops") == stable_fraction("ops")
    fractions = [stable_fraction(f"agent-{number}") for number in range(1000)]
    assert all(0 <= fraction < 1 for fraction in fractions)
    assert 0.45 < sum(fractions) / 1000 < 0.55
    assert stable_fraction("ops") == pytest.approx(0.6608309090171538)


@pytest.mark.parametrize("share", [NONE, timedelta(milliseconds=500), SECOND, timedelta(minutes=3), timedelta(seconds=2.5)])
def test_a_stagger_is_whole_seconds_and_at_most_its_share(share: timedelta) -> None:
    for number in range(200):
        stagger = stagger_for(f"agent-{number}", share)
        assert NONE <= stagger <= share
        assert stagger.microseconds == 0


def test_agents_have_different_staggers() -> None:
    assert len({stagger_for(f"agent-{number}", timedelta(minutes=3)) for number in range(100)}) > 50


def test_an_anchor_is_rounded_up_to_a_whole_second() -> None:
    assert first_anchor(at("2026-11-20T10:00:00.000001"), timedelta(seconds=5)) == at("2026-11-20T10:00:06")
    assert first_anchor(at("2026-11-20T10:00"), timedelta(seconds=5)) == at("2026-11-20T10:00:05")


def test_every_day_means_seven_days() -> None:
    assert parse_days("mon-sun") == EVERY_DAY

"""Which slots a heartbeat has."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heartbeat.cadence import Cadence, Slots, first_anchor, stable_fraction, stagger_of
from heartbeat.hours import EVERY_DAY, Hours, Window, parse_days, parse_span, window

BERLIN = ZoneInfo("Europe/Berlin")
NONE = timedelta()
SECOND = timedelta(seconds=1)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def hours(span: str, days: str = "mon-sun", zone: ZoneInfo | None = None) -> Hours:
    return Hours((window(*parse_span(span), parse_days(days), zone or ZoneInfo("UTC")),))


def walk(cadence: Cadence, after: datetime, until: datetime) -> list[datetime]:
    found: list[datetime] = []
    slot = cadence.next(after)
    while slot is not None and slot <= until:
        found.append(slot)
        slot = cadence.next(slot)
    return found


def test_the_anchor_is_the_first_slot_and_the_grid_goes_on_from_it() -> None:
    cadence = Cadence(at("2026-11-20T10:00"), timedelta(minutes=30), NONE, Hours())
    assert cadence.next(at("2020-01-01")) == at("2026-11-20T10:00")
    assert cadence.next(at("2026-11-20T10:00")) == at("2026-11-20T10:30")
    assert cadence.next(at("2026-11-20T10:29:59.999999")) == at("2026-11-20T10:30")


def test_a_range_leaves_out_its_beginning_and_holds_its_end() -> None:
    cadence = Cadence(at("2026-11-20T10:00"), timedelta(minutes=30), NONE, Hours())
    assert cadence.slots(at("2026-11-20T10:00"), at("2026-11-20T11:00")) == Slots(
        at("2026-11-20T10:30"), at("2026-11-20T11:00"), 2
    )
    assert cadence.slots(at("2026-11-20T10:00"), at("2026-11-20T10:29")) is None
    assert cadence.closed(at("2026-11-20T10:00"), at("2026-11-21T10:00")) is None


def test_slots_outside_the_window_are_counted_as_closed() -> None:
    cadence = Cadence(at("2026-11-20T00:00"), timedelta(hours=1), NONE, hours("08:00-22:00"))
    whole = (at("2026-11-20T00:00"), at("2026-11-21T00:00"))
    assert cadence.slots(*whole) == Slots(at("2026-11-20T08:00"), at("2026-11-20T21:00"), 14)
    assert cadence.closed(*whole) == Slots(at("2026-11-20T01:00"), at("2026-11-21T00:00"), 10)


def test_a_daily_beat_anchored_at_23_beats_every_day_within_8_and_22() -> None:
    cadence = Cadence(at("2026-11-20T23:00"), timedelta(days=1), timedelta(minutes=7), hours("08:00-22:00"))
    found = walk(cadence, at("2026-11-20T12:00"), at("2026-12-20T23:59"))
    assert found == [at("2026-11-21T08:07") + timedelta(days=day) for day in range(30)]
    assert cadence.closed(at("2026-11-20T12:00"), at("2026-11-22T23:00")) == Slots(
        at("2026-11-20T23:00"), at("2026-11-22T23:00"), 3
    )


def test_an_opening_with_a_point_of_the_grid_gets_no_slot_of_its_own() -> None:
    cadence = Cadence(at("2026-11-20T21:59"), timedelta(days=1), timedelta(minutes=7), hours("08:00-22:00"))
    assert walk(cadence, at("2026-11-20T22:00"), at("2026-11-22T22:00")) == [at("2026-11-21T21:59"), at("2026-11-22T21:59")]


def test_the_slot_of_an_opening_is_kept_inside_it() -> None:
    cadence = Cadence(at("2026-11-20T23:00"), timedelta(days=1), timedelta(hours=2), hours("08:00-08:30"))
    assert cadence.next(at("2026-11-21T00:00")) == at("2026-11-21T08:29:59")
    assert cadence.next(at("2026-11-21T08:29:59")) == at("2026-11-22T08:29:59")


def test_an_opening_that_began_before_the_anchor_gets_no_slot_of_its_own() -> None:
    cadence = Cadence(at("2026-11-20T23:00"), timedelta(days=1), NONE, hours("08:00-22:00"))
    assert cadence.next(at("2026-11-19T00:00")) == at("2026-11-21T08:00")


def test_thirty_minutes_make_fifty_beats_in_an_autumn_day_of_25_hours() -> None:
    # Berlin's clocks go back on 31 October 2027.
    cadence = Cadence(at("2027-01-01"), timedelta(minutes=30), NONE, Hours())
    midnight, next_midnight = datetime(2027, 10, 31, tzinfo=BERLIN), datetime(2027, 11, 1, tzinfo=BERLIN)
    found = cadence.slots(midnight.astimezone(UTC) - SECOND, next_midnight.astimezone(UTC) - SECOND)
    assert found is not None
    assert found.count == 50


def test_nothing_opens_within_two_years() -> None:
    never = Hours((Window(480, 1320, frozenset(), BERLIN),))
    cadence = Cadence(at("2026-11-20"), timedelta(minutes=30), NONE, never)
    assert cadence.next(at("2026-11-20")) is None
    assert cadence.slots(at("2026-11-20"), at("2027-11-20")) is None


def test_an_interval_beyond_the_end_of_the_calendar_has_no_next() -> None:
    cadence = Cadence(at("2026-11-20"), timedelta(days=3_650_000), NONE, Hours())
    assert cadence.next(at("2026-11-20")) is None


def test_ten_years_of_minutes_are_counted_by_arithmetic() -> None:
    cadence = Cadence(at("2027-01-01"), timedelta(minutes=1), NONE, hours("08:00-22:00", zone=BERLIN))
    decade = (at("2027-01-01"), at("2037-01-01"))
    begun = time.process_time()
    inside, outside = cadence.slots(*decade), cadence.closed(*decade)
    assert time.process_time() - begun < 2
    assert inside is not None
    assert outside is not None
    assert inside.count + outside.count == 3653 * 1440
    assert inside.count == 3653 * 14 * 60


def test_the_next_slot_is_found_in_microseconds() -> None:
    cadence = Cadence(at("2027-01-01"), timedelta(minutes=30), NONE, hours("08:00-22:00", "mon-fri", BERLIN))
    begun = time.process_time()
    for minute in range(1000):
        cadence.next(at("2027-06-01") + timedelta(minutes=minute))
    assert time.process_time() - begun < 1


zones = st.sampled_from(["UTC", "Europe/Berlin", "America/Havana", "Australia/Lord_Howe"]).map(ZoneInfo)
windows = st.builds(Window, st.integers(0, 1439), st.integers(1, 1440), st.frozensets(st.integers(0, 6), min_size=1), zones)
some_hours = st.lists(windows.filter(lambda w: w.start != w.end), max_size=2).map(lambda found: Hours(tuple(found)))
intervals = st.integers(20, 4000).map(lambda minutes: timedelta(minutes=minutes))
cadences = st.builds(
    Cadence,
    st.integers(-4000, 4000).map(lambda minutes: at("2027-10-31") + timedelta(minutes=minutes)),
    intervals,
    st.integers(0, 9000).map(lambda seconds: timedelta(seconds=seconds)),
    some_hours,
)


def brute(cadence: Cadence, after: datetime, until: datetime) -> tuple[list[datetime], list[datetime]]:
    """Slots inside and points of the grid outside, one by one."""
    grid = [cadence.anchor + k * cadence.interval for k in range(1500)]
    inside = [point for point in grid if cadence.hours.open_at(point)]
    if not cadence.hours.always:
        for opens, closes in cadence.hours.openings(after, until):
            if opens >= cadence.anchor and not any(opens <= point < closes for point in grid):
                inside.append(min(opens + cadence.stagger, closes - SECOND))
    outside = [point for point in grid if not cadence.hours.open_at(point)]
    return sorted(point for point in inside if after < point <= until), [point for point in outside if after < point <= until]


def told(points: list[datetime]) -> Slots | None:
    return Slots(points[0], points[-1], len(points)) if points else None


@settings(max_examples=80, deadline=None, derandomize=True)
@given(cadences, st.integers(-6000, 6000), st.integers(0, 12000))
def test_counts_and_walks_agree_with_brute_force(cadence: Cadence, begin: int, length: int) -> None:
    after = at("2027-10-31") + timedelta(minutes=begin)
    until = after + timedelta(minutes=length)
    inside, outside = brute(cadence, after, until)
    assert cadence.slots(after, until) == told(inside)
    assert cadence.closed(after, until) == told(outside)
    assert walk(cadence, after, until) == inside


@settings(max_examples=50, deadline=None, derandomize=True)
@given(cadences, st.integers(-3000, 3000), st.integers(0, 3000), st.integers(0, 3000))
def test_two_ranges_side_by_side_hold_what_one_holds(cadence: Cadence, begin: int, one: int, other: int) -> None:
    a = at("2027-10-31") + timedelta(minutes=begin)
    b, c = a + timedelta(minutes=one), a + timedelta(minutes=one + other)
    for count in (cadence.slots, cadence.closed):
        parts = [part.count for part in (count(a, b), count(b, c)) if part]
        whole = count(a, c)
        assert sum(parts) == (whole.count if whole else 0)


def test_a_fraction_is_stable_and_below_one() -> None:
    assert stable_fraction("ops") == stable_fraction("ops")
    fractions = [stable_fraction(f"agent-{number}") for number in range(1000)]
    assert all(0 <= fraction < 1 for fraction in fractions)
    assert 0.45 < sum(fractions) / 1000 < 0.55
    assert stable_fraction("ops") == pytest.approx(0.6608309090171538)


@pytest.mark.parametrize("share", [NONE, timedelta(milliseconds=500), SECOND, timedelta(minutes=3), timedelta(seconds=2.5)])
def test_a_stagger_is_whole_seconds_and_at_most_its_share(share: timedelta) -> None:
    for number in range(200):
        stagger = stagger_of(f"agent-{number}", share)
        assert NONE <= stagger <= share
        assert stagger.microseconds == 0


def test_an_anchor_is_rounded_up_to_a_whole_second() -> None:
    assert first_anchor(at("2026-11-20T10:00:00.000001"), timedelta(seconds=5)) == at("2026-11-20T10:00:06")
    assert first_anchor(at("2026-11-20T10:00"), timedelta(seconds=5)) == at("2026-11-20T10:00:05")


def test_every_day_means_seven_days() -> None:
    assert parse_days("mon-sun") == EVERY_DAY

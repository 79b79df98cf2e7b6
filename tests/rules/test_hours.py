"""Active hours, also on days with a clock change."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from loops import loop_over

from heartbeat.hours import (
    EVERY_DAY,
    FIRST_INSTANT,
    LAST_INSTANT,
    Hours,
    Window,
    first_closed,
    first_open,
    parse_days,
    parse_span,
    parse_time,
    window,
)

BERLIN = ZoneInfo("Europe/Berlin")
MICROSECOND = timedelta.resolution
ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",
    "America/Havana",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
]
ZONES += ["Antarctica/Troll", "Africa/Casablanca", "Pacific/Apia", "Asia/Ho_Chi_Minh", "Pacific/Kiritimati"]


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def hours(span: str, days: str = "mon-sun", zone: ZoneInfo | None = None) -> Hours:
    return Hours((window(*parse_span(span), parse_days(days), zone or ZoneInfo("UTC")),))


def spans(found: Hours, after: str, until: str) -> list[tuple[str, str]]:
    return [(f"{a:%d %H:%M}", f"{b:%d %H:%M}") for a, b in found.openings(at(after), at(until))]


@pytest.mark.parametrize(
    ("reading", "inside"),
    [("07:59:59", False), ("08:00", True), ("21:59:59.999999", True), ("22:00", False), ("00:00", False)],
)
def test_a_window_includes_its_start_but_not_its_end(reading: str, inside: bool) -> None:
    assert hours("08:00-22:00").open_at(at(f"2026-11-20T{reading}")) is inside


@pytest.mark.parametrize(
    ("now", "inside"),
    [
        ("2026-11-20T21:59", False),  # a Friday
        ("2026-11-20T22:00", True),
        ("2026-11-21T03:00", True),
        ("2026-11-21T06:00", False),
        ("2026-11-20T03:00", False),
        ("2026-11-21T22:00", False),
    ],
)
def test_a_window_that_wraps_midnight_belongs_to_the_day_it_starts(now: str, inside: bool) -> None:
    assert hours("22:00-06:00", "fri").open_at(at(now)) is inside


def test_midnight_as_end_means_the_following_midnight() -> None:
    assert hours("20:00-00:00") == hours("20:00-24:00")
    assert hours("20:00-00:00").open_at(at("2026-11-20T23:59:59"))
    assert not hours("20:00-00:00").open_at(at("2026-11-20T00:00"))


def test_no_window_means_always() -> None:
    assert Hours().open_at(at("2026-11-20T03:00"))
    assert first_open(Hours(), at("2026-11-20T03:00")) == at("2026-11-20T03:00")
    assert first_closed(Hours(), at("2026-11-20T03:00")) is None
    assert list(Hours().openings(at("2026-11-20"), at("2026-11-21"))) == [(FIRST_INSTANT, LAST_INSTANT)]


@pytest.mark.parametrize(
    ("parts", "always"),
    [
        (["00:00-24:00"], True),
        (["00:00-12:00", "12:00-00:00"], True),
        (["06:00-18:00", "17:00-06:00"], True),
        (["00:00-23:59"], False),
        (["06:00-18:00", "18:01-06:00"], False),
    ],
)
def test_windows_that_cover_the_week_are_always(parts: list[str], always: bool) -> None:
    both = Hours(tuple(window(*parse_span(part), EVERY_DAY, BERLIN) for part in parts))
    assert both.always is always
    assert (both.key() == "always") is always


def test_windows_of_two_zones_that_cover_a_day_together_leave_gaps() -> None:
    assert not Hours((window(0, 720, EVERY_DAY, ZoneInfo("UTC")), window(720, 1440, EVERY_DAY, ZoneInfo("Asia/Tokyo")))).always


def test_next_open_is_none_inside_and_the_opening_outside() -> None:
    assert first_open(hours("08:00-22:00"), at("2026-11-20T08:00")) == at("2026-11-20T08:00")
    assert first_open(hours("08:00-22:00"), at("2026-11-20T22:00")) == at("2026-11-21T08:00")
    assert first_open(hours("08:00-22:00", "mon"), at("2026-11-24T09:00")) == at("2026-11-30T08:00")


def test_next_open_is_none_when_nothing_opens_within_two_years() -> None:
    never = Hours((Window(480, 1320, frozenset(), BERLIN),))
    assert first_open(never, at("2026-11-20T08:00")) is None
    assert list(never.openings(at("2026-11-20"), at("2026-11-30"))) == []


def test_the_next_closing_is_the_end_of_the_window_or_now_if_it_is_closed() -> None:
    assert first_closed(hours("08:00-22:00"), at("2026-11-20T08:00")) == at("2026-11-20T22:00")
    assert first_closed(hours("08:00-22:00"), at("2026-11-20T23:00")) == at("2026-11-20T23:00")
    assert first_closed(hours("00:00-24:00", "mon-fri"), at("2026-11-18T12:00")) == at("2026-11-21T00:00")


def test_a_window_far_west_may_belong_to_the_day_before_yesterday() -> None:
    # 07:00 UTC is 20:00 of the day before in Pago Pago, where the window began another day earlier.
    pago = hours("22:00-21:00", "wed", ZoneInfo("Pacific/Pago_Pago"))
    assert first_closed(pago, at("2026-11-20T07:00")) == at("2026-11-20T08:00")


def test_a_night_far_west_that_began_the_day_before_yesterday_is_still_open() -> None:
    west = hours("22:00-21:00", zone=ZoneInfo("Etc/GMT+12"))
    assert spans(west, "2026-11-20T08:00", "2026-11-20T09:30") == [("19 10:00", "20 09:00")]


def test_windows_that_touch_or_overlap_make_one_span() -> None:
    both = Hours((*hours("08:00-12:00").windows, *hours("12:00-14:00").windows, *hours("13:00-15:00").windows))
    assert spans(both, "2026-11-20T09:00", "2026-11-20T23:00") == [("20 08:00", "20 15:00")]


def test_a_span_over_several_days_is_returned_in_full_length() -> None:
    assert spans(hours("00:00-24:00", "mon-fri"), "2026-11-20T12:00", "2026-11-21T12:00") == [("16 00:00", "21 00:00")]


def test_openings_end_with_the_last_one_that_begins_by_then() -> None:
    assert spans(hours("08:00-09:00"), "2026-11-20T09:00", "2026-11-22T08:00") == [
        ("21 08:00", "21 09:00"),
        ("22 08:00", "22 09:00"),
    ]
    assert spans(hours("08:00-09:00"), "2026-11-20T08:59", "2026-11-20T08:59") == [("20 08:00", "20 09:00")]


def test_windows_of_two_zones_use_their_own_local_times() -> None:
    both = Hours((*hours("08:00-10:00", zone=ZoneInfo("Asia/Tokyo")).windows, *hours("08:00-10:00", zone=BERLIN).windows))
    assert spans(both, "2026-11-20T00:00", "2026-11-20T20:00") == [("19 23:00", "20 01:00"), ("20 07:00", "20 09:00")]


# Berlin's clocks go forward on 28 March 2027 from 02:00 to 03:00 and back on 31 October 2027 from 03:00 to 02:00,
# both at 01:00 UTC.


@pytest.mark.parametrize(
    ("span", "opened"),
    [
        ("02:30-04:00", [("28 01:00", "28 02:00")]),
        ("02:15-02:45", []),
        ("01:30-02:30", [("28 00:30", "28 01:00")]),
        ("01:00-05:00", [("28 00:00", "28 03:00")]),
    ],
)
def test_a_window_in_the_spring_gap(span: str, opened: list[tuple[str, str]]) -> None:
    assert spans(hours(span, zone=BERLIN), "2027-03-27T12:00", "2027-03-28T12:00") == opened


@pytest.mark.parametrize(
    ("span", "opened"),
    [
        ("01:00-02:30", [("30 23:00", "31 00:30"), ("31 01:00", "31 01:30")]),
        ("02:30-04:00", [("31 00:30", "31 01:00"), ("31 01:30", "31 03:00")]),
        ("02:00-03:00", [("31 00:00", "31 02:00")]),
        ("01:00-05:00", [("30 23:00", "31 04:00")]),
    ],
)
def test_a_window_in_the_autumn_overlap(span: str, opened: list[tuple[str, str]]) -> None:
    assert spans(hours(span, zone=BERLIN), "2027-10-30T20:00", "2027-10-31T12:00") == opened


def test_a_day_that_a_zone_skipped_has_no_opening() -> None:
    # Apia went from 29 December 2011, 24:00, straight to the 31st.
    apia = hours("08:00-09:00", zone=ZoneInfo("Pacific/Apia"))
    assert spans(apia, "2011-12-29T00:00", "2011-12-31T00:00") == [("29 18:00", "29 19:00"), ("30 18:00", "30 19:00")]


def test_ten_years_of_openings_take_a_moment() -> None:
    begun = time.process_time()
    opened = sum(1 for _ in hours("08:00-22:00", zone=BERLIN).openings(at("2030-01-01"), at("2040-01-01")))
    assert opened == 3652
    assert time.process_time() - begun < 2


def test_the_spans_of_a_day_are_cached() -> None:
    open_hours = hours("07:03-21:04", zone=BERLIN)

    def asking() -> float:
        begun = time.process_time()
        for day in range(500):
            list(open_hours.openings(at("2033-01-01") + timedelta(days=day), at("2033-01-02") + timedelta(days=day)))
        return time.process_time() - begun

    first = asking()
    assert asking() < first / 2


minutes = st.integers(0, 1439)
zones = st.sampled_from(ZONES).map(ZoneInfo)
days = st.frozensets(st.integers(0, 6), min_size=1)
windows = st.builds(Window, minutes, minutes.map(lambda minute: minute + 1), days, zones).filter(lambda w: w.start != w.end)
some_hours = st.lists(windows, min_size=1, max_size=3).map(lambda found: Hours(tuple(found)))
# Around the changes of clocks, where all the mistakes are, and in between.
instants = st.sampled_from(
    ["2011-12-30", "2018-02-17", "2026-03-29", "2027-04-04", "2027-10-31", "2027-11-07", "2026-02-15", "2026-07-01"]
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(some_hours, instants, st.integers(-2000, 2000))
def test_openings_agree_with_open_at_at_every_instant(some: Hours, day: str, shift: int) -> None:
    start = at(day) + timedelta(minutes=shift)
    end = start + timedelta(days=2)
    opened = list(some.openings(start, end))
    assert all(one[1] < other[0] for one, other in pairwise(opened))
    for step in range(1, 2 * 1440, 29):
        now = start + timedelta(minutes=step)
        assert some.open_at(now) == any(a <= now < b for a, b in opened)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(some_hours, instants)
def test_every_span_begins_and_ends_at_its_local_times(some: Hours, day: str) -> None:
    for opens, closes in some.openings(at(day), at(day) + timedelta(days=2)):
        assume(closes - opens < timedelta(days=30))  # windows of several zones may be open for years
        assert [some.open_at(opens - MICROSECOND), some.open_at(opens)] == [False, True]
        assert [some.open_at(closes - MICROSECOND), some.open_at(closes)] == [True, False]
        assert first_open(some, opens - MICROSECOND) == opens
        assert first_closed(some, opens) == closes


def test_windows_of_several_zones_may_never_close() -> None:
    both = Hours((*hours("00:02-00:01").windows, *hours("00:02-00:01", zone=BERLIN).windows))
    assert first_closed(both, at("2026-11-20T12:00")) is None
    assert first_open(both, at("2026-11-20T12:00")) == at("2026-11-20T12:00")


@settings(max_examples=40, deadline=None, derandomize=True)
@given(some_hours, instants, st.integers(0, 5000))
def test_a_span_is_the_same_from_every_starting_point(some: Hours, day: str, shift: int) -> None:
    start, end = at(day), at(day) + timedelta(days=9)
    later = start + timedelta(minutes=shift)
    spans = list(some.openings(start, end))
    assume(all(closes - opens < timedelta(days=30) for opens, closes in spans))
    assert [span for span in spans if span[1] > later] == list(some.openings(later, end))


@pytest.mark.parametrize(("text", "minute"), [("00:00", 0), ("08:05", 485), ("23:59", 1439), ("24:00", 1440)])
def test_a_time_is_minutes_of_the_day(text: str, minute: int) -> None:
    assert parse_time(text) == minute


@loop_over("text", ["8:00", "08.00", "24:01", "25:00", "08:60", " 08:00", "08:00\n", "٠٨:٠٠", "", "noon", None, 8.5, True, -1])
def test_an_invalid_time_is_rejected_with_the_form_to_write(text: object) -> None:
    with pytest.raises(ValueError, match=r'is not a time; write "08:00"'):
        parse_time(text)


def test_a_number_is_rejected_with_the_quoted_time_to_write() -> None:
    with pytest.raises(ValueError, match=r'1320 is a number, not a time; write "22:00" in quotes'):
        parse_time(1320)


def test_a_span_in_one_text() -> None:
    assert parse_span("08:00-22:00") == parse_span("08:00 - 22:00") == (480, 1320)
    with pytest.raises(ValueError, match=r'\'08:00\' is not a window; write "08:00-22:00"'):
        parse_span("08:00")


@loop_over(
    ("value", "expected"),
    [
        ("mon", {0}),
        ("mon-fri", {0, 1, 2, 3, 4}),
        ("sat-sun", {5, 6}),
        ("fri-mon", {4, 5, 6, 0}),
        ("mon-mon", {0}),
        ("Mon-FRI", {0, 1, 2, 3, 4}),
        (["mon", "wed"], {0, 2}),
        (["mon-tue", "sun"], {0, 1, 6}),
        (("sun",), {6}),
    ],
)
def test_days_are_names_ranges_and_lists_of_them(value: object, expected: set[int]) -> None:
    assert parse_days(value) == expected


@loop_over("value", ["monday", "mon-", "-mon", "mon-fri-sun", "1-5", 1, None, "", ["mon", "x"], [["mon"]], "mon,wed"])
def test_an_invalid_day_is_rejected_with_the_names_to_write(value: object) -> None:
    with pytest.raises(ValueError, match=r"is not a day; write mon, tue, wed, thu, fri, sat or sun, or a range like mon-fri"):
        parse_days(value)


def test_an_empty_list_of_days_is_rejected() -> None:
    with pytest.raises(ValueError, match="no day is named"):
        parse_days([])


@pytest.mark.parametrize(
    ("span", "complaint"), [("08:00-08:00", "start and end are both 08:00"), ("24:00-06:00", "24:00 cannot be a start")]
)
def test_an_impossible_window_is_rejected(span: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        hours(span)


def test_the_key_does_not_depend_on_the_order() -> None:
    one, other = hours("08:00-10:00", "mon-wed", BERLIN).windows[0], hours("12:00-13:00").windows[0]
    assert Hours((one, other)).key() == Hours((other, one)).key()
    assert Hours((one,)).key() == "08:00-10:00 mon,tue,wed Europe/Berlin"
    assert Hours((one,)).key() != Hours((other,)).key()

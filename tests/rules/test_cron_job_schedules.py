"""When cron schedules fire: clock changes, long absences, and the distance between two slots."""

from __future__ import annotations

import pickle
from datetime import UTC, date, datetime, timedelta
from time import process_time
from zoneinfo import ZoneInfo

from hypothesis import given, settings
from hypothesis import strategies as st
from loops import loop_over

from cron.job_schedules import CronSchedule, SlotRange, parse_schedule

BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def following(text: str, zone: str, after: str, count: int) -> list[str]:
    schedule, instant, found = parse_schedule(text, ZoneInfo(zone)), at(after), []
    for _ in range(count):
        following = schedule.next(instant)
        assert following is not None
        instant = following
        found.append(f"{instant:%m-%dT%H:%M}")
    return found


# Berlin's clocks went forward on 30 March 2025 at 02:00 (01:00 UTC) and back on 26 October at 03:00 (01:00 UTC).
@loop_over(
    ("text", "after", "instants"),
    [
        ("30 2 * * *", "2025-03-29T12:00", ["03-30T01:00", "03-31T00:30"]),
        ("0,20,40 2 * * *", "2025-03-29T12:00", ["03-30T01:00", "03-31T00:00"]),
        ("0,30 2,3 * * *", "2025-03-29T12:00", ["03-30T01:00", "03-30T01:30", "03-31T00:00"]),
        ("*/20 2 * * *", "2025-03-29T12:00", ["03-31T00:00", "03-31T00:20"]),
        ("*/30 * * * *", "2025-03-30T00:10", ["03-30T00:30", "03-30T01:00", "03-30T01:30"]),
        ("30 * * * *", "2025-03-30T00:00", ["03-30T00:30", "03-30T01:30"]),
        ("30 2 * * *", "2025-10-25T12:00", ["10-26T00:30", "10-27T01:30"]),
        ("30 2 * * *", "2025-10-26T00:30", ["10-27T01:30"]),
        ("*/30 2 * * *", "2025-10-25T12:00", ["10-26T00:00", "10-26T00:30", "10-26T01:00", "10-26T01:30", "10-27T01:00"]),
        ("30 * * * *", "2025-10-26T00:00", ["10-26T00:30", "10-26T01:30", "10-26T02:30"]),
        ("30 0-23 * * *", "2025-10-26T00:00", ["10-26T00:30", "10-26T02:30"]),
        ("0 3 * * *", "2025-10-25T12:00", ["10-26T02:00", "10-27T02:00"]),
    ],
)
def test_in_berlin_a_night_in_spring_loses_no_job_and_one_in_autumn_repeats_none(
    text: str, after: str, instants: list[str]
) -> None:
    assert following(text, "Europe/Berlin", after, len(instants)) == instants


def test_apias_skipped_friday_is_not_run_later() -> None:
    """Samoa left out 30 December 2011: Thursday the 29th, UTC-10, was followed by Saturday the 31st, UTC+14."""
    assert following("0 9 * * *", "Pacific/Apia", "2011-12-29T00:00", 3) == ["12-29T19:00", "12-30T19:00", "12-31T19:00"]
    assert following("0 9 30 12 *", "Pacific/Apia", "2011-12-01T00:00", 1) == ["12-29T19:00"]
    assert parse_schedule("0 9 30 12 *", ZoneInfo("Pacific/Apia")).next(at("2011-12-01T00:00")) == at("2012-12-29T19:00")


def test_next_is_strictly_after_and_whole_minutes_whatever_the_seconds() -> None:
    schedule = parse_schedule("*/5 * * * *", ZoneInfo("UTC"))
    assert schedule.next(at("2025-06-01T10:05:00")) == at("2025-06-01T10:10")
    assert schedule.next(at("2025-06-01T10:04:59.999999")) == at("2025-06-01T10:05")
    assert schedule.next(at("2025-06-01T10:05:00.000001")) == at("2025-06-01T10:10")


def test_results_are_in_utc_even_for_local_times() -> None:
    schedule, morning = parse_schedule("0 8 * * *", BERLIN), datetime(2025, 6, 1, 7, 30, tzinfo=BERLIN)
    found = schedule.next(morning)
    assert found == at("2025-06-01T06:00")
    assert found.tzinfo is UTC
    assert schedule.slots(morning, morning + timedelta(hours=1)) == SlotRange(found, found, 1)


def test_a_time_in_the_second_of_two_equal_hours_is_not_read_as_one_in_the_first() -> None:
    """Berlin's clocks go back on 26 October 2025 at 03:00. 02:30 occurs at 00:30 UTC, and again (fold 1) at 01:30 UTC."""
    schedule = parse_schedule("*/10 * * * *", BERLIN)
    first, second = (datetime(2025, 10, 26, 2, 30, tzinfo=BERLIN, fold=fold) for fold in (0, 1))
    assert schedule.next(first) == at("2025-10-26T00:40")
    assert schedule.next(second) == at("2025-10-26T01:40")
    assert schedule.slots(second, at("2025-10-26T02:00")) == SlotRange(at("2025-10-26T01:40"), at("2025-10-26T02:00"), 3)
    assert schedule.slots(at("2025-10-26T00:00"), first) == SlotRange(at("2025-10-26T00:10"), at("2025-10-26T00:30"), 3)
    assert schedule.slots(at("2025-10-26T00:00"), second) == SlotRange(at("2025-10-26T00:10"), at("2025-10-26T01:30"), 9)


@loop_over(
    ("text", "after", "instants"),
    [
        ("0 0 29 2 *", "2025-01-01", ["2028-02-29", "2032-02-29"]),
        ("0 0 29 2 *", "2096-03-01", ["2104-02-29"]),
        ("0 0 29 2 */7", "2088-03-01", ["2128-02-29"]),  # a Sunday; 2100 is no leap year
        ("0 0 31 * *", "2025-02-01", ["2025-03-31", "2025-05-31", "2025-07-31"]),
        ("0 0 L * *", "2024-02-01", ["2024-02-29", "2024-03-31", "2024-04-30"]),
        ("0 0 L * 1", "2025-06-20", ["2025-06-23", "2025-06-30", "2025-07-07"]),  # either
        ("0 0 15,L * */2", "2025-06-01", ["2025-06-15", "2025-07-15", "2025-07-31"]),  # both
        ("0 0 30,L 2,4 *", "2025-02-01", ["2025-02-28", "2025-04-30", "2026-02-28"]),
        ("0 0 13 * 5", "2025-06-06", ["2025-06-13", "2025-06-20", "2025-06-27", "2025-07-04", "2025-07-11", "2025-07-13"]),
        ("0 0 */2 * 1", "2025-06-01", ["2025-06-09", "2025-06-23", "2025-07-07"]),
        ("0 0 1-31/2 * 1", "2025-06-01", ["2025-06-02", "2025-06-03", "2025-06-05"]),
        ("0 0 10 * */2", "2025-06-01", ["2025-06-10", "2025-07-10", "2025-08-10"]),
        ("0 0 11 * */2", "2025-06-01", ["2025-09-11", "2025-10-11", "2025-11-11"]),
        ("0 0 5,* * 1", "2025-06-01", ["2025-06-02", "2025-06-03"]),
        ("0 0 31 2 1", "2025-01-30", ["2025-02-03", "2025-02-10"]),
        ("0 0 * * 1#5", "2025-06-01", ["2025-06-30", "2025-09-29", "2025-12-29"]),
        ("0 0 * * 2#1,4#3", "2025-06-01", ["2025-06-03", "2025-06-19", "2025-07-01"]),
        ("0 0 * * 5L", "2025-06-01", ["2025-06-27", "2025-07-25", "2025-08-29"]),
        ("0 0 * 2 1#5", "2025-01-01", ["2044-02-29"]),
        ("@weekly", "2025-06-01", ["2025-06-08", "2025-06-15"]),
    ],
)
def test_days(text: str, after: str, instants: list[str]) -> None:
    schedule, instant, found = parse_schedule(text, ZoneInfo("UTC")), at(after), []
    for _ in instants:
        following = schedule.next(instant)
        assert following is not None
        instant = following
        found.append(f"{instant:%Y-%m-%d}")
    assert found == instants


DAY_LISTS = st.lists(st.integers(1, 31), min_size=1, max_size=6, unique=True)
WEEKDAY_LISTS = st.lists(st.integers(0, 6), min_size=1, max_size=5, unique=True)
MONTH_LISTS = st.lists(st.integers(1, 12), min_size=1, max_size=12, unique=True)
STEPS = st.integers(1, 40)


def comma(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))


@settings(deadline=None, max_examples=150)
@given(
    days=DAY_LISTS,
    weekdays=WEEKDAY_LISTS,
    months=MONTH_LISTS,
    day_step=st.none() | STEPS,
    weekday_step=st.none() | STEPS,
    last=st.booleans(),
    start=st.dates(date(2024, 1, 1), date(2032, 1, 1)),
)
def test_two_day_fields_combine_by_or_unless_one_begins_with_a_star(
    days: list[int],
    weekdays: list[int],
    months: list[int],
    day_step: int | None,
    weekday_step: int | None,
    last: bool,
    start: date,
) -> None:
    day_text = comma(days) if day_step is None else f"*/{day_step},{comma(days)}"
    weekday_text = comma(weekdays) if weekday_step is None else f"*/{weekday_step},{comma(weekdays)}"
    day_set = set(days) | (set(range(1, 32, day_step)) if day_step else set())
    weekday_set = set(weekdays) | (set(range(0, 7, weekday_step)) if weekday_step else set())
    fits = all if day_step or weekday_step else any

    def comes(day: date) -> bool:
        end_of_month = last and (day + timedelta(days=1)).day == 1
        return day.month in months and fits([day.day in day_set or end_of_month, day.isoweekday() % 7 in weekday_set])

    # 1 may be any month's day, so that no drawn date is impossible as a whole
    text = f"0 0 {day_text},1{',L' if last else ''} {comma(months)} {weekday_text}"
    day_set.add(1)
    expected = [day for day in (start + timedelta(days=ahead) for ahead in range(400)) if comes(day)]
    schedule = parse_schedule(text, ZoneInfo("UTC"))
    instant, found = datetime(start.year, start.month, start.day, tzinfo=UTC) - timedelta(minutes=1), []
    until = instant + timedelta(days=400)
    while (instant := schedule.next(instant) or until) < until:
        found.append(instant.date())
    assert found == expected


EXPRESSIONS = [
    "* * * * *",
    "*/7 * * * *",
    "0 */3 * * *",
    "13,47 2-4 * * *",
    "0 0 1,15 * *",
    "5 23 L * *",
    "0 12 * * mon-fri",
    "*/30 1,2 13 * 5",
    "20 2 * * 7L",
    "0 0 29 2 *",
]
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Antarctica/Troll", "Pacific/Apia", "Asia/Kathmandu"]


@settings(deadline=None, max_examples=150)
@given(
    text=st.sampled_from(EXPRESSIONS),
    zone=st.sampled_from(ZONES),
    after=st.datetimes(datetime(2011, 10, 1), datetime(2026, 1, 1)),  # noqa: DTZ001 -- hypothesis adds the zone itself
    length=st.integers(-3, 2000),
)
def test_slots_agree_with_repeated_calls_of_next(text: str, zone: str, after: datetime, length: int) -> None:
    schedule, after = parse_schedule(text, ZoneInfo(zone)), after.replace(tzinfo=UTC)
    until = after + timedelta(hours=length) if "*" not in text[:2] else after + timedelta(minutes=length)
    found, instant = [], schedule.next(after)
    while instant and instant <= until:
        found.append(instant)
        instant = schedule.next(instant)
    assert schedule.slots(after, until) == (SlotRange(found[0], found[-1], len(found)) if found else None)


def test_ten_years_of_every_minute_are_counted_and_not_walked() -> None:
    schedule, began = parse_schedule("* * * * *", BERLIN), process_time()
    slots = schedule.slots(at("2015-01-01T00:00"), at("2025-01-01T00:00"))
    assert slots == SlotRange(at("2015-01-01T00:01"), at("2025-01-01T00:00"), 3653 * 1440)
    assert process_time() - began < 2


def test_a_fixed_time_job_has_as_many_slots_a_year_as_the_year_has_days() -> None:
    slots = parse_schedule("30 2 * * *", BERLIN).slots(at("2024-12-31T23:00"), at("2025-12-31T23:00"))
    assert slots is not None
    assert slots.count == 365


def test_no_slots_lie_in_an_empty_or_backward_time() -> None:
    schedule = parse_schedule("0 * * * *", BERLIN)
    assert schedule.slots(at("2025-06-01T10:00"), at("2025-06-01T10:59:59")) is None
    assert schedule.slots(at("2025-06-01T10:00"), at("2025-06-01T10:00")) is None
    assert schedule.slots(at("2025-06-01T10:00"), at("2025-06-01T08:00")) is None


@loop_over(
    ("text", "period"),
    [
        ("* * * * *", timedelta(minutes=1)),
        ("*/15 * * * *", timedelta(minutes=15)),
        ("0,50 * * * *", timedelta(minutes=10)),
        ("7 * * * *", timedelta(hours=1)),
        ("0 9,17 * * *", timedelta(hours=8)),
        ("30 0,23 * * *", timedelta(hours=1)),
        ("0,30 8-17 * * mon-fri", timedelta(minutes=30)),
        ("0 0,23 * * mon", timedelta(hours=23)),
        ("0 0,23 * * sat,sun", timedelta(hours=1)),
        ("0 3 * * *", timedelta(days=1)),
        ("0 3 * * mon,thu", timedelta(days=3)),
        ("0 3 * * sun", timedelta(days=7)),
        ("0 3 1,15 * *", timedelta(days=14)),
        ("0 3 1 * *", timedelta(days=28)),
        ("0 3 30,1 * *", timedelta(days=1)),
        ("0 3 13 * 5", timedelta(days=1)),
        ("0 3 L * *", timedelta(days=28)),
        ("0 0 29 2 *", timedelta(days=1461)),
        ("@yearly", timedelta(days=365)),
    ],
)
def test_the_period_is_the_shortest_distance_between_two_runs(text: str, period: timedelta) -> None:
    assert parse_schedule(text, BERLIN).shortest_period() == period


@loop_over(
    ("one", "other", "same"),
    [
        ("0 3 * * *", " 00 3-3 * JAN-DEC *", True),
        ("@daily", "0 0 * * *", True),
        ("0 0 * * 7", "0 0 * * sun", True),
        ("0 0 */2 * 1", "0 0 */2,1,3 * mon", True),
        ("0 0 1,2 * *", "0 0 1-2 * *", True),
        ("0 0 */2 * 1", "0 0 1-31/2 * 1", False),
        ("*/5 * * * *", "0-59/5 0-23 * * *", False),
        ("0 3 * * *", "0 4 * * *", False),
        ("0 12 * * *", "12 0 * * *", False),
    ],
)
def test_the_key_is_equal_if_only_the_spelling_differs(one: str, other: str, same: bool) -> None:
    assert (parse_schedule(one, BERLIN).key() == parse_schedule(other, BERLIN).key()) is same


def test_another_zone_is_another_key() -> None:
    assert parse_schedule("0 3 * * *", BERLIN).key() != parse_schedule("0 3 * * *", ZoneInfo("Europe/Riga")).key()


def test_a_schedule_keeps_the_text_of_the_user_and_survives_a_copy() -> None:
    schedule = parse_schedule("0 3 * * Mon", BERLIN)
    copied: CronSchedule = pickle.loads(pickle.dumps(schedule))
    assert schedule.text == "0 3 * * Mon"
    assert copied == schedule
    assert copied.next(at("2025-06-01T00:00")) == at("2025-06-02T01:00")

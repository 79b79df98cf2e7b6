"""Local days as instants, also on days when the clock changes."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo, available_timezones

from loops import loop_over
from world import utc

from scheduler.model import local_days

BERLIN = ZoneInfo("Europe/Berlin")


@loop_over(
    ("zone", "day", "begins", "hours"),
    [
        ("Europe/Berlin", "2027-03-27", "2027-03-26 23:00", 24),
        ("Europe/Berlin", "2027-03-28", "2027-03-27 23:00", 23),
        ("Europe/Berlin", "2027-10-31", "2027-10-30 22:00", 25),
        ("America/Santiago", "2026-09-06", "2026-09-06 04:00", 23),  # its clock goes from 24:00 to 01:00
        ("America/Havana", "2024-11-03", "2024-11-03 04:00", 25),  # 01:00 to 00:00: midnight occurs twice
        ("Australia/Lord_Howe", "2026-04-05", "2026-04-04 13:00", 24.5),
        ("Pacific/Apia", "2011-12-30", "2011-12-30 10:00", 0),  # the zone skipped this day
        ("America/St_Johns", "2010-11-07", "2010-11-07 02:30", 25),  # 00:01 to 23:01 of the day before
        ("America/Toronto", "1919-03-31", "1919-03-31 04:30", 23.5),  # 23:30 to 00:30: midnight is in the gap
    ],
)
def test_a_day_begins_at_its_first_midnight(zone: str, day: str, begins: str, hours: float) -> None:
    found = local_days.whole_day(date.fromisoformat(day), ZoneInfo(zone))
    assert (found.begins, found.ends - found.begins) == (utc(begins), timedelta(hours=hours))


@loop_over("zone", sorted(available_timezones())[::20])
def test_days_follow_each_other_without_gap_or_overlap(zone: str) -> None:
    begin, end = datetime(2026, 1, 1, 5, tzinfo=UTC), datetime(2028, 1, 1, 7, tzinfo=UTC)
    found = list(local_days.days_between(ZoneInfo(zone), begin, end))
    assert found[0].begins == begin
    assert found[-1].ends == end
    assert all(before.ends == after.begins and before.date < after.date for before, after in pairwise(found))


def test_the_first_and_last_day_are_cut_to_the_given_time() -> None:
    noon = utc("2027-03-27 12:00")
    assert [
        (str(day.date), day.ends - day.begins) for day in local_days.days_between(BERLIN, noon, noon + timedelta(hours=48))
    ] == [
        ("2027-03-27", timedelta(hours=11)),
        ("2027-03-28", timedelta(hours=23)),
        ("2027-03-29", timedelta(hours=14)),
    ]

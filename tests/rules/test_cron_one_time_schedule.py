"""The schedule of a one-time job: the first time at which the local clock shows its time."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loops import loop_over
from world import utc

from cron import job_schedules
from cron.field import ScheduleError
from cron.job_schedules import SlotRange, parse_one_time

BERLIN = ZoneInfo("Europe/Berlin")
MINUTE = timedelta(minutes=1)


@loop_over(
    ("text", "zone", "instant"),
    [
        ("2026-12-24T18:00", "Europe/Berlin", "2026-12-24 17:00"),
        ("2026-12-24 18:00:05", "Europe/Berlin", "2026-12-24 17:00:05"),
        ("2026-12-24T18:00Z", "Europe/Berlin", "2026-12-24 18:00"),
        ("2026-12-24T18:00+05:30", "Europe/Berlin", "2026-12-24 12:30"),
        ("2027-03-28T01:59:59", "Europe/Berlin", "2027-03-28 00:59:59"),
        ("2027-03-28T02:00", "Europe/Berlin", "2027-03-28 01:00"),  # left out: at the first instant after the gap
        ("2027-03-28T02:59", "Europe/Berlin", "2027-03-28 01:00"),
        ("2027-03-28T03:00", "Europe/Berlin", "2027-03-28 01:00"),
        ("2027-10-31T02:30", "Europe/Berlin", "2027-10-31 00:30"),  # twice: the first time
        ("2027-10-31T03:00", "Europe/Berlin", "2027-10-31 02:00"),
        ("2026-09-06T00:30", "America/Santiago", "2026-09-06 04:00"),  # Sunday begins at 01:00
        ("2024-10-06T02:15", "Australia/Lord_Howe", "2024-10-05 15:30"),  # half an hour
        ("2011-12-31T00:00", "Pacific/Apia", "2011-12-30 10:00"),
    ],
)
def test_a_time_occurs_once(text: str, zone: str, instant: str) -> None:
    moment = parse_one_time(text, ZoneInfo(zone))
    assert moment.instant == utc(instant)
    assert moment.next(utc(instant) - MINUTE) == utc(instant)
    assert moment.next(utc(instant)) is None
    assert moment.slots(utc(instant) - MINUTE, utc(instant)) == SlotRange(utc(instant), utc(instant), 1)
    assert moment.slots(utc(instant), utc(instant) + MINUTE) is None
    assert moment.slots(utc(instant) - MINUTE, utc(instant) - timedelta(seconds=1)) is None


def test_a_day_that_the_zone_skipped_never_occurs() -> None:
    with pytest.raises(ScheduleError, match="does not exist in Pacific/Apia, because its clocks skipped that day"):
        parse_one_time("2011-12-30T12:00", ZoneInfo("Pacific/Apia"))


def test_a_time_after_the_last_year_is_rejected() -> None:
    with pytest.raises(ScheduleError, match="'9998-12-31T00:00' is later than this calendar goes"):
        parse_one_time("9998-12-31T00:00", ZoneInfo("UTC"))


READINGS = st.datetimes(datetime(2024, 1, 1), datetime(2031, 1, 1))  # noqa: DTZ001 -- what a clock on the wall shows
ZONES = [ZoneInfo(name) for name in ("Europe/Berlin", "America/Santiago", "Australia/Lord_Howe", "Antarctica/Troll", "UTC")]


@given(st.sampled_from(ZONES), READINGS)
def test_a_one_time_job_fires_when_a_cron_job_at_that_time_would(zone: ZoneInfo, reading: datetime) -> None:
    reading = reading.replace(second=0, microsecond=0)
    yearly = job_schedules.parse_schedule(f"{reading.minute} {reading.hour} {reading.day} {reading.month} *", zone)
    moment = parse_one_time(reading.isoformat(), zone).instant
    assert moment is not None
    assert yearly.next(moment - MINUTE) == moment

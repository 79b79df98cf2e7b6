"""What fires between two instants: walked and counted, it is the same."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from world import at

from scheduler.model import entry_schedule
from scheduler.model.entry_schedule import ScheduledEntry, due_times, due_times_by_day
from scheduler.model.outcome import Kind

BERLIN = "Europe/Berlin"
WINDOW = [[480, 1320, [0, 1, 2, 3, 4, 5, 6], BERLIN]]
PACES = {
    "half-hourly": {"interval": 1800, "stagger": 0, "hours": []},
    "by day": {"interval": 1800, "stagger": 60, "hours": WINDOW},
    "every": {"every": 420, "offset": 0},
    "cron": {"schedule": "*/5 * * * *", "zone": BERLIN, "offset": 0},
    "nightly": {"schedule": "30 2 * * *", "zone": BERLIN, "offset": 90},
    "timed": {"schedule": "*/30 * * * *", "zone": BERLIN, "offset": 0, "hours": WINDOW},
}


def course(name: str, after: datetime, zone: str = BERLIN) -> ScheduledEntry:
    schedule = entry_schedule.parse_schedule(json.dumps(PACES[name]), at("2027-03-01 00:00"))
    return ScheduledEntry(Kind.CRON, name, schedule, ZoneInfo(zone), after)


@pytest.mark.parametrize("zone", [BERLIN, "Asia/Kathmandu", "Australia/Lord_Howe", "America/Santiago"])
@pytest.mark.parametrize("name", PACES)
@pytest.mark.parametrize("start", ["2027-03-27 12:00", "2027-10-30 12:17", "2027-04-03 03:00", "2027-09-04 20:00"])
def test_what_is_counted_by_day_is_what_fires(name: str, start: str, zone: str) -> None:
    begin = at(start)
    end = begin + timedelta(hours=61)
    way = course(name, begin + timedelta(minutes=10), zone)
    walked = Counter(fires.astimezone(way.zone).date() for fires in due_times(way, begin, end - timedelta(microseconds=1)))
    counted = {beats.day: beats.count for beats in due_times_by_day(way, begin, end)}
    assert counted == walked
    assert sum(walked.values()) > 1


def test_a_night_without_half_past_two_has_its_job_at_three() -> None:
    way = course("nightly", at("2027-03-27 12:00"))
    found = [f"{fires:%m-%d %H:%M:%S}" for fires in due_times(way, at("2027-03-27 12:00"), at("2027-03-29 12:00"))]
    assert found == ["03-28 01:01:30", "03-29 00:31:30"]


def test_nothing_fires_before_what_is_settled() -> None:
    way = course("every", at("2027-03-27 13:00"))
    assert min(due_times(way, at("2027-03-27 12:00"), at("2027-03-27 14:00"))) > at("2027-03-27 13:00")

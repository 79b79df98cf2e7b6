"""Due times between two instants are the same when listed and when counted per day."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from loops import loop_over
from world import utc

from scheduler.model import entry_schedule
from scheduler.model.entry_schedule import ScheduledEntry, due_times, due_times_by_day
from scheduler.model.outcome import Kind

BERLIN = "Europe/Berlin"
WINDOW = [[480, 1320, [0, 1, 2, 3, 4, 5, 6], BERLIN]]
SCHEDULES = {
    "half-hourly": {"interval": 1800, "stagger": 0, "hours": []},
    "by day": {"interval": 1800, "stagger": 60, "hours": WINDOW},
    "every": {"every": 420, "offset": 0},
    "cron": {"schedule": "*/5 * * * *", "zone": BERLIN, "offset": 0},
    "nightly": {"schedule": "30 2 * * *", "zone": BERLIN, "offset": 90},
    "timed": {"schedule": "*/30 * * * *", "zone": BERLIN, "offset": 0, "hours": WINDOW},
}


def scheduled_entry(name: str, after: datetime, zone: str = BERLIN) -> ScheduledEntry:
    schedule = entry_schedule.parse_schedule(json.dumps(SCHEDULES[name]), utc("2027-03-01 00:00"))
    return ScheduledEntry(Kind.CRON, name, schedule, ZoneInfo(zone), after)


@loop_over("zone", [BERLIN, "Asia/Kathmandu", "Australia/Lord_Howe", "America/Santiago"])
@loop_over("name", SCHEDULES)
@loop_over("start", ["2027-03-27 12:00", "2027-10-30 12:17", "2027-04-03 03:00", "2027-09-04 20:00"])
def test_the_count_per_day_equals_the_listed_due_times(name: str, start: str, zone: str) -> None:
    begin = utc(start)
    end = begin + timedelta(hours=61)
    entry = scheduled_entry(name, begin + timedelta(minutes=10), zone)
    listed = Counter(due_at.astimezone(entry.zone).date() for due_at in due_times(entry, begin, end - timedelta(microseconds=1)))
    counted = {runs.day: runs.count for runs in due_times_by_day(entry, begin, end)}
    assert counted == listed
    assert sum(listed.values()) > 1


def test_a_job_at_half_past_two_runs_at_three_when_the_clock_skips_it() -> None:
    entry = scheduled_entry("nightly", utc("2027-03-27 12:00"))
    found = [f"{due_at:%m-%d %H:%M:%S}" for due_at in due_times(entry, utc("2027-03-27 12:00"), utc("2027-03-29 12:00"))]
    assert found == ["03-28 01:01:30", "03-29 00:31:30"]


def test_no_due_time_lies_before_the_settled_slots() -> None:
    entry = scheduled_entry("every", utc("2027-03-27 13:00"))
    assert min(due_times(entry, utc("2027-03-27 12:00"), utc("2027-03-27 14:00"))) > utc("2027-03-27 13:00")

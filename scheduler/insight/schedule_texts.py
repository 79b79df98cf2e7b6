"""Describes schedules, active hours and calendars for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from heartbeat.hours import DAYS, EVERY_DAY, Calendar, Window
from heartbeat.words import format_duration
from scheduler.model import entry_schedule, local_days
from scheduler.model.local_days import is_repeated, offset_text

NO_SCHEDULE_TEXT = "without a schedule"


@dataclass(frozen=True, slots=True)
class TimeFormat:
    """Formats times in `zone`, short on the day from `begin` to `end`. Other zones than `around` show their offset."""

    zone: ZoneInfo
    begin: datetime
    end: datetime
    around: ZoneInfo

    @classmethod
    def of_today(cls, zone: ZoneInfo, now: datetime) -> TimeFormat:
        """For readers in `zone`, short for times of the local day."""
        today = local_days.whole_day(now.astimezone(zone).date(), zone)
        return cls(zone, today.begins, today.ends, zone)

    def at(self, instant: datetime) -> str:
        """A time: 08:05, with the day if it is another one.

        The offset follows if readers would expect another zone, and in the hour that a clock change repeats.
        """
        return self._at(instant, "%H:%M")

    def exactly(self, instant: datetime) -> str:
        """As `at`, with the seconds: 08:05:17."""
        return self._at(instant, "%H:%M:%S" if instant.second else "%H:%M")

    def _at(self, instant: datetime, form: str) -> str:
        local = instant.astimezone(self.zone)
        day = "" if self.begin <= instant < self.end else f"{local:%a %Y-%m-%d} "
        differs = local.utcoffset() != instant.astimezone(self.around).utcoffset()
        return f"{day}{local:{form}}" + (f" (UTC{offset_text(local)})" if differs or is_repeated(local) else "")


def schedule_text(text: str) -> str:
    """A schedule text of a row in words, without hours and calendars: every 30m, or by '0 9 * * 1-5'."""
    return parts_text(entry_schedule.schedule_parts(text))


def parts_text(parts: Mapping[str, Any]) -> str:
    """The same for the parts of a schedule text."""
    if "schedule" in parts:
        return f"by {parts['schedule']!r}"
    if "at" in parts:
        return f"once, at {parts['at']}"
    if "after" in parts:
        return f"after cron/{parts['after']} ({parts['on']})"
    period = parts.get("interval") or parts.get("every")
    return f"every {format_duration(timedelta(seconds=period))}" if period else NO_SCHEDULE_TEXT


def hours_text(text: str) -> str:
    """The active hours of a schedule text: 08:00-22:00 (Europe/Berlin)."""
    windows = entry_schedule.active_hours(text).windows
    shown = ", ".join(dict.fromkeys(map(_window_text, windows))) or "always"
    named = ", ".join(dict.fromkeys(window.zone.key for window in windows))
    return f"{shown} ({named})" if named else shown


def _window_text(window: Window) -> str:
    begin, end = (f"{minute // 60:02}:{minute % 60:02}" for minute in (window.start, window.end))
    days = "" if window.days == EVERY_DAY else f" {_days_text(sorted(window.days))}"
    return f"{begin}-{end}{days}"


def _days_text(days: list[int]) -> str:
    if len(days) > 2 and days == list(range(days[0], days[-1] + 1)):
        return f"{DAYS[days[0]]}-{DAYS[days[-1]]}"
    return ",".join(DAYS[day] for day in days)


def excluding_calendar(text: str, instant: datetime, calendars: Mapping[str, Calendar]) -> str:
    """Which calendar of a schedule text excludes the day: skip_on: holidays, or only_on: workdays. Empty if it is not known."""
    days = entry_schedule.allowed_days(text)
    if days is None:
        return ""
    day = instant.astimezone(days.zone).date()
    if days.skip.contains(day):
        names = [name for name, each in calendars.items() if each.contains(day) and each | days.skip == days.skip]
        return f"skip_on: {', '.join(names)}" if names else ""
    if days.only is None:
        return ""
    names = [name for name, each in calendars.items() if each | days.only == days.only]
    return f"only_on: {', '.join(names)}" if names else ""

"""Reads the names of days that people write: today, yesterday, a weekday, or 2026-11-20."""

from __future__ import annotations

from datetime import date, datetime, timedelta

DAYS_AGO = {"today": 0, "yesterday": 1}
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


def parse_named_day(text: str, now: datetime) -> date | None:
    """The day that `today` or `yesterday` names, in the zone of `now`; None for any other text."""
    return now.date() - timedelta(days=DAYS_AGO[text]) if text in DAYS_AGO else None


def parse_day(text: str, now: datetime) -> date:
    """The day named by 2026-11-20, today, yesterday, or a weekday such as mon or monday: the last such day, today included.

    It is in the zone of `now`. Raises ValueError with a message of one line.
    """
    word = text.strip().lower()
    weekday = next((number for number, name in enumerate(WEEKDAYS) if word in (name, name[:3])), None)
    if weekday is not None:
        return now.date() - timedelta(days=(now.weekday() - weekday) % 7)
    try:
        return parse_named_day(word, now) or date.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a day; write 2026-11-20, today, yesterday or monday") from None

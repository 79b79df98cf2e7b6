"""Converts values in other notations to the notation of the config: 30 minutes, 9am, Monday, 25.12.2026, $0.50.

Each function returns the value in the notation of the config, or None if the text is ambiguous or has no such value.
"""

from __future__ import annotations

import re
from datetime import date, timedelta
from fractions import Fraction

from heartbeat.hours import DAYS
from heartbeat.words import format_duration

_UNITS: dict[str, Fraction] = {
    **dict.fromkeys(("ms", "msec", "millis", "millisecond", "milliseconds"), Fraction(1, 1000)),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), Fraction(1)),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), Fraction(60)),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), Fraction(3600)),
    **dict.fromkeys(("d", "day", "days"), Fraction(86400)),
    **dict.fromkeys(("w", "wk", "wks", "week", "weeks"), Fraction(7 * 86400)),
}
_AMOUNT = r"(?P<number>\d{1,9}(?:[.,]\d{1,4})?)\s*(?P<unit>[a-z]+)"
_AMOUNTS = re.compile(rf"{_AMOUNT.replace('?P<number>', '').replace('?P<unit>', '')}(?:(?:\s|,|and\b)*"
                      rf"{_AMOUNT.replace('?P<number>', '').replace('?P<unit>', '')})*", re.ASCII)  # fmt: skip
_ONE_AMOUNT = re.compile(_AMOUNT, re.ASCII)
_ISO = re.compile(r"p(?:(\d{1,9})w)?(?:(\d{1,9})d)?(?:t(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?)?", re.ASCII)
_CLOCKED = re.compile(r"(\d{1,3}):([0-5]\d):([0-5]\d)", re.ASCII)
_OFTEN = {
    "minutely": "1m",
    "hourly": "1h",
    "daily": "1d",
    "weekly": "7d",
    "hour": "1h",
    "day": "1d",
    "minute": "1m",
    "week": "7d",
}

_TIME = re.compile(r"(\d{1,2})(?:[:.h](\d{2}))?(?::00)?\s*(am|pm|a\.m\.|p\.m\.|h|o'clock)?", re.ASCII)
_BARE = re.compile(r"(\d{1,2})(\d{2})", re.ASCII)
_TIMES = {"noon": 720, "midday": 720, "midnight": 0}
_DASH = re.compile(r"\s*(?:-|\u2013|\u2014|\.\.|\bto\b|\buntil\b|\btill\b)\s*")
_BEHIND = re.compile(r"(?P<time>\S+?(?:\s*[ap]m)?)\s*(?P<zone>z|utc|gmt|[+-]\d\d(?::?\d\d)?|[a-z]+/\S+)", re.IGNORECASE)

_LONG_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_SETS = {
    **dict.fromkeys(("weekend", "weekends"), "sat-sun"),
    **dict.fromkeys(("weekday", "weekdays", "workday", "workdays", "working days", "business days"), "mon-fri"),
    **dict.fromkeys(("daily", "every day", "everyday", "all", "always", "any", "*"), "mon-sun"),
}
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")

_AMOUNT_OF_TOKENS = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*(k|m|thousand|million)?\s*(?:tokens?)?", re.ASCII)
_MONEY = re.compile(r"(?:usd|us\$|\$)?\s*(\d{1,9}(?:[.,]\d{1,6})?)\s*(?:usd|us\$|\$|dollars?)?", re.ASCII)
_RATE = re.compile(r"(\d{1,9})\s*(?:x|times)?\s*(?:/|per|in|every|each|@)\s*(.+)", re.ASCII)


def normalize_duration(text: str) -> str | None:
    """`1.5 hours` as 1h30m; None also for what is not a whole number of seconds."""
    text = text.strip().lower().removeprefix("every ").strip()
    alone = _ONE_AMOUNT.fullmatch(text)
    if alone and alone["number"].isdigit() and alone["unit"] in _UNITS and alone["unit"][:2] not in ("w", "we", "wk", "ms"):
        return f"{int(alone['number'])}{alone['unit'][0]}"
    seconds = _parse_seconds(text)
    return format_seconds(seconds) if seconds is not None else None


def format_seconds(seconds: Fraction) -> str | None:
    """A number of seconds as a duration of the config; None for fractions."""
    return format_duration(timedelta(seconds=int(seconds))) if seconds.denominator == 1 and seconds <= 10**9 else None


def has_fraction_of_second(text: str) -> bool:
    """Whether this is a length of time that is not a whole number of seconds."""
    seconds = _parse_seconds(text.strip().lower())
    return seconds is not None and seconds.denominator != 1


def _parse_seconds(text: str) -> Fraction | None:
    if text in _OFTEN:
        text = _OFTEN[text]
    if found := _ISO.fullmatch(text):
        weeks, days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
        return Fraction(((weeks * 7 + days) * 24 + hours) * 3600 + minutes * 60 + seconds) if any(found.groups()) else None
    if found := _CLOCKED.fullmatch(text):
        hours, minutes, seconds = map(int, found.groups())
        return Fraction(hours * 3600 + minutes * 60 + seconds)
    if not _AMOUNTS.fullmatch(text):
        return None
    total = Fraction(0)
    for amount in _ONE_AMOUNT.finditer(text):
        if amount["unit"] not in _UNITS:
            return None
        total += Fraction(amount["number"].replace(",", ".")) * _UNITS[amount["unit"]]
    return total


def parse_minute_of_day(value: object) -> int | None:
    """A time of the day in minutes: 8, 800, 9:00, 9pm, 21h30. None for a number that is neither an hour nor HHMM."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        return parse_minute_of_day(int(value)) if value.is_integer() else None
    if isinstance(value, int):
        hours, minutes = (value, 0) if 0 <= value <= 24 else divmod(value, 100) if value >= 100 else (99, 0)
        return _minute_of_day(hours, minutes)
    if not isinstance(value, str):
        return None
    text = value.strip().lower()
    if text in _TIMES:
        return _TIMES[text]
    if bare := _BARE.fullmatch(text):
        return _minute_of_day(int(bare[1]), int(bare[2]))
    found = _TIME.fullmatch(text)
    if not found:
        return None
    hour, half = int(found[1]), (found[3] or "").replace(".", "")
    if half in ("am", "pm"):
        hour = hour % 12 + (12 if half == "pm" else 0) if 1 <= hour <= 12 else 99
    return _minute_of_day(hour, int(found[2] or 0))


def _minute_of_day(hours: int, minutes: int) -> int | None:
    total = hours * 60 + minutes
    return total if minutes < 60 and total <= 1440 else None


def format_clock_time(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"


def normalize_opening(value: object) -> str | None:
    """When a window opens; never 24:00, which is the next day's 00:00."""
    found = parse_minute_of_day(value)
    return None if found is None else format_clock_time(found % 1440)


def normalize_closing(value: object) -> str | None:
    """When a window closes; midnight is the end of its day."""
    found = parse_minute_of_day(value)
    return None if found is None else format_clock_time(found or 1440)


def split_time_and_zone(text: str) -> tuple[str, str] | None:
    """A time and the time zone after it: 08:00Z, 08:00+02:00, 9:00 Europe/Berlin."""
    found = _BEHIND.fullmatch(text.strip())
    return (found["time"], found["zone"]) if found and parse_minute_of_day(found["time"]) is not None else None


def normalize_window(text: str) -> str | None:
    """`8-22`, `9am to 5pm` or `08:00 – 22:00` as 08:00-22:00."""
    if text.strip().lower() in ("24/7", "24x7", "all day", "anytime", "always", "all", "any"):
        return "always"
    parts = _DASH.split(text.strip().lower())
    if len(parts) != 2:
        return None
    start, end = normalize_opening(parts[0]), normalize_closing(parts[1])
    return f"{start}-{end}" if start and end and parse_minute_of_day(start) != parse_minute_of_day(end) else None


def normalize_days(value: object) -> str | None:
    """`Monday`, `weekdays`, `Mon - Fri`, `1-5` as this file writes days."""
    if type(value) is int:
        return DAYS[(value - 1) % 7] if 0 <= value <= 7 else None
    if not isinstance(value, str):
        return None
    text = " ".join(value.lower().split())
    if text in _SETS:
        return _SETS[text]
    ends = [_normalize_day(part) for part in _DASH.split(text)]
    return "-".join(filter(None, ends)) if all(ends) and len(ends) <= 2 else None


def normalize_day_list(text: str) -> list[str] | None:
    """`mon, wed` as a list."""
    parts = [part for part in re.split(r"[,;/\s]+(?:and\s+)?|\s+and\s+", text.strip()) if part]
    found = [normalize_days(part) for part in parts]
    return [day for day in found if day] if len(parts) > 1 and all(found) else None


def _normalize_day(text: str) -> str | None:
    if text.isdigit() and len(text) == 1 and int(text) <= 7:
        return DAYS[(int(text) - 1) % 7]
    text = text.rstrip("s.") if len(text) > 3 else text
    if text in DAYS or text in _LONG_DAYS:
        return text[:3]
    return text[:3] if text in ("tues", "wedn", "thur", "thurs") or f"{text}s" in ("tues", "thurs") else None


def normalize_dates(value: object) -> str | None:
    """`25.12.2026`, `2026/12/25`, `Dec 25 2026`, 20261225 as 2026-12-25, and two of them as a range."""
    text = str(value).strip().lower() if isinstance(value, str | int) and not isinstance(value, bool) else ""
    if one := _normalize_date(text):
        return one
    for sign in (r"\.\.+", r"\s+(?:-|\u2013|to|until)\s+", r"\s*\u2013\s*", r"\bto\b", r"/(?=\d{4}-)"):
        parts = re.split(sign, text)
        if len(parts) == 2 and (first := _normalize_date(parts[0])) and (last := _normalize_date(parts[1])):
            return f"{min(first, last)}..{max(first, last)}" if first != last else first
    return None


def _normalize_date(text: str) -> str | None:
    text = re.sub(r"[t ]\d\d:\d\d.*", "", text.strip())
    if found := re.fullmatch(r"(\d{4})[-/. ]?(\d{1,2})[-/. ]?(\d{1,2})", text, re.ASCII):
        if len(text) < 8 and text.isdigit():
            return None
        return _iso_date_or_none(int(found[1]), int(found[2]), int(found[3]))
    if found := re.fullmatch(r"(\d{1,2})([./-])(\d{1,2})\2(\d{4})", text, re.ASCII):
        first, second, year = int(found[1]), int(found[3]), int(found[4])
        if found[2] == "." or first > 12 or first == second:
            return _iso_date_or_none(year, second, first)
        return _iso_date_or_none(year, first, second) if second > 12 else None  # otherwise day and month are ambiguous
    if found := re.fullmatch(
        r"(?:(\d{1,2})(?:st|nd|rd|th)?\.? )?([a-z]{3})[a-z]*\.?(?: (\d{1,2})(?:st|nd|rd|th)?)?,? (\d{4})", text, re.ASCII
    ):
        day = found[1] or found[3]
        if found[2] in _MONTHS and day and not (found[1] and found[3]):
            return _iso_date_or_none(int(found[4]), _MONTHS.index(found[2]) + 1, int(day))
    return None


def _iso_date_or_none(year: int, month: int, day: int) -> str | None:
    try:
        return date(year, month, day).isoformat()
    except ValueError:
        return None


def normalize_number(value: object) -> int | float | None:
    """A number in quotes, or with spaces, commas or a sign."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return int(value) if float(value).is_integer() else value
    if not isinstance(value, str) or not re.fullmatch(
        r"[+-]?\d{1,15}(?:[ _,]\d{3})*(?:\.\d{1,9})?", text := value.strip(), re.ASCII
    ):
        return None
    found = float(re.sub(r"[ _,]", "", text))
    return int(found) if found.is_integer() else found


def normalize_tokens(value: object) -> int | str | None:
    """`200K`, `1.5k`, `2,000 tokens` as an amount of tokens."""
    plain = normalize_number(value)
    if isinstance(plain, int):
        return plain
    text = value.strip().lower().replace(",", "").replace("_", "") if isinstance(value, str) else str(value)
    found = _AMOUNT_OF_TOKENS.fullmatch(text)
    if not found:
        return None
    factor = {"k": 1000, "thousand": 1000, "m": 1_000_000, "million": 1_000_000}.get(found[2] or "", 1)
    amount = Fraction(found[1]) * factor
    if amount.denominator != 1:
        return None
    whole = int(amount)
    if factor == 1_000_000 and whole % factor == 0:
        return f"{whole // factor}m"
    return f"{whole // 1000}k" if factor > 1 and whole % 1000 == 0 else whole


def normalize_usd(value: object) -> int | float | None:
    """`$0.50`, `0,50`, `"0.5"`, `0.50 USD` as an amount."""
    found = _MONEY.fullmatch(value.strip().lower()) if isinstance(value, str) else None
    return normalize_number(found[1].replace(",", ".")) if found else None


def normalize_rate(value: object) -> str | None:
    """`5/10min`, `5 in 10m`, `5 per hour` as 5 per 10m."""
    found = _RATE.fullmatch(value.strip().lower()) if isinstance(value, str) else None
    within = normalize_duration(found[2]) if found else None
    return f"{int(found[1])} per {within}" if found and within and within != "0s" and int(found[1]) else None


def normalize_bool(value: object) -> bool | None:
    """yes, on, 1 and no, off, 0."""
    word = str(value).strip().lower()
    if word in ("true", "yes", "y", "on", "1", "enabled", "enable", "1.0"):
        return True
    return False if word in ("false", "no", "n", "off", "0", "disabled", "disable", "none", "never", "0.0") else None

"""Finds out from the error of a program that the usage limit of its subscription is reached, and until when.

The texts are those that Claude Code, Codex and Gemini CLI print, as people quote them in the issues of these projects:
`You've hit your session limit · resets 7:10pm (America/Los_Angeles)`, `Claude AI usage limit reached|1762952400`, `You've hit
your usage limit. ... try again in 5 days 22 hours 11 minutes.`, `Your quota will reset after 1h49m8s.`
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

UNKNOWN_TIME = timedelta(minutes=30)  # when a program is tried again that does not say until when
LONGEST_LIMIT = timedelta(days=32)  # a later time is not believed

_REACHED = re.compile(
    r"you['’]ve (?:hit|reached) your (?:\w+ )?limit|(?:usage|session|weekly) limit (?:has been )?reached"
    r"|out of extra usage|usage_limit_reached|exhausted your (?:daily )?(?:capacity|quota)|TerminalQuotaError",
    re.IGNORECASE,
)
_EPOCH = re.compile(r"(?:limit reached\||\"?resets_?at\"?\s*[:=]\s*)(\d{10})(?!\d)", re.IGNORECASE)
_SECONDS = re.compile(r"\"?resets_in_seconds\"?\s*[:=]\s*(\d{1,8})", re.IGNORECASE)
_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_PART = r"\d{1,4}(?:\.\d+)?\s*(?:days?|hours?|minutes?|mins?|seconds?|secs?|[dhms](?![a-z]))"
_SPAN = re.compile(rf"(?:try again in|reset after|resets? in)\s+((?:{_PART}[\s,]*(?:and\s+)?)+)", re.IGNORECASE)
_MONTHS = {
    name: number + 1
    for number, name in enumerate(["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"])
}
_CLOCK = re.compile(
    r"(?:resets?|try again)(?:\s+at|\s+on)?\s+"
    r"(?:(?P<month>[A-Z][a-z]{2})[a-z]*\s+(?P<day>\d{1,2})(?:st|nd|rd|th)?(?:,?\s+(?P<year>20\d\d))?,?\s+(?:at\s+)?)?"
    r"(?P<hour>\d{1,2})(?::(?P<minute>[0-5]\d))?\s*(?P<half>[ap]m)?(?:\s*\((?P<zone>[A-Za-z0-9_+/-]+)\))?",
    re.IGNORECASE,
)


def limited_until(error: str, now: datetime, pattern: str | None = None) -> datetime | None:
    """Until when a usage limit blocks the program that failed with this text; None if no limit is the reason.

    `now` is in the zone of times without a zone of their own. `pattern` is a further expression for the text of a limit. If the
    text has no time that can be read, it is tried again after half an hour. The answer is in UTC: between two times of one zone,
    Python counts the hours of its clocks, which are changed twice a year.
    """
    if _REACHED.search(error) is None and (pattern is None or re.search(pattern, error) is None):
        return None
    begin = now.astimezone(UTC)
    try:
        until = _find_time(error, begin, now.tzinfo)
    except OverflowError:  # more days than the calendar has
        until = None
    is_believed = until is not None and begin < until <= begin + LONGEST_LIMIT
    return until if until is not None and is_believed else begin + UNKNOWN_TIME


def _find_time(error: str, now: datetime, zone: tzinfo | None) -> datetime | None:
    if found := _EPOCH.search(error):
        return datetime.fromtimestamp(int(found[1]), UTC)
    if found := _SECONDS.search(error):
        return now + timedelta(seconds=int(found[1]))
    if found := _SPAN.search(error):
        parts = re.findall(r"(\d+(?:\.\d+)?)\s*([dhms])", found[1].lower())
        return now + timedelta(seconds=sum(float(number) * _UNITS[unit] for number, unit in parts))
    found = _CLOCK.search(error)
    at = _clock_time(found, now.astimezone(zone)) if found else None
    return at and at.astimezone(UTC)


def _clock_time(found: re.Match[str], now: datetime) -> datetime | None:
    """The next time with this reading, on its day if it names one; None if there is no such time."""
    try:
        local = now.astimezone(ZoneInfo(found["zone"])) if found["zone"] else now
        hour, minute = int(found["hour"]), int(found["minute"] or 0)
        if found["half"]:
            hour = hour % 12 + (12 if found["half"].lower() == "pm" else 0)
        named = {"month": _MONTHS[found["month"].lower()], "day": int(found["day"])} if found["month"] else {}
        named |= {"year": int(found["year"])} if found["year"] else {}
        at = local.replace(hour=hour, minute=minute, second=0, microsecond=0).replace(**named)  # type: ignore[arg-type]
        if at > local or found["year"]:
            return at
        return at.replace(year=at.year + 1) if named else (at.replace(tzinfo=None) + timedelta(days=1)).replace(tzinfo=at.tzinfo)
    except (KeyError, ValueError, OSError):  # no such zone (OSError: a folder of zones, or a long name), month or day
        return None

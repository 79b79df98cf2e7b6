"""Converts single values of other systems to values of our config. NotUsable gives the reason why a value has no counterpart."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

from cron.job_schedules import ScheduleError, parse_schedule
from heartbeat.words import format_duration
from scheduler.channels.url_template import is_web_address
from scheduler.config.keys import time_zones
from scheduler.extras.importers.source_files import Node

Converter = Callable[[Node], object]

MAX_SECONDS = 10 * 365 * 86400
UNITS = {"ms": 0.001, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "hr": 3600, "d": 86400, "w": 604800}

_AMOUNT = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*([a-z]*)", re.IGNORECASE)
_CLOCK = re.compile(r"([01]?\d|2[0-4])(?::([0-5]\d))?(?::[0-5]\d)?", re.ASCII)
_FIELDS = re.compile(r"@[a-z]+|\S+(?:\s+\S+){4,5}", re.IGNORECASE)


class NotUsable(ValueError):
    """A value has no counterpart in our config; the message is the reason."""


def text(node: Node) -> str:
    """A text that is not blank."""
    if node.is_container or not node.text:
        raise NotUsable("is empty, or is no text")
    return node.value.strip() if isinstance(node.value, str) else node.text


def boolean(node: Node) -> bool:
    if isinstance(node.value, bool):
        return node.value
    if node.text.lower() in ("true", "false"):
        return node.text.lower() == "true"
    raise NotUsable("is neither true nor false")


def whole(least: int, most: int) -> Converter:
    """A converter for whole numbers in this range."""

    def convert(node: Node) -> int:
        number = to_number(node)
        if number != int(number) or not least <= number <= most:
            raise NotUsable(f"heartbeatd allows whole numbers from {least} to {most}")
        return int(number)

    return convert


def duration(unit: str, *, least: int = 0, zero: str = "0m") -> Converter:
    """A converter for durations. Numbers without a unit are in `unit`. `least` is the shortest duration in seconds, to which
    shorter ones are raised. Zero becomes the text `zero`, and cannot be used if that is empty.
    """

    def convert(node: Node) -> str:
        seconds = to_seconds(node, unit)
        if seconds == 0 and not zero:
            raise NotUsable("zero means no limit there, and heartbeatd has no such value")
        return format_duration(timedelta(seconds=max(least, seconds))) if seconds else zero

    return convert


def positive_duration(unit: str) -> Converter:
    """A converter for durations above zero, such as timeouts."""
    return duration(unit, zero="")


def to_number(node: Node) -> float:
    """The value as a finite number."""
    value = node.value
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d{1,15}(?:\.\d{1,9})?", value.strip()):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise NotUsable("is no number")
    if not math.isfinite(value) or abs(value) > 1e15:
        raise NotUsable("is no number that a setting can have")
    return value


def to_seconds(node: Node, unit: str) -> int:
    """Whole seconds, rounded, and at least one for a duration above zero."""
    if isinstance(node.value, int | float) and not isinstance(node.value, bool):
        seconds = to_number(node) * UNITS[unit]
    else:
        written = node.text.lower()
        found = _AMOUNT.findall(written)
        if not found or _AMOUNT.sub("", written).strip():
            raise NotUsable("is no duration")
        if any(word and word not in UNITS for _, word in found):
            raise NotUsable("is no duration")
        seconds = sum(float(number) * UNITS[word or unit] for number, word in found)
    if not 0 <= seconds <= MAX_SECONDS:
        raise NotUsable("is no duration that a setting can have")
    return max(1, round(seconds)) if seconds else 0


def clock_time(node: Node) -> str:
    """A time of day as HH:MM; a number is an hour."""
    found = _CLOCK.fullmatch(node.text)
    if found is None:
        raise NotUsable("is no time of day")
    return f"{int(found[1]):02}:{found[2] or '00'}"


def zone(node: Node) -> str:
    """The name of a time zone. `UTC+8` becomes `Etc/GMT-8`, the name of the same offset."""
    written = text(node)
    if found := re.fullmatch(r"(?:UTC|GMT)([+-])0?(\d{1,2})(?::?00)?", written, re.IGNORECASE):
        written = f"Etc/GMT{'-' if found[1] == '+' else '+'}{found[2]}"
    try:
        return time_zones.find_zone(written).key
    except ValueError as error:
        raise NotUsable(str(error)) from None


def cron_expression(node: Node, zone_name: str, *, seconds_last: bool = False, both_days: bool = False) -> str:
    """A cron expression with five fields, or a macro. A sixth field for seconds is accepted if it is 0.

    `seconds_last`: that is the last field of six, and not the first. `both_days`: the other system runs on days that match both
    day fields. Otherwise either is enough, and `*/2` counts as a restriction, which cron takes as a reason to match both.
    """
    fields = text(node).split()
    if len(fields) == 6 and fields.pop(-1 if seconds_last else 0) not in ("0", "00"):
        raise NotUsable("runs at given seconds, and heartbeatd's schedules begin at full minutes")
    if len(fields) == 5 and not both_days and not {fields[2], fields[4]} & {"*", "*/1"}:
        fields[2], fields[4] = fields[2].replace("*", "1-31"), fields[4].replace("*", "0-6")
    written = " ".join(fields)
    try:
        parse_schedule(written, time_zones.find_zone(zone_name))
    except (ScheduleError, ValueError) as error:
        raise NotUsable(f"is not a cron expression of heartbeatd: {error}") from None
    return written


def looks_like_cron(node: Node) -> bool:
    return bool(_FIELDS.fullmatch(node.text)) and not node.text.lower().startswith("every")


def moment(node: Node, naive_zone: str) -> str:
    """A time of a single run: a number is milliseconds since 1970. A time without an offset is in `naive_zone`."""
    try:
        if isinstance(node.value, int | float) and not isinstance(node.value, bool):
            return _format_utc(datetime.fromtimestamp(to_number(node) / 1000, UTC))
        found = datetime.fromisoformat(text(node))
        if found.tzinfo is None:
            found = found.replace(tzinfo=time_zones.find_zone(naive_zone))
        return _format_utc(found.astimezone(UTC))
    except NotUsable:
        raise
    except (ValueError, OverflowError, OSError):
        raise NotUsable("is no time") from None


def anchored_schedule(node: Node, unit: str, anchor: Node, naive_zone: str) -> str | None:
    """A cron expression in UTC with the times of an interval that is counted from an anchor. None if there is none."""
    try:
        first = datetime.fromisoformat(moment(anchor, naive_zone))
        minutes, rest = divmod(to_seconds(node, unit), 60)
    except NotUsable:
        return None
    if rest or not minutes:
        return None
    if 60 % minutes == 0:
        begin = first.minute % minutes
        return f"{begin} * * * *" if minutes == 60 else f"{_list_times(begin, minutes, 60)} * * * *"
    hours, rest = divmod(minutes, 60)
    if rest or (24 % hours and hours != 7 * 24):
        return None
    if hours == 7 * 24:
        return f"{first.minute} {first.hour} * * {first:%w}"
    return f"{first.minute} {_list_times(first.hour % hours, hours, 24)} * * *"


def _list_times(begin: int, step: int, end: int) -> str:
    return "*" if step == 1 else ",".join(str(each) for each in range(begin, end, step))


def _format_utc(found: datetime) -> str:
    if not 1971 <= found.year <= 9000:
        raise NotUsable("is no time that a schedule can have")
    return f"{found:%Y-%m-%dT%H:%M:%S}Z"


def is_reference(written: str) -> bool:
    """Whether a text is a reference to an environment variable, as in our config: ${NAME}."""
    return re.fullmatch(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}", written) is not None


def web_address(node: Node) -> str:
    """An http or https URL."""
    url = text(node)
    if not is_web_address(url) or "{" in url:
        raise NotUsable("is no http or https URL")
    return url


def holds_secret(url: str) -> bool:
    """Whether a URL may contain a secret: a login or a query."""
    parts = urlsplit(url)
    return "@" in parts.netloc or bool(parts.query)

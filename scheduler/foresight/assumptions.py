"""Reads the times that a simulation assumes: its beginning, and faults with their times."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, cast
from zoneinfo import ZoneInfo

from heartbeat.words import format_duration
from scheduler.config.file.message_parts import join_with_or, quote_value
from scheduler.config.keys.value_types import parse_positive_duration
from scheduler.model.expected_error import InputError
from scheduler.model.local_days import WEEKDAYS

FaultKind = Literal["provider", "channel", "daemon"]

EXAMPLE_OF_FAULT = "provider-down:2h@tue 03:00"
FAULT = re.compile(r"(provider|channel|daemon)-down(?:=([^:]+))?:([^@]+)@(?:([a-z]+) +)?(.+)", re.IGNORECASE)
FARTHEST = timedelta(days=3660)  # about ten years, the longest time of a simulated fault too


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that does not work from `begins` to `ends`: the daemon, or a provider or a channel (no name: all of them)."""

    kind: FaultKind
    name: str | None
    begins: datetime
    ends: datetime

    def holds(self, kind: FaultKind, name: str, now: datetime) -> bool:
        """Whether the provider or channel of this name is down now."""
        return self.kind == kind and self.name in (None, name) and self.begins <= now < self.ends

    def describe(self, zone: ZoneInfo) -> str:
        """A sentence about it, for people."""
        what = "the daemon" if self.kind == "daemon" else f"{self.kind} {self.name}" if self.name else f"every {self.kind}"
        begins = f"{self.begins.astimezone(zone):%a %Y-%m-%d %H:%M}"
        return f"{what} is down for {format_duration(self.ends - self.begins)} from {begins}"


def parse_fault(text: str, start: datetime, zone: ZoneInfo) -> Fault:
    """The fault in `provider-down:2h@tue 03:00`: the first such time from `start` on, in a zone.

    A name may follow, as in `channel-down=telegram:1h@2026-12-24T18:00`. Without a weekday and a date, it is the first such time
    of day. Raises ValueError, and InputError for a time too far from `start`.
    """
    found = FAULT.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{quote_value(text)} is not a fault; write {EXAMPLE_OF_FAULT}, with provider, channel or daemon")
    kind, name, span, weekday, clock = found.groups()
    if kind.lower() == "daemon" and name:
        raise ValueError(f"{quote_value(text)}: there is one daemon; write daemon-down:{span}@{clock}")
    begins = _find_time(text, weekday, clock, start, zone)
    check_begin("--faults", begins, start)
    return Fault(cast("FaultKind", kind.lower()), name, begins, begins + parse_positive_duration(span.strip()))


def _find_time(text: str, weekday: str | None, clock: str, start: datetime, zone: ZoneInfo) -> datetime:
    try:
        if weekday is None and "T" in clock.upper():
            given = datetime.fromisoformat(clock.upper())
            return (given if given.tzinfo else given.replace(tzinfo=zone)).astimezone(UTC)
        hour, minute = map(int, clock.split(":"))
        days = [number for number, day in enumerate(WEEKDAYS) if weekday and weekday.lower() in (day, day[:3])]
        if weekday and not days:
            raise ValueError(weekday)
        first = start.astimezone(zone).replace(hour=hour, minute=minute, second=0, microsecond=0)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{quote_value(text)}: the time after @ is not clear; write tue 03:00, 03:00 or 2026-12-24T18:00"
        ) from None
    while first < start or (days and first.weekday() != days[0]):
        first += timedelta(days=1)
    return first.astimezone(UTC)


def check_begin(option: str, begin: datetime, now: datetime) -> None:
    """Raise InputError if a time is so far from now that it is a mistake, and calendars may have no such days."""
    if abs(begin - now) > FARTHEST:
        raise InputError(f"{option}: write a time that is at most {FARTHEST.days}d from now")


def check_faults(faults: tuple[Fault, ...], providers: set[str], channels: set[str]) -> None:
    """Raise InputError if a fault names a provider or a channel that the config does not use."""
    for fault in faults:
        known = providers if fault.kind == "provider" else channels
        if fault.name is not None and fault.name not in known:
            there = f"write {join_with_or(sorted(known))}" if known else f"the config uses no {fault.kind}"
            raise InputError(f"--faults: no {fault.kind} {quote_value(fault.name)}; {there}")

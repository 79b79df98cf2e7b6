"""What a schedule or a moment that cannot be read must have meant: a duration, a time of the day, a date in another form."""

from __future__ import annotations

import re
from datetime import timedelta

from cron import once
from cron.expression import MACROS, parse_expression
from scheduler.config.file.message_parts import SHOWN, closest, shown
from scheduler.config.file.remedies import Remedy, Wrong, as_yaml, takes
from scheduler.config.keys import other_notations, time_zones
from scheduler.config.keys.value_parsers import some_duration

_EVERY = re.compile(r"(?:@every\s+|every\s+)?(.+)", re.IGNORECASE)
_MACROS = ("hourly", "daily", "midnight", "weekly", "monthly", "yearly", "annually")
_MOMENT = re.compile(
    r"(?P<date>.+?)(?:\s*[T,]\s*|\s+at\s+|\s+)(?P<time>\d{1,2}(?:[:.h]\d{2}(?::\d{2})?)?\s*(?:[ap]m|h)?)\s*(?P<offset>Z|[+-]\d{2}:\d{2})?",
    re.IGNORECASE,
)


def of_schedule(text: str, said: str, steady: str, least: timedelta) -> Wrong:
    """What is said of a schedule that is none: `said`, unless the text is a length of time, or a time of the day.

    `steady` is the key beside it that takes a length of time, of at least so much.
    """
    if len(text) > SHOWN:
        return Wrong(said)
    problem = f"{shown(text)} is no expression of cron"
    word = text.strip().lower().removeprefix("@")
    if word in _MACROS:
        return Wrong(problem, Remedy(f"@{word}", means=True))
    found = other_notations.duration(_EVERY.sub(r"\1", text.strip()))
    if found and takes(some_duration, found) and some_duration(found) >= least:
        words = f"a length of time has a key of its own: write {steady}: {found}"
        return Wrong(problem, Remedy(key=steady, value=found, means=True), words=words)
    minute = other_notations.minute(text) if ":" in text or not text.strip().isdigit() else None
    if minute is not None:
        return Wrong(f"{problem}, but a time of the day", Remedy(f"{minute % 60} {minute // 60 % 24} * * *", means=True))
    if word != text.strip().lower() and len(close := closest(text.strip().lower(), MACROS)) == 1:
        return Wrong(f"{shown(text)} is not a macro", Remedy(close[0], means=True))
    return _of_cron(text, said)


def _of_cron(text: str, said: str) -> Wrong:
    """What the reader of expressions says, with the expression that it suggests where it suggests one."""
    problem, _, words = said.partition("; ")
    fields = text.split()
    if "never comes in month" in said and len(fields) == 5:
        last = " ".join([*fields[:2], "L", *fields[3:]])
        if takes(parse_expression, last):
            return Wrong(problem, Remedy(last), words=f"{words}: {as_yaml(last)}")
    return Wrong(problem, words=words)


def of_moment(text: str, said: str) -> Wrong:
    """What is said of a moment that is none: `said`, unless it is a schedule, a time of the day, or a date in another form."""
    if len(text) > SHOWN:
        return Wrong(said)
    problem = f"{shown(text)} is not a date with a time"
    if takes(parse_expression, text):
        words = f"this comes again and again: write schedule: {as_yaml(text)}"
        return Wrong(problem, Remedy(key="schedule", means=True), words=words)
    minute = other_notations.minute(text) if not text.strip().isdigit() else None
    if minute is not None:
        daily = f"{minute % 60} {minute // 60 % 24} * * *"
        words = f"a time without a date comes every day: write schedule: {as_yaml(daily)}"
        return Wrong(problem, Remedy(key="schedule", value=daily, means=True), words=words)
    found = _MOMENT.fullmatch(text.strip())
    day, time = (other_notations.dates(found["date"]), other_notations.minute(found["time"])) if found else (None, None)
    if found and day and ".." not in day and time is not None and time < 1440:
        right = f"{day}T{other_notations.clock(time)}{(found['offset'] or '').upper()}"
        if right != text:
            return Wrong(problem, Remedy(right, means=True))
    moment, _, zone = text.strip().rpartition(" ")
    if takes(time_zones.zone, zone) and takes(lambda it: once.parse_one_time(it, time_zones.UTC_ZONE), moment):
        words = f"write {as_yaml(moment)}, and timezone: {zone} beside it"
        return Wrong(problem, Remedy(moment, beside=(("timezone", zone),), means=True), words=words)
    day = other_notations.dates(text) if ".." not in text and len(text) > 7 else None
    example = f"{day}T18:00"
    if (
        day
        and not said.startswith(f"{text!r} never comes")
        and takes(lambda it: once.parse_one_time(it, time_zones.UTC_ZONE), example)
    ):
        return Wrong(problem, Remedy(example), words=f"write its time too: {as_yaml(example)}")
    problem, _, _ = said.partition("; ")
    return Wrong(problem, Remedy("2030-12-24T18:00"), words=once.ADVICE)

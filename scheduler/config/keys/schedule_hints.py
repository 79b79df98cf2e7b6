"""What a schedule or a moment that cannot be read must have meant: a duration, a time of the day, a date in another form."""

from __future__ import annotations

import re
from datetime import timedelta

from cron.expression import MACROS, parse_expression
from cron.job_schedules import ADVICE, parse_one_time
from scheduler.config.file.message_parts import LONGEST_QUOTED, find_closest, quote_value
from scheduler.config.file.remedies import InvalidValue, Remedy, as_yaml, is_accepted
from scheduler.config.keys import other_notations, time_zones
from scheduler.config.keys.value_parsers import parse_positive_duration

_EVERY = re.compile(r"(?:@every\s+|every\s+)?(.+)", re.IGNORECASE)
_MACROS = ("hourly", "daily", "midnight", "weekly", "monthly", "yearly", "annually")
_MOMENT = re.compile(
    r"(?P<date>.+?)(?:\s*[T,]\s*|\s+at\s+|\s+)(?P<time>\d{1,2}(?:[:.h]\d{2}(?::\d{2})?)?\s*(?:[ap]m|h)?)\s*(?P<offset>Z|[+-]\d{2}:\d{2})?",
    re.IGNORECASE,
)


def explain_schedule_error(text: str, said: str, steady: str, least: timedelta) -> InvalidValue:
    """What is said of a schedule that is none: `said`, unless the text is a length of time, or a time of the day.

    `steady` is the key beside it that takes a length of time, of at least so much.
    """
    if len(text) > LONGEST_QUOTED:
        return InvalidValue(said)
    problem = f"{quote_value(text)} is no expression of cron"
    word = text.strip().lower().removeprefix("@")
    if word in _MACROS:
        return InvalidValue(problem, Remedy(f"@{word}", is_certain=True))
    found = other_notations.normalize_duration(_EVERY.sub(r"\1", text.strip()))
    if found and is_accepted(parse_positive_duration, found) and parse_positive_duration(found) >= least:
        words = f"a length of time has a key of its own: write {steady}: {found}"
        return InvalidValue(problem, Remedy(key=steady, value=found, is_certain=True), advice=words)
    minute = other_notations.parse_minute_of_day(text) if ":" in text or not text.strip().isdigit() else None
    if minute is not None:
        return InvalidValue(
            f"{problem}, but a time of the day", Remedy(f"{minute % 60} {minute // 60 % 24} * * *", is_certain=True)
        )
    if word != text.strip().lower() and len(close := find_closest(text.strip().lower(), MACROS)) == 1:
        return InvalidValue(f"{quote_value(text)} is not a macro", Remedy(close[0], is_certain=True))
    return _explain_cron_error(text, said)


def _explain_cron_error(text: str, said: str) -> InvalidValue:
    """What the reader of expressions says, with the expression that it suggests where it suggests one."""
    problem, _, words = said.partition("; ")
    fields = text.split()
    if "never comes in month" in said and len(fields) == 5:
        last = " ".join([*fields[:2], "L", *fields[3:]])
        if is_accepted(parse_expression, last):
            return InvalidValue(problem, Remedy(last), advice=f"{words}: {as_yaml(last)}")
    return InvalidValue(problem, advice=words)


def explain_moment_error(text: str, said: str) -> InvalidValue:
    """What is said of a moment that is none: `said`, unless it is a schedule, a time of the day, or a date in another form."""
    if len(text) > LONGEST_QUOTED:
        return InvalidValue(said)
    problem = f"{quote_value(text)} is not a date with a time"
    if is_accepted(parse_expression, text):
        words = f"this comes again and again: write schedule: {as_yaml(text)}"
        return InvalidValue(problem, Remedy(key="schedule", is_certain=True), advice=words)
    minute = other_notations.parse_minute_of_day(text) if not text.strip().isdigit() else None
    if minute is not None:
        daily = f"{minute % 60} {minute // 60 % 24} * * *"
        words = f"a time without a date comes every day: write schedule: {as_yaml(daily)}"
        return InvalidValue(problem, Remedy(key="schedule", value=daily, is_certain=True), advice=words)
    found = _MOMENT.fullmatch(text.strip())
    day, time = (
        (other_notations.normalize_dates(found["date"]), other_notations.parse_minute_of_day(found["time"]))
        if found
        else (None, None)
    )
    if found and day and ".." not in day and time is not None and time < 1440:
        right = f"{day}T{other_notations.format_clock_time(time)}{(found['offset'] or '').upper()}"
        if right != text:
            return InvalidValue(problem, Remedy(right, is_certain=True))
    moment, _, zone = text.strip().rpartition(" ")
    if is_accepted(time_zones.find_zone, zone) and is_accepted(lambda it: parse_one_time(it, time_zones.UTC_ZONE), moment):
        words = f"write {as_yaml(moment)}, and timezone: {zone} beside it"
        return InvalidValue(problem, Remedy(moment, beside=(("timezone", zone),), is_certain=True), advice=words)
    day = other_notations.normalize_dates(text) if ".." not in text and len(text) > 7 else None
    example = f"{day}T18:00"
    if (
        day
        and not said.startswith(f"{text!r} never comes")
        and is_accepted(lambda it: parse_one_time(it, time_zones.UTC_ZONE), example)
    ):
        return InvalidValue(problem, Remedy(example), advice=f"write its time too: {as_yaml(example)}")
    problem, _, _ = said.partition("; ")
    return InvalidValue(problem, Remedy("2030-12-24T18:00"), advice=ADVICE)

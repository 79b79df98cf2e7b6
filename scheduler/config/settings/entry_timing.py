"""Builds when an entry runs: schedule, minimum interval, stagger, grace and calendar days."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache, reduce
from operator import or_
from zoneinfo import ZoneInfo

from cron.expression import MACROS, parse_expression
from cron.job_schedules import ADVICE, CronSchedule, parse_one_time
from heartbeat.calendars import ALL_DAYS, EMPTY_CALENDAR, AllowedDays, Calendar, make_calendar
from heartbeat.hours import Hours
from heartbeat.interval_slots import IntervalSlots, stagger_for
from heartbeat.words import format_count, format_duration
from scheduler.config.file.message_parts import LONGEST_QUOTED, find_closest, quote_value
from scheduler.config.file.remedies import InvalidValue, Remedy, as_yaml, is_accepted
from scheduler.config.keys import models, other_notations, time_zones
from scheduler.config.keys.value_parsers import Share, fits_period, parse_duration, parse_positive_duration
from scheduler.config.settings.config_node import ConfigNode

NO_TIME = timedelta(0)
A_DAY = timedelta(days=1)
WEEKS = 4
SOME_MONDAY = datetime(2026, 1, 5, tzinfo=UTC)  # no clock changes in the four weeks from then on
SOME_WEEKS = (SOME_MONDAY - datetime.resolution, SOME_MONDAY + WEEKS * timedelta(days=7) - datetime.resolution)
GRID_STARTS = 12  # start times that are tried: an interval starts when its agent is first seen
_EVERY = re.compile(r"(?:@every\s+|every\s+)?(.+)", re.IGNORECASE)
_MACROS = ("hourly", "daily", "midnight", "weekly", "monthly", "yearly", "annually")
_MOMENT = re.compile(
    r"(?P<date>.+?)(?:\s*[T,]\s*|\s+at\s+|\s+)(?P<time>\d{1,2}(?:[:.h]\d{2}(?::\d{2})?)?\s*(?:[ap]m|h)?)\s*(?P<offset>Z|[+-]\d{2}:\d{2})?",
    re.IGNORECASE,
)


def check_min_interval(interval: timedelta, node: ConfigNode, *inside: str) -> None:
    """Add an error for an interval below limits.min_interval."""
    if interval < node.context.min_interval:
        least = format_duration(node.context.min_interval)
        words = f"write {least} or more, or lower the limit"
        problem = f"{format_duration(interval)} is below limits.min_interval, which is {least}"
        node.add_error(InvalidValue(problem, Remedy(least), advice=words), *inside)
    else:
        narrow_intervals(node, *inside)


def narrow_intervals(node: ConfigNode, *inside: str) -> None:
    """Keep the suggested intervals that are not below limits.min_interval."""
    least = node.context.min_interval
    node.narrow_suggestions(lambda value: value == "none" or parse_duration(value) >= least, format_duration(least), *inside)


def check_min_schedule_interval(schedule: CronSchedule, node: ConfigNode, *inside: str) -> None:
    """Add an error for a schedule with two times closer than limits.min_interval."""
    if schedule.shortest_period() < node.context.min_interval:
        period, least = format_duration(schedule.shortest_period()), format_duration(node.context.min_interval)
        node.add_error(
            f"its shortest interval is {period}, but limits.min_interval is {least}; space the times out, or lower the limit",
            *inside,
        )


def check_interval_fits_hours(interval: timedelta, hours: Hours, node: ConfigNode, *inside: str) -> None:
    """Warn of an interval that does not fit the active hours, with the number of runs a week that are left."""
    runs = _runs_per_week(interval, hours)
    if runs is None:
        return
    least, most = runs
    number = format_count(most, "run") if least == most else f"{least} to {format_count(most, 'run')}"
    when = "" if least == most else ", depending on when the agent is first seen"
    node.add_warning(
        f"{format_duration(interval)} does not fit the active hours, which allow {number} a week{when};"
        " change one of them, or write the times with schedule:",
        *inside,
    )


@lru_cache(maxsize=1024)  # many agents share their interval and their hours
def _runs_per_week(interval: timedelta, hours: Hours) -> tuple[int, int] | None:
    """The fewest and the most runs a week, depending on when the interval starts; None if interval and hours fit."""
    openings = [] if hours.always else list(hours.openings(*SOME_WEEKS))
    if not openings or interval > SOME_WEEKS[1] - SOME_WEEKS[0]:
        return None
    shortest = min(closes - opens for opens, closes in openings)
    if 3 * interval <= shortest:
        return None
    least, most = _slot_count_range(interval, hours)
    if interval < A_DAY:
        fits = interval <= shortest and most < 1.5 * least
    else:
        days = {opens.date() for opens, _ in openings}
        fits = least >= 0.9 * min((SOME_WEEKS[1] - SOME_WEEKS[0]) // interval, len(days))
    return None if fits else (round(least / WEEKS), round(most / WEEKS))


def _slot_count_range(interval: timedelta, hours: Hours) -> tuple[int, int]:
    """The fewest and the most slots in the sample weeks, for intervals that started at different times."""
    start = SOME_MONDAY - max(1, timedelta(days=14) // interval) * interval
    grids = (
        IntervalSlots(start + number * interval / GRID_STARTS, interval, timedelta(), hours) for number in range(GRID_STARTS)
    )
    counts = [found.count if (found := grid.slots(*SOME_WEEKS)) else 0 for grid in grids]
    return min(counts), max(counts)


def build_stagger(
    name: str, share: Share, period: timedelta | None, node: ConfigNode, *inside: str, period_noun: str = "period"
) -> timedelta:
    """The delay of an entry after each slot: by a hash of its name, and at most its `share` of the period."""
    if period:
        node.narrow_suggestions(lambda value: fits_period(value, period), "10%", *inside)
    if isinstance(share, float):
        return stagger_for(name, period * share) if period else NO_TIME
    if period and share > period:
        node.add_error(f"{format_duration(share)} is more than the {period_noun} of {format_duration(period)}", *inside)
    return stagger_for(name, share)


def build_grace(grace: timedelta | None, period: timedelta | None, longest: timedelta) -> timedelta:
    """How late a slot may start: as written, else half the period, but no longer than `longest`."""
    if grace is not None:
        return grace
    return min(period / 2, longest) if period else longest


def build_calendars(parts: Mapping[str, models.Calendar], names: Iterable[str]) -> dict[str, Calendar | None]:
    """All declared calendars by name; None for a calendar with errors."""
    found = {name: make_calendar(part.dates, part.days) for name, part in parts.items()}
    return {name: found.get(name) for name in names}


def build_days(part: models.Job | models.Heartbeat, zone: ZoneInfo, node: ConfigNode, *inside: str) -> AllowedDays:
    """The days of a time zone on which an entry may run. Undeclared calendars are reported at `node`."""
    if not (part.skip_on or part.only_on):
        return ALL_DAYS
    declared = node.context.calendars
    node.check_declared(part.skip_on, declared, "calendar", *inside, "skip_on")
    node.check_declared(part.only_on, declared, "calendar", *inside, "only_on")
    skip, only = (tuple(filter(None, map(declared.get, names))) for names in (part.skip_on, part.only_on))
    return _shared_days(zone, skip, only if part.only_on else None)


@lru_cache(maxsize=1024)
def _shared_days(zone: ZoneInfo, skip: tuple[Calendar, ...], only: tuple[Calendar, ...] | None) -> AllowedDays:
    return AllowedDays(zone, _union_of(skip), None if only is None else _union_of(only))


def _union_of(some: tuple[Calendar, ...]) -> Calendar:
    return reduce(or_, some, EMPTY_CALENDAR)


def explain_schedule_error(text: str, error: str, steady: str, least: timedelta) -> InvalidValue:
    """The error for an invalid schedule: the parser's `error`, unless the text is a duration, a time of day or a misspelt macro.

    `steady` is the key of the same map for a duration of at least `least`.
    """
    if len(text) > LONGEST_QUOTED:
        return InvalidValue(error)
    problem = f"{quote_value(text)} is not a cron expression"
    word = text.strip().lower().removeprefix("@")
    if word in _MACROS:
        return InvalidValue(problem, Remedy(f"@{word}", is_certain=True))
    found = other_notations.normalize_duration(_EVERY.sub(r"\1", text.strip()))
    if found and is_accepted(parse_positive_duration, found) and parse_positive_duration(found) >= least:
        words = f"a duration belongs under another key: write {steady}: {found}"
        return InvalidValue(problem, Remedy(key=steady, value=found, is_certain=True), advice=words)
    minute = other_notations.parse_minute_of_day(text) if ":" in text or not text.strip().isdigit() else None
    if minute is not None:
        return InvalidValue(
            f"{problem}, but a time of the day", Remedy(f"{minute % 60} {minute // 60 % 24} * * *", is_certain=True)
        )
    if word != text.strip().lower() and len(close := find_closest(text.strip().lower(), MACROS)) == 1:
        return InvalidValue(f"{quote_value(text)} is not a macro", Remedy(close[0], is_certain=True))
    return _explain_cron_error(text, error)


def _explain_cron_error(text: str, error: str) -> InvalidValue:
    """The error of the expression parser, with a corrected expression if there is one."""
    problem, _, words = error.partition("; ")
    fields = text.split()
    if "does not occur in month" in error and len(fields) == 5:
        last = " ".join([*fields[:2], "L", *fields[3:]])
        if is_accepted(parse_expression, last):
            return InvalidValue(problem, Remedy(last), advice=f"{words}: {as_yaml(last)}")
    return InvalidValue(problem, advice=words)


def explain_moment_error(text: str, error: str) -> InvalidValue:
    """The error for an invalid `at`: the parser's `error`, unless it is a schedule, a time of day or a date in another form."""
    if len(text) > LONGEST_QUOTED:
        return InvalidValue(error)
    problem = f"{quote_value(text)} is not a date with a time"
    if is_accepted(parse_expression, text):
        words = f"this repeats: write schedule: {as_yaml(text)}"
        return InvalidValue(problem, Remedy(key="schedule", is_certain=True), advice=words)
    minute = other_notations.parse_minute_of_day(text) if not text.strip().isdigit() else None
    if minute is not None:
        daily = f"{minute % 60} {minute // 60 % 24} * * *"
        words = f"a time without a date is daily: write schedule: {as_yaml(daily)}"
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
        and not error.startswith((f"{text!r} is not a valid time", f"{text!r} does not exist"))
        and is_accepted(lambda it: parse_one_time(it, time_zones.UTC_ZONE), example)
    ):
        return InvalidValue(problem, Remedy(example), advice=f"write the time too: {as_yaml(example)}")
    problem, _, _ = error.partition("; ")
    return InvalidValue(problem, Remedy("2030-12-24T18:00"), advice=ADVICE)

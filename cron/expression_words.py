"""Describes in words when a cron expression fires, for people who do not read cron expressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from cron.expression import TimesOfDay, parse_expression

WEEKDAY_NAMES = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
MONTH_NAMES = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
ORDINALS = {"1": "first", "2": "second", "3": "third", "4": "fourth", "5": "fifth"}
MAX_TIMES = 6  # times of day that are listed
MAX_DAYS = 7  # days of the month that are listed


def describe_expression(text: str) -> str | None:
    """When an expression fires, such as `at 09:00, Monday to Friday`. None if that has no short description.

    Raises ScheduleError for an invalid expression.
    """
    found = parse_expression(text)
    days = _describe_days(*found.days.split(" "))
    return None if days is None else f"{_describe_times(found.times)}, {days}"


def _describe_times(times: TimesOfDay) -> str:
    step = _even_step(times.minutes, 60)
    pace = "every minute" if step == 1 else f"every {step} minutes" if step else None
    if len(times.hours) == 24:
        if pace:
            return pace
        if len(times.minutes) <= MAX_TIMES:
            return "every hour at " + _join([f":{minute:02}" for minute in times.minutes])
    if len(times) <= MAX_TIMES:
        return "at " + _join([f"{times[number]:%H:%M}" for number in range(len(times))])
    first, last = f"{times[0]:%H:%M}", f"{times[len(times) - 1]:%H:%M}"
    if pace and _is_range(times.hours):
        return f"{pace} from {first} to {last}"
    hours = _even_step(times.hours, 24)
    if len(times.minutes) == 1 and (hours or _is_range(times.hours)):
        return f"every {f'{hours} hours' if hours and hours > 1 else 'hour'} from {first} to {last}"
    return f"{len(times)} times a day from {first} to {last}"


def _describe_days(day: str, month: str, weekday: str) -> str | None:
    """The days in words, from the fields as `CronExpression.days` has them."""
    if weekday == "*":
        day = day.removeprefix("*/31,")
    if day == "*":
        weekday = weekday.removeprefix("*/7,")
    of_month, of_week = _describe_days_of_month(day), _describe_weekdays(weekday)
    if of_month is None or of_week is None:
        return None
    words = " or ".join(part for part in (of_month, of_week) if part) or "every day"
    if month == "*":
        return words
    months = _join_ranges([int(each) for each in month.split(",")], lambda number: MONTH_NAMES[number - 1])
    return f"{words} in {months}" + (" only" if words == "every day" else "")


def _describe_days_of_month(field: str) -> str | None:
    if field == "*":
        return ""
    items = field.split(",")
    numbers = [int(item) for item in items if item.isdigit()]
    others = [item for item in items if not item.isdigit()]
    if others not in ([], ["l"]) or len(numbers) > MAX_DAYS:
        return None
    parts = [f"day {_join_ranges(numbers, str)}"] if numbers else []
    return f"on {_join([*parts, *(['the last day'] if others else [])])} of the month"


def _describe_weekdays(field: str) -> str | None:
    if field == "*":
        return ""
    items = field.split(",")
    if all(item.isdigit() for item in items):
        numbers = sorted((int(item) for item in items), key=lambda number: (number - 1) % 7)  # the week begins on Monday
        return _join_ranges([(number - 1) % 7 for number in numbers], lambda number: WEEKDAY_NAMES[(number + 1) % 7])
    described = [_describe_special_day(item) for item in items]
    known = [each for each in described if each is not None]
    return f"on {_join(known)} of the month" if len(known) == len(items) else None


def _describe_special_day(item: str) -> str | None:
    """The k-th or the last of a weekday in a month, in croniter's notation: 1#2 or l5."""
    weekday, _, number = item.partition("#")
    if number in ORDINALS and weekday.isdigit():
        return f"the {ORDINALS[number]} {WEEKDAY_NAMES[int(weekday) % 7]}"
    if item.startswith("l") and item[1:].isdigit():
        return f"the last {WEEKDAY_NAMES[int(item[1:]) % 7]}"
    return None


def _even_step(numbers: Sequence[int], cycle: int) -> int | None:
    """The distance of numbers that divide a cycle evenly from 0 on; None for any others."""
    step, rest = divmod(cycle, len(numbers))
    return step if rest == 0 and len(numbers) > 1 and list(numbers) == list(range(0, cycle, step)) else None


def _is_range(numbers: Sequence[int]) -> bool:
    return all(after == before + 1 for before, after in pairwise(numbers))


def _join_ranges(numbers: Sequence[int], name: Callable[[int], str]) -> str:
    """The names of numbers; three or more in a row become a range."""
    groups: list[list[int]] = []
    for number in numbers:
        if groups and number == groups[-1][-1] + 1:
            groups[-1].append(number)
        else:
            groups.append([number])
    parts: list[str] = []
    for group in groups:
        parts += [f"{name(group[0])} to {name(group[-1])}"] if len(group) > 2 else map(name, group)
    return _join(parts)


def _join(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)

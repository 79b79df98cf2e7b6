"""Parses one field of a cron expression, or raises an error that says how to write it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

MONTHS = {
    "jan": 1, "feb": 2, "mar": 3, "apr": 4, "may": 5, "jun": 6, "jul": 7, "aug": 8, "sep": 9, "oct": 10, "nov": 11, "dec": 12,
}  # fmt: skip
WEEKDAYS = {"sun": 0, "mon": 1, "tue": 2, "wed": 3, "thu": 4, "fri": 5, "sat": 6}

ITEM = re.compile(r"(?:(?P<star>\*)|(?P<first>[a-z]+|[0-9]+)(?:-(?P<last>[a-z]+|[0-9]+))?)(?:/(?P<step>[0-9]+))?", re.I)
NTH_WEEKDAY = re.compile(r"(?P<day>[a-z]+|[0-9]+)#(?P<nth>[0-9]+)", re.I)
LAST_WEEKDAY = re.compile(r"(?P<day>[a-z]{3}|[0-9]+)l|l(?P<same>[a-z]{3}|[0-9]+)", re.I)
HAS_LAST_DAY = re.compile(r".*\bl\b.*", re.I)

# Notations of other dialects, each with the reason why it is not supported.
DIALECTS = (
    (re.compile(r".*\?.*"), "'?' belongs to Quartz; write *"),
    (re.compile(r"l?w|[0-9]+w|w[0-9]+", re.I), "'W' (nearest weekday) belongs to Quartz; write days, such as 1-5 as day-of-week"),
    (
        re.compile(r"[hr](\(.*\))?(/.*)?|.*~.*", re.I),
        "random times are not supported; write a number and spread jobs with stagger:",
    ),
)


class ScheduleError(ValueError):
    """A schedule that cannot be parsed. The message is one line: what is wrong, and what to write instead."""


@dataclass(frozen=True, slots=True, eq=False)
class CronField:
    """One of the five columns. `cycle` is the number of different values: day-of-week 7 is the same as 0."""

    name: str
    low: int
    high: int
    cycle: int
    names: Mapping[str, int] = field(default_factory=dict)


MINUTE = CronField("minute", 0, 59, 60)
HOUR = CronField("hour", 0, 23, 24)
DAY = CronField("day-of-month", 1, 31, 31)
MONTH = CronField("month", 1, 12, 12, MONTHS)
WEEKDAY = CronField("day-of-week", 0, 7, 7, WEEKDAYS)


@dataclass(frozen=True, slots=True)
class FieldValues:
    """The values in a field: plain numbers, and `special` days in croniter's notation (`l`, `1#2`, `l5`).

    `starred` means that the text begins with `*`, which decides how the two day fields combine.
    """

    numbers: frozenset[int]
    special: frozenset[str]
    starred: bool
    warnings: tuple[str, ...]

    @property
    def sorted_numbers(self) -> tuple[int, ...]:
        return tuple(sorted(self.numbers))


@lru_cache(maxsize=1024)
def parse_field(column: CronField, text: str) -> FieldValues:
    """The values in `text`. Raises ScheduleError. Cached, because many expressions share the same fields."""
    numbers: set[int] = set()
    special: set[str] = set()
    warnings: list[str] = []
    for item in text.split(","):
        if not item:
            raise ScheduleError(f"{column.name} '{text}' has an empty list item; remove the stray comma")
        if found := _parse_special_day(column, item):
            special.add(found)
            continue
        first, last, step = _parse_range(column, item)
        if step > last - first and step > 1:
            warnings.append(f"{column.name} '{item}': the step is wider than the range, only {first} is left; write {first}")
        numbers.update(_normalize_number(column, number) for number in range(first, last + 1, step))
    return FieldValues(frozenset(numbers), frozenset(special), text.startswith("*"), tuple(warnings))


def _normalize_number(column: CronField, number: int) -> int:
    return number % column.cycle if column is WEEKDAY else number


def _parse_range(column: CronField, item: str) -> tuple[int, int, int]:
    """First, last and step of one list item. A range of weekdays over the end of the week continues past 7."""
    match = ITEM.fullmatch(item)
    if not match:
        raise _field_error(column, item)
    step = _parse_step(column, item, match["step"])
    if match["star"]:
        return column.low, column.low + column.cycle - 1, step
    first = _parse_number(column, match["first"], item)
    if match["last"] is None:
        if match["step"]:
            raise ScheduleError(f"{column.name} '{item}' has a step without a range; write {first}-{column.high}/{step}")
        return first, first, 1
    last = _parse_number(column, match["last"], item)
    if first <= last:
        return first, last, step
    if column is WEEKDAY:
        return first, last + column.cycle, step
    raise ScheduleError(f"{column.name} '{item}' ends before it starts; write {_split_range(column, first, last, step)}")


def _parse_step(column: CronField, item: str, text: str | None) -> int:
    step = int(text or 1)
    if step < 1:
        raise ScheduleError(f"{column.name} '{item}' has a step of 0; write a step of 1 or more")
    return step


def _parse_number(column: CronField, text: str, item: str) -> int:
    if not text.isdigit():
        return _parse_name(column, text.lower(), item)
    if column.low <= int(text) <= column.high:
        return int(text)
    raise ScheduleError(f"{column.name} '{text}' is out of range; write {column.low} to {column.high}")


def _parse_name(column: CronField, name: str, item: str) -> int:
    if name in column.names:
        return column.names[name]
    if name[:3] in column.names:
        raise ScheduleError(f"{column.name} '{item}': names have three letters; write {name[:3]}")
    raise _field_error(column, item)


def _parse_special_day(column: CronField, item: str) -> str | None:
    """`L`, `d#k`, `dL` and `Ld` in croniter's notation. None for everything else."""
    if column is DAY:
        return "l" if item.upper() == "L" else None
    if column is not WEEKDAY:
        return None
    if match := NTH_WEEKDAY.fullmatch(item):
        if match["nth"] not in ("1", "2", "3", "4", "5"):
            raise ScheduleError(f"day-of-week '{item}': a month has at most five of each weekday; write #1 to #5")
        return f"{_parse_number(column, match['day'], item) % 7}#{match['nth']}"
    if match := LAST_WEEKDAY.fullmatch(item):
        return f"l{_parse_number(column, match['day'] or match['same'], item) % 7}"
    return None


def _split_range(column: CronField, first: int, last: int, step: int) -> str:
    """A range that runs past the end of its field, as the two ranges with the same meaning."""
    again = first + ((column.high - first) // step + 1) * step - column.cycle
    parts = [_format_range(first, column.high, step)]
    return ",".join(parts if again > last else [*parts, _format_range(again, last, step)])


def _format_range(first: int, last: int, step: int) -> str:
    if last - first < step:
        return str(first)
    return f"{first}-{last}" + (f"/{step}" if step > 1 else "")


def _field_error(column: CronField, item: str) -> ScheduleError:
    for dialect, reason in DIALECTS:
        if dialect.fullmatch(item):
            return ScheduleError(f"{column.name} '{item}': {reason}")
    if column is WEEKDAY and item.upper() == "L":
        return ScheduleError(f"day-of-week '{item}' does not say which day; write 5L for the last Friday of the month")
    if column is DAY and HAS_LAST_DAY.fullmatch(item):
        return ScheduleError(f"day-of-month '{item}': L (the last day) can only be used alone or in a list; write L")
    names = f" or {' '.join(column.names)}" if column.names else ""
    return ScheduleError(
        f"{column.name} '{item}' is not a value; write *, */n, a, a-b or a-b/n with {column.low} to {column.high}{names}"
    )

"""Parses the five fields or the macro of a cron expression and writes them in an unambiguous form."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from datetime import time, timedelta
from difflib import get_close_matches
from functools import lru_cache
from itertools import pairwise
from unicodedata import name as unicode_name

from cron.field import DAY, HOUR, MINUTE, MONTH, WEEKDAY, CronField, FieldValues, ScheduleError, parse_field

REBOOT = "@reboot"
MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
EVERY_DAY = "* * *"
MAX_LENGTH = 256  # characters; 20,000 list items would take a third of a second
DAYS_IN = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)

ZONE_PREFIX = re.compile(r"(?:CRON_)?TZ=(\S*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TimesOfDay:
    """The times at which a job fires on each of its days: every hour combined with every minute, in order and numbered from 0.

    The times are not stored one by one. `hours` and `minutes` are in ascending order.
    """

    hours: tuple[int, ...]
    minutes: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.hours) * len(self.minutes)

    def __getitem__(self, number: int) -> time:
        if not 0 <= number < len(self):
            raise IndexError(number)
        hour, minute = divmod(number, len(self.minutes))
        return time(self.hours[hour], self.minutes[minute])

    def __str__(self) -> str:
        return f"{','.join(map(str, self.minutes))} {','.join(map(str, self.hours))}"

    def count_until(self, clock: time) -> int:
        """The number of times at or before this time of day."""
        whole = bisect_left(self.hours, clock.hour)
        if self.hours[whole : whole + 1] != (clock.hour,):
            return whole * len(self.minutes)
        return whole * len(self.minutes) + bisect_right(self.minutes, clock.minute)

    def shortest_gap(self) -> timedelta | None:
        """The shortest distance between two times. None if there is only one."""
        over_the_hour = self.minutes[0] - self.minutes[-1]
        gaps = [b - a for a, b in pairwise(self.minutes)] + [60 * (b - a) + over_the_hour for a, b in pairwise(self.hours)]
        return timedelta(minutes=min(gaps)) if gaps else None

    def span(self) -> timedelta:
        """The distance between the first and the last time of the day."""
        return timedelta(hours=self.hours[-1] - self.hours[0], minutes=self.minutes[-1] - self.minutes[0])


@dataclass(frozen=True, slots=True)
class CronExpression:
    """A valid expression. `days` has the fields day-of-month, month and day-of-week, rewritten for croniter.

    `wildcard` means that the minute or hour field begins with `*`, which decides how the job behaves at a clock change.
    """

    times: TimesOfDay
    days: str
    wildcard: bool
    warnings: tuple[str, ...]

    @property
    def key(self) -> str:
        """A text that is equal for expressions with the same planned times. `*/5` and `0-59/5` have different keys, because they
        differ at a clock change.
        """
        return f"{self.times} {self.days} {'wildcard' if self.wildcard else 'fixed'}"


def is_reboot(text: str) -> bool:
    """Whether this is `@reboot`, which runs once when the daemon starts and is not a schedule."""
    return text.strip(" \t").lower() == REBOOT


@lru_cache(maxsize=8192)  # every minute of the day, on five kinds of days
def parse_expression(text: str) -> CronExpression:
    """The meaning of the text. Raises ScheduleError."""
    _refuse_unusable_text(text)
    fields = _split_fields(text.strip(" \t"))
    columns = zip((MINUTE, HOUR, DAY, MONTH, WEEKDAY), fields, strict=True)
    minute, hour, day, month, weekday = (parse_field(column, field) for column, field in columns)
    _refuse_mixed_weekdays(fields, weekday)
    return CronExpression(
        times=TimesOfDay(hour.sorted_numbers, minute.sorted_numbers),
        days=" ".join((_canonical_field(DAY, day), _canonical_field(MONTH, month), _canonical_field(WEEKDAY, weekday))),
        wildcard=minute.starred or hour.starred,
        warnings=(
            *(w for values in (minute, hour, day, month, weekday) for w in values.warnings),
            *_impossible_day_warnings(day, month, weekday),
        ),
    )


def _refuse_unusable_text(text: str) -> None:
    if len(text) > MAX_LENGTH:
        raise ScheduleError(
            f"the expression has {len(text)} characters, at most {MAX_LENGTH} are read; split it into several jobs"
        )
    for at, char in enumerate(text, start=1):
        if char != "\t" and not " " <= char <= "~":
            named = unicode_name(char, "a control character")
            raise ScheduleError(f"character {at} is U+{ord(char):04X} ({named}); write plain ASCII, with blanks between fields")


def _split_fields(text: str) -> list[str]:
    if match := ZONE_PREFIX.match(text):
        raise ScheduleError(f"'{match[0]}' does not belong in the expression; write timezone: {match[1] or 'UTC'} beside it")
    if text.startswith("@"):
        text = _expand_macro(text)
    fields = re.split(r"[ \t]+", text) if text else []
    if len(fields) != 5:
        raise ScheduleError(_field_count_error(fields))
    return fields


def _expand_macro(text: str) -> str:
    word, *more = text.lower().split()
    if word == "@every":
        raise ScheduleError(f"@every is not a schedule; write every: {more[0] if more else '30m'} instead of schedule:")
    if word == "@every_minute":
        raise ScheduleError("@every_minute is not a macro here; write * * * * *")
    if word != REBOOT and word not in MACROS:
        near = get_close_matches(word, MACROS, n=1)
        raise ScheduleError(f"'{word}' is not a macro; write {near[0] if near else ' '.join(MACROS)}")
    if more:
        raise ScheduleError(f"'{word}' takes no arguments; write {word} and nothing after it")
    if word == REBOOT:
        raise ScheduleError("@reboot is not a time of day; write five fields, such as 0 3 * * *")
    return MACROS[word]


def _field_count_error(fields: list[str]) -> str:
    if not fields:
        return "the expression is empty; write five fields, such as 0 3 * * *, or a macro, such as @daily"
    if len(fields) in (6, 7):
        return (
            f"the expression has {len(fields)} fields, and seconds and years are not supported; "
            "write five (minute hour day-of-month month day-of-week), or every: for intervals below a minute"
        )
    has = f"{len(fields)} field{'s' if len(fields) > 1 else ''}"
    return f"the expression has {has}; write five: minute hour day-of-month month day-of-week"


def _refuse_mixed_weekdays(fields: list[str], weekday: FieldValues) -> None:
    if not weekday.special:
        return
    text = fields[4]
    kinds = {"#" in item for item in weekday.special}
    if weekday.numbers or len(kinds) > 1:
        raise ScheduleError(f"day-of-week '{text}' mixes plain days, d#k or dL; write one job for each kind")
    if fields[2] != "*":
        raise ScheduleError(f"day-of-week '{text}' and day-of-month '{fields[2]}' cannot be combined; write * as day-of-month")


def _canonical_field(column: CronField, values: FieldValues) -> str:
    """The field as explicit numbers, so that croniter has nothing left to interpret.

    A day field that begins with `*` keeps a star, so that both day fields must match. The star always includes the field's
    first value, so it is written with a step that matches that value only.
    """
    whole = len(values.numbers) == column.cycle
    if whole and (values.starred or column is MONTH):
        return "*"
    star = [f"*/{column.cycle}"] if values.starred and column is not MONTH else []
    return ",".join([*star, *map(str, values.sorted_numbers), *sorted(values.special)])


def _impossible_day_warnings(day: FieldValues, month: FieldValues, weekday: FieldValues) -> tuple[str, ...]:
    """The warning about a day of the month that none of the months has. Raises ScheduleError if the job could then never fire."""
    if day.special or min(day.numbers) <= max(DAYS_IN[number - 1] for number in month.numbers):
        return ()
    days, months = ",".join(map(str, day.sorted_numbers)), ",".join(map(str, month.sorted_numbers))
    if weekday.starred:
        raise ScheduleError(f"day-of-month {days} does not occur in month {months}; write L for the last day of the month")
    return (f"day-of-month {days} does not occur in month {months}: only day-of-week decides",)

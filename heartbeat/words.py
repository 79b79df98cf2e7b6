"""Formats parts of texts for people: one line, a shortened text, a count, an amount, a duration, which it also reads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from enum import StrEnum
from functools import lru_cache
from itertools import accumulate
from math import ceil
from typing import Self

MOST_SECONDS = 10**9  # longer durations are treated like this one

_DURATION = re.compile(r"(?=.)(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?", re.ASCII)


def one_line(text: str) -> str:
    """The text as one line: each character that is not printable, such as a control or bidi character, becomes a space."""
    return text if text.isprintable() else "".join(sign if sign.isprintable() else " " for sign in text)


def squeeze(text: str, most: int | None = None) -> str:
    """The text as one line with single spaces, shortened to `most` characters."""
    line = " ".join((text if text.isprintable() else one_line(text)).split())
    return line if most is None or len(line) <= most else shorten(line, most)


def shorten(text: str, most: int) -> str:
    """The text with at most `most` characters. An ellipsis stands for the end of a longer text."""
    if len(text) <= most:
        return text
    return f"{text[: most - 1]}…" if most else ""


def escape_control(text: str) -> str:
    """The text with its control characters escaped. Line breaks and tabs are kept."""
    return "".join(sign if sign.isprintable() or sign in "\n\t" else f"\\x{ord(sign):02x}" for sign in text)


def list_names(names: Sequence[str], most: int | None = None, width: int | None = None) -> str:
    """The first names, and how many more there are: at most `most` names in `width` characters, but at least one."""
    lengths = accumulate(len(name) + len(", ") for name in names[:most])
    shown = max(1, sum(width is None or length <= width + len(", ") for length in lengths))
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {more:,} more" if more > 0 else "")


def format_count(number: int, noun: str) -> str:
    """A number with its noun: 1 run, 2 runs."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def format_usd(cost: float | None) -> str:
    """An amount in USD: to the cent, or below ten cents to a hundredth of a cent; a dash for None."""
    if cost is None:
        return "-"
    if 0 < cost < 0.0001:
        return "<$0.0001"
    return f"${cost:.4f}" if 0 < cost < 0.1 else f"${cost:,.2f}"


def round_usd_up(cost: float, places: int) -> float:
    """An amount in USD, rounded up to so many decimal places: as a limit it is never too low."""
    steps = 10.0**places
    return ceil(round(cost * steps, 3)) / steps


def format_duration(span: timedelta) -> str:
    """A duration as it is written in the config: 1h30m."""
    seconds = round(span.total_seconds())
    parts = ((seconds // 86400, "d"), (seconds // 3600 % 24, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s"))
    return "".join(f"{number}{unit}" for number, unit in parts if number) or "0s"


@lru_cache(maxsize=4096)
def parse_duration(text: str) -> timedelta | None:
    """A duration, zero or more, as `format_duration` writes it; None for any other text."""
    found = _DURATION.fullmatch(text)
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return timedelta(seconds=min(days * 86400 + hours * 3600 + minutes * 60 + seconds, MOST_SECONDS))


def abbreviate_duration(span: timedelta) -> str:
    """A duration in its largest unit and the next smaller one, rounded: 3d4h, 5m20s, 12d. A negative one is 0s."""
    seconds = max(0, span.total_seconds())
    unit = 3600 if seconds >= 86400 else 60 if seconds >= 3600 else 1
    return format_duration(timedelta(seconds=round(seconds / unit) * unit))


def format_elapsed(span: timedelta) -> str:
    """How long something took: 12.3s, from a minute on as `abbreviate_duration`."""
    return f"{span.total_seconds():.1f}s" if span < timedelta(minutes=1) else abbreviate_duration(span)


class Word(StrEnum):
    """A word for programs, beside its text for people: `NAME = "word", "its text"`."""

    says: str

    def __new__(cls, word: str, says: str = "") -> Self:
        found = str.__new__(cls, word)
        found._value_, found.says = word, says
        return found

    @classmethod
    def text_of(cls, word: str) -> str:
        """The text of a stored word. One that this version does not know is its own text."""
        return next((each.says for each in cls if each == word), word)

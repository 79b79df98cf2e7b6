"""Marks: what stands in brackets before the text of a checklist item, and says when and how soon it is asked about."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import lru_cache

HIGH, NORMAL, LOW = range(3)

_BULLET = re.compile(r"(\s*)(?:[-*+]|\d{1,9}[.)])(?:\s+|$)")
_BRACKETS = re.compile(r"\[([^\[\]]{0,40})\](?:\s+|$)")
_EVERY = re.compile(r"every\s+(?=\d)(?:(\d{1,4})d)?(?:(\d{1,5})h)?(?:(\d{1,6})m)?(?:(\d{1,8})s)?", re.ASCII)
_PRIORITIES = {"high": HIGH, "medium": NORMAL, "low": LOW}


@dataclass(frozen=True, slots=True)
class ListLine:
    """A line of a list, taken apart.

    `lead` is the bullet with the blanks before and behind it, `box` the checkbox as written or nothing, `text` the rest. The
    smallest `priority` is asked about first; `every` None means at every beat.
    """

    lead: str
    indent: int
    box: str = ""
    text: str = ""
    every: timedelta | None = None
    priority: int = NORMAL
    paused: bool = False

    @property
    def without_marks(self) -> str:
        """The line without its marks."""
        return f"{self.lead}{self.box} {self.text}".rstrip() if self.box else f"{self.lead}{self.text}".rstrip()


@lru_cache(maxsize=512)
def parse_list_line(line: str) -> ListLine | None:
    """The line taken apart; None when it is no line of a list. Marks stand before or behind a checkbox; the last one of a kind
    counts, and from the first brackets on that are no mark all is text."""
    bullet = _BULLET.match(line)
    if bullet is None:
        return None
    found = ListLine(bullet[0], len(bullet[1].expandtabs(4)))
    at = bullet.end()
    while (brackets := _BRACKETS.match(line, at)) and (more := _add_brackets(found, brackets[1])):
        found, at = more, brackets.end()
    return replace(found, text=line[at:].strip())


def unreadable_mark(line: str) -> str | None:
    """What stands in the place of a mark, means one and cannot be read, as `[every 30]` without a unit; None if nothing does."""
    marked = parse_list_line(line)
    brackets = _BRACKETS.match(marked.text) if marked else None
    if brackets is None:
        return None
    words = [word.strip().lower() for word in brackets[1].split("|")]
    means_a_mark = words[0].startswith("every ") or (len(words) > 1 and any(_add_mark(ListLine("", 0), word) for word in words))
    return f"[{brackets[1]}]" if means_a_mark else None


def _add_brackets(found: ListLine, words: str) -> ListLine | None:
    """What a pair of brackets adds; several marks in one are parted by `|`. None when one of them is neither a box nor a mark."""
    if words.strip().lower() in ("", "x"):
        return None if found.box else replace(found, box=f"[{words.strip().lower() or ' '}]")
    with_all: ListLine | None = found
    for word in words.split("|"):
        with_all = with_all and _add_mark(with_all, word.strip().lower())
    return with_all


def _add_mark(found: ListLine, word: str) -> ListLine | None:
    """What one mark adds; None for a word that is none. `medium`, `active` and `completed` are those of ZeroClaw."""
    if word in _PRIORITIES:
        return replace(found, priority=_PRIORITIES[word])
    if word in ("paused", "active"):
        return replace(found, paused=word == "paused")
    if word == "completed":
        return replace(found, box="[x]")
    every = _parse_every(word)
    return replace(found, every=every) if every else None


def _parse_every(word: str) -> timedelta | None:
    """A length of time above zero, written as in the config: 90s, 30m, 1h30m, 2d."""
    parts = _EVERY.fullmatch(word)
    if parts is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in parts.groups())
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds) or None

"""What is delivered: one part of a message, and how a long text becomes parts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

DeliveryOutcome = Literal["delivered", "retry", "uncertain", "dead"]

CUT_MARKS = ("\n\n", "\n", " ")


@dataclass(frozen=True, slots=True)
class Message:
    """One part of what a run has to say. `key` is the same for every attempt; `part` counts from 1 to `parts`."""

    key: str
    kind: str
    name: str
    trigger: str
    slot: datetime
    part: int
    parts: int
    text: str
    title: str


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """What became of one attempt.

    `delivered`: accepted. `retry`: surely not accepted, may be later; not before `retry_after` if the receiver said so
    (uncapped). `uncertain`: it may have arrived. `dead`: it will never be accepted. `error` is one line free of secrets,
    empty when delivered.
    """

    state: DeliveryOutcome
    error: str = ""
    retry_after: timedelta | None = None


def split_text(text: str, limit: int) -> list[str]:
    """`text` in parts of at most `limit` UTF-16 units, cut between paragraphs, else lines, else words; at least one part.

    Of all counts in use that is the strictest: a sign beyond U+FFFF counts twice. The blanks or line breaks at a cut are
    dropped, the indentation of a line is kept. A word longer than half the limit may be cut in two. ValueError if `limit` is
    below 2.
    """
    if limit < 2:
        raise ValueError(f"a part holds at least two units, not {limit}")
    parts = []
    rest = text.strip()
    while (fitting := _count_fitting(rest, limit)) < len(rest):
        cut = _find_cut(rest, fitting)
        parts.append(rest[:cut].rstrip())
        rest = rest[cut:].lstrip("\n") if rest[cut] == "\n" else rest[cut:].lstrip(" ")
    parts.append(rest)
    return [part for part in parts if part.strip()] or [""]


def _count_fitting(text: str, limit: int) -> int:
    """How many code points of the text fit."""
    units = 0
    for index, sign in enumerate(text):
        units += 2 if sign > "\uffff" else 1
        if units > limit:
            return index
    return len(text)


def _find_cut(text: str, fitting: int) -> int:
    """Where to cut: the strongest border in the latter half of what fits, so that parts do not become crumbs."""
    for border in CUT_MARKS:
        cut = text.rfind(border, fitting // 2, fitting + len(border))
        if cut > 0:
            return cut
    return fitting

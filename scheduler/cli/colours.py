"""Colours words by their meaning: errors red, warnings yellow, good results green, planned skips dim.

`click.echo` removes the colours where none are wanted: in pipes and files, with `NO_COLOR`, and with `--color never`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

import click

from heartbeat.findings import Severity
from scheduler.model.outcome import FAILURES, PLANNED_SKIPS, DeliveryState, Outcome, Skip


class Meaning(Enum):
    """What a word says about the state of something, with the style that shows it."""

    BAD = "red"
    WORRYING = "yellow"
    GOOD = "green"
    PLANNED = "dim"


MEANINGS: dict[str, Meaning] = {
    **dict.fromkeys(map(str, Skip), Meaning.WORRYING),
    **dict.fromkeys(map(str, PLANNED_SKIPS), Meaning.PLANNED),
    **dict.fromkeys(map(str, FAILURES), Meaning.BAD),
    Outcome.OK: Meaning.GOOD,
    Outcome.ALERT: Meaning.WORRYING,
    DeliveryState.DELIVERED: Meaning.GOOD,
    **dict.fromkeys((DeliveryState.PARTIAL, DeliveryState.UNCERTAIN, DeliveryState.HELD), Meaning.WORRYING),
    **dict.fromkeys((DeliveryState.DEAD, DeliveryState.NO_TARGET), Meaning.BAD),
    Severity.CRITICAL: Meaning.BAD,
    Severity.WARNING: Meaning.WORRYING,
    "undelivered": Meaning.BAD,  # the words of `explain` for the day of an entry
    "silent": Meaning.WORRYING,
    "unusual": Meaning.WORRYING,
    "normal": Meaning.GOOD,
    **dict.fromkeys(("done", "muted", "awaits_results", "acknowledged", "known"), Meaning.PLANNED),
    "down": Meaning.BAD,
}


def meaning_of(word: str | None) -> Meaning | None:
    """The meaning of an outcome, a reason to skip, a delivery state, a severity or a day; None for any other word."""
    return MEANINGS.get(word or "")


def meaning_of_run(outcome: str | None, reason: str | None) -> Meaning | None:
    """The meaning of a run: of its outcome, or, if it was skipped, of the reason."""
    return meaning_of(reason if outcome == Outcome.SKIPPED else outcome)


def paint(text: str, meaning: Meaning | None) -> str:
    """The text in the colour of its meaning; as it is without a meaning."""
    if meaning is None or not text:
        return text
    return click.style(text, dim=True) if meaning is Meaning.PLANNED else click.style(text, fg=meaning.value)


def paint_label(lines: Iterable[str], label: str, meaning: Meaning | None) -> list[str]:
    """The lines, with a label at the beginning of the first line in the colour of a meaning."""
    lines = list(lines)
    if lines and meaning and lines[0].startswith(label):
        lines[0] = paint(label, meaning) + lines[0][len(label) :]
    return lines


@dataclass(frozen=True, slots=True)
class Fact:
    """A line `label: text` whose label has a meaning."""

    text: str
    meaning: Meaning | None

    @property
    def label(self) -> str:
        """The text before the first colon."""
        return self.text.partition(":")[0]

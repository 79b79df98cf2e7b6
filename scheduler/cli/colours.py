"""Colours words by their level: errors red, warnings yellow, good results green, planned skips dim.

`click.echo` removes the colours where none are wanted: in pipes and files, with `NO_COLOR`, and with `--color never`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import click

from scheduler.model.levels import Level

COLOURS = {Level.BAD: "red", Level.LOST: "yellow", Level.ALERT: "yellow", Level.GOOD: "green"}


def style_of(level: Level | None) -> str:
    """The style of a level, as rich names it; empty for most levels."""
    return "dim" if level is Level.PLANNED else COLOURS.get(level, "") if level else ""


def paint(text: str, level: Level | None) -> str:
    """The text in the colour of its level; as it is without a level."""
    style = style_of(level)
    if not style or not text:
        return text
    return click.style(text, dim=True) if style == "dim" else click.style(text, fg=style)


def paint_label(lines: Iterable[str], label: str, level: Level | None) -> list[str]:
    """The lines, with a label at the beginning of the first line in the colour of a level."""
    lines = list(lines)
    if lines and level and lines[0].startswith(label):
        lines[0] = paint(label, level) + lines[0][len(label) :]
    return lines


@dataclass(frozen=True, slots=True)
class Fact:
    """A line `label: text` whose label has a level."""

    text: str
    level: Level | None

    @property
    def label(self) -> str:
        """The text before the first colon."""
        return self.text.partition(":")[0]

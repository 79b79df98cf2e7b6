"""Draws bar charts as SVG for the report in HTML and for the status page. A style sheet gives the colours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10

WIDTH, HEIGHT = 360, 150  # in units of the drawing, which are pixels on a phone
LEFT, RIGHT, TOP, BOTTOM = 46, 6, 8, 20  # margins around the bars
MAX_GAP = 0.25  # of the width of a bar
STEPS = (1, 2, 5, 10)  # a scale ends at such a number times a power of ten


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: the label below it, a text for a tooltip, and its parts from the bottom up, as (class in the style, value)."""

    label: str
    title: str
    parts: tuple[tuple[str, float], ...]

    @property
    def value(self) -> float:
        return sum(value for _, value in self.parts)


def draw_bars(bars: Sequence[Bar], caption: str, format_value: Callable[[float], str]) -> str:
    """A chart of vertical bars with a scale from zero. The first, the middle and the last bar have their labels."""
    top = find_scale_end(max((bar.value for bar in bars), default=0.0))
    room = (WIDTH - LEFT - RIGHT) / max(1, len(bars))
    drawn = [_draw_bar(bar, LEFT + room * place, room, top) for place, bar in enumerate(bars)]
    lines = [_draw_line(top * part, top, format_value) for part in (0, 0.5, 1)]
    shown = sorted({0, len(bars) // 2, len(bars) - 1}) if bars else []
    anchors = ("start", "middle", "end") if len(shown) == 3 else ("start", "end")[: len(shown)]
    labels = [
        f'<text class="axis" x="{LEFT + room * (place + {"start": 0, "middle": 0.5, "end": 1}[anchor]):.1f}" y="{HEIGHT - 5}"'
        f' text-anchor="{anchor}">{escape(bars[place].label)}</text>'
        for place, anchor in zip(shown, anchors, strict=True)
    ]
    parts = "\n".join([*lines, *drawn, *labels])
    return f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(caption)}">\n{parts}\n</svg>'


def find_scale_end(largest: float) -> float:
    """The end of a scale for values up to `largest`: 1, 2 or 5 times a power of ten, and 1 if all values are zero."""
    if largest <= 0:
        return 1.0
    unit = 10.0 ** floor(log10(largest))
    return float(next(step * unit for step in STEPS if step * unit >= largest * (1 - 1e-9)))


def _draw_bar(bar: Bar, left: float, room: float, top: float) -> str:
    gap, bottom, parts = room * MAX_GAP, float(HEIGHT - BOTTOM), []
    for style, value in bar.parts:
        height = (HEIGHT - TOP - BOTTOM) * value / top
        if value > 0:
            height = max(height, 0.5)  # a small value stays visible
            bottom -= height
            place = f'x="{left + gap / 2:.2f}" y="{bottom:.2f}" width="{room - gap:.2f}" height="{height:.2f}"'
            parts.append(f'<rect class="{style}" {place}/>')
    return f"<g><title>{escape(bar.title)}</title>{''.join(parts)}</g>" if parts else ""


def _draw_line(value: float, top: float, format_value: Callable[[float], str]) -> str:
    """A line of the scale with its value."""
    y = HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top
    line = f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return f'{line}<text class="axis" x="{LEFT - 4}" y="{y + 3:.1f}" text-anchor="end">{escape(format_value(value))}</text>'


def draw_share(share: float) -> str:
    """A horizontal bar for a cell of a table; `share` is at most 1."""
    width = 100 * min(max(share, 0.0), 1.0)
    return (
        '<svg class="share" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="track" width="100" height="8"/><rect class="cost" width="{width:.1f}" height="8"/></svg>'
    )

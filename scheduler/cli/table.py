"""Tables and lines for a terminal: columns aligned, long lines wrapped, nothing that could drive the terminal."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Sequence
from textwrap import wrap

from rich.cells import cell_len, set_cell_size

GAP = "  "
LINE = 80
NARROWEST = 40
COMMAND = re.compile("`[^`]{1,60}`")
UNLIMITED = 1_000_000  # columns of a pipe or a file, where nothing is cut
NO_BREAK = "\N{NO-BREAK SPACE}"  # is no printable character, and so in no text that is wrapped
SECOND_HALF = "\0"  # the same; follows a character that takes two columns, while textwrap counts characters


def table(head: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None, numbers: Collection[int] = ()) -> str:
    """Lines with a head; the widest columns are cut until a line fits `width`, else COLUMNS, else the terminal.

    In a pipe or a file nothing is cut. The columns whose places are in `numbers` stand to the right.
    """
    width = max(NARROWEST, width or shutil.get_terminal_size((UNLIMITED, 24)).columns)
    cells = [[plain(cell) for cell in row] for row in (head, *rows)]
    widths = _fitting([max(map(cell_len, column)) for column in zip(*cells, strict=True)], width)
    return "\n".join(
        GAP.join(
            _placed(cell, room, place in numbers) for place, (cell, room) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    )


def line(text: str, width: int) -> str:
    """The beginning of a text in one line of printable characters."""
    return _cut(plain(text), width)


def wrapped(text: str, indent: int) -> list[str]:
    """The lines of a text, those after the first indented; no word or command is broken, so that it can be copied."""
    bound = COMMAND.sub(lambda found: found[0].replace(" ", NO_BREAK), plain(text))
    spaced = "".join(sign + SECOND_HALF * (cell_len(sign) - 1) for sign in bound)
    lines = wrap(spaced, LINE, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
    return [line.replace(NO_BREAK, " ").replace(SECOND_HALF, "") for line in lines]


def fact(word: str, value: str) -> list[str]:
    """A fact after its word, over several lines where one does not hold it; none for none."""
    return wrapped(f"{word:<10} {value}", 11) if value else []


def plain(text: str) -> str:
    """One line of printable characters."""
    return "".join(sign if sign.isprintable() else " " for sign in text)


def harmless(text: str) -> str:
    """Text of somebody else's making as a terminal may show it: line breaks and tabs are kept, control characters are named."""
    return "".join(sign if sign.isprintable() or sign in "\n\t" else f"\\x{ord(sign):02x}" for sign in text)


def _fitting(widths: list[int], width: int) -> list[int]:
    """Take from the widest column until all fit."""
    widths = list(widths)
    while sum(widths) + len(GAP) * (len(widths) - 1) > width:
        widest = widths.index(max(widths))
        if widths[widest] <= 4:
            break
        widths[widest] -= 1
    return widths


def _placed(cell: str, room: int, right: bool) -> str:
    cut = _cut(cell, room)
    rest = " " * (room - cell_len(cut))
    return rest + cut if right else cut + rest


def _cut(cell: str, room: int) -> str:
    return cell if cell_len(cell) <= room else set_cell_size(cell, room - 1) + "…"

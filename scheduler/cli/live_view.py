"""Shows a text again and again until Ctrl-C, for `status --watch`: in place on a terminal, one after the other in a pipe."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterable

import click

HOME, CLEAR_LINE, CLEAR_BELOW, NEW_LINE = "\x1b[H", "\x1b[K", "\x1b[J", "\r\n"  # ECMA-48
OTHER_SCREEN, FIRST_SCREEN = "\x1b[?1049h", "\x1b[?1049l"  # of xterm; other terminals ignore them


def show_repeatedly(make_lines: Callable[[], Iterable[str]], interval: float, *, in_place: bool) -> None:
    """Show lines again every `interval` seconds, until Ctrl-C: on a terminal `in_place`, else one text after the other."""
    in_place = in_place and sys.stdout.isatty()
    lines: list[str] = []
    try:
        sys.stdout.write(OTHER_SCREEN if in_place else "")
        while True:
            lines = list(make_lines())
            if in_place:
                _redraw(lines)
            else:
                click.echo("\n".join(lines))
            sys.stdout.flush()
            time.sleep(interval)
    except KeyboardInterrupt:
        return
    finally:
        if in_place:
            sys.stdout.write(FIRST_SCREEN)
            click.echo("\n".join(lines))


def _redraw(lines: list[str]) -> None:
    """Show the lines from the top of the terminal. Nothing is cleared before it is overwritten, so nothing flickers.

    Lines below the bottom are not shown, because the terminal would scroll.
    """
    room = shutil.get_terminal_size().lines - 1
    shown = lines if len(lines) <= room else [*lines[: room - 1], f"and {len(lines) - room + 1} more lines"]
    sys.stdout.write(f"{HOME}{''.join(f'{line}{CLEAR_LINE}{NEW_LINE}' for line in _plain_if_wanted(shown))}{CLEAR_BELOW}")


def _plain_if_wanted(lines: list[str]) -> list[str]:
    colours = click.get_current_context().color
    return lines if colours is None or colours else [click.unstyle(line) for line in lines]

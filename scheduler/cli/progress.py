"""Writes to a terminal in place: that a command still works, and a text that is shown again and again (`status --watch`)."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TextIO

import click

DELAY = 2.0  # seconds
INTERVAL = 1.0  # seconds
HOME, CLEAR_LINE, CLEAR_BELOW, NEW_LINE = "\x1b[H", "\x1b[K", "\x1b[J", "\r\n"  # ECMA-48
OTHER_SCREEN, FIRST_SCREEN = "\x1b[?1049h", "\x1b[?1049l"  # of xterm; other terminals ignore them


@contextmanager
def show_progress(what: str, stream: TextIO | None = None, delay: float = DELAY) -> Iterator[None]:
    """Show what is being done and for how long, on standard error or `stream`, until the block ends. Then the line is cleared.

    Nothing is written within the first `delay` seconds, or if the stream is not a terminal.
    """
    stream = sys.stderr if stream is None else stream
    if not stream.isatty():
        yield
        return
    over = threading.Event()
    reporter = threading.Thread(target=_report, args=(what, stream, delay, over), name="progress", daemon=True)
    reporter.start()
    try:
        yield
    finally:
        over.set()
        reporter.join()


def _report(what: str, stream: TextIO, delay: float, over: threading.Event) -> None:
    begun = time.monotonic()
    is_shown = False
    while not over.wait(INTERVAL if is_shown else delay):
        is_shown = True
        stream.write(f"\r{CLEAR_LINE}{what}: {time.monotonic() - begun:.0f} s")
        stream.flush()
    if is_shown:
        stream.write(f"\r{CLEAR_LINE}")
        stream.flush()


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

"""Writes to a terminal in place: that a command still works, and a text that is shown again and again (`status --watch`)."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TextIO

import click

from scheduler.cli import output

DELAY = 2.0  # seconds
INTERVAL = 1.0  # seconds
CLEAR_LINE = "\x1b[K"  # ECMA-48


class Progress:
    """How much of an operation is done, from 0 to 1. None: that is not known."""

    share: float | None = None

    def note(self, share: float) -> None:
        """Show this share from now on."""
        self.share = share


@contextmanager
def show_progress(what: str, stream: TextIO | None = None, delay: float = DELAY) -> Iterator[Progress]:
    """Show what is being done, for how long, and how much of it is done if the block notes that, on standard error or `stream`.

    The line is cleared when the block ends. Nothing is written within the first `delay` seconds, or if the stream is no
    terminal.
    """
    stream, progress = sys.stderr if stream is None else stream, Progress()
    if not stream.isatty():
        yield progress
        return
    over = threading.Event()
    reporter = threading.Thread(target=show_until, args=(what, stream, delay, over, progress), name="progress", daemon=True)
    reporter.start()
    try:
        yield progress
    finally:
        over.set()
        reporter.join()


def show_until(what: str, stream: TextIO, delay: float, over: threading.Event, progress: Progress) -> None:
    """Show a line about an operation, after `delay` seconds and then each second, until it is `over`. Then clear the line."""
    begun = time.monotonic()
    is_shown = False
    while not over.wait(INTERVAL if is_shown else delay):
        is_shown = True
        share = "" if progress.share is None else f"{progress.share:.0%}, "
        stream.write(f"\r{CLEAR_LINE}{what}: {share}{time.monotonic() - begun:.0f} s")
        stream.flush()
    if is_shown:
        stream.write(f"\r{CLEAR_LINE}")
        stream.flush()


def show_repeatedly(make_lines: Callable[[], Iterable[str]], interval: float, *, in_place: bool) -> None:
    """Show lines again every `interval` seconds, until Ctrl-C: on a terminal `in_place`, else one text after the other."""
    text, in_place = "", in_place and sys.stdout.isatty()
    with suppress(KeyboardInterrupt), output.own_screen() if in_place else nullcontext(click.echo) as show:
        while True:
            text = "\n".join(make_lines())
            show(text)
            sys.stdout.flush()
            time.sleep(interval)
    if in_place:
        click.echo(text)

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
    text, in_place = "", in_place and sys.stdout.isatty()
    with suppress(KeyboardInterrupt), output.own_screen() if in_place else nullcontext(click.echo) as show:
        while True:
            text = "\n".join(make_lines())
            show(text)
            sys.stdout.flush()
            time.sleep(interval)
    if in_place:
        click.echo(text)

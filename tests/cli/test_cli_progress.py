"""A command that takes long says so on a terminal, and leaves no trace when it is done. Pipes get nothing."""

from __future__ import annotations

import io
import os
import pty
from collections.abc import Iterator
from typing import TextIO

import pytest

from scheduler.cli.progress import show_progress


@pytest.fixture
def terminal() -> Iterator[tuple[int, TextIO]]:
    """What a user sees, as a file descriptor, and the stream of the command."""
    mine, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as stream:
        yield mine, stream
    os.close(mine)


def test_a_long_operation_is_shown_with_its_duration_and_cleared_at_its_end(terminal: tuple[int, TextIO]) -> None:
    screen, stream = terminal
    with show_progress("planning", stream, delay=0.0):
        shown = os.read(screen, 1000)
    assert shown == b"\r\x1b[Kplanning: 0 s"
    assert os.read(screen, 1000).endswith(b"\r\x1b[K")


def test_the_line_is_cleared_before_an_error_is_printed(terminal: tuple[int, TextIO]) -> None:
    screen, stream = terminal
    with pytest.raises(ValueError, match="broken"), show_progress("planning", stream, delay=0.0):
        os.read(screen, 1000)
        raise ValueError("broken")
    assert os.read(screen, 1000).endswith(b"\r\x1b[K")


def test_a_short_operation_writes_nothing(terminal: tuple[int, TextIO]) -> None:
    screen, stream = terminal
    with show_progress("planning", stream, delay=60.0):
        pass
    os.set_blocking(screen, False)
    with pytest.raises(BlockingIOError):
        os.read(screen, 1000)


def test_a_pipe_gets_no_progress() -> None:
    stream = io.StringIO()
    with show_progress("planning", stream, delay=0.0):
        pass
    assert stream.getvalue() == ""

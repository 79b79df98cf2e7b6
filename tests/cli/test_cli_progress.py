"""A command that takes long says so on a terminal, and leaves no trace when it is done. Pipes get nothing."""

from __future__ import annotations

import io
import os
import pty
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from scheduler.cli.main import main
from scheduler.cli.progress import Progress, show_progress, show_until


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


def test_the_share_that_is_done_is_shown_if_it_is_known(terminal: tuple[int, TextIO]) -> None:
    screen, stream = terminal
    progress = Progress()
    progress.note(0.4249)
    over = threading.Event()
    reporter = threading.Thread(target=show_until, args=("playing", stream, 0.0, over, progress))
    reporter.start()
    assert os.read(screen, 1000) == b"\r\x1b[Kplaying: 42%, 0 s"
    over.set()
    reporter.join(timeout=10)


def test_a_simulation_and_a_replay_show_at_once_that_they_play(
    terminal: tuple[int, TextIO], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen, stream = terminal
    path = tmp_path / "config.yaml"
    path.write_text('cron: {backup: {schedule: "0 3 * * *", command: backup}}\n', "utf-8")
    monkeypatch.setattr(sys, "stderr", stream)
    assert main(["simulate", "-c", str(path), "--for", "1d"]) == 0
    assert os.read(screen, 1000).startswith(b"\r\x1b[Kplaying the config: ")
    assert main(["replay", "-c", str(path)]) == 2
    assert b"\r\x1b[Kplaying the records: " in os.read(screen, 1000)


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

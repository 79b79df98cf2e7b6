"""Runs the daemon in the foreground."""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

from scheduler.app import STANDS_BY_AGAIN, Daemon
from scheduler.model.expected_error import InputError
from scheduler.system import log


def run_daemon(duration: timedelta | None, once: bool, form: log.LogFormat, level: str, path: Path) -> int:
    """Run the daemon until a signal, or for a time, or `once`. Returns the exit code."""
    if once and duration:
        raise InputError("--once ends by itself; remove --for")
    log.set_up_log(sys.stderr, form=form, level=getattr(logging, level.upper()))
    faulthandler.enable()  # on SIGABRT, which the systemd watchdog sends, all threads print their stacks
    if once:
        return Daemon(path, os.environ, listen=False).run_once()
    ends_at = None if duration is None else time.monotonic() + duration.total_seconds()
    daemon = Daemon(path, os.environ)
    while (code := daemon.run(until=ends_at)) == STANDS_BY_AGAIN:
        daemon = Daemon(path, os.environ, after=daemon)
    return code

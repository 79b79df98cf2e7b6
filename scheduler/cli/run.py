"""The command `run`: runs the daemon in the foreground."""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import click

from scheduler.app import STANDS_BY_AGAIN, Daemon
from scheduler.cli import options
from scheduler.cli.arguments import DurationParam
from scheduler.cli.options import InputError
from scheduler.system import log

LOG_LEVELS = ("debug", "info", "warning", "error")


@click.command()
@click.option("--for", "duration", type=DurationParam(), help="Stop after this time, for example 60s.")
@click.option(
    "--once",
    is_flag=True,
    help="Run everything that is due now, then exit. New agents and jobs count as due. The exit code is 1 if a run failed.",
)
@click.option(
    "--drain",
    is_flag=True,
    help="Start no runs. Wait until the runs in progress on workers have ended, write their results, and exit. The exit code is 1"
    " if the daemon is stopped before.",
)
@click.option(
    "--log-format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="The format of the log.",
)
@click.option(
    "--log-level",
    "level",
    type=click.Choice(LOG_LEVELS, case_sensitive=False),
    default="info",
    show_default=True,
    help="Log only events of this level and above.",
)
@options.config_option
@options.shard_option
def run(duration: timedelta | None, once: bool, drain: bool, form: log.LogFormat, level: str, path: Path) -> int:
    """Run the daemon in the foreground.

    SIGHUP reloads the config. After SIGTERM or Ctrl-C, the daemon logs the runs in progress, waits until they have ended, and
    stops. A second SIGTERM or Ctrl-C stops it immediately.
    """
    if once and duration:
        raise InputError("--once ends by itself; remove --for")
    if drain and (once or duration):
        raise InputError(f"--drain starts no runs, and ends by itself; remove {'--once' if once else '--for'}")
    log.set_up_log(sys.stderr, form=form, level=getattr(logging, level.upper()))
    faulthandler.enable()  # on SIGABRT, which the systemd watchdog sends, all threads print their stacks
    if once:
        return Daemon(path, os.environ, listen=False).run_once()
    if drain:
        return Daemon(path, os.environ, listen=False).drain()
    ends_at = None if duration is None else time.monotonic() + duration.total_seconds()
    daemon = Daemon(path, os.environ)
    while (code := daemon.run(until=ends_at)) == STANDS_BY_AGAIN:
        daemon = Daemon(path, os.environ, after=daemon)
    return code

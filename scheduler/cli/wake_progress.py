"""Follows a wake: prints what it waits for, and waits for the end of the run that it starts."""

from __future__ import annotations

import time
from pathlib import Path

import click

from heartbeat.words import escape_control
from heartbeatd.answers import RunRecord
from scheduler.cli import daemon_files
from scheduler.cli.daemon_files import DaemonFiles
from scheduler.cli.output import format_time, utc_now
from scheduler.insight import wake_waits
from scheduler.insight.wake_waits import WakeWait
from scheduler.store import run_history, wakes

POLL_INTERVAL = 0.1  # seconds
REFUSAL_TIMEOUT = 0.5  # seconds in which most runs that are skipped have ended
SUCCESSFUL_OUTCOMES = ("ok", "alert", "async")


def newest_run_id(path: Path) -> int:
    """The newest run before a request. The run that the request starts has a higher ID."""
    with daemon_files.open_for_reading(daemon_files.locate_files(path)) as db:
        newest = run_history.list_runs(db, limit=1)
    return newest[0].id if newest else 0


def wait_for_run(path: Path, wake_id: int, before: int) -> int:
    """Wait until a run newer than `before` has consumed the wake and ended, and print it.

    Returns 1 if the run failed or was skipped, else 0.
    """
    files, printed_reason = daemon_files.locate_files(path), None
    while True:
        up = daemon_files.find_running_daemon(files)
        run, over = _find_run(files, wake_id, before)
        wait = None if over else _find_wait(files, wake_id)
        if run is not None:
            return _print_run(run, wait)
        if over:
            raise click.ClickException(f"wake {wake_id} ended without a run; `heartbeatd status` shows the state of its agent")
        if up is None:
            raise click.ClickException(f"the daemon is not running; wake {wake_id} is kept for its next start")
        if wait is not None and wait.was_refused:
            raise click.ClickException(f"wake {wake_id} {wait.describe(format_time)}")
        if wait is not None and not wait.is_starting and wait.reason != printed_reason:
            click.echo(f"wake {wake_id} {wait.describe(format_time)}", err=True)
            printed_reason = wait.reason
        time.sleep(POLL_INTERVAL)


def find_obstacle(path: Path, wake_id: int) -> WakeWait | None:
    """What a wake waits for, unless its run starts at once.

    A run that a daemon has just started may be skipped within moments. This is waited for, but only REFUSAL_TIMEOUT seconds.
    """
    files, deadline = daemon_files.locate_files(path), time.monotonic() + REFUSAL_TIMEOUT
    while (wait := _find_wait(files, wake_id)) is not None and wait.is_starting:
        if daemon_files.find_running_daemon(files) is None or time.monotonic() >= deadline:
            return None
        time.sleep(POLL_INTERVAL / 4)
    return wait


def _find_wait(files: DaemonFiles, wake_id: int) -> WakeWait | None:
    with daemon_files.open_for_reading(files) as db:
        return wake_waits.wait_of_wake(db, wakes.find_wake(db, wake_id), utc_now())


def wait_until_closed(seconds: float, files: DaemonFiles, run_id: int) -> bool:
    """Wait for the end of a run. Returns False if it has not ended within `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with daemon_files.open_for_reading(files) as db:
            run = run_history.get_run(db, run_id)
        if run is None or run.state == "closed":
            return True
        time.sleep(POLL_INTERVAL)
    return False


def _find_run(files: DaemonFiles, wake_id: int, before: int) -> tuple[RunRecord | None, bool]:
    """The closed run that consumed the wake, or None; and whether no run will consume it any more."""
    with daemon_files.open_for_reading(files) as db:
        wake = wakes.find_wake(db, wake_id)
        run_id = wake.run_id or 0 if wake else 0
        run = run_history.get_run(db, run_id) if run_id > before else None
    if run is not None:
        return (run if run.state == "closed" else None), False
    return None, wake is None or wake.state == "ended"


def _print_run(run: RunRecord, wait: WakeWait | None) -> int:
    """Print the result of a run. `wait` is what the wake still waits for, if the run did not consume it."""
    why = run.reason or run.suppression
    click.echo(f"run {run.id}: {run.outcome}" + (f" ({why})" if why else ""))
    for text in (run.text, run.error):
        if text:
            click.echo(escape_control(text))
    if wait is not None:
        click.echo(f"the wake {wait.describe(format_time)}", err=True)
    return 0 if run.outcome in SUCCESSFUL_OUTCOMES else 1

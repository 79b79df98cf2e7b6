"""The command `cancel`: ends a run that is in progress or will be retried."""

from __future__ import annotations

from pathlib import Path

import click

from heartbeatd.verbs import Cancel
from scheduler.cli import daemon_files, options
from scheduler.cli.arguments import NumberParam
from scheduler.cli.daemon_client import connect_to_daemon
from scheduler.cli.daemon_files import DaemonFiles
from scheduler.cli.output import utc_now, wrap_text
from scheduler.cli.wake_progress import wait_until_closed, waiting_wakes_lines
from scheduler.insight.status_data import read_entries
from scheduler.model.outcome import Kind
from scheduler.store import run_history

CLOSE_TIMEOUT = 15.0  # seconds: longer than a cancelled run may take to end


@click.command()
@click.argument("run", type=NumberParam())
@options.config_option
def cancel(run: int, path: Path) -> None:
    """Cancel a run that is in progress or will be retried.

    RUN is the number of the run in `heartbeatd runs`. The run gets the outcome `abandoned` and the reason `cancelled`, and is
    not retried. A run that waits for a retry or for an asynchronous result can be cancelled too. Wakes in the prompt of the
    cancelled run are put into the prompt of the agent's next run.
    """
    files = daemon_files.locate_files_or_warn(path)
    running = connect_to_daemon(files)
    if running is None:
        raise click.ClickException("the daemon is not running, so no run is in progress; `heartbeatd pause` prevents a retry")
    if running.perform(Cancel(), run).ended or wait_until_closed(CLOSE_TIMEOUT, files, run):
        click.echo(f"run {run} is cancelled")
        _print_waiting_wakes(files, run)
    else:
        click.echo(f"run {run} is being cancelled; `heartbeatd show {run}` shows when it has ended")


def _print_waiting_wakes(files: DaemonFiles, run_id: int) -> None:
    """Print how many wakes still wait: the cancelled run did not deliver them to the agent."""
    with daemon_files.open_for_reading(files) as db:
        run = run_history.get_run(db, run_id) if db else None
        found = read_entries(db, utc_now(), Kind(run.kind), run.name) if db and run else []
    for fact in (fact for entry in found for fact in waiting_wakes_lines(entry)):
        for line in wrap_text(fact, 2):
            click.echo(line)

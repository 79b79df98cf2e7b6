"""`cancel`: end a run that goes on, or that would go on."""

from __future__ import annotations

from pathlib import Path

import click

from scheduler.cli import daemon_state, options
from scheduler.cli.arguments import Number
from scheduler.cli.daemon_client import daemon
from scheduler.cli.daemon_state import Place
from scheduler.cli.output import utc_now, wrapped
from scheduler.cli.wake_progress import is_closed_within, waiting
from scheduler.insight.status_data import read_entries
from scheduler.model.outcome import Kind
from scheduler.store import runs_view

PATIENCE = 15.0  # seconds: longer than an ended run may take to give its result


@click.command()
@click.argument("run", type=Number())
@options.config
def cancel(run: int, path: Path) -> None:
    """End a run that is in progress, or would go on.

    RUN is its number, as `heartbeatd runs` lists it. It ends `abandoned` with the reason `cancelled` and is not tried again;
    a run between its attempts, or with an answer that is still to come, can be cancelled too. The wakes that it held wait on.
    """
    where = daemon_state.looked_at(path)
    running = daemon(where)
    if running is None:
        raise click.ClickException("no daemon runs, so nothing is in progress; `heartbeatd pause` keeps it from being taken up")
    if running.cancel(run) or is_closed_within(PATIENCE, where, run):
        click.echo(f"run {run} is cancelled")
        _tell_of_wakes(where, run)
    else:
        click.echo(f"run {run} is being ended; `heartbeatd show {run}` says when it is")


def _tell_of_wakes(where: Place, run_id: int) -> None:
    """What the run held has not been heard: who cancelled it may have to see to that."""
    with daemon_state.reading(where) as db:
        run = runs_view.one(db, run_id) if db else None
        found = read_entries(db, utc_now(), Kind(run["kind"]), run["name"]) if db and run else []
    for fact in (fact for entry in found for fact in waiting(entry)):
        for line in wrapped(fact, 2):
            click.echo(line)

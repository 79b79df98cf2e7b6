"""`cancel`: end a run that goes on, or that would go on."""

from __future__ import annotations

from pathlib import Path

import click

from scheduler.cli import options, reach
from scheduler.cli.arguments import Number
from scheduler.cli.door import daemon
from scheduler.cli.follow import is_closed_within

PATIENCE = 15.0  # seconds: longer than an ended run may take to give its result


@click.command()
@click.argument("run", type=Number())
@options.config
def cancel(run: int, path: Path) -> None:
    """End a run that is in progress, or would go on.

    RUN is its number, as `heartbeatd runs` lists it. It ends `abandoned` with the reason `cancelled` and is not tried again;
    a run between its attempts, or with an answer that is still to come, can be cancelled too.
    """
    where = reach.place(path)
    running = daemon(where)
    if running is None:
        raise click.ClickException("no daemon runs, so nothing is in progress; `heartbeatd pause` keeps it from being taken up")
    if running.cancel(run) or is_closed_within(PATIENCE, where, run):
        click.echo(f"run {run} is cancelled")
    else:
        click.echo(f"run {run} is being ended; `heartbeatd show {run}` says when it is")

"""`pause` and `resume`: let an entry, or all of them, rest for a while."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import click

from scheduler.cli import arguments, options
from scheduler.cli.arguments import Span
from scheduler.cli.daemon_client import Door, open_door
from scheduler.cli.options import Mistake
from scheduler.cli.output import called, local, utc_now, zone_name
from scheduler.model.entry import Key


@click.command()
@click.argument("name", required=False)
@click.option("--all", "everything", is_flag=True, help="Every agent and job.")
@click.option("--for", "span", type=Span(), help="Resume by itself after this time, as in 2h.")
@options.config
def pause(name: str | None, everything: bool, span: timedelta | None, path: Path) -> None:
    """Pause an agent or a job, for a time or until resumed.

    Its slots meanwhile become one row with their number; what runs already goes on.
    """
    key, door = _open(name, everything, path)
    door.pause(key, span)
    until = f"until {local(utc_now() + span)} {zone_name()}" if span else "until resumed"
    click.echo(f"{called(*key) if key else 'all agents and jobs'} paused {until}")


@click.command()
@click.argument("name", required=False)
@click.option("--all", "everything", is_flag=True, help="Every agent and job.")
@options.config
def resume(name: str | None, everything: bool, path: Path) -> None:
    """Resume what was paused."""
    key, door = _open(name, everything, path)
    resumed = door.resume(key)
    for each in sorted(resumed):
        click.echo(f"{each} resumed")
    if not resumed:
        click.echo(f"{called(*key)} was not paused" if key else "nothing was paused")


def _open(name: str | None, everything: bool, path: Path) -> tuple[Key | None, Door]:
    if (name is None) != everything:
        raise Mistake("name an agent or a job, or say --all")
    door = open_door(path)
    return (arguments.choose(name, door.knows, door.entries) if name else None), door

"""The commands `pause` and `resume`: pause and resume one entry or all entries."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import click

from heartbeatd.verbs import Pause, Resume
from scheduler.cli import arguments, options
from scheduler.cli.arguments import DurationParam
from scheduler.cli.daemon_client import DaemonClient, open_client
from scheduler.cli.options import InputError
from scheduler.cli.output import entry_label, format_time, utc_now, zone_name
from scheduler.model.entry import Key


@click.command()
@click.argument("name", required=False, shell_complete=arguments.complete_names())
@click.option("--all", "everything", is_flag=True, help="All agents and jobs.")
@click.option("--for", "span", type=DurationParam(), help="Resume automatically after this time, for example 2h.")
@options.config_option
def pause(name: str | None, everything: bool, span: timedelta | None, path: Path) -> None:
    """Pause an agent or a job until it is resumed, or for a given time.

    Runs that fall due during the pause are recorded as one skipped run with a count. Runs in progress continue.
    """
    key, client = _open_client(name, everything, path)
    client.perform(Pause.of(for_=span), key)
    until = f"until {format_time(utc_now() + span)} {zone_name()}" if span else "until resumed"
    click.echo(f"{entry_label(*key) if key else 'all agents and jobs'} paused {until}")


@click.command()
@click.argument("name", required=False, shell_complete=arguments.complete_names())
@click.option("--all", "everything", is_flag=True, help="All agents and jobs.")
@options.config_option
def resume(name: str | None, everything: bool, path: Path) -> None:
    """Resume a paused agent or job."""
    key, client = _open_client(name, everything, path)
    resumed = client.perform(Resume(), key).resumed
    for each in sorted(resumed):
        click.echo(f"{each} resumed")
    if not resumed:
        click.echo(f"{entry_label(*key)} was not paused" if key else "nothing was paused")


def _open_client(name: str | None, everything: bool, path: Path) -> tuple[Key | None, DaemonClient]:
    if (name is None) != everything:
        raise InputError("name an agent or a job, or use --all")
    client = open_client(path)
    return (arguments.resolve_entry(name, client.has_entry, client.list_entries) if name else None), client

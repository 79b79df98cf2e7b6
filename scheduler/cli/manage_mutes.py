"""The commands `mute`, `unmute`, `ack` and `unack`: suppress the messages of an entry, or of one open condition."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from heartbeat.words import format_count
from heartbeatd.verbs import Ack, Mute, Unack, Unmute
from scheduler.cli import arguments, options
from scheduler.cli.arguments import DurationParam
from scheduler.cli.daemon_client import open_client
from scheduler.cli.options import InputError
from scheduler.cli.output import entry_label, format_time, utc_now, zone_name
from scheduler.model.outcome import Kind
from scheduler.store.database import parse_row_id


@click.command()
@click.argument("name", shell_complete=arguments.complete_names())
@click.option("--for", "span", type=DurationParam(), help="Unmute automatically after this time, for example 2h.")
@click.option(
    "--until-changed",
    is_flag=True,
    help="Unmute when a condition opens, gets worse or ends, when a message has a new text, or when a failure begins, changes or"
    " ends.",
)
@options.config_option
def mute(name: str, span: timedelta | None, until_changed: bool, path: Path) -> None:
    """Suppress the messages of an agent or a job. Its runs continue.

    Suppressed messages are recorded, but not sent later. After the mute, the next run reports open conditions that have not been
    reported yet, the end of reported conditions, and a failure that is not over.
    """
    client = open_client(path)
    key = arguments.resolve_entry(name, client.has_entry, client.list_entries)
    client.perform(Mute.of(for_=span, until_changed=until_changed), key)
    ends = [f"until {format_time(utc_now() + span)} {zone_name()}"] if span else []
    ends += ["until something changes"] if until_changed else []
    click.echo(f"{entry_label(*key)} muted {' or '.join(ends) or 'until unmuted'}")


@click.command()
@click.argument("name", shell_complete=arguments.complete_names())
@options.config_option
def unmute(name: str, path: Path) -> None:
    """Stop suppressing the messages of an agent or job.

    The next run reports open conditions that have not been reported yet, the end of reported conditions, and a failure that is
    not over.
    """
    client = open_client(path)
    key = arguments.resolve_entry(name, client.has_entry, client.list_entries)
    found = client.perform(Unmute(), key)
    if not found.was_muted:
        click.echo(f"{entry_label(*key)} was not muted")
    else:
        click.echo(f"{entry_label(*key)} unmuted; messages of {format_count(found.held, 'run')} were suppressed")


@click.command()
@click.argument("name", metavar="AGENT|RUN", shell_complete=arguments.complete_names("agent"))
@click.argument("key", required=False)
@options.config_option
def ack(name: str, key: str | None, path: Path) -> None:
    """Suppress the messages about an open condition until it gets worse or ends.

    Give the agent and the key of the condition, or the number of a run to acknowledge all open conditions that it reported.
    Case and blanks in KEY are ignored.
    """
    found = open_client(path).perform(Ack(**_chosen_conditions(name, key)))
    click.echo(f"{_name_conditions(found.keys)} of agent/{found.agent}: no messages until worse or over")


@click.command()
@click.argument("name", metavar="AGENT|RUN", shell_complete=arguments.complete_names("agent"))
@click.argument("key", required=False)
@options.config_option
def unack(name: str, key: str | None, path: Path) -> None:
    """Remove the acknowledgement of a condition.

    Give the agent and the key of the condition, or the number of a run for all open conditions that it reported. From the next
    run on, reminders are sent again.
    """
    found = open_client(path).perform(Unack(**_chosen_conditions(name, key)))
    if found.keys:
        click.echo(f"{_name_conditions(found.keys)} of agent/{found.agent}: acknowledgement removed")
    else:
        click.echo(
            f"{f'the condition {key}' if key else f'no condition of run {name}'} of agent/{found.agent} was"
            f"{' not' if key else ''} acknowledged"
        )


def _chosen_conditions(name: str, key: str | None) -> dict[str, Any]:
    """The fields that say which conditions: agent and key, or the number of a run. Raises InputError."""
    if key is not None:
        return {"agent": arguments.name_of_kind(Kind.HEARTBEAT, name, "only agents have conditions"), "key": key}
    run_id = parse_row_id(name)
    if not run_id:
        raise InputError("give an agent and the key of a condition, or the number of a run; `heartbeatd conditions` lists them")
    return {"run": run_id}


def _name_conditions(keys: list[str]) -> str:
    return f"the condition{'' if len(keys) == 1 else 's'} {', '.join(keys)}"

"""The command `outbox`: lists undelivered messages, sends them again, or drops them."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click

from heartbeat.words import abbreviate_duration
from heartbeatd.answers import QueuedMessage
from heartbeatd.verbs import Drop, Retry
from scheduler.cli import daemon_files, options
from scheduler.cli.arguments import NumberParam
from scheduler.cli.daemon_client import open_client
from scheduler.cli.options import InputError
from scheduler.cli.output import (
    entry_label,
    format_detailed_table,
    format_hold,
    format_short_time,
    utc_now,
    zone_name,
)
from scheduler.engine.inbox import Refused
from scheduler.store.outbox import MOVABLE, list_messages

COLUMNS = ("ID", "AGE", "NAME", "CHANNEL", "STATE", "TRIES", "NEXT TRY", "RUN")


@click.group(invoke_without_command=True)
@click.option("--limit", type=click.IntRange(1, 100_000), default=20, show_default=True, help="Maximum number of messages.")
@options.config_option
@options.state_option
@options.format_option
@click.pass_context
def outbox(ctx: click.Context, limit: int, path: Path, state: Path | None, form: str) -> None:
    """List undelivered messages, send them again, or drop them.

    Pending and held messages are listed first, then dead letters (messages that could not be delivered). A message may
    be held if it is unknown whether it arrived (`heartbeatd docs guarantees` gives the rules). A held message is not sent again
    automatically.
    """
    if ctx.invoked_subcommand is not None:
        return
    found = _unfinished_messages(path, state)
    if form == "json":
        click.echo(json.dumps([each.as_data() for each in found[:limit]], indent=2))
    elif found:
        click.echo(_messages_table(found[:limit], utc_now()))
        click.echo(f"times in {zone_name()}" + (f"; {len(found) - limit} more with --limit" if len(found) > limit else ""))
    else:
        click.echo("there are no undelivered messages")


def _message_arguments(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the arguments `ids` (ID...) and `everything` (--all) to a command."""
    command = click.argument("ids", metavar="[ID]...", type=NumberParam(), nargs=-1)(command)
    return click.option("--all", "everything", is_flag=True, help="All undelivered messages.")(command)


@outbox.command(short_help="Send messages again now.")
@_message_arguments
@options.config_option
def retry(ids: tuple[int, ...], everything: bool, path: Path) -> int:
    """Send messages again now, including held messages and dead letters.

    Each message keeps its idempotency key. If the daemon is down, the messages are sent at its next start.
    """
    return _request_each(_choose_messages(ids, everything, path), path, Retry(), "will be sent again")


@outbox.command(short_help="Drop messages without sending them.")
@_message_arguments
@options.config_option
def drop(ids: tuple[int, ...], everything: bool, path: Path) -> int:
    """Drop messages without sending them. `heartbeatd show RUN` still shows their text."""
    return _request_each(_choose_messages(ids, everything, path), path, Drop(), "is dropped")


def _unfinished_messages(path: Path, state: Path | None = None) -> list[QueuedMessage]:
    with daemon_files.open_for_reading(daemon_files.locate_files_or_warn(path, state)) as db:
        return list(list_messages(db)) if db else []


def _choose_messages(ids: tuple[int, ...], everything: bool, path: Path) -> tuple[int, ...]:
    if bool(ids) == everything:
        raise InputError("name messages by their ID, or use --all; `heartbeatd outbox` lists them")
    if not everything:
        return ids
    return tuple(each.id for each in _unfinished_messages(path) if each.state in MOVABLE)


def _request_each(ids: tuple[int, ...], path: Path, verb: Retry | Drop, result: str) -> int:
    """Make the request for each message. An error is printed, and the next message follows."""
    client = open_client(path)
    refused = 0
    for message_id in ids:
        try:
            client.perform(verb, message_id)
        except Refused as refusal:
            click.echo(f"heartbeatd: {refusal}", err=True)
            refused += 1
        else:
            click.echo(f"message {message_id} {result}")
    if not ids:
        click.echo("there is nothing to do")
    return int(refused > 0)


def _messages_table(found: list[QueuedMessage], now: datetime) -> str:
    """A table of the messages. Below each row are its last error and the beginning of its text."""
    return format_detailed_table(COLUMNS, [(_message_row(each, now), _detail_lines(each)) for each in found])


def _message_row(each: QueuedMessage, now: datetime) -> list[str]:
    part = f" {each.part}/{each.parts}" if each.parts > 1 else ""
    return [
        f"{each.id}{part}",
        _format_age(each.created_at, now),
        entry_label(each.kind, each.name),
        each.channel,
        each.state,
        str(each.attempts),
        format_short_time(each.next_try_at, now),
        str(each.run),
    ]


def _format_age(created_at: datetime, now: datetime) -> str:
    return abbreviate_duration(max(timedelta(), now - created_at))


def _detail_lines(each: QueuedMessage) -> list[str]:
    words = f"“{each.begins.strip()}”"
    held = format_hold(each.held_back_for) if each.held_back_for else None
    return [line for line in (held, each.error, words) if line]

"""Lists undelivered messages."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path

import click

from heartbeat.words import abbreviate_duration
from heartbeatd.answers import QueuedMessage
from scheduler.cli import daemon_files
from scheduler.cli.output import (
    entry_label,
    format_detailed_table,
    format_hold,
    format_short_time,
    utc_now,
    zone_name,
)
from scheduler.store.outbox import list_messages

COLUMNS = ("ID", "AGE", "NAME", "CHANNEL", "STATE", "TRIES", "NEXT TRY", "RUN")


def print_messages(limit: int, path: Path, state: Path | None, form: str) -> None:
    """Print the messages that are not delivered."""
    with daemon_files.open_for_reading(daemon_files.locate_files_or_warn(path, state)) as db:
        found = list(list_messages(db)) if db else []
    if form == "json":
        click.echo(json.dumps([each.as_data() for each in found[:limit]], indent=2))
    elif found:
        click.echo(_messages_table(found[:limit], utc_now()))
        click.echo(f"times in {zone_name()}" + (f"; {len(found) - limit} more with --limit" if len(found) > limit else ""))
    else:
        click.echo("there are no undelivered messages")


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

"""`outbox`: which messages have not arrived and why, and what to do with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click

from scheduler.cli import daemon_state, options
from scheduler.cli.arguments import Number
from scheduler.cli.daemon_client import Door, open_door
from scheduler.cli.options import Mistake
from scheduler.cli.output import called, line, rough, short, table, utc_now, zone_name
from scheduler.engine.inbox import Refused
from scheduler.store.outbox_view import MOVABLE, listed

HEAD = ("ID", "AGE", "NAME", "CHANNEL", "STATE", "TRIES", "NEXT TRY", "RUN")
INDENT = "    "

Move = Callable[[Door, int], None]


@click.group(invoke_without_command=True)
@click.option("--limit", type=click.IntRange(1, 100_000), default=20, show_default=True, help="At most so many.")
@options.config
@options.state
@options.form
@click.pass_context
def outbox(ctx: click.Context, limit: int, path: Path, state: Path | None, form: str) -> None:
    """List the messages that have not arrived; send them again, or drop them.

    Those on their way or held come first, then those that were given up.
    """
    if ctx.invoked_subcommand is not None:
        return
    found = _listed(path, state)
    if form == "json":
        click.echo(json.dumps(found[:limit], indent=2))
    elif found:
        click.echo(_told(found[:limit], utc_now()))
        click.echo(f"times in {zone_name()}" + (f"; {len(found) - limit} more with --limit" if len(found) > limit else ""))
    else:
        click.echo("nothing waits to be sent, and nothing was given up")


def _moving(command: Callable[..., Any]) -> Callable[..., Any]:
    """ID... or --all, as `ids` and `everything`."""
    command = click.argument("ids", metavar="[ID]...", type=Number(), nargs=-1)(command)
    return click.option("--all", "everything", is_flag=True, help="Every message that waits, is held or was given up.")(command)


@outbox.command(short_help="Send messages again now.")
@_moving
@options.config
def retry(ids: tuple[int, ...], everything: bool, path: Path) -> int:
    """Send messages again now, also those that were given up or are held; each keeps its key.

    With the daemon down they go out at its next start.
    """
    return _move(_chosen(ids, everything, path), path, lambda door, message_id: door.send_again(message_id), "will be sent again")


@outbox.command(short_help="Give messages up for good.")
@_moving
@options.config
def drop(ids: tuple[int, ...], everything: bool, path: Path) -> int:
    """Give messages up for good; `heartbeatd show RUN` still has their text."""
    return _move(_chosen(ids, everything, path), path, lambda door, message_id: door.drop(message_id), "is dropped")


def _listed(path: Path, state: Path | None = None) -> list[dict[str, Any]]:
    with daemon_state.reading(daemon_state.looked_at(path, state)) as db:
        return list(listed(db)) if db else []


def _chosen(ids: tuple[int, ...], everything: bool, path: Path) -> tuple[int, ...]:
    if bool(ids) == everything:
        raise Mistake("name messages by their ID, or say --all; `heartbeatd outbox` lists them")
    if not everything:
        return ids
    return tuple(each["id"] for each in _listed(path) if each["state"] in MOVABLE)


def _move(ids: tuple[int, ...], path: Path, move: Move, told: str) -> int:
    """Move each message; one that cannot be moved is told of and keeps no other from it."""
    door = open_door(path)
    refused = 0
    for message_id in ids:
        try:
            move(door, message_id)
        except Refused as refusal:
            click.echo(f"heartbeatd: {refusal}", err=True)
            refused += 1
        else:
            click.echo(f"message {message_id} {told}")
    if not ids:
        click.echo("there is nothing to do")
    return int(refused > 0)


def _told(found: list[dict[str, Any]], now: datetime) -> str:
    """The table, and below each message what kept it and how it begins."""
    head, *rows = table(HEAD, [_row(each, now) for each in found]).splitlines()
    lines = [head]
    for row, each in zip(rows, found, strict=True):
        lines += [row, *(INDENT + line(text, 80 - len(INDENT)) for text in _below(each))]
    return "\n".join(lines)


def _row(each: dict[str, Any], now: datetime) -> list[str]:
    part = f" {each['part']}/{each['parts']}" if each["parts"] > 1 else ""
    return [
        f"{each['id']}{part}",
        _age(each["created_at"], now),
        called(each["kind"], each["name"]),
        each["channel"],
        each["state"],
        str(each["attempts"]),
        short(each["next_try_at"], now),
        str(each["run"]),
    ]


def _age(created_at: str, now: datetime) -> str:
    return rough(max(timedelta(), now - datetime.fromisoformat(created_at)))


def _below(each: dict[str, Any]) -> list[str]:
    words = f"“{each['begins'].strip()}”"
    return [each["error"], words] if each["error"] else [words]

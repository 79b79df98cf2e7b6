"""The command `reshard`: moves agents and jobs to the database of their shard, after a change of the config."""

from __future__ import annotations

import os
import secrets
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

import click

from scheduler.cli import options
from scheduler.cli.output import utc_now
from scheduler.cli.progress import show_progress
from scheduler.config.settings import load
from scheduler.engine import shard_moves
from scheduler.model.outcome import Kind
from scheduler.store import shard_tables, transfer
from scheduler.store.database import Store
from scheduler.store.locations import open_for_writing
from scheduler.system.state_lock import StateLock, make_state_folder

MAX_LISTED = 20  # moves that are printed


@click.command()
@options.config_option
def reshard(path: Path) -> None:
    """Move agents and jobs to the database of their shard, after a change of the config.

    Run it after you have added, changed or removed `shard` in the config. First stop the daemons of all shards. If workers
    execute the runs, also run `heartbeatd run --drain` for each shard with the old config. All databases must be on one server,
    or in one folder. History, waiting wakes and undelivered messages are moved too. If the command is interrupted, run it again.
    """
    settings = load.load_config(path, os.environ, resolve_secrets=False).settings
    base = settings.database if settings.shard is None else settings.shard.database
    known = shard_tables.find_databases(base)
    with ExitStack() as held:
        stores = {index: _open_alone(database, held) for index, database in known.items()}
        moves = shard_moves.plan_moves(known, settings)
        live: list[int | None] = [None] if settings.shard is None else list(range(settings.shard.of))
        for index in live if moves else ():
            if index not in stores:
                place = base if index is None or settings.shard is None else settings.shard.database_of(index)
                stores[index] = _open_alone(place, held)
        groups: defaultdict[tuple[int | None, int | None], list[tuple[Kind, str]]] = defaultdict(list)
        for key, before, after in moves:
            groups[before, after].append(key)
        with show_progress("moving"):
            for (before, _), keys in groups.items():
                transfer.check_no_open_runs(stores[before], keys)
            if moves:
                transfer.reserve_ids_before_move([stores[index] for index in live], stores.values())
            for (before, after), keys in groups.items():
                transfer.move_entries(stores[before], stores[after], keys)
    for (kind, name), before, after in moves[:MAX_LISTED]:
        click.echo(f"{kind.label_of(name)}: {shard_moves.describe_shard(before)} -> {shard_moves.describe_shard(after)}")
    if len(moves) > MAX_LISTED:
        click.echo(f"and {len(moves) - MAX_LISTED} more")
    click.echo(f"moved the rows of {len(moves)} entries; the daemons can be started" if moves else "there is nothing to move")


def _open_alone(database: Path | str, held: ExitStack) -> Store:
    """Open a database that no daemon may use until the command ends. Raises AlreadyRunning, or DatabaseUnavailable."""
    if isinstance(database, Path):
        make_state_folder(database.parent)
        lock = database.with_name(database.name + ".lock")
        held.enter_context(StateLock.take(lock, started_at=utc_now(), instance=secrets.token_hex(8)))
    store = open_for_writing(database)
    held.callback(store.close)
    if isinstance(database, str):
        from scheduler.store.leadership import lead_for_a_command

        lease = lead_for_a_command(database, f"reshard-{secrets.token_hex(4)}", "heartbeatd reshard")
        held.callback(lease.stop)
        store.epoch = lease.epoch
    return store

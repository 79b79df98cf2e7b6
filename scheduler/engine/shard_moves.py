"""Finds agents and jobs whose rows are in the database of another shard, so that no two daemons run the same agent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from scheduler.model.outcome import Kind
from scheduler.model.settings import Settings
from scheduler.model.shards import Shard
from scheduler.store import shard_tables
from scheduler.store.database import StoreError

MAX_NAMED = 3  # agents and jobs in one message
ADVICE = "undo the change, or stop the daemons of all shards and run `heartbeatd reshard`"

Move = tuple[tuple[Kind, str], int | None, int | None]
"""An agent or job, its shard so far, and its shard according to the config; None without shards."""


def check_tables(settings: Settings) -> None:
    """Raise StoreError if an agent or job of the config has rows in the database of another shard.

    All databases that can be reached are compared: those on the same server, or in the same folder.
    """
    shard = settings.shard
    found = shard_tables.find_databases(settings.database if shard is None else shard.database)
    if shard is None and not found.keys() - {None}:
        return
    moves = list(_find_moves(found, settings))
    if moves:
        raise StoreError(f"{_describe_moves(moves)}; {ADVICE}")


def _find_moves(databases: Mapping[int | None, Path | str], settings: Settings) -> Iterator[Move]:
    planned = _planned_shards(settings)
    for index, database in databases.items():
        for key in shard_tables.read_entries(database):
            if key in planned and planned[key] != index:
                yield key, index, planned[key]


def plan_moves(databases: Mapping[int | None, Path | str], settings: Settings) -> list[Move]:
    """The agents and jobs whose rows must be moved to the database of another shard.

    They include all that are left in a shard that does not exist any more, also those that are not in the config. An
    agent with no rows in its own shard, and with rows that are marked as removed in another one, is moved too. A daemon or a
    command with another config has marked them.
    """
    shard, planned = settings.shard, _planned_shards(settings)
    moves = list(_find_moves(databases, settings))
    is_left = {index: (index is not None) if shard is None else (index is None or index >= shard.of) for index in databases}
    present = {index: set(shard_tables.read_entries(database, removed=True)) for index, database in databases.items()}
    known = {(key, index) for key, index, _ in moves}
    settled = {key for key, _, _ in moves} | {key for key, index in planned.items() if key in present.get(index, ())}
    for index, keys in present.items():
        for key in sorted(keys):
            is_lost = key in planned and key not in settled
            if (is_left[index] or is_lost) and (key, index) not in known:
                moves.append((key, index, planned.get(key, None if shard is None else 0)))
    return moves


def _planned_shards(settings: Settings) -> Mapping[tuple[Kind, str], int | None]:
    if settings.shard is not None:
        return settings.shard.shard_of
    return dict.fromkeys(
        [*((Kind.HEARTBEAT, name) for name in settings.heartbeats), *((Kind.CRON, name) for name in settings.jobs)]
    )


def find_reload_problem(old: Settings, new: Settings) -> str | None:
    """Why a running daemon cannot apply a config: it would move agents or jobs to another shard. None if it can."""
    before, after = old.shard, new.shard
    if _layout(before) != _layout(after):
        return "the number of shards cannot change while the daemons run; stop all of them, and run `heartbeatd reshard`"
    if before is None or after is None:
        return None
    moves: list[Move] = [
        (key, index, after.shard_of[key]) for key, index in before.shard_of.items() if after.shard_of.get(key, index) != index
    ]
    return f"{_describe_moves(moves)}, because a job wakes or calls several agents; {ADVICE}" if moves else None


def _layout(shard: Shard | None) -> tuple[int | None, int] | None:
    return None if shard is None else (shard.index, shard.of)


def _describe_moves(moves: list[Move]) -> str:
    """The agents and jobs that have changed their shard, in one clause."""
    named = ", ".join(
        f"{key[0].label_of(key[1])} from {describe_shard(before)} to {describe_shard(after)}"
        for key, before, after in moves[:MAX_NAMED]
    )
    more = len(moves) - MAX_NAMED
    return f"the config moves {named}" + (f", and {more} more" if more > 0 else "")


def describe_shard(index: int | None) -> str:
    return "the database without shards" if index is None else f"shard {index}"

"""Finds the databases of all shards of one config, and the agents and jobs in each."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

from scheduler.model.outcome import Kind
from scheduler.model.state_address import schema_of, shard_address
from scheduler.store.locations import open_read_only_any_version


def find_databases(database: Path | str) -> dict[int | None, Path | str]:
    """The databases beside the one that `state` names, by shard, as far as they exist; with None, the one without shards.

    Raises StoreError if the server cannot be reached.
    """
    if isinstance(database, str):
        return _find_schemas(database)
    found: dict[int | None, Path | str] = {None: database} if database.exists() and database.stat().st_size else {}
    pattern = re.compile(re.escape(database.stem) + r"-shard-(\d{1,3})" + re.escape(database.suffix))
    for path in sorted(database.parent.iterdir()) if database.parent.is_dir() else ():
        if (named := pattern.fullmatch(path.name)) and path.stat().st_size:
            found[int(named[1])] = path
    return found


def _find_schemas(url: str) -> dict[int | None, Path | str]:
    from scheduler.store.postgresql import schemas_with_tables

    own = schema_of(url)
    found: dict[int | None, Path | str] = {}
    for schema in schemas_with_tables(url):
        if schema == own:
            found[None] = url
        elif (named := re.fullmatch(re.escape(own) + r"_shard_(\d{1,3})", schema)) is not None:
            found[int(named[1])] = shard_address(url, int(named[1]))
    return found


def read_entries(database: Path | str, *, removed: bool = False) -> list[tuple[Kind, str]]:
    """The agents and jobs in a database. `removed`: also those that are no longer in the config. Raises StoreError."""
    with closing(open_read_only_any_version(database)) as db:
        rows = db.execute("select kind, name from entry where state <> ?", ("" if removed else "removed",))
        return [(Kind(row["kind"]), row["name"]) for row in rows]

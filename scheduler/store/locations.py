"""Opens the database where it is: in a file, or on a PostgreSQL server, whose driver is imported only then."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import cast

from scheduler.store import database
from scheduler.store.database import Store


def open_for_writing(where: Path | str, *, is_patient: bool = False) -> Store:
    """Open or create the database at a path, or at the address of a server, and apply missing migrations.

    Raises StoreError, and DatabaseUnavailable if the server is down. If the caller `is_patient`, the store is then returned
    without a connection, and `Store.connect` tries again.
    """
    if isinstance(where, Path):
        return Store.open(where)
    from scheduler.store.postgresql import ServerStore

    return ServerStore.open_server(where, is_patient=is_patient)


def open_read_only(where: Path | str) -> sqlite3.Connection:
    """A connection that only reads. Raises StoreError if there is nothing to read."""
    if isinstance(where, Path):
        return database.open_read_only(where)
    from scheduler.store.postgresql import open_server_read_only

    return open_server_read_only(where)


def open_server_for_command(url: str) -> sqlite3.Connection:
    """A connection to a server, for a command that writes single rows while the daemon runs. Raises sqlite3.Error."""
    from scheduler.store.postgresql import WRITER_SETTINGS, ServerConnection

    return cast("sqlite3.Connection", ServerConnection(url, WRITER_SETTINGS))


def open_read_only_any_version(where: Path | str) -> sqlite3.Connection:
    """Like `open_read_only`, but also reads an older schema of a file. Raises StoreError."""
    return database.open_read_only_any_version(where) if isinstance(where, Path) else open_read_only(where)

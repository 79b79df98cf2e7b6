"""Opens the database where it is: in a file, or on a server, for which an extra is loaded."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from scheduler.store import database
from scheduler.store.database import Store
from scheduler.system import extras

if TYPE_CHECKING:  # it imports asyncio, which commands that only read do not need
    from scheduler.system.boot_clock import BootClock


class Lease(Protocol):
    """The permission to lead the daemons that share a database. `epoch` increases with each daemon that leads."""

    epoch: int | None

    def stop(self) -> None:
        """Let another daemon lead at once."""


class ServerStores(Protocol):
    """The module that an entry point in `heartbeatd.stores` names. The name is the scheme of the addresses."""

    def open_for_writing(self, url: str, *, is_patient: bool) -> Store: ...

    def open_read_only(self, url: str) -> sqlite3.Connection: ...

    def lead_for_a_command(self, url: str, holder: str, clock: BootClock) -> Lease:
        """The lease for a command that needs the database for itself. Raises DatabaseUnavailable if a daemon leads."""


def server_stores() -> ServerStores:
    """The extra for databases on a PostgreSQL server. Raises UnusableExtra."""
    return cast("ServerStores", extras.load("stores", "postgresql"))


def open_for_writing(where: Path | str, *, is_patient: bool = False) -> Store:
    """Open or create the database at a path, or at the address of a server, and apply missing migrations.

    Raises StoreError, and DatabaseUnavailable if the server is down. If the caller `is_patient`, the store is then returned
    without a connection, and `Store.connect` tries again.
    """
    return Store.open(where) if isinstance(where, Path) else server_stores().open_for_writing(where, is_patient=is_patient)


def open_read_only(where: Path | str) -> sqlite3.Connection:
    """A connection that only reads. Raises StoreError if there is nothing to read."""
    return database.open_read_only(where) if isinstance(where, Path) else server_stores().open_read_only(where)


def open_read_only_any_version(where: Path | str) -> sqlite3.Connection:
    """Like `open_read_only`, but also reads an older schema of a file. Raises StoreError."""
    return database.open_read_only_any_version(where) if isinstance(where, Path) else open_read_only(where)

"""The way to whoever may write: the daemon if it runs, else the database."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import click

from scheduler.cli import reach
from scheduler.cli.offline import Offline
from scheduler.cli.online import Online
from scheduler.cli.reach import Place, Up
from scheduler.model.entry import Key

PATIENCE = 3.0  # seconds that a daemon may take from its lock to its address
PAUSE = 0.05


class Door(Protocol):
    """What can be asked for, up or down."""

    def knows(self, key: Key) -> bool:
        """Whether such an entry is declared."""
        ...

    def entries(self) -> Iterable[Key]:
        """Every entry that is declared."""
        ...

    def wake(self, name: str, text: str) -> int:
        """Wake an agent; gives the wake's id."""
        ...

    def run_job(self, name: str) -> int:
        """Run a job; gives the id under which its run can be followed."""
        ...

    def pause(self, key: Key | None, span: timedelta | None) -> None:
        """Pause one entry, or all (`key` None), for a time or until resumed."""
        ...

    def resume(self, key: Key | None) -> list[str]:
        """Resume one entry or all; the names of those that were paused."""
        ...

    def send_again(self, message_id: int) -> None:
        """Have a message of the outbox sent as soon as possible."""
        ...

    def drop(self, message_id: int) -> None:
        """Give a message of the outbox up for good."""
        ...


def open_door(path: Path) -> Door:
    """The daemon of the config at `path` where it runs, else its database; the config must be valid only for the latter."""
    return daemon(reach.place(path)) or Offline(path)


def daemon(where: Place, patience: float = PATIENCE) -> Online | None:
    """The running daemon; None if there is none. One that holds the lock is given a moment to open its door."""
    deadline = time.monotonic() + patience
    while up := reach.running(where):
        found = Online.find(where, up)
        if found or time.monotonic() >= deadline:
            return found or _silent(where, up)
        time.sleep(PAUSE)
    return None


def _silent(where: Place, up: Up) -> Online:
    who = f"pid {up.pid}" if up.pid else "somebody"
    raise click.ClickException(
        f"{who} holds {where.lock} and cannot be reached (address in {where.address}); is it just starting or stopping?"
    )

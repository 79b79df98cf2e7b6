"""What runs once: the moments that have been seen, by the hash of what says when."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from hashlib import sha256
from pathlib import Path

from scheduler.model import schedule
from scheduler.model.timestamps import millis
from scheduler.store.database import StoreError, reader
from scheduler.store.transaction import Transaction


def see(tx: Transaction, name: str, pace_text: str) -> bool:
    """Remember the moment of a job for ever; whether it is new."""
    row = tx.db.execute(
        "insert into once (hash, seen_at) values (?, ?) on conflict do nothing returning hash",
        (_hash(name, pace_text), millis(tx.now)),
    ).fetchone()
    return row is not None


def knows(state: Path, name: str, pace_text: str) -> bool:
    """Whether the database at `state` has seen a job's moment; one that is absent has not, one that cannot be read may."""
    if not state.exists():
        return False
    try:
        with closing(reader(state)) as db:
            query = "select 1 from once where hash = ?"
            return db.execute(query, (_hash(name, pace_text),)).fetchone() is not None
    except (StoreError, sqlite3.Error):
        return True


def _hash(name: str, pace_text: str) -> str:
    said = schedule.parts(pace_text)
    return sha256(json.dumps([name, said["at"], said["zone"]]).encode()).hexdigest()

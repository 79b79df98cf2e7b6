"""Keeps a copy of the active config, and a record of each reload with what it changed. Neither contains secrets."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from scheduler.model.config_changes import ConfigEvent, Override, RecordedConfigEvent, StoredConfig, Undo, diff_from_data
from scheduler.model.timestamps import from_millis, to_millis
from scheduler.store.rows import insert_row, replace_row
from scheduler.store.transaction import Transaction

MAX_PROBLEM = 4_000  # characters of the errors of a refused config


def record_config_in_force(tx: Transaction, stored: StoredConfig) -> None:
    """Replace the copy of the active config. The time stays the same if the config is the same."""
    before = config_in_force(tx.db)
    row = {
        "at": before[1] if before and before[0].hash == stored.hash else tx.now,
        "path": str(stored.path),
        "hash": stored.hash,
        "mode": stored.mode,
        "overrides": [each.variable for each in stored.overrides],
        "snapshot": stored.snapshot,
        "zone": stored.zone,
        "overridden": stored.overrides,
    }
    replace_row(tx.db, "config_in_force", {"id": 1}, row)


def config_in_force(db: sqlite3.Connection) -> tuple[StoredConfig, datetime] | None:
    """The active config, or the last one if no daemon runs, and when it became active; None before the first start."""
    row = db.execute("select * from config_in_force").fetchone()
    if row is None:
        return None
    overrides = tuple(Override(*values) for values in json.loads(row["overridden"] or "[]"))
    stored = StoredConfig(Path(row["path"]), row["hash"], row["mode"], overrides, row["snapshot"], row["zone"])
    return stored, from_millis(row["at"])


def overrides_in_force(db: sqlite3.Connection) -> tuple[Override, ...]:
    """The environment variables that set values of the active config; none before the first start."""
    found = config_in_force(db)
    return found[0].overrides if found else ()


def record_config_event(tx: Transaction, event: ConfigEvent) -> None:
    """Record a reload, a refused reload, a config that has changed before a start, or an edited checklist."""
    row = {
        "at": tx.now,
        "result": event.result,
        "actor": event.by,
        "config_hash": tx.config_hash,
        "diff": json.dumps(event.diff.as_data()),
        "problem": event.problem and event.problem[:MAX_PROBLEM],
        "undo": event.undo and json.dumps(asdict(event.undo)),
    }
    insert_row(tx.db, "config_event", row)


def config_events(db: sqlite3.Connection, begin: datetime, end: datetime) -> list[RecordedConfigEvent]:
    """The recorded events in [begin, end), the oldest first."""
    rows = db.execute("select * from config_event where at >= ? and at < ? order by id", (to_millis(begin), to_millis(end)))
    return [_event_from_row(row) for row in rows]


def last_config_event(db: sqlite3.Connection) -> RecordedConfigEvent | None:
    """The latest event that is about the config file; None if there is none."""
    row = db.execute("select * from config_event where result <> 'checklist' order by id desc limit 1").fetchone()
    return _event_from_row(row) if row else None


def _event_from_row(row: sqlite3.Row) -> RecordedConfigEvent:
    undo = Undo(**json.loads(row["undo"])) if row["undo"] else None
    event = ConfigEvent(row["result"], row["actor"], diff_from_data(json.loads(row["diff"])), row["problem"], undo)
    return RecordedConfigEvent(row["id"], from_millis(row["at"]), event, row["config_hash"])

"""Waiting for a run to end: the one that takes a wake, with what it said, or one that was cancelled."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from scheduler.cli import reach
from scheduler.cli.reach import Place
from scheduler.cli.table import harmless
from scheduler.tables import past, wakes

PAUSE = 0.1  # seconds between two looks
GOOD = ("ok", "alert", "async")


def mark(path: Path) -> int:
    """The newest run before something is asked: what is asked is done by a newer one."""
    with reach.reading(reach.place(path)) as db:
        newest = past.page(db, limit=1) if db else []
    return int(newest[0]["id"]) if newest else 0


def follow(path: Path, wake_id: int, before: int) -> int:
    """Wait until a run newer than `before` has heard the wake and ended; print it, and give 1 if it failed or was refused."""
    where = reach.place(path)
    while True:
        up = reach.running(where)
        run, over = _look(where, wake_id, before)
        if run is not None:
            return _print(run)
        if over:
            raise click.ClickException(f"wake {wake_id} ended without a run; `heartbeatd status` says what its agent does")
        if up is None:
            raise click.ClickException(f"no daemon runs; wake {wake_id} is kept for its next start")
        time.sleep(PAUSE)


def is_closed_within(seconds: float, where: Place, run_id: int) -> bool:
    """Wait for the end of a run; False if it has not come within that time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with reach.reading(where) as db:
            run = past.one(db, run_id) if db else None
        if run is None or run["state"] == "closed":
            return True
        time.sleep(PAUSE)
    return False


def _look(where: Place, wake_id: int, before: int) -> tuple[dict[str, Any] | None, bool]:
    """The closed run that took the wake, if there is one, and whether none will come any more."""
    with reach.reading(where) as db:
        assert db is not None
        stands = wakes.progress(db, wake_id)
        run_id = (stands or {}).get("run_id") or 0
        run = past.one(db, run_id) if run_id > before else None
    if run is not None:
        return (run if run["state"] == "closed" else None), False
    return None, stands is None or stands["state"] == "ended"


def _print(run: dict[str, Any]) -> int:
    why = run["reason"] or run["suppression"]
    click.echo(f"run {run['id']}: {run['outcome']}" + (f" ({why})" if why else ""))
    for text in (run["text"], run["error"]):
        if text:
            click.echo(harmless(text))
    return 0 if run["outcome"] in GOOD else 1

"""Plays a config in a process of its own, which delays no thread of the daemon, and can be ended.

The process gets a task as JSON on its standard input, and writes the answer as JSON. It only reads the database. Of the config it
gets the copy without secrets that the database keeps.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from scheduler.config.settings.config_snapshot import load_stored
from scheduler.foresight.playback import temporary_folder
from scheduler.foresight.replay import WARM_UP, Past, Replay, replay, settings_of_records
from scheduler.foresight.simulation import Simulation, read_assumptions, read_history, simulate
from scheduler.model.config_changes import StoredConfig
from scheduler.model.expected_error import ExpectedError, InputError
from scheduler.store import entries
from scheduler.store.locations import open_read_only
from scheduler.system.process import MAX_OUTPUT, Children

SEEDS = (1, 2, 3)
SECONDS = 15.0  # of CPU, after which a simulation ends early
LONGEST = 40.0  # seconds after which it ends early on a busy machine
MAX_RUNS = 5000  # of a replay with its warm-up: about as much as can be played in that time
KILLED_AFTER = timedelta(seconds=45)  # before the server closes the connection of a form that has waited for another one
MODULE = "scheduler.foresight.own_process"
INSTALL_FOLDER = Path(__file__).resolve().parents[2]


class NotPlayed(ExpectedError):
    """There is no answer. The message says why."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a process reads, and for whom: the database or the `server` that has it, and the agents to show (None: all)."""

    database: Path
    server: str | None
    now: datetime
    shown: Collection[str] | None


def replay_task(days: int, config: StoredConfig) -> Mapping[str, object]:
    """The last days with another config."""
    return {"replay": {"days": days, "path": str(config.path), "snapshot": base64.b64encode(config.snapshot).decode()}}


async def play(place: Place, task: Mapping[str, object], gone: Callable[[], Awaitable[None]]) -> str:
    """The JSON of a Simulation or a Replay. Ended when `gone` returns. Raises NotPlayed.

    The task is a `replay_task`, or `simulate` with `days`, `answers`, `work`, `faults` and `like_history`: the coming days of the
    active config.
    """
    shown = None if place.shown is None else sorted(place.shown)
    task = {**task, "database": str(place.database), "server": place.server, "now": place.now.isoformat(), "shown": shown}
    path = os.pathsep.join(filter(None, (str(INSTALL_FOLDER), os.environ.get("PYTHONPATH"))))
    children = Children(f"foresight/{os.getpid()}")
    leaving = asyncio.ensure_future(gone())
    playing = asyncio.ensure_future(
        children.start(
            (sys.executable, "-P", "-m", MODULE),
            stdin=json.dumps(task).encode(),
            env={**os.environ, "PYTHONPATH": path},
            cwd=Path("/"),
            keep=MAX_OUTPUT,
            timeout=KILLED_AFTER,
        )
    )
    try:
        await asyncio.wait((playing, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
        if not playing.done():
            children.end_all("cancelled")
    result = await playing
    if result.ended_by == "timeout":
        raise NotPlayed(f"this takes longer than {KILLED_AFTER.seconds} s; use the command")
    if result.exit_code != 0:
        why = result.problem or result.errors.decode(errors="replace").strip().rpartition("\n")[2] or "it was ended"
        raise NotPlayed(f"the process that plays the config failed: {why}")
    found = json.loads(result.output)
    if "problem" in found:
        raise NotPlayed(found["problem"])
    return json.dumps(found["answer"])


# --- in the process -----------------------------------------------------------------------------------------------------------


def main() -> None:
    """Read the task, and write the answer, or why there is none."""
    ends = time.monotonic() + LONGEST
    task = json.load(sys.stdin)
    place = Place(Path(task["database"]), task["server"], datetime.fromisoformat(task["now"]), task["shown"])
    try:
        with temporary_folder() as folder:
            found: Simulation | Replay
            if "simulate" in task:
                is_over = lambda: time.process_time() > SECONDS or time.monotonic() > ends  # noqa: E731
                found = _simulate(place, task["simulate"], folder, is_over)
            else:
                found = _replay(place, task["replay"], folder)
        answer: dict[str, object] = {"answer": found.as_data()}
    except ExpectedError as error:
        answer = {"problem": str(error).removeprefix("--")}
    json.dump(answer, sys.stdout)


def _simulate(place: Place, wish: Mapping[str, Any], folder: Path, is_over: Callable[[], bool]) -> Simulation:
    begin = place.now.replace(microsecond=0)
    with closing(open_read_only(place.server or place.database)) as db:
        settings = settings_of_records(db)
        if settings is None:
            raise InputError("the database has no config of this version; reload the config first")
        recording = read_history(db, place.now, settings) if wish["like_history"] else None
        assumed = read_assumptions(settings, begin, wish["answers"], wish["work"], wish["faults"], recording)
        known = entries.all_entries(db)
    end = begin + timedelta(days=wish["days"])
    return simulate(settings, assumed, begin, end, SEEDS, folder, known, shown=place.shown, is_over=is_over)


def _replay(place: Place, wish: Mapping[str, Any], folder: Path) -> Replay:
    settings = load_stored(StoredConfig(Path(wish["path"]), "", "", (), base64.b64decode(wish["snapshot"]))).settings
    since = place.now - timedelta(days=wish["days"])
    with closing(open_read_only(place.server or place.database)) as db:
        former = settings_of_records(db)
        past = Past.read(db, since - WARM_UP, settings, former)
        if len(past.runs) > MAX_RUNS:  # half of what can be played is the warm-up
            first = sorted(run.slot for run in past.runs)[-MAX_RUNS]
            since = max(since, first + (place.now - first) / 2)
            past = Past.read(db, first, settings, former)
    if not any(run.slot >= since for run in past.runs):
        raise InputError("no run of these days is recorded")
    return replay(past, settings, since, place.now, folder, shown=place.shown)


if __name__ == "__main__":
    main()

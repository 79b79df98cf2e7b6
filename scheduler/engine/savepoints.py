"""Guarded steps: an entry or a request whose own data break our rules stops neither the daemon nor the others."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, TypeVar

from scheduler.engine.inbox import PendingRequest, Refused
from scheduler.engine.tick import Tick
from scheduler.model.outcome import AttemptResult, Failure, Kind, Outcome
from scheduler.store import entries, runs
from scheduler.store.transaction import Transaction
from scheduler.system.log import log_event

T = TypeVar("T")

POSTPONEMENT = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class EntryStep(Generic[T]):
    """What is to be done for one entry in a turn. It may be undone and done anew."""

    kind: Kind
    name: str
    act: Callable[[], T]


def run_step(tick: Tick, part: EntryStep[T]) -> T | None:
    """Do one entry's part of a turn; if it raises, only that part is undone and untold, and the entry is put aside.

    What SQLite raises concerns the whole transaction, and goes through.
    """
    try:
        with _savepoint(tick):
            return part.act()
    except sqlite3.Error:
        raise
    except Exception as error:  # noqa: BLE001 (whatever it is, the other entries are sound)
        _postpone_entry(tick.tx, part.kind, part.name, error)
        return None


def run_steps(tick: Tick, parts: Sequence[EntryStep[T]]) -> list[T | None]:
    """Do the parts of several entries, each as by `step`: as long as none of them raises, one way back is enough for all."""
    try:
        with _savepoint(tick):
            return [_act_and_save(tick.tx, part) for part in parts]
    except sqlite3.Error:
        raise
    except Exception:  # noqa: BLE001 (each for itself then, and whichever it was is told)
        return [run_step(tick, part) for part in parts]


def _act_and_save(tx: Transaction, part: EntryStep[T]) -> T:
    """The rows are written after each step, because the next one may query them."""
    outcome = part.act()
    entries.save_changed_entries(tx)
    return outcome


def apply_request(tick: Tick, asked: PendingRequest) -> None:
    """Do what was asked; if that raises what nobody expected, only that is undone, and whoever asked is told."""
    try:
        with _savepoint(tick):
            asked.apply(tick)
    except sqlite3.Error:
        raise
    except Exception as error:  # noqa: BLE001 (whatever it is, what others asked is sound)
        log_event(logging.ERROR, "request_broken", error=error)
        asked.refuse_with(Refused("broken", "the daemon failed to do this; see its log"))


@contextmanager
def _savepoint(tick: Tick) -> Iterator[None]:
    """A part of the tick that is undone if it raises, and with it a change of the plan."""
    entries.save_changed_entries(tick.tx)  # of what came before; a rollback drops what is not written
    plan = tick.plan
    try:
        with tick.tx.savepoint():
            yield
            entries.save_changed_entries(tick.tx)
    except sqlite3.Error:
        raise
    except Exception:
        tick.adopt_plan(plan)
        raise


def _postpone_entry(tx: Transaction, kind: Kind, name: str, error: Exception) -> None:
    """Look at the entry again in an hour, so that it does not loop; a run of it that was to be booked is closed as it is."""
    log_event(logging.ERROR, "entry_broken", kind=kind, name=name, error=error)
    run = runs.find_open_run(tx.db, kind, name)
    if run is not None and run.state == "running":
        result = AttemptResult(Outcome.ABANDONED, Failure.EXIT, error=f"could not be recorded: {error}")
        runs.close_undeclared_run(tx, kind, name, run, result)
    entry_row = entries.current_entry(tx, kind, name)
    if entry_row is not None:
        entries.change_entry(tx, entry_row, entry_row._replace(due_at=tx.now + POSTPONEMENT))

"""Runs the steps of a tick in savepoints, so that an exception in one entry or request does not affect the others."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
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
    """One entry's part of a tick. It may be rolled back and run again.

    `ending_run` is the id of the run whose result it records. `postpone` is called instead of postponing the entry, if the step
    is about something else that is due.
    """

    kind: Kind
    name: str
    act: Callable[[], T]
    ending_run: int | None = None
    postpone: Callable[[datetime], None] | None = None


def run_step(tick: Tick, part: EntryStep[T]) -> T | None:
    """Run the step of one entry. If it raises, the step and its events are rolled back, and it is postponed by an hour.

    Errors of SQLite concern the whole transaction, so they are raised.
    """
    try:
        with _savepoint(tick):
            return part.act()
    except sqlite3.Error:
        raise
    except Exception as error:  # noqa: BLE001 (any error; the other entries are not affected)
        log_event(logging.ERROR, "entry_broken", kind=part.kind, name=part.name, error=error)
        if part.postpone is not None:
            part.postpone(tick.now + POSTPONEMENT)
        else:
            _postpone_entry(tick.tx, part, error)
        return None


def run_steps(tick: Tick, parts: Sequence[EntryStep[T]]) -> list[T | None]:
    """Run the steps of several entries. They share one savepoint. If a step raises, each runs again by `run_step`."""
    try:
        with _savepoint(tick):
            return [_act_and_save(tick.tx, part) for part in parts]
    except sqlite3.Error:
        raise
    except Exception:  # noqa: BLE001 (run_step logs it)
        return [run_step(tick, part) for part in parts]


def _act_and_save(tx: Transaction, part: EntryStep[T]) -> T:
    """The rows are written after each step, because the next one may query them."""
    outcome = part.act()
    entries.save_changed_entries(tx)
    return outcome


def apply_request(tick: Tick, request: PendingRequest) -> None:
    """Carry out a request. If it raises an unexpected exception, its changes are rolled back, and its sender gets a refusal."""
    try:
        with _savepoint(tick):
            request.apply(tick)
    except sqlite3.Error:
        raise
    except Exception as error:  # noqa: BLE001 (any error; the other requests are not affected)
        log_event(logging.ERROR, "request_broken", error=error)
        request.refuse_with(Refused("broken", "the daemon failed to do this; see its log"))


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


def _postpone_entry(tx: Transaction, part: EntryStep[T], error: Exception) -> None:
    """Postpone the entry, so that it does not fail in every tick. A run whose result cannot be recorded is closed."""
    run = runs.find_open_run(tx.db, part.kind, part.name) if part.ending_run is not None else None
    if run is not None and run.run_id == part.ending_run and run.state == "running":
        result = AttemptResult(Outcome.ABANDONED, Failure.EXIT, error=f"could not be recorded: {error}")
        runs.close_undeclared_run(tx, part.kind, part.name, run, result)
    entry_row = entries.current_entry(tx, part.kind, part.name)
    if entry_row is not None:
        entries.change_entry(tx, entry_row, entry_row._replace(due_at=tx.now + POSTPONEMENT))

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
from scheduler.model.daemon_health import TickPart
from scheduler.model.outcome import AttemptResult, Failure, Kind, Outcome
from scheduler.store import entries, outbox, runs
from scheduler.store.outbox import OutboxMessage
from scheduler.store.transaction import Transaction
from scheduler.system.log import log_event

T = TypeVar("T")
R = TypeVar("R")

POSTPONEMENT = timedelta(hours=1)
PART_PAUSE = timedelta(minutes=5)


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
        tick.internal_errors[TickPart.ENTRY] += 1
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
        tick.internal_errors[TickPart.REQUEST] += 1
        log_event(logging.ERROR, "request_broken", error=error)
        request.refuse_with(Refused("broken", "the daemon failed to do this; see its log"))


class TickParts:
    """Runs the parts of a tick that concern no single entry or request, so that an exception in one does not affect the others.

    A savepoint costs two statements, so there is none until a tick raises. The engine then repeats this tick as `careful`.
    """

    def __init__(self) -> None:
        self._is_careful = False
        self.broken = 0  # parts and messages that have raised
        self._paused: dict[TickPart, datetime] = {}  # until when each part is left out

    @contextmanager
    def careful(self) -> Iterator[None]:
        """Within this, each part has a savepoint."""
        self._is_careful = True
        try:
            yield
        finally:
            self._is_careful = False

    def run(self, tick: Tick, name: TickPart, act: Callable[[], T], otherwise: T) -> T:
        """Run a part of a tick. If it raises, it is rolled back and left out for 5 minutes. `otherwise` is then its answer.

        Errors of SQLite concern the whole transaction, so they are raised.
        """
        if self.is_paused(name, tick.now):
            return otherwise

        def leave_out(error: Exception) -> T:
            tick.internal_errors[name] += 1
            log_event(logging.ERROR, "part_broken", part=name, error=error)
            self._paused[name] = tick.now + PART_PAUSE
            return otherwise

        return self._run_careful(tick, act, leave_out)

    def run_for_message(self, tick: Tick, message: OutboxMessage, act: Callable[[], T]) -> T | None:
        """Run the part of a tick that concerns one message. If it raises, it is rolled back, and the message is given up."""

        def give_up(error: Exception) -> None:
            tick.internal_errors[TickPart.MESSAGE] += 1
            log_event(logging.ERROR, "message_broken", message=message.id, error=error)
            outbox.mark_message_dead(tick.tx, message, f"internal error ({type(error).__name__}); see the log of the daemon")

        return self._run_careful(tick, act, give_up)

    def _run_careful(self, tick: Tick, act: Callable[[], T], on_error: Callable[[Exception], R]) -> T | R:
        if not self._is_careful:
            return act()
        try:
            with _savepoint(tick):
                return act()
        except sqlite3.Error:
            raise
        except Exception as error:  # noqa: BLE001 (any error; the other parts and messages are not affected)
            self.broken += 1
            return on_error(error)

    def is_paused(self, name: TickPart, now: datetime) -> bool:
        """Whether a part is left out now."""
        until = self._paused.get(name)
        return until is not None and until - PART_PAUSE <= now < until  # the clock may have been set back

    def next_end_of_pause(self, now: datetime) -> datetime | None:
        """When the next part is no longer left out. Called once per tick; forgets the pauses that are over."""
        self._paused = {name: until for name, until in self._paused.items() if self.is_paused(name, now)}
        return min(self._paused.values(), default=None)

    @property
    def problem(self) -> str | None:
        """Which parts are left out; None if all of them work."""
        return f"internal error in: {', '.join(self._paused)}; see the log of the daemon" if self._paused else None


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

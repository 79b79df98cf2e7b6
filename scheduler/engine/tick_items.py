"""The values of a tick, the requests to it, and its parts: an error in one entry, request or message does not affect others."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

from scheduler.model.daemon_health import TickPart
from scheduler.model.expected_error import ExpectedError
from scheduler.model.outcome import AttemptResult, Failure, Kind, Outcome
from scheduler.model.settings import Limits, Target
from scheduler.store import entries, outbox, runs, wakes
from scheduler.store.outbox import OutboxMessage
from scheduler.store.transaction import Transaction
from scheduler.system.log import log_event
from scheduler.work.plan import Plan

T = TypeVar("T")

POSTPONEMENT = timedelta(hours=1)
PART_PAUSE = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class LostCommits:
    """The database may have lost its last commits: which slots and wakes may already have been executed."""

    slots_until: datetime
    wakes_until: int


@dataclass(slots=True)
class Tick:
    """One iteration of the main loop: its transaction, the active plan, and the runs to cancel after the commit.

    `awake_since` is when this process started, or when the machine last resumed from suspend. `no_capacity_since`: since then
    `limits.concurrency` runs have been in progress (None: another one may start); `no_capacity_why` names them. `chance` spreads
    retries. `lost_commits`: which runs may have been carried out already (None: none). `parts` are those of all ticks. `refusing`
    are the targets that have refused a message since the start of the daemon and the last reload.
    `cancelled` are the ids of the runs to end after the commit, and `waiting` says which runs wait for a person from now on or no
    longer. `broken` says where unexpected exceptions happened in this one.
    `now` does not advance.
    """

    tx: Transaction
    plan: Plan
    awake_since: datetime
    chance: random.Random
    no_capacity_since: datetime | None = None
    no_capacity_why: Callable[[], str | None] = lambda: None
    lost_commits: LostCommits | None = None
    parts: TickParts = field(default_factory=lambda: TickParts())
    refusing: set[Target] = field(default_factory=set)
    cancelled: list[int] = field(default_factory=list)
    waiting: dict[int, bool] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    now: datetime = field(init=False)
    limits: Limits = field(init=False)  # those of the plan

    def __post_init__(self) -> None:
        self.now, self.limits = self.tx.now, self.plan.settings.limits

    def adopt_plan(self, plan: Plan) -> None:
        """Use another plan from here on. Rows that are written afterwards have its hash."""
        self.plan, self.limits = plan, plan.settings.limits
        self.tx.config_hash = plan.settings.hash

    def note_error(self, part: TickPart, about: str, error: Exception) -> None:
        """Count an unexpected exception, and keep where it has happened."""
        self.parts.errors[part] += 1
        self.broken.append(f"{about}: {type(error).__name__}")


def run_for_entry(
    tick: Tick,
    kind: Kind,
    name: str,
    act: Callable[[], T],
    *,
    ending_run: int | None = None,
    postpone: Callable[[datetime], None] | None = None,
) -> T | None:
    """Run the part of a tick that concerns one entry. If it raises, the entry is postponed by an hour.

    `ending_run` is the id of the run whose result it records: that run is closed then. `postpone` is called instead of postponing
    the entry, if the part is about something else that is due.
    """

    def on_error(error: Exception) -> None:
        log_event(logging.ERROR, "entry_broken", kind=kind, name=name, error=error)
        tick.note_error(TickPart.ENTRY, f"{kind.noun} {name}", error)
        again_at = tick.now + POSTPONEMENT
        if postpone is not None:
            postpone(again_at)
            return
        if ending_run is not None:
            _close_unrecorded_run(tick, kind, name, ending_run, error)
        entry_row = entries.current_entry(tick.tx, kind, name)
        if entry_row is not None:
            entries.change_entry(tick.tx, entry_row, entry_row._replace(due_at=again_at))

    return tick.tx.run_part(act, on_error)


def _close_unrecorded_run(tick: Tick, kind: Kind, name: str, run_id: int, error: Exception) -> None:
    run = runs.find_open_run(tick.tx.db, kind, name)
    if run is not None and run.id == run_id and run.state == "running":
        result = AttemptResult(Outcome.ABANDONED, Failure.EXIT, error=f"could not be recorded: {error}")
        runs.close_undeclared_run(tick.tx, kind, name, run, result)
        if kind is Kind.HEARTBEAT:
            wakes.return_wakes(tick.tx, run_id, tick.now + POSTPONEMENT)
        else:
            wakes.end_delivered_wakes(tick.tx, run_id)  # the job may have done its work


def run_for_message(tick: Tick, message: OutboxMessage, act: Callable[[], T]) -> T | None:
    """Run the part of a tick that concerns one message. If it raises, the message is given up."""

    def give_up(error: Exception) -> None:
        log_event(logging.ERROR, "message_broken", message=message.id, error=error)
        tick.note_error(TickPart.MESSAGE, f"message {message.id}", error)
        outbox.mark_message_dead(tick.tx, message, f"internal error ({type(error).__name__}); see the log of the daemon")

    return tick.tx.run_part(act, give_up)


class TickParts:
    """Runs the parts of a tick that concern no single entry, request or message. One that raises is left out for 5 minutes."""

    def __init__(self, errors: Counter[TickPart] | None = None) -> None:
        self.errors = Counter() if errors is None else errors  # the number of unexpected exceptions, by part
        self.paused: dict[TickPart, datetime] = {}  # until when each part is left out

    def run(self, tick: Tick, name: TickPart, act: Callable[[], T], otherwise: T) -> T:
        """Run a part of a tick. While it is left out, `otherwise` is its answer."""
        until = self.paused.get(name)
        if until is not None and _is_paused(until, tick.now):
            return otherwise

        def leave_out(error: Exception) -> T:
            log_event(logging.ERROR, "part_broken", part=name, error=error)
            tick.note_error(name, name, error)
            self.paused[name] = tick.now + PART_PAUSE
            return otherwise

        return tick.tx.run_part(act, leave_out)

    def next_end_of_pause(self, now: datetime) -> datetime | None:
        """When the next part is no longer left out. Called once per tick; forgets the pauses that are over."""
        if self.paused:
            self.paused = {name: until for name, until in self.paused.items() if _is_paused(until, now)}
        return min(self.paused.values(), default=None)

    @property
    def problem(self) -> str | None:
        """Which parts are left out; None if all of them work."""
        return f"internal error in: {', '.join(self.paused)}; see the log of the daemon" if self.paused else None


def _is_paused(until: datetime, now: datetime) -> bool:
    return until - PART_PAUSE <= now < until  # the clock may have been set back


class Refused(ExpectedError):
    """A request that cannot be carried out. The text gives the reason and a remedy; `code` is a word for programs."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)

    @classmethod
    def by_defect(cls, action: str) -> Refused:
        """A defect of the daemon prevents the action. Its traceback is in the log."""
        return cls("broken", f"the daemon failed to {action}; see its log")

    @property
    def exit_code(self) -> int:
        return 2 if self.code == "not_found" else 1


Request = Callable[[Tick], object]
"""What the engine carries out within a tick. It returns its answer, or raises Refused; rows that it wrote before are kept."""


class PendingRequest:
    """A request and the future of its answer."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.future: Future[object] = Future()
        self._reply: Callable[[], None]

    def apply(self, tick: Tick) -> None:
        """Carry the request out. The answer is kept back until the tick is committed.

        If it raises an unexpected exception, its changes and that of the plan are undone, and its sender gets a refusal.
        """
        plan = tick.plan

        def refuse(error: Exception) -> None:
            tick.adopt_plan(plan)
            log_event(logging.ERROR, "request_broken", error=error)
            tick.note_error(TickPart.REQUEST, "a request", error)
            self._reply = partial(self.future.set_exception, Refused.by_defect("do this"))

        def answer() -> None:
            try:
                self._reply = partial(self.future.set_result, self.request(tick))
            except Refused as refusal:
                self._reply = partial(self.future.set_exception, refusal)

        tick.tx.run_part(answer, refuse)

    def send_reply(self) -> None:
        """Complete the future with the answer."""
        if not self.future.done():
            self._reply()


class Inbox:
    """Accepts requests from any thread. Only the engine reads them. `notify` wakes its main loop."""

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self._queue: SimpleQueue[PendingRequest] = SimpleQueue()
        self._unanswered: list[PendingRequest] = []

    def submit(self, request: Request) -> Future[object]:
        """Queue a request. The returned future gets its answer, or Refused."""
        pending = PendingRequest(request)
        self._queue.put(pending)
        self._notify()
        return pending.future

    def pending_requests(self) -> list[PendingRequest]:
        """All requests without an answer, in the order of their arrival. A tick that fails sees them again."""
        while not self._queue.empty():
            self._unanswered.append(self._queue.get_nowait())
        return list(self._unanswered)

    def reply_to(self, requests: list[PendingRequest]) -> None:
        """Send the answers of requests whose tick was committed."""
        for each in requests:
            each.send_reply()
        del self._unanswered[: len(requests)]

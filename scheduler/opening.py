"""What becomes of an entry whose time has come: a claim to carry out, or rows that say why not."""

from __future__ import annotations

from datetime import datetime

from scheduler import duequeue, history, planning, wakes
from scheduler.duequeue import Open, Standing
from scheduler.entry import Claim, Entry
from scheduler.events import Started
from scheduler.outcome import Outcome, Reason, Trigger
from scheduler.store import MILLISECOND
from scheduler.turn import Turn
from scheduler.wake import Wake


def start(turn: Turn, entry: Entry, standing: Standing) -> Claim | None:
    """Claim what is due of one entry; None, with the next look planned, when nothing is to run now."""
    run = duequeue.open_run(turn.db, standing.kind, standing.name)
    if run is not None:
        return _start_again(turn, entry, standing, run)
    if standing.pause_ends is not None and standing.pause_ends <= turn.now:
        standing = planning.resume(turn, standing, standing.pause_ends)
    slot = None if standing.paused or standing.state != "active" else planning.latest_due(turn, entry, standing)
    waker = wakes.starter(turn, standing.kind, standing.name)
    if (slot is None and waker is None) or not duequeue.take(turn, standing):
        planning.replan(turn, standing)
        return None
    return _claim(turn, entry, standing, slot, waker)


def _claim(turn: Turn, entry: Entry, standing: Standing, slot: datetime | None, waker: Wake | None) -> Claim | None:
    """Open the row. A wake that arrives with the slot rides along with it."""
    opened = _open_slot(turn, entry, standing, slot) if slot is not None else _open_wake(turn, entry, standing, waker)
    if opened is None:
        planning.replan(turn, standing)
        return None
    run_id, fence, trigger, nominal = opened
    taken = wakes.take(turn, standing.kind, standing.name, run_id, None if slot is not None else waker)
    planning.replan(turn, standing)
    late = (turn.now - (nominal + standing.pace.offset)).total_seconds() if slot is not None else None
    return _tell(turn, _made(turn, entry, standing, run_id, fence, nominal, trigger, 1, 0, taken), late)


def _open_slot(turn: Turn, entry: Entry, standing: Standing, slot: datetime) -> tuple[int, int, Trigger, datetime] | None:
    trigger = standing.pace.trigger
    opened = duequeue.begin(turn, standing, slot, trigger, entry.model)
    if opened is None:
        return None
    duequeue.change(turn, standing, last_slot=slot)
    return *opened, trigger, slot


def _open_wake(turn: Turn, entry: Entry, standing: Standing, waker: Wake | None) -> tuple[int, int, Trigger, datetime]:
    """A wake's slot is only the instant at which it starts: where two would share one, the later moves by a millisecond."""
    assert waker is not None
    nominal, trigger = turn.now, Trigger(waker.source)
    while (opened := duequeue.begin(turn, standing, nominal, trigger, entry.model)) is None:
        nominal += MILLISECOND
    return *opened, trigger, nominal


def _start_again(turn: Turn, entry: Entry, standing: Standing, run: Open) -> Claim | None:
    """Claim the next attempt of a run that waits for it, unless its time is over."""
    if run.state != "waiting":
        planning.replan(turn, standing)
        return None
    if not still_in_time(turn, entry, standing, run.slot):
        give_up(turn, standing, run)
        planning.replan(turn, standing)
        return start(turn, entry, duequeue.again(turn.db, standing))
    again = duequeue.begin_again(turn, run.run_id)
    if again is None or not duequeue.take(turn, standing):
        return None
    fence, attempt = again
    held = wakes.taken_by(turn.db, run.run_id)
    claim = _made(turn, entry, standing, run.run_id, fence, run.slot, run.trigger, attempt, run.crashes, held)
    return _tell(turn, claim, None)


def still_in_time(turn: Turn, entry: Entry, standing: Standing, slot: datetime) -> bool:
    """Whether a run may be tried again now: its next slot has not come, and its window is open."""
    following = planning.due_after(standing, slot)
    return entry.open_at(turn.now) and (following is None or following > turn.now)


def give_up(turn: Turn, standing: Standing, run: Open) -> None:
    """Close a run that waits for an attempt it will not get, with what its last one said."""
    outcome = Outcome.FAILED if run.reason else Outcome.ABANDONED
    history.end_open(turn, standing.kind, standing.name, run, outcome, Reason.NO_TIME_LEFT, run.error)
    wakes.give_back(turn, run.run_id)


def _made(
    turn: Turn, entry: Entry, standing: Standing, run_id: int, fence: int, slot: datetime, trigger: Trigger,
    attempt: int, crashes: int, taken: tuple[Wake, ...],
) -> Claim:  # fmt: skip
    return Claim(
        run_id=run_id,
        fence=fence,
        owner=turn.owner,
        entry=entry,
        slot=slot,
        trigger=trigger,
        attempt=attempt,
        crashes=crashes,
        started_at=turn.now,
        paused=standing.paused,
        wakes=taken,
        last_beat=standing.last_ended_at,
        failures=standing.failures,
    )


def _tell(turn: Turn, claim: Claim, late: float | None) -> Claim:
    entry = claim.entry
    turn.tell(Started(claim.run_id, entry.kind, entry.name, claim.slot, claim.trigger, claim.attempt, late))
    return claim

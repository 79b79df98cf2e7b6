"""Recovery: what an earlier life of the daemon left open is taken up again or closed, and nothing is done twice."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler import closing, duequeue, history, opening, planning, wakes
from scheduler.duequeue import Open, Standing
from scheduler.entry import Claim, Entry
from scheduler.events import Recovered
from scheduler.outcome import Ending, Failure, Kind, Outcome, Reason, Trigger
from scheduler.turn import Turn
from scheduler.wake import Wake

CRASHES = 3  # a run that has been cut short more often takes the daemon down with it

Survivors = Mapping[str, bool] | None
"""By a run's mark: whether its processes outlived the daemon and could not be ended. None where nobody can tell."""


def recover(turn: Turn, survivors: Survivors) -> None:
    """Take every run that an earlier life left running in hand; those that wait for an attempt simply go on waiting."""
    for kind, name, run in duequeue.open_runs(turn.db):
        standing = duequeue.find(turn.db, kind, name)
        assert standing is not None
        entry = turn.plan.entries.get((kind, name))
        if run.state == "running":
            _recover_one(turn, standing, entry, run, survivors)
        planning.replan(turn, standing)


def _recover_one(turn: Turn, standing: Standing, entry: Entry | None, run: Open, survivors: Survivors) -> None:
    again = entry is not None and entry.enabled and _may_run_again(turn, entry, standing, run)
    turn.tell(Recovered(run.run_id, standing.kind, standing.name, again))
    if again:
        history.put_back(turn, run.run_id, crashed=True)
    elif entry is None:
        history.end_open(turn, standing.kind, standing.name, run, Outcome.ABANDONED, None, "the daemon stopped while it ran")
        wakes.give_back(turn, run.run_id)
    else:
        closing.finish(turn, _old_claim(turn, entry, standing, run), _abandoned(standing.kind, standing.name, run, survivors))


def _may_run_again(turn: Turn, entry: Entry, standing: Standing, run: Open) -> bool:
    return entry.again_after_crash and run.crashes < CRASHES and opening.still_in_time(turn, entry, standing, run.slot)


def _abandoned(kind: Kind, name: str, run: Open, survivors: Survivors) -> Ending:
    """How a cut run ends that is not tried again. A job's owner is told: nobody else knows how far its command came."""
    reason, error = _what_is_left(run, survivors)
    message = f"{name} was cut short: {error}" if kind is Kind.CRON else None
    return Ending(Outcome.ABANDONED, reason, error=error, message=message)


def _what_is_left(run: Open, survivors: Survivors) -> tuple[Failure | Reason, str]:
    if run.crashes >= CRASHES:
        return Reason.CRASH_COUNT, f"the daemon stopped {run.crashes + 1} times while it ran"
    if survivors is None or survivors.get(f"{run.owner}/{run.run_id}", False):
        return Reason.CHILD_MAY_STILL_RUN, "the daemon stopped while it ran; a process of it may go on"
    return Failure.EXIT, "the daemon stopped while it ran; what was left of it has been ended"


def _old_claim(turn: Turn, entry: Entry, standing: Standing, run: Open) -> Claim:
    """The claim of the life that is gone, so that its run is closed like any other."""
    return Claim(
        run_id=run.run_id,
        fence=run.fence,
        owner=run.owner,
        entry=entry,
        slot=run.slot,
        trigger=run.trigger,
        attempt=run.attempt,
        crashes=run.crashes,
        started_at=run.started_at,
        paused=standing.paused,
        wakes=wakes.taken_by(turn.db, run.run_id),
        last_beat=standing.last_ended_at,
        failures=standing.failures,
    )


def put_back(turn: Turn, claim: Claim) -> None:
    """A run that our own stop cut short is due again, at no cost of a retry."""
    standing = duequeue.find(turn.db, claim.entry.kind, claim.entry.name)
    assert standing is not None
    history.put_back(turn, claim.run_id, crashed=False)
    planning.replan(turn, standing)


def start_at_boot(turn: Turn) -> None:
    """Ask for the jobs that run once when the daemon starts."""
    for (kind, name), entry in turn.plan.entries.items():
        standing = duequeue.find(turn.db, kind, name) if entry.starts_at_boot and entry.enabled else None
        if standing is not None and kind is Kind.CRON:
            wakes.ask(turn, standing, Wake(name, source=Trigger.REBOOT, sender=Trigger.REBOOT))

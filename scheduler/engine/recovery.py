"""Recovers what an earlier boot, or a lost worker, has left open: interrupted runs are tried again or closed."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from functools import partial

from scheduler.engine import clock_adjustment, delivery, observed_problems, plan_sync, planning, settle, wake_starts
from scheduler.engine.startup import SurvivorsByRun
from scheduler.engine.tick_items import Tick
from scheduler.model.config_changes import ConfigEvent
from scheduler.model.daemon_health import TickPart
from scheduler.model.entry import Claim, Entry, OpenRun
from scheduler.model.entry_row import EntryRow
from scheduler.model.events import RunRecovered, StaleResultDropped
from scheduler.model.outcome import AttemptResult, Failure, Kind, Outcome, Reason, Skip, Trigger
from scheduler.model.wake import Wake
from scheduler.store import boots, breakers, entries, runs, slot_records
from scheduler.system.log import log_event
from scheduler.work.executor import Interrupted

LOST_COMMITS = "the database lost its last commits, so it may have been carried out more than once"

LONGEST_RESTART = timedelta(minutes=10)  # no slot is expected to run during a planned restart that takes no longer

MAX_CRASHES = 3  # a run that was interrupted more often probably crashes the daemon, so it is not run again


def recover(
    tick: Tick,
    boot: boots.Boot,
    survivors: SurvivorsByRun,
    adopted: Mapping[int, Claim],
    *,
    at_once: bool,
    changed: ConfigEvent | None,
) -> None:
    """Recover from the last boot, in the first transaction of this one.

    `survivors` are the runs with processes that could not be ended. The attempts `adopted` from that boot, by run, were not
    interrupted, because workers execute them.

    1. The boot is recorded. A clock change while the daemon was down is followed.
    2. Interrupted runs and deliveries are retried or closed.
    3. Entry rows are added, changed and removed by the plan. With `at_once` new entries are due now.
    4. Waiting wakes are reconsidered, and `@reboot` jobs are started.
    """
    tx = tick.tx
    last = boots.latest_boot(tx.db)
    seen = last.last_tick_at if last else None
    slots_may_differ = boots.record_boot(tx, boot)
    clock_adjustment.follow_clock_while_down(tx, seen)
    if last is not None and last.clean and seen and tick.now - seen <= LONGEST_RESTART:
        planning.excuse_slots(tx, seen, tick.now)
    _recover_runs(tick, survivors, adopted, min(seen, tick.now) if seen else tick.now)
    delivery.recover_deliveries(tick)
    tick.parts.run(tick, TickPart.CHANNEL_PROBLEMS, partial(observed_problems.follow_deliveries, tick), None)
    plan_sync.follow_plan(tick, {}, changed, at_once=at_once)
    _wake_boot_jobs(tick)
    if slots_may_differ:
        for entry_row in entries.all_entries(tx.db):
            planning.save_with_next_due(tx, entry_row, entry_row)


def _recover_runs(tick: Tick, survivors: SurvivorsByRun, adopted: Mapping[int, Claim], interrupted_at: datetime) -> None:
    """Retry or close every run that was interrupted by the end of the last boot. Waiting runs need no recovery."""
    for kind, name, run in runs.all_open_runs(tick.tx.db):
        claim, is_declared = adopted.get(run.id), (kind, name) in tick.plan.entries
        if run.state != "running":
            continue
        if is_declared and claim is not None and (claim.run.owner, claim.run.fence) == (run.owner, run.fence):
            log_event(logging.INFO, "run_adopted", run=run.id, kind=kind, name=name)
        else:
            survives = survivors is None or survivors.get(run.mark, False)
            _recover_run(tick, kind, name, run, interrupted_at, survives=survives)


def recover_lost_attempt(tick: Tick, claim: Claim, interruption: Interrupted) -> None:
    """Retry or close a run whose worker was stopped or lost. What the worker has used is unknown, so its reservation stays."""
    found = runs.find_open_run_by_id(tick.tx.db, claim.run.id)
    if found is None or not runs.owns_run(tick.tx, claim):
        tick.tx.report(StaleResultDropped(claim.run.id, *claim.entry.key))
        return
    if claim.facts.probes and breakers.return_probes(tick.tx, claim, called=False):
        wake_starts.retry_blocked_runs_and_wakes(tick)
    _recover_run(tick, *found, tick.now, interruption)


def recover_unknown_runs(tick: Tick, known: Collection[int]) -> None:
    """Retry or close the runs in progress that the executor does not know: nobody carries them out, or has a result of them."""
    for kind, name, run in runs.all_open_runs(tick.tx.db):
        if run.state == "running" and run.id not in known:
            log_event(logging.ERROR, "run_unknown", run=run.id, kind=kind, name=name)
            _recover_run(tick, kind, name, run, tick.now, Interrupted("the executor lost its task", was_stopped=False))


def _recover_run(
    tick: Tick,
    kind: Kind,
    name: str,
    run: OpenRun,
    interrupted_at: datetime,
    lost: Interrupted | None = None,
    *,
    survives: bool = False,
) -> None:
    """Retry or close a run in progress that was interrupted: its worker was stopped or `lost`, or (None) the daemon stopped.

    `survives`: a process of the run is still running, so there is no retry.
    """
    entry_row, entry = entries.get_entry(tick.tx, kind, name), tick.plan.entries.get((kind, name))
    runs.record_interruption(tick.tx, run, interrupted_at)
    runs_again = entry is not None and _may_run_again(tick, entry, entry_row, run) and not survives
    tick.tx.report(RunRecovered(run.id, kind, name, runs_again))
    if runs_again:
        # The run may have caused the end of the daemon, or of a worker that nobody has stopped.
        runs.requeue_interrupted_run(tick.tx, run, crashed=lost is None or not lost.was_stopped)
        entries.change_entry(tick.tx, entry_row, planning.with_due_at(entry_row, tick.now))
        return
    reason, why = _why_not_again(run, lost, survives=survives)
    has_news = kind is Kind.CRON and reason is not Reason.CANCELLED
    message = f"{name} was interrupted: {why}" if has_news else None  # only a person can check what a job has done
    note = f"; {LOST_COMMITS}" if tick.lost_commits and lost is None else ""
    result = AttemptResult(Outcome.ABANDONED, reason, error=f"{why}{note}", message=message)
    settle.close_abandoned(tick, entry, entry_row, run, result)


def _may_run_again(tick: Tick, entry: Entry, entry_row: EntryRow, run: OpenRun) -> bool:
    """Whether an interrupted run is tried again, if no process of it is still running."""
    if not (entry.enabled and entry.retries_after_crash) or run.crashes >= MAX_CRASHES or run.is_cancelled:
        return False
    return planning.may_still_run(tick.tx, entry, entry_row, run.slot)


def _why_not_again(run: OpenRun, lost: Interrupted | None, *, survives: bool) -> tuple[Failure | Reason, str]:
    cause = "the daemon stopped" if lost is None else str(lost)
    if run.crashes >= MAX_CRASHES:
        return Reason.CRASH_COUNT, f"{'its workers were lost' if lost else cause} {run.crashes + 1} times during this run"
    if run.is_cancelled and not survives:
        return Reason.CANCELLED, "was cancelled"
    if survives or (lost is not None and not lost.was_stopped):
        return Reason.CHILD_MAY_STILL_RUN, f"{cause} during this run; one of its processes may still be running"
    rest = "; its remaining processes on this machine were ended" if lost is None else ""
    return Failure.EXIT, f"{cause} during this run{rest}"


def requeue_interrupted_run(tick: Tick, claim: Claim, result: AttemptResult) -> None:
    """Put a run back that the stop of the daemon interrupted. It uses up no retry. Its usage so far is recorded."""
    settle.record_calls(tick, claim, result)
    entry_row = entries.get_entry(tick.tx, *claim.entry.key)
    runs.record_interruption(tick.tx, claim.run, tick.now)
    runs.requeue_interrupted_run(tick.tx, claim.run, crashed=False)
    planning.save_with_next_due(tick.tx, entry_row, entry_row)


def _wake_boot_jobs(tick: Tick) -> None:
    """Start the jobs with `schedule: "@reboot"`, except those with an open run, which was recovered."""
    for (kind, name), entry in tick.plan.entries.items():
        entry_row = entries.current_entry(tick.tx, kind, name) if entry.starts_at_boot and entry.enabled else None
        if entry_row is None or runs.find_open_run(tick.tx.db, kind, name) is not None:
            continue
        if entry_row.is_paused_at(tick.now):
            slot_records.record_skip(tick.tx, entry_row, Trigger.REBOOT, Skip.PAUSED, tick.now)
        elif entry.is_day_off(tick.now):
            slot_records.record_skip(tick.tx, entry_row, Trigger.REBOOT, Skip.CALENDAR, tick.now)
        else:
            wake_starts.accept_wake(tick, entry_row, Wake(name, source=Trigger.REBOOT, sender=Trigger.REBOOT, kind=Kind.CRON))

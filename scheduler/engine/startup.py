"""Starts the daemon after a stop or crash: takes the lock, checks the database, ends orphans, recovers interrupted runs."""

from __future__ import annotations

import logging
import os
import shlex
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from scheduler.engine import (
    budget_reservations,
    channel_problems,
    clock_adjustment,
    delivery,
    plan_sync,
    planning,
    settle,
    wake_starts,
)
from scheduler.engine.tick_items import Tick
from scheduler.model.config_changes import ConfigEvent
from scheduler.model.daemon_health import TickPart
from scheduler.model.entry import Claim, Entry, OpenRun
from scheduler.model.entry_row import EntryRow
from scheduler.model.events import RunRecovered, StaleResultDropped
from scheduler.model.outcome import AttemptResult, Failure, Kind, Outcome, Reason, Skip, Trigger
from scheduler.model.settings import Settings
from scheduler.model.wake import Wake
from scheduler.store import boots, breakers, config_history, entries, outbox, runs, slot_records
from scheduler.store.database import Store, check_file, check_links, open_read_only
from scheduler.store.disk_reserve import DiskReserve
from scheduler.store.locations import open_for_writing
from scheduler.store.transaction import Transaction
from scheduler.system import orphans
from scheduler.system.log import log_event
from scheduler.system.state_lock import (
    AlreadyRunning,
    RefusedStart,
    StateLock,
    make_state_folder,
    network_filesystem,
    record_refused_start,
)
from scheduler.work.executor import Interrupted

LOCK_RETRY_SECONDS = 0.3  # seconds
MAX_LOCK_RETRIES = 60  # while a command that writes holds the lock, for example with a large config on a slow machine

LOST_COMMITS = "the database lost its last commits, so it may have been carried out more than once"

LONGEST_RESTART = timedelta(minutes=10)  # no slot is expected to run during a planned restart that takes no longer

MAX_CRASHES = 3  # a run that was interrupted more often probably crashes the daemon, so it is not run again

SurvivorsByRun = Mapping[str, bool] | None
"""By mark of a run: whether one of its processes could not be ended. None if processes cannot be inspected."""


def take_lock(settings: Settings, instance: str, now: Callable[[], datetime]) -> StateLock:
    """Take the lock of the state folder, so that no second daemon uses it.

    Raises AlreadyRunning, StateFolderError or StoreError; then nothing is created. A rejected start is recorded in a file next to
    the lock.
    """
    folder = settings.state.parent
    if settings.postgresql is None:
        check_file(settings.state)
        check_links(settings.state)
    if not make_state_folder(folder):
        log_event(logging.WARNING, "state_folder", problem=f"other users can read {folder}; chmod 700 {shlex.quote(str(folder))}")
    remote = network_filesystem(folder)
    if remote and settings.postgresql is None:
        log_event(logging.WARNING, "state_folder", problem=f"{folder} is on {remote}, where SQLite's locks are unreliable")
    path = settings.state.with_name(settings.state.name + ".lock")
    for tries in count(1):
        try:
            return StateLock.take(path, started_at=now(), instance=instance)
        except AlreadyRunning as held:  # by a command that writes while no daemon runs, or by a process that has not named itself
            if tries > (MAX_LOCK_RETRIES if held.is_command else 1):
                record_refused_start(path, RefusedStart(now(), os.getpid(), str(settings.path)))
                raise
        time.sleep(LOCK_RETRY_SECONDS)
    raise AssertionError("the tries have no end")


def open_store(path: Path | str) -> Store:
    """Open the database. Unless the last boot ended cleanly, the integrity of a file is checked first.

    If the server is down, the store has no connection yet, and `Store.connect` tries again.
    """
    if isinstance(path, str):
        return open_for_writing(path, is_patient=True)
    reserve = DiskReserve(path)
    reserve.release_if_short()  # without a write-ahead log, reading needs free space too
    clean = True
    if path.exists() and path.stat().st_size:
        connection = open_read_only(path)
        try:
            last = boots.latest_boot(connection)
            clean = last is None or last.clean
        finally:
            connection.close()
    return Store.open(path, check=not clean, reserve=reserve)


def end_orphans(store: Store, *, runs_here: bool = True) -> SurvivorsByRun:
    """End the processes of runs and messages that were interrupted. Returns, by mark, whether a process survived.

    `runs_here` False: workers execute the runs, so only processes of messages are ended. Background processes of runs that had
    ended are left alone, because they were meant to continue.
    """
    interrupted = _interrupted_work(store, runs_here=runs_here)
    if not interrupted:
        return {}
    found = orphans.find_orphans(interrupted)
    if found is None:
        return None
    programs = {pid: orphans.program_name(pid) for pids in found.values() for pid in pids}
    living = orphans.end_orphans(programs)
    for mark, pids in found.items():
        for pid in pids:
            word, level = ("orphan_not_ended", logging.ERROR) if pid in living else ("orphan_ended", logging.WARNING)
            log_event(level, word, **interrupted[mark], pid=pid, program=programs[pid])
    return {mark: bool(living & set(pids)) for mark, pids in found.items()}


def _interrupted_work(store: Store, *, runs_here: bool) -> dict[str, dict[str, Any]]:
    """The marks of all interrupted runs and messages, each with its fields for the log."""
    last = boots.latest_boot(store.connection)
    if last is None:
        return {}
    open_runs = runs.all_open_runs(store.connection) if runs_here else []
    running = [(kind, name, run) for kind, name, run in open_runs if run.state == "running"]
    interrupted = outbox.interrupted_messages(store.connection)
    return {
        **{f"{run.owner}/{run.id}": {"run": run.id, "kind": kind, "name": name} for kind, name, run in running},
        **{f"{last.instance}/outbox/{each.id}": {"message": each.id, "channel": each.channel} for each in interrupted},
    }


@dataclass(frozen=True, slots=True)
class LeftRuns:
    """What is known of the runs that the last boot has left open.

    `survivors` are those with processes that could not be ended. The attempts `adopted` from that boot, by run, were not
    interrupted, because workers execute them.
    """

    survivors: SurvivorsByRun
    adopted: Mapping[int, Claim]


def recover(tick: Tick, boot: boots.Boot, left: LeftRuns, *, at_once: bool, changed: ConfigEvent | None) -> None:
    """Recover from the last boot, in the first transaction of this one.

    1. The boot is recorded. A clock change while the daemon was down is followed.
    2. Interrupted runs and deliveries are retried or closed.
    3. Entry rows are added, changed and removed by the plan. With `at_once` new entries are due now.
    4. Waiting wakes are reconsidered, and `@reboot` jobs are started.
    """
    tx, plan = tick.tx, tick.plan
    last = boots.latest_boot(tx.db)
    seen = last.last_tick_at if last else None
    slots_may_differ = boots.record_boot(tx, boot)
    if plan.stored_config:
        config_history.record_config_in_force(tx, plan.stored_config)
    if changed:
        config_history.record_config_event(tx, changed)
    if last is not None and last.config_hash != plan.settings.hash:
        budget_reservations.adopt_budgets(tx, plan.settings)
    budget_reservations.record_budgets(tx, plan.settings)
    clock_adjustment.follow_clock_while_down(tx, seen)
    if last is not None and last.clean and seen and tick.now - seen <= LONGEST_RESTART:
        planning.excuse_slots(tx, seen, tick.now)
    _recover_runs(tick, left, min(seen, tick.now) if seen else tick.now)
    delivery.recover_deliveries(tick)
    tick.parts.run(tick, TickPart.CHANNEL_PROBLEMS, partial(channel_problems.follow_deliveries, tick), None)
    breakers.allow_probes_now(tx)  # a new key may be the reason for the restart
    plan_sync.sync_entries(tick, {}, at_once=at_once)
    wake_starts.retry_blocked_runs_and_wakes(tick, other_config=True)
    _wake_boot_jobs(tick)
    if slots_may_differ:
        for entry_row in entries.all_entries(tx.db):
            planning.save_with_next_due(tx, entry_row, entry_row)


def _recover_runs(tick: Tick, left: LeftRuns, interrupted_at: datetime) -> None:
    """Retry or close every run that was interrupted by the end of the last boot. Waiting runs need no recovery."""
    for kind, name, run in runs.all_open_runs(tick.tx.db):
        entry_row = entries.get_entry(tick.tx, kind, name)
        entry = tick.plan.entries.get((kind, name))
        if run.state == "running" and entry is not None and _is_adopted(run, left.adopted):
            log_event(logging.INFO, "run_adopted", run=run.id, kind=kind, name=name)
        elif run.state == "running":
            runs.record_interruption(tick.tx, run, interrupted_at)
            _recover_run(tick, entry_row, entry, run, left.survivors)


def _is_adopted(run: OpenRun, adopted: Mapping[int, Claim]) -> bool:
    claim = adopted.get(run.id)
    return claim is not None and (claim.run.owner, claim.run.fence) == (run.owner, run.fence)


def _recover_run(tick: Tick, entry_row: EntryRow, entry: Entry | None, run: OpenRun, survivors: SurvivorsByRun) -> None:
    runs_again = entry is not None and entry.enabled and _may_run_again(tick.tx, entry, entry_row, run, survivors)
    tick.tx.report(RunRecovered(run.id, entry_row.kind, entry_row.name, runs_again))
    if runs_again:
        runs.requeue_interrupted_run(tick.tx, run, crashed=True)
        entries.change_entry(tick.tx, entry_row, planning.due_while_run_is_open(entry_row, tick.now))
    else:
        result = _interrupted_result(entry_row.kind, entry_row.name, run, survivors)
        if tick.lost_commits is not None:
            result = replace(result, error=f"{result.error}; {LOST_COMMITS}")
        settle.close_abandoned(tick, entry, entry_row, run, result)


def _may_run_again(tx: Transaction, entry: Entry, entry_row: EntryRow, run: OpenRun, survivors: SurvivorsByRun) -> bool:
    """Whether an interrupted run is tried again. Never while a process of it may still be running."""
    if not entry.retries_after_crash or run.crashes >= MAX_CRASHES or run.is_cancelled or _has_survivors(run, survivors):
        return False
    return planning.may_still_run(tx, entry, entry_row, run.slot)


def _has_survivors(run: OpenRun, survivors: SurvivorsByRun) -> bool:
    return survivors is None or survivors.get(f"{run.owner}/{run.id}", False)


def _interrupted_result(kind: Kind, name: str, run: OpenRun, survivors: SurvivorsByRun) -> AttemptResult:
    """The result of an interrupted run that is not tried again. For a job it has a message, because only a person can check."""
    reason, error = _why_not_run_again(run, survivors)
    message = f"{name} was interrupted: {error}" if kind is Kind.CRON else None
    return AttemptResult(Outcome.ABANDONED, reason, error=error, message=message)


def _why_not_run_again(run: OpenRun, survivors: SurvivorsByRun) -> tuple[Failure | Reason, str]:
    if run.crashes >= MAX_CRASHES:
        return Reason.CRASH_COUNT, f"the daemon stopped {run.crashes + 1} times during this run"
    if _has_survivors(run, survivors):
        return Reason.CHILD_MAY_STILL_RUN, "the daemon stopped during this run; one of its processes may still be running"
    if run.is_cancelled:
        return Reason.CANCELLED, "was cancelled"
    return Failure.EXIT, "the daemon stopped during this run; its remaining processes on this machine were ended"


def _wake_boot_jobs(tick: Tick) -> None:
    """Start the jobs with `schedule: "@reboot"`, except those with an open run, which was recovered."""
    for (kind, name), entry in tick.plan.entries.items():
        entry_row = entries.current_entry(tick.tx, kind, name) if entry.starts_at_boot and entry.enabled else None
        if entry_row is None or runs.find_open_run(tick.tx.db, kind, name) is not None:
            continue
        if entry_row.paused:
            slot_records.record_skip(tick.tx, entry_row, Trigger.REBOOT, Skip.PAUSED, tick.now)
        elif entry.is_day_off(tick.now):
            slot_records.record_skip(tick.tx, entry_row, Trigger.REBOOT, Skip.CALENDAR, tick.now)
        else:
            wake_starts.accept_wake(tick, entry_row, Wake(name, source=Trigger.REBOOT, sender=Trigger.REBOOT, kind=Kind.CRON))


def recover_lost_attempt(tick: Tick, claim: Claim, interruption: Interrupted) -> None:
    """Retry or close a run whose worker was stopped or lost. What the worker has used is unknown, so its reservation stays."""
    found = runs.find_open_run_by_id(tick.tx.db, claim.run.id)
    if found is None or not runs.owns_run(tick.tx, claim):
        tick.tx.report(StaleResultDropped(claim.run.id, claim.entry.kind, claim.entry.name))
        return
    if claim.facts.probes and breakers.return_probes(tick.tx, claim, called=False):
        wake_starts.retry_blocked_runs_and_wakes(tick)
    _recover_interrupted_run(tick, *found, interruption)


def recover_unknown_runs(tick: Tick, known: Collection[int]) -> None:
    """Retry or close the runs in progress that the executor does not know: nobody carries them out, or has a result of them."""
    for kind, name, run in runs.all_open_runs(tick.tx.db):
        if run.state == "running" and run.id not in known:
            log_event(logging.ERROR, "run_unknown", run=run.id, kind=kind, name=name)
            _recover_interrupted_run(tick, kind, name, run, Interrupted("the daemon lost it", was_stopped=False))


def _recover_interrupted_run(tick: Tick, kind: Kind, name: str, run: OpenRun, interruption: Interrupted) -> None:
    entry_row, entry = entries.get_entry(tick.tx, kind, name), tick.plan.entries.get((kind, name))
    runs.record_interruption(tick.tx, run, tick.now)
    runs_again = entry is not None and entry.enabled and _may_run_again(tick.tx, entry, entry_row, run, {})
    tick.tx.report(RunRecovered(run.id, kind, name, runs_again))
    if runs_again:
        runs.requeue_interrupted_run(tick.tx, run, crashed=not interruption.was_stopped)
        entries.change_entry(tick.tx, entry_row, planning.due_while_run_is_open(entry_row, tick.now))
        return
    reason, error = _why_lost_run_ends(run, interruption)
    message = f"{name} was interrupted: {error}" if kind is Kind.CRON else None
    result = AttemptResult(Outcome.ABANDONED, reason, error=error, message=message)
    settle.close_abandoned(tick, entry, entry_row, run, result)


def _why_lost_run_ends(run: OpenRun, interruption: Interrupted) -> tuple[Failure | Reason, str]:
    if run.crashes >= MAX_CRASHES:
        return Reason.CRASH_COUNT, f"its workers were lost {run.crashes + 1} times during this run"
    if run.is_cancelled:
        return Reason.CANCELLED, "was cancelled"
    may_run = not interruption.was_stopped
    return (Reason.CHILD_MAY_STILL_RUN if may_run else Failure.EXIT), f"{interruption} during this run" + (
        "; one of its processes may still be running" if may_run else ""
    )


def requeue_interrupted_run(tick: Tick, claim: Claim, result: AttemptResult) -> None:
    """Put a run back that the stop of the daemon interrupted. It uses up no retry. Its usage so far is recorded."""
    settle.record_calls(tick, claim, result)
    entry_row = entries.get_entry(tick.tx, claim.entry.kind, claim.entry.name)
    runs.record_interruption(tick.tx, claim.run, tick.now)
    runs.requeue_interrupted_run(tick.tx, claim.run, crashed=False)
    planning.save_with_next_due(tick.tx, entry_row, entry_row)

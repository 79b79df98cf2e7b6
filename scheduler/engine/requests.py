"""What people and programs may ask of the daemon: wake, run, pause, resume, hold a lane, a new config."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scheduler.channels import target_urls
from scheduler.config.file.message_parts import did_you_mean
from scheduler.engine import budget_reservations, plan_sync, planning, wake_starts
from scheduler.engine.inbox import Refused
from scheduler.engine.tick import Tick
from scheduler.model.entry import Key
from scheduler.model.entry_row import UNTIL_RESUMED, EntryRow
from scheduler.model.events import SettingsApplied
from scheduler.model.outcome import DeliveryState, Kind, Skip, Trigger
from scheduler.model.settings import Target
from scheduler.model.wake import Wake
from scheduler.store import boots, breakers, entries, lane_holds, outbox, runs, slot_records, targets, wakes
from scheduler.store.outbox import OutboxMessage
from scheduler.store.transaction import Transaction
from scheduler.work.plan import Diff, Plan, diff


@dataclass(frozen=True, slots=True)
class WakeAgent:
    """Wake an agent. `cause` is the mark of the run in which this was asked, if it was asked in one. Answers the wake's id."""

    wake: Wake
    cause: str | None = None

    def apply(self, tick: Tick) -> int:
        """A wake that the agent's own open run causes is refused: it would feed itself for ever."""
        entry_row = _declared_entry(tick, Kind.HEARTBEAT, self.wake.name)
        if entry_row.state != "active":
            slot_records.record_skip(tick.tx, entry_row, Trigger(self.wake.source), Skip.DISABLED, tick.now)
            raise Refused(Skip.DISABLED, f"agent {self.wake.name!r} is disabled in {tick.plan.settings.path.name}")
        run = runs.find_open_run(tick.tx.db, Kind.HEARTBEAT, self.wake.name)
        if run is not None and self.cause == f"{run.owner}/{run.run_id}":
            wakes.report_rejected_wake(tick.tx, self.wake)
            raise Refused("own_run", f"agent {self.wake.name!r} cannot wake itself from within its own run")
        return wake_starts.request_run(tick, entry_row, self.wake)


@dataclass(frozen=True, slots=True)
class RunJob:
    """Run a cron job now, beside its schedule. Answers the id under which its run can be followed."""

    name: str
    source: Trigger

    def apply(self, tick: Tick) -> int:
        """A job that is disabled, paused or running is not run, which is a skip with its row."""
        entry_row = _declared_entry(tick, Kind.CRON, self.name)
        obstacle = _obstacle_to_job(tick.tx, entry_row)
        if obstacle is not None:
            slot_records.record_skip(tick.tx, entry_row, self.source, obstacle, tick.now)
            raise Refused(obstacle, f"cron job {self.name!r} is {JOB_OBSTACLE_TEXTS[obstacle]}")
        return wake_starts.request_run(tick, entry_row, Wake(self.name, source=self.source, sender=self.source, kind=Kind.CRON))


JOB_OBSTACLE_TEXTS = {
    Skip.DISABLED: "disabled in the config",
    Skip.PAUSED: "paused; resume it first",
    Skip.ALREADY_RUNNING: "already running",
}


def _obstacle_to_job(tx: Transaction, entry_row: EntryRow) -> Skip | None:
    if entry_row.state != "active":
        return Skip.DISABLED
    if entry_row.paused:
        return Skip.PAUSED
    running = runs.find_open_run(tx.db, entry_row.kind, entry_row.name) is not None
    return Skip.ALREADY_RUNNING if running else None


@dataclass(frozen=True, slots=True)
class PauseEntries:
    """Pause one entry, or all of them (`key` None), until a time or until resumed. Answers their names."""

    key: Key | None
    until: datetime | None

    def apply(self, tick: Tick) -> list[str]:
        """What came due before the pause keeps its own reason."""
        chosen = list(_chosen_entries(tick, self.key))
        for entry_row in chosen:
            booked = entry_row if entry_row.paused else planning.record_passed_slots(tick, entry_row, Skip.MISSED)
            planning.replan_entry(tick.tx, entry_row, booked._replace(paused_until=self.until or UNTIL_RESUMED))
        return [_kind_and_name(entry_row) for entry_row in chosen]


@dataclass(frozen=True, slots=True)
class ResumeEntries:
    """Resume one entry, or all of them (`key` None). Answers the names of those that were paused."""

    key: Key | None

    def apply(self, tick: Tick) -> list[str]:
        """The slots of the pause get one row with their number."""
        paused = [entry_row for entry_row in _chosen_entries(tick, self.key) if entry_row.paused]
        for entry_row in paused:
            planning.replan_entry(tick.tx, entry_row, planning.end_pause(tick, entry_row, tick.now))
        return [_kind_and_name(entry_row) for entry_row in paused]


@dataclass(frozen=True, slots=True)
class NoteActivity:
    """Note whom an agent has just been spoken with, and what waits there; None: as it was. Answers what is known then."""

    name: str
    target: Target | None = None
    title: str | None = None
    queue: int | None = None
    approvals: int | None = None

    def apply(self, tick: Tick) -> dict[str, Any]:
        """Only a target that messages can go to is taken, and nothing else with one that is not."""
        entry_row = _declared_entry(tick, Kind.HEARTBEAT, self.name)
        if self.target is not None:
            try:
                target_urls.check_target(tick.plan.settings.channels, self.target)
            except ValueError as error:
                raise Refused("bad_request", str(error)) from None
            targets.record_target(tick.tx, self.name, self.target, self.title)
        noted = self._with_counts(tick, entry_row)
        entries.change_entry(tick.tx, entry_row, noted)
        last = next(iter(targets.known_targets(tick.tx.db, self.name)), None)
        return {"last": last, "queue": noted.queue, "pending_approvals": noted.approvals}

    def _with_counts(self, tick: Tick, entry_row: EntryRow) -> EntryRow:
        if self.queue is None and self.approvals is None:
            return entry_row
        queue = entry_row.queue if self.queue is None else self.queue
        approvals = entry_row.approvals if self.approvals is None else self.approvals
        return entry_row._replace(queue=queue, approvals=approvals, active_at=tick.now)


@dataclass(frozen=True, slots=True)
class HoldLane:
    """Hold an agent's lane until a time, under an id; asked again, that moves the time. Answers the run in progress, or None."""

    name: str
    holder: str
    until: datetime

    def apply(self, tick: Tick) -> int | None:
        """A beat in progress goes on: whoever holds the lane has it once that has ended."""
        entry_row = _declared_entry(tick, Kind.HEARTBEAT, self.name)
        if not lane_holds.save_hold(tick.tx, self.name, self.holder, self.until):
            raise Refused("too_many", f"the lane of agent {self.name!r} is already held by {lane_holds.MOST} others")
        run = runs.find_open_run(tick.tx.db, entry_row.kind, entry_row.name)
        return run.run_id if run is not None and run.state == "running" else None


@dataclass(frozen=True, slots=True)
class ReleaseLane:
    """Let go of an agent's lane; for one who does not hold it there is nothing to do."""

    name: str
    holder: str

    def apply(self, tick: Tick) -> None:
        """What waits for the lane need not wait for its next look."""
        _declared_entry(tick, Kind.HEARTBEAT, self.name)
        lane_holds.delete_hold(tick.tx, self.name, self.holder)
        if lane_holds.is_lane_held(tick.tx, self.name):
            return
        for kind, name, _ in runs.all_open_runs(tick.tx.db):
            entry = tick.plan.entries.get((kind, name))
            if entry is not None and entry.lane == self.name:
                planning.retry_waiting_run(tick.tx, entries.get_entry(tick.tx, kind, name), Skip.BUSY)


@dataclass(frozen=True, slots=True)
class AdoptPlan:
    """Put a new plan in force; it was made before and cannot fail any more. Answers what it changes."""

    plan: Plan

    def apply(self, tick: Tick) -> Diff:
        """The standing rows follow the plan in the same transaction."""
        before = tick.plan
        tick.adopt_plan(self.plan)
        plan_sync.sync_entries(tick, before.entries)
        budget_reservations.adopt_budgets(tick)
        boots.record_config(tick.tx)
        breakers.allow_probes_now(tick.tx)
        wake_starts.reconsider_waiting(tick, other_config=True)
        tick.tx.report(SettingsApplied(self.plan.settings))
        return diff(before.settings, self.plan.settings)


@dataclass(frozen=True, slots=True)
class NoteRejectedConfig:
    """Note that a changed config was refused, for those who ask how the daemon does."""

    problem: str

    def apply(self, tick: Tick) -> None:
        """Nothing else changes."""
        boots.record_config_problem(tick.tx, self.problem)


@dataclass(frozen=True, slots=True)
class NoteDeadmanProblem:
    """Note why pings to the dead man's switch do not arrive, or (None) that they do again, for those who ask."""

    problem: str | None

    def apply(self, tick: Tick) -> None:
        """Nothing else changes."""
        boots.record_deadman_problem(tick.tx, self.problem)


def _kind_and_name(entry_row: EntryRow) -> str:
    """The name as people write it where an agent and a job bear the same one."""
    return f"{'agent' if entry_row.kind is Kind.HEARTBEAT else 'cron'}/{entry_row.name}"


def _declared_entry(tick: Tick, kind: Kind, name: str) -> EntryRow:
    entry_row = entries.current_entry(tick.tx, kind, name)
    if entry_row is None or (kind, name) not in tick.plan.entries:
        what = "agent" if kind is Kind.HEARTBEAT else "cron job"
        others = [other for each, other in tick.plan.entries if each is kind]
        instead = did_you_mean(name, others) or "; `heartbeatd status` lists them"
        raise Refused("not_found", f"no {what} {name!r} in {tick.plan.settings.path.name}{instead}")
    return entry_row


def _chosen_entries(tick: Tick, key: Key | None) -> Iterable[EntryRow]:
    if key is not None:
        return [_declared_entry(tick, *key)]
    return [entry_row for entry_row in entries.all_entries(tick.tx.db) if (entry_row.kind, entry_row.name) in tick.plan.entries]


UNSENDABLE_STATES = {
    DeliveryState.DELIVERED: "has been delivered",
    DeliveryState.DROPPED: "has been dropped",
    DeliveryState.SENDING: "is being sent; wait for the result before you resend or drop it",
}


@dataclass(frozen=True, slots=True)
class ResendMessage:
    """Send a message that waits, is held or was given up as soon as possible, under the key that it has. Answers its channel."""

    message_id: int

    def apply(self, tick: Tick) -> str:
        """One that is older than a day gets this one attempt."""
        message = _undelivered_message(tick.tx, self.message_id)
        outbox.resend_message(tick.tx, message)
        return message.channel


@dataclass(frozen=True, slots=True)
class DropMessage:
    """Give a message up for good: it ends as `dropped`. Answers its channel."""

    message_id: int

    def apply(self, tick: Tick) -> str:
        """Its text stays readable in its run, and the same text may be said again."""
        message = _undelivered_message(tick.tx, self.message_id)
        outbox.drop_message(tick.tx, message)
        return message.channel


def _undelivered_message(tx: Transaction, message_id: int) -> OutboxMessage:
    found = outbox.find_message(tx.db, message_id)
    if found is None:
        raise Refused("not_found", f"no message {message_id}; `heartbeatd outbox` lists them")
    message, state = found
    if state in UNSENDABLE_STATES:
        why = f" ({message.error})" if state is DeliveryState.DROPPED and message.error else ""
        raise Refused(state, f"message {message_id} {UNSENDABLE_STATES[state]}{why}")
    return message

"""The requests of people and programs to a running daemon: wake, run, pause, lanes, messages, conditions, a new config."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from heartbeat.findings import MAX_KEY, comparable_key
from heartbeatd.answers import RecordedActivity
from scheduler.channels import target_urls
from scheduler.config.file.message_parts import did_you_mean
from scheduler.engine import budget_reservations, condition_updates, mutes, plan_sync, planning, wake_starts
from scheduler.engine.inbox import Refused
from scheduler.engine.tick import Tick
from scheduler.model.condition import Condition, EndedBy
from scheduler.model.config_changes import ConfigEvent
from scheduler.model.entry import Claim, Key
from scheduler.model.entry_row import UNTIL_RESUMED, EntryRow
from scheduler.model.events import AcknowledgementEnded, ConditionAcknowledged, ConditionClosed, PauseChanged, SettingsApplied
from scheduler.model.mute import parse_mute
from scheduler.model.outcome import DeliveryState, Kind, Skip, Trigger
from scheduler.model.settings import Target
from scheduler.model.wake import RejectedBecause, Wake
from scheduler.store import (
    boots,
    breakers,
    conditions,
    config_history,
    entries,
    lane_holds,
    outbox,
    run_history,
    runs,
    slot_records,
    targets,
    wakes,
)
from scheduler.store.outbox import OutboxMessage
from scheduler.store.transaction import Transaction
from scheduler.work.plan import ConfigChanges, Plan, compare_settings


@dataclass(frozen=True, slots=True)
class WakeAgent:
    """Wake an agent. `cause` is the mark of the run that sends the wake, if any. Returns the wake's id."""

    wake: Wake
    cause: str | None = None

    def apply(self, tick: Tick) -> int:
        """A wake by a run of the agent itself is rejected, because it could repeat without end."""
        entry_row = _declared_entry(tick, Kind.HEARTBEAT, self.wake.name)
        if entry_row.state != "active":
            slot_records.record_skip(tick.tx, entry_row, Trigger(self.wake.source), Skip.DISABLED, tick.now)
            wakes.reject_wake(tick.tx, self.wake, RejectedBecause.DISABLED)
            raise Refused(Skip.DISABLED, f"agent {self.wake.name!r} is disabled in {tick.plan.settings.path.name}")
        run = runs.find_open_run(tick.tx.db, Kind.HEARTBEAT, self.wake.name)
        if run is not None and self.cause == f"{run.owner}/{run.run_id}":
            wakes.reject_wake(tick.tx, self.wake, RejectedBecause.OWN_RUN)
            raise Refused("own_run", f"agent {self.wake.name!r} cannot wake itself from within its own run")
        return wake_starts.accept_wake(tick, entry_row, self.wake)


JOB_OBSTACLE_TEXTS = {
    Skip.DISABLED: "disabled in the config",
    Skip.PAUSED: "paused; resume it first",
    Skip.ALREADY_RUNNING: "already running",
}


@dataclass(frozen=True, slots=True)
class RunJob:
    """Run a cron job now, in addition to its schedule. Returns the id of the wake that starts its run."""

    name: str
    source: Trigger

    def apply(self, tick: Tick) -> int:
        """A job that is disabled, paused or running is refused, and the skip is recorded."""
        entry_row = _declared_entry(tick, Kind.CRON, self.name)
        obstacle = _obstacle_to_job(tick.tx, entry_row)
        if obstacle is not None:
            slot_records.record_skip(tick.tx, entry_row, self.source, obstacle, tick.now)
            raise Refused(obstacle, f"cron job {self.name!r} is {JOB_OBSTACLE_TEXTS[obstacle]}")
        return wake_starts.accept_wake(tick, entry_row, Wake(self.name, source=self.source, sender=self.source, kind=Kind.CRON))


def _obstacle_to_job(tx: Transaction, entry_row: EntryRow) -> Skip | None:
    if entry_row.state != "active":
        return Skip.DISABLED
    if entry_row.paused:
        return Skip.PAUSED
    running = runs.find_open_run(tx.db, entry_row.kind, entry_row.name) is not None
    return Skip.ALREADY_RUNNING if running else None


@dataclass(frozen=True, slots=True)
class PauseEntries:
    """Pause one entry, or all of them (`key` None), until a time or until resumed. Returns their names.

    `by` is who wants that: command, or token NAME.
    """

    key: Key | None
    until: datetime | None
    by: str

    def apply(self, tick: Tick) -> list[str]:
        """Slots that came due before the pause are recorded with their own reason."""
        chosen = list(_chosen_entries(tick, self.key))
        for entry_row in chosen:
            settled = entry_row if entry_row.paused else planning.record_passed_slots(tick, entry_row, Skip.MISSED)
            since = settled.paused_at if settled.paused else tick.now
            paused = settled._replace(paused_until=self.until or UNTIL_RESUMED, paused_at=since, paused_by=self.by)
            planning.save_with_next_due(tick.tx, entry_row, paused)
            tick.tx.report(PauseChanged(entry_row.kind, entry_row.name, True, self.by, self.until))
        return [entry_row.kind.label_of(entry_row.name) for entry_row in chosen]


@dataclass(frozen=True, slots=True)
class ResumeEntries:
    """Resume one entry, or all of them (`key` None). Returns the names of those that were paused. `by` is who wants that."""

    key: Key | None
    by: str

    def apply(self, tick: Tick) -> list[str]:
        """The slots of the pause are recorded as one skip with a count."""
        paused = [entry_row for entry_row in _chosen_entries(tick, self.key) if entry_row.paused]
        for entry_row in paused:
            planning.save_with_next_due(tick.tx, entry_row, planning.end_pause(tick, entry_row, tick.now))
            tick.tx.report(PauseChanged(entry_row.kind, entry_row.name, False, self.by, None))
        return [entry_row.kind.label_of(entry_row.name) for entry_row in paused]


@dataclass(frozen=True, slots=True)
class NoteActivity:
    """Record the target of an agent's latest conversation, and its counts; None: unchanged. Returns the recorded values."""

    name: str
    target: Target | None = None
    title: str | None = None
    queue: int | None = None
    approvals: int | None = None

    def apply(self, tick: Tick) -> RecordedActivity:
        """If messages cannot be sent to the target, the whole request is refused."""
        entry_row = _declared_entry(tick, Kind.HEARTBEAT, self.name)
        if self.target is not None:
            try:
                target_urls.check_target(tick.plan.settings.channels, self.target)
            except ValueError as error:
                raise Refused("bad_request", str(error)) from None
            targets.record_target(tick.tx, self.name, self.target, self.title)
        updated_row = self._with_counts(entry_row, tick.now)
        entries.change_entry(tick.tx, entry_row, updated_row)
        last = next(iter(targets.known_targets(tick.tx.db, self.name)), None)
        return RecordedActivity(last=last, queue=updated_row.queue, pending_approvals=updated_row.approvals)

    def _with_counts(self, entry_row: EntryRow, now: datetime) -> EntryRow:
        if self.queue is None and self.approvals is None:
            return entry_row
        queue = entry_row.queue if self.queue is None else self.queue
        approvals = entry_row.approvals if self.approvals is None else self.approvals
        return entry_row._replace(queue=queue, approvals=approvals, active_at=now)


@dataclass(frozen=True, slots=True)
class HoldLane:
    """Hold an agent's lane until a time. A holder may extend its hold. Returns the id of the run in progress, or None."""

    name: str
    holder: str
    until: datetime

    def apply(self, tick: Tick) -> int | None:
        """A run in progress continues. The holder has the lane once it has ended."""
        entry_row = _declared_entry(tick, Kind.HEARTBEAT, self.name)
        if not lane_holds.save_hold(tick.tx, self.name, self.holder, self.until):
            raise Refused(
                "too_many", f"the lane of agent {self.name!r} is already held by {lane_holds.MAX_HOLDS_PER_AGENT} others"
            )
        run = runs.find_open_run(tick.tx.db, entry_row.kind, entry_row.name)
        return run.run_id if run is not None and run.state == "running" else None


@dataclass(frozen=True, slots=True)
class ReleaseLane:
    """Release an agent's lane. A holder that does not hold it may do so too."""

    name: str
    holder: str

    def apply(self, tick: Tick) -> None:
        """Runs that wait for the lane start at once."""
        _declared_entry(tick, Kind.HEARTBEAT, self.name)
        lane_holds.delete_hold(tick.tx, self.name, self.holder)
        if lane_holds.is_lane_held(tick.tx, self.name):
            return
        for kind, name, _ in runs.all_open_runs(tick.tx.db):
            entry = tick.plan.entries.get((kind, name))
            if entry is not None and entry.lane == self.name:
                planning.retry_waiting_run(tick.tx, entries.get_entry(tick.tx, kind, name), Skip.BUSY)


UNSENDABLE_STATES = {
    DeliveryState.DELIVERED: "has been delivered",
    DeliveryState.DROPPED: "has been dropped",
    DeliveryState.SENDING: "is being sent; wait for the result before you resend or drop it",
}


@dataclass(frozen=True, slots=True)
class ResendMessage:
    """Send a waiting, held or dead message as soon as possible, with the same key. Returns its channel."""

    message_id: int

    def apply(self, tick: Tick) -> str:
        """A message that is older than a day gets a single attempt."""
        message = _undelivered_message(tick.tx, self.message_id)
        outbox.resend_message(tick.tx, message)
        return message.channel


@dataclass(frozen=True, slots=True)
class DropMessage:
    """Give a message up permanently, with the state `dropped`. Returns its channel."""

    message_id: int

    def apply(self, tick: Tick) -> str:
        """Its text remains readable in its run. The same text may be sent again."""
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


@dataclass(frozen=True, slots=True)
class CloseCondition:
    """Close an open condition of an agent without a message. Returns its key as the agent wrote it.

    The key is compared without case and blanks. If the agent mentions the condition again, it opens again (`close_for_user`).
    """

    name: str
    key: str

    def apply(self, tick: Tick) -> str:
        """Conditions of an agent that was removed from the config can be closed too."""
        found = _open_condition(tick, self.name, self.key)
        entry_row = entries.current_entry(tick.tx, Kind.HEARTBEAT, self.name)
        unsettled = condition_updates.close_for_user(tick.tx, found, is_muted=bool(entry_row and entry_row.is_muted(tick.now)))
        if entry_row is not None:
            entries.change_entry(tick.tx, entry_row, entry_row._replace(conditions=unsettled))
        tick.tx.report(ConditionClosed(found.name, found.label, EndedBy.USER))
        return found.label


def _open_condition(tick: Tick, name: str, key: str) -> Condition:
    """The open condition of an agent with this key. Raises Refused if there is none."""
    known = conditions.conditions_of(tick.tx.db, name)
    if not known:
        _declared_entry(tick, Kind.HEARTBEAT, name)
    found = next((each for each in known if each.key == comparable_key(key)), None)
    if found is None:
        instead = did_you_mean(key, [each.label for each in known if each.is_open])
        listed = instead or "; `heartbeatd conditions` lists them"
        raise Refused("not_found", f"agent {name!r} has no condition {_quote_key(key)}{listed}")
    if not found.is_open:
        raise Refused("closed", f"the condition {_quote_key(found.label)} of agent {name!r} is closed already")
    return found


def _quote_key(key: str) -> str:
    return repr(key if len(key) <= MAX_KEY else f"{key[:MAX_KEY]}...")


@dataclass(frozen=True, slots=True)
class MuteEntry:
    """Suppress the messages of an entry until a time (None: until it is unmuted), or until something changes.

    Returns the end of the mute; None: until it is unmuted. Its runs continue.
    """

    key: Key
    until: datetime | None
    by: str
    until_changed: bool = False

    def apply(self, tick: Tick) -> datetime | None:
        """A further mute replaces the first."""
        entry_row = _declared_entry(tick, *self.key)
        until = self.until or UNTIL_RESUMED
        muted = mutes.start_mute(
            tick.tx, tick.plan.entries[self.key], entry_row, until, self.by, until_changed=self.until_changed
        )
        entries.change_entry(tick.tx, entry_row, muted)
        return self.until


@dataclass(frozen=True, slots=True)
class UnmuteEntry:
    """Stop suppressing the messages of an entry. Returns how many runs had suppressed messages; None: it was not muted."""

    key: Key
    by: str

    def apply(self, tick: Tick) -> int | None:
        """Open conditions that have not been reported yet, and failures that last, are reported with the next run."""
        entry_row = _declared_entry(tick, *self.key)
        if not entry_row.is_muted(tick.now) or entry_row.mute is None:
            return None
        entries.change_entry(tick.tx, entry_row, mutes.end_mute(tick.tx, entry_row, self.by))
        return parse_mute(entry_row.mute).held


@dataclass(frozen=True, slots=True)
class AcknowledgeConditions:
    """Keep open conditions of an agent quiet until they get worse or end: the one with this key, or those of a run.

    Returns the keys as the agent wrote them. The key is compared without case and blanks.
    """

    name: str
    by: str
    key: str | None = None
    run_id: int | None = None

    def apply(self, tick: Tick) -> list[str]:
        """A run without open conditions, and a key without an open condition, are refused."""
        found = _open_conditions(tick, self.name, self.key, self.run_id)
        for condition in found:
            acknowledged = replace(condition, acked_at=tick.now, acked_severity=condition.severity, acked_by=self.by)
            conditions.save_condition(tick.tx, acknowledged)
            tick.tx.report(ConditionAcknowledged(self.name, condition.label, self.by))
        return [condition.label for condition in found]


@dataclass(frozen=True, slots=True)
class UnacknowledgeConditions:
    """Report open conditions of an agent again that were acknowledged: the one with this key, or those of a run.

    Returns the keys of those that were acknowledged, as the agent wrote them. The key is compared without case and blanks.
    """

    name: str
    by: str
    key: str | None = None
    run_id: int | None = None

    def apply(self, tick: Tick) -> list[str]:
        """The next run sends a reminder if it is due. A run or a key without an open condition is refused."""
        found = [each for each in _open_conditions(tick, self.name, self.key, self.run_id) if each.acked_at is not None]
        for condition in found:
            conditions.save_condition(tick.tx, replace(condition, acked_at=None, acked_severity=None, acked_by=""))
            tick.tx.report(AcknowledgementEnded(self.name, condition.label, self.by))
        return [condition.label for condition in found]


def _open_conditions(tick: Tick, name: str, key: str | None, run_id: int | None) -> list[Condition]:
    """The open condition of an agent with this key, or (None) those of a run. Raises Refused if there is none."""
    if key is not None:
        return [_open_condition(tick, name, key)]
    assert run_id is not None
    run = run_history.get_run(tick.tx.db, run_id)
    keys = {comparable_key(each.key) for each in run.findings} if run else set()
    found = [each for each in conditions.open_conditions_of(tick.tx.db, name) if each.key in keys]
    if not found:
        problem = f"run {run_id} of agent {name!r} has no open condition"
        raise Refused("not_found", f"{problem}; `heartbeatd conditions` lists them")
    return found


@dataclass(frozen=True, slots=True)
class AdoptPlan:
    """Apply a new, valid plan. Returns what it changes. `event` is the record of the reload."""

    plan: Plan
    event: ConfigEvent | None = None

    def apply(self, tick: Tick) -> ConfigChanges:
        """The entry rows are made to agree with the plan in the same transaction."""
        before = tick.plan
        tick.adopt_plan(self.plan)
        plan_sync.sync_entries(tick, before.entries)
        budget_reservations.adopt_budgets(tick.tx, self.plan.settings)
        budget_reservations.record_budgets(tick.tx, self.plan.settings)
        boots.record_config(tick.tx)
        if self.plan.stored_config:
            config_history.record_config_in_force(tick.tx, self.plan.stored_config)
        if self.event:
            config_history.record_config_event(tick.tx, self.event)
        breakers.allow_probes_now(tick.tx)
        wake_starts.retry_blocked_runs_and_wakes(tick, other_config=True)
        tick.tx.report(SettingsApplied(self.plan.settings))
        return compare_settings(before.settings, self.plan.settings)


@dataclass(frozen=True, slots=True)
class NoteRejectedConfig:
    """Record that a changed config was rejected, and who requested the reload. `is_new` False: it was recorded before."""

    problem: str
    by: str
    is_new: bool = True

    def apply(self, tick: Tick) -> None:
        """Record it. Nothing else changes."""
        boots.record_config_problem(tick.tx, self.problem)
        if self.is_new:
            config_history.record_config_event(tick.tx, ConfigEvent("refused", self.by, problem=self.problem))


@dataclass(frozen=True, slots=True)
class NoteWorkersOfRuns:
    """Record which workers execute runs in progress."""

    workers: Sequence[tuple[Claim, str]]

    def apply(self, tick: Tick) -> None:
        """Record them in the runs that still belong to their claims. Nothing else changes."""
        for claim, worker in self.workers:
            runs.record_worker(tick.tx, claim, worker)


@dataclass(frozen=True, slots=True)
class NoteDeadmanProblem:
    """Record why pings to the dead man's switch do not arrive, or (None) that they arrive again, for status."""

    problem: str | None

    def apply(self, tick: Tick) -> None:
        """Record it. Nothing else changes."""
        boots.record_deadman_problem(tick.tx, self.problem)


@dataclass(frozen=True, slots=True)
class NoteWorkersProblem:
    """Record why no worker executes a run, or (None) that at least one can, for status."""

    problem: str | None

    def apply(self, tick: Tick) -> None:
        """Record it. Nothing else changes."""
        boots.record_workers_problem(tick.tx, self.problem)


def _declared_entry(tick: Tick, kind: Kind, name: str) -> EntryRow:
    entry_row = entries.current_entry(tick.tx, kind, name)
    if entry_row is None or (kind, name) not in tick.plan.entries:
        others = [other for each, other in tick.plan.entries if each is kind]
        instead = did_you_mean(name, others) or "; `heartbeatd status` lists them"
        raise Refused("not_found", f"no {kind.noun} {name!r} in {tick.plan.settings.path.name}{instead}")
    return entry_row


def _chosen_entries(tick: Tick, key: Key | None) -> Iterable[EntryRow]:
    if key is not None:
        return [_declared_entry(tick, *key)]
    return [entry_row for entry_row in entries.all_entries(tick.tx.db) if (entry_row.kind, entry_row.name) in tick.plan.entries]

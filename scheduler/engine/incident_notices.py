"""Decides when the recipients of an entry are notified: it fails, still fails, fails differently, works again, or flaps."""

from __future__ import annotations

from dataclasses import replace

from heartbeat.verdict import message_digest
from scheduler.engine import held_notices, mutes, notices, outage_notices
from scheduler.engine.held_notices import Woken
from scheduler.engine.notices import FailureHistory, Notice
from scheduler.engine.tick import Tick
from scheduler.model.entry import Claim, Entry
from scheduler.model.entry_row import EntryRow
from scheduler.model.events import MessageMoved
from scheduler.model.mute import parse_mute
from scheduler.model.outcome import ANSWERED, FAILURES, AttemptResult, DeliveryState, Kind, Outcome, Reason, Skip, Trigger
from scheduler.model.settings import LOG_CHANNEL, OnFailure, Target
from scheduler.model.wake import Wake
from scheduler.store import breakers, entries, flapping, incidents, outbox, runs
from scheduler.store.incidents import CHANNEL, Incident
from scheduler.store.outbox import Origin, OutboxMessage
from scheduler.store.transaction import Transaction

MAX_ERRORS_REPORTED = 5  # different errors of one incident that are reported at once; further ones wait for the reminder

CHECK_ORDER = tuple(Skip)  # the order in which a heartbeat run is checked

# The results of the same check. A new result replaces the previous one of this check.
SAME_CHECK = (
    {Skip.CHECKLIST_MISSING, Skip.CHECKLIST_EMPTY, Skip.CHECKLIST_UNREADABLE, Skip.CHECKLIST_TOO_LARGE},
    {Skip.PRECHECK, Skip.PRECHECK_UNCHANGED, Skip.PRECHECK_FAILED},
)


def update_incident(
    tick: Tick,
    claim: Claim,
    result: AttemptResult,
    entry_row: EntryRow,
    woken: Woken = (),
    covered: frozenset[Target] = frozenset(),
) -> EntryRow:
    """Update the incident of an entry after a run, and queue notifications. Returns the updated entry row.

    `woken` are the agents that this result has woken. `covered` are the targets that know already that the entry works again.

    1. The run failed because of a provider: its outage is reported, not each affected entry.
    2. The run failed for another reason: the entry's incident is opened or continued.
    3. The agent was called although its precheck failed: the precheck's incident is opened or continued.
    4. The run ends an incident: the recovery is reported.

    While the entry is muted, nothing is sent. What is still true after the mute is sent then.
    A successful run without an open incident needs no database access.
    """
    updated = _update_incident(tick, claim, result, entry_row, woken, covered)
    return updated if updated.mute is None or updated.is_muted(tick.now) else _after_mute(tick, claim, updated, covered)


def _after_mute(tick: Tick, claim: Claim, entry_row: EntryRow, covered: frozenset[Target]) -> EntryRow:
    """The row of an entry whose mute is over. If it recovered during the mute and still works, that is sent now."""
    assert entry_row.mute is not None
    recovery = parse_mute(entry_row.mute).recovery
    if recovery and not entry_row.troubles:
        held_notices.send_or_hold_notice(tick, claim, Notice.RECOVERED, recovery, (), covered)
    return entry_row._replace(muted_until=None, mute=None)


def _update_incident(
    tick: Tick, claim: Claim, result: AttemptResult, entry_row: EntryRow, woken: Woken, covered: frozenset[Target]
) -> EntryRow:
    if _is_failure(result) and claim.entry.on_failure.after:
        blamed = outage_notices.find_blame(tick.tx, claim, result)
        if blamed is not None:
            return _blame_outage(tick, claim, result, entry_row, blamed)
        has_closed = result.reason is Skip.BREAKER_OPEN  # the breaker has closed in the meantime
        return entry_row if has_closed else _record_failure(tick, claim, result, entry_row, woken)
    if result.precheck_problem and result.outcome in ANSWERED and claim.entry.on_failure.after:
        return _record_precheck_failure(tick, claim, result, entry_row)
    if (entry_row.troubles or entry_row.flapping) and _ends_incident(tick.tx, claim, result):
        return _record_recovery(tick, claim, result, entry_row, covered)
    return entry_row


def has_failure_changed(tx: Transaction, claim: Claim, result: AttemptResult, entry_row: EntryRow, known: str | None) -> bool:
    """Whether an entry begins to fail, fails for another reason than `known`, or works again. `known` is None if it worked.

    It never does with `on_failure: none`, because failures are not reported then. While a provider fails, its open breaker is no
    other reason than its refusals.
    """
    after = claim.entry.on_failure.after
    if not after:
        return False
    failing = _failing_reason(result)
    if failing is not None:
        return failing != known and entry_row.troubles + 1 >= after and not _is_same_outage(tx, claim, result, known)
    return known is not None and _ends_incident(tx, claim, result)


def _is_same_outage(tx: Transaction, claim: Claim, result: AttemptResult, known: str | None) -> bool:
    was, blamed = incidents.find_incident(tx.db, *claim.entry.key), outage_notices.find_blame(tx, claim, result)
    if was is None or blamed is None:
        return False
    return was.circuit == blamed.circuit and known in (blamed.reason, Skip.BREAKER_OPEN)


def _failing_reason(result: AttemptResult) -> str | None:
    """The reason for which a run counts as a failure; None if it does not."""
    if _is_failure(result):
        return result.reason
    return Skip.PRECHECK_FAILED if result.precheck_problem and result.outcome in ANSWERED else None


def _is_failure(result: AttemptResult) -> bool:
    if result.outcome is Outcome.SKIPPED:
        return result.reason in notices.SKIP_EXPLANATIONS
    return result.outcome in FAILURES and result.reason is not Reason.CANCELLED


def _blame_outage(
    tick: Tick, claim: Claim, result: AttemptResult, entry_row: EntryRow, blamed: outage_notices.FailedCircuit
) -> EntryRow:
    """Record the failure in the entry's incident, for `status`, and leave the notifications to the provider's outage."""
    entry, count = claim.entry, entry_row.troubles + 1
    was = _incident_or_new(tick.tx, claim, entry_row)
    now = replace(was, reason=_lasting_reason(was.reason, result), circuit=blamed.circuit)
    incidents.save_incident(tick.tx, entry.kind, entry.name, now)
    outage_notices.record_outage_failure(tick, claim, blamed, count)
    return entry_row._replace(troubles=count)


def _record_failure(tick: Tick, claim: Claim, result: AttemptResult, entry_row: EntryRow, woken: Woken = ()) -> EntryRow:
    entry, count = claim.entry, entry_row.troubles + 1
    was = _incident_or_new(tick.tx, claim, entry_row)
    if entry_row.is_muted(tick.now):
        muted = replace(was, reason=_lasting_reason(was.reason, result), circuit=None)
        incidents.save_incident(tick.tx, entry.kind, entry.name, muted)
        is_held = count >= entry.on_failure.after and was.notified_at is None
        return (mutes.count_held(entry_row) if is_held else entry_row)._replace(troubles=count)
    fault = message_digest(result.error or result.reason or "", "numbers")
    faults = was.faults if fault in was.faults or len(was.faults) >= MAX_ERRORS_REPORTED else (*was.faults, fault)
    now = replace(was, faults=faults, reason=_lasting_reason(was.reason, result), circuit=None)
    notice = _notice_to_send(tick.tx, claim, was, now, count)
    if notice is Notice.FLAPPING and was.flapping_at is None:
        now = replace(now, flapping_at=tick.now)
    if notice is Notice.STEADY:
        now = replace(now, flapping_at=None)
    if notice is not None:
        text = notices.failure_text(notice, claim, result, _history_of(tick, now, count))
        held_notices.send_or_hold_notice(tick, claim, notice, text, woken)
        now = replace(now, notified_at=tick.now)
    incidents.save_incident(tick.tx, entry.kind, entry.name, now)
    return entry_row._replace(troubles=count, flapping=int(now.flapping_at is not None))


def _record_precheck_failure(tick: Tick, claim: Claim, result: AttemptResult, entry_row: EntryRow) -> EntryRow:
    """Record a failed precheck of an agent that was called anyway. Its answer ends any incident with another cause."""
    was = incidents.find_incident(tick.tx.db, claim.entry.kind, claim.entry.name) if entry_row.troubles else None
    if was is not None and was.reason != Skip.PRECHECK_FAILED:
        entry_row = _record_recovery(tick, claim, result, entry_row)
        if not entry_row.flapping:
            # One cause replaces another, which is not flapping.
            flapping.delete_changes(tick.tx, claim.entry.kind, claim.entry.name)
    failing = replace(result, reason=Skip.PRECHECK_FAILED, error=result.precheck_problem)
    return _record_failure(tick, claim, failing, entry_row)


def _incident_or_new(tx: Transaction, claim: Claim, entry_row: EntryRow) -> Incident:
    """The incident of an entry, or a new one. A flapping entry that worked until now starts to fail now."""
    known = entry_row.troubles or entry_row.flapping
    was = incidents.find_incident(tx.db, claim.entry.kind, claim.entry.name) if known else None
    if was is None:
        return Incident(tx.now)
    return was if entry_row.troubles else replace(was, since=tx.now, reason=None, circuit=None)


def _lasting_reason(before: str | None, result: AttemptResult) -> str | None:
    """The reason of an incident. A failure remains the reason during later skips, because only an answer ends it."""
    return before if before and before not in CHECK_ORDER and isinstance(result.reason, Skip) else result.reason


def _notice_to_send(tx: Transaction, claim: Claim, was: Incident, now: Incident, count: int) -> Notice | None:
    """The notification to send after a further failure; None if it is not due."""
    entry, rule = claim.entry, claim.entry.on_failure
    if was.flapping_at is not None:
        return _notice_while_flapping(tx, claim, was, count)
    if was.notified_at is None:
        if count < rule.after:
            return None
        return Notice.FLAPPING if flapping.record_change(tx, entry.kind, entry.name) else Notice.FAILING
    if now.faults != was.faults:
        return Notice.CHANGED
    return Notice.REMINDER if tx.now - was.notified_at >= rule.remind else None


def _notice_while_flapping(tx: Transaction, claim: Claim, was: Incident, count: int) -> Notice | None:
    entry, rule = claim.entry, claim.entry.on_failure
    if count == rule.after:
        flapping.record_change(tx, entry.kind, entry.name)
    elif count > rule.after and flapping.is_stable(tx, entry.kind, entry.name):
        flapping.delete_changes(tx, entry.kind, entry.name)
        return Notice.STEADY
    return Notice.FLAPPING if _reminder_is_due(tx, was, rule) else None


def _reminder_is_due(tx: Transaction, was: Incident, rule: OnFailure) -> bool:
    return was.notified_at is None or tx.now - was.notified_at >= rule.remind


def _ends_incident(tx: Transaction, claim: Claim, result: AttemptResult) -> bool:
    """Whether a run ends the incident. An answer ends any; a skip ends one that an earlier check caused."""
    if not isinstance(result.reason, Skip):
        return result.outcome in ANSWERED
    was = incidents.find_incident(tx.db, claim.entry.kind, claim.entry.name)
    if was is None or was.reason not in CHECK_ORDER:
        return False
    cause = Skip(was.reason)
    still_open = cause is Skip.BREAKER_OPEN and breakers.has_open_breaker(tx, claim.entry)  # the probe made no call
    return not still_open and _passed_check(cause, result.reason)


def _passed_check(cause: Skip, reason: Skip) -> bool:
    return CHECK_ORDER.index(reason) > CHECK_ORDER.index(cause) or any({cause, reason} <= check for check in SAME_CHECK)


def _record_recovery(
    tick: Tick, claim: Claim, result: AttemptResult, entry_row: EntryRow, covered: frozenset[Target] = frozenset()
) -> EntryRow:
    entry = claim.entry
    was = incidents.find_incident(tick.tx.db, entry.kind, entry.name)
    if was is not None and was.circuit is not None and result.outcome in ANSWERED:
        outage_notices.record_working(tick, claim, was.circuit)
    if was is not None and was.flapping_at is not None and entry.on_failure.after:
        return _record_recovery_while_flapping(tick, claim, was, entry_row, covered)
    incidents.close_incident(tick.tx, entry.kind, entry.name)
    if not entry.on_failure.after or was is None or was.notified_at is None:
        return entry_row._replace(troubles=0, flapping=0)
    text = notices.recovery_text(claim, was.reason, _history_of(tick, was, entry_row.troubles))
    if entry_row.is_muted(tick.now):
        return mutes.keep_recovery(entry_row, text)._replace(troubles=0, flapping=0)
    if not flapping.record_change(tick.tx, entry.kind, entry.name):
        held_notices.send_or_hold_notice(tick, claim, Notice.RECOVERED, text, (), covered)
        return entry_row._replace(troubles=0, flapping=0)
    held_notices.send_or_hold_notice(tick, claim, Notice.FLAPPING, notices.flapping_text(claim), (), covered)
    now = Incident(tick.now, notified_at=tick.now, flapping_at=tick.now)
    incidents.save_incident(tick.tx, entry.kind, entry.name, now)
    return entry_row._replace(troubles=0, flapping=1)


def _record_recovery_while_flapping(
    tick: Tick, claim: Claim, was: Incident, entry_row: EntryRow, covered: frozenset[Target]
) -> EntryRow:
    """Record that a flapping entry works. It is reported after an hour without changes, and before that only as a reminder."""
    entry = claim.entry
    if entry_row.troubles >= entry.on_failure.after and was.circuit is None:
        flapping.record_change(tick.tx, entry.kind, entry.name)
    elif flapping.is_stable(tick.tx, entry.kind, entry.name):
        flapping.delete_changes(tick.tx, entry.kind, entry.name)
        incidents.close_incident(tick.tx, entry.kind, entry.name)
        if entry_row.is_muted(tick.now):
            return mutes.keep_recovery(entry_row, notices.stable_text(claim))._replace(troubles=0, flapping=0)
        held_notices.send_or_hold_notice(tick, claim, Notice.RECOVERED, notices.stable_text(claim), (), covered)
        return entry_row._replace(troubles=0, flapping=0)
    now = replace(was, since=tick.now, circuit=None)
    if _reminder_is_due(tick.tx, was, entry.on_failure) and not entry_row.is_muted(tick.now):
        held_notices.send_or_hold_notice(tick, claim, Notice.FLAPPING, notices.flapping_text(claim), (), covered)
        now = replace(now, notified_at=tick.now)
    incidents.save_incident(tick.tx, entry.kind, entry.name, now)
    return entry_row._replace(troubles=0)


def _history_of(tick: Tick, incident: Incident, count: int) -> FailureHistory:
    return FailureHistory(count, incident.since, tick.now, tick.plan.settings.zone)


def notify_expired_wakes(tick: Tick, entry: Entry, expired: tuple[Wake, ...]) -> None:
    """Report the wakes of an agent that expired together, in one notification. If the agent is muted, only the log has them."""
    entry_row = entries.current_entry(tick.tx, entry.kind, entry.name)
    if entry_row is not None and entry_row.is_muted(tick.now):
        entries.change_entry(tick.tx, entry_row, mutes.count_held(entry_row))
        return
    found = runs.newest_run(tick.tx.db, entry.kind, entry.name)
    run_id, trigger, slot = found or (0, Trigger(expired[0].source), tick.now)
    about = Origin(run_id, entry.kind, entry.name, trigger, slot)
    text = notices.expired_wakes_text(expired, tick.limits.wake_keep)
    outbox.queue_notice(
        tick.tx,
        tick.plan.settings.channels,
        about,
        f"wakes expired {expired[-1].id}",
        text,
        notices.notice_targets(tick, entry),
    )


def note_dead_messages(tick: Tick) -> None:
    """Report the first dead letter of each target in this tick on another channel. A delivered message ends the incident."""
    for happened in tuple(tick.tx.events):
        if not isinstance(happened, MessageMoved) or happened.channel == LOG_CHANNEL:
            continue
        if happened.state is DeliveryState.DELIVERED:
            incidents.close_target_incident(tick.tx, happened.outbox_id)
        elif happened.state is DeliveryState.DEAD:
            _report_dead_message(tick, outbox.get_message(tick.tx.db, happened.outbox_id), happened.error)


def _report_dead_message(tick: Tick, message: OutboxMessage, error: str) -> None:
    """Report a dead letter on another channel. Further ones of its target are reported only after a successful delivery.

    A message that was reported before, was resent and failed again is not reported again.
    """
    lost, dead = Target(message.channel, message.recipient), incidents.dead_targets(tick.tx.db)
    if lost in dead:
        return
    entry = tick.plan.entries.get((Kind(message.kind), message.name))
    wished = entry.on_failure.deliver if entry else ()
    target = notices.substitute_target(tick.plan.settings.channels, wished, dead | {Target(message.channel)})
    text = notices.undelivered_text(message, error)
    if outbox.queue_notice(
        tick.tx, tick.plan.settings.channels, message.origin, f"undelivered {message.channel}", text, (target,)
    ):
        incidents.save_incident(tick.tx, CHANNEL, message.channel, Incident(tick.now, notified_at=tick.now), message.recipient)

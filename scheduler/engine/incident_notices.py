"""Incidents: who is told that something goes wrong, at first, again, when it changes, and when it is over."""

from __future__ import annotations

from dataclasses import replace

from heartbeat.verdict import message_digest
from scheduler.engine import notice_texts, outage_notices, recipients
from scheduler.engine.notice_texts import Notice, Story
from scheduler.engine.tick import Tick
from scheduler.model.entry import Claim, Entry
from scheduler.model.events import MessageMoved
from scheduler.model.outcome import ANSWERED, FAILURES, AttemptResult, DeliveryState, Kind, Outcome, Reason, Skip, Trigger
from scheduler.model.settings import LOG_CHANNEL, OnFailure
from scheduler.model.wake import Wake
from scheduler.store import breakers, flapping, incidents, outbox, runs
from scheduler.store.entries import EntryRow
from scheduler.store.incidents import CHANNEL, Incident
from scheduler.store.outbox import Origin, OutboxMessage
from scheduler.store.targets import Target
from scheduler.store.transaction import Transaction

MOST_FAULTS = 5  # of one incident that are each told at once; one that is new every time is left to the reminders

CHAIN = tuple(Skip)  # in the order in which a beat is checked

# What one and the same check may say: where it says something else, it does not say the first any more.
CHECKS = (
    {Skip.CHECKLIST_MISSING, Skip.CHECKLIST_EMPTY, Skip.CHECKLIST_UNREADABLE, Skip.CHECKLIST_TOO_LARGE},
    {Skip.PRECHECK, Skip.PRECHECK_UNCHANGED, Skip.PRECHECK_FAILED},
)


def hear(tick: Tick, claim: Claim, result: AttemptResult, entry_row: EntryRow) -> EntryRow:
    """How a run ended, for those who want to know of its failures; gives what the standing row remembers of it.

    Where a provider is at fault, the outage of that is reported, and not each entry that suffers from it. A run that goes well
    while nothing was wrong costs nothing here.
    """
    if _is_trouble(result) and claim.entry.on_failure.after:
        blamed = outage_notices.blame(tick.tx, claim, result)
        if blamed is not None:
            return _suffers(tick, claim, result, entry_row, blamed)
        has_closed = result.reason is Skip.BREAKER_OPEN  # in the meantime: nothing is wrong any more
        return entry_row if has_closed else _worse(tick, claim, result, entry_row)
    if result.precheck_problem and result.outcome in ANSWERED and claim.entry.on_failure.after:
        return _precheck_fails(tick, claim, result, entry_row)
    if (entry_row.troubles or entry_row.flapping) and _is_over(tick.tx, claim, result):
        return _better(tick, claim, result, entry_row)
    return entry_row


def hear_of_channels(tick: Tick) -> None:
    """What became of messages in this turn: the first that a channel lets die, of each whom it leads to, is told elsewhere."""
    for happened in tuple(tick.tx.events):
        if not isinstance(happened, MessageMoved) or happened.channel == LOG_CHANNEL:
            continue
        if happened.state is DeliveryState.DELIVERED:
            incidents.close_target_incident(tick.tx, happened.outbox_id)
        elif happened.state is DeliveryState.DEAD:
            _lost(tick, outbox.get_message(tick.tx.db, happened.outbox_id), happened.error)


def _is_trouble(result: AttemptResult) -> bool:
    if result.outcome is Outcome.SKIPPED:
        return result.reason in notice_texts.WHY
    return result.outcome in FAILURES and result.reason is not Reason.CANCELLED


def _is_over(tx: Transaction, claim: Claim, result: AttemptResult) -> bool:
    """An answer ends any trouble; a skip ends one that another check had caused, which has been passed now."""
    if not isinstance(result.reason, Skip):
        return result.outcome in ANSWERED
    was = incidents.find_incident(tx.db, claim.entry.kind, claim.entry.name)
    if was is None or was.reason not in CHAIN:
        return False
    trouble = Skip(was.reason)
    shut_off = trouble is Skip.BREAKER_OPEN and breakers.has_open_breaker(tx, claim.entry)  # a probe that asked nobody
    return not shut_off and _is_past(trouble, result.reason)


def _is_past(trouble: Skip, reason: Skip) -> bool:
    return CHAIN.index(reason) > CHAIN.index(trouble) or any({trouble, reason} <= check for check in CHECKS)


def _suffers(tick: Tick, claim: Claim, result: AttemptResult, entry_row: EntryRow, blamed: outage_notices.Blame) -> EntryRow:
    """A provider is at fault: what is known of the entry is kept for `status`, and notices are the outage's."""
    entry, count = claim.entry, entry_row.troubles + 1
    was = _found(tick.tx, claim, entry_row)
    now = replace(was, reason=_lasting(was.reason, result), circuit=blamed.circuit)
    incidents.save_incident(tick.tx, entry.kind, entry.name, now)
    outage_notices.fails(tick, claim, blamed, count)
    return entry_row._replace(troubles=count)


def _worse(tick: Tick, claim: Claim, result: AttemptResult, entry_row: EntryRow) -> EntryRow:
    entry, count = claim.entry, entry_row.troubles + 1
    was = _found(tick.tx, claim, entry_row)
    fault = message_digest(result.error or result.reason or "", "numbers")
    faults = was.faults if fault in was.faults or len(was.faults) >= MOST_FAULTS else (*was.faults, fault)
    now = replace(was, faults=faults, reason=_lasting(was.reason, result), circuit=None)
    notice = _news(tick.tx, claim, was, now, count)
    if notice is Notice.FLAPPING and was.flapping_at is None:
        now = replace(now, flapping_at=tick.now)
    if notice is Notice.STEADY:
        now = replace(now, flapping_at=None)
    if notice is not None:
        text = notice_texts.worse(notice, claim, result, _story(tick, now, count))
        _notify(tick, claim, notice, text)
        now = replace(now, notified_at=tick.now)
    incidents.save_incident(tick.tx, entry.kind, entry.name, now)
    return entry_row._replace(troubles=count, flapping=int(now.flapping_at is not None))


def _found(tx: Transaction, claim: Claim, entry_row: EntryRow) -> Incident:
    """The incident of an entry that is in trouble; what flaps and worked until now has begun to fail now."""
    known = entry_row.troubles or entry_row.flapping
    was = incidents.find_incident(tx.db, claim.entry.kind, claim.entry.name) if known else None
    if was is None:
        return Incident(tx.now)
    return was if entry_row.troubles else replace(was, since=tx.now, reason=None, circuit=None)


def _precheck_fails(tick: Tick, claim: Claim, result: AttemptResult, entry_row: EntryRow) -> EntryRow:
    """The agent has answered, so that whatever else was wrong is over; but its precheck failed, and it was asked all the same."""
    was = incidents.find_incident(tick.tx.db, claim.entry.kind, claim.entry.name) if entry_row.troubles else None
    if was is not None and was.reason != Skip.PRECHECK_FAILED:
        entry_row = _better(tick, claim, result, entry_row)
        if not entry_row.flapping:
            flapping.delete_changes(
                tick.tx, claim.entry.kind, claim.entry.name
            )  # one trouble gives way to another: that is no flapping
    failing = replace(result, reason=Skip.PRECHECK_FAILED, error=result.precheck_problem)
    return _worse(tick, claim, failing, entry_row)


def _lasting(before: str | None, result: AttemptResult) -> str | None:
    """By what a trouble is known: a failure stays one, for only an answer ends it, whatever check stands in the way since."""
    return before if before and before not in CHAIN and isinstance(result.reason, Skip) else result.reason


def _news(tx: Transaction, claim: Claim, was: Incident, now: Incident, count: int) -> Notice | None:
    """What there is to report of a trouble that has come again; None where it has been reported."""
    entry, rule = claim.entry, claim.entry.on_failure
    if was.flapping_at is not None:
        return _news_of_flapping(tx, claim, was, count)
    if was.notified_at is None:
        if count < rule.after:
            return None
        return Notice.FLAPPING if flapping.record_change(tx, entry.kind, entry.name) else Notice.FAILING
    if now.faults != was.faults:
        return Notice.CHANGED
    return Notice.REMINDER if tx.now - was.notified_at >= rule.remind else None


def _news_of_flapping(tx: Transaction, claim: Claim, was: Incident, count: int) -> Notice | None:
    entry, rule = claim.entry, claim.entry.on_failure
    if count == rule.after:
        flapping.record_change(tx, entry.kind, entry.name)
    elif count > rule.after and flapping.is_stable(tx, entry.kind, entry.name):
        flapping.delete_changes(tx, entry.kind, entry.name)
        return Notice.STEADY
    return Notice.FLAPPING if _is_to_be_reminded(tx, was, rule) else None


def _is_to_be_reminded(tx: Transaction, was: Incident, rule: OnFailure) -> bool:
    return was.notified_at is None or tx.now - was.notified_at >= rule.remind


def _better(tick: Tick, claim: Claim, result: AttemptResult, entry_row: EntryRow) -> EntryRow:
    entry = claim.entry
    was = incidents.find_incident(tick.tx.db, entry.kind, entry.name)
    if was is not None and was.circuit is not None and result.outcome in ANSWERED:
        outage_notices.works(tick, claim, was.circuit)
    if was is not None and was.flapping_at is not None and entry.on_failure.after:
        return _better_again(tick, claim, was, entry_row)
    incidents.close_incident(tick.tx, entry.kind, entry.name)
    if not entry.on_failure.after or was is None or was.notified_at is None:
        return entry_row._replace(troubles=0, flapping=0)
    if not flapping.record_change(tick.tx, entry.kind, entry.name):
        text = notice_texts.better(claim, was.reason, _story(tick, was, entry_row.troubles))
        _notify(tick, claim, Notice.RECOVERED, text)
        return entry_row._replace(troubles=0, flapping=0)
    _notify(tick, claim, Notice.FLAPPING, notice_texts.flaps(claim))
    now = Incident(tick.now, notified_at=tick.now, flapping_at=tick.now)
    incidents.save_incident(tick.tx, entry.kind, entry.name, now)
    return entry_row._replace(troubles=0, flapping=1)


def _better_again(tick: Tick, claim: Claim, was: Incident, entry_row: EntryRow) -> EntryRow:
    """What flaps works: that is reported once it has done so for an hour, and before only as a reminder."""
    entry = claim.entry
    if entry_row.troubles >= entry.on_failure.after and was.circuit is None:
        flapping.record_change(tick.tx, entry.kind, entry.name)
    elif flapping.is_stable(tick.tx, entry.kind, entry.name):
        flapping.delete_changes(tick.tx, entry.kind, entry.name)
        incidents.close_incident(tick.tx, entry.kind, entry.name)
        _notify(tick, claim, Notice.RECOVERED, notice_texts.stable(claim))
        return entry_row._replace(troubles=0, flapping=0)
    now = replace(was, since=tick.now, circuit=None)
    if _is_to_be_reminded(tick.tx, was, entry.on_failure):
        _notify(tick, claim, Notice.FLAPPING, notice_texts.flaps(claim))
        now = replace(now, notified_at=tick.now)
    incidents.save_incident(tick.tx, entry.kind, entry.name, now)
    return entry_row._replace(troubles=0)


def _story(tick: Tick, incident: Incident, count: int) -> Story:
    return Story(count, incident.since, tick.now, tick.plan.settings.zone)


def _notify(tick: Tick, claim: Claim, notice: Notice, text: str) -> None:
    outbox.queue_notice(
        tick.tx, tick.plan.settings.channels, outbox.origin_of_claim(claim), notice, text, recipients.of(tick, claim.entry)
    )


def tell_of_expired(tick: Tick, entry: Entry, expired: tuple[Wake, ...]) -> None:
    """Wakes of an agent have waited for too long: one notice for all that ended together."""
    found = runs.newest_run(tick.tx.db, entry.kind, entry.name)
    run_id, trigger, slot = found or (0, Trigger(expired[0].source), tick.now)
    about = Origin(run_id, entry.kind, entry.name, trigger, slot)
    text = notice_texts.expired(expired, tick.limits.wake_keep)
    outbox.queue_notice(
        tick.tx, tick.plan.settings.channels, about, f"wakes expired {expired[-1].id}", text, recipients.of(tick, entry)
    )


def _lost(tick: Tick, message: OutboxMessage, error: str) -> None:
    """A message has been given up: told on another channel, once until whoever was to get it has got another one.

    Of one that was told before, and has been given up again, there is nothing to tell; the next one is still news.
    """
    lost, dead = Target(message.channel, message.whom), incidents.dead_targets(tick.tx.db)
    if lost in dead:
        return
    entry = tick.plan.entries.get((Kind(message.kind), message.name))
    wished = entry.on_failure.deliver if entry else ()
    target = recipients.elsewhere(tick, wished, dead | {Target(message.channel)})
    text = notice_texts.undelivered(message, error)
    if outbox.queue_notice(
        tick.tx, tick.plan.settings.channels, message.origin, f"undelivered {message.channel}", text, (target,)
    ):
        incidents.save_incident(tick.tx, CHANNEL, message.channel, Incident(tick.now, notified_at=tick.now), message.whom)

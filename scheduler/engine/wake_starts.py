"""Decides when a wake starts a run: on arrival, after a failed run, after a change of config, or never (it expires).

The wake of a job waits while other jobs that may wake the same agent are running (`held_until`), so that one run of the agent can
handle all of them. An agent may have a thousand waiting wakes, so a tick does not read their texts.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import partial
from itertools import groupby
from operator import attrgetter

from heartbeat.words import format_count, format_duration, squeeze
from scheduler.engine import budget_reservations, notices, planning
from scheduler.engine.planning import NEAR_SLOT
from scheduler.engine.tick_items import Refused, Tick, run_for_entry
from scheduler.model import entry_schedule
from scheduler.model.entry import Claim, Entry
from scheduler.model.entry_row import EntryRow, count_held
from scheduler.model.outcome import ANSWERED, FAILURES, SCHEDULE_SKIPS, AttemptResult, Failure, Kind, Reason, Skip, Trigger
from scheduler.model.timestamps import MILLISECOND
from scheduler.model.wake import (
    LONG_OBSTACLES,
    LONGEST_REMINDER,
    MAX_REMINDERS,
    WAITS_FOR_FLOOD,
    WAITS_FOR_GAP,
    RejectedBecause,
    Wake,
)
from scheduler.store import breakers, entries, outbox, runs, slot_records, wakes
from scheduler.store.outbox import Origin
from scheduler.store.transaction import Transaction
from scheduler.work.plan import Plan

MAX_WAITING_WAKES = 1000  # per agent; wakes by people and jobs count, but are never rejected for it

RESERVED_WAKES_PER_TOKEN = 10  # that each token may have even if the others have used up all of them

MAX_REMINDERS_PER_TICK = 200

MAX_WAKES_LISTED = 20  # expired wakes in one notification
MAX_WAKE_TEXT_LENGTH = 200  # characters of the text of each wake

MAX_QUICK_RETRIES = 3  # after these, the wakes of an agent with a schedule wait for its next slot

OPENING_PATIENCE = timedelta(minutes=10)  # a wake waits so long for a slot after its agent's active hours have begun

# The reasons of runs that a provider refused, before or after their first attempt.
PROVIDER_REASONS = (
    Failure.AUTH,
    Failure.PAYMENT,
    Failure.NOT_FOUND,
    Failure.LIMITED,
    Reason.RATE_LIMITED,
    Skip.BREAKER_OPEN,
    Reason.NO_TIME_LEFT,
)

# The reasons that may no longer apply after a change of config.
CONFIG_REASONS = (*SCHEDULE_SKIPS, Skip.BUDGET)

Start = tuple[datetime | None, str | None]


def accept_wake(tick: Tick, entry_row: EntryRow, wake: Wake, held_until: datetime | None = None) -> int:
    """Save a wake with the time at which it may start a run. Returns the id of its row.

    1. Too many wakes of programs wait already: Refused, and nothing is saved.
    2. The agent is paused, outside its active hours or on a day off: a skip is recorded at once, and the wake waits.
    3. Otherwise it starts a run now, or after `wake_gap`, or when `wake_flood` allows it, or when a provider or budget does.
    4. The wake is saved, or merged with the waiting wake of the same sender.
    """
    if wake.kind is Kind.CRON:
        return wakes.keep_wake(tick.tx, entry_row, wake, tick.now)
    known = wakes.find_wake_of_sender(tick.tx, wake)
    if known is None and not _has_room_for_wake(tick.tx, wake):
        wakes.reject_wake(tick.tx, wake, RejectedBecause.TOO_MANY)
        raise Refused(
            RejectedBecause.TOO_MANY, f"{MAX_WAITING_WAKES} wakes wait for agent {wake.name!r}; try again after its next run"
        )
    if not wake.urgent:
        return wakes.keep_wake(tick.tx, entry_row, wake, None)
    entry = tick.plan.entries[entry_row.key]
    obstacle = _known_obstacle(tick.tx, entry_row, entry)
    if obstacle is not None:
        return _refuse_for_now(tick, entry_row, entry, wake, known, obstacle)
    due_at, waits_for = _start_time(tick, entry_row, entry, wake)
    return wakes.keep_wake(tick.tx, entry_row, wake, due_at, waits_for=waits_for, held_until=held_until)


def set_reminder(tick: Tick, reminder: Wake, at: datetime, *, is_timer: bool) -> int:
    """Save a wake that is accepted at a time. Returns the id of its row.

    `is_timer`: the time was given as a span. The same text of the same sender moves its reminder. Raises Refused if the time has
    passed or is too far ahead, and if too many reminders wait.
    """
    if not tick.now < at <= tick.now + LONGEST_REMINDER:
        key, longest = "in" if is_timer else "at", format_duration(LONGEST_REMINDER)
        raise Refused("bad_request", f"{key}: write a time from now on, at most {longest} ahead")
    wake_id = wakes.keep_reminder(tick.tx, reminder, at, is_timer=is_timer)
    if wake_id is None:
        wakes.reject_wake(tick.tx, reminder, RejectedBecause.TOO_MANY_REMINDERS)
        raise Refused(
            RejectedBecause.TOO_MANY_REMINDERS,
            f"agent {reminder.name!r} has {MAX_REMINDERS} reminders already; cancel one with `heartbeatd forget`",
        )
    return wake_id


def start_due_reminders(tick: Tick) -> None:
    """Accept the reminders whose time has come as wakes that arrive now, so all rules for wakes apply to them."""
    for reminder in wakes.due_reminders(tick.tx.db, tick.now, MAX_REMINDERS_PER_TICK):
        start, postpone = partial(_start_reminder, tick, reminder), partial(wakes.postpone_reminder, tick.tx, reminder)
        run_for_entry(tick, reminder.kind, reminder.name, start, postpone=postpone)


def _start_reminder(tick: Tick, reminder: Wake) -> None:
    entry_row = entries.current_entry(tick.tx, reminder.kind, reminder.name)
    if entry_row is None or (reminder.kind, reminder.name) not in tick.plan.entries:
        wakes.end_waiting_wake(tick.tx, reminder.id, RejectedBecause.REMOVED)
    elif entry_row.state != "active":
        wakes.end_waiting_wake(tick.tx, reminder.id, RejectedBecause.DISABLED)
    else:
        accept_wake(tick, entry_row, reminder)


def _has_room_for_wake(tx: Transaction, wake: Wake) -> bool:
    """Whether another wake may wait. People and jobs always may, because each of them has only one row.

    If all places are taken, a token with few waiting wakes still gets one, so that tokens do not crowd each other out.
    """
    if wake.source not in (Trigger.API, Trigger.WEBHOOK):
        return True
    taken = wakes.count_wakes_by_token(tx, wake.kind, wake.name)
    return sum(taken.values()) < MAX_WAITING_WAKES or taken.get(wake.token, 0) < RESERVED_WAKES_PER_TOKEN


def _known_obstacle(tx: Transaction, entry_row: EntryRow, entry: Entry) -> Skip | None:
    """The first check that would skip a run now, of those that need no run to find out."""
    if entry_row.state != "active":
        return None  # the run is skipped as disabled, which ends all waiting wakes
    if entry_row.is_paused_at(tx.now):
        return Skip.PAUSED
    if entry.is_day_off(tx.now):
        return Skip.CALENDAR
    return None if entry.is_open_at(tx.now) else Skip.ACTIVE_HOURS


def _refuse_for_now(tick: Tick, entry_row: EntryRow, entry: Entry, wake: Wake, known: Wake | None, obstacle: Skip) -> int:
    """Save a wake that cannot start a run now. A skip is recorded once per wake, however often its sender repeats it."""
    row = None
    if known is None or known.waits_for != obstacle:
        if obstacle is not Skip.PAUSED:
            planning.save_with_next_due(tick.tx, entry_row, planning.record_passed_slots(tick, entry_row, Skip.MISSED))
            entry_row = entries.get_entry(tick.tx, *entry_row.key)
        row = slot_records.record_skip(tick.tx, entry_row, Trigger(wake.source), obstacle, tick.now)
    others = wakes.find_wait_reason(tick.tx, *entry_row.key, [obstacle])
    if obstacle is Skip.PAUSED:
        due_at = None
    elif others is not None and (others[1] is None or others[1] > tick.now):
        due_at = others[1]  # computing the next opening is slow, and thousands of wakes may arrive at the same time
    else:
        due_at = start_when_open(tick, entry, entry_row)
    return wakes.keep_wake(tick.tx, entry_row, wake, due_at, waits_for=obstacle, refused_by=row)


def _start_time(tick: Tick, entry_row: EntryRow, entry: Entry, wake: Wake) -> Start:
    """When a wake may start a run (None: a slot comes soon and delivers it), and what it waits for.

    The wake of a person only waits for `wake_gap`. The wake of a program also waits until `wake_flood` allows a run, and together
    with wakes that a budget or provider has refused, because it would be refused too.
    """
    key = entry_row.key
    gap = tick.limits.wake_gap
    start = tick.now if entry_row.last_woken_at is None else max(tick.now, entry_row.last_woken_at + gap)
    if wake.by_program:
        blocked = wakes.find_wait_reason(tick.tx, *key, LONG_OBSTACLES)
        until = refused_until(tick, entry) if blocked else None
        if blocked is not None and until is not None:
            return start_unless_slot(tick, entry_row, until), blocked[0]
        refused_at = runs.last_refused_program_start(tick.tx.db, *key, (tick.now - gap, tick.now))
        start = start if refused_at is None else max(start, refused_at + gap)
        after_limit = _after_wake_limit(tick, entry_row, start)
        if after_limit > start:
            return after_limit, WAITS_FOR_FLOOD
    return start, WAITS_FOR_GAP if start > tick.now else None


def _after_wake_limit(tick: Tick, entry_row: EntryRow, then: datetime) -> datetime:
    """`then`, or the later time from which `wake_flood` lets wakes by programs start another run."""
    limit, key = tick.limits.wake_flood, entry_row.key
    began = runs.nth_last_program_start(tick.tx.db, *key, (tick.now - limit.within, tick.now), limit.count)
    return then if began is None else max(then, began + limit.within)


def retry_time(tick: Tick, entry_row: EntryRow, claim: Claim, result: AttemptResult) -> datetime | None:
    """When the wakes of an unsuccessful run start another one; None: they wait for the next slot, or for another wake.

    `entry_row` is the row after that run.

    1. The run was cancelled, or the entry is paused: None. The end of a pause starts the waiting wakes.
    2. The agent is outside its active hours: when they begin.
    3. A provider or budget refuses runs until a known time: then.
    4. Otherwise after 1, 5 and 30 minutes, or when `wake_flood` allows it.

    After a failure, a slot replaces the retry only if it comes earlier. After a skip, it may come later, if the wakes do not
    expire before.
    """
    entry = claim.entry
    is_paused = entry_row.paused or planning.is_to_be_paused(entry, entry_row, result)
    if is_paused or result.reason is Reason.CANCELLED:
        return None
    if not entry.is_open_at(tick.now):
        return start_when_open(tick, entry, entry_row)
    has_failed = result.outcome in FAILURES
    ends = refused_until(tick, entry)
    if ends is not None:
        return start_unless_slot(tick, entry_row, ends, timedelta() if has_failed else NEAR_SLOT)
    undelivered = 1 + max(wake.earlier_runs for wake in claim.facts.wakes)
    if undelivered > MAX_QUICK_RETRIES and entry_row.schedule is not entry_schedule.NO_SCHEDULE:
        return None
    then = tick.now + outbox.retry_delay(undelivered)
    if all(wake.by_program for wake in claim.facts.wakes):
        then = _after_wake_limit(tick, entry_row, then)
    patience = timedelta() if has_failed else tick.limits.wake_keep
    return start_unless_slot(tick, entry_row, then if entry.is_open_at(then) else entry.opens_at(then), patience)


def start_when_open(tick: Tick, entry: Entry, entry_row: EntryRow) -> datetime | None:
    """When a wake outside the agent's active hours, or on a day off, starts a run; None: a slot comes soon after."""
    return start_unless_slot(tick, entry_row, entry.opens_at(tick.now), OPENING_PATIENCE)


def start_unless_slot(tick: Tick, entry_row: EntryRow, then: datetime | None, patience: timedelta = NEAR_SLOT) -> datetime | None:
    """`then`, or None if a slot comes by then, or within `patience` after it."""
    return None if then is None or planning.slot_comes_by(tick, entry_row, then + patience) else then


def start_wakes_without_slot(tick: Tick, entry: Entry, before: EntryRow, after: EntryRow) -> None:
    """Let the wakes that waited for the next slot start a run at its time, if another schedule has none soon after it.

    `before` and `after` are the entry's row with both schedules. This version need not be able to read the former one.
    """
    then = entry.opens_at(max(before.slot, tick.now)) if before.slot else None
    if then is not None and not planning.slot_comes_by(tick, after, then + NEAR_SLOT):
        has_slots = after.schedule is not entry_schedule.NO_SCHEDULE
        wakes.start_waiting_wakes(tick.tx, *before.key, then, refused_only=has_slots)


def refused_until(tick: Tick, entry: Entry) -> datetime | None:
    """Until when a provider or budget would refuse the next run; None if neither would."""
    lacking = budget_reservations.find_shortage(tick, entry, first=True)
    room_at = [each.ends_at if each else None for each in budget_reservations.account_shortages(tick, entry)]
    ends = (breakers.next_call_at(tick.tx, entry, room_at), lacking.ends_at if lacking else None)
    return max((end for end in ends if end is not None), default=None)


def retry_blocked_runs_and_wakes(tick: Tick, *, other_config: bool = False) -> None:
    """Let runs and wakes that wait for a provider start when its next probe is due, which may be sooner than they expect.

    `other_config`: the config has changed, so wakes that wait for active hours or a budget are reconsidered too.
    """
    for kind, name, run in runs.all_open_runs(tick.tx.db):
        entry = tick.plan.entries.get((kind, name))
        if run.reason == Skip.BREAKER_OPEN and (entry is None or not breakers.account_stagger(entry)):
            planning.retry_waiting_run(tick.tx, entries.get_entry(tick.tx, kind, name), Skip.BREAKER_OPEN)
    for entry_row in wakes.entries_with_delayed_wakes(
        tick.tx, (*PROVIDER_REASONS, *CONFIG_REASONS) if other_config else PROVIDER_REASONS
    ):
        entry = tick.plan.entries.get(entry_row.key)
        if entry is None:
            continue
        if other_config:  # the hours may begin at another time now; the end of a pause starts its wakes
            opening = None if entry_row.paused else start_when_open(tick, entry, entry_row)
            wakes.move_delayed_wakes(tick.tx, entry_row, SCHEDULE_SKIPS, opening, tick.limits.wake_gap)
        if entry_row.paused or not entry.is_open_at(tick.now):
            planning.save_with_next_due(tick.tx, entry_row, entry_row)
            continue
        now = tick.now + breakers.account_stagger(entry)
        wakes.start_delayed_wakes_by(tick.tx, entry_row, refused_until(tick, entry) or now, tick.limits.wake_gap)


def hold_for_other_jobs(tick: Tick, agent: str) -> datetime | None:
    """Until when a job's wake waits for other running jobs that may wake the same agent; None if there are none."""
    return tick.now + tick.limits.wake_gap if _other_jobs_under_way(tick.tx, tick.plan, agent) else None


def release_held_wakes(tick: Tick, entry: Entry) -> None:
    """A job has ended: start the held wakes of each agent for which no other job is running."""
    for agent in entry.agents_to_wake:
        entry_row = entries.current_entry(tick.tx, Kind.HEARTBEAT, agent)
        if entry_row is not None and not _other_jobs_under_way(tick.tx, tick.plan, agent):
            wakes.release_held_wakes(tick.tx, entry_row)


def start_following_jobs(tick: Tick, claim: Claim, result: AttemptResult) -> None:
    """Start the jobs that follow this one, in the transaction that ends its run: so none is lost or started twice.

    A job that does not start has the record of a skip: the run ended in another way than `on` says, the job is paused, or its
    calendars exclude the day. If it still waits for its start after an earlier run, only the output of this run counts.
    """
    if result.outcome not in ANSWERED | FAILURES or result.reason is Reason.CANCELLED:
        return
    name, run_id = claim.entry.name, claim.run.id
    for entry in tick.plan.following_jobs.get(name, ()):
        entry_row = entries.current_entry(tick.tx, *entry.key)
        if entry.after is None or entry_row is None or entry_row.state != "active":
            continue
        ended = f"cron/{name} ended {result.outcome} (run {run_id})"
        if not entry.after.follows(result.outcome in ANSWERED):
            _record_unstarted(tick, entry_row, Skip.PREDECESSOR, ended)
        elif entry_row.is_paused_at(tick.now):
            _record_unstarted(tick, entry_row, Skip.PAUSED, f"{entry_row.pause_says}; {ended}")
        elif entry.is_day_off(tick.now):
            _record_unstarted(tick, entry_row, Skip.CALENDAR, ended)
        else:
            wake = Wake(entry.name, Trigger.CRON, name, outcome=result.outcome, kind=Kind.CRON, after_run=run_id)
            known = wakes.find_wake_of_sender(tick.tx, wake)
            record_superseded(tick, entry_row, (known,) if known else (), (wake,))
            accept_wake(tick, entry_row, wake)


def record_superseded(tick: Tick, entry_row: EntryRow, before: Iterable[Wake], newer: Iterable[Wake]) -> None:
    """Record the starts after other jobs that a newer one replaces: a run of the job gets the output of one run only."""
    latest = {wake.sender: wake.after_run for wake in newer if wake.after_run is not None}
    for wake in before:
        if wake.after_run is not None and wake.sender in latest:
            detail = f"run {wake.after_run} of cron/{wake.sender}, before run {latest[wake.sender]}"
            _record_unstarted(tick, entry_row, Skip.SUPERSEDED, detail)


def end_wakes_of_entry(tick: Tick, entry_row: EntryRow) -> None:
    """End all waiting wakes of an entry that is disabled or was removed, and record the starts after other jobs among them."""
    state = entry_row.state
    for wake in wakes.expire_wakes_of_entry(tick.tx, *entry_row.key, RejectedBecause(state)):
        record_ended_start(tick, entry_row, wake, Skip(state))


def record_ended_start(tick: Tick, entry_row: EntryRow, wake: Wake, why: Skip) -> None:
    """Record that a job does not start after another one, if this wake was to start it."""
    if wake.after_run is not None:
        _record_unstarted(tick, entry_row, why, f"run {wake.after_run} of cron/{wake.sender}")


def _record_unstarted(tick: Tick, entry_row: EntryRow, why: Skip, detail: str) -> None:
    """Record that a job did not run after another one. A run of it may have the same time."""
    at = tick.now
    while slot_records.record_skip(tick.tx, entry_row, Trigger.CRON, why, at, detail=detail) is None:
        at += MILLISECOND


def _other_jobs_under_way(tx: Transaction, plan: Plan, agent: str) -> bool:
    """Whether a job that may wake the agent is running, waits for its next attempt, or is due."""
    return runs.any_open_or_due(tx, Kind.CRON, plan.jobs_by_woken_agent.get(agent, ()))


def expire_wakes(tick: Tick) -> None:
    """Expire the wakes that have waited longer than `wake_keep`, and notify the recipients of the agent's failures.

    The wake of a job whose notification was delayed for the agent is not among them, because that notification is sent now.
    """
    held = {(agent, each.name) for each in outbox.held_notices(tick.tx.db) for agent in each.hold.agents}
    all_expired = wakes.expire_old_wakes(tick.tx, tick.limits.wake_keep)
    for wake in all_expired:
        entry_row = entries.current_entry(tick.tx, wake.kind, wake.name) if wake.after_run is not None else None
        if entry_row is not None:
            record_ended_start(tick, entry_row, wake, Skip.MISSED)
    expired = [
        wake
        for wake in all_expired
        if wake.kind is Kind.HEARTBEAT and not (wake.source == Trigger.CRON and (wake.name, wake.sender) in held)
    ]
    for name, together in groupby(sorted(expired, key=attrgetter("name")), key=attrgetter("name")):
        entry = tick.plan.entries.get((Kind.HEARTBEAT, name))
        if entry is not None and entry.spec.problems_after:
            _notify_expired_wakes(tick, entry, tuple(together))


def _notify_expired_wakes(tick: Tick, entry: Entry, expired: tuple[Wake, ...]) -> None:
    """Report the wakes of an agent that expired together, in one notification. If the agent is muted, only the log has them."""
    entry_row = entries.current_entry(tick.tx, *entry.key)
    if entry_row is not None and entry_row.is_muted(tick.now):
        entries.change_entry(tick.tx, entry_row, count_held(entry_row))
        return
    found = runs.newest_run(tick.tx.db, *entry.key)
    run_id, trigger, slot = found or (outbox.NO_RUN, Trigger(expired[0].source), tick.now)
    about = Origin(run_id, *entry.key, trigger, slot)
    text = _expired_wakes_text(expired, tick.limits.wake_keep)
    name, targets = f"wakes expired {expired[-1].id}", notices.notice_targets(tick, entry)
    outbox.queue_notice(tick.tx, tick.plan.settings.channels, about, name, text, targets)


def _expired_wakes_text(wakes: tuple[Wake, ...], keep: timedelta) -> str:
    """The notification that wakes of one agent expired: their senders, what they waited for, and how their texts begin."""
    shown = [_describe_wake(wake) for wake in wakes[:MAX_WAKES_LISTED]]
    more = [f"... and {len(wakes) - MAX_WAKES_LISTED} more"] if len(wakes) > MAX_WAKES_LISTED else []
    how_many = f"{format_count(len(wakes), 'wake')} of agent {wakes[0].name} expired"
    first = f"{how_many}: not delivered to the agent within {format_duration(keep)} (limits.wake_keep)."
    return "\n".join([first, *shown, *more, f"Why it did not run: heartbeatd explain {wakes[0].name}"])


def _describe_wake(wake: Wake) -> str:
    times = f", {wake.count} times" if wake.count > 1 else ""
    reason = f" (waited for: {wake.waits_for})" if wake.waits_for else ""
    cut = squeeze(wake.text, MAX_WAKE_TEXT_LENGTH)
    return f"- by {wake.source} {wake.sender}{times}{reason}" + (f": {cut}" if cut else "")

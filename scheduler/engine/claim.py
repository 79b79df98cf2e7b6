"""Claims what is due: a slot or a wake for a new run, or the next attempt of an open run.

A `Claim` has all that a worker needs for the attempt.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from cron.job import After, Job
from heartbeat.evidence import OpenProblem
from heartbeat.prompt import AgentActivity, EarlierOutput, Memory, Past
from heartbeat.runners import NO_CACHE, CachePlan
from heartbeat.spec import ModelRunner
from heartbeat.verdict import without_reasoning
from scheduler.engine import budget_reservations, planning, recovery, reported_problems, settle, wake_starts
from scheduler.engine.tick_items import LostCommits, Tick
from scheduler.model import entry_schedule, prompt_cache
from scheduler.model.budget import find_price
from scheduler.model.entry import Claim, Entry, Facts, HeartbeatEntry, OpenRun
from scheduler.model.entry_row import EntryRow
from scheduler.model.events import AttemptStarted
from scheduler.model.outcome import ANSWERED, FAILURES, WOKEN, Kind, Skip, Trigger
from scheduler.model.problem import Subject
from scheduler.model.timestamps import MILLISECOND
from scheduler.model.wake import Wake
from scheduler.store import agent_memory, breakers, clock_changes, entries, lane_holds, problems, runs, wakes
from scheduler.store.transaction import Transaction
from scheduler.work.executor import Interrupted

MAX_INPUT = 16 * 1024  # bytes of another job's output that a job gets, from its end
LOST_RECORD = Interrupted("the database lost its last commits", was_stopped=False)


def claim_due(tick: Tick, before: EntryRow, run: OpenRun | None) -> Claim | None:
    """Claim what is due of one entry. None, with its next due time saved, if nothing is to run now.

    `run` is its open run; None: it has none.
    """
    entry = tick.plan.entries.get(before.key)
    if entry is None:
        entries.change_entry(tick.tx, before, before._replace(due_at=None))
        return None
    return _claim_new_run(tick, entry, before) if run is None else _claim_next_attempt(tick, entry, before, run)


def _claim_new_run(tick: Tick, entry: Entry, before: EntryRow) -> Claim | None:
    """Claim a new run of an entry without an open one.

    1. A pause that is over ends. Its slots get one record.
    2. All slots that have passed get their records, except the one to run now.
    3. A run is opened for this slot, or for a wake that may start a run now. It takes all waiting wakes.
    4. The budget is reserved, and the circuit breakers are checked.
    5. The entry row is saved with its next due time. With a claim, it is not due before the run ends.
    6. A run that may be a repetition after a failover of the database counts as interrupted, and is recovered like one.
    """
    tx, slot = tick.tx, None
    entry_row = planning.end_pause_if_over(tick, before)
    if entry_row.state == "active" and not entry_row.paused:
        entry_row, slot = planning.slot_to_start(tick, entry, entry_row)
        if slot is None and entry_row.runs_when_first_seen:
            slot = entry_row.slot  # `run --once`: a new entry counts as due; its first slot is when it was first seen
    waker = wakes.find_starting_wake(tx, *entry_row.key) if slot is None else None
    run = _open_run(tick, entry, entry_row, slot, waker) if slot or waker else None
    if run is None:
        entries.change_entry(tx, before, planning.with_next_due(tx, entry_row))
        return None
    taken = wakes.take_waiting_wakes(tx, *entry_row.key, run.id, waker)
    claim = _make_claim(tick, entry, entry_row, run, taken, is_first=True)
    due_at = run.slot + entry_row.schedule.offset
    _report_start(tx, claim, None if waker else (tick.now - due_at).total_seconds())
    last_slot = entry_row.last_slot if slot is None else slot
    entries.change_entry(tx, before, planning.with_due_at(entry_row._replace(last_slot=last_slot), None))
    if tick.lost_commits and _may_be_repetition(tick.lost_commits, claim):
        recovery.recover_lost_attempt(tick, claim, LOST_RECORD)
        return None
    return claim


def _open_run(tick: Tick, entry: Entry, entry_row: EntryRow, slot: datetime | None, waker: Wake | None) -> OpenRun | None:
    """Insert the run of a slot, or else that of a wake, which is now. None if the slot has a record already.

    A wake takes the next free millisecond. So does a slot of a fixed interval if the clock was set back: then it is a different
    slot with the same time.
    """
    trigger, sender = (entry_row.schedule.trigger, None) if waker is None else (Trigger(waker.source), waker.sender)
    at = slot or tick.now
    while (run := runs.open_run(tick.tx, entry.key, at, trigger, entry.model, sender)) is None:
        is_interval = entry_schedule.grid_period(entry_row.schedule_text) is not None
        if waker is None and not (is_interval and clock_changes.was_shown_before(tick.tx, at)):
            return None
        at += MILLISECOND
    return run


def _claim_next_attempt(tick: Tick, entry: Entry, entry_row: EntryRow, run: OpenRun) -> Claim | None:
    """Claim the next attempt of an open run.

    1. A waiting run without time or budget for another attempt is closed, and the entry may start a new run.
    2. The attempt is claimed. A run in progress needs no claim. If the run has not begun yet, it takes the wakes that have
       arrived while it waited.
    3. The budget is reserved, and the circuit breakers are checked.
    """
    tx, again = tick.tx, None
    if run.state == "waiting":
        # A run that failed is not tried again while its breaker is open.
        is_blocked = run.has_failed and breakers.has_open_breaker(tx, entry)
        has_time = not is_blocked and planning.may_still_run(tx, entry, entry_row, run.slot)
        # A run without any attempt is claimed, and then skipped for its budget.
        is_spent = not run.has_not_begun and budget_reservations.find_shortage(tick, entry, first=False) is not None
        if not has_time or is_spent:
            settle.give_up_waiting(tick, entry, entry_row, run, spent=has_time)
            return _claim_new_run(tick, entry, entries.get_entry(tx, *entry.key))
        again = runs.claim_next_attempt(tx, run, entry.model)
    entries.change_entry(tx, entry_row, planning.with_due_at(entry_row, None))
    if again is None:
        return None
    if again.has_not_begun:
        before = wakes.wakes_taken_by(tx.db, again.id)
        wake_starts.record_superseded(tick, entry_row, before, wakes.take_newer_wakes(tx, *entry.key, again.id))
    taken = wakes.wakes_taken_by(tx.db, again.id)
    claim = _make_claim(tick, entry, entry_row, again, taken, is_first=again.has_not_begun)
    _report_start(tx, claim, None)
    if tick.lost_commits and _waited_before(tick.lost_commits, tx, run):
        recovery.recover_lost_attempt(tick, claim, LOST_RECORD)
        return None
    return claim


def _report_start(tx: Transaction, claim: Claim, late: float | None) -> None:
    run, entry = claim.run, claim.entry
    tx.report(AttemptStarted(run.id, *entry.key, run.slot, run.trigger, run.attempt, late))


def _may_be_repetition(lost: LostCommits, claim: Claim) -> bool:
    """Whether the run may have been carried out before a failover of the database that has lost its record."""
    if claim.run.trigger in WOKEN:
        return any(wake.id <= lost.wakes_until for wake in claim.facts.wakes)
    return claim.run.slot <= lost.slots_until


def _waited_before(lost: LostCommits, tx: Transaction, run: OpenRun) -> bool:
    """Whether the attempt for which this run waits may have been made before such a failover. A crashed run says so anyway."""
    was_due = run.not_before is not None and run.not_before <= lost.slots_until
    return was_due and run.owner != tx.owner and not run.crashes


def _make_claim(tick: Tick, entry: Entry, entry_row: EntryRow, run: OpenRun, taken: tuple[Wake, ...], *, is_first: bool) -> Claim:
    """The claim of an attempt, with its reservation in the budgets, and with the breaker that blocks it or that it may probe.

    `is_first`: the run has not begun before, so it counts as a run in the budgets.
    """
    claim = Claim(entry, run, _facts(tick, entry, entry_row, taken))
    claim = budget_reservations.reserve_budget(tick.tx, tick.plan.settings, claim, first=is_first)
    shortages = budget_reservations.account_shortages(tick, entry, run.id)
    admitted = breakers.admit_run(tick.tx, tick.plan.entries, entry, run.id, [each is not None for each in shortages])
    if admitted.unavailable:
        claim = replace(claim, facts=replace(claim.facts, probes=admitted.probes, unavailable=admitted.unavailable))
    lacking = next((shortage for shortage in shortages if shortage is not None), None)
    if lacking is not None:
        known = admitted.unavailable or (None,) * len(shortages)
        unavailable = tuple(why or (each.description if each else None) for why, each in zip(known, shortages, strict=True))
        if None not in unavailable:
            return claim.blocked_by(Skip.BUDGET, lacking.description)
        claim = replace(claim, facts=replace(claim.facts, unavailable=unavailable))
    if admitted.blocked:
        return claim.blocked_by(Skip.BREAKER_OPEN, admitted.blocked)
    if not claim.facts.blocked:
        budget_reservations.record_first_account(tick.tx, claim)
    return claim


def hypothetical_claim(tick: Tick, entry: Entry, entry_row: EntryRow) -> Claim:
    """The claim of a slot that would start now, to explain what would happen. Nothing is written."""
    run = OpenRun(0, "running", tick.now, entry_row.schedule.trigger, 1, 0, 0, tick.tx.owner, tick.now)
    lacking = budget_reservations.find_shortage(tick, entry, first=True)
    shortages = budget_reservations.account_shortages(tick, entry)
    open_breaker = breakers.blocking_breaker(tick.tx, tick.plan.entries, entry, [each is not None for each in shortages])
    if open_breaker is not None:
        lacking = lacking or next(filter(None, shortages), None)
    claim = Claim(entry, run, _facts(tick, entry, entry_row, ()))
    claim = claim.blocked_by(Skip.BUDGET, lacking.description) if lacking else claim
    return claim.blocked_by(Skip.BREAKER_OPEN, str(open_breaker)) if open_breaker else claim


def _facts(tick: Tick, entry: Entry, entry_row: EntryRow, taken: tuple[Wake, ...]) -> Facts:
    """What is known for an attempt, without what its budgets and circuit breakers allow."""
    tx = tick.tx
    blocked: dict[Skip, str | None] = {Skip.PAUSED: entry_row.pause_says} if entry_row.is_paused_at(tx.now) else {}
    if entry.lane is not None and lane_holds.is_lane_held(tx, entry.lane):
        blocked[Skip.BUSY] = lane_holds.describe_holder(tx.db, entry.lane, entry.zone, tx.now)
    past = Past(
        entry_row.last_ended_at,
        entry_row.failures,
        entry_row.last_success_at,
        runs.last_error(tx.db, *entry_row.key) if entry_row.failures else None,
        tick.awake_since,
        _agent_activity(tx, entry, entry_row),
    )
    reported, ended = problems.open_reports_of(tx.db, entry_row.name, entry_row.kind), tuple[OpenProblem, ...]()
    if entry.precheck and entry.precheck.source and not taken:
        known = problems.problems_of(tx.db, Subject.of_reports(entry_row.name, entry_row.kind))
        ended = reported_problems.past_events(known, tx.now)
    memory = Memory(
        agent_memory.session_messages(tx, entry.name, entry.session_keep),
        agent_memory.last_checked_slots(tx, entry),
        entry_row.precheck,
        entry_row.looked_at,
        entry_row.looked_line_digests,
        tuple(each.for_prompt for each in reported if each.key not in reported_problems.OWN_KEYS),
        ended,
        agent_memory.source_state(tx, entry_row, entry.precheck.identity) if entry.precheck and entry.precheck.source else None,
    )
    named = entry.spec.previous if isinstance(entry.spec, Job) else ()
    earlier = tuple(_shorten_output(tick, each) for name in named if (each := runs.last_output(tx.db, name, ANSWERED)))
    is_own = named == (entry.name,)
    before = _input_of(tick, entry.after, taken) if taken or entry.after else None
    return Facts(
        blocked, wakes=taken, past=past, memory=memory,
        input=_shorten_output(tick, before) if before else None,
        previous=earlier[0] if is_own and earlier else None,
        named=() if is_own else earlier,
        cache=_cache_plan(tick, entry),
    )  # fmt: skip


def _input_of(tick: Tick, after: After | None, taken: tuple[Wake, ...]) -> EarlierOutput | None:
    """The output of the run after which a job runs. If it is run by hand: of the last one after which it would have run."""
    following = [wake.after_run for wake in taken if wake.after_run is not None]
    if following:
        return runs.output_of_run(tick.tx.db, following[-1])
    if after is None:
        return None
    results = {"success": ANSWERED, "failure": FAILURES, "any": ANSWERED | FAILURES}
    return runs.last_output(tick.tx.db, after.job, results[after.on])


def _shorten_output(tick: Tick, output: EarlierOutput) -> EarlierOutput:
    """The output without the reasoning of an agent, and only its end if it is long."""
    source = tick.plan.entries.get((Kind.CRON, output.job))
    strips = source is not None and source.lane is not None and source.spec.strip_reasoning
    text = without_reasoning(output.text, strip_reasoning=strips, truncated=False).encode(errors="replace")
    if len(text) <= MAX_INPUT:
        return replace(output, text=text.decode())
    note = f"(the last {MAX_INPUT:,} of {len(text):,} bytes)\n"
    return replace(output, text=note + text[-MAX_INPUT:].decode(errors="ignore"))


def _cache_plan(tick: Tick, entry: Entry) -> CachePlan:
    """Which parts of the prompt the provider is asked to keep. Only the Messages API of Anthropic is asked."""
    agent, every = entry.agent, entry.spec.interval if isinstance(entry, HeartbeatEntry) else entry.spec.every
    if agent is None or not isinstance(agent.runner, ModelRunner) or agent.runner.provider.kind != "anthropic":
        return NO_CACHE
    expected = None if agent.precheck else every  # with a precheck, most runs call no model
    price = find_price(tick.plan.settings.prices, agent.runner.provider.name, agent.model)
    own = price and price.of_request(agent.prompt_limit.own, tick.now.date())
    looks = runs.last_cache_looks(tick.tx.db, entry.key)
    asked = runs.last_cache_looks(tick.tx.db, entry.key, asked=True) if looks else []
    return prompt_cache.plan_cache(looks, asked, tick.now, expected, own)


def _agent_activity(tx: Transaction, entry: Entry, entry_row: EntryRow) -> AgentActivity | None:
    """What a gateway last reported about the called agent. For a job, that is the row of another entry."""
    is_own = entry_row.kind is Kind.HEARTBEAT or entry.lane is None
    agent_row = entry_row if is_own else entries.current_entry(tx, Kind.HEARTBEAT, entry.lane or "")
    return AgentActivity(agent_row.active_at, agent_row.queue, agent_row.approvals) if agent_row and agent_row.active_at else None

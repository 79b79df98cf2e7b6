"""Builds a `Claim`, the value with all that a worker needs for an attempt, from database rows."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from heartbeat.evidence import OpenProblem
from heartbeat.prompt import AgentActivity
from scheduler.engine import budget_reservations
from scheduler.engine.reported_problems import OWN_KEYS
from scheduler.engine.tick import Tick
from scheduler.model.entry import Claim, Entry, Facts, Memory, OpenRun, Past
from scheduler.model.entry_row import EntryRow
from scheduler.model.outcome import Kind, Skip, Trigger
from scheduler.model.wake import Wake
from scheduler.store import agent_memory, breakers, entries, lane_holds, problems, runs, wakes
from scheduler.store.transaction import Transaction


def first_attempt(
    tick: Tick, entry: Entry, entry_row: EntryRow, opened: tuple[int, int], trigger: Trigger, slot: datetime, waker: Wake | None
) -> Claim:
    """The first attempt of a run. It takes all waiting wakes; `waker` is the one that started it, if any."""
    run_id, fence = opened
    taken = wakes.take_waiting_wakes(tick.tx, entry_row.kind, entry_row.name, run_id, waker)
    run = OpenRun(run_id, "running", slot, trigger, 1, 0, fence, tick.tx.owner, tick.now)
    claim = _make_claim(tick.tx, tick.awake_since, entry, entry_row, run, taken)
    return with_permissions(tick, claim, first=True)


def with_permissions(tick: Tick, claim: Claim, *, first: bool) -> Claim:
    """The claim with its budget reservation, and with the open breaker that blocks it or the probes that it may make."""
    claim = budget_reservations.reserve_budget(tick.tx, tick.plan.settings, claim, first=first)
    breaker_open, probes = breakers.admit_run(tick.tx, tick.plan.entries, claim.entry, claim.run.id)
    if probes:
        claim = replace(claim, facts=replace(claim.facts, probes=probes))
    return claim.blocked_by(Skip.BREAKER_OPEN, breaker_open) if breaker_open else claim


def hypothetical_claim(tick: Tick, entry: Entry, entry_row: EntryRow) -> Claim:
    """The claim of a slot that would start now, to explain what would happen. Nothing is written."""
    run = OpenRun(0, "running", tick.now, entry_row.schedule.trigger, 1, 0, 0, tick.tx.owner, tick.now)
    lacking = budget_reservations.find_shortage(tick, entry, first=True)
    claim = _make_claim(tick.tx, tick.awake_since, entry, entry_row, run, ())
    open_breaker = breakers.blocking_breaker(tick.tx, tick.plan.entries, entry)
    claim = claim.blocked_by(Skip.BUDGET, lacking.description) if lacking else claim
    return claim.blocked_by(Skip.BREAKER_OPEN, str(open_breaker)) if open_breaker else claim


def next_attempt(tick: Tick, entry: Entry, entry_row: EntryRow, run: OpenRun) -> Claim:
    """The next attempt of a run. If the run has not started yet, it takes the wakes that arrived while it waited."""
    if run.has_not_begun:
        wakes.take_waiting_wakes(tick.tx, entry_row.kind, entry_row.name, run.id, None)
    return claim_of_run(tick, entry, entry_row, run)


def claim_of_run(tick: Tick, entry: Entry, entry_row: EntryRow, run: OpenRun) -> Claim:
    """The claim of an open run, with the wakes that it has taken."""
    return _make_claim(tick.tx, tick.awake_since, entry, entry_row, run, wakes.wakes_taken_by(tick.tx.db, run.id))


def take_over_claim(tick: Tick, entry: Entry, entry_row: EntryRow, run: OpenRun) -> Claim:
    """Take over an open run without a worker, so that it can be closed like any other."""
    return claim_of_run(tick, entry, entry_row, runs.take_over_run(tick.tx, run))


def _make_claim(
    tx: Transaction, up_since: datetime, entry: Entry, entry_row: EntryRow, run: OpenRun, taken: tuple[Wake, ...]
) -> Claim:
    blocked: dict[Skip, str | None] = {Skip.PAUSED: None} if entry_row.paused else {}
    if entry.lane is not None and lane_holds.is_lane_held(tx, entry.lane):
        blocked[Skip.BUSY] = lane_holds.describe_holder(tx.db, entry.lane, entry.zone, tx.now)
    past = Past(
        entry_row.last_ended_at,
        entry_row.failures,
        entry_row.last_success_at,
        runs.last_error(tx.db, entry_row.kind, entry_row.name) if entry_row.failures else None,
        up_since,
        _agent_activity(tx, entry, entry_row),
    )
    memory = Memory(
        agent_memory.session_messages(tx, entry.name, entry.session_keep),
        agent_memory.last_checked_slots(tx, entry),
        entry_row.precheck,
        entry_row.looked_at,
        entry_row.looked_line_digests,
        _reported_problems(tx, entry_row) if entry_row.reported else (),
    )
    return Claim(entry, run, Facts(blocked, wakes=taken, past=past, memory=memory))


def _reported_problems(tx: Transaction, entry_row: EntryRow) -> tuple[OpenProblem, ...]:
    """The open problems that the agent reports, without those about its reports themselves."""
    found = problems.open_reports_of(tx.db, entry_row.name)
    return tuple(each.for_prompt for each in found if each.key not in OWN_KEYS)


def _agent_activity(tx: Transaction, entry: Entry, entry_row: EntryRow) -> AgentActivity | None:
    """What a gateway last reported about the called agent. For a job, that is the row of another entry."""
    is_own = entry_row.kind is Kind.HEARTBEAT or entry.lane is None
    agent_row = entry_row if is_own else entries.current_entry(tx, Kind.HEARTBEAT, entry.lane or "")
    return AgentActivity(agent_row.active_at, agent_row.queue, agent_row.approvals) if agent_row and agent_row.active_at else None

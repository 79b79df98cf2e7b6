"""Sends one message about a failed job that has woken agents: that of the agent that reports it, or else that of the job.

The message about the job is delayed while an agent can report the failure. What agents report about the job is over when the job
works again. A delayed notification is a row of the outbox like any other, with a later time. If everything else fails, it is sent
at that time. So it cannot be lost, neither by a crash nor by a fault in these rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import groupby
from operator import attrgetter

from heartbeat.spec import Heartbeat
from scheduler.engine import budget_reservations, notices, planning
from scheduler.engine.problem_rules import Change, News, after_end
from scheduler.engine.reported_problems import failing_jobs, is_about_job
from scheduler.engine.tick_items import Tick
from scheduler.model.entry import Claim
from scheduler.model.outcome import ANSWERED, AttemptResult, Kind, Outcome, Trigger
from scheduler.model.problem import PAUSED, EndedBy, Problem, Subject, Told
from scheduler.model.settings import Target
from scheduler.store import breakers, entries, outbox, problems, wakes
from scheduler.store.outbox import HeldMessage, Hold
from scheduler.store.transaction import Transaction
from scheduler.store.wakes import JobWake

MAX_FAILED_RUNS = 2  # after so many runs in a row that failed, an agent is not expected to report anything
REPORT_GRACE = timedelta(minutes=15)  # in addition to the longest time of two runs of the agent

Woken = Sequence[tuple[str, int]]
"""The agents that a run has woken, each with the id of the wake."""


def send_or_hold_news(
    tick: Tick,
    claim: Claim,
    news: Sequence[News],
    details: Sequence[str],
    woken: Woken,
    covered: frozenset[Target],
) -> None:
    """Send each recipient of an entry what is new to it. A message about a problem that is not over has the `details`.

    1. A target in `covered` knows already that the entry works again. It gets nothing.
    2. The end of a failure of which the target was not notified yet: both stay delayed, in one message.
    3. An agent that is woken by this failure reports to the target: the message is delayed.
    4. A reminder, and the target knows what an agent reports about the job: it gets nothing. That has its own reminders.
    5. Otherwise the message is sent at once.

    In each case it replaces an earlier message about the problem that is delayed for the same target.
    """
    delayed = outbox.held_notices(tick.tx.db, claim.entry.name) if news and claim.entry.kind is Kind.CRON else []
    held = {(each.problem_id, each.target): each for each in delayed}
    expected = _expected_reports(tick, woken) if news else {}
    for each in news:
        before = held.get((each.problem.id, each.target))
        # The agent reports the failure, but cannot know that the job is paused.
        hold = None if each.problem.key == PAUSED else _hold_for(tick, each.target, expected)
        is_covered = each.change is Change.OVER and each.target in covered
        is_reminder = each.change is Change.REMINDER and each.problem.key != PAUSED
        is_known = hold is None and is_reminder and _knows_report(tick, claim.entry.name, each.target)
        more = details if each.problem.over_at is None else ()
        is_sent = each.change is not None and not is_covered and not is_known
        text = notices.problem_text(each, more, tick.plan.settings.zone) if is_sent else ""
        if before is not None and text and each.change is Change.OVER:
            hold, text = before.hold, f"{before.text}\n{text}"
        elif before is not None and hold is not None:
            agents = dict.fromkeys((*before.hold.agents, *hold.agents))
            hold = Hold(tuple(agents), min(before.hold.until, hold.until))
        if before is not None:
            outbox.drop_held(tick.tx, before, f"replaced by the notification of run {claim.run.id}")
        notices.send_message(tick, each, outbox.origin_of_claim(claim), text, hold)


def _hold_for(tick: Tick, target: Target, expected: dict[str, datetime]) -> Hold | None:
    """Which of the agents report to a target, and until when that is awaited; None if none of them does."""
    agents = tuple(agent for agent in expected if _why_unable(tick, agent, target) is None)
    return Hold(agents, max(expected[agent] for agent in agents)) if agents else None


def _expected_reports(tick: Tick, woken: Woken) -> dict[str, datetime]:
    """Until when each woken agent should have reported, without agents that have no opportunity within `wake_keep`."""
    until = {}
    for agent, wake_id in woken:
        entry, entry_row = tick.plan.entries.get((Kind.HEARTBEAT, agent)), entries.current_entry(tick.tx, Kind.HEARTBEAT, agent)
        if entry is None or entry_row is None:
            continue
        start = wakes.start_of_wake(tick.tx.db, wake_id) or planning.next_due_after(entry_row, tick.now)
        if start is not None and start - tick.now <= tick.limits.wake_keep:
            until[agent] = max(start, tick.now) + 2 * (entry.spec.retries + 1) * entry.spec.timeout + REPORT_GRACE
    return until


def _why_unable(tick: Tick, agent: str, target: Target) -> str | None:
    """Why a woken agent cannot report to a target now; None if it can."""
    entry, entry_row = tick.plan.entries.get((Kind.HEARTBEAT, agent)), entries.current_entry(tick.tx, Kind.HEARTBEAT, agent)
    if entry is None or entry_row is None or not isinstance(entry.spec, Heartbeat):
        return f"agent {agent} was removed"
    if entry_row.state != "active":
        return f"agent {agent} is disabled"
    if entry_row.paused:
        return f"agent {agent} is paused"
    if entry_row.is_muted(tick.now):
        return f"agent {agent} is muted"
    if not entry.spec.show_alerts or target not in notices.resolve_targets(tick, entry.deliver, entry.lane):
        return f"agent {agent} does not report there"
    if entry_row.failures >= MAX_FAILED_RUNS:
        return f"agent {agent} fails"
    if breakers.has_open_breaker(tick.tx, entry):
        return f"the circuit breaker of agent {agent} is open"
    if budget_reservations.find_shortage(tick, entry, first=True) is not None:
        return f"the budget of agent {agent} is used up"
    return None


def _knows_report(tick: Tick, job: str, target: Target) -> bool:
    """Whether the target knows an open problem about the job, of an agent that can send its reminders."""
    known = (each for each in problems.reports_about(tick.tx.db, job) if job in each.evidence.jobs)
    return any(each.is_known_to(target) and _why_unable(tick, each.subject.name, target) is None for each in known)


def settle_after_run(tx: Transaction, claim: Claim, result: AttemptResult, text_targets: Sequence[Target]) -> None:
    """After a run of a woken agent: drop the notifications whose failure it has reported, or stop waiting for it.

    What it reports, and its wakes, are saved already. `text_targets` are the targets that its text without keys was queued
    for: none if the agent is muted, and none that had the same text already, because it was about an earlier failure.
    """
    agent = claim.entry.name
    held = [each for each in outbox.held_notices(tx.db) if agent in each.hold.agents]
    if not held:
        return
    known, job_wakes = problems.open_reports_of(tx.db, agent), wakes.job_wakes_of(tx.db, agent)
    jobs = frozenset(wake.sender for wake in claim.facts.wakes if wake.source == Trigger.CRON)
    failed = jobs & {each.name for each in held}
    for each in held:
        if result.outcome is Outcome.ASYNC and each.name in jobs:
            until = max(each.hold.until, tx.now + claim.entry.spec.async_timeout + REPORT_GRACE)
            outbox.hold_message(tx, each, replace(each.hold, until=until), each.note)
        elif result.outcome in ANSWERED and _has_reported(known, result, each, failed, text_targets):
            outbox.drop_held(tx, each, f"agent {agent} has reported it (run {claim.run.id})")
        elif each.name in jobs:
            _stop_waiting_for(tx, each, {agent: _why_not_reported(known, claim, each, job_wakes.get(each.name))})


def _has_reported(
    known: Sequence[Problem], result: AttemptResult, held: HeldMessage, failed: frozenset[str], text_targets: Sequence[Target]
) -> bool:
    """Whether the target knows of the failure from the agent: by an open problem about the job, or by a text without keys.

    If several jobs have failed, or the answer has findings too, the text has to name the job.
    """
    if any(held.name in each.evidence.jobs and each.is_known_to(held.target) for each in known):
        return True
    text = result.message
    if not text or held.target not in text_targets or held.name not in failed:
        return False
    is_only_content = len(failed) == 1 and not (result.report and result.report.findings)
    return is_only_content or is_about_job(text, held.name, failed)


def _has_unsent_report(known: Sequence[Problem], held: HeldMessage) -> bool:
    """Whether the agent reports an open problem about the job of which the target is not notified yet. The next run sends it."""
    return any(held.name in each.evidence.jobs and not each.is_known_to(held.target) for each in known)


def _why_not_reported(known: Sequence[Problem], claim: Claim, held: HeldMessage, wake: JobWake | None) -> str | None:
    """Why the agent is not expected to report the failure of a job any more; None if another run is to deliver the wake."""
    agent = claim.entry.name
    if wake is None:
        return None if _has_unsent_report(known, held) else f"agent {agent} did not report it (run {claim.run.id})"
    if wake.earlier_runs >= MAX_FAILED_RUNS:
        return f"{wake.earlier_runs} runs of agent {agent} could not report it (the last is run {claim.run.id})"
    return None


def release_unreported_notices(tick: Tick) -> None:
    """Send the notifications that no agent is expected to report any more, or for which the time is over.

    Called in each tick while a message is delayed. There may be thousands of them, so the database is read once per agent.
    """
    notices_held = outbox.held_notices(tick.tx.db)
    if not notices_held:
        return
    expected = {(agent, held.target) for held in notices_held for agent in held.hold.agents}
    unable = {pair: _why_unable(tick, *pair) for pair in expected}
    agents = {agent for agent, _ in expected}
    known = {agent: problems.open_reports_of(tick.tx.db, agent) for agent in agents}
    job_wakes = {agent: wakes.job_wakes_of(tick.tx.db, agent) for agent in agents}
    for held in notices_held:
        reasons: dict[str, str | None] = {}
        for agent in held.hold.agents:
            wake = job_wakes[agent].get(held.name)
            if held.hold.until <= tick.now:
                reasons[agent] = f"agent {agent} did not report it in time"
            elif wake is None and not _has_unsent_report(known[agent], held):
                reasons[agent] = f"the wake of agent {agent} ended without a run"
            elif wake is None or not wake.is_in_run:
                reasons[agent] = unable[agent, held.target]
        _stop_waiting_for(tick.tx, held, reasons)


def _stop_waiting_for(tx: Transaction, held: HeldMessage, reasons: dict[str, str | None]) -> None:
    """Do not wait any longer for agents with a reason. If no other agent is left, the notification is sent."""
    given_up = {agent: reason for agent, reason in reasons.items() if reason is not None}
    if not given_up:
        return
    note = "; ".join(part for part in (held.note, *given_up.values()) if part)
    left = tuple(agent for agent in held.hold.agents if agent not in given_up)
    if left:
        outbox.hold_message(tx, held, replace(held.hold, agents=left), note)
        return
    outbox.release_message(tx, held, note)
    problems.renew_notice(tx, held)


def end_reports_about_recovered_jobs(tick: Tick, claim: Claim) -> None:
    """End what an agent reports about jobs that work again.

    An agent may be woken by a failure and run hours later. Its problems are saved already.
    """
    tx = tick.tx
    woken_by = {wake.sender for wake in claim.facts.wakes if wake.source == Trigger.CRON}
    if not woken_by:
        return
    known = problems.open_reports_of(tx.db, claim.entry.name)
    jobs = frozenset[str]().union(*(each.evidence.jobs for each in known)) & woken_by
    rows = {job: entries.current_entry(tx, Kind.CRON, job) for job in sorted(jobs)}
    for job, row in rows.items():
        if row is not None and not row.failures:
            end_reports_about(tick, job, claim)


def end_reports_about(tick: Tick, job: str, claim: Claim) -> frozenset[Target]:
    """End the problems that agents report about a job, because it works again. Returns the targets that need no end of its own.

    A problem that only came with a wake of the job stays open. From now on it is over when the agent no longer mentions it. While
    the agent is muted, the message that the job works again is sent for the job, and none for the agent after its mute.
    """
    tx, covered = tick.tx, set[Target]()
    own = [each for each in problems.problems_of(tx.db, Subject(Kind.CRON, job)) if each.is_open]
    for agent, known in groupby(problems.reports_about(tx.db, job), key=attrgetter("subject.name")):
        ended = _release_from_job(tx, [*known], job)
        entry, row = tick.plan.entries.get((Kind.HEARTBEAT, agent)), entries.current_entry(tx, Kind.HEARTBEAT, agent)
        is_muted = row is not None and row.is_muted(tx.now)
        for each in ended if is_muted else ():
            for target, last in each.notices.items():
                if any(failure.is_known_to(target) for failure in own):
                    problems.save_notice(tx, each.id, target, replace(last, kind=Told.OVER, severity_before=None), None)
        if entry is not None and isinstance(entry.spec, Heartbeat) and entry.spec.show_alerts and not is_muted:
            unstable = [each for each in ended if each.is_unstable(tx.now)]
            covered |= {target for each in unstable for target in each.notices if each.is_known_to(target)}
            if entry.spec.show_resolved:
                covered |= notices.send_ends_together(tick, outbox.origin_of_claim(claim), ended)
    return frozenset(covered)


def forget_job(tx: Transaction, job: str) -> None:
    """Separate open problems from a job that was removed or disabled. They are over when no answer mentions them."""
    _release_from_job(tx, problems.reports_about(tx.db, job), job, ends=False)


def _release_from_job(tx: Transaction, known: Sequence[Problem], job: str, *, ends: bool = True) -> list[Problem]:
    """Separate open problems from a job. Returns those that are over: they are about no other failing job."""
    failing = failing_jobs(tx, known) - {job}
    ended = []
    for each in known:
        own = each.evidence
        now = replace(each, evidence=replace(own, senders=own.senders - {problems.sender_of_job(job)}, jobs=own.jobs - {job}))
        if ends and job in own.jobs and not own.jobs & failing:
            now = after_end(now, tx.now, EndedBy.JOB)
            ended.append(now)
        problems.save_problem(tx, now)
    return ended

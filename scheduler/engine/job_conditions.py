"""Connects conditions with the failed cron jobs that they are about, and closes them when the jobs work again."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import product

from heartbeat.spec import Heartbeat
from scheduler.engine import notices
from scheduler.engine.condition_news import ConditionNews, is_unsettled, news_for_target, text_by_target
from scheduler.engine.tick import Tick
from scheduler.model.condition import Condition, EndedBy
from scheduler.model.entry import Claim
from scheduler.model.entry_row import EntryRow
from scheduler.model.outcome import FAILURES, Kind, Trigger
from scheduler.model.settings import Target
from scheduler.store import conditions, entries, outbox
from scheduler.store.transaction import Transaction

MIN_NAME_PART = 3  # characters of a part of a job's name by which a finding may refer to the job


def failed_jobs_of_wakes(tx: Transaction, claim: Claim) -> frozenset[str]:
    """The cron jobs that have woken this run and failed, or whose notification is delayed for a report of the agent."""
    wakes = [wake for wake in claim.facts.wakes if wake.source == Trigger.CRON and wake.kind is Kind.HEARTBEAT]
    held = {notice.name for notice in outbox.held_notices(tx.db)} if wakes else set()
    return frozenset(wake.sender for wake in wakes if wake.outcome in FAILURES or wake.sender in held)


def is_about_job(text: str, job: str, jobs: frozenset[str]) -> bool:
    """Whether a text of an agent is about the failed job: it contains the job's name, or a word of it that no other job has.

    The prompt asks for the key `job:NAME`. Agents also use keys of their own: `backup:nightly` for the job nightly-backup.
    """
    said = text.casefold()
    if re.search(rf"(?<![\w-]){re.escape(job.casefold())}(?![\w-])", said):
        return True
    others = set().union(*(_name_parts(other) for other in jobs if other != job))
    return not _name_parts(said).isdisjoint(_name_parts(job) - others)


def _name_parts(text: str) -> set[str]:
    """The words of a name or a text, without those that are short or figures, and without an s at their ends."""
    words = (word for word in re.split(r"[\W_]+", text.casefold()) if len(word) >= MIN_NAME_PART and not word.isdigit())
    return {word.removesuffix("s") for word in words}


def failing_jobs(tx: Transaction, known: Iterable[Condition]) -> frozenset[str]:
    """The jobs that open conditions are about, and whose last run failed."""
    jobs = frozenset[str]().union(*(condition.jobs for condition in known if condition.is_open))
    rows = {job: entries.current_entry(tx, Kind.CRON, job) for job in jobs}
    return frozenset(job for job, row in rows.items() if row is not None and row.state == "active" and row.failures)


def end_conditions_of_recovered_jobs(tick: Tick, claim: Claim, after: EntryRow) -> EntryRow:
    """Close the conditions of an agent that are about jobs which work again. Returns its updated row.

    An agent may be woken by a failure and run hours later. Its conditions are saved already.
    """
    tx, agent = tick.tx, claim.entry.name
    woken_by = {wake.sender for wake in claim.facts.wakes if wake.source == Trigger.CRON}
    known = conditions.open_conditions_of(tx.db, agent) if woken_by else []
    jobs = frozenset[str]().union(*(condition.jobs for condition in known)) & woken_by
    rows = {job: entries.current_entry(tx, Kind.CRON, job) for job in sorted(jobs)}
    recovered = [job for job, row in rows.items() if row is not None and row.state == "active" and not row.failures]
    for job in recovered:
        end_conditions_of_job(tick, job, claim)
    return after._replace(conditions=_unsettled_count(tx, after)) if recovered else after


def end_conditions_of_job(tick: Tick, job: str, claim: Claim) -> frozenset[Target]:
    """Close the conditions that are about a job, because it works again. Returns the targets that need no recovery message.

    Each target that was notified of one of these conditions gets one message. A condition that only came with a wake of the job
    stays open. From now on it is closed when the agent no longer mentions it.
    """
    tx = tick.tx
    news: list[ConditionNews] = []
    flapping: set[Target] = set()
    agents = conditions.agents_with_conditions_of_job(tx.db, job)
    for agent in agents:
        ended = _release_from_job(tx, agent, job)
        entry = tick.plan.entries.get((Kind.HEARTBEAT, agent))
        entry_row = entries.current_entry(tx, Kind.HEARTBEAT, agent)
        is_muted = entry_row is not None and entry_row.is_muted(tx.now)
        if entry is not None and isinstance(entry.spec, Heartbeat) and entry.spec.show_alerts and not is_muted:
            targets = notices.resolve_targets(tick, entry.deliver, entry.lane)
            for condition, target in product(ended, targets):
                if found := news_for_target(condition, target, entry.spec, tx.now):
                    news.append(found)
                elif condition.is_known_to(target) and condition.is_flapping(tx.now):
                    flapping.add(target)
    for each in news:
        conditions.save_report(tx, each.condition.id, each.target, each.kind, each.severity, None)
    messages = text_by_target(news)
    for target, text in messages.items():
        about = f"condition ended{f' to {target.recipient}' if target.recipient else ''}"
        outbox.queue_notice(tx, tick.plan.settings.channels, outbox.origin_of_claim(claim), about, text, (target,))
    for agent in agents:
        entry_row = entries.current_entry(tx, Kind.HEARTBEAT, agent)
        if entry_row is not None:
            entries.change_entry(tx, entry_row, entry_row._replace(conditions=_unsettled_count(tx, entry_row)))
    return frozenset(messages) | flapping


def forget_job(tx: Transaction, job: str) -> None:
    """Separate the open conditions from a job that was removed or disabled. They are closed when no answer mentions them."""
    for agent in conditions.agents_with_conditions_of_job(tx.db, job):
        _release_from_job(tx, agent, job, ends=False)


def _release_from_job(tx: Transaction, agent: str, job: str, *, ends: bool = True) -> list[Condition]:
    """Separate the open conditions of an agent from a job. Returns those that end: they are about no other failing job."""
    known = conditions.open_conditions_of(tx.db, agent)
    failing = failing_jobs(tx, known) - {job}
    ended = []
    for condition in known:
        now = replace(condition, senders=condition.senders - {conditions.sender_of_job(job)}, jobs=condition.jobs - {job})
        if ends and job in condition.jobs and not condition.jobs & failing:
            now = replace(now, closed_at=tx.now, ended_by=EndedBy.JOB)
            ended.append(now)
        if now != condition:
            conditions.save_condition(tx, now)
    return ended


def _unsettled_count(tx: Transaction, agent: EntryRow) -> int:
    is_muted = agent.is_muted(tx.now)
    return sum(is_unsettled(condition, tx.now, is_muted=is_muted) for condition in conditions.conditions_of(tx.db, agent.name))

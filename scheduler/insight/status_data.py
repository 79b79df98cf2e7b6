"""Reads the status of the daemon and of its entries, for `status` and for the HTTP API."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from zoneinfo import ZoneInfo

from heartbeat.findings import Severity
from heartbeatd import answers
from scheduler.config.keys.time_zones import UTC_ZONE
from scheduler.insight import entry_states, reload_history, wake_waits
from scheduler.insight.problem_list import LISTED, list_problems
from scheduler.insight.reason_texts import SLEPT
from scheduler.insight.schedule_texts import TimeFormat
from scheduler.model import local_days
from scheduler.model.budget import ALL_ENTRIES, LIMITS, MONTH_LIMIT, Budget, BudgetDay
from scheduler.model.entry_row import EntryRow
from scheduler.model.outcome import Kind
from scheduler.model.problem import PROVIDER, REPORTED, Problem, Subject
from scheduler.store import (
    asked_questions,
    boots,
    breakers,
    clock_changes,
    config_history,
    cost_history,
    lane_holds,
    outbox,
    overviews,
    problems,
    run_history,
    spend,
    wakes,
)
from scheduler.store.outbox import TargetDelivery
from scheduler.store.rows import read_part
from scheduler.store.spend import SpentDay

RECENT_FREEZES = timedelta(days=7)
MAX_FREEZES = 5


def read_status(
    db: sqlite3.Connection, now: datetime, zone: ZoneInfo = UTC_ZONE, reserve_bytes: int = 0, *, costs: bool = True
) -> answers.Status:
    """The whole status. The total cost is that of the local day in `zone`.

    `daemon` is the latest boot; whether that process is still alive is for the caller to find out. `config_hash` is that of the
    config with which it started. `costs` False leaves out budgets and cost, whose reading takes longest with many agents. The
    caller adds the verdict: it knows what a reader may see, and whether the process is frozen.
    """
    leader, today = boots.find_leader(db), local_days.whole_day(now.astimezone(zone).date(), zone)
    boot, listed, times = boots.latest_boot(db), read_entries(db, now, zone), TimeFormat.of_today(zone, now)
    return answers.Status(
        daemon=answers.DaemonBoot.model_validate(boot, from_attributes=True) if boot else None,
        leader=answers.Leader.model_validate(leader, from_attributes=True) if leader else None,
        problems=[each for each in list_problems(db, now, also_over=False) if each.state in LISTED],
        downs=boots.latest_downtimes(db),
        frozen=_frozen_times(db, now),
        config_hash=boot.config_hash if boot else None,
        reload=reload_history.reload_status(db),
        overrides=reload_history.describe_overrides(config_history.overrides_in_force(db)),
        spend=cost_history.spend_of_day(db, today, zone) if costs else None,
        budgets=list(budgets_in_force(db, now)) if costs else [],
        budget=_budget_usage(spend.budgets_in_use(db, now).get(ALL_ENTRIES)),
        entries=listed,
        queue=_count_queue(db, listed, now),
        wakes=[
            wake_waits.explain_waiting(db, (Kind(each.kind), each.name), each.wakes_waiting, now, times.exactly)
            for each in listed
            if each.wakes_waiting
        ],
        reminders=wakes.list_reminders(db),
        questions=asked_questions.open_questions(db),
        held=outbox.held_by_channel(db),
        reserve_bytes=reserve_bytes,
        deadman_problem=boot.deadman_problem if boot else None,
        breakers=open_breakers(db),
        outbox=[each for each in outbox.unfinished_by_channel(db) if each.pending or each.dead],
    )


def open_breakers(db: sqlite3.Connection) -> list[answers.BreakerStatus]:
    """The open circuit breakers, with their reasons, and when they may be probed. A model of None means the whole provider."""
    return [
        answers.BreakerStatus(
            provider=each.circuit.provider,
            model=None if each.circuit.is_whole_provider else each.circuit.model,
            why=each.reason,
            error=each.error,
            opened_at=each.opened_at,
            next_probe_at=each.probe_at,
        )
        for each in breakers.list_open_breakers(db)
    ]


def _told_at(problem: Problem) -> datetime | None:
    """When the last message about a problem was delivered, as far as its recipients do not know that it is over."""
    delivered = (last.delivered_at for last in problem.notices.values() if not last.is_end)
    return max((at for at in delivered if at is not None), default=None)


def _frozen_times(db: sqlite3.Connection, now: datetime) -> list[answers.FrozenTime]:
    """The latest times of the last week in which the process was frozen or the machine was suspended, the newest first."""
    changes = clock_changes.clock_changes_between(db, now - RECENT_FREEZES, now)
    found = boots.freezes_between(db, now - RECENT_FREEZES, now)
    found += [answers.FrozenTime(since=each.at - each.by, until=each.at, cause=SLEPT) for each in changes if each.is_sleep]
    return sorted(found, key=lambda each: each.until, reverse=True)[:MAX_FREEZES]


def read_entries(
    db: sqlite3.Connection, now: datetime, zone: ZoneInfo = UTC_ZONE, kind: Kind | None = None, name: str | None = None
) -> list[answers.EntryStatus]:
    """Every entry, or those of one kind or name: agents first, sorted by name. Times in sentences are those of `zone`."""
    held, spent, times = lane_holds.holds_by_agent(db, now), spend.budgets_in_use(db, now), TimeFormat.of_today(zone, now)
    open_counts, found = _count_problems(db), overviews.entry_overviews(db, kind, name)
    deliveries = run_history.deliveries_of_runs(db, {row["run_id"]: row["run_repeats"] for _, row in found if row["run_id"]})
    undelivered = {
        key: answers.UndeliveredMessages.model_validate(each, from_attributes=True)
        for key, each in outbox.undelivered_by_entry(db, now, kind, name).items()
    }
    own = {key: list(each) for key, each in groupby(problems.unsettled_problems(db, kind, name), lambda one: one.subject[:2])}
    causes = {each.id: each for each in problems.unsettled_problems(db, PROVIDER)} if own else {}
    return [
        answers.EntryStatus(
            **dict(entry_states.entry_state(entry, now, times, is_open=row["run_state"] in ("running", "waiting"))),
            next_planned_at=entry.slot,
            next_due=None if entry.state_at(now) == "paused" else entry.due_at,
            last_run=_last_run(row, deliveries),
            last_success_at=entry.last_success_at,
            consecutive_failures=entry.failures,
            consecutive_quiet=entry.quiet,
            alerting=bool(entry.alerting),
            failing=_present_failures(row, own.get(entry.key, ()), causes),
            wakes_waiting=row["wakes"],
            undelivered=undelivered.get(entry.key),
            activity=_last_activity(entry),
            busy=held.get(entry.name, []) if entry.kind is Kind.HEARTBEAT else [],
            muted=entry_states.active_mute(entry, now, times),
            problems=open_counts.get(entry.key, answers.ProblemCounts(open=0, reported=0, worst=None)),
            budget=_budget_usage(spent.get(entry.key)),
        )
        for entry, row in found
    ]


def _count_problems(db: sqlite3.Connection) -> dict[tuple[str, str], answers.ProblemCounts]:
    """The number of open problems of each subject, by kind and name, and their highest severity."""
    found: dict[tuple[str, str], list[tuple[Subject, Severity, int]]] = {}
    for (subject, severity, _), count in problems.count_open(db).items():
        found.setdefault(subject[:2], []).append((subject, Severity(severity), count))
    return {
        key: answers.ProblemCounts(
            open=sum(count for _, _, count in counts),
            reported=sum(count for subject, _, count in counts if subject.part == REPORTED),
            worst=max((severity for _, severity, _ in counts), key=lambda each: each.rank).value,
        )
        for key, counts in found.items()
    }


def _budget_usage(spent: SpentDay | None) -> answers.BudgetUsage | None:
    """How much of each limit is used today, or this month; None if nothing has been counted, or nothing is limited."""
    limits = _used_limits(spent) if spent else {}
    return answers.BudgetUsage(day=spent.day, ends_at=spent.ends_at, **limits) if spent and limits else None


def _used_limits(spent: SpentDay) -> dict[str, answers.UsedLimit]:
    return {key: answers.UsedLimit(used=used, of=bound) for key, used, bound in spent.budget.usage_by_limit(spent.spent)}


def budgets_in_force(db: sqlite3.Connection, now: datetime) -> Iterator[answers.BudgetStatus]:
    """Each budget of the config: its usage today, when it starts again, what it counts, and the entries with the largest shares.

    The budget of all entries comes first, and has None as kind and name.
    """
    unknown_costs = spend.UnknownCosts(db)
    found = spend.budgets_in_force(db)
    for scope, today in spend.spent_today(db, now, {scope: budget for scope, (budget, _) in found.items()}).items():
        (budget, counted), budget_day = found[scope], BudgetDay(today.day, scope)
        spent = today.spent.month if _shown_limit(budget) == MONTH_LIMIT else today.spent.day
        shares = spend.shares_of_period(db, today.day, _shown_limit(budget)) if scope == ALL_ENTRIES else {}
        largest = sorted(shares.items(), key=lambda each: (-each[1].nanos, -each[1].tokens, -each[1].runs))
        yield answers.BudgetStatus(
            kind=Kind(scope[0]).value if scope[0] else None,
            name=scope[1] or None,
            day=today.day,
            timezone=budget.zone.key,
            ends_at=today.ends_at,
            month_ends_at=max(today.ends_at, budget.period(MONTH_LIMIT, today.day).ends),
            limits=_used_limits(today),
            untold_usd=round(unknown_costs.of_period(budget_day, budget, _shown_limit(budget)), 6) if spent.nanos else 0.0,
            counts=[answers.EntryName(kind=Kind(kind).value, name=name) for kind, name in counted],
            shares=[
                answers.BudgetShare(kind=Kind(kind).value, name=name, usd=amount.usd, tokens=amount.tokens, runs=amount.runs)
                for (kind, name), amount in largest
            ],
        )


def _shown_limit(budget: Budget) -> str:
    """The limit whose shares and unknown costs are shown: that of the month only if nothing else limits a day."""
    return next((key for key, bound in zip(LIMITS, budget.limits, strict=True) if bound is not None), LIMITS[0])


def read_wake(db: sqlite3.Connection, wake_id: int, now: datetime) -> answers.WakeStatus | None:
    """The state of a wake (waiting, taken, ended), what it waits for, and the last run that took it; None if it is unknown."""
    wake = wakes.find_wake(db, wake_id)
    if wake is None:
        return None
    wait = wake_waits.wait_of_wake(db, wake, now)
    return answers.WakeStatus(
        id=wake.id,
        kind=wake.kind.value,
        name=wake.name,
        source=wake.source,
        state=wake.state,
        count=wake.count,
        run=None if wake.run_id is None else run_history.get_run(db, wake.run_id),
        waits_for=wait.reason if wait else None,
        until=wait.until if wait else None,
    )


def _present_failures(row: sqlite3.Row, own: Sequence[Problem], causes: Mapping[int, Problem]) -> answers.Failing | None:
    """The present failures: how many in a row, since when, and when the last message was delivered.

    If a provider is at fault, that is the message about its problem. `held_back_for` is only there while the message is delayed,
    and names the agents that are to report the failure.
    """
    problem = problems.present_problem(own)
    if problem is None:
        return None
    awaits, told_at = row["failing_awaits"], _told_at(problem)
    cause = causes.get(problem.found.cause_id or 0)
    if told_at is None and cause is not None:
        told_at = _told_at(cause)
    return answers.Failing(
        times=problem.count,
        why=problem.found.reason,
        since=problem.since,
        told_at=told_at,
        **({"held_back_for": json.loads(awaits)} if awaits else {}),
    )


def _last_activity(entry: EntryRow) -> answers.Activity | None:
    """What a gateway last reported about an agent."""
    if entry.active_at is None:
        return None
    return answers.Activity(queue=entry.queue, pending_approvals=entry.approvals, at=entry.active_at)


def _last_run(row: sqlite3.Row, deliveries: Mapping[int, list[TargetDelivery]]) -> answers.LastRun | None:
    """The newest run record: a run, or skipped slots."""
    if row["run_id"] is None:
        return None
    result, sent = row["run_result"], deliveries[row["run_id"]]
    delivery = run_history.delivery_state(row["kind"], result, row["run_suppression"], sent)
    return read_part(answers.LastRun, row, "run_", result=result if row["run_state"] == "closed" else None, delivery=delivery)


def _count_queue(db: sqlite3.Connection, listed: list[answers.EntryStatus], now: datetime) -> answers.QueueCounts:
    states, open_runs = Counter(each.state for each in listed), overviews.count_open_runs(db)
    due, _ = overviews.count_due_entries(db, now)
    return answers.QueueCounts(
        entries=len(listed),
        **{state: states[state] for state in ("active", "paused", "disabled", "done")},
        due=due,
        running=open_runs.get("running", 0),
        retrying=open_runs.get("waiting", 0),
    )

"""Reads the status of the daemon and of its entries, for `status` and for the HTTP API."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from heartbeat.findings import Severity
from scheduler.insight import reload_history, wake_waits
from scheduler.insight.reason_texts import SLEPT
from scheduler.model import entry_schedule, local_days
from scheduler.model.budget import ALL_ENTRIES, BudgetDay
from scheduler.model.circuit import Breaker, Circuit
from scheduler.model.entry_row import UNTIL_RESUMED
from scheduler.model.mute import parse_mute
from scheduler.model.outcome import Kind
from scheduler.model.timestamps import from_millis, from_optional_millis, iso_utc, to_millis
from scheduler.store import (
    boots,
    breakers,
    clock_changes,
    conditions,
    config_history,
    cost_history,
    entries_view,
    lane_holds,
    outages,
    outbox,
    run_history,
    spend,
    wakes,
)
from scheduler.store.outages import Outage
from scheduler.store.outbox import Delivery, EntryMessages

UTC_ZONE = ZoneInfo("UTC")
RECENT_STALLS = timedelta(days=7)
MAX_STALLS = 5


def read_status(db: sqlite3.Connection, now: datetime, zone: ZoneInfo = UTC_ZONE) -> dict[str, Any]:
    """The whole status as JSON data: times in UTC with Z, None if unknown. The total cost is that of the local day in `zone`.

    `daemon` is the latest boot; whether that process is still alive is for the caller to find out. `config_hash` is that of the
    config with which it started.
    """
    listed, problems = read_entries(db, now), read_problems(db)
    return {
        "daemon": _daemon_data(boots.latest_boot(db)),
        "downs": [
            {"since": iso_utc(down.since), "until": iso_utc(down.until), "clean": down.clean}
            for down in boots.latest_downtimes(db)
        ],
        "frozen": _frozen_data(db, now),
        "config_hash": _config_hash(db),
        "config_refused": problems["config_refused"],
        "reload": reload_history.reload_status(db),
        "overrides": [asdict(each) for each in config_history.overrides_in_force(db)],
        "deadman_problem": problems["deadman_problem"],
        "workers_problem": problems["workers_problem"],
        "outages": problems["outages"],
        "flapping": entries_view.flapping_entries(db),
        "breakers": problems["breakers"],
        "spend": _spend_data(db, now, zone),
        "budgets": list(_budgets_in_force(db, now)),
        "budget": _budget_data(spend.budget_rows_today(db, now).get(ALL_ENTRIES)),
        "entries": listed,
        "queue": _queue_data(db, listed, now),
        "wakes": wake_waits.waits_by_agent(db, now),
        "outbox": problems["outbox"],
    }


def read_problems(db: sqlite3.Connection) -> dict[str, Any]:
    """The parts of the status that name problems of the daemon, of providers and of channels."""
    boot = boots.latest_boot(db)
    return {
        "config_refused": _refused_config_data(boot, config_history.last_refused_by(db)),
        "deadman_problem": _deadman_problem(boot),
        "workers_problem": boot["workers_problem"] if boot else None,
        "outages": [_outage_data(outage, told_at) for outage, told_at in outages.all_outages(db)],
        "breakers": [_breaker_data(breaker) for breaker in breakers.list_open_breakers(db)],
        "outbox": [_outbox_data(row) for row in outbox.unfinished_by_channel(db) if row["pending"] or row["dead"]],
    }


def _breaker_data(breaker: Breaker) -> dict[str, Any]:
    """An open circuit breaker, its reason, and when it may be probed; a model of null means the whole provider."""
    circuit = breaker.circuit
    return {
        "provider": circuit.provider,
        "model": None if circuit.is_whole_provider else circuit.model,
        "reason": breaker.reason,
        "error": breaker.error,
        "opened_at": iso_utc(breaker.opened_at),
        "next_probe_at": iso_utc(breaker.probe_at),
    }


def _outage_data(outage: Outage, told_at: datetime | None) -> dict[str, Any]:
    """An outage or flapping of a provider or of one of its models; a model of null means the whole provider."""
    circuit = outage.circuit
    return {
        "provider": circuit.provider,
        "model": None if circuit.is_whole_provider else circuit.model,
        "reason": outage.reason,
        "error": outage.error,
        "since": iso_utc(outage.since),
        "failing": outage.failing,
        "flapping": outage.flapping_at is not None,
        "told_at": iso_utc(told_at),
    }


def _frozen_data(db: sqlite3.Connection, now: datetime) -> list[dict[str, Any]]:
    """The latest times of the last week in which the process was frozen or the machine was suspended, the newest first."""
    stalls = [(each.since, each.until, each.cause) for each in boots.stalls_between(db, now - RECENT_STALLS, now)]
    changes = clock_changes.clock_changes_between(db, now - RECENT_STALLS, now)
    sleeps = [(each.at - each.by, each.at, SLEPT) for each in changes if each.is_sleep]
    found = sorted([*stalls, *sleeps], key=lambda each: each[1], reverse=True)[:MAX_STALLS]
    return [{"since": iso_utc(since), "until": iso_utc(until), "cause": cause} for since, until, cause in found]


def _refused_config_data(boot: sqlite3.Row | None, by: str | None) -> dict[str, Any] | None:
    """The errors of a changed config that was rejected while the previous one stays active; None if there are none."""
    if boot is None or boot["config_problem"] is None:
        return None
    problems = boot["config_problem"].splitlines()
    return {"at": iso_utc(from_optional_millis(boot["config_refused_at"])), "by": by, "problems": problems}


def _deadman_problem(boot: sqlite3.Row | None) -> str | None:
    """Why pings to the dead man's switch fail; None if they arrive."""
    return boot["deadman_problem"] if boot else None


def read_entries(
    db: sqlite3.Connection, now: datetime, kind: Kind | None = None, name: str | None = None
) -> list[dict[str, Any]]:
    """Every entry, or those of one kind or name, as JSON data: agents first, sorted by name."""
    held, spent = lane_holds.holds_by_agent(db, now), spend.budget_rows_today(db, now)
    open_counts, rows = conditions.count_open(db), entries_view.entry_overviews(db, kind, name)
    deliveries = run_history.deliveries_of_runs(db, {row["last_id"]: row["last_repeats"] for row in rows if row["last_id"]})
    undelivered = outbox.undelivered_by_entry(db, now, kind, name)
    told = {outage.circuit: told_at for outage, told_at in outages.all_outages(db)}
    return [
        _entry_data(row, held)
        | {"last_run": _last_run_data(row, deliveries), "failing": _failing_data(row, told)}
        | {"undelivered": _undelivered_data(undelivered.get((row["kind"], row["name"])))}
        | {"muted": _mute_data(row, now)}
        | {
            "conditions": _conditions_data(row, open_counts),
            "budget": _budget_data(spent.get((row["kind"], row["name"]))),
        }
        for row in rows
    ]


def _conditions_data(row: sqlite3.Row, open_counts: Mapping[tuple[str, str, bool], int]) -> dict[str, Any]:
    """The number of open conditions of an agent, and their highest severity; None without any. A job has no conditions."""
    counts = {
        severity: sum(open_counts.get((row["name"], severity, acknowledged), 0) for acknowledged in (False, True))
        for severity in Severity
        if row["kind"] == Kind.HEARTBEAT
    }
    worst = max((severity for severity, count in counts.items() if count), key=lambda severity: severity.rank, default=None)
    return {"open": sum(counts.values()), "worst": worst}


def _budget_data(row: sqlite3.Row | None) -> dict[str, Any] | None:
    """How much of each limit is used today; None if nothing has been counted today, or nothing is limited."""
    if row is None:
        return None
    spent, budget = spend.amount_of_row(row), spend.budget_of_row(row)
    bounds = {key: {"used": used, "of": bound} for key, used, bound in budget.usage_by_limit(spent)}
    return {"day": row["day"], "ends_at": iso_utc(from_optional_millis(row["ends_at"])), **bounds} if bounds else None


def _spend_data(db: sqlite3.Connection, now: datetime, zone: ZoneInfo) -> dict[str, Any]:
    """The cost of all runs that ended today, whether a budget counts them or not."""
    today = local_days.whole_day(now.astimezone(zone).date(), zone)
    total = cost_history.total_cost(db, today.begins, today.ends)
    return {
        "since": iso_utc(today.begins),
        "until": iso_utc(today.ends),
        "timezone": zone.key,
        "runs": total.runs,
        "cost_usd": total.cost_usd,
        "runs_without_price": total.unpriced,
        "untold_usd": round(total.untold_usd, 6),
    }


def _budgets_in_force(db: sqlite3.Connection, now: datetime) -> Iterator[dict[str, Any]]:
    """Each budget of the config: its usage today, when it starts again, what it counts, and the entries with the largest shares.

    The budget of all entries comes first, and has None as kind and name.
    """
    for scope, (budget, counted) in spend.budgets_in_force(db).items():
        (day, ends_at), is_shared = spend.open_budget_day(db, scope, budget, now), scope == ALL_ENTRIES
        used = spend.spent_on_day(db, BudgetDay(day, scope))
        shares = spend.shares_of_day(db, day) if is_shared else {}
        yield {
            "kind": scope[0] or None,
            "name": scope[1] or None,
            "day": day.isoformat(),
            "timezone": budget.zone.key,
            "ends_at": iso_utc(ends_at),
            "limits": {key: {"used": part, "of": bound} for key, part, bound in budget.usage_by_limit(used)},
            "counts": [{"kind": kind, "name": name} for kind, name in counted],
            "shares": [
                {"kind": kind, "name": name, "usd": amount.usd, "tokens": amount.tokens, "runs": amount.runs}
                for (kind, name), amount in sorted(
                    shares.items(), key=lambda each: (-each[1].nanos, -each[1].tokens, -each[1].runs)
                )
            ],
        }


def read_wake(db: sqlite3.Connection, wake_id: int) -> dict[str, Any] | None:
    """The state of a wake (waiting, taken, ended) and the last run that took it; None if the wake is no longer on record."""
    row = wakes.find_wake(db, wake_id)
    if row is None:
        return None
    run = None if row["run_id"] is None else run_history.get_run(db, row["run_id"])
    return {key: row[key] for key in ("id", "kind", "name", "source", "state", "count")} | {"run": run}


def _entry_data(row: sqlite3.Row, held: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    paused = row["state"] == "active" and row["paused_until"] is not None
    done = _done_at(row) if row["state"] == "active" and not paused else None
    return {
        "kind": row["kind"],
        "name": row["name"],
        "state": "paused" if paused else "done" if done else row["state"],
        "paused_until": _pause_end(row["paused_until"]) if paused else None,
        "paused_at": iso_utc(from_optional_millis(row["paused_at"])) if paused else None,
        "paused_by": row["paused_by"] if paused else None,
        "done_at": iso_utc(done),
        "next_slot": iso_utc(from_optional_millis(row["slot"])),
        "next_due": None if paused else iso_utc(from_optional_millis(row["due_at"])),
        "last_success_at": iso_utc(from_optional_millis(row["last_success_at"])),
        "consecutive_failures": row["failures"],
        "consecutive_quiet": row["quiet"],
        "alerting": bool(row["alerting"]),
        "wakes_waiting": row["wakes"],
        "activity": _activity_data(row),
        "busy": held.get(row["name"], []) if row["kind"] == Kind.HEARTBEAT else [],
    }


def _done_at(row: sqlite3.Row) -> datetime | None:
    """The one slot of an entry that runs once and is done; None for any other entry."""
    going_on = row["last_state"] in ("running", "waiting")
    return None if going_on else entry_schedule.finished_single_slot(row["pace"], from_millis(row["settled_until"]))


def _failing_data(row: sqlite3.Row, told: Mapping[Circuit, datetime | None]) -> dict[str, Any] | None:
    """The present failures: how many in a row, since when, and when the last notification was delivered.

    If a provider is at fault, that is the notification of its outage (`told`). `held_back_for` is only there while the
    notification is delayed, and names the agents that are to report the failure.
    """
    if row["failing_since"] is None or not row["troubles"]:
        return None
    awaits, told_at = row["failing_awaits"], from_optional_millis(row["failing_told_at"])
    if told_at is None and row["failing_provider"] is not None:
        told_at = told.get(Circuit(row["failing_provider"], row["failing_model"]))
    times = {
        "since": iso_utc(from_optional_millis(row["failing_since"])),
        "told_at": None if awaits else iso_utc(told_at),
    }
    held_back = {"held_back_for": json.loads(awaits)} if awaits else {}
    return {"times": row["troubles"], "reason": row["failing_reason"], **times, **held_back}


def _activity_data(row: sqlite3.Row) -> dict[str, Any] | None:
    """What a gateway last reported about an agent."""
    if row["active_at"] is None:
        return None
    return {"queue": row["queue"], "pending_approvals": row["approvals"], "at": iso_utc(from_optional_millis(row["active_at"]))}


def _pause_end(paused_until: int) -> str | None:
    return None if paused_until == to_millis(UNTIL_RESUMED) else iso_utc(from_optional_millis(paused_until))


def _mute_data(row: sqlite3.Row, now: datetime) -> dict[str, Any] | None:
    """The mute of an entry: since when, by whom, until when (None: until `unmute`), and the number of runs that it affected."""
    if row["mute"] is None or row["muted_until"] is None or from_millis(row["muted_until"]) <= now:
        return None
    mute = parse_mute(row["mute"])
    return {
        "since": iso_utc(mute.since),
        "by": mute.by,
        "until": _pause_end(row["muted_until"]),
        "until_changed": mute.known is not None,
        "held": mute.held,
    }


def _undelivered_data(messages: EntryMessages | None) -> dict[str, Any] | None:
    """The messages of an entry that should have arrived by now; None without any."""
    if messages is None:
        return None
    found = {"channel": messages.channel, "state": messages.state.value, "count": messages.count, "run": messages.last_run}
    return found | {"since": iso_utc(messages.oldest), "says": messages.text}


def _last_run_data(row: sqlite3.Row, deliveries: Mapping[int, list[Delivery]]) -> dict[str, Any] | None:
    """The newest run record: a run, or skipped slots."""
    if row["last_id"] is None:
        return None
    closed = row["last_state"] == "closed"
    return {
        "id": row["last_id"],
        "slot": iso_utc(from_optional_millis(row["last_run_slot"])),
        "slots": row["last_slots"],
        "trigger": row["last_trigger"],
        "state": row["last_state"],
        "outcome": row["last_outcome"] if closed else None,
        "reason": row["last_reason"],
        "suppression": row["last_suppression"],
        "started_at": iso_utc(from_optional_millis(row["last_run_started_at"])),
        "finished_at": iso_utc(from_optional_millis(row["last_finished_at"])),
        "error": row["last_error"],
        "delivery": run_history.delivery_state(
            row["kind"], row["last_outcome"], row["last_suppression"], deliveries[row["last_id"]]
        ).value,
        "worker": row["last_worker"],
    }


def _daemon_data(boot: sqlite3.Row | None) -> dict[str, Any] | None:
    if boot is None:
        return None
    times = {name: iso_utc(from_optional_millis(boot[name])) for name in ("started_at", "last_tick_at", "ended_at")}
    return {"pid": boot["pid"], "version": boot["version"], "tzdata": boot["tzdata"], **times}


def _config_hash(db: sqlite3.Connection) -> str | None:
    boot = boots.latest_boot(db)
    return boot["config_hash"] if boot else None


def _queue_data(db: sqlite3.Connection, listed: list[dict[str, Any]], now: datetime) -> dict[str, int]:
    states = [each["state"] for each in listed]
    due, _ = entries_view.count_due_entries(db, now)
    open_runs = entries_view.count_open_runs(db)
    return {
        "entries": len(states),
        **{state: states.count(state) for state in ("active", "paused", "disabled", "done")},
        "due": due,
        "running": open_runs.get("running", 0),
        "retrying": open_runs.get("waiting", 0),
    }


def _outbox_data(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "channel": row["channel"],
        "pending": row["pending"],
        "dead": row["dead"],
        "oldest_at": iso_utc(from_optional_millis(row["oldest"])),
    }

"""Reads the gauges of the metrics page from the database and the settings at each scrape."""

from __future__ import annotations

import math
import os
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path

from cron.job import Job
from heartbeat.spec import Heartbeat
from scheduler.model import entry_schedule
from scheduler.model.budget import ALL_ENTRIES, LIMITS, NO_USAGE, Amount, Budget, Scope, Spent
from scheduler.model.circuit import ACCOUNT, Circuit, required_circuits
from scheduler.model.local_days import A_DAY, LocalDay
from scheduler.model.outcome import LONGEST_RETRY_DELAY, Kind
from scheduler.model.problem import CHANNEL, PROVIDER, Subject
from scheduler.model.settings import Settings
from scheduler.model.timestamps import from_millis
from scheduler.store import asked_questions, boots, breakers, disk_reserve, outbox, overviews, problems, spend, wakes
from scheduler.telemetry.catalog import Reading

EntryLabels = tuple[str, str]
ENTRY_LABELS = ("kind", "name")
DONE_STATE = "done"
SHARES_KEPT = timedelta(minutes=5)
MAX_PLANNED_ENTRIES = 1000

# The column of the entry's row that each gauge shows. A gauge is absent while its column is null.
NUMBER_GAUGES = {"failures": "heartbeatd_consecutive_failures", "alerting": "heartbeatd_alerting"}
TIME_GAUGES = {
    "next_due": "heartbeatd_next_due_timestamp_seconds",
    "paused_at": "heartbeatd_paused_since_timestamp_seconds",
    "last_ended_at": "heartbeatd_last_run_timestamp_seconds",
    "last_success_at": "heartbeatd_last_success_timestamp_seconds",
}


def read_entries(
    reading: Reading, db: sqlite3.Connection, settings: Settings, wanted: Mapping[EntryLabels, str], now: datetime
) -> None:
    """The gauges and the stored counters of the entries in `wanted`, which has the text of their labels."""
    specs = entries_by_key(settings)
    for row in overviews.entry_gauges(db, wanted):
        key = (row["kind"], row["name"])
        labels, state = wanted[key], row["state"]
        is_done = entry_schedule.done_at(state, row["pace"], from_millis(row["settled_until"]), is_open=row["goes_on"])
        present = DONE_STATE if is_done else state
        reading["heartbeatd_entry_state"].add_series(f'{labels},state="{present}"', 1)
        reading["heartbeatd_slots_total"].add_series(f'{labels},result="good"', row["good_slots"])
        reading["heartbeatd_slots_total"].add_series(f'{labels},result="bad"', row["bad_slots"])
        expected_by = _expected_by(row, specs[key], is_done=is_done is not None, now=now)
        if expected_by is not None:
            reading["heartbeatd_expected_by_timestamp_seconds"].add_series(labels, expected_by)
        for column, name in NUMBER_GAUGES.items():
            reading[name].add_series(labels, row[column])
        for column, name in TIME_GAUGES.items():
            if row[column] is not None:
                reading[name].add_series(labels, row[column] / 1000)
    for key in overviews.muted_entries(db, now).intersection(wanted):
        reading.show("heartbeatd_muted", 1, *key)


def entries_by_key(settings: Settings) -> dict[EntryLabels, Heartbeat | Job]:
    """Every agent and job by kind and name."""
    beats = {(Kind.HEARTBEAT.value, name): beat for name, beat in settings.heartbeats.items()}
    return {**beats, **{(Kind.CRON.value, name): job for name, job in settings.jobs.items()}}


def _expected_by(row: sqlite3.Row, spec: Heartbeat | Job, *, is_done: bool, now: datetime) -> float | None:
    """When the run of the expected planned time must have ended, in seconds; None if none is expected.

    It may start `grace` late and take all of its attempts. But then it must not delay the next planned time beyond its grace.
    While a result is awaited, `async_timeout` is added. A one-time job that failed is expected for one more day.
    """
    if row["expected_at"] is None:
        return None
    grace, longest = spec.grace.total_seconds(), (spec.timeout * (spec.retries + 1) + LONGEST_RETRY_DELAY * spec.retries)
    ends = row["expected_at"] / 1000 + grace + longest.total_seconds()
    if row["expected_before"] is not None:
        ends = min(ends, row["expected_before"] / 1000 + grace)
    if row["awaits"]:
        ends += spec.async_timeout.total_seconds()
    return None if is_done and now.timestamp() > ends + A_DAY.total_seconds() else ends


def read_waiting(reading: Reading, db: sqlite3.Connection, wanted: Collection[EntryLabels], now: datetime) -> None:
    """What waits: entries that are due, and wakes and questions of these entries. Also how often the daemon has crashed.

    The crashes are counted in the database, so that a crash is no reason to begin at 0 again.
    """
    reading.show("heartbeatd_crashes_total", boots.count_crashes(db))
    reading.show("heartbeatd_last_crash_timestamp_seconds", boots.last_crash_seen_at(db))
    count, oldest = overviews.count_due_entries(db, now)
    reading.show("heartbeatd_due_entries", count)
    reading.show("heartbeatd_oldest_due_timestamp_seconds", oldest)
    for name, number in wakes.count_waiting_by_agent(db).items():
        if (Kind.HEARTBEAT, name) in wanted:
            reading.show("heartbeatd_wakes_pending", number, name)
    for key, number in Counter((each.kind, each.name) for each in asked_questions.open_questions(db)).items():
        if key in wanted:
            reading.show("heartbeatd_questions_open", number, *key)


def read_problems(
    reading: Reading, db: sqlite3.Connection, wanted: Iterable[EntryLabels], circuits: Iterable[Circuit], channels: Iterable[str]
) -> None:
    """How many problems each of these subjects has, acknowledged or not, and since when the oldest lasts."""
    shown = {
        *wanted,
        Subject.of_daemon()[:2],
        *((PROVIDER, each.provider) for each in circuits),
        *((CHANNEL, name) for name in channels),
    }
    counts: Counter[tuple[str, str, str]] = Counter()
    for (subject, severity, acknowledged), number in problems.count_open(db).items():
        if subject[:2] in shown:
            counts[subject.label, severity, "true" if acknowledged else "false"] += number
    for labels, number in counts.items():
        reading.show("heartbeatd_problems_open", number, *labels)
    oldest: dict[str, float] = {}
    for subject, since in problems.oldest_unacknowledged(db).items():
        if subject[:2] in shown:
            oldest[subject.label] = min(since.timestamp(), oldest.get(subject.label, math.inf))
    for label, at in oldest.items():
        reading.show("heartbeatd_problem_oldest_timestamp_seconds", at, label)


def read_breakers(reading: Reading, db: sqlite3.Connection, circuits: Collection[Circuit]) -> None:
    """Whether the circuit breaker is open for each of these models, and for their providers as a whole."""
    found = breakers.list_open_breakers(db)
    open_ones = {breaker.circuit for breaker in found}
    for breaker in found:
        if breaker.circuit.is_account:
            account = breaker.circuit.provider.removeprefix(ACCOUNT)
            reading.show("heartbeatd_account_limited_until_timestamp_seconds", breaker.probe_at.timestamp(), account)
    for circuit in required_circuits(circuits):
        if circuit.is_whole_provider:
            reading.show("heartbeatd_breaker_open", int(circuit in open_ones), circuit.provider)
        else:
            reading.show("heartbeatd_breaker_model_open", int(circuit in open_ones), *circuit)


def read_budgets(
    reading: Reading,
    db: sqlite3.Connection,
    settings: Settings,
    wanted: Collection[EntryLabels],
    skipped_at: Mapping[EntryLabels, datetime],
    plans: DayPlans,
    now: datetime,
) -> None:
    """How much of the budgets of today and of this month is used, with reservations for runs in progress, and how much of the
    plan of the day or month has passed.

    `skipped_at` is when runs of an entry were last skipped because of a budget. A budget is exhausted if that was in this day or
    month, and the next run of the entry does not fit either. A budget of zero is left out.
    """
    for scope, today in spend.spent_today(db, now, dict(_budgets_to_show(settings, wanted))).items():
        budget = today.budget
        lacking = {
            (limit, at)
            for key, at in skipped_at.items()
            if scope in (key, ALL_ENTRIES)
            for limit in _lacking_limits(settings, key, budget, today.spent)
        }
        for key, used, bound in budget.usage_by_limit(today.spent):
            period = budget.period(key, today.day)
            is_exhausted = any(limit == key and at >= period.begins for limit, at in lacking)
            values = ("all" if scope == ALL_ENTRIES else "entry", *scope, key)
            reading.show("heartbeatd_budget_used_ratio", used / bound, *values)
            reading.show("heartbeatd_budget_exhausted", int(is_exhausted), *values)
            reading.show("heartbeatd_budget_day_elapsed_ratio", plans.shares(db, settings, scope, period, now)[key], *values)


class DayPlans:
    """How much of the planned runs of a budget's day or month have come due, each run with the most that it can use.

    The shares are kept for a few minutes, because a thousand schedules take a tenth of a second. With more entries than that,
    the share is that of the day or month.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[Scope, timedelta], tuple[datetime, dict[str, float]]] = {}

    def shares(self, db: sqlite3.Connection, settings: Settings, scope: Scope, day: LocalDay, now: datetime) -> dict[str, float]:
        """The share of each limit of the budget of `scope` in a day or a month, from 0 to 1."""
        key = scope, day.ends - day.begins
        known = self._kept.get(key)
        if known is not None and timedelta() <= now - known[0] < SHARES_KEPT and known[0] >= day.begins:
            return known[1]
        found = self._planned_shares(db, settings, scope, day, now)
        self._kept[key] = (now, found)
        return found

    def _planned_shares(
        self, db: sqlite3.Connection, settings: Settings, scope: Scope, day: LocalDay, now: datetime
    ) -> dict[str, float]:
        share_of_day = (now - day.begins) / (day.ends - day.begins)
        if len(settings.allowances) > MAX_PLANNED_ENTRIES:
            return dict.fromkeys(LIMITS, share_of_day)
        passed, planned = NO_USAGE, NO_USAGE
        for key, (text, anchor) in overviews.schedules_of_entries(db).items():
            allowance = settings.allowances.get((Kind(key[0]), key[1]))
            if allowance is None or scope not in (key, ALL_ENTRIES):
                continue
            schedule = entry_schedule.parse_schedule(text, anchor)
            begins, ends = (at - schedule.offset - entry_schedule.MICROSECOND for at in (day.begins, day.ends))
            done, rest = schedule.slots(begins, now - schedule.offset), schedule.slots(now - schedule.offset, ends)
            done_count, rest_count = done.count if done else 0, rest.count if rest else 0
            passed += _multiplied(allowance.max_usage, done_count)
            planned += _multiplied(allowance.max_usage, done_count + rest_count)
        pairs = {limit: (passed.of_limit(limit), planned.of_limit(limit)) for limit in LIMITS}
        return {limit: part / whole if whole else share_of_day for limit, (part, whole) in pairs.items()}


def _multiplied(usage: Amount, count: int) -> Amount:
    return Amount(usage.nanos * count, usage.tokens * count, usage.runs * count)


def _lacking_limits(settings: Settings, key: EntryLabels, budget: Budget, spent: Spent) -> Iterator[str]:
    """The limits of a budget into which another run of the entry does not fit."""
    allowance = settings.allowances.get((Kind(key[0]), key[1]))
    if allowance is not None:
        yield from budget.exceeded_limits(spent, allowance.max_usage)


def _budgets_to_show(settings: Settings, wanted: Collection[EntryLabels]) -> Iterator[tuple[Scope, Budget]]:
    if settings.limits.budget is not None:
        yield ALL_ENTRIES, settings.limits.budget
    for (kind, name), allowance in settings.allowances.items():
        if allowance.own is not None and (kind, name) in wanted:
            yield (kind.value, name), allowance.own


def read_outbox(reading: Reading, db: sqlite3.Connection, channels: Iterable[str]) -> None:
    """The undelivered messages of each channel. A removed channel is shown while it has undelivered messages."""
    for channel in channels:
        reading.show("heartbeatd_outbox_pending", 0, channel)
        reading.show("heartbeatd_outbox_dead", 0, channel)
    for each in outbox.unfinished_by_channel(db):
        if each.pending or each.dead or each.channel in channels:
            reading.show("heartbeatd_outbox_pending", each.pending, each.channel)
            reading.show("heartbeatd_outbox_dead", each.dead, each.channel)
        reading.show("heartbeatd_outbox_oldest_timestamp_seconds", each.oldest_at, each.channel)


def read_files(reading: Reading, state: Path) -> None:
    """The size of the database on disk, and of the disk space that is reserved for it."""
    for label, path in (("db", state), ("wal", state.with_name(state.name + "-wal"))):
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            size = 0
        reading.show("heartbeatd_db_bytes", size, label)
    reading.show("heartbeatd_reserve_bytes", disk_reserve.reserved_bytes(state))


def read_settings(reading: Reading, settings: Settings, wanted: Collection[EntryLabels]) -> None:
    """What the gauges of the active config show."""
    reading.show("heartbeatd_config_file_present", int(os.access(settings.path, os.R_OK, effective_ids=True)))
    reading.show("heartbeatd_concurrency_limit", settings.limits.concurrency)
    reading.show("heartbeatd_config_hash", int(settings.hash[:12], 16))  # 48 bits: a float can represent them exactly
    reading.show("heartbeatd_entries_without_series", len(settings.heartbeats) + len(settings.jobs) - len(wanted))

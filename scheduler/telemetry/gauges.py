"""Reads the gauges of the metrics page from the database and the settings at each scrape."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import date, datetime, timedelta
from pathlib import Path

from cron.job import Job
from heartbeat.spec import Heartbeat
from scheduler.model import entry_schedule, local_days
from scheduler.model.budget import ALL_ENTRIES, NO_USAGE, Amount, Budget, Scope
from scheduler.model.circuit import Circuit, required_circuits
from scheduler.model.local_days import LocalDay
from scheduler.model.outcome import LONGEST_RETRY_DELAY, Kind
from scheduler.model.settings import Settings
from scheduler.model.timestamps import from_millis
from scheduler.store import boots, breakers, conditions, disk_reserve, entries_view, outbox, spend, wakes
from scheduler.telemetry.series import MetricFamily

EntryLabels = tuple[str, str]
ENTRY_LABELS = ("kind", "name")
DONE_STATE = "done"
ONE_DAY = timedelta(days=1)
SHARES_KEPT = timedelta(minutes=5)
MAX_PLANNED_ENTRIES = 1000
BUDGET_LIMITS = ("usd_per_day", "tokens_per_day", "runs_per_day")

# The column of the entry's row that each gauge shows. A gauge of TIME_GAUGES is absent while its column is null.
NUMBER_GAUGES = {
    "heartbeatd_consecutive_failures": ("failures", "Failed runs in a row."),
    "heartbeatd_alerting": ("alerting", "1 if the last successful run had an alert, delivered or not."),
}
TIME_GAUGES = {
    "heartbeatd_next_due_timestamp_seconds": ("next_due", "When the entry is due next; absent while it is paused or disabled."),
    "heartbeatd_paused_since_timestamp_seconds": ("paused_at", "Since when the entry is paused; absent if the pause has an end."),
    "heartbeatd_last_run_timestamp_seconds": ("last_ended_at", "When the last run ended, whatever its outcome."),
    "heartbeatd_last_success_timestamp_seconds": ("last_success_at", "When the last successful run ended."),
}


def entry_gauges(
    db: sqlite3.Connection, settings: Settings, wanted: Mapping[EntryLabels, str], now: datetime
) -> Iterator[MetricFamily]:
    """The gauges and the stored counters of the entries in `wanted`, which has the text of their labels."""
    specs = entries_by_key(settings)
    expected = MetricFamily(
        "gauge",
        "heartbeatd_expected_by_timestamp_seconds",
        "When the expected slot must have a result that counts; absent while none is expected.",
        ENTRY_LABELS,
    )
    slots = MetricFamily(
        "counter", "heartbeatd_slots_total", "Slots that were answered (good) or lost (bad).", (*ENTRY_LABELS, "result")
    )
    state = MetricFamily(
        "gauge",
        "heartbeatd_entry_state",
        "1 for the state that the entry is in: active, paused, disabled or done.",
        (*ENTRY_LABELS, "state"),
    )
    numbers = {
        column: MetricFamily("gauge", name, help_text, ENTRY_LABELS) for name, (column, help_text) in NUMBER_GAUGES.items()
    }
    times = {column: MetricFamily("gauge", name, help_text, ENTRY_LABELS) for name, (column, help_text) in TIME_GAUGES.items()}
    for row in entries_view.entry_gauges(db, wanted):
        key = (row["kind"], row["name"])
        labels, present = wanted[key], _shown_state(row)
        state.add_series(f'{labels},state="{present}"', 1)
        slots.add_series(f'{labels},result="good"', row["good_slots"])
        slots.add_series(f'{labels},result="bad"', row["bad_slots"])
        expected_by = _expected_by(row, specs[key], is_done=present == DONE_STATE, now=now)
        if expected_by is not None:
            expected.add_series(labels, expected_by)
        for column, family in numbers.items():
            family.add_series(labels, row[column])
        for column, family in times.items():
            if row[column] is not None:
                family.add_series(labels, row[column] / 1000)
    return iter((expected, slots, state, *numbers.values(), *times.values()))


def entries_by_key(settings: Settings) -> dict[EntryLabels, Heartbeat | Job]:
    """Every agent and job by kind and name."""
    beats = {(Kind.HEARTBEAT.value, name): beat for name, beat in settings.heartbeats.items()}
    return {**beats, **{(Kind.CRON.value, name): job for name, job in settings.jobs.items()}}


def _expected_by(row: sqlite3.Row, spec: Heartbeat | Job, *, is_done: bool, now: datetime) -> float | None:
    """When the run of the expected slot must have ended, in seconds; None if none is expected.

    It may start `grace` late and take all of its attempts. But then it must not delay the next slot beyond its grace. While a
    result is awaited, `async_timeout` is added. A one-time job that failed is expected for one more day.
    """
    if row["expected_at"] is None:
        return None
    grace, longest = spec.grace.total_seconds(), (spec.timeout * (spec.retries + 1) + LONGEST_RETRY_DELAY * spec.retries)
    ends = row["expected_at"] / 1000 + grace + longest.total_seconds()
    if row["expected_before"] is not None:
        ends = min(ends, row["expected_before"] / 1000 + grace)
    if row["awaits"]:
        ends += spec.async_timeout.total_seconds()
    return None if is_done and now.timestamp() > ends + ONE_DAY.total_seconds() else ends


def _shown_state(row: sqlite3.Row) -> str:
    is_done = (
        row["state"] == "active"
        and not row["goes_on"]
        and entry_schedule.finished_single_slot(row["pace"], from_millis(row["settled_until"]))
    )
    return DONE_STATE if is_done else row["state"]


def crash_counter(db: sqlite3.Connection) -> MetricFamily:
    """How many daemon processes have crashed, from the database, so that a crash is no reason to begin at 0 again."""
    help_text = "Daemon processes that ended without a clean stop, in all the time that the database has existed."
    crashes = MetricFamily("counter", "heartbeatd_crashes_total", help_text)
    crashes.set_value(boots.count_crashes(db))
    return crashes


def queue_gauges(db: sqlite3.Connection, now: datetime) -> Iterator[MetricFamily]:
    """How many entries are due, and since when."""
    count, oldest = entries_view.count_due_entries(db, now)
    yield single_gauge("heartbeatd_due_entries", "Entries that are due now.", count)
    yield single_gauge(
        "heartbeatd_oldest_due_timestamp_seconds",
        "Since when the longest waiting entry has been due; absent while none is due.",
        None if oldest is None else oldest.timestamp(),
    )


def wake_gauges(db: sqlite3.Connection, agents: Iterable[str]) -> Iterator[MetricFamily]:
    """How many wakes wait for each of these agents; absent while none waits."""
    family = MetricFamily("gauge", "heartbeatd_wakes_pending", "Wakes that wait for the agent's next run.", ("name",))
    shown = frozenset(agents)
    for name, number in wakes.count_waiting_by_agent(db).items():
        if name in shown:
            family.set_value(number, name)
    yield family


def condition_gauges(db: sqlite3.Connection, agents: Iterable[str]) -> Iterator[MetricFamily]:
    """How many conditions of each of these agents are open, acknowledged or not; absent while there is none."""
    family = MetricFamily(
        "gauge",
        "heartbeatd_conditions_open",
        "Open conditions that the agent has reported, by severity and by whether a person has acknowledged them.",
        ("name", "severity", "acknowledged"),
    )
    shown = frozenset(agents)
    for (name, severity, acknowledged), count in conditions.count_open(db).items():
        if name in shown:
            family.set_value(count, name, severity, "true" if acknowledged else "false")
    yield family


def mute_gauges(db: sqlite3.Connection, wanted: Collection[EntryLabels], now: datetime) -> Iterator[MetricFamily]:
    """1 for each of these entries whose messages are suppressed."""
    family = MetricFamily("gauge", "heartbeatd_muted", "1 while the messages of the entry are muted.", ENTRY_LABELS)
    for key in entries_view.muted_entries(db, now).intersection(wanted):
        family.set_value(1, *key)
    yield family


def breaker_gauges(db: sqlite3.Connection, circuits: Collection[Circuit]) -> Iterator[MetricFamily]:
    """Whether the circuit breaker is open for each of these models, and for their providers as a whole."""
    whole = MetricFamily(
        "gauge", "heartbeatd_breaker_open", "1 while the circuit breaker of the whole provider is open.", ("provider",)
    )
    models = MetricFamily(
        "gauge",
        "heartbeatd_breaker_model_open",
        "1 while the circuit breaker of this model is open.",
        ("provider", "model"),
    )
    open_ones = {breaker.circuit for breaker in breakers.list_open_breakers(db)}
    for circuit in required_circuits(circuits):
        if circuit.is_whole_provider:
            whole.set_value(int(circuit in open_ones), circuit.provider)
        else:
            models.set_value(int(circuit in open_ones), *circuit)
    return iter((whole, models))


def budget_gauges(
    db: sqlite3.Connection,
    settings: Settings,
    wanted: Collection[EntryLabels],
    skipped_at: Mapping[EntryLabels, datetime],
    plans: DayPlans,
    now: datetime,
) -> Iterator[MetricFamily]:
    """How much of today's budgets is used, with reservations for runs in progress, and how much of the day's plan has passed.

    `skipped_at` is when runs of an entry were last skipped because of a budget. A budget is exhausted if that was today, and the
    next run of the entry does not fit either. A budget of zero is left out.
    """
    labels = ("scope", "kind", "name", "budget")
    exhausted = MetricFamily(
        "gauge", "heartbeatd_budget_exhausted", "1 while runs are skipped because today's budget has no room for them.", labels
    )
    elapsed = MetricFamily(
        "gauge",
        "heartbeatd_budget_day_elapsed_ratio",
        "The share of the budget's planned runs of today that have come due.",
        labels,
    )
    family = MetricFamily(
        "gauge",
        "heartbeatd_budget_used_ratio",
        "The share of today's budget that is used.",
        labels,
    )
    days, begun = spend.spent_by_day(db, now), spend.budget_rows_today(db, now)
    for scope, budget in _budgets_to_show(settings, wanted):
        today = date.fromisoformat(begun[scope]["day"]) if scope in begun else budget.local_day(now)
        spent = days.get((today.isoformat(), *scope), NO_USAGE)
        day = local_days.whole_day(today, budget.zone)
        shares = plans.shares(db, settings, scope, day, now)
        lacking = {
            limit
            for key, at in skipped_at.items()
            if scope in (key, ALL_ENTRIES) and at >= day.begins
            for limit in _lacking_limits(settings, key, budget, spent)
        }
        for key, used, bound in budget.usage_by_limit(spent):
            values = ("all" if scope == ALL_ENTRIES else "entry", *scope, key)
            family.set_value(used / bound, *values)
            elapsed.set_value(shares[key], *values)
            exhausted.set_value(int(key in lacking), *values)
    return iter((family, exhausted, elapsed))


class DayPlans:
    """How much of the planned runs of a budget's day have come due, each run with the most that it can use.

    The shares are kept for a few minutes, because a thousand schedules take a tenth of a second. With more entries than that,
    the share is that of the day.
    """

    def __init__(self) -> None:
        self._kept: dict[Scope, tuple[datetime, dict[str, float]]] = {}

    def shares(self, db: sqlite3.Connection, settings: Settings, scope: Scope, day: LocalDay, now: datetime) -> dict[str, float]:
        """The share of each limit of the budget of `scope`, from 0 to 1."""
        known = self._kept.get(scope)
        if known is not None and timedelta() <= now - known[0] < SHARES_KEPT and known[0] >= day.begins:
            return known[1]
        found = self._planned_shares(db, settings, scope, day, now)
        self._kept[scope] = (now, found)
        return found

    def _planned_shares(
        self, db: sqlite3.Connection, settings: Settings, scope: Scope, day: LocalDay, now: datetime
    ) -> dict[str, float]:
        share_of_day = (now - day.begins) / (day.ends - day.begins)
        if len(settings.allowances) > MAX_PLANNED_ENTRIES:
            return dict.fromkeys(BUDGET_LIMITS, share_of_day)
        passed, planned = NO_USAGE, NO_USAGE
        for key, (text, anchor) in entries_view.schedules_of_entries(db).items():
            allowance = settings.allowances.get((Kind(key[0]), key[1]))
            if allowance is None or scope not in (key, ALL_ENTRIES):
                continue
            schedule = entry_schedule.parse_schedule(text, anchor)
            begins, ends = (at - schedule.offset - entry_schedule.MICROSECOND for at in (day.begins, day.ends))
            done, rest = schedule.slots(begins, now - schedule.offset), schedule.slots(now - schedule.offset, ends)
            done_count, rest_count = done.count if done else 0, rest.count if rest else 0
            passed += _multiplied(allowance.max_usage, done_count)
            planned += _multiplied(allowance.max_usage, done_count + rest_count)
        pairs = zip(
            BUDGET_LIMITS, (passed.nanos, passed.tokens, passed.runs), (planned.nanos, planned.tokens, planned.runs), strict=True
        )
        return {limit: part / whole if whole else share_of_day for limit, part, whole in pairs}


def _multiplied(usage: Amount, count: int) -> Amount:
    return Amount(usage.nanos * count, usage.tokens * count, usage.runs * count)


def _lacking_limits(settings: Settings, key: EntryLabels, budget: Budget, spent: Amount) -> Iterator[str]:
    """The limits of a budget into which another run of the entry does not fit."""
    allowance = settings.allowances.get((Kind(key[0]), key[1]))
    if allowance is not None:
        yield from (limit for limit, used, bound in budget.usage_by_limit(spent + allowance.max_usage) if used > bound)


def _budgets_to_show(settings: Settings, wanted: Collection[EntryLabels]) -> Iterator[tuple[Scope, Budget]]:
    if settings.limits.budget is not None:
        yield ALL_ENTRIES, settings.limits.budget
    for (kind, name), allowance in settings.allowances.items():
        if allowance.own is not None and (kind, name) in wanted:
            yield (kind.value, name), allowance.own


def outbox_gauges(db: sqlite3.Connection, channels: Iterable[str]) -> Iterator[MetricFamily]:
    """The undelivered messages of each channel. A removed channel is shown while it has undelivered messages."""
    pending = MetricFamily("gauge", "heartbeatd_outbox_pending", "Messages that are still to be delivered.", ("channel",))
    dead = MetricFamily(
        "gauge", "heartbeatd_outbox_dead", "Messages that could not be delivered and are not sent any more.", ("channel",)
    )
    oldest = MetricFamily(
        "gauge",
        "heartbeatd_outbox_oldest_timestamp_seconds",
        "When the oldest undelivered message was written; absent while there is none.",
        ("channel",),
    )
    for channel in channels:
        pending.set_value(0, channel)
        dead.set_value(0, channel)
    for each in outbox.unfinished_by_channel(db):
        if each.pending or each.dead or each.channel in channels:
            pending.set_value(each.pending, each.channel)
            dead.set_value(each.dead, each.channel)
        if each.oldest_at is not None:
            oldest.set_value(each.oldest_at.timestamp(), each.channel)
    return iter((pending, dead, oldest))


def file_gauges(state: Path) -> Iterator[MetricFamily]:
    """The size of the database on disk, and of the disk space that is reserved for it."""
    family = MetricFamily(
        "gauge", "heartbeatd_db_bytes", "Size of the database (db) and of its write-ahead log (wal).", ("file",)
    )
    for label, path in (("db", state), ("wal", state.with_name(state.name + "-wal"))):
        try:
            family.set_value(path.stat().st_size, label)
        except FileNotFoundError:
            family.set_value(0, label)
    yield family
    help_text = "Disk space that is reserved for a full disk; 0 while it is released or cannot be reserved."
    yield single_gauge("heartbeatd_reserve_bytes", help_text, disk_reserve.reserved_bytes(state))


def settings_gauges(settings: Settings, wanted: Collection[EntryLabels]) -> Iterator[MetricFamily]:
    """The gauges that show the active config."""
    help_text = "1 while the config file exists."
    yield single_gauge("heartbeatd_config_file_present", help_text, int(settings.path.exists()))
    yield single_gauge(
        "heartbeatd_concurrency_limit", "How many runs may be in progress at the same time.", settings.limits.concurrency
    )
    # The first 48 bits: a float can represent them exactly.
    yield single_gauge(
        "heartbeatd_config_hash", "A number that changes whenever the active config changes.", int(settings.hash[:12], 16)
    )
    entries = len(settings.heartbeats) + len(settings.jobs)
    yield single_gauge(
        "heartbeatd_entries_without_series",
        "Entries without series of their own, because there are more than server.metrics_entries.",
        entries - len(wanted),
    )


def single_gauge(name: str, help_text: str, value: float | None) -> MetricFamily:
    """A gauge without labels; absent while `value` is None."""
    family = MetricFamily("gauge", name, help_text)
    if value is not None:
        family.set_value(value)
    return family

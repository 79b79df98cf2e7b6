"""Metrics: every name on the metrics page, and which event moves which counter."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from functools import singledispatchmethod
from itertools import chain, islice, product

from prometheus_client import CollectorRegistry, Histogram, disable_created_metrics, generate_latest

from heartbeat.runners import Tokens
from scheduler.engine.config_reload import Standing
from scheduler.engine.loop import Health
from scheduler.model.events import (
    Adopted,
    BreakerMoved,
    ChecklistRemarked,
    Closed,
    Event,
    LaneTaken,
    Mismatched,
    NoTarget,
    Paid,
    ProviderFailed,
    Recovered,
    Retried,
    Stale,
    Started,
    TakenBack,
    Told,
    Unstarted,
    WakeTold,
)
from scheduler.model.outcome import Failure, Kind, Outcome, Trigger, WakeResult
from scheduler.model.settings import Settings
from scheduler.telemetry import gauges, possible_labels
from scheduler.telemetry.gauges import Key, one
from scheduler.telemetry.possible_labels import Possible
from scheduler.telemetry.series import Family

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

SECONDS_OF_A_RUN = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
SECONDS_LATE = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30, 60, 300, 600, 3600)
TOKENS = tuple(field.name for field in fields(Tokens))
DELIVERIES = ("delivered", "retried", "uncertain", "dead")


@dataclass(frozen=True, slots=True)
class Now:
    """What the daemon is like at the moment of a scrape, beside what its database says.

    `running` is the number of runs in progress by kind; a kind that is left out has none.
    """

    health: Health
    standing: Standing
    running: Mapping[str, int]
    at: datetime


class Metrics:
    """Hears what happened and keeps the counters; the rest is read at each scrape.

    Counters start at 0 with the process. Those of a declared entry are there from the start, for all that its config makes
    possible, and go when it goes; the entries beyond `server.metrics_entries` have none. `version` and `tzdata` are those of
    heartbeatd and of its zone rules.
    """

    def __init__(self, settings: Settings, *, version: str, tzdata: str) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call] # they double the counters, and a restart shows in the count itself
        registry = CollectorRegistry()
        self._registry = registry
        self._duration = Histogram(
            "heartbeatd_run_duration_seconds", "How long runs took.", ["kind"], registry=registry, buckets=SECONDS_OF_A_RUN
        )
        self._lateness = Histogram(
            "heartbeatd_dispatch_lateness_seconds",
            "How long after its due time a slot was started, or given up because it could not start.",
            ["kind"],
            registry=registry,
            buckets=SECONDS_LATE,
        )
        self._runs = _counter("runs_total", "Runs, by how they ended.", "kind", "name", "trigger", "outcome")
        self._suppressions = _counter("suppressions_total", "Runs of which nobody was told, and why.", "kind", "name", "reason")
        self._skips = _counter("skips_total", "Slots that were not run, and why.", "kind", "name", "reason")
        self._truncated = _counter("truncated_total", "Answers that were cut at a limit of tokens.", "kind", "name")
        self._prechecks = _counter("precheck_failures_total", "Prechecks that failed, whether the run went on or not.", "name")
        self._retries = _counter("retries_total", "Attempts that failed and were planned anew.", "kind", "name")
        self._seconds = _counter("run_seconds_total", "Time spent in runs.", "kind", "name")
        self._wakes = _counter("wakes_total", "Wakes, by what became of them in the end.", "name", "source", "result")
        self._deliveries = _counter("deliveries_total", "Messages, by what became of them.", "channel", "result")
        self._tokens = _counter("tokens_total", "Tokens, by the model asked for.", "kind", "name", "model", "type")
        self._cost = _counter(
            "cost_usd_total", "What runs cost, by the prices of the config.", "kind", "name", "model", "outcome"
        )
        self._unpriced = _counter("unpriced_tokens_total", "Tokens of models without a price in the config.", "model")
        self._provider_errors = _counter("provider_errors_total", "Calls that got no proper answer.", "provider", "class")
        self._mismatches = _counter("model_mismatches_total", "Answers of another model than was asked for.", "kind", "name")
        self._recovered = _counter("orphans_recovered_total", "Runs that an earlier life of the daemon left open.", "kind")
        self._stale = _counter("stale_results_total", "Results that came for a run that was no longer theirs.")
        self._stale.put(0)
        self._taken_back = _counter(
            "skips_taken_back_total", "Slots that were counted as skipped under a clock that was ahead, and are still to come."
        )
        self._taken_back.put(0)
        self._build = Family(
            "gauge", "heartbeatd_build_info", "Which heartbeatd this is, by which zone rules.", ("version", "tzdata")
        )
        self._build.put(1, version, tzdata)
        self._settings = settings
        self._counts = self._count  # a dispatching method makes a function anew each time it is looked up
        self._shown: frozenset[Key] = frozenset()
        for kind in Kind:
            self._duration.labels(kind.value)
            self._lateness.labels(kind.value)
            self._recovered.put(0, kind.value)
        self._adopt(settings)

    def hear(self, happened: Event) -> None:
        """Count one event; called after its commit, by one thread."""
        self._counts(happened)

    def render(self, db: sqlite3.Connection | None, now: Now) -> bytes:
        """The metrics page. `db` is a connection that only reads; without it what it knows is left out. Raises sqlite3.Error."""
        families = chain(self._counters(), self._process(now), self._stored(db, now.at) if db is not None else ())
        return generate_latest(self._registry) + "".join(chain.from_iterable(family.lines() for family in families)).encode()

    def _counters(self) -> tuple[Family, ...]:
        runs = (self._runs, self._suppressions, self._truncated, self._skips, self._prechecks, self._retries, self._seconds)
        models = (self._tokens, self._cost, self._unpriced, self._provider_errors, self._mismatches)
        return (*runs, self._wakes, *models, self._deliveries, self._recovered, self._stale, self._taken_back)

    def _process(self, now: Now) -> Iterator[Family]:
        running = Family("gauge", "heartbeatd_running", "Runs in progress.", ("kind",))
        for kind in Kind:
            running.put(now.running.get(kind, 0), kind.value)
        yield running
        jumps = _counter("clock_jumps_total", "Times that the wall clock was set, by direction.", "direction")
        for direction, count in now.health.jumps.items():
            jumps.put(count, direction)
        yield jumps
        busy = _counter("db_busy_total", "Times that the database could not be written.")
        busy.put(now.health.busy)
        yield busy
        if self._settings.deadman is not None:
            pings = _counter("deadman_pings_total", "Pings to the dead man's switch, by what became of them.", "result")
            for result, count in now.health.pings.items():
                pings.put(count, result)
            yield pings
        ticked = None if now.health.ticked_at is None else now.health.ticked_at.timestamp()
        yield one("heartbeatd_last_tick_timestamp_seconds", "When the engine last went round.", ticked)
        yield one(
            "heartbeatd_config_last_reload_successful", "0 while a config that was refused waits.", int(now.standing.successful)
        )
        yield one(
            "heartbeatd_config_last_reload_success_timestamp_seconds",
            "When the config in force was taken.",
            now.standing.succeeded_at.timestamp(),
        )
        yield self._build
        yield from gauges.of_settings(self._settings, self._shown)

    def _stored(self, db: sqlite3.Connection, at: datetime) -> Iterator[Family]:
        yield from gauges.of_entries(db, self._shown)
        yield from gauges.of_wakes(db, [name for kind, name in self._shown if kind == Kind.HEARTBEAT])
        yield from gauges.of_outbox(db, self._settings.channels)
        yield from gauges.of_breakers(db, possible_labels.circuits(self._settings))
        yield from gauges.of_queue(db, at)
        yield from gauges.of_budgets(db, self._settings, self._shown, at)
        yield from gauges.of_files(self._settings.state)

    @singledispatchmethod
    def _count(self, happened: Event) -> None:
        raise TypeError(f"no counter for {happened!r}")

    @_count.register
    def _(self, closed: Closed) -> None:
        took = None if closed.started_at is None else max(0.0, (closed.finished_at - closed.started_at).total_seconds())
        if took is not None and closed.outcome is not Outcome.SKIPPED:
            self._duration.labels(closed.kind.value).observe(took)
        if (closed.kind, closed.name) not in self._shown:
            return
        key = (closed.kind.value, closed.name)
        if closed.precheck_problem and closed.trigger is not Trigger.RESULT:
            self._prechecks.grow(closed.name)
        if closed.truncated:
            self._truncated.grow(*key)
        if closed.outcome is Outcome.SKIPPED:
            self._skips.grow(*key, str(closed.reason), by=closed.slots)
            return
        self._runs.grow(*key, closed.trigger.value, closed.outcome.value)
        self._seconds.grow(*key, by=took or 0)
        if closed.suppression is not None:
            self._suppressions.grow(*key, str(closed.suppression))

    @_count.register
    def _(self, started: Started) -> None:
        if started.late is not None:
            self._lateness.labels(started.kind.value).observe(max(0.0, started.late))

    @_count.register
    def _(self, unstarted: Unstarted) -> None:
        for late in unstarted.late:
            self._lateness.labels(unstarted.kind.value).observe(max(0.0, late))

    @_count.register
    def _(self, retried: Retried) -> None:
        if (retried.kind, retried.name) in self._shown:
            self._retries.grow(retried.kind.value, retried.name)

    @_count.register
    def _(self, taken: LaneTaken) -> None:
        """Counted when the slot ends."""

    @_count.register
    def _(self, nobody: NoTarget) -> None:
        """Nothing was to be sent: the row says so."""

    @_count.register
    def _(self, wake: WakeTold) -> None:
        if wake.final and (Kind.HEARTBEAT, wake.name) in self._shown:
            self._wakes.grow(wake.name, str(wake.source), wake.result.value)

    @_count.register
    def _(self, told: Told) -> None:
        result = "retried" if told.retried else str(told.state)
        if told.channel in self._settings.channels and result in DELIVERIES:
            self._deliveries.grow(told.channel, result)

    @_count.register
    def _(self, paid: Paid) -> None:
        key, model = (paid.kind.value, paid.name), paid.model or ""
        tokens = paid.tokens.by_kind() if paid.tokens else {}
        if key in self._shown:
            for kind, count in tokens.items():
                self._tokens.grow(*key, model, kind, by=count)
            self._cost.grow(*key, model, paid.outcome.value, by=paid.cost_usd or 0)
        if paid.cost_usd is None and model in possible_labels.models(self._settings):
            self._unpriced.grow(model, by=sum(tokens.values()))

    @_count.register
    def _(self, failed: ProviderFailed) -> None:
        if failed.provider in possible_labels.providers(self._settings):
            self._provider_errors.grow(failed.provider, failed.error_class)

    @_count.register
    def _(self, mismatched: Mismatched) -> None:
        if (mismatched.kind, mismatched.name) in self._shown:
            self._mismatches.grow(mismatched.kind.value, mismatched.name)

    @_count.register
    def _(self, moved: BreakerMoved) -> None:
        """Told by a gauge."""

    @_count.register
    def _(self, remarked: ChecklistRemarked) -> None:
        """Told by the log, `doctor` and `explain`."""

    @_count.register
    def _(self, recovered: Recovered) -> None:
        self._recovered.grow(recovered.kind.value)

    @_count.register
    def _(self, taken: TakenBack) -> None:
        self._taken_back.grow(by=taken.slots)

    @_count.register
    def _(self, stale: Stale) -> None:
        self._stale.grow()

    @_count.register
    def _(self, adopted: Adopted) -> None:
        self._adopt(adopted.settings)

    def _adopt(self, settings: Settings) -> None:
        """Make the counters that the settings call for, and let go of those whose entry or channel is gone."""
        shown = dict(islice(_possible(settings), settings.server.metrics_entries))
        self._settings, self._shown = settings, frozenset(shown)
        for family in (self._runs, self._suppressions, self._skips, self._retries, self._seconds):
            family.keep(lambda labels: labels[:2] in shown)
        for family in (self._tokens, self._cost):
            family.keep(lambda labels: (key := (labels[0], labels[1])) in shown and labels[2] in shown[key].models)
        self._mismatches.keep(lambda labels: labels in shown)
        self._truncated.keep(lambda labels: labels in shown)
        self._prechecks.keep(lambda labels: (Kind.HEARTBEAT, labels[0]) in shown)
        self._wakes.keep(lambda labels: (Kind.HEARTBEAT, labels[0]) in shown)
        self._deliveries.keep(lambda labels: labels[0] in settings.channels)
        for key, what in shown.items():
            self._declare(key, what)
        models, providers = possible_labels.models(settings), possible_labels.providers(settings)
        self._unpriced.keep(lambda labels: labels[0] in models)
        self._provider_errors.keep(lambda labels: labels[0] in providers)
        for model in models:
            self._unpriced.grow(model, by=0)
        for provider, failure in product(providers, Failure):
            self._provider_errors.grow(provider, failure.value, by=0)
        for channel, result in product(settings.channels, DELIVERIES):
            self._deliveries.grow(channel, result, by=0)

    def _declare(self, key: Key, what: Possible) -> None:
        _, name = key
        for trigger, outcome in product(what.triggers, what.outcomes):
            self._runs.grow(*key, trigger.value, outcome.value, by=0)
        for suppression in what.suppressions:
            self._suppressions.grow(*key, suppression.value, by=0)
        for skip in what.skips:
            self._skips.grow(*key, skip.value, by=0)
        for source, result in product(what.sources, WakeResult):
            self._wakes.grow(name, source.value, result.value, by=0)
        for model, kind in product(what.models, TOKENS):
            self._tokens.grow(*key, model, kind, by=0)
        for model, outcome in product(what.models, what.outcomes):
            self._cost.grow(*key, model, outcome.value, by=0)
        if what.models:
            self._mismatches.grow(*key, by=0)
            self._truncated.grow(*key, by=0)
        if what.has_precheck:
            self._prechecks.grow(name, by=0)
        self._retries.grow(*key, by=0)
        self._seconds.grow(*key, by=0)


def _counter(name: str, told: str, *labels: str) -> Family:
    return Family("counter", f"heartbeatd_{name}", told, labels)


def _possible(settings: Settings) -> Iterator[tuple[Key, Possible]]:
    """What every declared entry can come to, in the order of the file."""
    woken = {name for job in settings.jobs.values() for name in job.wake_heartbeat}
    for beat in settings.heartbeats.values():
        bounded = (Kind.HEARTBEAT, beat.name) in settings.allowances
        yield (
            (Kind.HEARTBEAT.value, beat.name),
            possible_labels.of_heartbeat(beat, woken_by_jobs=beat.name in woken, bounded=bounded),
        )
    for job in settings.jobs.values():
        bounded = (Kind.CRON, job.name) in settings.allowances
        yield (Kind.CRON.value, job.name), possible_labels.of_job(job, settings.asked.get(job.name), bounded=bounded)

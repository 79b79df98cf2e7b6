"""Builds the Prometheus metrics page, and counts each event in its counters."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, islice, product
from typing import NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import choose_encoder

from heartbeat.spec import Heartbeat
from scheduler.model import events
from scheduler.model.circuit import Circuit, accounts_of, circuits_of
from scheduler.model.daemon_health import EngineHealth, ReloadState
from scheduler.model.outcome import SUCCESSES, WOKEN, DeliveryState, Kind, Outcome, Skip, Trigger, WakeResult
from scheduler.model.settings import Settings
from scheduler.store import boots, overviews
from scheduler.telemetry import gauges
from scheduler.telemetry.catalog import (
    COUNTERS,
    HISTOGRAMS,
    OF_REQUESTS,
    ON_TIME_DELIVERY,
    ON_TIME_START,
    Ends,
    Reading,
    new_family,
)
from scheduler.telemetry.gauges import EntryLabels
from scheduler.telemetry.series import Exemplar, LabelValues, label_text

OPEN_METRICS_END = b"# EOF\n"
DURATION = "heartbeatd_run_duration_seconds"
LATENESS = "heartbeatd_dispatch_lateness_seconds"
CALL_DURATION = "heartbeatd_provider_request_duration_seconds"
TIMELINESS = ("on_time", "late")
UNDELIVERED = (WakeResult.REJECTED, WakeResult.EXPIRED)
WAKE_SOURCES = sorted(WOKEN)
PRESS_RESULTS = ("applied", "failed", "forged", "expired", "wrong_chat", "replayed", "not_allowed")
DELIVERY_RESULTS = ("delivered", "retried", "uncertain", "dead")
# Shown by a gauge, counted as something else (a call, the end of a run), or shown in the log and by commands.
NOT_COUNTED = (
    events.LaneBusy, events.TargetUnknown, events.ProviderFailed, events.BreakerMoved, events.ChecklistRemarked,
    events.ProblemChanged, events.PauseChanged, events.MuteChanged, events.QuestionMoved,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ScrapeState:
    """The state of the process at the moment of a scrape, which the database does not contain.

    `running` is the number of runs in progress by kind; a missing kind has none.
    """

    health: EngineHealth
    reload_state: ReloadState
    running: Mapping[str, int]
    at: datetime


class MetricsPage(NamedTuple):
    """The metrics page as bytes, and its content type."""

    body: bytes
    content_type: str


class Metrics:
    """Counts events. Gauges are not kept here: they are read at each scrape.

    Counters start at 0 with the process. A series that few entries need is created by its first event (`MetricFamily`). All
    series of an entry are deleted when it is removed. Entries beyond `server.metrics_entries` have no series. `version` is that
    of heartbeatd, `tzdata` that of the time zone rules.
    """

    def __init__(self, settings: Settings, *, version: str, tzdata: str) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call] # would double the series; a restart is visible in the counters
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._histograms = {
            name: Histogram(name, each.help, each.labels.split(), registry=self._registry, buckets=each.buckets)
            for name, each in HISTOGRAMS.items()
        }
        self._of_requests = {
            name: Counter(name, each.help, each.labels.split(), registry=self._registry) for name, each in OF_REQUESTS.items()
        }
        self._counters = {name: new_family(name, each) for name, each in COUNTERS.items()}
        self._versions = version, tzdata
        self._settings = settings
        self._entries_with_series: dict[EntryLabels, str] = {}  # with the text of their labels
        self._called_circuits: frozenset[Circuit] = frozenset()
        self._day_plans = gauges.DayPlans()
        self._budget_skips: dict[EntryLabels, datetime] = {}  # when each entry was last skipped because of a budget
        self._has_read_skips = False  # a query at each scrape would take too long
        for name in ("heartbeatd_stale_results_total", "heartbeatd_skips_taken_back_total"):
            self._counters[name].increase(by=0)
        for kind in Kind:
            self._histograms[DURATION].labels(kind.value)
            self._histograms[LATENESS].labels(kind.value)
            self._counters["heartbeatd_orphans_recovered_total"].increase(kind.value, by=0)
            for result in TIMELINESS:
                self._counters["heartbeatd_slots_on_time_total"].increase(kind.value, result, by=0)
        for source, reason in product(WAKE_SOURCES, UNDELIVERED):
            self._counters["heartbeatd_wakes_refused_total"].increase(source.value, reason.value, by=0)
        self._apply_settings(settings)

    def count_event(self, happened: events.Event) -> None:
        """Count one event. Called after the commit, always in the same thread."""
        match happened:
            case events.RunClosed():
                self._count_closed_run(happened)
            case events.AttemptStarted(late=late):
                if late is not None:
                    self._count_lateness(happened.kind, late, {"run_id": str(happened.run_id)})
            case events.SlotsMissed():
                for late in happened.late:
                    self._count_lateness(happened.kind, late)
            case events.RetryPlanned():
                self._count_of_entry("heartbeatd_retries_total", happened.kind, happened.name)
            case events.ModelMismatched():
                self._count_of_entry("heartbeatd_model_mismatches_total", happened.kind, happened.name)
            case events.WakeMoved():
                self._count_wake(happened)
            case events.MessageMoved():
                self._count_delivery(happened)
            case events.CallCharged():
                self._count_charged_call(happened)
            case events.ProviderCalled():
                self._count_call(happened)
            case events.ButtonPressed(channel=channel):
                if channel in self._settings.channels:
                    self._counters["heartbeatd_button_presses_total"].increase(channel, happened.result)
            case events.RunRecovered():
                self._counters["heartbeatd_orphans_recovered_total"].increase(happened.kind.value)
            case events.SkipsRevoked(slots=slots):
                self._counters["heartbeatd_skips_taken_back_total"].increase(by=slots)
            case events.StaleResultDropped():
                self._counters["heartbeatd_stale_results_total"].increase()
            case events.SettingsApplied(settings=settings):
                self._apply_settings(settings)
            case _ if not isinstance(happened, NOT_COUNTED):
                raise TypeError(f"no counter for {happened!r}")

    def _count_of_entry(self, name: str, kind: Kind, entry: str) -> None:
        if (kind, entry) in self._entries_with_series:
            self._counters[name].increase(kind.value, entry)

    def count_request(self, route: str, code: int) -> None:
        """Count a request to the HTTP API. May be called in any thread, as `count_refused_token`."""
        self._of_requests["heartbeatd_http_requests_total"].labels(route, str(code)).inc()

    def count_refused_token(self) -> None:
        """Count a request with a token that is not valid."""
        self._of_requests["heartbeatd_http_tokens_refused_total"].inc()

    def render_page(self, db: sqlite3.Connection | None, now: ScrapeState, accept: str = "") -> MetricsPage:
        """The metrics page, in OpenMetrics if the header Accept prefers it.

        `db` is a read-only connection. Without it the gauges from the database are absent. They are also absent on standby,
        because the leader exports them. Raises sqlite3.Error.
        """
        render_registry, content_type = choose_encoder(accept)
        open_metrics = content_type.startswith("application/openmetrics-text")
        if now.health.standby is not None:
            db = None
        reading = Reading()
        self._read_process(reading, now)
        if db is not None:
            self._read_database(reading, db, now.at)
        families = chain(self._counters.values(), reading.values())
        lines = chain.from_iterable(family.exposition_lines(open_metrics=open_metrics) for family in families)
        end = OPEN_METRICS_END if open_metrics else b""
        return MetricsPage(render_registry(self._registry).removesuffix(end) + "".join(lines).encode() + end, content_type)

    def _read_process(self, reading: Reading, now: ScrapeState) -> None:
        """Read what the process and the settings show."""
        health, reload_state = now.health, now.reload_state
        reading.show("heartbeatd_build_info", 1, *self._versions)
        for kind in Kind:
            reading.show("heartbeatd_running", now.running.get(kind, 0), kind.value)
        for direction, count in health.clock_changes.items():
            reading.show("heartbeatd_clock_jumps_total", count, direction)
        reading.show("heartbeatd_db_busy_total", health.failed_commits)
        for part, count in health.internal_errors.items():
            reading.show("heartbeatd_internal_errors_total", count, part)
        if self._settings.postgresql is not None:
            reading.show("heartbeatd_standby", int(health.standby is not None))
        if (queue := health.queue) is not None:
            reading.show("heartbeatd_queue_available", int(queue.problem is None))
            for name in sorted({*queue.needed, *queue.waiting}) if queue.problem is None else ():
                waiting = queue.waiting.get(name)
                reading.show("heartbeatd_workers", len(queue.workers_of(name)), name)
                reading.show("heartbeatd_queue_waiting", waiting.count if waiting else 0, name)
                since = now.at.timestamp() - waiting.longest if waiting else None
                reading.show("heartbeatd_queue_oldest_timestamp_seconds", since, name)
        if self._settings.deadman is not None:
            for result, count in health.pings.items():
                reading.show("heartbeatd_deadman_pings_total", count, result)
            reading.show("heartbeatd_deadman_reachable", int(health.ping_problem is None))
        reading.show("heartbeatd_last_tick_timestamp_seconds", health.ticked_at)
        reading.show("heartbeatd_config_last_reload_successful", int(reload_state.successful))
        reading.show("heartbeatd_config_last_reload_success_timestamp_seconds", reload_state.succeeded_at)
        gauges.read_settings(reading, self._settings, self._entries_with_series)

    def _read_database(self, reading: Reading, db: sqlite3.Connection, at: datetime) -> None:
        wanted = self._entries_with_series
        gauges.read_entries(reading, db, self._settings, wanted, at)
        gauges.read_waiting(reading, db, wanted, at)
        circuits, channels = sorted(self._called_circuits), self._settings.channels
        gauges.read_problems(reading, db, wanted, (*circuits, *self._used_accounts), channels)
        gauges.read_outbox(reading, db, channels)
        gauges.read_breakers(reading, db, circuits)
        if not self._has_read_skips:
            for key, skipped in overviews.last_skips(db, Skip.BUDGET).items():  # of earlier processes
                self._budget_skips.setdefault(key, skipped)
            self._has_read_skips = True
        skipped_at = dict(self._budget_skips)  # in one step, because the other thread may add a key
        gauges.read_budgets(reading, db, self._settings, wanted, skipped_at, self._day_plans, at)
        if self._settings.postgresql is None:
            gauges.read_files(reading, self._settings.state)
        elif leader := boots.find_leader(db):
            reading.show("heartbeatd_leader_epoch", leader.epoch)
            reading.show("heartbeatd_leader_since_timestamp_seconds", leader.since)
            reading.show("heartbeatd_leader_lag_seconds", leader.lag)

    def _count_closed_run(self, closed: events.RunClosed) -> None:
        result = closed.result
        duration = None if closed.started_at is None else max(0.0, (closed.finished_at - closed.started_at).total_seconds())
        if duration is not None and result.outcome is not Outcome.SKIPPED:
            self._histograms[DURATION].labels(closed.kind.value).observe(duration, {"run_id": str(closed.run_id)})
        key = (closed.kind.value, closed.name)
        if result.reason == Skip.BUDGET:
            self._budget_skips[key] = closed.finished_at
        if key not in self._entries_with_series:
            return
        if result.precheck_problem and closed.trigger is not Trigger.RESULT:
            self._counters["heartbeatd_precheck_failures_total"].increase(*key)
        if result.fallback and result.outcome in SUCCESSES:
            self._counters["heartbeatd_fallbacks_total"].increase(*key)
        if result.truncated:
            self._counters["heartbeatd_truncated_total"].increase(*key)
        if result.outcome is Outcome.SKIPPED:
            self._counters["heartbeatd_skips_total"].increase(*key, str(result.reason), by=closed.slots)
            return
        last = Exemplar(closed.run_id, 1, closed.finished_at.timestamp())
        self._counters["heartbeatd_runs_total"].increase(*key, closed.trigger.value, result.outcome.value, exemplar=last)
        self._counters["heartbeatd_run_seconds_total"].increase(*key, by=duration or 0)
        if result.suppression is not None:
            self._counters["heartbeatd_suppressions_total"].increase(*key, str(result.suppression))

    def _count_lateness(self, kind: Kind, late: float, exemplar: dict[str, str] | None = None) -> None:
        self._histograms[LATENESS].labels(kind.value).observe(max(0.0, late), exemplar)
        self._counters["heartbeatd_slots_on_time_total"].increase(kind.value, "on_time" if late <= ON_TIME_START else "late")

    def _count_wake(self, wake: events.WakeMoved) -> None:
        if wake.result in UNDELIVERED:
            self._counters["heartbeatd_wakes_refused_total"].increase(str(wake.source), wake.result.value)
        if wake.final and (Kind.HEARTBEAT, wake.name) in self._entries_with_series:
            self._counters["heartbeatd_wakes_total"].increase(wake.name, str(wake.source), wake.result.value)

    def _count_delivery(self, moved: events.MessageMoved) -> None:
        result = "retried" if moved.retried else str(moved.state)
        if moved.channel in self._settings.channels and result in DELIVERY_RESULTS:
            self._counters["heartbeatd_deliveries_total"].increase(moved.channel, result)
        if moved.channel in self._settings.channels and moved.age is not None and result in ("delivered", "dead"):
            is_timely = moved.state is DeliveryState.DELIVERED and moved.age <= ON_TIME_DELIVERY
            self._counters["heartbeatd_messages_on_time_total"].increase(moved.channel, "on_time" if is_timely else "late")

    def _count_charged_call(self, paid: events.CallCharged) -> None:
        key, model = (paid.kind.value, paid.name), paid.model or ""
        tokens = paid.tokens.by_kind() if paid.tokens is not None else {}
        if key in self._entries_with_series:
            for kind, count in tokens.items():
                if count:
                    self._counters["heartbeatd_tokens_total"].increase(*key, model, kind, by=count)
            self._counters["heartbeatd_cost_usd_total"].increase(*key, model, paid.outcome.value, by=paid.cost_usd or 0)
        if paid.cost_usd is None and model in self._called_models:
            self._counters["heartbeatd_unpriced_tokens_total"].increase(model, by=sum(tokens.values()))

    def _count_call(self, called: events.ProviderCalled) -> None:
        if (called.provider, called.model) in self._called_circuits:
            self._counters["heartbeatd_provider_requests_total"].increase(called.provider, called.model, called.result)
            if called.took is not None:
                seconds, exemplar = called.took.total_seconds(), {"run_id": str(called.run_id)}
                self._histograms[CALL_DURATION].labels(called.provider, called.model).observe(seconds, exemplar)

    def _apply_settings(self, settings: Settings) -> None:
        """Create the series that the settings make possible, and delete those of removed entries and channels."""
        shown = dict(islice(_possible_labels_by_entry(settings), settings.server.metrics_entries))
        self._settings = settings
        self._entries_with_series = {key: label_text(gauges.ENTRY_LABELS, key) for key in shown}
        called = [each for agent in settings.enabled_agents for each in agent.called]
        circuits = frozenset(circuits_of(*called))
        # A command can report its usage too, under the empty name.
        models = self._called_models = frozenset(model or "" for _, model in called)
        goes_on: dict[Ends, Callable[[LabelValues], bool]] = {
            Ends.WITH_ENTRY: lambda labels: labels[:2] in shown,
            Ends.WITH_ENTRY_OR_MODEL: lambda labels: labels[:2] in shown and labels[2] in shown[labels[0], labels[1]].models,
            Ends.WITH_AGENT: lambda labels: (Kind.HEARTBEAT, labels[0]) in shown,
            Ends.WITH_CHANNEL: lambda labels: labels[0] in settings.channels,
            Ends.WITH_MODEL: lambda labels: labels[0] in models,
            Ends.WITH_CIRCUIT: lambda labels: labels[:2] in circuits,
            Ends.NEVER: lambda _: True,
        }
        for name, family in self._counters.items():
            family.keep_series(goes_on[COUNTERS[name].ends])
        for provider, model in self._called_circuits - circuits:
            self._histograms[CALL_DURATION].remove(provider, model)
        self._called_circuits, self._used_accounts = circuits, accounts_of(*called)
        for provider, model in circuits:
            self._histograms[CALL_DURATION].labels(provider, model)
        for name, labels in _first_series(settings, shown, models, circuits):
            self._counters[name].increase(*labels, by=0)


def _first_series(
    settings: Settings,
    shown: Mapping[EntryLabels, PossibleLabels],
    models: Iterable[str],
    circuits: Iterable[tuple[str, str]],
) -> Iterator[tuple[str, LabelValues]]:
    """The series that begin with 0, because nearly every entry, channel and model will have them."""
    for key, labels in shown.items():
        if labels.slot_trigger is not None:
            yield "heartbeatd_runs_total", (*key, labels.slot_trigger.value, Outcome.OK.value)
            yield "heartbeatd_run_seconds_total", key
        for model in labels.models:
            yield "heartbeatd_cost_usd_total", (*key, model, Outcome.OK.value)
    for model in models:
        yield "heartbeatd_unpriced_tokens_total", (model,)
    for circuit in circuits:
        yield "heartbeatd_provider_requests_total", (*circuit, "ok")
    for name, channel in settings.channels.items():
        for result in DELIVERY_RESULTS:
            yield "heartbeatd_deliveries_total", (name, result)
        for result in TIMELINESS:
            yield "heartbeatd_messages_on_time_total", (name, result)
        for result in PRESS_RESULTS if channel.can_be_answered else ():
            yield "heartbeatd_button_presses_total", (name, result)


@dataclass(frozen=True, slots=True)
class PossibleLabels:
    """The trigger of an entry's planned times (None: it has no planned times), and the models that it may call."""

    slot_trigger: Trigger | None
    models: tuple[str, ...] = ()


# By the key of the config that gives an entry its planned times.
SLOT_TRIGGERS = {
    "interval": Trigger.INTERVAL,
    "schedule": Trigger.SCHEDULE,
    "every": Trigger.EVERY,
    "at": Trigger.AT,
    "after": Trigger.CRON,
    "reboot": Trigger.REBOOT,
}


def _possible_labels_by_entry(settings: Settings) -> Iterator[tuple[EntryLabels, PossibleLabels]]:
    """The possible label values of every declared entry, in the order of the config. A disabled one never runs."""
    for key, spec in gauges.entries_by_key(settings).items():
        agent = spec if isinstance(spec, Heartbeat) else settings.job_agents.get(spec.name)
        models = tuple(dict.fromkeys(model or "" for _, model in agent.called)) if agent else ()
        trigger = next((each for name, each in SLOT_TRIGGERS.items() if getattr(spec, name, None)), None)
        yield key, PossibleLabels(trigger, models) if spec.enabled else PossibleLabels(None)

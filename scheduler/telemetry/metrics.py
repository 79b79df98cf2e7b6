"""Builds the Prometheus metrics page, and counts each event in its counters."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import singledispatchmethod
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

from scheduler.model.circuit import Circuit
from scheduler.model.daemon_health import EngineHealth, ReloadState
from scheduler.model.events import (
    AcknowledgementEnded,
    AttemptStarted,
    BreakerMoved,
    ButtonPressed,
    CallCharged,
    ChecklistRemarked,
    ConditionAcknowledged,
    ConditionClosed,
    Event,
    LaneBusy,
    MessageMoved,
    ModelMismatched,
    MuteChanged,
    PauseChanged,
    ProviderCalled,
    ProviderFailed,
    RetryPlanned,
    RunClosed,
    RunRecovered,
    SettingsApplied,
    SkipsRevoked,
    SlotsMissed,
    StaleResultDropped,
    TargetUnknown,
    WakeMoved,
)
from scheduler.model.outcome import WOKEN, DeliveryState, Kind, Outcome, Skip, Trigger, WakeResult
from scheduler.model.settings import Settings
from scheduler.telemetry import gauges, possible_labels
from scheduler.telemetry.gauges import EntryLabels, single_gauge
from scheduler.telemetry.possible_labels import PossibleLabels
from scheduler.telemetry.series import Exemplar, MetricFamily, label_text

OPEN_METRICS_END = b"# EOF\n"
DURATION_BUCKETS = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
LATENESS_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30, 60, 300, 600, 3600)
CALL_BUCKETS = (*(0.1 * 2**step for step in range(13)), 600)  # seconds
ON_TIME_START = 60.0  # seconds after its due time
ON_TIME_DELIVERY = timedelta(minutes=5)  # after the message was written
TIMELINESS = ("on_time", "late")
UNDELIVERED = (WakeResult.REJECTED, WakeResult.EXPIRED)
WAKE_SOURCES = sorted(WOKEN)
DELIVERY_RESULTS = ("delivered", "retried", "uncertain", "dead")


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
        registry = CollectorRegistry()
        self._registry = registry
        self._duration = Histogram(
            "heartbeatd_run_duration_seconds",
            "How long runs took, in seconds.",
            ["kind"],
            registry=registry,
            buckets=DURATION_BUCKETS,
        )
        self._lateness = Histogram(
            "heartbeatd_dispatch_lateness_seconds",
            "How many seconds after its due time a slot was started, or skipped because it could not start.",
            ["kind"],
            registry=registry,
            buckets=LATENESS_BUCKETS,
        )
        self._call_duration = Histogram(
            "heartbeatd_provider_request_duration_seconds",
            "How long calls to providers took, in seconds, whatever their result.",
            ["provider", "model"],
            registry=registry,
            buckets=CALL_BUCKETS,
        )
        self._requests = Counter(
            "heartbeatd_http_requests_total",
            "Requests to the HTTP API, by the template of their path and the status code of the answer.",
            ["route", "code"],
            registry=registry,
        )
        self._refused_tokens = Counter(
            "heartbeatd_http_tokens_refused_total", "Requests to the HTTP API with a token that is not valid.", registry=registry
        )
        ProcessCollector(registry=registry)
        self._calls = _new_counter(
            "provider_requests_total", "Calls to providers, by result: ok or the error class.", "provider", "model", "result"
        )
        self._on_time = _new_counter(
            "slots_on_time_total",
            f"Slots by whether they started at most {ON_TIME_START:.0f} s after their due time.",
            "kind",
            "result",
        )
        self._messages_on_time = _new_counter(
            "messages_on_time_total",
            f"Messages by whether they were delivered at most {ON_TIME_DELIVERY // timedelta(minutes=1)} minutes after they were"
            " written.",
            "channel",
            "result",
        )
        self._refused_wakes = _new_counter(
            "wakes_refused_total", "Wakes that no run delivered to their agent, by reason.", "source", "reason"
        )
        self._runs = _new_counter("runs_total", "Runs, by their outcome.", "kind", "name", "trigger", "outcome")
        self._suppressions = _new_counter("suppressions_total", "Runs that sent no message, by reason.", "kind", "name", "reason")
        self._skips = _new_counter("skips_total", "Slots that were skipped, by reason.", "kind", "name", "reason")
        self._truncated = _new_counter("truncated_total", "Answers that were cut off at the token limit.", "kind", "name")
        self._prechecks = _new_counter(
            "precheck_failures_total", "Prechecks that failed, whether the run continued or not.", "name"
        )
        self._retries = _new_counter("retries_total", "Failed attempts that were followed by a retry.", "kind", "name")
        self._seconds = _new_counter("run_seconds_total", "Time spent in runs, in seconds.", "kind", "name")
        self._wakes = _new_counter("wakes_total", "Wakes, by their final result.", "name", "source", "result")
        self._deliveries = _new_counter("deliveries_total", "Messages, by the result of the delivery.", "channel", "result")
        self._presses = _new_counter("button_presses_total", "Presses of buttons of messages, by result.", "channel", "result")
        self._tokens = _new_counter("tokens_total", "Tokens used, by the requested model.", "kind", "name", "model", "type")
        self._cost = _new_counter(
            "cost_usd_total", "The cost of runs in USD, at the prices of the config.", "kind", "name", "model", "outcome"
        )
        self._unpriced = _new_counter("unpriced_tokens_total", "Tokens of models without a price in the config.", "model")
        self._mismatches = _new_counter(
            "model_mismatches_total", "Answers from another model than the requested one.", "kind", "name"
        )
        self._recovered = _new_counter(
            "orphans_recovered_total", "Runs that were interrupted by the end of an earlier daemon process.", "kind"
        )
        self._stale = _new_counter("stale_results_total", "Results that arrived after their run had been closed.")
        self._stale.set_value(0)
        self._taken_back = _new_counter(
            "skips_taken_back_total",
            "Slots that were counted as skipped while the system clock was ahead, and are still to come.",
        )
        self._taken_back.set_value(0)
        self._build = MetricFamily(
            "gauge", "heartbeatd_build_info", "The versions of heartbeatd and of the time zone rules.", ("version", "tzdata")
        )
        self._build.set_value(1, version, tzdata)
        self._settings = settings
        self._counts = self._count  # looked up once: a singledispatchmethod builds a new function at each look-up
        self._entries_with_series: dict[EntryLabels, str] = {}  # with the text of their labels
        self._declared_calls: frozenset[tuple[str, str]] = frozenset()
        self._day_plans = gauges.DayPlans()
        self._budget_skips: dict[EntryLabels, datetime] = {}  # when each entry was last skipped because of a budget
        for kind in Kind:
            self._duration.labels(kind.value)
            self._lateness.labels(kind.value)
            self._recovered.set_value(0, kind.value)
            for result in TIMELINESS:
                self._on_time.set_value(0, kind.value, result)
        for source, reason in product(WAKE_SOURCES, UNDELIVERED):
            self._refused_wakes.set_value(0, source.value, reason.value)
        self._apply_settings(settings)

    def count_event(self, happened: Event) -> None:
        """Count one event. Called after the commit, always in the same thread."""
        self._counts(happened)

    def count_request(self, route: str, code: int) -> None:
        """Count a request to the HTTP API. May be called in any thread, as `count_refused_token`."""
        self._requests.labels(route, str(code)).inc()

    def count_refused_token(self) -> None:
        """Count a request with a token that is not valid."""
        self._refused_tokens.inc()

    def render_page(self, db: sqlite3.Connection | None, now: ScrapeState, accept: str = "") -> MetricsPage:
        """The metrics page, in OpenMetrics if the header Accept prefers it.

        `db` is a read-only connection. Without it the gauges from the database are absent. They are also absent on standby,
        because the leader exports them. Raises sqlite3.Error.
        """
        render_registry, content_type = choose_encoder(accept)
        open_metrics = content_type.startswith("application/openmetrics-text")
        if now.health.standby is not None:
            db = None
        families = chain(
            self._counter_families(), self._process_families(now), self._database_families(db, now.at) if db is not None else ()
        )
        lines = chain.from_iterable(family.exposition_lines(open_metrics=open_metrics) for family in families)
        end = OPEN_METRICS_END if open_metrics else b""
        return MetricsPage(render_registry(self._registry).removesuffix(end) + "".join(lines).encode() + end, content_type)

    def _counter_families(self) -> tuple[MetricFamily, ...]:
        runs = (self._runs, self._suppressions, self._truncated, self._skips, self._prechecks, self._retries, self._seconds)
        models = (self._tokens, self._cost, self._unpriced, self._mismatches)
        timely = (self._on_time, self._messages_on_time)
        wakes = (self._wakes, self._refused_wakes)
        others = (self._presses, self._recovered, self._stale, self._taken_back)
        return (*runs, *timely, *wakes, self._calls, *models, self._deliveries, *others)

    def _process_families(self, now: ScrapeState) -> Iterator[MetricFamily]:
        running = MetricFamily("gauge", "heartbeatd_running", "Runs in progress.", ("kind",))
        for kind in Kind:
            running.set_value(now.running.get(kind, 0), kind.value)
        yield running
        jumps = _new_counter("clock_jumps_total", "System clock changes, by direction.", "direction")
        for direction, count in now.health.clock_changes.items():
            jumps.set_value(count, direction)
        yield jumps
        busy = _new_counter("db_busy_total", "Times that the database could not be written.")
        busy.set_value(now.health.failed_commits)
        yield busy
        help_text = "Unexpected exceptions in the main loop, by the part of its work that was left out."
        errors = _new_counter("internal_errors_total", help_text, "part")
        for part, count in now.health.internal_errors.items():
            errors.set_value(count, part)
        yield errors
        if self._settings.postgresql is not None:
            standby = int(now.health.standby is not None)
            yield single_gauge("heartbeatd_standby", "1 while another daemon leads, and this one is on standby.", standby)
        if (queue := now.health.queue) is not None:
            help_text = "1 while the queue of the workers can be used."
            yield single_gauge("heartbeatd_queue_available", help_text, int(queue.problem is None))
            help_text = "Workers that have renewed their lease; absent while the queue cannot be used."
            yield single_gauge("heartbeatd_workers", help_text, len(queue.workers) if queue.problem is None else None)
            yield single_gauge(
                "heartbeatd_queue_oldest_timestamp_seconds",
                "Since when the first run in the queue has waited for a worker; absent while none waits.",
                None if queue.longest_wait is None else now.at.timestamp() - queue.longest_wait,
            )
        if self._settings.deadman is not None:
            pings = _new_counter("deadman_pings_total", "Pings to the dead man's switch, by result.", "result")
            for result, count in now.health.pings.items():
                pings.set_value(count, result)
            yield pings
        ticked = None if now.health.ticked_at is None else now.health.ticked_at.timestamp()
        yield single_gauge("heartbeatd_last_tick_timestamp_seconds", "When the main loop last ticked.", ticked)
        yield single_gauge(
            "heartbeatd_config_last_reload_successful",
            "0 while the config file has errors and is not applied.",
            int(now.reload_state.successful),
        )
        yield single_gauge(
            "heartbeatd_config_last_reload_success_timestamp_seconds",
            "When the active config was applied.",
            now.reload_state.succeeded_at.timestamp(),
        )
        yield self._build
        yield from gauges.settings_gauges(self._settings, self._entries_with_series)

    def _database_families(self, db: sqlite3.Connection, at: datetime) -> Iterator[MetricFamily]:
        yield from gauges.entry_gauges(db, self._settings, self._entries_with_series, at)
        yield gauges.crash_counter(db)
        agents = [name for kind, name in self._entries_with_series if kind == Kind.HEARTBEAT]
        yield from gauges.wake_gauges(db, agents)
        yield from gauges.condition_gauges(db, agents)
        yield from gauges.mute_gauges(db, self._entries_with_series, at)
        yield from gauges.outbox_gauges(db, self._settings.channels)
        yield from gauges.breaker_gauges(db, possible_labels.called_circuits(self._settings))
        yield from gauges.queue_gauges(db, at)
        skipped_at = dict(self._budget_skips)  # in one step, because the other thread may add a key
        yield from gauges.budget_gauges(db, self._settings, self._entries_with_series, skipped_at, self._day_plans, at)
        if self._settings.postgresql is None:
            yield from gauges.file_gauges(self._settings.state)

    @singledispatchmethod
    def _count(self, happened: Event) -> None:
        raise TypeError(f"no counter for {happened!r}")

    @_count.register
    def _count_closed_run(self, closed: RunClosed) -> None:
        duration = None if closed.started_at is None else max(0.0, (closed.finished_at - closed.started_at).total_seconds())
        if duration is not None and closed.outcome is not Outcome.SKIPPED:
            self._duration.labels(closed.kind.value).observe(duration, {"run_id": str(closed.run_id)})
        key = (closed.kind.value, closed.name)
        if closed.reason == Skip.BUDGET:
            self._budget_skips[key] = closed.finished_at
        if key not in self._entries_with_series:
            return
        if closed.precheck_problem and closed.trigger is not Trigger.RESULT:
            self._prechecks.increase(closed.name)
        if closed.truncated:
            self._truncated.increase(*key)
        if closed.outcome is Outcome.SKIPPED:
            self._skips.increase(*key, str(closed.reason), by=closed.slots)
            return
        last = Exemplar(closed.run_id, 1, closed.finished_at.timestamp())
        self._runs.increase(*key, closed.trigger.value, closed.outcome.value, exemplar=last)
        self._seconds.increase(*key, by=duration or 0)
        if closed.suppression is not None:
            self._suppressions.increase(*key, str(closed.suppression))

    @_count.register
    def _count_started_attempt(self, started: AttemptStarted) -> None:
        if started.late is not None:
            self._count_lateness(started.kind, started.late, {"run_id": str(started.run_id)})

    @_count.register
    def _count_missed_slots(self, unstarted: SlotsMissed) -> None:
        for late in unstarted.late:
            self._count_lateness(unstarted.kind, late)

    def _count_lateness(self, kind: Kind, late: float, exemplar: dict[str, str] | None = None) -> None:
        self._lateness.labels(kind.value).observe(max(0.0, late), exemplar)
        self._on_time.increase(kind.value, "on_time" if late <= ON_TIME_START else "late")

    @_count.register
    def _count_retry(self, retried: RetryPlanned) -> None:
        if (retried.kind, retried.name) in self._entries_with_series:
            self._retries.increase(retried.kind.value, retried.name)

    @_count.register
    def _count_busy_lane(self, taken: LaneBusy) -> None:
        """Counted when the run ends or is skipped."""

    @_count.register
    def _count_unknown_target(self, event: TargetUnknown) -> None:
        """Nothing was sent; the run record says so."""

    @_count.register
    def _count_wake(self, wake: WakeMoved) -> None:
        if wake.final and wake.result in UNDELIVERED:
            self._refused_wakes.increase(str(wake.source), wake.result.value)
        if wake.final and (Kind.HEARTBEAT, wake.name) in self._entries_with_series:
            self._wakes.increase(wake.name, str(wake.source), wake.result.value)

    @_count.register
    def _count_delivery(self, moved: MessageMoved) -> None:
        result = "retried" if moved.retried else str(moved.state)
        if moved.channel in self._settings.channels and result in DELIVERY_RESULTS:
            self._deliveries.increase(moved.channel, result)
        if moved.channel in self._settings.channels and moved.age is not None and result in ("delivered", "dead"):
            is_timely = moved.state is DeliveryState.DELIVERED and moved.age <= ON_TIME_DELIVERY
            self._messages_on_time.increase(moved.channel, "on_time" if is_timely else "late")

    @_count.register
    def _count_charged_call(self, paid: CallCharged) -> None:
        key, model = (paid.kind.value, paid.name), paid.model or ""
        tokens = paid.tokens.by_kind() if paid.tokens else {}
        if key in self._entries_with_series:
            for kind, count in tokens.items():
                if count:
                    self._tokens.increase(*key, model, kind, by=count)
            self._cost.increase(*key, model, paid.outcome.value, by=paid.cost_usd or 0)
        if paid.cost_usd is None and model in possible_labels.called_models(self._settings):
            self._unpriced.increase(model, by=sum(tokens.values()))

    @_count.register
    def _count_provider_error(self, failed: ProviderFailed) -> None:
        """Counted as a call."""

    @_count.register
    def _count_call(self, called: ProviderCalled) -> None:
        if Circuit(called.provider, called.model) in possible_labels.called_circuits(self._settings):
            self._calls.increase(called.provider, called.model, called.result)
            if called.took is not None:
                seconds, exemplar = called.took.total_seconds(), {"run_id": str(called.run_id)}
                self._call_duration.labels(called.provider, called.model).observe(seconds, exemplar)

    @_count.register
    def _count_model_mismatch(self, mismatched: ModelMismatched) -> None:
        if (mismatched.kind, mismatched.name) in self._entries_with_series:
            self._mismatches.increase(mismatched.kind.value, mismatched.name)

    @_count.register
    def _count_breaker(self, moved: BreakerMoved) -> None:
        """Shown by a gauge."""

    @_count.register
    def _count_checklist_remark(self, remarked: ChecklistRemarked) -> None:
        """Shown in the log, by `doctor` and by `explain`."""

    @_count.register
    def _count_closed_condition(self, closed: ConditionClosed) -> None:
        """Shown by a gauge."""

    @_count.register
    def _count_acknowledgement(self, acknowledged: ConditionAcknowledged) -> None:
        """Shown by `conditions` and in the log."""

    @_count.register
    def _count_end_of_acknowledgement(self, ended: AcknowledgementEnded) -> None:
        """Shown by `conditions` and in the log."""

    @_count.register
    def _count_press(self, press: ButtonPressed) -> None:
        if press.channel in self._settings.channels:
            self._presses.increase(press.channel, press.result)

    @_count.register
    def _count_pause(self, changed: PauseChanged) -> None:
        """A pause is shown by the gauge `entry_state`."""

    @_count.register
    def _count_mute(self, changed: MuteChanged) -> None:
        """Shown by a gauge."""

    @_count.register
    def _count_recovered_run(self, recovered: RunRecovered) -> None:
        self._recovered.increase(recovered.kind.value)

    @_count.register
    def _count_revoked_skips(self, taken: SkipsRevoked) -> None:
        self._taken_back.increase(by=taken.slots)

    @_count.register
    def _count_stale_result(self, stale: StaleResultDropped) -> None:
        self._stale.increase()

    @_count.register
    def _use_new_settings(self, adopted: SettingsApplied) -> None:
        self._apply_settings(adopted.settings)

    def _apply_settings(self, settings: Settings) -> None:
        """Create the series that the settings make possible, and delete those of removed entries and channels."""
        shown = dict(islice(_possible_labels_by_entry(settings), settings.server.metrics_entries))
        self._settings = settings
        self._entries_with_series = {key: label_text(gauges.ENTRY_LABELS, key) for key in shown}
        for family in (self._runs, self._suppressions, self._skips, self._retries, self._seconds):
            family.keep_series(lambda labels: labels[:2] in shown)
        for family in (self._tokens, self._cost):
            family.keep_series(lambda labels: (key := (labels[0], labels[1])) in shown and labels[2] in shown[key].models)
        self._mismatches.keep_series(lambda labels: labels in shown)
        self._truncated.keep_series(lambda labels: labels in shown)
        self._prechecks.keep_series(lambda labels: any((kind, labels[0]) in shown for kind in Kind))
        self._wakes.keep_series(lambda labels: (Kind.HEARTBEAT, labels[0]) in shown)
        self._deliveries.keep_series(lambda labels: labels[0] in settings.channels)
        self._messages_on_time.keep_series(lambda labels: labels[0] in settings.channels)
        self._presses.keep_series(lambda labels: labels[0] in settings.channels)
        with_buttons = [name for name, channel in settings.channels.items() if channel.buttons]
        for channel, result in product(with_buttons, possible_labels.PRESS_RESULTS):
            self._presses.increase(channel, result, by=0)
        for key, possible in shown.items():
            self._declare_series(key, possible)
        models = possible_labels.called_models(settings)
        self._unpriced.keep_series(lambda labels: labels[0] in models)
        for model in models:
            self._unpriced.increase(model, by=0)
        for channel, result in product(settings.channels, DELIVERY_RESULTS):
            self._deliveries.increase(channel, result, by=0)
        for channel, result in product(settings.channels, TIMELINESS):
            self._messages_on_time.increase(channel, result, by=0)
        self._declare_calls(possible_labels.called_circuits(settings))

    def _declare_calls(self, circuits: Iterable[Circuit]) -> None:
        """Create the histogram of each model, and the series of its successful calls."""
        called = frozenset((circuit.provider, circuit.model) for circuit in circuits)
        self._calls.keep_series(lambda labels: labels[:2] in called)
        for provider, model in self._declared_calls - called:
            self._call_duration.remove(provider, model)
        for provider, model in called:
            self._calls.increase(provider, model, "ok", by=0)
            self._call_duration.labels(provider, model)
        self._declared_calls = called

    def _declare_series(self, key: EntryLabels, labels: PossibleLabels) -> None:
        """Create the series that nearly every entry will have."""
        if labels.slot_trigger is not None:
            self._runs.increase(*key, labels.slot_trigger.value, Outcome.OK.value, by=0)
            self._seconds.increase(*key, by=0)
        for model in labels.models:
            self._cost.increase(*key, model, Outcome.OK.value, by=0)


def _new_counter(name: str, help_text: str, *labels: str) -> MetricFamily:
    return MetricFamily("counter", f"heartbeatd_{name}", help_text, labels)


def _possible_labels_by_entry(settings: Settings) -> Iterator[tuple[EntryLabels, PossibleLabels]]:
    """The possible label values of every declared entry, in the order of the config."""
    for beat in settings.heartbeats.values():
        yield (Kind.HEARTBEAT.value, beat.name), possible_labels.heartbeat_labels(beat)
    for job in settings.jobs.values():
        yield (Kind.CRON.value, job.name), possible_labels.job_labels(job, settings.job_agents.get(job.name))

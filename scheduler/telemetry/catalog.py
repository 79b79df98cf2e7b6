"""Every metric of heartbeatd: its labels, what it shows, and with what its series end."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import Enum
from typing import NamedTuple

from scheduler.telemetry.series import MetricFamily

DURATION_BUCKETS = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
LATENESS_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30, 60, 300, 600, 3600)
CALL_BUCKETS = (*(0.1 * 2**step for step in range(13)), 600)  # seconds
ON_TIME_START = 60.0  # seconds after its due time
ON_TIME_DELIVERY = timedelta(minutes=5)  # after the message was written


class Ends(Enum):
    """With what the series of a metric end, by its first labels: a reload may remove it."""

    WITH_ENTRY = "kind name"
    WITH_ENTRY_OR_MODEL = "kind name model"
    WITH_AGENT = "agent"
    WITH_CHANNEL = "channel"
    WITH_MODEL = "model"
    WITH_CIRCUIT = "provider model"
    NEVER = ""


class Buckets(NamedTuple):
    """A histogram."""

    help: str
    labels: str
    buckets: tuple[float, ...]


class Metric(NamedTuple):
    """`labels` are separated by blanks. It is a counter if its name ends with `_total`, else a gauge."""

    help: str
    labels: str = ""
    ends: Ends = Ends.NEVER


HISTOGRAMS: Mapping[str, Buckets] = {
    "heartbeatd_run_duration_seconds": Buckets("How long runs took, in seconds.", "kind", DURATION_BUCKETS),
    "heartbeatd_dispatch_lateness_seconds": Buckets(
        "How many seconds after its due time a planned run started, or was skipped because it could not start.",
        "kind",
        LATENESS_BUCKETS,
    ),
    "heartbeatd_provider_request_duration_seconds": Buckets(
        "How long calls to providers took, in seconds, whatever their result.", "provider model", CALL_BUCKETS
    ),
}

# Counted from the events of the engine. They begin at 0 with the process.
COUNTERS: Mapping[str, Metric] = {
    "heartbeatd_runs_total": Metric("Runs by result (label outcome).", "kind name trigger outcome", Ends.WITH_ENTRY),
    "heartbeatd_suppressions_total": Metric(
        "Runs that sent no message, by why (label reason).", "kind name reason", Ends.WITH_ENTRY
    ),
    "heartbeatd_fallbacks_total": Metric("Runs that a fallback has answered.", "kind name", Ends.WITH_ENTRY),
    "heartbeatd_truncated_total": Metric("Answers that were cut off at the token limit.", "kind name", Ends.WITH_ENTRY),
    "heartbeatd_skips_total": Metric(
        "Planned runs that were skipped, by why (label reason).", "kind name reason", Ends.WITH_ENTRY
    ),
    "heartbeatd_precheck_failures_total": Metric(
        "Prechecks that failed, whether the run continued or not.", "kind name", Ends.WITH_ENTRY
    ),
    "heartbeatd_retries_total": Metric("Failed tries that were followed by a retry.", "kind name", Ends.WITH_ENTRY),
    "heartbeatd_run_seconds_total": Metric("Time spent in runs, in seconds.", "kind name", Ends.WITH_ENTRY),
    "heartbeatd_slots_on_time_total": Metric(
        f"Planned runs by whether they started at most {ON_TIME_START:.0f} s after their due time.", "kind result"
    ),
    "heartbeatd_messages_on_time_total": Metric(
        f"Messages by whether they were delivered at most {ON_TIME_DELIVERY // timedelta(minutes=1)} minutes after they were"
        " written.",
        "channel result",
        Ends.WITH_CHANNEL,
    ),
    "heartbeatd_wakes_total": Metric("Wakes, by their final result.", "name source result", Ends.WITH_AGENT),
    "heartbeatd_wakes_refused_total": Metric(
        "Wakes that no run delivered to their agent, by why (label reason).", "source reason"
    ),
    "heartbeatd_provider_requests_total": Metric(
        "Calls to providers, by result: ok or the error class.", "provider model result", Ends.WITH_CIRCUIT
    ),
    "heartbeatd_tokens_total": Metric("Tokens used, by the requested model.", "kind name model type", Ends.WITH_ENTRY_OR_MODEL),
    "heartbeatd_cost_usd_total": Metric(
        "The cost of runs in USD, at the prices of the config, by result (label outcome).",
        "kind name model outcome",
        Ends.WITH_ENTRY_OR_MODEL,
    ),
    "heartbeatd_unpriced_tokens_total": Metric("Tokens of models without a price in the config.", "model", Ends.WITH_MODEL),
    "heartbeatd_model_mismatches_total": Metric(
        "Answers from another model than the requested one.", "kind name", Ends.WITH_ENTRY
    ),
    "heartbeatd_deliveries_total": Metric("Messages, by the result of the delivery.", "channel result", Ends.WITH_CHANNEL),
    "heartbeatd_button_presses_total": Metric(
        "Presses of buttons of messages, and replies to messages, by result.", "channel result", Ends.WITH_CHANNEL
    ),
    "heartbeatd_orphans_recovered_total": Metric("Runs that were interrupted by the end of an earlier daemon process.", "kind"),
    "heartbeatd_stale_results_total": Metric("Results that arrived after their run had been closed."),
    "heartbeatd_skips_taken_back_total": Metric(
        "Planned runs that were counted as skipped while the system clock was ahead, and are still to come."
    ),
}

# Of the HTTP API, counted in any thread.
OF_REQUESTS: Mapping[str, Metric] = {
    "heartbeatd_http_requests_total": Metric(
        "Requests to the HTTP API, by the template of their path and the status code of the answer.", "route code"
    ),
    "heartbeatd_http_tokens_refused_total": Metric("Requests to the HTTP API with a token that is not valid."),
}

# Read at each scrape, from the process, the settings or the database. One without a value is absent.
READ: Mapping[str, Metric] = {
    "heartbeatd_build_info": Metric("The versions of heartbeatd and of the time zone rules.", "version tzdata"),
    "heartbeatd_running": Metric("Runs in progress.", "kind"),
    "heartbeatd_clock_jumps_total": Metric("System clock changes, by direction.", "direction"),
    "heartbeatd_db_busy_total": Metric("Times that the database could not be written."),
    "heartbeatd_internal_errors_total": Metric(
        "Unexpected exceptions in the main loop, by the part of its work that was left out.", "part"
    ),
    "heartbeatd_standby": Metric("1 while another daemon leads, and this one is on standby."),
    "heartbeatd_leader_epoch": Metric("How many times a daemon has begun to lead."),
    "heartbeatd_leader_since_timestamp_seconds": Metric("Since when this daemon leads."),
    "heartbeatd_leader_lag_seconds": Metric("For how long this daemon has not renewed its lease."),
    "heartbeatd_queue_available": Metric("1 while the queue of the workers can be used."),
    "heartbeatd_workers": Metric("Workers that take runs of a queue; absent while the queues cannot be used.", "queue"),
    "heartbeatd_queue_waiting": Metric("Runs that wait for a worker of a queue.", "queue"),
    "heartbeatd_queue_oldest_timestamp_seconds": Metric(
        "Since when the first run of a queue has waited for a worker; absent while none waits.", "queue"
    ),
    "heartbeatd_deadman_pings_total": Metric("Pings to the dead man's switch, by result.", "result"),
    "heartbeatd_deadman_reachable": Metric("0 while pings to the dead man's switch fail."),
    "heartbeatd_last_tick_timestamp_seconds": Metric("When the main loop last ticked."),
    "heartbeatd_config_last_reload_successful": Metric("0 while the config file has errors and is not applied."),
    "heartbeatd_config_last_reload_success_timestamp_seconds": Metric("When the active config was applied."),
    "heartbeatd_config_file_present": Metric("1 while the config file can be read."),
    "heartbeatd_config_hash": Metric("A number that changes whenever the active config changes."),
    "heartbeatd_concurrency_limit": Metric("How many runs may be in progress at the same time."),
    "heartbeatd_entries_without_series": Metric(
        "Agents and jobs without series of their own, because there are more than server.metrics_entries."
    ),
    "heartbeatd_expected_by_timestamp_seconds": Metric(
        "When the expected run must have a result that counts; absent while none is expected.", "kind name"
    ),
    "heartbeatd_slots_total": Metric("Planned runs that were answered (good) or lost (bad).", "kind name result"),
    "heartbeatd_entry_state": Metric("1 for the state of the agent or job: active, paused, disabled or done.", "kind name state"),
    "heartbeatd_consecutive_failures": Metric("Failed runs in a row.", "kind name"),
    "heartbeatd_alerting": Metric("1 if the last successful run had an alert, delivered or not.", "kind name"),
    "heartbeatd_next_due_timestamp_seconds": Metric(
        "When the agent or job is due next; absent while it is paused or disabled.", "kind name"
    ),
    "heartbeatd_paused_since_timestamp_seconds": Metric(
        "Since when the agent or job is paused; absent if the pause has an end.", "kind name"
    ),
    "heartbeatd_last_run_timestamp_seconds": Metric("When the last run ended, whatever its result.", "kind name"),
    "heartbeatd_last_success_timestamp_seconds": Metric("When the last successful run ended.", "kind name"),
    "heartbeatd_muted": Metric("1 while the messages of the agent or job are muted.", "kind name"),
    "heartbeatd_crashes_total": Metric(
        "Daemon processes that ended without a clean stop, in all the time that the database has existed."
    ),
    "heartbeatd_last_crash_timestamp_seconds": Metric(
        "When the next daemon started after the last crash; absent if there was none."
    ),
    "heartbeatd_due_entries": Metric("Agents and jobs that are due now."),
    "heartbeatd_oldest_due_timestamp_seconds": Metric(
        "Since when the longest waiting agent or job has been due; absent while none is due."
    ),
    "heartbeatd_wakes_pending": Metric("Wakes that wait for the agent's next run.", "name"),
    "heartbeatd_questions_open": Metric("Questions of runs to people that have no answer yet.", "kind name"),
    "heartbeatd_problems_open": Metric(
        "Open problems of agents, jobs, providers, channels and the daemon, by severity and by whether they are acknowledged.",
        "subject severity acknowledged",
    ),
    "heartbeatd_problem_oldest_timestamp_seconds": Metric(
        "Since when the oldest open problem lasts that is more than info, and that nobody has acknowledged.", "subject"
    ),
    "heartbeatd_breaker_open": Metric("1 while the circuit breaker of the whole provider is open.", "provider"),
    "heartbeatd_breaker_model_open": Metric("1 while the circuit breaker of this model is open.", "provider model"),
    "heartbeatd_account_limited_until_timestamp_seconds": Metric(
        "Until when the usage limit of an account is reached; absent while it is not.", "account"
    ),
    "heartbeatd_budget_used_ratio": Metric(
        "The share of the budget of today, or of this month, that is used.", "scope kind name budget"
    ),
    "heartbeatd_budget_exhausted": Metric(
        "1 while runs are skipped because the budget of today, or of this month, has no room for them.", "scope kind name budget"
    ),
    "heartbeatd_budget_day_elapsed_ratio": Metric(
        "The share of the budget's planned runs of today, or of this month, that have come due.", "scope kind name budget"
    ),
    "heartbeatd_outbox_pending": Metric("Messages that are still to be delivered.", "channel"),
    "heartbeatd_outbox_dead": Metric("Messages that could not be delivered and are not sent any more.", "channel"),
    "heartbeatd_outbox_oldest_timestamp_seconds": Metric(
        "When the oldest undelivered message was written; absent while there is none.", "channel"
    ),
    "heartbeatd_db_bytes": Metric("Size of the database (db) and of its write-ahead log (wal).", "file"),
    "heartbeatd_reserve_bytes": Metric(
        "Disk space that is reserved for a full disk; 0 while it is released or cannot be reserved."
    ),
}


class Reading(dict[str, MetricFamily]):
    """The values that are read for one scrape, by the name of their metric."""

    def __missing__(self, name: str) -> MetricFamily:
        self[name] = new_family(name, READ[name])
        return self[name]

    def show(self, name: str, value: float | datetime | None, *labels: str) -> None:
        """Show a value of a metric, a time in seconds since 1970. None: it has no value now."""
        if value is not None:
            self[name].set_value(value.timestamp() if isinstance(value, datetime) else value, *labels)


def new_family(name: str, metric: Metric) -> MetricFamily:
    """The metric without series."""
    return MetricFamily("counter" if name.endswith("_total") else "gauge", name, metric.help, tuple(metric.labels.split()))

"""Defines the rules for Prometheus: alerts, service levels and their thresholds, and writes them as a rule file.

Expressions are written without a selector for the job, and with placeholders such as `$window` and `$above` for thresholds. Both
are inserted when the file is written. Two macros are expanded then:

- `last(GAUGE)` is the last value within the threshold `gap`, so one missed scrape neither fires nor resolves an alert.
- `new(COUNTER, $window)` is the number of events within the window. It also counts events from before the first scrape of a
  series, which `increase()` does not: the series did not exist a window ago, although its daemon was scraped then, or its process
  is younger than the window. A new Prometheus does not report old events.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from string import Template
from typing import Any

RUNBOOKS = "docs/runbooks.md"

DURATION = re.compile(r"(?:\d+(?:ms|[smhdwy]))+")
SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800, "y": 31536000}
METRIC = re.compile(r"(?<![\w:\"~=|])((?:job:)?heartbeatd_[\w:]+|process_\w+|ALERTS|up)\b(?:\{([^}]*)\})?")
NEW = re.compile(r"new\((\w+(?:\{[^}]*\})?), (\w+)\)")
LAST = re.compile(r"last\((\w+(?:\{[^}]*\})?)\)")

# Thresholds that several rules use. A rule has further ones, and the key `for`: how long it must hold before it fires.
SHARED = {
    "gap": ("90s", "the last value of a gauge is used for this time, so that one missed scrape has no effect"),
    "objective.on_time": ("0.99", "the share of slots that start on time"),
    "objective.ended_well": ("0.99", "the share of slots whose run ends well"),
    "objective.delivered": ("0.99", "the share of messages that are delivered in time"),
    "burn.bad": ("3", "the minimum number of bad events in the shorter alert window"),
}

# Windows and burn rates of the SRE workbook, chapter 5, table 5-8: 2 % of 30 days in 1 h, 5 % in 6 h, 10 % in 3 d.
SERVICE_LEVELS = {
    "on_time": ("heartbeatd_slots_on_time_total", 'result="late"', "Slots start late"),
    "ended_well": ("heartbeatd_slots_total", 'result="bad"', "Slots do not end well"),
    "delivered": ("heartbeatd_messages_on_time_total", 'result="late"', "Messages are delivered late or not at all"),
}
SHORT_WINDOWS = ("5m", "30m", "1h", "2h", "6h")
LONG_WINDOWS = ("1d", "3d", "30d")
# An alert that names the cause replaces the alert about the service level, also while the events of the cause are in the window.
CAUSES = "Heartbeat.*|SlotsLost|DispatchLate|DatabaseBusy|InternalErrors|ProviderFailing|.*BreakerOpen|BudgetExhausted|Outbox.*"
BURNS = (("fast", 14.4, "1h", "5m", "2m"), ("medium", 6.0, "6h", "30m", "15m"), ("slow", 1.0, "3d", "6h", "1h"))


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert rule.

    `wait` is its default `for`. `thresholds` maps the names in `expr` to a default and to what it means. `dashboard` is the uid
    of the dashboard that shows the problem: `agent` for rules about one entry, else `operations` or `fleet`.
    """

    name: str
    severity: str
    wait: str
    expr: str
    summary: str
    description: str
    dashboard: str = "operations"
    thresholds: Mapping[str, tuple[str, str]] | None = None


EXPLAIN = "Type `heartbeatd explain {{ $labels.name }}`."
HOST = "heartbeatd on {{ $labels.instance }}"
ENTRY = "{{ $labels.kind }} {{ $labels.name }}"

DAEMON = (
    Alert(
        "HeartbeatdDown", "critical", "3m",
        "up == 0 or absent(up)",
        "heartbeatd does not answer",
        "While the daemon is down, no agent and no job runs. Type `heartbeatd status` on its machine, which also works while the"
        " daemon is down.",
    ),
    Alert(
        "ShardMissing", "critical", "3m",
        "max by (job) (last(heartbeatd_shards)) - (count by (job) (count by (job, index) (last(heartbeatd_shard_info)"
        " and on (job, instance) up == 1 unless on (job, instance) last(heartbeatd_standby) == 1)) or 0 * max by (job)"
        " (last(heartbeatd_shards))) > 0",
        "{{ $value }} shards of {{ $labels.job }} have no daemon",
        "The agents and jobs of a shard without a daemon do not run. Type `heartbeatd status` on a machine with the config to see"
        " the state of each shard. If its daemon runs, add its address to the scrape config of Prometheus.",
        "fleet",
    ),
    Alert(
        "HeartbeatdStuck", "critical", "2m",
        "time() - last(heartbeatd_last_tick_timestamp_seconds) > $above and on (job, instance) up == 1"
        ' unless on (job, instance) ALERTS{alertname="DatabaseBusy"}',
        f"The main loop of {HOST} hangs",
        "Its last tick was {{ $value | humanizeDuration }} ago. Type `heartbeatd doctor`, and request /readyz for the reason.",
        thresholds={"above": ("120", "seconds since the last tick")},
    ),
    Alert(
        "HeartbeatdCrashLooping", "critical", "0s",
        "changes(process_start_time_seconds[$window]) >= $above",
        f"{HOST} restarts again and again",
        "It started {{ $value }} times within the window. Type `journalctl -u heartbeatd` to see why it ended, and"
        " `heartbeatd doctor` to check the installation.",
        thresholds={"above": ("4", "starts"), "window": ("1h", "the time in which the starts are counted")},
    ),
    Alert(
        "HeartbeatdCrashed", "warning", "0s",
        "increase(heartbeatd_crashes_total[$window]) > 0"
        ' unless on (job, instance) ALERTS{alertname="HeartbeatdCrashLooping"}',
        f"{HOST} was killed or crashed",
        "The daemon is running again. Interrupted runs were started again if they may be repeated. Type"
        " `heartbeatd runs --outcome abandoned` to list the others, and `journalctl -u heartbeatd` to see the reason.",
        thresholds={"window": ("30m", "how long the alert lasts")},
    ),
    Alert(
        "ConfigReloadFailed", "warning", "5m",
        "last(heartbeatd_config_last_reload_successful) == 0"
        " unless on (job, instance) last(heartbeatd_config_file_present) == 0",
        f"The config of {HOST} was rejected",
        "The saved file is not active. The previous config is still in use. Type `heartbeatd check` to see the line and the"
        " correction.",
    ),
    Alert(
        "ConfigFileMissing", "warning", "5m",
        "last(heartbeatd_config_file_present) == 0",
        f"The config file of {HOST} is missing",
        "The daemon keeps the config in memory, but it cannot start again without the file. Type `heartbeatd doctor`, and restore"
        " config.yaml from your backup.",
    ),
    Alert(
        "DatabaseBusy", "warning", "1m",
        "increase(heartbeatd_db_busy_total[$window]) > $above",
        f"{HOST} cannot write to its database",
        "Failed attempts within the window: {{ $value | humanize }}. Runs wait, and none is lost yet. Type `heartbeatd doctor` to"
        " check for a full disk or a program that has locked the database.",
        thresholds={"above": ("60", "failed attempts"), "window": ("5m", "the time in which these events are counted")},
    ),
    Alert(
        "InternalErrors", "warning", "0s",
        "new(heartbeatd_internal_errors_total, $window) > 0",
        f"{HOST} has internal errors in: {{{{ $labels.part }}}}",
        "Internal errors within the window: {{ $value | humanize }}. The daemon leaves out the work that fails, and continues"
        " with the rest. Type `journalctl -u heartbeatd | grep _broken` to see the errors, and `heartbeatd doctor` to check the"
        " database.",
        thresholds={"window": ("15m", "how long the alert lasts")},
    ),
    Alert(
        "QueueUnavailable", "critical", "1m",
        "last(heartbeatd_queue_available) == 0",
        f"{HOST} cannot use the queue of its workers",
        "No run starts while PostgreSQL cannot be reached. Nothing is lost: slots wait until their grace is over. Type"
        " `heartbeatd doctor` to see the reason, and check PostgreSQL.",
    ),
    Alert(
        "WorkersMissing", "critical", "2m",
        "last(heartbeatd_workers) == 0 unless on (job, instance) last(heartbeatd_queue_available) == 0",
        f"{HOST} has no worker",
        "All workers are down, or cut off from PostgreSQL. No run starts, and each ends as `timeout`. Type"
        " `heartbeatd worker` on a machine with the config to start a worker.",
    ),
    Alert(
        "WorkersBusy", "warning", "5m",
        "time() - last(heartbeatd_queue_oldest_timestamp_seconds) > $above"
        ' unless on (job, instance) ALERTS{alertname=~"QueueUnavailable|WorkersMissing"}',
        f"Runs of {HOST} wait for a worker",
        "The first run in the queue has waited for {{ $value | humanizeDuration }}, because all workers are busy. Type"
        " `heartbeatd runs --outcome running` to see the runs in progress. Start more workers, or raise `--concurrency` of"
        " `heartbeatd worker`.",
        thresholds={"above": ("60", "seconds that a run waits for a worker")},
    ),
    Alert(
        "NoReserve", "warning", "5m",
        "last(heartbeatd_reserve_bytes) == 0",
        f"{HOST} has no disk reserve",
        "Its disk is full or nearly full. Type `heartbeatd doctor` to see the free space. Then free space on that disk.",
    ),
    Alert(
        "ClockJumped", "info", "0s",
        "new(heartbeatd_clock_jumps_total, $window) > 0",
        "The clock of {{ $labels.instance }} jumped {{ $labels.direction }}",
        "The system clock was changed, or the machine was suspended. On a server, type `timedatectl`. Type"
        " `heartbeatd runs --outcome skipped` to see the slots that were skipped.",
        thresholds={"window": ("15m", "how long the alert lasts")},
    ),
    Alert(
        "DeadmanUnreachable", "warning", "5m",
        'sum without (result) (increase(heartbeatd_deadman_pings_total{result="failed"}[$window])) > 0'
        ' and on (job, instance) increase(heartbeatd_deadman_pings_total{result="delivered"}[$window]) == 0',
        f"Pings of {HOST} do not arrive",
        "The dead man's switch will report that the daemon is down, although it is running. Type `heartbeatd status` to see"
        " the reason, and correct `deadman.url` in config.yaml.",
        thresholds={"window": ("15m", "the time without a delivered ping")},
    ),
    Alert(
        "TokensRefused", "warning", "0s",
        "new(heartbeatd_http_tokens_refused_total, $window) > $above",
        f"{HOST} rejects tokens",
        "Requests with a wrong token: {{ $value | humanize }}. A program has an old token, or someone guesses tokens. Type"
        " `journalctl -u heartbeatd | grep token_refused`, and compare `server.tokens` in config.yaml.",
        thresholds={"above": ("10", "rejected requests"), "window": ("15m", "the time in which these events are counted")},
    ),
    Alert(
        "UnknownPaths", "info", "0s",
        'sum without (code, route) (new(heartbeatd_http_requests_total{route="unknown"}, $window)) > $above',
        f"{HOST} gets requests for paths that do not exist",
        "Requests: {{ $value | humanize }}. A program uses a wrong URL, or someone scans the port. Type"
        " `curl -H 'Authorization: Bearer TOKEN' URL/api/v1/openapi.json` to see the paths that exist.",
        thresholds={"above": ("20", "requests"), "window": ("15m", "the time in which these events are counted")},
    ),
    Alert(
        "EntriesWithoutSeries", "info", "15m",
        "last(heartbeatd_entries_without_series) > 0",
        f"Agents and jobs of {HOST} without metrics: {{{{ $value }}}}",
        "These agents and jobs run like all others, but the dashboards and alert rules do not include them. Raise"
        " `server.metrics_entries` in config.yaml, then type `heartbeatd reload`.",
    ),
    Alert(
        "DispatchLate", "warning", "15m",
        "time() - last(heartbeatd_oldest_due_timestamp_seconds) > $above"
        ' unless on (job, instance) ALERTS{alertname=~"DatabaseBusy|HeartbeatdStuck|NoReserve"}'
        ' unless on (job, instance) ALERTS{alertname="InternalErrors",part="due runs"}',
        f"Runs of {HOST} start late",
        "The oldest due entry has waited for {{ $value | humanizeDuration }}, because more runs are due than may run at the same"
        " time. Type `heartbeatd status` to see the runs in progress."
        " Raise `limits.concurrency`, or spread the slots with `stagger`.",
        thresholds={"above": ("60", "seconds that a due entry waits")},
    ),
)  # fmt: skip

ENTRIES = (
    Alert(
        "HeartbeatFailing", "warning", "1m",
        '(last(heartbeatd_consecutive_failures{kind="heartbeat"}) >= $heartbeats'
        ' or last(heartbeatd_consecutive_failures{kind="cron"}) >= $jobs'
        " or last(heartbeatd_consecutive_failures) > 0 and on (job, instance, kind, name)"
        " time() - last(heartbeatd_last_success_timestamp_seconds) > $age"
        " and on (job, instance, kind, name) last(heartbeatd_next_due_timestamp_seconds) - time() > $next)"
        ' and on (job, instance, kind, name) last(heartbeatd_entry_state{state=~"active|done"}) == 1',
        f"{ENTRY} fails",
        f"Consecutive failed runs, each after all of its attempts: {{{{ $value }}}}. {EXPLAIN}",
        "agent",
        {
            "heartbeats": ("3", "failed runs of an agent"),
            "jobs": ("1", "failed runs of a job"),
            "age": (
                "72000",
                "seconds since the last success: after this time, one failed run is enough, unless the next run is due soon",
            ),
            "next": ("3600", "seconds until the next run: a run within this time is due soon"),
        },
    ),
    Alert(
        "HeartbeatBlocked", "warning", "5m",
        "new(heartbeatd_skips_total"
        '{reason=~"checklist_unreadable|checklist_too_large|precheck_failed|prompt_too_large"}, $window) > 0'
        " unless on (job, instance, kind, name) time() - heartbeatd_last_success_timestamp_seconds < $cured",
        f"{ENTRY} cannot run: {{{{ $labels.reason }}}}",
        f"Its slots are skipped because of a problem in its folder or its config. {EXPLAIN} Correct the file that it names.",
        "agent",
        {
            "window": ("1h", "the time in which skipped slots are counted"),
            "cured": ("300", "seconds after a successful run during which the alert does not fire"),
        },
    ),
    Alert(
        "PrecheckFailing", "warning", "0s",
        "increase(heartbeatd_precheck_failures_total[$window]) >= $above"
        " unless on (job, instance, name)"
        ' increase(heartbeatd_skips_total{reason="precheck_failed"}[$window]) > 0',
        "The precheck of {{ $labels.name }} fails",
        "The agent is called nevertheless (`on_error: run`), so each slot costs tokens. Failed prechecks:"
        f" {{{{ $value | humanize }}}}. {EXPLAIN} Correct `precheck.command`.",
        "agent",
        {"above": ("3", "failed prechecks"), "window": ("6h", "the time in which these events are counted")},
    ),
    Alert(
        "SlotsLost", "warning", "2m",
        "(time() > last(heartbeatd_expected_by_timestamp_seconds) and on (job, instance, kind, name)"
        ' sum without (reason) (increase(heartbeatd_skips_total{reason=~"already_running|busy"}[$window])) > 0'
        " or sum without (reason)"
        ' (increase(heartbeatd_skips_total{reason=~"already_running|busy"}[$window])) >= $above'
        ' and sum without (reason) (increase(heartbeatd_skips_total{reason=~"already_running|busy"}[$window]))'
        " > $share * sum without (trigger, outcome) (increase(heartbeatd_runs_total[$window])))"
        " unless on (job, instance, kind, name) sum without (trigger, outcome)"
        ' (increase(heartbeatd_runs_total{outcome=~"failed|timeout|abandoned"}[$window])) > 0'
        ' unless on (job, instance) ALERTS{alertname=~"DispatchLate|DatabaseBusy|NoReserve|HeartbeatdStuck"}'
        " unless on (job, instance) last_over_time("  # the slots that such a problem lost stay in the window after its repair
        'ALERTS{alertname=~"DispatchLate|DatabaseBusy|NoReserve|HeartbeatdStuck",alertstate="firing"}[$window])',
        f"Slots of {ENTRY} are lost",
        "Its runs take longer than its interval, or another program has locked it. Slots are skipped because the previous run"
        f" is still in progress, or because of the lock. {EXPLAIN}"
        " Use a longer `interval`, a shorter `timeout` or a faster `model`.",
        "agent",
        {
            "above": ("4", "lost slots"),
            "share": ("1", "lost slots per run"),
            "window": ("6h", "the time in which these events are counted"),
        },
    ),
    Alert(
        "HeartbeatSilent", "warning", "2m",
        "time() > last(heartbeatd_expected_by_timestamp_seconds)"
        " unless on (job, instance, kind, name)"
        ' ALERTS{alertname=~"HeartbeatFailing|HeartbeatBlocked"}'
        ' unless on (job, instance) ALERTS{alertname=~"DispatchLate|DatabaseBusy|NoReserve|HeartbeatdStuck"}'
        ' unless on (job, instance) ALERTS{alertname="InternalErrors",part="due runs"}'
        " unless on (job, instance, kind, name)"
        " sum without (reason)"
        ' (increase(heartbeatd_skips_total{reason=~"breaker_open|budget|already_running|busy"}[$window])) > 0',
        f"{ENTRY} has not run successfully in time",
        f"A successful run should have ended by now, but none did. {EXPLAIN} The command shows why each slot did not run, for"
        " example because of a missing or empty checklist, or because a result never arrived.",
        "agent",
        {
            "window": (
                "6h",
                "skips for `breaker_open`, `budget`, `already_running` or `busy` within this time suppress this alert",
            )
        },
    ),
    Alert(
        "PausedForLong", "warning", "0s",
        "time() - last(heartbeatd_paused_since_timestamp_seconds) > $above",
        f"{ENTRY} has been paused for {{{{ $value | humanizeDuration }}}}",
        "The pause has no end, so it may have been forgotten. Type `heartbeatd resume {{ $labels.name }}`, or set"
        " `enabled: false` in config.yaml to keep it disabled.",
        "agent",
        {"above": ("259200", "seconds since the pause began")},
    ),
    Alert(
        "AlertStorm", "warning", "0s",
        'sum without (trigger, outcome) (increase(heartbeatd_runs_total{outcome="alert"}[$window]))'
        ' - (sum without (reason) (increase(heartbeatd_suppressions_total{reason=~"duplicate|not_shown|muted"}[$window]))'
        " or sum without (trigger, outcome) (heartbeatd_runs_total * 0)) > $above",
        f"{ENTRY} sends too many alerts",
        f"Alerts within the window: {{{{ $value | humanize }}}}. {EXPLAIN} Type `heartbeatd mute {{{{ $labels.name }}}}` until"
        " its checklist or prompt is corrected.",
        "agent",
        {"above": ("12", "alerts that were sent"), "window": ("1h", "the time in which these events are counted")},
    ),
    Alert(
        "WakesRejected", "warning", "0s",
        'sum without (result) (new(heartbeatd_wakes_total{result="rejected"}, $window)) > 0',
        "Wakes for {{ $labels.name }} from {{ $labels.source }} are rejected",
        "Rejected wakes: {{ $value | humanize }}. Their texts do not reach the agent. Type `journalctl -u heartbeatd | grep wake`"
        " to see the sender and the reason: too many waiting senders, an agent that is disabled or not in the config, or an agent"
        " that wakes itself.",
        "agent",
        {"window": ("1h", "how long the alert lasts")},
    ),
    Alert(
        "WakeFlood", "warning", "0s",
        'sum without (result) (new(heartbeatd_wakes_total{result=~"joined|deferred"}, $window)) > $above',
        "Many wakes for {{ $labels.name }} from {{ $labels.source }} start no run of their own, or start it late",
        "Wakes that were added to another run or wake, or delayed: {{ $value | humanize }}. Type"
        " `heartbeatd explain {{ $labels.name }}`. Configure the sender to merge its messages, or raise `limits.wake_flood`.",
        "agent",
        {"above": ("30", "joined and deferred wakes"), "window": ("1h", "the time in which these events are counted")},
    ),
    Alert(
        "WakesExpired", "warning", "0s",
        'sum without (result) (new(heartbeatd_wakes_total{result="expired"}, $window)) > 0'
        ' unless on (job, instance, name) max_over_time(heartbeatd_paused_since_timestamp_seconds{kind="heartbeat"}[$window])',
        "Wakes for {{ $labels.name }} expired before the agent ran",
        "Wakes from {{ $labels.source }} that waited longer than `limits.wake_keep`: {{ $value | humanize }}. Type"
        " `heartbeatd explain {{ $labels.name }}` to see the reason.",
        "agent",
        {"window": ("1h", "how long the alert lasts")},
    ),
    Alert(
        "ConditionCritical", "warning", "1h",
        'sum without (severity, acknowledged) (last(heartbeatd_conditions_open{severity="critical",acknowledged="false"})) > 0',
        "{{ $labels.name }} has critical conditions",
        "Critical conditions that the agent has reported: {{ $value }}. Type `heartbeatd conditions {{ $labels.name }}`.",
        "agent",
    ),
)  # fmt: skip

DELIVERY = (
    Alert(
        "OutboxStuck", "warning", "5m",
        "time() - last(heartbeatd_outbox_oldest_timestamp_seconds) > $above"
        ' unless on (job, instance) ALERTS{alertname="InternalErrors",part="messages"}',
        "Messages to {{ $labels.channel }} are not delivered",
        "The oldest message has waited for {{ $value | humanizeDuration }}. Type `heartbeatd ping {{ $labels.channel }}` to see"
        " the response of the channel. `heartbeatd outbox` lists the messages.",
        thresholds={"above": ("3600", "seconds that a message waits")},
    ),
    Alert(
        "OutboxDead", "warning", "0s",
        "last(heartbeatd_outbox_dead) > 0",
        "Messages to {{ $labels.channel }} became dead letters",
        "Messages that are not sent any more: {{ $value }}. Type `heartbeatd outbox`. After the repair, type"
        " `heartbeatd outbox retry` to send them, or `heartbeatd outbox drop` to end this alert.",
    ),
)  # fmt: skip

MODELS = (
    Alert(
        "BreakerOpen", "warning", "10m",
        "last(heartbeatd_breaker_open) == 1",
        "No calls are made to {{ $labels.provider }}",
        "The provider rejected the key or the account, or asked for a pause. Type `heartbeatd status` to see its error message."
        " After you have corrected the key, type `heartbeatd reload`.",
        "fleet",
    ),
    Alert(
        "ModelBreakerOpen", "warning", "10m",
        "last(heartbeatd_breaker_model_open) == 1",
        "No calls are made for {{ $labels.model }} at {{ $labels.provider }}",
        "The provider does not know the model, or does not allow it. Type `heartbeatd status` to see the error. Correct"
        " `model` in config.yaml, then type `heartbeatd reload`.",
        "fleet",
    ),
    Alert(
        "ProviderFailing", "warning", "2m",
        'sum without (model, result) (increase(heartbeatd_provider_requests_total{result!="ok"}[$window])) >= $above'
        ' and sum without (model, result) (rate(heartbeatd_provider_requests_total{result!="ok"}[$window]))'
        " > $share * sum without (model, result) (rate(heartbeatd_provider_requests_total[$window]))"
        ' and sum without (model, result) (rate(heartbeatd_provider_requests_total{result!="ok"}[$long]))'
        " > $share * sum without (model, result) (rate(heartbeatd_provider_requests_total[$long]))"
        " unless on (job, instance, provider) heartbeatd_breaker_open == 1",
        "Calls to {{ $labels.provider }} fail",
        "Failed calls within the window: {{ $value | humanize }}. Type `heartbeatd status` to see the last error, and check the"
        " status page of the provider.",
        "fleet",
        {
            "above": ("10", "failed calls"),
            "share": ("0.5", "the share of failed calls"),
            "window": ("10m", "the shorter of two windows"),
            "long": ("1h", "the longer of two windows"),
        },
    ),
    Alert(
        "ModelMismatch", "warning", "0s",
        "new(heartbeatd_model_mismatches_total, $window) > 0",
        f"{ENTRY} gets answers from another model",
        f"Answers from a model other than the requested one: {{{{ $value | humanize }}}}. {EXPLAIN} Correct `model`, or ask the"
        " gateway why it replaces the model.",
        "agent",
        {"window": ("6h", "how long the alert lasts")},
    ),
    Alert(
        "UnpricedTokens", "warning", "0s",
        "new(heartbeatd_unpriced_tokens_total, $window) > 0",
        "{{ $labels.model }} has no price",
        "Tokens with an unknown cost: {{ $value | humanize }}. They are missing in reports. Add the model to `prices` in"
        " config.yaml, then type `heartbeatd reload`.",
        "fleet",
        {"window": ("1h", "how long the alert lasts")},
    ),
    Alert(
        "BudgetExhausted", "warning", "1m",
        "last(heartbeatd_budget_exhausted) == 1",
        "The budget {{ $labels.budget }} of {{ if $labels.name }}{{ $labels.name }}{{ else }}all entries{{ end }} is used up",
        "Runs are skipped until the day ends. Type `heartbeatd explain` to see the slots, and"
        " `heartbeatd report` to see the cost of each entry. Raise the budget, or use a cheaper `model` or a longer `interval`.",
        "fleet",
    ),
    Alert(
        "BudgetNearlyUsed", "warning", "5m",
        "last(heartbeatd_budget_used_ratio) > $above"
        " and last(heartbeatd_budget_used_ratio) > $pace * last(heartbeatd_budget_day_elapsed_ratio)"
        " unless last(heartbeatd_budget_exhausted) == 1",
        "The budget {{ $labels.budget }} of {{ if $labels.name }}{{ $labels.name }}{{ else }}all entries{{ end }} will not last",
        "{{ $value | humanizePercentage }} of today's budget is used, and it is used faster than the day's planned runs come due."
        " Type `heartbeatd report` to see the cost of each entry.",
        "fleet",
        {
            "above": ("0.8", "the share of the budget"),
            "pace": ("1.2", "the used share of the budget, divided by the elapsed share of the day's planned runs"),
        },
    ),
)  # fmt: skip

WATCHDOG = Alert(
    "Watchdog", "none", "0s", "vector(1)",
    "Alerts reach their receiver",
    "This alert always fires. Send it to a dead man's switch: if it does not arrive there, Prometheus or Alertmanager is down."
    " Type `amtool alert` on the machine of Alertmanager.",
)  # fmt: skip

GROUPS = {
    "heartbeatd-daemon": DAEMON,
    "heartbeatd-entries": ENTRIES,
    "heartbeatd-delivery": DELIVERY,
    "heartbeatd-models": MODELS,
    "heartbeatd-watchdog": (WATCHDOG,),
}


def default_thresholds() -> dict[str, tuple[str, str]]:
    """Every threshold by its name, such as `HeartbeatdDown.for`, with its default and its meaning."""
    found = dict(SHARED)
    for alert in (alert for alerts in GROUPS.values() for alert in alerts):
        found[f"{alert.name}.for"] = (alert.wait, "how long the expression must be true before the alert fires")
        found |= {f"{alert.name}.{key}": value for key, value in (alert.thresholds or {}).items()}
    return found


def check_threshold(name: str, value: str) -> str | None:
    """Returns the problem with a threshold from the user as a sentence, or None if it is valid."""
    defaults = default_thresholds()
    if name not in defaults:
        return f"{name} is not a threshold; `heartbeatd docs runbooks` lists them"
    if DURATION.fullmatch(defaults[name][0]):
        return None if DURATION.fullmatch(value) else f"{name}: {value} is not a duration; write it as {defaults[name][0]}"
    if not re.fullmatch(r"\d+(\.\d+)?", value):
        return f"{name}: {value} is not a number; write it as {defaults[name][0]}"
    if name.startswith("objective.") and float(value) >= 1:
        return f"{name}: an objective is a share below 1; write it as {defaults[name][0]}"
    return None


@dataclass(frozen=True, slots=True)
class RuleSettings:
    """The settings of a rule file: the job label, where the links lead, and thresholds that differ from the defaults."""

    job: str = "heartbeatd"
    runbook_url: str = RUNBOOKS
    dashboard_url: str = "http://localhost:3000"
    thresholds: Mapping[str, str] | None = None

    def value(self, name: str) -> str:
        return (self.thresholds or {}).get(name) or default_thresholds()[name][0]


def rule_groups(settings: RuleSettings) -> list[dict[str, Any]]:
    """The groups of a rule file, as plain data."""
    groups: list[dict[str, Any]] = [
        {"name": name, "rules": [_alert_rule(alert, settings) for alert in alerts]} for name, alerts in GROUPS.items()
    ]
    return [
        *groups,
        {"name": "heartbeatd-service-levels", "rules": list(_level_rules(settings, SHORT_WINDOWS))},
        {"name": "heartbeatd-service-levels-long", "interval": "5m", "rules": list(_level_rules(settings, LONG_WINDOWS))},
        {"name": "heartbeatd-burn-rates", "rules": [*_objectives(settings), *_burn_alerts(settings)]},
    ]


def _alert_rule(alert: Alert, settings: RuleSettings) -> dict[str, Any]:
    names = {key: settings.value(f"{alert.name}.{key}") for key in (alert.thresholds or {})}
    rule = {"alert": alert.name, "expr": _expression(alert.expr, settings, names)}
    wait = settings.value(f"{alert.name}.for")
    return {
        **rule,
        **({"for": wait} if _seconds(wait) else {}),
        "labels": {"severity": alert.severity},
        "annotations": {
            "summary": alert.summary,
            "description": alert.description,
            "runbook_url": f"{settings.runbook_url}#{alert.name.lower()}",
            "dashboard_url": _dashboard_link(alert, settings),
        },
    }


def _dashboard_link(alert: Alert, settings: RuleSettings) -> str:
    variables = f"var-job={settings.job}"
    if "$labels.instance" in alert.summary or alert.dashboard == "operations":
        variables += "&var-instance={{ $labels.instance }}"
    if alert.dashboard == "agent":
        kind = "{{ $labels.kind }}" if "$labels.kind" in alert.summary else "heartbeat"
        variables += f"&var-kind={kind}&var-name={{{{ $labels.name }}}}"
    return f"{settings.dashboard_url.rstrip('/')}/d/heartbeatd-{alert.dashboard}?{variables}"


def _level_rules(settings: RuleSettings, windows: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    for level, (counter, bad, _) in SERVICE_LEVELS.items():
        for window in windows:
            every = f"sum by (job) (rate({counter}[{window}]))"
            expr = f"sum by (job) (rate({counter}{{{bad}}}[{window}])) / ({every} > 0)"
            yield {
                "record": f"job:heartbeatd_slo_errors:ratio_rate{window}",
                "expr": _expression(expr, settings, {}),
                "labels": {"slo": level},
            }
        if windows is SHORT_WINDOWS:
            for window in ("1h", "6h"):
                yield {
                    "record": f"job:heartbeatd_slo_bad_events:increase{window}",
                    "expr": _expression(f"sum by (job) (increase({counter}{{{bad}}}[{window}]))", settings, {}),
                    "labels": {"slo": level},
                }
    if windows is LONG_WINDOWS:
        cost = "sum by (job) (increase(heartbeatd_cost_usd_total[30d]))"
        yield {"record": "job:heartbeatd_cost_usd:increase30d", "expr": _expression(cost, settings, {})}
        inside = "1 - max by (job) (avg_over_time(heartbeatd_budget_exhausted[30d]))"
        yield {"record": "job:heartbeatd_within_budget:ratio30d", "expr": _expression(inside, settings, {})}


def _objectives(settings: RuleSettings) -> Iterator[dict[str, Any]]:
    for level in SERVICE_LEVELS:
        expr = f"0 * max by (job) (up) + {settings.value(f'objective.{level}')}"
        yield {"record": "job:heartbeatd_slo_objective", "expr": _expression(expr, settings, {}), "labels": {"slo": level}}


def _burn_alerts(settings: RuleSettings) -> Iterator[dict[str, Any]]:
    """The multiwindow, multi-burn-rate alerts of the SRE workbook. A few events do not count: one slot in six is 17 %."""
    for burn, rate, long, short, wait in BURNS:
        events = "1h" if burn == "fast" else "6h"
        tests = [
            f"job:heartbeatd_slo_errors:ratio_rate{window} > {rate} * (1 - job:heartbeatd_slo_objective)"
            for window in (long, short)
        ]
        causes = f'last_over_time(ALERTS{{alertname=~"{CAUSES}",alertstate="firing"}}[{short}])'
        enough = f"job:heartbeatd_slo_bad_events:increase{events} >= {settings.value('burn.bad')}"
        expr = f"{tests[0]} and {tests[1]} and {enough} unless on (job) {causes}"
        yield {
            "alert": "ServiceLevelBurns",
            "expr": _expression(expr, settings, {}),
            "for": wait,
            "labels": {"severity": "warning", "burn": burn},
            "annotations": {
                "summary": f"The service level {{{{ $labels.slo }}}} of {settings.job} uses up its error budget too fast",
                "description": f"{{{{ $value | humanizePercentage }}}} of the events in {long} were bad, more than {rate:g} times"
                " the share that the objective allows. Type `heartbeatd report` and `heartbeatd explain`.",
                "runbook_url": f"{settings.runbook_url}#servicelevelburns",
                "dashboard_url": f"{settings.dashboard_url.rstrip('/')}/d/heartbeatd-fleet?var-job={settings.job}",
            },
        }  # fmt: skip


def _expression(expr: str, settings: RuleSettings, names: Mapping[str, str]) -> str:
    """An expression with its thresholds, with `new(...)` written out, and with the job in each selector."""
    text = Template(expr).substitute(names)
    text = NEW.sub(lambda found: _new_events(found[1], found[2]), text)
    text = LAST.sub(lambda found: f"last_over_time({found[1]}[{settings.value('gap')}])", text)

    def select(found: re.Match[str]) -> str:
        more = f",{found[2]}" if found[2] else ""
        return f"{found[1]}{{job={json.dumps(settings.job)}{more}}}"

    return METRIC.sub(select, text)


def _new_events(counter: str, window: str) -> str:
    known = f"up offset {window} == 1 or time() - process_start_time_seconds < {_seconds(window):g}"
    return f"({counter} unless {counter} offset {window} and on (job, instance) ({known}) or increase({counter}[{window}]))"


def _seconds(duration: str) -> float:
    return sum(int(count) * SECONDS[unit] for count, unit in re.findall(r"(\d+)(ms|[smhdwy])", duration))


def rule_file(settings: RuleSettings) -> str:
    """The rule file of Prometheus, as YAML."""
    head = (
        "# Rules of heartbeatd for Prometheus, written by `heartbeatd files grafana`. Its options set the job, links and the\n"
        "# thresholds. critical: no agent runs. warning: something is lost or will be lost. info: not urgent.\n\n"
    )
    return head + as_yaml({"groups": rule_groups(settings)})


def prometheus_rule(settings: RuleSettings) -> str:
    """The same rules as a PrometheusRule of the Prometheus Operator (monitoring.coreos.com/v1)."""
    return as_yaml(
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": {"name": settings.job, "labels": {"app.kubernetes.io/name": "heartbeatd"}},
            "spec": {"groups": rule_groups(settings)},
        }
    )


def service_monitor(settings: RuleSettings) -> str:
    """The scrape config as a ServiceMonitor. The job label comes from the label of the Service, as `jobLabel` says."""
    return as_yaml(
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "ServiceMonitor",
            "metadata": {"name": settings.job, "labels": {"app.kubernetes.io/name": "heartbeatd"}},
            "spec": {
                "jobLabel": "heartbeatd-job",
                "selector": {"matchLabels": {"heartbeatd-job": settings.job}},
                "endpoints": [{"port": "http", "path": "/metrics", "interval": "15s", "scrapeTimeout": "10s"}],
            },
        }
    )


def as_yaml(value: Any, indent: str = "") -> str:
    """Maps, lists and texts as YAML. Texts are quoted as in JSON, which YAML reads, unless they are plain words."""
    if isinstance(value, Mapping):
        return "".join(f"{indent}{key}:{_nested(item, indent + '  ')}" for key, item in value.items())
    return "".join(f"{indent}- {as_yaml(item, indent + '  ').lstrip()}" if isinstance(item, Mapping) else
                   f"{indent}- {_scalar(item)}\n" for item in value)  # fmt: skip


def _nested(item: Any, indent: str) -> str:
    return f"\n{as_yaml(item, indent)}" if isinstance(item, Mapping | list) else f" {_scalar(item)}\n"


def _scalar(item: Any) -> str:
    text = str(item)
    return (
        text
        if re.fullmatch(r"[A-Za-z/][\w./:-]*[\w/]|\d+[smhd]", text) and text not in {"true", "false", "null"}
        else json.dumps(text)
    )

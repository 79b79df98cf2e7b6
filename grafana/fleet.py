"""Defines the queries and texts of the Fleet dashboard. `python grafana/fleet.py` writes dashboards/fleet.json."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from panels import Json, Panel, Row, laid_out, variable

TARGET = Path(__file__).with_name("dashboards") / "fleet.json"

INSTANCE = 'instance=~"$instance"'
NAMED = f'{INSTANCE},name=~"$name"'
KIND = f'{INSTANCE},kind=~"$kind"'
ENTRY = f'{KIND},name=~"$name"'


def gauge(name: str, selector: str) -> str:
    """A gauge with a label selector."""
    return f"heartbeatd_{name}{{{selector}}}"


def increase(name: str, selector: str, by: str = "") -> str:
    """The increase of a counter per step, summed by these labels."""
    return f"sum by ({by}) (increase(heartbeatd_{name}{{{selector}}}[$__rate_interval]))"


def quantile(level: float, name: str) -> str:
    """A quantile (0 to 1) of a histogram, by kind."""
    return f"histogram_quantile({level}, sum by (kind, le) (rate(heartbeatd_{name}_bucket{{{KIND}}}[$__rate_interval])))"


def column(series: str) -> str:
    """One value per entry, without the metric name. With different names, the table could not merge its columns."""
    return f"max by (instance, kind, name) ({series})"


def stat(title: str, description: str, query: str, legend: str = "", **more: Any) -> Panel:
    """A panel with one number, or one for each legend."""
    return Panel(title, description, {legend: query}, kind="stat", **({"width": 4, "height": 4} | more))


OVERVIEW = Row(
    "At a glance",
    (
        stat(
            "How long ago was the last tick?",
            "Age of the last tick, which is one iteration of the daemon's main loop. There is a tick at least every 30 "
            "seconds. Above 90 s, the main loop hangs or cannot write to its database: look at `/readyz` and the log. No value "
            "means that the daemon is down or that Prometheus cannot reach it.",
            f"time() - {gauge('last_tick_timestamp_seconds', INSTANCE)}",
            "{{instance}}",
            unit="s",
            thresholds=(60, 90),
            no_value="down",
        ),
        stat(
            "What share of runs succeeded?",
            "Share of runs that ended `ok` or `alert`, over the displayed time range. Skipped slots do not count. "
            "Runs whose agent answers later count only when their result arrives. If the share falls, look at the failing "
            "entries further down.",
            f'sum(increase(heartbeatd_runs_total{{{ENTRY},outcome=~"ok|alert"}}[$__range])) / '
            f'sum(increase(heartbeatd_runs_total{{{ENTRY},outcome!="async"}}[$__range]))',
            unit="percentunit",
            no_value="no runs",
        ),
        stat(
            "How many entries are failing?",
            "Agents and jobs whose last run failed. `heartbeatd runs NAME` shows the error.",
            f"count({gauge('consecutive_failures', ENTRY)} > 0) or vector(0)",
            thresholds=(1, 3),
        ),
        stat(
            "How many agents have an alert?",
            "Agents whose last successful run was an alert. `heartbeatd runs NAME --outcome alert` lists their alerts.",
            f"sum({gauge('alerting', ENTRY)})",
            thresholds=(1,),
        ),
        stat(
            "How many entries are paused or disabled?",
            "Entries that a user paused, or that the config disables. A forgotten pause is visible here: "
            "`heartbeatd resume NAME`.",
            f'sum by (state) (heartbeatd_entry_state{{{ENTRY},state=~"paused|disabled"}})',
            "{{state}}",
        ),
        stat(
            "Is the saved config active?",
            "`no` means that the saved file was rejected and the previous config is still active. `heartbeatd check` names "
            "line and column.",
            gauge("config_last_reload_successful", INSTANCE),
            "{{instance}}",
            value_names={0: "no", 1: "yes"},
        ),
    ),
)

RUNS = Row(
    "Runs, alerts and skips",
    (
        Panel(
            "How do runs end?",
            "Runs by outcome, counted when they end. `alert` is an answer that reports something. `failed`, `timeout` and "
            "`abandoned` are failures after all attempts. Filter by name to find their entries.",
            {"{{outcome}}": increase("runs_total", ENTRY, "outcome")},
            bars=True,
        ),
        Panel(
            "Which agents raised alerts?",
            "Alerts by agent, whether sent or suppressed. If an agent raises an alert in every run, its checklist is too "
            "broad, or the reported problem has not been fixed.",
            {"{{name}}": increase("runs_total", f'{ENTRY},outcome="alert"', "name")},
            bars=True,
            no_value="no agents",
        ),
        Panel(
            "Which conditions are open?",
            "Conditions that agents have reported and that are not over, by severity, and the ten agents with the most "
            "open conditions. `heartbeatd conditions NAME` shows their texts. If a condition stays open although it is over, "
            "`heartbeatd conditions close KEY` closes it.",
            {
                "all {{severity}}": f"sum by (severity) ({gauge('conditions_open', NAMED)})",
                "{{name}}": f"topk(10, sum by (name) ({gauge('conditions_open', NAMED)}))",
            },
            no_value="no agents",
        ),
        Panel(
            "Which results were suppressed, and why?",
            "Runs without a message, by reason. `heartbeat_ok`, `short_remainder` and `empty` mean that there was nothing to "
            "report. `duplicate` is an alert that was sent before. `not_shown` means that such messages are turned "
            "off in the config. `heartbeatd show RUN` shows the text of each run.",
            {"{{reason}}": increase("suppressions_total", ENTRY, "reason")},
            bars=True,
        ),
        Panel(
            "Which answers were truncated, and which prechecks failed?",
            "Answers that reached a token limit: raise `max_output_tokens`, or shorten the checklist. Failed prechecks: with "
            "`on_error: run`, the agent is still called in every run. `heartbeatd show RUN` shows details.",
            {
                "{{name}} truncated": increase("truncated_total", ENTRY, "name"),
                "{{name}} precheck": increase("precheck_failures_total", f'{INSTANCE},name=~"$name"', "name"),
            },
            bars=True,
            no_value="no agents",
        ),
        Panel(
            "Which slots were skipped, and why?",
            "Slots without a run, by reason. `active_hours` and `paused` are intended. `missed` means that the daemon was "
            "down or `limits.concurrency` was reached. `already_running` means that runs take longer than their "
            "interval. Reasons with `checklist` point to the agent's folder.",
            {"{{reason}}": increase("skips_total", ENTRY, "reason")},
            bars=True,
        ),
        Panel(
            "How did wakes end?",
            "Wakes by source and result, and the number that wait. `deferred` wakes reached the agent later than requested. "
            "`expired` wakes never did: raise `limits.wake_keep`, or find out why the agent did not run. `rejected` wakes "
            "came from the agent's own run, or too many wakes were waiting.",
            {"{{source}} {{result}}": increase("wakes_total", NAMED, "source, result")},
            {"waiting": f"sum({gauge('wakes_pending', NAMED)})"},
            bars=True,
            no_value="no agents",
        ),
        Panel(
            "How long do runs take?",
            "Median and 99th percentile of the run time, by kind. If they are close to an entry's `timeout`, its runs will "
            "soon time out.",
            {
                "{{kind}} median": quantile(0.5, "run_duration_seconds"),
                "{{kind}} p99": quantile(0.99, "run_duration_seconds"),
            },
            unit="s",
        ),
    ),
)

NEXT = Row(
    "Schedule and delays",
    (
        Panel(
            "Which runs are next?",
            "Every entry with its next due time, the earliest first. Without a time, the entry is paused, disabled or done, "
            "or only wakes start it. With a time in the past, the entry is still running, or "
            "`limits.concurrency` is reached.",
            {
                "Next due": column(f"{gauge('next_due_timestamp_seconds', ENTRY)} * 1000"),
                "Interval": column(gauge("interval_seconds", ENTRY)),
                "Last run": column(f"{gauge('last_run_timestamp_seconds', ENTRY)} * 1000"),
                "Last success": column(f"{gauge('last_success_timestamp_seconds', ENTRY)} * 1000"),
                "Failures in a row": column(gauge("consecutive_failures", ENTRY)),
            },
            kind="table",
            width=24,
            height=10,
            units={
                "Next due": "dateTimeFromNow",
                "Interval": "s",
                "Last run": "dateTimeFromNow",
                "Last success": "dateTimeFromNow",
            },
        ),
        Panel(
            "How late do slots start?",
            "Time from the due time of a slot to its start, or to the moment when it was recorded as `missed`. Milliseconds "
            "are normal. Seconds mean that `limits.concurrency` was reached: raise it, or spread the slots with `stagger`. "
            "After a restart, late starts are normal.",
            {
                "{{kind}} median": quantile(0.5, "dispatch_lateness_seconds"),
                "{{kind}} p99": quantile(0.99, "dispatch_lateness_seconds"),
            },
            unit="s",
            width=8,
        ),
        Panel(
            "How long has the oldest due entry waited?",
            "The time for which the oldest due entry has waited for its start. No value means that no entry waits.",
            {"{{instance}}": f"time() - {gauge('oldest_due_timestamp_seconds', INSTANCE)}"},
            unit="s",
            width=8,
            no_value="nothing waits",
        ),
        Panel(
            "Is there room for more runs?",
            "Runs in progress, their limit, and the number of due entries that wait. If the limit is reached while entries "
            "wait, raise `limits.concurrency`.",
            {
                "running {{kind}}": f"sum by (kind) ({gauge('running', KIND)})",
                "limit": f"sum({gauge('concurrency_limit', INSTANCE)})",
                "due": f"sum({gauge('due_entries', INSTANCE)})",
            },
            width=8,
        ),
    ),
)

FAILURES = Row(
    "Failures",
    (
        Panel(
            "Which entries fail, and how often in a row?",
            "The ten entries with the most consecutive failures. 0 means no failure. Restarts do not reset the number. "
            "`heartbeatd runs NAME --outcome failed` shows the errors.",
            {"{{kind}}/{{name}}": f"topk(10, {gauge('consecutive_failures', ENTRY)})"},
        ),
        Panel(
            "Which agents sent nothing, and how often in a row?",
            "The ten agents with the most consecutive runs without a message. This is normal if nothing is wrong. If an agent "
            "should have sent an alert, `heartbeatd show RUN` shows its answer.",
            {"{{name}}": f"""topk(10, {gauge("consecutive_quiet", f'{ENTRY},kind="heartbeat"')})"""},
            no_value="no agents",
        ),
        Panel(
            "Which work was retried, recovered or discarded?",
            "Retried attempts, runs that a crashed daemon left open, and results that came too late. Retries are an early "
            "sign of an unreliable provider or command.",
            {
                "retries {{kind}}": increase("retries_total", ENTRY, "kind"),
                "orphans {{kind}}": increase("orphans_recovered_total", KIND, "kind"),
                "stale results": increase("stale_results_total", INSTANCE),
            },
            bars=True,
        ),
        Panel(
            "Which errors do providers return?",
            "Errors of model providers by class, and open circuit breakers of a provider or of one model. No call is made "
            "while a circuit breaker is open. `auth`, `payment` and `not_found` need your action: check the key, the account "
            "or the name of the model.",
            {"{{provider}} {{class}}": increase("provider_errors_total", INSTANCE, "provider, class")},
            {
                "{{provider}} breaker open": f"max by (provider) ({gauge('breaker_open', INSTANCE)})",
                "{{provider}} {{model}} breaker open": f"max by (provider, model) ({gauge('breaker_model_open', INSTANCE)})",
            },
            bars=True,
            no_value="no model calls",
        ),
    ),
)

DELIVERY = Row(
    "Delivery",
    (
        Panel(
            "How many messages are pending or dead?",
            "Messages by channel that are not sent yet (pending), and messages that are not sent any more, because "
            "their last attempt failed (dead). Restarts do not reset the numbers.",
            {
                "{{channel}} pending": f"sum by (channel) ({gauge('outbox_pending', INSTANCE)})",
                "{{channel}} dead": f"sum by (channel) ({gauge('outbox_dead', INSTANCE)})",
            },
            width=8,
        ),
        Panel(
            "How old is the oldest undelivered message?",
            "Age by channel. No value means that all messages are delivered. A message is retried for one day.",
            {"{{channel}}": f"time() - min by (channel) ({gauge('outbox_oldest_timestamp_seconds', INSTANCE)})"},
            unit="s",
            width=8,
            no_value="all delivered",
        ),
        Panel(
            "How did deliveries end?",
            "Deliveries by channel and result. `retried` messages will be sent again. `uncertain` messages may have arrived. "
            "`dead` messages are not sent any more.",
            {"{{channel}} {{result}}": increase("deliveries_total", INSTANCE, "channel, result")},
            bars=True,
            width=8,
        ),
    ),
)

MONEY = Row(
    "Tokens and money",
    (
        Panel(
            "How many tokens are used?",
            "Tokens by type and requested model. A model that uses unexpectedly many tokens is visible here first.",
            {"{{model}} {{type}}": increase("tokens_total", ENTRY, "model, type")},
            bars=True,
            no_value="no model calls",
        ),
        Panel(
            "How much does each entry cost?",
            "USD by entry, at the prices in the config. The cost of failed runs is included.",
            {"{{kind}}/{{name}}": increase("cost_usd_total", ENTRY, "kind, name")},
            unit="currencyUSD",
            bars=True,
            no_value="no model calls",
        ),
        Panel(
            "How much of each budget is used?",
            "Fraction of each daily budget that has been used. Runs are skipped with the reason `budget` when their maximum cost "
            "exceeds the remaining budget.",
            {"{{scope}} {{name}} {{budget}}": f"max by (scope, name, budget) ({gauge('budget_used_ratio', INSTANCE)})"},
            unit="percentunit",
            no_value="no budget is set",
        ),
        Panel(
            "Which models have no price, or differ from the requested one?",
            "Tokens of models without a price in the config, so their cost is unknown: add the model to `prices`. Mismatches "
            "are answers by a different model than the requested one.",
            {
                "{{model}} unpriced tokens": increase("unpriced_tokens_total", INSTANCE, "model"),
                "{{name}} mismatches": increase("model_mismatches_total", ENTRY, "name"),
            },
            bars=True,
            no_value="no model calls",
        ),
    ),
)

DAEMON = Row(
    "The daemon",
    (
        Panel(
            "How large is the database?",
            "`db` is the database. `wal` is its write-ahead log. If the log stays above 4 MiB, another program keeps a read "
            "transaction open.",
            {"{{file}}": f"sum by (file) ({gauge('db_bytes', INSTANCE)})"},
            unit="bytes",
            width=8,
        ),
        Panel(
            "Are there problems with the database, the clock or the pings?",
            "Ticks that could not write to the database (another program has locked it, or the disk is full), changes of the "
            "system clock (or a suspended machine), skipped slots that became due again after such a change, and failed pings "
            "to the dead man's switch.",
            {
                "database busy": increase("db_busy_total", INSTANCE),
                "clock {{direction}}": increase("clock_jumps_total", INSTANCE, "direction"),
                "slots taken back": increase("skips_taken_back_total", INSTANCE),
                "pings lost": increase("deadman_pings_total", f'{INSTANCE},result="failed"'),
            },
            bars=True,
            width=8,
        ),
        stat(
            "Which version is running?",
            "The version of heartbeatd, and of the time zone data that its schedules use.",
            gauge("build_info", INSTANCE),
            "{{version}}, tzdata {{tzdata}}",
            height=8,
            text_mode="name",
        ),
        stat(
            "How many entries are not shown here?",
            "Entries beyond `server.metrics_entries`. They run, but have no metrics of their own. If this is not 0, raise the "
            "limit.",
            f"sum({gauge('entries_without_series', INSTANCE)})",
            height=8,
            thresholds=(1,),
        ),
    ),
)


def dashboard() -> Json:
    """The whole dashboard as JSON data."""
    return {
        "uid": "heartbeatd-fleet",
        "title": "heartbeatd: Fleet",
        "description": "Runs, alerts, skips, schedule and cost of heartbeatd's agents and jobs.",
        "tags": ["heartbeatd"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "browser",
        "time": {"from": "now-24h", "to": "now"},
        "refresh": "1m",
        "annotations": {"list": []},
        "links": [],
        "templating": {
            "list": [
                {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1},
                variable("instance", "heartbeatd_build_info"),
                variable("kind", f"heartbeatd_entry_state{{{INSTANCE}}}"),
                variable("name", f"heartbeatd_entry_state{{{KIND}}}"),
            ]
        },
        "panels": list(laid_out((OVERVIEW, RUNS, NEXT, FAILURES, DELIVERY, MONEY, DAEMON))),
    }


def write(target: Path) -> None:
    """Write the dashboard in the format that Grafana imports."""
    target.write_text(json.dumps(dashboard(), indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET)

"""The Fleet dashboard: what it asks and says. `python grafana/fleet.py` writes dashboards/fleet.json."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from panels import Json, Panel, Row, laid_out, variable

TARGET = Path(__file__).with_name("dashboards") / "fleet.json"

HERE = 'instance=~"$instance"'
NAMED = f'{HERE},name=~"$name"'
KIND = f'{HERE},kind=~"$kind"'
ENTRY = f'{KIND},name=~"$name"'


def gauge(name: str, which: str) -> str:
    """A series as it is."""
    return f"heartbeatd_{name}{{{which}}}"


def grown(name: str, which: str, by: str = "") -> str:
    """By how much a counter grew in each step, added up by these labels."""
    return f"sum by ({by}) (increase(heartbeatd_{name}{{{which}}}[$__rate_interval]))"


def quantile(part: float, name: str) -> str:
    """A part of a histogram, by kind."""
    return f"histogram_quantile({part}, sum by (kind, le) (rate(heartbeatd_{name}_bucket{{{KIND}}}[$__rate_interval])))"


def column(series: str) -> str:
    """One value for each entry, without the name of the series, which would keep the columns of a table apart."""
    return f"max by (instance, kind, name) ({series})"


def stat(title: str, told: str, ask: str, legend: str = "", **more: Any) -> Panel:
    """One number, or one for each legend."""
    return Panel(title, told, {legend: ask}, kind="stat", **({"width": 4, "height": 4} | more))


GLANCE = Row(
    "At a glance",
    (
        stat(
            "How long ago did the engine go round?",
            "Age of the engine's last turn; it takes one at least every 30 seconds. Above 90 s it hangs or cannot write its "
            "database: look at `/readyz` and at the log. No value: the daemon is down, or Prometheus does not reach it.",
            f"time() - {gauge('last_tick_timestamp_seconds', HERE)}",
            "{{instance}}",
            unit="s",
            steps=(60, 90),
            nothing="down",
        ),
        stat(
            "What share of the runs ended well?",
            "Runs that ended ok or alert among all runs of the time shown. Skips do not count: they were never tried; nor do "
            "runs that answer later, until their result is there. "
            "When it falls, see which entries fail, further down.",
            f'sum(increase(heartbeatd_runs_total{{{ENTRY},outcome=~"ok|alert"}}[$__range])) / '
            f'sum(increase(heartbeatd_runs_total{{{ENTRY},outcome!="async"}}[$__range]))',
            unit="percentunit",
            nothing="no runs",
        ),
        stat(
            "How many entries fail now?",
            "Entries whose last run failed. `heartbeatd runs NAME` says with what error.",
            f"count({gauge('consecutive_failures', ENTRY)} > 0) or vector(0)",
            steps=(1, 3),
        ),
        stat(
            "How many agents have something to say?",
            "Agents whose last successful run was an alert. `heartbeatd runs NAME --outcome alert` lists what they said.",
            f"sum({gauge('alerting', ENTRY)})",
            steps=(1,),
        ),
        stat(
            "How many entries are paused or disabled?",
            "Paused by hand, or disabled in the config. A pause that was forgotten shows here: `heartbeatd resume NAME`.",
            f'sum by (state) (heartbeatd_entry_state{{{ENTRY},state=~"paused|disabled"}})',
            "{{state}}",
        ),
        stat(
            "Is the config that was saved in force?",
            "no: the file as it is was refused, and the config before it goes on. `heartbeatd check` names line and column.",
            gauge("config_last_reload_successful", HERE),
            "{{instance}}",
            words={0: "no", 1: "yes"},
        ),
    ),
)

RUNS = Row(
    "What runs, what is said, and what is not",
    (
        Panel(
            "How do runs end?",
            "Runs by outcome, counted as they end. alert is an answer with something to say; failed, timeout and abandoned are "
            "failures after all their attempts. Filter by name to find whose they are.",
            {"{{outcome}}": grown("runs_total", ENTRY, "outcome")},
            bars=True,
        ),
        Panel(
            "Who said something?",
            "Alerts by agent, told or held back. One that speaks at every beat has a checklist that asks for too much, or a "
            "trouble that nobody mends.",
            {"{{name}}": grown("runs_total", f'{ENTRY},outcome="alert"', "name")},
            bars=True,
            nothing="no agents",
        ),
        Panel(
            "What was suppressed, and why?",
            "Runs of which nobody was told. heartbeat_ok, short_remainder and empty are quiet beats; duplicate is an alarm that "
            "was told already; not_shown was switched off in the config. It all stays readable: `heartbeatd show RUN`.",
            {"{{reason}}": grown("suppressions_total", ENTRY, "reason")},
            bars=True,
        ),
        Panel(
            "Which answers were cut, and which prechecks failed?",
            "Answers that ran into a limit of tokens: raise max_output_tokens, or ask for less. Prechecks that failed; with "
            "on_error: run the agent is called at every beat all the same. `heartbeatd show RUN` says more.",
            {
                "{{name}} cut": grown("truncated_total", ENTRY, "name"),
                "{{name}} precheck": grown("precheck_failures_total", f'{HERE},name=~"$name"', "name"),
            },
            bars=True,
            nothing="no agents",
        ),
        Panel(
            "What was skipped, and why?",
            "Slots that were not run. active_hours and paused are as you ordered; missed: the daemon was down or had no room; "
            "already_running: runs take longer than their interval; words with checklist: the agent's folder needs a look.",
            {"{{reason}}": grown("skips_total", ENTRY, "reason")},
            bars=True,
        ),
        Panel(
            "What became of wakes?",
            "Wakes by source and result, and how many wait. deferred ones were told later than asked for; expired ones never: "
            "raise `limits.wake_keep`, or see why the agent did not run. rejected: by its own run, or too many waited.",
            {"{{source}} {{result}}": grown("wakes_total", NAMED, "source, result")},
            {"waiting": f"sum({gauge('wakes_pending', NAMED)})"},
            bars=True,
            nothing="no agents",
        ),
        Panel(
            "How long do runs take?",
            "Median and 99th percentile of the run time by kind. Near an entry's `timeout`, its runs are about to be cut.",
            {
                "{{kind}} median": quantile(0.5, "run_duration_seconds"),
                "{{kind}} p99": quantile(0.99, "run_duration_seconds"),
            },
            unit="s",
        ),
    ),
)

NEXT = Row(
    "What is next, and what is late",
    (
        Panel(
            "What is next?",
            "Every entry with its next due time, the soonest first. No time: it is paused, disabled or done, or only wakes start "
            "it. A time in the past: its run still goes on, or it waits for room.",
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
            "From a slot's due time to its start, or until it was given up as `missed`. Milliseconds are normal; seconds mean "
            "that there was no room: raise `limits.concurrency`, or spread the slots with `stagger`. After a restart the first "
            "ones are late by right.",
            {
                "{{kind}} median": quantile(0.5, "dispatch_lateness_seconds"),
                "{{kind}} p99": quantile(0.99, "dispatch_lateness_seconds"),
            },
            unit="s",
            width=8,
        ),
        Panel(
            "How long has the oldest due entry waited?",
            "Age of what has been due longest without being started. No value is the good case.",
            {"{{instance}}": f"time() - {gauge('oldest_due_timestamp_seconds', HERE)}"},
            unit="s",
            width=8,
            nothing="nothing waits",
        ),
        Panel(
            "Is there room for more runs?",
            "Runs in progress beside their limit, and entries that are due and wait. At the limit with entries due: raise "
            "`limits.concurrency`.",
            {
                "running {{kind}}": f"sum by (kind) ({gauge('running', KIND)})",
                "limit": f"sum({gauge('concurrency_limit', HERE)})",
                "due": f"sum({gauge('due_entries', HERE)})",
            },
            width=8,
        ),
    ),
)

TROUBLE = Row(
    "What goes wrong",
    (
        Panel(
            "Which entries fail, and how often in a row?",
            "The ten longest chains of failed runs; 0 is well. Kept over restarts. `heartbeatd runs NAME --outcome failed` says "
            "why.",
            {"{{kind}}/{{name}}": f"topk(10, {gauge('consecutive_failures', ENTRY)})"},
        ),
        Panel(
            "Who has been quiet, and how often in a row?",
            "The ten longest chains of beats of which nobody was told. Normal where all is well; if an agent should have spoken, "
            "`heartbeatd show RUN` has what it said.",
            {"{{name}}": f"""topk(10, {gauge("consecutive_quiet", f'{ENTRY},kind="heartbeat"')})"""},
            nothing="no agents",
        ),
        Panel(
            "What had to be done again?",
            "Attempts that failed and were planned anew, runs that a killed daemon left open, and results that came too late to "
            "count. Retries tell of a shaky provider or command before it fails for good.",
            {
                "retries {{kind}}": grown("retries_total", ENTRY, "kind"),
                "orphans {{kind}}": grown("orphans_recovered_total", KIND, "kind"),
                "stale results": grown("stale_results_total", HERE),
            },
            bars=True,
        ),
        Panel(
            "What do providers answer instead?",
            "Errors of model providers by class, and open circuit breakers, of a provider or of one model there: no call is made "
            "while one is open. auth, payment and not_found need you: the key, the account, the name of the model.",
            {"{{provider}} {{class}}": grown("provider_errors_total", HERE, "provider, class")},
            {
                "{{provider}} breaker open": f"max by (provider) ({gauge('breaker_open', HERE)})",
                "{{provider}} {{model}} breaker open": f"max by (provider, model) ({gauge('breaker_model_open', HERE)})",
            },
            bars=True,
            nothing="no model is called",
        ),
    ),
)

DELIVERY = Row(
    "What still has to be delivered",
    (
        Panel(
            "What waits, and what was given up?",
            "Messages by channel that are still to be sent, and dead ones, given up after their last try. A restart keeps them.",
            {
                "{{channel}} pending": f"sum by (channel) ({gauge('outbox_pending', HERE)})",
                "{{channel}} dead": f"sum by (channel) ({gauge('outbox_dead', HERE)})",
            },
            width=8,
        ),
        Panel(
            "How old is the oldest undelivered message?",
            "Age by channel. No value is the good case. A channel that is down is tried for a day.",
            {"{{channel}}": f"time() - min by (channel) ({gauge('outbox_oldest_timestamp_seconds', HERE)})"},
            unit="s",
            width=8,
            nothing="all delivered",
        ),
        Panel(
            "What became of messages?",
            "Deliveries by channel and result. retried: it will be tried again; uncertain: the other side may have it; dead: it "
            "was given up.",
            {"{{channel}} {{result}}": grown("deliveries_total", HERE, "channel, result")},
            bars=True,
            width=8,
        ),
    ),
)

MONEY = Row(
    "Tokens and money",
    (
        Panel(
            "Which tokens are used?",
            "Tokens by type and by the model that was asked for. A model that is dearer than its work shows here first.",
            {"{{model}} {{type}}": grown("tokens_total", ENTRY, "model, type")},
            bars=True,
            nothing="no model is called",
        ),
        Panel(
            "Who spends how much?",
            "USD by entry, at the prices of the config. What failed runs cost is in it.",
            {"{{kind}}/{{name}}": grown("cost_usd_total", ENTRY, "kind, name")},
            unit="currencyUSD",
            bars=True,
            nothing="no model is called",
        ),
        Panel(
            "How much of each budget is used?",
            "Beats are skipped, reason budget, once the most that one can take no longer fits.",
            {"{{scope}} {{name}} {{budget}}": f"max by (scope, name, budget) ({gauge('budget_used_ratio', HERE)})"},
            unit="percentunit",
            nothing="no budget is set",
        ),
        Panel(
            "Which models have no price, or are not those asked for?",
            "Tokens that no price of the config covers, so that their money is not known: add the model to `prices`. Mismatches "
            "are answers by another model than the one asked for.",
            {
                "{{model}} unpriced tokens": grown("unpriced_tokens_total", HERE, "model"),
                "{{name}} mismatches": grown("model_mismatches_total", ENTRY, "name"),
            },
            bars=True,
            nothing="no model is called",
        ),
    ),
)

DAEMON = Row(
    "The daemon itself",
    (
        Panel(
            "How large is the database?",
            "db is the database, wal what is still to be moved into it. A wal that stays above 4 MiB is held by another program "
            "that reads and does not let go.",
            {"{{file}}": f"sum by (file) ({gauge('db_bytes', HERE)})"},
            unit="bytes",
            width=8,
        ),
        Panel(
            "Does anything disturb it?",
            "Turns in which the database could not be written (another program holds it, or the disk is full), jumps of the wall "
            "clock (a suspended machine, or a clock that was set), skipped slots that come again after one, and pings to the "
            "dead man's switch that did not arrive.",
            {
                "database busy": grown("db_busy_total", HERE),
                "clock {{direction}}": grown("clock_jumps_total", HERE, "direction"),
                "slots taken back": grown("skips_taken_back_total", HERE),
                "pings lost": grown("deadman_pings_total", f'{HERE},result="failed"'),
            },
            bars=True,
            width=8,
        ),
        stat(
            "Which version runs?",
            "heartbeatd, and the zone rules that its schedules follow.",
            gauge("build_info", HERE),
            "{{version}}, tzdata {{tzdata}}",
            height=8,
            shows="name",
        ),
        stat(
            "How many entries are not shown here?",
            "Entries beyond `server.metrics_entries`: they run, but have no series of their own. Raise it if this is not 0.",
            f"sum({gauge('entries_without_series', HERE)})",
            height=8,
            steps=(1,),
        ),
    ),
)


def dashboard() -> Json:
    """The whole dashboard."""
    return {
        "uid": "heartbeatd-fleet",
        "title": "heartbeatd: Fleet",
        "description": "What heartbeatd's agents and jobs did, said, left out and cost, and what is next.",
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
                variable("kind", f"heartbeatd_entry_state{{{HERE}}}"),
                variable("name", f"heartbeatd_entry_state{{{KIND}}}"),
            ]
        },
        "panels": list(laid_out((GLANCE, RUNS, NEXT, TROUBLE, DELIVERY, MONEY, DAEMON))),
    }


def write(target: Path) -> None:
    """Write the dashboard as Grafana imports it."""
    target.write_text(json.dumps(dashboard(), indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET)

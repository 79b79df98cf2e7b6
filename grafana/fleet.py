"""Defines the Fleet dashboard: the state of all agents and jobs at a glance."""

from __future__ import annotations

from panels import (
    ALERT,
    BAD,
    COLORS,
    ENTRY,
    GOOD,
    HERE,
    NAMED,
    PLANNED_REASONS,
    SUBJECT,
    Panel,
    Row,
    count_while_up,
    increase,
    increase_in_range,
    quantile,
    render,
    series,
    top_ten,
    while_up,
)

OBJECTIVE = 'job:heartbeatd_slo_objective{job=~"$job",slo="%s"}'
PAUSED = f'{ENTRY},state="paused"'
ERRORS = 'job:heartbeatd_slo_errors:ratio_rate30d{job=~"$job",slo="%s"}'


def service_level(title: str, description: str, slo: str, displayed: str) -> Panel:
    """A panel with the share of good events, and how much of the error budget of 30 days is left."""
    description += (
        " The recording rules compute the 30 days. The error budget is the allowed share of bad events. Below 0 % the "
        "objective is missed. Without a running daemon, the panel shows `unknown`."
    )
    errors, objective = ERRORS % slo, OBJECTIVE % slo
    return Panel(
        title,
        description,
        {
            "displayed range": while_up(displayed),
            "30 days": while_up(f"1 - max({errors})"),
            "error budget left": while_up(f"clamp_min(1 - max({errors} / on (job, slo) (1 - {objective})), 0)"),
        },
        kind="stat",
        width=6,
        height=5,
        unit="percentunit",
        thresholds=(0.95, 0.99),
        more_is_better=True,
        own_thresholds={"error budget left": ((None, BAD), (0.001, COLORS["late"]), (0.25, GOOD))},
    )


def share(name: str, selector: str, good: str) -> str:
    """The share of events with the result `good` in the displayed time range."""
    part = f'sum(increase(heartbeatd_{name}{{{selector},result="{good}"}}[$__range]))'
    return f"{part} / sum(increase(heartbeatd_{name}{{{selector}}}[$__range]))"


LEVELS = Row(
    "Service levels",
    (
        service_level(
            "Do planned runs start on time?",
            "Share of planned runs that started at most a minute after they were due.",
            "on_time",
            share("slots_on_time_total", HERE, "on_time"),
        ),
        service_level(
            "Do planned runs end well?",
            "Share of planned runs that ended well. A run counts against it if it failed, or was skipped although it should have "
            "run. A run that was skipped as the config says does not count. A result that arrives later counts when it arrives.",
            "ended_well",
            share("slots_total", ENTRY, "good"),
        ),
        service_level(
            "Do messages arrive on time?",
            "Share of messages that were delivered within five minutes.",
            "delivered",
            share("messages_on_time_total", HERE, "on_time"),
        ),
        Panel(
            "Will the budgets last?",
            "The budget that is used the most today, and the share of its planned runs that are already due. Skips with the "
            "reason `budget` begin at 100 %. `heartbeatd report` shows the cost of each agent and job.",
            {
                "used": while_up(f"max({series('budget_used_ratio', HERE)})"),
                "runs due": while_up(f"max({series('budget_day_elapsed_ratio', HERE)})"),
            },
            kind="stat",
            width=6,
            height=5,
            unit="percentunit",
            thresholds=(0.9, 1),
            own_thresholds={"runs due": ((None, COLORS["planned skip"]),)},
            no_value="no budget",
        ),
    ),
)

NOW = Row(
    "Now",
    (
        Panel(
            "Is every daemon up?",
            "`DOWN` means that Prometheus cannot reach the daemon. While it is down, no agent and no job runs, and the "
            "other panels show `unknown` or end at that time.",
            {"{{instance}}": f"min by (instance) (up{{{HERE}}})"},
            kind="stat",
            width=4,
            height=4,
            states={0: ("DOWN", BAD), 1: ("up", GOOD)},
            no_value="not scraped",
        ),
        Panel(
            "How many agents and jobs are silent?",
            "Agents and jobs whose next good result is overdue, for any reason. `heartbeatd explain NAME` shows the reason.",
            {"silent": count_while_up(f"time() > {series('expected_by_timestamp_seconds', ENTRY)}")},
            kind="stat",
            width=4,
            height=4,
            thresholds=(1, 3),
        ),
        Panel(
            "How many agents and jobs are failing?",
            "Agents and jobs whose last run failed. `heartbeatd runs NAME` shows the error.",
            {"failing": count_while_up(f"{series('consecutive_failures', ENTRY)} > 0")},
            kind="stat",
            width=4,
            height=4,
            thresholds=(1, 3),
        ),
        Panel(
            "How many agents have an alert?",
            "Agents whose last successful run ended with an alert. `heartbeatd runs NAME --result alert` lists their alerts.",
            {"alerting": count_while_up(f"{series('alerting', ENTRY)} > 0")},
            kind="stat",
            width=4,
            height=4,
            states={0: ("0", GOOD)},
            base=ALERT,
        ),
        Panel(
            "How many agents and jobs are paused?",
            "Agents and jobs that a user paused. A forgotten pause is visible here: `heartbeatd resume NAME`. Grey means that at "
            "least one is paused.",
            {"paused": count_while_up(f"{series('entry_state', PAUSED)} > 0")},
            kind="stat",
            width=4,
            height=4,
            states={0: ("0", GOOD)},
            base=COLORS["paused"],
        ),
        Panel(
            "Are messages stuck?",
            "Messages that wait for their delivery, and messages that are not sent any more because their last attempt failed. "
            "`heartbeatd outbox` lists them.",
            {
                "waiting": while_up(f"sum({series('outbox_pending', HERE)})"),
                "dead": while_up(f"sum({series('outbox_dead', HERE)})"),
            },
            kind="stat",
            width=4,
            height=4,
            thresholds=(5, 20),
            own_thresholds={"dead": ((None, GOOD), (1, BAD))},
        ),
    ),
)

# Values: 4 down, 3 bad, 2 skipped as planned, 1 good. The first of these that applies to a cell wins.
STATES = {1: ("good", GOOD), 2: ("skipped as planned", COLORS["planned skip"]), 3: ("bad", BAD), 4: ("daemon down", "#AD0317")}


def timeline(selector: str, worst: str = "") -> str:
    """The state of the planned runs of each agent and job per cell: bad, good, or skipped as planned."""
    by = "sum by (kind, name)"
    bad = f'3 * ({by} (increase(heartbeatd_slots_total{{{selector},result="bad"}}[$__rate_interval])) > bool 0.5) > 0'
    good = f'1 * ({by} (increase(heartbeatd_slots_total{{{selector},result="good"}}[$__rate_interval])) > bool 0.5) > 0'
    skips = f'heartbeatd_skips_total{{{selector},reason=~"{PLANNED_REASONS}"}}'
    planned = f"2 * ({by} (increase({skips}[$__rate_interval])) > bool 0.5) > 0"
    return f"({bad} or {good} or {planned}){worst}"


BAD_IN_RANGE = f'increase(heartbeatd_slots_total{{{ENTRY},result="bad"}}[$__range] @ end())'
WORST_20 = f" and on (kind, name) topk(20, sum by (kind, name) ({BAD_IN_RANGE}) > 0)"

NIGHT = Row(
    "Planned runs",
    (
        Panel(
            "Which agents and jobs had trouble, and when?",
            "The twenty agents and jobs with the most bad runs in the displayed range. Each cell covers 30 minutes or more. Red: "
            "a run failed, or was skipped although it should have started. Green: it was answered. Grey: skipped as planned. "
            "The first rows are the daemons. A click opens the agent or job.",
            {
                "daemon {{instance}}": f"4 - 3 * min by (instance) (min_over_time(up{{{HERE}}}[$__rate_interval]))",
                "{{kind}}/{{name}}": timeline(ENTRY, WORST_20),
            },
            kind="timeline",
            width=24,
            height=12,
            states=STATES,
            no_value="no bad runs",
            entry="labels",
        ),
        Panel(
            "How did planned runs end?",
            "Planned runs by result. `bad` is a run that failed, or was skipped although it should have started. Planned skips "
            "are not counted here.",
            {"{{result}}": increase("slots_total", ENTRY, "result")},
            width=8,
            bars=True,
            no_value="no planned runs",
        ),
        Panel(
            "Which planned runs were lost?",
            "Runs that were skipped although they should have started, by reason. `missed`: the daemon was down, or "
            "`limits.concurrency` was reached. `already_running`: runs take longer than their interval. Reasons with "
            "`checklist` point to the agent's folder.",
            {"{{reason}}": increase("skips_total", f'{ENTRY},reason!~"{PLANNED_REASONS}"', "reason")},
            width=8,
            bars=True,
            no_value="no run was lost",
        ),
        Panel(
            "Which runs were skipped as planned?",
            "Runs that were skipped because of active hours, calendars, pauses, prechecks or checklists with no item due, by "
            "reason. These skips are intended and therefore grey.",
            {"{{reason}}": increase("skips_total", f'{ENTRY},reason=~"{PLANNED_REASONS}"', "reason")},
            width=8,
            bars=True,
            no_value="no planned skips",
        ),
    ),
)

WORST = Row(
    "Top ten",
    (
        Panel(
            "Which agents and jobs have the most bad runs?",
            "The ten agents and jobs with the most bad runs in the displayed range. A click opens the Agent dashboard.",
            {"{{kind}}/{{name}}": top_ten(increase_in_range("slots_total", f'{ENTRY},result="bad"', "kind, name"))},
            kind="ranking",
            width=8,
            thresholds=(0, 3),
            no_value="no bad runs",
            entry="labels",
        ),
        Panel(
            "Which agents and jobs are silent, and for how long?",
            "The ten agents and jobs whose next good result is overdue for the longest time. `heartbeatd explain NAME` shows the "
            "reason.",
            {"{{kind}}/{{name}}": top_ten(f"time() - {series('expected_by_timestamp_seconds', ENTRY)} > 0")},
            kind="ranking",
            unit="s",
            width=8,
            thresholds=(0, 3600),
            no_value="none is silent",
            entry="labels",
        ),
        Panel(
            "Which agents and jobs fail in a row?",
            "The ten agents and jobs with the most consecutive failures. Restarts do not reset the number. "
            "`heartbeatd runs NAME --result failed` shows the errors.",
            {"{{kind}}/{{name}}": top_ten(f"{series('consecutive_failures', ENTRY)} > 0")},
            kind="ranking",
            width=8,
            thresholds=(0, 3),
            no_value="none fails",
            entry="labels",
        ),
        Panel(
            "Which agents raised the most alerts?",
            "The ten agents with the most alerts in the displayed range, sent or not. If an agent raises an alert in"
            " every run, its checklist is too broad, or the reported problem has not been fixed.",
            {"{{name}}": top_ten(increase_in_range("runs_total", f'{ENTRY},outcome="alert"', "kind, name"))},
            kind="ranking",
            width=8,
            no_value="no alerts",
            entry="labels",
        ),
        Panel(
            "Which problems are oldest?",
            "The ten agents, jobs, providers and channels with the oldest problem that nobody has acknowledged. "
            "`heartbeatd problems NAME` shows it, and `heartbeatd problems ack` acknowledges it.",
            {"{{subject}}": top_ten(f"time() - {series('problem_oldest_timestamp_seconds', SUBJECT)}")},
            kind="ranking",
            unit="s",
            width=8,
            no_value="no open problems",
        ),
        Panel(
            "Which agents and jobs cost the most?",
            "USD in the displayed range at the prices in the config, for the ten most expensive agents and jobs. Failed runs are "
            "included.",
            {"{{kind}}/{{name}}": top_ten(increase_in_range("cost_usd_total", ENTRY, "kind, name"))},
            kind="ranking",
            unit="currencyUSD",
            width=8,
            no_value="no model calls",
            entry="labels",
        ),
    ),
)

RUNS = Row(
    "Runs and messages",
    (
        Panel(
            "How do runs end?",
            "Runs by result, counted when they end. `alert` is an answer that reports something. `failed`, `timeout` and "
            "`abandoned` are failures after all attempts.",
            {"{{outcome}}": increase("runs_total", ENTRY, "outcome")},
            width=8,
            bars=True,
            no_value="no runs",
        ),
        Panel(
            "How many problems are open?",
            "Open problems of agents, jobs, providers, channels and the daemon, by severity.",
            {"{{severity}}": f"sum by (severity) ({series('problems_open', SUBJECT)}) > 0"},
            width=8,
            no_value="no open problems",
        ),
        Panel(
            "Which questions wait for a person?",
            "Questions of runs to people that have no answer yet. The run waits until then. `heartbeatd status` shows each, and "
            "`heartbeatd answer` answers it.",
            {"{{kind}}/{{name}}": top_ten(f"{series('questions_open', ENTRY)} > 0")},
            width=8,
            no_value="no question waits",
            entry="labels",
        ),
        Panel(
            "Which answers were not sent, and why?",
            "Runs without a message, by reason. `heartbeat_ok`, `short_remainder` and `empty` mean that there was nothing to "
            "report. `duplicate` is an alert that was sent before. `heartbeatd show RUN` shows the text of each run.",
            {"{{reason}}": increase("suppressions_total", ENTRY, "reason")},
            bars=True,
            no_value="all were sent",
        ),
        Panel(
            "How did wakes end?",
            "Wakes by their final result, and the number that wait. `deferred` wakes reached the agent later than requested. "
            "`expired` wakes never did: raise `limits.wake_keep`, or find out why the agent did not run.",
            {"{{result}}": increase("wakes_total", NAMED, "result")},
            {"waiting": f"sum({series('wakes_pending', NAMED)}) > 0"},
            bars=True,
            no_value="no wakes",
        ),
    ),
)

MONEY = Row(
    "Cost, schedule and duration",
    (
        Panel(
            "What do the models cost?",
            "USD by model, at the prices in the config.",
            {"{{model}}": increase("cost_usd_total", ENTRY, "model")},
            unit="currencyUSD",
            width=8,
            bars=True,
            no_value="no model calls",
        ),
        Panel(
            "Which budgets are used the most?",
            "The ten budgets that are used the most today. `all` is the budget of all agents and jobs. Runs are skipped when the "
            "maximum cost of a run exceeds the remaining budget.",
            {
                "{{scope}} {{name}} {{budget}}": top_ten(
                    f"max by (scope, kind, name, budget) ({series('budget_used_ratio', HERE)})"
                )
            },
            kind="ranking",
            unit="percentunit",
            width=8,
            thresholds=(0.9, 1),
            maximum=1,
            no_value="no budget is set",
            entry="labels",
        ),
        Panel(
            "Which runs are next?",
            "The ten agents and jobs that are due next. A time in the past means that it is still running, or that "
            "`limits.concurrency` is reached.",
            {"Next due": f"bottomk(10, max by (kind, name) ({series('next_due_timestamp_seconds', ENTRY)})) * 1000"},
            kind="table",
            width=8,
            units={"Next due": "dateTimeFromNow"},
            sort_by=("Next due", False),
            no_value="nothing is due",
        ),
        Panel(
            "How long do runs take?",
            "Median and 99th percentile of the run time, by kind. If they are close to a `timeout`, its runs will soon time out.",
            {
                "{{kind}} median": quantile(0.5, "run_duration_seconds", HERE, "kind"),
                "{{kind}} p99": quantile(0.99, "run_duration_seconds", HERE, "kind"),
            },
            unit="s",
            width=24,
        ),
    ),
)


def dashboard() -> str:
    """The dashboard as JSON text."""
    return render(
        uid="heartbeatd-fleet",
        title="heartbeatd: Fleet",
        description="Service levels, trouble, alerts and cost of all agents and jobs of heartbeatd.",
        rows=(LEVELS, NOW, NIGHT, WORST, RUNS, MONEY),
        variables=("kind", "name"),
    )

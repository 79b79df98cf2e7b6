"""Defines the Agent dashboard: everything about one agent or one job."""

from __future__ import annotations

from fleet import STATES, timeline
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
    WAITING,
    Panel,
    Row,
    increase,
    render,
    series,
    while_up,
)

STATE = 'max(heartbeatd_entry_state{%s,state="%s"} > 0)'
ENTRY_STATES = " or ".join(
    f"{number} * {STATE % (ENTRY, state)}" for number, state in enumerate(("active", "done", "paused", "disabled"), 1)
)

NOW = Row(
    "Now",
    (
        Panel(
            "Is it active?",
            "Whether it is active, paused by a user, disabled in the config, or done because it ran once. `unknown` "
            "means that the daemon does not answer. `heartbeatd explain NAME` shows what it waits for.",
            {"state": ENTRY_STATES},
            kind="stat",
            width=4,
            height=4,
            states={
                1: ("active", GOOD),
                2: ("done", COLORS["planned skip"]),
                3: ("paused", COLORS["paused"]),
                4: ("disabled", COLORS["disabled"]),
            },
        ),
        Panel(
            "Is it overdue?",
            "Time until it counts as overdue. A negative value means that it is overdue: "
            "`heartbeatd explain NAME` shows the reason. No value means that nothing is expected, or that the daemon is down.",
            {"left": f"min({series('expected_by_timestamp_seconds', ENTRY)}) - time()"},
            kind="stat",
            unit="s",
            width=4,
            height=4,
            own_thresholds={"left": ((None, BAD), (0, GOOD))},
            no_value="nothing expected",
        ),
        Panel(
            "When is it due next?",
            "Time until it is due. A negative value means that it is running, or that `limits.concurrency` is reached.",
            {"in": f"min({series('next_due_timestamp_seconds', ENTRY)}) - time()"},
            kind="stat",
            unit="s",
            width=4,
            height=4,
            no_value="not due",
        ),
        Panel(
            "When did it last succeed?",
            "Time since the last run, and since the last successful run. A large difference means that runs fail.",
            {
                "run": while_up(f"time() - max({series('last_run_timestamp_seconds', ENTRY)})"),
                "success": while_up(f"time() - max({series('last_success_timestamp_seconds', ENTRY)})"),
            },
            kind="stat",
            unit="s",
            width=4,
            height=4,
            base=COLORS["planned skip"],
            no_value="never",
        ),
        Panel(
            "How often did it fail in a row?",
            "Failed runs since the last successful run. `heartbeatd runs NAME --result failed` shows the errors.",
            {"failures": f"max({series('consecutive_failures', ENTRY)})"},
            kind="stat",
            width=4,
            height=4,
            thresholds=(1, 3),
        ),
        Panel(
            "Does it have something to say?",
            "Four values: 1 if the last successful run ended with an alert, the number of open problems, the number of its "
            "questions that wait for a person, and 1 if its messages are muted. `heartbeatd problems NAME` shows the problems.",
            {
                "alert": f"max({series('alerting', ENTRY)})",
                "problems": f"sum({series('problems_open', SUBJECT)}) > 0",
                "questions": f"max({series('questions_open', ENTRY)}) > 0",
                "muted": f"max({series('muted', ENTRY)}) > 0",
            },
            kind="stat",
            width=4,
            height=4,
            own_thresholds={
                "alert": ((None, GOOD), (1, ALERT)),
                "problems": ((None, GOOD), (1, COLORS["warning"])),
                "questions": ((None, WAITING),),
                "muted": ((None, COLORS["paused"]),),
            },
        ),
    ),
)

PLANNED = Row(
    "Planned runs",
    (
        Panel(
            "What became of its planned runs?",
            "The results of its planned runs. Each cell covers 30 minutes or more. Red: a run failed, or was skipped although "
            "it should have started. Green: it was answered. Grey: skipped as planned. The first row is the daemon.",
            {
                "daemon {{instance}}": f"4 - 3 * min by (instance) (min_over_time(up{{{HERE}}}[$__rate_interval]))",
                "{{kind}}/{{name}}": timeline(ENTRY),
            },
            kind="timeline",
            width=24,
            height=5,
            states=STATES,
            no_value="no planned runs in this time",
        ),
        Panel(
            "What did it answer?",
            "Runs by result. `ok` reports nothing, `alert` reports something, `async` will be answered later. `failed`, "
            "`timeout` and `abandoned` are failures after all attempts. `heartbeatd runs NAME` lists the runs.",
            {"{{outcome}}": increase("runs_total", ENTRY, "outcome")},
            width=8,
            bars=True,
            no_value="no runs",
        ),
        Panel(
            "Which of its planned runs were lost?",
            "Runs that were skipped although they should have started, by reason. `heartbeatd explain NAME` says what to do.",
            {"{{reason}}": increase("skips_total", f'{ENTRY},reason!~"{PLANNED_REASONS}"', "reason")},
            width=8,
            bars=True,
            no_value="no run was lost",
        ),
        Panel(
            "Which of its runs were skipped as planned?",
            "Runs that were skipped because of active hours, calendars, pauses, prechecks or checklists with no item due. Those "
            "outside of active hours or during a pause are counted together when it is due again.",
            {"{{reason}}": increase("skips_total", f'{ENTRY},reason=~"{PLANNED_REASONS}"', "reason")},
            width=8,
            bars=True,
            no_value="no planned skips",
        ),
    ),
)

ANSWERS = Row(
    "Answers and wakes",
    (
        Panel(
            "Which of its answers were not sent?",
            "Runs without a message, by reason. If an alert is missing, `heartbeatd show RUN` shows the answer and its "
            "classification.",
            {"{{reason}}": increase("suppressions_total", ENTRY, "reason")},
            width=8,
            bars=True,
            no_value="all were sent",
        ),
        Panel(
            "Which problems does it have?",
            "Open problems by severity: what it reports, and failures of its runs.",
            {"{{severity}}": f"sum by (severity) ({series('problems_open', SUBJECT)}) > 0"},
            width=8,
            no_value="no open problems",
        ),
        Panel(
            "Who wakes it?",
            "Wakes by source and final result, and the number that wait. `deferred` wakes reached the agent later than "
            "requested, and `expired` wakes never did.",
            {"{{source}} {{result}}": increase("wakes_total", NAMED, "source, result")},
            {"waiting": f"sum({series('wakes_pending', NAMED)}) > 0"},
            width=8,
            bars=True,
            no_value="no wakes",
        ),
    ),
)

CALLS = Row(
    "Calls and cost",
    (
        Panel(
            "How much time do its runs take?",
            "Seconds spent in runs, added up per bar. Divide by the number of runs, or use `heartbeatd runs NAME` for "
            "single runs.",
            {"run time": increase("run_seconds_total", ENTRY)},
            unit="s",
            width=8,
            bars=True,
            no_value="no runs",
        ),
        Panel(
            "Which of its calls had problems?",
            "Attempts that were retried, answers that were cut off at a token limit, answers by another model than the "
            "requested one, and failed prechecks. `heartbeatd show RUN` shows details.",
            {
                "retried": increase("retries_total", ENTRY),
                "truncated": increase("truncated_total", ENTRY),
                "other model": increase("model_mismatches_total", ENTRY),
                "precheck failed": increase("precheck_failures_total", ENTRY),
            },
            width=8,
            bars=True,
            no_value="no problems",
        ),
        Panel(
            "How many tokens does it use?",
            "Tokens by type. Many input tokens mean a long checklist, a long precheck output or long wakes.",
            {"{{type}}": increase("tokens_total", ENTRY, "type")},
            width=8,
            bars=True,
            no_value="no model calls",
        ),
        Panel(
            "What does it cost?",
            "USD by model, at the prices in the config. Failed runs are included.",
            {"{{model}}": increase("cost_usd_total", ENTRY, "model")},
            unit="currencyUSD",
            bars=True,
            no_value="no model calls",
        ),
        Panel(
            "How much of its budget is used?",
            "Share of each of its daily budgets that is used, and the share of its planned runs that have come due. If"
            " the first line stays above the second, the budget will not last.",
            {
                "{{budget}}": f"max by (budget) ({series('budget_used_ratio', ENTRY)})",
                "runs due": f"max({series('budget_day_elapsed_ratio', ENTRY)})",
            },
            unit="percentunit",
            no_value="no budget of its own",
        ),
    ),
)


def dashboard() -> str:
    """The dashboard as JSON text."""
    return render(
        uid="heartbeatd-agent",
        title="heartbeatd: Agent",
        description="Planned runs, answers, wakes, calls and cost of one agent or job of heartbeatd.",
        rows=(NOW, PLANNED, ANSWERS, CALLS),
        variables=("kind", "name"),
    )

"""Tests the budgets of a config: which limits are errors, which are warnings, and the allowances of entries."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from config_file import complaints, read, warnings
from loops import loop_over

from scheduler.config.settings.config_diff import compare_configs
from scheduler.model.budget import Amount
from scheduler.model.outcome import Kind

KEY = "sk-ant-canary-0123456789"
ENVIRON = {"KEY": KEY}
RIGHT = """\
timezone: Europe/Berlin
limits: {budget: {usd_per_day: 5}}
providers: {anthropic: {api_key: "${KEY}"}}
prices: {claude-haiku-5-5: {input: 1.0, output: 5.0}}
defaults: {heartbeat: {interval: 30m, deliver: log}}
agents:
  ops:
    runner: {kind: anthropic}
    model: claude-haiku-5-5
    heartbeat:
      retries: 2
      budget: {usd_per_day: 0.50, tokens_per_day: 200k, runs_per_day: 60, usd_per_try: 0.10}
  tool:
    runner: {kind: command, argv: [cat]}
    heartbeat: {budget: {usd_per_try: 0.02}}
"""
BUDGET = "budget: {usd_per_day: 0.50, tokens_per_day: 200k, runs_per_day: 60, usd_per_try: 0.10}"
LIMITS = "limits: {budget: {usd_per_day: 5}}"
TOOL = "{budget: {usd_per_try: 0.02}}"

# fmt: off
FAULTS = [
    ("usd_per_day: 0.50", "usd_per_day: -1", "config.yaml:12:29: agents.ops.heartbeat.budget.usd_per_day: -1 is out of range; write 0.0001 or more"),
    ("usd_per_day: 0.50", "usd_per_day: lots", "config.yaml:12:29: agents.ops.heartbeat.budget.usd_per_day: 'lots' is not a number; write a number such as 1"),
    ("usd_per_day: 0.50", "usd_per_day: .inf", 'config.yaml:12:29: agents.ops.heartbeat.budget.usd_per_day: inf is not a number; write a number such as 1'),
    ("tokens_per_day: 200k", "tokens_per_day: 0", "config.yaml:12:51: agents.ops.heartbeat.budget.tokens_per_day: 0 is out of range; write 1 or more"),
    ("runs_per_day: 60", "runs_per_day: 0", "config.yaml:12:71: agents.ops.heartbeat.budget.runs_per_day: 0 is out of range; write 1 or more"),
    (BUDGET, "budget: none", "config.yaml:12:15: agents.ops.heartbeat.budget: this must be a map of keys with values; write {usd_per_day: 1}"),
    (BUDGET, "budget: 0.5", 'config.yaml:12:15: agents.ops.heartbeat.budget: this must be a map of keys with values; write {usd_per_day: 1}'),
    ("runs_per_day", "run_per_day", "config.yaml:12:57: agents.ops.heartbeat.budget.run_per_day: unknown key; did you mean runs_per_day?"),
    ("input: 1.0", "input: 1e308", "config.yaml:4:36: prices.claude-haiku-5-5.input: 1e+308 is out of range; write 1000000 or less"),
    ("input: 1.0", "input: -1.0", "config.yaml:4:36: prices.claude-haiku-5-5.input: -1.0 is out of range; write 0 or more"),
    (BUDGET, "budget: {usd_per_day: 0.05}", "config.yaml:12:29: agents.ops.heartbeat.budget.usd_per_day: one try of agent/ops with \"claude-haiku-5-5\" may cost 0.0725 USD (50,000 tokens in, 2,000 out); write 0.0725 or more, or a smaller usd_per_try"),
    (BUDGET, "budget: {tokens_per_day: 50k}", "config.yaml:12:32: agents.ops.heartbeat.budget.tokens_per_day: one try of agent/ops with \"claude-haiku-5-5\" may use 52,000 tokens (50,000 tokens in, 2,000 out); write 52000 or more, or a smaller max_input_tokens"),
    (BUDGET, "budget: {usd_per_day: 0.10}\n      decide: {model: claude-haiku-5-5}", "config.yaml:12:29: agents.ops.heartbeat.budget.usd_per_day: one try of agent/ops with \"claude-haiku-5-5\" may cost 0.145 USD (50,000 tokens in, 2,000 and 2,000 out); write 0.145 or more, or a smaller usd_per_try"),
    ("usd_per_try: 0.10", "usd_per_try: 0.0105", "config.yaml:12:88: agents.ops.heartbeat.budget.usd_per_try: the answers alone may use all of it; write 0.0125 or more, or a smaller max_output_tokens"),
    (LIMITS, "limits: {budget: {usd_per_day: 0.06}}", "config.yaml:12:7: agents.ops.heartbeat.budget: one try of agent/ops with \"claude-haiku-5-5\" may cost 0.0725 USD (50,000 tokens in, 2,000 out), more than limits.budget.usd_per_day allows; write a smaller usd_per_try, or raise the limit to 0.0725"),
    ("model: claude-haiku-5-5", "model: claude-next", 'config.yaml:12:7: agents.ops.heartbeat.budget: usd_per_day cannot be enforced, because "claude-next" has no price; write prices: {claude-next: {input: 1.0, output: 5.0}}'),
    ("model: claude-haiku-5-5\n    heartbeat:", "model: claude-next\n    heartbeat:\n      decide: {model: claude-haiku-5-5}", 'config.yaml:13:7: agents.ops.heartbeat.budget: usd_per_day cannot be enforced, because "claude-next" has no price; write prices: {claude-next: {input: 1.0, output: 5.0}}'),
    (TOOL, "{}", "config.yaml:15:5: agents.tool.heartbeat.budget: limits.budget.usd_per_day cannot be enforced, because the usage of its runner is unknown; write budget: {usd_per_try: 0.10}, the maximum cost of one try, or 0 if it costs nothing"),
    (TOOL, "{budget: {usd_per_day: 0.01, usd_per_try: 0.02}}", "config.yaml:15:39: agents.tool.heartbeat.budget.usd_per_day: one try of agent/tool may cost 0.02 USD; write 0.02 or more, or a smaller usd_per_try"),
    (TOOL, "{budget: {tokens_per_day: 1m, usd_per_try: 0.02}}", "config.yaml:15:17: agents.tool.heartbeat.budget: tokens_per_day cannot be enforced, because the usage of its runner is unknown; write usd_per_day and usd_per_try instead, or usd_per_try: 0 if it costs nothing"),
    (BUDGET, "budget: {usd_per_month: 0.05}", "config.yaml:12:31: agents.ops.heartbeat.budget.usd_per_month: one try of agent/ops with \"claude-haiku-5-5\" may cost 0.0725 USD (50,000 tokens in, 2,000 out); write 0.0725 or more, or a smaller usd_per_try"),
    (LIMITS, "limits: {budget: {usd_per_try: 1}}", 'config.yaml:2:19: limits.budget.usd_per_try: unknown key here; it belongs under cron.NAME.budget or agents.NAME.heartbeat.budget'),
]

WARNINGS = [
    ("usd_per_day: 0.50", "usd_per_day: 9", "config.yaml:12:29: agents.ops.heartbeat.budget.usd_per_day: limits.budget.usd_per_day is 5 and is reached first; write that or less"),
    (LIMITS, "limits: {budget: {usd_per_day: 5, runs_per_day: 50}}", "config.yaml:12:71: agents.ops.heartbeat.budget.runs_per_day: limits.budget.runs_per_day is 50 and is reached first; write that or less"),
    ("usd_per_day: 0.50", "usd_per_day: 0.50, usd_per_month: 0.30", "config.yaml:12:29: agents.ops.heartbeat.budget.usd_per_day: usd_per_month is 0.3 and is reached first; write that or less"),
]
# fmt: on


def test_the_documented_budgets_are_accepted(tmp_path: Path) -> None:
    assert warnings(tmp_path, RIGHT, ENVIRON) == []
    assert warnings(tmp_path, RIGHT.replace(LIMITS, "limits: {budget: {usd_per_day: 0.50}}"), ENVIRON) == []
    assert warnings(tmp_path, RIGHT.replace("usd_per_day: 0.50", "usd_per_day: 0.50, usd_per_month: 0.50"), ENVIRON) == []
    assert warnings(tmp_path, RIGHT.replace(TOOL, "{budget: {tokens_per_day: 1m, usd_per_try: 0}}"), ENVIRON) == []


@loop_over(("right", "wrong", "line"), FAULTS)
def test_a_budget_that_cannot_be_enforced_is_an_error_with_advice(tmp_path: Path, right: str, wrong: str, line: str) -> None:
    assert right in RIGHT
    assert "\n".join(complaints(tmp_path, RIGHT.replace(right, wrong, 1), ENVIRON)) == line
    if advice := re.search(r"\.(\w+): (?:one try|the answers) .*; write ([\d.]+) or more", line):  # it is enough to follow it
        enough = re.sub(rf"{advice[1]}: [\w.]+", f"{advice[1]}: {advice[2]}", wrong)
        assert complaints(tmp_path, RIGHT.replace(right, enough, 1), ENVIRON) == []


@pytest.mark.parametrize(("right", "more", "line"), WARNINGS, ids=[str(number) for number in range(len(WARNINGS))])
def test_a_budget_that_is_never_reached_is_a_warning(tmp_path: Path, right: str, more: str, line: str) -> None:
    assert warnings(tmp_path, RIGHT.replace(right, more, 1), ENVIRON) == [line]


def test_agents_that_call_a_model_without_a_budget_get_one_warning_with_advice(tmp_path: Path) -> None:
    text = RIGHT.replace(LIMITS, "limits: {}").replace(BUDGET, "retries: 1").replace("      retries: 2\n", "")
    line = "write defaults: {heartbeat: {budget: {usd_per_day: 1.00}}}, or budget: unlimited if that is intended"
    assert warnings(tmp_path, text, ENVIRON) == [f"config.yaml:6:1: agents: 1 agent calls a model and has no budget; {line}"]
    assert warnings(tmp_path, text.replace("retries: 1", "budget: unlimited"), ENVIRON) == []
    assert warnings(tmp_path, text.replace("limits: {}", LIMITS), ENVIRON) == []
    assert warnings(tmp_path, text.replace("retries: 1", "enabled: false"), ENVIRON) == []


def test_a_budget_is_advised_for_each_agent_by_name_if_others_would_not_accept_it_as_a_default(tmp_path: Path) -> None:
    text = RIGHT.replace(LIMITS, "limits: {}").replace(BUDGET, "retries: 1").replace("      retries: 2\n", "")
    text += "  own: {runner: {kind: command, argv: [ask]}, heartbeat: {interval: 1h, deliver: log}}\n"
    (line,) = warnings(tmp_path, text, ENVIRON)
    assert line.endswith("no budget; write budget: {usd_per_day: 1.00} for ops, or budget: unlimited if that is intended")
    assert warnings(tmp_path, text.replace("retries: 1", "budget: {usd_per_day: 1.00}"), ENVIRON) == []


def test_jobs_that_call_a_model_without_a_budget_get_a_warning_with_advice(tmp_path: Path) -> None:
    text = RIGHT.replace(LIMITS, "limits: {}") + 'cron:\n  ask: {schedule: "0 9 * * *", prompt: hello, agent: ops}\n'
    line = "defaults: {cron: {budget: {usd_per_day: 1.00}}}"
    warning = f"1 job calls a model and has no budget; write {line}, or budget: unlimited if that is intended"
    assert warnings(tmp_path, text, ENVIRON) == [f"config.yaml:16:1: cron: {warning}"]
    assert warnings(tmp_path, text.replace("defaults: {", "defaults: {cron: {budget: {usd_per_day: 1.00}}, "), ENVIRON) == []


def test_the_cost_limit_of_a_run_limits_the_length_of_its_prompt(tmp_path: Path) -> None:
    allowances = read(tmp_path, RIGHT.replace("usd_per_try: 0.10", "usd_per_try: 0.035"), ENVIRON).settings.allowances
    ops = allowances[Kind.HEARTBEAT, "ops"]
    assert (
        ops.input_tokens == 20_000
    )  # and 2,000 out: 20,000 x 1.25 + 2,000 x 5 millionths, because cache writes are the most expensive input
    assert ops.max_usage == Amount(nanos=35_000_000, tokens=22_000, runs=1)
    assert allowances[Kind.HEARTBEAT, "tool"].max_usage == Amount(nanos=20_000_000, runs=1)
    assert allowances[Kind.HEARTBEAT, "tool"].input_tokens is None


def test_an_entry_without_a_budget_has_no_allowance(tmp_path: Path) -> None:
    text = RIGHT.replace(LIMITS, "limits: {}").replace(BUDGET, "budget: unlimited").replace(TOOL, "{}")
    assert read(tmp_path, text, ENVIRON).settings.allowances == {}


def test_a_jobs_prompt_has_a_budget_of_its_own_and_a_command_has_none(tmp_path: Path) -> None:
    text = RIGHT + 'cron:\n  ask: {schedule: "0 9 * * *", prompt: hello, agent: ops, budget: {runs_per_day: 3}}\n'
    text += "  run: {every: 6h, command: uptime}\n"
    allowances = read(tmp_path, text, ENVIRON).settings.allowances
    assert allowances[Kind.CRON, "ask"].own is not None
    assert (Kind.CRON, "run") not in allowances
    assert complaints(tmp_path, text.replace("command: uptime", "command: uptime, budget: {runs_per_day: 3}"), ENVIRON) == [
        "config.yaml:18:37: cron.run.budget: this key applies only to a prompt, and the job has none; remove budget, or write prompt: TEXT"
    ]


def test_a_reload_names_the_entries_whose_budget_changed(tmp_path: Path) -> None:
    before = read(tmp_path, RIGHT, ENVIRON)
    for old, new, lines in (
        ("runs_per_day: 60", "runs_per_day: 61", ["agent/ops: heartbeat.budget.runs_per_day 60 -> 61"]),
        (TOOL, "{budget: {usd_per_try: 0.03}}", ["agent/tool: heartbeat.budget.usd_per_try 0.02 -> 0.03"]),
        (LIMITS, "limits: {budget: {usd_per_day: 6}}", ["limits.budget.usd_per_day 5 -> 6"]),
    ):
        assert compare_configs(before, read(tmp_path, RIGHT.replace(old, new), ENVIRON)).lines() == lines


def test_an_entry_can_disable_an_inherited_budget(tmp_path: Path) -> None:
    text = RIGHT.replace(LIMITS, "limits: {}").replace("deliver: log}", "deliver: log, budget: {runs_per_day: 9}}", 1)
    allowances = read(tmp_path, text.replace(BUDGET, "budget: unlimited"), ENVIRON).settings.allowances
    assert list(allowances) == [(Kind.HEARTBEAT, "tool")]

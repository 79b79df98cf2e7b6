"""Tests of the maximum number of runs and the maximum cost per day."""

from __future__ import annotations

from pathlib import Path

import pytest
from config_file import read
from loops import loop_over
from world import utc

from scheduler.insight.daily_maximum import DailyMaximum, compute_daily_maximum

NOW = utc("2027-02-20 12:00")
PRICES = "prices: {big: {input: 2.0, output: 10.0, cache_write: 2.0}}\nproviders: {local: {kind: openai, base_url: 'http://127.0.0.1:9'}}\n"
MAX_COST = (50_000 * 2 + 2_000 * 10) / 1e6  # USD that one attempt may take


def maximum(folder: Path, beat: str, *, limits: str = "wake_flood: 1 per 24h", more: str = "") -> DailyMaximum:
    text = f"""{PRICES}limits: {{{limits}}}
calendars: {{weekend: {{days: sat-sun}}}}
agents:
  ops: {{runner: {{kind: openai, provider: local}}, model: big, heartbeat: {{deliver: log, {beat}}}}}
{more}"""
    return compute_daily_maximum(read(folder, text).settings, NOW)


# fmt: off
RUNS = [
    # the heartbeat, and its slots on the longest day of the year
    ("interval: 30m", 48),
    ("interval: 30m, timezone: Europe/Berlin", 50),  # a day of 25 hours
    ("interval: 30m, timezone: Australia/Lord_Howe", 49),  # of 24 and a half
    ("interval: 7m", 206),
    ("interval: none", 0),
    ('interval: 30m, active_hours: "08:00-22:00"', 28),
    ('interval: 30m, timezone: Europe/Berlin, active_hours: "22:00-06:00"', 20),  # two parts, of which one may open twice
    ('interval: 6h, active_hours: "08:00-09:00"', 1),
    ('interval: 24h, active_hours: ["08:00-09:00", "18:00-19:00"]', 2),  # a point of the day before may move to the first
    ('interval: 24h, active_hours: ["08:00-09:00", "12:00-13:00", "18:00-19:00"]', 2),
    ("interval: 24h, skip_on: weekend", 2),
    ('schedule: "0 9 * * mon-fri"', 1),
    ('schedule: "*/20 9-17 * * *"', 27),
    ('schedule: "*/20 * * * *", timezone: Europe/Berlin', 75),  # the slots of a wildcard repeat when the clock goes back
    ('schedule: "0 0-23 * * *", timezone: Europe/Berlin', 24),  # fixed times do not repeat
]
# fmt: on


@loop_over(("beat", "slots"), RUNS)
def test_the_maximum_of_a_day_includes_its_slots_a_late_one_and_the_runs_that_wakes_start(
    tmp_path: Path, beat: str, slots: int
) -> None:
    (ops,) = maximum(tmp_path, f"budget: unlimited, {beat}").entries
    assert ops.runs == slots + 1 + 2


def test_the_maximum_includes_every_run_that_a_wake_may_start(tmp_path: Path) -> None:
    (ops,) = maximum(tmp_path, "budget: unlimited, interval: none", limits="wake_flood: 5 per 10m").entries
    assert ops.runs == 1 + 5 * 145


def test_without_a_budget_the_number_of_attempts_limits_the_cost_of_a_day(tmp_path: Path) -> None:
    (ops,) = maximum(tmp_path, "budget: unlimited, interval: 24h").entries
    assert (ops.runs, ops.tries, ops.by) == (4, 4 * 6, "runs")  # three attempts, and three crashes
    assert ops.usd_per_day == pytest.approx(24 * 3 * MAX_COST)  # two further calls if an answer is incomplete


def test_without_a_budget_an_agent_that_is_not_asked_again_costs_one_call_an_attempt(tmp_path: Path) -> None:
    (ops,) = maximum(tmp_path, "budget: unlimited, interval: 24h, ask_again: 0").entries
    assert ops.usd_per_try == pytest.approx(MAX_COST)


def test_the_lower_of_budget_and_attempts_is_the_maximum_cost(tmp_path: Path) -> None:
    assert maximum(tmp_path, "interval: 30m, budget: {usd_per_day: 0.50}").entries[0].usd_per_day == 0.5
    seldom = maximum(tmp_path, "interval: 24h, budget: {usd_per_day: 100}").entries[0]
    assert (seldom.usd_per_day, seldom.by) == (pytest.approx(4 * 6 * MAX_COST), "runs")
    few = maximum(tmp_path, "interval: 30m, budget: {runs_per_day: 2}").entries[0]
    assert (few.runs, few.usd_per_day) == (2, pytest.approx(2 * 6 * MAX_COST))


def test_the_total_is_by_the_budget_of_all_entries(tmp_path: Path) -> None:
    assert maximum(tmp_path, "interval: 30m, budget: {usd_per_day: 0.50}").usd_per_day == 0.5
    total = maximum(tmp_path, "interval: 30m, budget: {usd_per_day: 0.50}", limits="budget: {usd_per_day: 0.30}")
    assert (total.usd_per_day, total.by) == (0.3, "limits.budget")
    both = maximum(tmp_path, "interval: 30m, budget: {usd_per_day: 0.50}", limits="budget: {usd_per_day: 0.30, usd_per_month: 2}")
    assert (both.usd_per_day, both.usd_per_month) == (0.3, 2)
    month = maximum(tmp_path, "interval: 30m, budget: {usd_per_day: 0.50}", limits="budget: {usd_per_month: 0.20}")
    assert (month.usd_per_day, month.usd_per_month, month.by) == (0.2, 0.2, "limits.budget")


def test_the_daily_budget_of_an_agent_in_another_zone_counts_twice_in_the_total(tmp_path: Path) -> None:
    assert maximum(tmp_path, "interval: 30m, timezone: Asia/Tokyo, budget: {usd_per_day: 0.50}").usd_per_day == 1.0


def test_if_one_entry_has_no_maximum_the_total_has_none(tmp_path: Path) -> None:
    more = "  tool: {runner: {kind: command, argv: [cat]}, heartbeat: {interval: 1h, deliver: log}}\n"
    total = maximum(tmp_path, "interval: 30m, budget: {usd_per_day: 0.50}", more=more)
    assert (total.usd_per_day, total.entries[1].usd_per_try, total.entries[1].usd_per_day) == (None, None, None)


@pytest.mark.parametrize("budget", ["{runs_per_day: 5}", "{tokens_per_day: 1m}"])
def test_a_model_without_a_price_has_no_maximum_cost_even_with_other_limits(tmp_path: Path, budget: str) -> None:
    total = maximum(tmp_path, f"model: other, interval: 30m, budget: {budget}")
    assert (total.usd_per_day, total.entries[0].usd_per_try, total.entries[0].usd_per_day) == (None, None, None)


@pytest.mark.parametrize("usd", [0, 0.25])
def test_usd_per_run_of_a_program_limits_the_cost_of_a_day_without_another_budget(tmp_path: Path, usd: float) -> None:
    beat = f"interval: 24h, deliver: log, budget: {{usd_per_try: {usd}}}"
    more = f"  tool: {{runner: {{kind: command, argv: [cat]}}, heartbeat: {{{beat}}}}}\n"
    total = maximum(tmp_path, "enabled: false, interval: 30m", more=more)
    assert (total.entries[0].usd_per_try, total.usd_per_day) == (usd, 4 * 6 * usd)


def test_a_job_with_a_prompt_counts_and_a_job_with_a_command_does_not(tmp_path: Path) -> None:
    more = 'cron: {ask: {schedule: "0 9 * * *", prompt: hello, agent: ops}, run: {every: 1h, command: uptime}}\n'
    total = maximum(tmp_path, "interval: none", more=more)
    assert [(each.name, each.runs, each.tries) for each in total.entries[1:]] == [("ask", 2, 2)]
    more = "cron: {a: {every: 1h, command: x}, b: {after: a, command: x}, ask: {after: b, prompt: hello, agent: ops}}"
    assert [each.runs for each in maximum(tmp_path, "interval: none", more=more).entries[1:]] == [1 + 24]

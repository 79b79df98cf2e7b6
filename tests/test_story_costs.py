"""What each run records about its cost: who woke it, which models it called, what filled its prompt, and its budgets."""

from __future__ import annotations

import json
from datetime import date

import pytest
from servers import completions
from servers.scripted import Server, reply
from test_story_budgets import cost_report, model_agent
from world import MakeWorld

from scheduler.model.budget import Amount
from scheduler.store import spend

TEAM = """
timezone: Asia/Kolkata
limits: {budget: {usd_per_day: 1}, wake_gap: 0s}
defaults: {heartbeat: {stagger: 0s, deliver: log, checklist: "- look\\n"}}
agents:
  ops: {runner: {kind: command, argv: [agent]}, heartbeat: {interval: 1h, budget: {usd_per_run: 0.3}}}
  lab: {runner: {kind: command, argv: [agent]}, heartbeat: {interval: none, budget: {usd_per_run: 0.1, runs_per_day: 9}}}
cron:
  nightly: {command: backup, schedule: "30 8 * * *", timezone: UTC, wake_heartbeat: lab, wake_mode: now, wake_on: always}
"""


def test_a_run_that_a_job_woke_names_the_job_and_a_scheduled_run_names_nobody(make_world: MakeWorld) -> None:
    world = make_world(TEAM)
    world.run(minutes=40)
    world.wake("lab", "look", sender="pager <1>")
    world.run(minutes=1)
    assert [(row["name"], row["trigger"], row["woken_by"]) for row in world.records() if row["kind"] == "heartbeat"] == [
        ("ops", "interval", None),
        ("lab", "cron", "nightly"),
        ("lab", "api", "pager <1>"),
    ]


def test_a_retry_of_a_wake_still_names_its_sender(make_world: MakeWorld) -> None:
    world = make_world(TEAM, scripts={"lab": lambda call: 1})
    world.wake("lab", "look", sender="pager")
    world.run(minutes=3)
    assert [(row["outcome"], row["woken_by"]) for row in world.records("lab")] == [("failed", "pager"), ("failed", "pager")]


@pytest.mark.parametrize("decision_is_priced", [True, False])
def test_the_usage_of_a_run_is_recorded_for_each_model_that_it_called(make_world: MakeWorld, *, decision_is_priced: bool) -> None:
    decision = completions.completion(None, calls=[completions.tool("decide", {"action": "run", "tasks": "look"})])
    with Server([reply(decision), completions.text_answer("HEARTBEAT_OK")]) as server:
        price = "small: {input: 1.0, output: 2.0}, " if decision_is_priced else ""
        world = make_world(f"""
providers: {{local: {{kind: openai, base_url: "{server.url}"}}}}
prices: {{{price}big: {{input: 2.0, output: 10.0}}}}
agents:
  ops:
    runner: {{kind: openai, provider: local}}
    model: big
    heartbeat: {{interval: 1h, stagger: 0s, checklist: "- look\\n", deliver: log, decide: {{model: small, provider: local}}}}
""")
        world.run(minutes=1)
    (run,) = world.records()
    small, big = run["models"]
    assert [(used["model"], used["calls"], used["tokens"]["output"]) for used in (small, big)] == [
        ("small", 1, 30),
        ("big", 1, 30),
    ]
    assert big["cost_usd"] == pytest.approx((127 * 2 + 30 * 10) / 1e6)
    assert (small["cost_usd"] is None, run["cost_usd"] is None) == (not decision_is_priced, not decision_is_priced)
    if decision_is_priced:
        assert small["cost_usd"] + big["cost_usd"] == pytest.approx(run["cost_usd"])


def test_the_usage_of_all_attempts_of_a_run_is_added_up_by_model(make_world: MakeWorld) -> None:
    report = json.dumps({"is_error": True, "result": "overloaded", "total_cost_usd": 0.01, "usage": {"input_tokens": 7}})
    world = make_world(TEAM.replace("interval: 1h", "interval: 1h, retries: 1"), scripts={"ops": lambda call: report})
    world.run(minutes=30)
    (run,) = world.records("ops")
    assert run["attempt"] == 2
    assert run["models"] == [
        {
            "model": None,
            "calls": 2,
            "tokens": {"input": 14, "output": 0, "cache_read": 0, "cache_write": 0},
            "cost_usd": pytest.approx(0.02),
        }
    ]


def test_the_messages_of_a_kept_session_are_a_part_of_the_prompt(make_world: MakeWorld) -> None:
    with Server([completions.text_answer("The disk is full.")] * 2) as server:
        world = make_world(model_agent(server.url, "unlimited", isolated_session="false"))
        world.run(hours=1, minutes=1)
    first, second = ({part["name"]: part["chars"] for part in row["prompt_parts"]} for row in world.records("ops"))
    assert "session" not in first
    assert second["session"] > len("The disk is full.")


def test_the_share_of_each_agent_in_the_common_budget_is_its_actual_usage(make_world: MakeWorld) -> None:
    world = make_world(TEAM, scripts={"ops": cost_report(0.25), "lab": cost_report(0.02)})
    world.run(hours=1, minutes=1)
    shares = spend.shares_of_day(world.store.connection, date(2026, 3, 2))
    assert shares == {("heartbeat", "ops"): Amount(500_000_000, 0, 2), ("heartbeat", "lab"): Amount(20_000_000, 0, 1)}


def test_the_budgets_in_force_are_recorded_with_the_entries_that_they_count(make_world: MakeWorld) -> None:
    world = make_world(TEAM)
    world.settle()
    shared, own = spend.budgets_in_force(world.store.connection).items()
    assert (shared[0], shared[1][0].usd_per_day, shared[1][0].zone.key) == (("", ""), 1.0, "Asia/Kolkata")
    assert shared[1][1] == [("heartbeat", "ops"), ("heartbeat", "lab")]
    assert (own[0], own[1][0].runs_per_day, own[1][1]) == (("heartbeat", "lab"), 9, [("heartbeat", "lab")])
    world.reload(TEAM.replace("limits: {budget: {usd_per_day: 1}, ", "limits: {").replace(", runs_per_day: 9", ""))
    assert spend.budgets_in_force(world.store.connection) == {}


def test_shares_of_earlier_weeks_are_deleted(make_world: MakeWorld) -> None:
    world = make_world(TEAM)
    world.run(days=10)
    days = [row[0] for row in world.store.connection.execute("select distinct day from budget_share order by day")]
    assert days[0] >= "2026-03-04"
    assert days[-1] == "2026-03-12"

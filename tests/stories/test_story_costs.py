"""What each run records about its cost: who woke it, which models it called, what filled its prompt, and its budgets."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from servers import completions
from servers.scripted import Server, reply
from test_story_budgets import cost_report, model_agent, program_agent
from test_story_explain import explained_entry
from world import AgentCall, Delayed, MakeWorld, World

from scheduler.cli import status
from scheduler.cli.main import main
from scheduler.cli.output import format_time
from scheduler.insight import explanation
from scheduler.insight.status_data import read_status
from scheduler.model.budget import Amount
from scheduler.store import spend
from scheduler.work.executor import Interrupted

TEAM = """
timezone: Asia/Kolkata
limits: {budget: {usd_per_day: 1}, wake_gap: 0s}
defaults: {heartbeat: {stagger: 0s, deliver: log, checklist: "- look\\n"}}
agents:
  ops: {runner: {kind: command, argv: [agent]}, heartbeat: {interval: 1h, budget: {usd_per_try: 0.3}}}
  lab: {runner: {kind: command, argv: [agent]}, heartbeat: {interval: none, budget: {usd_per_try: 0.1, runs_per_day: 9}}}
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
    assert [(row["result"], row["woken_by"]) for row in world.records("lab")] == [("failed", "pager"), ("failed", "pager")]


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
    assert run["tries"] == 2
    assert run["models"] == [
        {
            "model": None,
            "calls": 2,
            "tokens": {"input": 14, "output": 0, "cache_read": 0, "cache_write": 0},
            "cost_usd": pytest.approx(0.02),
        }
    ]


@pytest.mark.parametrize("costs", [(None, 0.01), (0.01, None)])
def test_the_cost_of_a_run_is_unknown_if_that_of_one_attempt_is(make_world: MakeWorld, costs: tuple[float | None, ...]) -> None:
    reports = iter(
        {"is_error": True, "result": "overloaded", "total_cost_usd": usd, "usage": {"input_tokens": 7}} for usd in costs
    )
    world = make_world(
        TEAM.replace("interval: 1h", "interval: 1h, retries: 1"), scripts={"ops": lambda call: json.dumps(next(reports))}
    )
    world.run(minutes=30)
    (run,) = world.records("ops")
    assert (run["tries"], run["tokens"]["input"], run["cost_usd"]) == (2, 14, None)


def test_the_usage_of_a_run_is_added_up_although_its_first_attempt_was_recorded_without_a_kind_of_tokens(
    make_world: MakeWorld,
) -> None:
    """An upgrade adds a kind of tokens while the run waits for its retry."""
    report = json.dumps({"is_error": True, "result": "overloaded", "total_cost_usd": 0.01, "usage": {"input_tokens": 7}})
    world = make_world(TEAM.replace("interval: 1h", "interval: 1h, retries: 1"), scripts={"ops": lambda call: report})
    world.engine.tick(world.clock.read())
    world.engine.tick(world.clock.read())
    with world.store.transaction() as db:
        db.execute("update run set model_usage = replace(model_usage, ', \"cache_write\": 0', '') where name = 'ops'")
        assert "cache_write" not in db.execute("select model_usage from run where name = 'ops'").fetchone()[0]
    world.run(minutes=5)
    (run,) = world.records("ops")
    assert (run["result"], run["tries"]) == ("failed", 2)
    assert run["models"][0]["tokens"]["cache_write"] == 0


def test_the_messages_of_a_kept_session_are_a_part_of_the_prompt(make_world: MakeWorld) -> None:
    with Server([completions.text_answer("The disk is full.")] * 2) as server:
        world = make_world(model_agent(server.url, "unlimited", isolated_session="false"))
        world.run(hours=1, minutes=1)
    first, second = ({part["name"]: part["tokens"] for part in row["prompt_parts"]} for row in world.records("ops"))
    assert "session" not in first
    assert second["session"] > first["checklist"]


def test_the_share_of_each_agent_in_the_common_budget_is_its_actual_usage(make_world: MakeWorld) -> None:
    world = make_world(TEAM, scripts={"ops": cost_report(0.25), "lab": cost_report(0.02)})
    world.run(hours=1, minutes=1)
    shares = spend.shares_of_period(world.store.connection, date(2026, 3, 2), "usd_per_day")
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
    for _ in range(11):
        world.run(hours=2)
        world.downtime(days=3, hours=22)
    world.run(hours=2)
    days = [row[0] for row in world.store.connection.execute("select distinct day from budget_share order by day")]
    assert days[0] >= "2026-03-04"
    assert days[-1] == "2026-04-15"


def fleet(budget: str) -> str:
    """Five agents with a common budget."""
    agents = "".join(
        f"  a{number}: {{runner: {{kind: command, argv: [agent]}}, heartbeat: {{interval: 1h, budget: {{usd_per_try: 1}}}}}}\n"
        for number in range(1, 6)
    )
    return f"""
timezone: Europe/Berlin
limits: {{budget: {budget}}}
channels: {{ops: {{kind: webhook, url: "https://chat.example.org/hook"}}}}
defaults: {{heartbeat: {{stagger: 0s, deliver: ops, checklist: "- look\\n", problems: {{after: 1}}}}}}
agents:
{agents}"""


def fleet_costs() -> dict[str, Callable[[AgentCall], str]]:
    """The costs of a run: a5 is the most expensive agent."""
    return {f"a{number}": cost_report(number / 10) for number in range(1, 6)}


EXHAUSTED = (
    "limits.budget.usd_per_day: 1.5 of 2 USD are used, and one try may cost 1; until 2026-03-03 00:00 Europe/Berlin;"
    " used by agent/a5 0.5, agent/a4 0.4, agent/a3 0.3, others 0.3"
)


def test_the_error_of_an_exhausted_common_budget_names_the_agents_that_used_most_of_it(make_world: MakeWorld) -> None:
    world = make_world(fleet("{usd_per_day: 9}"), scripts=fleet_costs())
    world.run(minutes=1)
    world.reload(fleet("{usd_per_day: 2}"))
    world.run(hours=1)
    assert [row["error"] for row in world.records("a1")] == [None, EXHAUSTED]
    assert [EXHAUSTED in text for _, name, text in world.delivered if name == "a1"] == [True]
    explained = explanation.explain_now(explained_entry(world, "a1")).as_data()["now"]
    assert explained["detail"] == EXHAUSTED


@pytest.mark.parametrize(
    ("budget", "text"),
    [
        ("{runs_per_day: 5}", "limits.budget.runs_per_day: 5 of 5 are used"),
        ("{runs_per_day: 5, usd_per_day: 99}", "used by agent/a1 1, agent/a2 1, agent/a3 1, others 2"),
    ],
)
def test_the_parts_of_the_agents_are_in_the_unit_of_the_exceeded_limit(make_world: MakeWorld, budget: str, text: str) -> None:
    world = make_world(fleet(budget), scripts=fleet_costs())
    world.run(hours=1, minutes=1)
    assert text in world.records("a1")[-1]["error"]


def test_the_parts_of_the_agents_are_those_of_today(make_world: MakeWorld) -> None:
    world = make_world(fleet("{runs_per_day: 5}"), scripts=fleet_costs())
    world.run(hours=17)
    error = world.records("a1")[-1]["error"]
    assert "until 2026-03-04 00:00" in error
    assert "used by agent/a1 1, agent/a2 1, agent/a3 1, others 2" in error


def test_an_entry_over_its_own_budget_names_no_others(make_world: MakeWorld) -> None:
    world = make_world(TEAM.replace("usd_per_try: 0.3", "usd_per_try: 0.3, runs_per_day: 1"))
    world.run(hours=1, minutes=1)
    assert world.records("ops")[-1]["error"] == "runs_per_day: 1 of 1 are used; until 2026-03-03 00:00 Asia/Kolkata"


SHARES = " agent/a5 $1.00, agent/a4 $0.80, agent/a3 $0.60"


def budget_lines(world: World, now: datetime) -> str:
    """The lines of `heartbeatd status` about costs and budgets, and the days with their ends as `DAY`."""
    data = read_status(world.store.connection, now, ZoneInfo("Europe/Berlin"))
    assert data.spend is not None
    text = "\n".join(line.text for line in (*status._spend_lines(data.spend), *status._budget_lines(data.budgets)))
    return text.replace(format_time(data.spend.since)[:16], "TODAY").replace(format_time(data.spend.until)[:16], "TOMORROW")


def test_status_shows_the_cost_of_today_and_what_each_budget_counts(make_world: MakeWorld) -> None:
    yaml = fleet("{usd_per_day: 9}").replace("interval: 1h, budget: {", "interval: 1h, budget: {runs_per_day: 20, ", 1)
    world = make_world(yaml, scripts=fleet_costs(), start="2026-03-01 22:00")  # Berlin is an hour ahead of UTC
    world.run(hours=2, minutes=1)
    assert budget_lines(world, world.clock.now).splitlines() == [
        "spent: $3.00 today for 10 runs since TODAY",
        "budget: all: $3.00 of $9.00 today, resets TOMORROW; counts 5 agents; most used by" + SHARES,
        "budget: agent/a1: 2 of 20 runs today, resets TOMORROW",
    ]


def test_the_reservation_of_a_run_that_waits_for_another_try_is_shown_as_unknown(make_world: MakeWorld) -> None:
    world = make_world("limits: {budget: {usd_per_day: 2}}\n" + program_agent("{usd_per_try: 1}", retries="1"))
    world.scripts["ops"] = lambda call: 1
    world.engine.tick(world.clock.read())
    world.settle()
    assert world.records()[0]["state"] == "waiting"
    (budget,) = read_status(world.store.connection, world.clock.now).budgets
    assert (budget.limits["usd_per_day"].used, budget.untold_usd) == (1.0, 1.0)


@pytest.mark.parametrize("lost", ["daemon", "worker"])
def test_the_reservation_of_an_interrupted_attempt_is_shown_wherever_it_counts(
    make_world: MakeWorld, capsys: pytest.CaptureFixture[str], lost: str
) -> None:
    """It stays charged, because the provider may bill the attempt. Nobody knows whether it does. The next attempt costs 0.1 USD."""
    unknown = " (1 of it is reserved for runs of unknown cost)"
    world = make_world("limits: {budget: {usd_per_day: 2}}\n" + program_agent("{usd_per_try: 1}"))
    in_progress = Delayed("", timedelta(minutes=9)) if lost == "daemon" else Interrupted("w1 was lost", was_stopped=False)
    world.scripts["ops"] = lambda call: in_progress if len(world.calls) == 1 else cost_report(0.1)(call)
    world.run(minutes=1)
    if lost == "daemon":
        world.downtime(minutes=1)
    world.run(minutes=1)

    (run,) = world.records()
    assert (run["tries"], run["cost_usd"], run["charged"]["usd"]) == (2, 0.1, 1.1)
    (budget,) = read_status(world.store.connection, world.clock.now).budgets
    assert (budget.limits["usd_per_day"].used, budget.untold_usd) == (1.1, 1.0)
    assert f"budget: all: $1.10 of $2.00{unknown} today" in budget_lines(world, world.clock.now)
    assert main(["-c", str(world.config), "show", str(run["id"])]) == 0
    assert f"1.100000 USD, 0 tokens{unknown}\n" in capsys.readouterr().out
    world.run(hours=1)
    assert world.records()[-1]["error"].startswith(f"limits.budget.usd_per_day: 1.1 of 2 USD are used{unknown}, and one")


def test_status_shows_a_common_budget_that_was_not_used_today(make_world: MakeWorld) -> None:
    yaml = fleet("{usd_per_day: 9}").replace("interval: 1h, budget: {", "interval: 1h, budget: {runs_per_day: 20, ", 1)
    world = make_world(yaml)
    world.settle()
    assert budget_lines(world, world.clock.now + timedelta(days=1)).splitlines() == [
        "budget: all: $0.00 of $9.00 today, resets TOMORROW; counts 5 agents",
        "budget: 1 other counted nothing today",
    ]


def test_status_reads_the_runs_of_a_day_once_for_the_budgets_of_many_agents(make_world: MakeWorld) -> None:
    """A thousand agents with 48 runs a day took 14 s before."""
    yaml = fleet("{usd_per_day: 9}").replace("budget: {usd_per_try: 1}", "budget: {usd_per_try: 1, usd_per_day: 3}")
    world = make_world(yaml, scripts=fleet_costs())
    world.run(hours=1, minutes=1)
    statements: list[str] = []
    world.store.connection.set_trace_callback(statements.append)
    budgets = read_status(world.store.connection, world.clock.now).budgets
    world.store.connection.set_trace_callback(None)
    assert [each.name for each in budgets] == [None, "a1", "a2", "a3", "a4", "a5"]
    assert sum("charged_nanos" in each and "'running'" in each for each in statements) == 1


def test_status_as_json_lists_what_each_budget_counts(make_world: MakeWorld) -> None:
    world = make_world(TEAM, scripts={"ops": cost_report(0.25), "lab": lambda call: "HEARTBEAT_OK"})
    world.run(minutes=40)
    data = read_status(world.store.connection, world.clock.now, ZoneInfo("Asia/Kolkata")).as_data()
    shared, own = data["budgets"]
    assert shared == {
        "kind": None,
        "name": None,
        "day": "2026-03-02",
        "timezone": "Asia/Kolkata",
        "ends_at": "2026-03-02T18:30:00Z",
        "month_ends_at": "2026-03-31T18:30:00Z",
        "limits": {"usd_per_day": {"used": 0.35, "of": 1.0}},
        "untold_usd": 0.1,
        "counts": [{"kind": "heartbeat", "name": "ops"}, {"kind": "heartbeat", "name": "lab"}],
        "shares": [
            {"kind": "heartbeat", "name": "ops", "usd": 0.25, "tokens": 0, "runs": 1},
            {"kind": "heartbeat", "name": "lab", "usd": 0.1, "tokens": 0, "runs": 1},
        ],
    }
    assert (own["name"], own["limits"], own["shares"]) == ("lab", {"runs_per_day": {"used": 1, "of": 9}}, [])
    assert data["spend"] == {
        "since": "2026-03-01T18:30:00Z",
        "until": "2026-03-02T18:30:00Z",
        "timezone": "Asia/Kolkata",
        "runs": 3,
        "cost_usd": 0.25,
        "runs_without_price": 0,
        "untold_usd": 0.1,
    }

"""Budgets end to end: a daily limit is never exceeded, and unreported usage is charged at its maximum."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from servers import completions
from servers.messages import error_answer, text_answer
from servers.scripted import Act, Server, hang_up, reply
from test_story_explain import explained_entry
from world import QUIET, AgentCall, Delayed, MakeWorld, World, count_steps, utc

from heartbeat.runners import ProcessResult
from heartbeatd.verbs import HoldLock
from scheduler.cli.main import main
from scheduler.engine.effects import VerbRequest
from scheduler.insight import explanation, health
from scheduler.insight.status_data import read_entries, read_status
from scheduler.model.budget import Budget
from scheduler.model.outcome import Kind
from scheduler.store import spend
from scheduler.telemetry import gauges
from scheduler.telemetry.catalog import Reading
from scheduler.work.executor import NeverBegun


def program_agent(budget: str, **heartbeat: str) -> str:
    """An agent that is a program, whose cost is only known from its reports."""
    words = {"interval": "1h", "stagger": "0s", "checklist": '"- look\\n"', "deliver": "log", "budget": budget} | heartbeat
    beat = ", ".join(f"{key}: {value}" for key, value in words.items())
    return f"agents: {{ops: {{runner: {{kind: command, argv: [agent]}}, heartbeat: {{{beat}}}}}}}\n"


def model_agent(url: str, budget: str, **heartbeat: str) -> str:
    """An agent that calls a model: at most 3,000 input and 500 output tokens, together 0.011 USD."""
    words = {"interval": "1h", "stagger": "0s", "checklist": '"- look\\n"', "deliver": "log", "budget": budget} | heartbeat
    beat = ", ".join(f"{key}: {value}" for key, value in words.items())
    return f"""
providers: {{local: {{kind: openai, base_url: "{url}"}}}}
prices: {{big: {{input: 2.0, output: 10.0, cache_write: 2.0}}}}
defaults: {{heartbeat: {{max_input_tokens: 3k, max_output_tokens: 500}}}}
agents: {{ops: {{runner: {{kind: openai, provider: local}}, model: big, heartbeat: {{{beat}}}}}}}
"""


def cost_report(cost: float) -> Callable[[AgentCall], str]:
    return lambda call: json.dumps({"result": "HEARTBEAT_OK", "total_cost_usd": cost})


def outcomes(world: World) -> list[str]:
    """The outcome and reason of each run record."""
    return [" ".join(line.split(" ")[3:]).replace(" heartbeat_ok", "") for line in world.history()]


def used_today(world: World, key: str = "usd_per_day") -> float:
    """Today's usage as status reports it."""
    return read_status(world.store.connection, world.clock.now).as_data()["entries"][0]["budget"][key]["used"]


def test_a_call_that_ended_before_it_began_costs_nothing(make_world: MakeWorld) -> None:
    world = make_world(program_agent("{usd_per_day: 1, usd_per_try: 0.9}"), scripts={"ops": lambda call: NeverBegun()})
    world.run(minutes=1)
    assert (world.history(), world.records()[0]["error"]) == (
        ["03-02 08:00 interval failed exit"],
        "was cancelled before it started",
    )
    assert used_today(world) == 0


def test_a_daily_budget_starts_again_on_the_next_day(make_world: MakeWorld) -> None:
    world = make_world(
        program_agent("{usd_per_day: 0.10, usd_per_try: 0.03}"), start="2026-03-02 20:00", scripts={"ops": cost_report(0.03)}
    )
    world.run(hours=6, minutes=1)
    assert outcomes(world) == ["ok", "ok", "ok", "skipped budget", "ok", "ok", "ok"]


def test_a_budget_day_is_a_day_in_the_agents_time_zone(make_world: MakeWorld) -> None:
    yaml = program_agent("{runs_per_day: 1}", timezone="Asia/Ho_Chi_Minh")  # UTC+7
    world = make_world(yaml, start="2026-03-02 15:00")
    world.run(hours=3, minutes=1)
    assert outcomes(world) == ["ok", "skipped budget", "ok", "skipped budget"]


def test_a_change_of_zone_opens_no_second_budget_day(make_world: MakeWorld, tmp_path: Path) -> None:
    """Neither to the east, where tomorrow has begun, nor to the west, nor if the agent is disabled in between."""
    budget, east, west = "{runs_per_day: 2}", "Pacific/Kiritimati", "Pacific/Pago_Pago"
    off = program_agent(budget, timezone=east, enabled="false")
    for number, zones in enumerate(([east], [west], [off, east], [east, west, east])):
        folder = tmp_path / str(number)
        folder.mkdir()
        world = make_world(program_agent(budget, timezone="UTC"), folder=folder, start="2026-03-02 09:00")
        world.run(minutes=30)
        for zone in zones:
            world.reload(zone if zone is off else program_agent(budget, timezone=zone))
            world.run(minutes=10)
        world.run(hours=11)
        assert outcomes(world).count("ok") == 2, (zones, world.history())
        status = read_status(world.store.connection, world.clock.now).as_data()
        assert (status["budgets"][0]["day"], status["budgets"][0]["limits"]["runs_per_day"]["used"]) == ("2026-03-02", 2), zones
        assert datetime.fromisoformat(status["budgets"][0]["ends_at"]) > world.clock.now, zones
        assert used_today(world, "runs_per_day") == 2, zones
        world.run(hours=16)
        assert outcomes(world).count("ok") > 2, (zones, world.history())


@pytest.mark.parametrize("restart", [False, True])
def test_a_budget_day_lasts_until_its_end_in_a_new_zone(make_world: MakeWorld, restart: bool) -> None:
    world = make_world(program_agent("{runs_per_day: 1}", timezone="UTC"), start="2026-03-02 09:00")
    world.run(minutes=1)
    in_the_west = program_agent("{runs_per_day: 1}", timezone="Pacific/Pago_Pago")
    if restart:
        world.kill()
        world.write_config(in_the_west)
        world.boot()
    else:
        world.reload(in_the_west)
    status = read_status(world.store.connection, world.clock.now).as_data()
    for shown in (status["budgets"][0], status["entries"][0]["budget"]):
        assert (shown["day"], shown["ends_at"]) == ("2026-03-02", "2026-03-03T11:00:00Z")
    world.run(hours=27)
    assert [call.at for call in world.calls] == [utc("2026-03-02 09:00"), utc("2026-03-03 11:00")]


def test_reported_usage_replaces_the_reservation(make_world: MakeWorld) -> None:
    world = make_world(program_agent("{usd_per_day: 0.10, usd_per_try: 0.05}"), scripts={"ops": cost_report(0.01)})
    world.run(hours=9, minutes=1)
    assert outcomes(world) == ["ok"] * 6 + ["skipped budget"] * 4  # 6 cents are charged, so 5 more exceed the budget
    assert used_today(world) == pytest.approx(0.06)
    assert world.records()[0]["charged"] == {"usd": 0.01, "tokens": 0}


def test_unreported_usage_is_charged_at_its_maximum_and_recorded(make_world: MakeWorld) -> None:
    world = make_world(program_agent("{usd_per_day: 0.10, usd_per_try: 0.05}"), scripts={"ops": lambda call: "HEARTBEAT_OK"})
    world.run(hours=2, minutes=1)
    assert outcomes(world) == ["ok", "ok", "skipped budget"]
    assert [(row["cost_usd"], row["charged"]) for row in world.records()] == [
        (None, {"usd": 0.05, "tokens": 0}), (None, {"usd": 0.05, "tokens": 0}), (None, None)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {},
        {"prompt_tokens": -100, "completion_tokens": -10},
        {"prompt_tokens": 0, "completion_tokens": 0},
        {"prompt_tokens": 100},
        {"prompt_tokens": "100", "completion_tokens": 10},
        {"prompt_tokens": 2**53 - 1, "completion_tokens": 10},
    ],
)
def test_an_implausible_usage_of_a_model_is_charged_at_its_maximum(make_world: MakeWorld, usage: Any) -> None:
    with Server([reply(completions.completion("HEARTBEAT_OK", usage=usage))]) as server:
        world = make_world(model_agent(server.url, "{usd_per_day: 1}"))
        world.run(minutes=1)
    assert world.records()[0]["charged"] == {"usd": 0.011, "tokens": 3500}


def test_a_plausible_usage_is_charged_as_reported(make_world: MakeWorld) -> None:
    with Server([completions.text_answer("HEARTBEAT_OK")]) as server:
        world = make_world(model_agent(server.url, "{usd_per_day: 1, tokens_per_day: 10k}"))
        world.run(minutes=1)
    assert world.records()[0]["charged"] == {"usd": pytest.approx((127 * 2 + 30 * 10) / 1e6, abs=2e-6), "tokens": 157}
    assert used_today(world, "tokens_per_day") == 157


@pytest.mark.parametrize(("prompt", "answer", "charged"), [(127, 30, 157), (0, 0, 3500)])
def test_a_model_without_a_price_is_charged_by_its_tokens(make_world: MakeWorld, prompt: int, answer: int, charged: int) -> None:
    """Also by those that came from a cache."""
    cached = {"cached_tokens": prompt // 2}
    usage = {"prompt_tokens": prompt, "completion_tokens": answer, "prompt_tokens_details": cached}
    with Server([reply(completions.completion("HEARTBEAT_OK", usage=usage))]) as server:
        world = make_world(re.sub("prices: .*", "prices: {}", model_agent(server.url, "{tokens_per_day: 10k}")))
        world.run(minutes=1)
    assert world.records()[0]["charged"] == {"usd": 0, "tokens": charged}


def test_an_impossible_usage_does_not_stop_the_agent(make_world: MakeWorld) -> None:
    usage = {"prompt_tokens": 10**9, "completion_tokens": 10**9}
    with Server([reply(completions.completion("HEARTBEAT_OK", usage=usage))] * 5) as server:
        dear = model_agent(server.url, "{runs_per_day: 9}").replace("input: 2.0, output: 10.0", "input: 1000000, output: 1000000")
        world = make_world(dear)
        world.run(hours=4, minutes=1)
    assert outcomes(world) == ["ok"] * 5
    assert [(row["cost_usd"], row["charged"]["usd"]) for row in world.records()] == [(None, 3500.0)] * 5


@pytest.mark.parametrize("cost", [0.0, 0.004])
def test_the_cost_reported_by_a_program_is_added_to_the_cost_of_the_decision(make_world: MakeWorld, cost: float) -> None:
    decision = completions.completion(None, calls=[completions.tool("decide", {"action": "run", "tasks": "look"})])
    with Server([reply(decision)]) as server:
        yaml = model_agent(server.url, "{usd_per_day: 1, usd_per_try: 0.05}", decide="{model: big, provider: local}")
        yaml = yaml.replace("{kind: openai, provider: local}, model: big", "{kind: command, argv: [agent]}")
        world = make_world(yaml, scripts={"ops": cost_report(cost)})
        world.run(minutes=1)
    decided = (127 * 2 + 30 * 10) / 1e6
    assert world.records()[0]["charged"]["usd"] == pytest.approx(decided + cost, abs=2e-6)


def test_a_program_that_cannot_be_started_costs_nothing(make_world: MakeWorld) -> None:
    missing = ProcessResult(None, problem="no such file: agent")
    world = make_world(
        program_agent("{usd_per_day: 0.10, usd_per_try: 0.05}", retries="0"), scripts={"ops": lambda call: missing}
    )
    world.run(hours=3, minutes=1)
    assert outcomes(world) == ["failed exit"] * 4
    assert used_today(world) == 0.0


@pytest.mark.parametrize(("reported", "charged"), [(0.001, 0.05), (0.06, 0.06)])
def test_an_async_answer_is_charged_at_least_its_maximum(make_world: MakeWorld, reported: float, charged: float) -> None:
    with Server([reply({"later": True, "cost_usd": reported})]) as server:
        yaml = program_agent("{usd_per_day: 1, usd_per_try: 0.05}").replace(
            "kind: command, argv: [agent]", f'kind: http, url: "{server.url}"'
        )
        world = make_world(yaml)
        world.run(minutes=1)
    assert outcomes(world) == ["async"]
    assert world.records()[0]["charged"]["usd"] == charged


@pytest.mark.parametrize(
    ("act", "charged"),
    [
        (completions.error_answer(429, "slow down"), 0.0),
        (completions.error_answer(401, "who are you"), 0.0),
        (completions.error_answer(503, "too much to do"), 0.0),
        (completions.error_answer(500, "broken"), 0.011),
        (hang_up(), 0.011),
    ],
)
def test_a_refused_request_costs_nothing_and_a_failed_one_its_maximum(make_world: MakeWorld, act: Act, charged: float) -> None:
    with Server([act]) as server:
        world = make_world(model_agent(server.url, "{usd_per_day: 1}", retries="0"))
        world.run(minutes=1)
    assert world.records()[0]["charged"]["usd"] == charged


def test_an_unreachable_provider_costs_nothing(make_world: MakeWorld) -> None:
    with Server([]) as server:
        closed_url = server.url
    world = make_world(model_agent(closed_url, "{usd_per_day: 1}", retries="0"))
    world.run(minutes=1)
    assert (world.records()[0]["why"], world.records()[0]["charged"]["usd"]) == ("connect", 0.0)


def test_a_provider_with_an_untrusted_certificate_costs_nothing(make_world: MakeWorld) -> None:
    with Server([], tls=True) as server:
        world = make_world(model_agent(server.url, "{usd_per_day: 1}", retries="0"))
        world.run(minutes=1)
    assert (world.records()[0]["why"], world.records()[0]["charged"]["usd"]) == ("tls", 0.0)


def test_the_reservation_includes_the_decision(make_world: MakeWorld) -> None:
    decision = completions.completion(None, calls=[completions.tool("decide", {"action": "skip", "tasks": ""})], usage=None)
    with Server([reply(decision)]) as server:
        world = make_world(model_agent(server.url, "{usd_per_day: 0.03}", decide="{model: big}"))
        world.run(hours=1, minutes=1)
    assert outcomes(world) == ["ok decided_skip", "skipped budget"]
    assert world.records()[0]["charged"] == {"usd": 0.022, "tokens": 7000}


def test_tasks_that_would_exceed_the_reservation_are_not_sent(make_world: MakeWorld) -> None:
    decision = completions.completion(None, calls=[completions.tool("decide", {"action": "run", "tasks": "look " * 600})])
    with Server([reply(decision)]) as server:
        world = make_world(model_agent(server.url, "{usd_per_day: 1}", decide="{model: big}"))
        world.run(minutes=1)
        assert len(server.requests) == 1
    assert outcomes(world) == ["failed too_large"]


def test_under_a_budget_a_prompt_is_measured_at_one_token_per_byte(make_world: MakeWorld) -> None:
    with Server([completions.text_answer("HEARTBEAT_OK")]) as server:
        world = make_world(model_agent(server.url, "{usd_per_day: 1}"))
        world.wake("ops", "ä" * 1200)  # estimated at 1,200 tokens, but 2,400 bytes
        world.run(minutes=1)
        world.reload(model_agent(server.url, "unlimited"))
        world.run(minutes=1)
        world.wake("ops", "now")
        world.run(minutes=1)
    assert outcomes(world)[0] == "skipped prompt_too_large"
    size = world.records()[0]["error"]
    assert re.fullmatch(r"3,\d{3} bytes, counted as tokens because a budget applies, and max_input_tokens is 3,000", size), size
    assert outcomes(world)[-1] == "ok"
    assert world.records()[0]["charged"] == {"usd": 0.0, "tokens": 0}


def test_an_agent_whose_budget_is_spent_is_not_called_failing(make_world: MakeWorld, capsys: pytest.CaptureFixture[str]) -> None:
    world = make_world(program_agent("{runs_per_day: 1}"))
    world.run(hours=5)
    entries = read_entries(world.store.connection, world.clock.now)
    (state,) = health.read_states(entries)
    assert (state.label, health.Group.PROBLEMS in state.groups) == ("budget spent", True)
    world.stop()
    assert main(["status", "-c", str(world.config)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "info: agent/ops stopped: budget: the budget is used" in shown
    assert "failing" not in shown


def test_a_prompt_that_seems_too_long_is_sent_if_its_provider_counts_fewer_tokens(make_world: MakeWorld, tmp_path: Path) -> None:
    """For agents and for jobs. The count is a request of its own, so it is sent only then."""
    words = "x" * 3500
    keys = 'interval: none, budget: {usd_per_day: 1}, checklist: "- ' + words + '\\n", deliver: log'
    yaml = f"""
providers: {{anthropic: {{api_key: k, base_url: "URL"}}}}
prices: {{big: {{input: 2.0, output: 10.0}}}}
defaults: {{heartbeat: {{max_input_tokens: 3k, max_output_tokens: 500}}}}
agents: {{ops: {{runner: {{kind: anthropic}}, model: big, heartbeat: {{{keys}}}}}}}
cron: {{ask: {{at: "2027-01-01T00:00", prompt: "{words}", agent: ops, budget: {{usd_per_day: 1}}, deliver: log}}}}
"""
    many = "tokens as its provider counts them, and max_input_tokens is 3,000"
    bytes_ = "bytes, counted as tokens because a budget applies, and max_input_tokens is 3,000"
    cases = [(reply({"input_tokens": 900}), None), (reply({"input_tokens": 2900}), many), (error_answer(404, "x", "no"), bytes_)]
    for name in ("ops", "ask"):
        for number, (count, error) in enumerate(cases):
            folder = tmp_path / f"{name}{number}"
            folder.mkdir()
            with Server([count, text_answer("HEARTBEAT_OK")]) as server:
                world = make_world(yaml.replace("URL", server.url), folder=folder)
                world.wake("ops") if name == "ops" else world.run_job("ask")
                world.run(seconds=10)
                paths = [request.path for request in server.requests]
            (run,) = world.records(name)
            asked = ["/v1/messages/count_tokens", "/v1/messages"]
            expected = (asked, "ok") if error is None else (asked[:1], "skipped")
            assert (paths, run["result"]) == expected, run
            assert (run["error"] or "").endswith(error or ""), run


@pytest.mark.parametrize(("zone", "until"), [("Asia/Tokyo", "00:00"), ("America/New_York", "05:00")])
def test_a_wake_over_two_budgets_waits_until_both_have_room(make_world: MakeWorld, zone: str, until: str) -> None:
    yaml = "limits: {budget: {runs_per_day: 1}}\n" + program_agent("{runs_per_day: 1}", interval="none", timezone=zone)
    world = make_world(yaml)
    for _ in range(2):
        world.wake("ops", "look")
        world.run(minutes=5)
    world.run_until("2026-03-03 05:05")
    assert world.history() == [
        "03-02 08:00 api ok heartbeat_ok",
        "03-02 08:05 api skipped budget",
        f"03-03 {until} api ok heartbeat_ok",
    ]


def test_a_skipped_run_does_not_count_against_the_budget(make_world: MakeWorld) -> None:
    world = make_world(program_agent("{usd_per_day: 0.03, usd_per_try: 0.03, runs_per_day: 1}", checklist="HEARTBEAT.md"))
    world.run(hours=2, minutes=1)
    world.write("ops/HEARTBEAT.md", "- look\n")
    world.run(hours=2)
    assert outcomes(world) == ["skipped checklist_missing"] * 3 + ["ok", "skipped budget"]


def test_an_empty_checklist_is_reported_before_a_used_up_budget(make_world: MakeWorld) -> None:
    world = make_world(program_agent("{runs_per_day: 1}", checklist="HEARTBEAT.md"))
    world.write("ops/HEARTBEAT.md", "- look\n")
    world.run(minutes=1)
    world.write("ops/HEARTBEAT.md", "\n")
    world.run(hours=1)
    assert outcomes(world) == ["ok", "skipped checklist_empty"]


def test_each_attempt_is_reserved_and_a_run_keeps_its_last_result_if_the_budget_allows_no_more(make_world: MakeWorld) -> None:
    world = make_world(program_agent("{usd_per_day: 0.07, usd_per_try: 0.03}", retries="5"), scripts={"ops": lambda call: 1})
    world.run(hours=1, minutes=1)
    assert len(world.calls) == 2
    assert outcomes(world) == ["failed exit", "skipped budget"]
    assert "its budget does not allow another try" in world.records()[0]["error"]
    assert world.records()[0]["charged"]["usd"] == 0.06


def test_an_answer_that_was_cut_counts_as_it_is_if_the_active_hours_are_over(make_world: MakeWorld) -> None:
    cut = Delayed(json.dumps({"result": "The disk is full", "truncated": True}), timedelta(minutes=2))
    hours = program_agent("{runs_per_day: 9}", retries="2", active_hours='"08:00-08:01"')
    world = make_world(hours, scripts={"ops": lambda _: cut})
    world.run(minutes=5)
    assert [(row["result"], row["why"], row["tries"]) for row in world.records()] == [("alert", None, 1)]


def test_an_answer_that_was_cut_counts_as_it_is_if_the_budget_allows_no_further_try(make_world: MakeWorld) -> None:
    cut = json.dumps({"result": "The disk is full", "truncated": True, "total_cost_usd": 0.02})
    world = make_world(program_agent("{usd_per_day: 0.05, usd_per_try: 0.04}", retries="2"), scripts={"ops": lambda _: cut})
    world.run(minutes=1)
    assert [(row["result"], row["error"], row["tries"]) for row in world.records()] == [("alert", None, 1)]


def test_a_retry_does_not_exceed_the_shared_budget(make_world: MakeWorld) -> None:
    yaml = "limits: {budget: {runs_per_day: 9, usd_per_day: 0.07}}\n" + program_agent(
        "{usd_per_try: 0.03}", retries="2", interval="2h"
    )
    yaml += "cron: {ask: {every: 1h, prompt: hello, agent: ops, budget: {usd_per_try: 0.03}}}\n"
    world = make_world(yaml, scripts={"ops": lambda call: 1})
    world.run(minutes=1)
    assert len(world.calls) == 2
    assert sum(row["charged"]["usd"] for row in world.records() if row["charged"]) == 0.06


def test_a_reservation_survives_a_crash_and_the_run_is_not_repeated_over_budget(make_world: MakeWorld) -> None:
    script = {"ops": lambda call: Delayed("HEARTBEAT_OK", timedelta(minutes=4))}
    world = make_world(program_agent("{usd_per_day: 0.05, usd_per_try: 0.03}"), scripts=script)
    world.run(minutes=1)
    world.downtime(minutes=1)
    world.run(minutes=5)
    assert len(world.calls) == 1
    assert outcomes(world) == ["abandoned exit"]
    assert (world.records()[0]["charged"]["usd"], used_today(world)) == (0.03, 0.03)


def test_a_run_counts_although_its_budget_was_set_after_its_first_try(make_world: MakeWorld) -> None:
    tries, limited = iter([1]), program_agent("{runs_per_day: 1}", retries="1")
    world = make_world(
        limited.replace(", budget: {runs_per_day: 1}", ""), scripts={"ops": lambda call: next(tries, "HEARTBEAT_OK")}
    )
    world.run(seconds=0.1)
    world.reload(limited)
    world.run(hours=1, minutes=1)
    assert outcomes(world) == ["ok", "skipped budget"]


def test_an_interrupted_run_is_charged_for_both_attempts_and_counts_once(make_world: MakeWorld) -> None:
    script = {"ops": lambda call: Delayed(cost_report(0.01)(call), timedelta(minutes=4))}
    world = make_world(program_agent("{usd_per_day: 0.10, usd_per_try: 0.03, runs_per_day: 1}"), scripts=script)
    world.run(minutes=1)
    world.downtime(minutes=1)
    world.run(minutes=5)
    assert outcomes(world) == ["ok"]
    assert world.records()[0]["charged"]["usd"] == pytest.approx(0.04)


def test_all_agents_share_the_budget_of_limits(make_world: MakeWorld) -> None:
    both = program_agent("{runs_per_day: 2}").replace("agents: {", "agents: {b: {runner: {kind: command, argv: [agent]}, heartbeat: "
        '{interval: 1h, stagger: 0s, checklist: "- look\\n", deliver: log}}, ')  # fmt: skip
    world = make_world("limits: {budget: {runs_per_day: 3}}\n" + both)
    world.run(hours=3, minutes=1)
    assert sum(end == "ok" for end in outcomes(world)) == 3
    assert read_status(world.store.connection, world.clock.now).as_data()["budget"]["runs_per_day"] == {"used": 3, "of": 3}


def test_runs_that_start_together_do_not_exceed_the_shared_budget(make_world: MakeWorld) -> None:
    many = ", ".join(
        f'a{number}: {{runner: {{kind: command, argv: [agent]}}, heartbeat: {{interval: 1h, stagger: 0s, checklist: "- look\\n",'
        " deliver: log, budget: {usd_per_try: 0.03}}}"
        for number in range(8)
    )
    script: Any = lambda call: Delayed("HEARTBEAT_OK", timedelta(minutes=3))  # noqa: E731
    names = {f"a{number}": script for number in range(8)}
    world = make_world(f"limits: {{budget: {{usd_per_day: 0.10}}}}\nagents: {{{many}}}\n", scripts=names)
    world.run(minutes=30)
    assert len(world.calls) == 3


def test_setting_the_clock_back_does_not_reset_a_budget(make_world: MakeWorld) -> None:
    world = make_world(program_agent("{runs_per_day: 2}"), start="2026-03-02 23:30")
    world.run(minutes=1)
    world.clock.now += timedelta(hours=1)
    world.run(hours=1)
    world.clock.now -= timedelta(hours=3)
    world.run(hours=2)
    days = [call.at.date().isoformat() for call in world.calls]
    assert max(days.count(day) for day in days) <= 2


def test_a_job_with_a_prompt_is_skipped_when_its_budget_is_used_up(make_world: MakeWorld) -> None:
    yaml = (
        program_agent("unlimited", interval="none")
        + "cron: {ask: {every: 1h, prompt: hello, agent: ops, budget: {runs_per_day: 1}}}\n"
    )
    world = make_world(yaml)
    world.run(hours=2, minutes=1)
    assert outcomes(world) == ["ok", "skipped budget"]


def test_an_entry_without_a_budget_needs_no_budget_query(make_world: MakeWorld) -> None:
    world = make_world(program_agent("unlimited"))
    with world.traced_statements() as statements:
        world.run(minutes=30)
    assert outcomes(world) == ["ok"]
    about_money = {text.split(" where")[0] for text in statements if "spend" in text or "charged" in text}
    assert about_money <= {"delete from spend"}  # only the deletion of old days, once a minute


def test_the_used_share_of_a_budget_is_a_gauge_from_the_start(make_world: MakeWorld) -> None:
    yaml = "limits: {budget: {usd_per_day: 1}}\n" + program_agent("{usd_per_day: 0.10, runs_per_day: 4, usd_per_try: 0.05}")
    world = make_world(yaml, scripts={"ops": cost_report(0.05)})
    assert share_series(world) == [("all", "usd_per_day", 0), ("entry", "runs_per_day", 0), ("entry", "usd_per_day", 0)]
    world.run(minutes=1)
    assert share_series(world) == [("all", "usd_per_day", 0.05), ("entry", "runs_per_day", 0.25), ("entry", "usd_per_day", 0.5)]
    world.run(hours=16)
    assert share_series(world)[0] == ("all", "usd_per_day", 0.05)  # a new day began at midnight and has had one run


def share_series(world: World) -> list[tuple[str, str, float]]:
    """The scope, budget and value of each series."""
    settings = world.engine.plan.settings
    wanted = {("heartbeat", "ops")}
    reading = Reading()
    gauges.read_budgets(reading, world.store.connection, settings, wanted, {}, gauges.DayPlans(), world.clock.now)
    family = reading["heartbeatd_budget_used_ratio"]
    found = re.findall(r'scope="(\w+)".*budget="(\w+)"} (\S+)', "".join(family.exposition_lines()))
    return sorted((scope, budget, float(share)) for scope, budget, share in found)


def test_explain_shows_that_the_budget_is_used_up(make_world: MakeWorld) -> None:
    world = make_world(program_agent("{runs_per_day: 1}"))
    assert explanation.explain_now(explained_entry(world)).as_data()["now"]["why"] is None
    world.run(minutes=1)
    assert explanation.explain_now(explained_entry(world)).as_data()["now"]["why"] == "budget"


def test_budget_days_long_past_are_deleted(make_world: MakeWorld) -> None:
    world = make_world(program_agent("{runs_per_day: 1}", interval="24h"))
    world.run(minutes=1)
    world.clock.advance(timedelta(days=101))
    world.run(days=1, minutes=2)
    days = [row["day"] for row in world.store.connection.execute("select day from spend order by day")]
    assert "2026-03-02" not in days
    assert days


def test_a_run_skipped_by_its_budget_names_the_limit_and_when_it_resets(make_world: MakeWorld) -> None:
    yaml = program_agent("{usd_per_day: 0.10, usd_per_try: 0.04}", timezone="Asia/Ho_Chi_Minh", problems="{after: 1}")
    world = make_world(yaml, start="2026-03-02 08:00")
    world.run(hours=2, minutes=1)
    error = (
        "usd_per_day: 0.08 of 0.1 USD are used (0.08 of it is reserved for runs of unknown cost), and one try may cost 0.04;"
        " until 2026-03-03 00:00 Asia/Ho_Chi_Minh"
    )
    assert world.records()[-1]["error"] == error
    assert f"budget: the budget is used up: {error}" in world.delivered[-1][2]
    assert explanation.explain_now(explained_entry(world)).as_data()["now"]["detail"] == error
    world.reload("limits: {budget: {runs_per_day: 2}}\n" + yaml.replace("0.10", "0.20"))
    world.run(hours=3)
    assert world.records()[-1]["error"] == (
        "limits.budget.runs_per_day: 2 of 2 are used; until 2026-03-03 00:00 UTC; used by agent/ops 2"
    )


@pytest.mark.parametrize(("names", "others"), [("abc", ""), ("abcd", ", others 1")])
def test_a_used_up_budget_names_three_agents_and_what_others_have_used(make_world: MakeWorld, names: str, others: str) -> None:
    beat = (
        '{runner: {kind: command, argv: [agent]}, heartbeat: {interval: 1h, stagger: 0s, checklist: "- look\\n", deliver: log}}'
    )
    agents = ", ".join(f"{name}: {beat}" for name in names)
    world = make_world(f"limits: {{budget: {{runs_per_day: {len(names)}}}}}\nagents: {{{agents}}}\n")
    world.run(minutes=61)
    assert (world.records("a")[-1]["error"] or "").endswith(f"; used by agent/a 1, agent/b 1, agent/c 1{others}")


def test_a_retry_counts_as_no_further_run(make_world: MakeWorld) -> None:
    with Server([reply({}, 500), completions.text_answer("HEARTBEAT_OK")]) as server:
        world = make_world(model_agent(server.url, "{runs_per_day: 1}", retries="1"))
        world.run(minutes=2)
    assert [(row["result"], row["tries"]) for row in world.records()] == [("ok", 2)]
    assert world.records()[0]["charged"]["tokens"] == 3500 + 157, "the first call may have used all that was reserved"


def test_a_run_that_waited_for_the_lock_of_its_agent_counts_once(make_world: MakeWorld) -> None:
    world = make_world(program_agent("{usd_per_day: 1, usd_per_try: 0.03, runs_per_day: 1}"))
    world.request(VerbRequest(HoldLock.of(id="gateway", for_=timedelta(minutes=3)), (Kind.HEARTBEAT, "ops")))
    world.run(hours=1, minutes=1)
    assert (outcomes(world), used_today(world, "runs_per_day")) == (["ok", "skipped budget"], 1)


def test_the_reserved_part_of_a_budget_is_that_of_the_moment(make_world: MakeWorld) -> None:
    """Four agents run at the same time. The third one has room, so more is reserved when the fourth one is skipped."""
    tries = {"a": 0.07, "b": 0.05, "c": 0.03, "d": 0.05}
    beat = 'interval: 1h, stagger: 0s, checklist: "- look\\n", deliver: log'
    agents = "".join(
        f"  {name}: {{runner: {{kind: command, argv: [agent]}}, heartbeat: {{{beat}, budget: {{usd_per_try: {usd}}}}}}}\n"
        for name, usd in tries.items()
    )
    world = make_world(f"limits: {{budget: {{usd_per_day: 0.1}}}}\nagents:\n{agents}")
    world.run(minutes=1)
    found = {row["name"]: re.findall(r"([\d.]+) of it is reserved", row["error"] or "") for row in world.records()}
    assert found == {"a": [], "b": ["0.07"], "c": [], "d": ["0.1"]}


def test_what_a_run_cost_before_it_had_a_budget_is_no_part_of_what_is_reserved(make_world: MakeWorld) -> None:
    """It is not taken off what is reserved for others either."""
    costs = iter([0.05])
    limited = program_agent("{usd_per_day: 0.1, usd_per_try: 0.04}")
    world = make_world(
        program_agent("unlimited"),
        scripts={"ops": lambda call: cost_report(next(costs))(call) if len(world.calls) == 1 else QUIET},
    )
    world.run(minutes=1)
    world.reload(limited)
    world.run(hours=3)
    assert "0.08 of 0.1 USD are used (0.08 of it is reserved for runs of unknown cost)" in world.records()[-1]["error"]


def test_a_call_of_unknown_usage_is_charged_at_the_price_of_writing_to_a_cache(make_world: MakeWorld) -> None:
    with Server([reply(completions.completion("HEARTBEAT_OK", usage=None))]) as server:
        yaml = model_agent(server.url, "{usd_per_day: 1}").replace("cache_write: 2.0", "cache_write: 2.5")
        world = make_world(yaml)
        world.run(minutes=1)
    assert world.records()[0]["charged"]["usd"] == pytest.approx((3000 * 2.5 + 500 * 10) / 1e6)


def test_the_shares_of_the_first_of_two_limits_that_are_used_up_are_named(make_world: MakeWorld) -> None:
    limits = "limits: {budget: {usd_per_day: 0.08, runs_per_day: 2}}\n"
    world = make_world(limits + program_agent("{usd_per_try: 0.04}"), start="2026-03-02 08:00")
    world.run(hours=2, minutes=1)
    error = world.records()[-1]["error"]
    assert "limits.budget.usd_per_day: 0.08 of 0.08 USD" in error
    assert error.endswith("limits.budget.runs_per_day: 2 of 2 are used; until 2026-03-03 00:00 UTC; used by agent/ops 0.08")


def test_a_wake_over_budget_of_an_agent_without_slots_runs_on_the_next_day(make_world: MakeWorld) -> None:
    world = make_world(program_agent("{runs_per_day: 1}", interval="none"), start="2026-03-02 08:00")
    world.wake("ops", "one")
    world.run(hours=1)
    world.wake("ops", "two")
    world.run(hours=20)
    assert world.history() == [
        "03-02 08:00 api ok heartbeat_ok",
        "03-02 09:00 api skipped budget",
        "03-03 00:00 api ok heartbeat_ok",
    ]
    assert "two" in world.calls[-1].stdin


def test_status_shows_usage_against_the_budget_in_force(make_world: MakeWorld) -> None:
    def shown() -> Any:
        entry = read_status(world.store.connection, world.clock.now).as_data()["entries"][0]["budget"]
        return entry and {key: (bound["used"], bound["of"]) for key, bound in entry.items() if key.endswith("per_day")}

    world = make_world(program_agent("{runs_per_day: 9}"), start="2026-03-02 18:00")
    world.run(hours=1, minutes=1)
    world.reload(program_agent("{runs_per_day: 1, tokens_per_day: 1m, usd_per_try: 0}"))
    assert shown() == {"runs_per_day": (2, 1), "tokens_per_day": (0, 1_000_000)}
    world.reload(program_agent("unlimited"))
    assert shown() is None
    world.reload(program_agent("{runs_per_day: 2}"))
    assert shown() == {"runs_per_day": (2, 2)}
    world.kill()
    world.write_config(program_agent("{runs_per_day: 3}"))
    world.boot()
    assert shown() == {"runs_per_day": (2, 3)}
    world.run(hours=1)
    world.reload(program_agent("{runs_per_day: 3}", timezone="Asia/Ho_Chi_Minh"))
    world.run(hours=1)
    assert shown() == {"runs_per_day": (3, 3)}  # the next day has begun there, but the old one is not over


def test_agents_that_meet_a_used_up_budget_together_read_the_runs_of_the_day_once(make_world: MakeWorld) -> None:
    beat = """heartbeat: {interval: 1h, stagger: 0s, checklist: "- look\\n", deliver: log, budget: {usd_per_try: 0.04}}"""
    names = [f"a{number}" for number in range(6)]
    agents = "".join(f"  {name}: {{runner: {{kind: command, argv: [agent]}}, {beat}}}\n" for name in names)
    world = make_world(f"limits: {{budget: {{usd_per_day: 0.1}}}}\nagents:\n{agents}")
    with world.traced_statements() as statements:
        world.run(minutes=1)
    assert sum(row["why"] == "budget" for row in world.records()) == 4
    assert all("0.08 of it is reserved" in row["error"] for row in world.records() if row["why"] == "budget")
    assert sum("charged_nanos, 0) / 1e9" in statement for statement in statements) == 1


@pytest.mark.sqlite_file("the steps of SQLite are counted")
def test_the_budget_day_of_an_agent_is_found_without_reading_those_of_others(make_world: MakeWorld) -> None:
    world = make_world(program_agent("{runs_per_day: 1}"))
    world.run(minutes=1)
    db, steps = world.store.connection, list[int]()
    scope, budget = ("heartbeat", "ops"), Budget(world.plan().settings.zone, None, None, 1)
    copy = "insert into spend select day, kind, ?, nanos, tokens, runs, ends_at from spend where name = 'ops'"
    for others in (range(1), range(1, 500)):
        with world.store.transaction():
            db.executemany(copy, [(f"a{number}",) for number in others])
        steps.append(count_steps(db, lambda: spend.open_budget_day(db, scope, budget, world.clock.now)))
    assert steps[0] == steps[1]

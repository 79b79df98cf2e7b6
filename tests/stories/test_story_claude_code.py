"""Claude Code as an agent: what it is started with over some runs, and what its reports cost."""

from __future__ import annotations

import json
from typing import Any

from world import AgentCall, MakeWorld

from heartbeat.runners import ProcessResult

TOKEN = "sk-ant-oat01-canary"
BEGIN = ["claude", "-p", "--output-format", "json"]
CONFIG = """
agents:
  ops:
    runner: {{kind: claude-code, allow: ["Bash(df:*)"]}}
    {keys}
    heartbeat: {{interval: 1h, stagger: 0s, checklist: "- look\\n", deliver: log, retries: 2, {beat}}}
"""


def report(**parts: Any) -> ProcessResult:
    fields = {"type": "result", "subtype": "success", "is_error": False, "result": "HEARTBEAT_OK", **parts}
    return ProcessResult(1 if fields["is_error"] else 0, json.dumps(fields).encode())


def options(call: AgentCall) -> list[str]:
    assert [*call.argv[:4]] == BEGIN
    return [*call.argv[4:]]


def test_model_and_effort_are_those_of_the_heartbeat_the_job_or_the_fallback(make_world: MakeWorld) -> None:
    keys = "model: sonnet\n    effort: low\n    fallbacks: [{model: haiku, effort: high}]"
    jobs = """
cron:
  plain: {schedule: "30 8 * * *", prompt: look, agent: ops}
  own: {schedule: "40 8 * * *", prompt: look, agent: ops, model: opus, effort: max, budget: {usd_per_try: 1.5}, fallbacks: none}
"""
    is_failing = True
    world = make_world(
        CONFIG.format(keys=keys, beat="budget: {usd_per_try: 0.20}") + jobs,
        scripts={"ops": lambda _: report(is_error=True, result="overloaded") if is_failing else report()},
    )
    world.run(minutes=1)
    tools, usd = ["--allowedTools", "Bash(df:*)"], ["--max-budget-usd", "0.2"]
    own, fallback = ["--model", "sonnet", "--effort", "low", *usd, *tools], ["--model", "haiku", "--effort", "high", *usd, *tools]
    assert [options(call) for call in world.calls[:2]] == [own, fallback]
    is_failing = False
    world.calls.clear()
    world.run_until("2026-03-02 08:50")
    named = [options(call) for call in world.calls[-2:]]
    assert named == [
        ["--model", "sonnet", "--effort", "low", *tools],
        ["--model", "opus", "--effort", "max", "--max-budget-usd", "1.5", *tools],
    ]


def test_the_agent_is_asked_for_json_and_gets_the_token_of_the_daemon_but_no_key(make_world: MakeWorld) -> None:
    environ = {"CLAUDE_CODE_OAUTH_TOKEN": TOKEN, "ANTHROPIC_API_KEY": "sk-ant-api03-canary"}
    finding = {"key": "disk:/", "text": f"93 % full, says {TOKEN}", "severity": "info"}
    said = report(result=json.dumps({"findings": [finding]}), total_cost_usd=0.03)
    world = make_world(CONFIG.format(keys="", beat="on_empty: run"), environ=environ, scripts={"ops": lambda _: said})
    world.run(minutes=1)
    (call,) = world.calls
    assert "The severity is info, warning or critical." in call.stdin
    assert TOKEN not in call.stdin
    assert call.env["CLAUDE_CODE_OAUTH_TOKEN"].reveal() == TOKEN  # type: ignore[attr-defined]
    assert "ANTHROPIC_API_KEY" not in call.env
    (sent,) = [text for _, _, text in world.delivered]
    assert "disk:/: 93 % full, says ***" in sent
    assert TOKEN not in str(world.all_rows())


def test_a_new_token_is_used_after_a_reload(make_world: MakeWorld) -> None:
    world = make_world(CONFIG.format(keys="", beat="on_empty: run"))
    world.run(minutes=1)
    world.environ["CLAUDE_CODE_OAUTH_TOKEN"] = TOKEN  # as in a changed env_file
    world.reload(world.yaml)
    world.run(minutes=61)
    tokens = [call.env.get("CLAUDE_CODE_OAUTH_TOKEN") for call in world.calls]
    assert tokens[0] is None
    assert [token.reveal() for token in tokens[1:]] == [TOKEN]  # type: ignore[union-attr]


def test_a_try_that_reaches_its_limit_counts_with_its_cost_and_is_not_repeated(make_world: MakeWorld) -> None:
    reached = report(
        subtype="error_max_budget_usd", is_error=True, result=None, errors=["Reached maximum budget ($0.2)"], total_cost_usd=0.23
    )
    world = make_world(
        CONFIG.format(keys="", beat="budget: {usd_per_day: 0.50, usd_per_try: 0.20}"), scripts={"ops": lambda _: reached}
    )
    world.run(minutes=200)
    assert len(world.calls) == 2  # 0.46 of 0.50 USD are spent, and a try may cost 0.20
    failed, second, skipped = world.records("ops")[:3]
    assert (failed["result"], failed["why"], failed["cost_usd"], failed["tries"]) == ("failed", "exit", 0.23, 1)
    assert failed["error"] == (
        "exit code 1: the agent failed: Reached maximum budget ($0.2); usd_per_try is 0.2, write a higher one"
    )
    assert (second["cost_usd"], skipped["why"]) == (0.23, "budget")

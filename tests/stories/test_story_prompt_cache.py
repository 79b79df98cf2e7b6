"""A week of agents whose provider keeps parts of their prompts: what it costs, and that it never costs more."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from checkout import HOME
from servers.messages import text
from servers.prompt_cache import Bill, CachingModels
from servers.scripted import Request
from test_story_explain import explained_entry
from world import MakeWorld, World

from bench.money import table_lines
from heartbeat.words import format_usd
from scheduler.cli.report_text import format_report
from scheduler.insight import explanation
from scheduler.insight.report_data import build_report
from scheduler.model.outcome import Kind

KEY = "sk-ant-canary-0123456789"
HOURS = 'active_hours: "08:00-10:00"'


def quiet(request: Request) -> list[dict[str, Any]]:
    return [text("HEARTBEAT_OK")]


def agent(name: str, size: int, *, budget: str = "{usd_per_day: 5}", more: str = "", **heartbeat: str) -> tuple[str, str]:
    """An agent with a context file of so many characters: its name and its lines in the config."""
    words = {"interval": "15m", "stagger": "0s", "checklist": '"- look\\n"', "deliver": "log", "answer": "text"} | heartbeat
    beat = ", ".join([*(f"{key}: {value}" for key, value in words.items() if value), f"budget: {budget}", *filter(None, [more])])
    return f"I am {name}. ".ljust(size, "x"), (
        f"  {name}: {{runner: {{kind: anthropic}}, model: claude-haiku-4-5, context: [SOUL.md], heartbeat: {{{beat}}}}}\n"
    )


def make(make_world: MakeWorld, server: CachingModels, *agents: tuple[str, str], shared: str = "") -> World:
    yaml = (
        f'providers: {{anthropic: {{api_key: "${{KEY}}", base_url: "{server.url}"}}}}\n'
        "prices: {claude-haiku-4-5: {input: 1.0, output: 5.0, cache_read: 0.1}}\n"
        f"limits: {{min_interval: 1m{shared}}}\ndefaults: {{heartbeat: {{light_context: false}}}}\nagents:\n"
        + "".join(lines for _, lines in agents)
    )
    world = make_world(yaml, environ={"KEY": KEY}, start="2026-03-02 07:00")
    for soul, lines in agents:
        world.write(f"{lines.split(':')[0].strip()}/SOUL.md", soul)
    server.now = lambda: world.clock.now
    return world


def ratio(bill: Bill) -> float:
    """The bill as a share of what it would have been without a cache."""
    return bill.usd(1.0, 5.0) / bill.usd_without_cache(1.0, 5.0)


def charged(world: World, name: str) -> float:
    return sum(row["cost_usd"] or 0.0 for row in world.records(name))


def test_in_a_week_the_full_agent_costs_at_most_half_and_the_small_one_the_same(make_world: MakeWorld) -> None:
    with CachingModels(quiet) as server:
        world = make(
            make_world, server,
            agent("full", 30_000, budget="{usd_per_day: 0.10, usd_per_month: 1}", more=HOURS),
            agent("small", 400, interval="30m", budget="{usd_per_day: 0.08, usd_per_try: 0.074}", more=HOURS),
            shared=", budget: {usd_per_day: 0.19, usd_per_month: 0.6}",
        )  # fmt: skip
        world.run(days=7)
    full, small = server.bills["full"], server.bills["small"]
    assert ratio(full) <= 0.5
    assert ratio(small) == pytest.approx(1, abs=0.01)
    assert (small.written_5m, small.written_1h) == (0, 0)
    assert charged(world, "full") == pytest.approx(full.usd(1.0, 5.0))
    assert charged(world, "small") == pytest.approx(small.usd(1.0, 5.0))
    by_day: dict[str, Counter[str]] = {"full": Counter(), "small": Counter()}
    for row in (row for row in world.records() if row["charged"]):
        by_day[row["name"]][row["started_at"][:10]] += row["charged"]["usd"]
        assert row["charged"]["usd"] <= 0.074
    both = by_day["full"] + by_day["small"]
    assert (len(both), max(both.values()) <= 0.19, both.total() <= 0.6) == (7, True, True)
    assert max(by_day["full"].values()) <= 0.10
    assert max(by_day["small"].values()) <= 0.08
    saved = full.usd_without_cache(1.0, 5.0) - full.usd(1.0, 5.0)
    now = world.clock.now
    report = build_report(world.store.connection, now - timedelta(days=30), now, running=True)
    assert report.saved.cache_usd == pytest.approx(saved, abs=1e-5)
    text = format_report(report, "entry").replace("\n", " ")
    paid = full.usd(1.0, 5.0) + small.usd(1.0, 5.0)
    assert f"Without checks and the cache it would have cost ${paid + saved:.2f}: the cache saved ${saved:.2f}." in text
    facts = {name: cache_fact(world, name) for name in ("full", "small")}
    assert (
        facts["full"]
        == f"the beginning of the prompt is kept by the provider for an hour; the cache saved {format_usd(saved)} in 7 days"
    )
    assert facts["small"] == ""


def cache_fact(world: World, name: str) -> str:
    """What `explain` says about the cache; empty if it says nothing."""
    facts = explanation.explain_now(explained_entry(world, name)).facts
    return next((fact.says for fact in facts if fact.label == "cache"), "")


def test_the_report_counts_what_checks_saved_at_the_mean_cost_of_the_agent(make_world: MakeWorld) -> None:
    with CachingModels(quiet) as server:
        world = make(make_world, server, agent("ops", 400, more='precheck: {command: "./mail", unchanged: skip, confirm: 0}'))
        world.prechecks["ops"] = lambda _: f"{world.clock.now.hour} mails"
        world.run(hours=4)
    now = world.clock.now + timedelta(minutes=1)
    report = build_report(world.store.connection, now - timedelta(days=1), now, running=True)
    paid, runs = server.bills["ops"].usd(1.0, 5.0), sum(row["result"] == "ok" for row in world.records("ops"))
    assert runs
    assert (
        report.saved.checked_runs
        == sum(row["planned_runs"] for row in world.records("ops") if row["why"] == "precheck_unchanged")
        > runs
    )
    assert report.saved.checks_usd == pytest.approx(report.saved.checked_runs * paid / runs, abs=1e-5)
    assert report.saved.cost_usd_without == pytest.approx(paid + report.saved.checks_usd, abs=1e-5)


@pytest.mark.parametrize(
    ("keys", "marks"),
    [
        ({"interval": "15m"}, {"1h"}),
        ({"interval": "4m"}, {"5m"}),
        ({"interval": "5m"}, {"1h"}),  # the next call may come a moment too late for five minutes
        ({"interval": "1h"}, set()),
        ({"interval": "", "schedule": '"*/15 7-9 * * *"'}, {"1h"}),  # its calls show it
    ],
)
def test_the_interval_decides_how_long_the_part_is_kept(make_world: MakeWorld, keys: dict[str, str], marks: set[str]) -> None:
    with CachingModels(quiet) as server:
        world = make(make_world, server, agent("ops", 30_000, **keys))
        world.run(hours=1.5)
    assert {mark for sent in server.marks for mark in sent} == marks
    assert ratio(server.bills["ops"]) <= 1


def test_the_interval_of_a_job_decides_for_its_prompt(make_world: MakeWorld) -> None:
    with CachingModels(quiet) as server:
        world = make(make_world, server, agent("ops", 30_000, interval="none"))
        job = "cron: {digest: {every: 15m, prompt: Write it., agent: ops, deliver: log}}\n"
        world.reload(world.config.read_text() + job)
        world.run(minutes=16)
    assert server.marks[0] == ["1h"]


def test_an_agent_whose_precheck_skips_most_runs_writes_nothing(make_world: MakeWorld) -> None:
    """Two calls every two hours, because a change is looked at twice: writing at twice the price saves less than it costs."""
    with CachingModels(quiet) as server:
        world = make(make_world, server, agent("ops", 30_000, more='precheck: {command: "./mail", unchanged: skip}'))
        world.prechecks["ops"] = lambda _: str(world.clock.now.hour // 2)
        world.run(hours=12)
    assert server.marks == [[]] * 12
    assert ratio(server.bills["ops"]) == 1


def test_a_context_that_changes_in_each_run_is_not_kept_for_long(make_world: MakeWorld) -> None:
    def edit(request: Request) -> list[dict[str, Any]]:
        world.write("ops/SOUL.md", f"I am ops. {world.clock.now}".ljust(30_000, "x"))
        return quiet(request)

    with CachingModels(edit) as server:
        world = make(make_world, server, agent("ops", 30_000))
        world.run(hours=8)
    assert ratio(server.bills["ops"]) <= 1.12
    assert server.marks[-1] == []
    assert (
        cache_fact(world, "ops") == "the beginning of the prompt is not kept by the provider, because it changes from run to run"
    )


def test_a_provider_that_keeps_nothing_is_soon_asked_no_more(make_world: MakeWorld) -> None:
    with CachingModels(quiet) as server:
        server.forgets = True
        world = make(make_world, server, agent("ops", 30_000))
        world.run(hours=8)
    assert server.marks[0] == ["1h"]
    assert server.marks[-1] == []
    assert "did not have it 2 times in a row; it is asked again after a day" in cache_fact(world, "ops")
    assert ratio(server.bills["ops"]) <= 1.12


def test_a_server_that_refuses_the_marks_gets_the_prompt_without_them_and_is_not_asked_again(make_world: MakeWorld) -> None:
    with CachingModels(quiet) as server:
        server.knows_marks = False
        # The process remembers the refusal of this model at this address. A server of a later test may get the same port.
        context, lines = agent("ops", 30_000, budget="unlimited")
        world = make(make_world, server, (context, lines.replace("claude-haiku-4-5", "claude-sonnet-4-6")))
        world.run(hours=2.9)
    assert {row["result"] for row in world.records("ops")} == {"ok"}
    assert server.marks == [[]] * 12
    assert len(server.requests) == 1 + 12
    assert "is not kept by the provider, though it was asked to" in cache_fact(world, "ops")


def test_the_price_of_writing_never_exceeds_the_reservation(make_world: MakeWorld) -> None:
    """Even if each byte is a token: 18,000 of 19,000 at twice the price do not fit into 21,000 at 1.25 times the price."""
    with CachingModels(quiet) as server:
        server.bytes_per_token = 1
        world = make(
            make_world, server,
            agent("tight", 18_000, more="max_input_tokens: 21k", budget="{usd_per_day: 5}"),
            agent("loose", 18_000, more="max_input_tokens: 40k", budget="{usd_per_day: 5}"),
            agent("free", 18_000, more="max_input_tokens: 21k", budget="unlimited"),
        )  # fmt: skip
        world.run(hours=1)
    written = {name: bill.written_1h > 0 for name, bill in server.bills.items()}
    assert written == {"tight": False, "loose": True, "free": True}
    for name in ("tight", "loose"):
        most = world.plan().settings.allowances[Kind.HEARTBEAT, name].max_usage.usd
        assert max(row["cost_usd"] for row in world.records(name)) <= most


def test_a_restart_goes_on_with_the_kept_part(make_world: MakeWorld) -> None:
    with CachingModels(quiet) as server:
        world = make(make_world, server, agent("ops", 30_000))
        world.run(hours=1)
        world.kill()
        world.boot()
        world.run(hours=1)
    bill = server.bills["ops"]
    assert bill.written_1h < 9000
    assert bill.read > 7 * 7500


@pytest.mark.long_simulation
def test_the_page_about_cost_has_the_table_that_its_command_prints() -> None:
    assert "\n".join(table_lines()) in (HOME / "docs/money.md").read_text("utf-8")

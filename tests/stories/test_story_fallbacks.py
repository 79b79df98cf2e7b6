"""Fallbacks over a day: other models, another provider and another runner answer while the agent's own provider fails."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from metrics_page import Page
from servers import completions, gateway
from servers.messages import Models, error_answer, text_answer
from servers.scripted import Act, Server, hang_up, reply
from simulation import size
from test_story_explain import explained_entry
from world import AgentCall, Delayed, MakeWorld, World, run_until_crash

from heartbeat.runners import ProcessResult
from heartbeatd.verbs import ReportResult
from scheduler.config.file.diagnostics import ConfigError
from scheduler.engine.effects import VerbRequest
from scheduler.insight import explanation
from scheduler.insight.daily_maximum import compute_daily_maximum
from scheduler.insight.health import read_verdict
from scheduler.insight.status_data import read_status
from scheduler.model.outcome import Kind
from scheduler.store.locations import open_read_only

KEY = "sk-ant-canary-0123456789"
CONFIG = """
providers:
  anthropic: {{api_key: "${{KEY}}", base_url: "{url}"}}
  local: {{kind: openai, base_url: "{local}/v1"}}
runners: {{backup: {{kind: command, argv: [backup]}}}}
prices:
  claude-sonnet-5: {{input: 3.0, output: 15.0}}
  claude-haiku-5-5: {{input: 1.0, output: 5.0}}
  qwen3: {{input: 0, output: 0}}
agents:
  ops:
    model: claude-sonnet-5
    context: [SOUL.md]
    fallbacks: [claude-haiku-5-5, {{provider: local, model: qwen3}}]
    heartbeat: {{interval: 1h, stagger: 0s, checklist: "- look\\n", deliver: log, answer: text, retries: 0{beat}}}
"""
SONNET, HAIKU, QWEN = "claude-sonnet-5", "claude-haiku-5-5", "qwen3"
QUIET = text_answer("HEARTBEAT_OK")
OVERLOADED = error_answer(529, "overloaded_error", "Overloaded")
REFUSED = error_answer(401, "authentication_error", "invalid x-api-key")


def story(make_world: MakeWorld, server: Models, beat: str = "", **more: Any) -> World:
    yaml = CONFIG.format(url=server.url, local=server.url, beat=f", {beat}" if beat else "")
    return make_world(yaml, environ={"KEY": KEY}, **more)


def by_model(failing: dict[str, Act]) -> Models:
    """A server of both APIs. The answers of the models that are not in the map are quiet."""
    local = completions.text_answer("HEARTBEAT_OK")
    return Models(lambda request: failing.get(request.json["model"], local if request.json["model"] == QWEN else QUIET))


def explained(world: World, name: str = "ops") -> str:
    """The first line of `explain`."""
    return explanation.explain_now(explained_entry(world, name)).overview.says


def told(world: World) -> list[str]:
    """The first line of each message."""
    return [text.splitlines()[0] for _, _, text in world.delivered]


def test_a_day_on_which_the_provider_is_down_from_ten_to_twelve(make_world: MakeWorld) -> None:
    failing: dict[str, Act] = {}
    with by_model(failing) as server:
        world = story(make_world, server)
        page = Page(world)
        world.run(minutes=2 * 60 - 1)  # 8 and 9
        failing[SONNET] = OVERLOADED
        world.run(minutes=2 * 60)  # 10 and 11
        in_use = "fallback in use since 10:00: claude-haiku-5-5 answers: provider 'anthropic': HTTP 529: Overloaded"
        assert explained(world) == in_use
        failing.clear()
        world.run(minutes=11 * 60)
        assert explained(world) == "15 answers not sent: nothing needs attention"
    assert server.models()[:7] == [SONNET, SONNET, SONNET, HAIKU, SONNET, HAIKU, SONNET]
    assert {line.split(" ", 2)[2] for line in world.history()} == {"interval ok heartbeat_ok"}
    used = [(row["planned_at"][11:13], row["fallback"], row["model_requested"]) for row in world.records() if row["fallback"]]
    assert sorted(used) == [("10", HAIKU, SONNET), ("11", HAIKU, SONNET)]
    first = "info     ops fallback: claude-haiku-5-5 answers: provider 'anthropic': HTTP 529: Overloaded"
    assert told(world) == [f"{first} (2 times in a row since 2026-03-02 10:00 UTC)   p1"]
    assert page.series("fallbacks_total") == {"fallbacks_total{heartbeat,ops}": 2}


def test_while_the_key_is_refused_only_probes_ask_and_the_agent_is_back_as_soon_as_one_succeeds(make_world: MakeWorld) -> None:
    failing: dict[str, Act] = {SONNET: REFUSED, HAIKU: REFUSED}
    with by_model(failing) as server:
        world = story(make_world, server)
        world.run(minutes=1)
        assert server.models() == [SONNET, HAIKU, QWEN]
        assert told(world)[0].startswith("info     ops fallback: local/qwen3 answers: provider 'anthropic': HTTP 401")
        world.wake("ops", "look again")
        world.run(minutes=10)
        assert server.models() == [SONNET, HAIKU, QWEN, QWEN], "the breaker of the provider is open"
        assert {row["result"] for row in world.records()} == {"ok"}
        world.run(minutes=60)
        assert server.models()[4:] == [SONNET, HAIKU, QWEN], "one run probes, and falls back in the same attempt"
        failing.clear()
        world.run(minutes=60)
        assert server.models()[7:] == [SONNET]
    assert len(told(world)) == 1
    assert not world.problem("fallback").is_open


def test_if_all_fail_the_run_fails_with_each_error_and_is_tried_again(make_world: MakeWorld) -> None:
    failing: dict[str, Act] = {SONNET: OVERLOADED, HAIKU: OVERLOADED, QWEN: completions.error_answer(404, "no such model")}
    with by_model(failing) as server:
        world = story(make_world, server, "timeout: 4m")
        world.reload(world.config.read_text().replace("retries: 0", "retries: 1"))
        page = Page(world)
        world.run(minutes=1)
        assert server.models() == [SONNET, HAIKU, QWEN, SONNET, HAIKU], "the model of the last fallback is not asked again"
        assert page.series("fallbacks_total") == {}, "no fallback has helped"
    row = world.records()[0]
    assert (row["result"], row["why"], row["tries"]) == ("failed", "overloaded", 2)
    assert row["error"] == (
        "provider 'anthropic': HTTP 529: Overloaded; fallback claude-haiku-5-5: provider 'anthropic': HTTP 529: Overloaded"
    )


def test_if_all_fail_the_provider_that_was_called_last_is_reported(make_world: MakeWorld) -> None:
    failing: dict[str, Act] = {SONNET: OVERLOADED, HAIKU: OVERLOADED, QWEN: completions.error_answer(500, "broken")}
    with by_model(failing) as server:
        world = story(make_world, server)
        world.run(minutes=65)
    assert [line.partition(": HTTP")[0] for line in told(world)] == [
        "warning  provider local unreachable: answers with server errors"
    ]


def test_a_check_that_fails_after_a_fallback_has_answered_is_not_blamed_on_a_provider(make_world: MakeWorld) -> None:
    with by_model({SONNET: OVERLOADED}) as server:
        world = story(make_world, server, "postcheck: {file: report.md}, problems: {pause_after: 3}")
        world.run(minutes=65)
        assert [line.partition(" (")[0] for line in told(world)] == ["warning  ops failed: postcheck: report.md is missing"]
        world.run(minutes=60)
    assert told(world)[1].startswith("warning  ops paused: no run starts after 3 failures in a row")


def test_a_refused_key_of_its_own_is_told_also_if_the_last_fallback_fails_by_itself(make_world: MakeWorld) -> None:
    failing: dict[str, Act] = {SONNET: REFUSED, HAIKU: REFUSED, QWEN: completions.error_answer(500, "broken")}
    with by_model(failing) as server:
        world = story(make_world, server)
        world.run(hours=3)
        assert [line.partition(": ")[0] for line in told(world)] == [
            "CRITICAL provider anthropic refused",
            "warning  provider local unreachable",
        ]
        failing.clear()
        world.run(hours=3)
    assert sorted(line.partition(": ")[0] for line in told(world)[2:]) == [
        "over     provider anthropic refused",
        "over     provider local unreachable",
    ]


OTHER = '  web: {{model: {}, heartbeat: {{interval: 1h, stagger: 10m, checklist: "- look\\n", deliver: log, retries: 0}}}}\n'


def test_a_provider_that_failed_as_a_fallback_is_not_over_when_the_agents_own_provider_works_again(make_world: MakeWorld) -> None:
    """Another agent still fails because of it."""
    broken = completions.error_answer(500, "broken")
    failing: dict[str, Act] = {SONNET: OVERLOADED, HAIKU: OVERLOADED, QWEN: broken}
    with by_model(failing) as server:
        world = story(make_world, server)
        local = OTHER.format(QWEN).replace("model:", "runner: {kind: openai, provider: local}, model:")
        world.reload(world.config.read_text() + local)
        world.run(minutes=65)
        del failing[SONNET], failing[HAIKU]
        world.run(hours=3)
        assert [line.partition(": answers")[0] for line in told(world)] == ["warning  provider local unreachable"]
        failing.clear()
        world.run(hours=1)
    assert told(world)[1].startswith("over     provider local unreachable")


def test_an_agent_whose_new_fallback_answers_does_not_end_the_failure_of_its_provider_for_others(make_world: MakeWorld) -> None:
    with by_model({SONNET: OVERLOADED, HAIKU: OVERLOADED}) as server:
        world = story(make_world, server)
        yaml = world.config.read_text() + OTHER.format(HAIKU)
        world.reload(yaml.replace("fallbacks: [", "fallbacks: none\n    #"))
        world.run(minutes=75)
        world.reload(yaml)
        world.run(hours=2)
    assert world.records("ops")[-1]["fallback"] == "local/qwen3"
    assert [line.partition(": ")[0] for line in told(world) if "provider" in line.split(":")[0]] == [
        "warning  provider anthropic unreachable"
    ]


def test_the_open_breaker_of_a_fallback_does_not_count_as_that_of_the_agent_itself(make_world: MakeWorld) -> None:
    """While its own provider may answer again, the use of a fallback is reported the second time."""
    with by_model({SONNET: OVERLOADED, HAIKU: error_answer(404, "not_found_error", "no such model")}) as server:
        world = story(make_world, server)
        world.run(minutes=1)
        assert server.models() == [SONNET, HAIKU, QWEN]
        assert told(world) == []
        world.run(minutes=60)
    assert [line.partition(" answers:")[0] for line in told(world)] == ["info     ops fallback: local/qwen3"]


def test_an_agent_whose_fallback_answers_is_not_said_to_fail(make_world: MakeWorld) -> None:
    with by_model({SONNET: REFUSED, HAIKU: REFUSED}) as server:
        world = story(make_world, server)
        world.run(minutes=65)
    status = read_status(world.store.connection, world.clock.now)
    assert (status.entries[0].failing, [each.severity for each in status.problems]) == (None, ["info"])
    assert read_verdict(status, str).failing == 0


@pytest.mark.parametrize(("last", "attempts"), [(500, 3), (404, 1)])
def test_a_run_is_tried_again_only_if_one_of_its_agents_may_answer_then(make_world: MakeWorld, last: int, attempts: int) -> None:
    yaml = """
runners: {backup: {kind: http, url: "{url}/backup"}}
agents:
  ops:
    runner: {kind: http, url: "{url}/own"}
    fallbacks: [{runner: backup}]
    heartbeat: {interval: 1h, stagger: 0s, checklist: "- look\\n", deliver: log, retries: 2}
"""
    with Server([reply({}, 404), reply({}, last)] * 3) as server:
        make_world(yaml.replace("{url}", server.url)).run(minutes=50)
        assert [request.path for request in server.requests] == ["/own", "/backup"] * attempts


def test_while_a_fallback_is_in_use_another_problem_is_still_reported_the_second_time(make_world: MakeWorld) -> None:
    with by_model({SONNET: REFUSED, HAIKU: REFUSED}) as server:
        world = story(make_world, server, "precheck: ./look.sh")
        world.prechecks["ops"] = lambda _: 3
        world.run(minutes=1)
        assert [line.partition(": ")[0] for line in told(world)] == ["info     ops fallback"]
        world.run(minutes=60)
    assert [line.partition(": ")[0] for line in told(world)] == ["info     ops fallback", "warning  ops precheck"]


def test_a_fallback_is_not_probed_while_what_is_called_before_it_may_be_called(make_world: MakeWorld) -> None:
    """The model of the fallback was refused, and another agent waits for its probe."""
    failing: dict[str, Act] = {HAIKU: error_answer(404, "not_found_error", "no such model")}
    with by_model(failing) as server:
        beat = 'heartbeat: {interval: 10h, stagger: 0s, checklist: "- look\\n", deliver: log, retries: 0}'
        world = story(make_world, server)
        world.reload(f"{world.config.read_text()}  web: {{model: {HAIKU}, {beat}}}\n")
        world.run(minutes=59)
        failing[SONNET] = OVERLOADED
        world.run(minutes=2)
    assert server.models() == [SONNET, HAIKU, SONNET, QWEN], "its probe is due since 08:30"


def test_a_late_answer_to_an_earlier_run_does_not_end_the_use_of_a_fallback(make_world: MakeWorld) -> None:
    yaml = """
runners: {backup: {kind: command, argv: [backup]}}
agents:
  ops:
    runner: {kind: http, url: "{url}"}
    fallbacks: [{runner: backup}]
    heartbeat: {interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: log, retries: 0, async_timeout: 3h}
"""
    with Server([gateway.async_answer(), reply({}, 500)]) as server:
        world = make_world(yaml.replace("{url}", server.url))
        world.run(minutes=61)
        assert world.problem("fallback").is_open
        world.request(VerbRequest(ReportResult(text="HEARTBEAT_OK"), server.requests[0].json["run"]))
        world.run(minutes=1)
        assert world.problem("fallback").is_open


def test_explain_names_the_breaker_of_the_agent_itself_once_no_fallback_is_left(make_world: MakeWorld) -> None:
    def now() -> tuple[str | None, str]:
        found = explanation.explain_now(explained_entry(world)).as_data()["now"]
        return found["why"], (found["detail"] or "").partition(":")[0]

    failing: dict[str, Act] = {SONNET: REFUSED, HAIKU: REFUSED}
    with by_model(failing) as server:
        world = story(make_world, server)
        world.run(minutes=1)
        assert now() == (None, "")
        failing[QWEN] = completions.error_answer(401, "no such key")
        world.run(minutes=61)
        assert now() == ("breaker_open", "provider anthropic")


def test_another_runner_answers_for_a_job_and_a_heartbeat_can_do_without(make_world: MakeWorld) -> None:
    job = 'cron: {review: {schedule: "0 9 * * *", prompt: Review it, agent: ops, deliver: log, fallbacks: {runner: backup}}}\n'
    with by_model({SONNET: OVERLOADED}) as server:
        yaml = CONFIG.format(url=server.url, local=server.url, beat=", fallbacks: none") + job
        world = make_world(yaml, environ={"KEY": KEY}, scripts={"review": lambda call: f"{call.argv[0]}: all is reviewed"})
        world.run(minutes=61)
    assert server.models() == [SONNET, SONNET, SONNET]
    assert [row["result"] for row in world.records("ops")] == ["failed", "failed"]
    assert (world.records("review")[0]["result"], world.records("review")[0]["fallback"]) == ("ok", "backup")
    assert "backup: all is reviewed\n\n(answered by the fallback backup)" in [text for _, _, text in world.delivered]


def test_a_known_alert_is_not_sent_again_because_a_fallback_says_it(make_world: MakeWorld) -> None:
    failing: dict[str, Act] = {SONNET: text_answer("The disk is full"), HAIKU: text_answer("The disk is full")}
    with by_model(failing) as server:
        world = story(make_world, server, "problems: {after: none}")
        world.run(minutes=1)
        failing[SONNET] = OVERLOADED
        world.run(minutes=60)
        failing[HAIKU] = text_answer("The mail is stuck")
        world.run(minutes=60)
    assert [text for _, _, text in world.delivered] == [
        "The disk is full",
        "The mail is stuck\n\n(answered by the fallback claude-haiku-5-5)",
    ]


@pytest.mark.parametrize("light", [True, False])
def test_a_fallback_gets_the_same_prompt_with_or_without_context(make_world: MakeWorld, light: bool) -> None:
    with by_model({SONNET: OVERLOADED}) as server:
        world = story(make_world, server, f"light_context: {str(light).lower()}")
        world.write("ops/SOUL.md", "You are gentle.")
        world.run(minutes=1)
    first, second = (request.json["messages"] for request in server.requests)
    assert first == second
    assert ("You are gentle." in str(first)) is not light


def test_a_program_that_hangs_leaves_half_of_the_time_to_the_fallback(make_world: MakeWorld) -> None:
    def script(call: AgentCall) -> Any:
        return "HEARTBEAT_OK" if call.argv[0] == "backup" else Delayed("late", timedelta(minutes=4))

    beat = 'interval: 1h, stagger: 0s, checklist: "- look\\n", deliver: log, timeout: 5m, retries: 0'
    yaml = f"""
runners: {{other: {{kind: command, argv: [other]}}, backup: {{kind: command, argv: [backup]}}}}
agents:
  ops: {{runner: {{kind: command, argv: [agent]}}, fallbacks: [{{runner: other}}, {{runner: backup}}], heartbeat: {{{beat}}}}}
"""
    world = make_world(yaml, scripts={"ops": script})
    world.run(minutes=10)
    row = world.records()[0]
    assert [call.argv[0] for call in world.calls] == ["agent", "other", "backup"]
    assert (row["result"], row["fallback"], row["fallback_why"]) == ("ok", "backup", "no answer within 0:02:30")
    assert row["finished_at"] == "2026-03-02T08:03:45Z", "the second program has had half of what the first one left"


def test_the_reservation_covers_the_most_expensive_of_them_and_each_is_charged_by_its_own_price(make_world: MakeWorld) -> None:
    budget = "budget: {usd_per_day: 1}, max_input_tokens: 3000, max_output_tokens: 500"
    with by_model({SONNET: OVERLOADED}) as server:
        world = story(make_world, server, budget)
        dear = world.engine.plan.settings.allowances[Kind.HEARTBEAT, "ops"].max_usage.usd
        world.run(minutes=1)
    assert dear == pytest.approx((3000 * 3.75 + 500 * 15) / 1e6)
    row = world.records()[0]
    assert row["cost_usd"] == pytest.approx((120 * 1 + 30 * 5 + 7 * 1 + 2 * 1.25) / 1e6)
    assert row["charged"]["usd"] == pytest.approx(row["cost_usd"], abs=2e-6), "a refused request costs nothing"


def test_an_expensive_fallback_counts_in_the_maximum_of_a_day(make_world: MakeWorld) -> None:
    with by_model({}) as server:
        world = story(make_world, server, "max_input_tokens: 3000, max_output_tokens: 500, ask_again: 0")
        most = compute_daily_maximum(world.engine.plan.settings, world.clock.now).entries[0].usd_per_try
        alone = world.config.read_text().replace("fallbacks: [claude-haiku-5-5,", "fallbacks: [")
        world.reload(alone)
        without = compute_daily_maximum(world.engine.plan.settings, world.clock.now).entries[0].usd_per_try
    assert most is not None and without is not None
    assert most - without == pytest.approx((3000 * 1.25 + 500 * 5) / 1e6)


def test_a_lost_call_is_charged_at_its_maximum_and_a_fallback_that_does_not_fit_any_more_is_not_called(
    make_world: MakeWorld,
) -> None:
    small = "budget: {usd_per_day: 1}, max_input_tokens: 3000, max_output_tokens: 500"
    with by_model({SONNET: hang_up()}) as server:
        world = story(make_world, server, small)
        world.run(minutes=1)
        row = world.records()[0]
        most = row["charged"]["usd"]
        assert (row["fallback"], most < 0.01875) == (HAIKU, True)
        assert most > 500 * 15 / 1e6, "the answer of the first model may have been as long as allowed"
        long = small.replace("3000", "2000").replace("max_output_tokens: 500", "max_output_tokens: 3000")
        world.reload(CONFIG.format(url=server.url, local=server.url, beat=f", {long}").replace("output: 5.0", "output: 14.0"))
        world.run(minutes=60)
    row = world.records()[-1]
    assert (row["result"], row["fallback"]) == ("failed", None)
    assert "fallback claude-haiku-5-5: not called, because the failed calls have left too little of its budget" in row["error"]


def test_a_lost_call_is_charged_at_the_price_of_its_provider(make_world: MakeWorld) -> None:
    small = ", budget: {usd_per_day: 1}, max_input_tokens: 3000, max_output_tokens: 500"
    with by_model({SONNET: hang_up()}) as server:
        yaml = CONFIG.format(url=server.url, local=server.url, beat=small)
        world = make_world(yaml.replace("  claude-sonnet-5: {", "  anthropic/claude-sonnet-5: {"), environ={"KEY": KEY})
        world.run(minutes=1)
    row = world.records()[0]
    assert (row["fallback"], 500 * 15 / 1e6 < row["charged"]["usd"] < 0.01875) == (HAIKU, True)


def test_what_two_failed_calls_may_have_used_is_left_to_no_third_one(make_world: MakeWorld) -> None:
    with by_model({SONNET: hang_up(), HAIKU: hang_up()}) as server:
        limits = "budget: {tokens_per_day: 1m}, max_input_tokens: 6000, max_output_tokens: 3000"
        world = story(make_world, server, limits)
        world.run(minutes=1)
    row = world.records()[0]
    assert (row["result"], row["fallback"]) == ("failed", HAIKU)
    assert "qwen3: not called, because the failed calls have left too little of its budget" in row["error"]


def test_what_two_failed_calls_may_have_cost_is_left_to_no_third_one_although_its_tokens_would_fit(make_world: MakeWorld) -> None:
    """Long answers are dear, and the tokens that are reserved are mostly those of a long prompt."""
    limits = ", budget: {usd_per_day: 1}, max_input_tokens: 20000, max_output_tokens: 3000"
    with by_model({SONNET: hang_up(), HAIKU: hang_up()}) as server:
        yaml = CONFIG.format(url=server.url, local=server.url, beat=limits)
        for price in ("input: 1.0, output: 5.0", "input: 0, output: 0"):
            yaml = yaml.replace(price, "input: 3.0, output: 15.0")
        world = make_world(yaml, environ={"KEY": KEY})
        world.run(minutes=1)
    row = world.records()[0]
    assert (row["result"], row["fallback"]) == ("failed", HAIKU)
    assert "qwen3: not called, because the failed calls have left too little of its budget" in row["error"]
    assert server.models() == [SONNET, HAIKU]


def test_the_settings_and_results_of_fallbacks_reach_workers(make_world: MakeWorld) -> None:
    with by_model({SONNET: OVERLOADED, HAIKU: REFUSED}) as server:
        world = story(make_world, server, "budget: {usd_per_day: 1}", through_payloads=True)
        world.run(minutes=61)
    assert server.models() == [SONNET, HAIKU, QWEN] * 2
    assert {(row["result"], row["fallback"]) for row in world.records()} == {("ok", "local/qwen3")}


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("{provider: local}", r"agents\.ops\.fallbacks\[0\]: a fallback needs a model or a runner; write a model"),
        ("{runner: bakcup}", r"agents\.ops\.fallbacks\[0\]\.runner: .*backup"),
        ("{runner: backup, provider: local}", "a runner or a provider, but not both"),
        ("claude-sonnet-5", "claude-sonnet-5 is called before already"),
        (
            "claude-haiku-5-5, {provider: local, model: qwen3}, claude-haiku-5-5",
            r"fallbacks\[2\]: .*haiku-5-5 is called before already",
        ),
        ("{provider: nowhere, model: m}", r"agents\.ops\.fallbacks\[0\]\.provider"),
    ],
)
def test_a_fallback_that_cannot_be_called_is_refused(make_world: MakeWorld, written: str, complaint: str) -> None:
    yaml = CONFIG.format(url="http://127.0.0.1:9", local="http://127.0.0.1:9", beat="")
    with pytest.raises(ConfigError, match=complaint):
        make_world(yaml.replace("[claude-haiku-5-5, {provider: local, model: qwen3}]", f"[{written}]"), environ={"KEY": KEY})


def test_a_budget_in_usd_needs_the_price_of_each_fallback(make_world: MakeWorld) -> None:
    yaml = CONFIG.format(url="http://127.0.0.1:9", local="http://127.0.0.1:9", beat=", budget: {usd_per_day: 1}")
    with pytest.raises(ConfigError, match='usd_per_day cannot be enforced, because "qwen3" has no price'):
        make_world(yaml.replace("  qwen3: {input: 0, output: 0}\n", ""), environ={"KEY": KEY})


@pytest.mark.simulation
@pytest.mark.parametrize("step", range(size(1, 6)))
def test_a_crash_at_any_statement_charges_nothing_twice_and_exceeds_no_budget(tmp_path: Path, step: int) -> None:
    """Each run calls a program that fails, and then one that answers. Both report their cost. The budget has room for three."""

    def script(call: AgentCall) -> Any:
        if call.argv[0] == "backup":
            return '{"result": "HEARTBEAT_OK", "total_cost_usd": 0.004}'
        return ProcessResult(1, b'{"is_error": true, "result": "overloaded", "total_cost_usd": 0.002}')

    beat = 'interval: 1h, stagger: 0s, checklist: "- look\\n", deliver: log, budget: {usd_per_day: 0.03, usd_per_try: 0.006}'
    yaml = f"""
runners: {{backup: {{kind: command, argv: [backup]}}}}
agents: {{ops: {{runner: {{kind: command, argv: [agent]}}, fallbacks: [{{runner: backup}}], heartbeat: {{{beat}}}}}}}
"""
    codes = set()
    for statement in range(4 + step, 100, size(12, 6)):
        folder = tmp_path / str(statement)
        folder.mkdir()

        def begin(start: str = "2026-03-02 08:00", folder: Path = folder) -> World:
            return World(folder, yaml, start, scripts={"ops": script})

        codes.add(run_until_crash(begin, lambda world: world.run(hours=2), statement))
        world = begin("2026-03-02 10:30")
        world.run(hours=13)
        with closing(open_read_only(world.state)) as db:
            (used,) = db.execute("select max(nanos) / 1e9 from spend where name = 'ops'").fetchone()
        rows = [row for row in world.records() if row["charged"]]
        assert used <= 0.03
        assert sum(row["charged"]["usd"] for row in rows) == pytest.approx(used, abs=1e-6)
        undisturbed = [row["charged"]["usd"] for row in rows if row["result"] == "ok" and row["tries"] == 1]
        assert undisturbed == pytest.approx([0.006] * len(undisturbed), abs=1e-6)
        assert len(undisturbed) >= 1
        world.store.close()
    assert 9 in codes

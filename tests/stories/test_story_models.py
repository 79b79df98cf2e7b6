"""Models end to end: the real SDK against a local server in virtual time, with usage, cost, breakers, decisions and sessions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from servers import gateway
from servers.messages import error_answer, message, text, text_answer, tool
from servers.scripted import Act, Server, hang_up, page, reply
from test_story_async_results import http_agent
from world import Delayed, MakeWorld

from scheduler.model.events import CallCharged, ModelMismatched, ProviderFailed

KEY = "sk-ant-canary-0123456789"


def config(url: str, **heartbeat: str) -> str:
    words = {"interval": "30m", "stagger": "0s", "checklist": '"- look\\n"', "deliver": "log"} | heartbeat
    beat = ", ".join(f"{key}: {value}" for key, value in words.items())
    return f"""
providers: {{anthropic: {{api_key: "${{KEY}}", base_url: "{url}"}}}}
prices: {{claude-haiku-5-5: {{input: 1.0, output: 5.0}}, claude-sonnet-5: {{input: 3.0, output: 15.0}}}}
agents:
  ops:
    runner: {{kind: anthropic}}
    model: claude-sonnet-5
    context: [SOUL.md]
    heartbeat: {{{beat}}}
"""


@contextmanager
def model(*script: Act) -> Iterator[Server]:
    with Server(list(script)) as server:
        yield server


def request_bodies(server: Server) -> list[dict[str, object]]:
    return [request.json for request in server.requests]


def test_the_answer_of_a_model_is_classified_recorded_and_sent(make_world: MakeWorld) -> None:
    with model(text_answer("ALERT: the queue is stuck")) as server:
        world = make_world(config(server.url), environ={"KEY": KEY})
        world.run(minutes=1)
    row = world.records()[0]
    assert (row["result"], row["model_requested"], row["model_used"]) == ("alert", "claude-sonnet-5", "claude-haiku-5-5")
    assert row["tokens"] == {"input": 120, "output": 30, "cache_read": 7, "cache_write": 2}
    assert row["cost_usd"] == pytest.approx((120 * 3 + 30 * 15 + 7 * 3 + 2 * 3.75) / 1e6)
    assert [text for _, _, text in world.delivered] == ["ALERT: the queue is stuck"]


def test_the_heartbeats_model_overrides_the_agents_and_an_answer_by_another_model_is_reported(make_world: MakeWorld) -> None:
    with model(text_answer("HEARTBEAT_OK")) as server:
        world = make_world(config(server.url, model="claude-haiku-5-5"), environ={"KEY": KEY})
        world.run(minutes=1)
        assert request_bodies(server)[0]["model"] == "claude-haiku-5-5"
        world.reload(config(server.url))
        world.run(minutes=30)
        assert request_bodies(server)[1]["model"] == "claude-sonnet-5"
    mismatches = world.events_of(ModelMismatched)
    assert [(event.requested, event.used) for event in mismatches] == [("claude-sonnet-5", "claude-haiku-5-5")]


def test_a_model_with_the_date_of_its_version_is_no_other_model(make_world: MakeWorld) -> None:
    with model(reply(message(text("HEARTBEAT_OK"), model="claude-haiku-5-5-20261001"))) as server:
        world = make_world(config(server.url, model="claude-haiku-5-5"), environ={"KEY": KEY})
        world.run(minutes=1)
    assert world.history() == ["03-02 08:00 interval ok heartbeat_ok"]
    assert world.events_of(ModelMismatched) == []


@pytest.mark.parametrize("light", ["true", "false"])
def test_light_context_leaves_out_the_context_files_and_the_record_lists_the_parts(make_world: MakeWorld, light: str) -> None:
    with model(text_answer("HEARTBEAT_OK")) as server:
        world = make_world(config(server.url, light_context=light), environ={"KEY": KEY})
        world.write("ops/SOUL.md", "You are gentle.")
        world.run(minutes=1)
        prompt = json.dumps(request_bodies(server)[0])
    parts = [part["name"] for part in world.records()[0]["prompt_parts"]]
    assert ("You are gentle." in prompt) is (light == "false")
    assert ("context:SOUL.md" in parts) is (light == "false")


def test_retry_after_delays_the_next_attempt(make_world: MakeWorld) -> None:
    with model(error_answer(429, "rate_limit_error", "slow down", retry_after="120"), text_answer("HEARTBEAT_OK")) as server:
        world = make_world(config(server.url), environ={"KEY": KEY})
        world.run(minutes=1)
        assert world.records()[0]["not_before"] == "2026-03-02T08:02:00Z"
        world.run(minutes=2)
        assert len(server.requests) == 2
    assert world.history() == ["03-02 08:00 interval ok heartbeat_ok"]


def test_a_retry_after_of_a_year_fails_the_run_and_the_provider_is_probed_after_a_quarter_of_an_hour(
    make_world: MakeWorld,
) -> None:
    with model(error_answer(429, "rate_limit_error", "come back", retry_after="31536000"), text_answer("HEARTBEAT_OK")) as server:
        world = make_world(config(server.url, interval="10m"), environ={"KEY": KEY})
        world.run(minutes=21)
        assert len(server.requests) == 2
    assert world.history() == [
        "03-02 08:00 interval failed rate_limited",
        "03-02 08:10 interval skipped breaker_open",
        "03-02 08:20 interval ok heartbeat_ok",
    ]


def test_setting_the_clock_back_does_not_keep_a_breaker_open(make_world: MakeWorld) -> None:
    with model(error_answer(429, "rate_limit_error", "come back", retry_after="31536000"), text_answer("HEARTBEAT_OK")) as server:
        world = make_world(config(server.url, interval="10m"), environ={"KEY": KEY})
        world.run(minutes=5)
        world.clock.now -= timedelta(days=365)
        world.run(minutes=45)
        assert len(server.requests) >= 2


def test_an_agent_does_not_recover_before_its_provider_answers(make_world: MakeWorld) -> None:
    beat = '{interval: 10m, stagger: 5m, checklist: "- look\\n", precheck: look, deliver: log}'
    yaml = config("{url}", interval="12h") + f"  web: {{runner: {{kind: anthropic}}, heartbeat: {beat}}}\n"
    with model(error_answer(401, "authentication_error", "no")) as server:
        world = make_world(yaml.replace("{url}", server.url), environ={"KEY": KEY}, prechecks={"web": lambda call: "NO_WORK"})
        world.run(minutes=65)
    whys = [row["why"] for row in world.records("web")]
    assert {"breaker_open", "precheck"} == set(whys)
    assert [text.splitlines()[0][:35] for _, _, text in world.delivered] == ["CRITICAL provider anthropic refused"]


@pytest.mark.parametrize(("status", "reason"), [(401, "auth"), (402, "payment"), (403, "auth")])
def test_a_refused_key_opens_the_breaker_until_a_probe_succeeds(make_world: MakeWorld, status: int, reason: str) -> None:
    refusal = error_answer(status, "authentication_error", "no")
    with model(refusal, refusal, text_answer("HEARTBEAT_OK")) as server:
        world = make_world(config(server.url, interval="10m"), environ={"KEY": KEY})
        world.run(minutes=65)
        assert len(server.requests) == 3
    assert [line.split(" ", 3)[3] for line in world.history()] == [
        f"failed {reason}", "skipped breaker_open", "skipped breaker_open",
        f"failed {reason}", "skipped breaker_open", "skipped breaker_open",
        "ok heartbeat_ok",
    ]  # fmt: skip


def test_a_reload_lets_the_next_run_probe_at_once(make_world: MakeWorld) -> None:
    with model(error_answer(401, "authentication_error", "no"), text_answer("HEARTBEAT_OK")) as server:
        world = make_world(config(server.url, interval="10m"), environ={"KEY": KEY})
        world.run(minutes=5)
        world.reload(config(server.url, interval="10m"))
        world.run(minutes=6)
        assert len(server.requests) == 2
    assert world.history()[-1] == "03-02 08:10 interval ok heartbeat_ok"


def test_an_agent_without_an_interval_runs_its_wakes_once_its_provider_answers(make_world: MakeWorld) -> None:
    refusal = error_answer(401, "authentication_error", "invalid x-api-key")
    with model(refusal, refusal, text_answer("HEARTBEAT_OK")) as server:
        world = make_world(config(server.url, interval="none"), environ={"KEY": KEY})
        world.wake("ops", "one")
        world.run(minutes=5)
        world.wake("ops", "two", sender="other")
        world.run(hours=3)
        assert "one" in str(request_bodies(server)[-1])
        assert "two" in str(request_bodies(server)[-1])
    assert world.history() == [
        "03-02 08:00 api failed auth",
        "03-02 08:05 api skipped breaker_open",
        "03-02 08:30 api failed auth",
        "03-02 09:00 api ok heartbeat_ok",
    ]


def two_agents(url: str, **web: str) -> str:
    """Two agents of one provider: ops, which only runs when woken, and web."""
    beat = ", ".join(f"{key}: {value}" for key, value in web.items())
    more = f'  web: {{runner: {{kind: anthropic}}, heartbeat: {{stagger: 0s, checklist: "- look\\n", deliver: log, {beat}}}}}\n'
    return config(url, interval="none") + more


REFUSAL = error_answer(401, "authentication_error", "invalid x-api-key")


@pytest.mark.parametrize("seconds", [0, 20])
def test_agents_without_an_interval_start_as_soon_as_the_probe_of_another_agent_succeeds(
    make_world: MakeWorld, seconds: int
) -> None:
    with model(REFUSAL, text_answer("HEARTBEAT_OK")) as server:
        world = make_world(
            two_agents(server.url, interval="none"), environ={"KEY": KEY}, durations={"ops": timedelta(seconds=seconds)}
        )
        world.wake("ops", "one")
        world.run(minutes=5)
        world.wake("web", "two")
        world.run(minutes=26)
    assert world.history("ops") == ["03-02 08:00 api failed auth", "03-02 08:30 api ok heartbeat_ok"]
    assert world.history("web") == ["03-02 08:05 api skipped breaker_open", "03-02 08:30 api ok heartbeat_ok"]


def test_a_wake_that_a_provider_and_a_budget_refuse_waits_until_both_have_room(make_world: MakeWorld) -> None:
    with model(REFUSAL, text_answer("HEARTBEAT_OK")) as server:
        yaml = config(server.url, interval="none", budget="{runs_per_day: 1}")
        world = make_world("timezone: UTC\n" + yaml, environ={"KEY": KEY})
        world.wake("ops", "look")
        world.run_until("2026-03-03 00:05")
    assert world.history() == ["03-02 08:00 api failed auth", "03-03 00:00 api ok heartbeat_ok"]


def test_an_agent_without_an_interval_probes_if_the_first_agent_skipped_its_probe(make_world: MakeWorld) -> None:
    with model(REFUSAL, text_answer("HEARTBEAT_OK")) as server:
        yaml = two_agents(server.url, interval="none").replace(
            "interval: none", "interval: none, precheck: {command: look, on_error: skip}", 1
        )
        world = make_world(yaml, environ={"KEY": KEY}, prechecks={"ops": lambda call: 0 if call.at.minute == 0 else 1})
        world.wake("ops", "one")
        world.run(minutes=5)
        world.wake("web", "two")
        world.run(minutes=26)
    assert world.history("ops") == ["03-02 08:00 api failed auth", "03-02 08:30 api skipped precheck_failed"]
    assert world.history("web")[1:] == ["03-02 08:30 api ok heartbeat_ok"]


@pytest.mark.parametrize("seconds", [0, 20])
def test_the_second_of_two_due_runs_waits_for_the_result_of_the_probe(make_world: MakeWorld, seconds: int) -> None:
    with model(REFUSAL, REFUSAL, text_answer("HEARTBEAT_OK")) as server:
        yaml = two_agents(server.url, interval="30m").replace("interval: none", "interval: 30m")
        world = make_world(yaml, environ={"KEY": KEY})
        world.run(minutes=1)
        world.durations["ops"] = timedelta(seconds=seconds)
        world.run(minutes=31)
    rows = world.records("web")
    assert [row["result"] for row in rows] == ["failed", "ok"]
    assert (rows[1]["planned_at"], rows[1]["tries"]) == ("2026-03-02T08:30:00Z", 1)
    assert rows[1]["finished_at"] == f"2026-03-02T08:30:{seconds:02}Z"


def test_a_run_that_waits_for_a_failing_probe_is_skipped(make_world: MakeWorld) -> None:
    with model(REFUSAL) as server:
        yaml = two_agents(server.url, interval="30m").replace("interval: none", "interval: 30m")
        world = make_world(yaml, environ={"KEY": KEY})
        world.run(minutes=1)
        world.durations["ops"] = timedelta(seconds=20)
        world.run(minutes=31)
        assert len(server.requests) == 3
    assert world.history("web")[1:] == ["03-02 08:30 interval skipped breaker_open"]


def test_a_run_that_waits_for_a_probe_longer_than_its_slot_is_skipped(make_world: MakeWorld) -> None:
    with model(REFUSAL, REFUSAL, text_answer("HEARTBEAT_OK")) as server:
        yaml = two_agents(server.url, interval="5m").replace("interval: none", "interval: 30m, timeout: 20m")
        world = make_world(yaml, environ={"KEY": KEY})
        world.run(minutes=1)
        world.durations["ops"] = timedelta(minutes=12)
        world.run(minutes=50)
    assert [line[6:] for line in world.history("web")][6:] == [
        "08:30 interval skipped breaker_open",
        "08:35 interval skipped breaker_open",
        "08:40 interval ok heartbeat_ok",
        "08:45 interval ok heartbeat_ok",
        "08:50 interval ok heartbeat_ok",
    ]


def test_a_wake_that_waits_for_a_provider_runs_after_a_reload(make_world: MakeWorld) -> None:
    with model(REFUSAL, text_answer("HEARTBEAT_OK")) as server:
        world = make_world(two_agents(server.url, interval="none"), environ={"KEY": KEY})
        world.wake("ops", "one")
        world.run(minutes=5)
        world.reload(two_agents(server.url, interval="none"))
        world.run(minutes=5)
    assert world.history("ops") == ["03-02 08:00 api failed auth", "03-02 08:05 api ok heartbeat_ok"]


def test_a_reload_does_not_start_a_wake_that_waits_for_its_retry(make_world: MakeWorld) -> None:
    broken = reply({"content": "?"})
    with model(broken, broken, text_answer("HEARTBEAT_OK")) as server:
        yaml = config(server.url, interval="none", retries="0")
        world = make_world(yaml, environ={"KEY": KEY})
        world.wake("ops", "one")
        world.run(minutes=3)
        world.reload(yaml)
        world.run(minutes=5)
    assert [line.split()[1] for line in world.history("ops")] == ["08:00", "08:01", "08:06"]


@pytest.mark.parametrize("status", [401, 402])
def test_an_open_breaker_is_the_same_problem_as_the_error_that_opened_it(make_world: MakeWorld, status: int) -> None:
    with model(*[error_answer(status, "authentication_error", "invalid x-api-key")] * 30) as server:
        world = make_world(config(server.url, interval="10m", problems="{after: 1}"), environ={"KEY": KEY})
        world.run(hours=5)
    assert {row["why"] for row in world.records()} == {{401: "auth", 402: "payment"}[status], "breaker_open"}
    assert len(world.delivered) == 1


def test_a_long_retry_after_and_its_open_breaker_are_one_problem(make_world: MakeWorld) -> None:
    rest = error_answer(429, "rate_limit_error", "come back", retry_after="31536000")
    with model(*[rest] * 30) as server:
        world = make_world(config(server.url, interval="5m", problems="{after: 1}"), environ={"KEY": KEY})
        world.run(hours=5)
    assert {row["why"] for row in world.records()} == {"rate_limited", "breaker_open"}
    assert len(world.delivered) == 1


def test_a_run_without_time_for_a_retry_belongs_to_the_problem_of_its_last_attempt(make_world: MakeWorld) -> None:
    busy, slow = (
        error_answer(529, "overloaded_error", "Overloaded"),
        error_answer(529, "overloaded_error", "Overloaded", retry_after="900"),
    )
    with model(busy, busy, slow, busy, busy, slow) as server:
        world = make_world(config(server.url, interval="10m", retries="1", problems="{after: 1}"), environ={"KEY": KEY})
        world.run(minutes=45)
    assert [row["why"] for row in world.records()][:4] == ["overloaded", "no_time_left", "overloaded", "no_time_left"]
    assert len(world.delivered) == 1


def test_a_refusal_by_one_provider_does_not_affect_others(make_world: MakeWorld) -> None:
    with model(error_answer(401, "authentication_error", "no")) as bad, model(text_answer("HEARTBEAT_OK")) as good:
        text = config(bad.url).replace(
            "providers: {", f'providers: {{spare: {{kind: anthropic, api_key: x, base_url: "{good.url}"}}, '
        )
        text += """
  other:
    runner: {kind: anthropic, provider: spare}
    model: claude-haiku-5-5
    heartbeat: {interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: log}
"""
        world = make_world(text, environ={"KEY": KEY})
        world.run(hours=1, minutes=1)
    assert [row["result"] for row in world.records("other")] == ["ok", "ok", "ok"]


def test_a_run_without_a_model_call_does_not_use_up_the_probe(make_world: MakeWorld) -> None:
    with model(error_answer(401, "authentication_error", "no"), text_answer("HEARTBEAT_OK")) as server:
        world = make_world(config(server.url, interval="40m", checklist="HEARTBEAT.md"), environ={"KEY": KEY})
        world.write("ops/HEARTBEAT.md", "- look")
        world.run(minutes=5)
        world.write("ops/HEARTBEAT.md", "")
        world.run(minutes=40)
        world.write("ops/HEARTBEAT.md", "- look")
        world.run(minutes=40)
    assert [line.split(" ", 3)[3] for line in world.history()] == ["failed auth", "skipped checklist_empty", "ok heartbeat_ok"]


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (page(), "bad_answer"),
        (reply(b"{", 200), "bad_answer"),
        (error_answer(529, "overloaded_error", "busy"), "overloaded"),
        (error_answer(500, "api_error", "broken"), "server"),
        (error_answer(404, "not_found_error", "no such model"), "not_found"),
        (error_answer(400, "invalid_request_error", "what?"), "bad_request"),
        (hang_up(), "connect"),
    ],
)  # fmt: skip
def test_an_invalid_answer_of_a_provider_is_a_failed_run_with_an_error_class(
    make_world: MakeWorld, act: Act, reason: str
) -> None:
    with model(act) as server:
        world = make_world(config(server.url, retries="0"), environ={"KEY": KEY})
        world.run(minutes=1)
    assert world.history() == [f"03-02 08:00 interval failed {reason}"]
    failed = world.events_of(ProviderFailed)
    assert [(event.provider, event.error_class) for event in failed] == [("anthropic", reason)]
    assert KEY not in json.dumps(world.records())


def test_without_a_key_nothing_is_called(make_world: MakeWorld) -> None:
    with model(text_answer("HEARTBEAT_OK")) as server:
        world = make_world(config(server.url).replace('api_key: "${KEY}", ', ""))
        world.run(hours=2)
        assert server.connections == 0
    assert world.history()[0] == "03-02 08:00 interval failed auth"
    assert "api_key" in world.records()[0]["error"]


def test_a_call_of_an_unknown_tool_has_no_effect_and_is_counted(make_world: MakeWorld) -> None:
    answer = message(text("HEARTBEAT_OK"), tool("bash", {"command": "touch pwned"}))
    with model(reply(answer)) as server:
        world = make_world(config(server.url), environ={"KEY": KEY})
        world.run(minutes=1)
    assert world.history() == ["03-02 08:00 interval ok heartbeat_ok"]
    assert [event.error_class for event in world.events_of(ProviderFailed)] == ["tool_use"]


def test_failed_attempts_are_charged(make_world: MakeWorld) -> None:
    tokens = {"input": 70, "output": 3}
    with Server(
        [reply({"error": "busy", "tokens": tokens}), gateway.text_answer("HEARTBEAT_OK", tokens=tokens, cost_usd=0.01)]
    ) as server:
        world = make_world(http_agent(server.url, interval="1d"))
        world.run(hours=3)
        assert len(server.requests) == 2
    assert world.records()[0]["tokens"]["input"] == 140


def test_a_model_without_a_price_is_counted_and_has_no_known_cost(make_world: MakeWorld) -> None:
    with model(text_answer("HEARTBEAT_OK")) as server:
        world = make_world(config(server.url, model="claude-opus-9"), environ={"KEY": KEY})
        world.run(minutes=1)
    assert world.records()[0]["cost_usd"] is None
    assert world.records()[0]["tokens"]["output"] == 30


def test_a_run_record_names_the_model_requested_by_its_last_attempt(make_world: MakeWorld) -> None:
    with model(error_answer(429, "rate_limit_error", "x", retry_after="120"), text_answer("HEARTBEAT_OK")) as server:
        world = make_world(config(server.url), environ={"KEY": KEY})
        world.run(minutes=1)
        world.reload(config(server.url, model="claude-haiku-5-5"))
        world.run(minutes=2)
        last = server.requests[-1].json["model"]
    assert world.records()[0]["model_requested"] == last


def test_an_attempt_whose_claim_was_lost_records_no_usage(make_world: MakeWorld) -> None:
    with model(text_answer("HEARTBEAT_OK")) as server:
        world = make_world(config(server.url), environ={"KEY": KEY})
        world.durations["ops"] = timedelta(minutes=2)
        world.run(minutes=1)
        with world.store.transaction() as db:
            db.execute("update run set fence = fence + 1")
        world.run(minutes=2)
    row = world.records()[0]
    assert (row["state"], row["tokens"]["input"], world.events_of(CallCharged)) == ("running", 0, [])


def test_the_tokens_of_an_interrupted_call_are_recorded(make_world: MakeWorld) -> None:
    # A model gave a useless answer during the stop. The run is put back, but its tokens must be recorded.
    with model(reply(message(tool("bash", {})))) as server:
        world = make_world(config(server.url, retries="0"), environ={"KEY": KEY}, durations={"ops": timedelta(seconds=1)})
        world.engine.tick(world.clock.read())
        world.engine.stopping = True
        world.runs.can_cancel = False  # as a model call
        world.engine.end_all_runs(world.clock.read())
        world.clock.advance(timedelta(seconds=2))
        world.engine.tick(world.clock.read())
    assert world.records()[0]["tokens"]["input"] == 120


# --- decisions --------------------------------------------------------------------------------------------------------

DECIDE = {"decide": "{model: claude-haiku-5-5}"}


def decides(action: str, tasks: str = "") -> Act:
    return reply(message(tool("decide", {"action": action, "tasks": tasks}), stop_reason="tool_use"))


def test_a_decision_to_skip_is_suppressed_and_makes_no_agent_call(make_world: MakeWorld) -> None:
    with model(decides("skip")) as server:
        world = make_world(config(server.url, **DECIDE), environ={"KEY": KEY})
        world.write("ops/SOUL.md", "You are gentle.")
        world.run(minutes=1)
        assert [call["model"] for call in request_bodies(server)] == ["claude-haiku-5-5"]
        assert "You are gentle." not in json.dumps(request_bodies(server))
    assert world.history() == ["03-02 08:00 interval ok decided_skip"]
    assert world.records()[0]["cost_usd"] == pytest.approx((120 * 1 + 30 * 5 + 7 * 1 + 2 * 1.25) / 1e6)


def test_a_decision_to_run_passes_its_tasks_to_the_agents_own_runner(make_world: MakeWorld) -> None:
    with model(decides("run", "restart the mail queue"), text_answer("Done, it runs again.")) as server:
        world = make_world(config(server.url, **DECIDE), environ={"KEY": KEY})
        world.run(minutes=1)
        assert [call["model"] for call in request_bodies(server)] == ["claude-haiku-5-5", "claude-sonnet-5"]
        assert "restart the mail queue" in json.dumps(request_bodies(server)[1])
    assert world.records()[0]["tokens"]["input"] == 240
    assert [text for _, _, text in world.delivered] == ["Done, it runs again."]


def test_a_decision_has_the_time_that_the_precheck_left(make_world: MakeWorld) -> None:
    keys = {"precheck": "{command: ./new-mail.sh, timeout: 4m}", "timeout": "5m", **DECIDE}
    with model(decides("skip")) as server:
        slow_precheck = Delayed("3 letters", timedelta(minutes=3))
        world = make_world(config(server.url, **keys), environ={"KEY": KEY}, prechecks={"ops": lambda _: slow_precheck})
        world.run(minutes=1)
        assert [request.headers["x-stainless-timeout"] for request in server.requests] == ["120.0"]


@pytest.mark.parametrize("unpriced", ["claude-haiku-5-5", "claude-sonnet-5"])
def test_a_partly_unknown_cost_is_unknown_whichever_part_came_first(make_world: MakeWorld, unpriced: str) -> None:
    with model(decides("run", "restart the mail queue"), text_answer("Done.")) as server:
        world = make_world(config(server.url, **DECIDE).replace(f"{unpriced}: {{input", "another: {input"), environ={"KEY": KEY})
        world.run(minutes=1)
    assert world.records()[0]["tokens"]["input"] == 240
    assert world.records()[0]["cost_usd"] is None


@pytest.mark.parametrize("act", [text_answer("run everything"), decides("everything"), decides("run", " "), page()])
def test_a_missing_decision_fails_the_run(make_world: MakeWorld, act: Act) -> None:
    with model(act) as server:
        world = make_world(config(server.url, retries="0", **DECIDE), environ={"KEY": KEY})
        world.run(minutes=1)
        assert len(server.requests) == 1
    assert world.history() == ["03-02 08:00 interval failed bad_answer"]


def test_a_decision_by_the_requested_model_is_no_model_mismatch(make_world: MakeWorld) -> None:
    with model(decides("skip")) as server:
        world = make_world(config(server.url, decide="{model: claude-haiku-5-5}"), environ={"KEY": KEY})
        world.run(minutes=1)
    assert world.events_of(ModelMismatched) == []


def test_the_usage_of_two_calls_of_an_attempt_is_written_once(make_world: MakeWorld) -> None:
    with model(decides("run", "do it"), text_answer("HEARTBEAT_OK")) as server:
        world = make_world(config(server.url, decide="{model: claude-haiku-5-5}"), environ={"KEY": KEY})
        with world.traced_statements() as statements:
            world.run(minutes=1)
    assert [event.tokens.total for event in world.events_of(CallCharged) if event.tokens] == [159, 159]
    assert world.records()[0]["tokens"]["input"] == 240
    assert len([text for text in statements if text.startswith("update run set cost_usd")]) == 1


# --- sessions ---------------------------------------------------------------------------------------------------------


def test_an_agent_with_a_session_remembers_its_alerts_but_no_suppressed_answers(make_world: MakeWorld) -> None:
    with model(text_answer("ALERT: disk"), text_answer("HEARTBEAT_OK"), text_answer("HEARTBEAT_OK")) as server:
        world = make_world(config(server.url, isolated_session="false", session_keep="4"), environ={"KEY": KEY})
        world.run(minutes=61)
        roles = [[part["role"] for part in call["messages"]] for call in request_bodies(server)]  # type: ignore[attr-defined]
        assert roles == [["user"], ["user", "assistant", "user"], ["user", "assistant", "user"]]
        assert "ALERT: disk" in json.dumps(request_bodies(server)[2])


def test_session_messages_are_kept_no_longer_than_the_history(make_world: MakeWorld) -> None:
    history = "history: {keep: 3d}\n"
    with model(text_answer("ALERT: x")) as server:
        world = make_world(history + config(server.url, isolated_session="false"), environ={"KEY": KEY})
        world.run(minutes=1)
    world.reload(history + "agents: {other: {runner: {kind: command, argv: [x]}, heartbeat: {interval: 6h, deliver: log}}}")
    kept = []
    for _ in range(2):
        world.run(days=2)
        kept.append(world.store.connection.execute("select count(*) from message").fetchone()[0])
    assert kept == [2, 0]

"""Edge cases of provider calls and messages: which provider, probe and cost a failure belongs to, and messages that block others."""

from __future__ import annotations

from datetime import timedelta

import pytest
from servers import gateway
from servers.messages import error_answer, message, text_answer, tool
from servers.scripted import Server, reply
from test_story_models import KEY, config, decides, model

from scheduler.channels.message import DeliveryResult
from scheduler.engine.inbox import Refused
from scheduler.engine.pending_runs import CancelRun, ReportResult
from scheduler.model.outcome import AttemptResult, Call, Failure, Outcome
from scheduler.model.timestamps import to_millis
from scheduler.telemetry.metrics import Metrics
from scheduler.work.executor import Done

# The result of a runner whose call was cancelled.
CANCELLED_CALL = AttemptResult(
    Outcome.FAILED,
    Failure.EXIT,
    error="the call was interrupted",
    calls=(Call("anthropic", "claude-haiku-5-5", None, None, failure=Failure.EXIT),),
)

PRICES = "prices: {claude-haiku-5-5: {input: 1.0, output: 5.0}, claude-sonnet-5: {input: 3.0, output: 15.0}}"


def two_agents(url, extra, beat="interval: 30m"):
    return f"""
providers: {{anthropic: {{api_key: "${{KEY}}", base_url: "{url}"}}}}
{PRICES}
agents:
  ops:
    runner: {{kind: anthropic}}
    heartbeat: {{stagger: 0s, checklist: "- look\\n", deliver: log, {beat}}}
{extra}
"""


IDLE = """
  idle:
    runner: {kind: anthropic}
    heartbeat: {interval: 5m, stagger: 0s, checklist: HEARTBEAT.md, deliver: log}
"""


def events_of_type(world, kind):
    return [e for e in world.events if type(e).__name__ == kind]


def test_an_agent_with_an_empty_checklist_does_not_free_the_probe_of_another_agent(make_world):
    with model(error_answer(401, "authentication_error", "no")) as server:
        world = make_world(two_agents(server.url, IDLE, "interval: 10m"), environ={"KEY": KEY})
        world.write("idle/HEARTBEAT.md", "")
        world.run(minutes=119)
        assert len(server.requests) <= 4  # 08:00 08:30 09:00 09:30


def test_a_retry_after_of_a_year_opens_the_breaker_even_on_the_last_attempt(make_world):
    with model(error_answer(429, "rate_limit_error", "x", retry_after="31536000")) as server:
        world = make_world(config(server.url, interval="10m", retries="0"), environ={"KEY": KEY})
        world.run(minutes=11)
        assert world.history() == ["03-02 08:00 interval failed rate_limited", "03-02 08:10 interval skipped breaker_open"]


def other_provider(good, bad, runner="{kind: anthropic}"):
    return f"""
providers:
  local: {{kind: anthropic, api_key: x, base_url: "{good}"}}
  anthropic: {{api_key: "${{KEY}}", base_url: "{bad}"}}
{PRICES}
agents:
  ops:
    runner: {runner}
    model: claude-sonnet-5
    heartbeat: {{interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: log, decide: {{model: claude-haiku-5-5, provider: local}}}}
  neighbour:
    runner: {{kind: anthropic, provider: local}}
    heartbeat: {{interval: 7m, stagger: 0s, checklist: "- look\\n", deliver: log}}
"""


def test_a_refusal_by_the_runners_provider_does_not_count_against_the_deciders_provider(make_world):
    with Server([decides("run", "do it")]) as good, model(error_answer(401, "authentication_error", "no")) as bad:
        world = make_world(other_provider(good.url, bad.url), environ={"KEY": KEY})
        world.run(minutes=8)
    assert [e.provider for e in events_of_type(world, "ProviderFailed")][:1] == ["anthropic"]
    assert not any("breaker_open" in line for line in world.history("neighbour"))


def test_one_query_per_tick_reads_the_breakers_and_a_success_writes_none(make_world):
    with model(text_answer("HEARTBEAT_OK")) as server:
        second = (
            '  second: {runner: {kind: anthropic}, heartbeat: {interval: 30m, stagger: 0s, checklist: "- x\\n", deliver: log}}'
        )
        world = make_world(two_agents(server.url, second), environ={"KEY": KEY})
        statements: list[str] = []
        world.store.connection.set_trace_callback(statements.append)
        world.run(minutes=61)
        assert [line.split(" ")[3] for line in world.history()] == ["ok"] * 6
        turns = " ".join(statements).split("begin immediate")
        assert max(turn.count("breaker") for turn in turns) == 1
        assert "delete from breaker" not in " ".join(statements)


def test_a_401_from_an_http_agent_does_not_open_the_deciders_breaker(make_world):
    with Server([decides("run", "do it")]) as good, Server([reply({"error": "no"}, 401)]) as agent:
        text = other_provider(good.url, good.url, f'{{kind: http, url: "{agent.url}"}}')
        world = make_world(text, environ={"KEY": KEY})
        world.run(minutes=8)
    assert [e.provider for e in events_of_type(world, "BreakerMoved")] == []


def test_a_500_from_an_http_agent_is_not_a_provider_error(make_world):
    with Server([decides("run", "do it")]) as good, Server([reply({"error": "disk"}, 500)]) as agent:
        text = other_provider(good.url, good.url, f'{{kind: http, url: "{agent.url}"}}')
        world = make_world(text, environ={"KEY": KEY})
        world.run(minutes=1)
    ops = [e for e in events_of_type(world, "ProviderFailed") if e.error_class == "server"]
    assert ops == []


def test_a_decision_by_the_requested_model_is_no_model_mismatch(make_world):
    with model(decides("skip")) as server:
        world = make_world(config(server.url, decide="{model: claude-haiku-5-5}"), environ={"KEY": KEY})
        world.run(minutes=1)
    assert events_of_type(world, "ModelMismatched") == []


def test_a_probe_with_a_temporary_failure_is_a_failed_run_and_not_a_skip(make_world):
    with model(
        error_answer(401, "authentication_error", "no"),
        error_answer(529, "overloaded_error", "busy"),
        text_answer("HEARTBEAT_OK"),
    ) as server:
        world = make_world(config(server.url), environ={"KEY": KEY})
        world.run(minutes=40)
    assert world.history()[1].startswith("03-02 08:30 interval failed")


def test_a_run_that_waits_for_a_retry_when_the_breaker_opens_ends_failed_and_not_skipped(make_world):
    extra = """
  other:
    runner: {kind: anthropic}
    heartbeat: {interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: log}
"""
    empty_usage = error_answer(529, "overloaded_error", "busy")
    with model(empty_usage, error_answer(401, "authentication_error", "no")) as server:
        world = make_world(two_agents(server.url, extra), environ={"KEY": KEY})
        world.run(minutes=2)
    assert world.records("ops")[0]["outcome"] == "failed", world.history()


def test_the_cost_of_a_run_is_unknown_if_one_of_its_models_has_no_price(make_world):
    with model(decides("run", "do it"), text_answer("HEARTBEAT_OK")) as server:
        world = make_world(config(server.url, decide="{model: claude-haiku-5-5}", model="claude-opus-9"), environ={"KEY": KEY})
        world.run(minutes=1)
    assert world.records()[0]["cost_usd"] is None


def test_the_usage_of_two_calls_of_an_attempt_is_added_in_one_statement(make_world):
    with model(decides("run", "do it"), text_answer("HEARTBEAT_OK")) as server:
        world = make_world(config(server.url, decide="{model: claude-haiku-5-5}"), environ={"KEY": KEY})
        statements: list[str] = []
        world.store.connection.set_trace_callback(statements.append)
        world.run(minutes=1)
    assert [event.tokens.total for event in events_of_type(world, "CallCharged")] == [159, 159]
    assert world.records()[0]["tokens"]["input"] == 240
    assert [text.split(" ")[0] for text in statements if "tokens" in text and "cost_usd" in text] == ["update"]


def test_an_attempt_whose_claim_was_lost_records_no_usage(make_world):
    with model(text_answer("HEARTBEAT_OK")) as server:
        world = make_world(config(server.url), environ={"KEY": KEY})
        world.durations["ops"] = timedelta(minutes=2)
        world.run(minutes=1)
        with world.store.transaction() as db:
            db.execute("update run set fence = fence + 1")
        world.run(minutes=2)
    row = world.records()[0]
    assert (row["state"], row["tokens"]["input"], events_of_type(world, "CallCharged")) == ("running", 0, [])


def test_a_run_record_names_the_model_requested_by_its_last_attempt(make_world):
    with model(error_answer(429, "rate_limit_error", "x", retry_after="120"), text_answer("HEARTBEAT_OK")) as server:
        world = make_world(config(server.url), environ={"KEY": KEY})
        world.run(minutes=1)
        world.reload(config(server.url, model="claude-haiku-5-5"))
        world.run(minutes=2)
        last = server.requests[-1].json["model"]
    assert world.records()[0]["model_requested"] == last


HTTP = """
agents:
  ops:
    runner: {{kind: http, url: "{url}"}}
    heartbeat: {{interval: {interval}, stagger: 0s, checklist: "- look\\n", deliver: log}}
"""


def test_failed_async_results_count_as_consecutive_failures(make_world):
    with Server([gateway.async_answer()]) as server:
        world = make_world(HTTP.format(url=server.url, interval="30m"))
        for _ in range(3):
            world.run(minutes=1)
            world.request(ReportResult(server.requests[-1].json["run"], None, "it broke"))
            world.run(minutes=29)
    assert world.store.connection.execute("select failures from entry").fetchone()[0] == 3


def test_a_suppressed_async_result_counts_once_as_quiet(make_world):
    with Server([gateway.async_answer()]) as server:
        world = make_world(HTTP.format(url=server.url, interval="30m"))
        world.run(minutes=1)
        world.request(ReportResult(server.requests[-1].json["run"], "HEARTBEAT_OK", None))
    assert world.store.connection.execute("select quiet from entry").fetchone()[0] == 1


def test_an_active_alert_is_not_resolved_by_the_start_of_an_async_run(make_world):
    with Server([gateway.async_answer()]) as server:
        world = make_world(HTTP.format(url=server.url, interval="30m"))
        world.run(minutes=1)
        world.request(ReportResult(server.requests[-1].json["run"], "ALERT: x", None))
        world.run(minutes=30)
    assert world.store.connection.execute("select alerting from entry").fetchone()[0] == 1


@pytest.mark.parametrize("words", ["a\0b"])
def test_a_nul_byte_is_removed_from_an_async_result(make_world, words):
    with Server([gateway.async_answer()]) as server:
        world = make_world(HTTP.format(url=server.url, interval="30m"))
        world.run(minutes=1)
        world.request(ReportResult(server.requests[-1].json["run"], words, None))
        world.run(minutes=1)
    assert "\0" not in (world.records()[-1]["text"] or "")
    assert len(world.records()[-1]["text"].encode()) <= 64 * 1024


BEHIND_A_GATEWAY = """
providers: {{anthropic: {{api_key: "${{KEY}}", base_url: "{good}"}}}}
{prices}
agents:
  ops:
    runner: {{kind: http, url: "{agent}"}}
    heartbeat: {{interval: 40m, stagger: 0s, checklist: "- look\\n", deliver: log, decide: {{model: claude-haiku-5-5}}, async_timeout: 24h}}
"""


def test_an_async_result_does_not_use_up_the_probe(make_world):
    with (
        Server([decides("run", "do"), error_answer(401, "authentication_error", "no"), decides("skip")]) as good,
        Server([gateway.async_answer()]) as agent,
    ):
        world = make_world(BEHIND_A_GATEWAY.format(good=good.url, agent=agent.url, prices=PRICES), environ={"KEY": KEY})
        world.run(minutes=75)  # 08:00 async; 08:40 401 -> probe 09:10
        run_id = agent.requests[0].json["run"]
        world.request(ReportResult(run_id, "HEARTBEAT_OK", None))  # 09:15
        world.run(minutes=10)  # 09:20
    assert world.history()[-1] == "03-02 09:20 interval ok decided_skip", world.history()


def test_a_restart_with_a_new_key_calls_the_provider_at_once(make_world):
    with model(error_answer(401, "authentication_error", "no"), text_answer("HEARTBEAT_OK")) as server:
        world = make_world(config(server.url, interval="10m"), environ={"KEY": KEY})
        world.run(minutes=5)
        world.environ["KEY"] = "sk-new-key"
        world.downtime(minutes=2)
        world.run(minutes=5)
    assert world.history()[-1] == "03-02 08:10 interval ok heartbeat_ok", world.history()


def test_more_messages_than_can_be_sent_at_once_do_not_make_the_engine_spin(make_world):
    agents = "\n".join(
        f'  a{i}: {{runner: {{kind: command, argv: [x]}}, heartbeat: {{interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: log}}}}'
        for i in range(12)
    )
    world = make_world("agents:\n" + agents, scripts={f"a{i}": (lambda call, i=i: f"ALERT {i}") for i in range(12)})
    sent = world.deliveries._execute
    world.deliveries._execute = lambda delivery: (sent(delivery)[0], timedelta(seconds=20))
    for _ in range(5):
        again_at = world.engine.tick(world.clock.read())
    assert len(world.deliveries.inflight()) == 4  # the concurrency limit of one channel
    assert again_at > world.clock.now


TG = """
channels: {phone: "tgram://12345:abcdefghijklmnopqrstuvwxyz0123456789/99"}
agents:
  ops:
    runner: {kind: command, argv: [x]}
    heartbeat: {interval: 12h, stagger: 0s, checklist: "- look\\n", deliver: phone}
"""


def test_an_alert_is_sent_again_after_its_window_even_if_an_older_message_is_held(make_world):
    state = {"s": DeliveryResult("uncertain", "timed out")}
    world = make_world(TG, scripts={"ops": lambda call: "ALERT disk full"}, send=lambda _: state["s"])
    world.run(hours=1)
    assert world.records()[0]["delivery"]["state"] == "held"
    state["s"] = DeliveryResult("delivered")
    world.run(days=5)
    assert [t for *_, t in world.delivered], world.history()


def test_a_result_that_arrives_before_its_202_is_recorded_is_not_refused_as_unknown(make_world):
    with Server([gateway.async_answer()]) as server:
        world = make_world(HTTP.format(url=server.url, interval="30m"))
        world.engine.tick(world.clock.read())
        ((number, (task, result, _)),) = world.runs._tasks.items()
        world.runs._tasks[number] = (task, result, world.clock.now + timedelta(seconds=1))
        world.engine._deadlines.start_deadline(task, world.clock.monotonic)
        try:
            world.request(ReportResult(number, "ALERT fast", None))
        except Refused as refused:
            assert refused.code != "not_found", refused


def test_the_tokens_of_an_interrupted_call_are_recorded(make_world):
    # A model gave a useless answer during the stop. The run is put back, but its tokens must be recorded.
    with model(reply(message(tool("bash", {})))) as server:
        world = make_world(config(server.url, retries="0"), environ={"KEY": KEY})
        world.engine.tick(world.clock.read())
        ((number, (task, result, _)),) = world.runs._tasks.items()
        world.runs._tasks[number] = (task, result, world.clock.now + timedelta(seconds=1))
        world.engine._deadlines.start_deadline(task, world.clock.monotonic)
        world.engine.stopping = True
        world.runs.cancel = lambda number, why: None  # a model call cannot be cancelled
        world.engine.end_all_runs(world.clock.read())
        world.clock.advance(timedelta(seconds=2))
        world.engine.tick(world.clock.read())
    assert world.records()[0]["tokens"]["input"] == 120, world.records()[0]


# --- metrics ----------------------------------------------------------------------------------------------------------


def metrics_of(world, settings=None):
    return Metrics(settings or world.engine.plan.settings, version="1", tzdata="x")


def lines(m, start):
    return [
        line
        for family in m._counter_families()
        for line in "".join(family.exposition_lines()).splitlines()
        if line.startswith(start)
    ]


def test_the_token_counters_of_an_http_agent_exist_at_zero_from_the_start(make_world):
    with Server([gateway.text_answer("HEARTBEAT_OK", model="opus-9", tokens={"input": 3, "output": 4})]) as server:
        world = make_world(HTTP.format(url=server.url, interval="30m"))
        m = metrics_of(world)
        before = {line.rsplit(" ", 1)[0] for line in lines(m, "heartbeatd_")}
        world.run(minutes=1)
        for e in world.events:
            m.count_event(e)
        after = {line.rsplit(" ", 1)[0] for line in lines(m, "heartbeatd_")}
    assert after - before == set()


def test_the_counters_of_a_removed_provider_and_model_disappear(make_world):
    with model(error_answer(401, "authentication_error", "no")) as server:
        world = make_world(config(server.url), environ={"KEY": KEY})
        m = metrics_of(world)
        world.run(minutes=1)
        world.reload("agents: {ops: {runner: {kind: command, argv: [x]}, heartbeat: {interval: 30m, deliver: log}}}")
        for e in world.events:
            m.count_event(e)
    left = [line for name in ("provider_errors_total", "unpriced", "tokens") for line in lines(m, f"heartbeatd_{name}")]
    named = [line for line in left if 'model=""' not in line]  # a program may report tokens without naming a model
    assert named == [], named[:3]


def test_session_messages_are_kept_no_longer_than_the_history(make_world):
    with model(text_answer("ALERT: x")) as server:
        y = config(server.url, isolated_session="false")
        world = make_world(y, environ={"KEY": KEY})
        world.run(minutes=1)
        world.reload("agents: {y: {runner: {kind: command, argv: [x]}, heartbeat: {interval: 30m, deliver: log}}}")
        world.run(days=40)
    assert world.store.connection.execute("select count(*) from message").fetchone()[0] == 0


def test_a_reload_does_not_end_a_retry_after(make_world):
    with model(error_answer(429, "rate_limit_error", "x", retry_after="31536000"), text_answer("HEARTBEAT_OK")) as server:
        world = make_world(config(server.url, interval="10m"), environ={"KEY": KEY})
        world.run(minutes=5)
        world.reload(config(server.url, interval="10m"))
        world.run(minutes=6)
        assert len(server.requests) == 1


def test_message_parts_behind_a_held_part_expire(make_world):
    def sends(delivery):
        return DeliveryResult("uncertain", "t") if delivery.message.part == 1 else DeliveryResult("delivered")

    world = make_world(TG, scripts={"ops": lambda call: "ALERT " + "word " * 2000}, send=sends)
    world.run(days=40)
    old = "select state from outbox where created_at < ? and state in ('held', 'pending')"
    assert not world.store.connection.execute(old, (to_millis(world.clock.now - timedelta(days=2)),)).fetchall()


def test_a_refusal_of_the_old_key_does_not_open_the_breaker_for_the_new_key(make_world):
    with model(error_answer(401, "authentication_error", "no"), text_answer("HEARTBEAT_OK")) as server:
        world = make_world(config(server.url, interval="10m"), environ={"KEY": KEY})
        world.engine.tick(world.clock.read())
        ((number, (task, result, _)),) = world.runs._tasks.items()
        world.runs._tasks[number] = (task, result, world.clock.now + timedelta(seconds=1))
        world.engine._deadlines.start_deadline(task, world.clock.monotonic)
        world.environ["KEY"] = "sk-new"
        world.reload(config(server.url, interval="10m"))
        world.run(minutes=11)
    assert world.history()[-1] == "03-02 08:10 interval ok heartbeat_ok", world.history()


def test_a_hanging_channel_does_not_delay_other_channels(make_world):
    cfg = 'channels: {slow: {kind: webhook, url: "http://127.0.0.1:9/x", allow_private: true}}\nagents:\n'
    for i in range(9):
        to = "slow" if i < 8 else "log"
        cfg += f'  a{i}: {{runner: {{kind: command, argv: [x]}}, heartbeat: {{interval: 1h, stagger: 0s, checklist: "- look\\n", deliver: {to}}}}}\n'
    world = make_world(cfg, scripts={f"a{i}": (lambda call, i=i: f"ALERT {i}") for i in range(9)})
    sent = world.deliveries._execute
    world.deliveries._execute = lambda delivery: (
        sent(delivery)[0],
        timedelta(seconds=30 if delivery.channel.name == "slow" else 0),
    )
    for _ in range(4):
        world.engine.tick(world.clock.read())
    assert any(name == "a8" for _, name, _ in world.delivered)


def test_a_cancelled_probe_does_not_count_and_is_made_by_the_next_run(make_world):
    with model(error_answer(401, "authentication_error", "no"), text_answer("HEARTBEAT_OK")) as server:
        world = make_world(config(server.url, interval="10m"), environ={"KEY": KEY})
        world.run(minutes=29)
        told = len(events_of_type(world, "ProviderFailed"))
        world.durations["ops"] = timedelta(minutes=5)
        world.run(minutes=2)
        trial = world.records()[-1]
        assert (trial["state"], len(server.requests)) == ("running", 2)
        world.runs.cancel = lambda number, why: world.runs.give_up(number, Done(world.runs.inflight()[number], CANCELLED_CALL))
        world.request(CancelRun(trial["id"]))
        world.run(minutes=18)
    assert [line[6:] for line in world.history()[-2:]] == ["08:30 interval abandoned cancelled", "08:40 interval ok heartbeat_ok"]
    assert len(events_of_type(world, "ProviderFailed")) == told

"""Circuit breakers end to end: what each refusal opens, which agent makes the probe, and what status and metrics show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from metrics_page import Page
from servers import gateway
from servers.messages import Models, error_answer, message, text, text_answer
from servers.scripted import Act, Request, Server, hang_up, reply
from test_story_explain import explained_entry
from test_story_models import config, decides
from world import Delayed, MakeWorld, World

from heartbeatd.verbs import Cancel, Mute, NoteActivity, ReportResult
from scheduler.cli.main import main
from scheduler.engine.delivery import Delivery
from scheduler.engine.effects import VerbRequest
from scheduler.insight import explanation
from scheduler.insight.status_data import read_status
from scheduler.model.events import BreakerMoved, MuteChanged, ProviderFailed
from scheduler.model.message import DeliveryResult
from scheduler.model.outcome import AttemptResult, Call, Failure, Kind, Outcome
from scheduler.store import breakers

KEY = "sk-ant-canary-0123456789"
OK = text_answer("HEARTBEAT_OK")
NO_KEY = error_answer(401, "authentication_error", "invalid x-api-key")
BUSY = error_answer(529, "overloaded_error", "busy")
IN_A_YEAR = error_answer(429, "rate_limit_error", "x", retry_after="31536000")
FORBIDDEN = error_answer(403, "permission_error", "this key may not use that model")


def fleet(url: str, *names: str, **heartbeat_keys: str) -> str:
    """Agents of one provider that all run every 30 minutes at the same time. A keyword adds keys to one heartbeat.

    `model_NAME` names the model of an agent.
    """
    lines = [
        f'providers: {{anthropic: {{api_key: "${{KEY}}", base_url: "{url}"}}}}',
        "channels: {hook: {kind: webhook, url: 'http://127.0.0.1:1/x', allow_private: true}}",
        "defaults: {runner: {kind: anthropic}}",
        "agents:",
    ]
    for name in names:
        keys = {"interval": "30m", "stagger": "0s", "checklist": '"- look\\n"', "deliver": "hook", "retries": "0"}
        more = heartbeat_keys.get(name, "")
        beat = ", ".join([f"{key}: {value}" for key, value in keys.items() if f"{key}:" not in more] + ([more] if more else []))
        lines.append(f"  {name}: {{model: {heartbeat_keys.get(f'model_{name}', 'claude-haiku-5-5')}, heartbeat: {{{beat}}}}}")
    return "\n".join(lines) + "\n"


def by_model(**answers: Act) -> Callable[[Request], Act]:
    """Answers by requested model (`_` for `-`). Other models succeed."""
    return lambda request: answers.get(str(request.json["model"]).replace("-", "_"), OK)


def count_outcomes(world: World, name: str) -> Counter[str]:
    """How often each reason or outcome was recorded for an agent."""
    return Counter(row["result"] if row["result"] == "ok" else str(row["why"]) for row in world.records(name))


FIVE = ("a", "b", "c", "d", "e")
LATER = {name: f"stagger: {5 * place}m" for place, name in enumerate(FIVE) if place}  # staggered by five minutes


@pytest.mark.parametrize("status", [403, 404])
def test_a_refused_model_does_not_affect_other_models_of_its_provider(make_world: MakeWorld, status: int) -> None:
    with Models(by_model(forbidden=error_answer(status, "permission_error", "no"))) as server:
        world = make_world(fleet(server.url, *FIVE, model_a="forbidden", **LATER), environ={"KEY": KEY})
        world.run(hours=6)
    assert [count_outcomes(world, name) for name in FIVE[1:]] == [Counter(ok=12)] * 4
    assert server.models().count("forbidden") == 13


def test_a_refused_model_is_probed_once_in_half_an_hour(make_world: MakeWorld) -> None:
    with Models(by_model(forbidden=FORBIDDEN)) as server:
        world = make_world(fleet(server.url, "a", a="interval: 10m", model_a="forbidden"), environ={"KEY": KEY})
        world.run(minutes=65)
    assert [line.split(" ", 3)[3] for line in world.history()] == [
        "failed auth", "skipped breaker_open", "skipped breaker_open",
        "failed auth", "skipped breaker_open", "skipped breaker_open",
        "failed auth",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("act", "reason", "of_another_model"),
    [
        (error_answer(401, "authentication_error", "no"), "auth", "breaker_open"),
        (error_answer(402, "billing_error", "no"), "payment", "breaker_open"),
        (error_answer(429, "rate_limit_error", "no", retry_after="901"), "rate_limited", "breaker_open"),
        (error_answer(429, "rate_limit_error", "no", retry_after="900"), "rate", "rate"),
    ],
)
def test_a_refused_key_or_account_and_a_long_retry_after_open_the_breaker_of_the_whole_provider(
    make_world: MakeWorld, act: Act, reason: str, of_another_model: str
) -> None:
    """A run waits for up to 15 minutes by itself."""
    with Models(lambda request: act) as server:
        world = make_world(fleet(server.url, "a", "b", b="stagger: 5m", model_a="one", model_b="two"), environ={"KEY": KEY})
        world.run(minutes=29)
    assert (count_outcomes(world, "a"), count_outcomes(world, "b")) == (Counter({reason: 1}), Counter({of_another_model: 1}))


def test_each_conversation_that_got_the_failure_of_a_provider_gets_its_end(make_world: MakeWorld) -> None:
    answer, messages = [NO_KEY], list[tuple[str, str]]()
    to_last = "deliver: last, problems: {after: 1, deliver: last}"
    with Models(lambda request: answer[0]) as server:
        yaml = fleet(server.url, "a", "b", a=to_last, b=f"stagger: 5m, {to_last}").replace(
            "127.0.0.1:1/x", "127.0.0.1:1/{target}"
        )
        world = make_world(yaml, environ={"KEY": KEY})

        def send(delivery: Delivery) -> DeliveryResult:
            assert delivery.channel.url is not None
            messages.append((delivery.channel.url.reveal()[-1], delivery.message.text.split()[0]))
            return DeliveryResult("delivered")

        world.send = send
        for name, chat in (("a", "7"), ("b", "8")):
            world.request(VerbRequest(NoteActivity.of(channel="hook", target=chat), (Kind.HEARTBEAT, name)))
        world.run(minutes=20)
        answer[0] = OK
        world.run(hours=1)
    assert messages == [("7", "CRITICAL"), ("8", "CRITICAL"), ("7", "over"), ("8", "over")]


def test_the_failure_of_a_model_for_one_agent_is_not_over_because_it_answers_another(make_world: MakeWorld) -> None:
    with Models(lambda request: BUSY if "look at b" in str(request.json) else OK) as server:
        yaml = fleet(server.url, "a", "b", b="stagger: 5m, prompt: look at b, problems: {after: 1}")
        world = make_world(yaml, environ={"KEY": KEY})
        world.run(hours=3, minutes=10)
    assert count_outcomes(world, "a") == Counter(ok=7)
    assert [said.partition(" (")[0] for _, _, said in world.delivered] == [
        "warning  provider anthropic unreachable: is overloaded: HTTP 529: busy"
    ]


def test_an_agent_that_works_with_another_provider_does_not_end_the_failure_of_the_first_for_others(
    make_world: MakeWorld,
) -> None:
    once = "problems: {after: 1}"
    with Models(lambda request: BUSY) as busy, Models(lambda request: OK) as works:
        yaml = fleet(busy.url, "a", "b", a=once, b=f"stagger: 5m, {once}").replace(
            "providers: {", f'providers: {{spare: {{kind: anthropic, api_key: x, base_url: "{works.url}"}}, '
        )
        world = make_world(yaml, environ={"KEY": KEY})
        world.run(minutes=20)
        world.reload(yaml.replace("  a: {", "  a: {runner: {kind: anthropic, provider: spare}, "))
        world.run(minutes=50)
    assert world.records("a")[-1]["result"] == "ok"
    assert [said.partition(" (")[0] for _, _, said in world.delivered] == [
        "warning  provider anthropic unreachable: is overloaded: HTTP 529: busy"
    ]


def test_the_end_of_a_failure_is_sent_although_a_refused_key_prevented_runs_in_between(make_world: MakeWorld) -> None:
    too_long = error_answer(400, "invalid_request_error", "too long")
    with Models(lambda request: too_long if "look at b" in str(request.json) else OK) as server:
        world = make_world(
            fleet(server.url, "a", "b", b="interval: 90m, stagger: 5m, prompt: look at b, problems: {after: 1}"),
            environ={"KEY": KEY},
        )
        world.run(minutes=80)
        server.answer = lambda request: NO_KEY
        world.run(minutes=25)
        server.answer = lambda request: OK
        world.run(minutes=100)
    assert count_outcomes(world, "b") == Counter(bad_request=1, breaker_open=1, ok=1)
    assert [said.partition(": ")[0].split()[:2] for _, _, said in world.delivered] == [
        ["warning", "b"], ["CRITICAL", "provider"], ["over", "provider"], ["over", "b"],
    ]  # fmt: skip


def test_a_mute_until_something_changes_ends_when_the_breaker_stops_the_agent(make_world: MakeWorld) -> None:
    answers = iter([OK, OK])
    with Models(lambda request: next(answers, NO_KEY)) as server:
        world = make_world(fleet(server.url, "a", "b", b="stagger: 5m, problems: {after: 1}"), environ={"KEY": KEY})
        world.run(minutes=10)
        world.request(VerbRequest(Mute(until_changed=True), (Kind.HEARTBEAT, "b")))
        world.run(minutes=30)
    assert count_outcomes(world, "b") == Counter(ok=1, breaker_open=1)
    assert [event.muted for event in world.events_of(MuteChanged)] == [True, False]


def test_a_mute_until_something_changes_lasts_while_the_same_provider_fails(make_world: MakeWorld) -> None:
    """The provider has refused `a`, and `b` was only skipped. Both meet the open breaker, and both make probes."""
    with Models(lambda request: NO_KEY) as server:
        world = make_world(fleet(server.url, "a", "b", b="stagger: 5m"), environ={"KEY": KEY})
        world.run(minutes=20)
        for name in ("a", "b"):
            world.request(VerbRequest(Mute(until_changed=True), (Kind.HEARTBEAT, name)))
        world.run(hours=4)
        assert all(count_outcomes(world, name)["auth"] > 1 and count_outcomes(world, name)["breaker_open"] for name in ("a", "b"))
        assert [event.muted for event in world.events_of(MuteChanged)] == [True, True]
        server.answer = by_model()
        world.run(hours=2)
    assert [event.muted for event in world.events_of(MuteChanged)] == [True, True, False, False]


def test_a_mute_until_something_changes_knows_the_last_of_two_errors_of_a_provider(make_world: MakeWorld) -> None:
    answers = iter([BUSY])
    with Models(lambda request: next(answers, NO_KEY)) as server:
        world = make_world(fleet(server.url, "a"), environ={"KEY": KEY})
        world.run(minutes=40)
        world.request(VerbRequest(Mute(until_changed=True), (Kind.HEARTBEAT, "a")))
        world.run(hours=4)
    assert count_outcomes(world, "a")["auth"] > 2
    assert [event.muted for event in world.events_of(MuteChanged)] == [True]


def test_agents_take_turns_at_making_the_probe(make_world: MakeWorld) -> None:
    with Models(lambda request: NO_KEY) as server:
        world = make_world(fleet(server.url, *FIVE), environ={"KEY": KEY})
        world.run(hours=6)
    probes = [row["name"] for row in world.records() if row["why"] == "auth"][5:]
    assert probes == [*FIVE, *FIVE, *FIVE][:12]


def test_the_only_agent_of_a_provider_makes_every_probe(make_world: MakeWorld) -> None:
    with Models(lambda request: NO_KEY) as server:
        world = make_world(fleet(server.url, "a", "far", far="interval: 1d"), environ={"KEY": KEY})
        world.run(hours=3, minutes=10)
    assert count_outcomes(world, "a")["auth"] == 7


def test_an_agent_that_skips_its_probes_does_not_block_the_probes_of_others(make_world: MakeWorld, tmp_path: Path) -> None:
    with Models(lambda request: NO_KEY) as server:
        world = make_world(fleet(server.url, "a", "idle", idle="interval: 10m, checklist: HEARTBEAT.md"), environ={"KEY": KEY})
        world.write("idle/HEARTBEAT.md", "")
        world.run(hours=3, minutes=10)
    assert count_outcomes(world, "a")["auth"] == 7


def test_an_agent_whose_probe_failed_waits_for_the_probe_of_the_next_agent(make_world: MakeWorld) -> None:
    with Models(lambda request: NO_KEY) as server:
        world = make_world(fleet(server.url, "a", "b", b="stagger: 5m"), environ={"KEY": KEY})
        world.run(minutes=20)
        server.answer = lambda request: OK
        world.run(minutes=20)
    assert [line[6:] for line in world.history("a")] == ["08:00 interval failed auth", "08:30 interval ok heartbeat_ok"]
    assert [line[6:] for line in world.history("b")][1:] == ["08:31 interval ok heartbeat_ok"]
    assert world.records("a")[1]["started_at"] == world.records("b")[1]["finished_at"]


def test_an_agent_that_waits_for_the_probe_of_another_one_starts_as_soon_as_that_has_made_no_call(make_world: MakeWorld) -> None:
    """It does not wait until it looks again in 30 seconds."""
    with Server([NO_KEY, OK]) as server:
        yaml = fleet(server.url, "a", "b", b="stagger: 5m, precheck: {command: ./check.sh}")
        world = make_world(yaml, environ={"KEY": KEY})
        world.prechecks["b"] = lambda _: Delayed("NO_WORK", timedelta(minutes=2, seconds=7))
        world.run(minutes=40)
    (_, waited), (_, probe) = world.records("a"), world.records("b")
    assert (waited["why"], probe["why"]) == ("heartbeat_ok", "precheck")
    assert waited["started_at"] == probe["finished_at"]


def test_a_short_retry_after_does_not_shorten_the_waits_before_retries(make_world: MakeWorld) -> None:
    """They are 1, 2 and 4 seconds, each up to a quarter shorter."""
    slow = error_answer(429, "rate_limit_error", "slow", retry_after="1")
    with Server([slow, slow, slow, OK]) as server:
        world = make_world(fleet(server.url, "a", a="retries: 3"), environ={"KEY": KEY})
        world.run(minutes=1)
    (run,) = world.records()
    assert (run["result"], run["tries"], run["finished_at"] > "2026-03-02T08:00:05") == ("ok", 4, True)


def test_the_probe_does_not_wait_for_an_agent_that_is_paused(make_world: MakeWorld) -> None:
    with Server([NO_KEY, OK]) as server:
        world = make_world(fleet(server.url, "a", "b", a="interval: 10m", b="interval: 10m, stagger: 1m"), environ={"KEY": KEY})
        world.run(minutes=5)
        world.pause((Kind.HEARTBEAT, "b"), world.clock.now + timedelta(minutes=45))
        world.run(minutes=30)
    assert count_outcomes(world, "a") == Counter(auth=1, breaker_open=2, ok=1)


def test_a_reload_lets_an_agent_whose_probe_failed_probe_again(make_world: MakeWorld) -> None:
    with Models(lambda request: NO_KEY) as server:
        yaml = fleet(server.url, "a", "b", a="interval: 10m", b="interval: 10m, stagger: 1m")
        world = make_world(yaml, environ={"KEY": KEY})
        world.run(minutes=9)
        server.answer = lambda request: OK
        world.reload(yaml)
        world.run(minutes=1, seconds=30)
    assert world.history("a")[-1] == "03-02 08:10 interval ok heartbeat_ok"


def test_a_probe_that_fails_for_another_reason_passes_the_next_probe_to_the_next_agent(make_world: MakeWorld) -> None:
    script = [NO_KEY, BUSY, OK]
    with Server(script) as server:
        world = make_world(fleet(server.url, "a", a="interval: 10m"), environ={"KEY": KEY})
        world.run(minutes=45)
    assert [line.split(" ", 3)[3] for line in world.history()] == [
        "failed auth", "skipped breaker_open", "skipped breaker_open", "failed overloaded", "ok heartbeat_ok",
    ]  # fmt: skip


def test_the_second_agent_without_slots_probes_if_the_probe_of_the_first_is_inconclusive(make_world: MakeWorld) -> None:
    script = [NO_KEY, BUSY, OK]
    names = ("a", "b", "c")
    with Server(script) as server:
        world = make_world(fleet(server.url, *names, **dict.fromkeys(names, "interval: none")), environ={"KEY": KEY})
        world.wake("a", "one")
        world.run(minutes=5)
        world.wake("b", "two")
        world.wake("c", "three")
        world.run(minutes=26)
    assert [row["result"] for row in world.records() if row["planned_at"] >= "2026-03-02T08:30"].count("ok") == 2


def test_a_useless_answer_still_closes_the_breaker(make_world: MakeWorld) -> None:
    with Server([NO_KEY, reply(message(text("No."), stop_reason="refusal")), OK]) as server:
        world = make_world(fleet(server.url, "a", "b", a="interval: 10m", b="interval: 10m, stagger: 1m"), environ={"KEY": KEY})
        world.run(minutes=45)
    assert count_outcomes(world, "a") + count_outcomes(world, "b") == Counter(auth=1, breaker_open=5, bad_answer=1, ok=3)


def test_a_success_of_another_model_does_not_close_the_breaker_of_the_refused_one(make_world: MakeWorld) -> None:
    with Models(by_model(forbidden=FORBIDDEN)) as server:
        world = make_world(
            fleet(server.url, "a", "b", a="interval: 10m", b="interval: 5m", model_a="forbidden"), environ={"KEY": KEY}
        )
        world.run(minutes=25)
    assert server.models().count("forbidden") == 1


def test_a_job_with_another_model_is_not_affected_by_the_breaker(make_world: MakeWorld) -> None:
    cron = 'cron: {digest: {every: 30m, prompt: "Write it.", agent: a, model: claude-sonnet-5, deliver: hook}}\n'
    with Models(by_model(forbidden=FORBIDDEN)) as server:
        world = make_world(fleet(server.url, "a", model_a="forbidden") + cron, environ={"KEY": KEY})
        world.run(minutes=95)
    assert count_outcomes(world, "digest") == Counter(ok=3)


def test_a_refused_decision_model_affects_only_the_agents_that_use_it(make_world: MakeWorld) -> None:
    with Models(by_model(forbidden=FORBIDDEN)) as server:
        yaml = fleet(server.url, "a", "b", a="interval: 10m, decide: {model: forbidden}", b="interval: 10m")
        world = make_world(yaml, environ={"KEY": KEY})
        world.run(minutes=25)
    assert (count_outcomes(world, "a"), count_outcomes(world, "b")) == (Counter(auth=1, breaker_open=2), Counter(ok=3))


def test_breakers_survive_a_restart_and_are_probed_immediately_after_it(make_world: MakeWorld) -> None:
    with Models(by_model(forbidden=FORBIDDEN)) as server:
        world = make_world(fleet(server.url, "a", a="interval: 10m", model_a="forbidden"), environ={"KEY": KEY})
        world.run(minutes=15)
        assert len(server.requests) == 1
        world.downtime(minutes=1)
        world.run(minutes=5)
    assert len(server.requests) == 2


@pytest.mark.parametrize("change", ["another model", "disabled"])
def test_the_breaker_of_an_unused_model_is_deleted(make_world: MakeWorld, change: str) -> None:
    with Models(by_model(forbidden=FORBIDDEN)) as server:
        world = make_world(fleet(server.url, "a", "b", model_a="forbidden"), environ={"KEY": KEY})
        world.run(minutes=5)
        is_off = change == "disabled"
        world.reload(
            fleet(server.url, "a", "b", a="enabled: false", model_a="forbidden") if is_off else fleet(server.url, "a", "b")
        )
    assert open_breakers(world) == []


@pytest.mark.parametrize(
    ("first", "left"),
    [(NO_KEY, []), (error_answer(402, "billing_error", "no"), ["provider anthropic"]), (IN_A_YEAR, ["provider anthropic"])],
)
def test_the_refusal_of_a_model_shows_that_the_key_is_accepted(make_world: MakeWorld, first: Act, left: list[str]) -> None:
    """It shows neither that the account is paid nor that the rate limit is over."""
    with Models(lambda request: first) as server:
        yaml = fleet(server.url, "a", "b", model_a="forbidden", a="stagger: 5m")
        world = make_world(yaml, environ={"KEY": KEY})
        world.run(minutes=10)
        server.answer = by_model(forbidden=FORBIDDEN)
        world.run_until("2026-03-02 08:36")
        assert open_breakers(world) == [*left, "provider anthropic, model forbidden"]
        world.run_until("2026-03-02 09:01")
    assert world.history("b")[-1] == f"03-02 09:00 interval {'waiting breaker_open' if left else 'ok heartbeat_ok'}"


def open_breakers(world: World) -> list[str]:
    return [str(each.circuit) for each in breakers.list_open_breakers(world.store.connection)]


def test_a_probe_that_takes_long_leaves_the_next_one_to_the_run_that_has_it(make_world: MakeWorld) -> None:
    """Its call fails without a refusal after another run has begun to probe. A third run waits for that one."""
    with Server([NO_KEY, BUSY, BUSY, OK]) as server:
        beats = {"a": "timeout: 2h", "b": "interval: none, timeout: 2h", "c": "interval: none"}
        world = make_world(fleet(server.url, *beats, **beats), environ={"KEY": KEY})
        world.run(minutes=10)
        world.durations |= {"a": timedelta(minutes=45), "b": timedelta(minutes=30)}
        world.run_until("2026-03-02 09:01")
        world.wake("b", "look")
        world.run_until("2026-03-02 09:20")
        world.wake("c", "look")
        world.run(minutes=5)
        assert ([row["state"] for row in world.records("b")], len(server.requests)) == (["running"], 3)
        world.run(minutes=10)
        assert [row["result"] for row in world.records("c")] == ["ok"]


def test_a_failed_connection_opens_no_breaker(make_world: MakeWorld) -> None:
    with Server([hang_up()]) as server:
        world = make_world(fleet(server.url, "a", a="interval: 10m"), environ={"KEY": KEY})
        world.run(minutes=25)
    assert count_outcomes(world, "a") == Counter(connect=3)


def test_a_probe_with_a_temporary_failure_is_a_failed_run_and_not_a_skip(make_world: MakeWorld) -> None:
    """It is not tried again, although it has retries: the next probe is that of another run."""
    with Server([NO_KEY, BUSY, OK]) as server:
        world = make_world(config(server.url), environ={"KEY": KEY})
        world.run(minutes=40)
    assert world.history()[1] == "03-02 08:30 interval failed overloaded"
    assert len(server.requests) == 2


def test_a_cancelled_probe_does_not_count_and_is_made_by_the_next_run(make_world: MakeWorld) -> None:
    interrupted_call = Call("anthropic", "claude-haiku-5-5", None, None, failure=Failure.EXIT)
    result = AttemptResult(Outcome.FAILED, Failure.EXIT, error="the call was interrupted", calls=(interrupted_call,))
    with Server([NO_KEY, OK]) as server:
        world = make_world(config(server.url, interval="10m"), environ={"KEY": KEY})
        world.run(minutes=29)
        before = len(world.events_of(ProviderFailed))
        world.durations["ops"] = timedelta(minutes=5)
        world.run(minutes=2)
        probe = world.records()[-1]
        assert (probe["state"], len(server.requests)) == ("running", 2)
        world.runs.cancelled_result = lambda _, why: result
        world.request(VerbRequest(Cancel(), probe["id"]))
        world.run(minutes=18)
    assert [line[6:] for line in world.history()[-2:]] == ["08:30 interval abandoned cancelled", "08:40 interval ok heartbeat_ok"]
    assert len(world.events_of(ProviderFailed)) == before


def test_an_agent_with_an_empty_checklist_does_not_free_the_probe_of_another_agent(make_world: MakeWorld) -> None:
    with Server([NO_KEY]) as server:
        yaml = fleet(server.url, "ops", "idle", ops="interval: 10m", idle="interval: 5m, checklist: HEARTBEAT.md")
        world = make_world(yaml, environ={"KEY": KEY})
        world.write("idle/HEARTBEAT.md", "")
        world.run(minutes=119)
        assert len(server.requests) <= 4  # 08:00 08:30 09:00 09:30


def test_an_async_result_does_not_use_up_the_probe(make_world: MakeWorld) -> None:
    with Server([decides("run", "do"), NO_KEY, decides("skip")]) as provider, Server([gateway.async_answer()]) as agent:
        beat = "interval: 40m, decide: {model: claude-haiku-5-5}, async_timeout: 24h"
        yaml = fleet(provider.url, "ops", ops=beat).replace("kind: anthropic}}", f'kind: http, url: "{agent.url}"}}}}')
        world = make_world(yaml, environ={"KEY": KEY})
        world.run(minutes=75)  # 08:00 async; 08:40 a 401, so the next probe is at 09:10
        run_id = agent.requests[0].json["run"]
        world.request(VerbRequest(ReportResult(text="HEARTBEAT_OK"), run_id))
        world.run(minutes=10)
    assert world.history()[-1] == "03-02 09:20 interval ok decided_skip"


def test_a_retry_after_of_a_year_opens_the_breaker_even_on_the_last_attempt(make_world: MakeWorld) -> None:
    with Server([IN_A_YEAR]) as server:
        world = make_world(config(server.url, interval="10m", retries="0"), environ={"KEY": KEY})
        world.run(minutes=11)
    assert world.history() == ["03-02 08:00 interval failed rate_limited", "03-02 08:10 interval skipped breaker_open"]


def test_a_long_retry_after_of_one_provider_does_not_stop_the_agents_of_another(make_world: MakeWorld) -> None:
    with Server([error_answer(429, "rate_limit_error", "x", retry_after="86400")]) as slow, Server([OK]) as works:
        yaml = fleet(slow.url, "a", "b", a="interval: 10m", b="interval: 10m, provider: spare").replace(
            "providers: {", f'providers: {{spare: {{kind: anthropic, api_key: x, base_url: "{works.url}"}}, '
        )
        world = make_world(yaml, environ={"KEY": KEY})
        world.run(minutes=11)
    assert count_outcomes(world, "a") == Counter(rate_limited=1, breaker_open=1)
    assert count_outcomes(world, "b") == Counter(ok=2)


def test_a_reload_does_not_end_a_retry_after(make_world: MakeWorld) -> None:
    with Server([IN_A_YEAR, OK]) as server:
        world = make_world(config(server.url, interval="10m"), environ={"KEY": KEY})
        world.run(minutes=5)
        world.reload(config(server.url, interval="10m"))
        world.run(minutes=6)
        assert len(server.requests) == 1


def test_a_restart_repeats_the_probe_after_a_retry_after_that_a_crash_interrupted(make_world: MakeWorld) -> None:
    with Server([error_answer(429, "rate_limit_error", "x", retry_after="86400"), OK, OK]) as server:
        world = make_world(config(server.url, interval="10m", retries="0"), environ={"KEY": KEY})
        world.run_until("2026-03-02 08:19")
        world.durations["ops"] = timedelta(minutes=5)
        world.run_until("2026-03-02 08:22")
        world.downtime(seconds=30)
        world.durations.clear()
        world.run(minutes=10)
    assert world.history()[-1] == "03-02 08:30 interval ok heartbeat_ok"


def test_a_run_that_waits_for_a_retry_when_the_breaker_opens_ends_failed_and_not_skipped(make_world: MakeWorld) -> None:
    with Server([BUSY, NO_KEY]) as server:
        world = make_world(fleet(server.url, "a", "b", a="retries: 2"), environ={"KEY": KEY})
        world.run(minutes=2)
    assert world.records("a")[0]["result"] == "failed"


def test_a_new_key_starts_no_run_for_the_wake_of_a_paused_agent(make_world: MakeWorld) -> None:
    with Models(lambda request: NO_KEY) as server:
        world = make_world(fleet(server.url, "a", a="interval: none"), environ={"KEY": KEY})
        world.wake("a", "look")
        world.run(minutes=1)
        world.pause((Kind.HEARTBEAT, "a"))
        world.reload(world.yaml)
        world.run(minutes=5)
    assert [line.split(" ", 2)[2] for line in world.history()] == ["api failed auth"]


def test_a_wake_that_a_budget_and_a_provider_refuse_waits_until_neither_does(make_world: MakeWorld) -> None:
    with Models(lambda _: NO_KEY) as server:
        world = make_world(fleet(server.url, "a", a="interval: 1d, budget: {runs_per_day: 1}"), environ={"KEY": KEY})
        world.run(minutes=1)
        world.wake("a", "look")
        world.run(hours=8)
    assert [line[12:] for line in world.history()] == ["interval failed auth", "api skipped budget"]


def test_a_restart_with_a_new_key_calls_the_provider_at_once(make_world: MakeWorld) -> None:
    with Server([NO_KEY, OK]) as server:
        world = make_world(config(server.url, interval="10m"), environ={"KEY": KEY})
        world.run(minutes=5)
        world.environ["KEY"] = "sk-new-key"
        world.downtime(minutes=2)
        world.run(minutes=5)
    assert world.history()[-1] == "03-02 08:10 interval ok heartbeat_ok"


def test_a_refusal_of_the_old_key_does_not_open_the_breaker_for_the_new_key(make_world: MakeWorld) -> None:
    with Server([NO_KEY, OK]) as server:
        world = make_world(config(server.url, interval="10m"), environ={"KEY": KEY})
        world.durations["ops"] = timedelta(seconds=1)
        world.engine.tick(world.clock.read())
        world.environ["KEY"] = "sk-new"
        world.reload(config(server.url, interval="10m"))
        world.run(minutes=11)
    assert world.history()[-1] == "03-02 08:10 interval ok heartbeat_ok"


# --- agents with a decision, whose runner has another provider --------------------------------------------------------


def agent_and_decider(decider: str, agent: str, runner: str = "{kind: anthropic}") -> str:
    """The agent `ops`, the provider `local` of its decisions, and the agent `neighbour`, which uses `local` too."""
    return f"""
providers:
  local: {{kind: anthropic, api_key: x, base_url: "{decider}"}}
  anthropic: {{api_key: "${{KEY}}", base_url: "{agent}"}}
agents:
  ops:
    runner: {runner}
    model: claude-sonnet-5
    heartbeat: {{interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: log, decide: {{model: claude-haiku-5-5, provider: local}}}}
  neighbour:
    runner: {{kind: anthropic, provider: local}}
    heartbeat: {{interval: 7m, stagger: 0s, checklist: "- look\\n", deliver: log}}
"""


def test_a_refusal_by_the_runners_provider_does_not_count_against_the_deciders_provider(make_world: MakeWorld) -> None:
    with Server([decides("run", "do it")]) as decider, Server([NO_KEY]) as agent:
        world = make_world(agent_and_decider(decider.url, agent.url), environ={"KEY": KEY})
        world.run(minutes=8)
    assert world.events_of(ProviderFailed)[0].provider == "anthropic"
    assert not any("breaker_open" in line for line in world.history("neighbour"))


def test_a_probe_of_two_calls_is_repeated_after_the_wait_that_one_of_them_was_told(make_world: MakeWorld) -> None:
    busy = error_answer(529, "overloaded_error", "busy", retry_after="600")
    with Server([decides("run", "do it")]) as decider, Server([NO_KEY, busy]) as agent:
        world = make_world(agent_and_decider(decider.url, agent.url).partition("  neighbour:")[0], environ={"KEY": KEY})
        world.run(minutes=31)
    assert [f"{each.probe_at:%H:%M}" for each in breakers.list_open_breakers(world.store.connection)] == ["08:40"]


def test_a_401_from_an_http_agent_does_not_open_the_deciders_breaker(make_world: MakeWorld) -> None:
    with Server([decides("run", "do it")]) as decider, Server([reply({"error": "no"}, 401)]) as agent:
        yaml = agent_and_decider(decider.url, decider.url, f'{{kind: http, url: "{agent.url}"}}')
        world = make_world(yaml, environ={"KEY": KEY})
        world.run(minutes=8)
    assert world.events_of(BreakerMoved) == []


def test_a_500_from_an_http_agent_is_not_a_provider_error(make_world: MakeWorld) -> None:
    with Server([decides("run", "do it")]) as decider, Server([reply({"error": "disk"}, 500)]) as agent:
        yaml = agent_and_decider(decider.url, decider.url, f'{{kind: http, url: "{agent.url}"}}')
        world = make_world(yaml, environ={"KEY": KEY})
        world.run(minutes=1)
    assert [event for event in world.events_of(ProviderFailed) if event.error_class == "server"] == []


# --- statements -------------------------------------------------------------------------------------------------------


def test_one_query_per_tick_at_most_reads_the_breakers_and_a_success_writes_none(make_world: MakeWorld) -> None:
    with Server([OK]) as server:
        world = make_world(fleet(server.url, "a", "b"), environ={"KEY": KEY})
        with world.traced_statements() as statements:
            world.run(minutes=61)
    assert [row["result"] for row in world.records()] == ["ok"] * 6
    ticks = " ".join(statements).split("begin immediate")
    assert max(tick.count("breaker") for tick in ticks) <= 1
    assert "delete from breaker" not in " ".join(statements)


# --- what records, status, explain and metrics show -------------------------------------------------------------------


def test_a_skip_record_names_the_provider_and_model_and_the_error(make_world: MakeWorld) -> None:
    with Models(by_model(forbidden=FORBIDDEN)) as server:
        world = make_world(fleet(server.url, "a", a="interval: 10m", model_a="forbidden"), environ={"KEY": KEY})
        world.run(minutes=15)
    error = "provider anthropic, model forbidden: HTTP 403 Forbidden: this key may not use that model"
    assert world.records("a")[1]["error"] == error
    moved = world.events_of(BreakerMoved)[0]
    assert (*moved.circuit, moved.is_open, moved.reason) == ("anthropic", "forbidden", True, "auth")


def test_status_names_provider_and_model_and_the_time_of_the_probe(
    make_world: MakeWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    with Models(by_model(forbidden=FORBIDDEN)) as server:
        world = make_world(fleet(server.url, "a", "b", model_a="forbidden"), environ={"KEY": KEY})
        world.run(minutes=5)
    (found,) = read_status(world.store.connection, world.clock.now).as_data()["breakers"]
    assert found == {
        "provider": "anthropic", "model": "forbidden", "why": "auth",
        "error": "HTTP 403 Forbidden: this key may not use that model",
        "opened_at": "2026-03-02T08:00:00Z", "next_probe_at": "2026-03-02T08:30:00Z",
    }  # fmt: skip
    assert main(["status", "--state", str(world.database)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "circuit breaker open: provider anthropic, model forbidden has been blocked since" in printed
    assert "HTTP 403 Forbidden: this key may not use that model" in printed
    with Models(by_model(forbidden=FORBIDDEN)) as server:  # the next trial call fails, too
        world.reload(fleet(server.url, "a", "b", model_a="forbidden"))
        world.run(minutes=30)
    (later,) = read_status(world.store.connection, world.clock.now).as_data()["breakers"]
    assert (later["opened_at"], later["next_probe_at"]) == ("2026-03-02T08:00:00Z", "2026-03-02T09:00:00Z")


def test_explain_names_provider_and_model_and_the_next_call_in_the_zone_of_the_agent(make_world: MakeWorld) -> None:
    with Models(by_model(forbidden=FORBIDDEN)) as server:
        yaml = fleet(server.url, "a", model_a="forbidden").replace("heartbeat: {", "heartbeat: {timezone: Asia/Tokyo, ")
        world = make_world(yaml, environ={"KEY": KEY})
        world.run(minutes=5)
        explained = explained_entry(world, "a")
    assert explanation.explain_now(explained).as_data()["now"]["detail"] == (
        "provider anthropic, model forbidden: HTTP 403 Forbidden: this key may not use that model;"
        " next trial call at 2026-03-02 17:30:00 Asia/Tokyo"
    )


def test_the_metrics_distinguish_a_provider_from_its_models(make_world: MakeWorld) -> None:
    with Models(by_model(forbidden=FORBIDDEN)) as server:
        world = make_world(fleet(server.url, "a", "b", model_a="forbidden"), environ={"KEY": KEY})
        page = Page(world)
        world.run(minutes=5)
    shown = page.text()
    assert 'heartbeatd_breaker_open{provider="anthropic"} 0' in shown
    assert 'heartbeatd_breaker_model_open{provider="anthropic",model="forbidden"} 1' in shown
    assert 'heartbeatd_breaker_model_open{provider="anthropic",model="claude-haiku-5-5"} 0' in shown

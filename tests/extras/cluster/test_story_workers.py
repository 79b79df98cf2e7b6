"""Runs that workers on other machines execute: lost and stopped workers, restarts of the scheduler, refused and late runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from test_story_explain import explained_entry, fact_of
from test_story_silence import status_lines
from test_story_slots import agent, job
from world import Delayed, MakeWorld, World

from heartbeat.checklist import Selection
from heartbeat.findings import Finding, ReminderWish, Report, Severity
from heartbeat.precheck import PrecheckResult, PrecheckStatus
from heartbeat.result import SentPrompt
from heartbeat.runners import Tokens, ToolCall, TurnBudget
from heartbeat.spec import ClaudeCode, CommandRunner
from heartbeat.verdict import Suppression
from heartbeatd.verbs import Cancel
from scheduler.cli.main import commands
from scheduler.engine.effects import VerbRequest
from scheduler.extras.cluster.payloads import SCHEMA, AttemptRefused, ClaimCodec, InvalidPayload, settings_fingerprint
from scheduler.insight import explanation
from scheduler.model.budget import Amount, Reservation
from scheduler.model.entry import Claim
from scheduler.model.events import RunClosed, RunRecovered, StaleResultDropped
from scheduler.model.outcome import AttemptResult, Call, Failure, Kind, Outcome
from scheduler.store import runs
from scheduler.work.executor import Done, Interrupted, NotTaken

LOST = Interrupted("w1 was lost", was_stopped=False)
STOPPED = Interrupted("w1 was stopped", was_stopped=True)
LONG = Delayed("HEARTBEAT_OK", timedelta(minutes=3))


def codec_of(world: World) -> ClaimCodec:
    return ClaimCodec(lambda: world.engine.plan.entries, world.folder, "w1")


@pytest.mark.parametrize(
    ("ending", "times", "history", "calls", "tries"),
    [
        (LOST, 1, "ok heartbeat_ok", 2, 2),  # it runs again, and uses up no retry
        (LOST, 9, "abandoned crash_count", 4, 4),
        (STOPPED, 5, "ok heartbeat_ok", 6, 1),  # it gives its run back, and that is no crash
    ],
)
def test_a_heartbeat_whose_worker_is_lost_or_stopped_runs_again(
    make_world: MakeWorld, ending: Interrupted, times: int, history: str, calls: int, tries: int
) -> None:
    world = make_world(agent(retries="0"), through_payloads=True)
    world.scripts["ops"] = lambda call: ending if len(world.calls) <= times else "HEARTBEAT_OK"
    world.run(minutes=5)
    assert world.history() == [f"03-02 08:00 interval {history}"]
    assert (len(world.calls), world.records()[0]["tries"]) == (calls, tries)
    lost = min(times, tries - 1) if ending is LOST else 0
    assert [event.again for event in world.events_of(RunRecovered)][:lost] == [True] * lost
    if history.startswith("abandoned"):
        assert world.records()[0]["error"] == "its workers were lost 4 times during this run"


def test_the_command_of_a_lost_worker_is_not_repeated_and_is_reported(make_world: MakeWorld) -> None:
    world = make_world(job(every="1h"), through_payloads=True)
    world.scripts["measure"] = lambda call: LOST
    world.run(minutes=70)
    assert world.history() == ["03-02 09:00 every abandoned child_may_still_run"]
    assert "w1 was lost during this run; one of its processes may still be running" in world.delivered[0][2]


def test_a_run_that_no_worker_takes_ends_as_a_timeout_that_says_so(make_world: MakeWorld) -> None:
    world = make_world(agent(retries="0"))
    world.scripts["ops"] = lambda call: Delayed("HEARTBEAT_OK", timedelta(minutes=20))
    world.runs.cancelled_result = lambda result, why: NotTaken("no worker has taken it")
    world.run(minutes=8)
    assert world.history() == ["03-02 08:00 interval timeout timeout"]
    assert world.records()[0]["error"] == "no worker has taken it"


def test_explain_says_for_which_queue_a_run_waits_until_a_worker_has_taken_it(make_world: MakeWorld) -> None:
    executor = "executor: {kind: procrastinate, dsn: 'postgresql://server/queue'}\n"
    world = make_world(executor + agent() + "    executor: {queue: gpu}\n")
    world.scripts["ops"] = lambda call: LONG
    world.run(seconds=20)
    assert "run 1 waits for a worker of queue gpu" in now_of(world)
    (claim,) = world.runs.inflight().values()
    world.engine.inbox.submit(lambda tick: runs.record_worker(tick.tx, claim, "w1"))
    world.run(seconds=5)
    assert "run 1 on w1" in now_of(world)


def now_of(world: World) -> str:
    """What `explain` says about now."""
    return str(fact_of(explanation.explain_now(explained_entry(world)).as_data(), "now")["says"])


@pytest.mark.parametrize(("down", "results"), [(timedelta(seconds=30), 0), (timedelta(minutes=5), 1)])
def test_a_restarted_scheduler_repeats_no_run_that_a_worker_executes_or_has_executed_in_the_meantime(
    make_world: MakeWorld, down: timedelta, results: int
) -> None:
    world = make_world(agent(), through_payloads=True)
    world.scripts["ops"] = lambda call: LONG
    world.run(minutes=1)
    world.kill()
    world.clock.advance(down)
    assert (len(world.runs.results()), len(world.runs.inflight())) == (results, 1 - results)
    world.boot(runs=world.runs)
    world.settle()
    world.run(minutes=0 if results else 4)
    assert world.history() == ["03-02 08:00 interval ok heartbeat_ok"]
    assert len(world.calls) == 1


def test_a_run_that_the_queue_does_not_know_is_repeated_after_a_restart(make_world: MakeWorld) -> None:
    world = make_world(agent())
    world.scripts["ops"] = lambda call: LONG if len(world.calls) == 1 else "HEARTBEAT_OK"
    world.run(minutes=1)
    world.downtime(seconds=30)
    world.run(minutes=4)
    assert world.history() == ["03-02 08:00 interval ok heartbeat_ok"]
    assert len(world.calls) == 2


def test_a_cancelled_run_is_not_given_to_another_worker(make_world: MakeWorld) -> None:
    world = make_world(agent())
    world.scripts["ops"] = lambda call: LONG
    world.runs.cancelled_result = lambda result, why: LOST
    world.run(minutes=1)
    world.request(VerbRequest(Cancel(), 1))
    world.run(minutes=1)
    assert world.history() == ["03-02 08:00 interval abandoned cancelled"]
    assert len(world.calls) == 1


def test_a_lost_attempt_of_a_run_that_has_been_taken_over_is_stale(make_world: MakeWorld) -> None:
    world = make_world(agent())
    world.scripts["ops"] = lambda call: Delayed(LOST, timedelta(minutes=1))
    world.engine.tick(world.clock.read())
    with world.store.transaction() as db:
        db.execute("update run set fence = fence + 1")
    world.run(minutes=2)
    assert len(world.events_of(StaleResultDropped)) == 1


def test_the_run_record_names_the_worker_of_the_last_attempt(make_world: MakeWorld) -> None:
    world = make_world(agent(retries="0"))
    world.scripts["ops"] = lambda call: LOST if len(world.calls) == 1 else "HEARTBEAT_OK"
    world.runs.worker = "w1"
    world.engine.tick(world.clock.read())
    world.runs.worker = "w2"
    world.run(minutes=1)
    assert [(row["result"], row["tries"], row["worker"]) for row in world.records()] == [("ok", 2, "w2")]
    assert [event.worker for event in world.events_of(RunClosed)] == ["w2"]


def test_a_run_in_progress_names_its_worker(make_world: MakeWorld) -> None:
    world = make_world(agent())
    world.scripts["ops"] = lambda call: LONG
    world.run(minutes=1)
    (claim,) = world.runs.inflight().values()
    world.request(lambda tick: runs.record_worker(tick.tx, claim, "w1"))
    assert [(row["state"], row["worker"]) for row in world.records()] == [("running", "w1")]
    assert [line.split()[3:6] for line in status_lines(world) if line.startswith("agent/ops")] == [["running", "on", "w1"]]
    assert (
        "a run is in progress: run 1 on w1;" in CliRunner().invoke(commands, ["explain", "ops", "-c", str(world.config)]).output
    )


def test_a_late_note_does_not_name_the_worker_of_an_earlier_attempt(make_world: MakeWorld) -> None:
    world = make_world(agent())
    world.scripts["ops"] = lambda call: Delayed(LOST, timedelta(minutes=1)) if len(world.calls) == 1 else LONG
    world.engine.tick(world.clock.read())
    (claim,) = world.runs.inflight().values()
    world.run(minutes=2)
    world.request(lambda tick: runs.record_worker(tick.tx, claim, "w1"))
    assert [(row["state"], row["tries"], row["worker"]) for row in world.records()] == [("running", 2, None)]


@pytest.mark.parametrize("ending", [LOST, NotTaken("too late"), AttemptResult(Outcome.FAILED, Failure.EXIT, error="broken")])
def test_the_record_of_a_run_that_failed_names_the_worker_however_it_ended(make_world: MakeWorld, ending: object) -> None:
    world = make_world(job(every="1h"))
    world.scripts["measure"] = lambda call: ending
    world.runs.worker = "w1"
    world.run(minutes=70)
    assert [row["worker"] for row in world.records()] == ["w1"]


def test_a_second_attempt_that_no_worker_takes_is_not_recorded_with_the_worker_of_the_first(make_world: MakeWorld) -> None:
    world = make_world(agent(retries="1"))
    world.scripts["ops"] = lambda call: Delayed("HEARTBEAT_OK", timedelta(minutes=20)) if len(world.calls) == 2 else LOST
    world.runs.worker = "w1"
    world.engine.tick(world.clock.read())
    world.runs.worker = None
    world.run(minutes=1)
    assert [(row["state"], row["worker"]) for row in world.records()] == [("running", None)]


# Payloads


def first_claim(world: World) -> Claim:
    world.scripts["ops"] = lambda call: LONG
    world.engine.tick(world.clock.read())
    return next(iter(world.runs.inflight().values()))


def test_a_payload_contains_no_secret(make_world: MakeWorld) -> None:
    yaml = agent().replace("{kind: command, argv: [agent]}", '{kind: command, argv: [agent], env: {LOGIN: "${KEY}"}}')
    world = make_world(yaml, environ={"KEY": "sesame-open-1234"})
    claim = first_claim(world)
    assert "sesame" not in codec_of(world).write_task(claim)
    assert codec_of(world).read_task(codec_of(world).write_task(claim)) == claim  # the worker has its own copy


def test_a_worker_with_other_settings_refuses_a_run_and_says_what_to_do(make_world: MakeWorld) -> None:
    world = make_world(agent(timeout="4m"))
    payload = codec_of(world).write_task(first_claim(world))
    world.reload(agent(timeout="3m"))
    with pytest.raises(AttemptRefused, match="the config of w1 has other settings for agent/ops"):
        codec_of(world).read_task(payload)


def test_the_same_config_in_another_folder_has_the_same_settings(make_world: MakeWorld, tmp_path: Path) -> None:
    world = make_world(agent())
    payload = codec_of(world).write_task(first_claim(world))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    other = World(elsewhere, world.yaml)
    assert codec_of(other).read_task(payload).run.id == 1
    other.store.close()


def test_a_key_that_only_the_newer_side_knows_does_not_change_the_settings_while_it_has_its_default(
    make_world: MakeWorld,
) -> None:
    @dataclass(frozen=True)
    class Old:
        name: str
        retries: int = 2

    @dataclass(frozen=True)
    class New(Old):
        colour: str | None = None

    world = make_world(agent())
    (entry,) = world.engine.plan.entries.values()
    fingerprint = lambda spec: settings_fingerprint(replace(entry, spec=spec), world.folder)  # type: ignore[call-arg]  # noqa: E731
    assert fingerprint(New("ops", 3)) == fingerprint(Old("ops", 3))
    assert fingerprint(New("ops", 3, "red")) != fingerprint(Old("ops", 3))
    assert fingerprint(Old("ops")) != fingerprint(Old("ops", 3))


def test_claude_code_has_other_settings_than_a_plain_program_and_the_same_with_any_login(make_world: MakeWorld) -> None:
    """A worker that does not know `claude` would start the program without its arguments. It may log in with a token of its own."""
    world = make_world(agent())
    (entry,) = world.engine.plan.entries.values()
    plain = CommandRunner(("claude",), {}, "claude")
    code = replace(plain, claude=ClaudeCode())
    variants = [plain, code, replace(plain, claude=ClaudeCode(("Read",))), replace(plain, claude=ClaudeCode(login={"TOKEN": 1}))]
    prints = [
        settings_fingerprint(replace(entry, spec=replace(entry.spec, runner=each)), world.folder)  # type: ignore[type-var]
        for each in variants
    ]
    assert prints[1] == prints[3]
    assert len(set(prints)) == 3


def test_a_job_with_a_prompt_has_the_settings_that_the_version_of_29_november_computes(make_world: MakeWorld) -> None:
    ops = (
        agent()
        .replace("    heartbeat:", "    context: [SOUL.md]\n    heartbeat:", 1)
        .replace("deliver:", "max_input_tokens: 9000, deliver:")
    )
    plain = "  dev: {runner: {kind: command, argv: [agent]}, heartbeat: {interval: none}}\n"
    jobs = "cron:\n  one: {every: 1h, prompt: look, agent: ops}\n  two: {every: 1h, prompt: look, agent: dev}\n"
    jobs += "  three: {every: 1h, command: look, previous: true}\n"
    world = make_world(ops + plain + jobs)
    entries = world.engine.plan.entries
    hashes = [settings_fingerprint(entries[Kind.CRON, name], world.folder) for name in ("one", "two", "three")]
    assert hashes == ["0be00d375d4fb12f", "75e9e948668fe97c", "5e60318558945430"]


def test_a_worker_of_the_version_of_29_november_finds_all_that_it_needs_of_a_budget_without_prices(make_world: MakeWorld) -> None:
    world = make_world(agent())
    reserved = Reservation((), Amount(0, 5000), 4000, (TurnBudget(None, 5000, 0.0, 0.0),))
    claim = first_claim(world)
    data = json.loads(codec_of(world).write_task(replace(claim, facts=replace(claim.facts, reserved=reserved))))
    (turns,) = data["claim"]["facts"]["reserved"]["turns"]
    assert turns == {"usd": None, "tokens": 5000, "input_price": 0.0, "output_price": 0.0}


@pytest.mark.parametrize("schema", [SCHEMA - 1, SCHEMA + 1])
def test_a_payload_of_the_neighbouring_schema_is_read_and_unknown_fields_are_ignored(make_world: MakeWorld, schema: int) -> None:
    world = make_world(agent())
    codec, claim = codec_of(world), first_claim(world)
    data = json.loads(codec.write_task(claim))
    data |= {"schema": schema, "colour": "red", "claim": {**data["claim"], "mood": "good"}}
    assert codec.read_task(json.dumps(data)).run.id == 1
    done = json.loads(codec.write_done(Done(claim, AttemptResult(Outcome.OK)))) | {"schema": schema, "colour": "red"}
    assert codec.read_done(claim, json.dumps(done)).result == AttemptResult(Outcome.OK)


@pytest.mark.parametrize(("schema", "advice"), [(SCHEMA + 2, "update heartbeatd"), (SCHEMA - 2, "update the scheduler")])
def test_a_payload_of_a_distant_schema_is_refused_with_advice(make_world: MakeWorld, schema: int, advice: str) -> None:
    world = make_world(agent())
    codec, claim = codec_of(world), first_claim(world)
    with pytest.raises(InvalidPayload, match=advice):
        codec.read_task(json.dumps(json.loads(codec.write_task(claim)) | {"schema": schema}))
    distant = str(codec.read_done(claim, json.dumps({"schema": schema})).exception)
    assert f"the worker writes schema {schema}, and this is schema {SCHEMA}" in distant


def test_a_result_that_cannot_be_read_is_a_failed_run_that_says_so(make_world: MakeWorld) -> None:
    world = make_world(agent())
    codec, claim = codec_of(world), first_claim(world)
    written = codec.write_done(Done(claim, AttemptResult(Outcome.OK)))
    assert codec.read_done(claim, written).result == AttemptResult(Outcome.OK)
    for wrong in ("", "[]", written.replace('"ok"', '"splendid"'), json.dumps({"schema": 99})):
        assert "cannot be read" in str(codec.read_done(claim, wrong).exception)


# One result with every field. A worker with a defect, or a person with its credential, may write anything in its place.
FULL_RESULT = AttemptResult(
    Outcome.ALERT, Failure.EXIT, Suppression.DUPLICATE, "disk full", "disk full", "broken", 1, True, timedelta(minutes=1),
    PrecheckResult(PrecheckStatus.WORK, 1, "out", "err", "digest", "state", ("e1",)),
    SentPrompt({"checklist": 3}, ("memory",), Selection("- look", True, frozenset("a"), frozenset("b"), ("c",))),
    (Call("main", "opus", "opus-5", Tokens(1, 2, 3, 4), 0.25, Failure.EXIT, timedelta(minutes=1), 1, False, 500, timedelta(1),
          Tokens(5, 6)),),
    "opus", "req1", (ToolCall("look", 1, 5, "{}", 7, "broken"),), True, "log", True,
    Report((Finding("disk", "full", Severity.CRITICAL, True),), "text", "loose", 1, (Finding("mail", "3"),)), (ReminderWish("look", "18:00"),),
    ({"key": "disk"},), "main/haiku", "main/opus: the provider is down",
)  # fmt: skip
WRONG_VALUES = (["x"], {"x": 1}, "\ud800", True, -1, 2**70, float("nan"), "P999999999D")


def with_wrong_values(data: Any) -> Iterator[Any]:
    """Copies of JSON data, each with a wrong value in one place."""
    yield from WRONG_VALUES
    parts = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, part in parts:
        for wrong in with_wrong_values(part):
            copy = data.copy()
            copy[key] = wrong
            yield copy


class MalformedResults(ClaimCodec):
    """The codec of a scheduler whose worker writes these results, one after the other."""

    payloads: list[str]

    def write_done(self, done: Done[Any, AttemptResult]) -> str:
        return self.payloads.pop() if self.payloads else super().write_done(done)


def test_no_result_of_a_worker_ends_the_scheduler_or_holds_up_another_run(make_world: MakeWorld) -> None:
    one = agent(retries="0", problems="{after: none}")
    agents = "".join(one.removeprefix("agents:\n").replace("ops:", f"ops{number}:") for number in range(40))
    world = make_world(f"agents:\n{agents}", through_payloads=True)
    codec = MalformedResults(lambda: world.engine.plan.entries, world.folder, "w1")
    written = json.loads(ClaimCodec.write_done(codec, Done(None, FULL_RESULT)))
    deep = "[" * 100_000 + "]" * 100_000
    codec.payloads = [
        *(json.dumps(data) for data in with_wrong_values(written)),
        *(json.dumps(written | {"error": error, "errno": number}) for error in ("x", ["x"]) for number in (1, [1], 2**70)),
        json.dumps(written | {"never_begun": True, "not_taken": ["x"]}),
        f'{{"schema": 1, "result": {deep}}}', f'{{"schema": 1, "result": {{"outcome": "ok", "findings": [{{"x": {deep}}}]}}}}',
    ]  # fmt: skip
    world.runs.carry_over = codec
    while codec.payloads:
        world.run(minutes=60)
    world.run(minutes=120)
    assert all(line.endswith("ok heartbeat_ok") for line in world.history()[-40:])
    assert "a worker cannot be read: result.calls.0.provider: Input should be a valid string" in " ".join(
        row["error"] or "" for row in world.records()
    )
    assert world.engine.health.internal_errors.total() == 0


def test_no_result_of_a_worker_gives_back_what_was_spent(make_world: MakeWorld) -> None:
    codec = codec_of(make_world(agent()))
    for less in ({"tokens": Tokens(output=-1)}, {"most": Tokens(input=-1)}, {"cost_usd": -0.5}):
        result = replace(FULL_RESULT, calls=(replace(FULL_RESULT.calls[0], **less),))  # type: ignore[arg-type]
        found = codec.read_done(None, codec.write_done(Done(None, result)))
        assert "the usage of a call is negative" in str(found.exception), less


def test_jobs_of_one_agent_share_its_lock(make_world: MakeWorld) -> None:
    world = make_world(agent())
    claim = first_claim(world)
    assert (codec_of(world).new_attempt("key", "owner", claim, None).lock, claim.entry.kind) == ("agent/ops", Kind.HEARTBEAT)

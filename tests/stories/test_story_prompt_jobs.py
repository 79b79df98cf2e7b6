"""Cron jobs with a `prompt` end to end: runs of their own that use an agent's runner and its lane."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from servers.messages import error_answer, text_answer
from servers.scripted import Server
from world import Delayed, MakeWorld, World

from heartbeat.runners import ProcessResult
from heartbeatd.verbs import HoldLock, ReleaseLock, ReportResult
from scheduler.engine.effects import VerbRequest
from scheduler.model.outcome import Kind
from scheduler.system import lanes

JOB = """
timezone: Europe/Berlin
channels: {{hook: {{kind: webhook, url: "http://127.0.0.1:9/x", allow_private: true}}}}
agents:
  ops:
    context: [SOUL.md]
    runner: {{kind: command, argv: [agent]}}
    heartbeat: {{interval: 1d, stagger: 0s, checklist: "- look\\n", deliver: log}}
cron:
  digest: {{schedule: "0 10 * * *", prompt: "Write the digest.", agent: ops{more}}}
"""


def job(more: str = "") -> str:
    return JOB.format(more=f", {more}" if more else "")


def world_before_ten(make_world: MakeWorld, more: str = "", **scripts: Any) -> World:
    """A world one minute before 10:00 in Berlin, after the agent's daily run."""
    world = make_world(job(more), start="2026-03-02 08:59", scripts=dict(scripts))
    world.run(seconds=1)
    return world


def test_a_job_sends_its_prompt_to_its_agent(make_world: MakeWorld) -> None:
    world = world_before_ten(make_world, digest=lambda call: "All is quiet.\n")
    world.write("ops/SOUL.md", "You are brief.")
    world.run(minutes=2)
    call = world.calls[-1]
    assert world.history("digest") == ["03-02 09:00 schedule ok"]
    assert (call.env["HEARTBEATD_AGENT"], world.records("digest")[0]["text"]) == ("ops", "All is quiet.\n")
    assert call.stdin.startswith("Write the digest.\n\nContext file SOUL.md:\n")
    assert call.stdin.endswith("\n\nLocal time: Monday 2026-03-02 10:00 (Europe/Berlin, UTC+0100).\n")
    assert "You are brief." in call.stdin
    assert not [word for word in ("heartbeat", "HEARTBEAT_OK", "Checklist", "- look") if word in call.stdin]


def test_the_runner_gets_the_metadata_of_the_job(make_world: MakeWorld) -> None:
    world = world_before_ten(make_world)
    world.run(minutes=2)
    meta = json.loads(str(world.calls[-1].env["HEARTBEATD_META"]))
    assert meta == {
        "agent": "ops", "job": "digest", "now": "2026-03-02T09:00:00Z", "timezone": "Europe/Berlin",
        "local_time": "2026-03-02T10:00:00+01:00", "queue": None, "pending_approvals": None, "last_activity": None, "run": 2, "trigger": "schedule", "tries": 1,
        "planned_at": "2026-03-02T09:00:00Z",
    }  # fmt: skip


def test_no_answer_to_a_job_is_suppressed(make_world: MakeWorld) -> None:
    world = world_before_ten(make_world, "deliver: hook", digest=lambda call: "HEARTBEAT_OK")
    world.run(minutes=2)
    world.run(days=1)
    assert world.history("digest") == ["03-02 09:00 schedule ok", "03-03 09:00 schedule ok"]
    assert [text for _, name, text in world.delivered if name == "digest"] == ["HEARTBEAT_OK", "HEARTBEAT_OK"]


def test_an_answer_is_only_delivered_if_the_job_has_a_channel(make_world: MakeWorld) -> None:
    world = world_before_ten(make_world, digest=lambda call: "All is quiet.")
    world.run(minutes=2)
    assert world.delivered == []


def test_a_failing_prompt_is_retried_as_configured_and_then_reported(make_world: MakeWorld) -> None:
    world = world_before_ten(make_world, "retries: 1, deliver: hook", digest=lambda call: ProcessResult(3, b"", b"no luck"))
    world.run(minutes=2)
    (row,) = world.records("digest")
    assert (row["result"], row["why"], row["tries"]) == ("failed", "exit", 2)
    (text,) = [text for _, _, text in world.delivered]
    assert text.startswith(f"warning  cron/digest failed: {row['error']} (since ")
    assert "no luck" in row["error"]


def test_the_end_of_an_answer_is_in_the_wake_text(make_world: MakeWorld) -> None:
    world = world_before_ten(
        make_world, "wake_heartbeat: ops, wake_text: Read this.", digest=lambda call: "First.\nThe disk is full."
    )
    world.run(minutes=2)
    assert world.history("ops")[-1] == "03-02 09:00 cron ok heartbeat_ok"
    prompt = world.calls[-1].stdin
    assert "Read this." in prompt
    assert "| The disk is full." in prompt


def test_a_prompt_waits_for_its_agents_lane(make_world: MakeWorld) -> None:
    world = world_before_ten(make_world, digest=lambda call: "done")
    with lanes.lanes_beside(world.state).lock_if_free("ops"):
        world.run(minutes=3)
        assert world.history("digest") == ["03-02 09:00 schedule waiting busy"]
    world.run(minutes=1)
    assert world.history("digest") == ["03-02 09:00 schedule ok"]
    assert world.records("digest")[0]["tries"] == 1


def test_a_prompt_starts_at_once_when_a_hold_is_released(make_world: MakeWorld) -> None:
    world = world_before_ten(make_world, digest=lambda call: "done")
    world.request(VerbRequest(HoldLock(id="chat", for_=timedelta(hours=1)), (Kind.HEARTBEAT, "ops")))
    world.run(seconds=65)
    world.request(VerbRequest(ReleaseLock(id="chat"), (Kind.HEARTBEAT, "ops")))
    world.settle()
    assert world.history("digest") == ["03-02 09:00 schedule ok"]


def test_a_lane_locked_until_the_next_slot_is_one_busy_record(make_world: MakeWorld) -> None:
    world = world_before_ten(make_world, digest=lambda call: "done")
    world.reload(job().replace("0 10 * * *", "0 * * * *"))
    with lanes.lanes_beside(world.state).lock_if_free("ops"):
        world.run(hours=1, minutes=10)
    world.run(minutes=1)
    assert world.history("digest") == ["03-02 09:00 schedule skipped busy", "03-02 10:00 schedule ok"]


def test_a_prompt_that_is_too_long_is_not_sent(make_world: MakeWorld) -> None:
    long = job().replace("interval: 1d", "interval: 1d, max_input_tokens: 10")
    world = make_world(long.replace("- look", "-"), start="2026-03-02 08:59")
    world.run(minutes=2)
    assert world.history("digest") == ["03-02 09:00 schedule skipped prompt_too_large"]
    assert world.calls == []


def test_a_crash_during_a_prompt_abandons_it_unless_it_may_run_again(make_world: MakeWorld) -> None:
    for more, end in (("", "abandoned"), ("rerun_after_crash: true", "ok")):
        world = world_before_ten(make_world, more, digest=lambda call: Delayed("done", timedelta(minutes=5)))
        world.run(minutes=2)
        world.downtime(minutes=1)
        world.scripts.clear()
        world.run(minutes=1)
        assert world.records("digest")[-1]["result"] == end
        world.kill()
        world.delete_database()


def test_an_async_answer_to_a_job_is_delivered_and_wakes_when_it_arrives(make_world: MakeWorld) -> None:
    with Server([_later()]) as agent:
        yaml = job("deliver: hook, wake_heartbeat: web").replace(
            "{kind: command, argv: [agent]}", f'{{kind: http, url: "{agent.url}"}}'
        )
        yaml = yaml.replace(
            "cron:",
            '  web: {runner: {kind: command, argv: [web]}, heartbeat: {interval: none, checklist: "- look\\n", deliver: log}}\ncron:',
        )
        world = make_world(yaml.replace("interval: 1d", "interval: none"), start="2026-03-02 08:59")
        world.run(minutes=2)
        (row,) = world.records("digest")
        assert (row["result"], world.delivered, world.records("web")) == ("async", [], [])
        world.request(VerbRequest(ReportResult(text="The digest."), row["id"]))
        world.run(minutes=1)
    assert world.history("digest")[-1] == "03-02 09:00 result ok"
    assert [text for _, name, text in world.delivered if name == "digest"] == ["The digest."]
    assert "| The digest." in world.calls[-1].stdin


def _later() -> Any:
    from servers.scripted import reply

    return reply({}, 202)


MODEL = """
providers: {{anthropic: {{api_key: k, base_url: "{url}"}}, other: {{kind: anthropic, api_key: k, base_url: "http://127.0.0.1:9"}}}}
prices: {{claude-sonnet-5: {{input: 3.0, output: 15.0}}, claude-haiku-5-5: {{input: 1.0, output: 5.0}}}}
agents:
  ops:
    model: claude-sonnet-5
    heartbeat: {{interval: none, checklist: "- look\\n", deliver: log, model: claude-haiku-5-5, provider: other, max_output_tokens: 1234}}
cron:
  digest: {{schedule: "0 9 * * *", prompt: "Write the digest.", agent: ops{more}}}
"""


@pytest.mark.parametrize(("more", "model"), [("", "claude-sonnet-5"), (", model: claude-haiku-5-5", "claude-haiku-5-5")])
def test_a_prompt_uses_the_agents_model_and_provider_and_its_usage_is_recorded(
    make_world: MakeWorld, more: str, model: str
) -> None:
    with Server([text_answer("All is quiet.")]) as server:
        world = make_world(MODEL.format(url=server.url, more=more), start="2026-03-02 08:59")
        world.run(minutes=2)
    sent = server.requests[0].json
    (row,) = world.records("digest")
    assert (sent["model"], sent["max_tokens"]) == (model, 1234)
    assert (row["model_requested"], row["result"], row["text"]) == (model, "ok", "All is quiet.")
    assert row["tokens"]["output"] == 30
    assert row["cost_usd"] > 0


def test_an_open_breaker_also_skips_prompts(make_world: MakeWorld) -> None:
    with Server([error_answer(401, "authentication_error", "no such key")]) as server:
        world = make_world(
            MODEL.format(url=server.url, more="").replace('"0 9 * * *"', '"*/10 9 * * *"'), start="2026-03-02 08:59"
        )
        world.run(minutes=25)
    assert world.history("digest") == [
        "03-02 09:00 schedule failed auth", "03-02 09:10 schedule skipped breaker_open", "03-02 09:20 schedule skipped breaker_open",
    ]  # fmt: skip
    assert len(server.requests) == 1


def test_a_manual_run_of_a_prompt_job_calls_the_agent(make_world: MakeWorld) -> None:
    world = world_before_ten(make_world, digest=lambda call: "done")
    world.run_job("digest")
    world.run(seconds=10)
    assert world.history("digest") == ["03-02 08:59 manual ok"]
    assert Kind.CRON in {row["kind"] for row in world.records()}


def world_with_jobs(make_world: MakeWorld, keys: list[str]) -> World:
    """A world with the jobs job-0, job-1 and so on, one a minute from 10:00 on, each with its keys."""
    jobs = [
        f'  job-{number}: {{schedule: "{number} 10 * * *", prompt: Look., agent: ops, {more}}}\n'
        for number, more in enumerate(keys)
    ]
    world = make_world(job().partition("cron:\n")[0] + "cron:\n" + "".join(jobs), start="2026-03-02 08:59")
    world.run(seconds=1)
    return world


def test_an_answer_that_says_nothing_to_report_is_not_delivered_if_the_job_asks_for_that(make_world: MakeWorld) -> None:
    """[SILENT] is the token of Hermes Agent, NO_REPLY that of OpenClaw."""
    short = "ok_match: edges, ack_max_chars: 20"
    cases = {
        ("", "HEARTBEAT_OK"): ("HEARTBEAT_OK", None),
        ("", "[SILENT]"): ("[SILENT]", None),
        ("ok_match: edges", "HEARTBEAT_OK"): (None, "heartbeat_ok"),
        ("ok_match: edges", "[SILENT]"): (None, "heartbeat_ok"),
        ("ok_match: edges", "NO_REPLY"): (None, "heartbeat_ok"),
        (short, "All is well. HEARTBEAT_OK"): (None, "short_remainder"),
        (short, "Three hosts are down, see the log. HEARTBEAT_OK"): ("Three hosts are down, see the log.", None),
        ("ok_match: anywhere", "Nothing new today.\n\n[SILENT]\n\nBye, until tomorrow."): (None, "heartbeat_ok"),
        ("ok_match: anywhere", "ERROR: no disk. [SILENT]"): ("ERROR: no disk.", None),
        ("ok_match: exact", "HEARTBEAT_OK."): ("HEARTBEAT_OK.", None),
        ("ok_match: none", "HEARTBEAT_OK"): ("HEARTBEAT_OK", None),
    }
    world = world_with_jobs(make_world, [f"deliver: log, {keys}" for keys, _ in cases])
    world.scripts.update({f"job-{number}": lambda call, answer=answer: answer for number, (_, answer) in enumerate(cases)})
    world.run(minutes=len(cases) + 2)
    for number, ((keys, answer), (delivered, suppression)) in enumerate(cases.items()):
        (found,) = world.records(f"job-{number}")
        assert (found["result"], found["why"], found["text"]) == ("ok", suppression, answer), (keys, answer)
        sent = [text for _, name, text in world.delivered if name == f"job-{number}"]
        assert sent == [delivered] * (delivered is not None), (keys, answer)


def test_a_precheck_decides_whether_the_agent_of_a_job_is_called(make_world: MakeWorld) -> None:
    """The check of a script of Hermes Agent has the same form: `wakeAgent` false on its last line."""
    check = "precheck: {{command: ./check, on_error: {}}}"
    cases = {
        ("run", "two new mails"): ("ok", None, True),
        ("run", '{"wakeAgent": false}'): ("skipped", "precheck", False),
        ("run", "NO_WORK"): ("skipped", "precheck", False),
        ("run", 1): ("ok", None, True),
        ("skip", 1): ("skipped", "precheck_failed", False),
    }
    world = world_with_jobs(make_world, [check.format(on_error) for on_error, _ in cases])
    world.prechecks.update({f"job-{number}": lambda call, printed=printed: printed for number, (_, printed) in enumerate(cases)})
    world.run(minutes=len(cases) + 2)
    for number, ((on_error, printed), (outcome, reason, is_called)) in enumerate(cases.items()):
        (found,) = world.records(f"job-{number}")
        assert (found["result"], found["why"]) == (outcome, reason), (on_error, printed)
        calls = [call for call in world.calls if call.name == f"job-{number}"]
        assert bool(calls) is is_called, (on_error, printed)
        assert not calls or printed == 1 or str(printed) in calls[0].stdin
        assert printed == 1 or found["precheck"]["output"] == printed


def test_a_job_runs_only_if_the_output_of_its_precheck_has_changed(make_world: MakeWorld) -> None:
    more = "precheck: {command: ./check, unchanged: skip, confirm: 0}, retries: 0"
    world = make_world(
        job(more).replace('"0 10 * * *"', '"* * * * *"'),
        start="2026-03-02 08:59:30",
        scripts={"digest": lambda call: "Done."},
        prechecks={"digest": lambda call: "a" if f"{call.at:%H:%M}" < "09:03" else "b"},
    )
    world.run(minutes=6)
    assert [f"{call.at:%H:%M}" for call in world.calls if "Write the digest." in call.stdin] == ["09:00", "09:03"]
    assert {each["why"] for each in world.records("digest") if each["result"] == "skipped"} == {"precheck_unchanged"}

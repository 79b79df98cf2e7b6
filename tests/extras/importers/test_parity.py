"""The features of other heartbeat systems: a test for each row of parity.py, and a check of tests/parity.md."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from checkout import HOME
from config_file import complaints, read
from parity import SYSTEMS, page, row, shown_by
from test_story_explain import fact_of
from world import Delayed, MakeWorld, World, utc

import heartbeat
from heartbeat.checklist import parse_checklist
from heartbeat.slots import stagger_for
from heartbeat.verdict import judge_answer
from heartbeatd.verbs import NoteActivity
from scheduler.cli.main import main
from scheduler.engine.effects import VerbRequest
from scheduler.engine.inbox import Refused
from scheduler.model.events import RunClosed
from scheduler.model.outcome import Kind, Trigger
from scheduler.store import agent_memory

NOW = utc("2026-03-02 08:00")


def agent(**keys: str) -> str:
    """The config of one agent `ops` with these heartbeat keys."""
    words = {"interval": "30m", "stagger": "0s", "checklist": '"- look\\n"', "deliver": "log"} | keys
    heartbeat = ", ".join(f"{key}: {value}" for key, value in words.items() if value)
    return (
        f"agents:\n  ops:\n    context: [SOUL.md]\n    runner: {{kind: command, argv: [agent]}}\n    heartbeat: {{{heartbeat}}}\n"
    )


def answers_in_turn(*texts: object) -> dict[str, Callable[..., object]]:
    """An agent that gives these answers in turn and repeats the last one."""
    left = list(texts)
    return {"ops": lambda call: left.pop(0) if len(left) > 1 else left[0]}


def outcomes(world: World) -> list[str]:
    """The history without times."""
    return [line[12:] for line in world.history()]


@row("claw0", 1)
def test_claw0_the_checklist_file_switches_the_heartbeat_on_and_off(make_world: MakeWorld) -> None:
    world = make_world(agent(checklist="HEARTBEAT.md"))
    file = world.write("ops/HEARTBEAT.md", "- look\n")
    world.run(minutes=1)
    file.unlink()
    world.run(minutes=30)
    assert outcomes(world) == ["interval ok heartbeat_ok", "interval skipped checklist_missing"]


@row("claw0", 2)
def test_claw0_each_check_skips_with_its_reason(make_world: MakeWorld) -> None:
    world = make_world(agent(checklist='"# nothing\\n"'))
    world.run(minutes=1)
    world.reload(agent(show_alerts="false"))
    world.run(minutes=30)
    world.pause(None)
    world.run(minutes=30)
    world.resume(None)
    world.reload(agent(active_hours='"10:00-11:00"'))
    world.run_until("2026-03-02 10:01")
    assert outcomes(world) == [
        "interval skipped checklist_empty", "interval skipped not_shown", "interval skipped paused",
        "interval skipped active_hours", "interval ok heartbeat_ok",
    ]  # fmt: skip


@row("claw0", 2)
def test_claw0_each_check_can_be_previewed(make_world: MakeWorld, capsys: pytest.CaptureFixture[str]) -> None:
    world = make_world(agent(checklist='"# nothing\\n"', show_alerts="false"))
    world.run(minutes=1)
    assert main(["explain", "ops", "-c", str(world.config), "--format", "json"]) == 0
    now = json.loads(capsys.readouterr().out)["now"]
    assert (now["would_run"], now["reason"]) == (False, "checklist_empty")
    assert [gate["gate"] for gate in now["gates"] if gate["stands_in_the_way"]] == ["checklist_empty", "not_shown"]


@row("claw0", 9)
def test_claw0_status_shows_enabled_in_hours_due_and_duplicates(
    make_world: MakeWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    world = make_world(agent(active_hours='"08:00-22:00"'), scripts=answers_in_turn("the disk is full"))
    world.run(minutes=40)
    assert main(["explain", "ops", "-c", str(world.config), "--format", "json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["state"], status["pace"]["interval"]) == ("active", 1800.0)
    assert fact_of(status, "next")["at"] == "2026-03-02T09:00:00Z"
    assert fact_of(status, "last run")["at"] == "2026-03-02T08:30:00Z"
    assert ", alert duplicate, " in fact_of(status, "last run")["says"]
    assert [gate["gate"] for gate in status["now"]["gates"]][:4] == ["disabled", "paused", "calendar", "active_hours"]


@row("claw0", 3)
def test_claw0_headings_and_empty_checkboxes_are_no_content() -> None:
    assert not parse_checklist("# Tasks\n\n- [ ]\n* [ ] \n- [x] done\n-\n").has_work
    assert parse_checklist("# Tasks\n- [ ] look\n").has_work


@row("claw0", 5)
def test_claw0_heartbeat_ok_is_suppressed_even_with_five_more_characters() -> None:
    assert judge_answer("HEARTBEAT_OK", "edges", 5).outcome == "ok"
    assert judge_answer("HEARTBEAT_OK 12345", "edges", 5).outcome == "ok"
    assert judge_answer("HEARTBEAT_OK 123456", "edges", 5).outcome == "alert"


@row("claw0", 6)
def test_claw0_the_same_text_in_any_case_is_sent_once_in_24_hours(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="8h"), scripts=answers_in_turn("Disk FULL", "  disk   full"))
    world.run(hours=25)
    assert [moment for moment, _, _ in world.delivered] == [NOW, NOW + timedelta(hours=24)]


@row("claw0", 8)
def test_claw0_the_agent_can_be_a_function_in_the_same_process() -> None:
    assert heartbeat.beat(heartbeat.Spec(ask=lambda prompt: "Disk full", checklist="- look"), now=NOW).text == "Disk full"


@row("claw0", 9)
def test_claw0_a_heartbeat_can_be_triggered_manually(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="none"))
    world.wake("ops", source=Trigger.MANUAL)
    world.run(minutes=1)
    assert outcomes(world) == ["manual ok heartbeat_ok"]


@row("GoClaw", 1)
def test_goclaw_every_setting_of_a_heartbeat_has_a_key(tmp_path: Path) -> None:
    text = """
channels: {chat: {kind: webhook, url: "https://example.org/x"}}
providers: {local: {kind: openai, base_url: "http://127.0.0.1:1/v1"}}
prices: {small: {input: 0, output: 0}}
agents:
  ops:
    runner: {kind: command, argv: [agent]}
    heartbeat: {enabled: true, interval: 30m, prompt: "Look.", provider: local, model: small, isolated_session: true, light_context: true,
      retries: 2, active_hours: {start: "22:00", end: "06:00", timezone: Asia/Tokyo}, deliver: chat, ack_max_chars: 5}
"""
    beat = read(tmp_path, text.replace("kind: command, argv: [agent]", "kind: openai, provider: local")).settings.heartbeats[
        "ops"
    ]
    assert (beat.interval, beat.prompt, beat.model, beat.light_context, beat.retries) == (
        timedelta(minutes=30),
        "Look.",
        "small",
        True,
        2,
    )
    assert (beat.hours.key(), beat.deliver, beat.ack_max_chars) == (
        "22:00-06:00 mon,tue,wed,thu,fri,sat,sun Asia/Tokyo",
        ("chat",),
        5,
    )
    too_often = text.replace("interval: 30m", "interval: 4m").replace("command, argv: [agent]", "openai, provider: local")
    assert "limits.min_interval" in "".join(complaints(tmp_path, too_often))


@row("GoClaw", 2)
def test_goclaw_the_daemon_sleeps_until_the_next_entry_is_due(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="20s"))
    world.run(seconds=1)
    assert world.engine.tick(world.clock.read()) == NOW + timedelta(seconds=20)


@row("GoClaw", 3)
def test_goclaw_a_run_records_its_trigger(make_world: MakeWorld) -> None:
    world = make_world(agent() + 'cron: {measure: {schedule: "20 8 * * *", command: x, wake_heartbeat: ops}}\n')
    world.run(minutes=5)
    world.wake("ops", source=Trigger.MANUAL)
    world.run(minutes=5)
    world.wake("ops", source=Trigger.API)
    world.run(minutes=15)
    assert [line.split()[2] for line in world.history("ops")] == ["interval", "manual", "api", "cron"]


@row("GoClaw", 4)
def test_goclaw_the_stagger_is_a_stable_hash_of_the_name_within_its_share() -> None:
    share = timedelta(minutes=3)
    staggers = [stagger_for(f"agent-{number}", share) for number in range(100)]
    assert staggers == [stagger_for(f"agent-{number}", share) for number in range(100)]
    assert all(timedelta() <= stagger <= share for stagger in staggers)
    assert len(set(staggers)) > 50


@row("GoClaw", 5)
def test_goclaw_a_skip_outside_active_hours_advances(make_world: MakeWorld) -> None:
    world = make_world(agent(active_hours='"07:00-08:30"'))
    world.run_until("2026-03-03 07:01")
    assert outcomes(world) == ["interval ok heartbeat_ok", "interval skipped active_hours x45", "interval ok heartbeat_ok"]


@row("GoClaw", 6)
def test_goclaw_a_failure_is_retried_after_one_and_two_seconds_and_then_reported(make_world: MakeWorld) -> None:
    world = make_world(agent(retries="2"), scripts=answers_in_turn(1, 1, "Disk full"))
    world.run(minutes=1)
    waits = [later.at - earlier.at for earlier, later in zip(world.calls, world.calls[1:], strict=False)]
    assert outcomes(world) == ["interval alert"]
    assert [round(wait.total_seconds()) for wait in waits] == [1, 2]
    assert [text for _, _, text in world.delivered] == ["Disk full"]


@row("GoClaw", 7)
def test_goclaw_heartbeat_ok_anywhere_suppresses_the_answer_if_configured() -> None:
    assert judge_answer("All is well. HEARTBEAT_OK, as far as I see it.", "anywhere", 5).outcome == "ok"
    assert judge_answer("All is well. HEARTBEAT_OK, as far as I see it.", "edges", 5).outcome == "alert"


@row("GoClaw", 9)
@pytest.mark.parametrize(("light", "has_soul"), [("true", False), ("false", True)])
def test_goclaw_light_context_is_only_the_checklist(make_world: MakeWorld, light: str, has_soul: bool) -> None:
    world = make_world(agent(light_context=light))
    world.write("ops/SOUL.md", "You are calm.")
    world.run(minutes=1)
    assert ("You are calm." in world.calls[0].stdin, "- look" in world.calls[0].stdin) == (has_soul, True)


@row("GoClaw", 14)
def test_goclaw_one_agent_can_have_many_jobs_whose_output_is_not_suppressed(make_world: MakeWorld) -> None:
    jobs = "cron:\n  a: {every: 30m, command: x, deliver: log}\n  b: {schedule: '15 * * * *', command: x, deliver: log, wake_heartbeat: ops}\n"
    once = "  c: {at: '2026-03-02T09:00', command: x, deliver: log}\n"
    scripts = {"a": lambda call: "HEARTBEAT_OK", "b": lambda call: "same", "c": lambda call: "once"}
    world = make_world(agent(interval="none") + jobs + once, scripts=scripts)
    world.run(hours=2, minutes=1)
    assert [text for _, name, text in world.delivered if name == "c"] == ["once"]
    assert [text for _, name, text in world.delivered if name == "a"] == ["HEARTBEAT_OK"] * 4
    assert [text for _, name, text in world.delivered if name == "b"] == ["same"] * 2


@row("PicoClaw", 1)
def test_picoclaw_enabled_and_interval_can_come_from_the_environment(tmp_path: Path) -> None:
    environ = {
        "HEARTBEATD_SET__agents__ops__heartbeat__interval": "10m",
        "HEARTBEATD_SET__agents__ops__heartbeat__enabled": "false",
    }
    loaded = read(tmp_path, agent(), environ)
    beat = loaded.settings.heartbeats["ops"]
    assert (beat.interval, beat.enabled, set(loaded.overrides)) == (timedelta(minutes=10), False, set(environ))


@row("PicoClaw", 2)
def test_picoclaw_a_missing_checklist_is_written_from_a_template_and_this_run_is_skipped(make_world: MakeWorld) -> None:
    world = make_world(agent(checklist="HEARTBEAT.md", on_missing="create"))
    world.write("ops/SOUL.md", "")
    world.run(minutes=31)
    assert outcomes(world) == ["interval skipped checklist_missing", "interval skipped checklist_empty"]
    assert (world.folder / "agents/ops/HEARTBEAT.md").exists()


@row("PicoClaw", 3)
def test_picoclaw_the_prompt_holds_instructions_the_time_and_the_whole_file(make_world: MakeWorld) -> None:
    world = make_world(agent())
    world.run(minutes=1)
    assert all(
        part in world.calls[0].stdin
        for part in ("This is a scheduled heartbeat run", "Monday 2026-03-02 08:00", "HEARTBEAT_OK", "- look")
    )


@row("PicoClaw", 4)
def test_picoclaw_the_first_run_starts_soon_after_the_daemon(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1h", stagger="10%"))
    world.run(minutes=7)
    assert outcomes(world) == ["interval ok heartbeat_ok"]


@row("PicoClaw", 5)
def test_picoclaw_a_run_does_not_know_the_run_before(make_world: MakeWorld) -> None:
    world = make_world(agent(), scripts=answers_in_turn("The disk of b is full", "HEARTBEAT_OK"))
    world.run(minutes=31)
    assert len(world.calls) == 2
    assert "disk of b" not in world.calls[1].stdin


@row("PicoClaw", 6)
def test_picoclaw_the_agent_itself_is_called_with_all_its_tools(make_world: MakeWorld) -> None:
    report = {
        "type": "result",
        "is_error": False,
        "result": "Disk full",
        "total_cost_usd": 0.02,
        "usage": {"input_tokens": 5, "output_tokens": 7},
    }
    world = make_world(agent(), scripts=answers_in_turn(json.dumps(report)))
    world.run(minutes=1)
    (found,) = world.records()
    assert [text for _, _, text in world.delivered] == ["Disk full"]
    assert (found["cost_usd"], found["tokens"]["input"], found["tokens"]["output"]) == (0.02, 5, 7)


@row("PicoClaw", 7)
def test_picoclaw_no_answer_an_error_silence_and_a_text_have_different_outcomes(make_world: MakeWorld) -> None:
    world = make_world(agent(retries="0"), scripts=answers_in_turn("", 1, "HEARTBEAT_OK", "Disk full"))
    world.run(minutes=91)
    assert outcomes(world) == ["interval ok empty", "interval failed exit", "interval ok heartbeat_ok", "interval alert"]


WITH_CHAT = 'channels: {chat: {kind: webhook, url: "https://example.org/to/{target}"}}\n'


@row("GoClaw", 10)
def test_goclaw_the_targets_reported_by_a_gateway_are_listed(make_world: MakeWorld) -> None:
    world = make_world(WITH_CHAT + agent())
    for recipient, title in (("7", "Family"), ("8", "Work")):
        world.request(VerbRequest(NoteActivity.of(channel="chat", target=recipient, title=title), (Kind.HEARTBEAT, "ops")))
    known = [each.as_data() for each in agent_memory.known_targets(world.store.connection, "ops")]
    assert [(each["target"], each["title"]) for each in known] == [("8", "Work"), ("7", "Family")]


@row("PicoClaw", 8)
def test_picoclaw_messages_go_to_the_last_chat_of_a_user_and_never_to_an_internal_one(make_world: MakeWorld) -> None:
    world = make_world(WITH_CHAT + agent(deliver="last"), scripts=answers_in_turn("Disk full"))
    world.inbox.submit(VerbRequest(NoteActivity(channel="chat", target="7"), (Kind.HEARTBEAT, "ops")))
    with pytest.raises(Refused, match="internal"):
        world.request(VerbRequest(NoteActivity(channel="cli", target="direct"), (Kind.HEARTBEAT, "ops")))
    world.run(minutes=1)
    assert [target["says"] for target in world.records()[0]["delivery"]["targets"]] == ["delivered to chat:7"]


@row("PicoClaw", 7)
def test_picoclaw_the_texts_for_the_user_and_for_the_log_can_differ(make_world: MakeWorld) -> None:
    world = make_world(agent(), scripts=answers_in_turn(json.dumps({"text": "Disk full", "log": "looked at 3 hosts"})))
    world.run(minutes=1)
    assert [text for _, _, text in world.delivered] == ["Disk full"]
    assert (world.records()[0]["log"], world.records()[0]["text"]) == ("looked at 3 hosts", "Disk full")
    assert [event.result.log for event in world.events if isinstance(event, RunClosed)] == ["looked at 3 hosts"]


@row("PicoClaw", 9)
def test_picoclaw_the_tools_used_are_recorded(make_world: MakeWorld) -> None:
    tools = [{"name": "ssh", "duration_ms": 1250}, {"name": "df"}]
    world = make_world(
        agent(retries="0"),
        scripts=answers_in_turn(*(json.dumps({"text": "x", "error": error, "tool_calls": tools}) for error in ("", "boom"))),
    )
    world.run(minutes=31)
    tools = [{"name": "ssh", "count": 1, "duration_ms": 1250}, {"name": "df", "count": 1, "duration_ms": None}]
    assert [(row["outcome"], row["tool_calls"]) for row in world.records()] == [("alert", tools), ("failed", tools)]


@row("MisterMorph", 1)
def test_mistermorph_an_interval_of_0m_disables_and_a_workspace_path_can_begin_with_a_tilde(tmp_path: Path) -> None:
    text = agent(interval="0m").replace("  ops:\n", "  ops:\n    workspace: ~/ops\n")
    beat = read(tmp_path, text).settings.heartbeats["ops"]
    assert (beat.enabled, beat.workspace) == (False, Path.home() / "ops")


@row("MisterMorph", 2)
def test_mistermorph_a_slot_during_a_run_is_skipped(make_world: MakeWorld) -> None:
    world = make_world(
        agent(interval="1m", timeout="5m"),
        scripts=answers_in_turn(Delayed("HEARTBEAT_OK", timedelta(seconds=150)), "HEARTBEAT_OK"),
    )
    world.run(seconds=185)
    assert outcomes(world) == ["interval ok heartbeat_ok", "interval skipped already_running x2", "interval ok heartbeat_ok"]


@row("MisterMorph", 3)
def test_mistermorph_a_run_gets_its_metadata(make_world: MakeWorld) -> None:
    world = make_world(agent(retries="0"), scripts=answers_in_turn(1, "HEARTBEAT_OK"))
    world.run(minutes=31)
    world.request(VerbRequest(NoteActivity(queue=3, pending_approvals=1), (Kind.HEARTBEAT, "ops")))
    world.run(minutes=30)
    failed, fine = (json.loads(str(call.env["HEARTBEATD_META"])) for call in world.calls[1:])
    assert (failed["trigger"], failed["scheduled_at"], failed["failures"]) == ("interval", "2026-03-02T08:30:00Z", 1)
    assert (failed["last_success"], failed["last_error"]) == (None, "exit code 1")
    assert (fine["last_success"], fine["last_error"]) == ("2026-03-02T08:30:00Z", None)
    assert (fine["interval_seconds"], fine["deliver"], fine["uptime_seconds"]) == (1800, ["log"], 3600)
    assert (fine["queue"], fine["pending_approvals"], failed["queue"]) == (3, 1, None)


@row("MisterMorph", 4)
def test_mistermorph_an_answer_is_an_alert_or_exactly_heartbeat_ok() -> None:
    assert judge_answer("ALERT: disk full HEARTBEAT_OK", "exact", 0).outcome == "alert"
    assert judge_answer("HEARTBEAT_OK.", "exact", 0).outcome == "alert"
    assert judge_answer("HEARTBEAT_OK", "exact", 0).outcome == "ok"


@row("MisterMorph", 5)
def test_mistermorph_ok_sends_no_message_and_an_alert_is_sent_once(make_world: MakeWorld) -> None:
    world = make_world(agent(), scripts=answers_in_turn("HEARTBEAT_OK", "Disk full"))
    world.run(minutes=91)
    assert [text for _, _, text in world.delivered] == ["Disk full"]
    assert outcomes(world)[2:] == ["interval alert duplicate"] * 2


@row("MisterMorph", 7)
def test_mistermorph_the_agent_can_be_a_program_or_a_gateway_with_its_own_session(tmp_path: Path) -> None:
    for runner in ("{kind: command, argv: [agent]}", '{kind: http, url: "http://127.0.0.1:8080/run"}'):
        assert read(tmp_path, agent().replace("{kind: command, argv: [agent]}", runner)).settings.heartbeats["ops"].enabled


@row("MisterMorph", 7)
@pytest.mark.parametrize(("isolated", "session"), [("false", "main"), ("true", "isolated")])
def test_mistermorph_the_metadata_names_the_session(make_world: MakeWorld, isolated: str, session: str) -> None:
    runner = "runner: {kind: python, call: 'agent:beat'}"
    world = make_world(
        agent(isolated_session=isolated).replace("runner: {kind: command, argv: [agent]}", runner), scripts=answers_in_turn("{}")
    )
    world.run(minutes=1)
    assert json.loads(world.calls[0].stdin)["meta"]["session"] == session


@row("MisterMorph", 8)
@pytest.mark.parametrize(
    "keys", [{"checklist": "HEARTBEAT.md", "on_missing": "run"}, {"checklist": '"# none\\n"', "on_empty": "run"}]
)
def test_mistermorph_an_agent_can_run_without_a_checklist(make_world: MakeWorld, keys: dict[str, str]) -> None:
    world = make_world(agent(**keys))
    world.run(minutes=1)
    assert outcomes(world) == ["interval ok heartbeat_ok"]
    assert "- look" not in world.calls[0].stdin


@row("MisterMorph", 6)
def test_mistermorph_repeated_failures_are_reported_with_the_last_error(make_world: MakeWorld) -> None:
    world = make_world(agent(retries="0"), scripts={"ops": lambda call: SystemError("out of cheese")})
    world.run(minutes=31)
    assert [text.splitlines()[0] for _, who, text in world.delivered if who == "ops"] == [
        "warning  ops failed: bad_answer: SystemError: out of cheese (2 times in a row since 2026-03-02 08:00 UTC)   p1"
    ]


@row("MisterMorph", 9)
def test_mistermorph_alerts_without_a_chat_go_to_the_log(make_world: MakeWorld) -> None:
    world = make_world(agent(deliver=""), scripts=answers_in_turn("Disk full"))
    world.run(minutes=1)
    assert world.records()[0]["delivery"]["targets"][0]["channel"] == "log"


@row("MisterMorph", 10)
def test_mistermorph_each_chat_can_have_a_heartbeat_through_a_yaml_anchor(make_world: MakeWorld) -> None:
    world = make_world(agent().replace("  ops:\n", "  ops: &chat\n") + "  work: *chat\n")
    world.run(minutes=1)
    assert sorted(call.name for call in world.calls) == ["ops", "work"]


@row("nanobot", 1)
def test_nanobot_decides_first_then_executes_then_notifies() -> None:
    order: list[str] = []

    def decide(question: str) -> dict[str, str]:
        order.append("decide")
        return {"action": "run", "tasks": "look at b"}

    def execute(tasks: str) -> str:
        order.append(tasks)
        return "b is down"

    heartbeat.beat(heartbeat.Spec(checklist="- look", decide=decide, on_execute=execute, on_notify=order.append), now=NOW)
    assert order == ["decide", "look at b", "b is down"]


@row("nanobot", 2)
def test_nanobot_active_tasks_count_and_completed_ones_do_not() -> None:
    text = "## Active Tasks\n- look at b\n## Completed\n- look at c\n"
    assert parse_checklist(text).open_text == "## Active Tasks\n- look at b"
    assert not parse_checklist("## Active Tasks\n## Completed\n- look at c\n").has_work


@row("nanobot", 3)
def test_nanobot_callbacks_execute_and_notify() -> None:
    alerts: list[str] = []
    run = {"action": "run", "tasks": "look"}
    for answer in ("HEARTBEAT_OK", "Disk full"):
        spec = heartbeat.Spec(
            checklist="- x", decide=lambda _: run, on_execute=lambda _, says=answer: says, on_notify=alerts.append
        )
        heartbeat.beat(spec, now=NOW)
    assert alerts == ["Disk full"]


@row("nanobot", 5)
def test_nanobot_the_checklist_is_read_for_every_run(make_world: MakeWorld) -> None:
    world = make_world(agent(checklist="HEARTBEAT.md"))
    for text in ("- first\n", "- second\n"):
        world.write("ops/HEARTBEAT.md", text)
        world.run(minutes=29)
    assert ["- first" in call.stdin for call in world.calls] == [True, False]
    assert "- second" in world.calls[1].stdin


@row("OpenClaw", 1)
@pytest.mark.parametrize("answer", ["**HEARTBEAT_OK**", "<b>HEARTBEAT_OK</b>", "HEARTBEAT_OK all fine"])
def test_openclaw_heartbeat_ok_in_markup_or_with_a_short_rest_is_suppressed(answer: str) -> None:
    assert judge_answer(answer, "edges", 10).outcome == "ok"


@row("OpenClaw", 2)
def test_openclaw_a_heartbeat_can_have_a_cron_schedule(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="", schedule='"0 9,17 * * mon-fri"'))
    world.run(days=1)
    assert world.history() == ["03-02 09:00 schedule ok heartbeat_ok", "03-02 17:00 schedule ok heartbeat_ok"]


@row("OpenClaw", 4)
@pytest.mark.parametrize(("mode", "runs"), [("now", ["08:10", "08:30"]), ("next", ["08:30"])])
def test_openclaw_a_job_wakes_now_or_with_the_next_heartbeat(make_world: MakeWorld, mode: str, runs: list[str]) -> None:
    job = f'cron: {{mail: {{schedule: "10 8 * * *", command: x, wake_heartbeat: ops, wake_mode: {mode}}}}}\n'
    world = make_world(agent() + job)
    world.run(minutes=31)
    assert [f"{call.at:%H:%M}" for call in world.calls if call.name == "ops"][1:] == runs
    assert "mail" in next(call.stdin for call in world.calls if call.name == "ops" and f"{call.at:%H:%M}" == runs[0])


@row("OpenClaw", 5)
def test_openclaw_alerts_and_ok_messages_can_be_hidden(make_world: MakeWorld) -> None:
    world = make_world(agent(show_ok="true", show_alerts="false"), scripts=answers_in_turn("HEARTBEAT_OK", "Disk full"))
    world.run(minutes=31)
    assert [text for _, _, text in world.delivered] == ["HEARTBEAT_OK"]
    assert outcomes(world)[1] == "interval alert not_shown"


@row("ZeroClaw", 3)
def test_zeroclaw_the_interval_grows_while_an_agent_fails(make_world: MakeWorld) -> None:
    world = make_world(agent(backoff_on_failure="true", retries="0"), scripts=answers_in_turn(1, 1, "HEARTBEAT_OK"))
    world.run(hours=3, minutes=45)
    assert [f"{call.at:%H:%M}" for call in world.calls] == ["08:00", "09:00", "11:00", "11:30"]


def functions(file: str) -> set[str]:
    tree = ast.parse(next((HOME / "tests").rglob(file)).read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_row_has_a_test_or_names_its_missing_part() -> None:
    for system, rows in SYSTEMS.items():
        for number, each in enumerate(rows, 1):
            shown = shown_by(system, number)
            assert shown or each.waits, f"{system} {number} is neither shown nor waited for"
            for name in shown:
                file, _, function = name.partition("::")
                assert function in functions(file), f"there is no {name}"


def test_the_page_in_docs_is_up_to_date() -> None:
    assert (HOME / "tests" / "parity.md").read_text("utf-8") == page(), (
        "do: python tests/extras/importers/parity.py > tests/parity.md"
    )

"""`explain` without a name: for each planted cause of silence, the first three lines name the agent and the cause."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from functools import partial
from time import process_time
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from click.testing import CliRunner
from rich.cells import cell_len
from servers import gateway
from servers.messages import Models, error_answer
from servers.scripted import Act, Server
from test_story_explain import explained_entry, records_of
from test_story_lanes import lane_locked
from world import QUIET, AgentCall, Delayed, MakeWorld, World

from heartbeat.hours import DAYS
from heartbeat.runners import ProcessResult
from heartbeatd.verbs import Ack, HoldLock, Mute, Pause, Unmute
from scheduler.app import Daemon
from scheduler.cli.commands import status
from scheduler.cli.main import main
from scheduler.config.file.diagnostics import ConfigError
from scheduler.config.settings.load import load_config
from scheduler.engine import startup
from scheduler.engine.config_reload import note_rejected_config, plan_for_start
from scheduler.engine.effects import Sender, VerbRequest
from scheduler.engine.plan_sync import adopt_plan
from scheduler.engine.tick_items import Refused
from scheduler.insight.explanation import explain_all
from scheduler.model.message import DeliveryResult
from scheduler.model.outcome import Kind, Trigger
from scheduler.system.state_lock import AlreadyRunning, StateLock

HOUR = timedelta(hours=1)

NOW = datetime.now(UTC)
AHEAD = (26 - NOW.hour) % 24 - 12  # so many hours ahead of UTC it is between 14:00 and 15:00


def fixed_zone(ahead: int) -> str:
    """The zone that is always so many hours ahead of UTC. The signs of these names are reversed."""
    return f"Etc/GMT{-ahead:+d}" if ahead else "Etc/GMT"


ZONE = fixed_zone(AHEAD)
TODAY = NOW.astimezone(ZoneInfo(ZONE)).date()
MIDNIGHT = datetime.combine(TODAY, time(), ZoneInfo(ZONE)).astimezone(UTC)
OTHER_ZONE = fixed_zone(AHEAD - 9 if AHEAD >= -3 else AHEAD + 15)  # its clocks show 5 in the morning

HEAD = f"""
timezone: {ZONE}
channels: {{phone: {{kind: webhook, url: "http://127.0.0.1:9/x", allow_private: true}}}}
defaults:
  runner: {{kind: command, argv: [agent]}}
  heartbeat: {{interval: 1h, stagger: 0s, checklist: "- look\\n", deliver: phone, problems: {{remind: 1h}}}}
"""


def fleet(ops: str | None = "{}", more: str = "", agents: str = "", jobs: str = "") -> str:
    """The agent `ops`, with these keys of its heartbeat, between agents that send alerts and a job that runs."""
    planted = "" if ops is None else f"  ops: {{heartbeat: {ops}}}\n"
    return f"{HEAD}{more}agents:\n  alpha: {{}}\n{agents}{planted}  zeta: {{}}\ncron:\n  backup: {{every: 1h, command: backup}}\n{jobs}"


def speaks(call: AgentCall) -> str:
    """An answer that is new at every run."""
    return f"ALERT: at {call.at:%H:%M}"


SPEAKING: dict[str, Any] = {"alpha": speaks, "zeta": speaks, "ops": speaks}
Plant = Callable[..., World]
Say = Callable[..., list[str]]


@pytest.fixture
def plant(make_world: MakeWorld) -> Plant:
    """`plant(config, scripts={...})` starts a world at midnight, with a day until now before it."""

    def begin(yaml: str, **more: Any) -> World:
        scripts = SPEAKING | more.pop("scripts", {})
        return make_world(yaml, start=f"{more.pop('start', MIDNIGHT):%Y-%m-%d %H:%M}", scripts=scripts, **more)

    return begin


def run_until_now(world: World) -> None:
    """Let time pass until the real time. Over a slow database that itself takes long, so the rest is caught up with as well."""
    while (behind := (datetime.now(UTC) - world.clock.now).total_seconds()) > 1:
        world.run(seconds=behind)


def hours_of_day(world: World) -> int:
    """The number of full hours of today so far, midnight included: the slots of an hourly agent."""
    return (world.clock.now - MIDNIGHT) // HOUR + 1


def at(hour: int, minute: int = 0) -> str:
    """A local time of today as `World.run_until` reads it."""
    return f"{MIDNIGHT + hour * HOUR + timedelta(minutes=minute):%Y-%m-%d %H:%M}"


@contextmanager
def daemon_lock(world: World) -> Iterator[None]:
    """The lock that a running daemon holds."""
    path = world.state.with_name(world.state.name + ".lock")
    with StateLock.take(path, started_at=datetime.now(UTC), instance="boot1"):
        yield


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """`say(world)` runs `explain --on today` while the daemon is up, and returns its lines, of at most 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")

    def explain(world: World, *words: str, up: bool = True) -> list[str]:
        capsys.readouterr()
        with daemon_lock(world) if up else nullcontext():
            assert main(["-c", str(world.config), "explain", *words]) == 0
        return capsys.readouterr().out.splitlines()

    def run(world: World, *words: str, up: bool = True) -> list[str]:
        lines = explain(world, *(words or ("--on", "today")), up=up)
        assert "json" in words or max(map(cell_len, lines)) <= 80
        if not words:  # the most unusual entry; what is printed in words is compared in one test
            first = json.loads("\n".join(explain(world, "--format", "json", up=up)))["entries"][0]
            found = json.loads("\n".join(explain(world, label_of(first), "--format", "json", up=up)))
            assert found["overview"] == first
        return lines

    return run


def label_of(entry: dict[str, Any]) -> str:
    return f"{'cron' if entry['kind'] == 'cron' else 'agent'}/{entry['name']}"


def check_each_entry(world: World, explain: Say) -> None:
    """`explain NAME`, now and of a day, says of each entry what `explain` without a name says, in JSON and in words."""
    for each in json.loads("\n".join(explain(world, "--format", "json")))["entries"]:
        name = label_of(each)
        for words in ((name,), (name, "--on", "today")):
            found = json.loads("\n".join(explain(world, *words, "--format", "json")))
            if found["zone"] == ZONE or len(words) == 1:  # the days of an entry are those of its own zone
                assert found["overview"] == each
                assert each["says"] in " ".join(" ".join(explain(world, *words)).split())


def check(lines: list[str], *words: str, name: str = "agent/ops") -> None:
    """The first three lines contain the entry and these words of its cause."""
    top = " ".join(" ".join(lines[:3]).split())
    assert name in top
    for word in words:
        assert word in top, (word, lines)


DAY = DAYS[(TODAY.weekday() + 3) % 7]
# What the keys of the heartbeat cause, and the words for it. HOURS is the number of its runs.
CONFIGURED = {
    "a missing checklist": (
        "{checklist: HEARTBEAT.md}", "silent", "no checklist: agents/ops/HEARTBEAT.md", "heartbeatd show",
    ),
    "a source without news": (
        '{precheck: {files: "inbox/*"}}', "the precheck found nothing to do: nothing new in files inbox/* since",
    ),
    "outside the active hours": (
        "{active_hours: '19:00-22:00'}", f"outside its active hours 19:00-22:00 ({ZONE})", "next 19:00",
    ),
    "active hours in the wrong zone": (
        f"{{active_hours: '09:00-14:00', timezone: {OTHER_ZONE}}}",
        f"outside its active hours 09:00-14:00 ({OTHER_ZONE}), where it is 0", "(UTC",
    ),
    "another weekday": (
        f"{{schedule: '0 9 * * {DAY}'}}", f"no planned run on this day, by '0 9 * * {DAY}'; next {DAY.title()}",
    ),
    "a budget of runs per day": ("{budget: {runs_per_day: 3}}", "the budget is used up: runs_per_day: 3 of 3"),
    "messages only to the log": (
        "{deliver: log}", "quiet", "HOURS messages delivered, only to the log", "`heartbeatd check --effective ops`",
    ),
    "answers that would be sent nowhere": (
        "{show_alerts: false, show_ok: false}", "silent", "no answer would be sent (show_ok, show_alerts: false)",
    ),
    "alerts that are not shown": (
        "{show_alerts: false, show_ok: true}", "alerts are not delivered (show_alerts: false)",
    ),
    "alerts that are delivered nowhere": (
        "{deliver: none}", "HOURS alerts sent to no one: it has no `deliver`, or `deliver: none`",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("heartbeat", "words"), [(keys, words) for keys, *words in CONFIGURED.values()], ids=CONFIGURED)
def test_what_the_config_causes(plant: Plant, say: Say, heartbeat: str, words: list[str]) -> None:
    world = plant(fleet(heartbeat))
    run_until_now(world)
    check(say(world), *(word.replace("HOURS", str(hours_of_day(world))) for word in words))


def test_a_time_without_a_planned_run_is_not_called_a_day(plant: Plant, say: Say) -> None:
    world = plant(fleet("{schedule: '0 19 * * *'}"))
    run_until_now(world)
    assert "agent/ops silent: no planned run in this time, by '0 19 * * *'" in " ".join(
        " ".join(say(world, "--since", "1h")).split()
    )


CHANGED = {
    "an interval of zero": (fleet("{interval: 0s}"), "disabled in the config since 08:00: interval: 0 (every 1h before)"),
    "an agent that is disabled": (fleet("{enabled: false}"), "disabled in the config since 08:00: enabled: false"),
    "an agent that is removed": (fleet(None), "no longer in the config since 08:00"),
}


@pytest.mark.parametrize(("yaml", "words"), CHANGED.values(), ids=CHANGED)
def test_what_a_change_of_the_config_causes(plant: Plant, say: Say, yaml: str, words: str) -> None:
    world = plant(fleet())
    world.run_until(at(8))
    world.reload(yaml)
    run_until_now(world)
    check(say(world), words)


# --- the checklist and the precheck -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("checklist", "words"),
    [
        ("# Look at\n\n- [ ]\n", "nothing on the checklist: agents/ops/HEARTBEAT.md"),
        (
            "- [paused] look at the disks\n- [paused] read the mail\n",
            "no item of the checklist was due: all its items are paused or completed",
        ),
    ],
    ids=["empty", "all paused"],
)
def test_a_checklist_without_work(plant: Plant, say: Say, checklist: str, words: str) -> None:
    world = plant(fleet("{checklist: HEARTBEAT.md}"))
    world.write("ops/HEARTBEAT.md", checklist)
    run_until_now(world)
    check(say(world), words)


def test_a_checklist_with_nothing_due(plant: Plant, say: Say) -> None:
    world = plant(fleet("{checklist: HEARTBEAT.md}"), start=MIDNIGHT - timedelta(hours=6))
    world.write("ops/HEARTBEAT.md", "- [every 2d] look at the disks\n")
    run_until_now(world)
    check(say(world), "no item of the checklist was due: each was checked within its [every ...]")


def prints(text: str, code: int = 0, error: str = "") -> Callable[[AgentCall], ProcessResult]:
    return lambda call: ProcessResult(code, text.encode(), error.encode())


PRECHECK = "{precheck: {command: look, unchanged: skip}}"


def test_a_precheck_without_work(plant: Plant, say: Say) -> None:
    world = plant(fleet(PRECHECK), prechecks={"ops": prints("NO_WORK\n")})
    run_until_now(world)
    check(say(world), "the precheck found nothing to do: it printed NO_WORK")


def test_a_precheck_whose_output_stays_the_same(plant: Plant, say: Say) -> None:
    world = plant(
        fleet(PRECHECK),
        prechecks={"ops": prints("disk 80%")},
        scripts={"ops": lambda call: QUIET},
        start=MIDNIGHT - timedelta(days=1),
    )
    run_until_now(world)
    check(say(world), "the precheck found nothing new: its output is the same as")


def test_a_precheck_that_fails(plant: Plant, say: Say) -> None:
    world = plant(fleet("{precheck: {command: look, on_error: skip}}"), prechecks={"ops": prints("", 2, "no such table")})
    run_until_now(world)
    check(say(world), "silent", "the precheck failed: exit code 2: no such table")


# --- when it may run --------------------------------------------------------------------------------------------------


def test_a_day_excluded_by_a_calendar(plant: Plant, say: Say) -> None:
    calendars = f"calendars: {{plant-closed: {{dates: [{TODAY}]}}, other: {{dates: [2020-01-01]}}}}\n"
    world = plant(fleet("{skip_on: plant-closed}", more=calendars))
    run_until_now(world)
    check(say(world), "a calendar excludes the day (skip_on: plant-closed)")


def test_an_agent_that_runs_only_when_it_is_woken(plant: Plant, say: Say) -> None:
    world = plant(fleet())
    world.run_until(at(0))
    edit(world, fleet("{interval: 2h}"))
    edit(world, fleet("{interval: none}"))
    run_until_now(world)
    check(say(world), "it has no schedule", "changed at 00:00 by file watch: heartbeat.interval 2h -> none")


# --- what people did --------------------------------------------------------------------------------------------------


def test_a_pause(plant: Plant, say: Say) -> None:
    world = plant(fleet())
    world.run_until(at(8))
    world.pause((Kind.HEARTBEAT, "ops"))
    run_until_now(world)
    check(say(world), "silent: paused since 08:00 by command until someone resumes it", "`heartbeatd resume agent/ops`")
    assert "paused: agent/ops since 08:00 by command until someone resumes it" in status_lines(world)


def test_a_pause_whose_end_no_daemon_has_seen_is_over(plant: Plant, say: Say, capsys: pytest.CaptureFixture[str]) -> None:
    world = plant(fleet())
    world.run_until(at(8))
    world.pause((Kind.HEARTBEAT, "ops"), MIDNIGHT + 9 * HOUR)
    world.kill()
    world.clock.now = datetime.now(UTC)
    now = json.loads("\n".join(say(world, "ops", "--format", "json", up=False)))
    assert (now["state"], now["paused_until"], now["now"]["why"]) == ("active", None, None)
    shown = [*status_lines(world, up=False), *say(world, up=False), *say(world, "ops", up=False)]
    assert not [line for line in shown if "paused since" in line or "heartbeatd resume" in line]
    assert main(["-c", str(world.config), "plan"]) == 0
    assert "paused" not in capsys.readouterr().out
    world.boot()


def test_a_pause_that_is_over_keeps_its_author(plant: Plant, say: Say) -> None:
    world = plant(fleet())
    world.run_until(at(8))
    world.request(VerbRequest(Pause(), (Kind.HEARTBEAT, "ops"), Sender("token chat")))
    world.run_until(at(13, 30))
    world.resume((Kind.HEARTBEAT, "ops"))
    run_until_now(world)
    check(say(world), "unusual", "5 planned runs since 09:00: paused: paused by token chat")


def test_a_mute(plant: Plant, say: Say) -> None:
    world = plant(fleet())
    world.run_until(f"{MIDNIGHT:%Y-%m-%d %H:%M}")
    world.request(VerbRequest(Mute(), (Kind.HEARTBEAT, "ops"), Sender("chat")))
    run_until_now(world)
    check(say(world), f"muted by chat until unmuted, {hours_of_day(world) - 1} answers not sent", "`heartbeatd unmute agent/ops`")
    assert "quiet muted by chat until unmuted" in " ".join(" ".join(say(world, "ops")).split())


TOKEN = Sender("chat", "token", Trigger.API, token="chat")


def test_status_says_the_same_of_a_pause_and_of_a_mute(plant: Plant, say: Say) -> None:
    cases = (
        (VerbRequest(Pause(), (Kind.HEARTBEAT, "ops"), TOKEN), "paused since", "by token chat until someone resumes it"),
        (VerbRequest(Pause(for_=timedelta(days=9)), (Kind.HEARTBEAT, "ops"), Sender("Mary")), "paused since", "by Mary until"),
        (VerbRequest(Mute(), (Kind.HEARTBEAT, "ops"), TOKEN), "muted", "by token chat until unmuted"),
        (VerbRequest(Mute(), (Kind.HEARTBEAT, "ops")), "muted", "by command until unmuted"),
        (
            VerbRequest(Mute(until_changed=True), (Kind.HEARTBEAT, "ops"), Sender("Mary")),
            "muted",
            "by Mary until something changes",
        ),
        (
            VerbRequest(Mute(for_=timedelta(days=9), until_changed=True), (Kind.HEARTBEAT, "ops"), Sender("Mary")),
            "muted by Mary until",
            " or until something changes",
        ),
    )
    world = plant(fleet())
    run_until_now(world)
    for request, begin, end in cases:
        world.request(request)
        says = json.loads("\n".join(say(world, "ops", "--format", "json")))["overview"]["says"].partition(", ")[0]
        assert says.startswith(begin) and end in says
        for shown in (say(world), say(world, "ops"), status_lines(world)):
            assert says in " ".join(" ".join(shown).split()).replace(": agent/ops", ""), (request, shown)
        world.resume(("heartbeat", "ops"))
        world.request(VerbRequest(Unmute(), (Kind.HEARTBEAT, "ops")))


def test_a_mute_of_an_agent_that_has_nothing_to_say_and_of_a_job_that_fails(plant: Plant, say: Say) -> None:
    world = plant(fleet(), scripts={"ops": lambda _: QUIET, "backup": lambda _: 1})
    until = MIDNIGHT + timedelta(hours=20)
    for key in ((Kind.HEARTBEAT, "ops"), (Kind.CRON, "backup")):
        world.request(VerbRequest(Mute.of(until=until), key, Sender("chat")))
    run_until_now(world)
    text = " ".join(" ".join(say(world)).split())
    assert "agent/ops unusual: muted by chat until 20:00. `heartbeatd unmute agent/ops`" in text
    assert "runs failed: exit code 1; muted by chat until 20:00." in text


def test_an_agent_whose_answers_never_come(plant: Plant, say: Say) -> None:
    with Server([gateway.async_answer()]) as server:
        config = fleet(f'{{interval: 1h, async_timeout: 24h}}, runner: {{kind: http, url: "{server.url}"}}')
        world = plant(config)
        run_until_now(world)
    number = hours_of_day(world)
    check(say(world), "unusual", f"{number} runs wait for their result", "`heartbeatd explain agent/ops`")
    assert f"quiet {number} runs wait for their result" in " ".join(" ".join(say(world, "ops")).split())


def test_an_agent_that_is_renamed(plant: Plant, say: Say) -> None:
    world = plant(fleet("{interval: 50m}"))
    world.run_until(at(8))
    world.reload(fleet(None, agents="  operations: {heartbeat: {interval: 50m}}\n"))
    run_until_now(world)
    check(say(world), "renamed to agent/operations since 08:00")
    assert "no longer in the config since 08:00" in limited_overview(world, "ops")


def test_an_agent_whose_schedule_two_new_agents_have_is_removed_and_not_renamed(plant: Plant, say: Say) -> None:
    world = plant(fleet("{interval: 50m}"))
    world.run_until(at(8))
    world.reload(fleet(None, agents="".join(f"  {name}: {{heartbeat: {{interval: 50m}}}}\n" for name in ("one", "two"))))
    run_until_now(world)
    check(say(world), "no longer in the config since 08:00")


def limited_overview(world: World, name: str) -> str:
    """What a reader of one agent reads: nothing about another one, also not in the sentences about this one."""
    found = explain_all(records_of(world, agents=frozenset({name}))).as_data()
    assert [each["name"] for each in found["entries"]] == [name]
    others = {"alpha", "zeta", "ops", "operations", "hog", "backup"} - {name}
    (says,) = (each["says"] for each in found["entries"])
    assert not [other for other in others if other in says]
    return str(says)


def test_a_rename_by_an_edit_is_shown_as_a_removed_and_an_added_agent(plant: Plant, say: Say) -> None:
    world = plant(fleet("{interval: 50m}"))
    world.run_until(at(8))
    edit(world, fleet(None, agents="  operations: {heartbeat: {interval: 50m}}\n"), by="token chat")
    run_until_now(world)
    lines = say(world)
    check(lines, "renamed to agent/operations since 08:00, by token chat", "`heartbeatd explain agent/operations`")
    assert "by token chat: added agent/operations; removed agent/ops" in " ".join(" ".join(lines).split())
    for name, what in (("ops", "removed"), ("operations", "added")):
        assert f"by token chat: {what}" in " ".join(" ".join(say(world, name)).split())
    shown = status_lines(world)
    place = shown.index(f"config reloaded, by token chat, {TODAY} 08:00:00")
    assert shown[place + 1 : place + 3] == ["  added agent/operations", "  removed agent/ops"]


@pytest.mark.long_on_server("hundreds of retries")
def test_a_lane_that_a_user_has_locked(plant: Plant, say: Say) -> None:
    world = plant(fleet())
    world.run_until(at(11))
    with lane_locked(world):
        run_until_now(world)
        check(say(world), "busy: the agent is locked: process", "has locked it")
    world.run(minutes=1)
    slots = [row["error"] for row in world.records("ops") if row["why"] == "busy"]
    assert len(slots) >= 2 and all(f"process {os.getpid()} (" in error for error in slots)


@pytest.mark.long_on_server("hundreds of retries")
def test_a_lane_that_a_gateway_holds_over_http(plant: Plant, say: Say) -> None:
    world = plant(fleet())
    world.run_until(at(12))
    world.request(VerbRequest(HoldLock(id="telegram-bot", for_=20 * HOUR), (Kind.HEARTBEAT, "ops")))
    run_until_now(world)
    check(say(world), "busy: the agent is locked", "telegram-bot")


# --- the daemon and its config ----------------------------------------------------------------------------------------


def test_a_daemon_that_is_down(plant: Plant, say: Say) -> None:
    world = plant(fleet())
    world.run_until(at(8, 30))
    world.kill()
    world.clock.now = datetime.now(UTC)
    lines = say(world, up=False)
    check(lines, "the daemon has not run since 08:30; it ended unexpectedly", name="agent/alpha")
    says = f"the daemon does not run: {hours_of_day(world) - 9} planned runs since 09:00"
    assert sum(says in line for line in lines) == 4
    world.boot()


def test_a_daemon_that_was_down(plant: Plant, say: Say) -> None:
    world = plant(fleet("{misfire: {grace: 1m}}"))
    world.run_until(at(8, 30))
    world.downtime(hours=3, minutes=5)
    run_until_now(world)
    check(say(world), "3 planned runs since 09:00: the daemon was down", name="agent/")


def test_a_daemon_that_is_frozen(plant: Plant, say: Say) -> None:
    world = plant(fleet())
    world.run_until(at(8, 30))
    world.clock.now = datetime.now(UTC)
    check(say(world), "the daemon is frozen since 08:30", name="agent/")


def test_a_system_clock_that_jumped(plant: Plant, say: Say) -> None:
    world = plant(fleet("{misfire: {grace: 1m}}"))
    world.run_until(at(8, 30))
    world.clock.now += timedelta(hours=3, minutes=10)
    run_until_now(world)
    check(say(world), "3 planned runs since 09:00: the clock jumped, or the machine was suspended", name="agent/")


def test_a_machine_that_slept(plant: Plant, say: Say) -> None:
    world = plant(fleet("{misfire: {grace: 1m}}"))
    world.run_until(at(8, 30))
    world.sleep(hours=3, minutes=10)
    run_until_now(world)
    check(say(world), "3 planned runs since 09:00: the machine was suspended", name="agent/")
    lines = say(world, "ops", "--on", "today")
    assert "11:40:00   the machine had been suspended for 3:10:00" in lines
    assert "11:40      the machine had been suspended for 3:10:00" in say(world)
    shown = f"  machine was suspended {TODAY} 08:30:00 to {TODAY} 11:40:00"
    assert any(line.startswith(shown) for line in status_lines(world))


def test_a_process_that_a_signal_had_stopped(plant: Plant, say: Say) -> None:
    world = plant(fleet("{misfire: {grace: 1m}}"))
    world.run_until(at(8, 30))
    world.run(seconds=1)
    world.clock.advance(timedelta(hours=3, minutes=9, seconds=59))
    world.engine.note_continued()
    run_until_now(world)
    check(say(world), "3 planned runs since 09:00: the daemon was frozen: its process was stopped by a signal", name="agent/")
    assert any("its process was stopped by a signal" in line for line in say(world, "ops", "--on", "today"))
    assert any("frozen for 2:40:00" in line and line.startswith("11:40") for line in say(world))
    assert any(line.startswith("  was frozen (stopped by a signal) ") for line in status_lines(world))


def test_a_config_that_was_refused(plant: Plant, say: Say) -> None:
    world = plant(fleet())
    world.run_until(at(8, 30))
    world.write_config(fleet("{interval: 1x}"))
    world.request(
        partial(
            note_rejected_config,
            problem="config.yaml:9:31: agents.ops.heartbeat.interval: '1x' is not a duration",
            by="file watch",
        )
    )
    run_until_now(world)
    check(
        say(world),
        "daemon config since 08:30: config.yaml:9:31: agents.ops.heartbeat.interval: '1x' is not a duration",
        name="ops",
    )


def test_a_second_daemon_that_is_refused(plant: Plant, say: Say) -> None:
    world = plant(fleet("{interval: 50m}"))
    run_until_now(world)
    for days in (1, 0):  # that of yesterday is no problem of today
        with daemon_lock(world), pytest.raises(AlreadyRunning):
            startup.take_lock(world.engine.plan.settings, "second", lambda days=days: datetime.now(UTC) - timedelta(days=days))
    check(say(world), "a second daemon (", "config.yaml) was rejected at 1", name="")
    assert "2 times" not in " ".join(say(world))
    for words in ((), ("agent/ops", "--on", "today")):
        assert "could not start: another daemon had locked the database" in " ".join(" ".join(say(world, *words)).split())
    assert "problem: a second daemon (" in " ".join(status_lines(world))


def test_a_start_that_an_invalid_config_prevents(plant: Plant, say: Say) -> None:
    world = plant(fleet())
    world.run_until(at(8, 30))
    world.kill()
    world.write_config(fleet("{interval: 1x}"))
    with pytest.raises(ConfigError):
        Daemon(world.config, world.environ)
    check(say(world, up=False), "a start was rejected at 1", "agents.ops.heartbeat.interval: '1x' is not a duration", name="ops")
    shown = " ".join(" ".join(status_lines(world, up=False)).split())
    assert "problem: a start was rejected at 1" in shown and "agents.ops.heartbeat.interval: '1x' is not a duration" in shown
    world.boot_count, world.yaml = 1, fleet()
    world.write_config(world.yaml)
    world.boot()
    run_until_now(world)
    world.run(minutes=1)  # a start that was rejected before the last run of the daemon is no problem any more
    assert "a start was rejected" not in " ".join(say(world, up=False))


def status_lines(world: World, *, up: bool = True) -> list[str]:
    """The output of `status`."""
    with daemon_lock(world) if up else nullcontext():
        result = CliRunner().invoke(status, ["-c", str(world.config)])
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


def test_an_agent_that_the_daemon_does_not_know_yet(plant: Plant, say: Say) -> None:
    world = plant(fleet(None))
    run_until_now(world)
    world.write_config(fleet())
    check(say(world), "in the config file, but not yet applied by the daemon", "`heartbeatd reload`")


# --- money, limits and models -----------------------------------------------------------------------------------------


def cost(call: AgentCall) -> str:
    return json.dumps({"result": f"ALERT {call.at}", "total_cost_usd": 0.03})


def test_a_budget_of_the_agent(plant: Plant, say: Say) -> None:
    world = plant(fleet("{budget: {usd_per_day: 0.10, usd_per_try: 0.03}}"), scripts={"ops": cost})
    run_until_now(world)
    check(say(world), "silent", "the budget is used up: usd_per_day: 0.09 of 0.1 USD")


def test_a_budget_of_all_entries(plant: Plant, say: Say) -> None:
    config = (
        fleet("{budget: {usd_per_try: 0.03}}", more="limits: {budget: {usd_per_day: 0.10}}\n")
        .replace("alpha: {}", "alpha: {heartbeat: {budget: {usd_per_try: 0.0000001}}}")
        .replace("zeta: {}", "zeta: {heartbeat: {budget: {usd_per_try: 0.0000001}}}")
    )
    world = plant(config, scripts={"ops": cost})
    run_until_now(world)
    check(say(world), "the budget is used up: limits.budget.usd_per_day")


MODEL = """
providers: {{anthropic: {{api_key: "sk-test", base_url: "{url}"}}}}
"""
CLAUDE = "  ops: {{runner: {{kind: anthropic}}, model: claude-haiku-5-5, heartbeat: {ops}}}\n"


def modelled(url: str, ops: str = "{retries: 0}") -> str:
    return fleet(None, more=MODEL.format(url=url), agents=CLAUDE.format(ops=ops))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (error_answer(401, "authentication_error", "invalid x-api-key"), ("auth", "invalid x-api-key")),
        (error_answer(404, "not_found_error", "model: claude-haiku-5-5"), ("claude-haiku-5-5", "HTTP 404")),
        (error_answer(429, "rate_limit_error", "slow down", retry_after="31536000"), ("slow down", "429")),
    ],
    ids=["a refused key", "an unknown model", "a rate limit"],
)
def test_a_provider_that_refuses(plant: Plant, say: Say, answer: Act, words: tuple[str, ...]) -> None:
    with Models(lambda request: answer) as server:
        world = plant(modelled(server.url))
        run_until_now(world)
    check(say(world), *words)


def test_retries_that_run_out_of_time_show_the_error(plant: Plant, say: Say) -> None:
    overloaded = error_answer(529, "overloaded_error", "we are full")
    with Models(lambda request: overloaded) as server:
        world = plant(modelled(server.url, "{retries: 10, active_hours: '13:00-13:01'}"), start=MIDNIGHT + 12 * HOUR)
        run_until_now(world)
    check(say(world), "no time was left for try", "of 11: ", "529", "we are full")


def test_a_prompt_that_is_too_large(plant: Plant, say: Say) -> None:
    world = plant(fleet("{checklist: HEARTBEAT.md, max_input_tokens: 2k}"))
    world.write("ops/HEARTBEAT.md", "- look at the disks\n" * 1000)
    run_until_now(world)
    check(say(world), "the prompt was too large: about", "tokens, and max_input_tokens is 2,000")


def test_an_agent_that_always_times_out(plant: Plant, say: Say) -> None:
    def hangs(call: AgentCall) -> ProcessResult:
        return ProcessResult(-9, ended_by="timeout")

    world = plant(fleet("{timeout: 5m, retries: 0}"), scripts={"ops": hangs})
    run_until_now(world)
    check(say(world), "failed", "timed out")


def test_no_free_place(plant: Plant, say: Say) -> None:
    config = fleet(
        more="limits: {concurrency: 1}\n", agents="  hog: {heartbeat: {timeout: 20h, interval: 1d, checklist: '- x'}}\n"
    )
    world = plant(config.replace("checklist: '- x'", 'checklist: "- x\\n"'))
    world.scripts["hog"] = lambda call: Delayed("ALERT late", timedelta(hours=20))
    run_until_now(world)
    check(say(world), "limits.concurrency is reached by agent/hog (run 2)", name="agent/alpha")
    assert "limits.concurrency is reached by 1 run: " in limited_overview(world, "alpha")


def test_slots_that_found_no_free_place_name_the_run_that_had_it_also_afterwards(plant: Plant, say: Say) -> None:
    config = fleet("{interval: 10m}", more="limits: {concurrency: 1}\n").replace("zeta: {}", "zeta: {heartbeat: {timeout: 3h}}")
    config = config.replace("alpha: {}", "alpha: {heartbeat: {interval: 20h}}").replace("every: 1h", "every: 20h")
    world = plant(config, start=MIDNIGHT + 9 * HOUR)
    world.scripts["zeta"] = lambda call: Delayed("ALERT late", timedelta(hours=2)) if call.at < MIDNIGHT + 10 * HOUR else QUIET
    run_until_now(world)
    (run,) = [row["id"] for row in world.records("zeta") if row["result"] == "alert"]
    held = f"limits.concurrency (1) was reached by agent/zeta (run {run})"
    check(say(world), "unusual: 1", "did not start", held)
    assert held in " ".join(" ".join(say(world, "ops", "--on", "today")).split())
    assert held in {row["error"] for row in world.records("ops") if row["why"] == "missed"}
    assert "did not start: " in limited_overview(world, "ops")


# --- messages ---------------------------------------------------------------------------------------------------------


def test_an_agent_that_has_nothing_to_say(plant: Plant, say: Say) -> None:
    world = plant(fleet(), scripts={"ops": lambda call: QUIET})
    run_until_now(world)
    check(say(world), "quiet", f"{hours_of_day(world)} answers not sent: nothing needs attention")


def test_a_problem_that_was_reported_already(plant: Plant, say: Say) -> None:
    world = plant(
        fleet("{problems: {remind: 7d}}"),
        scripts={"ops": lambda call: "[disk:/var] /var is full"},
        start=MIDNIGHT - timedelta(hours=3),
    )
    run_until_now(world)
    opened = f"{(MIDNIGHT - timedelta(hours=3)).astimezone(ZoneInfo(ZONE)):%a %Y-%m-%d} 21:00"
    reminder = f"{(MIDNIGHT + timedelta(days=7, hours=-3)).astimezone(ZoneInfo(ZONE)):%a %Y-%m-%d} 21:00"
    for words in (("--on", "today"), ("ops",)):
        text = " ".join(" ".join(say(world, *words)).split())
        assert f"disk:/var: known since {opened}, next reminder {reminder}" in text
    check(say(world), "quiet", f"{hours_of_day(world)} answers not sent: disk:/var: known since")


def test_a_problem_that_somebody_has_acknowledged(plant: Plant, say: Say) -> None:
    world = plant(fleet(), scripts={"ops": lambda call: "[disk:/var] /var is full"})
    world.run_until(at(2, 30))
    world.request(VerbRequest(Ack(), world.problem("disk:/var").id, sender=Sender("Mary on phone")))
    run_until_now(world)
    assert len([text for _, name, text in world.delivered if name == "ops"]) == 3
    for words in (("--since", "10h"), ("--on", "today"), ("ops",)):
        assert "disk:/var: acknowledged by Mary on phone" in " ".join(" ".join(say(world, *words)).split())


def test_of_five_known_problems_those_that_somebody_has_acknowledged_are_counted_apart(plant: Plant) -> None:
    world = plant(fleet(), scripts={"ops": lambda call: "\n".join(f"[disk:/{key}] full" for key in "abcde")})
    world.run_until(at(2, 30))
    for key in "ab":
        world.request(VerbRequest(Ack(), world.problem(f"disk:/{key}").id))
    reasons = explained_entry(world).quiet_reasons
    shown = [(each.code, each.count, each.says.count("; "), "more" in each.says) for each in reasons]
    assert shown == [("acknowledged", 2, 1, False), ("known", 3, 2, False)]


def test_a_problem_that_one_of_two_recipients_has_not_got_is_not_known(plant: Plant) -> None:
    refused = lambda sent: DeliveryResult("dead", "404") if sent.channel.name == "phone" else DeliveryResult("delivered")  # noqa: E731
    world = plant(fleet("{deliver: [log, phone]}"), scripts={"ops": lambda call: "[disk:/var] /var is full"}, send=refused)
    world.run_until(at(0, 10))
    assert [notice.delivered_at is None for notice in world.problem("disk:/var").notices.values()] == [False, True]
    assert explained_entry(world).quiet_reasons == []


def test_messages_to_two_channels_that_are_dead_are_counted_together(plant: Plant) -> None:
    mail = 'channels: {mail: {kind: webhook, url: "http://127.0.0.1:9/m", allow_private: true}, '
    config = fleet("{deliver: [mail, phone]}").replace("channels: {", mail)
    world = plant(config, send=refuses("ops", DeliveryResult("dead", "404")))
    world.run_until(at(0, 10))
    assert ", and 2 more, since 00:00" in limited_overview(world, "ops")  # one of them is about the channel


def test_an_answer_that_repeats_an_earlier_text(plant: Plant, say: Say) -> None:
    world = plant(fleet(), scripts={"ops": lambda call: "ALERT: the disk is full"}, start=MIDNIGHT - HOUR)
    run_until_now(world)
    check(say(world), "quiet", "answers not sent: its recipients have already got its content", "`heartbeatd show")


def refuses(name: str, result: DeliveryResult) -> Callable[[Any], DeliveryResult]:
    return lambda outgoing: result if outgoing.message.name == name else DeliveryResult("delivered")


def test_a_channel_that_is_dead(plant: Plant, say: Say) -> None:
    world = plant(fleet(), send=refuses("ops", DeliveryResult("dead", "HTTP 404: no such chat")))
    run_until_now(world)
    check(
        say(world),
        "undelivered",
        "messages accepted for phone, not delivered (given up after 1 try",
        "HTTP 404: no such chat",
        "`heartbeatd outbox`",
    )


def test_eight_messages_that_are_pending(plant: Plant, say: Say) -> None:
    world = plant(fleet(), send=refuses("ops", DeliveryResult("retry", "HTTP 503")))
    world.run_until(at(7))
    world.pause((Kind.HEARTBEAT, "ops"))
    run_until_now(world)
    (tries,) = world.store.connection.execute("select max(attempts) from outbox").fetchone()  # more in the second half hour
    check(say(world), f"8 messages accepted for phone, not delivered ({tries} tries, HTTP 503), since 00:00")


def test_messages_that_are_held(plant: Plant, say: Say) -> None:
    config = fleet().replace("allow_private: true", "allow_private: true, uncertain: hold")
    world = plant(config, send=refuses("ops", DeliveryResult("uncertain", "no answer")))
    run_until_now(world)
    check(say(world), "messages accepted for phone, it may have arrived (held after 1 try")


def test_alerts_without_a_known_target(plant: Plant, say: Say) -> None:
    config = fleet("{deliver: last}", more="").replace(
        "channels: {", 'channels: {chat: {kind: webhook, url: "https://chat.example.org/{target}"}, '
    )
    world = plant(config)
    run_until_now(world)
    check(say(world), f"{hours_of_day(world)} alerts sent to no one: no target is known for `deliver: last`")


def test_wakes_that_wait_because_there_were_too_many(plant: Plant, say: Say) -> None:
    world = plant(fleet(more="limits: {wake_flood: 3 per 20h, wake_gap: 1m}\n"))
    world.run_until(at(8, 30))
    for number in range(6):
        world.wake("ops", f"mail {number}", sender="mailbot")
        world.run(minutes=2)
    world.run(seconds=1)
    run_until_now(world)
    for number in range(3):
        world.wake("ops", f"late {number}", sender=f"mailbot{number}")
    check(say(world), "3 wakes wait", "limits.wake_flood")


NIGHTLY = "  nightly: {every: 1h, command: nightly, wake_heartbeat: ops}\n"


def test_a_job_whose_wakes_are_rejected_because_the_agent_is_disabled(plant: Plant, say: Say) -> None:
    off = "  off: {heartbeat: {enabled: false}}\n"
    world = plant(fleet("{enabled: false}", agents=off, jobs=NIGHTLY.replace("ops", "[off, ops]")))
    run_until_now(world)
    number = hours_of_day(world) - 1
    says = f"{number} wakes of agent/ops were rejected since 01:00: the agent is disabled in the config"
    check(say(world), "unusual", says, "`heartbeatd explain agent/ops`", name="cron/nightly")
    shown = " ".join(" ".join(say(world, "nightly")).split())
    assert f"{number} wakes of agent/ops were rejected since" in shown and "the agent is disabled" in shown


def test_a_job_whose_wake_expires(plant: Plant, say: Say) -> None:
    jobs = "  nightly: {every: 10d, command: nightly, wake_heartbeat: ops, wake_mode: next}\n"
    config = fleet("{interval: 20h}", jobs=jobs, more="limits: {wake_keep: 1h}\n")
    world = plant(config.replace("every: 10d", "schedule: '30 3 * * *'"))
    run_until_now(world)
    check(
        say(world),
        "1 wake of agent/ops was rejected at",
        "no run of the agent handled it within limits.wake_keep",
        name="cron/nightly",
    )


def test_wakes_of_a_program_that_are_rejected(plant: Plant, say: Say) -> None:
    world = plant(fleet("{enabled: false}"))
    world.run_until(at(8))
    for number in range(3):
        with pytest.raises(Refused):
            world.wake("ops", sender=f"mailbot{number}")
    run_until_now(world)
    text = " ".join(" ".join(say(world, "ops")).split())
    assert "the last by mailbot2 (api): the agent is disabled in the config" in text
    assert "3 wakes were rejected since" in text and "3 wakes by" not in text


# --- who changed what -------------------------------------------------------------------------------------------------


def edit(world: World, yaml: str, by: str = "file watch") -> None:
    """Save a config and reload it, as the daemon does."""
    if world.engine.plan.stored_config is None:
        first, _ = plan_for_start(load_config(world.config, world.environ), None)
        world.request(partial(adopt_plan, plan=first))
    world.write_config(yaml)
    plan, event = plan_for_start(load_config(world.config, world.environ), world.engine.plan.stored_config)
    assert event
    world.request(partial(adopt_plan, plan=plan, event=replace(event, result="applied", by=by)))


def test_active_hours_that_an_edit_has_changed(plant: Plant, say: Say) -> None:
    world = plant(fleet())
    world.run_until(at(0))
    edit(world, fleet("{active_hours: '19:00-22:00'}"))
    run_until_now(world)
    lines = say(world)
    check(lines, "outside its active hours 19:00-22:00", "next 19:00", "changed at 00:00 by file watch:")
    assert "heartbeat.active_hours always -> 19:00-22:00" in " ".join(" ".join(lines).split())
    assert any(line.startswith("00:00      config reloaded, by file watch: agent/ops: heartbeat") for line in lines)


def test_explain_of_one_entry_does_not_name_itself_as_the_next_command(plant: Plant, say: Say) -> None:
    world = plant(fleet("{interval: 30m}"))
    world.run_until(at(8))
    edit(world, fleet("{interval: 2h}"))
    run_until_now(world)
    itself, why = "`heartbeatd explain agent/ops`", "unusual: changed at 08:00"
    every, one = (" ".join(" ".join(say(world, *names)).split()) for names in ((), ("ops",)))
    assert why in every and why in one
    assert itself in every and itself not in one


def test_an_agent_that_a_token_has_disabled_by_an_edit(plant: Plant, say: Say) -> None:
    world = plant(fleet())
    world.run_until(at(8))
    edit(world, fleet("{enabled: false}"), by="token chat")
    run_until_now(world)
    check(say(world), "disabled in the config since 08:00, by token chat: enabled: false")


def test_explain_of_one_entry_shows_changes_messages_and_the_next_commands(plant: Plant, say: Say) -> None:
    world = plant(fleet("{interval: 30m}"), send=refuses("ops", DeliveryResult("dead", "HTTP 404: no such chat")))
    world.run_until(at(8))
    edit(world, fleet("{interval: 2h}"), by="command")
    run_until_now(world)
    text = " ".join(" ".join(say(world, "ops")).split())
    assert "messages accepted for phone, not delivered (given up after 1 try" in text and "HTTP 404: no such chat" in text
    assert "by command: heartbeat.interval 30m -> 2h" in text
    assert "more `heartbeatd explain agent/ops --on today`, `heartbeatd show" in text and "`heartbeatd outbox`" in text
    day = " ".join(" ".join(say(world, "ops", "--on", "today")).split())
    assert "ran, alert accepted, not delivered and given up (runs 2 to" in day
    assert "08:00:00 by command: heartbeat.interval 30m -> 2h" in day


HOURS_VARIABLE = "HEARTBEATD_SET__agents__ops__heartbeat__active_hours"


def test_active_hours_that_the_environment_of_the_daemon_sets(plant: Plant, say: Say) -> None:
    world = plant(fleet("{active_hours: '08:00-18:00'}"), environ={HOURS_VARIABLE: "19:00-22:00"})
    plan, _ = plan_for_start(load_config(world.config, world.environ), None)
    world.request(partial(adopt_plan, plan=plan))
    run_until_now(world)
    check(say(world), f'outside its active hours 19:00-22:00 ({ZONE}); by {HOURS_VARIABLE} (file: "08:00-18:00")')
    for shown in (say(world, "ops"), say(world), status_lines(world)):
        words = " ".join(" ".join(shown).split())
        assert 'agents.ops.heartbeat.active_hours "08:00-18:00" -> "19:00-22:00"' in words and HOURS_VARIABLE in words


def test_an_override_that_was_added_before_a_start_is_recorded_for_its_entry(plant: Plant, say: Say) -> None:
    world = plant(fleet("{interval: 30m}"))
    first, _ = plan_for_start(load_config(world.config, world.environ), None)
    world.request(partial(adopt_plan, plan=first))
    world.run_until(at(8))
    world.environ[HOURS_VARIABLE] = "19:00-22:00"
    plan, event = plan_for_start(load_config(world.config, world.environ), world.engine.plan.stored_config)
    assert event
    world.request(partial(adopt_plan, plan=plan, event=event))
    run_until_now(world)
    text = " ".join(" ".join(say(world, "ops")).split())
    assert "by start: heartbeat.active_hours always -> 19:00-22:00" in text
    assert "by start: heartbeat.active_hours always -> 19:00-22:00" in text


def test_the_secret_of_an_override_is_not_shown(plant: Plant, say: Say) -> None:
    variable = "HEARTBEATD_SET__channels__phone__url"
    world = plant(fleet(), environ={variable: "http://127.0.0.1:9/hidden-canary"})
    plan, _ = plan_for_start(load_config(world.config, world.environ), None)
    world.request(partial(adopt_plan, plan=plan))
    run_until_now(world)
    shown = "\n".join([*say(world), *status_lines(world)])
    assert variable in shown and "hidden-canary" not in shown


# --- the overview itself ----------------------------------------------------------------------------------------------


def test_without_a_name_and_a_day_all_entries_of_today_are_listed(plant: Plant, say: Say) -> None:
    world = plant(fleet("{checklist: HEARTBEAT.md}"))
    run_until_now(world)
    lines = say(world, "--format", "text")
    assert lines[0].startswith(f"{TODAY:%a %Y-%m-%d} until ") and lines[0].endswith(f"{ZONE} (UTC{AHEAD:+03d}:00)")
    assert [line.split("  ")[0] for line in lines[1:] if not line.startswith(" ")] == [
        "agent/ops", "agent/alpha", "agent/zeta", "cron/backup", "00:00", "in all",
    ]  # fmt: skip
    assert lines[-1] == "in all     4: 1 silent, 3 normal"


def test_the_json_form_has_a_word_for_the_status_and_the_cause_of_each_entry(plant: Plant, say: Say) -> None:
    world = plant(fleet("{checklist: HEARTBEAT.md}"))
    run_until_now(world)
    data = json.loads("\n".join(say(world, "--on", "today", "--format", "json")))
    first, *others = data["entries"]
    assert (first["name"], first["result"], first["why"]) == ("ops", "silent", "checklist_missing")
    assert (first["ran"], first["skipped"] >= 14, first["run"] is not None) == (0, True, True)
    assert [(each["name"], each["result"]) for each in others] == [("alpha", "normal"), ("zeta", "normal"), ("backup", "normal")]
    assert data["counts"]["silent"] == 1
    check_each_entry(world, say)


def test_a_day_may_be_a_weekday_or_a_date_and_a_time_may_be_given_with_since(plant: Plant, say: Say) -> None:
    world = plant(fleet("{checklist: HEARTBEAT.md}"), start=MIDNIGHT - timedelta(days=1))
    world.run_until(at(-1, 59))
    world.write("ops/HEARTBEAT.md", "- look\n")
    run_until_now(world)
    yesterday = TODAY - timedelta(days=1)
    for day in ("yesterday", f"{yesterday}", f"{yesterday:%a}", f"{yesterday:%A}".lower()):
        lines = say(world, "--on", day)
        assert lines[0].startswith(f"{yesterday:%a %Y-%m-%d}, ")
        check(lines, "all 24 planned runs since 00:00: no checklist")
    for words in (("--on", f"{TODAY:%a}"), ("--since", "3h")):
        assert say(world, *words)[-1] == "in all     4: 4 normal"
    check(say(world, "--since", f"{yesterday} 22:00"), "unusual", "no checklist")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--on", "someday"], "--on: 'someday' is not a day; write 2026-11-20, today, yesterday or monday"),
        (["--on", "2199-01-01"], "--on: write a time from 2000 on that is at most 400 days ahead"),
        (["--since", "2199-01-01"], "--since: write a time in the past"),
        (["--since", "1h", "--on", "today"], "--at, --on and --since exclude each other"),
        (["--at", "1h"], "--at needs the name of an agent or a job"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_day_is_refused_in_one_line(
    plant: Plant, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    world = plant(fleet())
    assert main(["-c", str(world.config), "explain", *words]) == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(message)


def test_one_entry_is_explained_since_a_time(plant: Plant, say: Say) -> None:
    world = plant(fleet("{checklist: HEARTBEAT.md}"))
    run_until_now(world)
    lines = say(world, "ops", "--since", "150m")
    assert (lines[1].startswith("since ") and "2 planned runs" in lines[1]) or "3 planned runs" in lines[1]
    assert "no checklist" in lines[3]


def test_a_time_of_several_days_is_explained_with_dates(plant: Plant, say: Say) -> None:
    first, down = TODAY - timedelta(days=2), TODAY - timedelta(days=1)
    world = plant(fleet(), start=MIDNIGHT - timedelta(days=2))
    world.run(hours=30)
    world.downtime(hours=1, minutes=30)
    run_until_now(world)
    since = ("--since", f"{first} 20:00")
    text = " ".join(" ".join(say(world, *since)).split())
    assert f"the planned run of {down:%a %Y-%m-%d} 07:00: the daemon was down" in text
    assert f" {down:%m-%d} 06:00 the daemon ended unexpectedly {down:%m-%d} 07:30 the daemon started" in text
    lines = say(world, "ops", *since)
    assert f"{first:%m-%d} 20:00  {down:%m-%d} 06:00  11     ran, alert delivered" in "\n".join(lines), lines
    assert f"{down:%m-%d} 06:00:00 the daemon ended unexpectedly" in lines


def test_many_entries_with_the_same_cause_share_a_line(plant: Plant, say: Say) -> None:
    agents = "".join(f"  many-{number:02}: {{heartbeat: {{checklist: HEARTBEAT.md}}}}\n" for number in range(40))
    world = plant(fleet(agents=agents))
    run_until_now(world)
    lines = say(world)
    assert len(lines) < 20
    assert lines[7] == "37 others  silent: likewise (checklist_missing): agent/many-03, agent/many-04,"


def test_an_empty_database_has_no_entries(plant: Plant, say: Say) -> None:
    world = plant(fleet())
    world.kill()
    world.delete_database()
    lines = say(world, up=False)
    assert "the daemon has never run: `heartbeatd run` starts it" in lines
    assert "not yet applied by the daemon. `heartbeatd run`" in " ".join(" ".join(lines).split())
    world.boot()


@pytest.mark.long_on_server("1,000 entries")
def test_a_thousand_entries_take_a_second(plant: Plant, say: Say) -> None:
    agents = "".join(f"  many-{number:03}: {{heartbeat: {{checklist: HEARTBEAT.md}}}}\n" for number in range(996))
    world = plant(fleet(agents=agents), start=MIDNIGHT + 13 * HOUR)
    run_until_now(world)
    began = process_time()
    lines = say(world, "--on", "today")
    assert process_time() - began < 5  # most of it is the config of a thousand agents
    assert lines[-1].startswith("in all     1,000: 996 silent")

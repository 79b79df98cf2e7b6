"""The overview of all agents: order, groups, one word for why each is quiet, the strip of slots, the cost of the day."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from test_story_explain import records_of
from world import QUIET, Delayed, MakeWorld, World, utc

from heartbeatd.verbs import Mute
from scheduler.engine.effects import VerbRequest
from scheduler.insight import health, status_data
from scheduler.insight.health import EntryHealth, Group
from scheduler.model.outcome import Kind
from scheduler.web.page import fleet_view
from scheduler.web.page.fleet_view import AgentCard

YAML = """
timezone: Europe/Berlin
defaults:
  runner: {kind: command, argv: [/opt/bin/claude, -p]}
  heartbeat: {interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: log, retries: 0, dedup: {window: 1h}}
agents:
"""


def states(world: World) -> dict[str, EntryHealth]:
    entries = status_data.read_entries(world.store.connection, world.clock.now, kind=Kind.HEARTBEAT)
    return {state.name: state for state in health.read_states(entries)}


def card(world: World, name: str) -> AgentCard:
    return fleet_view.read_card(records_of(world), states(world)[name])


def strip(world: World, name: str) -> str:
    """The first letter of each level, the oldest first."""
    return "".join(result[0] for result in card(world, name).slots)


def test_agents_with_problems_come_first(make_world: MakeWorld) -> None:
    names = ("quiet", "fails", "paused", "alerts", "lost", "off")
    agents = "".join(f"  {name}: {{heartbeat: {{enabled: {str(name != 'off').lower()}}}}}\n" for name in names)
    agents = agents.replace("lost: {heartbeat: {", "lost: {heartbeat: {checklist: HEARTBEAT.md, ")
    world = make_world(YAML + agents, scripts={"fails": lambda call: 1, "alerts": lambda call: "the disk is full"})
    world.run(minutes=35)
    world.pause((Kind.HEARTBEAT, "paused"))
    found = states(world)
    assert list(found) == ["fails", "lost", "alerts", "quiet", "off", "paused"]
    assert {name: (state.label, card(world, name).overview.why) for name, state in found.items()} == {
        "fails": ("failing", "exit"),
        "lost": ("stopped", "checklist_missing"),
        "alerts": ("alert", "log_only"),
        "quiet": ("ok", "heartbeat_ok"),
        "off": ("disabled", "disabled"),
        "paused": ("paused", "paused"),
    }
    groups: dict[str, list[str]] = {group: [name for name, state in found.items() if group in state.groups] for group in Group}
    assert groups == {"problems": ["fails", "lost"], "alerts": ["alerts"], "running": [], "quiet": ["quiet"], "off": ["off", "paused"]}  # fmt: skip


def test_a_card_says_what_explain_says_of_today(make_world: MakeWorld) -> None:
    world = make_world(f'{YAML}  ops: {{heartbeat: {{active_hours: {{start: "09:40", end: "12:00"}}}}}}\n')
    assert card(world, "ops").overview.says == "outside its active hours 09:40-12:00 (Europe/Berlin); next 10:00"
    world.run(hours=5)
    assert card(world, "ops").overview.says == "4 answers not sent: nothing needs attention"
    assert states(world)["ops"].groups == {Group.QUIET}


def test_a_run_in_progress_is_running_and_open_in_the_strip(make_world: MakeWorld) -> None:
    world = make_world(f"{YAML}  ops: {{}}\n", scripts={"ops": lambda call: Delayed(QUIET, timedelta(minutes=5))})
    world.run(minutes=31)
    state = states(world)["ops"]
    assert (state.label, state.groups) == ("running", frozenset({Group.RUNNING}))
    assert strip(world, "ops")[-1] == "w"


def test_the_strip_has_the_last_48_slots(make_world: MakeWorld) -> None:
    answers: dict[int, Any] = {0: 1, 1: "the disk is full"}
    world = make_world(
        f'{YAML}  ops: {{heartbeat: {{active_hours: {{start: "00:00", end: "22:00"}}}}}}\n',
        scripts={"ops": lambda call: answers.get(call.at.hour, QUIET)},
    )
    world.run_until("2026-03-03 07:45")
    world.wake("ops", "look")  # a woken run is no slot
    world.settle()
    world.run_until("2026-03-04 08:15")
    found = strip(world, "ops")
    assert len(found) == 48
    # 09:00 to 22:00 in Berlin quiet, then 4 closed slots; two failed slots at 01:00; an alert, and the same again
    assert found.count("p") == 4
    assert found.count("b") == 2
    assert found.count("a") == 2
    assert found.count("g") == 40
    downtime = utc("2026-03-04 12:15") - world.clock.now
    world.downtime(hours=downtime.total_seconds() / 3600)
    world.run(minutes=1)
    assert "l" in strip(world, "ops")


def test_a_long_answer_is_cut_and_its_run_is_named(make_world: MakeWorld) -> None:
    world = make_world(
        f"{YAML}  ops: {{}}\n  new: {{heartbeat: {{enabled: false}}}}\n", scripts={"ops": lambda call: "x" * 60_000}
    )
    world.run(minutes=31)
    answer = card(world, "ops").answer
    assert answer is not None
    assert (len(answer.text), answer.is_cut) == (fleet_view.ANSWER_LENGTH, True)
    assert answer.run_id == world.records("ops")[-1]["id"]
    assert card(world, "new").answer is None


def test_the_cost_is_that_of_the_local_day(make_world: MakeWorld) -> None:
    world = make_world(f"{YAML}  ops: {{}}\n")
    world.run_until("2026-03-02 22:45")  # 23:45 in Berlin
    assert card(world, "ops").cost.runs > 20
    world.run_until("2026-03-02 23:05")
    assert (card(world, "ops").cost.runs, card(world, "ops").cost.cost_usd) == (1, None)
    world.store.connection.execute("update run set cost_usd = 0.25")
    assert card(world, "ops").cost.cost_usd == 0.25


def test_an_agent_without_a_model_of_its_own_shows_how_it_is_called(make_world: MakeWorld) -> None:
    world = make_world(f"{YAML}  ops: {{}}\n  own: {{model: claude-opus-4-5}}\n  code: {{runner: claude-code}}\n")
    world.run(minutes=1)
    assert card(world, "code").model == "Claude Code"
    assert (card(world, "ops").model, card(world, "own").model) == ("command claude", "claude-opus-4-5")
    assert card(world, "ops").channels == ("log",)


def test_held_back_messages_are_off(make_world: MakeWorld) -> None:

    world = make_world(f"{YAML}  ops: {{}}\n")
    world.run(minutes=31)
    world.request(VerbRequest(Mute(), (Kind.HEARTBEAT, "ops")))
    assert (card(world, "ops").overview.why, states(world)["ops"].groups) == ("muted", frozenset({Group.OFF}))

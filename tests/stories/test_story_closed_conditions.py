"""A user closes a condition, and a run records in one word what it did to each condition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from test_story_conditions import effects
from world import MakeWorld, World

from heartbeatd.verbs import CloseProblem
from scheduler.engine.effects import VerbRequest
from scheduler.engine.inbox import Refused
from scheduler.model.events import ConditionClosed
from scheduler.model.outcome import Kind
from scheduler.store.conditions import MAX_KEPT_CLOSED, list_conditions
from scheduler.store.entries import find_entry

CONFIG = """
channels: {phone: {kind: webhook, url: "http://127.0.0.1:9/x", allow_private: true}}
agents:
  ops:
    runner: {kind: command, argv: [agent]}
    heartbeat: {interval: 15m, stagger: 0s, checklist: "- look\\n", deliver: phone}
"""


def answers(*texts: str) -> dict[str, object]:
    """A script in which the agent gives these answers, one per run, and the last one from then on."""
    said: Iterator[str] = iter(texts)
    last = texts[-1]
    return {"ops": lambda _: next(said, last)}


def sent(world: World) -> list[str]:
    return [text for _, _, text in world.delivered]


def test_a_run_records_in_one_word_what_became_of_each_finding(make_world: MakeWorld) -> None:
    world = make_world(
        CONFIG,
        scripts=answers(
            "[disk:/var] 92 %\n[mail] resolved",
            "[disk:/var] 93 %\n[backup] late",
            "[disk:/var!] 97 %\n[backup] resolved",
            "HEARTBEAT_OK",
        ),
    )
    world.run(minutes=65)
    assert effects(world) == [
        ["disk:/var opened", "mail ignored"],
        ["disk:/var known", "backup opened"],
        ["disk:/var worsened", "backup resolved"],
        [],
        ["disk:/var cleared"],
    ]


def test_a_run_records_that_it_sent_a_reminder(make_world: MakeWorld) -> None:
    world = make_world(CONFIG, scripts=answers("[disk:/var] 92 % full"))
    world.run(hours=24, minutes=16)
    recorded = effects(world)
    assert recorded[:2] == [["disk:/var opened"], ["disk:/var known"]]
    assert recorded[-2:] == [["disk:/var reminded"], ["disk:/var known"]]
    assert sent(world)[1:] == ["[disk:/var] still open, since 2026-03-02 08:00 (1d): 92 % full"]


def test_an_agent_with_many_closed_conditions_leaves_those_of_others_alone(make_world: MakeWorld) -> None:
    calm = CONFIG.partition("agents:\n")[2].replace("ops", "calm")
    scripts = answers(*("\n".join(f"[item{run}-{number}] broken" for number in range(50)) for run in range(12)), "HEARTBEAT_OK")
    said = iter(["[disk] full", "[disk] resolved"])
    world = make_world(
        CONFIG.replace("deliver: phone", "deliver: phone, conditions: {clear_after: 1}") + calm,
        scripts={**scripts, "calm": lambda _: next(said, "HEARTBEAT_OK")},
    )
    world.run(hours=4)
    closed = [each.as_data() for each in list_conditions(world.store.connection, closed=True)]
    assert Counter(each["name"] for each in closed) == {"ops": MAX_KEPT_CLOSED, "calm": 1}


def test_a_user_closes_a_condition_without_a_message(make_world: MakeWorld) -> None:
    world = make_world(CONFIG, scripts=answers("[disk:/var] 92 %", "[disk:/var] 93 %", "HEARTBEAT_OK"))
    world.run(minutes=20)
    assert world.request(VerbRequest(CloseProblem(agent="ops", key="Disk: /VAR"))).key == "disk:/var"
    assert world.events_of(ConditionClosed) == [ConditionClosed("ops", "disk:/var", "user")]
    (closed,) = [each.as_data() for each in list_conditions(world.store.connection, closed=True)]
    assert (closed["state"], closed["ended_by"], [report["kind"] for report in closed["reports"]]) == (
        "closed",
        "user",
        ["ended"],
    )
    row = find_entry(world.store.connection, Kind.HEARTBEAT, "ops")
    assert row is not None
    assert row.conditions == 0
    world.run(hours=2)
    assert sent(world) == ["[disk:/var] 92 %"]


def test_a_condition_that_opens_again_and_again_after_a_user_has_closed_it_flaps(make_world: MakeWorld) -> None:
    world = make_world(CONFIG, scripts=answers(*(f"[disk:/var] {number} %" for number in range(90, 97)), "HEARTBEAT_OK"))
    for _ in range(5):
        world.run(minutes=20)
        world.request(VerbRequest(CloseProblem(agent="ops", key="disk:/var")))
    flaps = "flaps: it was opened 3 times within 24 hours. Further changes are not reported until it is stable."
    reported = ["[disk:/var] 90 %", "[disk:/var] 92 %", f"[disk:/var] {flaps} 93 %"]
    assert sent(world) == reported
    assert {effect for effect, *_ in effects(world)} == {"disk:/var opened", "disk:/var known"}
    row = find_entry(world.store.connection, Kind.HEARTBEAT, "ops")
    assert row is not None
    assert row.conditions == 1  # it flaps, so it is not settled
    world.run(hours=30)
    assert sent(world) == reported
    row = find_entry(world.store.connection, Kind.HEARTBEAT, "ops")
    assert row is not None
    assert row.conditions == 0


def test_closing_one_condition_keeps_the_count_of_the_others(make_world: MakeWorld) -> None:
    world = make_world(CONFIG, scripts=answers("[disk] full\n[mail] late"))
    world.run(minutes=5)
    world.request(VerbRequest(CloseProblem(agent="ops", key="disk")))
    row = find_entry(world.store.connection, Kind.HEARTBEAT, "ops")
    assert row is not None
    assert row.conditions == 1


@pytest.mark.parametrize(
    ("name", "key", "code", "said"),
    [
        ("ops", "disc", "not_found", "agent 'ops' has no condition 'disc'; did you mean disk?"),
        ("ops", "backup", "not_found", "agent 'ops' has no condition 'backup'; `heartbeatd conditions` lists them"),
        ("ops", "mail", "closed", "the condition 'mail' of agent 'ops' is closed already"),
        ("opps", "disk", "not_found", "no agent 'opps' in config.yaml; did you mean ops?"),
        ("ops", "x" * 5000, "not_found", f"agent 'ops' has no condition '{'x' * 120}...'; `heartbeatd conditions` lists them"),
    ],
)
def test_a_condition_that_cannot_be_closed_is_named_in_one_line(
    name: str, key: str, code: str, said: str, make_world: MakeWorld
) -> None:
    world = make_world(CONFIG, scripts=answers("[disk] full\n[mail] late"))
    world.run(minutes=5)
    world.request(VerbRequest(CloseProblem(agent="ops", key="mail")))
    with pytest.raises(Refused) as refused:
        world.request(VerbRequest(CloseProblem(agent=name, key=key)))
    assert (refused.value.code, str(refused.value)) == (code, said)


def test_a_condition_of_a_removed_agent_can_be_closed(make_world: MakeWorld) -> None:
    world = make_world(CONFIG, scripts=answers("[disk] full"))
    world.run(minutes=5)
    world.reload(CONFIG.replace("  ops:", "  web:"))
    assert world.request(VerbRequest(CloseProblem(agent="ops", key="disk"))).key == "disk"
    assert [each.as_data() for each in list_conditions(world.store.connection)] == []

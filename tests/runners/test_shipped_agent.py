"""Tests the agent that comes with the shipped config: the program agents/host/look.py, which needs no model."""

from __future__ import annotations

import subprocess
import sys

import pytest
from checkout import HOME
from patience import PATIENCE
from world import AgentCall, MakeWorld

LOOK = HOME / "agents" / "host" / "look.py"
LOW = "- disk: at most 0 percent used\n- memory: at most 0 percent used\n- load: at most 4000 per core\n"
CONFIG = """
agents:
  host:
    runner: {{kind: command, argv: [agent]}}
    heartbeat: {{interval: 5m, stagger: 0s, checklist: {checklist}, deliver: log}}
"""


def look(prompt: str) -> str:
    """What the program prints for this prompt."""
    ended = subprocess.run([sys.executable, LOOK], input=prompt, capture_output=True, text=True, timeout=PATIENCE, check=True)
    return ended.stdout


def test_it_prints_one_line_with_a_key_for_each_problem() -> None:
    disk, memory = look(LOW).splitlines()
    assert disk.startswith("[disk:/] is at ")
    assert memory.startswith("[memory] is at ")
    assert memory.endswith(", the checklist allows 0")


@pytest.mark.parametrize(
    "checklist", ["- disk: at most 101 percent used\n", "- load: at most 4000 per core\n", "- nothing to measure\n"]
)
def test_without_a_problem_it_prints_the_quiet_token(checklist: str) -> None:
    assert look(checklist) == "HEARTBEAT_OK\n"


def test_each_problem_of_a_day_is_one_message_and_its_end_another(make_world: MakeWorld) -> None:
    low = True

    def agent(call: AgentCall) -> str:
        return look(call.stdin if low else call.stdin.replace("at most 0", "at most 101"))

    world = make_world(CONFIG.format(checklist=repr(LOW).replace("'", '"')), scripts={"host": agent})
    world.run(hours=3)
    low = False
    world.run(minutes=30)
    first, second = (text for _, _, text in world.delivered)
    assert [line.split(" is at ")[0] for line in first.splitlines()] == ["warning  host disk:/:", "warning  host memory:"]
    ends = [line for line in second.splitlines() if line.startswith("over")]
    assert [line.split(" after ")[0] for line in ends] == ["over     host disk:/:", "over     host memory:"]

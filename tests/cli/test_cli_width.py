"""The text output of all commands fits into 80 columns, even with many long names."""

from datetime import UTC, datetime, timedelta

import pytest
from loops import loop_over
from world import MakeWorld, World

from heartbeatd.verbs import HoldLock
from scheduler.cli.main import main
from scheduler.cli.output import wrap_text
from scheduler.engine.effects import VerbRequest
from scheduler.model.message import DeliveryResult
from scheduler.model.outcome import Kind

CHANNEL = "a-channel-whose-name-is-forty-characters"
AGENTS = [f"agent-{number:02}-with-a-name-of-forty-character" for number in range(12)]
JOBS = [f"job-{number:02}-with-a-name-of-forty-characters-" for number in range(12)]
HEAD = f"""\
timezone: America/Argentina/Buenos_Aires
channels: {{{CHANNEL}: {{kind: webhook, url: "https://example.org/"}}}}
defaults:
  runner: {{kind: command, argv: [ask]}}
  heartbeat: {{interval: 30m, stagger: 0, checklist: "look\\n", deliver: {CHANNEL}}}
  cron: {{every: 1h, command: look, deliver: {CHANNEL}}}
agents:
  {AGENTS[0]}: {{heartbeat: {{budget: {{usd_per_day: 1, runs_per_day: 60, usd_per_try: 0.01}}}}}}
  {AGENTS[1]}: {{heartbeat: {{timezone: Asia/Ho_Chi_Minh}}}}
"""


def config() -> str:
    """Each agent is woken by two jobs."""
    agents = [f"  {name}: {{}}" for name in AGENTS[2:]]
    woken = zip(JOBS, AGENTS, [*AGENTS[1:], AGENTS[0]], strict=True)
    return HEAD + "\n".join([*agents, "cron:", *(f"  {name}: {{wake_heartbeat: [{a}, {b}]}}" for name, a, b in woken)]) + "\n"


@pytest.fixture
def world(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> World:
    """The last two hours, in which an agent and a job fail, a channel rejects all messages, and lanes are locked."""
    monkeypatch.setenv("COLUMNS", "80")
    scripts = {AGENTS[0]: lambda call: "ALERT lost", AGENTS[1]: lambda call: 1, JOBS[0]: lambda call: 1}
    world = make_world(config(), start=f"{datetime.now(UTC) - timedelta(hours=2):%Y-%m-%d %H:%M}", scripts=scripts)
    world.send = lambda _: DeliveryResult("retry", "the server said " + "that it is not well, " * 5)
    world.run(minutes=29)
    for name in AGENTS[2:4]:
        world.request(
            VerbRequest(HoldLock(id="a-gateway-whose-name-is-forty-characters", for_=timedelta(hours=20)), (Kind.HEARTBEAT, name))
        )
    world.run(hours=1, minutes=31)
    return world


@loop_over(
    "command",
    [
        ["status"],
        ["doctor"],
        ["runs"],
        ["runs", "--sort", "cost"],
        ["show", "1"],
        ["plan"],
        ["plan", AGENTS[0]],
        ["plan", "--for", "1s"],
        ["plan", "--for", "30d"],
        ["plan", "--worst"],
        ["explain", AGENTS[0]],
        ["explain", AGENTS[2]],
        ["explain", JOBS[0], "--at", "1h"],
        ["explain", AGENTS[2], "--on", "today"],
        ["report"],
        ["report", "--by", "model"],
        ["outbox"],
        ["check", "--effective", AGENTS[0]],
    ],
)
def test_lines_with_long_names_fit_into_eighty_columns(
    command: list[str], world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    main([*command, "-c", str(world.config)])
    lines = capsys.readouterr().out.splitlines()
    if "doctor" not in command:  # its output has paths, which are never broken
        assert max(map(len, lines)) <= 80, max(lines, key=len)
    assert len(lines) > 1


def test_a_command_in_backquotes_is_never_broken() -> None:
    lines = wrap_text("x" * 70 + " and then `heartbeatd run` starts it", 2)
    assert lines == ["x" * 70 + " and then", "  `heartbeatd run` starts it"]

"""Commands for several daemons that share a config: each concerns the shard of its agent, or all shards."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
import required_programs
from servers.postgres import PostgresServer
from test_story_shards import FLEET
from world import World

from scheduler.cli.main import main
from scheduler.config.file.lenient_reading import SHARD_VARIABLE
from scheduler.model.shards import IDS_PER_SHARD
from scheduler.model.state_address import shard_file
from scheduler.store import transfer

Call = Callable[..., tuple[int, str]]
OF_SHARD = {0: {"c", "d", "wake-c"}, 1: {"a", "b", "wake-a"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the databases of two shards, whose daemons are down. Both have run each agent."""
    place = tmp_path_factory.mktemp("fleet")
    for index in OF_SHARD:
        world = World(place, FLEET, shard=index)
        with world.store.transaction() as db:
            transfer.reserve_ids_of_shard(db, index)
        world.run(minutes=1)
        world.stop()
    return place


@pytest.fixture
def call(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """`call("status")` runs a command, and returns its exit code and its output."""
    monkeypatch.delenv(SHARD_VARIABLE, raising=False)

    def run(*words: str) -> tuple[int, str]:
        code = main([words[0], "-c", str(folder / "config.yaml"), *words[1:]])
        done = capsys.readouterr()
        assert SHARD_VARIABLE not in os.environ
        return code, done.out + done.err

    return run


def test_status_shows_each_shard_with_its_agents_and_jobs(call: Call) -> None:
    code, output = call("status")
    assert code == 0
    first, _, second = output.partition("shard 1 of 2:")
    assert first.startswith("shard 0 of 2:")
    for part, names in ((first, OF_SHARD[0]), (second, OF_SHARD[1])):
        assert {line.split()[0].partition("/")[2] for line in part.splitlines() if line.startswith(("agent/", "cron/"))} == names


def test_a_command_with_a_name_concerns_the_shard_of_the_agent(call: Call) -> None:
    assert call("explain", "c")[1].startswith("shard 0 of 2\nagent/c")
    assert call("explain", "cron/wake-a")[1].startswith("shard 1 of 2\ncron/wake-a")
    rows = json.loads(call("runs", "b", "--format", "json")[1])
    assert {row["name"] for row in rows} == {"b"}


def test_a_command_with_the_number_of_a_run_finds_its_shard(call: Call) -> None:
    assert "run        1\n" in call("show", "1")[1]
    assert f"run        {IDS_PER_SHARD + 1}\n" in call("show", str(IDS_PER_SHARD + 1))[1]
    assert call("show", "77") == (2, "heartbeatd: no shard has the run 77\n")


def test_an_option_names_one_shard(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-c", str(folder / "config.yaml"), "--shard", "1", "status"]) == 0
    output = capsys.readouterr().out
    assert "agent/a" in output and "agent/c" not in output
    assert SHARD_VARIABLE not in os.environ


def test_a_request_reaches_the_database_of_the_right_shard(call: Call) -> None:
    assert call("pause", "c")[1] == "agent/c paused until resumed\n"
    assert "agent/c: paused since" in call("explain", "c")[1]
    assert "agent/a: active" in call("explain", "a")[1]
    assert call("resume", "--all")[1] == "shard 0 of 2:\nagent/c resumed\n\nshard 1 of 2:\nnothing was paused\n"


def test_an_unknown_name_and_a_command_for_one_shard_are_errors(call: Call) -> None:
    code, output = call("wake", "nobody")
    assert (code, "has no 'nobody'; if it was removed, name its shard: heartbeatd --shard 0 ..." in output) == (2, True)
    code, output = call("backup", "copy.db")
    assert (code, "has 2 shards; name one of them: heartbeatd --shard 0 ..." in output) == (2, True)


def test_check_shows_how_many_agents_and_jobs_each_shard_has(call: Call) -> None:
    assert "agents and jobs by shard: 3 in shard 0, 3 in shard 1" in call("check")[1]
    assert "1 of 2" in call("check", "--effective", "a")[1].splitlines()[-1]


def test_a_request_creates_no_database_of_a_shard_on_another_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SHARD_VARIABLE, raising=False)
    (tmp_path / "config.yaml").write_text(FLEET, "utf-8")
    assert main(["wake", "a", "-c", str(tmp_path / "config.yaml")]) == 1
    assert "send the request to its daemon at http://127.0.0.1:7858, or start it" in capsys.readouterr().err
    assert not shard_file(tmp_path / "state" / "heartbeatd.db", 1).exists()


@required_programs.needs("initdb")
def test_the_daemon_of_a_shard_on_another_machine_is_shown_as_running(
    tmp_path: Path, postgres: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(tmp_path, FLEET, f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}", server=postgres.database(), shard=0)
    assert main(["-c", str(tmp_path / "config.yaml"), "--shard", "0", "status"]) == 0
    assert "daemon: running on another machine, last tick" in capsys.readouterr().out
    world.stop()
    assert main(["-c", str(tmp_path / "config.yaml"), "--shard", "0", "status"]) == 0
    assert "stopped cleanly" in capsys.readouterr().out

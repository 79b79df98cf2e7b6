"""Commands for several daemons that share a config: each concerns the shard of its agent, or all shards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
import required_programs
from servers.postgres import PostgresServer
from test_story_shards import FLEET
from world import World

from scheduler.channels.message import DeliveryResult
from scheduler.cli.main import main
from scheduler.config.file.lenient_reading import SHARD_VARIABLE
from scheduler.insight import shard_overview
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
    """Its lease decides. The clock of the other machine may differ."""
    address = postgres.database()
    world = World(tmp_path, FLEET, "2026-03-02 08:00", server=address, shard=0)
    lease = "update heartbeatd_shard_0._leader set holder = boot.instance, until_at = now() + interval '{}' from heartbeatd_shard_0.boot"
    shard = world.plan().settings.shard
    postgres.query(address, lease.format("1 hour"))
    assert main(["-c", str(tmp_path / "config.yaml"), "--shard", "0", "status"]) == 0
    assert "daemon: running on another machine, last tick" in capsys.readouterr().out
    assert [each.state for each in shard_overview.read_shards(shard, datetime.now(UTC))] == ["running", "unknown"]
    postgres.query(address, lease.format("-1 second"))
    assert [each.state for each in shard_overview.read_shards(shard, datetime.now(UTC))] == ["silent", "unknown"]
    world.stop()
    assert main(["-c", str(tmp_path / "config.yaml"), "--shard", "0", "status"]) == 0
    assert "stopped cleanly" in capsys.readouterr().out


def test_options_of_the_command_that_busy_runs_are_not_options_of_heartbeatd(folder: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if name != SHARD_VARIABLE}
    command = [sys.executable, "-m", "scheduler", "-c", str(folder / "config.yaml"), "busy", "c", "--", "sh", "-c", "echo done"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_a_number_above_the_last_shard_is_an_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-c", str(folder / "config.yaml"), "--shard", "7", "status"]) == 2
    assert capsys.readouterr().err == "heartbeatd: 7 is not the number of a shard; write a number from 0 to 1\n"


def test_a_condition_and_messages_are_found_in_their_shards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SHARD_VARIABLE, raising=False)
    yaml = FLEET.replace("deliver: log", "deliver: hook") + 'channels: {hook: {kind: webhook, url: "https://example.org/x"}}\n'
    ids = []
    for index, agent in enumerate(("c", "a")):
        world = World(tmp_path, yaml, shard=index, send=lambda _: DeliveryResult("retry", "no route"))
        with world.store.transaction() as db:
            transfer.reserve_ids_of_shard(db, index)
        world.scripts[agent] = lambda call: f"[disk:/{call.name}!] full"
        world.run(minutes=1)
        ids += [str(row["id"]) for row in world.store.connection.execute("select id from outbox")]
        world.stop()
    config = ["-c", str(tmp_path / "config.yaml")]
    assert len(ids) == 2
    assert main(["outbox", "drop", ids[0], "77", ids[1], *config]) == 1
    done = capsys.readouterr()
    assert done.out == f"message {ids[0]} is dropped\nmessage {ids[1]} is dropped\n"
    assert done.err == "heartbeatd: no shard has the message 77\n"
    assert main(["conditions", "close", "disk:/a", *config]) == 0
    assert main(["conditions", "close", "disk:/a", *config]) == 2
    done = capsys.readouterr()
    assert done.out == "the condition disk:/a of agent/a is closed\n"
    assert done.err.startswith("heartbeatd: no open condition 'disk:/a'")
    assert SHARD_VARIABLE not in os.environ


def test_json_of_all_shards_is_one_object_with_a_value_for_each(call: Call) -> None:
    code, output = call("runs", "--format", "json")
    found = json.loads(output)
    assert code == 0
    assert {index: {row["name"] for row in rows} for index, rows in found.items()} == {"0": {"c", "d"}, "1": {"a", "b"}}
    assert set(json.loads(call("status", "--format", "json")[1])) == {"0", "1"}
    nothing = "there is nothing to do\n"  # an option of the list has no effect on its subcommands
    assert call("outbox", "--format", "json", "retry", "--all") == (0, f"shard 0 of 2:\n{nothing}\nshard 1 of 2:\n{nothing}")


def test_in_json_of_all_shards_a_shard_that_cannot_be_read_is_null(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SHARD_VARIABLE, raising=False)
    (tmp_path / "config.yaml").write_text(FLEET, "utf-8")
    path = shard_file(tmp_path / "state" / "heartbeatd.db", 1)
    path.parent.mkdir(mode=0o700)
    path.write_text("this is not a database", "utf-8")
    assert main(["runs", "--format", "json", "-c", str(tmp_path / "config.yaml")]) == 1
    done = capsys.readouterr()
    assert json.loads(done.out) == {"0": [], "1": None}
    assert done.err.startswith("heartbeatd: ")

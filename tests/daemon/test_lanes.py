"""Tests the lanes: `heartbeatd busy`, plain `flock`, and runs whose programs inherit the lock."""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from checkout import HOME
from config_file import write
from daemon_process import AGENT, Begin, Daemon
from patience import PATIENCE
from warm_start import Heartbeatd, run_heartbeatd

from scheduler.system.lanes import Lanes, lanes_beside
from scheduler.system.process import Children

CONFIG = """\
state: state/h.db
agents:
  ops:
    runner: {kind: command, argv: [cat]}
    heartbeat: {interval: 30m, deliver: log}
"""


def is_free(lanes: Lanes, name: str = "ops") -> bool:
    with lanes.lock_if_free(name) as fd:
        return fd is not None


def busy(folder: Path, *command: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    return run_heartbeatd("-c", path or folder / "config.yaml", "busy", *command)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path, CONFIG).parent


def test_threads_that_open_the_same_lane_do_not_share_its_lock(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path / "lanes")
    with lanes.lock_if_free("ops") as mine, lanes.lock_if_free("ops") as second, lanes.lock_if_free("web") as other:
        assert mine is not None
        assert second is None
        assert other is not None
    assert is_free(lanes)


def test_a_program_left_in_the_background_keeps_the_lane_locked(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path / "lanes")
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with lanes.lock_if_free("ops") as fd:
        assert fd is not None
        start = partial(Children("life/1").start, inherited=(fd,))
        asyncio.run(start(["sh", "-c", f"read line < {gate} &"], stdin=b"", env={}, cwd=tmp_path))
    assert not is_free(lanes)
    gate.write_text("end\n")
    os.close(lanes.wait_for_lock("ops", lambda: None))
    assert is_free(lanes)


def test_a_program_of_another_run_does_not_inherit_the_lock(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path / "lanes")
    with lanes.lock_if_free("ops") as fd:
        ended = asyncio.run(
            Children("life/2").start(["sh", "-c", f"test ! -e /proc/self/fd/{fd}"], stdin=b"", env={}, cwd=tmp_path)
        )
    assert ended.exit_code == 0


def test_a_lane_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "ops.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"), Lanes(tmp_path).lock_if_free("ops"):
        pass
    assert not (tmp_path / "elsewhere").exists()


# --- the command -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -TERM $$"], -15),
        (["sh", "-c", "test $0 = --wait", "--wait"], 0),
        (["no-such-program"], 127),
        (["/"], 126),
    ],
)
def test_busy_ends_with_the_exit_code_of_its_command(folder: Path, command: list[str], code: int) -> None:
    assert busy(folder, "ops", "--", *command).returncode == code


def test_busy_locks_the_lane_as_long_as_its_command_runs(folder: Path) -> None:
    lane = folder / "state" / "lanes" / "ops.lock"
    assert busy(folder, "ops", "--", "sh", "-c", f"! flock -n {lane} true").returncode == 0
    assert is_free(lanes_beside(folder / "state" / "h.db"))


def test_busy_handles_signals_like_a_shell(folder: Path) -> None:
    ran = busy(folder, "ops", "--", "sh", "-c", "grep SigIgn /proc/self/status")
    assert int(ran.stdout.split()[1], 16) & (1 << 12) == 0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["nobody", "--", "true"], "heartbeatd: no agent 'nobody'; `heartbeatd status` lists them\n"),
        (["cron/tick", "--", "true"], "heartbeatd: 'cron/tick' is not agent/NAME; jobs have no lock\n"),
    ],
)
def test_busy_creates_no_lane_for_an_unknown_agent(folder: Path, arguments: list[str], error: str) -> None:
    refused = busy(folder, *arguments)
    assert (refused.returncode, refused.stderr) == (2, error)
    assert not (folder / "state" / "lanes").exists()


# --- a real daemon ----------------------------------------------------------------------------------------------------------


def begin(it: Daemon, *command: str) -> Heartbeatd:
    return Heartbeatd("busy", "ops", "--", *command, cwd=it.folder, stderr=subprocess.PIPE)


def end(process: Heartbeatd | subprocess.Popen[bytes]) -> int:
    with process:
        return process.wait(timeout=PATIENCE)


@pytest.mark.process
def test_busy_waits_for_a_run_in_progress(daemon: Begin, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    script = "touch ../../begun; read line < ../../gate; echo beat >> ../../order; echo HEARTBEAT_OK"
    it = daemon(AGENT.format(interval="1h", script=script))
    it.wait_until((tmp_path / "begun").exists)
    user = begin(it, "sh", "-c", "echo user >> order")
    assert user.stderr is not None
    assert user.stderr.readline() == b"heartbeatd: agent/ops is busy; waiting until it is free\n"
    (tmp_path / "gate").write_text("go\n")
    assert end(user) == 0
    assert (tmp_path / "order").read_text() == "beat\nuser\n"


@pytest.mark.process
@pytest.mark.parametrize("take", ["busy", "flock"])
def test_no_run_starts_while_a_user_has_locked_the_lane(daemon: Begin, tmp_path: Path, take: str) -> None:
    os.mkfifo(tmp_path / "gate")
    it = daemon(AGENT.format(interval="1s", script="echo beat >> ../../order; echo HEARTBEAT_OK"))
    order = tmp_path / "order"
    it.wait_until(order.exists)
    command = ("sh", "-c", "wc -l < order > held; read line < gate")
    user = begin(it, *command) if take == "busy" else subprocess.Popen(["flock", "state/lanes/ops.lock", *command], cwd=it.folder)
    before = int(it.wait_until(lambda: (tmp_path / "held").exists() and (tmp_path / "held").read_text()))
    it.wait_until(lambda: len(it.runs("ops", "--why", "busy", "--result", "skipped")) >= 2)
    assert len(order.read_text().splitlines()) == before
    (tmp_path / "gate").write_text("end\n")
    assert end(user) == 0
    it.wait_until(lambda: len(order.read_text().splitlines()) > before)


@pytest.mark.process
def test_a_run_is_not_repeated_while_an_orphan_without_a_mark_holds_the_lane(daemon: Begin, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    orphan = "setsid env -i /bin/sh -c 'read line < ../../gate' &"
    it = daemon(AGENT.format(interval="1h", script=f"{orphan} echo beat >> ../../order; touch ../../begun; sleep 600"))
    it.wait_until((tmp_path / "begun").exists)
    it.kill()
    it.start()
    try:
        it.wait_until(lambda: it.runs("ops")[0]["why"] == "busy")
        assert (tmp_path / "order").read_text() == "beat\n"
        assert "busy" in it.run_command("status").stdout
    finally:
        (tmp_path / "gate").write_text("end\n")


@pytest.mark.process
def test_a_run_that_calls_busy_for_its_own_lane_does_not_wait_for_itself(daemon: Begin, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    own = shlex.join([sys.executable, "-m", "scheduler", "-c", str(config), "busy", "ops", "--", "echo", "HEARTBEAT_OK"])
    it = daemon(AGENT.format(interval="1h", script=f"cat > /dev/null; cd {shlex.quote(str(HOME))}; {own}"))
    assert "result=ok" in it.expect("run id=")


def test_lock_files_are_created_in_advance_for_their_owner_only_and_existing_ones_are_kept(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path / "lanes")
    lanes.make_lock_files(["a"])
    before = lanes.lock_file("a").stat().st_ino
    usual = os.umask(0)
    try:
        lanes.make_lock_files(["a", "b"])
    finally:
        os.umask(usual)
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in lanes.folder.iterdir()} == {
        "a.lock": "0o600",
        "b.lock": "0o600",
    }
    assert lanes.lock_file("a").stat().st_ino == before


def test_a_daemon_creates_the_lock_files_before_the_first_run(daemon: Begin) -> None:
    it = daemon(CONFIG_AHEAD)
    assert it.wait_until(lambda: (it.folder / "state" / "lanes" / "later.lock").exists())
    assert it.runs("later") == []


CONFIG_AHEAD = """\
state: state/h.db
server: {listen: "127.0.0.1:0"}
agents:
  later: {runner: {kind: command, argv: [cat]}, heartbeat: {interval: none, checklist: "- look\\n", deliver: log}}
"""

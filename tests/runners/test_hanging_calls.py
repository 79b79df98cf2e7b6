"""Calls that hang and cannot be cancelled (a callable, Apprise, a network folder) delay neither other agents nor the stop."""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from daemon_process import Daemon, daemons_in
from servers.scripted import Server, silence

pytestmark = pytest.mark.process

WITHIN = 30.0  # seconds that a stop may take; about ten are normal, including one of grace
DETACH = 2  # MNT_DETACH

CONFIG = """\
state: state/h.db
server: {{listen: "127.0.0.1:0"}}
limits: {{shutdown_grace: 1s, min_interval: 1s}}
channels: {{slow: {{kind: apprise, url: "json://127.0.0.1:{port}/"}}}}
agents:
  hung: {hung}
  ops:
    runner: {{kind: command, argv: [sh, -c, "cat >/dev/null; echo HEARTBEAT_OK"]}}
    heartbeat: {{interval: 1s, stagger: 0s, checklist: "- look\\n", deliver: log}}
"""
COMMAND = '{{kind: command, argv: [sh, -c, "cat >/dev/null; echo {said}"]}}'
BEAT = '{interval: 1h, stagger: 0s, checklist: "- look\\n", deliver: log}'


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    with daemons_in(tmp_path) as start:
        yield lambda hung, port=1: start(CONFIG.format(hung=hung, port=port))


Begin = Callable[..., Daemon]


def expect_others_and_a_stop(it: Daemon) -> None:
    """Expect that the other agent keeps running and that the daemon stops on request."""
    before = len(it.runs("ops", "--result", "ok"))
    it.wait_until(lambda: len(it.runs("ops", "--result", "ok")) >= before + 3)
    begun = time.monotonic()
    assert it.stop() == 0
    assert time.monotonic() - begun < WITHIN
    assert any(" stopped" in line for line in it.log)


def test_a_hanging_callable_delays_neither_other_agents_nor_the_stop(daemon: Begin, tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(
        "import pathlib, threading\n"
        "def beat(run):\n    pathlib.Path('begun').touch()\n    threading.Event().wait()\n"
    )  # fmt: skip
    it = daemon("{runner: {kind: python, call: 'hanging:beat', in_process: true}, heartbeat: " + BEAT + "}")
    it.wait_until((tmp_path / "begun").exists)
    expect_others_and_a_stop(it)
    assert [run["finished_at"] for run in it.runs("hung")] == [None]  # for detection at the next start


def test_a_hanging_apprise_service_delays_neither_other_agents_nor_the_stop(daemon: Begin) -> None:
    with Server([silence()]) as server:
        runner = COMMAND.format(said="ALERT: the disk is full")
        it = daemon(f"{{runner: {runner}, heartbeat: {BEAT.replace('log', 'slow')}}}", server.port)
        it.wait_until(lambda: server.requests)
        expect_others_and_a_stop(it)


@pytest.fixture
def hung_folder(tmp_path: Path) -> Iterator[Path]:
    """A FUSE file system without a server, which hangs like a network folder whose server is gone."""
    folder = tmp_path / "mounted"
    folder.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        behind = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        pytest.skip("needs the right to mount a folder that hangs (run it as root, with /dev/fuse)")
    options = f"fd={behind},rootmode=40000,user_id=0,group_id=0".encode()
    if libc.mount(b"hung", str(folder).encode(), b"fuse", 0, options) != 0:
        os.close(behind)
        pytest.skip("needs the right to mount a folder that hangs (run it as root, with /dev/fuse)")
    yield folder
    with suppress(OSError):
        os.close(behind)  # ends all pending calls with an error
    libc.umount2(str(folder).encode(), DETACH)


@pytest.mark.parametrize(
    "heartbeat",
    [
        "{interval: 1h, stagger: 0s, deliver: log}",
        BEAT,
        "{interval: 1h, stagger: 0s, deliver: log, on_missing: create, checklist: new/TODO.md}",
    ],
    ids=["the checklist lies there", "only the workspace lies there", "the checklist is to be made there"],
)
def test_a_hanging_folder_delays_only_its_own_agent(daemon: Begin, hung_folder: Path, heartbeat: str) -> None:
    it = daemon(f"{{workspace: {hung_folder}, runner: {COMMAND.format(said='HEARTBEAT_OK')}, heartbeat: {heartbeat}}}")
    it.wait_until(lambda: it.runs("hung", "--result", "running"))
    expect_others_and_a_stop(it)


def test_the_hanging_folder_of_these_tests_really_hangs(hung_folder: Path) -> None:
    """Otherwise the tests above would prove nothing."""

    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run(["ls", str(hung_folder)], timeout=1, check=False, capture_output=True)

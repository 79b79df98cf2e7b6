"""Tests the shipped systemd unit, readiness, and watchdog pings that stop when the main loop hangs."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from urllib.request import urlopen

import pytest
from checkout import HOME
from daemon_process import config
from patience import PATIENCE
from warm_start import Heartbeatd

from scheduler.system.systemd import ServiceManager

UNIT = HOME / "packaging" / "heartbeatd.service"
SECOND = 1_000_000  # in the unit of WATCHDOG_USEC


class Manager:
    """A socket in the place of systemd's."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address.replace("@", "\0", 1))

    def next(self, within: float = PATIENCE) -> str:
        """The next message. Raises TimeoutError if there is none."""
        self._socket.settimeout(within)
        return self._socket.recv(4096).decode()

    def until(self, beginning: str) -> list[str]:
        """All messages up to the next one that begins so."""
        deadline = time.monotonic() + PATIENCE
        seen = [self.next()]
        while not seen[-1].startswith(beginning):
            assert time.monotonic() < deadline, seen
            seen.append(self.next())
        return seen

    def read_all(self) -> list[str]:
        """All messages that are there."""
        seen = []
        with suppress(BlockingIOError):
            while True:
                seen.append(self.next(0))
        return seen

    def wait_for_silence(self, seconds: float) -> None:
        """Read until nothing has come for so long."""
        deadline = time.monotonic() + PATIENCE
        with suppress(TimeoutError):
            while True:
                assert time.monotonic() < deadline, "the messages do not stop"
                self.next(seconds)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    it = Manager(str(tmp_path / "notify"))
    yield it
    it.close()


@contextmanager
def watched(manager: Manager, **more: str) -> Iterator[ServiceManager]:
    """A notifier for a manager whose watchdog interval is 20 s."""
    systemd = ServiceManager({"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": str(20 * SECOND), **more})
    yield systemd
    systemd.close()


def test_a_ping_is_sent_after_half_of_the_watchdog_interval(manager: Manager) -> None:
    with watched(manager) as systemd:
        assert [systemd.ping_watchdog(steady) for steady in (100.0, 104.0, 110.0, 125.0)] == [10.0, 6.0, 10.0, 10.0]
    assert manager.read_all() == ["WATCHDOG=1"] * 3


@pytest.mark.parametrize(
    ("environ", "pings"),
    [
        ({"WATCHDOG_PID": str(os.getpid())}, True),
        ({"WATCHDOG_PID": "1"}, False),
        ({"WATCHDOG_USEC": ""}, False),
        ({"WATCHDOG_USEC": "0"}, False),
        ({"WATCHDOG_USEC": "-5"}, False),
        ({"WATCHDOG_USEC": "soon"}, False),
    ],
)
def test_pings_are_sent_only_if_systemd_watches_this_process(manager: Manager, environ: dict[str, str], pings: bool) -> None:
    with watched(manager, **environ) as systemd:
        assert (systemd.ping_watchdog(100.0) is not None) == pings
        systemd.report_ready()
    assert manager.read_all() == ["WATCHDOG=1"] * pings + ["READY=1"]


def test_a_reload_begins_and_ends_even_if_it_fails(manager: Manager) -> None:
    with watched(manager) as systemd, suppress(ValueError), systemd.report_reload(12.5):
        raise ValueError
    assert manager.read_all() == ["RELOADING=1\nMONOTONIC_USEC=12500000", "READY=1"]


def test_a_status_is_one_line_and_sent_when_it_changes(manager: Manager) -> None:
    with watched(manager) as systemd:
        for text in ("3 agents and jobs", "3 agents and jobs", "line 1\nREADY=1", "x" * 5000):
            systemd.report_status(text)
    assert manager.read_all() == ["STATUS=3 agents and jobs", "STATUS=line 1 READY=1", "STATUS=" + "x" * 999 + "…"]


def test_a_socket_in_the_abstract_namespace_works() -> None:
    manager = Manager(f"@heartbeatd-test-{os.getpid()}")
    with watched(manager) as systemd:
        systemd.report_stopping(35.0)
    assert manager.read_all() == ["STOPPING=1\nEXTEND_TIMEOUT_USEC=35000000"]
    manager.close()


@pytest.mark.parametrize("address", ["", "relative", "vsock:2:1234"])
def test_without_a_socket_nothing_is_sent(address: str, caplog: pytest.LogCaptureFixture) -> None:
    systemd = ServiceManager({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": str(SECOND)})
    systemd.report_ready()
    assert systemd.ping_watchdog(100.0) is None
    assert not caplog.records


def test_a_missing_socket_is_logged_once(manager: Manager, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "notify").unlink()
    with caplog.at_level(logging.WARNING), watched(manager) as systemd:
        systemd.report_ready()
        assert systemd.ping_watchdog(100.0) == 10.0
    assert [record.message for record in caplog.records] == ["systemd_unreachable"]


def test_pings_continue_when_no_more_files_can_be_opened(
    manager: Manager, no_open_files: Callable[[], AbstractContextManager[None]]
) -> None:
    with watched(manager) as systemd, no_open_files():
        systemd.ping_watchdog(100.0)
    assert manager.read_all() == ["WATCHDOG=1"]


class Service:
    """A `heartbeatd run` started as by systemd, with its log in a pipe."""

    def __init__(self, folder: Path, manager: Manager, yaml: str) -> None:
        self.folder = folder
        (folder / "config.yaml").write_text(yaml)
        self._log, log = os.pipe()
        environ = os.environ | {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": str(SECOND // 2)}
        self.process = Heartbeatd("-c", folder / "config.yaml", "run", cwd=folder, env=environ, stderr=log)
        self._full = Path(f"/proc/self/fd/{log}").open("wb", buffering=0)  # noqa: SIM115 (closed below)
        os.close(log)
        os.set_blocking(self._log, False)

    def answers(self) -> bool:
        """Whether its HTTP thread still does its work."""
        url = json.loads((self.folder / "state" / "daemon.json").read_text())["url"]
        with urlopen(f"{url}/metrics", timeout=PATIENCE) as page:
            return bool(page.read())

    def fill_log(self) -> None:
        """Leave no room in the pipe, as where journald has stopped reading."""
        os.set_blocking(self._full.fileno(), False)
        for size in (4096, 1):  # to the last byte, so that no further line fits
            while self._full.write(b"." * size):
                pass

    def read_log(self) -> str:
        """The content of the pipe."""
        seen = b""
        with suppress(BlockingIOError):
            while chunk := os.read(self._log, 1 << 20):
                seen += chunk
        return seen.decode()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE)
        self._full.close()
        os.close(self._log)


@pytest.fixture
def service(tmp_path: Path, manager: Manager) -> Iterator[Callable[[str], Service]]:
    begun: list[Service] = []

    def begin(yaml: str) -> Service:
        begun.append(Service(tmp_path, manager, yaml))
        return begun[-1]

    yield begin
    for each in begun:
        each.close()


@pytest.mark.process
def test_a_daemon_reports_its_start_its_pings_a_reload_and_its_stop(service: Callable[[str], Service], manager: Manager) -> None:
    it = service(config(job="'env > env.txt'").replace("state:", "limits: {shutdown_grace: 3m}\nstate:"))
    assert manager.until("READY=1") == ["READY=1"]
    assert it.answers()
    assert manager.until("WATCHDOG=1") == ["STATUS=2 agents and jobs", "WATCHDOG=1"]
    manager.until("WATCHDOG=1")
    (it.folder / "config.yaml").write_text("agents: {")
    manager.until("RELOADING=1\nMONOTONIC_USEC=")
    manager.until(f"STATUS={it.folder}/config.yaml:")
    manager.until("WATCHDOG=1")
    it.process.send_signal(signal.SIGTERM)
    manager.until("STOPPING=1\nEXTEND_TIMEOUT_USEC=215000000")
    assert it.process.wait(PATIENCE) == 0
    seen = (it.folder / "env.txt").read_text()
    assert "HEARTBEATD_RUN=" in seen
    assert "NOTIFY_SOCKET" not in seen
    assert "WATCHDOG" not in seen


@pytest.mark.process
def test_the_pings_stop_when_the_main_loop_hangs_and_its_traceback_is_logged(
    service: Callable[[str], Service], manager: Manager
) -> None:
    """Nobody reads the log any more: the engine's thread hangs in writing a line, while the other threads go on."""
    it = service(config(job="'true'"))
    manager.until("WATCHDOG=1")
    it.fill_log()
    manager.wait_for_silence(3.0)  # twelve pings long
    assert it.answers()
    it.read_log()
    manager.until("WATCHDOG=1")  # it was that
    it.fill_log()
    manager.wait_for_silence(3.0)
    it.process.send_signal(signal.SIGABRT)
    trace = it.read_log()  # what makes room for the trace may have its beginning already
    assert it.process.wait(PATIENCE) == -signal.SIGABRT
    assert re.search(r"app\.py.* in _run_tick", trace + it.read_log())


def test_the_documentation_names_settings_of_the_unit() -> None:
    named = set(re.findall(r"`([A-Z]\w+=)`", (HOME / "docs/operations.md").read_text("utf-8")))
    set_or_prepared = set(re.findall(r"^(?:# )?([A-Z]\w+=)", UNIT.read_text("utf-8"), re.MULTILINE))
    assert named - set_or_prepared == {"LimitNOFILE="}  # the unit leaves it to the daemon
    assert named & set_or_prepared


def test_the_unit_uses_the_protocol_of_the_daemon() -> None:
    lines = set(UNIT.read_text("utf-8").splitlines())
    assert {"Type=notify", "WatchdogSec=2min", "Restart=on-failure", "WantedBy=multi-user.target"} <= lines
    assert "KillMode=mixed" in lines  # else what runs is ended before limits.shutdown_grace is over

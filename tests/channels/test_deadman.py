"""The dead man's switch: a working engine sends pings, a frozen one sends none."""

from __future__ import annotations

import asyncio
import fcntl
import signal
import sqlite3
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from config_file import SMALL, complaints, read
from daemon_process import Begin
from run_async import with_http
from servers.scripted import Server, drip, hang_up, page, reply
from world import Clock, VirtualExecutor, utc

from heartbeatd.secret import Secret
from scheduler.engine.deadman_switch import Ping, Pinger, send_ping
from scheduler.model.daemon_health import EngineHealth
from scheduler.model.message import DeliveryResult
from scheduler.model.settings import Deadman

SWITCH = Deadman(Secret("https://hc.example/canary"), timedelta(minutes=1), allow_private=False)
TAKEN = DeliveryResult("delivered")


class Loop:
    """A main loop in virtual time with a tick every 15 seconds, and its pings."""

    def __init__(self) -> None:
        self.clock, self.health = Clock(utc("2026-03-02 08:00")), EngineHealth()
        self.answer: Any = TAKEN
        self.sent: list[str] = []
        self.problems: list[str | None] = []
        self.takes = timedelta(0)
        self.pinger = Pinger(VirtualExecutor(self.clock, self._carry), self.health, self.problems.append)
        self.switch: Deadman | None = SWITCH

    def _carry(self, ping: Ping) -> tuple[Any, timedelta]:
        self.sent.append(f"{self.clock.now:%H:%M:%S} {ping.beat}" + (f" {ping.problem}" if ping.problem else ""))
        return self.answer, self.takes

    def run(self, seconds: float, problem: str | None = None) -> list[str]:
        """Let time pass and return its pings. With a `problem` no tick can be committed."""
        before, end = len(self.sent), self.clock.monotonic + seconds
        self.health.problem = problem
        while self.clock.monotonic < end:
            wait = self.pinger.ping_if_due(self.clock.monotonic, self.switch)
            self.clock.advance(timedelta(seconds=min(15.0 if wait is None else wait, 15.0, end - self.clock.monotonic)))
        return self.sent[before:]


def test_the_first_ping_is_start_and_one_follows_every_minute() -> None:
    loop = Loop()
    assert loop.run(150) == ["08:00:00 start", "08:00:01 success", "08:01:01 success", "08:02:01 success"]


def test_without_a_switch_nothing_is_pinged() -> None:
    loop = Loop()
    loop.switch = None
    assert (loop.run(600), loop.pinger.ping_if_due(0.0, None)) == ([], None)


def test_an_unwritable_database_sends_fail_with_the_reason_until_it_is_writable() -> None:
    loop = Loop()
    loop.run(30)
    assert loop.run(120, "disk full") == ["08:01:01 success", "08:02:01 fail disk full"]
    assert loop.run(60) == ["08:03:01 success"]


def test_one_committed_tick_since_the_last_ping_is_enough() -> None:
    loop = Loop()
    loop.run(2)
    loop.run(20, "locked")
    loop.run(20)
    assert loop.run(40, "locked") == ["08:01:01 success"]


def test_a_frozen_loop_sends_no_pings_and_catches_up_on_none() -> None:
    loop = Loop()
    loop.run(30)
    loop.clock.advance(timedelta(hours=1))
    assert loop.run(30) == ["09:00:30 success"]


def test_a_ping_in_progress_does_not_block_the_loop() -> None:
    loop = Loop()
    loop.takes = timedelta(seconds=9)
    assert loop.run(60) == ["08:00:00 start", "08:00:09 success"]


def test_a_changed_switch_starts_again() -> None:
    loop = Loop()
    loop.run(30)
    loop.switch = Deadman(Secret("https://hc.example/other"), timedelta(seconds=30), allow_private=False)
    assert loop.run(40) == ["08:00:30 start", "08:00:31 success", "08:01:01 success"]


def test_the_problem_of_a_removed_switch_is_cleared() -> None:
    loop = Loop()
    loop.answer = DeliveryResult("retry", "no connection to hc.example")
    loop.run(30)
    loop.switch = None
    loop.run(30)
    assert loop.problems == ["no connection to hc.example", None]


def test_the_late_result_of_a_removed_switch_does_not_affect_the_next_one() -> None:
    loop = Loop()
    loop.answer, loop.takes = DeliveryResult("retry", "no connection to hc.example"), timedelta(seconds=9)
    loop.run(3)
    loop.switch = None
    loop.run(30)
    assert (loop.problems, loop.health.pings) == ([], {"delivered": 0, "failed": 1})


@pytest.mark.parametrize("wrong", [DeliveryResult("retry", "no connection to hc.example"), OSError("out of cheese")])
def test_failed_pings_are_counted_and_logged_once(wrong: Any, caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop()
    loop.run(30)
    loop.answer = wrong
    loop.run(300)
    loop.answer = TAKEN
    loop.run(120)
    assert loop.problems == [wrong.error if isinstance(wrong, DeliveryResult) else "OSError while pinging", None]
    assert loop.health.pings == {"delivered": 4, "failed": 5}
    assert [record.getMessage() for record in caplog.records] == ["deadman", "deadman"]
    assert "canary" not in f"{caplog.text} {[record.__dict__ for record in caplog.records]} {loop.problems} {loop.switch}"


# --- HTTP requests of a ping


@pytest.fixture
def server() -> Iterator[Server]:
    with Server([reply(b"OK")]) as server:
        yield server


def ping(
    server: Server, beat: Any = "success", problem: str | None = None, path: str = "/canary", *, private: bool = True
) -> DeliveryResult:
    switch = Deadman(Secret(f"{server.url}{path}"), timedelta(minutes=1), allow_private=private)
    return asyncio.run(with_http(lambda http: send_ping(Ping(beat, problem, switch), http)))


@pytest.mark.parametrize(
    ("path", "beat", "expected"),
    [
        ("/canary", "start", "/canary/start"),
        ("/canary", "success", "/canary"),
        ("/canary", "fail", "/canary/fail"),
        ("/canary/", "fail", "/canary/fail"),
        ("/push/canary?msg=ok", "success", "/push/canary?msg=ok"),
        ("/push/canary?msg=ok", "fail", "/push/canary/fail?msg=ok"),
        ("", "success", "/"),
    ],
)
def test_the_paths_are_those_of_healthchecks(server: Server, path: str, beat: str, expected: str) -> None:
    assert ping(server, beat, path=path) == TAKEN
    assert [(request.method, request.path) for request in server.requests] == [("POST", expected)]


def test_a_fail_ping_has_the_reason(server: Server) -> None:
    ping(server, "fail", "disk full")
    assert server.requests[0].json == {"beat": "fail", "problem": "disk full"}


def test_a_private_address_is_refused_unless_it_is_allowed(server: Server) -> None:
    sent = ping(server, private=False)
    assert (server.connections, sent.error) == (
        0,
        "127.0.0.1 is the private address 127.0.0.1; write allow_private: true if that is meant",
    )


@pytest.mark.parametrize(
    ("act", "error"), [(page(404), "404 Not Found"), (hang_up(), "closed the connection"), (page(302), "redirects")]
)
def test_ping_errors_do_not_show_the_url(server: Server, act: Any, error: str) -> None:
    server.script = [act]
    sent = ping(server)
    assert error in sent.error
    assert "canary" not in repr(sent)


# --- the deadman settings


def test_a_switch_is_configured_in_one_line_and_its_url_is_never_shown(tmp_path: Path) -> None:
    settings = read(tmp_path, 'deadman: {url: "${HC}"}\n' + SMALL, {"HC": "https://hc.example/canary"}).settings
    assert settings.deadman is not None
    assert (settings.deadman.every, settings.deadman.allow_private) == (timedelta(minutes=1), False)
    assert "canary" not in repr(settings)
    assert read(tmp_path, "deadman: none\n" + SMALL).settings.deadman is None


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("{every: 1m}", "config.yaml:1:1: deadman.url: is missing; write url: \"https://...\""),
        ("https://hc.example/canary", "config.yaml:1:10: deadman: this must be a map of keys with values; write {url: \"https://...\"}"),
        ("{url: canary}", "config.yaml:1:16: deadman.url: this is not the address of a server; write http:// or https:// with a host"),
        ("{url: '${NOPE}'}", "config.yaml:1:16: deadman.url: NOPE is not set; export it before heartbeatd starts, or write it into the env_file"),
        ("{url: 'https://hc.example/x', every: 0s}", "config.yaml:1:47: deadman.every: '0s' is zero; write 90s, 30m or 1h30m"),
    ],
)  # fmt: skip
def test_invalid_deadman_settings_are_reported(tmp_path: Path, written: str, complaint: str) -> None:
    assert complaints(tmp_path, f"deadman: {written}\n{SMALL}") == [complaint]


# --- a real daemon

CONFIG = """\
state: state/h.db
server: {{listen: "127.0.0.1:0"}}
deadman: {{url: "{url}/canary", every: 1s, allow_private: true}}
agents: {{ops: {{runner: {{kind: command, argv: [sh, -c, "cat > /dev/null"]}}, heartbeat: {{interval: none, deliver: log}}}}}}
"""


def pinged(server: Server, path: str, since: int = 0) -> bool:
    return any(request.path == path for request in server.requests[since:])


def silent(server: Server, seconds: float) -> bool:
    """Whether no request arrives for this long, after those in progress."""
    count, since = len(server.requests), time.monotonic()
    while time.monotonic() - since < 10:
        if len(server.requests) != count:
            count, since = len(server.requests), time.monotonic()
        if time.monotonic() - since > seconds:
            return True
        time.sleep(0.02)  # the wait is for the absence of requests
    return False


@pytest.mark.process
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_killed_or_stopped_daemon_sends_no_pings(daemon: Begin, server: Server, how: signal.Signals) -> None:
    it = daemon(CONFIG.format(url=server.url))
    it.wait_until(lambda: len(server.requests) >= 4)
    assert [request.path for request in server.requests[:2]] == ["/canary/start", "/canary"]
    it.kill() if how is signal.SIGKILL else it.process.send_signal(how)
    assert silent(server, 3)


@pytest.mark.process
def test_a_daemon_with_a_stuck_main_loop_sends_no_pings(daemon: Begin, server: Server) -> None:
    """The engine writes the log, so a full pipe blocks it while the HTTP server and other threads go on."""
    it = daemon(CONFIG.format(url=server.url) + 'cron: {loud: {every: 1s, command: "seq 9000", deliver: log}}\n')
    log = it.process.stderr
    assert log is not None
    fcntl.fcntl(log.fileno(), fcntl.F_SETPIPE_SZ, 4096)
    it.wait_until(lambda: pinged(server, "/canary"))
    it.wait_until(lambda: silent(server, 3))
    assert "heartbeatd_deadman_pings_total" in it.metrics()
    since = len(server.requests)

    def goes_on_when_read() -> bool:
        log.read()
        return pinged(server, "/canary", since)

    it.wait_until(goes_on_when_read)


@pytest.mark.process
def test_a_daemon_that_cannot_write_its_database_sends_fail(daemon: Begin, server: Server) -> None:
    it = daemon(CONFIG.format(url=server.url))
    it.wait_until(lambda: pinged(server, "/canary"))
    other = sqlite3.connect(it.folder / "state" / "h.db", isolation_level=None)
    other.execute("begin immediate")
    it.wait_until(lambda: pinged(server, "/canary/fail"))
    since = len(server.requests)
    other.execute("rollback")
    other.close()
    it.wait_until(lambda: pinged(server, "/canary", since))


@pytest.mark.process
def test_status_and_metrics_show_failed_pings(daemon: Begin, server: Server) -> None:
    server.script = [page(404)]
    it = daemon(CONFIG.format(url=server.url))
    it.wait_until(lambda: it.json("status")["deadman_problem"])
    assert "deadman: pings do not arrive: 127.0.0.1 answered 404 Not Found\n" in it.run_command("status").stdout
    assert 'heartbeatd_deadman_pings_total{result="failed"}' in it.metrics()
    assert "heartbeatd_deadman_reachable 0\n" in it.metrics()
    server.script = [reply(b"OK")]
    it.wait_until(lambda: it.json("status")["deadman_problem"] is None)
    assert "heartbeatd_deadman_reachable 1\n" in it.metrics()
    assert it.stop() == 0
    assert sum(" deadman " in line for line in it.log) == 2
    assert "canary" not in "".join(it.log)


@pytest.mark.process
def test_a_hanging_ping_delays_nothing(daemon: Begin, server: Server) -> None:
    server.script = [drip()]
    it = daemon(CONFIG.format(url=server.url) + "cron: {tick: {every: 1s, command: 'true'}}\n")
    it.wait_until(lambda: server.requests)
    before = len(it.runs("tick"))
    it.wait_until(lambda: len(it.runs("tick")) > before + 2)

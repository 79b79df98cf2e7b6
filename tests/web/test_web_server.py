"""Tests of the HTTP server: its address, its private files, and slow or many clients."""

from __future__ import annotations

import json
import os
import select
import socket
import stat
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE
from web_daemon import CONFIG, TOKENS, WebDaemon

from scheduler.system import file_limits
from scheduler.web import server
from scheduler.web.app_state import READ_THREADS
from scheduler.web.connection_timeouts import ClientTimeouts
from scheduler.web.server import MAX_CONNECTIONS, MIN_CONNECTIONS, CannotListen, HttpServer, _local_url, connections_that_fit

SHORT = ClientTimeouts(request_seconds=0.4, answer_seconds=0.8)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_server_listens_only_on_loopback(tmp_path: Path) -> None:
    with WebDaemon(tmp_path) as daemon:
        listening = Path("/proc/net/tcp").read_text().splitlines() + Path("/proc/net/tcp6").read_text().splitlines()
        addresses = [
            line.split()[1] for line in listening if line.split()[1].endswith(f":{daemon.port:04X}") and line.split()[3] == "0A"
        ]
        assert addresses == [f"0100007F:{daemon.port:04X}"]


def test_address_and_token_are_beside_the_database_and_only_for_its_owner(tmp_path: Path) -> None:
    daemon = WebDaemon(tmp_path)
    before = os.umask(0)
    with daemon:
        os.umask(before)
        address = daemon.world.state.with_name("daemon.json")
        content = json.loads(address.read_text())
        assert content == {"pid": os.getpid(), "url": f"http://127.0.0.1:{daemon.port}", "started_at": "2026-03-02T08:00:00Z"}
        assert (mode(address), mode(address.with_name("token"))) == (0o600, 0o600)
    assert not address.exists()
    assert address.with_name("token").exists()


def test_the_local_token_may_do_everything_even_if_others_are_declared(tmp_path: Path) -> None:
    with WebDaemon(tmp_path) as daemon:
        assert daemon.get("/api/v1/status", daemon.token).status == 200
        assert daemon.post("/api/v1/pause", {}, daemon.token).status == 200
        assert daemon.post("/-/reload", {}, daemon.token).status == 200


def test_the_token_survives_a_restart(tmp_path: Path) -> None:
    state = tmp_path / "heartbeatd.db"
    token = server.load_or_create_token(state)
    assert len(token.reveal()) == 43  # 256 bits
    assert server.load_or_create_token(state) == token


@pytest.mark.parametrize("damage", ["readable", "short", "link", "folder"])
def test_a_token_that_others_could_read_is_replaced(tmp_path: Path, damage: str) -> None:
    state, path = tmp_path / "heartbeatd.db", tmp_path / "token"
    token = server.load_or_create_token(state)
    if damage == "readable":
        path.chmod(0o640)
    elif damage == "short":
        path.write_text("short")
    elif damage == "link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.unlink()
        os.mkfifo(path, 0o600)
    fresh = server.load_or_create_token(state)
    assert fresh != token
    assert (mode(path), path.is_symlink()) == (0o600, False)
    assert server.load_or_create_token(state) == fresh


def test_an_address_in_use_is_reported_with_advice(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, ExitStack() as stack:
        port = other.getsockname()[1]
        daemon = WebDaemon(tmp_path, CONFIG.replace("127.0.0.1:0", f"127.0.0.1:{port}"))
        stack.callback(daemon.__exit__)
        with pytest.raises(CannotListen, match=rf"127\.0\.0\.1:{port}: Address already in use; stop .* server: \{{listen:"):
            daemon.server.start()
        assert not daemon.world.state.with_name("daemon.json").exists()


def test_an_address_of_another_machine_is_reported_without_a_program_to_stop() -> None:
    with pytest.raises(CannotListen, match=r"192\.0\.2\.1:80: Cannot assign requested address; choose another address in "):
        server.bind_socket("192.0.2.1", 80)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("::1", "http://[::1]:80"),
        ("pi.local", "http://pi.local:80"),
    ],
)
def test_the_address_in_the_file_can_be_reached_from_this_machine(host: str, url: str) -> None:
    assert _local_url(host, 80) == url


def test_a_server_that_was_stopped_can_be_started_again(tmp_path: Path) -> None:
    with WebDaemon(tmp_path) as daemon:
        daemon.server.stop()
        daemon.server.stop()
        daemon.server = HttpServer(daemon.app_state)
        daemon.server.start()
        assert daemon.get("/healthz").status == 200


def test_the_server_uses_no_cpu_without_requests(tmp_path: Path) -> None:
    """uvicorn by itself wakes up ten times a second: that is what must not be there."""
    with WebDaemon(tmp_path) as daemon:
        assert daemon.get("/healthz").status == 200
        # On a busy machine it may be switched to a few times more for a while, but not in every half second of ten.
        assert any(_switches_in_half_a_second("heartbeatd-web") <= 2 for _ in range(10))


def _switches_in_half_a_second(name: str) -> int:
    began = _switches(name)
    time.sleep(0.5)
    return _switches(name) - began


def _switches(name: str) -> int:
    """How often the thread of this name has been waited for and woken."""
    for task in Path("/proc/self/task").iterdir():
        if _python_name(int(task.name)) == name:
            lines = (task / "status").read_text().splitlines()
            return int(next(line.split()[1] for line in lines if line.startswith("voluntary_ctxt_switches")))
    raise AssertionError(f"no thread {name}")


def _python_name(native_id: int) -> str | None:
    return next((thread.name for thread in threading.enumerate() if thread.native_id == native_id), None)


def hung_up(connection: socket.socket) -> bool:
    """Whether the other side ends the connection without an answer."""
    connection.settimeout(10)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    "beginning",
    [
        b"",
        b"G",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
        (
            b"POST /api/v1/pause HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\n"
            b'Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"for": '
        ),
    ],
)
def test_a_client_that_sends_its_request_too_slowly_is_disconnected(tmp_path: Path, beginning: bytes) -> None:
    with WebDaemon(tmp_path, timeouts=SHORT) as daemon:
        request = beginning.replace(b"{port}", str(daemon.port).encode()).replace(b"{token}", daemon.token.encode())
        with socket.create_connection(("127.0.0.1", daemon.port)) as slow:
            slow.sendall(request)
            assert hung_up(slow)


def test_one_byte_at_a_time_does_not_buy_more_time(tmp_path: Path) -> None:
    with WebDaemon(tmp_path, timeouts=SHORT) as daemon, socket.create_connection(("127.0.0.1", daemon.port)) as slow:
        began = time.monotonic()
        with pytest.raises(OSError):
            while time.monotonic() - began < 20:
                slow.sendall(b"x")
                select.select([slow], [], [], 0.05)


def test_an_answer_that_the_client_does_not_read_is_discarded(tmp_path: Path) -> None:
    beat = "{runner: {kind: command, argv: [agent]}, heartbeat: {interval: 1h, deliver: log}}"
    agents = "".join(f"  a{number}: {beat}\n" for number in range(800))
    timeouts = ClientTimeouts(request_seconds=10, answer_seconds=3)
    with WebDaemon(tmp_path, f"server: {{listen: '127.0.0.1:0'}}\nagents:\n{agents}", timeouts=timeouts) as daemon:
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            slow.connect(("127.0.0.1", daemon.port))
            slow.sendall(f"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:{daemon.port}\r\n\r\n".encode())
            assert eventually(lambda: sockets_to(daemon.port) == 2)
            assert eventually(lambda: sockets_to(daemon.port) <= 1), "the server still keeps its end"
        assert daemon.get("/healthz").status == 200


def sockets_to(port: int) -> int:
    """How many ends of connections with this port our process holds: two of each that is whole."""
    ours = {str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    listening = "0A"
    return sum(f"socket:[{row[9]}]" in ours and row[3] != listening and f":{port:04X}" in row[1] + row[2] for row in rows)


def eventually(question: Callable[[], bool], seconds: float = 20) -> bool:
    end = time.monotonic() + seconds
    while not question() and time.monotonic() < end:
        select.select([], [], [], 0.02)
    return question()


def test_two_hundred_slow_clients_do_not_delay_other_clients(tmp_path: Path) -> None:
    with WebDaemon(tmp_path) as daemon, ExitStack() as stack:
        for _ in range(200):
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", daemon.port)))
            slow.sendall(b"GET /metrics HTTP/1.1\r\nHost: ")
        began = time.monotonic()
        assert daemon.get("/metrics").status == 200
        assert time.monotonic() - began < ClientTimeouts().request_seconds / 2


def answer(connection: socket.socket) -> None:
    """Read the whole answer to a request for /healthz."""
    got = b""
    while not got.endswith(b"}"):
        got += connection.recv(4096)
    assert got.startswith(b"HTTP/1.1 200 OK")


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side has closed the connection by now; its last answer has been read."""
    connection.settimeout(0)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True
    except BlockingIOError:
        return False


@pytest.mark.parametrize("kind", ["silent", "slow", "kept"])
def test_five_hundred_idle_connections_do_not_block_other_clients(tmp_path: Path, kind: str) -> None:
    """A scrape is answered, again and again, and of the idle connections the oldest are closed for it."""
    with WebDaemon(tmp_path, max_connections=MIN_CONNECTIONS) as daemon, ExitStack() as stack:
        request = f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{daemon.port}\r\n\r\n".encode()
        idle = []
        for _ in range(500):
            idle.append(stack.enter_context(socket.create_connection(("127.0.0.1", daemon.port))))
            idle[-1].sendall({"silent": b"", "slow": request[:30], "kept": request}[kind])
            if kind == "kept":
                answer(idle[-1])
        for _ in range(20):
            assert daemon.get("/metrics").status == 200
        assert is_closed(idle[0])
        newest = idle[-1]
        newest.sendall({"silent": request, "slow": request[30:], "kept": request}[kind])
        answer(newest)


def test_too_many_requests_at_once_are_answered_with_503(tmp_path: Path) -> None:
    replies: list[Future[Any]] = []

    def ask(_: object) -> Future[Any]:
        replies.append(Future())
        return replies[-1]

    with WebDaemon(tmp_path) as daemon:
        busy = HttpServer(replace(daemon.app_state, submit_request=ask), max_connections=MIN_CONNECTIONS)
        busy.start()
        port = int(busy.url.rpartition(":")[2])
        head = f"Host: 127.0.0.1:{port}\r\nAuthorization: Bearer {TOKENS['chief']}\r\n"
        with ExitStack() as stack:
            waiting = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(MIN_CONNECTIONS)]
            for client in waiting:
                client.sendall(f"POST /api/v1/resume HTTP/1.1\r\n{head}\r\n".encode())
            assert eventually(lambda: len(replies) == MIN_CONNECTIONS)
            late = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            late.sendall(f"GET /healthz HTTP/1.1\r\n{head}\r\n".encode())
            assert b" 503 " in late.recv(4096)
            assert not select.select(waiting, [], [], 0)[0]  # a client that waits for its answer is not disconnected
            busy.stop()


CALL_OF_A_TOOL = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "status", "arguments": {}}})
READS = {
    "api": "GET /api/v1/status HTTP/1.1\r\n{head}\r\n",
    "mcp": "POST /mcp HTTP/1.1\r\n{head}Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
    f"Content-Length: {len(CALL_OF_A_TOOL)}\r\n\r\n{CALL_OF_A_TOOL.replace('{', '{{').replace('}', '}}')}",
}


@pytest.mark.parametrize("read", [READS["api"], pytest.param(READS["mcp"], marks=pytest.mark.extras)], ids=READS.keys())
def test_many_readers_wait_in_line_while_probes_and_changes_are_answered(tmp_path: Path, read: str) -> None:
    """Only READ_THREADS requests of the API, and as many views, are computed at once, so that they do not delay runs."""
    entered: list[None] = []
    may_go_on = threading.Event()

    def clock() -> Any:
        if threading.current_thread().name.startswith("AnyIO"):  # a thread that computes an answer
            entered.append(None)
            assert may_go_on.wait(20)
        return daemon.now

    with WebDaemon(tmp_path) as daemon, ExitStack() as stack:
        server = HttpServer(replace(daemon.app_state, clock=clock))
        server.start()
        port = int(server.url.rpartition(":")[2])
        head = f"Host: 127.0.0.1:{port}\r\nAuthorization: Bearer {TOKENS['chief']}\r\nConnection: close\r\n"
        readers = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 20)) for _ in range(3 * READ_THREADS)]
        for reader in readers:
            reader.sendall(read.format(head=head).encode())
        assert eventually(lambda: len(entered) == READ_THREADS)
        for line in ("GET /healthz", "POST /api/v1/resume"):
            other = stack.enter_context(socket.create_connection(("127.0.0.1", port), 20))
            other.sendall(f"{line} HTTP/1.1\r\n{head}\r\n".encode())
            assert other.recv(4096).startswith(b"HTTP/1.1 200 ")
        assert len(entered) == READ_THREADS
        may_go_on.set()
        assert {reader.recv(15) for reader in readers} == {b"HTTP/1.1 200 OK"}
        server.stop()


@pytest.mark.parametrize(("spare", "allowed"), [(0, 128), (100, 228), (512, 640), (8000, 640)])
def test_a_low_limit_of_open_files_allows_fewer_connections(spare: int, allowed: int) -> None:
    assert connections_that_fit(spare) == allowed
    assert connections_that_fit(file_limits.FILES_FOR_READERS) == MAX_CONNECTIONS


def test_several_requests_share_a_connection(tmp_path: Path) -> None:
    with WebDaemon(tmp_path) as daemon:
        one = f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{daemon.port}\r\n\r\n"
        last = one.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n")
        assert daemon.raw((one * 4 + last).encode()).count(b" 200 OK") == 5


def test_a_connection_with_an_incomplete_pipelined_request_is_closed(tmp_path: Path) -> None:
    with WebDaemon(tmp_path, timeouts=SHORT) as daemon, socket.create_connection(("127.0.0.1", daemon.port)) as slow:
        whole = f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{daemon.port}\r\n\r\n"
        begun = f"POST /api/v1/pause HTTP/1.1\r\nHost: 127.0.0.1:{daemon.port}\r\nAuthorization: Bearer {daemon.token}\r\n"
        slow.sendall((whole + begun + "Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{").encode())
        slow.settimeout(10)
        try:
            answer = b"".join(iter(lambda: slow.recv(4096), b""))
        except ConnectionResetError:
            answer = b""
        assert b" 400 " not in answer


def test_stopping_does_not_wait_for_a_client_that_keeps_its_connection(tmp_path: Path) -> None:
    with WebDaemon(tmp_path) as daemon, socket.create_connection(("127.0.0.1", daemon.port)) as idle:
        idle.sendall(f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{daemon.port}\r\n\r\n".encode())
        assert idle.recv(10)
        began = time.monotonic()
        daemon.server.stop()
        assert time.monotonic() - began < ClientTimeouts().request_seconds / 2


def test_the_wait_for_an_engine_that_does_not_answer_is_limited(tmp_path: Path) -> None:
    with WebDaemon(tmp_path) as daemon:
        daemon.server.stop()
        daemon.server = HttpServer(replace(daemon.app_state, submit_request=lambda _: Future(), answer_timeout=0.1))
        daemon.server.start()
        reply = daemon.post("/api/v1/resume", {}, daemon.token)
    assert (reply.status, reply.code) == (503, "no_answer")


def test_a_cancelled_wait_does_not_cancel_the_request_in_the_engine(tmp_path: Path) -> None:
    """The daemon stops while a request waits: the future of the engine must not be cancelled."""
    waiting: Future[Any] = Future()
    reply: Future[None] = Future()

    def ask(_: object) -> Future[Any]:
        reply.set_result(None)
        return waiting

    with WebDaemon(tmp_path) as daemon:
        other = HttpServer(replace(daemon.app_state, submit_request=ask))
        other.start()
        port = int(other.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as client:
            head = f"POST /api/v1/resume HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {TOKENS['chief']}\r\n\r\n"
            client.sendall(head.encode())
            reply.result(timeout=PATIENCE)
            other.stop()
        assert not waiting.cancelled()
        waiting.set_result([])


def test_the_address_file_is_written_atomically(tmp_path: Path) -> None:
    state = tmp_path / "heartbeatd.db"
    server.write_address_file(state, "http://127.0.0.1:1", datetime(2026, 3, 2, tzinfo=UTC))
    assert [path.name for path in tmp_path.iterdir()] == ["daemon.json"]
    server.remove_address_file(state)
    server.remove_address_file(state)
    assert not list(tmp_path.iterdir())

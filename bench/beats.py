"""Many beats due at once that ask a slow model, beside the ideal: one wave of calls after the other."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import select
import socket
import sys
import tempfile
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from statistics import median

from scheduler.app import Daemon, now
from scheduler.tables import boots

ANSWER = 2.0  # seconds that the server takes
BODY = json.dumps({
    "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-haiku-5-5", "stop_reason": "end_turn",
    "content": [{"type": "text", "text": "HEARTBEAT_OK"}], "usage": {"input_tokens": 100, "output_tokens": 5},
}).encode()  # fmt: skip


def serve(told) -> None:
    """A server of the Messages API that thinks for two seconds about everything.

    It shares the machine with what is measured, where the model's would not, so it does as little as can be done: asyncio takes
    a third of a second for a thousand calls.
    """
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    listener.setblocking(False)
    told.put(listener.getsockname()[1])
    ready = select.epoll()
    ready.register(listener, select.EPOLLIN)
    asking: dict[int, tuple[socket.socket, bytes]] = {}
    thinking: deque[tuple[float, socket.socket]] = deque()
    while True:
        for number, _ in ready.poll(max(thinking[0][0] - time.monotonic(), 0.0) if thinking else None):
            if number == listener.fileno():
                client = listener.accept()[0]
                asking[client.fileno()] = client, b""
                ready.register(client, select.EPOLLIN)
                continue
            client, said = asking[number]
            more = heard(client)
            asking[number] = client, said + more
            if not more or is_whole(said + more):
                ready.unregister(number)
                thinking.append((time.monotonic() + ANSWER, client))
        while thinking and thinking[0][0] <= time.monotonic():
            with thinking.popleft()[1] as client, suppress(OSError):  # it may have gone meanwhile
                client.sendall(answer)


def heard(client: socket.socket) -> bytes:
    with suppress(OSError):
        return client.recv(65536)
    return b""


def is_whole(said: bytes) -> bool:
    head, end, body = said.partition(b"\r\n\r\n")
    return bool(end) and len(body) == int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])


def config(folder: Path, port: int, beats: int, concurrency: int, interval: float) -> Path:
    beat = (
        f'{{runner: {{kind: anthropic}}, heartbeat: {{interval: {interval:g}s, stagger: 0s, checklist: "- x\\n", deliver: log}}}}'
    )
    path = folder / "config.yaml"
    path.write_text(
        f'server: {{listen: "127.0.0.1:0"}}\nlimits: {{concurrency: {concurrency}, min_interval: 1s}}\n'
        f'providers: {{anthropic: {{api_key: "k", base_url: "http://127.0.0.1:{port}"}}}}\n'
        "prices: {claude-haiku-5-5: {input: 1.0, output: 5.0}}\n"
        "agents:\n" + "".join(f"  a{number}: {beat}\n" for number in range(beats))
    )
    return path


def one_round(daemon: Daemon) -> float:
    """Seconds from the time at which all are due to the time at which all have ended and are booked."""
    due = daemon.store.connection.execute("select min(due_at) from entry").fetchone()[0] / 1000
    daemon._loop(lambda: time.time() > due and daemon.engine.at_rest(now().now), None)
    return time.time() - due


def main(beats: int, waves: int, rounds: int = 5) -> None:
    """Several rounds, for the machine has its slow moments: each is told, the best and the median again."""
    told: multiprocessing.Queue[int] = multiprocessing.Queue()
    server = multiprocessing.Process(target=serve, args=(told,), daemon=True)
    server.start()
    ideal = ANSWER * waves
    with tempfile.TemporaryDirectory() as folder:
        path = config(Path(folder), told.get(), beats, beats // waves, interval=5 * ideal)
        daemon = Daemon(path, dict(os.environ), listen=False)
        daemon.warm_up()
        daemon.engine.begin(now(), boots.Boot(daemon.instance, os.getpid(), "0", "0"), {})
        shares = []
        for number in range(1, rounds + 1):
            took = one_round(daemon)
            shares.append(ideal / took)
            print(f"round {number}, {beats} beats in waves of {beats // waves}: {took:.2f} s, {shares[-1]:.2f} of the ideal")
        rows = daemon.store.connection.execute("select outcome, count(*) from run group by outcome").fetchall()
    server.terminate()
    print(f"best {max(shares):.2f}, median {median(shares):.2f} of the ideal")
    print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB; {dict(map(tuple, rows))}")


if __name__ == "__main__":
    main(*(int(word) for word in (sys.argv[1:] or ["1000", "1"])))

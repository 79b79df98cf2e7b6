"""Many beats due at once that ask a slow model, beside the ideal: one wave of calls after the other."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

from scheduler.app import Daemon, now
from scheduler.tables import boots

ANSWER = 2.0  # seconds that the server takes
BODY = json.dumps({
    "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-haiku-5-5", "stop_reason": "end_turn",
    "content": [{"type": "text", "text": "HEARTBEAT_OK"}], "usage": {"input_tokens": 100, "output_tokens": 5},
}).encode()  # fmt: skip


def serve(told) -> None:
    """A server of the Messages API that thinks for two seconds about everything."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
        await reader.readexactly(int(lines.get(b"content-length", b"0")))
        await asyncio.sleep(ANSWER)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY)
        await writer.drain()
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=4096)
        told.put(server.sockets[0].getsockname()[1])
        async with server:
            await server.serve_forever()

    asyncio.run(run())


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


def main(beats: int, waves: int) -> None:
    """Two rounds: in the first everything is done for the first time."""
    told: multiprocessing.Queue[int] = multiprocessing.Queue()
    server = multiprocessing.Process(target=serve, args=(told,), daemon=True)
    server.start()
    ideal = ANSWER * waves
    with tempfile.TemporaryDirectory() as folder:
        path = config(Path(folder), told.get(), beats, beats // waves, interval=5 * ideal)
        daemon = Daemon(path, dict(os.environ), listen=False)
        daemon.warm_up()
        daemon.engine.begin(now(), boots.Boot(daemon.instance, os.getpid(), "0", "0"), {})
        for name in ("first", "second"):
            took = one_round(daemon)
            print(
                f"{name} round, {beats} beats in {waves} waves of {beats // waves}: {took:.2f} s, {ideal / took:.2f} of the ideal"
            )
        rows = daemon.store.connection.execute("select outcome, count(*) from run group by outcome").fetchall()
    server.terminate()
    print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB; {dict(map(tuple, rows))}")


if __name__ == "__main__":
    main(*(int(word) for word in (sys.argv[1:] or ["1000", "1"])))

"""Many runs due at once that call a slow model over TLS, beside two scripts that make the same calls with the bare SDK."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import resource
import ssl
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ANSWER = 2.0  # seconds that the server takes
CERTIFICATE = Path(__file__).parent.parent / "tests" / "support" / "servers" / "localhost.pem"
BODY = json.dumps({
    "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-haiku-5-5", "stop_reason": "end_turn",
    "content": [{"type": "text", "text": "HEARTBEAT_OK"}], "usage": {"input_tokens": 100, "output_tokens": 5},
}).encode()  # fmt: skip
ROUNDS = 2  # the first makes the connections; the second finds them kept, where a client keeps them


def serve(reports: multiprocessing.Queue[int]) -> None:
    """A server of the Messages API, with kept connections, that takes two seconds for each call."""
    asyncio.run(_serve(reports))


async def _serve(reports: multiprocessing.Queue[int]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    server = await asyncio.start_server(_answer, "127.0.0.1", 0, ssl=context, backlog=4096)
    reports.put(server.sockets[0].getsockname()[1])
    await server.serve_forever()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(BODY)
    try:
        while True:
            asked = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(asked.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
            await asyncio.sleep(ANSWER)
            writer.write(head + BODY)
    except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
        writer.close()


def config(folder: Path, port: int, beats: int) -> Path:
    beat = '{runner: {kind: anthropic}, heartbeat: {interval: 20s, stagger: 0s, checklist: "- x\\n", deliver: log}}'
    path = folder / "config.yaml"
    path.write_text(
        f'server: {{listen: "127.0.0.1:0"}}\nlimits: {{concurrency: {beats}, min_interval: 1s}}\n'
        f'providers: {{anthropic: {{api_key: "k", base_url: "https://localhost:{port}"}}}}\n'
        f"network: {{proxy: none, ca_file: {CERTIFICATE}}}\n"
        "prices: {claude-haiku-5-5: {input: 1.0, output: 5.0}}\n"
        "agents:\n" + "".join(f"  a{number}: {beat}\n" for number in range(beats))
    )
    return path


def ours(port: int, beats: int, report: Callable[[], None]) -> None:
    """The daemon: queue, calls and booking."""
    from scheduler import app
    from scheduler.store import boots
    from scheduler.work.run_extras import import_runner_libraries

    with tempfile.TemporaryDirectory() as folder:
        daemon = app.Daemon(config(Path(folder), port, beats), dict(os.environ), listen=False)
        import_runner_libraries(daemon.settings)
        daemon.engine.start_boot(app.read_clocks(), boots.Boot(daemon.instance, os.getpid(), "0", "0"), {})
        report()
        for _ in range(ROUNDS):
            due = daemon.store.connection.execute("select min(due_at) from entry").fetchone()[0] / 1000
            daemon._run_ticks(lambda: time.time() > due and daemon.engine.is_idle(app.read_clocks().now), None)  # noqa: B023
        report()
        rows = daemon.store.connection.execute("select outcome, count(*) from run group by outcome").fetchall()
        assert dict(map(tuple, rows)) == {"ok": ROUNDS * beats}, dict(map(tuple, rows))


def sdk(port: int, beats: int, report: Callable[[], None], *, over_aiohttp: bool) -> None:
    """A script that makes the same calls, and nothing else."""
    import anthropic
    import httpx2

    trust = ssl.create_default_context(cafile=CERTIFICATE)

    async def calls() -> None:
        if over_aiohttp:
            import aiohttp
            from anthropic._vendor.httpx_aiohttp import AiohttpTransport

            session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust, limit=0))
            http = httpx2.AsyncClient(transport=AiohttpTransport(verify=trust, client=session))
        else:
            limits = httpx2.Limits(max_connections=beats, max_keepalive_connections=beats)
            http = httpx2.AsyncClient(verify=trust, limits=limits)
        client = anthropic.AsyncAnthropic(
            api_key="k", base_url=f"https://localhost:{port}", http_client=http, max_retries=0, timeout=120
        )
        said: Any = {"role": "user", "content": "How is it?" * 40}
        report()
        for number in range(ROUNDS):
            if number:
                await asyncio.sleep(15)
            await asyncio.gather(
                *(client.messages.create(model="claude-haiku-5-5", max_tokens=2000, messages=[said]) for _ in range(beats))
            )
        report()
        await client.close()
        if over_aiohttp:
            await session.close()

    asyncio.run(calls())


WAYS: dict[str, Callable[[int, int, Callable[[], None]], None]] = {
    "heartbeatd": ours,
    "AsyncAnthropic over aiohttp": lambda *given: sdk(*given, over_aiohttp=True),
    "AsyncAnthropic, its own transport": lambda *given: sdk(*given, over_aiohttp=False),
}


def measure(way: str, port: int, beats: int, reports: multiprocessing.Queue[tuple[float, float, float]]) -> None:
    seen: list[tuple[float, float]] = []

    def report() -> None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        seen.append((used.ru_utime + used.ru_stime, time.monotonic()))

    WAYS[way](port, beats, report)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    reports.put((seen[1][0] - seen[0][0], seen[1][1] - seen[0][1], memory))


def main(beats: int) -> None:
    spawn = multiprocessing.get_context("spawn")
    port_of: multiprocessing.Queue[int] = spawn.Queue()
    server = spawn.Process(target=serve, args=(port_of,), daemon=True)
    server.start()
    port = port_of.get()
    cpu: dict[str, float] = {}
    for way in WAYS:
        reports: multiprocessing.Queue[tuple[float, float, float]] = spawn.Queue()
        child = spawn.Process(target=measure, args=(way, port, beats, reports))
        child.start()
        cpu[way], wall, memory = reports.get()
        child.join()
        each = cpu[way] * 1000 / (ROUNDS * beats)
        print(f"{way:<34} {cpu[way]:6.2f} s CPU, {each:5.2f} ms a call, {wall:5.1f} s in all, {memory:4.0f} MB", flush=True)
    server.terminate()
    own = cpu["heartbeatd"]
    for way, used in cpu.items():
        if way != "heartbeatd":
            print(f"heartbeatd takes {own / used:.2f} of the CPU of {way}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)

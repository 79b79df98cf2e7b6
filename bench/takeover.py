"""How long agents do not run if the leader of two schedulers fails, beside a restart on one machine."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from servers.postgres import PostgresServer
from servers.postgres_proxy import PostgresProxy

PATIENCE = 60.0  # seconds
AGENTS = 5
CONFIG = """\
state: {state}
host: {host}
server: {{listen: "127.0.0.1:0"}}
limits: {{min_interval: 0s}}
agents:
{agents}
"""
AGENT = (
    '  a{number}: {{runner: {{kind: command, argv: [sh, -c, "echo {host} >>{marks}; echo HEARTBEAT_OK"]}},'
    ' heartbeat: {{interval: 1s, stagger: 0s, checklist: "- look\\n", deliver: log}}}}'
)


class Host:
    """A scheduler in a folder of its own. With a proxy it can be cut off from the server."""

    def __init__(self, folder: Path, state: str, proxy: PostgresProxy | None = None) -> None:
        folder.mkdir()
        self.folder, self.proxy = folder, proxy
        self.marks = folder / "marks"
        agents = "\n".join(AGENT.format(number=number, host=folder.name, marks=self.marks) for number in range(AGENTS))
        (folder / "config.yaml").write_text(CONFIG.format(state=state, host=folder.name, agents=agents), "utf-8")
        self.start()

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "scheduler", "run"], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
            )  # fmt: skip

    def count_beats(self) -> int:
        return self.marks.stat().st_size if self.marks.exists() else 0

    def fail(self, how: str) -> None:
        """Stop, kill, freeze or cut it off."""
        if how == "cut off":
            assert self.proxy is not None
            self.proxy.cut_off()
            return
        self.process.send_signal({"stopped": signal.SIGTERM, "killed": signal.SIGKILL, "frozen": signal.SIGSTOP}[how])

    def recover(self, how: str) -> None:
        """Let it run again."""
        if how == "cut off":
            assert self.proxy is not None
            self.proxy.listen()
        elif how == "frozen":
            self.process.send_signal(signal.SIGCONT)
        else:
            self.process.wait(timeout=PATIENCE)
            self.start()

    def close(self) -> None:
        self.process.kill()
        self.process.wait(timeout=PATIENCE)


def wait_until(is_true: Callable[[], bool]) -> None:
    """Wait for it, looking often."""
    deadline = time.monotonic() + PATIENCE
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def measure_restart(host: Host) -> float:
    """Seconds from a kill to the next beat, if the daemon is started again at once."""
    begun = time.monotonic()
    host.fail("killed")
    time.sleep(0.3)  # a program that it has started may still write its line
    before = host.count_beats()
    host.recover("killed")
    wait_until(lambda: host.count_beats() > before)
    return time.monotonic() - begun


def measure_takeover(leader: Host, other: Host, how: str) -> float:
    """Seconds from the failure of the leader to the first beat on the other host."""
    before, begun = other.count_beats(), time.monotonic()
    leader.fail(how)
    wait_until(lambda: other.count_beats() > before)
    seconds = time.monotonic() - begun
    leader.recover(how)
    time.sleep(5.0)
    return seconds


def report(what: str, seconds: list[float]) -> None:
    """One line of figures."""
    print(f"{what}: {statistics.median(seconds):.1f} s (median), {max(seconds):.1f} s (longest) of {len(seconds)}", flush=True)


def measure(rounds: int) -> None:
    """Print the figures of each kind of failure."""
    with ExitStack() as closing, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        alone = Host(folder / "alone", "state/heartbeatd.db")
        closing.callback(alone.close)
        wait_until(lambda: alone.count_beats() > 0)
        report("one machine, killed and started again at once", [measure_restart(alone) for _ in range(rounds)])
        alone.close()
        server = PostgresServer(fsync="on").start()
        closing.callback(server.close)
        dsn, hosts = server.database(), []
        for each in ("one", "two"):
            proxy = closing.enter_context(PostgresProxy(dsn))
            hosts.append(Host(folder / each, proxy.dsn, proxy))
            closing.callback(hosts[-1].close)
        leader, other = hosts
        wait_until(lambda: leader.count_beats() + other.count_beats() > 0)
        time.sleep(5.0)
        if other.count_beats():
            leader, other = other, leader
        for how in ("stopped", "killed", "frozen", "cut off"):
            found = []
            for _ in range(rounds):
                found.append(measure_takeover(leader, other, how))
                leader, other = other, leader
            report(f"two machines, the leader is {how}", found)


if __name__ == "__main__":
    measure(int(sys.argv[1]) if len(sys.argv) > 1 else 5)

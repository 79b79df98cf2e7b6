"""A scheduler and workers as processes, each command with the same config, over a real PostgreSQL."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from daemon_process import run_command
from patience import PATIENCE
from warm_start import Heartbeatd

CONFIG = """\
state: {state}
server: {{listen: "127.0.0.1:0"}}
{executor}
agents:
  ops:
    runner: {{kind: command, argv: [sh, -c, "{script}"]}}
    heartbeat: {{interval: 1h, stagger: 0s, checklist: "- look\\n", deliver: log}}
"""


def config_of(script: str, *, state: str = "state/h.db", lease: str | None = "10s") -> str:
    """The config of an agent that calls this script. It runs on workers if they have a lease."""
    executor = "" if lease is None else f'executor: {{kind: procrastinate, dsn: "${{DSN}}", lease: {lease}}}'
    return CONFIG.format(state=state, executor=executor, script=script)


def waiting_script(folder: Path) -> str:
    """A script that adds a line to the file `marks`, and ends when there is a file `gate`."""
    return f"echo $HEARTBEATD_AGENT >>'{folder}/marks'; while [ ! -e '{folder}/gate' ]; do sleep 0.05; done; echo HEARTBEAT_OK"


class Cluster:
    """The processes of one cluster. The scheduler's folder is `folder`, and each worker shares it or gets one of its own."""

    def __init__(
        self, folder: Path, yaml: str, dsn: str, *, shows_logs: bool = True, environ: Mapping[str, str] | None = None
    ) -> None:
        """`environ` has further variables for each process."""
        self.folder = folder
        self.dsn = dsn
        self._environ = environ or {}
        self._shows_logs = shows_logs  # pytest prints them if a test fails
        self.processes: list[Heartbeatd] = []
        (folder / "config.yaml").write_text(yaml, "utf-8")

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        for log in sorted(self.folder.rglob("*.log")) if self._shows_logs else ():
            sys.stdout.write(f"{log.name}:\n{log.read_text('utf-8', 'replace')}\n")
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait(timeout=PATIENCE)

    def start(self, *arguments: str, folder: Path | None = None, dsn: str | None = None) -> Heartbeatd:
        """Start a command that keeps running: `run` or `worker`."""
        place = folder or self.folder
        if place != self.folder:
            place.mkdir(exist_ok=True)
            (place / "config.yaml").write_bytes((self.folder / "config.yaml").read_bytes())
        with (place / f"{arguments[0]}.log").open("ab") as log:
            process = Heartbeatd(*arguments, cwd=place, env={**os.environ, **self._environment(dsn)}, stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def call(self, *arguments: str) -> str:
        """The output of a command that ends by itself."""
        return run_command(self.folder / "config.yaml", *arguments, cwd=self.folder, environ=self._environment()).stdout

    def outcomes(self) -> list[str]:
        """The outcome of each closed run, oldest first, with its reason if there is one."""
        path = self.folder / "state" / "h.db"
        if not path.exists():  # it is on the server, or not there yet
            rows = self.query("select concat(outcome, ' ', reason) from heartbeatd.run where state = 'closed' order by id")
            return [line.strip() for line in rows.splitlines()]
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
            rows = db.execute("select outcome, coalesce(reason, '') from run where state = 'closed' order by id").fetchall()
        return [" ".join(row).strip() for row in rows]

    def query(self, statement: str) -> str:
        """The output of psql for one statement."""
        done = subprocess.run(
            ["psql", "-XAtq", self.dsn, f"-c{statement}"], capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        return done.stdout.strip()

    def _environment(self, dsn: str | None = None) -> dict[str, str]:
        return {**self._environ, "DSN": dsn or self.dsn}

"""Real daemon processes: starts `heartbeatd run` in a folder, waits for its log lines, and runs commands beside it."""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from checkout import HOME
from patience import PATIENCE
from warm_start import Heartbeatd, run_heartbeatd

from scheduler.cli.main import main

AGENT = """\
state: state/h.db
server: {{listen: "127.0.0.1:0"}}
agents:
  ops:
    runner: {{kind: command, argv: [sh, -c, "{script}"]}}
    heartbeat: {{interval: {interval}, stagger: 0s, checklist: "- look\\n", deliver: log}}
"""
JOB = "cron:\n  tick: {{every: 1s, command: {command}}}\n"

GATEWAY = """\
state: state/h.db
server: {{listen: "127.0.0.1:0"}}
agents:
  ops:
    runner: {{kind: http, url: "{url}"}}
    heartbeat: {{interval: 1h, stagger: 0s, checklist: "- look\\n", deliver: log}}
"""


def config(script: str = "cat >/dev/null; echo HEARTBEAT_OK", interval: str = "1h", job: str | None = None) -> str:
    return AGENT.format(script=script, interval=interval) + (JOB.format(command=job) if job else "")


def run_command(
    config: Path, *arguments: str, cwd: Path = HOME, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A command that ends by itself. It runs in this process.

    Only a daemon (`run`) gets a process, because it sets signal handlers and writes a log. `environ`: further variables.
    """
    given = ["-c", str(config), *arguments]
    if arguments[0] == "run":
        return run_heartbeatd(*given, cwd=cwd, env={**os.environ, **(environ or {})})
    before = os.environ.copy()
    os.environ.update(environ or {})
    try:
        with chdir(cwd), redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
            code = main(given)
    finally:
        os.environ.clear()
        os.environ.update(before)
    return subprocess.CompletedProcess(given, code, out.getvalue(), err.getvalue())


class Daemon:
    """A `heartbeatd run` in a folder of its own."""

    environ: Mapping[str, str] | None = None  # all variables, if they are not those of the tests
    options: tuple[str, ...] = ()
    sign_of_start = r"\bstarted\b"  # in the log

    def __init__(self, folder: Path, yaml: str) -> None:
        self.folder = folder
        self.config = folder / "config.yaml"
        self.log: list[str] = []
        self.config.write_text(yaml, "utf-8")
        self.start()

    def start(self) -> None:
        self.process = Heartbeatd(
            "-c", self.config, "run", *self.options, cwd=self.folder, env=self.environ, stderr=subprocess.PIPE
        )
        assert self.process.stderr is not None
        os.set_blocking(self.process.stderr.fileno(), False)
        self.expect(self.sign_of_start)

    def expect(self, pattern: str) -> str:
        """The next log line that matches the pattern."""
        assert self.process.stderr is not None
        deadline = time.monotonic() + PATIENCE
        rest = b""
        with selectors.DefaultSelector() as ready:
            ready.register(self.process.stderr, selectors.EVENT_READ)
            while time.monotonic() < deadline:
                if not ready.select(deadline - time.monotonic()):
                    break
                chunk = os.read(self.process.stderr.fileno(), 65536)
                if not chunk:
                    break
                *lines, rest = (rest + chunk).split(b"\n")
                self.log += [line.decode() for line in lines]
                found = [line.decode() for line in lines if re.search(pattern, line.decode())]
                if found:
                    return found[0]
        raise AssertionError(f"no line with {pattern!r} in:\n" + "\n".join(self.log[-30:]))

    def wait_until(self, question: Callable[[], Any]) -> Any:
        """The first result that is true."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            answer = question()
            if answer:
                return answer
            time.sleep(0.05)  # the state is in another process, and each question may cost 10 ms of CPU
        raise AssertionError("\n".join(self.log[-30:]))

    def run_command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_command(self.config, *arguments, cwd=self.folder, environ=self.environ)

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run_command(*arguments, "--format", "json").stdout)

    def runs(self, *arguments: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.json("runs", "--limit", "10000", *arguments)
        return found

    def metrics(self) -> str:
        return self._get("metrics")[1]

    def readiness(self) -> tuple[int, str]:
        """The status of /readyz, and its answer."""
        return self._get("readyz")

    def _get(self, path: str) -> tuple[int, str]:
        url = json.loads((self.folder / "state" / "daemon.json").read_text())["url"]
        try:
            with urlopen(f"{url}/{path}", timeout=PATIENCE) as page:
                return page.status, page.read().decode()
        except HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def kill(self) -> None:
        self.process.kill()
        self._wait()

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self._wait()

    def _wait(self) -> int:
        code = self.process.wait(PATIENCE)
        assert self.process.stderr is not None
        os.set_blocking(self.process.stderr.fileno(), True)
        self.log += self.process.stderr.read().decode().splitlines()
        self.process.stderr.close()
        return code


Begin = Callable[[str], Daemon]


@contextmanager
def daemons_in(folder: Path) -> Iterator[Begin]:
    """A function that starts a daemon in the folder with a config. At the end of the context, those that still run are killed."""
    started: list[Daemon] = []

    def start(yaml: str) -> Daemon:
        started.append(Daemon(folder, yaml))
        return started[-1]

    yield start
    for daemon in started:
        if daemon.process.poll() is None:
            daemon.kill()

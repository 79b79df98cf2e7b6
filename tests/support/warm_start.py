"""Starts `heartbeatd` as a process that has the modules of the daemon already, which saves most of the CPU time of a start.

One server process for all tests of a worker has imported them. For each start it forks a process that becomes the command, and one
that waits for the command. Tests of the imports themselves, of memory and of limits start `python -m scheduler` instead.
"""

from __future__ import annotations

import gc
import json
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NoReturn, Self

from checkout import HOME
from patience import PATIENCE

MODULES = (
    "scheduler.cli.run",
    "scheduler.extras.cluster.worker",
    "scheduler.extras.cluster.postgresql",
    "scheduler.extras.cluster.executors",
)
LARGEST_START = 1 << 17  # bytes

# What a shell script executes as `heartbeatd ARGUMENTS`. The script has inherited the socket of `open_for_scripts`.
_CALL = """
import json, os, socket, sys
status, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
start = {"arguments": sys.argv[2:], "cwd": os.getcwd(), "env": dict(os.environ)}
socket.send_fds(socket.socket(fileno=int(sys.argv[1])), [json.dumps(start).encode()], [0, 1, 2, theirs.fileno()])
theirs.close()
status.recv(64)
code = os.waitstatus_to_exitcode(int(status.recv(64)))
sys.exit(code if code >= 0 else 128 - code)
"""
FOR_SCRIPTS = f'exec {shlex.quote(sys.executable)} -I -S -c {shlex.quote(_CALL)} "$WARM_START" "$@"'


class Heartbeatd:
    """A process `heartbeatd ARGUMENTS`. Its methods are those of `subprocess.Popen`, and its input is empty."""

    def __init__(
        self,
        *arguments: object,
        cwd: Path = HOME,
        env: Mapping[str, str] | None = None,
        stdout: int | IO[Any] = subprocess.DEVNULL,
        stderr: int | IO[Any] = subprocess.DEVNULL,
        text: bool = False,
    ) -> None:
        """`stdout` and `stderr` are files or their descriptors, or DEVNULL or PIPE. The proxies are always those of the tests."""
        start = {"arguments": list(map(str, arguments)), "cwd": str(cwd), "env": dict(os.environ if env is None else env)}
        nothing = os.open(os.devnull, os.O_RDWR)
        opened = [nothing]
        self.stdout, of_stdout = _open_output(stdout, nothing, opened, text)
        self.stderr, of_stderr = _open_output(stderr, nothing, opened, text)
        self._status, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(_server(), [json.dumps(start).encode()], [nothing, of_stdout, of_stderr, theirs.fileno()])
        for each in opened:
            os.close(each)
        self.returncode: int | None = None
        self.pid = int(self._status.recv(64))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait(PATIENCE)

    def poll(self) -> int | None:
        """The exit code, or None while the process runs."""
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self.wait(PATIENCE)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Wait for the end of the process. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("heartbeatd", timeout)
            self.returncode = os.waitstatus_to_exitcode(int(self._status.recv(64)))
            self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process."""
        self.send_signal(signal.SIGKILL)


def run_heartbeatd(
    *arguments: object, cwd: Path = HOME, env: Mapping[str, str] | None = None, timeout: float = PATIENCE
) -> subprocess.CompletedProcess[str]:
    """A command that ends by itself, in a process of its own."""
    with TemporaryFile() as out, TemporaryFile() as err:
        code = Heartbeatd(*arguments, cwd=cwd, env=env, stdout=out, stderr=err).wait(timeout)
        printed = [os.pread(each.fileno(), os.fstat(each.fileno()).st_size, 0).decode() for each in (out, err)]
    return subprocess.CompletedProcess(arguments, code, *printed)


def open_for_scripts() -> int:
    """The descriptor that a script must inherit, its number in `WARM_START`, to execute `FOR_SCRIPTS`."""
    return _server().fileno()


def _open_output(given: int | IO[Any], nothing: int, opened: list[int], text: bool) -> tuple[IO[Any] | None, int]:
    if given == subprocess.PIPE:
        reading, writing = os.pipe()
        opened.append(writing)
        return os.fdopen(reading, "r" if text else "rb"), writing
    number = given if isinstance(given, int) else given.fileno()
    return None, nothing if number == subprocess.DEVNULL else number


@cache
def _server() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        arguments = [sys.executable, __file__, str(theirs.fileno())]
        subprocess.Popen(
            arguments, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd="/",
            env={**os.environ, "PYTHONPATH": str(HOME)},
        ).returncode = 0  # it ends when this process has ended, and nobody waits for it  # fmt: skip
    return ours


def serve(requests: socket.socket) -> None:
    """Start a command for each request, until the tests end. Returns in each process that becomes a command."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes that wait for a command
    for module in MODULES:
        with suppress(ModuleNotFoundError):  # the extras may have been deleted
            import_module(module)
    gc.freeze()
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, LARGEST_START, 4)
        if not message:
            sys.exit()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if (command := os.fork()) != 0:
                _report_end(command, descriptors[3])
            requests.detach()
            return _become(**json.loads(message), streams=descriptors[:3])
        for each in descriptors:
            os.close(each)


def _report_end(command: int, status: int) -> NoReturn:
    """Send the pid and the status of the command. No other process gets this pid before the test knows the status."""
    os.dup2(status, 0)
    os.closerange(1, 256)
    os.write(0, str(command).encode())
    ended = os.waitid(os.P_PID, command, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    os.write(0, str(ended.si_status << 8 if ended.si_code == os.CLD_EXITED else ended.si_status).encode())
    os.read(0, 1)
    os._exit(0)


def _become(arguments: Sequence[str], cwd: str, env: Mapping[str, str], streams: Sequence[int]) -> None:
    for own, given in enumerate(streams):
        os.dup2(given, own)
    os.closerange(3, 256)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv[1:] = arguments
    sys.path[:1] = [cwd, *env.get("PYTHONPATH", "").split(":")]
    sys.modules.pop("sitecustomize", None)
    with suppress(ModuleNotFoundError):
        import_module("sitecustomize")


if __name__ == "__main__":
    from scheduler.__main__ import main

    serve(socket.socket(fileno=int(sys.argv[1])))
    sys.exit(main())

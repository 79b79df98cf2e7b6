"""The one place where a child process is started, and ended together with its group."""

from __future__ import annotations

import errno
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal

from heartbeat import waiting
from scheduler.descriptors import is_scarcity
from scheduler.secret import Secret
from scheduler.work.pipes import CHUNK, Kept, Leader, Pipes

Why = Literal["timeout", "cancelled", "shutdown"]

MARK = "HEARTBEATD_RUN"
INHERITED = ("PATH", "HOME", "LANG")
GRACE = 2.0  # seconds from TERM to KILL
FLOOD = 64 * 1024 * 1024  # bytes of output beyond which a child is ended for it
ERRORS_KEPT = 16 * 1024


@dataclass(frozen=True, slots=True)
class Ended:
    """How one child ended.

    `exit_code` is negative for a signal and None when nothing was started. `output` is the kept part of stdout, `size` how many
    bytes there were, `truncated` says that these are more, `errors` is the tail of stderr. `problem` says in one line why the
    child could not be started or was stopped for its own fault. `ended_by` names who ended it; None: it ended by itself.
    """

    exit_code: int | None
    output: bytes
    errors: bytes
    truncated: bool
    timed_out: bool
    problem: str | None
    ended_by: Why | None
    size: int = 0


class Children:
    """The children of one run. Each has HEARTBEATD_RUN=`mark` in its environment, by which an orphan is known."""

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self._lock = threading.Lock()
        self._living: set[_Child] = set()
        self._why: Why | None = None

    def start(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes,
        env: Mapping[str, object],
        cwd: Path,
        keep: int = CHUNK,
        keep_tail: bool = False,
        inherited: Sequence[int] = (),
        timeout: timedelta | None = None,
    ) -> Ended:
        """Start `argv` (no shell), feed it `stdin` and block until it has ended.

        What it leaves running in the background lives on, as under cron, without our end of its pipes. Kept are the first
        `keep` bytes of stdout, or the last ones with `keep_tail`. After `timeout` its group is ended as by `end`, it alone. A
        program that cannot be started is a `problem`, and an exception only where the system has no room for any. After `end`
        nothing is started any more. The descriptors in `inherited` stay open in it.
        """
        if self._why:
            return _never_started(problem=None, why=self._why)
        waiting.blocks()
        try:
            child = _Child(_popen(argv, environment(env, self.mark), cwd, inherited), Kept(keep, tail=keep_tail))
        except (OSError, ValueError) as error:
            if is_scarcity(error):
                raise
            return _never_started(problem=_why_not(error, argv[0], cwd), why=None)
        self._adopt(child)
        watch = _alarm(timeout, child) if timeout else None
        try:
            return child.attend(stdin)
        finally:
            self._release(child)
            if watch:
                watch.cancel()

    @property
    def has_ended(self) -> bool:
        """Whether the run was ended from outside."""
        return self._why is not None

    def end(self, why: Why) -> None:
        """End the group of every child, from any thread: TERM now, KILL after 2 s. The first reason given stays."""
        with self._lock:
            self._why = self._why or why
            living = list(self._living)
        for child in living:
            child.stop(why)

    def _adopt(self, child: _Child) -> None:
        with self._lock:
            self._living.add(child)
            why = self._why
        if why:
            child.stop(why)

    def _release(self, child: _Child) -> None:
        with self._lock:
            self._living.discard(child)


def environment(env: Mapping[str, object], mark: str) -> dict[str, str]:
    """All that a child sees: PATH, HOME and LANG of ours, then `env` with its secrets in plain text, then the mark."""
    ours = {name: os.environ[name] for name in INHERITED if name in os.environ}
    return ours | {name: _plain(value) for name, value in env.items()} | {MARK: mark}


def _alarm(timeout: timedelta, child: _Child) -> threading.Timer:
    """Ends a child after its own time, from outside the thread that attends it."""
    watch = threading.Timer(timeout.total_seconds(), child.stop, ("timeout",))
    watch.daemon = True
    watch.start()
    return watch


class _Child:
    """One started process: its pipes, and the end of its group.

    The group is signalled only while its number is surely ours: until the leader is reaped, and from then on while a member
    of it is found alive, since the kernel gives the number to nobody else as long as there is one.
    """

    def __init__(self, process: subprocess.Popen[bytes], output: Kept) -> None:
        self._process = process
        self._output = output
        self._errors = Kept(ERRORS_KEPT, tail=True)
        self._lock = threading.Lock()
        self._kill_at: float | None = None
        self._why: Why | None = None
        self._over = False
        self._flooded = False

    def stop(self, why: Why | None) -> None:
        """TERM now and KILL after the grace, in a thread of its own: the one that attends the child may be blocked."""
        with self._lock:
            if self._over or self._kill_at is not None:
                return
            self._why = why
            self._kill_at = time.monotonic() + GRACE
            _signal_group(self._process.pid, signal.SIGTERM)
        killer = threading.Timer(GRACE, self._kill)
        killer.daemon = True
        killer.start()

    def attend(self, stdin: bytes) -> Ended:
        """Feed and drain until the leader has ended, and until the whole group has if it is being ended."""
        with self._process as process, selectors.DefaultSelector() as ready:
            assert process.stdin and process.stdout and process.stderr
            sources = {process.stdout.fileno(): self._output, process.stderr.fileno(): self._errors}
            pipes = Pipes(process.stdin, stdin, sources, ready)
            leader = Leader(process.pid, lambda: process.poll() is not None, ready)
            while not self._is_over(leader):
                for key, _ in ready.select(leader.patience()):
                    key.data()
                self._check_flood()
            pipes.empty()
            leader.close()
        return self._ended()

    def _is_over(self, leader: Leader) -> bool:
        if not leader.is_gone():
            return False
        with self._lock:
            if self._kill_at is None:
                self._over = True
                return True
            self._process.wait()
            if not _signal_group(self._process.pid, 0):
                self._over = True
            elif time.monotonic() >= self._kill_at:
                _signal_group(self._process.pid, signal.SIGKILL)
                self._over = True
            return self._over

    def _kill(self) -> None:
        with self._lock:
            if not self._over:
                _signal_group(self._process.pid, signal.SIGKILL)

    def _check_flood(self) -> None:
        if not self._flooded and max(self._output.total, self._errors.total) > FLOOD:
            self._flooded = True
            self.stop(None)

    def _ended(self) -> Ended:
        return Ended(
            exit_code=self._process.returncode,
            output=bytes(self._output),
            errors=bytes(self._errors),
            truncated=self._output.truncated or self._flooded,
            timed_out=self._why == "timeout",
            problem=f"wrote more than {FLOOD // 1024 // 1024} MiB and was ended for it" if self._flooded else None,
            ended_by=self._why,
            size=self._output.total,
        )


def _popen(argv: Sequence[str], env: Mapping[str, str], cwd: Path, inherited: Sequence[int]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - argv comes from the config alone and no shell sees it
        list(argv),
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        close_fds=True,
        pass_fds=inherited,
        cwd=cwd,
        env=env,
        start_new_session=True,
    )


def _signal_group(group: int, number: int) -> bool:
    """Signal a process group (0 only asks); False when nobody is left in it."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:  # there is somebody, but he changed his user
        return True
    return True


def _plain(value: object) -> str:
    return value.reveal() if isinstance(value, Secret) else str(value)


def _never_started(problem: str | None, why: Why | None) -> Ended:
    return Ended(None, b"", b"", truncated=False, timed_out=why == "timeout", problem=problem, ended_by=why)


def _why_not(error: OSError | ValueError, program: str, cwd: Path) -> str:
    """One line on why nothing was started, from what exec and chdir say."""
    if not isinstance(error, OSError):
        return f"cannot start {program!r}: {error}"
    if error.filename is not None and Path(error.filename) == cwd:
        return f"cannot enter the working folder {str(cwd)!r}: {error.strerror}"
    if isinstance(error, FileNotFoundError) and "/" in program and (cwd / program).exists():
        return f"cannot start {program!r}: the interpreter named in its first line does not exist"
    if isinstance(error, FileNotFoundError):
        return f"no such program: {program!r}"
    if isinstance(error, PermissionError):
        return f"may not run {program!r}: it is not executable (chmod +x)"
    if error.errno == errno.ENOEXEC:
        return f"cannot start {program!r}: it is neither a binary nor does it begin with '#!'"
    return f"cannot start {program!r}: {error.strerror}"

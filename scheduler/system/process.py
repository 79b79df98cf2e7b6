"""Starts programs, feeds them, keeps their output, and ends them together with their process groups.

The event loop watches the pipes and the pidfd of each program, so that 300 programs need no thread of their own. The subprocess
functions of asyncio need one thread per program on Python 3.11, and the meaning of their `Process.wait()` has changed since.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal, TypeAlias, TypeVar

from heartbeat.runners import ProcessResult, StartProcess
from heartbeat.runners.call_errors import CallError
from heartbeat.runners.redaction import reveal_secret
from heartbeat.threads import finish_despite_cancellation
from heartbeatd.state_folder import RUN_ID_VARIABLE
from scheduler.system.file_limits import is_scarcity
from scheduler.system.orphans import KILL_AFTER, POLL_INTERVAL, WORKER_VARIABLE, signal_group

EndReason = Literal["timeout", "cancelled", "shutdown"]

INHERITED_VARIABLES = ("PATH", "HOME", "LANG")
MAX_OUTPUT = 64 * 1024 * 1024  # bytes; a program with more output is ended
STDERR_KEPT = 16 * 1024
PIPE_MAX = 1024 * 1024  # the most that a pipe holds (fs.pipe-max-size): one read of this size empties it
READ_SIZE = 64 * 1024
EXIT_TIME = 1.0  # seconds that a program has to end by itself after its standard input was closed
MAX_LINE = 1024 * 1024  # bytes of a line of a program that is spoken to
MAX_LINES_TOTAL = 16 * 1024 * 1024  # bytes of all its lines
ENDED = "the run was ended"
SHORTEST_ALARM = 0.1  # seconds; a run that waits for a person is looked at again after so long
MAX_SPAWN_THREADS = 4  # starting a program blocks until it has been loaded; on a dead network folder that never happens


class StartPermit:
    """Decides when a run may start programs and send requests. This one always allows it."""

    def allows_start(self) -> bool:
        """Whether it may at this moment. From any thread."""
        return True

    async def wait_until_allowed(self) -> None:
        """Wait until it may. Raises CallError if it never will."""


class Children:
    """The programs of one run. Each has HEARTBEATD_RUN=`mark` in its environment, by which orphans are found.

    On a worker, each also has HEARTBEATD_WORKER=`worker`, because another worker may repeat the run with the same mark. It must
    be used in the thread of one event loop.
    """

    def __init__(self, mark: str, worker: str | None = None) -> None:
        self.mark = mark
        self._worker = worker
        self._running: set[_ChildProcess] = set()
        self._end_reason: EndReason | None = None
        self.permit = StartPermit()
        self.waited: Callable[[], float] = lambda: 0.0  # seconds for which the run has waited for people, which no timeout counts

    async def start(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes,
        env: Mapping[str, object],
        cwd: Path,
        keep: int = READ_SIZE,
        keep_tail: bool = False,
        inherited: Sequence[int] = (),
        timeout: timedelta | None = None,
    ) -> ProcessResult:
        """Start `argv` (no shell), feed it `stdin` and wait until it has ended, even if the waiting task is cancelled.

        The first `keep` bytes of its output are kept, or the last ones with `keep_tail`. The descriptors in `inherited` stay
        open in it. After `timeout` its process group is ended, as `end_all` does it. Programs that it leaves in the background
        continue, as under cron, but their output is no longer read.

        A program that cannot be started gives a result with a `problem`. OSError only if the system has no descriptor, memory
        or process left. After `end_all` nothing is started.
        """
        try:
            process = await self._spawn(argv, env, cwd, inherited)
        except NotStarted as error:
            return ProcessResult(None, problem=None if error.ended_by else str(error), ended_by=error.ended_by)
        except CallError as error:  # of `permit`
            return ProcessResult(None, problem=str(error))
        child = self._watch(_ChildProcess(process, stdin, BoundedOutput(keep, tail=keep_tail)))
        alarm = asyncio.create_task(self._stop_after(timeout.total_seconds(), child)) if timeout else None
        try:
            return await finish_despite_cancellation(child.ended)
        finally:
            self._running.discard(child)
            if alarm:
                alarm.cancel()

    async def _stop_after(self, seconds: float, child: _ChildProcess) -> None:
        while seconds > 0:
            before = self.waited()
            await asyncio.sleep(max(seconds, SHORTEST_ALARM))
            seconds = self.waited() - before
        child.stop("timeout")

    @asynccontextmanager
    async def converse(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, object],
        cwd: Path,
        inherited: Sequence[int] = (),
    ) -> AsyncIterator[Conversation]:
        """Start `argv` (no shell) and exchange lines with it, for the duration of the context.

        At the end its standard input is closed. If it is still running EXIT_TIME later, its process group is ended. What it
        leaves in the background is ended too, because nothing exchanges lines with it any more. NotStarted if it cannot be
        started, CallError as in `permit`, OSError as in `start`.
        """
        child = self._watch(Conversation(await self._spawn(argv, env, cwd, inherited)))
        try:
            yield child
        finally:
            child.close_stdin()
            alarm = asyncio.get_running_loop().call_later(EXIT_TIME, child.stop, None)
            try:
                await finish_despite_cancellation(child.ended)
            finally:
                self._running.discard(child)
                alarm.cancel()

    async def _spawn(
        self,
        argv: Sequence[str],
        env: Mapping[str, object],
        cwd: Path,
        inherited: Sequence[int],
    ) -> subprocess.Popen[bytes]:
        """Start a program in another thread. Raises NotStarted, and CallError as in `permit`."""

        def open_process() -> _Spawned:
            # Asked here, because the program may have waited for this thread, and this process may have been frozen.
            if not self.permit.allows_start() or self._end_reason:
                return None
            return subprocess.Popen(  # noqa: S603 - argv comes from the config alone and no shell sees it
                list(argv),
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                close_fds=True,
                pass_fds=inherited,
                cwd=cwd,
                env=self._environment(env),
                start_new_session=True,
            )

        while not self._end_reason:
            await self.permit.wait_until_allowed()
            try:
                process = await finish_despite_cancellation(asyncio.wrap_future(_spawn_threads(open_process)))
            except (OSError, ValueError, RuntimeError) as error:
                if is_scarcity(error):
                    raise
                raise NotStarted(_start_error(error, argv[0], cwd, env)) from None
            if process is not None:
                return process
        raise NotStarted(ENDED, self._end_reason)

    def _watch(self, child: Child) -> Child:
        """End a program together with the run, also if the run has been ended meanwhile."""
        self._running.add(child)
        if self._end_reason:
            child.stop(self._end_reason)
        return child

    def _environment(self, env: Mapping[str, object]) -> dict[str, str]:
        """All variables of a program: our PATH, HOME and LANG, then `env` with its secrets in plain text, then the marks."""
        ours = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
        marks = {RUN_ID_VARIABLE: self.mark} | ({WORKER_VARIABLE: self._worker} if self._worker is not None else {})
        return ours | {name: reveal_secret(value) for name, value in env.items()} | marks

    @property
    def was_ended(self) -> bool:
        """Whether the run was ended from outside."""
        return self._end_reason is not None

    def end_all(self, why: EndReason) -> None:
        """End the process group of every program: TERM now, KILL after 2 s. The first reason is kept."""
        self._end_reason = self._end_reason or why
        for child in list(self._running):
            child.stop(why)


def add_variables(start: StartProcess, variables: Mapping[str, str]) -> StartProcess:
    """`start` with further variables for each program. A variable of the program's own `env` takes precedence."""

    async def start_with_variables(argv: Sequence[str], *, env: Mapping[str, object], **options: Any) -> ProcessResult:
        return await start(argv, env={**variables, **env}, **options)

    return start_with_variables


class BoundedOutput:
    """Keeps the first or the last `limit` bytes of a stream, and counts all of them. `end` has the last ones in both cases."""

    def __init__(self, limit: int, *, tail: bool) -> None:
        self._limit = limit
        self._tail = tail
        self._data = bytearray()
        self.end = bytearray()
        self.total = 0

    @property
    def truncated(self) -> bool:
        return self.total > self._limit

    def append_chunk(self, chunk: bytes) -> None:
        self.total += len(chunk)
        if not self._tail:
            self._data += chunk[: self._limit - len(self._data)]
        self.end += chunk
        if len(self.end) > self._limit:
            del self.end[: -self._limit]

    def __bytes__(self) -> bytes:
        return bytes(self.end if self._tail else self._data)

    def close(self) -> None:
        """The stream has ended."""


class LineOutput(BoundedOutput):
    """Splits a stream into lines as they arrive. A line of more than MAX_LINE bytes ends it, as does MAX_LINES_TOTAL in all."""

    def __init__(self) -> None:
        super().__init__(0, tail=False)
        self._reader = asyncio.StreamReader(limit=MAX_LINE)
        self._is_closed = False
        self.problem: str | None = None

    def append_chunk(self, chunk: bytes) -> None:
        self.total += len(chunk)
        if self._is_closed:
            return
        if self.total > MAX_LINES_TOTAL:
            self._give_up(f"wrote more than {MAX_LINES_TOTAL // 1024 // 1024} MiB")
        else:
            self._reader.feed_data(chunk)

    def _give_up(self, problem: str) -> None:
        self.problem = problem
        self.close()

    def close(self) -> None:
        self._is_closed = True
        self._reader.feed_eof()

    async def next_line(self) -> bytes | None:
        """The next line without its line break. None if there will be no more."""
        try:
            line = await self._reader.readline()
        except ValueError:
            self._give_up(f"wrote a line of more than {MAX_LINE // 1024} KiB")
            return None
        return line[:-1] if line.endswith(b"\n") else None


class NotStarted(Exception):
    """A program could not be started; the message says why. `ended_by`: the run was ended before."""

    def __init__(self, problem: str, ended_by: EndReason | None = None) -> None:
        super().__init__(problem)
        self.ended_by = ended_by


class _ChildProcess:
    """One started program, with its pipes and its process group. `ended` receives its result.

    The group is signalled only while its number certainly belongs to it: until its leader is reaped, and afterwards as long as
    a member of the group is running, since the kernel does not assign the number again as long as there is one.
    """

    def __init__(self, process: subprocess.Popen[bytes], stdin: bytes, output: BoundedOutput) -> None:
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[ProcessResult] = self._loop.create_future()
        self._process = process
        self._unsent = memoryview(stdin)
        self._output = output
        self._errors = BoundedOutput(STDERR_KEPT, tail=True)
        self._kill_timer: asyncio.TimerHandle | None = None
        self._killed = False
        self._end_reason: EndReason | None = None
        self._flooded = False
        assert process.stdin and process.stdout and process.stderr
        self._stdin = process.stdin
        self._sources = {process.stdout.fileno(): self._output, process.stderr.fileno(): self._errors}
        for fd in self._sources:
            os.set_blocking(fd, False)
            self._loop.add_reader(fd, self._read_pipe, fd)
        os.set_blocking(self._stdin.fileno(), False)
        self._loop.add_writer(self._stdin.fileno(), self._write_stdin)
        self._pidfd = _open_pidfd(process.pid)
        if self._pidfd is None:
            self._poll_leader()
        else:
            self._loop.add_reader(self._pidfd, self._on_leader_exit)

    def stop(self, why: EndReason | None) -> None:
        """Send TERM now and KILL later. Further calls change nothing."""
        if self.ended.done() or self._kill_timer is not None:
            return
        self._end_reason = why
        signal_group(self._process.pid, signal.SIGTERM)
        self._kill_timer = self._loop.call_later(KILL_AFTER, self._kill_group)

    def _kill_group(self) -> None:
        if not self.ended.done():
            self._killed = True
            signal_group(self._process.pid, signal.SIGKILL)

    def _poll_leader(self) -> None:
        """Check every 20 ms whether the leader has ended, if there is no pidfd."""
        if self._process.poll() is None:
            self._loop.call_later(POLL_INTERVAL, self._poll_leader)
        else:
            self._on_leader_exit()

    def _on_leader_exit(self) -> None:
        """The program itself has ended. If it is being stopped, wait for its whole group; otherwise collect its result now."""
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        if self._kill_timer is not None:
            self._process.wait()
            if signal_group(self._process.pid, 0) and not self._killed:
                self._loop.call_later(POLL_INTERVAL, self._on_leader_exit)
                return
            self._kill_timer.cancel()
        self._collect_result()

    def _collect_result(self) -> None:
        """Read what is left in the pipes, without waiting for other processes that hold them, and close our ends."""
        self._process.wait()
        for fd in list(self._sources):
            self._read_pipe(fd, PIPE_MAX)
        for fd, output in self._sources.items():
            self._loop.remove_reader(fd)
            output.close()
        self._close_stdin()
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe
            pipe.close()
        if self.ended.done():
            return
        result = ProcessResult(
            exit_code=self._process.returncode,
            output=bytes(self._output),
            errors=bytes(self._errors),
            truncated=self._output.truncated or self._flooded,
            end=bytes(self._output.end) if self._output.truncated else b"",
            problem=f"wrote more than {MAX_OUTPUT // 1024 // 1024} MiB and was ended" if self._flooded else None,
            ended_by=self._end_reason,
            size=self._output.total,
        )
        self.ended.set_result(result)

    def _write_stdin(self) -> None:
        try:
            sent = os.write(self._stdin.fileno(), self._unsent[:READ_SIZE])
        except BlockingIOError:
            return
        except OSError:  # it has closed its end
            sent = len(self._unsent)
        self._unsent = self._unsent[sent:]
        if not self._unsent:
            self._on_stdin_written()

    def _on_stdin_written(self) -> None:
        self._close_stdin()

    def _close_stdin(self) -> None:
        if not self._stdin.closed:
            self._loop.remove_writer(self._stdin.fileno())
            with suppress(OSError):
                self._stdin.close()

    def _read_pipe(self, fd: int, size: int = READ_SIZE) -> None:
        try:
            chunk = os.read(fd, size)
        except BlockingIOError:
            return
        if chunk:
            self._sources[fd].append_chunk(chunk)
            if not self._flooded and max(self._output.total, self._errors.total) > MAX_OUTPUT:
                self._flooded = True
                self.stop(None)
            return
        self._loop.remove_reader(fd)
        self._sources.pop(fd).close()


class Conversation(_ChildProcess):
    """A running program that is spoken to in lines.

    Its standard input stays open until `close_stdin`, and its whole group is ended with it.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._is_closing = False
        self._lines = LineOutput()
        super().__init__(process, b"", self._lines)

    def write_line(self, line: bytes) -> None:
        """Send a line as soon as the program reads it. If it has closed its standard input, nothing is sent."""
        if not self._stdin.closed:
            self._unsent = memoryview(bytes(self._unsent) + line + b"\n")
            self._loop.add_writer(self._stdin.fileno(), self._write_stdin)

    async def read_line(self) -> bytes | None:
        """The next line that it writes. None if it has ended, closed its output or wrote too much."""
        return await self._lines.next_line()

    def close_stdin(self) -> None:
        """Close its standard input once everything has been sent."""
        self._is_closing = True
        if not self._unsent:
            self._close_stdin()

    @property
    def problem(self) -> str | None:
        """Why no more of its output is read, if it wrote too much."""
        return self._lines.problem

    @property
    def error_text(self) -> str:
        """The end of its standard error."""
        return bytes(self._errors).decode(errors="replace").replace("\0", "")

    def _on_stdin_written(self) -> None:
        self._loop.remove_writer(self._stdin.fileno())
        if self._is_closing:
            self._close_stdin()

    def _on_leader_exit(self) -> None:
        self.stop(None)  # what is left of its group; the leader has not been reaped, so the number still belongs to it
        super()._on_leader_exit()


Child = TypeVar("Child", bound=_ChildProcess)
_Spawned: TypeAlias = subprocess.Popen[bytes] | None  # None: the run was ended before, or was not permitted


class _SpawnThreads:
    """A few daemon threads that start programs. If there are more programs than threads, they wait in a queue."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: SimpleQueue[tuple[Callable[[], _Spawned], Future[_Spawned]]] = SimpleQueue()
        self._threads = 0
        self._unstarted = 0

    def __call__(self, start: Callable[[], _Spawned]) -> Future[_Spawned]:
        """The future result of `start`. RuntimeError if there is no thread and none can be started."""
        started: Future[_Spawned] = Future()
        with self._lock:
            if self._unstarted >= self._threads and self._threads < MAX_SPAWN_THREADS:
                try:
                    threading.Thread(target=self._spawn_forever, name="heartbeatd-spawn", daemon=True).start()
                    self._threads += 1
                except RuntimeError:  # the machine has no thread left: the existing ones start it later
                    if not self._threads:
                        raise
            self._unstarted += 1
        self._requests.put((start, started))
        return started

    def _spawn_forever(self) -> None:
        while True:
            start, started = self._requests.get()
            try:
                started.set_result(start())
            except BaseException as error:  # noqa: BLE001 (it is raised in the task that waits for the child)
                started.set_exception(error)
            with self._lock:
                self._unstarted -= 1


_spawn_threads = _SpawnThreads()


def _start_error(error: OSError | ValueError | RuntimeError, program: str, cwd: Path, env: Mapping[str, object]) -> str:
    """One line that says why the program could not be started, by the error of exec or chdir."""
    if not isinstance(error, OSError):
        return f"cannot start {program!r}: {error}"
    if error.filename is not None and Path(error.filename) == cwd:
        return f"cannot enter the working folder {str(cwd)!r}: {error.strerror}"
    if isinstance(error, FileNotFoundError) and "/" in program and (cwd / program).exists():
        return f"cannot start {program!r}: the interpreter named in its first line does not exist"
    if isinstance(error, FileNotFoundError):
        return f"no such program: {program!r}; {_search_place(program, cwd, env)}"
    if isinstance(error, PermissionError):
        return f"may not run {program!r}: it is not executable (chmod +x); {_search_place(program, cwd, env)}"
    if error.errno == errno.ENOEXEC:
        return f"cannot start {program!r}: it is not a binary and has no '#!' line"
    return f"cannot start {program!r}: {error.strerror}"


def _search_place(program: str, cwd: Path, env: Mapping[str, object]) -> str:
    """Where the program was searched; a PATH that is a secret is not shown."""
    return f"looked in {cwd}" if "/" in program else f"PATH is {env.get('PATH', os.environ.get('PATH', os.defpath))}"


def _open_pidfd(pid: int) -> int | None:
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:  # an old kernel, or a sandbox without the call
        return None

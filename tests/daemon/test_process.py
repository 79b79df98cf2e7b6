"""Tests of started programs: their environment and input, the kept output, and the end of the whole process group."""

import asyncio
import gc
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from heartbeat.runners import Failure, ProcessResult
from heartbeat.runners.call_errors import CallError
from heartbeatd.secret import Secret
from scheduler.system import process
from scheduler.system.process import Children, EndReason, StartPermit

MIB = 1024 * 1024


def start(*argv: str, children: Children | None = None, **more: Any) -> ProcessResult:
    given: dict[str, Any] = {"stdin": b"", "env": {}, "cwd": Path("/")} | more
    return asyncio.run((children or Children("life/1")).start(argv, **given))


def python(code: str, **more: Any) -> ProcessResult:
    return start(sys.executable, "-c", code, **more)


class Pipe:
    """A FIFO by which a child tells us one line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "note"
        os.mkfifo(self.path)

    def read_word(self) -> str:
        fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            assert select.select([fd], [], [], 20)[0], "the child wrote nothing"
            return os.read(fd, 1000).decode().strip()
        finally:
            os.close(fd)


@pytest.fixture
def pipe(tmp_path: Path) -> Pipe:
    return Pipe(tmp_path)


class Background:
    """One start in a thread of its own, in the folder of its pipe, so that it can be ended while it runs."""

    def __init__(self, pipe: Pipe, *argv: str) -> None:
        self._children = Children("life/7")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        given: Any = {"stdin": b"", "env": {}, "cwd": pipe.folder}
        self._result = asyncio.run_coroutine_threadsafe(self._children.start(argv, **given), self._loop)

    def end(self, why: EndReason) -> None:
        self._loop.call_soon_threadsafe(self._children.end_all, why)

    def result(self) -> ProcessResult:
        return self._result.result(20)

    def close(self) -> None:
        self.end("cancelled")
        self._result.exception(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()


@pytest.fixture
def running() -> Iterator[list[Background]]:
    started: list[Background] = []
    yield started
    for one in started:
        one.close()


def wait_for_end(pid: int) -> None:
    """Until the process, which need not be our child, is gone."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([fd], [], [], 10)[0], f"{pid} still lives"
    finally:
        os.close(fd)


def test_a_program_has_its_output_and_its_errors_kept_apart() -> None:
    ended = start("sh", "-c", "cat; echo oops >&2; exit 3", stdin=b"hello")
    assert ended == ProcessResult(3, b"hello", b"oops\n", size=5)


def test_a_program_gets_only_path_home_lang_its_own_variables_and_its_mark() -> None:
    ended = start(sys.executable, "-I", "-c", "import os; print(sorted(os.environ))", env={"TEAM": "ops"})
    ours = {name for name in ("PATH", "HOME", "LANG") if name in os.environ}
    seen = set(eval(ended.output)) - {"LC_CTYPE"}  # LC_CTYPE: Python's own doing where LANG is C
    assert seen == ours | {"TEAM", "HEARTBEATD_RUN"}


def test_a_program_gets_secrets_in_plain_text_and_its_mark_cannot_be_replaced() -> None:
    ended = start("sh", "-c", 'echo "$KEY $HEARTBEATD_RUN"', env={"KEY": Secret("canary"), "HEARTBEATD_RUN": "forged"})
    assert ended.output == b"canary life/1\n"


def test_the_variables_of_a_program_replace_those_of_the_daemon() -> None:
    assert start("/bin/sh", "-c", "echo $HOME", env={"HOME": "/elsewhere"}).output == b"/elsewhere\n"


def test_arguments_are_never_seen_by_a_shell(tmp_path: Path) -> None:
    ended = start("echo", "$(touch x)", "; touch x", cwd=tmp_path)
    assert (ended.output, list(tmp_path.iterdir())) == (b"$(touch x) ; touch x\n", [])


def test_a_relative_program_is_found_in_its_working_folder(tmp_path: Path) -> None:
    script = tmp_path / "hello.sh"
    script.write_text("#!/bin/sh\npwd\n")
    script.chmod(0o700)
    assert start("./hello.sh", cwd=tmp_path).output.decode().strip() == str(tmp_path.resolve())


def test_a_program_inherits_no_descriptor() -> None:
    with Path("/dev/null").open("rb") as ours:
        os.set_inheritable(ours.fileno(), True)
        ended = python(f"import os\ntry: os.fstat({ours.fileno()}); print('open')\nexcept OSError: print('closed')")
    assert ended.output == b"closed\n"


def test_a_large_input_and_a_large_output_do_not_block_each_other() -> None:
    ended = start("cat", stdin=b"x" * 3 * MIB, keep=4 * MIB)
    assert (len(ended.output), ended.truncated) == (3 * MIB, False)


def test_a_program_that_does_not_read_its_input_can_succeed() -> None:
    ended = python("import os; os.close(0); print('fine')", stdin=b"x" * MIB)
    assert (ended.exit_code, ended.output, ended.problem) == (0, b"fine\n", None)


@pytest.mark.parametrize(("keep_tail", "kept"), [(False, b"12345"), (True, b"67890")])
def test_the_beginning_or_the_end_of_a_long_output_is_kept(keep_tail: bool, kept: bytes) -> None:
    ended = start("printf", "1234567890", keep=5, keep_tail=keep_tail)
    assert (ended.output, ended.truncated) == (kept, True)


def test_an_output_of_exactly_the_limit_is_not_truncated() -> None:
    ended = start("printf", "12345", keep=5)
    assert (ended.output, ended.truncated) == (b"12345", False)


def test_the_last_16_kib_of_standard_error_are_kept() -> None:
    ended = python("import sys; sys.stderr.write('x' * 50_000 + 'end')")
    assert len(ended.errors) == 16 * 1024
    assert ended.errors.endswith(b"xend")


def test_binary_output_is_kept_as_it_is() -> None:
    assert start("printf", r"\377\000\001").output == b"\xff\x00\x01"


def test_output_beyond_the_limit_is_read_and_discarded() -> None:
    ended = start("head", "-c", str(8 * MIB), "/dev/zero")
    assert (ended.exit_code, len(ended.output), ended.truncated, ended.problem) == (0, 65536, True, None)


def test_a_program_with_endless_output_is_ended() -> None:
    ended = start("yes")
    assert (ended.exit_code, ended.truncated, ended.ended_by) == (-signal.SIGTERM, True, None)
    assert ended.problem == "wrote more than 64 MiB and was ended"


def test_a_program_left_in_the_background_continues_and_is_not_waited_for(tmp_path: Path, pipe: Pipe) -> None:
    ended = start("sh", "-c", "sleep 300 & echo $!")  # it holds both pipes open
    survivor = int(ended.output)
    os.kill(survivor, 0)
    assert ended.exit_code == 0
    os.kill(survivor, signal.SIGKILL)


@pytest.mark.parametrize("why", ["timeout", "cancelled", "shutdown"])
def test_a_running_program_is_ended_from_another_thread(why: process.EndReason, pipe: Pipe, running: list[Background]) -> None:
    one = Background(pipe, "sh", "-c", "echo ready >note; exec sleep 300")
    running.append(one)
    pipe.read_word()
    one.end(why)
    ended = one.result()
    assert (ended.exit_code, ended.ended_by, ended.timed_out) == (-signal.SIGTERM, why, why == "timeout")


def test_the_output_of_an_ended_program_is_kept(pipe: Pipe, running: list[Background]) -> None:
    one = Background(pipe, "sh", "-c", "echo half; echo ready >note; exec sleep 300")
    running.append(one)
    pipe.read_word()
    one.end("timeout")
    assert one.result().output == b"half\n"


def test_a_program_that_ignores_term_is_killed_with_its_whole_group(pipe: Pipe, running: list[Background]) -> None:
    one = Background(pipe, "sh", "-c", "trap '' TERM; sleep 300 & echo $! >note; while :; do wait; done")
    running.append(one)
    grandchild = int(pipe.read_word())
    one.end("timeout")
    assert one.result().exit_code == -signal.SIGKILL
    wait_for_end(grandchild)


def test_a_grandchild_that_ignores_term_is_killed_even_if_the_leader_has_ended_and_the_pipes_are_closed(
    pipe: Pipe, running: list[Background]
) -> None:
    deaf = "(trap '' TERM; exec sh -c 'echo $$ >note; exec sleep 300') >/dev/null 2>&1 </dev/null & exec sleep 300"
    one = Background(pipe, "sh", "-c", deaf)
    running.append(one)
    grandchild = int(pipe.read_word())
    one.end("cancelled")
    assert one.result().exit_code == -signal.SIGTERM
    wait_for_end(grandchild)


def test_the_rest_of_the_group_gets_its_time_to_end_after_the_leader_has_ended(
    tmp_path: Path, pipe: Pipe, running: list[Background]
) -> None:
    tidy = "(trap 'sleep 0.3; touch tidied; exit' TERM; echo ready >note; while :; do sleep 0.01; done) & "
    one = Background(pipe, "sh", "-c", tidy + "exec sleep 300")
    running.append(one)
    pipe.read_word()
    one.end("shutdown")
    one.result()
    assert (tmp_path / "tidied").exists()


def test_without_a_free_descriptor_a_start_fails_and_works_again_later(
    no_open_files: Callable[[], AbstractContextManager[None]],
) -> None:
    async def scarce_then_not() -> ProcessResult:
        given: Any = {"stdin": b"", "env": {}, "cwd": Path("/")}
        with no_open_files(), pytest.raises(OSError, match="Too many open files"):
            await Children("life/1").start(["true"], **given)
        return await Children("life/1").start(["true"], **given)

    assert asyncio.run(scarce_then_not()).exit_code == 0


def test_after_end_all_nothing_is_started(tmp_path: Path) -> None:
    children = Children("life/1")
    children.end_all("shutdown")
    ended = start("touch", str(tmp_path / "started"), children=children)
    assert (ended.exit_code, ended.ended_by, list(tmp_path.iterdir())) == (None, "shutdown", [])


def test_the_first_reason_for_the_end_is_kept() -> None:
    children = Children("life/1")
    children.end_all("timeout")
    children.end_all("shutdown")
    ended = start("true", children=children)
    assert (ended.ended_by, ended.timed_out) == ("timeout", True)


def test_ending_twice_or_after_the_end_does_nothing() -> None:
    children = Children("life/1")
    assert start("true", children=children).exit_code == 0
    children.end_all("shutdown")
    children.end_all("shutdown")


class OnePermit(StartPermit):
    """Is not given when a program is to be started for the first time. Until it is waited for again, another daemon may lead."""

    def __init__(self) -> None:
        self.asked_in: list[str] = []
        self.waited = 0

    def allows_start(self) -> bool:
        self.asked_in.append(threading.current_thread().name)
        return self.waited > 1

    async def wait_until_allowed(self) -> None:
        self.waited += 1
        if self.waited > 2:
            raise CallError(Failure.TIMEOUT, "the time of the run was over")


def test_a_permit_is_asked_for_in_the_thread_that_starts_a_program_directly_before_the_start(tmp_path: Path) -> None:
    """It may have waited for the thread, and the daemon may have been frozen in the meantime."""

    async def start(permit: OnePermit) -> list[Path]:
        children = Children("x/1")
        children.permit = permit
        await children.start(["touch", "started"], stdin=b"", env={}, cwd=tmp_path)
        began = list(tmp_path.iterdir())
        refused = await children.start(["touch", "again"], stdin=b"", env={}, cwd=tmp_path)
        assert refused.problem == "the time of the run was over"
        with pytest.raises(CallError, match="was over"):
            await children.converse(["touch", "again"], env={}, cwd=tmp_path).__aenter__()
        return began

    permit = OnePermit()
    assert asyncio.run(start(permit)) == [tmp_path / "started"] == list(tmp_path.iterdir())
    assert len(permit.asked_in) == 2
    assert threading.current_thread().name not in permit.asked_in


class EndedWhileAsked(StartPermit):
    def __init__(self, children: Children) -> None:
        self._children = children

    def allows_start(self) -> bool:
        self._children.end_all("timeout")
        return True


def test_a_program_of_a_run_that_is_ended_while_it_waits_for_a_thread_is_not_started(tmp_path: Path) -> None:
    async def start() -> ProcessResult:
        children = Children("x/1")
        children.permit = EndedWhileAsked(children)
        return await children.start(["touch", "started"], stdin=b"", env={}, cwd=tmp_path)

    assert asyncio.run(start()).ended_by == "timeout"
    assert list(tmp_path.iterdir()) == []


def test_a_program_that_cannot_be_started_gives_a_problem_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("echo hi\n")
    (tmp_path / "bare").write_text("echo hi\n")
    (tmp_path / "bare").chmod(0o700)
    (tmp_path / "lost").write_text("#!/no/such/shell\n")
    (tmp_path / "lost").chmod(0o700)
    path = {"PATH": "/usr/bin:/bin"}
    problems = {
        name: start(name, cwd=tmp_path, env=path).problem for name in ("nonesuch", "./none", "./plain", "./bare", "./lost")
    }
    assert problems == {
        "nonesuch": "no such program: 'nonesuch'; PATH is /usr/bin:/bin",
        "./none": f"no such program: './none'; looked in {tmp_path}",
        "./plain": f"may not run './plain': it is not executable (chmod +x); looked in {tmp_path}",
        "./bare": "cannot start './bare': it is not a binary and has no '#!' line",
        "./lost": "cannot start './lost': the interpreter named in its first line does not exist",
    }


def test_a_missing_working_folder_gives_a_problem(tmp_path: Path) -> None:
    ended = start("true", cwd=tmp_path / "gone")
    assert ended.problem == f"cannot enter the working folder '{tmp_path}/gone': No such file or directory"


def test_an_argument_that_the_kernel_rejects_gives_a_problem_without_secrets() -> None:
    assert start("echo", "a\0b").problem == "cannot start 'echo': embedded null byte"
    assert start("echo", "x" * 10 * MIB).problem == "cannot start 'echo': Argument list too long"
    problem = start("true", env={"A": Secret("canary\0")}).problem
    assert problem == "cannot start 'true': embedded null byte"


def test_many_programs_leave_no_open_descriptor() -> None:
    start("true")
    gc.collect()  # earlier tests in this process may have left descriptors to the garbage collector
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        start("true", stdin=b"x")
        start("nonesuch")
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


@pytest.mark.extras
def test_only_the_process_module_starts_programs() -> None:
    """Two other modules fork, to watch over a program or a worker after their own process has ended."""
    assert files_that_contain("subprocess.", "os.system(", "os.popen(", "os.spawn") == {"scheduler/system/process.py"}
    assert files_that_contain("os.fork(") == {"scheduler/cli/busy.py", "scheduler/extras/cluster/worker_guard.py"}


def files_that_contain(*words: str) -> set[str]:
    root = Path(process.__file__).parents[2]
    return {
        str(file.relative_to(root))
        for package in ("scheduler", "heartbeat", "cron", "heartbeatd")
        for file in (root / package).rglob("*.py")
        if any(word in file.read_text() for word in words)
    }


def test_a_program_is_ended_after_its_own_timeout_and_the_next_one_starts() -> None:
    children = Children("life/1")
    ended = start("sleep", "60", children=children, timeout=timedelta(milliseconds=200))
    assert (ended.exit_code, ended.ended_by, ended.timed_out) == (-signal.SIGTERM, "timeout", True)
    assert start("true", children=children, timeout=timedelta(seconds=60)).exit_code == 0


def converse(work: Callable[[process.Conversation], Any], *argv: str, children: Children | None = None, **more: Any) -> Any:
    """Start a program that is spoken to in lines, and do this work with it."""

    async def run() -> Any:
        given: dict[str, Any] = {"env": {}, "cwd": Path("/")} | more
        async with (children or Children("life/1")).converse(argv, **given) as program:
            return await work(program)

    return asyncio.run(run())


async def reply_to(program: process.Conversation, line: bytes) -> bytes | None:
    program.write_line(line)
    return await program.read_line()


def test_a_program_is_spoken_to_in_lines() -> None:
    async def work(program: process.Conversation) -> list[bytes | None]:
        return [await reply_to(program, b"one"), await reply_to(program, b"two")]

    assert converse(work, "cat") == [b"one", b"two"]


def test_a_program_that_has_ended_writes_no_more_lines() -> None:
    async def work(program: process.Conversation) -> tuple[bytes | None, bytes | None, str]:
        return await program.read_line(), await reply_to(program, b"lost"), program.error_text

    assert converse(work, "sh", "-c", "echo first; echo broken >&2") == (b"first", None, "broken\n")


def test_a_line_that_is_too_long_ends_the_conversation() -> None:
    async def work(program: process.Conversation) -> tuple[bytes | None, str | None]:
        return await program.read_line(), program.problem

    assert converse(work, "head", "-c", "3000000", "/dev/zero") == (None, "wrote a line of more than 1024 KiB")


def test_too_many_lines_end_the_conversation() -> None:
    async def work(program: process.Conversation) -> str | None:
        while await program.read_line() is not None:
            continue
        return program.problem

    assert converse(work, "sh", "-c", "head -c 20000000 /dev/zero | tr '\\0' x | fold -w 1000000") == "wrote more than 16 MiB"


def test_a_program_that_is_spoken_to_has_the_mark_and_only_its_own_variables() -> None:
    async def work(program: process.Conversation) -> list[bytes]:
        lines = []
        while (line := await program.read_line()) is not None:
            lines.append(line)
        return lines

    lines = converse(work, "env", env={"TOKEN": Secret("s3cret")})
    assert {b"TOKEN=s3cret", b"HEARTBEATD_RUN=life/1"} <= set(lines)
    assert {line.partition(b"=")[0] for line in lines} <= {b"PATH", b"HOME", b"LANG", b"TOKEN", b"HEARTBEATD_RUN"}


def test_at_the_end_of_a_conversation_the_whole_group_is_ended() -> None:
    async def work(program: process.Conversation) -> int:
        return int(await program.read_line() or b"0")

    child = converse(work, "sh", "-c", "sleep 60 & echo $!; cat")
    assert not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text().split()[2]


def test_a_conversation_ends_with_its_run() -> None:
    children = Children("life/1")

    async def work(program: process.Conversation) -> bytes | None:
        children.end_all("cancelled")
        return await program.read_line()

    assert converse(work, "sleep", "60", children=children) is None
    with pytest.raises(process.NotStarted, match="the run was ended"):
        converse(work, "sleep", "60", children=children)


def test_a_program_that_cannot_be_started_says_why() -> None:
    async def work(program: process.Conversation) -> None:
        raise AssertionError("it was started")

    with pytest.raises(process.NotStarted, match="no such program: 'no-such-program'"):
        converse(work, "no-such-program")

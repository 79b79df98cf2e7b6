"""Tests the guards of workers: which programs they end, and that each worker that starts gets one."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from patience import PATIENCE, wait_until

from heartbeatd.state_folder import RUN_ID_VARIABLE
from scheduler.extras.cluster.worker_guard import HEADER, WorkerFile, end_programs_of_dead_workers
from scheduler.system.log import LOGGER_NAME
from scheduler.system.orphans import WORKER_VARIABLE

pytestmark = pytest.mark.process

KILLED = "1-killed"  # the ID of a worker that was killed together with its guard
LOOK_EVERY = 0.02


def has_ended(pid: int) -> bool:
    """Also true if nobody has waited for the process yet."""
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def environ_of(pid: int) -> bytes:
    """Empty until the program is loaded, which may be after Popen has returned, and when a guard has just ended it."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except ProcessLookupError:
        return b""


@contextmanager
def program_of(mark: str, process_id: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program that a run on this worker has started."""
    marks = {RUN_ID_VARIABLE: mark, WORKER_VARIABLE: process_id}
    program = subprocess.Popen(["sleep", "60"], env={**os.environ, **marks}, start_new_session=True)
    wait_until(lambda: program.poll() is not None or mark.encode() in environ_of(program.pid))
    try:
        yield program
    finally:
        program.kill()
        program.wait(PATIENCE)


def frozen_worker(folder: Path) -> WorkerFile:
    """A worker whose lease is over."""
    worker = WorkerFile(folder)
    worker.note_lease(time.monotonic() - 1)
    return worker


@contextmanager
def guarded(worker: WorkerFile, *marks: str, clock: Callable[[], float] = time.monotonic) -> Iterator[WorkerFile]:
    """The worker with these runs in progress, and with a guard. It stops in an orderly way at the end."""
    with ExitStack() as notes:
        for mark in marks:
            notes.enter_context(worker.note_run(mark))
        guard = worker.start_guard(clock, LOOK_EVERY)
        try:
            yield worker
        finally:
            worker.close()
            os.waitpid(guard, 0)


def test_the_guard_of_a_frozen_worker_ends_its_programs_but_not_those_of_the_repetition_by_another_worker(tmp_path: Path) -> None:
    """The other worker may use the same state folder or another one."""
    mark = f"repeated-{os.getpid()}/1"
    same_place, elsewhere = WorkerFile(tmp_path), WorkerFile(tmp_path / "elsewhere")
    with program_of(mark, same_place.process_id) as kept, program_of(mark, elsewhere.process_id) as kept_elsewhere:
        with guarded(frozen_worker(tmp_path), mark) as frozen:
            for _ in range(3):  # in several looks
                with program_of(mark, frozen.process_id) as ended:
                    wait_until(lambda: ended.poll() is not None)
        assert kept.poll() is None
        assert kept_elsewhere.poll() is None
    same_place.close()
    elsewhere.close()


def test_the_guard_ends_nothing_if_the_worker_has_another_lease_when_the_search_for_programs_is_over(tmp_path: Path) -> None:
    worker, mark, calls = WorkerFile(tmp_path), f"renewed-{os.getpid()}/1", 0
    worker.note_lease(10)

    def clock() -> float:
        """The lease is over at the first look, and there is another one after it."""
        nonlocal calls
        calls += 1
        if calls == 4:
            (tmp_path / "looks").touch()
        return 11 if calls == 1 else 9

    with program_of(mark, worker.process_id) as program, guarded(worker, mark, clock=clock):
        wait_until((tmp_path / "looks").exists)
        assert program.poll() is None


def test_a_program_that_was_being_started_when_its_worker_was_killed_is_ended(tmp_path: Path) -> None:
    mark = f"late-{os.getpid()}/1"
    started, starter = os.pipe()
    if (killed := os.fork()) == 0:
        worker = WorkerFile(tmp_path)
        with worker.note_run(mark):
            worker.start_guard(time.monotonic, LOOK_EVERY)
            variables = f"{RUN_ID_VARIABLE}={mark} {WORKER_VARIABLE}={worker.process_id}"
            late = subprocess.Popen(["sh", "-c", f"sleep 0.2; exec env {variables} sleep 60"], start_new_session=True)
            os.write(starter, str(late.pid).encode())
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(killed, 0)
    program = int(os.read(started, 20))
    wait_until(lambda: has_ended(program))
    os.close(started)
    os.close(starter)


def test_a_worker_that_starts_keeps_its_file_while_other_workers_look_for_dead_ones(tmp_path: Path) -> None:
    """The others look again and again, also between two steps of a start."""
    stop = os.fork()
    if stop == 0:
        try:
            while True:
                end_programs_of_dead_workers(tmp_path)
        finally:
            os._exit(0)
    try:
        for _ in range(200):
            worker = WorkerFile(tmp_path)
            assert worker.path.exists()
            worker.close()
    finally:
        os.kill(stop, signal.SIGKILL)
        os.waitpid(stop, 0)


def test_a_guard_that_cannot_watch_its_worker_logs_why(tmp_path: Path) -> None:
    worker = WorkerFile(tmp_path / "workers")
    worker.path.unlink()
    with closing(logging.FileHandler(tmp_path / "log")) as handler:
        logging.getLogger(LOGGER_NAME).addHandler(handler)
        with guarded(worker):
            logging.getLogger(LOGGER_NAME).removeHandler(handler)
    assert "guard_failed" in (tmp_path / "log").read_text("utf-8")


def leave_file(worker: WorkerFile) -> Path:
    """What another worker with the same runs leaves behind when it is killed: a file that nobody has locked."""
    left = worker.path.with_name(KILLED)
    left.write_bytes(worker.path.read_bytes())
    return left


def test_a_program_that_an_ended_run_has_left_in_the_background_survives_its_worker(tmp_path: Path) -> None:
    in_progress, ended = f"progress-{os.getpid()}/1", f"ended-{os.getpid()}/2"
    worker = WorkerFile(tmp_path / "workers")
    with program_of(in_progress, KILLED) as program, program_of(ended, KILLED) as background:
        with worker.note_run(in_progress):
            with worker.note_run(ended):
                pass
            leave_file(worker)
        worker.close()
        end_programs_of_dead_workers(tmp_path / "workers")
        assert program.wait(PATIENCE) != 0
        assert background.poll() is None
    assert list((tmp_path / "workers").iterdir()) == []


def test_a_run_that_another_worker_on_this_machine_repeats_continues(tmp_path: Path) -> None:
    mark = f"repeated-{os.getpid()}/1"
    living = WorkerFile(tmp_path / "workers")
    with program_of(mark, living.process_id) as repetition, program_of(mark, KILLED) as ended, living.note_run(mark):
        left = leave_file(living)
        end_programs_of_dead_workers(tmp_path / "workers")
        assert not left.exists()
        assert ended.wait(PATIENCE) != 0
        assert repetition.poll() is None
    living.close()


def test_the_guard_of_a_worker_that_is_never_idle_knows_its_last_run(tmp_path: Path) -> None:
    """Its file does not grow, and the place of a run that has ended is used again."""
    last = f"last-{os.getpid()}/1"
    worker = frozen_worker(tmp_path)
    with worker.note_run("first/1"):
        for number in range(1000):
            with worker.note_run(f"many/{number:020}"):
                pass
        with program_of(last, worker.process_id) as program, guarded(worker, last):
            wait_until(lambda: program.poll() is not None)
            assert worker.path.stat().st_size < 1000


def test_the_guard_knows_a_run_beside_a_place_that_could_not_be_written(tmp_path: Path) -> None:
    mark = f"current-{os.getpid()}/1"
    worker = frozen_worker(tmp_path)
    with worker.path.open("r+b") as file:
        file.seek(HEADER)
        file.write(f"\0\0+{mark}\n".encode())
    with program_of(mark, worker.process_id) as program, guarded(worker):
        wait_until(lambda: program.poll() is not None)

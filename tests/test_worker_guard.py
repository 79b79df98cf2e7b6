"""Tests the guards of workers: which programs they end, and that each worker that starts gets one."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from scheduler.system.log import LOGGER_NAME
from scheduler.system.process import RUN_ID_VARIABLE
from scheduler.system.worker_guard import END, HEADER, WorkerFile, end_programs_of_dead_workers

pytestmark = pytest.mark.process

PATIENCE = 60
LOOK_EVERY = 0.02


def wait_until(is_true: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def program_of(mark: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program that a run has started."""
    program = subprocess.Popen(["sleep", "60"], env={**os.environ, RUN_ID_VARIABLE: mark}, start_new_session=True)
    try:
        yield program
    finally:
        program.kill()
        program.wait(PATIENCE)


@contextmanager
def frozen_worker(folder: Path, *marks: str) -> Iterator[None]:
    """A worker with a guard and with these runs in progress. It is frozen, and its lease is over."""
    worker = WorkerFile(folder)
    notes = [worker.note_run(mark) for mark in marks]
    for note in notes:
        note.__enter__()
    guard = worker.start_guard(time.monotonic, LOOK_EVERY)
    worker.note_lease(time.monotonic() - 1)
    try:
        yield
    finally:
        worker.close()
        os.waitpid(guard, 0)


def test_the_guard_of_a_frozen_worker_ends_its_programs_but_not_those_of_the_repetition_by_another_worker(tmp_path: Path) -> None:
    other = WorkerFile(tmp_path)
    other.note_lease(time.monotonic() + PATIENCE)
    repeated, lost = f"repeated-{os.getpid()}/1", f"lost-{os.getpid()}/1"
    with other.note_run(repeated), program_of(repeated) as kept, program_of(lost) as ended:
        with frozen_worker(tmp_path, repeated, lost):
            wait_until(lambda: ended.poll() is not None)
            with program_of(lost) as another:
                wait_until(lambda: another.poll() is not None)
        assert kept.poll() is None
    other.close()


def test_the_programs_of_two_frozen_workers_with_the_same_run_are_ended(tmp_path: Path) -> None:
    mark = f"twice-{os.getpid()}/1"
    with program_of(mark) as program, frozen_worker(tmp_path, mark), frozen_worker(tmp_path, mark):
        wait_until(lambda: program.poll() is not None)


def test_a_worker_that_starts_keeps_its_file_while_other_workers_look_for_dead_ones(tmp_path: Path) -> None:
    """The others look again and again, also between two steps of a start."""
    stop = os.fork()
    if stop == 0:
        try:
            while True:
                end_programs_of_dead_workers(tmp_path, time.monotonic)
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
        os.waitpid(worker.start_guard(time.monotonic, LOOK_EVERY), 0)
        logging.getLogger(LOGGER_NAME).removeHandler(handler)
    assert "guard_failed" in (tmp_path / "log").read_text("utf-8")
    worker.close()


def leave_file(worker: WorkerFile) -> Path:
    """What another worker with the same runs leaves behind when it is killed: a file that nobody has locked."""
    left = worker.path.with_name("1-dead")
    left.write_bytes(worker.path.read_bytes())
    return left


def test_a_program_that_an_ended_run_has_left_in_the_background_survives_its_worker(tmp_path: Path) -> None:
    in_progress, ended = f"progress-{os.getpid()}/1", f"ended-{os.getpid()}/2"
    worker = WorkerFile(tmp_path / "workers")
    with program_of(in_progress) as program, program_of(ended) as background:
        with worker.note_run(in_progress):
            with worker.note_run(ended):
                pass
            leave_file(worker)
        worker.close()
        end_programs_of_dead_workers(tmp_path / "workers", time.monotonic)
        assert program.wait(PATIENCE) != 0
        assert background.poll() is None
    assert list((tmp_path / "workers").iterdir()) == []


def test_a_run_that_another_worker_on_this_machine_repeats_continues(tmp_path: Path) -> None:
    mark = f"repeated-{os.getpid()}/1"
    living = WorkerFile(tmp_path / "workers")
    living.note_lease(time.monotonic() + PATIENCE)
    with program_of(mark) as program, living.note_run(mark):
        left = leave_file(living)
        end_programs_of_dead_workers(tmp_path / "workers", time.monotonic)
        assert not left.exists()
        assert program.poll() is None
    living.close()


def test_the_guard_of_a_worker_that_is_never_idle_knows_its_last_run(tmp_path: Path) -> None:
    """The file is not emptied as long as any run is in progress."""
    last = f"last-{os.getpid()}/1"
    worker = WorkerFile(tmp_path)
    worker.note_lease(time.monotonic() - 1)
    with worker.note_run("first/1"):
        for number in range(40_000):
            with worker.note_run(f"many/{number:020}"):
                pass
        with worker.note_run(last), program_of(last) as program:
            guard = worker.start_guard(time.monotonic, LOOK_EVERY)
            wait_until(lambda: program.poll() is not None)
        assert worker.path.stat().st_size < 2 << 20
    worker.close()
    os.waitpid(guard, 0)


def test_the_guard_ignores_what_follows_the_marks_in_a_file_that_is_being_written_anew(tmp_path: Path) -> None:
    current, outdated = f"current-{os.getpid()}/1", f"outdated-{os.getpid()}/1"
    worker = WorkerFile(tmp_path)
    with program_of(current) as ended, program_of(outdated) as kept, worker.note_run("x" * 200):
        with worker.path.open("r+b") as file:
            file.seek(HEADER)
            file.write(f"+{current}\n{END}+{outdated}\n-{current}\n".encode())
        worker.note_lease(time.monotonic() - 1)
        guard = worker.start_guard(time.monotonic, LOOK_EVERY)
        wait_until(lambda: ended.poll() is not None)
        assert kept.poll() is None
    worker.close()
    os.waitpid(guard, 0)

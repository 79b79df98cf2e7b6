"""The desk: workers think one at a time, and nobody keeps the seat while he waits for somebody else."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from heartbeat import desk
from heartbeat.runners import Run
from heartbeat.runners.line import Names
from heartbeat.runners.python import ask
from heartbeat.runners.trouble import Trouble
from heartbeat.runners.wire import post
from heartbeat.spec import PythonRunner
from scheduler.work.process import Children


@pytest.fixture
def other() -> Iterator[ThreadPoolExecutor]:
    """A second worker's thread."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


def finds_a_seat(patience: float = 0) -> bool:
    with desk.sitting(patience) as seated:
        return seated


def finds_a_seat_later() -> bool:
    return finds_a_seat(patience=20)


def found_a_seat(*_: object) -> str:
    """A callable of the daemon's own process, as an agent."""
    return str(finds_a_seat())


def test_the_desk_has_one_seat(other: ThreadPoolExecutor) -> None:
    with desk.sitting() as seated:
        assert seated
        assert not other.submit(finds_a_seat).result()
    assert other.submit(finds_a_seat).result()


def test_who_finds_no_seat_waits_for_it(other: ThreadPoolExecutor) -> None:
    with desk.sitting():
        waiting = other.submit(finds_a_seat_later)
        desk.leave()
        assert waiting.result()


def test_who_works_without_a_seat_does_not_free_that_of_another(other: ThreadPoolExecutor) -> None:
    with desk.sitting():
        other.submit(finds_a_seat).result()
        other.submit(desk.leave).result()
        assert not other.submit(finds_a_seat).result()


def test_work_that_breaks_leaves_the_seat_free(other: ThreadPoolExecutor) -> None:
    with pytest.raises(KeyError), desk.sitting():
        raise KeyError
    assert other.submit(finds_a_seat).result()


def test_who_waits_for_a_name_does_not_sit_meanwhile() -> None:
    seen = []

    def resolver(*_: object, **__: object) -> list[tuple[Any, ...]]:
        seen.append(finds_a_seat())
        return []

    with desk.sitting(), pytest.raises(Trouble):
        post("http://nobody.example/", {}, b"{}", 5.0, names=Names(resolver))
    assert seen == [True]


def test_who_waits_for_an_answer_does_not_sit_meanwhile(other: ThreadPoolExecutor) -> None:
    def answers_from_the_desk(listener: socket.socket) -> bool:
        connection, _ = listener.accept()
        with connection, desk.sitting(patience=20) as seated:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        return seated

    with socket.create_server(("127.0.0.1", 0)) as listener, desk.sitting():
        answering = other.submit(answers_from_the_desk, listener)
        reply = post(f"http://127.0.0.1:{listener.getsockname()[1]}/", {}, b"{}", 10.0)
        assert (reply.body, answering.result()) == (b"ok", True)


def test_who_waits_for_a_child_does_not_sit_meanwhile(tmp_path: Path, other: ThreadPoolExecutor) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def told_by_who_sits() -> bool:
        with desk.sitting(patience=20) as seated:
            pipe.write_text("go on")
        return seated

    with desk.sitting():
        telling = other.submit(told_by_who_sits)
        ended = Children("life/1").start(["cat", str(pipe)], stdin=b"", env={}, cwd=tmp_path)
    assert (ended.output, telling.result()) == (b"go on", True)


def test_a_callable_in_our_own_process_does_not_sit_there(tmp_path: Path) -> None:
    run = Run("ops", "prompt", None, tmp_path, timedelta(seconds=5), {})
    with desk.sitting():
        answer = ask(run, PythonRunner(f"{__name__}:found_a_seat", in_process=True), Children("life/1").start)
    assert answer.text == "True"

"""The waiting room: one thread for all who wait, and each is called once."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from selectors import EVENT_READ
from typing import Any

import pytest
from threadless import no_thread_left

from heartbeat.waiting import Until
from scheduler.work.waitingroom import WaitingRoom

PATIENCE = 20.0
LONG = 3600.0
MORE_THAN_POLL_KNOWS = 60 * 86400.0  # it counts milliseconds in 31 bits, which is 24 days


class Room:
    """A waiting room and whom it has called."""

    def __init__(self) -> None:
        self.called: SimpleQueue[tuple[str, bool]] = SimpleQueue()
        self.room: WaitingRoom[str] = WaitingRoom(lambda guest, came: self.called.put((guest, came)), "test")

    def admit(self, guest: str, what: int | Future[Any], seconds: float) -> None:
        self.room.admit(guest, Until(what, EVENT_READ, time.monotonic() + seconds))

    def next(self) -> tuple[str, bool]:
        return self.called.get(timeout=PATIENCE)


@pytest.fixture
def room() -> Room:
    return Room()


@pytest.fixture
def pipes() -> Iterator[list[tuple[int, int]]]:
    pipes = [os.pipe() for _ in range(50)]
    yield pipes
    for pipe in pipes:
        os.close(pipe[0])
        os.close(pipe[1])


def test_each_is_called_when_what_it_waits_for_is_there(room: Room, pipes: list[tuple[int, int]]) -> None:
    before = threading.active_count()
    for number, (read, _) in enumerate(pipes):
        room.admit(str(number), read, LONG)
    assert threading.active_count() == before + 1
    for _, write in reversed(pipes):
        os.write(write, b"!")
    assert {room.next() for _ in pipes} == {(str(number), True) for number in range(len(pipes))}


def test_who_has_waited_long_enough_is_late(room: Room, pipes: list[tuple[int, int]]) -> None:
    room.admit("patient", pipes[0][0], LONG)
    room.admit("hasty", pipes[1][0], 0.01)  # the thread sleeps for an hour by now
    assert room.next() == ("hasty", False)
    os.write(pipes[0][1], b"!")
    assert room.next() == ("patient", True)


def test_a_future_is_waited_for_as_a_pipe_is(room: Room) -> None:
    soon: Future[None] = Future()
    over: Future[None] = Future()
    over.set_result(None)
    room.admit("soon", soon, LONG)
    room.admit("over", over, LONG)
    assert room.next() == ("over", True)
    soon.set_result(None)
    assert room.next() == ("soon", True)


def test_who_is_hurried_is_called_at_once_and_never_again(room: Room, pipes: list[tuple[int, int]]) -> None:
    room.admit("a", pipes[0][0], LONG)
    room.room.hurry("a")
    assert room.next() == ("a", False)
    os.write(pipes[0][1], b"!")
    room.room.hurry("a")
    room.room.hurry("nobody")
    room.admit("b", pipes[1][0], 0.01)
    assert room.next() == ("b", False)
    with pytest.raises(Empty):
        room.called.get_nowait()


def test_an_old_future_does_not_call_who_waits_for_something_else_by_now(room: Room, pipes: list[tuple[int, int]]) -> None:
    old: Future[None] = Future()
    room.admit("a", old, LONG)
    room.room.hurry("a")
    assert room.next() == ("a", False)
    room.admit("a", pipes[0][0], LONG)
    old.set_result(None)
    os.write(pipes[0][1], b"!")
    assert room.next() == ("a", True)
    with pytest.raises(Empty):
        room.called.get_nowait()


def test_the_same_pipe_can_be_waited_for_again(room: Room, pipes: list[tuple[int, int]]) -> None:
    os.write(pipes[0][1], b"!")
    for _ in range(3):
        room.admit("a", pipes[0][0], LONG)
        assert room.next() == ("a", True)


def test_who_may_wait_for_months_is_called_like_all_others(room: Room, pipes: list[tuple[int, int]]) -> None:
    room.admit("patient", pipes[0][0], MORE_THAN_POLL_KNOWS)
    room.admit("hasty", pipes[1][0], 0.01)
    assert room.next() == ("hasty", False)  # from here on the thread waits for nobody but the patient one
    os.write(pipes[0][1], b"!")
    assert room.next() == ("patient", True)


def test_a_machine_that_had_no_thread_left_for_a_moment_has_one_for_the_next_guest(
    room: Room, pipes: list[tuple[int, int]]
) -> None:
    with no_thread_left(), pytest.raises(RuntimeError):
        room.admit("a", pipes[0][0], LONG)
    os.write(pipes[0][1], b"!")
    room.admit("a", pipes[0][0], LONG)
    assert room.next() == ("a", True)

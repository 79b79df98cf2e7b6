"""Waiting without keeping a thread, and what becomes of work that is driven by whoever has nothing else to do."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from heartbeat import waiting
from heartbeat.waiting import here

PATIENCE = 20.0


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    os.close(read)
    os.close(write)


async def steps(pipe: tuple[int, int], told: Future[str]) -> str:
    """Work with a wait of each kind."""
    assert await waiting.writable(pipe[1], PATIENCE)
    os.write(pipe[1], b"!")
    assert await waiting.readable(pipe[0], PATIENCE)
    assert await waiting.done(told, PATIENCE)
    return told.result()


def test_work_is_carried_through_all_its_waits(pipe: tuple[int, int]) -> None:
    told: Future[str] = Future()
    threading.Timer(0.05, told.set_result, ("all is well",)).start()
    assert here(steps(pipe, told)) == "all is well"


def test_what_does_not_come_in_time_is_late(pipe: tuple[int, int]) -> None:
    never: Future[Any] = Future()
    assert not here(waiting.readable(pipe[0], 0.01))
    assert not here(waiting.done(never, 0.01))
    assert not here(waiting.readable(pipe[0], -1.0)), "a time that is over already"


def test_an_error_in_the_work_is_its_drivers() -> None:
    async def breaks() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        here(breaks())


def test_whoever_wants_to_know_is_told_before_a_thread_waits(pipe: tuple[int, int]) -> None:
    told: list[str] = []
    waiting.tell_of_blocks(lambda: told.append("waits"))
    try:
        here(waiting.readable(pipe[0], 0.0))
        waiting.blocks()
    finally:
        waiting.tell_of_blocks(lambda: None)
    assert told == ["waits", "waits"]

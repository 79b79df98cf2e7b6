"""The desk: one thinks at a time, and nobody keeps the seat while he waits for somebody else."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from servers.scripted import Act, Server, reply
from test_telegram import MESSAGE
from waited import waited

from heartbeat import waiting
from heartbeat.runners import Run, python
from heartbeat.spec import PythonRunner
from scheduler.transports import apprise
from scheduler.work.baton import STINT, Baton
from scheduler.work.desk import IN_A_ROW, Desk
from scheduler.work.process import Children

AT_MOST = 20.0  # seconds
FOREVER = 3600.0


class Diary:
    """What happened at a desk."""

    def __init__(self, patience: float = FOREVER, clock: Callable[[], float] | None = None) -> None:
        self.time = 0.0  # by the baton's clock, unless that has a real one
        self.baton = Baton(clock or (lambda: self.time))
        self.desk = Desk("test", self.baton, patience)
        self.lines: list[str] = []
        self.threads: set[int] = set()
        self._written = threading.Condition()

    def write(self, line: str) -> None:
        with self._written:
            self.lines.append(line)
            self.threads.add(threading.get_ident())
            self._written.notify_all()

    def wait_for(self, count: int) -> list[str]:
        with self._written:
            assert self._written.wait_for(lambda: len(self.lines) >= count, AT_MOST)
            return list(self.lines)

    def until(self, there: Callable[[], bool]) -> None:
        late = time.monotonic() + AT_MOST
        while not there():
            assert time.monotonic() < late


def test_a_thousand_pieces_of_work_are_done_in_their_order_by_few() -> None:
    diary, go = Diary(), threading.Event()
    diary.desk.bring(lambda: diary.write(f"begun {go.wait(AT_MOST)}"))
    for number in range(1000):
        diary.desk.bring(lambda number=number: diary.write(str(number)))  # type: ignore[misc]
    go.set()
    assert diary.wait_for(1001) == ["begun True", *(str(number) for number in range(1000))]
    assert len(diary.threads) <= 2


def test_who_has_begun_goes_on_before_others_begin() -> None:
    """A connection is to be made within 10 s, and a thousand beats that begin meanwhile may take longer than that."""
    diary = Diary()

    def first() -> None:
        for name in ("new", "newer"):
            diary.desk.bring(lambda name=name: diary.write(name))  # type: ignore[misc]
        for name in ("answered", "answered later"):
            diary.desk.bring_back(lambda name=name: diary.write(name))  # type: ignore[misc]

    diary.desk.bring(first)
    assert diary.wait_for(4) == ["answered", "answered later", "new", "newer"]


def test_who_is_answered_in_a_thousand_pieces_does_not_keep_others_from_beginning() -> None:
    diary = Diary()

    def first() -> None:
        for _ in range(1000):
            diary.desk.bring_back(lambda: diary.write("piece"))
        for _ in range(2):
            diary.desk.bring(lambda: diary.write("new"))

    diary.desk.bring(first)
    lines = diary.wait_for(1002)
    assert [place for place, line in enumerate(lines) if line == "new"] == [IN_A_ROW, 2 * IN_A_ROW + 1]


def test_nobody_else_works_while_one_does() -> None:
    diary, go = Diary(), threading.Event()
    begun = threading.Event()

    def thinks() -> None:
        begun.set()
        diary.write(f"thought {go.wait(AT_MOST)}")

    diary.desk.bring(thinks)
    diary.desk.bring(lambda: diary.write("next"))
    assert begun.wait(AT_MOST)
    assert diary.lines == []
    go.set()
    assert diary.wait_for(2) == ["thought True", "next"]


def test_who_waits_lets_the_next_one_work() -> None:
    diary, go = Diary(), threading.Event()

    def waits() -> None:
        waiting.blocks()
        diary.write(f"waited {go.wait(AT_MOST)}")

    for _ in range(5):
        diary.desk.bring(waits)
    diary.desk.bring(lambda: diary.write("next"))
    assert diary.wait_for(1) == ["next"]
    go.set()
    assert diary.wait_for(6) == ["next", *["waited True"] * 5]


def test_who_has_waited_takes_the_seat_again_only_when_it_is_free() -> None:
    diary, heard, go = Diary(), threading.Event(), threading.Event()
    begun = threading.Event()

    def waits() -> None:
        waiting.blocks()
        heard.wait(AT_MOST)
        diary.write("heard")

    def thinks() -> None:
        begun.set()
        go.wait(AT_MOST)
        diary.write("thought")

    diary.desk.bring(waits)
    diary.desk.bring(thinks)
    diary.desk.bring(lambda: diary.write("next"))
    assert begun.wait(AT_MOST)
    heard.set()  # whoever waited is free now, and must not take the next piece while one thinks
    assert diary.wait_for(1) == ["heard"]
    go.set()
    assert diary.wait_for(3) == ["heard", "thought", "next"]


def test_work_that_hangs_delays_the_others_for_a_moment_only() -> None:
    diary, go = Diary(0.02, time.monotonic), threading.Event()
    for _ in range(3):
        diary.desk.bring(lambda: diary.write(f"hung {go.wait(AT_MOST)}"))
    diary.desk.bring(lambda: diary.write("next"))
    assert diary.wait_for(1) == ["next"]
    go.set()
    assert diary.wait_for(4) == ["next", *["hung True"] * 3]
    diary.desk.bring(lambda: diary.write("after"))
    assert diary.wait_for(5)[-1] == "after"


def come_for_the_baton(diary: Diary) -> None:
    """Somebody from elsewhere wants to think too; returns once he waits for it, or has been there."""

    def thinks() -> None:
        with diary.baton:
            diary.write("elsewhere")

    threading.Thread(target=thinks, daemon=True).start()
    diary.until(lambda: bool(diary.baton._queue or "elsewhere" in diary.lines))


@pytest.mark.parametrize(
    ("thought_for", "order"), [(STINT / 2, ["thought", "next", "elsewhere"]), (STINT, ["thought", "elsewhere", "next"])]
)
def test_who_thinks_elsewhere_waits_until_nothing_is_left_to_do_or_the_stint_is_over(
    thought_for: float, order: list[str]
) -> None:
    diary = Diary()

    def thinks() -> None:
        come_for_the_baton(diary)
        diary.desk.bring(lambda: diary.write("next"))
        diary.write("thought")
        diary.time += thought_for

    diary.desk.bring(thinks)
    assert diary.wait_for(3) == order


def test_nobody_at_the_desk_thinks_while_somebody_does_elsewhere() -> None:
    diary = Diary()
    with diary.baton:
        diary.desk.bring(lambda: diary.write("thought"))
        diary.until(lambda: bool(diary.baton._queue or diary.lines))
        diary.write("elsewhere")
    assert diary.wait_for(2) == ["elsewhere", "thought"]


def test_who_waits_lets_those_elsewhere_think() -> None:
    diary, go = Diary(), threading.Event()

    def waits() -> None:
        come_for_the_baton(diary)
        waiting.blocks()
        diary.write(f"waited {go.wait(AT_MOST)}")

    diary.desk.bring(waits)
    assert diary.wait_for(1) == ["elsewhere"]
    go.set()
    assert diary.wait_for(2) == ["elsewhere", "waited True"]


def test_threads_that_were_needed_once_are_used_again() -> None:
    diary, go = Diary(), threading.Event()

    def waits() -> None:
        waiting.blocks()
        diary.write(f"waited {go.wait(AT_MOST)}")

    go.set()
    for number in range(1, 30):
        diary.desk.bring(waits)
        diary.wait_for(number)
    assert len(diary.threads) <= 2


def test_one_thinks_and_one_stands_by_and_no_third_is_called(hurried: None) -> None:
    done = threading.Semaphore(0)
    for number in range(40):
        desk = Desk(f"few-{number}", Baton(), FOREVER)
        for _ in range(60):
            desk.bring(done.release)
        for _ in range(60):
            assert done.acquire(timeout=AT_MOST)
        assert sum(thread.name == f"heartbeatd-few-{number}" for thread in threading.enumerate()) <= 2


@pytest.fixture
def hurried() -> Iterator[None]:
    """Threads take turns so often that each meets the others everywhere."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def test_who_waits_for_a_child_has_left_the_desk(tmp_path: Path) -> None:
    diary = Diary()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    children = Children("life/1")
    diary.desk.bring(lambda: diary.write(children.start(["cat", "pipe"], stdin=b"", env={}, cwd=tmp_path).output.decode()))
    diary.desk.bring(lambda: diary.write(str(pipe.write_text("go on"))))
    assert sorted(diary.wait_for(2)) == ["5", "go on"]


GO = threading.Event()


def waits_in_process(run: dict[str, object]) -> str:
    """A callable of the daemon's own process, as an agent."""
    return f"went on: {GO.wait(AT_MOST)}"


def test_a_callable_in_our_own_process_has_left_the_desk(tmp_path: Path) -> None:
    diary = Diary()
    run = Run("ops", "prompt", None, tmp_path, timedelta(seconds=5), dict)
    runner = PythonRunner(f"{__name__}:waits_in_process", in_process=True)
    diary.desk.bring(lambda: diary.write(python.ask(run, runner, Children("life/1").start).text))
    diary.desk.bring(GO.set)
    assert diary.wait_for(1) == ["went on: True"]


def test_who_waits_in_a_thread_for_what_could_be_put_aside_has_left_the_desk() -> None:
    diary = Diary()
    read, write = os.pipe()
    diary.desk.bring(lambda: diary.write(str(waited(waiting.readable)(read, AT_MOST))))
    diary.desk.bring(lambda: diary.write(str(os.write(write, b"!"))))
    assert sorted(diary.wait_for(2)) == ["1", "True"]


def test_who_waits_for_a_service_of_apprise_has_left_the_desk() -> None:
    diary, go = Diary(), threading.Event()
    with Server([once(go, reply())]) as server:
        url = f"json://127.0.0.1:{server.port}/"
        diary.desk.bring(lambda: diary.write(apprise.send(url, MESSAGE, total=AT_MOST).state))
        diary.desk.bring(go.set)
        assert diary.wait_for(1) == ["delivered"]


def once(go: threading.Event, act: Act) -> Act:
    """An answer that is only given once something else has been done."""

    def late(connection: socket.socket, over: threading.Event) -> None:
        if go.wait(AT_MOST / 4):
            act(connection, over)

    return late

"""The baton: one thinks while the others wait, nobody for long, and who has waited longest is next."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from scheduler.work.baton import PATIENCE, STINT, Baton

AT_MOST = 20.0  # seconds


class Thinkers:
    """Threads that share a baton with this one, and what each wrote down while it thought."""

    def __init__(self) -> None:
        self.time = 0.0
        self.baton = Baton(lambda: self.time)
        self.lines: list[str] = []

    def come(self, name: str, think: Callable[[], object] = lambda: None) -> Future[None]:
        """Another thread comes for the baton; returns once it waits for that, or has been there."""
        others = self.waiting()
        came = ThreadPoolExecutor(1).submit(self._think, name, think)
        self.until(lambda: self.waiting() != others or name in self.lines or came.done())
        return came

    def until(self, there: Callable[[], bool]) -> None:
        """Wait for what other threads do."""
        late = time.monotonic() + AT_MOST
        while not there():
            assert time.monotonic() < late

    def waiting(self) -> int:
        return len(self.baton._queue)  # who waits shows it nowhere else

    def _think(self, name: str, think: Callable[[], object]) -> None:
        with self.baton:
            self.lines.append(name)
            think()


def test_a_baton_that_nobody_has_is_had_at_once() -> None:
    thinkers = Thinkers()
    for name in "abc":
        thinkers.come(name).result(AT_MOST)
    assert thinkers.lines == ["a", "b", "c"]


def test_nobody_thinks_while_another_has_it() -> None:
    thinkers = Thinkers()
    with thinkers.baton:
        other = thinkers.come("other")
        thinkers.lines.append("we")
    other.result(AT_MOST)
    assert thinkers.lines == ["we", "other"]


def test_who_has_waited_longest_is_next() -> None:
    thinkers = Thinkers()
    with thinkers.baton:
        others = [thinkers.come(name) for name in "abcdef"]
    for other in others:
        other.result(AT_MOST)
    assert thinkers.lines == [*"abcdef"]


def test_who_has_it_need_not_wait_for_it() -> None:
    thinkers = Thinkers()
    with thinkers.baton:
        other = thinkers.come("other")
        thinkers.baton.take()
        assert thinkers.lines == []
    other.result(AT_MOST)


def test_it_is_shared_once_the_stint_is_over_and_not_before() -> None:
    thinkers = Thinkers()
    with thinkers.baton:
        thinkers.come("other")
        thinkers.time += STINT / 2
        thinkers.baton.share()
        thinkers.lines.append("before")
        thinkers.time += STINT / 2
        thinkers.baton.share()
        thinkers.lines.append("after")
    assert thinkers.lines == ["before", "other", "after"]


def test_it_is_kept_for_longer_than_a_stint_while_nobody_waits() -> None:
    thinkers = Thinkers()
    with thinkers.baton:
        thinkers.time += 10 * PATIENCE
        thinkers.baton.share()
        other = thinkers.come("other")
        thinkers.baton.share()
        thinkers.lines.append("we")
    other.result(AT_MOST)
    assert thinkers.lines == ["we", "other"]


def test_who_has_none_and_wants_to_share_takes_it() -> None:
    thinkers = Thinkers()
    thinkers.baton.share()
    other = thinkers.come("other")
    thinkers.lines.append("we")
    thinkers.baton.give()
    other.result(AT_MOST)
    assert thinkers.lines == ["we", "other"]


def test_who_keeps_it_for_too_long_loses_it_and_has_none_to_give() -> None:
    thinkers = Thinkers()
    thinkers.baton.take()
    third: list[Future[None]] = []

    given: Future[None] = Future()

    def thinks_on() -> None:
        given.result(AT_MOST)
        thinkers.baton.share()
        third.append(thinkers.come("third"))
        thinkers.lines.append("still the second")

    second = thinkers.come("second", thinks_on)
    assert thinkers.lines == []
    thinkers.time += PATIENCE
    thinkers.until(lambda: "second" in thinkers.lines)
    thinkers.baton.give()
    given.set_result(None)
    second.result(AT_MOST)
    third[0].result(AT_MOST)
    assert thinkers.lines == ["second", "still the second", "third"]


def test_one_who_breaks_off_while_thinking_hands_it_on() -> None:
    thinkers = Thinkers()
    broken = thinkers.come("broken", lambda: [][0])
    assert isinstance(broken.exception(AT_MOST), IndexError)
    thinkers.come("next").result(AT_MOST)

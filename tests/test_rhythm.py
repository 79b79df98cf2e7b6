"""The rhythm: a turn when one is due or the bell rings, and what comes in within a breath is seen to in one."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from scheduler.engine.rhythm import BLINK, BREATH, Rhythm
from scheduler.system.wakeup import Wakeup

FAR = 20.0  # seconds


class Player:
    """Takes a number of turns, as told; notes how long it slept between them, the sleep on the bell left out."""

    def __init__(self, turns: int = 2) -> None:
        self.bell = Wakeup()
        self.time = 1000.0
        self.turns = 0
        self.slept: list[float] = []
        self._at_most = turns
        self.rhythm = Rhythm(self.bell, lambda: self.time, self._sleep)

    def play(self, act: Callable[[], float], until: float | None = None) -> None:
        def turn() -> float:
            self.turns += 1
            return act()

        self.rhythm.keep(turn, lambda: self.turns >= self._at_most, until)

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds


@pytest.fixture
def player() -> Player:
    return Player()


def test_what_stirs_within_a_breath_is_seen_to_at_its_end(player: Player) -> None:
    def stirs() -> float:
        player.bell.notify()
        return FAR

    player.play(stirs)
    assert (player.turns, player.slept) == (2, [pytest.approx(BREATH)])


def test_a_turn_that_took_longer_than_a_breath_is_followed_at_once(player: Player) -> None:
    def takes_its_time() -> float:
        player.time += 10 * BREATH
        player.bell.notify()
        return FAR

    player.play(takes_its_time)
    assert player.slept == [0.0]


def test_what_is_due_within_a_breath_is_not_late_for_what_stirs(player: Player) -> None:
    def soon_due() -> float:
        player.bell.notify()
        return BREATH / 4

    player.play(soon_due)
    assert player.slept == [pytest.approx(BREATH / 4)]


@pytest.mark.parametrize("wait", [0.0, -5.0])
def test_turns_that_are_due_leave_the_others_a_moment(player: Player, wait: float) -> None:
    player.play(lambda: wait)
    assert (player.turns, player.slept) == (2, [BLINK])


def test_a_bell_that_rang_before_a_turn_is_no_reason_for_the_next() -> None:
    bell, turns, slept = Wakeup(), [0.05, 0.05], list[float]()
    bell.notify()
    Rhythm(bell, time.monotonic, slept.append).keep(turns.pop, lambda: not turns, None)
    assert slept == [0.0]  # more than a breath was slept on the bell


def test_a_turn_that_ends_it_is_followed_by_no_sleep() -> None:
    player = Player(turns=1)
    player.play(lambda: FAR)
    assert (player.turns, player.slept) == (1, [])


def test_it_sleeps_no_longer_than_asked(player: Player) -> None:
    player.play(lambda: FAR, until=player.time - 1)
    assert player.slept == [BLINK]


def test_it_is_asked_first_whether_it_is_over() -> None:
    player = Player(turns=0)
    player.play(lambda: FAR)
    assert player.turns == 0

"""Folding: whatever the fates of a day are, nothing is lost and a dozen lines do."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from world import at

from scheduler.insight.reason_texts import Cause
from scheduler.insight.slot_history import Fate, Stretch, fold, total

START = at("2026-03-02 00:00")
QUIET, ALERT, PAUSED, DOWN = Cause("ok", "heartbeat_ok"), Cause("alert"), Cause("paused"), Cause("daemon_down")


def day(*causes: Cause) -> list[Fate]:
    return [Fate(START + number * timedelta(minutes=1), cause, run=number) for number, cause in enumerate(causes)]


def told(stretches: list[Stretch]) -> list[str]:
    return [" ".join(f"{count} {cause.word}" for cause, count in stretch.counts) for stretch in stretches]


def test_fates_in_a_row_with_one_cause_are_one_stretch_from_the_first_to_the_last() -> None:
    (one, two) = fold(day(QUIET, QUIET, QUIET, PAUSED))
    assert (one.first, one.last, one.slots, one.run) == (START, START + timedelta(minutes=2), 3, None)
    assert (two.slots, two.run) == (1, 3)


def test_what_ran_is_mixed_before_a_silence_is() -> None:
    busy = [QUIET, ALERT] * 30
    assert told(fold(day(*busy, PAUSED, *busy, DOWN, *busy), 5)) == [
        "30 ok 30 alert", "1 paused", "30 ok 30 alert", "1 daemon_down", "30 ok 30 alert",
    ]  # fmt: skip


def test_a_time_without_slots_stays_by_itself() -> None:
    none = Fate(START + timedelta(seconds=90), Cause("disabled"), count=0)
    fates = sorted([*day(*[QUIET, PAUSED] * 20), none], key=lambda fate: fate.at)
    assert "0 disabled" in told(fold(fates, 4))


@given(st.lists(st.sampled_from([QUIET, ALERT, PAUSED, DOWN]), max_size=300), st.integers(1, 15))
def test_nothing_is_lost_and_the_lines_are_few_and_in_order(causes: list[Cause], most: int) -> None:
    stretches = fold(day(*causes), most)
    assert len(stretches) <= most
    assert dict(total(stretches)) == {cause: causes.count(cause) for cause in set(causes)}
    assert all(before.last < after.first for before, after in pairwise(stretches))

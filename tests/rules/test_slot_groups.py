"""Tests that the slots of a day are grouped into a few lines and that none is lost."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from world import utc

from scheduler.insight.reason_texts import SlotCause
from scheduler.insight.slot_history import SlotGroup, SlotResult, count_causes, group_results

START = utc("2026-03-02 00:00")
QUIET, ALERT, PAUSED, DOWN = SlotCause("ok", "heartbeat_ok"), SlotCause("alert"), SlotCause("paused"), SlotCause("daemon_down")


def day(*causes: SlotCause) -> list[SlotResult]:
    return [SlotResult(START + number * timedelta(minutes=1), cause, run_id=number) for number, cause in enumerate(causes)]


def cause_lines(groups: list[SlotGroup]) -> list[str]:
    return [" ".join(f"{count} {cause.code}" for cause, count in group.cause_counts) for group in groups]


def test_consecutive_slots_with_one_cause_are_one_group_from_the_first_to_the_last() -> None:
    (one, two) = group_results(day(QUIET, QUIET, QUIET, PAUSED))
    assert (one.first, one.last, one.slot_count, one.run_id) == (START, START + timedelta(minutes=2), 3, None)
    assert (two.slot_count, two.run_id) == (1, 3)


def test_groups_of_runs_are_merged_before_groups_of_skips() -> None:
    busy = [QUIET, ALERT] * 30
    assert cause_lines(group_results(day(*busy, PAUSED, *busy, DOWN, *busy), 5)) == [
        "30 ok 30 alert", "1 paused", "30 ok 30 alert", "1 daemon_down", "30 ok 30 alert",
    ]  # fmt: skip


def test_a_time_without_slots_is_a_group_of_its_own() -> None:
    none = SlotResult(START + timedelta(seconds=90), SlotCause("disabled"), count=0)
    results = sorted([*day(*[QUIET, PAUSED] * 20), none], key=lambda result: result.at)
    assert "0 disabled" in cause_lines(group_results(results, 4))


@given(st.lists(st.sampled_from([QUIET, ALERT, PAUSED, DOWN]), max_size=300), st.integers(1, 15))
def test_groups_are_few_and_in_order_and_keep_every_slot(causes: list[SlotCause], most: int) -> None:
    groups = group_results(day(*causes), most)
    assert len(groups) <= most
    assert dict(count_causes(groups)) == {cause: causes.count(cause) for cause in set(causes)}
    assert all(before.last < after.first for before, after in pairwise(groups))

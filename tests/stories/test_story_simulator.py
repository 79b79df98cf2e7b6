"""Random configs, answers, wakes, requests, edits, crashes and clock changes from a seed keep every promise of the reference."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from simulation import STEPS, seeds
from simulator import play, random_setup, random_steps
from world import DatabaseOf


@pytest.mark.simulation
@seeds(12, 400)
def test_every_promise_holds_after_any_steps(tmp_path: Path, database_of: DatabaseOf, seed: int) -> None:
    """`make simulate SEED=n STEPS=m` repeats one of them."""
    play(tmp_path, seed, STEPS, database_of(tmp_path))


def test_a_seed_always_has_the_same_steps_and_the_same_config() -> None:
    assert random_steps(7, 30) == random_steps(7, 50)[:30]
    assert random_setup(7).yaml() == random_setup(7).yaml() != random_setup(8).yaml()


def test_a_seed_has_the_same_trace_whichever_database_it_uses(tmp_path: Path, database_of: DatabaseOf) -> None:
    """Also in PostgreSQL, with `make test-postgresql`: what starts, is requested, sent and answered, and all records.

    PostgreSQL leaves out the number of a run or a wake whose record a crash has rolled back. So these numbers, and the keys of
    messages, which follow from them, are counted anew.
    """
    trace = play(tmp_path, 3, 60)
    assert _counted_anew(play(tmp_path, 3, 60, database_of(tmp_path))) == _counted_anew(trace)


RUN = re.compile(r"( start \w+ \w+ |heartbeatd show )(\d+)")
WAKE = re.compile(r"(\('wake', '\w+', '\w+', |\bwake )(\d+)")
KEY = re.compile(r"( send \w+ )([0-9a-f]{64})")


def _counted_anew(trace: list[str]) -> list[str]:
    for what in (RUN, WAKE, KEY):
        trace = _count_by_appearance(trace, what)
    return trace


def _count_by_appearance(trace: list[str], what: re.Pattern[str]) -> list[str]:
    seen: dict[str, int] = {}
    return [what.sub(lambda found: f"{found[1]}{seen.setdefault(found[2], len(seen))}", line) for line in trace]

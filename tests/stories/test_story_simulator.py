"""Random configs, answers, wakes, requests, edits, crashes and clock changes from a seed keep every promise of the reference."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from simulation import STEPS, seeds
from simulator import play, random_setup, random_steps
from world import DatabaseOf


@pytest.mark.simulation
@seeds(4, 400)
def test_every_promise_holds_after_any_steps(tmp_path: Path, database_of: DatabaseOf, seed: int) -> None:
    """`make simulate SEED=n STEPS=m` repeats one of them."""
    play(tmp_path, seed, STEPS, database_of(tmp_path))


def test_a_seed_always_has_the_same_steps_and_the_same_config() -> None:
    assert random_steps(7, 30) == random_steps(7, 50)[:30]
    assert random_setup(7).yaml() == random_setup(7).yaml() != random_setup(8).yaml()


def test_a_seed_has_the_same_trace_whichever_database_it_uses(tmp_path: Path, database_of: DatabaseOf) -> None:
    """Also in PostgreSQL, with `make test-postgresql`: what starts, is requested, sent and answered, and all records.

    PostgreSQL leaves out the number of a run whose record a crash has rolled back, so the runs are counted anew.
    """
    trace = play(tmp_path, 3, 60)
    assert _counted_anew(play(tmp_path, 3, 60, database_of(tmp_path))) == _counted_anew(trace)


RUN = re.compile(r"( start \w+ \w+ |heartbeatd show )(\d+)")


def _counted_anew(trace: list[str]) -> list[str]:
    numbers = sorted({int(found[2]) for line in trace for found in RUN.finditer(line)})
    return [RUN.sub(lambda found: f"{found[1]}{numbers.index(int(found[2]))}", line) for line in trace]

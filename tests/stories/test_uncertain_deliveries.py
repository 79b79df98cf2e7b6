"""A daemon killed after a message was accepted and before that was recorded loses nothing and repeats messages with their key."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path

import pytest
from kill_simulation import KilledDaemon, KilledDeliveries
from money_simulation import KilledSpending
from simulation import seeds, size
from world import open_store

pytestmark = [pytest.mark.process, pytest.mark.simulation]


@pytest.mark.parametrize("policy", ["resend", "hold"])
def test_a_message_accepted_but_not_recorded_is_never_lost_and_only_repeated_with_its_key(tmp_path: Path, policy: str) -> None:
    kills = KilledDeliveries(tmp_path, policy, size(1, 10))
    kills.loop()
    kills.check()


@seeds(1, 3)
def test_a_busy_daemon_killed_at_any_moment_loses_nothing_and_does_nothing_twice(tmp_path: Path, seed: int) -> None:
    storm = KilledDaemon(tmp_path, size(2, 10), random.Random(seed))
    storm.play()
    assert (storm.lost, storm.doubled) == ([], [])
    assert min(storm.counted.values()) > storm.number


@pytest.mark.parametrize(
    ("paid", "spent", "charged", "says"),
    [
        ((0.5, 0.25), {"plain": 0.5, "other": 0.25, "": 0.75}, (0.5, 0.25), ""),
        ((0.5, 0.25, 0.5), {"plain": 1.0, "other": 0.25, "": 1.25}, (0.5, 0.25), "0.5 USD was charged 2 times for 1 answers"),
        ((0.5,), {"plain": 0.5, "": 0.5}, (0.5, 0.25), "0.750000 USD were used, and 0.500000 USD charged"),
        ((0.5, 0.25), {"plain": 0.5, "other": 0.25, "": 1.0}, (0.5, 0.25), "the charges of the agents and of all differ"),
        ((0.5, 0.25), {"plain": 1.5, "": 1.5}, (0.5, 0.25), "plain spent 1.500000 of 1.0 USD"),
        ((0.5, 0.25), {"plain": 1.0, "other": 0.25, "": 1.25}, (1.0, 0.25), "run 1 cost 0.500000 USD and was charged 1.000000"),
        ((0.5, 0.25), {"plain": 1.0, "": 1.0}, (0.5, 0.25), "0.750000 USD were charged for runs, and 1.000000 to the budget"),
    ],
)
def test_the_simulation_of_spending_notices_a_double_a_missing_and_a_too_large_charge(
    tmp_path: Path, paid: tuple[float, ...], spent: dict[str, float], charged: tuple[float, ...], says: str
) -> None:
    spending = KilledSpending(tmp_path, 0, random.Random(0))
    spending.costs = [0.5, 0.25]
    (tmp_path / "state").mkdir(mode=0o700)
    with closing(open_store(tmp_path / "state" / "h.db")) as store, store.transaction() as db:
        for name, amount in spent.items():
            row = ("heartbeat" if name else "", name, round(amount * 1e9))
            db.execute("insert into spend values ('2026-03-02', ?, ?, ?, 0, 1, 0)", row)
        for slot, (nanos, cost) in enumerate(zip(charged, spending.costs, strict=True)):
            run = ("heartbeat", "plain", slot, "interval", "closed", "ok", 1, round(nanos * 1e9), cost)
            columns = "kind, name, slot, trigger, state, outcome, attempt, charged_nanos, cost_usd"
            db.execute(f"insert into run ({columns}) values (?, ?, ?, ?, ?, ?, ?, ?, ?)", run)
    spending.compare([f"08:00:00 DEBUG paid run=1 cost_usd={cost}" for cost in paid])
    assert bool(spending.faults) is bool(says)
    assert any(says in each for each in spending.faults) is bool(says)

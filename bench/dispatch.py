"""How many durable no-op beats the engine books, beside what the same SQLite does in bare batches."""

from __future__ import annotations

import random
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from scheduler import plan
from scheduler.config.load import load
from scheduler.engine.inbox import Inbox
from scheduler.engine.loop import Engine, Reading
from scheduler.outcome import Ending, Outcome, Suppression
from scheduler.tables.boots import Boot
from scheduler.tables.store import Store
from scheduler.work.executor import Done

NOW = datetime(2026, 3, 2, 8, tzinfo=UTC)
BATCH = 500


class NoWork:
    """An executor whose tasks are done as soon as they are taken."""

    def __init__(self) -> None:
        self._done: dict[int, Done] = {}

    def submit(self, number, task) -> None:
        self._done[number] = Done(task, Ending(Outcome.OK, suppression=Suppression.HEARTBEAT_OK, text="HEARTBEAT_OK"))

    def results(self):
        return list(self._done.items())

    def ack(self, numbers) -> None:
        for number in numbers:
            del self._done[number]

    def inflight(self):
        return {}

    def cancel(self, number, why) -> None: ...

    def give_up(self, number, done) -> None: ...


def engine(folder: Path, agents: int) -> Engine:
    beat = '{runner: {kind: command, argv: [x]}, heartbeat: {interval: 1d, stagger: 0s, checklist: "- x\\n", deliver: log}}'
    names = "".join(f"  a{number}: {beat}\n" for number in range(agents))
    (folder / "config.yaml").write_text("limits: {concurrency: 1000}\nagents:\n" + names)
    settings = load(folder / "config.yaml", {}).settings
    settings.state.parent.mkdir()
    store = Store.open(settings.state)
    made = Engine(store, plan.make(settings), NoWork(), NoWork(), Inbox(lambda: None), [], "bench", random.Random(1))
    made.begin(Reading(NOW, 0.0), Boot("bench", 1, "0", "0"), {})
    return made


def ours(folder: Path, agents: int) -> float:
    """Seconds until every agent's beat is claimed and booked."""
    it = engine(folder, agents)
    begun = time.perf_counter()
    steady = 0.0
    while it.store.connection.execute("select count(*) from run where state = 'closed'").fetchone()[0] < agents:
        for _ in range(20):
            steady += 0.001
            it.tick(Reading(NOW + timedelta(seconds=steady), steady))
    took = time.perf_counter() - begun
    it.store.close()
    return took


def bare(folder: Path, agents: int) -> float:
    """Seconds for the same rows by the barest statements: insert, update, move the entry on; in batches, as durable."""
    it = engine(folder, agents)
    db = it.store.connection
    begun = time.perf_counter()
    for first in range(1, agents + 1, BATCH):
        last = min(first + BATCH, agents + 1)
        db.execute("begin immediate")
        for number in range(first, last):
            db.execute("update entry set due_at = null where id = ?", (number,))
            db.execute(
                "insert into run (kind, name, slot, trigger, state, attempt, fence, owner, started_at)"
                " values ('heartbeat', ?, ?, 'interval', 'running', 1, 1, 'bench', ?)",
                (f"a{number}", number, number),
            )
        db.execute("commit")
        db.execute("begin immediate")
        for number in range(first, last):
            db.execute(
                "update run set state = 'closed', outcome = 'ok', suppression = 'heartbeat_ok', finished_at = ?,"
                " text = 'HEARTBEAT_OK'"
                " where id = ? and state = 'running' and owner = 'bench' and fence = 1",
                (number, number),
            )
            db.execute("update entry set slot = ?, due_at = ?, settled_until = ? where id = ?", (number, number, number, number))
        db.execute("commit")
    took = time.perf_counter() - begun
    it.store.close()
    return took


def main(agents: int) -> None:
    with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory() as b:
        mine, plain = ours(Path(a), agents), bare(Path(b), agents)
    print(f"{agents} agents: {agents / mine:,.0f} beats/s, bare SQLite {agents / plain:,.0f}/s, ratio {plain / mine:.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)

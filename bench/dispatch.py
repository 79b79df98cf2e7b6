"""How many durable beats the engine books that take no time, beside what the same SQLite does in bare batches."""

from __future__ import annotations

import random
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from heartbeat.result import SentPrompt
from heartbeat.runners import Tokens
from scheduler.config.settings.load import load_config
from scheduler.engine.clock_adjustment import ClockReading
from scheduler.engine.tick import Engine, Executors
from scheduler.engine.tick_items import Inbox
from scheduler.model.outcome import AttemptResult, Call, Outcome, Suppression
from scheduler.store.boots import Boot
from scheduler.store.database import Store
from scheduler.work import plan
from scheduler.work.executor import Done

NOW = datetime(2026, 3, 2, 8, tzinfo=UTC)
BATCH = 500


@dataclass(frozen=True)
class Beat:
    """What each agent is, by its words and those of `limits`, and how each of its beats ends."""

    limits: str
    agent: str
    heartbeat: str
    result: AttemptResult


QUIET = AttemptResult(Outcome.OK, suppression=Suppression.HEARTBEAT_OK, text="HEARTBEAT_OK")
CALL = Call("anthropic", "small", "small", Tokens(input=900, output=5))
BEATS = {
    "without a model call": Beat("", "runner: {kind: command, argv: [x]}", "", QUIET),
    "with a model call within a budget": Beat(
        ", budget: {usd_per_day: 1000000}",
        "runner: {kind: anthropic}, model: small",
        ", budget: {usd_per_day: 5}",
        replace(QUIET, model_used="small", prompt=SentPrompt({"contract": 1200, "time": 80, "checklist": 400}), calls=(CALL,)),
    ),
}
MODELS = """
providers: {anthropic: {api_key: none}}
prices: {small: {input: 1.0, output: 5.0}}
"""


class NoWork:
    """An executor whose tasks are done as soon as they are taken."""

    def __init__(self, result: AttemptResult) -> None:
        self._result = result
        self._done: dict[int, Done] = {}

    def submit(self, number, task) -> None:
        self._done[number] = Done(task, self._result)

    def results(self):
        return list(self._done.items())

    def ack(self, numbers) -> None:
        for number in numbers:
            del self._done[number]

    def inflight(self):
        return {}

    def cancel(self, number, why) -> None: ...

    def give_up(self, number, done) -> None: ...


def engine(folder: Path, agents: int, beat: Beat) -> Engine:
    each = f'{{{beat.agent}, heartbeat: {{interval: 1d, stagger: 0s, checklist: "- x\\n", deliver: log{beat.heartbeat}}}}}'
    names = "".join(f"  a{number}: {each}\n" for number in range(agents))
    limits = f"limits: {{concurrency: 1000{beat.limits}}}\n"
    (folder / "config.yaml").write_text(f"{limits}{MODELS}agents:\n{names}")
    settings = load_config(folder / "config.yaml", {}).settings
    settings.state.parent.mkdir()
    store = Store.open(settings.state)
    executors = Executors(NoWork(beat.result), NoWork(beat.result))
    made = Engine(store, plan.make_plan(settings), executors, Inbox(lambda: None), [], "bench", random.Random(1))
    made.start_boot(ClockReading(NOW, 0.0), Boot("bench", 1, "0", "0"), {})
    return made


def ours(folder: Path, agents: int, beat: Beat) -> float:
    """Seconds until every agent's beat is claimed and booked."""
    it = engine(folder, agents, beat)
    begun = time.perf_counter()
    steady = 0.0
    while it.store.connection.execute("select count(*) from run where outcome = 'ok'").fetchone()[0] < agents:
        for _ in range(20):
            steady += 0.001
            it.tick(ClockReading(NOW + timedelta(seconds=steady), steady))
    took = time.perf_counter() - begun
    it.store.close()
    return took


def bare(folder: Path, agents: int) -> float:
    """Seconds for the same rows by the barest statements: insert, update, move the entry on; in batches, as durable."""
    it = engine(folder, agents, BEATS["without a model call"])
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
    with tempfile.TemporaryDirectory() as folder:
        plain = bare(Path(folder), agents)
    print(f"{agents} agents: bare SQLite {agents / plain:,.0f}/s")
    for words, beat in BEATS.items():
        with tempfile.TemporaryDirectory() as folder:
            mine = ours(Path(folder), agents, beat)
        print(f"runs {words}: {agents / mine:,.0f}/s, {plain / mine:.2f} of that")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)

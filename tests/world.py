"""A world for stories: the real engine over a real SQLite file, with clocks that a test turns and agents that follow a script."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from waited import with_http

from heartbeat.runners import ProcessResult, Resources
from scheduler.channels.message import DeliveryResult
from scheduler.config.build.load import load_config
from scheduler.config.build.time_checks import TimeCheck
from scheduler.engine import delivery
from scheduler.engine.delivery import Delivery
from scheduler.engine.inbox import Inbox, Request
from scheduler.engine.loop import ClockReading, Engine
from scheduler.engine.requests import AdoptPlan, PauseEntries, ResumeEntries, RunJob, WakeAgent
from scheduler.model.entry import Claim
from scheduler.model.events import Event
from scheduler.model.outcome import AttemptResult, Trigger
from scheduler.model.wake import Wake
from scheduler.net.http_client import HttpClient
from scheduler.store import entries, run_history
from scheduler.store.boots import Boot
from scheduler.store.database import Store
from scheduler.system import lanes
from scheduler.system.process import Children
from scheduler.work import plan
from scheduler.work.executor import Done

QUIET = "HEARTBEAT_OK"
LOOP = asyncio.new_event_loop()


def at(text: str) -> datetime:
    """A UTC instant from `2026-03-02 08:00[:00]`."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@dataclass
class Clock:
    """The wall and the steady clock; only a test moves them."""

    now: datetime
    steady: float = 1000.0

    def forward(self, by: timedelta) -> None:
        self.now += by
        self.steady += by.total_seconds()

    def read(self) -> ClockReading:
        return ClockReading(self.now, self.steady)


@dataclass
class Asked:
    """One time that an agent or a command was started: when (by both clocks), which, and what it was given."""

    at: datetime
    name: str
    stdin: str
    env: Mapping[str, object]
    steady: float = 0.0


@dataclass
class Takes:
    """A script's way to say: this answer takes so long."""

    answer: Any
    time: timedelta


Script = Callable[[Asked], Any]


class Inline:
    """Carries tasks through in virtual time: each ends when its script says, at once unless it says otherwise."""

    def __init__(self, clock: Clock, carry: Callable[[Any], tuple[Any, timedelta]]) -> None:
        self._clock = clock
        self._carry = carry
        self._tasks: dict[int, tuple[Any, Any, datetime]] = {}

    def submit(self, number: int, task: Any) -> None:
        result, takes = self._carry(task)
        self._tasks[number] = (task, result, self._clock.now + takes)

    def results(self) -> list[tuple[int, Done[Any, Any]]]:
        ended = [(number, kept) for number, kept in self._tasks.items() if kept[2] <= self._clock.now]
        return [(number, Done(task, *_parted(result))) for number, (task, result, _) in ended]

    def ack(self, numbers: list[int]) -> None:
        for number in numbers:
            self._tasks.pop(number, None)

    def inflight(self) -> dict[int, Any]:
        return {number: task for number, (task, _, ends) in self._tasks.items() if ends > self._clock.now}

    def cancel(self, number: int, why: str) -> None:
        if number in self._tasks:
            task, result, _ = self._tasks[number]
            self._tasks[number] = (task, _cut(result, why), self._clock.now)

    def give_up(self, number: int, done: Done[Any, Any]) -> None:
        self._tasks[number] = (done.task, done.result, self._clock.now)

    def next_end(self) -> datetime | None:
        return min((ends for _, _, ends in self._tasks.values()), default=None)


def _parted(result: Any) -> tuple[Any, BaseException | None]:
    return (None, result) if isinstance(result, BaseException) else (result, None)


def _cut(result: Any, why: str) -> Any:
    """What a runner says of a child that was ended from outside."""
    from scheduler.model.outcome import Failure, Outcome

    return AttemptResult(Outcome.TIMEOUT if why == "timeout" else Outcome.FAILED, Failure.TIMEOUT, error=why, transient=True)


@dataclass
class World:
    """`World(tmp_path, yaml)`; then `run(minutes=6)` and compare what `story()`, `asked` and `said` hold.

    An agent without a script is quiet; a command without one succeeds and prints nothing. A script gives a text, an exit code
    (an int other than 0), an ProcessResult, `Takes(..)` or an exception to raise.
    """

    folder: Path
    yaml: str
    start: str = "2026-03-02 08:00"
    scripts: dict[str, Script] = field(default_factory=dict)
    prechecks: dict[str, Script] = field(default_factory=dict)
    sends: Callable[[Delivery], DeliveryResult | Takes] = lambda _: DeliveryResult("delivered")
    environ: dict[str, str] = field(default_factory=dict)
    reserve: int = 4096  # bytes; hardly any story needs it whole
    places: Callable[[int], int] = lambda wanted: wanted  # how many of so many runs the system has room for
    takes: dict[str, timedelta] = field(default_factory=dict)  # how long each attempt of an entry takes, whoever is asked

    def __post_init__(self) -> None:
        self.clock = Clock(at(self.start))
        self.asked: list[Asked] = []
        self.prechecked: list[Asked] = []
        self.said: list[tuple[datetime, str, str]] = []
        self.events: list[Event] = []
        self.config = self.folder / "config.yaml"
        self.config.write_text(self.yaml, "utf-8")
        self.state = self.folder / "state" / "heartbeatd.db"
        self.state.parent.mkdir(mode=0o700, exist_ok=True)
        self.lives = 0
        self.boot()

    def boot(self, *, at_once: bool = False, survivors: Mapping[str, bool] | None = None, tzdata: str = "0") -> None:
        """Begin a life of the daemon on the same database."""
        self.lives += 1
        self.store = Store.open(self.state)
        self.store.connection.execute("pragma synchronous = off")  # no story loses power, and most of its time would go into this
        self.store.reserve.size = self.reserve
        self.inbox = Inbox(lambda: None)
        self.runs = Inline(self.clock, self._carry)
        self.deliveries = Inline(self.clock, self._send)
        self.engine = Engine(
            self.store, self.plan(strict=False), self.runs, self.deliveries, self.inbox,
            [self.events.append], f"life{self.lives}", random.Random(7), self.places,
        )  # fmt: skip
        boot = Boot(f"life{self.lives}", 4000 + self.lives, "0", tzdata)
        self.engine.start_boot(self.clock.read(), boot, {} if survivors is None else survivors, at_once=at_once)

    def kill(self) -> None:
        """The daemon is gone, as by kill -9: nothing is booked any more."""
        self.store.close()

    def stop(self) -> None:
        """The daemon stops in order."""
        self.engine.finish_boot(self.clock.read())
        self.store.close()

    def off(self, **time: float) -> None:
        """The daemon is down for a while (kill, time, boot)."""
        self.kill()
        self.clock.forward(timedelta(**time))
        self.boot()

    def run(self, **time: float) -> None:
        """Let time pass."""
        end = self.clock.now + timedelta(**time)
        while True:
            again_at = self.engine.tick(self.clock.read())
            ends = [result for result in (self.runs.next_end(), self.deliveries.next_end()) if result is not None]
            following = max(min([again_at, *ends]), self.clock.now)
            if following >= end:
                break
            if following == self.clock.now and not ends:
                following += timedelta(milliseconds=1)
            self.clock.forward(following - self.clock.now)
        self.clock.forward(end - self.clock.now)
        self.settle()

    def settle(self) -> None:
        """Take turns until nothing more happens at this very instant."""
        for _ in range(50):
            again_at = self.engine.tick(self.clock.read())
            if again_at > self.clock.now and not self.runs.results() and not self.deliveries.results():
                return
        raise AssertionError("the engine does not come to rest")

    def until(self, text: str) -> None:
        """Let time pass until a UTC instant."""
        self.run(seconds=(at(text) - self.clock.now).total_seconds())

    def ask(self, request: Request) -> Any:
        future = self.inbox.submit(request)
        self.engine.tick(self.clock.read())
        return future.result(timeout=0)

    def wake(
        self, name: str, text: str = "", *, source: Trigger = Trigger.API, sender: str = "bot", token: str = "",
        cause: str | None = None,
    ) -> int:  # fmt: skip
        return self.ask(WakeAgent(Wake(name, source=source, sender=sender, text=text, token=token), cause))

    def pause(self, key: Any, until: datetime | None = None) -> list[str]:
        return self.ask(PauseEntries(key, until))

    def resume(self, key: Any) -> list[str]:
        return self.ask(ResumeEntries(key))

    def run_job(self, name: str) -> int:
        return self.ask(RunJob(name, Trigger.MANUAL))

    def reload(self, yaml: str) -> Any:
        self.config.write_text(yaml, "utf-8")
        return self.ask(AdoptPlan(self.plan()))

    def plan(self, *, strict: bool = True) -> plan.Plan:
        """What the config says by now; ConfigError for one that is wrong, with `strict` also for one that is past."""
        today = TimeCheck(self.clock.now, entries.has_seen_one_time_job, strict)
        return plan.make(load_config(self.config, self.environ, time_check=today).settings)

    def rows(self, name: str | None = None, **filters: Any) -> list[dict[str, Any]]:
        """The history, the oldest first."""
        return run_history.list_runs(self.store.connection, name=name, limit=100_000, **filters)[::-1]

    def story(self, name: str | None = None) -> list[str]:
        """The history in short words: `08:30 interval ok heartbeat_ok`; a skip says how many slots it stands for."""
        return [_told(row) for row in self.rows(name)]

    def write(self, name: str, text: str) -> Path:
        """A file in an agent's folder."""
        path = self.folder / "agents" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        return path

    def _carry(self, claim: Claim) -> tuple[Any, timedelta]:
        took = self.takes.get(claim.entry.name, timedelta())
        elapsed = timedelta()

        async def start(
            argv: Sequence[str], *, stdin: bytes, env: Mapping[str, object], cwd: Path, keep: int = 0, keep_tail: bool = False,
            timeout: timedelta | None = None,
        ) -> ProcessResult:  # fmt: skip
            nonlocal took, elapsed
            asked = Asked(self.clock.now, claim.entry.name, stdin.decode(), env, self.clock.steady)
            if timeout:  # only a precheck has a time of its own
                self.prechecked.append(asked)
                printed = self.prechecks[asked.name](asked)
                if isinstance(printed, Takes):
                    elapsed, printed = printed.time, printed.answer
                return _ended(printed)
            self.asked.append(asked)
            script = self.scripts.get(claim.entry.name)
            answer = script(asked) if script else (QUIET if claim.entry.kind == "heartbeat" else "")
            if isinstance(answer, Takes):
                took, answer = answer.time, answer.answer
            return _ended(answer)

        try:
            with lanes.lane_of_claim(lanes.lanes_beside(self.state), claim) as (claim_in_lane, _):

                def attempt(http: HttpClient) -> Coroutine[Any, Any, Any]:
                    return claim.entry.carry(claim_in_lane, Resources(start, http), lambda: elapsed)

                return LOOP.run_until_complete(with_http(attempt)), took
        except Exception as surprise:  # noqa: BLE001 (as an executor does)
            return surprise, took

    def _send(self, outgoing: Delivery) -> tuple[DeliveryResult, timedelta]:
        answer = by_hand(outgoing) if outgoing.channel.kind == "log" else self.sends(outgoing)
        if isinstance(answer, BaseException):  # as an executor says it
            return answer, timedelta()
        sent, took = (answer.answer, answer.time) if isinstance(answer, Takes) else (answer, timedelta())
        if sent.state == "delivered":
            self.said.append((self.clock.now, outgoing.message.name, outgoing.message.text))
        return sent, took


def by_hand(outgoing: Delivery) -> DeliveryResult:
    """Send a message by the real transport of its channel."""
    return LOOP.run_until_complete(with_http(lambda http: delivery.send_delivery(outgoing, Children("test").start, http)))


def _ended(answer: Any) -> ProcessResult:
    if isinstance(answer, BaseException):
        raise answer
    if isinstance(answer, ProcessResult):
        return answer
    code, text = (answer, "") if isinstance(answer, int) else (0, answer)
    return ProcessResult(code, text.encode(), b"", truncated=False, timed_out=False, problem=None, ended_by=None)


def _told(row: dict[str, Any]) -> str:
    words = [
        row["slot"][5:16].replace("T", " "),
        row["trigger"],
        row["outcome"] or row["state"],
        row["reason"],
        row["suppression"],
    ]
    if row["slots"] > 1:
        words.append(f"x{row['slots']}")
    return " ".join(word for word in words if word)

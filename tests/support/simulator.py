"""Plays random configs, answers, wakes, requests, edits, crashes and clock changes from a seed, and holds them against the reference.

`play(folder, seed, steps)` returns the trace: what was started, requested, sent and recorded. It raises Failed, with the fewest steps
that it could find. The steps do not depend on what the daemon does, so any of them can be left out.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, cast
from zoneinfo import ZoneInfo

from patience import PATIENCE
from reference import (
    BILLED_NOTHING,
    INPUT_TOKENS,
    MINUTE,
    OUTPUT_PRICE,
    OUTPUT_TOKENS,
    PROGRAM_MAXIMUM,
    WITHIN,
    Broken,
    Call,
    ChatMessage,
    Effect,
    Entry,
    Key,
    NewFile,
    Reference,
    Token,
)
from servers.completions import completion, tool
from servers.postgres import delete_all_rows
from simulated_chat import CHAT, MAY_REPLY, OTHER_CHAT, PEOPLE, URL, SimulatedChat
from starlette.datastructures import Headers
from world import ON_SERVER, AgentCall, CachingWorld, Delayed, utc

from heartbeat.runners import HttpReply, ProcessResult
from heartbeatd.operations import Concern
from heartbeatd.verbs import HoldLock, ReleaseLock
from scheduler.engine.delivery import Delivery
from scheduler.engine.effects import VerbRequest
from scheduler.engine.tick_items import Refused, Request
from scheduler.model.entry import Claim
from scheduler.model.message import DeliveryResult
from scheduler.model.outcome import Kind
from scheduler.model.timestamps import from_millis, from_optional_millis, to_millis
from scheduler.model.wake import RejectedBecause
from scheduler.store.database import DatabaseFull
from scheduler.store.transaction import UnitOfWork
from scheduler.store.wakes import wakes_of_run
from scheduler.web import queries  # noqa: F401 (lets `perform` answer questions)
from scheduler.web.api_request import ApiRequest, Caller
from scheduler.web.app_state import AppState
from scheduler.web.http_errors import HttpError
from scheduler.web.perform import ENDPOINTS, perform

AGENTS = ("ampere", "becquerel", "celsius", "dirac", "euler", "fermi")
JOBS = ("vacuumer", "zipper", "quoter", "juggler")
PROVIDERS, MODELS, CHANNELS = ("north", "south"), ("big", "small"), ("phone", "mail")
HOLDERS = ("chat", "desk")
MINUTES = {"schedule": (60, 120, 240, 360), "interval": (47, 125, 300, 700), "every": (50, 200, 450)}
ZONES = ("Asia/Kathmandu", "America/New_York")  # in March, the clocks of the second one go forward on the 8th
# The start and the time zone of a seed: before the end of a month, before clocks go forward on 29 March, and before they go back on
# 1 November, which is the end of a month, too.
STARTS = (
    ("2026-03-02 08:00:07", "UTC"),
    ("2026-03-02 08:00:07", "UTC"),
    ("2026-03-31 15:00:07", "UTC"),
    ("2026-03-28 15:00:07", "Europe/Berlin"),
    ("2026-10-31 15:00:07", "America/New_York"),
)
MARK = re.compile(r"wake-\d+;")
NEW_FILE = re.compile(r"new: inbox/(file-\d+)")
KEYS = {"disk": "the volume fills up", "cert": "certificate expires", "queue": "letters pile up"}  # texts without a common word
SEVERITIES = ("info", "warning", "critical")
MOODS = ("quiet", "findings", "findings", "prose", "cut", "empty", "fails", "late", "fails", "limited")
LOOKS = ("nothing", "work", "work", "fails")  # of a precheck
STATUSES = (200, 200, 200, 401, 403, 404, 429, 500, 529)
DURATIONS = (0, 0, 5, 90, 40 * 60)  # seconds
WAITS = (5, 5, 61, 61, 7 * 60, 29 * 60, 3600, 3 * 3600)
JUMPS = (-9000, -70, -3, 40, 4000, 90_000)
DOWN = (1, 90, 3700, 30_000)

PAUSES = (60 * MINUTE, 30 * MINUTE, 300 * MINUTE, 120 * MINUTE)

NOT_HELD = ("held until ", "question ", "again ")  # notices that do not wait for the hours of their recipient

Step = tuple[Any, ...]


class Crash(BaseException):
    """The end of the daemon at a statement. It is no Exception, so that nothing in the daemon handles it."""


class Failed(AssertionError):
    """A broken promise, with the command that repeats it and the fewest steps that break it."""

    def __init__(self, seed: int, count: int, steps: Sequence[Step], error: Exception) -> None:
        lines = "\n".join(f"  {step}" for step in steps)
        store = "HEARTBEATD_TEST_STORE=postgresql " if ON_SERVER else ""
        super().__init__(
            f"{type(error).__name__}: {error}\n{store}make simulate SEED={seed} STEPS={count}\n{len(steps)} steps:\n{lines}"
        )
        self.steps, self.error = steps, error


# --- the config -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setup:
    """A config: its agents and jobs, and the budget of all of them."""

    entries: Mapping[Key, Entry]
    usd_per_day: float | None
    usd_per_month: float | None
    has_chat: bool  # the channel `phone` is a chat with buttons
    zone: str

    def yaml(self) -> str:
        """The config file. JSON is YAML, too."""
        sections: dict[str, Any] = {"agents": {}, "cron": {}}
        for entry in self.entries.values():
            if entry.kind == "heartbeat":
                sections["agents"][entry.name] = _agent(entry)
            else:
                sections["cron"][entry.name] = _job(entry)
        hook = {"kind": "webhook", "allow_private": True}
        chat = {"phone": {"url": URL, "allow_private": True, "buttons": True, "people": MAY_REPLY, "prefix": "none"}}
        limits = {"usd_per_day": self.usd_per_day, "usd_per_month": self.usd_per_month}
        kept = {name: limit for name, limit in limits.items() if limit is not None}
        budget = {"budget": kept} if kept else {}
        keys = {
            "timezone": self.zone,
            "limits": {"wake_flood": "1000 per 1m", "new_problems": 1000, "concurrency": 8} | budget,
            "history": {"keep": "3650d", "runs": 1_000_000},
            "providers": {
                each: {"kind": "openai", "api_key": "k", "base_url": f"http://127.0.0.1:9/{each}"} for each in PROVIDERS
            },
            "prices": {each: {"input": 2.0, "output": 10.0, "cache_write": 2.0} for each in MODELS},
            "channels": {each: hook | {"url": f"http://127.0.0.1:9/{each}"} for each in CHANNELS}
            | (chat if self.has_chat else {}),
            **{name: each for name, each in sections.items() if each},
        }
        return "".join(f"{key}: {json.dumps(value)}\n" for key, value in keys.items())


def _agent(entry: Entry) -> dict[str, Any]:
    heartbeat: dict[str, Any] = {
        "checklist": f"- look after {entry.name}\n",
        "retries": entry.retries,
        "deliver": _deliver(entry),
        "enabled": entry.is_enabled,
        "timeout": "50m",
    }
    heartbeat |= {"problems": {"pause_after": entry.pause_after}} if entry.pause_after else {}
    heartbeat |= {"ask": entry.asks} if entry.asks else {}
    if entry.active is not None:
        heartbeat |= {"active_hours": f"{entry.active[0]:02}:00-{entry.active[1]:02}:00", "timezone": entry.zone}
    if entry.rhythm == "schedule":
        heartbeat["schedule"] = _cron(entry.minutes)
    else:
        heartbeat |= {"interval": "none" if entry.rhythm == "none" else f"{entry.minutes}m", "stagger": "0s"}
    budget: dict[str, Any] = {} if entry.usd_per_day is None else {"usd_per_day": entry.usd_per_day}
    if entry.runs_per_day is not None:
        budget["runs_per_day"] = entry.runs_per_day
    if entry.usd_per_month is not None:
        budget["usd_per_month"] = entry.usd_per_month
    heartbeat |= {"budget": budget} if budget else {}
    if entry.looks_at_files:
        heartbeat["precheck"] = {"files": "inbox/*"}
    elif entry.has_precheck:
        heartbeat["precheck"] = {"command": "look"}
    if entry.runner != "model":
        budget = {"usd_per_try": PROGRAM_MAXIMUM} | budget
        runner: dict[str, Any] = {"kind": "command", "argv": ["agent"]}
        if entry.max_runs:
            runner["account"] = {"name": "agent", "max_runs": f"{entry.max_runs} per {WITHIN // timedelta(hours=1)}h"}
        if entry.runner == "gateway":
            runner = {"kind": "http", "url": "http://127.0.0.1:9/gateway"}
            heartbeat["async_timeout"] = "3h"
        return {"runner": runner, "heartbeat": heartbeat | {"budget": budget}}
    heartbeat |= {"max_input_tokens": INPUT_TOKENS, "max_output_tokens": OUTPUT_TOKENS}
    agent = {"runner": {"kind": "openai", "provider": entry.provider}, "model": entry.model, "heartbeat": heartbeat}
    return agent | ({"fallbacks": [{"provider": entry.fallback, "model": entry.model}]} if entry.fallback else {})


def _deliver(entry: Entry) -> Any:
    if entry.hours is None:
        return list(entry.deliver) or "none"
    first, last = entry.hours
    hours = {"to": entry.deliver[0], "hours": f"{first:02}:00-{last:02}:00"}
    return [hours | ({"critical": "hold"} if entry.holds_critical else {}), *entry.deliver[1:]]


def _job(entry: Entry) -> dict[str, Any]:
    job: dict[str, Any] = {
        "command": "job",
        "deliver": _deliver(entry),
        "timeout": "50m",
        "enabled": entry.is_enabled,
    }
    job |= {"problems": {"pause_after": entry.pause_after}} if entry.pause_after else {}
    job |= {"ask": entry.asks} if entry.asks else {}
    if entry.wakes:
        job["wake_heartbeat"] = list(entry.wakes)
    if entry.rhythm == "after":
        return job | {"after": dict(zip(("job", "on"), entry.follows, strict=True))}
    return job | ({"every": f"{entry.minutes}m"} if entry.rhythm == "every" else {"schedule": _cron(entry.minutes)})


def _cron(minutes: int) -> str:
    return f"0 */{minutes // 60} * * *" if minutes >= 60 else f"*/{minutes} * * * *"


def random_setup(seed: int, edit: int = 0) -> Setup:
    """The config of a seed after some edits, which change budgets, channels and switches, and remove an entry."""
    _, zone = STARTS[seed % len(STARTS)]
    fixed, edited = Random(f"config {seed}"), Random(f"config {seed} {edit}")
    names = AGENTS[: fixed.randint(2, len(AGENTS))]
    entries = [_random_agent(fixed, name) for name in names]
    entries += [_random_job(fixed, name, names) for name in JOBS[: fixed.randint(0, len(JOBS))]]
    total = fixed.choice((None, None, 0.1, 0.5))
    more = Random(f"more {seed}")
    month = more.choice((None, None, None, 0.6))
    entries = [_with_more(more, entry, entries) for entry in entries]
    sources = Random(f"sources {seed}")
    entries = [replace(each, looks_at_files=each.kind == "heartbeat" and sources.random() < 0.3) for each in entries]
    windows = Random(f"hours {seed}")
    entries = [_with_window(windows, replace(each, zone=zone)) for each in entries]
    if edit:
        total = edited.choice((total, total, None, 0.2))
        entries = [_edit(edited, entry) for entry in entries if edited.random() > 0.1] or entries[:1]
        schedules = Random(f"schedules {seed} {edit}")
        entries = [replace(each, minutes=_other_minutes(schedules, each)) for each in entries]
        kept = {entry.name for entry in entries}
        entries = [replace(entry, wakes=tuple(each for each in entry.wakes if each in kept)) for entry in entries]
        while missing := [entry for entry in entries if entry.rhythm == "after" and entry.follows[0] not in kept]:
            kept -= {entry.name for entry in missing}
            entries = [entry for entry in entries if entry not in missing]
    return Setup({entry.key: entry for entry in entries}, total, month, Random(f"chat {seed}").random() < 0.7, zone)


def _with_more(chance: Random, entry: Entry, entries: Sequence[Entry]) -> Entry:
    """The entry with keys that not each config has. A job can only follow one that is before it."""
    changes: dict[str, Any] = {"pause_after": chance.choice((0, 0, 2, 3))}
    if entry.deliver and chance.random() < 0.3:
        changes |= {"hours": chance.choice(((9, 17), (6, 22))), "holds_critical": chance.random() < 0.5}
    earlier = [each.name for each in entries[: entries.index(entry)] if each.kind == "cron"]
    if entry.kind == "cron" and earlier and chance.random() < 0.6:
        changes |= {"rhythm": "after", "follows": (chance.choice(earlier), chance.choice(("success", "failure", "any", "any")))}
    if entry.runner == "model" and chance.random() < 0.5:
        changes["fallback"] = PROVIDERS[1 - PROVIDERS.index(entry.provider)]
    if entry.runner == "program" and chance.random() < 0.25:
        changes["max_runs"] = chance.choice((2, 4))
    if entry.kind == "heartbeat" and chance.random() < 0.3:
        changes["usd_per_month"] = chance.choice((0.1, 0.4))
    changes["asks"] = chance.choice(("", *CHANNELS, *CHANNELS))
    return replace(entry, **changes)


def _random_agent(chance: Random, name: str) -> Entry:
    runner = chance.choice(("program", "model", "gateway"))
    return Entry(
        "heartbeat", name, rhythm := chance.choice(("schedule", "interval", "interval", "none")),
        chance.choice(MINUTES.get(rhythm, MINUTES["interval"])), runner,
        chance.choice(PROVIDERS) if runner == "model" else "", chance.choice(MODELS), chance.choice((0, 1, 2)),
        chance.choice((None, 0.05, 0.3)), chance.choice((None, None, 5)), _random_channels(chance), has_precheck=chance.random() < 0.3,
    )  # fmt: skip


def _random_job(chance: Random, name: str, agents: Sequence[str]) -> Entry:
    return Entry(
        "cron", name, rhythm := chance.choice(("schedule", "every")),
        chance.choice(MINUTES[rhythm]), "command", deliver=_random_channels(chance),
        wakes=tuple(chance.sample(agents, chance.randint(0, 2))),
    )  # fmt: skip


def _with_window(chance: Random, entry: Entry) -> Entry:
    """Some agents have active hours and a time zone of their own."""
    if entry.kind == "cron" or chance.random() > 0.4:
        return entry
    return replace(entry, active=chance.choice(((0, 12), (8, 20))), zone=chance.choice(ZONES))


def _random_channels(chance: Random) -> tuple[str, ...]:
    return tuple(chance.sample(CHANNELS, chance.choice((1, 1, 2, 0))))


def _edit(chance: Random, entry: Entry) -> Entry:
    if chance.random() < 0.5:
        return entry
    deliver = _random_channels(chance)
    changes: dict[str, Any] = {"deliver": deliver, "is_enabled": chance.random() > 0.15}
    changes |= {} if deliver else {"hours": None}
    if entry.kind == "heartbeat":
        changes |= {"usd_per_day": chance.choice((None, 0.05, 0.3)), "retries": chance.choice((0, 2))}
    return replace(entry, **changes)


def _other_minutes(chance: Random, entry: Entry) -> int:
    return chance.choice((*[entry.minutes] * 4, *MINUTES.get(entry.rhythm, [entry.minutes])))


# --- the steps --------------------------------------------------------------------------------------------------------------


def random_steps(seed: int, number: int) -> list[Step]:
    """The steps of a seed. Those of a smaller number are the first of them. Each seed leaves some kinds of steps out."""
    chance = Random(f"steps {seed}")
    kinds = [kind for kind, weight in WEIGHTS.items() if kind in ALWAYS or chance.random() < 0.6 for _ in range(weight)]
    return [(kind := chance.choice(kinds), *(draw(chance) for draw in STEP_KINDS[kind])) for _ in range(number)]


def _of(*values: Any) -> Callable[[Random], Any]:
    return lambda chance: chance.choice(values)


def _below(limit: int) -> Callable[[Random], Any]:
    return lambda chance: chance.randrange(limit)


_PLACE, _TOKEN = _below(12), _below(5)  # the place of an entry or of a token, modulo their number
_OF_MESSAGE, _CRASH = _of(0, 0, 1, 2, 5, 40), _of(None, None, None, 3, 8, 20)  # the place before the newest; the statement
WEIGHTS = {
    "wait": 30, "answers": 14, "provider": 5, "channel": 5, "request": 12, "wake": 10, "ask": 6, "edit": 3, "lane": 4, "crash": 5,
    "restart": 2, "clock": 2, "sleep": 1, "result": 5, "cancel": 4, "message": 4, "problem": 4, "row": 3, "look": 4, "full": 2, "remind": 5,
    "question": 4, "reply": 4, "file": 4, "press": 6, "say": 10,
}  # fmt: skip
ALWAYS = ("wait", "answers", "wake", "question", "reply")
STEP_KINDS: dict[str, tuple[Callable[[Random], Any], ...]] = {
    "wait": (_of(*WAITS),),
    "answers": (_PLACE, _of(*MOODS), _below(27), _of(*DURATIONS), _of(None, 0.001, 0.01, 0.03)),
    "provider": (_of(*PROVIDERS), _of(*STATUSES), _of(None, "5", "40000")),
    "channel": (_of(*CHANNELS), _of("delivered", "delivered", "dead", "retry", "uncertain"), _of(0, 0, 70)),
    "request": (
        _TOKEN,
        _of("pause", "resume", "mute", "unmute", "run"),
        _PLACE,
        _below(4),
    ),
    "wake": (_TOKEN, _PLACE),
    "remind": (_TOKEN, _PLACE, _of(60, 1800, 7200), _of("at", "in")),
    "ask": (_TOKEN, _below(100), _PLACE),
    "edit": (_below(4),),
    "lane": (_PLACE, _of(*HOLDERS), _of(0, 300, 7200)),
    "crash": (_below(60), _of(*WAITS[:4]), _of(*DOWN)),
    "restart": (_of(*DOWN),),
    "clock": (_of(*JUMPS),),
    "sleep": (_of(600, 30_000),),
    "result": (_TOKEN, _PLACE, _of("prose", "quiet", "error")),
    "cancel": (_TOKEN, _PLACE, _CRASH),
    "message": (_TOKEN, _of("retry", "retry", "drop"), _PLACE),
    "problem": (_TOKEN, _of("close", "acknowledge", "unacknowledge"), _PLACE),
    "row": (_TOKEN, _of("get_run", "get_wake"), _PLACE),
    "look": (_PLACE, _of(*LOOKS)),
    "file": (_PLACE,),
    "question": (
        _of(0, 0, 0, 3),
        _PLACE,
        _of("a", "a", "b"),
        _of(60, 1500, 7200),
        _of((), ("yes", "no"), ("perhaps", "no")),
        _of("", *PEOPLE),
    ),
    "reply": (_of(0, 0, 0, 3, 4), _PLACE, _of("yes", "no", "no", "perhaps")),
    "full": (_of(*WAITS[:4]),),
    "press": (
        _OF_MESSAGE,
        _below(4),
        _of(*PEOPLE),
        _of("genuine", "genuine", "genuine", "forged", "elsewhere"),
        _CRASH,
        _of(1, 1, 2),
    ),
    "say": (
        _OF_MESSAGE,
        _of(
            "why?", "why?", "why?", "why?", "why?", "why?", "done", "done", "later", "later 2h", "30m", "tomorrow 9", "yes", "no"
        ),
        _of(*PEOPLE, "anna"),
        _of(True, True, True, False),
        _CRASH,
        _of("heartbeat", "cron", ""),
    ),
}


# --- the world --------------------------------------------------------------------------------------------------------------


class SimulatedWorld(CachingWorld):
    """A world whose agents, providers and channels do what the steps say, and whose daemon can end at any statement."""

    player: Player

    def __post_init__(self) -> None:
        self.crash_at: int | None = None
        self.is_full = False  # the disk
        super().__post_init__()

    def _execute(self, claim: Claim) -> tuple[Any, timedelta]:
        return self.player.execute(claim, super()._execute)

    def open_store(self) -> Any:
        store = super().open_store()
        begin = store.transaction
        store.transaction = lambda: self._crashing(begin)  # type: ignore[method-assign]
        return store

    @contextmanager
    def _crashing(self, begin: Callable[[], AbstractContextManager[UnitOfWork]]) -> Iterator[UnitOfWork]:
        """A transaction that ends the daemon at the statement `crash_at`, before its commit, or right after that."""
        with begin() as work:
            execute = work.execute

            def count_down(statement: str, values: Any = ()) -> Any:
                self._count_down()
                return execute(statement, values)

            if self.crash_at is not None:
                work.execute = count_down  # type: ignore[method-assign]
            yield work
            self._count_down()
            if self.is_full:
                raise DatabaseFull("there is no space left")
        self._count_down()

    def _count_down(self) -> None:
        if self.crash_at is None:
            return
        self.crash_at -= 1
        if self.crash_at < 0:
            self.crash_at = None
            raise Crash


@dataclass
class Mood:
    """What an agent or a job answers. `told` numbers a set of findings, `cost` is reported in USD if there is one."""

    word: str = "quiet"
    told: int = 0
    seconds: int = 0
    cost: float | None = 0.001


class Player:
    """Plays steps, and compares what happens with the reference."""

    def __init__(self, folder: Path, seed: int, server: str | None = None) -> None:
        self.seed = seed
        self.trace: list[str] = []
        self.moods: dict[str, Mood] = {}
        self.looks: dict[str, str] = {}
        self.wanted: set[str] = set()  # messages that a user wants to be sent now
        self.before_chat: set[Effect] | None = None  # what people had changed before what a person has sent now
        self.look = ""  # what the precheck of the present attempt has found
        self.requests: list[tuple[str, int]] = []  # that the present attempt has sent to providers, with their statuses
        self.providers: dict[str, tuple[int, str | None]] = dict.fromkeys(PROVIDERS, (200, None))
        self.channels: dict[str, tuple[str, int]] = dict.fromkeys(CHANNELS, ("delivered", 0))
        self.wake_numbers, self.file_numbers = count(1), count(1)
        self.setup = random_setup(seed)
        start, zone = STARTS[seed % len(STARTS)]
        self.reference = Reference(
            dict(self.setup.entries), self.setup.usd_per_day, utc(start), self.setup.usd_per_month, ZoneInfo(zone)
        )
        self.entries = list(self.setup.entries.values())  # also those that an edit removes
        self.tokens = _tokens([entry.name for entry in self.entries if entry.kind == "heartbeat"])
        self.call: Call | None = None
        self.claim: Claim | None = None
        self.broken: Broken | None = None  # at the start of a run
        self.refusal = ""  # why the last refused request was refused
        self.loop = asyncio.new_event_loop()
        scripts = {entry.name: self._program for entry in self.entries}
        self.world = SimulatedWorld(
            folder, self.setup.yaml(), start, scripts=scripts, prechecks={entry.name: self._precheck for entry in self.entries},
            server=server, send=self._send, http=self,
        )  # fmt: skip
        self.world.player = self
        self.reference.people = frozenset(("anna", "carl"))
        self.chat = SimulatedChat()
        self.chat.start(self.world.inbox.submit)
        self.world.settle()

    # --- agents, providers and channels ---------------------------------------------------------------------------------

    def execute(self, claim: Claim, execute: Callable[[Claim], tuple[Any, timedelta]]) -> tuple[Any, timedelta]:
        """Execute an attempt. It takes time only if it calls its agent."""
        self.claim, self.call, self.look, self.requests = claim, None, "", []
        self.world.durations[claim.entry.name] = timedelta(seconds=self.moods.get(claim.entry.name, Mood()).seconds)
        result, duration = execute(claim)
        try:
            self.reference.check_requests((str(claim.entry.kind), claim.entry.name), self.requests)
        except Broken as error:
            self.broken = self.broken or error
        return result, duration if self.call else timedelta()

    @property
    def claimed(self) -> Claim:
        assert self.claim is not None
        return self.claim

    def _starts(self, prompt: str) -> None:
        """The program of a claim starts, or its model is called. What this breaks is kept: the run would only fail of it."""
        try:
            self._check_start(prompt)
        except Broken as error:
            self.broken = self.broken or error
            raise

    def _check_start(self, prompt: str) -> None:
        claim = self.claimed
        key = (str(claim.entry.kind), claim.entry.name)
        if self.call is not None:
            return  # a further question of the same attempt
        running = [(str(each.entry.kind), each.entry.name) for each in self.world.runs.inflight().values()]
        self._settle_calls(claim.run.id)
        self.reference.now = self.world.clock.now
        self.reference.check_start(key, claim.run.id, f"{claim.run.trigger} {claim.run.slot}", running)
        self.reference.check_precheck(key, self.look, is_woken=bool(claim.facts.wakes))
        shown = prompt
        if f"`heartbeatd show {claim.run.id}` shows them in full" in prompt:  # there was no room for all texts
            shown += "\n".join(wake.text for wake in wakes_of_run(self.world.store.connection, claim.run.id))
        quoted = MARK.findall("\n".join(each.text for each in self.chat.messages)) if "It answers this message" in shown else []
        marks = sorted({*MARK.findall(shown)} - {*quoted})  # a message names the wakes that have expired, and a reply quotes it
        self.reference.check_marks(key, marks)
        if self.before_chat is not None and ("resume", *key) in self._state_of_chat() - self.before_chat:
            self._resumed(key)  # a run starts in the tick in which a person resumes it
        ended = self.world.store.connection.execute(ENDED, key).fetchall()
        self.reference.check_pause(key, claim.run.id, [(row[0], bool(row[1])) for row in ended if row[0] != claim.run.id])
        self.reference.marks[claim.run.id] = frozenset(marks)
        self.reference.files_shown(claim.run.id, NEW_FILE.findall(prompt))
        self.call = self.reference.call_starts(key, claim.run.id)
        self._note("start", *key, claim.run.id, claim.run.attempt, *marks)

    def _program(self, call: AgentCall) -> Any:
        self._starts(call.stdin)
        assert self.call is not None
        mood = self.moods.get(call.name, Mood())
        if self.claimed.entry.kind == Kind.CRON:
            return 3 if mood.word == "fails" else f"output of {call.name}" if mood.word in ("findings", "prose") else ""
        if mood.word == "fails":
            return 3
        if mood.word == "limited":
            self.call.known = 0.0
            since = self.world.clock.now + timedelta(seconds=mood.seconds)
            self.reference.program_limited(since, since + timedelta(hours=2))
            return ProcessResult(1, b"You've hit your usage limit, try again in 2 hours")
        self.call.known = mood.cost
        answer: dict[str, Any] = {} if mood.cost is None else {"total_cost_usd": mood.cost}
        if mood.word == "findings":
            return json.dumps({"findings": _findings(call.name, mood.told)} | answer)
        return json.dumps({"result": _words(call.name, mood.word), "truncated": mood.word == "cut"} | answer)

    def _precheck(self, call: AgentCall) -> Any:
        self.look = self.looks.get(call.name, "work")
        return {"nothing": "NO_WORK", "fails": 3}.get(self.look, "two letters wait")

    def _gateway(self, prompt: str) -> HttpReply:
        """A request to an agent that may answer later. Then it may use anything until its result comes."""
        self._starts(prompt)
        assert self.call is not None
        name, kind = self.claimed.entry.name, {"content-type": "application/json"}
        mood = self.moods.get(name, Mood())
        if mood.word == "late":
            return HttpReply(202, kind, b"{}")
        if mood.word == "fails":
            return HttpReply(500, kind, b"{}")
        self.call.known = mood.cost
        words = json.dumps({"findings": _findings(name, mood.told)}) if mood.word == "findings" else _words(name, mood.word)
        answer = {"text": words, "truncated": mood.word == "cut"} | ({} if mood.cost is None else {"cost_usd": mood.cost})
        return HttpReply(200, kind, json.dumps(answer).encode())

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, seconds: float) -> HttpReply:
        """A request to a provider or to an agent."""
        sent = json.loads(body)
        if url.endswith("/gateway"):
            return self._gateway(sent["prompt"])
        name = self.claimed.entry.name
        provider = next(each for each in PROVIDERS if f"/{each}" in url)
        self._starts(json.dumps(sent["messages"], ensure_ascii=False))
        status, wait = self.providers[provider]
        self._note("request", provider, name, sent["model"], status)
        self.requests.append((provider, status))
        assert self.call is not None
        kind = {"content-type": "application/json"}
        if status != 200:
            if status in BILLED_NOTHING and self.call.known is None:
                self.call.known = 0.0
            elif (
                status not in BILLED_NOTHING
            ):  # before a fallback, what the call itself can have cost at most: at least its answer
                has_fallback = bool(self.reference.entries[self.call.key].fallback)
                self.call.known = OUTPUT_TOKENS * OUTPUT_PRICE / 1e6 if has_fallback else self.call.maximum
            error = {"error": {"message": "no", "type": "error", "code": None}}
            return HttpReply(status, kind | ({"retry-after": wait} if wait else {}), json.dumps(error).encode())
        mood = self.moods.get(name, Mood())
        used = {None: (0, 0), 0.001: (250, 50), 0.01: (500, 100), 0.03: (700, OUTPUT_TOKENS)}[mood.cost]
        # A report of no tokens is not believed: the answer may have cost what it can cost at most.
        cost = used[0] * 2.0 + (used[1] or OUTPUT_TOKENS) * 10.0
        self.call.known = (self.call.known or 0.0) + cost / 1e6
        usage = {"prompt_tokens": used[0], "completion_tokens": used[1]}
        if mood.word in ("findings", "quiet") and sent.get("tools"):
            found = _findings(name, mood.told) if mood.word == "findings" else []
            answer = completion(None, "tool_calls", calls=[tool("report_findings", {"findings": found})], usage=usage)
        else:
            answer = completion(_words(name, mood.word), "length" if mood.word == "cut" else "stop", usage=usage)
        return HttpReply(200, kind, json.dumps(answer).encode())

    def _send(self, outgoing: Delivery) -> Any:
        channel, key, words = outgoing.channel.name, outgoing.message.key, outgoing.message.text
        state, seconds = self.channels.get(channel, ("delivered", 0))
        self._note("send", channel, key, state, words)
        self.reference.now = self.world.clock.now
        about = (str(outgoing.message.kind), outgoing.message.name)
        is_first = f"{channel} {key}" not in self.reference.texts  # only these wait for hours
        if is_first and key not in self.wanted and not (outgoing.message.notice or "").startswith(NOT_HELD):
            self.reference.check_hours(about, channel, words)
            self.reference.check_mute(about, outgoing.message.created_at, words)
        self.reference.message_tried(channel, key, words, state)
        has_arrived = self.setup.has_chat and channel == "phone" and state in ("delivered", "uncertain")
        receipt = self.chat.receive(outgoing, self.world.clock.now) if has_arrived else ""
        return Delayed(DeliveryResult(state, "" if state == "delivered" else "no", receipt=receipt), timedelta(seconds=seconds))

    def _note(self, *words: object) -> None:
        self.trace.append(f"{self.world.clock.now:%m-%d %H:%M:%S} " + " ".join(map(str, words)))

    # --- playing --------------------------------------------------------------------------------------------------------

    def play(self, steps: Sequence[Step]) -> list[str]:
        """Play the steps, then wait for quiet. Returns the trace."""
        for number, step in enumerate(steps):
            self.trace.append(f"{number} {step}")
            getattr(self, f"_step_{step[0]}")(*step[1:])
            self._saw_time()
            if number % 8 == 7:
                self._check_records(is_quiet=False)
        self._come_to_rest()
        return self.trace

    def close(self) -> None:
        self.world.store.close()
        self.loop.close()

    def _saw_time(self) -> None:
        if self.broken is not None:
            raise self.broken
        if broken := [part for part, number in self.world.engine.health.internal_errors.items() if number]:
            raise Broken("internal error", f"in {', '.join(broken)}")
        self.reference.time_passed(self.world.clock.now)

    def _run(self, seconds: float) -> None:
        self.world.run(seconds=seconds)
        self._saw_time()
        self._settle_calls()

    def _settle_calls(self, repeated: int | None = None) -> None:
        """Calls whose end the daemon knows are charged with what they cost. The run `repeated` calls its agent again."""
        running = {claim.run.id for claim in self.world.runs.inflight().values()} - {repeated}
        for call in self.reference.calls:
            call.is_open = call.is_open and call.run in running

    def _entry(self, place: int, kind: str = "") -> Entry:
        found = [entry for entry in self.entries if kind in ("", entry.kind)]
        return found[place % len(found)]

    def _step_wait(self, seconds: float) -> None:
        self._run(seconds)

    def _step_answers(self, place: int, word: str, told: int, seconds: int, cost: float | None) -> None:
        self.moods[self._entry(place).name] = Mood(word, told, seconds, cost)

    def _step_provider(self, name: str, status: int, wait: str | None) -> None:
        self.providers[name] = (status, wait)

    def _step_channel(self, name: str, state: str, seconds: int) -> None:
        self.channels[name] = (state, seconds)

    def _step_edit(self, edit: int) -> None:
        self.setup = random_setup(self.seed, edit)
        self._saw_time()
        self._count_failures_anew(*self.setup.entries)
        self.reference.reload(
            self.setup.entries, self.setup.usd_per_day, self.setup.usd_per_month
        )  # runs start while the daemon reloads
        self.world.reload(self.setup.yaml())

    def _count_failures_anew(self, *keys: Key) -> None:
        """Failures before now pause none of these entries."""
        newest = self.world.store.connection.execute("select max(id) from run").fetchone()[0] or 0
        self.reference.counts_failures_from |= dict.fromkeys(keys, newest + 1)

    def _resumed(self, *keys: Key) -> None:
        self._count_failures_anew(*keys)
        for key in keys:
            self.reference.paused.pop(key, None)

    def _step_lane(self, place: int, holder: str, seconds: int) -> None:
        name = self._entry(place, "heartbeat").name
        span = timedelta(seconds=seconds)
        verb = HoldLock(id=holder, for_=span) if seconds else ReleaseLock(id=holder)
        if not seconds:
            self.reference.lane_released(name, holder)  # the tick that answers starts runs that wait for it
        try:
            self.world.request(VerbRequest(verb, (Kind.HEARTBEAT, name)))
        except Refused:
            return
        if seconds:
            self.reference.lane_held(name, holder, self.world.clock.now + span)

    def _step_crash(self, statement: int, seconds: float, down: float) -> None:
        """Let time pass, and end the daemon at a statement. Without so many statements, end it afterwards."""
        self.world.crash_at = statement
        with suppress(Crash):
            self._run(seconds)
        self._kill(down)

    def _kill(self, down: float) -> None:
        self.world.crash_at = None
        self.reference.limited = None  # a limit that it has not recorded is not known
        self._note("killed")
        self._settle_recorded_calls()
        self.world.kill()
        self._boot(down)

    def _settle_recorded_calls(self) -> None:
        """Calls are charged with what they cost if their result is recorded, also if their run waits for another attempt."""
        running = {row[0] for row in self.world.store.connection.execute("select id from run where state = 'running'").fetchall()}
        for call in self.reference.calls:
            call.is_open = call.is_open and call.run in running

    def _step_restart(self, down: float) -> None:
        self._settle_recorded_calls()
        self.reference.limited = None
        self.world.stop()
        self._boot(down)

    def _boot(self, down: float) -> None:
        """Start the daemon again. It cannot know which of the messages that it was sending have arrived."""
        deliveries = self.world.deliveries
        for outgoing in (*deliveries.inflight().values(), *(done.task for _, done in deliveries.results())):
            self.reference.may_be_sent_again(outgoing.channel.name, outgoing.message.key)
        for call in self.reference.calls:
            if call.is_open:  # interrupted: its usage is never reported
                call.known, call.is_open = None, False
        self.world.clock.advance(timedelta(seconds=down))
        self.world.boot()
        self.chat.start(self.world.inbox.submit)
        self.world.settle()
        self._saw_time()

    def _step_full(self, seconds: float) -> None:
        """For some time the disk of the database is full: no tick is committed."""
        self.world.is_full = True
        for _ in range(int(seconds)):
            self.world.engine.tick(self.world.clock.read())
            self.world.clock.advance(timedelta(seconds=1))
        self.world.is_full = False
        self._run(2)

    def _step_look(self, place: int, found: str) -> None:
        self.looks[self._entry(place).name] = found

    def _step_file(self, place: int) -> None:
        """A file comes. It counts once a precheck has found nothing new, so that the first look is over."""
        entry, number = self._entry(place, "heartbeat"), next(self.file_numbers)
        name = entry.name
        path = self.world.write(f"{name}/inbox/file-{number}", "x" * number)
        os.utime(path, (self.world.clock.now.timestamp(),) * 2)
        db = self.world.store.connection
        if entry.looks_at_files and db.execute(f"{NOTHING_FOUND} and name = ?", (name,)).fetchone() is not None:
            newest = db.execute("select max(id) from run").fetchone()[0]
            self.reference.files[f"file-{number}"] = NewFile(name, newest)

    def _step_clock(self, seconds: int) -> None:
        self.reference.clock_changed(timedelta(seconds=seconds))
        self.world.clock.now += timedelta(seconds=seconds)
        self.reference.limited = None
        if seconds < 0:
            self._count_failures_anew(*self.reference.slots)  # the times of runs say no longer which of them ended first
        self._run(1)

    def _step_sleep(self, seconds: int) -> None:
        self.world.sleep(seconds=seconds)
        self._run(1)

    # --- requests -------------------------------------------------------------------------------------------------------

    def _step_wake(self, token: int, place: int) -> None:
        name = self._entry(place, "heartbeat").name
        mark = f"wake-{next(self.wake_numbers)};"
        sender = self.tokens[token % len(self.tokens)]
        answer = self._perform(sender, "wake_agent", {"name": name}, ("heartbeat", name), {"text": mark})
        if answer is not None:
            self.reference.wake_accepted(answer["wake"], name, sender.name, mark)
        elif self.refusal in (RejectedBecause.DISABLED, RejectedBecause.OWN_RUN, RejectedBecause.TOO_MANY):
            self.reference.wake_refused(name)

    def _step_remind(self, token: int, place: int, seconds: int, word: str) -> None:
        name = self._entry(place, "heartbeat").name
        mark = f"wake-{next(self.wake_numbers)};"
        sender = self.tokens[token % len(self.tokens)]
        at = self.world.clock.now + timedelta(seconds=seconds)
        keys: dict[str, object] = {"in": f"{seconds}s"} if word == "in" else {"at": at.isoformat()}
        answer = self._perform(sender, "wake_agent", {"name": name}, ("heartbeat", name), {"text": mark} | keys)
        if answer is not None:
            # One with `in` moves with the clock, so it is only looked at whether it comes.
            self.reference.wake_accepted(
                answer["wake"], name, sender.name, mark, at if word == "at" else utc("2026-01-01 00:00:00")
            )
        elif self.refusal in (RejectedBecause.DISABLED, RejectedBecause.OWN_RUN, RejectedBecause.TOO_MANY_REMINDERS):
            self.reference.wake_refused(name)

    def _step_request(self, token: int, word: str, place: int, more: int) -> None:
        caller = self.tokens[token % len(self.tokens)]
        entry = self._entry(place)
        if word in ("pause", "resume", "mute", "unmute"):
            noun = "agent" if entry.kind == "heartbeat" else "job"
            ends: dict[str, object] = {"for": f"{PAUSES[more] // MINUTE}m"} if word in ("pause", "mute") else {}
            if word in ("pause", "resume"):
                self._count_failures_anew(entry.key)  # also if it is refused: this is only less strict
            until = (
                self.reference.paused.pop(entry.key, None) if word == "resume" else None
            )  # it may run in the tick that answers
            if self._perform(caller, f"{word}_{noun}", {"name": entry.name}, entry.key, ends) is None:
                self.reference.paused |= {entry.key: until} if until else {}
            elif word == "pause":
                self.reference.paused[entry.key] = self.world.clock.now + PAUSES[more]
            elif word == "mute":
                self.reference.now = self.world.clock.now
                self.reference.muted_until(entry.key, self.world.clock.now + PAUSES[more])
            elif word == "unmute":
                self.reference.muted.pop(entry.key, None)
        elif word == "run":
            job = next((each for each in self.entries if each.kind == "cron"), None)
            if job is not None:
                self._perform(caller, "run_job", {"name": job.name}, job.key, {})

    def _row(self, query: str, place: int) -> Any:
        """One of the rows that a query finds; None if it finds none."""
        rows = self.world.store.connection.execute(query).fetchall()
        return rows[place % len(rows)] if rows else None

    def _perform_on(self, token: int, name: str, row: Any, keys: dict[str, object]) -> dict[str, Any] | None:
        """Send a request about a row with the columns id, kind and name. None if there is no row, or it is refused."""
        if row is None:
            return None
        key = (row["kind"], row["name"]) if row["kind"] in ("heartbeat", "cron") else None
        return self._perform(self.tokens[token % len(self.tokens)], name, {"id": str(row["id"])}, key, keys)

    def _step_result(self, token: int, place: int, word: str) -> None:
        row = self._row("select id, kind, name from run where outcome = 'async' order by id desc limit 3", place)
        keys: dict[str, object] = {"error": "it broke"} if word == "error" else {"text": _words("it", word)}
        if self._perform_on(token, "report_result", row, keys) is not None:
            self.reference.result_accepted(row["id"])

    def _step_cancel(self, token: int, place: int, crash: int | None) -> None:
        """Cancel a run, and perhaps end the daemon before it has recorded the end of the run."""
        row = self._row(
            "select id, kind, name from run where state <> 'closed' or outcome = 'async' order by id desc limit 5", place
        )
        if self._perform_on(token, "cancel_run", row, {}) is not None:
            self.reference.run_cancelled(row["id"])
            self.reference.limited = None  # it may have been this run that was limited
            if crash is not None:
                self._step_crash(crash, 5, 1)

    def _step_question(self, token: int, place: int, key: str, seconds: int, replies: Sequence[str], person: str) -> None:
        """Start an agent or a job that takes forty minutes, ask twice with one key in a run in progress, press a button, and reply."""
        entry = self._entry(place)
        self.moods[entry.name] = Mood("late" if place % 2 else "quiet", seconds=40 * 60)
        if entry.kind == "heartbeat":
            self._step_wake(0, [each for each in self.entries if each.kind == "heartbeat"].index(entry))
        else:
            self._perform(self.tokens[0], "run_job", {"name": entry.name}, entry.key, {})
        self._run(40)
        row = self._row("select id, kind, name from run where state = 'running' or result_due_at > 0 order by id desc", place)
        keys: dict[str, object] = {"text": f"Go on with {key}?", "key": key, "timeout": f"{seconds}s"}
        for _ in range(2):
            answer = self._perform_on(token, "ask_person", row, keys)
            if answer is not None:
                until = self.world.clock.now + timedelta(seconds=seconds)
                self.reference.question_asked(answer["question"]["id"], row["id"], key, until)
            self._run(60)
        for message in [each for each in self.chat.messages if each.question is not None][-1:] if person else ():
            self._press(message, "no", message.buttons["no"], person, "genuine", None)
        for word in replies:
            self._step_reply(token, 0, word)

    def _step_reply(self, token: int, place: int, word: str) -> None:
        row = self._row("select id, kind, name from question order by id desc limit 3", place)
        if self._perform_on(token, "answer_question", row, {"answer": word}) is not None:
            self.reference.now = self.world.clock.now
            self.reference.question_answered(row["id"], word)

    def _step_message(self, token: int, word: str, place: int) -> None:
        row = self._row(
            "select id, kind, name, channel, key from outbox where state <> 'delivered' order by id desc limit 5", place
        )
        dead = set(self.reference.dead)
        if row is not None and word == "retry":
            self.wanted.add(row["key"])
            self.reference.message_retried(row["channel"], row["key"])  # the tick that answers sends it, too
        is_accepted = self._perform_on(token, f"{word}_message", row, {}) is not None
        if is_accepted and word == "drop":
            self.reference.message_dropped(row["channel"], row["key"])
        elif not is_accepted:
            self.reference.dead = dead

    def _step_problem(self, token: int, word: str, place: int) -> None:
        row = self._row("select id, kind, name from problem order by over_at is not null, id desc limit 6", place)
        self._perform_on(token, f"{word}_problem", row, {})

    def _step_row(self, token: int, question: str, place: int) -> None:
        table = "run" if question == "get_run" else "wake"
        self._perform_on(token, question, self._row(f"select id, kind, name from {table} order by id desc limit 12", place), {})

    # --- the chat -------------------------------------------------------------------------------------------------------

    def _step_press(self, place: int, button: int, person: str, how: str, crash: int | None, times: int) -> None:
        """Press a button of a message, perhaps twice, in another chat, or with the code of another message."""
        messages = [each for each in self.chat.messages if each.buttons]
        if not messages:
            return
        message = messages[-1 - place % len(messages)]
        label = sorted(message.buttons)[button % len(message.buttons)]
        data = message.buttons[label]
        if how == "forged":
            action, number, *rest = data.split(":")
            data = ":".join((action, f"{int(number, 16) + 1:x}", *rest))
        for _ in range(times):
            self._press(message, label, data, person, how, crash)

    def _press(self, message: ChatMessage, label: str, data: str, person: str, how: str, crash: int | None) -> None:
        self.chat.press(data, person, OTHER_CHAT if how == "elsewhere" else CHAT)
        done = self._effects_of_chat(person, crash)
        self.reference.check_press(message, label, person, is_genuine=how == "genuine", done=done)

    def _step_say(self, place: int, text: str, person: str, is_here: bool, crash: int | None, kind: str) -> None:
        """Reply to a message, if possible to one about an agent or a job."""
        known = {
            row[0] for row in self.world.store.connection.execute("select receipt from outbox where receipt <> ''").fetchall()
        }
        messages = [each for each in self.chat.messages if each.is_whole and str(each.number) in known]
        if not messages:
            return
        messages = [each for each in messages if each.about[0] == kind] or messages
        message, mark = messages[-1 - place % len(messages)], ""
        if text == "why?":
            mark = f"wake-{next(self.wake_numbers)};"
            text = f"{mark} {text}"
        self.chat.reply(message.number, text, person, CHAT if is_here else OTHER_CHAT)
        done = self._effects_of_chat(person, crash, mark)
        self.reference.check_reply(message, text, person, is_here=is_here, done=done, open_=self._still_open(message))

    def _still_open(self, message: ChatMessage) -> set[int]:
        """The problems of a message that are still open, also those that a later message is about."""
        query = "select id, opened_at from problem where over_at is null and opened_at is not null"
        opened = self.world.store.connection.execute(query).fetchall()
        return message.problems & {row[0] for row in opened if from_millis(row[1]) <= message.at}

    def _effects_of_chat(self, person: str, crash: int | None, mark: str = "") -> set[Effect]:
        """Let the daemon ask for what a person has sent, perhaps end it at a statement, and return what has changed."""
        before, refused = self._state_of_chat(), self._refused_as_disabled()
        self.before_chat = before
        self.world.crash_at = crash
        try:
            self.chat.poll(self.world.engine.plan.settings.channels, self.world.settle)
        except Crash:
            self._kill(0)
        self.world.crash_at = None
        self.chat.poll(self.world.engine.plan.settings.channels, self.world.settle)
        self._saw_time()
        self.reference.refused += self._refused_as_disabled() - refused
        done = self._state_of_chat() - before
        self.before_chat = None
        for kind, name, number, _ in [each[1:] for each in done if each[0] == "wake"]:
            if kind == "heartbeat":
                self.reference.wake_accepted(number, name, f"{person} on phone", mark, is_kept=True)
        self._resumed(*(each[1:] for each in done if each[0] == "resume"))
        self._note("did", *sorted(map(str, done)), *self.chat.answers[-1:])
        return done

    def _refused_as_disabled(self) -> Counter[str]:
        """How many wakes of each agent were not accepted because it is disabled. Those that were, and end for that, do not count."""
        sums = "cast(sum(count) as integer)"
        query = f"select agent, {sums} from rejected_wake where why = 'disabled' and {BY_PEOPLE} group by agent"
        waiting = f"select name, {sums} from wake where state in ('waiting', 'taken') and {BY_PEOPLE} group by name"
        counted: Counter[str] = Counter()
        for each in (query, waiting):
            counted += Counter(dict(map(tuple, self.world.store.connection.execute(each).fetchall())))
        return Counter({name: number for name, number in counted.items() if not self.reference.is_active(("heartbeat", name))})

    def _state_of_chat(self) -> set[Effect]:
        """What people in the chat have changed."""
        return {
            (row[0], *row[1:-1], from_optional_millis(row[-1])) if row[0] in ("mute", "again") else tuple(row)
            for query in EFFECTS
            for row in self.world.store.connection.execute(query).fetchall()
        }

    def _step_ask(self, token: int, question: int, place: int) -> None:
        caller = self.tokens[token % len(self.tokens)]
        name = QUESTION_NAMES[question % len(QUESTION_NAMES)]
        endpoint = ENDPOINTS[name]
        kind = "cron" if endpoint.concern is Concern.JOB else "heartbeat"
        entry = self._entry(place, kind) if any(each.kind == kind for each in self.entries) else self.entries[0]
        keys = {"name": entry.name} if name == "list_runs" and caller.agents is not None else {}
        self._perform(caller, name, {"name": entry.name}, entry.key, keys)

    def _perform(
        self, token: Token, name: str, path: dict[str, str], key: Key | None, keys: dict[str, object]
    ) -> dict[str, Any] | None:
        """Send a request of the API, and compare whether it is accepted, and what the answer shows."""
        endpoint = ENDPOINTS[name]
        concerned = None if endpoint.concern is Concern.ALL else key
        is_allowed = token.may_do(endpoint.operation.may, concerned)
        if endpoint.concern is Concern.PART:
            is_allowed = endpoint.operation.may is None or endpoint.operation.may in token.may
        try:
            answer = self._exchange(token, name, path, keys)
        except (HttpError, Refused) as error:
            self.refusal, status = error.code, error.status if isinstance(error, HttpError) else 409
            self._note("refused", token.name, name, path, status)
            if isinstance(error, Refused) and error.code == "broken":
                raise Broken("internal error", f"{token.name} could not {name} {path}") from None
            if is_allowed and status == 403 and name not in ("list_runs", "get_explanation", "get_plan"):
                raise Broken("rights", f"{token.name} may not {name} {path}: {error}") from None
            self.reference.check_view(token, name, str(error).replace(path.get("name", ""), ""))
            return None
        shown = answer.model_dump_json()
        self._note("answer", token.name, name, path, len(shown))
        if not is_allowed:
            raise Broken("rights", f"{token.name} did {name} {path}")
        self.reference.check_view(token, name, shown)
        return cast("dict[str, Any]", json.loads(shown))

    def _exchange(self, token: Token, name: str, path: dict[str, str], keys: dict[str, object]) -> Any:
        """The request in a loop of its own. The engine ticks when it has got it."""
        submitted: asyncio.Future[None] = self.loop.create_future()

        def submit(request: Request) -> Any:
            submitted.set_result(None)
            return self.world.inbox.submit(request)

        state = AppState(
            settings=lambda: self.world.engine.plan.settings, submit_request=submit, reloader=cast("Any", None), metrics=cast("Any", None),
            health=self.world.engine.health, count_running=dict, clock=lambda: self.world.clock.now,
            database_path=self.world.state, feed=cast("Any", None), server=self.world.server,
        )  # fmt: skip
        caller = Caller(token.name, cast("Any", token.may), token.agents)
        query = {} if ENDPOINTS[name].method != "GET" else {each: str(value) for each, value in keys.items()}
        request = ApiRequest(state, caller, path, query, Headers({}))
        operation = ENDPOINTS[name].operation.of(**keys)

        async def exchange() -> Any:
            return await perform(request, name, operation)

        task = self.loop.create_task(exchange())
        self.loop.run_until_complete(asyncio.wait({task, submitted}, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED))
        if not task.done():
            self.world.engine.tick(self.world.clock.read())
        return self.loop.run_until_complete(task)

    # --- quiet ----------------------------------------------------------------------------------------------------------

    def _come_to_rest(self) -> None:
        """Everything works again, for long enough that nothing waits. Then everything must have its end."""
        self.trace.append("rest")
        self.moods, self.looks = {}, {}
        self.providers = dict.fromkeys(PROVIDERS, (200, None))
        self.channels = dict.fromkeys(CHANNELS, ("delivered", 0))
        self._resumed(*self.reference.slots)
        self.world.resume(None)
        for entry in self.entries:
            for holder in HOLDERS if entry.kind == "heartbeat" else ():
                self._step_lane(self.entries.index(entry), holder, 0)
        recent = to_millis(self.world.clock.now - timedelta(hours=11))
        old = {row[0] for row in self.world.store.connection.execute(OLD_WAKES, (recent,)).fetchall()}
        expired = self._expired_wakes()
        self._run(27 * 3600)
        self.reference.check_expired((self._expired_wakes() - expired).keys() - old)
        self._count_failures_anew(*self.reference.slots)
        self.world.resume(None)  # what late results have paused since
        self._run(67)
        for _ in range(200):  # until no run is in progress at a time without a slot
            if not self.world.runs.inflight() and not self._open_runs():
                break
            self._run(67)
        self._check_records(is_quiet=True)
        db = self.world.store.connection
        self.reference.check_outbox([tuple(row) for row in db.execute(MESSAGES).fetchall()])
        states = {row[0]: row[1] for row in db.execute("select id, state from wake").fetchall()}
        answered = [row[0] for row in db.execute("select id from run where outcome in ('ok', 'alert', 'async')").fetchall()]
        self.reference.check_wakes(states, answered, *(dict(map(tuple, db.execute(query).fetchall())) for query in WAKE_COUNTS))
        self.reference.check_questions(
            [
                (row[0], row[1], *map(from_optional_millis, row[2:4]), *row[4:])
                for row in map(tuple, db.execute(QUESTIONS).fetchall())
            ]
        )
        found = [(row[0], row[1]) for row in db.execute(NOTHING_FOUND).fetchall()]
        nothing = {name: [run for run, of in found if of == name] for _, name in found}
        final = [row[0] for row in db.execute(FINAL).fetchall()]
        self.reference.check_files(nothing, answered, final)
        results: dict[int, list[str]] = {}
        for run, reason in db.execute(RESULTS).fetchall():
            results.setdefault(run, []).extend([] if reason is None else [reason])
        self.reference.check_results(results)
        ends = [(row[0], row[1], bool(row[2]), from_millis(row[3])) for row in db.execute(ENDS).fetchall()]
        starts = [(row[0], row[1], bool(row[2])) for row in db.execute(TAKEN).fetchall()]
        for job, detail in db.execute(UNSTARTED).fetchall():
            starts += [(job, int(number), False) for number in BEFORE.findall(detail or "")]
        self.reference.check_chains(ends, starts)
        self.trace += self.world.history()

    def _expired_wakes(self) -> Counter[str]:
        return Counter(dict(map(tuple, self.world.store.connection.execute(EXPIRED).fetchall())))

    def _open_runs(self) -> int:
        return int(self.world.store.connection.execute("select count(*) from run where state <> 'closed'").fetchone()[0])

    def _check_records(self, *, is_quiet: bool) -> None:
        rows = self.world.store.connection.execute(
            "select kind, name, sum(slots) from run where trigger in ('interval', 'schedule', 'every') group by kind, name"
        ).fetchall()
        self.reference.check_slots({(row[0], row[1]): row[2] for row in rows}, is_quiet=is_quiet)


BY_PEOPLE = "source in ('api', 'manual', 'reminder')"  # and by programs; and not by jobs

# How many wakes of people and programs each agent got in answered runs, and how many are on record as rejected.
WAKE_COUNTS = (
    f"""
    select wake.name, cast(sum(wake.count) as integer) from wake join run on run.id = wake.run_id
    where wake.{BY_PEOPLE} and wake.state = 'ended' and run.outcome in ('ok', 'alert', 'async') group by wake.name
    """,
    f"select agent, cast(sum(count) as integer) from rejected_wake where {BY_PEOPLE} group by agent",
)

# The agents with wakes that have waited for long, and how many wakes of each agent have expired.
OLD_WAKES = f"select name from wake where state in ('waiting', 'taken') and {BY_PEOPLE} and updated_at < ?"
EXPIRED = f"select agent, cast(sum(count) as integer) from rejected_wake where {BY_PEOPLE} and why = 'expired' group by agent"

# What people in a chat can change.
EFFECTS = (
    "select 'mute', kind, name, muted_until from entry where muted_until is not null",
    "select 'resume', kind, name from entry where paused_until is null",
    "select 'acknowledge', id from problem where acked_at is not null",
    "select 'close', id from problem where ended_by = 'user'",
    "select 'wake', kind, name, id, count from wake where sender like '% on phone' or (kind = 'cron' and source = 'api')",
    "select 'answer', id, answer from question where answer is not null",
    "select 'again', channel || ' ' || key, text, not_before from outbox where notice like 'again %' and attempts = 0",
)

# The runs of agents that were skipped because their prechecks found nothing, and the runs with a whole answer.
NOTHING_FOUND = "select id, name from run where kind = 'heartbeat' and reason = 'precheck'"
FINAL = "select id from run where outcome in ('ok', 'alert') and truncated = 0 and suppression is distinct from 'no_findings'"

# Each run that has answered "later", with the reason or the outcome of its results.
RESULTS = (
    "select run.id, coalesce(result.reason, result.outcome) from run left join run as result on result.kind = run.kind"
    " and result.name = run.name and result.slot = run.slot and result.trigger = 'result' where run.outcome = 'async' order by 1"
)

# The questions with their ends, those of their runs, and how many channels got the question and a message about its end.
QUESTIONS = """
select question.id, answer, question.ended_at, (select max(ended.finished_at) from run as ended where ended.kind = run.kind
    and ended.name = run.name and ended.slot = run.slot and ended.state = 'closed' and ended.outcome <> 'async'),
  (select count(*) from outbox where run_id = run.id and notice = 'question ' || question.id and state = 'delivered'),
  (select count(*) from outbox where run_id = run.id and notice = 'question ' || question.id || ' has ended')
from question join run on run.id = question.run_id order by 1
"""

# The last runs of an entry that count for `pause_after`, and whether they have failed.
ENDED = (
    "select id, outcome not in ('ok', 'alert') from run where kind = ? and name = ? and state = 'closed'"
    " and outcome not in ('skipped', 'async') and reason is distinct from 'cancelled' and reason is distinct from 'limited'"
    " order by slot desc, id desc limit 5"  # a late result is older than the answers to later slots
)

# The messages, without those that wait for the hours of their recipient, or were sent together with others.
MESSAGES = "select channel, key, state from outbox where merged_into is null and awaits is distinct from '[]'"

# The ends of jobs, and the runs and skips of the jobs that follow them.
ENDS = (
    "select name, id, outcome not in ('ok', 'alert'), finished_at from run"
    " where kind = 'cron' and state = 'closed' and outcome <> 'skipped'"
    " and reason is distinct from 'cancelled'"
)
TAKEN = (
    "select wake.name, wake.after_run, run.outcome is distinct from 'skipped' from wake join run on run.id = wake.run_id"
    " where wake.kind = 'cron' and wake.after_run is not null"
)
UNSTARTED = "select name, error from run where kind = 'cron' and trigger = 'cron' and outcome = 'skipped'"
BEFORE = re.compile(r"run (\d+)(?: of cron/\w+|\)$)")

QUESTION_NAMES = (
    "get_status", "list_agents", "get_agent", "list_jobs", "list_runs", "get_plan", "get_overview", "get_explanation",
    "list_undelivered", "list_problems", "get_caller",
)  # fmt: skip


def _tokens(agents: Sequence[str]) -> list[Token]:
    return [
        Token("chief", frozenset(("read", "wake", "operate"))),
        Token("viewer", frozenset(("read",)), frozenset(agents[:1])),
        Token("waker", frozenset(("wake",)), frozenset(agents[:2])),
        Token("worker", frozenset(("read", "wake", "operate")), frozenset(agents[1:2])),
        Token("reader", frozenset(("read",))),
    ]


def _findings(name: str, told: int) -> list[dict[str, Any]]:
    """The findings of an agent: of each key none, or one with its severity."""
    found = []
    for place, (key, words) in enumerate(KEYS.items()):
        severity = told // 3**place % 3
        if severity:
            found.append({"key": key, "text": f"{words} at {name}", "severity": SEVERITIES[severity], "resolved": False})
    return found


def _words(name: str, word: str) -> str:
    return {"quiet": "HEARTBEAT_OK", "empty": "", "cut": f"The report of {name} is"}.get(word, f"All is not well at {name}.")


# --- playing and minimising -------------------------------------------------------------------------------------------------


def play(folder: Path, seed: int, number: int, server: str | None = None) -> list[str]:
    """Play the steps of a seed. Returns the trace; raises Failed."""
    steps = random_steps(seed, number)
    trace, error = _attempt(folder, seed, steps, server)
    if error is None:
        return trace
    raise Failed(seed, number, *_minimised(folder, seed, steps, error, server)) from error


def _attempt(folder: Path, seed: int, steps: Sequence[Step], server: str | None) -> tuple[list[str], Exception | None]:
    """The trace, and what was broken."""
    if server:
        delete_all_rows(server)
    place = folder / "simulated"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    player = Player(place, seed, server)
    try:
        return player.play(steps), None
    except Exception as error:  # noqa: BLE001 (an error of the daemon is a failure, too)
        return player.trace, error
    finally:
        player.close()


def _minimised(
    folder: Path, seed: int, steps: Sequence[Step], error: Exception, server: str | None
) -> tuple[Sequence[Step], Exception]:
    """Leave out steps while the same kind of failure remains: halves of them, then ever smaller parts."""
    size = len(steps)
    while size:
        size = (size + 1) // 2 if size > 1 else 1
        before = len(steps)
        first = 0
        while first < len(steps):
            fewer = [*steps[:first], *steps[first + size :]]
            _, found = _attempt(folder, seed, fewer, server)
            if found is not None and _kind(found) == _kind(error):
                steps, error = fewer, found
            else:
                first += size
        if size == 1 and len(steps) == before:
            break
    return steps, error


def _kind(error: Exception) -> str:
    return error.promise if isinstance(error, Broken) else type(error).__name__

"""Breakers: a provider that refuses our key or our money is left alone, and tried again now and then."""

from __future__ import annotations

import json
import sqlite3
from datetime import datetime, timedelta

from scheduler.events import BreakerMoved
from scheduler.outcome import LONGEST_RETRY_AFTER, Call, Failure, Reason
from scheduler.tables.times import millis, moment
from scheduler.turn import Turn

PROBE_EVERY = timedelta(minutes=30)

RATE = "rate"  # the reason of a breaker that only gives a provider its rest

REFUSALS = frozenset({Failure.AUTH, Failure.PAYMENT})
OPENS_ONE = (*REFUSALS, Reason.RATE_LIMITED)  # how the run ends that opens a breaker


def admit(turn: Turn, providers: tuple[str, ...], run_id: int) -> tuple[bool, tuple[str, ...]]:
    """Whether one of these providers must not be asked now, and which of them this attempt of a run is to try again.

    When it is time to try a provider again, whoever comes first may; the others wait for what becomes of it.
    """
    if refuse(turn, providers):
        return True, ()
    probes = tuple(provider for provider in providers if _probe_time(turn, provider) is not None)
    for provider in probes:
        _probe_at(turn, provider, turn.now + PROBE_EVERY, run_id)
    return False, probes


def refuse(turn: Turn, providers: tuple[str, ...]) -> bool:
    """Whether one of these providers must not be asked now; only a question, unlike `admit`."""
    return next_probe(turn, providers) is not None


def may_answer_soon(turn: Turn, providers: tuple[str, ...]) -> bool:
    """Whether a run is just trying one of these providers, or all of them may be asked by now."""
    query = (
        "select 1 from breaker join run on run.id = tried_by and run.state = 'running'"
        " where provider in (select value from json_each(?))"
    )
    return not refuse(turn, providers) or turn.db.execute(query, (json.dumps(providers),)).fetchone() is not None


def next_probe(turn: Turn, providers: tuple[str, ...]) -> datetime | None:
    """When all of these providers may be asked again; None where they may be by now."""
    times = (_probe_time(turn, provider) for provider in providers)
    return max((at for at in times if at is not None and at > turn.now), default=None)


def is_open(turn: Turn, providers: tuple[str, ...]) -> bool:
    """Whether the breaker of one of these providers is open."""
    return any(_probe_time(turn, provider) is not None for provider in providers)


def hear(turn: Turn, call: Call) -> bool:
    """Open, keep or close a provider's breaker by how a call went; whether that has closed it."""
    if call.provider is None:
        return False
    if call.failure in REFUSALS:
        _open(turn, call.provider, str(call.failure), turn.now + PROBE_EVERY)
    elif call.retry_after is not None and call.retry_after > LONGEST_RETRY_AFTER:
        _open(turn, call.provider, RATE, turn.now + LONGEST_RETRY_AFTER)
    elif call.failure is None:
        return _close(turn, call.provider)
    return False


def give_back(turn: Turn, providers: list[str]) -> None:
    """The attempt that was to try these did not come to ask them: the next one may."""
    for provider in providers:
        _probe_at(turn, provider, turn.now)


def probe_all(turn: Turn) -> None:
    """Let every provider that refuses us be tried at once: there may be a new key. One that wants rest gets its rest."""
    turn.db.execute("update breaker set probe_at = ? where reason <> ?", (millis(turn.now), RATE))
    turn.probes = None


def pull_near(turn: Turn) -> None:
    """The clock was set back: no provider is left alone for longer than it was to be."""
    turn.db.execute("update breaker set probe_at = min(probe_at, ?)", (millis(turn.now + PROBE_EVERY),))
    turn.probes = None


def open_ones(db: sqlite3.Connection) -> list[str]:
    """The providers whose breaker is open."""
    return [row["provider"] for row in db.execute("select provider from breaker order by provider")]


def _open(turn: Turn, provider: str, reason: str, probe_at: datetime) -> None:
    was_open = _probe_time(turn, provider) is not None
    turn.db.execute(
        "insert into breaker (provider, reason, opened_at, probe_at) values (?, ?, ?, ?)"
        " on conflict (provider) do update set reason = excluded.reason, probe_at = excluded.probe_at, tried_by = null",
        (provider, reason, millis(turn.now), millis(probe_at)),
    )
    turn.probes = None
    if not was_open:
        turn.tell(BreakerMoved(provider, reason, is_open=True))


def _close(turn: Turn, provider: str) -> bool:
    if _probe_time(turn, provider) is None:
        return False
    turn.db.execute("delete from breaker where provider = ?", (provider,))
    turn.probes = None
    turn.tell(BreakerMoved(provider, "answered", is_open=False))
    return True


def _probe_time(turn: Turn, provider: str) -> datetime | None:
    """When an open breaker may be tried. One question a turn answers it for all: most providers refuse nobody."""
    if turn.probes is None:
        turn.probes = {row[0]: moment(row[1]) for row in turn.db.execute("select provider, probe_at from breaker")}
    return turn.probes.get(provider)


def _probe_at(turn: Turn, provider: str, at: datetime, run_id: int | None = None) -> None:
    turn.db.execute("update breaker set probe_at = ?, tried_by = ? where provider = ?", (millis(at), run_id, provider))
    turn.probes = None

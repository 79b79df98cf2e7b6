"""Breakers: a provider that refuses our key or our money is left alone, and tried again now and then."""

from __future__ import annotations

import sqlite3
from datetime import datetime, timedelta

from scheduler.events import BreakerMoved
from scheduler.outcome import Ending, Failure, Outcome, Reason
from scheduler.store import millis, moment
from scheduler.turn import Turn

PROBE_EVERY = timedelta(minutes=30)
LONGEST_REST = timedelta(minutes=15)  # however long a provider asks to be left alone

REFUSALS = frozenset({Failure.AUTH, Failure.PAYMENT})


def is_shut_off(turn: Turn, provider: str | None) -> bool:
    """Whether a provider must not be asked now. When it is time to try it again, whoever asks first may."""
    if provider is None:
        return False
    row = turn.db.execute("select probe_at from breaker where provider = ?", (provider,)).fetchone()
    if row is None:
        return False
    if moment(row["probe_at"]) > turn.now:
        return True
    _probe_at(turn, provider, turn.now + PROBE_EVERY)
    return False


def hear(turn: Turn, provider: str | None, ending: Ending) -> None:
    """Open, keep or close a provider's breaker by how an attempt ended."""
    if provider is None:
        return
    if ending.reason in REFUSALS:
        _open(turn, provider, str(ending.reason), turn.now + PROBE_EVERY)
    elif ending.reason is Reason.RATE_LIMITED:
        _open(turn, provider, "rate", turn.now + min(ending.retry_after or LONGEST_REST, LONGEST_REST))
    elif ending.outcome is Outcome.SKIPPED:
        _give_probe_back(turn, provider, ending)
    elif ending.outcome in (Outcome.OK, Outcome.ALERT, Outcome.ASYNC):
        _close(turn, provider)


def probe_all(turn: Turn) -> None:
    """Let every provider be tried at once: the config may have got a new key."""
    turn.db.execute("update breaker set probe_at = ?", (millis(turn.now),))


def open_ones(db: sqlite3.Connection) -> list[str]:
    """The providers whose breaker is open."""
    return [row["provider"] for row in db.execute("select provider from breaker order by provider")]


def _open(turn: Turn, provider: str, reason: str, probe_at: datetime) -> None:
    was_open = provider in open_ones(turn.db)
    turn.db.execute(
        "insert into breaker (provider, reason, opened_at, probe_at) values (?, ?, ?, ?)"
        " on conflict (provider) do update set reason = excluded.reason, probe_at = excluded.probe_at",
        (provider, reason, millis(turn.now), millis(probe_at)),
    )
    if not was_open:
        turn.tell(BreakerMoved(provider, reason, is_open=True))


def _close(turn: Turn, provider: str) -> None:
    if turn.db.execute("delete from breaker where provider = ? returning provider", (provider,)).fetchone():
        turn.tell(BreakerMoved(provider, "answered", is_open=False))


def _give_probe_back(turn: Turn, provider: str, ending: Ending) -> None:
    """The attempt that was to try the provider did not come to ask it: the next one may."""
    if ending.reason != "breaker_open" and provider in open_ones(turn.db):
        _probe_at(turn, provider, turn.now)


def _probe_at(turn: Turn, provider: str, at: datetime) -> None:
    turn.db.execute("update breaker set probe_at = ? where provider = ?", (millis(at), provider))

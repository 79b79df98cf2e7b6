"""Opens and closes circuit breakers, and decides which run probes an open one.

While a breaker is open, runs that need its provider or model are skipped, except for one probe now and then. Probes rotate among
agents and jobs: the entry whose last turn is longest ago is next. An entry whose own model fails therefore does not keep the
others from probing the provider.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain, zip_longest

from heartbeat.slots import stagger_for
from scheduler.model.circuit import (
    LIMIT_REASON,
    RATE_REASON,
    Breaker,
    Circuit,
    circuit_of_call,
    circuit_opened_by,
    is_answered,
    required_circuits,
)
from scheduler.model.entry import Claim, Entry
from scheduler.model.events import BreakerMoved
from scheduler.model.outcome import LONGEST_RETRY_AFTER, Call, Failure, Key, Kind
from scheduler.model.timestamps import to_millis
from scheduler.store.rows import read_row, replace_row
from scheduler.store.transaction import Transaction, recall

PROBE_EVERY = timedelta(minutes=30)
ACCOUNT_STAGGER = timedelta(minutes=2)
PASSED_ON_FOR = timedelta(hours=1)  # how long a probe waits for the entry whose turn it is
PlannedEntries = Mapping[Key, Entry]
"""The entries of the active plan, by kind and name."""

MAX_TURNS = 100  # entries that are remembered in `turns`


@dataclass(frozen=True, slots=True)
class Admission:
    """What the breakers allow a run.

    `blocked` is the one that blocks it, in words (None: it may run), `probes` the circuits that it is to probe. `unavailable`
    says of the agent itself and of each fallback which breaker blocks it; empty: no breaker is open.
    """

    blocked: str | None = None
    probes: tuple[Circuit, ...] = ()
    unavailable: tuple[str | None, ...] = ()


ADMITTED = Admission()


def admit_run(tx: Transaction, planned: PlannedEntries, entry: Entry, run_id: int, full: Sequence[bool] = ()) -> Admission:
    """Decide what this run may call.

    When a probe is due, the first run whose turn it is makes it. The other runs use a fallback, or wait for its result. A
    fallback is not probed if the run can call an alternative before it whose breakers are closed. `full` says of the agent itself
    and of each fallback whether its account has no room for a run (empty: all have room): then it is not called, and not probed.
    """
    by_alternative = _open_breakers_by_alternative(tx, entry)
    if not any(by_alternative):
        return ADMITTED
    probes: list[Circuit] = []
    unavailable: list[str | None] = []
    has_working = False
    for number, found in enumerate(by_alternative):
        refusing = next((each for each in found if has_working or not _may_probe(tx, planned, each, entry)), None)
        unavailable.append(None if refusing is None else str(refusing))
        if refusing is None and not (full and full[number]):
            has_working = not found
            probes += [each.circuit for each in found if each.circuit not in probes]
    for circuit in probes:  # if the end of this run is never recorded, another run may probe after a while
        tx.db.execute(
            "update breaker set probe_at = ?, tried_by = ? where provider = ? and model = ?",
            (to_millis(tx.now + PROBE_EVERY), run_id, *circuit),
        )
    return Admission(unavailable[0] if None not in unavailable else None, tuple(probes), tuple(unavailable))


def blocking_breaker(tx: Transaction, planned: PlannedEntries, entry: Entry, full: Sequence[bool] = ()) -> Breaker | None:
    """The first breaker that would block a run of this entry now; None if none would. Unlike `admit_run` this changes nothing.

    `full` is as in `admit_run`.
    """
    refusing = _refusing_breakers(tx, planned, entry)
    is_blocked = all(found or is_full for found, is_full in zip_longest(refusing, full, fillvalue=None))
    return next((found[0] for found in refusing if found), None) if is_blocked else None


def may_close_soon(tx: Transaction, planned: PlannedEntries, entry: Entry) -> bool:
    """Whether each breaker that blocks this entry, or one of its fallbacks, is being probed, or is about to be probed by another
    entry.
    """
    refusing = _refusing_breakers(tx, planned, entry)
    return any(all(breaker.probe_at <= tx.now or _is_probed(tx, breaker) for breaker in each) for each in refusing)


def next_call_at(tx: Transaction, entry: Entry, room_at: Sequence[datetime | None] = ()) -> datetime | None:
    """When this entry, or a fallback, may be called because all its open breakers may be probed; None if one may be now.

    `room_at` says of each when its account has room for a run (None: now; empty: all have room).
    """
    times = []
    for breakers, at in zip_longest(_open_breakers_by_alternative(tx, entry), room_at, fillvalue=None):
        waits = [probe_time(each, entry) for each in breakers or ()] + ([at] if at else [])
        times.append(max((each for each in waits if each > tx.now), default=None))
    return None if None in times else min(at for at in times if at is not None)


def first_open_breaker(tx: Transaction, entry: Entry) -> Breaker | None:
    """The first open breaker of a provider or model that this entry uses."""
    return next(chain.from_iterable(_open_breakers_by_alternative(tx, entry)), None)


def own_breaker(tx: Transaction, entry: Entry) -> Breaker | None:
    """The first open breaker of what an entry calls first. Until it closes, fallbacks answer in its place."""
    return next(iter(_open_breakers_by_alternative(tx, entry)[0]), None)


def find_breaker(tx: Transaction, circuit: Circuit) -> Breaker | None:
    """The open breaker of a circuit; None if it is closed."""
    return _open_breakers_by_circuit(tx.db).get(circuit)


def has_open_breaker(tx: Transaction, entry: Entry) -> bool:
    """Whether the breaker of a provider or model that this entry needs is open, and that of one of each fallback too."""
    return all(_open_breakers_by_alternative(tx, entry))


def record_call(tx: Transaction, claim: Claim, call: Call, error: str) -> tuple[Circuit, ...]:
    """Open, keep or close breakers because of the result of a call; returns the circuits whose breakers it closed.

    `error` is the provider's text of a refusal.
    """
    shut_off = circuit_opened_by(call)
    if shut_off is not None:
        circuit, reason = shut_off
        _open_breaker(tx, claim, circuit, reason, error, call.retry_after if reason == LIMIT_REASON else None)
        # A provider that forbids one model has accepted the key.
        return () if circuit.is_whole_provider else _close_breaker(tx, Circuit(circuit.provider), only=Failure.AUTH)
    called = circuit_of_call(call) if _open_breakers_by_circuit(tx.db) else None
    if called is None or not is_answered(call):
        return ()
    # Only a run that probes an account ends its limit: one that began before the limit was reached says nothing about it.
    probed = {each.circuit for each in list_open_breakers(tx.db) if each.tried_by == claim.run.id}
    answering = [each for each in required_circuits((called,)) if not each.is_account or each in probed]
    return tuple(circuit for each in answering for circuit in _close_breaker(tx, each))


def return_probes(tx: Transaction, claim: Claim, *, called: bool, wait: timedelta = timedelta()) -> bool:
    """Let other runs make the probes that this attempt was assigned and did not decide; returns whether there were any.

    `called` False: the attempt made no call, but its entry has had its turn. The next probe may begin after `wait`.
    """
    mine = (breaker for breaker in list_open_breakers(tx.db) if breaker.tried_by == claim.run.id)
    lent = [breaker for breaker in mine if breaker.circuit in claim.facts.probes]
    for breaker in lent:
        turns = breaker.turns if called else _append_turn(breaker.turns, claim.entry.key)
        tx.db.execute(
            "update breaker set probe_at = ?, tried_by = null, turns = ? where provider = ? and model = ?",
            (to_millis(tx.now + wait), json.dumps(turns), *breaker.circuit),
        )
    return bool(lent)


def allow_probes_now(tx: Transaction) -> None:
    """Let every open breaker be probed at once, by the first run that comes: there may be a new key.

    A breaker that a long Retry-After opened keeps its time, unless its probe was interrupted by a crash.
    """
    tx.db.execute(
        "update breaker set probe_at = :now, half_open_at = :now, turns = '[]' where reason not in (:rate, :limit)"
        " or (tried_by is not null and not exists (select 1 from run where id = tried_by and state = 'running'))",
        {"now": to_millis(tx.now), "rate": RATE_REASON, "limit": LIMIT_REASON},
    )


def close_unused_breakers(tx: Transaction, planned: Iterable[Entry]) -> None:
    """Close the breakers of providers and models that no enabled entry of the plan uses."""
    for circuit in list(_open_breakers_by_circuit(tx.db)):
        if not any(entry.enabled and circuit in entry.circuits for entry in planned):
            _close_breaker(tx, circuit, why="not used any more")


def list_open_breakers(db: sqlite3.Connection) -> list[Breaker]:
    """Every open breaker, sorted by provider and model."""
    return [*_open_breakers_by_circuit(db).values()]


def _open_breaker(tx: Transaction, claim: Claim, circuit: Circuit, reason: str, error: str, wait: timedelta | None) -> None:
    """Open a breaker, or keep it open. The next probe may begin after `wait`, if that is known."""
    was = _open_breakers_by_circuit(tx.db).get(circuit)
    usual = LONGEST_RETRY_AFTER if reason == RATE_REASON else PROBE_EVERY
    probe_at = tx.now + (usual if wait is None else wait)
    turns = _append_turn(was.turns if was else (), claim.entry.key)
    state = {
        "reason": reason, "error": error, "opened_at": was.opened_at if was else tx.now, "probe_at": probe_at,
        "half_open_at": probe_at, "tried_by": None, "turns": turns,
    }  # fmt: skip
    replace_row(tx.db, "breaker", circuit._asdict(), state)
    if was is None:
        tx.report(BreakerMoved(circuit, reason, is_open=True, error=error))


def _close_breaker(tx: Transaction, circuit: Circuit, only: str | None = None, why: str = "answered") -> tuple[Circuit, ...]:
    """Close a breaker if it is open and, with `only`, has that reason; returns its circuit, or nothing."""
    breaker = _open_breakers_by_circuit(tx.db).get(circuit)
    if breaker is None or (only is not None and breaker.reason != only):
        return ()
    tx.db.execute("delete from breaker where provider = ? and model = ?", circuit)
    tx.report(BreakerMoved(circuit, why, is_open=False))
    return (circuit,)


def _may_probe(tx: Transaction, planned: PlannedEntries, breaker: Breaker, entry: Entry) -> bool:
    return probe_time(breaker, entry) <= tx.now and not _is_passed_on(tx, planned, breaker, entry)


def probe_time(breaker: Breaker, entry: Entry) -> datetime:
    """When this entry may probe."""
    return breaker.probe_at + (account_stagger(entry) if breaker.circuit.is_account else timedelta())


def account_stagger(entry: Entry) -> timedelta:
    """How long an entry that uses an account waits after the end of its limit, so that not all begin in the same second.

    Zero without an account.
    """
    uses_account = any(circuit.is_account for circuit in entry.circuits)
    return stagger_for(entry.name, ACCOUNT_STAGGER) if uses_account else timedelta()


def _is_passed_on(tx: Transaction, planned: PlannedEntries, breaker: Breaker, entry: Entry) -> bool:
    """Whether an entry that is to probe first comes due before the probe has waited for PASSED_ON_FOR."""
    until = breaker.half_open_at + PASSED_ON_FOR
    if entry.key not in breaker.turns or tx.now >= until:
        return False
    rows = tx.db.execute(
        "select kind, name from entry where due_at <= ? and state = 'active' and paused_until is null", (to_millis(until),)
    )
    due = (planned.get((Kind(row["kind"]), row["name"])) for row in rows)
    others = (other for other in due if other is not None and other.enabled and breaker.circuit in other.circuits)
    return any(breaker.other_probes_first(other.key, entry.key) for other in others)


def _is_probed(tx: Transaction, breaker: Breaker) -> bool:
    query = "select 1 from run where id = ? and state = 'running'"
    return tx.db.execute(query, (breaker.tried_by,)).fetchone() is not None


def _append_turn(turns: tuple[tuple[str, str], ...], key: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    """The turns with one more, which is now the latest."""
    return (*(each for each in turns if each != key), key)[-MAX_TURNS:]


def _open_breakers_by_alternative(tx: Transaction, entry: Entry) -> list[list[Breaker]]:
    """The open breakers of what the entry calls without a fallback, and with each fallback.

    While none is open, which is usual, the entry's circuits are not worked out.
    """
    found = _open_breakers_by_circuit(tx.db)
    alternatives = entry.alternatives if found else ((),)
    return [[found[circuit] for circuit in circuits if circuit in found] for circuits in alternatives]


def _refusing_breakers(tx: Transaction, planned: PlannedEntries, entry: Entry) -> list[list[Breaker]]:
    """Those of them that block the entry."""
    by_alternative = _open_breakers_by_alternative(tx, entry)
    return [[each for each in found if not _may_probe(tx, planned, each, entry)] for found in by_alternative]


def _open_breakers_by_circuit(db: sqlite3.Connection) -> dict[Circuit, Breaker]:
    """Every open breaker by its circuit, sorted by provider and model: most providers have none."""
    return recall(db, "select * from breaker order by provider, model", _breakers_from_rows)


def _breakers_from_rows(rows: list[sqlite3.Row]) -> dict[Circuit, Breaker]:
    found = {}
    for row in rows:
        circuit, turns = Circuit(row["provider"], row["model"]), tuple((kind, name) for kind, name in json.loads(row["turns"]))
        found[circuit] = read_row(Breaker, row, circuit=circuit, turns=turns)
    return found

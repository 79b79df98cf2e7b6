"""Circuit breakers: no calls are made to what refuses us, but for a probe now and then.

Probes go round the agents and jobs: whoever could probe longest ago is next. So one whose own model is at fault does not
keep a provider from being tried by the others.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from scheduler.model.circuit import (
    RATE_REASON,
    Breaker,
    Circuit,
    circuit_of_call,
    circuit_opened_by,
    is_answered,
    required_circuits,
)
from scheduler.model.entry import Claim, Entry, Key
from scheduler.model.events import BreakerMoved
from scheduler.model.outcome import LONGEST_RETRY_AFTER, Call, Failure, Kind
from scheduler.model.timestamps import from_millis, to_millis
from scheduler.store.transaction import Transaction

PROBE_EVERY = timedelta(minutes=30)
PASSED_ON_FOR = timedelta(hours=1)  # how long a probe is left to others who are to make it first
PlannedEntries = Mapping[Key, Entry]
"""The entries of the plan in force, by kind and name."""

MAX_TURNS = 100  # that are remembered

# The open breakers, and (without a reason) what flaps and works at present.
OPEN_OR_FLAPPING = """
select provider, model, reason, error, opened_at, probe_at, half_open_at, tried_by, turns from breaker
union all
select provider, model, '', '', 0, 0, 0, null, '[]' from outage where flapping_at is not null and not failing
"""


def admit_run(tx: Transaction, planned: PlannedEntries, entry: Entry, run_id: int) -> tuple[str | None, tuple[Circuit, ...]]:
    """What an open breaker keeps this run from asking, in words, else None; and the circuits that the run is to probe.

    When it is time for a probe, the first run whose turn it is makes it; the others wait for the result.
    """
    found = _open_breakers_of(tx, entry)
    refusing = next((breaker for breaker in found if not _may_probe(tx, planned, breaker, entry)), None)
    if refusing is not None:
        return str(refusing), ()
    for breaker in found:
        _assign_probe(tx, breaker.circuit, run_id)
    return None, tuple(breaker.circuit for breaker in found)


def blocking_breaker(tx: Transaction, planned: PlannedEntries, entry: Entry) -> Breaker | None:
    """The breaker that would keep a run of this entry from asking now; unlike `admit` this changes nothing."""
    return next((breaker for breaker in _open_breakers_of(tx, entry) if not _may_probe(tx, planned, breaker, entry)), None)


def may_close_soon(tx: Transaction, planned: PlannedEntries, entry: Entry) -> bool:
    """Whether all that keeps this entry from asking is being probed, or is to be probed by another entry before long."""
    refusing = [breaker for breaker in _open_breakers_of(tx, entry) if not _may_probe(tx, planned, breaker, entry)]
    return all(breaker.probe_at <= tx.now or _is_probed(tx, breaker) for breaker in refusing)


def next_probe_at(tx: Transaction, entry: Entry) -> datetime | None:
    """When all that this entry asks may be probed; None where it may be by now."""
    times = (breaker.probe_at for breaker in _open_breakers_of(tx, entry))
    return max((at for at in times if at > tx.now), default=None)


def first_open_breaker(tx: Transaction, entry: Entry) -> Breaker | None:
    """The first open breaker of what this entry asks."""
    return next(iter(_open_breakers_of(tx, entry)), None)


def find_breaker(tx: Transaction, circuit: Circuit) -> Breaker | None:
    """The breaker of a circuit, if it is open."""
    return _open_breakers_by_circuit(tx).get(circuit)


def flapping_circuits(tx: Transaction) -> frozenset[Circuit]:
    """The circuits that flap, and work at present: found by the same question as the open breakers."""
    _open_breakers_by_circuit(tx)
    return tx.flapping_circuits


def has_open_breaker(tx: Transaction, entry: Entry) -> bool:
    """Whether the breaker of anything that this entry asks is open."""
    return bool(_open_breakers_of(tx, entry))


def record_call(tx: Transaction, claim: Claim, call: Call, error: str) -> tuple[Circuit, ...]:
    """Open, keep or close breakers by how a call went; gives the circuits that are in order again.

    `error` is what the provider said of its refusal.
    """
    shut_off, asked = circuit_opened_by(call), circuit_of_call(call)
    if shut_off is not None:
        circuit, reason = shut_off
        _open_breaker(tx, claim, circuit, reason, error)
        # A provider that forbids a model knows the key.
        return () if circuit.is_whole_provider else _close_breaker(tx, Circuit(circuit.provider), only=Failure.AUTH)
    if asked is None or not is_answered(call):
        return ()
    return tuple(circuit for each in required_circuits((asked,)) for circuit in _close_breaker(tx, each))


def return_probes(tx: Transaction, claim: Claim, *, asked: bool, wait: timedelta = timedelta()) -> bool:
    """Let others probe what this attempt was to probe and has not decided on; whether there was any such circuit.

    Without having `asked` it has had its turn all the same. The next probe may begin after `wait`.
    """
    lent = [
        breaker
        for breaker in _open_breakers_by_circuit(tx).values()
        if breaker.tried_by == claim.run_id and breaker.circuit in claim.probes
    ]
    for breaker in lent:
        turns = breaker.turns if asked else _append_turn(breaker.turns, claim.entry.key)
        tx.db.execute(
            "update breaker set probe_at = ?, tried_by = null, turns = ? where provider = ? and model = ?",
            (to_millis(tx.now + wait), json.dumps(turns), *breaker.circuit),
        )
        tx.open_breakers = None
    return bool(lent)


def allow_probes_now(tx: Transaction) -> None:
    """Let everything that refuses us be probed at once, by whoever comes first: there may be a new key.

    Where a long rest was asked for, that is kept; a probe of it that was cut short by a crash is made again.
    """
    tx.db.execute(
        "update breaker set probe_at = :now, half_open_at = :now, turns = '[]' where reason <> :rate"
        " or (tried_by is not null and not exists (select 1 from run where id = tried_by and state = 'running'))",
        {"now": to_millis(tx.now), "rate": RATE_REASON},
    )
    tx.open_breakers = None


def clamp_future_times(tx: Transaction) -> None:
    """The clock was set back: no probe is put off for longer than it was to be."""
    tx.db.execute(
        "update breaker set opened_at = min(opened_at, :now), probe_at = min(probe_at, :next),"
        " half_open_at = min(half_open_at, :next)",
        {"now": to_millis(tx.now), "next": to_millis(tx.now + PROBE_EVERY)},
    )
    tx.open_breakers = None


def close_unused_breakers(tx: Transaction, planned: Iterable[Entry]) -> None:
    """Close the breakers of what no agent and no job of the plan asks any more."""
    for circuit in list(_open_breakers_by_circuit(tx)):
        if not any(entry.enabled and circuit in entry.circuits for entry in planned):
            _close_breaker(tx, circuit, why="not asked any more")


def list_open_breakers(db: sqlite3.Connection) -> list[Breaker]:
    """Every open breaker, by provider and model."""
    return [_breaker_from_row(row) for row in db.execute("select * from breaker order by provider, model")]


def _open_breaker(tx: Transaction, claim: Claim, circuit: Circuit, reason: str, error: str) -> None:
    was = _open_breakers_by_circuit(tx).get(circuit)
    probe_at = to_millis(tx.now + (LONGEST_RETRY_AFTER if reason == RATE_REASON else PROBE_EVERY))
    turns = json.dumps(_append_turn(was.turns if was else (), claim.entry.key))
    tx.db.execute(
        "insert into breaker (provider, model, reason, error, opened_at, probe_at, half_open_at, turns)"
        " values (?, ?, ?, ?, ?, ?, ?, ?) on conflict (provider, model) do update set reason = excluded.reason,"
        " error = excluded.error, probe_at = excluded.probe_at, half_open_at = excluded.half_open_at, turns = excluded.turns,"
        " tried_by = null",
        (*circuit, reason, error, to_millis(tx.now), probe_at, probe_at, turns),
    )
    tx.open_breakers = None
    if was is None:
        tx.report(BreakerMoved(circuit, reason, is_open=True, error=error))


def _close_breaker(tx: Transaction, circuit: Circuit, only: str | None = None, why: str = "answered") -> tuple[Circuit, ...]:
    """Close a breaker, if it is open and, with `only`, has that reason; gives its circuit, or nothing."""
    breaker = _open_breakers_by_circuit(tx).get(circuit)
    if breaker is None or (only is not None and breaker.reason != only):
        return ()
    tx.db.execute("delete from breaker where provider = ? and model = ?", circuit)
    tx.open_breakers = None
    tx.report(BreakerMoved(circuit, why, is_open=False))
    return (circuit,)


def _assign_probe(tx: Transaction, circuit: Circuit, run_id: int) -> None:
    """Leave the probe to one run; should nobody book its end, another one may probe after a while."""
    tx.db.execute(
        "update breaker set probe_at = ?, tried_by = ? where provider = ? and model = ?",
        (to_millis(tx.now + PROBE_EVERY), run_id, *circuit),
    )
    tx.open_breakers = None


def _may_probe(tx: Transaction, planned: PlannedEntries, breaker: Breaker, entry: Entry) -> bool:
    return breaker.probe_at <= tx.now and not _is_passed_on(tx, planned, breaker, entry)


def _is_passed_on(tx: Transaction, planned: PlannedEntries, breaker: Breaker, entry: Entry) -> bool:
    """Whether another entry that is to probe first will be due before the probe has waited for an hour."""
    until = breaker.half_open_at + PASSED_ON_FOR
    if entry.key not in breaker.turns or tx.now >= until:
        return False
    rows = tx.db.execute(
        "select kind, name from entry where due_at <= ? and state = 'active' and paused_until is null", (to_millis(until),)
    )
    others = ((Kind(row["kind"]), row["name"]) for row in rows)
    return any(
        breaker.other_probes_first(other, entry.key) and _calls_circuit(planned.get(other), breaker.circuit) for other in others
    )


def _calls_circuit(entry: Entry | None, circuit: Circuit) -> bool:
    return entry is not None and entry.enabled and circuit in entry.circuits


def _is_probed(tx: Transaction, breaker: Breaker) -> bool:
    query = "select 1 from run where id = ? and state = 'running'"
    return tx.db.execute(query, (breaker.tried_by,)).fetchone() is not None


def _append_turn(turns: tuple[tuple[str, str], ...], key: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    """The turns with one more, which is now the latest."""
    return (*(each for each in turns if each != key), key)[-MAX_TURNS:]


def _open_breakers_of(tx: Transaction, entry: Entry) -> list[Breaker]:
    """The open breakers of what an entry asks; with none open, as is usual, without working out what that is."""
    found = _open_breakers_by_circuit(tx)
    return [found[circuit] for circuit in entry.circuits if circuit in found] if found else []


def _open_breakers_by_circuit(tx: Transaction) -> dict[Circuit, Breaker]:
    """Every open breaker by its circuit. One question a turn answers it for all: most providers refuse nobody."""
    if tx.open_breakers is None:
        rows = tx.db.execute(OPEN_OR_FLAPPING).fetchall()
        tx.open_breakers = {breaker.circuit: breaker for breaker in (_breaker_from_row(row) for row in rows if row["reason"])}
        tx.flapping_circuits = frozenset(Circuit(row["provider"], row["model"]) for row in rows if not row["reason"])
    return tx.open_breakers


def _breaker_from_row(row: sqlite3.Row) -> Breaker:
    return Breaker(
        circuit=Circuit(row["provider"], row["model"]),
        reason=row["reason"],
        error=row["error"],
        opened_at=from_millis(row["opened_at"]),
        probe_at=from_millis(row["probe_at"]),
        half_open_at=from_millis(row["half_open_at"]),
        tried_by=row["tried_by"],
        turns=tuple((kind, name) for kind, name in json.loads(row["turns"])),
    )

"""Outages: one notice for all agents and jobs that suffer from one provider, or from one of its models, and one recovery.

Each target (a channel, or somebody on it) is notified of an outage once, however many of the entries that suffer report to
it, and again after `remind`, when the provider fails in another way, and when it answers again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from scheduler.engine import notice_texts, recipients
from scheduler.engine.notice_texts import Notice
from scheduler.engine.tick import Tick
from scheduler.model.circuit import Circuit, around, asked_by, blamed_for
from scheduler.model.entry import Claim, Entry
from scheduler.model.outcome import FAILURES, Call, Ending, Kind, Skip
from scheduler.store import breakers, changes, outages, outbox
from scheduler.store.outages import Outage
from scheduler.store.targets import Target
from scheduler.store.transaction import Transaction

PROVIDER = "provider"  # the kind under which changes of circuits are counted


@dataclass(frozen=True, slots=True)
class Blame:
    """The circuit whose fault the end of a run is, with the class of the failure and the provider's words.

    `seen` is False for a run that was not started because the breaker is open: it has learned nothing new.
    """

    circuit: Circuit
    reason: str
    error: str
    seen: bool = True


def blame(tx: Transaction, claim: Claim, ending: Ending) -> Blame | None:
    """Whose fault it is that a run failed or was skipped, if it is a provider's; None where it is the entry's own trouble."""
    if ending.reason is Skip.BREAKER_OPEN:
        breaker = breakers.open_one(tx, claim.entry)
        return Blame(breaker.circuit, breaker.reason, breaker.error, seen=False) if breaker else None
    if ending.outcome not in FAILURES:
        return None
    failed = next((call for call in reversed(ending.calls) if call.failure is not None), None)
    found = blamed_for(failed) if failed else None
    if failed and found:
        return Blame(*found, error=words(failed.provider, ending))
    return None if failed else _blame_of_an_earlier_attempt(claim, ending)


def _blame_of_an_earlier_attempt(claim: Claim, ending: Ending) -> Blame | None:
    """A run that has no time or money left for another attempt keeps the error of its last one, which begins with the name."""
    providers = (asked.provider for asked in claim.entry.models)
    provider = next((name for name in providers if (ending.error or "").startswith(f"provider {name!r}: ")), None)
    return Blame(Circuit(provider), str(ending.reason), words(provider, ending)) if provider else None


def words(provider: str | None, ending: Ending) -> str:
    """What the provider said, without the name that the error of a run begins with."""
    return (ending.error or "").removeprefix(f"provider {provider!r}: ")


def fails(tick: Tick, claim: Claim, blamed: Blame, count: int) -> None:
    """An entry suffers from a circuit, `count` times in a row: open the outage or carry it on, and notify who has to know.

    It is reported as soon as a breaker is open, or any entry has reached its `after`.
    """
    circuit = blamed.circuit
    was = outages.find(tick.tx.db, circuit) or Outage(circuit, tick.now, blamed.reason, blamed.error)
    since = was.since if was.failing else tick.now
    is_open = breakers.find(tick.tx, circuit) is not None
    now = replace(was, since=since, failing=True)
    now = replace(now, reason=blamed.reason, error=blamed.error or was.error) if blamed.seen else now
    if not now.reported and (is_open or count >= claim.entry.on_failure.after):
        flaps = changes.note(tick.tx, PROVIDER, _name(circuit))
        now = replace(now, reported=True, flapping_at=tick.now if flaps and was.flapping_at is None else was.flapping_at)
    elif now.flapping_at is not None and changes.is_stable(tick.tx, PROVIDER, _name(circuit)):
        now = _steady(tick, claim, now)
    outages.put(tick.tx, now)
    if now.reported or now.flapping_at is not None:
        _notify_recipients(tick, claim, now)


def answers(tick: Tick, claim: Claim, call: Call) -> None:
    """A call was answered: a circuit that flapped, and has worked for an hour by now, does so no longer."""
    asked = asked_by(call)
    for circuit in around((asked,)) if asked else ():
        if circuit in breakers.unsteady(tick.tx) and changes.is_stable(tick.tx, PROVIDER, _name(circuit)):
            outage = outages.find(tick.tx.db, circuit)
            if outage is not None:
                _tell_all(tick, claim, Notice.RECOVERED, outage)
                _forget(tick.tx, circuit)


def closed(tick: Tick, claim: Claim, circuit: Circuit) -> None:
    """The breaker of a circuit has closed: those whose runs it kept from starting suffer no longer."""
    outages.release_members(tick.tx, circuit, claim.entry.key)
    _end(tick, claim, circuit)


def works(tick: Tick, claim: Claim, circuit: Circuit) -> None:
    """An entry that suffered from a circuit has been answered."""
    if breakers.find(tick.tx, circuit) is not None:
        return
    is_elsewhere = circuit not in claim.entry.circuits
    if is_elsewhere and any(member != claim.entry.key for member in outages.members(tick.tx.db, circuit)):
        return  # it asks another model now, which says nothing of this one
    _end(tick, claim, circuit)


def _end(tick: Tick, claim: Claim, circuit: Circuit) -> None:
    outage = outages.find(tick.tx.db, circuit)
    if outage is None or not outage.failing:
        return
    if not outage.reported:
        if outage.flapping_at is None:
            outages.drop(tick.tx, circuit)
        else:
            outages.put(tick.tx, replace(outage, failing=False, since=tick.now))
        return
    if circuit not in claim.entry.circuits:
        _tell_all(tick, claim, Notice.REPLACED, outage)
        _forget(tick.tx, circuit)
        return
    flaps = changes.note(tick.tx, PROVIDER, _name(circuit))
    if not flaps:
        _tell_all(tick, claim, Notice.RECOVERED, outage)
        outages.drop(tick.tx, circuit)
        return
    now = replace(outage, failing=False, reported=False, since=tick.now, flapping_at=outage.flapping_at or tick.now)
    outages.put(tick.tx, now)
    if outage.flapping_at is None:
        _tell_all(tick, claim, Notice.FLAPPING, now)


def _steady(tick: Tick, claim: Claim, outage: Outage) -> Outage:
    """What flapped has failed for an hour: it is an outage like any other from now on."""
    changes.drop(tick.tx, PROVIDER, _name(outage.circuit))
    now = replace(outage, flapping_at=None, reported=True)
    outages.put(tick.tx, now)
    _tell_all(tick, claim, Notice.STEADY, now)
    return now


def _forget(tx: Transaction, circuit: Circuit) -> None:
    changes.drop(tx, PROVIDER, _name(circuit))
    outages.drop(tx, circuit)


def _notify_recipients(tick: Tick, claim: Claim, outage: Outage) -> None:
    """Notify those to whom this entry reports, as far as they do not know yet or are to be reminded."""
    told = outages.told(tick.tx, outage.circuit)
    for target in recipients.of(tick, claim.entry):
        notice = _news(tick.tx, outage, told.get(target), claim.entry)
        if notice is not None:
            _tell(tick, claim, notice, outage, target, told.get(target))


def _news(tx: Transaction, outage: Outage, told: outages.Told | None, entry: Entry) -> Notice | None:
    if outage.flapping_at is not None:
        is_news = told is None or told.at < outage.flapping_at or tx.now - told.at >= entry.on_failure.remind
        return Notice.FLAPPING if is_news else None
    if told is None:
        return Notice.FAILING
    if notice_texts.sort(outage) not in told.faults:
        return Notice.CHANGED
    return Notice.REMINDER if tx.now - told.at >= entry.on_failure.remind else None


def _tell_all(tick: Tick, claim: Claim, notice: Notice, outage: Outage) -> None:
    """Notify everybody who has been notified of the outage before."""
    for target, told in outages.told(tick.tx, outage.circuit).items():
        _tell(tick, claim, notice, outage, target, told)


def _tell(tick: Tick, claim: Claim, notice: Notice, outage: Outage, target: Target, told: outages.Told | None) -> None:
    whom = f" to {target.whom}" if target.whom else ""
    about = f"{notice} {outage.circuit}{whom}"
    living = (recipients.living(tick, target),)
    outbox.notify(
        tick.tx,
        tick.plan.settings.channels,
        outbox.origin(claim),
        about,
        _text(tick, claim, notice, outage),
        living,
        str(outage.circuit),
    )
    faults = told.faults if told else ()
    outages.note_told(tick.tx, outage.circuit, target, (*faults, *({notice_texts.sort(outage)} - set(faults))))


def _text(tick: Tick, claim: Claim, notice: Notice, outage: Outage) -> str:
    if notice is Notice.REPLACED:
        return notice_texts.replaced(claim, outage)
    shut_off = breakers.find(tick.tx, outage.circuit) is not None
    affected = _affected(tick, outage.circuit, shut_off=shut_off)
    return notice_texts.of_outage(notice, outage, affected, shut_off, claim.run_id, tick.now, tick.plan.settings.zone)


def _affected(tick: Tick, circuit: Circuit, *, shut_off: bool) -> list[tuple[str, str]]:
    """Who cannot run: all who ask what an open breaker has shut off, else those who have failed."""
    if not shut_off:
        return outages.members(tick.tx.db, circuit)
    return sorted(
        ((entry.kind.value, entry.name) for entry in tick.plan.entries.values() if entry.enabled and circuit in entry.circuits),
        key=lambda key: (key[0] != Kind.HEARTBEAT, key[1]),
    )


def _name(circuit: Circuit) -> str:
    return f"{circuit.provider} {circuit.model}"

"""Outages: one notice for all agents and jobs that suffer from one provider, or from one of its models, and one recovery.

Each target (a channel, or somebody on it) is notified of an outage once, however many of the entries that suffer report to
it, and again after `remind`, when the provider fails in another way, and when it answers again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from scheduler.engine import notice_texts, recipients
from scheduler.engine.notice_texts import Notice
from scheduler.engine.turn import Turn
from scheduler.model.circuit import Circuit, around, asked_by, blamed_for
from scheduler.model.entry import Claim, Entry
from scheduler.model.outcome import FAILURES, Call, Ending, Kind, Skip
from scheduler.store import breakers, changes, outages, outbox
from scheduler.store.outages import Outage
from scheduler.store.targets import Target

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


def blame(turn: Turn, claim: Claim, ending: Ending) -> Blame | None:
    """Whose fault it is that a run failed or was skipped, if it is a provider's; None where it is the entry's own trouble."""
    if ending.reason is Skip.BREAKER_OPEN:
        breaker = breakers.open_one(turn, claim.entry)
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


def fails(turn: Turn, claim: Claim, blamed: Blame, count: int) -> None:
    """An entry suffers from a circuit, `count` times in a row: open the outage or carry it on, and notify who has to know.

    It is reported as soon as a breaker is open, or any entry has reached its `after`.
    """
    circuit = blamed.circuit
    was = outages.find(turn.db, circuit) or Outage(circuit, turn.now, blamed.reason, blamed.error)
    since = was.since if was.failing else turn.now
    is_open = breakers.find(turn, circuit) is not None
    now = replace(was, since=since, failing=True)
    now = replace(now, reason=blamed.reason, error=blamed.error or was.error) if blamed.seen else now
    if not now.reported and (is_open or count >= claim.entry.on_failure.after):
        flaps = changes.note(turn, PROVIDER, _name(circuit))
        now = replace(now, reported=True, flapping_at=turn.now if flaps and was.flapping_at is None else was.flapping_at)
    elif now.flapping_at is not None and changes.is_stable(turn, PROVIDER, _name(circuit)):
        now = _steady(turn, claim, now)
    outages.put(turn, now)
    if now.reported or now.flapping_at is not None:
        _notify_recipients(turn, claim, now)


def answers(turn: Turn, claim: Claim, call: Call) -> None:
    """A call was answered: a circuit that flapped, and has worked for an hour by now, does so no longer."""
    asked = asked_by(call)
    for circuit in around((asked,)) if asked else ():
        if circuit in breakers.unsteady(turn) and changes.is_stable(turn, PROVIDER, _name(circuit)):
            outage = outages.find(turn.db, circuit)
            if outage is not None:
                _tell_all(turn, claim, Notice.RECOVERED, outage)
                _forget(turn, circuit)


def closed(turn: Turn, claim: Claim, circuit: Circuit) -> None:
    """The breaker of a circuit has closed: those whose runs it kept from starting suffer no longer."""
    outages.release_members(turn, circuit, claim.entry.key)
    _end(turn, claim, circuit)


def works(turn: Turn, claim: Claim, circuit: Circuit) -> None:
    """An entry that suffered from a circuit has been answered."""
    if breakers.find(turn, circuit) is not None:
        return
    is_elsewhere = circuit not in claim.entry.circuits
    if is_elsewhere and any(member != claim.entry.key for member in outages.members(turn.db, circuit)):
        return  # it asks another model now, which says nothing of this one
    _end(turn, claim, circuit)


def _end(turn: Turn, claim: Claim, circuit: Circuit) -> None:
    outage = outages.find(turn.db, circuit)
    if outage is None or not outage.failing:
        return
    if not outage.reported:
        if outage.flapping_at is None:
            outages.drop(turn, circuit)
        else:
            outages.put(turn, replace(outage, failing=False, since=turn.now))
        return
    if circuit not in claim.entry.circuits:
        _tell_all(turn, claim, Notice.REPLACED, outage)
        _forget(turn, circuit)
        return
    flaps = changes.note(turn, PROVIDER, _name(circuit))
    if not flaps:
        _tell_all(turn, claim, Notice.RECOVERED, outage)
        outages.drop(turn, circuit)
        return
    now = replace(outage, failing=False, reported=False, since=turn.now, flapping_at=outage.flapping_at or turn.now)
    outages.put(turn, now)
    if outage.flapping_at is None:
        _tell_all(turn, claim, Notice.FLAPPING, now)


def _steady(turn: Turn, claim: Claim, outage: Outage) -> Outage:
    """What flapped has failed for an hour: it is an outage like any other from now on."""
    changes.drop(turn, PROVIDER, _name(outage.circuit))
    now = replace(outage, flapping_at=None, reported=True)
    outages.put(turn, now)
    _tell_all(turn, claim, Notice.STEADY, now)
    return now


def _forget(turn: Turn, circuit: Circuit) -> None:
    changes.drop(turn, PROVIDER, _name(circuit))
    outages.drop(turn, circuit)


def _notify_recipients(turn: Turn, claim: Claim, outage: Outage) -> None:
    """Notify those to whom this entry reports, as far as they do not know yet or are to be reminded."""
    told = outages.told(turn, outage.circuit)
    for target in recipients.of(turn, claim.entry):
        notice = _news(turn, outage, told.get(target), claim.entry)
        if notice is not None:
            _tell(turn, claim, notice, outage, target, told.get(target))


def _news(turn: Turn, outage: Outage, told: outages.Told | None, entry: Entry) -> Notice | None:
    if outage.flapping_at is not None:
        is_news = told is None or told.at < outage.flapping_at or turn.now - told.at >= entry.on_failure.remind
        return Notice.FLAPPING if is_news else None
    if told is None:
        return Notice.FAILING
    if notice_texts.sort(outage) not in told.faults:
        return Notice.CHANGED
    return Notice.REMINDER if turn.now - told.at >= entry.on_failure.remind else None


def _tell_all(turn: Turn, claim: Claim, notice: Notice, outage: Outage) -> None:
    """Notify everybody who has been notified of the outage before."""
    for target, told in outages.told(turn, outage.circuit).items():
        _tell(turn, claim, notice, outage, target, told)


def _tell(turn: Turn, claim: Claim, notice: Notice, outage: Outage, target: Target, told: outages.Told | None) -> None:
    whom = f" to {target.whom}" if target.whom else ""
    about = f"{notice} {outage.circuit}{whom}"
    living = (recipients.living(turn, target),)
    outbox.notify(turn, outbox.origin(claim), about, _text(turn, claim, notice, outage), living, str(outage.circuit))
    faults = told.faults if told else ()
    outages.note_told(turn, outage.circuit, target, (*faults, *({notice_texts.sort(outage)} - set(faults))))


def _text(turn: Turn, claim: Claim, notice: Notice, outage: Outage) -> str:
    if notice is Notice.REPLACED:
        return notice_texts.replaced(claim, outage)
    shut_off = breakers.find(turn, outage.circuit) is not None
    affected = _affected(turn, outage.circuit, shut_off=shut_off)
    return notice_texts.of_outage(notice, outage, affected, shut_off, claim.run_id, turn.now, turn.plan.settings.zone)


def _affected(turn: Turn, circuit: Circuit, *, shut_off: bool) -> list[tuple[str, str]]:
    """Who cannot run: all who ask what an open breaker has shut off, else those who have failed."""
    if not shut_off:
        return outages.members(turn.db, circuit)
    return sorted(
        ((entry.kind.value, entry.name) for entry in turn.plan.entries.values() if entry.enabled and circuit in entry.circuits),
        key=lambda key: (key[0] != Kind.HEARTBEAT, key[1]),
    )


def _name(circuit: Circuit) -> str:
    return f"{circuit.provider} {circuit.model}"

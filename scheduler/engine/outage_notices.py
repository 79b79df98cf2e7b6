"""Reports the outage of a provider or model once for all agents and jobs that it affects, and once when it is over.

Each target (a channel, or a recipient on it) gets one notification, however many affected entries report to it. It gets
further ones after `remind`, when the provider fails in a different way, and when it answers again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from scheduler.engine import notices
from scheduler.engine.notices import Notice
from scheduler.engine.tick import Tick
from scheduler.model.circuit import Circuit, circuit_blamed_for, circuit_of_call, required_circuits
from scheduler.model.entry import Claim, Entry
from scheduler.model.outcome import FAILURES, AttemptResult, Call, Kind, Skip
from scheduler.model.settings import Target
from scheduler.store import breakers, flapping, outages, outbox
from scheduler.store.outages import Outage
from scheduler.store.transaction import Transaction
from scheduler.work.plan import Plan

PROVIDER_KIND = "provider"  # the kind under which state changes of circuits are counted


@dataclass(frozen=True, slots=True)
class FailedCircuit:
    """The circuit that caused a run to fail, with the class of the failure and the error text of the provider.

    `seen` is False if the run was not started because the breaker is open. Such a run has no new information.
    """

    circuit: Circuit
    reason: str
    error: str
    seen: bool = True


def find_blame(tx: Transaction, claim: Claim, result: AttemptResult) -> FailedCircuit | None:
    """The circuit that caused a run to fail or to be skipped; None if the entry itself is the cause."""
    if result.reason is Skip.BREAKER_OPEN:
        breaker = breakers.first_open_breaker(tx, claim.entry)
        return FailedCircuit(breaker.circuit, breaker.reason, breaker.error, seen=False) if breaker else None
    if result.outcome not in FAILURES:
        return None
    failed = next((call for call in reversed(result.calls) if call.failure is not None), None)
    found = circuit_blamed_for(failed) if failed else None
    if failed and found:
        return FailedCircuit(*found, error=refusal_text(failed.provider, result))
    return None if failed else _blame_of_an_earlier_attempt(claim, result)


def _blame_of_an_earlier_attempt(claim: Claim, result: AttemptResult) -> FailedCircuit | None:
    """The circuit of the last attempt. A run without time or budget for a retry keeps its error, which names the provider."""
    providers = (circuit.provider for circuit in claim.entry.models)
    provider = next((name for name in providers if (result.error or "").startswith(f"provider {name!r}: ")), None)
    return FailedCircuit(Circuit(provider), str(result.reason), refusal_text(provider, result)) if provider else None


def refusal_text(provider: str | None, result: AttemptResult) -> str:
    """The error text of a run without the name of the provider that it begins with."""
    return (result.error or "").removeprefix(f"provider {provider!r}: ")


def record_outage_failure(tick: Tick, claim: Claim, blamed: FailedCircuit, count: int) -> None:
    """Record that a circuit made an entry fail, for the `count`-th time in a row, and notify the entry's recipients if needed.

    An outage is reported as soon as the circuit breaker is open, or an entry has failed `after` times in a row.
    """
    circuit = blamed.circuit
    was = outages.find_outage(tick.tx.db, circuit) or Outage(circuit, tick.now, blamed.reason, blamed.error)
    since = was.since if was.failing else tick.now
    is_open = breakers.find_breaker(tick.tx, circuit) is not None
    now = replace(was, since=since, failing=True)
    now = replace(now, reason=blamed.reason, error=blamed.error or was.error) if blamed.seen else now
    if not now.reported and (is_open or count >= claim.entry.on_failure.after):
        flaps = flapping.record_change(tick.tx, PROVIDER_KIND, _circuit_name(circuit))
        now = replace(now, reported=True, flapping_at=tick.now if flaps and was.flapping_at is None else was.flapping_at)
    elif now.flapping_at is not None and flapping.is_stable(tick.tx, PROVIDER_KIND, _circuit_name(circuit)):
        now = _end_flapping(tick, claim, now)
    outages.save_outage(tick.tx, now)
    if now.reported or now.flapping_at is not None:
        _notify_recipients(tick, claim, now)


def record_answer(tick: Tick, claim: Claim, call: Call) -> None:
    """Record an answered call. A circuit that flapped and has worked for an hour counts as stable."""
    called = circuit_of_call(call)
    for circuit in required_circuits((called,)) if called else ():
        if circuit in breakers.flapping_circuits(tick.tx) and flapping.is_stable(tick.tx, PROVIDER_KIND, _circuit_name(circuit)):
            outage = outages.find_outage(tick.tx.db, circuit)
            if outage is not None:
                _notify_all(tick, claim, Notice.RECOVERED, outage)
                _forget_outage(tick.tx, circuit)


def record_closed_breaker(tick: Tick, claim: Claim, circuit: Circuit) -> None:
    """End the outage of a circuit whose breaker has closed, for all entries whose runs it prevented."""
    outages.release_affected_entries(tick.tx, circuit, claim.entry.key)
    _end_outage(tick, claim, circuit)


def record_working(tick: Tick, claim: Claim, circuit: Circuit) -> None:
    """End the outage of a circuit that an entry was affected by, because the entry works again."""
    if breakers.find_breaker(tick.tx, circuit) is not None:
        return
    is_elsewhere = circuit not in claim.entry.circuits
    if is_elsewhere and any(member != claim.entry.key for member in outages.affected_entries(tick.tx.db, circuit)):
        return  # it uses another model now, so its success says nothing about this one
    _end_outage(tick, claim, circuit)


def _end_outage(tick: Tick, claim: Claim, circuit: Circuit) -> None:
    outage = outages.find_outage(tick.tx.db, circuit)
    if outage is None or not outage.failing:
        return
    if not outage.reported:
        if outage.flapping_at is None:
            outages.delete_outage(tick.tx, circuit)
        else:
            outages.save_outage(tick.tx, replace(outage, failing=False, since=tick.now))
        return
    if circuit not in claim.entry.circuits:
        _notify_all(tick, claim, Notice.REPLACED, outage)
        _forget_outage(tick.tx, circuit)
        return
    flaps = flapping.record_change(tick.tx, PROVIDER_KIND, _circuit_name(circuit))
    if not flaps:
        _notify_all(tick, claim, Notice.RECOVERED, outage)
        outages.delete_outage(tick.tx, circuit)
        return
    now = replace(outage, failing=False, reported=False, since=tick.now, flapping_at=outage.flapping_at or tick.now)
    outages.save_outage(tick.tx, now)
    if outage.flapping_at is None:
        _notify_all(tick, claim, Notice.FLAPPING, now)


def _end_flapping(tick: Tick, claim: Claim, outage: Outage) -> Outage:
    """End the flapping of a circuit that has failed for an hour. From now on it is an ordinary outage."""
    flapping.delete_changes(tick.tx, PROVIDER_KIND, _circuit_name(outage.circuit))
    now = replace(outage, flapping_at=None, reported=True)
    outages.save_outage(tick.tx, now)
    _notify_all(tick, claim, Notice.STEADY, now)
    return now


def _forget_outage(tx: Transaction, circuit: Circuit) -> None:
    flapping.delete_changes(tx, PROVIDER_KIND, _circuit_name(circuit))
    outages.delete_outage(tx, circuit)


def _notify_recipients(tick: Tick, claim: Claim, outage: Outage) -> None:
    """Notify the recipients of this entry who were not notified yet or need a reminder."""
    notified = outages.outage_notifications(tick.tx, outage.circuit)
    for target in notices.notice_targets(tick, claim.entry):
        notice = _notice_to_send(tick.tx, outage, notified.get(target), claim.entry)
        if notice is not None:
            _notify_targets(tick, claim, notice, outage, target, notified.get(target))


def _notice_to_send(tx: Transaction, outage: Outage, notified: outages.OutageNotification | None, entry: Entry) -> Notice | None:
    if outage.flapping_at is not None:
        is_news = notified is None or notified.at < outage.flapping_at or tx.now - notified.at >= entry.on_failure.remind
        return Notice.FLAPPING if is_news else None
    if notified is None:
        return Notice.FAILING
    if notices.outage_kind(outage) not in notified.faults:
        return Notice.CHANGED
    return Notice.REMINDER if tx.now - notified.at >= entry.on_failure.remind else None


def _notify_all(tick: Tick, claim: Claim, notice: Notice, outage: Outage) -> None:
    """Notify all targets that were notified of the outage before."""
    for target, notified in outages.outage_notifications(tick.tx, outage.circuit).items():
        _notify_targets(tick, claim, notice, outage, target, notified)


def _notify_targets(
    tick: Tick, claim: Claim, notice: Notice, outage: Outage, target: Target, notified: outages.OutageNotification | None
) -> None:
    recipient = f" to {target.recipient}" if target.recipient else ""
    about = f"{notice} {outage.circuit}{recipient}"
    living = (notices.target_or_substitute(tick, target),)
    outbox.queue_notice(
        tick.tx,
        tick.plan.settings.channels,
        outbox.origin_of_claim(claim),
        about,
        _notice_text(tick.tx, tick.plan, claim, notice, outage),
        living,
        str(outage.circuit),
    )
    faults = notified.faults if notified else ()
    outages.record_notification(tick.tx, outage.circuit, target, (*faults, *({notices.outage_kind(outage)} - set(faults))))


def _notice_text(tx: Transaction, plan: Plan, claim: Claim, notice: Notice, outage: Outage) -> str:
    if notice is Notice.REPLACED:
        return notices.replaced_text(claim, outage)
    is_open = breakers.find_breaker(tx, outage.circuit) is not None
    affected = _affected_entries(tx, plan, outage.circuit, is_open=is_open)
    return notices.outage_text(notice, outage, affected, is_open, claim.run_id, tx.now, plan.settings.zone)


def _affected_entries(tx: Transaction, plan: Plan, circuit: Circuit, *, is_open: bool) -> list[tuple[str, str]]:
    """The affected entries: all that use the circuit if its breaker is open, otherwise those that failed."""
    if not is_open:
        return outages.affected_entries(tx.db, circuit)
    return sorted(
        ((entry.kind.value, entry.name) for entry in plan.entries.values() if entry.enabled and circuit in entry.circuits),
        key=lambda key: (key[0] != Kind.HEARTBEAT, key[1]),
    )


def _circuit_name(circuit: Circuit) -> str:
    return f"{circuit.provider} {circuit.model}"

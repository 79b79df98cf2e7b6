"""Finds out whether a provider or model fails, and notifies the recipients of all agents and jobs that it affects, once each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from heartbeat.findings import Severity
from scheduler.engine import notices, problem_notices
from scheduler.engine.problems import after_end, after_finding
from scheduler.engine.tick_items import Tick
from scheduler.model.circuit import Circuit, circuit_blamed_for, circuit_of_call, required_circuits
from scheduler.model.entry import Claim
from scheduler.model.outcome import FAILURES, AttemptResult, Call, Failure, Kind, Skip
from scheduler.model.problem import PROVIDER, Finding, Problem, Subject
from scheduler.model.settings import Target
from scheduler.store import breakers, outbox, problems
from scheduler.store.transaction import Transaction

REFUSED = "refused"
UNREACHABLE = "unreachable"
UNAVAILABLE = "unavailable"  # the error of all failures that alternate

REFUSALS = frozenset({Failure.AUTH, Failure.PAYMENT, Failure.NOT_FOUND})
# Failures that only a person can end. All others of a provider alternate, so they count as one error.
PERMANENT_FAILURES = REFUSALS | {Failure.TLS}


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
    if failed:
        return FailedCircuit(*found, error=refusal_text(failed.provider, result)) if found else None
    # A run without time or budget for a retry keeps the error of its last attempt, which names the provider.
    providers = (circuit.provider for circuit in claim.entry.models)
    provider = next((name for name in providers if (result.error or "").startswith(f"provider {name!r}: ")), None)
    return FailedCircuit(Circuit(provider), str(result.reason), refusal_text(provider, result)) if provider else None


def refusal_text(provider: str | None, result: AttemptResult) -> str:
    """The error text of a run without the name of the provider that it begins with."""
    return (result.error or "").removeprefix(f"provider {provider!r}: ")


def record_failure(tick: Tick, claim: Claim, blamed: FailedCircuit, count: int) -> Problem:
    """Record that a circuit made an entry fail, for the `count`-th time in a row. Nothing is sent yet.

    The problem opens as soon as the circuit breaker is open, or an entry has failed `after` times in a row.
    """
    circuit, reason = blamed.circuit, blamed.reason
    was = problems.find_problem(tick.tx.db, Subject.of_circuit(circuit))
    key = REFUSED if reason in REFUSALS else UNREACHABLE
    is_critical = reason == Failure.PAYMENT or (reason == Failure.AUTH and circuit.is_whole_provider)
    fault = reason if reason in PERMANENT_FAILURES else UNAVAILABLE
    found = Finding(key, Severity.CRITICAL if is_critical else Severity.WARNING, blamed.error, reason, fault)
    if was is not None and was.over_at is None:
        found = replace(found, text=found.text or was.found.text) if blamed.seen else was.found
    opens = breakers.find_breaker(tick.tx, circuit) is not None or count >= claim.entry.problem_rule.after
    return problems.save_problem(tick.tx, after_finding(was, Subject.of_circuit(circuit), found, tick.now, opens=opens))


def record_answer(tick: Tick, claim: Claim, call: Call) -> None:
    """Record an answered call of a run that has worked.

    1. The problem of a circuit is over if no other entry fails because of it.
    2. The end of an unstable circuit is sent when it no longer opens again and again.
    """
    called = circuit_of_call(call)
    failing = breakers.failing_circuits(tick.tx)
    for circuit in required_circuits((called,)) if called else ():
        problem = problems.find_problem(tick.tx.db, Subject.of_circuit(circuit)) if circuit in failing else None
        if problem is not None and problem.over_at is not None:
            send_news(tick, claim, problem)
        elif problem is not None and set(problems.consequences_of(tick.tx.db, problem.id)) <= {claim.entry.key}:
            _end(tick, claim, problem)


def record_closed_breaker(tick: Tick, claim: Claim, circuit: Circuit) -> None:
    """End the problem of a circuit whose breaker has closed, for all entries whose runs it prevented."""
    problem = problems.find_problem(tick.tx.db, Subject.of_circuit(circuit))
    if problem is not None:
        problems.release_consequences(tick.tx, problem.id, claim.entry.key)
        _end(tick, claim, problem)


def record_working(tick: Tick, claim: Claim, cause_id: int | None) -> None:
    """End the problem of the circuit that an entry was affected by, because the entry works again. Its own one is saved already.

    If the entry uses another model now, its success says nothing about this circuit. Then only a circuit is over that affects no
    entry any more. There may be several: each one that it was switched from.
    """
    for problem in problems.unsettled_problems(tick.tx.db, PROVIDER):
        circuit = problem.subject.circuit
        has_answered = problem.id == cause_id and circuit in claim.entry.circuits
        affects_none = has_answered or not problems.consequences_of(tick.tx.db, problem.id)
        if affects_none and breakers.find_breaker(tick.tx, circuit) is None:
            _end(tick, claim, problem)


def _end(tick: Tick, claim: Claim, problem: Problem) -> None:
    if problem.over_at is not None:
        return
    now = after_end(problem, tick.now)
    if problem.subject.circuit not in claim.entry.circuits:
        now = replace(now, openings=now.openings[-1:])  # it is no longer used, so it does not open again
    send_news(tick, claim, problems.save_problem(tick.tx, now))


def send_news(tick: Tick, claim: Claim, problem: Problem, recipients: Iterable[Target] = ()) -> None:
    """Send what is news about a circuit: to the recipients of an entry that it makes fail, or its end to all that know of it."""
    details = tuple(_details(tick, claim, problem))
    remind = claim.entry.problem_rule.remind
    problem_notices.send_news(tick, problem, recipients, outbox.origin_of_claim(claim), details, remind)


def _details(tick: Tick, claim: Claim, problem: Problem) -> Iterator[str]:
    circuit = problem.subject.circuit
    if problem.over_at is None:
        is_open = breakers.find_breaker(tick.tx, circuit) is not None
        # All that use the circuit are affected if its breaker is open, otherwise those that failed.
        users = (entry for entry in tick.plan.entries.values() if entry.enabled and circuit in entry.circuits)
        using = sorted(((entry.kind.value, entry.name) for entry in users), key=lambda key: (key[0] != Kind.HEARTBEAT, key[1]))
        affected = using if is_open else problems.consequences_of(tick.tx.db, problem.id)
        yield from notices.provider_details(problem, affected, is_open=is_open)
        yield notices.place_of_run(claim)
    elif circuit not in claim.entry.circuits:
        yield notices.replaced_text(claim, circuit)

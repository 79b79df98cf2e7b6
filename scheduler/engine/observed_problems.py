"""Finds out which providers, channels and parts of the daemon do not work, and notifies their recipients.

A provider that fails is one problem for all agents and jobs that it affects: each recipient is notified of it once. A channel
that takes no messages is reported on another one, and a part of the daemon on the default channel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from heartbeat.findings import Severity
from scheduler.engine import notices
from scheduler.engine.problem_rules import Change, News, after_end, after_symptom
from scheduler.engine.tick_items import Tick
from scheduler.model.circuit import LIMIT_REASON, Circuit, circuit_blamed_for, circuit_of_call, is_answered, required_circuits
from scheduler.model.entry import Claim
from scheduler.model.events import MessageMoved
from scheduler.model.outcome import FAILURES, FAILURES_WITH_ANSWER, AttemptResult, Call, DeliveryState, Failure, Kind, Skip
from scheduler.model.problem import DAEMON, PROVIDER, Problem, ProblemNotice, Subject, Symptom, Told
from scheduler.model.settings import LOG_CHANNEL, Target
from scheduler.store import breakers, clock_changes, outbox, problems
from scheduler.store.outbox import NO_RUN, Origin, OutboxMessage
from scheduler.store.transaction import Transaction

# Of providers and their models.
REFUSED = "refused"
UNREACHABLE = "unreachable"
UNAVAILABLE = "unavailable"  # the error of all failures that alternate

REFUSALS = frozenset({Failure.AUTH, Failure.PAYMENT, Failure.NOT_FOUND})
# Failures that only a person can end. All others of a provider alternate, so they count as one error.
PERMANENT_FAILURES = REFUSALS | {Failure.TLS}

# Of channels.
UNDELIVERED = "undelivered"
LONGEST_USUAL_DELAY = timedelta(hours=1)  # a channel that has taken no message for so long has a problem

# Of the daemon.
CONFIG = "config"  # the file was rejected
DATABASE = "database"  # it cannot be written, or soon can not
DAMAGE = "damage"  # of the database
WORKERS = "workers"  # no worker executes runs
INTERNAL = "internal"  # an exception that should not happen

SENT_AFTER = {WORKERS: timedelta(minutes=1)}  # workers may be restarted, or start after the daemon
SHORT_FAILURE = timedelta(minutes=1)  # another program may lock the database for so long
CALM = timedelta(hours=2)  # without internal errors: what was postponed for an hour has worked since

WHAT_FOLLOWS = {
    CONFIG: "The previous config stays active.",
    DATABASE: "Without room, no run starts and no message is sent.",
    DAMAGE: "The daemon continues as long as it can. Save a copy of the file, and restore a backup.",
    WORKERS: "Runs wait until a worker takes them.",
    INTERNAL: "The log of the daemon has more. What was affected is tried again within an hour.",
}


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
    if not _has_failed_without_answer(result):
        return None
    failed = next((call for call in reversed(result.calls) if call.failure is not None), None)
    found = circuit_blamed_for(failed) if failed else None
    if failed:
        return FailedCircuit(*found, error=refusal_text(failed.provider, failed.error or result.error)) if found else None
    # A run without time or budget for a retry keeps the error of its last attempt, which names the provider.
    providers = (circuit.provider for circuit in claim.entry.models)
    provider = next((name for name in providers if (result.error or "").startswith(f"provider {name!r}: ")), None)
    return FailedCircuit(Circuit(provider), str(result.reason), refusal_text(provider, result.error)) if provider else None


def find_own_refusal(tx: Transaction, claim: Claim, result: AttemptResult) -> FailedCircuit | None:
    """The open breaker of what the agent calls first, if a fallback has failed in its place; None otherwise."""
    breaker = breakers.own_breaker(tx, claim.entry) if result.fallback and _has_failed_without_answer(result) else None
    return FailedCircuit(breaker.circuit, breaker.reason, breaker.error, seen=False) if breaker else None


def is_by_circuit(tx: Transaction, claim: Claim, result: AttemptResult) -> bool:
    """Whether a provider, model or account has a part in a failure, maybe beside a fallback that has failed by itself."""
    if find_blame(tx, claim, result) is not None or find_own_refusal(tx, claim, result) is not None:
        return True
    if result.fallback is None or not _has_failed_without_answer(result):
        return False
    return any(circuit_blamed_for(call) is not None for call in result.calls)


def _has_failed_without_answer(result: AttemptResult) -> bool:
    """Whether no answer came, so that a failed call can be the cause. Before an answer, another call may have failed, too."""
    return result.outcome in FAILURES and result.reason not in FAILURES_WITH_ANSWER


def refusal_text(provider: str | None, error: str | None) -> str:
    """The text of an error without the name of the provider that it begins with."""
    return (error or "").removeprefix(f"provider {provider!r}: ")


def record_failed_circuit(tick: Tick, claim: Claim, blamed: FailedCircuit, count: int) -> Problem:
    """Record that a circuit made an entry fail, for the `count`-th time in a row. Nothing is sent yet.

    The problem opens as soon as the circuit breaker is open, or an entry has failed `after` times in a row.
    """
    circuit, reason = blamed.circuit, blamed.reason
    was = problems.find_problem(tick.tx.db, Subject.of_circuit(circuit))
    key = LIMIT_REASON if reason == LIMIT_REASON else REFUSED if reason in REFUSALS else UNREACHABLE
    is_critical = reason == Failure.PAYMENT or (reason == Failure.AUTH and circuit.is_whole_provider)
    fault = reason if reason in PERMANENT_FAILURES else UNAVAILABLE
    usual = Severity.INFO if key == LIMIT_REASON else Severity.WARNING  # it ends by itself
    found = Symptom(key, Severity.CRITICAL if is_critical else usual, blamed.error, reason, fault)
    if was is not None and was.over_at is None:
        found = replace(found, text=found.text or was.found.text) if blamed.seen else was.found
    opens = breakers.find_breaker(tick.tx, circuit) is not None or count >= claim.entry.spec.problems_after
    return problems.save_problem(tick.tx, after_symptom(was, Subject.of_circuit(circuit), found, tick.now, opens=opens))


def record_answer(tick: Tick, claim: Claim, call: Call) -> None:
    """Record a call of a run that has worked, if it was answered.

    1. The problem of a circuit is over if no other entry fails because of it.
    2. The end of an unstable circuit is sent when it no longer opens again and again.
    """
    called = circuit_of_call(call) if is_answered(call) else None
    for circuit in required_circuits((called,)) if called else ():
        problem = problems.find_unsettled(tick.tx.db, Subject.of_circuit(circuit))
        if problem is not None and problem.over_at is not None:
            send_news_of_circuit(tick, claim, problem)
        elif problem is not None and set(problems.consequences_of(tick.tx.db, problem.id)) <= {claim.entry.key}:
            _end_problem_of_circuit(tick, claim, problem)


def record_closed_breaker(tick: Tick, claim: Claim, circuit: Circuit) -> None:
    """End the problem of a circuit whose breaker has closed, for all entries whose runs it prevented."""
    problem = problems.find_problem(tick.tx.db, Subject.of_circuit(circuit))
    if problem is not None:
        problems.release_consequences(tick.tx, problem.id, claim.entry.key)
        _end_problem_of_circuit(tick, claim, problem)


def record_working_circuit(tick: Tick, claim: Claim, result: AttemptResult, cause_id: int | None) -> None:
    """End the problem of the circuit that an entry was affected by, because the entry works again. Its own one is saved already.

    If this circuit has not answered, because the entry uses another model now, or a fallback has answered, or a fallback failed
    before, the success says nothing about it. Then only a circuit is over that affects no entry any more. There may be several:
    each one that the entry was switched from.
    """
    used = required_circuits(circuit for call in result.calls if is_answered(call) and (circuit := circuit_of_call(call)))
    for problem in problems.unsettled_problems(tick.tx.db, PROVIDER):
        circuit = problem.subject.circuit
        has_answered = problem.id == cause_id and circuit in used
        affects_none = has_answered or not problems.consequences_of(tick.tx.db, problem.id)
        if affects_none and breakers.find_breaker(tick.tx, circuit) is None:
            _end_problem_of_circuit(tick, claim, problem)


def _end_problem_of_circuit(tick: Tick, claim: Claim, problem: Problem) -> None:
    if problem.over_at is not None:
        return
    now = after_end(problem, tick.now)
    if problem.subject.circuit not in claim.entry.circuits:
        now = replace(now, openings=now.openings[-1:])  # it is no longer used, so it does not open again
    send_news_of_circuit(tick, claim, problems.save_problem(tick.tx, now))


def send_news_of_circuit(tick: Tick, claim: Claim, problem: Problem, recipients: Iterable[Target] = ()) -> None:
    """Send what is news about a circuit: to the recipients of an entry that it makes fail, or its end to all that know of it."""
    details = tuple(_details_of_circuit(tick, claim, problem))
    remind = claim.entry.spec.problems_remind
    notices.send_news(tick, problem, recipients, outbox.origin_of_claim(claim), details, remind)


def _details_of_circuit(tick: Tick, claim: Claim, problem: Problem) -> Iterator[str]:
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


def follow_deliveries(tick: Tick) -> None:
    """Follow what happened to messages in this tick: a channel, or one recipient on it, takes them, or does not."""
    moved = [each for each in tick.tx.events if isinstance(each, MessageMoved) and each.channel != LOG_CHANNEL]
    given_up = {each.outbox_id for each in moved if each.state is DeliveryState.DEAD}  # and not followed yet
    for happened in moved:
        given_up.discard(happened.outbox_id)
        if happened.state is DeliveryState.DELIVERED:
            _record_delivery(tick, happened.outbox_id)
        elif happened.state is DeliveryState.DEAD or happened.retried:
            message = outbox.get_message(tick.tx.db, happened.outbox_id)
            is_lost = happened.state is DeliveryState.DEAD
            if is_lost:
                problems.note_lost_message(tick.tx, happened.outbox_id)
            if is_lost or _is_late(tick, message):
                _record_refusal(tick, message, happened.error, given_up, is_lost=is_lost)


def _is_late(tick: Tick, message: OutboxMessage) -> bool:
    """Whether a message has waited for an hour, and its recipient has taken no other one since."""
    since = tick.now - LONGEST_USUAL_DELAY
    return (
        message.created_at <= since
        and not clock_changes.changed_recently(tick.tx)
        and not outbox.was_delivered_since(tick.tx.db, message.target, since)
    )


def _record_delivery(tick: Tick, outbox_id: int) -> None:
    if not problems.is_any_unsettled(tick.tx.db):
        return  # as usual: the message need not be read
    message = outbox.get_message(tick.tx.db, outbox_id)
    problem = problems.find_unsettled(tick.tx.db, Subject.of_target(message.target))
    if problem is None or problem.is_settled:
        return
    now = problems.save_problem(tick.tx, after_end(problem, tick.now))  # if it is over already, its end was lost
    notices.send_news(tick, now, (), message.origin)


def _record_refusal(tick: Tick, message: OutboxMessage, error: str, given_up: Set[int], *, is_lost: bool) -> None:
    lost = message.target
    tick.refusing.add(lost)
    was = problems.find_problem(tick.tx.db, Subject.of_target(lost))
    found = Symptom(UNDELIVERED, Severity.CRITICAL, error or "it takes no messages", UNDELIVERED, UNDELIVERED)
    now = problems.save_problem(tick.tx, after_symptom(was, Subject.of_target(lost), found, tick.now))
    entry = None if message.kind == DAEMON else tick.plan.entries.get((Kind(message.kind), message.name))
    recipient = notices.substitute_target(tick, entry.problems_deliver if entry else (), refusing=message.channel)
    if recipient in now.notices and now.notices[recipient].message_id in given_up:
        return  # its channel refuses messages too, which is recorded next: the next refusal is notified elsewhere
    is_declared = message.channel in tick.plan.settings.channels
    details = tuple(notices.undelivered_details(message, is_lost=is_lost, is_declared=is_declared))
    notices.send_news(tick, now, (recipient,), message.origin, details)


@dataclass(frozen=True, slots=True)
class FailedWrites:
    """Since when the database could not be written, and why."""

    since: datetime
    problem: str


def note_daemon(tick: Tick, key: str, problem: str | None) -> None:
    """Record why a part of the daemon does not work, or (None) that it does. The default channel is notified of news."""
    was = problems.find_problem(tick.tx.db, Subject.of_daemon(), key)
    if problem is not None:
        _send_news_of_daemon(tick, problems.save_problem(tick.tx, _after_failure(was, key, problem, tick.now)))
    elif was is not None and was.over_at is None:
        _send_news_of_daemon(tick, problems.save_problem(tick.tx, after_end(was, tick.now)))


def note_failed_writes(tick: Tick, failed: FailedWrites, shortage: str | None) -> None:
    """Record that the database can be written again. Until now, no message could be queued.

    `shortage`: its disk is still so full that this may end. Otherwise one message says how long it could not be written.
    """
    if shortage is not None:
        note_daemon(tick, DATABASE, shortage)
        return
    was = problems.find_problem(tick.tx.db, Subject.of_daemon(), DATABASE)
    if tick.now - failed.since < SHORT_FAILURE or (was is not None and was.over_at is None):
        return
    over = after_end(_after_failure(was, DATABASE, failed.problem, failed.since), tick.now)
    known = ProblemNotice(Told.OVER, Severity.CRITICAL, tick.now, severity_before=Severity.CRITICAL)
    news = News(problems.save_problem(tick.tx, over), _default_channel(tick), known, Change.OVER)
    notices.send_message(tick, news, _origin(tick), notices.problem_text(news, (), tick.plan.settings.zone))


def review_daemon(tick: Tick, shortage: str | None) -> None:
    """Once a minute: find out what the time has changed, and send reminders and what was not delivered.

    `shortage` says how full the disk of the database is, if it is too full.
    """
    known = {each.key: each for each in problems.unsettled_problems(tick.tx.db, DAEMON)}
    if shortage is not None:
        note_daemon(tick, DATABASE, shortage)
    for key, problem in known.items():
        works = shortage is None if key == DATABASE else key == INTERNAL and tick.now - problem.last_seen_at >= CALM
        if works and problem.over_at is None:
            note_daemon(tick, key, None)
        elif works or key != DATABASE:
            _send_news_of_daemon(tick, problem)


def _after_failure(was: Problem | None, key: str, error: str, now: datetime) -> Problem:
    """Another error of the same part is no news: people look at the first one, and see the present one there."""
    return after_symptom(was, Subject.of_daemon(), Symptom(key, Severity.CRITICAL, error, key, key), now)


def _send_news_of_daemon(tick: Tick, problem: Problem) -> None:
    is_sent = tick.now - problem.since >= SENT_AFTER.get(problem.key, timedelta())
    details = (WHAT_FOLLOWS[problem.key],) if problem.over_at is None else ()
    notices.send_news(tick, problem, (_default_channel(tick),) if is_sent else (), _origin(tick), details)


def _default_channel(tick: Tick) -> Target:
    return notices.substitute_target(tick, tick.plan.settings.deliver)


def _origin(tick: Tick) -> Origin:
    return Origin(NO_RUN, *Subject.of_daemon()[:2], DAEMON, tick.now)

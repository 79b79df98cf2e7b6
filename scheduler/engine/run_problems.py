"""Finds out from each run whether its agent or job fails or stops, and notifies the recipients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain

from heartbeat.findings import Severity
from heartbeat.verdict import message_digest
from heartbeat.words import format_count
from scheduler.engine import job_failures, notices, observed_problems, planning
from scheduler.engine.job_failures import Woken
from scheduler.engine.observed_problems import FailedCircuit
from scheduler.engine.problem_rules import Change, after_end, after_symptom, news_of, times_in_a_row
from scheduler.engine.reported_problems import ReportUpdate
from scheduler.engine.tick_items import Tick
from scheduler.model.entry import Claim
from scheduler.model.entry_row import EntryRow, KnownState, count_held
from scheduler.model.outcome import (
    ANSWERED,
    CHECKLIST_SKIPS,
    FAILURES,
    PRECHECK_SKIPS,
    STOPPING_SKIPS,
    SUCCESSES,
    AttemptResult,
    Kind,
    Outcome,
    Reason,
    Skip,
)
from scheduler.model.problem import FALLBACK, PAUSED, Problem, Subject, Symptom
from scheduler.model.settings import Target
from scheduler.store import breakers, problems
from scheduler.store.transaction import Transaction

FAILED = "failed"  # runs fail
NO_ANSWER = "no-answer"  # an answer that was to come later does not come
STOPPED = "stopped"  # planned runs do not start
PRECHECK = "precheck"  # the precheck fails, and the agent is called although it does
TRUNCATED = "truncated"  # each answer is cut

CHECK_ORDER = tuple(Skip)  # the order in which a heartbeat run is checked


def update_problems(
    tick: Tick,
    claim: Claim,
    result: AttemptResult,
    entry_row: EntryRow,
    woken: Woken = (),
    covered: frozenset[Target] = frozenset(),
) -> EntryRow:
    """Update the problems of an entry after a run, and queue messages. Returns the updated entry row.

    `woken` are the agents that this result has woken. `covered` are the targets that know already that the entry works again.

    1. What the run shows is compared with the known problems: each opens, goes on, or is over.
    2. If a provider is the cause, its problem opens or goes on, and its message covers that of the entry. If a fallback
       has failed in place of a provider that refuses calls, the problem of that provider opens or goes on, too.
    3. The recipients are notified. While the entry is muted, nothing is sent. What is still true after the mute is sent then.
    4. If the entry works again, the provider that was the cause works too.

    A successful run of an entry without problems needs no database access.
    """
    updated = _update_problems(tick, claim, result, entry_row, woken, covered)
    if updated.state != "active":
        notices.forget_problems(tick, updated)  # it was removed or disabled during the run
    is_mute_over = updated.mute is not None and not updated.is_muted(tick.now)
    return updated._replace(muted_until=None, mute=None) if is_mute_over else updated


def _update_problems(
    tick: Tick, claim: Claim, result: AttemptResult, entry_row: EntryRow, woken: Woken, covered: frozenset[Target]
) -> EntryRow:
    entry, subject = claim.entry, Subject(*claim.entry.key)
    threshold = entry.spec.problems_after
    blamed = observed_problems.find_blame(tick.tx, claim, result) if threshold and _is_failure(result) else None
    if result.reason is Skip.BREAKER_OPEN and blamed is None:
        return entry_row  # the breaker has closed in the meantime, or failures are not reported
    found = {each.key: each for each in _symptoms(claim, result, blamed)} if threshold else {}
    if not found and not problems.has_unsettled(tick.tx.db, subject):
        return entry_row
    known = {problem.key: problem for problem in problems.problems_of(tick.tx.db, subject)}
    over = {key: problem for key, problem in known.items() if key not in found and _is_over(tick.tx, claim, result, problem)}
    if not threshold:
        if over:
            problems.delete_problems_of(tick.tx, subject)
        return entry_row
    cause = None
    if blamed is not None:
        was = known.get(FAILED)
        cause = observed_problems.record_failed_circuit(tick, claim, blamed, times_in_a_row(was))
        found[FAILED] = replace(found[FAILED], reason=_lasting_reason(was, result), cause_id=cause.id)
    if found and planning.is_to_be_paused(entry, entry_row, result):
        found[PAUSED] = _symptom_of_pause(entry_row, found[FAILED if FAILED in found else NO_ANSWER])
    after = {key: after_end(problem, tick.now) if key in over else problem for key, problem in known.items()}
    for key, finding in found.items():
        opens = times_in_a_row(known.get(key)) >= threshold or (
            key == FALLBACK and breakers.own_breaker(tick.tx, entry) is not None
        )
        after[key] = after_symptom(known.get(key), subject, finding, tick.now, opens=opens or key == PAUSED)
    for key, problem in after.items():
        if problem != known.get(key):
            after[key] = problems.save_problem(tick.tx, problem)
    targets = notices.notice_targets(tick, entry)
    if cause is not None:
        observed_problems.send_news_of_circuit(tick, claim, cause, targets)
    own = observed_problems.find_own_refusal(tick.tx, claim, result) if FAILED in found else None
    if own is not None and (blamed is None or blamed.circuit != own.circuit):
        refused = observed_problems.record_failed_circuit(tick, claim, own, times_in_a_row(known.get(FAILED)))
        observed_problems.send_news_of_circuit(tick, claim, refused, targets)
    news = {key: news_of(problem, targets, entry.spec.problems_remind, tick.now) for key, problem in after.items()}
    if PAUSED in found:  # one message says both that it fails and that it is paused
        news |= {FAILED: [], NO_ANSWER: []}
    if not entry_row.is_muted(tick.now):
        details = (notices.job_output(claim, result), notices.place_of_run(claim))
        job_failures.send_or_hold_news(tick, claim, list(chain.from_iterable(news.values())), details, woken, covered)
    elif any(each.change is Change.OPENED for each in chain.from_iterable(news.values())):
        entry_row = count_held(entry_row)
    for problem in over.values() if result.outcome in ANSWERED else ():
        observed_problems.record_working_circuit(tick, claim, result, problem.found.cause_id)
    return entry_row


def _symptoms(claim: Claim, result: AttemptResult, blamed: FailedCircuit | None) -> Iterator[Symptom]:
    """What a run shows to be wrong with its entry."""
    if blamed is not None:
        yield Symptom(FAILED, Severity.WARNING, blamed.error or blamed.reason, blamed.reason, "")
    elif _is_failure(result):
        key = STOPPED if isinstance(result.reason, Skip) else NO_ANSWER if result.reason is Reason.NO_RESULT else FAILED
        # A budget was set by the user: that it is used up is news, and no defect.
        severity = Severity.INFO if result.reason is Skip.BUDGET else Severity.WARNING
        yield _symptom(key, severity, result)
    if result.outcome in ANSWERED and result.precheck_problem:
        failing = replace(result, reason=Skip.PRECHECK_FAILED, error=result.precheck_problem)
        yield _symptom(PRECHECK, Severity.WARNING, failing)
    if result.outcome in ANSWERED and result.truncated and claim.entry.kind is Kind.HEARTBEAT:
        yield Symptom(TRUNCATED, Severity.WARNING, "each answer is cut at the limit of its tokens", TRUNCATED, TRUNCATED)
    if result.outcome in SUCCESSES and result.fallback:
        # It is news, and no defect: the user has provided for it.
        yield Symptom(FALLBACK, Severity.INFO, f"{result.fallback} answers: {result.fallback_why}", FALLBACK, FALLBACK)


def _symptom_of_pause(entry_row: EntryRow, failure: Symptom) -> Symptom:
    number, what = format_count(entry_row.failures_for_pause, "failure"), entry_row.label
    text = f"no run starts after {number} in a row until it is resumed: {failure.text}\nResume: heartbeatd resume {what}"
    return replace(failure, key=PAUSED, text=text, cause_id=None)


def _symptom(key: str, severity: Severity, result: AttemptResult) -> Symptom:
    reason = str(result.reason or result.outcome)
    return Symptom(
        key, severity, notices.failure_says(result) or reason, reason, message_digest(result.error or reason, "numbers")
    )


def _is_failure(result: AttemptResult) -> bool:
    if result.outcome is Outcome.SKIPPED:
        return result.reason in STOPPING_SKIPS
    return result.outcome in FAILURES and result.reason is not Reason.CANCELLED


def _lasting_reason(was: Problem | None, result: AttemptResult) -> str:
    """The reason of a failure by a provider. A failure remains the reason during later skips, because only an answer ends it."""
    before = was.found.reason if was is not None and was.over_at is None else None
    return before if before and isinstance(result.reason, Skip) else str(result.reason)


def _is_over(tx: Transaction, claim: Claim, result: AttemptResult, problem: Problem) -> bool:
    """Whether a run that did not find a problem shows that it is over.

    An answer ends any but a pause, which only ends when the entry is resumed. A run that starts ends `stopped`. A skip ends a
    problem that an earlier check caused. Only an answer of the agent itself ends the use of fallbacks.
    """
    if problem.over_at is not None or problem.key == PAUSED:
        return False
    if problem.key == FALLBACK:
        if len(claim.entry.alternatives) == 1:  # its fallbacks were removed
            return True
        return result.outcome in SUCCESSES and result.fallback is None and bool(result.calls)
    if not isinstance(result.reason, Skip):
        return result.outcome in ANSWERED or problem.key == STOPPED
    if problem.found.reason not in CHECK_ORDER:
        return False
    cause = Skip(problem.found.reason)
    if cause is Skip.BREAKER_OPEN and breakers.has_open_breaker(tx, claim.entry):
        return False  # the probe made no call
    has_passed = CHECK_ORDER.index(result.reason) > CHECK_ORDER.index(cause)
    return has_passed or any({cause, result.reason}.issubset(check) for check in (CHECKLIST_SKIPS, PRECHECK_SKIPS))


def differs_from_known(
    tx: Transaction, claim: Claim, result: AttemptResult, update: ReportUpdate | None, known: KnownState
) -> bool:
    """Whether a run shows something else than what was known when its entry was muted until something changes.

    1. A problem that the agent reports opens, gets worse or ends.
    2. A message has a new text.
    3. The entry begins to fail, fails for another reason, or has one of the known reasons no more. While a provider fails, its
       open breaker is no other reason than its refusals. With `after: none` failures are not reported, so they are no news.
    """
    for each in update.changed if update else ():
        rank = known.problems.get(each.key, -1)
        if each.found.severity.rank > rank if each.is_open else rank >= 0:
            return True
    if result.message and claim.entry.message_digest(result.message) not in known.texts:
        return True
    after, reasons = claim.entry.spec.problems_after, known.failing.split()
    if not after:
        return False
    before = {each.key: each for each in problems.problems_of(tx.db, Subject(*claim.entry.key)) if each.over_at is None}
    blamed = observed_problems.find_blame(tx, claim, result) if _is_failure(result) else None
    found = {each.key: each for each in _symptoms(claim, result, blamed)}
    if blamed is None or {blamed.reason, Skip.BREAKER_OPEN}.isdisjoint(reasons) or not _has_cause(tx, before, blamed):
        for key, finding in found.items():
            reason = str(result.reason) if blamed else finding.reason
            if reason not in reasons and times_in_a_row(before.get(key)) >= after:
                return True
    if reasons and not found and result.outcome in ANSWERED:
        return True
    known_ones = (each for each in before.values() if each.key not in found and each.found.reason in reasons)
    return any(_is_over(tx, claim, result, each) for each in known_ones)


def _has_cause(tx: Transaction, before: Mapping[str, Problem], blamed: FailedCircuit) -> bool:
    cause_id = before[FAILED].found.cause_id if FAILED in before else None
    cause = problems.get_problem(tx.db, cause_id) if cause_id is not None else None
    return cause is not None and cause.subject.circuit == blamed.circuit

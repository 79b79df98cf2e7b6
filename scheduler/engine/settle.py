"""Settles an attempt with its result: the run waits, is tried again, or is closed, with all that follows from it.

What a result changes is planned first (`_plan_retry`, `_plan_closing`), and written then in one place (`_write_closing`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from random import Random
from zoneinfo import ZoneInfo

from heartbeat.findings import ReminderWish
from heartbeat.prompt import Memory
from heartbeat.result import AttemptResult
from heartbeat.runners import Call, Tokens
from heartbeat.verdict import with_cut_note
from heartbeatd.operations import parse_span
from scheduler.engine import (
    budget_reservations,
    job_failures,
    notices,
    observed_problems,
    planning,
    reported_problems,
    run_problems,
    wake_starts,
)
from scheduler.engine.problem_rules import News
from scheduler.engine.reported_problems import ReportUpdate
from scheduler.engine.tick_items import Refused, Tick
from scheduler.model.budget import NO_USAGE, cache_saving, call_cost
from scheduler.model.circuit import Circuit
from scheduler.model.entry import Claim, Entry, Facts, OpenRun
from scheduler.model.entry_row import EntryRow, count_held, parse_mute
from scheduler.model.events import (
    CallCharged,
    ChecklistRemarked,
    LaneBusy,
    ModelMismatched,
    MuteChanged,
    ProviderCalled,
    ProviderFailed,
    RetryPlanned,
    StaleResultDropped,
    TargetUnknown,
)
from scheduler.model.outcome import (
    ANSWERED,
    FAILURES,
    FAILURES_WITH_ANSWER,
    LONGEST_RETRY_AFTER,
    LONGEST_USUAL_RETRY_DELAY,
    RETRY_JITTER,
    SUCCESSES,
    WOKEN,
    Failure,
    Kind,
    Outcome,
    Reason,
    Skip,
    Suppression,
    Trigger,
)
from scheduler.model.problem import Subject
from scheduler.model.settings import Target
from scheduler.model.wake import RejectedBecause, Wake
from scheduler.store import agent_memory, breakers, entries, outbox, problems, runs, wakes
from scheduler.store.transaction import Transaction

NO_WAIT = timedelta()
NO_TOKENS = Tokens()
CANCELLED_BY_US = Failure.EXIT
"""Why a call failed that the daemon cancelled, which says nothing about the provider. No other call fails so."""

MAX_CUT_ANSWERS = 1  # after one more run whose answers were cut, the output of the precheck counts as looked at
MAX_LEFT_OUT = 400  # lines that the agent has left out on purpose, and about which it is not asked again

BUDGET_SPENT_TEXT = "its budget does not allow another try"


def settle_attempt(tick: Tick, claim: Claim, result: AttemptResult) -> None:
    """Record the result of an attempt.

    1. The usage of its calls is recorded, and circuit breakers open and close by it.
    2. The run could not start because its agent is locked or another run probes its provider: it waits, if it is in time.
    3. The attempt failed and a retry is allowed: the run waits for the retry.
    4. Otherwise the run is closed (`_close_run`).
    5. Slots that passed during the run get their records, and the entry row is saved with its next due time.
    """
    before = entries.get_entry(tick.tx, *claim.entry.key)
    record_calls(tick, claim, result)
    if isinstance(result.reason, Skip) and _is_temporary_refusal(tick, claim, result.reason):
        _wait_to_start(tick, before, claim, result.reason, result.error)
        return
    result, again_at = _plan_retry(tick, before, claim, result)
    if again_at is not None:
        _wait_for_retry(tick.tx, before, claim, result, again_at)
        return
    after = _close_run(tick, before, claim, result, passed=Skip.ALREADY_RUNNING)
    if after is None:
        return
    after = planning.end_pause_if_over(tick, after)
    if after.state == "active" and not after.paused:
        after = planning.skip_passed_slots(tick, after, tick.now, Skip.ALREADY_RUNNING)
    entries.change_entry(tick.tx, before, planning.with_next_due(tick.tx, after))


def _is_temporary_refusal(tick: Tick, claim: Claim, why: Skip) -> bool:
    """Whether a refused run should wait: its lock will be released, or another run is probing its provider."""
    return why is Skip.BUSY or (why is Skip.BREAKER_OPEN and breakers.may_close_soon(tick.tx, tick.plan.entries, claim.entry))


def _wait_to_start(tick: Tick, entry_row: EntryRow, claim: Claim, why: Skip, detail: str | None) -> None:
    """Let a refused run wait for its lock or for a probe. If its time is over, it is closed as skipped for that reason."""
    entry = claim.entry
    before = runs.find_open_run(tick.tx.db, *entry.key)
    is_closed = why is Skip.BREAKER_OPEN and breakers.blocking_breaker(tick.tx, tick.plan.entries, entry) is None
    is_free = is_closed and not breakers.account_stagger(entry)
    wait = breakers.account_stagger(entry) if why is Skip.BREAKER_OPEN else None
    again_at = tick.now if is_free else planning.next_look_at_waiting_run(tick.tx, entry, entry_row, claim.run.slot, wait)
    if before is None or not runs.defer_run(tick.tx, claim, why, again_at, detail):
        tick.tx.report(StaleResultDropped(claim.run.id, *entry.key))
        return
    if why is Skip.BUSY and before.reason != why:
        tick.tx.report(LaneBusy(claim.run.id, *entry.key, claim.run.slot, claim.run.trigger))
    if entry_row.state == "active" and planning.may_still_run(tick.tx, entry, entry_row, claim.run.slot):
        entries.change_entry(tick.tx, entry_row, planning.with_due_at(entry_row, again_at))
    else:
        has_begun = before.outcome and not before.has_not_begun
        never_began = replace(before, outcome=Outcome.SKIPPED, reason=why, error=detail)
        give_up_waiting(tick, entry, entry_row, before if has_begun else never_began)


def _plan_retry(tick: Tick, entry_row: EntryRow, claim: Claim, result: AttemptResult) -> tuple[AttemptResult, datetime | None]:
    """The time of the next attempt; None if there is none. Then the returned result has the reason.

    An answer that was cut is retried too. If there is no further attempt, it counts as it is.
    """
    used = claim.run.attempt - claim.run.crashes
    if result.transient and result.retry_after and result.retry_after > LONGEST_RETRY_AFTER:
        return replace(result, outcome=Outcome.FAILED, reason=Reason.RATE_LIMITED), None
    is_cut = result.truncated and result.outcome in ANSWERED
    # With `retry: true`, the user accepts that the work may be done twice.
    if result.has_changed and result.reason is not Reason.POSTCHECK:
        return result, None
    if not (result.transient or is_cut) or used > claim.entry.spec.retries or breakers.has_open_breaker(tick.tx, claim.entry):
        return result, None
    if budget_reservations.find_shortage(tick, claim.entry, first=False) is not None:
        return (result if is_cut else replace(result, error=_with_budget_text(result.error))), None
    if entry_row.state != "active":  # no try follows because the entry was disabled or removed, and not for lack of time
        return result, None
    at = tick.now + max(_retry_delay(tick.chance, used), result.retry_after or timedelta())
    if not planning.may_still_run(tick.tx, claim.entry, entry_row, claim.run.slot, at):
        return (result if is_cut else replace(result, outcome=Outcome.FAILED, reason=Reason.NO_TIME_LEFT)), None
    return result, at


def _retry_delay(chance: Random, used: int) -> timedelta:
    """The wait before a retry: 1 s, 2 s, 4 s, ... at most 30 s, each up to 25 % shorter or longer."""
    usual = min(LONGEST_USUAL_RETRY_DELAY, timedelta(seconds=2 ** min(used - 1, 10)))
    return usual * chance.uniform(1 - RETRY_JITTER, 1 + RETRY_JITTER)


def _wait_for_retry(tx: Transaction, entry_row: EntryRow, claim: Claim, result: AttemptResult, again_at: datetime) -> None:
    entry = claim.entry
    if not runs.keep_run_for_retry(tx, claim, result, again_at):
        tx.report(StaleResultDropped(claim.run.id, *entry.key))
        return
    entries.change_entry(tx, entry_row, planning.with_due_at(entry_row, again_at))
    tx.report(RetryPlanned(claim.run.id, *entry.key, claim.run.attempt, result.reason, again_at, result.error))


def _close_run(
    tick: Tick, before: EntryRow, claim: Claim, result: AttemptResult, *, passed: Skip = Skip.MISSED
) -> EntryRow | None:
    """Close a run. Returns the updated entry row; None, and nothing is changed, if the run no longer belongs to the claim.

    If the entry is paused after this failure, the slots that have passed since the run began are recorded as `passed`.
    """
    after = _write_closing(tick, claim, _plan_closing(tick, before, claim, result))
    if after is None or not planning.is_to_be_paused(claim.entry, after, result):
        return after
    return planning.pause_after_failures(tick, after, passed)


@dataclass(frozen=True, slots=True)
class Closing:
    """What the end of a run changes. Nothing of it is written yet.

    `result` is that of the run, with the reason if nothing is sent, and `row` the entry's row after it. `slots` are how many were
    answered and lost. `update` has what becomes of the problems that the agent reports. `text_targets` are the targets to which
    the text of the answer is new. `repeats` are the runs whose messages have the content of a duplicate. `ends_mute`: a mute
    ends by this run. `seen` is what it has seen of a source, which counts later if the row has another state.
    """

    result: AttemptResult
    row: EntryRow
    slots: tuple[int, int]
    update: ReportUpdate | None
    text_targets: Sequence[Target]
    repeats: Sequence[int]
    ends_mute: bool
    seen: str | None


def _plan_closing(tick: Tick, before: EntryRow, claim: Claim, result: AttemptResult) -> Closing:
    """What the end of a run changes. The database is only read.

    1. The message is dropped if a failure notification replaces it.
    2. The findings are compared with the open problems, and the text with what its targets got before.
    3. What all targets know already is suppressed. While the entry is muted, all is, unless something has changed.
    4. The entry row gets what the run has seen, and its outcome: failures in a row, the last success.
    """
    entry = claim.entry
    has_answered = result.reason in FAILURES_WITH_ANSWER and entry.reporter is not None
    if result.outcome in FAILURES and not has_answered and (entry.spec.problems_after or result.reason is Reason.CANCELLED):
        result = replace(result, message=None)  # a notification reports it, or a person cancelled it
    reports = Subject.of_reports(entry.name, entry.kind)
    has_reports = problems.has_unsettled(tick.tx.db, reports)
    may_send = result.message or result.report or (entry.reporter and has_reports)
    targets = notices.resolve_targets(tick, entry.deliver, entry.lane) if may_send else ()
    text_targets = outbox.targets_without_text(tick.tx, entry, result.message, targets) if result.message else ()
    has_findings = result.report is not None and bool(result.report.findings)
    update = None
    if has_findings or has_reports:  # otherwise it concerns no problem
        most, was_muted = tick.limits.new_problems, before.mute is not None
        update = reported_problems.plan_update(tick.tx, claim, result, targets, most, was_muted=was_muted)
    recipients = {*text_targets, *(each.target for each in update.news if each.change)} if update else {*text_targets}
    is_muted = before.is_muted(tick.now)
    known = parse_mute(before.mute).known if is_muted and before.mute else None
    ends_mute = known is not None and run_problems.differs_from_known(tick.tx, claim, result, update, known)
    row, is_held = before, False
    if is_muted and not ends_mute:
        is_held = bool(recipients)
        row = count_held(before) if is_held else before
        update = replace(update, news=()) if update else None  # what is still news after the mute is sent then
        recipients, text_targets = set(), ()
    result = _with_suppression(result, update, is_sent=bool(recipients), is_held=is_held, has_targets=bool(targets))
    repeats = _runs_with_content(tick.tx, claim, result, targets, update) if result.suppression is Suppression.DUPLICATE else ()
    if result.outcome in ANSWERED:
        row = _record_look(tick.tx, row, claim, result, update)
    slots = planning.count_slots(row, claim.run.slot, claim.run.trigger, result)
    row = planning.expect_slot_after_result(row, claim.run.slot, result)
    row = _record_outcome(tick.tx, row, claim, result, sent=bool(recipients))
    seen = row.source_state
    if claim.facts.memory.source_state != before.source_state:  # the look was compared with what is not certain
        row = row._replace(source_state=before.source_state)
    return Closing(result, row, slots, update, text_targets, repeats, ends_mute, seen)


def _write_closing(tick: Tick, claim: Claim, closing: Closing) -> EntryRow | None:
    """Write what the end of a run changes. Returns the updated entry row; None if the run no longer belongs to the claim.

    1. The run record gets its outcome.
    2. The problems that the agent reports are saved, and a message is queued for each target that it is news for.
    3. The checklist items, the session and the awaited result are saved.
    4. The wakes that the run delivered end; after a failure they wait for another run. The reminders that the answer asks for
       are set. Notifications of jobs that were delayed for this run are dropped if it has reported the failure.
    5. The agents that the result of a job wakes are woken, and the jobs that follow it are started. What the agents report about
       the job is over if it works again.
    6. The problems of the entry are updated, and messages about them are queued. They are delayed while a woken agent can
       report the failure.

    Steps 4 to 6 query what the steps before them have written, so they are no part of the plan.
    """
    tx, entry, result, row = tick.tx, claim.entry, closing.result, closing.row
    if not runs.close_run(tx, claim, result, closing.repeats):
        tx.report(StaleResultDropped(claim.run.id, *entry.key))
        return None
    if any(closing.slots):
        tx.db.count_slots(row.id, *closing.slots)
    if closing.ends_mute:
        tx.report(MuteChanged(*row.key, False, "change", None))
        row = row._replace(muted_until=None)
    if closing.update or closing.text_targets or result.message:
        _queue_messages(tick, claim, closing)
    reports = Subject.of_reports(entry.name, entry.kind)
    if entry.reporter is None and result.outcome in ANSWERED and problems.has_unsettled(tx.db, reports):  # by an earlier config
        problems.delete_problems_of(tx, reports)
    if result.prompt.selection and result.prompt.selection.remarks:
        tx.report(ChecklistRemarked(entry.name, result.prompt.selection.remarks))
    agent_memory.remember_run(tx, claim, result)
    if closing.seen != row.source_state:
        agent_memory.add_to_awaited_state(tx, claim, closing.seen)
    _settle_wakes(tick, row, claim, result)
    if result.reminders:
        _set_reminders(tick, claim, result)
    if entry.kind is Kind.HEARTBEAT:
        job_failures.settle_after_run(tx, claim, result, closing.text_targets)
        job_failures.end_reports_about_recovered_jobs(tick, claim)
        return run_problems.update_problems(tick, claim, result, row)
    woken = [(wake.name, wake_id) for wake in entry.wakes_caused_by(result) if (wake_id := _request_wake(tick, wake))]
    wake_starts.release_held_wakes(tick, entry)
    wake_starts.start_following_jobs(tick, claim, result)
    has_worked = result.outcome in ANSWERED
    covered = job_failures.end_reports_about(tick, entry.name, claim) if has_worked else frozenset[Target]()
    return run_problems.update_problems(tick, claim, result, row, woken, covered)


def _queue_messages(tick: Tick, claim: Claim, closing: Closing) -> None:
    """Save the problems that the agent reports, queue the messages of a run, and save what its targets are notified of."""
    tx, message, news = tick.tx, closing.result.message, list[News]()
    if closing.update is not None:
        saved = {each.key: problems.save_problem(tx, each) for each in closing.update.changed}
        # A problem gets its number when it is saved for the first time.
        news = [replace(each, problem=saved.get(each.problem.key, each.problem)) for each in closing.update.news]
    texts = _text_by_target(tick, closing.result, closing.text_targets, news)
    queued = outbox.queue_run_messages(tx, tick.plan.settings.channels, claim, texts)
    if message:
        known = {target: queued[target] for target in closing.text_targets if target in queued}
        outbox.record_run_text(tx, claim, message, known)
    if (message or texts) and notices.is_last_target_unknown(tick, claim.entry.deliver, claim.entry.lane):
        tx.report(TargetUnknown(claim.run.id, *claim.entry.key))
    notices.record_news(tx, news, queued)


def _runs_with_content(
    tx: Transaction, claim: Claim, result: AttemptResult, targets: Sequence[Target], update: ReportUpdate | None
) -> list[int]:
    """The earlier runs whose messages have the text of this one, and the problems that it mentions."""
    texts = {outbox.last_message_with_text(tx, claim.entry, target, result.message) for target in targets if result.message}
    known = update.problems if update else ()
    mentioned = [each for each in known if each.is_open and each.evidence.last_run_id == claim.run.id]
    sent = {each.notices[target].message_id for each in mentioned for target in targets if target in each.notices}
    return outbox.runs_of_messages(tx.db, {message_id for message_id in texts | sent if message_id is not None})


def _text_by_target(tick: Tick, result: AttemptResult, new_targets: Iterable[Target], news: Iterable[News]) -> dict[Target, str]:
    """The text for each target that gets one: the text of the answer if it is new there, and what it reports.

    The text around the findings of an answer is sent only together with news about a problem.
    """
    texts = dict.fromkeys(new_targets, result.message or "")
    for target, lines in notices.text_by_target(news, tick.plan.settings.zone).items():
        loose = result.report.loose if result.report else ""
        content = "\n".join(part for part in (loose, lines) if part)
        if target in texts:
            texts[target] = f"{content}\n\n{texts[target]}"
        else:
            texts[target] = with_cut_note(content, truncated=result.truncated)
    if result.fallback and result.outcome in SUCCESSES:
        texts = {target: f"{text}\n\n(answered by the fallback {result.fallback})" for target, text in texts.items()}
    return texts


def _with_suppression(
    result: AttemptResult, update: ReportUpdate | None, *, is_sent: bool, is_held: bool, has_targets: bool
) -> AttemptResult:
    """The result with what happened to its findings, and with the reason why nothing is sent.

    It is muted if messages are suppressed, and a duplicate if all targets know its content already.
    """
    if update is not None:
        result = replace(result, findings=update.effects)
    if is_held:
        return replace(result, suppression=Suppression.MUTED)
    has_content = bool(result.message) or result.outcome is Outcome.ALERT
    if has_targets and has_content and not is_sent and result.suppression not in NEVER_SENT:
        return replace(result, suppression=Suppression.DUPLICATE)
    if is_sent and result.suppression in QUIET:
        return replace(result, suppression=None)
    return result


# An answer with one of these results is no duplicate: nobody has got one like it.
NEVER_SENT = frozenset({Suppression.NOT_SHOWN, Suppression.NO_FINDINGS})
QUIET = frozenset({Suppression.HEARTBEAT_OK, Suppression.SHORT_REMAINDER, Suppression.EMPTY, Suppression.DECIDED_SKIP})


def _record_outcome(tx: Transaction, entry_row: EntryRow, claim: Claim, result: AttemptResult, *, sent: bool) -> EntryRow:
    """The entry row after a run. A skipped slot changes only what is known of the precheck. `sent`: a message is queued."""
    if result.outcome is Outcome.SKIPPED:
        if result.reason is not Skip.PRECHECK:
            return entry_row
        # After a precheck without work, its next output is work again, also if it is the same as before that.
        state = (result.precheck and result.precheck.state) or entry_row.source_state
        return entry_row._replace(precheck=None, unconfirmed=None, unconfirmed_answers=0, source_state=state)
    woken_at = tx.now if claim.run.trigger in WOKEN else entry_row.last_woken_at
    ended: dict[str, object] = {"last_ended_at": tx.now, "last_woken_at": woken_at}
    if result.outcome is Outcome.ASYNC or result.reason is Reason.CANCELLED:
        return entry_row._replace(**ended)  # its late result counts; a cancelled run is no failure of the agent
    if result.outcome not in SUCCESSES and claim.run.trigger is Trigger.RESULT and runs.has_newer_answer(tx.db, claim):
        return entry_row._replace(**ended)  # the latest run decides whether the entry fails
    if result.outcome not in SUCCESSES:
        ended["failures_for_backoff"] = entry_row.failures_for_backoff + 1
        if not observed_problems.is_by_circuit(tx, claim, result):
            ended["failures_for_pause"] = entry_row.failures_for_pause + 1
        return entry_row._replace(**ended, failures=entry_row.failures + 1)
    alerting, quiet = int(result.outcome is Outcome.ALERT), 0 if sent else entry_row.quiet + 1
    none = {"failures": 0, "failures_for_backoff": 0, "failures_for_pause": 0}
    return entry_row._replace(**ended, **none, last_success_at=tx.now, quiet=quiet, alerting=alerting)


def _record_look(
    tx: Transaction, entry_row: EntryRow, claim: Claim, result: AttemptResult, update: ReportUpdate | None
) -> EntryRow:
    """The entry row after an answer, with what the next output of the precheck is compared with.

    The output counts as looked at only after a final answer. An answer that was cut is not final. After the output has changed,
    an answer is not final either if it mentions a problem whose lines are gone, or if a line of the output belongs to no problem,
    unless the agent has left out this line before (`confirm`). For the same output this is so only a limited number of times.
    Then the line counts as left out on purpose.

    News of a source are not final after an answer in prose of which nothing was sent. A late answer to news of a former source
    changes nothing.
    """
    checked, precheck = result.precheck, claim.entry.precheck
    if checked is None or checked.digest is None or precheck is None:
        return entry_row
    has_state = checked.state is not None
    is_late = has_state and claim.run.trigger is Trigger.RESULT
    if is_late and json.loads(checked.state or "{}").get("source") != precheck.identity:
        return entry_row
    lines = reported_problems.lines_of_precheck(result) or ()
    unnamed = update.unnamed if update else frozenset(line.name for line in lines)
    is_incomplete = not unnamed <= entry_row.looked_line_digests or (update is not None and update.needs_confirmation)
    most = 0
    if result.truncated or (has_state and result.suppression is Suppression.NO_FINDINGS):
        most = MAX_CUT_ANSWERS
    elif checked.digest != entry_row.precheck and is_incomplete and not result.message:
        most = precheck.confirm
    answers = entry_row.unconfirmed_answers if entry_row.unconfirmed == checked.digest else 0
    if answers < most and precheck.unchanged == "skip":
        return entry_row._replace(unconfirmed=checked.digest, unconfirmed_answers=answers + 1)
    named = {line.name for line in lines} - unnamed  # a line that has been reported is asked about when it comes back
    left_out = [*sorted(entry_row.looked_line_digests - unnamed - named), *sorted(unnamed)][-MAX_LEFT_OUT:]
    return entry_row._replace(
        precheck=checked.digest,
        unconfirmed=None,
        unconfirmed_answers=0,
        looked_at=tx.now,
        looked_lines=json.dumps(left_out),
        source_state=checked.state if has_state else entry_row.source_state,
    )


def _settle_wakes(tick: Tick, entry_row: EntryRow, claim: Claim, result: AttemptResult) -> None:
    """End the wakes that a successful run has delivered to its agent. After a skip or a failure they wait for another run."""
    if claim.facts.wakes and result.reason is Skip.DISABLED:
        wakes.reject_taken_wakes(tick.tx, claim.run.id, RejectedBecause.DISABLED)
    elif claim.facts.wakes and (result.outcome in SUCCESSES or entry_row.kind is Kind.CRON):
        wakes.end_delivered_wakes(tick.tx, claim.run.id)
    elif claim.facts.wakes:
        wakes.return_wakes(
            tick.tx, claim.run.id, wake_starts.retry_time(tick, entry_row, claim, result), result.reason or result.outcome
        )
    wakes.delay_waiting_wakes(tick.tx, *entry_row.key, tick.limits.wake_gap if entry_row.kind is Kind.HEARTBEAT else timedelta())
    if entry_row.state != "active":
        wake_starts.end_wakes_of_entry(tick, entry_row)


def _set_reminders(tick: Tick, claim: Claim, result: AttemptResult) -> None:
    """Set the reminders that an answer asks for. One that cannot be set is recorded as a rejected wake.

    A time without a zone is one in the zone of the agent.
    """
    agent = claim.entry.name if claim.entry.kind is Kind.HEARTBEAT else claim.entry.lane
    if agent is None or (Kind.HEARTBEAT, agent) not in tick.plan.entries:
        return
    if result.outcome not in ANSWERED and result.reason not in FAILURES_WITH_ANSWER:
        return
    for wish in result.reminders:
        sender = claim.entry.label
        reminder = Wake(agent, Trigger.REMINDER, sender, wish.text)
        try:
            at = _time_of_wish(wish, tick.now, claim.entry.zone)
            wake_starts.set_reminder(tick, reminder, at, is_timer=wish.at is None)
        except (ValueError, OverflowError):
            wakes.reject_wake(tick.tx, reminder, RejectedBecause.BAD_REMINDER)
        except Refused as refused:
            if refused.code == "bad_request":
                wakes.reject_wake(tick.tx, reminder, RejectedBecause.BAD_REMINDER)


def _time_of_wish(wish: ReminderWish, now: datetime, zone: ZoneInfo) -> datetime:
    """When a reminder is wanted. Raises ValueError, or OverflowError for a year that does not exist."""
    if wish.at is None:
        return now + parse_span(wish.in_)
    at = datetime.fromisoformat(wish.at)
    return (at if at.tzinfo else at.replace(tzinfo=zone)).astimezone(UTC)


def _request_wake(tick: Tick, wake: Wake) -> int | None:
    """Queue a wake of an agent by this run. Returns its id; None if the agent does not exist."""
    woken = entries.current_entry(tick.tx, Kind.HEARTBEAT, wake.name)
    if woken is None or (Kind.HEARTBEAT, wake.name) not in tick.plan.entries:
        wakes.reject_wake(tick.tx, wake, RejectedBecause.REMOVED)
        return None
    return wake_starts.accept_wake(tick, woken, wake, wake_starts.hold_for_other_jobs(tick, wake.name) if wake.urgent else None)


def close_abandoned(tick: Tick, entry: Entry | None, entry_row: EntryRow, run: OpenRun, result: AttemptResult) -> None:
    """Close an open run without a worker. Slots that passed during it are handled like other late slots."""
    after: EntryRow | None = entry_row
    if entry is None:
        runs.close_undeclared_run(tick.tx, *entry_row.key, run, result)
        wakes.return_wakes(tick.tx, run.id)
        if entry_row.state != "active":
            wake_starts.end_wakes_of_entry(tick, entry_row)
            notices.forget_problems(tick, entry_row)
    else:
        taken = Facts(wakes=wakes.wakes_taken_by(tick.tx.db, run.id))
        after = _close_run(tick, entry_row, Claim(entry, runs.take_over_run(tick.tx, run), taken), result)
    entries.change_entry(tick.tx, entry_row, planning.with_next_due(tick.tx, after or entry_row))


def give_up_waiting(tick: Tick, entry: Entry | None, entry_row: EntryRow, run: OpenRun, *, spent: bool = False) -> None:
    """Close a waiting run that gets no further attempt, with the result of its last one, or as skipped if it had none.

    `spent`: the reason is its budget, not the time. The run then keeps the reason of its last attempt. So does the failed run
    of an entry that was disabled or removed.
    """
    if run.has_not_begun:
        close_abandoned(tick, entry, entry_row, run, AttemptResult(Outcome.SKIPPED, run.waits_for, error=run.error))
        return
    failed = run.has_failed  # otherwise it was interrupted
    error = _with_budget_text(run.error) if spent else run.error or "no time was left for another try"
    message = f"{entry_row.name} {'failed' if failed else 'was interrupted'}: {error}" if entry_row.kind is Kind.CRON else None
    outcome = Outcome.FAILED if failed else Outcome.ABANDONED
    has_time = spent or (failed and entry_row.state != "active")
    reason = _reason_of_last_attempt(run) if has_time else Reason.NO_TIME_LEFT
    close_abandoned(tick, entry, entry_row, run, AttemptResult(outcome, reason, text=run.text, error=error, message=message))


def _with_budget_text(error: str | None) -> str:
    return f"{error}; {BUDGET_SPENT_TEXT}" if error else BUDGET_SPENT_TEXT


def _reason_of_last_attempt(run: OpenRun) -> Failure | Reason:
    """The class of the last attempt's error. An interrupted attempt has none of its own."""
    if not run.has_failed:
        return Failure.EXIT
    return Failure(run.reason) if run.reason in tuple(Failure) else Reason.NO_TIME_LEFT


def record_late_result(tick: Tick, entry: Entry, slot: datetime, result: AttemptResult) -> int | None:
    """Record the late result of an asynchronous run as a run of its own. Returns its id; None if there is a result already."""
    entry_row = entries.get_entry(tick.tx, *entry.key)
    run = runs.open_run(tick.tx, entry.key, slot, Trigger.RESULT)
    if run is None:
        return None
    runs.stop_awaiting_result(tick.tx, *entry.key, slot)
    late_result, state = agent_memory.restore_pending_items(tick.tx, entry_row, slot, result)
    woken_by = wakes.wakes_of_slot(tick.tx.db, *entry.key, slot)
    checked = Memory(last_checked=agent_memory.last_checked_slots(tick.tx, entry), source_state=state)
    after = _close_run(tick, entry_row, Claim(entry, run, Facts(wakes=woken_by, memory=checked)), late_result)
    planning.save_with_next_due(tick.tx, entry_row, after or entry_row)
    return run.id


def record_calls(tick: Tick, claim: Claim, result: AttemptResult) -> None:
    """Record all calls of a finished attempt. Nothing is recorded if the run no longer belongs to the claim.

    1. The usage is added to the run, and replaces the reservation in the budgets.
    2. Each call is reported as events, for log and metrics.
    3. Circuit breakers open and close by the calls, and problems of providers end.
    4. Probes that the attempt was allowed to make and did not make are returned.
    5. If a breaker closed or a probe was returned, waiting runs and wakes are reconsidered.
    """
    if not (result.calls or claim.facts.probes or claim.facts.reserved):
        return
    if not _record_usage(tick, claim, result):
        return
    for call in result.calls:
        _report_call(tick.tx, claim, call)
    # A call by an older config says nothing about the provider as it is declared now, which may have a new key.
    is_current = tick.plan.entries.get(claim.entry.key) == claim.entry
    relevant = [
        call for call in result.calls if (call.provider or call.account) and is_current and call.failure is not CANCELLED_BY_US
    ]
    closed: list[Circuit] = []
    for call in relevant:
        error = observed_problems.refusal_text(call.provider, call.error or result.error) if call.failure else ""
        closed += breakers.record_call(tick.tx, claim, call, error)
    for circuit in closed:
        observed_problems.record_closed_breaker(tick, claim, circuit)
    if result.outcome in ANSWERED and problems.is_any_unsettled(tick.tx.db):
        for call in relevant:
            observed_problems.record_answer(tick, claim, call)
    given_back = False
    if claim.facts.probes:
        wait = min(max((call.retry_after or NO_WAIT for call in relevant), default=NO_WAIT), LONGEST_RETRY_AFTER)
        given_back = breakers.return_probes(tick.tx, claim, called=bool(result.calls), wait=wait)
    if closed or given_back:
        wake_starts.retry_blocked_runs_and_wakes(tick)


def _report_call(tx: Transaction, claim: Claim, call: Call) -> None:
    entry = claim.entry
    if call.provider is not None and call.failure is not CANCELLED_BY_US:
        problem = call.failure or (Failure.TOOL_USE if call.tools_ignored else None)
        tx.report(ProviderCalled(claim.run.id, call.provider, call.model or "", problem or "ok", call.took))
        if call.failure is not None:
            tx.report(ProviderFailed(call.provider, call.failure))
    if call.provider is not None and call.tools_ignored:
        tx.report(ProviderFailed(call.provider, Failure.TOOL_USE))
    # A provider may append the date of its version.
    if call.model and call.model_used and call.model_used != call.model and not call.model_used.startswith(f"{call.model}-2"):
        tx.report(ModelMismatched(*entry.key, call.model, call.model_used))


def _record_usage(tick: Tick, claim: Claim, result: AttemptResult) -> bool:
    """Add the usage of an attempt's calls to its run, and settle its reservation.

    False, and nothing is written, if the run no longer belongs to the claim. Calls without usage are not counted.
    """
    tx, prices, today, reserved = tick.tx, tick.plan.settings.prices, tick.now.date(), claim.facts.reserved
    charge = budget_reservations.charge_of(prices, reserved, result, today) if reserved else NO_USAGE
    by_model, saved, charged = [], 0.0, list[CallCharged]()
    for call in result.calls:
        if call.tokens is not None or call.cost_usd is not None:
            usd = call_cost(prices, call, today)
            by_model.append((call.model or call.model_used or "", call.tokens or NO_TOKENS, usd))
            saved += cache_saving(prices, call, today)
            charged.append(CallCharged(*claim.entry.key, call.model, call.tokens, usd, result.outcome))
    if by_model:
        is_own = runs.add_usage(tx, claim, by_model, result.prompt, saved, charge)
    else:
        is_own = runs.add_charge(tx, claim, charge) if reserved else runs.owns_run(tx, claim)
    if not is_own:
        return False
    runs.record_accounts(tx, claim.run.id, {call.account for call in result.calls if call.account is not None})
    for each in charged:
        tx.report(each)
    if reserved and charge != NO_USAGE:
        budget_reservations.settle_reservation(tx, claim.entry, reserved, charge)
    return True

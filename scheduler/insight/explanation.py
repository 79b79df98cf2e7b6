"""Explains why an entry ran or did not run: now, at one time, or in a period, also as marks on a time axis. Or of all entries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date, datetime, timedelta

from heartbeat.words import shorten
from heartbeatd.answers import (
    AnswerSent,
    ConditionClosing,
    CountedCause,
    EntryChange,
    ExplainedCondition,
    ExplainedEvent,
    ExplainedSlot,
    Explanation,
    ExplanationAt,
    ExplanationNow,
    ExplanationOn,
    HeldJobNotice,
    MessagesOfEntry,
    NextSlot,
    Override,
    Overview,
    PresentProblem,
    RejectedWakes,
    ReportedCondition,
    RunRecord,
    SlotStretch,
    StatusCounts,
    WakeWaiting,
)
from scheduler.engine import condition_updates
from scheduler.insight import entry_states, obstacles, reload_history, slot_history, wake_waits
from scheduler.insight.daemon_state import daemon_state_at, events_of_period
from scheduler.insight.entry_day import STATUSES, existed, explain_day
from scheduler.insight.periods import Period
from scheduler.insight.reason_texts import EFFECT_TEXTS, REJECTED_WAKE_TEXTS, SUPPRESSION_TEXTS, Level, SlotCause
from scheduler.insight.records import ExplainedEntry, Records
from scheduler.insight.slot_history import SlotGroup, SlotResult
from scheduler.model import entry_schedule, local_days
from scheduler.model.condition import Condition
from scheduler.model.entry import Key
from scheduler.model.local_days import LocalDay
from scheduler.model.outcome import ANSWERED, DeliveryState, Kind, Trigger
from scheduler.model.timestamps import MILLISECOND
from scheduler.store import conditions, outbox, rejected_wakes, run_history, runs, wakes

SEARCH_SPANS = tuple(timedelta(days=number) for number in (0.1, 1, 8, 60, 800))  # how far around a time to look for a slot

MAX_FINDINGS_SHOWN = 5  # of the last answer
MAX_KEY_SHOWN = 30  # characters of the key of a finding

RECENT_MESSAGES = timedelta(days=1)
RECENT_CHANGES = timedelta(days=7)


def explain_all(records: Records) -> Overview:
    """A period of every entry that the reader may see, those first that were silent or unusual, and what concerns all of them."""
    found = [explain_day(records, row) for row in records.rows if existed(records, row)]
    found.sort(key=lambda each: (each.expected, STATUSES.index(each.status), each.kind == "cron", each.name))
    period = records.period
    problems = records.daemon.problems(records.times(period.zone)) if records.is_today else []
    return Overview(
        from_=period.begin,
        until=period.end,
        asked_at=records.now,
        zone=period.zone.key,
        counts=StatusCounts(**{status: sum(each.status == status for each in found) for status in STATUSES}),
        problems=[PresentProblem(what=what, says=says) for what, says in problems],
        entries=found,
        overrides=[Override(**asdict(each)) for each in records.overrides],
        changes=reload_history.config_changes_between(records.db, period.begin, period.until),
        events=records.events(),
    )


def find_entry(records: Records, key: Key) -> ExplainedEntry | None:
    """The entry with this key; None if neither the plan nor the database has it."""
    found = replace(records, only=key)
    return ExplainedEntry(found, found.rows[0]) if found.rows else None


def explain(explained: ExplainedEntry, period: Period | None) -> Explanation:
    """Why an entry ran or did not run at a moment or in a time; None: its last slot, and what would happen now."""
    if period is None:
        return explain_now(explained)
    return explain_moment(explained, period.begin) if period.is_moment else explain_period(explained, period)


def explain_now(explained: ExplainedEntry) -> ExplanationNow:
    """Why the last slot ran or not, whether each precondition allows a run now, and when the next slot is."""
    db, row, now, records = explained.db, explained.row, explained.now, explained.records
    last_id = run_history.last_real_run(db, *explained.key)
    last_run = None if last_id is None else run_history.get_run(db, last_id)
    recent = outbox.messages_by_entry(db, now - RECENT_MESSAGES, now + MILLISECOND, explained.key)
    messages = [
        MessagesOfEntry(
            channel=each.channel,
            state=each.state,
            notice=each.is_notice,
            count=each.count,
            error=each.error,
            tries=each.tries,
            oldest=each.oldest,
            run=each.last_run,
            says=each.text,
        )
        for each in recent.get(explained.key, ())
    ]
    wait = wake_waits.next_wait(db, *explained.key, now)
    return ExplanationNow(
        **dict(_header(explained)),
        why=explain_day(records, row),
        last_slot=_explain_slot(explained, _latest_slot_until(explained, now)),
        last_run=last_run,
        answer=_explain_answer(last_run) if last_run else None,
        quiet_because=obstacles.quiet_reasons(db, row, explained.spec, now, explained.times),
        conditions=_explain_conditions(explained),
        skipped_since=[
            _count_cause(SlotCause(reason), slots)
            for reason, slots in run_history.skipped_since(db, *explained.key, last_id or 0).items()
        ],
        now=obstacles.check_preconditions(db, records.plan, row, records.lanes, now),
        next=NextSlot(slot=row.slot, due_at=row.due_at),
        wakes_waiting=wakes.count_waiting_wakes(db, *explained.key),
        checklist_remarks=list(explained.entry.checklist_remarks()) if explained.entry else [],
        held_back=_held_notices(explained),
        reported_as=_conditions_of_job(explained),
        wakes=WakeWaiting(waits_for=wait.reason, until=wait.until, says=wait.text) if wait else None,
        wakes_rejected=_rejected_wakes(explained),
        messages=messages,
        changes=_changes_between(explained, now - RECENT_CHANGES, now),
        overrides=[Override(**asdict(each)) for each in records.overrides if each.concerns(explained.label)],
        commands=_next_commands(explained, last_run, messages),
        texts_told=outbox.count_recent_texts(db, *explained.key, now),
        daemon=daemon_state_at(db, now, running=records.daemon.is_running),
    )


def _changes_between(explained: ExplainedEntry, begin: datetime, end: datetime) -> list[EntryChange]:
    """What reloads have changed for the entry."""
    return reload_history.changes_of_entry(explained.db, *explained.key, begin, end, explained.records.agents)


def _next_commands(explained: ExplainedEntry, last_run: RunRecord | None, messages: list[MessagesOfEntry]) -> list[str]:
    """The commands that show more."""
    name = explained.label
    found = [f"heartbeatd explain {name} --on today"]
    if last_run is not None:
        found.append(f"heartbeatd show {last_run.id}")
    if any(each.state in outbox.UNDELIVERED for each in messages):
        found.append("heartbeatd outbox")
    if explained.row.paused:
        found.append(f"heartbeatd resume {name}")
    return found


def _explain_answer(run: RunRecord) -> AnswerSent | None:
    """Whether the answer of a run was sent, and why; None for a job, and for a run without an answer."""
    if run.kind != "heartbeat" or run.outcome not in ANSWERED:
        return None
    shown = run.findings[:MAX_FINDINGS_SHOWN]
    findings = [f"{shorten(each.key, MAX_KEY_SHOWN)}: {EFFECT_TEXTS.get(each.effect, each.effect)}" for each in shown]
    left_out = len(run.findings) - len(shown)
    more = [f"and {left_out} more"] if left_out else []
    sent = not run.repeats and run.delivery.state in (DeliveryState.DELIVERED, DeliveryState.PARTIAL)
    return AnswerSent(sent=sent, says="; ".join([*_delivery_texts(run), *findings, *more]))


def _delivery_texts(run: RunRecord) -> list[str]:
    """Whether an answer reached its recipients. If it was not sent again, what became of the messages that have its content."""
    texts = list(dict.fromkeys(each.says for each in run.delivery.targets))
    if texts and not run.repeats:
        return texts
    if run.delivery.state in (DeliveryState.NONE, DeliveryState.NO_TARGET, DeliveryState.DELIVERED):
        texts = [SUPPRESSION_TEXTS.get(run.suppression or "", "no recipient is known")]
    return ["not sent again" if run.repeats else "not sent", *texts]


def _explain_conditions(explained: ExplainedEntry) -> list[ExplainedCondition]:
    """The open conditions of an agent, and what would close each."""
    if explained.row.kind is not Kind.HEARTBEAT:
        return []
    shown = conditions.list_conditions(explained.db, [explained.row.name])
    known = {each.label: each for each in conditions.open_conditions_of(explained.db, explained.row.name)}
    return [ExplainedCondition(**dict(each), closes=_explain_closing(explained, known[each.key])) for each in shown]


def _explain_closing(explained: ExplainedEntry, condition: Condition) -> ConditionClosing:
    """What would close a condition. `answers` is the number of answers without it, None without a config."""
    left = None
    if explained.spec is not None:
        left = max(1, condition_updates.answers_to_close(condition, explained.spec.clear_after) - condition.missed)
    number = "several answers" if left is None else "one answer" if left == 1 else f"{left} answers in a row"
    senders = sorted(condition.senders)
    says = f"closes when the agent reports its end, or after {number} without it"
    if condition.lines:
        says += ", not counting answers while the precheck still prints what came with it"
    if senders:
        says += f", counting only answers to wakes by {', '.join(senders)}"
    return ConditionClosing(answers=left, needs_other_precheck=bool(condition.lines), needs_wake_by=senders, says=says)


def explain_moment(explained: ExplainedEntry, instant: datetime) -> ExplanationAt:
    """What happened, or will happen, to the latest slot at or before a time."""
    return ExplanationAt(
        **dict(_header(explained)),
        at=instant,
        slot=_explain_slot(explained, _latest_slot_until(explained, instant)),
        following=_explain_slot(explained, _first_slot_after(explained, instant)),
        daemon=daemon_state_at(explained.db, instant, running=explained.records.daemon.is_running),
    )


def explain_period(explained: ExplainedEntry, period: Period) -> ExplanationOn:
    """What happened to every slot of a time (grouped), which other runs there were, and events of daemon and clocks."""
    records, found = replace(explained.records, period=period), explained.load_history(period.begin, period.end)
    stretches = slot_history.group_results(slot_history.slot_results(found.record, period.begin, period.end))
    events = events_of_period(explained.db, explained.zone, period, running=explained.records.daemon.is_running)
    events += [
        ExplainedEvent(at=each.at, what="config_changed", says=f"by {each.by}: {each.says}")
        for each in _changes_between(explained, period.begin, period.end)
    ]
    return ExplanationOn(
        **dict(_header(explained)),
        why=explain_day(records, explained.row) if period.begin <= explained.now else None,
        day=period.day,
        from_=period.begin,
        until=period.end,
        slots=sum(stretch.slot_count for stretch in stretches),
        stretches=[_explain_group(stretch) for stretch in stretches],
        totals=[_count_cause(cause, slots) for cause, slots in slot_history.count_causes(stretches) if slots],
        beside=[_count_cause(cause, runs) for cause, runs in Counter(run.cause for run in found.other_runs).most_common()],
        events=sorted(events, key=lambda event: event.at),
    )


def _header(explained: ExplainedEntry) -> Explanation:
    """What every explanation begins with."""
    is_open = runs.find_open_run(explained.db, *explained.key) is not None
    return Explanation(
        **dict(entry_states.entry_state(explained.row, explained.times, is_open=is_open)),
        zone=explained.zone.key,
        asked_at=explained.now,
        pace=entry_schedule.schedule_parts(explained.row.schedule_text),
    )


def _latest_slot_until(explained: ExplainedEntry, instant: datetime) -> SlotResult | None:
    for back in SEARCH_SPANS:
        found = [slot for slot in explained.slot_results(instant - back, instant + MILLISECOND) if slot.at <= instant]
        if found:
            return found[-1]
    return None


def _first_slot_after(explained: ExplainedEntry, instant: datetime) -> SlotResult | None:
    for ahead in SEARCH_SPANS:
        found = [slot for slot in explained.slot_results(instant + MILLISECOND, instant + ahead) if slot.count]
        if found:
            return found[0]
    return None


def _explain_slot(explained: ExplainedEntry, slot: SlotResult | None) -> ExplainedSlot | None:
    """A slot with its cause, and its run record if it has one."""
    if slot is None:
        return None
    cause, run = slot.cause, None if slot.run_id is None else run_history.get_run(explained.db, slot.run_id)
    return ExplainedSlot(slot=slot.at if slot.count else None, cause=cause.code, detail=cause.detail, says=cause.text, run=run)


def _count_cause(cause: SlotCause, count: int) -> CountedCause:
    return CountedCause(cause=cause.code, detail=cause.detail, says=cause.text, count=count)


def _explain_group(stretch: SlotGroup) -> SlotStretch:
    return SlotStretch(
        from_=stretch.first,
        to=stretch.last,
        slots=stretch.slot_count,
        causes=[_count_cause(cause, count) for cause, count in stretch.cause_counts],
        run=stretch.run_id,
        runs=list(stretch.run_ids) if stretch.run_ids else None,
    )


def _rejected_wakes(explained: ExplainedEntry) -> list[RejectedWakes]:
    """The wakes of the last day that were rejected: those by the job, or those of the agent."""
    is_job = explained.row.kind is Kind.CRON
    found = rejected_wakes.rejected_wakes_between(explained.db, explained.now - RECENT_MESSAGES, explained.now + MILLISECOND)
    return [
        RejectedWakes(
            agent=each.agent,
            source=each.source,
            sender=each.sender,
            count=each.count,
            reason=each.why,
            first_at=each.first_at,
            at=each.at,
            says=REJECTED_WAKE_TEXTS[each.why],
        )
        for each in found
        if (each.source == Trigger.CRON and each.sender if is_job else each.agent) == explained.row.name
    ]


def _held_notices(explained: ExplainedEntry) -> list[HeldJobNotice]:
    """The notifications of a job that are delayed, because agents are to report the failure; empty for an agent."""
    found = outbox.held_notices(explained.db, explained.row.name) if explained.row.kind is Kind.CRON else []
    return [
        HeldJobNotice(
            run=each.run_id,
            notice=each.notice,
            channel=each.target.channel,
            agents=list(each.hold.agents),
            until=each.hold.until,
        )
        for each in found
    ]


def _conditions_of_job(explained: ExplainedEntry) -> list[ReportedCondition]:
    """The open conditions by which agents have reported the failure of a job; empty for an agent."""
    job = explained.row.name
    agents = conditions.agents_with_conditions_of_job(explained.db, job) if explained.row.kind is Kind.CRON else []
    return [
        ReportedCondition(
            agent=agent,
            key=condition.label,
            since=condition.opened_at,
            says="; ".join(report.says for report in condition.reports.values()) or "no recipient was notified",
        )
        for agent in agents
        for condition in conditions.open_conditions_of(explained.db, agent)
        if job in condition.jobs
    ]


MAX_MARKS = 300  # more slots than this are drawn as groups
LEVELS_BY_WEIGHT = tuple(Level[name] for name in ("BAD", "LOST", "ALERT", "UNKNOWN", "WAITING", "GOOD", "PLANNED", "TO_COME"))


@dataclass(frozen=True, slots=True)
class DayMark:
    """One slot, a group of slots, or another run. `count` 0: there were no slots from `at` to `until`.

    `cause` is the worst of a group. `is_slot` False: a wake, a start of the daemon or a late result started this run.
    """

    at: datetime
    until: datetime
    cause: SlotCause
    count: int = 1
    run_id: int | None = None
    is_slot: bool = True


@dataclass(frozen=True, slots=True)
class DayTimeline:
    """The marks of a day, sorted by time, and the time now if it is in the day."""

    day: LocalDay
    marks: tuple[DayMark, ...]
    now: datetime | None


def read_day_timeline(explained: ExplainedEntry, day: date) -> DayTimeline:
    """What happened, or will happen, on a local day of the entry."""
    span = local_days.whole_day(day, explained.zone)
    found = explained.load_history(span.begins, span.ends)
    results = slot_history.slot_results(found.record, span.begins, span.ends)
    others = [DayMark(row.slot, row.slot, row.cause, 1, row.id, is_slot=False) for row in found.other_runs]
    marks = [*_slot_marks(results, span), *(mark for mark in others if span.begins <= mark.at < span.ends)]
    is_today = span.begins <= explained.now < span.ends
    return DayTimeline(span, tuple(sorted(marks, key=lambda mark: mark.at)), explained.now if is_today else None)


def _slot_marks(results: Sequence[SlotResult], span: LocalDay) -> Iterator[DayMark]:
    if len(results) > MAX_MARKS:
        yield from (_group_mark(group) for group in slot_history.group_results(results, MAX_MARKS))
        return
    following = [result.at for result in results[1:]] + [span.ends]
    for result, next_at in zip(results, following, strict=True):
        yield DayMark(result.at, result.at if result.count else next_at, result.cause, result.count, result.run_id)


def _group_mark(group: SlotGroup) -> DayMark:
    return DayMark(
        group.first, group.last, _worst_cause(cause for cause, _ in group.cause_counts), group.slot_count, group.run_id
    )


def _worst_cause(causes: Iterable[SlotCause]) -> SlotCause:
    return min(causes, key=lambda cause: LEVELS_BY_WEIGHT.index(cause.level))

"""Explains why an entry ran or did not run: now, at one time, or in a period, also as marks on a time axis. Or of all entries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta

from heartbeat.words import abbreviate_duration, format_count, shorten, squeeze
from heartbeatd.answers import (
    AnswerSent,
    CountedCause,
    DaemonStateThen,
    ExplainedEvent,
    ExplainedProblem,
    ExplainedSlot,
    Explanation,
    ExplanationAt,
    ExplanationNow,
    ExplanationOn,
    Fact,
    NextSlot,
    Overview,
    PresentProblem,
    ProblemEnding,
    RunRecord,
    SlotStretch,
    StatusCounts,
)
from scheduler.engine import reported_problems
from scheduler.insight import entry_states, obstacles, problem_list, reason_texts, reload_history, slot_history, wake_waits
from scheduler.insight.daemon_state import daemon_state_at, events_of_period
from scheduler.insight.entry_day import STATUSES, existed, explain_day
from scheduler.insight.periods import Period
from scheduler.insight.reason_texts import EFFECT_TEXTS, SUPPRESSION_TEXTS, Clock, SlotCause
from scheduler.insight.records import ExplainedEntry, Records
from scheduler.insight.reload_history import EntryChange
from scheduler.insight.slot_history import SlotGroup, SlotResult
from scheduler.model import entry_schedule, local_days
from scheduler.model.entry import Key
from scheduler.model.levels import Level
from scheduler.model.local_days import LocalDay
from scheduler.model.outcome import ANSWERED, DeliveryState, Kind, Outcome, Trigger
from scheduler.model.problem import Problem
from scheduler.model.timestamps import MILLISECOND
from scheduler.store import outbox, problems, rejected_wakes, run_history, runs, wakes

SEARCH_SPANS = tuple(timedelta(days=number) for number in (0.1, 1, 8, 60, 800))  # how far around a time to look for a slot

MAX_FINDINGS_SHOWN = 5  # of the last answer
MAX_KEY_SHOWN = 30  # characters of the key of a finding

RECENT = timedelta(days=1)  # messages and rejected wakes
RECENT_CHANGES = timedelta(days=7)
MAX_CHANGES = 3  # changes of the config
MAX_PROBLEMS = 10  # that are facts; `problems` has all of them
MAX_KEY = 40  # characters of the key of a problem
MAX_ERROR = 200  # characters of the error of a channel


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
        overrides=reload_history.describe_overrides(records.overrides),
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
    found = ExplanationNow(
        **dict(_header(explained)),
        why=explain_day(records, row),
        last_slot=_explain_slot(explained, _latest_slot_until(explained, now)),
        last_run=last_run,
        answer=_explain_answer(last_run) if last_run else None,
        problems=_explain_problems(explained),
        now=obstacles.check_preconditions(db, records.plan, row, records.lanes, now),
        next=NextSlot(slot=row.slot, due_at=row.due_at),
        daemon=daemon_state_at(db, now, running=records.daemon.is_running),
    )
    found.facts = _without_empty(_facts_of_now(explained, found))
    return found


def _facts_of_now(explained: ExplainedEntry, found: ExplanationNow) -> Iterator[Fact]:
    """All that is known, in the order in which it is printed. A fact without a text is left out."""
    db, run, at = explained.db, found.last_run, explained.times.at
    yield _slot_fact("last slot", explained, found.last_slot)
    yield _run_fact("last run", explained, run)
    yield from _delayed_notices(explained, run)
    yield from _reports_about_job(explained)
    yield from (_fact("left out", "left_out", f"{each}, intended for the prompt") for each in (run.left_out if run else ()))
    if found.answer:
        yield _fact("answer", "sent" if found.answer.sent else "not_sent", found.answer.says)
    yield from (_fact("quiet", each.code, each.says) for each in explained.quiet_reasons)
    yield from _problem_facts(explained, found.problems)
    skipped = run_history.skipped_since(db, *explained.key, run.id if run else 0)
    yield _count_fact("since then", [(SlotCause(reason), slots) for reason, slots in skipped.items()], "slot")
    if number := wakes.count_waiting_wakes(db, *explained.key):
        waiting = wake_waits.explain_waiting(db, explained.key, number, explained.now, explained.times.exactly)
        yield _fact("wakes", waiting.waits_for or "taken", waiting.says)
    of_job, last_day = explained.row.kind is Kind.CRON, (explained.now - RECENT, explained.now + MILLISECOND)
    for rejected in rejected_wakes.rejected_wakes_between(db, *last_day):
        if (rejected.source == Trigger.CRON and rejected.sender if of_job else rejected.agent) == explained.row.name:
            yield _fact("rejected", rejected.why, reason_texts.rejected_wakes_text(rejected, at, of_job=of_job))
    for remark in explained.entry.checklist_remarks() if explained.entry else ():
        yield _fact("checklist", "checklist", remark)
    if told := outbox.count_recent_texts(db, *explained.key, explained.now):
        yield _fact("sent", "sent", f"{format_count(told, 'alert')} that would be a duplicate now")
    undelivered = False
    for each in outbox.messages_by_entry(db, *last_day, explained.key).get(explained.key, ()):
        since = "" if each.state is DeliveryState.DELIVERED else f", since {at(each.oldest)}"
        undelivered = undelivered or each.state in outbox.UNDELIVERED
        yield _fact("messages", each.state, squeeze(each.text, MAX_ERROR) + since)
    for change in _changes_between(explained, explained.now - RECENT_CHANGES, explained.now)[-MAX_CHANGES:]:
        yield _fact("changed", change.what, f"{at(change.at)} by {change.by}: {change.says}")
    yield from (_fact("override", each.key, each.says) for each in reload_history.describe_overrides(explained.overrides))
    yield _daemon_fact(found.daemon, at)
    yield _next_fact(explained, found.next.due_at)
    yield _now_fact(found)
    yield _fact("more", "commands", ", ".join(f"`{each}`" for each in _next_commands(explained, run, undelivered=undelivered)))


def _fact(label: str, code: str, says: str) -> Fact:
    return Fact(label=label, code=code, says=says)


def _slot_fact(label: str, explained: ExplainedEntry, slot: ExplainedSlot | None) -> Fact:
    if slot is None:
        return _fact(label, "none", "none")
    run = slot.run
    error = f": {run.error}" if run and run.outcome == Outcome.SKIPPED and run.error else ""
    when = f"{explained.times.exactly(slot.slot)}: " if slot.slot else ""
    return _fact(label, slot.cause, f"{when}{slot.says}{error}" + (f" (run {run.id})" if run else ""))


def _run_fact(label: str, explained: ExplainedEntry, run: RunRecord | None) -> Fact:
    if run is None or run.started_at is None:
        return _fact(label, "none", "")
    outcome, why = run.outcome or run.state, run.reason or run.suppression
    parts = [f"{run.id}", explained.times.exactly(run.started_at), f"{outcome} {why or ''}".strip()]
    parts[-1] += f" on {run.worker}" if run.worker else ""
    if run.finished_at:
        parts.append(f"took {(run.finished_at - run.started_at).total_seconds():.1f}s")
    code = str(why) if outcome == Outcome.SKIPPED else outcome
    return _fact(label, code, ", ".join(parts) + (f": {run.error}" if run.error else ""))


def _count_fact(label: str, counts: Sequence[tuple[SlotCause, int]], noun: str, more: str = "") -> Fact:
    """How many slots or runs there were in all, and with each cause."""
    whole = sum(count for _, count in counts)
    says = f"{format_count(whole, noun)}{more}: " + "; ".join(f"{count} {cause.text}" for cause, count in counts)
    return _fact(label, noun, says if counts else "")


def _daemon_fact(daemon: DaemonStateThen, at: Clock) -> Fact:
    if daemon.since is None:
        return _fact("daemon", daemon.state, "had not run yet")
    span = f"{daemon.state} from {at(daemon.since)}" + (f" to {at(daemon.until)}" if daemon.until else " on")
    how = f"pid {daemon.pid}" if daemon.state == "up" else reason_texts.ending_text(bool(daemon.clean))
    is_up = daemon.state == "up" and daemon.until is None
    return _fact("daemon", "up" if is_up else "down", f"{span}, {how}")


def _next_fact(explained: ExplainedEntry, due: datetime | None) -> Fact:
    if due is None:
        return _fact("next", "none", "nothing is planned")
    ahead = due - explained.now
    is_ahead = ahead > timedelta()
    when = f"in {abbreviate_duration(ahead)}" if is_ahead else "overdue"
    return _fact("next", "ahead" if is_ahead else "overdue", f"{explained.times.exactly(due)}, {when}")


def _now_fact(found: ExplanationNow) -> Fact:
    """Whether the entry would run now. Nothing runs while the daemon is down, whatever the checks would find."""
    limitation = "" if found.now.complete else " (only the checks that need no config were made)"
    is_up = found.daemon.state == "up" and found.daemon.until is None
    says = found.now.says + limitation + ("" if is_up else "; the daemon is not running")
    return _fact("now", found.now.reason or "none", says)


def _changes_between(explained: ExplainedEntry, begin: datetime, end: datetime) -> list[EntryChange]:
    """What reloads have changed for the entry."""
    return reload_history.changes_of_entry(explained.db, *explained.key, begin, end, explained.records.agents)


def _next_commands(explained: ExplainedEntry, last_run: RunRecord | None, *, undelivered: bool) -> Iterator[str]:
    """The commands that show more."""
    yield f"heartbeatd explain {explained.label} --on today"
    if last_run is not None:
        yield f"heartbeatd show {last_run.id}"
    if undelivered:
        yield "heartbeatd outbox"
    if explained.row.paused:
        yield f"heartbeatd resume {explained.label}"


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


def _explain_problems(explained: ExplainedEntry) -> list[ExplainedProblem]:
    """The problems of the entry that are not over, and what would end those that an agent reports."""
    found = problems.all_problems(explained.db)
    own = [each for each in found if each.subject[:2] == explained.key and each.over_at is None]
    shown = [
        ExplainedProblem(
            **dict(problem_list.as_answer(each, found, explained.now)),
            ends=_explain_ending(explained, each) if each.is_reported else None,
        )
        for each in sorted(own, key=lambda each: (-each.found.severity.rank, each.since))
    ]
    return [each for each in shown if each.state in problem_list.LISTED]


def _explain_ending(explained: ExplainedEntry, problem: Problem) -> ProblemEnding:
    """What would end a problem that an agent reports. `answers` is the number of answers without it, None without a config."""
    left, evidence = None, problem.evidence
    if explained.spec is not None:
        left = max(1, reported_problems.answers_to_close(evidence, explained.spec.clear_after) - evidence.missed)
    number = "several answers" if left is None else "one answer" if left == 1 else f"{left} answers in a row"
    senders = sorted(evidence.senders)
    says = f"is over when the agent reports its end, or after {number} without it"
    if evidence.lines:
        says += ", not counting answers while the precheck still prints what came with it"
    if senders:
        says += f", counting only answers to wakes by {', '.join(senders)}"
    return ProblemEnding(answers=left, needs_other_precheck=bool(evidence.lines), needs_wake_by=senders, says=says)


def _problem_facts(explained: ExplainedEntry, found: list[ExplainedProblem]) -> Iterator[Fact]:
    """The open problems: since when, what each recipient was sent, and what would end each."""
    at = explained.times.at
    for each in found[:MAX_PROBLEMS]:
        by = f", {each.acknowledged(at)}" if each.acknowledged_at else ""
        since = f"since {at(each.since)}" + (", unstable" if each.unstable else "")
        known = f"{shorten(each.key, MAX_KEY)} ({each.severity}) {since}, {', '.join(each.sent(at))}{by}"
        yield _fact("open", each.severity, f"{each.number} {known}" + (f". It {each.ends.says}" if each.ends else ""))
    if left_out := len(found[MAX_PROBLEMS:]):
        yield _fact("open", "more", f"and {left_out} more: `heartbeatd problems {explained.row.name}`")


def explain_moment(explained: ExplainedEntry, instant: datetime) -> ExplanationAt:
    """What happened, or will happen, to the latest slot at or before a time."""
    slot = _explain_slot(explained, _latest_slot_until(explained, instant))
    following = _explain_slot(explained, _first_slot_after(explained, instant))
    daemon = daemon_state_at(explained.db, instant, running=explained.records.daemon.is_running)
    facts = (
        _fact("at", "at", explained.times.exactly(instant)),
        _slot_fact("slot", explained, slot),
        _run_fact("run", explained, slot.run if slot else None),
        _daemon_fact(daemon, explained.times.exactly),
        _slot_fact("following", explained, following),
    )
    return ExplanationAt(**dict(_header(explained, facts)), at=instant, slot=slot, following=following, daemon=daemon)


def explain_period(explained: ExplainedEntry, period: Period) -> ExplanationOn:
    """What happened to every slot of a time (grouped), which other runs there were, and events of daemon and clocks."""
    records, history = replace(explained.records, period=period), explained.load_history(period.begin, period.end)
    stretches = slot_history.group_results(slot_history.slot_results(history.record, period.begin, period.end))
    totals = [(cause, slots) for cause, slots in slot_history.count_causes(stretches) if slots]
    beside = Counter(run.cause for run in history.other_runs).most_common()
    events = events_of_period(explained.db, explained.zone, period, running=explained.records.daemon.is_running)
    events += [
        ExplainedEvent(at=each.at, what="config_changed", says=f"by {each.by}: {each.says}")
        for each in _changes_between(explained, period.begin, period.end)
    ]
    events.sort(key=lambda event: event.at)
    facts = (
        _count_fact("in all", totals, "slot"),
        _count_fact("unplanned", beside, "run", " without a slot"),
        *(_fact(f"{each.at.astimezone(explained.zone):%H:%M:%S}", each.what, each.says) for each in events),
    )
    return ExplanationOn(
        **dict(_header(explained, facts)),
        why=explain_day(records, explained.row) if period.begin <= explained.now else None,
        day=period.day,
        from_=period.begin,
        until=period.end,
        slots=sum(stretch.slot_count for stretch in stretches),
        stretches=[_explain_group(stretch) for stretch in stretches],
        totals=[_count_cause(cause, slots) for cause, slots in totals],
        beside=[_count_cause(cause, runs) for cause, runs in beside],
        events=events,
    )


def _without_empty(facts: Iterable[Fact]) -> list[Fact]:
    return [each for each in facts if each.says]


def _header(explained: ExplainedEntry, facts: Iterable[Fact] = ()) -> Explanation:
    """What every explanation begins with."""
    is_open = runs.find_open_run(explained.db, *explained.key) is not None
    return Explanation(
        **dict(entry_states.entry_state(explained.row, explained.times, is_open=is_open)),
        zone=explained.zone.key,
        asked_at=explained.now,
        pace=entry_schedule.schedule_parts(explained.row.schedule_text),
        facts=_without_empty(facts),
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


def _delayed_notices(explained: ExplainedEntry, last_run: RunRecord | None) -> Iterator[Fact]:
    """The notifications of a job that are delayed, because agents are to report the failure, and what became of those of its
    last run.
    """
    for notice in last_run.notices if last_run else ():
        if notice.held_back:
            yield _fact("notice", notice.state, reason_texts.notice_text(notice, explained.times.at))
    for held in outbox.held_notices(explained.db, explained.row.name) if explained.row.kind is Kind.CRON else ():
        if held.run_id != (last_run and last_run.id):
            waits = f"{outbox.hold_text(held.hold.agents)}, until {explained.times.at(held.hold.until)} at most"
            yield _fact("notice", "delayed", f"{held.notice} (run {held.run_id}): {held.target.channel} {waits}")


def _reports_about_job(explained: ExplainedEntry) -> Iterator[Fact]:
    """The open problems by which agents have reported the failure of a job; none for an agent."""
    job = explained.row.name
    agents = problems.agents_with_reports_about(explained.db, job) if explained.row.kind is Kind.CRON else []
    for agent in agents:
        for each in problems.open_reports_of(explained.db, agent):
            if job in each.evidence.jobs:
                sent = "; ".join(one.says for one in each.notices.values()) or "no recipient was notified"
                reported = f"agent {agent} reports it as {each.number} {each.label} since {explained.times.at(each.since)}"
                yield _fact("known", each.found.severity, f"{reported}: {sent}")


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

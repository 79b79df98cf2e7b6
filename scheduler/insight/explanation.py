"""Explains why an entry ran or did not run: now, at one time, or in a period, also as marks on a time axis. Or of all entries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import get_args

from heartbeat.words import abbreviate_duration, format_count, format_elapsed, format_usd, shorten, squeeze
from heartbeatd import answers
from scheduler.engine import reported_problems
from scheduler.insight import (
    entry_states,
    obstacles,
    problem_list,
    reason_texts,
    reload_history,
    schedule_texts,
    slot_history,
    wake_waits,
)
from scheduler.insight.daemon_state import daemon_state_at
from scheduler.insight.entry_day import existed, explain_day
from scheduler.insight.periods import Period
from scheduler.insight.reason_texts import Clock, SlotCause
from scheduler.insight.records import NEW_ENTRY, ExplainedEntry, Records
from scheduler.insight.reload_history import EntryChange
from scheduler.insight.slot_history import SlotGroup, SlotResult
from scheduler.model import entry_schedule, prompt_cache
from scheduler.model.outcome import ANSWERED, DeliveryState, Key, Kind, Outcome, Skip, Suppression, Trigger
from scheduler.model.problem import DAEMON, NEWS, PROVIDER, Effect, Problem
from scheduler.model.timestamps import MILLISECOND
from scheduler.store import cost_history, outbox, problems, run_history, runs, wakes

SEARCH_SPANS = tuple(timedelta(days=number) for number in (0.1, 1, 8, 60, 800))  # how far around a time to look for a slot

MAX_FINDINGS_SHOWN = 5  # of the last answer
MAX_KEY_SHOWN = 30  # characters of the key of a finding

RECENT = timedelta(days=1)  # messages and rejected wakes
RECENT_CACHE = timedelta(days=7)  # what the cache has saved
RECENT_CHANGES = timedelta(days=7)
MAX_CHANGES = 3  # changes of the config
MAX_PROBLEMS = 10  # that are facts; `problems` has all of them
MAX_KEY = 40  # characters of the key of a problem
MAX_ERROR = 200  # characters of the error of a channel


def explain_all(records: Records) -> answers.Overview:
    """A period of every entry that the reader may see, those first that were silent or unusual, and what concerns all of them."""
    found, results = [explain_day(records, row) for row in records.rows if existed(records, row)], get_args(answers.DayResult)
    found.sort(key=lambda each: (each.expected, results.index(each.result), each.kind == "cron", each.name))
    period = records.period
    present = _present_problems(records) if records.is_today else []
    return answers.Overview(
        from_=period.begin,
        until=period.end,
        asked_at=records.now,
        zone=period.zone.key,
        counts=answers.ResultCounts(**{result: sum(each.result == result for each in found) for result in results}),
        problems=present,
        entries=found,
        overrides=reload_history.describe_overrides(records.overrides),
        changes=reload_history.config_changes_between(records.db, period.begin, period.until),
        events=records.events(),
    )


def _present_problems(records: Records) -> list[answers.PresentProblem]:
    """What is wrong with the daemon or its config now."""
    times = records.times(records.period.zone)
    found = [answers.PresentProblem(what=what, says=says) for what, says in records.daemon.problems(times)]
    for each in problems.unsettled_problems(records.db, DAEMON):
        if each.is_open:
            first, _, more = each.found.text.partition("\n")
            says = f"{each.subject} {each.label} since {times.at(each.since)}: {first}{' (and more)' if more else ''}"
            found.append(answers.PresentProblem(what=each.key, says=f"{says}   {each.number}"))
    return found


def find_entry(records: Records, key: Key) -> ExplainedEntry | None:
    """The entry with this key; None if neither the plan nor the database has it."""
    found = replace(records, only=key)
    return ExplainedEntry(found, found.rows[0]) if found.rows else None


def explain(explained: ExplainedEntry, period: Period | None) -> answers.Explanation:
    """Why an entry ran or did not run at a moment or in a time; None: its last slot, and what would happen now."""
    if period is None:
        return explain_now(explained)
    return explain_moment(explained, period.begin) if period.is_moment else explain_period(explained, period)


def explain_now(explained: ExplainedEntry) -> answers.ExplanationNow:
    """Why the last slot ran or not, whether each precondition allows a run now, and when the next slot is."""
    now = obstacles.check_preconditions(
        explained.db, explained.records.plan, explained.row, explained.records.lanes, explained.now
    )
    header = _header(explained, _facts_of_now(explained, now))
    return answers.ExplanationNow(**dict(header), overview=explain_day(explained.records, explained.row), now=now)


def _facts_of_now(explained: ExplainedEntry, checks: answers.Preconditions) -> Iterator[answers.Fact]:
    """All that is known, in the order in which it is printed. A fact without a text is left out."""
    db, at = explained.db, explained.times.at
    last_id = run_history.last_real_run(db, *explained.key)
    run = None if last_id is None else run_history.get_run(db, last_id)
    yield _slot_fact("planned", explained, _latest_slot_until(explained, explained.now))
    yield _run_fact("last run", explained, run)
    for asked in [] if run is None else run.questions:
        yield _fact(
            "question", asked.state, f"{asked.id} at {at(asked.asked_at)}: {squeeze(asked.text, MAX_ERROR)}: {asked.course}"
        )
    yield from _delayed_notices(explained, run)
    yield from _reports_about_job(explained)
    yield from (_fact("left out", "left_out", f"{each}, intended for the prompt") for each in (run.left_out if run else ()))
    yield _answer_fact(run)
    yield from (_fact("quiet", each.code, each.says) for each in explained.quiet_reasons)
    yield from _problem_facts(explained)
    skipped = run_history.skipped_since(db, *explained.key, last_id or 0)
    yield _count_fact("since then", [(SlotCause(reason), slots) for reason, slots in skipped.items()], "slot", "planned run")
    if number := wakes.count_waiting_wakes(db, *explained.key):
        waiting = wake_waits.explain_waiting(db, explained.key, number, explained.now, explained.times.exactly)
        yield _fact("wakes", waiting.waits_for or "taken", waiting.says)
    if explained.row.kind is Kind.HEARTBEAT:
        for reminder in wakes.list_reminders(db, explained.row.name):
            what = squeeze(reminder.text, MAX_ERROR)
            yield _fact("reminder", "reminder", f"at {at(reminder.at)} by {reminder.by} (wake {reminder.wake}): {what}")
    of_job, last_day = explained.row.kind is Kind.CRON, (explained.now - RECENT, explained.now + MILLISECOND)
    for rejected in wakes.rejected_wakes_between(db, *last_day):
        if (rejected.source == Trigger.CRON and rejected.sender if of_job else rejected.agent) == explained.row.name:
            yield _fact("rejected", rejected.why, reason_texts.rejected_wakes_text(rejected, at, of_job=of_job))
    for remark in explained.entry.checklist_remarks() if explained.entry else ():
        yield _fact("checklist", "checklist", remark)
    yield _cache_fact(explained)
    if told := outbox.count_recent_texts(db, *explained.key, explained.now):
        yield _fact("sent", "sent", f"{format_count(told, 'alert')} that would be a duplicate now")
    undelivered = False
    for each in outbox.messages_by_entry(db, *last_day, explained.key).get(explained.key, ()):
        since = "" if each.state is DeliveryState.DELIVERED else f", since {at(each.since)}"
        undelivered = undelivered or each.state in outbox.UNDELIVERED
        yield _fact("messages", each.state, squeeze(each.says, MAX_ERROR) + since)
    for change in _changes_between(explained, explained.now - RECENT_CHANGES, explained.now)[-MAX_CHANGES:]:
        yield _fact("changed", change.what, f"{at(change.at)} by {change.by}: {change.says}", change.at)
    yield from (_fact("override", each.key, each.says) for each in reload_history.describe_overrides(explained.overrides))
    yield (daemon := daemon_state_at(db, explained.now, at, running=explained.records.daemon.is_running))
    yield _next_fact(explained)
    yield _now_fact(checks, daemon)
    yield _fact(
        "more", "commands", ", ".join(f"`{each}`" for each in _next_commands(explained, last_id, undelivered=undelivered))
    )


def _fact(label: str, code: str, says: str, at: datetime | None = None, run: int | None = None) -> answers.Fact:
    fact = answers.Fact(label=label, code=code, says=says)
    if at is not None:
        fact.at = at
    if run is not None:
        fact.run = run
    return fact


KEPT_TEXTS = {"5m": "kept by the provider for five minutes", "1h": "kept by the provider for an hour"}


def _cache_fact(explained: ExplainedEntry) -> answers.Fact:
    """Whether the provider keeps the part of the prompt that is the same in each run, and what that has saved lately."""
    used = cost_history.cache_use(explained.db, explained.key, explained.now - RECENT_CACHE)
    if not used.prompts:
        return _fact("cache", "none", "")
    kept = KEPT_TEXTS.get(used.ttl or "")
    looks, asked = (runs.last_cache_looks(explained.db, explained.key, asked=each) for each in (False, True))
    if kept and asked and not any(each.read or each.written for each in asked):
        kept = "not kept by the provider, though it was asked to: it does not know how to, or the beginning is too short"
    elif kept is None:
        kept = f"not kept by the provider, {prompt_cache.why_not_kept(looks, asked, explained.now)}"
    saved = f"; the cache saved {format_usd(used.saved_usd)} in 7 days" if used.saved_usd > 0 else ""
    return _fact("cache", used.ttl or "none", f"the beginning of the prompt is {kept}{saved}")


def _slot_fact(label: str, explained: ExplainedEntry, slot: SlotResult | None) -> answers.Fact:
    if slot is None:
        return _fact(label, "none", "none")
    run = None if slot.cause.code == Skip.MISSED else _run_of(explained, slot)  # the cause has its error
    error = f": {run.error}" if run and run.result == Outcome.SKIPPED and run.error else ""
    when = f"{explained.times.exactly(slot.at)}: " if slot.count else ""
    says = f"{when}{slot.cause.text}{error}" + (f" (run {slot.run_id})" if slot.run_id else "")
    return _fact(label, slot.cause.code, says, slot.at if slot.count else None, slot.run_id)


def _run_of(explained: ExplainedEntry, slot: SlotResult | None) -> answers.RunRecord | None:
    return run_history.get_run(explained.db, slot.run_id) if slot and slot.run_id else None


def _run_fact(label: str, explained: ExplainedEntry, run: answers.RunRecord | None) -> answers.Fact:
    if run is None or run.started_at is None:
        return _fact(label, "none", "")
    result = run.result or run.state
    parts = [f"{run.id}", explained.times.exactly(run.started_at), f"{result} {run.why or ''}".strip()]
    parts[-1] += f" on {run.worker}" if run.worker else ""
    if run.finished_at:
        parts.append(f"took {format_elapsed(run.finished_at - run.started_at)}")
    code = str(run.why) if result == Outcome.SKIPPED else result
    return _fact(label, code, ", ".join(parts) + (f": {run.error}" if run.error else ""), run.planned_at, run.id)


def _count_fact(label: str, counts: Sequence[tuple[SlotCause, int]], code: str, noun: str) -> answers.Fact:
    """How many slots or runs there were in all, and with each cause."""
    whole = sum(count for _, count in counts)
    says = f"{format_count(whole, noun)}: " + "; ".join(f"{count} {cause.text}" for cause, count in counts)
    return _fact(label, code, says if counts else "")


def _next_fact(explained: ExplainedEntry) -> answers.Fact:
    due = explained.row.due_at
    if due is None and "after" in entry_schedule.schedule_parts(explained.row.schedule_text):
        return _fact("next", "after", schedule_texts.schedule_text(explained.row.schedule_text))
    if due is None:
        return _fact("next", "none", "nothing is planned")
    ahead = due - explained.now
    is_ahead = ahead > timedelta()
    when = f"in {abbreviate_duration(ahead)}" if is_ahead else "overdue"
    return _fact("next", "ahead" if is_ahead else "overdue", f"{explained.times.exactly(due)}, {when}", due)


def _now_fact(checks: answers.Preconditions, daemon: answers.Fact) -> answers.Fact:
    """Whether the entry would run now. Nothing runs while the daemon is down, whatever the checks would find."""
    limitation = "" if checks.complete else " (only the checks that need no config were made)"
    says = checks.says + limitation + ("" if daemon.code == "up" else "; the daemon is not running")
    return _fact("now", checks.why or "none", says)


def _changes_between(explained: ExplainedEntry, begin: datetime, end: datetime) -> list[EntryChange]:
    """What reloads have changed for the entry."""
    return reload_history.changes_of_entry(explained.db, *explained.key, begin, end, explained.records.agents)


def _next_commands(explained: ExplainedEntry, last_id: int | None, *, undelivered: bool) -> Iterator[str]:
    """The commands that show more."""
    yield f"heartbeatd explain {explained.label} --on today"
    if last_id is not None:
        yield f"heartbeatd show {last_id}"
    if undelivered:
        yield "heartbeatd outbox"
    if explained.row.is_paused_at(explained.now):
        yield f"heartbeatd resume {explained.label}"


def _answer_fact(run: answers.RunRecord | None) -> answers.Fact:
    """Whether the answer of a run was sent, and why; without a text for a job without findings and a run without an answer."""
    if run is None or run.result not in ANSWERED or not (run.kind == "heartbeat" or run.findings):
        return _fact("answer", "none", "")
    shown = run.findings[:MAX_FINDINGS_SHOWN]
    findings = [f"{shorten(each.key, MAX_KEY_SHOWN)}: {Effect.text_of(each.effect)}" for each in shown]
    left_out = len(run.findings) - len(shown)
    more = [f"and {left_out} more"] if left_out else []
    is_sent = not run.repeats and run.delivery.state in (DeliveryState.DELIVERED, DeliveryState.PARTIAL)
    return _fact("answer", "sent" if is_sent else "not_sent", "; ".join([*_delivery_texts(run), *findings, *more]))


def _delivery_texts(run: answers.RunRecord) -> list[str]:
    """Whether an answer reached its recipients. If it was not sent again, what became of the messages that have its content."""
    texts = list(dict.fromkeys(each.says for each in run.delivery.targets))
    if texts and not run.repeats:
        return texts
    if run.delivery.state in (DeliveryState.NONE, DeliveryState.NO_TARGET, DeliveryState.MUTED, DeliveryState.DELIVERED):
        texts = [Suppression.text_of(run.why) if run.why else "no recipient is known"]
    return ["not sent again" if run.repeats else "not sent", *texts]


def _problem_facts(explained: ExplainedEntry) -> Iterator[answers.Fact]:
    """The open problems: since when, what each recipient was sent, and what would end each."""
    db, at = explained.db, explained.times.at
    own = [each for each in problems.unsettled_problems(db, *explained.key) if each.over_at is None]
    own.sort(key=lambda each: (-each.found.severity.rank, each.since))
    shown = problem_list.as_answers(own, [*own, *problems.unsettled_problems(db, PROVIDER)], explained.now)
    found = [pair for pair in zip(own, shown, strict=True) if pair[1].state in problem_list.LISTED]
    for problem, each in found[:MAX_PROBLEMS]:
        ends = f". It {_ending_text(explained, problem)}" if problem.is_reported else ""
        yield _fact("open", each.severity, f"{_problem_text(each, at)}{ends}", each.since)
    if left_out := len(found[MAX_PROBLEMS:]):
        yield _fact("open", "more", f"and {left_out} more: `heartbeatd problems {explained.row.name}`")


def _problem_text(each: answers.Problem, at: Clock) -> str:
    return f"{each.number} {shorten(each.key, MAX_KEY)} ({each.severity}) {each.course(at)}"


def _ending_text(explained: ExplainedEntry, problem: Problem) -> str:
    """What would end a problem that an agent reports. Without a config the number of answers is not known."""
    number, evidence = "several answers", problem.evidence
    if explained.reporter is not None:
        left = max(1, reported_problems.answers_to_close(evidence, explained.reporter.clear_after) - evidence.missed)
        number = "one answer" if left == 1 else f"{left} answers in a row"
    says = f"is over when the agent reports its end, or after {number} without it"
    if evidence.lines:
        says += ", not counting answers while the precheck still prints what came with it"
    if evidence.senders:
        wakes = f"wakes by {', '.join(sorted(evidence.senders))}"
        says += f", counting only answers to {'news of the precheck' if NEWS in evidence.senders else wakes}"
    return says


def explain_moment(explained: ExplainedEntry, instant: datetime) -> answers.ExplanationAt:
    """What happened, or will happen, to the latest slot at or before a time."""
    slot, exactly = _latest_slot_until(explained, instant), explained.times.exactly
    facts = (
        _fact("at", "at", exactly(instant)),
        _slot_fact("planned", explained, slot),
        _run_fact("run", explained, _run_of(explained, slot)),
        daemon_state_at(explained.db, instant, exactly, running=explained.records.daemon.is_running),
        _slot_fact("following", explained, _first_slot_after(explained, instant)),
    )
    return answers.ExplanationAt(**dict(_header(explained, facts)), at=instant)


def explain_period(explained: ExplainedEntry, period: Period) -> answers.ExplanationOn:
    """What happened to every slot of a time (grouped), which other runs there were, and events of daemon and clocks."""
    records, record = replace(explained.records, period=period), explained.record(period.begin, period.end)
    stretches = slot_history.group_results(explained.slot_results(period.begin, period.end))
    totals = [(cause, slots) for cause, slots in slot_history.count_causes(stretches) if slots]
    beside = Counter(run.cause for run in record.other_runs).most_common()
    events = [(each.at, each.what, each.says) for each in records.events()]
    events += [
        (each.at, "config_changed", f"by {each.by}: {each.says}")
        for each in _changes_between(explained, period.begin, period.end)
    ]
    clock = "%m-%d %H:%M:%S" if period.is_long else "%H:%M:%S"
    facts = (
        _count_fact("in all", totals, "slot", "planned run"),
        _count_fact("unplanned", beside, "run", "run"),
        *(_fact(format(at.astimezone(explained.zone), clock), what, says, at) for at, what, says in sorted(events)),
    )
    return answers.ExplanationOn(
        **dict(_header(explained, facts)),
        overview=explain_day(records, explained.row) if period.begin <= explained.now else None,
        day=period.day,
        from_=period.begin,
        until=period.end,
        planned_runs=sum(stretch.slot_count for stretch in stretches),
        stretches=[_explain_group(stretch) for stretch in stretches],
        totals=[_count_cause(cause, slots) for cause, slots in totals],
        beside=[_count_cause(cause, runs) for cause, runs in beside],
    )


def _header(explained: ExplainedEntry, facts: Iterable[answers.Fact]) -> answers.Explanation:
    """What every explanation begins with. Facts without a text are left out."""
    is_open = runs.find_open_run(explained.db, *explained.key) is not None
    return answers.Explanation(
        **dict(entry_states.entry_state(explained.row, explained.now, explained.times, is_open=is_open)),
        zone=explained.zone.key,
        asked_at=explained.now,
        pace=entry_schedule.schedule_parts(explained.row.schedule_text),
        facts=[each for each in facts if each.says],
    )


def _latest_slot_until(explained: ExplainedEntry, instant: datetime) -> SlotResult | None:
    """The latest slot, or the time without slots after it. The time before the entry was first seen counts only within it."""
    is_known = explained.row.id != NEW_ENTRY and explained.row.first_seen_at <= instant
    for back in SEARCH_SPANS:
        slots = explained.slot_results(instant - back, instant + MILLISECOND)
        found = [each for each in slots if each.at <= instant and not (is_known and each.cause.code == reason_texts.NOT_DECLARED)]
        if found:
            return found[-1]
    return None


def _first_slot_after(explained: ExplainedEntry, instant: datetime) -> SlotResult | None:
    for ahead in SEARCH_SPANS:
        found = [slot for slot in explained.slot_results(instant + MILLISECOND, instant + ahead) if slot.count]
        if found:
            return found[0]
    return None


def _count_cause(cause: SlotCause, count: int) -> answers.CountedResult:
    return answers.CountedResult(result=cause.result, why=cause.why, says=cause.text, count=count)


def _explain_group(stretch: SlotGroup) -> answers.SlotStretch:
    return answers.SlotStretch(
        from_=stretch.first,
        to=stretch.last,
        planned_runs=stretch.slot_count,
        results=[_count_cause(cause, count) for cause, count in stretch.cause_counts],
        run=stretch.run_id,
        runs=list(stretch.run_ids) if stretch.run_ids else None,
    )


def _delayed_notices(explained: ExplainedEntry, last_run: answers.RunRecord | None) -> Iterator[answers.Fact]:
    """The notifications of a job that are delayed, because agents are to report the failure, and what became of those of its
    last run.
    """
    for notice in last_run.notices if last_run else ():
        if notice.held_back:
            yield _fact("notice", notice.state, reason_texts.notice_text(notice, explained.times.at))
    for held in outbox.held_notices(explained.db, explained.row.name) if explained.row.kind is Kind.CRON else ():
        if held.run_id != (last_run and last_run.id):
            waits = reason_texts.hold_text(held.hold.agents, held.hold.until, explained.times.at)
            yield _fact("notice", "delayed", f"{held.notice} (run {held.run_id}): {held.target.channel} {waits}")


def _reports_about_job(explained: ExplainedEntry) -> Iterator[answers.Fact]:
    """The open problems by which agents have reported the failure of a job; none for an agent."""
    job, at = explained.row.name, explained.times.at
    found = problems.reports_about(explained.db, job) if explained.row.kind is Kind.CRON else []
    own = [each for each in found if job in each.evidence.jobs]
    for each in problem_list.as_answers(own, own, explained.now):
        yield _fact("known", each.severity, f"agent {each.name} reports it as {_problem_text(each, at)}", each.since)

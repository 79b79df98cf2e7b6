"""Decides which problems an agent's answer opens, continues or ends, and what its recipients get about them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from itertools import chain

from heartbeat.evidence import MAX_LINES, Event, Line, Look, OpenProblem, Topic, TrackedLine, read_lines
from heartbeat.findings import Finding, Severity, comparable_key
from heartbeat.precheck import PrecheckStatus
from heartbeat.spec import Agent
from heartbeat.words import format_count
from scheduler.engine.problem_rules import Change, News, after_end, after_symptom, news_of
from scheduler.model.entry import Claim
from scheduler.model.outcome import ANSWERED, FAILURES, AttemptResult, Kind, Skip, Trigger
from scheduler.model.problem import NEWS, REPORTED, Effect, EndedBy, Evidence, Problem, Subject, Symptom
from scheduler.model.settings import Target
from scheduler.model.timestamps import MILLISECOND
from scheduler.store import entries, outbox, problems
from scheduler.store.transaction import Transaction

MAX_OPEN = 200  # open problems that an agent reports; further findings are counted in one problem of their own
LOOKS_WITHOUT_LINES = 2  # in a row, after which a problem whose lines are gone is over
RETURN_TIME = timedelta(days=1)  # after its end: its line shows the same problem again, and a mention may be a memory
WRONG_END_TIME = timedelta(days=1)  # a problem that opens again so soon was not over
MAX_ALIASES = 20  # other keys of a problem that are remembered
MAX_WRONGLY_CLOSED = 3  # each doubles the number of answers without a mention that end the problem
OVERFLOW = Finding("heartbeatd:too-many-findings", "", Severity.WARNING)
FLOOD = Finding("heartbeatd:new-problems", "", Severity.INFO)
OWN_KEYS = frozenset((OVERFLOW.key, FLOOD.key))
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
HOURS_OF_DAY = 3  # times as many new problems as in an hour are sent in a day
MIN_UNCONFIRMED, SHARE_UNCONFIRMED = 2, 5  # so many problems of a day, or this part of the limit of an hour: too many
FLOOD_TEXT = "{} new problems within {}. {} are sent only if {}, until {}. All: heartbeatd problems {}"
MIN_NAME_PART = 3  # characters of a part of a job's name by which a finding may refer to the job


@dataclass(frozen=True, slots=True)
class ReportUpdate:
    """What a run does to the problems that its agent reports.

    `problems` are all of them after the run, and `changed` those to save. `news` is what recipients are notified of. `noted` says
    what happened to each finding and to each problem that is over, by key. `unnamed` are the names of the precheck's lines that
    belong to no problem.
    """

    problems: tuple[Problem, ...]
    changed: tuple[Problem, ...]
    news: tuple[News, ...]
    noted: Mapping[str, Mapping[str, object]]
    unnamed: frozenset[str] = frozenset()

    @property
    def effects(self) -> tuple[Mapping[str, object], ...]:
        """For the run record: what happened to each finding, and to each problem that was open or over and is sent."""
        effects = dict(self.noted)
        for news in self.news:
            noted = effects.get(news.problem.key, {"key": news.problem.label})
            if news.change and noted.get("effect", Effect.KNOWN) is Effect.KNOWN:
                effect = Effect.ENDED if news.known.is_end else Effect.REPORTED
                effects[news.problem.key] = {**noted, "effect": Effect.REMINDED if news.change is Change.REMINDER else effect}
        return tuple(effects.values())

    @property
    def needs_confirmation(self) -> bool:
        """Whether the agent mentions a problem whose lines are gone, so that it opens again if the next run mentions it, too."""
        return any(each.ended_by is EndedBy.GONE and each.is_mentioned_since for each in self.changed)


def plan_update(
    tx: Transaction, claim: Claim, result: AttemptResult, targets: Sequence[Target], most: int, *, was_muted: bool
) -> ReportUpdate | None:
    """What this result does to the problems that the agent reports; None if it does not concern them. Nothing is written.

    `was_muted`: the agent is muted, or was so until this run.

    1. Findings open problems, continue them, or end those that are over.
    2. A problem whose lines are gone from the precheck's output is over. A complete answer that does not mention one without
       lines counts against it (`end_problems`).
    3. If the agent has opened `most` problems within an hour already, or several times as many within a day, or some that no
       later run has mentioned, that is reported instead of each new one, until it has opened none for an hour (`note_flood`).
    4. Each recipient gets what is news to it (`news_of`).
    """
    spec, (kind, name) = claim.entry.reporter, claim.entry.key
    lines = lines_of_precheck(result)
    has_findings = result.report is not None and bool(result.report.findings)
    has_precheck = lines is not None or (result.precheck is not None and result.precheck.looked_at_source)
    has_looked = result.outcome in ANSWERED or has_precheck or has_findings
    if spec is None or not has_looked:
        return None
    known = {each.key: each for each in problems.problems_of(tx.db, Subject.of_reports(name, kind))}
    failed_jobs = failed_jobs_of_wakes(tx, claim)
    open_problems = [each.for_prompt for each in known.values() if each.is_open and each.key not in OWN_KEYS]
    checked = result.precheck
    has_news = checked is not None and checked.source_has_news
    shown = read_lines(checked.output, checked.events) if checked and has_news and checked.events else lines
    jobs = failed_jobs | failing_jobs(tx, known.values())
    ended = () if claim.facts.wakes else past_events(known.values(), tx.now)
    look = Look(open_problems, shown, jobs, source_has_news=has_news, ended=ended)
    tracker = _Tracker(tx.now, spec, claim, result, known, look, failed_jobs, was_muted, dict(known))
    tracker.apply_findings()
    tracker.end_problems()
    is_flooded = tracker.note_flood(most)
    after = tuple(tracker.now_known.values())
    news: list[News] = []
    found = chain.from_iterable(news_of(one, targets, spec.problems_remind, tx.now) for one in after)
    for each in found if spec.show_alerts else ():
        if each.target not in targets or (is_flooded and tracker.is_held_back(each)):
            continue  # a recipient that was removed from `deliver` gets no end
        is_hidden = each.change is Change.OVER and not spec.show_resolved
        news.append(replace(each, change=None if is_hidden else _change_of(tx, each)))
    named = {line.name for each in after if each.is_open for line in each.evidence.lines}
    return ReportUpdate(
        after,
        tuple(each for each in after if each != known.get(each.key)),
        tuple(news),
        tracker.effects,
        frozenset(line.name for line in lines or ()) - named,
    )


def _change_of(tx: Transaction, news: News) -> Change | None:
    """What the recipient gets. A problem about failed jobs is not new to it if it got their own messages, as severe as this one.

    A reminder of a job that waits for this report becomes one of the problem.
    """
    each, is_due = news.problem, False
    if news.change is not Change.OPENED or not each.evidence.jobs:
        return news.change
    held = {notice.name: notice.notice or "" for notice in outbox.held_notices(tx.db) if notice.target == news.target}
    for job in each.evidence.jobs:
        own = problems.problems_of(tx.db, Subject(Kind.CRON, job))
        last = next((known.notices[news.target] for known in own if known.is_open and known.is_known_to(news.target)), None)
        got = None if last is None else last.severity if last.delivered_at else last.severity_before
        is_other = job in held and not held[job].startswith(Change.REMINDER)
        if got is None or got.rank < each.found.severity.rank or is_other:
            return news.change
        is_due |= job in held
    return Change.REMINDER if is_due else None


def answers_to_close(evidence: Evidence, clear_after: int) -> int:
    """How many answers in a row without a mention end a problem. They are more if this was wrong within the last day."""
    return clear_after << min(evidence.wrongly_closed, MAX_WRONGLY_CLOSED)


@dataclass
class _Tracker:
    """One run and the problems that its agent reports, while they change."""

    now: datetime
    spec: Agent
    claim: Claim
    result: AttemptResult
    known: Mapping[str, Problem]
    look: Look
    failed_jobs: frozenset[str]  # that have woken this run
    was_muted: bool
    now_known: dict[str, Problem]
    effects: dict[str, Mapping[str, object]] = field(default_factory=dict)  # by key
    mentioned: set[str] = field(default_factory=set)
    has_too_many: bool = False  # openings, within an hour or a day
    is_unreliable: bool = False  # too many openings are not confirmed

    @cached_property
    def senders(self) -> frozenset[str]:
        """Who gave the run facts that later runs do not see: jobs, programs over HTTP, and the source of a precheck with news."""
        facts = (wake for wake in self.claim.facts.wakes if wake.source != Trigger.MANUAL and wake.kind is Kind.HEARTBEAT)
        return frozenset(f"{wake.source}:{wake.sender}" for wake in facts) | ({NEWS} if self.look.source_has_news else set())

    def apply_findings(self) -> None:
        """Open, continue or end the problem of each finding."""
        report = self.result.report
        surplus = report.dropped if report else 0
        for topic, finding in self.look.assign(report.findings) if report else ():
            known = self.now_known[comparable_key(topic.problem.label)] if topic.problem else None
            before = known or self._closed_event(topic.line, finding)
            if finding.resolved:
                self._resolve(finding, before)
            elif before is not None and before.over_at is not None:
                # the time of the last repetition counts, because an agent may repeat it at each run
                self._keep(replace(before, last_seen_at=max(self.now, before.last_seen_at)))
                self._note(before.key, finding, Effect.REPEATED)
            elif before is not None:
                self._continue(finding, before, topic)
            elif self._is_remembered(finding, topic):
                self._leave_out(finding)
            elif sum(each.is_open and each.key != FLOOD.key for each in self.now_known.values()) < MAX_OPEN:
                self._open(finding, topic)
            else:
                surplus += 1
                self._note(finding.key, finding, Effect.UNTRACKED)
        for finding in report.unconfirmed if report else ():
            self._leave_out(finding)
        if surplus:
            number, more = format_count(surplus, "finding"), f"More: heartbeatd show {self.claim.run.id}"
            text = f"{number} of the agent could not be tracked, because there were too many. {more}"
            before = self.now_known.get(OVERFLOW.key)
            finding = replace(OVERFLOW, text=text)
            self._continue(finding, before, Topic()) if before and before.is_open else self._open(finding, Topic())

    def end_problems(self) -> None:
        """End open problems whose lines are gone in two prechecks in a row.

        One without lines is over after several answers that do not mention it.
        """
        for each in list(self.now_known.values()):
            if not each.is_open or self._is_new(each) or each.key == FLOOD.key:
                continue
            open_problem, evidence = each.for_prompt, each.evidence
            if evidence.lines and self.spec.precheck is not None:
                present = self.look.is_present(open_problem)
                shows_states = self.look.lines is not None and not self.look.source_has_news
                if not shows_states or not (present or self._has_all_lines()):
                    continue
                missed, most, ended_by = 0 if present else evidence.missed + 1, LOOKS_WITHOUT_LINES, EndedBy.GONE
                evidence = replace(evidence, lines=self.look.tracked_lines(open_problem))
            elif each.key in self.mentioned or not self._is_silence(each):
                continue
            else:
                missed, most = evidence.missed + 1, answers_to_close(evidence, self.spec.clear_after)
                ended_by = EndedBy.NOT_MENTIONED
            after = replace(each, evidence=replace(evidence, missed=missed))
            if missed < most:
                self._keep(after)
            else:
                self._clear(after, ended_by)

    def _clear(self, each: Problem, ended_by: EndedBy) -> None:
        self._keep(after_end(each, self.now, ended_by))
        self.effects[each.key] = {"key": each.label, "effect": Effect.CLEARED}

    def note_flood(self, most: int) -> bool:
        """Whether new problems are not sent one by one, because there are too many. This is a problem, too."""
        known = self.now_known.get(FLOOD.key)
        flood = known if known is not None and known.is_open else None
        opened = [each for each in self.now_known.values() if each.is_open and self._is_new(each)]
        if flood is None and not opened:
            return False
        times = [at for each in self.known.values() if each.key not in OWN_KEYS for at in each.openings]
        number, in_hour = (sum(at > self.now - span for at in times) for span in (DAY, HOUR))
        self.has_too_many = in_hour >= most or number >= HOURS_OF_DAY * most
        unconfirmed, too_many_unconfirmed = self._count_unconfirmed(), max(MIN_UNCONFIRMED, most // SHARE_UNCONFIRMED)
        self.is_unreliable = unconfirmed >= too_many_unconfirmed
        if flood is not None:
            if opened or in_hour or self.is_unreliable:
                return True
            self._keep(after_end(flood, self.now))
        elif self.has_too_many or (self.is_unreliable and not all(_has_evidence(each) for each in opened)):
            for each in self._without_evidence() if self.is_unreliable else ():
                if each.is_open and each.evidence.missed:
                    self._clear(each, EndedBy.NOT_MENTIONED)
            more, worth, until = "More", "they are critical", "an hour passes without a new one"
            if self.is_unreliable:
                more = f"{unconfirmed} of them were not mentioned again, or came in place of such. More"
                worth = "they are critical and two runs report them"
                until = f"fewer than {too_many_unconfirmed} in a day are like that"
            if not self.has_too_many:
                more += " without evidence"
            is_hour = in_hour >= most and not self.is_unreliable
            count, span = (in_hour, "an hour") if is_hour else (number, "a day")
            text = FLOOD_TEXT.format(count + len(opened), span, more, worth, until, self.claim.entry.name)
            self._open(replace(FLOOD, text=text), Topic())
            return True
        return False

    def is_held_back(self, news: News) -> bool:
        """Whether a new problem is not sent while there are too many: it is not critical, or only one run says so.

        What an agent invents is no reason to hold back what has evidence.
        """
        each = news.problem
        if not each.is_open or each.is_known_to(news.target) or each.key in OWN_KEYS:
            return False
        if self.is_unreliable and not self.has_too_many and _has_evidence(each):
            return False
        return each.found.severity is not Severity.CRITICAL or (self.is_unreliable and _is_said_once(each))

    def _count_unconfirmed(self) -> int:
        """How many problems of the last day nothing confirms: they, or what they took the place of, were not mentioned again.

        A line that is still printed is no reason to stop mentioning its problem.
        """
        known = self._without_evidence()
        silent = [each for each in known if each.evidence.missed and (each.over_at or self.now) > self.now - DAY]
        printed = [each for each in self.now_known.values() if each.evidence.lines and each.is_open and not each.evidence.missed]
        recent = [each for each in known if each.openings and each.openings[-1] > self.now - DAY]
        return sum(
            (each in silent and _is_said_once(each)) or any(_took_place_of(each, old) for old in (*silent, *printed))
            for each in recent
        )

    def _without_evidence(self) -> list[Problem]:
        """The problems that only the agent's words are evidence of. News is mentioned only once anyway."""
        return [
            each
            for each in self.now_known.values()
            if each.found.severity is not Severity.INFO and not _has_evidence(each) and each.key not in OWN_KEYS
        ]

    def _is_new(self, each: Problem) -> bool:
        """Whether this run has opened it. A clock that was set back can make the time of an earlier opening that of this run."""
        return each.evidence.first_run_id == self.claim.run.id

    def _has_all_lines(self) -> bool:
        """Whether the look has every line of the precheck's output: without a digest, the output was truncated."""
        checked = self.result.precheck
        if checked is None or (checked.digest is None and checked.status is not PrecheckStatus.NOTHING):
            return False
        return len(self.look.lines or ()) < MAX_LINES

    def _is_silence(self, each: Problem) -> bool:
        """Whether an answer without this problem counts against it.

        It does not if the answer is incomplete, or if a wake came with the problem and this run had no wake of the same sender:
        then the agent did not see what it had reported. Nor does it if the problem is about a job that still fails, or about an
        event that a mute or too many new problems have kept from its recipients: a mail stays true, so it is sent afterwards.
        """
        flood = self.now_known.get(FLOOD.key)
        is_kept = self.was_muted or (flood is not None and flood.is_open)
        if is_kept and _is_news(each) and not any(map(each.is_known_to, each.notices)):
            return False
        if each.key == OVERFLOW.key:
            return self.result.is_complete_answer  # it is about the answers themselves
        if not each.evidence.jobs.isdisjoint(self.look.jobs):
            return False
        if each.evidence.senders and not each.evidence.senders & self.senders:
            return False
        return self.result.is_complete_answer or self.result.reason is Skip.PRECHECK

    def _open(self, finding: Finding, topic: Topic) -> None:
        """Open a problem. If one with the same line ended within a day, it is the same problem.

        What is about another event is another problem. Only its key and its number may be those of one that is over.
        """
        line, aliases = topic.line, tuple[str, ...]()
        event = Event(line.event, line.text) if line and line.event else None
        before = returning = self._returning(line) if line else None
        if returning is not None:
            aliases = _with_alias(returning, finding)
        else:
            label = self._free_label(finding.label, is_event=event is not None)
            aliases = (finding.key,) if event and label != finding.label else ()
            finding = replace(finding, label=label)
            before = self.known.get(finding.key)
        wrongly_closed = 0
        if event is None and before is not None and before.over_at is not None and before.over_at > self.now - WRONG_END_TIME:
            wrongly_closed = before.evidence.wrongly_closed + int(before.ended_by is EndedBy.NOT_MENTIONED)
        severity = (line.severity if line else None) or finding.severity
        opened = self._found(before, finding.key, severity, finding.text)
        evidence = Evidence(
            label=before.label if before else finding.label,
            first_run_id=self.claim.run.id,
            last_run_id=self.claim.run.id,
            wrongly_closed=wrongly_closed,
            lines=(TrackedLine(line.name, line.form),) if line and not event else (),
            events=(event,) if event else (),
            senders=frozenset((NEWS,)) if event else frozenset() if line else self.senders,
            jobs=frozenset() if line else self._jobs_of(finding, topic),
            aliases=aliases,
            has_returned=returning is not None and returning.ended_by is not EndedBy.USER,
        )
        self._keep(replace(opened, evidence=evidence))
        self._note(opened.key, finding, Effect.OPENED)

    def _is_remembered(self, finding: Finding, topic: Topic) -> bool:
        """Whether a finding without evidence names a problem whose lines are gone, and no run has mentioned it since.

        Models repeat an old answer, and say the same when they are asked again in this run. So only another run confirms it. For
        the same reason, a word in common with a failed job does not make it the report about the job.
        """
        gone = self._gone_problem(finding)
        said = f"{finding.label}\n{finding.text}"
        senders = self.senders - {problems.sender_of_job(job) for job in self.failed_jobs}
        has_evidence = bool(topic.line or senders) or any(has_job_name(said, job) for job in self.look.jobs)
        return gone is not None and not gone.is_mentioned_since and not has_evidence

    def _gone_problem(self, finding: Finding) -> Problem | None:
        """The problem with the key of a finding that ended within a day, because its lines were gone."""
        gone = (each for each in self._ended_lately() if each.ended_by is EndedBy.GONE)
        return next((each for each in gone if each.for_prompt.has_key(finding.key)), None)

    def _leave_out(self, finding: Finding) -> None:
        """Open no problem. If the finding names one whose lines are gone, the next run that mentions it opens it."""
        gone = self._gone_problem(finding)
        if gone is not None and gone.over_at is not None and not gone.is_mentioned_since:
            self._keep(replace(gone, last_seen_at=max(self.now, gone.over_at + MILLISECOND)))  # the clock may have been set back
        self._note(finding.key, finding, Effect.UNCONFIRMED)

    def _found(self, before: Problem | None, key: str, severity: Severity, text: str) -> Problem:
        found = Symptom(before.key if before else key, severity, text, REPORTED, "")
        kind, name = self.claim.entry.key
        return after_symptom(before, Subject.of_reports(name, kind), found, self.now)

    def _returning(self, line: Line) -> Problem | None:
        """The problem that ended within a day and had this line, with the same figures, or was about this event."""
        return next((each for each in self._ended_lately() if line.form in each.for_prompt.forms), None)

    def _ended_lately(self) -> Iterator[Problem]:
        """The problems that ended within a day, and that this run has not opened again."""
        ended = (each for each in self.known.values() if each.over_at and each.over_at > self.now - RETURN_TIME)
        return (each for each in ended if not self.now_known[each.key].is_open)

    def _closed_event(self, line: Line | None, finding: Finding) -> Problem | None:
        """The problem about the event of a line that a user has closed: a failed run shows it again. None if it is worse now."""
        known = self._returning(line) if line and line.event else None
        if known is None or known.ended_by is not EndedBy.USER or finding.severity.rank > known.found.severity.rank:
            return None
        return known if _was_sent(known) else None

    def _free_label(self, label: str, *, is_event: bool) -> str:
        """The label, with a number if another open problem has this key; for an event, also if its end is not yet sent."""
        number, free = 1, label
        while (known := self.now_known.get(comparable_key(free))) and not (known.is_settled if is_event else known.over_at):
            number += 1
            free = f"{label} {number}"
        return free

    def _continue(self, finding: Finding, before: Problem, topic: Topic) -> None:
        open_problem, line, evidence = before.for_prompt, topic.line, before.evidence
        self.mentioned.add(before.key)
        said = [each.severity for each in self.look.lines_of(open_problem) if each.severity]
        severity = max(said, default=finding.severity, key=lambda each: each.rank)
        is_lower = severity.rank < before.found.severity.rank
        if is_lower and self.spec.ask_again and not self.look.has_new_form(open_problem):
            severity = before.found.severity
        own = (TrackedLine(line.name, line.form),) if line and not evidence.lines else ()
        text = finding.text if finding.text != finding.label else before.found.text
        lines = evidence.lines or own
        evidence = replace(
            evidence,
            last_run_id=self.claim.run.id,
            missed=0,
            lines=lines,
            jobs=evidence.jobs if lines else evidence.jobs | self._jobs_of(finding, topic),
            aliases=_with_alias(before, finding),
        )
        self._keep(replace(self._found(before, before.key, severity, text), evidence=evidence))
        is_worse = severity.rank > before.found.severity.rank
        self._note(before.key, finding, Effect.WORSENED if is_worse else Effect.KNOWN)

    def _jobs_of(self, finding: Finding, topic: Topic) -> frozenset[str]:
        """The failed jobs that have woken this run and that the finding is about.

        A finding about a line is about no job: it may share a word with the job's name, but ends with its line.
        """
        text = f"{finding.label}\n{finding.text}"
        named = {job for job in self.failed_jobs if is_about_job(text, job, self.failed_jobs)}
        return frozenset(named | ({topic.job} if topic.job else set()))

    def _resolve(self, finding: Finding, before: Problem | None) -> None:
        """End a problem, because the agent says so. It is not believed while there is evidence.

        One look without a line is no evidence of an end: checks miss a line now and then, and the agent sees only this look.
        """
        has_lines = before is not None and bool(before.evidence.lines) and self.spec.precheck is not None
        is_ended_by_lines = has_lines and (self.look.lines is None or self._has_all_lines())
        if before is None or is_ended_by_lines or self.look.is_present(before.for_prompt):
            self._note(finding.key, finding, Effect.IGNORED)
            return
        found = replace(before.found, text=finding.text or f"It was: {before.found.text}")
        evidence = replace(before.evidence, last_run_id=self.claim.run.id)
        self._keep(after_end(replace(before, found=found, evidence=evidence), self.now, EndedBy.RESOLVED))
        self._note(before.key, finding, Effect.RESOLVED)

    def _keep(self, each: Problem) -> None:
        self.now_known[each.key] = each

    def _note(self, key: str, finding: Finding, effect: Effect) -> None:
        self.effects[key] = {
            "key": finding.label,
            "severity": finding.severity.value,
            "text": finding.text,
            "resolved": finding.resolved,
            "effect": effect,
        }


def _with_alias(before: Problem, finding: Finding) -> tuple[str, ...]:
    """The aliases of a problem, with the key of a finding about it."""
    aliases = before.evidence.aliases
    return aliases if before.for_prompt.has_key(finding.key) else (*aliases[-MAX_ALIASES + 1 :], finding.key)


def past_events(known: Iterable[Problem], now: datetime) -> tuple[OpenProblem, ...]:
    """The problems about events that are over and were sent as `info`, and were mentioned within a day.

    With a wake, an equal finding may be about something else.
    """
    over = [each for each in known if each.over_at is not None and max(each.over_at, each.last_seen_at) > now - RETURN_TIME]
    return tuple(each.for_prompt for each in over if _is_news(each) and _was_sent(each))


def _was_sent(each: Problem) -> bool:
    """Whether a recipient got a message about a problem."""
    return any(last.arrived for last in each.notices.values())


def _is_news(each: Problem) -> bool:
    """Whether a problem is about an event, such as a mail, and nothing is wrong."""
    return bool(each.evidence.events) and each.found.severity is Severity.INFO


def _has_evidence(each: Problem) -> bool:
    """Whether more than the agent's words shows a problem: a line, a failed job, or the wake that it came with."""
    return bool(each.evidence.lines or each.evidence.jobs or each.evidence.senders)


def _is_said_once(each: Problem) -> bool:
    """Whether only the run that opened it has mentioned a problem."""
    return each.evidence.first_run_id == each.evidence.last_run_id


def _took_place_of(new: Problem, old: Problem) -> bool:
    """Whether a problem opened while another was open, but was not mentioned any more."""
    return old.last_seen_at < new.openings[-1] and (old.over_at is None or new.openings[-1] <= old.over_at)


def lines_of_precheck(result: AttemptResult) -> tuple[Line, ...] | None:
    """The lines that the precheck printed. None if it did not run, or failed, or if they are only news."""
    checked = result.precheck
    if checked is not None and checked.looked_at_source:
        return None
    if checked is None or checked.status not in (PrecheckStatus.WORK, PrecheckStatus.UNCHANGED, PrecheckStatus.NOTHING):
        return None
    return () if checked.status is PrecheckStatus.NOTHING else read_lines(checked.output)


def failed_jobs_of_wakes(tx: Transaction, claim: Claim) -> frozenset[str]:
    """The jobs that have woken this run and failed, or whose message is delayed for a report of the agent."""
    wakes = [wake for wake in claim.facts.wakes if wake.source == Trigger.CRON and wake.kind is Kind.HEARTBEAT]
    held = {notice.name for notice in outbox.held_notices(tx.db)} if wakes else set()
    return frozenset(wake.sender for wake in wakes if wake.outcome in FAILURES or wake.sender in held)


def failing_jobs(tx: Transaction, known: Iterable[Problem]) -> frozenset[str]:
    """The jobs that open problems are about, and whose last run failed."""
    jobs = frozenset[str]().union(*(each.evidence.jobs for each in known if each.is_open))
    rows = {job: entries.current_entry(tx, Kind.CRON, job) for job in jobs}
    return frozenset(job for job, row in rows.items() if row is not None and row.state == "active" and row.failures)


def is_about_job(text: str, job: str, jobs: frozenset[str]) -> bool:
    """Whether a text of an agent is about the failed job: it contains the job's name, or a word of it that no other job has.

    The prompt asks for the key `job:NAME`. Agents also use keys of their own: `backup:nightly` for the job nightly-backup.
    """
    if has_job_name(text, job):
        return True
    others = set().union(*(_name_parts(other) for other in jobs if other != job))
    return not _name_parts(text).isdisjoint(_name_parts(job) - others)


def has_job_name(text: str, job: str) -> bool:
    """Whether a text contains the whole name of a job."""
    return re.search(rf"(?<![\w-]){re.escape(job.casefold())}(?![\w-])", text.casefold()) is not None


def _name_parts(text: str) -> set[str]:
    """The words of a name or a text, without those that are short or figures, and without an s at their ends."""
    words = (word for word in re.split(r"[\W_]+", text.casefold()) if len(word) >= MIN_NAME_PART and not word.isdigit())
    return {word.removesuffix("s") for word in words}

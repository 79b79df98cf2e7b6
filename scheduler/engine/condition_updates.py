"""Decides which conditions an answer opens, continues or closes, and plans the messages about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from heartbeat.evidence import MAX_LINES, Line, Look, Subject, TrackedLine, read_lines
from heartbeat.findings import Finding, Severity, comparable_key
from heartbeat.precheck import PrecheckStatus
from heartbeat.spec import Heartbeat
from scheduler.engine import job_conditions
from scheduler.engine.condition_news import ConditionNews, is_unsettled, news_for_target
from scheduler.model.condition import FLAPPING_TIME, Condition, Effect, EndedBy, ReportKind
from scheduler.model.entry import Claim
from scheduler.model.entry_row import EntryRow
from scheduler.model.outcome import ANSWERED, AttemptResult, Skip, Suppression, Trigger
from scheduler.model.settings import Target
from scheduler.store import conditions
from scheduler.store.transaction import Transaction

MAX_OPEN = 200  # open conditions of an agent; further findings are counted in one condition of their own
LOOKS_WITHOUT_LINES = 2  # in a row, after which a condition whose lines are gone is over
RETURN_TIME = timedelta(days=1)  # a condition whose line comes back so soon is the same as before
WRONG_END_TIME = timedelta(days=1)  # a condition that opens again so soon was not over
MAX_ALIASES = 20  # other keys of a condition that are remembered
MAX_WRONGLY_CLOSED = 3  # each doubles the number of answers without a mention that close the condition
OVERFLOW = Finding("heartbeatd:too-many-findings", "", Severity.WARNING)
FLOOD = Finding("heartbeatd:new-conditions", "", Severity.INFO)
OWN_KEYS = frozenset((OVERFLOW.key, FLOOD.key))
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
HOURS_OF_DAY = 3  # times as many new conditions as in an hour are sent in a day


@dataclass(frozen=True, slots=True)
class ConditionUpdate:
    """What a run does to the conditions of its agent.

    `conditions` are all of them after the run, `changed` those to save, and `opened` is the number that this run has opened.
    `news` is what targets are notified of. `noted` says what happened to each finding and each closed condition, by key.
    `unnamed` are the names of the precheck's lines that belong to no condition.
    """

    conditions: tuple[Condition, ...]
    changed: tuple[Condition, ...]
    opened: int
    news: tuple[ConditionNews, ...]
    noted: Mapping[str, Mapping[str, object]]
    now: datetime
    unnamed: frozenset[str] = frozenset()
    is_muted: bool = False

    def for_muted_agent(self) -> ConditionUpdate:
        """The same without messages. What is still news when the mute is over is reported then."""
        return replace(self, news=(), is_muted=True)

    @property
    def unsettled(self) -> int:
        """The number of conditions that are open, or whose end is still to be reported."""
        return sum(is_unsettled(condition, self.now, self.news, is_muted=self.is_muted) for condition in self.conditions)

    @property
    def effects(self) -> tuple[Mapping[str, object], ...]:
        """For the run record: what happened to each finding, and to each condition that was open or over and is reported."""
        effects = dict(self.noted)
        for news in self.news:
            noted = effects.get(news.condition.key, {"key": news.condition.label})
            if news.line and noted.get("effect", Effect.KNOWN) is Effect.KNOWN:
                effect = Effect.ENDED if news.kind is ReportKind.ENDED else Effect.REPORTED
                effects[news.condition.key] = {**noted, "effect": Effect.REMINDED if news.is_reminder else effect}
        return tuple(effects.values())


def plan_update(
    tx: Transaction, claim: Claim, result: AttemptResult, before: EntryRow, targets: Sequence[Target], most: int
) -> ConditionUpdate | None:
    """What this result does to the conditions of the agent; None if it does not concern them. Nothing is written.

    1. Findings open conditions, continue them, or close those that are over.
    2. A condition whose lines are gone from the precheck's output is over. A complete answer that does not mention one without
       lines counts against it (`end_conditions`).
    3. If the agent has opened `most` conditions within an hour already, or several times as many within a day, that is reported
       instead of each new one, until it has opened none for an hour (`note_flood`).
    4. Each target gets one line for every condition that is news to it (`news_for_target`).
    """
    spec = claim.entry.spec
    lines = lines_of_precheck(result)
    has_looked = result.outcome in ANSWERED or lines is not None
    has_findings = result.report is not None and bool(result.report.findings)
    if not isinstance(spec, Heartbeat) or not has_looked or not (before.conditions or has_findings):
        return None
    known = {condition.key: condition for condition in conditions.conditions_of(tx.db, spec.name)}
    jobs = job_conditions.failed_jobs_of_wakes(tx, claim), job_conditions.failing_jobs(tx, known.values())
    open_problems = [each.as_problem for each in known.values() if each.is_open and each.key not in OWN_KEYS]
    look = Look(open_problems, lines, jobs[0] | jobs[1])
    tracker = _ConditionTracker(tx.now, spec, claim, result, known, look, failed_jobs=jobs[0])
    tracker.apply_findings()
    tracker.end_conditions()
    is_flooded = tracker.note_flood(most)
    after = tuple(tracker.now_known.values())
    shown = after if spec.show_alerts and result.suppression is not Suppression.NOT_SHOWN else ()
    news = tuple(
        found
        for condition in shown
        for target in targets
        if (found := news_for_target(condition, target, spec, tx.now)) and not (is_flooded and _is_new(condition, target))
    )
    changed = tuple(_without_void_ack(condition) for condition in after if condition != known.get(condition.key))
    opened = sum(condition.is_open and condition.opened_at == tx.now for condition in changed)
    named = {line.name for condition in after if condition.is_open for line in condition.lines}
    unnamed = frozenset(line.name for line in lines or ()) - named
    return ConditionUpdate(after, changed, opened, news, tracker.effects, tx.now, unnamed)


def save_update(tx: Transaction, update: ConditionUpdate, message_ids: Mapping[Target, int]) -> None:
    """Write the conditions and what was reported. `message_ids` are the messages that were queued for the targets."""
    ids = {condition.key: conditions.save_condition(tx, condition) for condition in update.changed}
    for news in update.news:
        condition_id = ids.get(news.condition.key, news.condition.id)
        message = message_ids.get(news.target) if news.line else None
        conditions.save_report(tx, condition_id, news.target, news.kind, news.severity, message)


def answers_to_close(condition: Condition, clear_after: int) -> int:
    """How many answers in a row without a mention close a condition. They are more if this was wrong within the last day."""
    return clear_after << min(condition.wrongly_closed, MAX_WRONGLY_CLOSED)


def close_for_user(tx: Transaction, condition: Condition, *, is_muted: bool) -> int:
    """Close an open condition, as a user has asked, without a message. Returns how many conditions of its agent are unsettled.

    If the agent mentions it again, it is reported as new. If that happens again and again, it flaps as any other condition, and
    targets that know this are not notified of each opening.
    """
    closed = replace(condition, closed_at=tx.now, ended_by=EndedBy.USER, missed=0, wrongly_closed=0)
    conditions.save_condition(tx, closed)
    conditions.end_reports(tx, condition.id, also_flapping=not closed.is_flapping(tx.now))
    return sum(is_unsettled(each, tx.now, is_muted=is_muted) for each in conditions.conditions_of(tx.db, condition.name))


@dataclass(slots=True)
class _ConditionTracker:
    """One run and the conditions of its agent, while they change."""

    now: datetime
    spec: Heartbeat
    claim: Claim
    result: AttemptResult
    known: Mapping[str, Condition]
    look: Look
    failed_jobs: frozenset[str]  # that have woken this run
    now_known: dict[str, Condition] = field(default_factory=dict)
    effects: dict[str, Mapping[str, object]] = field(default_factory=dict)  # by key
    mentioned: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.now_known = dict(self.known)

    @property
    def senders(self) -> frozenset[str]:
        """Who woke the run with facts that later runs do not see: jobs, and programs over HTTP."""
        return frozenset(f"{wake.source}:{wake.sender}" for wake in self.claim.facts.wakes if wake.source != Trigger.MANUAL)

    def apply_findings(self) -> None:
        """Open, continue or close the condition of each finding."""
        report = self.result.report
        surplus = report.dropped if report else 0
        for subject, finding in self.look.assign(report.findings) if report else ():
            before = self.now_known[comparable_key(subject.problem.label)] if subject.problem else None
            if finding.resolved:
                self._resolve(finding, before)
            elif before is not None:
                self._continue(finding, before, subject)
            elif self._open_count() < MAX_OPEN:
                self._open(finding, subject)
            else:
                surplus += 1
                self._note(finding.key, finding, Effect.UNTRACKED)
        for finding in report.unconfirmed if report else ():
            self._note(finding.key, finding, Effect.UNCONFIRMED)
        if surplus:
            noun = "finding" if surplus == 1 else "findings"
            more = f"More: heartbeatd show {self.claim.run.id}"
            text = f"{surplus} {noun} of the agent could not be tracked, because there were too many. {more}"
            before = self.now_known.get(OVERFLOW.key)
            finding = replace(OVERFLOW, text=text)
            self._continue(finding, before, Subject()) if before and before.is_open else self._open(finding, Subject())

    def end_conditions(self) -> None:
        """Close open conditions whose lines are gone in two prechecks in a row.

        One without lines is closed after several answers that do not mention it.
        """
        for condition in list(self.now_known.values()):
            if not condition.is_open or condition.opened_at == self.now or condition.key == FLOOD.key:
                continue
            problem = condition.as_problem
            if condition.lines and self.spec.precheck is not None:
                if self.look.lines is None or (not self.look.is_present(problem) and not self._has_all_lines()):
                    continue
                present = self.look.is_present(problem)
                missed, most, ended_by = 0 if present else condition.missed + 1, LOOKS_WITHOUT_LINES, EndedBy.GONE
                condition = replace(condition, lines=self.look.tracked_lines(problem))
            elif condition.key in self.mentioned or not self._is_silence(condition):
                continue
            else:
                missed, most = condition.missed + 1, answers_to_close(condition, self.spec.clear_after)
                ended_by = EndedBy.NOT_MENTIONED
            if missed < most:
                self._keep(replace(condition, missed=missed))
            else:
                self._keep(replace(condition, closed_at=self.now, ended_by=ended_by, missed=missed))
                self.effects[condition.key] = {"key": condition.label, "effect": Effect.CLEARED}

    def note_flood(self, most: int) -> bool:
        """Whether new conditions are not sent one by one, because there are too many. This is a condition, too."""
        times = [at for each in self.known.values() if each.key not in OWN_KEYS for at in each.openings]
        opened = [each for each in self.now_known.values() if each.is_open and each.opened_at == self.now]
        number = sum(at > self.now - DAY for at in times)
        is_too_many = sum(at > self.now - HOUR for at in times) >= most or number >= HOURS_OF_DAY * most
        flood = self.now_known.get(FLOOD.key)
        if flood is not None and flood.is_open:
            if opened or any(at > self.now - HOUR for at in times):
                return True
            self._keep(replace(flood, closed_at=self.now, ended_by=EndedBy.GONE))
        elif opened and is_too_many:
            number += len(opened)
            rest = "More are sent only if they are critical, until an hour passes without a new one. All: heartbeatd conditions"
            self._open(replace(FLOOD, text=f"{number} new conditions within a day. {rest}"), Subject())
            return True
        return False

    def _has_all_lines(self) -> bool:
        """Whether the look has every line of the precheck's output: without a digest, the output was truncated."""
        checked = self.result.precheck
        if checked is None or (checked.digest is None and checked.status is not PrecheckStatus.NOTHING):
            return False
        return len(self.look.lines or ()) < MAX_LINES

    def _is_silence(self, condition: Condition) -> bool:
        """Whether an answer without this condition counts against it.

        It does not if the answer is incomplete, or if a wake came with the condition and this run had no wake of the same sender:
        then the agent did not see what it had reported. Nor does it if the condition is about a cron job that still fails.
        """
        if condition.key == OVERFLOW.key:
            return self.result.is_complete_answer  # it is about the answers themselves
        if not condition.jobs.isdisjoint(self.look.jobs):
            return False
        if condition.senders and not condition.senders & self.senders:
            return False
        return self.result.is_complete_answer or self.result.reason is Skip.PRECHECK

    def _open(self, finding: Finding, subject: Subject) -> None:
        """Open a condition. If one with the same line was closed within a day, it is the same condition."""
        line = subject.line
        before = returning = self._returning(line) if line else None
        if before is None:
            finding = replace(finding, label=self._free_label(finding.label))
            before = self.known.get(finding.key)
        recent = tuple(opened for opened in (before.openings if before else ()) if opened > self.now - FLAPPING_TIME)
        wrongly_closed = 0
        if before is not None and before.closed_at is not None and before.closed_at > self.now - WRONG_END_TIME:
            wrongly_closed = before.wrongly_closed + int(before.ended_by is EndedBy.NOT_MENTIONED)
        opened = Condition(
            name=self.spec.name,
            key=before.key if before else finding.key,
            label=before.label if before else finding.label,
            severity=(line.severity if line else None) or finding.severity,
            text=finding.text,
            opened_at=self.now,
            last_seen_at=self.now,
            first_run_id=self.claim.run.id,
            last_run_id=self.claim.run.id,
            id=before.id if before else 0,
            wrongly_closed=wrongly_closed,
            openings=(*recent[-10:], self.now),
            lines=(TrackedLine(line.name, line.form),) if line else (),
            senders=frozenset() if line else self.senders,
            jobs=frozenset() if line else self._jobs_of(finding, subject),
            aliases=_with_alias(returning, finding) if returning else (),
            reports=before.reports if before else {},
            has_returned=returning is not None,
        )
        self._keep(opened)
        self._note(opened.key, finding, Effect.OPENED)

    def _returning(self, line: Line) -> Condition | None:
        """The condition that was closed within a day and had this line, with the same figures."""
        closed = [each for each in self.known.values() if each.closed_at and each.closed_at > self.now - RETURN_TIME]
        found = (each for each in closed if not self.now_known[each.key].is_open)
        return next((each for each in found if any(line.form == own.form for own in each.lines)), None)

    def _free_label(self, label: str) -> str:
        """The label, with a number if another open condition has this key."""
        number, free = 1, label
        while (known := self.now_known.get(comparable_key(free))) is not None and known.is_open:
            number += 1
            free = f"{label} {number}"
        return free

    def _continue(self, finding: Finding, before: Condition, subject: Subject) -> None:
        problem, line = before.as_problem, subject.line
        self.mentioned.add(before.key)
        told = [each.severity for each in self.look.lines_of(problem) if each.severity]
        severity = max(told, default=finding.severity, key=lambda each: each.rank)
        if severity.rank < before.severity.rank and self.spec.ask_again and not self.look.has_new_form(problem):
            severity = before.severity
        own = (TrackedLine(line.name, line.form),) if line and not before.lines else ()
        self._keep(
            replace(
                before,
                severity=severity,
                text=finding.text if finding.text != finding.label else before.text,
                last_seen_at=self.now,
                last_run_id=self.claim.run.id,
                missed=0,
                lines=before.lines or own,
                jobs=before.jobs | self._jobs_of(finding, subject),
                aliases=_with_alias(before, finding),
            )
        )
        self._note(before.key, finding, Effect.WORSENED if severity.rank > before.severity.rank else Effect.KNOWN)

    def _jobs_of(self, finding: Finding, subject: Subject) -> frozenset[str]:
        """The failed jobs that have woken this run and that the finding is about."""
        text = f"{finding.label}\n{finding.text}"
        named = {job for job in self.failed_jobs if job_conditions.is_about_job(text, job, self.failed_jobs)}
        return frozenset(named | ({subject.job} if subject.job else set()))

    def _resolve(self, finding: Finding, before: Condition | None) -> None:
        """Close a condition, because the agent says so. It is not believed while there is evidence."""
        if before is None or self.look.is_present(before.as_problem):
            self._note(finding.key, finding, Effect.IGNORED)
            return
        text = finding.text or f'it was "{before.text}"'
        self._keep(replace(before, text=text, closed_at=self.now, ended_by=EndedBy.RESOLVED, last_run_id=self.claim.run.id))
        self._note(before.key, finding, Effect.RESOLVED)

    def _open_count(self) -> int:
        return sum(condition.is_open and condition.key != FLOOD.key for condition in self.now_known.values())

    def _keep(self, condition: Condition) -> None:
        self.now_known[condition.key] = condition

    def _note(self, key: str, finding: Finding, effect: Effect) -> None:
        self.effects[key] = {
            "key": finding.label,
            "severity": finding.severity.value,
            "text": finding.text,
            "resolved": finding.resolved,
            "effect": effect,
        }


def _is_new(condition: Condition, target: Target) -> bool:
    """Whether the target would get a new condition that is not critical."""
    is_exempt = condition.severity is Severity.CRITICAL or condition.key in OWN_KEYS
    return condition.is_open and not condition.is_known_to(target) and not is_exempt


def _with_alias(condition: Condition, finding: Finding) -> tuple[str, ...]:
    """The aliases of a condition, with the key of a finding about it."""
    if condition.as_problem.has_key(finding.key):
        return condition.aliases
    return (*condition.aliases[-MAX_ALIASES + 1 :], finding.key)


def lines_of_precheck(result: AttemptResult) -> tuple[Line, ...] | None:
    """The lines that the precheck printed. None if it did not run, or failed."""
    checked = result.precheck
    if checked is None or checked.status not in (PrecheckStatus.WORK, PrecheckStatus.UNCHANGED, PrecheckStatus.NOTHING):
        return None
    return () if checked.status is PrecheckStatus.NOTHING else read_lines(checked.output)


def _without_void_ack(condition: Condition) -> Condition:
    """The condition without its acknowledgement, if it has become worse since, or is over."""
    return condition if condition.is_acknowledged else replace(condition, acknowledgement=None)

"""Decides which conditions an answer opens, continues or closes, and plans the messages about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from hashlib import sha256

from heartbeat.findings import Finding, Severity
from heartbeat.precheck import PrecheckStatus
from heartbeat.spec import Heartbeat
from heartbeat.verdict import normalise_text
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
LONGEST_HOLD = timedelta(minutes=30)  # how long a finding that was cut waits for the next run
MAX_LINES = 200  # lines of a precheck's output that are compared
WRONG_END_TIME = timedelta(days=1)  # a condition that opens again so soon was not over
MAX_WRONGLY_CLOSED = 3  # each doubles the number of answers without a mention that close the condition
OVERFLOW = Finding("heartbeatd:too-many-findings", "", Severity.WARNING)

LOOKED = frozenset({Skip.PRECHECK, Skip.PRECHECK_UNCHANGED})  # skips at which the precheck ran, and no agent was called


@dataclass(frozen=True, slots=True)
class ConditionUpdate:
    """What a run does to the conditions of its agent.

    `conditions` are all of them after the run, `changed` those to save, and `opened` is the number that this run has opened.
    `news` is what targets are notified of. `noted` says what happened to each finding and each closed condition, by key.
    """

    conditions: tuple[Condition, ...]
    changed: tuple[Condition, ...]
    opened: int
    news: tuple[ConditionNews, ...]
    noted: Mapping[str, Mapping[str, object]]
    now: datetime
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
    tx: Transaction,
    claim: Claim,
    result: AttemptResult,
    before: EntryRow,
    targets: Sequence[Target],
    next_slot: datetime | None,
) -> ConditionUpdate | None:
    """What this result does to the conditions of the agent; None if it does not concern them. Nothing is written.

    1. Findings open conditions, continue them, or close those that are over.
    2. A complete answer that does not mention a condition counts against it (`count_silence`).
    3. Each target gets one line for every condition that is news to it (`news_for_target`).
    """
    spec = claim.entry.spec
    has_looked = result.outcome in ANSWERED or result.reason in LOOKED
    has_findings = result.report is not None and bool(result.report.findings)
    if not isinstance(spec, Heartbeat) or not has_looked or not (before.conditions or has_findings):
        return None
    known = {condition.key: condition for condition in conditions.conditions_of(tx.db, spec.name)}
    tracker = _ConditionTracker(
        tx.now, spec, claim, result, known, output_lines(result), _has_all_lines(result), before.looked_line_digests,
        failed_jobs=job_conditions.failed_jobs_of_wakes(tx, claim),
        failing_jobs=job_conditions.failing_jobs(tx, known.values()),
    )  # fmt: skip
    tracker.apply_findings()
    tracker.count_silence()
    after = tuple(tracker.now_known.values())
    held_key = _cut_key_to_hold(result, known, next_slot, tx.now)
    shown = after if spec.show_alerts and result.suppression is not Suppression.NOT_SHOWN else ()
    news = tuple(
        found
        for condition in shown
        for target in (targets if condition.key != held_key else ())
        if (found := news_for_target(condition, target, spec, tx.now))
    )
    changed = tuple(_without_void_ack(condition) for condition in after if condition != known.get(condition.key))
    opened = sum(condition.is_open and condition.opened_at == tx.now for condition in changed)
    return ConditionUpdate(after, changed, opened, news, tracker.effects, tx.now)


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
    lines: frozenset[str] | None  # of the precheck's output; None if there is none to compare
    has_all_lines: bool  # False if the output was too long, so that a line may be missing in `lines`
    lines_before: frozenset[str]  # at the last complete answer
    failed_jobs: frozenset[str] = frozenset()  # that have woken this run
    failing_jobs: frozenset[str] = frozenset()  # that a condition is about, and whose last run failed
    now_known: dict[str, Condition] = field(default_factory=dict)
    effects: dict[str, Mapping[str, object]] = field(default_factory=dict)  # by key
    mentioned: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.now_known = dict(self.known)

    @property
    def senders(self) -> frozenset[str]:
        """Who woke the run with facts that later runs do not see: jobs, and programs over HTTP."""
        return frozenset(f"{wake.source}:{wake.sender}" for wake in self.claim.wakes if wake.source != Trigger.MANUAL)

    def apply_findings(self) -> None:
        """Open, continue or close the condition of each finding."""
        report = self.result.report
        surplus = report.dropped if report else 0
        for finding in report.findings if report else ():
            before = self.now_known.get(finding.key)
            self.mentioned.add(finding.key)
            if finding.resolved:
                self._resolve(finding, before)
            elif before is not None and before.is_open:
                self._continue(finding, before)
            elif self._open_count() < MAX_OPEN:
                self._open(finding, before)
            else:
                surplus += 1
                self._note(finding, Effect.UNTRACKED)
        if surplus:
            noun = "finding" if surplus == 1 else "findings"
            more = f"More: heartbeatd show {self.claim.run_id}"
            text = f"{surplus} {noun} of the agent could not be tracked, because there were too many. {more}"
            finding = replace(OVERFLOW, text=text)
            before = self.now_known.get(finding.key)
            self.mentioned.add(finding.key)
            self._continue(finding, before) if before and before.is_open else self._open(finding, before)

    def count_silence(self) -> None:
        """Close open conditions that the answer does not mention, if that means that they are over.

        If all lines of the precheck that came with a condition are gone from its whole output, one such answer is enough.
        """
        for condition in list(self.now_known.values()):
            if not condition.is_open or condition.key in self.mentioned or not self._is_silence(condition):
                continue
            missed = condition.missed + 1
            lines_are_gone = bool(condition.lines) and self.lines is not None and not condition.lines & self.lines
            if (lines_are_gone and self.has_all_lines) or missed >= answers_to_close(condition, self.spec.clear_after):
                closed = replace(condition, closed_at=self.now, ended_by=EndedBy.NOT_MENTIONED, missed=missed)
                self._keep(closed)
                self._note_condition(closed, Effect.CLEARED)
            else:
                self._keep(replace(condition, missed=missed))

    def _is_silence(self, condition: Condition) -> bool:
        """Whether an answer without this condition counts against it.

        It does not if the answer is incomplete, if the lines of the precheck that came with the condition are still there, or if
        a wake came with it and this run had no wake of the same sender: then the agent did not see what it had reported. Nor does
        it if the condition is about a cron job that still fails.
        """
        if condition.key == OVERFLOW.key:
            return self.result.is_complete_answer  # it is about the answers themselves
        if condition.jobs & (self.failing_jobs | self.failed_jobs):
            return False
        if condition.senders and not condition.senders & self.senders:
            return False
        if condition.lines and self.lines is not None and condition.lines <= self.lines:
            return False
        return self.result.is_complete_answer or self.result.reason is Skip.PRECHECK

    def _open(self, finding: Finding, before: Condition | None) -> None:
        recent = tuple(opened for opened in (before.openings if before else ()) if opened > self.now - FLAPPING_TIME)
        wrongly_closed = 0
        if before is not None and before.closed_at is not None and before.closed_at > self.now - WRONG_END_TIME:
            wrongly_closed = before.wrongly_closed + int(before.ended_by is EndedBy.NOT_MENTIONED)
        others = [known.lines for known in self.known.values() if known.is_open]
        opened = Condition(
            name=self.spec.name,
            key=finding.key,
            label=finding.label,
            severity=finding.severity,
            text=finding.text,
            opened_at=self.now,
            last_seen_at=self.now,
            first_run_id=self.claim.run_id,
            last_run_id=self.claim.run_id,
            id=before.id if before else 0,
            wrongly_closed=wrongly_closed,
            openings=(*recent[-10:], self.now),
            lines=(self.lines or frozenset()).difference(self.lines_before, *others),
            senders=self.senders,
            jobs=self._jobs_of(finding),
            reports=before.reports if before else {},
        )
        self._keep(opened)
        self._note(finding, Effect.OPENED)

    def _continue(self, finding: Finding, before: Condition) -> None:
        self._keep(
            replace(
                before,
                label=finding.label,
                severity=finding.severity,
                text=finding.text if finding.text != finding.label else before.text,
                last_seen_at=self.now,
                last_run_id=self.claim.run_id,
                missed=0,
                lines=before.lines if self.lines is None else before.lines & self.lines,
                jobs=before.jobs | self._jobs_of(finding),
            )
        )
        self._note(finding, Effect.WORSENED if finding.severity.rank > before.severity.rank else Effect.KNOWN)

    def _jobs_of(self, finding: Finding) -> frozenset[str]:
        """The failed jobs that have woken this run and that the finding is about."""
        text = f"{finding.label}\n{finding.text}"
        return frozenset(job for job in self.failed_jobs if job_conditions.is_about_job(text, job, self.failed_jobs))

    def _resolve(self, finding: Finding, before: Condition | None) -> None:
        if before is None or not before.is_open:
            self._note(finding, Effect.IGNORED)
            return
        text = finding.text or f'it was "{before.text}"'
        ended = replace(before, text=text, closed_at=self.now, ended_by=EndedBy.RESOLVED, last_run_id=self.claim.run_id)
        self._keep(ended)
        self._note(finding, Effect.RESOLVED)

    def _note_condition(self, condition: Condition, effect: Effect) -> None:
        """Record for the run what happened to a condition that its answer does not mention."""
        self.effects[condition.key] = {"key": condition.label, "effect": effect}

    def _open_count(self) -> int:
        return sum(condition.is_open for condition in self.now_known.values())

    def _keep(self, condition: Condition) -> None:
        self.now_known[condition.key] = condition

    def _note(self, finding: Finding, effect: Effect) -> None:
        self.effects[finding.key] = {
            "key": finding.label,
            "severity": finding.severity.value,
            "text": finding.text,
            "resolved": finding.resolved,
            "effect": effect,
        }


def _cut_key_to_hold(
    result: AttemptResult, known: Mapping[str, Condition], next_slot: datetime | None, now: datetime
) -> str | None:
    """The key of the finding at which the answer was cut, if a run follows soon that may have the whole text.

    None if an earlier run has opened its condition, because it has waited for a run already.
    """
    key = result.report.cut_key if result.report else None
    before = known.get(key) if key else None
    if before is not None and before.is_open:
        return None
    return key if next_slot is not None and next_slot - now <= LONGEST_HOLD else None


def output_lines(result: AttemptResult) -> frozenset[str] | None:
    """Digests of the lines that the precheck printed, without figures. None if it did not run, or failed."""
    checked = result.precheck
    if checked is None or checked.status not in (PrecheckStatus.WORK, PrecheckStatus.UNCHANGED, PrecheckStatus.NOTHING):
        return None
    if checked.status is PrecheckStatus.NOTHING:
        return frozenset()
    lines = (normalise_text(line, "numbers") for line in checked.output.splitlines()[:MAX_LINES])
    return frozenset(sha256(line.encode(errors="replace")).hexdigest()[:12] for line in lines if line)


def _has_all_lines(result: AttemptResult) -> bool:
    """Whether `output_lines` has every line of the precheck's output."""
    checked = result.precheck
    if checked is None or (checked.digest is None and checked.status is not PrecheckStatus.NOTHING):
        return False  # without a digest the output was truncated
    return len(checked.output.splitlines()) <= MAX_LINES


def _without_void_ack(condition: Condition) -> Condition:
    """The condition without its acknowledgement, if it has become worse since, or is over."""
    return condition if condition.is_acknowledged else replace(condition, acknowledgement=None)

"""Decides which conditions an answer opens, continues or closes, and what each target is notified of.

The rules look at states and not at changes: a condition that a target should know about, and does not, is news for that target.
So a message that was lost, a restart, or a new channel needs no rule of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from hashlib import sha256
from zoneinfo import ZoneInfo

from heartbeat.findings import Finding, Severity
from heartbeat.precheck import PrecheckStatus
from heartbeat.spec import Heartbeat
from heartbeat.verdict import normalise_text
from scheduler.engine import notices
from scheduler.engine.notices import rough_duration
from scheduler.engine.tick import Tick
from scheduler.model.condition import FLAPPING_OPENINGS, FLAPPING_TIME, Condition, ConditionReport, Effect, EndedBy, ReportKind
from scheduler.model.entry import Claim
from scheduler.model.entry_row import EntryRow
from scheduler.model.outcome import ANSWERED, FAILURES, AttemptResult, Kind, Skip, Suppression, Trigger
from scheduler.model.settings import Target
from scheduler.store import conditions, entries, outbox
from scheduler.store.transaction import Transaction

MAX_OPEN = 200  # open conditions of an agent; further findings are counted in one condition of their own
LONGEST_HOLD = timedelta(minutes=30)  # how long a finding that was cut waits for the next run
MAX_LINES = 200  # lines of a precheck's output that are compared
MAX_WRONGLY_CLOSED = 3  # each doubles the number of answers without a mention that close the condition
MIN_NAME_PART = 3  # characters of a part of a job's name by which a finding may refer to the job
OVERFLOW = Finding("heartbeatd:too-many-findings", "", Severity.WARNING)

LOOKED = frozenset({Skip.PRECHECK, Skip.PRECHECK_UNCHANGED})  # skips at which the precheck has looked, and nobody was called


@dataclass(frozen=True, slots=True)
class Report:
    """That a target is notified of a condition, by `line` of its message; without a line it is only recorded."""

    condition: Condition
    target: Target
    kind: ReportKind
    severity: Severity
    line: str = ""
    is_reminder: bool = False


@dataclass(frozen=True, slots=True)
class ConditionUpdate:
    """What a run does to the conditions of its agent.

    `changed` are the conditions to save, `reports` what targets are notified of. `effects` says what became of each finding, for
    the run record. `unsettled` is the number of conditions that are open, or whose end is still to be reported. `opened` is the
    number of conditions that this run has opened.
    """

    changed: tuple[Condition, ...] = ()
    reports: tuple[Report, ...] = ()
    effects: tuple[Mapping[str, object], ...] = ()
    unsettled: int = 0
    opened: int = 0

    @property
    def messages(self) -> dict[Target, str]:
        """The text for each target, the worst first; none for targets without news."""
        ordered = sorted(self.reports, key=lambda report: -report.severity.rank)
        lines: dict[Target, list[str]] = {}
        for report in ordered:
            if report.line:
                lines.setdefault(report.target, []).append(report.line)
        return {target: "\n".join(each) for target, each in lines.items()}


def plan_update(
    tick: Tick, claim: Claim, result: AttemptResult, entry_row: EntryRow, targets: Sequence[Target], next_slot: datetime | None,
    *, is_muted: bool = False,
) -> ConditionUpdate | None:  # fmt: skip
    """What this result does to the conditions of the agent; None if it does not concern them. Nothing is written.

    If the agent `is_muted`, nothing is reported. What is still news when the mute is over is reported then.

    1. Findings open conditions, continue them, or close those that are over.
    2. A complete answer that does not mention a condition counts against it (`_count_silence`).
    3. Each target gets one line for every condition that is new to it, worse, over, flapping, or due for a reminder.
    """
    spec = claim.entry.spec
    has_looked = result.outcome in ANSWERED or result.reason in LOOKED
    has_findings = result.report is not None and bool(result.report.findings)
    if not isinstance(spec, Heartbeat) or not has_looked or not (entry_row.conditions or has_findings):
        return None
    known = {condition.key: condition for condition in conditions.conditions_of(tick.tx.db, spec.name)}
    before = frozenset(json.loads(entry_row.looked_lines or "[]"))
    step = _Step(
        tick.now, spec, claim, result, known, output_lines(result), before, next_slot,
        failed_jobs=failed_jobs_of_wakes(tick.tx, claim), failing_jobs=_failing_jobs(tick.tx, known.values()),
    )  # fmt: skip
    step.apply_findings()
    step.count_silence()
    shown = spec.show_alerts and result.suppression is not Suppression.NOT_SHOWN and not is_muted
    reports = tuple(step.reports_for(targets)) if shown else ()
    changed = tuple(_without_void_ack(condition) for key, condition in step.now_known.items() if condition != known.get(key))
    left = sum(_is_unsettled(condition, reports, is_muted=is_muted) for condition in step.now_known.values())
    opened = sum(condition.is_open and condition.opened_at == tick.now for condition in changed)
    return ConditionUpdate(changed, reports, tuple(step.effects.values()), left, opened)


def save_update(tx: Transaction, update: ConditionUpdate, message_ids: Mapping[Target, int]) -> None:
    """Write the conditions and what was reported. `message_ids` are the messages that were queued for the targets."""
    ids = {condition.key: conditions.save_condition(tx, condition) for condition in update.changed}
    for report in update.reports:
        condition_id = ids.get(report.condition.key, report.condition.id)
        message = message_ids.get(report.target) if report.line else None
        conditions.save_report(tx, condition_id, report.target, report.kind, report.severity, message)


def answers_to_close(condition: Condition, clear_after: int) -> int:
    """How many answers in a row without a mention close a condition. They are more if this was wrong within the last day."""
    return clear_after << min(condition.wrongly_closed, MAX_WRONGLY_CLOSED)


def close_for_user(tx: Transaction, condition: Condition, *, is_muted: bool) -> int:
    """Close an open condition, as a user has asked, without a message. Returns how many conditions of its agent are unsettled.

    Its earlier openings are forgotten, so if the agent mentions it again, it is reported as new and not as flapping.
    """
    closed = replace(condition, closed_at=tx.now, ended_by=EndedBy.USER, missed=0, wrongly_closed=0, openings=())
    conditions.save_condition(tx, closed)
    conditions.end_reports(tx, condition.id)
    return sum(_is_unsettled(each, (), is_muted=is_muted) for each in conditions.conditions_of(tx.db, condition.name))


@dataclass(slots=True)
class _Step:
    """One run and the conditions of its agent, while they change."""

    now: datetime
    spec: Heartbeat
    claim: Claim
    result: AttemptResult
    known: Mapping[str, Condition]
    lines: frozenset[str] | None  # of the precheck's output; None if there is none to compare
    lines_before: frozenset[str]  # at the last complete answer
    next_slot: datetime | None = None
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

        If all lines of the precheck that came with a condition are gone, one such answer is enough.
        """
        for condition in list(self.now_known.values()):
            if not condition.is_open or condition.key in self.mentioned or not self._is_silence(condition):
                continue
            missed = condition.missed + 1
            has_proof = bool(condition.lines) and self.lines is not None and not condition.lines & self.lines
            if has_proof or missed >= answers_to_close(condition, self.spec.clear_after):
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
        if condition.jobs & (self.failing_jobs | self.failed_jobs):
            return False
        if condition.senders and not condition.senders & self.senders:
            return False
        if condition.lines and self.lines is not None and condition.lines <= self.lines:
            return False
        return self.result.is_complete_answer or self.result.reason is Skip.PRECHECK

    def reports_for(self, targets: Sequence[Target]) -> Iterator[Report]:
        """What each target has to be notified of."""
        held = self._cut_finding()
        for condition in self.now_known.values():
            for target in targets if condition.key != held else ():
                report = self._report(condition, target, condition.reports.get(target))
                if report is not None:
                    yield report
                    if report.line:
                        self._note_report(report)

    def _cut_finding(self) -> str | None:
        """The key of the finding at which the answer was cut, if a run follows soon that may have the whole text.

        None if an earlier run has opened its condition, for it has waited for a run already.
        """
        report = self.result.report
        before = self.known.get(report.cut_key) if report and report.cut_key else None
        if before is not None and before.is_open:
            return None
        is_soon = self.next_slot is not None and self.next_slot - self.now <= LONGEST_HOLD
        return report.cut_key if is_soon and report else None

    def _report(self, condition: Condition, target: Target, last: ConditionReport | None) -> Report | None:
        def report(kind: ReportKind, line: str = "", severity: Severity = condition.severity) -> Report:
            return Report(condition, target, kind, severity, f"[{condition.label}] {line}" if line else "")

        knows = last is not None and last.kind is not ReportKind.ENDED
        text, flapping = _with_severity(condition), condition.is_flapping(self.now)
        if not condition.is_open:
            if not knows or flapping:
                return None
            assert last is not None
            line = _ending_line(condition) if self.spec.show_resolved and condition.ended_by is not EndedBy.USER else ""
            return report(ReportKind.ENDED, line, last.severity)
        if condition.is_acknowledged:
            return None
        if last is None or not knows or last.is_lost:
            if flapping:
                return report(ReportKind.FLAPPING, _flapping_line(text))
            return report(ReportKind.OPEN, text)
        if condition.severity.rank > last.severity.rank:
            kind = ReportKind.FLAPPING if flapping else ReportKind.OPEN
            return report(kind, f"{condition.severity.value.upper()} now, {last.severity.value} before: {condition.text}")
        if flapping and last.kind is not ReportKind.FLAPPING:
            return report(ReportKind.FLAPPING, _flapping_line(text), last.severity)
        if not flapping and last.kind is ReportKind.FLAPPING:
            return report(ReportKind.OPEN, "", last.severity)
        remind = self.spec.remind_critical if condition.severity is Severity.CRITICAL else self.spec.remind
        if last.is_pending or flapping or condition.missed or self.now - last.at < remind:
            return None
        since = _local_time(condition.opened_at, self.spec.zone)
        line = f"still open, since {since} ({rough_duration(self.now - condition.opened_at)}): {text}"
        return replace(report(last.kind, line, last.severity), is_reminder=True)

    def _open(self, finding: Finding, before: Condition | None) -> None:
        recent = tuple(opened for opened in (before.openings if before else ()) if opened > self.now - FLAPPING_TIME)
        was_wrong = before is not None and before.ended_by is EndedBy.NOT_MENTIONED and bool(recent)
        wrongly_closed = (before.wrongly_closed if before and recent else 0) + int(was_wrong)
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
        return frozenset(job for job in self.failed_jobs if is_about_job(text, job, self.failed_jobs))

    def _resolve(self, finding: Finding, before: Condition | None) -> None:
        if before is None or not before.is_open:
            self._note(finding, Effect.IGNORED)
            return
        text = finding.text or before.text
        ended = replace(before, text=text, closed_at=self.now, ended_by=EndedBy.RESOLVED, last_run_id=self.claim.run_id)
        self._keep(ended)
        self._note(finding, Effect.RESOLVED)

    def _note_condition(self, condition: Condition, effect: Effect) -> None:
        """Record for the run what became of a condition that its answer does not mention."""
        self.effects[condition.key] = {"key": condition.label, "effect": effect}

    def _note_report(self, report: Report) -> None:
        """Record for the run that it reports a condition which was open before, or had ended before."""
        noted = self.effects.get(report.condition.key, {"key": report.condition.label})
        if noted.get("effect", Effect.KNOWN) is not Effect.KNOWN:
            return
        effect = Effect.ENDED if report.kind is ReportKind.ENDED else Effect.REPORTED
        self.effects[report.condition.key] = {**noted, "effect": Effect.REMINDED if report.is_reminder else effect}

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


def failed_jobs_of_wakes(tx: Transaction, claim: Claim) -> frozenset[str]:
    """The cron jobs that have woken this run and failed, or whose notification is held back for a report of the agent."""
    wakes = [wake for wake in claim.wakes if wake.source == Trigger.CRON and wake.kind is Kind.HEARTBEAT]
    held = {notice.name for notice in outbox.held_notices(tx.db)} if wakes else set()
    return frozenset(wake.sender for wake in wakes if wake.outcome in FAILURES or wake.sender in held)


def is_about_job(text: str, job: str, jobs: frozenset[str]) -> bool:
    """Whether a text of an agent is about the failed job: it contains the job's name, or a word of it that no other job has.

    The prompt asks for the key `job:NAME`. Agents also use keys of their own: `backup:nightly` for the job nightly-backup.
    """
    said = text.casefold()
    if re.search(rf"(?<![\w-]){re.escape(job.casefold())}(?![\w-])", said):
        return True
    others = set().union(*(_name_parts(other) for other in jobs if other != job))
    return not _name_parts(said).isdisjoint(_name_parts(job) - others)


def _name_parts(text: str) -> set[str]:
    """The words of a name or a text, without those that are short or figures, and without an s at their ends."""
    words = (word for word in re.split(r"[\W_]+", text.casefold()) if len(word) >= MIN_NAME_PART and not word.isdigit())
    return {word.removesuffix("s") for word in words}


def _failing_jobs(tx: Transaction, known: Iterable[Condition]) -> frozenset[str]:
    """The jobs that open conditions are about, and whose last run failed."""
    jobs = frozenset[str]().union(*(condition.jobs for condition in known if condition.is_open))
    rows = {job: entries.current_entry(tx, Kind.CRON, job) for job in jobs}
    return frozenset(job for job, row in rows.items() if row is not None and row.state == "active" and row.failures)


def end_conditions_of_job(tick: Tick, claim: Claim, result: AttemptResult) -> frozenset[Target]:
    """Close the conditions that are about a job, because it works again. Returns the targets that need no recovery message.

    Each target that was notified of one of these conditions gets one message. A condition that only came with a wake of the job
    stays open. From now on it is closed when the agent no longer mentions it.
    """
    job = claim.entry.name
    reports: list[Report] = []
    flapping: set[Target] = set()
    agents = conditions.agents_with_conditions_of_job(tick.tx.db, job)
    for agent in agents:
        ended = _release_from_job(tick.tx, agent, job)
        entry = tick.plan.entries.get((Kind.HEARTBEAT, agent))
        entry_row = entries.current_entry(tick.tx, Kind.HEARTBEAT, agent)
        is_muted = entry_row is not None and entry_row.is_muted(tick.now)
        if entry is not None and isinstance(entry.spec, Heartbeat) and entry.spec.show_alerts and not is_muted:
            step = _Step(tick.now, entry.spec, claim, result, ended, None, frozenset())
            targets = notices.resolve_targets(tick, entry.deliver, entry.lane)
            reports += step.reports_for(targets)
            flapping |= {
                target for target in targets for each in ended.values() if each.is_known_to(target) and each.is_flapping(tick.now)
            }
    for report in reports:
        conditions.save_report(tick.tx, report.condition.id, report.target, report.kind, report.severity, None)
    messages = ConditionUpdate(reports=tuple(reports)).messages
    for target, text in messages.items():
        about = f"condition ended{f' to {target.recipient}' if target.recipient else ''}"
        outbox.queue_notice(tick.tx, tick.plan.settings.channels, outbox.origin_of_claim(claim), about, text, (target,))
    for agent in agents:
        _count_unsettled(tick.tx, agent)
    return frozenset(messages) | flapping


def forget_job(tx: Transaction, job: str) -> None:
    """Separate the open conditions from a job that was removed or disabled. They are closed when no answer mentions them."""
    for agent in conditions.agents_with_conditions_of_job(tx.db, job):
        _release_from_job(tx, agent, job, ends=False)


def _release_from_job(tx: Transaction, agent: str, job: str, *, ends: bool = True) -> dict[str, Condition]:
    """Separate the open conditions of an agent from a job. Returns those that end: they are about no other failing job."""
    known = conditions.open_conditions_of(tx.db, agent)
    failing = _failing_jobs(tx, known) - {job}
    ended = {}
    for condition in known:
        now = replace(condition, senders=condition.senders - {conditions.sender_of_job(job)}, jobs=condition.jobs - {job})
        if ends and job in condition.jobs and not condition.jobs & failing:
            now = ended[now.key] = replace(now, closed_at=tx.now, ended_by=EndedBy.JOB)
        if now != condition:
            conditions.save_condition(tx, now)
    return ended


def _count_unsettled(tx: Transaction, agent: str) -> None:
    """Write the number of unsettled conditions into the row of their agent."""
    entry_row = entries.current_entry(tx, Kind.HEARTBEAT, agent)
    if entry_row is not None:
        is_muted = entry_row.is_muted(tx.now)
        left = sum(_is_unsettled(condition, (), is_muted=is_muted) for condition in conditions.conditions_of(tx.db, agent))
        entries.change_entry(tx, entry_row, entry_row._replace(conditions=left))


def output_lines(result: AttemptResult) -> frozenset[str] | None:
    """Digests of the lines that the precheck printed, without figures. None if it did not run, or failed."""
    checked = result.precheck
    if checked is None or checked.status not in (PrecheckStatus.WORK, PrecheckStatus.UNCHANGED, PrecheckStatus.NOTHING):
        return None
    if checked.status is PrecheckStatus.NOTHING:
        return frozenset()
    lines = (normalise_text(line, "numbers") for line in checked.output.splitlines()[:MAX_LINES])
    return frozenset(sha256(line.encode(errors="replace")).hexdigest()[:12] for line in lines if line)


def _without_void_ack(condition: Condition) -> Condition:
    """The condition without its acknowledgement, if it has become worse since, or is over."""
    if condition.acked_at is None or condition.is_acknowledged:
        return condition
    return replace(condition, acked_at=None, acked_severity=None, acked_by="")


def _is_unsettled(condition: Condition, reports: Sequence[Report], *, is_muted: bool = False) -> bool:
    """Whether it is open, or was reported as flapping and its end is not reported yet.

    If its agent `is_muted`, the end of each condition that was reported is still to be reported.
    """
    if condition.is_open:
        return True
    if is_muted:
        return any(last.kind is not ReportKind.ENDED for last in condition.reports.values())
    ended = {report.target for report in reports if report.condition.key == condition.key and report.kind is ReportKind.ENDED}
    return any(last.kind is ReportKind.FLAPPING for target, last in condition.reports.items() if target not in ended)


def _with_severity(condition: Condition) -> str:
    return f"CRITICAL: {condition.text}" if condition.severity is Severity.CRITICAL else condition.text


def _flapping_line(text: str) -> str:
    often = f"it was opened {FLAPPING_OPENINGS} times within 24 hours"
    return f"flaps: {often}. Further changes are not reported until it is stable. {text}"


def _ending_line(condition: Condition) -> str:
    assert condition.closed_at is not None
    lasted = rough_duration(condition.closed_at - condition.opened_at)
    if condition.ended_by is EndedBy.RESOLVED:
        return f"resolved after {lasted}: {condition.text}"
    if condition.ended_by is EndedBy.JOB:
        return f"resolved after {lasted}, because the cron job works again. It was: {condition.text}"
    return f"resolved after {lasted}, because the agent no longer mentions it. It was: {condition.text}"


def _local_time(instant: datetime, zone: ZoneInfo) -> str:
    return f"{instant.astimezone(zone):%Y-%m-%d %H:%M}"

"""Decides which news about a condition a target gets, and writes the line of the message.

The rules look at states and not at changes: a condition that a target should know about, and does not, is news for that target.
So a message that was lost, a restart, or a new channel needs no rule of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from zoneinfo import ZoneInfo

from heartbeat.findings import Severity
from heartbeat.spec import Heartbeat
from heartbeat.words import abbreviate_duration
from scheduler.model.condition import FLAPPING_OPENINGS, Condition, ConditionReport, EndedBy, ReportKind
from scheduler.model.settings import Target


@dataclass(frozen=True, slots=True)
class ConditionNews:
    """That a target is notified of a condition, by `line` of its message; without a line it is only recorded."""

    condition: Condition
    target: Target
    kind: ReportKind
    severity: Severity
    line: str = ""
    is_reminder: bool = False


def news_for_target(condition: Condition, target: Target, spec: Heartbeat, now: datetime) -> ConditionNews | None:
    """What a target has to be notified of: that a condition is new to it, worse, over, flapping, or due for a reminder."""

    def news(kind: ReportKind, line: str = "", severity: Severity = condition.severity) -> ConditionNews:
        return ConditionNews(condition, target, kind, severity, f"[{condition.label}] {line}" if line else "")

    last = condition.reports.get(target)
    knows = last is not None and last.kind is not ReportKind.ENDED
    text, flapping = _with_severity(condition), condition.is_flapping(now)
    if not condition.is_open:
        if not knows or flapping:
            return None
        assert last is not None
        is_told = spec.show_resolved and condition.ended_by is not EndedBy.USER and last.severity is not Severity.INFO
        line = _ending_line(condition) if is_told else ""
        return news(ReportKind.ENDED, line, last.severity)
    if condition.is_acknowledged:
        return None
    if last is None or not knows or last.is_lost:
        if flapping:
            return news(ReportKind.FLAPPING, _flapping_line(text))
        is_known = condition.has_returned and last is not None and last.severity is Severity.INFO is condition.severity
        return news(ReportKind.OPEN, "" if is_known else text)
    if condition.severity.rank > last.severity.rank:
        kind = ReportKind.FLAPPING if flapping else ReportKind.OPEN
        return news(kind, f"{condition.severity.value.upper()} now, {last.severity.value} before: {condition.text}")
    if flapping and last.kind is not ReportKind.FLAPPING:
        return news(ReportKind.FLAPPING, _flapping_line(text), last.severity)
    if not flapping and last.kind is ReportKind.FLAPPING:
        return news(ReportKind.OPEN, "", last.severity)
    if (
        last.is_pending
        or flapping
        or condition.missed
        or condition.severity is Severity.INFO
        or now < _reminder_of(last, condition, spec)
    ):
        return None
    since = _local_time(condition.opened_at, spec.zone)
    line = f"still open, since {since} ({abbreviate_duration(now - condition.opened_at)}): {text}"
    return replace(news(last.kind, line, last.severity), is_reminder=True)


def next_reminder(condition: Condition, spec: Heartbeat) -> datetime | None:
    """From when on an answer that mentions the condition sends a reminder; None if none is sent while it flaps, or is unknown."""
    known = [each for each in condition.reports.values() if each.kind is ReportKind.OPEN]
    return min((_reminder_of(each, condition, spec) for each in known), default=None)


def _reminder_of(last: ConditionReport, condition: Condition, spec: Heartbeat) -> datetime:
    return last.at + (spec.remind_critical if condition.severity is Severity.CRITICAL else spec.remind)


def text_by_target(news: Iterable[ConditionNews]) -> dict[Target, str]:
    """The text of the message for each target, the worst first; none for targets without a line."""
    lines: dict[Target, list[str]] = {}
    for each in sorted(news, key=lambda each: -each.severity.rank):
        if each.line:
            lines.setdefault(each.target, []).append(each.line)
    return {target: "\n".join(each) for target, each in lines.items()}


def is_unsettled(condition: Condition, now: datetime, news: Iterable[ConditionNews] = (), *, is_muted: bool = False) -> bool:
    """Whether it is open, or its end is still to be reported. `news` is what is reported now.

    The end of a condition that was reported is still to be reported while its agent `is_muted`, and while it is flapping.
    """
    if condition.is_open:
        return True
    ended = {each.target for each in news if each.condition.key == condition.key and each.kind is ReportKind.ENDED}
    unreported = [last for target, last in condition.reports.items() if target not in ended and last.kind is not ReportKind.ENDED]
    is_delayed = is_muted or condition.is_flapping(now)
    return any(is_delayed or last.kind is ReportKind.FLAPPING for last in unreported)


def _with_severity(condition: Condition) -> str:
    return f"CRITICAL: {condition.text}" if condition.severity is Severity.CRITICAL else condition.text


def _flapping_line(text: str) -> str:
    often = f"it was opened {FLAPPING_OPENINGS} times within 24 hours"
    return f"flaps: {often}. Further changes are not reported until it is stable. {text}"


def _ending_line(condition: Condition) -> str:
    assert condition.closed_at is not None
    lasted = abbreviate_duration(condition.closed_at - condition.opened_at)
    if condition.ended_by is EndedBy.RESOLVED:
        return f"resolved after {lasted}: {condition.text}"
    if condition.ended_by is EndedBy.JOB:
        return f"resolved after {lasted}, because the cron job works again. It was: {condition.text}"
    if condition.ended_by is EndedBy.GONE:
        return f"resolved after {lasted}, because its lines are gone. It was: {condition.text}"
    return f"resolved after {lasted}, because the agent no longer mentions it. It was: {condition.text}"


def _local_time(instant: datetime, zone: ZoneInfo) -> str:
    return f"{instant.astimezone(zone):%Y-%m-%d %H:%M}"

"""Defines a condition: something that an agent reported under a key, and that holds until it is closed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from heartbeat.evidence import OpenProblem, TrackedLine
from heartbeat.findings import Severity
from scheduler.model.settings import Target

FLAPPING_OPENINGS = 3  # a condition that is opened so often within FLAPPING_TIME flaps
FLAPPING_TIME = timedelta(hours=24)


class ReportKind(StrEnum):
    """What a recipient last got about a condition."""

    OPEN = "open"
    FLAPPING = "flapping"
    ENDED = "ended"


class Effect(StrEnum):
    """What a run did to a condition, as its run record and the log say it."""

    OPENED = "opened"
    KNOWN = "known"  # it was open already
    WORSENED = "worsened"  # its severity has risen
    REMINDED = "reminded"  # it is still open, and a reminder was sent
    RESOLVED = "resolved"  # the agent said that it is over
    CLEARED = "cleared"  # the agent's answers no longer mention it
    REPORTED = "reported"  # it was open already, and a recipient that did not know of it was notified
    ENDED = "ended"  # it had been reported as flapping, and its end was reported
    IGNORED = "ignored"  # the agent said that it is over, but it was not open
    UNCONFIRMED = "unconfirmed"  # the agent did not say it again when it was asked, so it was left out
    UNTRACKED = "untracked"  # there were too many open conditions


class EndedBy(StrEnum):
    """Why a condition was closed."""

    RESOLVED = "resolved"  # the agent said so
    NOT_MENTIONED = "not_mentioned"  # the agent's answers no longer mention it
    GONE = "gone"  # its lines are gone from the precheck's output
    USER = "user"
    JOB = "job"  # the cron job that failed works again


@dataclass(frozen=True, slots=True)
class ConditionReport:
    """The last message about a condition to one target, queued at `at`. `message_id` is None if it was deleted.

    `delivered_at` is None unless the target has got the message. `is_pending`: it may still arrive. `is_lost`: it was given up,
    so the target does not know of it. `says` is the same in words.
    """

    kind: ReportKind
    severity: Severity
    at: datetime
    message_id: int | None
    delivered_at: datetime | None
    is_pending: bool
    is_lost: bool
    says: str


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """Who said when that a condition needs no further message until its severity rises above `severity`, or until it ends."""

    at: datetime
    severity: Severity
    by: str


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of one agent.

    `id` is 0 before the condition is saved. `missed` counts the answers in a row that did not mention it, and `wrongly_closed`
    how often it was mentioned again soon after it had been closed for that reason. `openings` are the times within the last day
    at which it was opened. `lines` are the lines of the precheck's output that are its evidence: it is closed when they are gone.
    `jobs` are the failed cron jobs that it is about: it is closed when they work again. `senders` are the senders of wakes that
    came with it: without such a wake, an answer without it does not mean that it is over. `aliases` are other keys that the agent
    has used for it. `has_returned`: this run has opened it again, with the same line as before.
    """

    name: str
    key: str
    label: str
    severity: Severity
    text: str
    opened_at: datetime
    last_seen_at: datetime
    first_run_id: int
    last_run_id: int
    id: int = 0
    closed_at: datetime | None = None
    ended_by: EndedBy | None = None
    missed: int = 0
    wrongly_closed: int = 0
    openings: tuple[datetime, ...] = ()
    lines: tuple[TrackedLine, ...] = ()
    senders: frozenset[str] = frozenset()
    jobs: frozenset[str] = frozenset()
    aliases: tuple[str, ...] = ()
    acknowledgement: Acknowledgement | None = None
    reports: Mapping[Target, ConditionReport] = field(default_factory=dict)
    has_returned: bool = False

    def is_known_to(self, target: Target) -> bool:
        """Whether the target was notified of it, and not of its end."""
        last = self.reports.get(target)
        return last is not None and last.kind is not ReportKind.ENDED and not last.is_lost

    @property
    def is_open(self) -> bool:
        return self.closed_at is None

    @property
    def is_acknowledged(self) -> bool:
        """Whether it is open, and a person has said that it needs no further message unless it gets worse."""
        return self.is_open and self.acknowledgement is not None and self.severity.rank <= self.acknowledgement.severity.rank

    def is_flapping(self, now: datetime) -> bool:
        """Whether it was opened several times within the last day."""
        return sum(opened > now - FLAPPING_TIME for opened in self.openings) >= FLAPPING_OPENINGS

    @property
    def as_problem(self) -> OpenProblem:
        """The condition as the prompt lists it, and as findings are compared with it."""
        known = [report for report in self.reports.values() if report.kind is not ReportKind.ENDED]
        delivered = [report.delivered_at for report in known if report.delivered_at]
        reported_at = max(delivered, default=None)
        return OpenProblem(
            self.label, self.severity, self.text, self.opened_at, reported_at, self.aliases, self.lines, self.jobs, self.senders
        )

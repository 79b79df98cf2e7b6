"""Defines a problem: something that is wrong with an agent, a job, a provider, a channel or the daemon, until it is over.

An agent reports problems itself; all others are observed by the daemon. Only the end of a reported one needs evidence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple

from heartbeat.evidence import Event, OpenProblem, TrackedLine
from heartbeat.findings import Severity
from heartbeat.words import Word
from scheduler.model.circuit import EVERY_MODEL, Circuit
from scheduler.model.outcome import Kind
from scheduler.model.settings import Target

PROVIDER = "provider"  # the kind of subjects that are providers or models
CHANNEL = "channel"  # the kind of subjects that are channels, or recipients on them
DAEMON = "daemon"  # the kind of the subject that is the daemon itself
PAUSED = "paused"  # the key of the problem that an agent or job is paused after failures
FALLBACK: Final = "fallback"  # the key of the problem that a fallback answers in place of the agent or job itself
REPORTED = "reported"  # the part of an agent whose problems it reports itself
NEWS = "precheck:news"  # the sender of what a precheck shows only once

UNSTABLE_OPENINGS = 3  # a problem that opens so often within UNSTABLE_TIME is unstable
UNSTABLE_TIME = timedelta(hours=24)


class Told(StrEnum):
    """What a recipient last got about a problem."""

    OPEN = "open"
    UNSTABLE = "unstable"
    OVER = "over"
    LOST_END = "lost_end"  # its end was sent, and given up


class State(StrEnum):
    """How a problem stands. Recipients get messages about it while it is open or unstable, and one about its end."""

    SEEN = "seen"  # not in enough runs to open
    OPEN = "open"
    UNSTABLE = "unstable"
    COVERED = "covered"  # it is the consequence of another one
    ACKNOWLEDGED = "acknowledged"
    OVER = "over"


class Effect(Word):
    """What a run did to a problem, as its run record and the log say it."""

    OPENED = "opened", "new"
    KNOWN = "known", "already open"
    WORSENED = "worsened", "more severe than before"
    REMINDED = "reminded", "still open, with a reminder"
    RESOLVED = "resolved", "over, as the agent reported"
    CLEARED = "cleared", "over, because the agent no longer mentions it"
    REPORTED = "reported", "already open, and news to a recipient that had no message about it"
    ENDED = "ended", "its end was reported late, because it was unstable"
    IGNORED = "ignored", "reported as over, but no such problem was open, or its evidence is still there"
    REPEATED = "repeated", "left out, because it repeats an event that is over and was sent"
    UNCONFIRMED = "unconfirmed", "left out, because no second answer, or no second run, has confirmed it"
    UNTRACKED = "untracked", "not tracked, because too many problems are open"


class EndedBy(Word):
    """Why a problem is over. One that the daemon observes is over when it does not observe it any more."""

    OBSERVED = "observed", "it works again"
    RESOLVED = "resolved", "the agent reported its end"
    NOT_MENTIONED = "not_mentioned", "the agent no longer mentions it"
    GONE = "gone", "its lines are gone from the output of the precheck"
    USER = "user", "a user closed it, or removed its agent or job"
    JOB = "job", "the job works again"


@dataclass(frozen=True, slots=True)
class ProblemNotice:
    """The last message about a problem to one recipient, queued at `at`.

    `severity` is the highest that the recipient got, and `severity_before` the highest of the earlier messages about this opening
    that were not given up (None: there was none, or this is an end that needed no message). `faults` are the different errors of
    which it was notified. `is_pending`: it may still arrive. `is_lost`: it was given up, so it does not count as sent.
    `message_id` is the message in the outbox, None if nothing was sent or it was deleted. `delivered_at` is None unless it has
    arrived. `says` is the same in words.
    """

    kind: Told
    severity: Severity
    at: datetime
    faults: tuple[str, ...] = ()
    severity_before: Severity | None = None
    is_pending: bool = False
    is_lost: bool = False
    message_id: int | None = None
    delivered_at: datetime | None = None
    says: str = ""

    @property
    def is_end(self) -> bool:
        """Whether the last message was about its end, or its end needed no message."""
        return self.kind in (Told.OVER, Told.LOST_END)

    @property
    def is_settled(self) -> bool:
        """Whether the recipient knows the end, or need not know it."""
        return self.is_end and not (self.kind is Told.LOST_END and self.is_lost)

    @property
    def arrived(self) -> Severity | None:
        """The highest severity that the recipient got about this opening. None if its only message was lost."""
        return self.severity_before if self.is_lost else self.severity


class Subject(NamedTuple):
    """What has a problem: its kind (heartbeat, cron, provider, channel, daemon), its name, and its part.

    The part is a model or a recipient. Of an agent it separates what it reports (`REPORTED`) from how its runs go.
    """

    kind: str
    name: str
    part: str = ""

    @classmethod
    def of_reports(cls, agent: str, kind: Kind = Kind.HEARTBEAT) -> Subject:
        """An agent that reports problems, or a job whose agent does."""
        return cls(kind, agent, REPORTED)

    @classmethod
    def of_circuit(cls, circuit: Circuit) -> Subject:
        """A provider or one of its models."""
        return cls(PROVIDER, *circuit)

    @classmethod
    def of_target(cls, target: Target) -> Subject:
        """A channel, or one recipient on it."""
        return cls(CHANNEL, target.channel, target.recipient)

    @classmethod
    def of_daemon(cls) -> Subject:
        """The daemon itself."""
        return cls(DAEMON, "heartbeatd")

    @property
    def circuit(self) -> Circuit:
        """The provider or model."""
        return Circuit(self.name, self.part)

    @property
    def target(self) -> Target:
        """The channel, with its recipient."""
        return Target(self.name, self.part)

    @property
    def label(self) -> str:
        """As lists name it: `agent/ops`, `cron/backup`, `provider/anthropic`, `channel/phone`, `daemon`."""
        if self.kind == DAEMON:
            return DAEMON
        if self.kind in (PROVIDER, CHANNEL):
            return "/".join((self.kind, *(part for part in self[1:] if part not in ("", EVERY_MODEL))))
        return Kind(self.kind).label_of(self.name)

    def __str__(self) -> str:
        if self.kind == DAEMON:
            return DAEMON
        if self.kind == PROVIDER:
            return str(self.circuit)
        if self.kind == CHANNEL:
            return f"channel {self.target.label}"
        return self.name if self.kind == Kind.HEARTBEAT else Kind.CRON.label_of(self.name)


@dataclass(frozen=True, slots=True)
class Symptom:
    """What a look at a subject found wrong.

    `reason` is the class of the error, `fault` what distinguishes one error from another: a hash, or the class. A finding with a
    `cause_id` is the consequence of that problem.
    """

    key: str
    severity: Severity
    text: str
    reason: str
    fault: str
    cause_id: int | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """Why an agent reports a problem. It is empty for a problem that the daemon observes.

    `label` is the key as the agent wrote it, and `aliases` are other keys that it has used. `missed` counts the answers in a row
    that did not mention the problem, and `wrongly_closed` how often it was mentioned again soon after it had been closed for that
    reason. It is over when the `lines` of the precheck's output are gone, or when the failed `jobs` work again. `senders` are the
    senders of wakes that came with it, or `NEWS`: without any of them, an answer without it does not mean that it is over.
    `has_returned`: this run has opened it again, with the same line as before. With `events` it is about what has happened once.
    """

    label: str = ""
    first_run_id: int = 0
    last_run_id: int = 0
    missed: int = 0
    wrongly_closed: int = 0
    lines: tuple[TrackedLine, ...] = ()
    senders: frozenset[str] = frozenset()
    jobs: frozenset[str] = frozenset()
    aliases: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()
    has_returned: bool = False


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """Who said when that a problem needs no further message until its severity rises above `severity`, or until it is over."""

    at: datetime
    severity: Severity
    by: str


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a subject, under a key.

    It is first seen at `since`, and opens when it was seen often enough in a row (`count`). `openings` are the times of the last
    day at which it opened. `over_at` None: it is not over. While it has a cause, nothing is sent about it. `id` is 0 before it
    is saved.
    """

    subject: Subject
    found: Symptom
    since: datetime
    last_seen_at: datetime
    count: int = 1
    opened_at: datetime | None = None
    over_at: datetime | None = None
    ended_by: EndedBy | None = None
    openings: tuple[datetime, ...] = ()
    evidence: Evidence = Evidence()
    acknowledgement: Acknowledgement | None = None
    id: int = 0
    notices: Mapping[Target, ProblemNotice] = field(default_factory=dict)

    @property
    def number(self) -> str:
        """As messages name it."""
        return f"p{self.id}"

    @property
    def key(self) -> str:
        """Under which it is known, together with its subject."""
        return self.found.key

    @property
    def label(self) -> str:
        """The key as people see it."""
        return self.evidence.label or self.key

    @property
    def is_reported(self) -> bool:
        """Whether an agent reports it, and the daemon does not observe it itself."""
        return self.subject.kind in tuple(Kind) and self.subject.part == REPORTED

    @property
    def is_open(self) -> bool:
        """Whether it was seen often enough, and is not over."""
        return self.opened_at is not None and self.over_at is None

    @property
    def is_settled(self) -> bool:
        """Whether it is over, and each recipient that was notified of it knows that, or need not know."""
        return self.over_at is not None and all(last.is_settled for last in self.notices.values())

    @property
    def is_mentioned_since(self) -> bool:
        """Whether it is over, and its agent has mentioned it in a later run."""
        return self.over_at is not None and self.last_seen_at > self.over_at

    def is_known_to(self, target: Target) -> bool:
        """Whether the target was notified of it, and not of its end."""
        last = self.notices.get(target)
        return last is not None and not last.is_end and not last.is_lost

    def is_unstable(self, now: datetime) -> bool:
        """Whether it opened several times within the last day. Several events with one key are not one problem."""
        return not self.evidence.events and sum(opened > now - UNSTABLE_TIME for opened in self.openings) >= UNSTABLE_OPENINGS

    def state(self, now: datetime) -> State:
        """Its state now: of several that apply, the first in this order."""
        acked = self.acknowledgement
        if self.over_at is not None:
            return State.OVER
        if acked is not None and self.found.severity.rank <= acked.severity.rank:
            return State.ACKNOWLEDGED
        if self.found.cause_id is not None:
            return State.COVERED
        if self.opened_at is None:
            return State.SEEN
        return State.UNSTABLE if self.is_unstable(now) else State.OPEN

    @property
    def for_prompt(self) -> OpenProblem:
        """What an agent reports, as the prompt lists it, and as findings are compared with it."""
        known = [last.delivered_at for last in self.notices.values() if last.delivered_at and not last.is_end]
        own = self.evidence
        return OpenProblem(
            self.label,
            self.found.severity,
            self.found.text,
            self.since,
            max(known, default=None),
            own.aliases,
            own.lines,
            own.jobs,
            own.senders,
            own.events,
        )

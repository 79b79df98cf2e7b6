"""Defines a problem: something that is wrong with an agent, a job, a provider or a channel, until it is over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from heartbeat.findings import Severity
from scheduler.model.circuit import EVERY_MODEL, Circuit
from scheduler.model.outcome import Kind
from scheduler.model.settings import Target

PROVIDER = "provider"  # the kind of subjects that are providers or models
CHANNEL = "channel"  # the kind of subjects that are channels, or recipients on them

UNSTABLE_OPENINGS = 3  # a problem that opens so often within UNSTABLE_TIME is unstable
UNSTABLE_TIME = timedelta(hours=24)


class Told(StrEnum):
    """What a recipient last got about a problem."""

    OPEN = "open"
    UNSTABLE = "unstable"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class ProblemNotice:
    """The last message about a problem to one recipient, queued at `at`.

    `severity` is the highest that the recipient got. `faults` are the different errors of which it was notified. `is_known`: an
    earlier message about the same opening has arrived. `is_pending`: the message may still arrive. `is_lost`: it was given up, so
    it does not count as sent. `delivered_at` is None unless it has arrived. `says` is the same in words.
    """

    kind: Told
    severity: Severity
    at: datetime
    faults: tuple[str, ...] = ()
    is_known: bool = False
    is_pending: bool = False
    is_lost: bool = False
    delivered_at: datetime | None = None
    says: str = ""


class Subject(NamedTuple):
    """What has a problem: its kind (heartbeat, cron, provider, channel), its name, and its part: the model or the recipient."""

    kind: str
    name: str
    part: str = ""

    @classmethod
    def of_circuit(cls, circuit: Circuit) -> Subject:
        """A provider or one of its models."""
        return cls(PROVIDER, *circuit)

    @classmethod
    def of_target(cls, target: Target) -> Subject:
        """A channel, or one recipient on it."""
        return cls(CHANNEL, target.channel, target.recipient)

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
        """As lists name it: `agent/ops`, `cron/backup`, `provider/anthropic`, `channel/phone`."""
        if self.kind in (PROVIDER, CHANNEL):
            return "/".join((self.kind, *(part for part in self[1:] if part not in ("", EVERY_MODEL))))
        return Kind(self.kind).label_of(self.name)

    def __str__(self) -> str:
        if self.kind == PROVIDER:
            return str(self.circuit)
        if self.kind == CHANNEL:
            return f"channel {self.target.label}"
        return self.name if self.kind == Kind.HEARTBEAT else Kind.CRON.label_of(self.name)


@dataclass(frozen=True, slots=True)
class Finding:
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
class Problem:
    """What is wrong with a subject, under a key.

    It is first seen at `since`, and opens when it was seen often enough in a row (`count`). `openings` are the times of the last
    day at which it opened. `over_at` None: it is not over. While it has a cause, nothing is sent about it. `id` is 0 before it
    is saved.
    """

    subject: Subject
    found: Finding
    since: datetime
    last_seen_at: datetime
    count: int = 1
    opened_at: datetime | None = None
    over_at: datetime | None = None
    openings: tuple[datetime, ...] = ()
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
    def is_open(self) -> bool:
        """Whether it was seen often enough, and is not over."""
        return self.opened_at is not None and self.over_at is None

    @property
    def is_settled(self) -> bool:
        """Whether it is over, and each recipient that was notified of it knows that, or need not know."""
        return self.over_at is not None and all(last.kind is Told.OVER for last in self.notices.values())

    def is_unstable(self, now: datetime) -> bool:
        """Whether it opened several times within the last day."""
        return sum(opened > now - UNSTABLE_TIME for opened in self.openings) >= UNSTABLE_OPENINGS

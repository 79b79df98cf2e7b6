"""Defines the events that a transaction reports, and that the log and the metrics get after its commit."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from heartbeat.runners import Tokens
from scheduler.model.circuit import Circuit
from scheduler.model.outcome import AttemptResult, DeliveryState, Kind, Outcome, Trigger, WakeResult
from scheduler.model.settings import Settings


@dataclass(frozen=True, slots=True)
class OfEntry:
    """Something that has happened to an entry."""

    kind: Kind
    name: str


@dataclass(frozen=True, slots=True)
class OfRun:
    """Something that has happened to a run of an entry."""

    run_id: int
    kind: Kind
    name: str


@dataclass(frozen=True, slots=True)
class RunClosed(OfRun):
    """A run has ended with this result, or `slots` slots were skipped together."""

    slot: datetime
    trigger: Trigger
    result: AttemptResult
    finished_at: datetime
    slots: int = 1
    attempt: int = 0  # the number of its last attempt; 0: none has begun
    started_at: datetime | None = None  # of its last attempt; None: none has begun
    worker: str | None = None  # that executed its last attempt; None: the daemon itself


@dataclass(frozen=True, slots=True)
class AttemptStarted(OfRun):
    """An attempt was claimed. `late` is how long after its slot came due, in seconds; None if no slot started it."""

    slot: datetime
    trigger: Trigger
    attempt: int
    late: float | None


@dataclass(frozen=True, slots=True)
class SlotsMissed(OfEntry):
    """Slots were missed that came due while the daemon ran. `late` is how long ago each came due, in seconds."""

    late: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RetryPlanned(OfRun):
    """An attempt failed, and another one is planned."""

    attempt: int
    reason: str | None
    not_before: datetime
    error: str | None


@dataclass(frozen=True, slots=True)
class LaneBusy(OfRun):
    """A run waits because another process holds its agent's lock. Reported once per wait."""

    slot: datetime
    trigger: Trigger


@dataclass(frozen=True, slots=True)
class WakeMoved:
    """The result of a wake. `final` False: the wake still waits, and another event follows. `problem`: why it was rejected."""

    name: str
    source: str
    sender: str
    result: WakeResult
    final: bool = True
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class MessageMoved:
    """A message in the outbox changed its state. `retried`: another attempt is planned. `age`: how long ago it was written.

    `kind` and `name` are those of the agent, the job or the daemon that it comes from.
    """

    outbox_id: int
    run_id: int
    kind: str
    name: str
    channel: str
    state: DeliveryState
    retried: bool = False
    error: str = ""
    age: timedelta | None = None


@dataclass(frozen=True, slots=True)
class TargetUnknown(OfRun):
    """A run had a message for `deliver: last`, and no target of its agent is known."""


@dataclass(frozen=True, slots=True)
class RunRecovered(OfRun):
    """A run that an earlier boot left open was closed, or `again`: is to be attempted again."""

    again: bool


@dataclass(frozen=True, slots=True)
class SkipsRevoked(OfEntry):
    """Slots that had been skipped are still to come: the clock was ahead and has been set right."""

    reason: str
    slots: int


@dataclass(frozen=True, slots=True)
class StaleResultDropped(OfRun):
    """A result was dropped, because its run no longer belongs to the worker that sent it."""


@dataclass(frozen=True, slots=True)
class CallCharged(OfEntry):
    """A call was recorded: the requested model, its tokens, and its cost in USD if the model has a price."""

    model: str | None
    tokens: Tokens | None
    cost_usd: float | None
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class ProviderFailed:
    """A call to a provider failed. `error_class` is one of the words of `Failure`."""

    provider: str
    error_class: str


@dataclass(frozen=True, slots=True)
class ProviderCalled:
    """A call to a provider ended. `result` is `ok` or a word of `Failure`. `took` is None if the duration is unknown."""

    run_id: int
    provider: str
    model: str
    result: str
    took: timedelta | None


@dataclass(frozen=True, slots=True)
class ModelMismatched(OfEntry):
    """A different model answered than was requested."""

    requested: str
    used: str


@dataclass(frozen=True, slots=True)
class BreakerMoved:
    """A circuit breaker opened or closed. `error` is the provider's text when it opened."""

    circuit: Circuit
    reason: str
    is_open: bool
    error: str = ""


@dataclass(frozen=True, slots=True)
class ChecklistRemarked:
    """A run used a checklist with lines that look like an item annotation and are none. Reported by each such run."""

    name: str
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProblemChanged:
    """A person has closed a problem, has acknowledged it, or has removed its acknowledgement (`change`)."""

    number: str
    subject: str
    key: str
    change: Literal["closed", "acknowledged", "unacknowledged"]
    by: str


@dataclass(frozen=True, slots=True)
class QuestionMoved:
    """A run has asked people a question, or a question has ended, maybe without an answer. `by` is who has asked or answered."""

    number: int
    run_id: int
    kind: Kind
    name: str
    state: Literal["asked", "open", "answered", "ended"]
    by: str | None


@dataclass(frozen=True, slots=True)
class ButtonPressed:
    """A button of a message was pressed, or a person has replied to it.

    `result` is `applied`, or why it had no effect. `name` is the entry, if it is known.
    """

    channel: str
    button: str
    result: str
    user: str
    name: str | None


@dataclass(frozen=True, slots=True)
class MuteChanged(OfEntry):
    """An entry was muted until a time, or its mute has ended. `by` is the person or program, or `change`."""

    muted: bool
    by: str
    until: datetime | None


@dataclass(frozen=True, slots=True)
class PauseChanged(OfEntry):
    """An entry was paused until a time (None: until it is resumed), or resumed. `by` is who did it: command, or token NAME."""

    paused: bool
    by: str
    until: datetime | None


@dataclass(frozen=True, slots=True)
class SettingsApplied:
    """New settings were applied."""

    settings: Settings


Event = (
    SettingsApplied
    | BreakerMoved
    | ChecklistRemarked
    | ButtonPressed
    | MuteChanged
    | PauseChanged
    | ProblemChanged
    | QuestionMoved
    | RunClosed
    | LaneBusy
    | ModelMismatched
    | TargetUnknown
    | CallCharged
    | ProviderCalled
    | ProviderFailed
    | RunRecovered
    | RetryPlanned
    | StaleResultDropped
    | AttemptStarted
    | SkipsRevoked
    | MessageMoved
    | SlotsMissed
    | WakeMoved
)

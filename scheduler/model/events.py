"""What happened, as plain values: made inside a transaction, told to metrics and log after its commit."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from heartbeat.runners import Tokens
from scheduler.model.circuit import Circuit
from scheduler.model.outcome import DeliveryState, Kind, Outcome, Trigger, WakeResult
from scheduler.model.settings import Settings


@dataclass(frozen=True, slots=True)
class RunClosed:
    """A slot has its end: one row, `slots` slots. `started_at` is None for what never ran; `log` is what an agent said for it.

    `truncated`: its answer was cut at a limit of tokens; `precheck_problem` is why its precheck failed; `left_out` is
    what was to be in its prompt and is not.
    """

    run_id: int
    kind: Kind
    name: str
    slot: datetime
    slots: int
    trigger: Trigger
    outcome: Outcome
    reason: str | None
    suppression: str | None
    attempt: int
    started_at: datetime | None
    finished_at: datetime
    error: str | None = None
    log: str | None = None
    truncated: bool = False
    precheck_problem: str | None = None
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    """An attempt was claimed; `late` is how long after its slot came due, in seconds, None where no slot started it."""

    run_id: int
    kind: Kind
    name: str
    slot: datetime
    trigger: Trigger
    attempt: int
    late: float | None


@dataclass(frozen=True, slots=True)
class SlotsMissed:
    """Slots are missed that came due while the daemon was there; `late` is how long ago each came due, in seconds."""

    kind: Kind
    name: str
    late: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RetryPlanned:
    """An attempt failed and another one is planned."""

    run_id: int
    kind: Kind
    name: str
    attempt: int
    reason: str | None
    not_before: datetime
    error: str | None


@dataclass(frozen=True, slots=True)
class LaneBusy:
    """A run waits, for somebody else speaks to its agent; told once however long that takes."""

    run_id: int
    kind: Kind
    name: str
    slot: datetime
    trigger: Trigger


@dataclass(frozen=True, slots=True)
class WakeMoved:
    """What became of a wake; `final` False: only for now, and another word follows. `problem`: why it was rejected."""

    name: str
    source: str
    sender: str
    result: WakeResult
    final: bool = True
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class MessageMoved:
    """A message moved in the outbox; `retried` counts an attempt that will be made again."""

    outbox_id: int
    channel: str
    state: DeliveryState
    retried: bool = False
    error: str = ""


@dataclass(frozen=True, slots=True)
class TargetUnknown:
    """A run had something to say to whoever spoke with its agent last, and nobody is known to have."""

    run_id: int
    kind: Kind
    name: str


@dataclass(frozen=True, slots=True)
class RunRecovered:
    """A run that an earlier life of the daemon left open was taken in hand."""

    run_id: int
    kind: Kind
    name: str
    again: bool


@dataclass(frozen=True, slots=True)
class SkipsRevoked:
    """Slots that had been skipped are still to come: the clock was ahead, and has been set right."""

    kind: Kind
    name: str
    reason: str
    slots: int


@dataclass(frozen=True, slots=True)
class StaleResultDropped:
    """A result came for a run that is no longer the sender's; it was dropped."""

    run_id: int
    kind: Kind
    name: str


@dataclass(frozen=True, slots=True)
class CallCharged:
    """A call was booked: the model that was asked for, its tokens, its cost in USD where there is a price."""

    kind: Kind
    name: str
    model: str | None
    tokens: Tokens | None
    cost_usd: float | None
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class ProviderFailed:
    """A provider gave no proper answer; `error_class` is one of the words of `Failure`."""

    provider: str
    error_class: str


@dataclass(frozen=True, slots=True)
class ModelMismatched:
    """Another model answered than was asked for."""

    kind: Kind
    name: str
    requested: str
    used: str


@dataclass(frozen=True, slots=True)
class BreakerMoved:
    """A circuit breaker opened or closed; `error` is what the provider said when it opened."""

    circuit: Circuit
    reason: str
    is_open: bool
    error: str = ""


@dataclass(frozen=True, slots=True)
class ChecklistRemarked:
    """An agent was asked by a checklist in which something looks like a mark and is none; told at each such run."""

    name: str
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SettingsApplied:
    """New settings are in force."""

    settings: Settings


Event = (
    SettingsApplied
    | BreakerMoved
    | ChecklistRemarked
    | RunClosed
    | LaneBusy
    | ModelMismatched
    | TargetUnknown
    | CallCharged
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

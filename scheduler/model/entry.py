"""Defines what agents and jobs have in common for the engine: the abstract Entry, and the Claim of one attempt."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from cron.job import Job
from heartbeat.evidence import OpenProblem
from heartbeat.prompt import AgentActivity
from heartbeat.runners import Answer, Resources
from heartbeat.spec import Heartbeat, Precheck
from heartbeat.verdict import with_cut_note, without_reasoning
from scheduler.model.budget import Reservation
from scheduler.model.circuit import Circuit, required_circuits
from scheduler.model.outcome import AttemptResult, Kind, Skip, Trigger
from scheduler.model.settings import OnFailure
from scheduler.model.wake import Wake

Key = tuple[Kind, str]


Elapsed = Callable[[], timedelta]
"""How long an attempt has been running."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One attempt that this daemon owns, with everything that its worker needs. `started_at` is the worker's `now`.

    `entry` is the config with which the attempt began. `last_beat` and `failures` describe the runs before this slot, `messages`
    the agent's session, as (role, text). `breaker_open` names the open circuit breaker that blocks it, None without one; `probes`
    are the open ones that it may probe. `last_checked` holds when each checklist item was last checked, by its hash, and
    `last_precheck` the digest of the last precheck's output. `busy`: another process holds the lane, and `held_by` says which, if
    that is known. `last_error` is the error of the previous run, if it failed. `up_since` is when the daemon started, or its
    machine last woke up. `activity` is what a gateway last reported about the agent. `over_budget` says why its maximum usage no
    longer fits into the day, None if it does. `reserved` is what it may use, None without a budget. `conditions` are the agent's
    open conditions. `looked_at` is the time of the agent's last complete answer. `traceparent` names the span of the scheduler to
    which the attempt belongs on another machine, in the notation of W3C Trace Context.
    """

    run_id: int
    fence: int
    owner: str
    entry: Entry
    slot: datetime
    trigger: Trigger
    attempt: int
    crashes: int
    started_at: datetime
    paused: bool
    wakes: tuple[Wake, ...]
    last_beat: datetime | None
    failures: int
    breaker_open: str | None = None
    busy: bool = False
    held_by: str | None = None
    over_budget: str | None = None
    reserved: Reservation | None = None
    probes: tuple[Circuit, ...] = ()
    messages: tuple[tuple[str, str], ...] = ()
    last_checked: Mapping[str, datetime] = field(default_factory=dict)
    last_precheck: str | None = None
    last_success: datetime | None = None
    last_error: str | None = None
    up_since: datetime | None = None
    activity: AgentActivity | None = None
    conditions: tuple[OpenProblem, ...] = ()
    looked_at: datetime | None = None
    left_out: frozenset[str] = frozenset()
    traceparent: str | None = None

    @property
    def run_mark(self) -> str:
        """The ID that every child process of this attempt has in its environment, so that it can be found after a crash."""
        return f"{self.owner}/{self.run_id}"


class Entry(ABC):
    """An agent's heartbeat or a cron job: its slots, the execution of a run, its recipients, and the agents that it wakes.

    `grace` is how late the latest slot may start. `catch_up` False: slots that passed while the daemon was down or the machine
    asleep do not start at all. `schedule_text` is canonical: equal texts mean equal slots.
    """

    __slots__ = ()
    spec: Heartbeat | Job

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def enabled(self) -> bool:
        return self.spec.enabled

    @property
    def zone(self) -> ZoneInfo:
        """The time zone of its days."""
        return self.spec.zone

    @property
    def grace(self) -> timedelta:
        return self.spec.grace

    @property
    def retries(self) -> int:
        return self.spec.retries

    @property
    def timeout(self) -> timedelta:
        return self.spec.timeout

    @property
    def deliver(self) -> tuple[str, ...]:
        return self.spec.deliver

    @property
    def on_failure(self) -> OnFailure:
        """When and where its failures are notified."""
        spec = self.spec
        return OnFailure(spec.on_failure_after, spec.on_failure_remind, spec.on_failure_deliver or spec.deliver)

    def checklist_remarks(self) -> tuple[str, ...]:
        """Lines of its present checklist that look like an item annotation and are none."""
        return ()

    def is_day_off(self, now: datetime) -> bool:
        """Whether its calendars exclude the day of `now`."""
        return not self.spec.calendars.open_at(now)

    @property
    @abstractmethod
    def kind(self) -> Kind: ...
    @property
    @abstractmethod
    def schedule_text(self) -> str: ...
    @property
    @abstractmethod
    def catch_up(self) -> bool: ...
    @property
    @abstractmethod
    def retries_after_crash(self) -> bool: ...
    @property
    @abstractmethod
    def precheck(self) -> Precheck | None: ...
    @property
    @abstractmethod
    def model(self) -> str | None: ...

    @property
    @abstractmethod
    def models(self) -> tuple[Circuit, ...]:
        """The models that it calls at providers of the config."""

    @property
    def circuits(self) -> tuple[Circuit, ...]:
        """The circuits that must work for it to run: each provider that it uses, and each model there."""
        return required_circuits(self.models)

    @property
    def key(self) -> Key:
        return self.kind, self.name

    @property
    @abstractmethod
    def session_keep(self) -> int: ...
    @property
    @abstractmethod
    def dedup_window(self) -> timedelta: ...
    @property
    @abstractmethod
    def starts_at_boot(self) -> bool: ...

    @property
    @abstractmethod
    def lane(self) -> str | None:
        """The agent whose lane a run takes; None if it runs no agent."""

    @abstractmethod
    def preconditions(self, claim: Claim) -> Sequence[tuple[Skip, bool | None]]:
        """Each reason not to run, in the order of the checks, and whether it applies to this claim; None: only a run can tell."""

    @abstractmethod
    def is_open_at(self, now: datetime) -> bool:
        """Whether it may run at `now` according to its calendars and active hours."""

    @abstractmethod
    def opens_at(self, now: datetime) -> datetime | None:
        """From when on it may run according to its calendars and active hours, `now` or later; None: not within two years."""

    @abstractmethod
    def closes_at(self, now: datetime) -> datetime | None:
        """When its present window or day ends; None if neither ends within two years."""

    @abstractmethod
    def message_digest(self, message: str) -> str:
        """The hash by which equal messages are recognized as duplicates."""

    @property
    def async_timeout(self) -> timedelta:
        """How long the result of a run that answers later is awaited."""
        return self.spec.async_timeout

    def answer_text(self, result: AttemptResult) -> str:
        """The answer of a run as it is delivered: without reasoning, and with a note if it was cut."""
        text = without_reasoning(result.text or "", strip_reasoning=self.spec.strip_reasoning, truncated=result.truncated)
        return with_cut_note(text, truncated=result.truncated)

    @abstractmethod
    def classify_answer(self, answer: Answer) -> AttemptResult:
        """The result of a run with this answer."""

    @abstractmethod
    async def run_attempt(self, claim: Claim, resources: Resources, elapsed: Elapsed) -> AttemptResult:
        """Carry one attempt through, in a worker's thread; is put aside while it waits for an answer."""

    @property
    @abstractmethod
    def agents_to_wake(self) -> tuple[str, ...]:
        """The agents whose heartbeat a run of it may wake at once."""

    @abstractmethod
    def wakes_caused_by(self, claim: Claim, result: AttemptResult) -> tuple[Wake, ...]:
        """The wakes that this result of a run causes."""

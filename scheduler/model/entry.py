"""Defines what agents and jobs have in common for the engine: the abstract Entry, and the Claim of one attempt."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from cron.job import After, Job
from heartbeat.prompt import NO_MEMORY, NO_PAST, EarlierOutput, Memory, Past
from heartbeat.runners import NO_CACHE, CachePlan
from heartbeat.spec import Agent, CommandRunner, Heartbeat, Precheck
from heartbeat.verdict import with_cut_note, without_reasoning
from scheduler.model.budget import Reservation
from scheduler.model.circuit import Circuit, required_circuits
from scheduler.model.daemon_health import DEFAULT_QUEUE
from scheduler.model.outcome import AttemptResult, Kind, Outcome, Reason, Skip, Trigger
from scheduler.model.settings import ProblemRule
from scheduler.model.wake import Wake

Key = tuple[Kind, str]


@dataclass(frozen=True, slots=True)
class OpenRun:
    """The open run of an entry. It is running, or waits for a retry, its agent's lane, or a provider that another run probes.

    `outcome` is the result of its last attempt: `abandoned` if that was interrupted, `skipped` if no attempt has begun, None
    while the first attempt runs. `worker` executes its last attempt, or has executed it, if that is known.
    """

    id: int
    state: str
    slot: datetime
    trigger: Trigger
    attempt: int
    crashes: int
    fence: int
    owner: str
    started_at: datetime
    not_before: datetime | None = None
    outcome: str | None = None
    reason: str | None = None
    error: str | None = None
    text: str | None = None
    worker: str | None = None

    @property
    def has_not_begun(self) -> bool:
        """Whether it has only waited for its agent's lane or its provider so far."""
        return self.outcome == Outcome.SKIPPED

    @property
    def waits_for(self) -> Skip:
        """What a run waits for that has not begun."""
        return Skip(self.reason or Skip.BUSY)

    @property
    def is_cancelled(self) -> bool:
        """Whether a user has cancelled it, and it has not ended yet."""
        return self.reason == Reason.CANCELLED

    @property
    def has_failed(self) -> bool:
        """Whether an attempt of it ended by itself, with a failure."""
        return self.outcome in (Outcome.FAILED, Outcome.TIMEOUT)

    @property
    def mark(self) -> str:
        """The ID that every child process of its last attempt has in its environment, so that it can be found after a crash."""
        return f"{self.owner}/{self.id}"


@dataclass(frozen=True, slots=True)
class Facts:
    """What the engine knows when it claims an attempt, by its owner.

    `blocked` has the reasons why the agent must not be called, each with its details: paused, another process holds the lane, the
    budget of the day is used up, a circuit breaker is open. `unavailable` says of the agent itself and of each of its fallbacks
    why it cannot be called (None: it can).
    """

    blocked: Mapping[Skip, str | None] = field(default_factory=dict)
    reserved: Reservation | None = None  # what it may use of its budgets, None without one
    probes: tuple[Circuit, ...] = ()  # the open circuit breakers that it may probe
    unavailable: tuple[str | None, ...] = ()
    wakes: tuple[Wake, ...] = ()
    past: Past = NO_PAST
    memory: Memory = NO_MEMORY
    input: EarlierOutput | None = None  # of the job that it follows
    previous: EarlierOutput | None = None  # its own last one, if it gets that
    cache: CachePlan = NO_CACHE  # which parts of the prompt a provider is asked to keep
    traceparent: str | None = None  # the span of the scheduler to which it belongs on another machine (W3C Trace Context)


@dataclass(frozen=True, slots=True)
class Claim:
    """One attempt that this daemon owns: the config with which it began, its run, and what is known for it."""

    entry: Entry
    run: OpenRun
    facts: Facts = Facts()

    def blocked_by(self, reason: Skip, detail: str | None) -> Claim:
        """The claim with one more reason not to call the agent."""
        return replace(self, facts=replace(self.facts, blocked={**self.facts.blocked, reason: detail}))


class Entry(ABC):
    """An agent's heartbeat or a cron job: its slots, its recipients, and the agents that it wakes.

    `catch_up` False: slots that passed while the daemon was down or the machine asleep do not start at all. `schedule_text` is
    canonical: equal texts mean equal slots.
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
    def queue(self) -> str:
        """The queue of the workers that execute its runs, if workers do."""
        return self.spec.queue or DEFAULT_QUEUE

    @property
    def deliver(self) -> tuple[str, ...]:
        return self.spec.deliver

    @property
    def problem_rule(self) -> ProblemRule:
        """When and where its failures are sent."""
        spec = self.spec
        return ProblemRule(spec.problems_after, spec.problems_remind, spec.problems_deliver or spec.deliver, spec.pause_after)

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
    def reporter(self) -> Heartbeat | Agent | None:
        """The settings of an agent whose findings become problems; None for a job whose answers are texts."""

    @property
    @abstractmethod
    def model(self) -> str | None: ...

    @property
    @abstractmethod
    def models(self) -> tuple[Circuit, ...]:
        """The models that it calls at providers of the config."""

    @property
    def alternatives(self) -> tuple[tuple[Circuit, ...], ...]:
        """The circuits that must work for it to run without a fallback, and with each of its fallbacks."""
        return (required_circuits(self.models),)

    @property
    def circuits(self) -> tuple[Circuit, ...]:
        """The circuits that it uses: each provider, and each model there, and the accounts of its programs."""
        return tuple(dict.fromkeys(circuit for circuits in self.alternatives for circuit in circuits))

    @property
    def programs(self) -> Mapping[str | None, CommandRunner | None]:
        """The program that it calls without a fallback (the key None), and with each fallback, by its name; None: it is none."""
        return {None: None}

    def uses_account(self, account: str | None, fallback: str | None) -> bool:
        """Whether the program of a fallback, or without one, has this account."""
        program = self.programs.get(fallback)
        return program is not None and program.account == account

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
    def after(self) -> After | None:
        """The job after which it runs; None if it has times of its own."""
        return self.spec.after if isinstance(self.spec, Job) else None

    @property
    @abstractmethod
    def lane(self) -> str | None:
        """The agent whose lane a run takes; None if it runs no agent."""

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

    def answer_text(self, result: AttemptResult) -> str:
        """The answer of a run as it is delivered: without reasoning, and with a note if it was cut."""
        text = without_reasoning(result.text or "", strip_reasoning=self.spec.strip_reasoning, truncated=result.truncated)
        return with_cut_note(text, truncated=result.truncated)

    @property
    @abstractmethod
    def agents_to_wake(self) -> tuple[str, ...]:
        """The agents whose heartbeat a run of it may wake at once."""

    @abstractmethod
    def wakes_caused_by(self, claim: Claim, result: AttemptResult) -> tuple[Wake, ...]:
        """The wakes that this result of a run causes."""

"""Defines agents and jobs as entries of the queue, and the Claim of one attempt."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import ClassVar
from zoneinfo import ZoneInfo

from cron.job import After, Job, format_wake_text, wakes_after
from heartbeat import verdict
from heartbeat.checklist import parse_checklist
from heartbeat.checks import load_checklist
from heartbeat.hours import HoursAndDays, first_closed, first_open
from heartbeat.prompt import NO_MEMORY, NO_PAST, EarlierOutput, Memory, Past
from heartbeat.runners import NO_CACHE, CachePlan
from heartbeat.spec import Agent, CommandRunner, Heartbeat, ModelRunner, Precheck
from heartbeat.verdict import with_cut_note, without_reasoning
from scheduler.model import entry_schedule
from scheduler.model.budget import Reservation
from scheduler.model.circuit import Circuit, accounts_of, circuits_of, required_circuits
from scheduler.model.daemon_health import DEFAULT_QUEUE
from scheduler.model.outcome import ANSWERED, AttemptResult, Key, Kind, Outcome, Reason, Skip, Trigger
from scheduler.model.wake import Wake

WAKES_NOBODY = frozenset({Outcome.SKIPPED, Outcome.ASYNC})  # there is no result, or not yet


@dataclass(frozen=True, slots=True)
class OpenRun:
    """The open run of an entry. It is running, or waits for a retry, its agent's lock, or a provider that another run probes.

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
        """Whether it has only waited for its agent's lock or its provider so far."""
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

    `blocked` has the reasons why the agent must not be called, each with its details: paused, another process holds the lock, the
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
    previous: EarlierOutput | None = None  # its own last one, if it names no other job: all that workers of the last version know
    named: tuple[EarlierOutput, ...] = ()  # else the last ones of the jobs that it names, in this order
    cache: CachePlan = NO_CACHE  # which parts of the prompt a provider is asked to keep
    traceparent: str | None = None  # the span of the scheduler to which it belongs on another machine (W3C Trace Context)

    @property
    def outputs(self) -> tuple[EarlierOutput, ...]:
        """The last outputs that it gets."""
        return (self.previous,) if self.previous else self.named


@dataclass(frozen=True, slots=True)
class Claim:
    """One attempt that this daemon owns: the config with which it began, its run, and what is known for it."""

    entry: Entry
    run: OpenRun
    facts: Facts = Facts()

    def blocked_by(self, reason: Skip, detail: str | None) -> Claim:
        """The claim with one more reason not to call the agent."""
        return replace(self, facts=replace(self.facts, blocked={**self.facts.blocked, reason: detail}))


class _AnyEntry:
    """What an agent's heartbeat and a cron job have in common: their keys, and an agent that runs call.

    An entry never changes, and each run asks it dozens of times, so what it derives from its spec is kept.
    """

    kind: ClassVar[Kind]
    spec: Heartbeat | Job

    @property
    def agent(self) -> Agent | None:
        """The agent that runs call; None for a job without a prompt."""
        raise NotImplementedError

    @cached_property
    def name(self) -> str:
        return self.spec.name

    @cached_property
    def key(self) -> Key:
        return self.kind, self.name

    @property
    def label(self) -> str:
        """Its name with its kind: agent/NAME or cron/NAME."""
        return self.kind.label_of(self.name)

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

    @cached_property
    def deliver(self) -> tuple[str, ...]:
        return self.spec.deliver

    @property
    def problems_deliver(self) -> tuple[str, ...]:
        """Where its failures are sent."""
        return self.spec.problems_deliver or self.spec.deliver

    @cached_property
    def after(self) -> After | None:
        """The job after which it runs; None if it has times of its own."""
        return self.spec.after if isinstance(self.spec, Job) else None

    @cached_property
    def lane(self) -> str | None:
        """The agent whose lock a run takes; None if it runs no agent."""
        return self.agent.name if self.agent else None

    @cached_property
    def precheck(self) -> Precheck | None:
        return self.agent.precheck if self.agent else None

    @cached_property
    def model(self) -> str | None:
        return self.agent.model if self.agent else None

    @cached_property
    def models(self) -> tuple[Circuit, ...]:
        """The models that it calls at providers of the config."""
        return circuits_of(*self.agent.called) if self.agent else ()

    @cached_property
    def alternatives(self) -> tuple[tuple[Circuit, ...], ...]:
        """The circuits that must work for it to run without a fallback, and with each of its fallbacks."""
        called = self.agent.alternatives if self.agent else ((),)
        return tuple((*required_circuits(circuits_of(*calls)), *accounts_of(*calls)) for calls in called)

    @cached_property
    def circuits(self) -> tuple[Circuit, ...]:
        """The circuits that it uses: each provider, and each model there, and the accounts of its programs."""
        return tuple(dict.fromkeys(circuit for circuits in self.alternatives for circuit in circuits))

    @property
    def programs(self) -> tuple[CommandRunner | None, ...]:
        """The program that it calls without a fallback, and with each fallback; None: it is none."""
        if self.agent is None:
            return (None,)
        runners = (self.agent.runner, *(each.runner for each in self.agent.fallbacks))
        return tuple(runner if isinstance(runner, CommandRunner) else None for runner in runners)

    def is_day_off(self, now: datetime) -> bool:
        """Whether its calendars exclude the day of `now`."""
        return not self.spec.calendars.open_at(now)

    def answer_text(self, result: AttemptResult) -> str:
        """The answer of a run as it is delivered: without reasoning, and with a note if it was cut."""
        text = without_reasoning(result.text or "", strip_reasoning=self.spec.strip_reasoning, truncated=result.truncated)
        return with_cut_note(text, truncated=result.truncated)


@dataclass(frozen=True)
class HeartbeatEntry(_AnyEntry):
    """A heartbeat as an entry of the queue."""

    spec: Heartbeat

    kind = Kind.HEARTBEAT
    catch_up = True
    starts_at_boot = False
    agents_to_wake = ()

    @cached_property
    def agent(self) -> Heartbeat:
        return self.spec

    @property
    def schedule_text(self) -> str:
        return entry_schedule.heartbeat_schedule_text(self.spec)

    @property
    def retries_after_crash(self) -> bool:
        """Not if a tool of the interrupted run may have changed something: the run would change it again."""
        models = (runner for runner, _ in self.spec.called if isinstance(runner, ModelRunner))
        return not any(runner.tools and runner.tools.may_change_things for runner in models)

    @cached_property
    def reporter(self) -> Agent:
        return self.spec

    @property
    def session_keep(self) -> int:
        return self.spec.session_keep

    @property
    def dedup_window(self) -> timedelta:
        return self.spec.dedup_window

    def checklist_remarks(self) -> tuple[str, ...]:
        """Lines of its present checklist that look like an item annotation and are none."""
        text = load_checklist(self.spec)
        return () if isinstance(text, Skip) else parse_checklist(text).remarks

    @cached_property
    def _open_times(self) -> HoursAndDays:
        return HoursAndDays(self.spec.hours, self.spec.calendars)

    def is_open_at(self, now: datetime) -> bool:
        """Whether it may run at `now` according to its calendars and active hours."""
        return self._open_times.open_at(now)

    def opens_at(self, now: datetime) -> datetime | None:
        """From when on it may run according to its calendars and active hours, `now` or later; None: not within two years."""
        return first_open(self._open_times, now)

    def closes_at(self, now: datetime) -> datetime | None:
        """When its present window or day ends; None if neither ends within two years."""
        return first_closed(self._open_times, now)

    def message_digest(self, message: str) -> str:
        """The hash by which equal messages are recognized as duplicates."""
        return verdict.message_digest(message, self.spec.dedup_normalize)

    def wakes_caused_by(self, result: AttemptResult) -> tuple[Wake, ...]:
        """A heartbeat wakes no other agent."""
        return ()


@dataclass(frozen=True)
class JobEntry(_AnyEntry):
    """A cron job as an entry of the queue; `agent` is the agent that its prompt is for, if it has one."""

    spec: Job
    agent: Agent | None = None

    kind = Kind.CRON
    session_keep = 0
    dedup_window = timedelta()  # every output is delivered

    @property
    def schedule_text(self) -> str:
        """Its schedule in canonical form: equal texts mean equal slots."""
        return entry_schedule.job_schedule_text(self.spec)

    @property
    def catch_up(self) -> bool:
        """Whether a slot that passed while the daemon was down or the machine asleep still starts."""
        return self.spec.misfire == "latest"

    @property
    def retries_after_crash(self) -> bool:
        return self.spec.rerun_after_crash

    @cached_property
    def reporter(self) -> Agent | None:
        """The settings of an agent whose findings become problems; None for a job whose answers are texts."""
        return self.agent if self.agent and self.agent.answer == "structured" else None

    @property
    def starts_at_boot(self) -> bool:
        return self.spec.reboot

    def checklist_remarks(self) -> tuple[str, ...]:
        """A job has no checklist."""
        return ()

    def is_open_at(self, now: datetime) -> bool:
        """A job has no active hours. A run that was due on a permitted day may start or continue later."""
        return True

    def opens_at(self, now: datetime) -> datetime | None:
        """A job may run at any time."""
        return now

    def closes_at(self, now: datetime) -> datetime | None:
        """A job has no active hours."""
        return None

    def message_digest(self, message: str) -> str:
        return hashlib.sha256(message.encode(errors="replace")).hexdigest()

    @property
    def agents_to_wake(self) -> tuple[str, ...]:
        """The agents whose heartbeat a run of it may wake at once."""
        return self.spec.wake_heartbeat if self.spec.wake_mode == "now" else ()

    def wakes_caused_by(self, result: AttemptResult) -> tuple[Wake, ...]:
        """The wakes that this result causes, with their texts; none if a user has cancelled the run."""
        if result.outcome in WAKES_NOBODY or result.reason is Reason.CANCELLED:
            return ()
        if not wakes_after(self.spec, result.outcome in ANSWERED):
            return ()
        output = self.answer_text(result) if self.agent else result.text
        printed = output or result.error or ""
        if output and result.reason is Reason.POSTCHECK:
            printed = f"{output.rstrip()}\npostcheck: {result.error}"
        text = format_wake_text(self.spec, result.outcome, result.exit_code, printed)
        urgent = self.spec.wake_mode == "now"
        return tuple(
            Wake(name, source="cron", sender=self.spec.name, text=text, outcome=result.outcome, urgent=urgent)
            for name in self.spec.wake_heartbeat
        )


Entry = HeartbeatEntry | JobEntry

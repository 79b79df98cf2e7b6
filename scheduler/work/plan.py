"""Makes a plan of the settings: one entry for each agent and job."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from cron.job import Job, format_wake_text, wakes_after
from heartbeat import verdict
from heartbeat.calendars import HoursAndDays
from heartbeat.checklist import parse_checklist
from heartbeat.checks import load_checklist
from heartbeat.hours import first_closed, first_open
from heartbeat.spec import Agent, Called, CommandRunner, Heartbeat, ModelRunner, Precheck
from scheduler.model import entry_schedule
from scheduler.model.circuit import Circuit, accounts_of, circuits_of, required_circuits
from scheduler.model.config_changes import StoredConfig
from scheduler.model.entry import Claim, Entry, Key
from scheduler.model.outcome import ANSWERED, AttemptResult, Kind, Outcome, Reason, Skip
from scheduler.model.settings import Settings
from scheduler.model.wake import Wake

WAKES_NOBODY = frozenset({Outcome.SKIPPED, Outcome.ASYNC})  # there is no result, or not yet


@dataclass(frozen=True, slots=True)
class HeartbeatEntry(Entry):
    """A heartbeat as an entry of the queue."""

    spec: Heartbeat

    kind = Kind.HEARTBEAT
    catch_up = True
    starts_at_boot = False
    agents_to_wake = ()

    @property
    def schedule_text(self) -> str:
        return entry_schedule.heartbeat_schedule_text(self.spec)

    @property
    def retries_after_crash(self) -> bool:
        """Not if a tool of the interrupted run may have changed something: the run would change it again."""
        models = (runner for runner, _ in self.spec.called if isinstance(runner, ModelRunner))
        return not any(runner.tools and runner.tools.may_change_things for runner in models)

    @property
    def precheck(self) -> Precheck | None:
        return self.spec.precheck

    @property
    def reporter(self) -> Heartbeat:
        return self.spec

    @property
    def model(self) -> str | None:
        return self.spec.model

    @property
    def models(self) -> tuple[Circuit, ...]:
        return circuits_of(*self.spec.called)

    @property
    def alternatives(self) -> tuple[tuple[Circuit, ...], ...]:
        return tuple(_needed_circuits(calls) for calls in self.spec.alternatives)

    @property
    def programs(self) -> Mapping[str | None, CommandRunner | None]:
        return _programs(self.spec)

    @property
    def lane(self) -> str:
        return self.spec.name

    @property
    def session_keep(self) -> int:
        return self.spec.session_keep

    @property
    def dedup_window(self) -> timedelta:
        return self.spec.dedup_window

    def checklist_remarks(self) -> tuple[str, ...]:
        text = load_checklist(self.spec)
        return () if isinstance(text, Skip) else parse_checklist(text).remarks

    @property
    def open_times(self) -> HoursAndDays:
        return HoursAndDays(self.spec.hours, self.spec.calendars)

    def is_open_at(self, now: datetime) -> bool:
        return self.open_times.open_at(now)

    def opens_at(self, now: datetime) -> datetime | None:
        return first_open(self.open_times, now)

    def closes_at(self, now: datetime) -> datetime | None:
        return first_closed(self.open_times, now)

    def message_digest(self, message: str) -> str:
        return verdict.message_digest(message, self.spec.dedup_normalize)

    def wakes_caused_by(self, claim: Claim, result: AttemptResult) -> tuple[Wake, ...]:
        """A heartbeat wakes no other agent."""
        return ()


@dataclass(frozen=True, slots=True)
class JobEntry(Entry):
    """A cron job as an entry of the queue; `agent` is the agent that its prompt is for, if it has one."""

    spec: Job
    agent: Agent | None = None

    kind = Kind.CRON
    session_keep = 0
    dedup_window = timedelta()  # every output is delivered

    @property
    def schedule_text(self) -> str:
        return entry_schedule.job_schedule_text(self.spec)

    @property
    def catch_up(self) -> bool:
        return self.spec.misfire == "latest"

    @property
    def retries_after_crash(self) -> bool:
        return self.spec.rerun_after_crash

    @property
    def precheck(self) -> Precheck | None:
        return self.agent.precheck if self.agent else None

    @property
    def reporter(self) -> Agent | None:
        return self.agent if self.agent and self.agent.answer == "structured" else None

    @property
    def model(self) -> str | None:
        return self.agent.model if self.agent else None

    @property
    def models(self) -> tuple[Circuit, ...]:
        return circuits_of(*self.agent.called) if self.agent else ()

    @property
    def alternatives(self) -> tuple[tuple[Circuit, ...], ...]:
        return tuple(_needed_circuits(calls) for calls in self.agent.alternatives) if self.agent else ((),)

    @property
    def programs(self) -> Mapping[str | None, CommandRunner | None]:
        return _programs(self.agent) if self.agent else {None: None}

    @property
    def lane(self) -> str | None:
        return self.agent.name if self.agent else None

    @property
    def starts_at_boot(self) -> bool:
        return self.spec.reboot

    def is_open_at(self, now: datetime) -> bool:
        """A job has no active hours. A run that was due on a permitted day may start or continue later."""
        return True

    def opens_at(self, now: datetime) -> datetime:
        """A job may run at any time."""
        return now

    def closes_at(self, now: datetime) -> None:
        """A job has no active hours."""

    def message_digest(self, message: str) -> str:
        return hashlib.sha256(message.encode(errors="replace")).hexdigest()

    @property
    def agents_to_wake(self) -> tuple[str, ...]:
        return self.spec.wake_heartbeat if self.spec.wake_mode == "now" else ()

    def wakes_caused_by(self, claim: Claim, result: AttemptResult) -> tuple[Wake, ...]:
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


def _programs(agent: Heartbeat | Agent) -> dict[str | None, CommandRunner | None]:
    runners = [(None, agent.runner), *((each.name, each.runner) for each in agent.fallbacks)]
    return {name: runner if isinstance(runner, CommandRunner) else None for name, runner in runners}


def _needed_circuits(called: tuple[Called, ...]) -> tuple[Circuit, ...]:
    return (*required_circuits(circuits_of(*called)), *accounts_of(*called))


@dataclass(frozen=True, slots=True)
class Plan:
    """What the daemon runs by: the settings, one entry for each agent and job, the jobs that may wake each agent at once, and the
    jobs that follow each job.
    """

    settings: Settings
    entries: Mapping[Key, Entry]
    jobs_by_woken_agent: Mapping[str, Sequence[str]]
    following_jobs: Mapping[str, Sequence[Entry]]  # those that run after a job, by its name
    stored_config: StoredConfig | None = None
    has_deliver_hours: bool = False  # some recipients do not get messages at any time
    limited_accounts: Mapping[str, Sequence[Entry]] = field(default_factory=dict)  # the entries by account, if it has `max_runs`


def make_plan(settings: Settings, stored_config: StoredConfig | None = None) -> Plan:
    """The plan for valid settings; pure, so that it can fail without touching anything.

    `stored_config` is the copy of the config that the engine keeps in the database once the plan is active.
    """
    jobs = (JobEntry(job, settings.job_agents.get(name)) for name, job in settings.jobs.items())
    entries: list[Entry] = [*map(HeartbeatEntry, settings.heartbeats.values()), *jobs]
    by_key, has_hours = (
        {(entry.kind, entry.name): entry for entry in entries},
        any(each.spec.deliver_hours or each.spec.problems_hours for each in entries),
    )
    return Plan(settings, by_key, _wakers(entries), _followers(entries), stored_config, has_hours, _limited_accounts(entries))


def _limited_accounts(entries: list[Entry]) -> dict[str, list[Entry]]:
    limited: set[str | None] = set()
    found: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        programs = [program for program in entry.programs.values() if program is not None]
        limited |= {program.account for program in programs if program.max_runs is not None}
        for account in dict.fromkeys(program.account for program in programs if program.account is not None):
            found[account].append(entry)
    return {account: using for account, using in found.items() if account in limited}


def _wakers(entries: list[Entry]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for entry in entries:
        for agent in entry.agents_to_wake:
            found[agent].append(entry.name)
    return dict(found)


def _followers(entries: list[Entry]) -> dict[str, list[Entry]]:
    found: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry.after is not None:
            found[entry.after.job].append(entry)
    return dict(found)

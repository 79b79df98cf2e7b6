"""Makes a plan of the settings: one entry for each agent and job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import timedelta

from scheduler.model.config_changes import StoredConfig
from scheduler.model.entry import Entry, HeartbeatEntry, JobEntry
from scheduler.model.outcome import Key
from scheduler.model.settings import Settings


@dataclass(frozen=True, slots=True)
class Plan:
    """What the daemon runs by: the settings, one entry for each agent and job, the jobs that may wake each agent at once, the
    jobs that follow each job, and the jobs whose last outputs others get.
    """

    settings: Settings
    entries: Mapping[Key, Entry]
    jobs_by_woken_agent: Mapping[str, Sequence[str]]
    following_jobs: Mapping[str, Sequence[Entry]]  # those that run after a job, by its name
    stored_config: StoredConfig | None = None
    has_deliver_hours: bool = False  # some recipients do not get messages at any time
    named_jobs: frozenset[str] = frozenset()  # in `previous` of a job
    account_limits: Mapping[str, Set[tuple[int, timedelta]]] = field(default_factory=dict)  # each `max_runs` of an account


def make_plan(settings: Settings, stored_config: StoredConfig | None = None) -> Plan:
    """The plan for valid settings; pure, so that it can fail without touching anything.

    `stored_config` is the copy of the config that the engine keeps in the database once the plan is active.
    """
    jobs = (JobEntry(job, settings.job_agents.get(name)) for name, job in settings.jobs.items())
    entries: list[Entry] = [*map(HeartbeatEntry, settings.heartbeats.values()), *jobs]
    woken_by, followed_by = defaultdict[str, list[str]](list), defaultdict[str, list[Entry]](list)
    for entry in entries:
        for agent in entry.agents_to_wake:
            woken_by[agent].append(entry.name)
        if entry.after is not None:
            followed_by[entry.after.job].append(entry)
    return Plan(
        settings,
        {entry.key: entry for entry in entries},
        dict(woken_by),
        dict(followed_by),
        stored_config,
        any(each.spec.deliver_hours or each.spec.problems_hours for each in entries),
        frozenset(name for job in settings.jobs.values() for name in job.previous),
        _account_limits(entries),
    )


def _account_limits(entries: list[Entry]) -> dict[str, set[tuple[int, timedelta]]]:
    found = defaultdict[str, set[tuple[int, timedelta]]](set)
    for program in (program for entry in entries for program in entry.programs):
        if program is not None and program.account is not None and program.max_runs is not None:
            found[program.account].add(program.max_runs)
    return dict(found)

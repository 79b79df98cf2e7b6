"""Makes a plan of the settings: one entry for each agent and job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduler.model.config_changes import StoredConfig
from scheduler.model.entry import Entry, Key
from scheduler.model.settings import Settings
from scheduler.work.cronjobs import JobEntry
from scheduler.work.heartbeats import HeartbeatEntry


@dataclass(frozen=True, slots=True)
class Plan:
    """What the daemon runs by: the settings, one entry for each agent and job, and the jobs that may wake each agent at once."""

    settings: Settings
    entries: Mapping[Key, Entry]
    jobs_by_woken_agent: Mapping[str, Sequence[str]]
    stored_config: StoredConfig | None = None


def make_plan(settings: Settings, stored_config: StoredConfig | None = None) -> Plan:
    """The plan for valid settings; pure, so that it can fail without touching anything.

    `stored_config` is the copy of the config that the engine keeps in the database once the plan is active.
    """
    jobs = (JobEntry(job, settings.job_agents.get(name)) for name, job in settings.jobs.items())
    entries: list[Entry] = [*map(HeartbeatEntry, settings.heartbeats.values()), *jobs]
    return Plan(settings, {(entry.kind, entry.name): entry for entry in entries}, _wakers(entries), stored_config)


def _wakers(entries: list[Entry]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for entry in entries:
        for agent in entry.agents_to_wake:
            found[agent].append(entry.name)
    return dict(found)

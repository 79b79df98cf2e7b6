"""Makes a plan of the settings: one entry for each agent and job. Compares the settings of two plans."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import chain

from cron.job import Job
from heartbeat.spec import Heartbeat
from scheduler.model.budget import Budget
from scheduler.model.config_changes import StoredConfig
from scheduler.model.entry import Entry, Key
from scheduler.model.outcome import Kind
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


@dataclass(frozen=True, slots=True)
class ConfigChanges:
    """What a reload changes, in the user's words: entries by `kind/name`, with the keys that changed."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unchanged: int = 0

    def lines(self) -> list[str]:
        """One line per entry, or one line that says that nothing changed."""
        changes = [
            *(f"added {name}" for name in self.added),
            *(f"removed {name}" for name in self.removed),
            *(": ".join(("changed " + name, *filter(None, [", ".join(keys)]))) for name, keys in self.changed.items()),
        ]
        return changes or ["nothing changed"]


PARTS = ("zone", "state", "server", "limits", "history", "channels", "prices", "deadman", "reload")


def compare_settings(old: Settings, new: Settings) -> ConfigChanges:
    """What `new` changes against `old`."""
    before, after = _named(old), _named(new)
    whole = {part: (getattr(old, part), getattr(new, part)) for part in PARTS}
    both = whole | {name: (before[name], after[name]) for name in sorted(before.keys() & after.keys())}
    changed = {name: _keys(was, now) for name, (was, now) in both.items() if was != now}
    for name in before.keys() & after.keys():
        if _budget(old, name) != _budget(new, name):
            changed[name] = (*changed.get(name, ()), "budget")
    return ConfigChanges(
        added=tuple(sorted(after.keys() - before.keys())),
        removed=tuple(sorted(before.keys() - after.keys())),
        changed=changed,
        unchanged=sum(name in after and name not in changed for name in before),
    )


def _named(settings: Settings) -> dict[str, Heartbeat | Job]:
    agents = ((f"agent/{name}", beat) for name, beat in settings.heartbeats.items())
    jobs = ((f"cron/{name}", job) for name, job in settings.jobs.items())
    return dict(chain(agents, jobs))


def _budget(settings: Settings, name: str) -> tuple[Budget | None, float | None, int | None]:
    """The entry's own bounds, of a day and of a run; `name` as it is shown."""
    kind, _, bare = name.partition("/")
    allowance = settings.allowances.get((Kind.CRON if kind == "cron" else Kind.HEARTBEAT, bare))
    return (allowance.own, allowance.usd_per_run, allowance.tokens_per_run) if allowance else (None, None, None)


def _keys(old: object, new: object) -> tuple[str, ...]:
    """The keys under which two values differ; none where the value is one thing."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return tuple(sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key)))
    if not is_dataclass(old) or new is None:
        return ()
    return tuple(field.name for field in fields(old) if getattr(old, field.name) != getattr(new, field.name))

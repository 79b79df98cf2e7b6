"""A plan: the settings as entries of the due-queue, and what changes from one plan to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import chain

from cron.job import Job
from heartbeat.spec import Heartbeat
from scheduler.cronjobs import JobEntry
from scheduler.entry import Entry, Key
from scheduler.heartbeats import HeartbeatEntry
from scheduler.settings import Settings


@dataclass(frozen=True, slots=True)
class Plan:
    """What the daemon runs by: the settings, and one entry for each agent and job."""

    settings: Settings
    entries: Mapping[Key, Entry]


def make(settings: Settings) -> Plan:
    """The plan for valid settings; pure, so that it can fail without touching anything."""
    entries: list[Entry] = [*map(HeartbeatEntry, settings.heartbeats.values()), *map(JobEntry, settings.jobs.values())]
    return Plan(settings, {(entry.kind, entry.name): entry for entry in entries})


@dataclass(frozen=True, slots=True)
class Diff:
    """What a reload changes, in the user's words: entries by `kind/name`, with the keys that changed."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: Mapping[str, tuple[str, ...]] | None = None
    unchanged: int = 0

    def lines(self) -> list[str]:
        """One line per entry, or one line that says that nothing changed."""
        told = [
            *(f"added {name}" for name in self.added),
            *(f"removed {name}" for name in self.removed),
            *(f"changed {name}: {', '.join(keys)}" for name, keys in (self.changed or {}).items()),
        ]
        return told or ["nothing changed"]


def diff(old: Settings, new: Settings) -> Diff:
    """What `new` changes against `old`."""
    before, after = _named(old), _named(new)
    changed = {name: keys for name in before.keys() & after.keys() if (keys := _changed(before[name], after[name]))}
    for part in ("zone", "state", "server", "limits", "history", "channels"):
        if getattr(old, part) != getattr(new, part):
            changed[part] = _changed(getattr(old, part), getattr(new, part)) or ("*",)
    return Diff(
        added=tuple(sorted(after.keys() - before.keys())),
        removed=tuple(sorted(before.keys() - after.keys())),
        changed=dict(sorted(changed.items())),
        unchanged=sum(name in after and name not in changed for name in before),
    )


def _named(settings: Settings) -> dict[str, Heartbeat | Job]:
    agents = ((f"agent/{name}", beat) for name, beat in settings.heartbeats.items())
    jobs = ((f"cron/{name}", job) for name, job in settings.jobs.items())
    return dict(chain(agents, jobs))


def _changed(old: object, new: object) -> tuple[str, ...]:
    if not hasattr(type(old), "__dataclass_fields__"):
        return ()
    names = (field.name for field in fields(old))  # type: ignore[arg-type]
    return tuple(name for name in names if getattr(old, name) != getattr(new, name))

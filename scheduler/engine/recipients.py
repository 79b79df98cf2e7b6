"""Recipients: to whom notices of an entry go, and who gets them instead while a channel is dead."""

from __future__ import annotations

from scheduler.channels import target_urls
from scheduler.engine.tick import Tick
from scheduler.model.entry import Entry
from scheduler.model.settings import LAST_TARGET, LOG_CHANNEL, Target
from scheduler.store import incidents, targets


def resolve_targets(tick: Tick, deliver: tuple[str, ...], agent: str | None) -> tuple[Target, ...]:
    """Where messages about an agent go now; `last` in `deliver` leads nowhere while no target of the agent is known."""
    channels = tick.plan.settings.channels
    last = targets.last_target(tick.tx.db, channels, agent) if LAST_TARGET in deliver else None
    return target_urls.resolve_targets(channels, deliver, last)


def is_last_target_unknown(tick: Tick, deliver: tuple[str, ...], agent: str | None) -> bool:
    """Whether `deliver` names `last`, and no target of the agent is known."""
    return LAST_TARGET in deliver and targets.last_target(tick.tx.db, tick.plan.settings.channels, agent) is None


def notice_targets(tick: Tick, entry: Entry) -> tuple[Target, ...]:
    """Who is notified of what happens to an entry; where all of their channels are dead, somebody else."""
    wished, dead = entry.on_failure.deliver, incidents.dead_targets(tick.tx.db)
    alive = tuple(target for target in resolve_targets(tick, wished, entry.lane) if target not in dead)
    return alive or (substitute_target(tick, wished, dead),)


def target_or_substitute(tick: Tick, target: Target) -> Target:
    """A target that was notified before, or somebody else if its channel is dead or no longer declared."""
    dead, declared = incidents.dead_targets(tick.tx.db), (LOG_CHANNEL, *tick.plan.settings.channels)
    is_alive = target not in dead and target.channel in declared
    return target if is_alive else substitute_target(tick, (), dead)


def substitute_target(tick: Tick, wished: tuple[str, ...], dead: frozenset[Target]) -> Target:
    """A channel that works as far as we know: of those that are wished, else any that is declared, else the log."""
    declared = tick.plan.settings.channels
    usable = (name for name in (*wished, *declared) if name in declared and Target(name) not in dead and declared[name].is_usable)
    return Target(next((name for name in usable if name != LOG_CHANNEL), LOG_CHANNEL))

"""Carries out the requests of the daemon's own parts to its engine: a new config, and what the other threads have found out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.engine import budget_reservations, daemon_problems, plan_sync, wake_starts
from scheduler.engine.tick_items import Tick
from scheduler.model.config_changes import ConfigEvent
from scheduler.model.entry import Claim
from scheduler.model.events import SettingsApplied
from scheduler.store import boots, breakers, config_history, runs
from scheduler.work.plan import Plan


@dataclass(frozen=True, slots=True)
class AdoptPlan:
    """Apply a new, valid plan. `event` is the record of the reload."""

    plan: Plan
    event: ConfigEvent | None = None

    def apply(self, tick: Tick) -> None:
        """The entry rows are made to agree with the plan in the same transaction."""
        before = tick.plan
        tick.adopt_plan(self.plan)
        plan_sync.sync_entries(tick, before.entries)
        budget_reservations.adopt_budgets(tick.tx, self.plan.settings)
        budget_reservations.record_budgets(tick.tx, self.plan.settings)
        boots.record_config(tick.tx)
        daemon_problems.note(tick, daemon_problems.CONFIG, None)
        if self.plan.stored_config:
            config_history.record_config_in_force(tick.tx, self.plan.stored_config)
        if self.event:
            config_history.record_config_event(tick.tx, self.event)
        breakers.allow_probes_now(tick.tx)
        wake_starts.retry_blocked_runs_and_wakes(tick, other_config=True)
        tick.tx.report(SettingsApplied(self.plan.settings))


@dataclass(frozen=True, slots=True)
class NoteRejectedConfig:
    """Record that a changed config was rejected, and who requested the reload. `is_new` False: it was recorded before."""

    problem: str
    by: str
    is_new: bool = True

    def apply(self, tick: Tick) -> None:
        """Record it, and notify the default channel if the last config was not rejected."""
        daemon_problems.note(tick, daemon_problems.CONFIG, self.problem.replace(f"{tick.plan.settings.path.parent}/", ""))
        if self.is_new:
            config_history.record_config_event(tick.tx, ConfigEvent("refused", self.by, problem=self.problem))


@dataclass(frozen=True, slots=True)
class NoteEditedChecklist:
    """Record an edit of a checklist."""

    event: ConfigEvent

    def apply(self, tick: Tick) -> None:
        """Record it. Nothing else changes."""
        config_history.record_config_event(tick.tx, self.event)


@dataclass(frozen=True, slots=True)
class NoteWorkersOfRuns:
    """Record which workers execute runs in progress."""

    workers: Sequence[tuple[Claim, str]]

    def apply(self, tick: Tick) -> None:
        """Record them in the runs that still belong to their claims. Nothing else changes."""
        for claim, worker in self.workers:
            runs.record_worker(tick.tx, claim, worker)


@dataclass(frozen=True, slots=True)
class NoteDeadmanProblem:
    """Record why pings to the dead man's switch do not arrive, or (None) that they arrive again, for status."""

    problem: str | None

    def apply(self, tick: Tick) -> None:
        """Record it. Nothing else changes."""
        boots.record_deadman_problem(tick.tx, self.problem)


@dataclass(frozen=True, slots=True)
class NoteDaemonProblem:
    """Record why a part of the daemon does not work, or (None) that it does."""

    key: str
    problem: str | None

    def apply(self, tick: Tick) -> None:
        """Record it, and notify the default channel if that is news."""
        daemon_problems.note(tick, self.key, self.problem)

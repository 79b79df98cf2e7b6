"""What people and programs may ask of the daemon: wake, run, pause, resume, hold a lane, a new config."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scheduler.config.file.wording import suggest
from scheduler.engine import budget_reservations, plan_sync, planning, wake_retries, wake_starts
from scheduler.engine.inbox import Refused
from scheduler.engine.turn import Turn
from scheduler.model.entry import Key
from scheduler.model.events import Adopted
from scheduler.model.outcome import Kind, Skip, Trigger
from scheduler.model.wake import Wake
from scheduler.store import boots, breakers, entries, lane_holds, runs, targets, wakes
from scheduler.store.entries import Standing
from scheduler.store.targets import Target
from scheduler.work.plan import Diff, Plan, diff


@dataclass(frozen=True, slots=True)
class WakeAgent:
    """Wake an agent. `cause` is the mark of the run in which this was asked, if it was asked in one. Answers the wake's id."""

    wake: Wake
    cause: str | None = None

    def apply(self, turn: Turn) -> int:
        """A wake that the agent's own open run causes is refused: it would feed itself for ever."""
        standing = _declared(turn, Kind.HEARTBEAT, self.wake.name)
        if standing.state != "active":
            runs.skip(turn, standing, Trigger(self.wake.source), Skip.DISABLED, turn.now)
            raise Refused(Skip.DISABLED, f"agent {self.wake.name!r} is disabled in {turn.plan.settings.path.name}")
        run = entries.open_run(turn.db, Kind.HEARTBEAT, self.wake.name)
        if run is not None and self.cause == f"{run.owner}/{run.run_id}":
            wakes.reject(turn, self.wake)
            raise Refused("own_run", f"agent {self.wake.name!r} cannot wake itself from within its own run")
        return wake_starts.ask(turn, standing, self.wake)


@dataclass(frozen=True, slots=True)
class RunJob:
    """Run a cron job now, beside its schedule. Answers the id under which its run can be followed."""

    name: str
    source: Trigger

    def apply(self, turn: Turn) -> int:
        """A job that is disabled, paused or running is not run, which is a skip with its row."""
        standing = _declared(turn, Kind.CRON, self.name)
        obstacle = _obstacle(turn, standing)
        if obstacle is not None:
            runs.skip(turn, standing, self.source, obstacle, turn.now)
            raise Refused(obstacle, f"cron job {self.name!r} is {WORDS[obstacle]}")
        return wake_starts.ask(turn, standing, Wake(self.name, source=self.source, sender=self.source, kind=Kind.CRON))


WORDS = {Skip.DISABLED: "disabled in the config", Skip.PAUSED: "paused; resume it first", Skip.ALREADY_RUNNING: "running already"}


def _obstacle(turn: Turn, standing: Standing) -> Skip | None:
    if standing.state != "active":
        return Skip.DISABLED
    if standing.paused:
        return Skip.PAUSED
    running = entries.open_run(turn.db, standing.kind, standing.name) is not None
    return Skip.ALREADY_RUNNING if running else None


@dataclass(frozen=True, slots=True)
class Pause:
    """Pause one entry, or all of them (`key` None), until a time or until resumed. Answers their names."""

    key: Key | None
    until: datetime | None

    def apply(self, turn: Turn) -> list[str]:
        """What came due before the pause keeps its own reason."""
        chosen = list(_chosen(turn, self.key))
        for standing in chosen:
            booked = standing if standing.paused else planning.book_passed(turn, standing, Skip.MISSED)
            planning.replan(turn, standing, booked._replace(paused_until=self.until or entries.UNTIL_RESUMED))
        return [_full_name(standing) for standing in chosen]


@dataclass(frozen=True, slots=True)
class Resume:
    """Resume one entry, or all of them (`key` None). Answers the names of those that were paused."""

    key: Key | None

    def apply(self, turn: Turn) -> list[str]:
        """The slots of the pause get one row with their number."""
        paused = [standing for standing in _chosen(turn, self.key) if standing.paused]
        for standing in paused:
            planning.replan(turn, standing, planning.resume(turn, standing, turn.now))
        return [_full_name(standing) for standing in paused]


@dataclass(frozen=True, slots=True)
class Note:
    """Note whom an agent has just been spoken with, and what waits there; None: as it was. Answers what is known then."""

    name: str
    target: Target | None = None
    title: str | None = None
    queue: int | None = None
    approvals: int | None = None

    def apply(self, turn: Turn) -> dict[str, Any]:
        """Only a target that messages can go to is taken, and nothing else with one that is not."""
        standing = _declared(turn, Kind.HEARTBEAT, self.name)
        if self.target is not None:
            try:
                targets.check(turn.plan.settings.channels, self.target)
            except ValueError as error:
                raise Refused("bad_request", str(error)) from None
            targets.note(turn, self.name, self.target, self.title)
        noted = self._counted(turn, standing)
        entries.save(turn, standing, noted)
        last = next(iter(targets.known(turn.db, self.name)), None)
        return {"last": last, "queue": noted.queue, "pending_approvals": noted.approvals}

    def _counted(self, turn: Turn, standing: Standing) -> Standing:
        if self.queue is None and self.approvals is None:
            return standing
        queue = standing.queue if self.queue is None else self.queue
        approvals = standing.approvals if self.approvals is None else self.approvals
        return standing._replace(queue=queue, approvals=approvals, active_at=turn.now)


@dataclass(frozen=True, slots=True)
class Hold:
    """Hold an agent's lane until a time, under an id; asked again, that moves the time. Answers the run in progress, or None."""

    name: str
    holder: str
    until: datetime

    def apply(self, turn: Turn) -> int | None:
        """A beat in progress goes on: whoever holds the lane has it once that has ended."""
        standing = _declared(turn, Kind.HEARTBEAT, self.name)
        if not lane_holds.put(turn, self.name, self.holder, self.until):
            raise Refused("too_many", f"{lane_holds.MOST} others hold the lane of agent {self.name!r}")
        run = entries.open_run(turn.db, standing.kind, standing.name)
        return run.run_id if run is not None and run.state == "running" else None


@dataclass(frozen=True, slots=True)
class LetGo:
    """Let go of an agent's lane; for one who does not hold it there is nothing to do."""

    name: str
    holder: str

    def apply(self, turn: Turn) -> None:
        """What waits for the lane need not wait for its next look."""
        _declared(turn, Kind.HEARTBEAT, self.name)
        lane_holds.drop(turn, self.name, self.holder)
        if lane_holds.is_held(turn, self.name):
            return
        for kind, name, _ in entries.open_runs(turn.db):
            entry = turn.plan.entries.get((kind, name))
            if entry is not None and entry.lane == self.name:
                planning.look_now(turn, entries.get(turn, kind, name), Skip.BUSY)


@dataclass(frozen=True, slots=True)
class Adopt:
    """Put a new plan in force; it was made before and cannot fail any more. Answers what it changes."""

    plan: Plan

    def apply(self, turn: Turn) -> Diff:
        """The standing rows follow the plan in the same transaction."""
        before, turn.plan = turn.plan, self.plan
        plan_sync.sync(turn, before.entries)
        budget_reservations.follow(turn)
        boots.adopt(turn)
        breakers.probe_all(turn)
        wake_retries.begin_anew(turn, other_config=True)
        turn.tell(Adopted(self.plan.settings))
        return diff(before.settings, self.plan.settings)


@dataclass(frozen=True, slots=True)
class Refuse:
    """Note that a changed config was refused, for those who ask how the daemon does."""

    problem: str

    def apply(self, turn: Turn) -> None:
        """Nothing else changes."""
        boots.refuse(turn, self.problem)


@dataclass(frozen=True, slots=True)
class NoteDeadman:
    """Note why pings to the dead man's switch do not arrive, or (None) that they do again, for those who ask."""

    problem: str | None

    def apply(self, turn: Turn) -> None:
        """Nothing else changes."""
        boots.note_deadman(turn, self.problem)


def _full_name(standing: Standing) -> str:
    """The name as people write it where an agent and a job bear the same one."""
    return f"{'agent' if standing.kind is Kind.HEARTBEAT else 'cron'}/{standing.name}"


def _declared(turn: Turn, kind: Kind, name: str) -> Standing:
    standing = entries.find(turn.db, kind, name)
    if standing is None or (kind, name) not in turn.plan.entries:
        what = "agent" if kind is Kind.HEARTBEAT else "cron job"
        others = [other for each, other in turn.plan.entries if each is kind]
        instead = suggest(name, others) or "; `heartbeatd status` lists them"
        raise Refused("not_found", f"no {what} {name!r} in {turn.plan.settings.path.name}{instead}")
    return standing


def _chosen(turn: Turn, key: Key | None) -> Iterable[Standing]:
    if key is not None:
        return [_declared(turn, *key)]
    return [standing for standing in entries.everything(turn.db) if (standing.kind, standing.name) in turn.plan.entries]

"""Says how each agent and job is in one word, and what is wrong now in one line: the verdict of `status` and of the page."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from heartbeat.words import format_count
from heartbeatd.answers import EntryStatus, Status, Verdict
from scheduler.insight.slot_history import cause_of_run
from scheduler.model.levels import Level
from scheduler.model.outcome import Skip
from scheduler.model.problem import CHANNEL


class Group(StrEnum):
    """What a user looks for among many agents or jobs. One may be in several groups."""

    PROBLEMS = "problems"
    ALERTS = "alerts"
    RUNNING = "running"
    QUIET = "quiet"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class EntryHealth:
    """How an agent or a job is, in one word. `rank` orders the agents: 0 is the worst. `groups` are those that it belongs to."""

    label: str
    rank: int
    groups: frozenset[Group]
    entry: EntryStatus

    @property
    def name(self) -> str:
        return self.entry.name


def read_states(entries: Iterable[EntryStatus]) -> list[EntryHealth]:
    """How each agent or job is, the worst first. `entries` are those of the status."""
    return sorted(map(_state_of, entries), key=lambda state: (state.rank, state.name))


def read_verdict(status: Status, at: Callable[[datetime], str], daemon: str = "") -> Verdict:
    """What is wrong now, from a status that is cut already. `at` formats times. `daemon` is what is wrong with the process.

    An acknowledged problem is left out, except in `failing` and `stopped`: the agent still fails, or is still stopped.
    """
    states = read_states(status.entries)
    failing, stopped = (sum(each.rank == rank for each in states) for rank in (0, 1))
    counted = {(each.entry.kind, each.name) for each in states if each.rank <= 1}
    new = [each for each in status.problems if each.state == "open" and not each.acknowledged_at]
    channels = {each.subject for each in new if each.subject.startswith(f"{CHANNEL}/")}
    # A failing or stopped agent is counted once: the problem that only says so is left out.
    others = [each for each in new if each.subject not in channels and (each.reported or (each.kind, each.name) not in counted)]
    given_up = sum(box.dead for box in status.outbox)
    parts = (
        daemon,
        f"{failing} failing" if failing else "",
        f"{stopped} stopped" if stopped else "",
        f"{format_count(len(channels), 'channel')} dead" if channels else "",
        format_count(len(others), "problem") if others else "",
        f"{format_count(given_up, 'message')} given up" if given_up else "",
    )
    wrong = ", ".join(filter(None, parts))
    started = (each.last_run.started_at for each in status.entries if each.last_run)
    last_run = max(filter(None, (*started, *(each.last_success_at for each in status.entries))), default=None)
    never = "last run skipped" if any(each.last_run for each in status.entries) else "nothing has run yet"
    is_bad = bool(daemon or failing or channels or given_up or any(each.severity == "critical" for each in others))
    return Verdict(
        level="bad" if is_bad else "warn" if wrong else "ok",
        failing=failing,
        stopped=stopped,
        dead_channels=len(channels),
        problems=len(others),
        given_up=given_up,
        last_run_at=last_run,
        says=f"{wrong or 'nothing is wrong'}; {f'last run {at(last_run)}' if last_run else never}",
    )


def _state_of(entry: EntryStatus) -> EntryHealth:
    last, trouble = entry.last_run, entry.failing
    level = cause_of_run(last.state, last.result, last.why, last.delivery).level if last else None
    failing = entry.consecutive_failures > 0 or (trouble is not None and trouble.why not in tuple(Skip))
    is_bad_now = entry.undelivered is not None or level in (Level.BAD, Level.LOST)
    is_problem = trouble is not None or (entry.state == "active" and is_bad_now)
    # A failed precheck alone does not stop an agent, unless `on_error: skip` is set.
    only_precheck_fails = trouble is not None and trouble.why == Skip.PRECHECK_FAILED and not is_bad_now
    has_alert = entry.alerting or entry.problems.reported > 0
    groups = {
        Group.PROBLEMS: failing or is_problem,
        Group.ALERTS: has_alert,
        Group.RUNNING: last is not None and last.state in ("running", "waiting"),
        Group.OFF: entry.state != "active" or entry.muted is not None,
    }
    found = frozenset(group for group, applies in groups.items() if applies)
    label: str = "failing" if failing else entry.state
    if label == "active":
        stopped = "budget spent" if trouble and trouble.why == Skip.BUDGET else "stopped"
        stopped = "precheck fails" if only_precheck_fails else stopped
        wrong = "undelivered" if entry.undelivered and trouble is None else stopped if is_problem else ""
        label = last.state if last and last.state != "closed" else wrong or ("alert" if has_alert else "ok")
    is_stopped, is_active = is_problem and not only_precheck_fails, entry.state == "active"
    ranks = (failing, 0), (is_stopped, 1), (has_alert or is_problem, 2), (is_active, 3), (True, 4)
    rank = next(rank for applies, rank in ranks if applies)
    return EntryHealth(label, rank, found or frozenset({Group.QUIET}), entry)

"""Describes all agents for an overview, problems first: one word for why each is quiet, and the results of its latest slots."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from heartbeat.spec import CommandRunner, Heartbeat, HttpRunner, ModelRunner
from heartbeatd.answers import BudgetUsage, EntryStatus
from scheduler.insight.obstacles import quiet_reasons
from scheduler.insight.reason_texts import RUNNING, Level, SlotCause, trouble_word
from scheduler.insight.schedule_texts import TimeFormat
from scheduler.insight.slot_history import cause_of_run
from scheduler.model import local_days
from scheduler.model.outcome import FAILURES, WORRYING_SKIPS, DeliveryState, Kind, Outcome, Skip, Suppression
from scheduler.model.settings import Settings
from scheduler.store import entries, fleet_records
from scheduler.store.fleet_records import DayCost, LatestAnswer, SlotRecord

STRIP_SLOTS = 48
ANSWER_LENGTH = 280  # characters of the latest answer on a card

NOT_RUN_YET = "new"


class Group(StrEnum):
    """What a user looks for among many agents. An agent may be in several groups."""

    PROBLEMS = "problems"
    ALERTS = "alerts"
    RUNNING = "running"
    QUIET = "quiet"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class AgentState:
    """The state of an agent. `word` is why it is quiet, or what it does; `text` says the same in a few words.

    `rank` orders the agents: 0 is the worst. `groups` are those that the agent belongs to.
    """

    name: str
    label: str
    word: str
    text: str
    rank: int
    groups: frozenset[Group]
    entry: EntryStatus

    @property
    def order(self) -> tuple[int, str]:
        """The place among all agents, for sorting: problems first, then by name."""
        return self.rank, self.name


@dataclass(frozen=True, slots=True)
class AgentCard:
    """All that a card shows. `quiet` is why the agent is quiet although it runs. `slots` are the latest levels, the oldest first.

    `budget` is the use of the daily limits, None without a budget or before the first run of the day.
    """

    state: AgentState
    model: str
    channels: tuple[str, ...]
    quiet: tuple[str, ...]
    answer: LatestAnswer | None
    slots: Sequence[Level]
    cost: DayCost
    budget: BudgetUsage | None
    timezone: str

    @property
    def slot_counts(self) -> list[tuple[Level, int]]:
        """How many of the slots had each level, without the levels that none had."""
        counts = Counter(self.slots)
        return [(level, counts[level]) for level in Level if counts[level]]


def read_states(entries: Iterable[EntryStatus], settings: Settings, now: datetime) -> list[AgentState]:
    """The state of each agent, the worst first. `entries` are the agents as the status has them."""
    heartbeats = settings.heartbeats
    return sorted((_state_of(each, heartbeats.get(each.name), now) for each in entries), key=lambda state: state.order)


def read_card(db: sqlite3.Connection, settings: Settings, state: AgentState, now: datetime) -> AgentCard:
    """The card of an agent."""
    heartbeat = settings.heartbeats.get(state.name)
    zone = heartbeat.zone if heartbeat else settings.zone
    today = local_days.whole_day(now.astimezone(zone).date(), zone)
    row = entries.find_entry(db, Kind.HEARTBEAT, state.name)
    return AgentCard(
        state,
        _model_of(heartbeat),
        heartbeat.deliver if heartbeat else (),
        tuple(each.says for each in quiet_reasons(db, row, heartbeat, now, TimeFormat.of_today(zone, now))) if row else (),
        fleet_records.latest_answer(db, state.name, ANSWER_LENGTH),
        _latest_levels(fleet_records.latest_slots(db, state.name, STRIP_SLOTS)),
        fleet_records.cost_since(db, state.name, today.begins),
        state.entry.budget,
        zone.key,
    )


def model_or_runner(heartbeat: Heartbeat) -> str:
    """The model of an agent, or how it is called if it chooses its model itself."""
    if heartbeat.model is not None:
        return heartbeat.model
    match heartbeat.runner:
        case CommandRunner(argv=argv):
            return f"command {argv[0].rpartition('/')[2]}"
        case HttpRunner():
            return "HTTP gateway"
        case ModelRunner(provider=provider):
            return provider.name
    return "Python function"


def _model_of(heartbeat: Heartbeat | None) -> str:
    return "not in the config" if heartbeat is None else model_or_runner(heartbeat)


def _state_of(entry: EntryStatus, heartbeat: Heartbeat | None, now: datetime) -> AgentState:
    word, text, is_problem = _word_of(entry)
    closed = _closed_by(heartbeat, now) if heartbeat is not None and not is_problem and word != RUNNING else None
    if closed is not None and entry.state == "active":
        word, text = closed.code, closed.text
    last = entry.last_run
    trouble = entry.failing
    failing = entry.consecutive_failures > 0 or (trouble is not None and trouble_word(trouble.reason) == "failing")
    is_problem = is_problem or trouble is not None
    has_alert = entry.alerting or entry.conditions.open > 0
    groups = {
        Group.PROBLEMS: failing or is_problem,
        Group.ALERTS: has_alert,
        Group.RUNNING: last is not None and last.state in ("running", "waiting"),
        Group.OFF: entry.state != "active" or entry.muted is not None,
    }
    found = frozenset(group for group, applies in groups.items() if applies)
    label: str = "failing" if failing else entry.state
    if label == "active":
        label = "running" if word == RUNNING else "waiting" if last is not None and last.state == "waiting" else "ok"
    if label == "ok" and (is_problem or has_alert):
        label = "problem" if is_problem else "alert"
    rank = 0 if failing else 1 if is_problem else 2 if has_alert else 4 if entry.state == "active" else 5
    return AgentState(entry.name, label, word, text, rank, found or frozenset({Group.QUIET}), entry)


def _closed_by(heartbeat: Heartbeat, now: datetime) -> SlotCause | None:
    """Why the agent may not run by its schedule now; None if it may."""
    if not heartbeat.calendars.open_at(now):
        return SlotCause(Skip.CALENDAR)
    return None if heartbeat.hours.open_at(now) else SlotCause(Skip.ACTIVE_HOURS)


def _word_of(entry: EntryStatus) -> tuple[str, str, bool]:
    """One word for why the agent is quiet or what it does, the same in a few words, and whether it is a problem."""
    if entry.state != "active":
        return entry.state, SlotCause(entry.state).text if entry.state != "done" else "its only run is done", False
    last = entry.last_run
    if last is None:
        return NOT_RUN_YET, "has not run yet", False
    cause = cause_of_run(last.state, last.outcome, last.reason, last.suppression, last.delivery)
    if last.state != "closed":
        worker = f" on {last.worker}" if last.state == "running" and last.worker else ""
        return cause.detail or cause.code, cause.text_for_now + worker, False
    if entry.undelivered is not None and last.outcome not in FAILURES:
        return entry.undelivered.state, entry.undelivered.says, True
    if entry.muted is not None:
        return Suppression.MUTED, "its messages are suppressed (mute)", False
    if last.outcome == Outcome.SKIPPED:
        return cause.code, cause.text, cause.code in WORRYING_SKIPS
    if last.outcome in FAILURES:
        return cause.detail or cause.code, cause.text, True
    if last.suppression is not None:
        return last.suppression, cause.text, False
    if last.outcome == Outcome.ALERT:
        return last.delivery, cause.text, last.delivery == DeliveryState.NO_TARGET
    return cause.code, cause.text, False


def _latest_levels(records: Iterable[SlotRecord]) -> list[Level]:
    """How good or bad the latest slots were, the oldest first."""
    found: list[Level] = []
    for record in records:
        cause = cause_of_run(record.state, record.outcome, record.reason, record.suppression, record.delivery)
        found += [cause.level] * min(record.slots, STRIP_SLOTS - len(found))
        if len(found) >= STRIP_SLOTS:
            break
    return found[::-1]

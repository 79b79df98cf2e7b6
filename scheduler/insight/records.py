"""Reads what is on record about agents and jobs in a period, for `explain`: about all of them in sets, or about one alone."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from zoneinfo import ZoneInfo

from heartbeat.spec import Heartbeat
from heartbeatd.answers import ExplainedEvent, LockHolder, PersonQuestion, QuietReason
from scheduler.engine import plan_sync
from scheduler.insight import obstacles, slot_history
from scheduler.insight.daemon_state import DaemonState, events_of_period
from scheduler.insight.periods import Period
from scheduler.insight.schedule_texts import TimeFormat
from scheduler.insight.slot_history import MAX_MARKS, EntryRecord, MissedRecords, SlotGroup, SlotResult, group_results
from scheduler.model import entry_schedule, local_days
from scheduler.model.config_changes import KeyChange, Override, RecordedConfigEvent
from scheduler.model.entry import Entry
from scheduler.model.entry_row import EntryRow
from scheduler.model.outcome import Key, Kind, Trigger
from scheduler.store import asked_questions, config_history, entries, lane_holds, outbox, problems, run_history, wakes
from scheduler.store.entries import PastState
from scheduler.store.outbox import EntryMessages
from scheduler.store.run_history import CauseCount
from scheduler.store.wakes import RejectedWakes
from scheduler.system.lanes import Lanes
from scheduler.work.plan import Plan

NEW_ENTRY = 0  # the id of the row of an entry that is in the config only


@dataclass(frozen=True)
class Records:
    """What is on record about a period. Each query is made once, and only if it is needed.

    `plan` is None if the config cannot be read. `agents` are those that the reader may see (None: all agents and jobs). `only`
    limits the records to one entry.
    """

    db: sqlite3.Connection
    plan: Plan | None
    period: Period
    now: datetime
    daemon: DaemonState
    lanes: Lanes
    agents: frozenset[str] | None = None
    only: Key | None = None

    def may_see(self, kind: str, name: str) -> bool:
        """Whether the reader may see this entry."""
        return self.agents is None or (kind == Kind.HEARTBEAT and name in self.agents)

    @cached_property
    def rows(self) -> list[EntryRow]:
        """The entries that the reader may see, also those that are only in the config."""
        if self.only is None:
            found = [row for row in entries.all_entries(self.db) if self.may_see(*row.key)]
        else:
            row = entries.find_entry(self.db, *self.only)
            found = [row] if row else []
        known = {row.key for row in found}
        declared = self.plan.entries if self.plan else {}
        wanted = declared.keys() if self.only is None else declared.keys() & {self.only}
        new = (declared[key] for key in wanted if key not in known and self.may_see(*key))
        return [*found, *(_row_of_new_entry(entry, self.now) for entry in new)]

    @cached_property
    def causes(self) -> dict[Key, list[CauseCount]]:
        """The runs and slots of the period, counted by cause."""
        return run_history.count_causes(self.db, self.period.begin, self.period.end, self.only)

    @cached_property
    def messages(self) -> dict[tuple[str, str], list[EntryMessages]]:
        """The messages of the period, and older ones that are still to be delivered."""
        return outbox.messages_by_entry(self.db, self.period.begin, self.period.end, self.only)

    @cached_property
    def unaddressed(self) -> dict[Key, tuple[int, int]]:
        """The alerts of the period that were sent to no one."""
        return run_history.unaddressed_alerts(self.db, self.period.begin, self.period.end, self.only)

    @cached_property
    def past(self) -> dict[Key, list[PastState]]:
        """The states that ended in the period or later."""
        return entries.past_states_since(self.db, self.period.begin)

    @cached_property
    def missed(self) -> MissedRecords:
        """The times at which the daemon could start nothing."""
        return slot_history.missed_records(self.db, self.period.begin, self.period.end, running=self.daemon.is_running)

    @cached_property
    def waiting_wakes(self) -> dict[str, int]:
        """The number of waiting wakes of each agent."""
        return wakes.count_waiting_by_agent(self.db)

    @property
    def is_today(self) -> bool:
        """Whether the period reaches up to now."""
        return self.period.until >= self.now

    @cached_property
    def holds(self) -> Mapping[str, Sequence[LockHolder]]:
        """Who holds the lock of each agent over HTTP now."""
        return lane_holds.holds_by_agent(self.db, self.now)

    @cached_property
    def rejected_wakes(self) -> dict[Key, list[RejectedWakes]]:
        """The rejected wakes of the period, by the job that sent them, or else by their agent."""
        found: dict[Key, list[RejectedWakes]] = {}
        for each in wakes.rejected_wakes_between(self.db, self.period.begin, self.period.end):
            key = (Kind.CRON, each.sender) if each.source == Trigger.CRON else (Kind.HEARTBEAT, each.agent)
            found.setdefault(key, []).append(each)
        return found

    @cached_property
    def awaiting(self) -> frozenset[Key]:
        """The entries with runs whose result comes later."""
        return run_history.awaiting_entries(self.db)

    @cached_property
    def with_problems(self) -> frozenset[Key]:
        """The entries with problems that are not over, or whose end is still to be sent."""
        return problems.entries_with_problems(self.db)

    @cached_property
    def asking(self) -> dict[Key, PersonQuestion]:
        """The questions that wait for an answer now, by entry; the one for which it has waited longest."""
        return {(Kind(each.kind), each.name): each for each in reversed(asked_questions.open_questions(self.db))}

    @cached_property
    def in_progress(self) -> list[tuple[Kind, str, int]]:
        """The runs that are in progress now."""
        return run_history.runs_in_progress_at(self.db, self.now)

    @cached_property
    def added(self) -> dict[tuple[Kind, datetime], list[EntryRow]]:
        """The entries by kind and by the time at which they were first seen."""
        found: dict[tuple[Kind, datetime], list[EntryRow]] = {}
        for row in entries.all_entries(self.db):
            found.setdefault((row.kind, row.first_seen_at), []).append(row)
        return found

    @cached_property
    def overrides(self) -> tuple[Override, ...]:
        """The environment variables that set values of the active config."""
        return config_history.overrides_in_force(self.db)

    @cached_property
    def reloads(self) -> list[RecordedConfigEvent]:
        """The reloads of the period, the oldest first."""
        return config_history.config_events(self.db, self.period.begin, self.period.until)

    @cached_property
    def config_changes(self) -> dict[str, list[tuple[RecordedConfigEvent, KeyChange]]]:
        """What reloads have changed, by agent/NAME or cron/NAME."""
        found: dict[str, list[tuple[RecordedConfigEvent, KeyChange]]] = {}
        for recorded in self.reloads:
            for change in recorded.event.diff.changes:
                for label in change.entries:
                    found.setdefault(label, []).append((recorded, change))
        return found

    def times(self, zone: ZoneInfo) -> TimeFormat:
        """How times of an entry in this zone are shown."""
        begin, end = self.period.begin, self.period.end
        return TimeFormat(zone, end - local_days.A_DAY if self.period.is_long else begin, end, self.period.zone)

    def path_text(self, path: Path) -> str:
        """A path, relative to the config's folder if it is there."""
        folder = self.plan.settings.path.parent if self.plan else None
        return str(path.relative_to(folder)) if folder and path.is_relative_to(folder) else str(path)

    def events(self) -> list[ExplainedEvent]:
        """What happened to the daemon and to the clock."""
        return events_of_period(self.db, self.daemon, self.period, is_limited=self.agents is not None)


def _row_of_new_entry(entry: Entry, now: datetime) -> EntryRow:
    """The row that an entry would get if the daemon saw it now for the first time."""
    row = plan_sync.planned_row(entry, None, now)
    row = row._replace(slot=row.schedule.next(row.settled_until) if entry.enabled else None)
    return row._replace(due_at=row.slot_due_at)


class ExplainedEntry:
    """One entry, and what is on record about it.

    `label` is agent/NAME or cron/NAME. The others are None if the config does not have it: `entry`, `spec`, the settings of an
    agent (None for a job), and `reporter`, the settings by which its findings become problems (None without findings).
    """

    def __init__(self, records: Records, row: EntryRow) -> None:
        self.records, self.db, self.now = records, records.db, records.now
        self.row = row
        self.key: Key = row.key
        self.label = row.label
        self.entry = records.plan.entries.get(self.key) if records.plan else None
        self.spec = self.entry.spec if self.entry and isinstance(self.entry.spec, Heartbeat) else None
        self.reporter = self.entry.reporter if self.entry else None
        self._loaded: dict[tuple[datetime, datetime], EntryRecord] = {}

    @cached_property
    def zone(self) -> ZoneInfo:
        """The zone of the entry's days: from the config, or else from its recorded schedule, or that of the reader."""
        if self.entry is not None:
            return self.entry.zone
        return entry_schedule.schedule_zone(self.row.schedule_text) or self.records.period.zone

    @cached_property
    def times(self) -> TimeFormat:
        """How its times are shown in sentences."""
        return self.records.times(self.zone)

    @cached_property
    def quiet_reasons(self) -> list[QuietReason]:
        """Why it is quiet now, the strongest reason first; empty for a period that has passed."""
        records, row = self.records, self.row
        is_possible = row.is_muted(records.now) or self.key in records.awaiting or self.key in records.with_problems
        if not records.is_today or not is_possible:  # without these queries, ten thousand entries take seconds
            return []
        return obstacles.quiet_reasons(records.db, row, self.reporter, records.now, self.times)

    @property
    def overrides(self) -> list[Override]:
        """The environment variables that set its values."""
        return [each for each in self.records.overrides if each.concerns(self.label)]

    def record(self, begin: datetime, end: datetime) -> EntryRecord:
        """What is on record about its slots and other runs in [begin, end)."""
        if (begin, end) not in self._loaded:
            running, is_limited = self.records.daemon.is_running, self.records.agents is not None
            self._loaded[begin, end] = slot_history.load_record(
                self.db, self.row, begin, end, self.now, running=running, is_limited=is_limited
            )
        return self._loaded[begin, end]

    def slot_results(self, begin: datetime, end: datetime) -> list[SlotResult]:
        """What happened to each slot in [begin, end)."""
        return slot_history.slot_results(self.record(begin, end), begin, end)

    def timeline(self, begin: datetime, end: datetime) -> list[SlotGroup]:
        """The slots and other runs in [begin, end) as they are drawn, sorted by time. A time without slots reaches to its end."""
        slots = self.slot_results(begin, end)
        groups = group_results(slots, MAX_MARKS) if len(slots) > MAX_MARKS else list(map(SlotGroup.of, slots))
        following = [*(group.first for group in groups[1:]), end]
        marks = [group if group.slot_count else replace(group, last=at) for group, at in zip(groups, following, strict=True)]
        others = (SlotGroup.of(run, is_slot=False) for run in self.record(begin, end).other_runs if begin <= run.at < end)
        return sorted([*marks, *others], key=lambda mark: mark.first)

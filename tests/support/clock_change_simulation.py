"""Simulates random changes of the system clock by seconds to years and checks that every slot is recorded exactly once."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from world import World, utc

from cron import job_schedules
from scheduler.model.entry_row import EntryRow
from scheduler.model.outcome import Kind
from scheduler.model.timestamps import MILLISECOND
from scheduler.store import entries

BERLIN = ZoneInfo("Europe/Berlin")
SCHEDULES = {"hourly": "0 * * * *", "tens": "*/10 * * * *", "office": "30 9 * * mon-fri", "nightly": "30 2 * * *"}
MOMENTS = {
    "soon": "2026-03-04T12:00Z",
    "later": "2026-07-01T00:00Z",
    "next-year": "2027-02-01T00:00Z",
    "far": "2029-01-01T00:00Z",
}
GRIDS = {"ops": timedelta(minutes=30), "six-hours": timedelta(hours=6)}
START, EARLIEST, LATEST = utc("2026-03-02 08:00"), utc("2021-01-01 00:00"), utc("2030-06-01 00:00")
SECOND = timedelta(seconds=1)

CONFIG = f"""
timezone: Europe/Berlin
history: {{keep: 3650d, runs: 1000000}}
agents:
  ops: {{runner: {{kind: command, argv: [a]}}, heartbeat: {{interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: log}}}}
cron:
  six-hours: {{every: 6h, command: c}}
{"".join(f'  {name}: {{schedule: "{text}", command: c}}{chr(10)}' for name, text in SCHEDULES.items())}\
{"".join(f'  {name}: {{at: "{moment}", command: c}}{chr(10)}' for name, moment in MOMENTS.items())}"""


@dataclass
class ClockChanges:
    """`ClockChanges(folder, seed, number).play()`, then `faults` lists every lost or repeated slot."""

    folder: Path
    seed: int
    number: int
    faults: list[str] = field(default_factory=list)
    forward: int = 0
    back: int = 0
    down: int = 0
    longest_gap: float = 0.0  # monotonic seconds between two runs without a clock change ahead between them

    def play(self) -> None:
        self.chance = random.Random(self.seed)
        self.world = World(self.folder, CONFIG, start=f"{START:%Y-%m-%d %H:%M}")
        self._excused: list[float] = []  # monotonic times of clock changes ahead and of downtimes
        self._live(timedelta(hours=1))
        undo: timedelta | None = None
        mark = 0  # the last record before the last clock change
        for _ in range(self.number):
            by = -undo + self._a_little() if undo else self._far()
            last = self._last_id()
            self._jump(by)
            if undo and undo > timedelta():
                self._check_nothing_is_skipped_ahead(mark)
            mark = last
            undo = None if undo or self.chance.random() < 0.4 else by
            self._live(timedelta(seconds=self.chance.choice((2, 20, 600, 5000, 9000))))
        self._check_schedules()
        self._check_moments()
        self._check_gaps()

    def close(self) -> None:
        self.world.store.close()

    @property
    def slots(self) -> Counter[str]:
        """The number of recorded slots, by entry."""
        found: Counter[str] = Counter()
        for row in self._rows():
            found[row["name"]] += row["slots"]
        return found

    @property
    def lost(self) -> list[str]:
        return [fault for fault in self.faults if "no end" in fault]

    @property
    def doubled(self) -> list[str]:
        return [fault for fault in self.faults if "ends" in fault]

    @property
    def interval(self) -> float:
        """The interval in seconds of the agent whose gaps are measured."""
        return GRIDS["ops"].total_seconds()

    def _far(self) -> timedelta:
        """A random change of 6 s to 3 years, log-uniform, and back if the clock would be too far off."""
        far = timedelta(seconds=round(math.exp(self.chance.uniform(math.log(6), math.log(3 * 365 * 86400))), 3))
        if self.chance.random() < 0.2:
            far = timedelta(hours=self.chance.choice((1, 2, 24, 48, 24 * 7, 24 * 365)))  # whole intervals of every entry
        by = self.chance.choice((far, -far))
        return by if EARLIEST < self.world.clock.now + by < LATEST else -by

    def _a_little(self) -> timedelta:
        """A small random offset, because a corrected clock was never exactly right."""
        return timedelta(seconds=self.chance.choice((0, 0, 0.4, 1.7, -0.8)))

    def _jump(self, by: timedelta) -> None:
        if by > timedelta():
            self.forward += 1
            self._excused.append(self.world.clock.monotonic)
        else:
            self.back += 1
        is_down = self.chance.random() < 0.2
        if is_down:
            self.down += 1
            self._excused.append(self.world.clock.monotonic)
            self.world.kill()
            self.world.clock.advance(timedelta(seconds=self.chance.choice((1, 30, 4000))))
        self.world.clock.now += by
        if is_down:
            self.world.boot()
        self.world.settle()

    def _live(self, span: timedelta) -> None:
        """Let time pass and check that each slot in it has one record."""
        before = {name: self._entry_row(name) for name in GRIDS}
        last = self._last_id()
        self.world.run(seconds=span.total_seconds())
        for name, interval in GRIDS.items():
            counted = sum(row["slots"] for row in self._rows(name) if row["id"] > last)
            entry_row = before[name]
            horizon = self.world.clock.now - entry_row.schedule.offset
            first = entry_row.anchor + (interval if entry_row.kind is Kind.CRON else timedelta())  # jobs start one period later
            expected = _points(first, interval, entry_row.settled_until, horizon)
            if counted != expected:
                self.faults.append(f"{self.world.clock.now}: {name} has {counted} slots for {expected} points of its grid")

    def _entry_row(self, name: str) -> EntryRow:
        found = entries.find_entry(self.world.store.connection, Kind.HEARTBEAT if name == "ops" else Kind.CRON, name)
        assert found is not None
        return found

    def _last_id(self) -> int:
        return int(self.world.store.connection.execute("select coalesce(max(id), 0) from run").fetchone()[0])

    def _rows(self, name: str | None = None) -> list[dict[str, Any]]:
        query = "select id, name, slot, slots, outcome, reason from run where :name is null or name = :name order by slot"
        return [dict(row) for row in self.world.store.connection.execute(query, {"name": name})]

    def _check_nothing_is_skipped_ahead(self, since: int) -> None:
        """After a clock that was ahead is set right, no record written during that time marks a future slot as missed."""
        now = self.world.clock.now.timestamp() * 1000
        ahead = [row for row in self._rows() if row["outcome"] == "skipped" and row["slot"] > now and row["id"] > since]
        self.faults += [f"{self.world.clock.now}: {row['name']} is {row['reason']} at a time to come" for row in ahead]

    def _check_schedules(self) -> None:
        for name, text in SCHEDULES.items():
            rule = job_schedules.parse_schedule(text, BERLIN)
            covered: Counter[datetime] = Counter()
            for row in self._rows(name):
                covered.update(_named(rule, _moment(row["slot"]), row["slots"]))
            now = self.world.clock.now
            self.faults += [f"{name}: {instant} has {times} ends" for instant, times in covered.items() if times > 1]
            due, instant = 0, START - MILLISECOND
            while (instant := _next(rule, instant)) <= now:
                due += 1
                if not covered[instant]:
                    self.faults.append(f"{name}: {instant} has no end")

    def _check_moments(self) -> None:
        for name, text in MOMENTS.items():
            rows = self._rows(name)
            has_come = START < utc(text.replace("T", " ").removesuffix("Z")) <= self.world.clock.now
            if len(rows) > 1 or (has_come and not rows):
                self.faults.append(f"{name}: {len(rows)} ends of its one moment")

    def _check_gaps(self) -> None:
        begun = [call.monotonic for call in self.world.calls if call.name == "ops"] + [self.world.clock.monotonic]
        for before, after in pairwise(begun):
            excused = sum(before <= each <= after for each in self._excused)
            if not excused:
                self.longest_gap = max(self.longest_gap, after - before)
            if not excused and after - before > self.interval + 1:
                self.faults.append(f"no beat for {after - before:.0f} s")


def _points(first: datetime, interval: timedelta, after: datetime, until: datetime) -> int:
    """The number of slots, starting with `first`, in (after, until]."""
    return max(0, (until - first) // interval - max((after - first) // interval, -1))


def _named(rule: job_schedules.CronSchedule, first: datetime, count: int) -> Iterator[datetime]:
    """The consecutive slots of a schedule that a record stands for, from the first one on."""
    instant = first - MILLISECOND
    for _ in range(count):
        instant = _next(rule, instant)
        yield instant


def _next(rule: job_schedules.CronSchedule, after: datetime) -> datetime:
    found = rule.next(after)
    assert found is not None
    return found


def _moment(value: int) -> datetime:
    return utc("1970-01-01 00:00") + timedelta(milliseconds=value)

"""Explain: why an entry ran or did not run, as plain data: now, at one instant, or over a whole local day."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from cron.dst_changes import offset_changes
from scheduler.engine import plan_sync
from scheduler.insight import preconditions, slot_history, wake_waits
from scheduler.insight.reason_texts import Cause
from scheduler.insight.slot_history import Fate, Stretch, fates
from scheduler.model import local_days, schedule
from scheduler.model.entry import Entry, Key
from scheduler.model.local_days import Day
from scheduler.model.timestamps import MILLISECOND, iso
from scheduler.model.trigger_times import TICK
from scheduler.store import boots, clock_changes, digests, entries, runs_view, stalls, wakes
from scheduler.store.entries import Standing
from scheduler.system.lanes import Lanes
from scheduler.work.plan import Plan

WIDER = tuple(timedelta(days=number) for number in (0.1, 1, 8, 60, 800))  # how far around an instant to look for a slot


BEGINNING = datetime(2000, 1, 1, tzinfo=UTC)
AHEAD = timedelta(days=400)


@dataclass(frozen=True, slots=True)
class Asked:
    """About which entry it is asked, and what there is to ask: `plan` None without a config, `running` whether a daemon runs."""

    db: sqlite3.Connection
    plan: Plan | None
    standing: Standing
    lanes: Lanes
    now: datetime
    running: bool

    @property
    def key(self) -> Key:
        return self.standing.kind, self.standing.name

    @property
    def zone(self) -> ZoneInfo:
        """The zone of its days: the config's, or else what its pace says of it."""
        entry = self.plan.entries.get(self.key) if self.plan else None
        return entry.zone if entry else schedule.zone(self.standing.pace_text) or ZoneInfo("UTC")

    def remarks(self) -> tuple[str, ...]:
        """What of its checklist looks like a mark and is none; nothing without a config."""
        entry = self.plan.entries.get(self.key) if self.plan else None
        return entry.remarks() if entry else ()

    def fates(self, begin: datetime, end: datetime) -> list[Fate]:
        return fates(slot_history.load(self.db, self.standing, begin, end, self.now, running=self.running).record, begin, end)


def about(db: sqlite3.Connection, plan: Plan | None, key: Key, lanes: Lanes, now: datetime, *, running: bool) -> Asked | None:
    """What to ask about one entry; None if neither the plan nor the database knows it."""
    standing = entries.find(db, *key)
    entry = plan.entries.get(key) if plan else None
    if standing is None and entry is not None:
        standing = _first_seen_now(entry, now)
    return Asked(db, plan, standing, lanes, now, running) if standing else None


def _first_seen_now(entry: Entry, now: datetime) -> Standing:
    """The row that an entry would get if the daemon saw it now for the first time."""
    anchor, settled = plan_sync.foreseen(entry, None, now)
    pace = schedule.pace(entry.pace_text, anchor)
    slot = pace.next(settled) if entry.enabled else None
    return Standing(
        id=0,
        kind=entry.kind,
        name=entry.name,
        state="active" if entry.enabled else "disabled",
        pace_text=entry.pace_text,
        first_seen_at=now,
        anchor=anchor,
        settled_until=settled,
        slot=slot,
        due_at=slot and slot + pace.offset,
    )


def at_present(asked: Asked) -> dict[str, Any]:
    """Why it did (not) run last, whether it would run now by each gate, and when it comes next."""
    standing = asked.standing
    last_id = runs_view.last_real_run(asked.db, *asked.key)
    return _head(asked) | {
        "last_slot": _fate(asked, _covering(asked, asked.now)),
        "last_run": None if last_id is None else runs_view.one(asked.db, last_id),
        "skipped_since": [_counted(Cause(reason), slots) for reason, slots in _skipped_since(asked, last_id).items()],
        "now": _gates(asked),
        "next": {"slot": iso(standing.slot), "due_at": iso(standing.due_at)},
        "wakes_waiting": wakes.count(asked.db, *asked.key),
        "checklist_remarks": list(asked.remarks()),
        "wakes": _wait(asked),
        "texts_told": digests.told_texts(asked.db, *asked.key, asked.now),
        "daemon": life(asked.db, asked.now, running=asked.running),
    }


def at_instant(asked: Asked, instant: datetime) -> dict[str, Any]:
    """What became, or will become, of the slot that covers an instant: the latest one that does not lie after it.

    Raises ValueError for a time of which nothing can be said.
    """
    _check(asked, instant)
    return _head(asked) | {
        "at": iso(instant),
        "slot": _fate(asked, _covering(asked, instant)),
        "following": _fate(asked, _following(asked, instant)),
        "daemon": life(asked.db, instant, running=asked.running),
    }


def on_day(asked: Asked, day: date) -> dict[str, Any]:
    """What became of every slot of a local day, folded; what ran beside them; what happened to daemon and clocks meanwhile.

    Raises ValueError for a day of which nothing can be said.
    """
    _check(asked, datetime.combine(day, time.min, UTC))
    whole = local_days.whole(day, asked.zone)
    found = slot_history.load(asked.db, asked.standing, whole.begins, whole.ends, asked.now, running=asked.running)
    stretches = slot_history.fold(fates(found.record, whole.begins, whole.ends))
    return _head(asked) | {
        "day": day.isoformat(),
        "from": iso(whole.begins),
        "until": iso(whole.ends),
        "slots": sum(stretch.slots for stretch in stretches),
        "stretches": [_stretch(stretch) for stretch in stretches],
        "totals": [_counted(cause, slots) for cause, slots in slot_history.total(stretches) if slots],
        "beside": [_counted(cause, runs) for cause, runs in Counter(found.beside).most_common()],
        "events": events(asked.db, asked.zone, whole, running=asked.running),
    }


def _check(asked: Asked, instant: datetime) -> None:
    if not BEGINNING <= instant <= asked.now + AHEAD:
        raise ValueError(f"write a time from {BEGINNING.year} on that is at most {AHEAD.days} days ahead")


def _head(asked: Asked) -> dict[str, Any]:
    standing = asked.standing
    paused = standing.state == "active" and standing.paused
    done = _done_at(asked)
    return {
        "kind": standing.kind.value,
        "name": standing.name,
        "zone": asked.zone.key,
        "asked_at": iso(asked.now),
        "state": "paused" if paused else "done" if done else standing.state,
        "done_at": iso(done),
        "paused_until": iso(standing.pause_ends) if paused else None,
        "pace": schedule.parts(standing.pace_text),
    }


def _done_at(asked: Asked) -> datetime | None:
    """When the one slot of a job was that fires once, and neither waits nor runs any more."""
    standing = asked.standing
    if standing.state != "active" or standing.paused or entries.open_run(asked.db, *asked.key):
        return None
    return schedule.done(standing.pace_text, standing.settled_until)


def _covering(asked: Asked, instant: datetime) -> Fate | None:
    for back in WIDER:
        found = [fate for fate in asked.fates(instant - back, instant + MILLISECOND) if fate.at <= instant]
        if found:
            return found[-1]
    return None


def _following(asked: Asked, instant: datetime) -> Fate | None:
    for ahead in WIDER:
        found = [fate for fate in asked.fates(instant + MILLISECOND, instant + ahead) if fate.count]
        if found:
            return found[0]
    return None


def _skipped_since(asked: Asked, run_id: int | None) -> dict[str, int]:
    return runs_view.skipped_since(asked.db, *asked.key, run_id or 0)


def _fate(asked: Asked, fate: Fate | None) -> dict[str, Any] | None:
    """A slot with its cause, and its row if it has one."""
    if fate is None:
        return None
    run = None if fate.run is None else runs_view.one(asked.db, fate.run)
    return {"slot": iso(fate.at) if fate.count else None, **_said(fate.cause), "run": run}


def _said(cause: Cause) -> dict[str, Any]:
    return {"cause": cause.word, "detail": cause.detail, "says": cause.said}


def _counted(cause: Cause, count: int) -> dict[str, Any]:
    return _said(cause) | {"count": count}


def _stretch(stretch: Stretch) -> dict[str, Any]:
    return {
        "from": iso(stretch.first),
        "to": iso(stretch.last),
        "slots": stretch.slots,
        "causes": [_counted(cause, count) for cause, count in stretch.counts],
        "run": stretch.run,
    }


def _wait(asked: Asked) -> dict[str, Any] | None:
    """What the wakes of an agent wait for; None where none waits."""
    wait = wake_waits.next_of(asked.db, *asked.key, asked.now)
    return wait.as_data() | {"says": wait.words} if wait else None


def _gates(asked: Asked) -> dict[str, Any]:
    found = preconditions.ask(asked.db, asked.plan, asked.standing, asked.lanes, asked.now)
    first = found.first
    return {
        "would_run": first is None and _done_at(asked) is None,
        "reason": first,
        "detail": found.details.get(first) if first else None,
        "complete": found.complete,
        "gates": [{"gate": gate.value, "stands_in_the_way": stands} for gate, stands in found.answers],
    }


Event = tuple[datetime, str, str]  # when, what in a word, what in a few


def life(db: sqlite3.Connection, instant: datetime, *, running: bool) -> dict[str, Any]:
    """Which life of the daemon an instant fell into, or since when and until when there was none."""
    lives = boots.lives(db)
    for gap in boots.gaps(lives, running=running):
        if gap.since < instant and (gap.until is None or instant < gap.until):
            return {"state": "down", "since": iso(gap.since), "until": iso(gap.until), "clean": gap.clean}
    found = next((life for life in reversed(lives) if life.started_at <= instant), None)
    if found is None:
        return {"state": "never"}
    goes_on = found is lives[-1] and running
    until = None if goes_on else iso(found.seen_until)
    return {"state": "up", "since": iso(found.started_at), "until": until, "pid": found.pid, "version": found.version}


def events(db: sqlite3.Connection, zone: ZoneInfo, day: Day, *, running: bool) -> list[dict[str, Any]]:
    """What happened on a day to the daemon, to its machine's clock and to the clock of its zone, in order."""
    found = (*_lives(db, running=running), *_jumps(db, day), *_stalls(db, day), *_changes(zone, day))
    return [{"at": iso(at), "what": what, "says": says} for at, what, says in sorted(found) if day.begins <= at < day.ends]


def _lives(db: sqlite3.Connection, *, running: bool) -> Iterator[Event]:
    lives = boots.lives(db)
    for each in lives:
        yield each.started_at, "daemon_started", f"the daemon started, pid {each.pid}"
        if each is lives[-1] and running:
            continue
        if each.clean:
            yield each.seen_until, "daemon_stopped", "the daemon stopped in order"
        else:
            yield each.seen_until, "daemon_lost", "the daemon was last seen; it ended unexpectedly"


def _jumps(db: sqlite3.Connection, day: Day) -> Iterator[Event]:
    for jump in clock_changes.between(db, day.begins, day.ends):
        far = timedelta(seconds=round(abs(jump.by).total_seconds()))
        way = "forward, or the machine slept" if jump.by > timedelta() else "back"
        yield jump.at, "clock_jumped", f"the machine's clock jumped {far} {way}"


def _stalls(db: sqlite3.Connection, day: Day) -> Iterator[Event]:
    for stall in stalls.between(db, day.begins, day.ends):
        long = timedelta(seconds=round((stall.until - stall.since).total_seconds()))
        yield stall.until, "stood_still", f"the daemon had stood still for {long}"


def _changes(zone: ZoneInfo, day: Day) -> Iterator[Event]:
    for change in offset_changes(zone, day.begins - TICK, day.ends - TICK):
        before, after = (change.instant - TICK).astimezone(zone), change.instant.astimezone(zone)
        yield change.instant, "clock_change", f"{zone}: {before + TICK:%H:%M} {before:%Z} was {after:%H:%M %Z}"

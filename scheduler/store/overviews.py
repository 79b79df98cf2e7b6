"""Reads what overviews show: entries with their newest run, their latest slots and answers, and recent events."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from heartbeat.findings import MAX_SIZE, readable_answer
from heartbeatd.answers import EntryBody, EntryKind, Time
from scheduler.model.entry_row import UNTIL_RESUMED, EntryRow
from scheduler.model.outcome import WITHOUT_SLOT, Key, Kind, Skip, Trigger
from scheduler.model.timestamps import from_millis, from_optional_millis, to_millis
from scheduler.store import entries
from scheduler.store.rows import read_row
from scheduler.store.run_history import WHY

# Each entry with its newest run record (found by index), and the number of its waiting wakes. A kind or name of null means any.
OVERVIEWS = f"""
select {", ".join(f"entry.{column}" for column in entries.COLUMNS)},
  last.id as run_id, last.slot as run_planned_at, last.slots as run_planned_runs, last.trigger as run_trigger,
  last.state as run_state, last.outcome as run_result, {WHY} as run_why, last.suppression as run_suppression,
  last.started_at as run_started_at, last.finished_at as run_finished_at, last.error as run_error, last.worker as run_worker,
  last.repeats as run_repeats,
  (select awaits from outbox where entry.kind = 'cron' and outbox.kind = entry.kind and outbox.name = entry.name
    and awaits is not null and awaits <> '[]' and state = 'pending' order by id limit 1) as failing_awaits,
  (select count(*) from wake where wake.kind = entry.kind and wake.name = entry.name and wake.state = 'waiting') as wakes
from entry left join run as last on last.id =
  (select id from run where run.kind = entry.kind and run.name = entry.name order by id desc limit 1)
where entry.state <> 'removed' and (cast(:kind as text) is null or entry.kind = :kind)
  and (cast(:name as text) is null or entry.name = :name)
order by entry.kind desc, entry.name
"""  # noqa: S608 (names of ours)

# The names come as one JSON text, because SQLite limits the number of parameters.
GAUGES = """
with awaited as materialized (select kind, name from run where result_due_at is not null)
select entry.kind, entry.name, failures, quiet, alerting, first_seen_at, last_ended_at, last_success_at,
  case when paused_until is null and state = 'active' then coalesce(due_at, slot) end as next_due,
  case when state = 'active' and paused_until is not null then 'paused' else state end as state, pace, settled_until,
  expected_at, expected_before, good_slots, bad_slots, case when paused_until = :forever then paused_at end as paused_at,
  exists (select 1 from awaited where awaited.kind = entry.kind and awaited.name = entry.name) as awaits,
  slot is null and exists (
    select 1 from run where kind = entry.kind and name = entry.name and state in ('running', 'waiting')) as goes_on
from json_each(:keys) as wanted cross join entry where entry.kind = wanted.value ->> 0 and entry.name = wanted.value ->> 1
"""


def entry_overviews(db: sqlite3.Connection, kind: Kind | None, name: str | None) -> list[tuple[EntryRow, sqlite3.Row]]:
    """Every entry that is not removed, or those of one kind or name: agents first, sorted by name. See OVERVIEWS."""
    found = db.execute(OVERVIEWS, {"kind": kind, "name": name})
    return [(entries.entry_from_row(row[: len(entries.COLUMNS)]), row) for row in found]


def entry_gauges(db: sqlite3.Connection, keys: Collection[tuple[str, str]]) -> list[sqlite3.Row]:
    """The columns of these entries that metrics show. See GAUGES."""
    return db.execute(GAUGES, {"keys": json.dumps(list(keys)), "forever": to_millis(UNTIL_RESUMED)}).fetchall()


def schedules_of_entries(db: sqlite3.Connection) -> dict[tuple[str, str], tuple[str, datetime]]:
    """The schedule text and the anchor of every active entry, by kind and name."""
    rows = db.execute("select kind, name, pace, anchor from entry where state = 'active'")
    return {(row["kind"], row["name"]): (row["pace"], from_millis(row["anchor"])) for row in rows}


def muted_entries(db: sqlite3.Connection, now: datetime) -> frozenset[tuple[str, str]]:
    """Kind and name of every entry whose messages are suppressed."""
    rows = db.execute("select kind, name from entry where muted_until > ? and state <> 'removed'", (to_millis(now),))
    return frozenset((row["kind"], row["name"]) for row in rows)


def last_skips(db: sqlite3.Connection, reason: Skip) -> dict[tuple[str, str], datetime]:
    """When runs of each entry were last skipped for this reason."""
    query = "select kind, name, max(finished_at) as at from run where state = 'closed' and reason = ? group by kind, name"
    return {(row["kind"], row["name"]): from_millis(row["at"]) for row in db.execute(query, (reason,))}


def count_due_entries(db: sqlite3.Connection, now: datetime) -> tuple[int, datetime | None]:
    """How many entries are due, and since when the first of them is."""
    count, oldest = db.execute("select count(*), min(due_at) from entry where due_at <= ?", (to_millis(now),)).fetchone()
    return count, from_optional_millis(oldest)


def count_open_runs(db: sqlite3.Connection) -> dict[str, int]:
    """The number of open runs by state: `running`, and `waiting` for a retry, a lock or a provider."""
    return dict(db.execute("select state, count(*) from run where state in ('running', 'waiting') group by state").fetchall())


TABLES_OF_ENTRIES = ("run", "wake", "outbox", "problem", "question")
OWNERS = {table: f"select kind, name from {table} where id = ?" for table in TABLES_OF_ENTRIES}  # noqa: S608 (names of ours)


def entry_of_row(db: sqlite3.Connection, table: str, number: int) -> tuple[str, str] | None:
    """Kind and name of the entry of a row in one of these tables; None if there is no such row."""
    row = db.execute(OWNERS[table], (number,)).fetchone()
    return (row["kind"], row["name"]) if row else None


LONGEST_RUN = timedelta(days=2)  # a run that ended on a day began at most so long before it

LATE_OR_WITHOUT_SLOT = json.dumps(sorted(WITHOUT_SLOT | {Trigger.RESULT}))

# The newest records of the agent, found by the index on (kind, name, id). A late result stands for its slot.
SLOTS = f"""
select id, kind, slot, slots, state, outcome, {WHY} as why, suppression, error, repeats from run
where id in (
  select case when outcome = 'async' then coalesce((select id from run as late where kind = 'heartbeat' and name = planned.name
    and id > planned.id and trigger = 'result' and slot = planned.slot order by id limit 1), id) else id end
  from run as planned
  where kind = 'heartbeat' and name = ? and trigger not in (select value from json_each(?)) order by id desc limit ?)
order by slot desc, id desc
"""  # noqa: S608 (names of ours)

ANSWER = """
select id, finished_at, substr(text, 1, cast(? as integer)) as text, length(text) as length from run
where kind = 'heartbeat' and name = ? and text is not null and state = 'closed' order by id desc limit 1
"""

COST = """
select sum(cost_usd) as cost_usd, count(*) filter (where outcome <> 'skipped' and trigger <> 'result') as runs,
  count(*) filter (where tokens is not null and cost_usd is null) as unpriced
from run where kind = 'heartbeat' and name = ? and slot >= ? and state = 'closed' and finished_at >= ?
"""


class LoggedEvent(EntryBody):
    """Something that happened: what (`event`), to what (an agent or a job, or another subject of a problem), and its `result`."""

    at: Time
    event: Literal["run", "skip", "start", "message", "problem", "daemon", "config"]
    id: int | None
    kind: EntryKind | Literal["provider", "channel", "daemon"] | None
    name: str | None
    result: str
    detail: str | None
    planned_runs: int
    began_at: Time | None
    error: str | None


@dataclass(frozen=True, slots=True)
class LatestAnswer:
    """The beginning of the latest answer of an agent, the length of the whole, and its run."""

    run_id: int
    ended_at: datetime | None
    text: str
    is_cut: bool


@dataclass(frozen=True, slots=True)
class DayCost:
    """The runs of an agent on a day. `cost_usd` is None if no cost is known; `unpriced` is the number of runs without a price."""

    cost_usd: float | None
    runs: int
    unpriced: int


def latest_slots(db: sqlite3.Connection, name: str, limit: int) -> list[sqlite3.Row]:
    """The newest records of an agent's slots, the newest first. Each stands for at least one slot."""
    return db.execute(SLOTS, (name, LATE_OR_WITHOUT_SLOT, limit)).fetchall()


def latest_answer(db: sqlite3.Connection, name: str, length: int) -> LatestAnswer | None:
    """The first `length` characters of the latest answer of an agent, as people read it; None without any."""
    row = db.execute(ANSWER, (MAX_SIZE, name)).fetchone()
    if row is None:
        return None
    text = readable_answer(row["text"])  # before it is cut: JSON without its end cannot be read
    is_cut = len(text) > length or row["length"] > MAX_SIZE
    return LatestAnswer(row["id"], from_optional_millis(row["finished_at"]), text[:length], is_cut)


def cost_since(db: sqlite3.Connection, name: str, since: datetime) -> DayCost:
    """What the runs of an agent cost that ended at this time or later."""
    row = db.execute(COST, (name, to_millis(since - LONGEST_RUN), to_millis(since))).fetchone()
    return DayCost(row["cost_usd"], row["runs"], row["unpriced"])


# `detail` is why a run has its result, the channel of a message, and the key of a problem.
ACTIVITY = f"""
select at, event, id, kind, name, result, detail, slots as planned_runs, began_at, error from (
  select finished_at as at, case when outcome = 'skipped' then 'skip' else 'run' end as event, id, kind, name, outcome as result,
    {WHY} as detail, slots, started_at as began_at, error
    from run where state = 'closed' and finished_at >= :since
  union all
  select started_at, 'start', id, kind, name, 'running', trigger, 1, null, null
    from run where state = 'running' and started_at >= :since
  union all
  select coalesce(finished_at, doubted_at), 'message', id, kind, name, state, channel, 1, created_at, error
    from outbox where state in ('delivered', 'dead', 'dropped', 'held', 'uncertain')
    and coalesce(finished_at, doubted_at) >= :since
  union all
  select opened_at, 'problem', id, kind, name, 'opened', coalesce(nullif(label, ''), key), 1, null, text
    from problem where opened_at >= :since
  union all
  select over_at, 'problem', id, kind, name, 'over', coalesce(nullif(label, ''), key), 1, since, ended_by
    from problem where over_at >= :since and opened_at is not null
) as happened where cast(:name as text) is null or (kind = :kind and name = :name)
order by at desc, id desc limit :limit
"""  # noqa: S608 (names of ours)


def list_activity(db: sqlite3.Connection, key: Key | None, since: datetime, limit: int) -> list[LoggedEvent]:
    """At most `limit` events since a time, the oldest first, of one entry or (None) of all. Skipped slots may share an event.

    `error` is the text of a problem that was opened, and why one is over.
    """
    kind, name = key or (None, None)
    rows = db.execute(ACTIVITY, {"since": to_millis(since), "kind": kind, "name": name, "limit": limit}).fetchall()
    return [read_row(LoggedEvent, row) for row in reversed(rows)]

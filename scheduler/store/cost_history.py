"""Sums what past runs used: by model, by what started them, by part of the prompt, and by time."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from heartbeatd.answers import SpendToday
from scheduler.model.local_days import LocalDay
from scheduler.model.outcome import Key, Kind, Trigger
from scheduler.model.timestamps import from_millis, from_optional_millis, to_millis
from scheduler.store.rows import read_row

# `|| ''` keeps SQLite from reading the whole table in the order of that column.
# A run of an earlier version has its usage only in sum. It is then taken as the usage of the model that was requested.
MODELS = """
select kind || '', name || '', model, count(*) as runs, sum(calls) as calls, sum(input + cache_read + cache_write) as tokens_in,
  sum(output) as tokens_out, sum(cache_read) as cache_read, sum(cache_write) as cache_write, sum(usd) as cost_usd,
  count(*) filter (where usd is null) as unpriced
from (
  select kind, name, used.key as model, json_extract(used.value, '$.calls') as calls,
    json_extract(used.value, '$.input') as input, json_extract(used.value, '$.output') as output,
    json_extract(used.value, '$.cache_read') as cache_read, json_extract(used.value, '$.cache_write') as cache_write,
    json_extract(used.value, '$.usd') as usd
  from run, json_each(model_usage) as used
  where state = 'closed' and finished_at >= :since and finished_at < :until and tokens is not null and model_usage is not null
  union all
  select kind, name, coalesce(model_requested, model_used, ''), 1, json_extract(tokens, '$.input'),
    json_extract(tokens, '$.output'), json_extract(tokens, '$.cache_read'), json_extract(tokens, '$.cache_write'), cost_usd
  from run
  where state = 'closed' and finished_at >= :since and finished_at < :until and tokens is not null and model_usage is null
) as used group by 1, 2, 3
"""

CAUSES = """
select kind, name, trigger,
  coalesce(woken_by, (select sender from wake where wake.run_id = run.id and started = 1 limit 1), '') as sender,
  count(*) filter (where trigger <> 'result') as runs, sum(cost_usd) as cost_usd,
  count(*) filter (where tokens is not null and cost_usd is null) as unpriced,
  sum(max(0, coalesce(charged_nanos, 0) / 1e9 - coalesce(cost_usd, 0))) as untold_usd,
  sum(coalesce(json_extract(tokens, '$.input') + json_extract(tokens, '$.cache_read')
    + json_extract(tokens, '$.cache_write'), 0)) as tokens_in,
  sum(coalesce(json_extract(tokens, '$.output'), 0)) as tokens_out
from run where state = 'closed' and finished_at >= ? and finished_at < ? and outcome <> 'skipped'
  and (kind = 'heartbeat' or tokens is not null or charged_nanos is not null or coalesce(prompt_parts, '{}') <> '{}')
group by kind, name, trigger, sender
"""

PROMPTS = """
select kind || '', name || '', part.key as part, count(*) as runs, sum(cast(part.value as bigint)) as tokens
from run, json_each(run.prompt_parts) as part
where state = 'closed' and finished_at >= ? and finished_at < ? and outcome <> 'skipped' and run.prompt_parts is not null
group by 1, 2, 3
"""

# Quarters of an hour, because every zone is a whole number of them away from UTC.
QUARTERS = """
select finished_at / 900000 * 900000 as quarter, count(*) filter (where outcome <> 'skipped' and trigger <> 'result') as runs,
  count(*) filter (where outcome = 'alert' and suppression is null) as alerts,
  count(*) filter (where outcome in ('failed', 'timeout', 'abandoned') and coalesce(reason, '') <> 'cancelled') as failed,
  sum(cost_usd) as cost_usd
from run where state = 'closed' and finished_at >= ? and finished_at < ? group by quarter order by quarter
"""
QUARTERS_OF_AGENTS = QUARTERS.replace("group by", "and kind = 'heartbeat' and name in (select value from json_each(?)) group by")

# An older entry without a record from before this time: its earlier records were deleted.
TRIMMED = """
select kind, name from entry where first_seen_at < :at
  and exists (select 1 from run where run.kind = entry.kind and run.name = entry.name)
  and not exists (select 1 from run where run.kind = entry.kind and run.name = entry.name and slot < :at)
"""


TODAY = """
select count(*) filter (where outcome <> 'skipped' and trigger <> 'result') as runs, sum(cost_usd) as cost_usd,
  count(*) filter (where tokens is not null and cost_usd is null) as runs_without_price,
  coalesce(sum(max(0, coalesce(charged_nanos, 0) / 1e9 - coalesce(cost_usd, 0))), 0) as untold_usd
from run where state = 'closed' and finished_at >= ? and finished_at < ?
"""


CACHE_USE = """
select (select cache_ttl from run where kind = :kind and name = :name and static_digest is not null order by id desc limit 1)
    as ttl,
  sum(coalesce(cache_saved_usd, 0)) as saved, count(*) filter (where static_digest is not null) as prompts
from run where kind = :kind and name = :name and started_at >= :since
"""


@dataclass(frozen=True, slots=True)
class CacheUse:
    """How long a provider was asked to keep the part of the last prompt that is the same in each run (None: not at all), what its
    cache has saved since a time, in USD, and how many prompts had such a part.
    """

    ttl: str | None
    saved_usd: float
    prompts: int


@dataclass(frozen=True, slots=True)
class ModelUsage:
    """What the runs of one entry used of one model; `model` is empty if it is not known.

    `calls` are those with reported usage. `tokens_in` includes the tokens of the cache. `cost_usd` is None if no cost is known,
    and `unpriced` is the number of runs whose cost is not known.
    """

    kind: Kind
    name: str
    model: str
    runs: int
    calls: int
    tokens_in: int
    tokens_out: int
    cache_read: int
    cache_write: int
    cost_usd: float | None
    unpriced: int


@dataclass(frozen=True, slots=True)
class CauseCost:
    """The agent runs of one entry that one sender, or its own schedule, has started. The numbers are those of a `RunCount`."""

    kind: Kind
    name: str
    trigger: Trigger
    sender: str
    runs: int
    cost_usd: float | None
    unpriced: int
    untold_usd: float
    tokens_in: int
    tokens_out: int


@dataclass(frozen=True, slots=True)
class PromptPartSize:
    """About how many tokens one part had in the prompts of one entry, and in how many runs."""

    kind: Kind
    name: str
    part: str
    runs: int
    tokens: int


@dataclass(frozen=True, slots=True)
class QuarterCount:
    """The runs that ended in a quarter of an hour, and their known cost."""

    begins: datetime
    runs: int
    alerts: int
    failed: int
    cost_usd: float | None


def usage_by_model(db: sqlite3.Connection, since: datetime, until: datetime) -> list[ModelUsage]:
    """What the runs that ended in [since, until) used, by entry and model."""
    return [
        ModelUsage(Kind(kind), *rest)
        for kind, *rest in db.execute(MODELS, {"since": to_millis(since), "until": to_millis(until)})
    ]


def cost_by_cause(db: sqlite3.Connection, since: datetime, until: datetime) -> list[CauseCost]:
    """What started the agent runs that ended in [since, until), and their cost. Commands of jobs are not counted."""
    rows = db.execute(CAUSES, (to_millis(since), to_millis(until)))
    return [CauseCost(Kind(kind), name, Trigger(trigger), *rest) for kind, name, trigger, *rest in rows]


def prompt_sizes(db: sqlite3.Connection, since: datetime, until: datetime) -> list[PromptPartSize]:
    """What filled the prompts of the runs that ended in [since, until), by entry and part."""
    return [PromptPartSize(Kind(kind), *rest) for kind, *rest in db.execute(PROMPTS, (to_millis(since), to_millis(until)))]


def count_by_quarter(
    db: sqlite3.Connection, since: datetime, until: datetime, agents: Collection[str] | None = None
) -> list[QuarterCount]:
    """The runs that ended in [since, until) by quarter of an hour, in order. A quarter without run records is left out.

    `agents`: only the heartbeats of these agents.
    """
    query, wanted = (QUARTERS, ()) if agents is None else (QUARTERS_OF_AGENTS, (json.dumps(sorted(agents)),))
    rows = db.execute(query, (to_millis(since), to_millis(until), *wanted))
    return [QuarterCount(from_millis(begins), *rest) for begins, *rest in rows]


def entries_with_deleted_records(db: sqlite3.Connection, at: datetime) -> list[Key]:
    """The entries that already existed at this time, and whose run records from before it were deleted."""
    return [(Kind(kind), name) for kind, name in db.execute(TRIMMED, {"at": to_millis(at)})]


def first_record_at(db: sqlite3.Connection) -> datetime | None:
    """When the first run in the history ended; None if there is none."""
    return from_optional_millis(db.execute("select min(finished_at) from run where state = 'closed'").fetchone()[0])


def spend_of_day(db: sqlite3.Connection, day: LocalDay, zone: ZoneInfo) -> SpendToday:
    """The cost of all runs that ended on a day, whether a budget counts them or not."""
    row = db.execute(TODAY, (to_millis(day.begins), to_millis(day.ends))).fetchone()
    untold = round(row["untold_usd"], 6)
    return read_row(SpendToday, row, since=day.begins, until=day.ends, timezone=zone.key, untold_usd=untold)


def cache_use(db: sqlite3.Connection, key: Key, since: datetime) -> CacheUse:
    """What an agent or a job had of the cache of its provider."""
    row = db.execute(CACHE_USE, {"kind": key[0].value, "name": key[1], "since": to_millis(since)}).fetchone()
    return CacheUse(row["ttl"], row["saved"] or 0.0, row["prompts"])

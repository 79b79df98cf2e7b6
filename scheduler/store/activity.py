"""Reads recent events in order of time: ended and started runs, sent messages, opened and closed conditions."""

from __future__ import annotations

import sqlite3
from datetime import datetime

from heartbeatd.answers import LoggedEvent
from scheduler.model.entry import Key
from scheduler.model.timestamps import from_millis, from_optional_millis, to_millis

# `detail` is the reason or suppression of a run, the channel of a message, and the key of a condition.
ACTIVITY = """
select at, event, id, kind, name, result, detail, slots, began_at, error from (
  select finished_at as at, case when outcome = 'skipped' then 'skip' else 'run' end as event, id, kind, name, outcome as result,
    coalesce(reason, suppression) as detail, slots, started_at as began_at, error
    from run where state = 'closed' and finished_at >= :since
  union all
  select started_at, 'start', id, kind, name, 'running', trigger, 1, null, null
    from run where state = 'running' and started_at >= :since
  union all
  select coalesce(finished_at, doubted_at), 'message', id, kind, name, state, channel, 1, created_at, error
    from outbox where state in ('delivered', 'dead', 'dropped', 'held', 'uncertain')
    and coalesce(finished_at, doubted_at) >= :since
  union all
  select opened_at, 'condition', id, 'heartbeat', name, 'opened', label, 1, null, text from condition where opened_at >= :since
  union all
  select closed_at, 'condition', id, 'heartbeat', name, 'closed', label, 1, opened_at, ended_by
    from condition where closed_at >= :since
) as happened where cast(:name as text) is null or (kind = :kind and name = :name)
order by at desc, id desc limit :limit
"""


def list_activity(db: sqlite3.Connection, key: Key | None, since: datetime, limit: int) -> list[LoggedEvent]:
    """At most `limit` events since a time, the oldest first, of one entry or (None) of all. Skipped slots may share an event.

    `error` is the text of a condition that was opened, and why one was closed.
    """
    kind, name = key or (None, None)
    rows = db.execute(ACTIVITY, {"since": to_millis(since), "kind": kind, "name": name, "limit": limit}).fetchall()
    return [
        LoggedEvent(**dict(row) | {"at": from_millis(row["at"]), "began_at": from_optional_millis(row["began_at"])})
        for row in reversed(rows)
    ]

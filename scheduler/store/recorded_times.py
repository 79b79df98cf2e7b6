"""What a change of the system clock does to the times on record, column by column, in both kinds of database."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from scheduler.model.outcome import LONGEST_RETRY_DELAY
from scheduler.model.timestamps import MILLISECOND, to_millis
from scheduler.store.breakers import PROBE_EVERY
from scheduler.store.lane_holds import MAX_HOLD
from scheduler.store.transaction import Transaction

LONGEST_ASYNC = timedelta(hours=24)  # no async_timeout is longer

MOVED: Mapping[str, str] = {
    "problem": "update problem set since = since + :by where over_at is null",
}
"""At each change: what is wrong has lasted for as long as before."""

SET_BACK: Mapping[str, str] = {
    "breaker": "update breaker set opened_at = min(opened_at, :now), probe_at = min(probe_at, :probe),"
    " half_open_at = min(half_open_at, :probe)",
    "digest": 'update digest set until_at = min(until_at, :now + "window")',
    "entry": "update entry set last_woken_at = min(last_woken_at, :now), last_ended_at = min(last_ended_at, :now),"
    " last_success_at = min(last_success_at, :now), looked_at = min(looked_at, :now)",
    "former": "update former set until_at = min(until_at, :now)",
    # A hold of a command is by the clock of the database server.
    "hold": "update hold set until_at = min(until_at, :hold) where holder not like 'heartbeatd busy%'",
    # A message that was held back waits no longer than was planned. One that failed is tried again now.
    "outbox": "update outbox set not_before = min(not_before, case when awaits is null then :now"
    " else :now + max(0, not_before - created_at) end), created_at = min(created_at, :now)"
    " where state in ('pending', 'sending', 'uncertain', 'held')",
    "problem": "update problem set since = min(since, :now), last_seen_at = min(last_seen_at, :now),"
    " opened_at = min(opened_at, :now), over_at = min(over_at, :now), acked_at = min(acked_at, :now),"
    " openings = (select json_group_array(min(cast(value as bigint), :now))"
    " from json_each(case when json_valid(openings) then openings else '[]' end))",
    "problem_notice": "update problem_notice set told_at = min(told_at, :now)",
    "rejected_wake": "update rejected_wake set first_at = min(first_at, :now), at = min(at, :now) where at > :now",
    "run": "update run set started_at = min(started_at, :now),"
    " not_before = case state when 'waiting' then min(not_before, :retry) else not_before end"
    " where state in ('running', 'waiting')",
    "run with an awaited result": "update run set result_due_at = min(result_due_at, :result) where result_due_at is not null",
    "wake": "update wake set due_at = min(due_at, :now), held_until = min(held_until, :now), updated_at = min(updated_at, :now)",
}
"""After the clock was set back: nothing has happened in the future, and nothing waits for longer than it usually does."""

NEVER_WAS: Mapping[str, str] = {
    "boot": "update boot set started_at = min(started_at, :now), last_tick_at = min(last_tick_at, :now),"
    " ended_at = min(ended_at, :now)",
    "config_event": "update config_event set at = min(at, :now)",
    "config_in_force": "update config_in_force set at = min(at, :now)",
}
"""Only if it was set back from a time that never was. Otherwise the daemon did run at these times."""

PLANNED_ANEW = "engine/clock_adjustment plans each entry anew"
IDENTITY = "it is part of the identity of a run"
HISTORY = "it is shown as the clock showed it"
CHOSEN = "a person chose this time by the clock on the wall"
KEPT: Mapping[str, str] = {
    "entry.active_at": "a gateway sends the next one soon",
    "entry.anchor": PLANNED_ANEW,
    "entry.due_at": PLANNED_ANEW,
    "entry.expected_at": PLANNED_ANEW,
    "entry.expected_before": PLANNED_ANEW,
    "entry.first_seen_at": PLANNED_ANEW,
    "entry.last_slot": IDENTITY,
    "entry.muted_until": CHOSEN,
    "entry.paused_at": HISTORY,
    "entry.paused_until": CHOSEN,
    "entry.settled_until": PLANNED_ANEW,
    "entry.slot": PLANNED_ANEW,
    "former.anchor": "the slots up to `until_at` are counted from it",
    "item.asked": IDENTITY,
    "jump.at": "it is the record of the change",
    "message.at": HISTORY,
    "once.seen_at": "the one moment of a job is seen once",
    "outbox.doubted_at": HISTORY,
    "outbox.finished_at": HISTORY,
    "outbox.sending_at": HISTORY,
    "outbox.slot": IDENTITY,
    "run.cut_at": "a duration is measured from `started_at` to it",
    "run.finished_at": HISTORY,
    "run.slot": IDENTITY,
    "spend.ends_at": "the day of a budget ends by the calendar",
    "stall.since": HISTORY,
    "stall.until": HISTORY,
    "target.at": HISTORY,
    "used_button.used_at": HISTORY,
    "wake.created_at": HISTORY,
}
"""The columns with a time that a set-back leaves as they are, and why."""


def move_beginnings(tx: Transaction, by: timedelta) -> None:
    """After the system clock was changed: what is wrong has lasted for as long as before."""
    for statement in MOVED.values():
        tx.db.execute(statement, {"by": by // MILLISECOND})


def limit_future_times(tx: Transaction, *, never_was: bool) -> None:
    """After the system clock was set back: move times in the future to now, and shorten waits to their usual length.

    `never_was`: the clock was ahead before, so that the times after now have never been.
    """
    latest = {"now": timedelta(), "retry": LONGEST_RETRY_DELAY, "result": LONGEST_ASYNC, "hold": MAX_HOLD, "probe": PROBE_EVERY}
    values = {name: to_millis(tx.now + ahead) for name, ahead in latest.items()}
    for statement in (*SET_BACK.values(), *(NEVER_WAS.values() if never_was else ())):
        tx.db.execute(statement, values)
    tx.open_breakers = None

"""The history: one row per occurrence, and how it ended."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

from heartbeat.runners import Tokens
from scheduler.model.entry import Claim
from scheduler.model.events import Closed, TakenBack
from scheduler.model.outcome import Ending, Kind, Outcome, Reason, Skip, Trigger
from scheduler.model.schedule import Pace
from scheduler.model.timestamps import MILLISECOND, millis, moment, optional
from scheduler.store import clock_changes
from scheduler.store.entries import Open, Standing
from scheduler.store.transaction import Transaction

PRECHECK_KEPT = 4096  # characters of a precheck's output that a row keeps


def skip(tx: Transaction, standing: Standing, trigger: Trigger, reason: Skip, first: datetime, count: int = 1) -> int | None:
    """Write the row of `count` slots, from `first` on, that did not run, and why; gives its id.

    A slot that has a row already keeps it: nothing is counted twice, and None is given. For several slots, of which only the
    first has one, from a time that a clock which was set back shows again, the row moves by a millisecond.
    """
    row = _write_skip(tx, standing, trigger, reason, first, count)
    while row is None and count > 1 and clock_changes.is_relived(tx, first):
        first += MILLISECOND
        row = _write_skip(tx, standing, trigger, reason, first, count)
    if row is None:
        return None
    ending = Ending(Outcome.SKIPPED, reason)
    tx.report(_closed(tx, row["id"], standing.kind, standing.name, first, trigger, ending, slots=count))
    return int(row["id"])


def _write_skip(
    tx: Transaction, standing: Standing, trigger: Trigger, reason: Skip, first: datetime, count: int
) -> sqlite3.Row | None:
    row: sqlite3.Row | None = tx.db.execute(
        "insert into run (kind, name, slot, slots, trigger, state, outcome, reason, finished_at, config_hash)"
        " values (?, ?, ?, ?, ?, 'closed', 'skipped', ?, ?, ?) on conflict (kind, name, trigger, slot) do nothing returning id",
        (standing.kind, standing.name, millis(first), count, trigger, reason, millis(tx.now), tx.config_hash),
    ).fetchone()
    return row


def take_back(tx: Transaction, standing: Standing, pace: Pace, since: datetime) -> datetime | None:
    """Remove what was written of skipped slots later than `since`, which are still to come; gives from when on they are.

    `pace` is what named them. What was claimed stays, however it ended: it has been tried. None: there was nothing to remove.
    """
    rows = tx.db.execute(
        "select id, slot, slots, reason from run where kind = :kind and name = :name and trigger = :trigger and state = 'closed'"
        " and outcome = 'skipped' and fence = 0 and (slot > :since or (slots > 1 and finished_at > :since)) order by slot",
        {"kind": standing.kind, "name": standing.name, "trigger": pace.trigger, "since": millis(since)},
    ).fetchall()
    first = None
    for row in rows:
        kept = _passed(pace, row, since)
        if kept >= row["slots"]:
            continue
        if kept:
            tx.db.execute("update run set slots = ? where id = ?", (kept, row["id"]))
        else:
            tx.db.execute("delete from run where id = ?", (row["id"],))
        tx.report(TakenBack(standing.kind, standing.name, row["reason"], row["slots"] - kept))
        first = first or max(moment(row["slot"]) - MILLISECOND, since)
    return first


def _passed(pace: Pace, row: sqlite3.Row, until: datetime) -> int:
    """How many of the slots that a row of skipped ones stands for have come by then."""
    after = moment(row["slot"]) - MILLISECOND
    if after >= until:
        return 0
    closed = {str(reason): slots.count for reason, slots in pace.closed(after, until)}
    may_run = pace.slots(after, until)
    if row["reason"] == Skip.PAUSED:
        return sum(closed.values()) + (may_run.count if may_run else 0)
    if row["reason"] in (Skip.ACTIVE_HOURS, Skip.CALENDAR):
        return closed.get(row["reason"], 0)
    return may_run.count if may_run else 0


def accounted(
    tx: Transaction, standing: Standing, pace: Pace, after: datetime, until: datetime
) -> list[tuple[datetime, datetime]]:
    """The stretches, each from its first to its last slot, that have rows in (after, until]; in order, and they may overlap."""
    rows = tx.db.execute(
        "select slot, slots, reason from run where kind = :kind and name = :name and trigger = :trigger"
        " and (slot > :after or (slots > 1 and finished_at > :after)) and slot <= :until order by slot",
        {
            "kind": standing.kind, "name": standing.name, "trigger": pace.trigger,
            "after": millis(after), "until": millis(until),
        },
    ).fetchall()  # fmt: skip
    stretches = [(moment(row["slot"]), _last_of(pace, row, until)) for row in rows]
    return [(first, last) for first, last in stretches if last > after]


def _last_of(pace: Pace, row: sqlite3.Row, until: datetime) -> datetime:
    """The last of the slots that a row stands for, or `until` if that comes first."""
    first = moment(row["slot"])
    if row["slots"] == 1:
        return first
    if _passed(pace, row, until) <= row["slots"]:
        return until
    low, high = millis(first), millis(until)
    while low < high:  # the earliest time by which all of them have come
        middle = (low + high) // 2
        low, high = (middle + 1, high) if _passed(pace, row, moment(middle)) < row["slots"] else (low, middle)
    return moment(low)


@dataclass(frozen=True, slots=True)
class Awaited:
    """A run that said it would answer later. Its result is waited for until `due_at`; None: no longer.

    `given_up`: it did not come by then.
    """

    run_id: int
    kind: Kind
    name: str
    slot: datetime
    due_at: datetime | None
    given_up: bool = False


def awaited(db: sqlite3.Connection, run_id: int) -> Awaited | None:
    """A run that was to answer later; None when the run is no such one."""
    row = db.execute(
        "select run.id, run.kind, run.name, run.slot, run.result_due_at,"
        " run.result_due_at is null and (result.id is null or result.reason = 'no_result') as given_up from run"
        " left join run as result on result.kind = run.kind and result.name = run.name and result.slot = run.slot"
        " and result.trigger = 'result' where run.id = ? and run.outcome = 'async'",
        (run_id,),
    ).fetchone()
    return _awaited(row) if row else None


def overdue(db: sqlite3.Connection, now: datetime, limit: int) -> list[Awaited]:
    """The runs whose result was to come by now and did not, the oldest first."""
    rows = db.execute(
        "select id, kind, name, slot, result_due_at, 0 as given_up from run where result_due_at <= ?"
        " order by result_due_at limit ?",
        (millis(now), limit),
    )
    return [_awaited(row) for row in rows]


def next_overdue(db: sqlite3.Connection) -> datetime | None:
    """When the next result that is waited for is overdue."""
    return optional(db.execute("select min(result_due_at) from run where result_due_at is not null").fetchone()[0])


def wait_no_longer(tx: Transaction, kind: Kind, name: str, slot: datetime) -> None:
    """The result of a slot has come, or is given up."""
    tx.db.execute(
        "update run set result_due_at = null where kind = ? and name = ? and slot = ? and result_due_at is not null",
        (kind, name, millis(slot)),
    )


def _awaited(row: sqlite3.Row) -> Awaited:
    return Awaited(
        row["id"],
        Kind(row["kind"]),
        row["name"],
        moment(row["slot"]),
        optional(row["result_due_at"]),
        bool(row["given_up"]),
    )


def is_open(db: sqlite3.Connection, run_id: int) -> bool:
    """Whether a run is in progress, or waits for its next attempt."""
    return db.execute("select 1 from run where id = ? and state <> 'closed'", (run_id,)).fetchone() is not None


def mark_cancelled(tx: Transaction, run_id: int) -> None:
    """Note that somebody cancels a run in progress, so that it is not taken up again if the daemon dies before it ends."""
    tx.db.execute("update run set reason = ? where id = ? and state = 'running'", (Reason.CANCELLED, run_id))


def is_ours(tx: Transaction, claim: Claim) -> bool:
    """Whether a run in progress is still the claim's."""
    query = "select 1 from run where id = ? and state = 'running' and owner = ? and fence = ?"
    return tx.db.execute(query, (claim.run_id, claim.owner, claim.fence)).fetchone() is not None


def add_taken(tx: Transaction, claim: Claim, tokens: Tokens, usd: float | None) -> bool:
    """Add to what the calls of a run have taken; False, and nothing written, when it is no longer the claim's.

    Once a cost is None, which is unknown, the run's is unknown for good: a part is not the whole.
    """
    added = tx.db.execute(
        "update run set cost_usd = case when tokens is null then ? else cost_usd + ? end, tokens = json_object("
        "'input', coalesce(json_extract(tokens, '$.input'), 0) + ?, 'output', coalesce(json_extract(tokens, '$.output'), 0) + ?,"
        " 'cache_read', coalesce(json_extract(tokens, '$.cache_read'), 0) + ?,"
        " 'cache_write', coalesce(json_extract(tokens, '$.cache_write'), 0) + ?)"
        " where id = ? and state = 'running' and owner = ? and fence = ? returning id",
        (
            usd, usd, tokens.input, tokens.output, tokens.cache_read, tokens.cache_write,
            claim.run_id, claim.owner, claim.fence,
        ),
    ).fetchone()  # fmt: skip
    return added is not None


def close(tx: Transaction, claim: Claim, ending: Ending) -> bool:
    """Close the run that `claim` owns; False, and nothing written, when it is no longer the claim's."""
    told = (ending.outcome, ending.reason, ending.suppression, ending.model_used, ending.exit_code, ending.text, ending.error)
    checked = _precheck(ending)
    result_due_at = tx.now + claim.entry.async_timeout if ending.outcome is Outcome.ASYNC else None
    closed = tx.db.execute(
        "update run set state = 'closed', finished_at = coalesce(cut_at, ?), prompt_parts = ?,"
        " outcome = ?, reason = ?, suppression = ?, model_used = ?, exit_code = ?, text = ?, error = ?,"
        " precheck_exit = ?, precheck_output = ?, precheck_error = ?, tool_calls = ?, log = ?, truncated = ?, result_due_at = ?,"
        " request_id = ?, left_out = ?"
        " where id = ? and state in ('running', 'reported') and owner = ? and fence = ? returning finished_at",
        (
            millis(tx.now), json.dumps(dict(ending.prompt_parts)), *told, *checked, _tool_calls(ending), ending.log,
            ending.truncated, result_due_at and millis(result_due_at), ending.request_id,
            json.dumps(ending.left_out) if ending.left_out else None,
            claim.run_id, claim.owner, claim.fence,
        ),
    ).fetchone()  # fmt: skip
    if closed is None:
        return False
    entry = claim.entry
    tx.report(
        _closed(
            tx,
            claim.run_id,
            entry.kind,
            entry.name,
            claim.slot,
            claim.trigger,
            ending,
            attempt=claim.attempt,
            started=min(claim.started_at, tx.now),  # the clock may have been set back since
            finished=moment(closed["finished_at"]),
        )
    )
    return True


def wait(tx: Transaction, claim: Claim, ending: Ending, not_before: datetime) -> bool:
    """Let the run wait for its next attempt, with what the last one said; False when it is no longer the claim's."""
    waiting = tx.db.execute(
        "update run set state = 'waiting', not_before = ?, outcome = ?, reason = ?, error = ?, text = ?,"
        " precheck_exit = ?, precheck_output = ?, precheck_error = ?, request_id = ?"
        " where id = ? and state = 'running' and owner = ? and fence = ? returning id",
        (
            millis(not_before), ending.outcome, ending.reason, ending.error, ending.text, *_precheck(ending), ending.request_id,
            claim.run_id, claim.owner, claim.fence,
        ),
    ).fetchone()  # fmt: skip
    return waiting is not None


def defer(tx: Transaction, claim: Claim, reason: Skip, not_before: datetime) -> bool:
    """Let the run wait for what is in its way, as if this attempt had not been; False when it is no longer the claim's.

    What an earlier attempt came to is kept; a run that has had none has come to `skipped` so far.
    """
    waiting = tx.db.execute(
        "update run set state = 'waiting', not_before = ?, attempt = attempt - 1, reason = ?,"
        " outcome = coalesce(outcome, 'skipped') where id = ? and state = 'running' and owner = ? and fence = ? returning id",
        (millis(not_before), reason, claim.run_id, claim.owner, claim.fence),
    ).fetchone()
    return waiting is not None


def _precheck(ending: Ending) -> tuple[int | None, str | None, str | None]:
    """What a row keeps of the precheck: its exit code, the beginning of its output, and why it failed."""
    checked = ending.precheck
    return (checked.exit_code, checked.output[:PRECHECK_KEPT], checked.error or None) if checked else (None, None, None)


def _tool_calls(ending: Ending) -> str | None:
    return json.dumps([asdict(call) for call in ending.tool_calls]) if ending.tool_calls else None


def note_cut(tx: Transaction, run: Open | Claim, cut_at: datetime) -> None:
    """Remember when a run was cut short; if no other attempt begins, it ended then."""
    tx.db.execute("update run set cut_at = max(?, started_at) where id = ?", (millis(cut_at), run.run_id))


def put_back(tx: Transaction, run: Open | Claim, *, crashed: bool) -> None:
    """Let a run that was cut short wait for another attempt; a cut by our own stop is no attempt at all."""
    tx.db.execute(
        "update run set state = 'waiting', not_before = ?, fence = fence + 1, crashes = crashes + ?, attempt = attempt - ?,"
        " outcome = coalesce(nullif(outcome, 'skipped'), 'abandoned')"
        " where id = ? and state = 'running' and owner = ? and fence = ?",
        (millis(tx.now), int(crashed), int(not crashed), run.run_id, run.owner, run.fence),
    )


def end_undeclared(tx: Transaction, kind: Kind, name: str, run: Open, ending: Ending) -> None:
    """Close an open run of an entry that no config declares any more: nobody is there to be told."""
    row = tx.db.execute(
        "update run set state = 'closed', outcome = ?, reason = ?, error = ?, finished_at = coalesce(cut_at, ?),"
        " fence = fence + 1 where id = ? returning finished_at",
        (ending.outcome, ending.reason, ending.error, millis(tx.now), run.run_id),
    ).fetchone()
    tx.report(
        _closed(
            tx,
            run.run_id,
            kind,
            name,
            run.slot,
            run.trigger,
            ending,
            attempt=run.attempt,
            started=run.started_at,
            finished=moment(row["finished_at"]),
        )
    )


def _closed(
    tx: Transaction, run_id: int, kind: Kind, name: str, slot: datetime, trigger: Trigger, ending: Ending,
    *, slots: int = 1, attempt: int = 0, started: datetime | None = None, finished: datetime | None = None,
) -> Closed:  # fmt: skip
    return Closed(
        run_id,
        kind,
        name,
        slot,
        slots,
        trigger,
        ending.outcome,
        ending.reason,
        ending.suppression,
        attempt,
        started,
        finished or tx.now,
        ending.error,
        ending.log,
        ending.truncated,
        ending.precheck_problem,
        ending.left_out,
    )


def last_error(db: sqlite3.Connection, kind: Kind, name: str) -> str | None:
    """What the entry's last failure said."""
    query = (
        "select error from run where kind = ? and name = ? and state = 'closed' and outcome in ('failed', 'timeout', 'abandoned')"
        " order by id desc limit 1"
    )
    row = db.execute(query, (kind, name)).fetchone()
    return row["error"] if row else None


BY_PROGRAMS = "kind = ? and name = ? and trigger in ('cron', 'api', 'webhook')"


Span = tuple[datetime, datetime]  # (after, until]; what lies later ran under a clock that has been set back since


def start_by_programs(db: sqlite3.Connection, kind: Kind, name: str, span: Span, nth: int) -> datetime | None:
    """When the `nth` last run of the entry in a time began that a program's wake started; runs that were refused do not count.

    None where there were fewer.
    """
    query = (
        f"select started_at from run where {BY_PROGRAMS} and started_at > ? and started_at <= ? and outcome is not 'skipped'"  # noqa: S608
        " order by started_at desc limit 1 offset ?"
    )
    row = db.execute(query, (kind, name, *map(millis, span), nth - 1)).fetchone()
    return moment(row["started_at"]) if row else None


def refused_by_programs(db: sqlite3.Connection, kind: Kind, name: str, span: Span) -> datetime | None:
    """When the last run of a time was refused that a program's wake had started; None where none was."""
    query = f"select max(finished_at) from run where {BY_PROGRAMS} and started_at > ? and started_at <= ? and outcome = 'skipped'"  # noqa: S608
    return optional(db.execute(query, (kind, name, *map(millis, span))).fetchone()[0])


def newest(db: sqlite3.Connection, kind: Kind, name: str) -> tuple[int, Trigger, datetime] | None:
    """Id, trigger and slot of the newest row of an entry."""
    query = "select id, trigger, slot from run where kind = ? and name = ? order by id desc limit 1"
    row = db.execute(query, (kind, name)).fetchone()
    return (row["id"], Trigger(row["trigger"]), moment(row["slot"])) if row else None


UNFINISHED = "select run_id from outbox where state in ('pending', 'sending', 'uncertain', 'held')"


def prune(tx: Transaction, keep: timedelta, batch: int) -> int:
    """Remove closed rows older than `keep`, the oldest first and at most `batch`; gives how many went.

    Rows with a message that is still to be delivered, or a result that is still to come, stay.
    """
    query = (
        f"select id from run where state = 'closed' and finished_at < ? and result_due_at is null and id not in ({UNFINISHED})"  # noqa: S608
        " order by finished_at limit ?"
    )
    return _remove(tx, tx.db.execute(query, (millis(tx.now - keep), batch)).fetchall())


def trim(tx: Transaction, standing: Standing, runs: int, batch: int) -> int:
    """Remove all but the newest `runs` closed rows of one entry, at most `batch`; gives how many went."""
    key = (standing.kind, standing.name)
    place = tx.db.execute(
        "select id from run where kind = ? and name = ? order by id desc limit 1 offset ?", (*key, runs)
    ).fetchone()
    if place is None:
        return 0
    query = (
        "select id from run where kind = ? and name = ? and id <= ? and state = 'closed' and result_due_at is null"  # noqa: S608
        f" and id not in ({UNFINISHED}) limit ?"
    )
    return _remove(tx, tx.db.execute(query, (*key, place["id"], batch)).fetchall())


def _remove(tx: Transaction, rows: list[sqlite3.Row]) -> int:
    ids = [(row["id"],) for row in rows]
    tx.db.executemany("delete from outbox where run_id = ?", ids)
    tx.db.executemany("delete from run where id = ?", ids)
    return len(ids)

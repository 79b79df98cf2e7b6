"""The history: one row per occurrence, and how it ended."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta

from heartbeat.runners import Tokens
from scheduler.model.entry import Claim
from scheduler.model.events import RunClosed
from scheduler.model.outcome import AttemptResult, Kind, Outcome, Reason, Skip, Trigger
from scheduler.model.timestamps import from_millis, from_optional_millis, to_millis
from scheduler.store.entries import EntryRow
from scheduler.store.transaction import Transaction

PRECHECK_KEPT = 4096  # characters of a precheck's output that a row keeps


@dataclass(frozen=True, slots=True)
class AwaitedResult:
    """A run that said it would answer later. Its result is waited for until `due_at`; None: no longer.

    `given_up`: it did not come by then.
    """

    run_id: int
    kind: Kind
    name: str
    slot: datetime
    due_at: datetime | None
    given_up: bool = False


def find_awaited_result(db: sqlite3.Connection, run_id: int) -> AwaitedResult | None:
    """A run that was to answer later; None when the run is no such one."""
    row = db.execute(
        "select run.id, run.kind, run.name, run.slot, run.result_due_at,"
        " run.result_due_at is null and (result.id is null or result.reason = 'no_result') as given_up from run"
        " left join run as result on result.kind = run.kind and result.name = run.name and result.slot = run.slot"
        " and result.trigger = 'result' where run.id = ? and run.outcome = 'async'",
        (run_id,),
    ).fetchone()
    return _awaited_from_row(row) if row else None


def overdue_results(db: sqlite3.Connection, now: datetime, limit: int) -> list[AwaitedResult]:
    """The runs whose result was to come by now and did not, the oldest first."""
    rows = db.execute(
        "select id, kind, name, slot, result_due_at, 0 as given_up from run where result_due_at <= ?"
        " order by result_due_at limit ?",
        (to_millis(now), limit),
    )
    return [_awaited_from_row(row) for row in rows]


def next_overdue_at(db: sqlite3.Connection) -> datetime | None:
    """When the next result that is waited for is overdue."""
    return from_optional_millis(db.execute("select min(result_due_at) from run where result_due_at is not null").fetchone()[0])


def stop_awaiting_result(tx: Transaction, kind: Kind, name: str, slot: datetime) -> None:
    """The result of a slot has come, or is given up."""
    tx.db.execute(
        "update run set result_due_at = null where kind = ? and name = ? and slot = ? and result_due_at is not null",
        (kind, name, to_millis(slot)),
    )


def _awaited_from_row(row: sqlite3.Row) -> AwaitedResult:
    return AwaitedResult(
        row["id"],
        Kind(row["kind"]),
        row["name"],
        from_millis(row["slot"]),
        from_optional_millis(row["result_due_at"]),
        bool(row["given_up"]),
    )


def is_run_open(db: sqlite3.Connection, run_id: int) -> bool:
    """Whether a run is in progress, or waits for its next attempt."""
    return db.execute("select 1 from run where id = ? and state <> 'closed'", (run_id,)).fetchone() is not None


def mark_run_cancelled(tx: Transaction, run_id: int) -> None:
    """Note that somebody cancels a run in progress, so that it is not taken up again if the daemon dies before it ends."""
    tx.db.execute("update run set reason = ? where id = ? and state = 'running'", (Reason.CANCELLED, run_id))


def owns_run(tx: Transaction, claim: Claim) -> bool:
    """Whether a run in progress is still the claim's."""
    query = "select 1 from run where id = ? and state = 'running' and owner = ? and fence = ?"
    return tx.db.execute(query, (claim.run_id, claim.owner, claim.fence)).fetchone() is not None


def add_usage(tx: Transaction, claim: Claim, tokens: Tokens, usd: float | None) -> bool:
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


def close_run(tx: Transaction, claim: Claim, result: AttemptResult) -> bool:
    """Close the run that `claim` owns; False, and nothing written, when it is no longer the claim's."""
    told = (result.outcome, result.reason, result.suppression, result.model_used, result.exit_code, result.text, result.error)
    checked = _precheck_columns(result)
    result_due_at = tx.now + claim.entry.async_timeout if result.outcome is Outcome.ASYNC else None
    closed = tx.db.execute(
        "update run set state = 'closed', finished_at = coalesce(cut_at, ?), prompt_parts = ?,"
        " outcome = ?, reason = ?, suppression = ?, model_used = ?, exit_code = ?, text = ?, error = ?,"
        " precheck_exit = ?, precheck_output = ?, precheck_error = ?, tool_calls = ?, log = ?, truncated = ?, result_due_at = ?,"
        " request_id = ?, left_out = ?"
        " where id = ? and state in ('running', 'reported') and owner = ? and fence = ? returning finished_at",
        (
            to_millis(tx.now), json.dumps(dict(result.prompt_parts)), *told, *checked, _tool_calls_json(result), result.log,
            result.truncated, result_due_at and to_millis(result_due_at), result.request_id,
            json.dumps(result.left_out) if result.left_out else None,
            claim.run_id, claim.owner, claim.fence,
        ),
    ).fetchone()  # fmt: skip
    if closed is None:
        return False
    entry = claim.entry
    tx.report(
        closed_event(
            tx,
            claim.run_id,
            entry.kind,
            entry.name,
            claim.slot,
            claim.trigger,
            result,
            attempt=claim.attempt,
            started=min(claim.started_at, tx.now),  # the clock may have been set back since
            finished=from_millis(closed["finished_at"]),
        )
    )
    return True


def keep_run_for_retry(tx: Transaction, claim: Claim, result: AttemptResult, not_before: datetime) -> bool:
    """Let the run wait for its next attempt, with what the last one said; False when it is no longer the claim's."""
    waiting = tx.db.execute(
        "update run set state = 'waiting', not_before = ?, outcome = ?, reason = ?, error = ?, text = ?,"
        " precheck_exit = ?, precheck_output = ?, precheck_error = ?, request_id = ?"
        " where id = ? and state = 'running' and owner = ? and fence = ? returning id",
        (
            to_millis(not_before), result.outcome, result.reason, result.error, result.text, *_precheck_columns(result),
            result.request_id, claim.run_id, claim.owner, claim.fence,
        ),
    ).fetchone()  # fmt: skip
    return waiting is not None


def defer_run(tx: Transaction, claim: Claim, reason: Skip, not_before: datetime) -> bool:
    """Let the run wait for what is in its way, as if this attempt had not been; False when it is no longer the claim's.

    What an earlier attempt came to is kept; a run that has had none has come to `skipped` so far.
    """
    waiting = tx.db.execute(
        "update run set state = 'waiting', not_before = ?, attempt = attempt - 1, reason = ?,"
        " outcome = coalesce(outcome, 'skipped') where id = ? and state = 'running' and owner = ? and fence = ? returning id",
        (to_millis(not_before), reason, claim.run_id, claim.owner, claim.fence),
    ).fetchone()
    return waiting is not None


def _precheck_columns(result: AttemptResult) -> tuple[int | None, str | None, str | None]:
    """What a row keeps of the precheck: its exit code, the beginning of its output, and why it failed."""
    checked = result.precheck
    return (checked.exit_code, checked.output[:PRECHECK_KEPT], checked.error or None) if checked else (None, None, None)


def _tool_calls_json(result: AttemptResult) -> str | None:
    return json.dumps([asdict(call) for call in result.tool_calls]) if result.tool_calls else None


def record_interruption(tx: Transaction, run: OpenRun | Claim, cut_at: datetime) -> None:
    """Remember when a run was cut short; if no other attempt begins, it ended then."""
    tx.db.execute("update run set cut_at = max(?, started_at) where id = ?", (to_millis(cut_at), run.run_id))


def requeue_interrupted_run(tx: Transaction, run: OpenRun | Claim, *, crashed: bool) -> None:
    """Let a run that was cut short wait for another attempt; a cut by our own stop is no attempt at all."""
    tx.db.execute(
        "update run set state = 'waiting', not_before = ?, fence = fence + 1, crashes = crashes + ?, attempt = attempt - ?,"
        " outcome = coalesce(nullif(outcome, 'skipped'), 'abandoned')"
        " where id = ? and state = 'running' and owner = ? and fence = ?",
        (to_millis(tx.now), int(crashed), int(not crashed), run.run_id, run.owner, run.fence),
    )


def close_undeclared_run(tx: Transaction, kind: Kind, name: str, run: OpenRun, result: AttemptResult) -> None:
    """Close an open run of an entry that no config declares any more: nobody is there to be told."""
    row = tx.db.execute(
        "update run set state = 'closed', outcome = ?, reason = ?, error = ?, finished_at = coalesce(cut_at, ?),"
        " fence = fence + 1 where id = ? returning finished_at",
        (result.outcome, result.reason, result.error, to_millis(tx.now), run.run_id),
    ).fetchone()
    tx.report(
        closed_event(
            tx,
            run.run_id,
            kind,
            name,
            run.slot,
            run.trigger,
            result,
            attempt=run.attempt,
            started=run.started_at,
            finished=from_millis(row["finished_at"]),
        )
    )


def closed_event(
    tx: Transaction, run_id: int, kind: Kind, name: str, slot: datetime, trigger: Trigger, result: AttemptResult,
    *, slots: int = 1, attempt: int = 0, started: datetime | None = None, finished: datetime | None = None,
) -> RunClosed:  # fmt: skip
    return RunClosed(
        run_id,
        kind,
        name,
        slot,
        slots,
        trigger,
        result.outcome,
        result.reason,
        result.suppression,
        attempt,
        started,
        finished or tx.now,
        result.error,
        result.log,
        result.truncated,
        result.precheck_problem,
        result.left_out,
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


def nth_last_program_start(db: sqlite3.Connection, kind: Kind, name: str, span: Span, nth: int) -> datetime | None:
    """When the `nth` last run of the entry in a time began that a program's wake started; runs that were refused do not count.

    None where there were fewer.
    """
    query = (
        f"select started_at from run where {BY_PROGRAMS} and started_at > ? and started_at <= ? and outcome is not 'skipped'"  # noqa: S608
        " order by started_at desc limit 1 offset ?"
    )
    row = db.execute(query, (kind, name, *map(to_millis, span), nth - 1)).fetchone()
    return from_millis(row["started_at"]) if row else None


def last_refused_program_start(db: sqlite3.Connection, kind: Kind, name: str, span: Span) -> datetime | None:
    """When the last run of a time was refused that a program's wake had started; None where none was."""
    query = f"select max(finished_at) from run where {BY_PROGRAMS} and started_at > ? and started_at <= ? and outcome = 'skipped'"  # noqa: S608
    return from_optional_millis(db.execute(query, (kind, name, *map(to_millis, span))).fetchone()[0])


def newest_run(db: sqlite3.Connection, kind: Kind, name: str) -> tuple[int, Trigger, datetime] | None:
    """Id, trigger and slot of the newest row of an entry."""
    query = "select id, trigger, slot from run where kind = ? and name = ? order by id desc limit 1"
    row = db.execute(query, (kind, name)).fetchone()
    return (row["id"], Trigger(row["trigger"]), from_millis(row["slot"])) if row else None


UNFINISHED = "select run_id from outbox where state in ('pending', 'sending', 'uncertain', 'held')"


def delete_old_runs(tx: Transaction, keep: timedelta, batch: int) -> int:
    """Remove closed rows older than `keep`, the oldest first and at most `batch`; gives how many went.

    Rows with a message that is still to be delivered, or a result that is still to come, stay.
    """
    query = (
        f"select id from run where state = 'closed' and finished_at < ? and result_due_at is null and id not in ({UNFINISHED})"  # noqa: S608
        " order by finished_at limit ?"
    )
    return _delete_runs(tx, tx.db.execute(query, (to_millis(tx.now - keep), batch)).fetchall())


def delete_surplus_runs(tx: Transaction, entry_row: EntryRow, runs: int, batch: int) -> int:
    """Remove all but the newest `runs` closed rows of one entry, at most `batch`; gives how many went."""
    key = (entry_row.kind, entry_row.name)
    place = tx.db.execute(
        "select id from run where kind = ? and name = ? order by id desc limit 1 offset ?", (*key, runs)
    ).fetchone()
    if place is None:
        return 0
    query = (
        "select id from run where kind = ? and name = ? and id <= ? and state = 'closed' and result_due_at is null"  # noqa: S608
        f" and id not in ({UNFINISHED}) limit ?"
    )
    return _delete_runs(tx, tx.db.execute(query, (*key, place["id"], batch)).fetchall())


def _delete_runs(tx: Transaction, rows: list[sqlite3.Row]) -> int:
    ids = [(row["id"],) for row in rows]
    tx.db.executemany("delete from outbox where run_id = ?", ids)
    tx.db.executemany("delete from run where id = ?", ids)
    return len(ids)


FAILED = frozenset({Outcome.FAILED, Outcome.TIMEOUT})


@dataclass(frozen=True, slots=True)
class OpenRun:
    """The open run of an entry: running, or waiting for its next attempt, its agent's lane or a provider that another run tries.

    `outcome` is what its last attempt came to: `abandoned` if that was cut short, `skipped` if none has begun; None while the
    first one runs.
    """

    run_id: int
    state: str
    slot: datetime
    trigger: Trigger
    attempt: int
    crashes: int
    fence: int
    owner: str
    started_at: datetime
    not_before: datetime | None = None
    outcome: str | None = None
    reason: str | None = None
    error: str | None = None
    text: str | None = None

    @property
    def has_not_begun(self) -> bool:
        """Whether it has only ever waited for its agent's lane or its provider."""
        return self.outcome == Outcome.SKIPPED

    @property
    def waits_for(self) -> Skip:
        """What a run that has not begun waits for."""
        return Skip(self.reason or Skip.BUSY)

    @property
    def is_cancelled(self) -> bool:
        """Whether somebody has cancelled it, and its end is still to come."""
        return self.reason == Reason.CANCELLED

    @property
    def has_failed(self) -> bool:
        """Whether an attempt of it has come to an end of its own, which was none to stay with."""
        return self.outcome in FAILED


def open_result_run(tx: Transaction, kind: Kind, name: str, slot: datetime) -> OpenRun | None:
    """Open the row of a result that came later, beside whatever runs now; None when that slot has its result already."""
    row = tx.db.execute(
        "insert into run (kind, name, slot, trigger, state, attempt, fence, owner, started_at, config_hash)"
        " values (?, ?, ?, ?, 'reported', 1, 1, ?, ?, ?) on conflict (kind, name, trigger, slot) do nothing returning *",
        (kind, name, to_millis(slot), Trigger.RESULT, tx.owner, to_millis(tx.now), tx.config_hash),
    ).fetchone()
    return _open_run_from_row(row) if row else None


def find_open_run(db: sqlite3.Connection, kind: Kind, name: str) -> OpenRun | None:
    """The entry's open run, if it has one; a partial unique index makes two impossible."""
    row = db.execute("select * from run where kind = ? and name = ? and state in ('running', 'waiting')", (kind, name)).fetchone()
    return _open_run_from_row(row) if row else None


def open_runs_of(db: sqlite3.Connection, entry_rows: Sequence[EntryRow]) -> dict[int, OpenRun]:
    """The open runs of these entries, by the ids of their rows: one question for all that is due in a turn."""
    rows = db.execute(
        "select entry.id as entry_id, run.* from entry join run on run.kind = entry.kind and run.name = entry.name"
        " where run.state in ('running', 'waiting') and entry.id in (select value from json_each(?))",
        (json.dumps([entry_row.id for entry_row in entry_rows]),),
    )
    return {row["entry_id"]: _open_run_from_row(row) for row in rows}


def any_open_or_due(tx: Transaction, kind: Kind, names: Sequence[str]) -> bool:
    """Whether one of these entries has an open run, or is due."""
    row = tx.db.execute(
        "select 1 from json_each(?) as named where"
        " exists (select 1 from run where kind = ? and name = named.value and state in ('running', 'waiting'))"
        " or exists (select 1 from entry where kind = ? and name = named.value and due_at <= ?) limit 1",
        (json.dumps(names), kind, kind, to_millis(tx.now)),
    ).fetchone()
    return row is not None


def all_open_runs(db: sqlite3.Connection) -> list[tuple[Kind, str, OpenRun]]:
    """Every open run with its entry's key."""
    rows = db.execute("select * from run where state in ('running', 'waiting') order by id").fetchall()
    return [(Kind(row["kind"]), row["name"], _open_run_from_row(row)) for row in rows]


def find_open_run_by_id(db: sqlite3.Connection, run_id: int) -> tuple[Kind, str, OpenRun] | None:
    """One open run with its entry's kind and name; None when it is closed, or was never there."""
    row = db.execute("select * from run where id = ? and state in ('running', 'waiting')", (run_id,)).fetchone()
    return (Kind(row["kind"]), row["name"], _open_run_from_row(row)) if row else None


def _open_run_from_row(row: sqlite3.Row) -> OpenRun:
    return OpenRun(
        run_id=row["id"],
        state=row["state"],
        slot=from_millis(row["slot"]),
        trigger=Trigger(row["trigger"]),
        attempt=row["attempt"],
        crashes=row["crashes"],
        fence=row["fence"],
        owner=row["owner"] or "",
        started_at=from_millis(row["started_at"]),
        not_before=from_optional_millis(row["not_before"]),
        outcome=row["outcome"],
        reason=row["reason"],
        error=row["error"],
        text=row["text"],
    )


def open_run(tx: Transaction, entry_row: EntryRow, slot: datetime, trigger: Trigger, model: str | None) -> tuple[int, int] | None:
    """Open the row of a first attempt; gives its id and fence, None when that slot has its row already."""
    row = tx.db.execute(
        "insert into run (kind, name, slot, trigger, state, attempt, fence, owner, started_at, model_requested, config_hash)"
        " values (?, ?, ?, ?, 'running', 1, 1, ?, ?, ?, ?)"
        " on conflict (kind, name, trigger, slot) do nothing returning id, fence",
        (entry_row.kind, entry_row.name, to_millis(slot), trigger, tx.owner, to_millis(tx.now), model, tx.config_hash),
    ).fetchone()
    return (row["id"], row["fence"]) if row else None


def claim_next_attempt(tx: Transaction, run: OpenRun, model: str | None) -> OpenRun | None:
    """Claim the next attempt of a waiting run, by the config in force now; None when it no longer waits."""
    row = tx.db.execute(
        "update run set state = 'running', fence = fence + 1, attempt = attempt + 1, owner = ?, not_before = null,"
        " model_requested = ?, config_hash = ?, cut_at = null,"
        " started_at = case when outcome in ('skipped', 'abandoned') or cut_at is not null then ? else started_at end"
        " where id = ? and state = 'waiting' and fence = ? returning *",
        (tx.owner, model, tx.config_hash, to_millis(tx.now), run.run_id, run.fence),
    ).fetchone()
    return replace(_open_run_from_row(row), started_at=tx.now) if row else None


def retry_waiting_run_now(tx: Transaction, entry_row: EntryRow, reason: Skip) -> bool:
    """Have a run that waits for its agent's lane, or for its provider, tried at once; False when none does."""
    row = tx.db.execute(
        "update run set not_before = ? where kind = ? and name = ? and state = 'waiting' and reason = ? returning id",
        (to_millis(tx.now), entry_row.kind, entry_row.name, reason),
    ).fetchone()
    return row is not None


def take_over_run(tx: Transaction, run: OpenRun) -> OpenRun:
    """Own an open run in order to end it; whoever worked on it does so no longer."""
    row = tx.db.execute(
        "update run set state = 'running', fence = fence + 1, owner = ?"
        " where id = ? and state in ('running', 'waiting') returning *",
        (tx.owner, run.run_id),
    ).fetchone()
    return _open_run_from_row(row)


def clamp_future_times(tx: Transaction, longest_retry: timedelta, longest_async: timedelta) -> None:
    """After the system clock was set back: no open run has begun in the future.

    None waits for a retry, or for a result that comes later, for longer than these two.
    """
    retry_at, result_due_at = to_millis(tx.now + longest_retry), to_millis(tx.now + longest_async)
    tx.db.execute("update run set not_before = min(not_before, ?) where state = 'waiting'", (retry_at,))
    tx.db.execute("update run set result_due_at = min(result_due_at, ?) where result_due_at is not null", (result_due_at,))
    tx.db.execute(
        "update run set started_at = min(started_at, ?) where state in ('running', 'waiting')",
        (to_millis(tx.now),),
    )

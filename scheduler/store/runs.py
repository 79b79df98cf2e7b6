"""Opens, claims, retries and closes runs: one row per run, fenced so that only its current owner can write it.

The usual order is `open_run` (or `claim_next_attempt`), `add_usage` for each call, then `close_run`, `keep_run_for_retry` or
`defer_run`. Each of them does nothing if the run has been taken over since.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import reduce

from heartbeat.prompt import EarlierOutput
from heartbeat.result import SentPrompt
from heartbeat.runners import Tokens, ToolCall
from heartbeat.runners.agent_json import MAX_TOOL_CALLS
from scheduler.model.budget import Amount
from scheduler.model.entry import Claim, OpenRun
from scheduler.model.entry_row import EntryRow
from scheduler.model.events import RunClosed
from scheduler.model.outcome import AttemptResult, Key, Kind, Outcome, Reason, Skip, Trigger
from scheduler.model.prompt_cache import LOOKS_KEPT, MISSES, CacheLook
from scheduler.model.timestamps import from_millis, from_optional_millis, to_millis
from scheduler.store.rows import insert_new, read_row
from scheduler.store.slot_records import UNLESS_RECORDED
from scheduler.store.transaction import Transaction, first_time, recall

PRECHECK_KEPT = 4096  # characters of a precheck's output that are kept
BY_PROGRAM = "trigger in ('cron', 'api', 'webhook', 'reminder')"
BY_PROGRAMS = f"kind = ? and name = ? and {BY_PROGRAM}"

Usage = dict[str, float | None]  # the number of calls, their cost in USD (None: unknown), and their tokens by kind
Span = tuple[datetime, datetime]  # (after, until]; later runs are from before the clock was set back

# The closed runs without an undelivered message or an awaited result, and that nothing else needs. What follows from the end of
# a message is found out at the end of its tick, so the message is still needed there. There are two queries of undelivered
# messages: each of them has an index.
DELETABLE = (
    "state = 'closed' and result_due_at is null"  # noqa: S608 (literals)
    " and id not in (select cast(value as bigint) from json_each(:needed))"
    f" and not (kind = 'heartbeat' and {BY_PROGRAM} and started_at > :flood and outcome <> 'skipped')"
    " and id not in (select after_run from wake where state in ('waiting', 'taken') and after_run is not null)"
    " and id not in (select run_id from outbox where state = 'pending'"
    " union all select run_id from outbox where state in ('sending', 'uncertain', 'held'))"
    " and not exists (select 1 from outbox where outbox.run_id = run.id and outbox.finished_at = :now)"
)


def open_run(
    tx: Transaction, key: Key, slot: datetime, trigger: Trigger, model: str | None = None, woken_by: str | None = None
) -> OpenRun | None:
    """Insert the run of a first attempt, or that of a late result, in addition to any open run.

    None if that slot has a run, or its result, already. `woken_by` is the sender of the wake that starts the run.
    """
    state = "reported" if trigger is Trigger.RESULT else "running"
    record = {
        "kind": key[0], "name": key[1], "slot": slot, "trigger": trigger, "state": state, "attempt": 1, "fence": 1,
        "owner": tx.owner, "started_at": tx.now, "config_hash": tx.config_hash, "model_requested": model, "woken_by": woken_by,
    }  # fmt: skip
    run_id = insert_new(tx.db, "run", record, UNLESS_RECORDED)
    return None if run_id is None else OpenRun(run_id, state, slot, trigger, 1, 0, 1, tx.owner, tx.now)


def claim_next_attempt(tx: Transaction, run: OpenRun, model: str | None) -> OpenRun | None:
    """Claim the next attempt of a waiting run, with the active config; None if it no longer waits."""
    row = tx.db.execute(
        "update run set state = 'running', fence = fence + 1, attempt = attempt + 1, owner = ?, not_before = null,"
        " model_requested = ?, config_hash = ?, cut_at = null, worker = null,"
        " started_at = case when outcome in ('skipped', 'abandoned') or cut_at is not null then ? else started_at end"
        " where id = ? and state = 'waiting' and fence = ? returning *",
        (tx.owner, model, tx.config_hash, to_millis(tx.now), run.id, run.fence),
    ).fetchone()
    return replace(_open_run_from_row(row), started_at=tx.now) if row else None


def take_over_run(tx: Transaction, run: OpenRun) -> OpenRun:
    """Take over an open run in order to end it. Its earlier owner can no longer write it."""
    row = tx.db.execute(
        "update run set state = 'running', fence = fence + 1, owner = ?"
        " where id = ? and state in ('running', 'waiting') returning *",
        (tx.owner, run.id),
    ).fetchone()
    return _open_run_from_row(row)


def retry_waiting_run_now(tx: Transaction, entry_row: EntryRow, reason: Skip) -> bool:
    """Let the run of an entry that waits for its lock or provider be tried at once; False if there is none."""
    row = tx.db.execute(
        "update run set not_before = ? where kind = ? and name = ? and state = 'waiting' and reason = ? returning id",
        (to_millis(tx.now), *entry_row.key, reason),
    ).fetchone()
    return row is not None


def find_open_run(db: sqlite3.Connection, kind: Kind, name: str) -> OpenRun | None:
    """The open run of an entry, if it has one. A partial unique index makes a second one impossible."""
    row = db.execute("select * from run where kind = ? and name = ? and state in ('running', 'waiting')", (kind, name)).fetchone()
    return _open_run_from_row(row) if row else None


def open_runs_of(db: sqlite3.Connection, entry_rows: Sequence[EntryRow]) -> dict[int, OpenRun]:
    """The open runs of these entries by the ids of their rows: one query for all entries that are due in a tick."""
    if not entry_rows:
        return {}
    rows = db.execute(
        "select entry.id as entry_id, run.* from entry join run on run.kind = entry.kind and run.name = entry.name"
        " where run.state in ('running', 'waiting') and entry.id in (select cast(value as bigint) from json_each(?))",
        (json.dumps([entry_row.id for entry_row in entry_rows]),),
    )
    return {row["entry_id"]: _open_run_from_row(row) for row in rows}


def all_open_runs(db: sqlite3.Connection) -> list[tuple[Kind, str, OpenRun]]:
    """Every open run with the kind and name of its entry."""
    rows = db.execute("select * from run where state in ('running', 'waiting')").fetchall()
    rows.sort(key=lambda row: row["id"])  # with `order by id`, SQLite would read the whole history, by the id
    return [(Kind(row["kind"]), row["name"], _open_run_from_row(row)) for row in rows]


def find_open_run_by_id(db: sqlite3.Connection, run_id: int) -> tuple[Kind, str, OpenRun] | None:
    """One open run with the kind and name of its entry; None if it is closed or never existed."""
    row = db.execute("select * from run where id = ? and state in ('running', 'waiting')", (run_id,)).fetchone()
    return (Kind(row["kind"]), row["name"], _open_run_from_row(row)) if row else None


def any_open_or_due(tx: Transaction, kind: Kind, names: Sequence[str]) -> bool:
    """Whether one of these entries has an open run or is due."""
    row = tx.db.execute(
        "select 1 from json_each(?) as named where"
        " exists (select 1 from run where kind = ? and name = named.value and state in ('running', 'waiting'))"
        " or exists (select 1 from entry where kind = ? and name = named.value and due_at <= ?) limit 1",
        (json.dumps(names), kind, kind, to_millis(tx.now)),
    ).fetchone()
    return row is not None


def is_run_open(db: sqlite3.Connection, run_id: int) -> bool:
    """Whether a run is in progress or waits for its next attempt."""
    return db.execute("select 1 from run where id = ? and state <> 'closed'", (run_id,)).fetchone() is not None


def _open_run_from_row(row: sqlite3.Row) -> OpenRun:
    return read_row(OpenRun, row, owner=row["owner"] or "")


def owns_run(tx: Transaction, claim: Claim) -> bool:
    """Whether a run in progress still belongs to the claim."""
    query = f"select 1 from run where {OWN} and state = 'running'"  # noqa: S608 (literals)
    return tx.db.execute(query, (claim.run.id, claim.run.owner, claim.run.fence)).fetchone() is not None


OWN = "id = ? and owner = ? and fence = ?"


def _change_own_run(tx: Transaction, run: OpenRun, changes: str, *values: object) -> bool:
    """Change a run in progress, unless it was taken over since; False, and nothing written, if it was."""
    query = f"update run set {changes} where {OWN} and state = 'running'"  # noqa: S608 (literals)
    return tx.db.execute(query, (*values, run.id, run.owner, run.fence)).rowcount > 0


def record_worker(tx: Transaction, claim: Claim, worker: str) -> None:
    """Record the worker that executes an attempt, or has executed it, if the run still belongs to the claim."""
    _change_own_run(tx, claim.run, "worker = ?", worker)


def add_usage(
    tx: Transaction,
    claim: Claim,
    calls: Sequence[tuple[str, Tokens, float | None]],
    prompt: SentPrompt,
    cache_saved: float,
    charge: Amount,
) -> bool:
    """Add the usage of calls to their run. False, and nothing written, if the run no longer belongs to the claim.

    Each call has its model (empty if it is not known), its tokens, and its cost. A cost of None means unknown. From then on the
    cost of the whole run is unknown, because a partial sum would be wrong. `cache_saved` is in USD. `charge` is added to what was
    reserved for the attempt, if anything was.
    """
    usage: dict[str, Usage] = {}
    if claim.run.outcome is not None:  # the first attempt of a run has nothing before it
        (before,) = tx.db.execute("select model_usage from run where id = ?", (claim.run.id,)).fetchone() or (None,)
        usage = json.loads(before or "{}")
    for model, tokens, usd in calls:
        used: Usage = {"calls": 1, "usd": usd, **tokens.by_kind()}
        usage[model] = _add_usages(usage[model], used) if model in usage else used
    total = reduce(_add_usages, usage.values())
    summed = {kind: number for kind, number in total.items() if kind not in ("calls", "usd")}
    changes = (
        "cost_usd = ?, tokens = ?, model_usage = ?, static_digest = ?, cache_ttl = ?,"
        f" cache_saved_usd = coalesce(cache_saved_usd, 0) + ?, {CHARGE}"
    )
    sums, kept = (total["usd"], json.dumps(summed), json.dumps(usage)), (prompt.static_digest or None, prompt.cache, cache_saved)
    return _change_own_run(tx, claim.run, changes, *sums, *kept, charge.nanos, charge.tokens)


def add_charge(tx: Transaction, claim: Claim, charge: Amount) -> bool:
    """The same for an attempt whose usage is not known."""
    return _change_own_run(tx, claim.run, CHARGE, charge.nanos, charge.tokens)


CHARGE = "charged_nanos = charged_nanos + ?, charged_tokens = charged_tokens + ?"
LAST_LOOKS = """
select started_at, static_digest, cache_ttl, tokens, model_usage from run
where kind = ? and name = ? and static_digest is not null order by id desc limit ?
"""
LAST_ASKED = LAST_LOOKS.replace("order by", "and cache_ttl is not null order by")


def last_cache_looks(db: sqlite3.Connection, key: Key, *, asked: bool = False) -> list[CacheLook]:
    """What the last runs that sent a prompt with a part for the cache had of it, the latest first.

    `asked`: the last of those in which the provider was asked to keep it.
    """
    found = []
    for row in db.execute(LAST_ASKED if asked else LAST_LOOKS, (key[0].value, key[1], MISSES + 1 if asked else LOOKS_KEPT)):
        tokens, usage = json.loads(row["tokens"]), json.loads(row["model_usage"])
        calls = sum(each["calls"] for each in usage.values())
        read, written = tokens["cache_read"], tokens["cache_write"]
        found.append(CacheLook(from_millis(row["started_at"]), row["static_digest"], row["cache_ttl"], read, written, calls))
    return found


def _add_usages(one: Usage, other: Usage) -> Usage:
    return {key: None if value is None or (more := other[key]) is None else value + more for key, value in one.items()}


CLOSE_OWN = f"""
update run set state = 'closed', finished_at = coalesce(cut_at, ?), prompt_parts = ?,
  outcome = ?, reason = ?, suppression = ?, model_used = ?, exit_code = ?, text = ?, error = ?,
  precheck_exit = ?, precheck_output = ?, precheck_error = ?, tool_calls = ?, log = ?, truncated = ?, result_due_at = ?,
  request_id = ?, left_out = ?, findings = ?, repeats = ?, fallback = ?, fallback_why = ?
where {OWN} and state in ('running', 'reported') returning finished_at, worker
"""  # noqa: S608 (literals)


def close_run(tx: Transaction, claim: Claim, result: AttemptResult, repeats: Sequence[int] = ()) -> bool:
    """Close the run of a claim. False, and nothing written, if the run no longer belongs to it.

    `repeats` are the runs whose messages have the content of this one, if it is not sent again.
    """
    run, (kind, name) = claim.run, claim.entry.key
    common = (result.outcome, result.reason, result.suppression, result.model_used, result.exit_code, result.text, result.error)
    checked = _precheck_columns(result)
    result_due_at = tx.now + claim.entry.spec.async_timeout if result.outcome is Outcome.ASYNC else None
    values = (
        to_millis(tx.now), json.dumps(dict(result.prompt.part_sizes)), *common, *checked,
        _tool_calls_json([*_earlier_tool_calls(tx, claim), *result.tool_calls]), result.log,
        result.truncated, result_due_at and to_millis(result_due_at), result.request_id,
        json.dumps(result.prompt.left_out) if result.prompt.left_out else None,
        json.dumps(result.findings) if result.findings else None,
        json.dumps(list(repeats)) if repeats else None, result.fallback, result.fallback_why,
    )  # fmt: skip
    closed = tx.db.execute(CLOSE_OWN, (*values, run.id, run.owner, run.fence)).fetchone()
    if closed is None:
        return False
    finished_at, started_at = from_millis(closed["finished_at"]), min(run.started_at, tx.now)  # the clock may have been set back
    tx.report(
        RunClosed(
            run.id, kind, name, run.slot, run.trigger, result, finished_at,
            attempt=run.attempt, started_at=started_at, worker=closed["worker"],
        )
    )  # fmt: skip
    return True


def keep_run_for_retry(tx: Transaction, claim: Claim, result: AttemptResult, not_before: datetime) -> bool:
    """Let a run wait for its next attempt, with the result of the last one. False if the run no longer belongs to the claim."""
    return _change_own_run(
        tx, claim.run,
        "state = 'waiting', not_before = ?, outcome = ?, reason = ?, error = ?, text = ?,"
        " precheck_exit = ?, precheck_output = ?, precheck_error = ?, tool_calls = ?, request_id = ?",
        to_millis(not_before), result.outcome, result.reason, result.error, result.text, *_precheck_columns(result),
        _tool_calls_json([*_earlier_tool_calls(tx, claim), *(call for call in result.tool_calls if call.is_our_own)]),
        result.request_id,
    )  # fmt: skip


def defer_run(tx: Transaction, claim: Claim, reason: Skip, not_before: datetime, detail: str | None = None) -> bool:
    """Let a run wait for what blocks it, as if this attempt had not begun. False if the run no longer belongs to the claim.

    The result of an earlier attempt is kept. Without one the outcome is `skipped` so far, and `detail` is its error.
    """
    changes = (
        "state = 'waiting', not_before = ?, attempt = attempt - 1, reason = ?,"
        " error = case when coalesce(outcome, 'skipped') = 'skipped' then coalesce(?, error) else error end,"
        " outcome = coalesce(outcome, 'skipped')"
    )
    return _change_own_run(tx, claim.run, changes, to_millis(not_before), reason, detail)


def _precheck_columns(result: AttemptResult) -> tuple[int | None, str | None, str | None]:
    """The columns of a precheck: its exit code, the beginning of its output, and why it failed."""
    checked = result.precheck
    return (checked.exit_code, checked.output[:PRECHECK_KEPT], checked.error or None) if checked else (None, None, None)


def _earlier_tool_calls(tx: Transaction, claim: Claim) -> list[ToolCall]:
    """The tools that the daemon called for a model in earlier attempts of a run. They may have changed something."""
    if claim.run.attempt <= 1:
        return []
    (stored,) = tx.db.execute("select tool_calls from run where id = ?", (claim.run.id,)).fetchone() or (None,)
    return [ToolCall(**call) for call in json.loads(stored or "[]")]


def _tool_calls_json(calls: Sequence[ToolCall]) -> str | None:
    return json.dumps([call.as_data() for call in calls[-MAX_TOOL_CALLS:]]) if calls else None


def mark_run_cancelled(tx: Transaction, run_id: int) -> None:
    """Record that a user cancels a run in progress. It is then not resumed if the daemon crashes before the run ends."""
    tx.db.execute("update run set reason = ? where id = ? and state = 'running'", (Reason.CANCELLED, run_id))


def record_interruption(tx: Transaction, run: OpenRun, cut_at: datetime) -> None:
    """Record when a run was interrupted. If no other attempt begins, the run ended then."""
    tx.db.execute("update run set cut_at = max(?, started_at) where id = ?", (to_millis(cut_at), run.id))


def requeue_interrupted_run(tx: Transaction, run: OpenRun, *, crashed: bool) -> None:
    """Let an interrupted run wait for another attempt. An interruption by our own stop does not count as an attempt."""
    changes = (
        "state = 'waiting', not_before = ?, fence = fence + 1, crashes = crashes + ?, attempt = attempt - ?,"
        " outcome = coalesce(nullif(outcome, 'skipped'), 'abandoned')"
    )
    _change_own_run(tx, run, changes, to_millis(tx.now), int(crashed), int(not crashed))


def close_undeclared_run(tx: Transaction, kind: Kind, name: str, run: OpenRun, result: AttemptResult) -> None:
    """Close an open run of an entry that the config no longer declares. No notification is sent."""
    row = tx.db.execute(
        "update run set state = 'closed', outcome = ?, reason = ?, error = ?, finished_at = coalesce(cut_at, ?),"
        " fence = fence + 1 where id = ? returning finished_at",
        (result.outcome, result.reason, result.error, to_millis(tx.now), run.id),
    ).fetchone()
    finished_at = from_millis(row["finished_at"])
    tx.report(
        RunClosed(
            run.id, kind, name, run.slot, run.trigger, result, finished_at,
            attempt=run.attempt, started_at=run.started_at,
        )
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class AwaitedResult:
    """A run that ended `async`: its result comes later. It is awaited until `due_at`; None: no longer.

    `given_up`: the result did not come in time.
    """

    run_id: int
    kind: Kind
    name: str
    slot: datetime
    due_at: datetime | None
    given_up: bool = False

    @property
    def key(self) -> Key:
        return self.kind, self.name


def find_awaited_result(db: sqlite3.Connection, run_id: int) -> AwaitedResult | None:
    """The awaited result of a run; None if the run did not end `async`."""
    row = db.execute(
        "select run.id as run_id, run.kind, run.name, run.slot, run.result_due_at as due_at,"
        " result.reason is not distinct from 'no_result' as given_up from run"
        " left join run as result on result.kind = run.kind and result.name = run.name and result.slot = run.slot"
        " and result.trigger = 'result' where run.id = ? and run.outcome = 'async'",
        (run_id,),
    ).fetchone()
    return read_row(AwaitedResult, row) if row else None


def overdue_results(db: sqlite3.Connection, now: datetime, limit: int) -> list[AwaitedResult]:
    """The runs whose result should have come by now, the oldest first. While a person is asked, the time of a run stops."""
    rows = db.execute(
        "select id as run_id, kind, name, slot, result_due_at as due_at from run where result_due_at <= ?"
        " and id not in (select run_id from question where state = 'open') order by result_due_at limit ?",
        (to_millis(now), limit),
    )
    return [read_row(AwaitedResult, row) for row in rows]


def next_overdue_at(db: sqlite3.Connection) -> datetime | None:
    """When the next awaited result becomes overdue."""
    query = (
        "select min(result_due_at) from run where result_due_at is not null"
        " and id not in (select run_id from question where state = 'open')"
    )
    return recall(db, query, first_time)


def stop_awaiting_result(tx: Transaction, kind: Kind, name: str, slot: datetime) -> None:
    """Record that the result of a slot has come, or is given up."""
    tx.db.execute(
        "update run set result_due_at = null where kind = ? and name = ? and slot = ? and result_due_at is not null",
        (kind, name, to_millis(slot)),
    )


def postpone_awaited_result(tx: Transaction, run_id: int, until: datetime) -> None:
    """Await the result of a run until a later time."""
    tx.db.execute("update run set result_due_at = ? where id = ?", (to_millis(until), run_id))


def has_newer_answer(db: sqlite3.Connection, claim: Claim) -> bool:
    """Whether a run of a later slot or wake of the same entry has been answered."""
    query = (
        "select exists (select 1 from run where kind = ? and name = ? and slot > ? and state = 'closed'"
        " and outcome in ('ok', 'alert'))"
    )
    return bool(db.execute(query, (*claim.entry.key, to_millis(claim.run.slot))).fetchone()[0])


def last_error(db: sqlite3.Connection, kind: Kind, name: str) -> str | None:
    """The error of the entry's last failed run."""
    query = (
        "select error from run where kind = ? and name = ? and state = 'closed' and outcome in ('failed', 'timeout', 'abandoned')"
        " order by id desc limit 1"
    )
    row = db.execute(query, (kind, name)).fetchone()
    return row["error"] if row else None


def nth_last_program_start(db: sqlite3.Connection, kind: Kind, name: str, span: Span, nth: int) -> datetime | None:
    """When the `nth` last run in a time began that was started by a program's wake; refused runs do not count.

    None if there were fewer.
    """
    query = (
        f"select started_at from run where {BY_PROGRAMS} and started_at > ? and started_at <= ?"  # noqa: S608
        " and outcome is distinct from 'skipped'"
        " order by started_at desc limit 1 offset ?"
    )
    row = db.execute(query, (kind, name, *map(to_millis, span), nth - 1)).fetchone()
    return from_millis(row["started_at"]) if row else None


def record_accounts(tx: Transaction, run_id: int, accounts: Set[str]) -> None:
    """Record accounts whose programs a run calls, in addition to those that it has called before."""
    if not accounts:
        return
    (before,) = tx.db.execute("select accounts from run where id = ?", (run_id,)).fetchone()
    known = {*json.loads(before or "[]")}
    if not accounts <= known:
        tx.db.execute("update run set accounts = ? where id = ?", (json.dumps(sorted(accounts | known)), run_id))


def starts_with_account(tx: Transaction, account: str, within: timedelta) -> list[tuple[int, datetime]]:
    """The runs that have called programs with this account and began `within` before now, each with its start.

    Skips do not count, also those that a model has decided on, nor runs that begin after now: the clock was set back since. A run
    in progress that waited for its lock before is `skipped` so far, and counts.
    """
    query = (
        "select id, started_at from run where accounts is not null and started_at > ? and started_at <= ?"
        " and (state = 'running' or outcome is distinct from 'skipped') and suppression is distinct from 'decided_skip'"
        " and ? in (select value from json_each(run.accounts))"
    )
    rows = tx.db.execute(query, (to_millis(tx.now - within), to_millis(tx.now), account))
    return [(row["id"], from_millis(row["started_at"])) for row in rows]


def last_refused_program_start(db: sqlite3.Connection, kind: Kind, name: str, span: Span) -> datetime | None:
    """When the last run in a time was refused that a program's wake had started; None if there was none."""
    query = f"select max(finished_at) from run where {BY_PROGRAMS} and started_at > ? and started_at <= ? and outcome = 'skipped'"  # noqa: S608
    return from_optional_millis(db.execute(query, (kind, name, *map(to_millis, span))).fetchone()[0])


def newest_run(db: sqlite3.Connection, kind: Kind, name: str) -> tuple[int, Trigger, datetime] | None:
    """Id, trigger and slot of the newest run of an entry; None without runs."""
    query = "select id, trigger, slot from run where kind = ? and name = ? order by id desc limit 1"
    row = db.execute(query, (kind, name)).fetchone()
    return (row["id"], Trigger(row["trigger"]), from_millis(row["slot"])) if row else None


def last_text(db: sqlite3.Connection, kind: Kind, name: str) -> str | None:
    """The text of the last closed run that has one."""
    query = "select text from run where kind = ? and name = ? and state = 'closed' and text is not null order by id desc limit 1"
    row = db.execute(query, (kind, name)).fetchone()
    return row[0] if row else None


def output_of_run(db: sqlite3.Connection, run_id: int) -> EarlierOutput | None:
    """What a run of a job printed or answered; None if its record was deleted."""
    row = db.execute("select * from run where id = ?", (run_id,)).fetchone()
    return _output_from_row(row) if row else None


def last_output(db: sqlite3.Connection, job: str, outcomes: Iterable[Outcome]) -> EarlierOutput | None:
    """What the last run of a job with one of these outcomes printed or answered; None without one."""
    query = (
        "select * from run where kind = ? and name = ? and state = 'closed' and outcome in (select value from json_each(?))"
        " order by id desc limit 1"
    )
    row = db.execute(query, (Kind.CRON, job, json.dumps(sorted(outcomes)))).fetchone()
    return _output_from_row(row) if row else None


def _output_from_row(row: sqlite3.Row) -> EarlierOutput:
    at = from_optional_millis(row["finished_at"]) or from_millis(row["slot"])
    return EarlierOutput(row["name"], row["id"], row["outcome"] or row["state"], row["text"] or "", at)


@dataclass(frozen=True, slots=True)
class NeededRuns:
    """The runs whose records must stay: those with these ids, and those that wakes of programs have started within `flood`."""

    ids: Collection[int] = ()
    flood: timedelta = timedelta()

    def values(self, now: datetime) -> dict[str, object]:
        """The values for `DELETABLE`."""
        return {"now": to_millis(now), "needed": json.dumps([*self.ids]), "flood": to_millis(now - self.flood)}


def delete_old_runs(tx: Transaction, keep: timedelta, batch: int, needed: NeededRuns) -> int:
    """Delete closed runs that ended more than `keep` ago, the oldest first, at most `batch`; returns how many.

    Runs with an undelivered message or an awaited result stay, and so do those that are `needed`.
    """
    query = f"select id from run where finished_at < :old and {DELETABLE} order by finished_at limit :batch"  # noqa: S608
    values = needed.values(tx.now) | {"old": to_millis(tx.now - keep), "batch": batch}
    return _delete_runs(tx, tx.db.execute(query, values).fetchall())


def entries_with_surplus_runs(db: sqlite3.Connection, after: int, until: int, runs: int) -> list[tuple[int, Kind, str]]:
    """The entries with ids in (after, until] that have more than `runs` runs. One statement for all of them."""
    rows = db.execute(
        "select id, kind, name from entry where id > ? and id <= ? and exists (select 1 from run where run.kind = entry.kind"
        " and run.name = entry.name order by run.id desc limit 1 offset ?) order by id",
        (after, until, runs),
    ).fetchall()
    return [(row["id"], Kind(row["kind"]), row["name"]) for row in rows]


def delete_surplus_runs(tx: Transaction, kind: Kind, name: str, runs: int, batch: int, needed: NeededRuns) -> int:
    """Delete all but the newest `runs` closed runs of an entry, and those `needed`, at most `batch`; returns how many."""
    key = (kind, name)
    place = tx.db.execute(
        "select id from run where kind = ? and name = ? order by id desc limit 1 offset ?", (*key, runs)
    ).fetchone()
    if place is None:
        return 0
    query = f"select id from run where kind = :kind and name = :name and id <= :last and {DELETABLE} limit :batch"  # noqa: S608
    values = needed.values(tx.now) | {"kind": kind, "name": name, "last": place["id"], "batch": batch}
    return _delete_runs(tx, tx.db.execute(query, values).fetchall())


def _delete_runs(tx: Transaction, rows: list[sqlite3.Row]) -> int:
    if not rows:
        return 0
    ids = [(row["id"],) for row in rows]
    tx.db.executemany("delete from outbox where run_id = ?", ids)
    tx.db.executemany("delete from question where run_id = ?", ids)
    tx.db.executemany("delete from run where id = ?", ids)
    return len(ids)

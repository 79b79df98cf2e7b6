"""Keeps wakes until the agent has them in a prompt: merges them per sender, spaces them, returns them after a failed run."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from heartbeatd.answers import Reminder, RunWake
from scheduler.model.entry_row import EntryRow
from scheduler.model.events import WakeMoved
from scheduler.model.outcome import Kind, Trigger, WakeResult
from scheduler.model.timestamps import from_millis, from_optional_millis, to_millis, to_optional_millis
from scheduler.model.wake import MAX_REMINDERS, WAITS_FOR_FLOOD, WAITS_FOR_GAP, RejectedBecause, Wake, clip_wake_text
from scheduler.store import entries, runs
from scheduler.store.rows import read_row
from scheduler.store.transaction import Transaction, first_time, recall

# Reminders do not merge: each has its own time and text.
SAME_SENDER = (
    "state = 'waiting' and source <> 'reminder' and kind = :kind and name = :name and source = :source and sender = :sender"
    " and token = :token"
)

OF_SENDER = f"select * from wake where {SAME_SENDER}"  # noqa: S608 (literals of this file, as below)

# A merged wake starts a run no later than the waiting row would have, unless it has just been refused.
MERGE = f"""
update wake set count = count + 1, text = :text, outcome = :outcome, updated_at = :now,
  after_run = :after_run, tries = case when :urgent = 1 then 0 else tries end, run_id = coalesce(:run, run_id),
  waits_for = case when :refused = 1 or cast(:start as bigint) < coalesce(due_at, cast(:start as bigint) + 1) then :waits_for
    else waits_for end,
  due_at = case when :refused = 1 then :start
    else min(coalesce(due_at, :start), coalesce(:start, due_at)) end
where {SAME_SENDER} returning id
"""  # noqa: S608

INSERT = """
insert into wake (kind, name, source, sender, token, text, outcome, created_at, updated_at, due_at, held_until, waits_for, run_id,
  after_run, state)
values (:kind, :name, :source, :sender, :token, :text, :outcome, :now, :now, :start, :held_until, :waits_for, :run, :after_run,
  'waiting')
returning id
"""

# A reminder whose time has come is a wake from then on. It keeps its number.
START_REMINDER = """
update wake set state = 'waiting', updated_at = :now, due_at = :start, waits_for = :waits_for, run_id = :run
where id = :id and state = 'planned' returning id
"""

# The same text of the same sender moves its reminder, so that a repeated answer does not set a second one.
MOVE_REMINDER = """
update wake set due_at = :at, timer = :timer, updated_at = :now where state = 'planned' and kind = :kind and name = :name
  and sender = :sender and token = :token and text = :text returning id
"""

INSERT_REMINDER = """
insert into wake (kind, name, source, sender, token, text, created_at, updated_at, due_at, timer, state)
values (:kind, :name, :source, :sender, :token, :text, :now, :now, :at, :timer, 'planned') returning id
"""

JOIN_NEWER = f"""
update wake set text = :text, count = count + :more, tries = max(tries, :tries), due_at = coalesce(due_at, :again_at)
where {SAME_SENDER}
"""  # noqa: S608


def keep_wake(
    tx: Transaction,
    entry_row: EntryRow,
    wake: Wake,
    due_at: datetime | None,
    *,
    waits_for: str | None = None,
    refused_by: int | None = None,
    held_until: datetime | None = None,
) -> int:
    """Keep a wake until it was delivered to its agent; returns the id of its row.

    Wakes of one source, sender and token merge into a row with a count and the latest text. `due_at` is when it may start a run
    (None: it waits for another run), `waits_for` why not at once, `refused_by` the run that was refused. Until `held_until` it
    does not start a run by itself, because more wakes are expected; `release_held_wakes` ends that.
    """
    values = _columns(wake) | {
        "text": clip_wake_text(wake.text), "outcome": wake.outcome, "urgent": wake.urgent, "now": to_millis(tx.now),
        "start": to_optional_millis(due_at), "held_until": to_optional_millis(held_until), "waits_for": waits_for,
        "run": refused_by, "after_run": wake.after_run, "refused": waits_for not in (None, WAITS_FOR_GAP, WAITS_FOR_FLOOD),
    }  # fmt: skip
    row = tx.db.execute(MERGE, values).fetchone()
    if row is not None:
        _report_result(tx, wake, WakeResult.JOINED)
    else:
        row = tx.db.execute(START_REMINDER if wake.id else INSERT, values | {"id": wake.id}).fetchone()
    if waits_for is not None:
        _report_result(tx, wake, WakeResult.DEFERRED, final=False)
    _advance_due_at(tx, entry_row)
    return int(row["id"])


def keep_reminder(tx: Transaction, reminder: Wake, at: datetime, *, is_timer: bool) -> int | None:
    """Keep a reminder until its time; returns the id of its row, None if the agent has MAX_REMINDERS already.

    `is_timer`: its time was given as a span, so it moves when the system clock is changed.
    """
    values = _columns(reminder) | {
        "text": clip_wake_text(reminder.text), "now": to_millis(tx.now), "at": to_millis(at), "timer": int(is_timer),
    }  # fmt: skip
    row = tx.db.execute(MOVE_REMINDER, values).fetchone()
    if row is None and len(list_reminders(tx.db, reminder.name)) < MAX_REMINDERS:
        row = tx.db.execute(INSERT_REMINDER, values).fetchone()
    return int(row["id"]) if row else None


def list_reminders(db: sqlite3.Connection, agent: str | None = None) -> list[Reminder]:
    """The reminders of an agent, or of all, whose time has not come, the next one first."""
    query = "select * from wake where state = 'planned' and (cast(? as text) is null or name = ?) order by due_at, id"
    return [
        read_row(Reminder, row, wake=row["id"], at=from_millis(row["due_at"]), by=row["sender"])
        for row in db.execute(query, (agent, agent))
    ]


def due_reminders(db: sqlite3.Connection, now: datetime, limit: int) -> list[Wake]:
    """The reminders whose time has come, the oldest first, at most `limit`."""
    next_at = next_reminder_at(db)
    if next_at is None or next_at > now:
        return []
    query = "select * from wake where state = 'planned' and due_at <= ? order by due_at, id limit ?"
    return [_wake_from_row(row) for row in db.execute(query, (to_millis(now), limit))]


def next_reminder_at(db: sqlite3.Connection) -> datetime | None:
    """When the time of the next reminder comes; None if there is none."""
    return recall(db, "select min(due_at) from wake where state = 'planned'", first_time)


def postpone_reminder(tx: Transaction, reminder: Wake, at: datetime) -> None:
    """Look at a reminder again at another time."""
    tx.db.execute("update wake set due_at = ? where id = ? and state = 'planned'", (to_millis(at), reminder.id))


def end_waiting_wake(tx: Transaction, wake_id: int, why: RejectedBecause) -> Wake | None:
    """End one wake that waits, or a reminder, for this reason, and return it. None if it is in a run, or has ended."""
    result = WakeResult.CANCELLED if why is RejectedBecause.CANCELLED else WakeResult.REJECTED
    ended = _record_rejected(tx, _end(tx, "id = ? and state in ('waiting', 'planned')", wake_id), result, why)
    return ended[0] if ended else None


def find_wake_of_sender(tx: Transaction, wake: Wake) -> Wake | None:
    """The waiting wake of the same sender, with which this wake would merge."""
    if not _does_any_wait(tx):
        return None
    row = tx.db.execute(OF_SENDER, _columns(wake)).fetchone()
    return _wake_from_row(row) if row else None


def last_id(db: sqlite3.Connection) -> int:
    """The highest ID of a wake; 0 without wakes."""
    found: int = db.execute("select coalesce(max(id), 0) from wake").fetchone()[0]
    return found


def count_wakes_by_token(tx: Transaction, kind: Kind, name: str) -> dict[str, int]:
    """How many undelivered rows each token has. Wakes of users and jobs are under the empty name."""
    query = "select token, count(*) from wake where kind = ? and name = ? and state in ('waiting', 'taken') group by token"
    return dict(tx.db.execute(query, (kind, name)).fetchall())


def find_wait_reason(tx: Transaction, kind: Kind, name: str, reasons: Iterable[str]) -> tuple[str, datetime | None] | None:
    """For which of these reasons a wake of the entry waits, and when it starts a run; None if none waits for any."""
    if not _does_any_wait(tx):
        return None
    query = (
        "select waits_for, due_at from wake where kind = ? and name = ? and state = 'waiting'"
        " and waits_for in (select value from json_each(?)) limit 1"
    )
    row = tx.db.execute(query, (kind, name, json.dumps(list(reasons)))).fetchone()
    return (row["waits_for"], from_optional_millis(row["due_at"])) if row else None


def release_held_wakes(tx: Transaction, entry_row: EntryRow) -> None:
    """Let the held wakes of an agent start their run."""
    if _does_any_wait(tx):
        tx.db.execute(
            "update wake set held_until = null where kind = ? and name = ? and state = 'waiting'",
            entry_row.key,
        )
        _advance_due_at(tx, entry_row)


def start_waiting_wakes(tx: Transaction, kind: Kind, name: str, at: datetime, *, refused_only: bool) -> None:
    """Let waiting wakes of an entry start a run at `at` that would have waited for a slot. `refused_only`: only refused wakes."""
    if _does_any_wait(tx):
        tx.db.execute(
            "update wake set due_at = ? where kind = ? and name = ? and state = 'waiting' and due_at is null"
            " and (waits_for is not null or ? = 0)",
            (to_millis(at), kind, name, refused_only),
        )


def entries_with_delayed_wakes(tx: Transaction, reasons: Iterable[str]) -> list[EntryRow]:
    """The entries whose wakes are delayed for one of these reasons, until a time or until a slot."""
    rows = tx.db.execute(
        "select kind, name from wake where state = 'waiting' and (due_at > ? or due_at is null)"
        " and waits_for in (select value from json_each(?)) group by kind, name order by min(id)",
        (to_millis(tx.now), json.dumps(list(reasons))),
    ).fetchall()
    return [entries.get_entry(tx, Kind(row["kind"]), row["name"]) for row in rows]


def start_delayed_wakes_by(tx: Transaction, entry_row: EntryRow, at: datetime, gap: timedelta) -> None:
    """Let the delayed wakes of an entry start a run at `at`, or after the gap if that is later."""
    tx.db.execute(
        "update wake set due_at = min(due_at, ?) where kind = ? and name = ? and state = 'waiting'",  # min() leaves null as it is
        (to_millis(_after_gap(entry_row, at, gap)), *entry_row.key),
    )
    _advance_due_at(tx, entry_row)


def move_delayed_wakes(tx: Transaction, entry_row: EntryRow, reasons: Iterable[str], at: datetime | None, gap: timedelta) -> None:
    """Let the wakes of an entry that are delayed for these reasons start a run at `at`, or after the gap; None: by a slot."""
    start = None if at is None else to_millis(_after_gap(entry_row, at, gap))
    tx.db.execute(
        "update wake set due_at = ? where kind = ? and name = ? and state = 'waiting'"
        " and waits_for in (select value from json_each(?))",
        (start, *entry_row.key, json.dumps(list(reasons))),
    )


def _advance_due_at(tx: Transaction, entry_row: EntryRow) -> None:
    """Make the entry due as soon as a wake may start a run of it, unless a run is open."""
    at = next_start_at(tx, *entry_row.key)
    sooner = at is not None and (entry_row.due_at is None or at < entry_row.due_at)
    if sooner and runs.find_open_run(tx.db, *entry_row.key) is None:
        entries.change_entry(tx, entry_row, entry_row._replace(due_at=at))


def _after_gap(entry_row: EntryRow, at: datetime, gap: timedelta) -> datetime:
    return at if entry_row.last_woken_at is None else max(at, entry_row.last_woken_at + gap)


def _columns(wake: Wake) -> dict[str, object]:
    """The columns by which wakes of one sender merge."""
    return {"kind": wake.kind, "name": wake.name, "source": wake.source, "sender": wake.sender, "token": wake.token}


def next_start_at(tx: Transaction, kind: Kind, name: str) -> datetime | None:
    """When the next waiting wake of an entry is to start a run; None if none is."""
    if not _does_any_wait(tx):
        return None
    query = "select min(max(due_at, coalesce(held_until, 0))) from wake where kind = ? and name = ? and state = 'waiting'"
    return from_optional_millis(tx.db.execute(query, (kind, name)).fetchone()[0])


def any_starts_by(db: sqlite3.Connection, until: datetime) -> bool:
    """Whether any waiting wake starts a run by this time."""
    query = "select 1 from wake where state = 'waiting' and due_at <= ? limit 1"
    return db.execute(query, (to_millis(until),)).fetchone() is not None


def find_starting_wake(tx: Transaction, kind: Kind, name: str) -> Wake | None:
    """The wake that starts a run now: the one that has waited longest. None if none does."""
    if not _does_any_wait(tx):
        return None
    row = tx.db.execute(
        "select * from wake where kind = ? and name = ? and state = 'waiting'"
        " and max(due_at, coalesce(held_until, 0)) <= ? order by due_at, id limit 1",
        (kind, name, to_millis(tx.now)),
    ).fetchone()
    return _wake_from_row(row) if row else None


def take_waiting_wakes(tx: Transaction, kind: Kind, name: str, run_id: int, first: Wake | None) -> tuple[Wake, ...]:
    """Assign all waiting wakes of an entry to a run. `first` is the wake that started it; the others are delivered with it."""
    if not _does_any_wait(tx):
        return ()
    rows = tx.db.execute(
        "update wake set state = 'taken', run_id = ?, started = case when id = ? then 1 else 0 end"
        " where kind = ? and name = ? and state = 'waiting'"
        " returning *",
        (run_id, first.id if first else 0, kind, name),
    ).fetchall()
    return tuple(sorted((_wake_from_row(row) for row in rows), key=lambda wake: wake.id))


def take_newer_wakes(tx: Transaction, kind: Kind, name: str, run_id: int) -> tuple[Wake, ...]:
    """Assign to a run the wakes that came while it waited to begin. Those of one sender merge, also with those that it has.

    Returns the new ones.
    """
    for wake in reversed(wakes_taken_by(tx.db, run_id)):
        if _join_newer(tx, wake, None, wake.earlier_runs):
            tx.db.execute("update wake set run_id = null where id = ?", (wake.id,))  # the run shows only the newer one
    return take_waiting_wakes(tx, kind, name, run_id, None)


def wakes_taken_by(db: sqlite3.Connection, run_id: int) -> tuple[Wake, ...]:
    """The wakes that are assigned to a run and not yet ended."""
    rows = db.execute("select * from wake where run_id = ? and state = 'taken' order by id", (run_id,)).fetchall()
    return tuple(_wake_from_row(row) for row in rows)


def end_delivered_wakes(tx: Transaction, run_id: int) -> None:
    """End the wakes of a run that delivered them."""
    for wake in _end(tx, "run_id = ? and state = 'taken'", run_id):
        _report_result(tx, wake, _delivered_result(wake))


def reject_taken_wakes(tx: Transaction, run_id: int, why: RejectedBecause) -> None:
    """End the wakes of a run that cannot deliver them to its agent, now or later."""
    _record_rejected(tx, _end(tx, "run_id = ? and state = 'taken'", run_id), WakeResult.REJECTED, why)


def _end(tx: Transaction, which: str, *values: object) -> list[Wake]:
    """End the wakes for which this condition holds. Returns them, the oldest first."""
    query = f"update wake set state = 'ended', updated_at = ? where {which} returning *"  # noqa: S608 (literals of this file)
    rows = tx.db.execute(query, (to_millis(tx.now), *values)).fetchall()
    return sorted((_wake_from_row(row) for row in rows), key=lambda wake: wake.id)


def _record_rejected(tx: Transaction, ended: list[Wake], result: WakeResult, why: RejectedBecause) -> list[Wake]:
    """Report and record these ended wakes as rejected. Returns them."""
    for wake in ended:
        _report_result(tx, wake, result)
        if wake.kind is Kind.HEARTBEAT:
            _record_rejection(tx, wake, why)
    return ended


def _delivered_result(wake: Wake) -> WakeResult:
    """The result of a delivered wake: deferred if an earlier run did not deliver it, or something else delayed it."""
    if wake.earlier_runs or wake.waits_for not in (None, WAITS_FOR_GAP):
        return WakeResult.DEFERRED
    return WakeResult.STARTED if wake.started else WakeResult.JOINED


def return_wakes(tx: Transaction, run_id: int, again_at: datetime | None = None, why: str | None = None) -> None:
    """Let the wakes of a run that did not deliver them wait for the next run. They start none by themselves before `again_at`.

    `why` is the reason of the run that did not deliver them.
    """
    taken = wakes_taken_by(tx.db, run_id)
    for wake in reversed(taken):
        if not _join_newer(tx, wake, again_at, wake.earlier_runs + 1):
            tx.db.execute(
                "update wake set state = 'waiting', tries = tries + 1, started = 0, due_at = ?,"
                " waits_for = coalesce(?, waits_for) where id = ?",
                (to_optional_millis(again_at), why, wake.id),
            )
        _report_result(tx, wake, WakeResult.DEFERRED, final=False)


def _join_newer(tx: Transaction, wake: Wake, again_at: datetime | None, earlier_runs: int) -> bool:
    """Merge a wake of a run into a newer one of the same sender, if there is one that waits.

    The sender may have sent the newer one during the run, or while the run waited for its lock or a retry. Of programs
    and jobs, only the newer text is kept, the latest state. Of people, both texts are kept, and cut if they are too long.
    """
    newer = find_wake_of_sender(tx, wake)
    if newer is None:
        return False
    keeps_both = not wake.by_program and wake.text not in ("", newer.text)
    text = clip_wake_text(f"{wake.text}\n\n{newer.text}") if keeps_both else newer.text
    more = {"text": text, "more": wake.count, "tries": earlier_runs, "again_at": to_optional_millis(again_at)}
    tx.db.execute(JOIN_NEWER, _columns(wake) | more)
    tx.db.execute("update wake set state = 'ended', updated_at = ? where id = ?", (to_millis(tx.now), wake.id))
    _report_result(tx, wake, WakeResult.JOINED)
    return True


def delay_waiting_wakes(tx: Transaction, kind: Kind, name: str, gap: timedelta) -> None:
    """Let wakes that came during a run start the next one only after the gap."""
    if not _does_any_wait(tx):
        return
    start = to_millis(tx.now + gap)
    tx.db.execute(
        "update wake set due_at = ?, waits_for = coalesce(waits_for, ?)"
        " where kind = ? and name = ? and state = 'waiting' and due_at < ?",
        (start, WAITS_FOR_GAP if gap else None, kind, name, start),
    )


def expire_old_wakes(tx: Transaction, keep: timedelta) -> list[Wake]:
    """End the wakes that have waited longer than `keep`, and return them. Also delete rows that nothing shows any more.

    Wakes of a run stay as long as its record, all others for another `keep`.
    """
    last = to_millis(tx.now - keep)
    ended = _end(tx, "state = 'waiting' and updated_at < ?", last)
    expired = _record_rejected(tx, ended, WakeResult.EXPIRED, RejectedBecause.EXPIRED)
    tx.db.execute(
        "delete from wake where state = 'ended' and updated_at < ?"
        " and (run_id is null or not exists (select 1 from run where run.id = wake.run_id))",
        (last,),
    )
    return expired


def expire_wakes_of_entry(tx: Transaction, kind: Kind, name: str, why: RejectedBecause) -> list[Wake]:
    """End all waiting wakes of an entry that is disabled or was removed. Returns them."""
    return _record_rejected(tx, _end(tx, "kind = ? and name = ? and state = 'waiting'", kind, name), WakeResult.EXPIRED, why)


def reject_wake(tx: Transaction, wake: Wake, why: RejectedBecause) -> None:
    """Report and record that a wake was not accepted."""
    tx.report(WakeMoved(wake.name, wake.source, wake.sender, WakeResult.REJECTED, problem=why))
    _record_rejection(tx, wake, why)


def wakes_of_run(db: sqlite3.Connection, run_id: int) -> list[RunWake]:
    """The wakes that were last assigned to a run, with their whole texts."""
    rows = db.execute("select *, outcome as result from wake where run_id = ? order by id", (run_id,))
    return [read_row(RunWake, row) for row in rows]


@dataclass(frozen=True, slots=True)
class WakeState:
    """A wake without its text. `due_at` None: it starts no run.

    `state` is planned (a reminder before its time), waiting, taken (by the run `run_id`) or ended.
    """

    id: int
    kind: Kind
    name: str
    source: str
    state: str
    count: int
    waits_for: str | None
    due_at: datetime | None
    held_until: datetime | None
    run_id: int | None


def find_wake(db: sqlite3.Connection, wake_id: int) -> WakeState | None:
    """A wake; None if there is none."""
    row = db.execute("select * from wake where id = ?", (wake_id,)).fetchone()
    return read_row(WakeState, row) if row else None


WAITING = """
select *, outcome as result from wake where kind = ? and name = ? and state = 'waiting'
order by due_at is null, max(due_at, coalesce(held_until, 0)), id limit ?
"""


def next_waiting_wake(db: sqlite3.Connection, kind: Kind, name: str) -> WakeState | None:
    """The waiting wake of an entry that starts a run first. Wakes that start none come last."""
    row = db.execute(WAITING, (kind, name, 1)).fetchone()
    return read_row(WakeState, row) if row else None


def list_waiting_wakes(db: sqlite3.Connection, kind: Kind, name: str, limit: int) -> list[RunWake]:
    """The first `limit` waiting wakes of an entry with their texts. Those that start no run by themselves come last."""
    return [read_row(RunWake, row) for row in db.execute(WAITING, (kind, name, limit))]


@dataclass(frozen=True, slots=True)
class JobWake:
    """A wake by a cron job. `is_in_run`: a run has it. `earlier_runs`: how many had it before, and did not deliver it."""

    is_in_run: bool
    earlier_runs: int


def job_wakes_of(db: sqlite3.Connection, agent: str) -> dict[str, JobWake]:
    """The wakes of an agent by jobs, by job: those that wait, or are in a run, also in one whose result is still awaited."""
    rows = db.execute(
        "select sender, state, tries from wake where kind = ? and name = ? and source = ?"
        " and state in ('waiting', 'taken') order by state = 'taken'",  # one that is in a run replaces one that waits
        (Kind.HEARTBEAT, agent, Kind.CRON),
    )
    found = {row["sender"]: JobWake(row["state"] == "taken", row["tries"]) for row in rows}
    awaited = db.execute(
        "select distinct wake.sender from run join wake on wake.run_id = run.id where run.kind = ? and run.name = ?"
        " and run.result_due_at is not null and wake.source = ?",
        (Kind.HEARTBEAT, agent, Kind.CRON),
    )
    return found | {row["sender"]: JobWake(is_in_run=True, earlier_runs=0) for row in awaited}


def start_of_wake(db: sqlite3.Connection, wake_id: int) -> datetime | None:
    """When a waiting wake starts a run; None: it waits for another run."""
    row = db.execute("select max(due_at, coalesce(held_until, 0)) from wake where id = ?", (wake_id,)).fetchone()
    return from_optional_millis(row[0])


def wakes_of_slot(db: sqlite3.Connection, kind: Kind, name: str, slot: datetime) -> tuple[Wake, ...]:
    """The wakes that the asynchronous run of this slot has delivered."""
    rows = db.execute(
        "select wake.* from run join wake on wake.run_id = run.id where run.kind = ? and run.name = ? and run.slot = ?"
        " and run.outcome = 'async' and wake.state = 'ended' order by wake.id",
        (kind, name, to_millis(slot)),
    ).fetchall()
    return tuple(_wake_from_row(row) for row in rows)


def count_waiting_by_agent(db: sqlite3.Connection) -> dict[str, int]:
    """The number of waiting wakes of each agent."""
    query = "select name, count(*) as rows from wake where state = 'waiting' and kind = ? group by name order by name"
    return {row["name"]: row["rows"] for row in db.execute(query, (Kind.HEARTBEAT,))}


def _does_any_wait(tx: Transaction) -> bool:
    """Whether a wake waits for any entry. Usually none does."""
    return recall(tx.db, "select 1 from wake where state = 'waiting' limit 1", bool)


def count_waiting_wakes(db: sqlite3.Connection, kind: Kind, name: str) -> int:
    """The number of waiting wakes of an entry."""
    query = "select count(*) from wake where kind = ? and name = ? and state = 'waiting'"
    return int(db.execute(query, (kind, name)).fetchone()[0])


def _wake_from_row(row: sqlite3.Row) -> Wake:
    return read_row(Wake, row, urgent=row["due_at"] is not None, earlier_runs=row["tries"])


def _report_result(tx: Transaction, wake: Wake, result: WakeResult, *, final: bool = True) -> None:
    if wake.kind is Kind.HEARTBEAT:
        tx.report(WakeMoved(wake.name, wake.source, wake.sender, result, final))


ONE_RECORD = timedelta(hours=1)  # after it a repetition gets a record of its own


@dataclass(frozen=True, slots=True)
class RejectedWakes:
    """Wakes of one agent that were rejected for the same reason, from `first_at` until `at`.

    `sender` is the job if `source` is `cron`. Of programs it is the sender of the latest wake.
    """

    agent: str
    source: str
    sender: str
    why: RejectedBecause
    count: int
    first_at: datetime
    at: datetime


def _record_rejection(tx: Transaction, wake: Wake, why: RejectedBecause) -> None:
    """Record a rejected wake of an agent. Programs can send any number of wakes, so their senders share a record."""
    values = {
        "agent": wake.name, "source": wake.source, "sender": wake.sender, "why": why, "count": wake.count,
        "now": to_millis(tx.now), "since": to_millis(tx.now - ONE_RECORD), "job": int(wake.source == Trigger.CRON),
    }  # fmt: skip
    merged = tx.db.execute(
        "update rejected_wake set count = count + :count, sender = :sender, at = :now where id = (select id from rejected_wake"
        " where at >= :since and first_at > :since and agent = :agent and source = :source and why = :why"
        " and (sender = :sender or :job = 0) limit 1)",
        values,
    )
    if not merged.rowcount:
        tx.db.execute(
            "insert into rejected_wake (agent, source, sender, why, count, first_at, at)"
            " values (:agent, :source, :sender, :why, :count, :now, :now)",
            values,
        )


def rejected_wakes_between(db: sqlite3.Connection, begin: datetime, end: datetime) -> list[RejectedWakes]:
    """The wakes that were rejected in [begin, end), one item for each agent, source, sender and reason, the latest last."""
    rows = db.execute(
        "select agent, source, sender, why, sum(count) as count, min(first_at) as first_at, max(at) as at from rejected_wake"
        " where at >= ? and first_at < ? group by agent, source, sender, why order by max(at), max(id)",
        (to_millis(begin), to_millis(end)),
    )
    return [read_row(RejectedWakes, row) for row in rows]

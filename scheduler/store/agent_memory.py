"""Keeps what the next runs of an agent need: its last alerts, the items that were checked, and where its user wrote from."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from heartbeat.checklist import Selection
from heartbeat.precheck import PrecheckResult, PrecheckStatus
from heartbeatd.answers import KnownTarget
from scheduler.model.entry import Claim, Entry
from scheduler.model.entry_row import EntryRow
from scheduler.model.outcome import ANSWERED, AttemptResult, Kind, Outcome
from scheduler.model.settings import Channel, Target
from scheduler.model.timestamps import from_millis, to_millis
from scheduler.store.rows import insert_row
from scheduler.store.transaction import Transaction, recall


def session_messages(tx: Transaction, name: str, keep: int) -> tuple[tuple[str, str], ...]:
    """The last `keep` messages of an agent's session, the oldest first, as (role, text)."""
    if keep == 0:
        return ()
    rows = tx.db.execute("select role, text from message where name = ? order by id desc limit ?", (name, keep)).fetchall()
    return tuple((row["role"], row["text"]) for row in reversed(rows))


def read_checked_items(tx: Transaction, names: Sequence[str]) -> None:
    """Read the checked items of these agents by one query, each for the next call of `last_checked_slots`."""
    tx.checked_items = {name: {} for name in names}
    if not recall(tx.db, "select 1 from item limit 1", bool):
        return  # no checklist has items with intervals
    query = "select name, hash, asked from item where name in (select value from json_each(?))"
    for name, item, asked in tx.db.execute(query, (json.dumps(names),)):
        tx.checked_items[name][item] = from_millis(asked)


def last_checked_slots(tx: Transaction, entry: Entry) -> Mapping[str, datetime]:
    """The slot at which each item was last checked, by the item's hash."""
    if entry.kind is not Kind.HEARTBEAT:
        return {}
    if entry.name not in tx.checked_items:
        read_checked_items(tx, [entry.name])
    return tx.checked_items.pop(entry.name)


def remember_run(tx: Transaction, claim: Claim, result: AttemptResult) -> None:
    """Save what the next runs of an agent need of this one: the checked items, and the text of an alert."""
    if result.outcome in ANSWERED:
        _save_checked_items(tx, claim, result)
    if result.outcome is Outcome.ASYNC:
        _save_pending_items(tx, claim, result)
    if result.outcome is Outcome.ALERT and result.text and claim.entry.session_keep:
        _save_alert(tx, claim, result)


def _save_alert(tx: Transaction, claim: Claim, result: AttemptResult) -> None:
    """Save the prompt and the text of an alert, and delete older messages than the session keeps."""
    entry = claim.entry
    prompt = f"Heartbeat of {claim.run.slot:%Y-%m-%d %H:%M} UTC."
    for role, text in (("user", prompt), ("assistant", entry.answer_text(result))):
        insert_row(tx.db, "message", {"name": entry.name, "role": role, "text": text, "at": tx.now})
    tx.db.execute(
        "delete from message where name = ? and id not in (select id from message where name = ? order by id desc limit ?)",
        (entry.name, entry.name, entry.session_keep - entry.session_keep % 2),
    )


def _save_checked_items(tx: Transaction, claim: Claim, result: AttemptResult) -> None:
    """Record the items that a run has checked, and delete those that are no longer on the checklist."""
    selection = result.prompt.selection
    last_checked = claim.facts.memory.last_checked
    if selection is None or not (selection.recurring_items or last_checked):
        return
    name = claim.entry.name
    removed = last_checked.keys() - selection.recurring_items
    tx.db.executemany("delete from item where name = ? and hash = ?", [(name, each) for each in sorted(removed)])
    tx.db.executemany(
        "insert into item (name, hash, asked) values (?, ?, ?) on conflict (name, hash) do update set asked = excluded.asked",
        [(name, each, to_millis(claim.run.slot)) for each in sorted(selection.prompted_items)],
    )


def _save_pending_items(tx: Transaction, claim: Claim, result: AttemptResult) -> None:
    """Save the items of a run whose answer comes later. They count as checked only when the answer has come."""
    selection = result.prompt.selection or Selection("", has_work=False)
    prompted = {
        "asked": sorted(selection.prompted_items),
        "known": sorted(selection.recurring_items),
        "digest": result.precheck.digest if result.precheck else None,
        "state": result.precheck.state if result.precheck else None,
        "before": claim.facts.memory.source_state,
        "events": result.precheck.events if result.precheck else (),
    }
    if any(prompted.values()):
        tx.db.execute("update run set asked = ? where id = ?", (json.dumps(prompted), claim.run.id))


def restore_pending_items(
    tx: Transaction, entry_row: EntryRow, slot: datetime, result: AttemptResult
) -> tuple[AttemptResult, str | None]:
    """The result of a run whose answer came later, with the items and the precheck that were saved for it, and the state with
    which the precheck began.
    """
    row = tx.db.execute(
        "select asked, precheck_exit, precheck_output, precheck_error from run"
        " where kind = ? and name = ? and slot = ? and outcome = ?",
        (*entry_row.key, to_millis(slot), Outcome.ASYNC),
    ).fetchone()
    if row is None:
        return result, None
    prompted = json.loads(row["asked"] or "{}")
    if prompted:
        selection = Selection(
            "", has_work=True, prompted_items=frozenset(prompted["asked"]), recurring_items=frozenset(prompted["known"])
        )
        result = replace(result, prompt=replace(result.prompt, selection=selection))
    before = prompted.get("before", entry_row.source_state)
    if row["precheck_output"] is None:
        return result, before
    error = row["precheck_error"] or ""
    found = PrecheckStatus.FAILED if error else PrecheckStatus.WORK
    checked = PrecheckResult(
        found,
        row["precheck_exit"],
        row["precheck_output"],
        error,
        prompted.get("digest"),
        prompted.get("state"),
        tuple(prompted.get("events", ())),
    )
    return replace(result, precheck=checked), before


def source_state(tx: Transaction, entry_row: EntryRow, identity: str) -> str | None:
    """With what the next look at a source is compared: what the newest run has seen whose answer is awaited.

    Such a run counts only as long as all count with whose news its own look was compared. Without one, it is what agents have
    seen for certain.
    """
    state = entry_row.source_state
    for _, prompted in _awaited_items(tx, *entry_row.key):
        seen, before = prompted.get("state"), prompted.get("before", state)
        if seen is not None and before == state and json.loads(seen)["source"] == identity:
            state = seen
    return state


def add_to_awaited_state(tx: Transaction, claim: Claim, state: str | None) -> None:
    """Save what a run has seen besides the news of one whose answer is awaited: it counts as seen together with them."""
    for run_id, prompted in _awaited_items(tx, *claim.entry.key):
        if prompted.get("state") == claim.facts.memory.source_state:
            tx.db.execute("update run set asked = ? where id = ?", (json.dumps(prompted | {"state": state}), run_id))


def _awaited_items(tx: Transaction, kind: Kind, name: str) -> list[tuple[int, dict[str, Any]]]:
    """What was saved for the runs whose answers are awaited, by their ids, the oldest first."""
    # Any index of kind and name would be one of all runs of the entry.
    query = "select id, asked from run where result_due_at is not null and kind || '' = ? and name || '' = ?"
    return sorted((row["id"], json.loads(row["asked"] or "{}")) for row in tx.db.execute(query, (kind, name)))


MAX_TARGETS = 20  # that are kept per agent


def record_target(tx: Transaction, agent: str, target: Target, title: str | None) -> None:
    """Record that the agent's user has just written from there. The latest MAX_TARGETS are kept. `title` None: unchanged."""
    same = {"name": agent, "channel": target.channel, "whom": target.recipient}
    query = "delete from target where name = :name and channel = :channel and whom = :whom returning title"
    before = tx.db.execute(query, same).fetchone()  # the new row has a higher id, which makes it the latest
    if title is None:
        title = before["title"] if before else ""
    insert_row(tx.db, "target", {**same, "title": title, "at": tx.now})
    tx.db.execute(
        "delete from target where name = :agent"
        " and id not in (select id from target where name = :agent order by id desc limit :most)",
        {"agent": agent, "most": MAX_TARGETS},
    )


def known_targets(db: sqlite3.Connection, agent: str) -> list[KnownTarget]:
    """The known targets of an agent, the latest first. The order is that of arrival, whatever the clock showed."""
    rows = db.execute("select channel, whom, title, at from target where name = ? order by id desc", (agent,))
    return [KnownTarget(channel=row[0], target=row[1], title=row[2], at=from_millis(row[3])) for row in rows]


def last_target(db: sqlite3.Connection, channels: Mapping[str, Channel], agent: str | None) -> Target | None:
    """Where the agent's user wrote from most recently; None if that is unknown, or its channel takes no recipient any more.

    An earlier target is never used instead: it may lead to a different person.
    """
    row = db.execute("select channel, whom from target where name = ? order by id desc limit 1", (agent,)).fetchone()
    channel = channels.get(row["channel"]) if row else None
    return Target(row["channel"], row["whom"]) if channel is not None and channel.needs_target else None

"""Keeps what the next runs of an agent need: its last alerts, the items that were checked, and where its user wrote from."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from heartbeat.checklist import Selection
from heartbeat.precheck import PrecheckResult, PrecheckStatus
from heartbeatd.answers import KnownTarget
from scheduler.model.entry import Claim, Entry
from scheduler.model.outcome import ANSWERED, AttemptResult, Kind, Outcome
from scheduler.model.settings import Channel, Target
from scheduler.model.timestamps import from_millis, to_millis
from scheduler.store.transaction import Transaction


def session_messages(tx: Transaction, name: str, keep: int) -> tuple[tuple[str, str], ...]:
    """The last `keep` messages of an agent's session, the oldest first, as (role, text)."""
    if keep == 0:
        return ()
    rows = tx.db.execute("select role, text from message where name = ? order by id desc limit ?", (name, keep)).fetchall()
    return tuple((row["role"], row["text"]) for row in reversed(rows))


def read_checked_items(tx: Transaction, names: Sequence[str]) -> None:
    """Read the checked items of these agents by one query, each for the next call of `last_checked_slots`."""
    tx.checked_items = {name: {} for name in names}
    if not tx.db.recall("select 1 from item limit 1", bool):
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
        tx.db.execute(
            "insert into message (name, role, text, at) values (?, ?, ?, ?)", (entry.name, role, text, to_millis(tx.now))
        )
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
    }
    if any(prompted.values()):
        tx.db.execute("update run set asked = ? where id = ?", (json.dumps(prompted), claim.run.id))


def restore_pending_items(tx: Transaction, kind: Kind, name: str, slot: datetime, result: AttemptResult) -> AttemptResult:
    """The result of a run whose answer came later, with the items and the precheck that were saved for it."""
    row = tx.db.execute(
        "select asked, precheck_exit, precheck_output, precheck_error from run"
        " where kind = ? and name = ? and slot = ? and outcome = ?",
        (kind, name, to_millis(slot), Outcome.ASYNC),
    ).fetchone()
    if row is None:
        return result
    prompted = json.loads(row["asked"] or "{}")
    if prompted:
        selection = Selection(
            "", has_work=True, prompted_items=frozenset(prompted["asked"]), recurring_items=frozenset(prompted["known"])
        )
        result = replace(result, prompt=replace(result.prompt, selection=selection))
    if row["precheck_output"] is None:
        return result
    error = row["precheck_error"] or ""
    found = PrecheckStatus.FAILED if error else PrecheckStatus.WORK
    checked = PrecheckResult(
        found, row["precheck_exit"], row["precheck_output"], error, prompted.get("digest"), prompted.get("state")
    )
    return replace(result, precheck=checked)


MAX_TARGETS = 20  # that are kept per agent


def record_target(tx: Transaction, agent: str, target: Target, title: str | None) -> None:
    """Record that the agent's user has just written from there. The latest MAX_TARGETS are kept. `title` None: unchanged."""
    same = (agent, target.channel, target.recipient)
    before = tx.db.execute(
        "delete from target where name = ? and channel = ? and whom = ? returning title", same
    ).fetchone()  # the new row has a higher id, which makes it the latest
    if title is None:
        title = before["title"] if before else ""
    tx.db.execute("insert into target (name, channel, whom, title, at) values (?, ?, ?, ?, ?)", (*same, title, to_millis(tx.now)))
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

"""Records when each checklist item was last checked, and which items a run checks whose answer comes later."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from heartbeat.due_items import Selection
from heartbeat.precheck import PrecheckResult, PrecheckStatus
from scheduler.model.entry import Claim, Entry
from scheduler.model.outcome import AttemptResult, Kind, Outcome
from scheduler.model.timestamps import from_millis, to_millis
from scheduler.store.transaction import Transaction


def last_checked_slots(tx: Transaction, entry: Entry) -> Mapping[str, datetime]:
    """The slot at which each item was last checked, by the item's hash."""
    if entry.kind is not Kind.HEARTBEAT:
        return {}
    return {row[0]: from_millis(row[1]) for row in tx.db.execute("select hash, asked from item where name = ?", (entry.name,))}


def record_checked_items(tx: Transaction, claim: Claim, result: AttemptResult) -> None:
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


def save_pending_items(tx: Transaction, claim: Claim, result: AttemptResult) -> None:
    """Save the items of a run whose answer comes later. They count as checked only when the answer has come."""
    selection = result.prompt.selection or Selection("", has_work=False)
    prompted = {
        "asked": sorted(selection.prompted_items),
        "known": sorted(selection.recurring_items),
        "digest": result.precheck.digest if result.precheck else None,
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
    checked = PrecheckResult(found, row["precheck_exit"], row["precheck_output"], error, prompted.get("digest"))
    return replace(result, precheck=checked)

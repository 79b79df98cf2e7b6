"""When each item of an agent's checklist was last asked about, slot by slot."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from scheduler.entry import Claim, Entry
from scheduler.outcome import Ending, Kind
from scheduler.store import millis, moment
from scheduler.turn import Turn


def asked(turn: Turn, entry: Entry) -> Mapping[str, datetime]:
    """The slot at which each item was last asked about, by its hash."""
    if entry.kind is not Kind.HEARTBEAT:
        return {}
    return {row[0]: moment(row[1]) for row in turn.db.execute("select hash, asked from item where name = ?", (entry.name,))}


def note(turn: Turn, claim: Claim, ending: Ending) -> None:
    """Remember what a beat asked about; items that no longer stand on the list are forgotten."""
    selection = ending.selection
    if selection is None or not (selection.known or claim.asked):
        return
    name = claim.entry.name
    gone = claim.asked.keys() - selection.known
    turn.db.executemany("delete from item where name = ? and hash = ?", [(name, each) for each in sorted(gone)])
    turn.db.executemany(
        "insert into item (name, hash, asked) values (?, ?, ?) on conflict (name, hash) do update set asked = excluded.asked",
        [(name, each, millis(claim.slot)) for each in sorted(selection.asked)],
    )

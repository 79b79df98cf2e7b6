"""Suppresses the messages of muted agents and jobs, and ends mutes that last until something changes."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from scheduler.model.entry import Entry
from scheduler.model.entry_row import EntryRow
from scheduler.model.events import MuteChanged
from scheduler.model.mute import KnownState, Mute, parse_mute
from scheduler.model.problem import Subject
from scheduler.store import outbox, problems, runs
from scheduler.store.transaction import Transaction


def start_mute(tx: Transaction, entry: Entry, entry_row: EntryRow, until: datetime, by: str, *, until_changed: bool) -> EntryRow:
    """The row of an entry whose messages are suppressed from now on. A further mute of a muted entry replaces the first."""
    known = _state_now(tx, entry, entry_row) if until_changed else None
    held = parse_mute(entry_row.mute).held if entry_row.mute and entry_row.is_muted(tx.now) else 0
    mute = Mute(tx.now, by, held, known)
    tx.report(MuteChanged(entry_row.kind, entry_row.name, True, by, until))
    return entry_row._replace(muted_until=until, mute=mute.to_text())


def end_mute(tx: Transaction, entry_row: EntryRow, by: str) -> EntryRow:
    """The row of an entry whose mute ends now. What is still news is sent with the next run."""
    tx.report(MuteChanged(entry_row.kind, entry_row.name, False, by, None))
    return entry_row._replace(muted_until=None)


def count_held(entry_row: EntryRow) -> EntryRow:
    """The row of a muted entry after a run whose message was suppressed."""
    assert entry_row.mute is not None
    mute = parse_mute(entry_row.mute)
    return entry_row._replace(mute=replace(mute, held=mute.held + 1).to_text())


def known_state(entry_row: EntryRow, now: datetime) -> KnownState | None:
    """What was known of an entry that is muted until something changes; None if it is not."""
    return parse_mute(entry_row.mute).known if entry_row.mute and entry_row.is_muted(now) else None


def _state_now(tx: Transaction, entry: Entry, entry_row: EntryRow) -> KnownState:
    reported = problems.open_reports_of(tx.db, entry.name) if entry_row.reported else ()
    observed = problems.problems_of(tx.db, Subject(*entry.key)) if entry_row.troubles else ()
    last = runs.last_text(tx.db, entry_row.kind, entry_row.name)
    texts = outbox.recent_digests(tx.db, entry_row.kind, entry_row.name)
    return KnownState(
        {each.key: each.found.severity.rank for each in reported},
        (*texts, entry.message_digest(last.strip())) if last else tuple(texts),
        " ".join(each.found.reason for each in observed if each.over_at is None),
    )

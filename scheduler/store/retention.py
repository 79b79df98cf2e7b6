"""Deletes rows that are no longer needed: for each table, which ones. Runs and problems have rules of their own."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from scheduler.model.timestamps import to_millis
from scheduler.store.transaction import Transaction

MAX_CONFIG_EVENTS = 500  # events that are kept at most
SHARES_KEPT = timedelta(days=40)  # those of the month are shown, and a clock may be set back
DAYS_KEPT = timedelta(days=100)  # if the clock is set back by less than this, the day's sum is still there

NOT_NEEDED: Mapping[str, str] = {
    # The latest event is kept, however old it is.
    "config_event": "delete from config_event where id < (select max(id) from config_event)"
    " and (at < :old or id <= (select max(id) from config_event) - :events)",
    "former": "delete from former where until_at < :old",
    "jump": "delete from jump where max(at, at - by_ms) < :old",  # by the later of its two ends
    # The messages of a run are deleted together with it.
    "outbox": "delete from outbox where run_id = 0 and finished_at < :old",
    "message": "delete from message where at < :old",
    "rejected_wake": "delete from rejected_wake where at < :old",
    "stall": "delete from stall where until < :old",
    # A text whose window is over, unless its message is on its way, or was given up and may be sent again.
    "digest": "delete from digest where until_at < :now and not exists (select 1 from outbox where id = outbox_id"
    " and (digest.until_at = 0 or state in ('pending', 'sending', 'uncertain', 'held')))",
    # Days that no clock will show again, a few at a time.
    "spend": "delete from spend where (day, kind, name) in"
    " (select day, kind, name from spend where day < :last_day order by day limit 500)",
    "budget_share": "delete from budget_share where (day, kind, name) in"
    " (select day, kind, name from budget_share where day < :last_share order by day limit 500)",
}


def delete_old_rows(tx: Transaction, keep: timedelta) -> None:
    """Delete what is older than `keep`, or not needed for another reason."""
    values = {
        "now": to_millis(tx.now),
        "old": to_millis(tx.now - keep),
        "events": MAX_CONFIG_EVENTS,
        "last_day": (tx.now - DAYS_KEPT).date().isoformat(),
        "last_share": (tx.now - SHARES_KEPT).date().isoformat(),
    }
    for statement in NOT_NEEDED.values():
        tx.db.execute(statement, values)

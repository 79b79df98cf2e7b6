"""Keeps the messages that a non-isolated agent finds in its next prompts.

Only alerts are kept; runs without a message leave none.
"""

from __future__ import annotations

from datetime import timedelta

from scheduler.model.entry import Claim
from scheduler.model.outcome import AttemptResult, Outcome
from scheduler.model.timestamps import to_millis
from scheduler.store.transaction import Transaction


def session_messages(tx: Transaction, name: str, keep: int) -> tuple[tuple[str, str], ...]:
    """The last `keep` messages of an agent's session, the oldest first, as (role, text)."""
    if keep == 0:
        return ()
    rows = tx.db.execute("select role, text from message where name = ? order by id desc limit ?", (name, keep)).fetchall()
    return tuple((row["role"], row["text"]) for row in reversed(rows))


def save_alert(tx: Transaction, claim: Claim, result: AttemptResult) -> None:
    """Save the prompt and the text of an alert, and delete older messages than the session keeps."""
    entry = claim.entry
    if entry.session_keep == 0 or result.outcome is not Outcome.ALERT or not result.text:
        return
    prompt = f"Heartbeat of {claim.run.slot:%Y-%m-%d %H:%M} UTC."
    for role, text in (("user", prompt), ("assistant", entry.answer_text(result))):
        tx.db.execute(
            "insert into message (name, role, text, at) values (?, ?, ?, ?)", (entry.name, role, text, to_millis(tx.now))
        )
    tx.db.execute(
        "delete from message where name = ? and id not in (select id from message where name = ? order by id desc limit ?)",
        (entry.name, entry.name, entry.session_keep - entry.session_keep % 2),
    )


def delete_old_messages(tx: Transaction, keep: timedelta) -> None:
    """Delete messages older than `keep`."""
    tx.db.execute("delete from message where at < ?", (to_millis(tx.now - keep),))

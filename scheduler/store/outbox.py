"""The outbox: messages that are still to be delivered."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from scheduler.channels.message import split
from scheduler.model.entry import Claim
from scheduler.model.events import Told
from scheduler.model.outcome import DeliveryState
from scheduler.model.settings import Channel
from scheduler.model.timestamps import millis, moment, optional
from scheduler.store import clock_changes, digests
from scheduler.store.targets import Target
from scheduler.store.transaction import Transaction

LADDER = (timedelta(minutes=1), timedelta(minutes=5), timedelta(minutes=30), timedelta(hours=2))
LAST_STEP = LADDER[-1]
GIVE_UP = timedelta(hours=24)

# A part waits until those before it, of the same message for the same channel, are delivered or given up.
ELSEWHERE = "channel not in (select value from json_each(?))"
READY = (
    "state = 'pending' and (part = 1 or not exists (select 1 from outbox as before where before.run_id = outbox.run_id"
    " and before.channel = outbox.channel and before.notice is outbox.notice and before.part < outbox.part"
    " and before.state in ('pending', 'sending', 'uncertain', 'held')))"
)


@dataclass(frozen=True, slots=True)
class Origin:
    """The run from which a message comes, or that it tells of."""

    run_id: int
    kind: str
    name: str
    trigger: str
    slot: datetime


def origin(claim: Claim) -> Origin:
    """The run of a claim as the origin of messages."""
    return Origin(claim.run_id, claim.entry.kind, claim.entry.name, claim.trigger, claim.slot)


@dataclass(frozen=True, slots=True)
class OutboxMessage:
    """One part of a message for one channel. `key` is stable over crash, restart and restored backup.

    `whom` is somebody there, empty where the channel says it; it is chosen when the message is written, and stays. `notice`
    says what of a run it tells; None for what the run itself has to say. `doubted` says that an earlier attempt may have arrived.
    """

    id: int
    key: str
    channel: str
    whom: str
    run_id: int
    kind: str
    name: str
    trigger: str
    slot: datetime
    part: int
    parts: int
    title: str
    text: str
    attempts: int
    created_at: datetime
    doubted: bool
    notice: str | None = None
    error: str | None = None

    @property
    def origin(self) -> Origin:
        """The run from which it comes."""
        return Origin(self.run_id, self.kind, self.name, self.trigger, self.slot)


def put(tx: Transaction, channels: Mapping[str, Channel], claim: Claim, text: str, told: tuple[Target, ...]) -> None:
    """Write the messages of a run, in parts as short as each channel wants; a row that is there already stays as it is.

    A text that is said again takes the place of what of its earlier message never arrived: one is left to be sent again.
    """
    entry = claim.entry
    for target in told:
        row = _write(tx, channels, origin(claim), target, text, None)
        if row:
            for message in _left_over(tx, digests.last_message(tx, entry, target, text)):
                drop(tx, message, f"said again by run {claim.run_id}")
            digests.note(tx, entry, target, text, row["id"])


def _left_over(tx: Transaction, outbox_id: int | None) -> list[OutboxMessage]:
    """The parts of a message, known by any of them, that could still be sent again."""
    query = (
        "select message.* from outbox as last join outbox as message on message.run_id = last.run_id"
        " and message.channel = last.channel and message.notice is last.notice"
        " where last.id = ? and message.state in ('pending', 'uncertain', 'held', 'dead') order by message.id"
    )
    return [_message_from_row(row) for row in tx.db.execute(query, (outbox_id,))] if outbox_id else []


def notify(
    tx: Transaction,
    channels: Mapping[str, Channel],
    about: Origin,
    notice: str,
    message: str,
    told: tuple[Target, ...],
    title: str | None = None,
) -> bool:
    """Write what we ourselves have to tell of a run; `notice` says what, and there is one of each for a run.

    Its title is the entry's name unless another is given. False where all of it was there already.
    """
    written = [_write(tx, channels, about, target, message, notice, title) for target in told]
    return any(row is not None for row in written)


def _write(
    tx: Transaction,
    channels: Mapping[str, Channel],
    about: Origin,
    target: Target,
    message: str,
    notice: str | None,
    title: str | None = None,
) -> sqlite3.Row | None:
    """Write all parts of a message; gives the last one's id, None where it was there already."""
    parts = _parts(channels.get(target.channel), message)
    row = None
    for part, text in enumerate(parts, 1):
        row = _insert(tx, about, target, part, len(parts), text, notice, title or about.name)
    return row


def _parts(channel: Channel | None, message: str) -> list[str]:
    return [message] if channel is None or channel.limit is None else split(message, channel.limit)


def _insert(
    tx: Transaction, about: Origin, target: Target, part: int, parts: int, text: str, notice: str | None, title: str
) -> sqlite3.Row | None:
    now = millis(tx.now)
    row: sqlite3.Row | None = tx.db.execute(
        "insert into outbox (key, channel, whom, run_id, kind, name, trigger, slot, part, parts, title, text, notice, state,"
        " not_before, created_at) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'pending', ?, ?)"
        " on conflict (key, channel) do nothing returning id",
        (
            message_key(about, part, notice), target.channel, target.whom, about.run_id, about.kind, about.name, about.trigger,
            millis(about.slot), part, parts, title, text, notice, now, now,
        ),
    ).fetchone()  # fmt: skip
    return row


def message_key(about: Origin, part: int, notice: str | None = None) -> str:
    """The key under which a receiver recognises a message that comes twice."""
    said = f"{about.kind}\n{about.name}\n{about.trigger}\n{millis(about.slot)}\n{part}"
    return hashlib.sha256((said if notice is None else f"{said}\n{notice}").encode()).hexdigest()


def take(tx: Transaction, at_once: int, share: int, busy: Counter[str]) -> list[OutboxMessage]:
    """Mark due messages as being sent, the oldest first, before anything leaves the machine.

    With those that are under way (`busy`, by channel) there are at most `at_once` in all and `share` of one channel.
    """
    chosen = []
    for row in _candidates(tx, [channel for channel, count in busy.items() if count >= share]):
        if busy.total() < at_once and busy[row["channel"]] < share:
            busy[row["channel"]] += 1
            chosen.append(row["id"])
    if not chosen:
        return []
    rows = tx.db.execute(
        "update outbox set state = 'sending', sending_at = ?, attempts = attempts + 1"
        " where id in (select value from json_each(?)) returning *",
        (millis(tx.now), json.dumps(chosen)),
    ).fetchall()
    return sorted((_message_from_row(row) for row in rows), key=lambda message: message.id)


def _candidates(tx: Transaction, full: list[str]) -> list[sqlite3.Row]:
    query = "select id, channel from outbox where " + READY + " and not_before <= ? and " + ELSEWHERE + " order by id limit 64"  # noqa: S608
    return tx.db.execute(query, (millis(tx.now), json.dumps(full))).fetchall()


def next_due(db: sqlite3.Connection, full: list[str]) -> datetime | None:
    """When the next message wants to be sent, to any channel but those that have their share under way."""
    query = "select min(not_before) from outbox where " + READY + " and " + ELSEWHERE  # noqa: S608
    return optional(db.execute(query, (json.dumps(full),)).fetchone()[0])


def untried(db: sqlite3.Connection) -> bool:
    """Whether any message still waits for its first attempt, and not for an earlier part."""
    query = "select 1 from outbox where " + READY + " and attempts = 0 limit 1"  # noqa: S608
    return db.execute(query).fetchone() is not None


def delivered(tx: Transaction, message: OutboxMessage) -> None:
    """The channel has taken it, and the window of its text counts from now."""
    _end(tx, message, DeliveryState.DELIVERED, None)
    digests.delivered(tx, message.channel, message.run_id, message.notice)


def ladder(attempts: int) -> timedelta:
    """How long to wait after so many attempts in a row that came to nothing."""
    return LADDER[attempts - 1] if attempts <= len(LADDER) else LAST_STEP


def try_later(tx: Transaction, message: OutboxMessage, error: str, wait: timedelta | None) -> None:
    """Try again after `wait`, else by the ladder; a message as old as a day is dead, by a clock that can be trusted."""
    step = wait or ladder(message.attempts)
    if tx.now + step > message.created_at + GIVE_UP and not clock_changes.is_recent(tx):
        dead(tx, message, error)
        return
    tx.db.execute(
        "update outbox set state = 'pending', not_before = ?, error = ? where id = ?", (millis(tx.now + step), error, message.id)
    )
    tx.report(Told(message.id, message.channel, DeliveryState.PENDING, retried=True, error=error))


def dead(tx: Transaction, message: OutboxMessage, error: str) -> None:
    """Give a message up; its text stays readable, and the same text may be said again."""
    _end(tx, message, DeliveryState.DEAD, error)
    digests.unsay(tx, message.channel, message.run_id, message.notice)


def drop(tx: Transaction, message: OutboxMessage, why: str | None = None) -> None:
    """Give a message up because somebody says so, or says its text again; what kept it from its channel stays on record."""
    _end(tx, message, DeliveryState.DROPPED, "; ".join(each for each in (message.error, why) if each) or None)
    digests.unsay(tx, message.channel, message.run_id, message.notice)


def send_again(tx: Transaction, message: OutboxMessage) -> None:
    """Have a message sent as soon as there is room, whatever its ladder says."""
    tx.db.execute(
        "update outbox set state = 'pending', not_before = ?, finished_at = null where id = ?", (millis(tx.now), message.id)
    )
    tx.report(Told(message.id, message.channel, DeliveryState.PENDING))


def uncertain(tx: Transaction, message: OutboxMessage, error: str, *, resend: bool, wait: timedelta | None = None) -> None:
    """Nobody knows whether it arrived: it goes out again after `wait`, else by the ladder, or is held for a person to decide."""
    tx.report(Told(message.id, message.channel, DeliveryState.UNCERTAIN, error=error))
    tx.db.execute("update outbox set doubted_at = coalesce(doubted_at, ?) where id = ?", (millis(tx.now), message.id))
    if resend:
        try_later(tx, message, error, wait)
        return
    tx.db.execute("update outbox set state = 'held', error = ? where id = ?", (error, message.id))


def get_message(db: sqlite3.Connection, outbox_id: int) -> OutboxMessage:
    """One message that is known to be there."""
    return _message_from_row(db.execute("select * from outbox where id = ?", (outbox_id,)).fetchone())


def find(db: sqlite3.Connection, message_id: int) -> tuple[OutboxMessage, DeliveryState] | None:
    """A message and where it stands."""
    row = db.execute("select * from outbox where id = ?", (message_id,)).fetchone()
    return (_message_from_row(row), DeliveryState(row["state"])) if row else None


def interrupted(db: sqlite3.Connection) -> list[OutboxMessage]:
    """The messages that an earlier life of the daemon was sending when it died."""
    return [_message_from_row(row) for row in db.execute("select * from outbox where state = 'sending' order by id")]


def give_up_held(tx: Transaction) -> None:
    """A message that nobody decided about within a day is dead; what waited behind it goes on."""
    old = "select * from outbox where state = 'held' and created_at < ?"
    for row in tx.db.execute(old, (millis(tx.now - GIVE_UP),)).fetchall():
        dead(tx, _message_from_row(row), "it was never known whether it had arrived, and nobody decided")


def unfinished(db: sqlite3.Connection) -> list[dict[str, Any]]:
    """Per channel: how many messages are pending or dead, and since when the oldest waits."""
    query = (
        "select channel, sum(open) as pending, sum(state = 'dead') as dead, min(case when open then created_at end) as oldest"
        " from (select *, state in ('pending', 'sending', 'uncertain', 'held') as open from outbox) group by channel"
    )
    return [dict(row) for row in db.execute(query)]


def _end(tx: Transaction, message: OutboxMessage, state: DeliveryState, error: str | None) -> None:
    tx.db.execute(
        "update outbox set state = ?, finished_at = ?, error = ? where id = ?", (state, millis(tx.now), error, message.id)
    )
    tx.report(Told(message.id, message.channel, state, error=error or ""))


def _message_from_row(row: sqlite3.Row) -> OutboxMessage:
    return OutboxMessage(
        id=row["id"],
        key=row["key"],
        channel=row["channel"],
        whom=row["whom"],
        run_id=row["run_id"],
        kind=row["kind"],
        name=row["name"],
        trigger=row["trigger"],
        slot=moment(row["slot"]),
        part=row["part"],
        parts=row["parts"],
        title=row["title"],
        text=row["text"],
        attempts=row["attempts"],
        created_at=moment(row["created_at"]),
        doubted=row["doubted_at"] is not None,
        notice=row["notice"],
        error=row["error"],
    )

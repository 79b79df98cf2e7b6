"""Queues messages, splits them into parts, tracks their delivery, and suppresses texts that were sent recently."""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from heartbeat.words import format_count
from heartbeatd.answers import ChannelBacklog, ChannelDelivery, HeldMessages, MessageWithText, QueuedMessage, SaidMessage
from scheduler.model.entry import Claim, Entry
from scheduler.model.events import MessageMoved
from scheduler.model.message import Message
from scheduler.model.outcome import DeliveryState, Key, Kind
from scheduler.model.settings import Channel, Target, utf16_length
from scheduler.model.timestamps import MILLISECOND, from_millis, from_optional_millis, to_millis
from scheduler.store import clock_changes
from scheduler.store.rows import insert_new, read_row, replace_row
from scheduler.store.transaction import Transaction, first_time, recall

LADDER = (timedelta(minutes=1), timedelta(minutes=5), timedelta(minutes=30), timedelta(hours=2))
GIVE_UP = timedelta(hours=24)

NO_RUN = 0  # the run of a message that is about none
ELSEWHERE = "channel not in (select value from json_each(?))"
# A part waits until the earlier parts of the same message for the same channel are delivered or given up.
READY = (
    "state = 'pending' and merged_into is null and (part = 1"
    " or not exists (select 1 from outbox as before where before.run_id = outbox.run_id"
    " and before.channel = outbox.channel and before.notice is not distinct from outbox.notice and before.part < outbox.part"
    " and before.state in ('pending', 'sending', 'uncertain', 'held')))"
)

# The next messages, of all channels but those that have their share in progress.
NEXT_DUE = f"from outbox where {READY} and not_before <= ? and {ELSEWHERE} order by id limit 64"
DUE_MESSAGES = f"select id, channel {NEXT_DUE}"
NEXT_MESSAGES = f"select * {NEXT_DUE}"


@dataclass(frozen=True, slots=True)
class Origin:
    """The run that a message comes from, or that a notification is about. `kind` and `name` are those of its agent or job.

    A message about the daemon itself has the kind and the name of this subject, and NO_RUN.
    """

    run_id: int
    kind: str
    name: str
    trigger: str
    slot: datetime


def origin_of_claim(claim: Claim) -> Origin:
    """The run of a claim as the origin of messages."""
    return Origin(claim.run.id, *claim.entry.key, claim.run.trigger, claim.run.slot)


@dataclass(frozen=True, slots=True)
class OutboxMessage(Message):
    """One part of a message for one channel, as it is queued. `key` stays the same after a restart or a restored backup, too.

    `recipient` is empty if the channel's URL names it. It is chosen when the message is queued, and does not change.
    `notice` is the kind of a notification, None for the message of the run itself. `doubted`: an earlier attempt may have
    arrived. `merged_into` is the message that is sent instead of it and others, None if there is none.
    """

    id: int
    channel: str
    recipient: str
    run_id: int
    attempts: int
    created_at: datetime
    doubted: bool
    notice: str | None = None
    error: str | None = None
    merged_into: int | None = None

    @property
    def origin(self) -> Origin:
        """The run that it comes from."""
        return Origin(self.run_id, self.kind, self.name, self.trigger, self.planned_at)

    @property
    def target(self) -> Target:
        """Where it goes."""
        return Target(self.channel, self.recipient)


def is_about_entry(message: OutboxMessage | HeldMessage) -> bool:
    """Whether a message is about its agent or job. One about a provider, a channel or the daemon has another title."""
    return message.kind in tuple(Kind) and message.title == message.name


@dataclass(frozen=True, slots=True)
class Hold:
    """A message waits until a time: for the hours of its recipient, or for one of these agents to report the failure."""

    agents: tuple[str, ...]
    until: datetime


def queue_run_messages(
    tx: Transaction, channels: Mapping[str, Channel], claim: Claim, messages: Mapping[Target, str]
) -> dict[Target, int]:
    """Queue the messages of a run, in parts as short as each channel needs. Rows that exist already are not changed.

    Returns the id of the last part for each target, without targets that had their message already.
    """
    ids = {target: _queue_parts(tx, channels, origin_of_claim(claim), target, text, None) for target, text in messages.items()}
    return {target: last_id for target, last_id in ids.items() if last_id is not None}


def record_run_text(tx: Transaction, claim: Claim, text: str, queued: Mapping[Target, int]) -> None:
    """Record that a text without findings was queued for these targets, so that it counts as a duplicate from now on.

    Parts of an earlier message with the same text that were never delivered are dropped: only one copy is left to be sent.
    """
    for target, outbox_id in queued.items():
        for message in _unsent_parts(tx, last_message_with_text(tx, claim.entry, target, text)):
            drop_message(tx, message, f"replaced by the same text of run {claim.run.id}")
        record_text(tx, claim.entry, target, text, outbox_id)


def _unsent_parts(tx: Transaction, outbox_id: int | None) -> list[OutboxMessage]:
    """The parts of a message that could still be sent again. The message is known by the id of any part.

    Empty for a message that was sent instead of several: it has other texts, too.
    """
    query = (
        "select message.* from outbox as last join outbox as message on message.run_id = last.run_id"
        " and message.channel = last.channel and message.notice is not distinct from last.notice"
        " where last.id = ? and message.state in ('pending', 'uncertain', 'held', 'dead')"
        " and not exists (select 1 from outbox as text where text.merged_into = last.id) order by message.id"
    )
    return [_message_from_row(row) for row in tx.db.execute(query, (outbox_id,))] if outbox_id else []


def queue_notice(
    tx: Transaction,
    channels: Mapping[str, Channel],
    about: Origin,
    notice: str,
    message: str,
    targets: tuple[Target, ...],
    title: str | None = None,
    hold: Hold | None = None,
) -> dict[Target, int]:
    """Queue a notification about a run; there is one of each kind (`notice`) per run.

    The title is the entry's name unless `title` is given. With `hold` it is not sent before that time, unless it is released.
    Returns the id of the last part for each target, also if it was queued there already: two recipients may have one substitute.
    """
    query = "select max(id) from outbox where run_id = ? and notice = ? and channel = ? and whom = ?"
    for target in targets:
        _queue_parts(tx, channels, about, target, message, notice, title, hold)
    return {each: tx.db.execute(query, (about.run_id, notice, each.channel, each.recipient)).fetchone()[0] for each in targets}


def _queue_parts(
    tx: Transaction,
    channels: Mapping[str, Channel],
    about: Origin,
    target: Target,
    message: str,
    notice: str | None,
    title: str | None = None,
    hold: Hold | None = None,
) -> int | None:
    """Insert all parts of a message; returns the id of the last one, None if that existed already."""
    channel = channels.get(target.channel)
    limit = None if channel is None else channel.limit_for(about.kind, about.name, title or about.name)
    if limit is None:
        parts = [message]
    else:
        parts = split_text(message, limit) if notice else message_parts(message, limit, *_places_of_text(channel, about.run_id))
    common = {
        "channel": target.channel, "whom": target.recipient, **asdict(about), "parts": len(parts), "title": title or about.name,
        "notice": notice, "state": DeliveryState.PENDING, "not_before": hold.until if hold else tx.now, "created_at": tx.now,
        "awaits": hold.agents if hold else None,
    }  # fmt: skip
    last_id = None
    for part, text in enumerate(parts, 1):
        own = {"key": message_key(about, part, notice), "part": part, "text": text}
        last_id = insert_new(tx.db, "outbox", own | common, "on conflict (key, channel) do nothing")
    return last_id


@dataclass(frozen=True, slots=True)
class HeldMessage:
    """A message for one target that was not tried yet, with all its parts, and until when it waits.

    `ids` are those of its parts. `note` says what happened to it so far.
    """

    run_id: int
    notice: str | None
    kind: str
    name: str
    title: str
    target: Target
    text: str
    created_at: datetime
    ids: tuple[int, ...]
    hold: Hold
    note: str | None

    @property
    def last_id(self) -> int:
        return self.ids[-1]

    @property
    def first_sent_id(self) -> int:
        """The ID of the last part of the message that it repeats because a person has asked for it; else its own."""
        repeats = REPEATS.match(self.notice or "")
        return int(repeats[1]) if repeats else self.last_id

    @property
    def problem_id(self) -> int:
        """The problem that a delayed notification is about. Its notice has its number, such as `opened p12`."""
        return int((self.notice or "").split(" ")[1].removeprefix("p"))


REPEATS = re.compile(r"again (\d+) ")  # the notice of a message that repeats another one
FOR_HOURS = "[]"  # in `awaits`: a message waits for the hours of its recipient, and for no agent
SENT_BY_USER = "a user has sent it"

BEGUN = """
select * from outbox where state = 'pending' and not_before <= ? and attempts = 0 and merged_into is null
  and awaits = '[]' and hold_note is distinct from ? order by id
"""


def hours_begun(db: sqlite3.Connection, now: datetime) -> list[HeldMessage]:
    """The messages that hours have delayed, and whose hours have begun, the oldest first."""
    if not is_any_held(db):
        return []
    return [_join_held(rows) for rows in _parts_of_messages(db.execute(BEGUN, (to_millis(now), SENT_BY_USER)))]


def next_untried(db: sqlite3.Connection, now: datetime, full: Sequence[str]) -> list[HeldMessage]:
    """The untried messages among the next that are due, except those for the `full` channels. There may be thousands later."""
    due = db.execute(NEXT_MESSAGES, (to_millis(now), json.dumps(full))).fetchall()
    untried = (row for row in due if row["part"] == 1 and not row["attempts"] and row["awaits"] is None)
    return [_join_held(_all_parts(db, row)) for row in untried if row["hold_note"] != SENT_BY_USER]


def _all_parts(db: sqlite3.Connection, first: sqlite3.Row) -> list[sqlite3.Row]:
    if first["parts"] == 1:
        return [first]
    rows = db.execute("select * from outbox where run_id = ? and state = 'pending' order by id", (first["run_id"],))
    return next(parts for parts in _parts_of_messages(rows) if parts[0]["id"] == first["id"])


def is_any_held(db: sqlite3.Connection) -> bool:
    """Whether any message is delayed."""
    return recall(db, "select 1 from outbox where awaits is not null and state = 'pending' limit 1", bool)


def held_notices(db: sqlite3.Connection, name: str | None = None) -> list[HeldMessage]:
    """The notifications that are delayed for agents to report the failure, of one cron job or of all, the oldest first."""
    if not is_any_held(db):
        return []
    query = (
        "select * from outbox where awaits is not null and awaits <> '[]' and state = 'pending'"
        " and (cast(? as text) is null or name = ?) order by id"
    )
    return [_join_held(rows) for rows in _parts_of_messages(db.execute(query, (name, name)))]


def _parts_of_messages(rows: Iterable[sqlite3.Row]) -> list[list[sqlite3.Row]]:
    """The parts of each message for each target."""
    found: dict[tuple[object, ...], list[sqlite3.Row]] = {}
    for row in rows:
        key = (row["awaits"], row["run_id"], row["kind"], row["name"], row["notice"], row["channel"], row["whom"])
        found.setdefault(key, []).append(row)
    return list(found.values())


def _join_held(rows: Sequence[sqlite3.Row]) -> HeldMessage:
    first, text = rows[0], "\n".join(row["text"] for row in rows)
    return read_row(
        HeldMessage,
        first,
        target=Target(first["channel"], first["whom"]),
        text=text,
        ids=tuple(row["id"] for row in rows),
        hold=Hold(tuple(json.loads(first["awaits"] or "[]")), from_millis(first["not_before"])),
        note=first["hold_note"],
    )


THESE = "id in (select cast(value as bigint) from json_each(?))"


def hold_message(tx: Transaction, message: HeldMessage, hold: Hold, note: str | None) -> None:
    """Delay a message, or delay it for other agents or until another time."""
    _change_held(tx, message, note, "awaits = ?, not_before = ?", json.dumps(hold.agents), to_millis(hold.until))


def reconsider_hours(tx: Transaction) -> None:
    """Decide anew on the messages that wait for hours, which may have changed; not on those that a person wants at a time."""
    if is_any_held(tx.db):
        tx.db.execute(
            "update outbox set not_before = ? where state = 'pending' and awaits = ? and merged_into is null and attempts = 0"
            " and not_before > ? and coalesce(notice, '') not like 'again %'",
            (to_millis(tx.now), FOR_HOURS, to_millis(tx.now)),
        )


def release_message(tx: Transaction, message: HeldMessage, note: str | None) -> None:
    """Send a delayed message. Its time to be delivered begins now."""
    _change_held(tx, message, note, "awaits = null, not_before = ?, created_at = ?", to_millis(tx.now), to_millis(tx.now))


def drop_held(tx: Transaction, message: HeldMessage, note: str) -> None:
    """Drop a delayed message that is no longer news, or whose content has reached the target in another message."""
    _change_held(tx, message, note, "awaits = null, state = 'dropped', finished_at = ?", to_millis(tx.now))


def _change_held(tx: Transaction, message: HeldMessage, note: str | None, changes: str, *values: object) -> None:
    query = f"update outbox set {changes}, hold_note = ? where state = 'pending' and {THESE}"  # noqa: S608 (literals)
    tx.db.execute(query, (*values, note, json.dumps(message.ids)))


def merge_held(tx: Transaction, messages: Sequence[HeldMessage], into: int) -> None:
    """Send messages as the message with this ID of its last part: they arrive, or are given up, with it."""
    ids = json.dumps([each for message in messages for each in message.ids])
    first_sent = json.dumps([message.first_sent_id for message in messages])
    note = f"sent together with others as message {into}"
    tx.db.execute("update outbox set merged_into = ?, hold_note = ? where " + THESE, (into, note, ids))  # noqa: S608
    tx.db.execute("update problem_notice set outbox_id = ? where outbox_" + THESE, (into, first_sent))  # noqa: S608
    tx.db.execute("update digest set outbox_id = ? where outbox_" + THESE, (into, ids))  # noqa: S608


def message_key(about: Origin, part: int, notice: str | None = None) -> str:
    """The key by which a receiver recognizes a message that arrives twice."""
    said = f"{about.kind}\n{about.name}\n{about.trigger}\n{to_millis(about.slot)}\n{part}"
    return hashlib.sha256((said if notice is None else f"{said}\n{notice}").encode()).hexdigest()


def full_channels(busy: Counter[str], share: int) -> list[str]:
    """The channels that have their share in progress."""
    return [channel for channel, count in busy.items() if count >= share]


def claim_due_messages(tx: Transaction, at_once: int, share: int, busy: Counter[str]) -> list[OutboxMessage]:
    """Mark due messages as being sent, the oldest first, before anything leaves the machine.

    Together with those in progress (`busy`, by channel) there are at most `at_once` in all and `share` per channel.
    """
    chosen = []
    full = full_channels(busy, share)
    for row in tx.db.execute(DUE_MESSAGES, (to_millis(tx.now), json.dumps(full))).fetchall():
        if busy.total() < at_once and busy[row["channel"]] < share:
            busy[row["channel"]] += 1
            chosen.append(row["id"])
    if not chosen:
        return []
    rows = tx.db.execute(
        "update outbox set state = 'sending', sending_at = ?, attempts = attempts + 1, awaits = null"
        " where id in (select cast(value as bigint) from json_each(?)) returning *",
        (to_millis(tx.now), json.dumps(chosen)),
    ).fetchall()
    return sorted((_message_from_row(row) for row in rows), key=lambda message: message.id)


def next_due_at(db: sqlite3.Connection, full: list[str]) -> datetime | None:
    """When the next message is due, of any channel except the `full` ones, which have their share in progress."""
    query = "select min(not_before) from outbox where " + READY + " and " + ELSEWHERE  # noqa: S608
    return from_optional_millis(db.execute(query, (json.dumps(full),)).fetchone()[0])


def next_pending_at(db: sqlite3.Connection) -> datetime | None:
    """When the next pending message would be due if no other part came before it."""
    return recall(db, "select min(not_before) from outbox where state = 'pending' and merged_into is null", first_time)


def has_untried_message(db: sqlite3.Connection) -> bool:
    """Whether any message waits for its first attempt, and neither for an earlier part nor for the report of an agent."""
    query = "select 1 from outbox where " + READY + " and attempts = 0 and awaits is null limit 1"  # noqa: S608
    return db.execute(query).fetchone() is not None


def record_delivery(tx: Transaction, message: OutboxMessage, receipt: str = "") -> None:
    """Record that the channel has accepted the message. The window in which its text counts as sent begins now.

    `receipt` is the number of the message in its chat, so that an answer to it can be recognised.
    """
    if receipt:
        tx.db.execute("update outbox set receipt = ? where id = ?", (receipt, message.id))
    _end_message(tx, message, DeliveryState.DELIVERED, None)
    # The window begins at the delivery of the last part, even if that part had been given up before.
    tx.db.execute(
        'update digest set until_at = ? + "window" where outbox_id in (select max(id) from outbox where channel = ?'
        " and run_id = ? and notice is not distinct from ? having count(*) filter (where state in ('dead', 'dropped')) = 0)",
        (to_millis(tx.now), message.channel, message.run_id, message.notice),
    )


def retry_delay(attempts: int) -> timedelta:
    """How long to wait after so many failed attempts in a row."""
    return LADDER[min(attempts, len(LADDER)) - 1]


def retry_message_later(tx: Transaction, message: OutboxMessage, error: str, wait: timedelta | None) -> None:
    """Plan another attempt after `wait`, else after `retry_delay`.

    A message older than a day is given up, unless the clock changed recently.
    """
    step = wait or retry_delay(message.attempts)
    if tx.now + step > message.created_at + GIVE_UP and not clock_changes.changed_recently(tx):
        mark_message_dead(tx, message, error)
        return
    tx.db.execute(
        "update outbox set state = 'pending', not_before = ?, error = ? where id = ?",
        (to_millis(tx.now + step), error, message.id),
    )
    _report_move(tx, message, DeliveryState.PENDING, retried=True, error=error)


def mark_message_dead(tx: Transaction, message: OutboxMessage, error: str) -> None:
    """Give a message up. Its text stays readable, and the same text may be sent again by a later run."""
    _end_message(tx, message, DeliveryState.DEAD, error)
    delete_text(tx, message.channel, message.run_id, message.notice)


def drop_message(tx: Transaction, message: OutboxMessage, why: str | None = None) -> None:
    """Drop a message because a user said so, or because its text was queued again. The last error is kept."""
    _end_message(tx, message, DeliveryState.DROPPED, "; ".join(each for each in (message.error, why) if each) or None)
    delete_text(tx, message.channel, message.run_id, message.notice)


def resend_message(tx: Transaction, message: OutboxMessage) -> None:
    """Send a message as soon as possible, whatever its retry delay."""
    tx.db.execute(
        "update outbox set state = 'pending', not_before = ?, finished_at = null, awaits = null, merged_into = null,"
        " hold_note = ? where id = ?",
        (to_millis(tx.now), SENT_BY_USER, message.id),
    )
    _report_move(tx, message, DeliveryState.PENDING)


def mark_message_uncertain(
    tx: Transaction, message: OutboxMessage, error: str, *, resend: bool, wait: timedelta | None = None
) -> None:
    """Record that a message may have arrived.

    It is sent again after `wait`, else after `retry_delay`, or held until a user decides.
    """
    _report_move(tx, message, DeliveryState.UNCERTAIN, error=error)
    tx.db.execute("update outbox set doubted_at = coalesce(doubted_at, ?) where id = ?", (to_millis(tx.now), message.id))
    if resend:
        retry_message_later(tx, message, error, wait)
        return
    tx.db.execute("update outbox set state = 'held', error = ? where id = ?", (error, message.id))


def get_message(db: sqlite3.Connection, outbox_id: int) -> OutboxMessage:
    """A message that is known to exist."""
    return _message_from_row(db.execute("select * from outbox where id = ?", (outbox_id,)).fetchone())


def find_message(db: sqlite3.Connection, message_id: int) -> tuple[OutboxMessage, DeliveryState] | None:
    """A message and its state; None if there is none."""
    row = db.execute("select * from outbox where id = ?", (message_id,)).fetchone()
    return (_message_from_row(row), DeliveryState(row["state"])) if row else None


def messages_of_notice(db: sqlite3.Connection, run_id: int, notice: str) -> list[tuple[OutboxMessage, DeliveryState]]:
    """All parts of a notification, for all its targets, with their states."""
    rows = db.execute("select * from outbox where run_id = ? and notice = ? order by id", (run_id, notice))
    return [(_message_from_row(row), DeliveryState(row["state"])) for row in rows]


def messages_with_receipt(db: sqlite3.Connection, receipt: str) -> list[OutboxMessage]:
    """The messages that have this number in their chats, the newest first."""
    return [_message_from_row(row) for row in db.execute("select * from outbox where receipt = ? order by id desc", (receipt,))]


def whole_message(db: sqlite3.Connection, part: OutboxMessage) -> HeldMessage:
    """A message with all its parts, of which one is given."""
    query = "select * from outbox where run_id = ? and channel = ? and whom = ? and notice is not distinct from ? order by part"
    return _join_held(db.execute(query, (part.run_id, part.channel, part.recipient, part.notice)).fetchall())


SAID = """
select *, run_id as run, finished_at as at, whom as recipient from outbox where kind = 'heartbeat' and name = ?
  and state = 'delivered' and (cast(? as text) is null or channel = ? or channel || ':' || whom = ?)
  and not exists (select 1 from outbox as common
    where common.id = outbox.merged_into and common.kind = outbox.kind and common.name = outbox.name)
order by finished_at desc, id desc limit ?
"""


def said_by(db: sqlite3.Connection, agent: str, to: str | None, limit: int) -> list[SaidMessage]:
    """What was delivered for an agent lately, the newest first: to a channel, to `CHANNEL:RECIPIENT`, or to all.

    Of a message with texts of several agents, each agent has its own texts.
    """
    rows = db.execute(SAID, (agent, to, to, to, limit))
    return [read_row(SaidMessage, row, run=row["run_id"] or None) for row in rows]


def was_delivered_since(db: sqlite3.Connection, target: Target, since: datetime) -> bool:
    """Whether a target has taken any message since this time."""
    query = "select 1 from outbox where channel = ? and whom = ? and state = 'delivered' and finished_at > ? limit 1"
    return db.execute(query, (target.channel, target.recipient, to_millis(since))).fetchone() is not None


def interrupted_messages(db: sqlite3.Connection) -> list[OutboxMessage]:
    """The messages that an earlier boot was sending when it crashed."""
    return [_message_from_row(row) for row in db.execute("select * from outbox where state = 'sending' order by id")]


def expire_held_messages(tx: Transaction) -> None:
    """Give up messages that no user has decided about within a day, so that later parts are sent."""
    # The first condition is that of the index.
    old = "select * from outbox where state in ('sending', 'uncertain', 'held') and state = 'held' and created_at < ?"
    for row in tx.db.execute(old, (to_millis(tx.now - GIVE_UP),)).fetchall():
        mark_message_dead(tx, _message_from_row(row), "it is unknown whether it arrived, and no user decided within a day")


def unfinished_by_channel(db: sqlite3.Connection) -> list[ChannelBacklog]:
    """For each channel: the number of pending and dead messages, and the time of the oldest, without delayed notifications."""
    query = (
        "select channel, count(*) filter (where open) as pending, count(*) filter (where state = 'dead') as dead,"
        " min(created_at) filter (where open) as oldest_at"
        " from (select *, state in ('pending', 'sending', 'uncertain', 'held') and awaits is null as open from outbox) as message"
        " group by channel"
    )
    return [read_row(ChannelBacklog, row) for row in db.execute(query)]


def held_by_channel(db: sqlite3.Connection) -> list[HeldMessages]:
    """For each channel, how many messages are held for the hours of their recipients, or until a time that a person asked for."""
    query = (
        "select channel, count(*) filter (where part = 1) as count, min(not_before) as next_at from outbox"
        " where state = 'pending' and awaits = ? and merged_into is null group by channel order by channel"
    )
    return [read_row(HeldMessages, row) for row in db.execute(query, (FOR_HOURS,))]


@dataclass(frozen=True, slots=True)
class EntryMessages:
    """Messages of one entry for one channel in one state: their number, the newest, its run and last error, the oldest's time.

    `tries` is the highest number of attempts. `is_notice`: they are notifications about its runs, not its own messages.
    `doubted`: one of them may have arrived. `is_held`: they wait for the hours of their recipient.
    """

    channel: str
    state: DeliveryState
    is_notice: bool
    count: int
    last_id: int
    run: int
    error: str | None
    tries: int
    doubted: bool
    since: datetime
    is_held: bool = False

    @property
    def says(self) -> str:
        """How many there are, and what became of them."""
        counted = format_count(self.count, "notification" if self.is_notice else "message")
        return f"{counted} {delivery_text(self.channel, self.state, self.tries, self.error, doubted=self.doubted)}"

    @property
    def rank(self) -> tuple[bool, int, int]:
        """For sorting: messages before notifications, and first those that will never arrive by themselves."""
        return self.is_notice, UNDELIVERED.index(self.state), -self.last_id

    def is_undelivered(self, now: datetime) -> bool:
        """Whether they have not arrived, and are not just on their way."""
        if self.state not in UNDELIVERED or self.is_held:
            return False
        is_moving = self.state in (DeliveryState.PENDING, DeliveryState.SENDING)
        return not (is_moving and self.tries <= 1 and self.error is None and now - self.since < ON_ITS_WAY)


UNDELIVERED = (DeliveryState.DEAD, DeliveryState.HELD, DeliveryState.UNCERTAIN, DeliveryState.PENDING, DeliveryState.SENDING)
"""The states of messages that have not arrived, first those that will never arrive by themselves."""

ON_ITS_WAY = timedelta(minutes=1)  # the first attempt of a message ends within this time


def hold_text(agents: Sequence[str]) -> str:
    """Why a notification is delayed."""
    if not agents:
        return "waits until the hours of its recipient begin"
    named = f"agent {agents[0]} is" if len(agents) == 1 else f"agents {', '.join(agents)} are"
    return f"delayed, because {named} to report it"


def delivery_text(target: str, state: DeliveryState, tries: int, error: str | None, *, doubted: bool) -> str:
    """Whether a message has reached its target. All commands, the page, the API and MCP say it with this text."""
    if state is DeliveryState.DELIVERED:
        return f"delivered to {target}"
    attempts = f"{tries:,} {'try' if tries == 1 else 'tries'}"
    known = {
        DeliveryState.HELD: f"held after {attempts}",
        DeliveryState.DEAD: f"given up after {attempts}",
        DeliveryState.DROPPED: f"dropped after {attempts}",
    }
    facts = [known.get(state, attempts if tries and (error or tries > 1) else ""), error]
    details = ", ".join(fact for fact in facts if fact)
    is_partial = state is DeliveryState.PARTIAL
    arrived = "only a part was delivered" if is_partial else "it may have arrived" if doubted else "not delivered"
    return f"accepted for {target}, {arrived} {f'({details})' if details else 'so far' if is_partial else 'yet'}"


@dataclass(frozen=True, slots=True)
class TargetDelivery:
    """What became of the message of a run for one target, with all its parts.

    `parts` are their states. `tries` is the highest number of attempts of a part, `error` the last one of the parts that are not
    delivered. `delivered_at` is None unless all parts have arrived. `doubted`: a part may have arrived before. `awaits` are the
    agents for whose report a notification is delayed.
    """

    run_id: int
    target: Target
    parts: tuple[DeliveryState, ...]
    tries: int
    error: str | None
    delivered_at: datetime | None
    doubted: bool
    awaits: tuple[str, ...]

    @property
    def state(self) -> DeliveryState:
        """One word for all parts."""
        return combined_state(self.parts)

    @property
    def is_pending(self) -> bool:
        """Whether a part may still arrive."""
        return not FINAL_STATES.issuperset(self.parts)

    @property
    def is_lost(self) -> bool:
        """Whether a part was given up."""
        return DeliveryState.DEAD in self.parts

    @property
    def text(self) -> str:
        """Whether it has arrived."""
        if self.awaits and self.state is DeliveryState.PENDING:
            return hold_text(self.awaits)
        return delivery_text(self.target.label, self.state, self.tries, self.error, doubted=self.doubted)

    @property
    def as_answer(self) -> ChannelDelivery:
        """As the API shows it. `target` and `error` are only there if there is one."""
        found: dict[str, str] = {"target": self.target.recipient} if self.target.recipient else {}
        found |= {"error": self.error} if self.error else {}
        return ChannelDelivery(channel=self.target.channel, state=self.state, tries=self.tries, says=self.text, **found)


PART_COLUMNS = """
part.run_id, part.channel, part.whom, part.state, part.attempts, part.created_at, part.finished_at, part.doubted_at, part.awaits,
coalesce(part.error, case when part.awaits = '[]' then part.hold_note end) as error
"""
DELIVERIES = f"""select {PART_COLUMNS} from outbox as part
where run_id in (select cast(value as bigint) from json_each(?)) and notice is null order by run_id, id
"""  # noqa: S608
DELIVERIES_OF_MESSAGES = f"""select {PART_COLUMNS}, last.id as message
from outbox as last join outbox as part on part.run_id = last.run_id and part.channel = last.channel
  and part.whom = last.whom and part.notice is not distinct from last.notice
where last.id in (select cast(value as bigint) from json_each(?)) order by last.id, part.id
"""  # noqa: S608


def deliveries_of_runs(db: sqlite3.Connection, run_ids: Collection[int]) -> dict[int, list[TargetDelivery]]:
    """What became of the messages of these runs, by run. Notifications are left out. A run without messages is not in it."""
    parts: dict[tuple[int, str], list[sqlite3.Row]] = {}
    for row in db.execute(DELIVERIES, (json.dumps(list(run_ids)),)):
        parts.setdefault((row["run_id"], row["channel"]), []).append(row)
    found: dict[int, list[TargetDelivery]] = {}
    for (run_id, _), rows in parts.items():
        found.setdefault(run_id, []).append(_join_parts(rows))
    return found


def deliveries_of_messages(db: sqlite3.Connection, message_ids: Collection[int]) -> dict[int, TargetDelivery]:
    """What became of these messages, by the id of their last part. A message that was deleted is not in it."""
    parts: dict[int, list[sqlite3.Row]] = {}
    for row in db.execute(DELIVERIES_OF_MESSAGES, (json.dumps(list(message_ids)),)) if message_ids else ():
        parts.setdefault(row["message"], []).append(row)
    return {message_id: _join_parts(rows) for message_id, rows in parts.items()}


def runs_of_messages(db: sqlite3.Connection, message_ids: Collection[int]) -> list[int]:
    """The runs that these messages come from, the oldest first."""
    query = "select distinct run_id from outbox where id in (select cast(value as bigint) from json_each(?)) order by run_id"
    return [row[0] for row in db.execute(query, (json.dumps(list(message_ids)),))] if message_ids else []


def _join_parts(rows: list[sqlite3.Row]) -> TargetDelivery:
    states = tuple(DeliveryState(row["state"]) for row in rows)
    errors = [row["error"] for row in rows if row["error"] and row["state"] != DeliveryState.DELIVERED]
    is_delivered = set(states) == {DeliveryState.DELIVERED}
    return TargetDelivery(
        rows[0]["run_id"],
        Target(rows[0]["channel"], rows[0]["whom"]),
        states,
        max(row["attempts"] for row in rows),
        errors[-1] if errors else None,
        max(from_millis(row["finished_at"] or row["created_at"]) for row in rows) if is_delivered else None,
        any(row["doubted_at"] is not None for row in rows),
        tuple(json.loads(rows[0]["awaits"] or FOR_HOURS)),
    )


FINAL_STATES = frozenset({DeliveryState.DELIVERED, DeliveryState.DEAD, DeliveryState.DROPPED})


def combined_state(states: Collection[DeliveryState]) -> DeliveryState:
    """One state for several messages: delivered only if all are, partial if some are, else the first of those in progress."""
    if len(set(states)) == 1:
        return next(iter(states))
    if {DeliveryState.DELIVERED, DeliveryState.PARTIAL} & set(states):
        return DeliveryState.PARTIAL
    return next(state for state in (*reversed(UNDELIVERED), DeliveryState.DROPPED) if state in states)


# A held message that is sent together with others takes its attempts, its time and its error from the common message.
OF_COMMON = "(select common.{} from outbox as common where common.id = {}.merged_into)"
BY_ENTRY = f"""
select found.*, last.run_id as run,
  coalesce({OF_COMMON.format("error", "last")}, last.error, case when last.awaits = '[]' then last.hold_note end) as error
from (
  select kind, name, channel, state, notice is not null as is_notice,
    coalesce(awaits, '') = '[]' and merged_into is null as is_held, count(*) as count, max(id) as last_id,
    max(coalesce({OF_COMMON.format("attempts", "outbox")}, attempts)) as tries, max(doubted_at) is not null as doubted,
    min(coalesce({OF_COMMON.format("created_at", "outbox")}, created_at)) as since
  from outbox where (cast(:kind as text) is null or kind = :kind) and (cast(:name as text) is null or name = :name) and (true)
  group by kind, name, channel, state, notice is not null, coalesce(awaits, '') = '[]' and merged_into is null
) as found join outbox as last on last.id = found.last_id order by last.id
"""  # noqa: S608
MESSAGES_BY_ENTRY = BY_ENTRY.replace(
    "true", "created_at < :end and (created_at >= :begin or state in ('pending', 'sending', 'uncertain', 'held'))"
)

# Messages that have not arrived, and those that were given up unless a later one of the same kind has arrived.
UNDELIVERED_BY_ENTRY = BY_ENTRY.replace(
    "true",
    """state in ('pending', 'sending', 'uncertain', 'held') and (awaits is null or merged_into is not null)
    or state = 'dead' and not exists (select 1 from outbox as later where later.kind = outbox.kind
      and later.name = outbox.name and later.channel = outbox.channel and later.whom = outbox.whom
      and later.state = 'delivered' and later.id > outbox.id and (later.notice is null) = (outbox.notice is null))""",
)


def messages_by_entry(
    db: sqlite3.Connection, begin: datetime, end: datetime, only: Key | None = None
) -> dict[tuple[str, str], list[EntryMessages]]:
    """The messages that were queued in [begin, end), and all older ones that are still to be delivered, by entry.

    `only` limits them to one entry.
    """
    found: dict[tuple[str, str], list[EntryMessages]] = {}
    wanted = dict(zip(("kind", "name"), only or (None, None), strict=True))
    for row in db.execute(MESSAGES_BY_ENTRY, {"begin": to_millis(begin), "end": to_millis(end)} | wanted):
        found.setdefault((row["kind"], row["name"]), []).append(read_row(EntryMessages, row))
    return found


def undelivered_by_entry(
    db: sqlite3.Connection, now: datetime, kind: Kind | None = None, name: str | None = None
) -> dict[tuple[str, str], EntryMessages]:
    """The messages that should have reached their recipients by now and have not, the worst of each entry.

    A message that was given up counts until a later one of the entry reaches the same recipient, or until it is dropped.
    """
    found: dict[tuple[str, str], EntryMessages] = {}
    for row in db.execute(UNDELIVERED_BY_ENTRY, {"kind": kind, "name": name}):
        messages, key = read_row(EntryMessages, row), (row["kind"], row["name"])
        if messages.is_undelivered(now) and (key not in found or messages.rank < found[key].rank):
            found[key] = messages
    return found


def _end_message(tx: Transaction, message: OutboxMessage, state: DeliveryState, error: str | None) -> None:
    tx.db.execute(
        "update outbox set state = ?, finished_at = ?, error = ? where id = ? or merged_into = ?",
        (state, to_millis(tx.now), error, message.id, message.id),
    )
    _report_move(tx, message, state, error=error or "", age=tx.now - message.created_at)


def _report_move(
    tx: Transaction,
    message: OutboxMessage,
    state: DeliveryState,
    *,
    retried: bool = False,
    error: str = "",
    age: timedelta | None = None,
) -> None:
    sender = message.kind, message.name
    tx.report(MessageMoved(message.id, message.run_id, *sender, message.channel, state, retried, error, age))


def _message_from_row(row: sqlite3.Row) -> OutboxMessage:
    return read_row(
        OutboxMessage, row, planned_at=from_millis(row["slot"]), recipient=row["whom"], doubted=row["doubted_at"] is not None
    )


MAX_ROW_ID = 2**63 - 1
Listed = TypeVar("Listed", bound=QueuedMessage)
BEGINS = 200  # characters of a text that lists show; the run record has all of it


MOVABLE = frozenset({"pending", "uncertain", "held", "dead"})  # the states in which a user may resend or drop a message


# Messages that are on their way come before those that were given up, the newest first.
LISTED = """
select id, run_id, kind, name, channel, state, part, parts, attempts, created_at, not_before, doubted_at, notice, awaits,
  error, hold_note, substr(text, 1, cast(? as integer)) as begins
from outbox where state in ('pending', 'sending', 'uncertain', 'held', 'dead') order by state = 'dead', id desc
"""


def list_messages(db: sqlite3.Connection) -> Iterator[QueuedMessage]:
    """Every message that is neither delivered nor dropped. Rows are read as they are consumed.

    `doubted`: an attempt may have arrived. `notice` is the kind of a notification. `next_try_at` is None if no attempt is
    planned. `held_back_for` is only there if the message is delayed, and names the agents that may report the failure instead.
    """
    return (_read_message(row, QueuedMessage) for row in db.execute(LISTED, (BEGINS,)))


def movable_messages(db: sqlite3.Connection) -> list[int]:
    """The messages that a user may resend or drop, the oldest first. A common message stands for all texts in it."""
    query = "select id from outbox where state in (select value from json_each(?)) and merged_into is null order by id"
    return [row["id"] for row in db.execute(query, (json.dumps(sorted(MOVABLE)),))]


# The plus signs keep SQLite from reading the texts of all messages in the order of their ids: an index has the states.
OF_STATES = """
select *, substr(text, 1, cast(:begins as integer)) as begins from outbox where id in (
  select id from outbox where state in (select value from json_each(:states)) and +id < :before order by +id desc limit :limit
) order by id desc
"""
OF_STATES_AND_AGENTS = OF_STATES.replace(
    "order by +id", "and kind = 'heartbeat' and name in (select value from json_each(:agents)) order by +id"
)
STATE_COUNTS = """
select state, count(*) from outbox
where :agents is null or (kind = 'heartbeat' and name in (select value from json_each(:agents))) group by state
"""


def list_messages_of_states(
    db: sqlite3.Connection,
    states: Collection[str],
    limit: int,
    before: int | None = None,
    agents: Collection[str] | None = None,
) -> list[QueuedMessage]:
    """At most `limit` messages in these states, the newest first, as `list_messages` has them.

    `before`: only those with a smaller id. `agents`: only those of these agents.
    """
    query, only = (OF_STATES, {}) if agents is None else (OF_STATES_AND_AGENTS, {"agents": json.dumps(sorted(agents))})
    wanted = {"states": json.dumps(sorted(states)), "before": MAX_ROW_ID if before is None else before, "limit": limit}
    return [_read_message(row, QueuedMessage) for row in db.execute(query, wanted | {"begins": BEGINS} | only)]


def count_messages_by_state(db: sqlite3.Connection, agents: Collection[str] | None = None) -> dict[str, int]:
    """The number of messages in each state, of these agents or of all entries."""
    rows = db.execute(STATE_COUNTS, {"agents": None if agents is None else json.dumps(sorted(agents))})
    return {row[0]: row[1] for row in rows}


def get_message_with_text(db: sqlite3.Connection, message_id: int) -> MessageWithText | None:
    """A message with its title, its whole text, its recipient and its key; None if there is none."""
    row = db.execute(
        "select *, slot as planned_at, substr(text, 1, cast(? as integer)) as begins from outbox where id = ?",
        (BEGINS, message_id),
    ).fetchone()
    return _read_message(row, MessageWithText, recipient=row["whom"]) if row else None


def _read_message(row: sqlite3.Row, kind: type[Listed], **given: object) -> Listed:
    if row["awaits"]:
        given["held_back_for"] = json.loads(row["awaits"])
        given["error"] = row["error"] or (row["hold_note"] if row["awaits"] == FOR_HOURS else None)
    next_try_at = from_millis(row["not_before"]) if row["state"] == "pending" else None
    return read_row(
        kind,
        row,
        run=row["run_id"] or None,
        tries=row["attempts"],
        next_try_at=next_try_at,
        doubted=row["doubted_at"] is not None,
        **given,
    )


def targets_without_text(tx: Transaction, entry: Entry, message: str, targets: tuple[Target, ...]) -> tuple[Target, ...]:
    """The targets to which this text was not sent within the entry's window, and for which it is not queued."""
    if not entry.dedup_window:
        return targets
    digest = entry.message_digest(message)
    return tuple(target for target in targets if not _had_text(tx, entry, target, digest))


def _had_text(tx: Transaction, entry: Entry, target: Target, digest: str) -> bool:
    row = tx.db.execute(
        "select until_at, (select state from outbox where outbox.id = outbox_id) as state from digest"
        " where kind = ? and name = ? and channel = ? and whom = ? and hash = ?",
        (*entry.key, target.channel, target.recipient, digest),
    ).fetchone()
    if row is None:
        return False
    pending = row["state"] in (DeliveryState.PENDING, DeliveryState.SENDING, DeliveryState.UNCERTAIN)
    return pending or from_millis(row["until_at"]) > tx.now


def last_message_with_text(tx: Transaction, entry: Entry, target: Target, message: str) -> int | None:
    """The id of the last part of the message by which a target last got this text; None if unknown."""
    if not entry.dedup_window:
        return None
    row = tx.db.execute(
        "select outbox_id from digest where kind = ? and name = ? and channel = ? and whom = ? and hash = ?",
        (*entry.key, target.channel, target.recipient, entry.message_digest(message)),
    ).fetchone()
    return row["outbox_id"] if row else None


def count_recent_texts(db: sqlite3.Connection, kind: Kind, name: str, now: datetime) -> int:
    """How many texts of an entry would be suppressed as duplicates now."""
    query = "select count(distinct hash) from digest where kind = ? and name = ? and until_at > ?"
    return int(db.execute(query, (kind, name, to_millis(now))).fetchone()[0])


def recent_digests(db: sqlite3.Connection, kind: Kind, name: str) -> list[str]:
    """The digests of the texts that an entry has sent lately."""
    rows = db.execute("select distinct hash from digest where kind = ? and name = ? order by hash", (kind, name))
    return [row[0] for row in rows]


def record_text(tx: Transaction, entry: Entry, target: Target, message: str, outbox_id: int) -> None:
    """Record that a text was queued for a target. Within the entry's window, if it has one, it counts as a duplicate there."""
    if entry.dedup_window:
        key = {"kind": entry.kind, "name": entry.name, "channel": target.channel, "whom": target.recipient}
        until, window = tx.now + entry.dedup_window, entry.dedup_window // MILLISECOND
        sent = {"outbox_id": outbox_id, "until_at": until, "window": window}
        replace_row(tx.db, "digest", {**key, "hash": entry.message_digest(message)}, sent)


def delete_text(tx: Transaction, channel: str, run_id: int, notice: str | None) -> None:
    """Forget that a text was sent: the channel did not get it, so it may be sent again."""
    tx.db.execute(
        "update digest set until_at = 0 where outbox_id in"
        " (select id from outbox where channel = ? and run_id = ? and notice is not distinct from ?)",
        (channel, run_id, notice),
    )


MAX_PARTS = 3  # of the message of a run; a chat with more of them cannot be read
LONGEST_SIZE = "999 bytes"  # what is left out of a text can have a longer size in words than the whole text, such as "12 kB"


def message_parts(text: str, limit: int, *places: str) -> list[str]:
    """Split `text` as `split_text` does, in at most MAX_PARTS parts.

    Of a longer text, the last part ends with the `places` that show the whole text, as many as fit. If none fits, it is not cut.
    """
    parts = split_text(text, limit)
    if len(parts) <= MAX_PARTS:
        return parts
    endings = [f"\n... {{}} more: {', '.join(places[:count])}" for count in range(len(places), 0, -1)]
    ending = next((each for each in endings if 2 * utf16_length(each.format(LONGEST_SIZE)) <= limit), None)
    if ending is None:
        return parts
    *whole, last = parts[:MAX_PARTS]
    shown = split_text(last, limit - utf16_length(ending.format(LONGEST_SIZE)))[0]
    left = len(text.encode(errors="replace")) - sum(len(part.encode(errors="replace")) for part in (*whole, shown))
    return [*whole, shown + ending.format(f"{left} bytes" if left < 1000 else f"{round(left / 1000)} kB")]


def _places_of_text(channel: Channel | None, run_id: int) -> Iterator[str]:
    """Where a person finds the whole text of a run: the command, and the address of the page if it is known."""
    yield f"heartbeatd show {run_id}"
    if channel is not None and channel.public_url:
        yield f"{channel.public_url}/page/runs/{run_id}"


CUT_MARKS = ("\n\n", "\n", " ")


def split_text(text: str, limit: int) -> list[str]:
    """Split `text` into parts of at most `limit` UTF-16 units, between paragraphs, else lines, else words; at least one part.

    UTF-16 is the strictest count in use: a character beyond U+FFFF counts twice. Spaces and line breaks at a cut are dropped; the
    indentation of a line is kept. A word longer than half the limit may be cut in two. ValueError if `limit` is below 2.
    """
    if limit < 2:
        raise ValueError(f"a part holds at least two units, not {limit}")
    parts = []
    rest = text.strip()
    while (fitting := _count_fitting(rest, limit)) < len(rest):
        cut = _find_cut(rest, fitting)
        parts.append(rest[:cut].rstrip())
        rest = rest[cut:].lstrip("\n") if rest[cut] == "\n" else rest[cut:].lstrip(" ")
    parts.append(rest)
    return [part for part in parts if part.strip()] or [""]


def _count_fitting(text: str, limit: int) -> int:
    """How many characters of the text fit."""
    units = 0
    for index, sign in enumerate(text):
        units += 2 if sign > "\uffff" else 1
        if units > limit:
            return index
    return len(text)


def _find_cut(text: str, fitting: int) -> int:
    """Where to cut: at the strongest border in the latter half of what fits, so that no part is very short."""
    for border in CUT_MARKS:
        cut = text.rfind(border, fitting // 2, fitting + len(border))
        if cut > 0:
            return cut
    return fitting

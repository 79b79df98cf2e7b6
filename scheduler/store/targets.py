"""Targets: whom an agent last spoke with, and so where `last` leads; a channel whose URL names somebody is its own target."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from scheduler.channels import address
from scheduler.model.secret import Secret
from scheduler.model.settings import LAST_TARGET, Channel
from scheduler.model.timestamps import from_millis, iso_utc, to_millis
from scheduler.store.transaction import Transaction

MOST = 20  # that are known of an agent
INTERNAL = frozenset({"cli", "system", "subagent", "cron", "heartbeat"})  # where gateways speak with themselves
FORMS = {
    "telegram": "target: Telegram knows a chat by its number or @name, and a topic in it by CHAT:TOPIC",
    "discord": "target: Discord knows a thread by its number",
}


@dataclass(frozen=True, slots=True)
class Target:
    """Where a message goes: a channel, and whom there if its URL does not say so."""

    channel: str
    recipient: str = ""


def record_target(tx: Transaction, agent: str, target: Target, title: str | None) -> None:
    """An agent has been spoken with there just now; of those longest ago the surplus is forgotten. No title: as it was."""
    tx.db.execute(
        "insert or replace into target (name, channel, whom, title, at) values (:agent, :channel, :whom, coalesce(:title,"
        " (select title from target where name = :agent and channel = :channel and whom = :whom), ''), :now)",
        {"agent": agent, "channel": target.channel, "whom": target.recipient, "title": title, "now": to_millis(tx.now)},
    )
    tx.db.execute(
        "delete from target where name = :agent"
        " and id not in (select id from target where name = :agent order by id desc limit :most)",
        {"agent": agent, "most": MOST},
    )


def known_targets(db: sqlite3.Connection, agent: str) -> list[dict[str, Any]]:
    """The targets of an agent as plain data, the last one first: by the order in which they came, whatever the clock said."""
    rows = db.execute("select channel, whom, title, at from target where name = ? order by id desc", (agent,))
    return [{"channel": row[0], "target": row[1], "title": row[2], "at": iso_utc(from_millis(row[3]))} for row in rows]


def resolve_targets(
    tx: Transaction, channels: Mapping[str, Channel], deliver: tuple[str, ...], agent: str | None
) -> tuple[Target, ...]:
    """Where messages about an agent go now: each real target once, and nowhere for a `last` that nobody is known for."""
    last = _last_target(tx, channels, agent) if LAST_TARGET in deliver else None
    named = tuple(Target(name) for name in deliver if name != LAST_TARGET)
    return named if last is None or _is_same_place(channels, last, named) else (*named, last)


def has_unknown_target(tx: Transaction, channels: Mapping[str, Channel], deliver: tuple[str, ...], agent: str | None) -> bool:
    """Whether somebody is to be told whom nobody has named."""
    return LAST_TARGET in deliver and _last_target(tx, channels, agent) is None


def check_target(channels: Mapping[str, Channel], target: Target) -> None:
    """ValueError, in words for whoever reported it, unless messages can be sent to this target."""
    name, channel = target.channel, channels.get(target.channel)
    if "://" in name:
        raise ValueError("channel: this is a URL; declare it under channels: with {target} in it, and give its name here")
    if name.lower() in INTERNAL:
        raise ValueError(f"channel: {name} is internal, and no user is told anything there; report only what users write on")
    if channel is None or not channel.needs_target:
        known = ", ".join(each.name for each in channels.values() if each.needs_target) or "none yet"
        raise ValueError(f"channel: give the name of a channel whose URL in the config holds {{target}}; those are: {known}")
    checked_channel(channel, target.recipient)


def checked_channel(channel: Channel, recipient: str) -> Channel:
    """The channel with this target in its URL; ValueError unless it is one that the channel's kind can know."""
    if channel.needs_target:
        address.check_whom(recipient)
    found = channel_for_recipient(channel, recipient)
    url = found.url.reveal() if found.url else None
    try:
        if url and channel.kind == "telegram":
            address.bot(url)
        if url and channel.kind == "discord":
            address.hook(url)
    except ValueError:
        raise ValueError(FORMS[channel.kind]) from None
    return found


def channel_for_recipient(channel: Channel, recipient: str) -> Channel:
    """The channel with somebody in the place that its URL leaves open."""
    if not channel.needs_target or channel.url is None:
        return channel
    return replace(channel, url=Secret(address.fill(channel.url.reveal(), recipient)), needs_target=False)


def _last_target(tx: Transaction, channels: Mapping[str, Channel], agent: str | None) -> Target | None:
    """Only the very last one counts: who spoke before it is somebody else, though its channel may be gone."""
    row = tx.db.execute("select channel, whom from target where name = ? order by id desc limit 1", (agent,)).fetchone()
    channel = channels.get(row["channel"]) if row else None
    return Target(row["channel"], row["whom"]) if channel is not None and channel.needs_target else None


def _is_same_place(channels: Mapping[str, Channel], last: Target, named: tuple[Target, ...]) -> bool:
    """Whether one of the named channels is the same place under another name."""
    place = channel_for_recipient(channels[last.channel], last.recipient)
    return any(
        _place_of_channel(channels[each.channel]) == _place_of_channel(place) for each in named if each.channel in channels
    )


def _place_of_channel(channel: Channel) -> tuple[object, ...]:
    return channel.kind, channel.url, channel.base_url

"""Checks the targets of `deliver`, and chooses the channels of entries and failure notifications that set none."""

from __future__ import annotations

from datetime import timedelta
from functools import lru_cache

from scheduler.channels.url_template import PLACEHOLDER
from scheduler.config.keys import models
from scheduler.config.settings.config_node import ConfigNode
from scheduler.model.settings import LAST_TARGET, OnFailure

NO_NOTICES = OnFailure(0, timedelta(0), ())


def default_channel(node: ConfigNode, *, speaks: bool) -> tuple[str, ...]:
    """The only declared channel, else the log. A channel with {target} is only for agents, which have a last recipient."""
    return _single_channel(tuple(node.context.channels), tuple(node.context.open_channels), speaks)


def check_deliver(names: tuple[str, ...], node: ConfigNode, *inside: str | int, speaks: bool) -> None:
    """Add an error for each name in a `deliver` without a recipient. `speaks`: the entry has an agent, so `last` may be used."""
    offered = node.context.deliver_names if speaks and node.context.open_channels else node.context.channels
    offered = [name for name in offered if name not in node.context.open_channels]
    node.check_declared(names, node.context.deliver_names, "channel", *inside, offered=offered)
    for index, name in enumerate(names):
        if name in node.context.open_channels:
            words = "write last, or a recipient in the URL" if speaks else "write a recipient in the URL"
            node.add_error(f"the URL of {name} holds {PLACEHOLDER}, and names no recipient; {words}", *inside, index)
        elif name == LAST_TARGET and not speaks:
            node.add_error(
                "last is the recipient who wrote to an agent last, and this job calls no agent; write the name of a channel",
                *inside,
                index,
            )
        elif name == LAST_TARGET and not node.context.open_channels:
            example = f'channels: {{chat: "tgram://${{TOKEN}}/{PLACEHOLDER}"}}'
            node.add_error(
                f"last needs a channel whose URL contains {PLACEHOLDER} in place of the recipient; write {example}",
                *inside,
                index,
            )


def build_on_failure(
    part: models.OnFailure | None, deliver: tuple[str, ...], node: ConfigNode, *inside: str, speaks: bool
) -> OnFailure:
    """The failure notifications of an entry; without channels they are sent to its `deliver`. Errors are added at `inside`."""
    if part is None:
        return NO_NOTICES
    if part.deliver == ():
        node.add_error("failures would not be sent to anyone; write on_failure: none if that is intended", *inside, "deliver")
    check_deliver(part.deliver or (), node, *inside, "deliver", speaks=speaks)
    return _shared_on_failure(part, part.deliver or (() if deliver else default_channel(node, speaks=speaks)))


@lru_cache(maxsize=1024)
def _shared_on_failure(part: models.OnFailure, deliver: tuple[str, ...]) -> OnFailure:
    return OnFailure(part.after, part.remind, deliver)


@lru_cache(maxsize=8)
def _single_channel(channels: tuple[str, ...], to_last: tuple[str, ...], speaks: bool) -> tuple[str, ...]:
    declared = [name for name in channels if name != "log"]
    if len(declared) != 1 or (declared[0] in to_last and not speaks):
        return ("log",)
    return (LAST_TARGET,) if declared[0] in to_last else (declared[0],)

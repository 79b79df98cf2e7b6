"""Who is told where the config does not say it: of what an entry has to say, and of its failures."""

from __future__ import annotations

from datetime import timedelta
from functools import lru_cache

from scheduler.config.build.config_node import ConfigNode
from scheduler.config.keys import models
from scheduler.model.settings import LAST_TARGET, OnFailure

NO_NOTICES = OnFailure(0, timedelta(0), ())


def default_channel(node: ConfigNode, *, speaks: bool) -> tuple[str, ...]:
    """The only channel that is declared, else the log; one that leaves open whom to tell is for agents, who are spoken with."""
    return _single_channel(tuple(node.context.channels), tuple(node.context.open_channels), speaks)


def build_on_failure(
    part: models.OnFailure | None, deliver: tuple[str, ...], node: ConfigNode, *inside: str, speaks: bool
) -> OnFailure:
    """Whom an entry that tells `deliver` has told of its failures; no channel: the same. Faults are noted at `inside`."""
    if part is None:
        return NO_NOTICES
    if part.deliver == ():
        node.add_error("this would tell nobody; write on_failure: none if that is meant", *inside, "deliver")
    node.check_deliver(part.deliver or (), *inside, "deliver", speaks=speaks)
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

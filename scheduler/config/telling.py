"""Who is told where the config does not say it: of what an entry has to say, and of its failures."""

from __future__ import annotations

from datetime import timedelta
from functools import lru_cache

from scheduler.config import models
from scheduler.config.frame import Spot
from scheduler.settings import OnFailure

NOBODY = OnFailure(0, timedelta(0), ())


def only_channel(spot: Spot) -> tuple[str, ...]:
    """The only channel that is declared, else the log."""
    return _only(tuple(spot.frame.channels))


def on_failure(part: models.OnFailure | None, deliver: tuple[str, ...], spot: Spot, *inside: str) -> OnFailure:
    """Whom an entry that tells `deliver` has told of its failures; no channel: the same. Faults are noted at `inside`."""
    if part is None:
        return NOBODY
    if part.deliver == ():
        spot.fault("this would tell nobody; write on_failure: none if that is meant", *inside, "deliver")
    spot.known(part.deliver or (), spot.frame.channels, "channel", *inside, "deliver")
    return _shared(part, part.deliver or (() if deliver else only_channel(spot)))


@lru_cache(maxsize=1024)
def _shared(part: models.OnFailure, deliver: tuple[str, ...]) -> OnFailure:
    return OnFailure(part.after, part.remind, deliver)


@lru_cache(maxsize=8)
def _only(channels: tuple[str, ...]) -> tuple[str, ...]:
    declared = tuple(name for name in channels if name != "log")
    return declared if len(declared) == 1 else ("log",)

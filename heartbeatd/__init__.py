"""A client for the HTTP API of heartbeatd: `Client` for ordinary programs, `AsyncClient` for asyncio, with typed answers.

The package needs httpx2 and pydantic, and nothing of the daemon. The daemon uses its models too, so the clients are imported when
they are first used: httpx2 takes longer to import than all the models.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from heartbeatd.client import AsyncClient, Client, Event
    from heartbeatd.errors import HeartbeatdError

__all__ = ["AsyncClient", "Client", "Event", "HeartbeatdError"]

_HOMES = {"AsyncClient": "client", "Client": "client", "Event": "client", "HeartbeatdError": "errors"}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(f"heartbeatd.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

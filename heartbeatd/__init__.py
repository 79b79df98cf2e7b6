"""A client for the HTTP API of heartbeatd: `Client` for ordinary programs, `AsyncClient` for asyncio, with typed answers.

The package is light to import: it needs httpx2 and pydantic, and nothing of the daemon's engine.
"""

from heartbeatd.async_client import AsyncClient
from heartbeatd.errors import HeartbeatdError
from heartbeatd.events import Event
from heartbeatd.sync_client import Client

__all__ = ["AsyncClient", "Client", "Event", "HeartbeatdError"]

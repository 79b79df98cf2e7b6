"""The dead man's switch as the config declares it."""

from __future__ import annotations

from scheduler.config import models
from scheduler.config.fields import is_web_address
from scheduler.config.frame import Spot
from scheduler.settings import Deadman


def deadman(part: models.Deadman | None, spot: Spot) -> Deadman | None:
    """What is pinged; None where there is none. Faults are noted at `spot`."""
    if part is None:
        return None
    url = spot.secret(part.url, "url", used=True)
    if url is None:
        return None
    if not spot.frame.vault.sealed and not is_web_address(url.reveal()):
        spot.fault("this is not an address that can be pinged; write http:// or https:// with a host", "url")
    return Deadman(url, part.every, part.allow_private)

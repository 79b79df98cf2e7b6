"""Reads how requests leave the machine, and the dead man's switch that is pinged, from the config."""

from __future__ import annotations

import ssl
from pathlib import Path

from scheduler.config.build.config_node import Spot
from scheduler.config.keys import models
from scheduler.config.keys.value_parsers import is_web_address
from scheduler.model.settings import Deadman, Network, Proxy


def network(part: models.Network, spot: Spot) -> Network:
    """The proxy and the authorities that every request uses. Faults are noted at `spot`."""
    return Network(_proxy(part, spot), _ca_file(part, spot))


def _proxy(part: models.Network, spot: Spot) -> Proxy:
    if part.proxy == "none":
        return "none"
    if part.proxy == "environment":
        return "environment"
    url = spot.secret(part.proxy, "proxy", used=True)
    if url is None:
        return "environment"
    if not spot.frame.vault.sealed and not is_web_address(url.reveal()):
        spot.fault('this is no proxy that can be used; write environment, none, or "http://HOST:PORT"', "proxy")
    return url


def _ca_file(part: models.Network, spot: Spot) -> Path | None:
    if part.ca_file is None:
        return None
    path = spot.frame.path(part.ca_file)
    try:
        ssl.create_default_context(cafile=str(path))
    except ssl.SSLError:
        spot.fault(f"{path} holds no certificates; write a file of PEM certificates, as authorities hand them out", "ca_file")
    except OSError as error:
        spot.fault(f"{path} cannot be read ({error.strerror}); write the path of a file of PEM certificates", "ca_file")
    return path


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

"""Reads how requests leave the machine, and the dead man's switch that is pinged, from the config."""

from __future__ import annotations

import ssl
from pathlib import Path

from scheduler.config.build.config_node import ConfigNode
from scheduler.config.keys import models
from scheduler.config.keys.value_parsers import is_web_address
from scheduler.model.settings import Deadman, Network, Proxy


def build_network(part: models.Network, node: ConfigNode) -> Network:
    """The proxy and the authorities that every request uses. Faults are noted at `node`."""
    return Network(_build_proxy(part, node), _check_ca_file(part, node))


def _build_proxy(part: models.Network, node: ConfigNode) -> Proxy:
    if part.proxy == "none":
        return "none"
    if part.proxy == "environment":
        return "environment"
    url = node.resolve_secret(part.proxy, "proxy", used=True)
    if url is None:
        return "environment"
    if not node.context.secrets.is_disabled and not is_web_address(url.reveal()):
        node.add_error('this is no proxy that can be used; write environment, none, or "http://HOST:PORT"', "proxy")
    return url


def _check_ca_file(part: models.Network, node: ConfigNode) -> Path | None:
    if part.ca_file is None:
        return None
    path = node.context.resolve_path(part.ca_file)
    try:
        ssl.create_default_context(cafile=str(path))
    except ssl.SSLError:
        node.add_error(f"{path} holds no certificates; write a file of PEM certificates, as authorities hand them out", "ca_file")
    except OSError as error:
        node.add_error(f"{path} cannot be read ({error.strerror}); write the path of a file of PEM certificates", "ca_file")
    return path


def build_deadman(part: models.Deadman | None, node: ConfigNode) -> Deadman | None:
    """What is pinged; None where there is none. Faults are noted at `node`."""
    if part is None:
        return None
    url = node.resolve_secret(part.url, "url", used=True)
    if url is None:
        return None
    if not node.context.secrets.is_disabled and not is_web_address(url.reveal()):
        node.add_error("this is not an address that can be pinged; write http:// or https:// with a host", "url")
    return Deadman(url, part.every, part.allow_private)

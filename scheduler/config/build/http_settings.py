"""The HTTP interface as the config declares it."""

from __future__ import annotations

import re
from ipaddress import ip_address
from itertools import pairwise

from scheduler.config.build.config_node import Spot
from scheduler.config.build.secrets import refers
from scheduler.config.file.remedies import Remedy, Wrong, instead
from scheduler.config.keys import models
from scheduler.model.settings import Server, Token

LEAST_BYTES = 16  # 128 bit
LEAST_DIFFERENT = 5  # characters

_LISTEN = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]\s]+):([0-9]{1,5})")


def server(part: models.Server, spot: Spot) -> Server:
    host, port = _listen(part, spot)
    tokens = tuple(token for name, written in part.tokens.items() if (token := _token(name, written, spot)))
    if not part.tokens and not is_loopback(host) and spot.knows("tokens"):
        near = f"127.0.0.1:{port}"
        words = f"declare server.tokens, or listen on {near}"
        spot.fault(Wrong(f"{host} can be reached from other machines", Remedy(near), words=words), "listen")
    return Server(host, port, part.hosts, tokens, part.metrics_entries)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it; a name other than localhost may mean anything."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(part: models.Server, spot: Spot) -> tuple[str, int]:
    found = _LISTEN.fullmatch(part.listen)
    if not found or int(found[2]) > 65535:
        spot.fault(instead("this is not an address with a port", _near(part.listen)), "listen")
        return "127.0.0.1", 0
    return found[1].strip("[]"), int(found[2])


def _near(text: str) -> str:
    """An address of this machine, with the port that a text names."""
    port = re.search(r"(?:^|:)([0-9]{1,5})/?$", text)
    return f"127.0.0.1:{port[1] if port and int(port[1]) <= 65535 else 7857}"


def _token(name: str, part: models.Token, spot: Spot) -> Token | None:
    spot.known(part.agents or (), spot.frame.agents, "agent", "tokens", name, "agents")
    value = spot.secret(part.value, "tokens", name, "value", used=True)
    if value is None:
        return None
    if not spot.frame.vault.sealed:
        _check_token(name, value.reveal(), spot)
    if not refers(part.value):
        spot.warn(
            "this secret stands in the file itself; better refer to it with ${NAME} or ${file:PATH}", "tokens", name, "value"
        )
    return Token(name, value, frozenset(part.may), frozenset(part.agents) if part.agents is not None else None)


def _is_guessable(value: str) -> bool:
    """Whether it holds next to no chance: few different characters, one piece again and again, or a row such as 12345.

    Of tokens with 128 random bits not one in a thousand million is so.
    """
    again = (value + value).find(value, 1) < len(value)
    steps = [ord(after) - ord(before) for before, after in pairwise(value)]
    in_a_row = max(sum(step in (0, way) for step in steps) for way in (1, -1))
    return again or len(set(value)) < LEAST_DIFFERENT or in_a_row * 4 > len(steps) * 3


def _check_token(name: str, value: str, spot: Spot) -> None:
    if len(value.encode(errors="surrogateescape")) < LEAST_BYTES:
        spot.fault("this token is shorter than 16 bytes; make one with: openssl rand -hex 16", "tokens", name, "value")
    elif not all("!" <= character <= "~" for character in value):
        spot.fault("a token is sent in a header: ASCII letters, digits and signs only, no blanks", "tokens", name, "value")
    elif _is_guessable(value):
        spot.fault("this token is easy to guess; make one with: openssl rand -hex 16", "tokens", name, "value")

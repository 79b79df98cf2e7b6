"""Secrets opened for one call: their plain text where it is needed, and a veil over it wherever something is told."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from html import escape
from urllib.parse import unquote, urlsplit

MASK = "***"
SHORTEST = 4  # characters; hiding less would only spoil the words around it
SHORTEST_PART = 6  # characters of a part of an address that may be a token
SHORTEST_LINE = 8  # characters of one line of a secret of several lines


def is_secret(value: object) -> bool:
    """Whether a value of the config shows itself to nobody who does not ask by name."""
    return hasattr(value, "reveal")


def reveal(value: object) -> str:
    """The plain text of a value of the config that may be a secret."""
    return str(value.reveal() if hasattr(value, "reveal") else value)


class Veil:
    """Covers the given secrets in a text, however servers spell what they repeat: escaped once or more, or in base64.

    Empty ones and None count as none. Of a secret of several lines, such as a private key, each line is covered as well.
    """

    def __init__(self, secrets: Iterable[str | None]) -> None:
        plain = {form for secret in secrets if secret for form in _forms(secret) if len(form) >= SHORTEST}
        self._plain = sorted(plain, key=len, reverse=True)
        known = [spelling for form in self._plain for spelling in _spellings(form)]
        self._pattern = re.compile("|".join(known), re.IGNORECASE) if known else None

    def over(self, text: str) -> str:
        return self._pattern.sub(MASK, text) if self._pattern else text

    def over_tail(self, text: str) -> str:
        """The same for a text whose beginning was cut off, perhaps within a secret: the rest of that one is covered too."""
        for form in self._plain:
            rest = next((size for size in range(len(form) - 1, SHORTEST - 1, -1) if text.startswith(form[-size:])), 0)
            if rest:
                return MASK + self.over(text[rest:])
        return self.over(text)


def veil_of(env: Mapping[str, object]) -> Veil:
    """Covers the secrets among the variables that a program was given, in what it printed."""
    return Veil(reveal(value) for value in env.values() if is_secret(value))


def parts_of(url: str, *, all_of_it: bool) -> list[str]:
    """What may be secret in an address: its login, and with `all_of_it` the parts of its path and query as well."""
    try:
        address = urlsplit(url)
    except ValueError:
        return [url]
    login = [f"{address.username}:{address.password or ''}", address.password or address.username] if address.username else []
    if not all_of_it:
        return login
    pieces = address.path.split("/") + [pair.partition("=")[2] or pair for pair in address.query.split("&")]
    return [*login, url, *(piece for piece in pieces if len(piece) >= SHORTEST_PART)]


def _forms(secret: str) -> Iterable[str]:
    """What is to be looked for: the secret, as it is without its escapes for URLs, without blanks around it, line by line."""
    yield from (secret, unquote(secret), secret.strip())
    lines = [line.strip() for line in secret.splitlines()]
    if len(lines) > 1:
        yield from (line for line in lines if len(line) >= SHORTEST_LINE)


def _spellings(secret: str) -> Iterable[str]:
    """Patterns for the secret as text, and in base64 wherever it stands in what was encoded."""
    data = secret.encode(errors="replace")
    yield _escaped(secret)
    yield _escaped(b64encode(data).decode())
    for before, unsure in enumerate((0, 2, 3)):
        encoded = b64encode(bytes(before) + data).decode().rstrip("=")
        own = encoded[unsure : -1 if (before + len(data)) % 3 else None]  # without the signs that hold others' bits too
        yield _escaped(own)
        yield _escaped(own.replace("+", "-").replace("/", "_"))


def _escaped(text: str) -> str:
    return "".join(sign if sign.isascii() and sign.isalnum() else _escapes(sign) for sign in text)


def _escapes(sign: str) -> str:
    """A pattern for one sign as it is, and as URLs (again and again), HTML and JSON write it."""
    in_url = "".join(f"%(?:25)*{byte:02X}" for byte in sign.encode(errors="replace"))
    return f"(?:{in_url}|{re.escape(escape(sign))}|{re.escape(json.dumps(sign)[1:-1])}|{re.escape(sign)})"

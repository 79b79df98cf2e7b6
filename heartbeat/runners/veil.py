"""Secrets opened for one call: their plain text where it is needed, and a veil over it wherever something is told."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from urllib.parse import quote, unquote, urlsplit

MASK = "***"
SHORTEST = 4  # characters; hiding less would only spoil the words around it
SHORTEST_PART = 6  # characters of a part of an address that may be a token


def is_secret(value: object) -> bool:
    """Whether a value of the config shows itself to nobody who does not ask by name."""
    return hasattr(value, "reveal")


def reveal(value: object) -> str:
    """The plain text of a value of the config that may be a secret."""
    return str(value.reveal() if hasattr(value, "reveal") else value)


class Veil:
    """Covers the given secrets in a text, also as base64 or encoded for a URL. Empty ones and None count as none."""

    def __init__(self, secrets: Iterable[str | None]) -> None:
        known = {form for secret in secrets if secret for form in _forms(secret)}
        self._forms = sorted((form for form in known if len(form) >= SHORTEST), key=len, reverse=True)

    def over(self, text: str) -> str:
        for form in self._forms:
            text = text.replace(form, MASK)
        return text


def parts_of(url: str, *, all_of_it: bool) -> list[str]:
    """What may be secret in an address: its login, and with `all_of_it` the parts of its path and query as well."""
    try:
        address = urlsplit(url)
    except ValueError:
        return [url]
    login = [f"{address.username}:{address.password or ''}", address.password or address.username] if address.username else []
    plain = [unquote(part) for part in login]
    if not all_of_it:
        return login + plain
    pieces = address.path.split("/") + [pair.partition("=")[2] or pair for pair in address.query.split("&")]
    return [*login, *plain, url, *(piece for piece in pieces if len(piece) >= SHORTEST_PART)]


def _forms(secret: str) -> Iterable[str]:
    encoded = b64encode(secret.encode(errors="replace")).decode()
    return secret, quote(secret, safe=""), encoded, encoded.rstrip("=")

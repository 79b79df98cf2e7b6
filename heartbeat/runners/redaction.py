"""Secrets opened for one call: their plain text where it is needed, and a redactor over it wherever something is told."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from html import escape
from urllib.parse import unquote, urlsplit

MASK = "***"
MIN_SECRET = 4  # characters; hiding less would only spoil the words around it
MIN_URL_PART = 6  # characters of a part of an address that may be a token
MIN_LINE = 8  # characters of one line of a secret of several lines


def is_secret(value: object) -> bool:
    """Whether a value of the config shows itself to nobody who does not ask by name."""
    return hasattr(value, "reveal")


def reveal_secret(value: object) -> str:
    """The plain text of a value of the config that may be a secret."""
    return str(value.reveal() if hasattr(value, "reveal") else value)


class Redactor:
    """Covers the given secrets in a text, however servers spell what they repeat: escaped once or more, or in base64.

    Empty ones and None count as none. Of a secret of several lines, such as a private key, each line is covered as well.
    """

    def __init__(self, secrets: Iterable[str | None]) -> None:
        plain = {form for secret in secrets if secret for form in _secret_forms(secret) if len(form) >= MIN_SECRET}
        self._plain = sorted(plain, key=len, reverse=True)
        known = [spelling for form in self._plain for spelling in _secret_spellings(form)]
        self._pattern = re.compile("|".join(known), re.IGNORECASE) if known else None

    def redact(self, text: str) -> str:
        return self._pattern.sub(MASK, text) if self._pattern else text

    def redact_tail(self, text: str) -> str:
        """The same for a text whose beginning was cut off, perhaps within a secret: the rest of that one is covered too."""
        for form in self._plain:
            rest = next((size for size in range(len(form) - 1, MIN_SECRET - 1, -1) if text.startswith(form[-size:])), 0)
            if rest:
                return MASK + self.redact(text[rest:])
        return self.redact(text)


def redactor_for_env(env: Mapping[str, object]) -> Redactor:
    """Covers the secrets among the variables that a program was given, in what it printed."""
    return Redactor(reveal_secret(value) for value in env.values() if is_secret(value))


def secret_parts(url: str, *, whole_url: bool) -> list[str]:
    """What may be secret in an address: its login, and with `all_of_it` the parts of its path and query as well."""
    try:
        address = urlsplit(url)
    except ValueError:
        return [url]
    login = [f"{address.username}:{address.password or ''}", address.password or address.username] if address.username else []
    if not whole_url:
        return login
    pieces = address.path.split("/") + [pair.partition("=")[2] or pair for pair in address.query.split("&")]
    return [*login, url, *(piece for piece in pieces if len(piece) >= MIN_URL_PART)]


def _secret_forms(secret: str) -> Iterable[str]:
    """What is to be looked for: the secret, as it is without its escapes for URLs, without blanks around it, line by line."""
    yield from (secret, unquote(secret), secret.strip())
    lines = [line.strip() for line in secret.splitlines()]
    if len(lines) > 1:
        yield from (line for line in lines if len(line) >= MIN_LINE)


def _secret_spellings(secret: str) -> Iterable[str]:
    """Patterns for the secret as text, and in base64 wherever it stands in what was encoded."""
    data = secret.encode(errors="replace")
    yield _escaped_pattern(secret)
    yield _escaped_pattern(b64encode(data).decode())
    for before, unsure in enumerate((0, 2, 3)):
        encoded = b64encode(bytes(before) + data).decode().rstrip("=")
        own = encoded[unsure : -1 if (before + len(data)) % 3 else None]  # without the signs that hold others' bits too
        yield _escaped_pattern(own)
        yield _escaped_pattern(own.replace("+", "-").replace("/", "_"))


def _escaped_pattern(text: str) -> str:
    return "".join(sign if sign.isascii() and sign.isalnum() else _character_pattern(sign) for sign in text)


def _character_pattern(sign: str) -> str:
    """A pattern for one sign as it is, and as URLs (again and again), HTML and JSON write it."""
    in_url = "".join(f"%(?:25)*{byte:02X}" for byte in sign.encode(errors="replace"))
    return f"(?:{in_url}|{re.escape(escape(sign))}|{re.escape(json.dumps(sign)[1:-1])}|{re.escape(sign)})"

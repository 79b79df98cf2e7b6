"""Reads secrets as plain text where they are needed, and redacts them in everything that is shown."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from html import escape
from urllib.parse import unquote, urlsplit

MASK = "***"
MIN_SECRET = 4  # characters; shorter secrets would also match parts of ordinary words
MIN_URL_PART = 6  # characters; shorter parts of a URL are not treated as tokens
MIN_LINE = 8  # characters; shorter lines of a secret of several lines are not redacted on their own


def is_secret(value: object) -> bool:
    """Whether a value of the config is a secret, which shows its text only through `reveal`."""
    return hasattr(value, "reveal")


def reveal_secret(value: object) -> str:
    """The plain text of a config value, whether or not it is a secret."""
    return str(value.reveal() if hasattr(value, "reveal") else value)


class Redactor:
    """Redacts the given secrets in a text, also where they are escaped (once or several times) or encoded in base64.

    Empty secrets and None are ignored. If a secret has several lines, such as a private key, each line is redacted as well.
    """

    def __init__(self, secrets: Iterable[str | None]) -> None:
        plain = {form for secret in secrets if secret for form in _secret_forms(secret) if len(form) >= MIN_SECRET}
        self._plain = sorted(plain, key=len, reverse=True)
        known = [spelling for form in self._plain for spelling in _secret_spellings(form)]
        self._pattern = re.compile("|".join(known), re.IGNORECASE) if known else None

    def redact(self, text: str) -> str:
        """The text with MASK in place of every secret."""
        return self._pattern.sub(MASK, text) if self._pattern else text

    def redact_tail(self, text: str) -> str:
        """The same for a text whose beginning was cut off, perhaps inside a secret: the rest of that secret is redacted too."""
        for form in self._plain:
            rest = next((size for size in range(len(form) - 1, MIN_SECRET - 1, -1) if text.startswith(form[-size:])), 0)
            if rest:
                return MASK + self.redact(text[rest:])
        return self.redact(text)


NO_SECRETS = Redactor(())


def redactor_for_env(env: Mapping[str, object]) -> Redactor:
    """A redactor for the secrets among the environment variables of a program."""
    secrets = [reveal_secret(value) for value in env.values() if is_secret(value)]
    return Redactor(secrets) if secrets else NO_SECRETS


def secret_parts(url: str, *, whole_url: bool) -> list[str]:
    """The parts of a URL that may be secret: its login, and with `whole_url` the parts of its path and query as well."""
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
    """The texts to search for: the secret, the secret without URL escapes, without blanks around it, and each of its lines."""
    yield from (secret, unquote(secret), secret.strip())
    lines = [line.strip() for line in secret.splitlines()]
    if len(lines) > 1:
        yield from (line for line in lines if len(line) >= MIN_LINE)


def _secret_spellings(secret: str) -> Iterable[str]:
    """Patterns for the secret as text, and in base64 at any position of the encoded data."""
    data = secret.encode(errors="replace")
    yield _escaped_pattern(secret)
    yield _escaped_pattern(b64encode(data).decode())
    for before, unsure in enumerate((0, 2, 3)):
        encoded = b64encode(bytes(before) + data).decode().rstrip("=")
        own = encoded[
            unsure : -1 if (before + len(data)) % 3 else None
        ]  # without the characters that also hold bits of the neighbours
        yield _escaped_pattern(own)
        yield _escaped_pattern(own.replace("+", "-").replace("/", "_"))


def _escaped_pattern(text: str) -> str:
    return "".join(sign if sign.isascii() and sign.isalnum() else _character_pattern(sign) for sign in text)


def _character_pattern(sign: str) -> str:
    """A pattern for one character: as it is, and as URLs (escaped any number of times), HTML and JSON write it."""
    in_url = "".join(f"%(?:25)*{byte:02X}" for byte in sign.encode(errors="replace"))
    return f"(?:{in_url}|{re.escape(escape(sign))}|{re.escape(json.dumps(sign)[1:-1])}|{re.escape(sign)})"

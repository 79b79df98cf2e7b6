"""Replaces {target} in the URL of a channel, and checks such URLs and targets."""

from __future__ import annotations

import re
from urllib.parse import quote, urlsplit

PLACEHOLDER = "{target}"
BAD_TARGET = "target: write 1 to 128 of A-Z a-z 0-9 _ . : @ + = # ! ~ -, as the id of a chat has them"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,19})://")
_TARGET = re.compile(r"(?!\.+\Z)[A-Za-z0-9_.:@+=#!~-]{1,128}", re.ASCII)
_BEFORE_PLACEHOLDER = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,19}://[^/?#]+[/?]")


def url_scheme(url: str) -> str:
    """The text before `://`, in lower case; empty if it cannot be a scheme."""
    found = _SCHEME.match(url)
    return found[1].lower() if found else ""


def is_web_address(url: str) -> bool:
    """Whether this is http or https with a host."""
    try:
        parts = urlsplit(url)
        has_host = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        return False
    return has_host and url.isprintable() and " " not in url


def fill_placeholder(url: str, target: str) -> str:
    """The URL with a target in place of {target}, percent-encoded so that it cannot change the rest of the URL."""
    return url.replace(PLACEHOLDER, quote(target, safe=""))


def check_placeholder(url: str) -> None:
    """Raise ValueError, which shows no part of the URL, unless it has {target} once, after its host and logins."""
    if url.count(PLACEHOLDER) != 1:
        raise ValueError(f"{PLACEHOLDER} may occur only once in a URL")
    if not _BEFORE_PLACEHOLDER.match(url.partition(PLACEHOLDER)[0]):
        raise ValueError(f"{PLACEHOLDER} cannot be the host or a login; write it after them, as in tgram://TOKEN/{PLACEHOLDER}")


def check_target_text(target: str) -> None:
    """Raise ValueError unless this can be a recipient in a URL and nothing else: no separator, no step to another folder."""
    if not _TARGET.fullmatch(target):
        raise ValueError(BAD_TARGET)

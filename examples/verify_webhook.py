"""Checks in a receiver of webhooks that heartbeatd sent the request, and when. docs/channels.md describes the header."""

from __future__ import annotations

import hashlib
import hmac


def is_authentic(secret: str, header: str, body: bytes, now: float) -> bool:
    """Whether heartbeatd has sent this body within the last five minutes. `body` holds the bytes as they were received."""
    parts = dict(part.split("=", 1) for part in header.split(","))
    signed = parts["t"].encode() + b"." + body
    expected = hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
    return hmac.compare_digest(expected, parts["v1"]) and abs(now - int(parts["t"])) < 300

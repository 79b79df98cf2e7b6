"""One POST to where a message goes: what was answered, and what that means for the message."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from ssl import SSLContext
from typing import Any

from heartbeat.runners import wire as http
from heartbeat.runners.line import Line, Names, Resolve
from heartbeat.runners.trouble import LONGEST_WAIT, Trouble, phrase, retry_after
from heartbeat.runners.veil import Veil
from heartbeat.waiting import here
from scheduler.transports import Sent
from scheduler.transports.guard import Refused, check

TOTAL = 30.0  # seconds
SAID_MAX = 200  # characters of what a receiver says that an error repeats


@dataclass(frozen=True, slots=True)
class Wire:
    """How a request may travel.

    Addresses that are not public need `allow_private`; `resolve` is called like `socket.getaddrinfo`; `total` is seconds;
    `tls` replaces the system's trust in certificates.
    """

    allow_private: bool
    resolve: Resolve = socket.getaddrinfo
    total: float = TOTAL
    tls: SSLContext | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: header names in lower case, the body as far as 64 KiB. `host` is all of the URL that an error may name."""

    host: str
    status: int
    headers: Mapping[str, str]
    body: bytes

    def told(self) -> Mapping[str, Any]:
        """The body as a JSON object; empty if it is none."""
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


def post(url: str, content: Mapping[str, Any], wire: Wire, headers: Mapping[str, str] | None = None) -> Answer | Sent:
    """Post `content` as JSON to `url` once, following no redirect; what became of the message if there was no answer.

    Only http and https. Blocks for at most `wire.total` seconds and raises nothing of the network.
    """
    try:
        target = http.take_apart(url)
    except Trouble as trouble:
        return Sent("dead", str(trouble), None)
    line = Line(wire.total, Names(wire.resolve), check=None if wire.allow_private else check)
    sent = {"user-agent": f"heartbeatd/{_version()}"} | dict(headers or {})
    try:
        head, body = http.head(target, sent.items()), json.dumps(content).encode()
        reply = here(http.send(target, head, body, line, http.beginning, wire.tls))
    except Refused as refusal:
        return Sent("dead", str(refusal), None)
    except Trouble as trouble:  # before the first byte it is surely not there, after it nobody knows
        return Sent("uncertain" if line.sent else "retry", f"{target.host}: {trouble}", None)
    return Answer(target.host, reply.status, reply.headers, reply.body)


def judge(answer: Answer, *, said: str = "", wait: timedelta | None = None) -> Sent:
    """What an answer's status means for the message.

    `said` is what the receiver's body gives as the reason, fit to be shown; `wait` what it asks for before the next attempt,
    if not in its header.
    """
    status = answer.status
    if 200 <= status < 300:
        return Sent("delivered", "", None)
    error = f"{answer.host} answered {status} {phrase(status)}".rstrip() + (f": {said}" if said else "")
    if status in (408, 429) or 500 <= status < 600:
        return Sent("retry", error, wait if wait is not None else retry_after(answer.headers))
    if 300 <= status < 400:
        return Sent("dead", f"{error}: redirects are not followed; write the URL it leads to", None)
    return Sent("dead", error, None)


def shown(text: object, secrets: Iterable[str]) -> str:
    """A receiver's own words on one short line, without the secrets that it was asked with."""
    if not isinstance(text, str):
        return ""
    return " ".join("".join(sign if sign.isprintable() else " " for sign in Veil(secrets).over(text)).split())[:SAID_MAX]


def seconds(value: object) -> timedelta | None:
    """A wait that a receiver gives as a number of seconds, uncapped but finite; None if it makes no sense."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        return None
    return timedelta(seconds=min(value, LONGEST_WAIT))


@cache
def _version() -> str:
    try:
        return version("heartbeatd")
    except PackageNotFoundError:  # run from a checkout
        return "dev"

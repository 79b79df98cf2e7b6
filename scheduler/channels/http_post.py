"""Posts a message as JSON, and turns the response into the result of the delivery."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from heartbeat.runners.call_errors import MAX_RETRY_AFTER, CallError, parse_retry_after, status_phrase
from heartbeat.runners.redaction import Redactor
from heartbeat.words import squeeze
from scheduler import __version__
from scheduler.model.message import DeliveryResult
from scheduler.model.settings import Channel
from scheduler.net.address_guard import AddressRefused

if TYPE_CHECKING:
    from scheduler.net.http_client import HttpClient

MAX_REASON = 200  # characters of the receiver's reason that an error shows


def channel_url(channel: Channel) -> str:
    """The URL of a channel that has one."""
    assert channel.url is not None
    return channel.url.reveal()


@dataclass(frozen=True, slots=True)
class PostAnswer:
    """An HTTP answer: header names in lower case, at most 64 KiB of the body. `host` is what errors may show of the URL."""

    host: str
    status: int
    headers: Mapping[str, str]
    body: bytes

    def parse_json(self) -> Mapping[str, Any]:
        """The body as a JSON object; empty if it is not one."""
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


async def post_json(
    url: str,
    content: Mapping[str, object],
    http: HttpClient,
    *,
    allow_private: bool,
    seconds: float,
    headers: Mapping[str, str] | None = None,
    sign: Callable[[bytes], Mapping[str, str]] | None = None,
) -> PostAnswer | DeliveryResult:
    """Send `content` as JSON to `url` once, without following redirects. A private address needs `allow_private`.

    Returns the answer, or the result of the delivery if there is no answer. `sign` returns headers for the body that is sent.
    Only http and https. Takes at most `seconds` and raises no network error.
    """
    from scheduler.net.http_client import parse_url  # takes a third of a second, which the reading of a config need not wait for

    try:
        host = parse_url(url).host
    except CallError as error:
        return DeliveryResult("dead", str(error))
    sent = {"user-agent": f"heartbeatd/{__version__}"} | dict(headers or {})
    body = json.dumps(content).encode()
    if sign is not None:
        sent |= sign(body)
    try:
        reply = await http.send_message(url, sent, body, seconds, allow_private=allow_private)
    except AddressRefused as refused:
        return DeliveryResult("dead", str(refused))
    except CallError as error:  # before the headers are sent it has certainly not arrived; afterwards that is unknown
        return DeliveryResult("retry" if error.answer.not_sent else "uncertain", f"{host}: {error}")
    return PostAnswer(host, reply.status, reply.headers, reply.body)


def result_of_status(answer: PostAnswer, *, reason: str = "", wait: timedelta | None = None) -> DeliveryResult:
    """The result of a delivery, by the status of the answer.

    `reason` is the reason that the body gives, cleaned for display. `wait` is the time before the next attempt that the body asks
    for; without it the header counts.
    """
    status = answer.status
    if 200 <= status < 300:
        return DeliveryResult("delivered")
    error = f"{answer.host} answered {status} {status_phrase(status)}".rstrip() + (f": {reason}" if reason else "")
    if status in (408, 429) or 500 <= status < 600:
        return DeliveryResult("retry", error, wait if wait is not None else parse_retry_after(answer.headers))
    if 300 <= status < 400:
        return DeliveryResult("dead", f"{error}: redirects are not followed; write the URL it leads to")
    return DeliveryResult("dead", error)


def clean_reason(text: object, secrets: Iterable[str]) -> str:
    """The reason that a receiver gives, as one short line without the secrets of the request."""
    if not isinstance(text, str):
        return ""
    return squeeze(Redactor(secrets).redact(text), MAX_REASON)


def wait_from_seconds(value: object) -> timedelta | None:
    """The wait that a receiver gives as a number of seconds, not capped but finite; None if it is not a valid number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        return None
    return timedelta(seconds=min(value, MAX_RETRY_AFTER))

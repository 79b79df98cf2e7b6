"""Why there is no answer: the failures of the world outside, each in its class and in words that hold no secret."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

from heartbeat.runners import Answer, Failure, HttpReply
from heartbeat.runners.redaction import Redactor

MAX_MESSAGE = 500  # characters of what the other side says about a failure
MAX_RETRY_AFTER = 10 * 365 * 24 * 3600  # seconds; a Retry-After beyond it is as good as this

_UNPRINTABLE = re.compile(r"[\x00-\x20\x7f-\x9f]+")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/-]{1,128}", re.ASCII)
_SECONDS = re.compile(r"\d{1,20}(\.\d{1,9})?", re.ASCII)

_FAILURE_BY_STATUS = {
    400: Failure.BAD_REQUEST,
    401: Failure.AUTH,
    402: Failure.PAYMENT,
    403: Failure.AUTH,
    404: Failure.NOT_FOUND,
    408: Failure.SERVER,
    409: Failure.SERVER,
    413: Failure.TOO_LARGE,
    429: Failure.RATE,
    503: Failure.OVERLOADED,
    529: Failure.OVERLOADED,
}
_TRANSIENT = frozenset({Failure.RATE, Failure.OVERLOADED, Failure.SERVER})


class CallError(Exception):
    """There is no answer. Raised anywhere on the way to one, caught by the runner, which gives `answer` back."""

    def __init__(
        self,
        failure: Failure,
        error: str,
        *,
        transient: bool = False,
        retry_after: timedelta | None = None,
        not_sent: bool = False,
        status: int | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(error)
        self.answer = Answer(
            failure=failure,
            error=error,
            transient=transient,
            retry_after=retry_after,
            not_sent=not_sent,
            status=status,
            request_id=request_id,
        )


def error_from_reply(reply: HttpReply, redactor: Redactor) -> CallError:
    """What an answer that is not a success means: its class by the status, and what the other side says about it."""
    said = _error_message(reply, redactor)
    told = f"HTTP {reply.status} {status_phrase(reply.status)}".rstrip() + (f": {said}" if said else "")
    if 300 <= reply.status < 400:
        said_where = f"{told}: redirects are not followed; write the address it leads to"
        return CallError(Failure.BAD_ANSWER, said_where, status=reply.status)
    failure = failure_of_status(reply.status)
    return CallError(
        failure,
        told,
        transient=failure in _TRANSIENT,
        retry_after=parse_retry_after(reply.headers),
        status=reply.status,
        request_id=find_request_id(reply.headers),
    )


def failure_of_status(status: int) -> Failure:
    """The class of an HTTP error status; what is neither 4xx nor 5xx is no answer to our question."""
    known = _FAILURE_BY_STATUS.get(status)
    if known is not None:
        return known
    if status >= 500:
        return Failure.SERVER
    return Failure.BAD_REQUEST if status >= 400 else Failure.BAD_ANSWER


def parse_json_object(reply: HttpReply) -> dict[str, Any]:
    """The JSON object that a successful reply holds; CallError if it is a page, broken, or something else."""
    try:
        value = json.loads(reply.body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        page = reply.body.lstrip()[:1] == b"<"
        raise CallError(Failure.BAD_ANSWER, f"answered {'with an HTML page' if page else 'with broken JSON'}") from None
    if not isinstance(value, dict):
        raise CallError(Failure.BAD_ANSWER, f"answered with a JSON {_json_type(value)} where an object was expected")
    return value


def parse_retry_after(headers: Mapping[str, str]) -> timedelta | None:
    """How long the other side asks to be left alone, by its Retry-After header, never negative; None if it makes no sense.

    Seconds, or an HTTP date that is compared with the other side's own Date, so that nobody's clock need be right.
    """
    text = headers.get("retry-after", "").strip()
    if _SECONDS.fullmatch(text):
        return timedelta(seconds=min(float(text), MAX_RETRY_AFTER))
    until, now = _parse_http_date(text), _parse_http_date(headers.get("date", ""))
    if until is None or now is None:
        return None
    return min(max(until - now, timedelta()), timedelta(seconds=MAX_RETRY_AFTER))


def find_request_id(headers: Mapping[str, str]) -> str | None:
    """The other side's own name for the request, which its support asks for; None if it gives none that can be shown."""
    given = headers.get("request-id") or headers.get("x-request-id") or ""
    return given if _REQUEST_ID.fullmatch(given) else None


def redacted_line(text: str, redactor: Redactor) -> str:
    """Foreign text as part of an error: without secrets, on one line, cut at 500 characters."""
    line = _UNPRINTABLE.sub(" ", redactor.redact(text)).strip()
    return line if len(line) <= MAX_MESSAGE else line[:MAX_MESSAGE] + "..."


def _error_message(reply: HttpReply, redactor: Redactor) -> str:
    """The message of the error body: that of the usual `{"error": {"message"}}` and its relatives, else the plain text."""
    text = reply.body.decode(errors="replace").strip()
    if text.startswith("<"):
        return ""
    try:
        return redacted_line(find_message(json.loads(text)) or "", redactor)
    except (ValueError, RecursionError):
        return redacted_line(text, redactor)


def find_message(value: object) -> str | None:
    """The words in an error of whatever shape: a text, `{"message"}`, `{"detail"}` or `{"error": ...}` around it."""
    for _ in range(3):
        if not isinstance(value, dict):
            break
        value = value.get("error") or value.get("message") or value.get("detail")
    return value if isinstance(value, str) else None


def status_phrase(status: int) -> str:
    """Our own words for a status, as those of the other side could hold anything; empty if it is not known."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def _json_type(value: object) -> str:
    kinds = {list: "list", str: "text", bool: "boolean", type(None): "null"}
    return kinds.get(type(value), "number")


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def _parse_http_date(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)

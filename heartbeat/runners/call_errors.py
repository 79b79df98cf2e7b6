"""Errors of calls to agents and servers: each has a failure class and a message without secrets."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from http import HTTPStatus
from pathlib import Path

from heartbeat.runners import MAX_ANSWER, Answer, Failure, HttpReply, ProcessResult
from heartbeat.runners.redaction import Redactor
from heartbeat.words import squeeze

INVALID_ADDRESS = "its address is not valid; write http(s)://host[:port]/path"
MAX_MESSAGE = 500  # characters of a message from a server
MAX_STDERR = 2000  # characters of standard error in an error message
MAX_LAST_LINES = 5  # lines of standard output in an error message
MAX_LAST_CHARS = 500
MAX_RETRY_AFTER = 10 * 365 * 24 * 3600  # seconds; a longer Retry-After is shortened to this

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
_SHELL_ERRORS = {126: "the shell could not run a program", 127: "the shell found no such program"}  # by exit code
_TRANSIENT = frozenset({Failure.RATE, Failure.OVERLOADED, Failure.SERVER})


class CallError(Exception):
    """A call without an answer. Runners catch it and return its `answer`, which is a failure."""

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
    """The error for a response that is not a success: its class follows from the status, its message includes the server's
    message.
    """
    detail = _error_message(reply, redactor)
    message = f"HTTP {reply.status} {status_phrase(reply.status)}".rstrip() + (f": {detail}" if detail else "")
    if 300 <= reply.status < 400:
        message = f"{message}: redirects are not followed; write the final address"
        return CallError(Failure.BAD_ANSWER, message, status=reply.status)
    failure = failure_of_status(reply.status)
    return CallError(
        failure,
        message,
        transient=failure in _TRANSIENT,
        retry_after=parse_retry_after(reply.headers),
        status=reply.status,
        request_id=find_request_id(reply.headers),
    )


def failure_of_status(status: int) -> Failure:
    """The failure class of an HTTP status. A status that is neither 4xx nor 5xx is a bad answer."""
    known = _FAILURE_BY_STATUS.get(status)
    if known is not None:
        return known
    if status >= 500:
        return Failure.SERVER
    return Failure.BAD_REQUEST if status >= 400 else Failure.BAD_ANSWER


def parse_json_object(reply: HttpReply) -> dict[str, object]:
    """The JSON object in a successful response. Raises CallError if the body is an HTML page, broken JSON or another JSON
    value.
    """
    try:
        value = json.loads(reply.body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        page = reply.body.lstrip()[:1] == b"<"
        raise CallError(Failure.BAD_ANSWER, f"answered {'with an HTML page' if page else 'with broken JSON'}") from None
    if not isinstance(value, dict):
        raise CallError(Failure.BAD_ANSWER, f"answered with a JSON {_json_type(value)} where an object was expected")
    return value


def parse_retry_after(headers: Mapping[str, str]) -> timedelta | None:
    """The delay that the Retry-After header asks for, never negative. None if it is missing or invalid.

    The value is a number of seconds, or an HTTP date. A date is compared with the Date header of the same response, so neither
    clock needs to be right.
    """
    text = headers.get("retry-after", "").strip()
    if _SECONDS.fullmatch(text):
        return timedelta(seconds=min(float(text), MAX_RETRY_AFTER))
    until, now = _parse_http_date(text), _parse_http_date(headers.get("date", ""))
    if until is None or now is None:
        return None
    return min(max(until - now, timedelta()), timedelta(seconds=MAX_RETRY_AFTER))


def find_request_id(headers: Mapping[str, str]) -> str | None:
    """The provider's ID of the request, which its support asks for. None if there is none that can be printed."""
    given = headers.get("request-id") or headers.get("x-request-id") or ""
    return given if _REQUEST_ID.fullmatch(given) else None


def redacted_line(text: str, redactor: Redactor) -> str:
    """Text from elsewhere as part of an error message: redacted, on one line, cut to MAX_MESSAGE characters."""
    return squeeze(redactor.redact(text), MAX_MESSAGE)


def error_of_process(
    ended: ProcessResult, timeout: timedelta, redactor: Redactor, *, with_output: bool = False
) -> CallError | None:
    """Why a program that ended in this way gave no answer; None if its exit code is 0. `timeout` is that of the attempt.

    The error has the end of what the program printed, `with_output` of standard output too.
    """
    describe = partial(_add_last_lines if with_output else add_stderr, ended=ended, redactor=redactor)
    if ended.problem is not None and not ended.truncated:
        return CallError(Failure.EXIT, f"could not start: {ended.problem}", not_sent=True)
    if ended.timed_out:
        return CallError(Failure.TIMEOUT, describe(f"no answer within {timeout}"), transient=True)
    if ended.problem is not None or (ended.truncated and ended.exit_code is None):
        return too_large_error(ended, redactor)
    if ended.exit_code is None or ended.exit_code < 0:
        return CallError(Failure.EXIT, describe("ended by a signal"), transient=True)
    return CallError(Failure.EXIT, describe(f"exit code {ended.exit_code}"), transient=True) if ended.exit_code else None


def too_large_error(ended: ProcessResult, redactor: Redactor) -> CallError:
    """The error for a program that printed more than an answer may have."""
    return CallError(Failure.BAD_ANSWER, add_stderr(f"the answer is larger than {MAX_ANSWER} bytes", ended, redactor))


def describe_failure(
    ended: ProcessResult, redactor: Redactor, timed_out: str, *, shell_folder: Path | None = None, with_output: bool = False
) -> str | None:
    """Why a program failed, with the end of its standard error; None if it succeeded. `timed_out` says so for its time limit.

    `shell_folder` is where a shell has run it. The exit code of the shell then says why it could not start a program.
    `with_output`: the error has the end of its standard output too.
    """
    problem = timed_out if ended.timed_out else ended.problem
    if problem is None and ended.exit_code == 0:
        return None
    if problem is None:
        problem = f"exit code {ended.exit_code}"
        if shell_folder is not None and ended.exit_code in _SHELL_ERRORS:
            problem = f"{problem} ({_SHELL_ERRORS[ended.exit_code]}, in {shell_folder})"
    return _add_last_lines(problem, ended, redactor) if with_output else add_stderr(problem, ended, redactor)


def add_stderr(error: str, ended: ProcessResult, redactor: Redactor) -> str:
    """The error with the end of what the program printed to standard error, redacted before it is cut."""
    printed = redactor.redact(ended.error_text).strip()
    return f"{error}: {printed[-MAX_STDERR:]}" if printed else error


def _add_last_lines(error: str, ended: ProcessResult, redactor: Redactor) -> str:
    """The error with the ends of both streams: many programs print why they failed to standard output."""
    output = redactor.redact_tail(ended.output_text) if ended.truncated else redactor.redact(ended.output_text)
    lines = [line for each in output.splitlines() if (line := squeeze(each))]
    printed = "\n".join(lines[-MAX_LAST_LINES:])
    whole = add_stderr(error, ended, redactor)
    return f"{whole}\nstandard output: {printed[-MAX_LAST_CHARS:]}" if printed else whole


def _error_message(reply: HttpReply, redactor: Redactor) -> str:
    """The message in the body of an error: from `{"error": {"message"}}` and similar shapes, otherwise the plain text."""
    text = reply.body.decode(errors="replace").strip()
    if text.startswith("<"):
        return ""
    try:
        return redacted_line(find_message(json.loads(text)) or "", redactor)
    except (ValueError, RecursionError):
        return redacted_line(text, redactor)


def find_message(value: object) -> str | None:
    """The message in an error of any common shape: a text, `{"message"}`, `{"detail"}`, or `{"error": ...}` around one of
    these.
    """
    for _ in range(3):
        if not isinstance(value, dict):
            break
        value = value.get("error") or value.get("message") or value.get("detail")
    return value if isinstance(value, str) else None


def status_phrase(status: int) -> str:
    """The standard phrase for a status, because the server's own phrase could hold anything. Empty if the status is unknown."""
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
    from email.utils import parsedate_to_datetime

    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)

"""Defines the one exception of the client, and makes it from an answer or from a failed connection."""

from __future__ import annotations

import httpx2
from pydantic import ValidationError

from heartbeatd.answers import ConfigComplaint, ConfigErrors, ErrorBody

MAX_SHOWN = 3  # errors of a config in the message; `problems` has all


class HeartbeatdError(Exception):
    """A request that failed.

    `code` is a word for programs. Those of the daemon are `not_found`, `forbidden`, `bad_request` and others. The client adds:

    - `not_running`, `no_token`, `bad_token`, `bad_url`: nothing was sent.
    - `unreachable`: no connection was made, so the daemon has not received the request.
    - `timeout`, `interrupted`: the daemon may have carried out the request.
    - `config_errors`: the config has the errors in `problems`, and `warnings`.
    - `unexpected_answer`: another program answered, or another version of heartbeatd.

    `message` is the whole text, and `advice` the part of it that says what to do instead, empty if there is none. `status` is
    the HTTP status, None without an answer.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        status: int | None = None,
        problems: tuple[ConfigComplaint, ...] = (),
        warnings: tuple[ConfigComplaint, ...] = (),
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status
        self.problems = problems
        self.warnings = warnings

    @property
    def advice(self) -> str:
        """What to do instead. Messages name the problem first, and the advice after a semicolon."""
        return self.message.partition("; ")[2]

    def __reduce__(self) -> tuple[object, ...]:
        """For programs that pass errors between processes: the keys are attributes."""
        return type(self), (self.code, self.message), vars(self)


def error_from_answer(response: httpx2.Response) -> HeartbeatdError:
    """The error that an answer with another status than 200 describes. The whole answer must have been read."""
    try:
        if response.status_code == 422:
            return _config_error(ConfigErrors.model_validate_json(response.content))
        found = ErrorBody.model_validate_json(response.content).error
    except ValidationError:
        return unexpected_answer(response)
    return HeartbeatdError(found.code, found.message, status=response.status_code)


def _config_error(found: ConfigErrors) -> HeartbeatdError:
    shown = [f"{each.line}:{each.column}: {each.path}: {each.message}" for each in found.errors[:MAX_SHOWN]]
    more = len(found.errors) - len(shown)
    text = " / ".join(shown) + (f" / and {more} more" if more else "")
    return HeartbeatdError("config_errors", text, status=422, problems=tuple(found.errors), warnings=tuple(found.warnings))


def unexpected_answer(response: httpx2.Response) -> HeartbeatdError:
    """The error for an answer that this version of the client cannot read."""
    return HeartbeatdError(
        "unexpected_answer",
        f"the answer of {_origin(response.request)} (HTTP status {response.status_code}) is not one of this version of"
        " heartbeatd; check the address, and install the version of the daemon",
        status=response.status_code,
    )


def error_from_transport(error: httpx2.TransportError | httpx2.InvalidURL) -> HeartbeatdError:
    """The error for a request without an answer. Its text contains no header, and so no token."""
    if isinstance(error, httpx2.InvalidURL | httpx2.UnsupportedProtocol | httpx2.LocalProtocolError):
        return HeartbeatdError("bad_url", f"{error}; write an address as in http://127.0.0.1:7857")
    where = _origin(error.request)
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout):
        why = str(error) or "no connection in time"
        return HeartbeatdError("unreachable", f"{where} cannot be reached ({why}); check that the daemon runs there")
    doubt = "the daemon may have carried out the request; read the state before you repeat it"
    if isinstance(error, httpx2.TimeoutException):
        return HeartbeatdError("timeout", f"{where} did not answer in time; {doubt}")
    return HeartbeatdError("interrupted", f"the connection to {where} was interrupted ({error}); {doubt}")


def _origin(request: httpx2.Request) -> str:
    """The address without a user name or a password."""
    url = request.url
    return f"{url.scheme}://{url.netloc.decode('ascii')}"

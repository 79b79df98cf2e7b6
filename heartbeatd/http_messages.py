"""Builds the requests of the client, and reads the answers. Both clients use it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import date, datetime, timedelta
from typing import Any, TypeVar
from urllib.parse import quote

import httpx2
from pydantic import ValidationError

from heartbeatd.answers import ConfigEdited, ConfigSuggestion, ResponseBody
from heartbeatd.daemon_address import Address
from heartbeatd.errors import HeartbeatdError, error_from_answer, unexpected_answer

Answer = TypeVar("Answer", bound=ResponseBody)

ANSWER_SECONDS = 60.0  # longer than the daemon waits for its engine, so that its own error arrives
CONNECT_SECONDS = 5.0
IDLE_SECONDS = 3.0  # a kept connection is not used after that; the daemon closes it after 5
RUN_ID_VARIABLE = "HEARTBEATD_RUN"  # set in programs that a run starts


def timeouts(seconds: float, read: float | None = None) -> httpx2.Timeout:
    """The timeouts of a request: `seconds` for each step, CONNECT_SECONDS at most for the connection, `read` for an answer."""
    return httpx2.Timeout(seconds, connect=min(seconds, CONNECT_SECONDS), read=read or seconds)


def limits() -> httpx2.Limits:
    """How long connections are kept."""
    return httpx2.Limits(keepalive_expiry=IDLE_SECONDS)


def path_of(template: str, **parts: str | int) -> str:
    """The path of an operation with its variable parts, which may contain any character.

    Raises HeartbeatdError for a part that would lead to another operation: /agents/../pause pauses everything.
    """
    for name, part in parts.items():
        if part in ("", ".", ".."):
            raise HeartbeatdError("bad_request", f"{name}: {part!r} is not a name; write that of an agent or a job")
    return template.format(**{name: quote(str(part), safe="") for name, part in parts.items()})


def request_headers(address: Address, more: Mapping[str, str] | None) -> dict[str, str]:
    """The headers of a request. A wake that a run sends names the run."""
    headers = {"Authorization": f"Bearer {address.token.reveal()}", **(more or {})}
    if run := os.environ.get(RUN_ID_VARIABLE):
        headers["X-Heartbeatd-Run"] = run
    return headers


def query_of(values: Mapping[str, Any] | None) -> dict[str, str] | None:
    """The query of a request, without the keys that are None."""
    return None if values is None else {key: _query_text(value) for key, value in values.items() if value is not None}


def _query_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(_plain(value))


def body_of(values: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The JSON body of a request, without the keys that are None."""
    return None if values is None else {key: _plain(value) for key, value in values.items() if value is not None}


def _plain(value: Any) -> Any:
    """A time as the API reads it. A time without a zone stays so, and the daemon rejects it."""
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
        return f"{seconds:.0f}s" if seconds == int(seconds) else f"{seconds}s"
    return value


def read_answer(response: httpx2.Response, model: type[Answer]) -> Answer:
    """The answer as a model. Raises HeartbeatdError, also for an answer that says what is wrong."""
    if response.status_code != 200:
        raise error_from_answer(response)
    try:
        return model.model_validate_json(response.content)
    except ValidationError:
        raise unexpected_answer(response) from None


def read_edit_answer(response: httpx2.Response) -> ConfigEdited | ConfigSuggestion:
    """The answer to a change of the config, which has two forms. Raises HeartbeatdError."""
    with suppress(ValidationError):
        return ConfigSuggestion.model_validate_json(response.content)
    return read_answer(response, ConfigEdited)

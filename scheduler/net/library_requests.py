"""Limits the answers that Apprise and the exporter of OpenTelemetry read. Both use `requests`, which has no limit of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from typing import Any

from scheduler.net.http_client import MAX_BODY

_is_limited: ContextVar[bool] = ContextVar("is_limited", default=False)


@contextmanager
def limited_answers() -> Iterator[None]:
    """In this context, requests reads at most 1 MiB of an answer. The rest is dropped with its connection.

    The status is known by then. Other code in this process that uses requests, such as a function of a user, is not limited.
    """
    _replace_adapter()
    token = _is_limited.set(True)
    try:
        yield
    finally:
        _is_limited.reset(token)


@cache
def _replace_adapter() -> None:
    """Let all later sessions use an adapter that obeys the context: both libraries open their sessions themselves."""
    sessions: Any = import_module("requests.sessions")

    class LimitedAdapter(sessions.HTTPAdapter):  # type: ignore[misc]
        def build_response(self, req: Any, resp: Any) -> Any:
            response = super().build_response(req, resp)
            if _is_limited.get():
                response.raw = _LimitedBody(resp)
            return response

    sessions.HTTPAdapter = LimitedAdapter


class _LimitedBody:
    """The body of an answer that ends after MAX_BODY."""

    def __init__(self, body: Any) -> None:
        self._body = body

    def __getattr__(self, name: str) -> Any:
        return getattr(self._body, name)

    def stream(self, amt: int, decode_content: bool | None = None) -> Iterator[bytes]:
        """The body in parts, as requests reads it."""
        size = 0
        for chunk in self._body.stream(amt, decode_content=decode_content):
            yield chunk
            size += len(chunk)
            if size >= MAX_BODY:
                self._body.close()
                return

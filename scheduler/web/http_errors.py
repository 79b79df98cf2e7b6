"""Problems: a request that is refused, and how that is said."""

from __future__ import annotations

import http
import sqlite3
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ExceptionHandler

from scheduler.config.file.diagnostics import ConfigError
from scheduler.engine.inbox import Refused
from scheduler.store.database import StoreError

STATUS = {
    "bad_request": 400,
    "not_found": 404,
    "too_many_wakes": 429,
    "broken": 500,
    "no_answer": 503,
}  # of a Refused by its code; others are conflicts


class Problem(Exception):
    """A request that cannot be answered as it is. `code` is for programs, `message` says what to do instead."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        self.headers = headers
        self.status = status
        self.code = code
        self.message = message
        super().__init__(message)


def bad(message: str) -> Problem:
    """What was sent makes no sense."""
    return Problem(400, "bad_request", message)


def not_found(what: str) -> Problem:
    """What was asked for is not there."""
    return Problem(404, "not_found", f"there is no {what}")


def said(problem: Problem, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """The problem as an answer; RFC 9110, 11.6.1: a 401 names the scheme."""
    headers = {"WWW-Authenticate": "Bearer"} if problem.status == 401 else headers or problem.headers
    return JSONResponse({"error": {"code": problem.code, "message": problem.message}}, problem.status, headers)


def _problem(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Problem)
    return said(error)


def _refused(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Refused)
    return said(Problem(STATUS.get(error.code, 409), error.code, str(error)))


def _config_refused(_: Request, error: Exception) -> JSONResponse:
    """In the same form in which the command line prints it."""
    assert isinstance(error, ConfigError)
    body: dict[str, Any] = {
        "ok": False,
        "errors": [complaint.as_json() for complaint in error.errors],
        "warnings": [complaint.as_json() for complaint in error.warnings],
    }
    return JSONResponse(body, 422)


def _unreadable(_: Request, error: Exception) -> JSONResponse:
    return said(Problem(503, "database", str(error)))


def _by_status(request: Request, error: Exception) -> JSONResponse:
    """What the framework refuses: no such path, or not with this method."""
    assert isinstance(error, HTTPException)
    phrase = http.HTTPStatus(error.status_code).phrase
    code = phrase.lower().replace(" ", "_")
    return said(Problem(error.status_code, code, f"{phrase}: {request.method} {request.url.path}"), error.headers)


HANDLERS: Mapping[Any, ExceptionHandler] = {
    Problem: _problem,
    Refused: _refused,
    ConfigError: _config_refused,
    StoreError: _unreadable,
    sqlite3.Error: _unreadable,
    HTTPException: _by_status,
}

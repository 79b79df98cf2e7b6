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

STATUS_BY_CODE = {
    "bad_request": 400,
    "not_found": 404,
    "too_many_wakes": 429,
    "broken": 500,
    "no_answer": 503,
}  # of a Refused by its code; others are conflicts


class HttpError(Exception):
    """A request that cannot be answered as it is. `code` is for programs, `message` says what to do instead."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        self.headers = headers
        self.status = status
        self.code = code
        self.message = message
        super().__init__(message)


def bad_request(message: str) -> HttpError:
    """What was sent makes no sense."""
    return HttpError(400, "bad_request", message)


def not_found(what: str) -> HttpError:
    """What was asked for is not there."""
    return HttpError(404, "not_found", f"there is no {what}")


def error_response(problem: HttpError, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """The problem as an answer; RFC 9110, 11.6.1: a 401 names the scheme."""
    headers = {"WWW-Authenticate": "Bearer"} if problem.status == 401 else headers or problem.headers
    return JSONResponse({"error": {"code": problem.code, "message": problem.message}}, problem.status, headers)


def _handle_http_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HttpError)
    return error_response(error)


def _handle_refused_request(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Refused)
    return error_response(HttpError(STATUS_BY_CODE.get(error.code, 409), error.code, str(error)))


def _handle_config_error(_: Request, error: Exception) -> JSONResponse:
    """In the same form in which the command line prints it."""
    assert isinstance(error, ConfigError)
    body: dict[str, Any] = {
        "ok": False,
        "errors": [complaint.as_json() for complaint in error.errors],
        "warnings": [complaint.as_json() for complaint in error.warnings],
    }
    return JSONResponse(body, 422)


def _handle_store_error(_: Request, error: Exception) -> JSONResponse:
    return error_response(HttpError(503, "database", str(error)))


def _handle_framework_error(request: Request, error: Exception) -> JSONResponse:
    """What the framework refuses: no such path, or not with this method."""
    assert isinstance(error, HTTPException)
    phrase = http.HTTPStatus(error.status_code).phrase
    code = phrase.lower().replace(" ", "_")
    return error_response(HttpError(error.status_code, code, f"{phrase}: {request.method} {request.url.path}"), error.headers)


HANDLERS: Mapping[Any, ExceptionHandler] = {
    HttpError: _handle_http_error,
    Refused: _handle_refused_request,
    ConfigError: _handle_config_error,
    StoreError: _handle_store_error,
    sqlite3.Error: _handle_store_error,
    HTTPException: _handle_framework_error,
}

"""Defines the errors of the HTTP API and how each becomes a JSON answer."""

from __future__ import annotations

import http
import sqlite3
from collections.abc import Iterable, Mapping

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ExceptionHandler

from scheduler.config.file.diagnostics import ConfigError
from scheduler.engine.tick_items import Refused
from scheduler.store.database import StoreError

STATUS_BY_CODE = {
    "bad_request": 400,
    "not_found": 404,
    "too_many_wakes": 429,
    "too_many_reminders": 429,
    "too_many_questions": 429,
    "broken": 500,
    "no_answer": 503,
    "standby": 503,
}  # by the code of a Refused; any other code is a conflict, 409


class HttpError(Exception):
    """A rejected request. `code` is for programs, `message` says what to do instead."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        self.headers = headers
        self.status = status
        self.code = code
        self.message = message
        super().__init__(message)


def bad_request(message: str) -> HttpError:
    """400: the request is malformed."""
    return HttpError(400, "bad_request", message)


def not_found(what: str) -> HttpError:
    """404: there is no such thing."""
    return HttpError(404, "not_found", f"there is no {what}")


def unauthorized_error() -> HttpError:
    """401: the request needs a valid token."""
    return HttpError(
        401, "unauthorized", "send `Authorization: Bearer TOKEN`; the file `token` in the folder of the database contains one"
    )


def unknown_key(key: str, known: Iterable[str]) -> HttpError:
    """400: a key of the query or of the body is not one of the known ones."""
    return bad_request(f"{key!r} is not allowed here; write {', '.join(known) or 'no key'}")


def error_response(error: HttpError) -> JSONResponse:
    """The error as a JSON answer. RFC 9110, section 11.6.1: a 401 names the authentication scheme."""
    headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else error.headers
    return JSONResponse({"error": {"code": error.code, "message": error.message}}, error.status, headers)


def as_http_error(error: Exception) -> HttpError:
    """The error of a request, as the API and the page answer it."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, Refused):
        return HttpError(STATUS_BY_CODE.get(error.code, 409), error.code, str(error))
    if isinstance(error, ConfigError):
        return HttpError(422, "config_errors", "\n".join(map(str, error.errors)))
    return HttpError(503, "database", str(error))


def _handle_error(_: Request, error: Exception) -> JSONResponse:
    return error_response(as_http_error(error))


def _handle_config_error(_: Request, error: Exception) -> JSONResponse:
    """The same JSON as the command line prints."""
    assert isinstance(error, ConfigError)
    listed = {"errors": [each.as_json() for each in error.errors], "warnings": [each.as_json() for each in error.warnings]}
    return JSONResponse({"ok": False, **listed}, 422)


def _handle_framework_error(request: Request, error: Exception) -> JSONResponse:
    """Errors that Starlette raises: an unknown path, or a method that the path does not have."""
    assert isinstance(error, HTTPException)
    phrase = http.HTTPStatus(error.status_code).phrase
    code = phrase.lower().replace(" ", "_")
    return error_response(HttpError(error.status_code, code, f"{phrase}: {request.method} {request.url.path}", error.headers))


EXPECTED_ERRORS = (HttpError, Refused, ConfigError, StoreError, sqlite3.Error)
HANDLERS: Mapping[type[Exception], ExceptionHandler] = {
    **dict.fromkeys(EXPECTED_ERRORS, _handle_error),
    ConfigError: _handle_config_error,
    HTTPException: _handle_framework_error,
}

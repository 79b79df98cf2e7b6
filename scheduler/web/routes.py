"""Makes the routes of the HTTP API from the lists of verbs and questions, and adds the few that are written by hand."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from anyio import to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from heartbeatd.operations import Endpoint, Operation, Permission
from heartbeatd.verbs import NO_VERSION
from scheduler import __version__
from scheduler.system import extras
from scheduler.system.extras import UnusableExtra
from scheduler.web import alertmanager, checklists, config_editing, event_stream, openapi, probes, queries
from scheduler.web.api_request import MAX_BODY_BYTES, ApiRequest, HttpHandler, authorized_caller, parse_sent, read_json_object
from scheduler.web.app_state import AppState
from scheduler.web.http_errors import HANDLERS, HttpError, error_response, unauthorized_error, unknown_key
from scheduler.web.page import page_routes
from scheduler.web.page.page_sessions import Sessions
from scheduler.web.perform import ENDPOINTS, perform, sender_of

MCP_PATH = "/mcp"
HANDLER_MODULES = (checklists, config_editing, queries)  # imported because they register handlers of operations
REMOVED = {
    "/api/v1/conditions": "/api/v1/problems",
    **{f"/api/v1/conditions/{verb}": f"/api/v1/problems/NUMBER/{verb}" for verb in ("close", "ack", "unack")},
}
# Bytes of a body. Alertmanager does not repeat a rejected notification, so even one with many alerts must fit. JSON may need six
# bytes for one byte of a checklist.
LARGEST = {"wake_agent": 1024 * 1024, "put_checklist": 512 * 1024}


def build_application(app_state: AppState, sessions: Sessions) -> Starlette:
    """The ASGI application, without the checks of the middleware."""
    pages = page_routes.build_routes(app_state, sessions)
    application = Starlette(routes=[*build_routes(app_state), *pages], exception_handlers=HANDLERS)
    application.router.routes.append(Route(MCP_PATH, _McpEndpoint(app_state)))
    return application


class _McpEndpoint:
    """Serves an extra at MCP_PATH, for callers with a token. The extra is loaded at the first request."""

    def __init__(self, app_state: AppState) -> None:
        self._app_state = app_state
        self._loaded: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("caller") is None:
            await error_response(unauthorized_error())(scope, receive, send)
            return
        try:
            self._loaded = self._loaded or (await to_thread.run_sync(extras.load, "listeners", "mcp"))(self._app_state)
        except UnusableExtra as error:
            await error_response(HttpError(501, "not_installed", str(error)))(scope, receive, send)
            return
        await self._loaded(scope, receive, send)


def build_routes(app_state: AppState) -> list[Route]:
    """The routes of the API and of the probes."""
    checks = {"/healthz": probes.why_frozen, "/readyz": probes.why_not_ready}
    return [
        Route("/metrics", probes.metrics_endpoint(app_state), methods=["GET"]),
        *(Route(path, probes.probe_endpoint(app_state, find), methods=["GET"]) for path, find in checks.items()),
        Route("/api/v1/openapi.json", _get_openapi, methods=["GET"]),
        Route(event_stream.PATH, _stream_endpoint(app_state), methods=["GET"]),
        *(Route(each.path, _endpoint(app_state, each), methods=[each.method]) for each in ENDPOINTS.values()),
        *(Route(path, _refuse_removed, methods=["GET", "POST"]) for path in REMOVED),
    ]


async def _refuse_removed(request: Request) -> Response:
    """Says which path replaces one of an earlier version."""
    authorized_caller(request, "read")
    raise HttpError(410, "gone", f"{request.url.path} was removed; use {REMOVED[request.url.path]}")


def _endpoint(app_state: AppState, endpoint: Endpoint) -> HttpHandler:
    """Performs an operation. The keys are in the query of a GET request, and in the body of all others.

    Some clients cannot send a body with DELETE, so the query of a DELETE counts as part of the body.
    """

    async def read(request: Request) -> Response:
        api = _authorized(app_state, request, endpoint.may)
        found = await perform(api, endpoint.name, parse_sent(endpoint.operation, api.query, are_texts=True))
        return JSONResponse(await to_thread.run_sync(found.as_data))

    async def change(request: Request) -> Response:
        api = _authorized(app_state, request, endpoint.may)
        sent = await read_json_object(request, LARGEST.get(endpoint.name, MAX_BODY_BYTES))
        if endpoint.method == "DELETE":
            sent = {**api.query, **sent}
        else:
            api.allow_only(())
        operation: Operation
        if endpoint.name == "wake_agent" and alertmanager.is_notification(sent):
            operation, sender = alertmanager.wake_from_alerts(sent, sender_of(api))
        else:
            operation, sender = parse_sent(endpoint.operation, _with_version(endpoint, sent, request.headers)), None
        done = await perform(api, endpoint.name, operation, sender)
        return JSONResponse(done.as_data())

    return read if endpoint.method == "GET" else change


def _authorized(app_state: AppState, request: Request, may: Permission | None) -> ApiRequest:
    """The request of a caller with the permission, which is checked before the body is read."""
    authorized_caller(request, may)
    return ApiRequest.of(app_state, request)


def _with_version(endpoint: Endpoint, sent: Mapping[str, object], headers: Mapping[str, str]) -> Mapping[str, object]:
    """The body with the version that a header names. `If-None-Match: *`: there must not be a version yet."""
    if "hash" not in endpoint.operation.model_fields:
        return sent
    named, none = headers.get("if-match"), headers.get("if-none-match")
    if none is not None and (named is not None or none != "*" or sent.get("hash") not in (None, NO_VERSION)):
        raise HttpError(428, "version_wanted", "send either the hash of a version, or `If-None-Match: *` if there is none yet")
    return {**sent, "hash": NO_VERSION if none else named} if named or none else sent


def _stream_endpoint(app_state: AppState) -> HttpHandler:
    async def endpoint(request: Request) -> Response:
        api = _authorized(app_state, request, event_stream.MAY)
        api.allow_only(())
        return event_stream.stream_events(api)

    return endpoint


@cache
def _openapi_document() -> dict[str, object]:
    return openapi.build_document(ENDPOINTS.values(), __version__)


async def _get_openapi(request: Request) -> Response:
    authorized_caller(request, "read")
    for key in request.query_params:
        raise unknown_key(key, ())
    return JSONResponse(await to_thread.run_sync(_openapi_document))

"""Lists every request of the HTTP API: method, path, permission, handler, and what goes in and out."""

from __future__ import annotations

from functools import cache
from typing import Any

from starlette.applications import Starlette
from starlette.routing import Route

from scheduler import __version__
from scheduler.config.keys import value_types
from scheduler.engine.buttons import LINK_PATH
from scheduler.store.run_history import ORDERS
from scheduler.web import checklists, config_editing, event_stream, health, mcp_server, openapi, operations, queries, signed_links
from scheduler.web.access import Concern, Guarded, guard
from scheduler.web.api_request import MAX_BODY_BYTES, ApiRequest, Endpoint, read_endpoint, write_endpoint
from scheduler.web.app_state import AppState
from scheduler.web.http_errors import HANDLERS
from scheduler.web.openapi import Operation, QueryParameter
from scheduler.web.page import page_routes
from scheduler.web.page.page_sessions import Sessions
from scheduler.web.request_bodies import (
    AcknowledgeBody,
    ActivityBody,
    AlertmanagerBody,
    ChecklistBody,
    CloseConditionBody,
    EditBody,
    EmptyBody,
    HoldBody,
    MuteBody,
    PauseBody,
    PingBody,
    ReleaseBody,
    ReloadBody,
    RequestBody,
    ResultBody,
    WakeBody,
)

MAX_WAKE_BYTES = 1024 * 1024  # bytes; Alertmanager does not repeat a rejected notification, so even one with many alerts must fit
MAX_CHECKLIST_BYTES = 512 * 1024  # bytes; JSON may need six bytes for one byte of the text

_TIME = {"type": "string", "format": "date-time"}
_KIND = QueryParameter("kind", "of the entry", {"type": "string", "enum": list(queries.KIND_WORDS)})
_NAME = QueryParameter("name", "of the agent or job", {"type": "string"})
_LIMIT = QueryParameter("limit", "the most that a page has", {"type": "integer", "minimum": 1, "maximum": queries.MAX_LIMIT})
_CURSOR = QueryParameter("cursor", "`next` of the page before", {"type": "string"})
_RUN_PARAMETERS = (
    _KIND,
    _NAME,
    QueryParameter("since", "the earliest slot", _TIME),
    QueryParameter("until", "the time before which the slots lie", _TIME),
    QueryParameter("outcome", "of the run", {"type": "string"}),
    QueryParameter("reason", "of the run", {"type": "string"}),
    _LIMIT,
    QueryParameter("sort", "the order", {"type": "string", "enum": list(ORDERS)}),
    _CURSOR,
)
_PLAN_PARAMETERS = (
    QueryParameter("for", "how long", {"type": "string", "pattern": value_types.DURATION_PATTERN}),
    QueryParameter("from", "the first time", _TIME),
    _NAME,
    _KIND,
    QueryParameter("all", "whether every run is listed", {"type": "string", "enum": ["true", "false"]}),
)
_DAY = QueryParameter("on", "a local day: `today`, `yesterday`, a weekday such as `monday`, or a date", {"type": "string"})
_EXPLAIN_PARAMETERS = (_KIND, QueryParameter("at", "a time", _TIME), _DAY)
_OVERVIEW_PARAMETERS = (_DAY, QueryParameter("since", "the first time of a period up to now", _TIME))


def _get(path: str, handler: Guarded, *query: QueryParameter) -> Operation:
    return Operation("GET", path, handler, query=query)


def _change(method: str, path: str, handler: Guarded, *bodies: type[RequestBody], largest: int = MAX_BODY_BYTES) -> Operation:
    return Operation(method, path, handler, bodies, largest=largest)


OPERATIONS = (
    _get("/api/v1/status", queries.get_status),
    _get("/api/v1/agents", queries.list_agents),
    _get("/api/v1/agents/{name}", queries.get_agent),
    _get("/api/v1/cron", queries.list_jobs),
    _get("/api/v1/runs", queries.list_runs, *_RUN_PARAMETERS),
    _get("/api/v1/runs/{id}", queries.get_run),
    _get("/api/v1/wakes/{id}", queries.get_wake),
    _get("/api/v1/plan", queries.get_plan, *_PLAN_PARAMETERS),
    _get("/api/v1/explain", queries.get_overview, *_OVERVIEW_PARAMETERS),
    _get("/api/v1/explain/{name}", queries.get_explanation, *_EXPLAIN_PARAMETERS),
    _get("/api/v1/outbox", queries.list_undelivered, _LIMIT, _CURSOR),
    _get(
        "/api/v1/conditions",
        queries.list_conditions,
        QueryParameter("agent", "the only agent", {"type": "string"}),
        QueryParameter("state", "`all`: the closed ones too", {"type": "string", "enum": ["open", "all"]}),
    ),
    _get("/api/v1/whoami", queries.get_caller),
    _get("/api/v1/config", config_editing.get_config),
    _get("/api/v1/agents/{name}/config", config_editing.get_agent_config),
    _get("/api/v1/cron/{name}/config", config_editing.get_job_config),
    # A caller without the permission `edit` gets the lines to write.
    _change("PATCH", "/api/v1/config", config_editing.patch_config, EditBody),
    _change("PATCH", "/api/v1/agents/{name}/config", config_editing.patch_agent_config, EditBody),
    _change("PATCH", "/api/v1/cron/{name}/config", config_editing.patch_job_config, EditBody),
    Operation("GET", "/api/v1/events", event_stream.stream_events, media_type="text/event-stream"),
    _get("/api/v1/agents/{name}/checklist", checklists.get_checklist),
    _change(
        "PUT",
        "/api/v1/agents/{name}/checklist",
        checklists.put_checklist,
        ChecklistBody,
        largest=MAX_CHECKLIST_BYTES,
    ),
    _change(
        "POST",
        "/api/v1/agents/{name}/wake",
        operations.wake_agent,
        AlertmanagerBody,
        WakeBody,
        largest=MAX_WAKE_BYTES,
    ),
    _change("PUT", "/api/v1/agents/{name}/busy", operations.hold_lane, HoldBody),
    _change("DELETE", "/api/v1/agents/{name}/busy", operations.release_lane, ReleaseBody),
    _change("POST", "/api/v1/agents/{name}/activity", operations.record_activity, ActivityBody),
    _change("POST", "/api/v1/agents/{name}/pause", operations.pause_agent, PauseBody),
    _change("POST", "/api/v1/agents/{name}/resume", operations.resume_agent, EmptyBody),
    _change("POST", "/api/v1/agents/{name}/mute", operations.mute_agent, MuteBody),
    _change("POST", "/api/v1/agents/{name}/unmute", operations.unmute_agent, EmptyBody),
    _change("POST", "/api/v1/cron/{name}/run", operations.run_job, EmptyBody),
    _change("POST", "/api/v1/cron/{name}/pause", operations.pause_job, PauseBody),
    _change("POST", "/api/v1/cron/{name}/resume", operations.resume_job, EmptyBody),
    _change("POST", "/api/v1/cron/{name}/mute", operations.mute_job, MuteBody),
    _change("POST", "/api/v1/cron/{name}/unmute", operations.unmute_job, EmptyBody),
    _change("POST", "/api/v1/pause", operations.pause_all, PauseBody),
    _change("POST", "/api/v1/resume", operations.resume_all, EmptyBody),
    _change("POST", "/api/v1/runs/{id}/result", operations.report_result, ResultBody),
    _change("POST", "/api/v1/runs/{id}/cancel", operations.cancel_run, EmptyBody),
    _change("POST", "/api/v1/outbox/{id}/retry", operations.retry_message, EmptyBody),
    _change("POST", "/api/v1/outbox/{id}/drop", operations.drop_message, EmptyBody),
    _change("POST", "/api/v1/conditions/close", operations.close_condition, CloseConditionBody),
    _change("POST", "/api/v1/conditions/ack", operations.acknowledge_conditions, AcknowledgeBody),
    _change("POST", "/api/v1/conditions/unack", operations.unacknowledge_conditions, AcknowledgeBody),
    _change("POST", "/api/v1/ping", operations.ping_channels, PingBody),
    _change("POST", "/-/reload", operations.reload_config, ReloadBody),
)


def build_application(app_state: AppState, sessions: Sessions) -> Starlette:
    """The ASGI application, without the checks of the middleware."""
    pages = page_routes.build_routes(app_state, sessions, OPERATIONS)
    application = Starlette(routes=[*build_routes(app_state), *pages], exception_handlers=HANDLERS)
    application.router.routes.append(Route(mcp_server.PATH, mcp_server.McpEndpoint(lambda: application)))
    return application


def build_routes(app_state: AppState) -> list[Route]:
    probes = {"/metrics": health.metrics_endpoint, "/healthz": health.liveness_endpoint, "/readyz": health.readiness_endpoint}
    return [
        Route(f"{LINK_PATH}{{data}}", signed_links.link_endpoint(app_state), methods=["GET", "POST"]),
        *(Route(path, make(app_state), methods=["GET"]) for path, make in probes.items()),
        Route("/api/v1/openapi.json", read_endpoint(app_state, _get_openapi), methods=["GET"]),
        *(Route(each.path, _endpoint_of(app_state, each), methods=[each.method]) for each in OPERATIONS),
    ]


def _endpoint_of(app_state: AppState, operation: Operation) -> Endpoint:
    if operation.method == "GET":
        return read_endpoint(app_state, operation.handler, [each.name for each in operation.query])
    return write_endpoint(app_state, operation.handler, *operation.bodies, largest=operation.largest)


@cache
def _openapi_document() -> dict[str, Any]:
    return openapi.build_document(OPERATIONS, __version__)


@guard("read", Concern.PART)
def _get_openapi(_: ApiRequest) -> dict[str, Any]:
    """The description of the API."""
    return _openapi_document()

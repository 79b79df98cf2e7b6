"""Lists every request of the HTTP API: method, path, permission, handler, and what goes in and out."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from starlette.applications import Starlette
from starlette.routing import Route

from scheduler import __version__
from scheduler.config.keys import value_types
from scheduler.engine.buttons import LINK_PATH
from scheduler.model.settings import Permission
from scheduler.store.run_history import ORDERS
from scheduler.web import checklists, config_editing, event_stream, health, mcp_server, openapi, operations, queries, signed_links
from scheduler.web import response_bodies as answers
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
from scheduler.web.response_bodies import ResponseBody

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
_EXPLAIN_PARAMETERS = (
    _KIND,
    QueryParameter("at", "a time", _TIME),
    QueryParameter("on", "a local day", {"type": "string", "format": "date"}),
)
_OVERVIEW_PARAMETERS = (
    QueryParameter(
        "on", "a local day: `today` (the default), `yesterday`, a weekday such as `monday`, or a date", {"type": "string"}
    ),
    QueryParameter("since", "the first time of a period up to now", _TIME),
)


def _get(
    path: str, handler: Callable[..., Any], *answer: type[ResponseBody], query: tuple[QueryParameter, ...] = ()
) -> Operation:
    return Operation("GET", path, "read", handler, answer, query=query)


def _change(
    method: str,
    path: str,
    handler: Callable[..., Any],
    answer: type[ResponseBody],
    *bodies: type[RequestBody],
    may: Permission = "operate",
    largest: int = MAX_BODY_BYTES,
) -> Operation:
    return Operation(method, path, may, handler, (answer,), bodies, largest=largest)


def _edit(path: str, handler: Callable[..., Any]) -> Operation:
    return Operation(
        "PATCH", path, "read", handler, (answers.ConfigEdited, answers.ConfigSuggestion), (EditBody,), largest=MAX_BODY_BYTES
    )


OPERATIONS = (
    _get("/api/v1/status", queries.get_status, answers.Status),
    _get("/api/v1/agents", queries.list_agents, answers.AgentList),
    _get("/api/v1/agents/{name}", queries.get_agent, answers.AgentStatus),
    _get("/api/v1/cron", queries.list_jobs, answers.JobList),
    _get("/api/v1/runs", queries.list_runs, answers.RunList, query=_RUN_PARAMETERS),
    _get("/api/v1/runs/{id}", queries.get_run, answers.RunWithWakes),
    _get("/api/v1/wakes/{id}", queries.get_wake, answers.WakeStatus),
    _get("/api/v1/plan", queries.get_plan, answers.PlanForecast, query=_PLAN_PARAMETERS),
    _get("/api/v1/explain", queries.get_overview, answers.Overview, query=_OVERVIEW_PARAMETERS),
    _get(
        "/api/v1/explain/{name}",
        queries.get_explanation,
        answers.ExplanationNow,
        answers.ExplanationAt,
        answers.ExplanationOn,
        query=_EXPLAIN_PARAMETERS,
    ),
    _get("/api/v1/outbox", queries.list_undelivered, answers.MessageList, query=(_LIMIT, _CURSOR)),
    _get(
        "/api/v1/conditions",
        queries.list_conditions,
        answers.ConditionList,
        query=(
            QueryParameter("agent", "the only agent", {"type": "string"}),
            QueryParameter("state", "`all`: the closed ones too", {"type": "string", "enum": ["open", "all"]}),
        ),
    ),
    Operation("GET", "/api/v1/whoami", None, queries.get_caller, (answers.CallerToken,)),
    _get("/api/v1/config", config_editing.get_config, answers.ConfigFile),
    _get("/api/v1/agents/{name}/config", config_editing.get_agent_config, answers.EntryConfig),
    _get("/api/v1/cron/{name}/config", config_editing.get_job_config, answers.EntryConfig),
    # A caller without the permission `edit` gets the lines to write.
    _edit("/api/v1/config", config_editing.patch_config),
    _edit("/api/v1/agents/{name}/config", config_editing.patch_agent_config),
    _edit("/api/v1/cron/{name}/config", config_editing.patch_job_config),
    Operation("GET", "/api/v1/events", "read", event_stream.stream_events, (), media_type="text/event-stream"),
    _get("/api/v1/agents/{name}/checklist", checklists.get_checklist, answers.Checklist),
    _change(
        "PUT",
        "/api/v1/agents/{name}/checklist",
        checklists.put_checklist,
        answers.Checklist,
        ChecklistBody,
        may="edit",
        largest=MAX_CHECKLIST_BYTES,
    ),
    _change(
        "POST",
        "/api/v1/agents/{name}/wake",
        operations.wake_agent,
        answers.WakeAccepted,
        AlertmanagerBody,
        WakeBody,
        may="wake",
        largest=MAX_WAKE_BYTES,
    ),
    _change("PUT", "/api/v1/agents/{name}/busy", operations.hold_lane, answers.LaneHeld, HoldBody),
    _change("DELETE", "/api/v1/agents/{name}/busy", operations.release_lane, answers.LaneReleased, ReleaseBody),
    _change("POST", "/api/v1/agents/{name}/activity", operations.record_activity, answers.RecordedActivity, ActivityBody),
    _change("POST", "/api/v1/agents/{name}/pause", operations.pause_agent, answers.PausedEntries, PauseBody),
    _change("POST", "/api/v1/agents/{name}/resume", operations.resume_agent, answers.ResumedEntries, EmptyBody),
    _change("POST", "/api/v1/agents/{name}/mute", operations.mute_agent, answers.Muted, MuteBody),
    _change("POST", "/api/v1/agents/{name}/unmute", operations.unmute_agent, answers.Unmuted, EmptyBody),
    _change("POST", "/api/v1/cron/{name}/run", operations.run_job, answers.WakeNumber, EmptyBody),
    _change("POST", "/api/v1/cron/{name}/pause", operations.pause_job, answers.PausedEntries, PauseBody),
    _change("POST", "/api/v1/cron/{name}/resume", operations.resume_job, answers.ResumedEntries, EmptyBody),
    _change("POST", "/api/v1/cron/{name}/mute", operations.mute_job, answers.Muted, MuteBody),
    _change("POST", "/api/v1/cron/{name}/unmute", operations.unmute_job, answers.Unmuted, EmptyBody),
    _change("POST", "/api/v1/pause", operations.pause_all, answers.PausedEntries, PauseBody),
    _change("POST", "/api/v1/resume", operations.resume_all, answers.ResumedEntries, EmptyBody),
    _change("POST", "/api/v1/runs/{id}/result", operations.report_result, answers.RunNumber, ResultBody),
    _change("POST", "/api/v1/runs/{id}/cancel", operations.cancel_run, answers.CancelledRun, EmptyBody),
    _change("POST", "/api/v1/outbox/{id}/retry", operations.retry_message, answers.ChangedMessage, EmptyBody),
    _change("POST", "/api/v1/outbox/{id}/drop", operations.drop_message, answers.ChangedMessage, EmptyBody),
    _change("POST", "/api/v1/conditions/close", operations.close_condition, answers.ClosedCondition, CloseConditionBody),
    _change("POST", "/api/v1/conditions/ack", operations.acknowledge_conditions, answers.AcknowledgedConditions, AcknowledgeBody),
    _change(
        "POST", "/api/v1/conditions/unack", operations.unacknowledge_conditions, answers.AcknowledgedConditions, AcknowledgeBody
    ),
    _change("POST", "/api/v1/ping", operations.ping_channels, answers.TestedChannels, PingBody),
    _change("POST", "/-/reload", operations.reload_config, answers.Reloaded, ReloadBody),
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
        Route("/api/v1/openapi.json", read_endpoint(app_state, "read", _get_openapi), methods=["GET"]),
        *(Route(each.path, _endpoint_of(app_state, each), methods=[each.method]) for each in OPERATIONS),
    ]


def _endpoint_of(app_state: AppState, operation: Operation) -> Endpoint:
    if operation.handler is event_stream.stream_events:
        return event_stream.stream_events(app_state.feed)
    if operation.method == "GET":
        return read_endpoint(app_state, operation.may, operation.handler, [each.name for each in operation.query])
    return write_endpoint(app_state, operation.may, operation.handler, *operation.bodies, largest=operation.largest)


@cache
def _openapi_document() -> dict[str, Any]:
    return openapi.build_document(OPERATIONS, __version__)


def _get_openapi(_: ApiRequest) -> dict[str, Any]:
    """The description of the API."""
    return _openapi_document()

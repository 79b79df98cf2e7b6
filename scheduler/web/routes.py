"""Lists every path of the HTTP API with its method, its handler and the permission that a token needs for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.routing import Route

from scheduler.engine.buttons import LINK_PATH
from scheduler.web import checklists, config_editing, health, operations, queries, signed_links
from scheduler.web.api_request import ApiRequest, Endpoint, read_endpoint, write_endpoint
from scheduler.web.app_state import AppState
from scheduler.web.http_errors import HANDLERS
from scheduler.web.request_bodies import (
    AcknowledgeBody,
    ActivityBody,
    AlertmanagerBody,
    Body,
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
    ResultBody,
    WakeBody,
)

MAX_WAKE_BYTES = 1024 * 1024  # bytes; Alertmanager does not repeat a rejected notification, so even one with many alerts must fit
MAX_CHECKLIST_BYTES = 512 * 1024  # bytes; JSON may need six bytes for one byte of the text
CHECKLIST_PATH = "/api/v1/agents/{name}/checklist"


def build_application(app_state: AppState) -> Starlette:
    """The ASGI application, without the checks of the middleware."""
    return Starlette(routes=build_routes(app_state), exception_handlers=HANDLERS)


def build_routes(app_state: AppState) -> list[Route]:
    def operate_endpoint(do: Callable[[ApiRequest, Body], Awaitable[Any]], model: type[Body]) -> Endpoint:
        return write_endpoint(app_state, "operate", do, model)

    probes = {"/metrics": health.metrics_endpoint, "/healthz": health.liveness_endpoint, "/readyz": health.readiness_endpoint}
    reads = {
        "/api/v1/status": queries.get_status,
        "/api/v1/agents": queries.list_agents,
        "/api/v1/agents/{name}": queries.get_agent,
        "/api/v1/cron": queries.list_jobs,
        "/api/v1/runs": queries.list_runs,
        "/api/v1/runs/{id}": queries.get_run,
        "/api/v1/wakes/{id}": queries.get_wake,
        "/api/v1/plan": queries.get_plan,
        "/api/v1/explain/{name}": queries.get_explanation,
        "/api/v1/outbox": queries.list_undelivered,
        "/api/v1/conditions": queries.list_conditions,
        "/api/v1/config": config_editing.get_config,
        "/api/v1/agents/{name}/config": config_editing.get_agent_config,
        "/api/v1/cron/{name}/config": config_editing.get_job_config,
    }
    # A caller without the permission `edit` gets the lines to write.
    patches = {
        "/api/v1/config": config_editing.patch_config,
        "/api/v1/agents/{name}/config": config_editing.patch_agent_config,
        "/api/v1/cron/{name}/config": config_editing.patch_job_config,
    }
    posts = {
        "/-/reload": operate_endpoint(operations.reload_config, ReloadBody),
        "/api/v1/cron/{name}/run": operate_endpoint(operations.run_job, EmptyBody),
        "/api/v1/agents/{name}/pause": operate_endpoint(operations.pause_agent, PauseBody),
        "/api/v1/agents/{name}/resume": operate_endpoint(operations.resume_agent, EmptyBody),
        "/api/v1/cron/{name}/pause": operate_endpoint(operations.pause_job, PauseBody),
        "/api/v1/cron/{name}/resume": operate_endpoint(operations.resume_job, EmptyBody),
        "/api/v1/agents/{name}/mute": operate_endpoint(operations.mute_agent, MuteBody),
        "/api/v1/agents/{name}/unmute": operate_endpoint(operations.unmute_agent, EmptyBody),
        "/api/v1/cron/{name}/mute": operate_endpoint(operations.mute_job, MuteBody),
        "/api/v1/cron/{name}/unmute": operate_endpoint(operations.unmute_job, EmptyBody),
        "/api/v1/runs/{id}/result": operate_endpoint(operations.report_result, ResultBody),
        "/api/v1/agents/{name}/activity": operate_endpoint(operations.record_activity, ActivityBody),
        "/api/v1/runs/{id}/cancel": operate_endpoint(operations.cancel_run, EmptyBody),
        "/api/v1/outbox/{id}/retry": operate_endpoint(operations.retry_message, EmptyBody),
        "/api/v1/outbox/{id}/drop": operate_endpoint(operations.drop_message, EmptyBody),
        "/api/v1/conditions/close": operate_endpoint(operations.close_condition, CloseConditionBody),
        "/api/v1/conditions/ack": operate_endpoint(operations.acknowledge_conditions, AcknowledgeBody),
        "/api/v1/conditions/unack": operate_endpoint(operations.unacknowledge_conditions, AcknowledgeBody),
        "/api/v1/ping": operate_endpoint(operations.ping_channels, PingBody),
        "/api/v1/pause": operate_endpoint(operations.pause_all, PauseBody),
        "/api/v1/resume": operate_endpoint(operations.resume_all, EmptyBody),
    }
    wakes: tuple[type[WakeBody | AlertmanagerBody], ...] = (AlertmanagerBody, WakeBody)
    wake = write_endpoint(app_state, "wake", operations.wake_agent, *wakes, largest=MAX_WAKE_BYTES)
    edit = write_endpoint(app_state, "edit", checklists.put_checklist, ChecklistBody, largest=MAX_CHECKLIST_BYTES)
    return [
        Route(f"{LINK_PATH}{{data}}", signed_links.link_endpoint(app_state), methods=["GET", "POST"]),
        *(Route(path, make(app_state), methods=["GET"]) for path, make in probes.items()),
        *(Route(path, read_endpoint(app_state, "read", answer), methods=["GET"]) for path, answer in reads.items()),
        *(Route(path, do, methods=["POST"]) for path, do in posts.items()),
        Route("/api/v1/agents/{name}/busy", operate_endpoint(operations.hold_lane, HoldBody), methods=["PUT"]),
        Route("/api/v1/agents/{name}/busy", operate_endpoint(operations.release_lane, ReleaseBody), methods=["DELETE"]),
        Route(CHECKLIST_PATH, read_endpoint(app_state, "read", checklists.get_checklist), methods=["GET"]),
        Route(CHECKLIST_PATH, edit, methods=["PUT"]),
        *(Route(path, write_endpoint(app_state, "read", do, EditBody), methods=["PATCH"]) for path, do in patches.items()),
        Route("/api/v1/agents/{name}/wake", wake, methods=["POST"]),
    ]

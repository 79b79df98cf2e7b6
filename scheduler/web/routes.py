"""Routes: every path of the interface, its method, and what a token must be good for to use it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.routing import Route

from scheduler.web import checklists, health, operations, queries
from scheduler.web.api_request import Call, Endpoint, answering, doing
from scheduler.web.app_state import Reach
from scheduler.web.http_errors import HANDLERS
from scheduler.web.request_bodies import (
    ActivityBody,
    AlertmanagerBody,
    Body,
    ChecklistBody,
    EmptyBody,
    HoldBody,
    PauseBody,
    PingBody,
    ReleaseBody,
    ReloadBody,
    ResultBody,
    WakeBody,
)

LARGEST_WAKE = 1024 * 1024  # bytes; Alertmanager does not send again what was refused, however many alerts it holds
LARGEST_CHECKLIST = 512 * 1024  # JSON may need six bytes for one of the text
CHECKLIST = "/api/v1/agents/{name}/checklist"


def application(reach: Reach) -> Starlette:
    """The interface without its gate."""
    return Starlette(routes=_routes(reach), exception_handlers=HANDLERS)


def _routes(reach: Reach) -> list[Route]:
    def operate(do: Callable[[Call, Body], Awaitable[Any]], model: type[Body]) -> Endpoint:
        return doing(reach, "operate", do, model)

    probes = {"/metrics": health.metrics, "/healthz": health.alive, "/readyz": health.ready}
    reads = {
        "/api/v1/status": queries.overview,
        "/api/v1/agents": queries.agents,
        "/api/v1/agents/{name}": queries.agent,
        "/api/v1/cron": queries.jobs,
        "/api/v1/runs": queries.runs,
        "/api/v1/runs/{id}": queries.run,
        "/api/v1/wakes/{id}": queries.wake,
        "/api/v1/plan": queries.plan,
        "/api/v1/explain/{name}": queries.explain,
        "/api/v1/outbox": queries.outbox,
    }
    posts = {
        "/-/reload": operate(operations.reload, ReloadBody),
        "/api/v1/cron/{name}/run": operate(operations.run_job, EmptyBody),
        "/api/v1/agents/{name}/pause": operate(operations.pause_agent, PauseBody),
        "/api/v1/agents/{name}/resume": operate(operations.resume_agent, EmptyBody),
        "/api/v1/cron/{name}/pause": operate(operations.pause_job, PauseBody),
        "/api/v1/cron/{name}/resume": operate(operations.resume_job, EmptyBody),
        "/api/v1/runs/{id}/result": operate(operations.result, ResultBody),
        "/api/v1/agents/{name}/activity": operate(operations.activity, ActivityBody),
        "/api/v1/runs/{id}/cancel": operate(operations.cancel, EmptyBody),
        "/api/v1/outbox/{id}/retry": operate(operations.send_again, EmptyBody),
        "/api/v1/outbox/{id}/drop": operate(operations.drop, EmptyBody),
        "/api/v1/ping": operate(operations.ping, PingBody),
        "/api/v1/pause": operate(operations.pause_all, PauseBody),
        "/api/v1/resume": operate(operations.resume_all, EmptyBody),
    }
    wakes: tuple[type[WakeBody | AlertmanagerBody], ...] = (AlertmanagerBody, WakeBody)
    wake = doing(reach, "wake", operations.wake, *wakes, largest=LARGEST_WAKE)
    edit = doing(reach, "edit", checklists.write, ChecklistBody, largest=LARGEST_CHECKLIST)
    return [
        *(Route(path, make(reach), methods=["GET"]) for path, make in probes.items()),
        *(Route(path, answering(reach, "read", answer), methods=["GET"]) for path, answer in reads.items()),
        *(Route(path, do, methods=["POST"]) for path, do in posts.items()),
        Route("/api/v1/agents/{name}/busy", operate(operations.hold, HoldBody), methods=["PUT"]),
        Route("/api/v1/agents/{name}/busy", operate(operations.let_go, ReleaseBody), methods=["DELETE"]),
        Route(CHECKLIST, answering(reach, "read", checklists.read), methods=["GET"]),
        Route(CHECKLIST, edit, methods=["PUT"]),
        Route("/api/v1/agents/{name}/wake", wake, methods=["POST"]),
    ]

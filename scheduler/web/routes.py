"""Routes: every path of the interface, its method, and what a token must be good for to use it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.routing import Route

from scheduler.web import asking, checklists, foresight, health, reading, telling
from scheduler.web.call import Call, Endpoint, answering, doing
from scheduler.web.problem import HANDLERS
from scheduler.web.reach import Reach
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
        "/api/v1/status": reading.overview,
        "/api/v1/agents": reading.agents,
        "/api/v1/agents/{name}": reading.agent,
        "/api/v1/cron": reading.jobs,
        "/api/v1/runs": reading.runs,
        "/api/v1/runs/{id}": reading.run,
        "/api/v1/wakes/{id}": reading.wake,
        "/api/v1/plan": foresight.plan,
        "/api/v1/explain/{name}": foresight.explain,
        "/api/v1/outbox": reading.outbox,
    }
    operations = {
        "/-/reload": operate(asking.reload, ReloadBody),
        "/api/v1/cron/{name}/run": operate(asking.run_job, EmptyBody),
        "/api/v1/agents/{name}/pause": operate(asking.pause_agent, PauseBody),
        "/api/v1/agents/{name}/resume": operate(asking.resume_agent, EmptyBody),
        "/api/v1/cron/{name}/pause": operate(asking.pause_job, PauseBody),
        "/api/v1/cron/{name}/resume": operate(asking.resume_job, EmptyBody),
        "/api/v1/runs/{id}/result": operate(asking.result, ResultBody),
        "/api/v1/agents/{name}/activity": operate(asking.activity, ActivityBody),
        "/api/v1/runs/{id}/cancel": operate(asking.cancel, EmptyBody),
        "/api/v1/outbox/{id}/retry": operate(telling.send_again, EmptyBody),
        "/api/v1/outbox/{id}/drop": operate(telling.drop, EmptyBody),
        "/api/v1/ping": operate(telling.ping, PingBody),
        "/api/v1/pause": operate(asking.pause_all, PauseBody),
        "/api/v1/resume": operate(asking.resume_all, EmptyBody),
    }
    wakes: tuple[type[WakeBody | AlertmanagerBody], ...] = (AlertmanagerBody, WakeBody)
    wake = doing(reach, "wake", asking.wake, *wakes, largest=LARGEST_WAKE)
    edit = doing(reach, "edit", checklists.write, ChecklistBody, largest=LARGEST_CHECKLIST)
    return [
        *(Route(path, make(reach), methods=["GET"]) for path, make in probes.items()),
        *(Route(path, answering(reach, "read", answer), methods=["GET"]) for path, answer in reads.items()),
        *(Route(path, do, methods=["POST"]) for path, do in operations.items()),
        Route("/api/v1/agents/{name}/busy", operate(asking.hold, HoldBody), methods=["PUT"]),
        Route("/api/v1/agents/{name}/busy", operate(asking.let_go, ReleaseBody), methods=["DELETE"]),
        Route(CHECKLIST, answering(reach, "read", checklists.read), methods=["GET"]),
        Route(CHECKLIST, edit, methods=["PUT"]),
        Route("/api/v1/agents/{name}/wake", wake, methods=["POST"]),
    ]

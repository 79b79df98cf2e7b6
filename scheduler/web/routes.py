"""Routes: every path of the interface, its method, and what a token must be good for to use it."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.routing import Route

from scheduler.web import asking, checklists, foresight, health, reading, telling
from scheduler.web.call import answering, doing
from scheduler.web.problem import HANDLERS
from scheduler.web.reach import Reach

LARGEST_WAKE = 1024 * 1024  # bytes; Alertmanager does not send again what was refused, however many alerts it holds
LARGEST_CHECKLIST = 512 * 1024  # JSON may need six bytes for one of the text
CHECKLIST = "/api/v1/agents/{name}/checklist"


def application(reach: Reach) -> Starlette:
    """The interface without its gate."""
    return Starlette(routes=_routes(reach), exception_handlers=HANDLERS)


def _routes(reach: Reach) -> list[Route]:
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
        "/-/reload": asking.reload,
        "/api/v1/cron/{name}/run": asking.run_job,
        "/api/v1/agents/{name}/pause": asking.pause_agent,
        "/api/v1/agents/{name}/resume": asking.resume_agent,
        "/api/v1/cron/{name}/pause": asking.pause_job,
        "/api/v1/cron/{name}/resume": asking.resume_job,
        "/api/v1/runs/{id}/result": asking.result,
        "/api/v1/agents/{name}/activity": asking.activity,
        "/api/v1/runs/{id}/cancel": asking.cancel,
        "/api/v1/outbox/{id}/retry": telling.send_again,
        "/api/v1/outbox/{id}/drop": telling.drop,
        "/api/v1/ping": telling.ping,
        "/api/v1/pause": asking.pause_all,
        "/api/v1/resume": asking.resume_all,
    }
    return [
        *(Route(path, make(reach), methods=["GET"]) for path, make in probes.items()),
        *(Route(path, answering(reach, "read", answer), methods=["GET"]) for path, answer in reads.items()),
        *(Route(path, doing(reach, "operate", do), methods=["POST"]) for path, do in operations.items()),
        Route("/api/v1/agents/{name}/busy", doing(reach, "operate", asking.hold), methods=["PUT"]),
        Route("/api/v1/agents/{name}/busy", doing(reach, "operate", asking.let_go), methods=["DELETE"]),
        Route(CHECKLIST, answering(reach, "read", checklists.read), methods=["GET"]),
        Route(CHECKLIST, doing(reach, "edit", checklists.write, LARGEST_CHECKLIST), methods=["PUT"]),
        Route("/api/v1/agents/{name}/wake", doing(reach, "wake", asking.wake, LARGEST_WAKE), methods=["POST"]),
    ]

"""Health: what probes and Prometheus ask, without a token; nothing that an agent was told or said is in it."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from datetime import timedelta

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from scheduler.store.database import StoreError
from scheduler.telemetry.metrics import CONTENT_TYPE, Now
from scheduler.web.app_state import Reach
from scheduler.web.http_errors import Problem, said
from scheduler.web.queries import reading

Endpoint = Callable[[Request], Awaitable[Response]]

LATE = timedelta(seconds=90)  # the engine goes round at least every 15 seconds


def metrics(reach: Reach) -> Endpoint:
    """What Prometheus scrapes. While the database cannot be read, only what the process itself knows."""

    async def endpoint(_: Request) -> Response:
        return Response(await run_in_threadpool(_page, reach), media_type=CONTENT_TYPE)

    return endpoint


def alive(reach: Reach) -> Endpoint:
    """200 unless the engine stands still."""

    async def endpoint(_: Request) -> Response:
        return _answer(_stands_still(reach))

    return endpoint


def ready(reach: Reach) -> Endpoint:
    """200 while the engine can do its work; else the reason why it cannot."""

    async def endpoint(_: Request) -> Response:
        if reach.health.problem is not None:
            return _answer(reach.health.problem)
        if reach.health.ticked_at is None:
            return _answer("the daemon is starting")
        return _answer(_stands_still(reach))

    return endpoint


def _page(reach: Reach) -> bytes:
    now = Now(reach.health, reach.reload_standing(), reach.running(), reach.clock())
    try:
        with reading(reach) as db:
            return reach.metrics.render(db, now)
    except (StoreError, sqlite3.Error):
        return reach.metrics.render(None, now)


def _stands_still(reach: Reach) -> str | None:
    tried_at = reach.health.tried_at
    if tried_at is None or reach.clock() - tried_at <= LATE:
        return None
    return f"the engine has not gone round since {tried_at:%Y-%m-%dT%H:%M:%SZ}"


def _answer(reason: str | None) -> Response:
    return JSONResponse({"ok": True}) if reason is None else said(Problem(503, "unhealthy", reason))

"""Serves the metrics and the health probes. They need no token, and contain no prompts and no answers of agents."""

from __future__ import annotations

import gzip
import sqlite3
from collections.abc import Callable
from datetime import timedelta

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from scheduler.store.database import StoreError
from scheduler.telemetry.metrics import MetricsPage, ScrapeState
from scheduler.web.api_request import HttpHandler
from scheduler.web.app_state import AppState, open_reader
from scheduler.web.http_errors import HttpError, error_response

GZIP_LEVEL = 1  # level 6 takes three times as long for a page that is hardly shorter
FROZEN_AFTER = timedelta(seconds=90)  # the main loop ticks at least every 15 seconds


def metrics_endpoint(app_state: AppState) -> HttpHandler:
    """The page that Prometheus scrapes. While the database cannot be read, it has only the process's own metrics.

    The header Accept chooses between the text format and OpenMetrics, and Accept-Encoding whether the page is compressed.
    """

    async def endpoint(request: Request) -> Response:
        gzipped = "gzip" in _accepted_encodings(request.headers.get("accept-encoding", ""))
        page = await run_in_threadpool(_render_metrics, app_state, request.headers.get("accept", ""), gzipped=gzipped)
        headers = {"Content-Type": page.content_type, "Vary": "Accept, Accept-Encoding"}
        return Response(page.body, headers={**headers, "Content-Encoding": "gzip"} if gzipped else headers)

    return endpoint


def probe_endpoint(app_state: AppState, find_problem: Callable[[AppState], str | None]) -> HttpHandler:
    """200, or 503 with the reason while there is a problem."""

    async def endpoint(_: Request) -> Response:
        reason = find_problem(app_state)
        return JSONResponse({"ok": True}) if reason is None else error_response(HttpError(503, "unhealthy", reason))

    return endpoint


def why_frozen(app_state: AppState) -> str | None:
    """Why the daemon is not live: its main loop is frozen."""
    tried_at = app_state.health.tried_at
    if tried_at is None or app_state.clock() - tried_at <= FROZEN_AFTER:
        return None
    return f"the main loop is frozen: no tick since {tried_at:%Y-%m-%dT%H:%M:%SZ}"


def why_not_ready(app_state: AppState) -> str | None:
    """Why the engine cannot work."""
    if app_state.health.why_not_working is not None:
        return app_state.health.why_not_working
    if app_state.health.standby is not None:
        return f"standby: {app_state.health.standby}"
    return "the daemon is starting" if app_state.health.ticked_at is None else why_frozen(app_state)


def _accepted_encodings(header: str) -> set[str]:
    """The encodings in an Accept-Encoding header, without those that it excludes (RFC 9110, section 12.5.3)."""
    parts = (part.replace(" ", "").lower().split(";q=") for part in header.split(","))
    return {name for name, *weight in parts if not weight or weight[0].strip("0.")}


def _render_metrics(app_state: AppState, accept: str, *, gzipped: bool) -> MetricsPage:
    now = ScrapeState(app_state.health, app_state.reloader.reload_state, app_state.count_running(), app_state.clock())
    try:
        with open_reader(app_state) as db:
            page = app_state.metrics.render_page(db, now, accept)
    except (StoreError, sqlite3.Error, OSError):
        page = app_state.metrics.render_page(None, now, accept)
    return page._replace(body=gzip.compress(page.body, GZIP_LEVEL, mtime=0)) if gzipped else page

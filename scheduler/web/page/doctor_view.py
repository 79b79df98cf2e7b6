"""Shows the checks of `heartbeatd doctor` that make sense while the daemon runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from scheduler.insight import installation_checks
from scheduler.insight.installation_checks import Finding
from scheduler.store import boots, database
from scheduler.store.database import StoreError
from scheduler.web.http_errors import bad_request
from scheduler.web.page.rendering import Page, local_time
from scheduler.web.page.views import PageRequest

PARAMETERS = ("database",)
ORDER = ("bad", "warn", "ok")
MAX_FINDINGS = 200  # that are listed, because each agent may have some


def show_doctor(request: PageRequest) -> Page:
    """The findings, the worst first. With `database=check` the whole database file is read. Raises HttpError."""
    thorough = "database" in request.query
    if thorough and request.query["database"] != "check":
        raise bad_request("database: write check")
    findings = sorted(_check_everything(request, thorough=thorough), key=lambda each: ORDER.index(each.level))
    counts = {level: sum(each.level == level for each in findings) for level in ORDER}
    context = {
        "findings": findings[:MAX_FINDINGS],
        "counts": counts,
        "more": len(findings) - MAX_FINDINGS,
        "is_thorough": thorough,
        "has_file": request.api.app_state.server is None,
    }
    return Page("doctor.html", context)


def _check_everything(request: PageRequest, *, thorough: bool) -> Iterator[Finding]:
    """The config is read with the environment of the daemon. `crontab -l` is not run: a page must not start programs."""
    state = request.api.app_state
    path, zone = state.database_path, request.settings.zone

    def format_time(moment: datetime | None) -> str:
        return local_time(moment, zone)

    yield from installation_checks.check_installation()
    yield from installation_checks.check_config(request.settings.path, os.environ, request.now)
    if state.health.queue is not None:
        yield installation_checks.check_queue(state.health.queue)
    yield from installation_checks.check_folder(path.parent)
    if thorough and state.server is None:
        yield _check_database_file(path)
    yield from installation_checks.check_outbox(request.db)
    yield from installation_checks.check_downtime(request.db, format_time, zone.key)
    if path.exists():
        yield installation_checks.check_disk(path)
    boot = boots.latest_boot(request.db)
    since = f" since {format_time(boot.started_at)}" if boot else ""
    yield Finding("ok", "daemon", f"running{since}, pid {os.getpid()}")


def _check_database_file(path: Path) -> Finding:
    try:
        database.check_database(path)
    except StoreError as error:
        return Finding("bad", "database", str(error))
    return Finding("ok", "database", f"{path} is intact")

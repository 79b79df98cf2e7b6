"""Shows everything that is wrong now: open problems, circuit breakers, rejected configs, undelivered messages."""

from __future__ import annotations

from heartbeatd.answers import EntryStatus
from heartbeatd.questions import ListProblems
from scheduler.insight import status_data
from scheduler.web.page.rendering import Page
from scheduler.web.page.views import PageRequest
from scheduler.web.perform import ask
from scheduler.web.queries import read_records

PARAMETERS = ("show",)


def show_problems(request: PageRequest) -> Page:
    """The problems that the user may see. Problems of the daemon and of providers are only shown to tokens for all agents."""
    shown = request.choose("show", ("open", "all"), "open")
    status = status_data.read_status(request.db, request.now, request.settings.zone)
    mine = [each for each in status.entries if _may_access(request, each)]
    is_limited = request.caller.agents is not None
    context = {
        "problems": ask(request.api, "list_problems", ListProblems(state="all" if shown == "all" else "open")).problems,
        "shown": shown,
        "undelivered": [each for each in mine if each.undelivered],
        "daemon": [] if is_limited else _daemon_problems(request),
        "breakers": [] if is_limited else status.breakers,
        "channels": [] if is_limited else [each for each in status.outbox if each.dead or each.pending],
        "deadman": None if is_limited else status.deadman_problem,
        "downs": [] if is_limited else status.downs,
        "frozen": [] if is_limited else status.frozen,
    }
    return Page("problems.html", context)


def _may_access(request: PageRequest, entry: EntryStatus) -> bool:
    return request.caller.may_access(entry.kind, entry.name)


def _daemon_problems(request: PageRequest) -> list[str]:
    """What is wrong with the daemon or its config, as `explain` says it."""
    records = read_records(request.api, request.db)
    return [text for _, text in records.daemon.problems(records.times(request.settings.zone))]

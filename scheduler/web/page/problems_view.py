"""Shows everything that is wrong now: open problems, circuit breakers, rejected configs, undelivered messages."""

from __future__ import annotations

from heartbeatd.questions import GetStatus, ListProblems
from scheduler.web.page.rendering import Page
from scheduler.web.page.views import PageRequest
from scheduler.web.perform import ask
from scheduler.web.queries import read_records

PARAMETERS = ("show",)


def show_problems(request: PageRequest) -> Page:
    """The problems that the user may see, with what the status shows of the daemon and of providers."""
    shown = request.choose("show", ("open", "all"), "open")
    status = ask(request.api, "get_status", GetStatus())
    context = {
        "problems": ask(request.api, "list_problems", ListProblems(state="all" if shown == "all" else "open")).problems,
        "shown": shown,
        "status": status,
        "undelivered": [each for each in status.entries if each.undelivered],
        "daemon": _daemon_problems(request) if request.caller.agents is None else [],
    }
    return Page("problems.html", context)


def _daemon_problems(request: PageRequest) -> list[str]:
    """What is wrong with the daemon or its config, as `explain` says it."""
    records = read_records(request.api, request.db)
    return [text for _, text in records.daemon.problems(records.times(request.settings.zone))]

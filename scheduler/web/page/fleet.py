"""Shows all agents as cards: state, next run, last answer, latest slots, cost. Agents with problems come first."""

from __future__ import annotations

from scheduler.insight import status_data
from scheduler.model.outcome import Kind
from scheduler.web.page.rendering import Page
from scheduler.web.page.views import PageRequest

PARAMETERS = ("q", "show", "page")


def show_fleet(request: PageRequest) -> Page:
    """The cards of the agents that the user may see."""
    agents = [
        each
        for each in status_data.read_entries(request.db, request.now, Kind.HEARTBEAT)
        if request.caller.may_access(Kind.HEARTBEAT, each["name"])
    ]
    return Page("fleet.html", {"agents": agents})

"""Shows the messages of the outbox by state, page by page, and one message with its whole text."""

from __future__ import annotations

from heartbeatd.operations import Concern
from scheduler.store import outbox
from scheduler.store.outbox import MOVABLE
from scheduler.web.access import row_in_path
from scheduler.web.http_errors import not_found
from scheduler.web.page.rendering import Page
from scheduler.web.page.views import PageRequest

LIST_PARAMETERS = ("state", "before")
PAGE_SIZE = 50  # messages on one page

# The filters: word in the URL, label, states. The states of messages that are on their way are one filter.
FILTERS = {
    "undelivered": ("Not delivered", ("pending", "sending", "uncertain", "held", "dead")),
    "open": ("On their way", ("pending", "sending", "uncertain")),
    "held": ("Held", ("held",)),
    "dead": ("Given up", ("dead",)),
    "delivered": ("Delivered", ("delivered",)),
    "dropped": ("Dropped", ("dropped",)),
}


def list_messages(request: PageRequest) -> Page:
    """The messages that the user may see, the newest first."""
    chosen = request.choose("state", FILTERS, "undelivered")
    before = request.before("message")
    agents = request.caller.agents
    found = outbox.list_messages_of_states(request.db, FILTERS[chosen][1], PAGE_SIZE + 1, before, agents)
    counts = outbox.count_messages_by_state(request.db, agents)
    context = {
        "messages": found[:PAGE_SIZE],
        "older": found[PAGE_SIZE - 1].id if len(found) > PAGE_SIZE else None,
        "is_newest": before is None,
        "chosen": chosen,
        "filters": [(word, label, sum(counts.get(state, 0) for state in states)) for word, (label, states) in FILTERS.items()],
        "movable": MOVABLE,
    }
    return Page("outbox.html", context)


def show_message(request: PageRequest) -> Page:
    """One message. Raises HttpError if there is none, or if the user may not see it."""
    number = row_in_path(request.api, Concern.MESSAGE)
    found = outbox.get_message_with_text(request.db, number)
    if found is None:
        raise not_found(f"message {number}")
    return Page("message.html", {"message": found, "movable": MOVABLE})

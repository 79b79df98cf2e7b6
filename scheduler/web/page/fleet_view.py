"""Shows what is wrong now in one line, and all agents as cards or as compact rows. Agents with problems come first."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from scheduler.insight import fleet, health, status_data
from scheduler.insight.fleet import AgentCard
from scheduler.insight.health import EntryHealth, Group
from scheduler.model.levels import Level
from scheduler.model.outcome import Kind
from scheduler.model.settings import Settings
from scheduler.web.http_errors import not_found
from scheduler.web.page.daemon_views import latest_edit
from scheduler.web.page.rendering import Page, colour_of_level
from scheduler.web.page.views import PageRequest
from scheduler.web.queries import read_records, read_status

PER_PAGE = {"": 48, "rows": 400}  # by how the agents are shown: as cards, or as compact rows
LEAST_SECONDS = 20  # between two times that an open page loads the whole list again; one second more for each ten agents
# The shape of a slot in the strip, 6 wide and 24 high. Each shape has another height, because some people cannot tell the colours
# apart. A failure looks like an exclamation mark.
SLOT_WIDTH = 6
SLOT_SHAPES = {
    Level.GOOD: "v-10h5v10z",
    Level.ALERT: "v-24h5v24z",
    Level.BAD: "v-5h5v5z m0-8v-16h5v16z",
    Level.LOST: "v-17h5v17z",
    Level.PLANNED: "v-3h5v3z",
    Level.WAITING: "v-13h5v13z",
}
LEGEND = {
    Level.GOOD: "ran, and had nothing to report",
    Level.ALERT: "had an alert",
    Level.BAD: "failed, timed out or was interrupted",
    Level.LOST: "skipped, but should have run",
    Level.PLANNED: "skipped as planned, for example outside active hours",
    Level.WAITING: "runs, or waits for a retry or a late answer",
}
SHOWN: dict[str, str] = {"": "All"} | {group.value: group.value.capitalize() for group in Group}


def show_fleet(request: PageRequest) -> Page:
    """The agents that the user may see and looks for, a page at a time."""
    wanted, form = request.choose("show", SHOWN, ""), request.choose("as", PER_PAGE, "")
    status = read_status(request.api, costs=False)
    states = health.read_states(each for each in status.entries if each.kind == "heartbeat")
    search = request.query.get("q", "").strip()
    matching = _search(states, request.settings, search)
    counts = Counter(group for state in matching for group in state.groups)
    found = [state for state in matching if not wanted or Group(wanted) in state.groups]
    shown, numbers = request.numbered_page(found, PER_PAGE[form])
    records = read_records(request.api, request.db)
    filters = [
        (label, group, counts[Group(group)] if group else len(matching), group == wanted) for group, label in SHOWN.items()
    ]
    return Page(
        "fleet.html",
        {
            "problems": [each for each in status.problems if each.kind is None],
            "status": status,
            "form": form,
            "edit": latest_edit(request),
            "shown": shown if form else [fleet.read_card(records, state) for state in shown],
            "total": len(states),
            "matching": len(found),
            "filters": filters,
            "live_every": max(LEAST_SECONDS, len(states) // 10),
            "search": search,
            "wanted": wanted,
            "legend": [(text, slot_shapes([level], 1)) for level, text in LEGEND.items()],
            **CARD_HELPERS,
            **numbers,
        },
    )


def show_card(request: PageRequest) -> Page:
    """One card, for a page that shows it already."""
    name = request.path["name"]
    entries = status_data.read_entries(request.db, request.now, request.settings.zone, Kind.HEARTBEAT, name)
    if not entries:
        raise not_found(f"agent {name!r}")
    (state,) = health.read_states(entries)
    card = fleet.read_card(read_records(request.api, request.db), state)
    return Page("card.html", {"card": card, **CARD_HELPERS})


def slot_shapes(slots: Sequence[Level], width: int = fleet.STRIP_SLOTS) -> list[tuple[str, str]]:
    """The strip of some slots as SVG paths: for each level its colour, and one path with all slots that have it.

    The newest slot is at the right edge of a strip of `width` slots.
    """
    paths: defaultdict[Level, list[str]] = defaultdict(list)
    for place, level in enumerate(slots, width - len(slots)):
        paths[level].append(f"M{place * SLOT_WIDTH} 24{SLOT_SHAPES[level]}")
    return [(colour_of_level(level), "".join(parts)) for level, parts in paths.items()]


def strip_text(card: AgentCard) -> str:
    """The strip in words: how many slots had each level."""
    counts = ", ".join(f"{count} {level}" for level, count in card.slot_counts)
    return f"The last {len(card.slots)} planned runs: {counts}" if card.slots else "No planned runs yet"


CARD_HELPERS = {
    "slot_shapes": slot_shapes,
    "strip_text": strip_text,
    "slot_width": SLOT_WIDTH,
    "strip_slots": fleet.STRIP_SLOTS,
}


def _search(states: Sequence[EntryHealth], settings: Settings, search: str) -> list[EntryHealth]:
    """The agents in whose name, state, model or channels every word of the search occurs."""
    words = search.casefold().split()
    return [state for state in states if all(word in _searched_text(state, settings) for word in words)]


def _searched_text(state: EntryHealth, settings: Settings) -> str:
    heartbeat = settings.heartbeats.get(state.name)
    more: Iterable[str] = () if heartbeat is None else (fleet.model_or_runner(heartbeat), *heartbeat.deliver)
    last = state.entry.last_run
    words = (last.outcome, last.reason, last.suppression) if last else ()
    return " ".join((state.name, state.label, *filter(None, words), *more)).casefold()

"""Shows what is wrong now in one line, and all agents as cards or as compact rows. Agents with problems come first."""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from heartbeat.spec import ClaudeCode, CommandRunner, Heartbeat, HttpRunner, ModelRunner
from heartbeatd.answers import EntryOverview
from scheduler.insight import health, status_data
from scheduler.insight.entry_day import explain_day
from scheduler.insight.explanation import find_entry
from scheduler.insight.health import EntryHealth, Group
from scheduler.insight.records import Records
from scheduler.insight.slot_history import results_of_rows
from scheduler.model import local_days
from scheduler.model.levels import Level
from scheduler.model.outcome import Kind
from scheduler.model.settings import Settings
from scheduler.store import overviews
from scheduler.store.overviews import DayCost, LatestAnswer
from scheduler.web.http_errors import not_found
from scheduler.web.page.daemon_views import latest_edit
from scheduler.web.page.rendering import Page, colour_of_level
from scheduler.web.page.views import PageRequest
from scheduler.web.queries import read_records, read_status

STRIP_SLOTS = 48
ANSWER_LENGTH = 280  # characters of the latest answer on a card
PER_PAGE = {"": 48, "rows": 400}  # by how the agents are shown: as cards, or as compact rows
LEAST_SECONDS = 20  # between two times that an open page loads the whole list again; one second more for each ten agents
# The shape of a planned run in the strip, 6 wide and 24 high. Each shape has another height, because some people cannot tell the
# colours apart. A failure looks like an exclamation mark.
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
# The group of agents that are not ok has another label than the view of problems, which counts something else.
SHOWN: dict[str, str] = (
    {"": "All"} | {group.value: group.value.capitalize() for group in Group} | {Group.PROBLEMS.value: "Not ok"}
)


@dataclass(frozen=True, slots=True)
class AgentCard:
    """All that a card shows. `overview` is that of today, and `quiet` what else keeps the agent quiet.

    `slots` are the latest levels, the oldest first.
    """

    state: EntryHealth
    overview: EntryOverview
    model: str
    channels: tuple[str, ...]
    quiet: tuple[str, ...]
    answer: LatestAnswer | None
    slots: Sequence[Level]
    cost: DayCost
    timezone: str

    @property
    def slot_counts(self) -> list[tuple[Level, int]]:
        """How many of the planned runs had each level, without the levels that none had."""
        counts = Counter(self.slots)
        return [(level, counts[level]) for level in Level if counts[level]]


def read_card(records: Records, state: EntryHealth) -> AgentCard:
    """The card of an agent, from records of today."""
    explained = find_entry(records, (Kind.HEARTBEAT, state.name))
    assert explained is not None  # it has a state
    db, now, heartbeat = records.db, records.now, explained.spec
    today = local_days.whole_day(now.astimezone(explained.zone).date(), explained.zone)
    why = explain_day(explained.records, explained.row)
    return AgentCard(
        state,
        why,
        model_or_runner(heartbeat) if heartbeat else "not in the config",
        heartbeat.deliver if heartbeat else (),
        tuple(each.says for each in explained.quiet_reasons if each.says not in why.says),
        overviews.latest_answer(db, state.name, ANSWER_LENGTH),
        _latest_levels(db, state.name),
        overviews.cost_since(db, state.name, today.begins),
        explained.zone.key,
    )


def model_or_runner(heartbeat: Heartbeat) -> str:
    """The model of an agent, or how it is called if it chooses its model itself."""
    if heartbeat.model is not None:
        return heartbeat.model
    match heartbeat.runner:
        case CommandRunner(claude=ClaudeCode()):
            return "Claude Code"
        case CommandRunner(argv=argv):
            return f"command {argv[0].rpartition('/')[2]}"
        case HttpRunner():
            return "HTTP gateway"
        case ModelRunner(provider=provider):
            return provider.name
    return "Python function"


def _latest_levels(db: sqlite3.Connection, name: str) -> list[Level]:
    """How good or bad the latest planned runs were, the oldest first."""
    found = results_of_rows(db, overviews.latest_slots(db, name, STRIP_SLOTS))
    return [each.cause.level for each in found for _ in range(min(each.count, STRIP_SLOTS))][:STRIP_SLOTS][::-1]


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
            "shown": shown if form else [read_card(records, state) for state in shown],
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
    card = read_card(read_records(request.api, request.db), state)
    return Page("card.html", {"card": card, **CARD_HELPERS})


def slot_shapes(slots: Sequence[Level], width: int = STRIP_SLOTS) -> list[tuple[str, str]]:
    """The strip of some planned runs as SVG paths: for each level its colour, and one path with all planned runs that have it.

    The newest planned run is at the right edge of a strip of `width` planned runs.
    """
    paths: defaultdict[Level, list[str]] = defaultdict(list)
    for place, level in enumerate(slots, width - len(slots)):
        paths[level].append(f"M{place * SLOT_WIDTH} 24{SLOT_SHAPES[level]}")
    return [(colour_of_level(level), "".join(parts)) for level, parts in paths.items()]


def strip_text(card: AgentCard) -> str:
    """The strip in words: how many planned runs had each level."""
    counts = ", ".join(f"{count} {level}" for level, count in card.slot_counts)
    return f"The last {len(card.slots)} planned runs: {counts}" if card.slots else "No planned runs yet"


CARD_HELPERS = {"slot_shapes": slot_shapes, "strip_text": strip_text, "slot_width": SLOT_WIDTH, "strip_slots": STRIP_SLOTS}


def _search(states: Sequence[EntryHealth], settings: Settings, search: str) -> list[EntryHealth]:
    """The agents in whose name, state, model or channels every word of the search occurs."""
    words = search.casefold().split()
    return [state for state in states if all(word in _searched_text(state, settings) for word in words)]


def _searched_text(state: EntryHealth, settings: Settings) -> str:
    heartbeat = settings.heartbeats.get(state.name)
    more: Iterable[str] = () if heartbeat is None else (model_or_runner(heartbeat), *heartbeat.deliver)
    last = state.entry.last_run
    words = (last.result, last.why) if last else ()
    return " ".join((state.name, state.label, *filter(None, words), *more)).casefold()

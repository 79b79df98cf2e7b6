"""Shows what changed the config: who, when and what, the reloads that failed with their errors, and the active config."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from heartbeatd.verbs import Reload
from scheduler.engine.daemon_problems import CONFIG
from scheduler.model.config_changes import RecordedConfigEvent
from scheduler.model.problem import Subject
from scheduler.store import config_history, problems
from scheduler.store.database import parse_row_id
from scheduler.web.http_errors import not_found
from scheduler.web.page.rendering import Page
from scheduler.web.page.views import FormRequest, PageRequest, Redirect
from scheduler.web.perform import perform

LIST_PARAMETERS = ("before", "result")
PAGE_SIZE = 30  # changes on one page
MAX_ROWS = 500  # changed values and names on the page of one change; the page says how many are left out
RESULTS = {"all": "all", "applied": "applied", "refused": "refused", "started": "found at a start"}
BEGIN = datetime(1970, 1, 1, tzinfo=UTC)


def list_changes(request: PageRequest) -> Page:
    """All recorded changes, the newest first. A token for some agents sees only what concerns them."""
    chosen = request.choose("result", RESULTS, "all")
    before = request.before("change")
    found = [each for each in _visible_changes(request) if chosen in ("all", each.event.result)]
    found = [each for each in found if before is None or each.id < before]
    is_limited = request.caller.agents is not None
    in_force = None if is_limited else config_history.config_in_force(request.db)
    rejected = None if is_limited else problems.find_open_problem(request.db, Subject.of_daemon(), CONFIG)
    context = {
        "changes": found[:PAGE_SIZE],
        "older": found[PAGE_SIZE - 1].id if len(found) > PAGE_SIZE else None,
        "is_newest": before is None,
        "chosen": chosen,
        "results": RESULTS,
        "in_force": in_force,
        "overrides": [] if is_limited else config_history.overrides_in_force(request.db),
        "refused": rejected.found.text.splitlines() if rejected else (),
    }
    return Page("changes.html", context)


def show_change(request: PageRequest) -> Page:
    """One change with all its values. Raises HttpError if there is none, or if the user may not see it."""
    number = parse_row_id(request.path["id"])
    found = next((each for each in _visible_changes(request) if each.id == number), None)
    if found is None:
        raise not_found(f"change {request.path['id']}")
    diff = found.event.diff
    shown = diff.changes[:MAX_ROWS]
    names = [*(("added", name) for name in diff.added), *(("removed", name) for name in diff.removed)]
    context = {
        "change": found,
        "values": shown,
        "names": names[:MAX_ROWS],
        "more": len(diff.changes) - len(shown) + max(0, len(names) - MAX_ROWS),
    }
    return Page("change.html", context)


def _visible_changes(request: PageRequest) -> list[RecordedConfigEvent]:
    """The changes that the user may see, the newest first."""
    events = config_history.config_events(request.db, BEGIN, request.now + timedelta(days=1))
    visible = (each.of_agents(request.caller.agents) for each in reversed(events))
    return [each for each in visible if each is not None]


async def check_reload(form: FormRequest) -> Redirect:
    """Compare the config file with the active config, and say what a reload would change."""
    found = await perform(form.api, "reload_config", Reload(dry_run=True))
    if not (found.added or found.removed or found.changed):
        return Redirect("", "A reload would change nothing.")
    return Redirect("", f"A reload would change: {'; '.join(found.lines)}")

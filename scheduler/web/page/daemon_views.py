"""Shows what is not about one agent or job: problems, the outbox, costs, changes of the config, and the checks of `doctor`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from zoneinfo import ZoneInfo

from heartbeatd.operations import Concern
from heartbeatd.questions import GetStatus, ListProblems
from heartbeatd.verbs import Reload
from scheduler.engine.observed_problems import CONFIG
from scheduler.insight import installation_checks, report_data
from scheduler.insight.installation_checks import CheckResult
from scheduler.insight.report_data import TimeStepTotals
from scheduler.model.config_changes import RecordedConfigEvent, Undo
from scheduler.model.problem import Subject
from scheduler.model.timestamps import EPOCH
from scheduler.store import boots, config_history, database, outbox, problems
from scheduler.store.database import StoreError, parse_row_id
from scheduler.web.access import row_in_path
from scheduler.web.http_errors import bad_request, not_found
from scheduler.web.page.rendering import Page, local_time
from scheduler.web.page.views import FormRequest, PageRequest, Redirect
from scheduler.web.perform import ask, perform
from scheduler.web.queries import read_records

# The filters of messages: word in the URL, label, states. The states of messages that are on their way are one filter.
MESSAGE_FILTERS = {
    "undelivered": ("Not delivered", ("pending", "sending", "uncertain", "held", "dead")),
    "open": ("On their way", ("pending", "sending", "uncertain")),
    "held": ("Held", ("held",)),
    "dead": ("Given up", ("dead",)),
    "delivered": ("Delivered", ("delivered",)),
    "dropped": ("Dropped", ("dropped",)),
}
MESSAGES_PER_PAGE = 50

PERIODS = {"24h": timedelta(days=1), "7d": timedelta(days=7), "30d": timedelta(days=30), "90d": timedelta(days=90)}
PERIOD_LABELS = {"24h": "24 hours", "7d": "7 days", "30d": "30 days", "90d": "90 days"}
HOURS = timedelta(hours=2)  # a step that is shorter than this is an hour
MAX_ROWS = 100  # of each table of costs; the page says how many are left out

RESULTS = {
    "all": "all",
    "applied": "applied",
    "refused": "rejected",
    "started": "applied when the daemon started",
    "checklist": "checklist",
}
CHANGES_PER_PAGE = 30
MAX_VALUES = 500  # changed values and names on the page of one change; the page says how many are left out

LEVELS = ("bad", "warn", "ok")
MAX_FINDINGS = 200  # of doctor that are listed, because each agent may have some


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


def list_messages(request: PageRequest) -> Page:
    """The messages that the user may see, the newest first."""
    chosen = request.choose("state", MESSAGE_FILTERS, "undelivered")
    before = request.before("message")
    agents = request.caller.agents
    found = outbox.list_messages_of_states(request.db, MESSAGE_FILTERS[chosen][1], MESSAGES_PER_PAGE + 1, before, agents)
    counts = outbox.count_messages_by_state(request.db, agents)
    context = {
        "messages": found[:MESSAGES_PER_PAGE],
        "older": found[MESSAGES_PER_PAGE - 1].id if len(found) > MESSAGES_PER_PAGE else None,
        "is_newest": before is None,
        "chosen": chosen,
        "filters": [
            (word, label, sum(counts.get(state, 0) for state in states)) for word, (label, states) in MESSAGE_FILTERS.items()
        ],
        "movable": outbox.MOVABLE,
    }
    return Page("outbox.html", context)


def show_message(request: PageRequest) -> Page:
    """One message. Raises HttpError if there is none, or if the user may not see it."""
    number = row_in_path(request.api, Concern.MESSAGE)
    found = outbox.get_message_with_text(request.db, number)
    if found is None:
        raise not_found(f"message {number}")
    return Page("message.html", {"message": found, "movable": outbox.MOVABLE})


def show_costs(request: PageRequest) -> Page:
    """The report of a period up to now, of the entries that the user may see."""
    chosen = request.choose("for", PERIODS, "7d")
    zone, agents = request.settings.zone, request.caller.agents
    since = request.now - PERIODS[chosen]
    report = report_data.build_report(request.db, since, request.now, running=True, zone=zone, agents=agents)
    steps = [_prepare_step(step, zone) for step in report.by_time]
    context = {
        "report": report,
        "steps": steps,
        "step_noun": _step_noun(report.by_time),
        "chosen": chosen,
        "periods": PERIOD_LABELS,
        "most": MAX_ROWS,
        "is_comparable": report.previous.comparable,
        "budgets": ask(request.api, "get_status", GetStatus()).budgets,
    }
    return Page("costs.html", context)


def _prepare_step(step: TimeStepTotals, zone: ZoneInfo) -> dict[str, object]:
    """A step with its label, and with the heights of its bars in the chart of runs: each bar is drawn over the one before it."""
    succeeded = step.runs - step.failed
    more = {"label": label_step(step, zone), "succeeded": succeeded, "without_alert": max(0, succeeded - step.alerts)}
    return dict(step) | more


def label_step(step: TimeStepTotals, zone: ZoneInfo) -> str:
    """The local hour of a step, or the local date of a day or of the first day of a week."""
    since = step.since.astimezone(zone)
    return f"{since:%a %H:%M}" if step.until - step.since < HOURS else f"{since:%a %d %b}"


def _step_noun(steps: list[TimeStepTotals]) -> str:
    """What a row of the table by time is: an hour, a day or a week. The first and the last step may be cut."""
    longest = max((step.until - step.since for step in steps), default=timedelta())
    return "hour" if longest < HOURS else "day" if longest < timedelta(days=3) else "week"


def list_changes(request: PageRequest) -> Page:
    """All recorded changes, the newest first. A token for some agents sees only what concerns them."""
    chosen = request.choose("result", RESULTS, "all")
    before = request.before("change")
    of = request.query.get("of")
    found = [each for each in _visible_changes(request) if chosen in ("all", each.event.result)]
    found = [each for each in found if of is None or each.of_agents(frozenset((of,))) is not None]
    found = [each for each in found if before is None or each.id < before]
    is_limited = request.caller.agents is not None
    in_force = None if is_limited else config_history.config_in_force(request.db)
    rejected = None if is_limited else problems.find_problem(request.db, Subject.of_daemon(), CONFIG)
    context = {
        "changes": found[:CHANGES_PER_PAGE],
        "older": found[CHANGES_PER_PAGE - 1].id if len(found) > CHANGES_PER_PAGE else None,
        "is_newest": before is None,
        "chosen": chosen,
        "of": of,
        "results": RESULTS,
        "in_force": in_force,
        "overrides": [] if is_limited else config_history.overrides_in_force(request.db),
        "refused": rejected.found.text.splitlines() if rejected and rejected.over_at is None else (),
    }
    return Page("changes.html", context)


def show_change(request: PageRequest) -> Page:
    """One change with all its values. Raises HttpError if there is none, or if the user may not see it."""
    number = parse_row_id(request.path["id"])
    found = next((each for each in _visible_changes(request) if each.id == number), None)
    if found is None:
        raise not_found(f"change {request.path['id']}")
    diff = found.event.diff
    shown = diff.changes[:MAX_VALUES]
    names = [*(("added", name) for name in diff.added), *(("removed", name) for name in diff.removed)]
    context = {
        "change": found,
        "values": shown,
        "names": names[:MAX_VALUES],
        "results": RESULTS,
        "more": len(diff.changes) - len(shown) + max(0, len(names) - MAX_VALUES),
    }
    return Page("change.html", context)


def latest_edit(request: PageRequest) -> RecordedConfigEvent | None:
    """The latest edit of the last day that can be undone, of those that the user may see."""
    return next((each for each in _visible_changes(request, request.now - timedelta(days=1)) if each.event.undo), None)


def find_undo(request: PageRequest) -> Undo | None:
    """What the edit in the URL has replaced; None if the URL names none. Raises HttpError if it is not one of this agent."""
    if "undo" not in request.query:
        return None
    events = (each for each in _visible_changes(request) if str(each.id) == request.query["undo"])
    undo = next((each.event.undo for each in events), None)
    if undo is None or undo.agent != request.path["name"]:
        raise not_found(f"edit {request.query['undo']} of this agent that can be undone")
    return undo


def _visible_changes(request: PageRequest, since: datetime = EPOCH) -> list[RecordedConfigEvent]:
    """The changes that the user may see, the newest first."""
    events = config_history.config_events(request.db, since, request.now + timedelta(days=1))
    visible = (each.of_agents(request.caller.agents) for each in reversed(events))
    return [each for each in visible if each is not None]


async def check_reload(form: FormRequest) -> Redirect:
    """Compare the config file with the active config, and say what a reload would change."""
    found = await perform(form.api, "reload_config", Reload(dry_run=True))
    if not (found.added or found.removed or found.changed):
        return Redirect("", "A reload would change nothing.")
    return Redirect("", f"A reload would change: {'; '.join(found.lines)}")


def show_doctor(request: PageRequest) -> Page:
    """The findings, the worst first. With `database=check` the whole database file is read. Raises HttpError."""
    thorough = "database" in request.query
    if thorough and request.query["database"] != "check":
        raise bad_request("database: write check")
    findings = sorted(_check_everything(request, thorough=thorough), key=lambda each: LEVELS.index(each.level))
    counts = {level: sum(each.level == level for each in findings) for level in LEVELS}
    context = {
        "findings": findings[:MAX_FINDINGS],
        "counts": counts,
        "more": len(findings) - MAX_FINDINGS,
        "is_thorough": thorough,
        "has_file": request.api.app_state.server is None,
    }
    return Page("doctor.html", context)


def _check_everything(request: PageRequest, *, thorough: bool) -> Iterator[CheckResult]:
    """The config is read with the environment of the daemon. `crontab -l` is not run: a page must not start programs."""
    state = request.api.app_state
    path, zone = state.database_path, request.settings.zone

    format_time = partial(local_time, zone=zone)
    yield from installation_checks.check_installation()
    yield from installation_checks.check_config(request.settings.path, os.environ, request.now)
    if state.health.queue is not None:
        yield installation_checks.check_queue(state.health.queue)
    yield from installation_checks.check_folder(path.parent)
    if thorough and state.server is None:
        try:
            database.check_database(path)
        except StoreError as error:
            yield CheckResult("bad", "database", str(error))
        else:
            yield CheckResult("ok", "database", f"{path} is intact")
    yield from installation_checks.check_records(request.db, request.now, format_time, zone.key)
    if path.exists():
        yield installation_checks.check_disk(path)
    boot = boots.latest_boot(request.db)
    since = f" since {format_time(boot.started_at)}" if boot else ""
    yield CheckResult("ok", "daemon", f"running{since}, pid {os.getpid()}")

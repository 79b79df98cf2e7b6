"""Shows all cron jobs as a list, and one job: its schedule, its next runs, and its last runs with their output."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from heartbeatd.answers import ConfigValue, EntryStatus
from heartbeatd.questions import GetEntryConfig, ListJobs
from scheduler.config.file.diagnostics import ConfigError
from scheduler.insight import explanation, forecast, health, schedule_texts, status_data
from scheduler.insight.health import Group
from scheduler.model import entry_schedule
from scheduler.model.outcome import Kind
from scheduler.store import entries, run_history
from scheduler.store.run_history import RunFilter
from scheduler.web.http_errors import HttpError, not_found
from scheduler.web.page.rendering import Page
from scheduler.web.page.views import PageRequest
from scheduler.web.perform import ask
from scheduler.web.queries import read_records
from scheduler.work import plan as plans

PAGE_SIZE = 100  # jobs on one page
RUNS_SHOWN = 20
NEXT_SHOWN = 10
FILTERS = {"all": "all", "problems": "with problems", "paused": "paused or muted", "done": "done or disabled"}


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job in the list. `entry` is its status. `has_problem`: as for the cards of agents."""

    entry: EntryStatus
    schedule: str
    has_problem: bool

    def is_in(self, chosen: str) -> bool:
        """Whether one of `FILTERS` shows it."""
        if chosen == "problems":
            return self.has_problem
        if chosen == "paused":
            return self.entry.state == "paused" or self.entry.muted is not None
        return chosen == "all" or self.entry.state in ("done", "disabled")


def list_jobs(request: PageRequest) -> Page:
    """Every job that the user may see, those with problems first."""
    chosen, wanted = request.choose("show", FILTERS, "all"), request.query.get("q", "")
    schedules = entries.states_and_schedules(request.db)
    found = [
        JobRow(
            each.entry, _describe_schedule(request, each.name, schedules[Kind.CRON, each.name][1]), Group.PROBLEMS in each.groups
        )
        for each in health.read_states(ask(request.api, "list_jobs", ListJobs()).cron)
    ]
    matching = [row for row in found if wanted.casefold() in row.entry.name.casefold() and row.is_in(chosen)]
    matching.sort(key=lambda row: (not row.has_problem, row.entry.name))
    rows, numbers = request.numbered_page(matching, PAGE_SIZE)
    context = {"rows": rows, "total": len(found), "matching": len(matching), **numbers}
    return Page("jobs.html", {"chosen": chosen, "filters": FILTERS, "wanted": wanted, **context})


def show_job(request: PageRequest) -> Page:
    """One job. Raises HttpError if there is none, or if the user may not see it."""
    name = request.path["name"]
    found = status_data.read_entries(request.db, request.now, request.settings.zone, Kind.CRON, name)
    explained = explanation.find_entry(read_records(request.api, request.db), (Kind.CRON, name))
    if not found or explained is None:
        raise not_found(f"job {name!r}")
    row = explained.row
    seen = forecast.forecast_entries(request.db, plans.make_plan(request.settings), request.now)
    foreseen = next((each for each in seen if (each.course.kind, each.course.name) == (Kind.CRON, name)), None)
    before = request.before("run")
    runs = run_history.list_runs(request.db, RunFilter(Kind.CRON, name), RUNS_SHOWN + 1, after=before)
    job = request.settings.jobs.get(name)
    zone = foreseen.course.zone if foreseen else entry_schedule.schedule_zone(row.schedule_text) or request.settings.zone
    context = {
        "entry": found[0],
        "explained": explanation.explain_now(explained),
        "job": job,
        "schedule": _describe_schedule(request, name, row.schedule_text),
        "job_zone": zone,
        "next_runs": list(islice(foreseen.times(request.now, request.now + forecast.MAX_SPAN), NEXT_SHOWN)) if foreseen else [],
        "runs": runs[:RUNS_SHOWN],
        "older": runs[RUNS_SHOWN - 1].id if len(runs) > RUNS_SHOWN else None,
        "is_latest": before is None,
        "config": _effective_config(request),
    }
    return Page("job.html", context)


def _describe_schedule(request: PageRequest, name: str, text: str) -> str:
    """The schedule of a job, as `explain` names it. A job without one starts with the daemon, or is only run by hand."""
    job = request.settings.jobs.get(name)
    if job is not None and job.reboot:
        return "when the daemon starts"
    parts = entry_schedule.schedule_parts(text)
    zone = f" ({parts['zone']})" if "zone" in parts else ""
    return schedule_texts.parts_text(parts) + zone + (", not on all days (calendars)" if parts.get("days") else "")


def _effective_config(request: PageRequest) -> list[ConfigValue] | None:
    """The values of the job in the active config, without secrets, as the API returns them; None if they were not requested.

    The whole config is read for them. If the file has errors, there are no values.
    """
    if "config" not in request.query or request.path["name"] not in request.settings.jobs:
        return None
    try:
        return ask(request.api, "get_job_config", GetEntryConfig()).values
    except (ConfigError, HttpError):
        return []

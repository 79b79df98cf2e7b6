"""Shows the figures of `heartbeatd report`: the costs by day, by agent and job, by model, and by what started the runs."""

from __future__ import annotations

from datetime import timedelta
from zoneinfo import ZoneInfo

from heartbeatd.answers import TimeStepTotals
from scheduler.insight import report_data
from scheduler.web.page.rendering import Page
from scheduler.web.page.views import PageRequest

PARAMETERS = ("for",)
PERIODS = {"24h": timedelta(days=1), "7d": timedelta(days=7), "30d": timedelta(days=30), "90d": timedelta(days=90)}
PERIOD_LABELS = {"24h": "24 hours", "7d": "7 days", "30d": "30 days", "90d": "90 days"}
HOURS = timedelta(hours=2)  # a step that is shorter than this is an hour
MAX_ROWS = 100  # of each table; the page says how many are left out


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

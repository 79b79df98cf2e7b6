"""Shows when everything will run in the next 48 hours: a picture with one line for each agent and job, and a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from heartbeatd.answers import ClockChange, PlannedDay, PlannedEntry
from scheduler.insight import forecast
from scheduler.insight.forecast import EntryForecast
from scheduler.web.access import cut
from scheduler.web.page.rendering import Page
from scheduler.web.page.time_axis import TimeAxis
from scheduler.web.page.views import PageRequest
from scheduler.work import plan as plans

SPAN = timedelta(hours=48)
PAGE_SIZE = 60  # lines of the picture
HOURS_PER_LABEL = 6
SHARED_MARK = timedelta(hours=1)  # runs that are not farther apart share one mark
MAX_SINGLE_RUNS = 1000  # of one entry; more are drawn as one mark for each day
KINDS = {"all": "agents and jobs", "agent": "agents", "cron": "jobs"}


@dataclass(frozen=True, slots=True)
class Mark:
    """A part of a line of the picture, in percent of its width. A single run has a width of 0."""

    x: float
    width: float


@dataclass(frozen=True, slots=True)
class DrawnChange:
    """A clock change, and its place on the axis in percent."""

    change: ClockChange
    x: float

    @property
    def local(self) -> datetime:
        """Its time in the zone whose clock changes."""
        return self.change.at.astimezone(ZoneInfo(self.change.zone))


@dataclass(frozen=True, slots=True)
class DayRuns:
    """The runs of one entry on one local day."""

    day: str
    times: str
    count: int


@dataclass(frozen=True, slots=True)
class PlanLine:
    """One entry: its marks in the picture, the same as text, and its runs by day for the table."""

    entry: PlannedEntry
    label: str
    note: str
    marks: list[Mark]
    days: list[DayRuns]

    @property
    def description(self) -> str:
        """What the marks show, as text."""
        return "; ".join(f"{each.day}: {each.times}" for each in self.days) or self.note


def show_plan(request: PageRequest) -> Page:
    """The next 48 hours of the entries that the user may see."""
    kind, wanted = request.choose("kind", KINDS, "all"), request.query.get("q", "")
    seen = [
        each
        for each in forecast.forecast_entries(request.db, plans.make_plan(request.settings), request.now)
        if request.caller.may_access(each.course.kind, each.course.name)
        and kind in ("all", each.course.kind.word)
        and wanted.casefold() in each.course.name.casefold()
    ]
    begin, end = request.now.replace(second=0, microsecond=0), request.now + SPAN
    shown, numbers = request.numbered_page(seen, PAGE_SIZE)
    data = cut(forecast.forecast_runs(shown, request.now, end), request.caller)
    axis = TimeAxis(begin, begin + SPAN, request.settings.zone)
    context = {
        "lines": [_make_line(each, entry, axis, end) for each, entry in zip(shown, data.entries, strict=True)],
        "labels": list(axis.labels(HOURS_PER_LABEL)),
        "changes": [DrawnChange(each, axis.place(each.at)) for each in data.clock_changes],
        "begin": begin,
        "end": end,
        "total_runs": sum(each.total for each in data.entries),
        "matching": len(seen),
        "kind": kind,
        "kinds": KINDS,
        "wanted": wanted,
    }
    return Page("plan.html", context | numbers)


def _make_line(foreseen: EntryForecast, entry: PlannedEntry, axis: TimeAxis, end: datetime) -> PlanLine:
    return PlanLine(
        entry,
        label=foreseen.course.kind.label_of(foreseen.course.name),
        note="" if entry.total else forecast.STATES_WITHOUT_RUNS.get(entry.state, entry.state),
        marks=list(_draw_runs(foreseen, entry.total, axis, end)),
        days=[_day_runs(day, foreseen.course.zone) for day in entry.days],
    )


def _day_runs(day: PlannedDay, zone: ZoneInfo) -> DayRuns:
    first, last = day.first.astimezone(zone), day.last.astimezone(zone)
    firings = [each.astimezone(zone) for each in day.firings or ()]
    each_time = ", ".join(f"{each:%H:%M}" for each in firings)
    times = each_time or f"{day.count:,} from {first:%H:%M} to {last:%H:%M}"
    return DayRuns(f"{first:%a %d %b}", times, day.count)


def _draw_runs(foreseen: EntryForecast, total: int, axis: TimeAxis, end: datetime) -> Iterator[Mark]:
    """The marks of an entry, in order. Runs that are close to each other share one."""
    if not total:
        return
    if total > MAX_SINGLE_RUNS:
        for day in foreseen.days(axis.begin, end):
            yield Mark(axis.place(day.first), axis.width(day.first, day.latest))
        return
    first = last = None
    for instant in foreseen.times(axis.begin, end):
        if first is not None and last is not None and instant - last > SHARED_MARK:
            yield Mark(axis.place(first), axis.width(first, last))
            first = None
        first, last = first or instant, instant
    if first is not None and last is not None:
        yield Mark(axis.place(first), axis.width(first, last))

"""Shows one agent: its state, a day as a picture, its runs and waiting wakes, and the buttons that act on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from functools import partial

from starlette.concurrency import run_in_threadpool

from heartbeatd.answers import CountedResult, ExplanationOn, RunRecord
from heartbeatd.operations import Endpoint
from heartbeatd.questions import GetRun, ListRuns
from scheduler.engine.tick_items import Refused
from scheduler.insight import explanation, health, problem_list, slot_history, status_data
from scheduler.insight.periods import Period
from scheduler.insight.reason_texts import SlotCause
from scheduler.insight.records import ExplainedEntry
from scheduler.insight.slot_history import SlotGroup
from scheduler.model.levels import Level
from scheduler.model.local_days import parse_day
from scheduler.model.outcome import DeliveryState, Kind, Outcome
from scheduler.store import overviews, runs, wakes
from scheduler.web.api_request import check_permission
from scheduler.web.http_errors import HttpError, as_http_error, bad_request, not_found
from scheduler.web.page.rendering import Page, colour_of_level
from scheduler.web.page.time_axis import ONE_HOUR, Label, TimeAxis
from scheduler.web.page.views import FormRequest, Handle, PageRequest, Redirect, read_page
from scheduler.web.perform import ask
from scheduler.web.queries import read_records
from scheduler.work import plan as plans

MAX_RUNS = 50  # on one page, where equal ones share a line
MAX_ANSWER = 2000  # characters of the last answer
MAX_WAKES = 50
LABEL_HOURS = 3  # between two labels of the time axis, and its least length
SHORT_DAY = timedelta(hours=12)  # an axis of at most this length has a label for each hour
MIN_WIDTH = 0.6  # percent of the axis; a mark of a single planned run stays visible
BASE_LINE = 48  # pixels from the top of the picture
# The height of the marks of each level in pixels, because some people cannot tell the colours apart.
MARK_HEIGHTS = {
    Level.GOOD: 18,
    Level.ALERT: 30,
    Level.WAITING: 22,
    Level.PLANNED: 8,
    Level.LOST: 26,
    Level.BAD: 36,
    Level.TO_COME: 4,
    Level.UNKNOWN: 12,
}


@dataclass(frozen=True, slots=True)
class DrawnMark:
    """A group of planned runs or runs in the picture: where it is in percent, and a text for a tooltip."""

    group: SlotGroup
    x: float
    width: float
    title: str


@dataclass(frozen=True, slots=True)
class DrawnDay:
    """The timeline of a day, the days before and after it, and what `explain --on` says about it."""

    day: date
    before: date
    after: date
    is_today: bool
    labels: tuple[Label, ...]
    marks: tuple[DrawnMark, ...]
    now_x: float | None
    explained: ExplanationOn

    @staticmethod
    def colour(counted: CountedResult) -> str:
        """The colour of a result of `explained`."""
        code = counted.why if counted.result == Outcome.SKIPPED else counted.result
        return colour_of_level(SlotCause(code or counted.result, counted.why).level)


@dataclass(frozen=True, slots=True)
class ShownRun:
    """A run record with its result in words, and the share of each part of its prompt."""

    data: RunRecord
    colour: str
    says: str
    took: timedelta | None
    prompt_parts: tuple[tuple[str, int, int], ...]

    @property
    def was_skipped(self) -> bool:
        return bool(self.data.result == Outcome.SKIPPED)

    @property
    def preview(self) -> str:
        """The first line of an alert or of an error; empty for an answer that says nothing."""
        text = self.data.error or ("" if self.data.result == Outcome.OK else self.data.text) or ""
        return str(text.strip().partition("\n")[0])

    @property
    def likeness(self) -> tuple[str, str | None] | None:
        """What equal runs have in common; None if the run is unlike all others. Only texts of errors count."""
        is_open, is_alert = self.data.state != "closed", self.data.result == Outcome.ALERT
        return None if is_open or is_alert or self.undelivered else (self.says, self.data.error)

    @property
    def undelivered(self) -> str:
        """What became of each of its messages that has not arrived."""
        targets = self.data.delivery.targets
        return "; ".join(each.says for each in targets if each.state != DeliveryState.DELIVERED)

    @property
    def is_open(self) -> bool:
        """Whether it can still be cancelled."""
        return bool(self.data.state != "closed")


@dataclass(frozen=True, slots=True)
class RefusedAction:
    """A button that did not work: its error, and what its form contained."""

    action: str = ""
    error: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    status: int = 200


NOTHING_REFUSED = RefusedAction()


def keep_refused(endpoint: Endpoint, send: Handle) -> Handle:
    """Sends a verb for an agent. If that is refused, the agent is shown with the error and with all that was sent."""

    async def handle(form: FormRequest) -> Page | Redirect:
        try:
            form.check()
            check_permission(form.api.caller, endpoint.may)
            return await send(form)
        except (HttpError, Refused) as error:
            refused = RefusedAction(endpoint.path.rpartition("/")[2], str(error), form.fields, as_http_error(error).status)
            show = partial(show_agent, refused=refused)
            return await run_in_threadpool(read_page, show, form.api, form.session, "")

    return handle


def show_agent(request: PageRequest, refused: RefusedAction = NOTHING_REFUSED) -> Page:
    """The whole agent, and the button that did not work."""
    name = request.path["name"]
    explained = find_agent(request)
    status = status_data.read_entries(request.db, request.now, explained.zone, Kind.HEARTBEAT, name)
    drawn = _draw_day(explained, request.query.get("on", "today"))
    due_at = explained.row.due_at
    until = None if drawn.is_today else drawn.explained.until
    shown, following = _read_runs(request, name, until)
    return Page(
        "agent.html",
        {
            "name": name,
            "agent_state": status[0] if status else None,
            "health": health.read_states(status)[0].label if status else explained.row.state,
            "answer": overviews.latest_answer(request.db, name, MAX_ANSWER),
            "zone": explained.zone,
            "explained": explanation.explain_now(explained),
            "problems": problem_list.choose_problems(
                problem_list.list_problems(request.db, request.now, also_over=False),
                explained.label,
                [explained.key],
                also_over=False,
            ),
            "short_time": explained.times.at,
            "due_at": due_at,
            "due_in": max(due_at - request.now, timedelta()) if due_at else None,
            "day": drawn,
            "base_line": BASE_LINE,
            "heights": MARK_HEIGHTS,
            "runs": shown,
            "following": following,
            "is_first_page": "cursor" not in request.query,
            "reminders": wakes.list_reminders(request.db, name),
            "wakes": wakes.list_waiting_wakes(request.db, Kind.HEARTBEAT, name, MAX_WAKES),
            "open_run": (open_run := runs.find_open_run(request.db, Kind.HEARTBEAT, name)) and open_run.id,
            "refused": refused,
            "has_config": name in request.settings.heartbeats,
        },
        refused.status,
    )


def find_agent(request: PageRequest) -> ExplainedEntry:
    """The agent of the path. Raises HttpError if there is none."""
    name = request.path["name"]
    found = explanation.find_entry(read_records(request.api, request.db), (Kind.HEARTBEAT, name))
    if found is None:
        raise not_found(f"agent {name!r}")
    return found


def _draw_day(explained: ExplainedEntry, text: str) -> DrawnDay:
    """The day that the URL names. Raises HttpError."""
    try:
        day = parse_day(text or "today", explained.now.astimezone(explained.zone))
        period = Period.of_day(day, explained.zone, explained.now)
        before, after = day - timedelta(days=1), day + timedelta(days=1)
    except (ValueError, OverflowError) as error:
        raise bad_request(f"on: {error}") from None
    is_today = period.begin <= explained.now < period.end
    marks = explained.timeline(period.begin, period.end)
    axis = _fit_axis(marks, TimeAxis(period.begin, period.end, explained.zone))
    is_short = axis.end - axis.begin <= SHORT_DAY
    return DrawnDay(
        day=day,
        before=before,
        after=after,
        is_today=is_today,
        labels=tuple(axis.labels(1 if is_short else LABEL_HOURS)),
        marks=tuple(
            _drawn_mark(axis, mark)
            for mark in marks
            if mark.first < axis.end and (mark.last > axis.begin or mark.first == axis.begin)
        ),
        now_x=axis.place(explained.now) if axis.begin <= explained.now <= axis.end else None,
        explained=explanation.explain_period(explained, period),
    )


def _fit_axis(marks: Sequence[SlotGroup], day: TimeAxis) -> TimeAxis:
    """The full hours from the first to the last run of a day that may start: active hours fill the whole picture."""
    drawn = [mark for mark in marks if mark.worst.level is not Level.PLANNED and (mark.slot_count or not mark.is_slot)]
    if not drawn:
        return day
    first, last = min(mark.first for mark in drawn), max(mark.last for mark in drawn)
    begin = first.replace(minute=0, second=0, microsecond=0)
    end = last.replace(minute=0, second=0, microsecond=0) + ONE_HOUR
    return replace(day, begin=max(day.begin, begin), end=min(day.end, max(end, begin + LABEL_HOURS * ONE_HOUR)))


def _drawn_mark(axis: TimeAxis, mark: SlotGroup) -> DrawnMark:
    at, until = (f"{instant.astimezone(axis.zone):%H:%M}" for instant in (mark.first, mark.last))
    times = at if mark.first == mark.last else f"{at} to {until}"
    many = f"{mark.slot_count} times, " if mark.slot_count > 1 else ""
    title = f"{times}: {many}{mark.worst.text}{'' if mark.is_slot else ', not planned'}"
    first = max(mark.first, axis.begin)
    return DrawnMark(mark, axis.place(first), max(axis.width(first, min(mark.last, axis.end)), MIN_WIDTH), title)


def _read_runs(
    request: PageRequest, name: str, until: datetime | None
) -> tuple[list[tuple[ShownRun, list[ShownRun]]], str | None]:
    """A page of runs, the newest first, and the cursor of the next page."""
    wanted = ListRuns(kind="agent", name=name, limit=MAX_RUNS, until=until, cursor=request.query.get("cursor"))
    found = ask(request.api, "list_runs", wanted)
    return fold_runs([shown_run(run) for run in found.runs]), found.next


def fold_runs(runs: Sequence[ShownRun]) -> list[tuple[ShownRun, list[ShownRun]]]:
    """The runs, the newest first, each with the equal ones before it: with the same result, and nothing else to say."""
    folded: list[tuple[ShownRun, list[ShownRun]]] = []
    for run in runs:
        if folded and run.likeness is not None and run.likeness == folded[-1][0].likeness:
            folded[-1][1].append(run)
        else:
            folded.append((run, []))
    return folded


def shown_run(run: RunRecord) -> ShownRun:
    """A run record of the API, to be shown."""
    cause = slot_history.cause_of_run(run.state, run.result, run.why, run.delivery.state)
    begin, end = run.started_at, run.finished_at
    whole = sum(part.tokens for part in run.prompt_parts)
    parts = tuple((part.name, part.tokens, round(100 * part.tokens / whole) if whole else 0) for part in run.prompt_parts)
    return ShownRun(run, colour_of_level(cause.level), cause.text, end - begin if begin and end else None, parts)


def show_run(request: PageRequest) -> Page:
    """One run of an agent or a job with all its texts."""
    run = ask(request.api, "get_run", GetRun())
    entry = plans.make_plan(request.settings).entries.get((Kind(run.kind), run.name))
    zone = entry.zone if entry else request.settings.zone
    return Page("run.html", {"run": shown_run(run), "name": run.name, "zone": zone})

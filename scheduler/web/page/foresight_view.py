"""Shows a month in advance, and prepares the replay of the last week for the form of an agent's config.

Both are played in a process of its own, one at a time, which ends when the browser leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from zoneinfo import ZoneInfo

import anyio

from scheduler.foresight import own_process
from scheduler.foresight.own_process import NotPlayed, Place
from scheduler.foresight.replay import Replay
from scheduler.foresight.shares import EXAMPLE_OF_SHARES
from scheduler.foresight.simulation import FigureRange, Simulation, count_text, usd_text
from scheduler.model.config_changes import StoredConfig
from scheduler.web.http_errors import HttpError
from scheduler.web.page.rendering import Page
from scheduler.web.page.time_axis import TimeAxis
from scheduler.web.page.views import FormRequest, PageRequest

SPANS = {"7": "7 days", "14": "14 days", "30": "30 days", "90": "90 days"}
USUAL = {"days": "30", "answers": EXAMPLE_OF_SHARES, "work": "1", "faults": "", "like_history": ""}
MAX_ROWS = 12  # agents, jobs and recipients that are shown; the command lists the others
REPLAYED_DAYS = 7
MAX_REPLAYED = 30  # changed runs that are listed
PATIENCE = 10.0  # seconds that a form waits while another config is played
BUSY = "another config is being played; try again in half a minute"
NO_FAULTS = "faults: your token is limited to some agents, and a fault concerns all of them"


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a chart: its figure with its range, and the same as text."""

    text: str
    figure: FigureRange


@dataclass(frozen=True, slots=True)
class Chart:
    """Bars from zero. `first` and `last` are below the ends of the axis, and `highest` between them.

    `scale` is the height of the figure 1, in percent.
    """

    title: str
    bars: list[Bar]
    scale: float
    first: str
    last: str
    highest: str


@dataclass(frozen=True, slots=True)
class Stretch:
    """A line with a bar from `x`, as wide as `width`, in percent; the entry, and the same as text."""

    kind: str
    name: str
    x: float
    width: float
    text: str


def show_form(_: PageRequest) -> Page:
    """The form. Nothing is played before it is sent."""
    return _page(USUAL)


async def simulate_month(form: FormRequest) -> Page:
    """Plays the active config with the assumptions of the form. The figures of a limited token are those of its agents."""
    sent = {key: form.fields.get(key, "") for key in USUAL}
    try:
        form.check()
        if sent["days"] not in SPANS:
            raise NotPlayed(f"days: write {', '.join(SPANS)}")
        if sent["faults"] and form.api.caller.agents is not None:
            raise HttpError(403, "forbidden", NO_FAULTS)
        wish = {
            "days": int(sent["days"]),
            "answers": sent["answers"] or None,
            "work": sent["work"] or None,
            "faults": [sent["faults"]] if sent["faults"] else [],
            "like_history": bool(sent["like_history"]),
        }
        found = Simulation.model_validate_json(await _play(form, {"simulate": wish}))
    except HttpError as error:
        return _page(sent, problem=error.message, status=error.status)
    except NotPlayed as error:
        return _page(sent, problem=str(error), status=409)
    return _page(sent, found)


async def replay_week(form: FormRequest, config: StoredConfig) -> Replay:
    """The last week with another config, as far as the user may see it. Raises NotPlayed."""
    return Replay.model_validate_json(await _play(form, own_process.replay_task(REPLAYED_DAYS, config)))


async def _play(form: FormRequest, task: Mapping[str, object]) -> str:
    state = form.api.app_state
    try:
        with anyio.fail_after(PATIENCE):
            await state.play_limiter.acquire()
    except TimeoutError:
        raise NotPlayed(BUSY) from None
    try:
        place = Place(state.database_path, state.server, state.clock(), form.api.caller.agents)
        return await own_process.play(place, task, form.gone)
    finally:
        state.play_limiter.release()


def _page(sent: dict[str, str], found: Simulation | None = None, problem: str = "", status: int = 200) -> Page:
    context: dict[str, object] = {"sent": sent, "spans": SPANS, "played": found, "problem": problem, "most": MAX_ROWS}
    if found is not None:
        zone, span = ZoneInfo(found.zone), found.until - found.from_
        axis = TimeAxis(found.from_, found.until, zone)
        context |= {
            "span": span,
            "is_short": span < timedelta(days=int(sent["days"])),
            "all_seeds": len(own_process.SEEDS),
            "seconds": int(own_process.SECONDS),
            "by_day": _days(found),
            "recipients": _recipients(found),
            "early": [
                Stretch(
                    each.kind, each.name, 0.0, min(100.0, 100 * each.days.mean / max(1, len(found.days))),
                    f"{count_text(each.days)} of {len(found.days)} days, at {each.earliest} at the earliest",
                )
                for each in found.early_budget_ends
            ],
            "silences": list(_silences(found, axis, zone)),
            "figure": count_text,
            "figure_usd": usd_text,
        }  # fmt: skip
    return Page("simulate.html", context, status)


def _days(found: Simulation) -> Chart:
    """The cost of each day, or its calls if no price is known."""
    is_cost = found.usd is not None
    figures = [each.usd if each.usd and is_cost else each.calls for each in found.days]
    show: Callable[[FigureRange], str] = usd_text if is_cost else count_text
    texts = [f"{each.day:%a %d %b}" for each in found.days]
    return _chart("Cost by day" if is_cost else "Calls by day", figures, texts, show)


def _recipients(found: Simulation) -> list[Chart]:
    """The messages of each recipient by hour of the day, all with the same scale."""
    shown = sorted(found.recipients, key=lambda each: -each.messages.mean)[:MAX_ROWS]
    hours = [f"{hour:02}:00" for hour in range(24)]
    most = max((hour for each in shown for hour in each.by_hour), default=0.0)
    return [
        _chart(
            f"{each.recipient}: {count_text(each.messages)}",
            [FigureRange(mean=hour, low=hour, high=hour) for hour in each.by_hour],
            hours,
            count_text,
            most,
        )
        for each in shown
    ]


def _chart(
    title: str,
    figures: Sequence[FigureRange],
    labels: Sequence[str],
    show: Callable[[FigureRange], str],
    most: float | None = None,
) -> Chart:
    """A chart whose highest figure is `most`, or that of the figures."""
    top = max((each.high for each in figures), default=0.0)
    bars = [Bar(f"{label}: {show(each)}", each) for label, each in zip(labels, figures, strict=True)]
    highest = show(FigureRange(mean=top, low=top, high=top))
    return Chart(title, bars, 100 / (most or top or 1.0), labels[0] if labels else "", labels[-1] if labels else "", highest)


def _silences(found: Simulation, axis: TimeAxis, zone: ZoneInfo) -> Iterable[Stretch]:
    for each in found.longest_silences:
        begin, end = each.since.astimezone(zone), each.until.astimezone(zone)
        why = f", because of {each.because}" if each.because else ""
        text = f"{begin:%a %d %b %H:%M} to {end:%a %d %b %H:%M}{why}"
        yield Stretch(each.kind, each.name, axis.place(each.since), axis.width(each.since, each.until), text)

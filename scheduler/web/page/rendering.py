"""Renders the templates of the status page, with its filters, forms of verbs, colours, security headers and static files.

Jinja2 is imported at the first request, so that a daemon saves this cost if its page is never opened.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, get_args
from zoneinfo import ZoneInfo

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from heartbeat.findings import readable_answer
from heartbeat.words import escape_control, format_count, format_duration, format_elapsed, format_usd
from heartbeatd.answers import LastRun, RunRecord, UsedLimit
from heartbeatd.operations import Concern, Endpoint, choices_of, keys_of
from heartbeatd.verbs import VERB_ENDPOINTS, Verb
from scheduler.insight.reason_texts import breaker_text, ending_text
from scheduler.insight.slot_history import cause_of_run
from scheduler.model.levels import Level, level_of, level_of_run
from scheduler.store.outbox import hold_text
from scheduler.web.http_errors import not_found

if TYPE_CHECKING:
    from jinja2 import Environment

FOLDER = Path(__file__).parent
STATIC_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self';"
        " base-uri 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "same-origin",  # with no-referrer, a browser would send forms without their origin
}
STATIC_HEADERS = {"Cache-Control": "public, max-age=31536000, immutable"}  # the URL contains a hash of the file
LONGEST_TEXT = 20_000  # characters of one text on a page
INPUT_KINDS = {bool: "checkbox", int: "number", timedelta: "duration", datetime: "time"}  # of inputs; any other value is a text

# The class in style.css of each level, as on the dashboards (docs/dashboards.md).
# good: green. bad: red. late: orange, a warning. wait: yellow. note: blue, an alert. off: grey, as planned.
COLOURS_OF_LEVELS: dict[Level | None, str] = {
    Level.GOOD: "good",
    Level.ALERT: "note",
    Level.WAITING: "wait",
    Level.LOST: "late",
    Level.BAD: "bad",
}


@dataclass(frozen=True, slots=True)
class Page:
    """What a view shows: a template and the values in it."""

    template: str
    context: Mapping[str, object]
    status: int = 200


def render_page(page: Page, shared: Mapping[str, object]) -> Response:
    """The page as an answer. `shared` are the values that all templates have."""
    text = _environment().get_template(page.template).render({**shared, **page.context})
    return HTMLResponse(text, page.status, PAGE_HEADERS)


async def send_static_file(request: Request) -> Response:
    """A static file. Raises HttpError for an unknown name or a hash of another version."""
    name = request.path_params["name"]
    found = _static_files().get(name)
    if found is None or found[0] != request.path_params["digest"]:
        raise not_found("file")
    return Response(found[1], media_type=STATIC_TYPES[Path(name).suffix], headers=STATIC_HEADERS)


@cache
def _static_files() -> dict[str, tuple[str, bytes]]:
    """Each static file by name: a hash of its content, and the content."""
    files = (path for path in sorted((FOLDER / "static").iterdir()) if path.suffix in STATIC_TYPES)
    return {path.name: (hashlib.sha256(content := path.read_bytes()).hexdigest()[:16], content) for path in files}


def static_url(name: str) -> str:
    """The URL of a static file, which changes with its content."""
    return f"/page/static/{_static_files()[name][0]}/{name}"


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters |= {
        "visible": visible_text,
        "readable": readable_answer,
        "code_parts": code_parts,
        "local": local_time,
        "day_time": day_time,
        "count_of": format_count,
        "duration": format_span,
        "usd": format_usd,
        "utc": utc_text,
        "until": until_text,
        "ago": ago_text,
        "share": share_of_limit,
        "took": format_elapsed,
        "hold": hold_text,
        "breaker": breaker_text,
        "ending": ending_text,
        "cause": cause_text,
        "colour": colour_of_word,
        "run_colour": colour_of_run,
        "level_colour": colour_of_level,
    }
    environment.globals |= {"static_url": static_url, "forms_of": forms_of, "quick_ends": quick_ends}
    return environment


def visible_text(text: str | None, most: int = LONGEST_TEXT) -> str:
    """A text of an agent with its control and direction characters made visible, cut after `most` characters."""
    if text is None:
        return ""
    return escape_control(text[:most]) + (" …" if len(text) > most else "")


def code_parts(text: str) -> list[tuple[bool, str]]:
    """The parts of a text, each with whether it is code: it was between two backticks. A backtick without a second one stays."""
    return [(number % 2 == 1, part) for number, part in enumerate(re.split(r"`([^`]+)`", text)) if part]


def local_time(moment: datetime | None, zone: ZoneInfo) -> str:
    """A time with its date and the offset of its zone; a dash for None. Beside it the page names the zone."""
    return "–" if moment is None else f"{moment.astimezone(zone):%a %d %b %Y %H:%M:%S}"


def day_time(moment: datetime | None, zone: ZoneInfo) -> str:
    """The hour and minute of a time; a dash for None."""
    return "–" if moment is None else f"{moment.astimezone(zone):%H:%M}"


def utc_text(moment: datetime) -> str:
    """A time for programs, as in the attribute `datetime`."""
    return f"{moment.astimezone(ZoneInfo('UTC')):%Y-%m-%dT%H:%M:%SZ}"


def format_span(span: timedelta) -> str:
    """A duration in its two largest units, but seconds only below a minute: 45s, 12m, 3h20m, 2d4h. The rest is cut."""
    steps = ((timedelta(days=1), timedelta(hours=1)), (timedelta(minutes=1), timedelta(minutes=1)))
    step = next((step for least, step in steps if abs(span) >= least), timedelta(seconds=1))
    return format_duration(abs(span) // step * step)


def until_text(moment: datetime, now: datetime) -> str:
    """How long it is until a time, for browsers without JavaScript: in 12m."""
    left = moment - now
    return f"in {format_span(left)}" if left > timedelta() else "now"


def ago_text(moment: datetime, now: datetime) -> str:
    """How long ago a time was: 12m ago."""
    return f"{format_span(now - moment)} ago"


def share_of_limit(limit: UsedLimit) -> float:
    """The used part of a limit, from 0 to 1."""
    return round(min(1.0, limit.used / limit.of), 3) if limit.of else 1.0


def cause_text(run: LastRun) -> str:
    """The result of a run and why, in words."""
    return cause_of_run(run.state, run.result, run.why, run.delivery).text


def quick_ends(now: datetime, zone: ZoneInfo) -> list[tuple[str, str, str]]:
    """Usual ends of a pause or a mute, for one click: the key of the verb, its value, and a label."""
    local = now.astimezone(zone)
    hours = (local.replace(hour=hour, minute=0, second=0, microsecond=0) for hour in (8, 12))
    ends = sorted(each if each > local else each + timedelta(days=1) for each in hours)
    return [("for", "2h", "for 2h"), *(("until", utc_text(each), f"until {each:%H:%M}") for each in ends)]


# --- colours ----------------------------------------------------------------------------------------------------------


def colour_of_level(level: Level | None) -> str:
    """The class of a level; `off` (grey) for what is planned or unknown, and for None."""
    return COLOURS_OF_LEVELS.get(level, "off")


def colour_of_word(word: str | None) -> str:
    """The class of a word; `off` (grey) for any other word."""
    return colour_of_level(level_of(word))


def colour_of_run(run: RunRecord | LastRun) -> str:
    """The class of a run as the API returns it: of its result, of `why` if it was skipped or cancelled, or of its state."""
    return colour_of_level(level_of_run(run.result or run.state, run.why))


# --- forms that send a verb -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Input:
    """An input of a form. `kind` is checkbox, number, duration, time or text. If it has `words`, one of them is chosen."""

    key: str
    label: str
    kind: str
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class VerbForm:
    """The form of a verb for one kind of subject."""

    endpoint: Endpoint
    verb: type[Verb]

    @property
    def word(self) -> str:
        """The last word of the path."""
        return self.endpoint.path.rpartition("/")[2]

    @property
    def inputs(self) -> list[Input]:
        titled = ((key, field) for key, field in keys_of(self.verb).items() if field.title)
        return [Input(key, str(field.title).rstrip("."), _kind_of(field.annotation), choices_of(field)) for key, field in titled]


def _kind_of(annotation: object) -> str:
    return next((INPUT_KINDS[each] for each in (annotation, *get_args(annotation)) if each in INPUT_KINDS), "text")


@cache
def forms_of(subject: str) -> tuple[VerbForm, ...]:
    """The forms for an agent, a job, a run, a message or a problem, in the order of the verbs."""
    concern = Concern[subject.upper()]
    listed = ((each, each.operation) for each in VERB_ENDPOINTS.values() if each.concern is concern)
    return tuple(VerbForm(each, verb) for each, verb in listed if issubclass(verb, Verb) and verb.button)

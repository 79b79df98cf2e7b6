"""Formats tables, times, amounts and names for the terminal, and colours words by their level.

Errors are red, warnings yellow, good results green, and planned skips dim. `click.echo` removes the colours in pipes and files,
with `NO_COLOR`, and with `--color never`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Generic, TypeVar
from zoneinfo import ZoneInfo

import click
from rich.cells import cell_len, set_cell_size

from heartbeat import words
from heartbeat.findings import readable_answer
from heartbeat.words import abbreviate_duration, escape_control, format_count, format_usd, one_line, round_usd_up
from scheduler.model.levels import Level
from scheduler.model.local_days import is_repeated, local_text, offset_text
from scheduler.model.outcome import Kind, Suppression
from scheduler.model.problem import Subject

if TYPE_CHECKING:
    from heartbeatd.answers import EntryName, QueuedMessage, ResponseBody, RunRecord
    from scheduler.config.file.diagnostics import ConfigError
    from scheduler.system.state_lock import LockOwner

Row = TypeVar("Row")
RowOf = TypeVar("RowOf", contravariant=True)
Answer = TypeVar("Answer", bound="ResponseBody")

LINE_WIDTH = 80
MIN_TABLE_WIDTH = 40
QUOTED_COMMAND = re.compile("`[^`]{1,60}`")
COUNT_UNITS = ((1_000_000_000, "g"), (1_000_000, "m"), (1_000, "k"))
UNLIMITED_WIDTH = 1_000_000  # columns: in a pipe or a file nothing is cut
NO_BREAK = "\N{NO-BREAK SPACE}"  # not printable, so no text that is wrapped contains it
SECOND_HALF = "\0"  # likewise; added to each character of two columns, because textwrap counts characters
COLOURS = {Level.BAD: "red", Level.LOST: "yellow", Level.ALERT: "yellow", Level.GOOD: "green"}


def style_of(level: Level | None) -> str:
    """The style of a level, as rich names it; empty for most levels."""
    return "dim" if level is Level.PLANNED else COLOURS.get(level, "") if level else ""


def paint(text: str, level: Level | None) -> str:
    """The text in the colour of its level; as it is without a level."""
    style = style_of(level)
    if not style or not text:
        return text
    return click.style(text, dim=True) if style == "dim" else click.style(text, fg=style)


def paint_label(lines: Iterable[str], label: str, level: Level | None) -> list[str]:
    """The lines, with a label at the beginning of the first line in the colour of a level."""
    lines = list(lines)
    if lines and level and lines[0].startswith(label):
        lines[0] = paint(label, level) + lines[0][len(label) :]
    return lines


def format_table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    numbers: Collection[int] = (),
    levels: Sequence[Mapping[int, Level | None]] = (),
) -> str:
    """A table with a heading. The widest columns are cut until a line fits COLUMNS or the terminal.

    In a pipe or a file nothing is cut. The columns with an index in `numbers` are aligned to the right. `levels` has one map
    for each row: the columns that have the colour of a level.
    """
    from rich.console import Console  # a command without a table saves these imports
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for place, word in enumerate(head):
        table.add_column(Text(word), justify="right" if place in numbers else "left")
    for row, meant in zip_longest(rows, levels):
        styles = [(meant or {}).get(place) for place in range(len(head))]
        cells = [(one_line(cell), style_of(level)) for cell, level in zip(row, styles, strict=True)]
        table.add_row(*(Text.assemble(cell, no_wrap=True, overflow="ellipsis") for cell in cells))
    console = Console(width=max(MIN_TABLE_WIDTH, _terminal_width()), color_system="standard", no_color=False)
    with console.capture() as printed:
        console.print(table)
    return "\n".join(map(str.rstrip, printed.get().splitlines()))


@dataclass(frozen=True)
class Column(Generic[RowOf]):
    """A column of a list: its heading, and what it shows of an item. A number is aligned to the right.

    `level` chooses the colour of a cell; for None, the item as a whole chooses it.
    """

    head: str
    cell: Callable[[RowOf], str]
    is_number: bool = False
    level: Callable[[RowOf], Level | None] = lambda _: None


def format_list(
    items: Sequence[Row],
    columns: Sequence[Column[Row]],
    details: Callable[[Row], Iterable[str]] = lambda _: (),
    level: Callable[[Row], Level | None] = lambda _: None,
) -> str:
    """A table of items, with the beginnings of its `details` below each."""
    title, *lines = format_table(
        [column.head for column in columns],
        [[column.cell(item) for column in columns] for item in items],
        numbers=[place for place, column in enumerate(columns) if column.is_number],
        levels=[dict(enumerate(column.level(item) or level(item) for column in columns)) for item in items],
    ).splitlines()
    for place, item in enumerate(items):
        lines[place] = "\n".join((lines[place], *(f"    {shorten_to_line(text, LINE_WIDTH - 4)}" for text in details(item))))
    return "\n".join((title, *lines))


def print_answer(data: object, form: str, lines: Iterable[str]) -> None:
    """Print data as JSON, or these lines."""
    click.echo(json.dumps(data, indent=2) if form == "json" else "\n".join(lines))


def print_warnings(warnings: Iterable[object]) -> None:
    """Print warnings on standard error."""
    for warning in warnings:
        click.echo(f"{paint('warning:', Level.LOST)} {warning}", err=True)


def print_config_errors(error: ConfigError, form: str) -> int:
    """Print the errors and warnings of a rejected config, as lines or as JSON. Returns the exit code."""
    if form == "json":
        errors, warnings = ([each.as_json() for each in notes] for notes in (error.errors, error.warnings))
        click.echo(json.dumps({"ok": False, "errors": errors, "warnings": warnings}))
        return 2
    print_warnings(error.warnings)
    for complaint in error.errors:
        place, colon, wrong = str(complaint).partition(": ")
        click.echo(f"{paint(place, Level.BAD)}{colon}{wrong}", err=True)
    return 2


def print_list(
    items: list[Answer],
    form: str,
    columns: Sequence[Column[Answer]],
    *,
    empty: str,
    more: int = 0,
    details: Callable[[Answer], Iterable[str]] = lambda _: (),
    level: Callable[[Answer], Level | None] = lambda _: None,
) -> None:
    """Print answers as JSON, or as a table with the zone of its times. `more` is the number of those that --limit leaves out."""
    if form == "json":
        click.echo(json.dumps([each.as_data() for each in items], indent=2))
    elif items:
        click.echo(format_list(items, columns, details, level))
        click.echo(f"times in {zone_name()}" + (f"; {more:,} more with --limit" if more else ""))
    else:
        click.echo(empty)


@contextmanager
def own_screen() -> Iterator[Callable[[str], None]]:
    """A function that shows a text on another screen of the terminal, until the block ends. The end of a long text is counted."""
    from rich.console import Console  # only for this view
    from rich.live import Live
    from rich.text import Text

    is_plain = click.get_current_context().color is False
    console = Console(highlight=False)

    def show(text: str) -> None:
        lines = (click.unstyle(text) if is_plain else text).split("\n")
        if (below := len(lines) - console.height) > 0:
            lines[console.height - 1 :] = [f"and {below + 1} more lines"]
        live.update(Text.from_ansi("\n".join(lines), no_wrap=True, overflow="ellipsis"), refresh=True)

    with Live(console=console, screen=True, auto_refresh=False) as live:
        yield show


def shorten_to_line(text: str, width: int) -> str:
    """The beginning of a text as one line of printable characters. In a pipe or a file, it is the whole text."""
    line = one_line(text)
    if _terminal_width() == UNLIMITED_WIDTH or cell_len(line) <= width:
        return line
    return set_cell_size(line, width - 1) + "…"


def _terminal_width() -> int:
    """COLUMNS, or the width of the terminal; UNLIMITED_WIDTH in a pipe or a file."""
    return shutil.get_terminal_size((UNLIMITED_WIDTH, 24)).columns


def wrap_text(text: str, indent: int) -> list[str]:
    """The lines of a text, all but the first indented.

    No word and no command in backquotes is broken, so that it can be copied.
    """
    bound = QUOTED_COMMAND.sub(lambda found: found[0].replace(" ", NO_BREAK), one_line(text))
    spaced = "".join(sign + SECOND_HALF * (cell_len(sign) - 1) for sign in bound)
    lines = wrap(spaced, LINE_WIDTH, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
    return [line.replace(NO_BREAK, " ").replace(SECOND_HALF, "") for line in lines]


def format_fact(word: str, value: str, level: Level | None = None) -> list[str]:
    """A value after its label, wrapped to several lines if necessary; no line for an empty value.

    The label has the colour of the level.
    """
    return paint_label(wrap_text(f"{word:<10} {value}", 11), word, level) if value else []


def utc_now() -> datetime:
    """The current time of the system clock."""
    return datetime.now(UTC)


def format_time(instant: datetime | None) -> str:
    """A time to the second, in `display_zone()`; a dash for None.

    In the hour that a clock change repeats, the offset from UTC follows.
    """
    return "-" if instant is None else local_text(instant, display_zone())


def format_short_time(instant: datetime | None, now: datetime) -> str:
    """A time for a table, in `display_zone()`: without the date if it is today, else the date and the minute."""
    if instant is None:
        return "-"
    moment, today = instant.astimezone(display_zone()), now.astimezone(display_zone()).date()
    clock = f"{moment:%H:%M:%S}" if moment.date() == today else f"{moment:%m-%d %H:%M}"
    return clock + (f" {offset_text(moment)}" if is_repeated(moment) else "")


def format_clock(instant: datetime, zone: ZoneInfo, *, with_zone: bool = False, with_date: bool = False) -> str:
    """The time of day in a zone, without seconds if there are none, after its date if it is wanted, and before the
    abbreviation of the zone.
    """
    local = instant.astimezone(zone)
    date = f"{local:%m-%d} " if with_date else ""
    return date + f"{local:%H:%M:%S}".removesuffix(":00") + (f" {local:%Z}" if with_zone else "")


def display_zone() -> ZoneInfo | None:
    """The zone in which times are printed, and times without an offset are read.

    It is the top-level zone of the active config, and of the file until a daemon has run. None means the zone of the host, if
    there is neither.
    """
    context = click.get_current_context(silent=True)
    path = context.params.get("path") if context else None
    if context is None or path is None:
        return None
    if _ZONE not in context.meta:
        context.meta[_ZONE] = _zone_of_config(path, context.params.get("state"))
    found: ZoneInfo | None = context.meta[_ZONE]
    return found


def zone_name() -> str:
    """The name of `display_zone()`."""
    found = display_zone()
    return found.key if found else host_zone_name()


def host_zone_name(localtime: Path = Path("/etc/localtime")) -> str:
    """The IANA name of the host's zone if it can be found, else the abbreviation of its current clock."""
    named = os.environ.get("TZ", "").removeprefix(":")
    if not named and localtime.is_symlink():
        _, _, named = str(localtime.readlink()).partition("zoneinfo/")
    return named or datetime.now().astimezone().tzname() or "local time"


def host_zone() -> ZoneInfo:
    """The zone of the host; UTC if it has no name."""
    try:
        return ZoneInfo(host_zone_name())
    except (ValueError, OSError):
        return ZoneInfo("UTC")


_ZONE = f"{__name__}.zone"


def _zone_of_config(path: Path, state: Path | None) -> ZoneInfo | None:
    """The zone of the active config, or of the last one; without one, the zone that the file names, even if it is invalid."""
    from scheduler.config.file import lenient_reading
    from scheduler.config.keys import time_zones  # for commands that tell times alone

    name = _recorded_zone(path, state) or lenient_reading.read_timezone_name(path, os.environ)
    try:
        return time_zones.find_zone(name) if name else None
    except ValueError:
        return None


def _recorded_zone(path: Path, state: Path | None) -> str | None:
    """The zone that the database has; None if it has none, or cannot be read."""
    from scheduler.cli import daemon_files
    from scheduler.model.expected_error import ExpectedError
    from scheduler.store import config_history

    try:
        files = daemon_files.locate_files(path, state)
        if not files.may_exist:
            return None
        with daemon_files.open_for_reading(files) as db:
            found = config_history.config_in_force(db)
            return found[0].zone if found else None
    except ExpectedError:
        return None


def format_elapsed(since: datetime | None, until: datetime | None) -> str:
    """The time between two instants; a dash if one of them is None."""
    return "-" if since is None or until is None else words.format_elapsed(until - since)


def elapsed_time(since: datetime, until: datetime) -> timedelta:
    """The time between two instants, both cut to seconds, so that it agrees with the printed times."""
    return until.replace(microsecond=0) - since.replace(microsecond=0)


def format_since(begin: datetime, now: datetime) -> str:
    """Since when something lasts, and for how long."""
    return f"since {format_time(begin)} ({abbreviate_duration(elapsed_time(begin, now))})"


def format_period(begin: datetime, end: datetime) -> str:
    """A time from its begin to its end, and how long it is."""
    return f"{format_time(begin)} to {format_time(end)} ({abbreviate_duration(elapsed_time(begin, end))})"


def describe_process(up: LockOwner, standby: str | None, now: datetime) -> str:
    """What a running daemon does, and since when. `standby` is what `describe_standby` says."""
    since = f" {format_since(up.started_at, now)}" if up.started_at else ""
    return f"{f'standby ({standby})' if standby else 'running'}{since}, pid {up.pid or 'not known'}"


def describe_cost(cost: float | None, of_what: str, unpriced: int, untold_usd: float) -> str | None:
    """A cost, what it is for, and the usage that it lacks; None if nothing is known about it.

    `unpriced` runs had usage without a price. Usage worth up to `untold_usd` was not reported by the programs.
    """
    if cost is None and not unpriced and not untold_usd:
        return None
    missing = f"; {format_count(unpriced, 'run')} had no price" if unpriced else ""
    missing += f"; usage worth up to {format_usd(untold_usd)} was not reported" if untold_usd else ""
    return f"{'not known' if cost is None else format_usd(cost)} {of_what}{missing}"


def format_highest_usd(amount: float) -> str:
    """An amount in USD, rounded up: the printed limit is never too low."""
    places = 2 if amount >= 1 or not amount else 4
    return f"{round_usd_up(amount, places):,.{places}f}"


def abbreviate_count(count: int) -> str:
    """A count with at most three digits: 950, 1.2k, 310k, 4.1m."""
    for size, sign in COUNT_UNITS:
        number = round(count / size, 1)
        if number >= 1:
            return f"{number:.1f}{sign}" if number < 10 else f"{number:.0f}{sign}"
    return str(count)


def format_why(why: str | None, delivery: str) -> str:
    """The text after a result: why, and the delivery state of the messages.

    If the message was not sent again, the state of the earlier ones with its content is only shown if they have not arrived.
    """
    hidden = ("none", "delivered") if why == Suppression.DUPLICATE else ("none",)
    return ", ".join(dict.fromkeys(word for word in (why, delivery) if word and word not in hidden)) or "-"


def entry_label(entry: EntryName | QueuedMessage) -> str:
    """The name of an agent or a job with its kind: agent/NAME or cron/NAME. For the daemon itself it is `daemon`."""
    return Subject(entry.kind, entry.name).label


def is_answer(run: RunRecord) -> bool:
    """Whether the text of a run is the answer of an agent, and not the output of a command."""
    return Kind(run.kind) is Kind.HEARTBEAT or bool(run.prompt_parts)


def answer_text(run: RunRecord) -> str:
    """The answer of an agent as people read it, or the output of a command."""
    return escape_control(readable_answer(run.text) if run.text and is_answer(run) else run.text or "")

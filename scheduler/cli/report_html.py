"""Writes the report as one HTML page without scripts and without links to other hosts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from html import escape
from typing import Any

from scheduler import __version__
from scheduler.cli import report_text
from scheduler.cli.output import (
    abbreviate_count,
    display_zone,
    elapsed_time,
    entry_label,
    format_time,
    zone_name,
)
from scheduler.config.file.message_parts import abbreviate_duration, format_usd
from scheduler.insight import report_data, svg_charts
from scheduler.insight.svg_charts import Bar
from scheduler.system.text import one_line

MAX_ROWS = 40  # of each table; the text says how many are left out
HOURS = timedelta(hours=2)  # a bar for less than this is labelled with its hour

Data = dict[str, Any]

STYLE = """\
:root { color-scheme: light dark; --text: #1b1f24; --dim: #5b6570; --page: #fff; --card: #f3f5f7; --line: #d5dae0;
  --cost: #2563c9; --ok: #7fa8dd; --alert: #d98a00; --failed: #c62f2f; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e9ed; --dim: #9aa5b1; --page: #14171a; --card: #1f2429; --line: #3a424b;
  --cost: #6ba3f5; --ok: #3f6ea8; --alert: #e0a23c; --failed: #ec6a6a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 46rem; background: var(--page); color: var(--text);
  font: 16px/1.45 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.4rem; margin: 0 0 .2rem; } h2 { font-size: 1.1rem; margin: 1.8rem 0 .4rem; }
p { margin: .4rem 0; } .dim { color: var(--dim); font-size: .875rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(6.5rem, 1fr)); gap: .5rem; margin: 1rem 0; }
.tile { background: var(--card); border-radius: .5rem; padding: .5rem .7rem; } .tile b { display: block; font-size: 1.25rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .875rem; }
th, td { text-align: left; padding: .3rem .5rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--dim); font-weight: 500; } .number { text-align: right; white-space: nowrap; }
td:first-child { min-width: 7rem; overflow-wrap: anywhere; }
.chart { display: block; width: 100%; max-width: 34rem; height: auto; } .share { width: 100%; height: .4rem; display: block; }
.axis { fill: var(--dim); font-size: 10px; } .grid { stroke: var(--line); stroke-width: .5; } .track { fill: var(--line); }
.cost { fill: var(--cost); } .ok { fill: var(--ok); } .alert { fill: var(--alert); } .failed { fill: var(--failed); }
.key { display: inline-block; width: .7em; height: .7em; border-radius: 2px; margin: 0 .3em 0 .8em; }
.key.ok { background: var(--ok); } .key.alert { background: var(--alert); } .key.failed { background: var(--failed); }
"""

PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


def format_page(data: Data) -> str:
    """The whole page. Every text from the database is escaped."""
    return PAGE.format(title="heartbeatd report", style=STYLE, body="\n".join(_body_parts(data)))


def _body_parts(data: Data) -> Iterator[str]:
    """The parts of the page, the most important first. A part without data is left out."""
    since, until = format_time(data["since"])[:16], format_time(data["until"])[:16]
    yield "<h1>heartbeatd report</h1>"
    yield f'<p class="dim">{_text(since)} to {_text(until)}, {_text(zone_name())}</p>'
    yield _tiles(data)
    yield f"<p>{_text(' '.join(report_text.summary_sentences(data)))}</p>"
    yield from _charts(data["by_time"])
    yield from _entry_part(data)
    yield from _model_part(data["agent_models"])
    yield from _cause_part(data["causes"])
    yield from _prompt_part(data["prompt"])
    yield from _reason_part(data)
    yield from _delivery_part(data["deliveries"])
    yield from _downtime_part(data["downs"])
    yield f'<p class="dim">heartbeatd {_text(__version__)}</p>'


def _text(text: object) -> str:
    """A text for the page: on one line, without control characters, and escaped."""
    return escape(one_line(str(text)))


def _tiles(data: Data) -> str:
    """The most important numbers."""
    totals = data["totals"]
    change = report_text.format_change(totals["cost_usd"], data["previous"]["totals"]["cost_usd"])
    cost = "cost" if change in ("-", "new") or not report_data.is_comparable(data) else f"cost ({change})"
    tiles = [
        (format_usd(totals["cost_usd"]), cost),
        (f"{totals['runs']:,}", "runs"),
        (f"{totals['said']:,}", "alerts"),
        (f"{totals['failed']:,}", "failed"),
        (f"{totals['skipped']:,}", "skipped"),
    ]
    if totals["cache"]["read"]:
        tiles.append((report_text.format_share(totals["cache"]["read"], totals["tokens"]["input"]), "input from the cache"))
    cells = "".join(f'<div class="tile"><b>{_text(number)}</b>{_text(word)}</div>' for number, word in tiles)
    return f'<div class="tiles">{cells}</div>'


def _charts(steps: list[Data]) -> Iterator[str]:
    """The cost and the runs by hour, day or week."""
    if not any(step["runs"] for step in steps):
        return
    if any(step["cost_usd"] for step in steps):
        yield "<h2>Cost over time</h2>"
        bars = [
            Bar(_step_label(step), f"{_step_label(step)}: {format_usd(step['cost_usd'])}", (("cost", step["cost_usd"] or 0.0),))
            for step in steps
        ]
        yield svg_charts.draw_bars(bars, "Cost over time", _format_scale_usd)
    yield "<h2>Runs over time</h2>"
    yield (
        '<p class="dim"><span class="key ok"></span>without alert<span class="key alert"></span>with alert'
        '<span class="key failed"></span>failed</p>'
    )
    yield svg_charts.draw_bars([_run_bar(step) for step in steps], "Runs over time", _format_scale_count)


def _run_bar(step: Data) -> Bar:
    quiet = max(0, step["runs"] - step["alerts"] - step["failed"])
    title = f"{_step_label(step)}: {step['runs']} runs, {step['alerts']} with an alert, {step['failed']} failed"
    return Bar(_step_label(step), title, (("ok", quiet), ("alert", step["alerts"]), ("failed", step["failed"])))


def _step_label(step: Data) -> str:
    """The local time of an hour, or the local date of a day or of the first day of a week."""
    since, until = (datetime.fromisoformat(step[word]).astimezone(display_zone()) for word in ("since", "until"))
    return f"{since:%m-%d %H:%M}" if until - since < HOURS else f"{since:%m-%d}"


def _format_scale_usd(value: float) -> str:
    return f"${f'{value:.6f}'.rstrip('0').rstrip('.')}"


def _format_scale_count(value: float) -> str:
    return abbreviate_count(round(value)) if value >= 10 else f"{value:g}"


def _entry_part(data: Data) -> Iterator[str]:
    rows = [
        [
            _label(each) + _share_of(each["cost_usd"], data["entries"], "cost_usd"),
            *(f"{each[word]:,}" for word in ("runs", "said", "failed", "skipped")),
            report_text.format_cost(each),
            report_text.format_entry_change(each) if report_data.is_comparable(data) else "-",
        ]
        for each in data["entries"]
    ]
    yield from _table("Agents and jobs", ("name", "runs", "alerts", "failed", "skipped", "cost", "change"), rows)


def _model_part(usage: list[Data]) -> Iterator[str]:
    rows = [
        [
            _label(each) + _share_of(each["cost_usd"], usage, "cost_usd"),
            _text(each["model"] or "(not known)"),
            f"{each['calls']:,}",
            abbreviate_count(each["tokens"]["input"]),
            report_text.format_share(each["cache"]["read"], each["tokens"]["input"]) if each["cache"]["read"] else "-",
            abbreviate_count(each["tokens"]["output"]),
            report_text.format_cost(each),
        ]
        for each in usage
    ]
    yield from _table("Agents by model", ("name", "model", "calls", "tokens in", "cached", "out", "cost"), rows, texts=2)


def _cause_part(causes: list[Data]) -> Iterator[str]:
    rows = [
        [
            _text(report_text.format_cause(each)) + _share_of(each["cost_usd"], causes, "cost_usd"),
            _text(report_text.format_cause_entries(each["entries"])),
            f"{each['runs']:,}",
            report_text.format_cost(each),
        ]
        for each in causes
    ]
    yield from _table("What started the runs", ("started by", "runs of", "runs", "cost"), rows, texts=2)


def _prompt_part(parts: list[Data]) -> Iterator[str]:
    rows = [
        [
            _text(each["part"]) + svg_charts.draw_share(each["share"]),
            _label(each["entries"][0]),
            f"{each['runs']:,}",
            abbreviate_count(each["chars"]),
            report_text.format_share(each["share"], 1),
        ]
        for each in parts
    ]
    yield from _table("What fills the prompts", ("part", "most in", "runs", "characters", "share"), rows, texts=2)


def _reason_part(data: Data) -> Iterator[str]:
    for part, (title, unit, word) in report_text.REASON_TABLES.items():
        rows = [[_text(each[word] or "-"), _text(_shares_text(each["entries"])), f"{each['count']:,}"] for each in data[part]]
        yield from _table(title.capitalize(), ("reason", "agents and jobs", unit.lower()), rows, texts=2)


def _shares_text(entries: list[Data]) -> str:
    shown = [f"{entry_label(each['kind'], each['name'])} {each['count']:,}" for each in entries[: report_text.MAX_NAMED]]
    more = len(entries) - len(shown)
    return ", ".join(shown) + (f", {more} more" if more else "")


def _delivery_part(deliveries: list[Data]) -> Iterator[str]:
    states = ("delivered", "pending", "held", "dead", "dropped", "uncertain")
    rows = [[_text(each["channel"]), *(f"{each[state]:,}" for state in states)] for each in deliveries]
    yield from _table("Messages", ("channel", *states), rows)


def _downtime_part(downs: list[Data]) -> Iterator[str]:
    rows = [
        [
            _text(format_time(down["since"])),
            "stopped cleanly" if down["clean"] else "ended unexpectedly",
            _text(abbreviate_duration(elapsed_time(down["since"], down["until"]))),
        ]
        for down in downs
    ]
    yield from _table("The daemon was down", ("from", "cause", "for"), rows, texts=2)


def _label(entry: Data) -> str:
    return _text(entry_label(entry["kind"], entry["name"]))


def _share_of(part: float | None, rows: list[Data], word: str) -> str:
    """A bar with the share of the largest value in a column; nothing without any value."""
    largest = max((each[word] or 0.0 for each in rows), default=0.0)
    return svg_charts.draw_share((part or 0.0) / largest) if largest else ""


def _table(title: str, heading: Sequence[str], rows: list[list[str]], texts: int = 1) -> Iterator[str]:
    """A table with its title; nothing without rows. All columns after the first `texts` are numbers. Cells are HTML."""
    if not rows:
        return
    yield f"<h2>{_text(title)}</h2>"
    yield '<div class="wide"><table>'
    yield f"<tr>{''.join(_cells('th', map(_text, heading), texts))}</tr>"
    for row in rows[:MAX_ROWS]:
        yield f"<tr>{''.join(_cells('td', row, texts))}</tr>"
    yield "</table></div>"
    if len(rows) > MAX_ROWS:
        yield f'<p class="dim">{len(rows) - MAX_ROWS:,} more are left out. The report as JSON has all.</p>'


def _cells(tag: str, cells: Iterable[str], texts: int) -> Iterator[str]:
    for place, cell in enumerate(cells):
        yield f"<{tag}>{cell}</{tag}>" if place < texts else f'<{tag} class="number">{cell}</{tag}>'

"""Prints the report: a summary, then tables of costs, skips, problems, messages and downtimes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from operator import attrgetter
from pathlib import Path
from typing import Literal, TypeVar

import click

from heartbeat.words import abbreviate_duration, format_count, format_usd, list_names
from heartbeatd import answers
from heartbeatd.answers import BudgetStatus, Downtime, EntryName
from scheduler.cli import daemon_files, output
from scheduler.cli.daemon_files import Source
from scheduler.insight.reason_texts import ending_text
from scheduler.insight.report_data import (
    AgentModelTotals,
    CauseTotals,
    ChannelTotals,
    CountOfEntry,
    EntryTotals,
    ModelTotals,
    PreviousPeriod,
    ProblemTotals,
    PromptPartTotals,
    Report,
    ReportTotals,
    RunsOfCause,
    WordCount,
    build_report,
    sum_costs,
)
from scheduler.model.budget import MONTH_LIMIT
from scheduler.model.expected_error import InputError
from scheduler.model.outcome import Kind
from scheduler.system.files import write_output_file

MAX_ROWS = 12  # of a table; all further items share its last row
TOP_ENTRIES = 4  # of each: the most expensive, most alerts, most failures
MAX_PARTS = 8  # parts of the prompt
MAX_NAMED = 3  # entries in one cell
MAX_DOWNTIMES = 5  # the longest downtimes are listed

Row = TypeVar("Row", bound=answers.ResponseBody)
Items = Sequence[Row]  # what one row of a table shows: one item, or all that are not listed one by one


def print_report(span: timedelta, by: Literal["entry", "model"], out: Path | None, source: Source) -> None:
    """Print the report, or write it to the file `out` and print a summary."""
    until = output.utc_now()
    with source.open() as db:
        running = daemon_files.is_daemon_running(source.files, db)
        zone = output.display_zone() or output.host_zone()
        report = build_report(db, until - span, until, running=running, zone=zone) if source.files.may_exist else None
    if source.form == "json":
        text = json.dumps(report.as_data() if report else None, indent=2)
    elif report:
        text = format_report(report, by)
    else:
        click.echo(f"there is no database yet: {source.files.shown}")
        return
    if out is None:
        click.echo(text)
        return
    _write_report(out, text + "\n")
    if report:
        click.echo(format_summary(report))


def _write_report(path: Path, text: str) -> None:
    """Replace the file in one step, so that a web server never sends half a report."""
    try:
        write_output_file(path, text.encode())
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from error


def format_report(report: Report, by: Literal["entry", "model"]) -> str:
    """The report as text: its period, a summary, then tables. The first table is by `entry` or by `model`."""
    since, until = output.format_time(report.since)[:16], output.format_time(report.until)[:16]
    parts = (
        f"{since} to {until}, {output.zone_name()} ({abbreviate_duration(_length(report))})",
        format_summary(report),
        _entries_table(report) if by == "entry" else _table(report.models, MODEL_COLUMNS),
        _table(report.agent_models, AGENT_MODEL_COLUMNS, MAX_ROWS) if any(each.model for each in report.agent_models) else "",
        _table(report.causes, CAUSE_COLUMNS, MAX_ROWS) if any(each.source != "schedule" for each in report.causes) else "",
        _table(report.prompt, PROMPT_COLUMNS, MAX_PARTS),
        _reasons_table(report),
        _table(report.problems, PROBLEM_COLUMNS, MAX_ROWS),
        _table(report.deliveries, DELIVERY_COLUMNS),
        _table(_longest_downtimes(report), DOWNTIME_COLUMNS),
    )
    return "\n\n".join(filter(None, parts))


# --- the summary ------------------------------------------------------------------------------------------------------


def format_summary(report: Report) -> str:
    """The summary in sentences. A count of zero is left out."""
    return "\n".join(output.wrap_text(" ".join(_summary_sentences(report)), 0))


def _summary_sentences(report: Report) -> Iterator[str]:
    if not report.entries:
        yield "Nothing ran, and nothing was skipped."
    yield from _run_sentences(report.totals)
    yield from cost_sentences(report.totals)
    if report.saved.sentence:
        yield report.saved.sentence
    yield from monthly_sentences(report.monthly)
    yield from _trend_sentences(report)
    yield from _top_entry_sentences(report)
    counts = ((state, sum(getattr(each, state) for each in report.deliveries)) for state in ("pending", "held", "dead"))
    if undelivered := ", ".join(f"{count:,} {state}" for state, count in counts if count):
        yield f"Undelivered messages: {undelivered} (`heartbeatd outbox`)."
    if downs := report.downs:
        times = "once" if len(downs) == 1 else f"{len(downs)} times"
        yield f"The daemon was down {times}, {abbreviate_duration(sum(map(_length, downs), timedelta()))} in all."


def _run_sentences(totals: ReportTotals) -> Iterator[str]:
    runs, said, failed = totals.runs, totals.said, totals.failed
    if runs:
        yield f"{format_count(runs, 'run')}: {said:,} with an alert, {max(0, runs - said - failed):,} without, {failed:,} failed."
    elif totals.skipped:
        yield "Nothing ran."
    if totals.skipped:
        missed = f", {totals.missed:,} of them missed" if totals.missed else ""
        yield f"{format_count(totals.skipped, 'planned run')} skipped{missed}."


def cost_sentences(totals: ReportTotals) -> Iterator[str]:
    """The cost and the tokens, and how much of the input came from the provider's cache."""
    tokens, cache = totals.tokens, totals.cache
    usage = f"for {output.abbreviate_count(tokens.input)} tokens in and {output.abbreviate_count(tokens.output)} out"
    if cost := output.describe_cost(totals.cost_usd, usage, totals.runs_without_price, totals.untold_usd):
        yield f"Spent {cost}."
    if cache.read or cache.write:
        read, write = _format_share(cache.read, tokens.input), _format_share(cache.write, tokens.input)
        yield f"{read} of the input tokens were read from the cache, and {write} were written to it."


def monthly_sentences(budgets: Sequence[BudgetStatus]) -> Iterator[str]:
    """How much of the budgets of this month is used, those that are used the most first."""
    limits = sorted(((each, each.limits[MONTH_LIMIT]) for each in budgets), key=lambda pair: -pair[1].used / pair[1].of)
    names = [Kind(each.kind).label_of(each.name) if each.kind and each.name else "all" for each, _ in limits]
    texts = [f"{name} {format_usd(limit.used)} of {format_usd(limit.of)}" for name, (_, limit) in zip(names, limits, strict=True)]
    if texts:
        yield f"Used this month: {list_names(texts, MAX_NAMED)}."


def _trend_sentences(report: Report) -> Iterator[str]:
    """The runs and the cost of the previous period, and how the cost changed; nothing if nothing happened in it."""
    previous, cost = report.previous, report.totals.cost_usd
    before = previous.totals
    if not before.runs and not before.skipped:
        return
    known = f", {format_usd(before.cost_usd)}" if before.cost_usd is not None else ""
    yield f"The {abbreviate_duration(_length(previous))} before: {format_count(before.runs, 'run')}{known}."
    if previous.incomplete:
        yield "Some run records of that time were deleted, so it cannot be compared."
    elif not previous.comparable:
        yield f"The first run record is of {output.format_time(previous.first_record_at)[:16]}."
    elif cost and before.cost_usd:
        percent = round(100 * (cost - before.cost_usd) / before.cost_usd)
        yield "The cost is the same." if not percent else f"The cost {'rose' if percent > 0 else 'fell'} by {abs(percent):,}%."


def _top_entry_sentences(report: Report) -> Iterator[str]:
    """The most expensive entry with the most expensive of its runs, and the entry with the most alerts."""
    entries = report.entries
    if entries and (dearest := entries[0].dearest_run):
        alone = f"run {dearest.id} alone {format_usd(dearest.cost_usd)}"
        yield f"Most expensive: {output.entry_label(entries[0])} ({format_usd(entries[0].cost_usd)}; {alone})."
    loudest = max(entries, key=lambda each: each.said, default=None)
    if loudest and loudest.said:
        yield f"Most alerts: {output.entry_label(loudest)} ({loudest.said:,} of {sum(each.said for each in entries):,})."


# --- the tables -------------------------------------------------------------------------------------------------------


def _table(items: Sequence[Row], columns: Sequence[output.Column[Sequence[Row]]], most: int | None = None) -> str:
    """A table of the first items; all others share its last row. Empty without items."""
    most = len(items) if most is None else most
    return _table_of(items[:most], items[most:], columns)


def _table_of(shown: Sequence[Row], others: Sequence[Row], columns: Sequence[output.Column[Sequence[Row]]]) -> str:
    rows: list[Sequence[Row]] = [*([each] for each in shown), *([others] if others else [])]
    return output.format_list(rows, columns) if rows else ""


def _text(
    head: str, cell: Callable[[Row], str], for_others: str | None = "", *, is_number: bool = False
) -> output.Column[Sequence[Row]]:
    """A column that shows a text of one item. For all others it shows `for_others`, or if that is None their number."""

    def show(items: Sequence[Row]) -> str:
        others = format_count(len(items), "other") if for_others is None else for_others
        return cell(items[0]) if len(items) == 1 else others

    return output.Column(head, show, is_number)


def _sum(head: str, key: str, form: Callable[[int], str] = "{:,}".format) -> output.Column[Items[answers.ResponseBody]]:
    """A column that shows a number of each item, and the sum of all others. `key` may be the path of a number in a part."""
    read = attrgetter(key)
    return output.Column(head, lambda items: form(sum(map(read, items))), is_number=True)


def _show_cost(items: Sequence[EntryTotals | ModelTotals | AgentModelTotals | CauseTotals]) -> str:
    """The cost. A plus sign means that some usage has no price or was not reported."""
    cost = sum_costs(each.cost_usd for each in items)
    more = any(each.runs_without_price or getattr(each, "untold_usd", 0) for each in items)
    return format_usd(cost) + ("+" if cost is not None and more else "")


def _show_cached(items: Sequence[ModelTotals | AgentModelTotals]) -> str:
    read = sum(each.cache.read for each in items)
    return _format_share(read, sum(each.tokens.input for each in items)) if read else "-"


NAME: output.Column[Items[EntryName]] = _text("NAME", output.entry_label, None)
COUNTS = (_sum("RUNS", "runs"), _sum("ALERTS", "said"), _sum("FAILED", "failed"))
TOKENS = (
    _sum("TOKENS IN", "tokens.input", output.abbreviate_count),
    output.Column("CACHED", _show_cached, is_number=True),
    _sum("OUT", "tokens.output", output.abbreviate_count),
)
COST = output.Column("SPENT", _show_cost, is_number=True)
MODEL: output.Column[Sequence[ModelTotals | AgentModelTotals]] = _text("MODEL", lambda row: row.model or "(not known)")
ENTRY_COLUMNS: list[output.Column[Sequence[EntryTotals]]] = [
    NAME,
    *COUNTS,
    _sum("SKIPPED", "skipped"),
    _sum("MISSED", "missed"),
    COST,
]
MODEL_COLUMNS: list[output.Column[Sequence[ModelTotals]]] = [MODEL, *COUNTS, *TOKENS, COST]
AGENT_MODEL_COLUMNS: list[output.Column[Sequence[AgentModelTotals]]] = [NAME, MODEL, _sum("CALLS", "calls"), *TOKENS, COST]
CAUSE_COLUMNS: list[output.Column[Sequence[CauseTotals]]] = [
    _text("STARTED BY", lambda row: _cause_label(row), None),
    COUNTS[0],
    COST,
    _text("RUNS OF", lambda row: _name_entries(row.entries, "runs", MAX_NAMED)),
]
PROMPT_COLUMNS: list[output.Column[Sequence[PromptPartTotals]]] = [
    _text("PROMPT", lambda row: row.part, None),
    _text("RUNS", lambda row: f"{row.runs:,}", is_number=True),
    _sum("TOKENS", "tokens", output.abbreviate_count),
    output.Column("SHARE", lambda rows: _format_share(sum(each.share for each in rows), 1), is_number=True),
    _text("PER RUN", lambda row: output.abbreviate_count(round(row.tokens / row.runs)), is_number=True),
    _text("MOST IN", lambda row: output.entry_label(row.entries[0])),
]
PROBLEM_COLUMNS: list[output.Column[Sequence[ProblemTotals]]] = [
    _text("PROBLEMS", output.entry_label, None),
    *(_sum(word.upper(), word) for word in ("opened", "resolved", "reminders", "duplicates")),  # duplicates: answers without news
]
DELIVERY_COLUMNS: list[output.Column[Sequence[ChannelTotals]]] = [
    _text("CHANNEL", lambda row: row.channel),
    *(_sum(word.upper(), word) for word in ("delivered", "pending", "held", "dead", "dropped", "uncertain")),
]
DOWNTIME_COLUMNS: list[output.Column[Sequence[Downtime]]] = [
    _text("DOWN FROM", lambda row: output.format_time(row.since)),
    _text("UNTIL", lambda row: output.format_time(row.until)),
    _text("FOR", lambda row: abbreviate_duration(_length(row))),
    _text("WHY", lambda row: ending_text(row.clean)),
]


def _entries_table(report: Report) -> str:
    """The entries that matter most, the most expensive first; all others share one row.

    They are the most expensive, those with the most alerts and those with the most failures. How the costs changed from the
    previous period is added if any cost of that is known.
    """
    entries, columns = report.entries, ENTRY_COLUMNS
    if report.previous.comparable and any(each.previous_cost_usd is not None for each in entries):
        change: output.Column[Sequence[EntryTotals]] = _text(
            "CHANGE", lambda row: _format_change(row.cost_usd, row.previous_cost_usd), "-", is_number=True
        )
        columns = [*columns, change]
    if len(entries) <= MAX_ROWS:
        return _table(entries, columns)
    ranked = (sorted(entries, key=lambda each: -getattr(each, word))[:TOP_ENTRIES] for word in ("said", "failed"))
    chosen = {id(each) for part in (entries[:TOP_ENTRIES], *ranked) for each in part}
    shown, others = ([each for each in entries if (id(each) in chosen) is wanted] for wanted in (True, False))
    return _table_of(shown, others, columns)


def _reasons_table(report: Report) -> str:
    """Why planned times were skipped, answers suppressed, and runs failed, in one table, so that the columns are aligned."""
    parts = (("SKIPPED", "TIMES", report.skipped), ("NOT SENT", "RUNS", report.suppressed), ("FAILED", "RUNS", report.failed))
    rows = [
        row for title, unit, counts in parts if counts for row in (("", "", ""), (title, unit, "ENTRIES"), *map(_count, counts))
    ]
    return output.format_table(rows[1], rows[2:], numbers=[1]) if rows else ""


def _count(row: WordCount) -> tuple[str, str, str]:
    return row.why or "-", f"{row.count:,}", _name_entries(row.entries, "count")


def _name_entries(entries: Sequence[CountOfEntry | RunsOfCause], key: str, most: int | None = None) -> str:
    """The entries, each with a number if there are several."""
    if len(entries) == 1:
        return output.entry_label(entries[0])
    return list_names([f"{output.entry_label(each)} {getattr(each, key)}" for each in entries], most)


def _cause_label(cause: CauseTotals) -> str:
    """What started runs: the schedule, a job as cron/NAME, or another source with its sender."""
    if cause.source == "result":
        return "late results"
    if cause.source == Kind.CRON and cause.sender:
        return Kind.CRON.label_of(cause.sender)
    return " ".join(word for word in (cause.source, cause.sender) if word)


def _longest_downtimes(report: Report) -> list[Downtime]:
    """The longest downtimes, in order of time."""
    longest = sorted(report.downs, key=_length)[-MAX_DOWNTIMES:]
    return [down for down in report.downs if down in longest]


def _length(period: Downtime | PreviousPeriod | Report) -> timedelta:
    return output.elapsed_time(period.since, period.until or period.since)


def _format_change(cost: float | None, before: float | None) -> str:
    """The change of a cost in percent; `new` if there was none before, a dash if there is none now."""
    if not cost:
        return "-"
    if not before:
        return "new"
    percent = round(100 * (cost - before) / before)
    return "the same" if percent == 0 else f"{percent:+,}%"


def _format_share(part: float, whole: float) -> str:
    """A share in percent; a dash if there is nothing to share."""
    return f"{100 * part / whole:.0f}%" if whole else "-"

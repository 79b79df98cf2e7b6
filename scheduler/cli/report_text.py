"""Prints the report: a summary, then tables of costs, skips, conditions, messages and downtimes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from heartbeat.words import abbreviate_duration, format_count, format_usd, list_names
from scheduler.cli import daemon_files
from scheduler.cli.output import (
    Column,
    abbreviate_count,
    describe_cost,
    display_zone,
    elapsed_time,
    entry_label,
    format_ending,
    format_list,
    format_table,
    format_time,
    host_zone,
    utc_now,
    wrap_text,
    zone_name,
)
from scheduler.insight.report_data import build_report, sum_costs
from scheduler.model.expected_error import InputError
from scheduler.model.outcome import Kind
from scheduler.system.files import write_output_file

MAX_ENTRIES = 12  # rows of the table; all further entries share its last row
TOP_ENTRIES = 4  # of each: the most expensive, most alerts, most failures
MAX_PARTS = 8  # parts of the prompt
MAX_NAMED = 3  # entries in one cell
MAX_DOWNTIMES = 5  # the longest downtimes are listed
COUNT_HEADINGS = {"runs": "RUNS", "said": "ALERTS", "failed": "FAILED", "skipped": "SKIPPED", "missed": "MISSED"}
CONDITION_COUNTS = ("opened", "resolved", "reminders", "duplicates")  # duplicates: answers without news
REASON_TABLES = {
    "skipped": ("SKIPPED", "SLOTS", "reason"),
    "suppressed": ("SUPPRESSED", "RUNS", "suppression"),
    "failed": ("FAILED", "RUNS", "reason"),
}

Data = dict[str, Any]


def print_report(span: timedelta, by: str, form: str, out: Path | None, path: Path, state: Path | None) -> None:
    """Print the report, or write it to the file `out` and print a summary."""
    files, until = daemon_files.locate_files_or_warn(path, state), utc_now()
    with daemon_files.open_for_reading(files) as db:
        running = daemon_files.find_running_daemon(files) is not None
        zone = display_zone() or host_zone()
        data = build_report(db, until - span, until, running=running, zone=zone).as_data() if db else None
    if data is None and form != "json":
        click.echo(f"there is no database yet: {files.shown}")
        return
    text = json.dumps(data, indent=2) if form == "json" or data is None else format_report(data, by)
    if out is None:
        click.echo(text)
        return
    _write_report(out, text + "\n")
    if data is not None:
        click.echo("\n".join(wrap_text(" ".join(summary_sentences(data)), 0)))


def _write_report(path: Path, text: str) -> None:
    """Replace the file in one step, so that a web server never sends half a report."""
    try:
        write_output_file(path, text.encode())
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from error


def format_report(data: Data, by: str) -> str:
    """The report as text: its period, a summary, then tables. The first table is by `entry` or by `model`."""
    return "\n\n".join(_report_parts(data, by))


def _report_parts(data: Data, by: str) -> Iterator[str]:
    """The parts of the report, the most important first. A table without rows is left out."""
    since, until = format_time(data["since"])[:16], format_time(data["until"])[:16]
    yield f"{since} to {until}, {zone_name()} ({abbreviate_duration(_elapsed_time(data))})"
    yield "\n".join(wrap_text(" ".join(summary_sentences(data)), 0))
    if data["entries"] and by == "entry":
        yield _entries_table(data["entries"], with_change=data["previous"]["comparable"])
    if data["models"] and by == "model":
        yield _models_table(data["models"])
    if any(each["model"] for each in data["agent_models"]):
        yield _agent_models_table(data["agent_models"])
    if any(each["source"] != "schedule" for each in data["causes"]):
        yield _causes_table(data["causes"])
    if data["prompt"]:
        yield _prompt_table(data["prompt"])
    if data["skipped"] or data["suppressed"] or data["failed"]:
        yield _reasons_table(data)
    if data["conditions"]:
        yield _conditions_table(data["conditions"])
    if data["deliveries"]:
        yield _deliveries_table(data["deliveries"])
    if data["downs"]:
        yield _downtimes_table(data["downs"])


def summary_sentences(data: Data) -> Iterator[str]:
    """The summary. A count of zero is left out."""
    if not data["entries"]:
        yield "Nothing ran, and nothing was skipped."
    yield from _run_sentences(data["totals"])
    yield from _cost_sentences(data["totals"])
    yield from _cache_sentences(data["totals"])
    yield from _trend_sentences(data)
    yield from _top_entry_sentences(data["entries"], data["totals"]["dearest_run"])
    yield from _undelivered_sentences(data["deliveries"])
    if downs := data["downs"]:
        times = "once" if len(downs) == 1 else f"{len(downs)} times"
        yield f"The daemon was down {times}, {abbreviate_duration(sum(map(_elapsed_time, downs), timedelta()))} in all."


def _run_sentences(totals: Data) -> Iterator[str]:
    runs, said, failed = totals["runs"], totals["said"], totals["failed"]
    if runs:
        yield f"{format_count(runs, 'run')}: {said:,} with an alert, {max(0, runs - said - failed):,} without, {failed:,} failed."
    elif totals["skipped"]:
        yield "Nothing ran."
    if totals["skipped"]:
        missed = f", {totals['missed']:,} of them missed" if totals["missed"] else ""
        yield f"{format_count(totals['skipped'], 'slot')} skipped{missed}."


def _cost_sentences(totals: Data) -> Iterator[str]:
    tokens = totals["tokens"]
    usage = f"for {abbreviate_count(tokens['input'])} tokens in and {abbreviate_count(tokens['output'])} out"
    if cost := describe_cost(totals["cost_usd"], usage, totals["runs_without_price"], totals["untold_usd"]):
        yield f"Cost {cost}."


def _cache_sentences(totals: Data) -> Iterator[str]:
    """How much of the input came from the provider's cache; nothing if no cache was used."""
    if totals["cache"]["read"] or totals["cache"]["write"]:
        read, write = (format_share(totals["cache"][kind], totals["tokens"]["input"]) for kind in ("read", "write"))
        yield f"{read} of the input tokens were read from the cache, and {write} were written to it."


def _trend_sentences(data: Data) -> Iterator[str]:
    """The runs and the cost of the previous period, and how the cost changed; nothing if nothing happened in it."""
    cost, before = data["totals"]["cost_usd"], data["previous"]["totals"]
    if not before["runs"] and not before["skipped"]:
        return
    known = f", {format_usd(before['cost_usd'])}" if before["cost_usd"] is not None else ""
    yield f"The {abbreviate_duration(_elapsed_time(data['previous']))} before: {format_count(before['runs'], 'run')}{known}."
    if data["previous"]["incomplete"]:
        yield "Some run records of that time were deleted, so it cannot be compared."
    elif not data["previous"]["comparable"]:
        yield f"The first run record is of {format_time(data['previous']['first_record_at'])[:16]}."
    elif cost and before["cost_usd"]:
        percent = round(100 * (cost - before["cost_usd"]) / before["cost_usd"])
        yield "The cost is the same." if not percent else f"The cost {'rose' if percent > 0 else 'fell'} by {abs(percent):,}%."


def format_change(cost: float | None, before: float | None) -> str:
    """The change of a cost in percent; `new` if there was none before, a dash if there is none now."""
    if not cost:
        return "-"
    if not before:
        return "new"
    percent = round(100 * (cost - before) / before)
    return "the same" if percent == 0 else f"{percent:+,}%"


def format_share(part: float, whole: float) -> str:
    """A share in percent; a dash if there is nothing to share."""
    return f"{100 * part / whole:.0f}%" if whole else "-"


def format_cause(cause: Data) -> str:
    """What started runs: the schedule, a job as cron/NAME, or another source with its sender."""
    if cause["source"] == "result":
        return "late results"
    if cause["source"] == Kind.CRON and cause["sender"]:
        return entry_label(Kind.CRON, cause["sender"])
    return " ".join(word for word in (cause["source"], cause["sender"]) if word)


def _top_entry_sentences(entries: list[Data], dearest_run: Data | None) -> Iterator[str]:
    """The most expensive entry, and the entry with the most alerts."""
    if dearest_run:
        alone = f"run {dearest_run['id']} alone {format_usd(dearest_run['cost_usd'])}"
        yield f"Most expensive: {_entry_label(entries[0])} ({format_usd(entries[0]['cost_usd'])}; {alone})."
    most_alerts = max(entries, key=lambda each: each["said"], default=None)
    if most_alerts and most_alerts["said"]:
        yield f"Most alerts: {_entry_label(most_alerts)} ({most_alerts['said']:,} of {sum(each['said'] for each in entries):,})."


def _undelivered_sentences(deliveries: list[Data]) -> Iterator[str]:
    """How many messages wait for a retry or for a person."""
    counts = {state: sum(each[state] for each in deliveries) for state in ("pending", "held", "dead")}
    data = ", ".join(f"{count:,} {state}" for state, count in counts.items() if count)
    if data:
        yield f"Undelivered messages: {data} (`heartbeatd outbox`)."


def _entry_label(row: Data) -> str:
    """The name of an agent or a job, or how many others share the row."""
    return format_count(row["others"], "other") if "others" in row else entry_label(row["kind"], row["name"])


def _fold(shown: list[Data], others: list[Data]) -> list[Data]:
    """The rows of a table. Those that are not `shown` share the last row, with the sums of their numbers."""
    return [*shown, {"others": len(others), **_sum_numbers(others)}] if others else shown


def _sum_numbers(rows: list[Data]) -> Data:
    found: Data = {}
    for key in rows[0]:
        values = [row[key] for row in rows if row[key] is not None]
        if key in ("tokens", "cache"):
            found[key] = _sum_numbers(values)
        elif all(isinstance(value, int | float) for value in values):
            found[key] = sum_costs(values)
    return found


def _number(head: str, key: str) -> Column[Data]:
    return Column(head, lambda row: f"{row[key]:,.0f}", is_number=True)


def _unless_others(text: Callable[[Data], str], instead: str = "") -> Callable[[Data], str]:
    """What a cell shows, but for the row that others share."""
    return lambda row: instead if "others" in row else text(row)


NAME = Column("NAME", _entry_label)
COST = Column[Data]("COST", lambda row: format_cost(row), is_number=True)
MODEL = Column[Data]("MODEL", _unless_others(lambda row: row["model"] or "(not known)"))
RUNS = _number("RUNS", "runs")
TOKENS = (
    Column[Data]("TOKENS IN", lambda row: abbreviate_count(row["tokens"]["input"]), is_number=True),
    Column[Data](
        "CACHED",
        lambda row: format_share(row["cache"]["read"], row["tokens"]["input"]) if row["cache"]["read"] else "-",
        is_number=True,
    ),
    Column[Data]("OUT", lambda row: abbreviate_count(row["tokens"]["output"]), is_number=True),
)
COUNTS = [_number(head, key) for key, head in COUNT_HEADINGS.items()]


def _entries_table(entries: list[Data], *, with_change: bool = False) -> str:
    """The entries that matter most, the most expensive first; all others share one row.

    `with_change` adds how the costs changed from the previous period, if any cost of that is known.
    """
    columns = [NAME, *COUNTS, COST]
    if with_change and any(each["previous_cost_usd"] is not None for each in entries):
        change = _unless_others(lambda row: format_change(row["cost_usd"], row["previous_cost_usd"]), "-")
        columns.append(Column("CHANGE", change, is_number=True))
    return format_list(_fold(*_choose_entries(entries)), columns)


def _choose_entries(entries: list[Data]) -> tuple[list[Data], list[Data]]:
    """The entries for the table, and those that share one row.

    All entries are in the table if there are at most MAX_ENTRIES. Otherwise the most expensive ones (they come first), those with
    the most alerts and those with the most failures are.
    """
    if len(entries) <= MAX_ENTRIES:
        return entries, []
    ranked = [sorted(entries, key=lambda each: -each[word])[:TOP_ENTRIES] for word in ("said", "failed")]
    marked = {id(each) for part in (entries[:TOP_ENTRIES], *ranked) for each in part}
    return [each for each in entries if id(each) in marked], [each for each in entries if id(each) not in marked]


def format_cost(row: Data) -> str:
    """The cost. A plus sign means that some usage has no price or was not reported."""
    more = row["runs_without_price"] or row.get("untold_usd")
    return format_usd(row["cost_usd"]) + ("+" if row["cost_usd"] is not None and more else "")


def _models_table(models: list[Data]) -> str:
    return format_list(models, [MODEL, *COUNTS[:3], *TOKENS, COST])


def _agent_models_table(usage: list[Data]) -> str:
    """The usage of each entry by model. All but the most expensive share one row."""
    return format_list(_fold(usage[:MAX_ENTRIES], usage[MAX_ENTRIES:]), [NAME, MODEL, _number("CALLS", "calls"), *TOKENS, COST])


def _causes_table(causes: list[Data]) -> str:
    """What started the runs, and the agents that ran. All but the most expensive causes share one row."""
    columns = [
        Column("STARTED BY", lambda row: _entry_label(row) if "others" in row else format_cause(row)),
        RUNS,
        COST,
        Column("RUNS OF", _unless_others(lambda row: format_cause_entries(row["entries"]))),
    ]
    return format_list(_fold(causes[:MAX_ENTRIES], causes[MAX_ENTRIES:]), columns)


def format_cause_entries(entries: list[Data]) -> str:
    """The entries that a cause has started, with their runs; only the first ones by name."""
    if len(entries) == 1:
        return _entry_label(entries[0])
    return list_names([f"{_entry_label(each)} {each['runs']:,}" for each in entries], MAX_NAMED)


def _prompt_table(parts: list[Data]) -> str:
    """What filled the prompts, the largest part first, and the agent whose prompts contained most of it."""
    columns: list[Column[Data]] = [
        Column("PROMPT", lambda row: _entry_label(row) if "others" in row else row["part"]),
        Column("RUNS", _unless_others(lambda row: f"{row['runs']:,}"), is_number=True),
        Column("CHARACTERS", lambda row: abbreviate_count(row["chars"]), is_number=True),
        Column("SHARE", lambda row: format_share(row["share"], 1), is_number=True),
        Column("PER RUN", _unless_others(lambda row: abbreviate_count(round(row["chars"] / row["runs"]))), is_number=True),
        Column("MOST IN", _unless_others(lambda row: _entry_label(row["entries"][0]))),
    ]
    return format_list(_fold(parts[:MAX_PARTS], parts[MAX_PARTS:]), columns)


def _reasons_table(data: Data) -> str:
    """The three parts in one table, so that their columns are aligned."""
    rows: list[tuple[str, str, str]] = []
    for part, (title, unit, word) in REASON_TABLES.items():
        if data[part]:
            rows += [("", "", ""), (title, unit, "ENTRIES")]
            rows += [(each[word] or "-", f"{each['count']:,}", _format_shares(each["entries"])) for each in data[part]]
    return format_table(rows[1], rows[2:], numbers=[1])


def _format_shares(entries: list[Data]) -> str:
    if len(entries) == 1:
        return _entry_label(entries[0])
    return ", ".join(f"{_entry_label(each)} {each['count']:,}" for each in entries)


def _conditions_table(found: list[Data]) -> str:
    """The agents that opened most conditions. All others share one row."""
    agents = [{"kind": Kind.HEARTBEAT, **each} for each in found]
    columns = [Column("CONDITIONS", _entry_label), *(_number(word.upper(), word) for word in CONDITION_COUNTS)]
    return format_list(_fold(agents[:MAX_ENTRIES], agents[MAX_ENTRIES:]), columns)


def _deliveries_table(deliveries: list[Data]) -> str:
    states = ("delivered", "pending", "held", "dead", "dropped", "uncertain")
    return format_list(
        deliveries, [Column("CHANNEL", lambda row: row["channel"]), *(_number(each.upper(), each) for each in states)]
    )


def _downtimes_table(downs: list[Data]) -> str:
    """The longest downtimes, in order of time."""
    longest = sorted(downs, key=_elapsed_time)[-MAX_DOWNTIMES:]
    columns: list[Column[Data]] = [
        Column("DOWN FROM", lambda down: format_time(down["since"])),
        Column("UNTIL", lambda down: format_time(down["until"])),
        Column("FOR", lambda down: abbreviate_duration(_elapsed_time(down))),
        Column("CAUSE", lambda down: format_ending(down["clean"])),
    ]
    return format_list([down for down in downs if down in longest], columns)


def _elapsed_time(down: Data) -> timedelta:
    return elapsed_time(down["since"], down["until"])

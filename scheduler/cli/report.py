"""The command `report`: sums up the last days as text or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from scheduler.cli import daemon_state, options
from scheduler.cli.arguments import Span
from scheduler.cli.output import amount, called, local, passed, rough, table, usd, utc_now, wrapped, zone_name
from scheduler.config.file.message_parts import format_count
from scheduler.insight.report_data import build_report as summed

MOST = 12  # entries in the table; what is left over is its last line
EACH = 4  # of those the dearest, the noisiest and the worst
DOWNS = 5  # the longest ones
NUMBERS = ("runs", "said", "failed", "skipped", "missed")
REASONS = {
    "skipped": ("SKIPPED", "SLOTS", "reason"),
    "suppressed": ("NOBODY TOLD", "RUNS", "suppression"),
    "failed": ("FAILED", "RUNS", "reason"),
}

Data = dict[str, Any]


@click.command()
@click.option("--for", "span", type=Span(), default="7d", show_default=True, help="How far back.")
@click.option("--by", type=click.Choice(["entry", "model"]), default="entry", show_default=True, help="What the table lists.")
@options.config
@options.state
@options.form
def report(span: timedelta, by: str, path: Path, state: Path | None, form: str) -> None:
    """Sum up the last days: runs, their cost, what was said, skipped and missed.

    As the command of a cron job with `deliver:` it comes by itself.
    """
    where, until = daemon_state.looked_at(path, state), utc_now()
    with daemon_state.reading(where) as db:
        told = summed(db, until - span, until, running=daemon_state.running(where) is not None) if db else None
    if form == "json":
        click.echo(json.dumps(told, indent=2))
    else:
        click.echo(text(told, by) if told else f"nothing is known yet: there is no database {where.database}")


def text(told: Data, by: str) -> str:
    """A report as a text: its stretch, the whole in words, then tables, the first by `entry` or by `model`."""
    return "\n\n".join(_parts(told, by))


def _parts(told: Data, by: str) -> Iterator[str]:
    """What a reader wants first, then the tables that have something in them."""
    yield f"{local(told['since'])[:16]} to {local(told['until'])[:16]}, {zone_name()} ({rough(_length(told))})"
    yield "\n".join(wrapped(" ".join(_sentences(told)), 0))
    if told["entries"] and by == "entry":
        yield _entries(told["entries"])
    if told["models"] and by == "model":
        yield _models(told["models"])
    if told["skipped"] or told["suppressed"] or told["failed"]:
        yield _reasons(told)
    if told["deliveries"]:
        yield _deliveries(told["deliveries"])
    if told["downs"]:
        yield _downs(told["downs"])


def _sentences(told: Data) -> Iterator[str]:
    """The whole in words; what there was none of is left out."""
    if not told["entries"]:
        yield "Nothing ran, and nothing was skipped."
    yield from _happened(told["totals"])
    yield from _spent(told["totals"])
    yield from _outstanding(told["entries"], told["totals"]["dearest_run"])
    yield from _stuck(told["deliveries"])
    if downs := told["downs"]:
        times = "once" if len(downs) == 1 else f"{len(downs)} times"
        yield f"The daemon was down {times}, {rough(sum(map(_length, downs), timedelta()))} in all."


def _happened(totals: Data) -> Iterator[str]:
    runs, said, failed = totals["runs"], totals["said"], totals["failed"]
    if runs:
        yield f"{format_count(runs, 'run')}: {said:,} said something, {max(0, runs - said - failed):,} quiet, {failed:,} failed."
    elif totals["skipped"]:
        yield "Nothing ran."
    if totals["skipped"]:
        missed = f", {totals['missed']:,} of them missed" if totals["missed"] else ""
        yield f"{format_count(totals['skipped'], 'slot')} skipped{missed}."


def _spent(totals: Data) -> Iterator[str]:
    tokens, unpriced, untold = totals["tokens"], totals["runs_without_price"], totals["untold_usd"]
    if totals["cost_usd"] is None and not unpriced and not untold:
        return
    missing = f"; {format_count(unpriced, 'run')} had no price" if unpriced else ""
    missing += f"; up to {usd(untold)} more that nobody told" if untold else ""
    cost = "not known" if totals["cost_usd"] is None else usd(totals["cost_usd"])
    yield f"Cost {cost} for {amount(tokens['input'])} tokens in and {amount(tokens['output'])} out{missing}."


def _outstanding(entries: list[Data], dearest_run: Data | None) -> Iterator[str]:
    """Who cost most, and who spoke most."""
    if dearest_run:
        alone = f"run {dearest_run['id']} alone {usd(dearest_run['cost_usd'])}"
        yield f"The dearest: {_called(entries[0])} ({usd(entries[0]['cost_usd'])}; {alone})."
    noisiest = max(entries, key=lambda each: each["said"], default=None)
    if noisiest and noisiest["said"]:
        yield f"The noisiest: {_called(noisiest)} ({noisiest['said']:,} of {sum(each['said'] for each in entries):,})."


def _stuck(deliveries: list[Data]) -> Iterator[str]:
    """How many messages wait for a person or a channel."""
    counts = {state: sum(each[state] for each in deliveries) for state in ("pending", "held", "dead")}
    told = ", ".join(f"{count:,} {state}" for state, count in counts.items() if count)
    if told:
        yield f"Messages not arrived: {told} (`heartbeatd outbox`)."


def _called(entry: Data) -> str:
    return called(entry["kind"], entry["name"])


def _entries(entries: list[Data]) -> str:
    """Those that a reader would ask about, the dearest first; all others in one line."""
    shown, others = _chosen(entries)
    rows = [[_called(each), *_numbers(each), _cost(each)] for each in shown]
    if others:
        rows.append([format_count(len(others), "other"), *_numbers(_together(others)), _cost(_together(others))])
    return table(("NAME", *(word.upper() for word in NUMBERS), "COST"), rows, numbers=range(1, len(NUMBERS) + 2))


def _chosen(entries: list[Data]) -> tuple[list[Data], list[Data]]:
    """All where they are few; else the dearest (they come first), the noisiest and those that failed most."""
    if len(entries) <= MOST:
        return entries, []
    ranked = [sorted(entries, key=lambda each: -each[word])[:EACH] for word in ("said", "failed")]
    marked = {id(each) for part in (entries[:EACH], *ranked) for each in part}
    return [each for each in entries if id(each) in marked], [each for each in entries if id(each) not in marked]


def _together(entries: list[Data]) -> Data:
    known = [each["cost_usd"] for each in entries if each["cost_usd"] is not None]
    sums = {word: sum(each[word] for each in entries) for word in (*NUMBERS, "runs_without_price", "untold_usd")}
    return sums | {"cost_usd": sum(known) if known else None}


def _numbers(each: Data) -> list[str]:
    return [f"{each[word]:,}" for word in NUMBERS]


def _cost(each: Data) -> str:
    """A plus says that some of it has no price, or was not told."""
    more = each["runs_without_price"] or each["untold_usd"]
    return usd(each["cost_usd"]) + ("+" if each["cost_usd"] is not None and more else "")


def _models(models: list[Data]) -> str:
    rows = [
        [
            each["model"] or "(none named)",
            *(f"{each[word]:,}" for word in ("runs", "said", "failed")),
            *(amount(count) for count in each["tokens"].values()),
            _cost(each),
        ]
        for each in models
    ]
    return table(("MODEL", "RUNS", "SAID", "FAILED", "TOKENS IN", "OUT", "COST"), rows, numbers=range(1, 7))


def _reasons(told: Data) -> str:
    """One table, so that the three parts of it stand below each other."""
    rows: list[tuple[str, str, str]] = []
    for part, (title, unit, word) in REASONS.items():
        if told[part]:
            rows += [("", "", ""), (title, unit, "BY WHOM")]
            rows += [(each[word] or "-", f"{each['count']:,}", _shares(each["entries"])) for each in told[part]]
    return table(rows[1], rows[2:], numbers=[1])


def _shares(entries: list[Data]) -> str:
    if len(entries) == 1:
        return _called(entries[0])
    return ", ".join(f"{_called(each)} {each['count']:,}" for each in entries)


def _deliveries(deliveries: list[Data]) -> str:
    states = ("delivered", "pending", "held", "dead", "dropped", "uncertain")
    rows = [[each["channel"], *(f"{each[state]:,}" for state in states)] for each in deliveries]
    return table(("CHANNEL", *(state.upper() for state in states)), rows, numbers=range(1, 7))


def _downs(downs: list[Data]) -> str:
    """The longest of them, in their order."""
    longest = sorted(downs, key=_length)[-DOWNS:]
    rows = [
        [
            local(down["since"]),
            local(down["until"]),
            rough(_length(down)),
            "stopped in order" if down["clean"] else "ended unexpectedly",
        ]
        for down in downs
        if down in longest
    ]
    return table(("DOWN FROM", "UNTIL", "FOR", "HOW"), rows)


def _length(down: Data) -> timedelta:
    return passed(down["since"], down["until"])

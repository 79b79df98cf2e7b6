"""The commands `runs` and `show`: list the recorded runs, or show one of them."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import click

from heartbeat.findings import Severity
from heartbeat.words import escape_control, format_count, format_usd
from heartbeatd.answers import ChargedAmounts, RunFinding, RunRecord, RunWake, RunWithWakes, TokenCounts, ToolCallRecord
from scheduler.cli import arguments, daemon_files
from scheduler.cli.colours import Meaning, meaning_of, meaning_of_run
from scheduler.cli.options import InputError
from scheduler.cli.output import (
    entry_label,
    format_elapsed,
    format_fact,
    format_notice,
    format_reason,
    format_short_time,
    format_table,
    format_time,
    shorten_to_line,
    utc_now,
    zone_name,
)
from scheduler.insight.reason_texts import EFFECT_TEXTS
from scheduler.model.budget import describe_unknown
from scheduler.store import run_history
from scheduler.store.run_history import RunFilter

MAX_KEY_WIDTH = 40  # of the key of a finding
MAX_ARGUMENTS_WIDTH = 60  # of the arguments of a tool
JUDGED = ("outcome", "reason", "error")  # the labels that have the colour of the outcome
COLUMNS = ("RUN", "NAME", "SLOT", "TRIGGER", "OUTCOME", "WHY")


def print_runs(
    name: str | None, since: datetime | None, until: datetime | None, outcome: str | None, reason: str | None, sort: str,
    limit: int, path: Path, state: Path | None, form: str,
) -> None:  # fmt: skip
    """Print the runs that match."""
    with daemon_files.open_for_reading(daemon_files.locate_files_or_warn(path, state)) as db:
        kind, wanted = arguments.resolve_recorded(name, db) if db and name else (None, None)
        found = run_history.list_runs(db, RunFilter(kind, wanted, since, until, outcome, reason), limit, sort) if db else []
    if form == "json":
        click.echo(json.dumps([each.as_data() for each in found], indent=2))
    elif found:
        click.echo(_runs_table(found, "COST" if sort == "cost" else "TOOK"))
        click.echo(f"times in {zone_name()}")
    else:
        click.echo("nothing has run yet" if name is None and not (since or until or outcome or reason) else "no run matches")


def print_run(run: int, path: Path, state: Path | None, form: str) -> None:
    """Print one run. Raises InputError if there is no such run."""
    with daemon_files.open_for_reading(daemon_files.locate_files_or_warn(path, state)) as db:
        found = run_history.get_run_with_wakes(db, run) if db else None
    if found is None:
        raise InputError(f"no run {run}; `heartbeatd runs` lists them")
    click.echo(json.dumps(found.as_data(), indent=2) if form == "json" else _format_run(found))


def _runs_table(found: list[RunRecord], last: str) -> str:
    """The runs as a table. `last` is the heading of the last column: COST or TOOK. If workers executed some, it names them."""
    now = utc_now()
    meanings = [_run_meanings(run) for run in found]
    has_workers = any(run.worker for run in found)
    return format_table(
        (*COLUMNS, last, *(["WORKER"] if has_workers else [])),
        [[*_run_row(run, now, last), *([run.worker or ""] if has_workers else [])] for run in found],
        numbers=[len(COLUMNS)],
        meanings=meanings,
    )


def _run_row(run: RunRecord, now: datetime, last: str) -> list[str]:
    return [
        str(run.id),
        entry_label(run.kind, run.name),
        format_short_time(run.slot, now),
        run.trigger,
        (run.outcome or run.state) + (f" x{run.slots}" if run.slots > 1 else ""),
        format_reason(run.reason, run.suppression, run.delivery.state),
        format_usd(run.cost_usd) if last == "COST" else format_elapsed(run.started_at, run.finished_at),
    ]


def _run_meanings(run: RunRecord) -> dict[int, Meaning | None]:
    """The colours of OUTCOME and WHY; a planned skip is dim as a whole."""
    ended = meaning_of_run(run.outcome, run.reason)
    if ended is Meaning.PLANNED:
        return dict.fromkeys(range(len(COLUMNS) + 1), ended)
    return {4: ended, 5: meaning_of(run.delivery.state) or ended}


def _format_run(run: RunWithWakes) -> str:
    ended = meaning_of_run(run.outcome, run.reason)
    lines = [line for word, value in _run_facts(run) for line in format_fact(word, value, ended if word in JUDGED else None)]
    log = f"for the log:\n{run.log}" if run.log else ""
    texts = [text for text in (*map(_format_wake, run.wakes), _format_precheck(run), log, run.text) if text]
    return "\n".join([*lines, *(part for text in texts for part in ("", escape_control(text).rstrip()))])


def _run_facts(run: RunRecord) -> list[tuple[str, str]]:
    """The values of a run with their labels. An empty value is not printed."""
    return [
        ("run", str(run.id)),
        ("entry", entry_label(run.kind, run.name)),
        ("slot", f"{format_time(run.slot)} {zone_name()}"),
        ("slots", str(run.slots) if run.slots > 1 else ""),
        ("trigger", run.trigger),
        ("outcome", run.outcome or run.state),
        ("reason", run.reason or ""),
        ("suppressed", run.suppression or ""),
        ("attempt", str(run.attempt or "")),
        ("next try", format_time(run.not_before) if run.not_before else ""),
        ("started", format_time(run.started_at) if run.started_at else ""),
        ("finished", format_time(run.finished_at) if run.finished_at else ""),
        ("took", format_elapsed(run.started_at, run.finished_at) if run.started_at and run.finished_at else ""),
        ("worker", run.worker or ""),
        ("model", _format_model(run)),
        ("request", run.request_id or ""),
        ("tokens", _format_tokens(run.tokens)),
        ("cost", "" if run.cost_usd is None else format_usd(run.cost_usd)),
        ("charged", _format_charge(run.charged, run.cost_usd) if run.charged else ""),
        ("prompt", ", ".join(f"{part.name} {part.chars}" for part in run.prompt_parts)),
        *(("left out", line) for line in run.left_out),
        ("answer", "truncated at the token limit" if run.truncated else ""),
        *(("finding", _format_finding(each)) for each in run.findings),
        ("result", f"expected until {format_time(run.result_due_at)}" if run.result_due_at else ""),
        *_tool_rows(run.tool_calls),
        ("exit code", "" if run.exit_code is None else str(run.exit_code)),
        ("error", run.error or ""),
        *(("delivery", each.says) for each in run.delivery.targets),
        ("repeats", ", ".join(f"run {run_id}" for run_id in run.repeats)),
        *(("notice", format_notice(each, format_time)) for each in run.notices),
        ("config", run.config_hash or ""),
    ]


def _tool_rows(calls: list[ToolCallRecord]) -> list[tuple[str, str]]:
    """The tools that an agent used: in one line, or each call with its arguments if heartbeatd itself made it."""
    if not any("arguments" in call.model_fields_set for call in calls):
        return [("tools", ", ".join(map(_format_tool_call, calls)))]
    return [("tool", _format_recorded_call(call)) for call in calls]


def _format_recorded_call(call: ToolCallRecord) -> str:
    arguments = shorten_to_line(call.arguments, MAX_ARGUMENTS_WIDTH)
    result = call.error or f"{call.result_bytes:,} bytes"
    return f"{_format_tool_call(call)} {arguments}: {result}"


def _format_tool_call(call: ToolCallRecord) -> str:
    times = f" x{call.count}" if call.count > 1 else ""
    return f"{call.name}{times}" + ("" if call.duration_ms is None else f" {call.duration_ms / 1000:.1f}s")


def _format_finding(finding: RunFinding) -> str:
    """What happened to a finding, or of a condition that the answer does not mention. The text of a finding is in the answer."""
    severity = f" ({finding.severity})" if finding.severity not in (None, Severity.WARNING) else ""
    key = shorten_to_line(finding.key, MAX_KEY_WIDTH)
    return f"{key}{severity}: {EFFECT_TEXTS.get(finding.effect, finding.effect)}"


def _format_wake(wake: RunWake) -> str:
    """A wake that the run was to deliver, with its whole text."""
    times = f", {wake.count} times" if wake.count > 1 else ""
    outcome = f", outcome {wake.outcome}" if wake.outcome else ""
    waits = ", still waiting" if wake.state == "waiting" else ""
    return f"wake {wake.id} by {wake.source} {wake.sender}{times}{outcome}{waits}:\n{wake.text or '(no text)'}"


def _format_precheck(run: RunRecord) -> str:
    checked = run.precheck
    if checked is None:
        return ""
    ending = "did not end by itself" if checked.exit_code is None else f"exit code {checked.exit_code}"
    title = f"precheck failed, {checked.error}" if checked.error else f"precheck, {ending}:"
    return f"{title}\n{checked.output.strip() or '(no output)'}"


def _format_model(run: RunRecord) -> str:
    requested, used = run.model_requested, run.model_used
    return f"{requested}, answered by {used}" if requested and used and requested != used else requested or used or ""


def _format_tokens(tokens: TokenCounts) -> str:
    return ", ".join(f"{kind.replace('_', ' ')} {count:,}" for kind, count in tokens if count)


def _format_charge(charged: ChargedAmounts, cost: float | None) -> str:
    """The amounts that the run counts in its budgets."""
    unknown = describe_unknown(charged.usd - (cost or 0))
    return f"{charged.usd:.6f} USD, {format_count(charged.tokens or 0, 'token')}{unknown}"

"""The commands that list or show what is recorded: `runs`, `show`, `problems` and `outbox`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from heartbeat.findings import Severity
from heartbeat.words import abbreviate_duration, escape_control, format_count, format_usd
from heartbeatd import answers
from heartbeatd.questions import ListRuns
from scheduler.cli import options, output
from scheduler.cli.daemon_files import Source, find_problems
from scheduler.cli.operation_options import Make
from scheduler.insight.reason_texts import notice_text
from scheduler.model.budget import describe_unknown
from scheduler.model.expected_error import InputError
from scheduler.model.levels import Level, level_of, level_of_run
from scheduler.model.problem import Effect, EndedBy
from scheduler.store import run_history
from scheduler.store.outbox import hold_text, list_messages
from scheduler.store.run_history import RunFilter

MAX_KEY_WIDTH = 40  # of the key of a finding
MAX_ARGUMENTS_WIDTH = 60  # of the arguments of a tool
JUDGED = ("result", "why", "error")  # the labels that have the colour of the result


def print_runs(make: Make[ListRuns], name: str | None, limit: int, source: Source) -> None:
    """Print the runs that match."""
    asked = make()
    with source.open() as db:
        kind, wanted = options.resolve_recorded(name, db) if name else (None, None)
        filtered = RunFilter(kind, wanted, asked.since, asked.until, asked.result, asked.why)
        found = run_history.list_runs(db, filtered, limit, asked.sort)
    empty = "nothing has run yet" if name is None and asked.model_fields_set <= {"sort"} else "no run matches"
    output.print_list(found, source.form, _run_columns(found, asked.sort, output.utc_now()), empty=empty, level=_planned_level)


def print_run(run: int, source: Source) -> None:
    """Print one run. Raises InputError if there is no such run."""
    with source.open() as db:
        found = run_history.get_run_with_wakes(db, run)
    if found is None:
        raise InputError(f"no run {run}; `heartbeatd runs` lists them")
    output.print_answer(found.as_data(), source.form, _run_lines(found))


def _run_columns(found: list[answers.RunRecord], sort: str, now: datetime) -> list[output.Column[answers.RunRecord]]:
    """The last columns depend on the order, and on whether workers executed some of the runs."""
    columns: list[output.Column[answers.RunRecord]] = [
        output.Column("RUN", lambda run: str(run.id)),
        output.Column("NAME", output.entry_label),
        output.Column("PLANNED", lambda run: output.format_short_time(run.planned_at, now)),
        output.Column("STARTED BY", lambda run: run.trigger),
        output.Column(
            "RESULT",
            lambda run: (run.result or run.state) + (f" x{run.planned_runs}" if run.planned_runs > 1 else ""),
            level=lambda run: level_of_run(run.result, run.why),
        ),
        output.Column(
            "WHY",
            lambda run: (
                "asks a person"
                if any(each.state == "open" for each in run.questions)
                else output.format_why(run.why, run.delivery.state)
            ),
            level=lambda run: level_of(run.delivery.state) or level_of_run(run.result, run.why),
        ),
        output.Column("SPENT", lambda run: format_usd(run.cost_usd), is_number=True)
        if sort == "cost"
        else output.Column("TOOK", lambda run: output.format_elapsed(run.started_at, run.finished_at), is_number=True),
    ]
    return [*columns, output.Column("WORKER", lambda run: run.worker or "")] if any(run.worker for run in found) else columns


def _planned_level(run: answers.RunRecord) -> Level | None:
    """A planned skip is dim as a whole."""
    return Level.PLANNED if level_of_run(run.result, run.why) is Level.PLANNED else None


def _run_lines(run: answers.RunWithWakes) -> Iterator[str]:
    ended = level_of_run(run.result, run.why)
    for word, value in _run_facts(run):
        yield from output.format_fact(word, value, ended if word in JUDGED else None)
    log = f"for the log:\n{run.log}" if run.log else ""
    given = (*map(_format_question, run.questions), *map(_format_wake, run.wakes), _format_precheck(run), log)
    said = output.answer_text(run)
    title = "answer" if output.is_answer(run) else "output"
    for text in (*map(escape_control, given), f"{title}:\n{said}" if said else ""):
        yield from ("", text.rstrip()) if text else ()


def _run_facts(run: answers.RunRecord) -> list[tuple[str, str]]:
    """The values of a run with their labels. An empty value is not printed."""
    return [
        ("run", str(run.id)),
        ("name", output.entry_label(run)),
        ("planned", f"{output.format_time(run.planned_at)} {output.zone_name()}"),
        ("in all", format_count(run.planned_runs, "planned run") if run.planned_runs > 1 else ""),
        ("started by", run.trigger),
        ("result", run.result or run.state),
        ("why", run.why or ""),
        ("tries", str(run.tries) if run.tries > 1 or run.not_before else ""),
        ("next try", output.format_time(run.not_before) if run.not_before else ""),
        ("started", output.format_time(run.started_at) if run.started_at else ""),
        ("finished", output.format_time(run.finished_at) if run.finished_at else ""),
        ("took", output.format_elapsed(run.started_at, run.finished_at) if run.started_at and run.finished_at else ""),
        ("worker", run.worker or ""),
        ("model", _format_model(run)),
        ("fallback", f"{run.fallback}: {run.fallback_why}" if run.fallback else ""),
        ("request", run.request_id or ""),
        ("tokens", _format_tokens(run.tokens)),
        ("spent", "" if run.cost_usd is None else format_usd(run.cost_usd)),
        ("in budgets", _format_charge(run.charged, run.cost_usd) if run.charged else ""),
        ("prompt", ", ".join(f"{part.name} {format_count(part.tokens, 'token')}" for part in run.prompt_parts)),
        *(("left out", line) for line in run.left_out),
        ("answer", "truncated at the token limit" if run.truncated else ""),
        *(("finding", _format_finding(each)) for each in run.findings),
        ("answer", f"expected until {output.format_time(run.result_due_at)}" if run.result_due_at else ""),
        *_tool_rows(run.tool_calls),
        ("exit code", "" if run.exit_code is None else str(run.exit_code)),
        ("error", run.error or ""),
        *(("delivery", text) for text in _delivery_texts(run)),
        *(("notice", notice_text(each, output.format_time)) for each in run.notices),
        ("config", run.config_hash or ""),
    ]


def _delivery_texts(run: answers.RunRecord) -> list[str]:
    """What became of the messages of a run, or of those of the earlier runs that it repeats."""
    by = f" (by {', '.join(f'run {run_id}' for run_id in run.repeats)})" if run.repeats else ""
    texts = [each.says for each in run.delivery.targets] or [run.delivery.state]
    return [f"{text}{by}" for text in dict.fromkeys(texts) if text != "none"]


def _tool_rows(calls: list[answers.ToolCallRecord]) -> list[tuple[str, str]]:
    """The tools that an agent used: in one line, or each call with its arguments if heartbeatd itself made it."""
    if not any("arguments" in call.model_fields_set for call in calls):
        return [("tools", ", ".join(map(_format_tool_call, calls)))]
    return [("tool", _format_recorded_call(call)) for call in calls]


def _format_recorded_call(call: answers.ToolCallRecord) -> str:
    arguments = output.shorten_to_line(call.arguments, MAX_ARGUMENTS_WIDTH)
    result = call.error or f"{call.result_bytes:,} bytes"
    return f"{_format_tool_call(call)} {arguments}: {result}"


def _format_tool_call(call: answers.ToolCallRecord) -> str:
    times = f" x{call.count}" if call.count > 1 else ""
    return f"{call.name}{times}" + ("" if call.duration_ms is None else f" {call.duration_ms / 1000:.1f}s")


def _format_finding(finding: answers.RunFinding) -> str:
    """What happened to a finding, or of a problem that the answer does not mention. The text of a finding is in the answer."""
    severity = f" ({finding.severity})" if finding.severity not in (None, Severity.WARNING) else ""
    key = output.shorten_to_line(finding.key, MAX_KEY_WIDTH)
    return f"{key}{severity}: {Effect.text_of(finding.effect)}"


def _format_question(asked: answers.PersonQuestion) -> str:
    ended = f" at {output.format_time(asked.ended_at)}" if asked.ended_at else ""
    return (
        f"question {asked.id} at {output.format_time(asked.asked_at)} by {asked.asked_by}:\n{asked.text}\n{asked.course}{ended}"
    )


def _format_wake(wake: answers.RunWake) -> str:
    """A wake that the run was to deliver, with its whole text."""
    return f"{wake.title}{', still waiting' if wake.state == 'waiting' else ''}:\n{wake.text or '(no text)'}"


def _format_precheck(run: answers.RunRecord) -> str:
    checked = run.precheck
    if checked is None:
        return ""
    ending = "did not end by itself" if checked.exit_code is None else f"exit code {checked.exit_code}"
    is_look = checked.exit_code is None and bool(checked.output)  # at a source
    title = f"precheck failed, {checked.error}" if checked.error else "precheck:" if is_look else f"precheck, {ending}:"
    return f"{title}\n{checked.output.strip() or '(no output)'}"


def _format_model(run: answers.RunRecord) -> str:
    requested, used = run.model_requested, run.model_used
    return f"{requested}, answered by {used}" if requested and used and requested != used else requested or used or ""


def _format_tokens(tokens: answers.TokenCounts) -> str:
    return ", ".join(f"{kind.replace('_', ' ')} {count:,}" for kind, count in tokens if count)


def _format_charge(charged: answers.ChargedAmounts, cost: float | None) -> str:
    """The amounts that the run counts in its budgets."""
    unknown = describe_unknown(charged.usd - (cost or 0))
    return f"{charged.usd:.6f} USD, {format_count(charged.tokens or 0, 'token')}{unknown}"


MAX_LISTED_KEY = 18  # a longer key is printed on a line of its own, because the table may have to cut it


def print_problems(name: str | None, also_over: bool, source: Source) -> None:
    """Print everything that is wrong, or one problem. Raises InputError for an unknown name or number."""
    now, advice = output.utc_now(), "`heartbeatd problems --all` lists all problems"
    with source.open() as db:
        found = find_problems(db, source.config, name, now, also_over=also_over, advice=advice)
    columns = [
        output.Column[answers.Problem]("PROBLEM", lambda each: each.number),
        output.Column("SUBJECT", lambda each: each.subject),
        output.Column("KEY", lambda each: each.key),
        output.Column("SEVERITY", lambda each: each.severity),
        output.Column("SINCE", lambda each: output.format_short_time(each.since, now)),
        output.Column("STATE", lambda each: _state_of_problem(each, now)),
    ]
    empty = "there are no problems" if also_over else "there are no open problems"
    output.print_list(found, source.form, columns, empty=empty, details=lambda each: _problem_details(each, now))


def _state_of_problem(each: answers.Problem, now: datetime) -> str:
    state = f"over {output.format_short_time(each.over, now)}" if each.over else each.state
    return state + (", unstable" if each.unstable else "") + (", acknowledged" if each.acknowledged_at else "")


def _problem_details(each: answers.Problem, now: datetime) -> Iterator[str]:
    """Its text, what it is the consequence of, and what each recipient was sent last."""
    if len(each.key) > MAX_LISTED_KEY:
        yield each.key
    yield from (each.text or "").strip().splitlines()[:1]
    if acknowledged := each.acknowledged(lambda at: output.format_short_time(at, now)):
        yield f"{acknowledged}: no messages until it is worse or over"
    if each.ended_by:
        yield f"over: {EndedBy.text_of(each.ended_by)}"
    yield from each.sent(lambda at: output.format_short_time(at, now))


def print_messages(limit: int, source: Source) -> None:
    """Print the messages that are not delivered."""
    with source.open() as db:
        found = list(list_messages(db))
    now, more = output.utc_now(), max(0, len(found) - limit)
    columns: list[output.Column[answers.QueuedMessage]] = [
        output.Column("ID", lambda each: f"{each.id}" + (f" {each.part}/{each.parts}" if each.parts > 1 else "")),
        output.Column("AGE", lambda each: abbreviate_duration(now - each.created_at)),
        output.Column("NAME", output.entry_label),
        output.Column("CHANNEL", lambda each: each.channel),
        output.Column("STATE", lambda each: each.state),
        output.Column("TRIES", lambda each: str(each.tries)),
        output.Column("NEXT TRY", lambda each: output.format_short_time(each.next_try_at, now)),
        output.Column("RUN", lambda each: str(each.run or "-")),
    ]
    empty = "there are no undelivered messages"
    output.print_list(found[:limit], source.form, columns, empty=empty, more=more, details=_message_details)


def _message_details(each: answers.QueuedMessage) -> list[str]:
    """Why it waits, its last error, and the beginning of its text."""
    words = f"“{each.begins.strip()}”"
    held = hold_text(each.held_back_for) if each.held_back_for else None
    return [line for line in (held, each.error, words) if line]

"""Calls an agent by running a program: the prompt goes to its standard input, the answer comes from its standard output.

Claude Code also gets its arguments here, from the config alone: nothing of a prompt or an answer becomes an argument.
The output is plain text, or a JSON report with the text or findings, the usage and the tool calls.
`claude -p --output-format json`, `gemini --output-format json` and similar programs print one object, with the text under one of
four names. `claude -p --output-format stream-json --verbose` prints one object per event, and the report as the last line.
Output that is not clearly such a report is plain text, even if it happens to be JSON.
An error may say that the usage limit of a subscription is reached, and until when.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal
from itertools import islice
from zoneinfo import ZoneInfo

from heartbeat import findings
from heartbeat.findings import InvalidFindings, Report
from heartbeat.runners import MAX_ANSWER, MAX_REPORT, AgentRequest, Answer, Failure, ProcessResult, StartProcess, ToolCall
from heartbeat.runners.agent_json import (
    MAX_TOOL_CALLS,
    answer_from_report,
    clean_text,
    is_truncated,
    make_tool_call,
    model_name,
    usage_of_report,
    with_text,
)
from heartbeat.runners.call_errors import error_of_process, find_message, redacted_line, too_large_error
from heartbeat.runners.redaction import Redactor, redactor_for_env
from heartbeat.spec import CommandRunner

TEXT_KEYS = ("result", "text", "response", "output")
COST_LIMIT = "error_max_budget_usd"  # a subtype of reports of Claude Code
LIMIT_SUBTYPES = ("error_max_turns", COST_LIMIT)

Event = Mapping[str, object]


async def call_agent(run: AgentRequest, runner: CommandRunner, start: StartProcess) -> Answer:
    """Run the agent's program in its workspace and read its answer.

    The program gets the runner's own `env`, HEARTBEATD_AGENT, HEARTBEATD_META (JSON) and, if the config sets
    them, HEARTBEATD_MODEL and HEARTBEATD_EFFORT.
    Only with exit code 0 is its output the answer, which `parse_report` reads. Any other end is a failure without a text. The
    usage counts in every case if the output reports it. Secrets in the runner's `env` are redacted in everything that the
    program prints.
    """
    argv, own = _arguments(run, runner), runner.variables
    env = {**own, **_agent_variables(run)}
    stdin = run.prompt.encode(errors="replace")
    own_end = run.timeout if run.ends_itself else None
    ended = await start(argv, stdin=stdin, env=env, cwd=run.workspace, keep=MAX_REPORT, keep_tail=True, timeout=own_end)
    redactor, text = redactor_for_env(own), ended.output.decode(errors="replace")
    if ended.truncated:  # only whole lines: a stream of events has its report in the last line
        text = text.partition("\n")[2]
    report = parse_report(text, redactor, _usd_limit(run) if runner.claude else "")
    error = error_of_process(ended, run.timeout, redactor, with_output=report is None)
    if error is None:
        return _with_limit(run, runner, report) if report else _plain_answer(ended, text, redactor)
    # Programs that report an error also exit with an error code. The report has the error in the program's own words.
    failed = error.answer
    if report is None or failed.failure is not Failure.EXIT:
        return _with_limit(run, runner, failed)
    if report.failure:
        return _with_limit(run, runner, replace(report, error=f"{failed.error}: {report.error}"))
    return _with_limit(
        run, runner, replace(report, text="", failure=failed.failure, error=failed.error, transient=failed.transient)
    )


def _arguments(run: AgentRequest, runner: CommandRunner) -> tuple[str, ...]:
    if runner.claude is None:
        return runner.argv
    options = {"--model": run.model, "--effort": run.effort, "--max-budget-usd": _usd_limit(run)}
    chosen = [word for option, value in options.items() if value for word in (option, value)]
    allow = runner.claude.allow  # comes last, because this option takes all arguments after it
    return (*runner.argv, "-p", "--output-format", "json", *chosen, *(("--allowedTools", *allow) if allow else ()))


def _usd_limit(run: AgentRequest) -> str:
    """The cost at which Claude Code stops, without an exponent; empty without a limit."""
    return f"{Decimal(str(run.usd_per_try)):f}" if run.usd_per_try else ""


def _with_limit(run: AgentRequest, runner: CommandRunner, answer: Answer) -> Answer:
    """The answer. If it failed because a usage limit is reached, it says so, and until when.

    Only what a program prints as its own error counts: an answer that mentions a limit is an answer.
    """
    if answer.failure is not Failure.EXIT or answer.not_sent or run.clock is None:
        return answer
    now = run.clock()
    until = limited_until(answer.error, now, runner.limit_pattern)
    if until is None:
        return answer
    error = f"until {until.astimezone(now.tzinfo):%Y-%m-%d %H:%M}: {answer.error}"
    return replace(answer, failure=Failure.LIMITED, error=error, transient=False, retry_after=until - now)


def _agent_variables(run: AgentRequest) -> dict[str, str]:
    meta = json.dumps(run.meta(), ensure_ascii=False).encode(errors="replace").decode()
    facts = {"HEARTBEATD_AGENT": run.agent, "HEARTBEATD_META": meta}
    chosen = {"HEARTBEATD_MODEL": run.model, "HEARTBEATD_EFFORT": run.effort}
    return facts | {name: value for name, value in chosen.items() if value}


def _plain_answer(ended: ProcessResult, text: str, redactor: Redactor) -> Answer:
    if ended.truncated or len(ended.output) > MAX_ANSWER:
        return too_large_error(ended, redactor).answer
    unreadable = text.count("\ufffd") + text.count("\0")
    if unreadable * 10 > len(text):
        return Answer(failure=Failure.BAD_ANSWER, error=f"the answer is not text: {len(ended.output)} bytes of binary output")
    return Answer(text=clean_text(redactor.redact(text)))


def parse_report(output: str, redactor: Redactor, usd_limit: str = "") -> Answer | None:
    """The answer in a report, redacted. None if the output is not a report. `usd_limit` is what the call could cost at most.

    The text is under `result`, `text`, `response` or `output`, and there may be a list of `findings`. With `is_error: true`, an
    `error`, or a `subtype` of Claude Code that begins with `error`, the answer is a failure. Its message is the error, else the
    `errors`, the text or the subtype. These keys are read too: `total_cost_usd` or `cost_usd`, `usage` or `tokens`, `model` or
    the only name in `modelUsage`, `tool_calls`, `log`, `remind`, and `truncated` or a `stop_reason` with the same meaning.
    Without `tool_calls` the tool calls are taken from the events or the statistics.
    """
    events = _report_events(output)
    if not events:
        return None
    report, spent = events[-1], _report_usage(events, redactor)
    text = _report_text(report)
    if _is_failure(report) or report.get("error"):
        error = redacted_line(f"the agent failed: {_failure_words(report)}", redactor)
        if usd_limit and report.get("subtype") == COST_LIMIT:
            error = f"{error}; usd_per_try is {usd_limit}, write a higher one"
        # Another try would take as many turns, and cost as much.
        return replace(spent, failure=Failure.EXIT, error=error, transient=report.get("subtype") not in LIMIT_SUBTYPES)
    spent = replace(spent, truncated=is_truncated(report))
    found = _report_findings(report, redactor)
    if found is not None:
        return answer_from_report(spent, found)
    if text is None:
        return None
    return with_text(spent, redactor.redact(text))


def _report_events(output: str) -> list[Event]:
    """The report and the events before it, if there are any. Empty if the output is not a report."""
    value = _parse_json(output)
    if isinstance(value, dict):
        return [value] if _is_report(value) else []
    events = value if isinstance(value, list) else []
    is_stream = all(isinstance(event, dict) and isinstance(event.get("type"), str) for event in events)
    return events if events and is_stream and events[-1]["type"] == "result" and _is_report(events[-1]) else []


def _parse_json(output: str) -> object:
    """The JSON in the output, None if it is not JSON. JSON lines become a list."""
    start = output.lstrip()[:1]
    if start not in ("{", "["):
        return None
    with suppress(ValueError, RecursionError):
        return json.loads(output)
    with suppress(ValueError, RecursionError):
        return [json.loads(line) for line in output.split("\n") if line.strip()]
    return None


def _is_report(event: Event) -> bool:
    """Whether the event has a text or findings, or reports an error."""
    return _report_text(event) is not None or isinstance(event.get("findings"), list) or _is_failure(event)


def _is_failure(report: Event) -> bool:
    """Whether a report says that there is no answer. Older versions of Claude Code wrote `is_error: false` at a limit."""
    subtype = report.get("subtype") if report.get("type") == "result" else None
    return report.get("is_error") is True or (isinstance(subtype, str) and subtype.startswith("error"))


def _failure_words(report: Event) -> str:
    errors = report.get("errors")
    listed = "; ".join(words for each in (errors if isinstance(errors, list) else ()) if (words := find_message(each)))
    subtype = str(report.get("subtype") or "no reason given").replace("_", " ")
    return find_message(report.get("error")) or listed or _report_text(report) or subtype


def _report_text(report: Event) -> str | None:
    return next((text for name in TEXT_KEYS if isinstance(text := report.get(name), str)), None)


def _report_findings(report: Event, redactor: Redactor) -> Report | None:
    """The findings, why the agent could not do its work, and the text beside them, redacted.

    None if there is neither a list of findings nor a text `failed`, or if nothing in the list can be read.
    """
    found, failed = report.get("findings"), report.get("failed")
    if not isinstance(found, list) and not (isinstance(failed, str) and failed.strip()):
        return None
    given = {"findings": found if isinstance(found, list) else [], "failed": failed}
    try:
        return findings.parse_report(
            {name: _redact_data(part, redactor) for name, part in given.items()}
            | {"text": redactor.redact(_report_text(report) or "")}
        )
    except InvalidFindings:
        return None


def _redact_data(value: object, redactor: Redactor, depth: int = 4) -> object:
    """JSON data with redacted texts. What is nested deeper than `depth` is left out."""
    if isinstance(value, str):
        return redactor.redact(value)
    if not isinstance(value, list | dict):
        return value
    if depth == 0:
        return "..."
    if isinstance(value, list):
        return [_redact_data(each, redactor, depth - 1) for each in value]
    return {redactor.redact(name): _redact_data(each, redactor, depth - 1) for name, each in value.items()}


def _report_usage(events: list[Event], redactor: Redactor) -> Answer:
    """The usage of the run as an answer without a text."""
    report = events[-1]
    used = report.get("modelUsage")
    models = list(used) if isinstance(used, Mapping) else []
    spent = usage_of_report(report, redactor)
    calls = spent.tool_calls or tuple(islice(find_tool_calls(events), MAX_TOOL_CALLS))
    log = "\n".join(filter(None, [spent.log, redactor.redact(_refused_tools(report))]))
    return replace(
        spent,
        log=log or None,
        model_used=spent.model_used or (model_name(models[0]) if len(models) == 1 else None),
        tool_calls=tuple(replace(call, name=redactor.redact(call.name)) for call in calls),
    )


def _refused_tools(report: Event) -> str:
    """A line about the tools that Claude Code was not allowed to use; empty if there are none."""
    denials = report.get("permission_denials")
    found = [each.get("tool_name") for each in denials if isinstance(each, Mapping)] if isinstance(denials, list) else []
    names = dict.fromkeys(name for each in found[:MAX_TOOL_CALLS] if (name := model_name(each)))
    remedy = "write the tools that it needs into allow, or behind --allowedTools"
    return f"was not allowed to use {', '.join(names)}; {remedy}" if names else ""


def find_tool_calls(events: Sequence[Event]) -> Iterator[ToolCall]:
    """The tool calls in the events. If there are none, those counted in the statistics of the last event."""
    ended = {ident: _event_time(event) for event in events for ident in _result_ids(event)}
    for event in events:
        for block in _content_blocks(event, "tool_use"):
            if call := make_tool_call(block.get("name"), 1, _duration_ms(_event_time(event), ended.get(str(block.get("id"))))):
                yield call
    yield from _calls_in_stats(events[-1].get("stats"))


def _calls_in_stats(stats: object) -> Iterator[ToolCall]:
    """The calls by tool name, as in the `stats.tools.byName` of Gemini's command line."""
    tools = stats.get("tools") if isinstance(stats, Mapping) else None
    names = tools.get("byName") if isinstance(tools, Mapping) else None
    for name, entry in names.items() if isinstance(names, Mapping) else ():
        if isinstance(entry, Mapping) and (call := make_tool_call(name, entry.get("count"), entry.get("durationMs"))):
            yield call


def _result_ids(event: Event) -> Iterator[str]:
    """The IDs of the calls whose results are in this event."""
    return (ident for block in _content_blocks(event, "tool_result") if isinstance(ident := block.get("tool_use_id"), str))


def _content_blocks(event: Event, kind: str) -> Iterator[Mapping[str, object]]:
    message = event.get("message")
    content = message.get("content") if isinstance(message, Mapping) else None
    for block in content if isinstance(content, list) else ():
        if isinstance(block, Mapping) and block.get("type") == kind:
            yield block


def _duration_ms(begun: datetime | None, ended: datetime | None) -> float | None:
    """Milliseconds. None if one of the times is unknown, or if the end is before the start."""
    return (ended - begun).total_seconds() * 1000 if begun and ended and ended >= begun else None


def _event_time(event: Event) -> datetime | None:
    """The time of an event, if it has one with a UTC offset."""
    text = event.get("timestamp")
    try:
        found = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return found if found and found.tzinfo else None


UNKNOWN_TIME = timedelta(minutes=30)  # when a program is tried again that does not say until when its usage limit lasts
LONGEST_LIMIT = timedelta(days=32)  # a later time is not believed
JUST_PASSED = timedelta(minutes=10)  # a time of day that has passed so recently means today, not tomorrow

# The texts are those that Claude Code, Codex and Gemini CLI print, as people quote them in the issues of these projects:
# `You've hit your session limit · resets 7:10pm (America/Los_Angeles)`, `Claude AI usage limit reached|1762952400`, `You've hit
# your usage limit. ... try again in 5 days 22 hours 11 minutes.`, `Your quota will reset after 1h49m8s.`
_REACHED = re.compile(
    r"you['’]ve (?:hit|reached) your (?:[\w'’]+ ){0,3}limit|(?:usage|session|weekly|5-hour) limit (?:has been )?reached"
    r"|out of extra usage|usage_limit_reached|exhausted your (?:daily )?(?:capacity|quota)|TerminalQuotaError",
    re.IGNORECASE,
)
_EPOCH = re.compile(r"(?:limit reached\||\"?resets_?at\"?\s*[:=]\s*)(\d{10})(?!\d)", re.IGNORECASE)
_SECONDS = re.compile(r"\"?resets_in_seconds\"?\s*[:=]\s*(\d{1,8})", re.IGNORECASE)
_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_PART = r"\d{1,4}(?:\.\d+)?\s*(?:days?|hours?|minutes?|mins?|seconds?|secs?|[dhms](?![a-z]))"
_SPAN = re.compile(rf"(?:try again in|reset after|resets? in)\s+((?:{_PART}[\s,]*(?:and\s+)?)+)", re.IGNORECASE)
_MONTHS = {
    name: number + 1
    for number, name in enumerate(["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"])
}
_CLOCK = re.compile(
    r"(?:resets?|try again)(?:\s+at|\s+on)?\s+"
    r"(?:(?P<month>[A-Z][a-z]{2})[a-z]*\s+(?P<day>\d{1,2})(?:st|nd|rd|th)?(?:,?\s+(?P<year>20\d\d))?,?\s+(?:at\s+)?)?"
    r"(?P<hour>\d{1,2})(?::(?P<minute>[0-5]\d))?\s*(?P<half>[ap]m)?(?:\s*\((?P<zone>[A-Za-z0-9_+/-]+)\))?",
    re.IGNORECASE,
)


def limited_until(error: str, now: datetime, pattern: str | None = None) -> datetime | None:
    """Until when a usage limit blocks the program that failed with this text; None if no limit is the reason.

    `now` is in the zone of times without a zone of their own. `pattern` is a further expression for the text of a limit. If the
    text has no time that can be read, it is tried again after half an hour. The answer is in UTC: between two times of one zone,
    Python counts the hours of its clocks, which are changed twice a year.
    """
    if _REACHED.search(error) is None and (pattern is None or re.search(pattern, error) is None):
        return None
    begin = now.astimezone(UTC)
    try:
        until = _find_time(error, begin, now.tzinfo)
    except OverflowError:  # more days than the calendar has
        until = None
    is_believed = until is not None and begin < until <= begin + LONGEST_LIMIT
    return until if until is not None and is_believed else begin + UNKNOWN_TIME


def _find_time(error: str, now: datetime, zone: tzinfo | None) -> datetime | None:
    if found := _EPOCH.search(error):
        return datetime.fromtimestamp(int(found[1]), UTC)
    if found := _SECONDS.search(error):
        return now + timedelta(seconds=int(found[1]))
    if found := _SPAN.search(error):
        parts = re.findall(r"(\d+(?:\.\d+)?)\s*([dhms])", found[1].lower())
        return now + timedelta(seconds=sum(float(number) * _UNITS[unit] for number, unit in parts))
    found = _CLOCK.search(error)
    at = _clock_time(found, now.astimezone(zone)) if found else None
    return at and at.astimezone(UTC)


def _clock_time(found: re.Match[str], now: datetime) -> datetime | None:
    """The next time with this reading, on its day if it names one; None if there is no such time, or it has just passed."""
    try:
        local = now.astimezone(ZoneInfo(found["zone"])) if found["zone"] else now
        hour, minute = int(found["hour"]), int(found["minute"] or 0)
        if found["half"]:
            hour = hour % 12 + (12 if found["half"].lower() == "pm" else 0)
        named = {"month": _MONTHS[found["month"].lower()], "day": int(found["day"])} if found["month"] else {}
        named |= {"year": int(found["year"])} if found["year"] else {}
        at = local.replace(hour=hour, minute=minute, second=0, microsecond=0, fold=0).replace(**named)  # type: ignore[arg-type]
        # Programs round the time down. So the call at this time may still be too early, and a day later is too late.
        if not named and (local - at) % timedelta(days=1) < JUST_PASSED:
            return None
        both = at, at.replace(fold=1)  # in autumn, clocks show the times of an hour twice
        coming = next((each for each in both if each.astimezone(UTC) > now.astimezone(UTC)), None)
        if coming or found["year"]:
            return coming or at
        return at.replace(year=at.year + 1) if named else (at.replace(tzinfo=None) + timedelta(days=1)).replace(tzinfo=at.tzinfo)
    except (KeyError, ValueError, OSError):  # no such zone (OSError: a folder of zones, or a long name), month or day
        return None

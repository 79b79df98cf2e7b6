"""Reads what an agent's program printed: plain text, or a JSON report with the text or findings, the usage and the tool calls.

`claude -p --output-format json`, `gemini --output-format json` and similar programs print one object, with the text under one of
four names. `claude -p --output-format stream-json --verbose` prints one object per event, and the report as the last line.
Output that is not clearly such a report is plain text, even if it happens to be JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import islice

from heartbeat import findings
from heartbeat.findings import InvalidFindings, Report
from heartbeat.runners import Answer, Failure, ToolCall
from heartbeat.runners.agent_json import (
    MAX_TOOL_CALLS,
    answer_from_report,
    is_truncated,
    make_tool_call,
    model_name,
    usage_of_report,
    with_text,
)
from heartbeat.runners.errors import find_message, redacted_line
from heartbeat.runners.redaction import Redactor

TEXT_KEYS = ("result", "text", "response", "output")

Event = Mapping[str, object]


def parse_report(output: str, redactor: Redactor) -> Answer | None:
    """The answer in a report, redacted. None if the output is not a report.

    The text is under `result`, `text`, `response` or `output`, and there may be a list of `findings`. With `is_error: true` or
    an `error` the answer is a failure; its message is the error, or else the text. These keys are read too: `total_cost_usd` or
    `cost_usd`, `usage` or `tokens`, `model` or the only name in `modelUsage`, `tool_calls`, `log`, and `truncated` or a
    `stop_reason` with the same meaning. Without `tool_calls` the tool calls are taken from the events or the statistics.
    """
    events = _report_events(output)
    if not events:
        return None
    report, spent = events[-1], _report_usage(events, redactor)
    text = _report_text(report)
    if report.get("is_error") is True or report.get("error"):
        message = find_message(report.get("error")) or text or str(report.get("subtype") or "no reason given")
        error = redacted_line(f"the agent failed: {message}", redactor)
        return replace(spent, failure=Failure.EXIT, error=error, transient=True)
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
    try:
        return json.loads(output) if start in ("{", "[") else None
    except (ValueError, RecursionError):
        return _parse_json_lines(output) if start == "{" else None


def _parse_json_lines(output: str) -> list[object]:
    try:
        return [json.loads(line) for line in output.split("\n") if line.strip()]
    except (ValueError, RecursionError):
        return []


def _is_report(event: Event) -> bool:
    """Whether the event has a text or findings, or reports an error."""
    return _report_text(event) is not None or isinstance(event.get("findings"), list) or event.get("is_error") is True


def _report_text(report: Event) -> str | None:
    return next((text for name in TEXT_KEYS if isinstance(text := report.get(name), str)), None)


def _report_findings(report: Event, redactor: Redactor) -> Report | None:
    """The findings and the text beside them, redacted. None if there is no list of findings, or if nothing in it can be read."""
    found = report.get("findings")
    if not isinstance(found, list):
        return None
    try:
        return findings.parse_report(
            {"findings": _redact_data(found, redactor), "text": redactor.redact(_report_text(report) or "")}
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
    return replace(
        spent,
        model_used=spent.model_used or (model_name(models[0]) if len(models) == 1 else None),
        tool_calls=tuple(replace(call, name=redactor.redact(call.name)) for call in calls),
    )


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

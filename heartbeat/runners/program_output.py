"""What an agent's program printed: its text, or the report in JSON in which such programs say a text and what it took.

`claude -p --output-format json`, `gemini --output-format json` and their like print one object with the text under one of four
names; `claude -p --output-format stream-json --verbose` prints an object for each event, and the same object as the last line.
Whatever is not surely such a report is a text, also one that happens to be JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice

from heartbeat.runners import Answer, Failure, Tokens
from heartbeat.runners.agent_json import (
    MOST_TOOL_CALLS,
    checked,
    clean,
    cost,
    count,
    counted,
    log,
    model,
    tokens,
    tool_calls,
    truncated,
)
from heartbeat.runners.errors import Trouble, message_in, one_line
from heartbeat.runners.redaction import Veil
from heartbeat.runners.tools import used_in

TEXTS = ("result", "text", "response", "output")

# Each kind of token by the names that programs have for it; the first that is there counts.
_INPUT = ("input_tokens", "prompt_tokens", "input")
_OUTPUT = ("output_tokens", "completion_tokens", "output")
_CACHE_READ = ("cache_read_input_tokens", "cache_read")
_CACHE_WRITE = ("cache_creation_input_tokens", "cache_write")
_INCLUDED = "cached_input_tokens"  # read from the cache, but counted among the input

Event = Mapping[str, object]


def read(output: str, veil: Veil) -> Answer:
    """The answer that a program's whole standard output is: a report, else the text that it is."""
    return reported(output, veil) or Answer(text=clean(veil.over(output)))


def reported(output: str, veil: Veil) -> Answer | None:
    """The answer that a report gives, with what `veil` covers; None if the output is none.

    An object with a text under `result`, `text`, `response` or `output` is that text; with `is_error: true` or an `error` it is
    a failure, in the words of the error or else of the text. Beside them count `total_cost_usd` or `cost_usd`, `usage` or
    `tokens`, `model`, or the only name in `modelUsage`, `tool_calls` or what else tells of them, `log`, and `truncated` or a
    `stop_reason` that says so.
    """
    events = _events(output)
    if not events:
        return None
    report, spent = events[-1], _spent(events, veil)
    text = _text(report)
    if report.get("is_error") is True or report.get("error"):
        said = message_in(report.get("error")) or text or str(report.get("subtype") or "it does not say why")
        error = one_line(f"the agent failed: {said}", veil)
        return replace(spent, failure=Failure.EXIT, error=error, transient=True)
    try:
        return replace(spent, text=checked(veil.over(text or "")), truncated=truncated(report))
    except Trouble as trouble:
        return replace(spent, failure=trouble.answer.failure, error=trouble.answer.error)


def _events(output: str) -> list[Event]:
    """The report, after the events before it if it came with any; nothing if the output is no report."""
    value = _json(output)
    if isinstance(value, dict):
        return [value] if _is_report(value) else []
    events = value if isinstance(value, list) else []
    is_stream = all(isinstance(event, dict) and isinstance(event.get("type"), str) for event in events)
    return events if events and is_stream and events[-1]["type"] == "result" and _is_report(events[-1]) else []


def _json(output: str) -> object:
    """The JSON that an output is, None if it is none; one value on each line is a list of them."""
    start = output.lstrip()[:1]
    try:
        return json.loads(output) if start in ("{", "[") else None
    except (ValueError, RecursionError):
        return _lines(output) if start == "{" else None


def _lines(output: str) -> list[object]:
    try:
        return [json.loads(line) for line in output.split("\n") if line.strip()]
    except (ValueError, RecursionError):
        return []


def _is_report(event: Event) -> bool:
    """It holds a text, or says outright that it is an error."""
    return _text(event) is not None or event.get("is_error") is True


def _text(report: Event) -> str | None:
    return next((text for name in TEXTS if isinstance(text := report.get(name), str)), None)


def _spent(events: list[Event], veil: Veil) -> Answer:
    """What the run took, as an answer without words."""
    report = events[-1]
    used = report.get("modelUsage")
    models = list(used) if isinstance(used, Mapping) else []
    calls = tool_calls(report.get("tool_calls")) or tuple(islice(used_in(events), MOST_TOOL_CALLS))
    return Answer(
        model_used=model(report.get("model")) or (model(models[0]) if len(models) == 1 else None),
        tokens=_tokens(report.get("usage")) or tokens(report.get("tokens")),
        cost_usd=cost(report.get("total_cost_usd", report.get("cost_usd"))),
        tool_calls=tuple(replace(call, name=veil.over(call.name)) for call in calls),
        log=log(report.get("log"), veil),
    )


def _tokens(usage: object) -> Tokens | None:
    if not isinstance(usage, Mapping):
        return None
    told = counted(
        input=_first(usage, _INPUT),
        output=_first(usage, _OUTPUT),
        cache_read=_first(usage, _CACHE_READ),
        cache_write=_first(usage, _CACHE_WRITE),
    )
    included = count(usage.get(_INCLUDED) or 0)
    if told is None or included is None:
        return None
    return replace(told, input=max(0, told.input - included), cache_read=told.cache_read + included)


def _first(usage: Mapping[str, object], names: tuple[str, ...]) -> int | None:
    return next((count(usage[name] or 0) for name in names if name in usage), 0)

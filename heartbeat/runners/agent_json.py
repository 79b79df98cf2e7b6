"""Converts a request to the JSON that agents receive, and the JSON that they return to an answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from heartbeat.findings import InvalidFindings, Report, parse_reminders, parse_report
from heartbeat.runners import MAX_ANSWER, AgentRequest, Answer, Failure, Tokens, ToolCall, credible_usage
from heartbeat.runners.call_errors import CallError, find_message, redacted_line
from heartbeat.runners.redaction import Redactor
from heartbeat.verdict import OK_TOKEN

MAX_USD = 1_000_000  # larger values are ignored as mistakes
MAX_TOKENS = 1_000_000_000  # of one kind; larger values are ignored as mistakes
MAX_TOOL_CALLS = 100  # per run; further ones are not recorded
MAX_NAME = 200  # characters of a model's or a tool's name
LIMIT_STOP_REASONS = (
    "max_tokens",
    "length",
    "model_context_window_exceeded",
)  # the words of APIs for an answer that was cut at a token limit
# The names under which agents report each kind of token. The first that is given counts.
_USAGE_KEYS = {
    "input": ("input_tokens", "prompt_tokens", "input"),
    "output": ("output_tokens", "completion_tokens", "output"),
    "cache_read": ("cache_read_input_tokens", "cache_read"),
    "cache_write": ("cache_creation_input_tokens", "cache_write"),
}
MAX_LOG = 16 * 1024  # characters for the log; the rest is dropped


def request_data(run: AgentRequest) -> dict[str, object]:
    """The request as JSON data: `timeout` in seconds, `run` the ID of the run, `messages` only if there are any.

    `traceparent` is only there if traces are on, and `effort` only if the config sets it.
    """
    meta = dict(run.meta())
    data: dict[str, object] = {
        "agent": run.agent,
        "prompt": clean_text(run.prompt),
        "model": run.model,
        "timeout": run.timeout.total_seconds(),
        "meta": meta,
        "run": meta.get("run"),
    }
    if run.effort:
        data["effort"] = run.effort
    if run.messages:
        data["messages"] = conversation(run)[:-1]
    if run.traceparent:
        data["traceparent"] = run.traceparent
    return data


def conversation(run: AgentRequest) -> list[dict[str, str]]:
    """The messages for a model: the earlier messages of the session, then the prompt."""
    messages = (*run.messages, ("user", run.prompt))
    return [{"role": role, "content": clean_text(text)} for role, text in messages]


def parse_answer(value: object, *, failed: Failure, redactor: Redactor) -> Answer:
    """Convert what an agent returned to an answer. None means that it has nothing to report.

    A mapping must have `text`, or a list of `findings`, or `error` (then the answer is a failure of the class `failed`), or
    `later: true`. If there are `findings`, `text` is a text that has no key. The mapping may also have `model`, `tokens` (`input
    output cache_read cache_write`), `cost_usd`, `tool_calls` (`name count duration_ms`), `log`, `truncated` and `remind`, a list
    of maps with `text`, and `at` or `in`. With `failed`, a text, the answer says why its work could not be done, and may have
    findings. Raises CallError for a value of another type and for a text that is too large.
    """
    if value is None or isinstance(value, str):
        return Answer(text=check_answer_text(value or ""))
    if not isinstance(value, Mapping):
        raise CallError(
            Failure.BAD_ANSWER, f"answered with {type(value).__name__} where a string, null or an object was expected"
        )
    spent, text = usage_of_report(value, redactor), value.get("text")
    if value.get("error"):
        message = find_message(value["error"]) or "no reason given"
        return replace(spent, failure=failed, error=redacted_line(f"the agent failed: {message}", redactor), transient=True)
    if value.get("later") is True:
        return replace(spent, later=True)
    if value.get("findings") is not None or isinstance(value.get("failed"), str):
        try:
            report = parse_report({**value, "text": text if isinstance(text, str) else None})
        except InvalidFindings as why:
            error = f"answered with findings that cannot be read: {why}"
            return replace(spent, failure=Failure.BAD_ANSWER, error=error, truncated=is_truncated(value))
        return answer_from_report(replace(spent, truncated=is_truncated(value)), report)
    if "text" not in value or not (text is None or isinstance(text, str)):
        return replace(spent, failure=Failure.BAD_ANSWER, error="answered without text; return text, findings, error or later")
    return with_text(replace(spent, truncated=is_truncated(value)), text or "")


def answer_from_report(spent: Answer, report: Report) -> Answer:
    """The answer with these findings. `spent` has the usage.

    The text is the report as plain text. If there is nothing in it, the text is the quiet token, or empty if the answer was cut.
    """
    return with_text(replace(spent, report=report), str(report) or ("" if spent.truncated else OK_TOKEN))


def with_text(spent: Answer, text: str) -> Answer:
    """The answer with this text. A text that is too large is a failure, whose usage is kept."""
    try:
        return replace(spent, text=check_answer_text(text))
    except CallError as error:
        return replace(spent, failure=error.answer.failure, error=error.answer.error, report=None)


def check_answer_text(text: str) -> str:
    """The text as it is stored. Raises CallError if it is larger than MAX_ANSWER."""
    kept = clean_text(text)
    if len(kept.encode()) > MAX_ANSWER:
        raise CallError(Failure.BAD_ANSWER, f"the answer is larger than {MAX_ANSWER} bytes")
    return kept


def clean_text(text: str) -> str:
    """The text without NUL characters, and with lone surrogates replaced: neither UTF-8 nor the database can hold them."""
    return text.replace("\0", "").encode(errors="replace").decode()


def clean_data(value: object) -> Any:
    """JSON data with lone surrogates replaced, which libraries cannot send back. Raises CallError if it is nested too deeply."""
    try:
        return json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
    except RecursionError:
        raise CallError(Failure.BAD_ANSWER, "answered with data that is nested too deeply") from None


def token_count(value: object) -> int | None:
    """A number of tokens as an agent reported it. None if it is not a valid count."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_TOKENS else None


def parse_usage(usage: object, *, is_whole: bool = False) -> Tokens | None:
    """Tokens by kind as an agent or a provider reported them, under the names of `_USAGE_KEYS`. Missing kinds count as 0.

    None if there is no report, if a number is not valid, or if a report that must be whole lacks the input or the output: then
    the total is unknown too.
    """
    if not isinstance(usage, Mapping):
        return None
    given = {kind: _first_given(usage, *names) for kind, names in _USAGE_KEYS.items()}
    if is_whole and (given["input"] is None or given["output"] is None):
        return None
    details = usage.get("prompt_tokens_details")
    # These are also counted in the input, unlike those of `cache_read`.
    included = usage.get("cached_input_tokens") or (details.get("cached_tokens") if isinstance(details, Mapping) else None)
    created = usage.get("cache_creation")
    hour = created.get("ephemeral_1h_input_tokens") if isinstance(created, Mapping) else None
    total = usage.get("total_tokens") if "prompt_tokens" in usage else None
    found = {**given, "included": included, "cache_write_1h": hour, "total": total}
    counts = {kind: token_count(number or 0) for kind, number in found.items()}
    known = {kind: number for kind, number in counts.items() if number is not None}
    if len(known) < len(counts):
        return None
    cached = min(known.pop("included"), known["input"])
    known["cache_write_1h"] = min(known["cache_write_1h"], known["cache_write"])  # a part of it
    # Some servers with OpenAI's API, as those of Grok and Gemini, count thinking only in the total. It costs as much as output.
    known["output"] = max(known["output"], known.pop("total") - known["input"])
    tokens = Tokens(**known)
    # Some gateways report the same tokens of the cache under the names of both APIs.
    return replace(tokens, input=tokens.input - cached, cache_read=max(tokens.cache_read, cached))


def usage_of_report(report: Mapping[str, object], redactor: Redactor) -> Answer:
    """The usage in the report of an agent, and the reminders that it asks for, as an answer without a text."""
    return Answer(
        model_used=model_name(report.get("model")),
        tokens=credible_usage(parse_usage(report.get("usage"))) or parse_usage(report.get("tokens")),
        cost_usd=parse_cost(_first_given(report, "total_cost_usd", "cost_usd")),
        tool_calls=_parse_tool_calls(report.get("tool_calls")),
        log=_parse_log(report.get("log"), redactor),
        reminders=tuple(replace(each, text=redactor.redact(each.text)) for each in parse_reminders(report.get("remind"))),
    )


def _first_given(report: Mapping[str, object], *names: str) -> object:
    """The value of the first of these names that is there and not null."""
    return next((found for name in names if (found := report.get(name)) is not None), None)


def model_name(value: object) -> str | None:
    """The name of a model as it was reported, cut to MAX_NAME. None if there is no name."""
    return clean_text(value)[:MAX_NAME] if isinstance(value, str) and value else None


def _parse_tool_calls(value: object) -> tuple[ToolCall, ...]:
    """The tools that an agent says it used, at most MAX_TOOL_CALLS. Entries without a name are ignored."""
    listed = [each for each in value[:MAX_TOOL_CALLS] if isinstance(each, Mapping)] if isinstance(value, list) else []
    found = (make_tool_call(each.get("name"), each.get("count"), each.get("duration_ms")) for each in listed)
    return tuple(call for call in found if call is not None)


def make_tool_call(name: object, times: object = 1, duration_ms: object = None) -> ToolCall | None:
    """One tool call, or None if it has no valid name. An invalid count becomes 1, an invalid duration None."""
    named = model_name(name)
    took = duration_ms if isinstance(duration_ms, int | float) and 0 <= duration_ms < 2**53 else None
    return ToolCall(named, token_count(times) or 1, None if took is None else int(took)) if named else None


def _parse_log(value: object, redactor: Redactor) -> str | None:
    """A text for the log, redacted and cut to MAX_LOG. None if there is none."""
    return redactor.redact(clean_text(value))[:MAX_LOG] or None if isinstance(value, str) else None


def is_truncated(value: Mapping[str, object]) -> bool:
    """Whether the answer was cut: it says `truncated: true`, or an API gives a token limit as the reason for its end."""
    return (
        value.get("truncated") is True
        or value.get("stop_reason") in LIMIT_STOP_REASONS
        or value.get("finish_reason") in LIMIT_STOP_REASONS
    )


def parse_cost(value: object) -> float | None:
    """A cost in USD as it was reported. None if it is not a valid cost."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < MAX_USD else None

"""What an agent's program printed: its text, or the one JSON object in which such programs report a text and what it took.

`claude -p --output-format json`, `gemini --output-format json` and their like print one object with the text under one of four
names. Whatever is not surely such an object is a text, also one that happens to be JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from heartbeat.runners import Answer, Failure, Tokens
from heartbeat.runners.data import clean, cost, count, model, tokens
from heartbeat.runners.trouble import message_in, one_line
from heartbeat.runners.veil import Veil

TEXTS = ("result", "text", "response", "output")

# Each kind of token by the names that programs have for it; the first that is there counts.
_INPUT = ("input_tokens", "prompt_tokens", "input")
_OUTPUT = ("output_tokens", "completion_tokens", "output")
_CACHE_READ = ("cache_read_input_tokens", "cache_read")
_CACHE_WRITE = ("cache_creation_input_tokens", "cache_write")
_INCLUDED = "cached_input_tokens"  # read from the cache, but counted among the input

_NO_SECRETS = Veil(())


def read(output: str) -> Answer:
    """The answer that a program's whole standard output is.

    An object with a text under `result`, `text`, `response` or `output` is that text; with `is_error: true` or an `error` it is
    a failure, in the words of the error or else of the text. Beside them count `total_cost_usd` or `cost_usd`, `usage` or
    `tokens`, and `model`, or the only name in `modelUsage`.
    """
    report = _report(output)
    if report is None:
        return Answer(text=clean(output))
    spent = _spent(report)
    text = _text(report)
    if report.get("is_error") is True or report.get("error"):
        said = message_in(report.get("error")) or text or str(report.get("subtype") or "it does not say why")
        error = one_line(f"the agent failed: {said}", _NO_SECRETS)
        return replace(spent, failure=Failure.EXIT, error=error, transient=True)
    return replace(spent, text=clean(text or ""))


def _report(output: str) -> Mapping[str, object] | None:
    """The object, if the output is one that reports: it holds a text, or says outright that it is an error."""
    if not output.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(output)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not (_text(value) is not None or value.get("is_error") is True):
        return None
    return value


def _text(report: Mapping[str, object]) -> str | None:
    return next((text for name in TEXTS if isinstance(text := report.get(name), str)), None)


def _spent(report: Mapping[str, object]) -> Answer:
    """What the run took, as an answer without words."""
    used = report.get("modelUsage")
    models = list(used) if isinstance(used, Mapping) else []
    return Answer(
        model_used=model(report.get("model")) or (model(models[0]) if len(models) == 1 else None),
        tokens=_tokens(report.get("usage")) or tokens(report.get("tokens")),
        cost_usd=cost(report.get("total_cost_usd", report.get("cost_usd"))),
    )


def _tokens(usage: object) -> Tokens | None:
    if not isinstance(usage, Mapping):
        return None
    included = count(usage.get(_INCLUDED))
    return Tokens(
        input=max(0, _first(usage, _INPUT) - included),
        output=_first(usage, _OUTPUT),
        cache_read=_first(usage, _CACHE_READ) + included,
        cache_write=_first(usage, _CACHE_WRITE),
    )


def _first(usage: Mapping[str, object], names: tuple[str, ...]) -> int:
    return next((count(usage[name]) for name in names if name in usage), 0)

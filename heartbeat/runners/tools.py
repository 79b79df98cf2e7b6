"""Which tools an agent's program used, as its report or the events before it tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from heartbeat.runners import ToolCall
from heartbeat.runners.agent_json import make_tool_call

Event = Mapping[str, object]


def find_tool_calls(events: Sequence[Event]) -> Iterator[ToolCall]:
    """The calls that the events tell of one by one, else those that the statistics of the last one count."""
    ended = {ident: _event_time(event) for event in events for ident in _result_ids(event)}
    for event in events:
        for block in _content_blocks(event, "tool_use"):
            if call := make_tool_call(block.get("name"), 1, _duration_ms(_event_time(event), ended.get(str(block.get("id"))))):
                yield call
    yield from _calls_in_stats(events[-1].get("stats"))


def _calls_in_stats(stats: object) -> Iterator[ToolCall]:
    """The calls by their names, as in the `stats.tools.byName` of Gemini's command line."""
    tools = stats.get("tools") if isinstance(stats, Mapping) else None
    names = tools.get("byName") if isinstance(tools, Mapping) else None
    for name, told in names.items() if isinstance(names, Mapping) else ():
        if isinstance(told, Mapping) and (call := make_tool_call(name, told.get("count"), told.get("durationMs"))):
            yield call


def _result_ids(event: Event) -> Iterator[str]:
    """The ids of the calls whose results an event brings."""
    return (ident for block in _content_blocks(event, "tool_result") if isinstance(ident := block.get("tool_use_id"), str))


def _content_blocks(event: Event, kind: str) -> Iterator[Mapping[str, object]]:
    message = event.get("message")
    content = message.get("content") if isinstance(message, Mapping) else None
    for block in content if isinstance(content, list) else ():
        if isinstance(block, Mapping) and block.get("type") == kind:
            yield block


def _duration_ms(begun: datetime | None, ended: datetime | None) -> float | None:
    """Milliseconds; None where a time is not told, or the two make no sense together."""
    return (ended - begun).total_seconds() * 1000 if begun and ended and ended >= begun else None


def _event_time(event: Event) -> datetime | None:
    """When an event was, where it says so with its zone."""
    text = event.get("timestamp")
    try:
        found = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return found if found and found.tzinfo else None

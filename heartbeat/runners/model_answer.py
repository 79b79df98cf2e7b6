"""What holds for every model, whoever serves it: its key, what its answer is worth, and its decision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heartbeat import decision
from heartbeat.decision import Decision, Undecided
from heartbeat.runners import Answer, Failure, agent_json
from heartbeat.runners.errors import Trouble
from heartbeat.runners.redaction import reveal
from heartbeat.spec import Provider

REFUSED = ("refusal", "content_filter")


def key_of(provider: Provider) -> str | None:
    """The provider's key in plain text, None if it has none; Trouble if it is none that a header can hold."""
    key = reveal(provider.api_key) if provider.api_key is not None else ""
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise Trouble(Failure.AUTH, "its api_key holds a character that no key has (a blank, a line break?)")
    return key or None


def of_provider(trouble: Trouble, provider: Provider) -> Answer:
    """The failure as it is told: it begins with the name that the config gives the other side."""
    return replace(trouble.answer, error=f"provider {provider.name!r}: {trouble.answer.error}")


def judged(spent: Answer, text: str, tools: int, stopped: str) -> Answer:
    """The answer that a model's `text` is. `spent` holds what it took, and does so in a failure too.

    `tools` counts the tools it wanted to use, `stopped` is the word for why it ended.
    """
    spent = replace(spent, truncated=stopped in agent_json.CUT)
    try:
        kept = agent_json.checked(text)
    except Trouble as trouble:
        return _failed(spent, trouble.answer.failure or Failure.BAD_ANSWER, trouble.answer.error)
    if stopped in REFUSED:
        return _failed(spent, Failure.BAD_ANSWER, "the model refused to answer")
    if tools and not kept.strip():
        return _failed(spent, Failure.TOOL_USE, "the model wanted to use a tool, but none was offered, and said nothing")
    if spent.truncated and not kept.strip():
        return _failed(spent, Failure.BAD_ANSWER, "the model used up max_output_tokens before it said anything")
    return replace(spent, text=kept, tools_ignored=tools)


def decided(spent: Answer, given: Sequence[object], *, is_cut: bool) -> Answer | Decision:
    """The one decision among what was `given` to the forced tool, or the failure that anything else is."""
    try:
        return _decided(spent, given, is_cut)
    except Undecided as why:
        return _failed(spent, Failure.BAD_ANSWER, str(why))


def _decided(spent: Answer, given: Sequence[object], is_cut: bool) -> Decision:
    if is_cut:
        raise Undecided("the model used up max_output_tokens before it had decided")
    if len(given) != 1:
        raise Undecided("the model did not decide, though it was made to" if not given else "the model decided more than once")
    made = decision.parse(given[0])
    return replace(made, tasks=agent_json.clean(made.tasks), tokens=spent.tokens, model_used=spent.model_used)


def _failed(spent: Answer, failure: Failure, error: str) -> Answer:
    return replace(spent, failure=failure, error=error)

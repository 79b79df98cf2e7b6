"""What the runners for models share: the API key, and the checks of a model's answer and of its decision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heartbeat import decision
from heartbeat.decision import Decision, InvalidDecision
from heartbeat.runners import Answer, Failure, agent_json
from heartbeat.runners.errors import CallError
from heartbeat.runners.redaction import reveal_secret
from heartbeat.spec import Provider

REFUSAL_REASONS = ("refusal", "content_filter")


def read_api_key(provider: Provider) -> str | None:
    """The provider's key in plain text, None if it has none. Raises CallError for a key that no header can hold."""
    key = reveal_secret(provider.api_key) if provider.api_key is not None else ""
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise CallError(Failure.AUTH, "its api_key contains a character that no key can contain (a space, a line break?)")
    return key or None


def with_provider_name(error: CallError, provider: Provider) -> Answer:
    """The failure as an answer whose error begins with the provider's name in the config."""
    return replace(error.answer, error=f"provider {provider.name!r}: {error.answer.error}")


def answer_from_text(spent: Answer, text: str, tools: int, stopped: str) -> Answer:
    """The answer for a model's `text`. `spent` holds the usage, which is kept if the answer is a failure.

    `tools` counts the tools that the model tried to use. `stopped` is the API's word for why the model stopped.
    """
    spent = replace(spent, truncated=stopped in agent_json.LIMIT_STOP_REASONS)
    try:
        kept = agent_json.check_answer_text(text)
    except CallError as error:
        return _failed_answer(spent, error.answer.failure or Failure.BAD_ANSWER, error.answer.error)
    if stopped in REFUSAL_REASONS:
        return _failed_answer(spent, Failure.BAD_ANSWER, "the model refused to answer")
    if tools and not kept.strip():
        return _failed_answer(
            spent, Failure.TOOL_USE, "the model tried to use a tool although none was offered, and wrote no text"
        )
    if spent.truncated and not kept.strip():
        return _failed_answer(spent, Failure.BAD_ANSWER, "the model reached max_output_tokens before it wrote any text")
    return replace(spent, text=kept, tools_ignored=tools)


def decision_or_failure(spent: Answer, given: Sequence[object], *, is_cut: bool) -> Answer | Decision:
    """The one decision among the arguments `given` to the forced tool. Anything else is a failure."""
    try:
        return _single_decision(spent, given, is_cut)
    except InvalidDecision as why:
        return _failed_answer(spent, Failure.BAD_ANSWER, str(why))


def _single_decision(spent: Answer, given: Sequence[object], is_cut: bool) -> Decision:
    if is_cut:
        raise InvalidDecision("the model reached max_output_tokens before it decided")
    if len(given) != 1:
        raise InvalidDecision("the model did not call the decision tool" if not given else "the model decided more than once")
    made = decision.parse_decision(given[0])
    return replace(made, tasks=agent_json.clean_text(made.tasks), tokens=spent.tokens, model_used=spent.model_used)


def _failed_answer(spent: Answer, failure: Failure, error: str) -> Answer:
    return replace(spent, failure=failure, error=error)

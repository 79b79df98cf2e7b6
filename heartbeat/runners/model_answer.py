"""What the runners for models share: the API key, the forced tools, and the checks of a model's answer and of its decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from heartbeat import decision, findings
from heartbeat.decision import Decision, InvalidDecision
from heartbeat.findings import InvalidFindings, Report
from heartbeat.runners import Answer, Failure, agent_json
from heartbeat.runners.errors import CallError
from heartbeat.runners.redaction import reveal_secret
from heartbeat.spec import Provider

REFUSAL_REASONS = ("refusal", "content_filter")


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that a model is forced to call. Its arguments, by a JSON schema, are the answer."""

    name: str
    description: str
    schema: Mapping[str, object]


ToolChoice = str
"""Whether the model may call a tool (`auto`), must call one (`any`) or must not (`none`), or the name of the tool to call."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A call of a tool that a model asks for, as the model wrote it: nothing in it is checked."""

    id: object
    name: object
    arguments: object


@dataclass(frozen=True, slots=True)
class ModelTurn:
    """One response of a model to which tools are offered.

    `answer` is the response taken as the end of the conversation, `uses` are the tools that it asks for if it is not the end,
    and `message` is the response as the next message of the conversation.
    """

    answer: Answer
    uses: tuple[ToolUse, ...]
    message: Mapping[str, object]


DECIDE = Tool(decision.TOOL_NAME, decision.TOOL_DESCRIPTION, decision.TOOL_SCHEMA)
REPORT_FINDINGS = Tool(findings.TOOL_NAME, findings.TOOL_DESCRIPTION, findings.TOOL_SCHEMA)


def read_api_key(provider: Provider) -> str | None:
    """The provider's key in plain text, None if it has none. Raises CallError for a key that no header can hold."""
    key = reveal_secret(provider.api_key) if provider.api_key is not None else ""
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise CallError(Failure.AUTH, "its api_key contains a character that no key can contain (a space, a line break?)")
    return key or None


def with_provider_name(error: CallError, provider: Provider, *, structured: bool = False) -> Answer:
    """The failure as an answer whose error begins with the provider's name in the config.

    If the server complains about the tool of a `structured` request, the error says what to write instead.
    """
    failed = error.answer
    hint = ""
    if structured and failed.status is not None and "tool" in failed.error.lower():
        hint = "; if the model cannot use tools, write answer: text in the agent's heartbeat"
    return replace(failed, error=f"provider {provider.name!r}: {failed.error}{hint}")


def answer_from_response(spent: Answer, text: str, given: Sequence[object], tools: int, stopped: str) -> Answer:
    """The answer for a model's `text`, or for the arguments `given` to the tool for findings, one item for each call.

    `spent` holds the usage, which is kept if the answer is a failure. `tools` counts the other tools that the model tried to
    use. `stopped` is the API's word for why the model stopped.
    """
    spent = replace(spent, truncated=stopped in agent_json.LIMIT_STOP_REASONS)
    try:
        kept = agent_json.check_answer_text(text)
    except CallError as error:
        return _failed_answer(spent, error.answer.failure or Failure.BAD_ANSWER, error.answer.error)
    if stopped in REFUSAL_REASONS:
        return _failed_answer(spent, Failure.BAD_ANSWER, "the model refused to answer")
    if given:
        return replace(_answer_from_findings(spent, kept, given), tools_ignored=tools)
    if tools and not kept.strip():
        return _failed_answer(
            spent, Failure.TOOL_USE, "the model tried to use a tool although none was offered, and wrote no text"
        )
    if spent.truncated and not kept.strip():
        return _failed_answer(spent, Failure.BAD_ANSWER, "the model reached max_output_tokens before it wrote any text")
    return replace(spent, text=kept, tools_ignored=tools)


def uses_of_turn(calls: Sequence[ToolUse], stopped: str) -> tuple[ToolUse, ...]:
    """The tools that must be called before the model can continue.

    None if the model reported its findings, which is the end, or if the response was cut or refused: the last call may be
    incomplete. `stopped` is the API's word for why the model stopped.
    """
    if stopped in (*agent_json.LIMIT_STOP_REASONS, *REFUSAL_REASONS) or any(use.name == REPORT_FINDINGS.name for use in calls):
        return ()
    return tuple(calls)


def _answer_from_findings(spent: Answer, text: str, given: Sequence[object]) -> Answer:
    """The answer with all findings; `text` is what the model wrote in addition.

    Findings that cannot be read are a failure that a retry may remedy, because models rarely make the same mistake twice.
    """
    try:
        report = findings.with_text_around(findings.merge_reports(_read_calls(given, is_cut=spent.truncated)), text)
    except InvalidFindings as why:
        if spent.truncated:
            return _failed_answer(spent, Failure.BAD_ANSWER, "the model reached max_output_tokens before its first finding")
        error = f"the model called {REPORT_FINDINGS.name} with arguments that cannot be read: {why}"
        return replace(_failed_answer(spent, Failure.BAD_ANSWER, error), transient=True)
    return agent_json.answer_from_report(spent, report)


def _read_calls(given: Sequence[object], *, is_cut: bool) -> list[Report]:
    """The findings of each call. If the response was cut, its last call is incomplete. Raises InvalidFindings."""
    if not is_cut:
        return [findings.parse_report(each) for each in given]
    *whole, last = given
    reports = [findings.parse_report(each) for each in whole]
    try:
        reports.append(findings.parse_report(last, is_cut=True))
    except InvalidFindings:
        if not reports:
            raise
    if not any(report.findings for report in reports):
        raise InvalidFindings("there is no complete finding")
    return reports


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

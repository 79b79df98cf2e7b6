"""Calls a model over any API: for an answer, for a decision, or for one turn of a conversation with tools.

The modules of the APIs send a request and convert its response to a `Response`. What it means is decided here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from heartbeat import decision, findings
from heartbeat.decision import InvalidDecision
from heartbeat.findings import InvalidFindings, Report
from heartbeat.runners import AgentRequest, Answer, Failure, HttpClient, OfferedTool, Resources, agent_json
from heartbeat.runners.call_errors import CallError
from heartbeat.runners.redaction import Redactor, reveal_secret, secret_parts
from heartbeat.spec import ModelRunner, Provider

REFUSAL_REASONS = ("refusal", "content_filter")

Message = Mapping[str, object]
"""One message of a conversation, in the form of the API."""

ToolChoice = str
"""Whether the model may call a tool (`auto`), must call one (`any`) or must not (`none`), or the name of the tool to call."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One request to a model: a conversation, and tools that the model may, must or must not call.

    `kept` are the numbers of messages at whose ends a conversation with tools is kept by the provider for the next turn.
    """

    run: AgentRequest
    runner: ModelRunner
    conversation: Sequence[Message]
    tools: Sequence[OfferedTool] = ()
    choice: ToolChoice = "none"
    kept: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A call of a tool that a model asks for, as the model wrote it: nothing in it is checked."""

    id: object
    name: object
    arguments: object


@dataclass(frozen=True, slots=True)
class Response:
    """A response of a model. `stopped` is the API's word for why the model stopped, `message` the response as the next message of
    the conversation, and `answer` has the model, the usage and the provider's ID of the request. In a conversation with tools,
    `request_turn` completes it.
    """

    text: str
    uses: tuple[ToolUse, ...]
    stopped: str
    message: Message
    answer: Answer

    @property
    def is_cut(self) -> bool:
        return self.stopped in agent_json.LIMIT_STOP_REASONS

    def arguments_of(self, tool: OfferedTool) -> list[object]:
        """The arguments of each call of this tool."""
        return [use.arguments for use in self.uses if use.name == tool.name]


class ModelApi(Protocol):
    """The module of one kind of API."""

    async def send(self, request: ModelRequest, http: HttpClient) -> Response:
        """Send exactly one request. Takes its `run.timeout` at most. Raises CallError."""

    def tool_results(self, results: Sequence[tuple[ToolUse, str, bool]]) -> list[Message]:
        """The messages with the results of tools. Each result is a text, and whether it is an error."""


DECIDE = OfferedTool(decision.TOOL_NAME, decision.TOOL_DESCRIPTION, decision.TOOL_SCHEMA)
REPORT_FINDINGS = OfferedTool(findings.TOOL_NAME, findings.TOOL_DESCRIPTION, findings.TOOL_SCHEMA)


async def call_model(api: ModelApi, run: AgentRequest, runner: ModelRunner, resources: Resources) -> Answer:
    """Send the earlier messages and the prompt, in a span of its own. The answer has the form that the request names."""
    with resources.trace.model_call(runner, run.model) as span:
        request = request_for_answer(replace(run, traceparent=span.traceparent), runner)
        try:
            answer = _answer_from_response(await api.send(request, resources.http), run)
        except CallError as error:
            answer = with_provider_name(error, run, runner.provider)
        span.set_result(answer)
        return answer


async def request_turn(api: ModelApi, request: ModelRequest, http: HttpClient) -> Response:
    """Send one request of a conversation with tools. Raises CallError.

    `answer` is the response taken as the end of the conversation, and `uses` are the tools that it asks for if it is not the end.
    """
    response = await api.send(request, http)
    answer, uses = _answer_from_response(response, request.run), _uses_of_turn(response)
    return replace(response, answer=answer, uses=uses, message=agent_json.clean_data(response.message))


def request_for_answer(run: AgentRequest, runner: ModelRunner) -> ModelRequest:
    """The request for an answer in one turn: its text, or its findings or decision with a forced tool."""
    conversation = agent_json.conversation(run)
    if run.form == "text":
        return ModelRequest(run, runner, conversation)
    forced = REPORT_FINDINGS if run.form == "findings" else DECIDE
    return ModelRequest(run, runner, conversation, [forced], forced.name)


def read_access(provider: Provider, default_url: str) -> tuple[str | None, str, Redactor]:
    """The provider's key (None if it has none) and address in plain text, and a redactor for both. Raises CallError for a key
    that no header can hold.
    """
    key = reveal_secret(provider.api_key) if provider.api_key is not None else ""
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise CallError(Failure.AUTH, "its api_key contains a character that no key can contain (a space, a line break?)")
    url = reveal_secret(provider.base_url or default_url)
    return key or None, url, Redactor([key, *secret_parts(url, whole_url=True)])


def with_provider_name(error: CallError, run: AgentRequest, provider: Provider) -> Answer:
    """The failure as an answer whose error begins with the provider's name in the config.

    If the server complains about the tool for findings, or about the effort, the error says what to write instead.
    """
    failed = error.answer
    hint = ""
    if run.form == "findings" and failed.status is not None and "tool" in failed.error.lower():
        hint = "; if the model cannot use tools, write answer: text in the agent's heartbeat"
    if run.effort and failed.failure is Failure.BAD_REQUEST and "effort" in failed.error.lower():
        hint = f"; if the model does not know effort: {run.effort}, write effort: none, or another one"
    return replace(failed, error=f"provider {provider.name!r}: {failed.error}{hint}")


def _answer_from_response(response: Response, run: AgentRequest) -> Answer:
    """The decision in a response, its findings, or its text.

    Its usage is kept if the answer is a failure. Tools other than the one for findings are counted.
    """
    if run.form == "decision":
        return _answer_with_decision(response)
    given = response.arguments_of(REPORT_FINDINGS) if run.form == "findings" else []
    others = len(response.uses) - len(given)
    answer = agent_json.with_text(replace(response.answer, truncated=response.is_cut), response.text)
    if answer.failure is not None:
        return answer
    spent, text = replace(answer, text=""), answer.text
    if response.stopped in REFUSAL_REASONS:
        return _failed_answer(spent, Failure.BAD_ANSWER, "the model refused to answer")
    if given:
        return replace(_answer_from_findings(spent, text, given), tools_ignored=others)
    if others and not text.strip():
        problem = "the model tried to use a tool although none was offered, and wrote no text"
        return _failed_answer(spent, Failure.TOOL_USE, problem)
    if spent.truncated and not text.strip():
        return _failed_answer(spent, Failure.BAD_ANSWER, "the model reached max_output_tokens before it wrote any text")
    return replace(spent, text=text, tools_ignored=others)


def _uses_of_turn(response: Response) -> tuple[ToolUse, ...]:
    """The tools that must be called before the model can continue.

    None if the model reported its findings, which is the end, or if the response was cut or refused: the last call may be
    incomplete.
    """
    if response.is_cut or response.stopped in REFUSAL_REASONS or response.arguments_of(REPORT_FINDINGS):
        return ()
    parts = ([use.id, use.name, _parse_arguments(use.arguments)] for use in response.uses)
    return tuple(ToolUse(*agent_json.clean_data(part)) for part in parts)


def _parse_arguments(given: object) -> object:
    """Arguments as an object: some APIs send them as JSON in a text. None if this JSON is broken."""
    if not isinstance(given, str):
        return given
    try:
        parsed: object = json.loads(given)
    except (ValueError, RecursionError):
        return None
    return parsed


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


def _answer_with_decision(response: Response) -> Answer:
    """The answer with the one decision in a response. Anything else is a failure."""
    given = response.arguments_of(DECIDE)
    try:
        if response.is_cut:
            raise InvalidDecision("the model reached max_output_tokens before it decided")
        if not given or len(given) < len(response.uses):
            raise InvalidDecision("the model did not call the decision tool")
        if len(given) > 1:
            raise InvalidDecision("the model decided more than once")
        made = decision.parse_decision(_parse_arguments(given[0]))
    except InvalidDecision as why:
        return _failed_answer(response.answer, Failure.BAD_ANSWER, str(why))
    return replace(response.answer, decision=replace(made, tasks=agent_json.clean_text(made.tasks)))


def _failed_answer(spent: Answer, failure: Failure, error: str) -> Answer:
    return replace(spent, failure=failure, error=error)

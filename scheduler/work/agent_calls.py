"""Calls an agent by its runner, and turns its answer into the result of an attempt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from math import ceil
from pathlib import Path
from typing import Protocol

from heartbeat.checklist_file import FileProblem, read_file
from heartbeat.prompt import Prompt
from heartbeat.prompt_limit import PromptLimit, max_tokens
from heartbeat.runners import AgentRequest, Answer, Resources, Turn, TurnLimits
from heartbeat.runners import dispatch as runners
from heartbeat.spec import Agent, CommandRunner, Heartbeat, ModelRunner, Precheck, PythonRunner, Runner
from heartbeat.threads import in_daemon_thread
from scheduler.model.budget import TOKENS_PER_PRICE
from scheduler.model.circuit import Circuit
from scheduler.model.entry import Claim, Elapsed
from scheduler.model.outcome import WOKEN, AttemptResult, Call, Failure, Outcome, Skip
from scheduler.system.lanes import Lanes

COUNT_TIMEOUT = timedelta(seconds=5)  # for the request of a count
MIN_TIME_LEFT = timedelta(seconds=1)  # for the call of the agent, after what came before it
CUT_BEFORE_TEXT = "the answer was cut at its token limit before it contained any text"
NO_ANSWER_TEXT = "the model answered without any text"


class ClassifyAnswer(Protocol):
    """The result of a run whose agent gave this answer."""

    def __call__(self, answer: Answer) -> AttemptResult: ...


async def call_agent(
    request: AgentRequest, prompt: Prompt, runner: Runner, resources: Resources, classify: ClassifyAnswer, elapsed: Elapsed
) -> AttemptResult:
    """Call the agent and wait for its answer. `prompt` has the parts of the prompt in `request`.

    The result has the call with its usage and duration (by `elapsed`), whether it succeeded or failed.
    """
    began = elapsed()
    answer = await runners.call_agent(request, runner, resources)
    calls = calls_from_answer(runner, request.model, answer, elapsed() - began)
    earlier = sum(len(text) for _, text in request.messages)
    part_sizes = {**({"session": earlier} if earlier else {}), **dict(prompt.part_sizes)}
    if answer.failure is not None:
        return replace(result_of_failure(answer, prompt, calls), prompt_parts=part_sizes)
    result = AttemptResult(Outcome.ASYNC) if answer.later else classify(answer)
    return replace(
        result,
        prompt_parts=part_sizes,
        left_out=prompt.left_out,
        model_used=answer.model_used,
        calls=calls,
        tool_calls=answer.tool_calls,
        log=answer.log,
        request_id=answer.request_id,
    )


def result_of_interrupted_precheck() -> AttemptResult:
    """The result of an attempt that was ended, or whose time was up, before its agent was called."""
    return AttemptResult(Outcome.TIMEOUT, Failure.TIMEOUT, error="the run was ended during its precheck", transient=True)


def result_without_text(runner: Runner, answer: Answer, content: str) -> AttemptResult | None:
    """The result of an attempt whose answer has no text besides its reasoning. None if it has text or findings, or may be empty.

    Programs and gateways may answer with nothing, if there is nothing to report. A model that does so has failed, and another
    attempt may succeed. An answer that was cut before its text is a failure for every runner.
    """
    if content.strip() or (answer.report is not None and (answer.report.findings or not answer.truncated)):
        return None
    if answer.truncated:
        return AttemptResult(Outcome.FAILED, Failure.BAD_ANSWER, text=answer.text, error=CUT_BEFORE_TEXT, truncated=True)
    if isinstance(runner, ModelRunner):
        return AttemptResult(Outcome.FAILED, Failure.BAD_ANSWER, text=answer.text, error=NO_ANSWER_TEXT, transient=True)
    return None


def result_of_failure(answer: Answer, prompt: Prompt, calls: tuple[Call, ...]) -> AttemptResult:
    """The result of an attempt in which the call of the agent failed."""
    return AttemptResult(
        Outcome.TIMEOUT if answer.failure is Failure.TIMEOUT else Outcome.FAILED,
        answer.failure,
        error=answer.error,
        transient=answer.transient,
        model_used=answer.model_used,
        prompt_parts=dict(prompt.part_sizes),
        left_out=prompt.left_out,
        retry_after=answer.retry_after,
        calls=calls,
        tool_calls=answer.tool_calls,
        log=answer.log,
        truncated=answer.truncated,
        request_id=answer.request_id,
    )


def calls_from_answer(runner: Runner, model: str | None, answer: Answer, took: timedelta) -> tuple[Call, ...]:
    """The calls that led to this answer, with their usage and duration: one, or each turn of a model with tools.

    If a model with tools was not called, a call of no provider says that nothing was sent, so that nothing is charged.
    """
    provider = runner.provider.name if isinstance(runner, ModelRunner) else None
    if answer.turns is None:
        return (replace(_call_from(answer, provider, model, took), cost_usd=answer.cost_usd),)
    if not answer.turns:
        return (Call(None, None, failure=answer.failure, not_sent=True),)
    return tuple(replace(_call_from(turn, provider, model, turn.took), most=turn.most) for turn in answer.turns)


def _call_from(answer: Answer | Turn, provider: str | None, model: str | None, took: timedelta) -> Call:
    return Call(
        provider=provider,
        model=model,
        model_used=answer.model_used,
        tokens=answer.tokens,
        failure=answer.failure,
        retry_after=answer.retry_after,
        tools_ignored=answer.tools_ignored,
        not_sent=answer.not_sent,
        status=answer.status,
        took=took,
    )


def turn_limits(claim: Claim, agent: Heartbeat | Agent) -> TurnLimits | None:
    """The limits for a model with tools: the longest conversation, and what the budget has reserved. None for other runners."""
    if not isinstance(agent.runner, ModelRunner) or agent.runner.tools is None:
        return None
    limit = prompt_limit(claim, agent)
    # What the budget has reserved limits the first prompt. The conversation after it has limits of its own for that.
    longest = TurnLimits(replace(limit, reserved=None if limit.reserved is None else limit.own))
    reserved = claim.reserved and claim.reserved.turns
    if not reserved:
        return longest
    return replace(
        longest,
        usd=reserved.usd,
        tokens=reserved.tokens,
        input_price=reserved.input_price,
        output_price=reserved.output_price,
    )


def prompt_limit(claim: Claim, agent: Heartbeat | Agent) -> PromptLimit:
    """The limit of a prompt, with what the budget has reserved for this attempt."""
    return replace(agent.prompt_limit, reserved=claim.reserved.input_tokens if claim.reserved else None)


def prompt_texts(claim: Claim, prompt: Prompt) -> tuple[str, ...]:
    """The prompt, and the messages before it."""
    return prompt.text, *(text for _, text in claim.messages)


async def count_by_provider(request: AgentRequest, runner: Runner, resources: Resources) -> int | None:
    """The tokens of a request as its provider counts them, and 5 % more, because it calls this an estimate; None: no count.

    It takes a request of its own, so it is only worth it before a prompt is rejected because of its length.
    """
    request = replace(request, timeout=min(request.timeout, COUNT_TIMEOUT))
    counted = await runners.count_tokens(request, runner, resources)
    return None if counted is None else ceil(counted * 1.05)


def exceeds_reservation(claim: Claim, prompt: Prompt) -> bool:
    """Whether this prompt may need more tokens than were reserved for it."""
    most = claim.reserved.input_tokens if claim.reserved else None
    return most is not None and max_tokens(*prompt_texts(claim, prompt)) > most


def is_affordable(claim: Claim, runner: Runner, prompt: Prompt, calls: Sequence[Call]) -> bool:
    """Whether what the budget has reserved for this attempt is enough for another call with this prompt, after these calls."""
    if claim.reserved is None or not (claim.reserved.amount.nanos or claim.reserved.amount.tokens):
        return True
    most, used = claim.reserved.turns, [call.tokens for call in calls]
    if most is None or not isinstance(runner, ModelRunner) or None in used:
        return False
    spent = [tokens for tokens in used if tokens is not None]
    output = sum(tokens.output for tokens in spent) + runner.max_output_tokens
    asked = max_tokens(*prompt_texts(claim, prompt))
    total = sum(tokens.total for tokens in spent) + asked + runner.max_output_tokens
    usd = ((total - output) * most.input_price + output * most.output_price) / TOKENS_PER_PRICE
    return total <= most.tokens and (most.usd is None or usd <= most.usd)


def explain_obstacle(claim: Claim, obstacle: Skip) -> str | None:
    """Details of the reason why a run was skipped, if there are any."""
    details = {Skip.BUDGET: claim.over_budget, Skip.BREAKER_OPEN: claim.breaker_open, Skip.BUSY: claim.held_by}
    return details.get(obstacle)


def run_meta(claim: Claim) -> dict[str, object]:
    """What the metadata for a runner contains about the run itself."""
    return {
        "run": claim.run_id,
        "trigger": claim.trigger.value,
        "attempt": claim.attempt,
        "scheduled_at": claim.slot.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def circuits_of(*called: tuple[Runner, str | None]) -> tuple[Circuit, ...]:
    """The circuits of these runners, which call models of providers in the config; each once."""
    return tuple(
        dict.fromkeys(Circuit(runner.provider.name, model or "") for runner, model in called if isinstance(runner, ModelRunner))
    )


def is_woken(claim: Claim) -> bool:
    """Whether somebody asked for the run, or a wake waits for it: its text must reach the agent."""
    return claim.trigger in WOKEN or bool(claim.wakes)


def last_precheck_digest(claim: Claim, check: Precheck) -> str | None:
    """The digest of the output that counts as unchanged. None if the agent must be called because of `max_age`."""
    is_old = check.max_age is not None and (claim.looked_at is None or claim.started_at - claim.looked_at >= check.max_age)
    return None if is_old else claim.last_precheck


async def make_workspace(workspace: Path, program: object) -> None:
    """Create the folder in which a program will run. If that fails, the start of the program fails with a better error."""
    if isinstance(program, CommandRunner | PythonRunner | Precheck) or (isinstance(program, ModelRunner) and program.tools):
        with suppress(OSError):
            await in_daemon_thread(partial(workspace.mkdir, parents=True, exist_ok=True))


def read_workspace_files(workspace: Path, names: tuple[str, ...]) -> tuple[tuple[str, str | FileProblem], ...]:
    """Files of the workspace by name, each with its text, or the reason why it cannot be read."""
    return tuple((name, read_file(workspace, name)) for name in names)


@contextmanager
def lane_of_claim(lanes: Lanes, claim: Claim) -> Iterator[tuple[Claim, tuple[int, ...]]]:
    """Lock the lane of a claim's entry, for the duration of the context.

    Yields the claim, and the descriptors that its children inherit. If the lane is locked by another process, or through the
    HTTP interface, the claim is `busy`.
    """
    lane = claim.entry.lane
    if lane is None or claim.busy:
        yield claim, ()
        return
    with lanes.lock_if_free(lane) as fd:
        yield (replace(claim, busy=True, held_by=lanes.find_holder(lane)), ()) if fd is None else (claim, (fd,))

"""Asking: one question to an agent by its runner, and what came back as the end of an attempt."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

from heartbeat.checklist_file import FileProblem, read_file
from heartbeat.prompt import CountTokens, Prompt, estimate_tokens, max_tokens
from heartbeat.runners import AgentRequest, Answer, Resources
from heartbeat.runners import dispatch as runners
from heartbeat.spec import CommandRunner, ModelRunner, Precheck, PythonRunner, Runner
from heartbeat.threads import in_daemon_thread
from scheduler.model.circuit import Circuit
from scheduler.model.entry import Claim
from scheduler.model.outcome import AttemptResult, Call, Failure, Outcome, Skip
from scheduler.system.lanes import Lanes

NO_ANSWER_TEXT = "the answer was cut at its token limit before it contained any text"


class JudgeAnswer(Protocol):
    """How a run ends that was answered with this text."""

    def __call__(self, text: str, *, truncated: bool) -> AttemptResult: ...


async def ask_agent(run: AgentRequest, prompt: Prompt, runner: Runner, resources: Resources, judge: JudgeAnswer) -> AttemptResult:
    """Ask and wait; `prompt` is what `run` asks, in parts. What it took is in the end's calls, however it went."""
    answer = await runners.call_agent(run, runner, resources)
    call = call_from_answer(runner, run.model, answer)
    if answer.failure is not None:
        return ending_of_failure(answer, prompt, call)
    result = AttemptResult(Outcome.ASYNC) if answer.later else judge(answer.text, truncated=answer.truncated)
    return replace(
        result,
        prompt_parts=dict(prompt.part_sizes),
        left_out=prompt.left_out,
        model_used=answer.model_used,
        calls=(call,),
        tool_calls=answer.tool_calls,
        log=answer.log,
        request_id=answer.request_id,
    )


def ending_without_text(text: str) -> AttemptResult:
    """The end of an attempt whose answer was cut before it came to say anything: all that there is is reasoning, or nothing."""
    return AttemptResult(Outcome.FAILED, Failure.BAD_ANSWER, text=text, error=NO_ANSWER_TEXT, truncated=True)


def ending_of_failure(answer: Answer, prompt: Prompt, call: Call) -> AttemptResult:
    """The end of an attempt whose asking failed."""
    return AttemptResult(
        Outcome.TIMEOUT if answer.failure is Failure.TIMEOUT else Outcome.FAILED,
        answer.failure,
        error=answer.error,
        transient=answer.transient,
        model_used=answer.model_used,
        prompt_parts=dict(prompt.part_sizes),
        left_out=prompt.left_out,
        retry_after=answer.retry_after,
        calls=(call,),
        tool_calls=answer.tool_calls,
        log=answer.log,
        truncated=answer.truncated,
        request_id=answer.request_id,
    )


def call_from_answer(runner: Runner, model: str | None, answer: Answer) -> Call:
    """What an answer took, as it is booked."""
    return Call(
        provider=runner.provider.name if isinstance(runner, ModelRunner) else None,
        model=model,
        model_used=answer.model_used,
        tokens=answer.tokens,
        cost_usd=answer.cost_usd,
        failure=answer.failure,
        retry_after=answer.retry_after,
        tools_ignored=answer.tools_ignored,
        not_sent=answer.not_sent,
        status=answer.status,
    )


def count_prompt_tokens(claim: Claim, prompt: Prompt) -> int:
    """The tokens of what is asked: estimated, or at the very most where a budget rests on it."""
    return token_counter(claim)(prompt.text, *(text for _, text in claim.messages))


def token_counter(claim: Claim) -> CountTokens:
    """How the tokens of what is asked are counted."""
    return estimate_tokens if reserved_input_tokens(claim) is None else max_tokens


def reserved_input_tokens(claim: Claim) -> int | None:
    """How many tokens may be asked by the budget; None where it does not rest on that."""
    return claim.reserved.input_tokens if claim.reserved else None


def exceeds_reservation(claim: Claim, prompt: Prompt) -> bool:
    """Whether this prompt could take more than was reserved for it."""
    most = reserved_input_tokens(claim)
    return most is not None and count_prompt_tokens(claim, prompt) > most


def explain_obstacle(claim: Claim, obstacle: Skip) -> str | None:
    """What is to be said of an obstacle beside its name."""
    return {Skip.BUDGET: claim.over_budget, Skip.BREAKER_OPEN: claim.breaker_open}.get(obstacle)


def run_facts(claim: Claim) -> dict[str, object]:
    """What the run itself adds to the facts that a runner gets."""
    return {
        "run": claim.run_id,
        "trigger": claim.trigger.value,
        "attempt": claim.attempt,
        "scheduled_at": claim.slot.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def circuits_of(*asked: tuple[Runner, str | None]) -> tuple[Circuit, ...]:
    """The models that these runners ask at providers of the config, each once."""
    return tuple(
        dict.fromkeys(Circuit(runner.provider.name, model or "") for runner, model in asked if isinstance(runner, ModelRunner))
    )


async def make_workspace(workspace: Path, program: object) -> None:
    """Make the folder that a program is to run in; where it cannot be made, whoever starts that says so better."""
    if isinstance(program, CommandRunner | PythonRunner | Precheck):
        with suppress(OSError):
            await in_daemon_thread(partial(workspace.mkdir, parents=True, exist_ok=True))


def read_workspace_files(workspace: Path, names: tuple[str, ...]) -> tuple[tuple[str, str | FileProblem], ...]:
    """Files of the workspace by name, each with its text, or why it cannot be read."""
    return tuple((name, read_file(workspace, name)) for name in names)


@contextmanager
def lane_of_claim(lanes: Lanes, claim: Claim) -> Iterator[tuple[Claim, tuple[int, ...]]]:
    """The claim as its worker is to see it, with the descriptor that its children are to inherit.

    The lane that its entry needs is kept within the context. Where it is not free, or held over HTTP, the claim is `busy`.
    """
    lane = claim.entry.lane
    if lane is None or claim.busy:
        yield claim, ()
        return
    with lanes.lock_if_free(lane) as fd:
        yield (replace(claim, busy=True), ()) if fd is None else (claim, (fd,))

"""One attempt of a run: checks, precheck, prompt, call of the agent, verdict. It reads and calls only through its resources."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from hashlib import sha256
from math import ceil
from typing import Any, cast

from heartbeat import checklist, findings, verdict
from heartbeat.checklist import Selection
from heartbeat.checklist_file import FileProblem, read_file, why_unreadable
from heartbeat.checks import (
    Situation,
    Skip,
    create_missing_checklist,
    first_obstacle,
    load_checklist,
    precheck_obstacle,
)
from heartbeat.decision import decision_prompt
from heartbeat.evidence import Answers, Look, read_lines
from heartbeat.postcheck import WorkPlace, verify
from heartbeat.precheck import PrecheckResult, PrecheckStatus, make_precheck
from heartbeat.prompt import (
    NO_MEMORY,
    Memory,
    Prompt,
    PromptFacts,
    compose_prompt,
    compose_question,
    compose_task,
    prompt_meta,
    task_meta,
)
from heartbeat.result import ANSWERED, FAILURES, UNSENT_CALL, AttemptResult, Outcome, Reason, SentPrompt
from heartbeat.runners import (
    FALLBACK_FAILURES,
    LONGEST_RETRY_AFTER,
    NO_BUDGET,
    NO_CACHE,
    Action,
    AgentRequest,
    Answer,
    CachePlan,
    Call,
    Decision,
    Failure,
    Resources,
    Tokens,
    TurnBudget,
    credible_usage,
)
from heartbeat.runners import dispatch as runners
from heartbeat.runners.tool_loop import TurnUsage
from heartbeat.spec import (
    Agent,
    CommandRunner,
    Decide,
    Fallback,
    Heartbeat,
    ModelRunner,
    Postcheck,
    PromptLimit,
    PythonRunner,
    Runner,
    estimate_tokens,
    max_tokens,
    may_be_asked_again,
)
from heartbeat.verdict import Suppression
from heartbeat.words import squeeze

COUNT_TIMEOUT = timedelta(seconds=5)  # for the request of a count
LEAST_KEPT = 4096  # characters, about 1,024 tokens: a provider keeps no shorter part of a prompt, and most models need more
MAX_WHY = 500  # characters of the reason why a fallback was called
MIN_TIME_LEFT = timedelta(seconds=1)  # for the call of the agent, after what came before it
CUT_BEFORE_TEXT = "the answer was cut at its token limit before it contained any text"
NO_ANSWER_TEXT = "the model answered without any text"

Elapsed = Callable[[], timedelta]
"""How long an attempt has been running."""

PendingResult = Coroutine[Any, Any, AttemptResult]
"""An attempt to await, which returns its result."""


@dataclass(frozen=True, slots=True)
class Given:
    """What is known before an attempt begins.

    `facts` are those of the prompt, without what the attempt itself reads. `blocked` has the reasons not to call the agent, each
    with its details. `meta` describes the run for the runner. `turns` is what a budget has reserved for all calls, at the prices
    of the agent itself and of each fallback; `has_budget`: further calls must fit into it. `unavailable` says of the agent and of
    each fallback why it must not be called (None: it may be); empty: all may be.
    `cache` says which parts of the prompt a provider is asked to keep.
    """

    facts: PromptFacts
    woken: bool = False
    blocked: Mapping[Skip, str | None] = field(default_factory=dict)
    slot: datetime | None = None
    memory: Memory = NO_MEMORY
    meta: Mapping[str, object] = field(default_factory=dict)
    turns: tuple[TurnBudget | None, ...] = ()
    has_budget: bool = False
    unavailable: tuple[str | None, ...] = ()
    cache: CachePlan = NO_CACHE


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt for an agent outside its heartbeat. `name` is that of the job, `classify` makes a result of a runner's answer."""

    name: str
    text: str
    agent: Agent
    timeout: timedelta
    classify: Callable[[Answer, Runner], AttemptResult]
    postcheck: Postcheck | None = None


def attempt(work: Heartbeat | Task, given: Given, resources: Resources, elapsed: Elapsed) -> PendingResult:
    """Carry out one attempt of a heartbeat, or of a task. The agent is called only after all checks have passed.

    1. Read the checklist and check everything that is known without the agent.
    2. Run the precheck, and check its result.
    3. Compose the prompt, and check its length.
    4. Let a model decide whether there is anything to do, if the heartbeat asks for that.
    5. Call the agent and classify its answer. If the answer is incomplete, ask again.
    6. If its provider fails, repeat steps 3 and 5 with each fallback, until one answers.
    7. Check whether the work was done, if the heartbeat or the task has a postcheck.
    """
    agent = work.agent if isinstance(work, Task) else work
    kind = _TaskAttempt if isinstance(work, Task) else _HeartbeatAttempt
    begun = kind(agent, work, given, resources, elapsed)
    return begun.run() if work.postcheck is None else begun.run_and_verify(work.postcheck)


def finish_at_once(pending: PendingResult) -> AttemptResult:
    """The result of an attempt with an agent of the caller (`own_agent`). It waits for nothing, so it needs no event loop.

    Raises RuntimeError if it has waited for something all the same, and whatever the caller's functions raise.
    """
    try:
        pending.send(None)
    except StopIteration as done:
        return cast("AttemptResult", done.value)
    raise RuntimeError("an attempt without resources has waited for something")


class _Attempt:
    """What the attempts of heartbeats and tasks have in common."""

    def __init__(self, agent: Agent, work: Heartbeat | Task, given: Given, resources: Resources, elapsed: Elapsed) -> None:
        self.work = work
        self.agent = agent  # the agent itself, or with a fallback in place of its runner
        self.fallback: str | None = None  # the name of this fallback
        self.has_further = False  # whether another fallback may be called after it
        self.timeout = work.timeout - work.postcheck.timeout if work.postcheck else work.timeout
        self.ends_at = self.timeout  # when its call must end, since the beginning of the attempt
        self.given = given
        self.turns = given.turns[0] if given.turns else None  # what its calls may use
        self.spent_usd, self.spent_tokens = 0.0, 0  # what calls before a fallback have used of that, at most
        self.resources = resources
        self.has_workspace = False  # the folder in which programs run is known to exist
        self.elapsed = elapsed
        self.limit = given.facts.limit or agent.prompt_limit

    @property
    def selection(self) -> Selection | None:
        """The items of the checklist that are in the prompt; None without a checklist."""
        return None

    async def run_and_verify(self, postcheck: Postcheck) -> AttemptResult:
        """Carry the attempt out, and check whether its work was done."""
        result, agent = await self.run(), self.agent
        place = WorkPlace(agent.workspace, {"HEARTBEATD_AGENT": agent.name}, self.given.facts.now + self.elapsed())
        return await verify(result, postcheck, place, self.resources)

    async def run(self) -> AttemptResult:
        """Make all checks, run the precheck, if there is one, and call the agent unless they show that there is nothing to do.

        The output of the precheck counts as changed if the agent must be called because of `max_age`.
        """
        skipped = await self.result_if_blocked()
        if skipped is not None:
            return skipped
        precheck = self.agent.precheck
        runs_programs = self.resources.own_agent is None and (
            precheck or any(_runs_in_workspace(it) for it, _ in self.agent.called)
        )
        if runs_programs and not self.has_workspace:
            with suppress(OSError):  # the start of the program fails with a better error
                await runners.offload(self.resources, partial(self.agent.workspace.mkdir, parents=True, exist_ok=True))
        call = self.call_alternatives if self.agent.fallbacks else self.compose_and_call
        if precheck is None:
            return await call(None)
        now, looked_at = self.given.facts.now, self.given.memory.looked_at
        is_old = precheck.max_age is not None and (looked_at is None or now - looked_at >= precheck.max_age)
        last = None if is_old else self.given.memory.last_precheck
        checked = await make_precheck(self.agent, precheck, last, self.given.memory.source_state, now, self.resources)
        if checked.status is PrecheckStatus.INTERRUPTED or self.elapsed() >= self.timeout:
            return replace(INTERRUPTED_PRECHECK, precheck=checked)
        obstacle = precheck_obstacle(precheck, checked, woken=self.given.woken)
        if obstacle is not None:
            return AttemptResult(Outcome.SKIPPED, obstacle, error=checked.error or None, precheck=checked)
        return replace(await call(checked), precheck=checked)

    async def call_alternatives(self, checked: PrecheckResult | None) -> AttemptResult:
        """Call the agent itself, and then its fallbacks in order, as long as a call fails for a reason of its provider.

        All of them share the time and the reservation of the attempt.
        """
        own = self.agent
        unavailable = self.given.unavailable or (None,) * (1 + len(own.fallbacks))
        possible = [number for number, why in enumerate(unavailable) if why is None]
        failed: list[AttemptResult] = []
        for number in possible:
            self.begin_alternative(own, number, failed, is_last=number == possible[-1])
            result = await self.compose_and_call(checked)
            if failed and result.outcome is Outcome.SKIPPED:
                failed[-1] = replace(failed[-1], error=f"{failed[-1].error}; fallback {self.fallback}: {result.error}")
                break
            if self.fallback is not None:
                why = unavailable[0] or (failed[0].error if failed else "") or ""
                result = replace(result, fallback=self.fallback, fallback_why=squeeze(why, MAX_WHY))
            failed.append(result)
            if not self.may_fall_back(result):
                break
        return _join_results(failed)

    def begin_alternative(self, own: Agent, number: int, failed: Sequence[AttemptResult], *, is_last: bool) -> None:
        """Let the agent itself (number 0), or a fallback, be called next.

        It may take half of the time that is left, the last one all of it, and what failed calls have left of the reservation.
        """
        for call in failed[-1].calls if failed else ():
            used = credible_usage(call.tokens) or (None if call.is_free else call.most)
            if used is not None and self.turns is not None:
                self.spent_usd += self.turns.cost_of(used)
                self.spent_tokens += used.total
        if number:
            self.fallback = own.fallbacks[number - 1].name
            self.agent = _with_fallback(own, own.fallbacks[number - 1])
        turns = self.given.turns[number] if self.given.turns else None
        self.turns = turns.without(self.spent_usd, self.spent_tokens) if turns else None
        begins = self.elapsed() if failed else timedelta()
        self.ends_at = self.timeout if is_last else begins + (self.timeout - begins) / 2
        self.has_further = not is_last

    def may_fall_back(self, result: AttemptResult) -> bool:
        """Whether a fallback may be called after this result: there is time, and the failure has changed nothing."""
        may_help = not result.has_changed and result.outcome in FAILURES and result.reason in FALLBACK_FAILURES
        return may_help and self.timeout - self.elapsed() >= MIN_TIME_LEFT and not is_being_cancelled()

    async def result_if_blocked(self) -> AttemptResult | None:
        """The result if the agent is not to be called, as far as that is known without its precheck; None if it is."""
        raise NotImplementedError

    async def compose(self, checked: PrecheckResult | None) -> tuple[PromptFacts, Prompt]:
        """What the prompt is made of, with the result of the precheck, and the prompt."""
        raise NotImplementedError

    def meta(self, facts: PromptFacts) -> Mapping[str, object]:
        """The facts as data for the runner."""
        raise NotImplementedError

    def classify(self, answer: Answer) -> AttemptResult:
        """The result of a call with this answer."""
        raise NotImplementedError

    async def compose_and_call(self, checked: PrecheckResult | None) -> AttemptResult:
        """Compose the prompt, with the result of the precheck, and call the agent."""
        facts, prompt = await self.compose(checked)
        size = await self.why_too_large(facts, prompt)
        if size is not None:
            return _too_large(prompt, size)
        # Without anything before it, the first call may take all of the time.
        time_left = self.time_left() if checked or self.fallback else self.ends_at
        if self.agent.decide is not None:
            return await self.decide_and_call(self.agent.decide, facts, time_left)
        return await self.call_and_ask_again(facts, prompt, time_left)

    async def decide_and_call(self, decide: Decide, facts: PromptFacts, time_left: timedelta) -> AttemptResult:
        """Call the agent only if a model decides that there is anything to do. Of heartbeats only: a task has no `decide`."""
        raise NotImplementedError

    def request(self, facts: PromptFacts, prompt: Prompt, time_left: timedelta) -> AgentRequest:
        """The request for an answer of the agent, with the ID of the span to which it belongs."""
        agent, messages = self.agent, self.given.memory.messages
        static, cache = self.part_to_keep(prompt, messages)
        has_tools = isinstance(agent.runner, ModelRunner) and agent.runner.tools is not None
        # What the budget has reserved limits the first prompt. The conversation after it has limits of its own for that.
        own, reserved = self.limit.own, self.limit.reserved
        return AgentRequest(
            agent.name,
            prompt.text,
            agent.model,
            agent.workspace,
            time_left,
            lambda: {**self.meta(facts), **self.given.meta},
            messages,
            form="findings" if agent.answer == "structured" else "text",
            traceparent=self.resources.trace.traceparent,
            conversation=PromptLimit(own, None if reserved is None else own) if has_tools else None,
            budget=self.turns or NO_BUDGET,
            effort=agent.effort,
            static=static,
            cache=cache,
            fallback=self.fallback,
            ends_itself=self.has_further,
            clock=self.local_time,
            usd_per_try=agent.usd_per_try,
        )

    async def read_files(self, names: tuple[str, ...]) -> tuple[tuple[str, str | FileProblem], ...]:
        """Files of the workspace by name, each with its text, or the reason why it cannot be read."""
        read = lambda: tuple((name, read_file(self.agent.workspace, name)) for name in names)  # noqa: E731
        return await runners.offload(self.resources, read) if names else ()

    def local_time(self) -> datetime:
        """The present time in the zone of the agent."""
        return (self.given.facts.now + self.elapsed()).astimezone(self.agent.zone)

    def time_left(self) -> timedelta:
        """The time for the next call."""
        return max(self.ends_at - self.elapsed(), MIN_TIME_LEFT)

    async def why_too_large(self, facts: PromptFacts, prompt: Prompt) -> str | None:
        """The size of a prompt that is too large for its limit; None if it is not. Its provider may count it.

        A count takes a request of its own, so it is only worth it before a prompt is rejected because of its length, and not
        before a decision. 5 % are added, because the provider calls it an estimate.
        """
        runner, tokens = self.agent.runner, self.limit.count(prompt.text, *facts.messages)
        if self.fallback and self.given.has_budget and self.turns and isinstance(runner, ModelRunner):
            usage = TurnUsage(self.limit, self.turns, runner.max_output_tokens)
            if not usage.fits(self.most_tokens(prompt)):
                return f"not called, because the failed calls have left too little of its budget ({usage.describe_limit()})"
        if tokens <= self.limit.tokens:
            return None
        request = self.request(facts, prompt, min(self.time_left(), COUNT_TIMEOUT))
        counted = None if self.agent.decide else await runners.count_tokens(request, runner, self.resources)
        if counted is None:
            return self.limit.describe(tokens)
        counted = ceil(counted * 1.05)
        return self.limit.describe(counted, by_provider=True) if counted > self.limit.tokens else None

    def most_tokens(self, prompt: Prompt) -> int:
        """An upper limit for the tokens of this prompt, with the messages before it."""
        return max_tokens(prompt.text, *self.given.facts.messages)

    def exceeds_reservation(self, prompt: Prompt) -> bool:
        """Whether this prompt may need more tokens than a budget has reserved for it."""
        return self.limit.reserved is not None and self.most_tokens(prompt) > self.limit.reserved

    def part_to_keep(self, prompt: Prompt, messages: Sequence[tuple[str, str]]) -> tuple[str, CachePlan]:
        """The part of a prompt that is the same in each run, and whether a provider keeps it.

        A part after earlier messages is not the same in each run, because the oldest of them are dropped. If writing it could
        cost more than a budget has reserved, it is not kept.
        """
        static = "" if messages else prompt.static_text
        # The plan is made for the agent's own model.
        plan, reserved = NO_CACHE if self.fallback else self.given.cache, self.limit.reserved
        if plan.ttl is None:
            return static, plan
        rest = self.most_tokens(prompt) - max_tokens(static)
        fits = reserved is None or max_tokens(static) * plan.write_ratio + rest <= reserved
        has_turns = isinstance(self.agent.runner, ModelRunner) and self.agent.runner.tools is not None and reserved is not None
        is_kept = len(static) >= LEAST_KEPT and fits and not (has_turns and plan.write_ratio > 1)
        return static, plan if is_kept else replace(plan, ttl=None)

    async def call(self, request: AgentRequest, prompt: Prompt) -> AttemptResult:
        """Call the agent and wait for its answer. The result has the calls with their usage, whether they succeeded or failed."""
        began = self.elapsed()
        answer = await runners.call_agent(request, self.agent.runner, self.resources)
        took = self.elapsed() - began
        earlier = estimate_tokens(*self.given.facts.messages)
        sizes = {**({"session": earlier} if earlier else {}), **prompt.part_sizes}
        digest = ""  # of the part of the prompt that is the same in each run, and of the model that keeps it
        if len(request.static) >= LEAST_KEPT:
            digest = sha256(f"{request.model}\n{request.static}".encode(errors="replace")).hexdigest()[:16]
        calls = _calls_of(self.agent.runner, request.model, answer, took)
        if answer.failure is not None:
            result = _result_of_failure(answer)
        elif answer.later:
            result = AttemptResult(Outcome.ASYNC)
        else:
            result = self.classify(answer)
        return replace(
            result,
            prompt=SentPrompt(sizes, prompt.left_out, self.selection, digest, request.cache.ttl),
            model_used=answer.model_used,
            calls=self.with_maximum(calls, request, prompt) if self.has_further else calls,
            tool_calls=answer.tool_calls,
            has_changed=answer.has_changed,
            log=answer.log,
            request_id=answer.request_id,
            reminders=answer.reminders or (result.report.reminders if result.report else ()),
        )

    async def call_and_ask_again(self, facts: PromptFacts, prompt: Prompt, time_left: timedelta) -> AttemptResult:
        """Call the agent. Ask it about what is missing in its answer, and put the answers together."""
        request = self.request(facts, prompt, time_left)
        result = first = await self.call(request, prompt)
        if not self.agent.ask_again or first.outcome not in ANSWERED or first.truncated:
            return first
        answers = Answers(_look_of_run(facts, self.given.memory))
        if first.report is None and first.message and not answers.look.problems and answers.look.lines is None:
            return first  # a text of an agent that has no problems is a note
        answers.add(first.report, first.message or "")
        text = first.text or ""
        for _ in range(self.agent.ask_again):
            missing = answers.missing
            question = compose_question(prompt, text, missing.question) if missing else prompt
            if not missing or not self.may_ask(question, result.calls):
                break
            used = [call.tokens for call in result.calls if call.tokens is not None]
            budget = request.budget.without(sum(map(request.budget.cost_of, used)), sum(each.total for each in used))
            static, cache = self.part_to_keep(question, request.messages)
            again = replace(request, prompt=question.text, timeout=self.time_left(), budget=budget, static=static, cache=cache)
            further = await self.call(again, question)
            result = replace(
                result,
                calls=(*result.calls, *further.calls),
                tool_calls=(*result.tool_calls, *further.tool_calls),
                has_changed=result.has_changed or further.has_changed,
                reminders=(*result.reminders, *further.reminders),
                prompt=replace(result.prompt, part_sizes=further.prompt.part_sizes),
            )
            if further.outcome not in ANSWERED or further.truncated:
                break
            answers.add(further.report, further.message or "")
            text = further.text or ""
        return _combine_answers(self.agent, answers, result) if answers.was_asked_again else result

    def may_ask(self, question: Prompt, calls: Sequence[Call]) -> bool:
        """Whether the time of the attempt, and its reservation in the budget or the limit of its prompt, allow another call."""
        if self.ends_at - self.elapsed() < MIN_TIME_LEFT:
            return False
        if not self.given.has_budget:
            return self.limit.count(question.text, *self.given.facts.messages) <= self.limit.tokens
        limits, runner = self.turns, self.agent.runner
        if limits is None or limits.tokens is None or not isinstance(runner, ModelRunner):
            return False
        usage, plan = TurnUsage(self.limit, limits, runner.max_output_tokens), self.given.cache
        more = max(plan.write_ratio - 1, 0.0) if plan.ttl else 0.0  # what writing to the cache costs beyond the reserved price
        for call in calls:
            used = credible_usage(call.tokens)
            if used is None:
                return False
            usage.add(replace(used, input=used.input + ceil(used.cache_write_1h * more)))
        return usage.fits(self.most_tokens(question) + ceil(max_tokens(question.static_text) * more))

    def with_maximum(self, calls: tuple[Call, ...], request: AgentRequest, prompt: Prompt) -> tuple[Call, ...]:
        """The calls, each with the most that it can have used, if a fallback may be called in the same reservation."""
        runner = self.agent.runner
        if not isinstance(runner, ModelRunner):
            return calls
        kept = max_tokens(request.static) * (request.cache.write_ratio - 1) if request.cache.ttl else 0
        size = self.most_tokens(prompt) + ceil(max(kept, 0))
        most = Tokens(input=size, output=runner.max_output_tokens)
        return tuple(call if call.most or call.is_free else replace(call, most=most) for call in calls)


class _TaskAttempt(_Attempt):
    """One attempt of a task. Its checks are those of a heartbeat that concern the agent itself."""

    work: Task

    async def result_if_blocked(self) -> AttemptResult | None:
        obstacle = next((reason for reason in AGENT_CHECKS if reason in self.given.blocked), None)
        return None if obstacle is None else AttemptResult(Outcome.SKIPPED, obstacle, error=self.given.blocked[obstacle])

    async def compose(self, checked: PrecheckResult | None) -> tuple[PromptFacts, Prompt]:
        facts = replace(self.given.facts, precheck=checked, context=await self.read_files(self.agent.context))
        return facts, compose_task(self.work.name, self.work.text, self.agent, facts)

    def meta(self, facts: PromptFacts) -> Mapping[str, object]:
        return task_meta(self.work.name, self.agent, facts)

    def classify(self, answer: Answer) -> AttemptResult:
        return self.work.classify(answer, self.agent.runner)


class _HeartbeatAttempt(_Attempt):
    """One attempt of a heartbeat."""

    agent: Heartbeat
    situation: Situation  # is read first

    @property
    def selection(self) -> Selection:
        return self.situation.selection

    async def result_if_blocked(self) -> AttemptResult | None:
        spec = self.agent
        # Files may lie on a network folder that hangs. Reading them here would block the other runs of this event loop.
        read = partial(read_situation, spec, self.given)
        self.situation = await runners.offload(self.resources, read) if spec.reads_checklist else read()
        obstacle = first_obstacle(self.situation)
        # A file that was read lies in the workspace: this saves the thread that would create it.
        self.has_workspace = spec.reads_checklist and not isinstance(self.situation.checklist, Skip)
        return None if obstacle is None else AttemptResult(Outcome.SKIPPED, obstacle, error=await self.explain(obstacle))

    async def explain(self, obstacle: Skip) -> str | None:
        """Details of an obstacle: why the checklist cannot be read or created, or what is known beforehand."""
        if obstacle is Skip.CHECKLIST_UNREADABLE:
            return await runners.offload(self.resources, partial(why_unreadable, self.agent.workspace, self.agent.checklist))
        if obstacle is Skip.CHECKLIST_MISSING:
            return await runners.offload(self.resources, partial(create_missing_checklist, self.agent, obstacle))
        return self.given.blocked.get(obstacle)

    async def compose(self, checked: PrecheckResult | None) -> tuple[PromptFacts, Prompt]:
        spec, situation = self.agent, self.situation
        context, memory = spec.context_files, spec.memory if situation.runs_without_checklist else ()
        files = await self.read_files((*context, *memory))
        remembered = files[len(context) :]
        whole = "" if isinstance(situation.checklist, Skip) else situation.checklist
        facts = replace(
            self.given.facts,
            precheck=checked,
            checklist=situation.selection.text,
            context=files[: len(context)],
            memory=remembered,
            progress=checklist.count_boxes(whole, *(text for _, text in remembered if isinstance(text, str))),
        )
        return facts, compose_prompt(facts, spec)

    def meta(self, facts: PromptFacts) -> Mapping[str, object]:
        return prompt_meta(facts, self.agent)

    def classify(self, answer: Answer) -> AttemptResult:
        return classify_answer(self.agent, answer)

    async def decide_and_call(self, decide: Decide, facts: PromptFacts, time_left: timedelta) -> AttemptResult:
        decided = await self.request_decision(decide, facts, time_left)
        if isinstance(decided, AttemptResult):
            return decided
        decision, call = decided
        facts = replace(facts, tasks=decision.tasks)
        prompt = compose_prompt(facts, self.agent)
        if self.exceeds_reservation(prompt):
            error = "the tasks that were decided on make the prompt larger than its budget allows"
            sent = SentPrompt(prompt.part_sizes, selection=self.selection)
            return AttemptResult(Outcome.FAILED, Failure.TOO_LARGE, error=error, prompt=sent, calls=(call,))
        result = await self.call_and_ask_again(facts, prompt, self.time_left())
        return replace(result, calls=(call, *result.calls))

    async def request_decision(
        self, decide: Decide, facts: PromptFacts, time_left: timedelta
    ) -> AttemptResult | tuple[Decision, Call]:
        """What a model decides, and its call; the result of the attempt if it decides to skip, or does not decide."""
        prompt = decision_prompt(facts, self.agent)
        if self.exceeds_reservation(prompt):
            return _too_large(prompt, None, self.selection)
        request = replace(
            self.request(facts, prompt, time_left),
            model=decide.model,
            messages=(),
            form="decision",
            conversation=None,
            effort=None,
            static="",
            cache=NO_CACHE,
        )
        began = self.elapsed()
        answer = await runners.call_agent(request, decide.runner, self.resources)
        call = answer.as_call(decide.runner.provider.name, decide.model, self.elapsed() - began)
        sent = SentPrompt(prompt.part_sizes, prompt.left_out, self.selection)
        if answer.decision is None:
            return replace(_result_of_failure(answer), prompt=sent, calls=(call,))
        if answer.decision.action is Action.RUN:
            return answer.decision, call
        return AttemptResult(
            Outcome.OK,
            suppression=Suppression.DECIDED_SKIP,
            model_used=answer.model_used,
            request_id=answer.request_id,
            prompt=sent,
            calls=(call,),
        )


# What a run has in common with every other call of the agent. The other checks are those of its heartbeat.
AGENT_CHECKS = (Skip.BUSY, Skip.BUDGET, Skip.BREAKER_OPEN)

INTERRUPTED_PRECHECK = AttemptResult(
    Outcome.TIMEOUT, Failure.TIMEOUT, error="the run was ended during its precheck", transient=True
)


def read_situation(spec: Heartbeat, given: Given) -> Situation:
    """Read everything that the checks of a heartbeat need to know."""
    return Situation(
        spec,
        given.facts.now,
        woken=given.woken,
        checklist=load_checklist(spec),
        blocked=given.blocked,
        slot=given.slot,
        last_prompted=given.memory.last_checked,
    )


def classify_answer(spec: Agent, answer: Answer) -> AttemptResult:
    """The result of a run with this answer.

    Findings make it an alert, unless all of them are resolved. Which of them are news is decided when the run is closed, because
    that depends on the problems that were reported before. Only the text without a key is classified here.
    """
    text, truncated = answer.text, answer.truncated
    content = verdict.without_reasoning(text, strip_reasoning=spec.strip_reasoning, truncated=truncated)
    if truncated:
        content = verdict.without_cut_end(content)
    if (failed := result_without_text(spec.runner, answer, content)) is not None:
        return failed
    report = findings.find_report(answer.report, content, strip_reasoning=spec.strip_reasoning, is_cut=truncated)
    judged = verdict.judge_for(spec, report.text if report else content, truncated=truncated)
    message: str | None = judged.text if judged.outcome == "alert" else None
    suppression = judged.suppression
    if report is not None and suppression is Suppression.EMPTY:
        suppression = Suppression.HEARTBEAT_OK
    is_alert = judged.outcome == "alert" or (report is not None and any(not finding.resolved for finding in report.findings))
    if is_alert:
        suppression = None if spec.show_alerts else Suppression.NOT_SHOWN
        message = message if spec.show_alerts else None
    elif spec.show_ok:
        suppression, message = None, judged.text or verdict.OK_TOKEN
    noted = None if message is None else verdict.with_cut_note(message, truncated=truncated)
    outcome = Outcome.ALERT if is_alert else Outcome.OK
    result = AttemptResult(outcome, suppression=suppression, text=text, message=noted, truncated=truncated, report=report)
    if report is not None and report.failed:
        return result.as_failure(Reason.REPORTED_FAILURE, report.failed, transient=True)
    return result


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


def is_being_cancelled() -> bool:
    """Whether the present task is to end. A call that was interrupted by that returns a failure, after which none may follow."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # a program that has its own main loop calls the library
        return False
    return task is not None and task.cancelling() > 0


def _runs_in_workspace(runner: Runner) -> bool:
    """Whether the runner, or a server of its tools, may be a program."""
    return isinstance(runner, CommandRunner | PythonRunner) or (isinstance(runner, ModelRunner) and runner.tools is not None)


def _with_fallback(own: Agent, fallback: Fallback) -> Agent:
    """The agent with a fallback in place of its runner and model. No decision is made before it."""
    chosen: dict[str, Any] = {"runner": fallback.runner, "model": fallback.model, "effort": fallback.effort, "fallbacks": ()}
    if not may_be_asked_again(fallback.runner):
        chosen["ask_again"] = 0
    return replace(own, **chosen, decide=None)


def _join_results(results: Sequence[AttemptResult]) -> AttemptResult:
    """The last result, with the calls of all. If all have failed, the error names each, and a retry follows if one may help."""
    last = replace(
        results[-1],
        calls=tuple(call for result in results for call in result.calls),
        tool_calls=tuple(call for result in results for call in result.tool_calls),
    )
    if len(results) == 1 or last.outcome not in FAILURES:
        return last
    texts = (f"fallback {each.fallback}: {each.error}" if each.fallback else each.error or "" for each in results)
    waits = [each.retry_after or timedelta() for each in results if each.transient]
    short = [wait for wait in waits if wait <= LONGEST_RETRY_AFTER]
    wait = max(short or waits, default=timedelta()) or None
    return replace(last, error="; ".join(texts), transient=bool(waits), retry_after=wait)


def _result_of_failure(answer: Answer) -> AttemptResult:
    return AttemptResult(
        Outcome.TIMEOUT if answer.failure is Failure.TIMEOUT else Outcome.FAILED,
        answer.failure,
        error=answer.error,
        transient=answer.transient,
        model_used=answer.model_used,
        retry_after=answer.retry_after,
        truncated=answer.truncated,
        request_id=answer.request_id,
    )


def _too_large(prompt: Prompt, error: str | None, selection: Selection | None = None) -> AttemptResult:
    sent = SentPrompt(prompt.part_sizes, selection=selection)
    return AttemptResult(Outcome.SKIPPED, Skip.PROMPT_TOO_LARGE, error=error, prompt=sent)


def _calls_of(runner: Runner, model: str | None, answer: Answer, took: timedelta) -> tuple[Call, ...]:
    """The calls that led to this answer, with their usage and duration: one, or each turn of a model with tools.

    If a model with tools was not called, a call of no provider says that nothing was sent, so that nothing is charged.
    """
    if answer.turns is not None:
        return answer.turns or (replace(UNSENT_CALL, failure=answer.failure),)
    provider = runner.provider.name if isinstance(runner, ModelRunner) else None
    account = runner.account if isinstance(runner, CommandRunner) else None
    return (answer.as_call(provider, model, took, account=account),)


def _look_of_run(facts: PromptFacts, memory: Memory) -> Look:
    """What the run saw besides the answer of its agent."""
    checked = facts.precheck
    jobs = {wake.sender for wake in facts.wakes if wake.source == "cron" and wake.outcome in FAILURES}
    jobs.update(*(problem.jobs for problem in facts.problems))
    has_lines = checked is not None and checked.status in (PrecheckStatus.WORK, PrecheckStatus.UNCHANGED)
    lines = read_lines(checked.output, checked.events) if checked and has_lines else None
    has_news = checked is not None and checked.source_has_news
    left_out = memory.left_out
    if has_news and lines:  # the agent decides which of them it reports
        left_out = left_out | {line.name for line in lines}
    return Look(facts.problems, lines, frozenset(jobs), left_out, has_news, memory.ended)


def _combine_answers(spec: Agent, answers: Answers, result: AttemptResult) -> AttemptResult:
    """The result of a run whose agent was asked again. Prose is no answer: nothing of it is sent, unless it is an alarm."""
    report = answers.report
    if report is None:
        if result.message and verdict.begins_with_alarm(result.message):
            return result
        return replace(result, message=None, suppression=Suppression.NO_FINDINGS)
    first = result.report or findings.Report(())
    report = replace(report, text=first.text, loose=first.loose, dropped=first.dropped)
    judged = classify_answer(spec, Answer(str(report), report=report))
    return replace(
        result,
        outcome=judged.outcome,
        suppression=judged.suppression,
        text=judged.text or verdict.OK_TOKEN,
        message=judged.message,
        report=judged.report,
    )

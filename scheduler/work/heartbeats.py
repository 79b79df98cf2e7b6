"""A heartbeat carried through: look at the world, check, ask the agent, judge what it says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

from heartbeat import checklist, due_items, precheck, verdict
from heartbeat.checks import Situation, check_results, create_missing_checklist, first_obstacle, late_obstacle, load_checklist
from heartbeat.decision import Action, Decision, decision_prompt
from heartbeat.due_items import Selection
from heartbeat.hours import TWO_YEARS
from heartbeat.precheck import PrecheckStatus
from heartbeat.prompt import Prompt, PromptFacts, compose_prompt, prompt_meta
from heartbeat.prompt import PromptWake as PromptWake
from heartbeat.runners import AgentRequest, Answer, Resources, Tokens
from heartbeat.runners import dispatch as runners
from heartbeat.spec import Decide, Heartbeat
from heartbeat.threads import in_daemon_thread
from scheduler.model import entry_schedule
from scheduler.model.circuit import Circuit
from scheduler.model.entry import Claim, Elapsed, Entry
from scheduler.model.outcome import WOKEN, AttemptResult, Call, Failure, Kind, Outcome, Skip, Suppression
from scheduler.model.wake import Wake, interleave_senders
from scheduler.work import agent_calls

MIN_TIME_LEFT = timedelta(seconds=1)  # what is left at least for the run once a decision has been made


@dataclass(frozen=True, slots=True)
class HeartbeatEntry(Entry):
    """A heartbeat as the queue sees it."""

    spec: Heartbeat

    kind = Kind.HEARTBEAT
    catch_up = True
    retries_after_crash = True
    starts_at_boot = False
    agents_to_wake = ()

    @property
    def schedule_text(self) -> str:
        return entry_schedule.heartbeat_schedule_text(self.spec)

    @property
    def model(self) -> str | None:
        return self.spec.model

    @property
    def models(self) -> tuple[Circuit, ...]:
        decide = self.spec.decide
        first = ((decide.runner, decide.model),) if decide else ()
        return agent_calls.circuits_of(*first, (self.spec.runner, self.spec.model))

    @property
    def lane(self) -> str:
        return self.spec.name

    @property
    def session_keep(self) -> int:
        return self.spec.session_keep

    @property
    def dedup_window(self) -> timedelta:
        return self.spec.dedup_window

    def preconditions(self, claim: Claim) -> Sequence[tuple[Skip, bool | None]]:
        return check_results(read_situation(self.spec, claim))

    def checklist_remarks(self) -> tuple[str, ...]:
        text = load_checklist(self.spec)
        return () if isinstance(text, Skip) else due_items.find_remarks(text)

    def is_open_at(self, now: datetime) -> bool:
        return not self.is_day_off(now) and self.spec.hours.open_at(now)

    def opens_at(self, now: datetime) -> datetime | None:
        hours = self.spec.hours
        for begins, ends in self.spec.calendars.openings(now, now + TWO_YEARS):
            first = max(now, begins)
            opens = first if hours.open_at(first) else hours.next_opening(first)
            if opens is not None and opens < ends:
                return opens
        return None

    def closes_at(self, now: datetime) -> datetime | None:
        ends = (self.spec.calendars.next_closing(now), self.spec.hours.next_closing(now))
        return min((end for end in ends if end is not None), default=None)

    def message_digest(self, message: str) -> str:
        return verdict.message_digest(message, self.spec.dedup_normalize)

    def classify_answer(self, text: str, *, truncated: bool) -> AttemptResult:
        return _judge_answer(self.spec, text, truncated=truncated)

    async def carry(self, claim: Claim, resources: Resources, elapsed: Elapsed) -> AttemptResult:
        return await run_heartbeat(self.spec, claim, resources, elapsed)

    def wakes_caused_by(self, claim: Claim, result: AttemptResult) -> tuple[Wake, ...]:
        """A heartbeat wakes nobody."""
        return ()


async def run_heartbeat(spec: Heartbeat, claim: Claim, resources: Resources, elapsed: Elapsed) -> AttemptResult:
    """One attempt of a heartbeat: nothing is asked before every gate has been passed."""
    # Files may lie on a network folder that hangs: what reads them must not hold up the other runs of the loop.
    situation = await in_daemon_thread(read_situation, spec, claim) if spec.reads_checklist else read_situation(spec, claim)
    obstacle = first_obstacle(situation)
    if obstacle is not None:
        error = await _create_checklist(spec, obstacle) or agent_calls.explain_obstacle(claim, obstacle)
        return AttemptResult(Outcome.SKIPPED, obstacle, error=error)
    await agent_calls.make_workspace(spec.workspace, spec.precheck or spec.runner)
    if spec.precheck is None:
        return await _compose_and_ask(spec, claim, situation, resources, elapsed)
    checked = await precheck.run_precheck(spec, spec.precheck, claim.last_precheck, resources.start)
    return replace(
        await _run_after_precheck(spec, claim, situation.with_results(precheck=checked), resources, elapsed), precheck=checked
    )


async def _create_checklist(spec: Heartbeat, obstacle: Skip) -> str | None:
    if obstacle is not Skip.CHECKLIST_MISSING:
        return None
    return await in_daemon_thread(create_missing_checklist, spec, obstacle)


async def _run_after_precheck(
    spec: Heartbeat, claim: Claim, situation: Situation, resources: Resources, elapsed: Elapsed
) -> AttemptResult:
    """A beat whose precheck has been made."""
    checked = situation.precheck
    assert checked is not None
    if checked.status is PrecheckStatus.INTERRUPTED or elapsed() >= spec.timeout:
        return AttemptResult(Outcome.TIMEOUT, Failure.TIMEOUT, error="the run was ended during its precheck", transient=True)
    obstacle = late_obstacle(situation)
    if obstacle is not None:
        return AttemptResult(Outcome.SKIPPED, obstacle, error=checked.error or None)
    return await _compose_and_ask(spec, claim, situation, resources, elapsed)


async def _compose_and_ask(
    spec: Heartbeat, claim: Claim, situation: Situation, resources: Resources, elapsed: Elapsed
) -> AttemptResult:
    """What is to be asked is put together, measured and asked."""
    selection = situation.selection
    reads_files = situation.runs_without_checklist or (spec.context and not spec.light_context)
    facts = (
        await in_daemon_thread(_prompt_facts, spec, claim, situation, selection)
        if reads_files
        else _prompt_facts(spec, claim, situation, selection)
    )
    prompt = compose_prompt(facts, spec)
    if late_obstacle(situation.with_results(tokens=agent_calls.count_prompt_tokens(claim, prompt))) is not None:
        return AttemptResult(Outcome.SKIPPED, Skip.PROMPT_TOO_LARGE, prompt_parts=dict(prompt.part_sizes))
    return replace(await _decide_and_ask(spec, claim, facts, prompt, resources, elapsed), selection=selection)


async def _decide_and_ask(
    spec: Heartbeat, claim: Claim, facts: PromptFacts, prompt: Prompt, resources: Resources, elapsed: Elapsed
) -> AttemptResult:
    """The agent's answer, or where a decision comes first and is to skip, that."""
    left = _time_left(spec, elapsed) if spec.precheck else spec.timeout
    if spec.decide is None:
        return await _ask_agent(spec, claim, facts, prompt, resources, left)
    decided = await _ask_for_decision(spec, spec.decide, claim, facts, left, resources)
    if isinstance(decided, AttemptResult):
        return decided
    told = replace(facts, tasks=decided.tasks)
    result = await _ask_agent(spec, claim, told, compose_prompt(told, spec), resources, _time_left(spec, elapsed))
    return replace(result, calls=(_decision_call(spec.decide, decided.model_used, decided.tokens), *result.calls))


def _time_left(spec: Heartbeat, elapsed: Elapsed) -> timedelta:
    return max(spec.timeout - elapsed(), MIN_TIME_LEFT)


async def _ask_for_decision(
    spec: Heartbeat, decide: Decide, claim: Claim, facts: PromptFacts, timeout: timedelta, resources: Resources
) -> AttemptResult | Decision:
    """What a model decides; the end of the run if that is to skip, or no decision at all."""
    prompt = decision_prompt(facts, spec)
    if agent_calls.exceeds_reservation(claim, prompt):
        return AttemptResult(Outcome.SKIPPED, Skip.PROMPT_TOO_LARGE, prompt_parts=dict(prompt.part_sizes))
    run = _make_run(spec, claim, facts, prompt, decide.model, timeout)
    answer = await runners.request_decision(run, decide.runner, resources.http)
    if isinstance(answer, Answer):
        return agent_calls.ending_of_failure(answer, prompt, agent_calls.call_from_answer(decide.runner, decide.model, answer))
    if answer.action is Action.RUN:
        return answer
    return AttemptResult(
        Outcome.OK,
        suppression=Suppression.DECIDED_SKIP,
        model_used=answer.model_used,
        request_id=answer.request_id,
        prompt_parts=dict(prompt.part_sizes),
        left_out=prompt.left_out,
        calls=(_decision_call(decide, answer.model_used, answer.tokens),),
    )


def _decision_call(decide: Decide, model_used: str | None, tokens: Tokens | None) -> Call:
    return Call(decide.runner.provider.name, decide.model, model_used, tokens)


async def _ask_agent(
    spec: Heartbeat, claim: Claim, facts: PromptFacts, prompt: Prompt, resources: Resources, timeout: timedelta
) -> AttemptResult:
    if facts.tasks is not None and agent_calls.exceeds_reservation(claim, prompt):
        error = "the tasks that were decided on make the prompt larger than its budget allows"
        return AttemptResult(Outcome.FAILED, Failure.TOO_LARGE, error=error, prompt_parts=dict(prompt.part_sizes))
    run = _make_run(spec, claim, facts, prompt, spec.model, timeout, claim.messages)
    return await agent_calls.ask_agent(run, prompt, spec.runner, resources, partial(_judge_answer, spec))


def _make_run(
    spec: Heartbeat,
    claim: Claim,
    facts: PromptFacts,
    prompt: Prompt,
    model: str | None,
    timeout: timedelta,
    messages: tuple[tuple[str, str], ...] = (),
) -> AgentRequest:
    about = partial(_run_facts, spec, claim, facts)
    return AgentRequest(spec.name, prompt.text, model, spec.workspace, timeout, about, messages)


def _run_facts(spec: Heartbeat, claim: Claim, facts: PromptFacts) -> dict[str, object]:
    return {**prompt_meta(facts, spec), **agent_calls.run_facts(claim)}


def read_situation(spec: Heartbeat, claim: Claim) -> Situation:
    """All that the chain of checks wants to know, read at this beat."""
    return Situation(
        spec,
        claim.started_at,
        woken=_is_woken(claim),
        paused=claim.paused,
        busy=claim.busy,
        checklist=load_checklist(spec),
        breaker_open=claim.breaker_open is not None,
        over_budget=claim.over_budget is not None,
        token_limit=agent_calls.reserved_input_tokens(claim),
        slot=claim.slot,
        last_prompted=claim.last_checked,
    )


def _is_woken(claim: Claim) -> bool:
    """A beat is woken when a wake started it, and also when one rides along with its slot: it wants to be heard."""
    return claim.trigger in WOKEN or bool(claim.wakes)


def _prompt_facts(spec: Heartbeat, claim: Claim, situation: Situation, selection: Selection) -> PromptFacts:
    whole = "" if isinstance(situation.checklist, Skip) else situation.checklist
    memory = agent_calls.read_workspace_files(spec.workspace, spec.memory) if situation.runs_without_checklist else ()
    return PromptFacts(
        now=claim.started_at,
        last_beat=claim.last_beat,
        failures=claim.failures,
        wakes=tuple(
            PromptWake(wake.source, wake.sender, wake.count, wake.text, wake.outcome) for wake in interleave_senders(claim.wakes)
        ),
        checklist=selection.text,
        context=() if spec.light_context else agent_calls.read_workspace_files(spec.workspace, spec.context),
        precheck=situation.precheck,
        memory=memory,
        progress=checklist.count_boxes(whole, *(text for _, text in memory if isinstance(text, str))),
        last_success=claim.last_success,
        last_error=claim.last_error,
        up_since=claim.up_since,
        activity=claim.activity,
        token_limit=agent_calls.reserved_input_tokens(claim),
        count_tokens=agent_calls.token_counter(claim),
        messages=tuple(text for _, text in claim.messages),
        run=claim.run_id,
    )


def _judge_answer(spec: Heartbeat, text: str, *, truncated: bool) -> AttemptResult:
    said = verdict.without_reasoning(text, strip_reasoning=spec.strip_reasoning, truncated=truncated)
    if truncated and not said.strip():
        return agent_calls.ending_without_text(text)
    # Of what was cut nobody knows how much more there was: a short rest is no sign that all is well.
    judged = verdict.judge_answer(said, spec.ok_match, 0 if truncated else spec.ack_max_chars)
    outcome = Outcome(judged.outcome)
    message: str | None = judged.text if outcome is Outcome.ALERT else None
    suppression = judged.suppression
    if outcome is Outcome.ALERT and not spec.show_alerts:
        suppression, message = Suppression.NOT_SHOWN, None
    if outcome is Outcome.OK and spec.show_ok:
        suppression, message = None, judged.text or verdict.OK_TOKEN
    noted = None if message is None else verdict.with_cut_note(message, truncated=truncated)
    return AttemptResult(outcome, suppression=suppression, text=text, message=noted, truncated=truncated)

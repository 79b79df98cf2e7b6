"""Carries out heartbeat runs: checks whether the agent needs to be called, calls it, and classifies its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

from heartbeat import checklist, due_items, findings, precheck, verdict
from heartbeat.checklist_file import why_unreadable
from heartbeat.checks import Situation, check_results, create_missing_checklist, first_obstacle, late_obstacle, load_checklist
from heartbeat.decision import Action, Decision, decision_prompt
from heartbeat.due_items import Selection
from heartbeat.evidence import Answers, Look, read_lines
from heartbeat.hours import TWO_YEARS
from heartbeat.precheck import PrecheckResult, PrecheckStatus
from heartbeat.prompt import Prompt, PromptFacts, PromptWake, compose_prompt, compose_question, prompt_meta
from heartbeat.runners import AgentRequest, Answer, Resources
from heartbeat.runners import dispatch as runners
from heartbeat.spec import Decide, Heartbeat, ModelRunner, Precheck
from heartbeat.threads import in_daemon_thread
from scheduler.model import entry_schedule
from scheduler.model.circuit import Circuit
from scheduler.model.entry import Claim, Elapsed, Entry
from scheduler.model.outcome import ANSWERED, FAILURES, AttemptResult, Call, Failure, Kind, Outcome, Skip, Suppression, Trigger
from scheduler.model.wake import Wake, interleave_senders
from scheduler.work import agent_calls


@dataclass(frozen=True, slots=True)
class HeartbeatEntry(Entry):
    """A heartbeat as an entry of the queue."""

    spec: Heartbeat

    kind = Kind.HEARTBEAT
    catch_up = True
    starts_at_boot = False
    agents_to_wake = ()

    @property
    def schedule_text(self) -> str:
        return entry_schedule.heartbeat_schedule_text(self.spec)

    @property
    def retries_after_crash(self) -> bool:
        """Not if a tool of the interrupted run may have changed something: the run would change it again."""
        runner = self.spec.runner
        return not (isinstance(runner, ModelRunner) and runner.tools and runner.tools.may_change_things)

    @property
    def precheck(self) -> Precheck | None:
        return self.spec.precheck

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

    def classify_answer(self, answer: Answer) -> AttemptResult:
        return _classify_answer(self.spec, answer)

    async def run_attempt(self, claim: Claim, resources: Resources, elapsed: Elapsed) -> AttemptResult:
        return await _Attempt(self.spec, claim, resources, elapsed).run()

    def wakes_caused_by(self, claim: Claim, result: AttemptResult) -> tuple[Wake, ...]:
        """A heartbeat wakes no other agent."""
        return ()


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One attempt of a heartbeat. `elapsed` returns how long it has run."""

    spec: Heartbeat
    claim: Claim
    resources: Resources
    elapsed: Elapsed

    async def run(self) -> AttemptResult:
        """Carry out the attempt. The agent is called only after all checks have passed.

        1. Read the checklist and check everything that is known without the agent.
        2. Run the precheck, and check its result.
        3. Compose the prompt, and check its length.
        4. Let a model decide whether there is anything to do, if the config asks for that.
        5. Call the agent and classify its answer.
        """
        spec = self.spec
        # Files may lie on a network folder that hangs. Reading them here would block the other runs of this event loop.
        situation = await in_daemon_thread(read_situation, spec, self.claim) if spec.reads_checklist else self._situation()
        obstacle = first_obstacle(situation)
        if obstacle is not None:
            error = await self._explain_checklist(obstacle) or agent_calls.explain_obstacle(self.claim, obstacle)
            return AttemptResult(Outcome.SKIPPED, obstacle, error=error)
        await agent_calls.make_workspace(spec.workspace, spec.precheck or spec.runner)
        if spec.precheck is None:
            return await self._compose_and_call(situation)
        last = agent_calls.last_precheck_digest(self.claim, spec.precheck)
        checked = await precheck.run_precheck(spec, spec.precheck, last, self.resources.start)
        result = await self._continue_after_precheck(situation.with_results(precheck=checked), checked)
        return replace(result, precheck=checked)

    def _situation(self) -> Situation:
        return read_situation(self.spec, self.claim)

    async def _explain_checklist(self, obstacle: Skip) -> str | None:
        """Why the checklist cannot be read, or why a missing one could not be created."""
        if obstacle is Skip.CHECKLIST_UNREADABLE:
            return await in_daemon_thread(why_unreadable, self.spec.workspace, self.spec.checklist)
        if obstacle is not Skip.CHECKLIST_MISSING:
            return None
        return await in_daemon_thread(create_missing_checklist, self.spec, obstacle)

    async def _continue_after_precheck(self, situation: Situation, checked: PrecheckResult) -> AttemptResult:
        if checked.status is PrecheckStatus.INTERRUPTED or self.elapsed() >= self.spec.timeout:
            return agent_calls.result_of_interrupted_precheck()
        obstacle = late_obstacle(situation)
        if obstacle is not None:
            return AttemptResult(Outcome.SKIPPED, obstacle, error=checked.error or None)
        return await self._compose_and_call(situation)

    async def _compose_and_call(self, situation: Situation) -> AttemptResult:
        selection = situation.selection
        reads_files = situation.runs_without_checklist or self.spec.context_files
        collect = partial(_prompt_facts, self.spec, self.claim, situation, selection)
        facts = await in_daemon_thread(collect) if reads_files else collect()
        prompt = compose_prompt(facts, self.spec)
        limit = agent_calls.prompt_limit(self.claim, self.spec)
        tokens = limit.count(*agent_calls.prompt_texts(self.claim, prompt))
        if late_obstacle(situation.with_results(tokens=tokens)) is not None:
            request = self._agent_request(facts, prompt, self._time_left())
            counted = None if self.spec.decide else await agent_calls.count_by_provider(request, self.spec.runner, self.resources)
            if counted is None or late_obstacle(situation.with_results(tokens=counted)) is not None:
                return _too_large(prompt, limit.describe(counted or tokens, by_provider=counted is not None))
        return replace(await self._decide_and_call(facts, prompt), selection=selection)

    async def _decide_and_call(self, facts: PromptFacts, prompt: Prompt) -> AttemptResult:
        decide = self.spec.decide
        time_left = self._time_left() if self.spec.precheck else self.spec.timeout
        if decide is None:
            return await self._call_agent(facts, prompt, time_left)
        decided = await self._request_decision(decide, facts, time_left)
        if isinstance(decided, AttemptResult):
            return decided
        decision, call = decided
        facts = replace(facts, tasks=decision.tasks)
        result = await self._call_agent(facts, compose_prompt(facts, self.spec), self._time_left())
        return replace(result, calls=(call, *result.calls))

    def _time_left(self) -> timedelta:
        return max(self.spec.timeout - self.elapsed(), agent_calls.MIN_TIME_LEFT)

    async def _request_decision(
        self, decide: Decide, facts: PromptFacts, time_left: timedelta
    ) -> AttemptResult | tuple[Decision, Call]:
        """What a model decides, and its call; the result of the attempt if it decides to skip, or does not decide."""
        prompt = decision_prompt(facts, self.spec)
        if agent_calls.exceeds_reservation(self.claim, prompt):
            return _too_large(prompt, None)
        request = self._request(facts, prompt, decide.model, time_left)
        began = self.elapsed()
        answer = await runners.request_decision(request, decide.runner, self.resources)
        took = self.elapsed() - began
        if isinstance(answer, Answer):
            return agent_calls.result_of_failure(
                answer, prompt, agent_calls.calls_from_answer(decide.runner, decide.model, answer, took)
            )
        if answer.action is Action.RUN:
            return answer, _decision_call(decide, answer, took)
        return AttemptResult(
            Outcome.OK,
            suppression=Suppression.DECIDED_SKIP,
            model_used=answer.model_used,
            request_id=answer.request_id,
            prompt_parts=dict(prompt.part_sizes),
            left_out=prompt.left_out,
            calls=(_decision_call(decide, answer, took),),
        )

    async def _call_agent(self, facts: PromptFacts, prompt: Prompt, time_left: timedelta) -> AttemptResult:
        if facts.tasks is not None and agent_calls.exceeds_reservation(self.claim, prompt):
            error = "the tasks that were decided on make the prompt larger than its budget allows"
            return AttemptResult(Outcome.FAILED, Failure.TOO_LARGE, error=error, prompt_parts=dict(prompt.part_sizes))
        request = self._agent_request(facts, prompt, time_left)
        result = await self._send(request, prompt)
        if not self.spec.ask_again or result.outcome not in ANSWERED or result.truncated:
            return result
        return await self._ask_again(facts, prompt, request, result)

    async def _send(self, request: AgentRequest, prompt: Prompt) -> AttemptResult:
        classify = partial(_classify_answer, self.spec)
        return await agent_calls.call_agent(request, prompt, self.spec.runner, self.resources, classify, self.elapsed)

    async def _ask_again(self, facts: PromptFacts, prompt: Prompt, request: AgentRequest, first: AttemptResult) -> AttemptResult:
        """Ask the agent about what is missing in its answer, and put the answers together."""
        answers = Answers(_look_of_run(facts, self.claim))
        if first.report is None and first.message and not answers.look.problems and answers.look.lines is None:
            return first  # a text of an agent that has no problems is a note
        answers.add(first.report, first.message or "")
        result, text = first, first.text or ""
        for _ in range(self.spec.ask_again):
            missing = answers.missing
            question = compose_question(prompt, text, missing.question) if missing else prompt
            if not missing or not self._may_ask(question, result):
                break
            further = await self._send(replace(request, prompt=question.text, timeout=self._time_left()), question)
            result = replace(
                result,
                calls=(*result.calls, *further.calls),
                tool_calls=(*result.tool_calls, *further.tool_calls),
                prompt_parts=further.prompt_parts or result.prompt_parts,
            )
            if further.outcome not in ANSWERED or further.truncated:
                break
            answers.add(further.report, further.message or "")
            text = further.text or ""
        return _combine_answers(self.spec, answers, result) if answers.was_asked_again else result

    def _may_ask(self, question: Prompt, result: AttemptResult) -> bool:
        """Whether the time of the attempt and its reservation in the budget allow another call."""
        if self.spec.timeout - self.elapsed() < agent_calls.MIN_TIME_LEFT:
            return False
        return agent_calls.is_affordable(self.claim, self.spec.runner, question, result.calls)

    def _agent_request(self, facts: PromptFacts, prompt: Prompt, time_left: timedelta) -> AgentRequest:
        return replace(
            self._request(facts, prompt, self.spec.model, time_left),
            messages=self.claim.messages,
            structured=self.spec.answer == "structured",
            limits=agent_calls.turn_limits(self.claim, self.spec),
        )

    def _request(self, facts: PromptFacts, prompt: Prompt, model: str | None, time_left: timedelta) -> AgentRequest:
        def meta() -> dict[str, object]:
            return {**prompt_meta(facts, self.spec), **agent_calls.run_meta(self.claim)}

        return AgentRequest(self.spec.name, prompt.text, model, self.spec.workspace, time_left, meta)


def _too_large(prompt: Prompt, error: str | None) -> AttemptResult:
    return AttemptResult(Outcome.SKIPPED, Skip.PROMPT_TOO_LARGE, error=error, prompt_parts=dict(prompt.part_sizes))


def _decision_call(decide: Decide, decided: Decision, took: timedelta) -> Call:
    return Call(decide.runner.provider.name, decide.model, decided.model_used, decided.tokens, took=took)


def read_situation(spec: Heartbeat, claim: Claim) -> Situation:
    """Read everything that the checks need to know."""
    return Situation(
        spec,
        claim.started_at,
        woken=agent_calls.is_woken(claim),
        paused=claim.paused,
        busy=claim.busy,
        checklist=load_checklist(spec),
        breaker_open=claim.breaker_open is not None,
        over_budget=claim.over_budget is not None,
        prompt_limit=agent_calls.prompt_limit(claim, spec),
        slot=claim.slot,
        last_prompted=claim.last_checked,
    )


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
        context=agent_calls.read_workspace_files(spec.workspace, spec.context_files),
        precheck=situation.precheck,
        memory=memory,
        progress=checklist.count_boxes(whole, *(text for _, text in memory if isinstance(text, str))),
        last_success=claim.last_success,
        last_error=claim.last_error,
        up_since=claim.up_since,
        activity=claim.activity,
        limit=agent_calls.prompt_limit(claim, spec),
        messages=tuple(text for _, text in claim.messages),
        run=claim.run_id,
        conditions=claim.conditions,
    )


def _look_of_run(facts: PromptFacts, claim: Claim) -> Look:
    """What the run saw besides the answer of its agent."""
    checked = facts.precheck
    jobs = {wake.sender for wake in claim.wakes if wake.source == Trigger.CRON and wake.outcome in FAILURES}
    jobs.update(*(problem.jobs for problem in facts.conditions))
    has_lines = checked is not None and checked.status in (PrecheckStatus.WORK, PrecheckStatus.UNCHANGED)
    lines = read_lines(checked.output) if checked and has_lines else None
    return Look(facts.conditions, lines, frozenset(jobs), claim.left_out)


def _combine_answers(spec: Heartbeat, answers: Answers, result: AttemptResult) -> AttemptResult:
    """The result of a run whose agent was asked again. Prose is no answer: nothing of it is sent, unless it is an alarm."""
    report = answers.report
    if report is None:
        if result.message and verdict.begins_with_alarm(result.message):
            return result
        return replace(result, message=None, suppression=Suppression.NO_FINDINGS)
    first = result.report or findings.Report(())
    report = replace(report, text=first.text, loose=first.loose, dropped=first.dropped)
    judged = _classify_answer(spec, Answer(str(report), report=report))
    return replace(
        result,
        outcome=judged.outcome,
        suppression=judged.suppression,
        text=judged.text or verdict.OK_TOKEN,
        message=judged.message,
        report=judged.report,
    )


def _classify_answer(spec: Heartbeat, answer: Answer) -> AttemptResult:
    """The result of a run with this answer.

    Findings make it an alert, unless all of them are resolved. Which of them are news is decided when the run is closed, because
    that depends on the conditions that were reported before. Only the text without a key is classified here.
    """
    text, truncated = answer.text, answer.truncated
    content = verdict.without_reasoning(text, strip_reasoning=spec.strip_reasoning, truncated=truncated)
    if truncated:
        content = verdict.without_cut_end(content)
    if (failed := agent_calls.result_without_text(spec.runner, answer, content)) is not None:
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
    return AttemptResult(outcome, suppression=suppression, text=text, message=noted, truncated=truncated, report=report)

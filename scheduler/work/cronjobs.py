"""Carries out cron jobs: runs the command or calls the agent, and names the agents to wake."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from cron.job import SHELL_ERRORS, Job, format_wake_text, job_process, wakes_after
from heartbeat import verdict
from heartbeat.checks import PRECHECK_SKIPS, precheck_obstacle
from heartbeat.precheck import PrecheckResult, PrecheckStatus, run_precheck
from heartbeat.prompt import compose_task, task_meta
from heartbeat.runners import AgentRequest, Answer, ProcessResult, Resources
from heartbeat.runners.redaction import Redactor, redactor_for_env
from heartbeat.spec import Agent, Precheck
from heartbeat.threads import in_daemon_thread
from scheduler.model import entry_schedule
from scheduler.model.circuit import Circuit
from scheduler.model.entry import Claim, Elapsed, Entry
from scheduler.model.outcome import FAILURES, AttemptResult, Failure, Kind, Outcome, Reason, Skip
from scheduler.model.wake import Wake
from scheduler.work import agent_calls

OUTPUT_KEPT = 16 * 1024  # bytes of a job's output that are kept, from its end
WAKES_NOBODY = frozenset({Outcome.SKIPPED, Outcome.ASYNC})  # there is no result, or not yet


@dataclass(frozen=True, slots=True)
class JobEntry(Entry):
    """A cron job as an entry of the queue; `agent` is the agent that its prompt is for, if it has one."""

    spec: Job
    agent: Agent | None = None

    kind = Kind.CRON
    session_keep = 0
    dedup_window = timedelta()  # every output is delivered

    @property
    def schedule_text(self) -> str:
        return entry_schedule.job_schedule_text(self.spec)

    @property
    def catch_up(self) -> bool:
        return self.spec.misfire == "latest"

    @property
    def retries_after_crash(self) -> bool:
        return self.spec.rerun_after_crash

    @property
    def precheck(self) -> Precheck | None:
        return self.agent.precheck if self.agent else None

    @property
    def model(self) -> str | None:
        return self.agent.model if self.agent else None

    @property
    def models(self) -> tuple[Circuit, ...]:
        return agent_calls.circuits_of((self.agent.runner, self.agent.model)) if self.agent else ()

    @property
    def lane(self) -> str | None:
        return self.agent.name if self.agent else None

    @property
    def starts_at_boot(self) -> bool:
        return self.spec.reboot

    def preconditions(self, claim: Claim) -> Sequence[tuple[Skip, bool | None]]:
        day_off = self.is_day_off(claim.started_at)
        own = [(Skip.DISABLED, not self.spec.enabled), (Skip.PAUSED, claim.paused), (Skip.CALENDAR, day_off)]
        if self.agent is None:
            return own
        late = (*(PRECHECK_SKIPS if self.precheck else ()), Skip.PROMPT_TOO_LARGE)
        return [*own, *_agent_preconditions(claim), *((reason, None) for reason in late)]

    def is_open_at(self, now: datetime) -> bool:
        """A job has no active hours. A run that was due on a permitted day may start or continue later."""
        return True

    def opens_at(self, now: datetime) -> datetime:
        """A job may run at any time."""
        return now

    def closes_at(self, now: datetime) -> None:
        """A job has no active hours."""

    def message_digest(self, message: str) -> str:
        return hashlib.sha256(message.encode(errors="replace")).hexdigest()

    def classify_answer(self, answer: Answer) -> AttemptResult:
        text = answer.text if answer.report is None else str(answer.report)
        truncated = answer.truncated
        result = AttemptResult(Outcome.OK, text=text, truncated=truncated)
        content = verdict.without_reasoning(text, strip_reasoning=self.spec.strip_reasoning, truncated=truncated).strip()
        agent = self.agent
        if agent and (failed := agent_calls.result_without_text(agent.runner, answer, content)) is not None:
            return failed
        if agent and agent.ok_match and answer.report is None:
            judged = verdict.judge_for(agent, content, truncated=truncated)
            if judged.outcome == "ok":
                return replace(result, suppression=judged.suppression)
            return replace(result, message=verdict.with_cut_note(judged.text, truncated=truncated).strip())
        return replace(result, message=self.answer_text(result).strip() or None)

    async def run_attempt(self, claim: Claim, resources: Resources, elapsed: Elapsed) -> AttemptResult:
        if self.agent is None:
            return await run_command(self.spec, resources)
        return _with_failure_message(self.spec, await self._call_agent(self.agent, claim, resources, elapsed))

    async def _call_agent(self, agent: Agent, claim: Claim, resources: Resources, elapsed: Elapsed) -> AttemptResult:
        """One attempt of a job with a prompt. The checks are those of a heartbeat run that concern the agent itself."""
        job = self.spec
        obstacle = next((reason for reason, applies in _agent_preconditions(claim) if applies), None)
        if obstacle is not None:
            return AttemptResult(Outcome.SKIPPED, obstacle, error=agent_calls.explain_obstacle(claim, obstacle))
        await agent_calls.make_workspace(agent.workspace, agent.precheck or agent.runner)
        if agent.precheck is None:
            return await self._compose_and_call(agent, claim, resources, elapsed, None)
        last = agent_calls.last_precheck_digest(claim, agent.precheck)
        checked = await run_precheck(agent, agent.precheck, last, resources.start)
        if checked.status is PrecheckStatus.INTERRUPTED or elapsed() >= job.timeout:
            return replace(agent_calls.result_of_interrupted_precheck(), precheck=checked)
        obstacle = precheck_obstacle(agent.precheck, checked, woken=agent_calls.is_woken(claim))
        if obstacle is not None:
            return AttemptResult(Outcome.SKIPPED, obstacle, error=checked.error or None, precheck=checked)
        return replace(await self._compose_and_call(agent, claim, resources, elapsed, checked), precheck=checked)

    async def _compose_and_call(
        self, agent: Agent, claim: Claim, resources: Resources, elapsed: Elapsed, checked: PrecheckResult | None
    ) -> AttemptResult:
        job = self.spec
        files = await in_daemon_thread(agent_calls.read_workspace_files, agent.workspace, agent.context) if agent.context else ()
        prompt = compose_task(job.prompt or "", agent, claim.started_at, files, checked)

        def meta() -> dict[str, object]:
            return {**task_meta(job.name, agent, claim.started_at, claim.activity), **agent_calls.run_meta(claim)}

        limits = agent_calls.turn_limits(claim, agent)
        time_left = max(job.timeout - elapsed(), agent_calls.MIN_TIME_LEFT) if checked else job.timeout
        request = AgentRequest(agent.name, prompt.text, agent.model, agent.workspace, time_left, meta, limits=limits)
        limit = agent_calls.prompt_limit(claim, agent)
        tokens = limit.count(*agent_calls.prompt_texts(claim, prompt))
        if tokens > limit.tokens:
            counted = await agent_calls.count_by_provider(request, agent.runner, resources)
            if counted is None or counted > limit.tokens:
                size = limit.describe(counted or tokens, by_provider=counted is not None)
                return AttemptResult(Outcome.SKIPPED, Skip.PROMPT_TOO_LARGE, error=size, prompt_parts=dict(prompt.part_sizes))
        return await agent_calls.call_agent(request, prompt, agent.runner, resources, self.classify_answer, elapsed)

    @property
    def agents_to_wake(self) -> tuple[str, ...]:
        return self.spec.wake_heartbeat if self.spec.wake_mode == "now" else ()

    def wakes_caused_by(self, claim: Claim, result: AttemptResult) -> tuple[Wake, ...]:
        """The wakes that this result causes, with their texts; none if a user has cancelled the run."""
        if result.outcome in WAKES_NOBODY or result.reason is Reason.CANCELLED:
            return ()
        if not wakes_after(self.spec, result.outcome is Outcome.OK):
            return ()
        output = self.answer_text(result) if self.agent else result.text
        text = format_wake_text(self.spec, result.outcome, result.exit_code, output or result.error or "")
        urgent = self.spec.wake_mode == "now"
        return tuple(
            Wake(name, source="cron", sender=self.spec.name, text=text, outcome=result.outcome, urgent=urgent)
            for name in self.spec.wake_heartbeat
        )


def _agent_preconditions(claim: Claim) -> list[tuple[Skip, bool]]:
    """Each reason not to call the agent that is known beforehand, with whether it applies."""
    return [
        (Skip.BUSY, claim.busy),
        (Skip.BUDGET, claim.over_budget is not None),
        (Skip.BREAKER_OPEN, claim.breaker_open is not None),
    ]


async def run_command(job: Job, resources: Resources) -> AttemptResult:
    """One attempt of a job with a command. A job without one only wakes agents.

    The secrets in its `env` are redacted in its output.
    """
    if job.command is None:
        return AttemptResult(Outcome.OK)
    child = job_process(job, {})
    process = await resources.start(child.argv, stdin=child.stdin, env=child.env, cwd=child.cwd, keep=OUTPUT_KEPT, keep_tail=True)
    return _command_result(job, process, redactor_for_env(job.env))


def _command_result(job: Job, process: ProcessResult, redactor: Redactor) -> AttemptResult:
    output = _command_output(process, redactor)
    error = _command_error(job, process, redactor)
    if error is None:
        return AttemptResult(Outcome.OK, text=output, message=output.strip() or None, exit_code=0)
    outcome, reason = (Outcome.TIMEOUT, Failure.TIMEOUT) if process.timed_out else (Outcome.FAILED, Failure.EXIT)
    result = AttemptResult(
        outcome, reason, text=output, error=error, exit_code=process.exit_code, transient=process.problem is None
    )
    return _with_failure_message(job, result)


def _command_output(process: ProcessResult, redactor: Redactor) -> str:
    """The output of the command. If it is longer than what is kept: its end, after a line with its length."""
    output = process.output_text
    if process.truncated:
        return f"(the last {len(process.output):,} of {process.size:,} bytes)\n{redactor.redact_tail(output)}"
    return redactor.redact(output)


def _with_failure_message(job: Job, result: AttemptResult) -> AttemptResult:
    """The result, for a failure with a message: the error, then the output."""
    if result.outcome not in FAILURES:
        return result
    parts = (f"{job.name} ended {result.outcome}: {result.error}", (result.text or "").strip())
    return replace(result, message="\n".join(part for part in parts if part))


def _command_error(job: Job, process: ProcessResult, redactor: Redactor) -> str | None:
    """The error in one line, with the end of the standard error; None if the command succeeded."""
    problem = process.problem or (None if process.exit_code == 0 else f"exit code {process.exit_code}")
    if isinstance(job.command, str) and problem and process.exit_code in SHELL_ERRORS:
        problem = f"{problem} ({SHELL_ERRORS[process.exit_code]}, in {job.workdir})"
    if process.timed_out:
        problem = "did not end within its timeout"
    error_text = redactor.redact(process.error_text).strip()
    return f"{problem}: {error_text[-2000:]}" if problem and error_text else problem

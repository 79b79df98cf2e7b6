"""A cron job carried through: run its command or ask its agent, say how it ended, wake whom it names."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from cron.job import SHELL_ERRORS, Job, job_process, wakes_after
from cron.wake_text import format_wake_text
from heartbeat import verdict
from heartbeat.runners import ProcessResult, Resources
from heartbeat.runners.redaction import Redactor, redactor_for_env
from heartbeat.spec import Agent
from scheduler.model import entry_schedule
from scheduler.model.circuit import Circuit
from scheduler.model.entry import Claim, Elapsed, Entry
from scheduler.model.outcome import FAILURES, AttemptResult, Failure, Kind, Outcome, Reason, Skip
from scheduler.model.wake import Wake
from scheduler.work import agent_calls, prompts

OUTPUT_KEPT = 16 * 1024  # bytes of a job's output that are kept, from its end
WAKES_NOBODY = frozenset({Outcome.SKIPPED, Outcome.ASYNC})  # what has not been, or is still to come, wakes nobody


@dataclass(frozen=True, slots=True)
class JobEntry(Entry):
    """A cron job as the queue sees it; `agent` is whom it asks, if it has a prompt."""

    spec: Job
    agent: Agent | None = None

    kind = Kind.CRON
    session_keep = 0
    dedup_window = timedelta()  # each output is news

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
        return [*own, *prompts.agent_gates(claim), (Skip.PROMPT_TOO_LARGE, None)] if self.agent else own

    def is_open_at(self, now: datetime) -> bool:
        """A job has no active hours, and what was due on a day that it may run on may start or go on later."""
        return True

    def opens_at(self, now: datetime) -> datetime:
        """At any time."""
        return now

    def closes_at(self, now: datetime) -> None:
        """A job has no active hours."""

    def message_digest(self, message: str) -> str:
        return hashlib.sha256(message.encode(errors="replace")).hexdigest()

    def classify_answer(self, text: str, *, truncated: bool) -> AttemptResult:
        result = AttemptResult(Outcome.OK, text=text, truncated=truncated)
        said = verdict.without_reasoning(text, strip_reasoning=self.spec.strip_reasoning, truncated=truncated).strip()
        if truncated and not said:
            return agent_calls.ending_without_text(text)
        return replace(result, message=self.answer_text(result).strip() or None)

    async def carry(self, claim: Claim, resources: Resources, elapsed: Elapsed) -> AttemptResult:
        if self.agent is None:
            return await run_command(self.spec, resources)
        return _with_failure_message(
            self.spec, await prompts.ask_job_agent(self.spec, self.agent, claim, resources, self.classify_answer)
        )

    @property
    def agents_to_wake(self) -> tuple[str, ...]:
        return self.spec.wake_heartbeat if self.spec.wake_mode == "now" else ()

    def wakes_caused_by(self, claim: Claim, result: AttemptResult) -> tuple[Wake, ...]:
        """Whom this end of the job wakes, with what it has to tell them; nobody where a person has ended it."""
        if result.outcome in WAKES_NOBODY or result.reason is Reason.CANCELLED:
            return ()
        if not wakes_after(self.spec, result.outcome is Outcome.OK):
            return ()
        said = self.answer_text(result) if self.agent else result.text
        text = format_wake_text(self.spec, result.outcome, result.exit_code, said or result.error or "")
        urgent = self.spec.wake_mode == "now"
        return tuple(
            Wake(name, source="cron", sender=self.spec.name, text=text, outcome=result.outcome, urgent=urgent)
            for name in self.spec.wake_heartbeat
        )


async def run_command(job: Job, resources: Resources) -> AttemptResult:
    """One attempt of a job; a job without a command has nothing to do but to wake.

    The secrets in its `env` are covered in whatever it prints.
    """
    if job.command is None:
        return AttemptResult(Outcome.OK)
    child = job_process(job, {})
    ended = await resources.start(child.argv, stdin=child.stdin, env=child.env, cwd=child.cwd, keep=OUTPUT_KEPT, keep_tail=True)
    return _result(job, ended, redactor_for_env(job.env))


def _result(job: Job, ended: ProcessResult, redactor: Redactor) -> AttemptResult:
    output = _command_output(ended, redactor)
    error = _command_error(job, ended, redactor)
    if error is None:
        return AttemptResult(Outcome.OK, text=output, message=output.strip() or None, exit_code=0)
    outcome, reason = (Outcome.TIMEOUT, Failure.TIMEOUT) if ended.timed_out else (Outcome.FAILED, Failure.EXIT)
    result = AttemptResult(outcome, reason, text=output, error=error, exit_code=ended.exit_code, transient=ended.problem is None)
    return _with_failure_message(job, result)


def _command_output(ended: ProcessResult, redactor: Redactor) -> str:
    """What it printed; of more than is kept, the end, and how much there was."""
    output = ended.output.decode(errors="replace").replace("\0", "")
    if ended.truncated:
        return f"(the last {len(ended.output):,} of {ended.size:,} bytes)\n{redactor.redact_tail(output)}"
    return redactor.redact(output)


def _with_failure_message(job: Job, result: AttemptResult) -> AttemptResult:
    """The end with what is to be told of it: a failure is told in words, with what was said before it."""
    if result.outcome not in FAILURES:
        return result
    told = (f"{job.name} ended {result.outcome}: {result.error}", (result.text or "").strip())
    return replace(result, message="\n".join(part for part in told if part))


def _command_error(job: Job, ended: ProcessResult, redactor: Redactor) -> str | None:
    """What went wrong, in one line and the end of its standard error; None when nothing did."""
    what = ended.problem or (None if ended.exit_code == 0 else f"exit code {ended.exit_code}")
    if isinstance(job.command, str) and what and ended.exit_code in SHELL_ERRORS:
        what = f"{what} ({SHELL_ERRORS[ended.exit_code]}, in {job.workdir})"
    if ended.timed_out:
        what = "did not end within its timeout"
    said = redactor.redact(ended.errors.decode(errors="replace").replace("\0", "")).strip()
    return f"{what}: {said[-2000:]}" if what and said else what

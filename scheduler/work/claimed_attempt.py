"""Carries out one claimed attempt: a heartbeat, a job with a prompt, or a job with a command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from cron.job import Job, job_process
from heartbeat import attempt as agent_attempts
from heartbeat import postcheck, verdict
from heartbeat.attempt import AGENT_CHECKS, Elapsed, Given, PendingResult, Task, read_situation, result_without_text
from heartbeat.checks import check_results, late_checks
from heartbeat.postcheck import WorkPlace
from heartbeat.prompt import PromptFacts, PromptWake
from heartbeat.runners import Answer, ProcessResult, Resources
from heartbeat.runners.call_errors import describe_failure
from heartbeat.runners.redaction import Redactor, redactor_for_env
from heartbeat.spec import Agent, Postcheck, PromptLimit, Runner
from scheduler.model.entry import Claim, Entry, Facts, HeartbeatEntry, JobEntry
from scheduler.model.outcome import FAILURES, WOKEN, AttemptResult, Failure, Outcome, Reason, Skip, Trigger
from scheduler.model.wake import interleave_senders

OUTPUT_KEPT = 16 * 1024  # bytes of a job's output that are kept, from its end


def attempt(claim: Claim, resources: Resources, elapsed: Elapsed) -> PendingResult:
    """Carry out one attempt. It is put aside while it waits for an answer or for a program."""
    entry = claim.entry
    if isinstance(entry, HeartbeatEntry):
        return agent_attempts.attempt(entry.spec, _given(claim, entry.spec), resources, elapsed)
    return _run_job(entry, claim, resources, elapsed)


def preconditions(claim: Claim) -> Sequence[tuple[Skip, bool | None]]:
    """Each reason not to run, in the order of the checks, and whether it applies to this claim; None: only a run can tell."""
    entry, blocked = claim.entry, claim.facts.blocked
    if isinstance(entry, HeartbeatEntry):
        return check_results(read_situation(entry.spec, _given(claim, entry.spec)))
    day_off = entry.is_day_off(claim.run.started_at)
    own = [(Skip.DISABLED, not entry.enabled), (Skip.PAUSED, Skip.PAUSED in blocked), (Skip.CALENDAR, day_off)]
    if entry.lane is None:
        return own
    known = ((reason, reason in blocked) for reason in AGENT_CHECKS)
    return [*own, *known, *((reason, None) for reason in late_checks(entry.precheck))]


def classify_answer(entry: Entry, answer: Answer, runner: Runner | None = None) -> AttemptResult:
    """The result of a run with this answer. `runner`: that of a fallback, if it gave it."""
    if (reporter := entry.reporter) is not None:
        return agent_attempts.classify_answer(replace(reporter, runner=runner or reporter.runner), answer)
    assert isinstance(entry, JobEntry)
    text = answer.text if answer.report is None else str(answer.report)
    truncated, agent = answer.truncated, entry.agent
    result = AttemptResult(Outcome.OK, text=text, truncated=truncated)
    content = verdict.without_reasoning(text, strip_reasoning=entry.spec.strip_reasoning, truncated=truncated).strip()
    if agent and (failed := result_without_text(runner or agent.runner, answer, content)) is not None:
        return failed
    if answer.report is not None and answer.report.failed:
        return result.as_failure(Reason.REPORTED_FAILURE, answer.report.failed, transient=True)
    if agent and agent.ok_match and answer.report is None:
        judged = verdict.judge_for(agent, content, truncated=truncated)
        if judged.outcome == "ok":
            return replace(result, suppression=judged.suppression)
        return replace(result, message=verdict.with_cut_note(judged.text, truncated=truncated).strip())
    return replace(result, message=entry.answer_text(result).strip() or None)


def _given(claim: Claim, agent: Agent) -> Given:
    """What the attempt knows of a claim."""
    run, memory, reserved = claim.run, claim.facts.memory, claim.facts.reserved
    limit = PromptLimit(agent.max_input_tokens, reserved.input_tokens if reserved else None)
    facts = PromptFacts(
        now=run.started_at,
        past=claim.facts.past,
        wakes=tuple(
            PromptWake(wake.source, wake.sender, wake.count, wake.text, wake.outcome)
            for wake in interleave_senders(claim.facts.wakes)
        ),
        limit=limit,
        messages=tuple(text for _, text in memory.messages),
        run=run.id,
        problems=memory.problems,
        input=claim.facts.input,
        previous=claim.facts.outputs,
    )
    return Given(
        facts,
        # Somebody asked for the run, or a wake waits for it: its text must reach the agent. A job after another one was not
        # asked for: its precheck decides.
        woken=(run.trigger in WOKEN or bool(claim.facts.wakes)) and not (run.trigger is Trigger.CRON and claim.entry.after),
        blocked=claim.facts.blocked,
        slot=run.slot,
        memory=memory,
        meta={
            "run": run.id,
            "trigger": run.trigger.value,
            "tries": run.attempt,
            "planned_at": run.slot.strftime("%Y-%m-%dT%H:%M:%SZ"),
        },
        turns=reserved.turns if reserved else (),
        unavailable=claim.facts.unavailable,
        has_budget=reserved is not None and bool(reserved.amount.nanos or reserved.amount.tokens),
        cache=claim.facts.cache,
    )


async def _run_job(entry: JobEntry, claim: Claim, resources: Resources, elapsed: Elapsed) -> AttemptResult:
    """One attempt of a job. It may have been paused while its start after another job waited for the end of its own last run."""
    if Skip.PAUSED in claim.facts.blocked:
        return AttemptResult(Outcome.SKIPPED, Skip.PAUSED, error=claim.facts.blocked[Skip.PAUSED])
    if entry.agent is not None:
        return await _run_prompt(entry, entry.agent, claim, resources, elapsed)
    return await _run_command(entry.spec, claim, resources, elapsed)


async def _run_prompt(entry: JobEntry, agent: Agent, claim: Claim, resources: Resources, elapsed: Elapsed) -> AttemptResult:
    """One attempt of a job with a prompt."""
    job = entry.spec
    check = job.postcheck if isinstance(job.postcheck, Postcheck) else None
    task = Task(job.name, job.prompt or "", agent, job.timeout, partial(classify_answer, entry), check)
    result = await agent_attempts.attempt(task, _given(claim, agent), resources, elapsed)
    return result if entry.reporter else _with_failure_message(job, result)


async def _run_command(job: Job, claim: Claim, resources: Resources, elapsed: Elapsed) -> AttemptResult:
    """One attempt of a job with a command, and its postcheck. A job without a command only wakes agents.

    The secrets in its `env` are redacted in its output.
    """
    check = job.postcheck if isinstance(job.postcheck, Postcheck) else None
    redactor, result = redactor_for_env(job.env), AttemptResult(Outcome.OK)
    if job.command is not None:
        child = job_process(job, _earlier_outputs(job, claim.facts))
        most = job.timeout - check.timeout if check else None
        process = await resources.start(
            child.argv, stdin=child.stdin, env=child.env, cwd=child.cwd, keep=OUTPUT_KEPT, keep_tail=True, timeout=most
        )
        result = _command_result(job, process, redactor)
    if check is None:
        return result
    place = WorkPlace(job.workdir, job.env, claim.run.started_at + elapsed(), redactor)
    verified = await postcheck.verify(result, check, place, resources)
    return result if verified is result else _with_failure_message(job, verified)


def _earlier_outputs(job: Job, facts: Facts) -> dict[str, str]:
    """The variables with the output of the job that this one follows, and with the last outputs of the jobs that it names.

    If it names several jobs, each output is below a line with the name of its job.
    """
    before, has_names = facts.input, len(job.previous) > 1
    texts = [f"{each.label}:\n{each.text}" if has_names else each.text for each in facts.outputs]
    variables = {"HEARTBEATD_PREVIOUS": "\n".join(texts)} if texts else {}
    if before is not None:
        variables |= {
            "HEARTBEATD_INPUT": before.text,
            "HEARTBEATD_INPUT_JOB": before.job,
            "HEARTBEATD_INPUT_RESULT": before.outcome,
            "HEARTBEATD_INPUT_RUN": str(before.run),
        }
    return variables


def _command_result(job: Job, process: ProcessResult, redactor: Redactor) -> AttemptResult:
    output = _command_output(process, redactor)
    folder = job.workdir if isinstance(job.command, str) else None
    error = describe_failure(process, redactor, "did not end within its timeout", shell_folder=folder)
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

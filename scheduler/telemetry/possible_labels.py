"""Lists the label values (triggers, outcomes, reasons, models) that the config of each entry makes possible."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cron.job import Job
from heartbeat import due_items
from heartbeat.spec import Agent, Heartbeat, HttpRunner, ModelRunner, PythonRunner, Runner
from scheduler.model.circuit import Circuit
from scheduler.model.outcome import Outcome, Skip, Suppression, Trigger
from scheduler.model.settings import Settings
from scheduler.work import agent_calls

MANUAL_TRIGGERS = (Trigger.MANUAL, Trigger.API)
EXTERNAL_TRIGGERS = (*MANUAL_TRIGGERS, Trigger.WEBHOOK)
FAILED_OUTCOMES = (Outcome.FAILED, Outcome.TIMEOUT, Outcome.ABANDONED)

PRESS_RESULTS = ("applied", "failed", "forged", "expired", "wrong_chat", "replayed")


@dataclass(frozen=True, slots=True)
class PossibleLabels:
    """The possible label values of one entry; `sources` are those of its wakes, empty for an entry that cannot be woken."""

    triggers: tuple[Trigger, ...]
    outcomes: tuple[Outcome, ...]
    suppressions: tuple[Suppression, ...]
    skips: tuple[Skip, ...]
    sources: tuple[Trigger, ...]
    models: tuple[str, ...] = ()
    has_precheck: bool = False


def heartbeat_labels(beat: Heartbeat, *, woken_by_jobs: bool, bounded: bool) -> PossibleLabels:
    """The label values of a heartbeat, `bounded` by a budget or not. A disabled one can only skip wakes."""
    sources = (*((Trigger.CRON,) if woken_by_jobs else ()), *EXTERNAL_TRIGGERS)
    if not beat.enabled:
        return PossibleLabels((), (), (), (Skip.DISABLED,), sources)
    return PossibleLabels(
        triggers=(
            *((Trigger.INTERVAL,) if beat.interval else ()),
            *((Trigger.SCHEDULE,) if beat.schedule else ()),
            *sources,
            *((Trigger.RESULT,) if _may_answer_later(beat.runner) else ()),
        ),
        outcomes=(Outcome.OK, Outcome.ALERT, *((Outcome.ASYNC,) if _may_answer_later(beat.runner) else ()), *FAILED_OUTCOMES),
        suppressions=tuple(_heartbeat_suppressions(beat)),
        skips=(*_heartbeat_skips(beat), *((Skip.BUDGET,) if bounded else ())),
        sources=sources,
        models=tuple(_models_of_heartbeat(beat)),
        has_precheck=beat.precheck is not None,
    )


def called_models(settings: Settings) -> list[str]:
    """Every model that an enabled agent or job may call."""
    of_beats = {model for beat in settings.heartbeats.values() if beat.enabled for model in _models_of_heartbeat(beat)}
    return sorted(of_beats | {agent.model or "" for agent in _called_by_jobs(settings)})


def called_providers(settings: Settings) -> list[str]:
    """Every provider that an enabled agent or job may call."""
    return sorted({circuit.provider for circuit in called_circuits(settings)})


def called_circuits(settings: Settings) -> list[Circuit]:
    """Every pair of provider and model that an enabled agent or job may call."""
    of_beats = (pair for beat in settings.heartbeats.values() if beat.enabled for pair in _called_by_heartbeat(beat))
    of_jobs = ((agent.runner, agent.model) for agent in _called_by_jobs(settings))
    return sorted(agent_calls.circuits_of(*of_beats, *of_jobs))


def _called_by_heartbeat(beat: Heartbeat) -> Iterator[tuple[Runner, str | None]]:
    yield beat.runner, beat.model
    if beat.decide:
        yield beat.decide.runner, beat.decide.model


def _called_by_jobs(settings: Settings) -> Iterator[Agent]:
    return (agent for name, agent in settings.job_agents.items() if settings.jobs[name].enabled)


def _models_of_heartbeat(beat: Heartbeat) -> Iterator[str]:
    model = beat.model or ""  # a command can report its usage, too
    yield model
    if beat.decide and beat.decide.model != model:
        yield beat.decide.model


def _model_runners(beat: Heartbeat) -> Iterator[ModelRunner]:
    if isinstance(beat.runner, ModelRunner):
        yield beat.runner
    if beat.decide:
        yield beat.decide.runner


def _may_answer_later(runner: Runner) -> bool:
    return isinstance(runner, HttpRunner | PythonRunner)


def job_labels(job: Job, agent: Agent | None, *, bounded: bool) -> PossibleLabels:
    """The label values of a cron job; `agent` is the agent of its prompt, if it has one. A job that only wakes cannot fail."""
    later = agent is not None and _may_answer_later(agent.runner)
    acts = job.command is not None or agent is not None
    return PossibleLabels(
        triggers=(*_own_triggers(job), *MANUAL_TRIGGERS, *((Trigger.RESULT,) if later else ())),
        outcomes=(Outcome.OK, *((Outcome.ASYNC,) if later else ()), *(FAILED_OUTCOMES if acts else (Outcome.ABANDONED,))),
        suppressions=(),
        skips=(*_job_skips(job), *(_prompt_skips(agent) if agent else ()), *((Skip.BUDGET,) if bounded else ())),
        sources=(),
        models=(agent.model or "",) if agent else (),
    )


def _prompt_skips(agent: Agent) -> Iterator[Skip]:
    yield from (Skip.BUSY, Skip.PROMPT_TOO_LARGE)
    if isinstance(agent.runner, ModelRunner):
        yield Skip.BREAKER_OPEN


def _heartbeat_suppressions(beat: Heartbeat) -> Iterator[Suppression]:
    if not beat.show_ok:
        yield Suppression.EMPTY
        yield Suppression.HEARTBEAT_OK
        if beat.ok_match != "exact":
            yield Suppression.SHORT_REMAINDER
    if not beat.show_alerts:
        yield Suppression.NOT_SHOWN
    if beat.decide:
        yield Suppression.DECIDED_SKIP
    if beat.deliver:  # by its text, or because its conditions were reported before
        yield Suppression.DUPLICATE
        yield Suppression.MUTED


def _heartbeat_skips(beat: Heartbeat) -> Iterator[Skip]:
    yield from (Skip.PAUSED, Skip.BUSY)
    if not beat.calendars.always:
        yield Skip.CALENDAR
    if beat.hours.windows:
        yield Skip.ACTIVE_HOURS
    if beat.interval or beat.schedule:
        yield from (Skip.MISSED, Skip.ALREADY_RUNNING, Skip.SUPERSEDED)
        yield from _slot_skips(beat)
    if beat.on_empty == "skip":
        yield Skip.CHECKLIST_EMPTY
    if "\n" not in beat.checklist:
        yield from (Skip.CHECKLIST_UNREADABLE, Skip.CHECKLIST_TOO_LARGE)
        if beat.on_missing != "run":
            yield Skip.CHECKLIST_MISSING
    if not (beat.show_ok or beat.show_alerts):
        yield Skip.NOT_SHOWN
    if any(_model_runners(beat)):
        yield Skip.BREAKER_OPEN
    if beat.precheck and beat.precheck.on_error == "skip":
        yield Skip.PRECHECK_FAILED
    yield Skip.PROMPT_TOO_LARGE


def _slot_skips(beat: Heartbeat) -> Iterator[Skip]:
    """The reasons to skip a slot that do not apply to a wake."""
    if "\n" not in beat.checklist or due_items.may_have_nothing_due(beat.checklist):
        yield Skip.NOTHING_DUE
    if beat.precheck:
        yield Skip.PRECHECK
        if beat.precheck.unchanged == "skip":
            yield Skip.PRECHECK_UNCHANGED


def _own_triggers(job: Job) -> Iterator[Trigger]:
    if not job.enabled:
        return
    if job.schedule is not None:
        yield Trigger.SCHEDULE
    if job.every is not None:
        yield Trigger.EVERY
    if job.at is not None:
        yield Trigger.AT
    if job.reboot:
        yield Trigger.REBOOT


def _job_skips(job: Job) -> Iterator[Skip]:
    yield Skip.ALREADY_RUNNING
    if job.enabled:
        yield Skip.PAUSED
        if not job.calendars.always:
            yield Skip.CALENDAR
        if not job.reboot:
            yield from (Skip.MISSED, Skip.SUPERSEDED)

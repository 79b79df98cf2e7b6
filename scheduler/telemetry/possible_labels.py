"""Lists the label values (triggers, models, providers) that the config makes possible."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cron.job import Job
from heartbeat.spec import Agent, Heartbeat, Runner
from scheduler.model.circuit import Circuit, circuits_of
from scheduler.model.outcome import Trigger
from scheduler.model.settings import Settings

PRESS_RESULTS = ("applied", "failed", "forged", "expired", "wrong_chat", "replayed")


@dataclass(frozen=True, slots=True)
class PossibleLabels:
    """The trigger of an entry's slots (None: it has no slots), and the models that it may call."""

    slot_trigger: Trigger | None
    models: tuple[str, ...] = ()


def heartbeat_labels(beat: Heartbeat) -> PossibleLabels:
    """The label values of a heartbeat. A disabled one never runs."""
    if not beat.enabled:
        return PossibleLabels(None)
    trigger = Trigger.INTERVAL if beat.interval else Trigger.SCHEDULE if beat.schedule else None
    return PossibleLabels(trigger, tuple(_models_of_heartbeat(beat)))


def job_labels(job: Job, agent: Agent | None) -> PossibleLabels:
    """The label values of a cron job; `agent` is the agent of its prompt, if it has one."""
    return PossibleLabels(_trigger_of_job(job) if job.enabled else None, (agent.model or "",) if agent else ())


def _trigger_of_job(job: Job) -> Trigger | None:
    if job.schedule is not None:
        return Trigger.SCHEDULE
    if job.every is not None:
        return Trigger.EVERY
    if job.at is not None:
        return Trigger.AT
    return Trigger.REBOOT if job.reboot else None


def called_models(settings: Settings) -> list[str]:
    """Every model that an enabled agent or job may call."""
    of_beats = {model for beat in settings.heartbeats.values() if beat.enabled for model in _models_of_heartbeat(beat)}
    return sorted(of_beats | {agent.model or "" for agent in _called_by_jobs(settings)})


def called_circuits(settings: Settings) -> list[Circuit]:
    """Every pair of provider and model that an enabled agent or job may call."""
    of_beats = (pair for beat in settings.heartbeats.values() if beat.enabled for pair in _called_by_heartbeat(beat))
    of_jobs = ((agent.runner, agent.model) for agent in _called_by_jobs(settings))
    return sorted(circuits_of(*of_beats, *of_jobs))


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

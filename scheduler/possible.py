"""What a declared entry can come to: the triggers, outcomes and reasons that its config makes possible, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cron.job import Job
from heartbeat.spec import Heartbeat
from scheduler.outcome import Outcome, Skip, Suppression, Trigger

BY_HAND = (Trigger.MANUAL, Trigger.API)
UNLUCKY = (Outcome.FAILED, Outcome.TIMEOUT, Outcome.ABANDONED)


@dataclass(frozen=True, slots=True)
class Possible:
    """Closed sets of words; `sources` are those of its wakes, empty for what is not woken."""

    triggers: tuple[Trigger, ...]
    outcomes: tuple[Outcome, ...]
    suppressions: tuple[Suppression, ...]
    skips: tuple[Skip, ...]
    sources: tuple[Trigger, ...]


def of_heartbeat(beat: Heartbeat, *, woken_by_jobs: bool) -> Possible:
    """What an agent's heartbeat can come to; a disabled one only refuses wakes."""
    sources = (*((Trigger.CRON,) if woken_by_jobs else ()), *BY_HAND)
    if not beat.enabled:
        return Possible((), (), (), (Skip.DISABLED,), sources)
    return Possible(
        triggers=(*((Trigger.INTERVAL,) if beat.interval else ()), *sources),
        outcomes=(Outcome.OK, Outcome.ALERT, *UNLUCKY),
        suppressions=tuple(_suppressions(beat)),
        skips=tuple(_skips(beat)),
        sources=sources,
    )


def of_job(job: Job) -> Possible:
    """What a cron job can come to; one without a command has nothing that could fail."""
    return Possible(
        triggers=(*_own_triggers(job), *BY_HAND),
        outcomes=(Outcome.OK, *UNLUCKY) if job.command is not None else (Outcome.OK, Outcome.ABANDONED),
        suppressions=(),
        skips=tuple(_job_skips(job)),
        sources=(),
    )


def _suppressions(beat: Heartbeat) -> Iterator[Suppression]:
    if not beat.show_ok:
        yield Suppression.EMPTY
        yield Suppression.HEARTBEAT_OK
        if beat.ok_match != "exact":
            yield Suppression.SHORT_REMAINDER
    if not beat.show_alerts:
        yield Suppression.NOT_SHOWN
    if beat.dedup_window and beat.deliver:
        yield Suppression.DUPLICATE


def _skips(beat: Heartbeat) -> Iterator[Skip]:
    yield Skip.PAUSED
    if beat.hours.windows:
        yield Skip.ACTIVE_HOURS
    if beat.interval:
        yield from (Skip.MISSED, Skip.ALREADY_RUNNING, Skip.SUPERSEDED)
    if beat.on_empty == "skip":
        yield Skip.CHECKLIST_EMPTY
    if "\n" not in beat.checklist:
        yield from (Skip.CHECKLIST_UNREADABLE, Skip.CHECKLIST_TOO_LARGE)
        if beat.on_missing != "run":
            yield Skip.CHECKLIST_MISSING
    if not (beat.show_ok or beat.show_alerts):
        yield Skip.NOT_SHOWN


def _own_triggers(job: Job) -> Iterator[Trigger]:
    if not job.enabled:
        return
    if job.schedule is not None:
        yield Trigger.SCHEDULE
    if job.every is not None:
        yield Trigger.EVERY
    if job.reboot:
        yield Trigger.REBOOT


def _job_skips(job: Job) -> Iterator[Skip]:
    yield Skip.ALREADY_RUNNING
    if job.enabled and not job.reboot:
        yield from (Skip.PAUSED, Skip.MISSED, Skip.SUPERSEDED)

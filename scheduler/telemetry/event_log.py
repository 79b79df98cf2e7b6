"""The journal: one log line for each thing that happened, in the words of the rows and the metrics."""

from __future__ import annotations

import logging
from functools import singledispatchmethod

from scheduler.model.events import (
    AttemptStarted,
    BreakerMoved,
    CallCharged,
    ChecklistRemarked,
    Event,
    LaneBusy,
    MessageMoved,
    ModelMismatched,
    ProviderFailed,
    RetryPlanned,
    RunClosed,
    RunRecovered,
    SettingsApplied,
    SkipsRevoked,
    SlotsMissed,
    StaleResultDropped,
    TargetUnknown,
    WakeMoved,
)
from scheduler.model.outcome import FAILURES, DeliveryState, Outcome, WakeResult
from scheduler.system.log import log_event


class EventLog:
    """Hears events and logs them. Each slot has its one line; the steps on the way are for DEBUG."""

    def __init__(self) -> None:
        self._logged_remarks: dict[str, tuple[str, ...]] = {}
        self._agents_with_full_queue: set[str] = (
            set()
        )  # agents for which too many wakes wait: one line is enough, a storm brings thousands
        self._logs = self._log  # a dispatching method makes a function anew each time it is looked up

    def log_event(self, happened: Event) -> None:
        """Log one event."""
        self._logs(happened)

    @singledispatchmethod
    def _log(self, happened: Event) -> None:
        raise TypeError(f"no line for {happened!r}")

    @_log.register
    def _(self, closed: RunClosed) -> None:
        took = None if closed.started_at is None else round((closed.finished_at - closed.started_at).total_seconds(), 3)
        log_event(
            _level_of_run(closed),
            "skip" if closed.outcome is Outcome.SKIPPED else "run",
            id=closed.run_id,
            kind=closed.kind,
            name=closed.name,
            slot=closed.slot,
            slots=closed.slots if closed.slots > 1 else None,
            trigger=closed.trigger,
            outcome=closed.outcome,
            reason=closed.reason,
            suppression=closed.suppression,
            attempt=closed.attempt if closed.attempt > 1 else None,
            took=took,
            problem=closed.error,
            truncated=closed.truncated or None,
            precheck_problem=closed.precheck_problem,
            left_out="; ".join(closed.left_out) or None,
            log=closed.log,
        )

    @_log.register
    def _(self, started: AttemptStarted) -> None:
        log_event(
            logging.DEBUG,
            "start",
            id=started.run_id,
            kind=started.kind,
            name=started.name,
            slot=started.slot,
            trigger=started.trigger,
        )

    @_log.register
    def _(self, unstarted: SlotsMissed) -> None:
        """Its slots have their line."""

    @_log.register
    def _(self, retried: RetryPlanned) -> None:
        log_event(
            logging.WARNING,
            "retry",
            id=retried.run_id,
            kind=retried.kind,
            name=retried.name,
            attempt=retried.attempt,
            reason=retried.reason,
            not_before=retried.not_before,
            problem=retried.error,
        )

    @_log.register
    def _(self, taken: LaneBusy) -> None:
        log_event(
            logging.INFO,
            "busy",
            id=taken.run_id,
            kind=taken.kind,
            name=taken.name,
            slot=taken.slot,
            trigger=taken.trigger,
        )

    @_log.register
    def _(self, wake: WakeMoved) -> None:
        level = logging.WARNING if wake.result in (WakeResult.REJECTED, WakeResult.EXPIRED) else logging.DEBUG
        if wake.problem is None:
            self._agents_with_full_queue.discard(wake.name)  # a wake of the agent was told or kept: there is room again
        elif wake.name in self._agents_with_full_queue:
            level = logging.DEBUG
        else:
            self._agents_with_full_queue.add(wake.name)
        log_event(level, "wake", name=wake.name, source=wake.source, sender=wake.sender, result=wake.result, problem=wake.problem)

    @_log.register
    def _(self, told: MessageMoved) -> None:
        level = logging.DEBUG if told.state is DeliveryState.DELIVERED else logging.WARNING
        log_event(level, "deliver", id=told.outbox_id, channel=told.channel, state=told.state, problem=told.error or None)

    @_log.register
    def _(self, nobody: TargetUnknown) -> None:
        problem = "deliver: last leads nowhere; report whom the agent speaks with to POST /api/v1/agents/NAME/activity"
        log_event(logging.WARNING, "no_target", id=nobody.run_id, kind=nobody.kind, name=nobody.name, problem=problem)

    @_log.register
    def _(self, recovered: RunRecovered) -> None:
        log_event(
            logging.WARNING, "recovered", id=recovered.run_id, kind=recovered.kind, name=recovered.name, again=recovered.again
        )

    @_log.register
    def _(self, taken: SkipsRevoked) -> None:
        log_event(logging.INFO, "taken_back", kind=taken.kind, name=taken.name, reason=taken.reason, slots=taken.slots)

    @_log.register
    def _(self, stale: StaleResultDropped) -> None:
        log_event(logging.WARNING, "stale_result", id=stale.run_id, kind=stale.kind, name=stale.name)

    @_log.register
    def _(self, paid: CallCharged) -> None:
        log_event(logging.DEBUG, "paid", kind=paid.kind, name=paid.name, model=paid.model, cost_usd=paid.cost_usd)

    @_log.register
    def _(self, failed: ProviderFailed) -> None:
        log_event(logging.DEBUG, "provider_failed", provider=failed.provider, error_class=failed.error_class)

    @_log.register
    def _(self, mismatched: ModelMismatched) -> None:
        log_event(
            logging.WARNING,
            "model_mismatch",
            kind=mismatched.kind,
            name=mismatched.name,
            requested=mismatched.requested,
            used=mismatched.used,
        )

    @_log.register
    def _(self, moved: BreakerMoved) -> None:
        circuit = moved.circuit
        log_event(
            logging.WARNING,
            "breaker",
            provider=circuit.provider,
            model=None if circuit.is_whole_provider else circuit.model,
            state="open" if moved.is_open else "closed",
            reason=moved.reason,
            problem=moved.error or None,
        )

    @_log.register
    def _(self, remarked: ChecklistRemarked) -> None:
        """Once for each text of a checklist, and not at every run."""
        before = self._logged_remarks.get(remarked.name, ())
        self._logged_remarks[remarked.name] = remarked.remarks
        for remark in remarked.remarks:
            if remark not in before:
                log_event(logging.WARNING, "checklist", name=remarked.name, problem=remark)

    @_log.register
    def _(self, adopted: SettingsApplied) -> None:
        log_event(logging.DEBUG, "adopted", config_hash=adopted.settings.hash)


def _level_of_run(closed: RunClosed) -> int:
    return logging.WARNING if closed.outcome in FAILURES or closed.precheck_problem else logging.INFO

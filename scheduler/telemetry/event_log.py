"""Writes one log line for each event of the engine, with the same words as run records and metrics."""

from __future__ import annotations

import logging
from collections import Counter

from heartbeat.checks import Skip
from scheduler.model import events
from scheduler.model.outcome import FAILURES, DeliveryState, Outcome, WakeResult
from scheduler.model.wake import RejectedBecause
from scheduler.system.log import log_event, set_log_zone

# The lines that only copy fields of their event: level, name of the line, and its keys (`key=field` where the names differ).
_COPIED_LINES: dict[type, tuple[int, str, str]] = {
    events.AttemptStarted: (logging.DEBUG, "start", "id=run_id kind name planned_at=slot trigger"),
    events.RetryPlanned: (logging.WARNING, "retry", "id=run_id kind name tries=attempt why=reason not_before problem=error"),
    events.LaneBusy: (logging.INFO, "busy", "id=run_id kind name planned_at=slot trigger"),
    events.RunRecovered: (logging.WARNING, "recovered", "id=run_id kind name again"),
    events.ProblemChanged: (logging.INFO, "problem_changed", "number subject key change by"),
    events.MuteChanged: (logging.INFO, "mute", "kind name muted by until"),
    events.PauseChanged: (logging.INFO, "pause", "kind name paused by until"),
    events.QuestionMoved: (logging.INFO, "question", "id=number run=run_id kind name state by"),
    events.SkipsRevoked: (logging.INFO, "taken_back", "kind name why=reason planned_runs=slots"),
    events.StaleResultDropped: (logging.WARNING, "stale_result", "id=run_id kind name"),
    events.CallCharged: (logging.DEBUG, "paid", "kind name model cost_usd"),
    events.ProviderFailed: (logging.DEBUG, "provider_failed", "provider error_class"),
    events.ModelMismatched: (logging.WARNING, "model_mismatch", "kind name requested used"),
}
COPIED_LINES = {
    kind: (level, line, [(key, field or key) for key, _, field in (each.partition("=") for each in keys.split())])
    for kind, (level, line, keys) in _COPIED_LINES.items()
}


class EventLog:
    """Logs events. Each run or skip has exactly one line at INFO or above; the steps before it are logged at DEBUG."""

    def __init__(self) -> None:
        self._logged_remarks: dict[str, tuple[str, ...]] = {}
        self._refused_presses: set[tuple[str, str]] = set()
        self._agents_with_full_queue: set[str] = set()  # their first rejected wake is a warning; a storm brings thousands more

    def log_event(self, happened: events.Event) -> None:
        """Log one event. Raises KeyError for an event without a line."""
        match happened:
            case events.RunClosed():
                _log_run(happened)
            case events.WakeMoved():
                self._log_wake(happened)
            case events.MessageMoved(state=state):
                level = logging.DEBUG if state is DeliveryState.DELIVERED else logging.WARNING
                problem = happened.error or None
                log_event(level, "deliver", id=happened.outbox_id, channel=happened.channel, state=state, problem=problem)
            case events.ButtonPressed():
                self._log_press(happened)
            case events.TargetUnknown():
                problem = "deliver: last has no target yet; report whom the agent talks with to POST /api/v1/agents/NAME/activity"
                log_event(
                    logging.WARNING, "no_target", id=happened.run_id, kind=happened.kind, name=happened.name, problem=problem
                )
            case events.BreakerMoved():
                _log_breaker(happened)
            case events.ChecklistRemarked():
                self._log_remarks(happened)
            case events.SettingsApplied(settings=settings):
                set_log_zone(settings.zone)
                log_event(logging.DEBUG, "adopted", config_hash=settings.hash)
            case events.SlotsMissed():
                pass  # an events.RunClosed with the same planned times has the line
            case events.ProviderCalled():
                pass  # a failure has a line of its own, and the run that it belongs to has another
            case _:
                level, line, fields = COPIED_LINES[type(happened)]
                log_event(level, line, **{key: getattr(happened, field) for key, field in fields})

    def _log_wake(self, wake: events.WakeMoved) -> None:
        level = logging.WARNING if wake.result in (WakeResult.REJECTED, WakeResult.EXPIRED) else logging.DEBUG
        if wake.problem != RejectedBecause.TOO_MANY:
            self._agents_with_full_queue.discard(wake.name)  # a wake of this agent was stored or consumed: there is room again
        elif wake.name in self._agents_with_full_queue:
            level = logging.DEBUG
        else:
            self._agents_with_full_queue.add(wake.name)
        log_event(level, "wake", name=wake.name, source=wake.source, sender=wake.sender, result=wake.result, problem=wake.problem)

    def _log_press(self, press: events.ButtonPressed) -> None:
        """Log a press. The first press of a channel that is refused for a reason is a warning; anyone could send thousands."""
        key = (press.channel, press.result)
        is_new = press.result not in ("applied", "failed") and key not in self._refused_presses
        level = logging.WARNING if is_new else logging.INFO if press.result in ("applied", "failed") else logging.DEBUG
        self._refused_presses.add(key)
        button = press.button
        log_event(level, "button", channel=press.channel, button=button, result=press.result, user=press.user, name=press.name)

    def _log_remarks(self, remarked: events.ChecklistRemarked) -> None:
        """Log each remark once for a version of the checklist, not at every run."""
        before = self._logged_remarks.get(remarked.name, ())
        self._logged_remarks[remarked.name] = remarked.remarks
        for remark in remarked.remarks:
            if remark not in before:
                log_event(logging.WARNING, "checklist", name=remarked.name, problem=remark)


def _log_run(closed: events.RunClosed) -> None:
    result = closed.result
    effects = Counter(str(found["effect"]) for found in result.findings)
    duration = None if closed.started_at is None else round((closed.finished_at - closed.started_at).total_seconds(), 3)
    log_event(
        logging.WARNING if result.outcome in FAILURES or result.precheck_problem else logging.INFO,
        "skip" if result.outcome is Outcome.SKIPPED else "run",
        id=closed.run_id,
        kind=closed.kind,
        name=closed.name,
        planned_at=closed.slot,
        planned_runs=closed.slots if closed.slots > 1 else None,
        trigger=closed.trigger,
        result=result.outcome,
        why=result.why,
        tries=closed.attempt if closed.attempt > 1 else None,
        duration=duration,
        worker=closed.worker,
        problem=result.error,
        truncated=result.truncated or None,
        fallback=result.fallback,
        precheck_problem=None if result.reason is Skip.PRECHECK_FAILED else result.precheck_problem,  # then it is `problem`
        left_out="; ".join(result.prompt.left_out) or None,
        findings=", ".join(f"{count} {effect}" for effect, count in effects.most_common()) or None,
        log=result.log,
    )


def _log_breaker(moved: events.BreakerMoved) -> None:
    circuit = moved.circuit
    log_event(
        logging.WARNING,
        "breaker",
        provider=circuit.provider,
        model=None if circuit.is_whole_provider else circuit.model,
        state="open" if moved.is_open else "closed",
        why=moved.reason,
        problem=moved.error or None,
    )

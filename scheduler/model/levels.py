"""Says how good or bad outcomes, reasons, states and severities are. The command line and the page colour them by this."""

from __future__ import annotations

from enum import StrEnum

from heartbeat.findings import Severity
from scheduler.model.outcome import FAILURES, LOST_SKIPS, PLANNED_SKIPS, DeliveryState, Outcome, Reason


class Level(StrEnum):
    """How good or bad a result is. Charts have one colour for each, the same as the dashboards."""

    GOOD = "good"
    ALERT = "alert"
    WAITING = "waiting"
    PLANNED = "planned"  # as the settings or a person require
    LOST = "lost"  # it should have run, or may not have arrived
    BAD = "bad"
    TO_COME = "to_come"
    UNKNOWN = "unknown"


LEVELS: dict[str, Level] = {
    **dict.fromkeys((Outcome.OK, DeliveryState.DELIVERED, Severity.INFO, "active", "applied", "normal"), Level.GOOD),
    **dict.fromkeys((Outcome.ALERT, "started"), Level.ALERT),
    **dict.fromkeys(FAILURES, Level.BAD),
    **dict.fromkeys((DeliveryState.DEAD, DeliveryState.NO_TARGET, Severity.CRITICAL), Level.BAD),
    **dict.fromkeys(("bad", "down", "failing", "refused", "undelivered"), Level.BAD),
    **dict.fromkeys(LOST_SKIPS, Level.LOST),
    **dict.fromkeys((DeliveryState.PARTIAL, DeliveryState.UNCERTAIN, DeliveryState.HELD, Severity.WARNING), Level.LOST),
    **dict.fromkeys(
        ("clock_jumped", "daemon_down", "stopped", "silent", "frozen", "unusual", "warn", "budget spent", "precheck fails"),
        Level.LOST,
    ),
    **dict.fromkeys((DeliveryState.PENDING, DeliveryState.SENDING, Outcome.ASYNC), Level.WAITING),
    **dict.fromkeys(("due", "open", "running", "waiting"), Level.WAITING),
    **dict.fromkeys(PLANNED_SKIPS, Level.PLANNED),
    **dict.fromkeys((Reason.CANCELLED, "acknowledged", "awaits_results", "done", "known", "muted"), Level.PLANNED),
    **dict.fromkeys(("not_declared", "not_kept"), Level.UNKNOWN),
    "to_come": Level.TO_COME,
}


def level_of(word: str | None) -> Level | None:
    """The level of an outcome, a reason to skip, a state, a severity or the status of a day; None for any other word."""
    return LEVELS.get(word or "")


def level_of_run(outcome: str | None, reason: str | None) -> Level | None:
    """The level of a run: of its outcome, or, if it was skipped or cancelled, of the reason."""
    return level_of(reason if outcome == Outcome.SKIPPED or reason == Reason.CANCELLED else outcome)

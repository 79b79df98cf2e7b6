"""Causes: what became of a slot, in one word for programs and in a few for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scheduler.model.outcome import Outcome, Skip, Suppression

DAEMON_DOWN = "daemon_down"
CLOCK_JUMPED = "clock_jumped"
STOOD_STILL = "stood_still"
RUNNING = "running"
WAITING = "waiting"
DUE = "due"
TO_COME = "to_come"
NOT_KEPT = "not_kept"
NOT_DECLARED = "not_declared"


OUTCOMES_OF_RUNS = frozenset(outcome.value for outcome in Outcome if outcome is not Outcome.SKIPPED)


@dataclass(frozen=True, slots=True)
class SlotCause:
    """An outcome, the reason of a skip, or one of the words above; `detail` is the suppression, or the class of an error."""

    code: str
    detail: str | None = None

    @property
    def has_run(self) -> bool:
        """Whether a run came to this, well or not."""
        return self.code in OUTCOMES_OF_RUNS

    @property
    def text(self) -> str:
        """The same for people."""
        exact = TEXTS_WITH_DETAIL.get((self.code, self.detail))
        if exact is not None:
            return exact
        return self._with_detail(REASON_TEXTS)

    @property
    def text_for_now(self) -> str:
        """The same of a gate that stands in the way at present."""
        return self._with_detail(REASON_TEXTS | TEXTS_FOR_NOW)

    def _with_detail(self, words: Mapping[str, str]) -> str:
        said = words.get(self.code, self.code.replace("_", " "))
        return f"{said}: {self.detail}" if self.detail else said


TEXTS_WITH_DETAIL: dict[tuple[str, str | None], str] = {
    (Outcome.OK, Suppression.HEARTBEAT_OK): "ran, quiet",
    (Outcome.OK, Suppression.SHORT_REMAINDER): "ran, quiet but for a few characters",
    (Outcome.OK, Suppression.EMPTY): "ran, answered nothing",
    (Outcome.OK, Suppression.DECIDED_SKIP): "asked whether to run; decided not to",
    (Outcome.ALERT, Suppression.DUPLICATE): "ran, same alert again: told before",
    (Outcome.ALERT, Suppression.NOT_SHOWN): "ran, alert not shown (show_alerts: false)",
    (WAITING, Skip.BUSY): "waiting until the agent's lane is free",
    (WAITING, Skip.BREAKER_OPEN): "waiting until another run has probed its provider",
}

REASON_TEXTS: dict[str, str] = {
    Outcome.OK: "ran",
    Outcome.ALERT: "ran, alert",
    Outcome.FAILED: "ran, failed",
    Outcome.TIMEOUT: "ran, did not end in time",
    Outcome.ABANDONED: "ran, cut short",
    Outcome.ASYNC: "ran, answers later",
    Skip.DISABLED: "disabled in the config",
    Skip.PAUSED: "paused",
    Skip.REMOVED: "not in the config",
    Skip.CALENDAR: "kept off by a calendar",
    Skip.ACTIVE_HOURS: "outside active hours",
    Skip.ALREADY_RUNNING: "the run before was still going",
    Skip.BUSY: "busy: somebody had the agent's lane",
    Skip.CHECKLIST_MISSING: "no checklist",
    Skip.CHECKLIST_EMPTY: "nothing on the checklist",
    Skip.CHECKLIST_UNREADABLE: "the checklist cannot be read",
    Skip.CHECKLIST_TOO_LARGE: "the checklist is too large",
    Skip.NOTHING_DUE: "no item of the checklist was due",
    Skip.NOT_SHOWN: "nobody would hear it (show_ok, show_alerts: false)",
    Skip.BUDGET: "the budget is spent",
    Skip.BREAKER_OPEN: "the circuit breaker of its provider or model is open",
    Skip.PRECHECK: "the precheck found nothing to do",
    Skip.PRECHECK_UNCHANGED: "the precheck found nothing new",
    Skip.PRECHECK_FAILED: "the precheck failed",
    Skip.PROMPT_TOO_LARGE: "the prompt was too large",
    Skip.MISSED: "missed: it could not start within its grace",
    Skip.SUPERSEDED: "superseded by a wake or by backing off",
    DAEMON_DOWN: "the daemon was down",
    CLOCK_JUMPED: "the clock jumped, or the machine slept",
    STOOD_STILL: "the daemon stood still: it was stopped, or the machine had no time for it",
    RUNNING: "running",
    WAITING: "waiting for its next attempt",
    DUE: "due, about to start",
    TO_COME: "to come",
    NOT_KEPT: "not on record any more (history.keep, history.runs)",
    NOT_DECLARED: "not yet known to the daemon",
}

TEXTS_FOR_NOW: dict[str, str] = {
    Skip.ALREADY_RUNNING: "a run of it is still going",
    Skip.BUSY: "busy: the agent's lane is taken",
    Skip.NOTHING_DUE: "no item of the checklist is due",
}

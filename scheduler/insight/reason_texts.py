"""Describes what happened to a slot, a finding or a problem: one word for programs, a short text for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from heartbeat.words import format_count
from heartbeatd.answers import BreakerStatus, FrozenTime, RunNotice
from scheduler.model.circuit import EVERY_MODEL, Circuit
from scheduler.model.levels import Level, level_of, level_of_run
from scheduler.model.outcome import ANSWERED, DeliveryState, Outcome, Reason, Skip, Suppression, Trigger
from scheduler.model.wake import RejectedBecause
from scheduler.store import outbox
from scheduler.store.boots import STOPPED
from scheduler.store.clock_changes import ClockChange
from scheduler.store.wakes import RejectedWakes

DAEMON_DOWN = "daemon_down"
CLOCK_JUMPED = "clock_jumped"
FROZEN = "frozen"
SLEPT = "slept"  # the detail of CLOCK_JUMPED if the machine was suspended
RUNNING = "running"
WAITING = "waiting"
DUE = "due"
TO_COME = "to_come"
NOT_KEPT = "not_kept"
NOT_DECLARED = "not_declared"


OUTCOMES_OF_RUNS = frozenset(outcome.value for outcome in Outcome if outcome is not Outcome.SKIPPED)
WITHOUT_RESULT = frozenset({RUNNING, WAITING, DUE, TO_COME, NOT_KEPT, NOT_DECLARED})


@dataclass(frozen=True, slots=True)
class SlotCause:
    """What happened to a slot. `code` is an outcome, a skip reason or a word above; `detail` a suppression or an error class."""

    code: str
    detail: str | None = None

    @property
    def has_run(self) -> bool:
        """Whether the slot was run, successfully or not."""
        return self.code in OUTCOMES_OF_RUNS

    @property
    def result(self) -> str:
        """The result that API and command line show, or a word for a slot without a known result."""
        return self.code if self.has_run or self.code in WITHOUT_RESULT else Outcome.SKIPPED

    @property
    def why(self) -> str | None:
        """Why it has this result."""
        return self.detail if self.result == self.code else self.code

    @property
    def level(self) -> Level:
        """How good or bad it is."""
        undelivered = level_of(self.detail) if self.code in ANSWERED and self.detail in DELIVERY_TEXTS else None
        return undelivered or level_of_run(self.code, self.detail) or Level.PLANNED

    @property
    def text(self) -> str:
        """A short text for people."""
        exact = TEXTS_WITH_DETAIL.get((self.code, self.detail))
        if exact is not None:
            return exact
        return self._with_detail(REASON_TEXTS)

    @property
    def text_for_now(self) -> str:
        """A short text for people, for a reason that prevents a run now."""
        return self._with_detail(REASON_TEXTS | TEXTS_FOR_NOW)

    def _with_detail(self, words: Mapping[str, str]) -> str:
        text = words.get(self.code, self.code.replace("_", " "))
        return f"{text}: {self.detail}" if self.detail else text


DELIVERY_TEXTS: dict[str, str] = {
    DeliveryState.NO_TARGET: "sent to no one: no target",
    DeliveryState.PENDING: "accepted, not delivered yet",
    DeliveryState.SENDING: "accepted, not delivered yet",
    DeliveryState.PARTIAL: "accepted, only a part was delivered",
    DeliveryState.UNCERTAIN: "accepted, it may have arrived",
    DeliveryState.HELD: "accepted and held, it may have arrived",
    DeliveryState.DEAD: "accepted, not delivered and given up",
    DeliveryState.DROPPED: "accepted, not delivered and dropped",
}  # after `alert` or `message`

FREEZE_TEXTS: dict[str | None, str] = {
    STOPPED: "its process was stopped by a signal",
    None: "its process got no CPU time or disk access, or was stopped",
}  # by the cause of a freeze

TEXTS_WITH_DETAIL: dict[tuple[str, str | None], str] = {
    **{(Outcome.ALERT, state): f"ran, alert {text}" for state, text in DELIVERY_TEXTS.items()},
    **{(Outcome.OK, state): f"ran, message {text}" for state, text in DELIVERY_TEXTS.items()},
    (Outcome.OK, Suppression.HEARTBEAT_OK): "ran, quiet",
    (Outcome.OK, Suppression.SHORT_REMAINDER): "ran, quiet (short text)",
    (Outcome.OK, Suppression.EMPTY): "ran, empty answer",
    (Outcome.OK, Suppression.DECIDED_SKIP): "the agent decided not to run",
    (Outcome.ALERT, None): "ran, alert delivered",
    (Outcome.ALERT, Suppression.DUPLICATE): "ran, known alert: not sent again",
    (Outcome.ALERT, Suppression.NOT_SHOWN): "ran, alert not delivered (show_alerts: false)",
    (Outcome.ALERT, Suppression.NO_FINDINGS): "ran, prose without findings: not sent",
    (Outcome.ALERT, Suppression.MUTED): "ran, alert suppressed (mute)",
    (Outcome.OK, Suppression.MUTED): "ran, message suppressed (mute)",
    (Outcome.FAILED, Reason.NO_TIME_LEFT): "ran, failed: no time was left for another try",
    (CLOCK_JUMPED, SLEPT): "the machine was suspended",
    (FROZEN, STOPPED): f"the daemon was frozen: {FREEZE_TEXTS[STOPPED]}",
    (WAITING, Skip.BUSY): "waiting until the agent's lock is free",
    (WAITING, Skip.BREAKER_OPEN): "waiting until another run has made a trial call to its provider",
}

REASON_TEXTS: dict[str, str] = {
    Outcome.OK: "ran",
    Outcome.ALERT: "ran, alert",
    Outcome.FAILED: "ran, failed",
    Outcome.TIMEOUT: "ran, timed out",
    Outcome.ABANDONED: "ran, interrupted",
    Outcome.ASYNC: "ran, answers later",
    **{reason: reason.says for reason in Skip},
    DAEMON_DOWN: "the daemon was down",
    CLOCK_JUMPED: "the clock jumped, or the machine was suspended",
    FROZEN: f"the daemon was frozen: {FREEZE_TEXTS[None]}",
    RUNNING: "running",
    WAITING: "waiting for its next try",
    DUE: "due, about to start",
    TO_COME: "to come",
    NOT_KEPT: "no longer in the history (history.keep, history.runs)",
    NOT_DECLARED: "not yet known to the daemon",
}

TEXTS_FOR_NOW: dict[str, str] = {
    Skip.ALREADY_RUNNING: "a run is in progress",
    Skip.BUSY: "busy: the agent is locked",
    Skip.NOTHING_DUE: "no item of the checklist is due",
}


Clock = Callable[[datetime], str]  # shows a time as its reader expects it


def rejected_wakes_text(rejected: RejectedWakes, at: Clock, *, of_job: bool) -> str:
    """How many wakes were rejected, since when and why. `of_job`: the text is about the job that sent them.

    Of several wakes that no job has sent, only the sender of the last one is on record.
    """
    sender = f"{rejected.sender} ({rejected.source})" if rejected.sender else rejected.source
    is_one, since = rejected.count == 1, at(rejected.first_at)
    has_one_sender = is_one or rejected.source == Trigger.CRON
    whose = f" of agent/{rejected.agent}" if of_job else f" by {sender}" if has_one_sender else ""
    when = f"was rejected at {since}" if is_one else f"were rejected since {since}"
    last = "" if of_job or has_one_sender else f", the last by {sender}"
    return f"{format_count(rejected.count, 'wake')}{whose} {when}{last}: {RejectedBecause(rejected.why).says}"


def notice_text(notice: RunNotice, at: Clock) -> str:
    """A notification about a run: which, where, its state, and what happened to it if it was delayed."""
    line, held = f"{notice.notice}: {notice.channel} {notice.state}", notice.held_back
    waits = hold_text(held.agents, held.until, at) if held and held.agents and held.until else ""
    return "; ".join(filter(None, (line, waits, held.note if held else "")))


def hold_text(agents: Sequence[str], until: datetime, at: Clock) -> str:
    """Why a notification is delayed, and for how long at most."""
    return f"{outbox.hold_text(agents)}, until {at(until)} at most"


def breaker_text(breaker: BreakerStatus, at: Callable[[datetime], str]) -> str:
    """What an open circuit breaker stops and why, since when, and when a run may try again."""
    circuit = Circuit(breaker.provider, EVERY_MODEL if breaker.model is None else breaker.model)
    trial = f"; the next trial call is at {at(breaker.next_probe_at)}" if breaker.next_probe_at else ""
    return f"{circuit} has been blocked since {at(breaker.opened_at)}: {breaker.error or breaker.why}{trial}"


def ending_text(clean: bool) -> str:
    """How a daemon ended."""
    return "shut down" if clean else "ended unexpectedly"


def clock_change_text(change: ClockChange) -> str:
    """A change of the system clock, or a suspension of the machine that looks like one."""
    far = timedelta(seconds=round(abs(change.by).total_seconds()))
    if change.is_sleep:
        return f"the machine had been suspended for {far}"
    return f"the system clock jumped {far} {'forward, or the machine was suspended' if change.by > timedelta() else 'back'}"


def freeze_text(freeze: FrozenTime) -> str:
    """How long the daemon was frozen, and why if that is known."""
    long = timedelta(seconds=round((freeze.until - freeze.since).total_seconds()))
    return f"the daemon had been frozen for {long}: {FREEZE_TEXTS[freeze.cause]}"

"""Defines the words for results: outcomes, reasons, triggers and states. The reasons for skips are in heartbeat/checks.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum

from heartbeat.checks import Skip
from heartbeat.due_items import Selection
from heartbeat.findings import Report
from heartbeat.precheck import PrecheckResult, PrecheckStatus
from heartbeat.runners import Failure, Tokens, ToolCall
from heartbeat.verdict import Suppression

__all__ = [
    "ANSWERED",
    "EXCUSED_SKIPS",
    "FAILURES",
    "PLANNED_SKIPS",
    "REASONS",
    "SUCCESSES",
    "UNSENT_CALL",
    "WOKEN",
    "WORRYING_SKIPS",
    "AttemptResult",
    "Call",
    "DeliveryState",
    "Failure",
    "Kind",
    "Outcome",
    "Reason",
    "Skip",
    "Suppression",
    "Trigger",
    "WakeResult",
]


class Kind(StrEnum):
    """The two kinds of entries."""

    HEARTBEAT = "heartbeat"
    CRON = "cron"

    @property
    def noun(self) -> str:
        """What people call an entry of this kind: agent, or cron job."""
        return "agent" if self is Kind.HEARTBEAT else "cron job"

    @property
    def section(self) -> str:
        """The first part of the names that commands accept and print: agent/NAME or cron/NAME."""
        return "agent" if self is Kind.HEARTBEAT else "cron"

    def label_of(self, name: str) -> str:
        """The name of an entry with its kind, because an agent and a job may have the same name."""
        return f"{self.section}/{name}"


class Outcome(StrEnum):
    """How a run ended. `alert`: the agent had a message, sent or suppressed. `skipped` has a `Skip` as its reason."""

    OK = "ok"
    ALERT = "alert"
    FAILED = "failed"
    TIMEOUT = "timeout"
    ABANDONED = "abandoned"
    ASYNC = "async"
    SKIPPED = "skipped"


class Reason(StrEnum):
    """Why a run failed or was abandoned, if it is not a class of errors (`Failure`)."""

    RATE_LIMITED = "rate_limited"
    NO_TIME_LEFT = "no_time_left"
    CANCELLED = "cancelled"
    CRASH_COUNT = "crash_count"
    CHILD_MAY_STILL_RUN = "child_may_still_run"
    NO_RESULT = "no_result"


REASONS = tuple(dict.fromkeys(str(word) for words in (Skip, Reason, Failure) for word in words))  # of skips and failures


class Trigger(StrEnum):
    """What started a run."""

    INTERVAL = "interval"
    SCHEDULE = "schedule"
    EVERY = "every"
    AT = "at"
    REBOOT = "reboot"
    CRON = "cron"
    MANUAL = "manual"
    API = "api"
    WEBHOOK = "webhook"
    RESULT = "result"


class WakeResult(StrEnum):
    """What happened to a wake."""

    STARTED = "started"
    JOINED = "joined"
    DEFERRED = "deferred"
    REJECTED = "rejected"
    EXPIRED = "expired"


class DeliveryState(StrEnum):
    """The state of one message, or of all messages of one run."""

    NONE = "none"
    PENDING = "pending"
    SENDING = "sending"
    DELIVERED = "delivered"
    PARTIAL = "partial"
    UNCERTAIN = "uncertain"
    HELD = "held"
    DEAD = "dead"
    DROPPED = "dropped"
    NO_TARGET = "no_target"


FAILURES = frozenset({Outcome.FAILED, Outcome.TIMEOUT, Outcome.ABANDONED})
SUCCESSES = frozenset({Outcome.OK, Outcome.ALERT, Outcome.ASYNC})

ANSWERED = frozenset({Outcome.OK, Outcome.ALERT})  # the agent has checked the items in its prompt

WOKEN = frozenset({Trigger.CRON, Trigger.MANUAL, Trigger.API, Trigger.WEBHOOK})  # started by a wake, not by a slot


# A slot that is skipped for one of these reasons is lost: the agent or the job should have run.
WORRYING_SKIPS = frozenset(
    {
        Skip.ALREADY_RUNNING,
        Skip.BUSY,
        Skip.CHECKLIST_MISSING,
        Skip.CHECKLIST_EMPTY,
        Skip.CHECKLIST_UNREADABLE,
        Skip.CHECKLIST_TOO_LARGE,
        Skip.BUDGET,
        Skip.BREAKER_OPEN,
        Skip.PRECHECK_FAILED,
        Skip.PROMPT_TOO_LARGE,
        Skip.MISSED,
    }
)

PLANNED_SKIPS = frozenset(Skip) - WORRYING_SKIPS  # as the settings want it

# After a skip for one of these reasons, only the next slot is expected to be answered: the skip was planned, or other metrics
# show its cause (an exhausted budget, an open circuit breaker).
EXCUSED_SKIPS = PLANNED_SKIPS | {Skip.BUDGET, Skip.BREAKER_OPEN}


LONGEST_USUAL_RETRY_DELAY = timedelta(seconds=30)  # before a retry for which no provider has asked for a pause
RETRY_JITTER = 0.25  # the delay is up to this share shorter or longer
LONGEST_RETRY_DELAY = LONGEST_USUAL_RETRY_DELAY * (1 + RETRY_JITTER)
LONGEST_RETRY_AFTER = timedelta(minutes=15)  # a longer Retry-After is not waited for: it opens the breaker for so long


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a model: its provider (None: none of the config), the requested model, and the result.

    `tokens` and `cost_usd` are None if they were not reported. `tools_ignored` counts the tools that a model wanted to use.
    `not_sent`: the request did not leave the machine. `status` is the HTTP status of an error. `took` is the time from the
    request to the complete answer, None if it was not measured. `most` is the most that a turn with tools can have used.
    """

    provider: str | None
    model: str | None
    model_used: str | None = None
    tokens: Tokens | None = None
    cost_usd: float | None = None
    failure: Failure | None = None
    retry_after: timedelta | None = None
    tools_ignored: int = 0
    not_sent: bool = False
    status: int | None = None
    took: timedelta | None = None
    most: Tokens | None = None


UNSENT_CALL = Call(None, None, failure=Failure.EXIT, not_sent=True)  # for an attempt that never called its model


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """The result of one attempt of a run, as its worker returns it.

    `text` is the agent's answer or the job's output, kept in the run record. `message` is what is to be delivered, None for
    nothing. `transient`: another attempt may succeed. `retry_after` is how long the provider wants no further request. `calls`
    are the model calls of this attempt. `precheck` is the result of its precheck, `selection` the checklist items in its prompt.
    `tool_calls` are the tools that the agent used, `log` its text for the log only. `truncated`: the answer was cut at a token
    limit. `request_id` is the provider's id of the last request. `left_out` is what was to be in the prompt and was left out.
    `report` has the findings of the answer, None if it has none. `findings` is what happened to each, for the run record.
    """

    outcome: Outcome
    reason: Skip | Failure | Reason | None = None
    suppression: Suppression | None = None
    text: str | None = None
    message: str | None = None
    error: str | None = None
    exit_code: int | None = None
    model_used: str | None = None
    prompt_parts: Mapping[str, int] = field(default_factory=dict)
    transient: bool = False
    retry_after: timedelta | None = None
    calls: tuple[Call, ...] = ()
    precheck: PrecheckResult | None = None
    selection: Selection | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    log: str | None = None
    truncated: bool = False
    request_id: str | None = None
    left_out: tuple[str, ...] = ()
    report: Report | None = None
    findings: tuple[Mapping[str, object], ...] = ()

    @property
    def is_complete_answer(self) -> bool:
        """Whether the agent has looked at everything in its prompt: its answer was not cut, and no decision skipped it."""
        skipped = (Suppression.DECIDED_SKIP, Suppression.NO_FINDINGS)
        return self.outcome in ANSWERED and not self.truncated and self.suppression not in skipped

    @property
    def precheck_problem(self) -> str | None:
        """Why the precheck of this attempt failed, however the attempt ended; None if it did not fail."""
        return self.precheck.error if self.precheck and self.precheck.status is PrecheckStatus.FAILED else None


def storable_result(result: AttemptResult) -> AttemptResult:
    """The result with texts that can be stored: lone surrogates, which no encoding can represent, become question marks."""
    if all(text is None or text.isascii() for text in (result.text, result.message, result.error)):
        return result
    return replace(
        result,
        text=_replace_surrogates(result.text),
        message=_replace_surrogates(result.message),
        error=_replace_surrogates(result.error),
    )


def _replace_surrogates(text: str | None) -> str | None:
    return text if text is None else text.encode(errors="replace").decode()

"""The one vocabulary of results: the same words in rows, metrics, logs, pages and dashboards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum

from heartbeat.checks import Skip
from heartbeat.due_items import Selection
from heartbeat.precheck import PrecheckResult, PrecheckStatus
from heartbeat.runners import Failure, Tokens, ToolCall
from heartbeat.verdict import Suppression

__all__ = [
    "ANSWERED",
    "FAILURES",
    "SUCCESSES",
    "WOKEN",
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
    """What an entry of the due-queue is."""

    HEARTBEAT = "heartbeat"
    CRON = "cron"


class Outcome(StrEnum):
    """How a slot ended. `alert`: the agent said something, told or not; `skipped` has a `Skip` as its reason."""

    OK = "ok"
    ALERT = "alert"
    FAILED = "failed"
    TIMEOUT = "timeout"
    ABANDONED = "abandoned"
    ASYNC = "async"
    SKIPPED = "skipped"


class Reason(StrEnum):
    """Why a run failed or was abandoned, where the class of the error (`Failure`) does not say it."""

    RATE_LIMITED = "rate_limited"
    NO_TIME_LEFT = "no_time_left"
    CANCELLED = "cancelled"
    CRASH_COUNT = "crash_count"
    CHILD_MAY_STILL_RUN = "child_may_still_run"
    NO_RESULT = "no_result"


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
    """What became of a wake."""

    STARTED = "started"
    JOINED = "joined"
    DEFERRED = "deferred"
    REJECTED = "rejected"
    EXPIRED = "expired"


class DeliveryState(StrEnum):
    """Where one message, or all messages of one run, stand."""

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

ANSWERED = frozenset({Outcome.OK, Outcome.ALERT})  # the agent has dealt with what it was asked about

WOKEN = frozenset({Trigger.CRON, Trigger.MANUAL, Trigger.API, Trigger.WEBHOOK})  # started by a wake, not by a slot


LONGEST_RETRY_AFTER = timedelta(minutes=15)  # whoever asks for more is not waited for, and left alone for so long


@dataclass(frozen=True, slots=True)
class Call:
    """One asking: of which provider (None: of none that we know), for which model, and how it went.

    `tokens` and `cost_usd` are None where nobody said them; `tools_ignored` counts the tools that a model wanted to use.
    `unheard`: the question did not leave. `status` is the HTTP status of a refusal.
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


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """How one attempt of a run ended: what a worker gives back, free of database, clock and channel.

    `text` is what the agent said or the job printed, kept in the row; `message` is what is to be delivered, None for nothing.
    `transient` says that another attempt could end better, `retry_after` how long the other side asked to be left alone.
    `calls` lists whom this attempt asked. `precheck` is what was found before the agent was asked, `selection` what of its
    checklist it was asked about. `tool_calls` are the tools that the agent used, `log` what it said for the log alone.
    `truncated`: the answer was cut at a limit of tokens. `request_id` is the provider's own name for the last call.
    `left_out` says what was to be in the prompt and is not.
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

    @property
    def precheck_problem(self) -> str | None:
        """Why the precheck of this attempt failed, whatever became of the attempt; None if it did not."""
        return self.precheck.error if self.precheck and self.precheck.status is PrecheckStatus.FAILED else None


def storable_result(result: AttemptResult) -> AttemptResult:
    """The ending with texts that can be written down: half characters, which no encoding has, become question marks."""
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

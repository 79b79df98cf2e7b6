"""The result of one attempt of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum

from heartbeat.checklist import Selection
from heartbeat.checks import Skip
from heartbeat.findings import ReminderWish, Report
from heartbeat.precheck import PrecheckResult, PrecheckStatus
from heartbeat.runners import CacheTtl, Call, Failure, ToolCall
from heartbeat.verdict import Suppression


class Outcome(StrEnum):
    """How a run ended. `alert`: the agent had a message, sent or suppressed. `skipped` has a `Skip` as its reason."""

    OK = "ok"
    ALERT = "alert"
    FAILED = "failed"
    TIMEOUT = "timeout"
    ABANDONED = "abandoned"
    ASYNC = "async"
    SKIPPED = "skipped"


FAILURES = frozenset({Outcome.FAILED, Outcome.TIMEOUT, Outcome.ABANDONED})
SUCCESSES = frozenset({Outcome.OK, Outcome.ALERT, Outcome.ASYNC})

ANSWERED = frozenset({Outcome.OK, Outcome.ALERT})  # the agent has checked the items in its prompt


class Reason(StrEnum):
    """Why a run failed or was abandoned, if it is not a class of errors (`Failure`)."""

    RATE_LIMITED = "rate_limited"
    NO_TIME_LEFT = "no_time_left"
    CANCELLED = "cancelled"
    CRASH_COUNT = "crash_count"
    CHILD_MAY_STILL_RUN = "child_may_still_run"
    NO_RESULT = "no_result"
    POSTCHECK = "postcheck"
    REPORTED_FAILURE = "reported_failure"


FAILURES_WITH_ANSWER = frozenset({Reason.POSTCHECK, Reason.REPORTED_FAILURE})
"""Why a run with an answer failed. What the agent has found and asks for counts all the same."""

UNSENT_CALL = Call(None, None, failure=Failure.EXIT, not_sent=True)  # for an attempt that never called its model


@dataclass(frozen=True, slots=True)
class SentPrompt:
    """What the agent was given: the size of each part of its prompt, what did not fit, and the items of its checklist.

    `static_digest` stands for the model and the part of the prompt that is the same in each run, empty if a provider cannot keep
    it. `cache` is how long the provider was asked to keep it.
    """

    part_sizes: Mapping[str, int] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    selection: Selection | None = None
    static_digest: str = ""
    cache: CacheTtl | None = None


NO_PROMPT = SentPrompt()


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """The result of one attempt of a run."""

    outcome: Outcome
    reason: Skip | Failure | Reason | None = None
    suppression: Suppression | None = None
    text: str | None = None  # the agent's answer or the job's output, kept in the run record
    message: str | None = None  # what is to be delivered, None for nothing
    error: str | None = None
    exit_code: int | None = None
    transient: bool = False  # another attempt may succeed
    retry_after: timedelta | None = None  # how long the provider wants no further request
    precheck: PrecheckResult | None = None
    prompt: SentPrompt = NO_PROMPT
    calls: tuple[Call, ...] = ()  # of models
    model_used: str | None = None
    request_id: str | None = None  # the provider's id of the last request
    tool_calls: tuple[ToolCall, ...] = ()  # the tools that the agent used
    has_changed: bool = False  # one of them may have changed something, which another attempt could change again
    log: str | None = None  # the agent's text for the log only
    truncated: bool = False  # the answer was cut at a token limit
    report: Report | None = None  # the findings of the answer, None if it has none
    reminders: tuple[ReminderWish, ...] = ()  # that the agent asks for
    findings: tuple[Mapping[str, object], ...] = ()  # what happened to each when the run was closed
    fallback: str | None = None  # the name of the fallback that was called last, None: only the agent itself was
    fallback_why: str | None = None  # why the agent itself was not, or in vain

    def as_failure(self, reason: Reason, error: str, *, transient: bool) -> AttemptResult:
        """The result of a run that has an answer, and has failed nevertheless. What the agent has found is still delivered."""
        message = self.message if self.outcome is Outcome.ALERT else None
        return replace(
            self,
            outcome=Outcome.FAILED,
            reason=reason,
            error=error,
            transient=transient,
            message=message,
            suppression=self.suppression if self.report else None,
        )

    @property
    def why(self) -> Skip | Failure | Reason | Suppression | None:
        """Why the run was skipped or failed, or else why nothing was sent."""
        return self.reason or self.suppression

    @property
    def is_complete_answer(self) -> bool:
        """Whether the agent has looked at everything in its prompt: its answer was not cut, and no decision skipped it."""
        skipped = (Suppression.DECIDED_SKIP, Suppression.NO_FINDINGS)
        return self.outcome in ANSWERED and not self.truncated and self.suppression not in skipped

    @property
    def precheck_problem(self) -> str | None:
        """Why the precheck of this attempt failed, however the attempt ended; None if it did not fail."""
        return self.precheck.error if self.precheck and self.precheck.status is PrecheckStatus.FAILED else None

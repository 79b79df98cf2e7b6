"""Defines words for runs: kinds, triggers and states. Outcomes and reasons for skips are in heartbeat/."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from enum import StrEnum

from heartbeat.checks import PRECHECK_SKIPS as PRECHECK_SKIPS
from heartbeat.checks import Skip as Skip
from heartbeat.result import ANSWERED as ANSWERED
from heartbeat.result import FAILURES as FAILURES
from heartbeat.result import FAILURES_WITH_ANSWER as FAILURES_WITH_ANSWER
from heartbeat.result import SUCCESSES as SUCCESSES
from heartbeat.result import UNSENT_CALL as UNSENT_CALL
from heartbeat.result import AttemptResult as AttemptResult
from heartbeat.result import Outcome as Outcome
from heartbeat.result import Reason as Reason
from heartbeat.runners import LONGEST_RETRY_AFTER as LONGEST_RETRY_AFTER
from heartbeat.runners import Call as Call
from heartbeat.runners import Failure as Failure
from heartbeat.verdict import Suppression as Suppression


class Kind(StrEnum):
    """The two kinds of entries."""

    HEARTBEAT = "heartbeat"
    CRON = "cron"

    @property
    def noun(self) -> str:
        """What people call an entry of this kind: agent, or cron job."""
        return "agent" if self is Kind.HEARTBEAT else "cron job"

    @property
    def word(self) -> str:
        """The first part of the names that commands accept and print: agent/NAME or cron/NAME."""
        return "agent" if self is Kind.HEARTBEAT else "cron"

    @property
    def section(self) -> str:
        """The section of the config in which such entries are."""
        return "agents" if self is Kind.HEARTBEAT else "cron"

    def label_of(self, name: str) -> str:
        """The name of an entry with its kind, because an agent and a job may have the same name."""
        return f"{self.word}/{name}"


Key = tuple[Kind, str]
"""An agent or a job: its kind and its name."""

WHY_WORDS = tuple(dict.fromkeys(str(word) for words in (Skip, Reason, Failure, Suppression) for word in words))


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
    REMINDER = "reminder"
    RESULT = "result"


class WakeResult(StrEnum):
    """What happened to a wake."""

    STARTED = "started"
    JOINED = "joined"
    DEFERRED = "deferred"
    REJECTED = "rejected"
    CANCELLED = "cancelled"
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
    MUTED = "muted"


# Started by a wake, not by a slot.
WOKEN = frozenset({Trigger.CRON, Trigger.MANUAL, Trigger.API, Trigger.WEBHOOK, Trigger.REMINDER})
# Started by no slot. A late result is not among them: a slot may have started its run.
WITHOUT_SLOT = WOKEN | {Trigger.REBOOT}


# The schedule excludes the slot.
SCHEDULE_SKIPS = frozenset({Skip.ACTIVE_HOURS, Skip.CALENDAR})
# Of one check: a new result replaces the previous one.
CHECKLIST_SKIPS = frozenset({Skip.CHECKLIST_MISSING, Skip.CHECKLIST_EMPTY, Skip.CHECKLIST_UNREADABLE, Skip.CHECKLIST_TOO_LARGE})
NOTHING_TO_DO = frozenset({Skip.PRECHECK, Skip.PRECHECK_UNCHANGED, Skip.CHECKLIST_EMPTY, Skip.NOTHING_DUE})
# They count as failures.
STOPPING_SKIPS = frozenset(
    {
        Skip.BREAKER_OPEN,
        Skip.BUDGET,
        Skip.CHECKLIST_TOO_LARGE,
        Skip.CHECKLIST_UNREADABLE,
        Skip.PRECHECK_FAILED,
        Skip.PROMPT_TOO_LARGE,
    }
)
# A slot that is skipped for one of these reasons is lost: the agent or the job should have run.
LOST_SKIPS = STOPPING_SKIPS | {Skip.ALREADY_RUNNING, Skip.BUSY, Skip.CHECKLIST_MISSING, Skip.CHECKLIST_EMPTY, Skip.MISSED}

PLANNED_SKIPS = frozenset(Skip) - LOST_SKIPS  # as the settings want it

# After a skip for one of these reasons, only the next slot is expected to be answered: the skip was planned, or other metrics
# show its cause (an exhausted budget, an open circuit breaker).
EXCUSED_SKIPS = PLANNED_SKIPS | {Skip.BUDGET, Skip.BREAKER_OPEN}


LONGEST_USUAL_RETRY_DELAY = timedelta(seconds=30)  # before a retry for which no provider has asked for a pause
RETRY_JITTER = 0.25  # the delay is up to this share shorter or longer
LONGEST_RETRY_DELAY = LONGEST_USUAL_RETRY_DELAY * (1 + RETRY_JITTER)


def storable_result(result: AttemptResult) -> AttemptResult:
    """The result with texts that can be stored: lone surrogates, which no encoding can represent, become question marks."""
    if "".join(filter(None, (result.text, result.message, result.error))).isascii():
        return result
    return replace(
        result,
        text=_replace_surrogates(result.text),
        message=_replace_surrogates(result.message),
        error=_replace_surrogates(result.error),
    )


def _replace_surrogates(text: str | None) -> str | None:
    return text if text is None else text.encode(errors="replace").decode()

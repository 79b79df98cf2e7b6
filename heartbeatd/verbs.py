"""Lists the operations that change something. Their effects are in scheduler/engine/effects.py and scheduler/web/services.py."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from heartbeatd.answers import (
    AcknowledgedConditions,
    CancelledRun,
    ChangedMessage,
    Checklist,
    ClosedCondition,
    ConfigEdited,
    ConfigSuggestion,
    LaneHeld,
    LaneReleased,
    Muted,
    PausedEntries,
    RecordedActivity,
    Reloaded,
    ResumedEntries,
    RunNumber,
    TestedChannels,
    Unmuted,
    WakeAccepted,
    WakeNumber,
)
from heartbeatd.operations import (
    AgentName,
    Answer,
    Concern,
    Count,
    HolderId,
    Method,
    Operation,
    Permission,
    RowId,
    ShortText,
    Span,
    SpanOrNone,
    Text,
    TimeOrNone,
    TrueOrFalse,
    endpoints_of,
    of_all,
    of_name,
    of_number,
    operations_of,
)

NO_VERSION = "none"  # instead of the hash of a checklist that does not exist yet


class Verb(Operation[Answer]):
    """A request that changes something.

    A field with a title, which is a sentence, is an option of the command and an input of the page. All others are for programs.
    """

    method: ClassVar[Method] = "POST"
    may: ClassVar[Permission | None] = "operate"
    concern = Concern.ALL
    button: ClassVar[str] = ""  # its label on the page; empty: the page has none
    is_final: ClassVar[bool] = False  # it cannot be undone, so its button looks different


class Wake(Verb[WakeAccepted]):
    """Run an agent now, outside of its schedule (a wake). If the daemon is down, the agent is woken when the daemon starts
    again. If the wake must wait, the response gives the reason. Over HTTP, the alerts of Alertmanager can be sent instead
    of a text. With `urgent: false` the wake starts no run: the next run gets the text.
    """

    may = "wake"
    tool = "wake"
    button = "Wake"
    paths = {"wake_agent": "/api/v1/agents/{name}/wake"}

    text: Text = Field(default="", title="Text to put into the agent's prompt.")
    urgent: TrueOrFalse = True


class RunJob(Verb[WakeNumber]):
    """Run a cron job now, in addition to its schedule. If the daemon is down, the job runs when the daemon starts again."""

    button = "Run now"
    paths = {"run_job": "/api/v1/cron/{name}/run"}


class ReportResult(Verb[RunNumber]):
    """Record the result of a run that ended `async`. It is a text or findings, which may be `truncated`, or an error."""

    paths = {"report_result": "/api/v1/runs/{id}/result"}

    text: Text | None = None
    findings: list[Any] | None = Field(default=None, description="a list of objects with key, text, severity and resolved")
    error: Text | None = None
    truncated: TrueOrFalse = False

    @model_validator(mode="after")
    def _check_one_result(self) -> Self:
        if (self.text is None and self.findings is None) == (self.error is None):
            raise ValueError("write either text or error, as a string in quotes, or findings, as a list")
        return self


class Cancel(Verb[CancelledRun]):
    """Cancel a run that is in progress or will be retried. The run gets the outcome `abandoned` and the reason `cancelled`, and
    is not retried. A run that waits for a retry or for an asynchronous result can be cancelled too. Wakes in the prompt of
    the cancelled run are put into the prompt of the agent's next run.
    """

    button = "Cancel"
    is_final = True
    paths = {"cancel_run": "/api/v1/runs/{id}/cancel"}


class HoldLane(Verb[LaneHeld]):
    """Lock an agent's lane for a time, or extend the lock. `run` is the run in progress, which the caller should wait for."""

    method = "PUT"
    paths = {"hold_lane": "/api/v1/agents/{name}/busy"}

    id: HolderId
    for_: Span


class ReleaseLane(Verb[LaneReleased]):
    """Release an agent's lane. A holder that does not hold it may do so too."""

    method = "DELETE"
    paths = {"release_lane": "/api/v1/agents/{name}/busy"}

    id: HolderId


class NoteActivity(Verb[RecordedActivity]):
    """Record the target that an agent has just talked with, and how much work waits for the agent."""

    paths = {"record_activity": "/api/v1/agents/{name}/activity"}

    channel: ShortText | None = None
    target: ShortText | None = None
    title: ShortText | None = None
    queue: Count | None = None
    pending_approvals: Count | None = None

    @model_validator(mode="after")
    def _check_completeness(self) -> Self:
        if (self.channel is None) != (self.target is None) or (self.title is not None and self.target is None):
            raise ValueError("write channel and target together, and a title only with them")
        if self.target is None and self.queue is None and self.pending_approvals is None:
            raise ValueError("write channel and target, or queue, or pending_approvals")
        return self


class _Ending(Verb[Answer]):
    """What lasts for a time, until a time, or (without a key) until somebody ends it."""

    for_: SpanOrNone = Field(default=None, title="End it automatically after this time, for example 2h.")
    until: TimeOrNone = None

    @model_validator(mode="after")
    def _check_one_end(self) -> Self:
        if self.for_ is not None and self.until is not None:
            raise ValueError("write either for or until")
        return self


class Pause(_Ending[PausedEntries]):
    """Pause an agent or a job until it is resumed, or for a given time. Runs that fall due during the pause are recorded as one
    skipped run with a count. Runs in progress continue.
    """

    button = "Pause"
    paths = {
        "pause_agent": "/api/v1/agents/{name}/pause",
        "pause_job": "/api/v1/cron/{name}/pause",
        "pause_all": "/api/v1/pause",
    }


class Resume(Verb[ResumedEntries]):
    """Resume a paused agent or job, or all of them."""

    button = "Resume"
    paths = {
        "resume_agent": "/api/v1/agents/{name}/resume",
        "resume_job": "/api/v1/cron/{name}/resume",
        "resume_all": "/api/v1/resume",
    }


class Mute(_Ending[Muted]):
    """Suppress the messages of an agent or a job. Its runs continue. Suppressed messages are recorded, but not sent later.
    After the mute, the next run reports open conditions that have not been reported yet, the end of reported conditions,
    and a failure that is not over.
    """

    button = "Mute"
    paths = {"mute_agent": "/api/v1/agents/{name}/mute", "mute_job": "/api/v1/cron/{name}/mute"}

    until_changed: TrueOrFalse = Field(
        default=False,
        title="End it when a condition opens, gets worse or ends, when a message has a new text, or when a failure begins,"
        " changes or ends.",
    )


class Unmute(Verb[Unmuted]):
    """Stop suppressing the messages of an agent or a job. The next run reports open conditions that have not been reported yet,
    the end of reported conditions, and a failure that is not over.
    """

    button = "Unmute"
    paths = {"unmute_agent": "/api/v1/agents/{name}/unmute", "unmute_job": "/api/v1/cron/{name}/unmute"}


class Retry(Verb[ChangedMessage]):
    """Send a message again now, also one that is held or was given up. It keeps its idempotency key. If the daemon is down, it
    is sent at its next start.
    """

    button = "Send again"
    paths = {"retry_message": "/api/v1/outbox/{id}/retry"}


class Drop(Verb[ChangedMessage]):
    """Drop a message without sending it. `heartbeatd show RUN` still shows its text."""

    button = "Drop"
    is_final = True
    paths = {"drop_message": "/api/v1/outbox/{id}/drop"}


class CloseProblem(Verb[ClosedCondition]):
    """Close an open condition without a message. Case and blanks in the key are ignored. If the agent mentions the condition
    again, it is opened again and reported as new.
    """

    button = "Close"
    is_final = True
    paths = {"close_condition": "/api/v1/conditions/close"}
    concern = Concern.NAMED

    agent: AgentName
    key: Text


class _OfConditions(Verb[Answer]):
    """The open conditions of an agent: one by its key, or those of a run. The key is compared without case and blanks."""

    concern = Concern.NAMED

    agent: AgentName | None = None
    key: Text | None = None
    run: RowId | None = None

    @model_validator(mode="after")
    def _check_one_subject(self) -> Self:
        if (self.agent is None) != (self.key is None) or (self.key is None) == (self.run is None):
            raise ValueError("write agent and key, or run")
        return self


class Ack(_OfConditions[AcknowledgedConditions]):
    """Suppress the messages about an open condition until it gets worse or ends. Case and blanks in the key are ignored."""

    button = "Acknowledge"
    paths = {"acknowledge_conditions": "/api/v1/conditions/ack"}


class Unack(_OfConditions[AcknowledgedConditions]):
    """Remove the acknowledgement of a condition. From the next run on, reminders are sent again."""

    button = "Report again"
    paths = {"unacknowledge_conditions": "/api/v1/conditions/unack"}


class Ping(Verb[TestedChannels]):
    """Send a test message through one channel, or through all that need no target. The message does not go through the outbox
    and is sent only once.
    """

    paths = {"ping_channels": "/api/v1/ping"}

    channel: Text | None = None


class Reload(Verb[Reloaded]):
    """Reload the config in the running daemon. If the new config has errors, the daemon keeps the old one."""

    paths = {"reload_config": "/-/reload"}
    may_be_refused_by_config = True

    dry_run: TrueOrFalse = Field(
        default=False,
        title="Only show what the file would change: keys, next runs, runs a week, and maximum cost of a day."
        " No daemon is needed.",
    )


class SetConfig(Verb[ConfigEdited | ConfigSuggestion]):
    """Change values of an agent or a job, or anywhere in the config, as a JSON merge patch. Without the permission `edit` the
    response contains the YAML to write. `hash` is that of the version to change, unless the header If-Match has it.
    """

    method = "PATCH"
    may = "read"
    paths = {
        "patch_agent_config": "/api/v1/agents/{name}/config",
        "patch_job_config": "/api/v1/cron/{name}/config",
        "patch_config": "/api/v1/config",
    }
    may_be_refused_by_config = True

    changes: dict[str, Any] = Field(description="an object with the keys to change; maps are merged, null removes a key")
    hash: Text | None = None
    dry_run: TrueOrFalse = False


class SetChecklist(Verb[Checklist]):
    """Replace the checklist of an agent. `hash` is that of the version to replace, or `none` if there is no checklist yet. The
    headers If-Match and `If-None-Match: *` say the same.
    """

    method = "PUT"
    may = "edit"
    paths = {"put_checklist": "/api/v1/agents/{name}/checklist"}

    text: str = Field(description="the whole checklist as a string")
    hash: Text | None = None


class VerbMethods:
    """The methods of the clients that send verbs."""

    wake_agent = of_name(Wake)
    run_job = of_name(RunJob)
    report_result = of_number(ReportResult)
    cancel_run = of_number(Cancel)
    hold_lane = of_name(HoldLane)
    release_lane = of_name(ReleaseLane)
    record_activity = of_name(NoteActivity)
    pause_agent = of_name(Pause)
    pause_job = of_name(Pause)
    pause_all = of_all(Pause)
    resume_agent = of_name(Resume)
    resume_job = of_name(Resume)
    resume_all = of_all(Resume)
    mute_agent = of_name(Mute)
    mute_job = of_name(Mute)
    unmute_agent = of_name(Unmute)
    unmute_job = of_name(Unmute)
    retry_message = of_number(Retry)
    drop_message = of_number(Drop)
    close_condition = of_all(CloseProblem)
    acknowledge_conditions = of_all(Ack)
    unacknowledge_conditions = of_all(Unack)
    ping_channels = of_all(Ping)
    reload_config = of_all(Reload)
    patch_agent_config = of_name(SetConfig)
    patch_job_config = of_name(SetConfig)
    patch_config = of_all(SetConfig)
    put_checklist = of_name(SetChecklist)


VERB_ENDPOINTS = endpoints_of(VerbMethods)
VERBS = operations_of(VERB_ENDPOINTS)

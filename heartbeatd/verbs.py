"""Lists the operations that change something. Their effects are in scheduler/engine/effects.py and scheduler/web/perform.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import ClassVar, Self

from pydantic import Field, model_validator

import heartbeatd.answers as answers
from heartbeatd.operations import (
    Answer,
    Concern,
    Count,
    HolderId,
    Method,
    Operation,
    Options,
    Permission,
    QuestionText,
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


@dataclass(frozen=True, slots=True)
class ChatButton:
    """A button below messages in chats: its name for programs, its label, and the keys that it sends.

    Buttons that different verbs share, for different kinds of subjects, have one name. `letter` stands for the button in the data
    that a chat sends: that with which its name begins, unless another button has it.
    """

    name: str
    label: str
    keys: Mapping[str, object] = field(default_factory=dict)
    own_letter: str = ""

    @property
    def letter(self) -> str:
        return self.own_letter or self.name[0]


RUN_AGAIN = ChatButton("run", "Run again")
RESUME = ChatButton("resume", "Resume", own_letter="c")


class Verb(Operation[Answer]):
    """A request that changes something.

    A field with a title, which is a sentence, is an option of the command and an input of the page. All others are for programs.
    """

    method: ClassVar[Method] = "POST"
    may: ClassVar[Permission | None] = "operate"
    concern = Concern.ALL
    section: ClassVar[str] = ""  # of the help, or the command, that lists its command; empty: it has none
    command: ClassVar[str] = ""  # the name of its command; empty: that of the class
    button: ClassVar[str] = ""  # its label on the page; empty: the page has none
    is_final: ClassVar[bool] = False  # it cannot be undone, so its button looks different
    in_chat: ClassVar[ChatButton | None] = None


class Wake(Verb[answers.WakeAccepted]):
    """Run an agent now, outside of its schedule (a wake). If the daemon is down, the agent is woken when the daemon starts
    again. If the wake must wait, the response gives the reason. Over HTTP, the alerts of Alertmanager can be sent instead
    of a text. With `urgent: false` the wake starts no run: the next run gets the text. With a time, the wake is a reminder,
    and waits until then.
    """

    section = "Act"
    may = "wake"
    tool = "wake"
    button = "Wake"
    in_chat = RUN_AGAIN

    text: Text = Field(default="", title="Text to put into the agent's prompt.")
    urgent: TrueOrFalse = True
    at: TimeOrNone = Field(default=None, title="Wake the agent at this time, at most 90 days from now.")
    in_: SpanOrNone = Field(default=None, title="Wake the agent after this time, for example 30m.")

    @model_validator(mode="after")
    def _check_one_time(self) -> Self:
        if self.at is not None and self.in_ is not None:
            raise ValueError("write either at or in")
        if not self.urgent and (self.at or self.in_):
            raise ValueError("urgent: leave it out, because a wake with a time starts a run")
        return self


class CancelWake(Verb[answers.CancelledWake]):
    """Cancel a wake that waits, such as a reminder. `heartbeatd status` lists reminders with their numbers. A wake that is in the
    prompt of a run cannot be cancelled; cancel that run.
    """

    section = "Act"
    command = "forget"
    may = "wake"
    tool = "cancel_wake"
    button = "Cancel"
    is_final = True


class RunJob(Verb[answers.WakeAccepted]):
    """Run a cron job now, in addition to its schedule. If the daemon is down, the job runs when the daemon starts again."""

    section = "cron"
    command = "run"
    button = "Run now"
    in_chat = RUN_AGAIN


class ReportResult(Verb[answers.RunNumber]):
    """Record the result of a run that ended `async`. It is a text or findings, which may be `truncated`, or an error."""

    text: Text | None = None
    findings: list[object] | None = Field(default=None, description="a list of objects with key, text, severity and resolved")
    error: Text | None = None
    truncated: TrueOrFalse = False

    @model_validator(mode="after")
    def _check_one_result(self) -> Self:
        if (self.text is None and self.findings is None) == (self.error is None):
            raise ValueError("write either text or error, as a string in quotes, or findings, as a list")
        return self


class Ask(Verb[answers.Asked]):
    """Ask a person, and wait for the answer. In a command that a run has started, the question belongs to this run. The answer is
    printed. The exit code is 0 for the first option, 3 for another one, and 4 if nobody has answered, which means no. The timeout
    of the run does not count meanwhile. The same `key` in a run is the same question. Over HTTP, `wait` is how long the response
    may wait for the answer, at most 60s.
    """

    section = "Act"
    may = "wake"

    text: QuestionText
    options: Options = Field(
        default=["yes", "no"], title="The answers to choose from, the affirmative one first.  [default: yes,no]"
    )
    timeout: SpanOrNone = Field(default=None, title="How long to wait, at most 24h.  [default: that of `ask`, 30m]")
    wait: SpanOrNone = None
    key: HolderId | None = Field(default=None, title="A name for the question, so that asking again does not send it again.")


class AnswerQuestion(Verb[answers.Asked]):
    """Answer a question of a run with one of its options. `heartbeatd status` lists the questions that wait for an answer."""

    section = "Act"
    command = "answer"
    button = "Answer"

    answer: Text


class Cancel(Verb[answers.CancelledRun]):
    """Cancel a run that is in progress, or that waits for a retry or for an asynchronous result. It is not retried. Its result
    is `abandoned`, because of `cancelled`. Wakes in its prompt are put into the prompt of the agent's next run.
    """

    section = "Act"
    button = "Cancel"
    is_final = True


class HoldLock(Verb[answers.LockHeld]):
    """Lock an agent for a time, or extend the lock. `run` is the run in progress, which the caller should wait for."""

    method = "PUT"

    id: HolderId
    for_: Span


class ReleaseLock(Verb[answers.LockReleased]):
    """Release the lock of an agent. The agent stays locked while others hold its lock."""

    method = "DELETE"

    id: HolderId


class NoteActivity(Verb[answers.RecordedActivity]):
    """Record the target that an agent has just talked with, and how much work waits for the agent."""

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


class Pause(_Ending[answers.PausedEntries]):
    """Pause an agent or a job until it is resumed, or for a given time. Runs that fall due during the pause are recorded as one
    skipped run with a count. Runs in progress continue.
    """

    section = "Act"
    button = "Pause"


class Resume(Verb[answers.ResumedEntries]):
    """Resume a paused agent or job, or all of them."""

    section = "Act"
    button = "Resume"
    in_chat = RESUME


class Mute(_Ending[answers.Muted]):
    """Suppress the messages of an agent or a job. Its runs continue. Suppressed messages are recorded, but not sent later.
    After the mute, the next run sends open problems that recipients do not know yet, and the end of those that they know.
    """

    section = "Messages"
    button = "Mute"
    in_chat = ChatButton("mute", "Mute 2h", {"for_": timedelta(hours=2)})

    until_changed: TrueOrFalse = Field(
        default=False,
        title="End it when a problem opens, gets worse or is over, or when a message has a new text.",
    )


class Unmute(Verb[answers.Unmuted]):
    """Stop suppressing the messages of an agent or a job. The next run sends open problems that recipients do not know
    yet, and the end of those that they know.
    """

    section = "Messages"
    button = "Unmute"


class Retry(Verb[answers.ChangedMessage]):
    """Send a message again now, also one that is held or was given up. It keeps its idempotency key. If the daemon is down, it
    is sent at its next start.
    """

    section = "outbox"
    button = "Send again"


class Drop(Verb[answers.ChangedMessage]):
    """Drop a message without sending it. `heartbeatd show RUN` still shows its text."""

    section = "outbox"
    button = "Drop"
    is_final = True


class CloseProblem(Verb[answers.ChangedProblem]):
    """Close an open problem without a message. If it is found again, it is opened again and reported as new."""

    section = "problems"
    command = "close"
    button = "Close"
    is_final = True


class Ack(Verb[answers.ChangedProblem]):
    """Suppress the messages about an open problem until it gets worse or is over."""

    section = "problems"
    button = "Acknowledge"
    in_chat = ChatButton("acknowledge", "Acknowledge")


class Unack(Verb[answers.ChangedProblem]):
    """Remove the acknowledgement of a problem. From then on, reminders are sent again."""

    section = "problems"
    button = "Un-acknowledge"


class Ping(Verb[answers.TestedChannels]):
    """Send a test message through one channel, or through all that need no target. The message does not go through the outbox
    and is sent only once.
    """

    section = "Messages"

    channel: Text | None = None


class Reload(Verb[answers.Reloaded]):
    """Reload the config in the running daemon. If the new config has errors, the daemon keeps the old one."""

    section = "Configure"
    may_be_refused_by_config = True

    dry_run: TrueOrFalse = Field(
        default=False,
        title="Only show what the file would change: keys, next runs, runs a week, and maximum cost of a day."
        " No daemon is needed.",
    )


class SetConfig(Verb[answers.ConfigEdited | answers.ConfigSuggestion]):
    """Change values of an agent or a job, or anywhere in the config, as a JSON merge patch. Without the permission `edit` the
    response contains the YAML to write. `hash` is that of the version to change, unless the header If-Match has it.
    """

    method = "PATCH"
    may = "read"
    may_be_refused_by_config = True

    changes: dict[str, object] = Field(description="an object with the keys to change; maps are merged, null removes a key")
    hash: Text | None = None
    dry_run: TrueOrFalse = False


class SetChecklist(Verb[answers.Checklist]):
    """Replace the checklist of an agent. `hash` is that of the version to replace, or `none` if there is no checklist yet. The
    headers If-Match and `If-None-Match: *` say the same.
    """

    method = "PUT"
    may = "edit"

    text: str = Field(description="the whole checklist as a string")
    hash: Text | None = None


class VerbMethods:
    """The methods of the clients that send verbs."""

    wake_agent = of_name(Wake, "/api/v1/agents/{name}/wake")
    cancel_wake = of_number(CancelWake, "/api/v1/wakes/{id}/cancel")
    run_job = of_name(RunJob, "/api/v1/cron/{name}/run")
    report_result = of_number(ReportResult, "/api/v1/runs/{id}/result")
    ask_person = of_number(Ask, "/api/v1/runs/{id}/ask")
    answer_question = of_number(AnswerQuestion, "/api/v1/questions/{id}/answer")
    cancel_run = of_number(Cancel, "/api/v1/runs/{id}/cancel")
    lock_agent = of_name(HoldLock, "/api/v1/agents/{name}/busy")
    unlock_agent = of_name(ReleaseLock, "/api/v1/agents/{name}/busy")
    record_activity = of_name(NoteActivity, "/api/v1/agents/{name}/activity")
    pause_agent = of_name(Pause, "/api/v1/agents/{name}/pause")
    pause_job = of_name(Pause, "/api/v1/cron/{name}/pause")
    pause_all = of_all(Pause, "/api/v1/pause")
    resume_agent = of_name(Resume, "/api/v1/agents/{name}/resume")
    resume_job = of_name(Resume, "/api/v1/cron/{name}/resume")
    resume_all = of_all(Resume, "/api/v1/resume")
    mute_agent = of_name(Mute, "/api/v1/agents/{name}/mute")
    mute_job = of_name(Mute, "/api/v1/cron/{name}/mute")
    unmute_agent = of_name(Unmute, "/api/v1/agents/{name}/unmute")
    unmute_job = of_name(Unmute, "/api/v1/cron/{name}/unmute")
    retry_message = of_number(Retry, "/api/v1/outbox/{id}/retry")
    drop_message = of_number(Drop, "/api/v1/outbox/{id}/drop")
    close_problem = of_number(CloseProblem, "/api/v1/problems/{id}/close")
    acknowledge_problem = of_number(Ack, "/api/v1/problems/{id}/ack")
    unacknowledge_problem = of_number(Unack, "/api/v1/problems/{id}/unack")
    ping_channels = of_all(Ping, "/api/v1/ping")
    reload_config = of_all(Reload, "/-/reload")
    patch_agent_config = of_name(SetConfig, "/api/v1/agents/{name}/config")
    patch_job_config = of_name(SetConfig, "/api/v1/cron/{name}/config")
    patch_config = of_all(SetConfig, "/api/v1/config")
    put_checklist = of_name(SetChecklist, "/api/v1/agents/{name}/checklist")


VERB_ENDPOINTS = endpoints_of(VerbMethods)
VERBS = operations_of(VERB_ENDPOINTS)

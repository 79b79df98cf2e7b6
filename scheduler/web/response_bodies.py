"""Defines the JSON answers of the API as pydantic models, for openapi.json, for the tests and for the client.

The daemon does not validate its answers. The client reads them with these models.
Clients must ignore keys that they do not know: a later version may add some.
"""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

Time = AwareDatetime
Day = date
EntryKind = Literal["heartbeat", "cron"]
Severity = Literal["critical", "warning", "info"]
Cursor = Annotated[str | None, Field(description="the `cursor` of the next page; null on the last page")]


class ResponseBody(BaseModel):
    """A JSON object with these keys."""

    model_config = ConfigDict(strict=True, defer_build=True)


class ErrorDetail(ResponseBody):
    """`code` is for programs, `message` says what to do instead."""

    code: str
    message: str


class ErrorBody(ResponseBody):
    """A rejected request."""

    error: ErrorDetail


class ConfigComplaint(ResponseBody):
    """An error or a warning of the config, with its position. `remedies` are changes that a program can make."""

    line: int
    column: int
    path: str
    message: str
    remedies: list[Any] = []


class ConfigErrors(ResponseBody):
    """A config that was rejected."""

    ok: Literal[False]
    errors: list[ConfigComplaint]
    warnings: list[ConfigComplaint]


class TokenCounts(ResponseBody):
    input: int
    output: int
    cache_read: int
    cache_write: int


class LastRun(ResponseBody):
    """The newest run record: a run, or skipped slots."""

    id: int
    slot: Time
    slots: int
    trigger: str
    state: str
    outcome: str | None
    reason: str | None
    suppression: str | None
    started_at: Time | None
    finished_at: Time | None
    error: str | None
    delivery: str
    worker: str | None


class Failing(ResponseBody):
    """The present failures in a row. `held_back_for` names the agents that are to report them."""

    times: int
    reason: str | None
    since: Time | None
    told_at: Time | None
    held_back_for: list[str] = []


class Activity(ResponseBody):
    """What a gateway last reported about an agent."""

    queue: int | None
    pending_approvals: int | None
    at: Time


class LaneHolder(ResponseBody):
    id: str
    until: Time


class Mute(ResponseBody):
    since: Time
    by: str
    until: Time | None
    until_changed: bool
    held: int


class ConditionCounts(ResponseBody):
    open: int
    worst: Severity | None


class UsedLimit(ResponseBody):
    """How much of a limit is used today."""

    used: float
    of: float


class BudgetUsage(ResponseBody):
    """Only the limits that are set."""

    day: Day
    ends_at: Time | None
    usd_per_day: UsedLimit | None = None
    tokens_per_day: UsedLimit | None = None
    runs_per_day: UsedLimit | None = None


class EntryStatus(ResponseBody):
    """The state of an agent or a job."""

    kind: EntryKind
    name: str
    state: Literal["active", "paused", "disabled", "done", "removed"]
    paused_until: Time | None
    paused_at: Time | None
    paused_by: str | None
    done_at: Time | None
    next_slot: Time | None
    next_due: Time | None
    last_run: LastRun | None
    last_success_at: Time | None
    consecutive_failures: int
    consecutive_quiet: int
    alerting: bool
    failing: Failing | None
    wakes_waiting: int
    activity: Activity | None
    busy: list[LaneHolder]
    muted: Mute | None
    conditions: ConditionCounts
    budget: BudgetUsage | None


class KnownTarget(ResponseBody):
    """A conversation of an agent."""

    channel: str
    target: str
    title: str | None
    at: Time


class AgentStatus(EntryStatus):
    """The state of an agent, and the targets that it has talked with, the last one first."""

    targets: list[KnownTarget]


class AgentList(ResponseBody):
    agents: list[EntryStatus]


class JobList(ResponseBody):
    cron: list[EntryStatus]


class DaemonBoot(ResponseBody):
    pid: int
    version: str
    tzdata: str
    started_at: Time
    last_tick_at: Time | None
    ended_at: Time | None


class Downtime(ResponseBody):
    since: Time
    until: Time | None
    clean: bool


class EntryName(ResponseBody):
    kind: EntryKind
    name: str


class FrozenTime(ResponseBody):
    """A time in which the process was frozen or the machine was suspended."""

    since: Time
    until: Time
    cause: str | None


class Override(ResponseBody):
    """An environment variable that sets a value of the config."""

    variable: str
    key: str
    in_file: str
    value: str


class SpendToday(ResponseBody):
    """The cost of all runs that ended today."""

    since: Time
    until: Time
    timezone: str
    runs: int
    cost_usd: float | None
    runs_without_price: int
    untold_usd: float


class BudgetShare(ResponseBody):
    kind: EntryKind
    name: str
    usd: float
    tokens: int
    runs: int


class BudgetStatus(ResponseBody):
    """A budget of the config. That of all entries has null as kind and name. `limits` has only those that are set."""

    kind: EntryKind | None
    name: str | None
    day: Day
    timezone: str
    ends_at: Time
    limits: dict[str, UsedLimit]
    counts: list[EntryName]
    shares: list[BudgetShare]


class RefusedConfig(ResponseBody):
    at: Time | None
    by: str | None
    problems: list[str]


class ReloadEvent(ResponseBody):
    at: Time
    result: str
    by: str
    lines: list[str]
    problems: list[str]


class ReloadStatus(ResponseBody):
    mode: str | None
    last: ReloadEvent | None


class OutageStatus(ResponseBody):
    provider: str
    model: str | None
    reason: str
    error: str | None
    since: Time
    failing: bool
    flapping: bool
    told_at: Time | None


class BreakerStatus(ResponseBody):
    provider: str
    model: str | None
    reason: str
    error: str | None
    opened_at: Time
    next_probe_at: Time | None


class QueueCounts(ResponseBody):
    entries: int
    active: int
    paused: int
    disabled: int
    done: int
    due: int
    running: int
    retrying: int


class WaitingWakes(ResponseBody):
    name: str
    waiting: int
    waits_for: str | None = None
    until: Time | None = None


class ChannelBacklog(ResponseBody):
    channel: str
    pending: int
    dead: int
    oldest_at: Time | None


class ShardStatus(ResponseBody):
    """One of several daemons that share the config. `own` is true for the one that answers.

    `state` is running, stopped, silent (it neither runs nor has stopped in an orderly way), new or unknown. It is unknown, and
    `failing` and `last_tick_at` are null, if its database cannot be read from here.
    """

    index: int
    own: bool
    address: str | None
    agents: int
    jobs: int
    state: str
    last_tick_at: Time | None
    failing: int | None


class Status(ResponseBody):
    """The whole status. `daemon` is the latest boot. `shards` is empty if one daemon runs all agents and
    jobs, and for a token that is limited to some agents."""

    daemon: DaemonBoot | None
    downs: list[Downtime]
    frozen: list[FrozenTime]
    config_hash: str | None
    config_refused: RefusedConfig | None
    overrides: list[Override]
    reload: ReloadStatus
    deadman_problem: str | None
    workers_problem: str | None
    outages: list[OutageStatus]
    flapping: list[EntryName]
    breakers: list[BreakerStatus]
    spend: SpendToday
    budgets: list[BudgetStatus]
    budget: BudgetUsage | None
    entries: list[EntryStatus]
    queue: QueueCounts
    wakes: list[WaitingWakes]
    outbox: list[ChannelBacklog]
    reserve_bytes: int
    shards: list[ShardStatus]


class ModelUsage(ResponseBody):
    model: str | None
    calls: int
    tokens: TokenCounts
    cost_usd: float | None


class ChargedAmounts(ResponseBody):
    usd: float
    tokens: int | None


class PromptPartSize(ResponseBody):
    name: str
    chars: int


class RunFinding(ResponseBody):
    """What happened to a finding of the answer, or of a condition that it does not mention."""

    key: str
    effect: str
    severity: Severity | None = None
    text: str | None = None
    resolved: bool | None = None


class PrecheckRecord(ResponseBody):
    exit_code: int | None
    output: str
    error: str | None


class ToolCallRecord(ResponseBody):
    """A tool that an agent used. The last three keys are only there if the daemon itself called the tool for a model."""

    name: str
    count: int
    duration_ms: int | None
    arguments: str = ""
    result_bytes: int = 0
    error: str = ""


class ChannelDelivery(ResponseBody):
    channel: str
    state: str
    target: str | None = None
    error: str | None = None


class RunDelivery(ResponseBody):
    state: str
    targets: list[ChannelDelivery]


class HeldNotice(ResponseBody):
    agents: list[str]
    until: Time | None
    note: str | None


class RunNotice(ResponseBody):
    notice: str
    channel: str
    state: str
    text: str
    held_back: HeldNotice | None = None


class RunRecord(ResponseBody):
    """A run, or consecutive slots that were skipped for one reason."""

    id: int
    kind: EntryKind
    name: str
    slot: Time
    slots: int
    trigger: str
    woken_by: str | None
    outcome: str | None
    state: Literal["running", "waiting", "closed"]
    reason: str | None
    suppression: str | None
    attempt: int
    not_before: Time | None
    started_at: Time | None
    finished_at: Time | None
    model_requested: str | None
    model_used: str | None
    request_id: str | None
    tokens: TokenCounts
    cost_usd: float | None
    models: list[ModelUsage]
    charged: ChargedAmounts | None
    prompt_parts: list[PromptPartSize]
    left_out: list[str]
    findings: list[RunFinding]
    precheck: PrecheckRecord | None
    exit_code: int | None
    tool_calls: list[ToolCallRecord]
    log: str | None
    text: str | None
    truncated: bool
    result_due_at: Time | None
    error: str | None
    delivery: RunDelivery
    notices: list[RunNotice]
    config_hash: str | None
    worker: str | None


class RunList(ResponseBody):
    runs: list[RunRecord]
    next: Cursor


class RunWake(ResponseBody):
    """A wake that was in the prompt of a run, with its whole text."""

    id: int
    source: str
    sender: str
    count: int
    outcome: str | None
    state: str
    created_at: Time
    text: str


class RunWithWakes(RunRecord):
    wakes: list[RunWake] = []


class WakeStatus(ResponseBody):
    """A wake, what it waits for, and the last run that took it."""

    id: int
    kind: EntryKind
    name: str
    source: str
    state: str
    count: int
    run: RunRecord | None
    waits_for: str | None
    until: Time | None


class QueuedMessage(ResponseBody):
    """A message that is neither delivered nor dropped. `doubted`: it may have arrived."""

    id: int
    run: int | None
    kind: EntryKind
    name: str
    channel: str
    state: str
    part: int
    parts: int
    attempts: int
    created_at: Time
    next_try_at: Time | None
    doubted: bool
    error: str | None
    notice: str | None
    begins: str
    held_back_for: list[str] = []


class MessageList(ResponseBody):
    outbox: list[QueuedMessage]
    next: Cursor


class ConditionReport(ResponseBody):
    channel: str
    target: str | None = None
    kind: str
    severity: Severity
    reported_at: Time


class Condition(ResponseBody):
    """Something that an agent has reported under a key."""

    name: str
    key: str
    severity: Severity
    state: Literal["open", "closed"]
    text: str
    opened_at: Time
    last_seen_at: Time
    closed_at: Time | None
    ended_by: str | None
    missed: int
    acknowledged_at: Time | None
    acknowledged_by: str | None
    openings: list[Time]
    first_run: int | None
    last_run: int | None
    reports: list[ConditionReport]


class ConditionList(ResponseBody):
    conditions: list[Condition]


class PlannedDay(ResponseBody):
    """The runs of an entry on one local day. `firings` is null if they are only counted."""

    day: Day
    count: int
    first: Time
    last: Time
    firings: list[Time] | None


class WokenRuns(ResponseBody):
    at_most: int
    by: list[str]


class PlannedEntry(ResponseBody):
    kind: EntryKind
    name: str
    zone: str
    state: str
    paused_until: Time | None
    source: str
    total: int
    days: list[PlannedDay]
    wakes: WokenRuns | None


class DayTotals(ResponseBody):
    day: Day
    beats: int
    runs: int


class ClockChange(ResponseBody):
    zone: str
    at: Time
    before: str
    after: str


class PlanForecast(ResponseBody):
    """What will run in a time."""

    from_: Time = Field(alias="from")
    until: Time
    entries: list[PlannedEntry]
    days: list[DayTotals]
    wakes_known: bool
    clock_changes: list[ClockChange]


class Explanation(ResponseBody):
    """What every explanation begins with. `pace` is the schedule."""

    kind: EntryKind
    name: str
    zone: str
    asked_at: Time
    state: str
    done_at: Time | None
    paused_until: Time | None
    paused_at: Time | None
    paused_by: str | None
    pace: Any


class ExplainedCause(ResponseBody):
    cause: str
    detail: str | None
    says: str


class CountedCause(ExplainedCause):
    count: int


class ExplainedSlot(ExplainedCause):
    slot: Time | None
    run: RunRecord | None


class DaemonStateThen(ResponseBody):
    """Whether the daemon was up at a time. Only the keys of that state."""

    state: Literal["up", "down", "never"]
    since: Time | None = None
    until: Time | None = None
    clean: bool | None = None
    pid: int | None = None
    version: str | None = None


class AnswerSent(ResponseBody):
    sent: bool
    says: str


class ConditionClosing(ResponseBody):
    answers: int | None
    needs_other_precheck: bool
    needs_wake_by: list[str]
    says: str


class ExplainedCondition(Condition):
    closes: ConditionClosing


class PreconditionResult(ResponseBody):
    gate: str
    stands_in_the_way: bool | None


class Preconditions(ResponseBody):
    would_run: bool
    reason: str | None
    detail: str | None
    complete: bool
    gates: list[PreconditionResult]


class NextSlot(ResponseBody):
    slot: Time | None
    due_at: Time | None


class HeldJobNotice(ResponseBody):
    run: int | None
    notice: str
    channel: str
    agents: list[str]
    until: Time | None


class ReportedCondition(ResponseBody):
    agent: str
    key: str
    since: Time


class WakeWaiting(ResponseBody):
    waits_for: str
    until: Time | None
    says: str


class RejectedWakes(ResponseBody):
    agent: str
    source: str
    sender: str
    count: int
    reason: str
    first_at: Time
    at: Time
    says: str


class MessagesOfEntry(ResponseBody):
    channel: str
    state: str
    notice: bool
    count: int
    error: str | None
    oldest: Time
    run: int | None


class EntryChange(ResponseBody):
    at: Time
    by: str
    result: str
    what: str
    key: str | None
    old: str | None
    new: str | None
    says: str


class ExplanationNow(Explanation):
    """Why the last slot ran or not, and whether each precondition allows a run now."""

    last_slot: ExplainedSlot | None
    last_run: RunRecord | None
    answer: AnswerSent | None
    conditions: list[ExplainedCondition]
    overrides: list[Override]
    skipped_since: list[CountedCause]
    now: Preconditions
    next: NextSlot
    wakes_waiting: int
    checklist_remarks: list[str]
    held_back: list[HeldJobNotice]
    reported_as: list[ReportedCondition]
    wakes: WakeWaiting | None
    wakes_rejected: list[RejectedWakes]
    messages: list[MessagesOfEntry]
    changes: list[EntryChange]
    commands: list[str]
    texts_told: int
    daemon: DaemonStateThen


class ExplanationAt(Explanation):
    """What happened, or will happen, to the latest slot at or before a time."""

    at: Time
    slot: ExplainedSlot | None
    following: ExplainedSlot | None
    daemon: DaemonStateThen


class SlotStretch(ResponseBody):
    """Consecutive slots with the same results."""

    from_: Time = Field(alias="from")
    to: Time
    slots: int
    causes: list[CountedCause]
    run: int | None
    runs: list[int] | None


class ExplainedEvent(ResponseBody):
    at: Time
    what: str
    says: str


class ExplanationOn(Explanation):
    """What happened to every slot of a local day."""

    day: Day | None
    from_: Time = Field(alias="from")
    until: Time
    slots: int
    stretches: list[SlotStretch]
    totals: list[CountedCause]
    beside: list[CountedCause]
    events: list[ExplainedEvent]


class StatusCounts(ResponseBody):
    """The number of entries by the status of their day."""

    undelivered: int
    failed: int
    silent: int
    unusual: int
    quiet: int
    normal: int


class PresentProblem(ResponseBody):
    """Something that is wrong with the daemon or its config now."""

    what: str
    says: str


class EntryOverview(ResponseBody):
    """How the day of an agent or a job went, and why.

    `expected`: its settings lead to this, and nothing went wrong. `run` is the run that shows it, `command` the one to type next.
    """

    kind: EntryKind
    name: str
    status: Literal["undelivered", "failed", "silent", "unusual", "quiet", "normal"]
    cause: str
    says: str
    command: str
    expected: bool
    run: int | None
    ran: int
    skipped: int
    delivered: int
    undelivered: int


class Overview(ResponseBody):
    """What happened to all entries in a period, the unusual ones first. `changes` are the reloads of the period."""

    from_: Time = Field(alias="from")
    until: Time
    asked_at: Time
    zone: str
    counts: StatusCounts
    problems: list[PresentProblem]
    entries: list[EntryOverview]
    overrides: list[Override]
    changes: list[ReloadEvent]
    events: list[ExplainedEvent]


class Checklist(ResponseBody):
    """`file` and `hash` are null if the checklist is text in the config."""

    file: str | None
    text: str
    hash: str | None
    has_work: bool


class CallerToken(ResponseBody):
    """The caller's token: its name, permissions and agents (null: all)."""

    name: str
    may: list[str]
    agents: list[str] | None


class ConfigFile(ResponseBody):
    """The hash of the config file, and what it declares, with secrets masked."""

    path: str
    hash: str
    declared: dict[str, Any]


class ConfigValue(ResponseBody):
    """A value in effect, and where it is set."""

    key: str
    value: str
    origin: str


class EntryConfig(ResponseBody):
    """The keys of an agent or a job in the file, and all values in effect. `hash` is that of the file."""

    name: str
    hash: str
    declared: Any
    values: list[ConfigValue]


class ConfigEdited(ResponseBody):
    """The changed lines of the file (`diff`), and what the reload has changed."""

    written: bool
    hash: str
    diff: list[str]
    lines: list[str]
    warnings: list[str]


class ConfigSuggestion(ResponseBody):
    """The YAML for a person to write, because the caller may not write it."""

    written: Literal[False]
    reason: str
    yaml: str


class WakeAccepted(ResponseBody):
    """The number of the wake, and what it waits for if it must wait."""

    wake: int
    waits_for: str | None = None
    until: Time | None = None


class WakeNumber(ResponseBody):
    wake: int


class RunNumber(ResponseBody):
    run: int


class CancelledRun(ResponseBody):
    """`ended` is false for a run in progress: it ends within seconds."""

    run: int
    ended: bool


class LaneHeld(ResponseBody):
    """`run` is the run in progress, which the caller should wait for."""

    id: str
    until: Time
    run: int | None


class LaneReleased(ResponseBody):
    id: str


class RecordedActivity(ResponseBody):
    last: KnownTarget | None
    queue: int | None
    pending_approvals: int | None


class PausedEntries(ResponseBody):
    paused: list[str]


class ResumedEntries(ResponseBody):
    resumed: list[str]


class Muted(ResponseBody):
    muted_until: Time | None
    until_changed: bool


class Unmuted(ResponseBody):
    was_muted: bool
    held: int


class Reloaded(ResponseBody):
    """What a reload has changed, or would change."""

    added: list[str]
    removed: list[str]
    changed: dict[str, list[str]]
    unchanged: int
    lines: list[str]
    warnings: list[str]


class ChangedMessage(ResponseBody):
    message: int
    channel: str


class ClosedCondition(ResponseBody):
    agent: str
    key: str


class AcknowledgedConditions(ResponseBody):
    agent: str
    keys: list[str]


class TestedChannel(ResponseBody):
    channel: str
    state: str
    error: str | None


class TestedChannels(ResponseBody):
    channels: list[TestedChannel]

"""Defines the JSON answers of the API as pydantic models, for openapi.json, for the tests and for the client.

The daemon, its page and its commands make their answers with these models, and the client reads them. What only commands and the
page show, such as a report, is defined where it is made.
Clients must ignore keys that they do not know: a later version may add some.

The base class of a model says to whom its fields belong. `access.cut` removes all others for a token that is limited to some
agents. A field without any mark is removed, so a forgotten mark hides a field and never shows it.
"""

from collections.abc import Callable
from datetime import date, datetime
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, PlainSerializer


def time_as_json(instant: datetime) -> str:
    """UTC with Z, and milliseconds only if there are any."""
    return instant.replace(tzinfo=None).isoformat(timespec="milliseconds" if instant.microsecond else "seconds") + "Z"


Time = Annotated[AwareDatetime, PlainSerializer(time_as_json, when_used="json")]
Day = date
EntryKind = Literal["heartbeat", "cron"]
Severity = Literal["critical", "warning", "info"]
Cursor = Annotated[str | None, Field(description="the `cursor` of the next page; null on the last page")]


SHARED: Final = "shared"  # the mark of a field that every token may see
Value = TypeVar("Value")
Shared = Annotated[Value, SHARED]


class ResponseBody(BaseModel):
    """A JSON object with these keys. A limited token sees only the fields that are `Shared`."""

    model_config = ConfigDict(
        strict=True,
        defer_build=True,
        alias_generator=lambda name: name.rstrip("_"),  # `from` is a word of Python
        validate_by_name=True,
        validate_by_alias=True,
    )

    def as_data(self) -> dict[str, Any]:
        """As JSON shows it: only the keys that were set."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True, warnings=False)


class SharedBody(ResponseBody):
    """An object that every token may see."""


class EntryPart(ResponseBody):
    """A part of the object around it, or the answer to a request for one agent or job: seen by those who may see that."""


class EntryBody(ResponseBody):
    """What belongs to one agent or job: seen by those who may access it. Without a name it concerns all, as a `ResponseBody`."""

    named_by: ClassVar[str] = "name"  # the field with the name; without a field `kind` it is that of an agent


class EntryName(EntryBody):
    """An agent or a job."""

    kind: EntryKind
    name: str


class ErrorDetail(ResponseBody):
    """`code` is for programs, `message` says what to do instead."""

    code: str
    message: str


class ErrorBody(ResponseBody):
    """A rejected request."""

    error: ErrorDetail


class ConfigComplaint(ResponseBody):
    """An error or a warning of the config, with its position."""

    line: int
    column: int
    path: str
    message: str


class ConfigErrors(ResponseBody):
    """A config that was rejected."""

    ok: Literal[False]
    errors: list[ConfigComplaint]
    warnings: list[ConfigComplaint]


class TokenCounts(EntryPart):
    input: int
    output: int
    cache_read: int
    cache_write: int


class RunSummary(ResponseBody):
    """What is known of each run, or of consecutive planned times that were skipped for one reason.

    `why` is why it was skipped or failed, or else why nothing was sent.
    """

    id: int
    planned_at: Time
    planned_runs: int
    trigger: str
    result: str | None
    why: str | None
    started_at: Time | None
    finished_at: Time | None
    error: str | None
    worker: str | None


class LastRun(RunSummary, EntryPart):
    """The newest run record."""

    state: str
    delivery: str


class UndeliveredMessages(EntryPart):
    """Messages that should have reached their recipients by now. `says` is the same in words."""

    channel: str
    state: str
    count: int
    run: int
    since: Time
    says: str


class Failing(EntryPart):
    """The present failures in a row. `held_back_for` names the agents that are to report them."""

    times: int
    why: str | None
    since: Time | None
    told_at: Time | None
    held_back_for: list[str] = []


class Activity(EntryPart):
    """What a gateway last reported about an agent."""

    queue: int | None
    pending_approvals: int | None
    at: Time


class LockHolder(EntryPart):
    id: str
    until: Time


class ActiveMute(EntryPart):
    """Since when an entry is muted, by whom, until when (null: until it is unmuted), and how many runs that has affected."""

    since: Time
    by: str
    until: Time | None
    until_changed: bool
    held: int
    says: str


class ProblemCounts(EntryPart):
    """How many problems are open, how many of them an agent reports, and their highest severity."""

    open: int
    reported: int
    worst: Severity | None


class UsedLimit(EntryPart):
    """How much of a limit is used today, or in this month."""

    used: int | float
    of: int | float


class BudgetUsage(EntryPart):
    """Only the limits that are set."""

    day: Day
    ends_at: Time | None
    usd_per_day: UsedLimit | None = None
    tokens_per_day: UsedLimit | None = None
    runs_per_day: UsedLimit | None = None
    usd_per_month: UsedLimit | None = None


class EntryState(EntryName):
    """Whether an agent or a job may run. `says` is the same in words."""

    state: Literal["active", "paused", "disabled", "done", "removed"]
    says: str
    paused_until: Time | None
    paused_at: Time | None
    paused_by: str | None
    done_at: Time | None


class EntryStatus(EntryState):
    """The state of an agent or a job, its next and last run, and what is wrong with it."""

    next_planned_at: Time | None
    next_due: Time | None
    last_run: LastRun | None
    last_success_at: Time | None
    consecutive_failures: int
    consecutive_quiet: int
    alerting: bool
    failing: Failing | None
    wakes_waiting: int
    undelivered: UndeliveredMessages | None
    activity: Activity | None
    busy: list[LockHolder]
    muted: ActiveMute | None
    problems: ProblemCounts
    budget: BudgetUsage | None


class KnownTarget(EntryPart):
    """A conversation of an agent."""

    channel: str
    target: str
    title: str | None
    at: Time


class Reminder(EntryName):
    """A wake of an agent at a time that has not come. `wake` is its number, and `by` is who set it: agent, token or person."""

    wake: int
    at: Time
    by: str
    text: str


class AgentStatus(EntryStatus):
    """The state of an agent, its reminders, and the targets that it has talked with, the last one first."""

    targets: list[KnownTarget]
    reminders: list[Reminder]


class AgentList(ResponseBody):
    agents: Shared[list[EntryStatus]]


class JobList(ResponseBody):
    cron: Shared[list[EntryStatus]]


class DaemonBoot(SharedBody):
    pid: int
    version: str
    tzdata: str
    started_at: Time
    last_tick_at: Time | None
    ended_at: Time | None


class Leader(SharedBody):
    """The daemon that leads, if the database is on a server.

    `lag` is for how many seconds its lease has not been renewed. `former_host` is the host from which it has taken over.
    """

    host: str
    epoch: int
    since: Time | None
    lag: float
    former_host: str | None


class Downtime(SharedBody):
    """A time in which no daemon ran. `clean`: the daemon before it was stopped in order."""

    since: Time
    until: Time | None
    clean: bool


class FrozenTime(SharedBody):
    """A time in which the process was frozen or the machine was suspended."""

    since: Time
    until: Time
    cause: str | None


class Override(EntryPart):
    """An environment variable that sets a value of the config. `says` is the same in words."""

    variable: str
    key: str
    in_file: str
    value: str
    says: str


class RunCosts(ResponseBody):
    """Runs and their cost, null if none is known. `untold_usd` is charged for usage that was not reported."""

    runs: int
    cost_usd: float | None
    runs_without_price: int
    untold_usd: float


class SpendToday(RunCosts):
    """The cost of all runs that ended today."""

    since: Time
    until: Time
    timezone: str


class BudgetShare(EntryName):
    usd: float
    tokens: int
    runs: int


class BudgetStatus(EntryBody):
    """A budget of the config. That of all entries has null as kind and name. `limits` has only those that are set.

    `untold_usd` is the part of today's usage that is reserved for runs whose cost is not known, or not known yet.
    A limited token gets null. `ends_at` is the end of the day, `month_ends_at` that of the month.
    """

    kind: Shared[EntryKind | None]
    name: Shared[str | None]
    day: Shared[Day]
    timezone: Shared[str]
    ends_at: Shared[Time]
    month_ends_at: Shared[Time]
    limits: dict[str, UsedLimit]
    untold_usd: float | None
    counts: Shared[list[EntryName]]
    shares: Shared[list[BudgetShare]]


class ReloadEvent(ResponseBody):
    """A reload, a rejected reload, or a start with another config. `says` is what it was, and by whom."""

    at: Time
    says: str
    result: str
    by: str
    lines: list[str]
    problems: list[str]


class ReloadStatus(ResponseBody):
    mode: Shared[str | None]
    last: ReloadEvent | None


class BreakerStatus(ResponseBody):
    provider: Shared[str]
    model: Shared[str | None]
    why: Shared[str]
    error: str | None
    opened_at: Shared[Time]
    next_probe_at: Shared[Time | None]


class QueueCounts(ResponseBody):
    entries: int
    active: int
    paused: int
    disabled: int
    done: int
    due: int
    running: int
    retrying: int


class WaitingWakes(EntryName):
    """The waiting wakes of an agent or a job, and what they wait for. `says` is the same in words."""

    waiting: int
    waits_for: str | None
    until: Time | None
    says: str


class ChannelBacklog(ResponseBody):
    channel: str
    pending: int
    dead: int
    oldest_at: Time | None


class HeldMessages(ResponseBody):
    """How many messages of a channel wait for the hours of their recipients, or for a time that a person asked for; the next one
    until `next_at`.
    """

    channel: str
    count: int
    next_at: Time


class ProblemNotice(EntryPart):
    """What one recipient was last sent about a problem. `delivered_at` is null unless it has arrived."""

    channel: str
    target: str | None = None
    kind: Literal["open", "unstable", "over"]
    severity: Severity
    sent_at: Time
    delivered_at: Time | None
    says: str


class Problem(EntryBody):
    """Something that is wrong. `reported`: an agent says so, and the daemon does not observe it itself.

    `kind` and `name` are those of an agent or a job. `run` is the last run that reported it.
    A problem that is `covered` is the consequence of the `cause`, of which people are told instead. One that is only `seen` was
    not found often enough to be reported. `affects` are the agents and jobs that fail because of it. A limited token sees the
    problems of its own agents, and of others those that affect them.
    """

    number: Shared[str]
    subject: Shared[str]
    kind: Shared[EntryKind | None]
    name: Shared[str | None]
    key: Shared[str]
    reported: Shared[bool]
    severity: Shared[Severity]
    text: str | None
    state: Shared[Literal["open", "covered", "seen", "over"]]
    since: Shared[Time]
    last_seen: Shared[Time]
    over: Shared[Time | None]
    ended_by: str | None
    unstable: Shared[bool]
    cause: Shared[str | None]
    affects: Shared[list[EntryName]]
    acknowledged_at: Time | None
    acknowledged_by: str | None
    run: int | None
    notices: list[ProblemNotice]

    def sent(self, format_time: Callable[[datetime], str]) -> list[str]:
        """What became of the last message to each recipient, or why nothing was sent. Empty if the token may not see that."""
        if self.cause:
            return [f"not sent because {self.cause} is the cause"]
        if self.state == "seen":
            return ["not sent because it was not found often enough"]
        if self.state == "open" and not self.notices and self.text is not None:
            return ["not sent yet"]
        return [f"{each.says} {format_time(each.delivered_at)}" if each.delivered_at else each.says for each in self.notices]

    def course(self, format_time: Callable[[datetime], str]) -> str:
        """Since when it lasts, what was sent about it, and who has acknowledged it."""
        states = [f"since {format_time(self.since)}", "unstable" if self.unstable else "", *self.sent(format_time)]
        return ", ".join(filter(None, (*states, self.acknowledged(format_time))))

    def acknowledged(self, format_time: Callable[[datetime], str]) -> str:
        """Who has acknowledged it, and when; empty if nobody has."""
        return f"acknowledged {format_time(self.acknowledged_at)} by {self.acknowledged_by}" if self.acknowledged_at else ""


class ProblemList(ResponseBody):
    problems: Shared[list[Problem]]


class Verdict(SharedBody):
    """What is wrong now: how many agents and jobs fail, or are stopped although they should run; how many channels take no
    messages, how many other problems are open that nobody has acknowledged, and how many messages were given up.

    `says` is the same in one line. A limited token gets the figures of its own agents.
    """

    level: Literal["ok", "warn", "bad"]
    failing: int
    stopped: int
    dead_channels: int
    problems: int
    given_up: int
    last_run_at: Time | None
    says: str


class PersonQuestion(EntryName):
    """A question of a run to people. `state` is open, answered or ended, and `why` says why it has ended without an answer.

    The run has waited for people since `waits_since`, and an answer is awaited until `until`. `people` may answer in chats, or
    those of the channel if there are none.
    """

    id: int
    run: int
    key: str
    text: str
    options: list[str]
    people: list[str]
    asked_by: str
    asked_at: Time
    waits_since: Time
    until: Time
    state: Literal["open", "answered", "ended"]
    answer: str | None
    answered_by: str | None
    why: str | None
    ended_at: Time | None

    @property
    def course(self) -> str:
        """How it has ended, for people."""
        if self.state == "open":
            return "waits for an answer"
        return f"no answer: {self.why}" if self.answer is None else f"{self.answer}, by {self.answered_by}"


class Status(ResponseBody):
    """The whole status. `daemon` is the latest boot. `problems` are those that `GET /api/v1/problems` lists."""

    verdict: Shared[Verdict | None] = None
    daemon: Shared[DaemonBoot | None]
    leader: Shared[Leader | None]
    problems: Shared[list[Problem]]
    downs: Shared[list[Downtime]]
    frozen: Shared[list[FrozenTime]]
    config_hash: Shared[str | None]
    overrides: list[Override]
    reload: Shared[ReloadStatus]
    deadman_problem: str | None
    breakers: Shared[list[BreakerStatus]]
    spend: SpendToday | None
    budgets: Shared[list[BudgetStatus]]
    budget: BudgetUsage | None
    entries: Shared[list[EntryStatus]]
    queue: QueueCounts | None
    wakes: Shared[list[WaitingWakes]]
    reminders: Shared[list[Reminder]]
    questions: Shared[list[PersonQuestion]]
    outbox: list[ChannelBacklog]
    held: list[HeldMessages]
    reserve_bytes: Shared[int]


class ModelUsage(EntryPart):
    model: str | None
    calls: int
    tokens: TokenCounts
    cost_usd: float | None


class ChargedAmounts(EntryPart):
    usd: float
    tokens: int | None


class PromptPartSize(EntryPart):
    """About how many tokens a part of the prompt has: three ASCII characters, or one other character, count as one."""

    name: str
    tokens: int


class RunFinding(EntryPart):
    """What happened to a finding of the answer, or of a problem that it does not mention."""

    key: str
    effect: str
    severity: Severity | None = None
    text: str | None = None
    resolved: bool | None = None


class PrecheckRecord(EntryPart):
    exit_code: int | None
    output: str
    error: str | None


class ToolCallRecord(EntryPart):
    """A tool that an agent used. The last three keys are only there if the daemon itself called the tool for a model."""

    name: str
    count: int
    duration_ms: int | None
    arguments: str = ""
    result_bytes: int = 0
    error: str = ""


class ChannelDelivery(EntryPart):
    channel: str
    state: str
    tries: int
    target: str | None = None
    error: str | None = None
    says: str


class RunDelivery(EntryPart):
    state: str
    targets: list[ChannelDelivery]


class HeldNotice(ResponseBody):
    agents: list[str]
    until: Time | None
    note: str | None


class RunNotice(EntryPart):
    notice: str
    channel: str
    state: str
    text: str
    held_back: HeldNotice | None = None


class RunRecord(RunSummary, EntryName):
    """A run, or consecutive planned times that were skipped for one reason. `tries` counts the one in progress too."""

    woken_by: str | None
    state: Literal["running", "waiting", "closed"]
    tries: int
    not_before: Time | None
    model_requested: str | None
    model_used: str | None
    fallback: str | None
    fallback_why: str | None
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
    delivery: RunDelivery
    repeats: list[int]
    notices: list[RunNotice]
    questions: list[PersonQuestion] = []
    config_hash: str | None


class RunList(ResponseBody):
    runs: Shared[list[RunRecord]]
    next: Shared[Cursor]


class RunWake(EntryPart):
    """A wake that is or was in the prompt of a run, or waits for a run, with its whole text."""

    id: int
    source: str
    sender: str
    count: int
    result: str | None
    state: str
    created_at: Time
    text: str

    @property
    def title(self) -> str:
        """What the command line and the page call it."""
        times = f", {self.count} times" if self.count > 1 else ""
        result = f", result {self.result}" if self.result else ""
        return f"wake {self.id} by {self.source} {self.sender}".rstrip() + times + result


class RunWithWakes(RunRecord):
    wakes: list[RunWake] = []


class WakeStatus(EntryName):
    """A wake, what it waits for, and the last run that took it."""

    id: int
    source: str
    state: str
    count: int
    run: RunRecord | None
    waits_for: str | None
    until: Time | None


class SaidMessage(EntryPart):
    """A message that was delivered. One that joins messages of a time has no run."""

    id: int
    run: int | None
    at: Time
    channel: str
    recipient: str
    text: str


class Said(EntryPart):
    said: list[SaidMessage]


class QueuedMessage(EntryBody):
    """A message that is neither delivered nor dropped. `doubted`: it may have arrived. One about the daemon itself has no run."""

    kind: EntryKind | Literal["daemon"]
    name: str
    id: int
    run: int | None
    channel: str
    state: str
    part: int
    parts: int
    tries: int
    created_at: Time
    next_try_at: Time | None
    doubted: bool
    error: str | None
    notice: str | None
    begins: str
    held_back_for: list[str] = []


class MessageWithText(QueuedMessage):
    title: str
    text: str
    recipient: str
    key: str
    trigger: str
    planned_at: Time
    finished_at: Time | None
    hold_note: str | None


class MessageList(ResponseBody):
    outbox: Shared[list[QueuedMessage]]
    next: Shared[Cursor]


class PlannedDay(EntryPart):
    """The runs of an entry on one local day. `firings` is null if they are only counted."""

    day: Day
    count: int
    first: Time
    last: Time
    firings: list[Time] | None


class WokenRuns(ResponseBody):
    at_most: Shared[int]
    by: list[str]


class PlannedEntry(EntryName):
    zone: str
    state: str
    paused_until: Time | None
    source: str
    total: int
    days: list[PlannedDay]
    wakes: WokenRuns | None
    reminders: list[Reminder]


class DayTotals(SharedBody):
    day: Day
    beats: int
    runs: int


class ClockChange(SharedBody):
    zone: str
    at: Time
    before: str
    after: str


class PlanForecast(ResponseBody):
    """What will run in a time."""

    from_: Shared[Time]
    until: Shared[Time]
    entries: Shared[list[PlannedEntry]]
    days: Shared[list[DayTotals]]
    wakes_known: Shared[bool]
    clock_changes: Shared[list[ClockChange]]


class Fact(EntryPart):
    """A sentence about an agent or a job: what it is about, and a word for programs.

    `at` and `run` are the time and the run that it is about. They are left out if there are none.
    """

    label: str
    code: str
    says: str
    at: Time | None = None
    run: int | None = None


class Explanation(EntryState):
    """What every explanation begins with. `pace` is the schedule, and `facts` are all sentences, in the order to read them."""

    zone: str
    asked_at: Time
    pace: dict[str, object]
    facts: list[Fact] = []


class CountedResult(EntryPart):
    """What happened to some planned times or runs, and to how many. If messages have not arrived, `why` is their state."""

    result: str
    why: str | None
    says: str
    count: int


class QuietReason(EntryPart):
    """Why an entry is quiet although it runs. `count` is the number of problems or runs."""

    code: Literal["muted", "awaits_results", "fallback", "acknowledged", "known"]
    says: str
    count: int


class PreconditionResult(EntryPart):
    gate: str
    stands_in_the_way: bool | None


class Preconditions(EntryPart):
    would_run: bool
    why: str | None
    detail: str | None
    says: str
    complete: bool
    gates: list[PreconditionResult]


DayResult = Literal["undelivered", "failed", "silent", "unusual", "quiet", "normal"]  # how a day went, the worst first


class EntryOverview(EntryName):
    """How the day of an agent or a job went, and why.

    `expected`: its settings lead to this, and nothing went wrong. `run` is the run that shows it, `command` the one to type next.
    """

    result: DayResult
    why: str
    says: str
    command: str
    expected: bool
    run: int | None
    ran: int
    skipped: int
    delivered: int
    undelivered: int


class ExplanationNow(Explanation):
    """Why the last planned run started or not, and whether each precondition allows a run now. `overview` is that of today."""

    overview: EntryOverview
    now: Preconditions


class ExplanationAt(Explanation):
    """What happened, or will happen, at the latest planned time at or before a time."""

    at: Time


class SlotStretch(EntryPart):
    """Consecutive planned times with the same results."""

    from_: Time
    to: Time
    planned_runs: int
    results: list[CountedResult]
    run: int | None
    runs: list[int] | None


class ExplainedEvent(SharedBody):
    at: Time
    what: str
    says: str


class ExplanationOn(Explanation):
    """What happened at every planned time of a local day. `overview` is that of the day; null for a day to come."""

    overview: EntryOverview | None
    day: Day | None
    from_: Time
    until: Time
    planned_runs: int
    stretches: list[SlotStretch]
    totals: list[CountedResult]
    beside: list[CountedResult]


class ResultCounts(SharedBody):
    """The number of entries by the result of their day."""

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


class Overview(ResponseBody):
    """What happened to all entries in a period, the unusual ones first. `changes` are the reloads of the period."""

    from_: Shared[Time]
    until: Shared[Time]
    asked_at: Shared[Time]
    zone: Shared[str]
    counts: Shared[ResultCounts]
    problems: list[PresentProblem]
    entries: Shared[list[EntryOverview]]
    overrides: list[Override]
    changes: list[ReloadEvent]
    events: Shared[list[ExplainedEvent]]


class Checklist(EntryPart):
    """`file` and `hash` are null if the checklist is text in the config."""

    file: str | None
    text: str
    hash: str | None
    has_work: bool


class CallerToken(SharedBody):
    """The caller's token: its name, permissions and agents (null: all)."""

    name: str
    may: list[str]
    agents: list[str] | None


class ConfigFile(ResponseBody):
    """The hash of the config file, and what it declares, with secrets masked."""

    path: str
    hash: str
    declared: dict[str, object]


class ConfigValue(EntryPart):
    """A value in effect, and where it is set."""

    key: str
    value: str
    origin: str


class EntryConfig(EntryPart):
    """The keys of an agent or a job in the file, and all values in effect. `hash` is that of the file."""

    name: str
    hash: str
    declared: dict[str, object] | None
    values: list[ConfigValue]


class ConfigEdited(EntryPart):
    """The changed lines of the file (`diff`), and what the reload has changed."""

    written: bool
    hash: str
    diff: list[str]
    lines: list[str]
    warnings: list[str]


class ConfigSuggestion(EntryPart):
    """The YAML for a person to write, because the caller may not write it."""

    written: Literal[False]
    reason: str
    yaml: str


class Done(ResponseBody):
    """The answer to a verb. `says` is what it has done, as a sentence for the command line, the page and chats."""

    says: str


class DonePart(Done, EntryPart):
    """The answer to a verb for one agent or job, or for all of them."""


class WakeAccepted(DonePart):
    """The number of the wake, and what it waits for if it must wait."""

    wake: int
    waits_for: str | None = None
    until: Time | None = None


class CancelledWake(DonePart):
    wake: int


class Asked(DonePart):
    """A question of a run, and its answer if it has one."""

    question: PersonQuestion


class RunNumber(DonePart):
    run: int


class CancelledRun(DonePart):
    """`ended` is false for a run in progress: it ends within seconds."""

    run: int
    ended: bool


class LockHeld(DonePart):
    """`run` is the run in progress, which the caller should wait for."""

    id: str
    until: Time
    run: int | None


class LockReleased(DonePart):
    id: str


class RecordedActivity(DonePart):
    last: KnownTarget | None
    queue: int | None
    pending_approvals: int | None


class PausedEntries(DonePart):
    paused: list[str]


class ResumedEntries(DonePart):
    resumed: list[str]


class Muted(DonePart):
    muted_until: Time | None
    until_changed: bool


class Unmuted(DonePart):
    was_muted: bool
    held: int


class Reloaded(Done):
    """What a reload has changed, or would change."""

    added: list[str]
    removed: list[str]
    changed: dict[str, list[str]]
    unchanged: int
    lines: list[str]
    warnings: list[str]


class ChangedMessage(DonePart):
    message: int
    channel: str


class ChangedProblem(DonePart):
    problem: str
    subject: str
    key: str


class TestedChannel(ResponseBody):
    channel: str
    state: str
    error: str | None
    says: str


class TestedChannels(Done):
    channels: list[TestedChannel]

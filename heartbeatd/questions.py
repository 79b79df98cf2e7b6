"""Lists the operations that only read, but for the stream of events. Their answers come from scheduler/web/queries.py."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from heartbeatd.answers import (
    AgentList,
    AgentStatus,
    CallerToken,
    Checklist,
    ConditionList,
    ConfigFile,
    EntryConfig,
    ExplanationAt,
    ExplanationNow,
    ExplanationOn,
    JobList,
    MessageList,
    Overview,
    PlanForecast,
    ProblemList,
    RunList,
    RunWithWakes,
    Status,
    WakeStatus,
)
from heartbeatd.operations import (
    Answer,
    Concern,
    DayWord,
    Method,
    Operation,
    PageSize,
    Permission,
    Span,
    Switch,
    Time,
    endpoints_of,
    of_all,
    of_name,
    of_number,
    operations_of,
)

EntryWord = Literal["agent", "heartbeat", "cron"]


class Question(Operation[Answer]):
    """A request that only reads."""

    method: ClassVar[Method] = "GET"
    may: ClassVar[Permission | None] = "read"


class GetStatus(Question[Status]):
    """The whole status, limited to the entries that the caller may access."""

    paths = {"get_status": "/api/v1/status"}


class ListAgents(Question[AgentList]):
    """List the agents that the caller may access, with their state, next run and last run."""

    tool = "status"
    paths = {"list_agents": "/api/v1/agents"}


class GetAgent(Question[AgentStatus]):
    """One agent, with the targets that it has talked with, the last one first."""

    paths = {"get_agent": "/api/v1/agents/{name}"}


class ListJobs(Question[JobList]):
    """Every cron job that the caller may access."""

    paths = {"list_jobs": "/api/v1/cron"}


class ListRuns(Question[RunList]):
    """Runs, the newest first or (`sort=cost`) the most expensive. A token for some agents must name one of them."""

    paths = {"list_runs": "/api/v1/runs"}

    kind: EntryWord | None = Field(default=None, description="agent or cron")
    name: str | None = Field(default=None, description="the name of an agent or a job")
    since: Time | None = None
    until: Time | None = None
    outcome: str | None = Field(default=None, description="the outcome of the runs")
    reason: str | None = Field(default=None, description="the reason of the runs")
    limit: PageSize = 20
    sort: Literal["id", "cost"] = Field(default="id", description="id or cost")
    cursor: str | None = Field(default=None, description="`next` of the page before")


class GetRun(Question[RunWithWakes]):
    """One run."""

    paths = {"get_run": "/api/v1/runs/{id}"}


class GetWake(Question[WakeStatus]):
    """The state of a wake, and what it waits for."""

    paths = {"get_wake": "/api/v1/wakes/{id}"}


class GetPlan(Question[PlanForecast]):
    """What will run in the coming hours or days, limited to the entries that the caller may access."""

    paths = {"get_plan": "/api/v1/plan"}

    for_: Span | None = None
    from_: Time | None = None
    name: str | None = Field(default=None, description="the name of an agent or a job")
    kind: EntryWord | None = Field(default=None, description="agent or cron")
    all: Switch = False


class ExplainAll(Question[Overview]):
    """What happened to all entries that the caller may access, on a day (`on`) or since a time: the unusual ones first."""

    paths = {"get_overview": "/api/v1/explain"}

    on: DayWord | None = None
    since: Time | None = None


class Explain(Question[ExplanationNow | ExplanationAt | ExplanationOn]):
    """Why an agent or a job ran or did not run: now, at one time, or on a local day."""

    paths = {"get_explanation": "/api/v1/explain/{name}"}

    kind: EntryWord | None = Field(default=None, description="agent or cron")
    at: Time | None = None
    on: DayWord | None = None


class ListMessages(Question[MessageList]):
    """Messages that are not delivered: first those still on their way, then those given up, each the newest first."""

    paths = {"list_undelivered": "/api/v1/outbox"}

    limit: PageSize = 100
    cursor: str | None = Field(default=None, description="`next` of the page before")


class ListConditions(Question[ConditionList]):
    """The open conditions (`state=all`: the closed ones too) of the agents that the caller may access, or of one agent."""

    paths = {"list_conditions": "/api/v1/conditions"}

    agent: str | None = Field(default=None, description="the name of an agent")
    state: Literal["open", "all"] = Field(default="open", description="open or all")


class ListProblems(Question[ProblemList]):
    """Everything that is wrong: open problems (`state=all`: also those that are over), and open conditions of agents."""

    tool = "problems"
    paths = {"list_problems": "/api/v1/problems"}

    name: str | None = Field(default=None, description="a number such as p12, or the name of what has the problem")
    state: Literal["open", "all"] = Field(default="open", description="open or all")


class WhoAmI(Question[CallerToken]):
    """The caller's own token: its name, its permissions, and its agents (null: all)."""

    may = None
    paths = {"get_caller": "/api/v1/whoami"}


class GetConfig(Question[ConfigFile]):
    """The hash of the config file, and what it declares, with secrets masked. Only for tokens that are valid for all agents."""

    paths = {"get_config": "/api/v1/config"}
    concern = Concern.ALL
    may_be_refused_by_config = True


class GetEntryConfig(Question[EntryConfig]):
    """The keys of an agent or a job in the config file, and all values in effect with their origin."""

    paths = {"get_agent_config": "/api/v1/agents/{name}/config", "get_job_config": "/api/v1/cron/{name}/config"}
    may_be_refused_by_config = True


class GetChecklist(Question[Checklist]):
    """The checklist with the hash of this version. `file` is null if the checklist is text in the config."""

    tool = "get_checklist"
    paths = {"get_checklist": "/api/v1/agents/{name}/checklist"}


class QuestionMethods:
    """The methods of the clients that ask questions."""

    get_status = of_all(GetStatus)
    list_agents = of_all(ListAgents)
    get_agent = of_name(GetAgent)
    list_jobs = of_all(ListJobs)
    list_runs = of_all(ListRuns)
    get_run = of_number(GetRun)
    get_wake = of_number(GetWake)
    get_plan = of_all(GetPlan)
    get_overview = of_all(ExplainAll)
    get_explanation = of_name(Explain)
    list_undelivered = of_all(ListMessages)
    list_conditions = of_all(ListConditions)
    list_problems = of_all(ListProblems)
    get_caller = of_all(WhoAmI)
    get_config = of_all(GetConfig)
    get_agent_config = of_name(GetEntryConfig)
    get_job_config = of_name(GetEntryConfig)
    get_checklist = of_name(GetChecklist)


QUESTION_ENDPOINTS = endpoints_of(QuestionMethods)
QUESTIONS = operations_of(QUESTION_ENDPOINTS)

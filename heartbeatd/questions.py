"""Lists the operations that only read, but for the stream of events. Their answers come from scheduler/web/queries.py."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

import heartbeatd.answers as answers
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
    """A request that only reads. A field with a title, which is a sentence, is an option of the command."""

    method: ClassVar[Method] = "GET"
    may: ClassVar[Permission | None] = "read"


class GetStatus(Question[answers.Status]):
    """The whole status, limited to the entries that the caller may access."""


class ListAgents(Question[answers.AgentList]):
    """List the agents that the caller may access, with their state, next run and last run."""

    tool = "status"


class GetAgent(Question[answers.AgentStatus]):
    """One agent, with the targets that it has talked with, the last one first."""


class ListJobs(Question[answers.JobList]):
    """Every cron job that the caller may access."""


class ListRuns(Question[answers.RunList]):
    """List runs and skipped runs, newest first."""

    kind: EntryWord | None = Field(default=None, description="agent or cron")
    name: str | None = Field(default=None, description="the name of an agent or a job; a token for some agents must name one")
    since: Time | None = Field(default=None, title="Only runs scheduled at or after this time.")
    until: Time | None = Field(default=None, title="Only runs scheduled before this time.")
    result: str | None = Field(default=None, description="the result of the runs", title="Only runs with this result")
    why: str | None = Field(default=None, description="the `why` of the runs", title="Only runs with this word as WHY")
    limit: PageSize = 20
    sort: Literal["id", "cost"] = Field(
        default="id", description="id or cost", title="Newest first (id), or most expensive first (cost)."
    )
    cursor: str | None = Field(default=None, description="`next` of the page before")


class GetRun(Question[answers.RunWithWakes]):
    """One run."""


class GetQuestion(Question[answers.PersonQuestion]):
    """A question of a run to people, and its answer. With `wait` the response comes when it is answered, or after this time."""

    wait: Span | None = Field(default=None, description="at most 60s")


class GetWake(Question[answers.WakeStatus]):
    """The state of a wake, and what it waits for."""


class GetPlan(Question[answers.PlanForecast]):
    """List the runs that are scheduled for the next hours or days."""

    for_: Span | None = Field(default=None, title="How far ahead to look.  [default: 24h]")
    from_: Time | None = Field(default=None, title="Start at this time instead of now.")
    name: str | None = Field(default=None, description="the name of an agent or a job")
    kind: EntryWord | None = Field(default=None, description="agent or cron")
    all: Switch = Field(default=False, title="List each run on its own line.")


class ExplainAll(Question[answers.Overview]):
    """What happened to all entries that the caller may access, on a day (`on`) or since a time: the unusual ones first."""

    on: DayWord | None = None
    since: Time | None = None


class Explain(Question[answers.ExplanationNow | answers.ExplanationAt | answers.ExplanationOn]):
    """Explain why an agent or a job ran or did not run: now, at one time, on a local day, or since a time."""

    kind: EntryWord | None = Field(default=None, description="agent or cron")
    at: Time | None = Field(default=None, title="Explain the last planned time at or before TIME.")
    on: DayWord | None = Field(
        default=None,
        title="Explain a local day: today, yesterday, a weekday such as mon (the last Monday), or 2026-11-20."
        " With NAME, every planned time of the day is shown.",
    )
    since: Time | None = Field(
        default=None, title="Explain the time from TIME until now, for example 3h, yesterday or 2026-11-20T03:00."
    )


class ListMessages(Question[answers.MessageList]):
    """Messages that are not delivered: first those still on their way, then those given up, each the newest first."""

    limit: PageSize = 100
    cursor: str | None = Field(default=None, description="`next` of the page before")


class ListSaid(Question[answers.Said]):
    """What an agent said lately: the messages that were delivered, the newest first. A gateway can put them into a chat."""

    to: str | None = Field(default=None, description="a channel, or CHANNEL:RECIPIENT")
    limit: PageSize = 20


class ListProblems(Question[answers.ProblemList]):
    """Everything that is wrong: open problems, or with `state=all` also those that are over. Agents report some of them, and the
    daemon observes the others.
    """

    tool = "problems"

    name: str | None = Field(default=None, description="a number such as p12, or the name of what has the problem")
    state: Literal["open", "all"] = Field(default="open", description="open or all")


class WhoAmI(Question[answers.CallerToken]):
    """The caller's own token: its name, its permissions, and its agents (null: all)."""

    may = None


class GetConfig(Question[answers.ConfigFile]):
    """The hash of the config file, and what it declares, with secrets masked. Only for tokens that are valid for all agents."""

    concern = Concern.ALL
    may_be_refused_by_config = True


class GetEntryConfig(Question[answers.EntryConfig]):
    """The keys of an agent or a job in the config file, and all values in effect with their origin."""

    may_be_refused_by_config = True


class GetChecklist(Question[answers.Checklist]):
    """The checklist with the hash of this version. `file` is null if the checklist is text in the config."""

    tool = "get_checklist"


class QuestionMethods:
    """The methods of the clients that ask questions."""

    get_status = of_all(GetStatus, "/api/v1/status")
    list_agents = of_all(ListAgents, "/api/v1/agents")
    get_agent = of_name(GetAgent, "/api/v1/agents/{name}")
    list_said = of_name(ListSaid, "/api/v1/agents/{name}/said")
    list_jobs = of_all(ListJobs, "/api/v1/cron")
    list_runs = of_all(ListRuns, "/api/v1/runs")
    get_run = of_number(GetRun, "/api/v1/runs/{id}")
    get_question = of_number(GetQuestion, "/api/v1/questions/{id}")
    get_wake = of_number(GetWake, "/api/v1/wakes/{id}")
    get_plan = of_all(GetPlan, "/api/v1/plan")
    get_overview = of_all(ExplainAll, "/api/v1/explain")
    get_explanation = of_name(Explain, "/api/v1/explain/{name}")
    list_undelivered = of_all(ListMessages, "/api/v1/outbox")
    list_problems = of_all(ListProblems, "/api/v1/problems")
    get_caller = of_all(WhoAmI, "/api/v1/whoami")
    get_config = of_all(GetConfig, "/api/v1/config")
    get_agent_config = of_name(GetEntryConfig, "/api/v1/agents/{name}/config")
    get_job_config = of_name(GetEntryConfig, "/api/v1/cron/{name}/config")
    get_checklist = of_name(GetChecklist, "/api/v1/agents/{name}/checklist")


QUESTION_ENDPOINTS = endpoints_of(QuestionMethods)
QUESTIONS = operations_of(QUESTION_ENDPOINTS)

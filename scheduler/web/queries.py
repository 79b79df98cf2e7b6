"""Answers the questions of the API: status, agents, jobs, runs, wakes, outbox, problems, plan and explain.

What each answer contains is said beside the question, in heartbeatd/questions.py.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from functools import partial
from itertools import islice
from zoneinfo import ZoneInfo

from heartbeatd import answers
from heartbeatd.operations import parse_time
from heartbeatd.questions import (
    Explain,
    ExplainAll,
    GetAgent,
    GetPlan,
    GetQuestion,
    GetRun,
    GetStatus,
    GetWake,
    ListAgents,
    ListJobs,
    ListMessages,
    ListProblems,
    ListRuns,
    ListSaid,
    WhoAmI,
)
from scheduler.insight import explanation as explaining
from scheduler.insight import forecast, problem_list, status_data
from scheduler.insight.daemon_state import read_daemon_state
from scheduler.insight.health import read_verdict
from scheduler.insight.periods import Period, parse_period
from scheduler.insight.records import Records
from scheduler.insight.schedule_texts import TimeFormat
from scheduler.model.outcome import DeliveryState, Key, Kind
from scheduler.model.problem import CHANNEL
from scheduler.store import agent_memory, asked_questions, disk_reserve, entries, outbox, run_history, wakes
from scheduler.store.database import parse_row_id
from scheduler.store.run_history import RunFilter
from scheduler.system import lanes, state_lock
from scheduler.web.access import AnAnswer, check_access, cut
from scheduler.web.api_request import ApiRequest
from scheduler.web.app_state import open_reader
from scheduler.web.http_errors import HttpError, bad_request, not_found
from scheduler.web.perform import handles
from scheduler.work import plan as plans
from scheduler.work.plan import Plan

BAD_CURSOR = "cursor: there is no such page; take the value of `next` of the page before, or begin without a cursor"
KIND_WORDS = {"agent": Kind.HEARTBEAT, "heartbeat": Kind.HEARTBEAT, "cron": Kind.CRON}


@handles(WhoAmI)
def get_caller(request: ApiRequest, _: WhoAmI) -> answers.CallerToken:
    caller = request.caller
    agents = None if caller.agents is None else sorted(caller.agents)
    return answers.CallerToken(name=caller.name, may=sorted(caller.may), agents=agents)


@handles(GetStatus)
def get_status(request: ApiRequest, _: GetStatus) -> answers.Status:
    return read_status(request)


def read_status(request: ApiRequest, *, costs: bool = True) -> answers.Status:
    """What the caller may see of the status, with or without budgets and cost."""
    state = request.app_state
    reserved = disk_reserve.reserved_bytes(state.database_path)
    with open_reader(state) as db:
        status = status_data.read_status(db, state.clock(), state.settings().zone, reserved, costs=costs)
    status.config_hash = state.settings().hash
    seen = cut(status, request.caller)
    seen.verdict = read_verdict(seen, TimeFormat.of_today(state.settings().zone, state.clock()).at)
    return seen


@handles(ListAgents)
def list_agents(request: ApiRequest, _: ListAgents) -> answers.AgentList:
    with open_reader(request.app_state) as db:
        return answers.AgentList(agents=_read_entries(request, db, Kind.HEARTBEAT))


@handles(ListJobs)
def list_jobs(request: ApiRequest, _: ListJobs) -> answers.JobList:
    with open_reader(request.app_state) as db:
        return answers.JobList(cron=_read_entries(request, db, Kind.CRON))


@handles(GetAgent)
def get_agent(request: ApiRequest, _question: GetAgent) -> answers.AgentStatus:
    _, name = request.key
    with open_reader(request.app_state) as db:
        found = _read_entries(request, db, Kind.HEARTBEAT, name)
        known, reminders = agent_memory.known_targets(db, name), wakes.list_reminders(db, name)
    if not found:
        raise not_found(f"agent {name!r}")
    return answers.AgentStatus(**dict(found[0]), targets=known, reminders=reminders)


def _read_entries(request: ApiRequest, db: sqlite3.Connection, kind: Kind, name: str | None = None) -> list[answers.EntryStatus]:
    state = request.app_state
    return status_data.read_entries(db, state.clock(), state.settings().zone, kind, name)


@handles(ListRuns)
def list_runs(request: ApiRequest, question: ListRuns) -> answers.RunList:
    kind, name, limit = _kind_of(question), question.name, question.limit
    if request.caller.agents is not None:  # it must name one of them
        kind = kind or Kind.HEARTBEAT
        check_access(request.caller, kind, name or "")
    after = None if question.cursor is None else parse_row_id(question.cursor)
    if after is None and question.cursor is not None:
        raise bad_request(BAD_CURSOR)
    with open_reader(request.app_state) as db:
        wanted = RunFilter(kind, name, question.since, question.until, question.result, question.why)
        try:
            found = run_history.list_runs(db, wanted, limit + 1, question.sort, after)
        except LookupError:
            raise bad_request(BAD_CURSOR) from None
        kinds = (kind,) if kind else tuple(Kind)
        if not found and name is not None and not any(entries.find_entry(db, each, name) for each in kinds):
            raise _unknown_entry(kind, name)
    return answers.RunList(runs=found[:limit], next=str(found[limit - 1].id) if len(found) > limit else None)


@handles(GetRun)
def get_run(request: ApiRequest, _: GetRun) -> answers.RunWithWakes:
    return _found(request, "run", run_history.get_run_with_wakes)


@handles(ListSaid)
def list_said(request: ApiRequest, question: ListSaid) -> answers.Said:
    with open_reader(request.app_state) as db:
        said = outbox.said_by(db, request.key[1], question.to, question.limit)
        if not said and entries.find_entry(db, *request.key) is None:
            raise not_found(f"agent {request.key[1]!r}")
        return answers.Said(said=said)


@handles(ListMessages)
def list_undelivered(request: ApiRequest, question: ListMessages) -> answers.MessageList:
    limit = question.limit
    after = None if question.cursor is None else _parse_message_cursor(question.cursor)
    with open_reader(request.app_state) as db:
        listed = (each for each in outbox.list_messages(db) if request.caller.may_access(each.kind, each.name))
        following = listed if after is None else (each for each in listed if _message_place(each) > after)
        found = list(islice(following, limit + 1))
    return answers.MessageList(outbox=found[:limit], next=_message_cursor(found[limit - 1]) if len(found) > limit else None)


def _message_place(message: answers.QueuedMessage) -> tuple[bool, int]:
    """The place of a message in the list, for comparisons."""
    return message.state == DeliveryState.DEAD, -message.id


def _message_cursor(message: answers.QueuedMessage) -> str:
    is_dead, _ = _message_place(message)
    return f"{'dead' if is_dead else 'open'}-{message.id}"


def _parse_message_cursor(text: str) -> tuple[bool, int]:
    word, _, number = text.partition("-")
    message_id = parse_row_id(number)
    if word not in ("open", "dead") or message_id is None:
        raise bad_request(BAD_CURSOR)
    return word == "dead", -message_id


@handles(ListProblems)
def list_problems(request: ApiRequest, question: ListProblems) -> answers.ProblemList:
    # What the caller may not see counts as unknown.
    also_over = question.state == "all"
    with open_reader(request.app_state) as db:
        found = problem_list.list_problems(db, request.app_state.clock(), also_over=also_over or question.name is not None)
        subjects = [*entries.states_and_schedules(db), *((CHANNEL, name) for name in request.app_state.settings().channels)]
        known = [subject for subject in subjects if request.caller.may_access(*subject)]
    seen = cut(answers.ProblemList(problems=found), request.caller).problems
    try:
        return answers.ProblemList(problems=problem_list.choose_problems(seen, question.name, known, also_over=also_over))
    except LookupError as error:
        raise not_found(str(error)) from None


@handles(GetQuestion)
def get_question(request: ApiRequest, _: GetQuestion) -> answers.PersonQuestion:
    return _found(request, "question", asked_questions.find_question)


@handles(GetWake)
def get_wake(request: ApiRequest, _: GetWake) -> answers.WakeStatus:
    return _found(request, "wake", partial(status_data.read_wake, now=request.app_state.clock()))


def _found(request: ApiRequest, noun: str, read: Callable[[sqlite3.Connection, int], AnAnswer | None]) -> AnAnswer:
    """What has the number of the path. Raises HttpError if nothing has it."""
    with open_reader(request.app_state) as db:
        found = read(db, request.number)
    if found is None:
        raise not_found(f"{noun} {request.number}")
    return found


def _kind_of(question: ListRuns | GetPlan | Explain) -> Kind | None:
    """The kind of entry that is asked for; None for both."""
    return None if question.kind is None else KIND_WORDS[question.kind]


MAX_FIRINGS = 10_000


@handles(GetPlan)
def get_plan(request: ApiRequest, question: GetPlan) -> answers.PlanForecast:
    now = request.app_state.clock()
    try:
        begin, until = forecast.period_of(question, now)
    except ValueError as error:
        raise bad_request(str(error)) from None
    with open_reader(request.app_state) as db:
        seen = forecast.forecast_entries(db, plans.make_plan(request.app_state.settings()), now)
    chosen = _select_entries(request, question, seen)
    data = forecast.forecast_runs(chosen, begin, until)
    if not question.all:
        return data
    if sum(entry.total for entry in data.entries) > MAX_FIRINGS:
        raise bad_request(f"all: more than {MAX_FIRINGS} runs; choose a shorter time or one name")
    return forecast.forecast_runs(chosen, begin, until, each=True)


@handles(Explain)
def get_explanation(request: ApiRequest, question: Explain) -> answers.Explanation:
    with open_reader(request.app_state) as db:
        records = read_records(request, db)
        explained = explaining.find_entry(records, _find_entry_key(request, _kind_of(question), records.plan, db))
        assert explained is not None  # `_find_entry_key` has found it
        return explaining.explain(explained, _period_of(request, question, explained.zone))


@handles(ExplainAll)
def get_overview(request: ApiRequest, question: ExplainAll) -> answers.Overview:
    period = _period_of(request, question, request.app_state.settings().zone, may_be_ahead=False)
    with open_reader(request.app_state) as db:
        return explaining.explain_all(read_records(request, db, period))


def read_records(request: ApiRequest, db: sqlite3.Connection, period: Period | None = None) -> Records:
    """What is on record about a period (None: today), limited to what the caller may see."""
    state, now = request.app_state, request.app_state.clock()
    path, settings = state.database_path, state.settings()
    refused = state_lock.read_refused_starts(path.with_name(f"{path.name}.lock"))
    daemon = read_daemon_state(db, now, running=True, pid=os.getpid(), refused_starts=refused)
    period = period or Period.today(settings.zone, now)
    return Records(db, plans.make_plan(settings), period, now, daemon, lanes.lanes_beside(path), request.caller.agents)


def _period_of(
    request: ApiRequest, question: Explain | ExplainAll, zone: ZoneInfo, *, may_be_ahead: bool = True
) -> Period | None:
    """The time to explain; None if the question names none. Raises HttpError."""
    named = {key: value for key, value in question if key in ("at", "on", "since") and value is not None}
    try:
        return parse_period(named, zone, request.app_state.clock(), parse_time, may_be_ahead=may_be_ahead)
    except ValueError as error:
        raise bad_request(str(error)) from error


def _find_entry_key(request: ApiRequest, kind: Kind | None, plan: Plan | None, db: sqlite3.Connection) -> Key:
    """The entry that the path names. Raises HttpError if there is none or two, or if the token is not valid for it."""
    name = request.path["name"]
    keys = [(each, name) for each in Kind if kind in (None, each)]
    reached = [key for key in keys if request.caller.may_access(*key)]
    found = [key for key in reached if (plan and key in plan.entries) or entries.find_entry(db, *key) is not None]
    if not reached:
        check_access(request.caller, *keys[0])
    if not found:
        raise _unknown_entry(None, name)
    if len(found) > 1:
        raise bad_request(f"there are an agent and a cron job {name!r}; add kind=agent or kind=cron")
    return found[0]


def _select_entries(request: ApiRequest, question: GetPlan, seen: list[forecast.EntryForecast]) -> list[forecast.EntryForecast]:
    kind, name = _kind_of(question), question.name
    if kind is not None and name is not None:
        check_access(request.caller, kind, name)
    mine = [each for each in seen if request.caller.may_access(each.course.kind, each.course.name)]
    found = [each for each in mine if kind in (None, each.course.kind) and name in (None, each.course.name)]
    if name is not None and not found:
        raise _unknown_entry(kind, name)
    return found


def _unknown_entry(kind: Kind | None, name: str) -> HttpError:
    return not_found(f"{kind.noun if kind else 'agent or cron job'} {name!r}")

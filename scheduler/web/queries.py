"""Handles the GET requests of the API: status, agents, jobs, runs, wakes, outbox, conditions, plan and explain."""

from __future__ import annotations

import os
import sqlite3
from datetime import datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

from heartbeat.words import format_duration
from heartbeatd import answers
from scheduler.config.keys import value_parsers
from scheduler.insight import day_overview, forecast, status_data, wake_waits
from scheduler.insight import explanation as explaining
from scheduler.insight.daemon_state import read_daemon_state
from scheduler.insight.periods import Period, parse_period
from scheduler.insight.wake_waits import WakeWait
from scheduler.model.entry import Key
from scheduler.model.outcome import DeliveryState, Kind
from scheduler.store import conditions, disk_reserve, entries, outbox, run_history, targets
from scheduler.store.database import parse_row_id
from scheduler.store.run_history import RunFilter
from scheduler.system import lanes, state_lock
from scheduler.web.access import Concern, check_access, guard, row_in_path
from scheduler.web.api_request import ApiRequest, parse_time_parameter
from scheduler.web.app_state import open_reader
from scheduler.web.http_errors import bad_request, not_found
from scheduler.web.request_bodies import parse_time
from scheduler.work import plan as plans
from scheduler.work.plan import Plan

MAX_LIMIT = 1000
BAD_CURSOR = "cursor: there is no such page; take the value of `next` of the page before, or begin without a cursor"
KIND_WORDS = {"agent": Kind.HEARTBEAT, "heartbeat": Kind.HEARTBEAT, "cron": Kind.CRON}


@guard(None, Concern.PART, answers.CallerToken)
def get_caller(request: ApiRequest) -> answers.CallerToken:
    """The caller's own token: its name, its permissions, and its agents (null: all)."""
    caller = request.caller
    agents = None if caller.agents is None else sorted(caller.agents)
    return answers.CallerToken(name=caller.name, may=sorted(caller.may), agents=agents)


@guard("read", Concern.PART, answers.Status)
def get_status(request: ApiRequest) -> answers.Status:
    """The whole status, limited to the entries that the caller may access."""
    state = request.app_state
    reserved = disk_reserve.reserved_bytes(state.database_path)
    with open_reader(state) as db:
        status = status_data.read_status(db, state.clock(), state.settings().zone, reserved)
    status.config_hash = state.settings().hash
    return status


@guard("read", Concern.PART, answers.AgentList)
def list_agents(request: ApiRequest) -> answers.AgentList:
    """Every agent that the caller may access."""
    with open_reader(request.app_state) as db:
        return answers.AgentList(agents=status_data.read_entries(db, request.app_state.clock(), Kind.HEARTBEAT))


@guard("read", Concern.PART, answers.JobList)
def list_jobs(request: ApiRequest) -> answers.JobList:
    """Every cron job that the caller may access."""
    with open_reader(request.app_state) as db:
        return answers.JobList(cron=status_data.read_entries(db, request.app_state.clock(), Kind.CRON))


@guard("read", Concern.AGENT, answers.AgentStatus)
def get_agent(request: ApiRequest) -> answers.AgentStatus:
    """One agent, with the targets that it has talked with, the last one first."""
    name = request.path["name"]
    with open_reader(request.app_state) as db:
        found = status_data.read_entries(db, request.app_state.clock(), Kind.HEARTBEAT, name)
        known = targets.known_targets(db, name)
    if not found:
        raise not_found(f"agent {name!r}")
    return answers.AgentStatus(**dict(found[0]), targets=known)


@guard("read", Concern.PART, answers.RunList)
def list_runs(request: ApiRequest) -> answers.RunList:
    """Runs, the newest first or (`sort=cost`) the most expensive. A token for some agents must name one of them."""
    kind, name = parse_kind(request.query.get("kind")), request.query.get("name")
    if request.caller.agents is not None:
        kind = Kind.HEARTBEAT
        check_access(request.caller, kind, name or "")
    since, until = (parse_time_parameter(key, request.query[key]) if key in request.query else None for key in ("since", "until"))
    limit, sort = _parse_limit(request.query.get("limit", "20")), _parse_sort(request.query.get("sort", "id"))
    outcome, reason = request.query.get("outcome"), request.query.get("reason")
    after = parse_row_id(request.query["cursor"]) if "cursor" in request.query else None
    if after is None and "cursor" in request.query:
        raise bad_request(BAD_CURSOR)
    with open_reader(request.app_state) as db:
        wanted = RunFilter(kind, name, since, until, outcome, reason)
        try:
            found = run_history.list_runs(db, wanted, limit + 1, sort, after)
        except LookupError:
            raise bad_request(BAD_CURSOR) from None
    return answers.RunList(runs=found[:limit], next=str(found[limit - 1].id) if len(found) > limit else None)


@guard("read", Concern.RUN, answers.RunWithWakes)
def get_run(request: ApiRequest) -> answers.RunWithWakes:
    """One run."""
    number = row_in_path(request, Concern.RUN)
    with open_reader(request.app_state) as db:
        found = run_history.get_run_with_wakes(db, number)
    if found is None:
        raise not_found(f"run {number}")
    return found


@guard("read", Concern.PART, answers.MessageList)
def list_undelivered(request: ApiRequest) -> answers.MessageList:
    """Messages that are not delivered: first those still on their way, then those given up, each the newest first."""
    limit = _parse_limit(request.query.get("limit", "100"))
    after = _parse_message_cursor(request.query["cursor"]) if "cursor" in request.query else None
    with open_reader(request.app_state) as db:
        listed = (each for each in outbox.list_messages(db) if _may_access(request, each))
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


@guard("read", Concern.PART, answers.ConditionList)
def list_conditions(request: ApiRequest) -> answers.ConditionList:
    """The open conditions (`state=all`: the closed ones too) of the agents that the caller may access, or of one agent."""
    name, state = request.query.get("agent"), request.query.get("state", "open")
    if state not in ("open", "all"):
        raise bad_request("state: write open or all")
    if name is not None:
        check_access(request.caller, Kind.HEARTBEAT, name)
    names = request.caller.agents if name is None else (name,)
    with open_reader(request.app_state) as db:
        found = conditions.list_conditions(db, names, closed=state == "all")
        if name is not None and not found and entries.find_entry(db, Kind.HEARTBEAT, name) is None:
            raise not_found(f"agent {name!r}")
    return answers.ConditionList(conditions=found)


@guard("read", Concern.WAKE, answers.WakeStatus)
def get_wake(request: ApiRequest) -> answers.WakeStatus:
    """The state of a wake, and what it waits for."""
    number = row_in_path(request, Concern.WAKE)
    with open_reader(request.app_state) as db:
        found = status_data.read_wake(db, number, request.app_state.clock())
    if found is None:
        raise not_found(f"wake {number}")
    return found


def read_wait(request: ApiRequest, wake_id: int) -> WakeWait | None:
    """What a wake waits for; None if it has ended."""
    with open_reader(request.app_state) as db:
        return wake_waits.wait_of_wake(db, wake_id, request.app_state.clock())


def agent_of_run(request: ApiRequest, run_id: int) -> str:
    """The name of the agent of a run that exists."""
    with open_reader(request.app_state) as db:
        found = run_history.entry_of_run(db, run_id)
    if found is None:
        raise not_found(f"run {run_id} of an agent")
    return found[1]


def _may_access(request: ApiRequest, entry: answers.QueuedMessage | answers.EntryOverview) -> bool:
    return request.caller.may_access(Kind(entry.kind), entry.name)


def parse_kind(word: str | None) -> Kind | None:
    """The kind of entry in a query; None if there is none. Raises HttpError."""
    if word is not None and word not in KIND_WORDS:
        raise bad_request("kind: write agent or cron")
    return KIND_WORDS[word] if word is not None else None


def _parse_sort(word: str) -> str:
    if word not in run_history.ORDERS:
        raise bad_request(f"sort: write {' or '.join(run_history.ORDERS)}")
    return word


def _parse_limit(text: str) -> int:
    limit = parse_row_id(text)
    if limit is None or not 1 <= limit <= MAX_LIMIT:
        raise bad_request(f"limit: write a number from 1 to {MAX_LIMIT}")
    return limit


A_DAY = timedelta(days=1)
MAX_FIRINGS = 10_000


@guard("read", Concern.PART, answers.PlanForecast)
def get_plan(request: ApiRequest) -> answers.PlanForecast:
    """What will run in the coming hours or days, limited to the entries that the caller may access."""
    now, each = request.app_state.clock(), _parse_switch(request, "all")
    begin = _parse_begin(request, now)
    span = _parse_span(request)
    with open_reader(request.app_state) as db:
        seen = forecast.forecast_entries(db, plans.make_plan(request.app_state.settings()), now)
    chosen = _select_entries(request, seen)
    data = forecast.forecast_runs(chosen, begin, begin + span)
    if not each:
        return data
    if sum(entry.total for entry in data.entries) > MAX_FIRINGS:
        raise bad_request(f"all: more than {MAX_FIRINGS} runs; choose a shorter time or one name")
    return forecast.forecast_runs(chosen, begin, begin + span, each=True)


@guard("read", Concern.PART, answers.ExplanationNow, answers.ExplanationAt, answers.ExplanationOn)
def get_explanation(request: ApiRequest) -> answers.Explanation:
    """Why an agent or a job ran or did not run: now, at one time, or on a local day."""
    now, plan = request.app_state.clock(), plans.make_plan(request.app_state.settings())
    with open_reader(request.app_state) as db:
        key = _find_entry_key(request, plan, db)
        held = lanes.lanes_beside(request.app_state.database_path)
        explained = explaining.find_entry(db, plan, key, held, now, running=True, agents=request.caller.agents)
        assert explained is not None  # `_find_entry_key` has found it
        return explaining.explain(explained, _parse_period(request, explained.zone))


@guard("read", Concern.PART, answers.Overview)
def get_overview(request: ApiRequest) -> answers.Overview:
    """What happened to all entries that the caller may access, on a day (`on`) or since a time: the unusual ones first."""
    now, settings = request.app_state.clock(), request.app_state.settings()
    period = _parse_period(request, settings.zone, may_be_ahead=False) or Period.today(settings.zone, now)
    path = request.app_state.database_path
    with open_reader(request.app_state) as db:
        refused = state_lock.read_refused_starts(path.with_name(f"{path.name}.lock"))
        daemon = read_daemon_state(db, now, running=True, pid=os.getpid(), refused_starts=refused)
        data = day_overview.explain_all(db, plans.make_plan(settings), period, now, daemon)
    return day_overview.of_entries(data, [each for each in data.entries if _may_access(request, each)])


def _parse_period(request: ApiRequest, zone: ZoneInfo, *, may_be_ahead: bool = True) -> Period | None:
    """The time to explain; None if the query names none. Raises HttpError."""
    named = {key: text for key, text in request.query.items() if key in ("at", "on", "since")}
    try:
        return parse_period(named, zone, request.app_state.clock(), parse_time, may_be_ahead=may_be_ahead)
    except ValueError as error:
        raise bad_request(str(error)) from error


def _find_entry_key(request: ApiRequest, plan: Plan, db: sqlite3.Connection) -> Key:
    """The entry that the path names. Raises HttpError if there is none or two, or if the token is not valid for it."""
    name, kind = request.path["name"], parse_kind(request.query.get("kind"))
    keys = [(each, name) for each in Kind if kind in (None, each)]
    reached = [key for key in keys if request.caller.may_access(*key)]
    found = [key for key in reached if key in plan.entries or entries.find_entry(db, *key) is not None]
    if not reached:
        check_access(request.caller, *keys[0])
    if not found:
        raise not_found(f"agent or cron job {name!r}")
    if len(found) > 1:
        raise bad_request(f"there are an agent and a cron job {name!r}; add kind=agent or kind=cron")
    return found[0]


def _select_entries(request: ApiRequest, seen: list[forecast.EntryForecast]) -> list[forecast.EntryForecast]:
    kind, name = parse_kind(request.query.get("kind")), request.query.get("name")
    if kind is not None and name is not None:
        check_access(request.caller, kind, name)
    mine = [each for each in seen if request.caller.may_access(each.course.kind, each.course.name)]
    found = [each for each in mine if kind in (None, each.course.kind) and name in (None, each.course.name)]
    if name is not None and not found:
        raise not_found(f"{kind.noun if kind else 'agent or cron job'} {name!r}")
    return found


def _parse_begin(request: ApiRequest, now: datetime) -> datetime:
    begin = parse_time_parameter("from", request.query["from"]) if "from" in request.query else now
    if begin.year not in forecast.ALLOWED_YEARS:
        raise bad_request(f"from: write a time in the years {forecast.ALLOWED_YEARS[0]} to {forecast.ALLOWED_YEARS[-1]}")
    return begin


def _parse_span(request: ApiRequest) -> timedelta:
    try:
        span = value_parsers.parse_positive_duration(request.query.get("for", "24h"))
    except ValueError as error:
        raise bad_request(f"for: {error}") from error
    if span > forecast.MAX_SPAN:
        raise bad_request(f"for: at most {format_duration(forecast.MAX_SPAN)}")
    return span


def _parse_switch(request: ApiRequest, key: str) -> bool:
    value = request.query.get(key, "false")
    if value not in ("true", "false"):
        raise bad_request(f"{key}: write true or false")
    return value == "true"

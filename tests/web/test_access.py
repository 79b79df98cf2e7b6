"""Who may see and do what: every request that the code registers, by every kind of caller. With `pytest -s` the table is printed.

A new route, tool or form is part of the test without any change here. If it needs a body or a rule of its own, the test says so.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlencode

import pytest
from page_user import PageUser
from pydantic import TypeAdapter
from starlette.routing import Route
from web_daemon import WebDaemon

from heartbeatd.answers import BudgetShare, ConfigFile, LastRun, SharedBody, WakeAccepted
from heartbeatd.operations import Operation
from heartbeatd.questions import ListProblems, ListRuns
from heartbeatd.verbs import (
    VERB_ENDPOINTS,
    AnswerQuestion,
    Ask,
    HoldLock,
    NoteActivity,
    Ping,
    ReleaseLock,
    Reload,
    ReportResult,
    SetChecklist,
    SetConfig,
)
from scheduler.config.file.diagnostics import ConfigError, Diagnostic
from scheduler.model.message import DeliveryResult
from scheduler.system import extras
from scheduler.web import event_stream
from scheduler.web.access import cut, cut_errors
from scheduler.web.api_request import Caller
from scheduler.web.page.page_sessions import Sessions
from scheduler.web.perform import ENDPOINTS
from scheduler.web.routes import MCP_PATH, REMOVED, build_application

# Agent alder has a token of its own. Each text of others contains the word birch: names, prompts, answers, errors, secrets.
CONFIG = """\
server: {listen: "127.0.0.1:0", tokens: {
  reader: {value: "reader-token-with-enough-bits-in-it", may: [read]},
  alder: {value: "alder-token-with-enough-bits-in-it-1", may: [read, wake, operate, edit], agents: [alder]},
  birch: {value: "birch-token-with-enough-bits-in-it-1", may: [read, wake, operate, edit], agents: [birch]},
  chief: {value: "chief-token-with-enough-bits-in-it-1", may: [read, wake, operate, edit]}}}
limits: {budget: {runs_per_day: 1000}}
prices: {}
agents:
  alder:
    runner: {kind: command, argv: [agent]}
    workspace: tree
    heartbeat: {interval: 30m, stagger: 0s, checklist: HEARTBEAT.md, deliver: log, ask: log, budget: {runs_per_day: 900}}
  birch:
    runner: {kind: command, argv: [agent], env: {KEY: "sk-birch-secret-1"}}
    heartbeat: {interval: 30m, stagger: 0s, prompt: look at birch, checklist: "- birch item\\n", deliver: log}
cron:
  birch-job: {every: 6h, command: birch-job}
  birch-waker: {every: 6h, command: birch-waker, wake_heartbeat: alder}
"""
CALLERS = ("none", "reader", "birch", "alder", "chief")
LIMITED = ("birch", "alder")
TOKENS = {
    "none": None,
    "reader": "reader-token-with-enough-bits-in-it",
    "alder": "alder-token-with-enough-bits-in-it-1",
    "birch": "birch-token-with-enough-bits-in-it-1",
    "chief": "chief-token-with-enough-bits-in-it-1",
}

# Requests that concern the whole daemon, and so are refused for a token that is limited to some agents.
WHOLE = {"/api/v1/config", "/api/v1/pause", "/api/v1/resume", "/api/v1/ping", "/-/reload"}
WHOLE_PAGE = {"/page/doctor", "/page/changes/check", "/page/jobs/{name}"}
# Requests without a caller: probes, the login and static files.
OPEN = {"/metrics", "/healthz", "/readyz", "/page/login", "/page/logout", "/page/static/{digest}/{name}"}
OPEN |= {"/page/{rest:path}", MCP_PATH}
# What a limited token may see of the whole daemon, beside its own agents.
PARTS = {
    "/api/v1/status": {
        *("daemon", "downs", "frozen", "config_hash", "reload", "problems", "breakers", "budgets"),
        *("entries", "wakes", "reminders", "questions", "reserve_bytes", "verdict"),
    },
    "/api/v1/explain": {"from", "until", "asked_at", "zone", "counts", "entries", "events"},
}
# The keys of a request that needs some. An operation that is not here is sent without any.
SENT: Mapping[type[Operation], dict[str, Any]] = {
    Ask: {"text": "May I?"},
    AnswerQuestion: {"answer": "yes"},
    HoldLock: {"id": "chat:1", "for": "1m"},
    ReleaseLock: {"id": "chat:1"},
    NoteActivity: {"queue": 1},
    Reload: {"dry_run": True},
    Ping: {"channel": "log"},
    ReportResult: {"text": "done"},
    SetChecklist: {"text": "- look\n"},
    SetConfig: {"changes": {"heartbeat": {"interval": "31m"}}},
    ListRuns: {"name": "alder"},
    ListProblems: {"state": "all"},
}
CHANGES = {"/api/v1/config": {"limits": {"concurrency": 7}}, "/api/v1/cron/{name}/config": {"every": "7h"}}
NUMBERED = ("problem", "question", "run", "wake")  # what a tool of MCP names by its number
TOOL_ARGUMENTS: Mapping[str, dict[str, Any]] = {
    "set": {"changes": {"heartbeat": {"interval": "32m"}}},
    "toggle": {"on": False},
    "set_checklist": {"text": "- look again\n"},
    "wake": {"text": "look"},
    "remind": {"text": "look", "in": "1h"},
    "ask": {"text": "May I?", "wait": "1s"},
}
FORM_FIELDS: Mapping[str, dict[str, str]] = {
    "/page/agents/{name}/config": {"step": "write", "heartbeat.interval": "33m", "seen:heartbeat.interval": "30m"},
    "/page/agents/{name}/checklist": {"text": "- look a third time\n"},
}


TOOLS = () if extras.describe_missing("listeners", "mcp") else extras.load("listeners", "mcp").tools
WAYS_TO_EDIT = ("HTTP", "dry run", "page", *(["MCP"] if TOOLS else []))
Row = tuple[str, list[str]]


@dataclass
class Told:
    """What a caller got: whether it was refused, the text, and the data if it was JSON."""

    status: int
    is_refused: bool
    text: str
    data: Any = None


@dataclass
class Fleet:
    """A daemon with two agents and a job, and everything about the others that a limited token must not see."""

    daemon: WebDaemon
    pages: dict[str, PageUser] = field(default_factory=dict)

    def prepare(self) -> None:
        """Runs, messages and conditions of both agents, a rename, a reload with changed prompts, and a refused config."""
        world = self.daemon.world
        world.send = lambda delivery: DeliveryResult("dead", f"400 {delivery.text}")
        world.scripts |= {"alder": lambda call: "[disk!] 97 %", "birch": lambda call: "[birch-disk!] birch 97 %"}
        self.reload(f"{self.daemon.config.read_text()}# from now on the active config is stored\n")
        self.reload(CONFIG)
        self.daemon.do(lambda: world.run(minutes=31))
        self.reload(CONFIG.replace("look at birch", "look at birch again"))
        self.daemon.config.write_text(CONFIG.replace("interval: 30m, stagger: 0s, prompt", "interval: birch-soon, prompt"))
        assert self.daemon.post("/-/reload", {}, TOKENS["chief"]).status == 422
        self.daemon.config.write_text(CONFIG.replace("look at birch", "look at birch again"))
        for name, token in TOKENS.items():
            self.pages[name] = PageUser(self.daemon)
            if token is not None:
                self.pages[name].log_in(token)
        unstable = f"[{', '.join([str(int(world.clock.now.timestamp() * 1000))] * 3)}]"
        self.write(
            "insert into problem (kind, name, part, key, severity, text, reason, fault, count, since, last_seen_at, openings)"
            f" select kind, name, '', 'failed', 'warning', '', 'exit', '', 1, 1, 1, '{unstable}' from entry"
        )
        columns = (
            "kind, name, part, key, severity, text, reason, fault, count, since, last_seen_at, opened_at, openings, cause_id"
        )
        for subject in ("'provider', 'shared'", "'provider', 'elsewhere'", "'channel', 'birch-channel'"):
            values = f"{subject}, '', 'refused', 'warning', 'birch fails', 'auth', '', 1, 1, 1, 1, '[1]', null"
            self.write(f"insert into problem ({columns}) values ({values})")
        for provider, entries in {"shared": "entry.kind = 'heartbeat'", "elsewhere": "entry.name like 'birch%'"}.items():
            self.write(
                f"insert into problem ({columns}) select entry.kind, entry.name, '', '{provider}', 'warning', '', 'auth', '', 1, 1, 1,"
                f" null, '[]', problem.id from entry, problem where problem.name = '{provider}' and {entries}"
            )
        self.daemon.do(lambda: world.run(minutes=1))

    def reload(self, text: str) -> None:
        self.daemon.config.write_text(text)
        assert self.daemon.post("/-/reload", {}, TOKENS["chief"]).status == 200

    def write(self, statement: str) -> int:
        """Execute a statement in the engine's thread, and return the id of an inserted row."""
        return int(self.daemon.do(lambda: self.daemon.world.store.connection.execute(statement).lastrowid))

    def run_without_result(self) -> int:
        """A run of alder whose result can still be reported."""
        now = int(self.daemon.now.timestamp() * 1000)
        return self.write(
            "insert into run (kind, name, slot, trigger, state, outcome, attempt, fence, owner, started_at, finished_at,"
            f" result_due_at) select 'heartbeat', 'alder', {now} + count(*), 'api', 'closed', 'async', 1, 1, 'x', {now}, {now}, {now + 9**8}"
            " from run"
        )

    def open_problem(self, *, is_acknowledged: bool) -> int:
        """A problem that alder has."""
        acked = "1, 'warning'" if is_acknowledged else "null, null"
        return self.write(
            "insert into problem (kind, name, part, key, severity, text, reason, fault, count, since, last_seen_at, opened_at,"
            " openings, acked_at, acked_severity) select 'heartbeat', 'alder', 'reported', 'made-' || coalesce(max(id), 0), 'warning',"
            f" '', '', '', 1, 1, 1, 1, '[1]', {acked} from problem"
        )

    def number_of(self, path: str) -> int:
        """A run, message or wake of alder, or the change of the config that renamed it."""
        if "/runs/" in path:
            return self.run_without_result()
        if "/questions/" in path:
            asked = self.daemon.post(f"/api/v1/runs/{self.run_without_result()}/ask", {"text": "May I?"}, TOKENS["chief"])
            return int(asked.data["question"]["id"])
        if "/problems/" in path:
            return self.open_problem(is_acknowledged=path.endswith("/unack"))
        table = "outbox" if "/outbox/" in path else "config_event" if "/changes/" in path else "wake"
        where = "diff like '%birch-old%'" if table == "config_event" else "name = 'alder'"
        if table == "wake":
            where += " and state = 'planned'"
            self.daemon.post("/api/v1/agents/alder/wake", {"text": "look", "in": "1h"}, TOKENS["chief"])
        read = f"select max(id) from {table} where {where}"
        return int(self.daemon.do(lambda: self.daemon.world.store.connection.execute(read).fetchone()[0]))

    def filled(self, path: str) -> str:
        """The path with existing names and numbers, those of alder where there are any."""
        path = path.replace("{id}", str(self.number_of(path))) if "{id}" in path else path
        is_job = "/cron/" in path or "/jobs/" in path
        return path.replace("{name}", "birch-job" if is_job else "alder").replace("{action}", "pause")

    def version(self) -> str:
        return hashlib.sha256(self.daemon.config.read_bytes()).hexdigest()

    def checklist_version(self) -> str:
        return hashlib.sha256((self.daemon.config.parent / "tree/HEARTBEAT.md").read_bytes()).hexdigest()

    def state(self) -> str:
        """Everything that a request can change: all rows of the database, the config and the checklist."""

        def read() -> str:
            db = self.daemon.world.store.connection
            tables = [row[0] for row in db.execute("select name from sqlite_master where type = 'table' order by name")]
            return repr([(table, [tuple(row) for row in db.execute(f"select * from {table}")]) for table in tables])

        return f"{self.daemon.do(read)}{self.version()}{self.checklist_version()}"

    def send(self, method: str, path: str, body: Any, caller: str) -> Told:
        """A request of the API."""
        reply = self.daemon.send(method, path, body, TOKENS[caller])
        text = reply.body.decode()
        data = json.loads(text) if reply.headers.get("content-type") == "application/json" else None
        return Told(reply.status, reply.status in (401, 403), text, data)

    def call_tool(self, name: str, arguments: Mapping[str, Any], caller: str) -> Told:
        """A call of a tool over MCP."""
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments}}
        accept = {"Accept": "application/json, text/event-stream"}
        reply = self.daemon.send("POST", MCP_PATH, call, TOKENS[caller], accept)
        result = reply.data.get("result", {}) if reply.status == 200 else {}
        return Told(reply.status, reply.status != 200 or result["isError"], reply.body.decode(), result.get("structuredContent"))

    def edit(self, way: str, key: str, value: str, caller: str) -> Told:
        """Change a key of alder's heartbeat in one of the ways."""
        changes = {"heartbeat": {key: value}}
        if way == "MCP":
            return self.call_tool("set", {"agent": "alder", "changes": changes}, caller)
        if way == "page":
            seen = "HEARTBEAT.md" if key == "checklist" else "33m"
            fields = {"step": "write", "hash": self.version(), f"heartbeat.{key}": value, f"seen:heartbeat.{key}": seen}
            return self.open_page("POST", "/page/agents/alder/config", fields, caller)
        body = {"changes": changes, "hash": self.version(), "dry_run": way == "dry run"}
        return self.send("PATCH", "/api/v1/agents/alder/config", body, caller)

    def open_page(self, method: str, path: str, fields: dict[str, str], caller: str) -> Told:
        """A view of the page, or a form. A refused form leads back with its error as a notice."""
        user = self.pages[caller]
        if method == "POST":
            fields = {"form_code": "" if caller == "none" else user.get("/").form_code} | fields
        answer = user.send(method, path, fields if method == "POST" else None)
        notice = next((each for each in answer.cookies if each.startswith("heartbeatd_notice")), "")
        user.cookies.pop("heartbeatd_notice", None)
        to_login = answer.headers.get("location", "").startswith("/page/login")
        notice = unquote(notice)
        is_refused = (
            answer.status == 403 or to_login or any(each in notice for each in ("may not", "is only for", "is limited to"))
        )
        return Told(answer.status, is_refused, answer.body + notice)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    (tmp_path / "tree").mkdir(parents=True)
    (tmp_path / "tree/HEARTBEAT.md").write_text("- look\n")
    with WebDaemon(tmp_path, CONFIG.replace("alder", "birch-old")) as daemon:
        fleet = Fleet(daemon)
        fleet.prepare()
        yield fleet


@dataclass(frozen=True)
class Rule:
    """What is expected: `own`: it concerns alder alone; `whole`: the daemon or a job; otherwise each token gets its part."""

    own: bool
    whole: bool
    changes: bool
    only_suggests: bool = False  # a token that may only read gets the lines to write

    def is_refused(self, caller: str) -> bool:
        if caller == "none":
            return True
        if caller == "reader":
            return self.changes and not self.only_suggests
        return (self.whole and caller in LIMITED) or (self.own and caller == "birch") or (self.is_unknown and caller in LIMITED)

    @property
    def is_unknown(self) -> bool:
        """A change of which nothing says whom it concerns is refused for limited tokens."""
        return self.changes and not self.own and not self.whole


def rule_of(method: str, path: str, body: Any = None) -> Rule:
    is_whole = path in WHOLE | WHOLE_PAGE or "/cron/{name}" in path
    is_own = (
        not is_whole
        and path != "/page/changes/{id}"
        and ("{name}" in path or "{id}" in path or "agent" in (body or {}) or path == "/api/v1/runs")
    )
    changes = method != "GET" and path != "/page/simulate"
    return Rule(is_own, is_whole, changes, method == "PATCH" or path == "/page/agents/{name}/config")


def check(fleet: Fleet, what: str, rule: Rule, caller: str, told: Told, before: str) -> None:
    """Assert that the caller was refused and nothing has changed, or got nothing of others."""
    where = f"{what} by {caller}: {told.status} {told.text[:500]}"
    assert told.is_refused == rule.is_refused(caller), where
    if told.is_refused or not rule.changes or caller == "reader":
        assert fleet.state() == before, f"{where}: something has changed"
    if not told.is_refused:
        assert told.status in (200, 303, 409) or (told.status == 404 and "/changes/" in what), where
    if caller in LIMITED:
        stranger = "birch" if caller == "alder" else "alder"
        shown = told.text.replace("only for the agents", "")
        assert stranger not in shown or (told.is_refused and rule.own), f"{where}: it names {stranger}"


def test_a_field_without_a_mark_is_hidden_from_a_limited_token() -> None:
    limited = Caller("alder", frozenset(("read",)), frozenset(("alder",)))
    whole = ConfigFile(path="config.yaml", hash="0" * 64, declared={"agents": {}})
    assert cut(whole, limited).as_data() == {"path": None, "hash": None, "declared": {}}
    assert cut(WakeAccepted(wake=1, says="queued"), limited).as_data() == {"wake": 1, "says": "queued"}
    assert whole.path == "config.yaml"  # the answer itself is not changed


def test_the_runs_that_left_no_room_for_a_run_of_a_limited_token_are_hidden() -> None:
    limited = Caller("alder", frozenset(("read",)), frozenset(("alder",)))
    runs = [LastRun.model_construct(why=why, error="by agent/birch (run 7)", state="closed") for why in ("missed", "busy")]
    assert [cut(each, limited).error for each in runs] == [None, "by agent/birch (run 7)"]


class Maps(SharedBody):
    """An answer with a map of what belongs to agents, and a map of what concerns the whole daemon."""

    shares: dict[str, BudgetShare]
    files: dict[str, ConfigFile]


def test_a_map_is_cut_for_a_limited_token_as_a_list_is() -> None:
    limited = Caller("alder", frozenset(("read",)), frozenset(("alder",)))
    shares = {name: BudgetShare(kind="heartbeat", name=name, usd=1.0, tokens=2, runs=3) for name in ("alder", "birch")}
    whole = Maps(shares=shares, files={"main": ConfigFile(path="config.yaml", hash="0" * 64, declared={})})
    shown = cut(whole, limited).as_data()
    assert (list(shown["shares"]), shown["files"]) == (["alder"], {"main": {"path": None, "hash": None, "declared": {}}})


def test_the_errors_and_warnings_of_a_config_are_cut_to_the_agents_of_a_limited_token() -> None:
    limited = Caller("alder", frozenset(("read",)), frozenset(("alder",)))
    own = ["agents.alder", "agents.alder.heartbeat", "agents.alder.heartbeat.interval", "agents.alder.heartbeat[0]"]
    others = ["agents.birch", "agents.alder.heartbeats", "agents.alder.night", "agents.alder-2.heartbeat", "limits.concurrency"]
    found = [Diagnostic(1, 1, path, "it is wrong") for path in own + others]
    error = cut_errors(ConfigError(found, found), limited)
    assert [each.path for each in error.errors] == [*own, ""]
    assert [each.path for each in error.warnings] == own


def test_every_caller_sees_and_changes_only_what_its_token_permits(fleet: Fleet) -> None:
    requests = [*api_rows(fleet), stream_row(fleet)]
    others = page_rows(fleet, {what for what, _ in requests})
    rows = [*requests, *tool_rows(fleet), *others, *file_rows(fleet), *pending_rows(fleet)]
    print(table(rows))  # noqa: T201 (for `pytest -s`)


def api_rows(fleet: Fleet) -> Iterator[Row]:
    """Every request of the API."""
    for each in ENDPOINTS.values():
        sent = SENT.get(each.operation, {})
        body = dict(sent) if each.method != "GET" else None
        rule, answers, what = rule_of(each.method, each.path, body), {}, f"{each.method} {each.path}"
        for caller in CALLERS:
            if body is not None and each.operation is SetConfig:
                body |= {"hash": fleet.version(), "changes": CHANGES.get(each.path, body["changes"])}
            if body is not None and each.operation is SetChecklist:
                body |= {"hash": fleet.checklist_version()}
            filled = fleet.filled(each.path) + (f"?{urlencode(sent)}" if body is None and sent else "")
            before = fleet.state()
            answers[caller] = fleet.send(each.method, filled, body, caller)
            check(fleet, what, rule, caller, answers[caller], before)
            if answers[caller].status == 200:  # without what a limited token may not see it is valid too
                TypeAdapter(each.operation.answer_type()).validate_json(answers[caller].text)
        if each.path in PARTS:
            shown = {key for key, value in answers["alder"].data.items() if value not in (None, [], {})}
            assert shown <= PARTS[each.path], (each.path, shown - PARTS[each.path])
        yield what, [describe(answers, caller) for caller in CALLERS]


def stream_row(fleet: Fleet) -> Row:
    """The event stream, which is written by hand. What a limited token sees of it is in test_event_stream."""
    answers = {caller: fleet.send("GET", event_stream.PATH, None, caller) for caller in CALLERS}
    assert {caller: answer.status for caller, answer in answers.items()} == dict.fromkeys(CALLERS, 200) | {"none": 401}
    return f"GET {event_stream.PATH}", [describe(answers, caller) for caller in CALLERS]


def tool_rows(fleet: Fleet) -> Iterator[Row]:
    """Every tool of MCP, if this extra is installed."""
    for tool in TOOLS:
        arguments = dict(TOOL_ARGUMENTS.get(tool.name, {})) | ({"agent": "alder"} if "agent" in tool.required else {})
        answers, changes = {}, not tool.is_read_only
        for caller in CALLERS:
            arguments |= {"hash": fleet.checklist_version()} if tool.name == "set_checklist" else {}
            arguments |= {each: str(fleet.number_of(f"/{each}s/")) for each in NUMBERED if each in tool.required}
            before = fleet.state()
            answers[caller] = fleet.call_tool(tool.name, arguments, caller)
            rule = Rule(
                bool(arguments.keys() & {"agent", *NUMBERED}), whole=False, changes=changes, only_suggests=tool.name == "set"
            )
            check(fleet, f"MCP {tool.name}", rule, caller, answers[caller], before)
        yield f"MCP {tool.name}", [describe(answers, caller) for caller in CALLERS]


def page_rows(fleet: Fleet, sent: Collection[str]) -> Iterator[Row]:
    """Every view and form of the page. `sent` are the requests of the API that were sent before."""
    for method, path in page_requests(fleet, sent):
        endpoint = next((each for each in VERB_ENDPOINTS.values() if form_path(each.path) == path), None)
        body = SENT.get(endpoint.operation, {}) if endpoint else {}
        rule, answers = rule_of(method, endpoint.path if endpoint else path, body), {}
        for caller in CALLERS:
            fields = {f"{key}:json": json.dumps(value) for key, value in body.items()} | FORM_FIELDS.get(path, {})
            fields |= {"version": fleet.checklist_version(), "hash": fleet.version()} if "{name}/c" in path else {}
            filled = fleet.filled(path)
            before = fleet.state()
            answers[caller] = fleet.open_page(method, filled, fields, caller)
            check(fleet, f"{method} {path}", rule, caller, answers[caller], before)
        yield f"{method} {path}", [describe(answers, caller) for caller in CALLERS]


def file_rows(fleet: Fleet) -> Iterator[Row]:
    """Nobody can make a file a checklist, and so run it or read it, and nobody can replace a file that something else names."""
    for name in ("run.sh", ".env", "../birch/notes.md"):
        for way in WAYS_TO_EDIT:
            cells = []
            for caller in CALLERS:
                before = fleet.state()
                told = fleet.edit(way, "checklist", name, caller)
                assert fleet.state() == before, (way, name, caller, told)
                cells.append(f"not written {told.status}")
            yield f"{way}: checklist {name}", cells
    for line in ("runner: {kind: command, argv: [agent, ./HEARTBEAT.md]}", "context: [HEARTBEAT.md]"):
        text = fleet.daemon.config.read_text()
        key = line.partition(":")[0]
        fleet.reload(re.sub(rf"  alder:\n(?:    {key}: .*\n)?", f"  alder:\n    {line}\n", text))
        before = fleet.state()
        body = {"text": "#!/bin/sh\n", "hash": fleet.checklist_version()}
        told = fleet.send("PUT", "/api/v1/agents/alder/checklist", body, "chief")
        assert (told.status, told.data["error"]["code"], fleet.state() == before) == (409, "used_elsewhere", True), told
        fleet.reload(text)
        yield f"PUT checklist named by {key}", ["", "", "", "", f"refused {told.status}"]


def pending_rows(fleet: Fleet) -> Iterator[Row]:
    """A token for one agent applies no changes of others that wait in the file, and reads its own entry beside wrong ones."""
    text = fleet.daemon.config.read_text()
    fleet.reload(f"reload: manual\n{text}")
    for way in WAYS_TO_EDIT:  # an error has the warnings of the whole file with it
        told = fleet.edit(way, "interval", "soon", "alder")
        assert ("soon" in told.text, "birch" in told.text, "chief" in told.text) == (True, False, False), (way, told)
        yield f"{way}: a wrong value", ["", "", "", f"not written {told.status}", ""]
    for what, pending in {
        "a change of birch": text.replace("look at birch", "look at all birch trees"),
        "a precheck": text.replace("budget: {runs_per_day: 900}", "budget: {runs_per_day: 900}, precheck: {command: check}"),
        "an error of birch": text.replace("prompt: look", "interval: birch-often, prompt: look"),
    }.items():
        fleet.daemon.config.write_text(f"reload: manual\n{pending}")
        for way in WAYS_TO_EDIT:
            before, active = fleet.state(), fleet.daemon.settings
            told = fleet.edit(way, "interval", "47m", "alder")
            assert (fleet.state() == before, fleet.daemon.settings is active) == (True, True), (what, way, told)
            assert "birch" not in told.text, (what, way, told)
            yield f"{way}: beside {what}", ["", "", "", f"not written {told.status}", ""]
        if what != "a precheck":
            told = fleet.send("GET", "/api/v1/agents/alder/config", None, "alder")
            assert (told.status, "birch" in told.text) == (200, False), (what, told)
    fleet.reload(text)


def form_path(path: str) -> str:
    return f"/page/do/{path.removeprefix('/api/v1/').removeprefix('/-/')}"


def page_requests(fleet: Fleet, sent: Collection[str]) -> Iterator[tuple[str, str]]:
    """Every route of the application that was not `sent`, except those that need no caller. Each belongs to the page."""
    state = fleet.daemon.app_state
    application = build_application(state, Sessions(state.settings, fleet.daemon.token, state.clock))  # type: ignore[arg-type]
    for route in application.routes:
        assert isinstance(route, Route), route
        for method in sorted(route.methods or {"POST"} - {"HEAD"}):
            if f"{method} {route.path}" not in sent and method != "HEAD" and route.path not in OPEN:
                by_hand = route.path in ("/api/v1/openapi.json", *REMOVED)
                assert route.path == "/" or route.path.startswith("/page/") or by_hand, route.path
                if not by_hand:
                    yield method, route.path


def describe(answers: Mapping[str, Told], caller: str) -> str:
    """A cell of the table: refused, or the fields that are hidden from this caller."""
    told = answers[caller]
    if told.is_refused:
        return f"refused {told.status}"
    everything, shown = answers["chief"].data, told.data
    if not isinstance(everything, dict) or not isinstance(shown, dict) or caller not in LIMITED:
        return f"{told.status}"
    hidden = [key for key, value in everything.items() if value not in (None, [], {}) and shown.get(key) in (None, [], {})]
    return f"{told.status}" + (f" without {', '.join(hidden)}" if hidden else "")


def table(rows: list[Row]) -> str:
    """The table for people: a line for each request, a column for each caller."""
    heads = ["request", "no token", "read only", "other agent", "own token", "all rights"]
    lines = [heads, *([what, *cells] for what, cells in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines)

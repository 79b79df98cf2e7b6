"""The Python client of the API, with and without asyncio: its methods, answers, errors, pages and events, against a real server."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import os
import pickle
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import fields
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from checkout import HOME
from patience import PATIENCE
from servers.scripted import Act, Server, half, hang_up, page, raw, reply, silence
from web_daemon import CONFIG, TOKENS, WebDaemon

from heartbeatd import AsyncClient, Client, Event, HeartbeatdError
from heartbeatd import client as client_module
from heartbeatd.answers import ConfigEdited, ConfigSuggestion, ExplanationAt, ExplanationOn, RunRecord
from heartbeatd.client import StreamPosition
from heartbeatd.errors import error_from_answer, error_from_transport
from heartbeatd.operations import Endpoint, keys_of, parse_operation
from heartbeatd.state_folder import RUN_ID_VARIABLE
from scheduler.model.message import DeliveryResult
from scheduler.system import state_lock
from scheduler.web.app_state import AppState
from scheduler.web.perform import ENDPOINTS, LONGEST_WAIT

CHIEF, READER, OPSMAN, EDITOR = (TOKENS[name] for name in ("chief", "reader", "opsman", "editor"))
MORE_METHODS = {"close", "iterate_runs", "iterate_undelivered", "stream_events"}


def methods_of(client: type[Any]) -> dict[str, Callable[..., Any]]:
    return {name: getattr(client, name) for name in dir(client) if not name.startswith("_")}


# --- the methods are those of the API ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_each_operation_of_the_api_is_a_method(client: type[Any]) -> None:
    assert set(methods_of(client)) == ENDPOINTS.keys() | MORE_METHODS


NAMED = pytest.mark.parametrize("endpoint", ENDPOINTS.values(), ids=lambda each: each.name)


def wire_name(parameter: str) -> str:
    """`for_` and `from_` have a trailing underscore, because Python has these words."""
    return parameter.rstrip("_")


@NAMED
def test_a_method_has_the_parameters_and_the_answer_of_its_operation(endpoint: Endpoint) -> None:
    for client in (Client, AsyncClient):
        signature = inspect.signature(getattr(client, endpoint.name))
        assert signature.return_annotation == endpoint.operation.answer_type()
        defaults = {name: each.default for name, each in signature.parameters.items() if each.kind is each.KEYWORD_ONLY}
        fields = endpoint.operation.model_fields.items()
        assert defaults == {name: inspect.Parameter.empty if each.is_required() else each.default for name, each in fields}
        parameters = list(signature.parameters)[1:]
        in_path = re.findall(r"\{(\w+)\}", endpoint.path)
        assert [wire_name(parameter) for parameter in parameters] == [*in_path, *keys_of(endpoint.operation)]


EXAMPLES: dict[str, Any] = {
    "all": True,
    "at": datetime(2026, 3, 2, 8, tzinfo=UTC),
    "changes": {"timezone": "UTC"},
    "findings": None,
    "error": None,
    "for_": timedelta(minutes=90),
    "from_": datetime(2026, 3, 2, 8, tzinfo=UTC),
    "in_": None,
    "hash": "0" * 64,
    "state": "all",
    "channel": "chat",
    "target": "7",
    "urgent": False,
    "id": 7,
    "key": "chat:4711",
    "kind": "agent",
    "last_event_id": "boot1-3",
    "limit": 10,
    "on": date(2026, 3, 2),
    "options": ["yes", "no"],
    "pending_approvals": 2,
    "queue": 1,
    "run": None,
    "since": datetime(2026, 3, 2, 8, tzinfo=UTC),
    "sort": "cost",
    "timeout": timedelta(minutes=30),
    "until": None,
    "until_changed": True,
    "wait": timedelta(seconds=30),
    "dry_run": True,
    "truncated": False,
}


class Sent:
    """What the client sends; each request is answered with an error."""

    def __init__(self) -> None:
        self.requests: list[httpx2.Request] = []

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        return httpx2.Response(404, json={"error": {"code": "not_found", "message": "there is none"}})


@NAMED
def test_a_method_sends_the_request_of_its_operation(endpoint: Endpoint) -> None:
    """Path, query and body are as the server reads them. `at` is left out, because `on` is sent."""
    sent = Sent()
    with Client("http://127.0.0.1:1", "t") as client:
        client._client._http = httpx2.AsyncClient(transport=httpx2.MockTransport(sent.answer))
        subject = ["a name/é"] if "{name}" in endpoint.path else [7] if "{id}" in endpoint.path else []
        given = {name: EXAMPLES.get(name, f"a {name}/é") for name in endpoint.operation.model_fields if name != "at"}
        given |= {"id": "chat:1"} if "id" in given else {}  # a holder
        with pytest.raises(HeartbeatdError, match="there is none"):
            getattr(client, endpoint.name)(*subject, **given)
    (request,) = sent.requests
    assert request.method == endpoint.method
    path, _, query = request.url.raw_path.decode().partition("?")
    assert re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", endpoint.path), path)
    assert request.headers["authorization"] == "Bearer t"
    keys = dict(httpx2.QueryParams(query)) if endpoint.method == "GET" else json.loads(request.content)
    assert set(keys) == {wire_name(name) for name, value in given.items() if value is not None}
    parse_operation(endpoint.operation, keys, is_query=endpoint.method == "GET")


@pytest.mark.parametrize("arguments", [(), ("ops", "look")])
def test_a_method_for_an_agent_needs_its_name_and_then_named_parameters(client: Client, arguments: tuple[str, ...]) -> None:
    with pytest.raises(TypeError, match=r"wake_agent\(\) takes name and then parameters with their names"):
        client.wake_agent(*arguments)


def test_the_types_of_the_methods_are_those_of_the_operations(tmp_path: Path) -> None:
    """mypy finds a wrong parameter, and knows the answer."""
    program = tmp_path / "program.py"
    program.write_text(
        "from heartbeatd import Client\n"
        "with Client() as daemon:\n"
        "    reveal_type(daemon.pause_agent('ops'))\n"
        "    daemon.wake_agent('ops', txt='look')\n"
    )
    checked = subprocess.run([sys.executable, "-m", "mypy", str(program)], cwd=HOME, capture_output=True, text=True, timeout=250)
    assert "heartbeatd.answers.PausedEntries" in checked.stdout
    assert 'Unexpected keyword argument "txt"' in checked.stdout


def test_programs_of_users_can_be_type_checked() -> None:
    """`make types` checks the client itself."""
    assert (HOME / "heartbeatd/py.typed").exists()
    assert (HOME / "scheduler/py.typed").exists()  # the models are there


def test_the_import_loads_nothing_of_the_engine() -> None:
    code = "import heartbeatd, sys; heartbeatd.Client; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=HOME, capture_output=True, text=True, timeout=PATIENCE, check=True)
    names = set(loaded.stdout.split())
    libraries = {
        "aiohttp",
        "anthropic",
        "apprise",
        "click",
        "croniter",
        "rich",
        "sqlite3",
        "starlette",
        "uvicorn",
        "_ruamel_yaml",
    }
    assert names & libraries == set()
    assert not [name for name in names if name.split(".")[0] in ("scheduler", "heartbeat", "cron")]


# --- requests to a real server -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDaemon]:
    """A daemon with eight runs and, for a channel that is down, six messages, three of them given up."""
    channel = 'channels: {hook: {kind: webhook, url: "http://127.0.0.1:1/x", allow_private: true}}\n'
    with WebDaemon(tmp_path_factory.mktemp("client"), channel + CONFIG.replace("deliver: log", "deliver: hook")) as daemon:
        daemon.world.scripts = {"ops": lambda call: f"ops at {call.at}", "web": lambda call: f"web at {call.at}"}
        states = iter([DeliveryResult("dead", "400")] * 3)
        daemon.world.send = lambda delivery: next(states, DeliveryResult("retry", "503"))
        for _ in range(3):
            daemon.do(lambda: daemon.world.run(minutes=30))
        daemon.do(daemon.world.settle)
        yield daemon


@pytest.fixture
def client(daemon: WebDaemon) -> Iterator[Client]:
    with Client(daemon.server.url, CHIEF) as client:
        yield client


def run_async(daemon: WebDaemon, use: Callable[[AsyncClient], Any], token: str = CHIEF) -> Any:
    async def main() -> Any:
        async with AsyncClient(daemon.server.url, token) as client:
            return await use(client)

    return asyncio.run(asyncio.wait_for(main(), 30))


def test_answers_are_typed(daemon: WebDaemon, client: Client) -> None:
    status = client.get_status()
    assert {entry.name for entry in status.entries} == {"ops", "web", "measure"}
    assert client.get_caller().name == "chief"
    run = client.list_runs(name="ops", limit=1).runs[0]
    assert isinstance(run, RunRecord)
    assert run.planned_at == datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
    assert client.get_run(run.id).text == run.text
    plan = client.get_plan(for_=timedelta(hours=2), name="ops")
    assert plan.until - plan.from_ == timedelta(hours=2)
    assert client.get_plan(for_="1h", all=True).entries[0].days[0].firings
    assert isinstance(client.get_explanation("ops", on=date(2026, 3, 2)), ExplanationOn)
    assert isinstance(client.get_explanation("ops", at=daemon.now), ExplanationAt)
    assert client.get_explanation("ops").now.would_run
    assert client.get_overview(on="today").zone == "UTC"
    assert [agent.name for agent in client.list_agents().agents] == ["ops", "web"]
    assert [job.name for job in client.list_jobs().cron] == ["measure"]
    assert [each.key for each in client.list_problems(state="all").problems] == ["undelivered"]


def test_changes_are_made(client: Client, daemon: WebDaemon) -> None:
    assert client.pause_agent("web", for_=timedelta(hours=1)).paused == ["agent/web"]
    assert client.get_agent("web").state == "paused"
    assert client.resume_agent("web").resumed == ["agent/web"]
    assert client.mute_agent("web", until=daemon.now + timedelta(hours=3)).muted_until == daemon.now + timedelta(hours=3)
    assert client.unmute_agent("web").was_muted
    assert client.lock_agent("ops", id="chat:1", for_=timedelta(minutes=2)).id == "chat:1"
    wake = client.wake_agent("ops", text="the door rang")
    assert client.get_wake(wake.wake).name == "ops"
    assert client.unlock_agent("ops", id="chat:1").id == "chat:1"
    assert client.record_activity("ops", queue=2).queue == 2


def test_the_config_is_edited_or_the_lines_are_returned(daemon: WebDaemon) -> None:
    with Client(daemon.server.url, EDITOR) as editor, Client(daemon.server.url, READER) as reader:
        version = reader.get_agent_config("ops").hash
        suggested = reader.patch_agent_config("ops", changes={"heartbeat": {"interval": "45m"}}, hash=version)
        assert isinstance(suggested, ConfigSuggestion)
        assert "interval: 45m" in suggested.yaml
        edited = editor.patch_agent_config("ops", changes={"heartbeat": {"interval": "45m"}}, hash=version, dry_run=True)
        assert isinstance(edited, ConfigEdited)
        assert any("45m" in line for line in edited.diff)
        with pytest.raises(HeartbeatdError) as failed:
            editor.patch_agent_config("ops", changes={"heartbeat": {"interval": "soon"}}, hash=version)
        assert (failed.value.code, failed.value.status) == ("config_errors", 422)
        assert failed.value.problems[0].path == "agents.ops.heartbeat.interval"
        assert "'soon' is not a duration" in failed.value.message
        with pytest.raises(HeartbeatdError) as failed:
            editor.put_checklist("ops", text="- look\n", hash="none")
        assert failed.value.code == "in_config"


def test_an_error_has_its_code_message_and_advice(client: Client, daemon: WebDaemon) -> None:
    with pytest.raises(HeartbeatdError) as failed:
        client.get_run(999)
    assert (failed.value.code, failed.value.status, failed.value.message) == ("not_found", 404, "there is no run 999")
    assert failed.value.advice == ""
    with Client(daemon.server.url, READER) as reader, pytest.raises(HeartbeatdError) as failed:
        reader.pause_all()
    assert failed.value.code == "forbidden"
    assert failed.value.advice == "add operate to server.tokens.reader.may"
    copied = pickle.loads(pickle.dumps(failed.value))
    assert (copied.code, copied.status, copied.message) == ("forbidden", 403, failed.value.message)


@pytest.mark.parametrize("name", ["..", ".", ""])
def test_a_name_cannot_lead_to_another_operation(client: Client, name: str) -> None:
    """/agents/../pause would pause everything."""
    with pytest.raises(HeartbeatdError, match="is not a name"):
        client.pause_agent(name)
    with pytest.raises(HeartbeatdError) as failed:
        client.pause_agent("a/../../x")
    assert failed.value.code == "not_found"


def test_pages_are_followed(client: Client, daemon: WebDaemon) -> None:
    runs = client.list_runs(limit=100).runs
    assert [run.id for run in client.iterate_runs(limit=2)] == [run.id for run in runs]
    assert [run.id for run in client.iterate_runs(limit=1, name="web")] == [run.id for run in runs if run.name == "web"]
    messages = [message.id for message in client.list_undelivered().outbox]
    assert len(messages) == 6
    assert [message.id for message in client.iterate_undelivered(limit=4)] == messages

    async def collect(later: AsyncClient) -> Any:
        return [run.id async for run in later.iterate_runs(limit=2)], [each.id async for each in later.iterate_undelivered()]

    assert run_async(daemon, collect) == ([run.id for run in runs], messages)


def test_the_client_for_asyncio_sends_the_same_requests_at_the_same_time(daemon: WebDaemon) -> None:
    async def use(later: AsyncClient) -> Any:
        return await asyncio.gather(*(later.get_agent(name) for name in ("ops", "web") * 20))

    assert {agent.name for agent in run_async(daemon, use)} == {"ops", "web"}


# --- events --------------------------------------------------------------------------------------------------------------------


def test_events_are_typed(daemon: WebDaemon, client: Client) -> None:
    with closing(client.stream_events("boot1-0")) as events:
        first = next(events)
        assert (first.type, first.kind, first.trigger) == ("started", "heartbeat", "interval")
        assert first.planned_at == datetime(2026, 3, 2, 8, tzinfo=UTC)
        types = {first.type} | {next(events).type for _ in range(8)}
    assert {"started", "ended", "said"} <= types


def test_a_reader_resumes_when_a_reload_ends_the_stream(tmp_path: Path) -> None:
    with WebDaemon(tmp_path) as daemon:
        daemon.world.scripts["ops"] = lambda call: f"the disk is full at {call.at}"

        async def follow(later: AsyncClient) -> list[Event]:
            found: list[Event] = []
            events = later.stream_events("boot1-0")
            run = partial(asyncio.to_thread, daemon.do, lambda: daemon.world.run(minutes=30))
            await run()
            async for event in events:
                found.append(event)
                if len(found) == 2:
                    daemon.config.write_text(CONFIG.replace("30m", "15m"))
                    await later.reload_config()
                    await run()
                if "reloaded" in {each.type for each in found} and event.type == "delivered":
                    await events.aclose()
            return found

        found = run_async(daemon, follow)
        numbers = [int(event.id.rpartition("-")[2]) for event in found]
        assert numbers == list(range(1, len(found) + 1))  # none is missing, none comes twice
        assert [event.config_hash for event in found if event.type == "reloaded"] == [daemon.settings.hash]


def test_an_event_has_each_field_that_the_documentation_names() -> None:
    section = (HOME / "docs/api.md").read_text("utf-8").partition("## Events")[2].partition("\n## ")[0]
    data_of_type = dict(re.findall(r"^\| `(\w+)` \| .* \| ([^|]*) \|$", section, re.MULTILINE))
    words = {word for data in data_of_type.values() for listed in re.findall("`([a-z_ ]+)`", data) for word in listed.split()}
    assert words - data_of_type.keys() - {"asked", "answered"} <= Event.model_fields.keys()
    assert all(f"`{each}`" in (Event.__doc__ or "") for each in data_of_type)


def test_a_reader_waits_longer_after_each_failure_and_resumes_where_it_was() -> None:
    position, lost = StreamPosition(None), HeartbeatdError("unreachable", "lost")
    with pytest.raises(HeartbeatdError, match="lost"):  # it was never connected
        position.next_pause(lost)

    def pauses(*most: float) -> list[bool]:
        return [longest / 2 <= position.next_pause(lost) <= longest for longest in most]

    position.receive(httpx2.ServerSentEvent("started", "{}", "boot1-7", retry=4000))
    assert pauses(4, 8, 16, 30, 30) == [True] * 5
    position.receive(httpx2.ServerSentEvent("message", "", ""))
    assert (position.headers(), pauses(4, 8)) == ({"Last-Event-ID": "boot1-7"}, [True] * 2)
    for status in (502, 503, 504):
        assert position.next_pause(HeartbeatdError("unexpected_answer", "a proxy", status=status)) > 0
    with pytest.raises(HeartbeatdError, match="no longer valid"):
        position.next_pause(HeartbeatdError("unauthorized", "no longer valid", status=401))


def test_an_id_that_no_header_can_hold_is_rejected(client: Client) -> None:
    with pytest.raises(HeartbeatdError, match="is no ID of an event"):
        next(client.stream_events("é"))


def test_a_rejected_reader_raises_the_error(daemon: WebDaemon) -> None:
    with Client(daemon.server.url, TOKENS["waker"]) as waker, pytest.raises(HeartbeatdError) as failed:
        next(waker.stream_events())
    assert failed.value.code == "forbidden"


# --- the thread of the client for ordinary programs ------------------------------------------------------------------------------

THREADS = {  # what happens to a program: its code, and what it prints
    "after Ctrl-C in a stream, requests go on": """
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            for event in client.stream_events(): pass
        except KeyboardInterrupt:
            print(client.get_caller().name)
    """,
    "a fork has a thread of its own": """
        client.get_caller()
        if child := os.fork():
            os.waitpid(child, 0)
        else:
            print(client.get_caller().name, flush=True)
            os._exit(0)
    """,
    "an iterator is collected in the thread itself": """
        cycle = [runs := client.iterate_runs(limit=1)]
        next(runs)
        cycle.append(cycle)
        del cycle, runs
        async def collect(): gc.collect()
        client._run(collect())
        print(client.get_caller().name)
    """,
    "a client that is not closed takes its thread along": """
        client.get_caller()
        thread, = set(threading.enumerate()) - {threading.main_thread()}
        del client
        thread.join()
        print("chief")
    """,
}


@pytest.mark.parametrize("program", THREADS.values(), ids=THREADS.keys())
def test_a_program_never_waits_for_its_thread_in_vain(daemon: WebDaemon, program: str) -> None:
    code = "import gc, os, signal, threading, heartbeatd\nclient = heartbeatd.Client()\n" + textwrap.dedent(program)
    environment = {**os.environ, "HEARTBEATD_URL": daemon.server.url, "HEARTBEATD_TOKEN": CHIEF}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=HOME, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.stdout, done.stderr) == ("chief\n", "")


# --- where the daemon is, and connections that fail ------------------------------------------------------------------------------


def state_folder(folder: Path, url: str, token: str = CHIEF) -> Path:
    """A state folder as that of a daemon that runs in this process."""
    (folder / "config.yaml").write_text("state: data/own.db\n")
    (folder / "data").mkdir()
    (folder / "data/daemon.json").write_text(json.dumps({"pid": os.getpid(), "url": url}))
    (folder / "data/token").write_text(f"{token}\n")
    return folder / "data/own.db"


def locked(database: Path) -> state_lock.StateLock:
    path = database.with_name(f"{database.name}.lock")
    return state_lock.StateLock.take(path, started_at=datetime(2026, 3, 2, tzinfo=UTC), instance="x")


def test_the_daemon_is_found_by_its_config_and_its_state_folder(
    daemon: WebDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    database = state_folder(tmp_path, daemon.server.url)
    with (
        locked(database),
        Client() as plain,
        Client(config=tmp_path / "config.yaml") as by_config,
        Client(state=database) as by_state,
    ):
        assert {client.get_caller().name for client in (plain, by_config, by_state)} == {"chief"}
        monkeypatch.setenv("HEARTBEATD_TOKEN", READER)
        assert plain.get_caller().name == "reader"
        monkeypatch.setenv("HEARTBEATD_URL", "http://127.0.0.1:1")  # is not asked if the program names a daemon
        assert {client.get_caller().name for client in (by_config, by_state)} == {"reader"}
        with Client(token=OPSMAN, state=database) as named:
            assert named.get_caller().name == "opsman"
        monkeypatch.delenv("HEARTBEATD_URL")
    with Client() as stopped, pytest.raises(HeartbeatdError) as failed:
        stopped.get_status()
    assert failed.value.code == "not_running"
    assert failed.value.advice == "start it with `heartbeatd run`, or pass url= and token="


def test_the_address_of_an_earlier_process_is_not_used(tmp_path: Path) -> None:
    database = state_folder(tmp_path, "http://127.0.0.1:1")
    (tmp_path / "data/daemon.json").write_text(json.dumps({"pid": 1, "url": "http://127.0.0.1:1"}))
    with locked(database), Client(state=database) as client, pytest.raises(HeartbeatdError, match="does not listen yet"):
        client.get_status()


def test_the_environment_names_the_address_and_the_token(daemon: WebDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEARTBEATD_URL", f"{daemon.server.url}/")
    with Client() as client:
        with pytest.raises(HeartbeatdError, match="there is no token for"):
            client.get_caller()
        monkeypatch.setenv("HEARTBEATD_TOKEN", OPSMAN)
        assert client.get_caller().name == "opsman"


def test_without_a_connection_nothing_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:2")  # the daemon is local, and no proxy gets its token
    with Client("http://127.0.0.1:1", "t") as client, pytest.raises(HeartbeatdError) as failed:
        client.run_job("measure")
    assert failed.value.code == "unreachable"
    assert failed.value.message.startswith("http://127.0.0.1:1 cannot be reached")


@pytest.mark.parametrize(
    ("url", "token", "code"),
    [("ftp://127.0.0.1", "t", "bad_url"), ("nonsense", "t", "bad_url"), ("http://127.0.0.1:1", "a\nb", "bad_token")],
)
def test_a_wrong_address_or_token_is_reported_without_the_token(url: str, token: str, code: str) -> None:
    with Client(url, token) as client, pytest.raises(HeartbeatdError) as failed:
        client.get_status()
    assert failed.value.code == code
    assert token == "t" or token not in str(failed.value)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (hang_up(), "interrupted"),
        (half({}), "interrupted"),
        (silence(), "timeout"),
        (reply({}), "unexpected_answer"),
        (page(502), "unexpected_answer"),
        (reply(status=302, Location="http://127.0.0.1:1/"), "unexpected_answer"),
        (raw(b"nonsense\r\n\r\n"), "interrupted"),
    ],
)
def test_a_request_that_may_have_been_carried_out_is_not_repeated(answer: Act, code: str) -> None:
    with Server([answer]) as broken, Client(broken.url, "t", timeout=0.3) as client:
        with pytest.raises(HeartbeatdError) as failed:
            client.wake_agent("ops")
        assert failed.value.code == code
        assert len(broken.requests) == 1


def test_the_token_is_in_no_log_line_and_in_no_representation(daemon: WebDaemon, caplog: pytest.LogCaptureFixture) -> None:
    for logger in (None, "httpx2", "httpcore2"):  # another test may have set their levels
        caplog.set_level(logging.DEBUG, logger)
    with Client(daemon.server.url, CHIEF) as client:
        client.get_status()
        assert CHIEF not in repr(client._client._source) + str(vars(client._client))
    assert "HTTP Request" in caplog.text
    assert CHIEF not in caplog.text


def test_many_errors_of_a_config_are_counted_in_the_message_and_listed_in_full() -> None:
    complaints = [{"line": number, "column": 1, "path": "a", "message": "x"} for number in range(1, 6)]
    answer = httpx2.Response(422, json={"ok": False, "errors": complaints, "warnings": complaints[:1]})
    error = error_from_answer(answer)
    assert error.message == "1:1: a: x / 2:1: a: x / 3:1: a: x / and 2 more"
    assert (error.code, error.status, len(error.problems), len(error.warnings)) == ("config_errors", 422, 5, 1)


def test_a_connection_that_is_not_made_in_time_has_sent_nothing() -> None:
    request = httpx2.Request("POST", "http://user:canary@127.0.0.1:1/x")
    codes = {
        error_from_transport(kind("", request=request)).code
        for kind in (httpx2.ConnectTimeout, httpx2.ConnectError, httpx2.PoolTimeout)
    }
    assert codes == {"unreachable"}
    assert "canary" not in error_from_transport(httpx2.ReadTimeout("", request=request)).message
    assert [client_module.timeouts(seconds).connect for seconds in (0.3, 60.0)] == [0.3, 5.0]


def test_a_client_waits_longer_for_a_response_than_the_daemon_for_the_answer_of_a_person() -> None:
    (engine,) = (each.default for each in fields(AppState) if each.name == "answer_timeout")
    assert LONGEST_WAIT.total_seconds() + engine < client_module.ANSWER_SECONDS


def test_a_request_of_a_run_names_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN_ID_VARIABLE, "boot1.7")
    with Client("http://127.0.0.1:1", "t", headers={"X-Proxy": "1"}) as client:
        headers = client_module.request_headers(client._client._source.find_address(), client._client._headers)
    assert headers == {"Authorization": "Bearer t", "X-Proxy": "1", "X-Heartbeatd-Run": "boot1.7"}

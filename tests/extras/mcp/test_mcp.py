"""The MCP server, driven by the official client: over HTTP with tokens of each kind, and as a program on stdin and stdout."""

from __future__ import annotations

import asyncio
import hashlib
import json
import ssl
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from checkout import HOME
from click import ClickException
from daemon_process import Daemon
from loops import loop_over
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from test_story_same_everywhere import CASES, played_daemon
from web_daemon import WebDaemon
from world import Delayed

from scheduler.cli.daemon_client import HttpDaemonClient
from scheduler.cli.daemon_files import DaemonFiles
from scheduler.cli.main import main
from scheduler.extras.mcp.mcp_server import TOOLS, Tool, tool_of
from scheduler.web.perform import ENDPOINTS

CONFIG = """\
server: {listen: "127.0.0.1:0", tokens: {
  reader: {value: "reader-token-with-enough-bits-in-it", may: [read]},
  waker: {value: "waker-token-with-enough-bits-in-it-1", may: [wake]},
  self: {value: "self-token-with-enough-bits-in-it-11", may: [read, edit, wake, operate], agents: [ops]}}}
agents:
  ops:
    runner: {kind: command, argv: [agent]}
    heartbeat:
      interval: 30m   # twice an hour
      stagger: 0s
      deliver: log
      ask: log
  web:
    runner: {kind: command, argv: [agent]}
    heartbeat: {interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: log}
"""
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # a default context reads the certificates of all authorities, for each client
TOKENS = {
    "reader": "reader-token-with-enough-bits-in-it",
    "waker": "waker-token-with-enough-bits-in-it-1",
    "self": "self-token-with-enough-bits-in-it-11",
}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[WebDaemon]:
    (tmp_path / "agents/ops").mkdir(parents=True)
    (tmp_path / "agents/ops/HEARTBEAT.md").write_text("- look at the disk\n")
    with WebDaemon(tmp_path, CONFIG) as running:
        yield running


def talk(
    daemon: WebDaemon, token: str, use: Callable[[Client], Awaitable[Any]], mode: str = "auto", more: Mapping[str, str] = {}
) -> Any:
    """Connect with a token, and with more headers, and use the client."""

    async def run() -> Any:
        headers = {"Authorization": f"Bearer {TOKENS.get(token, token)}", **more}
        async with httpx2.AsyncClient(headers=headers, verify=NO_TLS) as http:
            transport = streamable_http_client(f"{daemon.server.url}/mcp", http_client=http)
            async with Client(transport, mode=mode) as client:  # type: ignore[arg-type]
                return await use(client)

    return asyncio.run(run())


def call(daemon: WebDaemon, token: str, tool: str, **arguments: Any) -> Any:
    return talk(daemon, token, lambda client: client.call_tool(tool, arguments))


def names_of_tools(daemon: WebDaemon, token: str, mode: str = "auto") -> list[str]:
    listed = talk(daemon, token, lambda client: client.list_tools(), mode)
    return [tool.name for tool in listed.tools]


def version(daemon: WebDaemon) -> str:
    return hashlib.sha256(daemon.config.read_bytes()).hexdigest()


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_the_tools_that_a_token_may_use_are_listed(daemon: WebDaemon, mode: str) -> None:
    assert names_of_tools(daemon, "self", mode) == [tool.name for tool in TOOLS]
    readable = ["get", "set", "logs", "explain", "plan", "status", "problems", "get_checklist"]
    assert names_of_tools(daemon, "reader", mode) == readable
    assert names_of_tools(daemon, "waker", mode) == ["test", "remind", "ask", "wake", "cancel_wake"]


EVERY_CALL: dict[str, dict[str, Any]] = {
    "status": {},
    "problems": {},
    "get": {"agent": "ops", "all_values": True},
    "set": {"agent": "ops", "changes": {"heartbeat": {"interval": "1h"}}},
    "toggle": {"agent": "ops", "on": False, "for": "2h"},
    "get_checklist": {"agent": "ops"},
    "set_checklist": {"agent": "ops", "text": "- look again\n"},
    "test": {"agent": "ops"},
    "logs": {"agent": "ops", "limit": 3},
    "explain": {"agent": "ops"},
    "wake": {"agent": "ops", "text": "look now"},
    "remind": {"agent": "ops", "text": "look then", "in": "1h"},
    "cancel_wake": {},
    "ask": {"text": "May I?", "wait": "1s"},
    "mute": {"agent": "ops", "for": "1h"},
    "plan": {"for": "24h"},
}


def run_of_ops(daemon: WebDaemon) -> int:
    """A run of ops that is in progress."""
    daemon.world.scripts["ops"] = lambda _: Delayed("HEARTBEAT_OK", timedelta(minutes=9))
    world = daemon.world
    daemon.do(lambda: (world.resume(("heartbeat", "ops")), world.wake("ops"), world.run(minutes=6)))
    found = daemon.get("/api/v1/runs?name=ops", TOKENS["self"]).data["runs"]
    return next(int(each["id"]) for each in found if each["state"] == "running")


@loop_over("tool", [tool.name for tool in TOOLS])
def test_every_tool_works_for_its_own_agent_and_no_other(daemon: WebDaemon, tool: str) -> None:
    arguments = dict(EVERY_CALL[tool])
    if tool == "set_checklist":
        arguments["hash"] = call(daemon, "self", "get_checklist", agent="ops").structured_content["hash"]
    if tool == "cancel_wake":
        arguments["wake"] = str(
            call(daemon, "self", "remind", agent="ops", **{"text": "look", "in": "1h"}).structured_content["wake"]
        )
    if tool == "ask":
        arguments["run"] = str(run_of_ops(daemon))
    result = call(daemon, "self", tool, **arguments)
    assert not result.is_error, result.content
    assert json.loads(result.content[0].text) == result.structured_content
    if "agent" in arguments:
        foreign = call(daemon, "self", tool, **arguments | {"agent": "web"})
        assert (foreign.is_error, foreign.content[0].text) == (True, "the token 'self' is only for the agents ops")


def test_a_reminder_without_a_time_wakes_nobody(daemon: WebDaemon) -> None:
    result = call(daemon, "self", "remind", agent="ops", text="water the plants")
    assert result.is_error
    assert "write `at` or `in`" in result.content[0].text
    daemon.do(lambda: daemon.world.run(minutes=1))
    assert not any("water the plants" in call.stdin for call in daemon.world.calls)


def test_the_values_in_effect_are_listed_only_on_request(daemon: WebDaemon) -> None:
    for given in ({}, {"all_values": False}, {"all_values": True}):
        config = call(daemon, "self", "get", agent="ops", **given).structured_content["config"]
        assert ("values" in config) is any(given.values())


def test_an_agent_that_mutes_itself_until_something_changes_is_heard_again_after_a_change(daemon: WebDaemon) -> None:
    daemon.world.scripts["ops"] = lambda call: "[disk!] 97 %"
    daemon.do(lambda: daemon.world.run(minutes=31))
    assert call(daemon, "self", "mute", agent="ops", until_changed=True).structured_content["until_changed"] is True
    daemon.do(lambda: daemon.world.run(minutes=30))
    assert daemon.get("/api/v1/agents/ops", TOKENS["self"]).data["muted"]["until_changed"] is True
    daemon.world.scripts["ops"] = lambda call: "[disk!] 97 %\n[mail!] 300 wait"
    daemon.do(lambda: daemon.world.run(minutes=30))
    assert daemon.get("/api/v1/agents/ops", TOKENS["self"]).data["muted"] is None


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_an_agent_cannot_wake_itself_from_within_its_run(daemon: WebDaemon, mode: str) -> None:
    row = (
        "insert into run (kind, name, slot, trigger, state, owner, started_at)"
        " values ('heartbeat', 'ops', 1, 'api', 'running', 'x', 1)"
    )
    run = daemon.do(lambda: daemon.world.store.connection.execute(row).lastrowid)
    its_run = {"X-Heartbeatd-Run": f"x/{run}"}
    found = talk(daemon, "self", lambda client: client.call_tool("test", {"agent": "ops"}), mode, its_run)
    assert (found.is_error, found.content[0].text) == (True, "agent 'ops' cannot wake itself from within its own run")


def test_an_agent_changes_its_own_interval(daemon: WebDaemon) -> None:
    result = call(daemon, "self", "set", agent="ops", changes={"heartbeat": {"interval": "1h"}})
    assert (result.structured_content["written"], result.structured_content["hash"]) == (True, version(daemon))
    assert daemon.config.read_text() == CONFIG.replace("30m   # twice", "1h    # twice")


def test_an_agent_that_may_not_edit_gets_the_lines_to_write(daemon: WebDaemon) -> None:
    result = call(daemon, "reader", "set", agent="ops", changes={"heartbeat": {"interval": "1h"}})
    assert result.structured_content["yaml"] == "agents:\n  ops:\n    heartbeat:\n      interval: 1h\n"
    assert daemon.config.read_text() == CONFIG


def test_errors_say_what_to_do_instead(daemon: WebDaemon) -> None:
    wrong_value = call(daemon, "self", "set", agent="ops", changes={"heartbeat": {"interval": "soon"}})
    assert wrong_value.is_error
    assert "agents.ops.heartbeat.interval: 'soon' is not" in wrong_value.content[0].text
    for known in ("0" * 64, "", "none"):
        stale = call(daemon, "self", "set_checklist", agent="ops", text="- x\n", hash=known)
        assert (stale.is_error, "has changed since you read it" in stale.content[0].text) == (True, True)
    assert "may not wake" in call(daemon, "reader", "wake", agent="ops", text="x").content[0].text


@loop_over(
    ("tool", "arguments", "error"),
    [
        ("fly", {}, "there is no tool 'fly'; the tools are get, set"),
        ("get", {}, "'agent' is a required property"),
        ("get", {"agent": 7}, "agent: 7 is not of type 'string'"),
        ("get", {"agent": "ops", "more": 1}, "Additional properties are not allowed"),
        ("logs", {"agent": "ops", "limit": 10**9}, "limit: 1000000000 is greater than the maximum of 50"),
        ("get", {"agent": "../../config"}, "is only for the agents ops"),
        ("toggle", {"agent": "ops", "on": False, "for": "soon"}, "for: 'soon' is not a duration; write 90s, 30m or 1h30m"),
        ("remind", {"agent": "ops", "text": "x", "at": 9}, "at: write a time with its zone, as in 2027-03-28T01:00:00Z"),
        (
            "toggle",
            {"agent": "ops", "on": True, "for": "2h"},
            "for: leave it out, because `on: true` resumes the heartbeat at once",
        ),
        (
            "mute",
            {"agent": "ops", "muted": False, "for": "2h"},
            "for: leave it out, because `muted: false` ends the mute at once",
        ),
        (
            "mute",
            {"agent": "ops", "muted": False, "until_changed": True},
            "until_changed: leave it out, because `muted: false` ends",
        ),
    ],
)
def test_a_wrong_call_is_an_error_that_names_the_fault(
    daemon: WebDaemon, tool: str, arguments: dict[str, Any], error: str
) -> None:
    result = call(daemon, "self", tool, **arguments)
    assert result.is_error
    assert error in result.content[0].text


def test_without_a_valid_token_the_answer_is_401(daemon: WebDaemon) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    accept = {"Accept": "application/json, text/event-stream"}
    for token in (None, "no-token-with-enough-bits-in-it-111"):
        assert daemon.send("POST", "/mcp", body, token, accept).status == 401


def test_a_request_that_is_too_large_is_refused(daemon: WebDaemon) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "x" * 2_000_000}}
    assert daemon.send("POST", "/mcp", body, TOKENS["self"], {"Accept": "application/json, text/event-stream"}).status == 413


def test_checklists_and_runs_are_resources(daemon: WebDaemon) -> None:
    async def use(client: Client) -> tuple[list[str], str, str]:
        uris = [str(resource.uri) for resource in (await client.list_resources()).resources]
        checklist, runs = [(await client.read_resource(uri)).contents[0] for uri in uris[:2]]
        return uris, checklist.text, runs.text  # type: ignore[union-attr]

    uris, checklist, runs = talk(daemon, "self", use)
    assert uris == ["heartbeatd://agents/ops/checklist", "heartbeatd://agents/ops/runs"]
    assert checklist == "- look at the disk\n"
    assert {run["name"] for run in json.loads(runs)["runs"]} <= {"ops"}
    names = {uri.split("/")[3] for uri in talk(daemon, "reader", use)[0]}
    assert names == {"ops", "web"}


@loop_over(
    ("token", "uri", "error"),
    [
        ("self", "heartbeatd://agents/web/checklist", "the token 'self' is only for the agents ops"),
        ("self", "heartbeatd://agents/ops/secrets", "there is no resource heartbeatd://agents/ops/secrets; read"),
        ("self", "file:///etc/passwd", "there is no resource file:///etc/passwd; read"),
        ("waker", "heartbeatd://agents/ops/runs", "the token 'waker' may not read"),
    ],
)
def test_a_resource_that_may_not_be_read_is_an_error(daemon: WebDaemon, token: str, uri: str, error: str) -> None:
    async def use(client: Client) -> str:
        with pytest.raises(MCPError) as raised:
            await client.read_resource(uri)
        return raised.value.error.message

    assert error in talk(daemon, token, use)


@pytest.mark.process
def test_the_command_offers_the_tools_on_stdin_and_stdout(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, CONFIG.replace("argv: [agent]", "argv: [cat]"))
    try:
        daemon.wait_until(lambda: (tmp_path / "state/daemon.json").exists())
        command = ["-m", "scheduler", "-c", str(tmp_path / "config.yaml"), "mcp"]
        (file := tmp_path / "token").write_text(f"{TOKENS['waker']}\n")
        of_waker, every = ["test", "remind", "ask", "wake", "cancel_wake"], [tool.name for tool in TOOLS]
        for token, options, names in (
            ("waker", [], of_waker),
            (None, [], every),
            ("reader", ["--token-file", str(file)], of_waker),
        ):
            env = {"HEARTBEATD_TOKEN": TOKENS[token]} if token else {}
            env |= {"PYTHONPATH": str(HOME)}
            program = StdioServerParameters(command=sys.executable, args=command + options, env=env)
            assert asyncio.run(_tools_of_program(program)) == names
    finally:
        daemon.kill()


@pytest.mark.parametrize("given", ["", " \n"])
def test_an_empty_token_does_not_permit_everything(
    tmp_path: Path, given: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    (file := tmp_path / "token").write_text(given)
    command = ["mcp", "-c", str(tmp_path / "config.yaml")]
    assert main([*command, "--token-file", str(file)]) == 2
    monkeypatch.setenv("HEARTBEATD_TOKEN", given)
    assert main(command) == 2
    assert capsys.readouterr().err.splitlines() == [f"heartbeatd: {file} is empty", "heartbeatd: HEARTBEATD_TOKEN is empty"]


def test_an_empty_name_of_an_agent_is_named_as_the_fault_over_stdio(tmp_path: Path) -> None:
    client = HttpDaemonClient(DaemonFiles(tmp_path / "heartbeatd.db"), "http://127.0.0.1:9", TOKENS["self"])
    with pytest.raises(ClickException, match="name: '' is not a name; write that of an agent or a job"):
        client.call(ENDPOINTS["get_agent"], "", {})


async def _tools_of_program(program: StdioServerParameters) -> list[str]:
    async with Client(program) as client:
        return [tool.name for tool in (await client.list_tools()).tools]


def test_the_tool_of_a_request_about_a_run_takes_its_number() -> None:
    asked: list[tuple[str, str | None]] = []

    async def api(endpoint: str, subject: str | None = None, _sent: Any = None) -> dict[str, Any]:
        asked.append((endpoint, subject))
        return {}

    tool = tool_of(ENDPOINTS["cancel_run"])
    assert (tool.input_schema["required"], tool.input_schema["properties"]) == (
        ["run"],
        {"run": {"type": "string", "description": "the number of the run"}},
    )
    asyncio.run(tool.run(api, {"run": "7"}))
    assert asked == [("cancel_run", "7")]


DECIDING = {"on", "muted", "all_values"}  # arguments that decide which requests are made


@loop_over(
    ("tool", "argument"),
    [(tool, argument) for tool in TOOLS for argument in tool.input_schema["properties"] if argument not in DECIDING],
)
def test_every_argument_of_a_tool_is_in_its_request(tool: Tool, argument: str) -> None:
    asked: list[object] = []

    async def api(endpoint: str, subject: str | None = None, sent: Mapping[str, object] | None = None) -> dict[str, Any]:
        asked.extend((endpoint, subject, *(sent or {}).values()))
        return {"hash": "", "values": []}

    needed = dict.fromkeys(tool.input_schema["required"], "needed")  # type: ignore[call-overload]
    asyncio.run(tool.run(api, {**needed, "on": False, "in": "1h", argument: "given"}))
    assert "given" in asked


def test_the_tools_say_the_same_as_the_api_about_each_problem(tmp_path: Path) -> None:
    """Whatever was sent, muted, acknowledged, covered, unstable or not delivered."""
    with played_daemon(tmp_path) as daemon:

        async def compare(client: Client) -> None:
            async def tool(which: str, **arguments: str) -> Any:
                return (await client.call_tool(which, arguments)).structured_content

            def read(path: str) -> Any:
                return daemon.get(f"/api/v1/{path}", daemon.token).data

            assert await tool("problems") == read("problems")
            assert (await tool("status"))["agents"] == read("status")["entries"]
            for name in map("-".join, CASES):
                assert await tool("problems", name=name) == read(f"problems?name={name}") != {"problems": []}
                assert await tool("explain", agent=name) == read(f"explain/{name}")

        talk(daemon, daemon.token, compare)

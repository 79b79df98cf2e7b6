"""Agents whose models use tools, end to end in virtual time: run records, cost, budgets, retries and interruptions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.messages import error_answer, message, text_answer, tool
from servers.scripted import Act, Server, half, hang_up, page, reply
from servers.tools import ToolServer
from world import MakeWorld, World

from scheduler.cli.main import main
from scheduler.model.events import CallCharged, ProviderCalled

KEY = "sk-ant-canary-0123456789"
TOKEN = "mcp-token-canary-5527"
LOOK = reply(message(tool("disk__free", {"path": "/"}), stop_reason="tool_use"))
CLEAN = reply(message(tool("disk__clean", {"path": "/tmp"}), stop_reason="tool_use"))
ONE_CALL = (120 * 1.0 + 30 * 5.0 + 7 * 1.0 + 2 * 1.25) / 1e6  # USD


@pytest.fixture(scope="module")
def disk() -> Iterator[ToolServer]:
    with ToolServer() as server:
        yield server


@pytest.fixture
def make(make_world: MakeWorld, disk: ToolServer) -> Iterator[MakeTooled]:
    yield MakeTooled(make_world, disk)
    disk.cleaned.clear()


class MakeTooled:
    """Makes worlds with an agent that may use the tools of a disk."""

    def __init__(self, make_world: MakeWorld, disk: ToolServer) -> None:
        self._make_world = make_world
        self._disk = disk

    def __call__(
        self, model: Server, folder: Path | None = None, *, allow: str = "free", more: str = "", turns: int = 5, **heartbeat: str
    ) -> World:
        words = {"interval": "30m", "stagger": "0s", "checklist": '"- look\\n"', "deliver": "log"} | heartbeat
        beat = ", ".join(f"{key}: {value}" for key, value in words.items())
        yaml = f"""
providers: {{anthropic: {{api_key: "${{KEY}}", base_url: "{model.url}"}}}}
prices: {{claude-haiku-5-5: {{input: 1.0, output: 5.0}}, large: {{input: 10.0, output: 50.0}}}}
agents:
  ops:
    runner:
      kind: anthropic
      tools:
        mcp:
          - {{name: disk, url: "{self._disk.url}", headers: {{X-Token: "${{TOKEN}}"}}, allow: [{allow}]{more}}}
        max_turns: {turns}
    heartbeat: {{{beat}}}
"""
        where = () if folder is None else (folder,)
        for each in where:
            each.mkdir()
        return self._make_world(yaml, *where, environ={"KEY": KEY, "TOKEN": TOKEN})


def model(*script: Act) -> Server:
    return Server(list(script))


def test_the_run_record_has_every_call_of_a_tool_and_the_cost_of_every_turn(make: MakeTooled) -> None:
    with model(LOOK, text_answer("ALERT: / is nearly full")) as server:
        world = make(server)
        world.run(minutes=1)
    row = world.records()[0]
    assert (row["result"], row["text"]) == ("alert", "ALERT: / is nearly full")
    assert [text for _, _, text in world.delivered] == ["ALERT: / is nearly full"]
    (call,) = row["tool_calls"]
    assert call.pop("duration_ms") >= 0
    assert call == {"name": "disk__free", "count": 1, "arguments": '{"path": "/"}', "result_bytes": 11}
    assert row["tokens"]["output"] == 60
    assert row["cost_usd"] == pytest.approx(2 * ONE_CALL)
    assert [used["calls"] for used in row["models"]] == [2]
    assert len(world.events_of(CallCharged)) == 2
    assert [event.result for event in world.events_of(ProviderCalled)] == ["ok", "ok"]


def test_show_prints_each_call_with_its_arguments(make: MakeTooled, capsys: pytest.CaptureFixture[str]) -> None:
    with model(LOOK, text_answer("HEARTBEAT_OK")) as server:
        world = make(server)
        world.run(minutes=1)
    assert main(["show", "1", "-c", str(world.config)]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("tool"))
    assert line.split()[1] == "disk__free"
    assert line.endswith('s {"path": "/"}: 11 bytes')


def test_a_run_stopped_at_max_turns_fails_and_is_charged(make: MakeTooled) -> None:
    with model(LOOK) as server:
        world = make(server, turns=2, budget="{usd_per_day: 1}")
        world.run(minutes=1)
        assert len(server.requests) == 2
    row = world.records()[0]
    assert (row["result"], row["why"]) == ("failed", "tool_use")
    assert row["error"].endswith("the model asked for tools in its last turn, and wrote no text (max_turns: 2)")
    assert row["charged"]["usd"] == pytest.approx(2 * ONE_CALL)


def test_the_budget_of_a_run_stops_the_turns_before_it_is_exceeded(make: MakeTooled) -> None:
    """The answer of one turn may cost 0.01 USD, and a prompt of 3,000 bytes 0.004 USD."""
    with model(LOOK) as server:
        world = make(server, turns=50, budget="{usd_per_try: 0.016}")
        world.run(minutes=1)
        turns = len(server.requests)
    row = world.records()[0]
    assert 1 <= turns < 10
    assert (row["result"], row["charged"]["usd"]) == ("failed", pytest.approx(turns * ONE_CALL))
    assert row["charged"]["usd"] <= 0.016
    assert server.requests[-1].json["tool_choice"] == {"type": "tool", "name": "report_findings"} or row["why"] == "too_large"


def test_when_a_model_is_asked_again_its_tools_have_only_what_its_first_answer_has_left_of_the_budget(make: MakeTooled) -> None:
    used = {"input_tokens": 0, "output_tokens": 1900}  # 0.0095 USD of the 0.01 USD that an answer may cost
    found = {"findings": [{"key": "disk:/var", "text": "/var is full", "severity": "warning", "resolved": False}]}
    look = reply(message(tool("disk__free", {"path": "/"}), stop_reason="tool_use", usage=used))
    report = reply(message(tool("report_findings", found), stop_reason="tool_use", usage=used))
    with model(look, report, look) as server:
        world = make(server, turns=50, budget="{usd_per_try: 0.04}", precheck="{command: check}", retries="0")
        world.prechecks["ops"] = lambda _: "/var: 91 %\nnginx.service failed"
        world.run(minutes=1)
        asked = len(server.requests)
    row = world.records()[0]
    assert asked > 2
    assert row["charged"]["usd"] == pytest.approx(asked * 0.0095)
    assert row["charged"]["usd"] <= 0.04


def test_a_model_that_reports_no_tokens_is_charged_its_maximum_and_stays_within_the_budget(make: MakeTooled) -> None:
    look = message(tool("disk__free", {"path": "/"}), stop_reason="tool_use", usage={"input_tokens": 0, "output_tokens": 0})
    with model(reply(look)) as server:
        world = make(server, turns=50, budget="{usd_per_try: 0.04}")
        world.run(minutes=1)
        assert 1 <= len(server.requests) <= 4, "each answer may have cost 0.01 USD"
    assert world.records()[0]["charged"]["usd"] <= 0.04


MAX_OUTPUT = 2000 * 5.0 / 1e6  # USD that the answer of one turn may cost; its prompt has less than 4,000 bytes
MAX_TURN = MAX_OUTPUT + 4000 * 1.25 / 1e6
CUT_TURNS = [  # how the turns end, and the least and the most that may be charged
    ([hang_up()], MAX_OUTPUT, MAX_TURN),
    ([LOOK, hang_up()], ONE_CALL + MAX_OUTPUT, ONE_CALL + MAX_TURN),
    ([LOOK, page(500)], ONE_CALL + MAX_OUTPUT, ONE_CALL + MAX_TURN),
    ([LOOK, error_answer(529, "overloaded_error", "busy")], ONE_CALL, ONE_CALL),
    ([LOOK, LOOK, half(message())], 2 * ONE_CALL + MAX_OUTPUT, 2 * ONE_CALL + MAX_TURN),
]


def test_an_attempt_that_was_cut_is_charged_what_its_turns_can_have_cost(make: MakeTooled, tmp_path: Path) -> None:
    for number, (script, least, most) in enumerate(CUT_TURNS):
        with model(*script) as server:
            world = make(server, tmp_path / str(number), budget="{usd_per_day: 5}", retries="0", timeout="1s")
            world.run(minutes=1)
        charged = world.records()[0]["charged"]["usd"]
        assert least - 1e-9 <= charged <= most + 1e-9, (number, charged)


def test_an_exceeded_budget_says_how_much_of_it_is_reserved_and_not_known(make: MakeTooled) -> None:
    with model(LOOK, hang_up()) as server:
        world = make(server, budget="{usd_per_day: 0.3725}", retries="0")
        world.run(minutes=31)
    cut, skipped = world.records()
    used, unknown = (f"{usd:.6f}".rstrip("0") for usd in (cut["charged"]["usd"], cut["charged"]["usd"] - cut["cost_usd"]))
    reserved = f"({unknown} of it is reserved for runs of unknown cost)"
    assert skipped["error"].startswith(
        f"usd_per_day: {used} of 0.3725 USD are used {reserved}, and one try may cost 0.3625; until"
    )


LONG = reply(message(tool("disk__long", {"size": 4000}), stop_reason="tool_use"))  # 8,000 bytes


def results_of(server: Server) -> list[str]:
    """The results of tools in the last request."""
    blocks = [block for each in server.requests[-1].json["messages"] for block in each["content"] if isinstance(block, dict)]
    return [block["content"] for block in blocks if block["type"] == "tool_result"]


def test_an_expensive_fallback_limits_the_prompt_and_not_the_results_of_tools(make: MakeTooled) -> None:
    """The budget allows a prompt of 4,000 tokens to the fallback. The agent's own model costs a tenth."""
    with model(LONG, text_answer("HEARTBEAT_OK")) as server:
        world = make(server, allow="long", budget="{usd_per_try: 0.15}", fallbacks="[{model: large}]")
        world.run(minutes=1)
    assert world.history() == ["03-02 08:00 interval ok heartbeat_ok"]
    assert results_of(server) == ["ü" * 4000]


def test_without_a_budget_the_results_of_tools_may_have_more_bytes_than_the_prompt_may_have_tokens(make: MakeTooled) -> None:
    with model(LONG, text_answer("HEARTBEAT_OK")) as server:
        world = make(server, allow="long", max_input_tokens="6k")
        world.run(minutes=1)
    (result,) = results_of(server)
    assert 4000 < len(result.encode()) < 6000


def test_with_a_budget_the_results_of_tools_have_no_more_bytes_than_the_prompt_may_have_tokens(make: MakeTooled) -> None:
    with model(LONG, text_answer("HEARTBEAT_OK")) as server:
        world = make(server, allow="long", max_input_tokens="6k", budget="{usd_per_day: 5}")
        world.run(minutes=1)
    assert len(json.dumps(server.requests[-1].json["messages"], ensure_ascii=False).encode()) < 6000


def test_the_budget_of_a_day_reserves_all_turns(make: MakeTooled) -> None:
    """Five turns may use 260,000 tokens. After the first run only 0.26m minus its usage are left of the day."""
    with model(LOOK, text_answer("HEARTBEAT_OK"), text_answer("HEARTBEAT_OK")) as server:
        world = make(server, budget="{tokens_per_day: 260k}")
        world.run(minutes=31)
        assert len(server.requests) == 2
    assert [line.split(" ", 3)[3] for line in world.history()] == ["ok heartbeat_ok", "skipped budget"]


def test_an_attempt_that_only_read_is_retried_and_all_its_calls_are_recorded(make: MakeTooled) -> None:
    with model(LOOK, error_answer(529, "overloaded_error", "busy"), LOOK, text_answer("HEARTBEAT_OK")) as server:
        world = make(server)
        world.run(minutes=1)
    row = world.records()[0]
    assert (row["result"], row["tries"]) == ("ok", 2)
    assert [call["name"] for call in row["tool_calls"]] == ["disk__free"] * 2
    assert [event.result for event in world.events_of(ProviderCalled)] == ["ok", "overloaded", "ok", "ok"]


def test_an_attempt_that_may_have_changed_something_is_not_retried(make: MakeTooled, disk: ToolServer) -> None:
    with model(CLEAN, error_answer(529, "overloaded_error", "busy"), text_answer("HEARTBEAT_OK")) as server:
        world = make(server, allow="clean", more=", read_only: false")
        world.run(minutes=1)
        assert len(server.requests) == 2
    assert disk.cleaned == ["/tmp"]
    row = world.records()[0]
    assert (row["result"], row["why"], row["tries"]) == ("failed", "overloaded", 1)
    assert row["error"].endswith("; not tried again, because the tool disk__clean may have changed something")


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (text_answer(""), "failed"),
        (text_answer('{"failed": "The other folder cannot be cleaned."}'), "failed"),
        (reply(message({"type": "text", "text": "ALERT: I have cleaned"}, stop_reason="max_tokens")), "alert"),
    ],
)
def test_a_try_that_may_have_changed_something_is_not_retried_because_of_its_answer(
    make: MakeTooled, disk: ToolServer, answer: Act, result: str
) -> None:
    with model(CLEAN, answer, CLEAN, text_answer("HEARTBEAT_OK")) as server:
        world = make(server, allow="clean", more=", read_only: false")
        world.run(minutes=1)
    assert disk.cleaned == ["/tmp"]
    assert (world.records()[0]["result"], world.records()[0]["tries"]) == (result, 1)


@pytest.mark.parametrize(
    ("before", "allow", "more", "outcome"),
    [
        ([LOOK], "free", "", "ok"),
        ([LOOK], "free, clean", ", read_only: false", "ok"),  # only looked, although it may change things
        ([], "clean", ", read_only: false", "ok"),
        ([CLEAN], "clean", ", read_only: false", "failed"),
    ],
)
def test_a_fallback_answers_unless_a_tool_may_have_changed_something_before(
    make: MakeTooled, before: list[Act], allow: str, more: str, outcome: str
) -> None:
    with model(*before, error_answer(529, "overloaded_error", "busy"), text_answer("HEARTBEAT_OK")) as server:
        world = make(server, allow=allow, more=more, fallbacks="[claude-sonnet-5]", retries="0")
        world.run(minutes=1)
    row = world.records()[0]
    assert (row["result"], row["fallback"]) == (outcome, "claude-sonnet-5" if outcome == "ok" else None)


def test_a_try_whose_fallback_may_have_changed_something_is_not_retried(make: MakeTooled, disk: ToolServer) -> None:
    busy = error_answer(529, "overloaded_error", "busy")
    with model(busy, CLEAN, busy, busy, CLEAN, text_answer("HEARTBEAT_OK")) as server:
        world = make(server, allow="clean", more=", read_only: false", fallbacks="[claude-sonnet-5]")
        world.run(minutes=1)
    assert disk.cleaned == ["/tmp"]
    assert (world.records()[0]["result"], world.records()[0]["tries"]) == ("failed", 1)


def test_a_fallback_whose_tools_may_change_something_is_not_asked_again(make_world: MakeWorld, disk: ToolServer) -> None:
    """The agent's own model has no tools, so it would be asked again because of an answer without findings."""
    busy = error_answer(529, "overloaded_error", "busy")
    with model(busy, CLEAN, text_answer("ALERT: / was full"), CLEAN, text_answer("ALERT: / was full")) as server:
        tools = (
            f'{{mcp: [{{name: disk, url: "{disk.url}", headers: {{X-Token: "${{TOKEN}}"}}, allow: [clean], read_only: false}}]}}'
        )
        world = make_world(
            f"""
providers: {{anthropic: {{api_key: "${{KEY}}", base_url: "{server.url}"}}}}
runners: {{cleaner: {{kind: anthropic, tools: {tools}}}}}
agents:
  ops:
    runner: anthropic
    fallbacks: [{{runner: cleaner, model: claude-sonnet-5}}]
    heartbeat: {{interval: 1d, stagger: 0s, checklist: "- look\\n", deliver: log, precheck: check}}
""",
            environ={"KEY": KEY, "TOKEN": TOKEN},
        )
        world.prechecks["ops"] = lambda _: "/: 91 %"
        world.run(minutes=1)
    assert disk.cleaned == ["/tmp"]
    disk.cleaned.clear()


def test_a_server_that_cannot_be_reached_fails_the_run_and_costs_nothing(make: MakeTooled) -> None:
    with model(text_answer("HEARTBEAT_OK")) as server:
        world = make(server, allow="no-such-tool", budget="{usd_per_day: 5}")
        world.run(minutes=1)
        assert server.requests == []
    row = world.records()[0]
    assert (row["result"], row["why"], row["charged"]["usd"]) == ("failed", "bad_request", 0.0)
    assert row["error"].startswith("server disk of the tools: it has no tool no-such-tool; its tools are: free, clean")
    assert world.events_of(ProviderCalled) == []


@pytest.mark.parametrize(("more", "runs_again"), [("", True), (", read_only: false", False)])
def test_after_a_crash_a_run_whose_tools_may_change_something_is_not_repeated(
    make: MakeTooled, more: str, runs_again: bool
) -> None:
    with model(text_answer("HEARTBEAT_OK")) as server:
        world = make(server, more=more)
        (entry,) = (entry for entry in world.engine.plan.entries.values() if entry.name == "ops")
        assert entry.retries_after_crash is runs_again


def test_the_token_of_a_server_is_in_no_record(make: MakeTooled, tmp_path: Path) -> None:
    leak = reply(message(tool("disk__free", {"path": TOKEN}), stop_reason="tool_use"))
    with model(leak, text_answer("HEARTBEAT_OK")) as server:
        world = make(server)
        world.run(minutes=1)
        assert TOKEN not in json.dumps([request.json for request in server.requests][1]["messages"][-1])
    assert world.records()[0]["tool_calls"][0]["arguments"] == '{"path": "***"}'
    stored = b"".join(path.read_bytes() for path in world.state.parent.iterdir() if path.is_file())
    assert TOKEN.encode() not in stored

"""The choice of the runner: each kind of agent is called by its own runner, and no library is imported before it is needed."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from checkout import HOME
from patience import PATIENCE
from run_async import call_agent, call_decider
from servers import completions, gateway, messages
from servers.scripted import Act, Server, reply

from heartbeat.runners import Action, AgentRequest, Decision
from heartbeat.runners.dispatch import import_libraries
from heartbeat.spec import CommandRunner, HttpRunner, ModelRunner, Provider, PythonRunner, Runner


def run_in(folder: Path) -> AgentRequest:
    return AgentRequest("ops", "How is it?", "small", folder, timedelta(seconds=10), lambda: {"run": 7})


def model_at(kind: str, url: str) -> ModelRunner:
    assert kind in ("anthropic", "openai")
    return ModelRunner(Provider("them", "anthropic" if kind == "anthropic" else "openai", "key", url), 100)


def test_a_program_is_called(tmp_path: Path) -> None:
    assert call_agent(run_in(tmp_path), CommandRunner(("cat",), {})).text == "How is it?"


def test_a_callable_is_called(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("def beat(run):\n    return run['prompt']\n")
    assert call_agent(run_in(tmp_path), PythonRunner("agent:beat", in_process=False)).text == "How is it?"


@pytest.mark.parametrize(
    ("kind", "act", "path"),
    [
        ("anthropic", messages.text_answer("hi"), "/v1/messages"),
        ("openai", completions.text_answer("hi"), "/chat/completions"),
        ("http", gateway.text_answer("hi"), "/"),
    ],
)
def test_models_and_gateways_are_called(tmp_path: Path, kind: str, act: Act, path: str) -> None:
    with Server([act]) as server:
        runner: Runner = HttpRunner(server.url, {}) if kind == "http" else model_at(kind, server.url)
        assert call_agent(run_in(tmp_path), runner).text == "hi"
    assert [request.path for request in server.requests] == [path]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("anthropic", messages.message(messages.tool("decide", {"action": "skip", "tasks": ""}))),
        ("openai", completions.completion(None, calls=[completions.tool("decide", {"action": "skip", "tasks": ""})])),
    ],
)
def test_models_of_both_kinds_decide(tmp_path: Path, kind: str, body: object) -> None:
    with Server([reply(body)]) as server:
        made = call_decider(run_in(tmp_path), model_at(kind, server.url))
    assert made.decision == Decision(Action.SKIP, "")


def test_nothing_slow_is_imported_before_it_is_needed() -> None:
    slow = "{'anthropic', 'httpx2', 'aiohttp', 'pydantic'}"
    code = f"import sys, heartbeat.runners.dispatch; print(sorted({slow} & set(sys.modules)))"
    ended = subprocess.run([sys.executable, "-c", code], cwd=HOME, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert ended.stdout.strip() == "[]"


def test_needed_libraries_can_be_imported_in_advance() -> None:
    code = """if True:
        import sys
        from heartbeat.runners.dispatch import import_libraries
        from heartbeat.spec import CommandRunner, HttpRunner, ModelRunner, Provider
        for runner in (CommandRunner((), {}), HttpRunner("", {}), ModelRunner(Provider("x", "anthropic", None, None), 1)):
            import_libraries([runner])
            print("anthropic.resources.messages" in sys.modules)
    """
    ended = subprocess.run([sys.executable, "-c", code], cwd=HOME, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert ended.stdout.split() == ["False", "False", "True"]


def test_importing_libraries_twice_is_harmless() -> None:
    runners = [model_at("openai", ""), model_at("openai", ""), HttpRunner("", {})]
    import_libraries(runners)
    import_libraries(runners)

"""The runner for Python callables: in a real child process, and in the daemon's own process."""

from __future__ import annotations

import sys
import textwrap
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from run_async import call_agent

from heartbeat.findings import Finding, Report, Severity
from heartbeat.runners import MAX_ANSWER, AgentRequest, Answer, Failure, Tokens
from heartbeat.spec import PythonRunner
from scheduler.system.process import Children

MODULE = """
    import os
    import subprocess
    import sys

    class Agent:
        def beat(self, run):
            return "I am an agent"

    agent = Agent()
    number = 7

    def describe(run):
        return "{agent} {prompt!r} {model} {timeout} {run} {workspace}".format(**run)

    def talkative(run):
        print("on stdout")
        os.write(1, b"on descriptor 1")
        subprocess.run(["echo", "from a child"], check=True)
        return sys.stdin.read() + "the answer"

    def quiet(run): return None
    def unicode(run): return "東京 \\ud800"
    def full(run): return {"text": "hi", "model": "big", "tokens": {"input": 5}, "cost_usd": 0.5}
    def failing(run): return {"error": "no brain"}
    def later(run): return {"later": True}
    def number_back(run): return 42
    def list_back(run): return ["x"]
    def empty_back(run): return {}
    def finds(run): return {"findings": [{"key": "disk:/var", "text": "92 % full", "severity": "critical"}]}
    def raises(run): raise ValueError("boom")
    def leaves(run): sys.exit(3)
    def leaves_well(run): sys.exit(0)
    def huge(run): return "x" * 100_000
    def large(run): return {"text": "line\\n" * 13_000, "log": "y" * 9_000}
    def huge_and_paid(run): return {"text": "x" * 100_000, "cost_usd": 0.5}
    def interrupted(run): raise KeyboardInterrupt
"""
PLACE = {True: "in the daemon", False: "in a child"}


@pytest.fixture
def run(tmp_path: Path) -> AgentRequest:
    (tmp_path / "house_agent.py").write_text(textwrap.dedent(MODULE))
    return AgentRequest("ops", "How is it?", "small", tmp_path, timedelta(seconds=30), lambda: {"run": 7})


@pytest.fixture(params=[True, False], ids=PLACE.get)
def in_process(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    if request.param:
        monkeypatch.syspath_prepend(str(tmp_path))
    yield request.param
    sys.modules.pop("house_agent", None)


def call(run: AgentRequest, name: str, *, in_process: bool = False, children: Children | None = None) -> Answer:
    start = (children or Children("test")).start
    return call_agent(run, PythonRunner(name if ":" in name else f"house_agent:{name}", in_process), start)


def test_the_callable_gets_the_request_as_a_dict(run: AgentRequest, in_process: bool) -> None:
    assert call(run, "describe", in_process=in_process) == Answer(text=f"ops 'How is it?' small 30.0 7 {run.workspace}")


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("quiet", Answer()),
        ("unicode", Answer(text="東京 ?")),
        ("agent.beat", Answer(text="I am an agent")),
        ("full", Answer(text="hi", model_used="big", tokens=Tokens(input=5), cost_usd=0.5)),
        ("later", Answer(later=True)),
        ("finds", Answer("[disk:/var!] 92 % full", report=Report((Finding("disk:/var", "92 % full", Severity.CRITICAL),)))),
        ("failing", Answer(failure=Failure.EXIT, error="the agent failed: no brain", transient=True)),
        (
            "number_back",
            Answer(failure=Failure.BAD_ANSWER, error="it returned int; return a string, None or a dict"),
        ),
        (
            "list_back",
            Answer(failure=Failure.BAD_ANSWER, error="it returned list; return a string, None or a dict"),
        ),
        (
            "empty_back",
            Answer(failure=Failure.BAD_ANSWER, error="answered without text; return text, findings, error or later"),
        ),
        ("large", Answer(text="line\n" * 13_000, log="y" * 9_000)),
        ("huge", Answer(failure=Failure.BAD_ANSWER, error=f"the answer is larger than {MAX_ANSWER} bytes")),
        (
            "huge_and_paid",
            Answer(failure=Failure.BAD_ANSWER, error=f"the answer is larger than {MAX_ANSWER} bytes", cost_usd=0.5),
        ),
        (
            "nobody",
            Answer(
                failure=Failure.NOT_FOUND,
                error="cannot be called: AttributeError: module 'house_agent' has no attribute 'nobody'",
            ),
        ),
        ("number", Answer(failure=Failure.NOT_FOUND, error="cannot be called: TypeError: 'house_agent:number' is not callable")),
        (
            "no_house:fn",
            Answer(failure=Failure.NOT_FOUND, error="cannot be called: ModuleNotFoundError: No module named 'no_house'"),
        ),
        (
            ":fn",
            Answer(
                failure=Failure.NOT_FOUND,
                error="cannot be called: ImportError: ':fn' does not name a callable; write package.module:function",
            ),
        ),
    ],
)
def test_its_return_value_is_the_answer_wherever_it_runs(run: AgentRequest, in_process: bool, name: str, answer: Answer) -> None:
    assert call(run, name, in_process=in_process) == answer


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("raises", "ValueError: boom"),
        ("leaves", "SystemExit: 3"),
        ("leaves_well", "SystemExit: 0"),
        ("interrupted", "KeyboardInterrupt"),
    ],
)
def test_an_exception_in_the_daemons_process_fails_only_its_run(
    run: AgentRequest, monkeypatch: pytest.MonkeyPatch, name: str, error: str
) -> None:
    monkeypatch.syspath_prepend(str(run.workspace))
    answer = call(run, name, in_process=True)
    sys.modules.pop("house_agent", None)
    assert (answer.failure, answer.transient) == (Failure.EXIT, True)
    assert answer.error.startswith(f"it raised {error}")


@pytest.mark.parametrize(
    ("name", "begins", "ends"),
    [
        ("raises", "exit code 1: Traceback", "ValueError: boom"),
        ("leaves", "exit code 3", "3"),
        ("leaves_well", "it ended the process instead of returning", "returning"),
        ("interrupted", "ended by a signal: Traceback", "KeyboardInterrupt"),
    ],
)
def test_an_exception_in_a_child_process_ends_the_child(run: AgentRequest, name: str, begins: str, ends: str) -> None:
    answer = call(run, name)
    assert (answer.failure, answer.transient) == (Failure.EXIT, True)
    assert answer.error.startswith(begins)
    assert answer.error.endswith(ends)


def test_its_printed_output_does_not_mix_with_its_answer(run: AgentRequest) -> None:
    assert call(run, "talkative") == Answer(text="the answer")


def test_its_workspace_is_first_on_the_path_and_hides_our_own_modules(run: AgentRequest) -> None:
    (run.workspace / "heartbeat.py").write_text("def beat(run):\n    import http.client\n    return http.client.__name__\n")
    assert call(run, "heartbeat:beat") == Answer(text="http.client")


def test_a_module_that_breaks_on_import_is_named(run: AgentRequest) -> None:
    (run.workspace / "broken_agent.py").write_text("import nothing_like_it\n")
    answer = call(run, "broken_agent:beat")
    assert answer.failure is Failure.NOT_FOUND
    assert answer.error == "cannot be called: ModuleNotFoundError: No module named 'nothing_like_it'"


def test_a_child_that_takes_too_long_is_ended(run: AgentRequest) -> None:
    (run.workspace / "house_agent.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(60)\n")
    children = Children("test")
    ender = threading.Timer(0.3, children.end_all, ["timeout"])
    ender.start()
    answer = call(run, "beat", children=children)
    ender.join(20)
    assert (answer.failure, answer.transient) == (Failure.TIMEOUT, True)
    assert answer.error.startswith("no answer within 0:00:30")


def test_a_missing_workspace_is_a_failure(run: AgentRequest, tmp_path: Path) -> None:
    gone = AgentRequest("ops", "?", None, tmp_path / "gone", timedelta(seconds=30), dict)
    answer = call(gone, "describe")
    assert answer.failure is Failure.EXIT
    assert answer.error.startswith("could not start: ")

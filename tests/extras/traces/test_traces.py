"""OpenTelemetry traces of a real daemon with real agents, received by a collector that decodes them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checkout import HOME, SERVERS
from daemon_process import run_command
from missing_libraries import environment_without
from patience import PATIENCE
from servers.gateway import text_answer as gateway_answer
from servers.messages import Models, message, text, tool
from servers.scripted import Act, Request, Server, reply, silence
from test_daemon_models import Equipped
from test_endless_answers import check_reader
from warm_start import run_heartbeatd

from scheduler.cli.main import main
from scheduler.extras.traces.traces import Traces

pytestmark = pytest.mark.process

HOSTILE_TOOLS = SERVERS / "hostile_tools.py"  # harmless without an argument
SECRET_PROMPT = "PROMPT-7c1f"  # in everything that the agents are asked, and nowhere else
SECRET_ANSWER = "ANSWER-9e4b"  # in everything that they answer

# An agent with spans of its own, as any program with OpenTelemetry writes them.
TRACED_AGENT = f"""\
import os, sys
from opentelemetry import propagate, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

sys.stdin.read()
provider = TracerProvider(resource=Resource({{"service.name": "the agent"}}))
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
above = propagate.extract({{"traceparent": os.environ["TRACEPARENT"]}})
with provider.get_tracer("agent").start_as_current_span("execute_tool df", context=above):
    print("{SECRET_ANSWER}")
"""

CONFIG = """\
telemetry: {{traces: true}}
server: {{listen: "127.0.0.1:0"}}
providers: {{anthropic: {{api_key: sk-ant-of-the-test-0123456789, base_url: "{models}"}}}}
prices: {{claude-haiku-5-5: {{input: 1.00, output: 5.00}}, claude-refused: {{input: 1.00, output: 5.00}}}}
defaults: {{heartbeat: {{interval: 1h, stagger: 0s, checklist: "- {prompt}\\n", deliver: log, retries: 0}}}}
agents:
  program:
    runner: {{kind: command, argv: ["{python}", agent.py], env: {{OTEL_EXPORTER_OTLP_ENDPOINT: "{collector}"}}}}
    workspace: .
  child: {{runner: {{kind: python, call: "child_agent:answer"}}, workspace: .}}
  gateway: {{runner: {{kind: http, url: "{gateway}/agent"}}}}
  model: {{model: claude-haiku-5-5, heartbeat: {{max_output_tokens: 500, decide: {{model: claude-haiku-5-5}}}}}}
  refused: {{model: claude-refused}}
  tooled:
    model: claude-tooled
    runner: {{kind: anthropic, tools: {{mcp: [{{name: disk, command: ["{python}", "{tools}"], allow: free}}]}}}}
  idle: {{runner: {{kind: command, argv: [cat]}}, heartbeat: {{checklist: "\\n"}}}}
  spared:
    runner: {{kind: command, argv: [cat]}}
    heartbeat: {{precheck: {{command: "echo $TRACEPARENT > precheck; echo NO_WORK"}}}}
    workspace: .
cron:
  measure: {{every: 1h, command: 'echo "$TRACEPARENT" > measure'}}
  broken: {{every: 1h, command: "echo {answer}; exit 3", retries: 0}}
"""

SMALL = """\
telemetry: {{traces: {traces}}}
server: {{listen: "127.0.0.1:0"}}
agents:
  ops:
    runner: {{kind: command, argv: [sh, -c, "cat >/dev/null; echo HEARTBEAT_OK"]}}
    heartbeat: {{interval: 1h, stagger: 0s, checklist: "- look\\n", deliver: log}}
"""


@dataclass(frozen=True)
class Span:
    """A span that the collector has received. IDs are in hexadecimal digits."""

    name: str
    kind: int
    trace: str
    id: str
    parent: str
    attributes: Mapping[str, Any]
    service: str
    has_failed: bool

    def is_named_by(self, traceparent: str) -> bool:
        """Whether this is the span of a `traceparent`, sampled. Newer versions of the SDK also set the flag of random IDs."""
        return re.fullmatch(f"00-{self.trace}-{self.id}-0[13]", traceparent.strip()) is not None


@dataclass
class Collector(Server):
    """A stand-in for a collector: it accepts OTLP over HTTP and keeps what it received."""

    script: list[Act] = field(default_factory=lambda: [reply(b"", kind="application/x-protobuf")])

    def spans(self) -> list[Span]:
        return [span for request in list(self.requests) for span in decode(request)]

    def span(self, name: str) -> Span:
        found = [span for span in self.spans() if span.name == name]
        assert len(found) == 1, [span.name for span in self.spans()]
        return found[0]


def decode(request: Request) -> Iterator[Span]:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    assert (request.method, request.path) == ("POST", "/v1/traces")
    for group in ExportTraceServiceRequest.FromString(request.body).resource_spans:
        service = plain(group.resource.attributes)["service.name"]
        for each in (span for scope in group.scope_spans for span in scope.spans):
            ids = each.trace_id.hex(), each.span_id.hex(), each.parent_span_id.hex()
            yield Span(each.name, each.kind, *ids, plain(each.attributes), service, each.status.code == 2)


def plain(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


def environment(folder: Path, collector: str, **more: str) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector,
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20of-the-collector-1234",
        **more,
    }


def run_once(folder: Path, yaml: str, environ: Mapping[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "config.yaml").write_text(yaml, "utf-8")
    command = ["-c", str(folder / "config.yaml"), "run", "--once"]
    if not options:
        return run_heartbeatd(*command, env=environ, timeout=PATIENCE)
    python = [sys.executable, *options, "-m", "scheduler", *command]
    return subprocess.run(python, cwd=HOME, env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False)


def answer_model(request: Request) -> Act:
    if request.json["model"] == "claude-refused":
        return reply({"type": "error", "error": {"type": "authentication_error", "message": SECRET_PROMPT}}, 401)
    if request.json["model"] == "claude-tooled" and len(request.json["messages"]) == 1:
        return reply(message(tool("disk__free", {"path": SECRET_PROMPT}), stop_reason="tool_use"))
    if "decide" in str(request.json.get("tools")):
        return reply(message(tool("decide", {"action": "run", "tasks": SECRET_PROMPT}), stop_reason="tool_use"))
    return reply(message(text(SECRET_ANSWER)))


@dataclass(frozen=True)
class Traced:
    """What one run of a daemon with traces has left."""

    folder: Path
    log: str
    collector: Collector
    gateway: Server
    models: Models

    def record(self, name: str) -> Any:
        """The run record of this agent or job."""
        return json.loads(run_command(self.folder / "config.yaml", "runs", name, "--format", "json").stdout)[0]


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    """All agents and jobs of CONFIG have run once."""
    folder = tmp_path_factory.mktemp("traced")
    (folder / "agent.py").write_text(TRACED_AGENT)
    (folder / "child_agent.py").write_text(
        "import json, os\n"
        "def answer(run):\n"
        "    given = {'request': run['traceparent'], 'environment': os.environ['TRACEPARENT']}\n"
        "    open('child', 'w').write(json.dumps(given))\n"
        f"    return {{'text': '{SECRET_ANSWER}', 'model': 'qwen3', 'tokens': {{'input': 11, 'output': 4}}, 'cost_usd': 0.25}}\n"
    )
    with Collector() as collector, Server([gateway_answer(SECRET_ANSWER)]) as gateway, Models(answer_model) as models:
        yaml = CONFIG.format(
            python=sys.executable, collector=collector.url, gateway=gateway.url, models=models.url,
            prompt=SECRET_PROMPT, answer=SECRET_ANSWER, tools=HOSTILE_TOOLS,
        )  # fmt: skip
        ended = run_once(folder, yaml, environment(folder, collector.url))
        assert collector.requests, ended.stderr
        yield Traced(folder, ended.stderr, collector, gateway, models)


def test_an_attempt_is_a_span_with_its_run_and_outcome(traced: Traced) -> None:
    span, record = traced.collector.span("invoke_agent child"), traced.record("child")
    assert span.service == "heartbeatd"
    assert (span.kind, span.parent, span.has_failed) == (1, "", False)
    assert span.attributes == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "child",
        "gen_ai.response.model": "qwen3",
        "gen_ai.usage.input_tokens": 11,
        "gen_ai.usage.output_tokens": 4,
        "heartbeatd.entry.kind": "heartbeat",
        "heartbeatd.entry.name": "child",
        "heartbeatd.run.id": record["id"],
        "heartbeatd.run.trigger": record["trigger"],
        "heartbeatd.run.tries": 1,
        "heartbeatd.run.planned_at": record["planned_at"],
        "heartbeatd.run.result": "alert",
        "heartbeatd.cost_usd": 0.25,
    }


def test_the_spans_of_a_program_are_below_the_span_of_its_run(traced: Traced) -> None:
    beat, tool_span = traced.collector.span("invoke_agent program"), traced.collector.span("execute_tool df")
    assert tool_span.service == "the agent"
    assert (tool_span.trace, tool_span.parent) == (beat.trace, beat.id)


def test_a_python_callable_gets_the_traceparent_in_its_request_and_its_environment(traced: Traced) -> None:
    given = json.loads((traced.folder / "child").read_text())
    assert given["request"] == given["environment"]
    assert traced.collector.span("invoke_agent child").is_named_by(given["request"])


def test_a_gateway_gets_the_traceparent_as_a_header(traced: Traced) -> None:
    span, request = traced.collector.span("invoke_agent gateway"), traced.gateway.requests[0]
    assert request.headers["traceparent"] == request.json["traceparent"]
    assert span.is_named_by(request.headers["traceparent"])
    assert span.kind == 3  # client: the agent runs elsewhere


def test_each_call_of_a_model_is_a_span_below_the_run(traced: Traced) -> None:
    beat = traced.collector.span("invoke_agent model")
    chats = [span for span in traced.collector.spans() if span.parent == beat.id]
    assert [(span.name, span.kind, span.trace) for span in chats] == [("chat claude-haiku-5-5", 3, beat.trace)] * 2
    assert chats[1].attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "anthropic",
        "gen_ai.request.model": "claude-haiku-5-5",
        "gen_ai.request.max_tokens": 500,
        "gen_ai.response.model": "claude-haiku-5-5",
        "gen_ai.usage.input_tokens": 129,  # those of the cache included
        "gen_ai.usage.output_tokens": 30,
        "gen_ai.usage.cache_read.input_tokens": 7,
        "gen_ai.usage.cache_creation.input_tokens": 2,
        "heartbeatd.provider": "anthropic",
    }
    sent = [request.headers["traceparent"] for request in traced.models.requests if request.json["model"] == "claude-haiku-5-5"]
    assert [span.is_named_by(given) for span, given in zip(chats, sent, strict=True)] == [True, True]
    assert beat.attributes["gen_ai.usage.input_tokens"] == 258
    assert beat.attributes["heartbeatd.cost_usd"] == pytest.approx(traced.record("model")["cost_usd"])


def test_a_tool_is_a_span_below_the_call_of_the_model_that_asked_for_it(traced: Traced) -> None:
    beat, span = traced.collector.span("invoke_agent tooled"), traced.collector.span("execute_tool disk__free")
    first, second = (each for each in traced.collector.spans() if each.name == "chat claude-tooled")
    assert [(each.trace, each.parent) for each in (first, second)] == [(beat.trace, beat.id)] * 2
    assert (span.trace, span.parent, span.kind, span.has_failed) == (beat.trace, first.id, 1, False)
    assert span.attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "disk__free",
        "gen_ai.tool.type": "extension",
        "gen_ai.tool.call.id": "toolu_1",
    }


def test_a_refused_call_has_the_class_of_its_error_without_its_text(traced: Traced) -> None:
    beat, chat = traced.collector.span("invoke_agent refused"), traced.collector.span("chat claude-refused")
    assert beat.has_failed
    assert chat.has_failed
    assert beat.attributes["heartbeatd.run.result"] == "failed"
    assert beat.attributes["error.type"] == beat.attributes["heartbeatd.run.why"] == chat.attributes["error.type"] == "auth"
    assert chat.attributes["http.response.status_code"] == 401


def test_commands_of_jobs_and_prechecks_get_the_traceparent_too(traced: Traced) -> None:
    assert traced.collector.span("cron measure").is_named_by((traced.folder / "measure").read_text())
    spared = traced.collector.span("invoke_agent spared")
    assert spared.is_named_by((traced.folder / "precheck").read_text())
    assert (spared.attributes["heartbeatd.run.result"], spared.has_failed) == ("skipped", False)
    assert traced.collector.span("cron broken").attributes["error.type"] == "exit"


def test_a_run_that_is_skipped_before_anything_is_started_has_no_span(traced: Traced) -> None:
    assert traced.record("idle")["result"] == "skipped"
    assert not [span for span in traced.collector.spans() if "idle" in span.name]


def test_the_collector_gets_its_headers_and_never_a_prompt_or_an_answer(traced: Traced) -> None:
    ours = [request for request in traced.collector.requests if b"the agent" not in request.body]
    assert ours
    assert {request.headers["authorization"] for request in ours} == {"Bearer of-the-collector-1234"}
    everything = b"".join(request.body for request in traced.collector.requests)
    assert SECRET_PROMPT.encode() not in everything
    assert SECRET_ANSWER.encode() not in everything
    assert f"traces endpoint={traced.collector.url}/v1/traces" in traced.log
    assert "of-the-collector" not in traced.log


def test_nothing_is_imported_if_traces_are_off(tmp_path: Path) -> None:
    with Collector() as collector:
        environ = environment(tmp_path, collector.url)
        off = run_once(tmp_path, SMALL.format(traces="false"), environ, "-X", "importtime")
        assert " run id=1 " in off.stderr
        assert not re.findall(r"\| +(opentelemetry\S*|google\.protobuf\S*|requests)\n", off.stderr)
        assert collector.requests == []


def test_a_collector_that_does_not_answer_delays_neither_runs_nor_the_end(tmp_path: Path) -> None:
    with Collector([silence()]) as collector:
        queue = {"OTEL_BSP_SCHEDULE_DELAY": "10", "OTEL_BSP_MAX_QUEUE_SIZE": "2", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "1"}
        environ = environment(tmp_path, collector.url, OTEL_EXPORTER_OTLP_TIMEOUT="60", **queue)
        jobs = "".join(f"  job{number}: {{every: 1s, command: 'true'}}\n" for number in range(4))  # more than fit into the queue
        yaml = f"{SMALL.format(traces='true')}cron:\n{jobs}limits: {{min_interval: 1s}}\n"
        daemon = Equipped(tmp_path, yaml, environ)
        for _ in range(2):
            daemon.expect("run id=.* name=job3 .*result=ok")
        assert daemon.stop() == 0
        assert [line for line in daemon.log if "traces" in line and "Queue full" in line]
        assert len([line for line in daemon.log if "WARNING traces" in line]) == 1
        assert len(collector.requests) == 1


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, "WARNING traces problem=.*Connection refused"),
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "soon"}, "WARNING traces problem=.*Invalid timeout value 'soon'"),
        ({"OTEL_SDK_DISABLED": "true"}, 'INFO traces problem="off because of OTEL_SDK_DISABLED=true"'),
    ],
    ids=["no collector", "a wrong value", "disabled"],
)
def test_runs_do_not_depend_on_the_traces(tmp_path: Path, variables: dict[str, str], expected: str) -> None:
    with Collector() as collector:
        ended = run_once(tmp_path, SMALL.format(traces="true"), environment(tmp_path, collector.url, **variables))
        assert ended.returncode == 0
        assert "result=ok" in ended.stderr
        assert len(re.findall(" traces ", ended.stderr.replace("INFO traces endpoint", ""))) == 1
        assert re.search(expected, ended.stderr), ended.stderr
        assert "Traceback" not in ended.stderr


def test_a_reload_turns_traces_on_and_off(tmp_path: Path) -> None:
    with Collector() as collector:
        environ = environment(tmp_path, collector.url, OTEL_BSP_SCHEDULE_DELAY="10")
        yaml = SMALL + "cron: {{tick: {{every: 1s, command: 'true'}}}}\nlimits: {{min_interval: 1s}}\n"
        daemon = Equipped(tmp_path, yaml.format(traces="false"), environ)
        daemon.expect("name=tick ")
        daemon.config.write_text(yaml.format(traces="true"))
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_until(collector.spans)
        daemon.config.write_text(yaml.format(traces="false"))
        daemon.process.send_signal(signal.SIGHUP)
        daemon.expect(r"reload change=.*telemetry.traces true -> false")
        daemon.expect("name=tick ")  # it may have been started before the reload
        last = re.findall(r"run id=(\d+)", daemon.expect("name=tick "))
        assert daemon.stop() == 0
        traced = [span.attributes["heartbeatd.run.id"] for span in collector.spans()]
        assert 1 not in traced
        assert int(last[0]) not in traced


def test_the_exporter_does_not_read_an_endless_answer_to_its_end() -> None:
    def send_traces(url: str) -> object:
        settings: Any = SimpleNamespace(traces=True)
        with pytest.MonkeyPatch.context() as environ:
            environ.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
            traces = Traces(lambda: settings, None)
        traces._tracer.start_span("run").end()
        return traces.close()

    check_reader("the exporter of traces", send_traces, forms=("chunks", "a body without a length"))


def test_without_the_extra_check_names_it_and_the_daemon_runs(tmp_path: Path) -> None:
    environ = environment_without(tmp_path, "opentelemetry") | environment(tmp_path, "http://127.0.0.1:1")
    ended = run_once(tmp_path, SMALL.format(traces="true"), environ, "-S")
    missing = "1:21: telemetry.traces: this needs an extra that is not installed; run pipx install --force './heartbeatd[otel]' in the parent folder"
    assert ended.returncode == 0
    assert missing in ended.stderr
    assert "WARNING traces problem=" in ended.stderr
    assert "result=ok" in ended.stderr


@pytest.mark.parametrize(
    ("variables", "level", "words"),
    [
        ({}, "ok", "sent to http://localhost:4318/v1/traces"),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://me:secret@otel.example:8443/base/"},
            "ok",
            "https://otel.example:8443/base/v1/traces",
        ),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://otel.example/in?key=secret"}, "ok", "sent to http://otel.example/in"),
        ({"OTEL_TRACES_EXPORTER": "none"}, "warn", "OTEL_TRACES_EXPORTER=none turns traces off"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "warn", "OTEL_EXPORTER_OTLP_PROTOCOL=grpc is ignored"),
    ],
)
def test_doctor_shows_where_traces_are_sent(
    tmp_path: Path, variables: dict[str, str], level: str, words: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (tmp_path / "config.yaml").write_text(SMALL.format(traces="true"))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    main(["doctor", "-c", str(tmp_path / "config.yaml"), "--format", "json"])
    found = {each["what"]: each for each in json.loads(capsys.readouterr().out)}
    assert found["traces"]["level"] == level
    assert words in found["traces"]["text"]
    assert "secret" not in found["traces"]["text"]

"""Agents on a worker: tools, traces and the environment of programs are those of runs on the daemon itself."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import required_programs
from cluster_processes import Cluster
from patience import PATIENCE
from servers.messages import Models, message, text, tool
from servers.postgres import PostgresServer
from servers.scripted import Act, Request, reply
from test_traces import HOSTILE_TOOLS, Collector, Span

pytestmark = [required_programs.needs("initdb"), pytest.mark.process]

CONFIG = """\
state: state/h.db
server: {{listen: "127.0.0.1:0"}}
telemetry: {{traces: true}}
executor: {{kind: procrastinate, dsn: "${{DSN}}"}}
providers: {{anthropic: {{api_key: sk-ant-of-the-test-0123456789, base_url: "{models}"}}}}
defaults: {{heartbeat: {{interval: 1h, stagger: 0s, checklist: "- look\\n", deliver: log, retries: 0}}}}
agents:
  program: {{runner: {{kind: command, argv: [sh, -c, 'echo "$TRACEPARENT"']}}}}
  tooled: {{model: claude-tooled, runner: {{kind: anthropic, tools: {{mcp: [{{name: disk, command: ["{python}", "{tools}"], allow: free}}]}}}}}}
  idle: {{runner: {{kind: command, argv: [cat]}}, heartbeat: {{checklist: "\\n"}}}}
cron:
  measure: {{schedule: '@reboot', command: 'echo "$TRACEPARENT"'}}
"""


def answer_model(request: Request) -> Act:
    if len(request.json["messages"]) == 1:
        return reply(message(tool("disk__free", {"path": "/srv"}), stop_reason="tool_use"))
    return reply(message(text("The disk /srv is full.")))


@dataclass(frozen=True)
class Ended:
    """What the cluster has left after each agent and job has run once."""

    cluster: Cluster
    collector: Collector
    models: Models

    def show(self, name: str) -> str:
        """The output of `show` for the only run of this agent or job."""
        number = self.cluster.call("runs", name).splitlines()[1].split()[0]
        return self.cluster.call("show", number)

    def parent_of(self, span: Span) -> Span:
        return next(each for each in self.collector.spans() if each.id == span.parent)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer) -> Iterator[Ended]:
    folder = tmp_path_factory.mktemp("cluster")
    with Collector() as collector, Models(answer_model) as models:
        yaml = CONFIG.format(models=models.url, python=sys.executable, tools=HOSTILE_TOOLS)
        (folder / "state").mkdir(mode=0o700)
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
        with Cluster(folder, yaml, postgres.database(), environ=environ) as cluster:
            processes = [cluster.start("run"), cluster.start("worker", "--name", "b-1", folder=folder / "b")]
            deadline = time.monotonic() + PATIENCE
            while len(cluster.outcomes()) < 4:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            for process in processes:
                process.send_signal(signal.SIGTERM)
                assert process.wait(PATIENCE) == 0
            yield Ended(cluster, collector, models)


def test_a_model_uses_the_tools_of_a_server_that_its_worker_starts(ended: Ended) -> None:
    shown = ended.show("tooled")
    assert "The disk /srv is full." in shown
    assert "tool       disk__free" in shown
    assert len(ended.models.requests) == 2


def test_an_attempt_on_a_worker_has_the_spans_of_one_on_the_daemon(ended: Ended) -> None:
    beat = ended.collector.span("invoke_agent tooled")
    chats = [span for span in ended.collector.spans() if span.name == "chat claude-tooled"]
    assert [(span.trace, span.parent) for span in chats] == [(beat.trace, beat.id)] * 2
    assert ended.collector.span("execute_tool disk__free").parent == chats[0].id
    assert (beat.attributes["heartbeatd.worker"], beat.attributes["heartbeatd.run.result"]) == ("b-1", "alert")


def test_the_span_of_an_attempt_is_below_a_span_of_its_scheduler(ended: Ended) -> None:
    beat, queued = ended.collector.span("invoke_agent tooled"), ended.collector.span("queue tooled")
    assert (ended.parent_of(beat), queued.parent, beat.trace) == (queued, "", queued.trace)
    assert queued.attributes["heartbeatd.run.id"] == beat.attributes["heartbeatd.run.id"]
    assert ended.parent_of(ended.collector.span("cron measure")) == ended.collector.span("queue measure")


def test_commands_on_a_worker_get_the_traceparent(ended: Ended) -> None:
    for name, span in (("program", "invoke_agent program"), ("measure", "cron measure")):
        output = ended.show(name).splitlines()[-1]
        assert ended.collector.span(span).is_named_by(output)


def test_an_attempt_that_is_skipped_before_anything_is_started_has_no_span(ended: Ended) -> None:
    assert "skipped" in ended.show("idle")
    assert not [span.name for span in ended.collector.spans() if "idle" in span.name]

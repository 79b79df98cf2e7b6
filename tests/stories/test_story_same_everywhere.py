"""`problems`, `explain`, `status`, `outbox` and the page agree on what is sent, muted, acknowledged, covered, unstable and not delivered."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from page_user import Answer, PageUser
from servers.messages import Models
from test_story_breakers import NO_KEY
from web_daemon import WebDaemon
from world import AgentCall, World

from heartbeatd.verbs import Ack, Mute
from scheduler.cli.main import main
from scheduler.engine import observed_problems
from scheduler.engine.config_reload import note_rejected_config
from scheduler.engine.delivery import Delivery
from scheduler.engine.effects import Sender, VerbRequest
from scheduler.engine.observed_problems import CONFIG as CONFIG_FILE
from scheduler.engine.observed_problems import DATABASE, INTERNAL, WORKERS
from scheduler.model.message import DeliveryResult
from scheduler.model.outcome import Kind
from scheduler.model.problem import Subject
from scheduler.store import problems

RESULTS = {
    "good": DeliveryResult("delivered"),
    "dead": DeliveryResult("dead", "refused"),
    "late": DeliveryResult("retry", "busy"),
}
KEYS = {"finding": "disk", "failure": "failed", "outage": "failed"}
# What the channel does, what is done about the problem, what the agent does. Only findings come and go within the three hours.
CASES = [
    *product(RESULTS, ("plain", "acknowledged", "muted"), ("finding", "failure")),
    *product(RESULTS, ("unstable",), ["finding"]),
    ("good", "covered", "outage"),
]
# A channel that has just refused another message gets no notices of failures. They go to another one.
SUBSTITUTES = {("dead", "failure"): "good"}
CONFIG = """
timezone: UTC
server: {listen: "127.0.0.1:0"}
providers: {anthropic: {api_key: sk-ant-canary-0123456789, base_url: "URL"}}
defaults:
  runner: {kind: command, argv: [agent]}
  heartbeat: {interval: 30m, stagger: 0s, checklist: "- look\\n", retries: 0}
channels:
"""
CALLS_MODEL = "model: claude-haiku-5-5, runner: {kind: anthropic}, "
CHANNELS = [f'  {name}: {{kind: webhook, url: "http://127.0.0.1:9/{name}", allow_private: true}}' for name in RESULTS]
AGENTS = [f"  {'-'.join(case)}: {{{CALLS_MODEL if 'outage' in case else ''}heartbeat: {{deliver: {case[0]}}}}}" for case in CASES]


def send(outgoing: Delivery) -> DeliveryResult:
    return RESULTS[outgoing.channel.name]


def find_or_fail(call: AgentCall) -> str | int:
    """At each run the disk is full or the agent fails, but for an unstable disk, which is not full at 09:00 and 10:00."""
    if "unstable" in call.name and call.at.strftime("%H:%M") in ("09:00", "10:00"):
        return "[disk] resolved"
    return "[disk] full" if call.name.endswith("finding") else 3


def play(daemon: WebDaemon) -> None:
    """Three hours in which each agent finds something or fails."""
    world = daemon.world
    world.send = send
    for case in CASES:
        if "outage" not in case:
            world.scripts["-".join(case)] = find_or_fail
        if "muted" in case:
            world.request(VerbRequest(Mute(), (Kind.HEARTBEAT, "-".join(case)), Sender("Mary")))
    world.run(minutes=185)
    for case in CASES:
        if "acknowledged" in case:
            world.request(VerbRequest(Ack(), world.problem(KEYS[case[2]], "-".join(case)).id, Sender("Mary")))


def shown_problem(page: Answer, number: str) -> str:
    """The part of the page about one problem, without tags."""
    found = re.search(rf'<article [^>]*"problem-{number}">.*?</article>', page.body, re.DOTALL)
    assert found is not None, number
    return " ".join(re.sub("<[^>]*>", "", found[0]).split())


@contextmanager
def played_daemon(folder: Path) -> Iterator[WebDaemon]:
    """A daemon after all cases."""
    yaml = "\n".join([CONFIG.rstrip(), *CHANNELS, "agents:", *AGENTS, ""])
    with Models(lambda _: NO_KEY) as server, WebDaemon(folder, yaml.replace("URL", server.url)) as daemon:
        daemon.do(lambda: play(daemon))
        yield daemon


def test_all_places_agree_on_what_was_sent(tmp_path: Path) -> None:
    with played_daemon(tmp_path) as daemon:
        user = PageUser(daemon)
        user.log_in(daemon.token)

        def read(path: str) -> Any:
            return daemon.get(f"/api/v1/{path}", daemon.token).data

        found = {(each["name"], each["key"]): each for each in read("problems")["problems"]}
        status = {each["name"]: each for each in read("status")["entries"]}
        waiting = {each["name"] for each in read("outbox")["outbox"]}
        page = user.get("/page/problems")
        for channel, state, what in CASES:
            name = f"{channel}-{state}-{what}"
            problem, facts = found[name, KEYS[what]], " ".join(each["says"] for each in read(f"explain/{name}")["facts"])
            shown = shown_problem(page, problem["number"])
            used = SUBSTITUTES.get((channel, what), channel)
            is_sent, is_muted = state not in ("muted", "covered"), state == "muted"
            is_lost = is_sent and used != "good"
            says = [each["says"] for each in problem["notices"]]
            assert [each["channel"] for each in problem["notices"]] == ([used] if is_sent else []), name
            assert [each["delivered_at"] is None for each in problem["notices"]] == ([is_lost] if is_sent else []), name
            assert all(each in shown and each in facts for each in says), (name, says, shown, facts)
            assert ("not sent yet" in shown, "not sent yet" in facts) == (is_muted, is_muted), (name, shown, facts)
            assert [text.startswith(f"delivered to {used}") for text in says] == ([not is_lost] if is_sent else []), name
            assert (status[name]["undelivered"] is not None, name in waiting) == (is_lost, is_lost), name
            assert (status[name]["muted"] is not None, "muted by Mary" in facts) == (is_muted, is_muted), name
            cause = problem["cause"] or "a cause"
            is_covered = (problem["state"] == "covered", f"{cause} is the cause" in shown, f"{cause} is the cause" in facts)
            assert set(is_covered) == {state == "covered"}, (name, is_covered, shown, facts)
            is_acknowledged = (problem["acknowledged_by"] == "Mary", "by Mary" in shown, "acknowledged 11:05 by Mary" in facts)
            assert set(is_acknowledged) == {state == "acknowledged"}, (name, is_acknowledged)
            is_unstable = (problem["unstable"], "unstable" in shown.replace(name, ""), "unstable" in facts.replace(name, ""))
            assert set(is_unstable) == {state == "unstable"}, (name, is_unstable, shown, facts)


def test_all_places_say_the_same_of_an_open_circuit_breaker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with played_daemon(tmp_path) as daemon:
        user = PageUser(daemon)
        user.log_in(daemon.token)
        texts = {path: user.get(path).text for path in ("/", "/page/problems", "/page/doctor")}
        for command in ("status", "doctor"):
            main(["-c", str(daemon.config), command])
            texts[command] = " ".join(capsys.readouterr().out.split())
        (breaker,) = daemon.get("/api/v1/status", daemon.token).data["breakers"]
        said = rf"provider anthropic has been blocked since .{{,30}}: {breaker['error']}; the next trial call is at "
        assert {place: len(re.findall(said, text)) for place, text in texts.items()} == dict.fromkeys(texts, 1)


DAEMON_CONFIG = """
timezone: UTC
server:
  listen: "127.0.0.1:0"
  tokens:
    chief: {value: chief-token-with-enough-bits-in-it-1, may: [read]}
    limited: {value: limited-token-with-enough-bits-in-1, may: [read], agents: ops}
agents:
  ops: {runner: {kind: command, argv: [agent]}, heartbeat: {interval: 1h, stagger: 0s, checklist: "- look\\n", deliver: log}}
"""
CHIEF, LIMITED = "chief-token-with-enough-bits-in-it-1", "limited-token-with-enough-bits-in-1"
PARTS = {CONFIG_FILE: "unstable", WORKERS: "acknowledged", INTERNAL: "plain"}  # what is wrong with the daemon, and its state


def break_daemon(world: World) -> None:
    """The disk was full for a minute, the config is rejected three times and mended twice, no worker runs, and a run has an error."""
    world.send = send
    world.request(partial(observed_problems.note_daemon, key=DATABASE, problem="0 MiB free"))
    world.run(minutes=2)
    for number in range(3):
        world.request(partial(note_rejected_config, problem="config.yaml:3:1: agentz: unknown key", by="file watch"))
        world.run(minutes=10)
        if number < 2:
            world.request(partial(observed_problems.note_daemon, key=CONFIG_FILE, problem=None))
    for key in (WORKERS, INTERNAL):
        world.request(partial(observed_problems.note_daemon, key=key, problem=f"{key} broken"))
    world.run(minutes=35)
    found = problems.find_problem(world.store.connection, Subject.of_daemon(), WORKERS)
    assert found is not None
    world.request(VerbRequest(Ack(), found.id, Sender("Mary")))


@pytest.mark.parametrize("first", RESULTS)
def test_all_places_agree_on_the_problems_of_the_daemon(tmp_path: Path, first: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Also if its default channel, the `first` one, takes no messages. A token that is limited to an agent sees none of them."""
    listed = sorted(CHANNELS, key=lambda line: f"  {first}:" not in line)
    with WebDaemon(tmp_path, "\n".join([DAEMON_CONFIG.rstrip(), "channels:", *listed, ""])) as daemon:
        daemon.do(lambda: break_daemon(daemon.world))
        user, other = PageUser(daemon), PageUser(daemon)
        user.log_in(CHIEF)
        other.log_in(LIMITED)

        def read(path: str, token: str = CHIEF) -> Any:
            return daemon.get(f"/api/v1/{path}", token).data

        found = [each for each in read("problems")["problems"] if each["subject"] == "daemon"]
        assert {each["key"] for each in found} == set(PARTS)
        assert [each for each in read("status")["problems"] if each["subject"] == "daemon"] == found
        assert main(["-c", str(daemon.config), "status"]) == 0
        status, page = " ".join(capsys.readouterr().out.split()), user.get("/page/problems")
        overview = " ".join(each["says"] for each in read("explain")["problems"])
        fleet, waiting = user.get("/").text, [each["channel"] for each in read("outbox")["outbox"] if each["kind"] == "daemon"]
        metrics = daemon.get("/metrics").body.decode()
        for problem in found:
            key, state, number = problem["key"], PARTS[problem["key"]], problem["number"]
            shown = shown_problem(page, number)
            says = [each["says"] for each in problem["notices"]]
            assert says and all(each in shown and each in status for each in says), (key, says, shown, status)
            assert any(each["delivered_at"] for each in problem["notices"]) == (first != "late"), (key, says)
            lost = [each["channel"] for each in problem["notices"] if each["delivered_at"] is None]
            assert set(lost) <= {*waiting}, (key, lost, waiting)
            assert number in overview and problem["text"] in overview and problem["text"] in fleet, (key, overview, fleet)
            acks = (problem["acknowledged_by"] == "Mary", "by Mary" in shown, f"by Mary) {number}" in status)
            assert set(acks) == {state == "acknowledged"}, (key, acks, shown, status)
            unstable = (problem["unstable"], ", unstable" in shown)
            assert set(unstable) == {state == "unstable"}, (key, unstable, shown)
        (over,) = (each for each in read("problems?state=all")["problems"] if each["key"] == DATABASE)
        assert main(["-c", str(daemon.config), "problems", "--all"]) == 0
        printed, says = " ".join(capsys.readouterr().out.split()), [each["says"] for each in over["notices"]]
        assert over["state"] == "over" and says and all(each in printed for each in says), (over, printed)
        assert "0 MiB free" in printed and "0 MiB free" not in status + overview + fleet, (printed, status, overview, fleet)
        for acknowledged, number in (("true", 1), ("false", 2)):
            labels = f'acknowledged="{acknowledged}",severity="critical",subject="daemon"'
            assert f"heartbeatd_problems_open{{{labels}}} {number}" in sorted_labels(metrics), metrics
        seen = (*read("problems", LIMITED)["problems"], *read("status", LIMITED)["problems"], *read("outbox", LIMITED)["outbox"])
        assert (seen, read("explain", LIMITED)["problems"]) == ((), [])
        assert "agentz" not in other.get("/page/problems").text + other.get("/").text + other.get("/page/outbox").text


def sorted_labels(metrics: str) -> str:
    """The metrics page with the labels of each series in the order of their names."""
    return re.sub(r"\{(.*?)\}", lambda found: "{" + ",".join(sorted(found[1].split(","))) + "}", metrics)

"""Async results end to end: reported once after the run, then classified, counted and sent."""

from __future__ import annotations

from datetime import timedelta

import pytest
from metrics_page import Page
from servers import gateway
from servers.scripted import Server
from world import MakeWorld, World

from heartbeatd.verbs import ReportResult
from scheduler.engine.effects import VerbRequest
from scheduler.engine.tick_items import Refused
from scheduler.model.outcome import Kind


def http_agent(url: str, **keys: str) -> str:
    """The config of one agent `ops` behind a URL with these heartbeat keys."""
    words = {"interval": "30m", "stagger": "0s", "checklist": '"- look\\n"', "deliver": "log"} | keys
    heartbeat = ", ".join(f"{key}: {value}" for key, value in words.items())
    return f'agents:\n  ops:\n    runner: {{kind: http, url: "{url}"}}\n    heartbeat: {{{heartbeat}}}\n'


def test_an_async_result_is_classified_and_sent_once(make_world: MakeWorld) -> None:
    with Server([gateway.async_answer()]) as server:
        world = make_world(http_agent(server.url, interval="1d", async_timeout="24h"))
        world.run(hours=3)
        run_id = server.requests[0].json["run"]
    assert run_id == world.records()[0]["id"]
    assert world.records()[0]["result"] == "async"
    world.request(VerbRequest(ReportResult(text="ALERT: found it"), run_id))
    world.run(minutes=1)
    later = world.records()[1]
    assert (later["trigger"], later["planned_at"], later["result"]) == ("result", world.records()[0]["planned_at"], "alert")
    assert [text for _, _, text in world.delivered] == ["ALERT: found it"]
    with pytest.raises(Refused, match="already has its result"):
        world.request(VerbRequest(ReportResult(text="again"), run_id))


def test_a_result_after_a_day_is_refused(make_world: MakeWorld) -> None:
    with Server([gateway.async_answer()]) as server:
        world = make_world(http_agent(server.url, interval="1d", async_timeout="24h"))
        world.run(hours=3)
        run_id = server.requests[0].json["run"]
    world.run(hours=25)
    with pytest.raises(Refused, match="has failed: no result was reported"):
        world.request(VerbRequest(ReportResult(text="ALERT: found it"), run_id))


def test_a_result_that_arrives_before_its_202_is_recorded_is_not_refused_as_unknown(make_world: MakeWorld) -> None:
    with Server([gateway.async_answer()]) as server:
        world = make_world(http_agent(server.url), durations={"ops": timedelta(seconds=1)})
        world.engine.tick(world.clock.read())
        with pytest.raises(Refused) as refused:
            world.request(VerbRequest(ReportResult(text="ALERT fast"), server.requests[0].json["run"]))
    assert refused.value.code == "not_yet"


def test_a_nul_byte_is_removed_from_an_async_result(make_world: MakeWorld) -> None:
    with Server([gateway.async_answer()]) as server:
        world = make_world(http_agent(server.url))
        world.run(minutes=1)
        world.request(VerbRequest(ReportResult(text="a\0b"), server.requests[-1].json["run"]))
        world.run(minutes=1)
    assert world.records()[-1]["text"] == "ab"


def test_failed_async_results_count_as_consecutive_failures(make_world: MakeWorld) -> None:
    with Server([gateway.async_answer()]) as server:
        world = make_world(http_agent(server.url))
        for _ in range(3):
            world.run(minutes=1)
            world.request(VerbRequest(ReportResult(error="it broke"), server.requests[-1].json["run"]))
            world.run(minutes=29)
    assert world.store.connection.execute("select failures from entry").fetchone()[0] == 3


def test_a_result_that_fails_after_the_answer_of_a_newer_run_is_no_failure_in_a_row(make_world: MakeWorld) -> None:
    """Also if it never arrives. The latest run decides whether the agent fails."""
    with Server([gateway.async_answer()]) as server:
        world = make_world(http_agent(server.url, async_timeout="2h"))
        world.run(minutes=91)
        first, _, third, newest = [request.json["run"] for request in server.requests]
        world.request(VerbRequest(ReportResult(error="it broke"), first))
        world.run(minutes=1)
        assert failures_in_a_row(world) == 1
        world.request(VerbRequest(ReportResult(text="HEARTBEAT_OK"), newest))
        world.run(minutes=1)
        world.request(VerbRequest(ReportResult(error="it broke"), third))
        world.pause((Kind.HEARTBEAT, "ops"))
        world.run(hours=3)
    assert [run["why"] for run in world.records() if run["result"] == "failed"] == ["exit", "exit", "no_result"]
    assert failures_in_a_row(world) == 0


def test_a_result_counts_as_an_alert_although_a_newer_run_has_answered(make_world: MakeWorld) -> None:
    with Server([gateway.async_answer()]) as server:
        world = make_world(http_agent(server.url, async_timeout="2h"))
        world.run(minutes=61)
        first, second, _ = [request.json["run"] for request in server.requests]
        world.request(VerbRequest(ReportResult(text="HEARTBEAT_OK"), second))
        world.run(minutes=1)
        world.request(VerbRequest(ReportResult(text="ALERT: found it"), first))
        world.run(minutes=1)
    assert world.store.connection.execute("select quiet, alerting from entry").fetchone()[:] == (0, 1)


def failures_in_a_row(world: World) -> int:
    (count,) = Page(world).series("consecutive_failures").values()
    return int(count)


def test_a_suppressed_async_result_counts_once_as_quiet(make_world: MakeWorld) -> None:
    with Server([gateway.async_answer()]) as server:
        world = make_world(http_agent(server.url))
        world.run(minutes=1)
        world.request(VerbRequest(ReportResult(text="HEARTBEAT_OK"), server.requests[-1].json["run"]))
    assert world.store.connection.execute("select quiet from entry").fetchone()[0] == 1


def test_an_active_alert_is_not_resolved_by_the_start_of_an_async_run(make_world: MakeWorld) -> None:
    with Server([gateway.async_answer()]) as server:
        world = make_world(http_agent(server.url))
        world.run(minutes=1)
        world.request(VerbRequest(ReportResult(text="ALERT: x"), server.requests[-1].json["run"]))
        world.run(minutes=30)
    assert world.store.connection.execute("select alerting from entry").fetchone()[0] == 1

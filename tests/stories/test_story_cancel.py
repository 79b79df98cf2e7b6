"""Cancelled runs end to end: in progress, between attempts, and with an answer still to come."""

from __future__ import annotations

from datetime import timedelta

import pytest
from servers import gateway
from servers.scripted import Server
from test_story_explain import explained_entry
from test_story_slots import agent, job
from world import QUIET, Delayed, MakeWorld, World

from heartbeatd.verbs import Cancel, ReportResult
from scheduler.engine.effects import VerbRequest
from scheduler.engine.tick_items import Refused
from scheduler.insight import explanation, health, status_data
from scheduler.store import run_history

HOUR = timedelta(hours=1)
CANCELLED = "03-02 08:00 interval abandoned cancelled"
LATER = """
agents:
  ops:
    runner: {{kind: http, url: "{url}"}}
    heartbeat: {{interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: log}}
"""


def world_with_run_in_progress(world: World) -> World:
    """The world while its first run is in progress."""
    world.run(seconds=1)
    return world


def test_a_cancelled_run_in_progress_is_abandoned_and_not_retried(make_world: MakeWorld) -> None:
    world = world_with_run_in_progress(
        make_world(agent(retries="3"), scripts={"ops": lambda call: Delayed("too late", timedelta(minutes=4))})
    )
    assert world.request(VerbRequest(Cancel(), 1)).ended is False
    world.run(minutes=20)
    assert world.history() == [CANCELLED]
    assert (len(world.calls), world.delivered) == (1, [])
    assert world.records()[0]["error"] == "was cancelled"


def test_the_next_slot_after_a_cancelled_run_runs_as_usual(make_world: MakeWorld) -> None:
    world = make_world(agent(), scripts={"ops": lambda call: Delayed("x", HOUR) if len(world.calls) == 1 else "HEARTBEAT_OK"})
    world_with_run_in_progress(world)
    world.request(VerbRequest(Cancel(), 1))
    world.run(minutes=31)
    assert world.history() == [CANCELLED, "03-02 08:30 interval ok heartbeat_ok"]


def test_an_answer_that_arrives_during_the_cancellation_is_recorded_and_not_sent(make_world: MakeWorld) -> None:
    world = world_with_run_in_progress(
        make_world(agent(), scripts={"ops": lambda call: Delayed("The disk is full.", timedelta(minutes=1))})
    )
    world.runs.can_cancel = False  # the answer arrives in time
    world.request(VerbRequest(Cancel(), 1))
    world.clock.advance(timedelta(minutes=1))
    world.settle()
    (row,) = world.records()
    assert (row["result"], row["why"], row["text"]) == ("abandoned", "cancelled", "The disk is full.")
    assert world.delivered == []


def test_a_cancelled_run_does_not_count_as_a_failure(make_world: MakeWorld) -> None:
    world = world_with_run_in_progress(make_world(agent(), scripts={"ops": lambda call: Delayed("x", HOUR)}))
    world.request(VerbRequest(Cancel(), 1))
    world.run(minutes=1)
    assert world.store.connection.execute("select failures from entry").fetchone()[0] == 0


def test_an_agent_whose_run_was_cancelled_is_shown_neither_as_failed_nor_as_stopped(make_world: MakeWorld) -> None:
    world = make_world(agent(), scripts={"ops": lambda call: Delayed("x", HOUR) if len(world.calls) == 2 else QUIET})
    world.run(minutes=31)
    world.request(VerbRequest(Cancel(), 2))
    world.run(minutes=1)
    assert world.history()[1] == "03-02 08:30 interval abandoned cancelled"
    status = status_data.read_status(world.store.connection, world.clock.now)
    assert (health.read_states(status.entries)[0].label, health.read_verdict(status, str).level) == ("ok", "ok")
    day = explanation.explain_now(explained_entry(world)).overview
    assert (day.result, day.says) == ("quiet", "1 answer not sent: nothing needs attention")


def test_the_wakes_of_a_cancelled_run_are_delivered_by_the_next_run(make_world: MakeWorld) -> None:
    world = make_world(agent(), scripts={"ops": lambda call: Delayed("x", HOUR) if len(world.calls) == 2 else "HEARTBEAT_OK"})
    world.run(minutes=1)
    world.wake("ops", "look at the mail queue")
    world.run(seconds=1)
    world.request(VerbRequest(Cancel(), 2))
    world.run(minutes=28)
    assert len(world.calls) == 2
    world.run(minutes=5)
    assert "look at the mail queue" in world.calls[2].stdin


@pytest.mark.parametrize("problems", ["{after: none}", "{after: 1}"])
def test_a_cancelled_job_causes_no_notification(make_world: MakeWorld, problems: str) -> None:
    world = make_world(job(every="1h", deliver="log", problems=problems), scripts={"measure": lambda call: Delayed("x", HOUR)})
    world.run_job("measure")
    world_with_run_in_progress(world).request(VerbRequest(Cancel(), 1))
    world.run(minutes=1)
    assert world.history("measure") == ["03-02 08:00 manual abandoned cancelled"]
    assert world.delivered == []


@pytest.mark.parametrize("wake_on", ["always", "failure"])
def test_a_cancelled_job_wakes_no_agent(make_world: MakeWorld, wake_on: str) -> None:
    yaml = agent(interval="none") + job(every="1h", wake_heartbeat="ops", wake_on=wake_on)
    world = make_world(yaml, scripts={"measure": lambda call: Delayed("x", HOUR)})
    world.run_job("measure")
    world_with_run_in_progress(world).request(VerbRequest(Cancel(), 1))
    world.run(minutes=20)
    assert world.history() == ["03-02 08:00 manual abandoned cancelled"]


def test_a_run_cancelled_between_attempts_ends_at_once(make_world: MakeWorld) -> None:
    world = make_world(agent(retries="3"), scripts={"ops": lambda call: 1})
    world.engine.tick(world.clock.read())
    world.settle()
    assert world.history() == ["03-02 08:00 interval waiting exit"]
    assert world.request(VerbRequest(Cancel(), 1)).ended is True
    world.run(minutes=20)
    assert world.history() == [CANCELLED]
    assert len(world.calls) == 1


def test_the_async_result_of_a_cancelled_run_is_refused(make_world: MakeWorld) -> None:
    with Server([gateway.async_answer()]) as server:
        world = world_with_run_in_progress(make_world(LATER.format(url=server.url)))
        assert world.request(VerbRequest(Cancel(), 1)).ended is True
        assert world.history() == ["03-02 08:00 interval async", "03-02 08:00 result abandoned cancelled"]
        with pytest.raises(Refused, match="already has its result"):
            world.request(VerbRequest(ReportResult(text="The disk is full."), 1))
        with pytest.raises(Refused, match="run 1 already has its result"):
            world.request(VerbRequest(Cancel(), 1))


@pytest.mark.parametrize(("run_id", "error"), [(7, "no run 7; `heartbeatd runs` lists them"), (1, "run 1 has already ended: ok")])
def test_cancelling_a_run_that_is_not_open_is_refused_in_one_line(make_world: MakeWorld, run_id: int, error: str) -> None:
    world = world_with_run_in_progress(make_world(agent()))
    with pytest.raises(Refused) as refused:
        world.request(VerbRequest(Cancel(), run_id))
    assert str(refused.value) == error


def test_a_cancelled_run_is_not_repeated_if_the_daemon_dies_before_it_ends(make_world: MakeWorld) -> None:
    world = world_with_run_in_progress(make_world(agent(), scripts={"ops": lambda call: Delayed("x", HOUR)}))
    world.request(VerbRequest(Cancel(), 1))
    world.downtime(seconds=10)
    world.run(minutes=10)
    assert world.history() == [CANCELLED]
    assert len(world.calls) == 1


def test_a_run_cancelled_at_its_timeout_is_not_retried(make_world: MakeWorld) -> None:
    world = make_world(agent(timeout="10s", retries="3"), scripts={"ops": lambda call: Delayed("x", HOUR)})
    world.run(seconds=1)
    world.runs.can_cancel = False
    world.run(seconds=10)
    world.request(VerbRequest(Cancel(), 1))
    world.run(minutes=2)
    assert world.history() == [CANCELLED]


def test_a_run_that_the_daemon_stops_after_its_timeout_has_timed_out_and_is_not_put_back(make_world: MakeWorld) -> None:
    world = make_world(agent(timeout="10s", retries="0"), scripts={"ops": lambda call: Delayed("x", HOUR)})
    world.run(seconds=1)
    world.runs.can_cancel = False
    world.run(seconds=10)
    world.runs.can_cancel = True
    world.end_runs()
    assert world.history() == ["03-02 08:00 interval timeout timeout"]


def test_a_cancelled_run_that_does_not_end_is_given_up_after_seconds(make_world: MakeWorld) -> None:
    world = make_world(agent(timeout="1h"))
    world.scripts["ops"] = lambda call: Delayed("never", timedelta(days=1))
    world.run(minutes=1)
    world.runs.can_cancel = False
    world.request(VerbRequest(Cancel(), world.records()[0]["id"]))
    world.run(seconds=9)
    assert world.records()[0]["state"] == "running"
    world.run(seconds=3)
    assert world.history() == ["03-02 08:00 interval abandoned cancelled"]


def test_the_report_does_not_count_a_cancelled_run_as_a_failure(make_world: MakeWorld) -> None:
    world = world_with_run_in_progress(
        make_world(agent(), scripts={"ops": lambda call: Delayed("too late", timedelta(minutes=4))})
    )
    world.request(VerbRequest(Cancel(), 1))
    world.run(minutes=20)
    (tally,) = run_history.count_runs(world.store.connection, world.clock.now - HOUR, world.clock.now)
    assert (tally.runs, tally.failed) == (1, 0)

"""Stories of cancelled runs: one in progress, one between its attempts, one whose answer is still to come."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from servers import gateway
from servers.scripted import Server
from test_story_slots import agent, job
from world import Takes, World

from scheduler.engine.inbox import Refused
from scheduler.engine.pending_runs import CancelRun, ReportResult
from scheduler.store import run_history

Play = Callable[..., World]

HOUR = timedelta(hours=1)
CANCELLED = "03-02 08:00 interval abandoned cancelled"
LATER = """
agents:
  ops:
    runner: {{kind: http, url: "{url}"}}
    heartbeat: {{interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: log}}
"""


def begun(world: World) -> World:
    """The world once its first beat is under way."""
    world.run(seconds=1)
    return world


def test_a_run_in_progress_ends_abandoned_and_is_not_tried_again(play: Play) -> None:
    world = begun(play(agent(retries="3"), scripts={"ops": lambda asked: Takes("too late", timedelta(minutes=4))}))
    assert world.ask(CancelRun(1)) is False
    world.run(minutes=20)
    assert world.story() == [CANCELLED]
    assert (len(world.asked), world.said) == (1, [])
    assert world.rows()[0]["error"] == "was cancelled"


def test_the_next_slot_of_a_cancelled_run_comes_as_ever(play: Play) -> None:
    world = play(agent(), scripts={"ops": lambda asked: Takes("x", HOUR) if len(world.asked) == 1 else "HEARTBEAT_OK"})
    begun(world)
    world.ask(CancelRun(1))
    world.run(minutes=31)
    assert world.story() == [CANCELLED, "03-02 08:30 interval ok heartbeat_ok"]


def test_an_answer_that_comes_while_a_run_is_cancelled_is_kept_and_not_told(play: Play) -> None:
    world = begun(play(agent(), scripts={"ops": lambda asked: Takes("The disk is full.", timedelta(minutes=1))}))
    world.runs.cancel = lambda number, why: None  # it cannot be stopped, and answers in time
    world.ask(CancelRun(1))
    world.clock.forward(timedelta(minutes=1))
    world.settle()
    (row,) = world.rows()
    assert (row["outcome"], row["reason"], row["text"]) == ("abandoned", "cancelled", "The disk is full.")
    assert world.said == []


def test_a_cancelled_run_is_no_failure_of_its_agent(play: Play) -> None:
    world = begun(play(agent(), scripts={"ops": lambda asked: Takes("x", HOUR)}))
    world.ask(CancelRun(1))
    world.run(minutes=1)
    assert world.store.connection.execute("select failures from entry").fetchone()[0] == 0


def test_what_woke_a_cancelled_run_is_heard_by_the_next_one(play: Play) -> None:
    world = play(agent(), scripts={"ops": lambda asked: Takes("x", HOUR) if len(world.asked) == 2 else "HEARTBEAT_OK"})
    world.run(minutes=1)
    world.wake("ops", "look at the mail queue")
    world.run(seconds=1)
    world.ask(CancelRun(2))
    world.run(minutes=28)
    assert len(world.asked) == 2
    world.run(minutes=5)
    assert "look at the mail queue" in world.asked[2].stdin


@pytest.mark.parametrize("on_failure", ["none", "{after: 1}"])
def test_whoever_cancels_a_job_is_not_told_of_it(play: Play, on_failure: str) -> None:
    world = play(job(every="1h", deliver="log", on_failure=on_failure), scripts={"measure": lambda asked: Takes("x", HOUR)})
    world.run_job("measure")
    begun(world).ask(CancelRun(1))
    world.run(minutes=1)
    assert world.story("measure") == ["03-02 08:00 manual abandoned cancelled"]
    assert world.said == []


@pytest.mark.parametrize("wake_on", ["always", "failure"])
def test_a_job_that_is_cancelled_wakes_nobody(play: Play, wake_on: str) -> None:
    yaml = agent(interval="none") + job(every="1h", wake_heartbeat="ops", wake_on=wake_on)
    world = play(yaml, scripts={"measure": lambda asked: Takes("x", HOUR)})
    world.run_job("measure")
    begun(world).ask(CancelRun(1))
    world.run(minutes=20)
    assert world.story() == ["03-02 08:00 manual abandoned cancelled"]


def test_a_run_between_its_attempts_ends_at_once(play: Play) -> None:
    world = play(agent(retries="3"), scripts={"ops": lambda asked: 1})
    world.engine.tick(world.clock.read())
    world.settle()
    assert world.story() == ["03-02 08:00 interval waiting exit"]
    assert world.ask(CancelRun(1)) is True
    world.run(minutes=20)
    assert world.story() == [CANCELLED]
    assert len(world.asked) == 1


def test_an_answer_that_is_still_to_come_is_no_longer_taken(play: Play) -> None:
    with Server([gateway.later()]) as server:
        world = begun(play(LATER.format(url=server.url)))
        assert world.ask(CancelRun(1)) is True
        assert world.story() == ["03-02 08:00 interval async", "03-02 08:00 result abandoned cancelled"]
        with pytest.raises(Refused, match="has its result already"):
            world.ask(ReportResult(1, "The disk is full.", None))
        with pytest.raises(Refused, match="run 1 has its result already"):
            world.ask(CancelRun(1))


@pytest.mark.parametrize(("run_id", "said"), [(7, "no run 7; `heartbeatd runs` lists them"), (1, "run 1 has ended already: ok")])
def test_what_cannot_be_cancelled_is_told_in_a_line(play: Play, run_id: int, said: str) -> None:
    world = begun(play(agent()))
    with pytest.raises(Refused) as refused:
        world.ask(CancelRun(run_id))
    assert str(refused.value) == said


def test_a_cancelled_run_whose_daemon_dies_before_its_end_is_not_taken_up_again(play: Play) -> None:
    world = begun(play(agent(), scripts={"ops": lambda asked: Takes("x", HOUR)}))
    world.ask(CancelRun(1))
    world.off(seconds=10)
    world.run(minutes=10)
    assert world.story() == [CANCELLED]
    assert len(world.asked) == 1


def test_a_run_that_is_cancelled_at_its_timeout_is_not_tried_again(play: Play) -> None:
    world = play(agent(timeout="10s", retries="3"), scripts={"ops": lambda asked: Takes("x", HOUR)})
    world.run(seconds=1)
    world.runs.cancel = lambda number, why: None  # it does not listen
    world.run(seconds=10)
    world.ask(CancelRun(1))
    world.run(minutes=2)
    assert world.story() == [CANCELLED]


def test_a_cancelled_run_is_no_failure_of_the_report(play: Play) -> None:
    world = begun(play(agent(), scripts={"ops": lambda asked: Takes("too late", timedelta(minutes=4))}))
    world.ask(CancelRun(1))
    world.run(minutes=20)
    (tally,) = run_history.count_runs(world.store.connection, world.clock.now - HOUR, world.clock.now)
    assert (tally.ran, tally.failed) == (1, 0)

"""Lanes end to end: runs wait while a user or gateway has locked the agent, and lock the agent themselves."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from servers.messages import error_answer, text_answer
from test_story_models import KEY, config, model
from test_story_slots import OPS, agent, job
from world import QUIET, Delayed, MakeWorld, World, utc

from heartbeatd.answers import LockHeld
from heartbeatd.verbs import HoldLock, ReleaseLock
from scheduler.engine.effects import VerbRequest
from scheduler.engine.tick_items import Refused
from scheduler.insight.status_data import read_entries
from scheduler.insight.wake_waits import wait_of_wake
from scheduler.model.events import LaneBusy
from scheduler.model.outcome import Kind
from scheduler.store import wakes
from scheduler.system import lanes

OPS_KEY = ("heartbeat", "ops")
OTHER = "  other: {runner: {kind: command, argv: [a]}, heartbeat: {interval: 1d, stagger: 0s, deliver: log}}\n"


@contextmanager
def lane_locked(world: World, name: str = "ops") -> Iterator[int]:
    """Lock the agent's lane as `flock lanes/NAME.lock` would."""
    folder = world.state.with_name("lanes")
    folder.mkdir(mode=0o700, exist_ok=True)
    fd = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield fd
    finally:
        os.close(fd)


def hold_lock(world: World, holder: str = "chat", **time: float) -> LockHeld:
    return world.request(VerbRequest(HoldLock(id=holder, for_=timedelta(**time)), (Kind.HEARTBEAT, "ops")))


def call_times(world: World) -> list[str]:
    return [f"{call.at:%H:%M:%S}" for call in world.calls]


# --- the lock file ----------------------------------------------------------------------------------------------------


def test_a_run_waits_while_a_user_talks_to_the_agent_and_starts_soon_after(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    world.run(minutes=29)
    with lane_locked(world):
        world.run(seconds=80)
        assert call_times(world) == ["08:00:00"]
        assert world.history()[-1] == "03-02 08:30 interval waiting busy"
    world.run(minutes=1)
    assert call_times(world) == ["08:00:00", "08:30:30"]
    assert world.history() == ["03-02 08:00 interval ok heartbeat_ok", "03-02 08:30 interval ok heartbeat_ok"]


def test_a_lane_locked_over_two_slots_is_one_busy_record_and_then_a_run(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    world.run(minutes=29)
    with lane_locked(world):
        world.run(minutes=31, seconds=50)
    world.run(minutes=5)
    assert call_times(world) == ["08:00:00", "09:01:00"]
    assert world.history()[1:] == ["03-02 08:30 interval skipped busy", "03-02 09:00 interval ok heartbeat_ok"]


def test_a_lane_locked_for_hours_leaves_one_busy_record_per_slot(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    with lane_locked(world):
        world.run(hours=2)
    skipped = [f"03-02 {slot} interval skipped busy" for slot in ("08:00", "08:30", "09:00", "09:30")]
    assert world.history() == [*skipped, "03-02 10:00 interval waiting busy"]
    assert world.calls == []


def test_waiting_for_a_lane_uses_no_attempt(make_world: MakeWorld) -> None:
    world = make_world(agent(retries="2"))
    world.scripts["ops"] = lambda call: 1
    with lane_locked(world):
        world.run(minutes=10)
    world.run(minutes=10)
    assert len(world.calls) == 3
    assert world.records()[0]["tries"] == 3


def test_a_run_that_waited_started_when_its_lane_was_free(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    with lane_locked(world):
        world.run(minutes=9, seconds=45)
    world.run(minutes=1)
    assert world.records()[0]["started_at"] == "2026-03-02T08:10:00Z"


def test_waiting_for_a_lane_is_logged_once(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    with lane_locked(world):
        world.run(minutes=10)
    assert len([event for event in world.events if isinstance(event, LaneBusy)]) == 1


def test_a_locked_lane_does_not_affect_other_agents(make_world: MakeWorld) -> None:
    world = make_world(OPS + OTHER.replace("deliver", 'checklist: "- look\\n", deliver'))
    with lane_locked(world, "other"):
        world.run(minutes=1)
    assert [call.name for call in world.calls] == ["ops"]


def test_the_end_of_active_hours_ends_the_wait(make_world: MakeWorld) -> None:
    world = make_world(agent(active_hours='"08:00-09:00"'))
    world.run_until("2026-03-02 08:29")
    with lane_locked(world):
        world.run_until("2026-03-02 10:00")
    world.run(minutes=5)
    assert world.history()[:2] == ["03-02 08:00 interval ok heartbeat_ok", "03-02 08:30 interval skipped busy"]
    assert len(world.calls) == 1


@pytest.mark.parametrize("hours", ["always", '"08:00-08:30"'])
def test_the_lane_is_checked_once_more_when_the_wait_ends(make_world: MakeWorld, hours: str) -> None:
    world = make_world(agent(active_hours=hours, interval="30m" if hours == "always" else "1d"))
    world.run(minutes=20, seconds=7)
    with lane_locked(world):
        world.wake("ops", "look")
        world.run(minutes=15)
    busy = next(row for row in world.records() if row["why"] == "busy")
    assert (busy["trigger"], busy["finished_at"]) == ("api", "2026-03-02T08:30:00Z")


def test_a_job_has_no_lane(make_world: MakeWorld) -> None:
    world = make_world(job(every="10m"))
    with lane_locked(world, "measure"):
        world.run(minutes=11)
    assert world.history() == ["03-02 08:10 every ok"]


def test_the_lock_file_is_kept_and_readable_only_by_its_owner(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    old = os.umask(0)
    try:
        world.run(minutes=1)
    finally:
        os.umask(old)
    file = world.state.with_name("lanes") / "ops.lock"
    assert [oct(path.stat().st_mode & 0o777) for path in (file.parent, file)] == ["0o700", "0o600"]


def test_a_run_locks_its_lane_during_the_agent_call(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    free: list[bool] = []

    def look(call: object) -> str:
        with lanes.lanes_beside(world.state).lock_if_free("ops") as fd:
            free.append(fd is not None)
        return QUIET

    world.scripts["ops"] = look
    world.run(minutes=1)
    with lanes.lanes_beside(world.state).lock_if_free("ops") as fd:
        free.append(fd is not None)
    assert free == [False, True]


# --- retries, wakes, crashes, pauses, reloads -------------------------------------------------------------------------


def test_a_retry_waits_for_a_locked_lane_and_keeps_the_error_of_the_first_attempt(make_world: MakeWorld) -> None:
    world = make_world(agent(retries="2"))
    world.scripts["ops"] = lambda call: 1 if len(world.calls) == 1 else QUIET
    world.engine.tick(world.clock.read())
    world.engine.tick(world.clock.read())
    with lane_locked(world):
        world.run(minutes=5)
        assert world.history() == ["03-02 08:00 interval waiting busy"]
    world.run(minutes=1)
    assert world.history() == ["03-02 08:00 interval ok heartbeat_ok"]


def test_a_retry_that_never_gets_its_lane_ends_failed_and_not_skipped(make_world: MakeWorld) -> None:
    world = make_world(agent(retries="2"))
    world.scripts["ops"] = lambda call: 1
    world.engine.tick(world.clock.read())
    world.engine.tick(world.clock.read())
    with lane_locked(world):
        world.run(minutes=31)
    assert world.history()[0] == "03-02 08:00 interval failed no_time_left"
    assert "exit" in world.records()[0]["error"]


def test_a_woken_run_waits_for_its_lane_and_later_wakes_join_it(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1d"))
    world.run(minutes=1)
    with lane_locked(world):
        world.wake("ops", "the first thing")
        world.run(minutes=5)
        world.wake("ops", "the second thing", sender="another")
        world.run(minutes=5)
        assert len(world.calls) == 1
    world.run(minutes=5)
    assert len(world.calls) == 2
    assert "the first thing" in world.calls[1].stdin
    assert "the second thing" in world.calls[1].stdin


def test_each_wake_of_a_run_that_waits_for_its_lane_is_said_to_wait_for_it(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1d"))
    world.run(minutes=1)
    with lane_locked(world):
        for sender in ("one", "another"):
            wake = world.wake("ops", "look", sender=sender)
            world.run(seconds=5)
            waits = wait_of_wake(world.store.connection, wakes.find_wake(world.store.connection, wake), world.clock.now)
            assert (waits.reason, waits.is_taken) == ("busy", True)


def test_a_wake_that_waits_for_the_lane_is_delivered_by_the_next_slot(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    world.run(minutes=20)
    with lane_locked(world):
        world.wake("ops", "look at the disk")
        world.run(minutes=11)
    world.run(minutes=1)
    assert world.history()[1:] == ["03-02 08:20 api skipped busy", "03-02 08:30 interval ok heartbeat_ok"]
    assert "look at the disk" in world.calls[1].stdin


def test_a_run_interrupted_by_a_crash_is_not_repeated_while_its_lane_is_locked(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    world.scripts["ops"] = lambda call: Delayed(QUIET, timedelta(minutes=3))
    world.run(minutes=1)
    with lane_locked(world):  # an undetected orphan that has inherited the lane
        world.downtime(seconds=5)
        world.run(minutes=10)
        assert len(world.calls) == 1
    world.run(minutes=5)
    assert len(world.calls) == 2
    assert world.history() == ["03-02 08:00 interval ok heartbeat_ok"]


@pytest.mark.parametrize("crashes", [True, False])
def test_a_run_interrupted_by_a_crash_or_a_stop_that_never_gets_its_lane_is_abandoned_and_not_skipped(
    make_world: MakeWorld, *, crashes: bool
) -> None:
    world = make_world(OPS)
    world.scripts["ops"] = lambda call: Delayed(QUIET, timedelta(minutes=3))
    world.run(minutes=1)
    if crashes:
        world.kill()
    else:
        world.end_runs()
        world.stop()
    world.clock.advance(timedelta(seconds=5))
    with lane_locked(world):
        world.boot()
        world.run(minutes=30)
    assert world.history()[0] == "03-02 08:00 interval abandoned no_time_left"


def test_a_run_keeps_waiting_for_its_lane_over_a_restart(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    with lane_locked(world):
        world.run(minutes=5)
        world.stop()
        world.clock.advance(timedelta(minutes=1))
        world.boot()
        world.run(minutes=5)
    world.run(minutes=1)
    assert world.history() == ["03-02 08:00 interval ok heartbeat_ok"]
    assert world.records()[0]["tries"] == 1


def test_a_slot_that_waited_for_its_lane_during_a_crash_ends_busy(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    with lane_locked(world):
        world.run(minutes=5)
        world.downtime(minutes=40)
    world.run(seconds=1)
    assert world.history() == ["03-02 08:00 interval skipped busy", "03-02 08:30 interval skipped missed"]


def test_a_pause_ends_the_wait(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    with lane_locked(world):
        world.run(minutes=5)
        world.pause(OPS_KEY)
        world.run(minutes=1)
    world.run(hours=2)
    world.resume(OPS_KEY)
    assert world.history() == ["03-02 08:00 interval skipped busy", "03-02 08:30 interval skipped paused x4"]
    assert world.calls == []


def test_a_slot_waiting_for_its_lane_just_before_a_pause_ends_busy(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    with lane_locked(world):
        world.run(minutes=29, seconds=50)
        world.clock.advance(timedelta(seconds=11))
        world.pause(OPS_KEY)
        world.run(seconds=1)
    assert world.history() == ["03-02 08:00 interval skipped busy", "03-02 08:30 interval skipped busy"]


@pytest.mark.parametrize("change", ["disabled", "removed", "removed while down"])
def test_removing_an_agent_that_waits_for_its_lane_leaves_a_busy_record(make_world: MakeWorld, change: str) -> None:
    world = make_world(OPS + OTHER)
    new = agent(enabled="false") + OTHER if change == "disabled" else "agents:\n" + OTHER
    with lane_locked(world):
        world.run(minutes=5)
        if change == "removed while down":
            world.stop()
            world.write_config(new)
            world.boot()
        else:
            world.reload(new)
        world.run(hours=1)
    world.run(hours=1)
    assert world.history("ops") == ["03-02 08:00 interval skipped busy"]


def test_removing_an_agent_while_it_checks_its_lane_leaves_a_busy_record(make_world: MakeWorld) -> None:
    world = make_world(OPS + OTHER)
    with lane_locked(world):
        world.engine.tick(world.clock.read())
        late = {number: done.task for number, done in world.runs.results()}
        assert late
        world.runs.results = list  # type: ignore[method-assign]  # the worker reports late
        world.runs.inflight = lambda: late  # type: ignore[method-assign]
        world.reload("agents:\n" + OTHER)
        del world.runs.results, world.runs.inflight
        world.run(hours=1)
    assert world.history("ops") == ["03-02 08:00 interval skipped busy"]


def test_changing_the_interval_while_a_run_waits_for_its_lane_loses_no_slot(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    with lane_locked(world):
        world.run(minutes=5)
        world.reload(agent(interval="10m"))
        world.run(minutes=20)
    world.run(minutes=1)
    assert sum(row["planned_runs"] for row in world.records()) == 3
    assert world.history()[-1] == "03-02 08:20 interval ok heartbeat_ok"


def test_a_skip_outside_active_hours_with_a_locked_lane_names_the_hours(make_world: MakeWorld) -> None:
    world = make_world(agent(active_hours='"10:00-11:00"'))
    with lane_locked(world):
        world.run(minutes=5)
        world.wake("ops", "now")
        world.run(minutes=5)
    assert world.history()[-1] == "03-02 08:05 api skipped active_hours"


def test_setting_the_clock_back_does_not_prolong_the_wait_for_a_lane(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    with lane_locked(world):
        world.run(minutes=5)
        world.clock.now -= timedelta(days=2)
        world.run(seconds=10)
    world.run(minutes=2)
    assert len(world.calls) >= 1


@pytest.mark.long_on_server("28,000 statements")
def test_every_slot_is_recorded_once_however_often_the_lane_is_locked(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="5m"))
    for minutes in range(1, 24):
        with lane_locked(world):
            world.run(minutes=minutes)
        world.run(minutes=minutes % 7)
    world.run(minutes=5)
    closed = [row for row in world.records() if row["state"] == "closed"]
    passed = int((world.clock.now - utc("2026-03-02 08:00")) / timedelta(minutes=5)) + 1
    assert sum(row["planned_runs"] for row in closed) == passed
    assert {(row["result"], row["why"]) for row in closed} == {("ok", "heartbeat_ok"), ("skipped", "busy")}


def test_a_run_that_waits_for_its_lane_leaves_the_probe_to_another_run(make_world: MakeWorld) -> None:
    with model(error_answer(401, "authentication_error", "no"), text_answer("HEARTBEAT_OK")) as server:
        world = make_world(config(server.url), environ={"KEY": KEY})
        world.run(minutes=29)
        with lane_locked(world):
            world.run(minutes=10)
        world.run(minutes=1)
    assert world.history() == ["03-02 08:00 interval failed auth", "03-02 08:30 interval ok heartbeat_ok"]


# --- holds over HTTP --------------------------------------------------------------------------------------------------


def test_a_gateway_holds_a_lane_for_a_limited_time(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    world.run(minutes=29)
    hold_lock(world, minutes=5)
    world.run(minutes=10)
    assert call_times(world) == ["08:00:00", "08:34:00"]
    assert world.history()[-1] == "03-02 08:30 interval ok heartbeat_ok"


def test_status_shows_the_lock_of_an_agent_and_none_at_the_job_with_its_name(make_world: MakeWorld) -> None:
    world = make_world(OPS + "cron: {ops: {every: 1h, command: look}}\n")
    world.run(minutes=1)
    hold_lock(world, minutes=5)
    found = read_entries(world.store.connection, world.clock.now)
    assert {each.kind: len(each.busy) for each in found} == {"heartbeat": 1, "cron": 0}


def test_a_renewed_hold_lasts_longer(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    world.run(minutes=29)
    for _ in range(5):
        hold_lock(world, minutes=2)
        world.run(minutes=1)
    world.run(minutes=3)
    assert call_times(world) == ["08:00:00", "08:35:00"]


def test_a_released_hold_lets_the_waiting_run_start_at_once(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    world.run(minutes=29)
    hold_lock(world, hours=24)
    world.run(minutes=5, seconds=13)
    world.request(VerbRequest(ReleaseLock(id="chat"), (Kind.HEARTBEAT, "ops")))
    world.run(seconds=1)
    assert call_times(world) == ["08:00:00", "08:34:13"]


def test_a_released_hold_lets_a_waiting_job_of_the_agent_start_at_once(make_world: MakeWorld) -> None:
    jobs = 'cron: {ask: {schedule: "30 8 * * *", prompt: hello, agent: ops}}\n'
    world = make_world(agent(interval="none") + jobs)
    world.run(minutes=29)
    hold_lock(world, hours=24)
    world.run(minutes=5, seconds=13)
    world.request(VerbRequest(ReleaseLock(id="chat"), (Kind.HEARTBEAT, "ops")))
    world.run(seconds=1)
    assert [(call.name, f"{call.at:%H:%M:%S}") for call in world.calls] == [("ask", "08:34:13")]


def test_a_lane_is_free_when_its_last_hold_is_released(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    world.run(minutes=29)
    for holder in ("chat", "mail"):
        hold_lock(world, holder, hours=1)
    world.run(minutes=2)
    world.request(VerbRequest(ReleaseLock(id="chat"), (Kind.HEARTBEAT, "ops")))
    world.run(minutes=2)
    assert call_times(world) == ["08:00:00"]
    world.request(VerbRequest(ReleaseLock(id="mail"), (Kind.HEARTBEAT, "ops")))
    world.run(seconds=1)
    assert len(world.calls) == 2


def test_releasing_a_hold_that_does_not_exist_is_no_error(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    world.run(minutes=1)
    world.request(VerbRequest(ReleaseLock(id="chat"), (Kind.HEARTBEAT, "ops")))
    assert call_times(world) == ["08:00:00"]


def test_a_hold_survives_a_restart(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    world.run(minutes=29)
    hold_lock(world, minutes=10)
    world.downtime(seconds=30)
    world.run(minutes=5)
    assert call_times(world) == ["08:00:00"]
    world.run(minutes=10)
    assert call_times(world) == ["08:00:00", "08:39:00"]


def test_a_hold_during_a_run_does_not_stop_it_and_returns_its_id(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    world.scripts["ops"] = lambda call: Delayed(QUIET, timedelta(minutes=2))
    world.run_until("2026-03-02 08:30:30")
    running = world.records()[-1]
    assert running["state"] == "running"
    assert hold_lock(world, minutes=1).run == running["id"]
    world.run(minutes=5)
    assert world.history()[-1] == "03-02 08:30 interval ok heartbeat_ok"
    assert hold_lock(world, minutes=1).run is None


def test_setting_the_clock_back_does_not_prolong_a_hold_beyond_a_day(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="12h"))
    world.run(minutes=1)
    hold_lock(world, hours=1)
    world.clock.now -= timedelta(days=30)
    world.run(hours=1)
    world.sleep(hours=22)
    world.run(hours=2)
    assert len(world.calls) >= 2


def test_expired_holds_are_deleted(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    world.run(minutes=1)
    hold_lock(world, minutes=1)
    world.run(minutes=3)
    assert world.store.connection.execute("select count(*) from hold").fetchone()[0] == 0


def test_a_hold_on_an_unknown_agent_is_refused(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    with pytest.raises(Refused, match="no agent 'nobody'"):
        world.request(
            VerbRequest(HoldLock(id="chat", for_=utc("2026-03-02 09:00") - world.clock.now), (Kind.HEARTBEAT, "nobody"))
        )


def test_a_lane_has_at_most_a_hundred_holders(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    for number in range(100):
        hold_lock(world, f"chat{number}", minutes=5)
    with pytest.raises(Refused, match="100 others"):
        hold_lock(world, "one-more", minutes=5)
    hold_lock(world, "chat7", minutes=10)

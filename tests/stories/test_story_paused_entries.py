"""Paused, disabled and removed entries end to end: what happens to their slots, retries, wakes and runs in progress."""

from __future__ import annotations

from datetime import timedelta

import pytest
from test_story_slots import OPS, agent, job
from world import QUIET, Delayed, MakeWorld, utc

from heartbeatd.verbs import Wake
from scheduler.engine.effects import VerbRequest
from scheduler.insight.status_data import read_status
from scheduler.model.outcome import Kind
from scheduler.store import wakes


def test_the_slots_of_a_pause_share_one_record_with_a_count(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    world.run(minutes=10)
    world.pause(None)
    world.run(hours=3)
    world.resume(None)
    world.run(minutes=30)
    assert world.history()[1:] == ["03-02 08:30 interval skipped paused x6", "03-02 11:30 interval ok heartbeat_ok"]


def test_the_record_of_a_pause_begins_with_its_first_slot_also_if_later_ones_are_outside_the_active_hours(
    make_world: MakeWorld,
) -> None:
    world = make_world(agent(active_hours='"08:00-22:00"'), start="2026-03-02 20:00")
    world.run(minutes=10)
    world.pause(None)
    world.run(hours=13)
    world.resume(None)
    assert world.history()[1:] == ["03-02 20:30 interval skipped paused x26"]


def test_a_pause_with_an_end_ends_by_itself(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    world.run(minutes=10)
    world.pause(("heartbeat", "ops"), utc("2026-03-02 09:45"))
    world.run(hours=2)
    assert world.history()[1:] == ["03-02 08:30 interval skipped paused x3", "03-02 10:00 interval ok heartbeat_ok"]


def test_a_second_pause_changes_the_end_of_the_first_and_not_its_beginning(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    world.run(minutes=5)
    world.pause(("heartbeat", "ops"))
    world.run(minutes=30)
    world.pause(("heartbeat", "ops"), utc("2026-03-02 10:10"))
    (entry,) = read_status(world.store.connection, world.clock.now).as_data()["entries"]
    assert (entry["paused_at"], entry["paused_until"]) == ("2026-03-02T08:05:00Z", "2026-03-02T10:10:00Z")
    world.run(hours=2)
    assert world.history()[1:] == ["03-02 08:30 interval skipped paused x4", "03-02 10:30 interval ok heartbeat_ok"]


def test_a_wake_in_the_moment_after_the_end_of_a_pause_starts_a_run(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="none"))
    world.pause(("heartbeat", "ops"), utc("2026-03-02 08:30"))
    world.clock.advance(timedelta(minutes=31))  # the engine has not seen the end of the pause
    world.wake("ops", "look")
    world.run(minutes=5)
    assert world.history() == ["03-02 08:31 api ok heartbeat_ok"]


def test_a_wake_that_waits_for_the_next_slot_still_does_so_after_a_pause(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1d"))
    world.run(minutes=1)
    world.pause(("heartbeat", "ops"))
    world.request(VerbRequest(Wake(text="look", urgent=False), (Kind.HEARTBEAT, "ops")))
    world.resume(None)
    world.run(hours=12)
    assert world.history() == ["03-02 08:00 interval ok heartbeat_ok"]


def test_pausing_everything_records_nothing_for_disabled_agents(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    world.run(minutes=1)
    world.reload(agent(enabled="false"))
    world.run(hours=3)
    world.pause(None)
    world.run(hours=3)
    world.resume(None)
    assert world.history() == ["03-02 08:00 interval ok heartbeat_ok"]


def test_a_paused_job_is_not_retried(make_world: MakeWorld) -> None:
    world = make_world(job(every="1h", retries="3"))
    world.scripts["measure"] = lambda call: 1
    world.run(minutes=60)
    world.settle()
    assert len(world.calls) == 1
    world.pause(None)
    world.run(minutes=5)
    assert len(world.calls) == 1


def test_a_failed_run_that_is_paused_before_its_retry_ends_failed_and_not_skipped(make_world: MakeWorld) -> None:
    world = make_world(agent(retries="3"))
    world.scripts["ops"] = lambda call: 1
    world.engine.tick(world.clock.read())
    world.settle()
    world.pause(None)
    world.run(minutes=5)
    assert world.history() == ["03-02 08:00 interval failed no_time_left"]


def test_a_paused_reboot_job_does_not_run_at_boot(make_world: MakeWorld) -> None:
    world = make_world(job(schedule='"@reboot"'))
    world.run(minutes=1)
    world.pause(None)
    world.downtime(seconds=5)
    world.run(minutes=1)
    assert len(world.calls) == 1


def test_a_reboot_job_and_one_started_by_hand_run_if_the_pause_ended_while_no_daemon_ran(make_world: MakeWorld) -> None:
    world = make_world(job(schedule='"@reboot"') + '  by_hand: {schedule: "0 3 1 1 *", command: [clean], deliver: log}\n')
    world.run(minutes=1)
    world.pause(None, utc("2026-03-02 08:30"))
    world.downtime(hours=1)
    world.run_job("by_hand")
    world.run(minutes=1)
    assert [call.name for call in world.calls] == ["measure", "measure", "by_hand"]


def test_slots_during_a_run_are_already_running_again_after_a_pause_has_ended(make_world: MakeWorld) -> None:
    world = make_world(job(every="10m", timeout="5h", misfire="{grace: 1m}"))
    world.scripts["measure"] = lambda call: Delayed("", timedelta(minutes=115))
    world.run(minutes=11)
    world.pause(None, utc("2026-03-02 09:00"))
    world.run_until("2026-03-02 10:06")
    assert world.history() == [
        "03-02 08:10 every ok",
        "03-02 08:20 every skipped paused x5",
        "03-02 09:10 every skipped already_running x6",
    ]


def test_the_slots_during_a_run_belong_to_the_pause_that_began_in_it(make_world: MakeWorld) -> None:
    world = make_world(job(every="10m", timeout="5h"))
    world.scripts["measure"] = lambda call: Delayed("", timedelta(minutes=45))
    world.run(minutes=11)
    world.pause(None)
    world.run_until("2026-03-02 10:06")
    world.resume(None)
    assert world.history() == ["03-02 08:10 every ok", "03-02 08:20 every skipped paused x11"]


def test_a_run_interrupted_by_a_crash_during_a_pause_is_abandoned_and_not_skipped(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    world.scripts["ops"] = lambda call: Delayed(QUIET, timedelta(minutes=2))
    world.run(seconds=5)
    world.pause(None)
    world.downtime(seconds=5)
    world.run(minutes=1)
    assert world.history()[0].startswith("03-02 08:00 interval abandoned")


def test_a_disabled_agent_has_no_slots_and_resumes_its_old_slots_when_enabled(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    world.run(minutes=10)
    world.reload(agent(enabled="false"))
    world.run(hours=3)
    world.reload(OPS)
    world.run(minutes=30)
    assert world.history() == ["03-02 08:00 interval ok heartbeat_ok", "03-02 11:30 interval ok heartbeat_ok"]


def test_a_disabled_job_interrupted_by_a_stop_does_not_run_again(make_world: MakeWorld) -> None:
    text = job(every="1h", rerun_after_crash="true")
    world = make_world(text)
    world.scripts["measure"] = lambda call: Delayed("", timedelta(minutes=5))
    world.run(minutes=61)
    world.reload(job(every="1h", rerun_after_crash="true", enabled="false"))
    world.end_runs()
    world.stop()
    world.boot()
    world.run(minutes=1)
    assert len(world.calls) == 1


def test_an_agent_that_is_removed_and_added_again_keeps_its_history_and_its_slots(make_world: MakeWorld) -> None:
    other = "  other: {runner: {kind: command, argv: [a]}, heartbeat: {interval: 1d, deliver: log}}\n"
    world = make_world(OPS + other)
    world.run(minutes=10)
    world.reload("agents:\n" + other)
    world.run(hours=3)
    world.reload(OPS + other)
    world.run(minutes=30)
    assert world.history("ops") == ["03-02 08:00 interval ok heartbeat_ok", "03-02 11:30 interval ok heartbeat_ok"]


def test_the_message_of_an_agent_that_was_removed_during_its_run_is_delivered(make_world: MakeWorld) -> None:
    hook = 'channels: {hook: {kind: webhook, url: "http://127.0.0.1:1/x", allow_private: true}}\n'
    other = "  other: {runner: {kind: command, argv: [a]}, heartbeat: {interval: 1d, deliver: hook}}\n"
    world = make_world(hook + agent(interval="1d", deliver="hook") + other)
    world.scripts["ops"] = lambda call: Delayed("ALERT: the disk is full", timedelta(minutes=2))
    world.run(seconds=5)
    world.reload(hook + "agents:\n" + other)
    world.run(minutes=5)
    assert [(name, text) for _, name, text in world.delivered] == [("ops", "ALERT: the disk is full")]


def test_the_wakes_of_a_removed_agent_end_even_if_its_run_fails_later(make_world: MakeWorld) -> None:
    other = "  other: {runner: {kind: command, argv: [a]}, heartbeat: {interval: 1d, deliver: log}}\n"
    world = make_world(agent(interval="1d", retries="0") + other)
    world.run(minutes=1)
    world.scripts["ops"] = lambda call: Delayed(1, timedelta(minutes=2))
    world.wake("ops", "look")
    world.run(seconds=5)
    world.reload("agents:\n" + other)
    world.run(minutes=5)
    states = [row[0] for row in world.store.connection.execute("select state from wake")]
    assert states == ["ended"]


@pytest.mark.parametrize("crashes", [True, False])
def test_the_interrupted_run_of_a_removed_agent_is_closed_and_its_wake_rejected(make_world: MakeWorld, *, crashes: bool) -> None:
    other = "  other: {runner: {kind: command, argv: [a]}, heartbeat: {interval: 1d, deliver: log}}\n"
    world = make_world(OPS + other)
    world.scripts["ops"] = lambda call: Delayed(QUIET, timedelta(minutes=2))
    world.wake("ops", "look")
    world.run(seconds=5)
    world.reload("agents:\n" + other)
    if crashes:
        world.downtime(seconds=5)
    else:
        world.end_runs()
        world.stop()
        world.boot()
    world.run(hours=5)
    assert [row["state"] for row in world.records("ops")] == ["closed"]
    rejected = wakes.rejected_wakes_between(world.store.connection, utc("2026-01-01"), utc("2027-01-01"))
    assert [(each.agent, each.why) for each in rejected] == [("ops", "removed")]

"""Stories of corners: clocks that are set back, pauses in the middle of runs, threads that do not end, and the like."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from test_story_slots import OPS, agent, job
from world import QUIET, Takes, World, at

from scheduler.channels.message import DeliveryResult
from scheduler.engine.inbox import Refused
from scheduler.engine.loop import LOOKS_AT_ONCE, Reading
from scheduler.engine.pending_runs import Cancel
from scheduler.engine.requests import RunJob, WakeAgent
from scheduler.engine.tick import Tick
from scheduler.model.wake import Wake
from scheduler.store import wakes
from scheduler.store.database import Store, Unavailable

HOUR = timedelta(hours=1)
ALARM = "ALERT: the disk is full"
HOOK = 'channels: {hook: {kind: webhook, url: "http://127.0.0.1:1/x", allow_private: true}}\n'


def lock(world: World) -> sqlite3.Connection:
    other = sqlite3.connect(world.state, isolation_level=None)
    other.execute("begin immediate")
    world.store.connection.execute("pragma busy_timeout = 1")
    return other


# --- clocks ------------------------------------------------------------------------------------------------------------


def test_a_clock_set_back_while_the_database_is_locked_does_not_silence_an_agent(play) -> None:
    world = play(OPS)
    world.run(minutes=70)
    other = lock(world)
    world.clock.now -= 2 * HOUR
    world.engine.tick(world.clock.read())
    other.execute("rollback")
    other.close()
    before = len(world.asked)
    world.run(minutes=35)
    assert len(world.asked) > before


def test_a_clock_set_back_does_not_hold_up_a_retry(play) -> None:
    world = play(agent(retries="2"))
    world.scripts["ops"] = lambda asked: 1 if len(world.asked) == 1 else QUIET
    world.engine.tick(world.clock.read())
    world.settle()
    world.clock.now -= timedelta(days=3)
    world.run(minutes=65)
    assert len(world.asked) >= 3


def test_a_clock_set_back_after_a_woken_run_does_not_supersede_every_beat(play) -> None:
    world = play(OPS)
    world.run(minutes=5)
    world.wake("ops", "look")
    world.run(minutes=5)
    world.clock.now -= timedelta(days=1)
    before = len(world.asked)
    world.run(minutes=65)
    assert len(world.asked) - before >= 2


def test_a_clock_set_back_does_not_hold_up_a_wake(play) -> None:
    world = play(agent(interval="1d"))
    world.run(minutes=5)
    world.wake("ops", "look")
    world.run(minutes=5)
    world.clock.now -= timedelta(days=1)
    world.run(minutes=1)
    before = len(world.asked)
    world.wake("ops", "look again")
    world.run(minutes=2)
    assert len(world.asked) == before + 1


def test_a_clock_set_back_does_not_hold_up_a_message(play) -> None:
    world = play(agent(interval="1d", deliver="hook") + HOOK)
    world.scripts["ops"] = lambda asked: ALARM
    down = [True]
    world.sends = lambda _: DeliveryResult("retry", "down") if down[0] else DeliveryResult("delivered")
    world.run(minutes=1)
    world.clock.now -= timedelta(days=3)
    down[0] = False
    world.run(hours=3)
    assert [text for _, _, text in world.said] == [ALARM]


def test_a_clock_set_back_does_not_hold_up_the_reminder_of_a_failure(play) -> None:
    world = play(agent(retries="0"))
    world.scripts["ops"] = lambda asked: 1
    world.run(hours=1)
    world.clock.now -= timedelta(days=365)
    world.run(hours=7)
    assert [text.split(";")[0] for _, _, text in world.said][1:] == ["Agent ops still has the same fault"]


def test_a_clock_set_back_does_not_keep_a_held_message_for_ever(play) -> None:
    world = play(agent(interval="7d", deliver="hook") + HOOK.replace("true}", "true, uncertain: hold}"))
    world.scripts["ops"] = lambda asked: ALARM
    world.sends = lambda _: DeliveryResult("uncertain", "no answer")
    world.run(minutes=1)
    world.clock.now -= timedelta(days=365)
    world.run(hours=25)
    assert world.rows()[0]["delivery"]["state"] == "dead"


def test_a_cron_job_runs_on_when_a_clock_that_was_ten_years_ahead_is_set_right(play) -> None:
    world = play(job(schedule='"0 * * * *"', misfire="{grace: 1m}"), start="2026-03-02 08:30")
    world.run(minutes=40)
    world.clock.now += timedelta(days=3650)
    world.run(minutes=1)
    world.clock.now -= timedelta(days=3650)
    world.run(hours=3)
    assert len(world.asked) >= 3


def test_a_run_is_timed_by_the_steady_clock(play) -> None:
    world = play(job(every="1h", timeout="10m"))
    world.scripts["measure"] = lambda asked: Takes("never", timedelta(days=9))
    world.run(minutes=61)
    world.clock.now -= timedelta(hours=5)
    world.run(minutes=15)
    assert world.story()[0].endswith("timeout timeout")


def test_a_machine_that_slept_does_not_time_out_a_run_that_has_just_begun(play) -> None:
    world = play(agent(interval="12h", timeout="5m", retries="0"))
    world.scripts["ops"] = lambda asked: Takes(QUIET, timedelta(hours=8, seconds=20))  # 20 s of its own time
    world.run(seconds=10)
    world.clock.now += timedelta(hours=8)
    world.run(minutes=1)
    assert world.story()[0] == "03-02 08:00 interval ok heartbeat_ok"


# --- pause, disable, remove ----------------------------------------------------------------------------------------------


def test_pausing_everything_writes_no_rows_of_disabled_agents(play) -> None:
    world = play(OPS)
    world.run(minutes=1)
    world.reload(agent(enabled="false"))
    world.run(hours=3)
    world.pause(None)
    world.run(hours=3)
    world.resume(None)
    assert world.story() == ["03-02 08:00 interval ok heartbeat_ok"]


def test_a_paused_job_is_not_tried_again(play) -> None:
    world = play(job(every="1h", retries="3"))
    world.scripts["measure"] = lambda asked: 1
    world.run(minutes=60)
    world.settle()
    assert len(world.asked) == 1
    world.pause(None)
    world.run(minutes=5)
    assert len(world.asked) == 1


def test_a_failed_beat_that_is_paused_before_its_retry_is_failed_not_skipped(play) -> None:
    world = play(agent(retries="3"))
    world.scripts["ops"] = lambda asked: 1
    world.engine.tick(world.clock.read())
    world.settle()
    world.pause(None)
    world.run(minutes=5)
    assert world.story() == ["03-02 08:00 interval failed no_time_left"]


def test_a_paused_reboot_job_does_not_run_at_boot(play) -> None:
    world = play(job(schedule='"@reboot"'))
    world.run(minutes=1)
    world.pause(None)
    world.off(seconds=5)
    world.run(minutes=1)
    assert len(world.asked) == 1


def test_slots_during_a_run_after_a_pause_has_ended_are_already_running(play) -> None:
    world = play(job(every="10m", timeout="5h", misfire="{grace: 1m}"))
    world.scripts["measure"] = lambda asked: Takes("", timedelta(minutes=115))
    world.run(minutes=11)
    world.pause(None, at("2026-03-02 09:00"))
    world.until("2026-03-02 10:06")
    assert world.story() == [
        "03-02 08:10 every ok",
        "03-02 08:20 every skipped paused x5",
        "03-02 09:10 every skipped already_running x6",
    ]


def test_wakes_of_a_removed_agent_end_even_if_its_run_fails_later(play) -> None:
    other = "  other: {runner: {kind: command, argv: [a]}, heartbeat: {interval: 1d, deliver: log}}\n"
    world = play(agent(interval="1d", retries="0") + other)
    world.run(minutes=1)
    world.scripts["ops"] = lambda asked: Takes(1, timedelta(minutes=2))
    world.wake("ops", "look")
    world.run(seconds=5)
    world.reload("agents:\n" + other)
    world.run(minutes=5)
    states = [row[0] for row in world.store.connection.execute("select state from wake")]
    assert states == ["ended"]


def test_a_removed_agents_run_cut_by_a_stop_gets_its_end(play) -> None:
    other = "  other: {runner: {kind: command, argv: [a]}, heartbeat: {interval: 1d, deliver: log}}\n"
    world = play(OPS + other)
    world.scripts["ops"] = lambda asked: Takes(QUIET, timedelta(minutes=2))
    world.run(seconds=5)
    world.reload("agents:\n" + other)
    world.engine.stopping = True
    world.engine.cut_runs(world.clock.read())
    world.engine.tick(world.clock.read())
    world.stop()
    world.boot()
    world.run(hours=5)
    assert [row["state"] for row in world.rows("ops")] == ["closed"]


# --- runs that wait for an attempt they do not get -----------------------------------------------------------------------

LOUD = job(every="10m", retries="2", deliver="log", wake_heartbeat="ops", wake_on="failure") + agent(interval="1d")


def give_up(world: World) -> None:
    world.scripts["measure"] = lambda asked: 1
    world.run(minutes=10)
    world.settle()
    assert len([asked for asked in world.asked if asked.name == "measure"]) == 1
    world.off(minutes=15)
    world.scripts["measure"] = lambda asked: ""
    world.run(seconds=5)
    assert "03-02 08:10 every failed no_time_left" in world.story("measure")


def test_a_job_that_failed_and_was_not_tried_again_is_told(play) -> None:
    world = play(LOUD)
    give_up(world)
    assert [text for _, name, text in world.said if name == "measure"]


def test_a_job_that_failed_and_was_not_tried_again_wakes_its_agent(play) -> None:
    world = play(LOUD)
    give_up(world)
    world.run(minutes=1)
    assert [line for line in world.story("ops") if "cron" in line]


def test_a_run_that_was_not_tried_again_counts_as_a_failure(play) -> None:
    world = play(agent(retries="2"))
    world.scripts["ops"] = lambda asked: 1
    world.engine.tick(world.clock.read())
    world.settle()
    world.off(minutes=35)
    world.scripts["ops"] = lambda asked: Takes(QUIET, timedelta(minutes=1))
    world.run(seconds=5)
    assert world.story()[0] == "03-02 08:00 interval failed no_time_left"
    assert world.store.connection.execute("select failures from entry").fetchone()[0] == 1


# --- what does not end --------------------------------------------------------------------------------------------


def test_an_attempt_that_could_not_be_ended_is_not_tried_again_beside_itself(play) -> None:
    world = play(agent(timeout="1m", retries="2"))
    world.scripts["ops"] = lambda asked: Takes("never", timedelta(days=1))
    world.runs.cancel = lambda number, why: None  # type: ignore[method-assign]  # it does not listen
    world.run(minutes=10)
    assert len(world.asked) == 1


def test_the_attempt_after_one_that_was_ended_has_its_own_time(play) -> None:
    world = play(agent(timeout="1m", retries="1"))
    answers = iter([Takes("never", timedelta(days=1)), Takes(QUIET, timedelta(seconds=30))])
    world.scripts["ops"] = lambda asked: next(answers)
    world.run(minutes=5)
    assert (len(world.asked), world.story()) == (2, ["03-02 08:00 interval ok heartbeat_ok"])


def test_a_cancelled_run_that_does_not_listen_is_given_up_in_seconds(play) -> None:
    world = play(agent(timeout="1h"))
    world.scripts["ops"] = lambda asked: Takes("never", timedelta(days=1))
    world.run(minutes=1)
    world.runs.cancel = lambda number, why: None  # type: ignore[method-assign]
    world.ask(Cancel(world.rows()[0]["id"]))
    world.run(seconds=9)
    assert world.rows()[0]["state"] == "running"
    world.run(seconds=3)
    assert world.story() == ["03-02 08:00 interval abandoned cancelled"]


def test_a_run_is_ended_at_its_timeout_though_the_database_is_locked(play) -> None:
    world = play(job(every="1h", timeout="1m"))
    world.scripts["measure"] = lambda asked: Takes("never", timedelta(days=1))
    world.run(minutes=60, seconds=30)
    other = lock(world)
    for _ in range(60):
        world.clock.forward(timedelta(seconds=1))
        world.engine.tick(world.clock.read())
    ended = not world.runs.inflight()
    other.execute("rollback")
    other.close()
    assert ended


# --- jobs with a stagger ----------------------------------------------------------------------------------------------------


def test_a_changed_stagger_does_not_lose_the_slot_that_waits_for_it(play) -> None:
    world = play(job(schedule='"0 3 * * *"', stagger="4h"), start="2026-03-02 00:00")
    due = world.store.connection.execute("select due_at from entry").fetchone()[0] / 1000
    assert due > at("2026-03-02 03:10").timestamp()
    world.until("2026-03-02 03:05")
    world.reload(job(schedule='"0 3 * * *"', stagger="0s"))
    world.until("2026-03-03 00:00")
    assert sum(row["slots"] for row in world.rows()) == 1


# --- wakes -------------------------------------------------------------------------------------------------------------------


def test_a_schedule_that_changes_between_a_slot_and_its_stagger_does_not_lose_the_slot(play) -> None:
    world = play(job(schedule='"0 8 * * *"', stagger="2m"), start="2026-03-02 07:30")
    world.until("2026-03-02 08:00:05")  # the stagger of this job is 10 s
    world.reload(job(schedule='"0 8,20 * * *"', stagger="2m"))
    world.until("2026-03-02 20:01")
    assert world.story() == ["03-02 08:00 schedule ok", "03-02 20:00 schedule ok"]


def test_a_job_that_is_added_or_enabled_between_a_slot_and_its_stagger_runs_at_that_slot(play) -> None:
    staggered = job(schedule='"0 8,9 * * *"', stagger="2m")  # 10 s
    world = play(staggered, start="2026-03-02 08:00:05")
    world.until("2026-03-02 08:30")
    world.reload(job(schedule='"0 8,9 * * *"', stagger="2m", enabled="false"))
    world.until("2026-03-02 09:00:05")
    world.reload(staggered)
    world.until("2026-03-02 10:00")
    assert world.story() == ["03-02 08:00 schedule ok", "03-02 09:00 schedule ok"]


def test_a_schedule_that_changes_after_a_slot_has_run_does_not_run_it_again(play) -> None:
    world = play(job(schedule='"0 8 * * *"', stagger="2m"), start="2026-03-02 07:30")
    world.until("2026-03-02 08:00:12")
    world.reload(job(schedule='"0 8,20 * * *"', stagger="5m"))
    world.until("2026-03-02 20:05")
    assert world.story() == ["03-02 08:00 schedule ok", "03-02 20:00 schedule ok"]


def test_a_wake_that_joined_a_minute_ago_is_not_older_than_wake_keep(play) -> None:
    world = play(agent(interval="1h"))
    world.run(minutes=1)
    world.pause(("heartbeat", "ops"))
    for hour in range(24):
        world.wake("ops", f"message {hour}")
        world.run(hours=1)
    world.wake("ops", "the house is on fire")
    world.run(minutes=5)
    world.resume(("heartbeat", "ops"))
    world.run(hours=1)
    assert "the house is on fire" in world.asked[-1].stdin


def test_runs_of_a_job_are_not_counted_as_wakes_of_the_agent_with_its_name(play) -> None:
    world = play(agent(interval="1d") + "cron:\n  ops: {every: 1h, command: x}\n")
    world.run(minutes=1)
    world.ask(RunJob("ops", "manual"))
    world.run(minutes=1)
    assert [
        event
        for event in world.events
        if type(event).__name__ == "WakeTold" and getattr(event, "kind", "heartbeat") == "heartbeat"
    ] == []


def test_a_wake_starts_a_run_though_twenty_others_wait_already(play) -> None:
    world = play("limits: {wake_flood: 100 per 1s}\n" + agent(interval="1d"))
    world.run(minutes=1)
    world.pause(("heartbeat", "ops"))
    for number in range(20):
        world.wake("ops", f"message {number}", sender=f"sender{number}")
        world.run(seconds=2)
    world.resume(("heartbeat", "ops"))
    before = len(world.asked)
    world.wake("ops", "look", sender="another")
    world.run(minutes=2)
    assert len(world.asked) == before + 1


# --- the first life -----------------------------------------------------------------------------------------------------------


def test_a_first_run_once_does_not_take_the_stagger_away_for_ever(tmp_path: Path) -> None:

    names = [f"agent{number}" for number in range(8)]
    beat = '{runner: {kind: command, argv: [a]}, heartbeat: {interval: 30m, stagger: 50%, checklist: "- look\\n", deliver: log}}'
    world = World(tmp_path, "x-a: 1\nagents:\n" + "".join(f"  {name}: {beat}\n" for name in names))
    world.store.close()
    world.state.unlink()
    for rest in world.state.parent.glob("*-*"):
        rest.unlink()
    world.boot(at_once=True)
    anchors = {row[0] for row in world.store.connection.execute("select anchor from entry")}
    world.store.close()
    assert len(anchors) > 1


def single_round(play: Callable[..., World], yaml: str, start: str = "2026-03-02 08:00:00.400") -> World:
    """A world in which a `run --once` sees these entries for the first time."""
    world = play("x-nothing: 1\ncron: {other: {every: 1d, command: nothing, enabled: false}}\n", start=start)
    world.kill()
    world.config.write_text(yaml, "utf-8")
    world.boot(at_once=True)
    return world


@pytest.mark.parametrize("takes", [0, 3])
def test_a_single_round_runs_a_new_agent_once_however_long_it_takes(play: Callable[..., World], takes: int) -> None:
    world = single_round(play, agent(stagger="0s"))
    world.takes["ops"] = timedelta(seconds=takes)
    world.run(minutes=1)
    assert world.engine.at_rest(world.clock.now)
    assert world.story() == ["03-02 08:00 interval ok heartbeat_ok"]


def test_the_daemon_goes_on_from_a_single_round_with_one_beat_for_each_interval(play: Callable[..., World]) -> None:
    world = single_round(play, agent(stagger="50%"))
    world.run(minutes=1)
    world.off(minutes=1)
    world.run(minutes=119)
    starts = [asked.at for asked in world.asked]
    assert len(starts) == 4
    assert timedelta(minutes=30) <= starts[1] - starts[0] <= timedelta(minutes=45)
    assert [later - earlier for earlier, later in pairwise(starts[1:])] == [timedelta(minutes=30)] * 2
    assert sum(row["slots"] for row in world.rows()) == 4


def test_a_single_round_in_closed_hours_has_its_row_and_leaves_the_first_opening_to_the_daemon(
    play: Callable[..., World],
) -> None:
    world = single_round(play, agent(interval="7d", active_hours='"08:00-22:00"'), start="2026-03-02 23:00")
    world.run(minutes=1)
    world.off(minutes=1)
    world.run(days=8)
    assert world.story() == [
        "03-02 23:00 interval skipped active_hours",
        "03-03 08:00 interval ok heartbeat_ok",
        "03-10 08:00 interval ok heartbeat_ok",
    ]


def test_a_single_round_before_closing_time_does_not_beat_again_at_the_next_opening(play: Callable[..., World]) -> None:
    keys = {"interval": "7d", "stagger": "10%", "active_hours": '"08:00-22:00"'}
    world = single_round(play, agent(**keys), start="2026-03-02 21:59")
    world.run(days=6)
    assert world.story() == ["03-02 21:59 interval ok heartbeat_ok"]


def test_a_single_round_runs_a_job_that_starts_with_the_daemon_once(play: Callable[..., World]) -> None:
    world = single_round(play, job(schedule='"@reboot"'))
    world.run(minutes=1)
    assert len(world.asked) == 1


def test_quiet_counts_successes_of_which_nobody_was_told(play) -> None:
    world = play(agent(show_alerts="false", show_ok="true"))
    world.scripts["ops"] = lambda asked: ALARM
    world.run(hours=1)
    assert world.store.connection.execute("select quiet from entry").fetchone()[0] == 3


# --- broken entries --------------------------------------------------------------------------------------------------------------


def test_an_entry_whose_old_pace_cannot_be_read_does_not_keep_the_daemon_from_starting(play) -> None:
    world = play(agent() + job(every="10m"))
    world.run(minutes=1)
    with world.store.transaction() as db:
        db.execute('update entry set pace = \'{"schedule": "rubbish", "zone": "UTC", "offset": 0}\' where name = \'measure\'')
    world.off(seconds=5)
    world.run(minutes=31)
    assert len(world.rows("ops")) == 2


def test_a_run_whose_entry_has_broken_is_put_aside_and_one_that_ends_with_it_is_booked(play) -> None:
    world = play(agent(interval="30m") + job(every="30m"))
    world.run(minutes=20)
    world.scripts["ops"] = lambda asked: Takes(QUIET, timedelta(minutes=1))
    world.scripts["measure"] = lambda asked: Takes("", timedelta(minutes=1))
    world.run(minutes=10, seconds=30)
    assert len(world.runs.inflight()) == 2
    with world.store.transaction() as db:
        db.execute('update entry set pace = \'{"schedule": "rubbish", "zone": "UTC", "offset": 0}\' where name = \'measure\'')
    world.run(minutes=5)
    assert (world.story("ops")[-1][6:11], world.rows("ops")[-1]["outcome"]) == ("08:30", "ok")
    assert (world.rows("measure")[0]["outcome"], "could not be booked" in world.rows("measure")[0]["error"]) == (
        "abandoned",
        True,
    )


# --- size -------------------------------------------------------------------------------------------------------------------------


def test_one_turn_never_looks_at_every_entry_of_a_large_house(tmp_path: Path) -> None:
    count = 5_000
    beat = '{runner: {kind: command, argv: [a]}, heartbeat: {interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: log}}'
    world = World(tmp_path, "agents:\n" + "".join(f"  a{number}: {beat}\n" for number in range(count)))
    world.clock.forward(timedelta(hours=5, minutes=15))  # all missed, beyond their grace
    world.engine.tick(world.clock.read())
    assert len(world.rows()) == LOOKS_AT_ONCE < count
    world.settle()
    assert len(world.rows()) == count
    world.store.close()


@pytest.mark.parametrize(("runs", "most"), [(50, 60), (500, 560)])
def test_an_entry_that_runs_every_second_keeps_hardly_more_rows_than_it_may(play, runs: int, most: int) -> None:
    world = play(job(every="1s") + f"history: {{keep: 30d, runs: {runs}}}\n")
    rows = []
    for _ in range(2 * runs):
        world.run(seconds=1)
        rows.append(world.store.connection.execute("select count(*) from run").fetchone()[0])
    assert runs <= max(rows) <= most


def test_nothing_on_record_is_later_than_its_life_was_last_seen(play) -> None:
    world = play(job(every="1s"))
    for _ in range(20):
        world.run(seconds=1)
        latest = "select last_tick_at, (select max(max(started_at), max(finished_at)) from run) from boot"
        seen, written = world.store.connection.execute(latest).fetchone()
        assert written is None or written <= seen


def test_trimming_holds_the_lock_only_shortly(tmp_path: Path) -> None:
    count = 10
    beat = '{runner: {kind: command, argv: [a]}, heartbeat: {interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: log}}'
    world = World(
        tmp_path, "history: {keep: 30d, runs: 10}\nagents:\n" + "".join(f"  a{number}: {beat}\n" for number in range(count))
    )
    with world.store.transaction() as db:
        db.executemany(
            "insert into run (kind, name, slot, trigger, state, outcome, finished_at) values ('heartbeat', ?, ?, 'interval', 'closed', 'ok', ?)",
            [(f"a{n}", i, 1772438400000) for n in range(count) for i in range(600)],
        )
    world.engine.stopping = True
    before = len(world.rows())
    world.engine.tick(world.clock.read())
    assert before - len(world.rows()) == 500
    for _ in range(30):
        world.clock.forward(timedelta(minutes=1))
        world.engine.tick(world.clock.read())
    assert len(world.rows()) == count * 10
    world.store.close()


def test_a_message_that_is_still_to_be_sent_is_not_trimmed_away_with_its_run(play) -> None:
    world = play("history: {runs: 10}\n" + agent(interval="5m", deliver="hook") + HOOK)
    world.scripts["ops"] = lambda asked: ALARM if len(world.asked) == 1 else QUIET
    away = [True]
    world.sends = lambda _: DeliveryResult("retry", "503") if away[0] else DeliveryResult("delivered")
    world.run(hours=8)
    rows = world.rows("ops")
    assert len(rows) < 97
    assert rows[0]["slot"] == "2026-03-02T08:00:00Z"
    assert rows[1]["slot"] > "2026-03-02T12:00:00Z"  # others of its age are gone
    away[0] = False
    world.run(hours=3)
    assert [text for _, _, text in world.said] == [ALARM]


# --- further ----------------------------------------------------------------------------------------------------------------------


def test_two_clocks_set_back_that_add_up_to_an_interval_do_not_silence_an_agent(play) -> None:
    world = play(OPS)
    world.run(minutes=70)
    world.clock.now -= HOUR
    world.run(minutes=5)
    before = len(world.asked)
    world.clock.now -= timedelta(minutes=29, seconds=59)
    world.run(minutes=65)
    assert len(world.asked) - before >= 2


def test_a_paused_beat_cut_by_a_crash_is_abandoned_not_skipped(play) -> None:
    world = play(OPS)
    world.scripts["ops"] = lambda asked: Takes(QUIET, timedelta(minutes=2))
    world.run(seconds=5)
    world.pause(None)
    world.off(seconds=5)
    world.run(minutes=1)
    assert world.story()[0].startswith("03-02 08:00 interval abandoned")


def test_a_cut_run_that_is_no_longer_ours_is_not_put_back(play) -> None:
    world = play(OPS)
    world.scripts["ops"] = lambda asked: Takes(QUIET, timedelta(minutes=2))
    world.run(seconds=5)
    with world.store.transaction() as db:
        db.execute("update run set fence = fence + 1, owner = 'another'")
    world.engine.stopping = True
    world.engine.cut_runs(world.clock.read())
    world.engine.tick(world.clock.read())
    assert world.rows()[0]["state"] == "running"


def test_an_error_text_that_is_no_unicode_does_not_stop_the_daemon(play, caplog) -> None:
    caplog.set_level(logging.CRITICAL, logger="heartbeatd")  # what cannot be encoded cannot be reported by a worker either
    world = play(OPS)
    world.scripts["ops"] = lambda asked: OSError("no such file: caf\udce9")
    world.run(minutes=1)
    assert world.story()[0].startswith("03-02 08:00 interval failed")


def test_an_entry_that_breaks_while_it_runs_stops_nobody_else(play) -> None:
    world = play(agent() + job(every="10m"))
    world.scripts["measure"] = lambda asked: Takes("", timedelta(minutes=1))
    world.run(minutes=10, seconds=5)
    with world.store.transaction() as db:
        db.execute('update entry set pace = \'{"schedule": "rubbish", "zone": "UTC", "offset": 0}\' where name = \'measure\'')
    world.run(minutes=25)
    assert len(world.rows("ops")) == 2


def test_a_rerun_of_a_reboot_job_and_its_new_start_are_one_run(play) -> None:
    world = play(job(schedule='"@reboot"', rerun_after_crash="true"))
    world.scripts["measure"] = lambda asked: Takes("", timedelta(minutes=1))
    world.run(seconds=5)
    world.off(seconds=5)
    world.run(minutes=5)
    assert len(world.asked) == 2


def test_a_disabled_job_cut_by_a_stop_does_not_run_again(play) -> None:
    text = job(every="1h", rerun_after_crash="true")
    world = play(text)
    world.scripts["measure"] = lambda asked: Takes("", timedelta(minutes=5))
    world.run(minutes=61)
    world.reload(job(every="1h", rerun_after_crash="true", enabled="false"))
    world.engine.stopping = True
    world.engine.cut_runs(world.clock.read())
    world.engine.tick(world.clock.read())
    world.stop()
    world.boot()
    world.run(minutes=1)
    assert len(world.asked) == 1


def test_a_beat_whose_process_outlived_the_daemon_is_not_started_beside_it(play) -> None:
    world = play(OPS)
    world.scripts["ops"] = lambda asked: Takes(QUIET, timedelta(minutes=1))
    world.run(seconds=5)
    run_id = world.rows()[0]["id"]
    world.kill()
    world.boot(survivors={f"life1/{run_id}": True})
    world.run(minutes=2)
    assert len(world.asked) == 1
    assert world.story()[0] == "03-02 08:00 interval abandoned child_may_still_run"


class Odd:
    """A request whose data nobody foresaw."""

    def apply(self, tick: Tick) -> int:
        WakeAgent(Wake("ops", source="api", sender="odd")).apply(tick)
        raise ValueError("half a character")


def test_a_request_that_nobody_foresaw_is_refused_and_undone_and_the_daemon_goes_on(play) -> None:
    world = play(OPS)
    world.run(seconds=5)
    with pytest.raises(Refused, match="the daemon cannot do this; its log says why") as refused:
        world.ask(Odd())
    assert refused.value.code == "broken"
    assert wakes.waiting(world.store.connection) == []
    world.wake("ops", "look")
    world.run(seconds=5)
    assert world.story() == ["03-02 08:00 interval ok heartbeat_ok", "03-02 08:00 api ok heartbeat_ok"]


class Unwritable(Store):
    """A database that fails at the end of every transaction, when all has been done in it, as long as `fails`."""

    fails = True

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        with super().transaction() as db:
            yield db
            if self.fails:
                raise Unavailable("the disk is gone")


def test_a_turn_whose_commit_fails_tells_nobody_and_counts_nothing(play) -> None:
    world = play(agent(deliver="hook") + HOOK)
    world.scripts["ops"] = lambda asked: ALARM
    world.run(minutes=10)
    before = (list(world.events), len(world.said), len(world.asked))
    world.store.close()
    world.store = world.engine.store = store = Unwritable.open(world.state)
    world.run(hours=1)
    assert (world.events, len(world.said), len(world.asked)) == before
    assert world.engine.health.problem == "the disk is gone"
    store.fails = False
    world.run(minutes=1)
    closed = [event.slot for event in world.events[len(before[0]) :] if type(event).__name__ == "Closed"]
    assert len(closed) == len(set(closed)) > 0
    assert world.engine.health.problem is None


def test_a_deadline_that_is_a_rounding_error_away_does_not_make_the_engine_spin(play) -> None:
    world = play(agent(interval="1d", timeout="5m"), scripts={"ops": lambda asked: Takes("HEARTBEAT_OK", timedelta(hours=1))})
    world.engine.tick(world.clock.read())
    now = world.clock.now + timedelta(minutes=5)
    almost = world.clock.steady + 300 - 5e-10
    assert world.engine.tick(Reading(now, almost)) > now

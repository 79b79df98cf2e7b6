"""Failures end to end: retries, crashes, hung runs and undelivered messages lose nothing and repeat nothing."""

from __future__ import annotations

import errno
import os
import sqlite3
from datetime import datetime, timedelta

import pytest
from test_story_slots import OPS, agent, job
from world import QUIET, Delayed, MakeWorld, World, utc

from heartbeatd.verbs import Cancel
from scheduler.engine.clock_adjustment import ClockReading
from scheduler.engine.delivery import Delivery
from scheduler.engine.effects import VerbRequest
from scheduler.model.events import RunClosed, StaleResultDropped
from scheduler.model.message import DeliveryResult

ALARM = "ALERT: the disk is full"
HOOK = 'channels: {hook: {kind: webhook, url: "http://127.0.0.1:1/x", allow_private: true}}\n'


def seconds_between_calls(world: World) -> list[float]:
    """The seconds between consecutive agent calls."""
    return [(later.at - earlier.at).total_seconds() for earlier, later in zip(world.calls, world.calls[1:], strict=False)]


def test_a_failing_run_is_retried_within_its_slot_with_growing_delays(make_world: MakeWorld) -> None:
    world = make_world(agent(retries="3"))
    world.scripts["ops"] = lambda call: 1
    world.run(minutes=5)
    assert world.history() == ["03-02 08:00 interval failed exit"]
    assert world.records()[0]["tries"] == 4
    for wait, nominal in zip(seconds_between_calls(world), (1, 2, 4), strict=True):
        assert nominal * 0.75 <= wait <= nominal * 1.25


def test_a_run_that_succeeds_at_the_second_attempt_is_one_record(make_world: MakeWorld) -> None:
    world = make_world(agent())
    world.scripts["ops"] = lambda call: 1 if len(world.calls) == 1 else "HEARTBEAT_OK"
    world.run(minutes=5)
    assert world.history() == ["03-02 08:00 interval ok heartbeat_ok"]
    assert world.records()[0]["tries"] == 2


def test_a_crash_between_attempts_neither_loses_nor_adds_an_attempt(make_world: MakeWorld) -> None:
    world = make_world(agent(retries="2"))
    world.scripts["ops"] = lambda call: 1
    world.engine.tick(world.clock.read())
    world.settle()
    world.downtime(seconds=0)
    world.run(minutes=5)
    assert len(world.calls) == 3


def test_a_job_is_not_retried_unless_configured(make_world: MakeWorld) -> None:
    world = make_world(job(every="1h"))
    world.scripts["measure"] = lambda call: 1
    world.run(minutes=70)
    assert len(world.calls) == 1


def test_a_retry_never_runs_outside_active_hours(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1h", active_hours='"08:00-22:00"', timeout="30m"), start="2026-03-02 21:00")
    world.scripts["ops"] = lambda call: Delayed(1, timedelta(minutes=59, seconds=59, milliseconds=900))
    world.reload(agent(interval="1h", active_hours='"08:00-22:00"', timeout="2h"))
    world.run(hours=2)
    row = world.records()[0]
    assert (row["result"], row["why"], row["tries"]) == ("failed", "no_time_left", 1)
    assert "exit code 1" in row["error"]


def test_a_run_that_fails_just_before_closing_ends_without_waiting_for_a_retry(make_world: MakeWorld) -> None:
    """The retry would start about a second later, outside active hours. So the run ends at once."""
    world = make_world(agent(interval="1h", active_hours='"08:00-22:00"', timeout="2h"), start="2026-03-02 21:00")
    world.scripts["ops"] = lambda call: Delayed(1, timedelta(minutes=59, seconds=59, milliseconds=900))
    world.run(minutes=59, seconds=59, milliseconds=900)
    (row,) = world.records()
    assert (row["state"], row["result"], row["why"]) == ("closed", "failed", "no_time_left")
    assert row["finished_at"] < "2026-03-02T22:00:00"


def test_a_retry_never_runs_after_the_next_slot(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="10s", timeout="30s"))
    world.scripts["ops"] = lambda call: Delayed(1, timedelta(seconds=9, milliseconds=500))
    world.run(seconds=10)
    assert world.history()[0] == "03-02 08:00 interval failed no_time_left"


@pytest.mark.parametrize("change", ["disabled", "removed"])
@pytest.mark.parametrize("minutes", [0.5, 1.01], ids=["during a try", "before the second try"])
def test_a_job_that_is_disabled_or_removed_while_it_fails_has_failed_for_its_own_reason(
    make_world: MakeWorld, minutes: float, change: str
) -> None:
    config = job(every="1h", retries="2")
    world = make_world(config, scripts={"measure": lambda _: 1}, durations={"measure": timedelta(minutes=1)})
    world.run(hours=1, minutes=minutes)
    other = config.replace("measure: {", "other: {enabled: false, ")
    world.reload(config.replace("{command", "{enabled: false, command") if change == "disabled" else other)
    world.run(minutes=5)
    assert world.history("measure") == ["03-02 09:00 every failed exit"]


LOUD = job(every="10m", retries="2", deliver="log", wake_heartbeat="ops", wake_on="failure") + agent(interval="1d")


def fail_without_retry(world: World) -> None:
    world.scripts["measure"] = lambda call: 1
    world.run(minutes=10)
    world.settle()
    assert len([call for call in world.calls if call.name == "measure"]) == 1
    world.downtime(minutes=15)
    world.scripts["measure"] = lambda call: ""
    world.run(seconds=5)
    assert "03-02 08:10 every failed no_time_left" in world.history("measure")


def test_a_failed_job_whose_retry_never_started_causes_a_notification_and_wakes_its_agent(make_world: MakeWorld) -> None:
    world = make_world(LOUD)
    fail_without_retry(world)
    assert [text for _, name, text in world.delivered if name == "measure"]
    world.run(minutes=1)
    assert [line for line in world.history("ops") if "cron" in line]


def test_a_run_whose_retry_never_started_counts_as_a_failure(make_world: MakeWorld) -> None:
    world = make_world(agent(retries="2"))
    world.scripts["ops"] = lambda call: 1
    world.engine.tick(world.clock.read())
    world.settle()
    world.downtime(minutes=35)
    world.scripts["ops"] = lambda call: Delayed(QUIET, timedelta(minutes=1))
    world.run(seconds=5)
    assert world.history()[0] == "03-02 08:00 interval failed no_time_left"
    assert world.store.connection.execute("select failures from entry").fetchone()[0] == 1


def test_a_hung_run_is_ended_at_its_timeout_and_reported(make_world: MakeWorld) -> None:
    world = make_world(job(every="1h", timeout="10m", deliver="log"))
    world.scripts["measure"] = lambda call: Delayed("never", timedelta(days=1))
    world.run(hours=1, minutes=11)
    assert world.history() == ["03-02 09:00 every timeout timeout"]
    assert "did not end within its timeout" in world.delivered[0][2]


def test_each_of_several_hung_runs_is_ended_at_its_own_timeout(make_world: MakeWorld) -> None:
    world = make_world(agent(timeout="5m", retries="0") + job(every="30m", timeout="10m"))
    world.scripts["ops"] = world.scripts["measure"] = lambda call: Delayed("never", timedelta(days=1))
    world.run(minutes=32)
    assert [row["name"] for row in world.records() if row["state"] == "running"] == ["ops", "measure"]
    world.run(minutes=4)
    assert [row["name"] for row in world.records() if row["state"] == "running"] == ["measure"]
    world.run(minutes=5)
    assert not [row for row in world.records() if row["state"] == "running"]


def test_an_attempt_after_a_timeout_has_a_timeout_of_its_own(make_world: MakeWorld) -> None:
    world = make_world(agent(timeout="1m", retries="1"))
    answers = iter([Delayed("never", timedelta(days=1)), Delayed(QUIET, timedelta(seconds=30))])
    world.scripts["ops"] = lambda call: next(answers)
    world.run(minutes=5)
    assert (len(world.calls), world.history()) == (2, ["03-02 08:00 interval ok heartbeat_ok"])


def test_an_attempt_that_cannot_be_cancelled_is_not_retried_while_it_runs(make_world: MakeWorld) -> None:
    world = make_world(agent(timeout="1m", retries="2"))
    world.scripts["ops"] = lambda call: Delayed("never", timedelta(days=1))
    world.runs.can_cancel = False
    world.run(minutes=10)
    assert len(world.calls) == 1


def test_a_run_is_ended_at_its_timeout_even_if_the_database_is_locked(make_world: MakeWorld) -> None:
    world = make_world(job(every="1h", timeout="1m"))
    world.scripts["measure"] = lambda call: Delayed("never", timedelta(days=1))
    world.run(minutes=60, seconds=30)
    with world.locked_database():
        for _ in range(60):
            world.clock.advance(timedelta(seconds=1))
            world.engine.tick(world.clock.read())
        assert not world.runs.inflight()


def test_a_deadline_within_a_rounding_error_does_not_make_the_engine_spin(make_world: MakeWorld) -> None:
    world = make_world(
        agent(interval="1d", timeout="5m"), scripts={"ops": lambda call: Delayed("HEARTBEAT_OK", timedelta(hours=1))}
    )
    world.engine.tick(world.clock.read())
    now = world.clock.now + timedelta(minutes=5)
    almost = world.clock.monotonic + 300 - 5e-10
    assert world.engine.tick(ClockReading(now, almost)) > now


def test_an_exception_in_a_runner_fails_the_run_and_not_the_daemon(make_world: MakeWorld) -> None:
    world = make_world(agent() + job(every="10m"))
    world.scripts["ops"] = lambda call: SystemError("out of cheese")
    world.run(minutes=31)
    assert world.history("ops") == ["03-02 08:00 interval failed bad_answer", "03-02 08:30 interval failed bad_answer"]
    assert "out of cheese" in world.records("ops")[0]["error"]
    assert len(world.records("measure")) == 3


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN])
def test_a_run_that_could_not_start_for_lack_of_open_files_is_retried(
    make_world: MakeWorld, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    world = make_world(agent())
    answers = [OSError(number, os.strerror(number)), "HEARTBEAT_OK"]
    world.scripts["ops"] = lambda call: answers.pop(0)
    world.run(minutes=1)
    assert world.history("ops") == ["03-02 08:00 interval ok heartbeat_ok"]
    assert "runner_broken" not in caplog.text


def test_due_runs_wait_while_the_system_lacks_resources(make_world: MakeWorld) -> None:
    room = 8
    config = "cron:\n  one: {every: 10m, command: measure}\n  two: {every: 10m, command: measure}\n"
    world = make_world(config, capacity=lambda wanted: min(wanted, room))
    world.run(minutes=5)
    room = 0
    world.run(minutes=7)
    before = [len(world.records(name)) for name in ("one", "two")]
    with world.traced_statements() as statements:
        world.run(minutes=1)
    assert 50 <= statements.count("begin immediate") <= 70  # one check per second
    assert [len(world.records(name)) for name in ("one", "two")] == before
    room = 1
    world.run(seconds=5)
    assert [len(world.records(name)) for name in ("one", "two")] == [count + 1 for count in before]
    world.run(minutes=30)
    assert {row["result"] for row in world.records()} == {"ok"}


def test_a_run_interrupted_by_a_crash_runs_again_at_once_and_keeps_its_retries(make_world: MakeWorld) -> None:
    """The second try fails, so the third one is the only retry."""
    world = make_world(agent(retries="1"))
    answers = iter([Delayed("HEARTBEAT_OK", timedelta(minutes=1)), 1])
    world.scripts["ops"] = lambda call: next(answers, "HEARTBEAT_OK")
    world.run(seconds=10)
    world.downtime(seconds=5)
    world.run(minutes=2)
    assert world.history() == ["03-02 08:00 interval ok heartbeat_ok"]
    assert (len(world.calls), world.records()[0]["tries"]) == (3, 3)


def run_durations(world: World, name: str = "ops") -> list[float]:
    """The durations of the runs by their records. The events must have the same durations."""
    rows = [row for row in world.records(name) if row["started_at"] and row["finished_at"]]
    by_rows = [(datetime.fromisoformat(row["finished_at"]) - datetime.fromisoformat(row["started_at"])) for row in rows]
    closed = [each for each in world.events if isinstance(each, RunClosed) and each.name == name and each.started_at is not None]
    assert [each.finished_at - each.started_at for each in closed if each.started_at] == by_rows
    return [span.total_seconds() for span in by_rows]


@pytest.mark.parametrize("crashes", [True, False])
def test_the_duration_of_a_run_repeated_after_a_crash_or_a_stop_excludes_the_downtime(
    make_world: MakeWorld, *, crashes: bool
) -> None:
    world = make_world(agent(retries="0"))
    world.scripts["ops"] = lambda call: Delayed("HEARTBEAT_OK", timedelta(minutes=1))
    world.run(seconds=10)
    world.kill() if crashes else stop_in_the_middle(world)
    world.clock.advance(timedelta(minutes=14))
    world.boot()
    world.run(minutes=2)
    assert world.history() == ["03-02 08:00 interval ok heartbeat_ok"]
    assert run_durations(world) == [60]


def stop_in_the_middle(world: World) -> None:
    world.engine.stopping = True
    world.engine.end_all_runs(world.clock.read())
    world.settle()
    world.stop()


@pytest.mark.parametrize("crashes", [True, False])
def test_an_interrupted_run_that_is_too_late_to_repeat_ended_when_it_was_interrupted(
    make_world: MakeWorld, *, crashes: bool
) -> None:
    world = make_world(agent(retries="0"))
    world.scripts["ops"] = lambda call: Delayed("HEARTBEAT_OK", timedelta(minutes=10))
    world.run(seconds=30)
    world.kill() if crashes else stop_in_the_middle(world)
    world.clock.advance(timedelta(minutes=40))
    world.boot()
    world.run(minutes=2)
    assert world.history()[0].startswith("03-02 08:00 interval abandoned")
    assert 20 <= run_durations(world)[0] <= 30  # a crash is dated to the last recorded tick before it


def test_the_duration_of_a_job_interrupted_by_a_crash_excludes_the_downtime(make_world: MakeWorld) -> None:
    world = make_world(job(every="10m"))
    world.scripts["measure"] = lambda call: Delayed("done", timedelta(minutes=5))
    world.run(minutes=10, seconds=30)
    world.downtime(hours=2)
    world.run(minutes=1)
    assert world.history("measure")[0] == "03-02 08:10 every abandoned exit"
    assert 20 <= run_durations(world, "measure")[0] <= 30


def test_a_run_that_crashes_the_daemon_every_time_is_given_up(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1h"))
    world.scripts["ops"] = lambda call: Delayed("HEARTBEAT_OK", timedelta(minutes=1))
    for _ in range(6):
        world.run(seconds=10)
        world.downtime(seconds=5)
    world.run(minutes=2)
    assert world.history()[0] == "03-02 08:00 interval abandoned crash_count"
    assert len(world.calls) == 4
    world.run(hours=1)
    assert world.history()[-1] == "03-02 09:00 interval ok heartbeat_ok"


def test_an_interrupted_run_is_not_repeated_after_its_next_slot(make_world: MakeWorld) -> None:
    world = make_world(agent())
    world.scripts["ops"] = lambda call: Delayed("HEARTBEAT_OK", timedelta(minutes=1))
    world.run(seconds=10)
    world.downtime(minutes=40)
    world.run(minutes=5)
    assert world.history() == ["03-02 08:00 interval abandoned exit", "03-02 08:30 interval skipped missed"]


def test_a_slot_during_downtime_runs_within_its_grace(make_world: MakeWorld) -> None:
    world = make_world(agent())
    world.scripts["ops"] = lambda call: Delayed("HEARTBEAT_OK", timedelta(minutes=1))
    world.run(seconds=10)
    world.downtime(minutes=33)
    world.run(minutes=5)
    assert world.history() == ["03-02 08:00 interval abandoned exit", "03-02 08:30 interval ok heartbeat_ok"]


def test_an_interrupted_run_is_not_repeated_outside_active_hours(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1h", active_hours='"08:00-22:00"'), start="2026-03-02 21:00")
    world.scripts["ops"] = lambda call: Delayed("HEARTBEAT_OK", timedelta(minutes=59))
    world.reload(agent(interval="1h", active_hours='"08:00-22:00"', timeout="2h"))
    world.run(minutes=50)
    world.downtime(minutes=11)  # until 22:01
    world.run(hours=1)
    assert world.history()[0] == "03-02 21:00 interval abandoned exit"
    assert len(world.calls) == 1


def test_a_job_interrupted_by_a_crash_is_reported_and_not_repeated(make_world: MakeWorld) -> None:
    world = make_world(job(every="1h", deliver="log") + agent(interval="1d").replace("agents", "agents"))
    world.scripts["measure"] = lambda call: Delayed("", timedelta(minutes=5))
    world.run(minutes=61)
    world.downtime(seconds=5)
    world.run(minutes=5)
    assert world.history("measure") == ["03-02 09:00 every abandoned exit"]
    assert "failed: interrupted: " in world.delivered[0][2]


def test_a_job_whose_process_outlived_the_daemon_is_reported(make_world: MakeWorld) -> None:
    world = make_world(job(every="1h"))
    world.scripts["measure"] = lambda call: Delayed("", timedelta(minutes=5))
    world.run(minutes=61)
    run_id = world.records()[0]["id"]
    world.kill()
    world.boot(survivors={f"boot1/{run_id}": True})
    world.run(minutes=1)
    assert world.history() == ["03-02 09:00 every abandoned child_may_still_run"]


def test_a_run_whose_process_outlived_the_daemon_is_not_repeated(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    world.scripts["ops"] = lambda call: Delayed(QUIET, timedelta(minutes=1))
    world.run(seconds=5)
    run_id = world.records()[0]["id"]
    world.kill()
    world.boot(survivors={f"boot1/{run_id}": True})
    world.run(minutes=2)
    assert len(world.calls) == 1
    assert world.history()[0] == "03-02 08:00 interval abandoned child_may_still_run"


def test_of_a_cancelled_run_whose_process_outlived_the_daemon_it_is_said_that_it_may_still_run(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    world.scripts["ops"] = lambda call: Delayed(QUIET, timedelta(minutes=1))
    world.run(seconds=5)
    run_id = world.records()[0]["id"]
    world.runs.can_cancel = False
    world.request(VerbRequest(Cancel(), run_id))
    world.kill()
    world.boot(survivors={f"boot1/{run_id}": True})
    world.run(minutes=2)
    assert world.history()[0] == "03-02 08:00 interval abandoned child_may_still_run"


def test_a_job_declared_safe_to_repeat_is_repeated_after_a_crash(make_world: MakeWorld) -> None:
    world = make_world(job(every="1h", rerun_after_crash="true"))
    world.scripts["measure"] = lambda call: Delayed("", timedelta(minutes=5))
    world.run(minutes=61)
    world.downtime(seconds=5)
    world.run(minutes=6)
    assert world.history() == ["03-02 09:00 every ok"]


def test_the_rerun_of_an_interrupted_reboot_job_counts_as_its_run_at_boot(make_world: MakeWorld) -> None:
    world = make_world(job(schedule='"@reboot"', rerun_after_crash="true"))
    world.scripts["measure"] = lambda call: Delayed("", timedelta(minutes=1))
    world.run(seconds=5)
    world.downtime(seconds=5)
    world.run(minutes=5)
    assert len(world.calls) == 2


def test_a_run_interrupted_by_a_stop_is_due_again_and_uses_no_retry(make_world: MakeWorld) -> None:
    world = make_world(agent(retries="0"))
    world.scripts["ops"] = lambda call: Delayed("HEARTBEAT_OK", timedelta(minutes=1))
    world.run(seconds=10)
    world.end_runs()
    world.stop()
    world.boot()
    world.run(minutes=2)
    assert world.history() == ["03-02 08:00 interval ok heartbeat_ok"]
    assert world.records()[0]["tries"] == 1


def test_a_result_of_a_lost_claim_changes_nothing(make_world: MakeWorld) -> None:
    world = make_world(agent())
    world.scripts["ops"] = lambda call: Delayed(ALARM, timedelta(seconds=10))
    world.run(seconds=5)
    with world.store.transaction() as db:
        db.execute("update run set fence = fence + 1")
    world.run(minutes=1)
    assert world.events_of(StaleResultDropped)
    assert world.delivered == []


def test_an_interrupted_run_that_another_daemon_has_claimed_is_not_put_back(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    world.scripts["ops"] = lambda call: Delayed(QUIET, timedelta(minutes=2))
    world.run(seconds=5)
    with world.store.transaction() as db:
        db.execute("update run set fence = fence + 1, owner = 'another'")
    world.end_runs()
    assert world.records()[0]["state"] == "running"


def test_the_database_refuses_a_second_open_run_of_one_agent(make_world: MakeWorld) -> None:
    world = make_world(agent())
    world.scripts["ops"] = lambda call: Delayed("HEARTBEAT_OK", timedelta(seconds=10))
    world.run(seconds=5)
    with pytest.raises(sqlite3.DatabaseError, match=r"run_open|UNIQUE"), world.store.transaction() as db:
        db.execute("insert into run (kind, name, slot, trigger, state) values ('heartbeat', 'ops', 5, 'manual', 'running')")


def test_runs_wait_while_the_database_is_locked_and_nothing_is_lost(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1m"))
    world.run(seconds=90)
    with world.locked_database():
        for _ in range(20):
            world.clock.advance(timedelta(seconds=1))
            world.engine.tick(world.clock.read())
        assert world.engine.health.problem is not None
    world.run(minutes=1)
    assert world.engine.health.problem is None
    assert [line[:11] for line in world.history()] == [f"03-02 08:0{minute}" for minute in range(3)]


def test_the_database_is_not_locked_during_an_agent_call_a_command_and_a_delivery(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1h", deliver="hook") + job(every="30m") + HOOK)
    seen: list[str] = []

    def note(what: str) -> None:
        assert not world.store.connection.in_transaction
        seen.append(what)

    world.scripts["ops"] = lambda _: (note("call"), ALARM)[1]
    world.scripts["measure"] = lambda _: (note("command"), "")[1]
    world.send = lambda _: (note("delivery"), DeliveryResult("delivered"))[1]
    world.run(minutes=31)
    assert seen == ["call", "delivery", "command"]


def test_an_alert_repeated_by_every_run_is_sent_once(make_world: MakeWorld) -> None:
    world = make_world(agent())
    world.scripts["ops"] = lambda call: ALARM
    world.run(hours=23)
    assert [text for _, _, text in world.delivered] == [ALARM]
    world.run(hours=3)
    assert [text for _, _, text in world.delivered] == [ALARM, ALARM]  # the duplicate window of a day is over


def test_a_message_is_kept_until_its_channel_accepts_it_without_another_agent_call(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1d", deliver="hook") + HOOK)
    world.scripts["ops"] = lambda call: ALARM
    world.send = lambda _: DeliveryResult("retry" if world.clock.now < utc("2026-03-02 08:45") else "delivered", "down")
    world.run(hours=3)
    assert [text for _, _, text in world.delivered] == [ALARM]
    assert len(world.calls) == 1
    assert [target["says"] for target in world.records()[0]["delivery"]["targets"]] == ["delivered to hook"]


def test_an_undeliverable_message_is_dead_after_a_day_and_its_text_can_be_sent_again(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="12h", deliver="hook") + HOOK)
    world.scripts["ops"] = lambda call: ALARM
    tried: list[str] = []

    def send(delivery: Delivery) -> DeliveryResult:
        tried.extend([f"{world.clock.now:%d %H:%M}"] if delivery.message.run_id == 1 else [])
        return DeliveryResult("retry", "down")

    world.send = send
    world.run(hours=49)
    assert tried[:6] == ["02 08:00", "02 08:01", "02 08:06", "02 08:36", "02 10:36", "02 12:36"]
    assert tried[-1] == "03 06:36", "the next one would be after more than a day"
    states = [row["delivery"]["state"] for row in world.records()]
    assert states == [
        "dropped",
        "dropped",
        "dropped",
        "dropped",
        "pending",
    ]  # a repeated text has the state of the text it repeats
    (target,) = world.records()[0]["delivery"]["targets"]
    assert (target["channel"], target["error"]) == ("hook", "down; replaced by the same text of run 3")


def test_after_a_crash_following_the_answer_the_message_is_sent_without_another_agent_call(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1d", deliver="hook") + HOOK)
    world.scripts["ops"] = lambda call: ALARM
    world.send = lambda _: DeliveryResult("retry", "down")
    world.run(seconds=10)
    world.downtime(minutes=3)
    world.send = lambda _: DeliveryResult("delivered")
    world.run(minutes=10)
    assert (len(world.calls), [text for _, _, text in world.delivered]) == (1, [ALARM])


def test_a_message_interrupted_by_a_crash_is_sent_again_with_the_same_key(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="1d", deliver="hook") + HOOK)
    keys: list[str] = []
    world.scripts["ops"] = lambda call: ALARM

    def send(delivery: object) -> DeliveryResult:
        keys.append(delivery.message.key)  # type: ignore[attr-defined]
        return DeliveryResult("delivered")

    world.send = send
    world.engine.tick(world.clock.read())
    world.engine.tick(world.clock.read())  # recorded and being sent
    assert world.store.connection.execute("select state from outbox").fetchone()[0] == "sending"
    world.downtime(seconds=5)
    world.run(minutes=10)
    assert len(keys) == 2
    assert len(set(keys)) == 1


def test_a_channel_with_uncertain_hold_does_not_send_a_message_twice(make_world: MakeWorld) -> None:
    world = make_world(
        agent(interval="1d", deliver="hook") + HOOK.replace("allow_private: true", "allow_private: true, uncertain: hold")
    )
    world.scripts["ops"] = lambda call: ALARM
    sent: list[object] = []

    def send(delivery: object) -> DeliveryResult:
        sent.append(delivery)
        return DeliveryResult("uncertain", "no answer")

    world.send = send
    world.run(hours=5)
    assert len(sent) == 1
    assert world.records()[0]["delivery"]["state"] == "held"


def test_an_alert_with_show_alerts_off_is_recorded_and_not_sent(make_world: MakeWorld) -> None:
    world = make_world(agent(show_alerts="false", show_ok="true"))
    world.scripts["ops"] = lambda call: ALARM
    world.run(minutes=1)
    assert world.history() == ["03-02 08:00 interval alert not_shown"]
    assert world.records()[0]["text"] == ALARM
    assert world.delivered == []


@pytest.mark.parametrize(("show_alerts", "quiet"), [("false", 3), ("true", 2)])
def test_the_quiet_counter_counts_successes_without_a_message(make_world: MakeWorld, show_alerts: str, quiet: int) -> None:
    """A duplicate is none either."""
    world = make_world(agent(show_alerts=show_alerts, show_ok="true"))
    world.scripts["ops"] = lambda call: ALARM
    world.run(hours=1)
    assert world.store.connection.execute("select quiet from entry").fetchone()[0] == quiet

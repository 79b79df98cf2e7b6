"""Tests of the status that is read from the database alone."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from world import Delayed, MakeWorld, World, open_store, utc

from heartbeatd.answers import ChannelBacklog, EntryStatus, LastRun, Problem, ProblemCounts, Status
from scheduler.insight import status_data
from scheduler.insight.health import read_verdict
from scheduler.model.message import DeliveryResult
from scheduler.model.outcome import Kind
from scheduler.store.database import open_read_only

CONFIG = """
agents:
  ops:
    runner: {kind: command, argv: [agent]}
    heartbeat: {interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: log}
  quiet:
    runner: {kind: command, argv: [agent]}
    heartbeat: {enabled: false, interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: log}
cron:
  measure: {every: 1h, command: measure}
"""


def snapshot(world: World) -> dict[str, Any]:
    db = open_read_only(world.state)
    try:
        status = status_data.read_status(db, world.clock.now).as_data()
    finally:
        db.close()
    assert json.loads(json.dumps(status)) == status
    return status


def entry(world: World, name: str) -> dict[str, Any]:
    return next(entry for entry in snapshot(world)["entries"] if entry["name"] == name)


def test_each_entry_is_listed_with_its_state_its_next_time_and_its_last_run(make_world: MakeWorld) -> None:
    world = make_world(CONFIG, scripts={"ops": lambda call: "The disk is full."})
    world.run(minutes=5)
    assert entry(world, "ops") == {
        "kind": "heartbeat",
        "name": "ops",
        "state": "active",
        "paused_until": None,
        "paused_at": None,
        "paused_by": None,
        "done_at": None,
        "next_planned_at": "2026-03-02T08:30:00Z",
        "next_due": "2026-03-02T08:30:00Z",
        "last_run": {
            "id": 1,
            "planned_at": "2026-03-02T08:00:00Z",
            "planned_runs": 1,
            "trigger": "interval",
            "state": "closed",
            "result": "alert",
            "why": None,
            "started_at": "2026-03-02T08:00:00Z",
            "finished_at": "2026-03-02T08:00:00Z",
            "error": None,
            "delivery": "delivered",
            "worker": None,
        },
        "last_success_at": "2026-03-02T08:00:00Z",
        "consecutive_failures": 0,
        "consecutive_quiet": 0,
        "alerting": True,
        "failing": None,
        "undelivered": None,
        "wakes_waiting": 0,
        "activity": None,
        "busy": [],
        "budget": None,
        "problems": {"open": 0, "reported": 0, "worst": None},
        "muted": None,
        "says": "active",
    }


def test_an_entry_that_never_ran_has_no_last_run(make_world: MakeWorld) -> None:
    world = make_world(CONFIG)
    assert entry(world, "quiet")["last_run"] is None
    assert (entry(world, "quiet")["state"], entry(world, "quiet")["next_due"]) == ("disabled", None)


def test_agents_come_before_jobs_in_the_order_of_their_names(make_world: MakeWorld) -> None:
    assert [entry["name"] for entry in snapshot(make_world(CONFIG))["entries"]] == ["ops", "quiet", "measure"]


def test_the_last_run_is_the_newest_row_also_when_it_is_a_skip(make_world: MakeWorld) -> None:
    world = make_world(CONFIG)
    world.run(minutes=5)
    world.downtime(hours=3, minutes=15)
    world.run(minutes=1)
    last = entry(world, "ops")["last_run"]
    assert (last["result"], last["why"], last["planned_runs"]) == ("skipped", "missed", 6)


def test_a_run_in_progress_has_no_outcome_yet(make_world: MakeWorld) -> None:
    world = make_world(CONFIG, scripts={"ops": lambda call: Delayed("HEARTBEAT_OK", timedelta(minutes=2))})
    world.run(minutes=1)
    last = entry(world, "ops")["last_run"]
    assert (last["state"], last["result"]) == ("running", None)
    assert snapshot(world)["queue"]["running"] == 1


def test_a_run_that_waits_for_another_attempt_is_shown_as_waiting(make_world: MakeWorld) -> None:
    world = make_world(CONFIG, scripts={"ops": lambda call: 3})
    world.engine.tick(world.clock.read())
    world.engine.tick(world.clock.read())
    assert snapshot(world)["queue"]["retrying"] == 1
    last = entry(world, "ops")["last_run"]
    assert (last["state"], last["result"], last["why"]) == ("waiting", None, "exit")


@pytest.mark.parametrize("until", [None, "2026-03-02 12:00"])
def test_a_pause_is_shown_with_its_end(make_world: MakeWorld, until: str | None) -> None:
    world = make_world(CONFIG)
    world.pause((Kind.HEARTBEAT, "ops"), utc(until) if until else None)
    shown = entry(world, "ops")
    assert (shown["state"], shown["next_due"]) == ("paused", None)
    assert shown["paused_until"] == ("2026-03-02T12:00:00Z" if until else None)


def test_the_queue_is_shown_in_numbers(make_world: MakeWorld) -> None:
    world = make_world(CONFIG)
    world.pause((Kind.CRON, "measure"))
    numbers = {"entries": 3, "active": 1, "paused": 1, "disabled": 1, "done": 0, "due": 0, "running": 1, "retrying": 0}
    assert snapshot(world)["queue"] == numbers


def test_a_removed_entry_is_no_longer_listed(make_world: MakeWorld) -> None:
    world = make_world(CONFIG)
    world.reload(CONFIG[: CONFIG.index("cron:")])
    assert [entry["name"] for entry in snapshot(world)["entries"]] == ["ops", "quiet"]


def test_waiting_wakes_are_counted(make_world: MakeWorld) -> None:
    world = make_world(CONFIG)
    world.run(minutes=1)
    world.pause((Kind.HEARTBEAT, "ops"))
    world.wake("ops", "one", sender="a")
    world.wake("ops", "two", sender="b")
    world.settle()
    assert entry(world, "ops")["wakes_waiting"] == 2


def test_the_last_boot_and_the_downtimes_are_shown(make_world: MakeWorld) -> None:
    world = make_world(CONFIG)
    world.run(minutes=5)
    world.stop()
    world.clock.advance(timedelta(minutes=10))
    world.boot()
    world.run(minutes=1)
    world.downtime(minutes=20)
    status = snapshot(world)
    assert status["daemon"] == {
        "pid": 4003,
        "version": "0",
        "tzdata": "0",
        "started_at": "2026-03-02T08:36:00Z",
        "last_tick_at": "2026-03-02T08:36:00Z",
        "ended_at": None,
    }
    assert [(down["until"], down["clean"]) for down in status["downs"]] == [
        ("2026-03-02T08:36:00Z", False),
        ("2026-03-02T08:15:00Z", True),
    ]
    assert status["downs"][1]["since"] == "2026-03-02T08:05:00Z"
    assert status["config_hash"] == world.engine.plan.settings.hash


def test_undelivered_messages_are_counted_by_channel(make_world: MakeWorld) -> None:
    hook = 'channels: {hook: {kind: webhook, url: "http://127.0.0.1:9/x", allow_private: true}}\n'
    world = make_world(
        hook + CONFIG.replace("deliver: log", "deliver: hook"),
        scripts={"ops": lambda call: "The disk is full."},
        send=lambda _: DeliveryResult("retry", "no route"),
    )
    world.run(seconds=10)
    assert snapshot(world)["outbox"] == [{"channel": "hook", "pending": 1, "dead": 0, "oldest_at": "2026-03-02T08:00:00Z"}]


def test_a_channel_without_undelivered_messages_is_not_listed(make_world: MakeWorld) -> None:
    world = make_world(CONFIG, scripts={"ops": lambda call: "The disk is full."})
    world.run(minutes=1)
    assert snapshot(world)["outbox"] == []


def test_a_database_that_no_daemon_has_used_has_no_boot(tmp_path: Any) -> None:
    store = open_store(tmp_path / "new.db")
    status = status_data.read_status(store.connection, utc("2026-03-02 08:00")).as_data()
    store.close()
    assert (status["daemon"], status["config_hash"], status["entries"], status["downs"]) == (None, None, [], [])


def test_a_wake_is_shown_with_the_run_that_took_it(make_world: MakeWorld) -> None:
    world = make_world(CONFIG)
    world.run(minutes=5)
    wake = world.wake("ops", "look")
    world.settle()
    shown = status_data.read_wake(world.store.connection, wake, world.clock.now)
    assert shown is not None
    assert (shown.state, shown.run and shown.run.trigger, shown.run and shown.run.result) == ("ended", "api", "ok")
    assert status_data.read_wake(world.store.connection, wake + 1, world.clock.now) is None


def test_the_used_part_of_todays_budgets_is_shown_and_is_zero_tomorrow(make_world: MakeWorld) -> None:
    yaml = CONFIG.replace("deliver: log}", "deliver: log, budget: {runs_per_day: 40, usd_per_day: 2, usd_per_try: 0.01}}", 1)
    world = make_world("limits: {budget: {runs_per_day: 100}}\n" + yaml)
    world.run(hours=1, minutes=1)
    assert entry(world, "ops")["budget"] == {
        "day": "2026-03-02",
        "ends_at": "2026-03-03T00:00:00Z",
        "usd_per_day": {"used": 0.03, "of": 2.0},
        "runs_per_day": {"used": 3, "of": 40},
    }
    assert snapshot(world)["budget"]["runs_per_day"] == {"used": 3, "of": 100}
    world.pause(None)
    world.run(days=1)
    assert (entry(world, "ops")["budget"], snapshot(world)["budget"]) == (None, None)


# --- the verdict ------------------------------------------------------------------------------------------------------


def one_entry(kind: str, name: str, failures: int, last: str) -> EntryStatus:
    return EntryStatus.model_construct(
        kind=kind, name=name, state="active", consecutive_failures=failures, failing=None, undelivered=None, alerting=False,
        problems=ProblemCounts(open=0, reported=0, worst=None), muted=None, last_run=None, last_success_at=utc(last),
    )  # fmt: skip


def one_problem(kind: str | None, name: str, **more: Any) -> Problem:
    known = {"state": "open", "acknowledged_at": None, "reported": False, "severity": "warning"}
    subject = {"subject": f"{kind or 'channel'}/{name}", "kind": kind, "name": name if kind else None}
    return Problem.model_construct(**(known | subject | more))


def judged(*problems: Problem, entries: tuple[EntryStatus, ...] = (), dead: tuple[int, ...] = ()) -> str:
    """The level, and what the verdict says."""
    outbox = [ChannelBacklog.model_construct(dead=each) for each in dead]
    status = Status.model_construct(entries=[*entries], problems=[*problems], outbox=outbox)
    found = read_verdict(status, lambda at: f"{at:%H:%M}")
    return f"{found.level}: {found.says}"


def test_the_verdict_counts_each_of_several_things_once() -> None:
    """A job has the name of the failing agent. Two problems are of the same channel, and the problem of the agent is its failure."""
    entries = one_entry("heartbeat", "ops", 3, "2026-03-02 08:00"), one_entry("cron", "ops", 0, "2026-03-02 09:00")
    of_channels = [one_problem(None, name) for name in ("chat", "phone", "phone")]
    of_entries = [one_problem("heartbeat", "ops"), one_problem("heartbeat", "ops", reported=True), one_problem("cron", "ops")]
    expected = "bad: 1 failing, 2 channels dead, 2 problems, 5 messages given up; last run 09:00"
    assert judged(*of_channels, *of_entries, entries=entries, dead=(2, 0, 3)) == expected
    assert judged(dead=(0, 1)) == "bad: 1 message given up; nothing has run yet"


def test_the_verdict_says_so_if_the_last_run_was_skipped() -> None:
    skipped = LastRun.model_construct(
        planned_at=utc("2026-03-02 08:00"), result="skipped", why="precheck", state="closed", delivery="none", started_at=None
    )
    entry = one_entry("heartbeat", "ops", 0, "2026-03-02 08:00").model_copy(update={"last_run": skipped, "last_success_at": None})
    assert judged(entries=(entry,)) == "ok: nothing is wrong; last run skipped"


def test_an_acknowledged_problem_leaves_the_verdict_and_a_critical_one_is_bad() -> None:
    new, over = one_problem("cron", "backup"), one_problem("cron", "backup", state="over")
    known = one_problem("cron", "measure", acknowledged_at=utc("2026-03-02 08:00"), severity="critical")
    assert judged(new, over, known) == "warn: 1 problem; nothing has run yet"
    assert judged(known) == "ok: nothing is wrong; nothing has run yet"
    assert judged(new, one_problem("cron", "backup", severity="critical")) == "bad: 2 problems; nothing has run yet"

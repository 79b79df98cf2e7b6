"""Internal errors end to end: an unreadable entry, a failing request and a failing commit affect nothing else."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any, cast

import pytest
from servers import gateway
from servers.scripted import Server
from test_story_async_results import http_agent
from test_story_slots import OPS, agent, job
from world import QUIET, Delayed, MakeWorld, World, utc

from heartbeatd.verbs import Wake
from scheduler.engine.effects import Sender, VerbRequest
from scheduler.engine.plan_sync import adopt_plan
from scheduler.engine.tick_items import Refused, Tick, TickParts
from scheduler.model.daemon_health import TickPart
from scheduler.model.events import RunClosed
from scheduler.model.message import DeliveryResult
from scheduler.model.outcome import Kind, Trigger
from scheduler.store import entries, outbox, wakes
from scheduler.store.database import CommitUnknown, DatabaseUnavailable, Store
from scheduler.work.plan import Plan

ALARM = "ALERT: the disk is full"
HOOK = 'channels: {hook: {kind: webhook, url: "http://127.0.0.1:1/x", allow_private: true}}\n'


def counted_errors(world: World) -> dict[str, int]:
    """The internal errors that the daemon has counted, by the part of the tick."""
    return {part: count for part, count in world.engine.health.internal_errors.items() if count}


def break_stored_schedule(world: World, name: str = "measure") -> str:
    """Make the schedule of an entry in the database unreadable. Returns the right one."""
    rubbish = '{"schedule": "rubbish", "zone": "UTC", "offset": 0}'
    return store_schedule(world, name, rubbish)


def store_schedule(world: World, name: str, text: str) -> str:
    with world.store.transaction() as db:
        (before,) = db.execute("select pace from entry where name = ?", (name,)).fetchone()
        db.execute("update entry set pace = ? where name = ?", (text, name))
    return str(before)


def test_an_entry_whose_stored_schedule_is_unreadable_does_not_keep_the_daemon_from_starting(make_world: MakeWorld) -> None:
    world = make_world(agent() + job(every="10m"))
    world.run(minutes=1)
    break_stored_schedule(world)
    world.downtime(seconds=5)
    world.run(minutes=31)
    assert len(world.records("ops")) == 2


def test_a_run_with_a_broken_entry_is_abandoned_and_does_not_affect_a_run_that_ends_in_the_same_tick(
    make_world: MakeWorld,
) -> None:
    world = make_world(agent(interval="30m") + job(every="30m"))
    world.run(minutes=20)
    world.scripts["ops"] = lambda call: Delayed(QUIET, timedelta(minutes=1))
    world.scripts["measure"] = lambda call: Delayed("", timedelta(minutes=1))
    world.run(minutes=10, seconds=30)
    assert len(world.runs.inflight()) == 2
    break_stored_schedule(world)
    world.run(minutes=5)
    assert world.history("ops")[-1] == "03-02 08:30 interval ok heartbeat_ok"
    assert counted_errors(world) == {TickPart.ENTRY: 1}
    (abandoned,) = world.records("measure")
    assert abandoned["result"] == "abandoned"
    assert "could not be recorded" in abandoned["error"]


def test_a_wake_is_not_lost_with_the_run_whose_result_cannot_be_recorded(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="6h"))
    world.run(minutes=20)
    world.durations["ops"] = timedelta(minutes=1)
    world.wake("ops", "Look at the mail queue.")
    world.run(seconds=30)
    right = break_stored_schedule(world, "ops")
    world.run(minutes=5)
    store_schedule(world, "ops", right)
    world.run(minutes=90)
    assert ["Look at the mail queue." in call.stdin for call in world.calls] == [False, True, True]


def test_an_entry_that_breaks_during_its_run_does_not_stop_other_entries(make_world: MakeWorld) -> None:
    world = make_world(agent() + job(every="10m"))
    world.scripts["measure"] = lambda call: Delayed("", timedelta(minutes=1))
    world.run(minutes=10, seconds=5)
    break_stored_schedule(world)
    world.run(minutes=25)
    assert len(world.records("ops")) == 2


def test_an_entry_whose_planning_fails_does_not_stop_other_entries(make_world: MakeWorld) -> None:
    world = make_world(agent() + job(every="10m"))
    break_stored_schedule(world)
    with world.store.transaction() as db:
        db.execute("update entry set due_at = 0 where name = 'measure'")
    world.run(minutes=31)
    assert len(world.records("ops")) == 2
    entry = entries.find_entry(world.store.connection, Kind.CRON, "measure")
    assert entry is not None
    assert entry.due_at == utc("2026-03-02 09:00")


def test_an_error_text_that_is_not_valid_unicode_does_not_stop_the_daemon(
    make_world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, logger="heartbeatd")  # a test worker cannot report a text that cannot be encoded
    world = make_world(OPS)
    world.scripts["ops"] = lambda call: OSError("no such file: caf\udce9")
    world.run(minutes=1)
    assert world.history()[0].startswith("03-02 08:00 interval failed")


def test_a_late_result_that_cannot_be_given_up_is_tried_again_after_an_hour_and_ends_no_other_run(make_world: MakeWorld) -> None:
    with Server([gateway.async_answer()]) as server:
        config = http_agent(server.url, interval="1h", timeout="35m", async_timeout="105m")
        world = make_world(config, durations={"ops": timedelta(minutes=30)})
        world.run_until("2026-03-02 10:10")
        right = break_stored_schedule(world, "ops")
        world.run_until("2026-03-02 10:14:59")
        world.clock.advance(timedelta(seconds=1))
        world.settle()  # it is not tried again at once
        assert [row["state"] for row in world.records()] == ["closed", "closed", "running"]
        store_schedule(world, "ops", right)
        world.run_until("2026-03-02 11:14")
        assert world.history()[-2:] == ["03-02 10:00 interval async", "03-02 11:00 interval running"]
        world.run(minutes=2)
    assert "03-02 08:00 result failed no_result" in world.history()


def wake_and_fail(tick: Tick) -> int:
    """A request that raises an unexpected error after it has written a wake."""
    VerbRequest(Wake(), (Kind.HEARTBEAT, "ops"), Sender("odd", source=Trigger.API))(tick)
    raise ValueError("unexpected")


def test_an_unexpected_error_in_a_request_is_reported_and_rolled_back_and_the_daemon_goes_on(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    world.run(seconds=5)
    with pytest.raises(Refused, match="the daemon failed to do this; see its log") as refused:
        world.request(wake_and_fail)
    assert refused.value.code == "broken"
    assert counted_errors(world) == {TickPart.REQUEST: 1}
    assert wakes.count_waiting_by_agent(world.store.connection) == {}
    world.wake("ops", "look")
    world.run(seconds=5)
    assert world.history() == ["03-02 08:00 interval ok heartbeat_ok", "03-02 08:00 api ok heartbeat_ok"]


def adopt_and_fail(tick: Tick, plan: Plan) -> None:
    """A request that installs a plan, and then raises an unexpected error."""
    adopt_plan(tick, plan)
    raise ValueError("unexpected")


def test_after_an_unexpected_error_in_a_reload_the_daemon_goes_on_with_the_plan_that_it_had(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    world.run(minutes=1)
    world.write_config(job(every="10m"))  # without the agent
    with pytest.raises(Refused):
        world.request(partial(adopt_and_fail, plan=world.plan()))
    world.run(minutes=30)
    assert [line[:11] for line in world.history()] == ["03-02 08:00", "03-02 08:30"]


class QueriesNothing:
    """A request in which a part of a tick has an error of the database."""

    def __init__(self) -> None:
        self.parts = TickParts()

    def __call__(self, tick: Tick) -> None:
        with pytest.raises(sqlite3.OperationalError):
            self.parts.run(tick, "messages", lambda: tick.tx.db.execute("select * from nothing"), None)


def test_an_error_of_the_database_leaves_out_no_part_of_the_ticks(make_world: MakeWorld) -> None:
    world, request = make_world(OPS), QueriesNothing()
    with suppress(DatabaseUnavailable, sqlite3.Error):  # on a server it ends the transaction
        world.request(request)
    assert request.parts.problem is None


class FailingCommits:
    """A store whose transactions fail at the commit while `fails` is set."""

    def __init__(self, store: Store) -> None:
        self.fails = True
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        with self._store.transaction() as db:
            yield db
            if self.fails:
                raise DatabaseUnavailable("the disk is gone")


def test_a_tick_with_a_failed_commit_emits_no_event_and_sends_nothing(make_world: MakeWorld) -> None:
    world = make_world(agent(deliver="hook") + HOOK)
    world.scripts["ops"] = lambda call: ALARM
    world.run(minutes=29)
    before = (list(world.events), len(world.delivered), len(world.calls))
    world.engine.store = store = cast("Any", FailingCommits(world.store))
    world.run(minutes=3)
    assert (world.events, len(world.delivered), len(world.calls)) == before
    assert world.engine.health.problem == "the disk is gone"
    store.fails = False
    world.run(minutes=1)
    closed = [event.slot for event in world.events[len(before[0]) :] if isinstance(event, RunClosed)]
    assert len(closed) == len(set(closed)) > 0
    assert world.engine.health.problem is None


def test_an_unexpected_exception_of_a_run_is_logged_once_although_its_tick_is_repeated(
    make_world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world(OPS)
    world.scripts["ops"] = lambda call: Delayed(SystemError("out of cheese"), timedelta(seconds=10))
    world.run(seconds=5)
    world.engine.store = store = cast("Any", FailingCommits(world.store))
    for _ in range(3):
        world.clock.advance(timedelta(seconds=5))
        world.engine.tick(world.clock.read())
    store.fails = False
    world.run(seconds=5)
    assert world.history() == ["03-02 08:00 interval failed bad_answer"]
    assert caplog.text.count("runner_broken") == 1


class LostAnswer:
    """A store that commits one transaction without learning it. After that, the server is down until `is_down` is reset."""

    def __init__(self, store: Store) -> None:
        self.is_down = False
        self._loses_next = True
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        with self._store.transaction() as db:
            yield db
        if self._loses_next:
            self._loses_next, self.is_down = False, True
            raise CommitUnknown("the connection was lost")

    def was_committed(self, has_its_rows: Callable[[sqlite3.Connection], bool]) -> bool:
        if self.is_down:
            raise DatabaseUnavailable("the server is down")
        return has_its_rows(self._store.connection)


def test_a_run_has_its_whole_timeout_although_the_server_was_down_after_its_start_was_committed(make_world: MakeWorld) -> None:
    world = make_world(agent(timeout="1m"))
    world.scripts["ops"] = lambda call: Delayed(QUIET, timedelta(seconds=50))
    lose_a_commit(world, timedelta(minutes=10))
    world.run(minutes=1)
    assert [(row["result"], row["tries"]) for row in world.records()] == [("ok", 1)]


def test_a_clock_change_is_followed_although_the_server_was_down_when_it_happened(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    lose_a_commit(world, timedelta(seconds=20), clock_change=timedelta(hours=1))
    world.run(seconds=5)
    changes = world.store.connection.execute("select count(*) from jump").fetchone()[0]
    assert (world.engine.health.clock_changes["forward"], changes) == (1, 1)


def lose_a_commit(world: World, outage: timedelta, clock_change: timedelta = timedelta()) -> None:
    """Let a tick be committed without an answer of the server, which is then down for some time."""
    world.engine.store = store = cast("Any", LostAnswer(world.store))
    world.engine.tick(world.clock.read())
    world.clock.advance(outage)
    world.clock.now += clock_change
    world.engine.tick(world.clock.read())
    assert not world.calls
    store.is_down = False


def test_a_message_whose_result_cannot_be_stored_is_given_up_and_reported_and_the_daemon_goes_on(
    make_world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world(agent(deliver="hook") + HOOK)
    world.scripts["ops"] = lambda call: ALARM
    world.send = lambda _: DeliveryResult("retry", "no such file: caf\udce9")
    world.run(minutes=31)
    assert len(world.records("ops")) == 2
    (lost, *_) = [each.as_data() for each in outbox.list_messages(world.store.connection)]
    assert (lost["state"], lost["error"]) == ("dead", "internal error (UnicodeEncodeError); see the log of the daemon")
    notice, own = [text for _, _, text in world.delivered]
    assert own.startswith("CRITICAL daemon internal: internal error in message 1: UnicodeEncodeError")
    assert notice.startswith("CRITICAL channel hook undelivered: internal error (UnicodeEncodeError)")
    assert "A message from agent ops was given up." in notice
    assert caplog.text.count("message_broken") == 2  # the alert of each run
    assert counted_errors(world) == {TickPart.MESSAGE: 2}
    assert world.engine.health.why_not_working is None


def test_a_damaged_message_stops_the_delivery_for_some_minutes_but_no_runs(
    make_world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world(agent(interval="10m", deliver="hook") + HOOK)
    world.scripts["ops"] = lambda call: f"{ALARM} at {call.at:%H:%M}"
    world.send = lambda _: DeliveryResult("retry", "the server is down")
    world.run(seconds=10)
    (slot,) = world.store.connection.execute("select slot from outbox").fetchone()
    store_slot_of_message(world, 10**17)
    world.send = lambda _: DeliveryResult("delivered")
    world.run(minutes=21)
    assert [row["result"] for row in world.records("ops")] == ["alert"] * 3
    assert world.delivered == []
    assert world.engine.health.why_not_working == "internal error in: messages; see the log of the daemon"
    assert 4 <= caplog.text.count("part_broken") <= 5
    assert counted_errors(world) == {TickPart.MESSAGES: caplog.text.count("part_broken")}
    store_slot_of_message(world, slot)
    world.run(minutes=6)
    assert [who for _, who, _ in world.delivered] == ["ops", "heartbeatd", "ops", "ops"]
    assert world.engine.health.why_not_working is None


def test_a_part_of_the_ticks_that_is_left_out_returns_within_minutes_although_the_clock_is_set_back(
    make_world: MakeWorld,
) -> None:
    world = make_world(agent(interval="10m", deliver="hook") + HOOK)
    world.scripts["ops"] = lambda call: ALARM
    world.send = lambda _: DeliveryResult("retry", "the server is down")
    world.run(seconds=10)
    (slot,) = world.store.connection.execute("select slot from outbox").fetchone()
    store_slot_of_message(world, 10**17)
    world.send = lambda _: DeliveryResult("delivered")
    world.run(minutes=11)
    assert world.engine.health.why_not_working == "internal error in: messages; see the log of the daemon"
    store_slot_of_message(world, slot)
    world.clock.now -= timedelta(hours=5)
    world.run(minutes=6)
    assert world.engine.health.why_not_working is None
    assert world.delivered


def test_an_unreadable_due_entry_does_not_make_the_daemon_tick_all_the_time(make_world: MakeWorld) -> None:
    world = make_world(OPS)
    world.run(minutes=29)
    with world.store.transaction() as db:
        db.execute("update entry set last_slot = ?", (10**17,))
    world.clock.advance(timedelta(minutes=1))
    world.engine.tick(world.clock.read())
    assert world.engine.health.why_not_working == "internal error in: due runs; see the log of the daemon"
    assert world.engine.tick(world.clock.read()) > world.clock.now + timedelta(minutes=1)


def store_slot_of_message(world: World, slot: int) -> None:
    """Change the slot of the first message in the database. A slot far in the future cannot be read."""
    with world.store.transaction() as db:
        db.execute("update outbox set slot = ? where id = 1", (slot,))

"""What is wrong with the daemon itself is a problem: one message when it opens, one when it is over, and the same list."""

from __future__ import annotations

import json
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from patience import PATIENCE
from test_story_internal_errors import break_stored_schedule, lose_a_commit, store_schedule
from test_story_notices import message_lines
from test_story_slots import agent, job
from world import MakeWorld, World

from heartbeatd.verbs import Ack, CloseProblem
from scheduler.cli.main import main
from scheduler.engine import observed_problems
from scheduler.engine.config_reload import note_rejected_config
from scheduler.engine.effects import Sender, VerbRequest
from scheduler.engine.observed_problems import CONFIG, DAMAGE, DATABASE, INTERNAL, WORKERS
from scheduler.engine.startup import DailyCheck
from scheduler.insight.status_data import read_status
from scheduler.model.daemon_health import QueueState, WorkerState
from scheduler.model.message import DeliveryResult

CHANNELS = "\n".join(
    ["channels:", *(f'  {name}: {{kind: webhook, url: "http://127.0.0.1:9/{name}", allow_private: true}}' for name in ("a", "b"))]
)
WRONG = "config.yaml:3:15: agents.ops.heartbeat.interval: 'soon' is not a duration\nconfig.yaml:9:1: agentz: unknown key"
NO_WORKER = "no worker takes runs; start `heartbeatd worker` on a machine with this config"


def reject(world: World, problem: str = WRONG) -> None:
    world.request(partial(note_rejected_config, problem=problem, by="file watch"))
    world.settle()


def workers_are(world: World, problem: str | None) -> None:
    world.request(partial(observed_problems.note_daemon, key=WORKERS, problem=problem))
    world.settle()


def texts(world: World) -> list[tuple[str, str]]:
    """Who sent which message about the daemon."""
    return [(who, text) for _, who, text in world.delivered if " daemon " in text.splitlines()[0]]


def test_a_rejected_config_causes_one_message_and_one_when_it_is_mended(make_world: MakeWorld) -> None:
    world = make_world("timezone: Europe/Berlin\n" + agent() + CHANNELS)
    world.run(minutes=5)
    reject(world)
    reject(world, WRONG.replace("soon", "often"))
    world.run(minutes=12)
    world.reload(world.yaml)
    world.run(minutes=1)
    assert {who for who, _ in texts(world)} == {"heartbeatd"}
    assert [line for _, text in texts(world) for line in text.splitlines()] == [
        f"CRITICAL daemon config: {WRONG.splitlines()[0]} (since 2026-03-02 09:05 Europe/Berlin)   p1",
        "config.yaml:9:1: agentz: unknown key",
        "The previous config stays active.",
        "over     daemon config: after 12m   p1",
        "It was: config.yaml:3:15: agents.ops.heartbeat.interval: 'often' is not a duration",
    ]


def test_a_problem_of_the_daemon_is_reminded_of_acknowledged_and_closed_as_any_other(make_world: MakeWorld) -> None:
    world = make_world(agent() + CHANNELS)
    world.run(minutes=5)
    reject(world)
    world.run(hours=6, minutes=30)
    assert ["reminder" in text for _, text in texts(world)] == [False, True]
    number = read_status(world.store.connection, world.clock.now).problems[0].number
    world.request(VerbRequest(Ack(), int(number[1:]), Sender("Mary")))
    world.run(hours=12)
    assert len(texts(world)) == 2
    world.request(VerbRequest(CloseProblem(), int(number[1:]), Sender("Mary")))
    world.run(hours=1)
    assert (len(texts(world)), read_status(world.store.connection, world.clock.now).problems) == (2, [])
    reject(world)
    assert len(texts(world)) == 3


def test_a_problem_of_the_daemon_goes_to_another_channel_if_the_default_one_takes_no_messages(make_world: MakeWorld) -> None:
    world = make_world(
        agent(deliver="b") + CHANNELS,
        send=lambda sent: DeliveryResult("dead", "gone") if sent.channel.name == "a" else DeliveryResult("delivered"),
    )
    world.run(minutes=5)
    reject(world)
    world.run(minutes=31)
    found = {each.subject: each for each in read_status(world.store.connection, world.clock.now).problems}
    assert [(each.channel, each.delivered_at is not None) for each in found["daemon"].notices] == [("a", False), ("b", True)]
    assert any("A message from the daemon was given up." in text for _, _, text in world.delivered)


def test_the_default_channel_is_that_of_the_defaults_else_the_first(make_world: MakeWorld, tmp_path: Path) -> None:
    table = {"": "a", "deliver: b": "b", "deliver: a, problems: {deliver: b}": "b", "deliver: [log, b]": "b"}
    for number, (written, channel) in enumerate(table.items()):
        (folder := tmp_path / str(number)).mkdir()
        world = make_world(f"defaults: {{heartbeat: {{{written}}}}}\n" + agent(deliver="log") + CHANNELS, folder)
        world.run(minutes=5)
        reject(world)
        (found,) = read_status(world.store.connection, world.clock.now).problems
        assert [each.channel for each in found.notices] == [channel], written


def test_missing_workers_are_listed_at_once_and_reported_after_a_minute(make_world: MakeWorld) -> None:
    """Because workers may be restarted."""
    world = make_world(agent() + CHANNELS)
    workers_are(world, NO_WORKER)
    world.run(seconds=50)
    assert [each.text for each in read_status(world.store.connection, world.clock.now).problems] == [NO_WORKER]
    workers_are(world, None)
    world.run(minutes=5)
    assert texts(world) == []
    workers_are(world, NO_WORKER)
    world.run(minutes=1)
    world.run(minutes=1)
    workers_are(world, None)
    assert [text.splitlines()[0] for _, text in texts(world)] == [
        f"CRITICAL daemon workers: {NO_WORKER} (since 2026-03-02 08:05 UTC)   p1",
        "over     daemon workers: after 2m   p1",
    ]


def test_an_internal_error_of_a_run_is_a_problem_until_there_was_none_for_two_hours(make_world: MakeWorld) -> None:
    world = make_world(agent() + job(every="30m") + CHANNELS)
    world.run(minutes=20)
    before = break_stored_schedule(world)
    world.run(hours=3)
    assert [text.splitlines()[0] for _, text in texts(world)] == [
        "CRITICAL daemon internal: internal error in cron job measure: ScheduleError (since 2026-03-02 08:30 UTC)   p1"
    ]
    store_schedule(world, "measure", before)
    world.run(hours=4)
    assert [text.splitlines()[0][:27] for _, text in texts(world)][1:] == ["over     daemon internal: a"]


def test_an_exception_of_a_runner_is_a_problem_of_the_daemon(make_world: MakeWorld) -> None:
    def broken(_: object) -> str:
        raise KeyError("sk-secret")

    world = make_world(agent() + CHANNELS, scripts={"ops": broken})
    world.run(minutes=1)
    (found,) = (each for each in read_status(world.store.connection, world.clock.now).problems if each.subject == "daemon")
    assert (found.key, found.text) == (INTERNAL, "internal error in run 1 of agent ops: KeyError")
    assert "sk-secret" not in texts(world)[0][1]


def test_after_a_long_failure_of_the_database_one_message_says_how_long_it_lasted(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="30m") + CHANNELS)
    world.run(minutes=20)
    with world.locked_database():
        for _ in range(30):
            world.engine.tick(world.clock.read())
            world.clock.advance(timedelta(seconds=30))
    world.run(minutes=5)
    ((_, text),) = texts(world)
    assert text.splitlines()[0] == "over     daemon database: after 15m   p1"
    assert "It was: " in text and "lock" in text  # a server words it in another way


def test_a_problem_of_the_database_that_is_known_ends_once_although_it_could_not_be_written_meanwhile(
    make_world: MakeWorld,
) -> None:
    world = make_world(agent(interval="30m") + CHANNELS)
    world.run(minutes=20)
    world.settle()
    world.clock.advance(timedelta(seconds=1))  # the daemon looks at its problems once a minute
    world.request(partial(observed_problems.note_daemon, key=DATABASE, problem="the disk is full"))
    with world.locked_database():
        for _ in range(30):
            world.engine.tick(world.clock.read())
            world.clock.advance(timedelta(seconds=30))
    world.run(minutes=5)
    first, end = (text.splitlines() for _, text in texts(world))
    assert first[0].startswith("CRITICAL daemon database: the disk is full (since 2026-03-02 08:20 UTC)")
    assert (end[0].partition(":")[0], end[1]) == ("over     daemon database", "It was: the disk is full")


def test_the_end_of_a_failure_of_the_database_is_sent_again_if_the_message_was_lost(make_world: MakeWorld) -> None:
    world = make_world(
        agent(interval="30m") + CHANNELS,
        send=lambda sent: DeliveryResult("dead", "gone") if sent.channel.name == "a" else DeliveryResult("delivered"),
    )
    world.run(minutes=20)
    with world.locked_database():
        for _ in range(30):
            world.engine.tick(world.clock.read())
            world.clock.advance(timedelta(seconds=30))
    world.run(minutes=5)
    found = world.store.connection.execute(
        "select channel, state from outbox where text like 'over     daemon database:%' order by id"
    )
    assert [tuple(row) for row in found] == [("a", "dead"), ("b", "delivered")]
    world.run(hours=3)
    assert [text.splitlines()[0] for _, text in texts(world)] == ["over     daemon database: after 15m   p1"]


def test_a_long_failure_that_began_with_an_unknown_commit_is_reported_too(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="30m") + CHANNELS)
    lose_a_commit(world, timedelta(minutes=10))
    world.run(minutes=5)
    assert [text.splitlines()[0][:27] for _, text in texts(world)] == ["over     daemon database: a"]


@pytest.mark.parametrize("key", [CONFIG, DATABASE])
def test_the_end_of_a_problem_that_was_unstable_is_sent_once_it_is_calm(make_world: MakeWorld, key: str) -> None:
    world = make_world(agent(interval="30m") + CHANNELS)
    for _ in range(4):
        world.request(partial(observed_problems.note_daemon, key=key, problem="the disk is full"))
        world.run(minutes=5)
        world.request(partial(observed_problems.note_daemon, key=key, problem=None))
        world.run(minutes=20)
    sent = [text.splitlines()[0] for _, text in texts(world)]
    assert "unstable" in sent[-1]
    world.run(hours=26)
    assert [text.split(":")[0] for _, text in texts(world)][len(sent) :] == [f"over     daemon {key}"]


def test_a_short_failure_of_the_database_causes_no_message(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="30m") + CHANNELS)
    world.run(minutes=20)
    with world.locked_database():
        world.engine.tick(world.clock.read())
        world.clock.advance(timedelta(seconds=30))
    world.run(minutes=5)
    assert texts(world) == []


def test_status_problems_and_outbox_name_the_daemon(make_world: MakeWorld, capsys: pytest.CaptureFixture[str]) -> None:
    world = make_world("timezone: UTC\n" + agent() + CHANNELS, send=lambda _: DeliveryResult("retry", "busy"))
    world.run(minutes=5)
    reject(world)
    world.run(minutes=10)

    def printed(*words: str) -> str:
        assert main(["-c", str(world.config), *words]) == 0
        return capsys.readouterr().out

    assert json.loads(printed("problems", "daemon", "--format", "json"))[0]["key"] == CONFIG
    assert "critical: daemon config: config.yaml:3:15" in printed("status")
    assert "config.yaml:9:1: agentz: unknown key" in printed("status")
    assert max(map(len, printed("status").splitlines())) <= 80
    assert " daemon config since Mon 2026-03-02 08:05: config.yaml:3:15" in " ".join(printed("explain").split())
    assert " daemon " in printed("outbox")
    assert message_lines(world) == []


def test_the_advice_names_the_queues_that_need_a_worker() -> None:
    drained = WorkerState("w1", ("gpu", "default"), is_draining=True)
    for workers in ((), (drained,)):
        state = QueueState(None, workers, needed=frozenset({"gpu", "default"}))
        wanted = "start `heartbeatd worker --queue default,gpu` on a machine with this config"
        assert state.why_runs_wait == f"no worker takes runs; {wanted}"
    one = QueueState(None, (drained, WorkerState("w2", ("default",))), needed=frozenset({"gpu", "default"}))
    assert one.why_runs_wait == "no worker serves the queue gpu; start `heartbeatd worker --queue gpu`"
    assert QueueState(None, needed=frozenset({"default"})).why_runs_wait == NO_WORKER


@pytest.mark.sqlite_file("the pages of a database file are read")
def test_damage_of_the_database_is_found_within_a_day_and_is_one_message(make_world: MakeWorld) -> None:
    world = make_world(agent() + CHANNELS)
    check = DailyCheck(
        world.state, lambda problem: world.inbox.submit(partial(observed_problems.note_daemon, key=DAMAGE, problem=problem)), 0.0
    )
    sound = world.state.read_bytes()

    def messages_after(hours: float) -> list[str]:
        thread = check.begin_if_due(hours * 3600)
        assert thread is not None
        thread.join(PATIENCE)
        before = len(world.delivered)
        world.run(minutes=1)
        return [text.partition(": ")[0].strip() for _, who, text in world.delivered[before:] if who == "heartbeatd"]

    assert messages_after(1) == []
    page = world.store.connection.execute("select rootpage from sqlite_master where name = 'rejected_wake'").fetchone()[0]
    with world.state.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xff" * 4096)  # no run reads this page
    assert check.begin_if_due(24 * 3600) is None
    assert messages_after(25) == ["CRITICAL daemon damage"]
    assert messages_after(49) == []
    with world.state.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(sound[(page - 1) * 4096 : page * 4096])
    assert messages_after(73) == ["over     daemon damage"]

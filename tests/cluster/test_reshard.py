"""`heartbeatd reshard` moves agents and jobs between the databases of shards. No slot, wake or message is lost or repeated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import required_programs
from servers.postgres import PostgresServer
from test_story_shards import FLEET
from world import Delayed, World

from scheduler.channels.message import DeliveryResult
from scheduler.cli.main import main
from scheduler.config.file.lenient_reading import SHARD_VARIABLE
from scheduler.engine import shard_moves
from scheduler.model.outcome import Kind
from scheduler.model.state_address import shard_address, shard_file
from scheduler.store import shard_tables, transfer
from scheduler.store.locations import open_for_writing

ALONE = FLEET.partition("\n")[2].replace("deliver: log", "deliver: hook") + (
    'channels: {hook: {kind: webhook, url: "https://example.org/x"}}\n'
)
LAYOUTS = {0: ALONE, 2: f"shard: {{of: 2}}\n{ALONE}", 3: f"shard: {{of: 3}}\n{ALONE}", 5: f"shard: {{of: 5}}\n{ALONE}"}


class Fleet:
    """The same agents, in one daemon (0) or in several shards. Time goes on from one layout to the next."""

    def __init__(self, folder: Path, server: str | None) -> None:
        self.folder, self.server = folder, server
        self.start = "2026-03-02 08:00"
        self.send: Any = lambda _: DeliveryResult("delivered")
        self.calls: Counter[str] = Counter()

    def worlds(self, shards: int) -> list[World]:
        """The daemons of a layout, not yet stopped."""
        indexes = [None] if shards == 0 else list(range(shards))
        worlds = [
            World(self.folder, LAYOUTS[shards], self.start, server=self.server, shard=index, send=self.send) for index in indexes
        ]
        for index, world in zip(indexes, worlds, strict=True):
            if index:
                with world.store.transaction() as db:
                    transfer.reserve_ids_of_shard(db, index)
        return worlds

    def run(self, shards: int, hours: float) -> None:
        """Run all daemons of a layout for some hours, and stop them."""
        worlds = self.worlds(shards)
        for world in worlds:
            shard_moves.check_tables(world.engine.plan.settings)
            world.run(hours=hours)
            self.calls.update(call.name for call in world.calls)
        self.start = f"{worlds[0].clock.now:%Y-%m-%d %H:%M:%S}"
        for world in worlds:
            world.stop()

    def reshard(self, shards: int) -> int:
        """Change the config to another layout, and run the command."""
        self.write_config(shards)
        return main(["reshard", "-c", str(self.folder / "config.yaml")])

    def write_config(self, shards: int) -> None:
        """Change the config to another layout."""
        state = f"state: {self.server}\n" if self.server else ""
        (self.folder / "config.yaml").write_text(f"{LAYOUTS[shards]}{state}", "utf-8")

    def database(self, index: int | None) -> Path | str:
        """The database of a shard; None: the one without shards."""
        base = self.server or self.folder / "state" / "heartbeatd.db"
        if index is None:
            return base
        return shard_file(base, index) if isinstance(base, Path) else shard_address(base, index)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query in all databases."""
        found = []
        for database in shard_tables.find_databases(self.database(None)).values():
            with closing(open_for_writing(database)) as store:
                found += [tuple(row) for row in store.connection.execute(query)]
        return found


@pytest.fixture(params=["file", pytest.param("server", marks=required_programs.needs("initdb"))])
def fleet(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    monkeypatch.delenv(SHARD_VARIABLE, raising=False)
    server: PostgresServer | None = request.getfixturevalue("postgres") if request.param == "server" else None
    yield Fleet(tmp_path, server.database() if server else None)


def test_agents_move_into_more_and_fewer_shards_and_back_without_a_lost_or_repeated_slot(fleet: Fleet) -> None:
    fleet.run(0, 1)
    for shards in (2, 3, 2, 0) if fleet.server else (2, 5, 3, 0):  # each further schema takes a second
        assert fleet.reshard(shards) == 0
        fleet.run(shards, 1)
    slots = Counter(fleet.rows("select name, slot from run where trigger = 'interval' and outcome = 'ok'"))
    assert set(slots.values()) == {1}
    assert Counter(name for name, _ in slots) == {"a": 11, "b": 11, "c": 11, "d": 11}
    ids = [row[0] for row in fleet.rows("select id from run")]
    assert len(ids) == len(set(ids))
    assert Counter(fleet.rows("select kind, name from entry where state <> 'removed'")).total() == 6


def test_paused_agents_waiting_wakes_and_undelivered_messages_move_too(fleet: Fleet) -> None:
    fleet.send = lambda _: DeliveryResult("retry", "no route")
    (world,) = fleet.worlds(0)
    world.scripts["b"] = lambda call: "The disk is full."
    world.run(minutes=1)
    world.pause(("heartbeat", "c"))
    world.wake("c", "look at /srv")
    number = fleet.rows("select count(*) from outbox where name = 'b' and state = 'pending'")
    fleet.start = f"{world.clock.now:%Y-%m-%d %H:%M:%S}"
    world.stop()
    assert number == [(1,)]
    assert fleet.reshard(2) == 0
    fleet.send = lambda _: DeliveryResult("delivered")
    first, second = fleet.worlds(2)
    for each in (first, second):
        each.run(hours=2)
    assert [name for _, name, _ in second.delivered] == ["b"]
    assert "c" not in {call.name for call in first.calls}
    first.resume(("heartbeat", "c"))
    first.run(minutes=31)  # until its next slot
    assert any("look at /srv" in call.stdin for call in first.calls if call.name == "c")
    for each in (first, second):
        each.stop()


def test_the_command_can_be_repeated_after_an_interruption(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, None)
    fleet.run(0, 1)
    before = sorted(fleet.rows("select id, name, slot from run"))
    source = tmp_path / "state" / "heartbeatd.db"
    copy = source.read_bytes()
    assert fleet.reshard(2) == 0
    source.write_bytes(copy)  # the rows were copied, and not yet deleted
    assert fleet.reshard(2) == 0
    assert sorted(fleet.rows("select id, name, slot from run")) == before
    fleet.run(2, 1)


def test_new_ids_follow_those_of_rows_that_have_moved_into_one_database(fleet: Fleet) -> None:
    fleet.run(2, 1)
    assert fleet.reshard(0) == 0
    fleet.run(0, 1)
    ids = [row[0] for row in fleet.rows("select id from run")]
    assert len(ids) == len(set(ids))


def test_an_interrupted_move_leaves_no_database_with_ids_of_rows_that_have_moved(fleet: Fleet) -> None:
    fleet.run(0, 1)
    source, *targets = [open_for_writing(fleet.database(index)) for index in (None, 0, 1)]
    keys = [(Kind(kind), name) for kind, name in fleet.rows("select kind, name from entry")]
    with closing(source), closing(targets[0]), closing(targets[1]):
        transfer.reserve_ids_before_move(targets, [source])
        transfer.move_entries(source, targets[0], [key for key in keys if key[1] in ("c", "d", "wake-c")])
        transfer.move_entries(source, targets[1], [key for key in keys if key[1] in ("a", "b", "wake-a")])
    assert fleet.reshard(2) == 0  # nothing is left to move
    fleet.run(2, 1)
    ids = [row[0] for row in fleet.rows("select id from run")]
    assert len(ids) == len(set(ids))


def test_ids_are_reserved_in_databases_in_which_nothing_has_run_yet(fleet: Fleet) -> None:
    (fleet.folder / "state").mkdir(exist_ok=True)
    stores = [open_for_writing(fleet.database(index)) for index in (None, 0)]
    with closing(stores[0]), closing(stores[1]):
        transfer.reserve_ids_before_move(stores[:1], stores[1:])
    fleet.run(0, 1)
    assert min(row[0] for row in fleet.rows("select id from run")) == 1


def test_no_rows_are_moved_while_a_run_of_one_of_the_agents_is_in_progress(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = Fleet(tmp_path, None)
    fleet.run(0, 1)
    assert fleet.reshard(2) == 0
    first, second = fleet.worlds(2)
    second.scripts["b"] = lambda call: Delayed("HEARTBEAT_OK", timedelta(minutes=3))
    second.run(minutes=31)
    for each in (first, second):
        each.kill()  # a worker may still execute the run
    before = sorted(fleet.rows("select kind, name from entry where state <> 'removed'"))
    capsys.readouterr()
    assert fleet.reshard(0) == 1
    assert (
        "agent/b has a run in progress on a worker, or one that a crash has interrupted; undo the change of the config, run `heartbeatd run --drain`"
        in capsys.readouterr().err
    )
    (tmp_path / "config.yaml").write_text(LAYOUTS[2], "utf-8")
    shard_moves.check_tables(first.plan().settings)  # the daemons can start with the config as it was
    assert sorted(fleet.rows("select kind, name from entry where state <> 'removed'")) == before


def test_a_second_call_moves_nothing(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.run(0, 1)
    assert fleet.reshard(2) == 0
    assert "moved the rows of 6 entries; the daemons can be started" in capsys.readouterr().out
    assert fleet.reshard(2) == 0
    assert capsys.readouterr().out == "there is nothing to move\n"


def test_the_history_of_a_removed_agent_moves_out_of_a_shard_that_no_longer_exists(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, None)
    fleet.run(0, 1)
    assert fleet.reshard(3) == 0
    (tmp_path / "config.yaml").write_text(LAYOUTS[2].replace(", d: {}", ""), "utf-8")
    assert main(["reshard", "-c", str(tmp_path / "config.yaml")]) == 0
    (tmp_path / "state" / "heartbeatd-shard-2.db").unlink()
    assert fleet.rows("select name, outcome from run where name = 'd'") == [("d", "ok")] * 3


def test_nothing_moves_while_a_run_that_a_crash_has_interrupted_waits_for_its_daemon(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = Fleet(tmp_path, None)
    (world,) = fleet.worlds(0)
    world.scripts["b"] = lambda call: Delayed("HEARTBEAT_OK", timedelta(minutes=5))
    world.run(minutes=1)
    world.kill()
    assert fleet.reshard(2) == 1
    assert "agent/b has a run in progress on a worker, or one that a crash has interrupted" in capsys.readouterr().err
    fleet.start = f"{world.clock.now:%Y-%m-%d %H:%M:%S}"
    fleet.run(0, 1)
    assert fleet.reshard(2) == 0


def test_a_command_before_the_move_changes_nothing(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.run(2, 0.1)
    for world in (worlds := fleet.worlds(2)):
        world.pause(None)
        world.stop()
    fleet.start = f"{worlds[0].clock.now:%Y-%m-%d %H:%M:%S}"
    before = sorted(fleet.rows("select kind, name, state, paused_at from entry"))
    fleet.write_config(3)
    capsys.readouterr()
    assert main(["wake", "b", "-c", str(fleet.folder / "config.yaml")]) == 1
    assert "or stop the daemons of all shards and run `heartbeatd reshard`" in capsys.readouterr().err
    assert sorted(fleet.rows("select kind, name, state, paused_at from entry")) == before
    assert fleet.reshard(3) == 0
    calls = Counter(fleet.calls)
    fleet.run(3, 1)
    assert fleet.calls == calls


def test_rows_that_another_config_has_removed_move_if_the_new_shard_has_none(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.run(2, 1)
    removed = "update entry set state = 'removed' where name in ('a', 'b', 'c', 'd')"
    for index in (0, 1):
        with closing(open_for_writing(fleet.database(index))) as store, store.transaction() as db:
            db.execute(removed)
    capsys.readouterr()
    assert fleet.reshard(3) == 0
    assert "moved the rows of" in capsys.readouterr().out
    with closing(open_for_writing(fleet.database(2))) as store:
        moved = {row["name"] for row in store.connection.execute("select name from entry")}
    assert moved & {"a", "b", "c", "d"}

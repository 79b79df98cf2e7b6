"""`heartbeatd database migrate` copies every row to a PostgreSQL server and back, or nothing."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
import required_programs
from patience import PATIENCE
from servers.postgres import PostgresServer
from warm_start import Heartbeatd
from world import MakeWorld, World, all_rows

from scheduler.cli.main import main
from scheduler.extras.cluster.transfer import copy_all_rows
from scheduler.store.database import Store, open_read_only
from scheduler.store.locations import open_for_writing, open_read_only_any_version
from scheduler.store.migrations import migrations
from scheduler.system.state_lock import StateLock

pytestmark = required_programs.needs("initdb")

AGENTS = """
agents:
  ops:
    runner: {kind: command, argv: [agent]}
    heartbeat: {interval: 30m, checklist: "- look\\n", deliver: phone}
cron:
  check: {schedule: "*/20 * * * *", command: check, wake_heartbeat: ops}
channels: {phone: {kind: webhook, url: "http://127.0.0.1:9/"}}
"""

INSERT_RUN = "insert into run (kind, name, slot, trigger, state) values ('cron', 'x', 1, 'api', 'closed') returning id"


@pytest.fixture
def world(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> World:
    """Half a day of runs, wakes and messages in a file."""
    monkeypatch.delenv("HEARTBEATD_TEST_STORE", raising=False)
    made = make_world(AGENTS, scripts={"ops": lambda call: f"Disk full at {call.at:%H:%M}. 東京"}, server=None)
    made.run(hours=12)
    made.wake("ops", "hello")
    made.stop()
    return made


def rows_of(where: Path | str) -> dict[str, list[Any]]:
    with closing(open_read_only_any_version(where)) as db:
        return all_rows(db)


def test_all_rows_are_the_same_on_a_server_and_back_in_a_file(
    world: World, postgres: PostgresServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address, copy = postgres.database(), tmp_path / "copy" / "back.db"
    assert main(["database", "migrate", str(world.state), address]) == 0
    assert "copied" in capsys.readouterr().out
    assert main(["database", "migrate", address, str(copy)]) == 0
    before = rows_of(world.state)
    assert sum(map(len, before.values())) > 100
    assert rows_of(address) == before
    assert rows_of(copy) == before
    for where in (address, copy):
        with closing(open_for_writing(where)) as store, store.transaction() as db:
            highest = db.execute("select max(id) from run").fetchone()[0]
            assert db.execute(INSERT_RUN).fetchone()[0] == highest + 1


def test_ids_of_deleted_rows_are_not_used_again(world: World, postgres: PostgresServer, tmp_path: Path) -> None:
    with closing(Store.open(world.state)) as store, store.transaction() as db:
        used = db.execute("select max(id) from run").fetchone()[0]
        db.execute("delete from run where id > ?", (used - 5,))
    address = postgres.database()
    for source, target in ((world.state, address), (address, tmp_path / "back.db")):
        with closing(open_for_writing(target)) as store:
            copy_all_rows(source, store)
            with pytest.raises(KeyError), store.transaction() as db:
                assert db.execute(INSERT_RUN).fetchone()[0] > used
                raise KeyError


def test_a_target_with_rows_and_a_running_daemon_are_refused(
    world: World, postgres: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    address = postgres.database()
    with StateLock.take(world.state.with_name(world.state.name + ".lock"), started_at=world.clock.now, instance="a"):
        assert main(["database", "migrate", str(world.state), address]) == 1
        assert "another heartbeatd holds" in capsys.readouterr().err
    assert main(["database", "migrate", str(world.state), address]) == 0
    rows = rows_of(address)
    assert main(["database", "migrate", str(world.state), address]) == 1
    assert "the target has rows already" in capsys.readouterr().err
    assert rows_of(address) == rows
    assert main(["database", "migrate", "nowhere.db", address]) == 1
    assert main(["database", "migrate", str(world.state), "postgresql://a:secretpass@db/x"]) == 1
    assert "secretpass" not in capsys.readouterr().err


def test_a_server_without_tables_or_of_an_earlier_version_is_not_changed_and_not_copied(
    postgres: PostgresServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address, back = postgres.database(), tmp_path / "back.db"
    open_for_writing(address).close()
    postgres.query(address, f"delete from heartbeatd._migration where name = '{[*migrations.all][-1]}'")
    state = "select string_agg(nspname, ' '), (select count(*) from heartbeatd._migration) from pg_namespace"
    before = postgres.query(address, state)
    for schema, problem in (
        ("mistyped", "has no tables of heartbeatd in the schema mistyped"), ("heartbeatd", "was written by an older heartbeatd"),
    ):  # fmt: skip
        assert main(["database", "migrate", f"{address}&options=-csearch_path%3D{schema}", str(back)]) == 1
        assert problem in capsys.readouterr().err
        assert (postgres.query(address, state), back.exists()) == (before, False)


def end_within_a_copy(source: str, target: str, locked: str, mode: LiteralString) -> None:
    """Kill `heartbeatd database migrate` while it waits for the table `wake` on the server `locked`: the tables before it are copied."""
    with psycopg.connect(locked) as other, psycopg.connect(locked, autocommit=True) as watcher:
        other.execute(f"lock table heartbeatd.wake in {mode} mode")
        migrate = Heartbeatd("database", "migrate", source, target)
        waiting = "select count(*) from pg_locks where relation = 'heartbeatd.wake'::regclass and not granted"
        deadline = time.monotonic() + PATIENCE
        while watcher.execute(waiting).fetchone() != (1,):
            assert migrate.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        migrate.kill()
        migrate.wait(timeout=PATIENCE)


@pytest.mark.parametrize("to_server", [True, False], ids=["to a server", "to a file"])
def test_a_copy_that_is_killed_leaves_the_target_empty_and_the_source_unchanged(
    world: World, postgres: PostgresServer, tmp_path: Path, to_server: bool
) -> None:
    address, before, copy = postgres.database(), rows_of(world.state), tmp_path / "copy" / "back.db"
    if to_server:
        open_for_writing(address).close()
    else:
        assert main(["database", "migrate", str(world.state), address]) == 0
    source, target = (world.state, address) if to_server else (address, copy)
    end_within_a_copy(str(source), str(target), address, "share" if to_server else "access exclusive")  # a target may be read
    assert not any(rows_of(target).values())
    assert rows_of(source) == before
    postgres.query(address, "update heartbeatd._leader set until_at = '-infinity'")  # the lease ends by itself after seconds
    assert main(["database", "migrate", str(source), str(target)]) == 0
    assert rows_of(target) == before


def insert_wakes(world: World, texts: list[object]) -> None:
    """Add waiting wakes with these texts to the file; bytes are stored as a text, as another program may have done."""
    with closing(Store.open(world.state)) as store, store.transaction() as db:
        for number, each in enumerate(texts):
            db.execute(
                "insert into wake (kind, name, source, sender, token, text, created_at, updated_at, due_at, state)"
                " values ('heartbeat', 'ops', 'api', ?, '', cast(? as text), ?, 1, ?, 'waiting')",
                (f"hostile{number}", each, 2**63 - 1, -(2**63)),
            )


HOSTILE = [
    "\ufffe\U0010ffff\u202e\x1b[31m", "'; drop table heartbeatd.run; --", "$1 %s ? :name {}", "\\N\t\\.\r\n", "x" * 8_000_000,
    "e\u0301" * 1000, "",
]  # fmt: skip


def test_hostile_texts_and_the_largest_integers_are_copied_and_what_is_no_text_on_a_server_is_replaced(
    world: World, postgres: PostgresServer, tmp_path: Path
) -> None:
    """Zero bytes, a surrogate alone, as CESU-8 has it, and a byte that UTF-8 does not have."""
    insert_wakes(world, [*HOSTILE, "a\0b\0", b"\xed\xa0\x80", b"full: \xff"])
    address, copy = postgres.database(), tmp_path / "back.db"
    assert main(["database", "migrate", str(world.state), address]) == 0
    assert main(["database", "migrate", address, str(copy)]) == 0
    rows = rows_of(copy)
    assert rows == rows_of(address)
    with closing(open_read_only(copy)) as db:
        texts = [row[0] for row in db.execute("select text from wake where sender like 'hostile%' order by id")]
    assert texts == [*HOSTILE, "a\ufffdb\ufffd", "\ufffd" * 3, "full: \ufffd"]

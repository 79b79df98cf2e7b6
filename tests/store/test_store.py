"""The database file is private, checked before use, left unchanged if it is damaged, and written all or nothing."""

from __future__ import annotations

import os
import socket
import sqlite3
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from patience import PATIENCE
from world import MakeWorld

from scheduler.engine.startup import open_store
from scheduler.model.config_changes import StoredConfig
from scheduler.store import config_history, run_history
from scheduler.store.database import (
    APPLICATION_ID,
    DatabaseUnavailable,
    Store,
    StoreError,
    check_database,
    check_file,
    open_read_only,
    open_read_only_any_version,
)
from scheduler.store.migrations import FIRST_SCHEMA, migrations
from scheduler.store.transaction import Transaction, UnitOfWork, _effect_of, recall

NOW = datetime(2026, 3, 2, 8, tzinfo=UTC)
AGENT = 'agents: {ops: {runner: {kind: command, argv: [a]}, heartbeat: {interval: 30m, checklist: "- look\\n", deliver: log}}}'


@contextmanager
def opened(path: Path, **how: bool) -> Iterator[Store]:
    store = Store.open(path, **how)
    try:
        yield store
    finally:
        store.close()


def add_boot(store: Store) -> None:
    with store.transaction() as db:
        db.execute("insert into boot (instance, pid, version, tzdata, started_at, last_tick_at) values ('a', 1, '0', '0', 1, 1)")


def count_boots(path: Path) -> int:
    connection = open_read_only(path)
    try:
        return int(connection.execute("select count(*) from boot").fetchone()[0])
    finally:
        connection.close()


def test_a_commit_is_on_the_disk_before_it_is_acknowledged(tmp_path: Path) -> None:
    with opened(tmp_path / "a.db") as store:
        assert store.connection.execute("pragma synchronous").fetchone()[0] == 2
        assert store.connection.execute("pragma journal_mode").fetchone()[0] == "wal"


def test_all_files_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with opened(tmp_path / "a.db") as store:
            add_boot(store)
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert modes == {"a.db": 0o600, "a.db-wal": 0o600, "a.db-shm": 0o600}


def test_a_transaction_that_fails_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with opened(path) as store:
        with pytest.raises(KeyError), store.transaction() as db:
            db.execute(
                "insert into boot (instance, pid, version, tzdata, started_at, last_tick_at) values ('a', 1, '0', '0', 1, 1)"
            )
            raise KeyError("surprise")
        add_boot(store)
    assert count_boots(path) == 1


def test_a_locked_database_is_unavailable_but_a_wrong_statement_is_a_bug(tmp_path: Path) -> None:
    with opened(tmp_path / "a.db") as store:
        store.connection.execute("pragma busy_timeout = 1")
        other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
        other.execute("begin immediate")
        with pytest.raises(DatabaseUnavailable, match="locked"):
            add_boot(store)
        other.close()
        with pytest.raises(sqlite3.OperationalError, match="no such table"), store.transaction() as db:
            db.execute("select * from nowhere")


def test_writing_works_again_when_a_full_disk_has_room(tmp_path: Path) -> None:
    with opened(tmp_path / "a.db") as store:
        pages = store.connection.execute("pragma page_count").fetchone()[0]
        store.connection.execute(f"pragma max_page_count = {pages}")
        with pytest.raises(DatabaseUnavailable, match="full"), store.transaction() as db:
            db.execute("create table big as select zeroblob(1000000) as hole")
        store.connection.execute("pragma max_page_count = 1000000")
        add_boot(store)
    assert count_boots(tmp_path / "a.db") == 1


def test_a_database_that_was_replaced_under_the_daemon_is_not_written(tmp_path: Path) -> None:
    with opened(tmp_path / "a.db") as store:
        add_boot(store)
        (tmp_path / "a.db").rename(tmp_path / "b.db")
        with pytest.raises(DatabaseUnavailable, match="gone"):
            add_boot(store)
        (tmp_path / "a.db").write_bytes(b"")
        with pytest.raises(DatabaseUnavailable, match="replaced"):
            add_boot(store)


def damaged(path: Path) -> bytes:
    """A database with one page of rubbish in its middle."""
    with opened(path) as store:
        for _ in range(300):
            add_boot(store)
    content = bytearray(path.read_bytes())
    content[8192:12288] = b"\xff" * 4096
    return bytes(content)


@pytest.mark.parametrize("content", [b"not a database at all, but long enough to be read as one" * 100, None])
def test_a_damaged_file_is_refused_and_left_unchanged(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "a.db"
    content = damaged(path) if content is None else content
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"a\.db is damaged or not a database .* nothing was changed.*mv "):
        Store.open(path, check=True)
    assert path.read_bytes() == content


def test_every_page_is_read_before_use_unless_the_last_stop_was_clean(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with opened(path) as store:
        add_boot(store)
        page = store.connection.execute("select rootpage from sqlite_master where name = 'rejected_wake'").fetchone()[0]
    content = bytearray(path.read_bytes())
    content[(page - 1) * 4096 : page * 4096] = b"\xff" * 4096  # nothing else reads this page at a start
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"a\.db is damaged or not a database"):
        open_store(path)
    with opened(path) as store, store.transaction() as db:
        db.execute("update boot set ended_at = 1")
    open_store(path).close()


def test_an_empty_file_with_a_log_counts_as_a_lost_database(tmp_path: Path) -> None:
    (tmp_path / "a.db").touch()
    (tmp_path / "a.db-wal").write_bytes(b"x" * 100)
    with pytest.raises(StoreError, match="empty but its write-ahead log is not"):
        Store.open(tmp_path / "a.db")


def test_the_commands_for_a_damaged_database_can_be_pasted_into_a_shell(tmp_path: Path) -> None:
    folder = tmp_path / "a place"
    folder.mkdir()
    path = folder / "a.db"
    path.write_bytes(damaged(path))
    (folder / "a.db-wal").touch()
    with pytest.raises(StoreError) as refused:
        Store.open(path, check=True)
    commands = str(refused.value).partition("to its place: ")[2]
    subprocess.run(["/bin/sh", "-c", commands], timeout=PATIENCE, check=True)
    names = {each.name for each in folder.iterdir()}
    assert names >= {"a.db.damaged", "a.db.damaged-wal"}
    assert not names & {"a.db", "a.db-wal"}


def test_a_database_of_another_program_is_refused_and_left_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    other = sqlite3.connect(path)
    other.execute("create table theirs (x)")
    other.commit()
    other.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another program"):
        Store.open(path)
    assert path.read_bytes() == before


def ours() -> list[str]:
    """The migrations that this version knows, in their order."""
    return sorted(migrations.all)


def test_a_database_of_a_newer_heartbeatd_is_refused_with_both_versions(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with opened(path) as store, store.transaction() as db:
        db.execute("insert into _sqlite_migrations (migration_set, name, applied_at) values ('heartbeatd', 'm999_later', 'then')")
    with pytest.raises(StoreError, match=rf"m999_later.*{ours()[-1]}"):
        Store.open(path)


def test_a_new_database_has_all_tables_and_migrations(tmp_path: Path) -> None:
    with opened(tmp_path / "a.db") as store:
        made = {row[0] for row in store.connection.execute("select name from sqlite_master where type = 'table'")}
        assert migrations.applied(store.connection) == ours()
    assert {line.split()[2] for line in FIRST_SCHEMA.splitlines() if line.startswith("create table")} <= made


def test_a_config_is_in_force_since_it_was_first_recorded(tmp_path: Path) -> None:
    with opened(tmp_path / "a.db") as store:
        for hours, content in enumerate(("one", "one", "two", "two")):
            with store.transaction() as db:
                stored = StoredConfig(tmp_path / f"{hours}.yaml", content, "watch", (), b"")
                config_history.record_config_in_force(Transaction(db, NOW + timedelta(hours=hours), "boot"), stored)
        assert config_history.config_in_force(store.connection) == (stored, NOW + timedelta(hours=2))


def test_opening_for_reading_never_creates_a_database(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="heartbeatd run makes it"):
        open_read_only(tmp_path / "a.db")
    assert list(tmp_path.iterdir()) == []


def test_a_reader_cannot_write_and_leaves_the_log_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with opened(path) as store:
        add_boot(store)
        size = path.with_name("a.db-wal").stat().st_size
        connection = open_read_only(path)
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            connection.execute("delete from boot")
        connection.close()
        assert path.with_name("a.db-wal").stat().st_size == size


def test_a_sound_database_passes_the_check(tmp_path: Path) -> None:
    with opened(tmp_path / "a.db") as store:
        add_boot(store)
        check_database(tmp_path / "a.db")


def test_a_reader_never_sees_a_half_created_database(tmp_path: Path) -> None:
    results: set[str] = set()

    def read_until_it_is_there(path: Path) -> None:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                with closing(open_read_only(path)) as connection:
                    connection.execute("select * from entry").fetchall()
            except StoreError as error:
                results.add(str(error).removeprefix(f"{path}: "))
            else:
                return

    with ThreadPoolExecutor(2) as readers:
        for number in range(10):
            path = tmp_path / f"{number}.db"
            reading = [readers.submit(read_until_it_is_there, path) for _ in range(2)]
            Store.open(path).close()
            for each in reading:
                each.result(20)
    assert results <= {"no database yet; heartbeatd run makes it"}


def test_a_database_is_created_at_the_target_of_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (link := tmp_path / "state.db").symlink_to(tmp_path / "disk/real.db")
    Store.open(link).close()
    assert link.is_symlink()
    assert (tmp_path / "disk/real.db").stat().st_mode & 0o777 == 0o600


def folder(path: Path) -> None:
    path.mkdir()


def device(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))  # as /dev/null
    except PermissionError:
        pytest.skip("only root may make a device")


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def circle(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (folder, "is a folder, not a database"),
        (device, "is a device, not a database"),
        (os.mkfifo, "is a pipe, not a database"),
        (unix_socket, "is a socket, not a database"),
        (circle, "is a link that leads in a circle"),
    ],
)
def test_anything_but_a_regular_file_is_refused_and_left_unchanged(
    tmp_path: Path, make: Callable[[Path], None], named: str
) -> None:
    path = tmp_path / "a.db"
    make(path)
    before = path.lstat()
    for use in (Store.open, open_read_only, check_database, check_file):
        with pytest.raises(StoreError, match=named):
            use(path)
    after = path.lstat()
    assert (after.st_ino, after.st_mode, after.st_mtime_ns) == (before.st_ino, before.st_mode, before.st_mtime_ns)
    assert list(tmp_path.iterdir()) == [path]


def test_a_database_with_two_hard_links_is_not_opened(tmp_path: Path) -> None:
    Store.open(tmp_path / "a.db").close()
    (tmp_path / "b.db").hardlink_to(tmp_path / "a.db")
    for name in ("a.db", "b.db"):
        with pytest.raises(StoreError, match=rf"{name} has 2 hard links.*nothing was changed.*Remove the other names"):
            Store.open(tmp_path / name)
    (tmp_path / "b.db").unlink()
    Store.open(tmp_path / "a.db").close()


def test_a_log_without_its_database_counts_as_a_lost_database(tmp_path: Path) -> None:
    path = tmp_path / "a b.db"
    with opened(path) as store:
        add_boot(store)
        path.unlink()
        for use in (Store.open, open_read_only, check_database):
            with pytest.raises(StoreError, match=r"a b\.db is missing, but its write-ahead log exists") as refused:
                use(path)
        command = str(refused.value).rpartition(": ")[2]
    assert not path.exists()
    path.with_name("a b.db-wal").write_bytes(b"x")
    subprocess.run(command, shell=True, timeout=PATIENCE, check=True)
    with opened(path) as store:
        add_boot(store)
    assert count_boots(path) == 1
    assert path.with_name("a b.db.damaged-wal").read_bytes() == b"x"


@pytest.mark.parametrize("file", ["a.db-wal", "a.db-shm"])
def test_a_removed_log_stops_all_writing_until_a_restart_which_loses_nothing(tmp_path: Path, file: str) -> None:
    with opened(tmp_path / "a.db") as store:
        add_boot(store)
        (tmp_path / file).unlink()
        with pytest.raises(DatabaseUnavailable, match=rf"{file} was removed while the daemon ran; restart it"):
            add_boot(store)
        (tmp_path / file).touch()
        with pytest.raises(DatabaseUnavailable, match=rf"{file} was replaced while the daemon ran; restart it"):
            add_boot(store)
    with opened(tmp_path / "a.db") as store:
        add_boot(store)
    assert count_boots(tmp_path / "a.db") == 2


def test_an_older_database_can_be_read_before_the_daemon_migrates_it(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path)) as old:
        old.execute(f"pragma application_id = {APPLICATION_ID}")
        migrations.apply(old, stop_before=ours()[1])
        old.execute(
            "insert into run (kind, name, slot, trigger, state, outcome) values ('heartbeat', 'ops', 0, 'api', 'closed', 'ok')"
        )
        old.commit()
    before = path.read_bytes()
    with closing(open_read_only_any_version(path)) as db:
        row = run_history.get_run(db, 1).as_data()
    assert row is not None
    assert (row["result"], row["truncated"], row["result_due_at"]) == ("ok", False, None)
    assert path.read_bytes() == before


HOLDERS = "select holder from hold order by holder"


def read_holders(db: UnitOfWork) -> list[str]:
    return recall(db, HOLDERS, lambda rows: [row["holder"] for row in rows])


def add_hold(db: UnitOfWork | sqlite3.Connection, holder: str) -> None:
    db.execute("insert into hold (name, holder, until_at) values ('ops', ?, 1)", (holder,))


@contextmanager
def counted_queries(store: Store, query: str) -> Iterator[list[str]]:
    seen: list[str] = []
    store.connection.set_trace_callback(lambda statement: seen.append(statement) if statement == query else None)
    yield seen
    store.connection.set_trace_callback(None)


def test_what_is_rare_is_queried_once_until_a_statement_writes_its_table(tmp_path: Path) -> None:
    with opened(tmp_path / "a.db") as store, counted_queries(store, HOLDERS) as queries:
        for _ in range(3):
            with store.transaction() as db:
                assert [read_holders(db), read_holders(db)] == [[], []]
                db.execute("delete from breaker")
        assert len(queries) == 1
        with store.transaction() as db:
            add_hold(db, "gateway")
            assert read_holders(db) == ["gateway"]
        assert len(queries) == 2


def test_what_is_rare_is_queried_again_after_a_part_or_a_transaction_was_rolled_back(tmp_path: Path) -> None:
    def fail() -> None:
        add_hold(db, "part")
        assert read_holders(db) == ["part"]
        raise ValueError

    with opened(tmp_path / "a.db") as store:
        with store.transaction() as db:
            Transaction(db, NOW, "boot").run_part(fail, lambda _: None)
            assert read_holders(db) == []
        with suppress(ValueError), store.transaction() as db:
            add_hold(db, "transaction")
            assert read_holders(db) == ["transaction"]
            raise ValueError
        with store.transaction() as db:
            assert read_holders(db) == []


def test_a_transaction_sees_what_a_person_has_written_since_the_last_one(tmp_path: Path) -> None:
    with opened(tmp_path / "a.db") as store:
        with store.transaction() as db:
            assert read_holders(db) == []
        with closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as shell:
            add_hold(shell, "shell")
        with store.transaction() as db:
            assert read_holders(db) == ["shell"]
        add_hold(store.connection, "outside of any transaction")
        with store.transaction() as db:
            assert read_holders(db) == ["outside of any transaction", "shell"]


@pytest.mark.sqlite_file("answers are kept for a file only")
def test_each_query_whose_answer_is_kept_names_all_tables_that_it_reads(make_world: MakeWorld) -> None:
    def note(action: int, table: str | None, *_: object) -> int:
        if action == sqlite3.SQLITE_READ and table:
            read.add(table)
        return sqlite3.SQLITE_OK

    world = make_world(AGENT)
    world.run(minutes=70)
    with world.store.transaction() as db:
        queries = [*db.recalled]
    assert len(queries) > 5
    with closing(sqlite3.connect(world.state)) as reader:
        reader.set_authorizer(note)
        for query in queries:
            read = set[str]()
            reader.execute(query)
            assert read <= {*_effect_of(query).tables}, query

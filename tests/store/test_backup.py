"""Backup and restore, and the way from one version of the database to the next and back."""

from __future__ import annotations

import logging
import shutil
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest
from config_file import write
from daemon_process import Daemon, config, run_command
from test_previous_schema import DUMP
from world import World, utc

from scheduler.cli.main import main
from scheduler.engine.delivery import Delivery
from scheduler.model.message import DeliveryResult
from scheduler.store.database import APPLICATION_ID, Store

IN_FOLDER = "state: h.db\nagents: {ops: {runner: {kind: command, argv: [cat]}, heartbeat: {interval: 30m, deliver: log}}}\n"


def call(folder: Path, *arguments: str) -> int:
    return main(["-c", str(folder / "config.yaml"), *arguments])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a config, and a database with one waiting wake."""
    write(tmp_path, IN_FOLDER)
    assert call(tmp_path, "wake", "ops", "--text", "look here") == 0
    return tmp_path


def wakes(database: Path) -> list[str]:
    with closing(sqlite3.connect(database)) as connection:
        return [row[0] for row in connection.execute("select text from wake where state = 'waiting' order by id")]


def previous_database(path: Path) -> None:
    """A database as the previous version wrote it."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(DUMP.read_text("utf-8"))
        connection.execute(f"pragma application_id = {APPLICATION_ID}")
    path.chmod(0o600)


def test_a_restored_copy_sends_a_message_again_with_the_key_that_it_had(tmp_path: Path) -> None:
    """A receiver recognises both: that of the slot that the copy does not know, and that of a slot of another agent."""
    beat = 'runner: {kind: command, argv: [a]}, heartbeat: {interval: 30m, stagger: 0s, deliver: hook, checklist: "- look\\n"}'
    hook = 'channels: {hook: {kind: webhook, url: "http://127.0.0.1:1/x", allow_private: true}}\n'
    world = World(tmp_path, f"{hook}agents:\n  ops: {{{beat}}}\n  web: {{{beat}}}\n")
    sent: list[tuple[str, str, str]] = []

    def send(delivery: Delivery) -> DeliveryResult:
        sent.append((delivery.message.name, delivery.message.key, delivery.message.text))
        return DeliveryResult("delivered")

    world.run(minutes=10)
    world.stop()
    copy = shutil.copy(world.state, tmp_path / "copy.db")
    world.scripts |= {name: lambda call: f"ALERT: the disk of {call.name} is full" for name in ("ops", "web")}
    world.send = send
    for _ in range(2):
        world.boot()
        world.run_until("2026-03-02 08:30:30")
        world.stop()
        shutil.copy(copy, world.state)
        world.clock.now = utc("2026-03-02 08:10")
    assert sent[2:] == sent[:2]
    assert len(set(sent)) == 2


@pytest.mark.process
def test_a_backup_of_a_running_daemon_is_restored_with_the_documented_commands(tmp_path: Path) -> None:
    it = Daemon(tmp_path, config(interval="none") + "limits: {wake_gap: 0s}\n")
    assert it.run_command("wake", "ops", "--text", "look", "--wait").returncode == 0
    saved = it.run_command("database", "backup", "copy.db")
    assert (saved.returncode, saved.stderr) == (0, "")
    assert stat.S_IMODE((tmp_path / "copy.db").stat().st_mode) == 0o600
    before = [run["id"] for run in it.runs()]
    assert it.run_command("wake", "ops", "--text", "after the backup", "--wait").returncode == 0
    assert len(it.runs()) > len(before)
    it.stop()
    for name in ("h.db", "h.db-wal"):
        (tmp_path / "state" / name).rename(tmp_path / f"old-{name}") if (tmp_path / "state" / name).exists() else None
    shutil.copy(tmp_path / "copy.db", tmp_path / "state/h.db")
    it.start()
    assert [run["id"] for run in it.runs()] == before
    assert it.run_command("wake", "ops", "--text", "again", "--wait").returncode == 0
    it.stop()


def test_a_backup_contains_what_is_still_in_the_write_ahead_log(folder: Path) -> None:
    with closing(Store.open(folder / "h.db")) as store:  # an open connection keeps the log
        assert call(folder, "wake", "ops", "--text", "too") in {0, 1}
        with store.transaction() as db:
            db.execute("update wake set text = 'in the log'")
        assert (folder / "h.db-wal").stat().st_size > 0
        assert call(folder, "database", "backup", str(folder / "copy.db")) == 0
    assert set(wakes(folder / "copy.db")) == {"in the log"}


def test_an_existing_file_is_never_replaced(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "copy.db").write_text("precious")
    assert call(folder, "database", "backup", str(folder / "copy.db")) == 1
    assert capsys.readouterr().err == f"heartbeatd: {folder}/copy.db exists; name a new file\n"
    assert (folder / "copy.db").read_text() == "precious"


def test_a_backup_that_fails_leaves_no_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(folder, "database", "backup", str(folder / "nowhere" / "copy.db")) == 1
    assert "nowhere" in capsys.readouterr().err
    (folder / "h.db").write_bytes(b"x" * 10_000)
    assert call(folder, "database", "backup", str(folder / "copy.db")) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert list(folder.glob("copy*")) == []


def test_without_a_database_there_is_nothing_to_copy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, IN_FOLDER)
    assert call(tmp_path, "database", "backup", str(tmp_path / "copy.db")) == 1
    assert "no database yet" in capsys.readouterr().err


def test_an_upgrade_keeps_a_copy_for_the_way_back_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The copy is what the documented downgrade puts back."""
    previous_database(tmp_path / "h.db")
    caplog.set_level(logging.INFO)
    expected = wakes(tmp_path / "h.db")
    with closing(sqlite3.connect(tmp_path / "h.db")) as connection:
        schema = connection.execute("select sql from sqlite_master order by name").fetchall()
    Store.open(tmp_path / "h.db").close()
    copy = tmp_path / "h.db.before-migration"
    (record,) = caplog.records
    assert (record.message, record.fields["database"], record.fields["copy"]) == ("migrated", tmp_path / "h.db", copy)
    assert record.fields["migrations"].startswith("m0")
    Store.open(tmp_path / "h.db").close()
    Store.open(tmp_path / "new.db").close()
    assert len(caplog.records) == 1  # a new database is not migrated
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("select sql from sqlite_master order by name").fetchall() == schema
    assert wakes(copy) == expected
    assert expected


def test_a_database_of_a_newer_version_is_refused_with_one_line_and_kept(folder: Path) -> None:
    """Every command of this version refuses a migration that it does not know. The previous version has the same code."""
    with closing(sqlite3.connect(folder / "h.db")) as connection, connection:
        columns = [row[1] for row in connection.execute("pragma table_info(_sqlite_migrations)")]
        assert {"migration_set", "name"} <= set(columns)
        connection.execute(
            "insert into _sqlite_migrations (migration_set, name, applied_at) values ('heartbeatd', 'm999_later', '2027-01-01')"
        )
    content = (folder / "h.db").read_bytes()
    for command in ("status", "run --once", "database backup copy.db"):
        ended = run_command(folder / "config.yaml", *command.split())
        assert ended.returncode == 1
        (line,) = ended.stderr.splitlines()
        assert f"{folder}/h.db was written by a newer heartbeatd (schema m999_later, this version supports m0" in line
        assert "upgrade heartbeatd, or restore" in line
    assert (folder / "h.db").read_bytes() == content

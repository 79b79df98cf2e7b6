"""Tests of the disk reserve: its size and mode, its release, and what is logged about it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from scheduler.store import disk_reserve
from scheduler.store.disk_reserve import MIB, DiskReserve


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records]


def test_the_reserve_occupies_its_space_and_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        assert DiskReserve(tmp_path / "h.db").create_if_missing()
    finally:
        os.umask(before)
    found = (tmp_path / "h.db.reserve").stat()
    assert (stat.S_IMODE(found.st_mode), found.st_size) == (0o600, MIB)
    assert found.st_blocks * 512 >= MIB
    assert disk_reserve.reserved_bytes(tmp_path / "h.db") == MIB


def test_an_incomplete_reserve_is_completed(tmp_path: Path) -> None:
    (tmp_path / "h.db.reserve").write_bytes(b"0" * 10)
    assert DiskReserve(tmp_path / "h.db").create_if_missing()
    assert disk_reserve.reserved_bytes(tmp_path / "h.db") == MIB


def test_the_reserve_is_released_once_and_no_other_file_is_touched(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "h.db").write_text("rows")
    (tmp_path / "copy.db").write_text("a backup")
    reserve = DiskReserve(tmp_path / "h.db")
    reserve.create_if_missing()
    assert [reserve.release_room(), reserve.release_room()] == [True, False]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy.db", "h.db"]
    assert logged(caplog) == ["reserve_given_up"]


def test_a_missing_reserve_and_its_return_are_each_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    (in_the_way := tmp_path / "h.db.reserve").mkdir()
    reserve = DiskReserve(tmp_path / "h.db")
    assert [reserve.create_if_missing(), reserve.create_if_missing()] == [False, False]
    assert not reserve.release_room()
    assert logged(caplog) == ["reserve_missing"]
    assert "cannot make" in caplog.records[0].fields["problem"]  # type: ignore[attr-defined]
    in_the_way.rmdir()
    assert [reserve.create_if_missing(), reserve.create_if_missing()] == [True, True]
    assert logged(caplog) == ["reserve_missing", "reserve_made"]


def test_the_reserve_is_beside_the_target_of_a_link_to_the_database(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (link := tmp_path / "h.db").symlink_to(tmp_path / "disk" / "real.db")
    DiskReserve(link).create_if_missing()
    assert (tmp_path / "disk" / "real.db.reserve").exists()


def test_with_enough_space_the_reserve_is_kept(tmp_path: Path) -> None:
    reserve = DiskReserve(tmp_path / "h.db")
    reserve.create_if_missing()
    reserve.release_if_short()
    assert disk_reserve.reserved_bytes(tmp_path / "h.db") == MIB


def test_with_enough_space_no_shortage_is_reported(tmp_path: Path) -> None:
    assert disk_reserve.shortage_message(tmp_path / "h.db.reserve") is None

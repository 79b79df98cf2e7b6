"""The reserve: a file that takes real room, is nobody else's business, and is told of once."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from scheduler.store import disk_reserve
from scheduler.store.disk_reserve import MIB, DiskReserve


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records]


def test_it_takes_its_room_and_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        assert DiskReserve(tmp_path / "h.db").create_if_missing()
    finally:
        os.umask(before)
    found = (tmp_path / "h.db.reserve").stat()
    assert (stat.S_IMODE(found.st_mode), found.st_size) == (0o600, MIB)
    assert found.st_blocks * 512 >= MIB
    assert disk_reserve.reserved_bytes(tmp_path / "h.db") == MIB


def test_one_that_was_left_half_made_is_made_whole(tmp_path: Path) -> None:
    (tmp_path / "h.db.reserve").write_bytes(b"0" * 10)
    assert DiskReserve(tmp_path / "h.db").create_if_missing()
    assert disk_reserve.reserved_bytes(tmp_path / "h.db") == MIB


def test_it_is_given_up_once_and_nothing_beside_it_is_touched(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "h.db").write_text("rows")
    (tmp_path / "copy.db").write_text("a backup")
    kept = DiskReserve(tmp_path / "h.db")
    kept.create_if_missing()
    assert [kept.release_room(), kept.release_room()] == [True, False]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy.db", "h.db"]
    assert told(caplog) == ["reserve_given_up"]


def test_what_cannot_be_made_is_told_once_and_so_is_that_it_is_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    (in_the_way := tmp_path / "h.db.reserve").mkdir()
    kept = DiskReserve(tmp_path / "h.db")
    assert [kept.create_if_missing(), kept.create_if_missing()] == [False, False]
    assert not kept.release_room()
    assert told(caplog) == ["reserve_missing"]
    assert "cannot make" in caplog.records[0].fields["problem"]  # type: ignore[attr-defined]
    in_the_way.rmdir()
    assert [kept.create_if_missing(), kept.create_if_missing()] == [True, True]
    assert told(caplog) == ["reserve_missing", "reserve_made"]


def test_it_lies_on_the_disk_to_which_a_link_to_the_database_leads(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (link := tmp_path / "h.db").symlink_to(tmp_path / "disk" / "real.db")
    DiskReserve(link).create_if_missing()
    assert (tmp_path / "disk" / "real.db.reserve").exists()


def test_a_database_that_can_be_opened_as_it_is_keeps_its_reserve(tmp_path: Path) -> None:
    kept = DiskReserve(tmp_path / "h.db")
    kept.create_if_missing()
    kept.release_if_short()
    assert disk_reserve.reserved_bytes(tmp_path / "h.db") == MIB


def test_nothing_is_amiss_where_there_is_room(tmp_path: Path) -> None:
    assert disk_reserve.shortage_message(tmp_path / "h.db") is None

"""Tests the lock of the database and the state folder: one daemon per database, and a private folder."""

import asyncio
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from scheduler.system.process import Children
from scheduler.system.state_lock import (
    MAX_REFUSED,
    AlreadyRunning,
    LockOwner,
    RefusedStart,
    StateFolderError,
    StateLock,
    make_state_folder,
    network_filesystem,
    read_lock_owner,
    read_refused_starts,
    record_refused_start,
)

START = datetime(2026, 11, 20, 16, 30, tzinfo=UTC)

OTHER = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from scheduler.system.state_lock import StateLock
lock = StateLock.take(Path(sys.argv[1]), started_at=datetime(2026, 11, 20, 16, 30, tzinfo=UTC), instance="other")
print("taken", flush=True)
sys.stdin.read()
"""


def take(path: Path, instance: str = "ours") -> StateLock:
    return StateLock.take(path, started_at=START, instance=instance)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "heartbeatd.db.lock"


@pytest.fixture
def other(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock."""
    with subprocess.Popen([sys.executable, "-c", OTHER, path], stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "taken\n"
        yield process
        process.kill()


@pytest.fixture
def nobody() -> Iterator[None]:
    """The rights of an ordinary user, even if root runs the tests."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    yield
    os.seteuid(0)


@pytest.fixture
def careless() -> Iterator[None]:
    old = os.umask(0)
    yield
    os.umask(old)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_second_daemon_reports_which_process_holds_the_lock(path: Path, other: subprocess.Popen[str]) -> None:
    with pytest.raises(AlreadyRunning) as refused:
        take(path)
    assert (refused.value.pid, refused.value.started_at) == (other.pid, START)
    assert str(refused.value) == f"another heartbeatd holds {path}: pid {other.pid}, running since 2026-11-20 16:30:00 UTC"


def test_a_second_daemon_does_not_overwrite_the_name_of_the_holder(path: Path, other: subprocess.Popen[str]) -> None:
    with pytest.raises(AlreadyRunning):
        take(path)
    assert read_lock_owner(path) == LockOwner(other.pid, START, "other")


def test_the_lock_of_a_killed_daemon_is_free_at_once(path: Path, other: subprocess.Popen[str]) -> None:
    other.kill()
    other.wait(20)
    with take(path):
        assert read_lock_owner(path) == LockOwner(os.getpid(), START, "ours")


def test_a_suspended_daemon_keeps_its_lock(path: Path, other: subprocess.Popen[str]) -> None:
    other.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, other.pid, os.WSTOPPED)
    with pytest.raises(AlreadyRunning):
        take(path)


def test_a_released_lock_can_be_taken_again(path: Path) -> None:
    take(path, "a much longer name than the next one has").release()
    with take(path, "b"):
        assert read_lock_owner(path) == LockOwner(os.getpid(), START, "b")


def test_releasing_twice_does_nothing(path: Path) -> None:
    lock = take(path)
    lock.release()
    lock.release()
    assert path.exists()


def test_a_program_that_outlives_the_daemon_does_not_keep_the_lock(path: Path, tmp_path: Path) -> None:
    with take(path):
        left = asyncio.run(Children("life/1").start(["sh", "-c", "sleep 300 & echo $!"], stdin=b"", env={}, cwd=tmp_path))
    take(path, "next").release()
    os.kill(int(left.output), signal.SIGKILL)


@pytest.mark.parametrize("text", ["", "{", "[]", "pid 12", '{"pid": "x"}'])
def test_with_an_unreadable_lock_file_the_holder_is_unknown_but_the_lock_is_held(
    path: Path, other: subprocess.Popen[str], text: str
) -> None:
    path.write_text(text)
    with pytest.raises(AlreadyRunning) as refused:
        take(path)
    assert (refused.value.pid, str(refused.value)) == (None, f"another heartbeatd holds {path}")


def test_only_its_owner_can_read_the_lock_file(path: Path, careless: None) -> None:
    take(path).release()
    assert mode(path) == 0o600


def test_a_link_in_place_of_the_lock_file_is_not_followed(path: Path, tmp_path: Path) -> None:
    path.symlink_to(tmp_path / "precious")
    with pytest.raises(StateFolderError):
        take(path)
    assert not (tmp_path / "precious").exists()


def test_only_its_owner_can_enter_a_new_state_folder(tmp_path: Path, careless: None) -> None:
    assert make_state_folder(tmp_path / "deep" / "state")
    assert mode(tmp_path / "deep" / "state") == 0o700


def test_an_empty_state_folder_is_made_private(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    folder.chmod(0o777)
    assert make_state_folder(folder)
    assert mode(folder) == 0o700


def test_a_folder_with_files_keeps_its_mode_which_is_logged(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "config.yaml").touch()
    assert not make_state_folder(tmp_path)
    assert mode(tmp_path) == 0o755


def test_a_read_only_folder_gives_an_error_with_advice(nobody: None) -> None:
    with pytest.raises(StateFolderError) as refused:
        make_state_folder(Path("/usr"))
    assert str(refused.value) == (
        f"cannot write /usr as user id {os.geteuid()}: Permission denied; /usr belongs to user id 0, "
        f"mode {mode(Path('/usr')):04o}: chown it to user id {os.geteuid()}, or set `state:` to a path that can be written"
    )


def test_a_state_folder_below_a_file_gives_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        StateFolderError, match=r"cannot write .*/file/state as user id \d+: Not a directory; .*/file belongs .*: set `state:`"
    ):
        make_state_folder(tmp_path / "file" / "state")


def test_a_lock_file_that_cannot_be_created_gives_an_error() -> None:
    with pytest.raises(
        StateFolderError, match=r"cannot write /proc/heartbeatd.db.lock as user id \d+: .*; /proc belongs to user id"
    ):
        take(Path("/proc/heartbeatd.db.lock"))


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("/srv/db", None),
        ("/mnt/nfs/state/db", "nfs4"),
        ("/mnt/nfs/local/db", None),
        ("/mnt/nfsx/db", None),
        ("/mnt/late/local/db", None),
        ("/mnt/with space/db", "cifs"),
        ("/mnt/twice/db", "9p"),
        ("/mnt/ssh/db", "fuse.sshfs"),
    ],
)
def test_a_network_file_system_is_recognised(tmp_path: Path, place: str, kind: str | None) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/sda1 / ext4 rw 0 0\n"
        "host:/x /mnt/nfs nfs4 rw 0 0\n"
        "/dev/sdb1 /mnt/nfs/local xfs rw 0 0\n"
        "/dev/sdd1 /mnt/late/local xfs rw 0 0\n"
        "host:/y /mnt/late nfs4 rw 0 0\n"
        "//host/x /mnt/with\\040space cifs rw 0 0\n"
        "/dev/sdc1 /mnt/twice ext4 rw 0 0\n"
        "share /mnt/twice 9p rw 0 0\n"
        "me@host: /mnt/ssh fuse.sshfs rw 0 0\n"
    )
    assert network_filesystem(Path(place), mounts) == kind


def test_without_a_list_of_mounts_no_file_system_is_recognised(tmp_path: Path) -> None:
    assert network_filesystem(tmp_path, tmp_path / "none") is None


def test_of_many_starts_that_were_rejected_the_latest_are_kept(path: Path) -> None:
    for pid in range(MAX_REFUSED + 2):
        record_refused_start(path, RefusedStart(START, pid, "config.yaml"))
    assert [each.pid for each in read_refused_starts(path)] == [*range(2, MAX_REFUSED + 2)]

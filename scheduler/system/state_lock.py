"""Locks the database for one daemon, and checks the state folder: its permissions and its file system."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import NoReturn, Self

from scheduler.model.expected_error import ExpectedError
from scheduler.system.files import MAY_ANYTHING, create_lock_file, others_may, try_lock, write_private_file

# On these file systems SQLite's locks or its shared memory do not work. The names are those in /proc/mounts.
NETWORK_FILESYSTEMS = frozenset(
    {"9p", "afs", "ceph", "cifs", "coda", "davfs", "glusterfs", "lustre", "ncpfs", "nfs", "nfs4", "smb3", "smbfs"}
)
NETWORK_FUSE_FILESYSTEMS = frozenset({"fuse.davfs", "fuse.gcsfuse", "fuse.glusterfs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs"})

DISK_FULL_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True, slots=True)
class LockOwner:
    """The process that holds the lock: its ID, when it started (UTC), and the name of this boot. All are None until it has
    written them.

    `is_command`: it is a command that writes while no daemon runs, and releases the lock soon.
    """

    pid: int | None = None
    started_at: datetime | None = None
    instance: str | None = None
    is_command: bool = False


class AlreadyRunning(ExpectedError):
    """Another daemon holds the lock. `pid` and `started_at` are None in the moment before it has written them."""

    def __init__(self, path: Path, holder: LockOwner | None) -> None:
        self.path = path
        self.pid = holder.pid if holder else None
        self.started_at = holder.started_at if holder else None
        self.is_command = holder is not None and holder.is_command
        since = f": pid {holder.pid}, running since {holder.started_at:%Y-%m-%d %H:%M:%S} UTC" if holder else ""
        super().__init__(f"another heartbeatd holds {path}{since}")


class StateFolderError(ExpectedError):
    """The state folder cannot be used. The text names the path, the user ID, the mode and what to do."""


class StateLock:
    """The lock of one running daemon. It is held until `release`, or until the process has ended in any way.

    It is an flock, so neither a reused pid nor a stopped process is mistaken for its holder. Children do not inherit it, since
    they may outlive the daemon.
    """

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd

    @classmethod
    def take(cls, path: Path, *, started_at: datetime, instance: str, is_command: bool = False) -> Self:
        """Take the lock at once. `path` is `<database>.lock`.

        AlreadyRunning if another process holds it, StateFolderError if the file cannot be created.
        """
        try:
            fd = create_lock_file(path)
        except OSError as error:
            raise_state_folder_error(path, error)
        if not try_lock(fd):
            os.close(fd)
            raise AlreadyRunning(path, read_lock_owner(path))
        try:
            _write_owner(fd, LockOwner(os.getpid(), started_at, instance, is_command))
        except OSError as error:
            os.close(fd)
            raise_state_folder_error(path, error)
        return cls(path, fd)

    def release(self) -> None:
        """Release the lock. A second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


MAX_REFUSED = 20  # refused starts that are kept


@dataclass(frozen=True, slots=True)
class RefusedStart:
    """A daemon that did not start: when, its ID, and its config file.

    `problem` is the first error of its config. It is None if another daemon held the lock.
    """

    at: datetime
    pid: int
    config: str
    problem: str | None = None


def record_refused_start(path: Path, refused: RefusedStart) -> None:
    """Add a rejected start to the file next to the lock at `path`. Only the latest ones are kept. Errors are ignored."""
    kept = [*read_refused_starts(path)[1 - MAX_REFUSED :], refused]
    data = [{"at": each.at.isoformat(), "pid": each.pid, "config": each.config, "problem": each.problem} for each in kept]
    with suppress(OSError):
        write_private_file(_refused_file(path), json.dumps(data).encode())


def read_refused_starts(path: Path) -> list[RefusedStart]:
    """The rejected starts in the file next to the lock at `path`, the oldest first; none if the file is damaged."""
    try:
        data = json.loads(_refused_file(path).read_text("utf-8"))
        return [
            RefusedStart(datetime.fromisoformat(each["at"]), int(each["pid"]), str(each["config"]), each.get("problem"))
            for each in data
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def _refused_file(path: Path) -> Path:
    return path.with_name(path.name.removesuffix(".lock") + ".refused")


def read_lock_owner(path: Path) -> LockOwner | None:
    """The process that wrote the lock file last, whether or not it still holds the lock; None if the file is not readable."""
    try:
        holder = json.loads(path.read_text("utf-8"))
        started_at, is_command = datetime.fromisoformat(holder["started_at"]), bool(holder.get("is_command"))
        return LockOwner(int(holder["pid"]), started_at, str(holder["instance"]), is_command)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def make_state_folder(path: Path) -> bool:
    """Create the state folder, with mode 0700 whatever the umask; True if only its owner can enter it.

    An empty existing folder gets this mode as well. A folder with files keeps its mode, since other programs may use it. Raises
    StateFolderError.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not any(path.iterdir()):
            path.chmod(0o700)
        with TemporaryFile(dir=path):  # the only reliable test that files can be created there
            return not others_may(path.stat(), MAY_ANYTHING)
    except OSError as error:
        raise_state_folder_error(path, error)


def network_filesystem(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str | None:
    """The network file system that `path` is on (nfs4, cifs, 9p, fuse.sshfs...), None if it is not on a known one."""
    try:
        lines = mounts.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return None
    kind, longest = None, -1
    for point, name in (_parse_mount(line) for line in lines):
        if len(point.parts) >= longest and path.resolve().is_relative_to(point):
            kind, longest = name, len(point.parts)
    return kind if kind in NETWORK_FILESYSTEMS | NETWORK_FUSE_FILESYSTEMS else None


def _parse_mount(line: str) -> tuple[Path, str]:
    _, point, kind, *_ = line.split(" ")
    return Path(re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), point)), kind


def _write_owner(fd: int, who: LockOwner) -> None:
    text = json.dumps(asdict(who), default=datetime.isoformat) + "\n"
    os.ftruncate(fd, 0)
    os.pwrite(fd, text.encode(), 0)


def raise_state_folder_error(path: Path, error: OSError) -> NoReturn:
    """Raise StateFolderError with more than the kernel says: our user, the owner of the folder, and what to do."""
    if error.errno in DISK_FULL_ERRORS:
        raise StateFolderError(
            f"cannot write {path}: {error.strerror}; free some space on its disk, or set `state:` to a path on another disk"
        ) from None
    near = next(place for place in (path, *path.absolute().parents) if os.path.lexists(place))
    found = near.lstat()
    owner = f"chown it to user id {os.geteuid()}, or " if isinstance(error, PermissionError) else ""
    raise StateFolderError(
        f"cannot write {path} as user id {os.geteuid()}: {error.strerror}; {near} belongs to user id {found.st_uid}, mode "
        f"{stat.S_IMODE(found.st_mode):04o}: {owner}set `state:` to a path that can be written"
    ) from None

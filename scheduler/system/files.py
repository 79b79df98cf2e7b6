"""Opens, reads, replaces and locks files safely, and checks who else may read or write them."""

from __future__ import annotations

import errno
import fcntl
import grp
import os
import pwd
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from heartbeatd.state_folder import MAX_CONFIG_SIZE, open_regular, read_up_to

MAY_READ, MAY_WRITE, MAY_ENTER = stat.S_IROTH, stat.S_IWOTH, stat.S_IXOTH
MAY_ANYTHING = stat.S_IRWXO


class FileChanged(Exception):
    """Another program has written the file in the meantime; nothing was changed."""


def read_file(path: Path) -> bytes:
    """The content of a file. OSError if it is not a regular file, or too large for a config."""
    with open_regular(path) as file:
        found = read_up_to(file, MAX_CONFIG_SIZE + 1)
    if len(found) > MAX_CONFIG_SIZE:
        raise OSError(f"larger than {MAX_CONFIG_SIZE // 1024**2} MiB")
    return found


def replace_file(path: Path, before: bytes, after: bytes) -> None:
    """Replace the content `before` by `after` atomically, keeping mode and owner. If `path` is a link, its target is replaced.

    Raises FileChanged if the file does not hold `before` any more, or OSError; then the file is unchanged.
    """
    real = path.resolve(strict=True)
    with _atomic_replacement(real) as file:
        _copy_owner_and_mode(file, real.stat())
        file.write(after)
        file.flush()
        os.fsync(file.fileno())
        if read_file(real) != before:
            raise FileChanged(f"{path} was changed in the meantime; nothing was written, try again")
    sync_to_disk(real.parent)


def write_private_file(path: Path, content: bytes) -> None:
    """Write a file atomically, with mode 0600 whatever the umask. OSError if that fails; then the file is unchanged."""
    with _atomic_replacement(path) as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(content)


def write_output_file(path: Path, content: bytes) -> None:
    """Write a file atomically for other programs. If `path` is a link, its target is replaced.

    A file that exists keeps its mode and owner. A new one gets the mode that the umask allows. Raises OSError, also if the file
    is not a regular file; then it is unchanged.
    """
    real = path.resolve()
    old = real.stat() if real.exists() else None
    if old is not None and not stat.S_ISREG(old.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    with _atomic_replacement(real) as file:
        if old is not None:
            _copy_owner_and_mode(file, old)
        else:
            os.umask(mask := os.umask(0o077))  # the umask can only be read by setting it
            os.fchmod(file.fileno(), 0o666 & ~mask)
        file.write(content)


@contextmanager
def _atomic_replacement(path: Path) -> Iterator[BinaryIO]:
    """A new file, mode 0600, that takes the place of `path` at the end of the context. After an exception it is removed."""
    draft = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(draft, flags, 0o600), "wb") as file:
            yield file
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _copy_owner_and_mode(file: BinaryIO, like: os.stat_result) -> None:
    made = os.fstat(file.fileno())
    if (made.st_uid, made.st_gid) != (like.st_uid, like.st_gid):
        os.fchown(file.fileno(), like.st_uid, like.st_gid)
    os.fchmod(file.fileno(), stat.S_IMODE(like.st_mode))


def sync_to_disk(path: Path) -> None:
    """Make the content of a file, or the new names in a folder, survive a loss of power."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def everybody_may(found: os.stat_result, what: int) -> bool:
    """Whether the mode gives everybody one of `what`: MAY_READ, MAY_WRITE, MAY_ENTER, or MAY_ANYTHING for any of them."""
    return bool(found.st_mode & what)


def others_may(
    found: os.stat_result,
    what: int,
    find_group: Callable[[int], grp.struct_group] = grp.getgrgid,
    list_users: Callable[[], Iterable[pwd.struct_passwd]] = pwd.getpwall,
) -> bool:
    """Whether the mode gives one of `what` (as in `everybody_may`) to a user who is neither the owner nor root.

    Most Linux systems create a private group for each user, together with umask 002. Such a group is the user alone. The rule
    is that of Debian's sshd for `authorized_keys`: it has no other member, and no other user has it as login group.
    """
    if everybody_may(found, what):
        return True
    if not found.st_mode & what << 3:
        return False
    try:
        named = find_group(found.st_gid).gr_mem
    except KeyError:
        return True  # the members of a group without an entry are unknown
    users = list(list_users())
    members = {user.pw_uid for user in users if user.pw_gid == found.st_gid or user.pw_name in named}
    unknown = set(named) - {user.pw_name for user in users}
    return bool(unknown) or not members or not members <= {found.st_uid, 0}


# Lock files, locked with flock. A lock belongs to the opened file: threads that share a descriptor share its lock, and a process
# that inherits the descriptor keeps the lock. A lock is released by closing every copy of the descriptor. Lock files are never
# deleted: after that, two processes could hold locks on two files of the same name.
_LOCK_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


def open_lock_file(path: Path | str) -> int:
    """The descriptor of an existing lock file."""
    return os.open(path, _LOCK_FLAGS)


def create_lock_file(path: Path | str) -> int:
    """The descriptor of a lock file, which is created if it is missing; mode 0600 whatever the umask."""
    fd = os.open(path, _LOCK_FLAGS | os.O_CREAT, 0o600)
    os.fchmod(fd, 0o600)
    return fd


def try_lock(fd: int) -> bool:
    """Lock a file at once; False if another process holds the lock."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait_for_lock(fd: int) -> None:
    """Wait until no other process holds the lock of a file, and lock it."""
    fcntl.flock(fd, fcntl.LOCK_EX)

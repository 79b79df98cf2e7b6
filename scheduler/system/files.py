"""Opens, reads and replaces files safely, and says who else may read or write them."""

from __future__ import annotations

import grp
import os
import pwd
import secrets
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO

MAY_READ, MAY_WRITE, MAY_ENTER = stat.S_IROTH, stat.S_IWOTH, stat.S_IXOTH
MAY_ANYTHING = stat.S_IRWXO

MAX_CONFIG_SIZE = 64 * 1024 * 1024  # bytes of a config; 100,000 agents are about 30 MB
READ_SIZE = 1024 * 1024


class FileChanged(Exception):
    """Somebody else has written the file; nothing was changed."""


def read_file(path: Path) -> bytes:
    """What the file holds. OSError for what is no regular file, or too large for a config."""
    with open_regular(path) as file:
        found = read_up_to(file, MAX_CONFIG_SIZE + 1)
    if len(found) > MAX_CONFIG_SIZE:
        raise OSError(f"larger than {MAX_CONFIG_SIZE // 1024**2} MiB")
    return found


def replace_file(path: Path, before: bytes, after: bytes) -> None:
    """Put `after` where `before` is, keeping mode and owner; a link stays, and what it leads to is replaced.

    Raises Changed, or OSError; the file is then as it was.
    """
    real = path.resolve(strict=True)
    draft = real.with_name(f".{real.name}.{secrets.token_hex(4)}")
    try:
        _write_like(draft, after, real.stat())
        if read_file(real) != before:
            raise FileChanged(f"{path} was changed meanwhile; nothing was written, try again")
        draft.replace(real)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(real.parent)


def _write_like(path: Path, text: bytes, like: os.stat_result) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(text)
        made = os.fstat(file.fileno())
        if (made.st_uid, made.st_gid) != (like.st_uid, like.st_gid):
            os.fchown(file.fileno(), like.st_uid, like.st_gid)
        os.fchmod(file.fileno(), stat.S_IMODE(like.st_mode))
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make the new name outlast a loss of power."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def open_regular(path: Path) -> BinaryIO:
    """The file, opened without waiting for the other end of a pipe. OSError for what is no regular file."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", closefd=True)
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError("not a regular file")


def read_up_to(file: BinaryIO, most: int) -> bytes:
    """What the file holds, but no more than `most` bytes; takes memory for what is there, not for the most that may be."""
    parts, left = [], most
    while left and (part := file.read(min(left, READ_SIZE))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def everybody_may(found: os.stat_result, what: int) -> bool:
    """Whether the mode gives everybody one of `what`: READ, WRITE, ENTER or ANY of them."""
    return bool(found.st_mode & what)


def others_may(
    found: os.stat_result,
    what: int,
    find_group: Callable[[int], grp.struct_group] = grp.getgrgid,
    list_users: Callable[[], Iterable[pwd.struct_passwd]] = pwd.getpwall,
) -> bool:
    """Whether the mode gives one of `what` (READ, WRITE, ENTER, ANY) to somebody who is neither the owner nor root.

    A user's private group, as most Linux systems make one for each user together with umask 002, is the user alone. The rule
    is that of Debian's sshd for `authorized_keys`: nobody else is a member, and no other user has it as login group.
    """
    if everybody_may(found, what):
        return True
    if not found.st_mode & what << 3:
        return False
    try:
        named = find_group(found.st_gid).gr_mem
    except KeyError:
        return True  # who is in a group without an entry cannot be found out
    users = list(list_users())
    members = {user.pw_uid for user in users if user.pw_gid == found.st_gid or user.pw_name in named}
    unknown = set(named) - {user.pw_name for user in users}
    return bool(unknown) or not members or not members <= {found.st_uid, 0}

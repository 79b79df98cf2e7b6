"""A file replaced whole: only if nobody has changed it meanwhile, and never half written."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from scheduler.config.peek import LARGEST, open_regular, read_up_to


class Changed(Exception):
    """Somebody else has written the file; nothing was changed."""


def content(path: Path) -> bytes:
    """What the file holds. OSError for what is no regular file, or too large for a config."""
    with open_regular(path) as file:
        found = read_up_to(file, LARGEST + 1)
    if len(found) > LARGEST:
        raise OSError(f"larger than {LARGEST // 1024**2} MiB")
    return found


def swap(path: Path, before: bytes, after: bytes) -> None:
    """Put `after` where `before` is, keeping mode and owner; a link stays, and what it leads to is replaced.

    Raises Changed, or OSError; the file is then as it was.
    """
    real = path.resolve(strict=True)
    draft = real.with_name(f".{real.name}.{secrets.token_hex(4)}")
    try:
        _write(draft, after, real.stat())
        if content(real) != before:
            raise Changed(f"{path} was changed meanwhile; nothing was written, try again")
        draft.replace(real)
    finally:
        draft.unlink(missing_ok=True)
    _settle(real.parent)


def _write(path: Path, text: bytes, like: os.stat_result) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(text)
        made = os.fstat(file.fileno())
        if (made.st_uid, made.st_gid) != (like.st_uid, like.st_gid):
            os.fchown(file.fileno(), like.st_uid, like.st_gid)
        os.fchmod(file.fileno(), stat.S_IMODE(like.st_mode))
        file.flush()
        os.fsync(file.fileno())


def _settle(folder: Path) -> None:
    """Make the new name outlast a loss of power."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

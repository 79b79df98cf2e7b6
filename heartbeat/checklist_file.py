"""Editing a checklist from elsewhere: it is read with its version, and written whole if nobody has been faster."""

from __future__ import annotations

import os
import secrets
import stat
import threading
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from heartbeat import checklist
from heartbeat.checklist import MAX_BYTES, FileProblem, open_file_in, open_folder, read_bytes

NEW_FILE_MODE = 0o644  # of a new file, as far as the umask leaves it

_DRAFT_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_write_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class ChecklistVersion:
    """A checklist as it stood: its text, which is its bytes and no others, and the hash of these by which it is known."""

    text: str
    hash: str

    @property
    def has_work(self) -> bool:
        """Whether anything stands on it, a mark of byte order aside."""
        return checklist.has_work(self.text.removeprefix("\ufeff"))


@dataclass(frozen=True, slots=True)
class NotUtf8:
    """Not UTF-8: the first byte that is none, and where it stands, from 1. As a text it could not be written back."""

    byte: int
    line: int
    column: int

    def __str__(self) -> str:
        return f"the byte 0x{self.byte:02x} in line {self.line}, column {self.column} is not UTF-8; save the file as UTF-8"


ReadResult = ChecklistVersion | NotUtf8 | FileProblem


class VersionChanged(Exception):
    """The file is not the one that was to be replaced."""


class CannotWrite(Exception):
    """The file cannot be written; the text says why."""


def read_checklist(root: Path, name: str) -> ReadResult:
    """The checklist `name` below `root`, by the rules of `checklist.read`, though none of its bytes is replaced."""
    try:
        with open_folder(root, name) as (folder, last):
            return _read_version(folder, last)[0]
    except FileNotFoundError:
        return FileProblem.MISSING
    except (OSError, ValueError):
        return FileProblem.UNREADABLE


def write_checklist(root: Path, name: str, text: str, expected: str | None) -> ChecklistVersion:
    """Replace the checklist whose version is `expected`, or write it where there is none (None); as a whole or not at all.

    Its mode stays, and its owner as far as we may. Raises Changed when another one stands there, Unwritable for what is no
    regular file, not UTF-8, too large, or cannot be written. Calls wait for each other; an editor that saves in the same
    instant may win or lose, but never mixes with us.
    """
    data = text.encode()
    if len(data) > MAX_BYTES:
        raise CannotWrite(f"it is larger than {MAX_BYTES // 1024} KiB")
    try:
        with _write_lock, open_folder(root, name) as (folder, last):
            _replace_file(folder, last, data, expected)
    except FileNotFoundError:
        raise CannotWrite("its folder is not there") from None
    except (OSError, ValueError) as error:
        raise CannotWrite(str(getattr(error, "strerror", None) or "its name leads outside")) from None
    return ChecklistVersion(text, sha256(data).hexdigest())


def _replace_file(folder: int, last: str, data: bytes, expected: str | None) -> None:
    found, status = _current_version(folder, last)
    if isinstance(found, NotUtf8):
        raise CannotWrite(str(found))
    if isinstance(found, FileProblem) and found is not FileProblem.MISSING:
        raise CannotWrite(f"what stands there is {found.value.replace('_', ' ')}")
    if (found.hash if isinstance(found, ChecklistVersion) else None) != expected:
        raise VersionChanged
    draft = f".{last[:100]}.{secrets.token_hex(8)}"
    try:
        _write_draft(folder, draft, data, status)
        os.replace(draft, last, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        with suppress(OSError):
            os.unlink(draft, dir_fd=folder)
        raise
    os.fsync(folder)


def _write_draft(folder: int, draft: str, data: bytes, status: os.stat_result | None) -> None:
    """Write what is to take the old one's place, so that it survives whatever happens next."""
    file = os.open(draft, _DRAFT_FLAGS, NEW_FILE_MODE, dir_fd=folder)
    with os.fdopen(file, "wb") as opened:
        if status is not None:
            with suppress(PermissionError):
                os.fchown(file, status.st_uid, status.st_gid)
            os.fchmod(file, stat.S_IMODE(status.st_mode))
        opened.write(data)
        opened.flush()
        os.fsync(file)


def _current_version(folder: int, last: str) -> tuple[ReadResult, os.stat_result | None]:
    """What stands there now, with its mode and owner; None where nothing does."""
    try:
        return _read_version(folder, last)
    except FileNotFoundError:
        return FileProblem.MISSING, None


def _read_version(folder: int, last: str) -> tuple[ReadResult, os.stat_result]:
    file = open_file_in(folder, last)
    try:
        held = read_bytes(file)
        return held if isinstance(held, FileProblem) else _make_version(held), os.fstat(file)
    finally:
        os.close(file)


def _make_version(data: bytes) -> ChecklistVersion | NotUtf8:
    try:
        return ChecklistVersion(data.decode(), sha256(data).hexdigest())
    except UnicodeDecodeError as error:
        before = data[: error.start].decode()
        return NotUtf8(data[error.start], before.count("\n") + 1, len(before) - before.rfind("\n"))

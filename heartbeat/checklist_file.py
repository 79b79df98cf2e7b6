"""Reads and writes checklists and other files of a workspace without following links out of it."""

from __future__ import annotations

import errno
import os
import secrets
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from pathlib import Path, PurePosixPath

from heartbeat.checklist import parse_checklist

MAX_BYTES = 64 * 1024
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
CHECKLIST_TEMPLATE = """\
# Heartbeat checklist

<!-- One line for each thing to check, for example:
- [ ] Is there unanswered mail older than a day? Say who is waiting.
While there are only headings, comments and empty boxes here, runs are skipped. -->

## Active

- [ ]

## Completed
"""
NEW_FILE_MODE = 0o644  # reduced by the umask

_write_lock = threading.Lock()


class FileProblem(Enum):
    """Why a file of the workspace could not be read."""

    MISSING = "missing"
    UNREADABLE = "unreadable"
    TOO_LARGE = "too_large"


@dataclass(frozen=True, slots=True)
class ChecklistVersion:
    """The content of a checklist file: its text, which is exactly its bytes, and their hash, which identifies the version."""

    text: str
    hash: str

    @property
    def has_work(self) -> bool:
        """Whether the checklist has anything to do. A byte order mark is ignored."""
        return parse_checklist(self.text.removeprefix("\ufeff")).has_work


@dataclass(frozen=True, slots=True)
class NotUtf8:
    """The file is not UTF-8: the first invalid byte and its position, from 1. Such a file could not be written back unchanged."""

    byte: int
    line: int
    column: int

    def __str__(self) -> str:
        return f"the byte 0x{self.byte:02x} in line {self.line}, column {self.column} is not UTF-8; save the file as UTF-8"


ReadResult = ChecklistVersion | NotUtf8 | FileProblem


class VersionChanged(Exception):
    """The file is not the version that was to be replaced."""


class CannotWrite(Exception):
    """The file cannot be written. The message gives the reason."""


def read_checklist(root: Path, name: str) -> ReadResult:
    """Read the checklist `name` below `root`, by the rules of `read_file`, but without replacing invalid bytes."""
    try:
        with _open_folder(root, name) as (folder, last):
            return _current_version(folder, last)[0]
    except FileNotFoundError:
        return FileProblem.MISSING
    except (OSError, ValueError):
        return FileProblem.UNREADABLE


def write_checklist(root: Path, name: str, text: str, expected: str | None) -> ChecklistVersion:
    """Replace the checklist whose version is `expected`, or create it if `expected` is None. The file is written completely or
    not at all.

    Its mode is kept, and its owner if permissions allow. Raises VersionChanged if the file has another version. Raises
    CannotWrite if it is not a regular file, not UTF-8, too large, or cannot be written. Calls wait for each other. If an editor
    saves at the same instant, one of the two versions remains, never a mixture.
    """
    data = text.encode()
    if len(data) > MAX_BYTES:
        raise CannotWrite(f"it is larger than {MAX_BYTES // 1024} KiB")
    try:
        with _write_lock, _open_folder(root, name) as (folder, last):
            _replace_file(folder, last, data, expected)
    except FileNotFoundError:
        raise CannotWrite("its folder does not exist") from None
    except (OSError, ValueError) as error:
        raise CannotWrite(str(getattr(error, "strerror", None) or "its name leads out of the workspace")) from None
    return ChecklistVersion(text, sha256(data).hexdigest())


def _replace_file(folder: int, last: str, data: bytes, expected: str | None) -> None:
    found, status = _current_version(folder, last)
    if isinstance(found, NotUtf8):
        raise CannotWrite(str(found))
    if isinstance(found, FileProblem) and found is not FileProblem.MISSING:
        raise CannotWrite(f"the existing file is {found.value.replace('_', ' ')}")
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
    """Write the new content to a draft file and sync it to disk."""
    file = os.open(draft, _CREATE_FLAGS, NEW_FILE_MODE, dir_fd=folder)
    with os.fdopen(file, "wb") as opened:
        if status is not None:
            with suppress(PermissionError):
                os.fchown(file, status.st_uid, status.st_gid)
            os.fchmod(file, stat.S_IMODE(status.st_mode))
        opened.write(data)
        opened.flush()
        os.fsync(file)


def _current_version(folder: int, last: str) -> tuple[ReadResult, os.stat_result | None]:
    """The current content with its mode and owner. MISSING and None if there is no file."""
    try:
        data, status = _read_bytes(folder, last)
    except FileNotFoundError:
        return FileProblem.MISSING, None
    if isinstance(data, FileProblem):
        return data, status
    try:
        return ChecklistVersion(data.decode(), sha256(data).hexdigest()), status
    except UnicodeDecodeError as error:
        before = data[: error.start].decode()
        return NotUtf8(data[error.start], before.count("\n") + 1, len(before) - before.rfind("\n")), status


def read_file(root: Path, name: str) -> str | FileProblem:
    """The text of a file below `root`, at most `MAX_BYTES` long. Invalid UTF-8 is replaced.

    `name` is relative, without `..`. Symbolic links below `root` are not followed, even if their target is inside: such a
    file is unreadable. So are folders, FIFOs, sockets, devices, and files with content but without a size, such as those in
    /proc. A hard link is read. Never waits for a writer. Raises OSError only if no more files can be opened.
    """
    try:
        with _open_folder(root, name) as (folder, last):
            held, _ = _read_bytes(folder, last)
    except FileNotFoundError:
        return FileProblem.MISSING
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return FileProblem.UNREADABLE
    return held if isinstance(held, FileProblem) else held.decode("utf-8-sig", errors="replace")


def why_unreadable(root: Path, name: str) -> str:
    """Why `read_file` cannot read a file, for people."""
    if root.exists() and not root.is_dir():
        return f"{root} is a file and not a folder"
    try:
        with _open_folder(root, name) as (folder, last):
            _read_bytes(folder, last)
    except OSError as error:
        return "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror or type(error).__name__
    except ValueError:
        return "its name leads out of the workspace"
    return "it is no regular file"


def create_checklist(root: Path, name: str) -> bool:
    """Write the template if the file does not exist yet. Returns whether it was written.

    Missing folders are created, including `root`. Raises OSError if the file could not be written (nothing of it remains),
    ValueError for a name that leads outside.
    """
    root.mkdir(parents=True, exist_ok=True)
    with _open_folder(root, name, make=True) as (folder, last):
        try:
            file = os.open(last, _CREATE_FLAGS, 0o644, dir_fd=folder)
        except FileExistsError:
            return False
        try:
            with os.fdopen(file, "wb") as opened:
                opened.write(CHECKLIST_TEMPLATE.encode())
        except OSError:
            os.unlink(last, dir_fd=folder)  # half a template could look like work
            raise
    return True


@contextmanager
def _open_folder(root: Path, name: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
    """Open the folder of a file below `root`. Returns its descriptor and the file's name in it. Raises OSError, and ValueError
    for a name that leads outside.

    With `make`, missing folders on the way are created. Folders are opened one by one, so that no link is followed even if it
    is swapped at that moment.
    """
    parts = PurePosixPath(name).parts
    if not parts or parts[0] == "/" or ".." in parts:
        raise ValueError(name)
    folder = os.open(root, _FOLDER_FLAGS)
    try:
        for part in parts[:-1]:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=folder)
            deeper = os.open(part, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = deeper
        yield folder, parts[-1]
    finally:
        os.close(folder)


def _read_bytes(folder: int, last: str) -> tuple[bytes | FileProblem, os.stat_result]:
    """The content of a regular file in an opened folder, at most `MAX_BYTES`, with its mode and owner. Follows no link and never
    waits. Raises OSError.
    """
    file = os.open(last, _READ_FLAGS, dir_fd=folder)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            return FileProblem.UNREADABLE, status
        with open(file, "rb", closefd=False) as opened:
            data = opened.read(MAX_BYTES + 1)
        if data and os.fstat(file).st_size == 0:  # such as the files in /proc
            return FileProblem.UNREADABLE, status
        return FileProblem.TOO_LARGE if len(data) > MAX_BYTES else data, status
    finally:
        os.close(file)

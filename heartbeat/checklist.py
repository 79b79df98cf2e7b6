"""The checklist: an agent's HEARTBEAT.md, read without leaving its workspace and told apart from an empty one."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path, PurePosixPath

from heartbeat import marks

MAX_BYTES = 64 * 1024

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_FENCE = re.compile(r"\s*(`{3,}(?=[^`]*$)|~{3,})")
HEADING = re.compile(r" {0,3}(#{1,6})(?:\s+(.*))?$")
_EMPTY_ITEM = re.compile(r"(?:[-*+]|\d{1,9}[.)])?\s*(?:\[\s*\])?$")
_DONE_BOX = re.compile(r"(?:(?:[-*+]|\d{1,9}[.)])\s*)?\[[xX]\](?:\s|$)")
_RULE = re.compile(r"([-*_])(?:\s*\1){2,}$")

_TEMPLATE = """\
# Heartbeat checklist

<!-- One line for each thing to look at, for example:
- [ ] Is there unanswered mail older than a day? Say who waits.
While there are only headings, comments and empty boxes here, the beats are skipped. -->

## Active

- [ ]

## Completed
"""


class FileProblem(Enum):
    """Why a file of the workspace could not be read."""

    MISSING = "missing"
    UNREADABLE = "unreadable"
    TOO_LARGE = "too_large"


def read_file(root: Path, name: str) -> str | FileProblem:
    """The text of a file below `root`, at most `MAX_BYTES` long; bytes that are not UTF-8 are replaced.

    `name` is relative, without `..`. No symbolic link below `root` is followed, not even one whose target lies inside:
    such a file is unreadable, as are folders, FIFOs, sockets, devices and files that have content but no size, like those
    of /proc. A hard link is the file itself and is read. Never waits for a writer. OSError only where no
    more files can be opened.
    """
    try:
        file = _open_file(root, name, _READ_FLAGS)
    except FileNotFoundError:
        return FileProblem.MISSING
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return FileProblem.UNREADABLE
    try:
        held = read_bytes(file)
        return held if isinstance(held, FileProblem) else decode_text(held)
    except OSError:
        return FileProblem.UNREADABLE
    finally:
        os.close(file)


def create_checklist(root: Path, name: str) -> bool:
    """Write the template where nothing of that name stands yet, inside `root`; whether it was written.

    The folders that lead there, `root` too, are made. OSError says why the file could not be written, and nothing of it is left
    then; ValueError is for a name that leads outside.
    """
    root.mkdir(parents=True, exist_ok=True)
    with open_folder(root, name, make=True) as (folder, last):
        try:
            file = os.open(last, _CREATE_FLAGS, 0o644, dir_fd=folder)
        except FileExistsError:
            return False
        try:
            with os.fdopen(file, "wb") as opened:
                opened.write(checklist_template().encode())
        except OSError:
            os.unlink(last, dir_fd=folder)  # half a template could read as something to do
            raise
    return True


def checklist_template() -> str:
    """A checklist to start from; it holds no work."""
    return _TEMPLATE


def open_tasks(text: str) -> str:
    """The text without HTML comments and without what stands under a `Completed` heading, of any level.

    Such a section ends at the next heading of its own or a higher level. Nothing is cut out of code fences; a comment that
    is never closed stays.
    """
    return "\n".join(line for line, _ in open_lines(text)).strip("\n")


@lru_cache(maxsize=16)
def has_work(text: str) -> bool:
    """Whether anything is left to ask about.

    Blank lines, headings, rules, empty list items and boxes, done boxes, marks without a text, fences without content, comments
    and what is under `Completed` do not count. `#TODO`, without a blank, is no heading and counts.
    """
    return any(is_content(line, code) for line, code in open_lines(text))


@lru_cache(maxsize=16)
def open_lines(text: str) -> tuple[tuple[str, bool], ...]:
    """The lines of all sections that are not completed, without comments, and whether each is code.

    Kept for the next look at the same text: a beat takes about ten.
    """
    return tuple(_lines_outside_completed(text))


def _lines_outside_completed(text: str) -> Iterator[tuple[str, bool]]:
    completed = 0
    for line, code in _visible_lines(text):
        heading = None if code else HEADING.match(line)
        if heading and (not completed or len(heading[1]) <= completed):
            completed = len(heading[1]) if _is_completed_title(heading[2] or "") else 0
        if not completed:
            yield line, code


def is_content(line: str, code: bool) -> bool:
    """Whether a line says something to be done."""
    bare = line.strip()
    if not bare:
        return False
    if code:
        return not _FENCE.match(line)
    if marked := marks.parse_list_line(line):
        bare = marked.without_marks.strip()
    return not (HEADING.match(line) or _EMPTY_ITEM.match(bare) or _DONE_BOX.match(bare) or _RULE.match(bare))


@dataclass(frozen=True, slots=True)
class Progress:
    """How many boxes with a text stand open, and how many are done."""

    open: int
    done: int


@lru_cache(maxsize=16)
def count_boxes(*texts: str) -> Progress:
    """The boxes of these texts: those done anywhere, those open outside `Completed`."""
    opened = sum(_has_box(line, "[ ]") for text in texts for line, code in open_lines(text) if not code)
    done = sum(_has_box(line, "[x]") for text in texts for line, code in _visible_lines(text) if not code)
    return Progress(opened, done)


def _has_box(line: str, box: str) -> bool:
    marked = marks.parse_list_line(line)
    return marked is not None and marked.box == box and bool(marked.text)


@contextmanager
def open_folder(root: Path, name: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
    """The folder of a file below `root`, opened, and the file's name in it. OSError; ValueError for a name that leads outside.

    With `make` the folders between are made where they are missing.
    Folder by folder, so that no link on the way is followed however fast it is swapped.
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


def _open_file(root: Path, name: str, flags: int) -> int:
    with open_folder(root, name) as (folder, last):
        return os.open(last, flags, 0o644, dir_fd=folder)


def open_file_in(folder: int, last: str) -> int:
    """Open a file of an opened folder for reading, as `read` does: no link, and without waiting. OSError."""
    return os.open(last, _READ_FLAGS, dir_fd=folder)


def read_bytes(file: int) -> bytes | FileProblem:
    """What an opened file holds, at most `MAX_BYTES` of a regular one."""
    if not stat.S_ISREG(os.fstat(file).st_mode):
        return FileProblem.UNREADABLE
    if os.fstat(file).st_size > MAX_BYTES:
        return FileProblem.TOO_LARGE
    data = _read_up_to(file, MAX_BYTES + 1)
    if data and os.fstat(file).st_size == 0:
        return FileProblem.UNREADABLE
    return FileProblem.TOO_LARGE if len(data) > MAX_BYTES else data


def decode_text(data: bytes) -> str:
    """The text that a file's bytes are; what is not UTF-8 is replaced."""
    return data.decode("utf-8-sig", errors="replace")


def _read_up_to(file: int, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := os.read(file, size - len(data))):
        data += more
    return data


def _is_completed_title(title: str) -> bool:
    return title.rstrip("# \t").strip("*_~: \t").casefold() == "completed"


def _visible_lines(text: str) -> Iterator[tuple[str, bool]]:
    """The lines without HTML comments, and whether each is code: inside a fence, the fence itself too."""
    fence, hidden = "", False
    last_close = text.rfind("-->")
    start = 0
    for line in text.splitlines(keepends=True):
        bare = line.rstrip("\r\n")
        if fence:
            yield bare, True
            fence = "" if _closes_fence(fence, bare) else fence
        elif not hidden and (opened := _FENCE.match(bare)):
            yield bare, True
            fence = opened[1]
        else:
            shown, hidden = _strip_comments(bare, hidden, last_close - start)
            if shown.strip() or not bare.strip():
                yield shown, False
        start += len(line)


def _closes_fence(fence: str, line: str) -> bool:
    mark = line.strip()
    return len(mark) >= len(fence) and not mark.strip(fence[0])


def _strip_comments(line: str, hidden: bool, last_close: int) -> tuple[str, bool]:
    """What a line shows outside comments, and whether one is still open behind it; none opens beyond the `last_close`."""
    shown, at = "", 0
    while True:
        mark = "-->" if hidden else "<!--"
        found = line.find(mark, at)
        if found < 0 or (not hidden and found + 4 > last_close):
            return (shown if hidden else shown + line[at:]), hidden
        shown += "" if hidden else line[at:found]
        at, hidden = found + len(mark), not hidden

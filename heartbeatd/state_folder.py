"""Finds the state folder of a daemon, and the files in it by which other programs reach the daemon.

It reads the key `state` of a config that may be invalid, without a YAML parser.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

DEFAULT_STATE = "state/heartbeatd.db"
OVERRIDE_PREFIX = "HEARTBEATD_SET__"
STATE_OVERRIDE = f"{OVERRIDE_PREFIX}state"
SCHEMES = ("postgresql://", "postgres://")
MAX_DAEMON_ANSWER = 128 * 1024 * 1024  # bytes that clients read of an answer; the status of 100,000 agents has about 80 MB
MAX_CONFIG_SIZE = 64 * 1024 * 1024  # bytes of a config; 100,000 agents are about 30 MB
READ_SIZE = 1024 * 1024
RUN_ID_VARIABLE = "HEARTBEATD_RUN"  # in the environment of each program that a run starts

_LINE = re.compile(
    r"^['\"]?(?P<key>\w+)['\"]?[ \t]*:[ \t]+"
    r"(?:\"(?P<double>[^\"\\\n\0]+)\"|'(?P<single>[^'\n\0]+)'|(?P<plain>[^\s'\"#|>&*!{\[][^\n\0]*?))[ \t]*(?:[ \t]#[^\n]*)?\r?$",
    re.MULTILINE,
)


def read_state_path(path: Path, environ: Mapping[str, str] | None = None) -> Path:
    """The real path of the database: from the environment, else from the config at `path`, else the default.

    If the database is on a server, it is the default path. The other files of the daemon are in the same folder.
    """
    text = _read_state(path, environ)
    return real_path(resolve_path(config_folder(path), DEFAULT_STATE if is_server(text) else text))


def read_state_server(path: Path, environ: Mapping[str, str] | None = None) -> str | None:
    """The address of the server that has the database; None if it is a file."""
    text = _read_state(path, environ)
    return text if is_server(text) else None


def _read_state(path: Path, environ: Mapping[str, str] | None) -> str:
    return read_override(environ, STATE_OVERRIDE) or find_line_value(read_config_text(path) or "", "state") or DEFAULT_STATE


def config_folder(path: Path) -> Path:
    """The folder of a config, absolute. If the config is a link, it is the folder of the link."""
    return Path(os.path.abspath(path)).parent  # noqa: PTH100 -- Path.resolve would follow the link


def resolve_path(folder: Path, text: str) -> Path:
    """An absolute path from a path in the config: relative to its folder, or to the home folder with ~/."""
    return folder / (os.path.expanduser(text) if text.startswith("~/") else text)  # noqa: PTH111 -- Path's raises without a home


def real_path(database: Path) -> Path:
    """The path of a database without links, so that its lock and its other files are the same under every path."""
    return Path(os.path.realpath(database))  # Path.resolve raises where links lead in a circle


def find_line_value(text: str, key: str) -> str | None:
    """The value of a top-level key on the line that begins with it, or in JSON; None if there is none.

    Other text need not be valid.
    """
    if text.startswith("{"):
        try:
            value = json.loads(text).get(key)
        except (ValueError, RecursionError):
            return None
        return value if isinstance(value, str) else None
    found = next((each for each in _LINE.finditer(text) if each["key"] == key), None)
    return found and (found["double"] or found["single"] or found["plain"])


def read_override(environ: Mapping[str, str] | None, variable: str) -> str:
    """The text that an override sets, without quotes; empty if it sets none."""
    text = (environ or {}).get(variable, "")
    return find_line_value(f"value: {text}", "value") or text


def read_config_text(path: Path) -> str | None:
    """The text of the config; None if it cannot be read."""
    try:
        with open_regular(path) as file:
            return read_up_to(file, MAX_CONFIG_SIZE).decode("utf-8-sig", errors="replace")
    except OSError:
        return None


def is_server(text: str) -> bool:
    """Whether the value of `state` is meant as the address of a server."""
    return text.startswith(SCHEMES)


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of this file. The lock is taken for a moment, shared with others who only look."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def address_file(database: Path) -> Path:
    """The file in which the daemon with this database file writes its address."""
    return database.with_name("daemon.json")


def open_regular(path: Path) -> BinaryIO:
    """Open a file without waiting for the other end of a pipe. OSError if it is not a regular file."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", closefd=True)
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError("not a regular file")


def read_up_to(file: BinaryIO, most: int) -> bytes:
    """The content of a file, at most `most` bytes. It uses memory for the bytes that exist, not for `most`."""
    parts, left = [], most
    while left and (part := file.read(min(left, READ_SIZE))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)

"""Peeking: where the database is, from a config that may be broken or missing; quick, as commands that only read need no more."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

STATE = "state/heartbeatd.db"
STATE_OVERRIDE = "HEARTBEATD_SET__state"
LARGEST = 64 * 1024 * 1024  # bytes; 100,000 agents are about 30 MB

_STATE_LINE = re.compile(
    r"^state:[ \t]+(?P<quote>['\"]?)(?P<path>[^'\"#\n\r\0]+?)(?P=quote)[ \t]*(?:[ \t]#.*)?\r?$", re.MULTILINE
)


def peek_state(path: Path, environ: Mapping[str, str] | None = None) -> Path:
    """The database's absolute path, as well as the config at `path` says it; the default place when it does not."""
    text = (environ or {}).get(STATE_OVERRIDE) or _said(path) or STATE
    return from_folder(folder_of(path), text)


def folder_of(path: Path) -> Path:
    """The folder of a config, absolute; that of a link is where the link is."""
    return Path(os.path.abspath(path)).parent  # noqa: PTH100 -- Path.resolve would follow the link


def from_folder(folder: Path, text: str) -> Path:
    """A path of the config: from its folder, or from home with ~/."""
    return folder / (os.path.expanduser(text) if text.startswith("~/") else text)  # noqa: PTH111 -- Path's raises without a home


def open_regular(path: Path) -> BinaryIO:
    """The file, opened without waiting for the other end of a pipe. OSError for what is no regular file."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", closefd=True)
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError("not a regular file")


def _said(path: Path) -> str:
    try:
        with open_regular(path) as file:
            found = _STATE_LINE.search(file.read(LARGEST).decode(errors="replace"))
    except OSError:
        return ""
    return found["path"].strip() if found else ""

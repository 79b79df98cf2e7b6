"""Writes the two private files next to the database that local clients need: the token and the daemon's address."""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
from datetime import datetime
from pathlib import Path

from heartbeatd.secret import Secret
from heartbeatd.state_folder import address_file
from scheduler.model.timestamps import iso_utc
from scheduler.system.files import write_private_file
from scheduler.system.state_lock import raise_state_folder_error

_TOKEN_PATTERN = re.compile(r"[A-Za-z0-9_-]{43}")  # 256 bits


def load_or_create_token(state: Path) -> Secret:
    """The token for local clients. It survives restarts, and is replaced if it is missing or other users could have read it.

    It exists even if the config declares tokens: a user who can read this file can also read and write the database.
    """
    path = state.with_name("token")
    text = _read_private_token(path)
    if text is None:
        text = secrets.token_urlsafe(32)
        _write_line(path, text)
    return Secret(text)


def _read_private_token(path: Path) -> str | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(fd)
        private = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
        text = file.read(64).decode("ascii", "replace").strip() if private else ""
    return text if _TOKEN_PATTERN.fullmatch(text) else None


def write_address_file(state: Path, url: str, started_at: datetime) -> None:
    """Write where this daemon listens."""
    _write_line(address_file(state), json.dumps({"pid": os.getpid(), "url": url, "started_at": iso_utc(started_at)}))


def remove_address_file(state: Path) -> None:
    """Remove the address file, when the daemon no longer listens."""
    address_file(state).unlink(missing_ok=True)


def _write_line(path: Path, text: str) -> None:
    """Raises StateFolderError; then the file is unchanged."""
    try:
        write_private_file(path, f"{text}\n".encode())
    except OSError as error:
        raise_state_folder_error(path, error)

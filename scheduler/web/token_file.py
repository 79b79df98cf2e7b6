"""Writes the two private files beside the database that local clients need: the token and the daemon's address."""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
from datetime import datetime
from pathlib import Path

from scheduler.model.secret import Secret
from scheduler.model.timestamps import iso_utc
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
        _write_private_file(path, text)
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
    _write_private_file(
        state.with_name("daemon.json"), json.dumps({"pid": os.getpid(), "url": url, "started_at": iso_utc(started_at)})
    )


def remove_address_file(state: Path) -> None:
    """Remove the address file, when the daemon no longer listens."""
    state.with_name("daemon.json").unlink(missing_ok=True)


def _write_private_file(path: Path, text: str) -> None:
    """Write a file atomically, with mode 0600 whatever the umask. Raises Unusable and then leaves no temporary file."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.unlink(missing_ok=True)
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as file:
            os.fchmod(fd, 0o600)
            file.write(text + "\n")
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise_state_folder_error(path, error)

"""Expected errors of every part of the daemon, as lines for people and an exit code."""

from __future__ import annotations

import sqlite3

from scheduler.config.file.diagnostics import ConfigError
from scheduler.engine.inbox import Refused
from scheduler.store.database import Full, StoreError, Unavailable
from scheduler.system.state_lock import Taken, Unusable
from scheduler.web.server import CannotListen

NOT_FOUND = "not_found"


def explain(error: Exception) -> tuple[str, int] | None:
    """The lines to print and the exit code; None for what nobody expected.

    A config's faults stand for themselves, as editors and people jump to them by `file:line:column:`.
    """
    match error:
        case ConfigError():
            return str(error), 2
        case Refused():
            return f"heartbeatd: {error}", 2 if error.code == NOT_FOUND else 1
        case Taken() | Unusable() | StoreError() | CannotListen():
            return f"heartbeatd: {error}", 1
        case Full():
            return f"heartbeatd: {error}; nothing was changed", 1
        case Unavailable():
            return f"heartbeatd: the database could not be written: {error}; nothing was changed", 1
        case sqlite3.Error():
            return f"heartbeatd: the database could not be read: {error}; `heartbeatd doctor` looks closer", 1
        case OSError():
            return f"heartbeatd: {error.filename or 'the system says'}: {error.strerror or error}", 1
        case _:
            return None

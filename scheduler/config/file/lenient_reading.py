"""Peeking: the database and the zone that a config names, which may be broken or missing; quick, for commands that only read."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from scheduler.system.files import MAX_CONFIG_SIZE, open_regular, read_up_to

DEFAULT_STATE = "state/heartbeatd.db"
STATE_OVERRIDE = "HEARTBEATD_SET__state"
DEFAULT_TIMEZONE = "UTC"
TIMEZONE_OVERRIDE = "HEARTBEATD_SET__timezone"

_LINE = r"^{key}:[ \t]+(?P<quote>['\"]?)(?P<value>[^'\"#\n\r\0]+?)(?P=quote)[ \t]*(?:[ \t]#.*)?\r?$"


def read_state_path(path: Path, environ: Mapping[str, str] | None = None) -> Path:
    """The database's real path, as well as the config at `path` says it; the default place when it does not."""
    text = (environ or {}).get(STATE_OVERRIDE) or _read_top_level_value(path, "state") or DEFAULT_STATE
    return real_path(resolve_path(config_folder(path), text))


def read_timezone_name(path: Path, environ: Mapping[str, str] | None = None) -> str | None:
    """The name of the top-level zone, as well as the config at `path` says it; None where there is no config to read."""
    said = _read_top_level_value(path, "timezone")
    return said if said is None else (environ or {}).get(TIMEZONE_OVERRIDE) or said or DEFAULT_TIMEZONE


def config_folder(path: Path) -> Path:
    """The folder of a config, absolute; that of a link is where the link is."""
    return Path(os.path.abspath(path)).parent  # noqa: PTH100 -- Path.resolve would follow the link


def resolve_path(folder: Path, text: str) -> Path:
    """A path of the config: from its folder, or from home with ~/."""
    return folder / (os.path.expanduser(text) if text.startswith("~/") else text)  # noqa: PTH111 -- Path's raises without a home


def real_path(database: Path) -> Path:
    """Where a database lies, without links: its lock and all else beside it are the same by whatever path it is named."""
    return Path(os.path.realpath(database))  # Path.resolve raises where links lead in a circle


def _read_top_level_value(path: Path, key: str) -> str | None:
    """The value of a top-level key; empty where it does not stand there, None where nothing can be read."""
    try:
        with open_regular(path) as file:
            found = re.search(_LINE.format(key=key), read_up_to(file, MAX_CONFIG_SIZE).decode(errors="replace"), re.MULTILINE)
    except OSError:
        return None
    return found["value"].strip() if found else ""

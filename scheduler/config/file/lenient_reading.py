"""Reads the database path, the time zone and the names of a config that may be invalid, for commands that only read."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from scheduler.model.state_address import is_server
from scheduler.system.files import MAX_CONFIG_SIZE, open_regular, read_up_to

DEFAULT_STATE = "state/heartbeatd.db"
OVERRIDE_PREFIX = "HEARTBEATD_SET__"
STATE_OVERRIDE = f"{OVERRIDE_PREFIX}state"
DEFAULT_TIMEZONE = "UTC"
TIMEZONE_OVERRIDE = f"{OVERRIDE_PREFIX}timezone"

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
    return _read_override(environ, STATE_OVERRIDE) or find_line_value(_read_text(path) or "", "state") or DEFAULT_STATE


def read_timezone_name(path: Path, environ: Mapping[str, str] | None = None) -> str | None:
    """The name of the top-level time zone; None if the config at `path` cannot be read."""
    text = _read_text(path)
    if text is None:
        return None
    return _read_override(environ, TIMEZONE_OVERRIDE) or find_line_value(text, "timezone") or DEFAULT_TIMEZONE


def read_entry_names(path: Path) -> dict[str, list[str]]:
    """The names in the sections `agents` and `cron` of the config at `path`. A section that cannot be read has none."""
    from scheduler.config.file import marked_yaml
    from scheduler.config.file.diagnostics import Diagnostics  # `status` does not parse the config, and does not need these

    try:
        root = marked_yaml.parse_yaml(_read_text(path) or "", Diagnostics(str(path)))
    except marked_yaml.UnreadableYaml:
        root = None
    sections = {key: root.get(key) if isinstance(root, dict) else None for key in ("agents", "cron")}
    return {key: [str(name) for name in found] if isinstance(found, dict) else [] for key, found in sections.items()}


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


def _read_override(environ: Mapping[str, str] | None, variable: str) -> str:
    """The text that an override sets, without quotes; empty if it sets none."""
    text = (environ or {}).get(variable, "")
    return find_line_value(f"value: {text}", "value") or text


def _read_text(path: Path) -> str | None:
    """The text of the config; None if it cannot be read."""
    try:
        with open_regular(path) as file:
            return read_up_to(file, MAX_CONFIG_SIZE).decode("utf-8-sig", errors="replace")
    except OSError:
        return None

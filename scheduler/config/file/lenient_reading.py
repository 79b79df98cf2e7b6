"""Reads the database path, the time zone and the names of a config that may be invalid, for commands that only read."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scheduler.model.state_address import is_server, shard_address, shard_file
from scheduler.system.files import MAX_CONFIG_SIZE, open_regular, read_up_to

DEFAULT_STATE = "state/heartbeatd.db"
OVERRIDE_PREFIX = "HEARTBEATD_SET__"
STATE_OVERRIDE = f"{OVERRIDE_PREFIX}state"
DEFAULT_TIMEZONE = "UTC"
TIMEZONE_OVERRIDE = f"{OVERRIDE_PREFIX}timezone"
SHARD_VARIABLE = "HEARTBEATD_SHARD"

# Matches each text with the key, in any style, also with escapes or as an alias. The key may be at any depth.
_KEY = r"{key}['\"]?\s*(?:#.*\n\s*)*:|\\[xuU]|\*[^\s*]+\s+:"
_LINE = r"^{key}:[ \t]+(?P<quote>['\"]?)(?P<value>[^'\"#\n\r\0]+?)(?P=quote)[ \t]*(?:[ \t]#.*)?\r?$"


def read_state_path(path: Path, environ: Mapping[str, str] | None = None) -> Path:
    """The real path of the database: from the environment, else from the config at `path`, else the default.

    If the database is on a server, it is the default path. The other files of the daemon are in the same folder. With shards, it
    is the file of the shard with the index that the config and the environment name, if they name one.
    """
    text, shard = _read_state(path, environ), read_shard(path, environ)
    found = real_path(resolve_path(config_folder(path), DEFAULT_STATE if is_server(text) else text))
    return found if shard is None or shard.index is None else shard_file(found, shard.index)


def read_state_server(path: Path, environ: Mapping[str, str] | None = None) -> str | None:
    """The address of the server that has the database; None if it is a file. With shards, it is the address of the shard."""
    text, shard = _read_state(path, environ), read_shard(path, environ)
    if not is_server(text):
        return None
    return text if shard is None or shard.index is None else shard_address(text, shard.index)


@dataclass(frozen=True, slots=True)
class NamedShard:
    """The number of shards of a config, and the index of one of them; None if it is left open."""

    index: int | None
    of: int


def read_shard(path: Path, environ: Mapping[str, str] | None = None) -> NamedShard | None:
    """The shard that the config at `path` and the environment name; None if there are no shards, or if they cannot be read."""
    known = environ or {}
    found = _read_top_level(path, "shard")
    part = found if isinstance(found, dict) else {}
    of = known.get(f"{OVERRIDE_PREFIX}shard__of") or part.get("of")
    if not str(of).isdecimal():
        return None
    index = str(known.get(SHARD_VARIABLE) or known.get(f"{OVERRIDE_PREFIX}shard__index") or part.get("index", ""))
    if index.startswith("${"):
        index = known.get(index[2:-1], "")
    return NamedShard(int(index) if index.isdecimal() else None, int(str(of)))


def _read_state(path: Path, environ: Mapping[str, str] | None) -> str:
    return _read_override(environ, STATE_OVERRIDE) or _read_top_level_value(path, "state") or DEFAULT_STATE


def read_timezone_name(path: Path, environ: Mapping[str, str] | None = None) -> str | None:
    """The name of the top-level time zone; None if the config at `path` cannot be read."""
    name = _read_top_level_value(path, "timezone")
    return name if name is None else _read_override(environ, TIMEZONE_OVERRIDE) or name or DEFAULT_TIMEZONE


def read_entry_names(path: Path) -> dict[str, list[str]]:
    """The names in the sections `agents` and `cron` of the config at `path`. A section that cannot be read has none."""
    from scheduler.config.file import marked_yaml
    from scheduler.config.file.diagnostics import Diagnostics  # `status` does not parse the config, and does not need these

    try:
        with open_regular(path) as file:
            root = marked_yaml.parse_yaml(read_up_to(file, MAX_CONFIG_SIZE).decode(errors="replace"), Diagnostics(str(path)))
    except (OSError, ValueError, marked_yaml.UnreadableYaml):
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


def _read_override(environ: Mapping[str, str] | None, variable: str) -> str:
    """The text that an override sets; empty if it sets none. The daemon parses overrides as YAML."""
    if not (text := (environ or {}).get(variable, "")):
        return ""
    from scheduler.config.file import marked_yaml
    from scheduler.config.file.diagnostics import Diagnostics

    try:
        value = marked_yaml.parse_yaml(text, Diagnostics(variable))
    except marked_yaml.UnreadableYaml:
        return text
    return value if isinstance(value, str) and "\0" not in value else text


def _read_top_level_value(path: Path, key: str) -> str | None:
    """The text of a top-level key, as the daemon reads it if the file is valid; empty if there is none.

    In a file that is not YAML, it is the value on a line that begins with the key. None if the file cannot be read.
    """
    value = _read_top_level(path, key)
    return value if value is None or (isinstance(value, str) and "\0" not in value) else ""


def _read_top_level(path: Path, key: str) -> Any:
    """The value of a top-level key; an empty text if there is none. None if the file cannot be read."""
    try:
        with open_regular(path) as file:
            text = read_up_to(file, MAX_CONFIG_SIZE).decode("utf-8-sig", errors="replace")
    except OSError:
        return None
    if not re.search(_KEY.format(key=key), text):
        return ""  # most files leave out one of the keys, and a large file is not parsed for it
    from scheduler.config.file import marked_yaml

    try:
        value = marked_yaml.read_top_level_value(text, key)
    except marked_yaml.UnreadableYaml:
        found = re.search(_LINE.format(key=key), text, re.MULTILINE)
        value = found["value"].strip() if found else ""
    return "" if value is None else value

"""Reads config.yaml: checks who may write the file, and parses its YAML."""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

from heartbeatd.state_folder import MAX_CONFIG_SIZE, config_folder, open_regular, read_up_to
from scheduler.config.file import marked_yaml, yaml_errors
from scheduler.config.file.diagnostics import NO_POSITION, Diagnostics
from scheduler.system.files import MAY_WRITE, everybody_may, others_may


def read_content(path: Path, diagnostics: Diagnostics) -> bytes:
    absolute = str(path.absolute())
    if absolute != absolute.encode(errors="replace").decode():  # the database records the path, and stores text
        diagnostics.add_error(NO_POSITION, "", "a name in the path of this file is not UTF-8; rename it")
        diagnostics.raise_errors()
    try:
        with open_regular(path) as file:
            check_owner(os.fstat(file.fileno()), path, diagnostics)
            check_folder(path, diagnostics)
            content = read_up_to(file, MAX_CONFIG_SIZE + 1)
    except OSError as error:
        diagnostics.add_error(
            NO_POSITION, "", f"cannot be read: {error.strerror or error}; `heartbeatd init DIR` writes a config to begin with"
        )
        content = b""
    if len(content) > MAX_CONFIG_SIZE:
        diagnostics.add_error(NO_POSITION, "", f"is larger than {MAX_CONFIG_SIZE // 1024**2} MiB")
    diagnostics.raise_errors()
    return content


def parse_content(content: bytes, diagnostics: Diagnostics) -> marked_yaml.MarkedDocument:
    """The data of the content. Raises ConfigError if it is not YAML, with its first syntax error."""
    try:
        return marked_yaml.parse_document(_decode_content(content, diagnostics), diagnostics)
    except marked_yaml.UnreadableYaml:
        diagnostics.raise_errors()
        raise


def check_owner(found: os.stat_result, path: Path, diagnostics: Diagnostics) -> None:
    """Report other users who may write the config: it can run commands, as a crontab can."""
    _check_writers(found, path, "this file", "and with it run commands", diagnostics)
    _check_user(found, "this file", "can run commands with it", diagnostics)


def check_folder(path: Path, diagnostics: Diagnostics) -> None:
    """Report other users who may write the folder of the config, or the folder that it links to, and so replace the file.

    In a folder with the sticky bit, such as /tmp, users cannot replace the files of others.
    """
    for folder in dict.fromkeys((config_folder(path), path.resolve().parent)):
        found = folder.stat()
        if not found.st_mode & stat.S_ISVTX:
            _check_writers(found, folder, f"{folder}, the folder of this file", "and so replace it and run commands", diagnostics)
        _check_user(found, str(folder), "can replace this file and run commands", diagnostics)


def _check_writers(found: os.stat_result, path: Path, what: str, so: str, diagnostics: Diagnostics) -> None:
    """Report everybody, or a group, who may write `what`, and what they can do then."""
    place = shlex.quote(str(path))
    if everybody_may(found, MAY_WRITE):
        diagnostics.add_error(NO_POSITION, "", f"everybody may write {what}, {so}; do: chmod o-w {place}")
    elif others_may(found, MAY_WRITE):
        diagnostics.add_warning(NO_POSITION, "", f"its group may write {what}, {so}; do: chmod g-w {place}")


def _check_user(found: os.stat_result, what: str, can: str, diagnostics: Diagnostics) -> None:
    """Report another user who owns `what`, and what that user can do."""
    if found.st_uid not in (0, os.geteuid()):
        diagnostics.add_warning(NO_POSITION, "", f"{what} belongs to another user (id {found.st_uid}), who {can}")


def _decode_content(content: bytes, diagnostics: Diagnostics) -> str:
    """The content as text. Raises ConfigError if it is not UTF-8."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = yaml_errors.position_after(content[: error.start].decode())
        diagnostics.add_error(place, "", f"the byte 0x{content[error.start]:02x} is not UTF-8; save the file as UTF-8")
        diagnostics.raise_errors()
        raise

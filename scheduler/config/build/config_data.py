"""The source: the file as plain data, with its overrides and merges, before anything in it is understood."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from scheduler.config.file import inheritance, marked_yaml, overrides, yaml_errors
from scheduler.config.file.diagnostics import NO_POSITION, Diagnostics, Position
from scheduler.config.file.lenient_reading import config_folder
from scheduler.config.file.marked_yaml import MarkedList, MarkedMap
from scheduler.config.file.message_parts import describe_type
from scheduler.config.keys.respell import correct_unknown_keys
from scheduler.system.files import MAX_CONFIG_SIZE, MAY_WRITE, everybody_may, open_regular, others_may, read_up_to

MOST_BREAKS = 20  # places that are no YAML, after each of which the reading goes on


@dataclass(frozen=True, slots=True)
class ConfigData:
    """The file as data, overrides and merges applied, before anything in it is understood."""

    root: MarkedMap
    agent: MarkedMap
    job: MarkedMap
    hash: str


def read_config_data(
    path: Path, environ: Mapping[str, str], diagnostics: Diagnostics, content: bytes | None = None, root: MarkedMap | None = None
) -> ConfigData:
    """The file with its overrides; `root` is what `content` holds, where it has been read. Raises ConfigError for no YAML."""
    content = _read_content(path, diagnostics) if content is None else content
    document = (
        marked_yaml.MarkedDocument(root, NO_POSITION)
        if root is not None
        else _parse_past_errors(_decode_content(content, diagnostics), diagnostics)
    )
    root = document.node
    if root is None and not diagnostics.is_partial:
        diagnostics.add_error(NO_POSITION, "", "the file holds no keys; `heartbeatd init DIR` writes one to begin with")
    elif root is not None and not isinstance(root, MarkedMap) and not diagnostics.is_partial:
        message = (
            f"keys with values are wanted here, not {describe_type(root)}; `heartbeatd init DIR` writes a config to begin with"
        )
        diagnostics.add_error(document.position, "", message)
    if not isinstance(root, MarkedMap):
        diagnostics.raise_errors()
        root = MarkedMap()
    correct_unknown_keys(root, diagnostics)
    root = overrides.apply_overrides(root, environ, diagnostics)
    diagnostics.default_paths = _find_default_paths(root)
    return ConfigData(root, _agent_defaults(root), map_at(root, "defaults", "cron"), _hash_config(content, environ))


def parse_content(content: bytes, diagnostics: Diagnostics) -> Any:
    """What the content holds, as plain data. Raises ConfigError when it cannot be read as YAML."""
    try:
        return marked_yaml.parse_yaml(_decode_content(content, diagnostics), diagnostics)
    except marked_yaml.UnreadableYaml:
        diagnostics.raise_errors()
        raise


def _parse_past_errors(text: str, diagnostics: Diagnostics) -> marked_yaml.MarkedDocument:
    """What the text holds. Behind what is no YAML the reading goes on, so that it hides none of the other faults; `diagnostics`
    is then partial, if something had to be left out. Raises ConfigError where nothing more can be read.
    """
    masks: dict[str, str] = {}
    for _ in range(MOST_BREAKS):
        try:
            return marked_yaml.parse_document(text, diagnostics, masks=masks)
        except marked_yaml.YamlSyntaxError as broken:
            recovery = yaml_errors.recover_from_error(broken.error, text, _last_readable_line)
            place, wrong = (recovery.place, recovery.wrong) if recovery else yaml_errors.explain_yaml_error(broken.error, text)
            diagnostics.add_error(place, broken.path, wrong)
            if recovery is None:
                break
            diagnostics.is_partial |= not recovery.masks
            text, masks = recovery.text, {**masks, **recovery.masks}
        except marked_yaml.UnreadableYaml:
            break
    diagnostics.raise_errors()
    raise AssertionError("what cannot be read has a fault")


def _last_readable_line(text: str) -> int:
    """The line up to which a text is YAML."""
    try:
        marked_yaml.parse_document(text, Diagnostics(""))
    except marked_yaml.YamlSyntaxError as broken:
        return yaml_errors.explain_yaml_error(broken.error, text)[0].line
    except marked_yaml.UnreadableYaml:
        pass
    return len(text)


def _agent_defaults(root: MarkedMap) -> MarkedMap:
    """What agents inherit: defaults.heartbeat, with the heartbeat of defaults.agent on top."""
    beat, agent = map_at(root, "defaults", "heartbeat"), map_at(root, "defaults", "agent")
    if not beat:
        return agent
    marks = map_at(root, "defaults").marks["heartbeat"]
    return inheritance.merge_agent(MarkedMap({"heartbeat": beat}, {"heartbeat": marks}), agent)


def map_at(node: Any, *steps: str) -> MarkedMap:
    """The map that these keys lead to; an empty one where there is none."""
    for step in steps:
        node = node.get(step) if isinstance(node, MarkedMap) else None
    return node if isinstance(node, MarkedMap) else MarkedMap()


def _find_default_paths(root: MarkedMap) -> dict[tuple[int, int], str]:
    """The path of every value under `defaults`, by its place."""
    homes: dict[tuple[int, int], str] = {}
    if "defaults" in root:
        _collect_default_paths(root["defaults"], ["defaults"], homes)
    return homes


def _collect_default_paths(
    node: Any, steps: list[str | int], homes: dict[tuple[int, int], str], above: tuple[int, int] | None = None
) -> None:
    """Note the places of keys and of values that are no maps: a map begins where its first key does.

    A place that is noted already has been reached by another alias, and all within it with it.
    """
    for step, at, value in _iterate_children(node):
        inner = [*steps, step]
        place = (at.line, at.column)
        moved = place == above  # there under another name, so that what holds it has no place of its own
        if place in homes and not moved and isinstance(value, MarkedMap | MarkedList):
            continue
        if moved:
            homes[place] = marked_yaml.dotted_path(inner)
        elif isinstance(step, str) or not isinstance(value, MarkedMap):
            homes.setdefault(place, marked_yaml.dotted_path(inner))
        if isinstance(node, MarkedMap) and not isinstance(value, MarkedMap):
            mark = node.marks[str(step)][1]
            homes.setdefault((mark.line, mark.column), marked_yaml.dotted_path(inner))
        _collect_default_paths(value, inner, homes, place)


def _iterate_children(node: Any) -> Iterator[tuple[str | int, Position, Any]]:
    if isinstance(node, MarkedMap):
        yield from ((key, node.marks[key][0], value) for key, value in node.items())
    if isinstance(node, MarkedList):
        yield from ((index, node.marks[index], value) for index, value in enumerate(node))


def _read_content(path: Path, diagnostics: Diagnostics) -> bytes:
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


def check_owner(found: os.stat_result, path: Path, diagnostics: Diagnostics) -> None:
    """A config is code, as a crontab is: who may write it runs commands."""
    quoted = shlex.quote(str(path))
    if everybody_may(found, MAY_WRITE):
        diagnostics.add_error(NO_POSITION, "", f"everybody may write this file, and with it run commands; do: chmod o-w {quoted}")
    elif others_may(found, MAY_WRITE):
        diagnostics.add_warning(
            NO_POSITION, "", f"its group may write this file, and with it run commands; do: chmod g-w {quoted}"
        )
    if found.st_uid not in (0, os.geteuid()):
        diagnostics.add_warning(
            NO_POSITION, "", f"this file belongs to another user (id {found.st_uid}), who can run commands with it"
        )


def check_folder(path: Path, diagnostics: Diagnostics) -> None:
    """Who may write the folder can put another file in the config's place; where that is a link, this holds for both folders.

    In a folder with the sticky bit, such as /tmp, nobody can replace the files of others.
    """
    for folder in dict.fromkeys((config_folder(path), path.resolve().parent)):
        found = folder.stat()
        quoted = shlex.quote(str(folder))
        replaces = "the folder of this file, and so replace it and run commands; do: chmod"
        if found.st_mode & stat.S_ISVTX:
            pass
        elif everybody_may(found, MAY_WRITE):
            diagnostics.add_error(NO_POSITION, "", f"everybody may write {folder}, {replaces} o-w {quoted}")
        elif others_may(found, MAY_WRITE):
            diagnostics.add_warning(NO_POSITION, "", f"its group may write {folder}, {replaces} g-w {quoted}")
        if found.st_uid not in (0, os.geteuid()):
            diagnostics.add_warning(
                NO_POSITION,
                "",
                f"{folder} belongs to another user (id {found.st_uid}), who can replace this file and run commands",
            )


def _decode_content(content: bytes, diagnostics: Diagnostics) -> str:
    """The content as text; raises ConfigError for what is no UTF-8."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = yaml_errors.position_after(content[: error.start].decode())
        diagnostics.add_error(place, "", f"the byte 0x{content[error.start]:02x} is not UTF-8; save the file as UTF-8")
        diagnostics.raise_errors()
        raise


def _hash_config(content: bytes, environ: Mapping[str, str]) -> str:
    """SHA-256 (hex) of the file and of the overrides."""
    digest = sha256(content)
    for variable, text in overrides.find_overrides(environ).items():
        digest.update(f"\0{variable}\0{text}".encode(errors="surrogateescape"))
    return digest.hexdigest()

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
from scheduler.config.file.diagnostics import NOWHERE, Complaints, Place
from scheduler.config.file.lenient_reading import folder_of
from scheduler.config.file.marked_yaml import Items, Map
from scheduler.config.file.message_parts import kind
from scheduler.config.keys.respell import respell
from scheduler.system.files import LARGEST, WRITE, everybody_may, open_regular, others_may, read_up_to

MOST_BREAKS = 20  # places that are no YAML, after each of which the reading goes on


@dataclass(frozen=True, slots=True)
class Source:
    """The file as data, overrides and merges applied, before anything in it is understood."""

    root: Map
    agent: Map
    job: Map
    hash: str


def read(
    path: Path, environ: Mapping[str, str], complaints: Complaints, content: bytes | None = None, root: Map | None = None
) -> Source:
    """The file with its overrides; `root` is what `content` holds, where it has been read. Raises ConfigError for no YAML."""
    content = _content(path, complaints) if content is None else content
    document = marked_yaml.Document(root, NOWHERE) if root is not None else _read_on(_text(content, complaints), complaints)
    root = document.node
    if root is None and not complaints.partial:
        complaints.fault(NOWHERE, "", "the file holds no keys; `heartbeatd init DIR` writes one to begin with")
    elif root is not None and not isinstance(root, Map) and not complaints.partial:
        message = f"keys with values are wanted here, not {kind(root)}; `heartbeatd init DIR` writes a config to begin with"
        complaints.fault(document.place, "", message)
    if not isinstance(root, Map):
        complaints.raise_if_any()
        root = Map()
    respell(root, complaints)
    root = overrides.apply(root, environ, complaints)
    complaints.homes = _homes(root)
    return Source(root, _agent_defaults(root), map_at(root, "defaults", "cron"), _hash(content, environ))


def parse(content: bytes, complaints: Complaints) -> Any:
    """What the content holds, as plain data. Raises ConfigError when it cannot be read as YAML."""
    try:
        return marked_yaml.read(_text(content, complaints), complaints)
    except marked_yaml.Unreadable:
        complaints.raise_if_any()
        raise


def _read_on(text: str, complaints: Complaints) -> marked_yaml.Document:
    """What the text holds. Behind what is no YAML the reading goes on, so that it hides none of the other faults; `complaints`
    is then partial, if something had to be left out. Raises ConfigError where nothing more can be read.
    """
    masks: dict[str, str] = {}
    for _ in range(MOST_BREAKS):
        try:
            return marked_yaml.document(text, complaints, masks=masks)
        except marked_yaml.Broken as broken:
            recovery = yaml_errors.recover(broken.error, text, _reads_to)
            place, wrong = (recovery.place, recovery.wrong) if recovery else yaml_errors.explain(broken.error, text)
            complaints.fault(place, broken.path, wrong)
            if recovery is None:
                break
            complaints.partial |= not recovery.masks
            text, masks = recovery.text, {**masks, **recovery.masks}
        except marked_yaml.Unreadable:
            break
    complaints.raise_if_any()
    raise AssertionError("what cannot be read has a fault")


def _reads_to(text: str) -> int:
    """The line up to which a text is YAML."""
    try:
        marked_yaml.document(text, Complaints(""))
    except marked_yaml.Broken as broken:
        return yaml_errors.explain(broken.error, text)[0].line
    except marked_yaml.Unreadable:
        pass
    return len(text)


def _agent_defaults(root: Map) -> Map:
    """What agents inherit: defaults.heartbeat, with the heartbeat of defaults.agent on top."""
    beat, agent = map_at(root, "defaults", "heartbeat"), map_at(root, "defaults", "agent")
    if not beat:
        return agent
    marks = map_at(root, "defaults").marks["heartbeat"]
    return inheritance.merge_agent(Map({"heartbeat": beat}, {"heartbeat": marks}), agent)


def map_at(node: Any, *steps: str) -> Map:
    """The map that these keys lead to; an empty one where there is none."""
    for step in steps:
        node = node.get(step) if isinstance(node, Map) else None
    return node if isinstance(node, Map) else Map()


def _homes(root: Map) -> dict[tuple[int, int], str]:
    """The path of every value under `defaults`, by its place."""
    homes: dict[tuple[int, int], str] = {}
    if "defaults" in root:
        _settle(root["defaults"], ["defaults"], homes)
    return homes


def _settle(node: Any, steps: list[str | int], homes: dict[tuple[int, int], str], above: tuple[int, int] | None = None) -> None:
    """Note the places of keys and of values that are no maps: a map begins where its first key does.

    A place that is noted already has been reached by another alias, and all within it with it.
    """
    for step, at, value in _inside(node):
        inner = [*steps, step]
        place = (at.line, at.column)
        moved = place == above  # there under another name, so that what holds it has no place of its own
        if place in homes and not moved and isinstance(value, Map | Items):
            continue
        if moved:
            homes[place] = marked_yaml.dotted(inner)
        elif isinstance(step, str) or not isinstance(value, Map):
            homes.setdefault(place, marked_yaml.dotted(inner))
        if isinstance(node, Map) and not isinstance(value, Map):
            mark = node.marks[str(step)][1]
            homes.setdefault((mark.line, mark.column), marked_yaml.dotted(inner))
        _settle(value, inner, homes, place)


def _inside(node: Any) -> Iterator[tuple[str | int, Place, Any]]:
    if isinstance(node, Map):
        yield from ((key, node.marks[key][0], value) for key, value in node.items())
    if isinstance(node, Items):
        yield from ((index, node.marks[index], value) for index, value in enumerate(node))


def _content(path: Path, complaints: Complaints) -> bytes:
    try:
        with open_regular(path) as file:
            check_owner(os.fstat(file.fileno()), path, complaints)
            check_folder(path, complaints)
            content = read_up_to(file, LARGEST + 1)
    except OSError as error:
        complaints.fault(
            NOWHERE, "", f"cannot be read: {error.strerror or error}; `heartbeatd init DIR` writes a config to begin with"
        )
        content = b""
    if len(content) > LARGEST:
        complaints.fault(NOWHERE, "", f"is larger than {LARGEST // 1024**2} MiB")
    complaints.raise_if_any()
    return content


def check_owner(found: os.stat_result, path: Path, complaints: Complaints) -> None:
    """A config is code, as a crontab is: who may write it runs commands."""
    quoted = shlex.quote(str(path))
    if everybody_may(found, WRITE):
        complaints.fault(NOWHERE, "", f"everybody may write this file, and with it run commands; do: chmod o-w {quoted}")
    elif others_may(found, WRITE):
        complaints.warn(NOWHERE, "", f"its group may write this file, and with it run commands; do: chmod g-w {quoted}")
    if found.st_uid not in (0, os.geteuid()):
        complaints.warn(NOWHERE, "", f"this file belongs to another user (id {found.st_uid}), who can run commands with it")


def check_folder(path: Path, complaints: Complaints) -> None:
    """Who may write the folder can put another file in the config's place; where that is a link, this holds for both folders.

    In a folder with the sticky bit, such as /tmp, nobody can replace the files of others.
    """
    for folder in dict.fromkeys((folder_of(path), path.resolve().parent)):
        found = folder.stat()
        quoted = shlex.quote(str(folder))
        replaces = "the folder of this file, and so replace it and run commands; do: chmod"
        if found.st_mode & stat.S_ISVTX:
            pass
        elif everybody_may(found, WRITE):
            complaints.fault(NOWHERE, "", f"everybody may write {folder}, {replaces} o-w {quoted}")
        elif others_may(found, WRITE):
            complaints.warn(NOWHERE, "", f"its group may write {folder}, {replaces} g-w {quoted}")
        if found.st_uid not in (0, os.geteuid()):
            complaints.warn(
                NOWHERE, "", f"{folder} belongs to another user (id {found.st_uid}), who can replace this file and run commands"
            )


def _text(content: bytes, complaints: Complaints) -> str:
    """The content as text; raises ConfigError for what is no UTF-8."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = yaml_errors.behind(content[: error.start].decode())
        complaints.fault(place, "", f"the byte 0x{content[error.start]:02x} is not UTF-8; save the file as UTF-8")
        complaints.raise_if_any()
        raise


def _hash(content: bytes, environ: Mapping[str, str]) -> str:
    """SHA-256 (hex) of the file and of the overrides."""
    digest = sha256(content)
    for variable, text in overrides.named(environ).items():
        digest.update(f"\0{variable}\0{text}".encode(errors="surrogateescape"))
    return digest.hexdigest()

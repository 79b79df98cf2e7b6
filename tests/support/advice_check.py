"""Applies a remedy of a diagnostic to the text of a config, so that tests can check the suggestion.

Quotes are added in the text, at the line and column of the error. All other errors are fixed in the data, where the error
points, and written again, one key a line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from config_file import write

from scheduler.config.file import marked_yaml, yaml_errors
from scheduler.config.file.diagnostics import ConfigError, Diagnostic, Diagnostics
from scheduler.config.file.marked_yaml import AmbiguousText, MarkedList, MarkedMap
from scheduler.config.file.remedies import Remedy
from scheduler.config.settings.load import load_config

TOKEN = re.compile(r"(?:\$\{[^}]*\}|[^,{}\[\]#\n]|(?<=\S)#)+")


def refused(folder: Path, text: str, environ: dict[str, str]) -> tuple[Diagnostic, ...]:
    """The errors of a config. Empty if it is accepted."""
    try:
        load_config(write(folder, text), environ)
    except ConfigError as error:
        return error.errors
    return ()


def is_yaml(text: str) -> bool:
    diagnostics = Diagnostics("")
    try:
        marked_yaml.parse_yaml(text, diagnostics)
        diagnostics.raise_errors()
    except (marked_yaml.UnreadableYaml, ConfigError):
        return False
    return True


def untrue(folder: Path, text: str, environ: dict[str, str]) -> Iterator[str]:
    """Apply each remedy of each error of a config separately, and return the remedies that were wrong.

    A suggestion is right if the complaint is gone and no other has come for the same value; and, where there is only one thing
    that can be meant, if no other has come at all. Names are corrected first, then values, as what stands in a map is of no use
    before the map has its name.
    """
    if not is_yaml(text):
        return
    for of_names in (True, False):
        before = refused(folder, text, environ)
        for complaint in before:
            if of_names == _is_of_a_name(complaint):
                yield from _untrue_of(folder, text, environ, before, complaint)
        if of_names:
            text = _with_right_names(folder, text, environ)


def _is_of_a_name(complaint: Diagnostic) -> bool:
    return complaint.message.startswith("unknown key")


def _untrue_of(
    folder: Path, text: str, environ: dict[str, str], before: tuple[Diagnostic, ...], complaint: Diagnostic
) -> Iterator[str]:
    if complaint.remedies and complaint.remedies[0].under:
        text, before, complaint = _with_its_home(folder, text, environ, before, complaint)
    known = {(other.path, other.message) for other in before}
    for remedy in complaint.remedies:
        after = refused(folder, follow(text, complaint, remedy), environ)
        new = [other for other in after if (other.path, other.message) not in known]
        if any((other.path, other.message) == (complaint.path, complaint.message) for other in after):
            yield f"{complaint}: is still said after {remedy}"
        yield from (
            f"{complaint}: {remedy} leads to {other}" for other in new if remedy.is_certain or other.path == complaint.path
        )


def _with_its_home(
    folder: Path, text: str, environ: dict[str, str], before: tuple[Diagnostic, ...], complaint: Diagnostic
) -> tuple[str, tuple[Diagnostic, ...], Diagnostic]:
    """The config in which the map that a key belongs to has its correct name and place."""
    home = complaint.remedies[0].under or ()
    for _ in range(20):
        names = [other for other in before if _is_of_a_name(other) and other.remedies and other.remedies[0].is_certain]
        above = [
            other
            for other in names
            if other.message != complaint.message and (other.remedies[0].key or other.path.split(".")[-1]) in home
        ]
        if not above:
            break
        text = follow(text, above[0], above[0].remedies[0])
        before = refused(folder, text, environ)
        complaint = next(other for other in before if other.message == complaint.message)
    return text, before, complaint


def _with_right_names(folder: Path, text: str, environ: dict[str, str]) -> str:
    for _ in range(20):
        names = [
            found
            for found in refused(folder, text, environ)
            if _is_of_a_name(found) and found.remedies and found.remedies[0].is_certain
        ]
        if not names:
            break
        text = follow(text, names[0], names[0].remedies[0])
    return text


def follow(text: str, complaint: Diagnostic, remedy: Remedy) -> str:
    """The config after one remedy of an error. Raises LookupError if the error does not point at what the remedy changes."""
    if remedy.quote:
        return _quoted(text, complaint)
    root = marked_yaml.parse_yaml(text, Diagnostics(""))
    parent, step = _found(root, complaint)
    _apply(root, parent, step, remedy)
    return "".join(f"{line}\n" for line in _lines(root, 0))


def _quoted(text: str, complaint: Diagnostic) -> str:
    lines = yaml_errors.split_lines(text)
    line = lines[complaint.line - 1]
    before, rest = line[: complaint.column - 1], line[complaint.column - 1 :]
    in_brackets = before.count("{") + before.count("[") > before.count("}") + before.count("]")
    token = TOKEN.match(rest) if in_brackets else re.match(r"[^\n]*?(?=\s+#|\s*$)", rest)
    value = token[0].rstrip() if token else ""
    lines[complaint.line - 1] = before + (" " if before.endswith(":") else "") + json.dumps(value) + rest[len(value) :]
    return "".join(lines)


def _found(root: Any, complaint: Diagnostic) -> tuple[Any, str | int]:
    """The container of the value with the error, and its key or index."""
    node, marks = root, []
    steps = [int(step) if step.isdigit() else step for step in re.findall(r"[^.\[\]]+", complaint.path)]
    for index, step in enumerate(steps):
        if not (step in node if isinstance(node, MarkedMap) else isinstance(node, MarkedList)):
            if isinstance(node, MarkedMap | None) and _is_at(marks, complaint):
                return _made(root, steps[:-1]), steps[-1]
            break
        marks = list(node.marks[step]) if isinstance(node, MarkedMap) else [node.marks[step]]
        if index == len(steps) - 1 and _is_at(marks, complaint):
            return node, step
        node = node[step]
    here = [(node, step) for node, step, marks in _places(root) if _is_at(marks, complaint)]
    if (
        found := next((node[step] for node, step in here if isinstance(node[step], MarkedMap) and step not in steps), None)
        if "is missing" in complaint.message
        else None
    ):
        return found, steps[-1]  # the map is there under a name with a fault of its own
    return next(((node, step) for node, step in here if step == steps[-1]), here[-1] if here else _nothing(complaint))


def _is_at(marks: list[Any], complaint: Diagnostic) -> bool:
    return any((mark.line + 1, mark.column + 1) == (complaint.line, complaint.column) for mark in marks)


def _nothing(complaint: Diagnostic) -> Any:
    raise LookupError(f"nothing is at {complaint}")


def _made(root: Any, steps: list[Any]) -> Any:
    for step in steps:
        if isinstance(root, MarkedMap) and root.get(step) is None:
            root[step] = MarkedMap()
        root = root[step]
    return root


def _places(node: Any) -> Iterator[tuple[Any, str | int, list[Any]]]:
    if isinstance(node, MarkedMap):
        for key, value in node.items():
            yield node, key, list(node.marks[key])
            yield from _places(value)
    if isinstance(node, MarkedList):
        for index, value in enumerate(node):
            yield node, index, [node.marks[index]]
            yield from _places(value)


def _apply(root: Any, parent: Any, step: str | int, remedy: Remedy) -> None:
    if remedy.remove:
        del parent[step]
        return
    if remedy.value is not None:
        parent[step] = remedy.value
    for key, value in remedy.inside:
        if parent[step] is None:
            parent[step] = MarkedMap()
        parent[step][key] = value
    for key, value in remedy.beside:
        parent[key] = value
    if remedy.under is not None:
        home, value = _made(root, list(remedy.under)), parent.pop(step)
        there = home.get(remedy.key or step)
        home[remedy.key or step] = {**there, **value} if isinstance(there, MarkedMap) and isinstance(value, MarkedMap) else value
    elif remedy.key is not None:
        parent[remedy.key] = parent.pop(step)


def _lines(node: Any, depth: int) -> Iterator[str]:
    blank = "  " * depth
    pairs = (
        [(f"{_scalar(str(key), key=True)}:", value) for key, value in node.items()]
        if isinstance(node, dict)
        else [("-", value) for value in node]
    )
    for lead, value in pairs:
        if isinstance(value, dict | list | tuple) and value:
            yield f"{blank}{lead}"
            yield from _lines(value, depth + 1)
        else:
            yield f"{blank}{lead} {_scalar(value)}".rstrip()


def _scalar(value: Any, *, key: bool = False) -> str:
    if isinstance(value, AmbiguousText):
        return str(value)
    if isinstance(value, str):
        return value if key and re.fullmatch(r"[A-Za-z_][\w.-]*", value) else json.dumps(value, ensure_ascii=False)
    if value is None:
        return ""
    return str(value) if isinstance(value, float) else json.dumps(value)

"""Reads a file of another system (JSON, JSON5, YAML, TOML, .env or Markdown) into a tree whose values know their lines.

The files are not trusted. Size, depth and number of values are limited, and a damaged file gives the part that can be read.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime, time
from functools import lru_cache
from itertools import islice
from pathlib import PurePath
from typing import Any

from heartbeat.words import one_line
from scheduler.config.file import marked_yaml
from scheduler.config.file.diagnostics import Diagnostics
from scheduler.config.file.marked_yaml import MarkedList, MarkedMap, UnreadableYaml
from scheduler.config.settings.secrets import parse_variables
from scheduler.extras.importers import json5_reader

MAX_BYTES = 4 * 1024 * 1024  # of one file; the largest real files are job stores of some 100 KB
MAX_VALUES = 20_000  # of one file, with aliases expanded
MAX_DEPTH = 64
MOST_BREAKS = 20  # syntax errors of a file after which its rest is left out
LONGEST_LINE = 2000  # characters; longer lines hold no header of a table and no task, and patterns would take long on them
LARGEST_REPEATED = 200_000  # characters; a longer broken file is not parsed again

PathStep = str | int
Scalar = str | int | float | bool | None
Lines = dict[tuple[PathStep, ...], int]  # of values, from 1, by their steps
NO_LINES: Lines = {}


@dataclass(slots=True, eq=False)
class Node:
    """A value of a source file: a scalar in `value`, or `children` by key or index. `line` counts from 1.

    A value that the file does not have is `MISSING`, which is false and has no text and no children.
    """

    file: str
    steps: tuple[PathStep, ...]
    line: int
    value: Scalar = None
    children: dict[PathStep, Node] = field(default_factory=dict)
    is_container: bool = False

    def __bool__(self) -> bool:
        return self is not MISSING

    @property
    def key(self) -> str:
        """The path as people write it: agents.list[0].heartbeat.every."""
        text = "".join(f"[{step}]" if isinstance(step, int) else f".{one_line(step)}" for step in self.steps)
        return text.removeprefix(".") or "(whole file)"

    @property
    def text(self) -> str:
        """The value as stripped text; empty for a container and for no value."""
        if self.value is None:
            return ""
        return str(self.value).lower() if isinstance(self.value, bool) else str(self.value).strip()

    def with_text(self, text: str) -> Node:
        """A part of the value, at the same place."""
        return Node(self.file, self.steps, self.line, text)

    def get(self, path: str) -> Node:
        """The value at a dotted path. Keys may be spelled in another way: every_ms is everyMs."""
        node = self
        for step in path.split("."):
            node = node._child(step)
        return node

    def first(self, *paths: str) -> Node:
        """The first of the paths that has a value other than null."""
        found = (self.get(path) for path in paths)
        return next((node for node in found if node.is_container or node.value is not None), MISSING)

    def items(self, path: str = "") -> list[tuple[str, Node]]:
        """The children at a path, with their keys as text."""
        node = self.get(path) if path else self
        return [(str(step), child) for step, child in node.children.items()]

    def leaves(self) -> Iterator[Node]:
        """All scalars, and all empty lists and maps. A stack is used because the tree may be deep."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            if node.children:
                waiting.extend(reversed(node.children.values()))
            else:
                yield node

    def _child(self, step: str) -> Node:
        if step in self.children:
            return self.children[step]
        wanted = fold_key(step)
        return next((node for key, node in self.children.items() if isinstance(key, str) and fold_key(key) == wanted), MISSING)


MISSING = Node("", (), 0)


@lru_cache(1 << 12)  # the same few keys are compared again and again
def fold_key(key: str) -> str:
    """A key without its spelling: every_ms and every-ms are everyMs."""
    return key.replace("_", "").replace("-", "").lower()


@dataclass(frozen=True, slots=True)
class Problem:
    """A part of a file that could not be read. `line` is 0 if the file as a whole is meant."""

    file: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{one_line(self.file)}{f':{self.line}' if self.line else ''}: {one_line(self.message)}"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file that was read. `form` is json, yaml, toml, env or markdown; `problems` are the parts that could not be read."""

    name: str
    form: str
    root: Node
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class Files:
    """The files of an import by their kind: configs, the jobs of all job stores, and checklists. `roots` are of all files."""

    roots: Sequence[Node]
    configs: Sequence[Node]
    jobs: Sequence[Node]
    checklists: Sequence[SourceFile]

    def first(self, *paths: str) -> Node:
        """The first text that a config has at one of these paths."""
        return next((found for config in self.configs if (found := config.first(*paths)).text), MISSING)


def sort_files(sources: Sequence[SourceFile]) -> Files:
    """The files by their kind. The jobs of a store are the items of `jobs`, or of a file that is a list."""
    roots = [source.root for source in sources if source.form != "markdown"]
    stores = [root for root in roots if root.get("jobs").is_container or any(isinstance(step, int) for step in root.children)]
    listed = [job for store in stores for _, job in store.items("jobs") or store.items()]
    return Files(
        [source.root for source in sources],
        [root for root in roots if root not in stores],
        [job for job in listed if job.is_container and job.children],
        [source for source in sources if source.form == "markdown"],
    )


def read_source(name: str, content: bytes) -> SourceFile:
    """The tree of a file. Nothing is raised: errors are in `problems`."""
    if len(content) > MAX_BYTES:
        problem = Problem(name, 0, f"is larger than {MAX_BYTES // 1024**2} MiB and was not read")
        return SourceFile(name, "none", Node(name, (), 0, is_container=True), (problem,))
    problems = []
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        problems.append(Problem(name, line, "is not UTF-8 here; unreadable bytes were replaced"))
        text = content.decode("utf-8-sig", errors="replace")
    form = _guess_form(name, text)
    builder = _Builder(name)
    root = _READERS[form](text, builder)
    return SourceFile(name, form, root, (*problems, *builder.problems))


class _Builder:
    """Makes nodes, counts them, and collects the problems of one file."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self._left = MAX_VALUES

    def add_problem(self, line: int, message: str) -> None:
        problem = Problem(self.file, line, message)
        if problem not in self.problems:
            self.problems.append(problem)

    def build(self, data: object, lines: Lines = NO_LINES, line: int = 1, steps: tuple[PathStep, ...] = ()) -> Node:
        """The node of a value on this line. Values beyond the limits are left out and reported.

        `lines` has the lines of the values below it by their steps. Without one there, a value has the line of what it is in.
        """
        if not isinstance(data, dict | list):
            return Node(self.file, steps, line, _to_scalar(data))
        node = Node(self.file, steps, line, is_container=True)
        if len(steps) >= MAX_DEPTH:
            self.add_problem(line, f"is nested more than {MAX_DEPTH} deep; the rest of this value was left out")
            return node
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            at = _marked_line(data, key) or lines.get((*steps, key), line)
            if self._left <= 0:
                self.add_problem(at, f"the file has more than {MAX_VALUES:,} values; the rest was left out")
                break
            self._left -= 1
            step = _clean(key) if isinstance(key, str) else key
            node.children[step] = self.build(value, lines, at, (*steps, step))
        return node


def _marked_line(data: object, key: Any) -> int | None:
    """The line of a value of a YAML file."""
    if isinstance(data, MarkedMap):
        return int(data.marks[key][0].line) + 1
    return int(data.marks[key].line) + 1 if isinstance(data, MarkedList) else None


def _to_scalar(data: object) -> Scalar:
    if isinstance(data, datetime | date | time):
        return data.isoformat()
    if isinstance(data, str):
        return _clean(data)
    return data if isinstance(data, int | float | bool) else None


def _clean(text: str) -> str:
    """The text without lone surrogates, which no UTF-8 file can contain."""
    return text.encode("utf-8", errors="replace").decode()


def _guess_form(name: str, text: str) -> str:
    path = PurePath(name)
    if path.name.startswith(".env") or path.suffix == ".env":
        return "env"
    known = {".json": "json", ".json5": "json", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".md": "markdown"}
    if path.suffix.lower() in known:
        return known[path.suffix.lower()]
    start = re.sub(r"\A(?:\s+|//[^\n]*|/\*.*?\*/)*", "", text, flags=re.DOTALL)[:200]
    if start.startswith("{") or re.match(r"\[\s*[\[{]", start):
        return "json"
    return "toml" if re.search(r"^[ \t]*\[\[?[\w.\"-]{1,200}\]\]?[ \t]*$", text, re.MULTILINE) else "yaml"


def _read_json(text: str, builder: _Builder) -> Node:
    data, lines, errors = json5_reader.read_json5(text, MAX_DEPTH, MAX_VALUES)
    for line, message in errors:
        builder.add_problem(line, message)
    return builder.build(data, lines)


def _read_yaml(text: str, builder: _Builder) -> Node:
    """The data of a YAML file. If the file breaks, the lines before the break are read."""
    lines = text.splitlines(keepends=True)
    total = len(lines)
    for attempt in range(MOST_BREAKS if len(text) <= LARGEST_REPEATED else 1):
        diagnostics = Diagnostics("")
        node: object = None
        with suppress(UnreadableYaml):
            node = marked_yaml.parse_yaml("".join(lines), diagnostics)
        if not attempt:
            for each in diagnostics.errors:
                builder.add_problem(each.line, f"{each.path}: {each.message}" if each.path else each.message)
        if node is not None or not diagnostics.errors:
            if len(lines) < total:
                builder.add_problem(len(lines) + 1, "the file was read up to here")
            return builder.build(node)
        cut = min((each.line for each in diagnostics.errors if each.line), default=1)
        lines = lines[: max(0, min(cut - 1, len(lines) - 1 - attempt * attempt))]
    builder.add_problem(0, "nothing of this file could be read")
    return builder.build({})


def _read_toml(text: str, builder: _Builder) -> Node:
    """The data of a TOML file. A line that breaks it is reported and left out."""
    lines = text.splitlines()
    for _ in range(MOST_BREAKS):
        try:
            data = tomllib.loads("\n".join(lines) + "\n")
            return builder.build(data, _find_toml_lines(lines))
        except tomllib.TOMLDecodeError as error:
            place = re.search(r"line (\d+)", str(error))
            line = min(int(place[1]) if place else len(lines), len(lines))
            builder.add_problem(line, f"this is not TOML ({str(error).partition(' (at ')[0]}); the line was left out")
            if line < 1:
                break
            lines[line - 1] = ""
        except RecursionError:
            builder.add_problem(0, "is nested too deep")
            break
    else:
        builder.add_problem(0, "is not TOML")
    return builder.build({})


def _find_toml_lines(lines: list[str]) -> Lines:
    """The line of each table and key. tomllib does not report positions."""
    found: Lines = {}
    table: tuple[PathStep, ...] = ()
    counts: dict[tuple[PathStep, ...], int] = {}
    for number, line in enumerate(lines, 1):
        if len(line) > LONGEST_LINE:
            continue
        header = re.match(r"\s*(\[\[?)\s*(.+?)\s*\]\]?\s*(?:#.*)?$", line)
        if header and (keys := _split_toml_key(header[2])):
            table = _inside_arrays(keys, counts)
            if header[1] == "[[":
                counts[table] = counts.get(table, -1) + 1
                table = (*table, counts[table])
            found.setdefault(table, number)
        elif assigned := re.match(
            r"\s*((?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|\"[^\"]*\"))*)\s*=", line
        ):
            keys = _split_toml_key(assigned[1])
            for end in range(1, len(keys) + 1):
                found.setdefault((*table, *keys[:end]), number)
    return found


def _inside_arrays(keys: tuple[str, ...], counts: dict[tuple[PathStep, ...], int]) -> tuple[PathStep, ...]:
    """The steps of a table header: a table below [[name]] belongs to the last item of that array."""
    steps: tuple[PathStep, ...] = ()
    for index, key in enumerate(keys):
        steps = (*steps, key)
        if steps in counts and index < len(keys) - 1:
            steps = (*steps, counts[steps])
    return steps


def _split_toml_key(text: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in re.findall(r"\"[^\"]*\"|'[^']*'|[A-Za-z0-9_-]+", text))


def _read_env(text: str, builder: _Builder) -> Node:
    """The variables of a .env file."""
    made: dict[str, str] = {}
    lines: Lines = {}
    for line, name, value in islice(parse_variables(text), MAX_VALUES + 1):  # the last one is reported
        if value is None:
            builder.add_problem(line, "is not NAME=value; the line was left out")
        else:
            made[name], lines[name,] = value, line
    return builder.build(made, lines)


def _without_quotes(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value


_TASK_KEY = re.compile(r"(?P<start>\s*-\s+|\s+)(?P<key>name|interval|prompt)\s*:\s*(?P<value>.*)")


def _read_markdown(text: str, builder: _Builder) -> Node:
    """The tasks of a `tasks:` block in OpenClaw's format under `tasks`, and all other lines with text under `lines`."""
    tasks: list[dict[str, str]] = []
    rest: dict[str, str] = {}
    lines: Lines = {}
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        if re.fullmatch(r"tasks:\s*", line):
            inside = True
            continue
        found = _TASK_KEY.fullmatch(line) if inside and len(line) <= LONGEST_LINE else None
        if found and (tasks or "-" in found["start"]):
            if "-" in found["start"]:
                tasks.append({})
                lines["tasks", len(tasks) - 1] = number
            tasks[-1][found["key"]] = _without_quotes(found["value"].strip())
            lines["tasks", len(tasks) - 1, found["key"]] = number
            continue
        inside = False
        rest[f"line {number}"], lines["lines", f"line {number}"] = line.rstrip(), number
    return builder.build({key: part for key, part in (("tasks", tasks), ("lines", rest)) if part}, lines)


_READERS = {"json": _read_json, "yaml": _read_yaml, "toml": _read_toml, "env": _read_env, "markdown": _read_markdown}

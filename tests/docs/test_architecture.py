"""ARCHITECTURE.md is true: its files exist, its paths follow the imports, and its table of modules is the order of the layers."""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from pathlib import Path

import pytest
from checkout import HOME
from test_layers import ROOMS_FROM_THE_GROUND
from world import open_store

PAGE = (HOME / "ARCHITECTURE.md").read_text("utf-8")
PATHS = re.findall(r"^### (.+?)\n\n((?:\d+\. .+\n)+)", PAGE, re.MULTILINE)
MOST_FILES = 15


def imported_files(file: str) -> set[str]:
    """The files of this repository that a file imports."""
    found = set()
    for node in ast.walk(ast.parse((HOME / file).read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                found.add(name.replace(".", "/") + ".py")
    return found


def test_there_are_three_paths() -> None:
    assert [title for title, _ in PATHS] == [
        "From `interval: 30m` to its run record",
        "From a wake to the prompt",
        "From an answer to Telegram",
    ]


@pytest.mark.parametrize("steps", [steps for _, steps in PATHS], ids=[title for title, _ in PATHS])
def test_each_file_of_a_path_imports_its_neighbour(steps: str) -> None:
    files = re.findall(r"^\d+\. `(.+?)`", steps, re.MULTILINE)
    assert len(files) == steps.count("\n")
    assert len(files) <= MOST_FILES
    assert [file for file in files if not (HOME / file).is_file()] == []
    neighbours = list(pairwise(files))
    assert [
        pair for pair in neighbours if pair[1] not in imported_files(pair[0]) and pair[0] not in imported_files(pair[1])
    ] == []


@pytest.mark.extras
def test_the_table_of_modules_is_the_order_of_the_layers() -> None:
    section = PAGE.split("## Modules\n")[1].split("\n## ")[0]
    assert re.findall(r"^\| `(\w+)/` \|", section, re.MULTILINE) == list(ROOMS_FROM_THE_GROUND)
    folders = {path.parent.name for path in (HOME / "scheduler").glob("*/__init__.py")}
    assert folders == set(ROOMS_FROM_THE_GROUND)


@pytest.mark.extras
def test_each_file_that_the_page_names_exists() -> None:
    """A name without a package, such as `engine/settle`, is a module of the scheduler."""
    named = re.findall(r"`((?:[\w]+/)+[\w]*(?:\.py)?)`", PAGE)
    assert len(named) > 60
    roots = (HOME, HOME / "scheduler", HOME / "scheduler" / "config", HOME / "heartbeat")
    missing = [
        name for name in named if not any((root / name).exists() or (root / name).with_suffix(".py").exists() for root in roots)
    ]
    assert missing == []


def test_the_page_lists_every_table(tmp_path: Path) -> None:
    section = PAGE.split("## Tables\n")[1].split("\n## ")[0]
    store = open_store(tmp_path / "heartbeatd.db")
    tables = store.connection.execute(
        "select name from sqlite_master where type = 'table' and name not glob '[_s]*_*'"
    ).fetchall()
    store.close()
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == {row["name"] for row in tables}

"""The code works with every supported Python, from 3.11.2 on."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from re import _parser  # the only parser that shows the parts of a regular expression
from typing import Any

from checkout import HOME
from loops import loop_over

SOURCES = sorted(
    path
    for top in ("scheduler", "heartbeat", "cron", "heartbeatd", "agents", "bench", "grafana", "tests")
    for path in (HOME / top).rglob("*.py")
)
# These match wrongly before 3.11.5: python/cpython#106052 and #100061.
UNRELIABLE = {"POSSESSIVE_REPEAT", "ATOMIC_GROUP"}


# Only the files whose text has one of these forms are parsed, because parsing takes many times as long as searching.
UNRELIABLE_TEXT = re.compile(r"[*+?}]\+|\(\?>|\(\?\(")
NUMBERED = re.compile(r"[ (,]\?\d")


def test_no_regular_expression_has_a_possessive_quantifier_or_an_atomic_group() -> None:
    assert [place for place, text in _strings(UNRELIABLE_TEXT) if UNRELIABLE & set(_parts(text))] == []


def test_no_sql_statement_numbers_its_parameters() -> None:
    """Python 3.12.0 to 3.12.3 (Ubuntu 24.04) warns about each: python/cpython#117995. Names are also clearer."""
    assert [place for place, text in _strings(NUMBERED) if NUMBERED.search(text)] == []


@loop_over("pattern", ["a++", "(?:ab)*+x", "a?+", "a{2,3}+", "(?>a|b)", "x(?=a|(?:b|c++))", "(?(1)a|b*+)(d)"])
def test_the_search_finds_each_pattern(pattern: str, tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    doubled = pattern.replace("{", "{{").replace("}", "}}")
    source.write_text(f"import re\nINNER = 'x'\nOUTER = re.compile(rf'{{INNER}}{doubled}')\n")
    assert [line for line, text in _texts(source) if UNRELIABLE & set(_parts(text))] == [3]


def _strings(form: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """The place and the text of each string in the source files that have a text of this form. Without this file."""
    for path in SOURCES:
        if path != Path(__file__) and form.search(path.read_text("utf-8")):
            yield from ((f"{path.relative_to(HOME)}:{line}: {text}", text) for line, text in _texts(path))


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """Every string of a source file that is not prose, with one character in place of each inserted value."""
    tree = ast.parse(path.read_text("utf-8"))
    inner = {
        id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node) if part is not node
    }
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)} | {id(part) for part in _samples(tree)}
    for node in ast.walk(tree):
        if id(node) in inner or id(node) in prose:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(str(part.value) if isinstance(part, ast.Constant) else "(?:x)" for part in node.values)


def _samples(tree: ast.AST) -> Iterator[ast.AST]:
    """The patterns that this file looks for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.parametrize":
            yield from (part for argument in node.args[1:] for part in ast.walk(argument))


def _parts(text: str) -> Iterator[str]:
    """The operation names of a text parsed as a regular expression. Empty if it is not one."""
    try:
        with warnings.catch_warnings(action="ignore"):
            yield from _operations(_parser.parse(text))
    except (re.error, OverflowError, RecursionError):
        return


def _operations(node: Any) -> Iterator[str]:
    if isinstance(node, _parser.SubPattern | tuple | list):
        for part in node:
            yield from _operations(part)
    elif hasattr(node, "name"):
        yield node.name

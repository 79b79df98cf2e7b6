"""Each promise has a row in tests/guarantees.md, with the tests that show it."""

from __future__ import annotations

import ast
import re
from functools import cache

from checkout import HOME

PAGE = (HOME / "tests/guarantees.md").read_text("utf-8")
ROWS = re.findall(r"^\| (\w-\d\d) \| (.+) \| (.+) \|$", PAGE, re.MULTILINE)

# The numbers of each subject, without those that are free for more.
LAST = {"R-0": 8, "R-1": 9, "R-2": 5, "R-3": 7, "R-4": 6, "R-5": 4, "R-6": 9, "R-7": 3, "S-0": 9, "S-1": 9, "S-2": 5}
PROMISES = [f"{tens}{number}" for tens, last in LAST.items() for number in range(tens in ("R-0", "S-0"), last + 1)]


@cache
def names_in(file: str) -> frozenset[str]:
    """The test functions of a file in tests/."""
    return frozenset(
        node.name for node in ast.parse((HOME / "tests" / file).read_text("utf-8")).body if isinstance(node, ast.FunctionDef)
    )


def test_each_promise_has_one_row() -> None:
    assert [number for number, _, _ in ROWS] == PROMISES
    assert len({promise for _, promise, _ in ROWS}) == len(ROWS)


def test_each_test_of_a_row_exists() -> None:
    for number, _, shown_by in ROWS:
        tests = re.findall(r"`([\w/]+\.py)::(test_\w+)`", shown_by)
        assert "<br>".join(f"`{file}::{name}`" for file, name in tests) == shown_by, number
        assert len(set(tests)) == len(tests), number
        assert [name for file, name in tests if name not in names_in(file)] == [], number

"""The slips that `make mutants` plants."""

from __future__ import annotations

import pytest
from mutants import Mutant, candidates, plant, sources

from bench.mutants import in_children
from heartbeat.words import format_count
from scheduler.store import wakes

WORDS = "heartbeat/words.py"
WAKES = "scheduler/store/wakes.py"


@pytest.mark.parametrize(
    ("line", "slips"),
    [
        ("return a < b", ["`a < b` -> `a <= b`"]),
        ("return a and b", ["`a and b` -> `a or b`", "`a and b` -> `b`", "`a and b` -> `a`"]),
        ("return f(key=a)", ["`f(...)` without `key=a`"]),
        ("return max(a, b)", ["`max(a, b)` -> `min(a, b)`"]),
        ("return a if b else c", ["`a if b else c` -> `c if b else a`"]),
        ("return [a for a in b if a]", ["without the filter `a`"]),
        ("return a | b", ["`a | b` -> `a`", "`a | b` -> `b`"]),
        ("return not a", ["`not a` -> `a`"]),
        ("return 1", ["`1` -> `2`"]),
        ("a.append(b)", ["without `a.append(b)`"]),
        ("log.debug(b)", []),
        ("log_event('event', b=b if a else 1)", []),
        ("return 'a text with = and and'", []),
        (
            "return 'delete from wake where name = ?'",
            ["SQL `where name = ?` -> `where (name = ? or 1 = 1)` in `delete from wake ...`"],
        ),
    ],
)
def test_each_kind_of_line_has_its_slips(line: str, slips: list[str]) -> None:
    found = candidates("any.py", f"def function(a, b, c, log):\n    {line}\n")
    assert [(each.line, each.function, each.says) for each in found] == [(2, "function", says) for says in slips]


def test_a_slip_in_the_name_of_a_type_is_not_planted() -> None:
    source = "Start = tuple[datetime | None, str]\n_Row = TypeVar('_Row', covariant=True)\nLIMIT = 3\n"
    assert [each.says for each in candidates("any.py", source)] == ["`3` -> `4`"]


def find(file: str, says: str) -> Mutant:
    return next(each for each in candidates(file, sources(file)[file]) if says in each.says)


def test_a_slip_is_planted_in_one_process_only() -> None:
    def count_with(slip: Mutant) -> str:
        plant(slip)
        return format_count(1, "run")

    slip = find(WORDS, "number == 1")
    assert list(in_children([slip], count_with, lambda _: 0, ends_at=float("inf"))) == [(slip, "1 runs")]
    assert format_count(1, "run") == "1 run"


def test_a_slip_in_a_constant_reaches_the_constants_that_are_made_from_it() -> None:
    def statement_with(slip: Mutant) -> str:
        plant(slip)
        return wakes.JOIN_NEWER

    slip = find(WAKES, "and sender = :sender")
    ((_, text),) = in_children([slip], statement_with, lambda _: 0, ends_at=float("inf"))
    assert text == wakes.JOIN_NEWER.replace("sender = :sender", "(sender = :sender or 1 = 1)")


def test_a_process_that_dies_or_hangs_with_a_slip_has_noticed_it() -> None:
    assert list(in_children(["slip"], lambda _: exit(1), lambda _: 0, ends_at=float("inf"))) == [("slip", "crash")]

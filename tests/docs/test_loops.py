"""A test that loops over its cases runs each of them and names those that fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from loops import loop_over


def test_every_case_is_run_and_each_failed_one_is_named(tmp_path: Path) -> None:
    seen = []

    @loop_over("number, word", [(1, "a"), (2, "b"), (3, "c")])
    @loop_over("sign", "+-")
    def each(number: int, word: str, sign: str, tmp_path: Path) -> None:
        seen.append(f"{sign}{number}{word}")
        (tmp_path / "new").mkdir()
        assert number != 2 or sign != "-"

    with pytest.raises(ExceptionGroup) as caught:
        each(tmp_path=tmp_path)

    assert seen == ["+1a", "-1a", "+2b", "-2b", "+3c", "-3c"]
    assert str(caught.value) == "1 of 3 cases failed (1 sub-exception)"
    [of_number] = caught.value.exceptions
    assert isinstance(of_number, ExceptionGroup)
    assert of_number.__notes__[0].startswith("case number=2, word='b', tmp_path=")
    assert of_number.exceptions[0].__notes__[0].startswith("case sign='-', tmp_path=")

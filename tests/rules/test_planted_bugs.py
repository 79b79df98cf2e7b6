"""The former bugs that `python -m bench.planted` plants."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.planted import PATCHES, plant


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_a_former_bug_can_be_planted_into_a_copy_of_the_code(patch: Path, tmp_path: Path) -> None:
    plant(patch, tmp_path)

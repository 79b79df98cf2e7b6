"""How much the long simulations do: little and always the same in `make test`, much and with new seeds in `make simulate`."""

from __future__ import annotations

import os

import pytest

SEED = os.environ.get("HEARTBEATD_TEST_SIMULATE", "")  # the first seed of `make simulate`; empty in all other runs
IS_LONG = bool(SEED)
STEPS = int(os.environ.get("HEARTBEATD_TEST_STEPS") or 100)  # of a seed of the simulator
IS_CI = bool(os.environ.get("HEARTBEATD_TEST_CI"))


def size(short: int, long: int, in_ci: int | None = None) -> int:
    """The size of a simulation in `make test`, in `make simulate`, and in CI if it is another one there."""
    return long if IS_LONG else in_ci if IS_CI and in_ci else short


def seeds(short: int, long: int, in_ci: int | None = None) -> pytest.MarkDecorator:
    """Runs a test with this many seeds: the same ones in `make test`, and new ones in `make simulate`, named in a failed test."""
    first = int(SEED) if IS_LONG else 1
    return pytest.mark.parametrize("seed", range(first, first + size(short, long, in_ci)))

"""What all tests share: the zone rules of the tzdata package, and a world to play in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from world import World

settings.register_profile("steady", deadline=None)  # how long an example takes says how busy the machine is
settings.load_profile("steady")


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Callable[..., World]]:
    """`play(yaml, **more)` gives a world; its database is closed afterwards."""
    worlds: list[World] = []

    def begin(yaml: str, **more: Any) -> World:
        worlds.append(World(tmp_path, yaml, **more))
        return worlds[-1]

    yield begin
    for world in worlds:
        world.store.close()

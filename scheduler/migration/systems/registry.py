"""Lists the systems that `heartbeatd import` knows."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from scheduler.migration.system import System

# In the order of the help text. Each name is a module in this folder with a constant SYSTEM.
NAMES = ("openclaw", "goclaw", "picoclaw", "mistermorph", "nanobot", "claw0", "zeroclaw", "hermes")


def load_system(name: str) -> System:
    """The system of this name, which is one of NAMES. Only its module is imported."""
    system: System = import_module(f"scheduler.migration.systems.{name}").SYSTEM
    return system


def load_all() -> Mapping[str, System]:
    """All systems by name."""
    return {name: load_system(name) for name in NAMES}

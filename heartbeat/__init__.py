"""The rules of heartbeats: schedules and active hours, checks before a run, prompts, and the verdict on answers.

`heartbeat.beat(...)` does one run for programs without the daemon. It is imported at its first use.
"""

from importlib import import_module

__all__ = ["Beat", "beat"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("heartbeat.library"), name)

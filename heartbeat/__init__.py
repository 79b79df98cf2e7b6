"""The rules of heartbeats: schedules and active hours, checks before a run, prompts, and the verdict on answers.

`heartbeat.beat(Spec(...), now=...)` does one run for programs without the daemon. Both are imported at their first use.
"""

from importlib import import_module

__all__ = ["Beat", "Spec", "beat"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("heartbeat.library"), name)

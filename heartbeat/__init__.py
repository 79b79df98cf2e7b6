"""What a heartbeat is: its cadence and hours, whether it may run, what is asked, how an answer is judged.

`heartbeat.beat(...)` is one beat for programs without the daemon; it is imported when it is first used.
"""

from importlib import import_module

__all__ = ["Beat", "beat"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("heartbeat.library"), name)

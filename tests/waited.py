"""Runners and the wire for those who just wait for them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from heartbeat.waiting import here

P = ParamSpec("P")
T = TypeVar("T")


def waited(work: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """`work` as a plain function, which waits in its caller's thread."""

    @wraps(work)
    def done(*args: P.args, **more: P.kwargs) -> T:
        return here(work(*args, **more))

    return done

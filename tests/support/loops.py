"""Runs many cheap cases as one test: each test of its own costs some milliseconds in every worker, and a line to read."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

MOST_SHOWN = 10  # failed cases with their tracebacks


def loop_over(names: str | tuple[str, ...], cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Like `pytest.mark.parametrize`, but as one test. It fails with every case that has failed.

    Each case has a `tmp_path` of its own. The cases share all other fixtures.
    """
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
    listed = list(cases)
    assert listed, "no cases"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def looped(**fixtures: Any) -> None:
            failed = []
            for number, case in enumerate(listed):
                values = dict(zip(keys, case if len(keys) > 1 else [case], strict=True))
                if "tmp_path" in fixtures:
                    values["tmp_path"] = fixtures["tmp_path"] / str(number)
                    values["tmp_path"].mkdir()
                try:
                    test(**fixtures | values)
                except Exception as error:  # noqa: BLE001 (any of them fails the case, and the other cases follow)
                    error.add_note("case " + ", ".join(f"{name}={value!r:.200}" for name, value in values.items()))
                    failed.append(error)
            if failed:
                raise ExceptionGroup(f"{len(failed)} of {len(listed)} cases failed", failed[:MOST_SHOWN])

        signature = inspect.signature(test)
        left = [parameter for name, parameter in signature.parameters.items() if name not in keys]
        looped.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return looped

    return decorate

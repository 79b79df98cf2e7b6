"""Runs as a script in a child process: calls one Python callable and writes its result as JSON.

It uses only the standard library and nothing of this project. What the callable prints goes to standard error, so that it
cannot mix with the result. Exceptions are not caught: the parent process sees the traceback and the exit code.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from importlib import import_module
from io import BytesIO
from operator import attrgetter
from pathlib import Path


def load_callable(call: str) -> Callable[[dict[str, object]], object]:
    """The callable named `package.module:function`. Raises ImportError or AttributeError if it does not exist, TypeError if it
    cannot be called.
    """
    module, _, name = call.partition(":")
    if not module or not name:
        raise ImportError(f"{call!r} does not name a callable; write package.module:function")
    found = attrgetter(name)(import_module(module))
    if not callable(found):
        raise TypeError(f"{call!r} is not callable")
    return found  # type: ignore[no-any-return]  # its return type is unknown


def main(call: str) -> None:
    """Read the request from standard input, call the callable and write what it returns."""
    run, answers = _take_streams()
    sys.path.insert(0, str(Path.cwd()))
    try:
        function = load_callable(call)
    except (ImportError, AttributeError, TypeError) as error:
        _write_answer(answers, {"missing": f"{type(error).__name__}: {error}"})
        return
    value = function(run)
    known = value is None or isinstance(value, str | dict)
    _write_answer(answers, {"answer": value} if known else {"returned": type(value).__name__})


def _take_streams() -> tuple[dict[str, object], int]:
    """Read the request from standard input, and return it with a descriptor for the result. Standard input is empty afterwards,
    and standard output leads to standard error.
    """
    run = json.load(BytesIO(sys.stdin.buffer.read()))
    # A pipe without a writer, as /dev/null is missing in some containers and an ordinary file with text in others.
    empty, writer = os.pipe()
    os.close(writer)
    os.dup2(empty, 0)
    os.close(empty)
    answers = os.dup(1)
    os.dup2(2, 1)
    return run, answers


def _write_answer(answers: int, value: dict[str, object]) -> None:
    with os.fdopen(answers, "wb") as out:
        out.write(json.dumps(value, ensure_ascii=False).encode(errors="replace"))


if __name__ == "__main__":
    main(sys.argv[1])

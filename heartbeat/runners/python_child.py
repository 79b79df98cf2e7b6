"""The other side of a callable: run as a script in a process of its own, it calls what it is named and writes one JSON answer.

It knows nothing of the rest of the house and needs nothing but the standard library. What the callable prints goes to
standard error, so that it cannot mix with the answer. An exception is not caught: its traceback and the exit code tell it.
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
    """The callable named `package.module:function`; ImportError or AttributeError if it is not there, TypeError if none."""
    module, _, name = call.partition(":")
    if not module or not name:
        raise ImportError(f"{call!r} does not name a callable; write package.module:function")
    found = attrgetter(name)(import_module(module))
    if not callable(found):
        raise TypeError(f"{call!r} is not callable")
    return found  # type: ignore[no-any-return]  # that it gives something back is all that is known of it


def main(call: str) -> None:
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
    """The run from standard input, and the answer's own way out: what was standard output now leads to standard error."""
    run = json.load(BytesIO(sys.stdin.buffer.read()))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    answers = os.dup(1)
    os.dup2(2, 1)
    return run, answers


def _write_answer(answers: int, value: dict[str, object]) -> None:
    with os.fdopen(answers, "wb") as out:
        out.write(json.dumps(value, ensure_ascii=False).encode(errors="replace"))


if __name__ == "__main__":
    main(sys.argv[1])

"""The percent signs of a crontab line: what the shell is given, and what the command reads.

The rules are those of Debian's cron (do_command.c), tried against the program itself.
"""

from __future__ import annotations

import re

_ESCAPE = re.compile(r"\\([%\\])")
_END = re.compile(r"(?:[^\\%]+|\\.|\\\Z)*", re.DOTALL)
_TO_ESCAPE = re.compile(r"%|\\(?=[%\\]|\Z)")


def split_command(text: str) -> tuple[str, str]:
    r"""The command and its standard input.

    The first `%` that no backslash escapes ends the command. In the command `\%` is a percent sign and two backslashes are
    one; in the input `\%` is a percent sign and any other `%` a line break, and the last line is always ended.
    """
    end = _command_end(text)
    command = _ESCAPE.sub(r"\1", text[:end])
    given = text[end + 1 :].replace("\\%", "\0").replace("%", "\n").replace("\0", "%")
    return command, f"{given}\n" if given and not given.endswith("\n") else given


def join_command(command: str, stdin: str) -> str:
    """The text that `split` takes apart again; what no text can say (see docs/crontab.md) comes back as something else."""
    text = _TO_ESCAPE.sub(r"\\\g<0>", command)
    if not stdin:
        return text
    if stdin.endswith("\n") and stdin.strip("\n") and not stdin.endswith("\n\n"):
        stdin = stdin[:-1]
    return f"{text}%{stdin.replace('%', chr(92) + '%').replace(chr(10), '%')}"


def _command_end(text: str) -> int:
    found = _END.match(text)
    return found.end() if found else 0

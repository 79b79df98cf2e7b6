"""Names for cron jobs that are imported from a crontab, taken from their commands."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

MAX_NAME_LENGTH = 50  # characters, so that there is room for a number

_HEADING = re.compile(r"heartbeatd: cron/([A-Za-z0-9_][A-Za-z0-9._-]{0,62})")
_PARTS = re.compile(r"&&|\|\|?|;|[(){}]|\bthen\b|\bdo\b")
_SUBSTITUTED = re.compile(r"\$\([^()]*\)|`[^`]*`|'[^']*[ (][^']*'|\"[^\"]*[ (][^\"]*\"")  # command substitutions and quoted text
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=\S*")
_SCRIPT_SUFFIX = re.compile(r"\.(?:sh|bash|py|pl|rb|php|js)$")
_INVALID_CHARACTERS = re.compile(r"[^A-Za-z0-9._]+")
_OPTION = re.compile(r"-.*|[+.0-9:]+[smhd]?")

# Programs that only prepare the line, programs that start another program, and interpreters whose first argument is the program.
_PREPARING = frozenset(
    "cd test [ [[ : true if elif while command sleep umask export source . set exit date echo".split()  # noqa: SIM905
)
_STARTING = frozenset("nice ionice timeout chronic env exec time nohup setsid flock sudo ! else".split())  # noqa: SIM905
_TAKING = frozenset("sh bash dash zsh ksh python python3 perl php ruby node run-parts".split())  # noqa: SIM905


class JobNamer:
    """Chooses names that are not used yet."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        self._tried: Counter[str] = Counter()

    def free_name(self, command: str, wanted: str = "") -> str:
        """A free name: `wanted`, or else a name taken from the command. If it is taken, a number is appended."""
        wanted = name = wanted or name_from_command(command)
        while name in self._taken:
            self._tried[wanted] += 1
            name = f"{wanted[:MAX_NAME_LENGTH]}-{self._tried[wanted] + 1}"
        self._taken.add(name)
        return name


def name_comment(name: str) -> str:
    """The comment in a crontab that names the job below it."""
    return f"heartbeatd: cron/{name}"


def name_in_comment(comment: str) -> str:
    """The job name in such a comment. Empty for any other comment."""
    found = _HEADING.fullmatch(comment)
    return found[1] if found else ""


def name_from_command(command: str) -> str:
    """A valid job name for a command: its main program, without the folder."""
    for part in _PARTS.split(_SUBSTITUTED.sub("", command)):
        if found := _to_valid_name(_main_program(part)):
            return found
    return "job"


def _main_program(part: str) -> str:
    words = [word for word in part.split() if not _ASSIGNMENT.fullmatch(word)]
    while words and (starter := _base_name(words[0])) in _STARTING:
        words = [word for word in words[1:] if not _ASSIGNMENT.fullmatch(word)]
        while words and _OPTION.fullmatch(words[0]):
            words = words[1:]
        words = words[starter == "flock" :]  # skip its lock file
    if not words or _base_name(words[0]) in _PREPARING:
        return ""
    if _base_name(words[0]) not in _TAKING:
        return words[0]
    if "-e" in words:  # the program is in the line itself
        return ""
    return next((word for word in words[1:] if not _OPTION.fullmatch(word)), words[0])


def _base_name(word: str) -> str:
    return word.rstrip("/").rpartition("/")[2]


def _to_valid_name(word: str) -> str:
    return (
        _INVALID_CHARACTERS.sub("-", _SCRIPT_SUFFIX.sub("", _base_name(word.strip("'\"`$\\"))))
        .strip("-.")[:MAX_NAME_LENGTH]
        .strip("-.")
    )

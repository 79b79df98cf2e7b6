"""Resolves references to secrets in values: from the environment, from the env_file or from a file."""

from __future__ import annotations

import io
import re
import shlex
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from dotenv.parser import parse_stream

from heartbeatd.secret import HOW_TO_SET, MissingSecret, Secret
from heartbeatd.state_folder import open_regular, resolve_path
from scheduler.system.files import MAY_ANYTHING, others_may

LARGEST_FILE = 64 * 1024
CREDENTIALS_VARIABLE = "CREDENTIALS_DIRECTORY"

# Names of variables with secret values, and names of variables without.
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASS|PWD_|CREDENTIAL|AUTH|COOKIE|DSN", re.IGNORECASE)
_OPEN_NAMES = re.compile(r"PATH|HOME|SHELL|USER|LOGNAME|LANG|LANGUAGE|LC_[A-Z]+|TZ|TERM|PWD|TMPDIR|EDITOR|PAGER|PYTHON[A-Z]+")
_OPEN_VALUE = re.compile(r"\.{0,2}/.*|~.*|[A-Za-z]*|[0-9.,:-]*", re.DOTALL)
SHORTEST_SECRET = 8  # characters; a shorter value in the file itself is not treated as a secret unless its name says so

_REFERENCE = re.compile(r"\$\{(?:file:(?P<file>[^}]+)|(?P<name>[A-Za-z_][A-Za-z0-9_]*))\}")
_NOTHING_SECRET = re.compile(r"(Bearer |Basic |[A-Za-z][A-Za-z0-9+.-]*://)?[/:@?&=]*(\{target\})?/?")
_BARE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class UnsetSecret(ValueError):
    """A reference to a variable or file that does not exist or is empty."""


class SecretResolver:
    """Resolves references. Without `environ` nothing is looked up, and every text with a reference is empty.

    `for_worker`: a reference without a value becomes a `MissingSecret`, and resolved values are not checked.
    """

    def __init__(self, folder: Path, environ: Mapping[str, str] | None, *, for_worker: bool = False) -> None:
        self._folder = folder
        self._environ = environ
        self._for_worker = for_worker

    def resolve_references(self, text: str) -> Secret:
        """The text with its references resolved; references in the resolved values are not.

        Raises UnsetSecret for a reference without a value, ValueError for text that only looks like a reference.
        """
        if "${" in _REFERENCE.sub("", text):
            raise ValueError("this contains an invalid reference; write ${NAME} or ${file:PATH}")
        if found := _BARE.fullmatch(text):
            raise ValueError(f'a reference needs braces; write "${{{found[1]}}}"')
        if self._environ is None and has_reference(text):
            return Secret("", is_checked=False)
        try:
            return Secret(_REFERENCE.sub(self._look_up_reference, text), is_checked=not self._for_worker)
        except UnsetSecret as unset:
            if not self._for_worker:
                raise
            return MissingSecret(str(unset))

    def find_variable(self, name: str) -> Secret | None:
        """The value of a variable; None if it has none."""
        value = self._environ.get(name) if self._environ else None
        return Secret(value) if value else None

    def _look_up_reference(self, found: re.Match[str]) -> str:
        if name := found["name"]:
            assert self._environ is not None
            if value := self._environ.get(name):
                return value
            problem = "is not set" if value is None else "is empty"
            raise UnsetSecret(f"{name} {problem}; {HOW_TO_SET}")
        path = self._expand_credentials(found["file"])
        try:
            if value := _read_small_file(resolve_path(self._folder, path)).removesuffix("\n").removesuffix("\r"):
                return value
            raise UnsetSecret(f"{found['file']} is empty; write the secret into it")
        except OSError as error:
            raise UnsetSecret(f"{found['file']} cannot be read: {error.strerror or error}") from None
        except UnicodeDecodeError:
            raise UnsetSecret(f"{found['file']} is not UTF-8 text") from None

    def _expand_credentials(self, path: str) -> str:
        """The path with $CREDENTIALS_DIRECTORY at its beginning replaced: systemd sets it for LoadCredential=."""
        first, slash, rest = path.partition("/")
        if first != f"${CREDENTIALS_VARIABLE}":
            return path
        assert self._environ is not None
        folder = self._environ.get(CREDENTIALS_VARIABLE)
        if not folder:
            problem = f"{CREDENTIALS_VARIABLE} is not set; systemd sets it for a service with LoadCredential="
            raise UnsetSecret(f"{problem}, in a shell set it to a folder with the file {rest}")
        return f"{folder}{slash}{rest}"


def has_only_references(text: str) -> bool:
    """Whether a text has references and contains nothing else that could be secret: a scheme, a `{target}`, the word Bearer."""
    return has_reference(text) and _NOTHING_SECRET.fullmatch(_REFERENCE.sub("", text)) is not None


def has_reference(text: str) -> bool:
    """Whether a text contains a reference."""
    return _REFERENCE.search(text) is not None


def is_secret_variable(name: str, text: str) -> bool:
    """Whether the value of a variable must be redacted in output: it refers to a secret, or may be one itself.

    A value in the file itself may be a secret if its name contains key, token, password or the like, or if it is not short and
    is no path, word or number.
    """
    if has_reference(text) or _SECRET_NAME.search(name):
        return True
    return not (_OPEN_NAMES.fullmatch(name) or len(text) < SHORTEST_SECRET or _OPEN_VALUE.fullmatch(text))


def read_env_file(path: Path) -> dict[str, str]:
    """The variables of a file.

    Raises ValueError, whose text contains no value, for a missing file, one that other users can read, or an invalid line.
    """
    try:
        found = path.stat()
        if others_may(found, MAY_ANYTHING):
            mode = f"{stat.S_IMODE(found.st_mode):04o}"
            raise ValueError(f"{path} has mode {mode}, so other users can read it; do: chmod 600 {shlex.quote(str(path))}")
        text = _read_small_file(path)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text") from None
    variables = {}
    for line, name, value in parse_variables(text):
        if value is None:
            raise ValueError(f"line {line} of {path} is not NAME=value")
        variables[name] = value
    return variables


def parse_variables(text: str) -> Iterator[tuple[int, str, str | None]]:
    """The line, the name and the value of each variable; an invalid line, which python-dotenv only warns about, has no value.

    The lines are NAME=value as that library parses them, with `export`, quotes, comments and several lines, but without `$NAME`.
    """
    for binding in parse_stream(io.StringIO(text, newline=None)):
        if binding.key is None and not binding.error:
            continue  # a comment, or blank lines
        lines, name = binding.original.string, binding.key or ""
        blank = lines[: len(lines) - len(lines.lstrip())].count("\n")  # they belong to the binding that follows
        yield binding.original.line + blank, name, binding.value if _NAME.fullmatch(name) else None


def _read_small_file(path: Path) -> str:
    """The text of a small regular file. A pipe could block, and a device may never end."""
    with open_regular(path) as file:
        content = file.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise OSError(f"larger than {LARGEST_FILE // 1024} KiB")
    if b"\0" in content:
        raise OSError("it holds the byte 0x00")
    return content.decode("utf-8-sig")  # some editors write a byte order mark

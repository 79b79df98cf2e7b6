"""Wraps secret texts so that they are never printed, logged or pickled by accident."""

from __future__ import annotations

MASK = "***"
HOW_TO_SET = "export it before heartbeatd starts, or write it into the env_file"  # for a variable; a running daemon keeps its own


class Secret:
    """One secret text. Printing, formatting and pickling never show it, and it does not compare equal to a string.

    Not `is_checked`: its value was not looked up, or a worker's machine may have another value.
    """

    __slots__ = ("_text", "is_checked")

    def __init__(self, text: str, *, is_checked: bool = True) -> None:
        self._text = text
        self.is_checked = is_checked

    def reveal(self) -> str:
        """The plain text, for the few places that need it: a request header, a connection, a child's environment."""
        return self._text

    def __repr__(self) -> str:
        return MASK

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(MASK, spec)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __reduce__(self) -> tuple[type[Secret], tuple[str]]:
        return Secret, (MASK,)

    def __deepcopy__(self, memo: dict[int, object]) -> Secret:
        return self


class MissingSecret(Secret):
    """A secret that has no value on this machine, which therefore cannot run what needs it. `problem` says why, in words."""

    __slots__ = ("problem",)

    def __init__(self, problem: str) -> None:
        super().__init__("", is_checked=False)
        self.problem = problem

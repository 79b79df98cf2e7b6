"""A secret: text that shows itself to nobody who does not ask by name."""

from __future__ import annotations

from typing import Any

MASK = "***"


class Secret:
    """Wraps one secret text. Printing, formatting and pickling it never show it, and it equals no text."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The plain text, for the one place that needs it: a request header, a connection, a child's environment."""
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

    def __deepcopy__(self, memo: dict[int, Any]) -> Secret:
        return self

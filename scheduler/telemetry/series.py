"""Series: numbers under labels, as Prometheus reads them.

A thousand entries are some sixty thousand series; prometheus_client takes a second to write so many, and a kilobyte to keep
each. These are lines whose beginnings are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

Labels = tuple[str, ...]


class Family:
    """All series of one name. One thread changes it; others may read it meanwhile."""

    __slots__ = ("_help", "_lines", "_names", "_values", "kind", "name")

    def __init__(self, kind: Literal["counter", "gauge"], name: str, help_text: str, names: Labels = ()) -> None:
        self.kind = kind
        self.name = name
        self._help = help_text
        self._names = names
        self._values: dict[Labels, float] = {}
        self._lines: dict[Labels, str] = {}

    def grow(self, *labels: str, by: float = 1) -> None:
        """Add to a series, which is made if it is not there."""
        value = self._values.get(labels)
        if value is None:
            self.put(by, *labels)
        else:
            self._values[labels] = value + by

    def put(self, value: float, *labels: str) -> None:
        """Set a series, which is made if it is not there."""
        if labels not in self._lines:
            self._lines[labels] = self._line(labels)
        self._values[labels] = value

    def keep(self, wanted: Callable[[Labels], bool]) -> None:
        """Let go of every series whose labels are not wanted."""
        for labels in [labels for labels in self._values if not wanted(labels)]:
            del self._values[labels], self._lines[labels]

    def lines(self) -> Iterator[str]:
        """The exposition of the family; nothing at all while it has no series."""
        # One copy in one step: the other thread may add a series while this one writes.
        values = list(self._values.items())
        if not values:
            return
        yield f"# HELP {self.name} {self._help}\n# TYPE {self.name} {self.kind}\n"
        yield from (f"{self._lines.get(labels) or self._line(labels)}{value}\n" for labels, value in values)

    def _line(self, labels: Labels) -> str:
        said = ",".join(f'{name}="{_escaped(value)}"' for name, value in zip(self._names, labels, strict=True))
        return f"{self.name}{{{said}}} " if said else f"{self.name} "


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

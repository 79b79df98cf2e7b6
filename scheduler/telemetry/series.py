"""Stores time series in little memory and writes them in the text format of Prometheus.

A thousand entries have about sixty thousand series. For so many, prometheus_client needs a second per page and a kilobyte per
series. This class keeps the beginning of each line instead, and only adds the number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

LabelValues = tuple[str, ...]


class MetricFamily:
    """All series of one metric. One thread changes them; other threads may read at the same time."""

    __slots__ = ("_help", "_label_names", "_lines", "_values", "kind", "name")

    def __init__(self, kind: Literal["counter", "gauge"], name: str, help_text: str, names: LabelValues = ()) -> None:
        self.kind = kind
        self.name = name
        self._help = help_text
        self._label_names = names
        self._values: dict[LabelValues, float] = {}
        self._lines: dict[LabelValues, str] = {}

    def increase(self, *labels: str, by: float = 1) -> None:
        """Add to a series, and create it if it does not exist."""
        value = self._values.get(labels)
        if value is None:
            self.set_value(by, *labels)
        else:
            self._values[labels] = value + by

    def set_value(self, value: float, *labels: str) -> None:
        """Set a series, and create it if it does not exist."""
        if labels not in self._lines:
            self._lines[labels] = self._series_prefix(labels)
        self._values[labels] = value

    def keep_series(self, wanted: Callable[[LabelValues], bool]) -> None:
        """Delete every series whose labels are not `wanted`."""
        for labels in [labels for labels in self._values if not wanted(labels)]:
            del self._values[labels], self._lines[labels]

    def exposition_lines(self) -> Iterator[str]:
        """The lines of the metric in the text format; none while it has no series."""
        # Copy in one step, because the other thread may add a series while this one writes.
        values = list(self._values.items())
        if not values:
            return
        yield f"# HELP {self.name} {self._help}\n# TYPE {self.name} {self.kind}\n"
        yield from (f"{self._lines.get(labels) or self._series_prefix(labels)}{value}\n" for labels, value in values)

    def _series_prefix(self, labels: LabelValues) -> str:
        pairs = ",".join(f'{name}="{_escape_label(value)}"' for name, value in zip(self._label_names, labels, strict=True))
        return f"{self.name}{{{pairs}}} " if pairs else f"{self.name} "


def _escape_label(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

"""Stores time series in little memory and writes them in both text formats of Prometheus.

prometheus_client has the histograms, the counters of the HTTP API and the metrics of the process. It is not used for series that
each entry has: ten thousand entries have about 180,000 of them. For so many, prometheus_client needs more than three times as
much CPU time for a page (`bench/scrapes.py`), and a kilobyte per series. It cannot begin a new series with 0 either. This class
keeps the beginning of each line once a page has shown it, and only adds the number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

LabelValues = tuple[str, ...]

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})  # in the value of a label


class Exemplar(NamedTuple):
    """The last event that increased a counter: the run, by how much, and when, in seconds since 1970."""

    run_id: int
    value: float
    at: float


class MetricFamily:
    """All series of one metric. One thread changes them; other threads may read at the same time.

    A counter that is created by its first event is 0 on the first page that shows it. Prometheus would otherwise not see the
    event as an increase. So a series need not exist before its first event.
    """

    __slots__ = ("_exemplars", "_help", "_label_names", "_lines", "_new", "_static_lines", "_values", "kind", "name")

    def __init__(self, kind: Literal["counter", "gauge"], name: str, help_text: str, names: LabelValues = ()) -> None:
        self.kind = kind
        self.name = name
        self._help = help_text
        self._label_names = names
        self._values: dict[LabelValues, float] = {}
        self._lines: dict[LabelValues, str] = {}
        self._static_lines: list[str] = []
        self._exemplars: dict[LabelValues, Exemplar] = {}
        self._new: set[LabelValues] = set()  # the series that are to be shown with 0 once

    def increase(self, *labels: str, by: float = 1, exemplar: Exemplar | None = None) -> None:
        """Add to a series, and create it if it does not exist."""
        value = self._values.get(labels)
        if value is None and by:
            self._new.add(labels)
        self._values[labels] = (value or 0) + by
        if exemplar is not None:
            self._exemplars[labels] = exemplar

    def set_value(self, value: float, *labels: str) -> None:
        """Set a series, and create it if it does not exist."""
        self._values[labels] = value

    def add_series(self, labels: str, value: float) -> None:
        """Add a series whose labels are text already, from `label_text`: for a family that is written once and not changed."""
        self._static_lines.append(f"{self.name}{{{labels}}} {value}\n")

    def keep_series(self, wanted: Callable[[LabelValues], bool]) -> None:
        """Delete every series whose labels are not `wanted`."""
        for labels in [labels for labels in self._values if not wanted(labels)]:
            del self._values[labels]
            self._lines.pop(labels, None)
            self._exemplars.pop(labels, None)
            self._new.discard(labels)

    def exposition_lines(self, *, open_metrics: bool = False) -> Iterator[str]:
        """The lines of the metric in the text format, or in OpenMetrics with exemplars; none while it has no series."""
        # Copy in one step, because the other thread may add a series while this one writes.
        values = list(self._values.items())
        new = self._new.copy()
        self._new -= new
        if not values and not self._static_lines:
            return
        name = self.name.removesuffix("_total") if open_metrics and self.kind == "counter" else self.name
        yield f"# HELP {name} {self._help}\n# TYPE {name} {self.kind}\n"
        yield from self._static_lines
        exemplars = self._exemplars.copy() if open_metrics else {}
        for labels, value in values:
            prefix = self._lines.get(labels)
            if prefix is None:
                text = label_text(self._label_names, labels)
                prefix = self._lines[labels] = f"{self.name}{{{text}}} " if text else f"{self.name} "
            if labels in new:
                yield f"{prefix}0\n"
            elif labels in exemplars:
                yield f"{prefix}{value}{_exemplar_text(exemplars[labels])}\n"
            else:
                yield f"{prefix}{value}\n"


def label_text(names: LabelValues, values: LabelValues) -> str:
    """Labels as both formats write them, without the braces."""
    return ",".join([f'{name}="{value.translate(_ESCAPES)}"' for name, value in zip(names, values, strict=True)])


def _exemplar_text(exemplar: Exemplar) -> str:
    return f' # {{run_id="{exemplar.run_id}"}} {exemplar.value} {exemplar.at:.3f}'

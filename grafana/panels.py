"""Panels: what a dashboard says, and the JSON in which Grafana reads it (classic model, Grafana 11 or newer)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Json = dict[str, Any]

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24  # columns of Grafana's grid
GREEN_TO_RED = ("green", "orange", "red")
LETTERS = "ABCDEFGH"


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. `asks` are its queries by the legend that each is shown under.

    `bars` draws counts that add up; the queries of `lines` are drawn as lines all the same. `steps` are where orange and red
    begin. `nothing` is shown while there are no series, and says why that is well. `words` stand for the values of a stat,
    which may show its legend instead (`shows`); `units` are those of a table's columns, where they are not numbers.
    """

    title: str
    told: str
    asks: Mapping[str, str]
    lines: Mapping[str, str] = field(default_factory=dict)
    kind: Literal["timeseries", "stat", "table"] = "timeseries"
    unit: str = "short"
    width: int = 12
    height: int = 8
    bars: bool = False
    steps: tuple[float, ...] = ()
    nothing: str = ""
    words: Mapping[int, str] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    shows: Literal["auto", "name"] = "auto"

    @property
    def queries(self) -> list[tuple[str, str, str]]:
        """Letter, legend and expression of each."""
        every = [*self.asks.items(), *self.lines.items()]
        return [(letter, legend, ask) for letter, (legend, ask) in zip(LETTERS, every, strict=False)]


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


def variable(name: str, series: str) -> Json:
    """A choice among the values that a label of these series has; all of them at first."""
    ask = f"label_values({series}, {name})"
    return {
        "name": name,
        "type": "query",
        "datasource": SOURCE,
        "definition": ask,
        "query": {"query": ask, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def laid_out(rows: Sequence[Row]) -> Iterator[Json]:
    """Rows one below the other, each row's panels from left to right as they fit."""
    number = y = 0
    for row in rows:
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "panels": [],
            "gridPos": _place(0, y, WIDTH, 1),
        }
        y, x, tallest = y + 1, 0, 0
        for panel in row.panels:
            if x + panel.width > WIDTH:
                y, x, tallest = y + tallest, 0, 0
            number += 1
            yield {"id": number} | _panel(panel) | {"gridPos": _place(x, y, panel.width, panel.height)}
            x, tallest = x + panel.width, max(tallest, panel.height)
        y += tallest


def _place(x: int, y: int, width: int, height: int) -> Json:
    return {"x": x, "y": y, "w": width, "h": height}


def _panel(panel: Panel) -> Json:
    made = {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.told,
        "datasource": SOURCE,
        "targets": [_target(panel, *query) for query in panel.queries],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": list(_overrides(panel))},
        "options": OPTIONS[panel.kind] | ({"textMode": panel.shows} if panel.kind == "stat" else {}),
        "transformations": _joined(panel) if panel.kind == "table" else [],
    }
    # A bar stands for at least five minutes: over less, an increase is mostly zeros.
    return made | ({"interval": "5m"} if panel.bars else {})


def _target(panel: Panel, letter: str, legend: str, ask: str) -> Json:
    now = panel.kind != "timeseries"
    return {
        "refId": letter,
        "datasource": SOURCE,
        "expr": ask,
        "legendFormat": legend or "__auto",
        "instant": now,
        "range": not now,
        "format": "table" if panel.kind == "table" else "time_series",
    }


OPTIONS: Mapping[str, Json] = {
    "timeseries": {
        "legend": {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {
        "colorMode": "value",
        "graphMode": "none",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    },
    "table": {"showHeader": True, "sortBy": [{"displayName": "Next due", "desc": False}]},
}

BARS = {"drawStyle": "bars", "fillOpacity": 60, "lineWidth": 0, "stacking": {"mode": "normal", "group": "A"}}
LINES = {"drawStyle": "line", "fillOpacity": 10, "lineWidth": 1, "showPoints": "auto", "stacking": {"mode": "none", "group": "A"}}


def _defaults(panel: Panel) -> Json:
    made: Json = {
        "unit": panel.unit,
        "min": 0,
        "color": {"mode": "thresholds" if panel.kind == "stat" else "palette-classic"},
        "thresholds": {"mode": "absolute", "steps": _steps(panel.steps)},
        "mappings": _mappings(panel.words),
    }
    if panel.kind == "timeseries":
        made["custom"] = BARS if panel.bars else LINES
    return made | ({"noValue": panel.nothing} if panel.nothing else {})


def _mappings(words: Mapping[int, str]) -> list[Json]:
    return [{"type": "value", "options": {str(value): {"text": word}}} for value, word in words.items()]


def _steps(bounds: tuple[float, ...]) -> list[Json]:
    return [{"color": color, "value": bound} for color, bound in zip(GREEN_TO_RED, (None, *bounds), strict=False)]


def _overrides(panel: Panel) -> Iterator[Json]:
    for column, unit in panel.units.items():
        yield _override("byName", column, {"unit": unit})
    for letter, legend, _ in panel.queries:
        if panel.bars and legend in panel.lines:
            yield _override("byFrameRefID", letter, {f"custom.{key}": value for key, value in LINES.items()})


def _override(matcher: str, what: str, properties: Json) -> Json:
    listed = [{"id": key, "value": value} for key, value in properties.items()]
    return {"matcher": {"id": matcher, "options": what}, "properties": listed}


def _joined(panel: Panel) -> list[Json]:
    """Join the answers of a table by their labels, and call each column by its query."""
    columns = {f"Value #{letter}": legend for letter, legend, _ in panel.queries}
    return [
        {"id": "merge", "options": {}},
        {"id": "organize", "options": {"excludeByName": {"Time": True}, "indexByName": {}, "renameByName": columns}},
    ]

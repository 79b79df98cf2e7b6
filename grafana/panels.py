"""Describes the panels of a dashboard and turns them into the JSON of Grafana (classic model, Grafana 11 or newer)."""

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
    """One panel. `expressions` are its queries, by legend.

    With `bars` the expressions are drawn as stacked bars, and those in `lines` as lines. Orange and red begin at `thresholds`.
    `no_value` is shown while a query returns no data. A stat shows `value_names` in place of numbers, or its legend with
    `text_mode` "name". `units` are the units of a table's columns that are not plain numbers.
    """

    title: str
    description: str
    expressions: Mapping[str, str]
    lines: Mapping[str, str] = field(default_factory=dict)
    kind: Literal["timeseries", "stat", "table"] = "timeseries"
    unit: str = "short"
    width: int = 12
    height: int = 8
    bars: bool = False
    thresholds: tuple[float, ...] = ()
    no_value: str = ""
    value_names: Mapping[int, str] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    text_mode: Literal["auto", "name"] = "auto"

    @property
    def queries(self) -> list[tuple[str, str, str]]:
        """Letter, legend and expression of each query."""
        every = [*self.expressions.items(), *self.lines.items()]
        return [(letter, legend, query) for letter, (legend, query) in zip(LETTERS, every, strict=False)]


@dataclass(frozen=True, slots=True)
class Row:
    """A heading with its panels."""

    title: str
    panels: tuple[Panel, ...]


def variable(name: str, series: str) -> Json:
    """A dashboard variable for the values of a label of these series. All values are selected at first."""
    query = f"label_values({series}, {name})"
    return {
        "name": name,
        "type": "query",
        "datasource": SOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def laid_out(rows: Sequence[Row]) -> Iterator[Json]:
    """The JSON of rows, one below the other. The panels of a row are placed from left to right, on as many lines as they need."""
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
    rendered = {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "targets": [_target(panel, *query) for query in panel.queries],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": list(_overrides(panel))},
        "options": OPTIONS[panel.kind] | ({"textMode": panel.text_mode} if panel.kind == "stat" else {}),
        "transformations": _joined(panel) if panel.kind == "table" else [],
    }
    # A bar covers at least five minutes. In shorter intervals an increase is mostly zero.
    return rendered | ({"interval": "5m"} if panel.bars else {})


def _target(panel: Panel, letter: str, legend: str, query: str) -> Json:
    now = panel.kind != "timeseries"
    return {
        "refId": letter,
        "datasource": SOURCE,
        "expr": query,
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
    rendered: Json = {
        "unit": panel.unit,
        "min": 0,
        "color": {"mode": "thresholds" if panel.kind == "stat" else "palette-classic"},
        "thresholds": {"mode": "absolute", "steps": _steps(panel.thresholds)},
        "mappings": _mappings(panel.value_names),
    }
    if panel.kind == "timeseries":
        rendered["custom"] = BARS if panel.bars else LINES
    return rendered | ({"noValue": panel.no_value} if panel.no_value else {})


def _mappings(names: Mapping[int, str]) -> list[Json]:
    return [{"type": "value", "options": {str(value): {"text": name}}} for value, name in names.items()]


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
    """Join the results of a table by their labels, and name each column after its legend."""
    columns = {f"Value #{letter}": legend for letter, legend, _ in panel.queries}
    return [
        {"id": "merge", "options": {}},
        {"id": "organize", "options": {"excludeByName": {"Time": True}, "indexByName": {}, "renameByName": columns}},
    ]

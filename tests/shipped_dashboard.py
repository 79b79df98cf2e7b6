"""Reads the shipped dashboard and alert rules: their queries, and the metrics in these."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

GRAFANA = Path(__file__).parents[1] / "grafana"
BOARD = GRAFANA / "dashboards" / "fleet.json"
RULES = GRAFANA / "prometheus" / "rules.yml"

# Planned metrics that already have panels and rules.
COMING: set[str] = set()


def board() -> dict[str, Any]:
    read: dict[str, Any] = json.loads(BOARD.read_text("utf-8"))
    return read


def panels() -> list[dict[str, Any]]:
    """The panels with queries. Rows of the dashboard only have a title."""
    return [panel for panel in board()["panels"] if panel["type"] != "row"]


def yaml(path: Path) -> Any:
    return YAML(typ="safe", pure=True).load(path)


def rules(name: str | None = None) -> list[dict[str, Any]]:
    """The alert rules, or those with this name. Recording rules are left out."""
    every = [rule for group in yaml(RULES)["groups"] for rule in group["rules"] if "alert" in rule]
    return [rule for rule in every if name in (None, rule["alert"])]


def rule_expressions() -> list[str]:
    """The expressions of all alert rules and recording rules."""
    return [rule["expr"] for group in yaml(RULES)["groups"] for rule in group["rules"]]


def queries() -> Iterator[tuple[str, str]]:
    """Every query of the dashboard with the title of its panel."""
    for panel in panels():
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def metrics(expr: str) -> set[str]:
    """The metrics in a query, without recorded ones, whose names have a colon. The series of a histogram count under its declared name."""
    return {re.sub(r"_(bucket|count|sum)$", "", name) for name in re.findall(r"(?<![:\w])(?:heartbeatd|process)_\w+", expr)}


def grafana_query(expr: str, *, window: str, span: str) -> str:
    """A query as Grafana sends it with all variables selected, for these windows."""
    chosen = expr.replace("$__rate_interval", window).replace("$__range", span)
    return re.sub(r"\$(instance|kind|name)\b", ".*", chosen)

"""Reads the shipped dashboards and alert rules: their queries, and the metrics in these."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from checkout import HOME
from ruamel.yaml import YAML

GRAFANA = HOME / "grafana"
BOARDS = ("fleet", "agent", "operations")
RULES = GRAFANA / "prometheus" / "rules.yml"

# Planned metrics that already have panels and rules.
COMING: set[str] = set()


def board(name: str) -> dict[str, Any]:
    """A dashboard: fleet, agent or operations."""
    read: dict[str, Any] = json.loads((GRAFANA / "dashboards" / f"{name}.json").read_text("utf-8"))
    return read


def panels(*names: str) -> list[dict[str, Any]]:
    """The panels with queries of these dashboards, or of all. Rows of a dashboard only have a title."""
    return [panel for name in names or BOARDS for panel in board(name)["panels"] if panel["type"] != "row"]


def yaml(path: Path) -> Any:
    return deepcopy(_parsed(path))


@cache
def _parsed(path: Path) -> Any:
    return YAML(typ="safe", pure=True).load(path)


def rules(name: str | None = None) -> list[dict[str, Any]]:
    """The alert rules, or those with this name. Recording rules are left out."""
    every = [rule for group in yaml(RULES)["groups"] for rule in group["rules"] if "alert" in rule]
    return [rule for rule in every if name in (None, rule["alert"])]


def rule_expressions() -> list[str]:
    """The expressions of all alert rules and recording rules."""
    return [rule["expr"] for group in yaml(RULES)["groups"] for rule in group["rules"]]


def queries(*names: str) -> Iterator[tuple[str, str]]:
    """Every query of these dashboards, or of all, with the title of its panel."""
    for panel in panels(*names):
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def metrics(expr: str) -> set[str]:
    """The metrics of the daemon in a query. The series of a histogram count under its declared name."""
    found = re.findall(r"(?<![\w:])(?:heartbeatd|process)_\w+\b(?!:)", expr)
    return {re.sub(r"_(bucket|count|sum)$", "", name) for name in found}


def shows_only_events(expr: str) -> bool:
    """Whether a query has no result as long as nothing happens, by design."""
    return re.search(r"> 0$|^topk\(.*> 0\)$|and on \(kind, name\) topk", expr) is not None


def is_complete(expr: str) -> bool:
    """Whether the daemon already has all metrics of a query."""
    return not metrics(expr) & COMING and "job:" not in expr


def grafana_query(expr: str, *, window: str, span: str) -> str:
    """A query as Grafana sends it with all variables selected, for these windows."""
    chosen = expr.replace("$__rate_interval", window).replace("$__range", span)
    return re.sub(r"\$(job|instance|kind|name)\b", ".*", chosen)

"""Tests that the shipped dashboard uses existing metrics and labels, that Prometheus accepts its queries, and that its README is complete."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import click
import pytest
import required_programs
import shipped_dashboard
from prometheus_client.parser import text_string_to_metric_families
from test_metrics import Page
from world import MakeWorld

from scheduler.channels.message import DeliveryResult
from scheduler.cli.main import commands

README = shipped_dashboard.GRAFANA / "README.md"
GUIDE = shipped_dashboard.GRAFANA.parent / "docs" / "monitoring.md"
OUTSIDE = {"job", "instance", "le"}  # labels added by Prometheus and by histograms

FULL = """
channels: {hook: {kind: webhook, url: "http://127.0.0.1:9/x", allow_private: true}}
agents:
  ops:
    runner: {kind: command, argv: [agent]}
    heartbeat: {interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: hook, active_hours: "08:00-22:00"}
cron:
  measure: {every: 1h, command: measure, wake_heartbeat: ops}
"""


@pytest.fixture
def known(make_world: MakeWorld) -> dict[str, set[str]]:
    """Every metric of the daemon with its labels, after a simulated day in which each event has happened once."""
    world = make_world(
        FULL, scripts={"ops": lambda call: "The disk is full."}, send=lambda _: DeliveryResult("retry", "no route")
    )
    page = Page(world)
    world.run(minutes=65)
    world.clock.advance(world.clock.now - world.clock.now.replace(hour=7))
    shown = [sample for family in text_string_to_metric_families(page.text()) for sample in family.samples]
    labels: dict[str, set[str]] = {}
    for sample in shown:
        (name,) = shipped_dashboard.metrics(sample.name)
        labels.setdefault(name, set()).update(sample.labels)
    return labels


def every_expression() -> list[str]:
    return [expr for _, expr in shipped_dashboard.queries()] + shipped_dashboard.rule_expressions()


def declared(name: str) -> bool:
    """Whether the source of the daemon declares this metric."""
    source = "".join(
        path.read_text("utf-8") for path in (shipped_dashboard.GRAFANA.parent / "scheduler" / "telemetry").glob("*.py")
    )
    short = name.removeprefix("heartbeatd_")
    return re.search(rf'"heartbeatd_{short}"|counter\(\s*"{short}"', source) is not None


def test_every_metric_in_a_query_exists(known: dict[str, set[str]]) -> None:
    queried = set().union(*map(shipped_dashboard.metrics, every_expression()))
    assert len(queried) > 35
    assert {name for name in queried - known.keys() - shipped_dashboard.COMING if not declared(name)} == set()


def test_planned_metrics_do_not_exist_yet(known: dict[str, set[str]]) -> None:
    """If this fails, the metric exists: remove its name from COMING."""
    assert {name for name in shipped_dashboard.COMING if name in known or declared(name)} == set()


def test_planned_metrics_are_used_in_a_query() -> None:
    assert set().union(*map(shipped_dashboard.metrics, every_expression())) >= shipped_dashboard.COMING


def test_queries_select_only_labels_that_the_metric_has(known: dict[str, set[str]]) -> None:
    found = [
        (name, label)
        for expr in every_expression()
        for name, selector in re.findall(r"(heartbeatd_\w+)\{([^}]*)\}", expr)
        for label in re.findall(r"(\w+)(?:=~|!~|!=|=)\"", selector)
        for metric in shipped_dashboard.metrics(name)
        if metric in known and label not in known[metric] | OUTSIDE
    ]
    assert found == []


def test_queries_group_by_and_show_only_labels_that_the_metrics_have(known: dict[str, set[str]]) -> None:
    for panel in shipped_dashboard.panels():
        for target in panel["targets"]:
            names = shipped_dashboard.metrics(target["expr"])
            if not names <= known.keys():
                continue
            labels = set().union(*(known[name] for name in names)) | OUTSIDE
            grouped = re.findall(r"by \(([\w, ]+)\)", target["expr"])
            wanted = {label for group in grouped for label in group.split(", ")} | set(
                re.findall(r"{{(\w+)}}", target["legendFormat"])
            )
            assert wanted <= labels, panel["title"]


def test_a_legend_uses_only_labels_that_remain_after_grouping() -> None:
    for panel in shipped_dashboard.panels():
        for target in panel["targets"]:
            groups = re.findall(r"by \(([\w, ]*)\)", target["expr"])
            if groups and not target["expr"].startswith("topk"):
                assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= set(groups[0].split(", ")), panel["title"]


def test_the_dashboard_file_is_up_to_date(tmp_path: Path) -> None:
    again = tmp_path / "fleet.json"
    subprocess.run([sys.executable, str(shipped_dashboard.GRAFANA / "fleet.py"), str(again)], check=True, timeout=60)
    assert shipped_dashboard.BOARD.read_text("utf-8") == again.read_text("utf-8"), "do: python grafana/fleet.py"


def test_every_panel_has_a_question_as_title_and_a_description() -> None:
    titles = [panel["title"] for panel in shipped_dashboard.panels()]
    assert len(set(titles)) == len(titles) > 20
    for panel in shipped_dashboard.panels():
        assert panel["title"].endswith("?")
        assert len(panel["description"].split()) > 8, panel["title"]
        assert panel["description"].endswith((".", "`.")), panel["title"]


def test_every_panel_uses_the_selected_data_source_and_daemon() -> None:
    for panel in shipped_dashboard.panels():
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        for target in panel["targets"]:
            assert target["datasource"] == panel["datasource"]
            selectors = re.findall(r"heartbeatd_\w+(\{[^}]*\})?", target["expr"])
            assert all('instance=~"$instance"' in selector for selector in selectors), panel["title"]


def test_the_variables_are_data_source_daemon_kind_and_name() -> None:
    assert [choice["name"] for choice in shipped_dashboard.board()["templating"]["list"]] == [
        "datasource",
        "instance",
        "kind",
        "name",
    ]


def test_increases_use_windows_that_fit_the_scrape_interval() -> None:
    windows = {window for _, expr in shipped_dashboard.queries() for window in re.findall(r"\[([^\]]*)\]", expr)}
    assert windows == {"$__rate_interval", "$__range"}


def test_panels_have_unique_ids_and_do_not_overlap() -> None:
    every = shipped_dashboard.board()["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    for one, other in combinations([panel["gridPos"] for panel in every], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in every)
    assert all(one["gridPos"]["y"] <= other["gridPos"]["y"] for one, other in pairwise(every))


def test_prometheus_can_read_every_query(tmp_path: Path) -> None:
    promtool = required_programs.need("promtool")
    every = [
        {"record": "x", "expr": shipped_dashboard.grafana_query(expr, window="5m", span="1h")}
        for _, expr in shipped_dashboard.queries()
    ]
    every = [rule | {"labels": {"number": str(number)}} for number, rule in enumerate(every)]  # promtool rejects duplicates
    path = tmp_path / "queries.yml"
    path.write_text(json.dumps({"groups": [{"name": "queries", "rules": every}]}))
    checked = subprocess.run([promtool, "check", "rules", str(path)], capture_output=True, text=True, check=False, timeout=60)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert f"SUCCESS: {len(every)} rules found" in checked.stdout


def test_the_readme_lists_every_panel_and_no_others() -> None:
    named = re.findall(r"^- \*\*(.+?)\*\*", README.read_text("utf-8"), re.MULTILINE)
    assert named == [panel["title"] for panel in shipped_dashboard.panels()]


def test_the_provisioning_files_match_the_dashboard_and_the_scrape_config() -> None:
    (provider,) = shipped_dashboard.yaml(shipped_dashboard.GRAFANA / "provisioning" / "dashboards" / "heartbeatd.yaml")[
        "providers"
    ]
    (source,) = shipped_dashboard.yaml(shipped_dashboard.GRAFANA / "provisioning" / "datasources" / "prometheus.yaml")[
        "datasources"
    ]
    assert provider["options"]["path"] in README.read_text("utf-8")
    assert source["type"] == "prometheus"
    scrapes = shipped_dashboard.yaml(shipped_dashboard.GRAFANA / "prometheus" / "prometheus.yml")
    assert source["jsonData"]["timeInterval"] == scrapes["global"]["scrape_interval"]


TEXTS = {
    **{f"panel {panel['title']}": panel["description"] for panel in shipped_dashboard.panels()},
    **{f"rule {rule['alert']}": rule["annotations"]["description"] for rule in shipped_dashboard.rules()},
    "README.md": README.read_text("utf-8"),
    "docs/monitoring.md": GUIDE.read_text("utf-8"),
    "docs/runbooks.md": GUIDE.with_name("runbooks.md").read_text("utf-8"),
}


@pytest.mark.parametrize("where", TEXTS)
def test_every_command_in_the_texts_exists_with_its_options(where: str) -> None:
    for words in re.findall(r"`heartbeatd ([a-z][^`]*)`", TEXTS[where]):
        parts: list[str] = words.split()
        command: Any = commands
        while isinstance(command, click.Group):
            found = command.get_command(click.Context(command), parts[0] if parts else "")
            if found is None and command.invoke_without_command:
                break  # such as `heartbeatd conditions NAME`
            assert found is not None, words
            command, parts = found, parts[1:]
        options = {name for parameter in command.params for name in parameter.opts}
        assert {part for part in parts if part.startswith("--")} <= options, words

"""Tests that the shipped dashboards use existing metrics and labels, that Grafana's schema and Prometheus accept them, and their page."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import click
import pytest
import required_programs
import shipped_dashboard
from checkout import DATA
from jsonschema import Draft7Validator
from loops import loop_over
from metrics_page import Page
from patience import PATIENCE
from prometheus_client.parser import text_string_to_metric_families
from world import MakeWorld

from heartbeat.checks import Skip
from scheduler.cli.main import commands
from scheduler.cli.operation_commands import OperationCommand
from scheduler.model.message import DeliveryResult
from scheduler.model.outcome import LOST_SKIPS, Outcome
from scheduler.telemetry import catalog

README = shipped_dashboard.GRAFANA / "README.md"
PAGE = shipped_dashboard.GRAFANA.parent / "docs" / "dashboards.md"
GUIDE = shipped_dashboard.GRAFANA.parent / "docs" / "monitoring.md"
OUTSIDE = {"job", "instance", "le"}  # labels added by Prometheus and by histograms

# Metrics without a panel or a rule. prometheus-client exports the first one together with the other metrics of the process.
NOT_SHOWN = {
    "process_virtual_memory_bytes",
    "heartbeatd_config_hash",
}

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


def marks() -> list[str]:
    """The queries of the marks on the time axis."""
    return [mark["expr"] for name in shipped_dashboard.BOARDS for mark in shipped_dashboard.board(name)["annotations"]["list"]]


def declared(name: str) -> bool:
    """Whether the daemon has this metric, perhaps only with another config."""
    return any(name in known for known in (catalog.COUNTERS, catalog.READ, catalog.HISTOGRAMS, catalog.OF_REQUESTS))


def test_every_metric_in_a_query_exists(known: dict[str, set[str]]) -> None:
    queried = set().union(*map(shipped_dashboard.metrics, every_expression()))
    assert len(queried) > 35
    of_daemon = {name for name in queried if name.startswith("heartbeatd_")}
    assert {name for name in of_daemon - known.keys() - shipped_dashboard.COMING if not declared(name)} == set()


def test_every_metric_has_a_panel_or_a_rule(known: dict[str, set[str]]) -> None:
    shown = set().union(*map(shipped_dashboard.metrics, [*every_expression(), *shipped_dashboard.rule_expressions(), *marks()]))
    assert set(known) - shown <= NOT_SHOWN


def test_every_recorded_series_in_a_query_has_a_recording_rule() -> None:
    recorded = {
        rule["record"]
        for group in shipped_dashboard.yaml(shipped_dashboard.RULES)["groups"]
        for rule in group["rules"]
        if "record" in rule
    }
    queried = {name for _, expr in shipped_dashboard.queries() for name in re.findall(r"job:\w+(?::\w+)?", expr)}
    assert len(queried) > 1
    assert queried <= recorded


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
            wanted = {label for group in grouped for label in group.split(", ")} | legend_labels(target)
            assert wanted <= labels, panel["title"]


def legend_labels(target: dict[str, Any]) -> set[str]:
    return set(re.findall(r"{{(\w+)}}", target["legendFormat"]))


def remaining_labels(expr: str) -> set[str] | None:
    """The labels of the result of a query. None if it does not group."""
    groups = re.findall(r"by \(([\w, ]*)\)", expr)
    return set(groups[0].split(", ")) if groups else None


def test_a_legend_uses_only_labels_that_remain_after_grouping() -> None:
    for panel in shipped_dashboard.panels():
        for target in panel["targets"]:
            remaining = remaining_labels(target["expr"])
            assert remaining is None or legend_labels(target) <= remaining, panel["title"]


def test_the_dashboard_files_are_up_to_date(tmp_path: Path) -> None:
    """The generator needs grafana-foundation-sdk, which only developers have. The files are part of the wheel."""
    subprocess.run([sys.executable, str(shipped_dashboard.GRAFANA / "write.py"), str(tmp_path)], check=True, timeout=PATIENCE)
    for name in shipped_dashboard.BOARDS:
        written = (tmp_path / f"{name}.json").read_bytes()
        assert (shipped_dashboard.GRAFANA / "dashboards" / f"{name}.json").read_bytes() == written, "do: python grafana/write.py"
    assert {path.stem for path in (shipped_dashboard.GRAFANA / "dashboards").iterdir()} == set(shipped_dashboard.BOARDS)


SCHEMA = Draft7Validator(json.loads((DATA / "grafana_schema.json").read_text("utf-8")))


@pytest.mark.parametrize("name", shipped_dashboard.BOARDS)
def test_a_dashboard_has_only_fields_of_grafanas_own_types(name: str) -> None:
    """The schema is derived from @grafana/schema. data/grafana_schema.ts says how."""
    assert [f"{error.json_path}: {error.message[:300]}" for error in SCHEMA.iter_errors(shipped_dashboard.board(name))] == []


@pytest.mark.parametrize(
    "change",
    [
        lambda panel: panel["options"].update(legned={}),
        lambda panel: panel["fieldConfig"]["defaults"]["custom"].update(drawStyle="dots"),
        lambda panel: panel["targets"][0].update(format="timeseries"),
        lambda panel: panel.update(type="timeserie"),
    ],
)
def test_the_schema_finds_a_misspelled_field_of_a_panel(change: Callable[[dict[str, Any]], object]) -> None:
    board = shipped_dashboard.board("fleet")
    change(next(panel for panel in board["panels"] if panel["type"] == "timeseries"))
    assert list(SCHEMA.iter_errors(board)) != []


def test_every_panel_has_a_question_as_title_and_a_description() -> None:
    for name in shipped_dashboard.BOARDS:
        titles = [panel["title"] for panel in shipped_dashboard.panels(name)]
        assert len(set(titles)) == len(titles) > 15
    for panel in shipped_dashboard.panels():
        assert panel["title"].endswith("?")
        assert len(panel["description"].split()) > 8, panel["title"]
        assert panel["description"].endswith((".", "`.")), panel["title"]


def test_every_panel_uses_the_selected_data_source_job_and_daemon() -> None:
    for panel in shipped_dashboard.panels():
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        for target in panel["targets"]:
            assert target["datasource"] == panel["datasource"]
            recorded = re.findall(r"job:\w+(?::\w+)?(\{[^}]*\})?", target["expr"])
            assert all(selector.startswith('{job=~"$job",slo=') for selector in recorded), panel["title"]
            selectors = re.findall(r"(?<![\w:])(?:(?:heartbeatd|process)_\w+|up)\b(?!:)(\{[^}]*\})?", target["expr"])
            assert all(selector.startswith('{job=~"$job",instance=~"$instance"') for selector in selectors), panel["title"]
            assert recorded + selectors != []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fleet", ["datasource", "job", "instance", "kind", "name"]),
        ("agent", ["datasource", "job", "instance", "kind", "name"]),
        ("operations", ["datasource", "job", "instance"]),
    ],
)
def test_the_variables_select_data_source_job_daemon_and_entries(name: str, expected: list[str]) -> None:
    board = shipped_dashboard.board(name)
    assert board["uid"] == f"heartbeatd-{name}"
    variables = {variable["name"]: variable for variable in board["templating"]["list"]}
    assert list(variables) == expected
    assert (variables["job"]["query"], variables["job"]["current"]["value"]) == ("heartbeatd", "heartbeatd")
    if name == "agent":
        assert not any(variables[each]["multi"] or variables[each]["includeAll"] for each in ("kind", "name"))


@pytest.mark.parametrize("name", shipped_dashboard.BOARDS)
def test_starts_reloads_and_versions_are_marked_on_every_dashboard(name: str) -> None:
    assert {mark["name"] for mark in shipped_dashboard.board(name)["annotations"]["list"]} == {"Starts", "Reloads", "Versions"}


def test_increases_use_windows_that_fit_the_scrape_interval() -> None:
    windows = {window for _, expr in shipped_dashboard.queries() for window in re.findall(r"\[([^\]]*)\]", expr)}
    assert windows == {"$__rate_interval", "$__range"}


def test_counted_events_without_an_increase_are_left_out_of_the_legend() -> None:
    for panel in shipped_dashboard.panels():
        if panel["fieldConfig"]["defaults"].get("custom", {}).get("drawStyle") == "bars":
            for target in panel["targets"]:
                assert re.search(r"> 0\)?$", target["expr"]), panel["title"]


def test_a_list_of_entries_is_limited_to_the_top_ten() -> None:
    for panel in shipped_dashboard.panels("fleet", "operations"):
        for target in panel["targets"]:
            if "name" in legend_labels(target):
                assert re.search(r"^(top|bottom)k\(10,|topk\(20,", target["expr"]), panel["title"]


def test_a_click_on_an_entry_opens_its_dashboard() -> None:
    for panel in shipped_dashboard.panels("fleet", "operations"):
        named = [target for target in panel["targets"] if "name" in legend_labels(target)]
        links = panel["fieldConfig"]["defaults"].get("links", [])
        assert bool(named) == bool(links), panel["title"]
        for link in links:
            assert link["url"].startswith("/d/heartbeatd-agent?")
            used = set(re.findall(r"\${__field\.labels\.(\w+)}", link["url"]))
            assert all(used <= (remaining_labels(target["expr"]) or used) for target in named), panel["title"]


def fixed_colors(panel: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for override in panel["fieldConfig"]["overrides"]:
        for value in override["properties"]:
            if value["id"] == "color":
                yield override["matcher"]["options"].removeprefix("/(^|\\s)").removesuffix("$/"), value["value"]["fixedColor"]


def test_a_word_has_the_same_color_on_all_dashboards() -> None:
    found = {pair for panel in shipped_dashboard.panels() for pair in fixed_colors(panel)}
    words = [word for word, _ in found]
    assert len(set(words)) == len(words) > 30


def test_each_outcome_and_each_reason_to_skip_has_a_color() -> None:
    colored = {word for panel in shipped_dashboard.panels() for word, _ in fixed_colors(panel)}
    assert {str(outcome) for outcome in Outcome} - {"skipped"} <= colored
    assert {str(reason) for reason in Skip} <= colored


def test_planned_skips_are_grey_and_only_they() -> None:
    (planned,) = {reasons for _, expr in shipped_dashboard.queries() for reasons in re.findall(r'reason!~"([^"]*)"', expr)}
    for word, color in {pair for panel in shipped_dashboard.panels() for pair in fixed_colors(panel)}:
        parts = [int(color[at : at + 2], 16) for at in (1, 3, 5)]
        if word in {str(reason) for reason in Skip}:
            assert (max(parts) - min(parts) < 40) == (word in planned.split("|")), word
    assert set(planned.split("|")) == {str(reason) for reason in set(Skip) - LOST_SKIPS}


def test_panels_have_unique_ids_and_do_not_overlap() -> None:
    for name in shipped_dashboard.BOARDS:
        every = shipped_dashboard.board(name)["panels"]
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
        for expr in [*(expr for _, expr in shipped_dashboard.queries()), *marks()]
    ]
    every = [rule | {"labels": {"number": str(number)}} for number, rule in enumerate(every)]  # promtool rejects duplicates
    path = tmp_path / "queries.yml"
    path.write_text(json.dumps({"groups": [{"name": "queries", "rules": every}]}))
    checked = subprocess.run(
        [promtool, "check", "rules", str(path)], capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert (checked.returncode, checked.stderr) == (0, "")
    assert f"SUCCESS: {len(every)} rules found" in checked.stdout


def test_the_provisioning_files_match_the_dashboards_and_the_scrape_config() -> None:
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
    **{
        f"{name}: {panel['title']}": panel["description"]
        for name in shipped_dashboard.BOARDS
        for panel in shipped_dashboard.panels(name)
    },
    **{f"rule {rule['alert']}": rule["annotations"]["description"] for rule in shipped_dashboard.rules()},
    "README.md": README.read_text("utf-8"),
    "docs/monitoring.md": GUIDE.read_text("utf-8"),
    "docs/runbooks.md": GUIDE.with_name("runbooks.md").read_text("utf-8"),
    "docs/dashboards.md": PAGE.read_text("utf-8"),
}


@pytest.mark.extras
@loop_over("where", TEXTS)
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
        command = command.made() if isinstance(command, OperationCommand) else command
        options = {name for parameter in command.params for name in parameter.opts}
        assert {part for part in parts if part.startswith("--")} <= options, words

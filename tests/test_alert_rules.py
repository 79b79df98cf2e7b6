"""Tests that each shipped alert rule fires in its situation, and that none fires in normal situations."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import required_programs
import shipped_dashboard

TESTS = shipped_dashboard.GRAFANA / "prometheus" / "tests"
NAMES = [rule["alert"] for rule in shipped_dashboard.rules()]
FIRING = (TESTS / "firing.yml").read_text("utf-8")

Promtool = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def promtool() -> Promtool:
    found = required_programs.need("promtool")

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([found, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=60)

    return run


def changed(folder: Path, change: Callable[[str], str]) -> Path:
    """A copy of the promtool tests, with changed expressions in all rules."""
    rules = shipped_dashboard.yaml(shipped_dashboard.RULES)
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule["expr"] = change(rule["expr"])
    (folder / "rules.yml").write_text(json.dumps(rules))
    return Path(shutil.copytree(TESTS, folder / "tests"))


def without_thresholds(expr: str) -> str:
    """An expression that is true whenever its series exist."""
    return re.sub(r"(==|>=|>) *[\d.]+", "> -1e12", expr)


def fired(result: subprocess.CompletedProcess[str], state: str) -> set[str]:
    """The alerts in promtool's error output: the expected ones (exp) or the actual ones (got)."""
    lines = [line for line in (result.stdout + result.stderr).splitlines() if re.match(rf" *{state}:", line)]
    return set(re.findall(r'alertname="(\w+)"', "".join(lines)))


def test_prometheus_accepts_the_scrape_config_and_the_rules(promtool: Promtool) -> None:
    checked = promtool("check", "config", shipped_dashboard.GRAFANA / "prometheus" / "prometheus.yml")
    assert checked.returncode == 0, checked.stderr
    assert f"{len(NAMES)} rules found" in checked.stdout


def test_the_rules_pass_the_linter(promtool: Promtool) -> None:
    checked = promtool("check", "rules", "--lint=all", "--lint-fatal", shipped_dashboard.RULES)
    assert (checked.returncode, checked.stderr) == (0, ""), checked.stdout


@pytest.mark.parametrize("story", ["firing.yml", "quiet.yml"])
def test_the_promtool_tests_pass(promtool: Promtool, story: str) -> None:
    result = promtool("test", "rules", TESTS / story)
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_rule_that_never_fires_fails_the_promtool_tests(promtool: Promtool, tmp_path: Path) -> None:
    result = promtool("test", "rules", changed(tmp_path, lambda expr: "vector(1) > 1") / "firing.yml")
    assert result.returncode == 1
    assert fired(result, "exp") == set(NAMES)


def test_a_rule_without_its_threshold_fails_the_promtool_tests(promtool: Promtool, tmp_path: Path) -> None:
    result = promtool("test", "rules", changed(tmp_path, without_thresholds) / "quiet.yml")
    assert result.returncode == 1
    assert fired(result, "got") == set(NAMES)


@pytest.mark.parametrize("rule", shipped_dashboard.rules(), ids=NAMES)
def test_every_rule_has_a_severity_and_a_runbook(rule: dict[str, Any]) -> None:
    assert rule["labels"] in ({"severity": word} for word in ("critical", "warning", "info"))
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    assert rule["annotations"]["runbook"].endswith(".")
    assert f'alertname="{rule["alert"]}"' in FIRING


@pytest.mark.parametrize("time", ["a fresh install", "a night", "is paused", "a restart"])
def test_no_rule_fires_in_these_situations(time: str) -> None:
    assert any(time in test["name"] for test in shipped_dashboard.yaml(TESTS / "quiet.yml")["tests"])

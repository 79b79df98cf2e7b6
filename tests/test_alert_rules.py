"""The shipped alert rules: each fires in the trouble that it is for, and all keep still while nothing is wrong."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import shipped
import tools

TESTS = shipped.GRAFANA / "prometheus" / "tests"
NAMES = [rule["alert"] for rule in shipped.rules()]
TROUBLES = (TESTS / "firing.yml").read_text("utf-8")

Promtool = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def promtool() -> Promtool:
    found = tools.need("promtool")

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([found, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=60)

    return run


def changed(folder: Path, change: Callable[[str], str]) -> Path:
    """A copy of the stories beside rules that all ask something else."""
    rules = shipped.yaml(shipped.RULES)
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule["expr"] = change(rule["expr"])
    (folder / "rules.yml").write_text(json.dumps(rules))
    return Path(shutil.copytree(TESTS, folder / "tests"))


def without_bounds(expr: str) -> str:
    """A rule that fires on the mere presence of its series."""
    return re.sub(r"(==|>=|>) *[\d.]+", "> -1e12", expr)


def fired(told: subprocess.CompletedProcess[str], what: str) -> set[str]:
    """The alerts in promtool's complaints, as they were expected (exp) or came (got)."""
    lines = [line for line in (told.stdout + told.stderr).splitlines() if re.match(rf" *{what}:", line)]
    return set(re.findall(r'alertname="(\w+)"', "".join(lines)))


def test_prometheus_takes_the_scrape_file_and_the_rules_with_it(promtool: Promtool) -> None:
    checked = promtool("check", "config", shipped.GRAFANA / "prometheus" / "prometheus.yml")
    assert checked.returncode == 0, checked.stderr
    assert f"{len(NAMES)} rules found" in checked.stdout


def test_the_rules_have_nothing_doubtful(promtool: Promtool) -> None:
    checked = promtool("check", "rules", "--lint=all", "--lint-fatal", shipped.RULES)
    assert (checked.returncode, checked.stderr) == (0, ""), checked.stdout


@pytest.mark.parametrize("story", ["firing.yml", "quiet.yml"])
def test_every_story_ends_as_it_should(promtool: Promtool, story: str) -> None:
    told = promtool("test", "rules", TESTS / story)
    assert told.returncode == 0, told.stdout + told.stderr


def test_each_rule_that_never_fires_is_noticed(promtool: Promtool, tmp_path: Path) -> None:
    told = promtool("test", "rules", changed(tmp_path, lambda expr: "vector(1) > 1") / "firing.yml")
    assert told.returncode == 1
    assert fired(told, "exp") == set(NAMES)


def test_each_rule_that_forgets_its_bound_is_noticed(promtool: Promtool, tmp_path: Path) -> None:
    told = promtool("test", "rules", changed(tmp_path, without_bounds) / "quiet.yml")
    assert told.returncode == 1
    assert fired(told, "got") == set(NAMES)


@pytest.mark.parametrize("rule", shipped.rules(), ids=NAMES)
def test_every_rule_says_how_bad_it_is_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"] in ({"severity": word} for word in ("critical", "warning", "info"))
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    assert rule["annotations"]["runbook"].endswith(".")
    assert f'alertname="{rule["alert"]}"' in TROUBLES


@pytest.mark.parametrize("time", ["a fresh install", "a night", "is paused", "a restart"])
def test_these_times_are_among_the_quiet_ones(time: str) -> None:
    assert any(time in test["name"] for test in shipped.yaml(TESTS / "quiet.yml")["tests"])

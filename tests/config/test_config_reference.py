"""Tests the generated reference, the JSON Schema, and the values of `check --effective`."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

from checkout import HOME
from config_file import RIGHT, read

from scheduler.config.keys import models
from scheduler.config.keys.models import config_schema
from scheduler.config.settings.effective_values import list_effective_values
from scheduler.model.outcome import Kind

PAGE = HOME / "docs" / "reference.md"
render_reference = runpy.run_path(str(HOME / "packaging" / "reference.py"))["render_reference"]


def test_the_reference_in_docs_is_up_to_date() -> None:
    assert PAGE.read_text() == render_reference(), "do: make reference"


def test_the_page_has_every_key_and_those_of_a_short_map_beside_the_map() -> None:
    page = render_reference()
    keys = {key for model in config_schema()["$defs"].values() for key in model["properties"]}
    assert [key for key in sorted(keys) if not re.search(rf"`(?:\w+\.)?{key}[.`]", page)] == []
    assert "| `dedup.window` | duration | `24h` |" in page.partition("## agents.NAME.heartbeat\n")[2].partition("## ")[0]
    assert "## agents.NAME.heartbeat.dedup" not in page and "| `dedup` |" not in page
    assert "| `after` | `none`, job, map |" in page and "| `after.job` |" in page  # a map that has another form, too


def test_every_key_has_a_description() -> None:
    definitions = config_schema()["$defs"].values()
    texts = [form["description"] for model in definitions for form in model["properties"].values()]
    assert len(texts) > 60
    assert all(text.endswith(".") for text in texts)


def test_the_schema_shows_defaults_as_they_are_written() -> None:
    beat = json.loads(json.dumps(config_schema()))["$defs"]["Heartbeat"]
    assert beat["additionalProperties"] is False
    assert (beat["properties"]["timeout"]["default"], beat["properties"]["stagger"]["default"]) == ("5m", "10%")
    assert beat["properties"]["ok_match"]["enum"] == ["edges", "anywhere", "exact"]
    assert "default" not in beat["properties"]["interval"]


def test_the_schema_allows_x_keys_at_the_top() -> None:
    assert config_schema()["patternProperties"] == {"^x-": {}}


def test_effective_values_name_their_origin(tmp_path: Path) -> None:
    read(tmp_path, RIGHT)
    environ = {"HEARTBEATD_SET__agents__ops__model": "m"}
    rows = {
        row.key: (row.value, row.origin)
        for row in list_effective_values(tmp_path / "config.yaml", environ, (Kind.HEARTBEAT, "ops"))
    }
    assert rows["heartbeat.interval"] == ("30m", "config.yaml:14")
    assert rows["runner.argv"] == ("[cat]", "defaults.runner.argv config.yaml:8")
    assert rows["model"] == ("m", "environment HEARTBEATD_SET__agents__ops__model")
    assert rows["heartbeat.timeout"] == ("5m", "built in")
    assert rows["heartbeat.timezone"] == ("Europe/Berlin", "top-level timezone")
    assert rows["heartbeat.deliver"] == ("[hook]", "built in")
    assert rows["heartbeat.model"] == ("m", "model")


def test_effective_values_of_a_job_do_not_show_values_of_other_keys(tmp_path: Path) -> None:
    jobs = "  ask: {prompt: hi, agent: ops, every: 1h}\n  proof: {command: ./work, every: 1h, postcheck: {file: report.md}}\n"
    loaded = read(tmp_path, f"{RIGHT}{jobs}".replace("    workspace: agents/ops", "    model: m\n    workspace: agents/ops"))
    assert {"ask", "proof"} <= loaded.settings.jobs.keys()
    ask, proof = (
        {row.key: (row.value, row.origin) for row in list_effective_values(tmp_path / "config.yaml", {}, (Kind.CRON, name))}
        for name in ("ask", "proof")
    )
    assert (ask["model"], ask["effort"]) == (("m", "agents.ops"), ("none", "built in"))
    assert (proof["command"][0], proof["postcheck.command"][0], proof["postcheck.file"][0]) == ("./work", "none", "report.md")


def test_the_zone_of_a_heartbeat_that_its_hours_decide_is_not_the_top_level_one(tmp_path: Path) -> None:
    hours = '{start: "08:00", end: "22:00", timezone: Asia/Tokyo}'
    read(
        tmp_path,
        f"agents: {{ops: {{runner: {{kind: command, argv: [cat]}}, heartbeat: {{interval: 1h, active_hours: {hours}}}}}}}\n",
    )
    rows = {row.key: row for row in list_effective_values(tmp_path / "config.yaml", {}, (Kind.HEARTBEAT, "ops"))}
    assert (rows["heartbeat.timezone"].value, rows["heartbeat.timezone"].origin) == ("Asia/Tokyo", "heartbeat.active_hours")


def test_every_key_of_an_agent_is_in_a_section_of_the_form_or_left_out_on_purpose() -> None:
    definitions = config_schema()["$defs"]
    left_out = {
        key
        for model in ("Agent", "Heartbeat")
        for key, form in definitions[model]["properties"].items()
        if form.get("x-section") not in get_args(models.Section)
    }
    assert left_out == {"heartbeat", "decide", "executor"}


def test_a_key_that_is_not_computed_is_a_field_of_the_spec_with_its_value(tmp_path: Path) -> None:
    beat = read(tmp_path, RIGHT.replace("retries: 2", "retries: 3\n      show_resolved: false")).settings.heartbeats["ops"]
    assert (beat.retries, beat.show_resolved, beat.timeout) == (3, False, timedelta(minutes=5))


def test_every_key_that_names_a_program_a_file_or_a_secret_can_only_be_changed_in_the_file() -> None:
    """Whether a key is one of them is read from its form. A new key of this kind without the mark would be open to a token."""
    kinds = (
        "path",
        "shell command",
        "list of strings",
        "map of strings",
        "string with",
        "`none`, command",
        "file in the",
    )
    homes = ("agents.NAME.heartbeat", "defaults.heartbeat")

    def open_keys(model: dict[str, Any], path: str) -> Iterator[tuple[str, str]]:
        for name, form in model["properties"].items():
            inside = f"{path}.{name}".removeprefix(".")
            if "x-file-only" in form:
                continue
            if "additionalProperties" in form:
                form, inside = form["additionalProperties"], f"{inside}.NAME"
            yield inside, form.get("x-form", "")
            if (inner := models.model_of_form(form)) is not None:
                yield from open_keys(inner, inside)

    found = list(open_keys(config_schema(), ""))
    assert {path for path, form in found if form.startswith(kinds)} == {f"{home}.checklist" for home in homes}  # only as a text
    assert len(found) > 80

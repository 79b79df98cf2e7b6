"""What docs/ shows works: every config in it is accepted, and every key that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from config_file import read

import heartbeat
from scheduler.config.build.load import config_schema
from scheduler.config.file.diagnostics import ConfigError

DOCS = Path(__file__).parent.parent / "docs"
COMING = (DOCS / "coming-from.md").read_text("utf-8")
SECTIONS = dict(part.split("\n", 1) for part in COMING.split("\n## ")[1:])


def test_seven_systems_have_their_section() -> None:
    assert list(SECTIONS) == ["claw0", "GoClaw", "PicoClaw", "MisterMorph", "nanobot", "OpenClaw", "ZeroClaw"]


@pytest.mark.parametrize(
    ("system", "words"),
    [
        ("claw0", ["five characters"]),
        ("nanobot", ["Active Tasks"]),
        ("PicoClaw", ["interval of 0"]),
        ("MisterMorph", ["`#TODO`", "`- [ ]`"]),
        ("ZeroClaw", ["[completed]", "[every 6h]"]),
        ("OpenClaw", ["`tasks:`"]),
    ],
)
def test_what_is_different_here_is_said(system: str, words: list[str]) -> None:
    _, _, different = SECTIONS[system].partition("**Different here**")
    assert all(word in different for word in words)


@pytest.mark.parametrize("system", SECTIONS)
def test_a_system_s_config_is_accepted_as_it_is_shown(tmp_path: Path, system: str) -> None:
    (shown,) = re.findall(r"```yaml\n(.*?)```", SECTIONS[system], re.DOTALL)
    loaded = read(tmp_path, shown, {})
    assert loaded.settings.heartbeats
    assert [str(warning) for warning in loaded.warnings if "deliver" in str(warning)] == []


def keys() -> set[str]:
    models = config_schema()["$defs"].values()
    return {key for model in models for key in model["properties"]} | set(config_schema()["properties"])


@pytest.mark.parametrize("system", SECTIONS)
def test_a_system_s_table_names_only_keys_that_there_are(system: str) -> None:
    rows = [line.split("|")[2] for line in SECTIONS[system].splitlines() if line.startswith("| ")][1:]
    named = {key for row in rows for key in re.findall(r"`(?:\w+\.)?([a-z_]+)(?::[^`]*)?`", row)}
    assert named
    words = {"next", "meta", "beat", "already_running"}  # a value, a field of a run, a function, a reason
    assert named - words <= keys()


def test_the_library_s_page_names_every_argument_and_field() -> None:
    from inspect import signature

    page = (DOCS / "library.md").read_text("utf-8")
    named = set(re.findall(r"`(\w+)`", page))
    assert set(signature(heartbeat.beat).parameters) <= named
    assert set(heartbeat.Beat.__dataclass_fields__) <= named


@pytest.mark.parametrize("page", ["jobs.md"])
def test_a_page_s_configs_are_accepted_as_they_are_shown(tmp_path: Path, page: str) -> None:
    shown = re.findall(r"```yaml\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)
    assert shown
    for text in shown:
        assert read(tmp_path, text, {}).settings.jobs


def test_the_mistake_of_the_readme_is_told_as_it_says(tmp_path: Path) -> None:
    """With the interval of the shipped config misspelt, as whoever follows the README may do."""
    shipped, page = ((DOCS.parent / name).read_text("utf-8") for name in ("config.yaml", "README.md"))
    (told,) = re.findall(r"^`(config\.yaml:.*)`$", page, re.MULTILINE)
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, shipped.replace("interval: 5m ", "interval: soon ", 1), {})
    assert str(refused.value).removeprefix(f"{tmp_path}/") == told

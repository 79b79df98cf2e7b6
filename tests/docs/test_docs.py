"""The pages name existing keys, and the page for other systems describes the seven systems. `test_documented_examples` runs the examples."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
from checkout import HOME

import heartbeat
from scheduler.config.keys.models import config_schema
from scheduler.web import event_stream
from scheduler.web.perform import ENDPOINTS

KNOWN_PATHS = [
    "/metrics",
    "/healthz",
    "/readyz",
    "/mcp",
    "/api/v1/openapi.json",
    event_stream.PATH,
    *(each.path for each in ENDPOINTS.values()),
]
DOCS = HOME / "docs"
OUTSIDE = (
    "README.md",
    "CHANGELOG.md",
    "ARCHITECTURE.md",
    "grafana/README.md",
    "bench/README.md",
    "tests/README.md",
    "tests/parity.md",
)
PAGES = [*(HOME / name for name in OUTSIDE), *sorted(DOCS.glob("*.md"))]
COMING = (DOCS / "coming-from.md").read_text("utf-8")
SECTIONS = dict(part.split("\n", 1) for part in COMING.split("\n## ")[1:])


def test_each_system_has_a_section() -> None:
    assert list(SECTIONS) == ["claw0", "GoClaw", "PicoClaw", "Hermes Agent", "MisterMorph", "nanobot", "OpenClaw", "ZeroClaw"]


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
def test_each_section_lists_the_differences(system: str, words: list[str]) -> None:
    _, _, different = SECTIONS[system].partition("**Different here**")
    assert all(word in different for word in words)


def test_the_table_of_requests_has_every_request_with_its_permission() -> None:
    """A row may have several requests. The words of a row are for the reader: openapi.json has those of the operation."""
    rows = (DOCS / "api.md").read_text("utf-8").partition("## All requests")[2].splitlines()
    shown = {row: set(re.findall(r"/[^ `]*", row)) for row in rows if row.startswith("| `")}
    for each in ENDPOINTS.values():
        path = each.path.replace("{name}", "NAME").replace("{id}", "ID")
        (row,) = (row for row, paths in shown.items() if f"`{each.method}" in row and path in paths)
        assert row.split("|")[-2].split(",")[0].strip() == (each.may or "any token"), row
    known = {each.path.replace("{name}", "NAME").replace("{id}", "ID") for each in ENDPOINTS.values()}
    assert set().union(*shown.values()) == known


def keys() -> set[str]:
    models = config_schema()["$defs"].values()
    return {key for model in models for key in model["properties"]} | set(config_schema()["properties"])


@pytest.mark.parametrize("system", SECTIONS)
def test_each_section_names_only_existing_keys(system: str) -> None:
    ours = [line.partition(":** ")[2] for line in SECTIONS[system].splitlines() if line.startswith("- **")]
    named = {key for words in ours for key in re.findall(r"`(?:\w+\.)?([a-z_]+)(?::[^`]*)?`", words)}
    assert named
    words = {"next", "meta", "beat", "already_running"}  # a value, a field of a run, a function, a reason
    assert named - words <= keys()


def test_the_library_page_names_every_argument_and_field() -> None:
    from inspect import signature

    page = (DOCS / "library.md").read_text("utf-8")
    named = set(re.findall(r"`(\w+)`", page))
    assert set(signature(heartbeat.beat).parameters) - {"spec", "former"} <= named
    assert set(heartbeat.Spec.__dataclass_fields__) <= named
    assert set(heartbeat.Beat.__dataclass_fields__) <= named


def test_every_path_of_the_daemon_in_the_pages_and_in_the_alerts_exists() -> None:
    pages = "\n".join(page.read_text("utf-8") for page in (DOCS.parent / "README.md", *DOCS.glob("*.md")))
    named = set(re.findall(r"(?:127\.0\.0\.1|localhost):7857(/[\w.-][\w./-]*)", pages))
    named |= set(re.findall(r"\bURL(/[\w.-][\w./-]*)", (HOME / "grafana/prometheus/rules.yml").read_text("utf-8")))
    routes = [re.compile(re.sub(r"\{\w+\}", "[^/]+", path)) for path in KNOWN_PATHS]
    assert len(named) > 8
    assert [path for path in sorted(named) if not any(route.fullmatch(path) for route in routes)] == []


def anchors(page: Path) -> set[str]:
    """The anchors of the headings of a page, as GitHub makes them."""
    titles = re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(HOME)))
def test_every_link_leads_to_an_existing_file_and_heading(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", text)):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if "://" not in link and not (target.exists() and (not anchor or anchor in anchors(target))):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(HOME)))
def test_every_table_has_a_head_and_whole_rows(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        rows = [re.split(r"(?<!\\)\|", re.sub(r"`[^`]*`", "", row)) for row in table.splitlines()]
        assert re.match(r".*\n\|[-|: ]+\n", table), table[:80]
        assert {len(row) for row in rows} == {len(rows[0])}, table[:80]


def test_every_runbook_link_and_advice_leads_to_an_existing_page() -> None:
    """Texts of the program name a page as `docs/NAME.md` or as `heartbeatd docs NAME`."""
    sources = [
        path.read_text("utf-8")
        for folder in ("scheduler", "heartbeatd", "heartbeat", "cron")
        for path in (HOME / folder).rglob("*.py")
    ]
    named = {name for text in sources for name in re.findall(r"heartbeatd docs ([a-z-]+)`|\(docs/([a-z-]+)\.md", text)}
    assert {name for pair in named for name in pair if name} <= {page.stem for page in DOCS.glob("*.md")}


OF_OTHERS = {"chat not found", "Please run /login"}  # Telegram and Claude Code


@pytest.mark.parametrize(
    ("page", "section"), [("getting-started.md", "If something goes wrong"), ("operations.md", "If it does not start")]
)
def test_the_messages_for_newcomers_are_those_of_the_program(page: str, section: str) -> None:
    """A part of each message without names and numbers is in the source of the program."""
    table = (DOCS / page).read_text("utf-8").partition(f"## {section}\n")[2].partition("\n## ")[0]
    texts = [path.read_text("utf-8") for folder in ("scheduler", "heartbeat") for path in (HOME / folder).rglob("*.py")]
    source = re.sub(r"\"\s*\n\s*f?\"", "", "\n".join(texts))
    shown = re.findall(r"^\| `([^`]+)`", table, re.MULTILINE)
    assert len(shown) > 4
    for message in set(shown) - OF_OTHERS:
        assert any(part.strip() in source for part in re.findall(r"[a-z_ ]{9,}", message)), message


@pytest.mark.extras
def test_the_man_page_has_the_help_texts_of_all_commands() -> None:
    folder = HOME / "packaging"
    written = runpy.run_path(str(folder / "manual.py"))["manual"]()
    assert (folder / "heartbeatd.1").read_text("utf-8") == written, "run `make man`"

"""Tests of the report as an HTML page: its parts, hostile texts, its plots, the file, and its delivery by jobs."""

from __future__ import annotations

import asyncio
import json
import os
import re
import stat
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from checkout import HOME
from config_file import read
from loops import loop_over
from ruamel.yaml import YAML
from run_async import new_http_client
from test_cli_reading import add_run
from test_report_costs import tokens, usage
from test_report_data import NOON, WEEK
from world import open_store, utc

from heartbeat.runners import Resources
from scheduler.cli.main import main
from scheduler.cli.report_html import format_page
from scheduler.insight import svg_charts
from scheduler.insight.report_data import build_report
from scheduler.insight.svg_charts import Bar
from scheduler.model.entry import Claim
from scheduler.model.outcome import AttemptResult, Kind, Trigger
from scheduler.store.database import Store
from scheduler.system.process import Children
from scheduler.work import plan

MIDDLE = NOON - WEEK / 2
VOID = {"meta", "br"}
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>&lt;\x1b[31m\u202e\u0000]]>"


class Page(HTMLParser):
    """The elements of a page with their attributes, and its text. Fails at an end tag without its start tag."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "heartbeatd.db"


@pytest.fixture
def store(state: Path) -> Iterator[Store]:
    store = open_store(state)
    yield store
    store.close()


def page_of(store: Store, span: timedelta = WEEK) -> str:
    return format_page(build_report(store.connection, NOON - span, NOON, running=True))


def add_busy_week(store: Store, word: str = "pager", *, times: int = 1) -> None:
    """Runs with every kind of text that a page shows: names, senders, models, parts of prompts, reasons and channels."""
    for number in range(times):
        at, name = MIDDLE + timedelta(minutes=number), f"{word}{number or ''}"
        parts = '{"checklist": 200}' if number else json.dumps({"checklist": 200, f"context:{word}": 900})
        add_run(store, at, "alert", name=name, cost_usd=0.5, tokens=tokens(input=100, cache_read=50), prompt_parts=parts,
            model_requested=word, model_usage=usage(**{word: 0.5}), trigger="api", woken_by=word)  # fmt: skip
    add_run(store, MIDDLE, "skipped", name=word, reason=word, slots=3)
    add_run(store, MIDDLE + timedelta(hours=1), "failed", name=word, reason=word, kind="cron")
    store.connection.execute(
        "insert into outbox (key, channel, run_id, kind, name, trigger, slot, part, parts, title, text, state, not_before, created_at)"
        " values ('k', ?, 1, 'heartbeat', 'ops', 'interval', 1, 1, 1, '', '', 'pending', 1, ?)",
        (word, int(MIDDLE.timestamp() * 1000)),
    )


def test_the_page_shows_the_numbers_of_the_report(store: Store) -> None:
    add_busy_week(store)
    page = Page(page_of(store))
    for words in (
        "$0.50 cost",
        "33% input from the cache",
        "Cost over time",
        "Runs over time",
        "agent/pager 1 1 0 3 $0.50",
        "agent/pager pager 1 100 - 10 $0.50",
        "api pager agent/pager 1 $0.50",
        "context:pager agent/pager 1 900 82%",
        "Skipped reason agents and jobs slots pager agent/pager 3 3",
    ):
        assert words in page.text, (words, page.text)


def test_a_page_without_runs_has_no_plots_and_no_tables(store: Store) -> None:
    text = page_of(store)
    assert "Nothing ran, and nothing was skipped." in Page(text).text
    assert "<svg" not in text
    assert "<table" not in text


@pytest.mark.parametrize("word", ["pager", HOSTILE, "</style></svg></td>", "a" * 400, "日本語 " * 40])
def test_the_page_has_no_scripts_and_no_links_whatever_the_names_are(store: Store, word: str) -> None:
    add_busy_week(store, word)
    text = page_of(store)
    page = Page(text)
    assert {tag for tag, _ in page.elements} <= {
        "html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "div", "b", "span", "table", "tr", "th", "td",
        "svg", "g", "rect", "line", "text",
    }  # fmt: skip
    for _, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "href", "style")]
    assert not re.search(r"url\(|@import|https?://", text)
    assert "default-src 'none'" in text
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", text)
    text.encode()  # no lone surrogate


@pytest.mark.parametrize("span", [timedelta(hours=5), WEEK, timedelta(days=365)])
def test_each_plot_is_well_formed_and_its_bars_are_within_it(store: Store, span: timedelta) -> None:
    add_busy_week(store, "a&b<c>")
    add_run(store, NOON - timedelta(hours=1), "alert", cost_usd=123.456)
    drawings = re.findall(r"<svg.*?</svg>", page_of(store, span), re.DOTALL)
    assert len(drawings) > 3
    for drawing in drawings:
        root = ET.fromstring(drawing)
        width, height = (float(number) for number in root.attrib["viewBox"].split()[2:])
        for bar in root.iter("rect"):
            left, top = float(bar.get("x", 0)), float(bar.get("y", 0))
            assert 0 <= left <= left + float(bar.attrib["width"]) <= width + 0.01
            assert 0 <= top <= top + float(bar.attrib["height"]) <= height + 0.01


def test_the_page_fits_a_phone_and_has_colours_for_dark_mode(store: Store) -> None:
    add_busy_week(store)
    text = page_of(store)
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in text
    assert "@media (prefers-color-scheme: dark)" in text
    assert text.count('<div class="wide"><table>') == text.count("<table>")  # a wide table scrolls by itself
    style = text[text.index("<style>") : text.index("</style>")]
    assert [width for width in re.findall(r"(?<!max-)width: *(\d+)px", style) if int(width) > 390] == []
    dark = style[style.index("@media") :]
    assert all(f"{name}:" in dark for name in set(re.findall(r"var\((--\w+)\)", style)))


def test_a_page_of_many_agents_stays_small_and_counts_those_that_are_left_out(store: Store) -> None:
    add_busy_week(store, times=200)
    text = page_of(store)
    assert "161 more are left out." in Page(text).text  # 200 agents and a job
    assert len(text) < 60_000


@loop_over(("largest", "end"), [(0, 1), (0.00003, 0.00005), (0.2, 0.2), (0.21, 0.5), (1, 1), (7, 10), (10.0, 10), (3600, 5000)])
def test_a_scale_ends_at_a_round_number(largest: float, end: float) -> None:
    assert svg_charts.find_scale_end(largest) == pytest.approx(end)


def test_a_plot_has_a_title_for_each_bar_and_three_labels() -> None:
    bars = [Bar(f"11-{day:02}", f"day {day}", (("ok", day), ("failed", 1))) for day in range(1, 31)]
    drawn = svg_charts.draw_bars(bars, "Runs", str)
    assert drawn.count("<title>") == 30
    assert re.findall(r">(11-\d\d)<", drawn) == ["11-01", "11-16", "11-30"]
    assert [svg_charts.draw_bars(bars[:number], "Runs", str).count(">11-") for number in (0, 1, 2)] == [0, 1, 2]


def run_report(state: Path, *arguments: str) -> int:
    return main(["report", "--state", str(state), *arguments])


def add_recent_run(store: Store) -> None:
    add_run(store, datetime.now(UTC) - timedelta(hours=1), cost_usd=0.5)


@pytest.fixture
def group_may_write() -> Iterator[None]:
    before = os.umask(0o002)
    yield
    os.umask(before)


def test_the_page_is_written_to_a_file_and_the_summary_is_printed(
    store: Store, state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], group_may_write: None
) -> None:
    add_recent_run(store)
    page = tmp_path / "a page.html"
    assert run_report(state, "--format", "html", "--out", str(page)) == 0
    assert capsys.readouterr().out.startswith("1 run: 0 with an alert, 1 without, 0 failed. Cost $0.50")
    assert "$0.50" in Page(page.read_text("utf-8")).text
    assert stat.S_IMODE(page.stat().st_mode) == 0o664
    page.chmod(0o640)
    assert run_report(state, "--out", str(page)) == 0
    assert page.read_text("utf-8").splitlines()[2].startswith("1 run:")
    assert stat.S_IMODE(page.stat().st_mode) == 0o640
    assert [each.name for each in tmp_path.iterdir() if "page" in each.name] == ["a page.html"]


def test_a_link_to_the_page_stays_a_link(store: Store, state: Path, tmp_path: Path) -> None:
    (tmp_path / "link.html").symlink_to(tmp_path / "real.html")
    assert run_report(state, "--format", "html", "--out", str(tmp_path / "link.html")) == 0
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "real.html").read_text("utf-8").startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("name", "problem"), [("none/page.html", "No such file or directory"), ("/dev/null", "not a regular file")]
)
def test_a_page_that_cannot_be_written_is_an_error_of_one_line(
    store: Store, state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, problem: str
) -> None:
    assert run_report(state, "--format", "html", "--out", str(tmp_path / name)) == 2
    assert capsys.readouterr().err.splitlines() == [f"heartbeatd: {tmp_path / name} cannot be written: {problem}"]


def test_without_a_database_no_page_is_written(state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_report(state, "--format", "html", "--out", str(tmp_path / "page.html")) == 0
    assert capsys.readouterr().out == f"there is no database yet: {state}\n"
    assert not (tmp_path / "page.html").exists()


# --- jobs of the documentation that deliver the page ----------------------------------------------------------------------------


def job_of_docs(name: str) -> dict[str, Any]:
    """The keys of a job in docs/money.md."""
    blocks = re.findall(r"```yaml\n(.*?)```", (HOME / "docs/money.md").read_text("utf-8"), re.DOTALL)
    (block,) = (block for block in blocks if f"  {name}:\n" in block)
    return dict(YAML(typ="safe").load(block)["cron"][name])


def run_documented_job(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> AttemptResult:
    """Run a job of the documentation with a stand-in for sendmail, and with a folder of ours as the web server's."""
    programs = folder / "bin"
    programs.mkdir()
    for program, script in {
        "heartbeatd": f'PYTHONPATH="{HOME}" exec "{sys.executable}" -m scheduler "$@"',
        "sendmail": f'cat > "{folder}/mail"; echo "$@" > "{folder}/arguments"',
    }.items():
        (programs / program).write_text(f"#!/bin/sh\n{script}\n")
        (programs / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    command = job_of_docs(name)["command"].replace("/var/www/html/", "web/")
    (folder / "web").mkdir()
    text = f"state: heartbeatd.db\ncron:\n  {name}:\n    every: 1h\n    command: |\n" + "".join(
        f"      {line}\n" for line in command.splitlines()
    )
    entry = plan.make_plan(read(folder, text, {}).settings).entries[(Kind.CRON, name)]
    now = utc("2026-03-02 08:00")
    claim = Claim(7, 1, "me", entry, now, Trigger.EVERY, 1, 0, now, paused=False, wakes=(), last_beat=None, failures=0)

    async def run() -> AttemptResult:
        return await entry.run_attempt(claim, Resources(Children("1").start, new_http_client()), timedelta)

    return asyncio.run(run())


def test_a_job_writes_the_page_for_a_web_server_and_its_output_is_the_summary_with_the_link(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_recent_run(store)
    result = run_documented_job(tmp_path, "report-link", monkeypatch)
    assert result.message is not None, result
    assert result.message.startswith("1 run: 0 with an alert")
    assert result.message.endswith("Plots: https://www.example.org/agents.html")
    assert "$0.50" in Page((tmp_path / "web/agents.html").read_text("utf-8")).text


def test_a_job_sends_the_page_by_mail(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_recent_run(store)
    result = run_documented_job(tmp_path, "report-mail", monkeypatch)
    assert (result.outcome, result.text, result.error) == ("ok", "", None)
    assert (tmp_path / "arguments").read_text() == "-t\n"
    headers, page = (tmp_path / "mail").read_text("utf-8").split("\n\n", 1)
    assert headers.splitlines() == [
        "To: me@example.org",
        "Subject: heartbeatd report",
        "MIME-Version: 1.0",
        "Content-Type: text/html; charset=utf-8",
    ]
    assert "$0.50" in Page(page).text

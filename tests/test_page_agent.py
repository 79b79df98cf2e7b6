"""The view of one agent in a real browser: the picture of a day, runs, wakes, every button, the checklist and the config."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import (
    SCREENS,
    accessibility_problems,
    log_in,
    needs_browser,
    open_browser,
    open_page,
    overflowing_width,
    save_screenshot,
)
from playwright.sync_api import Browser
from web_daemon import WebDaemon
from world import AgentCall

pytestmark = needs_browser

CONFIG = """\
timezone: Europe/Berlin
server: {listen: "127.0.0.1:0", tokens: {
  reader: {value: "reader-token-with-enough-bits-in-it", may: [read]},
  waker: {value: "waker-token-with-enough-bits-in-it-1", may: [read, wake]},
  self: {value: "self-token-with-enough-bits-in-it-11", may: [read, edit], agents: [ops]},
  all: {value: "all-token-with-enough-bits-in-it-111", may: [read, wake, operate, edit]}}}
channels: {chat: {kind: command, argv: [send]}}
agents:
  ops:                                    # watches the disk
    runner: {kind: command, argv: [agent]}
    heartbeat:
      interval: 30m                       # twice an hour
      stagger: 0s
      active_hours: "08:00-22:00"
      retries: 0
      deliver: chat
      budget: {runs_per_day: 200}
  web: &web
    runner: {kind: command, argv: [agent]}
    heartbeat: {interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: log}
  copy: *web
cron:
  measure: {every: 6h, command: measure}
"""
TOKENS = {
    "reader": "reader-token-with-enough-bits-in-it",
    "waker": "waker-token-with-enough-bits-in-it-1",
    "self": "self-token-with-enough-bits-in-it-11",
    "all": "all-token-with-enough-bits-in-it-111",
}
HOSTILE = '<script>alert(1)</script><img src=x onerror="alert(2)"> \u202eevil\u202c & "quotes"'


def answer(call: AgentCall) -> str | int:
    """What the agent says: most of the time nothing, twice something, and once it fails."""
    time = f"{call.at:%H:%M}"
    return {"10:00": "The disk /srv is 92 % full.", "11:30": HOSTILE, "12:00": 1}.get(time, "HEARTBEAT_OK")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as found:
        yield found


def start_daemon(folder: Path) -> WebDaemon:
    daemon = WebDaemon(folder, CONFIG)
    daemon.world.scripts = {"ops": answer}
    daemon.do(lambda: daemon.world.write("ops/HEARTBEAT.md", "- Is the disk full?\n- Are there new mails?\n"))
    daemon.do(lambda: daemon.world.run(hours=6))
    return daemon


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDaemon]:
    """A daemon that no test changes."""
    with start_daemon(tmp_path_factory.mktemp("page")) as running:
        yield running


@pytest.fixture
def changed_daemon(tmp_path: Path) -> Iterator[WebDaemon]:
    """A daemon of its own, for tests that change something."""
    with start_daemon(tmp_path) as running:
        yield running


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
@pytest.mark.parametrize("view", ["", "/checklist", "/config"])
def test_each_view_of_an_agent_is_accessible_on_every_screen(
    view: str, width: str, scheme: str, browser: Browser, daemon: WebDaemon
) -> None:
    with open_page(browser, daemon.server.url, width, scheme) as page:
        log_in(page, TOKENS["all"], f"/page/agents/ops{view}")
        assert page.get_by_role("heading", name="ops", level=1).is_visible()
        page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
        assert accessibility_problems(page) == []
        assert overflowing_width(page) <= 0
        save_screenshot(page, f"agent{view.replace('/', '-')}-{width}-{scheme}")

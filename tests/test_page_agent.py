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
from page_agents import TOKENS, start_daemon
from playwright.sync_api import Browser
from web_daemon import WebDaemon

pytestmark = needs_browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as found:
        yield found


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

"""The status page in a real browser: login, every screen, the keyboard, live news."""

from __future__ import annotations

from collections.abc import Iterator

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
from web_daemon import TOKENS, WebDaemon

pytestmark = needs_browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as found:
        yield found


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDaemon]:
    with WebDaemon(tmp_path_factory.mktemp("page")) as running:
        yield running


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_the_login_and_the_fleet_are_accessible_on_every_screen(
    width: str, scheme: str, browser: Browser, daemon: WebDaemon
) -> None:
    with open_page(browser, daemon.server.url, width, scheme) as page:
        page.goto("/")
        assert page.url.endswith("/page/login")
        assert accessibility_problems(page) == []
        save_screenshot(page, f"login-{width}-{scheme}")
        log_in(page, TOKENS["chief"])
        assert page.get_by_role("heading", name="Fleet").is_visible()
        assert accessibility_problems(page) == []
        assert overflowing_width(page) <= 0
        save_screenshot(page, f"fleet-{width}-{scheme}")

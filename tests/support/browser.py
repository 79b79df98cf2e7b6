"""Drives Debian's Chromium for tests of the status page: screens, colour schemes, accessibility checks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import required_programs
from axe_playwright_python.sync_playwright import Axe
from patience import PATIENCE
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

PROGRAM = "chromium-headless-shell"
WIDTHS = {"phone": 390, "desktop": 1440}
SCREENS = [(width, scheme) for width in WIDTHS for scheme in ("light", "dark")]
TIMEOUT = 1000 * PATIENCE  # milliseconds
expect.set_options(timeout=TIMEOUT)  # a busy machine may need longer than the five seconds of Playwright
needs_browser = required_programs.needs(PROGRAM)


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A browser without windows. Opening it takes a second, so a module shares one."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=required_programs.find(PROGRAM), args=["--no-sandbox"], timeout=60_000
        )
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def open_page(browser: Browser, url: str, width: str = "desktop", scheme: str = "light", **options: Any) -> Iterator[Page]:
    """A page of a new user at `url` (its origin is the base of later paths). Errors of the page's console fail the test."""
    context: BrowserContext = browser.new_context(
        base_url=url,
        viewport={"width": WIDTHS[width], "height": 900},
        color_scheme=scheme,
        timezone_id="UTC",
        locale="en-GB",
        **options,
    )
    context.set_default_timeout(TIMEOUT)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if _is_fault(message) else None)
    try:
        yield page
        assert not errors, errors
    finally:
        context.close()


def _is_fault(message: Any) -> bool:
    """Whether the page is at fault. A refused request (401, 403, 404) is an error of the console too, but tests provoke it."""
    return message.type == "error" and "Failed to load resource" not in message.text


def log_in(page: Page, token: str, path: str = "/") -> None:
    """Log in with a token, and go to `path`."""
    page.goto("/page/login" if path == "/" else path)
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_load_state()


def accessibility_problems(page: Page) -> list[str]:
    """The violations that axe finds on the page: rule, and the first elements."""
    found = Axe().run(page).response["violations"]
    return [f"{each['id']}: {[node['html'][:120] for node in each['nodes'][:3]]}" for each in found]


def overflowing_width(page: Page) -> int:
    """By how many pixels the page is wider than the screen."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


def save_screenshot(page: Page, name: str) -> None:
    """Save a picture of the whole page as `name`.png, if the variable SCREENSHOTS names a folder."""
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)

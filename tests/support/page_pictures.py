"""Draws the pictures of docs/page.md and docs/simulate.md: the status page of a made-up fleet in Debian's Chromium.

python tests/support/page_pictures.py [NAME ...]
ALL=/tmp/views python tests/support/page_pictures.py

With ALL=folder, every view is drawn into that folder: on every screen, with 8 and with 300 agents. docs/pictures gets one sheet
for each screen, with the beginnings of these pictures.
"""

from __future__ import annotations

import base64
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import page_agents
from browser import SCREENS, log_in, open_browser, open_page
from checkout import HOME
from page_fleet import open_fleet
from page_foresight import open_month, open_recorded
from playwright.sync_api import Browser, Page
from web_daemon import TOKENS

TARGET = HOME / "docs" / "pictures"
MANY = 292  # agents beside the eight of the made-up fleet
# By the name of the file: more agents, the path, the width, the colours, and the height that is shown (None: all of it).
PICTURES: dict[str, tuple[int, str, str, str, int | None]] = {
    "page-fleet": (0, "/", "desktop", "light", None),
    "page-agent": (0, "/page/agents/deploys", "desktop", "light", 900),
    "page-plan": (0, "/page/plan", "desktop", "light", None),
    "page-phone": (0, "/page/agents/deploys", "phone", "dark", 844),
    "page-phone-fleet": (0, "/", "phone", "dark", 844),
    "page-rows": (MANY, "/?as=rows", "desktop", "light", 900),
}
# The views that ALL=folder draws.
VIEWS = {
    "fleet": "/",
    "rows": "/?as=rows",
    "agent": "/page/agents/deploys",
    "run": "/page/runs/1",
    "config": "/page/agents/deploys/config",
    "checklist": "/page/agents/reports/checklist",
} | {name: f"/page/{name}" for name in ("problems", "jobs", "outbox", "plan", "costs", "changes", "doctor")}


def main(names: list[str]) -> None:
    target = Path(os.environ.get("ALL", TARGET))
    os.environ["PATH"] = "/usr/local/bin:/usr/bin:/bin"  # Doctor shows it
    pictures = PICTURES
    if "ALL" in os.environ:
        screens = [(more, view, width, scheme) for more in (0, MANY) for view in VIEWS for width, scheme in SCREENS]
        pictures = {
            f"{view}-{8 + more}-{width}-{scheme}": (more, VIEWS[view], width, scheme, None)
            for more, view, width, scheme in screens
        }
    chosen = {name: picture for name, picture in pictures.items() if not names or name in names}
    for more in sorted({picture[0] for picture in chosen.values()}):
        with tempfile.TemporaryDirectory() as folder, open_fleet(Path(folder), more) as daemon, open_browser() as browser:
            for name, picture in chosen.items():
                if picture[0] == more:
                    draw(browser, daemon.server.url, target / f"{name}.png", *picture[1:])
    if "ALL" in os.environ:
        with open_browser() as browser:
            for width, scheme in SCREENS:
                draw_sheet(browser, target, width, scheme)
        return
    with open_browser() as browser:
        if not names or "page-simulate" in names:
            with draw_simulation(browser, "phone", "light") as page:
                box = page.locator("#simulated").bounding_box()
                page.screenshot(path=TARGET / "page-simulate.png", full_page=True, clip={**box, "height": 1000})
        if not names or "page-replay" in names:
            with draw_replay(browser, "desktop", "light") as page:
                page.locator("#replay").screenshot(path=TARGET / "page-replay.png")


def draw(browser: Browser, url: str, target: Path, path: str, width: str, scheme: str, height: int | None) -> None:
    with open_page(browser, url, width, scheme) as page:
        log_in(page, TOKENS["chief"], path)
        page.locator("#live").get_by_text("Live.").wait_for()
        if height is not None:
            page.set_viewport_size({"width": page.viewport_size["width"], "height": height})
        page.screenshot(path=target, full_page=height is None)


def draw_sheet(browser: Browser, folder: Path, width: str, scheme: str) -> None:
    """One picture of all views on one screen: their first 900 pixels, scaled down."""
    size = {"desktop": "width: 360px; height: 225px", "phone": "width: 150px; height: 346px"}[width]
    images = []
    for more in (0, MANY):
        for view in VIEWS:
            content = base64.b64encode((folder / f"{view}-{8 + more}-{width}-{scheme}.png").read_bytes()).decode()
            images.append(f'<img src="data:image/png;base64,{content}" style="{size}; object-fit: cover; object-position: top">')
    page = browser.new_page(viewport={"width": 1500, "height": 900})
    page.set_content(
        f'<body style="margin: 0; display: flex; flex-wrap: wrap; gap: 12px; background: #888">{"".join(images)}</body>'
    )
    page.screenshot(path=TARGET / f"page-all-{width}-{scheme}.jpg", full_page=True, type="jpeg", quality=40)
    page.close()


@contextmanager
def draw_simulation(browser: Browser, width: str, scheme: str) -> Iterator[Page]:
    """The page after a simulation."""
    with (
        tempfile.TemporaryDirectory() as folder,
        open_month(Path(folder)) as daemon,
        open_page(browser, daemon.server.url, width, scheme) as page,
    ):
        log_in(page, page_agents.TOKENS["all"], "/page/simulate")
        page.get_by_label("Time").select_option("7")
        page.get_by_label("Shares of answers").fill("quiet:0.9,problem:0.09,fail:0.01")
        page.get_by_role("button", name="Simulate").click()
        page.get_by_role("heading", name="Assumed").wait_for()
        yield page


@contextmanager
def draw_replay(browser: Browser, width: str, scheme: str) -> Iterator[Page]:
    """The form of an agent with changes that are not written yet, and the last days with them."""
    with (
        tempfile.TemporaryDirectory() as folder,
        open_recorded(Path(folder)) as daemon,
        open_page(browser, daemon.server.url, width, scheme) as page,
    ):
        log_in(page, page_agents.TOKENS["self"], "/page/agents/ops/config")
        page.locator("[name='heartbeat.active_hours']").fill("08:00-24:00")
        page.get_by_role("button", name="Check the changes").click()
        page.get_by_role("heading", name="with these changes").wait_for()
        yield page


if __name__ == "__main__":
    main(sys.argv[1:])

"""Draws the pictures of docs/page.md: the status page of a made-up fleet in Debian's Chromium.

python tests/support/page_pictures.py [NAME ...]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from browser import log_in, open_browser, open_page
from checkout import HOME
from page_fleet import open_fleet
from web_daemon import TOKENS

TARGET = HOME / "docs" / "pictures"
# By the name of the file: the path, the width, the colours, and the height that is shown (None: all of it).
PICTURES: dict[str, tuple[str, str, str, int | None]] = {
    "page-fleet": ("/", "desktop", "light", None),
    "page-agent": ("/page/agents/websites", "desktop", "light", 1100),
    "page-plan": ("/page/plan", "desktop", "light", None),
    "page-phone": ("/page/agents/backups", "phone", "dark", 1000),
}


def main(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder, open_fleet(Path(folder)) as daemon, open_browser() as browser:
        for name, (path, width, scheme, height) in PICTURES.items():
            if names and name not in names:
                continue
            with open_page(browser, daemon.server.url, width, scheme) as page:
                log_in(page, TOKENS["chief"], path)
                page.locator("#live").get_by_text("Live.").wait_for()
                if height is not None:
                    page.set_viewport_size({"width": page.viewport_size["width"], "height": height})
                page.screenshot(path=TARGET / f"{name}.png", full_page=height is None)


if __name__ == "__main__":
    main(sys.argv[1:])

"""The view of one agent in a real browser: every button on every screen, edits with errors, the keyboard, no JavaScript, news."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
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
from page_agents import CONFIG, TOKENS, start_daemon
from playwright.sync_api import Browser, Page, expect
from web_daemon import WebDaemon

pytestmark = needs_browser

OPS = "/page/agents/ops"
TWO_SCREENS = [("phone", "dark"), ("desktop", "light")]  # for long stories: each width and each scheme once


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as found:
        yield found


@pytest.fixture(scope="module")
def kept_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDaemon]:
    """A daemon that no test changes."""
    with start_daemon(tmp_path_factory.mktemp("page")) as running:
        yield running


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[WebDaemon]:
    with start_daemon(tmp_path, hours=1.5) as running:
        yield running


def check_screen(page: Page, name: str) -> None:
    """Axe finds nothing, and the page fits on the screen. Everything that can be unfolded is checked too."""
    page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    assert accessibility_problems(page) == []
    assert overflowing_width(page) <= 0
    save_screenshot(page, name)


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def open_form(page: Page, word: str) -> None:
    """Unfold the form of a button that has inputs."""
    if page.locator(f"#do-{word}").get_attribute("open") is None:
        page.locator(f"#do-{word} > summary").click()


def expect_notice(page: Page, text: str) -> None:
    expect(page.locator(".notice").first).to_contain_text(text)


def open_section(page: Page, title: str) -> None:
    section = page.locator("details.section", has=page.get_by_role("heading", name=title))
    if section.get_attribute("open") is None:
        section.locator("summary").click()


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_each_view_of_an_agent_is_accessible_on_every_screen(
    width: str, scheme: str, browser: Browser, kept_daemon: WebDaemon
) -> None:
    with open_page(browser, kept_daemon.server.url, width, scheme) as page:
        log_in(page, TOKENS["all"], OPS)
        expect(page.get_by_role("heading", name="ops", level=1)).to_be_visible()
        for shown in ("#why", ".said", "[action$='/wake']", "#do-pause > summary", "#do-mute > summary"):  # without scrolling
            box = page.locator(shown).first.bounding_box()
            assert box and box["y"] + box["height"] < 800, shown
        check_screen(page, f"agent-{width}-{scheme}")
        page.get_by_role("link", name="Checklist").click()
        check_screen(page, f"agent-checklist-{width}-{scheme}")
        page.get_by_role("link", name="Config").click()
        check_screen(page, f"agent-config-{width}-{scheme}")
        page.goto("/page/runs/13")
        check_screen(page, f"run-{width}-{scheme}")


@pytest.mark.parametrize(("width", "scheme"), TWO_SCREENS)
def test_a_wrong_value_is_named_at_its_field_and_the_right_one_is_written(
    width: str, scheme: str, browser: Browser, daemon: WebDaemon
) -> None:
    with open_page(browser, daemon.server.url, width, scheme) as page:
        log_in(page, TOKENS["all"], f"{OPS}/config")
        page.get_by_label("interval", exact=True).fill("1 fortnight")
        open_section(page, "Delivery")
        page.get_by_label("show_ok", exact=True).select_option("true")
        press(page, "Check the changes")
        expect_notice(page, "Nothing was written: the config would have 1 error.")
        interval = page.get_by_label("interval", exact=True)
        expect(interval).to_have_value("1 fortnight")
        expect(interval).to_have_attribute("aria-invalid", "true")
        expect(page.locator("#heartbeat-interval-error")).to_contain_text("is not a duration")
        check_screen(page, f"agent-config-error-{width}-{scheme}")

        interval.fill("1h")
        press(page, "Check the changes")
        expect(page.get_by_role("region", name="Changed lines of config.yaml")).to_contain_text("+      interval: 1h")
        check_screen(page, f"agent-config-diff-{width}-{scheme}")
        press(page, "Back to the form")
        expect(page.get_by_label("interval", exact=True)).to_have_value("1h")
        assert daemon.config.read_text() == CONFIG

        press(page, "Check the changes")
        press(page, "Write to config.yaml")
        expect_notice(page, "Written and applied.")
        assert "interval: 1h " in daemon.config.read_text() and "show_ok: true" in daemon.config.read_text()


@pytest.mark.parametrize(("width", "scheme"), TWO_SCREENS)
def test_every_button_works_on_every_screen(width: str, scheme: str, browser: Browser, daemon: WebDaemon) -> None:
    with open_page(browser, daemon.server.url, width, scheme) as page:
        log_in(page, TOKENS["all"], OPS)
        press(page, "Run now")
        expect_notice(page, "for agent/ops is queued")
        open_form(page, "wake")
        page.get_by_label("Text to put into the agent's prompt").fill("look at the disk")
        press(page, "Wake")
        expect_notice(page, "is queued; it waits until")  # limits.wake_gap
        expect(page.get_by_role("heading", name="Waiting wakes")).to_be_visible()

        open_form(page, "pause")
        page.locator("#pause-for").fill("soon")
        press(page, "Pause")
        expect_notice(page, "'soon' is not a duration")
        expect(page.locator("#pause-for")).to_have_value("soon")
        page.locator("#pause-for").fill("2h")
        press(page, "Pause")
        expect_notice(page, "agent/ops is paused until")
        press(page, "Resume")
        expect_notice(page, "agent/ops is resumed")

        press(page, "Mute until 12:00")
        expect_notice(page, "agent/ops is muted until 2026-03-02 12:00")
        press(page, "Unmute")
        open_form(page, "mute")
        page.get_by_label("End it when a problem opens").check()
        press(page, "Mute")
        expect_notice(page, "agent/ops is muted until")
        check_screen(page, f"agent-muted-{width}-{scheme}")
        press(page, "Unmute")
        expect_notice(page, "agent/ops is unmuted")

        page.get_by_role("link", name="Day before").click()
        expect(page.get_by_role("heading", name="Sunday 01 March 2026")).to_be_visible()
        page.get_by_role("link", name="Today").click()
        page.get_by_role("link", name="Day after").click()
        page.locator("#on").fill("2026-03-02")
        press(page, "Show")
        expect(page.get_by_role("heading", name="Today, Monday 02 March 2026")).to_be_visible()
        page.get_by_text("The day as a table").click()
        page.get_by_role("region", name="The day as a table").get_by_role("link").first.click()
        expect(page.get_by_role("heading", name="of ops", level=1)).to_be_visible()
        page.get_by_role("link", name="Agent ops").click()

        page.get_by_role("link", name="Checklist").click()
        page.get_by_label("Checklist", exact=True).fill("- one\n- two\n")
        press(page, "Save")
        expect_notice(page, "The checklist is saved.")
        assert (daemon.world.folder / "agents/ops/HEARTBEAT.md").read_text() == "- one\n- two\n"


def test_a_run_in_progress_is_cancelled(browser: Browser, daemon: WebDaemon) -> None:
    daemon.do(lambda: daemon.world.durations.update(ops=timedelta(minutes=5)))
    with open_page(browser, daemon.server.url) as page:
        log_in(page, TOKENS["all"], OPS)
        press(page, "Run now")
        page.get_by_role("button", name="Cancel run").click()
        expect_notice(page, "is being cancelled")


def test_two_editors_of_the_checklist_lose_nothing(browser: Browser, daemon: WebDaemon) -> None:
    with open_page(browser, daemon.server.url) as page:
        log_in(page, TOKENS["all"], f"{OPS}/checklist")
        (daemon.world.folder / "agents/ops/HEARTBEAT.md").write_text("- by the other\n")
        page.get_by_label("Checklist", exact=True).fill("- mine\n")
        press(page, "Save")
        expect_notice(page, "Somebody else has changed the checklist")
        expect(page.get_by_label("Checklist", exact=True)).to_have_value("- mine\n")
        assert accessibility_problems(page) == []
        press(page, "Save my text")
        expect_notice(page, "The checklist is saved.")


def test_an_agent_is_woken_and_edited_with_the_keyboard_alone(browser: Browser, daemon: WebDaemon) -> None:
    with open_page(browser, daemon.server.url) as page:
        log_in(page, TOKENS["all"], OPS)
        tab_to(page, "#do-wake > summary")
        page.keyboard.press("Enter")
        tab_to(page, "#wake-text")
        page.keyboard.type("look")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect_notice(page, "for agent/ops is queued")
        tab_to(page, "nav.tabs a[href$='/config']")
        page.keyboard.press("Enter")
        tab_to(page, "#heartbeat-interval")
        page.keyboard.press("Control+A")
        page.keyboard.type("2h")
        page.keyboard.press("Enter")
        tab_to(page, "button[value=write]")
        page.keyboard.press("Enter")
        expect_notice(page, "Written and applied.")
        assert "interval: 2h " in daemon.config.read_text()


def tab_to(page: Page, selector: str) -> None:
    """Press Tab until this element has the focus, and see that the focus is visible."""
    page.locator("body").press("Home")
    for _ in range(200):
        page.keyboard.press("Tab")
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline != "none"
            return
    raise AssertionError(f"{selector} cannot be reached with Tab")


def test_everything_works_without_javascript(browser: Browser, daemon: WebDaemon) -> None:
    with open_page(browser, daemon.server.url, "phone", "dark", java_script_enabled=False) as page:
        log_in(page, TOKENS["all"], OPS)
        press(page, "Run now")
        expect_notice(page, "for agent/ops is queued")
        open_form(page, "pause")
        press(page, "Pause")
        expect_notice(page, "agent/ops is paused until")
        press(page, "Resume")
        expect_notice(page, "agent/ops is resumed")
        page.get_by_role("link", name="Config").click()
        open_section(page, "Budget")
        page.get_by_label("budget.runs_per_day").fill("100")
        press(page, "Check the changes")
        press(page, "Write to config.yaml")
        expect_notice(page, "Written and applied.")
        assert "runs_per_day: 100" in daemon.config.read_text()


def test_a_new_run_appears_by_itself(browser: Browser, daemon: WebDaemon) -> None:
    with open_page(browser, daemon.server.url) as page:
        log_in(page, TOKENS["all"], OPS)
        expect(page.locator("#live")).to_contain_text("Live")
        open_form(page, "wake")
        page.get_by_label("Text to put into the agent's prompt").fill("a text that must stay")
        daemon.world.scripts = {"ops": lambda _: "The disk /home is full."}
        daemon.do(lambda: daemon.world.run(minutes=30))
        expect(page.locator("#agent-runs summary").first).to_contain_text("The disk /home is full.")
        expect(page.get_by_label("Text to put into the agent's prompt")).to_have_value("a text that must stay")

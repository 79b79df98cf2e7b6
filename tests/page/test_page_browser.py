"""The status page in a real browser: login, every screen, the keyboard, live news."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import page_agents
import pytest
from browser import (
    SCREENS,
    WIDTHS,
    accessibility_problems,
    log_in,
    needs_browser,
    open_browser,
    open_page,
    overflowing_width,
    save_screenshot,
)
from page_fleet import open_fleet
from playwright.sync_api import Browser, Page, expect
from web_daemon import TOKENS, WebDaemon

from scheduler.model.message import DeliveryResult

pytestmark = needs_browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as found:
        yield found


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDaemon]:
    with open_fleet(tmp_path_factory.mktemp("page")) as running:
        yield running


def names(page: Page) -> list[str]:
    return page.locator(".agent h2").all_inner_texts()


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
        page.locator(".strip-legend summary").click()
        assert accessibility_problems(page) == []
        assert overflowing_width(page) <= 0
        save_screenshot(page, f"fleet-{width}-{scheme}")


def test_the_verdict_is_the_first_line_and_a_phone_shows_the_first_failing_agent_without_scrolling(
    browser: Browser, daemon: WebDaemon
) -> None:
    with open_page(browser, daemon.server.url, "phone") as page:
        page.set_viewport_size({"width": 390, "height": 640})
        log_in(page, TOKENS["chief"])
        expect(page.locator(".verdict")).to_have_text("2 failing, 1 stopped; last run 14:30")
        assert page.title() == "(1) Fleet · heartbeatd on lab"
        assert "icon-late" in (page.locator("link[rel=icon]").get_attribute("href") or "")
        for form in ("cards", "rows"):
            first = page.locator(f"#fleet .{form} li").first
            box = first.locator(".bad").first.bounding_box()
            assert "deploys" in first.inner_text() and box and box["y"] + box["height"] < 400
            if form == "cards":
                page.get_by_role("link", name="Compact rows").click()
                expect(page.locator(".rows li")).to_have_count(8)
        assert accessibility_problems(page) == []


def test_a_phone_shows_all_views_and_groups_of_agents_without_scrolling_sideways(browser: Browser, daemon: WebDaemon) -> None:
    with open_page(browser, daemon.server.url, "phone") as page:
        log_in(page, TOKENS["chief"])
        for links, least in ((".top nav a", 8), ("#fleet .filters a", 6)):
            boxes = [link.bounding_box() for link in page.locator(links).all()]
            assert len(boxes) >= least, links
            assert [box for box in boxes if box is None or box["x"] < 0 or box["x"] + box["width"] > 390] == [], links


def test_a_phone_shows_the_tables_of_costs_without_scrolling_sideways(browser: Browser, daemon: WebDaemon) -> None:
    with open_page(browser, daemon.server.url, "phone") as page:
        log_in(page, TOKENS["chief"], "/page/costs")
        wider = [table.evaluate("each => each.scrollWidth - each.clientWidth") for table in page.locator(".table").all()]
        assert len(wider) > 5
        assert set(wider) == {0}


def test_the_times_of_an_agent_are_in_its_zone_which_the_page_names(browser: Browser, daemon: WebDaemon) -> None:
    with open_page(browser, daemon.server.url) as page:
        log_in(page, TOKENS["chief"], "/page/agents/garden")
        expect(page.locator("footer")).to_contain_text("Times are in Asia/Tokyo")
        page.goto("/")
        expect(page.locator("footer")).to_contain_text("Times are in Europe/Berlin")


def test_problems_come_first_and_a_card_says_each_fact_once(browser: Browser, daemon: WebDaemon) -> None:
    with open_page(browser, daemon.server.url) as page:
        log_in(page, TOKENS["chief"])
        assert names(page)[0] == "deploys"
        expect(page.locator("#card-deploys")).to_contain_text("failing")
        expect(page.locator("#card-mail")).to_contain_text("paused")
        expect(page.locator("#card-backups time")).to_have_text("in 19m")  # by the clock of the daemon
        expect(page.locator("#card-garden .why")).to_have_text("disabled in the config: enabled: false")
        expect(page.locator("#card-websites .why")).to_have_text("ran 30 times, 2 messages delivered")
        expect(page.locator("#card-deploys .why")).to_contain_text(re.compile(r"^6 of 30 runs failed: exit code 1: .* \(exit\)$"))
        expect(page.locator("#card-deploys")).not_to_contain_text(re.compile("connection refused.*connection refused", re.DOTALL))
        expect(page.locator("#card-deploys dd").last).to_have_text("1 problem (warning), 6 failures in a row")
        expect(page.locator("#card-mail")).to_contain_text("none while paused")
        expect(page.locator("#card-backups")).to_contain_text("$0.31, budget $0.71 of $1.00")


@pytest.mark.parametrize("width", WIDTHS)
def test_the_buttons_of_a_problem_stay_in_its_box(width: str, browser: Browser, tmp_path: Path) -> None:
    findings = f"[mail] late\n[disk:/srv/{'archive-' * 12}] {'The disk is almost full. ' * 8}"
    with WebDaemon(tmp_path) as daemon, open_page(browser, daemon.server.url, width) as page:
        daemon.world.scripts = {"ops": lambda call: findings}
        daemon.do(lambda: daemon.world.run(hours=1))
        log_in(page, TOKENS["chief"], "/page/agents/ops")
        boxes = page.locator("#agent-now .notice").all()
        assert len(boxes) == 2
        for box in boxes:
            outer = box.bounding_box()
            assert outer
            for button in box.get_by_role("button").all():
                inner = button.bounding_box()
                assert inner
                assert outer["x"] < inner["x"] and inner["x"] + inner["width"] < outer["x"] + outer["width"]
                assert outer["y"] < inner["y"] and inner["y"] + inner["height"] < outer["y"] + outer["height"]
        save_screenshot(page, f"problems-of-an-agent-{width}")


def test_equal_runs_of_two_days_have_both_dates(browser: Browser, daemon: WebDaemon) -> None:
    with open_page(browser, daemon.server.url) as page:
        log_in(page, TOKENS["chief"])
        page.goto("/page/agents/deploys")
        expect(page.locator("#agent-runs summary").first).to_contain_text("6 times, Tue 03 Mar 2026 12:00:00 to 14:30:00")
        expect(page.locator("#agent-runs summary").last).to_contain_text("Mon 02 Mar 2026 14:00:00 to Tue 03 Mar 2026 11:30:00")


def test_urgent_tasks_take_at_most_two_clicks(browser: Browser, daemon: WebDaemon) -> None:
    tasks = (
        (("link", "Problems"), "since Tue 03 Mar 2026 12:00:00, delivered to phone"),
        (("link", "deploys"), "6 of 30 runs failed: exit code 1"),
        (("link", "deploys"), ("button", "Mute until 12:00"), "agent/deploys is muted until 2026-03-04 12:00"),
        (("link", "deploys"), ("button", "Unmute"), "agent/deploys is unmuted"),
        (("link", "Problems"), ("button", "Acknowledge agent/deploys failed"), "no messages until it is worse or over"),
        (("link", "Problems"), ("button", "Un-acknowledge agent/deploys failed"), "is not acknowledged any more"),
        (("link", "Costs"), "USD per day"),
        (("link", "Doctor"), "zone rules of"),
        (("link", "calendar"), ("button", "Run now"), "for agent/calendar is queued"),
    )
    with open_page(browser, daemon.server.url) as page:
        log_in(page, TOKENS["chief"])
        for *clicks, answer in tasks:
            page.goto("/")
            for role, name in clicks:
                page.get_by_role(role, name=name, exact=name != "Problems").first.click()
            expect(page.get_by_role("main")).to_contain_text(answer)


def test_an_edit_is_undone_and_a_message_is_sent_again_in_two_clicks(browser: Browser, tmp_path: Path) -> None:
    token, path = page_agents.TOKENS["all"], "/api/v1/agents/ops/checklist"
    with page_agents.start_daemon(tmp_path) as daemon, open_page(browser, daemon.server.url) as page:
        daemon.world.send = lambda sent: DeliveryResult("dead", "the number does not exist")
        daemon.world.scripts["ops"] = lambda call: "another disk is full"
        daemon.do(lambda: daemon.world.run(minutes=31))
        before = daemon.get(path, token).data
        assert daemon.send("PUT", path, {"text": "- mine\n", "hash": before["hash"]}, token).status == 200
        log_in(page, token)
        page.get_by_role("main").get_by_role("link", name="Outbox").click()
        page.get_by_role("button", name="Send again message").first.click()
        expect(page.get_by_role("main")).to_contain_text("will be sent again")
        page.goto("/")
        page.get_by_role("link", name="Undo").click()
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_role("main")).to_contain_text("The checklist is saved.")
        assert daemon.get(path, token).data["text"] == before["text"]


def test_the_search_shows_matching_agents_while_typing(browser: Browser, daemon: WebDaemon) -> None:
    with open_page(browser, daemon.server.url) as page:
        log_in(page, TOKENS["chief"])
        page.get_by_label("Search").press_sequentially("opus")
        expect(page.locator(".agent")).to_have_count(2)
        assert "q=opus" in page.url
        assert page.evaluate("document.activeElement.id") == "q"
        page.get_by_role("link", name="Not ok 1").click()
        expect(page.locator(".agent")).to_have_count(1)
        page.get_by_label("Search").fill("nothing like this")
        expect(page.get_by_text("No agent matches.")).to_be_visible()


def test_without_scripts_the_page_can_be_read_and_searched(browser: Browser, daemon: WebDaemon) -> None:
    with open_page(browser, daemon.server.url, java_script_enabled=False) as page:
        log_in(page, TOKENS["chief"])
        expect(page.locator("#card-backups time")).to_contain_text("in ")
        page.get_by_label("Search").fill("calen")
        page.get_by_role("button", name="Search").click()
        expect(page.locator(".agent h2")).to_have_text(["calendar"])
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_label("Token")).to_be_visible()


def test_a_user_with_a_keyboard_alone_logs_in_and_opens_an_agent(browser: Browser, daemon: WebDaemon) -> None:
    with open_page(browser, daemon.server.url) as page:
        page.goto("/")
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_have_text("This token is not valid.")
        page.keyboard.type(TOKENS["chief"])
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Fleet")).to_be_visible()
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        page.keyboard.press("Enter")
        for _ in range(20):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.id") == "agent-deploys":
                break
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        page.keyboard.press("Enter")
        page.wait_for_url("**/page/agents/deploys")


def test_a_run_appears_without_loading_the_page_again(browser: Browser, daemon: WebDaemon) -> None:
    with open_page(browser, daemon.server.url) as page:
        log_in(page, TOKENS["chief"])
        expect(page.locator("#live")).to_have_text("Live.")
        page.locator("#agent-websites").focus()
        daemon.world.scripts["websites"] = lambda call: "the shop <b>answers</b> 500"
        daemon.do(lambda: daemon.world.wake("websites", "look again"))
        daemon.do(daemon.world.settle)
        expect(page.locator("#card-websites .said")).to_have_text("the shop <b>answers</b> 500")
        expect(page.locator("#news")).to_contain_text("websites has sent an alert.")
        assert page.evaluate("document.activeElement.id") == "agent-websites"


def test_a_user_whose_login_has_ended_comes_to_the_login(browser: Browser, daemon: WebDaemon) -> None:
    with open_page(browser, daemon.server.url) as page:
        log_in(page, TOKENS["chief"])
        expect(page.locator("#live")).to_have_text("Live.")
        page.context.clear_cookies()
        daemon.do(lambda: daemon.world.wake("backups", "look again"))
        daemon.do(daemon.world.settle)
        page.wait_for_url("**/page/login")

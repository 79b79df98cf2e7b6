"""The views of the status page beside the fleet, in a real browser: jobs, outbox, plan, costs, changes, doctor, problems."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

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
from loops import loop_over
from page_user import PageUser
from patience import PATIENCE
from playwright.sync_api import Browser, Page, StorageState, expect
from test_cli_reading import add_run
from web_daemon import TOKENS, WebDaemon
from world import AgentCall

from heartbeat.words import format_usd
from heartbeatd.verbs import Mute
from scheduler.engine.delivery import Delivery
from scheduler.engine.effects import VerbRequest
from scheduler.insight.report_data import build_report
from scheduler.model.message import DeliveryResult
from scheduler.model.outcome import Kind
from scheduler.store.database import open_read_only

pytestmark = needs_browser

HOSTILE = "<script>document.title = 'owned'</script> \u202eevil\u202c \x1b[31m"
START = "2026-03-27 17:00"  # the clocks of Berlin go forward on 29 March 2026 at 01:00 UTC
CONFIG = """
timezone: Europe/Berlin
server: {listen: "127.0.0.1:0", tokens: {
  opsman: {value: "opsman-token-with-enough-bits-in-it", may: [read, wake, operate], agents: [ops]},
  reader: {value: "reader-token-with-enough-bits-in-it", may: [read]},
  chief: {value: "chief-token-with-enough-bits-in-it-1", may: [read, wake, operate]}}}
channels: {hook: {kind: webhook, url: "http://127.0.0.1:1/x", allow_private: true, uncertain: hold}}
agents:
  ops:
    runner: {kind: command, argv: [agent]}
    heartbeat: {interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: hook, active_hours: {start: "08:00", end: "20:00"}}
  web:
    runner: {kind: command, argv: [agent]}
    heartbeat: {interval: 2h, stagger: 0s, checklist: "- look\\n", deliver: hook}
cron:
  backup: {schedule: "15 2 * * *", command: backup}
  digest: {schedule: "0 9 * * 1-5", command: digest, deliver: hook}
  measure: {every: 5m, command: measure}
  off: {every: 1h, command: "true", enabled: false, timezone: Asia/Tokyo}
"""
VIEWS = {
    "problems": ("/page/problems", "Problems"),
    "jobs": ("/page/jobs", "Jobs"),
    "job": ("/page/jobs/measure", "Job measure"),
    "outbox": ("/page/outbox", "Outbox"),
    "message": ("/page/outbox/1", "Message 1"),
    "plan": ("/page/plan", "Plan of the next 48 hours"),
    "costs": ("/page/costs", "Costs"),
    "changes": ("/page/changes", "Changes to the config"),
    "change": ("/page/changes/1", "Change 1"),
    "doctor": ("/page/doctor", "Doctor"),
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as found:
        yield found


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDaemon]:
    """A day with alerts, failures, undelivered messages, costs, and two reloads, of which one was refused."""
    with WebDaemon(tmp_path_factory.mktemp("views"), CONFIG, start=START) as daemon:
        world = daemon.world
        world.scripts = {"ops": _answer_of_ops, "web": lambda _: "[disk!] full\n[mail] waits", "measure": lambda _: 3}
        world.send = _refuse_first_message
        daemon.do(lambda: world.run(hours=16))
        daemon.do(lambda: _add_costs(daemon))
        _reload(daemon, CONFIG.replace("interval: 2h", "interval: 4h"), 200)
        _reload(daemon, CONFIG.replace("interval: 2h", "interval: 3h").replace('"15 2 * * *"', '"15 3 * * *"'), 200)
        _reload(daemon, CONFIG.replace("interval: 2h", "interval: soon"), 422)
        daemon.config.write_text(CONFIG.replace("interval: 2h", "interval: 3h").replace('"15 2 * * *"', '"15 3 * * *"'))
        yield daemon


def _answer_of_ops(call: AgentCall) -> str:
    return f"{HOSTILE} at {call.at:%H:%M}\n" + "x" * 300


def _refuse_first_message(delivery: Delivery) -> DeliveryResult:
    results = {1: DeliveryResult("dead", "400 " + HOSTILE), 2: DeliveryResult("uncertain", "no answer")}
    return results.get(delivery.message.id, DeliveryResult("delivered"))


def _add_costs(daemon: WebDaemon) -> None:
    tokens = json.dumps({"input": 1000, "output": 50, "cache_read": 200, "cache_write": 0})
    for days in range(5):
        for name, cost in (("ops", 0.25), ("web", 0.031)):
            slot = daemon.now - timedelta(days=days, minutes=7)
            columns = {"cost_usd": cost * (days + 1), "tokens": tokens, "model_used": "small", "cache_saved_usd": 0.5}
            add_run(daemon.world.store, slot, "alert", name=name, trigger="manual", **columns)


def _reload(daemon: WebDaemon, text: str, status: int) -> None:
    daemon.config.write_text(text)
    assert daemon.post("/-/reload", token=daemon.token).status == status


@pytest.fixture(scope="module")
def session(browser: Browser, daemon: WebDaemon) -> StorageState:
    """The cookies of a user who has logged in."""
    with open_page(browser, daemon.server.url) as page:
        log_in(page, TOKENS["chief"])
        return page.context.storage_state()


@pytest.fixture
def page(browser: Browser, daemon: WebDaemon, session: StorageState) -> Iterator[Page]:
    with open_page(browser, daemon.server.url, storage_state=session) as page:
        yield page


# Each width and each colour scheme once, because axe takes a second for each view. Pictures are taken of all combinations.
@pytest.mark.parametrize(
    ("width", "scheme"), SCREENS if "SCREENSHOTS" in os.environ else [("phone", "light"), ("desktop", "dark")]
)
def test_every_view_is_accessible_on_every_screen(
    width: str, scheme: str, browser: Browser, daemon: WebDaemon, session: StorageState
) -> None:
    with open_page(browser, daemon.server.url, width, scheme, storage_state=session) as page:
        for name, (path, heading) in VIEWS.items():
            page.goto(path)
            assert page.get_by_role("heading", name=heading, level=1).is_visible(), name
            assert (name, accessibility_problems(page)) == (name, [])
            assert (name, overflowing_width(page) <= 0) == (name, True)
            assert page.title() != "owned"
            save_screenshot(page, f"{name}-{width}-{scheme}")


def press(page: Page, button: str, notice: str) -> None:
    """Press the first button with this name, and see the notice."""
    page.get_by_role("button", name=button).first.click()
    expect(page.get_by_role("main").locator(".notice").first).to_contain_text(notice)


def test_a_job_is_run_paused_resumed_muted_and_unmuted(page: Page, daemon: WebDaemon) -> None:
    page.goto("/page/jobs")
    page.get_by_role("link", name="backup").click()
    runs = page.locator("#job-runs article")
    before = runs.count()
    press(page, "Run now", "is queued")
    daemon.do(daemon.world.settle)
    expect(runs).to_have_count(before + 1)  # by the event, without another request of the user
    page.locator("#pause-for").fill("8h")
    press(page, "Pause", "is paused until")
    expect(page.locator("#job-state")).to_contain_text("by token chief")
    page.goto("/page/jobs?show=paused")
    expect(page.get_by_role("row", name="backup")).to_contain_text("paused")
    page.goto("/page/jobs/backup")
    press(page, "Resume", "is resumed")
    press(page, "Mute", "is muted until")
    expect(page.locator("#job-state")).to_contain_text("by token chief until unmuted")
    press(page, "Unmute", "is unmuted")
    expect(page.locator("#job-state")).not_to_contain_text("muted")


def test_a_job_shows_its_schedule_its_next_runs_and_its_values(page: Page) -> None:
    page.goto("/page/jobs")
    row = page.get_by_role("row", name="backup")
    expect(row).to_contain_text("by '15 3 * * *' (Europe/Berlin)")
    expect(row).to_contain_text("Sun 29 Mar 2026 03:15:00")
    page.goto("/page/jobs/backup")
    expect(page.locator("#job-state")).to_contain_text("by '15 3 * * *' (Europe/Berlin)")
    times = page.locator("ol.times li").all_text_contents()
    assert times[0].startswith("Sun 29 Mar 2026 03:15:00")
    assert times[1].startswith("Mon 30 Mar 2026 03:15:00")
    page.get_by_role("link", name="Show all effective values").click()
    expect(page.get_by_role("row", name="command")).to_contain_text("backup")


def test_jobs_are_found_by_name_and_by_their_problems(page: Page) -> None:
    page.goto("/page/jobs")
    rows = page.locator("tbody tr")
    expect(rows.first).to_contain_text("measure")  # problems first
    page.get_by_label("Name").fill("DIG")
    page.get_by_role("button", name="Filter").click()
    assert rows.all_text_contents()[0].split()[0] == "digest"
    page.get_by_label("Name").fill("")
    page.get_by_label("Show").select_option("with problems")
    page.get_by_role("button", name="Filter").click()
    expect(rows).to_have_count(1)


def test_the_older_runs_of_a_job_are_on_further_pages(page: Page) -> None:
    page.goto("/page/jobs/measure")
    newest = page.locator("#job-runs article").count()
    first = page.locator("#job-runs h3").last.text_content()
    page.get_by_role("link", name="Older runs").click()
    expect(page.get_by_role("heading", name="Older runs")).to_be_visible()
    assert page.locator("#job-runs article").count() == newest == 20
    assert page.locator("#job-runs h3").first.text_content() != first


def test_messages_are_sent_again_dropped_and_read_whole(page: Page, daemon: WebDaemon) -> None:
    page.goto("/page/outbox?state=held")
    press(page, "Send again message 2", "message 2 will be sent again")
    daemon.do(daemon.world.settle)
    page.goto("/page/outbox/2")
    expect(page.locator("#message .badge")).to_have_text("held")  # the channel does not answer again
    press(page, "Drop", "is dropped")
    expect(page.locator("#message .badge")).to_have_text("dropped")
    expect(page.get_by_role("button", name="Send again")).to_have_count(0)
    page.goto("/page/outbox?state=delivered")
    page.get_by_role("link", name="full text").nth(1).click()
    expect(page.locator("pre")).to_contain_text("x" * 300)


def test_the_plan_shows_the_clock_change_and_the_same_runs_in_its_table(page: Page) -> None:
    page.goto("/page/plan?kind=cron")
    expect(page.get_by_text("Clock change in Europe/Berlin: Sun 29 Mar: 02:00 CET is 03:00 CEST.")).to_be_visible()
    expect(page.get_by_role("img", name="cron/backup: Sun 29 Mar: 03:15; Mon 30 Mar: 03:15")).to_be_visible()
    marks = page.locator("line.clock-change").all()  # 16 of the 48 hours from now
    assert {mark.get_attribute("x1") for mark in marks} == {"33.33%"}
    tokyo = page.locator("li.plan-line", has_text="off")
    expect(tokyo.get_by_text("disabled")).to_be_visible()
    assert tokyo.locator("line.clock-change").count() == 0
    page.get_by_text("The same as a table").click()
    assert [row.split() for row in page.locator("#plan-table tbody tr", has_text="backup").all_inner_texts()] == [
        ["cron/backup", "Sun", "29", "Mar", "1", "03:15", "Europe/Berlin"],
        ["cron/backup", "Mon", "30", "Mar", "1", "03:15", "Europe/Berlin"],
    ]
    measured = page.locator("#plan-table tbody tr", has_text="measure").nth(1)
    expect(measured).to_contain_text("276 from 00:00 to 23:55")
    page.goto("/page/plan")
    page.get_by_text("The same as a table").click()
    expect(page.locator("#plan-table tbody tr", has_text="ops").nth(1)).to_contain_text("24 from 08:00 to 19:30")
    assert page.locator("li.plan-line", has_text="ops").locator("rect.fill-note").count() == 3  # a bar for each day
    page.get_by_label("Name").fill("digest")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("li.plan-line")).to_have_count(1)


def test_the_costs_are_the_figures_of_the_report(page: Page, daemon: WebDaemon) -> None:
    page.goto("/page/costs")
    for period, days in (("24 hours", 1), ("7 days", 7), ("30 days", 30)):
        page.get_by_role("link", name=period).click()
        db = open_read_only(daemon.world.state)
        since, zone = daemon.now - timedelta(days=days), ZoneInfo("Europe/Berlin")
        report = build_report(db, since, daemon.now, running=True, zone=zone).as_data()
        db.close()
        expect(page.locator("#total-cost")).to_have_text(format_usd(report["totals"]["cost_usd"]))
        expect(page.locator("#total-runs")).to_have_text(str(report["totals"]["runs"]))
        expect(page.locator("#saved")).to_contain_text(f"it would have cost {format_usd(report['saved']['cost_usd_without'])}: ")
        expect(page.locator("#saved")).to_contain_text(f"the cache saved {format_usd(report['saved']['cache_usd'])}.")
        shown = page.get_by_role("region", name="By agent and job").locator("tbody tr").all_inner_texts()
        assert [row.split()[0].removeprefix("cron/") for row in shown] == [each["name"] for each in report["entries"]]
        assert [row.split()[1] for row in shown] == [format_usd(each["cost_usd"]) for each in report["entries"]]
        by_time = page.locator("h2#by-time + div tbody tr").all_inner_texts()
        assert [row.split("\t")[1] for row in by_time] == [format_usd(each["cost_usd"]) for each in reversed(report["by_time"])]
        costs = [each["cost_usd"] or 0 for each in report["by_time"]]
        assert _bar_heights(page, "Cost over time") == pytest.approx([100 * cost / max(costs) for cost in costs if cost])


def test_the_costs_show_what_fills_the_prompt(page: Page) -> None:
    page.goto("/page/costs")
    expect(page.get_by_role("region", name="What fills the prompt")).to_contain_text("instructions")


def _bar_heights(page: Page, chart: str) -> list[float]:
    bars = page.locator(f'svg[aria-label^="{chart}"] rect')
    return [float(bar.get_attribute("height") or 0) for bar in bars.all()]


def test_the_history_shows_who_changed_what_and_the_errors_of_a_refused_reload(page: Page) -> None:
    page.goto("/page/changes?result=applied")
    newest = page.locator("#changes article").first
    expect(newest).to_contain_text("by token local")
    expect(newest).to_contain_text("cron/backup: schedule 15 2 * * * -> 15 3 * * *")
    newest.get_by_role("link").click()
    expect(page.get_by_role("row", name="interval")).to_contain_text("4h")
    expect(page.get_by_role("row", name="interval")).to_contain_text("agent/web")
    page.goto("/page/changes")
    page.get_by_role("link", name="applied when the daemon started").click()
    expect(page.get_by_text("There are no such changes.")).to_be_visible()
    page.get_by_role("link", name="rejected").click()
    expect(page.locator("#changes article")).to_contain_text("'soon' is not a duration; write 90s, 30m or 1h30m")


def test_the_config_file_is_compared_and_reloaded(page: Page, daemon: WebDaemon) -> None:
    text = daemon.config.read_text()
    page.goto("/page/changes")
    press(page, "Compare the file", "A reload would change nothing.")
    daemon.config.write_text(text.replace("every: 5m", "every: 6m"))
    press(page, "Compare the file", "A reload would change: cron/measure: every 5m -> 6m")
    press(page, "Reload now", "the config file is active")
    expect(page.locator("#changes article").first).to_contain_text("cron/measure: every 5m -> 6m")
    daemon.config.write_text(text.replace("every: 5m", "every: often"))
    page.get_by_role("button", name="Reload now").click()
    expect(page.get_by_role("main")).to_contain_text("cron.measure.every: 'often' is not a duration")
    daemon.config.write_text(text)
    assert daemon.post("/-/reload", token=daemon.token).status == 200


def test_the_doctor_lists_the_worst_finding_first_and_reads_the_database_on_demand(page: Page, daemon: WebDaemon) -> None:
    page.goto("/page/doctor")
    levels = page.locator("tbody .badge").all_inner_texts()
    assert levels == sorted(levels, key=["bad", "warn", "ok"].index)
    assert set(levels) >= {"ok"}
    expect(page.get_by_role("row", name="ok database")).to_have_count(0)
    page.get_by_role("link", name="Read and check the whole database file").click()
    expect(page.get_by_role("row", name="ok database")).to_contain_text("heartbeatd.db is intact")


def test_the_doctor_shows_commands_as_code(page: Page) -> None:
    page.goto("/page/doctor")
    assert "heartbeatd database backup" in page.locator("td.text code").all_inner_texts()
    assert [text for text in page.locator("td.text").all_inner_texts() if "`" in text] == []


def test_problems_are_acknowledged_reported_again_and_closed(page: Page) -> None:
    page.goto("/page/problems")
    expect(page.locator("article", has_text="cron/measure")).to_contain_text("exit code 3")
    press(page, "Acknowledge agent/web disk", "no messages until it is worse or over")
    expect(page.locator("article", has_text="disk")).to_contain_text("acknowledged")
    press(page, "Un-acknowledge agent/web disk", "is not acknowledged any more")
    press(page, "Acknowledge cron/measure failed", "no messages until it is worse or over")
    press(page, "Close agent/web mail", "is closed")
    expect(page.locator("article", has_text="mail")).to_have_count(0)
    page.get_by_role("link", name="all", exact=True).click()
    expect(page.locator("article", has_text="mail")).to_contain_text("over")


def test_a_limited_token_sees_only_what_belongs_to_its_agents(browser: Browser, daemon: WebDaemon) -> None:
    with open_page(browser, daemon.server.url) as page:
        log_in(page, TOKENS["opsman"])
        for path in ("problems", "jobs", "outbox", "outbox?state=delivered", "plan", "costs", "changes"):
            page.goto(f"/page/{path}")
            text = page.get_by_role("main").inner_text()
            assert not [word for word in ("web", "measure", "backup", "config.yaml") if word in text], (path, text)
        page.goto("/page/costs?for=30d")
        expect(page.locator("#total-cost")).to_have_text("$3.75")
        for path in ("jobs/measure", "outbox/2", "doctor", "changes/1"):
            response = page.goto(f"/page/{path}")
            assert response is not None
            assert response.status in (403, 404), path


def test_a_token_that_may_only_read_has_no_buttons(browser: Browser, daemon: WebDaemon) -> None:
    with open_page(browser, daemon.server.url) as page:
        log_in(page, TOKENS["reader"])
        for path in ("problems", "jobs/backup", "outbox?state=delivered", "outbox/1", "changes"):
            page.goto(f"/page/{path}")
            forms = page.locator("main form[method=post]")
            assert forms.count() == 0, path
        fields = {"form_code": page.locator("body").get_attribute("data-form-code") or "", "next": "/page/changes"}
        for path in ("changes/check", "do/reload", "do/cron/backup/run", "do/outbox/1/retry"):
            answer = page.request.post(f"/page/{path}", form=fields, headers={"Origin": daemon.server.url})
            assert "may not operate" in answer.text(), path


@loop_over(
    ("path", "status"),
    [
        ("jobs/nosuch", 404),
        ("jobs?show=nosuch", 400),
        ("outbox/99999", 404),
        ("outbox?state=nosuch", 400),
        ("outbox?before=x", 400),
        ("jobs/backup?before=x", 400),
        ("changes?before=x", 400),
        ("plan?kind=nosuch", 400),
        ("costs?for=1y", 400),
        ("changes/nosuch", 404),
        ("changes?result=nosuch", 400),
        ("doctor?database=x", 400),
        ("problems?show=x", 400),
        ("plan?page=99999999999999999999", 200),
        ("jobs?page=7&q=%3Cscript%3E", 200),
    ],
)
def test_a_wrong_url_is_answered_with_a_page(page: Page, path: str, status: int) -> None:
    response = page.goto(f"/page/{path}")
    assert response is not None
    assert response.status == status
    assert page.get_by_role("heading", level=1).count() == 1


@pytest.fixture
def user(tmp_path: Path) -> Iterator[PageUser]:
    with WebDaemon(tmp_path, CONFIG, start=START) as running:
        found = PageUser(running)
        found.log_in(TOKENS["chief"])
        yield found


def test_a_muted_job_is_among_those_that_are_paused_or_muted(user: PageUser) -> None:
    user.daemon.ask(VerbRequest(Mute(), (Kind.CRON, "backup"))).result(PATIENCE)
    listed = user.get("/page/jobs?show=paused").text
    assert ("backup" in listed, "digest" in listed) == (True, False)


def test_a_long_notice_fits_into_a_cookie(user: PageUser) -> None:
    """Browsers drop a cookie with more than 4,096 bytes, so the user would not see what was wrong."""
    answer = user.post("/page/do/ping", {"form_code": user.get("/").form_code, "channel": "😀" * 1000})
    assert len(answer.cookies[0].partition(";")[0]) <= 4096
    assert "😀" * 200 in user.get("/").text


def test_two_runs_that_are_a_day_apart_have_two_narrow_marks_and_those_of_all_five_minutes_share_one(user: PageUser) -> None:
    def widths(job: str) -> list[str]:
        marks = [each for each in user.get(f"/page/plan?q={job}").elements if each.attributes.get("class") == "fill-note"]
        return [each.attributes["width"] for each in marks if each.tag == "rect"]

    assert (widths("backup"), len(widths("measure"))) == (["3", "3"], 1)

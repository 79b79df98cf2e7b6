"""The views of the status page beside the fleet, in a real browser: jobs, outbox, plan, costs, changes, doctor, problems."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta

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
from playwright.sync_api import Browser, Page
from test_cli_reading import add_run
from web_daemon import TOKENS, WebDaemon
from world import AgentCall

from scheduler.channels.message import DeliveryResult
from scheduler.engine.delivery import Delivery

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
  off: {every: 1h, command: "true", enabled: false}
"""
VIEWS = {
    "problems": ("/page/problems", "Problems"),
    "jobs": ("/page/jobs", "Jobs"),
    "job": ("/page/jobs/measure", "Job measure"),
    "outbox": ("/page/outbox", "Outbox"),
    "message": ("/page/outbox/1", "Message 1"),
    "plan": ("/page/plan", "Plan of the next 48 hours"),
    "costs": ("/page/costs", "Costs"),
    "changes": ("/page/changes", "Changes of the config"),
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
            columns = {"cost_usd": cost * (days + 1), "tokens": tokens, "model_used": "small"}
            add_run(daemon.world.store, slot, "alert", name=name, trigger="manual", **columns)


def _reload(daemon: WebDaemon, text: str, status: int) -> None:
    daemon.config.write_text(text)
    assert daemon.post("/-/reload", token=daemon.token).status == status


@pytest.fixture
def page(browser: Browser, daemon: WebDaemon) -> Iterator[Page]:
    with open_page(browser, daemon.server.url) as page:
        log_in(page, TOKENS["chief"])
        yield page


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_every_view_is_accessible_on_every_screen(width: str, scheme: str, browser: Browser, daemon: WebDaemon) -> None:
    with open_page(browser, daemon.server.url, width, scheme) as page:
        log_in(page, TOKENS["chief"])
        for name, (path, heading) in VIEWS.items():
            page.goto(path)
            assert page.get_by_role("heading", name=heading, level=1).is_visible(), name
            if (width, scheme) in (("phone", "light"), ("desktop", "dark")):  # each width and each scheme once: axe is slow
                assert (name, accessibility_problems(page)) == (name, [])
            assert (name, overflowing_width(page) <= 0) == (name, True)
            assert page.title() != "owned"
            save_screenshot(page, f"{name}-{width}-{scheme}")

"""The page shows a month in advance, and the last week with other values of an agent, from a process of its own."""

from __future__ import annotations

import os
import re
import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from browser import accessibility_problems, log_in, needs_browser, open_browser, open_page, overflowing_width
from page_agents import TOKENS, form_fields, user_of
from page_foresight import CONFIG, open_recorded
from page_user import Answer, PageUser
from patience import wait_until
from playwright.sync_api import expect
from web_daemon import WebDaemon

from scheduler.foresight.own_process import KILLED_AFTER, LONGEST
from scheduler.system.orphans import KILL_AFTER, find_orphans
from scheduler.web.connection_timeouts import ClientTimeouts
from scheduler.web.page.foresight_view import PATIENCE

OPS = "/page/agents/ops/config"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDaemon]:
    with open_recorded(tmp_path_factory.mktemp("page")) as running:
        yield running


def sent(user: PageUser, **fields: str) -> dict[str, str]:
    return {"form_code": user.get("/page/simulate").form_code, "days": "7", **fields}


def simulated(user: PageUser, **fields: str) -> Answer:
    return user.post("/page/simulate", sent(user, **fields))


def charts(answer: Answer) -> list[str]:
    return [each.attributes["aria-label"].split(":")[0] for each in answer.elements if each.attributes.get("role") == "img"]


def test_a_simulation_has_a_plot_of_each_figure(daemon: WebDaemon) -> None:
    found = simulated(user_of(daemon), answers="problem:1")
    assert found.status == 200
    assert sorted(charts(found)) == ["Calls by day", "chat", "ops", "ops", "phone", "web"]
    assert re.search(r"ops 6 of 8 days, at 18:00 at the earliest", found.text)
    assert "cron/measure" in found.text and "Busiest minute" in found.text
    assert 'id="short"' not in found.body


def test_a_limited_token_sees_the_figures_of_its_agents_only(daemon: WebDaemon) -> None:
    """Runs are those of `ops`: three a day because of its budget. A fault would concern others."""
    user = user_of(daemon, "self")
    found = simulated(user, answers="problem:1")
    assert charts(found) == ["Calls by day", "chat", "ops", "ops"]
    assert re.search(r"Runs 2[1-4] Failed 0 Calls 2[1-4] ", found.text)
    assert not re.search("web|phone|measure", found.text)
    assert simulated(user, faults="daemon-down:2h@03:00").status == 403


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"answers": "quiet:2"}, "answers: '2' is not a share"),
        ({"faults": "channel-down=sms:1h@03:00"}, "faults: no channel 'sms'; write chat"),
        ({"days": "8"}, "days: write 7, 14, 30, 90"),
    ],
)
def test_a_wrong_value_is_named_and_the_form_is_kept(fields: dict[str, str], problem: str, daemon: WebDaemon) -> None:
    found = simulated(user_of(daemon), **fields)
    assert problem in found.text.replace('"', "'")
    key, value = next(iter(fields.items()))
    assert key == "days" or form_fields(found, "/page/simulate")[key] == value


def test_a_form_of_an_earlier_login_plays_nothing(daemon: WebDaemon) -> None:
    assert user_of(daemon).post("/page/simulate", {"form_code": "old", "days": "7"}).status == 403


def cpu_of_ended_children() -> float:
    """The seconds of CPU that processes have used which this one has started, and which have ended."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime


def cpu_of(process: Path) -> float:
    """The seconds of CPU that a running process has used."""
    return int((process / "stat").read_text().rpartition(")")[2].split()[11]) / os.sysconf("SC_CLK_TCK")


def test_when_the_browser_leaves_the_process_ends_and_leaves_no_folder(
    daemon: WebDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    mark, before = f"foresight/{os.getpid()}", cpu_of_ended_children()
    user = user_of(daemon)
    body = urlencode(sent(user, days="90"))
    with socket.create_connection(("127.0.0.1", daemon.port)) as browser:
        cookie = "; ".join(f"{name}={value}" for name, value in user.cookies.items())
        host = f"127.0.0.1:{daemon.port}"
        browser.sendall(
            f"POST /page/simulate HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\nSec-Fetch-Site: same-origin\r\n"
            f"Cookie: {cookie}\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        wait_until(lambda: list(tmp_path.glob("heartbeatd-*/seed-1")))
        (process,) = (Path("/proc", str(pid)) for pid in find_orphans({mark})[mark])
        before += cpu_of(process)
    wait_until(lambda: not process.exists())  # the server has waited for it, so its time is counted
    assert list(tmp_path.iterdir()) == []
    assert cpu_of_ended_children() - before < 4  # seconds; to play all 90 days takes about 10


def replayed(user: PageUser, **changes: str) -> Answer:
    form = form_fields(user.get(OPS), OPS) | changes
    shown = user.post(OPS, form | {"step": "check"})
    assert "Show the last 7 days with these changes" in shown.text  # the button for browsers without JavaScript
    return user.post(OPS, form_fields(shown, OPS) | {"step": "replay"})


@pytest.mark.parametrize("token", ["all", "self"])
def test_the_form_shows_the_last_week_with_the_changes_before_they_are_written(token: str, daemon: WebDaemon) -> None:
    """With hours from 13:00, none of the alerts would have been sent."""
    found = replayed(user_of(daemon, token), **{"heartbeat.active_hours": "13:00-24:00"})
    assert "Nothing is written yet." in found.text
    assert re.search(r"Messages 4 0 Suppressed answers \d+ \d+ Calls", found.text)
    assert "ran, 1 message outside active hours" in found.text
    assert ("web" in found.text.split("with these changes")[1]) is False
    assert daemon.config.read_text() == CONFIG


@needs_browser
def test_in_a_browser_the_last_week_and_the_plots_come_without_a_new_page(daemon: WebDaemon) -> None:
    with open_browser() as browser, open_page(browser, daemon.server.url, "phone", "dark") as page:
        log_in(page, TOKENS["self"], OPS)
        page.locator("[name='heartbeat.active_hours']").fill("13:00-24:00")
        page.get_by_role("button", name="Check the changes").click()
        expect(page.locator("#replay")).to_contain_text("ran, 1 message")
        assert (accessibility_problems(page), overflowing_width(page)) == ([], 0)
        page.goto("/page/simulate")
        page.get_by_label("Time").select_option("7")
        page.get_by_role("button", name="Simulate").click()
        expect(page.locator("#simulated")).to_contain_text("Calls by day")
        assert (accessibility_problems(page), overflowing_width(page)) == ([], 0)


def test_a_form_that_has_waited_for_another_one_is_answered_before_the_server_closes_its_connection() -> None:
    killed = KILLED_AFTER.total_seconds()
    assert killed > LONGEST
    assert PATIENCE + killed + KILL_AFTER < ClientTimeouts().answer_seconds

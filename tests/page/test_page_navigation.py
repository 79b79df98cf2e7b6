"""The navigation of the status page counts the open problems that nobody has acknowledged, on each view. Also what a limited token counts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from page_user import Answer, PageUser
from test_web_problems import INSERT
from web_daemon import CONFIG, TOKENS, WebDaemon

from scheduler.engine.config_reload import note_rejected_config
from scheduler.system import state_lock
from scheduler.web.page.rendering import FOLDER

VIEWS = (
    "",
    "page/problems",
    "page/jobs",
    "page/outbox",
    "page/plan",
    "page/costs",
    "page/changes",
    "page/doctor",
    "page/agents/ops",
)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[WebDaemon]:
    """`ops` has found two disks (p1, p2), and `web` a third one (p3). A provider (p4) stops `ops`, which is not counted again."""
    with WebDaemon(tmp_path, CONFIG) as daemon:
        daemon.world.scripts = {"ops": lambda _: "[disk:/var!] full\n[disk:/srv] full", "web": lambda _: "[disk:/home] full"}
        daemon.do(lambda: daemon.world.run(minutes=31))
        rows = (("provider", "shared", "*", "refused", "null", 1), ("heartbeat", "ops", "", "stopped", "4", "null"))
        statements = ";".join(INSERT.format(*row) for row in rows)
        daemon.do(lambda: daemon.world.store.connection.executescript(statements))
        yield daemon


def user_with(daemon: WebDaemon, token: str) -> PageUser:
    user = PageUser(daemon)
    assert user.log_in(TOKENS[token]).status == 303
    return user


def shown_number(answer: Answer) -> tuple[str, int] | None:
    """The colour and the number beside the link to the problems."""
    found = re.search(
        r'href="/page/problems"[^>]*>Problems <span id="problem-count">(?:<span class="badge (\w+)"[^>]*>(\d+)</span>)?</span></a>',
        answer.body,
    )
    assert found is not None
    return (found[1], int(found[2])) if found[2] else None


def test_each_view_counts_the_open_problems_that_nobody_has_acknowledged(daemon: WebDaemon) -> None:
    user = user_with(daemon, "chief")
    numbers = {shown_number(user.get(f"/{path}")) for path in (*VIEWS, "page/nothing")}
    assert numbers == {("bad", 4)}
    user.submit("/page/do/problems/1/ack")
    assert shown_number(user.get("/")) == ("late", 3)
    user.submit("/page/do/problems/2/ack")
    user.submit("/page/do/problems/4/ack")
    user.submit("/page/do/problems/3/close")
    assert shown_number(user.get("/")) is None
    user.submit("/page/do/problems/1/unack")
    assert shown_number(user.get("/")) == ("bad", 1)


def test_a_limited_token_sees_the_number_of_its_own_problems(daemon: WebDaemon) -> None:
    user = user_with(daemon, "opsman")
    numbers = {shown_number(user.get(f"/{path}")) for path in VIEWS}  # the doctor is refused, on a page with the same navigation
    assert numbers == {("bad", 3)}
    assert [f"problems/p{number}/ack" in user.get("/page/problems").body for number in (1, 4)] == [True, False]
    user.submit("/page/do/problems/1/ack")
    assert shown_number(user.get("/")) == ("late", 2)
    user_with(daemon, "chief").submit("/page/do/problems/3/ack")
    assert shown_number(user.get("/")) == ("late", 2)


def test_a_limited_token_sees_neither_errors_of_the_daemon_nor_runs_and_numbers_of_other_agents(daemon: WebDaemon) -> None:
    rejected = partial(note_rejected_config, problem="config.yaml:2:1: agentz: unknown key", by="file watch")
    daemon.do(lambda: daemon.world.request(rejected))
    lock = daemon.world.state.with_name(f"{daemon.world.state.name}.lock")
    state_lock.record_refused_start(lock, state_lock.RefusedStart(daemon.now, 7, "other/config.yaml", None))
    for token, sees_all in (("chief", True), ("opsman", False)):
        user = user_with(daemon, token)
        assert ["agentz" in user.get(f"/page/{view}").text for view in ("problems", "changes")] == [sees_all, sees_all]
        assert ("A second daemon (other/config.yaml)" in user.get("/page/problems").text) is sees_all
        plan = user.get("/page/plan")
        assert (plan.status, "agent/web" in plan.text) == (200, sees_all)
        delivered = user.get("/page/outbox?state=delivered").text
        assert f"Delivered ({len(re.findall('Message [0-9]+ delivered', delivered))})" in delivered


def test_the_login_has_no_number(daemon: WebDaemon) -> None:
    assert "/page/problems" not in PageUser(daemon).get("/page/login").body


def test_the_page_listens_to_each_event_for_which_a_part_of_it_is_loaded_again() -> None:
    script = (FOLDER / "static/page.js").read_text("utf-8")
    heard = set(json.loads(re.findall(r"for \(const name of (\[.*])\)", script)[0]))
    templates = [path.read_text("utf-8") for path in (FOLDER / "templates").iterdir()]
    wanted = {word for text in templates for words in re.findall('data-live="([^"]*)"', text) for word in words.split()}
    assert wanted <= heard
    asking = [text for text in templates if ".questions" in text]
    assert len(asking) == 2 and all(re.search('data-live="[^"]*question', text) for text in asking)

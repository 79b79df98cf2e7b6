"""Questions of runs over HTTP: asked, answered and waited for by tokens, and answered on the page."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from page_user import PageUser
from web_daemon import WebDaemon
from world import Delayed

from scheduler.web.connection_timeouts import ClientTimeouts
from scheduler.web.perform import LONGEST_WAIT

CONFIG = """\
server: {listen: "127.0.0.1:0", tokens: {
  ops: {value: "ops-token-with-enough-bits-in-it-1", may: [read, wake, operate], agents: [ops]},
  web: {value: "web-token-with-enough-bits-in-it-1", may: [read, wake, operate], agents: [web]},
  chief: {value: "chief-token-with-enough-bits-in-it-1", may: [read, wake, operate]}}}
agents:
  ops: {runner: {kind: command, argv: [agent]}, heartbeat: {interval: 1h, stagger: 0s, checklist: "- look\\n", deliver: log, ask: log}}
  web: {runner: {kind: command, argv: [agent]}, heartbeat: {interval: 1d, checklist: "- look\\n", deliver: log}}
"""
OPS, WEB, CHIEF = (f"{name}-token-with-enough-bits-in-it-1" for name in ("ops", "web", "chief"))


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[WebDaemon]:
    """A run of ops is in progress."""
    with WebDaemon(tmp_path, CONFIG) as running:
        running.world.scripts["ops"] = lambda _: Delayed("HEARTBEAT_OK", timedelta(minutes=30))
        running.do(lambda: running.world.run(minutes=61))
        yield running


def last_run(daemon: WebDaemon, name: str = "ops") -> int:
    return int(daemon.get(f"/api/v1/runs?limit=1&name={name}&kind=agent", CHIEF).data["runs"][0]["id"])


def ask(daemon: WebDaemon, token: str = OPS, run: int | None = None, **keys: Any) -> Any:
    return daemon.post(f"/api/v1/runs/{run or last_run(daemon)}/ask", {"text": "Delete it?"} | keys, token)


def test_a_request_waits_until_the_question_is_answered(daemon: WebDaemon) -> None:
    asked = ask(daemon).data["question"]
    assert (asked["state"], asked["options"], asked["asked_by"]) == ("open", ["yes", "no"], "token ops")
    with ThreadPoolExecutor() as threads:
        reads = threads.submit(daemon.get, f"/api/v1/questions/{asked['id']}?wait=60s", OPS)
        asks = threads.submit(ask, daemon, key=asked["key"], wait="60s")
        while daemon.app_state.feed.reader_count < 2:
            pass
        brief = daemon.get(f"/api/v1/questions/{asked['id']}?wait=1s", OPS).data
        assert (brief["state"], daemon.app_state.feed.reader_count) == ("open", 2)  # the others still wait
        answered = daemon.post(f"/api/v1/questions/{asked['id']}/answer", {"answer": "no"}, CHIEF)
        assert answered.data["says"] == f"question {asked['id']} of run {asked['run']}: no, by token chief"
        for found in (reads.result().data, asks.result().data["question"]):
            assert (found["id"], found["state"], found["answer"], found["answered_by"]) == (
                asked["id"],
                "answered",
                "no",
                "token chief",
            )
    assert daemon.app_state.feed.reader_count == 0


def test_a_request_that_waits_as_long_as_possible_is_answered_before_the_server_closes_its_connection() -> None:
    assert ClientTimeouts().answer_seconds >= LONGEST_WAIT.total_seconds() + 10


def test_a_limited_token_sees_and_answers_only_the_questions_of_others_about_its_agents(daemon: WebDaemon) -> None:
    asked = ask(daemon).data["question"]
    path = f"/api/v1/questions/{asked['id']}"
    assert daemon.get(path, WEB).status == 403
    assert daemon.post(f"{path}/answer", {"answer": "yes"}, WEB).status == 403
    assert [daemon.get("/api/v1/status", token).data["questions"] for token in (WEB, OPS)] == [[], [asked]]
    own = daemon.post(f"{path}/answer", {"answer": "yes"}, OPS)
    assert (own.status, own.code) == (409, "own_question")
    assert daemon.post(f"{path}/answer", {"answer": "yes"}, CHIEF).status == 200
    assert daemon.get(f"/api/v1/runs/{asked['run']}", OPS).data["questions"][0]["answer"] == "yes"


def test_a_request_that_cannot_be_asked_says_why(daemon: WebDaemon) -> None:
    assert ask(daemon, run=99).status == 404
    assert ask(daemon, timeout="2d").code == "bad_request"
    daemon.world.scripts["web"] = lambda _: Delayed("HEARTBEAT_OK", timedelta(minutes=30))
    daemon.do(lambda: (daemon.world.wake("web"), daemon.world.run(seconds=1)))
    assert ask(daemon, WEB, last_run(daemon, "web")).code == "nobody_to_ask"
    for number in range(5):
        assert ask(daemon, text=f"And {number}?").status == 200
    assert (ask(daemon).status, ask(daemon).code) == (429, "too_many_questions")


def test_the_first_page_lists_the_open_questions_and_the_page_of_a_run_has_a_button_for_each_answer(daemon: WebDaemon) -> None:
    asked = ask(daemon, options=["yes", "no", "later"]).data["question"]
    user = PageUser(daemon)
    user.log_in(CHIEF)
    link = f'href="/page/runs/{asked["run"]}"><b>{asked["name"]}</b> asks</a>'
    assert link in user.get("/").body
    page = user.get(f"/page/runs/{asked['run']}")
    assert "Delete it?" in page.body
    assert page.body.count(f'action="/page/do/questions/{asked["id"]}/answer"') == 3
    user.submit(f"/page/do/questions/{asked['id']}/answer", answer="later")
    page = user.get(f"/page/runs/{asked['run']}")
    assert "later, by token chief" in page.body
    assert link not in user.get("/").body
    assert f"/page/do/questions/{asked['id']}" not in page.body

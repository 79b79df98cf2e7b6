"""Everything that is wrong over HTTP: all of it for a token without limits, the own part for others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from page_user import PageUser
from test_story_notices import process_result
from web_daemon import CONFIG, TOKENS, WebDaemon

CHIEF, READER, OPSMAN, WAKER = (TOKENS[name] for name in ("chief", "reader", "opsman", "waker"))

# A provider that makes `ops` and `web` fail, one that makes `web` fail, and a channel.
INSERT = (
    "insert into problem (kind, name, part, key, severity, text, reason, fault, cause_id, count, since, last_seen_at, opened_at,"
    " openings) values ('{}', '{}', '{}', '{}', 'warning', 'it says web', 'x', 'x', {}, 2, 1, 1, {}, '[1]')"
)
ROWS = (
    ("provider", "shared", "*", "refused", "null", 1),
    ("provider", "other", "*", "refused", "null", 1),
    ("channel", "hook", "", "undelivered", "null", 1),
    ("heartbeat", "ops", "", "stopped", "3", "null"),
    ("heartbeat", "web", "", "stopped", "3", "null"),
    ("heartbeat", "web", "", "precheck", "4", "null"),
)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[WebDaemon]:
    """`ops` reports a disk (p1), the job fails (p2), and the rows above follow."""
    with WebDaemon(tmp_path) as daemon:
        daemon.world.scripts = {"ops": lambda _: "[disk!] full", "measure": lambda _: process_result(2, "torn")}
        daemon.do(lambda: daemon.world.run(hours=6, minutes=1))
        statements = ";".join(INSERT.format(*row) for row in ROWS)
        daemon.do(lambda: daemon.world.store.connection.executescript(statements))
        yield daemon


def listed(daemon: WebDaemon, token: str, query: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = daemon.get(f"/api/v1/problems{query}", token).data["problems"]
    return found


def test_the_page_offers_a_limited_token_only_the_buttons_that_work(daemon: WebDaemon) -> None:
    (user := PageUser(daemon)).log_in(OPSMAN)
    page = user.get("/page/problems")
    assert "provider/shared" in page.text
    actions = {each.attributes["action"] for each in page.elements if each.tag == "form"}
    assert ("/page/do/problems/p1/close" in actions, "/page/do/problems/p3/close" in actions) == (True, False)


def test_a_token_without_limits_sees_everything_that_is_wrong(daemon: WebDaemon) -> None:
    found = {(each["number"], each["subject"], each["key"], each["state"]) for each in listed(daemon, READER)}
    assert found == {
        ("p1", "agent/ops", "disk", "open"),
        ("p2", "cron/measure", "failed", "open"),
        ("p3", "provider/shared", "refused", "open"),
        ("p4", "provider/other", "refused", "open"),
        ("p5", "channel/hook", "undelivered", "open"),
        ("p6", "agent/ops", "stopped", "covered"),
        ("p7", "agent/web", "stopped", "covered"),
        ("p8", "agent/web", "precheck", "covered"),
    }
    (job,) = listed(daemon, READER, "?name=p2")
    (sent,) = job["notices"]
    assert (sent["channel"], sent["kind"], sent["says"]) == ("log", "open", "delivered to log")
    assert sent["delivered_at"] is not None


def test_a_limited_token_sees_its_own_problems_and_the_providers_that_stop_its_own_agents(daemon: WebDaemon) -> None:
    found = {each["subject"]: each for each in listed(daemon, OPSMAN)}
    assert [each["number"] for each in listed(daemon, OPSMAN)] == ["p1", "p6", "p3"]
    assert "web" not in str(found["provider/shared"])
    assert (found["provider/shared"]["affects"], found["provider/shared"]["text"]) == (
        [{"kind": "heartbeat", "name": "ops"}],
        None,
    )
    assert found["agent/ops"]["text"] is not None


def test_what_is_unknown_or_of_another_agent_is_answered_alike(daemon: WebDaemon) -> None:
    for token, named, what in (
        (READER, "p99", "problem p99"),
        (OPSMAN, "p99", "problem p99"),
        (OPSMAN, "p7", "problem p7"),
        (OPSMAN, "web", "agent, job, channel or problem 'web'"),
        (OPSMAN, "nobody", "agent, job, channel or problem 'nobody'"),
    ):
        answer = daemon.get(f"/api/v1/problems?name={named}", token)
        assert (answer.status, answer.data["error"]["message"]) == (404, f"there is no {what}")
    assert listed(daemon, READER, "?name=web&state=open") != []
    daemon.post("/api/v1/problems/p1/close", {}, CHIEF)
    assert [each["key"] for each in listed(daemon, READER, "?name=p1")] == ["disk"], "it is over, and was asked for"


def test_a_channel_without_a_problem_is_known_to_those_who_see_all_agents(tmp_path: Path) -> None:
    channels = 'channels: {phone: {kind: webhook, url: "https://example.org"}}\n'
    with WebDaemon(tmp_path, CONFIG + channels) as daemon:
        assert [listed(daemon, READER, f"?name={name}") for name in ("phone", "channel/phone", "daemon")] == [[], [], []]
        assert listed(daemon, OPSMAN, "?name=daemon") == []
        assert daemon.get("/api/v1/problems?name=phone", OPSMAN).status == 404


def test_a_problem_of_any_subject_is_acknowledged_and_closed(daemon: WebDaemon) -> None:
    for number, subject, token in (("p1", "agent/ops", OPSMAN), ("2", "cron/measure", CHIEF), ("p3", "provider/shared", CHIEF)):
        path = f"/api/v1/problems/{number}"
        assert daemon.post(f"{path}/ack", {}, token).data["subject"] == subject
        (shown,) = listed(daemon, READER, f"?name=p{number.removeprefix('p')}")
        assert shown["acknowledged_by"] == ("token opsman" if token == OPSMAN else "token chief")
        assert daemon.post(f"{path}/unack", {}, token).status == 200
        assert daemon.post(f"{path}/unack", {}, token).code == "not_acknowledged"
        assert daemon.post(f"{path}/close", {}, token).data["problem"] == shown["number"]
        assert daemon.post(f"{path}/close", {}, token).code == "closed"


def test_only_a_token_for_its_subject_that_may_operate_changes_a_problem(daemon: WebDaemon) -> None:
    for verb in ("ack", "unack", "close"):
        for number, token, status in (
            ("p1", READER, 403), ("p1", WAKER, 403), ("p7", OPSMAN, 403), ("p3", OPSMAN, 403), ("p2", OPSMAN, 403),
            ("p99", CHIEF, 404), ("x", CHIEF, 404),
        ):  # fmt: skip
            assert daemon.post(f"/api/v1/problems/{number}/{verb}", {}, token).status == status, (verb, number)
    assert daemon.post("/api/v1/problems/1/ack", {"agent": "ops"}, CHIEF).status == 400
    assert len(listed(daemon, READER)) == 8


def test_the_former_paths_name_the_new_ones(daemon: WebDaemon) -> None:
    answer = daemon.get("/api/v1/conditions", READER)
    assert (answer.status, answer.code) == (410, "gone")
    assert answer.data["error"]["message"] == "/api/v1/conditions was removed; use /api/v1/problems"
    assert daemon.post("/api/v1/conditions/ack", {"agent": "ops", "key": "disk"}, CHIEF).status == 410
    assert daemon.get("/api/v1/conditions").status == 401


def test_an_agent_is_muted_and_unmuted_over_http(daemon: WebDaemon) -> None:
    path = "/api/v1/agents/ops"
    answer = daemon.post(f"{path}/mute", {"for": "2h", "until_changed": True}, OPSMAN)
    assert (answer.status, answer.data["until_changed"]) == (200, True)
    muted = daemon.get(path, READER).data["muted"]
    assert (muted["by"], muted["until"]) == ("token opsman", answer.data["muted_until"])
    assert daemon.post(f"{path}/unmute", {}, OPSMAN).data == {
        "was_muted": True,
        "held": 0,
        "says": "agent/ops is unmuted; messages of 0 runs were suppressed",
    }
    assert daemon.post(f"{path}/unmute", {}, OPSMAN).data["was_muted"] is False
    assert daemon.post("/api/v1/cron/measure/mute", {}, CHIEF).data["muted_until"] is None
    wrong = daemon.post(f"{path}/mute", {"for": "2h", "until": "2030-01-01T00:00:00Z"}, OPSMAN)
    assert (wrong.status, wrong.data["error"]["message"]) == (400, "write either for or until")
    assert daemon.post("/api/v1/agents/web/mute", {}, OPSMAN).status == 403


def test_the_verdict_counts_each_thing_once_and_for_a_limited_token_only_its_own(daemon: WebDaemon) -> None:
    def says(token: str) -> str:
        return str(daemon.get("/api/v1/status", token).data["verdict"]["says"])

    # Problems that are the consequence of others are not counted, nor is the problem of the job that fails.
    assert says(CHIEF) == "3 failing, 1 channel dead, 3 problems; last run 14:00"
    assert says(OPSMAN) == "1 failing, 2 problems; last run 14:00"
    daemon.post("/api/v1/problems/p1/ack", {}, CHIEF)
    assert says(OPSMAN) == "1 failing, 1 problem; last run 14:00"

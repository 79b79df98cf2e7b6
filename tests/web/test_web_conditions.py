"""Tests of listing and closing conditions over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from web_daemon import TOKENS, WebDaemon

CHIEF, READER, OPSMAN, WAKER = (TOKENS[name] for name in ("chief", "reader", "opsman", "waker"))
CLOSE = "/api/v1/conditions/close"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[WebDaemon]:
    """Both agents report that a disk is full, and `ops` that mail waits."""
    with WebDaemon(tmp_path) as daemon:
        daemon.world.scripts = {"ops": lambda _: "[disk!] full\n[mail] waits", "web": lambda _: "[disk] full"}
        daemon.do(lambda: daemon.world.run(minutes=31))
        yield daemon


def listed(daemon: WebDaemon, query: str = "", token: str = READER) -> list[tuple[Any, ...]]:
    found = daemon.get(f"/api/v1/conditions{query}", token).data["conditions"]
    return [(each["name"], each["key"], each["severity"], each["state"]) for each in found]


OPS_DISK, OPS_MAIL, WEB_DISK = (
    ("ops", "disk", "critical", "open"),
    ("ops", "mail", "warning", "open"),
    ("web", "disk", "warning", "open"),
)


def test_conditions_are_listed_as_far_as_a_token_goes(daemon: WebDaemon) -> None:
    assert listed(daemon) == [OPS_DISK, OPS_MAIL, WEB_DISK]
    assert listed(daemon, "?agent=web") == [WEB_DISK]
    assert listed(daemon, token=OPSMAN) == listed(daemon, "?agent=ops", OPSMAN) == [OPS_DISK, OPS_MAIL]
    assert daemon.get("/api/v1/conditions?agent=web", OPSMAN).status == 403
    assert daemon.get("/api/v1/conditions", WAKER).status == 403
    assert daemon.get("/api/v1/conditions").status == 401


@pytest.mark.parametrize(
    ("query", "status", "said"),
    [
        ("?state=closed", 400, "state: write open or all"),
        ("?name=ops", 400, "'name' is not allowed here; write agent, state"),
        ("?agent=opps", 404, "there is no agent 'opps'"),
        ("?agent=measure", 404, "there is no agent 'measure'"),
    ],
)
def test_a_wrong_query_is_answered_in_one_line(daemon: WebDaemon, query: str, status: int, said: str) -> None:
    answer = daemon.get(f"/api/v1/conditions{query}", READER)
    assert (answer.status, answer.data["error"]["message"]) == (status, said)


def test_a_condition_is_closed_over_http(daemon: WebDaemon) -> None:
    answer = daemon.post(CLOSE, {"agent": "ops", "key": "DISK "}, OPSMAN)
    assert (answer.status, answer.data["agent"], answer.data["key"]) == (200, "ops", "disk")
    assert listed(daemon) == [OPS_MAIL, WEB_DISK]
    assert listed(daemon, "?state=all&agent=ops") == [OPS_MAIL, ("ops", "disk", "critical", "closed")]
    again = daemon.post(CLOSE, {"agent": "ops", "key": "disk"}, OPSMAN)
    assert (again.status, again.code) == (409, "closed")


@pytest.mark.parametrize("token", [READER, WAKER, OPSMAN])
def test_only_a_token_for_its_agent_that_may_operate_can_close_a_condition(daemon: WebDaemon, token: str) -> None:
    assert daemon.post(CLOSE, {"agent": "web", "key": "disk"}, token).status == 403
    assert len(listed(daemon)) == 3


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"agent": "ops"}, 400, "key: write a string in quotes"),
        ({"agent": "ops", "key": 7}, 400, "key: write a string in quotes"),
        ({"agent": "ops", "key": "disk", "all": True}, 400, "'all' is not allowed here; write agent, key"),
        ({"agent": "ops", "key": "dsik"}, 404, "agent 'ops' has no condition 'dsik'; did you mean disk?"),
        ({"agent": "opps", "key": "disk"}, 404, "no agent 'opps' in config.yaml; did you mean ops?"),
    ],
)
def test_a_wrong_body_is_answered_in_one_line_and_changes_nothing(daemon: WebDaemon, body: Any, status: int, said: str) -> None:
    answer = daemon.post(CLOSE, body, CHIEF)
    assert (answer.status, answer.data["error"]["message"]) == (status, said)
    assert len(listed(daemon)) == 3


ACK = "/api/v1/conditions/ack"


def test_a_condition_is_acknowledged_by_its_key_or_by_a_run(daemon: WebDaemon) -> None:
    answer = daemon.post(ACK, {"agent": "ops", "key": "DISK "}, OPSMAN)
    assert (answer.status, answer.data["agent"], answer.data["keys"]) == (200, "ops", ["disk"])
    run = next(each["id"] for each in daemon.get("/api/v1/runs?name=ops", READER).data["runs"] if each["findings"])
    answer = daemon.post(ACK, {"run": run}, OPSMAN)
    assert (answer.status, answer.data["agent"], sorted(answer.data["keys"])) == (200, "ops", ["disk", "mail"])
    conditions = daemon.get("/api/v1/conditions?agent=ops", READER).data["conditions"]
    assert [each["acknowledged_by"] for each in conditions] == ["opsman", "opsman"]


def test_an_acknowledgement_is_taken_back_over_http(daemon: WebDaemon) -> None:
    daemon.post(ACK, {"agent": "ops", "key": "disk"}, OPSMAN)
    unack, body = "/api/v1/conditions/unack", {"agent": "ops", "key": "DISK "}
    assert daemon.post(unack, body, READER).status == 403
    assert daemon.post(unack, body, OPSMAN).data["keys"] == ["disk"]
    assert daemon.post(unack, body, OPSMAN).data["keys"] == []
    conditions = daemon.get("/api/v1/conditions?agent=ops", READER).data["conditions"]
    assert [each["acknowledged_by"] for each in conditions] == [None, None]


@pytest.mark.parametrize("body", [{}, {"agent": "ops"}, {"run": 1, "agent": "ops", "key": "disk"}])
def test_an_acknowledgement_needs_agent_and_key_or_a_run(daemon: WebDaemon, body: dict[str, Any]) -> None:
    answer = daemon.post(ACK, body, CHIEF)
    assert (answer.status, answer.data["error"]["message"]) == (400, "write agent and key, or run")


@pytest.mark.parametrize("token", [READER, WAKER, OPSMAN])
def test_only_a_token_for_its_agent_that_may_operate_can_acknowledge_or_mute(daemon: WebDaemon, token: str) -> None:
    assert daemon.post(ACK, {"agent": "web", "key": "disk"}, token).status == 403
    assert daemon.post("/api/v1/agents/web/mute", {}, token).status == 403


def test_an_agent_is_muted_and_unmuted_over_http(daemon: WebDaemon) -> None:
    path = "/api/v1/agents/ops"
    answer = daemon.post(f"{path}/mute", {"for": "2h", "until_changed": True}, OPSMAN)
    assert (answer.status, answer.data["until_changed"]) == (200, True)
    muted = daemon.get(path, READER).data["muted"]
    assert (muted["by"], muted["until"]) == ("opsman", answer.data["muted_until"])
    assert daemon.post(f"{path}/unmute", {}, OPSMAN).data == {
        "was_muted": True,
        "held": 0,
        "says": "agent/ops is unmuted; messages of 0 runs were suppressed",
    }
    assert daemon.post(f"{path}/unmute", {}, OPSMAN).data["was_muted"] is False
    assert daemon.post("/api/v1/cron/measure/mute", {}, CHIEF).data["muted_until"] is None
    wrong = daemon.post(f"{path}/mute", {"for": "2h", "until": "2030-01-01T00:00:00Z"}, OPSMAN)
    assert (wrong.status, wrong.data["error"]["message"]) == (400, "write either for or until")

"""Tests of the activity reports that gateways send about an agent over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from web_daemon import CONFIG, TOKENS, WebDaemon

OPSMAN, READER, CHIEF = TOKENS["opsman"], TOKENS["reader"], TOKENS["chief"]
PATH = "/api/v1/agents/ops/activity"
WITH_CHAT = CONFIG.replace(
    "\nagents:", '\nchannels: {chat: {kind: webhook, url: "https://canary.example.org/canary/{target}"}}\nagents:'
)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[WebDaemon]:
    with WebDaemon(tmp_path, WITH_CHAT) as daemon:
        yield daemon


def test_a_gateway_reports_the_target_of_an_agent_and_its_waiting_work(daemon: WebDaemon) -> None:
    first = daemon.post(
        PATH, {"channel": "chat", "target": "42", "title": "Family\n", "queue": 3, "pending_approvals": 1}, OPSMAN
    )
    last = {"channel": "chat", "target": "42", "title": "Family ", "at": "2026-03-02T08:00:00Z"}
    says = "the activity of agent/ops is recorded"
    assert first.data == {"last": last, "queue": 3, "pending_approvals": 1, "says": says}
    assert daemon.post(PATH, {"queue": 0}, OPSMAN).data == {"last": last, "queue": 0, "pending_approvals": 1, "says": says}
    approved = daemon.post(PATH, {"pending_approvals": 0}, OPSMAN).data
    assert (approved["queue"], approved["pending_approvals"]) == (0, 0)
    daemon.post(PATH, {"queue": 2, "pending_approvals": 1}, OPSMAN)
    assert daemon.post(PATH, {"pending_approvals": 5}, OPSMAN).data["queue"] == 2
    daemon.post(PATH, {"queue": 0, "pending_approvals": 1}, OPSMAN)
    daemon.post(PATH, {"channel": "chat", "target": "43"}, OPSMAN)
    agent = daemon.get("/api/v1/agents/ops", READER).data
    assert [(each["target"], each["title"]) for each in agent["targets"]] == [("43", ""), ("42", "Family ")]
    assert agent["activity"] == {"queue": 0, "pending_approvals": 1, "at": "2026-03-02T08:00:00Z"}
    assert daemon.get("/api/v1/agents/web", READER).data["targets"] == []


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "write channel and target, or queue, or pending_approvals"),
        ({"channel": "chat"}, "write channel and target together"),
        ({"target": "42"}, "write channel and target together"),
        ({"title": "x", "queue": 1}, "and a title only with them"),
        ({"channel": "chat", "target": 42}, "target: write a string in quotes, of at most 200 characters"),
        ({"channel": "chat", "target": "x" * 10_240}, "target: write a string in quotes, of at most 200 characters"),
        ({"channel": "chat", "target": "../x"}, "target: write 1 to 128 of A-Z"),
        ({"channel": "chat", "target": "a\ud800b"}, "target: write a string in quotes"),
        ({"channel": "cli", "target": "42"}, "channel: cli is internal"),
        ({"channel": "log", "target": "42"}, "contains {target}: chat"),
        ({"channel": "https://evil.example.org/{target}", "target": "42"}, "channel: this is a URL"),
        ({"queue": -1}, "queue: write a number from 0 to 1000000"),
        ({"queue": True}, "queue: write a number"),
        ({"pending_approvals": 1.5}, "pending_approvals: write a number"),
        ({"queue": 10**30}, "queue: write a number"),
        ({"que": 1}, "'que' is not allowed here"),
    ],
)
def test_an_invalid_report_is_rejected_with_advice_and_changes_nothing(daemon: WebDaemon, body: Any, message: str) -> None:
    reply = daemon.post(PATH, body, CHIEF)
    assert (reply.status, reply.code) == (400, "bad_request")
    assert message in reply.data["error"]["message"]
    assert b"canary" not in reply.body
    agent = daemon.get("/api/v1/agents/ops", READER).data
    assert (agent["targets"], agent["activity"]) == ([], None)

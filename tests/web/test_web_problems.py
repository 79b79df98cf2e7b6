"""Everything that is wrong over HTTP: all of it for a token without limits, the own part for others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_story_notices import process_result
from web_daemon import TOKENS, WebDaemon

READER, OPSMAN = TOKENS["reader"], TOKENS["opsman"]

# A provider that makes `ops` and `web` fail, one that makes `web` fail, and a channel.
INSERT = (
    "insert into problem (kind, name, part, key, severity, text, reason, fault, cause_id, count, since, last_seen_at, opened_at,"
    " openings) values ('{}', '{}', '{}', '{}', 'warning', 'it says web', 'x', 'x', {}, 2, 1, 1, {}, '[1]')"
)
ROWS = (
    ("provider", "shared", "*", "refused", "null", 1),
    ("provider", "other", "*", "refused", "null", 1),
    ("channel", "hook", "", "undelivered", "null", 1),
    ("heartbeat", "ops", "", "stopped", "2", "null"),
    ("heartbeat", "web", "", "stopped", "2", "null"),
    ("heartbeat", "web", "", "precheck", "3", "null"),
)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[WebDaemon]:
    """The job fails (p1), `ops` reports a disk, and the rows above follow."""
    with WebDaemon(tmp_path) as daemon:
        daemon.world.scripts = {"ops": lambda _: "[disk!] full", "measure": lambda _: process_result(2, "torn")}
        daemon.do(lambda: daemon.world.run(hours=6, minutes=1))
        statements = ";".join(INSERT.format(*row) for row in ROWS)
        daemon.do(lambda: daemon.world.store.connection.executescript(statements))
        yield daemon


def listed(daemon: WebDaemon, token: str, query: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = daemon.get(f"/api/v1/problems{query}", token).data["problems"]
    return found


def test_a_token_without_limits_sees_everything_that_is_wrong(daemon: WebDaemon) -> None:
    found = {(each["number"], each["subject"], each["key"], each["state"]) for each in listed(daemon, READER)}
    assert found == {
        (None, "agent/ops", "disk", "open"),
        ("p1", "cron/measure", "failed", "open"),
        ("p2", "provider/shared", "refused", "open"),
        ("p3", "provider/other", "refused", "open"),
        ("p4", "channel/hook", "undelivered", "open"),
        ("p5", "agent/ops", "stopped", "covered"),
        ("p6", "agent/web", "stopped", "covered"),
        ("p7", "agent/web", "precheck", "covered"),
    }
    (job,) = listed(daemon, READER, "?name=p1")
    (sent,) = job["notices"]
    assert (sent["channel"], sent["kind"], sent["says"]) == ("log", "open", "delivered to log")
    assert sent["delivered_at"] is not None


def test_a_limited_token_sees_its_own_problems_and_the_providers_that_stop_its_own_agents(daemon: WebDaemon) -> None:
    found = {each["subject"]: each for each in listed(daemon, OPSMAN)}
    assert [each["number"] for each in listed(daemon, OPSMAN)] == [None, "p5", "p2"]
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
        (OPSMAN, "p6", "problem p6"),
        (OPSMAN, "web", "agent, job or problem 'web'"),
        (OPSMAN, "nobody", "agent, job or problem 'nobody'"),
    ):
        answer = daemon.get(f"/api/v1/problems?name={named}", token)
        assert (answer.status, answer.data["error"]["message"]) == (404, f"there is no {what}")
    assert listed(daemon, READER, "?name=web&state=open") != []

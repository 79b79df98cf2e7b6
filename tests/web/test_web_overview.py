"""Tests of what the HTTP API says about all entries: the overview of explain, and the budgets in the status."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from datetime import date
from zoneinfo import ZoneInfo

import pytest
from loops import loop_over
from web_daemon import CONFIG, TOKENS, WebDaemon

from scheduler.insight.daemon_state import read_daemon_state
from scheduler.insight.explanation import explain_all
from scheduler.insight.periods import Period
from scheduler.insight.records import Records
from scheduler.store.database import open_read_only
from scheduler.system.lanes import lanes_beside
from scheduler.work.plan import make_plan

READER, WAKER, OPSMAN = (TOKENS[name] for name in ("reader", "waker", "opsman"))
BUDGETS = CONFIG.replace("checklist:", "budget: {runs_per_day: 4}, checklist:") + "limits: {budget: {runs_per_day: 9}}\n"


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDaemon]:
    """A daemon that tests only read."""
    with WebDaemon(tmp_path_factory.mktemp("still"), BUDGETS) as daemon:
        yield daemon


@pytest.mark.parametrize("query", ["", "?on=today", "?on=monday", "?on=2026-03-02"])
def test_the_day_of_all_entries_is_the_json_of_the_command_explain(still: WebDaemon, query: str) -> None:
    period = Period.of_day(date(2026, 3, 2), ZoneInfo("UTC"), still.now)
    with closing(open_read_only(still.world.state)) as db:
        daemon = read_daemon_state(db, still.now, running=True, pid=os.getpid())
        held = lanes_beside(still.world.state)
        expected = explain_all(Records(db, make_plan(still.settings), period, still.now, daemon, held)).as_data()
    data = still.get(f"/api/v1/explain{query}", READER).data
    assert data == expected
    assert {entry["name"]: entry["ran"] for entry in data["entries"]} == {"ops": 1, "web": 1, "measure": 0}


def test_the_overview_of_earlier_days_and_since_a_time(still: WebDaemon) -> None:
    yesterday = still.get("/api/v1/explain?on=yesterday", READER).data
    assert (yesterday["from"], yesterday["until"]) == ("2026-03-01T00:00:00Z", "2026-03-02T00:00:00Z")
    since = still.get("/api/v1/explain?since=2026-03-02T07:00:00Z", READER).data
    assert (since["from"], since["until"]) == ("2026-03-02T07:00:00Z", "2026-03-02T08:00:00Z")


def test_a_token_for_some_agents_gets_the_overview_of_these(still: WebDaemon) -> None:
    data = still.get("/api/v1/explain", OPSMAN).data
    assert [entry["name"] for entry in data["entries"]] == ["ops"]
    assert sum(data["counts"].values()) == 1
    assert (data["changes"], data["overrides"]) == ([], [])


@loop_over(
    ("query", "token", "status"),
    [
        ("on=someday", READER, 400),
        ("on=2026-03-03", READER, 400),
        ("on=0001-01-01", READER, 400),
        ("on=9999-12-31", READER, 400),
        ("since=3h", READER, 400),
        ("since=0001-01-01T00:00:00Z", READER, 400),
        ("since=2026-03-02T08:00:01Z", READER, 400),
        ("since=2026-03-02T07:00:00Z&on=today", READER, 400),
        ("at=2026-03-02T07:00:00Z", READER, 400),
        ("", WAKER, 403),
        ("", None, 401),
    ],
)
def test_an_invalid_or_forbidden_request_for_the_overview_is_rejected(
    still: WebDaemon, query: str, token: str | None, status: int
) -> None:
    assert still.get(f"/api/v1/explain?{query}", token).status == status


def test_a_token_for_some_agents_sees_only_their_shares_of_the_common_budget(still: WebDaemon) -> None:
    everything, own = (still.get("/api/v1/status", token).data["budgets"] for token in (READER, OPSMAN))
    assert [budget["name"] for budget in everything] == [None, "ops", "web"]
    assert [budget["name"] for budget in own] == [None, "ops"]
    assert (everything[0]["limits"], own[0]["limits"]) == ({"runs_per_day": {"used": 2, "of": 9}}, {})
    for part in ("counts", "shares"):
        assert [entry["name"] for entry in everything[0][part]] == ["ops", "web"]
        assert [entry["name"] for entry in own[0][part]] == ["ops"]

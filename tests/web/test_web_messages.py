"""Tests of cancelling runs and of retrying, dropping and testing messages over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from servers.scripted import Server, reply
from web_daemon import CONFIG, TOKENS, WebDaemon
from world import Delayed

from scheduler.model.message import DeliveryResult

CHIEF, READER, OPSMAN = (TOKENS[name] for name in ("chief", "reader", "opsman"))


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[WebDaemon]:
    """Each run sends an alert, and no message is delivered."""
    channel = 'channels: {hook: {kind: webhook, url: "http://127.0.0.1:1/x", allow_private: true}}\n'
    with WebDaemon(tmp_path, channel + CONFIG.replace("deliver: log", "deliver: hook")) as daemon:
        daemon.world.send = lambda delivery: DeliveryResult("dead", "400")
        daemon.world.scripts = {"web": lambda call: f"web at {call.at}", "ops": lambda call: f"ops at {call.at}"}
        daemon.do(lambda: daemon.world.run(minutes=30))
        daemon.do(daemon.world.settle)
        yield daemon


def listed(daemon: WebDaemon, token: str = READER, query: str = "") -> list[tuple[Any, ...]]:
    found = daemon.get(f"/api/v1/outbox{query}", token).data["outbox"]
    return [(each["name"], each["state"]) for each in found]


def test_the_outbox_lists_only_messages_that_the_token_may_read(daemon: WebDaemon) -> None:
    assert set(listed(daemon)) == {("web", "dead"), ("ops", "dead")}
    assert set(listed(daemon, OPSMAN)) == {("ops", "dead")}
    assert len(listed(daemon, query="?limit=1")) == 1
    assert daemon.get("/api/v1/outbox?state=dead", READER).status == 400
    assert daemon.get("/api/v1/outbox").status == 401


def test_a_page_of_the_outbox_for_a_token_has_only_messages_that_it_may_read(daemon: WebDaemon) -> None:
    answer = daemon.get("/api/v1/outbox?limit=1", OPSMAN).data
    assert ([each["name"] for each in answer["outbox"]], answer["next"]) == (["ops"], None)


def test_pages_of_the_outbox_have_the_messages_on_their_way_before_those_that_were_given_up(daemon: WebDaemon) -> None:
    oldest, *others = sorted(each["id"] for each in daemon.get("/api/v1/outbox", READER).data["outbox"])
    daemon.world.send = lambda delivery: DeliveryResult("retry", "503")
    daemon.post(f"/api/v1/outbox/{oldest}/retry", {}, CHIEF)
    daemon.do(daemon.world.settle)
    given_up = [(each, "dead") for each in reversed(others)]
    assert read_in_pages(daemon) == [(oldest, "pending"), *given_up]
    newest = others[-1]
    daemon.do(lambda: daemon.world.store.connection.execute("update outbox set state = 'held' where id = ?", (newest,)))
    assert read_in_pages(daemon) == [(newest, "held"), (oldest, "pending"), *given_up[1:]]


def read_in_pages(daemon: WebDaemon) -> list[tuple[int, str]]:
    found, path = [], "/api/v1/outbox?limit=1"
    while path:
        page = daemon.get(path, READER).data
        found += [(each["id"], each["state"]) for each in page["outbox"]]
        path = f"/api/v1/outbox?limit=1&cursor={page['next']}" if page["next"] else ""
    return found


def message_for(daemon: WebDaemon, name: str) -> int:
    return next(each["id"] for each in daemon.get("/api/v1/outbox", READER).data["outbox"] if each["name"] == name)


def test_what_an_agent_said_is_listed_by_recipient_and_the_newest_comes_first(daemon: WebDaemon) -> None:
    daemon.world.send = lambda delivery: DeliveryResult("delivered")
    daemon.do(lambda: daemon.world.run(hours=1))
    said = {
        query: daemon.get(f"/api/v1/agents/ops/said{query}", OPSMAN).data["said"]
        for query in ("", "?to=hook", "?limit=1", "?to=other", "?to=hook:7")
    }
    everything = said[""]
    on_hook = [each for each in everything if each["channel"] == "hook"]
    assert sorted(everything, key=lambda each: each["at"].rstrip("Z"), reverse=True) == everything
    assert 0 < len(on_hook) < len(everything)
    assert list(said.values()) == [everything, on_hook, everything[:1], [], []]


def test_a_message_is_sent_again(daemon: WebDaemon) -> None:
    message = message_for(daemon, "web")
    daemon.world.send = lambda delivery: DeliveryResult("delivered")
    answer = daemon.post(f"/api/v1/outbox/{message}/retry", {}, CHIEF)
    assert (answer.status, answer.data) == (
        200,
        {"message": message, "channel": "hook", "says": f"message {message} will be sent again"},
    )
    assert message not in [each["id"] for each in daemon.get("/api/v1/outbox", READER).data["outbox"]]


def test_a_message_is_dropped_once(daemon: WebDaemon) -> None:
    message = message_for(daemon, "web")
    assert daemon.post(f"/api/v1/outbox/{message}/drop", None, CHIEF).data["says"] == f"message {message} is dropped"
    again = daemon.post(f"/api/v1/outbox/{message}/drop", None, CHIEF)
    assert (again.status, again.code) == (409, "dropped")
    assert again.data["error"]["message"] == f"message {message} has been dropped (400)"
    daemon.do(lambda: daemon.world.store.connection.execute("update outbox set error = null where id = ?", (message,)))
    again = daemon.post(f"/api/v1/outbox/{message}/drop", None, CHIEF)
    assert again.data["error"]["message"] == f"message {message} has been dropped"
    runs = daemon.get("/api/v1/runs?name=web", READER).data["runs"]
    assert "dropped" in [run["delivery"]["state"] for run in runs]


def test_an_unknown_message_is_404(daemon: WebDaemon) -> None:
    assert [daemon.post(f"/api/v1/outbox/{number}/drop", {}, CHIEF).status for number in ("99", "x")] == [404, 404]


def test_a_run_in_progress_is_cancelled(daemon: WebDaemon) -> None:
    daemon.world.scripts["web"] = lambda call: Delayed("late", timedelta(minutes=5))
    daemon.do(lambda: daemon.world.run(minutes=30))
    run = daemon.get("/api/v1/runs?name=web&limit=1", READER).data["runs"][0]
    assert run["state"] == "running"
    assert daemon.post(f"/api/v1/runs/{run['id']}/cancel", {}, CHIEF).data["ended"] is False
    daemon.do(lambda: daemon.world.run(seconds=1))
    ended = daemon.get(f"/api/v1/runs/{run['id']}", READER).data
    assert (ended["result"], ended["why"]) == ("abandoned", "cancelled")
    again = daemon.post(f"/api/v1/runs/{run['id']}/cancel", {}, CHIEF)
    assert (again.status, again.data["error"]["message"]) == (409, f"run {run['id']} has already ended: abandoned")
    assert daemon.post("/api/v1/runs/99/cancel", {}, CHIEF).status == 404


def test_runs_can_be_sorted_by_cost(daemon: WebDaemon) -> None:
    db = daemon.world.store.connection
    daemon.do(lambda: db.execute("update run set cost_usd = case id when 1 then 0.5 when 2 then 2.0 end"))
    runs = daemon.get("/api/v1/runs?sort=cost&limit=3", READER).data["runs"]
    assert [(run["id"], run["cost_usd"]) for run in runs[:2]] == [(2, 2.0), (1, 0.5)]
    assert runs[2]["cost_usd"] is None
    daemon.do(lambda: db.execute("update run set cost_usd = 0.5 where cost_usd is null"))
    shown, page = [], "/api/v1/runs?sort=cost&limit=1"
    while len(shown) < 3:
        answer = daemon.get(page, READER).data
        shown.append(answer["runs"][0]["id"])
        page = f"/api/v1/runs?sort=cost&limit=1&cursor={answer['next']}"
    assert shown[0] == 2 and shown[1] > shown[2], "equal ones begin with the newest"
    assert daemon.get("/api/v1/runs?sort=name", READER).status == 400


def test_a_channel_can_be_tested_without_the_outbox(tmp_path: Path) -> None:
    with Server([reply(), reply(b"no such hook", 404)]) as server:
        channels = "".join(
            f'  {name}: {{kind: webhook, url: "{server.url}/{name}", allow_private: true}}\n' for name in ("a", "b")
        )
        with WebDaemon(tmp_path, "channels:\n" + channels + CONFIG) as daemon:
            assert daemon.post("/api/v1/ping", {"channel": "a"}, CHIEF).data == {
                "channels": [{"channel": "a", "state": "delivered", "error": None, "says": "a: delivered"}],
                "says": "a: delivered",
            }
            every = daemon.post("/api/v1/ping", {}, CHIEF).data["channels"]
            assert [(each["channel"], each["state"]) for each in every] == [("a", "dead"), ("b", "dead")]
            assert "404" in every[0]["error"]
            assert daemon.post("/api/v1/ping", {"channel": "c"}, CHIEF).status == 404
            assert daemon.post("/api/v1/ping", {"channel": ["a"]}, CHIEF).status == 400
            assert daemon.rows()["outbox"] == 1  # the alert of the agent's first run
    assert len({request.headers["idempotency-key"] for request in server.requests}) == 3

"""The HTTP interface of a daemon that runs one of several shards: which daemon to ask about an agent, and the state of the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from page_user import PageUser
from test_story_shards import FLEET
from web_daemon import TOKENS, WebDaemon
from world import World

from scheduler.model.secret import Secret
from scheduler.web import token_file

OTHER = "http://127.0.0.1:7858"
CONFIG = FLEET.replace("{of: 2}", f'{{of: 2, addresses: ["http://127.0.0.1:7857", "{OTHER}"]}}') + (
    f'server: {{listen: "127.0.0.1:0", tokens: {{limited: {{value: "{TOKENS["waker"]}", may: [read, wake], agents: [c]}}}}}}\n'
)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDaemon]:
    """The daemon of shard 0, which has the agents c and d. Shard 1 was stopped a minute ago."""
    folder = tmp_path_factory.mktemp("fleet")
    other = World(folder, CONFIG, shard=1)
    other.run(minutes=1)
    other.stop()
    with WebDaemon(folder, CONFIG, shard=0) as found:
        yield found


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/api/v1/agents/a", None),
        ("GET", "/api/v1/agents/a/config", None),
        ("GET", "/api/v1/explain/a", None),
        ("GET", "/api/v1/cron/wake-a/config", None),
        ("POST", "/api/v1/agents/a/wake", {"text": "x"}),
        ("POST", "/api/v1/agents/a/pause", {}),
        ("PUT", "/api/v1/agents/a/busy", {"id": "x", "for": "1m"}),
        ("POST", "/api/v1/cron/wake-a/run", {}),
    ],
)
def test_a_request_for_an_agent_of_another_shard_names_its_daemon(
    daemon: WebDaemon, method: str, path: str, body: dict[str, str] | None
) -> None:
    reply = daemon.send(method, path, body, token=daemon.token)
    name = path.split("/")[4]
    assert (reply.status, reply.code) == (421, "other_shard")
    assert reply.data["error"]["message"] == f"{name} belongs to shard 1 of 2; send the request to its daemon at {OTHER}"


def test_requests_for_own_and_for_unknown_agents_are_answered_as_ever(daemon: WebDaemon) -> None:
    assert daemon.send("GET", "/api/v1/agents/c", token=daemon.token).data["name"] == "c"
    assert daemon.send("GET", "/api/v1/agents/nobody", token=daemon.token).status == 404
    assert daemon.send("POST", "/api/v1/agents/c/wake", {"text": "x"}, token=daemon.token).status == 200


def test_a_run_that_is_not_found_names_the_shard(daemon: WebDaemon) -> None:
    reply = daemon.send("GET", "/api/v1/runs/1000000000005", token=daemon.token)
    assert (reply.status, reply.data["error"]["message"]) == (404, "there is no run 1000000000005 in shard 0 of 2")


def test_a_token_for_some_agents_does_not_find_out_about_others(daemon: WebDaemon) -> None:
    assert daemon.send("GET", "/api/v1/agents/a", token=TOKENS["waker"]).code == "forbidden"
    assert daemon.send("GET", "/api/v1/status", token=TOKENS["waker"]).data["shards"] == []


def test_the_status_has_the_state_of_each_shard(daemon: WebDaemon) -> None:
    first, second = daemon.send("GET", "/api/v1/status", token=daemon.token).data["shards"]
    assert (first["index"], first["own"], first["state"], first["agents"], first["jobs"]) == (0, True, "running", 2, 1)
    assert (second["index"], second["own"], second["state"], second["address"]) == (1, False, "stopped", OTHER)
    assert second["failing"] == 0


def test_the_page_has_links_to_the_other_shards_and_leads_to_the_daemon_of_an_agent(daemon: WebDaemon) -> None:
    user = PageUser(daemon)
    user.log_in(daemon.token)
    page = user.get("/").body
    assert f'href="{OTHER}/">Shard 1: stopped, 2 agents</a>' in page
    assert "Shard 0: running, 2 agents</span>" in page
    reply = user.get("/page/agents/a?on=today")
    assert (reply.status, reply.headers["location"]) == (303, f"{OTHER}/page/agents/a?on=today")


def test_a_shard_that_neither_runs_nor_was_stopped_is_silent(tmp_path: Path) -> None:
    other = World(tmp_path, CONFIG, shard=1)
    other.run(minutes=1)
    other.kill()
    with WebDaemon(tmp_path, CONFIG, shard=0) as daemon:
        daemon.do(lambda: daemon.world.run(minutes=5))
        states = [each["state"] for each in daemon.send("GET", "/api/v1/status", token=daemon.token).data["shards"]]
    assert states == ["running", "silent"]


def test_daemons_in_one_folder_that_start_at_once_have_the_same_token(tmp_path: Path) -> None:
    first = token_file.load_or_create_token(tmp_path / "h-shard-0.db")
    assert token_file._write_first_token(tmp_path / "token", "x" * 43) == first.reveal()
    assert token_file.load_or_create_token(tmp_path / "h-shard-1.db") == Secret(first.reveal())
    assert [path.name for path in tmp_path.iterdir()] == ["token"]
